"""How many one-instruction changes of the kernels their references notice.

``python -m tests.oracle.mutants`` tries every one and prints the survivors by kind.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

from neutrino.emulator.device import Device
from neutrino.errors import DeviceFaultError, PtxRefusedError
from tests.kernels.cases import Case, cases
from tests.kernels.launch import run_case
from tests.oracle.equivalent import why_equivalent
from tests.oracle.mutations import Mutation, mutations

_SEEDS = (None, 1, 2, 3)
_MEMORY = 48 << 20
_SLACK = 20
"""A mutant may take this many times the original's steps before it counts as hanging."""


@dataclass(frozen=True)
class Mutant:
    """One mutation of one case. number: among all mutants, in order."""

    number: int
    case: str
    mutation: Mutation

    def __str__(self) -> str:
        return f"{self.case}: {self.mutation}"


@dataclass(frozen=True)
class Verdict:
    """what: ``wrong``, ``fault``, ``refused`` (no PTX that means something), ``equivalent``, or ``survived``."""

    mutant: Mutant
    what: str
    detail: str


@cache
def _case(name: str) -> Case:
    return next(case for case in cases() if case.name == name)


@cache
def _text(case: Case) -> str:
    return case.path.read_text()


@cache
def _steps(name: str) -> int:
    case = _case(name)
    return run_case(case, Device(memory=_MEMORY), _text(case))[1].steps


def all_mutants(names: Iterable[str] | None = None) -> Iterator[Mutant]:
    """Every mutant of every case."""
    wanted = None if names is None else set(names)
    number = 0
    for case in cases():
        for mutation, _ in mutations(_text(case), case.kernel):
            if wanted is None or case.name in wanted:
                yield Mutant(number, case.name, mutation)
            number += 1


def try_mutant(mutant: Mutant) -> Verdict:
    """Run one, under the fixed schedule, then under random ones until something is noticed."""
    case = _case(mutant.case)
    text = next(text for mutation, text in mutations(_text(case), case.kernel) if mutation == mutant.mutation)
    limit = max(_steps(case.name) * _SLACK, 10_000)
    for seed in _SEEDS:
        try:
            results, _ = run_case(case, Device(memory=_MEMORY, seed=seed, step_limit=limit), text)
        except PtxRefusedError as error:
            return Verdict(mutant, "refused", str(error))
        except DeviceFaultError as error:
            return Verdict(mutant, "fault", str(error))
        wrong = case.mismatches(results)
        if wrong:
            return Verdict(mutant, "wrong", wrong[0])
    reason = why_equivalent(mutant.case, mutant.mutation)
    return Verdict(mutant, "equivalent", reason) if reason else Verdict(mutant, "survived", "")


def try_all(mutants: Sequence[Mutant], workers: int = 2) -> Iterator[Verdict]:
    """Verdicts in order."""
    if workers == 1:
        yield from map(try_mutant, mutants)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(try_mutant, mutants, chunksize=8)


def noticed(verdicts: Iterable[Verdict]) -> tuple[int, int]:
    """Noticed ones, and those that there were to notice."""
    counts = Counter(verdict.what for verdict in verdicts)
    found = counts["wrong"] + counts["fault"]
    return found, found + counts["survived"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what survives. Exit status 1 below 95 %."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--every", type=int, default=1, help="try every Nth mutant")
    parser.add_argument("--case", action="append", help="of these cases only")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    start = time.monotonic()
    verdicts = list(try_all(list(all_mutants(options.case))[:: options.every], options.workers))
    found, total = noticed(verdicts)
    kinds = Counter(verdict.mutant.mutation.kind for verdict in verdicts)
    for kind in sorted(kinds):
        of_kind = [verdict for verdict in verdicts if verdict.mutant.mutation.kind == kind]
        some, all_of = noticed(of_kind)
        print(f"{kind}: {some} of {all_of} noticed")
        for verdict in of_kind:
            if verdict.what == "survived":
                print(f"    {verdict.mutant}")
    counts = Counter(verdict.what for verdict in verdicts)
    print(
        f"{found} of {total} noticed ({100 * found / max(total, 1):.1f} %); {counts['refused']} are no PTX, "
        f"{counts['equivalent']} equivalent; {time.monotonic() - start:.0f} s"
    )
    return 0 if found >= 0.95 * total else 1


if __name__ == "__main__":
    sys.exit(main())
