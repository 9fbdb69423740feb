"""Analysis of a kernel's parameters: which are pointers, to elements of which type, and which are plain numbers.

The PTX says only how large a parameter is. Each value that an ``ld.param`` loads is followed through the instructions
that may compute an address from it. The result is an estimate, good enough to generate inputs: a pointer that went
through memory, or through a call's results, is not followed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

from neutrino.errors import NeutrinoError
from neutrino.ptx.isa.instruction import REGISTER, Instruction, read_address, read_instruction, vector_elements
from neutrino.ptx.isa.opcodes import STATE_SPACES
from neutrino.ptx.isa.scalars import TYPE_BYTES
from neutrino.ptx.text.module import Function, Kind, Module, Parameter, parse
from neutrino.twins import kernel_text as launches
from neutrino.twins.kernel_text import Kernel, Role, Value

# An instruction: after a ``;``, brace, label or space; perhaps with a guard; up to the ``;``.
_STATEMENT = re.compile(r"(?<=[;{}:\s])(?:@\s*!?\s*[\w$%]+\s+)?[a-z]\w*(?:\.[\w:]+)*\b[^;:]*(?=;)", re.ASCII)
_THREADS = re.compile(r"\.(?P<word>reqntid|maxntid)\s+(?P<extents>\d+(?:\s*,\s*\d+){0,2})", re.ASCII)
# The name of a parameter that is declared with ``.ptr``: the last word before the comma or the end.
_POINTER = re.compile(r"\.param\b[^,()]*\.ptr\b[^,()]*?(?P<name>[A-Za-z_$%][\w$]*)\s*(?=,|\Z)", re.ASCII)
_NAME = re.compile(r"[A-Za-z_$%][\w$]*", re.ASCII)
_OPEN_SHARED = re.compile(r"\.extern\s+\.shared\b[^;]*\[\s*\]\s*;", re.ASCII)
# The first characters of files that are taken for PTX by mistake.
_OTHER_FORMATS = {
    "\x7fELF": "an ELF file: a program, a library or machine code", "\x50\xed\x55\xba": "a fatbin",
    "BC\xc0\xde": "LLVM bitcode", "!<arch>": "an archive",
}  # fmt: skip
# Where several fit, the first one is taken.
_FLOATS = ("f64", "f32", "f16", "bf16")
_UNSIGNED_TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}  # by size in bytes
_PACKED_TYPES = {"f16x2": "f16", "bf16x2": "bf16"}
_ADDRESS_OPERATIONS = frozenset({"mov", "cvta", "add", "sub", "selp", "or", "shfl"})
"""Operations whose 64-bit result can be an address in the same buffer as the address in an operand."""


class PtxKernels:
    """The ``KernelText`` of a PTX module."""

    def __init__(self, text: str) -> None:
        """Parse a PTX module's text, to launch its kernels with generated inputs. Raises PtxError."""
        self._module = parse(text)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the kernels in the PTX text, as ``KernelText`` has them."""
        return tuple(entry.name for entry in self._module.entries)

    def choose(self, name: str | None) -> str:
        """Return the full name of the kernel that a user has named, as ``KernelText``."""
        return choose_kernel(self._module, name).name

    def kernel(self, name: str) -> Kernel:
        """Return a kernel's parameters and what else a launch with generated inputs needs, from the text. Raises
        PtxError for parameters of unknown form."""
        return read_kernel(self._module, choose_kernel(self._module, name))

    @cached_property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """The text's variables in global memory, as (name, type without dot). An ``extern`` one is left out: it has its
        memory in another module."""
        return tuple(
            # The type is ``.f32``, or ``.v2.f32`` for vectors: the element's comes last.
            (variable.name, variable.type.rpartition(".")[2])
            for variable in self._module.variables
            if variable.space == "global" and "extern" not in variable.linkage
        )


def check_text(text: str) -> None:
    """Raise NeutrinoError for the contents of a file that is not PTX. text: the file's bytes as latin-1."""
    file_format = next((name for magic, name in _OTHER_FORMATS.items() if text.startswith(magic)), None)
    # A PTX text may end in zero bytes: programs pass it to the driver so.
    if file_format is None and "\0" in text.rstrip("\0"):
        file_format = "data, with zero bytes in it"
    if file_format:
        raise NeutrinoError(
            f"this is {file_format}, not PTX; neutrino-extract lists the PTX in a file, and writes it with -o"
        )


