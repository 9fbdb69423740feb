"""What a twin takes of its module: parameters as probes read them, variables by their addresses, functions as copies.

The twin reaches module variables by addresses in registers: they stay the original's. It has the addresses of constant
variables as global ones: no module can name another's constants. So its loads from the constant space become global
ones, and text is refused in which an address of that space could go where this would show.

A function gets a copy of its own for each twin, ``NAME__neutrino_KERNEL``, when it holds a site or an end of the
thread, names a module variable that is passed by address, or calls a function that does. All others are called as
they are.

The kernel keeps its state in local memory while such a function runs: the words of the probe block that functions
read, at the offsets that they have there, and after them the registers that live from entry to exit. The address
of that state is one more parameter of each copy, a register. A body has in registers of its own what it names itself:
a function loads it at its entry and stores at its returns what it may have changed; around a call a body stores what
the called function names, and loads what that may have changed. So the state is whole wherever a function begins or
ends, which is all that recursion needs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from neutrino.abi.structures import align_up
from neutrino.lazy import lazy
from neutrino.ptx.analysis.linkage import Call, Callee
from neutrino.ptx.instrument.registers import LongLived, Scratch, UnsupportedError, Value, bits
from neutrino.ptx.isa.instruction import REGISTER, Instruction, Mnemonic
from neutrino.ptx.isa.scalars import TYPE_BYTES, WARP_LANES
from neutrino.ptx.snippets.sites import PARAMETER
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.inserted import Edits, Lines, mem, op
from neutrino.ptx.text.module import ModuleStatement, Parameter
from neutrino.twins.values import SUFFIX

_LOADED = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}
"""Type of a value → the type that it is loaded as, where ``ld`` does not have its own."""
_SCALARS = frozenset({
    *(f"{letter}{width}" for letter in "bus" for width in (8, 16, 32, 64)), "f32", "f64", *_LOADED,
})  # fmt: skip
"""Types of parameters that fit into a register of a probe."""
_HELD = {"b8": "b16", "u8": "u16", "s8": "s16"}
"""Type of a value → that of the register that holds it, where there are no registers of its own."""


@dataclass(frozen=True)
class ParameterPart:
    """A part of a kernel's parameter that a probe reads. name: the parameter's; offset: in it, in bytes; type: without
    its dot.

    is_bits: it is taken as bits without a type.
    """

    name: str
    offset: int
    type: str
    is_bits: bool = False

    @property
    def bits(self) -> int:
        """The width in bits of the register that this part of a kernel's parameter is loaded into."""
        return max(TYPE_BYTES[self.type] * 8, 16)

    def load(self, register: str) -> Instruction:
        """The instruction that loads this part of a kernel's parameter into a register, in the kernel's own body."""
        return op(f"ld.param.{_LOADED.get(self.type, self.type)}", register, mem(self.name, self.offset))

    def long_lived(self, prefix: str) -> LongLived:
        """Return the register that keeps this part of a parameter for functions that the kernel calls, which cannot
        read it themselves.

        prefix: begins every register of probes.
        """
        name = f"{prefix}p_{self.name.replace('%', '_')}_{self.offset}_{self.type}"
        return LongLived(name, f"b{self.bits}", "", "", first=self.load(name))

    def value(self, register: str, word: str) -> Value:
        """Return this part of a parameter as an operand for probes' code, with its type, once a register holds it.

        word: what the probe calls it.
        """
        used_as = self.type if self.type in _LOADED else None
        kind = f"b{self.bits}" if self.is_bits or used_as else _HELD.get(self.type, self.type)
        return Value(register, kind, None if self.is_bits else used_as, word)


