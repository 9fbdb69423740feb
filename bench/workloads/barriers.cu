// Kernels of two warps, the second of which comes to a barrier 30,000 cycles after the first: what bench/clocks.py says
// of their waits. Without arguments; prints what the first warp's own clock, read through an address that it loads after
// the barrier, says of each.
#include <cstdio>
#include <cuda_runtime.h>

typedef unsigned long long u64;
const int SPIN = 30000;

__device__ __forceinline__ u64 now() {
    u64 value;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(value) : : "memory");
    return value;
}

// What comes before each barrier: the second warp is late. Returns when this warp came to it.
__device__ __forceinline__ u64 come() {
    u64 begin = now();
    if (threadIdx.x >= 32)
        while (now() - begin < SPIN)
            ;
    return now();
}

// What comes after: arithmetic, which does not wait, then a load, which does, and only then the clock.
__device__ __forceinline__ void leave(u64 begin, u64 *out, const unsigned *in) {
    unsigned value = threadIdx.x;
    for (int k = 0; k < 16; k++)
        asm volatile("mad.lo.u32 %0, %0, %0, 7;" : "+r"(value));
    unsigned zero;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(zero) : "l"(in) : "memory");
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 1; @p mov.u64 %0, %%clock64; }" : "+l"(begin) : "r"(zero) : "memory");
    if (threadIdx.x % 32 == 0) {
        out[threadIdx.x / 32] = begin;
        out[2] = value;
    }
}

extern "C" __global__ void constant_barrier(u64 *out, const unsigned *in, int number, int count) {
    u64 begin = come();
    asm volatile("bar.sync 0;" : : : "memory");
    leave(begin, out, in);
}

extern "C" __global__ void constant_count(u64 *out, const unsigned *in, int number, int count) {
    u64 begin = come();
    asm volatile("bar.sync 1, 64;" : : : "memory");
    leave(begin, out, in);
}

extern "C" __global__ void barrier_in_register(u64 *out, const unsigned *in, int number, int count) {
    u64 begin = come();
    asm volatile("barrier.sync %0;" : : "r"(number) : "memory");
    leave(begin, out, in);
}

extern "C" __global__ void both_in_registers(u64 *out, const unsigned *in, int number, int count) {
    u64 begin = come();
    asm volatile("bar.sync %0, %1;" : : "r"(number), "r"(count) : "memory");
    leave(begin, out, in);
}

extern "C" __global__ void cluster(u64 *out, const unsigned *in, int number, int count) {
    u64 begin = come();
    asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" : : : "memory");
    leave(begin, out, in);
}

// Nothing but arithmetic between the barrier and the end.
extern "C" __global__ void ends_after(u64 *out, const unsigned *in, int number, int count) {
    come();
    out[threadIdx.x / 32] = in[0];
    asm volatile("bar.sync 0;" : : : "memory");
}

int main() {
    u64 *out;
    unsigned *in;
    if (cudaMalloc(&out, 64) != cudaSuccess || cudaMalloc(&in, 64) != cudaSuccess || cudaMemset(in, 0, 64) != cudaSuccess)
        return 2;
    void (*kernels[])(u64 *, const unsigned *, int, int) = {
        constant_barrier, constant_count, barrier_in_register, both_in_registers, cluster, ends_after,
    };
    for (auto kernel : kernels)
        kernel<<<1, 64>>>(out, in, 0, 64);
    cudaError_t error = cudaDeviceSynchronize();
    puts(cudaGetErrorString(error));
    return error != cudaSuccess;
}
