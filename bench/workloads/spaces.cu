// Every way of reaching global memory that gmem_bytes counts: generic pointers that are global for some threads and
// shared for others, asynchronous copies, volatile accesses, atomics with and without a result, vectors, bytes.
#include "harness.cuh"

#include <cuda_pipeline.h>

// Threads of even blocks read the 4 B of in through a generic pointer, those of odd blocks read shared memory, which
// was filled from in by all: loads 4 n + 4 (threads of even blocks), stores 4 n.
extern "C" __global__ void generic(const unsigned *in, unsigned *out) {
    __shared__ unsigned staged[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    staged[threadIdx.x] = in[i] + 1;
    __syncthreads();
    const unsigned *from = blockIdx.x % 2 ? staged + (threadIdx.x + 1) % 128 : in + i;
    asm volatile("" : "+l"(from)); // the compiler must not know the space
    out[i] = *from;
}

// Each thread copies 16 B to shared memory asynchronously and stores 4 B: async 16 n, stores 4 n.
extern "C" __global__ void copied(const uint4 *in, unsigned *out) {
    __shared__ uint4 staged[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __pipeline_memcpy_async(&staged[threadIdx.x], in + i, 16);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    uint4 value = staged[(threadIdx.x + 32) % 128];
    out[i] = value.x ^ value.y ^ value.z ^ value.w;
}

// A volatile load of 4 B, a byte load, a 2 B load through the read-only path; an 8 B atomic with and a 4 B one without
// a result, a compare-and-swap of 4 B; stores of 1 B and of 8 B: loads 7 n, stores 9 n, atomics 16 n.
extern "C" __global__ void mixed(const unsigned *words, const unsigned char *bytes, const unsigned short *halves,
                                 unsigned long long *wide, unsigned *narrow, unsigned *claimed, unsigned char *low,
                                 uint2 *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned word = *(const volatile unsigned *)(words + i), byte = bytes[i], half = __ldg(halves + i);
    unsigned long long before = atomicAdd(&wide[i], (unsigned long long)word << 8);
    atomicMax(&narrow[i % 64], word);
    unsigned found = atomicCAS(&claimed[i], byte, half);
    low[i] = (unsigned char)(word + byte);
    out[i] = make_uint2(word ^ found, (unsigned)(before >> 16) ^ half);
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "spaces");
    const int blocks = 201, threads = 128, n = blocks * threads;
    const uint64_t even = uint64_t((blocks + 1) / 2) * threads;
    bench::Buffer<unsigned> words(4 * n), out(n), narrow(64), claimed(n);
    bench::Buffer<unsigned char> bytes(n), low(n);
    bench::Buffer<unsigned short> halves(n);
    bench::Buffer<unsigned long long> wide(n);
    bench::Buffer<uint2> pairs(n);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<unsigned> w(4 * n), want(n), greatest(64, 0), claims(n), want_claims(n);
        std::vector<unsigned char> b(n), want_low(n);
        std::vector<unsigned short> h(n);
        std::vector<unsigned long long> d(n), want_wide(n);
        for (unsigned &word : w)
            word = random.word();
        for (int i = 0; i < n; i++) {
            b[i] = (unsigned char)random.word();
            h[i] = (unsigned short)random.word();
            d[i] = random.next();
            claims[i] = random.word() & 1 ? b[i] : 1000;
        }
        words.set(w), bytes.set(b), halves.set(h), wide.set(d), claimed.set(claims);

        out.poison();
        run.launch("generic", blocks, threads, {4ull * n + 4 * even, 4ull * n},
                   [&] { generic<<<blocks, threads>>>(words, out); });
        for (int i = 0; i < n; i++) {
            int block = i / threads, thread = i % threads;
            want[i] = block % 2 ? w[block * threads + (thread + 1) % threads] + 1 : w[i];
        }
        std::vector<unsigned> result = out.get();
        run.same("generic", result, want);
        run.output(result);

        out.poison();
        run.launch("copied", blocks, threads, {0, 4ull * n, 0, 16ull * n},
                   [&] { copied<<<blocks, threads>>>((const uint4 *)(unsigned *)words, out); });
        for (int i = 0; i < n; i++) {
            const unsigned *v = &w[4 * (i / threads * threads + (i % threads + 32) % threads)];
            want[i] = v[0] ^ v[1] ^ v[2] ^ v[3];
        }
        result = out.get();
        run.same("copied", result, want);
        run.output(result);

        narrow.clear(), low.poison(), pairs.poison();
        run.launch("mixed", blocks, threads, {7ull * n, 9ull * n, 16ull * n}, [&] {
            mixed<<<blocks, threads>>>(words, bytes, halves, wide, narrow, claimed, low, pairs);
        });
        std::vector<uint2> both = pairs.get();
        for (int i = 0; i < n; i++) {
            want_wide[i] = d[i] + ((unsigned long long)w[i] << 8);
            greatest[i % 64] = std::max(greatest[i % 64], w[i]);
            want_claims[i] = claims[i] == b[i] ? h[i] : claims[i];
            want_low[i] = (unsigned char)(w[i] + b[i]);
            run.check(both[i].x == (w[i] ^ claims[i]) && both[i].y == ((unsigned)(d[i] >> 16) ^ h[i]),
                      "mixed[%d] is %u, %u", i, both[i].x, both[i].y);
        }
        run.same("wide", wide.get(), want_wide);
        run.same("narrow", narrow.get(), greatest);
        run.same("claimed", claimed.get(), want_claims);
        run.same("low", low.get(), want_low);
        run.output(wide.get());
        run.output(narrow.get());
        run.output(claimed.get());
        run.output(low.get());
        run.output(both);
        run.end_seed();
    }
    return run.finish();
}
