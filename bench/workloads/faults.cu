// Kernels that compute what they should, each with a fault that costs time, and one that computes NaN: what findings
// are about.
#include "harness.cuh"

#include <cmath>
#include <numeric>

#define TILE 32
#define BINS 256

// Each lane of a warp stores to a row of its own: 4 n^2 loaded, 4 n^2 stored.
extern "C" __global__ void transpose_rows(const float *x, float *y, int n) {
    int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    for (int at = 0; at < TILE; at += blockDim.y)
        y[size_t(column) * n + row + at] = x[size_t(row + at) * n + column];
}

// By a tile in shared memory, whose columns are all in one bank: as many bytes.
extern "C" __global__ void transpose_banks(const float *x, float *y, int n) {
    __shared__ float tile[TILE][TILE];
    int column = blockIdx.x * TILE, row = blockIdx.y * TILE;
    for (int at = threadIdx.y; at < TILE; at += blockDim.y)
        tile[at][threadIdx.x] = x[size_t(row + at) * n + column + threadIdx.x];
    __syncthreads();
    for (int at = threadIdx.y; at < TILE; at += blockDim.y)
        y[size_t(column + at) * n + row + threadIdx.x] = tile[threadIdx.x][at];
}

// The greatest common divisors of words and those after them, by Euclid: lanes of a warp leave the loop at different
// turns. 8 n loaded, 4 n stored.
extern "C" __global__ void divisors(const uint32_t *words, uint32_t *found, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    uint32_t a = words[i], b = words[(i + 1) % n];
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    found[i] = a;
}

// Counts words by their lowest byte, of which some are far more frequent: 4 n loaded, 4 n added.
extern "C" __global__ void count_words(const uint32_t *words, uint32_t *bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        atomicAdd(&bins[words[i] % BINS], 1);
}

// Softmax of each row up to its length, a warp a row. Of a row without any element the greatest is -infinity, and
// -infinity less itself is no number.
extern "C" __global__ void masked_softmax(const float *x, const int *lengths, float *y, int columns) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, length = lengths[row];
    float top = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < columns; i += 32)
        top = fmaxf(top, i < length ? x[row * columns + i] : -INFINITY);
    for (int apart = 16; apart; apart /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, apart));
    for (int i = threadIdx.x; i < columns; i += 32) {
        float value = i < length ? x[row * columns + i] : -INFINITY;
        sum += expf(value - top);
    }
    for (int apart = 16; apart; apart /= 2)
        sum += __shfl_xor_sync(~0u, sum, apart);
    for (int i = threadIdx.x; i < columns; i += 32) {
        float value = i < length ? x[row * columns + i] : -INFINITY;
        y[row * columns + i] = expf(value - top) / sum;
    }
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "faults");
    const int n = atoi(run.option("--side", "512").c_str()), elements = n * n, columns = 128;
    const uint64_t bytes = 4ull * elements;
    bench::Buffer<float> x(elements), y(elements);
    bench::Buffer<uint32_t> words(elements), bins(BINS), found(elements);
    bench::Buffer<int> lengths(elements / columns);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<float> in(elements), turned(elements);
        std::vector<uint32_t> drawn(elements), counts(BINS, 0), common;
        std::vector<int> until(elements / columns);
        for (int i = 0; i < elements; i++)
            in[i] = random.uniform();
        for (int i = 0; i < elements; i++)
            turned[size_t(i % n) * n + i / n] = in[i];
        for (uint32_t &word : drawn) {
            // The lowest byte is a product of two: small ones are frequent.
            uint32_t byte = (random.word() % BINS) * (random.word() % BINS) / BINS;
            word = random.word() / BINS * BINS + byte;
            counts[byte]++;
        }
        for (int i = 0; i < elements; i++)
            common.push_back(std::gcd(drawn[i], drawn[(i + 1) % elements]));
        for (size_t row = 0; row < until.size(); row++)
            until[row] = row % 97 == 96 ? 0 : int(1 + random.word() % columns);
        x.set(in);
        words.set(drawn);
        lengths.set(until);
        for (bool by_rows : {true, false}) {
            y.poison();
            dim3 grid(n / TILE, n / TILE), block(TILE, 8);
            if (by_rows)
                run.launch("transpose_rows", grid, block, {bytes, bytes}, [&] { transpose_rows<<<grid, block>>>(x, y, n); });
            else
                run.launch("transpose_banks", grid, block, {bytes, bytes}, [&] { transpose_banks<<<grid, block>>>(x, y, n); });
            std::vector<float> result = y.get();
            run.same(by_rows ? "transpose_rows" : "transpose_banks", result, turned);
            run.output(result);
        }
        unsigned grid = bench::cover(elements, 256);
        run.launch("divisors", grid, 256, {2 * bytes, bytes},
                   [&] { divisors<<<grid, 256>>>(words, found, elements); });
        std::vector<uint32_t> result = found.get();
        run.same("divisors", result, common);
        run.output(result);
        bins.clear();
        run.launch("count_words", grid, 256, {bytes, 0, bytes},
                   [&] { count_words<<<grid, 256>>>(words, bins, elements); });
        result = bins.get();
        run.same("counts", result, counts);
        run.output(result);
        y.poison();
        dim3 rows(elements / columns / 4), warps(32, 4);
        run.launch("masked_softmax", rows, warps, {bench::UNKNOWN, bytes},
                   [&] { masked_softmax<<<rows, warps>>>(x, lengths, y, columns); });
        std::vector<float> shares = y.get();
        for (size_t row = 0; row < until.size(); row++) {
            double sum = 0;
            for (int i = 0; i < columns; i++)
                sum += shares[row * columns + i];
            run.check(until[row] ? std::abs(sum - 1) < 1e-4 : std::isnan(sum), "masked_softmax: row %zu adds up to %g",
                      row, sum);
        }
        run.output(shares);
        run.end_seed();
    }
    return run.finish();
}
