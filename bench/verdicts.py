"""Verdicts on recorded results: what a check needs, and how they are run and printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

PROOFS = ("counts", "no-pair", "pinned", "lines")
"""What shows that a twin's arithmetic is its original's; docs/numerics.md."""


@dataclass(frozen=True)
class Verdict:
    """One recomputed answer. figure: what it rests on, or what is wrong. missed: what is wanted is not reached, though
    it is no worse than it was when that was accepted.
    """

    case: str
    good: bool
    figure: str
    missed: bool = False

    @property
    def word(self) -> str:
        """How a table marks this verdict: ok, missed or FAIL."""
        return "FAIL" if not self.good else "missed" if self.missed else "ok"


class Missed(str):
    """What a check returns where what is wanted is not reached, and what is accepted is."""

    __slots__ = ()


class BrokenError(Exception):
    """A bound is broken, or something is missing; the message says which."""


def need(holds: bool, message: str) -> None:
    """Raise BrokenError with a message, which becomes the verdict of the check that calls this, unless a condition
    holds."""
    if not holds:
        raise BrokenError(message)


def run_checks(checks: Sequence[tuple[str, Callable[[], str]]]) -> list[Verdict]:
    """Run checks, each with a title; return a verdict for each: good with the line that it returns, bad with what it
    raises."""
    verdicts = []
    for case, check in checks:
        try:
            figure = check()
            verdicts.append(Verdict(case, True, figure, isinstance(figure, Missed)))
        except BrokenError as fault:
            verdicts.append(Verdict(case, False, str(fault)))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            # Results that lack what they should have; the case is named, whatever form the lack takes.
            verdicts.append(Verdict(case, False, f"missing or malformed: {type(error).__name__}: {error}"))
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a table for people: a line each, marked, and how many are good."""
    width = max(len(verdict.case) for verdict in verdicts)
    lines = [f"{verdict.word:6} {verdict.case:{width}}  {verdict.figure}" for verdict in verdicts]
    missed = sum(verdict.word == "missed" for verdict in verdicts)
    said = f"{sum(verdict.word == 'ok' for verdict in verdicts)} of {len(verdicts)} verdicts are good"
    return "\n".join([*lines, said + (f", {missed} missed" if missed else "")])


def say(verdicts: Sequence[Verdict]) -> int:
    """Print verdicts. Returns the exit status: 1 when one is not good."""
    print(table(verdicts))
    return 0 if all(verdict.good for verdict in verdicts) else 1
