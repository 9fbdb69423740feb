"""One PTX instruction: parsing and printing it, its predicate, opcode and operands, and which of them are written; what
can be counted from it: bytes accessed, operations, and machine instructions."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

from neutrino.lazy import lazy
from neutrino.probing.model import has_parts
from neutrino.ptx.isa.forms import hidden_arithmetic
from neutrino.ptx.isa.opcodes import FLOW, STATE_SPACES, Measure, Opcode, find, meaning_of
from neutrino.ptx.isa.scalars import TYPE_BYTES

_HEAD = re.compile(
    r"\s*(?:@\s*(?P<negated>!)?\s*(?P<predicate>[A-Za-z_$%][\w$]*)\s+)?(?P<opcode>[a-z_]\w*(?:\.[\w:]+)*)\s*",
    re.ASCII,
)
_SPLIT = re.compile(r"[\[\](){},]")
REGISTER = re.compile(r"[A-Za-z_$%][\w$]*(?:\.[xyzwrgba]\b)?", re.ASCII)
OF_REQUESTS = frozenset({"SECTORS", "DISTINCT"})
"""Helpers that say what the lanes at a site access together."""
_MEMORY = re.compile(r"\[(?P<base>[^\[\]+,{}]*)(?:\+(?P<offset>[-+*\s()\w]+))?\](?:\.unified)?\Z", re.ASCII)


def guard_register(guard: str) -> str:
    """Return the register of a guard as it is written before an instruction: ``%p`` for ``@!%p``."""
    return guard.strip("@! \t\r\n\v\f")


class Mnemonic:
    """A dotted opcode, decoded once for all instructions that have it.

    text: as written. parts: its dotted parts; word: the first of them. row: in the table of opcodes, None if PTX ISA
    9.0 has no such instruction. flow: where control goes, None if to the next instruction; ends_block: whether it
    ends a basic block. state_space: among the modifiers, without sub-qualifier, None for a generic access. type: the
    last one among the modifiers (``f32`` of ``ld.global.v4.f32``). elements: of the vector modifier, 1 without one.
    """

    __slots__ = ("elements", "ends_block", "flow", "parts", "row", "state_space", "text", "type", "word")

    def __init__(self, text: str) -> None:
        """Decode an opcode, such as ``ld.global.v4.f32``."""
        self.text = text
        self.parts = tuple(text.split("."))
        self.word = self.parts[0]
        self.row = find(self.parts)
        self.flow = FLOW.get(self.word)
        self.ends_block = self.flow is not None and self.flow.ends_block
        self.state_space = next(
            (space for space in (part.partition("::")[0] for part in self.parts) if space in STATE_SPACES), None
        )
        self.type = next((part for part in reversed(self.parts) if part in TYPE_BYTES), None)
        self.elements = next((int(part[1:]) for part in self.parts if part in {"v2", "v4", "v8"}), 1)

    def __repr__(self) -> str:
        return f"<{self.text}>"


_MAX_KNOWN_MNEMONICS = 1 << 16
KNOWN_MNEMONICS: dict[str, Mnemonic] = {}
"""Text of an opcode → the opcode, for all that were decoded so far."""


def mnemonic(text: str) -> Mnemonic:
    """Decode an opcode; later calls with the same text return the same object."""
    known = KNOWN_MNEMONICS.get(text)
    if known is None:
        if len(KNOWN_MNEMONICS) >= _MAX_KNOWN_MNEMONICS:
            # Foreign files may have any number of different words.
            KNOWN_MNEMONICS.clear()
        known = KNOWN_MNEMONICS[text] = Mnemonic(text)
    return known


class _Fields(NamedTuple):
    predicate: str | None
    negated: bool
    opcode: str
    operands: tuple[str, ...]


class Instruction(_Fields):
    """One instruction, parsed or constructed.

    predicate: the guard's register, None without a guard; negated: the guard is written ``@!``. operands: their texts,
    split at top-level commas.
    """

    @property
    def text(self) -> str:
        """The instruction in PTX: ``@!%p add.u32 %r1, %r1, 1;``. Parsing it gives an equal instruction."""
        predicate, negated, opcode, operands = self
        line = f"{opcode} {', '.join(operands)};" if operands else f"{opcode};"
        return line if predicate is None else f"@{'!' if negated else ''}{predicate} {line}"

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instruction alone, as for every kind of inserted line."""
        return (self,)

    @property
    def opcodes(self) -> tuple[str, ...]:
        """The instruction's opcode alone, as for every kind of inserted line."""
        return (self.opcode,)

    @lazy
    def mnemonic(self) -> Mnemonic:
        """The instruction's opcode, decoded."""
        return mnemonic(self.opcode)

    @property
    def parts(self) -> tuple[str, ...]:
        """The dotted parts of the opcode."""
        return self.mnemonic.parts

    @property
    def state_space(self) -> str | None:
        """The state space, without sub-qualifier; None for a generic access."""
        return self.mnemonic.state_space

    @property
    def facts(self) -> Opcode | None:
        """The row of the table of opcodes; None if PTX ISA 9.0 has no such instruction."""
        return self.mnemonic.row

    @lazy
    def destinations(self) -> tuple[str, ...]:
        """The operands that are written, as their texts.

        For an instruction that is not in the table, it is the first operand, unless that is an address.
        """
        if self.facts is not None:
            return self.operands[: self.facts.destinations]
        return self.operands[:1] if self.operands and not self.operands[0].startswith("[") else ()

    @lazy
    def results(self) -> str:
        """The results of a call, with their parentheses; ``""`` for a call without results and other instructions."""
        # In "call (results), name, (arguments)" they come before the name; in "call name, (arguments)" nothing does.
        is_call = self.mnemonic.word == "call" and len(self.operands) > 1
        return self.operands[0] if is_call and self.operands[0].startswith("(") else ""

    @lazy
    def written(self) -> frozenset[str]:
        """Names of the registers in the destinations, or in the results of a call."""
        return frozenset(name for operand in (*self.destinations, self.results) for name in REGISTER.findall(operand))

    @lazy
    def sources(self) -> tuple[str, ...]:
        """The operands that the instruction reads, in order."""
        return self.operands[1:] if self.results else self.operands[len(self.destinations) :]

    @property
    def is_asynchronous(self) -> bool:
        """Whether the instruction's result is available only after a later wait."""
        return self.facts is not None and self.facts.asynchronous

    @property
    def type(self) -> str | None:
        """The last type among the modifiers, None without one."""
        return self.mnemonic.type

    @property
    def elements(self) -> int:
        """The number of elements by the vector modifier (4 for ``v4``), 1 without one."""
        return self.mnemonic.elements


