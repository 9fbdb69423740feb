"""A body's text in which nothing is left to ptxas to fuse: each product either rounds, or is part of an ``fma``.

``mul.f32`` may be fused with an addition, ``mul.rn.f32`` may not (PTX ISA, "Floating Point Instructions: mul"). So text
whose products all round, and whose sums are ``fma.rn`` where ptxas fused them, says by itself what comes out, whatever
code is put between. Where ptxas makes the same machine code of it as of the text as it was, it says what that computes.

The factors of a product that is fused are kept in registers of their own, as they were there: the fused instruction
stands where the sum stood, and the program may have written the factors' registers anew in between.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neutrino.ptx.analysis.contraction import FLOAT_TYPES
from neutrino.ptx.isa.instruction import REGISTER
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body, Declaration

_OPERATION = re.compile(
    rf"(?P<kind>mul|add|sub)(?P<modifiers>(?:\.ftz)?(?:\.sat)?)\.(?P<type>{FLOAT_TYPES})\Z", re.ASCII
)
_NUMBER = re.compile(r"0[fFdD][0-9A-Fa-f]+\Z")
_BITS = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f64": 64, "f32x2": 64}
_MOVES = {"f32": "mov.f32", "f64": "mov.f64"}
_FACTORS = ("a", "b")


class UnpinnableError(Exception):
    """A fusion that cannot be written down."""


@dataclass(frozen=True)
class Operation:
    """An unrounded product, sum or difference. start, end: from its guard to the end of its semicolon.

    guard: with ``@`` and the space after it, "" without one. modifiers: ``.ftz.sat``.
    """

    kind: str
    modifiers: str
    type: str
    guard: str
    operands: tuple[str, ...]
    start: int
    end: int

    @property
    def is_product(self) -> bool:
        return self.kind == "mul"

    @property
    def words(self) -> tuple[object, ...]:
        """All but where it stands."""
        return self.kind, self.modifiers, self.type, "".join(self.guard.split()), self.operands


def operations(body: Body) -> list[Operation]:
    """Those of a body, in text order: the number of one is its place there."""
    kinds = {opcode: match for opcode in body.opcodes if (match := _OPERATION.match(opcode.text)) is not None}
    found = []
    for statement in map(body.statement, body.where(kinds.keys())):
        if statement.mnemonic is None or statement.instruction is None:
            continue
        kind, modifiers, type_ = kinds[statement.mnemonic].group("kind", "modifiers", "type")
        operands = statement.instruction.operands
        found.append(Operation(kind, modifiers, type_, statement.guard or "", operands, statement.start, statement.end))
    return found


def apart(text: str, found: Sequence[Operation]) -> str:
    """The text with each of the operations in lines of its own; they begin at the lines that ``lines`` gives."""
    pieces, at = [], 0
    for operation in found:
        pieces += [text[at : operation.start], "\n", text[operation.start : operation.end], "\n"]
        at = operation.end
    return "".join([*pieces, text[at:]])


class Definitions:
    """Which operations write the registers of a body that sums read."""

    def __init__(self, body: Body, found: Sequence[Operation]) -> None:
        self._body = body
        starts = {operation.start: number for number, operation in enumerate(found)}
        # By register: where it is written, whether always, and by which operation.
        self._writers: dict[str, list[tuple[int, bool, int | None]]] = {}
        self._edges: list[int] = []
        labelled = {label.before for label in body.labels}
        for statement in body:
            start, instruction = statement.start, statement.instruction
            opcode = statement.mnemonic
            if statement.index in labelled or (opcode is not None and (opcode.ends_block or opcode.flow is Flow.CALL)):
                self._edges.append(start)
            for name in instruction.written if instruction is not None else ():
                always = statement.guard is None
                self._writers.setdefault(name, []).append((start, always, starts.get(start)))

    def writers(self, name: str, position: int) -> list[int | None]:
        """The numbers of the operations that may have written what a register holds at a position, None for each other
        instruction: the last one before it where nothing comes in from elsewhere in between, else all."""
        declared = self.declaration(name, position)
        all_of_it = [entry for entry in self._writers.get(name, ()) if self.declaration(name, entry[0]) == declared]
        before = [entry for entry in all_of_it if entry[0] < position]
        if before and before[-1][1]:
            edge = bisect_left(self._edges, before[-1][0] + 1)
            if edge == len(self._edges) or self._edges[edge] > position:
                return [before[-1][2]]
        return [number for _, _, number in all_of_it]

    def declaration(self, name: str, position: int) -> Declaration | None:
        """As ``Body.declaration``."""
        return self._body.declaration(name, position)


def candidates(found: Sequence[Operation], definitions: Definitions, number: int) -> list[int]:
    """Which of a sum's operands hold nothing but products that it may be fused with: 0, 1 or both."""
    total = found[number]
    fitting = []
    for place, operand in enumerate(total.operands[1:3]):
        if not REGISTER.fullmatch(operand):
            continue
        writers = definitions.writers(operand, total.start)
        products = [found[writer] for writer in writers if writer is not None]
        if (
            writers
            and len(products) == len(writers)
            and all(
                product.is_product
                and product.type == total.type
                and product.modifiers == total.modifiers.replace(".sat", "")
                for product in products
            )
        ):
            fitting.append(place)
    return fitting


