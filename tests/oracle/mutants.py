"""How many one-instruction changes of the kernels their references notice.

``python -m tests.oracle.mutants`` tries every one and prints the survivors by kind.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

from neutrino.emulator.device import Device
from neutrino.emulator.tracer import TracedStatement, Tracer
from neutrino.errors import DeviceFaultError, PtxRefusedError
from tests.kernels.cases import Case, cases
from tests.kernels.launch import run_case
from tests.oracle.equivalent import why_equivalent
from tests.oracle.mutations import Mutation, mutations

_SEEDS = (None, 1, 2, 3)
_MORE_SEEDS = (*_SEEDS, 4, 5, 6, 7, 8)
"""For what only another order of the warps shows: barriers that are gone."""
_MEMORY = 48 << 20
_SLACK = 20
"""A mutant may take this many times the original's steps before it counts as hanging."""


@dataclass(frozen=True)
class Mutant:
    """One mutation of one case."""

    case: str
    mutation: Mutation

    def __str__(self) -> str:
        return f"{self.case}: {self.mutation}"


@dataclass(frozen=True)
class Verdict:
    """what: ``wrong`` or ``fault``, noticed; ``survived``. Not to be noticed: ``refused`` (no PTX that means
    something), ``idle`` (no thread computes or touches anything else in this launch), ``equivalent`` (by hand)."""

    mutant: Mutant
    what: str
    detail: str


@cache
def _case(name: str) -> Case:
    return next(case for case in cases() if case.name == name)


@cache
def _text(name: str) -> str:
    return _case(name).path.read_text()


@cache
def _steps(name: str) -> int:
    case = _case(name)
    return run_case(case, Device(memory=_MEMORY))[1].steps


def all_mutants(names: Iterable[str] | None = None) -> Iterator[Mutant]:
    """Every mutant of every case."""
    wanted = None if names is None else set(names)
    for case in cases():
        if wanted is None or case.name in wanted:
            for mutation in mutations(_text(case.name), case.kernel):
                yield Mutant(case.name, mutation)


def try_mutant(mutant: Mutant) -> Verdict:
    """Run one, under the fixed schedule, then under random ones until something is noticed."""
    case = _case(mutant.case)
    text = mutant.mutation.apply(_text(case.name))
    limit = max(_steps(case.name) * _SLACK, 10_000)
    barrier = mutant.mutation.kind == "dropped" and mutant.mutation.statement.startswith("bar")
    for seed in _MORE_SEEDS if barrier else _SEEDS:
        try:
            results, _ = run_case(case, Device(memory=_MEMORY, seed=seed, step_limit=limit), text)
        except PtxRefusedError as error:
            return Verdict(mutant, "refused", str(error))
        except DeviceFaultError as error:
            return Verdict(mutant, "fault", str(error))
        wrong = case.mismatches(results)
        if wrong:
            return Verdict(mutant, "wrong", wrong[0])
    if _is_idle(case, mutant.mutation, text):
        return Verdict(mutant, "idle", "")
    reason = why_equivalent(case, mutant.mutation)
    return Verdict(mutant, "equivalent", reason) if reason else Verdict(mutant, "survived", "")


def _is_idle(case: Case, mutation: Mutation, text: str) -> bool:
    """Whether a mutation changes nothing in the launch: the statement never runs, or it does what it did before."""
    before = _history(case, None, mutation.line, mutation.statement)
    if not before:
        return not mutation.into or not _history(case, text, mutation.line, mutation.into)
    tells = re.match(r"(?:@!?%\w+ )?(?!atom|red|st|bar|cp|mbarrier)", mutation.statement)
    return tells is not None and before == _history(case, text, mutation.line, mutation.into)


def _history(case: Case, text: str | None, line: int, statement: str) -> list[bytes]:
    """Which threads run a statement, and what they compute and touch there."""

    def is_it(other: TracedStatement) -> bool:
        return other.line == line and _same(other.text, statement)

    tracer = Tracer(is_it, registers=True)
    run_case(case, Device(memory=_MEMORY), text, tracer)
    history = []
    for execution in tracer.executions:
        history.append(execution.threads.tobytes())
        history += [values.tobytes() for _, values in sorted(execution.after.items())]
        history += [access.addresses.tobytes() for access in execution.accesses]
    return history


def _same(one: str, other: str) -> bool:
    return "".join(one.rstrip(";").split()) == "".join(other.split())


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
