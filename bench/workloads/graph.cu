// A kernel launched by itself, and the same kernel captured into a graph and replayed. Each node has a size of its own, so
// that a launch that is lost or out of order is not taken for another.
#include "harness.cuh"

// Every thread loads and stores 4 B: 4 n, 4 n.
extern "C" __global__ void advance(unsigned *values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] = values[i] * 1664525 + 1013904223;
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "graph");
    const int n = 10007, captured = 3, replays = 5, less = 1000;
    const unsigned grid = bench::cover(n, 128);
    bench::Buffer<unsigned> values(n);
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<unsigned> x(n);
        for (unsigned &word : x)
            word = random.word();
        values.set(x);
        run.launch("advance", grid, 128, {4ull * n, 4ull * n}, [&] { advance<<<grid, 128, 0, stream>>>(values, n); }, stream);
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        std::vector<bench::Run::Replayed> nodes;
        for (int i = 0; i < captured; i++) {
            const int m = n - (i + 1) * less;
            advance<<<bench::cover(m, 128), 128, 0, stream>>>(values, m);
            nodes.push_back({"advance", bench::cover(m, 128), 128, {4ull * m, 4ull * m}});
        }
        CUDA(cudaStreamEndCapture(stream, &graph));
        CUDA(cudaGraphInstantiate(&executable, graph, 0));
        run.replay(nodes, replays, [&] { CUDA(cudaGraphLaunch(executable, stream)); }, stream);
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaGraphExecDestroy(executable));
        CUDA(cudaGraphDestroy(graph));
        for (int j = 0; j < n; j++) {
            const int covering = std::min(captured, (n - 1 - j) / less);
            for (int i = 0; i < 1 + covering * replays; i++)
                x[j] = x[j] * 1664525 + 1013904223;
        }
        std::vector<unsigned> result = values.get();
        run.same("values", result, x);
        run.output(result);
        run.end_seed();
    }
    run.extra("replayed", std::to_string(captured * replays * run.seeds()));
    return run.finish();
}
