// Softmax of each row, one block a row, in three passes over the row.
#include "harness.cuh"

#include <cmath>

static __device__ float block_reduce(float value, bool maximum) {
    __shared__ float shared[32];
    for (int half = 16; half > 0; half /= 2) {
        float other = __shfl_xor_sync(0xffffffff, value, half);
        value = maximum ? fmaxf(value, other) : value + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
    for (int warp = 1; warp < blockDim.x / 32; warp++)
        value = maximum ? fmaxf(value, shared[warp]) : value + shared[warp];
    return value;
}

// Each element is loaded in each of the three passes and stored once: 12 rows columns, 4 rows columns.
extern "C" __global__ void softmax(const float *x, float *y, int columns) {
    const float *row = x + size_t(blockIdx.x) * columns;
    float *out = y + size_t(blockIdx.x) * columns;
    float top = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        top = fmaxf(top, row[i]);
    top = block_reduce(top, true);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        sum += expf(row[i] - top);
    sum = block_reduce(sum, false);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        out[i] = expf(row[i] - top) / sum;
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "softmax");
    const int rows = 512, columns = 1021;
    const uint64_t elements = uint64_t(rows) * columns;
    bench::Buffer<float> x(elements), y(elements);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<float> in(elements);
        std::vector<double> want(elements);
        for (float &value : in)
            value = 8 * random.uniform();
        for (int r = 0; r < rows; r++) {
            double top = -INFINITY, sum = 0;
            for (int i = 0; i < columns; i++)
                top = std::fmax(top, in[r * columns + i]);
            for (int i = 0; i < columns; i++)
                sum += want[r * columns + i] = std::exp(in[r * columns + i] - top);
            for (int i = 0; i < columns; i++)
                want[r * columns + i] /= sum;
        }
        x.set(in);
        y.poison();
        run.launch("softmax", rows, 256, {12 * elements, 4 * elements}, [&] { softmax<<<rows, 256>>>(x, y, columns); });
        std::vector<float> result = y.get();
        run.near("y", result, want, 1e-6);
        run.output(result);
        run.end_seed();
    }
    return run.finish();
}
