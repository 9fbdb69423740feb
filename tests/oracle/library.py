"""The kernel of examples/patterns.ptx for the library of probes: loads by an index, in many patterns."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.oracle.bench import Kernel

BLOCKS, THREADS, TURNS, ELEMENTS = 3, 72, 3, 1024
"""The last warp of each block has 8 lanes."""

_TEXT = (Path(__file__).parents[2] / "examples" / "patterns.ptx").read_text()
_COUNT = BLOCKS * THREADS


def _kernel(name: str, indices: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> Kernel:
    random = np.random.default_rng(14)
    values = random.random((ELEMENTS, 2), np.float32)
    # Of which none is negative, except for some.
    values.sort(axis=1)
    values[:] = values[:, ::-1]
    values[random.integers(0, ELEMENTS, 60), 1] = 2
    arguments = (values, indices.astype(np.uint32), np.zeros(_COUNT, np.float32), np.zeros(8, np.uint32))
    # What an atomic returns depends on the order, and nothing reads it.
    return Kernel(name, _TEXT, "patterns", (BLOCKS, 1, 1), (THREADS, 1, 1), arguments)


def patterns() -> dict[str, Kernel]:
    """The kernel by the pattern in which its threads load."""
    each = np.arange(_COUNT * TURNS)
    random = np.random.default_rng(7)
    found = {
        "linear": each,
        "stride": each * 9 % ELEMENTS,
        "gather": random.permutation(ELEMENTS)[:_COUNT].repeat(TURNS),
        "broadcast": np.repeat(np.arange(TURNS), _COUNT),
        "random": random.integers(0, ELEMENTS, _COUNT * TURNS),
    }
    return {name: _kernel(name, indices) for name, indices in found.items()}
