"""Loads, stores and atomics as Python source."""

from __future__ import annotations

import numpy as np

from neutrino.emulator.arithmetic import find_operation
from neutrino.emulator.datatypes import TYPES, word
from neutrino.emulator.memory import Space
from neutrino.emulator.program import (
    Memory,
    Operand,
    Register,
    Sink,
    Symbol,
)
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
    """ld, st, atom and red (PTX ISA 9.7.9, 9.7.13)."""

    def space(self, operand: Operand) -> Space:
        """The state space that a memory instruction names. Parameters of functions lie in their frames."""
        space = next((SPACES[part] for part in self.instruction.parts[1:] if part in SPACES), Space.GENERIC)
        base = operand.base if isinstance(operand, Memory) else None
        if space is Space.PARAM and (
            not self.entry
            or (isinstance(base, Symbol) and base.variable is not None and base.variable.space == "local")
        ):
            return Space.LOCAL
        if space is Space.GENERIC and isinstance(base, Symbol) and base.variable is not None:
            return SPACES[base.variable.space]
        return space

    def memory(self, operand: Operand) -> tuple[Space, str, str]:
        """(space, base address, offset) of ``[a+b]``: the last two as they stand in the source."""
        if not isinstance(operand, Memory):
            raise self.refused("an operand that is no address")
        space = self.space(operand)
        base = operand.base
        dtype = U64
        if isinstance(base, Register):
            if (base.dtype not in (U32, U64) and base.dtype.kind != "i") or base.dtype.itemsize < 4:
                raise self.refused("an address of the wrong type")
            dtype = word(base.dtype.itemsize)
        offset = "None"
        if operand.offset:
            bits = operand.offset & (1 << 8 * dtype.itemsize) - 1
            offset = self.constant_object(np.array(bits, dtype)[()])
        return space, self.value(base, dtype), offset

    def vector_count(self) -> int:
        return next((int(part[1]) for part in self.instruction.parts if part in ("v2", "v4", "v8")), 1)

    def call_text(self, method: str, *arguments: str) -> str:
        return f"m.{method}({self.instruction.number}, {', '.join(arguments)}, at, {self.guard})"

    def check_modifiers(self, *known: str) -> None:
        """Refuse what might mean something that is not done here. The last part is the type."""
        for part in self.instruction.parts[1:-1]:
            plain = any(part in one for one in (_ORDERS, _SCOPES, _CACHES, _VECTORS, SPACES, known))
            if not plain and not part.startswith(("L1::", "L2::")):
                raise self.refused(f"the modifier .{part} is not known here")

    def load(self) -> None:
        self.check_modifiers()
        destination, source = self.require(2, 3)[:2]
        dtype = self.type_of()
        elements = self.elements(destination, self.vector_count())
        space, base, offset = self.memory(source)
        if space is Space.PARAM and isinstance(source, Memory) and isinstance(source.base, Symbol):
            self.check_parameter(source, dtype.itemsize * len(elements))
        held = word(dtype.itemsize) if dtype.kind != "i" else dtype
        names = self.fresh(
            self.call_text("load", str(int(space)), base, offset, self.dtype(held), str(len(elements)))
        )
        loaded = [self.fresh(f"{names}[{place}]") for place in range(len(elements))]
        for element, name in zip(elements, loaded, strict=True):
            if isinstance(element, Register) and element.type != "pred" and element.dtype.itemsize >= held.itemsize:
                self.write(element, name, held)
            elif not isinstance(element, Sink):
                raise self.refused("a destination of the wrong size")

    def check_parameter(self, source: Memory, size: int) -> None:
        base = source.base
        if not isinstance(base, Symbol) or base.variable is None:
            return
        if source.offset < 0 or source.offset + size > base.variable.size:
            raise self.refused("outside the parameter")
        if (base.variable.place + source.offset) % size and size in (1, 2, 4, 8, 16):
            raise self.refused("a parameter read at the wrong alignment")

    def store(self) -> None:
        self.check_modifiers()
        target, source = self.require(2, 3)[:2]
        dtype = self.type_of()
        elements = self.elements(source, self.vector_count())
        space, base, offset = self.memory(target)
        if space in (Space.CONST, Space.PARAM):
            raise self.refused("constants and the kernel's parameters cannot be written")
        held = word(dtype.itemsize)
        names = [self.value(element, held) for element in elements]
        listed = "".join(f"{name}, " for name in names)
        self.emit(self.call_text("store", str(int(space)), base, offset, self.dtype(held), f"({listed})"))

    def atomic(self) -> None:
        parts = self.instruction.parts
        reduction = parts[0] == "red"
        # The type of vectors may stand before the operation.
        type_name = next((part for part in reversed(parts) if part in TYPES), "")
        self.check_modifiers(*_REDUCTIONS, "noftz", type_name)
        if not type_name or (parts[-1] not in _REDUCTIONS and parts[-1] not in (type_name, "noftz")):
            raise self.refused("an atomic operation that the embedded device does not know")
        operands = self.instruction.operands
        destination: Operand = Sink() if reduction else operands[0] if operands else Sink()
        rest = operands if reduction else operands[1:]
        operation = next((part for part in parts[1:] if part in _REDUCTIONS), "")
        wanted = 3 if operation == "cas" else 2
        if not operation or len(rest) < wanted:
            raise self.refused("an atomic operation that the embedded device does not know")
        dtype = TYPES[type_name]
        space, base, offset = self.memory(rest[0])
        if space in (Space.CONST, Space.PARAM):
            raise self.refused("constants and the kernel's parameters cannot be written")
        count = self.vector_count()
        results = self.elements(destination, count) if not isinstance(destination, Sink) else ()
        live = "True" if results else "False"
        listed = []
        for operand in rest[1:wanted]:
            values = "".join(f"{self.value(element, dtype)}, " for element in self.elements(operand, count))
            listed.append(f"({values})")
        kind = self.atomic_kind(operation, type_name)
        names = self.fresh(
            self.call_text(
                "atomic", str(int(space)), kind, base, offset, self.dtype(dtype), f"({', '.join(listed)},)", live
            )
        )
        old = [self.fresh(f"{names}[{place}]") for place in range(len(results))]
        for element, name in zip(results, old, strict=True):
            self.write(element, name, dtype)

    def atomic_kind(self, operation: str, type_name: str) -> str:
        """The function for words that NumPy cannot add itself, else the operation's name."""
        if operation in ("add", "min", "max") and type_name in ("bf16", "f16x2", "bf16x2"):
            suffix = ".rn" if operation == "add" else ""
            found = find_operation(f"{operation}{suffix}.{type_name}")
            if found is None:
                raise self.refused("an atomic operation that the embedded device does not know")
            name = f"op{len(self.namespace)}"
            self.namespace[name] = found.function
            return name
        return repr(operation)
