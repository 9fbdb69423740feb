// Kernels that run long enough to be timed: `PROG --rounds N --out FILE.json` writes
//
//   {"kernels": {name: {"ms": [N times], "output": FNV-1a of what it wrote}}}
//
// Each kernel runs twice before it is timed; ms is between two events around one launch.
#include "harness.cuh"

#include <functional>

// Memory alone.
extern "C" __global__ void vecadd(const float4 *a, const float4 *b, float4 *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float4 x = a[i], y = b[i];
    c[i] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

// Shared memory and products: C = A B, all of them n by n.
extern "C" __global__ void matmul(const float *a, const float *b, float *c, int n) {
    __shared__ float left[32][32], right[32][32];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
    float sum = 0;
    for (int k = 0; k < n; k += 32) {
        left[y][x] = a[row * n + k + x];
        right[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (int j = 0; j < 32; j++)
            sum += left[y][j] * right[j][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// Shuffles: a row of 1 024 a block of 256.
extern "C" __global__ void softmax(const float *in, float *out) {
    __shared__ float part[8];
    float4 v = reinterpret_cast<const float4 *>(in)[blockIdx.x * 256 + threadIdx.x];
    float most = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
    for (int step = 16; step; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < 8; i++)
        most = fmaxf(most, part[i]);
    __syncthreads();
    v = make_float4(__expf(v.x - most), __expf(v.y - most), __expf(v.z - most), __expf(v.w - most));
    float sum = v.x + v.y + v.z + v.w;
    for (int step = 16; step; step /= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 8; i++)
        sum += part[i];
    reinterpret_cast<float4 *>(out)[blockIdx.x * 256 + threadIdx.x] =
        make_float4(v.x / sum, v.y / sum, v.z / sum, v.w / sum);
}

// Branches that split warps, and integers.
extern "C" __global__ void collatz(unsigned *steps, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned long long value = i + 1;
    unsigned count = 0;
    while (value != 1) {
        if (value % 2)
            value = 3 * value + 1;
        else
            value /= 2;
        count++;
    }
    steps[i] = count;
}

// Atomics in shared and in global memory.
extern "C" __global__ void histogram(const unsigned *in, unsigned *bins, int n) {
    __shared__ unsigned local[256];
    local[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256)
        atomicAdd(&local[in[i] & 255], 1);
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

// Tensor cores alone: each warp multiplies what it has in registers.
extern "C" __global__ void tensor(float *out, int rounds) {
    unsigned a[4], b[2];
    float d[4] = {0, 0, 0, 0};
    for (unsigned &word : a)
        word = 0x2c002c00 + threadIdx.x;
    for (unsigned &word : b)
        word = 0x28002800 + blockIdx.x % 64;
    for (int i = 0; i < rounds; i++)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    out[blockIdx.x * blockDim.x + threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

// Of hundreds of megabytes a kernel, each time: SHA-256 would take longer than the kernels.
static uint64_t digest(const std::vector<uint8_t> &bytes) {
    uint64_t hash = 14695981039346656037ull;
    for (uint8_t byte : bytes)
        hash = (hash ^ byte) * 1099511628211ull;
    return hash;
}

int main(int argc, char **argv) {
    int rounds = 20;
    const char *path = nullptr;
    for (int i = 1; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--rounds"))
            rounds = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--out"))
            path = argv[i + 1];
    FILE *file = path ? fopen(path, "w") : nullptr;
    if (!file)
        return 2;
    const int n = 1 << 26, side = 2048, rows = 65536;
    std::vector<float> host(n);
    uint32_t state = 1;
    for (float &value : host) {
        state = state * 1664525 + 1013904223;
        value = float(state >> 8) / (1 << 24) - 0.5f;
    }
    bench::Buffer<float> first(n), second(n), result(n);
    first.set(host);
    second.set(host);
    float *a = first, *b = second, *c = result;
    unsigned *words = reinterpret_cast<unsigned *>(c), *random = reinterpret_cast<unsigned *>(a);
    struct Timed {
        const char *name;
        std::function<void()> launch;
        size_t written;
    };
    const std::vector<Timed> kernels = {
        {"vecadd", [&] { vecadd<<<n / 1024, 256>>>((float4 *)a, (float4 *)b, (float4 *)c, n / 4); }, 4ull * n},
        {"matmul", [&] { matmul<<<dim3(side / 32, side / 32), dim3(32, 32)>>>(a, b, c, side); }, 4ull * side * side},
        {"softmax", [&] { softmax<<<rows, 256>>>(a, c); }, 4096ull * rows},
        {"collatz", [&] { collatz<<<(1 << 22) / 256, 256>>>(words, 1 << 22); }, 4ull << 22},
        {"histogram", [&] { histogram<<<1056, 256>>>(random, words, n); }, 1024},
        {"tensor", [&] { tensor<<<1056, 256>>>(c, 20000); }, 4ull * 1056 * 256},
    };
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    fprintf(file, "{\"kernels\": {");
    for (const Timed &kernel : kernels) {
        fprintf(file, "%s\"%s\": {\"ms\": [", &kernel == &kernels[0] ? "" : ", ", kernel.name);
        result.clear();
        for (int round = -2; round < rounds; round++) {
            CUDA(cudaEventRecord(begin));
            kernel.launch();
            CUDA(cudaEventRecord(end));
            CUDA(cudaEventSynchronize(end));
            float ms;
            CUDA(cudaEventElapsedTime(&ms, begin, end));
            if (round >= 0)
                fprintf(file, "%s%.5f", round ? ", " : "", ms);
        }
        CUDA(cudaGetLastError());
        std::vector<uint8_t> written(kernel.written);
        CUDA(cudaMemcpy(written.data(), c, kernel.written, cudaMemcpyDeviceToHost));
        fprintf(file, "], \"output\": \"%016llx\"}", (unsigned long long)digest(written));
    }
    fprintf(file, "}}\n");
    return fclose(file) ? 2 : 0;
}
