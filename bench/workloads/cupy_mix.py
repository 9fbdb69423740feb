"""A mix of what CuPy users call; `cupy_mix.py ROUNDS`.

Element-wise kernels, reductions, scans, raw and fused kernels, streams, a graph, and kernels of vendor libraries. The
runner decides by CUPY_COMPILE_WITH_PTX whether CuPy hands PTX to the driver, or machine code.
"""

from __future__ import annotations

import hashlib
import sys

import cupy
import numpy as np

COUNT = 200_004

SOURCE = r"""
template <typename T> __global__ void saxpy(T a, const T *x, T *y, int n) {
    for (int i = blockDim.x * blockIdx.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}
extern "C" __global__ void block_sum(const float *x, float *sums, int n) {
    __shared__ float part[256];
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int half = 128; half; half /= 2) {
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        sums[blockIdx.x] = part[0];
}
"""


@cupy.fuse()
def fused(x: cupy.ndarray, y: cupy.ndarray) -> cupy.ndarray:
    """Compute a formula on two arrays; CuPy compiles the function to one GPU kernel."""
    return cupy.sqrt(cupy.abs(x * y)) + cupy.tanh(x)


def main() -> None:
    """Run the mix for as many rounds as the command line says, and print a digest of all results."""
    module = cupy.RawModule(code=SOURCE, name_expressions=("saxpy<float>", "saxpy<double>"), options=("-std=c++17",))
    block_sum = module.get_function("block_sum")
    squares = cupy.ElementwiseKernel("T x, T y", "T z", "z = x * x + y", "squares")
    norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    digest = hashlib.sha256()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for seed in range(int(sys.argv[1])):
        random = np.random.default_rng(seed)
        x, y = (cupy.asarray(random.standard_normal(COUNT, dtype=np.float32)) for _ in range(2))
        cupy.cuda.Device().synchronize()
        outputs = []
        for stream in streams:
            with stream:
                z = y.copy()
                module.get_function("saxpy<float>")((64,), (256,), (np.float32(0.5), x, z, np.int32(COUNT)))
                wide = x.astype(cupy.float64)
                module.get_function("saxpy<double>")((64,), (256,), (np.float64(2), wide, wide, np.int32(COUNT)))
                sums = cupy.empty(-(-COUNT // 256), dtype=cupy.float32)
                block_sum((sums.size,), (256,), (x, sums, np.int32(COUNT)))
                outputs += [z, wide, sums, squares(x, y), norm(x), fused(x, y), cupy.cumsum(x > 0), cupy.sort(x)]
                outputs += [x.reshape(12, -1).mean(axis=1), cupy.where(x > 0, x, y), (x > 0).sum(), x[::3] + y[::3]]
        outputs += [x[:40_000].reshape(200, 200) @ y[:40_000].reshape(200, 200), cupy.fft.rfft(x[:4096])]
        # The same in a graph, replayed.
        total, stream = cupy.zeros_like(x), streams[0]
        squares(x, total)
        stream.synchronize()
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            module.get_function("saxpy<float>")((64,), (256,), (np.float32(0.25), x, total, np.int32(COUNT)))
            block_sum((sums.size,), (256,), (total, sums, np.int32(COUNT)))
            graph = stream.end_capture()
        for _ in range(5):
            graph.launch(stream)
        stream.synchronize()
        cupy.cuda.Device().synchronize()
        for output in (*outputs, total):
            digest.update(cupy.asnumpy(output).tobytes())
    print(f"result {digest.hexdigest()[:32]}")


if __name__ == "__main__":
    main()
