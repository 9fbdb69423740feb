// Kernels that nvcc's front end turns into PTX which the other sources lack: half and bf16 intrinsics that stay unfused
// until ptxas, tensor cores, asynchronous copies, printf, assert, textures, dynamic shared memory, device functions.
#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

__device__ int device_counter;
__device__ float device_table[64] = {1.0f, 2.0f};
__constant__ float coefficients[16];
__constant__ int4 packed_constants[4];

extern "C" {

__global__ void half_pairs(const __half *a, const __half *b, __half *c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    c[i] = __hadd(__hmul(a[i], b[i]), c[i]);
    c[i + 1] = __hsub(c[i + 2], __hmul(a[i], b[i + 1]));
}

__global__ void half2_pairs(const __half2 *a, const __half2 *b, __half2 *c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __half2 product = __hmul2(a[i], b[i]);
    c[i] = __hadd2(product, c[i]);
    c[i + 1] = __hadd2(__hmul2(product, a[i + 1]), b[i + 1]);
}

__global__ void bf16_pairs(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    c[i] = __hadd(__hmul(a[i], b[i]), c[i]);
}

__global__ void bf162_dot(const __nv_bfloat162 *a, const __nv_bfloat162 *b, __nv_bfloat162 *c, int n) {
    __nv_bfloat162 sum = __floats2bfloat162_rn(0.0f, 0.0f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum = __hadd2(__hmul2(a[i], b[i]), sum);
    c[threadIdx.x] = sum;
}

__global__ void axpy(float alpha, const float *x, float *y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = alpha * x[i] + y[i];
}

__global__ void doubles(double *a, double s) {
    int i = threadIdx.x;
    a[i] = sqrt(a[i] * a[i] + s) / (a[i + 1] - s) + exp(a[i + 2]);
}

__global__ void uses_variables(float *out) {
    int i = threadIdx.x;
    atomicAdd(&device_counter, 1);
    out[i] = device_table[i & 63] * coefficients[i & 15] + packed_constants[i & 3].y;
}

__global__ void dynamic_shared(float *a) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x] * 2.0f + tile[0];
}

__global__ void warp_sum(float *a) {
    float v = a[threadIdx.x];
    for (int offset = 16; offset; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    if ((threadIdx.x & 31) == 0) a[blockIdx.x] = v;
}

__global__ void prints(int *a) {
    if (a[threadIdx.x] < 0) printf("thread %d holds %d\n", threadIdx.x, a[threadIdx.x]);
    a[threadIdx.x] += 1;
}

__global__ void asserts(int *a) {
    assert(a[threadIdx.x] != 7);
    a[threadIdx.x] *= 3;
}

__global__ void early_exits(int *a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (a[i] < 0) { a[i] = 0; return; }
    for (int j = 0; j < a[i]; j++) {
        if (a[j] == 42) { asm volatile("exit;"); }
        a[j] += 1;
    }
}

__noinline__ __device__ float helper(float x, int n) {
    float r = x;
    for (int i = 0; i < n; i++) r = r * x + 1.0f;
    return r;
}

__global__ void calls_helper(float *a, int n) { a[threadIdx.x] = helper(a[threadIdx.x], n) + helper(a[threadIdx.x + 1], 3); }

__global__ void tensor_cores(const __half *a, const __half *b, float *c) {
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __half, row_major> fa;
    fragment<matrix_b, 16, 16, 16, __half, col_major> fb;
    fragment<accumulator, 16, 16, 16, float> fc;
    fill_fragment(fc, 0.0f);
    load_matrix_sync(fa, a, 16);
    load_matrix_sync(fb, b, 16);
    mma_sync(fc, fa, fb, fc);
    store_matrix_sync(c, fc, 16, mem_row_major);
}

__global__ void asynchronous_copies(const float4 *a, float4 *b) {
    __shared__ float4 tile[128];
    __pipeline_memcpy_async(&tile[threadIdx.x], &a[threadIdx.x], sizeof(float4));
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    b[threadIdx.x] = tile[127 - threadIdx.x];
}

__global__ void bytes_and_shorts(const uchar4 *a, short2 *b, int8_t *c) {
    int i = threadIdx.x;
    uchar4 v = a[i];
    b[i] = make_short2(v.x + v.y, v.z * v.w);
    c[i] = v.x - v.w;
}

__global__ void texture_read(cudaTextureObject_t texture, float *out) { out[threadIdx.x] = tex1Dfetch<float>(texture, threadIdx.x); }

__global__ void __launch_bounds__(256, 4) bounded_registers(float *a, int n) {
    float r[24];
    for (int i = 0; i < 24; i++) r[i] = a[threadIdx.x + i * n];
    for (int i = 0; i < 24; i++) for (int j = 0; j < 24; j++) r[i] = r[j] * r[i] - a[j];
    for (int i = 0; i < 24; i++) a[threadIdx.x + i * n] = r[i];
}

struct Large { int values[200]; };
__global__ void large_parameter(Large p, int *out) { out[threadIdx.x] = p.values[threadIdx.x % 200]; }
__global__ void nothing() {}
}

template <typename T, int N> __global__ void unrolled(T *a) {
    T sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) sum = sum * a[i] + a[i + N];
    a[threadIdx.x] = sum;
}
template __global__ void unrolled<float, 8>(float *);
template __global__ void unrolled<double, 4>(double *);
template __global__ void unrolled<int, 16>(int *);
