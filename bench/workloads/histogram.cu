// Histograms of bytes: counted in shared memory and merged, and counted in global memory at once.
#include "harness.cuh"

#define BINS 256

// n words are loaded once; every block adds each of the 256 bins once: 4 n, 0, 1024 blocks.
extern "C" __global__ void histogram_shared(const uint32_t *words, uint32_t *bins, int n) {
    __shared__ uint32_t counts[BINS];
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        uint32_t word = words[i];
        for (int shift = 0; shift < 32; shift += 8)
            atomicAdd(&counts[word >> shift & 0xff], 1);
    }
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], counts[threadIdx.x]);
}

// n words are loaded once; each adds its lowest byte's bin: 4 n, 0, 4 n.
extern "C" __global__ void histogram_global(const uint32_t *words, uint32_t *bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        atomicAdd(&bins[words[i] & 0xff], 1);
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "histogram");
    const int n = (1 << 18) + 5, blocks = 264;
    bench::Buffer<uint32_t> words(n), bins(BINS);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<uint32_t> in(n), all(BINS, 0), lowest(BINS, 0);
        for (uint32_t &word : in) {
            word = random.word();
            for (int shift = 0; shift < 32; shift += 8)
                all[word >> shift & 0xff]++;
            lowest[word & 0xff]++;
        }
        words.set(in);
        bins.clear();
        run.launch("histogram_shared", blocks, BINS, {4ull * n, 0, 4ull * BINS * blocks},
                   [&] { histogram_shared<<<blocks, BINS>>>(words, bins, n); });
        std::vector<uint32_t> result = bins.get();
        run.same("bins", result, all);
        run.output(result);
        bins.clear();
        unsigned grid = bench::cover(n, 256);
        run.launch("histogram_global", grid, 256, {4ull * n, 0, 4ull * n},
                   [&] { histogram_global<<<grid, 256>>>(words, bins, n); });
        result = bins.get();
        run.same("lowest bins", result, lowest);
        run.output(result);
        run.end_seed();
    }
    return run.finish();
}