class Parameters:
    """The parameters of one kernel, as a probe may ask for them."""

    def __init__(self, kernel: Callee) -> None:
        """Give access to the parameters of a kernel, for probes that read them. kernel: not a function that it calls.
        """
        self._kernel = kernel

    @lazy
    def _all(self) -> tuple[Parameter, ...]:
        """The kernel's parameters, in order, with their types and offsets."""
        return self._kernel.module.parameter_layout(self._kernel.function)[0]

    @lazy
    def states_cluster_size(self) -> bool:
        """Whether the kernel's text states how many blocks a cluster has (``.reqnctapercluster``)."""
        kernel = self._kernel
        return ".reqnctapercluster" in kernel.module.code[kernel.function.statement.start : kernel.body.start]

    @lazy
    def fills_warps(self) -> bool:
        """Whether the kernel's text states (``.reqntid``) that its blocks have no warp with fewer than all lanes."""
        return bool(self._extents) and math.prod(self._extents) % WARP_LANES == 0

    @lazy
    def threads_in_line(self) -> int:
        """How many threads a block has, if the kernel's text states that it has one dimension and fills its warps; else
        0."""
        return self._extents[0] if self.fills_warps and set(self._extents[1:]) <= {1} else 0

    @lazy
    def _extents(self) -> list[int]:
        """The extents of the kernel's blocks by ``.reqntid``; [] where its text states none."""
        kernel = self._kernel
        directives = kernel.module.code[kernel.function.statement.start : kernel.body.start]
        sizes = directives.partition(".reqntid")[2].partition(".")[0].replace(",", " ").split()
        return list(map(int, sizes)) if all(map(str.isdecimal, sizes)) else []

    @property
    def shape(self) -> Hashable:
        """A key that is equal for kernels whose parameters a probe reads by the same code, or cannot read for the same
        reason."""
        return self._all

    def find(self, element: str | None) -> ParameterPart:
        """Return the part of the kernel's parameters that a probe reads by ``PARAM.element``, such as
        ``PARAM.0+8.u32``.

        Raises UnsupportedError where there is no such part.
        """
        word = f"PARAM.{element}"
        match = PARAMETER.fullmatch(element or "")
        if match is None:
            raise UnsupportedError(f"{word} names no parameter")
        parameter = self._named(match["which"], word)
        offset, type_ = int(match["offset"] or 0), match["type"]
        if self._kernel.body.may_declare(parameter.name) and parameter.name in self._kernel.body.declarations:
            raise UnsupportedError(f"{word}: the kernel's body declares another {parameter.name}")
        is_bits = type_ == "bits"
        if type_ is None or is_bits:
            if parameter.is_array:
                what = f"has {parameter.size} bytes and no type"
                raise UnsupportedError(f"{word}: {parameter.name} {what}; write PARAM.{match['which']}+OFFSET.TYPE")
            if parameter.type not in _SCALARS:
                message = f"{word}: {parameter.name} is .{parameter.type}, which no register of a probe holds"
                raise UnsupportedError(message)
            return ParameterPart(parameter.name, 0, parameter.type, is_bits)
        size = TYPE_BYTES[type_]
        if offset + size > parameter.size:
            raise UnsupportedError(f"{word} is beyond {parameter.name}, which has {parameter.size} bytes")
        if offset % size or parameter.align % size:
            raise UnsupportedError(f"{word} is not aligned to its {size} bytes in {parameter.name}")
        return ParameterPart(parameter.name, offset, type_)

    def _named(self, which: str, word: str) -> Parameter:
        """Return the kernel's parameter with a number, from 0, or a name. word: what the probe calls it, for the
        message.

        Raises UnsupportedError where there is none.
        """
        count = len(self._all)
        have = f"{self._kernel.function.name} has {count or 'no'} parameter{'' if count == 1 else 's'}"
        if which.isdigit():
            if int(which) >= count:
                raise UnsupportedError(f"{word}: {have}")
            return self._all[int(which)]
        for parameter in self._all:
            if parameter.name == which:
                return parameter
        names = ", ".join(parameter.name for parameter in self._all)
        raise UnsupportedError(f"{word}: {have}" + (f", {names}" if names else ""))


_MOVES = ("mov.u64", "mov.b64", "mov.s64")


def pass_by_address(callee: Callee, registers: Mapping[str, str], edits: Edits) -> None:
    """Replace the module's variables that a body names by registers with their addresses.

    The twin (copy with probes) lies in another module, without these variables. registers: by the variable's name.
    Raises UnsupportedError for a variable in an instruction that takes no register in its place.
    """
    for variable, register in registers.items():
        for start, end in callee.linkage.references(callee.function, variable):
            _replace_reference(callee, variable, register, start, end, edits)


