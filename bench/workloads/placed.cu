// Kernels for bench/placed.py: functions that are called and not inlined, lines that probes name, lanes that part.
//
// All take (table of 256 words, x, out, n), one thread an element. The words behind "line:" name lines that the probe
// files use; bench/placed_model.py says what each thread does. nvcc compiles it, and clang alone, without CUDA's
// headers, for the embedded device.
#if defined(__clang__) && !defined(__NVCC__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __attribute__((always_inline))
#define GLOBAL_INDEX (__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x())
#define THREAD_INDEX __nvvm_read_ptx_sreg_tid_x()
#define WARP_SYNC __nvvm_bar_warp_sync(0xffffffffu)
#else
#define GLOBAL_INDEX (blockIdx.x * blockDim.x + threadIdx.x)
#define THREAD_INDEX threadIdx.x
#define WARP_SYNC __syncwarp()
#endif

#define KERNEL extern "C" __global__ void
#define FUNCTION extern "C" __device__ __noinline__ u32

typedef unsigned u32;

// |a - b| + c. Compilers do not use the instruction by themselves, nor move or copy it.
#define SAD(to, a, b, c) asm volatile("sad.u32 %0, %1, %2, %3;" : "=r"(to) : "r"(a), "r"(b), "r"(c))

FUNCTION weigh(const u32 *table, u32 x, u32 turns) {
    u32 sum = x;
#pragma unroll 1
    for (u32 k = 0; k < turns; k++) {
        u32 value = table[(x + k) & 255]; // line: LOAD
        SAD(sum, sum, value, k); // line: SUM
    }
    return sum;
}

namespace placed {

__device__ __noinline__ u32 twice(const u32 *table, u32 x) {
    return weigh(table, x ^ 0x5a, x & 3) + 7 * weigh(table, x + 1, 2);
}

} // namespace placed

// Two places that call weigh, and a function that does.
KERNEL calls(const u32 *table, const u32 *x, u32 *out, u32 n) {
    u32 i = GLOBAL_INDEX;
    if (i >= n)
        return;
    u32 v = x[i];
    u32 result = weigh(table, v, v & 7);
    if (v % 3 == 0)
        result ^= weigh(table, result, 3);
    if (v % 5 == 0)
        result += placed::twice(table, v);
    out[i] = result;
}

// It calls itself; what follows the call keeps compilers from making a loop of it.
FUNCTION depth(const u32 *table, u32 n) {
    u32 value = table[n & 255];
    if (n == 0)
        return value;
    return (depth(table, n - 1) * 3) ^ value;
}

KERNEL descend(const u32 *table, const u32 *x, u32 *out, u32 n) {
    u32 i = GLOBAL_INDEX;
    if (i < n)
        out[i] = depth(table, x[i] & 15);
}

__device__ static __forceinline__ u32 folded(u32 a, u32 b) {
    u32 to;
    SAD(to, a, b, 11); // line: FOLDED
    return to;
}

// A function that is inlined at two places, one of them in a loop.
KERNEL inlined(const u32 *table, const u32 *x, u32 *out, u32 n) {
    u32 i = GLOBAL_INDEX;
    if (i >= n)
        return;
    u32 v = x[i], sum = v;
#pragma unroll 1
    for (u32 k = 0; k < (v & 7); k++) { // line: LOOP
        sum = folded(sum, k);
        SAD(sum, sum, v, 12); // line: FIRST
        SAD(sum, v, sum, 13); // line: LAST
    }
    if (v & 1)
        sum = folded(sum, table[v & 255]); // line: ONCE
    out[i] = sum;
}

FUNCTION parted(u32 a, u32 b) {
    u32 to;
    SAD(to, a, b, 6); // line: CALLED
    return to;
}

// Lanes part by rules that the program fixes, and meet again.
KERNEL lanes(const u32 *table, const u32 *x, u32 *out, u32 n) {
    u32 i = GLOBAL_INDEX, lane = THREAD_INDEX & 31;
    u32 v = x[i], sum;
    WARP_SYNC;
    SAD(sum, v, lane, 1); // line: WHOLE
    if (lane % 4 == 0)
        SAD(sum, sum, v, 2); // line: QUARTER
    else if (lane % 4 == 1)
        SAD(sum, v, sum, 3); // line: SECOND
    WARP_SYNC;
    if (lane & 2)
        sum = parted(sum, v);
    WARP_SYNC;
#pragma unroll 1
    for (u32 k = 0; k < (v & 3); k++)
        SAD(sum, sum, v, 4); // line: TURN
    WARP_SYNC;
    SAD(sum, sum, lane, 5); // line: AGAIN
    out[i] = sum;
}

// Instructions with a predicate, to which whole warps come.
KERNEL guarded(const u32 *table, const u32 *x, u32 *out, u32 n) {
    u32 i = GLOBAL_INDEX, lane = THREAD_INDEX & 31;
    u32 v = x[i], sum = v, value = lane;
    const u32 *place = table + (v & 255);
    WARP_SYNC;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.lt.u32 p, %1, %2;\n\t@p sad.u32 %0, %0, %1, %2;\n\t}"
                 : "+r"(sum) : "r"(v & 31), "r"(lane));
    WARP_SYNC;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.lt.u32 p, %1, %2;\n\t@!p ld.global.nc.u32 %0, [%3];\n\t}"
                 : "+r"(value) : "r"(v & 31), "r"(lane), "l"(place));
    out[i] = sum + value;
}

// Few threads call weigh for many turns: maps with a dynamic cap grow to hold them.
KERNEL bursts(const u32 *table, const u32 *x, u32 *out, u32 n) {
    u32 i = GLOBAL_INDEX;
    if (i < n)
        out[i] = weigh(table, x[i], x[i] % 7 == 0 ? 70 + (x[i] & 63) : x[i] & 3);
}
