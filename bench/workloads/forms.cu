// Every form of launch that is none of a graph: `forms NAME`. Prints `launches N` and `result HASH`.
//
//   persistent   a grid as large as fits on the device, by the occupancy API; its blocks take work from a counter and
//                meet at a barrier made of atomics: with less occupancy than asked for it would never end
//   cooperative  the same with cudaLaunchCooperativeKernel and grid.sync()
//   streamk      a split product: blocks wait in a loop for the partial sums of the blocks after them
//   clusters     cudaLaunchKernelEx with a cluster of four, which read each other's shared memory
//   dependent    programmatic dependent launch, in a stream with a priority
//   extra        cuLaunchKernel with a buffer of parameters, and a thread's own default stream, from four threads
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define CUDA(call)                                                                                      \
    do {                                                                                                \
        cudaError_t status_ = (call);                                                                   \
        if (status_ != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
            exit(3);                                                                                    \
        }                                                                                               \
    } while (0)

static const int n = 1 << 20, threads = 256, rounds = 40;
static unsigned *values, *sums, *counters;
static int launches, sms;

__device__ unsigned mixed(unsigned x) { return (x ^ x >> 15) * 2654435761u + 12345; }

// All blocks of a grid that is on the device as a whole wait for each other.
__device__ void meet(unsigned *arrived, unsigned goal) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < goal)
            __nanosleep(100);
        __threadfence();
    }
    __syncthreads();
}

__global__ void persistent(unsigned *values, unsigned *counters, int n) {
    __shared__ int tile;
    for (int pass = 0; pass < 3; pass++) {
        for (;;) {
            if (threadIdx.x == 0)
                tile = int(atomicAdd(&counters[pass], 1));
            __syncthreads();
            int i = tile * int(blockDim.x) + int(threadIdx.x);
            __syncthreads();
            if (i - int(threadIdx.x) >= n)
                break;
            if (i < n)
                values[(i + pass * 77) % n] = mixed(values[(i + pass * 77) % n]);
        }
        meet(&counters[8], gridDim.x * unsigned(pass + 1));
    }
}

__global__ void cooperative(unsigned *values, int n) {
    auto grid = cooperative_groups::this_grid();
    for (int pass = 0; pass < 3; pass++) {
        for (int i = int(grid.thread_rank()); i < n / 2; i += int(grid.size()))
            values[i] = mixed(values[i] + values[i + n / 2]);
        grid.sync();
        for (int i = int(grid.thread_rank()); i < n / 2; i += int(grid.size()))
            values[i + n / 2] = mixed(values[n / 2 - 1 - i]);
        grid.sync();
    }
}

// Tile t is the sum over `split` blocks; the first of them writes it, once the others have left their parts.
__global__ void streamk(unsigned *values, unsigned *parts, unsigned *flags, int split, int length) {
    int tile = int(blockIdx.x) / split, part = int(blockIdx.x) % split;
    unsigned sum = 0;
    for (int i = part; i < length; i += split)
        sum += mixed(values[(tile * length + i) * int(blockDim.x) + int(threadIdx.x)]);
    if (part) {
        parts[blockIdx.x * blockDim.x + threadIdx.x] = sum;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            atomicExch(&flags[blockIdx.x], 1);
        return;
    }
    for (int i = 1; i < split; i++) {
        if (threadIdx.x == 0)
            while (!atomicAdd(&flags[int(blockIdx.x) + i], 0))
                __nanosleep(50);
        __syncthreads();
        sum += ((volatile unsigned *)parts)[(int(blockIdx.x) + i) * int(blockDim.x) + int(threadIdx.x)];
    }
    values[tile * length * int(blockDim.x) + int(threadIdx.x)] = sum;
}

__global__ void clusters(unsigned *values, int n) {
    __shared__ unsigned mine[threads];
    auto cluster = cooperative_groups::this_cluster();
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    mine[threadIdx.x] = i < n ? values[i] : 0;
    cluster.sync();
    unsigned *next = cluster.map_shared_rank(mine, (cluster.block_rank() + 1) % cluster.num_blocks());
    if (i < n)
        values[i] = mixed(next[threadIdx.x]);
    cluster.sync();
}

__global__ void dependent(unsigned *values, int n) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    cudaGridDependencySynchronize();
    if (i < n)
        values[i] = mixed(values[i]);
    cudaTriggerProgrammaticLaunchCompletion();
}

__global__ void plain(unsigned *values, int n, int add) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        values[i] = mixed(values[i]) + unsigned(add);
}

static int fitting(const void *kernel) {
    int blocks;
    CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0));
    return blocks * sms;
}

