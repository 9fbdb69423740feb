"""C = A B in half precision and in bfloat16, tile by tile, with asynchronous copies and, on sm_90, wgmma."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch
import triton
import triton.language as tl
from harness import Run

M, N, K = 1024, 768, 512
TILE_M, TILE_N, TILE_K, WARPS, STAGES = 128, 128, 64, 4, 3


@triton.jit
def matmul_kernel(a, b, c, m, n, k, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr):
    """c = a b, of m x k and k x n elements. A program computes a tile of c, tile_m x tile_n, in steps of tile_k."""
    rows = tl.program_id(0) * tile_m + tl.arange(0, tile_m)
    columns = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    inner = tl.arange(0, tile_k)
    left = a + rows[:, None] * k + inner[None, :]
    right = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for _ in range(0, k, tile_k):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += tile_k
        right += tile_k * n
    result = total.to(c.dtype.element_ty)
    tl.store(c + rows[:, None] * n + columns[None, :], result)


def main() -> int:
    """Launch the kernel for each seed in both types, check it against NumPy and write the report.

    Returns the exit status.
    """
    run = Run("triton_matmul", partial(torch.cuda.Event, enable_timing=True), torch.cuda.Event.elapsed_time)
    grid = (M // TILE_M, N // TILE_N)
    # Of 2 B an element: every program copies TILE_M rows of A and TILE_N columns of B, asynchronously, and
    # stores its tile. The pipeline's last steps have nothing left to copy: their copies ask for 0 B or do not
    # run.
    copied = 2 * grid[0] * grid[1] * K * (TILE_M + TILE_N)
    stored = 2 * M * N
    for seed in range(run.seeds):
        random = np.random.default_rng(seed)
        left = random.standard_normal((M, K), dtype=np.float32)
        right = random.standard_normal((K, N), dtype=np.float32)
        for dtype in (torch.float16, torch.bfloat16):
            a = torch.from_numpy(left).to(dtype).cuda()
            b = torch.from_numpy(right).to(dtype).cuda()
            c = torch.from_numpy(np.full((M, N), np.nan, dtype=np.float32)).to(dtype).cuda()
            arguments = (a, b, c, M, N, K)
            options = {"tile_m": TILE_M, "tile_n": TILE_N, "tile_k": TILE_K, "num_warps": WARPS}
            options["num_stages"] = STAGES
            if seed == 0:
                matmul_kernel.warmup(*arguments, **options, grid=grid)
            run.launch(
                "matmul_kernel", grid, (32 * WARPS,), (0, stored, 0, copied),
                lambda arguments=arguments, options=options: matmul_kernel[grid](*arguments, **options),
            )  # fmt: skip
            result = c.cpu()
            want = a.cpu().double().numpy() @ b.cpu().double().numpy()
            run.near("c", result.float().numpy(), want, 0.5 if dtype == torch.bfloat16 else 0.1, 1e-2)
            run.output(result.view(torch.int16).numpy())
        torch.cuda.synchronize()
        run.end_seed()
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