def _replace_reference(callee: Callee, variable: str, register: str, start: int, end: int, edits: Edits) -> None:
    """Replace one reference to a variable, from start to end in the module's text, by the register with its address.

    Raises UnsupportedError where the instruction does not take a register in its place.
    """
    code, body = callee.module.code, callee.body
    statement = body.statement(body.index_at(start))
    preceding = code[statement.start : start]
    # 32 characters are enough for the white space before the next one.
    following = code[end : end + 32].lstrip()
    # Within an address, "[variable+4]": a bracket before it is still open.
    if preceding.count("[") > preceding.count("]"):
        edits.replace(start, end, register)
        return
    # The address itself, "mov.u64 %rd1, variable;" or "cvta.global.u64 %rd1, variable;".
    opcode = statement.opcode
    if following.startswith((";", ",")) and opcode.startswith((*_MOVES, "cvta.")):
        edits.replace(start, end, register)
        return
    # "mov.u64 %rd1, variable+4;": becomes "add.s64 %rd1, register, 4;".
    if following.startswith("+") and opcode in _MOVES:
        plus = code.index("+", end)
        edits.replace(statement.position, statement.position + len(opcode), "add.s64")
        edits.replace(start, plus + 1, f"{register}, ")
        return
    source = " ".join(statement.text.split())
    raise UnsupportedError(f"line {callee.module.line(start)}: it uses {variable} in {source!r}")


# Instructions that pass on an address, or compute a number from it.
_MOVES_ADDRESSES = frozenset({"mov", "add", "sub", "mad", "selp"})


def read_through_global_memory(callee: Callee, edits: Edits) -> bool:
    """Change the loads from constant variables that a body names to loads from global memory, where the twin finds
    them.

    Return whether the body makes generic addresses of constants: then a generic load anywhere in the kernel may read
    one, which ``check_load`` refuses. Raises UnsupportedError for code whose result would depend on the state space.
    """
    names = {variable.name for variable in callee.variables if variable.space == "const"}
    if not names:
        return False
    body = callee.body
    if any(_asks_for_constants(opcode) for opcode in body.opcodes):
        raise UnsupportedError("it asks for the constant space (isspacep.const) and uses constant variables")
    for statement in _about_constants(body):
        mnemonic = statement.mnemonic
        if mnemonic is None or mnemonic.word not in {"ld", "cvta"} or mnemonic.state_space != "const":
            continue
        # An explicit constant bank, as "ld.const[3].f32", where the opcode seems to end before it.
        bank, _, after = statement.operand_text.partition("]")
        if bank.lstrip().startswith("[") and after.lstrip().startswith("."):
            raise UnsupportedError(f"line {callee.module.line(statement.position)}: it names a constant bank")
        space = statement.position + mnemonic.text.index(".const")
        edits.replace(space, space + len(".const"), ".global")
    _check_addresses(callee, names)
    return any(opcode.parts[:2] == ("cvta", "const") for opcode in body.opcodes)


def check_given_addresses(callee: Callee) -> None:
    """Raise UnsupportedError for a body that accesses the constant space by an address that it is given, not by a
    variable's name.

    In the twin (copy with probes) it may be that of one of the kernel's constant variables, which lie in global memory
    there. Bodies that name constant variables themselves are checked by ``read_through_global_memory``.
    """
    function, code = callee.function, callee.module.code
    if function.parameters and ".ptr.const" in "".join(code[slice(*function.parameters)].split()):
        raise UnsupportedError(
            f"{function.name} takes a pointer into the constant space, beside constant variables that move"
        )
    if any(variable.space == "const" for variable in callee.variables):
        return
    for statement in _about_constants(callee.body):
        shown = " ".join(statement.text.split())
        raise UnsupportedError(
            f"line {callee.module.line(statement.position)}: {shown!r} in {function.name} may be about a constant "
            "variable that it does not name, which lies elsewhere for the twin"
        )


