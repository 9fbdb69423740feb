// Blocks that are no multiple of a warp, and grids and blocks of one to three dimensions.
#include "harness.cuh"

// Every thread loads 4 B of salt and stores 4 B: 4 threads, 4 threads.
extern "C" __global__ void shape(const uint32_t *salt, uint32_t *out) {
    uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    uint32_t size = blockDim.x * blockDim.y * blockDim.z;
    out[block * size + thread] = salt[thread % 32] ^ (block * 2654435761u + thread);
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "shapes");
    static const struct {
        dim3 grid, block;
    } shapes[] = {
        {dim3(1), dim3(1)},          {dim3(700), dim3(33)},         {dim3(300), dim3(48)},
        {dim3(150), dim3(1000)},     {dim3(7, 5), dim3(33)},        {dim3(3, 4, 5), dim3(48)},
        {dim3(2, 3, 2), dim3(1000)}, {dim3(9, 2), dim3(11, 3)},     {dim3(1, 1, 13), dim3(4, 4, 3)},
        {dim3(5, 3, 2), dim3(10, 10, 10)}, {dim3(2, 1, 17), dim3(1, 33, 1)}, {dim3(40, 40), dim3(1, 1, 48)},
    };
    bench::Buffer<uint32_t> salt(32), out(700 * 1024);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<uint32_t> salts(32);
        for (uint32_t &word : salts)
            word = random.word();
        salt.set(salts);
        for (const auto &s : shapes) {
            uint32_t size = s.block.x * s.block.y * s.block.z, blocks = s.grid.x * s.grid.y * s.grid.z;
            uint64_t threads = uint64_t(size) * blocks;
            out.poison();
            run.launch("shape", s.grid, s.block, {4 * threads, 4 * threads}, [&] { shape<<<s.grid, s.block>>>(salt, out); });
            std::vector<uint32_t> result = out.get(), want(threads);
            result.resize(threads);
            for (uint32_t b = 0; b < blocks; b++)
                for (uint32_t t = 0; t < size; t++)
                    want[b * size + t] = salts[t % 32] ^ (b * 2654435761u + t);
            run.same("out", result, want);
            run.output(result);
        }
        run.end_seed();
    }
    return run.finish();
}
