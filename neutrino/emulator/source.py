"""Basic blocks to Python source: each one a function over arrays with one element a thread.

A generated function is called as ``block(m, f, at)``: the batch, the register file, and which threads (None: every
one; else their indices). It reads each register once, computes, and writes back what is read later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neutrino.emulator.arithmetic import Operation, find_matrix_operation, find_operation
from neutrino.emulator.blocks import Block, Ending, Graph, constant_mask, uses_carry
from neutrino.emulator.datatypes import DOUBLE_WORD, PREDICATE, TYPES, Array, word
from neutrino.emulator.memory import CONST_BASE, FUNCTION_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE, SPACE_SIZE, Space
from neutrino.emulator.program import (
    Immediate,
    Instruction,
    Memory,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from neutrino.emulator.special_registers import CLOCKS, SPECIAL_REGISTERS

U64 = np.dtype("u8")
U32 = np.dtype("u4")

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
_BASES = {
    Space.SHARED: SHARED_BASE,
    Space.LOCAL: LOCAL_BASE,
    Space.PARAM: PARAM_BASE,
}
# Address ranges for isspacep (PTX ISA 9.7.9.20). Global memory has the rest.
_RANGES = {
    Space.SHARED: (SHARED_BASE, SHARED_BASE + SPACE_SIZE),
    Space.LOCAL: (LOCAL_BASE, LOCAL_BASE + SPACE_SIZE),
    Space.CONST: (CONST_BASE, CONST_BASE + SPACE_SIZE),
    Space.PARAM: (PARAM_BASE, PARAM_BASE + SPACE_SIZE),
    Space.GLOBAL: (FUNCTION_BASE, 1 << 63),
}

# Instructions that tell the hardware something and change no value.
_NOTHING = frozenset(
    {
        "membar", "fence", "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "pragma", "setmaxnreg", "brkpt",
        "pmevent", "applypriority", "discard",
    }
)  # fmt: skip

# Modifiers of loads, stores and atomics that change no value (PTX ISA 9.7.9.8 to 9.7.9.13, 9.7.13.5, 9.7.13.7).
_ORDERS = frozenset({"weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"})
_SCOPES = frozenset({"cta", "cluster", "gpu", "sys"})
_CACHES = frozenset({"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified"})
_VECTORS = frozenset({"v2", "v4", "v8"})

_REDUCTIONS = frozenset({"add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas"})


@dataclass(frozen=True)
class BarrierUse:
    """What a bar or barrier instruction does. reduction: ``popc``, ``and``, ``or`` or "". destination: of that."""

    arrive_only: bool
    aligned: bool
    reduction: str = ""
    destination: Register | None = None


@dataclass
class Unit:
    """The code of one function. pieces: block → function; chains: block → (function, its last block).

    A chain runs several blocks that are parted by instructions of warps only: it may be used where whole warps run.
    masks: block → function that gives the member masks, where they are no constants.
    """

    graph: Graph
    pieces: list[Callable[..., Any]]
    chains: dict[int, tuple[Callable[..., Any], int]]
    masks: dict[int, Callable[..., Any]]
    barriers: dict[int, BarrierUse]
    chain_counts: dict[int, int]
    source: str


def get(value: Any, at: Any) -> Any:
    """The elements of a register for the threads ``at``."""
    return value[at] if value.ndim else value


def put(file: Any, index: int, value: Any, at: Any) -> None:
    """Write the elements of a register for the threads ``at``.

    The array may be another register's as well until it is written in place for the first time.
    """
    old = file.values[index]
    if index not in file.owned:
        old = old.copy() if old.ndim else np.full(file.threads, old)
        file.values[index] = old
        file.owned.add(index)
    old[at] = value


def pick(condition: Any, new: Any, old: Any) -> Any:
    """``new`` where a guard holds, ``old`` elsewhere."""
    if condition.ndim:
        return np.where(condition, new, old)
    return new if condition else old


def uniform(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, made to take scalars only as well."""

    def call(*values: Any) -> Any:
        for value in values:
            if value.ndim:
                return function(*values)
        result = function(*(np.reshape(value, 1) for value in values))
        return tuple(one[0] for one in result) if isinstance(result, tuple) else result[0]

    return call


