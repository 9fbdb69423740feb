"""The program of bench/rounding.py: runs kernels once each and prints the digests of what they wrote.

    python -m bench.rounding_program --out FILE.json IMAGE…        the kernels of rounding_kernels.py, in fatbins
    python -m bench.rounding_program --out FILE.json --cases NAME,NAME…      those of tests/kernels, by their files

An image is named as its family: ``dual.fatbin``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.device import DriverError, Gpu, run_on_gpu
from bench.rounding_kernels import BLOCK, BLOCKS, SLOTS, THREADS, TURNS, inputs, kernels
from tests.kernels.cases import cases

DIGITS = 10
"""Hexadecimal digits that are kept of a SHA-256."""


@dataclass(frozen=True)
class _Launch:
    kernel: str
    grid: tuple[int, int, int] = (BLOCKS, 1, 1)
    block: tuple[int, int, int] = (BLOCK, 1, 1)
    # So much that registers do not decide how many blocks fit: a twin with more of them is launched all the same.
    shared: int = 46 << 10


def _generated(gpu: Gpu, image: Path) -> Iterator[tuple[str, str]]:
    """Run the random kernels in an image, once each.

    image: a fatbin named as its family. Yields name and digest of the output.
    """
    fresh = np.full(SLOTS * THREADS, np.nan)
    with ExitStack() as held:
        module = held.enter_context(gpu.module(image.read_bytes()))
        pointers = [bytes(held.enter_context(gpu.memory(values))) for values in inputs()]
        out = held.enter_context(gpu.memory(fresh))
        for kernel in kernels():
            if kernel.family == image.stem:
                gpu.write(out, fresh)
                gpu.launch(module, _Launch(kernel.name), [*pointers, bytes(out), TURNS.to_bytes(4, "little")])
                yield kernel.name, hashlib.sha256(gpu.read(out, fresh).tobytes()).hexdigest()[:DIGITS]


def _of_cases(gpu: Gpu, files: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Run the kernels of tests/kernels whose files' names begin so. Yields name and digest of the outputs."""
    for case in (case for case in cases() if case.path.name.startswith(files)):
        digest = hashlib.sha256()
        for place, array in sorted(run_on_gpu(gpu, case).items()):
            if place in case.expected:
                digest.update(np.ascontiguousarray(array).tobytes())
        yield case.name, digest.hexdigest()[:DIGITS]


def main() -> int:
    """Run the kernels that the command line names, and write the digests.

    Returns 1 when the driver refused something.
    """
    parser = argparse.ArgumentParser(prog="bench.rounding_program")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", default="", help="how the files' names begin, with commas between")
    parser.add_argument("images", type=Path, nargs="*")
    options = parser.parse_args()
    gpu = Gpu()
    outputs: dict[str, str] = {}
    status = 0
    try:
        if options.cases:
            outputs.update(_of_cases(gpu, tuple(options.cases.split(","))))
        for image in options.images:
            outputs.update(_generated(gpu, image))
    except DriverError as error:
        print(error, file=sys.stderr)
        status = 1
    options.out.write_text(json.dumps({"outputs": outputs}))
    return status


if __name__ == "__main__":
    sys.exit(main())
