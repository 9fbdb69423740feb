// Two kernels at once, on two streams: each has blocks on every multiprocessor and runs for about a millisecond.
#include "harness.cuh"

static __device__ uint32_t churn(uint32_t value, uint32_t multiplier, int steps) {
    for (int i = 0; i < steps; i++)
        value = value * multiplier + 12345;
    return value;
}

static uint32_t churned(uint32_t value, uint32_t multiplier, int steps) {
    for (int i = 0; i < steps; i++)
        value = value * multiplier + 12345;
    return value;
}

// Every thread loads and stores 4 B: 4 threads, 4 threads.
extern "C" __global__ void left(const uint32_t *in, uint32_t *out, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = churn(in[i], 1664525, steps);
}

extern "C" __global__ void right(const uint32_t *in, uint32_t *out, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = churn(in[i], 22695477, steps);
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "streams");
    const int blocks = 528, threads = 64, n = blocks * threads, steps = 400000;
    bench::Buffer<uint32_t> in(n), one(n), two(n);
    cudaStream_t a, b;
    CUDA(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    bench::Bytes bytes{4ull * n, 4ull * n};
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<uint32_t> x(n);
        for (uint32_t &word : x)
            word = random.word();
        in.set(x);
        one.poison();
        two.poison();
        CUDA(cudaDeviceSynchronize());
        run.launch("left", blocks, threads, bytes, [&] { left<<<blocks, threads, 0, a>>>(in, one, steps); }, a);
        run.launch("right", blocks, threads, bytes, [&] { right<<<blocks, threads, 0, b>>>(in, two, steps); }, b);
        CUDA(cudaDeviceSynchronize());
        std::vector<uint32_t> first = one.get(), second = two.get();
        for (int i = 0; i < n; i += 997) {
            run.check(first[i] == churned(x[i], 1664525, steps), "left[%d] is wrong", i);
            run.check(second[i] == churned(x[i], 22695477, steps), "right[%d] is wrong", i);
        }
        run.output(first);
        run.output(second);
        run.end_seed();
    }
    return run.finish();
}