def _about_constants(body: Body) -> list[Statement]:
    """The instructions of a body on the constant space: all ``ld.const``, then ``cvta.const``, then ``isspacep.const``.
    In that order, since a refusal names the first.
    """
    words = ("ld", "cvta", "isspacep")
    chosen = {opcode for opcode in body.opcodes if opcode.word in words and "const" in opcode.parts}
    found = [body.statement(index) for index in body.where(chosen)]
    return sorted(found, key=lambda statement: words.index(statement.word))


def _asks_for_constants(opcode: Mnemonic) -> bool:
    """Return whether an instruction asks if an address lies in the constant space."""
    return opcode.word == "isspacep" and "const" in opcode.parts


def check_load(statement: Statement, line: int) -> None:
    """Raise UnsupportedError for a load without a state space, in a kernel that makes generic addresses of constants.

    It may read a constant, which lies elsewhere for the twin. line: of the module's text, from 1.
    """
    if statement.word == "ld" and statement.mnemonic is not None and not statement.mnemonic.state_space:
        raise UnsupportedError(
            f"line {line}: {' '.join(statement.text.split())!r} may read a constant, which lies elsewhere for the twin"
        )


def _check_addresses(callee: Callee, names: set[str]) -> None:
    """Raise UnsupportedError where a number computed from a constant's address serves anything but loads.

    The twin has another address, so that results could differ. names: of the constant variables. Registers are followed
    by name, whatever the order of instructions.
    """
    module, body = callee.module, callee.body
    # Registers that may hold an address in the constant space, or a number computed from one.
    moved: set[str] = set()
    for index in body.where({opcode for opcode in body.opcodes if opcode.word == "mov"}):
        statement = body.statement(index)
        # First a quick search of the text.
        if any(name in statement.text for name in names) and not names.isdisjoint(_read(statement)):
            moved.update(_written(statement))
    # The statements that name a register with such a number.
    users: set[int] = set()
    waiting = sorted(moved)
    while waiting:
        name = waiting.pop()
        for start, _ in body.occurrences(name):
            index = body.index_at(start)
            users.add(index)
            statement = body.statement(index)
            if statement.word in _MOVES_ADDRESSES and name in _read(statement):
                waiting += sorted(_written(statement) - moved)
                moved |= _written(statement)
    for index in sorted(users):
        statement = body.statement(index)
        read = _read(statement)
        loads = statement.word in {"ld", "cvta", *_MOVES_ADDRESSES}
        # A comparison of such numbers with each other is allowed, one with other numbers is not.
        if not (loads or moved.isdisjoint(read) or (statement.word == "setp" and moved.issuperset(read))):
            line, shown = module.line(statement.start), " ".join(statement.text.split())
            raise UnsupportedError(f"line {line}: {shown!r} depends on the address of a constant")


def _written(statement: Statement) -> set[str]:
    """The register that an instruction writes, as a set, if it has several operands: the first; empty for others."""
    instruction = statement.instruction
    return {instruction.operands[0]} if instruction is not None and len(instruction.operands) > 1 else set()


def _read(statement: Statement) -> list[str]:
    """The names that an instruction with several operands reads."""
    instruction = statement.instruction
    if instruction is None or len(instruction.operands) < 2:
        return []
    return REGISTER.findall(",".join(instruction.sources))


_LINKAGE_WORDS = (".visible", ".weak", ".extern", ".common")


@dataclass(frozen=True)
class FunctionCopy:
    """A function's private copy for one twin. name: the function's; copy_name: the copy's.

    text: of the copy; prototype: its declaration, which stands before all code; original_text: of the function.
    statement: the function in its module, in whose place the copy goes. callers: the numbers of other modules that call
    it. own_arithmetic: how many floating-point instructions the probes add, by SASS mnemonic. is_recursive: it calls
    itself, directly or not.
    """

    name: str
    copy_name: str
    original_text: str
    text: str
    prototype: str
    statement: ModuleStatement
    callers: frozenset[int] = frozenset()
    own_arithmetic: Mapping[str, int] = field(default_factory=dict)
    is_recursive: bool = False

    @property
    def external_prototype(self) -> str:
        """The declaration of the copy for modules other than its own."""
        return f".extern {self.prototype.removeprefix('.visible ')}"


