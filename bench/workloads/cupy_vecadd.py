"""CuPy: an element-wise kernel of its own making and a raw kernel of ours.

The runner sets CUPY_COMPILE_WITH_PTX=1, so that CuPy hands PTX to the driver.
"""

from __future__ import annotations

import sys

import cupy
import numpy as np
from harness import Run

COUNT = 500_009

SOURCE = r"""
extern "C" __global__ void cupy_saxpy(float a, const float *x, float *y, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n)
        y[i] = a * x[i] + y[i];
}
"""


def main() -> int:
    """Launch both kernels for each seed, check them against NumPy and write the report. Returns the exit status."""
    run = Run("cupy_vecadd", cupy.cuda.Event, lambda a, b: float(cupy.cuda.get_elapsed_time(a, b)))
    saxpy = cupy.RawKernel(SOURCE, "cupy_saxpy")
    grid = (-(-COUNT // 256),)
    for seed in range(run.seeds):
        random = np.random.default_rng(seed)
        left, right = (random.standard_normal(COUNT, dtype=np.float32) for _ in range(2))
        x, y = cupy.asarray(left), cupy.asarray(right)
        total = cupy.asarray(np.full(COUNT, np.nan, dtype=np.float32))
        # 4 B of x and of y loaded, 4 B stored, for each element, by either kernel. CuPy chooses its own grid.
        asked = (8 * COUNT, 4 * COUNT, 0, 0)
        run.launch("cupy_add*", None, None, asked, lambda x=x, y=y, out=total: cupy.add(x, y, out=out))
        run.launch(
            "cupy_saxpy", grid, (256,), asked,
            lambda x=x, y=y: saxpy(grid, (256,), (np.float32(0.5), x, y, np.int32(COUNT))),
        )  # fmt: skip
        results = [cupy.asnumpy(total), cupy.asnumpy(y)]
        run.near("sum", results[0], left + right, 0.0, 0.0)
        run.near("saxpy", results[1], 0.5 * left.astype(np.float64) + right, 1e-6, 1e-6)
        for result in results:
            run.output(result)
        cupy.cuda.runtime.deviceSynchronize()
        run.end_seed()
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
