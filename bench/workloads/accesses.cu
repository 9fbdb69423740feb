// Accesses whose addresses a formula gives, and chases of pointers that time themselves: `PROG --out FILE.json` writes
//
//   {"accesses": {kernel: {"grid", "block", "in", "out", "index", "rounds"}},
//    "chases": {kernel: [{"loads", "cycles"}, one for each launch]}, "device"}
//
// in, out and index are addresses in global memory. bench/accesses.py has the formulas again, and says what for.
#include "harness.cuh"

#include <numeric>
#include <random>

static const int WORDS = 1 << 24;

__host__ __device__ inline uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

extern "C" __global__ void linear(const uint32_t *in, const uint32_t *, uint32_t *out, int) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i] + 1;
}

extern "C" __global__ void strided(const uint32_t *in, const uint32_t *, uint32_t *out, int) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[i * 33] + 1;
}

extern "C" __global__ void gathered(const uint32_t *in, const uint32_t *index, uint32_t *out, int) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[index[i]] + 1;
}

extern "C" __global__ void broadcast(const uint32_t *in, const uint32_t *, uint32_t *out, int) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = in[blockIdx.x] + 1;
}

// As many rounds as the thread's number says, so that warps diverge.
extern "C" __global__ void scattered(const uint32_t *in, const uint32_t *, uint32_t *out, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
#pragma unroll 1
    for (int k = 0; k <= i % rounds; k++)
        sum += in[mixed(i * 64 + k) % WORDS];
    out[i] = sum;
}

// A node holds the address of the next one. Two loops, so that the loads which warm the cache are another instruction.
using Node = unsigned long long;

#define CHASE(name, load)                                                                                \
    extern "C" __global__ void name(Node *first, int warm, int loads, long long *cycles, Node **last) {  \
        Node *at = first;                                                                                \
        _Pragma("unroll 1") for (int i = 0; i < warm; i++) at = reinterpret_cast<Node *>(load(at));      \
        long long begin = clock64();                                                                     \
        _Pragma("unroll 1") for (int i = 0; i < loads; i++) at = reinterpret_cast<Node *>(load(at));     \
        if (at)                                                                                          \
            *cycles = clock64() - begin;                                                                 \
        *last = at;                                                                                      \
    }
CHASE(chase_l1, __ldca)
CHASE(chase_l2, __ldcg)
CHASE(chase_hbm, __ldcg)

using Chase = void (*)(Node *, int, int, long long *, Node **);

static std::string chase(const char *name, Chase kernel, size_t bytes, int warm, int loads, int launches) {
    const size_t step = 256, count = bytes / step;
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    char *nodes, *flushed;
    long long *cycles;
    CUDA(cudaMalloc(&nodes, bytes));
    CUDA(cudaMalloc(&flushed, 256 << 20));
    CUDA(cudaMalloc(&cycles, 16));
    std::vector<char> host(bytes);
    for (size_t i = 0; i < count; i++)
        *reinterpret_cast<char **>(&host[order[i] * step]) = nodes + order[(i + 1) % count] * step;
    CUDA(cudaMemcpy(nodes, host.data(), bytes, cudaMemcpyHostToDevice));
    std::string text = std::string("\"") + name + "\":[";
    for (int i = 0; i < launches; i++) {
        CUDA(cudaMemset(flushed, i, 256 << 20));
        kernel<<<1, 1>>>(reinterpret_cast<Node *>(nodes + order[0] * step), warm, loads, cycles,
                         reinterpret_cast<Node **>(cycles + 1));
        long long took;
        CUDA(cudaMemcpy(&took, cycles, 8, cudaMemcpyDeviceToHost));
        text += (i ? "," : "") + std::string("{\"loads\":") + std::to_string(loads) +
                ",\"cycles\":" + std::to_string(took) + "}";
    }
    CUDA(cudaFree(nodes));
    CUDA(cudaFree(flushed));
    CUDA(cudaFree(cycles));
    return text + "]";
}

int main(int argc, char **argv) {
    if (argc != 3 || strcmp(argv[1], "--out") != 0) {
        fprintf(stderr, "usage: %s --out FILE\n", argv[0]);
        return 2;
    }
    struct {
        const char *name;
        void (*kernel)(const uint32_t *, const uint32_t *, uint32_t *, int);
        int grid, block, rounds;
    } kernels[] = {
        {"linear", linear, 512, 256, 0},       {"strided", strided, 512, 256, 0},
        {"gathered", gathered, 512, 256, 0},   {"broadcast", broadcast, 512, 250, 0},
        {"scattered", scattered, 500, 200, 9},
    };
    std::vector<uint32_t> words(WORDS);
    for (int i = 0; i < WORDS; i++)
        words[i] = mixed(i) % WORDS;
    uint32_t *in, *index, *out;
    for (uint32_t **at : {&in, &index, &out})
        CUDA(cudaMalloc(at, WORDS * sizeof(uint32_t)));
    CUDA(cudaMemcpy(in, words.data(), WORDS * sizeof(uint32_t), cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(index, words.data(), WORDS * sizeof(uint32_t), cudaMemcpyHostToDevice));
    std::string text = "{\"accesses\":{";
    for (auto &entry : kernels) {
        entry.kernel<<<entry.grid, entry.block>>>(in, index, out, entry.rounds);
        CUDA(cudaDeviceSynchronize());
        char row[400];
        snprintf(row, sizeof row, "%s\"%s\":{\"grid\":%d,\"block\":%d,\"in\":%llu,\"index\":%llu,\"out\":%llu,\"rounds\":%d}",
                 &entry == kernels ? "" : ",", entry.name, entry.grid, entry.block, (unsigned long long)in,
                 (unsigned long long)index, (unsigned long long)out, entry.rounds);
        text += row;
    }
    text += "},\"chases\":{";
    text += chase("chase_l1", chase_l1, 16 << 10, 64, 4096, 5) + ",";
    text += chase("chase_l2", chase_l2, 8 << 20, 32 << 10, 32 << 10, 5) + ",";
    text += chase("chase_hbm", chase_hbm, size_t(1) << 30, 0, 20000, 5) + "}}";
    FILE *file = fopen(argv[2], "w");
    if (!file || fprintf(file, "%s\n", text.c_str()) < 0 || fclose(file))
        return 1;
    return 0;
}
