"""Operands of inserted code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neutrino.ptx.isa.scalars import TYPE_BYTES

FLOATING = frozenset({"f16", "bf16", "f16x2", "bf16x2", "f32", "f64", "f32x2"})
"""Register types that integer instructions do not take."""


def bits(register_type: str) -> int:
    """Bits of a register type without its dot; 0 for ``pred`` and for what is no scalar."""
    return TYPE_BYTES.get(register_type, 0) * 8


class UnsupportedError(Exception):
    """A twin cannot do what a probe asks for in this kernel; the message says what."""


@dataclass(frozen=True)
class Value:
    """An operand as PTX text. type: its register type, None for an immediate."""

    text: str
    type: str | None


Resolver = Callable[[str, str | None], Value]
"""(helper, element x/y/z/w or None) → its value at the site; raises UnsupportedError where it has none."""


def no_helpers(helper: str, element: str | None) -> Value:
    """The Resolver where no instruction is."""
    raise UnsupportedError(f"{helper} has no meaning at the kernel's entry and ends")
