"""What an instruction amounts to, as far as its text alone says it: BYTES, OPS, and instructions of the machine."""

from __future__ import annotations

import re

from neutrino.ptx.isa.forms import hidden_arithmetic
from neutrino.ptx.isa.instruction import Instruction, vector_elements
from neutrino.ptx.isa.opcodes import Measure
from neutrino.ptx.isa.scalars import TYPE_BYTES

# By opcode and type.
_MACHINE_VERB = {"add": "ADD", "sub": "ADD", "mul": "MUL", "fma": "FMA", "mad": "FMA"}
_MACHINE_TYPE = {
    "f32": ("F", ""),
    "f64": ("D", ""),
    "f16": ("H", "2"),
    "f16x2": ("H", "2"),
    "bf16": ("H", "2"),
    "bf16x2": ("H", "2"),
    "f32x2": ("F", "2"),
}


def machine_arithmetic(opcode: str) -> tuple[str, ...]:
    """The floating-point sums, products and fused forms (``FMUL``, ``HADD2`` …) that ptxas makes of an instruction."""
    parts = opcode.split(".")
    verb = _MACHINE_VERB.get(parts[0])
    kind = _MACHINE_TYPE.get(parts[-1])
    return (kind[0] + verb + kind[1],) if verb and kind else hidden_arithmetic(opcode)


_SHAPE = re.compile(r"m(\d{1,4})n(\d{1,4})k(\d{1,4})\Z", re.ASCII)
_WARP = 32
_WARPGROUP = 128
_REGISTER_BYTES = 4

# Types of matrix elements that take less than their register, in bits (PTX ISA, "wmma.load": types).
_SMALL_BITS = {"s4": 4, "u4": 4, "b1": 1}

# Depth of a dense tcgen05.mma, and the other one that bit 31 of the descriptor chooses (PTX ISA, "tcgen05 matrix
# shape" and "Instruction descriptor"). Sparse ones are twice as deep.
_DEPTH = {
    "kind::tf32": (8, 0),
    "kind::f16": (16, 0),
    "kind::i8": (32, 0),
    "kind::f8f6f4": (32, 0),
    "kind::mxf8f6f4": (32, 0),
    "kind::mxf4": (64, 96),
    "kind::mxf4nvf4": (64, 96),
}


def constant_bytes(instruction: Instruction) -> int | None:
    """Bytes that one thread accesses, None where operands say it or where there is no such number."""
    measure = instruction.facts.measure if instruction.facts else None
    if measure is Measure.ACCESS:
        if instruction.type is None or (instruction.parts[1:2] == ("p",) and instruction.parts[0] in {"suld", "sust"}):
            return None
        return TYPE_BYTES[instruction.type] * instruction.elements
    if measure is Measure.FRAGMENT:
        data = [text for text in instruction.operands if not text.startswith("[")]
        vector = instruction.destinations[0] if instruction.destinations else data[-1] if data else ""
        return _REGISTER_BYTES * len(vector_elements(vector))
    if measure is Measure.MATRIX:
        return _matrix_bytes(instruction)
    return None


def _matrix_bytes(instruction: Instruction) -> int | None:
    """A lane's share of the matrix that ``wmma.load`` or ``wmma.store`` moves."""
    shape = _shape(instruction)
    kind = instruction.parts[-1]
    wide = _SMALL_BITS.get(kind) or TYPE_BYTES.get(kind, 0) * 8
    if shape is None or not wide:
        return None
    m, n, k = shape
    elements = {"a": m * k, "b": k * n}.get(instruction.parts[2], m * n)
    return elements * wide // 8 // _WARP


def constant_operations(instruction: Instruction) -> int | None:
    """One thread's share of a tensor instruction's 2·m·n·k operations, None where its text does not say it."""
    measure = instruction.facts.measure if instruction.facts else None
    if measure not in {Measure.WARP, Measure.WARPGROUP}:
        return None
    shape = _shape(instruction)
    if shape is None:
        return None
    m, n, k = shape
    total = 2 * m * n * k
    if measure is Measure.WARPGROUP:
        return total // _WARPGROUP
    # PTX ISA, "mma": a warp that executes m8n8k4 with halves computes four products.
    if instruction.parts[0] == "mma" and shape == (8, 8, 4) and "f64" not in instruction.parts:
        total *= 4
    return total // _WARP


def matrix_depth(instruction: Instruction) -> tuple[int, int] | None:
    """k of a ``tcgen05.mma`` by its kind, and the k that its descriptor may choose instead (0 without one)."""
    depth = next((_DEPTH[part] for part in instruction.parts if part in _DEPTH), None)
    if depth is None:
        return None
    if "sp" in instruction.parts:
        return 2 * depth[0], 0
    return depth


def _shape(instruction: Instruction) -> tuple[int, int, int] | None:
    for part in instruction.parts:
        match = _SHAPE.match(part)
        if match is not None:
            return int(match[1]), int(match[2]), int(match[3])
    return None