def choose_kernel(module: Module, name: str | None) -> Function:
    """Return the kernel of that name, or the only kernel if ``name`` is None.

    Raises NeutrinoError, with the names to choose from, if there is none or no name was given and there are several.
    """
    names = [entry.name for entry in module.entries]
    if not names:
        raise NeutrinoError(f"no kernel in it: {_missing_kernel_reason(module)}")
    # Not a valid module, but one that can be parsed: which of them is meant?
    for entry in module.entries:
        if names.count(entry.name) > 1:
            lines = [module.line(other.statement.start) for other in module.entries if other.name == entry.name]
            raise NeutrinoError(f"{len(lines)} kernels are named {entry.name}, in lines {', '.join(map(str, lines))}")
    if name is None and len(names) > 1:
        raise NeutrinoError(f"{len(names)} kernels in it; choose one with --kernel: {', '.join(names)}")
    for entry in module.entries:
        if name in (None, entry.name):  # None: there is only one
            return entry
    raise NeutrinoError(f"no kernel {name} in it; it has {', '.join(names)}")


def _missing_kernel_reason(module: Module) -> str:
    """Return why a module has no kernel: an ``.entry`` is in text that could not be parsed, or there is none."""
    for statement in module.statements:
        entry = module.code.find(".entry", statement.start, statement.end)
        if statement.kind is Kind.UNKNOWN and entry >= 0:
            # Its beginning, on one line.
            source = " ".join(module.source(statement).split())[:60]
            where = f"line {module.line(statement.start)}: {source!r}"
            return f"the .entry in line {module.line(entry)} is part of what cannot be read, {where}"
    return "there is no .entry"


def read_kernel(module: Module, entry: Function) -> Kernel:
    """Return what a kernel's text says about its parameters and its launch.

    Raises PtxError for parameters of unknown form.
    """
    flow = _DataFlow(module, entry)
    parameters, _size = module.parameter_layout(entry)
    declarations = module.code[slice(*entry.parameters)] if entry.parameters else ""
    pointers = {match["name"] for match in _POINTER.finditer(declarations)}

    # The block's dimensions, by ``.reqntid x, y, z`` or ``.maxntid``; y and z may be missing.
    header = module.code[entry.name_end : entry.body[0]] if entry.body else ""
    directive = _THREADS.search(header)
    block: tuple[int, int, int] | None = None
    if directive:
        # Of one to three numbers and two times 1, the first three.
        x, y, z, *_ = [*(int(extent) for extent in directive["extents"].split(",")), 1, 1]
        block = (x, y, z)

    return Kernel(
        entry.name,
        tuple(
            (
                launches.Parameter(parameter.name, parameter.size),
                tuple(flow.values(parameter, is_pointer=parameter.name in pointers)),
            )
            for parameter in parameters
        ),
        block,
        exact=directive is not None and directive["word"] == "reqntid",
        dynamic_shared=_uses_dynamic_shared(module, entry),
    )


def _uses_dynamic_shared(module: Module, entry: Function) -> bool:
    """Whether a kernel uses dynamic shared memory, which PTX declares as an array of open size (``[]``).

    Functions that the kernel names are searched too, and the functions and variables that those name, and so on.
    """
    symbols = module.symbols
    reached: set[str] = set()
    # Those that are still to be searched: bodies of functions, and initial values of variables.
    texts = [module.code[slice(*entry.body)]] if entry.body else []
    while texts:
        text = texts.pop()
        # Such an array can be declared in a body, or (below) in the module.
        if _OPEN_SHARED.search(text):
            return True
        # Names of the module that this text names first.
        for name in set(_NAME.findall(text)) & symbols.keys() - reached:
            reached.add(name)
            symbol = symbols[name]
            if isinstance(symbol, Function):
                texts += [module.code[slice(*symbol.body)]] if symbol.body else []
            elif symbol.space == "shared" and symbol.size is None:
                return True
            elif symbol.initializer:
                # A table of functions, for example.
                texts.append(symbol.initializer)
    return False


