// A kernel that keeps, in its own source, what block_sched records from outside: each warp's first and last clock and
// its multiprocessor. A probe at entry and end must bracket these, on the same multiprocessor, warp by warp.
// The clocks go to FILE.json.clocks: per launch and warp u64 first, u64 last, u32 multiprocessor, u32 0.
#include "harness.cuh"

struct Own {
    unsigned long long first, last;
    unsigned multiprocessor, zero;
};

// Every thread loads and stores 4 B, the first lane of each warp 24 B more (as three 8-byte or smaller stores):
// 4 threads, 4 threads + 24 warps.
extern "C" __global__ void clocked(const unsigned *in, unsigned *out, Own *own, int steps) {
    unsigned long long first, last;
    unsigned multiprocessor;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(first) : : "memory");
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned value = in[i];
    for (int k = 0; k < steps * (1 + int(threadIdx.x / 32)); k++)
        value = value * 1664525 + 1013904223;
    out[i] = value;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(last) : : "memory");
    if (threadIdx.x % 32 == 0)
        own[i / 32] = {first, last, multiprocessor, 0};
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "clocks");
    const int blocks = 600, threads = 128, n = blocks * threads, warps = n / 32, steps = 500;
    bench::Buffer<unsigned> in(n), out(n);
    bench::Buffer<Own> own(warps);
    FILE *file = fopen((run.out() + ".clocks").c_str(), "wb");
    if (!file) {
        perror((run.out() + ".clocks").c_str());
        return 2;
    }
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<unsigned> x(n), want(n);
        for (int i = 0; i < n; i++) {
            want[i] = x[i] = random.word();
            for (int k = 0; k < steps * (1 + i % threads / 32); k++)
                want[i] = want[i] * 1664525 + 1013904223;
        }
        in.set(x);
        out.poison();
        own.clear();
        run.launch("clocked", blocks, threads, {4ull * n, 4ull * n + 24ull * warps},
                   [&] { clocked<<<blocks, threads>>>(in, out, own, steps); });
        std::vector<unsigned> result = out.get();
        run.same("out", result, want);
        run.output(result);
        std::vector<Own> kept = own.get();
        if (fwrite(kept.data(), sizeof(Own), kept.size(), file) != kept.size()) {
            perror("clocks");
            return 2;
        }
        run.end_seed();
    }
    if (fclose(file)) {
        perror("clocks");
        return 2;
    }
    return run.finish();
}