def pinned(body: Body, found: Sequence[Operation], fused: Mapping[int, int], prefix: str) -> list[tuple[int, int, str]]:
    """The edits (start, end, new text) that pin a body.

    fused: numbers of the sums that are fused, and which of their operands the product is. prefix: of the registers that
    it takes, which nothing else in the text begins with. Raises UnpinnableError.
    """
    definitions = Definitions(body, found)
    kept: dict[tuple[str, Declaration | None], str] = {}
    declarations = []
    of_product: dict[int, str] = {}
    for number, place in fused.items():
        total = found[number]
        if place not in candidates(found, definitions, number):
            raise UnpinnableError(f"not every value of {total.operands[1 + place]} is a product")
        name = total.operands[1 + place]
        key = (name, definitions.declaration(name, total.start))
        if key not in kept:
            kept[key] = f"{prefix}{len(kept)}_"
            width = _BITS[total.type]
            declarations += [f".reg .b{width} {kept[key]}{part};" for part in (*_FACTORS, "n")]
        for writer in definitions.writers(name, total.start):
            if writer is not None:
                of_product[writer] = kept[key]
    edits = []
    if declarations:
        edits.append((body.start + 1, body.start + 1, "\n\t" + " ".join(declarations)))
    for number, operation in enumerate(found):
        if operation.is_product:
            edits.append((operation.start, operation.end, _rounding(operation, of_product.get(number))))
        elif number in fused:
            place = fused[number]
            name = operation.operands[1 + place]
            keeper = kept[name, definitions.declaration(name, operation.start)]
            edits.append((operation.start, operation.end, _fused(operation, place, keeper)))
    return edits


def _rounding(product: Operation, keeper: str | None) -> str:
    opcode = f"mul.rn{product.modifiers}.{product.type}"
    lines = [f"{product.guard}{opcode} {', '.join(product.operands)};"]
    if keeper is not None:
        move = _MOVES.get(product.type, f"mov.b{_BITS[product.type]}")
        lines[:0] = [
            f"{product.guard}{move} {keeper}{part}, {factor};"
            for part, factor in zip(_FACTORS, product.operands[1:], strict=True)
        ]
    return "\n\t".join(lines)


def _fused(total: Operation, place: int, keeper: str) -> str:
    result, *terms = total.operands
    other = terms[1 - place]
    factors = [f"{keeper}{part}" for part in _FACTORS]
    lines = []
    if total.kind == "sub":
        # a * b - c, or c - a * b.
        negated = other if place == 0 else factors[0]
        if place == 0 and _NUMBER.match(other):
            other = _negated(other)
        else:
            lines.append(f"{total.guard}neg.{total.type} {keeper}n, {negated};")
            if place == 0:
                other = f"{keeper}n"
            else:
                factors[0] = f"{keeper}n"
    opcode = f"fma.rn{total.modifiers}.{total.type}"
    lines.append(f"{total.guard}{opcode} {result}, {', '.join(factors)}, {other};")
    return "\n\t".join(lines)


def _negated(number: str) -> str:
    digits = number[2:]
    sign = 1 << (4 * len(digits) - 1)
    return f"{number[:2]}{int(digits, 16) ^ sign:0{len(digits)}X}"
