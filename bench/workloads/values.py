"""The program of bench.values, with CuPy: python3 values.py MODULE.ptx OUT.npz."""

from __future__ import annotations

import sys
from typing import Any

import cupy
import numpy as np

from bench.values import SHAPES, SHARED, active, inputs


def main(ptx: str, out: str) -> None:
    """Launch every shape once, and write the inputs' address and the outputs to an npz file."""
    kernel = cupy.RawModule(path=ptx).get_function("mixed")
    kept: dict[str, Any] = {}
    for index, (grid, block) in enumerate(SHAPES):
        count = active(grid, block)
        f, x, y = (cupy.asarray(array) for array in inputs(index, count))
        result, total = cupy.zeros(count, cupy.float16), cupy.zeros(count, cupy.float32)
        kernel(grid, block, (f, x, y, result, total, np.int32(count)), shared_mem=SHARED)
        cupy.cuda.runtime.deviceSynchronize()
        kept |= {f"f{index}": f.data.ptr, f"out{index}": cupy.asnumpy(result), f"total{index}": cupy.asnumpy(total)}
    np.savez(out, **kept)


if __name__ == "__main__":
    main(*sys.argv[1:])
