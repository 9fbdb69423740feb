"""One function of a module with every name resolved: registers, variables, labels, functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neutrino.emulator.constants import evaluate_integer, float_bits
from neutrino.emulator.datatypes import TYPES
from neutrino.emulator.special_registers import SPECIAL_REGISTERS
from neutrino.emulator.text import (
    Declaration,
    FunctionText,
    Label,
    Prototype,
    Scope,
    Statement,
    Targets,
    split_operands,
)
from neutrino.errors import PtxRefusedError

_NAME = re.compile(r"[A-Za-z_$%][\w$]*", re.ASCII)
_NAME_AND_OFFSET = re.compile(r"([A-Za-z_$%][\w$]*)\s*(?:([-+])\s*(.+))?", re.ASCII | re.DOTALL)
_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d{0,8})", re.ASCII | re.DOTALL)
_COMPONENT = re.compile(r"([A-Za-z_$%][\w$]*)\.([xyzwrgba])", re.ASCII)
_COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}
_MOST_REGISTERS = 1 << 20
_LARGEST_FRAME = 512 << 10  # CUDA C++ Programming Guide, technical specifications: local memory per thread


@dataclass(frozen=True)
class Register:
    """One register of a function. index: its number in the function's register file."""

    index: int
    type: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return TYPES[self.type]


@dataclass(frozen=True)
class Immediate:
    """A constant. Integer constants have no size of their own; those with a fraction do (4 or 8)."""

    bits: int
    float_size: int = 0


@dataclass(frozen=True)
class Special:
    """A special register, without the ``%``."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A variable in memory.

    place: global, const and shared: its number in the module; local: its offset in the function's frame;
    param: its offset in the kernel's parameters.
    """

    name: str
    space: str
    size: int
    alignment: int
    place: int


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, or of a function (then ``variable`` is None), and an offset."""

    name: str
    variable: Variable | None
    offset: int = 0


@dataclass(frozen=True)
class Memory:
    """``[base + offset]``"""

    base: Operand
    offset: int


@dataclass(frozen=True)
class Vector:
    """``{a, b}``, or the list in parentheses of a call."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``p|q``"""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Negated:
    """``!p``"""

    register: Register


@dataclass(frozen=True)
class Sink:
    """``_``"""


@dataclass(frozen=True)
class Target:
    """Where a label stands. instruction: index of what follows it."""

    name: str
    instruction: int


Operand = Register | Immediate | Special | Symbol | Memory | Vector | Pair | Negated | Sink | Target


@dataclass(frozen=True)
class Signature:
    """What a function takes and gives back: registers or variables of its own."""

    results: tuple[Register | Variable, ...]
    parameters: tuple[Register | Variable, ...]


@dataclass(frozen=True)
class Instruction:
    """A statement with its operands resolved. targets: of brx and of indirect calls, where they are listed.

    number: its place among all statements of the module; what observers and faults report.
    hidden: made by the lowering, not in the text: never counted, never observed.
    named: the registers that the statement names, as it writes them.
    """

    statement: Statement
    number: int
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None = None
    negated: bool = False
    targets: tuple[Target, ...] = ()
    prototype: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    hidden: bool = False
    named: tuple[tuple[str, Register], ...] = ()

    @property
    def name(self) -> str:
        return self.parts[0]

    def refused(self, message: str) -> PtxRefusedError:
        return PtxRefusedError(self.statement.line, self.statement.text, message)


@dataclass
class Program:
    """A function ready to be cut into blocks. registers: their types, by index."""

    text: FunctionText
    signature: Signature
    registers: list[str] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    frame_size: int = 0
    callees: set[str] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)
    indirect: bool = False


@dataclass
class _Names:
    registers: dict[str, Register | Vector] = field(default_factory=dict)
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    targets: dict[str, Targets] = field(default_factory=dict)
    prototypes: dict[str, Prototype] = field(default_factory=dict)


def variable_size(declaration: Declaration) -> tuple[int, int]:
    """Bytes and alignment of a variable. An open array counts none."""
    dtype = TYPES.get(declaration.type)
    if dtype is None or declaration.type == "pred":
        raise PtxRefusedError(declaration.line, declaration.text, f"a variable of type .{declaration.type}")
    element = dtype.itemsize * declaration.vector
    count = declaration.count if declaration.count is not None else 1
    for dimension in declaration.dimensions:
        count *= dimension or 0
    alignment = declaration.alignment or element
    if alignment & (alignment - 1) or alignment > 1 << 20:
        raise PtxRefusedError(declaration.line, declaration.text, "an alignment that is no power of two")
    return element * count, alignment


