// What it costs the host to submit a small launch: `submit --launches 20000 --repetitions R --out FILE.json` submits
// that many in a loop, R times, and writes µs a launch for each repetition. No events and no checks are inside.
#include "harness.cuh"

#include <chrono>
#include <sys/resource.h>

// One block of a warp; every thread loads and stores 4 B.
extern "C" __global__ void small(unsigned *counts) { counts[threadIdx.x] += 1; }

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "submit");
    const int launches = atoi(run.option("--launches", "20000").c_str());
    const int repetitions = atoi(run.option("--repetitions", "5").c_str());
    bench::Buffer<unsigned> counts(32);
    counts.clear();
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::string submit, complete, switches, faults;
    for (int repetition = -1; repetition < repetitions; repetition++) { // the first one warms up
        rusage before, after;
        getrusage(RUSAGE_THREAD, &before);
        auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < launches; i++)
            small<<<1, 32, 0, stream>>>(counts);
        auto submitted = std::chrono::steady_clock::now();
        CUDA(cudaStreamSynchronize(stream));
        auto ended = std::chrono::steady_clock::now();
        getrusage(RUSAGE_THREAD, &after);
        CUDA(cudaGetLastError());
        if (repetition < 0)
            continue;
        const char *comma = repetition ? ", " : "";
        using microseconds = std::chrono::duration<double, std::micro>;
        submit += comma + std::to_string(microseconds(submitted - start).count() / launches);
        complete += comma + std::to_string(microseconds(ended - start).count() / launches);
        switches += comma + std::to_string(after.ru_nvcsw - before.ru_nvcsw);
        faults += comma + std::to_string(after.ru_minflt - before.ru_minflt);
    }
    std::vector<unsigned> want(32, unsigned(launches) * (repetitions + 1)), result = counts.get();
    run.same("counts", result, want);
    run.output(result);
    run.end_seed();
    run.extra("launches", std::to_string(launches));
    run.extra("submit_us", "[" + submit + "]");
    run.extra("complete_us", "[" + complete + "]");
    run.extra("voluntary_switches", "[" + switches + "]");
    run.extra("minor_faults", "[" + faults + "]");
    return run.finish();
}
