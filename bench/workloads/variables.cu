// Module variables that the host sets between launches and reads back: they must be the same ones in the twin.
#include "harness.cuh"

__constant__ float coefficients[8];
__device__ float offset;
__device__ unsigned int visits;
__device__ float history[64];

// 4 B of x, the 4 B of offset, 4 B stored for each of n elements; each block adds to visits once, and its first
// thread stores one element of history: 8 n, 4 n + 4 blocks, 4 blocks. Constant memory does not count.
extern "C" __global__ void polynomial(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float value = 0;
        for (int k = 0; k < 8; k++)
            value = value * x[i] + coefficients[k];
        y[i] = value + offset;
    }
    if (threadIdx.x == 0) {
        atomicAdd(&visits, 1);
        history[blockIdx.x] = coefficients[blockIdx.x % 8];
    }
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "variables");
    const int n = 64 * 128 - 3;
    bench::Buffer<float> x(n), y(n);
    unsigned expected = 0;
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<float> in(n), table(8);
        for (float &value : in)
            value = random.uniform();
        x.set(in);
        for (int round = 0; round < 3; round++) {
            for (float &value : table)
                value = random.uniform();
            float shift = 10 * random.uniform();
            CUDA(cudaMemcpyToSymbol(coefficients, table.data(), 8 * sizeof(float)));
            CUDA(cudaMemcpyToSymbol(offset, &shift, sizeof shift));
            std::vector<double> want(n);
            for (int i = 0; i < n; i++) {
                double value = 0;
                for (int k = 0; k < 8; k++)
                    value = value * in[i] + table[k];
                want[i] = value + shift;
            }
            y.poison();
            run.launch("polynomial", 64, 128, {8ull * n, 4ull * n + 4 * 64, 4 * 64},
                       [&] { polynomial<<<64, 128>>>(x, y, n); });
            std::vector<float> result = y.get(), past(64);
            run.near("y", result, want, 1e-5);
            run.output(result);
            unsigned counted = 0;
            CUDA(cudaMemcpyFromSymbol(&counted, visits, sizeof counted));
            CUDA(cudaMemcpyFromSymbol(past.data(), history, sizeof history));
            expected += 64;
            run.check(counted == expected, "visits is %u, expected %u", counted, expected);
            for (int b = 0; b < 64; b++)
                run.check(past[b] == table[b % 8], "history[%d] is %.9g, expected %.9g", b, past[b], table[b % 8]);
            run.output(past);
            run.output(std::vector<unsigned>{counted});
        }
        run.end_seed();
    }
    return run.finish();
}
