#include "common.h"
#include <cstdio>

__device__ unsigned hits;
static __device__ int local_count = 70;
typedef float (*operation)(float);
__device__ __noinline__ float plus_one(float x) { return x + 1; }
__device__ __noinline__ float minus_one(float x) { return x - 1; }
__device__ operation operations[2] = {plus_one, minus_one};

__device__ __noinline__ float counting(float x)
{
	atomicAdd(&hits, 1u);
	return x + 1;
}

__device__ __noinline__ int times_factorial(int n, int before)
{
	return before * factorial(n);
}

__global__ void calls(float *p, int n)
{
	int i = threadIdx.x;
	if (i < n)
		p[i] = scaled(p[i], i) * twice(p[i]);
}

__global__ void sums(float *p, int n)
{
	extern __shared__ float room[];
	int i = threadIdx.x;
	room[i] = block_sum(p[i]);
	__syncthreads();
	p[i] = room[(i + 1) % n] + p[i] * p[i];
}

__global__ void recurses(int *p)
{
	p[threadIdx.x] = factorial(p[threadIdx.x] & 7);
}

__global__ void uses_extern(float *p, int n)
{
	int i = threadIdx.x;
	if (i < n)
		p[i] += scale_table[i & 15] * coefficients[i & 7];
	if (i == 0)
		hits += 1;
}

__global__ void calls_counting(float *p)
{
	p[threadIdx.x] = counting(p[threadIdx.x]);
}

__global__ void calls_table(float *p)
{
	p[threadIdx.x] = operations[threadIdx.x & 1](p[threadIdx.x]);
}

__global__ void prints(int n)
{
	printf("%d of %u\n", n, blockDim.x);
}

static __global__ void tally(int *p)
{
	atomicAdd(&local_count, p[threadIdx.x] * 2);
	p[threadIdx.x] = local_count;
}

void run_second(float *p, int n)
{
	calls<<<1, n>>>(p, n);
	sums<<<1, n, n * 4>>>(p, n);
	recurses<<<1, n>>>((int *)p);
	uses_extern<<<1, n>>>(p, n);
	calls_counting<<<1, n>>>(p);
	calls_table<<<1, n>>>(p);
	fill<<<1, n>>>(p, 3.0f, n);
	numbered<2><<<1, n>>>((int *)p);
	prints<<<1, 1>>>(n);
	tally<<<1, n>>>((int *)p);
}

void tally_second(int *p, int n)
{
	tally<<<1, n>>>(p);
}
