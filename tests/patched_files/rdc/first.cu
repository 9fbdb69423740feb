#include "common.h"

__device__ float scale_table[16] = {1, 2, 3, 4};
__constant__ float coefficients[8] = {0.5f, 0.25f};
static __device__ int local_count = 7;

__device__ __noinline__ float scaled(float x, int i)
{
	return x * 1.5f + i;
}

__device__ __noinline__ float block_sum(float x)
{
	__shared__ float values[32];
	values[threadIdx.x & 31] = x * 3.0f + 1.0f;
	__syncthreads();
	return values[(threadIdx.x + 1) & 31];
}

__device__ __noinline__ int factorial(int n)
{
	return n < 2 ? 1 : times_factorial(n - 1, n);
}

__global__ void uses_own(float *p, int n)
{
	int i = threadIdx.x;
	if (i < n)
		p[i] = p[i] * scale_table[i & 15] + coefficients[i & 7];
}

static __global__ void tally(int *p)
{
	atomicAdd(&local_count, p[threadIdx.x]);
	p[threadIdx.x] = local_count;
}

__global__ void axpy(const float *a, const float *b, float *c, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		c[i] = a[i] * b[i] + c[i];
}

void run_first(float *p, int n)
{
	uses_own<<<1, n>>>(p, n);
	tally<<<1, n>>>((int *)p);
	fill<<<1, n>>>(p, 2.0f, n);
	numbered<1><<<1, n>>>((int *)p);
	axpy<<<1, n>>>(p, p, p, n);
}

void tally_first(int *p, int n)
{
	tally<<<1, n>>>(p);
}
