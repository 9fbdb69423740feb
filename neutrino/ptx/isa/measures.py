"""What can be counted from the text of an instruction: bytes accessed, operations, and machine instructions."""

from __future__ import annotations

import re

from neutrino.probing.model import has_parts
from neutrino.ptx.isa.forms import hidden_arithmetic
from neutrino.ptx.isa.instruction import Instruction, vector_elements
from neutrino.ptx.isa.opcodes import Measure, meaning_of
from neutrino.ptx.isa.scalars import TYPE_BYTES

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


_SHAPE = re.compile(r"m(\d{1,4})n(\d{1,4})k(\d{1,4})\Z", re.ASCII)
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
    """Return ``ELEMENTS``, or for ``HAS.ld.v4`` whether the opcode is such a one; None for any other helper.

    element: of ``HAS``, the dotted parts, as they stand after ``&`` in a position.
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
        match = _SHAPE.match(part)
        if match is not None:
            return int(match[1]), int(match[2]), int(match[3])
    return None
