// A product of matrices whose warps have jobs: one copies tiles into shared memory, four multiply them on tensor cores,
// two store the results of a tile while the next one is being multiplied. As many blocks as multiprocessors; each takes
// a tile of c after the other. For pictures of what warps do: the parts are marked as ranges.
#include "harness.cuh"

#include <cuda_fp16.h>
#include <neutrino_mark.h>

#include <cmath>

// How many steps ahead the copies are.
#define STAGES 3
#define TILE 64
#define STEP 32
// Elements from one row of a tile in shared memory to the next: rows begin at different banks.
#define PITCH 40
#define MMA_WARPS 4
#define STORE_WARPS 2

// Named barriers, from 1: a stage has been filled, a stage is free, a tile is ready, its place is free.
#define FULL(stage) (1 + (stage))
#define FREE(stage) (1 + STAGES + (stage))
#define READY (1 + 2 * STAGES)
#define TAKEN (2 + 2 * STAGES)

static __device__ void wait_at(int barrier, int warps) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}

// -DFENCED: after a fence, which the barrier makes superfluous, and which waits for all accesses before it.
static __device__ void arrive_at(int barrier, int warps) {
#ifdef FENCED
    __threadfence_block();
#endif
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}

static __device__ uint32_t shared_address(const void *pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }

// 16 bytes of each chunk of a tile of TILE rows, STEP elements each.
static __device__ void copy(half *to, const half *from, int pitch, int lane) {
#pragma unroll
    for (int chunk = lane; chunk < TILE * STEP / 8; chunk += 32) {
        int row = chunk / (STEP / 8), column = chunk % (STEP / 8) * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + row * PITCH + column)),
                     "l"(from + size_t(row) * pitch + column)
                     : "memory");
    }
}

// 32 x 32 elements of the tile, by 16 x 8 x 16 products.
static __device__ void multiply(float total[2][4][4], const half *a, const half *b, int row, int column, int lane) {
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
        uint32_t left[2][4], right[4][2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(left[i][0]), "=r"(left[i][1]), "=r"(left[i][2]), "=r"(left[i][3])
                         : "r"(shared_address(a + (row + 16 * i + lane % 16) * PITCH + k + lane / 16 * 8))
                         : "memory");
#pragma unroll
        for (int j = 0; j < 4; j++)
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                         : "=r"(right[j][0]), "=r"(right[j][1])
                         : "r"(shared_address(b + (column + 8 * j + lane % 8) * PITCH + k + lane / 8 % 2 * 8))
                         : "memory");
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                             "{%8, %9}, {%0, %1, %2, %3};"
                             : "+f"(total[i][j][0]), "+f"(total[i][j][1]), "+f"(total[i][j][2]), "+f"(total[i][j][3])
                             : "r"(left[i][0]), "r"(left[i][1]), "r"(left[i][2]), "r"(left[i][3]), "r"(right[j][0]),
                               "r"(right[j][1]));
    }
}