class _DataFlow:
    """The flow of addresses and types through the registers of one kernel, to find out what its parameters are.

    One pass over the instructions collects facts, without regard to control flow; ``values`` draws conclusions.
    """

    def __init__(self, module: Module, entry: Function) -> None:
        """Go through the instructions of a kernel's body and collect what they show."""
        # Union-find: registers with the same value, and so the same type, have the same root.
        self._parents: dict[str, str] = {}
        # Register → the types with which instructions use it.
        self._types: dict[str, set[str]] = defaultdict(set)
        # (parameter, offset) → (type, register) of the first ld.param there.
        self._loaded: dict[tuple[str, int], tuple[str, str]] = {}
        # Register → registers whose value may be an address computed from its own.
        self._derived: dict[str, set[str]] = defaultdict(set)
        # (base register, "load", "store" or "update", instruction) of each access to global memory.
        self._accesses: list[tuple[str, str, Instruction]] = []
        # Registers that are arguments of calls.
        self._passed_on: set[str] = set()
        # The types of the factors and of the result of matrix products, "" without any. The operands often went through
        # shared memory by untyped copies, which hide the type.
        self._factor_type = self._product_type = ""
        for instruction in _instructions(module, entry):
            self._read(instruction)

    def values(self, parameter: Parameter, *, is_pointer: bool) -> Iterator[Value]:
        """Yield the values in a parameter, by offset: one, or for a structure each part of it that is loaded.

        is_pointer: the parameter is declared with ``.ptr``. A structure of which nothing is loaded has no values.
        """
        # Offset → (type, register) of the ld.param.
        parts = {offset: part for (name, offset), part in sorted(self._loaded.items()) if name == parameter.name}
        unsigned_type = _UNSIGNED_TYPES.get(parameter.size)  # None for a structure
        if not parts and unsigned_type:
            # Never loaded: its type does not matter to the kernel, but a probe may read it.
            if parameter.type in _FLOATS and not parameter.is_array:
                yield Value(parameter.name, 0, parameter.size, Role.FLOAT, parameter.type)
                return
            yield Value(parameter.name, 0, parameter.size, Role.POINTER if is_pointer else Role.INTEGER, unsigned_type)
        for offset, (type_name, register) in parts.items():
            is_whole = len(parts) == 1 and offset == 0
            name = parameter.name if is_whole else f"{parameter.name}+{offset}"
            yield self._value(name, offset, type_name, register, is_pointer=is_pointer and is_whole)

    def _value(self, name: str, offset: int, type_name: str, register: str, *, is_pointer: bool) -> Value:
        """Return the value that an ld.param of that type loads into ``register``: a pointer or a number.

        It is a pointer if memory is accessed through it, if it is passed to a function, or if it is declared as one
        (is_pointer). name, offset: of the value in its parameter.
        """
        size = TYPE_BYTES[type_name]
        # The registers that may have an address computed from it, and the accesses through them.
        reached = self._reach(register)
        accesses = [(access, instruction) for base, access, instruction in self._accesses if base in reached]
        if size == 8 and (accesses or is_pointer or reached & self._passed_on):
            # The element type is that of the first access that has one. Loads show it best; "load" sorts first.
            by_access = sorted(accesses, key=lambda pair: pair[0])
            element_types = [self._element_type(instruction) for _, instruction in by_access]
            element_type = next((element for element in element_types if element), "f32")
            # A pointer that is only passed on may be used for both.
            kinds = {access for access, _ in accesses} or {"load", "store"}
            return Value(
                name,
                offset,
                size,
                Role.POINTER,
                element_type,
                loads="load" in kinds,
                stores="store" in kinds,
                updates="update" in kinds,
            )
        number_type = self._number_type(type_name, register)
        return Value(name, offset, size, Role.FLOAT if number_type in _FLOATS else Role.INTEGER, number_type)

    def _read(self, instruction: Instruction) -> None:
        """Collect what one instruction shows: loaded parameters, accesses, types, addresses computed from others."""
        opcode, type_name = instruction.parts[0], instruction.type
        if opcode == "ld" and instruction.state_space == "param" and type_name:
            self._read_parameter(instruction, type_name)
            return
        # Arguments of calls are stored to parameters of the call, or named by it.
        if opcode == "st" and instruction.state_space == "param":
            self._passed_on |= _registers(instruction.operands[1:])
        elif opcode == "call":
            self._passed_on |= _registers(instruction.operands)

        memory_operands = [operand for operand in instruction.operands if operand.startswith("[")]
        for index, operand in enumerate(memory_operands):
            address = read_address(operand)
            # A generic access (None) may be one of global memory.
            if address is not None and _space(instruction, index) in (None, "global", "const"):
                self._accesses.append((address.base, _access(instruction, index), instruction))

        self._note_types(instruction)

        # Addresses have 64 bits: smaller results need not be followed.
        is_64_bit = type_name is not None and TYPE_BYTES[type_name] == 8
        if opcode in _ADDRESS_OPERATIONS and is_64_bit:
            for source in _registers(instruction.sources):
                for target in _registers(instruction.operands[:1]):
                    self._derived[source].add(target)
        elif opcode == "mad" and len(instruction.operands) == 4:
            # index * size + base: only the last operand can be an address.
            target, _, _, base = instruction.operands
            self._derived[base].add(target)

    def _read_parameter(self, instruction: Instruction, type_name: str) -> None:
        """Record which registers an ld.param of that type loads with which parts of a parameter.

        Several instructions that load from the same offset load the same value.
        """
        address = read_address(instruction.operands[1])
        if address is None:
            return
        # A vector loads consecutive parts of the parameter.
        for index, register in enumerate(vector_elements(instruction.operands[0])):
            part = (address.base, int(address.offset, 0) + index * TYPE_BYTES[type_name])
            if part in self._loaded:
                # Later questions are about the first register, so all that is known of this one belongs to it.
                _, first_register = self._loaded[part]
                self._join(first_register, register)
                self._derived[first_register].add(register)
            else:
                self._loaded[part] = (type_name, register)

    def _note_types(self, instruction: Instruction) -> None:
        """Collect the types of the registers that an instruction reads and writes, by the types in its opcode."""
        parts, operands = instruction.parts, instruction.operands
        if parts[0] in ("mov", "shfl"):
            # Copies of a value (by shfl, of another thread's), most of them untyped (``b32``): the types of one are
            # those of the other.
            for source in _registers(operands[1:2]):
                for target in _registers(operands[:1]):
                    self._join(source, target)
            return
        types = [part for part in parts[1:] if part in TYPE_BYTES]
        if parts[0] == "cvt" and len(types) == 2 and len(operands) >= 2:
            # cvt.TO.FROM
            self._add_type(operands[:1], types[0])
            self._add_type(operands[1:], types[1])
        elif parts[0] in ("mma", "wmma") and len(types) == len(operands) == 4:
            # PTX ISA, "mma": .dtype.atype.btype.ctype, in the order of the operands.
            for operand, type_name in zip(operands, types, strict=True):
                self._add_type([operand], _as_stored(type_name))
            # The last product counts. Only floating-point types: untyped bits are taken for integers anyway.
            product_type, factor_type = types[0], _as_stored(types[1])
            self._product_type = product_type if product_type in _FLOATS else ""
            self._factor_type = factor_type if factor_type in _FLOATS else ""
        elif types and not any(operand.startswith("[") for operand in operands):
            self._add_type(operands, types[-1])
        elif types and parts[0] in ("ld", "st", "atom", "red"):
            # The type is that of the memory's contents, not that of the address in brackets.
            self._add_type([operand for operand in operands if not operand.startswith("[")], types[-1])

    def _add_type(self, operands: Sequence[str], type_name: str) -> None:
        """Record a type for the registers in operands. Untyped bits (``b32``) say nothing and are ignored."""
        if not type_name.startswith("b") or type_name.startswith("bf"):
            for register in _registers(operands):
                self._types[register].add(_PACKED_TYPES.get(type_name, type_name))

    def _find(self, register: str) -> str:
        """Return the root of a register's set in the union-find."""
        while (parent := self._parents.get(register, register)) != register:
            register = parent
        return register

    def _join(self, first: str, second: str) -> None:
        """Record that two registers have the same value: their sets in the union-find become one."""
        self._parents[self._find(first)] = self._find(second)

    def _reach(self, register: str) -> set[str]:
        """Return the register and all registers that may have an address computed from its value.

        It follows ``_derived`` from register to register; an access through any of them is one through the parameter.
        """
        reached, pending = {register}, [register]
        while pending:
            for target in self._derived[pending.pop()] - reached:
                reached.add(target)
                pending.append(target)
        return reached

    def _known_types(self, register: str) -> set[str]:
        """Return the types with which a register, or another one that has the same value, is used."""
        root = self._find(register)
        return set().union(*(types for name, types in self._types.items() if self._find(name) == root))

    def _number_type(self, type_name: str, register: str) -> str:
        """Return the type of a number that is loaded as ``type_name`` into a register.

        For untyped bits (``b32``) it is a floating-point type if uses of the register show one, else unsigned.
        """
        if type_name in TYPE_BYTES and not type_name.startswith("b"):
            return type_name
        known = self._known_types(register)
        # b32 or bf16 without its letters is the number of bits.
        return next((name for name in _FLOATS if name in known), "u" + type_name.lstrip("bf"))

    def _element_type(self, instruction: Instruction) -> str:
        """Return the type of one element of the memory that an instruction accesses, "" if nothing shows it.

        It is the type in the opcode, or for untyped bits the type with which other instructions use the registers.
        """
        type_name = _PACKED_TYPES.get(instruction.type or "", instruction.type or "")
        if not type_name:
            # A copy to shared memory, for example.
            return self._factor_type
        if not type_name.startswith("b") or type_name == "bf16":
            return type_name
        # Untyped bits. Of the types with which their registers are used, one that is no larger than the element is
        # taken: 32 bits may be two f16.
        values = [operand for operand in instruction.operands if not operand.startswith("[")]
        known = set().union(*(self._known_types(register) for register in _registers(values)))
        size = TYPE_BYTES[type_name]
        fitting = [name for name in _FLOATS if name in known and TYPE_BYTES[name] <= size]
        # Else the operands of matrix products are likely: results are stored, factors are loaded.
        matrix_type = self._product_type if instruction.parts[0] == "st" else self._factor_type
        if not known and matrix_type and TYPE_BYTES[matrix_type] <= size:
            return matrix_type
        return fitting[0] if fitting else _UNSIGNED_TYPES.get(size, "u32")


