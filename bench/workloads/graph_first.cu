// A kernel whose very first launch is a captured one: its module is loaded while the stream is being captured.
#include "harness.cuh"

// Every thread loads and stores 4 B: 4 n, 4 n.
extern "C" __global__ void later(unsigned *values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        values[i] = values[i] * 22695477 + 1;
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "graph_first");
    const int n = 5003, replays = 3;
    const unsigned grid = bench::cover(n, 96);
    bench::Buffer<unsigned> values(n);
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<unsigned> x(n);
        for (unsigned &word : x)
            word = random.word();
        values.set(x);
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        later<<<grid, 96, 0, stream>>>(values, n);
        CUDA(cudaStreamEndCapture(stream, &graph));
        CUDA(cudaGraphInstantiate(&executable, graph, 0));
        run.replay({{"later", grid, 96, {4ull * n, 4ull * n}}}, replays, [&] { CUDA(cudaGraphLaunch(executable, stream)); }, stream);
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaGraphExecDestroy(executable));
        CUDA(cudaGraphDestroy(graph));
        run.launch("later", grid, 96, {4ull * n, 4ull * n}, [&] { later<<<grid, 96, 0, stream>>>(values, n); }, stream);
        CUDA(cudaStreamSynchronize(stream));
        for (unsigned &word : x)
            for (int i = 0; i < replays + 1; i++)
                word = word * 22695477 + 1;
        std::vector<unsigned> result = values.get();
        run.same("values", result, x);
        run.output(result);
        run.end_seed();
    }
    run.extra("replayed", std::to_string(replays * run.seeds()));
    return run.finish();
}
