// A sparse matrix times a vector: values and column numbers are read one after the other, the vector wherever the
// columns are. For pictures of accesses to memory.
#include "harness.cuh"

// A warp a row. Of n elements in rows + 1 of rows: 8 n + 8 rows loaded, and 4 n of the vector; 4 rows stored.
extern "C" __global__ void sparse(const int *begins, const int *columns, const float *values, const float *x, float *y,
                                  int rows) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows)
        return;
    float sum = 0;
    for (int at = begins[row] + int(threadIdx.x), end = begins[row + 1]; at < end; at += 32)
        sum += values[at] * x[columns[at]];
    for (int apart = 16; apart; apart /= 2)
        sum += __shfl_xor_sync(~0u, sum, apart);
    if (threadIdx.x == 0)
        y[row] = sum;
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "sparse");
    const int rows = atoi(run.option("--rows", "1024").c_str()), wide = 1 << 16;
    // Near the diagonal, as a mesh has them, and some anywhere.
    bench::Random random(1, 0);
    std::vector<int> begins{0}, columns;
    std::vector<float> values;
    for (int row = 0; row < rows; row++) {
        int count = 4 + random.word() % 24, middle = int(int64_t(row) * wide / rows);
        for (int i = 0; i < count; i++) {
            int column = i % 4 ? middle + int(random.word() % 512) - 256 : int(random.word() % wide);
            columns.push_back(std::min(std::max(column, 0), wide - 1));
            values.push_back(float(int(random.word() % 9) - 4));
        }
        begins.push_back(int(columns.size()));
    }
    std::vector<float> in(wide), want(rows, 0);
    for (float &value : in)
        value = float(int(random.word() % 9) - 4);
    for (int row = 0; row < rows; row++)
        for (int at = begins[row]; at < begins[row + 1]; at++)
            want[row] += values[at] * in[columns[at]];
    bench::Buffer<int> begin(begins.size()), column(columns.size());
    bench::Buffer<float> value(values.size()), x(wide), y(rows);
    begin.set(begins);
    column.set(columns);
    value.set(values);
    x.set(in);
    for (int seed = 0; seed < run.seeds(); seed++) {
        y.poison();
        dim3 warps(32, 4);
        run.launch("sparse", bench::cover(rows, 4), warps, {12ull * columns.size() + 8ull * 32 * rows, 4ull * rows},
                   [&] { sparse<<<bench::cover(rows, 4), warps>>>(begin, column, value, x, y, rows); });
        std::vector<float> result = y.get();
        run.same("y", result, want);
        run.output(result);
        run.end_seed();
    }
    return run.finish();
}
