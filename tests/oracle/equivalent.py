"""Mutants that no test can notice, each with the reason."""

from __future__ import annotations

from tests.oracle.mutations import Mutation

_BY_HAND: dict[tuple[str, str, str], str] = {}
"""(case, statement, what it became) → why nothing can differ."""


def why_equivalent(case: str, mutation: Mutation) -> str | None:
    """The reason why a mutant computes what its original computes; None if it may differ."""
    return _BY_HAND.get((case, mutation.statement, mutation.into))
