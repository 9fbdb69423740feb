// c = a + b, by scalars with a ragged tail and by float4.
#include "harness.cuh"

// Load 4 B of a and of b, store 4 B, for each of n elements: 8 n, 4 n.
extern "C" __global__ void vecadd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        c[i] = a[i] + b[i];
}

// 16 B each for each of n vectors: 32 n, 16 n.
extern "C" __global__ void vecadd4(const float4 *a, const float4 *b, float4 *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 x = a[i], y = b[i];
        c[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    }
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "vecadd");
    const int n = (1 << 20) + 77, n4 = n / 4;
    bench::Buffer<float> a(n), b(n), c(n);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<float> x(n), y(n), sum(n);
        for (int i = 0; i < n; i++) {
            x[i] = random.uniform();
            y[i] = random.uniform();
            sum[i] = x[i] + y[i];
        }
        a.set(x);
        b.set(y);
        c.poison();
        dim3 grid(bench::cover(n, 256)), block(256);
        run.launch("vecadd", grid, block, {8ull * n, 4ull * n}, [&] { vecadd<<<grid, block>>>(a, b, c, n); });
        std::vector<float> result = c.get();
        run.same("c", result, sum);
        run.output(result);

        c.poison();
        dim3 grid4(bench::cover(n4, 128)), block4(128);
        run.launch("vecadd4", grid4, block4, {32ull * n4, 16ull * n4}, [&] {
            vecadd4<<<grid4, block4>>>((const float4 *)(float *)a, (const float4 *)(float *)b, (float4 *)(float *)c, n4);
        });
        result = c.get();
        result.resize(4 * n4);
        sum.resize(4 * n4);
        run.same("c by float4", result, sum);
        run.output(result);
        run.end_seed();
    }
    return run.finish();
}
