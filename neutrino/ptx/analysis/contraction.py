"""Products that ptxas may fuse with the sum that reads them, and where nothing may come between the two.

ptxas contracts an unrounded ``mul`` with the unrounded ``add`` or ``sub`` that alone reads its product,
within one basic block. A predicated memory access or a branch between the two, or a second reader, ends that
and changes the result's last bits. Stretches are found generously: one too many only moves a store further
down.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from neutrino.ptx.isa.instruction import REGISTER, Instruction, Mnemonic
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body, Statement

FLOAT_TYPES = r"(?:bf16x2|bf16|f16x2|f16|f32x2|f32|f64)"
PRODUCT = re.compile(rf"mul(?:\.ftz)?(?:\.sat)?\.(?P<type>{FLOAT_TYPES})\Z")
# What tests/ptx/test_fusions.py has ptxas 13.0 show, for sm_75 to sm_120: of all instructions
# that it expands, these end with a multiplication that it fuses with an unrounded sum. None begins with a sum.
_HIDDEN_PRODUCT = re.compile(r"(?:div\.(?:full|approx)(?:\.ftz)?\.f32|rcp\.approx\.f32)\Z")
_SUM = re.compile(rf"(?:add|sub)(?:\.ftz)?(?:\.sat)?\.{FLOAT_TYPES}(?!\w)")
# What comes out of these is computed anew. A multiplication hands its factor on where the other is one.
_COMPUTES = re.compile(
    rf"(?:(?:add|sub)\.r[nzmp]\b|fma|mad|div|rcp|sqrt|rsqrt|sin|cos|lg2|ex2|tanh)\b"
    rf"(?=.*\.{FLOAT_TYPES}(?!\w))|(?:setp?|testp|\w*mma|tcgen05)\b"
)
_LOADS = frozenset({"ld", "ldu", "ldmatrix", "atom", "call"})
_STORES = frozenset({"st", "stmatrix", "atom", "red", "call"})
_COPIES = frozenset({"mov", "neg", "abs", "selp"})
_OWN_SPACES = ("global", "shared", "local", "param")
_ALL_MEMORY = frozenset({*(f"[{space}]" for space in _OWN_SPACES), "[]"})
"""Memory by its state space, among the names of registers; ``[]``: what generic addresses reach."""
# Copies and changes of sign are folded before contraction.
_STEP = re.compile(rf"(?:mul|add|sub|neg|abs|mov)(?:\.ftz)?(?:\.sat)?\.(?:{FLOAT_TYPES}|b16|b32|b64)\Z")


@dataclass(frozen=True)
class Product:
    """A product that may be fused. start, end: its ``mul``'s opcode, and the end of the last sum that reads
    it."""

    register: str
    start: int
    end: int


class Contractions:
    """The products of one body that may be fused."""

    def __init__(self, body: Body) -> None:
        self._body = body
        found: list[Product] = []
        if has_product(body):
            found = sorted(_products(body), key=lambda product: product.start)
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
        """Whether an instruction after the one at start, up to that at end, writes a register."""
        for index in range(self._body.index_at(start) + 1, self._body.index_at(end)):
            instruction = self._body.statement(index).instruction
            if instruction is not None and register in instruction.written:
                return True
        return False


def has_product(body: Body) -> bool:
    """Whether a body holds an unrounded product at all."""
    return any(_is_product(opcode) or _is_hidden_product(opcode) for opcode in body.opcodes)


def has_hidden_product(body: Body) -> bool:
    """Whether a body holds an instruction that ptxas expands to a product that it may fuse."""
    return any(map(_is_hidden_product, body.opcodes))


def may_contract(body: Body) -> bool:
    """Whether any unrounded product in a body can reach an unrounded sum, on whatever path.

    Where not, no inserted code can change how ptxas rounds.
    """
    return bool(sums_reached(body))


def sums_reached(body: Body, *, hidden_alone: bool = False) -> dict[int, int]:
    """The unrounded sums that the value of an unrounded product can reach, by position, and by how many operands.

    A value is followed by the names of registers, whatever the order of instructions, through all that may hand it on
    unchanged: moves and selections, bit operations, shuffles, multiplications by what may be one, and memory. The
    position is that of the statement, after its labels. hidden_alone: of products only those within an instruction
    that stands for several.
    """
    products = {
        opcode for opcode in body.opcodes if _is_hidden_product(opcode) or (_is_product(opcode) and not hidden_alone)
    }
    if not products or not any(map(_is_sum, body.opcodes)):
        return {}
    holding: set[str] = set()
    moves: list[_Move] = []
    # Where each name is a label for the first time.
    labels = {label.name: label.before for label in reversed(body.labels)}
    found: dict[int, int] = {}
    loops = False

    def follow(move: _Move) -> None:
        if not holding.isdisjoint(move.read):
            holding.update(move.written)
            if move.terms:
                found[move.position] = sum(not holding.isdisjoint(term) for term in move.terms)

    for statement, instruction in _instructions(body):
        if not instruction.operands:
            continue
        if instruction.mnemonic.flow is Flow.JUMP:
            target = labels.get(instruction.operands[0])
            loops = loops or statement.word == "brx" or (target is not None and target <= statement.index)
            continue
        if instruction.mnemonic in products:
            holding.update(instruction.written)
        move = _move(instruction, statement.start)
        if move is not None:
            moves.append(move)
            follow(move)
    known = -1
    while loops and len(holding) != known:
        known = len(holding)
        for move in moves:
            follow(move)
    return found


def _instructions(body: Body) -> Iterator[tuple[Statement, Instruction]]:
    for statement in body:
        instruction = statement.instruction
        if instruction is not None:
            yield statement, instruction


def loose_sums(body: Body) -> list[int]:
    """The unrounded sums that may be fused with one product or another, by position as of ``sums_reached``.

    Both operands may be products, and not the same one. Which of them is fused may differ from copy to copy of an
    unrolled loop, and with what else is there, while the numbers of fused and unfused instructions stay what they are.
    Values are followed through moves, changes of sign and selections, in any order of instructions.
    """
    if not has_product(body) or not any(map(_is_sum, body.opcodes)):
        return []
    holding: set[str] = set()
    copies: list[Instruction] = []
    sums: list[tuple[int, Instruction]] = []
    for statement, instruction in _instructions(body):
        opcode = instruction.mnemonic
        if _is_product(opcode) or _is_hidden_product(opcode):
            holding |= instruction.written
        elif _is_sum(opcode):
            sums.append((statement.start, instruction))
        elif instruction.parts[0] in _COPIES:
            copies.append(instruction)
    known = -1
    while len(holding) != known:
        known = len(holding)
        for instruction in copies:
            if not holding.isdisjoint(REGISTER.findall(",".join(instruction.sources))):
                holding |= instruction.written
    return [
        here
        for here, instruction in sums
        if sum(not holding.isdisjoint(REGISTER.findall(operand)) for operand in {*instruction.sources}) > 1
    ]


class _Move(NamedTuple):
    """Names that an instruction reads, and those that may then hold what they held. terms: by operand, of a sum."""

    position: int
    read: frozenset[str]
    written: frozenset[str]
    terms: tuple[frozenset[str], ...] = ()


def _move(instruction: Instruction, position: int) -> _Move | None:
    """What of its operands an instruction may hand on; None when nothing."""
    if _COMPUTES.match(instruction.opcode):
        return None
    terms = tuple(frozenset(REGISTER.findall(operand)) for operand in instruction.sources)
    read = frozenset().union(*terms)
    if _is_sum(instruction.mnemonic):
        return _Move(position, read, frozenset(), terms)
    kind, written = instruction.parts[0], instruction.written
    space = instruction.state_space
    memory = frozenset({f"[{space}]", "[]"}) if space in _OWN_SPACES else _ALL_MEMORY
    if kind in _LOADS and "nc" not in instruction.parts:
        read |= memory
    if kind in _STORES:
        read |= frozenset(name for operand in instruction.operands for name in REGISTER.findall(operand))
        # A load of a space reads what generic stores left, too.
        written |= {f"[{space}]"} if space in _OWN_SPACES else {"[]"}
    return _Move(position, read, written) if read and written else None


@functools.cache
def _is_product(opcode: Mnemonic) -> bool:
    return PRODUCT.match(opcode.text) is not None


@functools.cache
def _is_hidden_product(opcode: Mnemonic) -> bool:
    return _HIDDEN_PRODUCT.match(opcode.text) is not None


@functools.cache
def _is_sum(opcode: Mnemonic) -> bool:
    return _SUM.match(opcode.text) is not None


@functools.cache
def _is_step(opcode: Mnemonic) -> bool:
    return _STEP.match(opcode.text) is not None


def _products(body: Body) -> list[Product]:
    """Within each basic block: it ends at a label and at whatever leads elsewhere."""
    found: dict[int, Product] = {}
    holding: dict[str, set[tuple[str, int]]] = {}
    steps = {opcode for opcode in body.opcodes if _is_step(opcode)}
    edges = {opcode for opcode in body.opcodes if opcode.ends_block}
    blocks = {label.before for label in body.labels}
    for index, opcode in enumerate(body.mnemonics):
        if index in blocks or opcode in edges:
            holding.clear()
        if opcode is None or opcode not in steps:
            continue
        statement = body.statement(index)
        operands = statement.instruction.operands if statement.instruction is not None else ()
        if len(operands) < 2:
            continue
        written = operands[0]
        read = [operand for text in operands[1:] for operand in REGISTER.findall(text)]
        origins = {origin for operand in read for origin in holding.get(operand, ())}
        if opcode.word == "mul":
            holding[written] = {(written, statement.position)}
        elif opcode.word in {"add", "sub"}:
            for register, origin in origins:
                found[origin] = Product(register, origin, statement.end)
            holding.pop(written, None)
        elif origins:
            for register in REGISTER.findall(written):
                holding.setdefault(register, set()).update(origins)
        else:
            holding.pop(written, None)
    return list(found.values())
