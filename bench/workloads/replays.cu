// Executable graphs launched many times: `replays CASE`. Prints a hash of the results, and the bytes of global memory that
// the kernels of the replays load and store. Cases that need it skip what this CUDA has not.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CUDA(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) {                                                                                   \
            std::printf("line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(error_));                             \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

static uint64_t loaded, stored;

// 4 B loaded and 4 B stored by each thread with an element.
__global__ void advance(unsigned *values, const unsigned *input, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] = values[i] * 1664525 + input[i];
}

__global__ void again(cudaGraphConditionalHandle handle, unsigned *left) {
    unsigned now = *left;
    *left = now ? now - 1 : 0;
    cudaGraphSetConditional(handle, now > 1);
}

static const int n = 5000;
static unsigned *values, *input;

static void count(int kernels) {
    loaded += 8ull * n * kernels;
    stored += 4ull * n * kernels;
}

static cudaGraph_t chain(cudaStream_t stream, int kernels) {
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < kernels; i++)
        advance<<<(n + 127) / 128, 128, 0, stream>>>(values, input, n);
    CUDA(cudaStreamEndCapture(stream, &graph));
    return graph;
}

static cudaGraphExec_t made(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

// New input for the next replay, in stream order.
static void renew(cudaStream_t stream, unsigned seed) { CUDA(cudaMemsetAsync(input, seed % 251, n * sizeof(unsigned), stream)); }

static void queue(cudaStream_t stream, int kernels, int replays) {
    cudaGraph_t graph = chain(stream, kernels);
    cudaGraphExec_t exec = made(graph);
    CUDA(cudaGraphDestroy(graph));
    for (int i = 0; i < replays; i++) {
        renew(stream, i);
        CUDA(cudaGraphLaunch(exec, stream));
        count(kernels);
    }
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGraphExecDestroy(exec));
}