def _instructions(module: Module, entry: Function) -> Iterator[Instruction]:
    """Yield the instructions of a kernel's body in text order, without those that cannot be read."""
    if entry.body is None:
        return
    for match in _STATEMENT.finditer(module.code, *entry.body):
        instruction = read_instruction(match[0])
        if instruction is not None:
            yield instruction


def _space(instruction: Instruction, index: int) -> str | None:
    """Return the state space of the memory operand number ``index``, None if the opcode names none.

    An opcode with two memory operands, such as ``cp.async.shared.global``, names the spaces in their order. If there
    are fewer spaces than operands, the last one is that of the rest.
    """
    # ``shared::cta`` is shared.
    words = (part.partition("::")[0] for part in instruction.parts)
    spaces = [word for word in words if word in STATE_SPACES]
    return spaces[min(index, len(spaces) - 1)] if spaces else None


def _access(instruction: Instruction, index: int) -> str:
    """Return what an instruction does at its memory operand number ``index``: "load", "store" or "update" (atomics).

    The first memory operand of a copy (``cp``) is its destination.
    """
    parts = instruction.parts
    if parts[0] == "st" or parts[:2] == ("wmma", "store") or (parts[0] == "cp" and index == 0):
        return "store"
    return "update" if parts[0] in ("atom", "red") else "load"


def _as_stored(type_name: str) -> str:
    """Return the type in memory of the elements of a matrix: a tf32 is an f32 of which only the upper bits count."""
    return "f32" if type_name == "tf32" else type_name


def _registers(operands: Sequence[str]) -> set[str]:
    """Return the registers that operands name, without memory operands."""
    return {name for operand in operands for name in REGISTER.findall(operand) if not operand.startswith("[")}
