"""Edits of a body after which nothing is left to ptxas to fuse: each product either rounds, or is part of an ``fma``.

``mul.f32`` may be fused with an addition, ``mul.rn.f32`` may not (PTX ISA, "Floating Point Instructions: mul"). So text
whose products all round, and whose sums are ``fma.rn`` where ptxas fused them, says by itself what it computes,
whatever code is put in between. Where ptxas makes the same machine code from it as from the original text, that
computes the same.

The factors of a product that is fused are kept in registers of their own, as they were there: the fused instruction
stands where the sum stood, and the program may have written the factors' registers anew in between. Where products are
left as they are, ``Products`` says where code may stand, and gives copies for probes to read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neutrino.abi.probe_block import BLOCK_ZERO
from neutrino.errors import PtxError
from neutrino.lazy import lazy
from neutrino.ptx.analysis.contraction import Contractions, is_hidden_product, product_type
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.registers import Guard, bits, under
from neutrino.ptx.isa.instruction import REGISTER, Mnemonic
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body, Declaration
from neutrino.ptx.text.inserted import Declaration as Register
from neutrino.ptx.text.inserted import Edits, Lines, op
from neutrino.ptx.text.module import Module

_KINDS = ("mul", "add", "sub")
_MODIFIERS = ((), ("ftz",), ("sat",), ("ftz", "sat"))
"""Without one of rounding, so that ptxas may fuse what they are on."""
_BITS = {"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f64": 64, "f32x2": 64}
_MOVES = {"f32": "mov.f32", "f64": "mov.f64"}
_FACTORS = ("a", "b")
"""Ends of the names of the registers in which a product's factors are kept."""


class UnpinnableError(Exception):
    """A fusion that cannot be written down."""


@dataclass(frozen=True)
class Operation:
    """An unrounded product, sum or difference. start, end: from its guard to after its semicolon, in the module's text.

    kind: ``mul``, ``add`` or ``sub``. when: the predicate, ``%p`` or ``!%p``, "" without one. modifiers: ``.ftz``,
    ``.sat``, both or "". type: without its dot. operands: the result, then the two sources. ``words`` is all of it but
    start and end, to compare the operations of two texts.
    """

    kind: str
    modifiers: str
    type: str
    when: str
    operands: tuple[str, ...]
    start: int
    end: int

    @property
    def is_product(self) -> bool:
        """Whether this floating-point operation is a multiplication; it is an addition or subtraction otherwise."""
        return self.kind == "mul"

    @property
    def words(self) -> tuple[object, ...]:
        """All of the operation but where it stands in its text, to compare operations of two texts."""
        return self.kind, self.modifiers, self.type, self.when, self.operands


def _may_fuse(opcode: Mnemonic) -> bool:
    """Return whether an instruction is a product, sum or difference without a rounding mode, which ptxas may fuse."""
    kind, *modifiers = opcode.parts
    return kind in _KINDS and modifiers[-1:] != [] and modifiers[-1] in _BITS and tuple(modifiers[:-1]) in _MODIFIERS


def operations(body: Body) -> list[Operation]:
    """Return the multiplications, additions and subtractions of a body that ptxas may fuse to FMAs, in text order.

    They have no rounding mode. Other functions here refer to one by its index in this list, its number.
    """
    kinds = {opcode for opcode in body.opcodes if _may_fuse(opcode)}
    body_operations = []
    for statement in map(body.statement, body.where(kinds)):
        if statement.mnemonic is None or statement.instruction is None:
            continue
        kind, *words, type_ = statement.mnemonic.parts
        modifiers = "".join(f".{word}" for word in words)
        instruction = statement.instruction
        when = f"{'!' if instruction.negated else ''}{instruction.predicate or ''}"
        body_operations.append(
            Operation(kind, modifiers, type_, when, instruction.operands, statement.start, statement.end)
        )
    return body_operations


