// A kernel that prints: its format string and vprintf belong to the twin's module when the twin runs.
#include "harness.cuh"
#include <cstdio>

// Every thread loads and stores 4 B: 4 n, 4 n.
extern "C" __global__ void speaking(int *values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int value = values[i] + 3;
    if (i == 100)
        printf("value %d of %s: %d\n", i, "printing", value);
    values[i] = value;
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "printing");
    const int n = 201;
    bench::Buffer<int> values(n);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<int> x(n);
        for (int &word : x)
            word = int(random.word() & 0xffff);
        values.set(x);
        // One line a launch: lines of several warps would have no order.
        run.launch("speaking", 1, 256, {4ull * n, 4ull * n}, [&] { speaking<<<1, 256>>>(values, n); });
        CUDA(cudaDeviceSynchronize());
        for (int &word : x)
            word += 3;
        std::vector<int> result = values.get();
        run.same("values", result, x);
        run.output(result);
        run.end_seed();
    }
    return run.finish();
}