def generate(graph: Graph, *, observed: bool) -> Unit:
    """Generate a function's code. observed: with a call of the observer before each statement.

    PtxRefusedError: it has a statement that the device does not know.
    """
    return _Generator(graph, observed).unit()


@dataclass
class _Values:
    # Register index → type → the local variable that holds it so; and which were written in this block.
    names: dict[int, dict[np.dtype[Any], str]] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)


class _Generator:
    def __init__(self, graph: Graph, observed: bool) -> None:
        self.graph = graph
        self.program = graph.program
        self.observed = observed
        self.entry = graph.program.text.entry
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {"np": np, "get": get, "put": put, "pick": pick}
        self.constants: dict[Any, str] = {}
        self.values = _Values()
        self.counter = 0
        self.position = 0
        self.instruction = graph.blocks[0].instructions[0]
        self.guard: str | None = None
        self.barriers: dict[int, BarrierUse] = {}

    # -- the whole function

    def unit(self) -> Unit:
        blocks = self.graph.blocks
        chains = {}
        for block in blocks:
            self.block([block], f"piece_{block.index}")
            first = block.index > 0 and blocks[block.index - 1].joined
            last = block.index
            while blocks[last].joined:
                last += 1
            if not first and last > block.index:
                self.block(blocks[block.index : last + 1], f"chain_{block.index}")
                chains[block.index] = last
        masked = [block.index for block in blocks if block.warp and constant_mask(block) is None]
        for index in masked:
            self.mask(blocks[index])
        source = "\n".join(self.lines) + "\n"
        code = compile(source, f"<{self.program.text.name}>", "exec")
        exec(code, self.namespace)
        return Unit(
            self.graph,
            [self.namespace[f"piece_{block.index}"] for block in blocks],
            {index: (self.namespace[f"chain_{index}"], last) for index, last in chains.items()},
            {index: self.namespace[f"mask_{index}"] for index in masked},
            self.barriers,
            {index: sum(block.count for block in blocks[index : last + 1]) for index, last in chains.items()},
            source,
        )

    def block(self, blocks: list[Block], name: str) -> None:
        self.lines += [f"def {name}(m, f, at):", "    r = f.values"]
        self.values = _Values()
        self.position = 0
        ending = ""
        for block in blocks:
            for instruction in block.instructions:
                self.instruction = instruction
                self.guard = self.guard_name(instruction)
                if self.observed and not instruction.hidden:
                    self.emit(f"m.executed({instruction.number}, at, {self.guard})")
                last = instruction is block.instructions[-1] and block.ending is not Ending.NEXT
                if last:
                    ending = self.ending(block, instruction)
                elif self.observed and instruction.named:
                    before = self.named_values(instruction)
                    self.plain(instruction)
                    values = f"{before}, {self.named_values(instruction)}"
                    self.emit(f"m.valued({instruction.number}, at, {self.guard}, {values})")
                else:
                    self.plain(instruction)
                self.position += not instruction.hidden
        self.write_back(blocks[-1].live_out)
        self.emit(f"return {ending or None}")

    def named_values(self, instruction: Instruction) -> str:
        """The registers that a statement names, with what they hold now."""
        pairs = (f"({name!r}, {self.register_value(register)}), " for name, register in instruction.named)
        return f"({''.join(pairs)})"

    def mask(self, block: Block) -> None:
        self.lines += [f"def mask_{block.index}(m, f, at):", "    r = f.values"]
        self.values = _Values()
        self.instruction = block.instructions[0]
        if block.mask is not None:
            self.emit(f"return {self.value(block.mask, U32)}")

    def write_back(self, live: int) -> None:
        indices = sorted(index for index in self.values.written if live >> index & 1)
        if not indices:
            return
        finals = [(index, self.register_value(Register(index, self.program.registers[index]))) for index in indices]
        self.emit("if at is None:")
        for index, name in finals:
            self.emit(f"    r[{index}] = {name}")
        self.emit(f"    f.owned.difference_update({self.constant_object(tuple(indices))})")
        self.emit("else:")
        for index, name in finals:
            self.emit(f"    put(f, {index}, {name}, at)")

    def emit(self, line: str) -> None:
        self.lines.append("    " + line)

    def fresh(self, expression: str) -> str:
        self.counter += 1
        name = f"t{self.counter}"
        self.emit(f"{name} = {expression}")
        return name

    def refused(self, message: str) -> Exception:
        return self.instruction.refused(message)

    # -- values

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

    # -- how blocks end

    def ending(self, block: Block, instruction: Instruction) -> str:
        kind = block.ending
        if kind is Ending.BRANCH:
            return self.guard or ""
        if kind is Ending.TABLE:
            return self.value(self.require(2 - 1)[0], U32)
        if kind is Ending.CALL:
            return self.call(instruction)
        if kind is Ending.BARRIER:
            return self.barrier(block, instruction)
        return ""

    def call(self, instruction: Instruction) -> str:
        results, target, arguments = instruction.operands
        if not isinstance(results, Vector) or not isinstance(arguments, Vector):
            raise self.refused("cannot read the call")
        where = self.value(target, U64) if isinstance(target, Register) else "None"
        values = []
        for argument in arguments.elements:
            if isinstance(argument, Symbol):
                values.append("None")
            elif isinstance(argument, Register):
                values.append(self.register_value(argument))
            elif isinstance(argument, Immediate):
                values.append(self.immediate(argument, word(argument.float_size or 8)))
            else:
                raise self.refused("an argument that is no value")
        return f"({where}, ({''.join(value + ', ' for value in values)}))"

    def barrier(self, block: Block, instruction: Instruction) -> str:
        parts = instruction.parts
        operands = list(instruction.operands)
        reduction = ""
        destination = None
        predicate = "None"
        if "red" in parts:
            reduction = next((part for part in parts if part in ("popc", "and", "or")), "")
            if not reduction or len(operands) < 3 or not isinstance(operands[0], Register):
                raise self.refused("cannot read the barrier")
            destination = operands.pop(0)
            predicate = self.value(operands.pop(), PREDICATE)
        elif "sync" not in parts and "arrive" not in parts:
            raise self.refused("an unknown barrier")
        if not 1 <= len(operands) <= 2 or ("arrive" in parts and len(operands) != 2):
            raise self.refused(f"{len(instruction.operands)} operands")
        number = self.value(operands[0], U32)
        count = self.value(operands[1], U32) if len(operands) > 1 else "None"
        aligned = parts[0] == "bar" or "aligned" in parts
        self.barriers[block.index] = BarrierUse(
            "arrive" in parts, aligned, reduction, destination if isinstance(destination, Register) else None
        )
        return f"({number}, {count}, {predicate})"

    # -- instructions

    def plain(self, instruction: Instruction) -> None:
        method = _METHODS.get(instruction.name)
        if method is not None:
            method(self)
        elif instruction.name not in _NOTHING:
            self.compute(instruction)

    def compute(self, instruction: Instruction) -> None:
        """An instruction that only reads and writes registers."""
        parts = instruction.parts
        operands: list[Operand] = []
        for operand in instruction.operands:
            operands += (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)
        written = 2 if isinstance(next(iter(instruction.operands), None), Pair) else 1
        try:
            operation = find_operation(instruction.statement.opcode, written, len(operands) - written)
        except ValueError as error:
            raise self.refused(str(error)) from error
        if operation is None:
            raise self.refused("an instruction that the embedded device does not know")
        carry_in = operation.carry in ("in", "inout")
        carry_out = operation.carry in ("out", "inout")
        takes = len(operation.inputs) - carry_in
        gives = len(operation.outputs) - carry_out
        # The second result of setp and the like may be left out.
        given = len(operands) - takes
        if not 1 <= given <= gives:
            raise self.refused(f"{len(instruction.operands)} operands")
        sources = list(zip(operands[given:], operation.inputs[:takes], strict=True))
        for operand, dtype in sources:
            # Registers may be wider than the type in ld, st and cvt only (PTX ISA 9.4.1).
            if isinstance(operand, Register) and operand.dtype.itemsize != dtype.itemsize and parts[0] != "cvt":
                raise self.refused(f"a register of {8 * operand.dtype.itemsize} bits for {8 * dtype.itemsize}")
        inputs = [self.value(operand, dtype) for operand, dtype in sources]
        destinations = operands[:given]
        carry = self.graph.carry
        if carry is not None and uses_carry(instruction):
            if carry_in:
                inputs.append(self.read(carry, PREDICATE))
            if carry_out:
                destinations += [Sink()] * (gives - given) + [carry]
        self.results(operation, destinations, inputs)

    def results(self, operation: Operation, destinations: list[Operand], inputs: list[str]) -> None:
        if operation.expression is not None and len(operation.outputs) == 1:
            name = self.fresh(operation.expression.format(*inputs))
            self.write(destinations[0], name, operation.outputs[0])
            return
        function = f"op{len(self.namespace)}"
        self.namespace[function] = uniform(operation.function)
        call = f"{function}({', '.join(inputs)})"
        if len(operation.outputs) == 1:
            self.write(destinations[0], self.fresh(call), operation.outputs[0])
            return
        names = []
        for _ in operation.outputs:
            self.counter += 1
            names.append(f"t{self.counter}")
        self.emit(f"{', '.join(names)} = {call}")
        for destination, name, dtype in zip(destinations, names, operation.outputs, strict=False):
            self.write(destination, name, dtype)

    def type_of(self, place: int = -1) -> np.dtype[Any]:
        name = self.instruction.parts[place]
        if name not in TYPES:
            raise self.refused(f"no type .{name}")
        return TYPES[name]

    def move(self) -> None:
        destination, source = self.require(2)
        dtype = self.type_of()
        if isinstance(source, Vector) and isinstance(destination, Vector):
            pairs = list(zip(destination.elements, source.elements, strict=False))
            for one, name in [(one, self.value(other, dtype)) for one, other in pairs]:
                self.write(one, name, dtype)
        elif isinstance(source, Vector):
            self.write(destination, self.packed(source, dtype), word(dtype.itemsize))
        elif isinstance(destination, Vector):
            self.unpack(destination, self.value(source, word(dtype.itemsize)), dtype)
        else:
            self.write(destination, self.value(source, dtype), dtype)

    def packed(self, source: Vector, dtype: np.dtype[Any]) -> str:
        count = len(source.elements)
        part = word(dtype.itemsize // count) if count in (2, 4) else None
        if part is None or part.itemsize == 0:
            raise self.refused("a vector of the wrong size")
        names = [self.value(element, part) for element in source.elements]
        if dtype == DOUBLE_WORD:
            if count != 2:
                raise self.refused("a vector of the wrong size")
            self.namespace["join"] = _join
            return self.fresh(f"join({names[0]}, {names[1]})")
        whole = word(dtype.itemsize)
        pieces = [f"{names[0]}.astype({self.dtype(whole)})"]
        for place, name in enumerate(names[1:], 1):
            shift = self.constant_object(np.array(8 * part.itemsize * place, whole)[()])
            pieces.append(f"({name}.astype({self.dtype(whole)}) << {shift})")
        return self.fresh(" | ".join(pieces))

    def unpack(self, destination: Vector, name: str, dtype: np.dtype[Any]) -> None:
        count = len(destination.elements)
        if count not in (2, 4) or dtype.itemsize // count == 0:
            raise self.refused("a vector of the wrong size")
        if dtype == DOUBLE_WORD:
            if count != 2:
                raise self.refused("a vector of the wrong size")
            halves = [self.fresh(f"{name}[{half!r}]") for half in "xy"]
            for element, half in zip(destination.elements, halves, strict=True):
                self.write(element, half, U64)
            return
        part = word(dtype.itemsize // count)
        whole = word(dtype.itemsize)
        names = []
        for place in range(count):
            shift = self.constant_object(np.array(8 * part.itemsize * place, whole)[()])
            shifted = f"({name} >> {shift})" if place else name
            names.append(self.fresh(f"{shifted}.astype({self.dtype(part)})"))
        for element, one in zip(destination.elements, names, strict=True):
            self.write(element, one, part)

    def convert_address(self) -> None:
        destination, source = self.require(2)
        parts = self.instruction.parts
        dtype = self.type_of()
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
        destination, source = self.require(2)
        space = SPACES.get(self.instruction.parts[1])
        if space is None:
            raise self.refused("an unknown state space")
        low, high = (self.constant_object(np.uint64(bound)) for bound in _RANGES[space])
        name = self.value(source, U64)
        test = f"({name} >= {low}) & ({name} < {high})"
        if space is Space.GLOBAL:
            low, high = (self.constant_object(np.uint64(bound)) for bound in _RANGES[Space.CONST])
            test = f"({test}) | (({name} >= {low}) & ({name} < {high}))"
        self.write(destination, self.fresh(test), PREDICATE)

    # -- memory

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

    def elements(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        elements = operand.elements if isinstance(operand, Vector) else (operand,)
        if len(elements) != count:
            raise self.refused(f"a vector of {len(elements)} for one of {count}")
        return elements

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

    def policy(self) -> None:
        """createpolicy: how caches are to be used; the values mean nothing here."""
        self.write(self.instruction.operands[0], self.constant_object(np.uint64(0)), U64)

    # -- warps

    def warp_operation(self, method: str, arguments: list[str], destinations: list[tuple[Operand, Any]]) -> None:
        names = []
        for _ in destinations:
            self.counter += 1
            names.append(f"t{self.counter}")
        self.emit(f"{', '.join(names)}, = m.{method}({', '.join(arguments)}, at)")
        for (destination, dtype), name in zip(destinations, names, strict=True):
            self.write(destination, name, dtype)

    def pair(self, operand: Operand) -> tuple[Operand, Operand]:
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())

    def shuffle(self) -> None:
        parts = self.instruction.parts
        sync = "sync" in parts
        operands = self.require(5 if sync else 4)
        mode = next((part for part in parts if part in ("up", "down", "bfly", "idx")), "")
        if not mode or parts[-1] not in ("b32", "u32", "s32", "f32"):
            raise self.refused("an unknown shuffle")
        first, second = self.pair(operands[0])
        arguments = [repr(mode), *(self.value(operand, U32) for operand in operands[1:4])]
        self.warp_operation("shuffle", arguments, [(first, U32), (second, PREDICATE)])

    def vote(self) -> None:
        parts = self.instruction.parts
        sync = "sync" in parts
        operands = self.require(3 if sync else 2)
        mode = next((part for part in parts if part in ("all", "any", "uni", "ballot")), "")
        if not mode:
            raise self.refused("an unknown vote")
        mask = self.value(operands[2], U32) if sync else self.constant_object(np.uint32(0xFFFFFFFF))
        arguments = [repr(mode), self.value(operands[1], PREDICATE), mask]
        self.warp_operation("vote", arguments, [(operands[0], U32 if mode == "ballot" else PREDICATE)])

    def match(self) -> None:
        parts = self.instruction.parts
        destination, source, mask = self.require(3)
        dtype = word(self.type_of().itemsize)
        first, second = self.pair(destination)
        arguments = [repr("all" if "all" in parts else "any"), self.value(source, dtype), self.value(mask, U32)]
        self.warp_operation("match", arguments, [(first, U32), (second, PREDICATE)])

    def reduce(self) -> None:
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
        destination, mask = self.require(2)
        first, second = self.pair(destination)
        self.warp_operation("elect", [self.value(mask, U32)], [(first, U32), (second, PREDICATE)])

    def active_mask(self) -> None:
        (destination,) = self.require(1)
        if self.guard is None:
            self.warp_operation("active_mask", ["None"], [(destination, U32)])
        else:
            self.warp_operation("active_mask", [self.guard], [(destination, U32)])

    def matrix(self) -> None:
        operands = self.require(4, 6)
        try:
            operation = find_matrix_operation(self.instruction.statement.opcode)
        except ValueError as error:
            raise self.refused(str(error)) from error
        if operation is None or len(operands) != 4:
            raise self.refused("a matrix operation that the embedded device does not know")
        function = f"op{len(self.namespace)}"
        self.namespace[function] = operation.function
        texts = []
        for operand, words in zip(operands[1:], (operation.a, operation.b, operation.c), strict=True):
            names: list[str] = []
            for element in operand.elements if isinstance(operand, Vector) else (operand,):
                names += self.words(element)
            if len(names) != words:
                raise self.refused("a fragment of the wrong size")
            texts.append(f"({''.join(name + ', ' for name in names)})")
        result = self.fresh(f"m.matrix({function}, {', '.join(texts)}, at)")
        place = 0
        for element in operands[0].elements if isinstance(operands[0], Vector) else (operands[0],):
            wide = isinstance(element, Register) and element.dtype.itemsize == 8
            if wide:
                low, high = (self.fresh(f"{result}[:, {place + half}].astype({self.dtype(U64)})") for half in (0, 1))
                self.write(element, self.fresh(f"{low} | ({high} << {self.constant_object(np.uint64(32))})"), U64)
            else:
                self.write(element, self.fresh(f"{result}[:, {place}]"), U32)
            place += 2 if wide else 1
        if place != operation.d:
            raise self.refused("a fragment of the wrong size")

    def words(self, operand: Operand) -> list[str]:
        if isinstance(operand, Register) and operand.dtype.itemsize == 8:
            name = self.read(operand, U64)
            high = f"({name} >> {self.constant_object(np.uint64(32))}).astype({self.dtype(U32)})"
            return [self.fresh(f"{name}.astype({self.dtype(U32)})"), self.fresh(high)]
        return [self.value(operand, U32)]

    def map_shared(self) -> None:
        """mapa: with clusters of one block, the address itself."""
        destination, source, _ = self.require(3)
        dtype = self.type_of()
        self.write(destination, self.value(source, dtype), dtype)

    def get_rank(self) -> None:
        destination, _ = self.require(2)
        self.write(destination, self.constant_object(np.uint32(0)), U32)

    def bar_warp(self) -> None:
        if self.instruction.parts[:2] == ("barrier", "cluster"):
            self.emit("m.cluster_arrive(at)")
        elif self.instruction.parts[:2] != ("bar", "warp"):
            raise self.refused("an unknown barrier")


    # -- matrices in memory

    def matrices(self) -> None:
        parts = self.instruction.parts
        operands = self.require(2)
        count = next((int(part[1]) for part in parts if part in ("x1", "x2", "x4")), 0)
        storing = parts[0] == "stmatrix"
        if not count or "m8n8" not in parts or parts[-1] != "b16":
            raise self.refused("a shape that the embedded device does not know")
        elements = self.elements(operands[1 if storing else 0], count)
        space, base, offset = self.memory(operands[0 if storing else 1])
        head = f"{self.instruction.number}, {int(space)}, {base}, {offset}"
        transposed = str("trans" in parts)
        if storing:
            listed = "".join(f"{self.value(element, U32)}, " for element in elements)
            self.emit(f"m.store_matrices({head}, ({listed}), {transposed}, at)")
            return
        names = self.fresh(f"m.load_matrices({head}, {count}, {transposed}, at)")
        for place, element in enumerate(elements):
            self.write(element, self.fresh(f"{names}[{place}]"), U32)

    def transpose(self) -> None:
        destination, source = self.require(2)
        self.warp_operation("transpose_matrix", [self.value(source, U32)], [(destination, U32)])

    # -- asynchronous copies

    def copy_async(self) -> None:
        parts = self.instruction.parts
        if parts[1] != "async":
            raise self.refused("an instruction that the embedded device does not know")
        if parts[2] == "bulk":
            self.copy_bulk()
        elif parts[2] == "commit_group":
            self.emit(f"m.commit_group(at, {self.guard})")
        elif parts[2] in ("wait_group", "wait_all"):
            if parts[2] == "wait_all":
                self.emit(f"m.wait_group(-1, at, {self.guard})")
            else:
                self.emit(f"m.wait_group({self.number(self.require(1)[0])}, at, {self.guard})")
        elif parts[2] == "mbarrier":
            space, base, offset = self.memory(self.require(1)[0])
            adds = str("noinc" not in parts)
            self.emit(self.call_text("arrive_after_copies", str(int(space)), base, offset, adds))
        elif parts[2] in ("ca", "cg"):
            self.copy_some()
        else:
            raise self.refused("an instruction that the embedded device does not know")

    def number(self, operand: Operand) -> int:
        if not isinstance(operand, Immediate) or operand.float_size:
            raise self.refused("an operand that is no constant")
        return operand.bits

    def copy_some(self) -> None:
        operands = self.require(3, 5)
        size = self.number(operands[2])
        if size not in (4, 8, 16):
            raise self.refused("a copy of another size than 4, 8 and 16")
        _, target, target_offset = self.memory(operands[0])
        _, source, source_offset = self.memory(operands[1])
        given = "None"
        if len(operands) > 3:
            fourth = operands[3]
            register = fourth.register if isinstance(fourth, Negated) else fourth
            if isinstance(register, Register) and register.type == "pred":
                # ignore-src: nothing is read, zeros are written.
                ignored = self.value(fourth, PREDICATE)
                zero, full = (self.constant_object(np.uint32(number)) for number in (0, size))
                given = self.fresh(f"np.where({ignored}, {zero}, {full})")
            elif isinstance(register, Register) and register.dtype.itemsize == 8 and len(operands) == 4:
                # A cache policy.
                given = "None"
            else:
                given = self.value(fourth, U32)
        arguments = (target, target_offset, source, source_offset, str(size), given)
        self.emit(self.call_text("copy_async", *arguments))

    def copy_bulk(self) -> None:
        parts = self.instruction.parts
        if parts[3] == "commit_group":
            self.emit(f"m.commit_bulk_group(at, {self.guard})")
            return
        if parts[3] == "wait_group":
            self.emit(f"m.wait_bulk_group({self.number(self.require(1)[0])}, at, {self.guard})")
            return
        if parts[3] == "prefetch" and "tensor" not in parts:
            return
        if "tensor" in parts or parts[3] not in SPACES or parts[4] not in SPACES:
            raise self.refused("a copy that the embedded device does not know")
        operands = self.require(3, 6)
        grouped = "bulk_group" in parts
        addresses = []
        for operand in (*operands[:2], *(() if grouped else operands[3:4])):
            _, base, offset = self.memory(operand)
            addresses.append(base if offset == "None" else self.fresh(f"{base} + {offset}"))
        if not grouped and (len(addresses) != 3 or "mbarrier::complete_tx::bytes" not in parts):
            raise self.refused("a copy that the embedded device does not know")
        spaces = f"({int(SPACES[parts[3]])}, {int(SPACES[parts[4]])})"
        barrier = "None" if grouped else addresses[2]
        size = self.value(operands[2], U32)
        self.emit(self.call_text("copy_bulk", spaces, addresses[0], addresses[1], size, barrier))

    def memory_barrier(self) -> None:
        """mbarrier (PTX ISA 9.7.13.15)."""
        parts = self.instruction.parts
        what = parts[1]
        operands = list(self.instruction.operands)
        if what == "pending_count":
            counted, of_state = self.require(2)
            self.write(counted, self.fresh(f"m.pending_count({self.value(of_state, U64)})"), U32)
            return
        destination: Operand = Sink()
        if what in ("arrive", "arrive_drop", "test_wait", "try_wait") and operands:
            destination = operands.pop(0)
        if not operands:
            raise self.refused("an mbarrier is missing")
        space, base, offset = self.memory(operands.pop(0))
        space = Space.SHARED if space is Space.SHARED else Space.GENERIC
        head = (str(int(space)), base, offset)
        one, none = (self.constant_object(np.int64(number)) for number in (1, 0))
        first = self.value(operands[0], U32) if operands and what not in ("test_wait", "try_wait") else None
        if what == "init" and first is not None:
            self.emit(self.call_text("initialise_mbarrier", *head, first))
        elif what == "inval":
            self.emit(self.call_text("invalidate_mbarrier", *head))
        elif what in ("arrive", "arrive_drop"):
            expects = "expect_tx" in parts
            if expects and first is None:
                raise self.refused("a count of bytes is missing")
            count = one if expects or first is None else first
            moved = first if expects and first is not None else none
            state = self.fresh(self.call_text("arrive", *head, count, moved, str(what == "arrive_drop")))
            self.write(destination, state, U64)
        elif what in ("expect_tx", "complete_tx") and first is not None:
            moved = self.fresh(f"{first}.astype({self.dtype(np.dtype('i8'))})")
            moved = moved if what == "expect_tx" else self.fresh(f"-{moved}")
            self.emit(self.call_text("arrive", *head, none, moved, "False"))
        elif what in ("test_wait", "try_wait") and operands:
            parity = "parity" in parts
            phase = self.value(operands[0], U32 if parity else U64)
            over = self.fresh(self.call_text("test_mbarrier", *head, phase, str(parity)))
            self.write(destination, over, PREDICATE)
        else:
            raise self.refused("an instruction that the embedded device does not know")


def _join(low: Array, high: Array) -> Array:
    shape = np.broadcast_shapes(np.shape(low), np.shape(high))
    whole = np.empty(shape, DOUBLE_WORD)
    whole["x"] = low
    whole["y"] = high
    return whole


_METHODS: dict[str, Callable[[_Generator], None]] = {
    "mov": _Generator.move,
    "cvta": _Generator.convert_address,
    "isspacep": _Generator.is_in_space,
    "ld": _Generator.load,
    "ldu": _Generator.load,
    "st": _Generator.store,
    "atom": _Generator.atomic,
    "red": _Generator.atomic,
    "createpolicy": _Generator.policy,
    "shfl": _Generator.shuffle,
    "vote": _Generator.vote,
    "match": _Generator.match,
    "redux": _Generator.reduce,
    "elect": _Generator.elect,
    "activemask": _Generator.active_mask,
    "mma": _Generator.matrix,
    "mapa": _Generator.map_shared,
    "getctarank": _Generator.get_rank,
    "ldmatrix": _Generator.matrices,
    "stmatrix": _Generator.matrices,
    "movmatrix": _Generator.transpose,
    "cp": _Generator.copy_async,
    "mbarrier": _Generator.memory_barrier,
    "bar": _Generator.bar_warp,
    "barrier": _Generator.bar_warp,
}