// c = a b, of rows x inner and inner x columns elements; b has its columns one after the other.
extern "C" __global__ void roles(const half *a, const half *b, float *c, int rows, int columns, int inner) {
    __shared__ __align__(16) half left[STAGES][TILE * PITCH], right[STAGES][TILE * PITCH];
    __shared__ __align__(16) float result[TILE * TILE];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int across = columns / TILE, tiles = rows / TILE * across, steps = inner / STEP;
    int mine = (tiles - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x) * steps;
    if (warp == 0) {
        for (int at = 0; at < mine; at++) {
            int tile = blockIdx.x + at / steps * gridDim.x, k = at % steps * STEP, stage = at % STAGES;
            if (at >= STAGES)
                wait_at(FREE(stage), 1 + MMA_WARPS);
            NEUTRINO_BEGIN(copy);
            copy(left[stage], a + size_t(tile / across) * TILE * inner + k, inner, lane);
            copy(right[stage], b + size_t(tile % across) * TILE * inner + k, inner, lane);
            asm volatile("cp.async.commit_group;" ::: "memory");
            NEUTRINO_END(copy);
            if (at >= STAGES - 1) {
                asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
                arrive_at(FULL((at + 1) % STAGES), 1 + MMA_WARPS);
            }
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        for (int at = mine > STAGES - 1 ? mine - (STAGES - 1) : 0; at < mine; at++)
            arrive_at(FULL(at % STAGES), 1 + MMA_WARPS);
    } else if (warp <= MMA_WARPS) {
        int row = (warp - 1) / 2 * 32, column = (warp - 1) % 2 * 32;
        for (int at = 0; at < mine;) {
            float total[2][4][4] = {};
            for (int end = at + steps; at < end; at++) {
                int stage = at % STAGES;
                wait_at(FULL(stage), 1 + MMA_WARPS);
                NEUTRINO_BEGIN(multiply);
                multiply(total, left[stage], right[stage], row, column, lane);
                NEUTRINO_END(multiply);
                if (at + STAGES < mine)
                    arrive_at(FREE(stage), 1 + MMA_WARPS);
            }
            if (at > steps)
                wait_at(TAKEN, MMA_WARPS + STORE_WARPS);
            NEUTRINO_BEGIN(hand_over);
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 4; j++)
                    for (int n = 0; n < 4; n++)
                        result[(row + 16 * i + n / 2 * 8 + lane / 4) * TILE + column + 8 * j + lane % 4 * 2 + n % 2] =
                            total[i][j][n];
            NEUTRINO_END(hand_over);
            arrive_at(READY, MMA_WARPS + STORE_WARPS);
        }
    } else {
        int thread = threadIdx.x - 32 * (1 + MMA_WARPS);
        for (int at = 0; at < mine; at += steps) {
            int tile = blockIdx.x + at / steps * gridDim.x;
            wait_at(READY, MMA_WARPS + STORE_WARPS);
            NEUTRINO_BEGIN(store);
            for (int n = 4 * thread; n < TILE * TILE; n += 4 * 32 * STORE_WARPS) {
                float *to = c + (size_t(tile / across) * TILE + n / TILE) * columns + tile % across * TILE + n % TILE;
                *reinterpret_cast<float4 *>(to) = *reinterpret_cast<const float4 *>(result + n);
            }
            NEUTRINO_END(store);
            if (at + steps < mine)
                arrive_at(TAKEN, MMA_WARPS + STORE_WARPS);
        }
    }
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "roles");
    const int rows = atoi(run.option("--rows", "1024").c_str()), columns = rows, inner = rows / 2;
    cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, 0));
    int tiles = rows / TILE * columns / TILE, blocks = std::min(properties.multiProcessorCount, tiles);
    bench::Buffer<half> a(size_t(rows) * inner), b(size_t(columns) * inner);
    bench::Buffer<float> c(size_t(rows) * columns);
    // Whole numbers up to 4: sums are exact, in whatever order they are added.
    std::vector<float> left(a.size()), right(b.size());
    std::vector<half> values(a.size());
    bench::Random random(1, 0);
    for (auto *side : {&left, &right}) {
        for (size_t i = 0; i < side->size(); i++)
            values[i] = __float2half((*side)[i] = float(int(random.word() % 9) - 4));
        (side == &left ? a : b).set(values);
    }
    // A few rows of the result are computed here.
    std::vector<int> checked;
    for (int row = 0; row < rows; row += std::max(rows / 16 - 1, 1))
        checked.push_back(row);
    std::vector<float> want;
    for (int row : checked)
        for (int column = 0; column < columns; column++) {
            float sum = 0;
            for (int k = 0; k < inner; k++)
                sum += left[size_t(row) * inner + k] * right[size_t(column) * inner + k];
            want.push_back(sum);
        }
    for (int seed = 0; seed < run.seeds(); seed++) {
        c.poison();
        // Each block loads, for each of its tiles, TILE rows of a and columns of b, 2 bytes an element; c is stored once.
        run.launch("roles", blocks, 32 * (1 + MMA_WARPS + STORE_WARPS),
                   {0, 4ull * rows * columns, 0, 4ull * tiles * TILE * inner},
                   [&] { roles<<<blocks, 32 * (1 + MMA_WARPS + STORE_WARPS)>>>(a, b, c, rows, columns, inner); });
        std::vector<float> result = c.get(), part;
        for (int row : checked)
            part.insert(part.end(), result.begin() + size_t(row) * columns, result.begin() + size_t(row + 1) * columns);
        run.same("c", part, want);
        run.output(result);
        run.end_seed();
    }
    return run.finish();
}