def resolve(
    text: FunctionText,
    variables: Mapping[str, Variable],
    functions: Mapping[str, FunctionText],
    add_shared: Any,
    numbers: list[Statement],
) -> Program:
    """Resolve a function with a body.

    variables: of the module. add_shared(declaration) -> Variable: takes in a ``.shared`` of the body.
    numbers: grows by the function's statements.
    """
    return _Resolver(text, variables, functions, add_shared, numbers).program


class _Resolver:
    def __init__(
        self,
        text: FunctionText,
        variables: Mapping[str, Variable],
        functions: Mapping[str, FunctionText],
        add_shared: Any,
        numbers: list[Statement],
    ) -> None:
        self.text = text
        self.functions = functions
        self.add_shared = add_shared
        self.numbers = numbers
        self.registers: list[str] = []
        self.frame = 0
        self.scopes = [_Names(variables=dict(variables)), _Names()]
        self.program = Program(text, Signature((), ()), self.registers)
        self.statement: Statement | None = None
        self.seen: dict[str, Register] = {}
        results = tuple(self.formal(declaration) for declaration in text.results)
        parameters = self.kernel_parameters() if text.entry else tuple(self.formal(one) for one in text.parameters)
        self.program.signature = Signature(results, parameters)
        self.body()
        self.program.frame_size = -(-self.frame // 8) * 8

    # -- declarations

    def kernel_parameters(self) -> tuple[Variable, ...]:
        offset = 0
        found = []
        for declaration in self.text.parameters:
            size, alignment = variable_size(declaration)
            offset = -(-offset // alignment) * alignment
            variable = Variable(declaration.name, "param", size, alignment, offset)
            self.scopes[-1].variables[declaration.name] = variable
            found.append(variable)
            offset += size
        return tuple(found)

    def formal(self, declaration: Declaration) -> Register | Variable:
        if declaration.space == "reg":
            register = self.new_register(declaration)
            self.scopes[-1].registers[declaration.name] = register
            return register
        return self.in_frame(declaration)

    def in_frame(self, declaration: Declaration) -> Variable:
        size, alignment = variable_size(declaration)
        # Frames lie in planes of eight bytes, so no variable shares one with another.
        alignment = max(alignment, 8)
        self.frame = -(-self.frame // alignment) * alignment
        variable = Variable(declaration.name, "local", size, alignment, self.frame)
        self.frame += -(-size // 8) * 8
        if self.frame > _LARGEST_FRAME:
            raise PtxRefusedError(declaration.line, declaration.text, "more than 512 KiB of local memory a thread")
        self.scopes[-1].variables[declaration.name] = variable
        return variable

    def new_register(self, declaration: Declaration) -> Register:
        if declaration.type not in TYPES:
            raise PtxRefusedError(declaration.line, declaration.text, f"a register of type .{declaration.type}")
        return self.numbered(declaration.type)

    def numbered(self, type_name: str) -> Register:
        self.registers.append(type_name)
        return Register(len(self.registers) - 1, type_name)

    def declare(self, declaration: Declaration) -> None:
        names = self.scopes[-1]
        if declaration.space == "reg":
            if declaration.type not in TYPES:
                raise PtxRefusedError(declaration.line, declaration.text, f"a register of type .{declaration.type}")
            if declaration.count is not None:
                names.ranges[declaration.name] = (declaration.count, declaration.type)
            elif declaration.vector > 1:
                elements = tuple(self.numbered(declaration.type) for _ in range(declaration.vector))
                names.registers[declaration.name] = Vector(elements)
            else:
                names.registers[declaration.name] = self.numbered(declaration.type)
        elif declaration.space in ("local", "param"):
            for name, one in _expanded(declaration):
                names.variables[name] = self.in_frame(one)
        elif declaration.space == "shared":
            for name, one in _expanded(declaration):
                names.variables[name] = self.add_shared(one)
        else:
            raise PtxRefusedError(declaration.line, declaration.text, f".{declaration.space} inside a function")

    # -- the body

    def body(self) -> None:
        items = self.text.items or ()
        # Labels may be used before they are met: their scopes are found first.
        inner: dict[int, _Names] = {}
        stack = [self.scopes[-1]]
        counted = 0
        for position, item in enumerate(items):
            if isinstance(item, Scope):
                if item.opens:
                    inner[position] = _Names()
                    stack.append(inner[position])
                else:
                    stack.pop()
            elif isinstance(item, Label):
                if item.name in stack[-1].labels:
                    raise PtxRefusedError(item.line, item.name + ":", "a label twice")
                stack[-1].labels[item.name] = counted
            elif isinstance(item, Targets):
                stack[-1].targets[item.name] = item
            elif isinstance(item, Prototype):
                stack[-1].prototypes[item.name] = item
            elif isinstance(item, Statement):
                counted += 1
        for position, item in enumerate(items):
            if isinstance(item, Scope):
                if item.opens:
                    self.scopes.append(inner[position])
                else:
                    self.scopes.pop()
            elif isinstance(item, Declaration):
                self.declare(item)
            elif isinstance(item, Statement):
                self.program.instructions.append(self.instruction(item))

    def refused(self, message: str) -> PtxRefusedError:
        statement = self.statement
        if statement is None:
            return PtxRefusedError(self.text.line, self.text.text, message)
        return PtxRefusedError(statement.line, statement.text, message)

    def instruction(self, statement: Statement) -> Instruction:
        self.statement = statement
        self.seen = {}
        self.numbers.append(statement)
        parts = tuple(statement.opcode.split("."))
        guard = None
        if statement.guard is not None:
            found = self.register(statement.guard)
            if not isinstance(found, Register) or found.type != "pred":
                raise self.refused(f"{statement.guard} is no predicate")
            guard = found
        targets: tuple[Target, ...] = ()
        prototype = None
        operands: tuple[Operand, ...]
        if parts[0] == "call":
            operands, targets, prototype = self.call(statement)
        elif parts[0] == "bra" and len(statement.operands) == 1:
            operands = (self.label(statement.operands[0]),)
        elif parts[0] == "brx" and len(statement.operands) == 2:
            operands = (self.operand(statement.operands[0]),)
            listed = self.find("targets", statement.operands[1])
            if listed is None:
                raise self.refused(f"{statement.operands[1]} is no list of labels")
            targets = tuple(self.label(name) for name in listed.targets)
        else:
            operands = tuple(self.operand(text) for text in statement.operands)
        return Instruction(
            statement,
            len(self.numbers) - 1,
            parts,
            operands,
            guard,
            statement.negated,
            targets,
            prototype,
            named=tuple(self.seen.items()),
        )

    def find(self, kind: str, name: str) -> Any:
        for names in reversed(self.scopes):
            found = getattr(names, kind).get(name)
            if found is not None:
                return found
        return None

    def label(self, name: str) -> Target:
        place = self.find("labels", name)
        if place is None:
            raise self.refused(f"no label {name}")
        return Target(name, place)

    def register(self, name: str) -> Register | Vector | None:
        found = self.known_register(name)
        if isinstance(found, Register):
            self.seen[name] = found
        return found

    def known_register(self, name: str) -> Register | Vector | None:
        numbered = _NUMBERED.fullmatch(name)
        for names in reversed(self.scopes):
            if name in names.registers:
                return names.registers[name]
            if numbered is not None and numbered[1] in names.ranges:
                count, type_name = names.ranges[numbered[1]]
                if int(numbered[2]) < count:
                    if len(self.registers) >= _MOST_REGISTERS:
                        raise self.refused("too many registers")
                    names.registers[name] = self.numbered(type_name)
                    return names.registers[name]
            if name in names.variables or name in names.labels:
                return None
        return None

    def call(
        self, statement: Statement
    ) -> tuple[tuple[Operand, ...], tuple[Target, ...], tuple[tuple[int, ...], tuple[int, ...]] | None]:
        """``call (results), function, (arguments), prototype`` → (results, function, arguments)."""
        rest = list(statement.operands)
        results: Operand = self.operand(rest.pop(0)) if rest and rest[0].startswith("(") else Vector(())
        if not rest:
            raise self.refused("no function to call")
        name = rest.pop(0)
        arguments: Operand = self.operand(rest.pop(0)) if rest and rest[0].startswith("(") else Vector(())
        target = self.operand(name)
        if isinstance(target, Register):
            self.program.indirect = True
            if len(rest) != 1:
                raise self.refused("an indirect call without a prototype")
            listed = self.find("targets", rest[0])
            if listed is not None:
                return (
                    (results, target, arguments),
                    tuple(Target(one, -1) for one in listed.targets),
                    None,
                )
            prototype = self.find("prototypes", rest[0])
            if prototype is None:
                raise self.refused(f"{rest[0]} is no prototype")
            shape = (
                tuple(variable_size(one)[0] for one in prototype.results),
                tuple(variable_size(one)[0] for one in prototype.parameters),
            )
            return (results, target, arguments), (), shape
        if not isinstance(target, Symbol) or target.variable is not None or target.offset:
            raise self.refused(f"{name} is no function")
        self.program.callees.add(target.name)
        return (results, target, arguments), (), None

    # -- operands

    def operand(self, text: str, depth: int = 0) -> Operand:
        if depth > 3:
            raise self.refused("operands nested too deep")
        first = text[0]
        if first == "_" and text == "_":
            return Sink()
        called = self.statement is not None and self.statement.opcode.partition(".")[0] == "call"
        if first == "{" or (first == "(" and called):
            if text[-1] != {"{": "}", "(": ")"}[first]:
                raise self.refused(f"cannot read {text}")
            return self.vector(text, depth)
        if first == "[":
            return self.memory(text, depth)
        if first == "!":
            found = self.register(text[1:].strip())
            if not isinstance(found, Register):
                raise self.refused(f"{text[1:].strip()} is no register")
            return Negated(found)
        if "|" in text and (first in "%_" or first.isalpha()):
            left, right = text.split("|", 1)
            if not left.strip() or not right.strip():
                raise self.refused(f"cannot read {text}")
            return Pair(self.operand(left.strip(), depth + 1), self.operand(right.strip(), depth + 1))
        bits = float_bits(text)
        if bits is not None:
            return Immediate(*bits)
        match = _NAME_AND_OFFSET.fullmatch(text)
        if match is not None:
            return self.named(match, text)
        component = _COMPONENT.fullmatch(text)
        if component is not None:
            return self.component(component)
        value = evaluate_integer(text.replace("WARP_SZ", "32"))
        if value is None:
            raise self.refused(f"cannot read {text}")
        return Immediate(value)

    def vector(self, text: str, depth: int) -> Vector:
        elements: list[Operand] = []
        for part in split_operands(text[1:-1]):
            if not part:
                raise self.refused(f"cannot read {text}")
            element = self.operand(part, depth + 1)
            elements += element.elements if isinstance(element, Vector) else (element,)
        return Vector(tuple(elements))

    def component(self, match: re.Match[str]) -> Operand:
        found = self.register(match[1])
        if isinstance(found, Vector) and _COMPONENTS[match[2]] < len(found.elements):
            return found.elements[_COMPONENTS[match[2]]]
        name = f"{match[1][1:]}.{match[2]}"
        if match[1].startswith("%") and name in SPECIAL_REGISTERS:
            return Special(name)
        raise self.refused(f"no register {match[0]}")

    def named(self, match: re.Match[str], text: str) -> Operand:
        name = match[1]
        offset = 0
        if match[2]:
            value = evaluate_integer(match[3])
            if value is None:
                raise self.refused(f"cannot read {text}")
            offset = value if match[2] == "+" else -value
        register = self.register(name)
        if register is not None:
            if offset:
                raise self.refused(f"cannot read {text}")
            return register
        variable = self.find("variables", name)
        if variable is not None:
            if variable.space == "shared":
                self.program.shared.add(variable.place)
            return Symbol(name, variable, offset)
        if name == "WARP_SZ":
            return Immediate(32 + offset)
        if name in self.functions:
            self.program.callees.add(name)
            return Symbol(name, None, offset)
        if name[0] == "%" and name[1:] in SPECIAL_REGISTERS and not offset:
            return Special(name[1:])
        if name[0] == "%" and f"{name[1:]}.x" in SPECIAL_REGISTERS and not offset:
            return Vector(tuple(Special(f"{name[1:]}.{axis}") for axis in "xyzw"))
        raise self.refused(f"no register, variable or function {name}")

    def memory(self, text: str, depth: int) -> Memory:
        if text[-1] != "]":
            raise self.refused(f"cannot read {text}")
        inside = text[1:-1].strip()
        if not inside:
            raise self.refused("an address without a base")
        match = _NAME_AND_OFFSET.fullmatch(inside)
        if match is not None:
            register = self.register(match[1])
            if isinstance(register, Register):
                offset = evaluate_integer(match[3]) if match[2] else 0
                if offset is None:
                    raise self.refused(f"cannot read {text}")
                return Memory(register, -offset if match[2] == "-" else offset)
        base = self.operand(inside, depth + 1)
        if isinstance(base, Symbol):
            return Memory(Symbol(base.name, base.variable), base.offset)
        if isinstance(base, Immediate):
            return Memory(base, 0)
        if isinstance(base, Register):
            return Memory(base, 0)
        raise self.refused(f"cannot read {text}")


def _expanded(declaration: Declaration) -> list[tuple[str, Declaration]]:
    # .param .b32 p<3> declares p0, p1, p2.
    if declaration.count is None:
        return [(declaration.name, declaration)]
    if declaration.count > 4096:
        raise PtxRefusedError(declaration.line, declaration.text, "too many variables")
    return [
        (
            f"{declaration.name}{number}",
            Declaration(
                declaration.line,
                declaration.text,
                f"{declaration.name}{number}",
                declaration.space,
                declaration.type,
                None,
                declaration.dimensions,
                declaration.alignment,
                declaration.vector,
            ),
        )
        for number in range(declaration.count)
    ]
