"""Name resolution: one function of a PTX module with every register, variable, label and function name resolved."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neutrino.emulator.constant_expressions import evaluate_integer, float_bits
from neutrino.emulator.datatypes import TYPES
from neutrino.emulator.geometry import WARP
from neutrino.emulator.resolved_operands import (
    CallShape,
    Immediate,
    Memory,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Sum,
    Symbol,
    Target,
    Variable,
    Vector,
)
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

_NAME_AND_OFFSET = re.compile(r"([A-Za-z_$%][\w$]*)\s*(?:([-+])\s*(.+))?", re.ASCII | re.DOTALL)
# A name of a register range such as ``%r<5>``: the prefix ``%r`` and the number.
_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d{0,8})", re.ASCII | re.DOTALL)
_COMPONENT = re.compile(r"([A-Za-z_$%][\w$]*)\.([xyzwrgba])", re.ASCII)
_COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}
# Limits far above what compilers write: they bound the time, the memory and the recursion that a text can cost.
_MAX_REGISTERS = 1 << 20
_MAX_ALIGNMENT = 1 << 20  # in bytes
_MAX_OPERAND_DEPTH = 3
_MAX_DECLARED_TOGETHER = 4096
_MAX_FRAME_SIZE = 512 << 10  # CUDA C++ Programming Guide, technical specifications: local memory per thread


@dataclass(frozen=True)
class Signature:
    """The formal results and parameters of a function: registers, or variables in its frame."""

    results: tuple[Register | Variable, ...]
    parameters: tuple[Register | Variable, ...]


@dataclass(frozen=True)
class Instruction:
    """A statement with its operands resolved.

    number: index among all statements of the module; observers and faults report it.
    parts: the opcode split at its dots. guard, negated: the predicate of ``@p`` or ``@!p``.
    targets: the labels of a ``brx.idx``, or the functions of a ``.calltargets``. prototype: of an indirect call.
    hidden: inserted when the control-flow graph is built, not in the text: never counted, never observed.
    named: (name as written, register) for each register that the statement names.
    """

    statement: Statement
    number: int
    parts: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None = None
    negated: bool = False
    targets: tuple[Target, ...] = ()
    prototype: CallShape | None = None
    hidden: bool = False
    named: tuple[tuple[str, Register], ...] = ()

    @property
    def name(self) -> str:
        """The opcode without its modifiers, as ``ld``."""
        return self.parts[0]

    def refused(self, message: str) -> PtxRefusedError:
        """Return the error to raise for this statement."""
        return PtxRefusedError(self.statement.line, self.statement.text, message)


@dataclass
class Program:
    """A resolved function.

    registers: the type of each register, by index. frame_size: bytes of its stack frame. callees: names of the
    functions that it names. shared: numbers of the ``.shared`` variables that it names. indirect: it calls through a
    register.
    """

    text: FunctionText
    signature: Signature
    registers: list[str] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    frame_size: int = 0
    callees: set[str] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)
    indirect: bool = False


@dataclass
class _ScopeNames:
    """The names that one scope (the module, the function's head, or a ``{ }`` block of its body) declares.

    ranges: prefix → (count, type), of ``.reg .b32 %r<5>``. labels: name → index of the instruction after it.
    """

    registers: dict[str, Register | Vector] = field(default_factory=dict)
    ranges: dict[str, tuple[int, str]] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    targets: dict[str, Targets] = field(default_factory=dict)
    prototypes: dict[str, Prototype] = field(default_factory=dict)


def variable_size(declaration: Declaration) -> tuple[int, int]:
    """Return the size and the alignment of a variable, in bytes. An array of open size (``[]``) has size 0.

    Raises PtxRefusedError for a type that memory cannot hold and for an invalid alignment.
    """
    dtype = TYPES.get(declaration.type)
    # Predicates exist in registers only.
    if dtype is None or declaration.type == "pred":
        raise PtxRefusedError(declaration.line, declaration.text, f"a variable of type .{declaration.type}")
    element_size = dtype.itemsize * declaration.vector
    element_count = declaration.count if declaration.count is not None else 1
    for dimension in declaration.dimensions:
        element_count *= dimension or 0  # an open dimension is None
    alignment = declaration.alignment or element_size
    is_power_of_two = alignment & (alignment - 1) == 0
    if not is_power_of_two or alignment > _MAX_ALIGNMENT:
        raise PtxRefusedError(declaration.line, declaration.text, "an alignment that is no power of two")
    return element_size * element_count, alignment


def _formal_sizes(formals: tuple[Declaration, ...]) -> tuple[int, ...]:
    """Return the sizes in bytes of parameters or results, as ``declare_formal`` counts them."""
    sizes: list[int] = []
    for declaration in formals:
        size, _ = variable_size(declaration)
        count = declaration.vector if declaration.space == "reg" else 1
        sizes += [size // count] * count
    return tuple(sizes)


def resolve(
    text: FunctionText,
    variables: Mapping[str, Variable],
    functions: Mapping[str, FunctionText],
    add_shared: Callable[[Declaration], Variable],
    lasting: Callable[[Declaration], Sequence[Variable]],
    module_statements: list[Statement],
) -> Program:
    """Resolve every name in a function that has a body. Raises PtxRefusedError for an unknown name.

    variables, functions: those of the module, by name. add_shared: called for each ``.shared`` declaration in the
    body; it adds the variable to the module. lasting: gives the variables of a ``.global`` or ``.const`` declaration in
    the body, which the module has already. module_statements: those of the functions that were resolved before; those
    of this one are appended, so that the index of each is its number in the module.
    """
    return _Resolver(text, variables, functions, add_shared, lasting, module_statements).program


def _round_up(size: int, multiple: int) -> int:
    """Return the size rounded up to a multiple of another number."""
    return -(-size // multiple) * multiple


class _Resolver:
    """Resolves the names of one function. The result is ``program``, complete after construction.

    The parameters of ``__init__`` are those of ``resolve``. registers, frame_size: of the function so far, as in
    ``Program``. scopes: the names that can be seen at the current place of the text, those of the innermost scope last.
    """

    def __init__(
        self,
        text: FunctionText,
        variables: Mapping[str, Variable],
        functions: Mapping[str, FunctionText],
        add_shared: Callable[[Declaration], Variable],
        lasting: Callable[[Declaration], Sequence[Variable]],
        module_statements: list[Statement],
    ) -> None:
        """Resolve the whole function; the parameters are those of ``resolve``.

        Raises PtxRefusedError for an unknown name.
        """
        self.text = text
        self.functions = functions
        self.add_shared = add_shared
        self.lasting = lasting
        self.module_statements = module_statements
        self.registers: list[str] = []
        self.frame_size = 0
        # The module's names, then those that the function's head and the outermost level of its body declare.
        self.scopes = [_ScopeNames(variables=dict(variables)), _ScopeNames()]
        # The signature is set below: its registers and variables are declared first.
        self.program = Program(text, Signature((), ()), self.registers)
        # The statement that is being resolved, and the registers that it has named so far.
        self.statement: Statement | None = None
        self.named: dict[str, Register] = {}

        results = tuple(formal for declaration in text.results for formal in self.declare_formal(declaration))
        if text.entry:
            parameters: tuple[Register | Variable, ...] = self.declare_kernel_parameters()
        else:
            parameters = tuple(
                formal for declaration in text.parameters for formal in self.declare_formal(declaration)
            )
        self.program.signature = Signature(results, parameters)
        self.resolve_body()
        # The callee's frame begins there: its variables may be aligned as far as those of any vector.
        self.program.frame_size = _round_up(self.frame_size, 16)

    # -- declarations

    def declare_kernel_parameters(self) -> tuple[Variable, ...]:
        """Declare the parameters of a kernel, each at the next aligned offset of the packed parameter buffer."""
        offset = 0
        parameters = []
        for declaration in self.text.parameters:
            size, alignment = variable_size(declaration)
            offset = _round_up(offset, alignment)
            variable = Variable(declaration.name, "param", size, alignment, offset)
            self.scopes[-1].variables[declaration.name] = variable
            parameters.append(variable)
            offset += size
        return tuple(parameters)

    def declare_formal(self, declaration: Declaration) -> tuple[Register | Variable, ...]:
        """Declare a result or a parameter of a ``.func``: a ``.reg`` is a register, a ``.param`` lies in the frame.

        A vector of registers is one parameter for each of its elements, as it is in the lists of calls.
        """
        if declaration.space == "reg":
            elements = tuple(self.new_register(declaration) for _ in range(declaration.vector))
            self.scopes[-1].registers[declaration.name] = elements[0] if len(elements) == 1 else Vector(elements)
            return elements
        return (self.declare_in_frame(declaration),)

    def declare_in_frame(self, declaration: Declaration) -> Variable:
        """Declare a variable of the function and reserve room for it in the function's stack frame.

        Raises PtxRefusedError for a frame above the 512 KiB of local memory per thread.
        """
        size, alignment = variable_size(declaration)
        # The emulator stores local memory in units of eight bytes, of which no two variables share one.
        alignment = max(alignment, 8)
        self.frame_size = _round_up(self.frame_size, alignment)
        variable = Variable(declaration.name, "local", size, alignment, self.frame_size)
        self.frame_size += _round_up(size, 8)
        if self.frame_size > _MAX_FRAME_SIZE:
            raise PtxRefusedError(declaration.line, declaration.text, "more than 512 KiB of local memory a thread")
        self.scopes[-1].variables[declaration.name] = variable
        return variable

    def new_register(self, declaration: Declaration) -> Register:
        """Add a register of the declared type. Raises PtxRefusedError for an unknown type."""
        if declaration.type not in TYPES:
            raise PtxRefusedError(declaration.line, declaration.text, f"a register of type .{declaration.type}")
        return self.add_register(declaration.type)

    def add_register(self, type_name: str) -> Register:
        """Append a register to the function's register file."""
        self.registers.append(type_name)
        return Register(len(self.registers) - 1, type_name)

    def declare(self, declaration: Declaration) -> None:
        """Enter a declaration of the body into the innermost scope.

        Raises PtxRefusedError for an unknown register type and for a state space that a body cannot declare.
        """
        names = self.scopes[-1]
        if declaration.space == "reg":
            if declaration.type not in TYPES:
                raise PtxRefusedError(declaration.line, declaration.text, f"a register of type .{declaration.type}")
            if declaration.count is not None:
                # A register of a range is added when it is first named, so the register file has only used ones.
                names.ranges[declaration.name] = (declaration.count, declaration.type)
            elif declaration.vector > 1:
                elements = tuple(self.add_register(declaration.type) for _ in range(declaration.vector))
                names.registers[declaration.name] = Vector(elements)
            else:
                names.registers[declaration.name] = self.add_register(declaration.type)
        elif declaration.space in ("local", "param"):
            for single in single_declarations(declaration):
                names.variables[single.name] = self.declare_in_frame(single)
        elif declaration.space == "shared":
            for single in single_declarations(declaration):
                names.variables[single.name] = self.add_shared(single)
        elif declaration.space in ("global", "const"):
            for single, variable in zip(single_declarations(declaration), self.lasting(declaration), strict=True):
                names.variables[single.name] = variable
        else:
            raise PtxRefusedError(declaration.line, declaration.text, f".{declaration.space} inside a function")

    # -- the body

    def resolve_body(self) -> None:
        """Resolve the statements of the body, in text order, into ``program.instructions``.

        Labels, and the lists and prototypes that have a label, are collected before that.
        """
        inner_scopes = self.collect_labels()
        for position, item in enumerate(self.text.items or ()):
            if isinstance(item, Scope):
                if item.opens:
                    self.scopes.append(inner_scopes[position])
                else:
                    self.scopes.pop()
            elif isinstance(item, Declaration):
                self.declare(item)
            elif isinstance(item, Statement):
                self.program.instructions.append(self.instruction(item))

    def collect_labels(self) -> dict[int, _ScopeNames]:
        """Return the scope that each ``{`` of the body opens, by its index in ``text.items``, with its labels.

        A branch may name a label further down, so labels are collected before any statement is resolved. Labels
        outside of all braces go into the function's own scope. Raises PtxRefusedError for a label defined twice.
        """
        inner_scopes: dict[int, _ScopeNames] = {}
        stack = [self.scopes[-1]]
        statement_count = 0
        for position, item in enumerate(self.text.items or ()):
            if isinstance(item, Scope):
                if item.opens:
                    inner_scopes[position] = _ScopeNames()
                    stack.append(inner_scopes[position])
                else:
                    stack.pop()
            elif isinstance(item, Label):
                if item.name in stack[-1].labels:
                    raise PtxRefusedError(item.line, item.name + ":", "a label twice")
                stack[-1].labels[item.name] = statement_count
            elif isinstance(item, Targets):
                stack[-1].targets[item.name] = item
            elif isinstance(item, Prototype):
                stack[-1].prototypes[item.name] = item
            elif isinstance(item, Statement):
                statement_count += 1
        return inner_scopes

    def refused(self, message: str) -> PtxRefusedError:
        """Return the error to raise for the statement that is being resolved, or for the function's head before the
        first one.
        """
        statement = self.statement
        if statement is None:
            return PtxRefusedError(self.text.line, self.text.text, message)
        return PtxRefusedError(statement.line, statement.text, message)

    def instruction(self, statement: Statement) -> Instruction:
        """Resolve one statement. Raises PtxRefusedError for an unknown name or an operand that cannot be read."""
        self.statement = statement
        self.named = {}
        self.module_statements.append(statement)
        number = len(self.module_statements) - 1
        parts = tuple(statement.opcode.split("."))

        guard = None
        if statement.guard is not None:
            predicate = self.register(statement.guard)
            if not isinstance(predicate, Register) or predicate.type != "pred":
                raise self.refused(f"{statement.guard} is no predicate")
            guard = predicate

        targets: tuple[Target, ...] = ()
        prototype = None
        operands: tuple[Operand, ...]
        if parts[0] == "call":
            operands, targets, prototype = self.call(statement)
        elif parts[0] == "bra" and len(statement.operands) == 1:
            operands = (self.branch_target(statement.operands[0]),)
        elif parts[0] == "brx" and len(statement.operands) == 2:
            index, list_name = statement.operands
            # The list of labels goes into ``targets``.
            operands = (self.operand(index),)
            label_list = self.lookup("targets", list_name)
            if label_list is None:
                raise self.refused(f"{list_name} is no list of labels")
            targets = tuple(self.branch_target(name) for name in label_list.targets)
        else:
            operands = tuple(self.operand(text) for text in statement.operands)

        return Instruction(
            statement,
            number,
            parts,
            operands,
            guard,
            statement.negated,
            targets,
            prototype,
            named=tuple(self.named.items()),
        )

    def lookup(self, dictionary: str, name: str) -> Any:
        """Return what a name means in the innermost scope that declares it, None if no scope does.

        dictionary: which one of ``_ScopeNames``: ``variables``, ``labels``, ``targets`` or ``prototypes``.
        """
        for names in reversed(self.scopes):
            found = getattr(names, dictionary).get(name)
            if found is not None:
                return found
        return None

    def branch_target(self, name: str) -> Target:
        """Return the label of that name as a target. Raises PtxRefusedError for an unknown label."""
        index = self.lookup("labels", name)
        if index is None:
            raise self.refused(f"no label {name}")
        return Target(name, index)

    def register(self, name: str) -> Register | Vector | None:
        """Return the register, or vector of registers, of that name (None: no register); record it in ``named``."""
        register = self.find_register(name)
        # For observers, which are shown the values of these registers. A vector has no value of its own to show.
        if isinstance(register, Register):
            self.named[name] = register
        return register

    def find_register(self, name: str) -> Register | Vector | None:
        """Return the register, or the vector of registers, of that name; None where it names none.

        A register of a range (``%r12`` of ``.reg .b32 %r<99>``) is added to the register file when first named.
        """
        numbered = None
        for names in reversed(self.scopes):
            found = names.registers.get(name)
            if found is not None:
                return found
            if names.ranges:
                numbered = numbered or _NUMBERED.fullmatch(name)
                count, type_name = names.ranges.get(numbered[1], (0, "")) if numbered is not None else (0, "")
                if numbered is not None and int(numbered[2]) < count:
                    if len(self.registers) >= _MAX_REGISTERS:
                        raise self.refused("too many registers")
                    names.registers[name] = self.add_register(type_name)
                    return names.registers[name]
            if name in names.variables or name in names.labels:
                # An inner variable or label hides a register of an outer scope.
                return None
        return None

    def call(self, statement: Statement) -> tuple[tuple[Operand, ...], tuple[Target, ...], CallShape | None]:
        """Resolve ``call (results), function, (arguments), prototype``; results and arguments may be missing.

        Returns the operands (results, function, arguments). For an indirect call, through a register, returns also the
        functions of its ``.calltargets`` or, where it names a ``.callprototype``, the sizes of its results and
        parameters. What follows the arguments of a direct call is ignored: the function has a signature of its own.
        """
        texts = list(statement.operands)
        results: Operand = self.operand(texts.pop(0)) if texts and texts[0].startswith("(") else Vector(())
        if not texts:
            raise self.refused("no function to call")
        function_name = texts.pop(0)
        arguments: Operand = self.operand(texts.pop(0)) if texts and texts[0].startswith("(") else Vector(())
        function = self.operand(function_name)
        operands = (results, function, arguments)

        if isinstance(function, Register):
            self.program.indirect = True
            if len(texts) != 1:
                raise self.refused("an indirect call without a prototype")
            (prototype_name,) = texts
            call_targets = self.lookup("targets", prototype_name)
            if call_targets is not None:
                return operands, tuple(Target(name, -1) for name in call_targets.targets), None
            prototype = self.lookup("prototypes", prototype_name)
            if prototype is None:
                raise self.refused(f"{prototype_name} is no prototype")
            result_sizes = _formal_sizes(prototype.results)
            parameter_sizes = _formal_sizes(prototype.parameters)
            return operands, (), (result_sizes, parameter_sizes)

        if not isinstance(function, Symbol) or function.variable is not None or function.offset:
            raise self.refused(f"{function_name} is no function")
        self.program.callees.add(function.name)
        return operands, (), None

    # -- operands

    def operand(self, text: str, depth: int = 0) -> Operand:
        """Resolve one operand. depth: how many vectors, pairs or addresses enclose it.

        Raises PtxRefusedError for an unknown name, and for text that is no operand or is nested too deep.
        """
        if depth > _MAX_OPERAND_DEPTH:
            raise self.refused("operands nested too deep")
        first = text[0]
        if text == "_":
            return Sink()
        if first == "%":
            # Most operands are registers that were named before.
            known = self.scopes[-1].registers.get(text)
            if isinstance(known, Register):
                self.named[text] = known
                return known
        # Only a call has lists in parentheses; elsewhere a parenthesis begins a constant expression.
        in_call = self.statement is not None and self.statement.opcode.partition(".")[0] == "call"
        if first == "{" or (first == "(" and in_call):
            if text[-1] != {"{": "}", "(": ")"}[first]:
                raise self.refused(f"cannot read {text}")
            return self.vector(text, depth)
        if first == "[":
            return self.memory(text, depth)
        if first == "!":
            predicate = self.register(text[1:].strip())
            if not isinstance(predicate, Register):
                raise self.refused(f"{text[1:].strip()} is no register")
            return Negated(predicate)
        # ``p|q`` begins with a name; after a number, ``|`` is the operator of a constant expression.
        if "|" in text and (first in "%_" or first.isalpha()):
            left, right = text.split("|", 1)
            if not left.strip() or not right.strip():
                raise self.refused(f"cannot read {text}")
            return Pair(self.operand(left.strip(), depth + 1), self.operand(right.strip(), depth + 1))
        float_constant = float_bits(text)
        if float_constant is not None:
            return Immediate(*float_constant)
        match = _NAME_AND_OFFSET.fullmatch(text)
        if match is not None:
            return self.named_operand(match)
        component = _COMPONENT.fullmatch(text)
        if component is not None:
            return self.component(component)
        # ``WARP_SZ`` alone, or with an offset, is a named operand; here it is inside a longer expression.
        value = evaluate_integer(text.replace("WARP_SZ", str(WARP)))
        if value is None:
            raise self.refused(f"cannot read {text}")
        return Immediate(value)

    def vector(self, text: str, depth: int) -> Vector:
        """Resolve ``{a, b}`` or ``(a, b)``; elements that are vectors contribute theirs. depth: as in ``operand``."""
        elements: list[Operand] = []
        for part in split_operands(text[1:-1]):
            if not part:
                raise self.refused(f"cannot read {text}")
            element = self.operand(part, depth + 1)
            elements += element.elements if isinstance(element, Vector) else (element,)
        return Vector(tuple(elements))

    def component(self, match: re.Match[str]) -> Operand:
        """Resolve ``name.x``: an element of a vector register, or of a special register such as ``%tid.x``."""
        name, letter = match[1], match[2]
        register = self.register(name)
        if isinstance(register, Vector) and _COMPONENTS[letter] < len(register.elements):
            return register.elements[_COMPONENTS[letter]]
        special = f"{name[1:]}.{letter}"  # the table has no ``%``
        if name.startswith("%") and special in SPECIAL_REGISTERS:
            return Special(special)
        raise self.refused(f"no register {match[0]}")

    def named_operand(self, match: re.Match[str]) -> Operand:
        """Resolve ``name``, ``name + offset`` or ``name - offset``; match: of ``_NAME_AND_OFFSET``.

        The name may be a register, a variable, ``WARP_SZ``, a function or a special register, in this order. Raises
        PtxRefusedError for another name, or for an offset where none can be.
        """
        text = match[0]
        name, sign, distance = match.groups()
        offset = 0
        if sign:
            value = evaluate_integer(distance)
            if value is None:
                raise self.refused(f"cannot read {text}")
            offset = value if sign == "+" else -value

        register = self.register(name)
        if register is not None:
            if not sign:
                return register
            # ``memory`` reads the sums that are addresses. As values ptxas 13.0 takes only these: no differences, and
            # it crashes where the register is one of floating-point numbers.
            if sign != "+" or not isinstance(register, Register) or register.dtype.kind not in "iu":
                raise self.refused(f"cannot read {text}")
            return Sum(register, offset)
        variable = self.lookup("variables", name)
        if variable is not None:
            if variable.space == "shared":
                self.program.shared.add(variable.place)
            return Symbol(name, variable, offset)
        if name == "WARP_SZ":
            return Immediate(WARP + offset)
        if name in self.functions:
            self.program.callees.add(name)
            return Symbol(name, None, offset)
        if name[0] == "%" and name[1:] in SPECIAL_REGISTERS and not offset:
            return Special(name[1:])
        if name[0] == "%" and f"{name[1:]}.x" in SPECIAL_REGISTERS and not offset:
            # ``%tid`` alone is the vector of its four components.
            return Vector(tuple(Special(f"{name[1:]}.{axis}") for axis in "xyzw"))
        raise self.refused(f"no register, variable or function {name}")

    def memory(self, text: str, depth: int) -> Memory:
        """Resolve ``[base]`` or ``[base + offset]``, where the base is a register, a symbol or a constant.

        depth: as in ``operand``. Raises PtxRefusedError for any other base.
        """
        if text[-1] != "]":
            raise self.refused(f"cannot read {text}")
        inside = text[1:-1].strip()
        if not inside:
            raise self.refused("an address without a base")
        # A register with an offset comes first: outside of an address it is no operand.
        match = _NAME_AND_OFFSET.fullmatch(inside)
        if match is not None:
            name, sign, distance = match.groups()
            register = self.register(name)
            if isinstance(register, Register):
                offset = evaluate_integer(distance) if sign else 0
                if offset is None:
                    raise self.refused(f"cannot read {text}")
                return Memory(register, -offset if sign == "-" else offset)
        base = self.operand(inside, depth + 1)
        if isinstance(base, Symbol):
            # The offset belongs to the memory operand, not to its base.
            return Memory(Symbol(base.name, base.variable), base.offset)
        if isinstance(base, Immediate | Register):
            return Memory(base, 0)
        raise self.refused(f"cannot read {text}")


def single_declarations(declaration: Declaration) -> list[Declaration]:
    """Return one declaration per variable: ``.param .b32 p<3>`` declares p0, p1 and p2.

    Raises PtxRefusedError for more than 4096 variables.
    """
    if declaration.count is None:
        return [declaration]
    if declaration.count > _MAX_DECLARED_TOGETHER:
        raise PtxRefusedError(declaration.line, declaration.text, "too many variables")
    return [
        replace(declaration, name=f"{declaration.name}{number}", count=None, initialiser="", linkage="")
        for number in range(declaration.count)
    ]