def copy_name(callee: Callee, kernel: Callee) -> str:
    """Return the name that a kernel's twin (its copy with probes) gives to its own copy of a function that the kernel
    calls.

    Raises UnsupportedError when a module has that name already.
    """
    name = f"{callee.function.name}{SUFFIX}_{kernel.function.name}"
    # Static functions of several modules may share a name.
    if callee.linkage.number != kernel.linkage.number:
        name = f"{name}__{callee.linkage.number}"
    for module in (callee.module, kernel.module):
        if name in module.symbols:
            raise UnsupportedError(f"the module has a {name} already")
    return name


def copy_header(callee: Callee, name: str, address: str, *, visible: bool) -> tuple[str, str]:
    """Return the header and the declaration (prototype) of a function's copy for a twin: one more parameter than the
    original.

    It comes last: the address of the kernel's state (what probes keep for the thread, in local memory). name: the
    copy's. address: the register that gets that address. visible: to other modules. Raises UnsupportedError for a
    function with a variable number of arguments.
    """
    function, text, code = callee.function, callee.module.text, callee.module.code
    start, body_start = function.statement.start, callee.body.start
    name_start = function.name_end - len(function.name)
    linkage = ".visible " if visible else ""
    before = text[start:name_start]
    # Without the function's own linkage.
    for word in _LINKAGE_WORDS:
        words, found, others = before.partition(word)
        before = words + others.lstrip() if found else before
    before = linkage + before
    parameter = f".reg .b64 {address}"
    if function.parameters is None:
        parameters, rest = f"({parameter})", function.name_end
    else:
        first, closing = function.parameters
        own_parameters = code[first:closing].rstrip()
        # ".param .b8 x[]" as the last one takes what remains.
        if own_parameters.endswith("]") and own_parameters[:-1].rstrip().endswith("["):
            raise UnsupportedError(f"the called function {function.name} takes any number of arguments")
        added = f",\n\t{parameter}\n)" if own_parameters.strip() else f"{parameter})"
        parameters = text[function.name_end : first + len(own_parameters)] + added
        rest = closing + 1
    header = before + name + parameters + text[rest:body_start]
    # A declaration ends with a semicolon and has no pragmas.
    words, *pragmas = code[rest:body_start].split(".pragma")
    declaration = before + name + parameters + words + "".join(pragma.partition(";")[2] for pragma in pragmas)
    return header, f"{declaration.rstrip()}\n;"


def pass_address(body: Body, call: Call, address: str) -> tuple[int, str]:
    """Return the insertion (position, text) that gives a call one more argument, the address of the kernel's state.

    address: the register with it. Raises UnsupportedError for a call of an unknown form.
    """
    semicolon = body.code.find(";", call.end)
    # Nothing, or ", (arguments)".
    words = body.code[call.end : semicolon].rstrip()
    if not words and semicolon >= 0:
        return call.end, f", ({address})"
    comma, opening, arguments = words.partition("(")
    if comma.strip() != "," or not opening or arguments.find(")") != len(arguments) - 1 or "(" in arguments:
        source = " ".join(body.code[call.start : semicolon].split())
        raise UnsupportedError(f"a call of an unknown form: {source!r}")
    at = call.end + len(comma) + 1 + len(arguments[:-1].rstrip())
    return at, f", {address}" if arguments[:-1].strip() else address


def around_call(body: Body, call: Call) -> tuple[int, int]:
    """Return where a call begins and ends, with its arguments and results, in the module's text.

    The state (what probes keep for the thread) is stored before it and loaded after it. Raises UnsupportedError for a
    call of an unknown form.
    """
    sequence = body.call_sequence(call.start)
    if sequence is None:
        raise UnsupportedError(f"a call of an unknown form: {body.code[call.start : call.end]!r}")
    return sequence


