"""c = a + b: the smallest Triton program."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch
import triton
import triton.language as tl
from harness import Run

COUNT, BLOCK, WARPS = 1_000_000, 1024, 4


@triton.jit
def add_kernel(a, b, c, count, block: tl.constexpr):
    """c = a + b, of ``count`` elements, ``block`` in a program."""
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < count
    tl.store(c + offsets, tl.load(a + offsets, mask=mask) + tl.load(b + offsets, mask=mask), mask=mask)


def main() -> int:
    """Launch the kernel for each seed, check it against NumPy and write the report. Returns the exit status."""
    run = Run("triton_add", partial(torch.cuda.Event, enable_timing=True), torch.cuda.Event.elapsed_time)
    grid = (-(-COUNT // BLOCK),)
    for seed in range(run.seeds):
        random = np.random.default_rng(seed)
        left, right = (random.standard_normal(COUNT, dtype=np.float32) for _ in range(2))
        a, b = torch.from_numpy(left).cuda(), torch.from_numpy(right).cuda()
        c = torch.from_numpy(np.full(COUNT, np.nan, dtype=np.float32)).cuda()
        if seed == 0:
            add_kernel.warmup(a, b, c, COUNT, block=BLOCK, num_warps=WARPS, grid=grid)
        # 4 B of a and of b loaded, 4 B stored, for each element.
        run.launch(
            "add_kernel", grid, (32 * WARPS,), (8 * COUNT, 4 * COUNT, 0, 0),
            lambda a=a, b=b, c=c: add_kernel[grid](a, b, c, COUNT, block=BLOCK, num_warps=WARPS),
        )  # fmt: skip
        result = c.cpu().numpy()
        run.near("c", result, left + right, 0.0, 0.0)
        run.output(result)
        torch.cuda.synchronize()
        run.end_seed()
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
