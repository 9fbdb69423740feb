// Four kernels, each launched 60 times in turn, for bench/comparing.py: bound by arithmetic, by memory, by shared memory
// and by being short. Built with -DMORE=5 the first does 5 % more work. Prints the median of each one's launches, in
// microseconds by the driver's events; without arguments.
#include <algorithm>
#include <cstdio>
#include <cuda_runtime.h>
#include <vector>

#ifndef MORE
#define MORE 0
#endif
const int LAUNCHES = 60, BLOCKS = 528, THREADS = 256, WORK = 20000, WORDS = 1 << 25;

extern "C" __global__ void arithmetic(float *out, const float *in) {
    float a = in[threadIdx.x], b = in[threadIdx.x + THREADS], sum = a;
#pragma unroll 4
    for (int i = 0; i < WORK + WORK / 100 * MORE; i++)
        sum = fmaf(sum, a, b);
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

extern "C" __global__ void copy(float *out, const float *in) {
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < WORDS; i += BLOCKS * THREADS)
        out[i] = in[i];
}

extern "C" __global__ void rows(float *out, const float *in) {
    __shared__ float row[THREADS];
    float sum = 0;
    for (int i = 0; i < 200; i++) {
        row[threadIdx.x] = in[(i * THREADS + threadIdx.x) % WORDS] + sum;
        __syncthreads();
        for (int k = 1; k < 32; k *= 2)
            sum += row[(threadIdx.x + k * 9) % THREADS];
        __syncthreads();
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

extern "C" __global__ void brief(float *out, const float *in) {
    float value = in[blockIdx.x * THREADS + threadIdx.x];
    for (int step = 16; step; step /= 2)
        value += __shfl_xor_sync(0xffffffff, value, step);
    if (threadIdx.x % 32 == 0)
        out[(blockIdx.x * THREADS + threadIdx.x) / 32] = value;
}

int main() {
    const char *names[] = {"arithmetic", "copy", "rows", "brief"};
    void (*kernels[])(float *, const float *) = {arithmetic, copy, rows, brief};
    float *out, *in;
    if (cudaMalloc(&out, WORDS * sizeof(float)) != cudaSuccess || cudaMalloc(&in, WORDS * sizeof(float)) != cudaSuccess
        || cudaMemset(in, 0, WORDS * sizeof(float)) != cudaSuccess)
        return 2;
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> times[4];
    for (int launch = 0; launch < LAUNCHES; launch++)
        for (int kernel = 0; kernel < 4; kernel++) {
            float milliseconds = 0;
            cudaEventRecord(begin);
            kernels[kernel]<<<BLOCKS, THREADS>>>(out, in);
            cudaEventRecord(end);
            cudaEventSynchronize(end);
            cudaEventElapsedTime(&milliseconds, begin, end);
            times[kernel].push_back(milliseconds * 1000);
        }
    for (int kernel = 0; kernel < 4; kernel++) {
        std::sort(times[kernel].begin(), times[kernel].end());
        printf("%s %.3f\n", names[kernel], times[kernel][LAUNCHES / 2]);
    }
    return cudaDeviceSynchronize() != cudaSuccess;
}
