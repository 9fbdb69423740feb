"""Code generation for instructions that only compute from registers, and for moves and address conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from neutrino.emulator.address_space import (
    CONST_BASE,
    FUNCTION_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    SHARED_BASE,
    SPACE_SIZE,
    Space,
)
from neutrino.emulator.arithmetic import Operation, find_operation
from neutrino.emulator.blocks import uses_carry
from neutrino.emulator.datatypes import DOUBLE_WORD, PREDICATE, Array, word
from neutrino.emulator.memory_source import SPACES
from neutrino.emulator.register_helpers import uniform
from neutrino.emulator.resolution import Instruction
from neutrino.emulator.resolved_operands import Operand, Pair, Register, Sink, Special, Vector
from neutrino.emulator.values_source import U32, U64, ValueSource

_BASES = {
    Space.SHARED: SHARED_BASE,
    Space.LOCAL: LOCAL_BASE,
    Space.PARAM: PARAM_BASE,
}
# Generic address ranges for isspacep (PTX ISA 9.7.9.20): first, end.
_RANGES = {
    Space.SHARED: (SHARED_BASE, SHARED_BASE + SPACE_SIZE),
    Space.LOCAL: (LOCAL_BASE, LOCAL_BASE + SPACE_SIZE),
    Space.CONST: (CONST_BASE, CONST_BASE + SPACE_SIZE),
    Space.PARAM: (PARAM_BASE, PARAM_BASE + SPACE_SIZE),
    # Functions too: what has no other state space.
    Space.GLOBAL: (FUNCTION_BASE, 1 << 63),
}


class RegisterSource(ValueSource):
    """Generates the Python code that executes mov, cvta, isspacep and whatever ``arithmetic`` implements.

    The methods are for the current instruction, ``self.instruction``. ``emit`` appends a line of code; ``value``,
    ``fresh`` and ``constant_object`` return names of variables and constants of the code; ``write`` assigns one to a
    register. A variable is an array with one element per thread, or a NumPy scalar.
    """

    def compute(self, instruction: Instruction) -> None:
        """Emit Python code for an instruction that only reads and writes registers: ``add``, ``setp``, ``cvt`` …

        Raises PtxRefusedError for an unknown instruction, and for operands of the wrong number or size.
        """
        # With both registers of a pair ``p|q``, which is two destinations.
        operands: list[Operand] = []
        for operand in instruction.operands:
            operands += (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)
        starts_with_pair = bool(instruction.operands) and isinstance(instruction.operands[0], Pair)
        destination_count = 2 if starts_with_pair else 1
        try:
            operation = find_operation(
                instruction.statement.opcode, destination_count, len(operands) - destination_count
            )
        except ValueError as error:
            raise self.refused(str(error)) from error
        if operation is None:
            raise self.refused("an instruction that the embedded device does not know")

        # The carry flag is the last input and output of operations such as addc.cc, but no operand in the text.
        carry_in = operation.carry in ("in", "inout")
        carry_out = operation.carry in ("out", "inout")
        input_count = len(operation.inputs) - carry_in
        output_count = len(operation.outputs) - carry_out
        # The operation says how many operands are read; those before them are written. The second result of setp and
        # the like may be left out.
        destination_count = len(operands) - input_count
        if not 1 <= destination_count <= output_count:
            raise self.refused(f"{len(instruction.operands)} operands")
        sources = list(zip(operands[destination_count:], operation.inputs[:input_count], strict=True))
        for operand, dtype in sources:
            # Registers may be wider than the type in ld, st and cvt only (PTX ISA 9.4.1).
            if isinstance(operand, Register) and operand.dtype.itemsize != dtype.itemsize and instruction.name != "cvt":
                raise self.refused(f"a register of {8 * operand.dtype.itemsize} bits for {8 * dtype.itemsize}")

        inputs = [self.value(operand, dtype) for operand, dtype in sources]
        destinations = operands[:destination_count]
        carry = self.graph.carry
        if carry is not None and uses_carry(instruction):
            if carry_in:
                inputs.append(self.read(carry, PREDICATE))
            if carry_out:
                # The carry flag comes after all other results, those that were left out included.
                destinations += [Sink()] * (output_count - destination_count) + [carry]
        self.apply_operation(operation, destinations, inputs)

    def apply_operation(self, operation: Operation, destinations: list[Operand], inputs: list[str]) -> None:
        """Emit a call of an operation, and write its results.

        inputs: variables with its arguments. destinations: one per result; missing ones at the end are discarded.
        """
        # An expression in the code itself is faster than a call.
        if operation.expression is not None and len(operation.outputs) == 1:
            name = self.fresh(operation.expression.format(*inputs))
            self.write(destinations[0], name, operation.outputs[0])
            return
        # The namespace only grows, so its size makes a name that is new.
        function = f"op{len(self.namespace)}"
        self.namespace[function] = uniform(operation.function)
        call = f"{function}({', '.join(inputs)})"
        if len(operation.outputs) == 1:
            self.write(destinations[0], self.fresh(call), operation.outputs[0])
            return
        names = self.new_names(len(operation.outputs))
        self.emit(f"{', '.join(names)} = {call}")
        for destination, name, dtype in zip(destinations, names, operation.outputs, strict=False):
            self.write(destination, name, dtype)

    def move(self) -> None:
        """Emit Python code for ``mov``: between registers, or packing a vector into a register, or unpacking one.

        The type in the opcode is that of a whole word; between two vectors, that of an element.
        """
        destination, source = self.require(2)
        dtype = self.type_of()
        if isinstance(source, Vector) and isinstance(destination, Vector):
            if len(destination.elements) != len(source.elements):
                raise self.refused("a vector of the wrong size")
            pairs = zip(destination.elements, source.elements, strict=True)
            # All are read before any is written, since a register may be in both vectors.
            values = [(element, self.value(source_element, dtype)) for element, source_element in pairs]
            for element, name in values:
                self.write(element, name, dtype)
        elif isinstance(source, Vector):
            self.write(destination, self.packed(source, dtype), word(dtype.itemsize))
        elif isinstance(destination, Vector):
            self.unpack(destination, self.value(source, word(dtype.itemsize)), dtype)
        else:
            self.write(destination, self.value(source, dtype), dtype)

    def packed(self, source: Vector, dtype: np.dtype[Any]) -> str:
        """Return the variable with the 2 or 4 elements of a vector packed into one word, the first one lowest.

        dtype: the type of the word. Raises PtxRefusedError for elements that do not fill it.
        """
        count = len(source.elements)
        if count not in (2, 4) or dtype.itemsize < count:
            raise self.refused("a vector of the wrong size")
        part = word(dtype.itemsize // count)
        for element in source.elements:
            wrong = isinstance(element, Register) and element.dtype.itemsize != part.itemsize
            if wrong or isinstance(element, Special):
                raise self.refused("a vector of the wrong size")
        names = [self.value(element, part) for element in source.elements]
        if dtype == DOUBLE_WORD:
            # NumPy has no shifts for 128 bits, only the structure of two halves.
            if count != 2:
                raise self.refused("a vector of the wrong size")
            self.namespace["join"] = _join
            return self.fresh(f"join({names[0]}, {names[1]})")
        # Each element is shifted to its place in the word: by 8 bits for each byte of those before it.
        whole = word(dtype.itemsize)
        pieces = [f"{names[0]}.astype({self.dtype(whole)})"]
        for place, name in enumerate(names[1:], 1):
            shift = self.constant_object(np.array(8 * part.itemsize * place, whole)[()])
            pieces.append(f"({name}.astype({self.dtype(whole)}) << {shift})")
        return self.fresh(" | ".join(pieces))

    def unpack(self, destination: Vector, name: str, dtype: np.dtype[Any]) -> None:
        """Write the parts of the word in variable ``name`` to the 2 or 4 registers of a vector, the lowest part first.

        dtype: the type of the word. Raises PtxRefusedError for a vector of another length.
        """
        count = len(destination.elements)
        if count not in (2, 4) or dtype.itemsize < count:
            raise self.refused("a vector of the wrong size")
        if dtype == DOUBLE_WORD:
            if count != 2:
                raise self.refused("a vector of the wrong size")
            # DOUBLE_WORD is a structure with the fields x (low 64 bits) and y (high).
            halves = [self.fresh(f"{name}[{half!r}]") for half in "xy"]
            for element, half in zip(destination.elements, halves, strict=True):
                self.write(element, half, U64)
            return
        part = word(dtype.itemsize // count)
        whole = word(dtype.itemsize)
        parts = []
        for place in range(count):
            shift = self.constant_object(np.array(8 * part.itemsize * place, whole)[()])
            shifted = f"({name} >> {shift})" if place else name
            parts.append(self.fresh(f"{shifted}.astype({self.dtype(part)})"))
        for element, part_name in zip(destination.elements, parts, strict=True):
            self.write(element, part_name, part)

    def convert_address(self) -> None:
        """Emit Python code for ``cvta`` and ``cvta.to``: between an address of a state space and a generic one.

        The generic address is the space's base plus the address. Global and constant memory have the base 0.
        """
        destination, source = self.require(2)
        parts = self.instruction.parts
        dtype = self.type_of()
        # ``cvta.to.SPACE.TYPE`` or ``cvta.SPACE.TYPE``.
        to_space = parts[1] == "to"
        space = SPACES.get(parts[2 if to_space else 1])
        if space is None or dtype not in (U64, U32):
            raise self.refused("an unknown conversion of addresses")
        name = self.value(source, U64)
        base = _BASES.get(space, 0)
        if base:
            name = self.fresh(f"{name} {'-' if to_space else '+'} {self.constant_object(np.uint64(base))}")
        if dtype != U64:
            name = self.fresh(self.converted(name, U64, dtype))
        self.write(destination, name, dtype)

    def is_in_space(self) -> None:
        """Emit Python code for ``isspacep``: whether a generic address lies in a state space."""
        destination, source = self.require(2)
        space = SPACES.get(self.instruction.parts[1])
        if space is None:
            raise self.refused("an unknown state space")
        low, high = (self.constant_object(np.uint64(bound)) for bound in _RANGES[space])
        name = self.value(source, U64)
        test = f"({name} >= {low}) & ({name} < {high})"
        if space is Space.GLOBAL:
            # On an H200, isspacep.global also holds for generic addresses of constants and of kernel parameters.
            low = self.constant_object(np.uint64(_RANGES[Space.CONST][0]))
            high = self.constant_object(np.uint64(_RANGES[Space.PARAM][1]))
            test = f"({test}) | (({name} >= {low}) & ({name} < {high}))"
        self.write(destination, self.fresh(test), PREDICATE)

    def map_shared(self) -> None:
        """Emit Python code for ``mapa``: in a cluster of one block, the address itself."""
        destination, source, _ = self.require(3)
        dtype = self.type_of()
        self.write(destination, self.value(source, dtype), dtype)

    def get_rank(self) -> None:
        """Emit Python code for ``getctarank``: in a cluster of one block, always 0."""
        destination, _ = self.require(2)
        self.write(destination, self.constant_object(np.uint32(0)), U32)

    def policy(self) -> None:
        """Emit Python code for ``createpolicy``: a cache policy, which nothing here reads, so any value will do."""
        self.write(self.instruction.operands[0], self.constant_object(np.uint64(0)), U64)


def _join(low: Array, high: Array) -> Array:
    """Return 128-bit values from their low and high 64 bits; either may be a scalar."""
    shape = np.broadcast_shapes(np.shape(low), np.shape(high))
    whole = np.empty(shape, DOUBLE_WORD)
    whole["x"] = low
    whole["y"] = high
    return whole
