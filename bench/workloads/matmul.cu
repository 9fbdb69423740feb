// C = A B by 16 x 16 tiles in shared memory; no dimension is a multiple of the tile.
#include "harness.cuh"

#define TILE 16

// A's elements are loaded by every tile column of the grid, B's by every tile row, C's stored once:
// 4 M K ceil(N / 16) + 4 K N ceil(M / 16), 4 M N.
extern "C" __global__ void matmul(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int tile = 0; tile < k; tile += TILE) {
        int i = tile + threadIdx.x, j = tile + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < m && i < k ? a[row * k + i] : 0;
        right[threadIdx.y][threadIdx.x] = j < k && column < n ? b[j * n + column] : 0;
        __syncthreads();
        for (int i = 0; i < TILE; i++)
            sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n)
        c[row * n + column] = sum;
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "matmul");
    const int m = 210, n = 275, k = 150;
    bench::Buffer<float> a(m * k), b(k * n), c(m * n);
    dim3 grid(bench::cover(n, TILE), bench::cover(m, TILE)), block(TILE, TILE);
    bench::Bytes bytes{4ull * m * k * grid.x + 4ull * k * n * grid.y, 4ull * m * n};
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<float> x(m * k), y(k * n);
        for (float &value : x)
            value = random.uniform();
        for (float &value : y)
            value = random.uniform();
        std::vector<double> want(m * n, 0.0);
        for (int r = 0; r < m; r++)
            for (int i = 0; i < k; i++)
                for (int j = 0; j < n; j++)
                    want[r * n + j] += double(x[r * k + i]) * y[i * n + j];
        a.set(x);
        b.set(y);
        c.poison();
        run.launch("matmul", grid, block, bytes, [&] { matmul<<<grid, block>>>(a, b, c, m, n, k); });
        std::vector<float> result = c.get();
        run.near("c", result, want, 1e-4);
        run.output(result);
        run.end_seed();
    }
    return run.finish();
}
