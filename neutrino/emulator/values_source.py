"""Code generation for operands: which Python expression has an operand's value, in which type, and how to write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neutrino.emulator.blocks import Graph
from neutrino.emulator.datatypes import DOUBLE_WORD, PREDICATE, TYPES, word
from neutrino.emulator.register_helpers import get, pick, put
from neutrino.emulator.resolution import Instruction
from neutrino.emulator.resolved_operands import (
    Immediate,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Sum,
    Symbol,
    Vector,
)
from neutrino.emulator.special_registers import CLOCKS, SPECIAL_REGISTERS

U64 = np.dtype("u8")
U32 = np.dtype("u4")


@dataclass
class BlockValues:
    """The registers that the generated code of one basic block (or chain of blocks) has in local variables.

    names: register index → type → the local variable with the register's bits in that type. read: indices of the
    registers loaded from the register file. written: indices of those that the block has assigned.
    """

    names: dict[int, dict[np.dtype[Any], str]] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


class ValueSource:
    """Generates Python source for the operands of a PTX function. Base of the generators for instructions.

    The generated code is a function of ``m`` (the batch), ``f`` (its register file) and ``at`` (the indices of the
    threads that execute it, None for all). A value is an array with one element per thread, or a NumPy scalar.

    program: the PTX function, that of ``graph``. entry: it is a kernel. observed: the code reports each statement to
    the launch's observer. lines: the source so far. namespace: the globals of the generated code, by name. constants:
    the names of those that are constants, by a key for their value. values: the registers that the block's code has in
    variables so far. instruction: the one that is being generated. position: how many instructions of the block come
    before it. guard: the variable with its predicate, or None.
    """

    def __init__(self, graph: Graph, observed: bool) -> None:
        """graph: the function's basic blocks. observed: the code reports each statement to an observer."""
        self.graph = graph
        self.program = graph.program
        self.observed = observed
        self.entry = graph.program.text.entry
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {"np": np, "get": get, "put": put, "pick": pick}
        self.constants: dict[Any, str] = {}
        self.values = BlockValues()
        self.counter = 0  # how many of the local variables t1, t2, … are in use
        self.position = 0
        # Replaced before each instruction; there is always a first block with an instruction, if only a hidden ``ret``.
        self.instruction = graph.blocks[0].instructions[0]
        self.guard: str | None = None

    def emit(self, line: str) -> None:
        """Append a line to the function that is being generated."""
        self.lines.append("    " + line)

    def new_names(self, count: int) -> list[str]:
        """Return names for new local variables."""
        first = self.counter + 1
        self.counter += count
        return [f"t{number}" for number in range(first, first + count)]

    def fresh(self, expression: str) -> str:
        """Assign an expression to a new local variable, and return the variable's name."""
        (name,) = self.new_names(1)
        self.emit(f"{name} = {expression}")
        return name

    def refused(self, message: str) -> Exception:
        """Return the PtxRefusedError to raise for the current instruction."""
        return self.instruction.refused(message)

    def constant_object(self, value: Any) -> str:
        """Return the name of a global of the generated code that has this value: a NumPy scalar or type, or a tuple.

        A value that was named before keeps its name. Scalars are the same value if they have the same type and bits,
        so that 0.0 and -0.0 are two constants.
        """
        if isinstance(value, np.generic):
            # Not by ``==``: 0.0 equals -0.0, and a NaN does not equal itself.
            key: Any = (value.dtype.str, value.tobytes())
        elif isinstance(value, np.dtype):
            # ``str`` of a structured type, ``|V16``, says only its size; its text lists the fields.
            key = ("dtype", value.str, str(value))
        else:
            key = (type(value), value)
        name = self.constants.get(key)
        if name is None:
            name = self.constants[key] = f"c{len(self.constants)}"
            self.namespace[name] = value
        return name

    def dtype(self, dtype: np.dtype[Any]) -> str:
        """Return the name of a global of the generated code that is this NumPy type."""
        return self.constant_object(dtype)

    def immediate(self, operand: Immediate, dtype: np.dtype[Any]) -> str:
        """Return the name of a global that is the constant as a NumPy scalar of the type.

        Raises PtxRefusedError for a floating-point constant where an integer of another size is needed.
        """
        if dtype == PREDICATE:
            return self.constant_object(np.bool_(bool(operand.bits)))
        if dtype == DOUBLE_WORD:
            # ``bits`` may be negative; the masks give its two's complement.
            low, high = operand.bits & (1 << 64) - 1, (operand.bits >> 64) & (1 << 64) - 1
            return self.constant_object(np.array([(low, high)], DOUBLE_WORD)[0])
        size = dtype.itemsize
        bits = operand.bits
        if operand.float_size:
            # A floating-point constant. Its bits are used as they are, or rounded to a float type of another size.
            value = np.array([bits], word(operand.float_size)).view(f"f{operand.float_size}")
            if size != operand.float_size:
                if dtype.kind != "f":
                    raise self.refused(f"a constant of {operand.float_size} bytes for one of {size}")
                # An overflow to infinity is no mistake.
                with np.errstate(all="ignore"):
                    value = value.astype(dtype)
            return self.constant_object(value.view(dtype)[0])
        if dtype.kind == "f" and size > 2:
            # An integer constant for an f32 or f64 operand is a number; for an f16 one it is the bits.
            return self.constant_object(np.array([bits]).astype(dtype)[0])
        # The mask makes a negative number its two's complement.
        return self.constant_object(np.array([bits & (1 << 8 * size) - 1], word(size)).view(dtype)[0])

    def register_value(self, register: Register) -> str:
        """Return the local variable with a register's value in the register's own type.

        The register is loaded from the register file unless the block has its value in some variable already, perhaps
        in another type of the same size.
        """
        variables = self.values.names.setdefault(register.index, {})
        if register.dtype in variables:
            return variables[register.dtype]
        if not variables:
            index = register.index
            self.values.read.add(index)
            name = self.fresh(f"r[{index}] if at is None else get(r[{index}], at)")
        else:
            # Any of them will do: all have the register's bits.
            dtype, variable = next(iter(variables.items()))
            name = self.fresh(self.converted(variable, dtype, register.dtype))
        variables[register.dtype] = name
        return name

    def converted(self, name: str, source: np.dtype[Any], target: np.dtype[Any]) -> str:
        """Return an expression for the value of variable ``name`` in another type.

        Types of the same size share the bits. A larger value is truncated; a smaller one is extended by its sign if
        its type is a signed integer, else by zeros. Raises PtxRefusedError between a predicate and a number.
        """
        if source == target:
            return name
        # Predicates have no bits, and NumPy cannot extend or truncate the structure that a double word is.
        if PREDICATE in (source, target) or (DOUBLE_WORD in (source, target) and source.itemsize != target.itemsize):
            raise self.refused("an operand of the wrong type")
        if source.itemsize == target.itemsize:
            return f"{name}.view({self.dtype(target)})"
        if source.kind == "f":
            # ``astype`` would convert the number, not the bits.
            source = word(source.itemsize)
            name = f"{name}.view({self.dtype(source)})"
        # First the size is changed, as a signed or an unsigned integer, then the bits are taken as ``target``.
        if source.itemsize < target.itemsize and source.kind == "i":
            resized = np.dtype(f"i{target.itemsize}")
        else:
            resized = word(target.itemsize)
        cast = f"{name}.astype({self.dtype(resized)})"
        return cast if resized == target else f"{cast}.view({self.dtype(target)})"

    def read(self, register: Register, dtype: np.dtype[Any]) -> str:
        """Return the local variable with a register's value in a type, perhaps another one than the register's own.

        The conversion is made once (see `converted`): later reads in this type get the same variable.
        """
        variables = self.values.names.setdefault(register.index, {})
        if dtype not in variables:
            own = self.register_value(register)
            # If that is the register's own type, register_value has just added it.
            if dtype not in variables:
                variables[dtype] = self.fresh(self.converted(own, register.dtype, dtype))
        return variables[dtype]

    def value(self, operand: Operand, dtype: np.dtype[Any]) -> str:
        """Return the name of a local variable or a global with an operand's value in the type.

        Raises PtxRefusedError for an operand that has no single value, such as a vector.
        """
        if isinstance(operand, Register):
            return self.read(operand, dtype)
        if isinstance(operand, Immediate):
            return self.immediate(operand, dtype)
        if isinstance(operand, Negated):
            return self.fresh(f"~{self.read(operand.register, PREDICATE)}")
        if isinstance(operand, Sum):
            own = operand.register.dtype
            unsigned = word(own.itemsize)
            added = self.immediate(Immediate(operand.offset), unsigned)
            name = self.fresh(f"{self.read(operand.register, unsigned)} + {added}")
            # By way of the register's own type, whose sign extends the sum.
            for source, target in ((unsigned, own), (own, dtype)):
                name = name if source == target else self.fresh(self.converted(name, source, target))
            return name
        if isinstance(operand, Special):
            register_type = TYPES[SPECIAL_REGISTERS[operand.name]]
            if operand.name in CLOCKS:
                # The step clock stands still during a block, so the position in the block is added to it.
                name = self.fresh(f"m.clock_register({operand.name!r}, {self.position})")
            else:
                name = self.fresh(f"m.special({operand.name!r}, at)")
            return name if register_type == dtype else self.fresh(self.converted(name, register_type, dtype))
        if isinstance(operand, Symbol):
            name = self.address(operand)
            return name if dtype == U64 else self.fresh(self.converted(name, U64, dtype))
        raise self.refused("an operand that is no value")

    def address(self, symbol: Symbol) -> str:
        """Return the name of a variable of the generated code with a symbol's 64-bit address, in the state space where
        the symbol's variable is.

        ``variable.place`` is an offset for parameters and locals, and a number of the module for the other spaces.
        """
        variable = symbol.variable
        # Addresses wrap around at 64 bits: a negative offset is added as its two's complement.
        offset = symbol.offset & (1 << 64) - 1
        if variable is None:  # a function
            return self.fresh(f"m.function_address({symbol.name!r})")
        if variable.space == "shared":
            return self.fresh(f"m.shared_address({variable.place}, {self.constant_object(np.uint64(offset))})")
        if variable.space in ("global", "const"):
            return self.fresh(f"m.addresses[{variable.place}] + {self.constant_object(np.uint64(offset))}")
        if variable.space == "local" and not self.entry:
            # The frame of a called function may begin elsewhere in each thread; that of a kernel begins at zero.
            place = self.constant_object(np.uint64((variable.place + offset) & (1 << 64) - 1))
            return self.fresh(f"(f.base if at is None else get(f.base, at)) + {place}")
        # A parameter, or a local variable of a kernel.
        return self.constant_object(np.uint64((variable.place + offset) & (1 << 64) - 1))

    def guard_name(self, instruction: Instruction) -> str | None:
        """Return the variable that says in which threads an instruction takes effect; None without a guard."""
        if instruction.guard is None:
            return None
        name = self.read(instruction.guard, PREDICATE)
        return self.fresh(f"~{name}") if instruction.negated else name

    def write(self, operand: Operand, name: str, dtype: np.dtype[Any]) -> None:
        """Assign the variable ``name``, a value of type ``dtype``, to a destination register, under the guard.

        Raises PtxRefusedError if the destination is no register, or is too narrow.
        """
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise self.refused("a destination that is no register")
        register_type = operand.dtype
        if dtype.itemsize > register_type.itemsize:
            raise self.refused(f"a result of {8 * dtype.itemsize} bits for a register of {8 * register_type.itemsize}")
        # A value of the register's size stays in its type until it is read in another one.
        if dtype != register_type and (dtype.itemsize != register_type.itemsize or PREDICATE in (dtype, register_type)):
            name, dtype = self.fresh(self.converted(name, dtype, register_type)), register_type
        if self.guard is not None:
            # Where the guard does not hold, the register keeps its value.
            old = self.read(operand, dtype)
            name = self.fresh(f"pick({self.guard}, {name}, {old})")
        # The register's variables of other types have its old value: they are forgotten.
        self.values.names[operand.index] = {dtype: name}
        self.values.written.add(operand.index)

    def require(self, low: int, high: int | None = None) -> tuple[Operand, ...]:
        """Return the current instruction's operands. Raises PtxRefusedError unless there are ``low`` to ``high``.

        high: None for exactly ``low``.
        """
        operands = self.instruction.operands
        if not low <= len(operands) <= (low if high is None else high):
            raise self.refused(f"{len(operands)} operands")
        return operands

    def type_of(self) -> np.dtype[Any]:
        """Return the NumPy type that the last part of the current opcode names, as ``.u32``."""
        name = self.instruction.parts[-1]
        if name not in TYPES:
            raise self.refused(f"no type .{name}")
        return TYPES[name]

    def elements(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        """Return the elements of a vector operand, or the operand itself. Raises PtxRefusedError if not ``count``."""
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        if len(elements) != count:
            raise self.refused(f"a vector of {len(elements)} for one of {count}")
        return elements

    def number(self, operand: Operand) -> int:
        """Return the value of an operand that must be an integer constant. Raises PtxRefusedError for another one."""
        if not isinstance(operand, Immediate) or operand.float_size:
            raise self.refused("an operand that is no constant")
        return operand.bits