def on_own_lines(text: str, body_operations: Sequence[Operation]) -> str:
    """Return a module's text with each of the floating-point operations on a line of its own.

    Line information (``-lineinfo``) then tells their machine code apart. body_operations: in text order.
    """
    pieces, at = [], 0
    for operation in body_operations:
        pieces += [text[at : operation.start], "\n", text[operation.start : operation.end], "\n"]
        at = operation.end
    return "".join([*pieces, text[at:]])


class Definitions:
    """Finds which operations may have written a register of a body. Positions are in the module's text."""

    def __init__(self, body: Body, body_operations: Sequence[Operation]) -> None:
        """Note where each register of a function body is written. body_operations: all floating-point operations of the
        body."""
        self._body = body
        # By its start, an operation's number.
        starts = {operation.start: number for number, operation in enumerate(body_operations)}
        # By register: where it is written, whether without a guard, and the number of the operation (None: by another
        # instruction).
        self._writers: dict[str, list[tuple[int, bool, int | None]]] = {}
        # Starts of the statements at which a basic block begins or ends, and of calls, in text order.
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
        """Which operations may have written the value that a register has at a position: their numbers; None for other
        instructions.

        That is the last writer before the position, if it has no guard and is in the same basic block; otherwise every
        writer in the body counts, since paths are not followed.
        """
        declared = self.declaration(name, position)
        # In another scope the name may mean another register.
        writers = [entry for entry in self._writers.get(name, ()) if self.declaration(name, entry[0]) == declared]
        before = [entry for entry in writers if entry[0] < position]
        if before:
            last_start, is_unconditional, last_number = before[-1]
            # The first edge after the last writer.
            edge = bisect_left(self._edges, last_start + 1)
            if is_unconditional and (edge == len(self._edges) or self._edges[edge] > position):
                return [last_number]
        return [number for _, _, number in writers]

    def declaration(self, name: str, position: int) -> Declaration | None:
        """Return what a name means at a position of the module's text: the body's declaration; None if it is none of
        the body's.
        """
        return self._body.declaration(name, position)


def candidates(body_operations: Sequence[Operation], definitions: Definitions, number: int) -> list[int]:
    """Return which of a sum's two source operands, 0 or 1, may be the product that ptxas (NVIDIA's assembler) fused
    with it.

    These are operands whose every possible value is a product of the sum's type and modifiers. number: of the sum.
    """
    total = body_operations[number]
    fitting = []
    # operands: the result, then the two sources.
    for place, operand in enumerate(total.operands[1:3]):
        if not REGISTER.fullmatch(operand):
            continue
        writers = definitions.writers(operand, total.start)
        # Fewer than the writers if one of these is no operation.
        products = [body_operations[writer] for writer in writers if writer is not None]
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


def pinned(
    body: Body, body_operations: Sequence[Operation], fused: Mapping[int, int], prefix: str
) -> list[tuple[int, int, str]]:
    """Return the edits of the text (start, end, new text) that write the FMAs that ptxas chose as explicit ``fma``
    instructions.

    After them the body leaves nothing to ptxas to fuse. fused: by the number of each sum to fuse, which of its two
    source operands, 0 or 1, is the product: the sum becomes an ``fma``. All products become rounded ones, and other
    sums stay. prefix: begins the names of new registers, and nothing else in the text. Raises UnpinnableError when an
    operand may hold something else than a product.
    """
    definitions = Definitions(body, body_operations)
    # By the register that holds a product (its name and declaration), what begins the names of the new registers: "a"
    # and "b" for the product's factors, "n" for a negated operand of a difference.
    kept: dict[tuple[str, Declaration | None], str] = {}
    declarations = []
    # The same by the product's number.
    of_product: dict[int, str] = {}
    for number, place in fused.items():
        total = body_operations[number]
        if place not in candidates(body_operations, definitions, number):
            raise UnpinnableError(f"not every value of {total.operands[1 + place]} is a product")
        name = total.operands[1 + place]
        key = (name, definitions.declaration(name, total.start))
        if key not in kept:
            kept[key] = f"{prefix}{len(kept)}_"
            width = _BITS[total.type]
            declarations += [Register("reg", f"b{width}", f"{kept[key]}{part}") for part in (*_FACTORS, "n")]
        for writer in definitions.writers(name, total.start):
            if writer is not None:
                of_product[writer] = kept[key]
    edits = []
    if declarations:
        edits.append((body.start + 1, body.start + 1, "\n\t" + " ".join(one.text for one in declarations)))
    for number, operation in enumerate(body_operations):
        if operation.is_product:
            edits.append((operation.start, operation.end, _rounding(operation, of_product.get(number))))
        elif number in fused:
            place = fused[number]
            name = operation.operands[1 + place]
            factor_prefix = kept[name, definitions.declaration(name, operation.start)]
            edits.append((operation.start, operation.end, _fused(operation, place, factor_prefix)))
    return edits


