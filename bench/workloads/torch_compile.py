"""torch.compile: a fused element-wise kernel that Inductor writes in Triton and loads from a file."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch
from harness import Run

COUNT = 300_000


def fused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """relu(2 x + y), which PyTorch's compiler makes one kernel."""
    return torch.relu(x * 2 + y)


def main() -> int:
    """Launch the compiled function for each seed, check it against NumPy and write the report.

    Returns the exit status.
    """
    run = Run("torch_compile", partial(torch.cuda.Event, enable_timing=True), torch.cuda.Event.elapsed_time)
    compiled = torch.compile(fused)
    warm = torch.zeros(COUNT, device="cuda")
    # Compilation and the launches that it makes come before what is counted.
    compiled(warm, warm)
    torch.cuda.synchronize()
    for seed in range(run.seeds):
        random = np.random.default_rng(seed)
        left, right = (random.standard_normal(COUNT, dtype=np.float32) for _ in range(2))
        x, y = torch.from_numpy(left).cuda(), torch.from_numpy(right).cuda()
        results = []
        # 4 B of x and of y loaded, 4 B stored, for each element.
        run.launch(
            "triton_poi_*", None, None, (8 * COUNT, 4 * COUNT, 0, 0),
            lambda x=x, y=y, results=results: results.append(compiled(x, y)),
        )  # fmt: skip
        result = results[0].cpu().numpy()
        run.near("relu", result, np.maximum(2 * left.astype(np.float64) + right, 0), 1e-6, 1e-6)
        run.output(result)
        torch.cuda.synchronize()
        run.end_seed()
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
