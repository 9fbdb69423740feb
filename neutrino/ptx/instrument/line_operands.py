"""The helpers at a source line, which has a number and lanes, and no operands."""

from __future__ import annotations

from neutrino.ptx.instrument.guards import Guard
from neutrino.ptx.instrument.private_registers import Scratch
from neutrino.ptx.instrument.values import UnsupportedError, Value


class LineOperands:
    """Answers for the helpers at one place of a source line, as ``SiteOperands`` does at an instruction.

    number: for SITE. here: lines to put where the snippet goes, whose registers come from scratch.
    """

    def __init__(self, number: int | None, scratch: Scratch) -> None:
        self._number = number
        self._scratch = scratch
        self._lanes: Value | None = None
        self.here: list[str] = []

    def begin_snippet(self, guard: Guard | None) -> None:
        """Another snippet begins, which stands without a guard."""
        self._lanes = None

    def __call__(self, helper: str, element: str | None) -> Value:
        """The value of a helper. Raises UnsupportedError where it has none."""
        if helper == "SITE" and self._number is not None:
            return Value(str(self._number), None)
        if helper != "LANES":
            raise UnsupportedError(f"{helper} has no meaning at a source line")
        if self._lanes is None:
            self._lanes = Value(self._scratch.take("b32"), "b32")
            self.here.append(f"activemask.b32 {self._lanes.text};")
        return self._lanes