def _rounding(product: Operation, factor_prefix: str | None) -> str:
    """The text of a multiplication rewritten with an explicit rounding mode, so that ptxas does not fuse it with a sum.

    factor_prefix: begins the names of registers to which its factors are moved for an explicit FMA; None if there is
    none.
    """
    opcode = f"mul.rn{product.modifiers}.{product.type}"
    lines = [op(opcode, *product.operands, when=product.when)]
    if factor_prefix is not None:
        move = _MOVES.get(product.type, f"mov.b{_BITS[product.type]}")
        lines[:0] = [
            op(move, f"{factor_prefix}{part}", factor, when=product.when)
            for part, factor in zip(_FACTORS, product.operands[1:], strict=True)
        ]
    return "\n\t".join(line.text for line in lines)


def _fused(total: Operation, place: int, factor_prefix: str) -> str:
    """The text of an addition or subtraction of a product rewritten as an explicit ``fma`` of the product's factors.

    place: which of its two source operands, 0 or 1, is the product. factor_prefix: begins the names of the registers
    that hold the factors.
    """
    result, *terms = total.operands
    other = terms[1 - place]
    factors = [f"{factor_prefix}{part}" for part in _FACTORS]
    lines = []
    if total.kind == "sub":
        # a * b - c is an fma with -c, and c - a * b one with -a: fma has no negated operands, so that a constant is
        # negated here, a register by another instruction.
        negated = other if place == 0 else factors[0]
        if place == 0 and other[:2].lower() in {"0f", "0d"}:
            other = _negated(other)
        else:
            lines.append(op(f"neg.{total.type}", f"{factor_prefix}n", negated, when=total.when))
            if place == 0:
                other = f"{factor_prefix}n"
            else:
                factors[0] = f"{factor_prefix}n"
    opcode = f"fma.rn{total.modifiers}.{total.type}"
    lines.append(op(opcode, result, *factors, other, when=total.when))
    return "\n\t".join(line.text for line in lines)


def _negated(number: str) -> str:
    """The negated value of a floating-point constant in its exact form, ``0f3F800000``: with its highest bit, the sign,
    flipped."""
    digits = number[2:]
    sign = 1 << (4 * len(digits) - 1)
    return f"{number[:2]}{int(digits, 16) ^ sign:0{len(digits)}X}"


