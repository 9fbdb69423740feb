// Threads that end in many places: early returns, divergent ends inside a loop, predicated exits, and a device
// function that is called and may end the thread.
#include "harness.cuh"

// Elements are loaded by threads with i < n and i % 3 != 0; of these, odd values end at once, the others store:
// loads 4 (elements with i % 3 != 0), stores 4 (even values among them).
extern "C" __global__ void early(const unsigned *in, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    if (i % 3 == 0)
        return;
    unsigned value = in[i];
    if (value & 1)
        return;
    out[i] = value / 2;
}

// A thread leaves the loop, and ends, after (in[i] % 17) + 1 steps; each step loads one element of a table:
// loads 4 n + 4 sum(in[i] % 17 + 1), stores 4 n.
extern "C" __global__ void looped(const unsigned *in, const unsigned *table, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned steps = in[i] % 17, sum = 0;
    for (unsigned k = 0;; k++) {
        sum += table[(i + k) % 64];
        if (k == steps) {
            out[i] = sum;
            return;
        }
    }
}

static __device__ __noinline__ unsigned called(unsigned value, unsigned steps) {
    for (unsigned k = 0; k < steps % 8; k++)
        value = value * 7 + k;
    return value;
}

// Each thread loads and stores once, and calls only within its registers: 4 n, 4 n.
extern "C" __global__ void calls(const unsigned *in, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = called(in[i], i);
}

static __device__ __noinline__ unsigned ending(unsigned value, unsigned *out) {
    if (value % 5 == 0) {
        *out = 5;
        asm volatile("exit;");
    }
    return value * 7;
}

// Values divisible by 5 are stored, as 5, by the called function, which ends the thread; others are stored after it:
// 4 n, 4 n.
extern "C" __global__ void ends_in_call(const unsigned *in, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = ending(in[i], out + i);
}

// The end of the thread hangs on a predicate: 4 n, 4 (even values).
extern "C" __global__ void predicated(const unsigned *in, unsigned *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned value = in[i];
    asm volatile("{ .reg .pred p; .reg .b32 t; and.b32 t, %0, 1; setp.ne.u32 p, t, 0; @p exit; }" : : "r"(value) : "memory");
    out[i] = value ^ 0x5a5a5a5a;
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "exits");
    const int n = 150 * 192 - 50;
    const unsigned grid = bench::cover(n, 192), untouched = 0xffffffff;
    bench::Buffer<unsigned> in(n), table(64), out(n);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<unsigned> x(n), small(64), want(n, untouched);
        for (unsigned &word : x)
            word = random.word();
        for (unsigned &word : small)
            word = random.word();
        in.set(x);
        table.set(small);
        uint64_t loaded = 0, stored = 0;
        auto judge = [&](const char *name) {
            std::vector<unsigned> result = out.get();
            run.same(name, result, want);
            run.output(result);
            want.assign(n, untouched);
            out.poison();
        };
        out.poison();
        for (int i = 0; i < n; i++) {
            loaded += 4 * (i % 3 != 0);
            if (i % 3 && x[i] % 2 == 0) {
                stored += 4;
                want[i] = x[i] / 2;
            }
        }
        run.launch("early", grid, 192, {loaded, stored}, [&] { early<<<grid, 192>>>(in, out, n); });
        judge("early");

        loaded = 0;
        for (int i = 0; i < n; i++) {
            unsigned steps = x[i] % 17;
            loaded += 4 + 4 * (steps + 1);
            want[i] = 0;
            for (unsigned k = 0; k <= steps; k++)
                want[i] += small[(i + k) % 64];
        }
        run.launch("looped", grid, 192, {loaded, 4ull * n}, [&] { looped<<<grid, 192>>>(in, table, out, n); });
        judge("looped");

        for (int i = 0; i < n; i++) {
            want[i] = x[i];
            for (unsigned k = 0; k < unsigned(i) % 8; k++)
                want[i] = want[i] * 7 + k;
        }
        run.launch("calls", grid, 192, {4ull * n, 4ull * n}, [&] { calls<<<grid, 192>>>(in, out, n); });
        judge("calls");

        for (int i = 0; i < n; i++)
            want[i] = x[i] % 5 ? x[i] * 7 : 5;
        run.launch("ends_in_call", grid, 192, {4ull * n, 4ull * n}, [&] { ends_in_call<<<grid, 192>>>(in, out, n); });
        judge("ends_in_call");

        stored = 0;
        for (int i = 0; i < n; i++)
            if (x[i] % 2 == 0) {
                stored += 4;
                want[i] = x[i] ^ 0x5a5a5a5a;
            }
        run.launch("predicated", grid, 192, {4ull * n, stored}, [&] { predicated<<<grid, 192>>>(in, out, n); });
        judge("predicated");
        run.end_seed();
    }
    return run.finish();
}
