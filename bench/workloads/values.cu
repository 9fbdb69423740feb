// Four loads a thread in a loop, a product that a sum reads, two stores: for bench/values.py, as PTX.
#include <cuda_fp16.h>

extern "C" __global__ void mixed(const float *f, const __half *x, const __half *y, __half *out, float *total, int n) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    if (i >= n)
        return;
    float sum = 0;
#pragma unroll 1
    for (int k = 0; k < 4; k++)
        sum += f[4 * i + k];
    out[i] = __hadd(__hmul(x[i], y[i]), x[i]);
    total[i] = sum;
}
