// What nvcc makes of the things that a twin has to take over: variables, constants, literals, calls, exits.
#include <cassert>
#include <cstdio>
#include <cuda_fp16.h>

__device__ int counter;
__constant__ float coefficients[16];
__device__ static float table[64];
extern __shared__ float dynamic[];

__device__ __noinline__ float reads_constant(float x) { return x * coefficients[3]; }
__device__ __noinline__ float polynomial(float x) { return x * x + 1.0f; }

__global__ void variables(float *a, const float *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    a[i] = a[i] * b[i] + coefficients[i & 15];
    atomicAdd(&counter, 1);
    table[i & 63] = a[i];
}

__global__ void half_pairs(__half2 *a, const __half2 *b, int n) {
    int i = threadIdx.x;
    if (i < n) a[i] = __hadd2(__hmul2(a[i], b[i]), b[i + 1]);
}

__global__ void prints(int n) {
    if (threadIdx.x < n) printf("%d %s\n", n, "x");
    assert(n > 0);
}

__global__ void calls(float *a) { a[threadIdx.x] = polynomial(a[threadIdx.x]); }
__global__ void calls_with_constant(float *a) { a[threadIdx.x] = reads_constant(a[threadIdx.x]); }

__global__ void shared_sum(const float *a, float *out, int n) {
    __shared__ float part[256];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += a[i] * a[i];
    part[threadIdx.x] = dynamic[threadIdx.x] = sum;
    __syncthreads();
    for (int k = 128; k; k >>= 1) {
        if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
        __syncthreads();
    }
    if (!threadIdx.x) *out = part[0];
}

struct Large { char c; double d[40]; short s[3]; };
__global__ __launch_bounds__(256, 2) void large(Large b, int *out) {
    out[threadIdx.x] = b.s[threadIdx.x % 3] + (int)b.d[threadIdx.x % 40] + b.c;
}

typedef int (*Function)(int);
__device__ int one(int x) { return x + 1; }
__device__ int two(int x) { return x * 2; }
__device__ Function functions[2] = {one, two};
__global__ void by_pointer(int *a, int k) { a[0] = functions[k](a[0]); }
