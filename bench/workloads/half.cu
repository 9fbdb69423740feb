// Arithmetic that the assembler may fuse: an unrounded product read once, by an addition, in the same basic block.
// nvcc's intrinsics leave such pairs in half precision; in float and double its front end fuses them itself, so
// these pairs are written as PTX, as clang writes them. A probe that keeps a pair from fusing changes the output bits.
#include "harness.cuh"

#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// 4 B of x, y and z each, 4 B stored, for n pairs: 12 n, 4 n.
extern "C" __global__ void pairs_half2(const __half2 *x, const __half2 *y, const __half2 *z, __half2 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __hadd2(__hmul2(x[i], y[i]), z[i]);
}

// As above.
extern "C" __global__ void pairs_bfloat162(const __nv_bfloat162 *x, const __nv_bfloat162 *y, const __nv_bfloat162 *z,
                                           __nv_bfloat162 *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __hsub2(__hmul2(x[i], y[i]), z[i]);
}

// Dot product of each row of a with x, in half precision: 2 B of a and of x for each element, 2 B stored a row:
// 4 rows columns, 2 rows. One thread a row.
extern "C" __global__ void dot_half(const __half *a, const __half *x, __half *out, int rows, int columns) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows)
        return;
    __half sum = __float2half(0.0f);
    for (int i = 0; i < columns; i++)
        sum = __hadd(__hmul(a[row * columns + i], x[i]), sum);
    out[row] = sum;
}

// 4 B of x, y and z, 4 B stored: 12 n, 4 n.
extern "C" __global__ void pairs_float(const float *x, const float *y, const float *z, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float product, sum;
        asm("mul.f32 %0, %1, %2;" : "=f"(product) : "f"(x[i]), "f"(y[i]));
        asm("add.f32 %0, %1, %2;" : "=f"(sum) : "f"(product), "f"(z[i]));
        out[i] = sum;
    }
}

// 8 B of x, y and z, 8 B stored: 24 n, 8 n.
extern "C" __global__ void pairs_double(const double *x, const double *y, const double *z, double *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        double product, sum;
        asm("mul.f64 %0, %1, %2;" : "=d"(product) : "d"(x[i]), "d"(y[i]));
        asm("sub.f64 %0, %1, %2;" : "=d"(sum) : "d"(product), "d"(z[i]));
        out[i] = sum;
    }
}

// The load of z and a store stand between the product and the sum, where a probe of loads and stores puts its code:
// 12 n loaded, 8 n stored.
extern "C" __global__ void pairs_around_memory(const float *x, const float *y, const float *z, float *out, float *copy,
                                               int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float product, addend, sum;
        float left = x[i], right = y[i];
        size_t from = __cvta_generic_to_global(z + i), to = __cvta_generic_to_global(copy + i);
        asm volatile("mul.f32 %0, %1, %2;" : "=f"(product) : "f"(left), "f"(right));
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(addend) : "l"(from) : "memory");
        asm volatile("st.global.f32 [%0], %1;" : : "l"(to), "f"(addend) : "memory");
        asm volatile("add.f32 %0, %1, %2;" : "=f"(sum) : "f"(product), "f"(addend));
        out[i] = sum;
    }
}

template <typename T> static std::vector<float> widen(const std::vector<T> &values) {
    std::vector<float> wide(values.size());
    for (size_t i = 0; i < values.size(); i++)
        wide[i] = float(values[i]);
    return wide;
}