class State:
    """Where the registers of a kernel that functions need lie in its local memory (its state), and code to store and
    load them.

    The state begins with the probe block, of block_size bytes; the long-lived registers follow, each with a place from
    when it is first stored or loaded. size: bytes so far.
    """

    def __init__(self, block_size: int) -> None:
        """Begin the layout of a kernel's state in local memory, after the probe block of block_size bytes."""
        self._offsets: dict[str, int] = {}
        self.size = align_up(block_size, 8)

    def _offset(self, register: LongLived) -> int:
        """The byte offset of a register in the kernel's state in local memory, allocated when first asked for."""
        if register.name not in self._offsets:
            size = _bytes(register)
            self._offsets[register.name] = align_up(self.size, size)
            self.size = self._offsets[register.name] + size
        return self._offsets[register.name]

    def store(self, base: str, chosen: Iterable[LongLived], scratch: Scratch) -> Lines:
        """Return the instructions that store registers in the kernel's state in local memory.

        base: the state's variable, or a register with its address. chosen: the registers.
        """
        lines: Lines = []
        for register in chosen:
            kind, word = _stored_form(register, scratch)
            if word != register.name:
                # A predicate cannot be stored: it goes through a scratch register, as 0 or 1.
                lines.append(op("selp.u32", word, "1", "0", register.name))
            lines.append(op(f"st.local.{kind}", mem(base, self._offset(register)), word))
        return lines

    def load(self, base: str, chosen: Iterable[LongLived], scratch: Scratch) -> Lines:
        """Return the instructions that load registers from the kernel's state, where ``store`` put them.

        base: the state's variable, or a register with its address. chosen: the registers.
        """
        lines: Lines = []
        for register in chosen:
            kind, loaded = _stored_form(register, scratch)
            lines.append(op(f"ld.local.{kind}", loaded, mem(base, self._offset(register))))
            if loaded != register.name:
                # A predicate cannot be loaded: it goes through a scratch register.
                lines.append(op("setp.ne.u32", register.name, loaded, "0"))
        return lines


def _stored_form(register: LongLived, scratch: Scratch) -> tuple[str, str]:
    """Return the type with which a register goes to memory, and the register that goes: a scratch one in place of a
    predicate."""
    return ("u32", scratch.take("b32")) if register.type == "pred" else (f"b{bits(register.type)}", register.name)


def _bytes(register: LongLived) -> int:
    """The bytes that a register takes in the kernel's state in memory. Raises UnsupportedError for a type without a
    size."""
    if register.type == "pred":
        return 4
    size = TYPE_BYTES.get(register.type)
    if size is None:
        raise UnsupportedError(f"{register.name} of type .{register.type} cannot be kept while a function runs")
    return size


_Name = TypeVar("_Name")
_Key = tuple[int, str]
"""Of a function, ``Callee.key``: its module's number and its name."""


def names_in_calls(
    calls: Mapping[_Key, Collection[_Key]], own: Mapping[_Key, Collection[_Name]]
) -> dict[_Key, set[_Name]]:
    """Return, by function, the names that it and all functions that it calls have, directly or not (the transitive
    closure).

    calls: by function, those that it calls directly. own: by function, its own names, such as those of the registers
    that it uses; a function without an entry has none.
    """
    names = {key: set(own_names) for key, own_names in own.items()}
    # Until nothing is added: calls may be recursive.
    changed = True
    while changed:
        changed = False
        for key, called in calls.items():
            size = len(names[key])
            for callee in called:
                names[key] |= names.get(callee, set())
            changed = changed or len(names[key]) != size
    return names


def with_their_callers(functions: Collection[Callee], direct: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """The keys of some functions and of all functions that call one of them, directly or not.

    Those in ``direct`` need a copy with probes; their callers need one, too, to pass the kernel's state. functions: all
    that a kernel calls, directly or not. direct: keys of some of them.
    """
    keys = set(direct)
    previous_size = -1
    while len(keys) != previous_size:
        previous_size = len(keys)
        keys |= {callee.key for callee in functions if any(call.callee in keys for call in callee.calls)}
    return keys