@dataclass(frozen=True)
class Address:
    """``[base+offset]``, as written.

    base: a register, a variable or an integer. offset: in bytes, an integer or a constant expression; ``0`` without.
    """

    base: str
    offset: str


def read_instruction(code: str) -> Instruction | None:
    """Parse one statement, given without comments, label and semicolon; return None if it is no instruction."""
    head = _HEAD.match(code)
    if head is None:
        return None
    return Instruction(
        head["predicate"],
        head["negated"] is not None,
        head["opcode"],
        tuple(split_operands(code[head.end() :])),
    )


def split_operands(text: str) -> list[str]:
    """Split operands at the commas outside all brackets, and strip each one; [] for an empty text."""
    # Most operands have no nested commas; this is much faster than the scan below.
    if "{" not in text and "(" not in text:
        pieces = [piece.strip() for piece in text.split(",")]
        # If every piece has balanced brackets, no comma is inside them.
        if "[" not in text or all(piece.count("[") == piece.count("]") for piece in pieces):
            return pieces if pieces != [""] else []
    pieces = []
    depth = 0
    start = 0
    for mark in _SPLIT.finditer(text):
        if mark[0] in "[({":
            depth += 1
        elif mark[0] in "])}":
            depth -= 1
        elif depth == 0:
            pieces.append(text[start : mark.start()].strip())
            start = mark.end()
    pieces.append(text[start:].strip())
    return pieces if pieces != [""] else []


def read_address(operand: str) -> Address | None:
    """Parse a memory operand; return None for other operands and for addresses of several parts (``[a, {x, y}]``)."""
    match = _MEMORY.match(operand)
    base = match["base"].strip() if match else ""
    # A base is one word.
    if match is None or not base or len(base.split()) > 1:
        return None
    # join and split remove spaces inside the offset.
    return Address(base, "".join((match["offset"] or "0").split()))


