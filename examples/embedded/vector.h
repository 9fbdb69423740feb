/* libvector.so: two operations on vectors, on the GPU. Each returns 0, or the driver's error. */
#ifndef VECTOR_H
#define VECTOR_H

/* y = a x + y, n elements */
int vector_saxpy(unsigned n, float a, const float *x, float *y);

/* *total = the sum of x, n elements */
int vector_sum(unsigned n, const float *x, float *total);

#endif
