"""Which registers of a snippet may differ between the lanes of a wave."""

from __future__ import annotations

from collections.abc import Iterable, Set

from neutrino.ir.operands import Register, SiteOperand, Special
from neutrino.ir.statements import Collective, Reduction
from neutrino.probing.ir.structured import For, If, Save, Statement, While

VARYING = frozenset({
    Special.TID_X, Special.TID_Y, Special.TID_Z, Special.LANE, Special.LANEMASK_LT,
})  # fmt: skip
"""Values of the hardware that differ between the lanes of a wave."""
UNIFORM_OPERANDS = frozenset({"BYTES", "LANES", "SITE", "BLOCK", "HAS", "OPCODE", "PARAM"})
"""Values of a site that are the same in all lanes."""
_READS = ("sources", "source", "left", "right", "condition", "then", "otherwise", "operand", "address", "lane")
_OF_LANES = frozenset({Reduction.MATCH})
"""Reductions whose result is not the same in all lanes that execute them."""


def varying(
    statements: Iterable[Statement], vectors: Iterable[str], *, is_varying_operand: bool = True,
    uniform_operands: Set[str] = UNIFORM_OPERANDS,
) -> set[str]:  # fmt: skip
    """Return the names of the registers that may differ between lanes, of those that statements assign.

    vectors: those of which it is known. is_varying_operand: whether values of the site's instruction may,
    but for the uniform ones.
    """
    found = set(vectors)

    def differs(value: object) -> bool:
        if isinstance(value, Register):
            return value.name in found
        if isinstance(value, Special):
            return value in VARYING
        return isinstance(value, SiteOperand) and is_varying_operand and value.name not in uniform_operands

    def visit(rows: Iterable[Statement], *, apart: bool) -> None:
        for row in rows:
            if isinstance(row, If):
                visit((*row.then, *row.otherwise), apart=apart or differs(row.condition))
            elif isinstance(row, For):
                if apart:
                    found.add(row.variable.name)
                visit(row.body, apart=apart)
            elif isinstance(row, While):
                # Its test, too, is executed again by some of the lanes only.
                visit((*row.test, *row.body), apart=apart or differs(row.condition))
            elif not isinstance(row, Save):
                destination = getattr(row, "destination", None)
                if destination is None:
                    continue
                reads: list[object] = []
                for name in _READS:
                    value = getattr(row, name, ())
                    reads += value if isinstance(value, tuple) else [value]
                is_same = isinstance(row, Collective) and row.reduction not in _OF_LANES
                if apart or (not is_same and any(map(differs, reads))):
                    found.add(destination.name)

    rows = tuple(statements)
    while True:
        before = len(found)
        visit(rows, apart=False)
        if len(found) == before:
            return found
