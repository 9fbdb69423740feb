"""Softmax of each row, one program a row, the row in one block."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch
import triton
import triton.language as tl
from harness import Run

ROWS, COLUMNS, BLOCK, WARPS = 768, 4000, 4096, 4


@triton.jit
def softmax_kernel(x, y, columns, block: tl.constexpr):
    """y = softmax of each row of x, of ``columns`` elements; a program a row, in a block of no fewer elements."""
    row = tl.program_id(0)
    offsets = tl.arange(0, block)
    mask = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=mask, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + offsets, values / tl.sum(values, axis=0), mask=mask)


def main() -> int:
    """Launch the kernel for each seed, check it against NumPy and write the report. Returns the exit status."""
    run = Run("triton_softmax", partial(torch.cuda.Event, enable_timing=True), torch.cuda.Event.elapsed_time)
    # Each unmasked element is loaded and stored once, 4 B each.
    asked = 4 * ROWS * COLUMNS
    for seed in range(run.seeds):
        values = 8 * np.random.default_rng(seed).standard_normal((ROWS, COLUMNS), dtype=np.float32)
        x = torch.from_numpy(values).cuda()
        y = torch.from_numpy(np.full((ROWS, COLUMNS), np.nan, dtype=np.float32)).cuda()
        if seed == 0:
            softmax_kernel.warmup(x, y, COLUMNS, block=BLOCK, num_warps=WARPS, grid=(ROWS,))
        run.launch(
            "softmax_kernel", (ROWS,), (32 * WARPS,), (asked, asked, 0, 0),
            lambda x=x, y=y: softmax_kernel[(ROWS,)](x, y, COLUMNS, block=BLOCK, num_warps=WARPS),
        )  # fmt: skip
        result = y.cpu().numpy()
        exponents = np.exp(values.astype(np.float64) - values.max(axis=1, keepdims=True))
        run.near("y", result, exponents / exponents.sum(axis=1, keepdims=True), 1e-7, 1e-5)
        run.output(result)
        torch.cuda.synchronize()
        run.end_seed()
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
