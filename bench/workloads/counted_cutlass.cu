// Matrix products by CUTLASS's templates, each launched once: CUDA cores, mma with cp.async, wgmma with TMA.
//
// `counted_cutlass --out FILE.json` writes {"outputs": {name: FNV-1a of the product}}.
#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/collective/default_epilogue.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#define CUDA(call)                                                                                      \
    do {                                                                                                \
        cudaError_t status_ = (call);                                                                   \
        if (status_ != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
            exit(3);                                                                                    \
        }                                                                                               \
    } while (0)
#define CUTLASS(call)                                                                                             \
    do {                                                                                                          \
        cutlass::Status status_ = (call);                                                                         \
        if (status_ != cutlass::Status::kSuccess) {                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cutlass::cutlassGetStatusString(status_)); \
            exit(3);                                                                                              \
        }                                                                                                         \
    } while (0)

using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Half = cutlass::half_t;

using Simt = cutlass::gemm::device::Gemm<float, Row, float, Column, float, Row, float, cutlass::arch::OpClassSimt, cutlass::arch::Sm80>;
using Warp = cutlass::gemm::device::Gemm<Half, Row, Half, Column, float, Row, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80>;

using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto, float, float,
    float, Row, 4, float, Row, 4, cutlass::epilogue::NoSmemWarpSpecialized>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Half, Row, 8, Half, Column, 8, float, Tile, Cluster,
    cutlass::gemm::collective::StageCount<3>, cutlass::gemm::KernelTmaWarpSpecialized>::CollectiveOp;
using Group = cutlass::gemm::device::GemmUniversalAdapter<
    cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue>>;

static const int M = 256, N = 384, K = 192;

template <typename T> static T *factor(size_t count, uint32_t seed) {
    std::vector<T> values(count);
    for (size_t i = 0; i < count; i++)
        values[i] = T(float(int((uint32_t(i) + seed) * 2654435761u >> 29)) - 3);
    T *memory;
    CUDA(cudaMalloc(&memory, count * sizeof(T)));
    CUDA(cudaMemcpy(memory, values.data(), count * sizeof(T), cudaMemcpyHostToDevice));
    return memory;
}

static std::string digest(const char *name, float *c) {
    std::vector<float> values(M * N);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(values.data(), c, M * N * sizeof(float), cudaMemcpyDeviceToHost));
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < values.size() * sizeof(float); i++)
        hash = (hash ^ reinterpret_cast<unsigned char *>(values.data())[i]) * 0x100000001b3;
    char line[80];
    snprintf(line, sizeof line, "\"%s\": \"%016llx\"", name, (unsigned long long)hash);
    return line;
}

template <typename Gemm, typename T> static std::string run(const char *name, float *c) {
    T *a = factor<T>(M * K, 1), *b = factor<T>(N * K, 2);
    CUDA(cudaMemset(c, 0, M * N * sizeof(float)));
    Gemm gemm;
    CUTLASS(gemm({{M, N, K}, {a, K}, {b, K}, {c, N}, {c, N}, {1, 0}}));
    return digest(name, c);
}

static std::string run_group(const char *name, float *c) {
    Half *a = factor<Half>(M * K, 1), *b = factor<Half>(N * K, 2);
    CUDA(cudaMemset(c, 0, M * N * sizeof(float)));
    using Kernel = typename Group::GemmKernel;
    auto left = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {M, K, 1});
    auto right = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {N, K, 1});
    auto result = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {M, N, 1});
    typename Group::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm, {M, N, K, 1}, {a, left, b, right}, {{1, 0}, nullptr, result, c, result}};
    Group gemm;
    void *workspace = nullptr;
    size_t size = Group::get_workspace_size(arguments);
    if (size)
        CUDA(cudaMalloc(&workspace, size));
    CUTLASS(gemm.can_implement(arguments));
    CUTLASS(gemm.initialize(arguments, workspace));
    CUTLASS(gemm.run());
    return digest(name, c);
}

int main(int argc, char **argv) {
    if (argc != 3 || strcmp(argv[1], "--out")) {
        fprintf(stderr, "usage: counted_cutlass --out FILE.json\n");
        return 2;
    }
    float *c;
    CUDA(cudaMalloc(&c, M * N * sizeof(float)));
    std::string simt = run<Simt, float>("simt", c), warp = run<Warp, Half>("mma", c), group = run_group("wgmma", c);
    FILE *out = fopen(argv[2], "w");
    if (!out || fprintf(out, "{\"outputs\": {%s,\n %s,\n %s}}\n", simt.c_str(), warp.c_str(), group.c_str()) < 0 || fclose(out)) {
        perror(argv[2]);
        return 3;
    }
    return 0;
}
