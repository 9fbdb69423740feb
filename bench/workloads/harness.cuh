// What a workload owes the runner: `PROG --seeds N --out FILE.json` computes every seed's outputs in one process,
// checks them against a reference computed on the CPU, and writes
//
//   {"workload", "device", "sm_count", "clock_khz", "driver", "checks": "ok" or the first difference,
//    "outputs": [SHA-256 of each seed's output bytes],
//    "launches": [[kernel, [grid], [block], ms, [load, store, atomic, async]], ...], "extra": {...}}
//
// launches are in order of submission. ms brackets the launch by two events. The four byte counts are what the
// algorithm's threads ask of global memory, by formula; each workload derives them beside its kernel.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define CUDA(call)                                                                                       \
    do {                                                                                                 \
        cudaError_t status_ = (call);                                                                    \
        if (status_ != cudaSuccess) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_));  \
            exit(3);                                                                                     \
        }                                                                                                \
    } while (0)

namespace bench {

class Sha256 {
public:
    void add(const void *data, size_t size) {
        const uint8_t *bytes = static_cast<const uint8_t *>(data);
        length_ += size;
        while (size) {
            size_t part = sizeof block_ - used_ < size ? sizeof block_ - used_ : size;
            memcpy(block_ + used_, bytes, part);
            used_ += part;
            bytes += part;
            size -= part;
            if (used_ == sizeof block_) {
                compress();
                used_ = 0;
            }
        }
    }

    std::string hex() {
        uint64_t bits = length_ * 8;
        uint8_t one = 0x80, zero = 0;
        add(&one, 1);
        while (used_ != 56)
            add(&zero, 1);
        uint8_t tail[8];
        for (int i = 0; i < 8; i++)
            tail[i] = uint8_t(bits >> (56 - 8 * i));
        add(tail, 8);
        char text[65];
        for (int i = 0; i < 8; i++)
            snprintf(text + 8 * i, 9, "%08x", state_[i]);
        return text;
    }

private:
    static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

