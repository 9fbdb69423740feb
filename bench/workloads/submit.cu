// What it costs the host to submit a small launch: `submit --launches 20000 --repetitions R --out FILE.json` submits
// that many, R times, and writes µs per launch for each repetition. No events and no checks are inside. They are
// submitted 500 at a time, and the time to wait for these is not counted: the driver's queue holds about a thousand, and
// in front of a full one a launch takes as long as a kernel. With `--threads T` each of so many threads does that in a
// stream of its own at the same time.
#include "harness.cuh"

#include <chrono>
#include <sys/resource.h>
#include <thread>

// One block of a warp; every thread loads and stores 4 B.
extern "C" __global__ void small(unsigned *counts) { counts[threadIdx.x] += 1; }

using microseconds = std::chrono::duration<double, std::micro>;

constexpr int BATCH = 500;

// One thread's launches in a stream of its own: µs per launch to submit, and until they are complete.
struct Submitted {
    double submit, complete;
};

static Submitted submit(unsigned *counts, cudaStream_t stream, int launches) {
    Submitted spent = {};
    for (int done = 0; done < launches; done += BATCH) {
        auto start = std::chrono::steady_clock::now();
        for (int i = done; i < launches && i < done + BATCH; i++)
            small<<<1, 32, 0, stream>>>(counts);
        auto submitted = std::chrono::steady_clock::now();
        CUDA(cudaStreamSynchronize(stream));
        auto ended = std::chrono::steady_clock::now();
        spent.submit += microseconds(submitted - start).count();
        spent.complete += microseconds(ended - start).count();
    }
    CUDA(cudaGetLastError());
    return {spent.submit / launches, spent.complete / launches};
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "submit");
    const int launches = atoi(run.option("--launches", "20000").c_str());
    const int repetitions = atoi(run.option("--repetitions", "5").c_str());
    const int threads = atoi(run.option("--threads", "1").c_str());
    bench::Buffer<unsigned> counts(32 * threads);
    counts.clear();
    std::vector<cudaStream_t> streams(threads);
    for (cudaStream_t &stream : streams)
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::string submits, completes, switches, faults;
    for (int repetition = -1; repetition < repetitions; repetition++) { // the first one warms up
        rusage before, after;
        std::vector<Submitted> results(threads);
        std::vector<std::thread> others;
        getrusage(RUSAGE_THREAD, &before);
        for (int i = 1; i < threads; i++)
            others.emplace_back([&, i] { results[i] = submit(counts + 32 * i, streams[i], launches); });
        results[0] = submit(counts, streams[0], launches);
        getrusage(RUSAGE_THREAD, &after);
        for (std::thread &other : others)
            other.join();
        if (repetition < 0)
            continue;
        Submitted mean = {};
        for (const Submitted &result : results)
            mean = {mean.submit + result.submit / threads, mean.complete + result.complete / threads};
        const char *comma = repetition ? ", " : "";
        submits += comma + std::to_string(mean.submit);
        completes += comma + std::to_string(mean.complete);
        switches += comma + std::to_string(after.ru_nvcsw - before.ru_nvcsw);
        faults += comma + std::to_string(after.ru_minflt - before.ru_minflt);
    }
    std::vector<unsigned> want(32 * threads, unsigned(launches) * (repetitions + 1)), result = counts.get();
    run.same("counts", result, want);
    run.output(result);
    run.end_seed();
    run.extra("launches", std::to_string(launches));
    run.extra("threads", std::to_string(threads));
    run.extra("submit_us", "[" + submits + "]");
    run.extra("complete_us", "[" + completes + "]");
    run.extra("voluntary_switches", "[" + switches + "]");
    run.extra("minor_faults", "[" + faults + "]");
    return run.finish();
}
