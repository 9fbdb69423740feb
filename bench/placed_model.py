"""What the threads of ``workloads/placed.cu`` do, by the source alone: for the verdicts, and for the program's inputs.

Nothing here knows of Neutrino. Words are of 32 bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).parent / "workloads" / "placed.cu"
LANES = 32
TABLE = 256
"""Words of the table that every kernel takes."""
_WORD = 0xFFFFFFFF
Words = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(frozen=True)
class Shape:
    """A launch's geometry. threads: those with an element; the others return at once."""

    grid: int
    block: int
    threads: int

    @property
    def warps(self) -> int:
        """How many warps a block of this launch has."""
        return -(-self.block // LANES)

    def place(self, thread: int) -> tuple[int, int, int]:
        """The block, warp and lane of a thread, by its number in the launch."""
        return thread // self.block, thread % self.block // LANES, thread % self.block % LANES


LARGE = Shape(31, 128, 31 * 128 - 21)
SMALL = Shape(3, 80, 3 * 80 - 7)
"""Half a warp at the end of each block."""
FULL = Shape(2, 80, 2 * 80)


SHARED = 32 << 10
"""Bytes of dynamic shared memory that launches ask for, so that few blocks fit a multiprocessor, with a probe's
registers and without: a twin of which fewer fit than of its original would not run."""


@dataclass(frozen=True)
class Launch:
    """One launch. seed: of its inputs. shared: bytes of dynamic shared memory, of which nothing is used."""

    kernel: str
    seed: int
    shape: Shape
    shared: int = SHARED


@dataclass(frozen=True)
class Case:
    """A run of the program. probes: the file's name in ``probes/``. launches: one after another.

    build: how the kernels are compiled, by its name in ``placed.BUILDS``; for a GPU only where it is not the usual one.
    """

    name: str
    probes: str
    launches: tuple[Launch, ...]
    build: str = "usual"


CASES = (
    Case("counts", "placed_counts", (
        Launch("calls", 1, LARGE), Launch("calls", 2, LARGE), Launch("bursts", 3, LARGE), Launch("descend", 4, LARGE),
    )),
    Case("recursion", "placed_recursion", (Launch("descend", 5, LARGE), Launch("descend", 6, LARGE))),
    Case("lines", "placed_lines", (Launch("inlined", 7, LARGE), Launch("inlined", 8, LARGE))),
    Case("records", "placed_records", (Launch("calls", 9, SMALL), Launch("calls", 10, SMALL))),
    Case("guards", "placed_guards", (Launch("guarded", 14, FULL), Launch("guarded", 15, FULL))),
    Case("guards_reaching", "placed_guards_reaching", (Launch("guarded", 16, FULL), Launch("guarded", 17, FULL))),
    Case("lanes", "placed_lanes", (Launch("lanes", 18, FULL), Launch("lanes", 19, FULL))),
    Case("line_lanes", "placed_line_lanes", (Launch("lanes", 20, FULL), Launch("lanes", 21, FULL))),
    Case("counts_less", "placed_counts", (Launch("calls", 51, LARGE), Launch("bursts", 52, LARGE)), "less"),
    Case("lanes_less", "placed_lanes", (Launch("lanes", 53, FULL),), "less"),
    Case("counts_ptx", "placed_counts", (Launch("calls", 54, LARGE), Launch("bursts", 55, LARGE)), "ptx"),
    Case("lanes_ptx", "placed_lanes", (Launch("lanes", 56, FULL),), "ptx"),
)  # fmt: skip
"""What runs in one context."""


def cases(*, embedded: bool) -> tuple[Case, ...]:
    """Return the test cases that run on a GPU, or on the embedded device (an emulated GPU)."""
    return tuple(case for case in CASES if not embedded or case.build == "usual")


CONTEXTS = Case("contexts", "placed_counts", tuple(Launch("calls", seed, LARGE, 0) for seed in range(31, 37)))
"""Its launches go to two contexts by pairs: of two devices where there are two, else of one. Without shared memory:
they take the twin under a register cap."""
CHILD = Case("child", "placed_counts", (Launch("calls", 41, LARGE), Launch("calls", 42, LARGE)))
"""What a process does that the program forks, and that executes the program anew."""


def lines() -> dict[str, int]:
    """Return the numbers of those lines of placed.cu that probes name, by their names."""
    found = {}
    for number, line in enumerate(SOURCE.read_text().splitlines(), 1):
        if match := re.search(r"// line: ([A-Z]+)$", line):
            found[match[1]] = number
    return found


def inputs(launch: Launch) -> tuple[Words, Words]:
    """Compute the inputs of a launch from its seed: the table that all threads read, and an element x for each thread.
    """
    words = _random(launch.seed, TABLE + launch.shape.grid * launch.shape.block)
    return words[:TABLE], words[TABLE:]


def _random(seed: int, count: int) -> Words:
    """``count`` pseudo-random 32-bit words, the same for the same seed on every machine."""
    # splitmix64, the same on every machine, which NumPy's own generators do not promise.
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed << 32)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ z >> np.uint64(shift)) * np.uint64(factor)
    return ((z ^ z >> np.uint64(31)) >> np.uint64(32)).astype(np.uint32)