static void run_persistent(cudaStream_t stream) {
    for (int i = 0; i < rounds; i++) {
        CUDA(cudaMemsetAsync(counters, 0, 64, stream));
        persistent<<<fitting((void *)persistent), threads, 0, stream>>>(values, counters, n);
        launches++;
    }
}

static void run_cooperative(cudaStream_t stream) {
    int size = n;
    void *arguments[] = {&values, &size};
    for (int i = 0; i < rounds; i++, launches++)
        CUDA(cudaLaunchCooperativeKernel((void *)cooperative, dim3(fitting((void *)cooperative)), dim3(threads), arguments, 0, stream));
}

static void run_streamk(cudaStream_t stream) {
    int split = 4, length = 16, tiles = sms; // 4 blocks of each tile, at most 16 on a multiprocessor: all on the device
    for (int i = 0; i < rounds; i++, launches++) {
        CUDA(cudaMemsetAsync(counters, 0, 4096 * 4, stream));
        streamk<<<tiles * split, threads, 0, stream>>>(values, sums, counters, split, length);
    }
}

static void run_attributes(cudaStream_t stream, const void *kernel, cudaLaunchAttribute attribute) {
    cudaLaunchAttribute attributes[2] = {attribute};
    attributes[1].id = cudaLaunchAttributePriority;
    attributes[1].val.priority = -1;
    cudaLaunchConfig_t config = {dim3(n / threads), dim3(threads), 0, stream, attributes, 2};
    int size = n;
    void *arguments[] = {&values, &size};
    for (int i = 0; i < rounds; i++, launches++)
        CUDA(cudaLaunchKernelExC(&config, kernel, arguments));
}

static void run_extra(cudaStream_t stream) {
    cudaFunction_t function;
    CUDA(cudaGetFuncBySymbol(&function, (void *)plain));
    struct {
        unsigned *values;
        int n, add;
    } buffer = {values, n, 3};
    size_t size = sizeof buffer;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    void *launch;
    cudaDriverEntryPointQueryResult found;
    CUDA(cudaGetDriverEntryPointByVersion("cuLaunchKernel", &launch, 4000, cudaEnableDefault, &found));
    for (int i = 0; i < rounds; i++, launches++)
        if (((decltype(&cuLaunchKernel))launch)((CUfunction)function, n / threads, 1, 1, threads, 1, 1, 0, stream, nullptr, extra) != CUDA_SUCCESS)
            exit(4);
    CUDA(cudaStreamSynchronize(stream));
    std::vector<std::thread> workers;
    for (int w = 0; w < 4; w++)
        workers.emplace_back([w] {
            for (int i = 0; i < rounds; i++)
                plain<<<n / 4 / threads, threads, 0, cudaStreamPerThread>>>(values + w * (n / 4), n / 4, w);
            CUDA(cudaStreamSynchronize(cudaStreamPerThread));
        });
    for (std::thread &worker : workers)
        worker.join();
    launches += 4 * rounds;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    cudaStream_t stream;
    cudaLaunchAttribute attribute = {};
    CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CUDA(cudaMalloc(&values, n * sizeof(unsigned)));
    CUDA(cudaMalloc(&sums, n * sizeof(unsigned)));
    CUDA(cudaMalloc(&counters, 4096 * sizeof(unsigned)));
    CUDA(cudaMemset(values, 1, n * sizeof(unsigned)));
    CUDA(cudaMemset(counters, 0, 4096 * sizeof(unsigned)));
    CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
    CUDA(cudaDeviceSynchronize());
    if (!strcmp(name, "persistent")) {
        run_persistent(stream);
    } else if (!strcmp(name, "cooperative")) {
        run_cooperative(stream);
    } else if (!strcmp(name, "streamk")) {
        run_streamk(stream);
    } else if (!strcmp(name, "clusters")) {
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = 4;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        run_attributes(stream, (void *)clusters, attribute);
    } else if (!strcmp(name, "dependent")) {
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        run_attributes(stream, (void *)dependent, attribute);
    } else if (!strcmp(name, "extra")) {
        run_extra(stream);
    } else {
        return 2;
    }
    CUDA(cudaDeviceSynchronize());
    std::vector<unsigned> result(n);
    CUDA(cudaMemcpy(result.data(), values, n * sizeof(unsigned), cudaMemcpyDeviceToHost));
    uint64_t hash = 0xcbf29ce484222325;
    for (unsigned word : result)
        hash = (hash ^ word) * 0x100000001b3;
    printf("launches %d\nresult %016llx\n", launches, (unsigned long long)hash);
    return 0;
}
