"""A mix of Numba's CUDA kernels; `numba_mix.py ROUNDS`. Numba compiles them to PTX, and links that in the process."""

from __future__ import annotations

import hashlib
import sys

import numpy as np

if not hasattr(np, "row_stack"):  # NumPy 2.5 has it no more, and numba-cuda 0.2x names it when it is imported
    np.row_stack = np.vstack
from numba import cuda, float32

COUNT = 200_004
BLOCK = 256


@cuda.jit
def saxpy(a, x, y):
    """Add a times x to y."""
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]


@cuda.jit
def block_sums(x, sums):
    """Sum each block's elements of x, in shared memory."""
    part = cuda.shared.array(BLOCK, float32)
    i = cuda.grid(1)
    thread = cuda.threadIdx.x
    part[thread] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    half = BLOCK // 2
    while half:
        if thread < half:
            part[thread] += part[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        sums[cuda.blockIdx.x] = part[0]


@cuda.jit
def histogram(x, counts):
    """Count the elements of x, which are from 0 to 1, in as many ranges as counts has elements."""
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, min(int(x[i] * counts.size), counts.size - 1), 1)


def main() -> None:
    """Run the mix for as many rounds as the command line says, and print a digest of all results."""
    digest = hashlib.sha256()
    blocks = -(-COUNT // BLOCK)
    for seed in range(int(sys.argv[1])):
        random = np.random.default_rng(seed)
        x, y = (cuda.to_device(random.random(COUNT, dtype=np.float32)) for _ in range(2))
        sums = cuda.device_array(blocks, dtype=np.float32)
        counts = cuda.to_device(np.zeros(64, dtype=np.int32))
        saxpy[blocks, BLOCK](np.float32(0.5), x, y)
        block_sums[blocks, BLOCK](y, sums)
        histogram[blocks, BLOCK](x, counts)
        for output in (y, sums, counts):
            digest.update(output.copy_to_host().tobytes())
    print(f"result {digest.hexdigest()[:32]}")


if __name__ == "__main__":
    main()
