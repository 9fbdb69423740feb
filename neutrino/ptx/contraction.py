"""Products that ptxas may fuse with the sum that reads them, and where nothing may come between the two.

ptxas contracts an unrounded ``mul`` with the unrounded ``add`` or ``sub`` that alone reads its product,
within one basic block. A predicated memory access or a branch between the two, or a second reader, ends that
and changes the result's last bits. Stretches are found generously: one too many only moves a store further
down.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from neutrino.ptx.instruction import REGISTER, read_instruction, split_operands

_TYPES = r"(?:bf16x2|bf16|f16x2|f16|f32x2|f32|f64)"
PRODUCT = re.compile(rf"mul(?:\.ftz)?(?:\.sat)?\.(?P<type>{_TYPES})\Z")
_ANY_PRODUCT = re.compile(rf"\bmul(?:\.ftz)?(?:\.sat)?\.{_TYPES}(?![\w.])")
_OPENING = re.compile(r"\A(?:\s*(?:[{}]|[A-Za-z_$%][\w$]*\s*:(?!:)))+", re.ASCII)
# A block ends at a label and at whatever may go elsewhere. Copies and changes of sign are folded before
# contraction.
_STEP = re.compile(
    r"(?P<edge>(?<=[;{}:\s])(?:bra|brx|ret|exit|trap)\b|[A-Za-z_$%][\w$]*\s*:(?!:)(?<!::))"
    rf"|(?<=[;{{}}:\s])(?:(?P<product>mul)|(?P<sum>add|sub)|(?P<same>neg|abs|mov))(?:\.ftz)?(?:\.sat)?"
    rf"\.(?P<type>{_TYPES}|b16|b32|b64)(?![\w.])(?P<operands>[^;]*);",
    re.ASCII,
)


@dataclass(frozen=True)
class Product:
    """A product that may be fused. start, end: its ``mul``'s opcode, and behind the last sum that reads
    it."""

    register: str
    start: int
    end: int


class Contractions:
    """The products of one body that may be fused. code: the module's blanked text; start, end: the body in
    it."""

    def __init__(self, code: str, start: int, end: int) -> None:
        self._code = code
        found: list[Product] = []
        if _ANY_PRODUCT.search(code, start, end):
            found = sorted(_products(code, start, end), key=lambda product: product.start)
        self._by_start = {product.start: product for product in found}
        self._by_register: dict[str, list[Product]] = {}
        self._spans: list[tuple[int, int]] = []
        for product in found:
            self._by_register.setdefault(product.register, []).append(product)
            if self._spans and product.start < self._spans[-1][1]:
                self._spans[-1] = (self._spans[-1][0], max(self._spans[-1][1], product.end))
            else:
                self._spans.append((product.start, product.end))

    def __bool__(self) -> bool:
        return bool(self._by_start)

    def at(self, position: int) -> Product | None:
        """The product of the instruction whose opcode is at a position."""
        return self._by_start.get(position)

    def open_product(self, register: str, position: int) -> Product | None:
        """The product that a register holds at a position, when it may be fused with a sum there or further
        down."""
        for product in reversed(self._by_register.get(register, ())):
            if product.start < position:
                holds = product.end > position and not self._overwritten(register, product.start, position)
                return product if holds else None
        return None

    def clear_of(self, position: int) -> int:
        """The first position from here on that no product spans."""
        at = bisect_right(self._spans, (position, 0)) - 1
        if at >= 0 and self._spans[at][0] < position < self._spans[at][1]:
            return self._spans[at][1]
        return position

    def _overwritten(self, register: str, start: int, end: int) -> bool:
        for statement in self._code[self._code.index(";", start) + 1 : end].split(";"):
            instruction = read_instruction(_OPENING.sub("", statement))
            if instruction is not None and register in instruction.written:
                return True
        return False


def has_product(code: str, start: int, end: int) -> bool:
    """Whether a body holds an unrounded product at all."""
    return _ANY_PRODUCT.search(code, start, end) is not None


def may_contract(code: str, start: int, end: int) -> bool:
    """Whether any unrounded product in a body can reach an unrounded sum, on whatever path.

    Where not, no inserted code can change how ptxas rounds.
    """
    if not _ANY_PRODUCT.search(code, start, end):
        return False
    steps = [
        (step, split_operands(step["operands"]))
        for step in _STEP.finditer(code, start, end)
        if step["edge"] is None
    ]
    products = {operands[0] for step, operands in steps if step["product"]}
    known = 0
    while len(products) != known:
        known = len(products)
        for step, operands in steps:
            if step["same"] and not products.isdisjoint(REGISTER.findall(",".join(operands[1:]))):
                products.update(REGISTER.findall(operands[0]))
    return any(step["sum"] and not products.isdisjoint(operands[1:]) for step, operands in steps)


def _products(code: str, start: int, end: int) -> list[Product]:
    found: dict[int, Product] = {}
    holding: dict[str, set[tuple[str, int]]] = {}
    for step in _STEP.finditer(code, start, end):
        if step["edge"]:
            holding.clear()
            continue
        operands = split_operands(step["operands"])
        if len(operands) < 2:
            continue
        written = operands[0]
        read = [operand for text in operands[1:] for operand in REGISTER.findall(text)]
        origins = {origin for operand in read for origin in holding.get(operand, ())}
        if step["product"]:
            holding[written] = {(written, step.start())}
            continue
        if step["sum"]:
            for register, origin in origins:
                found[origin] = Product(register, origin, step.end())
            holding.pop(written, None)
        elif origins:
            for register in REGISTER.findall(written):
                holding.setdefault(register, set()).update(origins)
        else:
            holding.pop(written, None)
    return list(found.values())