def object_parts(operand: str) -> tuple[str, ...]:
    """Split an operand such as ``[map, {x, y}]`` into ``("map", "x", "y")``: an object, such as a texture or a tensor
    map, and its coordinates. Return () for any other operand."""
    if not (operand.startswith("[") and operand.endswith("]")):
        return ()
    pieces = split_operands(operand[1:-1])
    # Without coordinates, [a] is an ordinary address.
    return tuple(part for piece in pieces for part in vector_elements(piece)) if len(pieces) > 1 else ()


def vector_elements(operand: str) -> tuple[str, ...]:
    """Return the elements of a vector operand ``{a, b}``; for any other operand, the operand itself."""
    if operand.startswith("{") and operand.endswith("}"):
        return tuple(split_operands(operand[1:-1]))
    return (operand,)


# A machine instruction is called class + operation + packing: FADD, HFMA2. By PTX opcode and by type.
_MACHINE_OPERATION = {"add": "ADD", "sub": "ADD", "mul": "MUL", "fma": "FMA", "mad": "FMA"}
_MACHINE_CLASS_AND_PACKING = {
    "f32": ("F", ""),
    "f64": ("D", ""),
    "f16": ("H", "2"),
    "f16x2": ("H", "2"),
    "bf16": ("H", "2"),
    "bf16x2": ("H", "2"),
    "f32x2": ("F", "2"),
}


@functools.lru_cache(maxsize=1024)
def machine_arithmetic(opcode: str) -> tuple[str, ...]:
    """Return the floating-point machine instructions (``FMUL``, ``HADD2`` …) that ptxas emits for a PTX opcode.

    Only additions, multiplications and fused multiply-adds count; () without any.
    """
    parts = opcode.split(".")
    # In these the type comes last: fma.rn.f32.
    name, type_name = parts[0], parts[-1]
    operation = _MACHINE_OPERATION.get(name)
    class_and_packing = _MACHINE_CLASS_AND_PACKING.get(type_name)
    if operation is None or class_and_packing is None:
        return hidden_arithmetic(opcode)
    machine_class, packing = class_and_packing
    return (machine_class + operation + packing,)


_WARP_THREADS = 32
_WARPGROUP_THREADS = 128
_REGISTER_BYTES = 4

# Bits of the types of matrix elements that are smaller than a byte (PTX ISA, "wmma.load": types).
_SUB_BYTE_BITS = {"s4": 4, "u4": 4, "b1": 1}

# k of a dense tcgen05.mma, and the other k that bit 31 of the instruction descriptor selects, 0 without one (PTX ISA,
# "tcgen05 matrix shape" and "Instruction descriptor"). For sparse ones k is twice as large.
_K_BY_KIND = {
    "kind::tf32": (8, 0),
    "kind::f16": (16, 0),
    "kind::i8": (32, 0),
    "kind::f8f6f4": (32, 0),
    "kind::mxf8f6f4": (32, 0),
    "kind::mxf4": (64, 96),
    "kind::mxf4nvf4": (64, 96),
}


def constant_bytes(instruction: Instruction) -> int | None:
    """Return the bytes of memory that one thread accesses by an instruction, as far as its text alone gives them.

    Elements of a vector that are not loaded or stored (``_``) do not count; those that ``used_bytes_mask`` says nobody
    uses do, as what a program loads without need always does. None if the number is in an operand, as for a bulk copy,
    or if the instruction accesses no memory.
    """
    measure = instruction.facts.measure if instruction.facts else None
    if measure is Measure.ACCESS:
        # suld.p and sust.p are formatted: how many bytes they access depends on the surface.
        if instruction.type is None or instruction.parts[:2] in {("suld", "p"), ("sust", "p")}:
            return None
        return TYPE_BYTES[instruction.type] * (instruction.elements - _sinks(instruction))
    if measure is Measure.FRAGMENT:
        return _REGISTER_BYTES * len(vector_elements(_fragment(instruction)))
    if measure is Measure.MATRIX:
        return _matrix_bytes(instruction)
    return None


