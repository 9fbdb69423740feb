"""Products that ptxas may fuse with the sum that reads them, and where no code may be inserted between the two.

ptxas contracts an unrounded ``mul`` with the unrounded ``add`` or ``sub`` that alone reads its product,
within one basic block. A predicated memory access or a branch between the two, or a second reader, ends that
and changes the result's last bits. So does an instruction between lanes, such as ``shfl``, under a predicate, and
before sm_90 also without one where the product is of halves. Stretches are found generously: one too many only moves
a store further down.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from neutrino.ptx.isa.instruction import REGISTER, Instruction, Mnemonic
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body, Statement

_HALVES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
FLOATS = _HALVES | {"f32", "f32x2", "f64"}
# What tests/ptx/test_fusions.py has ptxas 13.0 show, for sm_75 to sm_120: of all instructions
# that it expands, these end with a multiplication that it fuses with an unrounded sum. None begins with a sum.
_HIDDEN_PRODUCTS = frozenset(
    {"div.full.f32", "div.full.ftz.f32", "div.approx.f32", "div.approx.ftz.f32", "rcp.approx.f32"}
)
_KEEPS_HALVES = 90
"""The first architecture on which ptxas 13.0 fuses halves across an instruction between lanes: sm_90."""
_SUMS = frozenset({"add", "sub"})
_ROUNDINGS = frozenset({"rn", "rz", "rm", "rp"})
# Instructions whose result is no longer the product that they read: on floats, and on any types. A multiplication is
# none: by a factor of one it gives the other factor unchanged.
_COMPUTING = frozenset({"fma", "mad", "div", "rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh"})
_DECIDING = frozenset({"set", "setp", "testp", "tcgen05"})
# What may read memory, and what may write it.
_LOADS = frozenset({"ld", "ldu", "ldmatrix", "atom", "call"})
_STORES = frozenset({"st", "stmatrix", "atom", "red", "call"})
# Instructions that copy a value, with its sign changed at most.
_COPIES = frozenset({"mov", "neg", "abs", "selp"})
_OWN_SPACES = ("global", "shared", "local", "param")
_ALL_MEMORY = frozenset({*(f"[{space}]" for space in _OWN_SPACES), "[]"})
"""In sets of registers, memory has one name per state space; ``[]`` is what generic addresses reach."""
# What may lead from a product to its sum. Copies and changes of sign are folded before contraction.
_PRODUCT_STEPS = frozenset({"mul", "add", "sub", "neg", "abs", "mov"})
_BITS = frozenset({"b16", "b32", "b64"})


@dataclass(frozen=True)
class Product:
    """A product that may be fused. register: that the ``mul`` writes, or an instruction that ends with one. start:
    position of its opcode; end: of the end of the last sum that reads the product. type: as in the opcode, ``f32``."""

    register: str
    start: int
    end: int
    type: str


class Contractions:
    """The products of one body that ptxas (NVIDIA's assembler) may fuse with a sum into an FMA. Positions are in the
    module's text."""

    def __init__(self, body: Body) -> None:
        """Find the products of a body (function text) that ptxas (NVIDIA's assembler) may fuse with sums that read
        them.
        """
        self._body = body
        products: list[Product] = []
        if has_product(body):
            products = sorted(_products(body), key=lambda product: product.start)
        self._by_start = {product.start: product for product in products}
        # In text order.
        self._by_register: dict[str, list[Product]] = {}
        # From products to their sums, those that overlap merged into one; sorted.
        self._spans: list[tuple[int, int]] = []
        for product in products:
            self._by_register.setdefault(product.register, []).append(product)
            if self._spans and product.start < self._spans[-1][1]:
                last_start, last_end = self._spans[-1]
                self._spans[-1] = (last_start, max(last_end, product.end))
            else:
                self._spans.append((product.start, product.end))
        self._halves = [(product.start, product.end) for product in products if product.type in _HALVES]

    def __bool__(self) -> bool:
        """Whether ptxas may fuse any product of the body with a sum."""
        return bool(self._by_start)

    def at(self, position: int) -> Product | None:
        """The product that the instruction at a position computes and that ptxas may fuse with a sum; None if there is
        none."""
        return self._by_start.get(position)

    def open_product(self, register: str, position: int) -> Product | None:
        """The product that a register holds before a position and that ptxas may fuse with a sum after it; None if it
        holds none.

        Code inserted there must not keep ptxas from fusing the two, which would change how the program rounds.
        """
        for product in reversed(self._by_register.get(register, ())):
            # The last one before the position: the register no longer holds an earlier one.
            if product.start < position:
                holds = product.end > position and not self._overwritten(register, product.start, position)
                return product if holds else None
        return None

    def first_clear(self, position: int) -> int:
        """The first position, from this one on, that does not lie between a product and a sum that ptxas may fuse with
        it.

        Code that would keep ptxas from fusing them is inserted there instead of at the position.
        """
        # The last span that begins before the position; 0 is less than the end of any span.
        at = bisect_right(self._spans, (position, 0)) - 1
        if at >= 0 and self._spans[at][0] < position < self._spans[at][1]:
            return self._spans[at][1]
        return position

    def may_exchange(self, position: int, architecture: int) -> bool:
        """Whether an unpredicated instruction that exchanges values between lanes, such as ``shfl``, may be inserted at
        a position.

        It may not where it would keep ptxas from fusing a product with a sum. Under a predicate it may stand only where
        ``first_clear`` gives the position itself. architecture: 80 for ``sm_80``.
        """
        # By tests/ptx/test_fusions.py.
        if architecture >= _KEEPS_HALVES:
            return True
        return not any(start < position < end for start, end in self._halves)

    def _overwritten(self, register: str, start: int, end: int) -> bool:
        """Whether any instruction strictly between two others writes a register. start, end: positions of the two."""
        for index in range(self._body.index_at(start) + 1, self._body.index_at(end)):
            instruction = self._body.statement(index).instruction
            if instruction is not None and register in instruction.written:
                return True
        return False


def has_product(body: Body) -> bool:
    """Whether a body has an instruction that computes a product which is not rounded explicitly, so that ptxas may fuse
    it."""
    return any(product_type(opcode) or is_hidden_product(opcode) for opcode in body.opcodes)


def has_hidden_product(body: Body) -> bool:
    """Whether a body holds an instruction that ptxas expands to a product that it may fuse."""
    return any(map(is_hidden_product, body.opcodes))


def may_contract(body: Body) -> bool:
    """Whether the result of some product of a body may come to a sum, so that ptxas may fuse the two into an FMA.

    Where not, no inserted code can change how ptxas rounds.
    """
    return bool(sums_reached(body))


def sums_reached(body: Body, *, hidden_alone: bool = False) -> dict[int, int]:
    """The floating-point sums that the value of a product may reach, by position, with the number of their operands it
    may be.

    Only products and sums without a rounding mode count. These are all sums that ptxas may fuse with a product, and
    some more, since it fuses within a basic block only. Of a sum with two such operands it is not known which of them
    ptxas fuses.

    A value is followed by the names of registers, whatever the order of instructions, through all that may hand it on
    unchanged: moves and selections, bit operations, shuffles, multiplications by what may be one, and memory. The
    position is that of the statement, after its labels. hidden_alone: follow only the products within an instruction
    that ptxas expands to several, as ``div.full``.
    """
    products = {
        opcode for opcode in body.opcodes if is_hidden_product(opcode) or (product_type(opcode) and not hidden_alone)
    }
    if not products or not any(map(_is_sum, body.opcodes)):
        return {}
    # The registers, and memories, that may hold a product.
    holding: set[str] = set()
    transfers: list[_Transfer] = []
    # Where each name is a label for the first time.
    labels = {label.name: label.before for label in reversed(body.labels)}
    sums: dict[int, int] = {}
    has_loop = False

    def hand_on(transfer: _Transfer) -> None:
        """If an instruction reads a register that may hold a product, note the registers it may copy it to, or that it
        is a sum."""
        if not holding.isdisjoint(transfer.read):
            holding.update(transfer.written)
            if transfer.terms:
                sums[transfer.position] = sum(not holding.isdisjoint(term) for term in transfer.terms)

    # Once in text order, which is enough where no branch goes back.
    for statement, instruction in _instructions(body):
        if not instruction.operands:
            continue
        if instruction.mnemonic.flow is Flow.JUMP:
            # Where a branch by a table ("brx") goes is not looked up: it may go back.
            target = labels.get(instruction.operands[0])
            has_loop = has_loop or statement.word == "brx" or (target is not None and target <= statement.index)
            continue
        if instruction.mnemonic in products:
            holding.update(instruction.written)
        transfer = _transfer(instruction, statement.start)
        if transfer is not None:
            transfers.append(transfer)
            hand_on(transfer)
    # Else again until no other register can hold a product.
    previous_size = -1
    while has_loop and len(holding) != previous_size:
        previous_size = len(holding)
        for transfer in transfers:
            hand_on(transfer)
    return sums


def _instructions(body: Body) -> Iterator[tuple[Statement, Instruction]]:
    """The instructions of a body with their statements, in text order; other statements are left out."""
    for statement in body:
        instruction = statement.instruction
        if instruction is not None:
            yield statement, instruction


def loose_sums(body: Body) -> list[int]:
    """The positions of sums with two different products as operands, of which ptxas may fuse either one; in text order.

    Which of them it fuses may differ from copy to copy of an unrolled loop, and with the code around, while the numbers
    of fused and unfused instructions stay the same: counting instructions does not show the difference. Values are
    followed through moves, changes of sign and selections, whatever the order of instructions. Positions are those of
    the statements, after their labels.
    """
    if not has_product(body) or not any(map(_is_sum, body.opcodes)):
        return []
    holding: set[str] = set()
    copies: list[Instruction] = []
    sums: list[tuple[int, Instruction]] = []
    for statement, instruction in _instructions(body):
        opcode = instruction.mnemonic
        if product_type(opcode) or is_hidden_product(opcode):
            holding |= instruction.written
        elif _is_sum(opcode):
            sums.append((statement.start, instruction))
        elif instruction.parts[0] in _COPIES:
            copies.append(instruction)
    # Until no other register can hold a product.
    previous_size = -1
    while len(holding) != previous_size:
        previous_size = len(holding)
        for instruction in copies:
            if not holding.isdisjoint(REGISTER.findall(",".join(instruction.sources))):
                holding |= instruction.written
    # As a set: of "add d, a, a" both operands are the same product.
    return [
        position
        for position, instruction in sums
        if sum(not holding.isdisjoint(REGISTER.findall(operand)) for operand in {*instruction.sources}) > 1
    ]


class _Transfer(NamedTuple):
    """How an instruction may hand a product on. read: the registers and memories that it reads; written: those that may
    hold the same value afterwards. position: of its statement. terms: of a sum, the registers of each operand."""

    position: int
    read: frozenset[str]
    written: frozenset[str]
    terms: tuple[frozenset[str], ...] = ()


def _transfer(instruction: Instruction, position: int) -> _Transfer | None:
    """How an instruction may hand on the value of a product: from what it reads to what it writes. None when it cannot.

    position: of its statement.
    """
    if _computes(instruction.mnemonic):
        return None
    terms = tuple(frozenset(REGISTER.findall(operand)) for operand in instruction.sources)
    read = frozenset().union(*terms)
    if _is_sum(instruction.mnemonic):
        # Nothing is written: the sum is no product any more.
        return _Transfer(position, read, frozenset(), terms)
    word, written = instruction.parts[0], instruction.written
    space = instruction.state_space
    # What a load may read: of a known space also what generic stores wrote, of an unknown one any memory.
    memory = frozenset({f"[{space}]", "[]"}) if space in _OWN_SPACES else _ALL_MEMORY
    # "ld.global.nc" reads what no code of the kernel writes.
    if word in _LOADS and "nc" not in instruction.parts:
        read |= memory
    if word in _STORES:
        # All operands, whichever of them is the value stored.
        read |= frozenset(name for operand in instruction.operands for name in REGISTER.findall(operand))
        written |= {f"[{space}]"} if space in _OWN_SPACES else {"[]"}
    return _Transfer(position, read, written) if read and written else None


def _types(opcode: Mnemonic) -> tuple[str, ...]:
    """The parts of an opcode after its word and the modifiers ``.ftz`` and ``.sat``: of ``mul.ftz.f32`` this is
    ("f32",)."""
    types = opcode.parts[1:]
    for modifier in ("ftz", "sat"):
        if types[:1] == (modifier,):
            types = types[1:]
    return types


@functools.cache
def product_type(opcode: Mnemonic) -> str:
    """Return the type, such as ``f32``, of a multiplication that ptxas may fuse with a sum; "" for any other opcode."""
    types = _types(opcode)
    return types[0] if opcode.word == "mul" and len(types) == 1 and types[0] in FLOATS else ""


def is_hidden_product(opcode: Mnemonic) -> bool:
    """Return whether ptxas expands an instruction (such as a division) to code that ends with a product it may fuse."""
    return opcode.text in _HIDDEN_PRODUCTS


@functools.cache
def _is_sum(opcode: Mnemonic) -> bool:
    """Whether an instruction computes a sum that ptxas may fuse with a product, such as ``add.f32``."""
    return opcode.word in _SUMS and not FLOATS.isdisjoint(_types(opcode)[:1])


@functools.cache
def _computes(opcode: Mnemonic) -> bool:
    """Return whether an instruction computes a new value from what it reads, so that its result is no product any more.
    """
    if opcode.word in _DECIDING or opcode.word.endswith("mma"):
        return True
    is_rounded = opcode.word in _SUMS and not _ROUNDINGS.isdisjoint(opcode.parts[1:2])
    return (is_rounded or opcode.word in _COMPUTING) and not FLOATS.isdisjoint(opcode.parts)


@functools.cache
def _concerns_products(opcode: Mnemonic) -> bool:
    """Whether an instruction may make, copy or add up floating-point products, so that a search for these has to look
    at it."""
    types = _types(opcode)
    return opcode.word in _PRODUCT_STEPS and len(types) == 1 and types[0] in FLOATS | _BITS


def _products(body: Body) -> list[Product]:
    """The products of a body that a sum reads within the same basic block, so that ptxas may fuse the two; in any
    order.

    The sum may read the register of the ``mul``, or one that got its value by copies and changes of sign. A block ends
    at a label and at whatever leads elsewhere.
    """
    products: dict[int, Product] = {}
    # By register, the products that it may hold: the register that the ``mul`` wrote, the position of its opcode, and
    # its type.
    holding: dict[str, set[tuple[str, int, str]]] = {}
    steps = {opcode for opcode in body.opcodes if _concerns_products(opcode) or is_hidden_product(opcode)}
    block_ends = {opcode for opcode in body.opcodes if opcode.ends_block}
    labelled = {label.before for label in body.labels}
    for index, opcode in enumerate(body.mnemonics):
        if index in labelled or opcode in block_ends:
            holding.clear()
        if opcode is None or opcode not in steps:
            continue
        statement = body.statement(index)
        operands = statement.instruction.operands if statement.instruction is not None else ()
        if len(operands) < 2:
            continue
        written = operands[0]
        read = [register for text in operands[1:] for register in REGISTER.findall(text)]
        # The products that the instruction reads.
        origins = {origin for register in read for origin in holding.get(register, ())}
        if opcode.word == "mul":
            holding[written] = {(written, statement.position, product_type(opcode))}
        elif is_hidden_product(opcode):
            holding[written] = {(written, statement.position, "f32")}
        elif opcode.word in {"add", "sub"}:
            # Overwrites an earlier sum of the same product: its last sum counts.
            for register, start, kind_of_product in origins:
                products[start] = Product(register, start, statement.end, kind_of_product)
            holding.pop(written, None)
        elif origins:
            # A copy. Generously, what the register held before stays, too.
            for register in REGISTER.findall(written):
                holding.setdefault(register, set()).update(origins)
        else:
            holding.pop(written, None)
    return list(products.values())
