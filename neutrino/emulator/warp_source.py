"""Code generation for instructions that a whole warp executes together: shuffles, votes, matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from neutrino.emulator.arithmetic import find_matrix_operation
from neutrino.emulator.datatypes import PREDICATE, word
from neutrino.emulator.memory_source import MemorySource
from neutrino.emulator.resolved_operands import Operand, Pair, Register, Sink, Vector
from neutrino.emulator.values_source import U32, U64


class WarpSource(MemorySource):
    """Generates the Python code that executes shuffles, votes and the like (PTX ISA 9.7.9), and matrix operations.

    The methods are for the current instruction, ``self.instruction``. They emit calls of the batch's methods (``m`` in
    the code); ``value`` and ``fresh`` return names of variables of the code, ``write`` assigns one to a register. In
    the code ``at`` has the indices of the threads that execute the instruction, None for all.
    """

    def warp_operation(self, method: str, arguments: list[str], destinations: list[tuple[Operand, Any]]) -> None:
        """Emit a call of a method of the batch that returns a tuple of one value per destination; write the results.

        arguments: source, in order, without the last one, which is always ``at``. destinations: (operand, type of the
        result).
        """
        names = self.new_names(len(destinations))
        # The comma after the last name unpacks also a tuple of one value.
        self.emit(f"{', '.join(names)}, = m.{method}({', '.join(arguments)}, at)")
        for (destination, dtype), name in zip(destinations, names, strict=True):
            self.write(destination, name, dtype)

    def pair(self, operand: Operand) -> tuple[Operand, Operand]:
        """Return both destinations of ``d|p``; for a single one, the second result is discarded."""
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())

    def shuffle(self) -> None:
        """Emit Python code for ``shfl.sync d|p, a, b, c, membermask``, or the old ``shfl`` without a mask."""
        parts = self.instruction.parts
        has_mask = "sync" in parts
        operands = self.require(5 if has_mask else 4)
        mode = next((part for part in parts if part in ("up", "down", "bfly", "idx")), "")
        if not mode or parts[-1] not in ("b32", "u32", "s32", "f32"):
            raise self.refused("an unknown shuffle")
        first, second = self.pair(operands[0])
        # Without the member mask: the scheduler has made all members wait for each other.
        arguments = [repr(mode), *(self.value(operand, U32) for operand in operands[1:4])]
        self.warp_operation("shuffle", arguments, [(first, U32), (second, PREDICATE)])

    def vote(self) -> None:
        """Emit Python code for ``vote.sync d, predicate, membermask``, or the old ``vote`` without a mask."""
        parts = self.instruction.parts
        has_mask = "sync" in parts
        operands = self.require(3 if has_mask else 2)
        mode = next((part for part in parts if part in ("all", "any", "uni", "ballot")), "")
        if not mode:
            raise self.refused("an unknown vote")
        # Without a mask, all lanes that execute it take part.
        mask = self.value(operands[2], U32) if has_mask else self.constant_object(np.uint32(0xFFFFFFFF))
        arguments = [repr(mode), self.value(operands[1], PREDICATE), mask]
        self.warp_operation("vote", arguments, [(operands[0], U32 if mode == "ballot" else PREDICATE)])

    def match(self) -> None:
        """Emit Python code for ``match.any.sync d, a, membermask`` and ``match.all.sync d|p, a, membermask``."""
        parts = self.instruction.parts
        destination, source, mask = self.require(3)
        # Values are the same if their bits are, whatever their type.
        dtype = word(self.type_of().itemsize)
        first, second = self.pair(destination)
        arguments = [repr("all" if "all" in parts else "any"), self.value(source, dtype), self.value(mask, U32)]
        self.warp_operation("match", arguments, [(first, U32), (second, PREDICATE)])

    def reduce(self) -> None:
        """Emit Python code for ``redux.sync d, a, membermask``. Raises PtxRefusedError unless the type has 32 bits.

        The modifiers ``.abs`` and ``.NaN`` become arguments of the batch's method.
        """
        destination, source, mask = self.require(3)
        parts = self.instruction.parts
        operation = next((part for part in parts if part in ("add", "min", "max", "and", "or", "xor")), "")
        dtype = self.type_of()
        if not operation or dtype.itemsize != 4:
            raise self.refused("an unknown reduction")
        flags = [repr(operation), str("abs" in parts), str("NaN" in parts)]
        arguments = [*flags, self.value(source, dtype), self.value(mask, U32)]
        self.warp_operation("reduce", arguments, [(destination, dtype)])

    def elect(self) -> None:
        """Emit Python code for ``elect.sync d|p, membermask``."""
        destination, mask = self.require(2)
        first, second = self.pair(destination)
        self.warp_operation("elect", [self.value(mask, U32)], [(first, U32), (second, PREDICATE)])

    def active_mask(self) -> None:
        """Emit Python code for ``activemask``, which depends on the instruction's guard, if any."""
        (destination,) = self.require(1)
        self.warp_operation("active_mask", [self.guard or "None"], [(destination, U32)])

    def matrix(self) -> None:
        """Emit Python code for ``mma d, a, b, c``. Each operand is a fragment: a thread's 32-bit words of a matrix.

        A 64-bit register of a fragment (f64) is two words. Raises PtxRefusedError for an unknown operation and for
        fragments of the wrong size.
        """
        # ``mma.sp`` has more than four: it is refused below, as an operation that is not known.
        operands = self.require(4, 6)
        try:
            operation = find_matrix_operation(self.instruction.statement.opcode)
        except ValueError as error:
            raise self.refused(str(error)) from error
        if operation is None or len(operands) != 4:
            raise self.refused("a matrix operation that the embedded device does not know")
        # The namespace only grows, so its size makes a name that is new.
        function = f"op{len(self.namespace)}"
        self.namespace[function] = operation.function
        # Source of a tuple of words for each of a, b and c.
        fragments = []
        for operand, word_count in zip(operands[1:], (operation.a, operation.b, operation.c), strict=True):
            words: list[str] = []
            for element in operand.elements if isinstance(operand, Vector) else (operand,):
                words += self.words(element)
            if len(words) != word_count:
                raise self.refused("a fragment of the wrong size")
            fragments.append(f"({''.join(name + ', ' for name in words)})")

        # The result has one row per thread, one column per word.
        result = self.fresh(f"m.matrix({function}, {', '.join(fragments)}, at)")
        column = 0
        for element in operands[0].elements if isinstance(operands[0], Vector) else (operands[0],):
            if isinstance(element, Register) and element.dtype.itemsize == 8:
                # Two words, the low one first.
                low, high = (self.fresh(f"{result}[:, {column + half}].astype({self.dtype(U64)})") for half in (0, 1))
                self.write(element, self.fresh(f"{low} | ({high} << {self.constant_object(np.uint64(32))})"), U64)
                column += 2
            else:
                self.write(element, self.fresh(f"{result}[:, {column}]"), U32)
                column += 1
        if column != operation.d:
            raise self.refused("a fragment of the wrong size")

    def words(self, operand: Operand) -> list[str]:
        """Return the variables with the 32-bit words of an operand: two for a 64-bit register, low word first."""
        if isinstance(operand, Register) and operand.dtype.itemsize == 8:
            name = self.read(operand, U64)
            high = f"({name} >> {self.constant_object(np.uint64(32))}).astype({self.dtype(U32)})"
            return [self.fresh(f"{name}.astype({self.dtype(U32)})"), self.fresh(high)]
        return [self.value(operand, U32)]

    def matrices(self) -> None:
        """Emit Python code for ``ldmatrix d, [address]`` and ``stmatrix [address], a`` of 1, 2 or 4 matrices.

        Raises PtxRefusedError for other matrices than 8 by 8 of 16-bit elements.
        """
        parts = self.instruction.parts
        operands = self.require(2)
        count = next((int(part.removeprefix("x")) for part in parts if part in ("x1", "x2", "x4")), 0)
        is_store = parts[0] == "stmatrix"
        if not count or "m8n8" not in parts or parts[-1] != "b16":
            raise self.refused("a shape that the embedded device does not know")
        # The destination comes first: the memory for a store, the registers for a load.
        memory_operand, fragment = operands if is_store else reversed(operands)
        elements = self.elements(fragment, count)
        space, base, offset = self.memory(memory_operand)
        location = f"{self.instruction.number}, {int(space)}, {base}, {offset}"
        transposed = str("trans" in parts)
        if is_store:
            words = "".join(f"{self.value(element, U32)}, " for element in elements)
            self.emit(f"m.store_matrices({location}, ({words}), {transposed}, at)")
            return
        loaded = self.fresh(f"m.load_matrices({location}, {count}, {transposed}, at)")
        for index, element in enumerate(elements):
            self.write(element, self.fresh(f"{loaded}[{index}]"), U32)

    def transpose(self) -> None:
        """Emit Python code for ``movmatrix d, a``."""
        destination, source = self.require(2)
        self.warp_operation("transpose_matrix", [self.value(source, U32)], [(destination, U32)])