def _sinks(instruction: Instruction) -> int:
    """Return how many elements of the vector that a load or a store moves are sinks (``_``)."""
    if instruction.elements == 1 or instruction.parts[0] not in {"ld", "ldu", "st"}:
        # An atomic operation accesses an element whose old value is thrown away, too.
        return 0
    return max((vector_elements(operand).count("_") for operand in instruction.operands), default=0)


def _fragment(instruction: Instruction) -> str:
    """Return the operand with the registers of a matrix fragment that is loaded or stored; ``""`` without one."""
    if instruction.destinations:
        return instruction.destinations[0]
    # A store: the registers come last, after the address and, in a tcgen05.st, maybe a constant.
    stored = [operand for operand in instruction.operands if not operand.startswith("[")]
    return stored[-1] if stored else ""


def _matrix_bytes(instruction: Instruction) -> int | None:
    """Return a lane's share, in bytes, of the matrix that ``wmma.load`` or ``wmma.store`` moves; None if unknown."""
    shape = _shape(instruction)
    element_type = instruction.parts[-1]
    element_bits = _SUB_BYTE_BITS.get(element_type) or TYPE_BYTES.get(element_type, 0) * 8
    if shape is None or not element_bits:
        return None
    m, n, k = shape
    # wmma.load.a, .b, .c, and wmma.store.d: a has m times k elements, b k times n, the other two m times n.
    elements = {"a": m * k, "b": k * n}.get(instruction.parts[2], m * n)
    return elements * element_bits // 8 // _WARP_THREADS


def constant_operations(instruction: Instruction) -> int | None:
    """Return one thread's share of the 2·m·n·k operations of a matrix instruction; None if its text does not say it.

    These are a multiplication and an addition for each of m·n·k products, divided by the threads that execute it.
    """
    measure = instruction.facts.measure if instruction.facts else None
    # The shape of others (Measure.DESCRIPTOR) is in a register.
    if measure not in {Measure.WARP, Measure.WARPGROUP}:
        return None
    shape = _shape(instruction)
    if shape is None:
        return None
    m, n, k = shape
    total = 2 * m * n * k
    if measure is Measure.WARPGROUP:
        return total // _WARPGROUP_THREADS
    # PTX ISA, "mma": a warp that executes m8n8k4 with halves computes four products.
    if instruction.parts[0] == "mma" and shape == (8, 8, 4) and "f64" not in instruction.parts:
        total *= 4
    return total // _WARP_THREADS


def opcode_value(instruction: Instruction, name: str, element: str | None) -> int | None:
    """Return the value of a helper (a name in a probe) that the opcode alone decides; None for any other helper.

    ``ELEMENTS`` is how many elements the operands have; ``HAS.ld.v4`` is 1 if the opcode is an ``ld`` with ``v4``, else
    0. element: of ``HAS``, the dotted parts, as they stand after ``&`` in a position.
    """
    if name == "ELEMENTS":
        return instruction.elements
    if name != "HAS" or element is None:
        return None
    classes = instruction.facts.classes if instruction.facts is not None else frozenset()
    return int(has_parts(instruction.parts, classes, tuple(element.split(".")), meaning_of))


def matrix_depth(instruction: Instruction) -> tuple[int, int] | None:
    """Return k of a ``tcgen05.mma``, and the k that its instruction descriptor may select instead (0 without one).

    Its shape has no modifier: m and n are in the descriptor, and k follows from the ``.kind``. The result is None if
    the instruction has no known one.
    """
    depths = next((_K_BY_KIND[part] for part in instruction.parts if part in _K_BY_KIND), None)
    if depths is None:
        return None
    if "sp" in instruction.parts:
        # A sparse instruction has twice the k, and no other one to select.
        dense_k, _ = depths
        return 2 * dense_k, 0
    return depths


def _shape(instruction: Instruction) -> tuple[int, int, int] | None:
    """Return m, n and k of a matrix instruction from its modifier (``m16n8k16``); None without one."""
    for part in instruction.parts:
        first, has_n, rest = part.partition("n")
        second, has_k, third = rest.partition("k")
        sizes = (first[1:], second, third)
        if part[0:1] == "m" and has_n and has_k and all(size.isdecimal() for size in sizes):
            m, n, k = map(int, sizes)
            return m, n, k
    return None
