"""The kinds of a kernel's parameters: which are pointers, to what, and which are plain numbers.

Read off the text by following each ``ld.param`` through what may move an address. An estimate, good enough to generate
inputs: a pointer that went through memory or a call's results is not followed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from neutrino.errors import NeutrinoError
from neutrino.probing.model import STATE_SPACES
from neutrino.ptx.isa.instruction import REGISTER, Instruction, read_address, read_instruction, vector_elements
from neutrino.ptx.isa.scalars import TYPE_BYTES
from neutrino.ptx.text.module import Function, Kind, Module, Parameter

_STATEMENT = re.compile(r"(?<=[;{}:\s])(?:@\s*!?\s*[\w$%]+\s+)?[a-z]\w*(?:\.[\w:]+)*\b[^;:]*(?=;)", re.ASCII)
_THREADS = re.compile(r"\.(?P<word>reqntid|maxntid)\s+(?P<extents>\d+(?:\s*,\s*\d+){0,2})", re.ASCII)
_POINTER = re.compile(r"\.param\b[^,()]*\.ptr\b[^,()]*?(?P<name>[A-Za-z_$%][\w$]*)\s*(?=,|\Z)", re.ASCII)
_NAME = re.compile(r"[A-Za-z_$%][\w$]*", re.ASCII)
_OPEN_SHARED = re.compile(r"\.extern\s+\.shared\b[^;]*\[\s*\]\s*;", re.ASCII)
# How files begin that are taken for PTX by mistake.
_OTHER_FORMATS = {
    "\x7fELF": "an ELF file: a program, a library or machine code", "\x50\xed\x55\xba": "a fatbin",
    "BC\xc0\xde": "LLVM bitcode", "!<arch>": "an archive",
}  # fmt: skip
_FLOATS = ("f64", "f32", "f16", "bf16")
_PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}
_MOVES = frozenset({"mov", "cvta", "add", "sub", "selp", "or", "shfl"})
"""Operations whose 64-bit result can be the address that an operand was, or lie in the same buffer."""


class Role(Enum):
    """What an argument is used for."""

    POINTER = "pointer"
    INTEGER = "integer"
    FLOAT = "float"


@dataclass(frozen=True)
class Value:
    """One number in the parameters: a whole parameter, or a part of a structure that the kernel loads.

    name: the parameter's, with ``+8`` for a part of it. offset: bytes in the parameter. size: bytes.
    type: as ``f32``, of what a pointer points at. loads, stores, updates: what the kernel does through a pointer;
    updates are atomics.
    """

    name: str
    offset: int
    size: int
    role: Role
    type: str
    loads: bool = False
    stores: bool = False
    updates: bool = False


@dataclass(frozen=True)
class Kernel:
    """A kernel and the launches that it accepts.

    parameters: each with the values in it, a structure that is never looked into with none. block: threads of a
    block where the text says them. exact: it must be launched with just these. dynamic_shared: it uses shared memory
    whose size the launch gives.
    """

    name: str
    parameters: tuple[tuple[Parameter, tuple[Value, ...]], ...]
    block: tuple[int, int, int] | None
    exact: bool
    dynamic_shared: bool


def check_text(text: str) -> None:
    """Raise NeutrinoError for a file that is no PTX. text: as read, latin-1."""
    what = next((what for magic, what in _OTHER_FORMATS.items() if text.startswith(magic)), None)
    if what is None and "\0" in text.rstrip("\0"):
        what = "data, with zero bytes in it"
    if what:
        raise NeutrinoError(f"this is {what}, not PTX; neutrino-extract lists the PTX in a file, and writes it with -o")


def choose_kernel(module: Module, name: str | None) -> Function:
    """The kernel of that name, or the only one. Raises NeutrinoError that lists what there is."""
    names = [entry.name for entry in module.entries]
    if not names:
        raise NeutrinoError(f"no kernel in it: {_why_none(module)}")
    for entry in module.entries:
        if names.count(entry.name) > 1:
            lines = [module.line(other.statement.start) for other in module.entries if other.name == entry.name]
            raise NeutrinoError(f"{len(lines)} kernels are named {entry.name}, in lines {', '.join(map(str, lines))}")
    if name is None and len(names) > 1:
        raise NeutrinoError(f"{len(names)} kernels in it; choose one with --kernel: {', '.join(names)}")
    for entry in module.entries:
        if name in (None, entry.name):
            return entry
    raise NeutrinoError(f"no kernel {name} in it; it has {', '.join(names)}")


def _why_none(module: Module) -> str:
    for statement in module.statements:
        entry = module.code.find(".entry", statement.start, statement.end)
        if statement.kind is Kind.UNKNOWN and entry >= 0:
            source = " ".join(module.source(statement).split())[:60]
            where = f"line {module.line(statement.start)}: {source!r}"
            return f"the .entry in line {module.line(entry)} is part of what cannot be read, {where}"
    return "there is no .entry"


def read_kernel(module: Module, entry: Function) -> Kernel:
    """What a kernel's text says about its parameters and its launch. Raises PtxError for parameters of unknown form."""
    flow = _DataFlow(module, entry)
    parameters, _ = module.parameter_layout(entry)
    declared = module.code[slice(*entry.parameters)] if entry.parameters else ""
    pointers = {match["name"] for match in _POINTER.finditer(declared)}
    header = module.code[entry.name_end : entry.body[0]] if entry.body else ""
    threads = _THREADS.search(header)
    block: tuple[int, int, int] | None = None
    if threads:
        x, y, z, *_ = [*(int(extent) for extent in threads["extents"].split(",")), 1, 1]
        block = (x, y, z)
    return Kernel(
        entry.name,
        tuple((parameter, tuple(flow.values(parameter, parameter.name in pointers))) for parameter in parameters),
        block,
        threads is not None and threads["word"] == "reqntid",
        _uses_dynamic_shared(module, entry),
    )


