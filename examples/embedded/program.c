/* Uses libvector.so, and knows nothing of Neutrino: y = 2 x + y three times over, then the sum of y. */
#include <stdio.h>
#include <stdlib.h>

#include "vector.h"

int main(void)
{
	unsigned n = 4096;
	float *x = malloc(n * sizeof(*x)), *y = malloc(n * sizeof(*y)), total = 0;
	int result = x && y ? 0 : 2;

	for (unsigned i = 0; !result && i < n; i++) {
		x[i] = (float)(i % 7);
		y[i] = 1;
	}
	for (int i = 0; !result && i < 3; i++)
		result = vector_saxpy(n, 2, x, y);
	if (!result)
		result = vector_sum(n, y, &total);
	if (result)
		fprintf(stderr, "program: the GPU said no: error %d\n", result);
	else
		printf("y[6] = %g, sum of y = %g\n", y[6], total);
	free(x);
	free(y);
	return result != 0;
}
