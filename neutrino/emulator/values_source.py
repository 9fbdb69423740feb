"""Operands as Python source: what holds a value, in which type, and how it is written back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neutrino.emulator.blocks import Graph
from neutrino.emulator.datatypes import DOUBLE_WORD, PREDICATE, TYPES, word
from neutrino.emulator.program import (
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from neutrino.emulator.registers import get, pick, put
from neutrino.emulator.special_registers import CLOCKS, SPECIAL_REGISTERS

U64 = np.dtype("u8")
U32 = np.dtype("u4")


@dataclass
class Held:
    # Register index → type → the local variable that holds it so; and which were read from their file, which written
    # in this block.
    names: dict[int, dict[np.dtype[Any], str]] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


class ValueSource:
    """The source of one function as far as it is written, and the values that the block at hand holds."""

    def __init__(self, graph: Graph, observed: bool) -> None:
        self.graph = graph
        self.program = graph.program
        self.observed = observed
        self.entry = graph.program.text.entry
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {"np": np, "get": get, "put": put, "pick": pick}
        self.constants: dict[Any, str] = {}
        self.values = Held()
        self.counter = 0
        self.position = 0
        self.instruction = graph.blocks[0].instructions[0]
        self.guard: str | None = None

    def emit(self, line: str) -> None:
        self.lines.append("    " + line)

    def fresh(self, expression: str) -> str:
        self.counter += 1
        name = f"t{self.counter}"
        self.emit(f"{name} = {expression}")
        return name

    def refused(self, message: str) -> Exception:
        return self.instruction.refused(message)

    def constant_object(self, value: Any) -> str:
        key: Any = (type(value), value)
        if isinstance(value, np.generic):
            key = (value.dtype.str, value.tobytes())
        elif isinstance(value, np.dtype):
            key = ("dtype", value.str, str(value))
        found = self.constants.get(key)
        if found is None:
            found = self.constants[key] = f"c{len(self.constants)}"
            self.namespace[found] = value
        return found

    def dtype(self, dtype: np.dtype[Any]) -> str:
        return self.constant_object(dtype)

    def immediate(self, operand: Immediate, dtype: np.dtype[Any]) -> str:
        if dtype == PREDICATE:
            return self.constant_object(np.bool_(bool(operand.bits)))
        if dtype == DOUBLE_WORD:
            low, high = operand.bits & (1 << 64) - 1, (operand.bits >> 64) & (1 << 64) - 1
            return self.constant_object(np.array([(low, high)], DOUBLE_WORD)[0])
        size = dtype.itemsize
        bits = operand.bits
        if operand.float_size:
            value = np.array([bits], word(operand.float_size)).view(f"f{operand.float_size}")
            if size != operand.float_size:
                if dtype.kind != "f":
                    raise self.refused(f"a constant of {operand.float_size} bytes for one of {size}")
                with np.errstate(all="ignore"):
                    value = value.astype(dtype)
            return self.constant_object(value.view(dtype)[0])
        if dtype.kind == "f" and size > 2:
            return self.constant_object(np.array([bits]).astype(dtype)[0])
        return self.constant_object(np.array([bits & (1 << 8 * size) - 1], word(size)).view(dtype)[0])

    def register_value(self, register: Register) -> str:
        """The local variable with a register's value, in the register's own type."""
        known = self.values.names.setdefault(register.index, {})
        if register.dtype in known:
            return known[register.dtype]
        if not known:
            index = register.index
            self.values.read.add(index)
            name = self.fresh(f"r[{index}] if at is None else get(r[{index}], at)")
        else:
            held, held_name = next(iter(known.items()))
            name = self.fresh(self.converted(held_name, held, register.dtype))
        known[register.dtype] = name
        return name

    def converted(self, name: str, held: np.dtype[Any], wanted: np.dtype[Any]) -> str:
        """An expression for a value in another type of the same bits, or cut off, or extended by its sign."""
        if held == wanted:
            return name
        if PREDICATE in (held, wanted) or (DOUBLE_WORD in (held, wanted) and held.itemsize != wanted.itemsize):
            raise self.refused("an operand of the wrong type")
        if held.itemsize == wanted.itemsize:
            return f"{name}.view({self.dtype(wanted)})"
        if held.kind == "f":
            name, held = f"{name}.view({self.dtype(word(held.itemsize))})", word(held.itemsize)
        if held.itemsize < wanted.itemsize and held.kind == "i":
            step = np.dtype(f"i{wanted.itemsize}")
        else:
            step = word(wanted.itemsize)
        cast = f"{name}.astype({self.dtype(step)})"
        return cast if step == wanted else f"{cast}.view({self.dtype(wanted)})"

    def read(self, register: Register, dtype: np.dtype[Any]) -> str:
        known = self.values.names.setdefault(register.index, {})
        if dtype not in known:
            own = self.register_value(register)
            if dtype not in known:
                known[dtype] = self.fresh(self.converted(own, register.dtype, dtype))
        return known[dtype]

    def value(self, operand: Operand, dtype: np.dtype[Any]) -> str:
        """A local variable or constant with an operand's value in the type wanted."""
        if isinstance(operand, Register):
            return self.read(operand, dtype)
        if isinstance(operand, Immediate):
            return self.immediate(operand, dtype)
        if isinstance(operand, Negated):
            return self.fresh(f"~{self.read(operand.register, PREDICATE)}")
        if isinstance(operand, Special):
            held = TYPES[SPECIAL_REGISTERS[operand.name]]
            if operand.name in CLOCKS:
                name = self.fresh(f"m.clock_register({operand.name!r}, {self.position})")
            else:
                name = self.fresh(f"m.special({operand.name!r}, at)")
            return name if held == dtype else self.fresh(self.converted(name, held, dtype))
        if isinstance(operand, Symbol):
            name = self.address(operand)
            return name if dtype == U64 else self.fresh(self.converted(name, U64, dtype))
        raise self.refused("an operand that is no value")

    def address(self, symbol: Symbol) -> str:
        """The address of a symbol, 64 bits, in the state space of its variable."""
        variable = symbol.variable
        offset = symbol.offset & (1 << 64) - 1
        if variable is None:
            return self.fresh(f"m.function_address({symbol.name!r})")
        if variable.space == "shared":
            return self.fresh(f"m.shared_address({variable.place}, {self.constant_object(np.uint64(offset))})")
        if variable.space in ("global", "const"):
            return self.fresh(f"m.addresses[{variable.place}] + {self.constant_object(np.uint64(offset))}")
        if variable.space == "local" and not self.entry:
            place = self.constant_object(np.uint64((variable.place + offset) & (1 << 64) - 1))
            return self.fresh(f"(f.base if at is None else get(f.base, at)) + {place}")
        return self.constant_object(np.uint64((variable.place + offset) & (1 << 64) - 1))

    def guard_name(self, instruction: Instruction) -> str | None:
        if instruction.guard is None:
            return None
        name = self.read(instruction.guard, PREDICATE)
        return self.fresh(f"~{name}") if instruction.negated else name

    def write(self, operand: Operand, name: str, dtype: np.dtype[Any]) -> None:
        """Give a register a value of some type, under the instruction's guard."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise self.refused("a destination that is no register")
        own = operand.dtype
        if dtype.itemsize > own.itemsize:
            raise self.refused(f"a result of {8 * dtype.itemsize} bits for a register of {8 * own.itemsize}")
        if dtype != own and (dtype.itemsize != own.itemsize or PREDICATE in (dtype, own)):
            name, dtype = self.fresh(self.converted(name, dtype, own)), own
        if self.guard is not None:
            old = self.read(operand, dtype)
            name = self.fresh(f"pick({self.guard}, {name}, {old})")
        self.values.names[operand.index] = {dtype: name}
        self.values.written.add(operand.index)

    def require(self, low: int, high: int | None = None) -> tuple[Operand, ...]:
        operands = self.instruction.operands
        if not low <= len(operands) <= (low if high is None else high):
            raise self.refused(f"{len(operands)} operands")
        return operands

    def type_of(self, place: int = -1) -> np.dtype[Any]:
        name = self.instruction.parts[place]
        if name not in TYPES:
            raise self.refused(f"no type .{name}")
        return TYPES[name]

    def elements(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        if len(elements) != count:
            raise self.refused(f"a vector of {len(elements)} for one of {count}")
        return elements

    def number(self, operand: Operand) -> int:
        if not isinstance(operand, Immediate) or operand.float_size:
            raise self.refused("an operand that is no constant")
        return operand.bits