    void compress() {
        // FIPS 180-4, 4.2.2: the fractional parts of the cube roots of the first 64 primes.
        static const uint32_t k[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        uint32_t w[64];
        for (int i = 0; i < 16; i++)
            w[i] = uint32_t(block_[4 * i]) << 24 | uint32_t(block_[4 * i + 1]) << 16 |
                   uint32_t(block_[4 * i + 2]) << 8 | block_[4 * i + 3];
        for (int i = 16; i < 64; i++)
            w[i] = w[i - 16] + (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
                   (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
        uint32_t s[8];
        memcpy(s, state_, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t t1 = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) +
                          ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
            uint32_t t2 = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) +
                          ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += t1;
            s[0] = t1 + t2;
        }
        for (int i = 0; i < 8; i++)
            state_[i] += s[i];
    }

    uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t block_[64];
    size_t used_ = 0;
    uint64_t length_ = 0;
};

// Inputs depend on (seed, index) alone, so that the CPU reference and every run see the same bits.
class Random {
public:
    Random(int seed, int stream) : state_(uint64_t(seed) << 32 | uint64_t(stream) << 8 | 0x9d) {}
    uint64_t next() { // splitmix64
        uint64_t z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    uint32_t word() { return uint32_t(next() >> 32); }
    // Uniform in [-1, 1), a multiple of 2^-23: exact in float.
    float uniform() { return float(int32_t(next() >> 40) - (1 << 23)) / float(1 << 23); }

private:
    uint64_t state_;
};

// A byte count that depends on timing; null in the report.
constexpr uint64_t UNKNOWN = ~uint64_t(0);

// Bytes that all threads of one launch ask of global memory.
struct Bytes {
    uint64_t load = 0, store = 0, atomic = 0, async = 0;
};

template <typename T> class Buffer {
public:
    explicit Buffer(size_t count) : count_(count) { CUDA(cudaMalloc(&data_, count * sizeof(T))); }
    ~Buffer() { cudaFree(data_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    operator T *() const { return data_; }
    size_t size() const { return count_; }
    // Waits: from pageable memory the copy may return before it is done, and streams that do not block would not wait.
    void set(const std::vector<T> &values) {
        CUDA(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
        CUDA(cudaDeviceSynchronize());
    }
    // 0xff bytes are NaN in every float format here: an element that the kernel leaves unwritten is caught.
    void poison() { fill(0xff); }
    void clear() { fill(0); }
    std::vector<T> get() const {
        std::vector<T> values(count_);
        CUDA(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
        return values;
    }

private:
    void fill(int byte) {
        CUDA(cudaMemset(data_, byte, count_ * sizeof(T)));
        CUDA(cudaDeviceSynchronize());
    }
    T *data_ = nullptr;
    size_t count_;
};

class Run {
public:
    Run(int argc, char **argv, const char *workload) : workload_(workload) {
        for (int i = 1; i + 1 < argc; i += 2) {
            if (!strcmp(argv[i], "--seeds"))
                seeds_ = atoi(argv[i + 1]);
            else if (!strcmp(argv[i], "--out"))
                out_ = argv[i + 1];
            else
                options_.push_back({argv[i], argv[i + 1]});
        }
        if (out_.empty() || seeds_ < 1) {
            fprintf(stderr, "usage: %s --seeds N --out FILE.json\n", argv[0]);
            exit(2);
        }
        CUDA(cudaSetDevice(0));
    }

    int seeds() const { return seeds_; }
    const std::string &out() const { return out_; }

    std::string option(const char *name, const char *fallback) const {
        for (const auto &option : options_)
            if (option.first == name)
                return option.second;
        return fallback;
    }

    // Record one launch: submit() launches `kernel` exactly once, on `stream`.
    template <typename Submit>
    void launch(const char *kernel, dim3 grid, dim3 block, Bytes bytes, Submit submit, cudaStream_t stream = nullptr) {
        Launch entry{kernel, grid, block, bytes, nullptr, nullptr, 0};
        CUDA(cudaEventCreate(&entry.before));
        CUDA(cudaEventCreate(&entry.after));
        CUDA(cudaEventRecord(entry.before, stream));
        submit();
        CUDA(cudaGetLastError());
        CUDA(cudaEventRecord(entry.after, stream));
        launches_.push_back(entry);
    }

    // Record the launches of a graph that submit() launches once, and which is launched so many times: its kernel nodes in
    // order, replay by replay. The time of each is that of all, which bounds it.
    struct Replayed {
        const char *kernel;
        dim3 grid, block;
        Bytes bytes;
    };
    template <typename Submit>
    void replay(const std::vector<Replayed> &nodes, int replays, Submit submit, cudaStream_t stream) {
        size_t first = launches_.size();
        for (int i = 0; i < replays; i++)
            for (const Replayed &node : nodes) {
                Launch entry{node.kernel, node.grid, node.block, node.bytes, nullptr, nullptr, 0};
                CUDA(cudaEventCreate(&entry.before));
                CUDA(cudaEventCreate(&entry.after));
                CUDA(cudaEventRecord(entry.before, stream));
                launches_.push_back(entry);
            }
        for (int i = 0; i < replays; i++)
            submit();
        for (size_t i = first; i < launches_.size(); i++)
            CUDA(cudaEventRecord(launches_[i].after, stream));
    }

    // Output bytes of the current seed.
    template <typename T> void output(const std::vector<T> &values) {
        digest_.add(values.data(), values.size() * sizeof(T));
    }

    void end_seed() {
        CUDA(cudaDeviceSynchronize());
        for (size_t i = timed_; i < launches_.size(); i++) {
            CUDA(cudaEventElapsedTime(&launches_[i].ms, launches_[i].before, launches_[i].after));
            CUDA(cudaEventDestroy(launches_[i].before));
            CUDA(cudaEventDestroy(launches_[i].after));
        }
        timed_ = launches_.size();
        outputs_.push_back(digest_.hex());
        digest_ = Sha256();
    }

    __attribute__((format(printf, 3, 4))) void check(bool good, const char *format, ...) {
        if (good || !failure_.empty())
            return;
        char text[256];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        failure_ = text;
    }

    // |got - want| <= tolerance * max(1, |want|), element by element; NaN never passes.
    template <typename Got, typename Want>
    void near(const char *what, const std::vector<Got> &got, const std::vector<Want> &want, double tolerance) {
        check(got.size() == want.size(), "%s: %zu elements, expected %zu", what, got.size(), want.size());
        for (size_t i = 0; i < want.size() && failure_.empty(); i++) {
            double g = double(got[i]), w = double(want[i]);
            double scale = w < 0 ? -w : w;
            double difference = g > w ? g - w : w - g;
            check(difference <= tolerance * (scale > 1 ? scale : 1), "%s[%zu] is %.9g, expected %.9g", what, i, g, w);
        }
    }

    template <typename T> void same(const char *what, const std::vector<T> &got, const std::vector<T> &want) {
        check(got.size() == want.size(), "%s: %zu elements, expected %zu", what, got.size(), want.size());
        for (size_t i = 0; i < want.size() && failure_.empty(); i++)
            check(got[i] == want[i], "%s[%zu] is %.17g, expected %.17g", what, i, double(got[i]), double(want[i]));
    }

    // A member of "extra"; json is written as it is.
    void extra(const std::string &name, const std::string &json) {
        extra_ += (extra_.empty() ? "" : ", ") + ("\"" + name + "\": " + json);
    }

    int finish() {
        cudaDeviceProp properties;
        int clock_khz = 0, driver = 0;
        CUDA(cudaGetDeviceProperties(&properties, 0));
        CUDA(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0));
        CUDA(cudaDriverGetVersion(&driver));
        FILE *file = fopen(out_.c_str(), "w");
        if (!file) {
            perror(out_.c_str());
            return 2;
        }
        fprintf(file, "{\"workload\": \"%s\", \"device\": \"%s\", \"sm_count\": %d, \"clock_khz\": %d, \"driver\": %d,\n",
                workload_, properties.name, properties.multiProcessorCount, clock_khz, driver);
        fprintf(file, "\"checks\": \"%s\",\n\"outputs\": [", failure_.empty() ? "ok" : failure_.c_str());
        for (size_t i = 0; i < outputs_.size(); i++)
            fprintf(file, "%s\"%s\"", i ? ", " : "", outputs_[i].c_str());
        fprintf(file, "],\n\"launches\": [");
        for (size_t i = 0; i < launches_.size(); i++) {
            const Launch &l = launches_[i];
            auto count = [](uint64_t bytes) { return bytes == UNKNOWN ? std::string("null") : std::to_string(bytes); };
            fprintf(file, "%s\n[\"%s\", [%u, %u, %u], [%u, %u, %u], %.6f, [%s, %s, %s, %s]]", i ? "," : "", l.kernel,
                    l.grid.x, l.grid.y, l.grid.z, l.block.x, l.block.y, l.block.z, l.ms, count(l.bytes.load).c_str(),
                    count(l.bytes.store).c_str(), count(l.bytes.atomic).c_str(), count(l.bytes.async).c_str());
        }
        fprintf(file, "],\n\"extra\": {%s}}\n", extra_.c_str());
        if (fclose(file)) {
            perror(out_.c_str());
            return 2;
        }
        printf("%s: %zu seeds, %zu launches: %s\n", workload_, outputs_.size(), launches_.size(),
               failure_.empty() ? "ok" : failure_.c_str());
        return failure_.empty() ? 0 : 1;
    }

private:
    struct Launch {
        const char *kernel;
        dim3 grid, block;
        Bytes bytes;
        cudaEvent_t before, after;
        float ms;
    };

    const char *workload_;
    int seeds_ = 20;
    std::string out_, failure_, extra_;
    std::vector<std::pair<std::string, std::string>> options_;
    std::vector<Launch> launches_;
    size_t timed_ = 0;
    std::vector<std::string> outputs_;
    Sha256 digest_;
};

// Blocks of `width` that cover `count`.
inline unsigned cover(uint64_t count, unsigned width) { return unsigned((count + width - 1) / width); }

} // namespace bench