@dataclass
class Thread:
    """What one thread does. loads of weigh: (index, value, entry); sums: of its sad, three inputs and the result.

    entered: calls by function. others: what else the kernel does, by the name of the line.
    """

    out: int = 0
    entered: dict[str, int] = field(default_factory=lambda: {"weigh": 0, "twice": 0, "depth": 0})
    loads: list[tuple[int, int, int]] = field(default_factory=list)
    sums: list[tuple[int, int, int, int]] = field(default_factory=list)
    others: list[tuple[str, int]] = field(default_factory=list)


def sad(a: int, b: int, c: int) -> int:
    """What the PTX instruction ``sad`` gives: the distance of a and b, plus c, in 32 bits."""
    return (abs(a - b) + c) & _WORD


class Kernels:
    """The kernels on one table, a thread at a time."""

    def __init__(self, table: Words) -> None:
        """Set up a model of the test kernels, a thread at a time. table: TABLE words, which the kernels read."""
        self.table = [int(word) for word in table]

    def run(self, kernel: str, x: int, lane: int) -> Thread:
        """Compute what one thread of a kernel does with its element x, in a lane of its warp: loads, calls, and result.
        """
        thread = Thread()
        kernels: Mapping[str, Any] = {
            "calls": self._calls, "descend": self._descend, "inlined": self._inlined, "lanes": self._lanes,
            "guarded": self._guarded, "bursts": self._bursts,
        }  # fmt: skip
        thread.out = kernels[kernel](thread, x, lane) & _WORD
        return thread

    def _weigh(self, thread: Thread, x: int, turns: int) -> int:
        """The device function ``weigh`` of placed.cu: loads and adds, ``turns`` times, each noted in thread."""
        thread.entered["weigh"] += 1
        total = x
        for k in range(turns):
            index = (x + k) & 255
            value = self.table[index]
            thread.loads.append((index, value, thread.entered["weigh"]))
            result = sad(total, value, k)
            thread.sums.append((total, value, k, result))
            total = result
        return total

    def _twice(self, thread: Thread, x: int) -> int:
        """The device function ``twice`` of placed.cu, which calls ``weigh`` two times.

        What it does is noted in ``thread``; it returns what the C++ does.
        """
        thread.entered["twice"] += 1
        first = self._weigh(thread, x ^ 0x5A, x & 3)
        return first + 7 * self._weigh(thread, (x + 1) & _WORD, 2)

    def _calls(self, thread: Thread, x: int, lane: int) -> int:
        """The kernel ``calls`` of placed.cu: calls device functions from several places, as often as x says.

        What it does is noted in ``thread``; it returns what the C++ does.
        """
        result = self._weigh(thread, x, x & 7)
        if x % 3 == 0:
            result ^= self._weigh(thread, result, 3)
        if x % 5 == 0:
            result += self._twice(thread, x)
        return result

    def _depth(self, thread: Thread, n: int) -> int:
        """The recursive device function ``depth`` of placed.cu, n calls below the first.

        What it does is noted in ``thread``; it returns what the C++ does.
        """
        thread.entered["depth"] += 1
        value = self.table[n & 255]
        thread.loads.append((n & 255, value, thread.entered["depth"]))
        if n == 0:
            return value
        return ((self._depth(thread, n - 1) * 3) & _WORD) ^ value

    def _descend(self, thread: Thread, x: int, lane: int) -> int:
        """The kernel ``descend`` of placed.cu: a recursion whose depth x says.

        What it does is noted in ``thread``; it returns what the C++ does.
        """
        return self._depth(thread, x & 15)

    def _inlined(self, thread: Thread, x: int, lane: int) -> int:
        """The kernel ``inlined`` of placed.cu: what runs at each of its named lines, in a loop and inlined twice.

        What it does is noted in ``thread``; it returns what the C++ does.
        """
        total = x
        for k in range(x & 7):
            total = sad(total, k, 11)
            thread.others.append(("FOLDED", total))
            total = sad(total, x, 12)
            thread.others.append(("FIRST", total))
            total = sad(x, total, 13)
            thread.others.append(("LAST", total))
        if x & 1:
            value = self.table[x & 255]
            thread.others.append(("ONCE", x & 255))
            total = sad(total, value, 11)
            thread.others.append(("FOLDED", total))
        return total

    def _lanes(self, thread: Thread, x: int, lane: int) -> int:
        """The kernel ``lanes`` of placed.cu: lines to which only some lanes of a warp come.

        What it does is noted in ``thread``; it returns what the C++ does.
        """
        def at(line: str, a: int, b: int, c: int) -> int:
            """Compute the instruction at a named line, note its result, and return it."""
            result = sad(a, b, c)
            thread.others.append((line, result))
            return result

        total = at("WHOLE", x, lane, 1)
        if lane % 4 == 0:
            total = at("QUARTER", total, x, 2)
        elif lane % 4 == 1:
            total = at("SECOND", x, total, 3)
        if lane & 2:
            total = at("CALLED", total, x, 6)
        for _ in range(x & 3):
            total = at("TURN", total, x, 4)
        return at("AGAIN", total, lane, 5)

    def _guarded(self, thread: Thread, x: int, lane: int) -> int:
        """The kernel ``guarded`` of placed.cu: instructions that a predicate (@p) lets only some lanes run.

        What it does is noted in ``thread``; it returns what the C++ does.
        """
        low = x & 31
        total = sad(x, low, lane) if low < lane else x
        thread.others.append(("SAD", total))
        value = lane if low < lane else self.table[x & 255]
        thread.others.append(("VALUE", value))
        return total + value

    def _bursts(self, thread: Thread, x: int, lane: int) -> int:
        """The kernel ``bursts`` of placed.cu: a seventh of the threads loop far longer than the others.

        What it does is noted in ``thread``; it returns what the C++ does.
        """
        return self._weigh(thread, x, 70 + (x & 63) if x % 7 == 0 else x & 3)


def threads(launch: Launch) -> list[Thread | None]:
    """Compute what every thread of a launch does, by the source; None for threads without an element, which return at
    once."""
    table, x = inputs(launch)
    kernels = Kernels(table)
    shape = launch.shape
    return [
        kernels.run(launch.kernel, int(x[i]), shape.place(i)[2]) if i < shape.threads else None
        for i in range(shape.grid * shape.block)
    ]


def output(launch: Launch, ran: list[Thread | None]) -> Words:
    """Compute the output array that a kernel leaves, a word a thread; it held ones before. ran: as ``threads`` returns
    it."""
    return np.array([_WORD if thread is None else thread.out for thread in ran], np.uint32)