static void alternate(cudaStream_t one, int replays) {
    cudaStream_t two;
    CUDA(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    cudaGraphExec_t exec = made(chain(one, 20));
    for (int i = 0; i < replays; i++) {
        CUDA(cudaGraphLaunch(exec, i & 1 ? two : one));
        count(20);
    }
    CUDA(cudaDeviceSynchronize());
}

static void updates(cudaStream_t stream) {
    cudaGraph_t first = chain(stream, 10);
    cudaGraphExec_t exec = made(first);
    for (int i = 0; i < 50; i++) {
        CUDA(cudaGraphLaunch(exec, stream));
        count(10);
        cudaGraph_t next = chain(stream, 10);
        cudaGraphExecUpdateResultInfo info;
        CUDA(cudaGraphExecUpdate(exec, next, &info));
        if (i == 20)
            CUDA(cudaGraphDestroy(first));
        CUDA(cudaGraphDestroy(next));
        renew(stream, i);
        CUDA(cudaGraphLaunch(exec, stream));
        count(10);
    }
    CUDA(cudaStreamSynchronize(stream));
}

// A graph in a graph.
static void nested(cudaStream_t stream) {
    cudaGraph_t inner = chain(stream, 5), outer;
    cudaGraphNode_t node, other;
    CUDA(cudaGraphCreate(&outer, 0));
    CUDA(cudaGraphAddChildGraphNode(&node, outer, nullptr, 0, inner));
    CUDA(cudaGraphAddChildGraphNode(&other, outer, &node, 1, inner));
    cudaGraphExec_t exec = made(outer);
    for (int i = 0; i < 100; i++) {
        CUDA(cudaGraphLaunch(exec, stream));
        count(10);
    }
    CUDA(cudaStreamSynchronize(stream));
}

// Memory that the graph allocates, beside kernels.
static void memory(cudaStream_t stream) {
    cudaGraph_t graph;
    void *piece;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA(cudaMallocAsync(&piece, n * sizeof(unsigned), stream));
    CUDA(cudaMemcpyAsync(piece, input, n * sizeof(unsigned), cudaMemcpyDeviceToDevice, stream));
    advance<<<(n + 127) / 128, 128, 0, stream>>>(values, (unsigned *)piece, n);
    CUDA(cudaFreeAsync(piece, stream));
    CUDA(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec = made(graph);
    for (int i = 0; i < 100; i++) {
        CUDA(cudaGraphLaunch(exec, stream));
        count(1);
    }
    CUDA(cudaStreamSynchronize(stream));
}

// A body that runs 0 and 5 times.
static void loop(cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphConditionalHandle handle;
    unsigned *left;
    CUDA(cudaMalloc(&left, sizeof(unsigned)));
    for (unsigned times : {5u, 0u}) {
        CUDA(cudaGraphCreate(&graph, 0));
        CUDA(cudaGraphConditionalHandleCreate(&handle, graph, times > 0, cudaGraphCondAssignDefault));
        cudaGraphNodeParams parameters = {cudaGraphNodeTypeConditional};
        parameters.conditional.handle = handle;
        parameters.conditional.type = cudaGraphCondTypeWhile;
        parameters.conditional.size = 1;
        cudaGraphNode_t node;
        CUDA(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &parameters));
        cudaGraph_t body = parameters.conditional.phGraph_out[0];
        CUDA(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
        advance<<<(n + 127) / 128, 128, 0, stream>>>(values, input, n);
        again<<<1, 1, 0, stream>>>(handle, left);
        CUDA(cudaStreamEndCapture(stream, nullptr));
        cudaGraphExec_t exec = made(graph);
        for (int i = 0; i < 20; i++) {
            CUDA(cudaMemcpyAsync(left, &times, sizeof(times), cudaMemcpyHostToDevice, stream));
            CUDA(cudaGraphLaunch(exec, stream));
            CUDA(cudaStreamSynchronize(stream));
            for (unsigned j = 0; j < times; j++) {
                count(1);
                loaded += 4;
                stored += 4;
            }
        }
    }
}

// Microseconds to submit a replay of 200 kernels: 20 at a time, the median of all.
static void submit(cudaStream_t stream) {
    cudaGraphExec_t exec = made(chain(stream, 200));
    std::vector<double> times;
    for (int i = 0; i < 60; i++) {
        CUDA(cudaStreamSynchronize(stream));
        auto start = std::chrono::steady_clock::now();
        for (int j = 0; j < 20; j++)
            CUDA(cudaGraphLaunch(exec, stream));
        std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
        times.push_back(spent.count() / 20);
        count(200 * 20);
    }
    CUDA(cudaStreamSynchronize(stream));
    std::sort(times.begin(), times.end());
    std::printf("time submit %.3f\n", times[times.size() / 2]);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "queue";
    cudaStream_t stream;
    CUDA(cudaMalloc(&values, n * sizeof(unsigned)));
    CUDA(cudaMalloc(&input, n * sizeof(unsigned)));
    CUDA(cudaMemset(values, 1, n * sizeof(unsigned)));
    CUDA(cudaMemset(input, 2, n * sizeof(unsigned)));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (!std::strcmp(name, "queue"))
        queue(stream, 30, 1000);
    else if (!std::strcmp(name, "alternate"))
        alternate(stream, 500);
    else if (!std::strcmp(name, "updates"))
        updates(stream);
    else if (!std::strcmp(name, "nested"))
        nested(stream);
    else if (!std::strcmp(name, "memory"))
        memory(stream);
    else if (!std::strcmp(name, "loop"))
        loop(stream);
    else if (!std::strcmp(name, "submit"))
        submit(stream);
    else
        return 2;
    std::vector<unsigned> result(n);
    CUDA(cudaMemcpy(result.data(), values, n * sizeof(unsigned), cudaMemcpyDeviceToHost));
    uint64_t hash = 0xcbf29ce484222325;
    for (unsigned word : result)
        hash = (hash ^ word) * 0x100000001b3;
    std::printf("result %016llx\nbytes %llu %llu\n", (unsigned long long)hash, (unsigned long long)loaded, (unsigned long long)stored);
    return 0;
}