class Products:
    """The products of one body that ptxas (NVIDIA's assembler) may fuse with sums: where code may stand, and copies for
    probes to read.

    Code that ends a basic block between a product and its sum would keep ptxas from fusing them and change the result,
    as would another reader of the product. edits, emission: of the body.
    """

    def __init__(self, module: Module, body: Body, edits: Edits, emission: Emission) -> None:
        """Prepare to find the products of a body that ptxas may fuse with sums. edits, emission: see the class."""
        self._module = module
        self._body = body
        self._edits = edits
        self._emission = emission
        self._copies: dict[int, str] = {}

    @lazy
    def _contractions(self) -> Contractions:
        """The products of the body that ptxas may fuse, found when first asked for."""
        return Contractions(self._body)

    def first_clear(self, position: int) -> int:
        """Return the first position, from this one on, where code that ends a basic block may be inserted, as
        predicated stores.

        That is not between a product and a sum that ptxas may fuse, and not within a call sequence.
        """
        if not self._contractions:
            return position
        # The end of a product's span may lie within a call sequence, and the reverse: until neither moves it on.
        while True:
            spot = self._contractions.first_clear(position)
            sequence = self._body.call_sequence(spot)
            if sequence is not None and spot > sequence[0]:
                spot = sequence[1]
            if spot == position:
                return spot
            position = spot

    def may_exchange(self, position: int, guard: Guard | None) -> bool:
        """Return whether instructions that exchange values between lanes may be inserted at a position, under a guard
        (predicate).

        They may not where they would keep ptxas from fusing a product with a sum. guard: None for no predicate.
        """
        if not self._contractions or self.first_clear(position) == position:
            return True
        return guard is None and self._contractions.may_exchange(position, self._emission.architecture)

    def copy_of(self, position: int, register: str, is_out: bool) -> str | None:
        """Return the register from which a probe can read the product that a register of the program holds.

        None if it can read that register itself. If ptxas may fuse the product with a sum, another reader of it would
        keep ptxas from that and change the result. So the probe gets a copy, computed by a second multiplication.
        position: of the instruction whose operand the register is. is_out: the register is its result, else one of its
        sources.
        """
        products = self._contractions
        product = products.at(position) if is_out else products.open_product(register, position)
        declared = self._body.declaration
        # The same name in another scope is another register.
        if product and not is_out and declared(register, product.start) != declared(register, position):
            product = None
        return self._private_copy(product.start) if product else None

    def _private_copy(self, position: int) -> str:
        """Return the register with a copy of the product of the instruction at a position, for probes to read.

        The first call inserts the code: the multiplication once more, right before it, with ``.rn``, which ptxas does
        not fuse; or a division once more, of an operand that ptxas cannot know to be the same, or it would compute both
        at once. Raises PtxError if the statement there is neither.
        """
        if position in self._copies:
            return self._copies[position]
        statement = self._body.statement(self._body.index_at(position))
        instruction = statement.instruction
        kind = product_type(instruction.mnemonic) if instruction else ""
        if instruction is None or not (kind or is_hidden_product(instruction.mnemonic)):
            raise PtxError(self._module.line(position), statement.text[:80], "not a multiplication")
        scalar = kind or "f32"
        name = self._emission.product_copy(scalar)
        self._copies[position] = name
        *sources, last = instruction.operands[1:]
        opcode = instruction.opcode
        lines: Lines = []
        if kind:
            opcode = "mul.rn" + opcode[len("mul") :]
        else:
            last = self._hidden_from_ptxas(last, lines)
        guard = Guard(instruction.predicate, instruction.negated) if instruction.predicate is not None else None
        if guard is not None:
            # Where the predicate is false the destination keeps its value.
            lines.append(op(f"mov.b{bits(scalar)}", name, instruction.operands[0]))
        lines.append(op(opcode, name, *sources, last, when=under(guard)))
        self._edits.insert_before(statement.start, lines)
        return name

    def _hidden_from_ptxas(self, operand: str, lines: Lines) -> str:
        """Return a register with the same bits as an operand of 32 bits, computed so that ptxas cannot know that they
        are the same.

        Appends the code to lines.
        """
        name, zero = self._emission.product_copy("f32"), self._emission.product_copy("f32")
        lines += [
            op("mov.b32", name, operand),
            self._emission.block.load("u32", zero, BLOCK_ZERO),
            op("xor.b32", name, name, zero),
        ]
        return name
