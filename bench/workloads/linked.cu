// Device-linked code: kernels that call functions and use variables of another translation unit.
#include "harness.cuh"

extern __device__ float factors[64];
__device__ float shifted(float x, int i);

// Each of n threads loads and stores 4 B: the called function does arithmetic alone.
extern "C" __global__ void shift(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = shifted(x[i], i);
}

// Each of n threads loads 4 B of x and 4 B of the other unit's variable, and stores 4 B.
extern "C" __global__ void scale(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] * factors[i & 63];
}

void set_factors(const float *values);

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "linked");
    const int n = 100 * 256 - 19;
    bench::Buffer<float> x(n), y(n);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<float> in(n), want(n), table(64);
        for (float &value : in)
            value = random.uniform();
        for (float &value : table)
            value = random.uniform();
        x.set(in);
        y.poison();
        run.launch("shift", 100, 256, {4ull * n, 4ull * n}, [&] { shift<<<100, 256>>>(x, y, n); });
        for (int i = 0; i < n; i++)
            want[i] = in[i] + 0.25f * float(i & 15);
        std::vector<float> result = y.get();
        run.same("shifted", result, want);
        run.output(result);

        set_factors(table.data());
        y.poison();
        run.launch("scale", 100, 256, {8ull * n, 4ull * n}, [&] { scale<<<100, 256>>>(x, y, n); });
        for (int i = 0; i < n; i++)
            want[i] = in[i] * table[i & 63];
        result = y.get();
        run.same("scaled", result, want);
        run.output(result);
        run.end_seed();
    }
    return run.finish();
}
