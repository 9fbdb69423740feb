// A kernel that waits for a flag of the host's, which is set only after 200 further launches on other streams: first
// once they were submitted, then (second half of the rounds) once they have also ended. Whoever waits for the spinning
// kernel while submitting the others, or for a drain behind it, never ends; the watch then ends the program.
#include "harness.cuh"

#include <atomic>
#include <chrono>
#include <thread>
#include <unistd.h>

// Spins in host memory: how often it is loaded is not known beforehand. Stores 4 B, once.
extern "C" __global__ void spin(volatile unsigned *flag, unsigned *out, unsigned value) {
    while (*flag != value)
        __nanosleep(1000);
    if (threadIdx.x == 0)
        *out = value;
}

// Every thread loads and stores 4 B: 4 threads, 4 threads.
extern "C" __global__ void further(unsigned *counts) { counts[blockIdx.x * blockDim.x + threadIdx.x] += 1; }

int main(int argc, char **argv) {
    // Enough hardware queues that no stream of ours waits behind the spinning one's.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    bench::Run run(argc, argv, "spin");
    const int others = 8, launches = 200, blocks = 64, threads = 128, n = blocks * threads;
    unsigned *flag = nullptr, *device_flag = nullptr;
    CUDA(cudaHostAlloc(&flag, sizeof *flag, cudaHostAllocMapped));
    CUDA(cudaHostGetDevicePointer(&device_flag, flag, 0));
    *flag = 0;
    cudaStream_t waiting, streams[others];
    CUDA(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
    for (cudaStream_t &stream : streams)
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    bench::Buffer<unsigned> out(1), counts(size_t(n) * others);

    // Both kernels are loaded, and their events made, before anything spins.
    counts.clear();
    run.launch("spin", 1, 32, {bench::UNKNOWN, 4}, [&] { spin<<<1, 32, 0, waiting>>>(device_flag, out, 0); }, waiting);
    for (int s = 0; s < others; s++)
        run.launch("further", blocks, threads, {4ull * n, 4ull * n},
                   [&] { further<<<blocks, threads, 0, streams[s]>>>(counts + s * n); }, streams[s]);
    CUDA(cudaDeviceSynchronize());

    std::atomic<bool> done{false};
    std::thread watch([&] {
        for (int tenths = 0; tenths < 300 && !done; tenths++)
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        if (!done) {
            fprintf(stderr, "spin: not ended after 30 s\n");
            _exit(4); // nothing else may be waited for
        }
    });
    unsigned expected = 1;
    std::string waits;
    for (int seed = 0; seed < run.seeds(); seed++) {
        unsigned value = unsigned(seed) + 1;
        auto start = std::chrono::steady_clock::now();
        run.launch("spin", 1, 32, {bench::UNKNOWN, 4}, [&] { spin<<<1, 32, 0, waiting>>>(device_flag, out, value); }, waiting);
        for (int i = 0; i < launches; i++) {
            int s = i % others;
            run.launch("further", blocks, threads, {4ull * n, 4ull * n},
                       [&] { further<<<blocks, threads, 0, streams[s]>>>(counts + s * n); }, streams[s]);
        }
        if (seed >= run.seeds() / 2)
            for (cudaStream_t stream : streams)
                CUDA(cudaStreamSynchronize(stream));
        bool spinning = cudaStreamQuery(waiting) == cudaErrorNotReady;
        run.check(spinning, "seed %d: the spinning kernel ended before its flag was set", seed);
        std::chrono::duration<double, std::milli> waited = std::chrono::steady_clock::now() - start;
        __atomic_store_n(flag, value, __ATOMIC_SEQ_CST);
        CUDA(cudaDeviceSynchronize());
        expected += launches / others;
        waits += (waits.empty() ? "" : ", ") + std::to_string(waited.count());
        std::vector<unsigned> result = counts.get(), last = out.get();
        run.same("counts", result, std::vector<unsigned>(size_t(n) * others, expected));
        run.check(last[0] == value, "out is %u, expected %u", last[0], value);
        run.output(result);
        run.output(last);
        run.end_seed();
    }
    done = true;
    watch.join();
    run.extra("spun_ms", "[" + waits + "]");
    run.extra("further_each", std::to_string(launches));
    return run.finish();
}
