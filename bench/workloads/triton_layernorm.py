"""Layer normalisation of each row; mean and reciprocal deviation are kept, as for training."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch
import triton
import triton.language as tl
from harness import Run

ROWS, COLUMNS, BLOCK, WARPS, EPSILON = 1024, 2048, 2048, 8, 1e-5


@triton.jit
def layernorm_kernel(x, weight, bias, y, means, deviations, columns, epsilon, block: tl.constexpr):
    """Normalise a row (a program each) of ``columns`` elements; also store its mean and 1 / standard deviation."""
    row = tl.program_id(0)
    offsets = tl.arange(0, block)
    mask = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=mask, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(mask, values - mean, 0.0)
    deviation = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    tl.store(means + row, mean)
    tl.store(deviations + row, deviation)
    scale = tl.load(weight + offsets, mask=mask)
    shift = tl.load(bias + offsets, mask=mask)
    tl.store(y + row * columns + offsets, centred * deviation * scale + shift, mask=mask)


def main() -> int:
    """Launch the kernel for each seed, check it against NumPy and write the report. Returns the exit status."""
    run = Run("triton_layernorm", partial(torch.cuda.Event, enable_timing=True), torch.cuda.Event.elapsed_time)
    # Every program loads its row, the weights and the biases, and stores its row, a mean and a deviation, of
    # 4 B an element.
    loads = 4 * ROWS * 3 * COLUMNS
    stores = 4 * ROWS * (COLUMNS + 2)
    for seed in range(run.seeds):
        random = np.random.default_rng(seed)
        values = random.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        scale = random.standard_normal(COLUMNS, dtype=np.float32)
        shift = random.standard_normal(COLUMNS, dtype=np.float32)
        x, weight, bias = (torch.from_numpy(array).cuda() for array in (values, scale, shift))
        y = torch.from_numpy(np.full((ROWS, COLUMNS), np.nan, dtype=np.float32)).cuda()
        unwritten = np.full(ROWS, np.nan, dtype=np.float32)
        means, deviations = (torch.from_numpy(unwritten).cuda() for _ in range(2))
        arguments = (x, weight, bias, y, means, deviations, COLUMNS, EPSILON)
        if seed == 0:
            layernorm_kernel.warmup(*arguments, block=BLOCK, num_warps=WARPS, grid=(ROWS,))
        run.launch(
            "layernorm_kernel", (ROWS,), (32 * WARPS,), (loads, stores, 0, 0),
            lambda arguments=arguments: layernorm_kernel[(ROWS,)](*arguments, block=BLOCK, num_warps=WARPS),
        )  # fmt: skip
        results = [array.cpu().numpy() for array in (y, means, deviations)]
        wide = values.astype(np.float64)
        mean = wide.mean(axis=1)
        deviation = 1 / np.sqrt(wide.var(axis=1) + EPSILON)
        run.near("y", results[0], (wide - mean[:, None]) * deviation[:, None] * scale + shift, 1e-4, 1e-4)
        run.near("mean", results[1], mean, 1e-6, 1e-5)
        run.near("deviation", results[2], deviation, 1e-6, 1e-5)
        for result in results:
            run.output(result)
        torch.cuda.synchronize()
        run.end_seed()
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