int main(int argc, char **argv) {
    bench::Run run(argc, argv, "half");
    const int n = (1 << 17) + 19, rows = 1500, columns = 96, halves = rows * columns;
    static_assert(halves <= 2 * n, "the matrix is a part of x");
    dim3 block(256), grid(bench::cover(n, 256)), row_grid(bench::cover(rows, 256));
    bench::Buffer<__half> hx(2 * n), hy(2 * n), hz(2 * n), hout(2 * n), hrow(rows);
    bench::Buffer<__nv_bfloat16> bx(2 * n), by(2 * n), bz(2 * n), bout(2 * n);
    bench::Buffer<float> fx(n), fy(n), fz(n), fout(n), fcopy(n);
    bench::Buffer<double> dx(n), dy(n), dz(n), dout(n);
    for (int seed = 0; seed < run.seeds(); seed++) {
        bench::Random random(seed, 0);
        std::vector<float> x(2 * n), y(2 * n), z(2 * n);
        for (int i = 0; i < 2 * n; i++) {
            x[i] = random.uniform();
            y[i] = random.uniform();
            z[i] = random.uniform();
        }
        std::vector<__half> a(2 * n), b(2 * n), c(2 * n);
        std::vector<__nv_bfloat16> p(2 * n), q(2 * n), r(2 * n);
        std::vector<double> u(n), v(n), w(n), want_half(2 * n), want_bfloat(2 * n), want_float(n), want_row(rows, 0.0);
        for (int i = 0; i < 2 * n; i++) {
            a[i] = __float2half(x[i]);
            b[i] = __float2half(y[i]);
            c[i] = __float2half(z[i]);
            p[i] = __float2bfloat16(x[i]);
            q[i] = __float2bfloat16(y[i]);
            r[i] = __float2bfloat16(z[i]);
            want_half[i] = double(float(a[i])) * float(b[i]) + float(c[i]);
            want_bfloat[i] = double(float(p[i])) * float(q[i]) - float(r[i]);
        }
        for (int i = 0; i < n; i++) {
            u[i] = x[i] * 1.0000001;
            v[i] = y[i] * 1.0000001;
            w[i] = z[i] * 1.0000001;
            want_float[i] = double(x[i]) * y[i] + z[i];
        }
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < columns; i++)
                want_row[row] += double(float(a[row * columns + i])) * float(b[i]);
        x.resize(n);
        y.resize(n);
        z.resize(n);
        hx.set(a), hy.set(b), hz.set(c), bx.set(p), by.set(q), bz.set(r);
        fx.set(x), fy.set(y), fz.set(z), dx.set(u), dy.set(v), dz.set(w);
        hout.poison(), hrow.poison(), bout.poison(), fout.poison(), dout.poison();

        run.launch("pairs_half2", grid, block, {12ull * n, 4ull * n}, [&] {
            pairs_half2<<<grid, block>>>((__half2 *)(__half *)hx, (__half2 *)(__half *)hy, (__half2 *)(__half *)hz,
                                         (__half2 *)(__half *)hout, n);
        });
        run.launch("pairs_bfloat162", grid, block, {12ull * n, 4ull * n}, [&] {
            pairs_bfloat162<<<grid, block>>>(
                (__nv_bfloat162 *)(__nv_bfloat16 *)bx, (__nv_bfloat162 *)(__nv_bfloat16 *)by,
                (__nv_bfloat162 *)(__nv_bfloat16 *)bz, (__nv_bfloat162 *)(__nv_bfloat16 *)bout, n);
        });
        run.launch("dot_half", row_grid, block, {4ull * halves, 2ull * rows},
                   [&] { dot_half<<<row_grid, block>>>(hx, hy, hrow, rows, columns); });
        run.launch("pairs_float", grid, block, {12ull * n, 4ull * n},
                   [&] { pairs_float<<<grid, block>>>(fx, fy, fz, fout, n); });
        run.near("half", widen(hout.get()), want_half, 2e-3);
        run.near("bfloat16", widen(bout.get()), want_bfloat, 2e-2);
        run.near("dot", widen(hrow.get()), want_row, 0.1);
        run.near("float", fout.get(), want_float, 1e-6);
        run.output(hout.get());
        run.output(bout.get());
        run.output(hrow.get());
        run.output(fout.get());

        fout.poison(), fcopy.poison();
        run.launch("pairs_double", grid, block, {24ull * n, 8ull * n},
                   [&] { pairs_double<<<grid, block>>>(dx, dy, dz, dout, n); });
        run.launch("pairs_around_memory", grid, block, {12ull * n, 8ull * n},
                   [&] { pairs_around_memory<<<grid, block>>>(fx, fy, fz, fout, fcopy, n); });
        std::vector<double> want_double(n);
        for (int i = 0; i < n; i++)
            want_double[i] = u[i] * v[i] - w[i];
        run.near("double", dout.get(), want_double, 1e-14);
        run.near("around memory", fout.get(), want_float, 1e-6);
        run.same("copy", fcopy.get(), z);
        run.output(dout.get());
        run.output(fout.get());
        run.end_seed();
    }
    return run.finish();
}
