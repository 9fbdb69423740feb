"""Code generation for loads, stores and atomics."""

from __future__ import annotations

import numpy as np

from neutrino.emulator.address_space import Space
from neutrino.emulator.arithmetic import find_operation
from neutrino.emulator.datatypes import TYPES, word
from neutrino.emulator.resolved_operands import Memory, Operand, Register, Sink, Symbol
from neutrino.emulator.values_source import U32, U64, ValueSource

SPACES = {
    "global": Space.GLOBAL,
    "const": Space.CONST,
    "shared": Space.SHARED,
    "shared::cta": Space.SHARED,
    "shared::cluster": Space.SHARED,
    "local": Space.LOCAL,
    "param": Space.PARAM,
    "param::entry": Space.PARAM,
    "param::func": Space.PARAM,
}

# Modifiers of loads, stores and atomics that change no value (PTX ISA 9.7.9.8 to 9.7.9.13, 9.7.13.5, 9.7.13.7).
_ORDERS = frozenset({"weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"})
_SCOPES = frozenset({"cta", "cluster", "gpu", "sys"})
_CACHES = frozenset({"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified"})
_VECTORS = frozenset({"v2", "v4", "v8"})

_REDUCTIONS = frozenset({"add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas"})


class MemorySource(ValueSource):
    """Generates the Python code that executes ld, st, atom and red (PTX ISA 9.7.9, 9.7.13) for all threads of a batch.

    The methods are for the current instruction, ``self.instruction``. ``emit`` appends a line of code; ``value``,
    ``memory``, ``fresh`` and ``constant_object`` return names of variables and constants of the code. In it ``m`` is
    the batch, and ``at`` has the indices of the threads that execute the instruction, None for all.
    """

    def space(self, operand: Operand) -> Space:
        """Return the state space that the current instruction accesses at a memory operand.

        It is the space that the opcode names, else the space of the variable that the operand names, else GENERIC.
        """
        space = next((SPACES[part] for part in self.instruction.parts[1:] if part in SPACES), Space.GENERIC)
        base = operand.base if isinstance(operand, Memory) else None
        variable = base.variable if isinstance(base, Symbol) else None
        if space is Space.PARAM and (not self.entry or (variable is not None and variable.space == "local")):
            # Only a kernel's own parameters are in a buffer. Those of functions and of calls lie in the frame.
            return Space.LOCAL
        if space is Space.GENERIC and variable is not None:
            return SPACES[variable.space]
        return space

    def memory(self, operand: Operand) -> tuple[Space, str, str]:
        """Return (state space, base address, offset) of ``[base + offset]``.

        The last two are names of variables or constants of the generated code; the offset is "None" if zero. Raises
        PtxRefusedError for another operand and for a base register that cannot have an address.
        """
        if not isinstance(operand, Memory):
            raise self.refused("an operand that is no address")
        space = self.space(operand)
        base = operand.base
        dtype = U64
        if isinstance(base, Register):
            # An integer of 32 or 64 bits, with or without a sign.
            if (base.dtype not in (U32, U64) and base.dtype.kind != "i") or base.dtype.itemsize < 4:
                raise self.refused("an address of the wrong type")
            # base + offset wraps around at the register's width.
            dtype = word(base.dtype.itemsize)
        offset = "None"
        if operand.offset:
            # The two's complement of a negative offset.
            bits = operand.offset & (1 << 8 * dtype.itemsize) - 1
            offset = self.constant_object(np.array(bits, dtype)[()])
        return space, self.value(base, dtype), offset

    def vector_count(self) -> int:
        """Return the number of vector elements by the opcode: 2 for ``.v2`` … and 1 without it."""
        return next((int(part.removeprefix("v")) for part in self.instruction.parts if part in _VECTORS), 1)

    def call_text(self, method: str, *arguments: str) -> str:
        """Return source that calls a method of the batch (``m``) with the current statement, threads and guard.

        arguments: source of those between the number of the statement and the threads.
        """
        return f"m.{method}({self.instruction.number}, {', '.join(arguments)}, at, {self.guard})"

    def check_modifiers(self, *known: str) -> None:
        """Raise PtxRefusedError if the opcode has a modifier that is not implemented. known: the implemented ones.

        Modifiers that change no value (memory order, scope, cache) and state spaces are always accepted. The last part
        of the opcode is its type.
        """
        for part in self.instruction.parts[1:-1]:
            is_known = any(part in names for names in (_ORDERS, _SCOPES, _CACHES, _VECTORS, SPACES, known))
            # L1::evict_first, L2::128B … say what to keep in a cache.
            if not is_known and not part.startswith(("L1::", "L2::")):
                raise self.refused(f"the modifier .{part} is not known here")

    def load(self) -> None:
        """Emit Python code for ``ld destination, [address]`` and ``ldu``, with up to 8 vector elements.

        Raises PtxRefusedError for an unknown modifier, and for a destination that is too narrow or no register.
        """
        self.check_modifiers()
        # A third operand is a cache policy, which changes no value.
        destination, source = self.require(2, 3)[:2]
        dtype = self.type_of()
        elements = self.elements(destination, self.vector_count())
        space, base, offset = self.memory(source)
        if space is Space.PARAM and isinstance(source, Memory) and isinstance(source.base, Symbol):
            self.check_parameter(source, dtype.itemsize * len(elements))
        # Signed integers keep their type: in a wider register they are extended by their sign.
        loaded_type = word(dtype.itemsize) if dtype.kind != "i" else dtype
        words = self.fresh(
            self.call_text("load", str(int(space)), base, offset, self.dtype(loaded_type), str(len(elements)))
        )
        loaded = [self.fresh(f"{words}[{place}]") for place in range(len(elements))]
        for element, name in zip(elements, loaded, strict=True):
            if not isinstance(element, Register | Sink):
                raise self.refused("a destination of the wrong size")
            # A register may be wider than what is loaded into it (PTX ISA 9.4.1), but not narrower.
            if isinstance(element, Register) and (
                element.type == "pred" or element.dtype.itemsize < loaded_type.itemsize
            ):
                raise self.refused("a destination of the wrong size")
            self.write(element, name, loaded_type)

    def check_parameter(self, source: Memory, size: int) -> None:
        """Raise PtxRefusedError unless ``size`` bytes from ``source`` are inside the parameter, and aligned to them.

        source: an address in the kernel's parameter buffer: a parameter, plus an offset in bytes.
        """
        base = source.base
        if not isinstance(base, Symbol) or base.variable is None:
            return  # an address in a register, of which nothing is known until it is loaded from
        if source.offset < 0 or source.offset + size > base.variable.size:
            raise self.refused("outside the parameter")
        # Larger vectors are only checked when they are loaded.
        if (base.variable.place + source.offset) % size and size in (1, 2, 4, 8, 16):
            raise self.refused("a parameter read at the wrong alignment")

    def store(self) -> None:
        """Emit Python code for ``st [address], source``, with up to 8 vector elements.

        Raises PtxRefusedError for an unknown modifier, and for memory that kernels cannot write.
        """
        self.check_modifiers()
        # A third operand is a cache policy, which changes no value.
        target, source = self.require(2, 3)[:2]
        dtype = self.type_of()
        elements = self.elements(source, self.vector_count())
        space, base, offset = self.memory(target)
        # Space.PARAM is the kernel's own parameters; variables for the arguments of calls are in another space.
        if space in (Space.CONST, Space.PARAM):
            raise self.refused("constants and the kernel's parameters cannot be written")
        # Only the bits count: registers are taken as unsigned words, wider ones cut off.
        stored_type = word(dtype.itemsize)
        names = [self.value(element, stored_type) for element in elements]
        # With a comma after each, also one alone makes a tuple.
        values = "".join(f"{name}, " for name in names)
        self.emit(self.call_text("store", str(int(space)), base, offset, self.dtype(stored_type), f"({values})"))

    def atomic(self) -> None:
        """Emit Python code for ``atom destination, [address], operands`` and ``red [address], operands``.

        The operands may be vectors. Raises PtxRefusedError for an unknown operation and for read-only memory.
        """
        parts = self.instruction.parts
        is_reduction = parts[0] == "red"
        # The type is the last part, except that with a vector it may stand before the operation.
        type_name = next((part for part in reversed(parts) if part in TYPES), "")
        self.check_modifiers(*_REDUCTIONS, "noftz", type_name)
        if not type_name or (parts[-1] not in _REDUCTIONS and parts[-1] not in (type_name, "noftz")):
            raise self.refused("an atomic operation that the embedded device does not know")
        operands = list(self.instruction.operands)
        destination: Operand = Sink()
        if not is_reduction and operands:
            destination = operands.pop(0)
        operation = next((part for part in parts[1:] if part in _REDUCTIONS), "")
        # The address and one operand; a compare-and-swap has two. A cache policy may follow.
        operand_count = 3 if operation == "cas" else 2
        if not operation or len(operands) < operand_count:
            raise self.refused("an atomic operation that the embedded device does not know")

        dtype = TYPES[type_name]
        space, base, offset = self.memory(operands[0])
        if space in (Space.CONST, Space.PARAM):
            raise self.refused("constants and the kernel's parameters cannot be written")
        count = self.vector_count()
        results = self.elements(destination, count) if not isinstance(destination, Sink) else ()
        # Source of a tuple per operand, with one value per vector element; a scalar is a vector of one.
        vectors = []
        for operand in operands[1:operand_count]:
            values = "".join(f"{self.value(element, dtype)}, " for element in self.elements(operand, count))
            vectors.append(f"({values})")
        function = self.atomic_function(operation, type_name)
        # The old words cost time, so they are returned only where a register gets them.
        needs_result = "True" if results else "False"
        words = self.fresh(
            self.call_text(
                "atomic", str(int(space)), function, base, offset, self.dtype(dtype),
                f"({', '.join(vectors)},)", needs_result,
            )
        )  # fmt: skip
        old_values = [self.fresh(f"{words}[{place}]") for place in range(len(results))]
        for element, name in zip(results, old_values, strict=True):
            self.write(element, name, dtype)

    def atomic_function(self, operation: str, type_name: str) -> str:
        """Return source for the operation of an atomic: its name, or a function for types that NumPy does not have.

        The function is that of the arithmetic instruction, as ``add.rn.bf16``.
        """
        if operation in ("add", "min", "max") and type_name in ("bf16", "f16x2", "bf16x2"):
            rounding = ".rn" if operation == "add" else ""
            arithmetic = find_operation(f"{operation}{rounding}.{type_name}")
            if arithmetic is None:
                raise self.refused("an atomic operation that the embedded device does not know")
            # The namespace only grows, so its size makes a name that is new.
            name = f"op{len(self.namespace)}"
            self.namespace[name] = arithmetic.function
            return name
        return repr(operation)