def _uses_dynamic_shared(module: Module, entry: Function) -> bool:
    """Whether the kernel, or what it names, names shared memory of open size."""
    symbols = module.symbols
    reached: set[str] = set()
    texts = [module.code[slice(*entry.body)]] if entry.body else []
    while texts:
        text = texts.pop()
        if _OPEN_SHARED.search(text):
            return True
        for name in set(_NAME.findall(text)) & symbols.keys() - reached:
            reached.add(name)
            symbol = symbols[name]
            if isinstance(symbol, Function):
                texts += [module.code[slice(*symbol.body)]] if symbol.body else []
            elif symbol.space == "shared" and symbol.size is None:
                return True
            elif symbol.initializer:
                texts.append(symbol.initializer)
    return False


class _DataFlow:
    """One pass over a kernel's instructions collects edges; what is asked of them follows the edges."""

    def __init__(self, module: Module, entry: Function) -> None:
        self._same: dict[str, str] = {}
        self._types: dict[str, set[str]] = defaultdict(set)
        self._loaded: dict[tuple[str, int], tuple[str, str]] = {}
        self._moved: dict[str, set[str]] = defaultdict(set)
        self._accesses: list[tuple[str, str, Instruction]] = []
        self._passed_on: set[str] = set()
        # What products of matrices read and write: their operands often went through shared memory, without a type.
        self._factor = self._product = ""
        for instruction in _instructions(module, entry):
            self._read(instruction)

    def values(self, parameter: Parameter, is_pointer: bool) -> Iterator[Value]:
        """The values in a parameter, in order."""
        parts = {offset: part for (name, offset), part in sorted(self._loaded.items()) if name == parameter.name}
        whole = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}.get(parameter.size)
        if not parts and whole:
            # Never loaded: its kind does not matter to the kernel.
            yield Value(parameter.name, 0, parameter.size, Role.POINTER if is_pointer else Role.INTEGER, whole)
        for offset, (kind, register) in parts.items():
            alone = len(parts) == 1 and offset == 0
            name = parameter.name if alone else f"{parameter.name}+{offset}"
            yield self._value(name, offset, kind, register, is_pointer and alone)

    def _value(self, name: str, offset: int, kind: str, register: str, is_pointer: bool) -> Value:
        size = TYPE_BYTES[kind]
        reached = self._reach(register)
        accesses = [(what, instruction) for base, what, instruction in self._accesses if base in reached]
        if size == 8 and (accesses or is_pointer or reached & self._passed_on):
            # What is loaded says best what it is; the words are in that order.
            kinds = [self._element(instruction) for _, instruction in sorted(accesses, key=lambda pair: pair[0])]
            does = {what for what, _ in accesses}
            unknown = not accesses
            return Value(
                name, offset, size, Role.POINTER, next((kind for kind in kinds if kind), "f32"),
                "load" in does or unknown, "store" in does or unknown, "update" in does,
            )  # fmt: skip
        number = self._number_type(kind, register)
        return Value(name, offset, size, Role.FLOAT if number in _FLOATS else Role.INTEGER, number)

    def _read(self, instruction: Instruction) -> None:
        opcode, kind = instruction.parts[0], instruction.type
        if opcode == "ld" and instruction.state_space == "param" and kind:
            address = read_address(instruction.operands[1])
            if address is not None:
                for index, register in enumerate(vector_elements(instruction.operands[0])):
                    place = (address.base, int(address.offset, 0) + index * TYPE_BYTES[kind])
                    if place in self._loaded:
                        self._join(self._loaded[place][1], register)
                        self._move(self._loaded[place][1], register)
                    else:
                        self._loaded[place] = (kind, register)
            return
        if opcode == "st" and instruction.state_space == "param":
            self._passed_on |= _registers(instruction.operands[1:])
        elif opcode == "call":
            self._passed_on |= _registers(instruction.operands)
        places = [operand for operand in instruction.operands if operand.startswith("[")]
        for index, operand in enumerate(places):
            address = read_address(operand)
            if address is not None and _space(instruction, index) in (None, "global", "const"):
                self._accesses.append((address.base, _access(instruction, index), instruction))
        self._note_types(instruction)
        wide = kind is not None and TYPE_BYTES[kind] == 8
        if opcode in _MOVES and wide:
            for source in _registers(instruction.sources):
                for target in _registers(instruction.operands[:1]):
                    self._move(source, target)
        elif opcode == "mad" and len(instruction.operands) == 4:
            self._move(instruction.operands[3], instruction.operands[0])

    def _note_types(self, instruction: Instruction) -> None:
        parts, operands = instruction.parts, instruction.operands
        if parts[0] in ("mov", "shfl"):
            for source in _registers(operands[1:2]):
                for target in _registers(operands[:1]):
                    self._join(source, target)
            return
        kinds = [part for part in parts[1:] if part in TYPE_BYTES]
        if parts[0] == "cvt" and len(kinds) == 2 and len(operands) >= 2:
            self._type(operands[:1], kinds[0])
            self._type(operands[1:], kinds[1])
        elif parts[0] in ("mma", "wmma") and len(kinds) == len(operands) == 4:
            # PTX ISA, "mma": .dtype.atype.btype.ctype, in the order of the operands.
            for operand, kind in zip(operands, kinds, strict=True):
                self._type([operand], "f32" if kind == "tf32" else kind)
            self._product = kinds[0] if kinds[0] in _FLOATS else ""
            self._factor = {"tf32": "f32"}.get(kinds[1], kinds[1] if kinds[1] in _FLOATS else "")
        elif kinds and not any(operand.startswith("[") for operand in operands):
            self._type(operands, kinds[-1])
        elif kinds and parts[0] in ("ld", "st", "atom", "red"):
            self._type([operand for operand in operands if not operand.startswith("[")], kinds[-1])

    def _type(self, operands: Sequence[str], kind: str) -> None:
        if not kind.startswith("b") or kind.startswith("bf"):
            for register in _registers(operands):
                self._types[register].add(_PAIRS.get(kind, kind))

    def _find(self, register: str) -> str:
        while (above := self._same.get(register, register)) != register:
            register = above
        return register

    def _join(self, one: str, other: str) -> None:
        self._same[self._find(one)] = self._find(other)

    def _move(self, source: str, target: str) -> None:
        self._moved[source].add(target)

    def _reach(self, register: str) -> set[str]:
        reached, fresh = {register}, [register]
        while fresh:
            for target in self._moved[fresh.pop()] - reached:
                reached.add(target)
                fresh.append(target)
        return reached

    def _known_types(self, register: str) -> set[str]:
        group = self._find(register)
        return set().union(*(kinds for name, kinds in self._types.items() if self._find(name) == group))

    def _number_type(self, kind: str, register: str) -> str:
        if kind in TYPE_BYTES and not kind.startswith("b"):
            return kind
        known = self._known_types(register)
        return next((name for name in _FLOATS if name in known), "u" + kind.lstrip("bf"))

    def _element(self, instruction: Instruction) -> str:
        """The type of one element of the accessed memory, by the instruction or by the use of its registers."""
        kind = _PAIRS.get(instruction.type or "", instruction.type or "")
        if not kind:
            return self._factor
        if not kind.startswith("b") or kind == "bf16":
            return kind
        values = [operand for operand in instruction.operands if not operand.startswith("[")]
        known = set().union(*(self._known_types(register) for register in _registers(values)))
        size = TYPE_BYTES[kind]
        fitting = [name for name in _FLOATS if name in known and TYPE_BYTES[name] <= size]
        likely = self._product if instruction.parts[0] == "st" else self._factor
        if not known and likely and TYPE_BYTES[likely] <= size:
            return likely
        return fitting[0] if fitting else "u" + {1: "8", 2: "16", 4: "32", 8: "64"}.get(size, "32")


def _instructions(module: Module, entry: Function) -> Iterator[Instruction]:
    if entry.body is None:
        return
    for match in _STATEMENT.finditer(module.code, *entry.body):
        instruction = read_instruction(match[0])
        if instruction is not None:
            yield instruction


def _space(instruction: Instruction, index: int) -> str | None:
    """The state space of a memory operand, counted among those; copies name the target's, then the source's."""
    spaces = [part.partition("::")[0] for part in instruction.parts if part.partition("::")[0] in STATE_SPACES]
    return spaces[min(index, len(spaces) - 1)] if spaces else None


def _access(instruction: Instruction, index: int) -> str:
    parts = instruction.parts
    if parts[0] == "st" or parts[:2] == ("wmma", "store") or (parts[0] == "cp" and index == 0):
        return "store"
    return "update" if parts[0] in ("atom", "red") else "load"


def _registers(operands: Sequence[str]) -> set[str]:
    return {name for operand in operands for name in REGISTER.findall(operand) if not operand.startswith("[")}
