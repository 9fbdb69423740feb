"""Predicates under which inserted code counts, put together without branches.

lines: what computes a predicate is appended to them.
"""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.ptx.instrument.private_registers import Take


@dataclass(frozen=True)
class Guard:
    """The predicate register under which inserted code counts, and whether it is negated."""

    register: str
    negated: bool

    @property
    def prefix(self) -> str:
        """``@%p `` or ``@!%p ``."""
        return f"@{'!' if self.negated else ''}{self.register} "


def both(register: str, negated: bool, guard: Guard, take: Take, lines: list[str]) -> str:
    """The predicate that a register, or what it is not, and a guard hold."""
    joined = take("pred")
    other = positive(guard, take, lines)
    if negated:
        lines.append(f"not.pred {joined}, {register};")
        register = joined
    lines.append(f"and.pred {joined}, {register}, {other};")
    return joined


def positive(guard: Guard, take: Take, lines: list[str]) -> str:
    """The predicate that a guard holds."""
    if not guard.negated:
        return guard.register
    name = take("pred")
    lines.append(f"not.pred {name}, {guard.register};")
    return name


def guarded(inside: str, guard: Guard | None, take: Take, lines: list[str]) -> str:
    """The predicate that a predicate holds and, where there is one, a guard."""
    if guard is None:
        return inside
    joined = take("pred")
    lines.append(f"and.pred {joined}, {inside}, {positive(guard, take, lines)};")
    return joined
