"""Triton's kernels of the other workloads, each launched once: python3 triton_once.py --out FILE.json.

Writes {"outputs": {kernel: SHA-256 of what it wrote}}.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import torch
from triton_layernorm import layernorm_kernel
from triton_matmul import matmul_kernel
from triton_softmax import softmax_kernel

ROWS, COLUMNS, BLOCK = 96, 1000, 1024
M, N, K, TILE = 256, 384, 192, (128, 128, 64)


def _values(*shape: int) -> torch.Tensor:
    """Return an array of this shape, with the same numbers between -2 and 2 at every call."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.int64) * 2654435761 % 4096 / 1024 - 2).reshape(shape).float()


def main() -> int:
    """Launch every kernel once, and write digests of what they computed. Returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    outputs: dict[str, str] = {}

    def keep(name: str, result: torch.Tensor) -> None:
        """Keep a digest of what a kernel wrote."""
        outputs[name] = hashlib.sha256(result.cpu().view(torch.uint8).numpy().tobytes()).hexdigest()

    x = _values(ROWS, COLUMNS).cuda()
    y = torch.empty_like(x)
    softmax_kernel[(ROWS,)](x, y, COLUMNS, block=BLOCK, num_warps=4)
    keep("softmax", y)
    weight, bias = _values(COLUMNS).cuda(), _values(COLUMNS).cuda()
    means, deviations = torch.empty(ROWS, device="cuda"), torch.empty(ROWS, device="cuda")
    y = torch.empty_like(x)
    layernorm_kernel[(ROWS,)](x, weight, bias, y, means, deviations, COLUMNS, 1e-5, block=BLOCK, num_warps=8)
    keep("layernorm", y)
    for dtype in (torch.float16, torch.bfloat16):
        a, b = _values(M, K).to(dtype).cuda(), _values(K, N).to(dtype).cuda()
        c = torch.zeros(M, N, dtype=dtype, device="cuda")
        tile = dict(zip(("tile_m", "tile_n", "tile_k"), TILE, strict=True))
        matmul_kernel[(M // TILE[0], N // TILE[1])](a, b, c, M, N, K, **tile, num_warps=4, num_stages=3)
        keep(f"matmul_{str(dtype).removeprefix('torch.')}", c)
    torch.cuda.synchronize()
    out.write_text(json.dumps({"outputs": outputs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
