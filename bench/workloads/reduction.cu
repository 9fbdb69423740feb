// Sums of integers and floats in two passes: a grid-stride pass to one partial a block, then one block over them.
// The order of additions is fixed by the code, so floats come out the same every time.
#include "harness.cuh"

template <typename T> __device__ void reduce(const T *in, T *out, int n) {
    __shared__ T shared[256];
    T sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += in[i];
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half >= 32; half /= 2) {
        if (threadIdx.x < half)
            shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        sum = shared[threadIdx.x];
        for (int half = 16; half > 0; half /= 2)
            sum += __shfl_down_sync(0xffffffff, sum, half);
        if (threadIdx.x == 0)
            out[blockIdx.x] = sum;
    }
}

// Every element is loaded once, every block stores one result: 4 n, 4 blocks.
extern "C" __global__ void reduce_int(const uint32_t *in, uint32_t *out, int n) { reduce(in, out, n); }
extern "C" __global__ void reduce_float(const float *in, float *out, int n) { reduce(in, out, n); }

template <typename T, typename Kernel>
static T total(bench::Run &run, const char *name, Kernel kernel, const T *in, bench::Buffer<T> &partial,
               bench::Buffer<T> &out, int n) {
    int blocks = int(partial.size());
    partial.poison();
    out.poison();
    run.launch(name, blocks, 256, {4ull * n, 4ull * blocks}, [&] { kernel<<<blocks, 256>>>(in, partial, n); });
    run.launch(name, 1, 256, {4ull * blocks, 4}, [&] { kernel<<<1, 256>>>(partial, out, blocks); });
    run.output(partial.get());
    std::vector<T> result = out.get();
    run.output(result);
    return result[0];
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "reduction");
    const int n = (1 << 20) + 331, blocks = 528;
    bench::Buffer<uint32_t> integers(n), integer_partial(blocks), integer_out(1);
    bench::Buffer<float> floats(n), float_partial(blocks), float_out(1);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<uint32_t> x(n);
        std::vector<float> y(n);
        uint32_t integer_sum = 0;
        double float_sum = 0;
        for (int i = 0; i < n; i++) {
            x[i] = random.word();
            y[i] = random.uniform();
            integer_sum += x[i];
            float_sum += y[i];
        }
        integers.set(x);
        floats.set(y);
        uint32_t i = total<uint32_t>(run, "reduce_int", reduce_int, integers, integer_partial, integer_out, n);
        float f = total<float>(run, "reduce_float", reduce_float, floats, float_partial, float_out, n);
        run.check(i == integer_sum, "integer sum is %u, expected %u", i, integer_sum);
        run.check(f - float_sum < 0.05 && float_sum - f < 0.05, "float sum is %.9g, expected %.9g", f, float_sum);
        run.end_seed();
    }
    return run.finish();
}
