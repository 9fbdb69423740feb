"""How fast the embedded device is: thread-instructions a second for each kernel of the tests.

``python -m bench.emulator [--seed N] [NAME …]``. The code of each kernel is generated before it is timed. A
thread-instruction is one instruction that one thread reached.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from neutrino.emulator.device import Device
from tests.kernels.cases import cases
from tests.kernels.model import Case

_REPEATS = 3


def measure(case: Case, seed: int | None) -> tuple[int, int, float]:
    """Time a test's kernel on the embedded device (an emulated GPU); return how much it executed and the fastest
    launch.

    Thread-instructions (instructions that a thread reached), basic blocks, and seconds. seed: of a random schedule of
    threads; None: the fixed one.
    """
    device = Device(seed=seed)
    module = device.load(case.path.read_text())
    function = module.functions[case.kernel]
    for name, values in case.constants.items():
        device.write(module.variables[name][0], values)
    best = float("inf")
    for _ in range(_REPEATS):
        arguments: list[Any] = []
        for argument in case.arguments:
            if isinstance(argument, np.ndarray):
                address = device.allocate(argument.nbytes)
                device.write(address, argument)
                arguments.append(address)
            else:
                arguments.append(argument)
        start = time.perf_counter()
        statistics = device.launch(function, case.grid, case.block, arguments, shared=case.shared)
        best = min(best, time.perf_counter() - start)
    return statistics.thread_instructions, statistics.steps, best


def main() -> None:
    """Print a line for each kernel, the slowest first, and one for all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="of a random schedule; without it the fixed one")
    parser.add_argument("names", nargs="*", help="of kernels; without any, all")
    options = parser.parse_args()
    rows = []
    for case in cases():
        if not options.names or case.name in options.names:
            rows.append((*measure(case, options.seed), case.name))
    print(f"{'kernel':34} {'instructions':>13} {'blocks':>7} {'ms':>8} {'M/s':>8}")
    for instructions, steps, seconds, name in sorted(rows, key=lambda row: row[0] / row[2]):
        print(f"{name:34} {instructions:13} {steps:7} {1e3 * seconds:8.2f} {instructions / seconds / 1e6:8.1f}")
    instructions = sum(row[0] for row in rows)
    seconds = sum(row[2] for row in rows)
    print(f"{'all':34} {instructions:13} {'':7} {1e3 * seconds:8.2f} {instructions / seconds / 1e6:8.1f}")


if __name__ == "__main__":
    main()
