"""Probes that share a twin: each records what it records alone. ``python -m tests.net_of_pairs``.

All pairs of shipped probes in KERNELS (hours), and some triples; ``--random N`` takes, for each of N kernels of a
generator, combinations of shipped probes, under options, with probes in TOML and with more code that waits.
``tests/oracle/together.py`` says what is compared. Prints what differs; exit status 1 when something does.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

from neutrino.errors import DeviceFaultError, PtxRefusedError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.resources import shipped_probes
from neutrino.verification import load_probes
from tests.oracle.bench import Kernel
from tests.oracle.dense_kernels import dense
from tests.oracle.probes import ACCESSES, COUNTS, GROWING, SUMS, VALUES, VECTORS
from tests.oracle.test_matrix import ALL
from tests.oracle.test_unlikely import OF_WORDS
from tests.oracle.test_unlikely import PROBES as UNLIKELY
from tests.oracle.together import Place, Ran, RefusedError, differences

Defines = Mapping[str, int]
OPTIONS: Mapping[str, Sequence[Defines]] = {
    "coalescing": ({}, {"PER_SITE": 0}),
    "dmat": ({}, {"ACCESSES": 3}, {"BLOCKS": 2, "WARPS": 2}),
    "hot_lines": ({"SAMPLE": 1}, {"SAMPLE": 1, "LINE_BITS": 4}),
    "latency": ({"SAMPLE": 1}, {}, {"HISTOGRAM": 1}),
}
"""Values of constants that a shipped probe may be taken with; which saves hot_lines takes as a sample is not fixed."""
SHIPPED = tuple(sorted(shipped_probes()))
OTHERS = (*(probe.name for probe in (ACCESSES, COUNTS, GROWING, SUMS, VALUES, VECTORS)), *OF_WORDS[:-1])
"""Probes of tests, in TOML and in Python."""
WAITING = ("dmat", "nan_finder", "value_watch", "coalescing", "latency")
"""Of those shipped, probes whose code or saves wait for later sites."""
KERNELS = ("dense28", "dense38", "dense50", "half_pairs", "mma_f16", "calls", "switch_table")
_TRIPLES = 20


def kernel(name: str) -> Kernel:
    """A kernel of the tests by its name, or of the generator by its number."""
    if name in ALL:
        return ALL[name]
    return dense(int(name.strip("densfu")), fuses=name.startswith("fused"))


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    for probe in (ACCESSES, COUNTS, GROWING, SUMS, VALUES, VECTORS):
        Path(folder.name, f"{probe.name}.toml").write_text(f'platform = "cuda"\n{probe.text}')
    for name in OF_WORDS:
        head = "import neutrino.language as nl\nfrom neutrino import Map, probe\n"
        Path(folder.name, f"{name}.py").write_text(head + UNLIKELY[name])
    return folder


def loaded(names: Sequence[str], defines: Mapping[str, Defines]) -> ProbeSet:
    """Probes by their names. defines: constants, by probe."""
    found: dict[str, int] = {}
    for name in names:
        found |= defines.get(name, {})
    return _loaded(tuple(names), tuple(sorted(found.items())))


@cache
def _loaded(names: tuple[str, ...], defines: tuple[tuple[str, int], ...]) -> ProbeSet:
    paths = {Path(path).stem: str(path) for path in Path(_folder().name).iterdir()}
    return load_probes([paths.get(name, name) for name in names], defines=dict(defines))


class Net:
    """A kernel with combinations of probes. defines: constants, by probe."""

    def __init__(self, one: Kernel, defines: Mapping[str, Defines]) -> None:
        self._place = Place(one)
        self._defines = defines
        self._alone: dict[str, Ran | None] = {}
        self.refused: dict[tuple[str, ...], str] = {}
        """Combinations of which the kernel gets no twin, and why."""

    def alone(self, name: str) -> Ran | None:
        """What a probe records alone."""
        if name not in self._alone:
            self._alone[name] = self._place.run(loaded([name], self._defines))
        return self._alone[name]

    def faults(self, names: Sequence[str]) -> list[str]:
        """What is wrong with these probes together."""
        try:
            alone = [ran for name in names if (ran := self.alone(name)) is not None]
            together = self._place.run(loaded(names, self._defines))
        except RefusedError as error:
            self.refused[tuple(names)] = str(error)
            return []
        if together is None or not alone:
            return [] if together is None and not alone else ["sites are others"]
        return differences(together, alone, self._place.results)


def all_pairs(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Each two probes, by turns in this and in the other order."""
    return [pair if number % 2 else pair[::-1] for number, pair in enumerate(combinations(names, 2))]


def covering(names: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Combinations of so many probes, few, in which any two of them are together at least once."""
    open_pairs = {frozenset(pair) for pair in combinations(names, 2)}
    rows = []
    while open_pairs:
        row = sorted(min(open_pairs, key=sorted))
        while len(row) < size:
            others = [name for name in names if name not in row]
            row.append(max(others, key=lambda name: sum(frozenset((name, one)) in open_pairs for one in row)))
        open_pairs.difference_update(map(frozenset, combinations(row, 2)))
        rows.append(tuple(row))
    return rows


def some(chosen: random.Random, count: int) -> tuple[dict[str, Defines], list[tuple[str, ...]]]:
    """Draw combinations of six probes, and the constants of these."""
    mine = chosen.sample(SHIPPED, 4) + chosen.sample(WAITING, 1) + chosen.sample(OTHERS, 1)
    mine = list(dict.fromkeys(mine))
    defines = {name: chosen.choice(OPTIONS[name]) for name in mine if name in OPTIONS}
    if "hot_lines" in mine and "latency" in mine:
        defines["latency"] = OPTIONS["latency"][0]
    rows = [tuple(chosen.sample(mine, chosen.choice((2, 2, 3, 4)))) for _ in range(count)]
    return defines, list(dict.fromkeys(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.net_of_pairs", description=__doc__)
    parser.add_argument("--random", type=int, default=0, metavar="N", help="kernels of the generator")
    parser.add_argument("--first", type=int, default=1000, metavar="SEED", help="number of the first of them")
    parser.add_argument("--each", type=int, default=14, metavar="N", help="combinations for each of them")
    parser.add_argument("kernels", nargs="*", default=KERNELS, help="names")
    chosen = parser.parse_args(arguments)
    count = wrong = refused = 0
    if chosen.random:
        seeds = range(chosen.first, chosen.first + chosen.random)
        names = [f"{'fused' if seed % 2 else 'dense'}{seed}" for seed in seeds]
    else:
        names = list(chosen.kernels)
    for name in names:
        defines: Mapping[str, Defines] = {probe: options[0] for probe, options in OPTIONS.items()}
        drawn = random.Random(name)
        if chosen.random:
            defines, rows = some(drawn, chosen.each)
        else:
            rows = [*all_pairs(SHIPPED), *(tuple(drawn.sample(SHIPPED, 3)) for _ in range(_TRIPLES))]
        net = Net(kernel(name), defines)
        for row in rows:
            count += 1
            try:
                found = net.faults(row)
            except (DeviceFaultError, PtxRefusedError) as error:
                found = [f"{type(error).__name__}: {error}"]
            wrong += bool(found)
            constants = {probe: defines[probe] for probe in row if defines.get(probe)}
            for line in found:
                print(f"{name}: {' '.join(row)} {constants or ''}: {line}", flush=True)
        refused += len(net.refused)
        heading = f"{name}: {len(rows)} combinations, {wrong} differ so far"
        print(heading, *net.refused.items(), sep="\n  ", file=sys.stderr, flush=True)
    print(f"{count} combinations, {wrong} differ, {refused} have no twin")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
