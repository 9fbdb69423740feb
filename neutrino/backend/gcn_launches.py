"""What a code object says of a kernel that is to be launched with generated inputs: its arguments, and what they are.

The metadata have places and sizes. Whether a number is a fraction, and what a buffer's elements are, shows in the
instructions that use what was loaded: they are followed in the order of the code, which is a guess that any code may
defeat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.kernel_runs import CannotRunError, Use, Uses
from neutrino.fatbin.code_object import Metadata, metadata_of, open_code_object
from neutrino.gcn.code import Function, Instruction
from neutrino.gcn.isa.effects import effects
from neutrino.gcn.isa.memory import Kind, Space, access_of, operands_of
from neutrino.gcn.isa.registers import UnknownInstructionError, registers_of
from neutrino.gcn.processors import processor_named
from neutrino.twins.kernel_text import Kernel, Parameter, Role, Value

_MOST_THREADS = 1024
"""Of a work-group, for which a compiler prepares a kernel that does not say how many it takes."""
_USUAL_LDS, _MOST_LDS = 64 << 10, {"gfx950": 160 << 10}
"""Bytes of LDS that a work-group may have, and by processors that have more."""
_FOLLOWED = 200
"""Instructions within which a value is followed."""
_SEGMENT, _POINTERS, _KERNARG = 1, (2, 4), 8
"""Bits of ``kernel_code_properties``: which addresses are in the first SGPRs, in this order."""
_FLOAT = re.compile(r"_(f16|bf16|f32|f64)(?=_|$)")
_TYPES = ("f16", "bf16", "f32", "f64")
_WIDE = re.compile(r"_[biu]64(?=_|$)")
_UPPER_HALF = re.compile(r"v_lshlrev_b32(_e32|_e64)?")
_COPIES = re.compile(r"[sv]_mov_b(32|64)(_e32|_e64)?|v_accvgpr_(read|write|mov)_b32(_e32|_e64)?|v_readfirstlane_b32")
_ADDRESSES = re.compile(r"[sv]_(lshl_)?(add|addc|sub)_(co_)?(ci_)?(u32|u64)(_e32|_e64)?|v_mad_u64_u32|v_lshl_add_u64")
_OF_LDS = "dynamic_shared_pointer"
_UNKNOWN_KINDS = ("image", "sampler", "pipe", "queue")
_SIZES = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


class _Read(NamedTuple):
    """Arguments that are in scalar registers. offset, size: among the arguments, in bytes. register: the first.
    behind: place in the code from which on they are there."""

    offset: int
    size: int
    register: int
    behind: int


def kernel_of(source: CodeObjectSource, name: str, uses: Uses | None) -> Kernel:
    """Return a kernel's arguments and launches.

    uses: of its buffers, by the number of the pointer among the arguments, as a run of it has shown; None before there
    was one: pointers then are to u32 that are read and written. Raises CannotRunError for arguments that are not
    memory or numbers, FormatError for a damaged code object, ToolMissingError without AMD's disassembler.
    """
    metadata = metadata_of(open_code_object(source.data, "code object"))
    rows = () if metadata is None else metadata.maps("amdhsa.kernels")
    row = next((row for row in rows if row.text(".name") == name), None)
    function = next((one for one in source.module.functions if one.name == name and one.is_kernel), None)
    if row is None or function is None:
        raise CannotRunError(f"{name}: the code object has no code of it")
    required = row.numbers(".reqd_workgroup_size")
    most = row.optional_number(".max_flat_workgroup_size") or _MOST_THREADS
    block = (required[0], required[1], required[2]) if len(required) == 3 else None
    if block is None and most < _MOST_THREADS:
        block = (most, 1, 1)
    arguments = _Arguments(source, function, uses or {}, is_known=uses is not None)
    own_lds = row.optional_number(".group_segment_fixed_size") or 0
    return Kernel(
        name, tuple(arguments.parameters(row)), block, exact=len(required) == 3,
        dynamic_shared=not own_lds and _uses_lds(function), most_threads=most,
        most_shared=max(_MOST_LDS.get(source.processor, _USUAL_LDS) - own_lds, 0),
    )  # fmt: skip


def _uses_lds(function: Function) -> bool:
    """Return whether a kernel accesses LDS. One that has none of its own then gets it with the launch."""
    accesses = map(access_of, function.instructions)
    return any(access is not None and access.space is Space.SHARED for access in accesses)


class _Arguments:
    """The arguments of a kernel, as its code uses them."""

    def __init__(self, source: CodeObjectSource, function: Function, uses: Uses, *, is_known: bool) -> None:
        """Find where arguments are loaded. uses, is_known: see ``kernel_of``."""
        processor = processor_named(source.processor)
        if processor is None:
            raise CannotRunError(f"{source.processor}: a processor that is not known")
        self._generation = processor.generation
        self._uses, self._is_known = uses, is_known
        self._function = function
        self._code = function.instructions
        self._places = {one.offset: place for place, one in enumerate(self._code)}
        self._reads = list(self._loaded(source.properties[function.name]))
        self._reads += self._preloaded(source.descriptors[function.name], source.properties[function.name])

    def parameters(self, row: Metadata) -> Iterator[tuple[Parameter, tuple[Value, ...]]]:
        """Yield the arguments that a launch passes, each with the numbers in it. row: the kernel's in the metadata."""
        pointers = 0
        for number, argument in enumerate(row.maps(".args")):
            kind = argument.text(".value_kind")
            if kind.startswith("hidden_"):
                continue
            name = argument.text(".name", "").removesuffix(".coerce") or f"arg{number}"
            size, offset = argument.number(".size"), argument.number(".offset")
            if kind in _UNKNOWN_KINDS:
                raise CannotRunError(f"{self._function.name}: its argument {name} is of the kind {kind}")
            values = list(self._values(name, kind, offset, size, pointers))
            pointers += sum(value.role is Role.POINTER for value in values)
            yield Parameter(name, size), tuple(values)

    def _values(self, name: str, kind: str, offset: int, size: int, pointers: int) -> Iterator[Value]:
        """Yield the numbers and pointers in one argument of a kernel.

        pointers: how many pointers there are before it.
        """
        if kind == "global_buffer":
            yield self._pointer(Value(name, 0, size, Role.POINTER, "u32"), pointers)
        elif kind == _OF_LDS or size in (1, 2):
            yield self._number(name, 0, size, offset)
        else:
            # Numbers of 4 and 8 bytes; of a structure those that are loaded.
            whole = size in _SIZES
            for at, length in [(0, size)] if whole else self._parts(offset, size):
                value = self._number(name if whole else f"{name}+{at}", at, length, offset + at)
                if value.role is Role.POINTER:
                    value = self._pointer(value, pointers)
                    pointers += 1
                yield value

    def _pointer(self, value: Value, number: int) -> Value:
        """Return a pointer with what is known of the memory that it points to. number: among the pointers."""
        used = self._uses.get(number, frozenset())
        kinds = {kind for _, kind in used}
        if not kinds:
            # Nothing is known of it, or it was not accessed: it may be, with other data.
            stores = not self._is_known
            return Value(value.name, value.offset, value.size, Role.POINTER, "u32", loads=True, stores=stores)
        accessed = [self._element(address - self._function.address) for address, _ in sorted(used)]
        found = [name for name in accessed if name]
        named = next((name for name in found if name in _TYPES), found[0] if found else "u32")
        return Value(
            value.name, value.offset, value.size, Role.POINTER, named, loads=Use.LOAD in kinds,
            stores=Use.STORE in kinds, updates=Use.UPDATE in kinds,
        )  # fmt: skip

    def _number(self, name: str, at: int, size: int, offset: int) -> Value:
        """Return a number among the arguments, or a pointer that is none of them by itself. at: in its argument."""
        for read in self._reads:
            if read.offset <= offset and offset + size <= read.offset + read.size:
                first = read.register + (offset - read.offset) // 4
                wide = (1 << max(size // 4, 1)) - 1 << first
                if size == 8 and self._is_address(wide, read.behind):
                    return Value(name, at, size, Role.POINTER, "u32")
                kind = self._float_of(wide, read.behind)
                if kind and (size != 8 or kind == "f64"):
                    return Value(name, at, size, Role.FLOAT, kind)
        return Value(name, at, size, Role.INTEGER, _SIZES[size], is_guessed=size in (2, 4, 8))

    def _parts(self, offset: int, size: int) -> list[tuple[int, int]]:
        """Return place and size of the numbers in a structure that are loaded. offset: of the structure."""
        words = set()
        for read in self._reads:
            words |= {at for at in range(read.offset, read.offset + read.size, 4) if offset <= at < offset + size}
        parts = []
        left = sorted(words)
        while left:
            at = left.pop(0)
            register = next(
                one.register + (at - one.offset) // 4
                for one in self._reads if one.offset <= at < one.offset + one.size
            )  # fmt: skip
            behind = next(one.behind for one in self._reads if one.offset <= at < one.offset + one.size)
            is_pair = left[:1] == [at + 4] and at % 8 == 0
            if is_pair and (
                self._is_address(3 << register, behind) or self._float_of(3 << register, behind) == "f64"
            ):  # fmt: skip
                left.pop(0)
                parts.append((at - offset, 8))
            else:
                parts.append((at - offset, 4))
        return parts

    def _loaded(self, properties: int) -> Iterator[_Read]:
        """Yield what scalar instructions of the kernel load of its arguments.

        properties: of the kernel's descriptor.
        """
        pairs = {_kernarg_pair(properties)} if properties & _KERNARG else set()
        for place, instruction in enumerate(self._code):
            if not pairs:
                return
            operands = instruction.operands
            access = access_of(instruction)
            if access is not None and access.space is Space.SCALAR and access.kind is Kind.LOAD:
                found = operands_of(instruction, access)
                if found.base in pairs and re.fullmatch(r"0x[0-9a-f]+|\d+", found.offset):
                    yield _Read(int(found.offset, 0), access.size, _first_scalar(found.result), place + 1)
            written = self._written(instruction)
            copied = instruction.mnemonic == "s_mov_b64" and operands[1] in pairs
            pairs = {pair for pair in pairs if not registers_of(pair) & written}
            if copied:
                pairs.add(operands[0])

    def _preloaded(self, descriptor: bytes, properties: int) -> Iterator[_Read]:
        """Yield the arguments that the hardware loads into SGPRs before the kernel begins."""
        preload = int.from_bytes(descriptor[58:60], "little")
        length, offset = preload & 0x7F, preload >> 7
        if length:
            begin = next((place for place, one in enumerate(self._code) if one.offset >= 256), len(self._code))
            # They are behind the pair with the arguments' address, and what else is asked for.
            first = _kernarg_number(properties) + 2 * bool(properties & _KERNARG)
            first += 2 * (properties >> 4 & 1) + 2 * (properties >> 5 & 1) + (properties >> 6 & 1)
            yield _Read(4 * offset, 4 * length, first, begin)

    def _written(self, instruction: Instruction) -> int:
        """Return the registers that an instruction writes; nothing of one that is not known."""
        try:
            return effects(instruction, self._generation).writes
        except UnknownInstructionError:
            return 0

    def _followed(self, registers: int, begin: int) -> Iterator[tuple[Instruction, bool]]:
        """Yield the instructions that read a value, in the order of the code, as far as registers have it; and whether
        it was moved to the upper half of a register before.

        registers: that have it at a place in the code.
        """
        is_upper = False
        for instruction in self._code[begin : begin + _FOLLOWED]:
            try:
                found = effects(instruction, self._generation)
            except UnknownInstructionError:
                continue
            reads = found.named & registers and _reads_of(instruction) & registers
            if reads:
                yield instruction, is_upper
            moved = _UPPER_HALF.fullmatch(instruction.mnemonic) and instruction.operands[1:2] == ("16",)
            if reads and (_COPIES.fullmatch(instruction.mnemonic) or moved):
                registers |= found.writes
                is_upper |= bool(moved)
            else:
                registers &= ~found.writes
            if not registers:
                return

    def _float_of(self, registers: int, begin: int) -> str:
        """Return the type of fraction as which a value is used, "" if it is used as none."""
        for instruction, is_upper in self._followed(registers, begin):
            for mnemonic in (instruction.mnemonic, *(instruction.second or ())[:1]):
                found = _FLOAT.findall(str(mnemonic))
                # Of conversions and products the last one is what is read.
                if found and not access_of(instruction):
                    return "bf16" if is_upper and found[-1] == "f32" else found[-1]
        return ""

    def _is_address(self, registers: int, begin: int) -> bool:
        """Return whether two registers with a value of an argument are used as an address: as the base of an access, or
        by adding to both."""
        lowest = registers & -registers
        low = high = False
        for instruction, _ in self._followed(registers, begin):
            access = access_of(instruction)
            if access is not None:
                base = operands_of(instruction, access).base
                if base.startswith(("s", "v")) and registers_of(base) == registers:
                    return True
            elif _ADDRESSES.fullmatch(instruction.mnemonic):
                read = _reads_of(instruction) & registers
                low, high = low or bool(read & lowest), high or bool(read & ~lowest)
                if low and high:
                    return True
        return False

    def _is_wide(self, registers: int, begin: int) -> bool:
        """Return whether pairs of some registers are used as integers of 64 bits."""
        for instruction, _ in self._followed(registers, begin):
            if _WIDE.search(instruction.mnemonic) and not access_of(instruction):
                pairs = (_registers(operand) & registers for operand in instruction.operands[1:])
                if any(pair.bit_count() == 2 for pair in pairs):
                    return True
        return False

    def _element(self, offset: int) -> str:
        """Return the type of the elements that an instruction accesses, "" for one that is not of the kernel.

        offset: of the instruction in the function.
        """
        place = self._places.get(offset)
        access = access_of(self._code[place]) if place is not None else None
        if place is None or access is None:
            return ""
        instruction = self._code[place]
        operands = operands_of(instruction, access)
        kind = ""
        if access.kind is Kind.ATOMIC:
            found = _FLOAT.findall(instruction.mnemonic)
            kind = found[-1] if found else ""
        elif access.kind is Kind.LOAD:
            loaded = registers_of(operands.result)
            kind = self._float_of(loaded, place + 1)
            if not kind and access.size >= 8 and self._is_wide(loaded, place + 1):
                return "u64"
        elif operands.data:
            kind = self._stored(registers_of(operands.data[0]), place)
        return kind or _SIZES.get(min(access.size, 4) if access.size % 4 == 0 else access.size, "u32")

    def _stored(self, registers: int, place: int) -> str:
        """Return the type of fraction that the last instruction gave which wrote what is stored at a place, or ""."""
        for instruction in reversed(self._code[max(place - _FOLLOWED, 0) : place]):
            if self._written(instruction) & registers:
                found = _FLOAT.findall(instruction.mnemonic)
                # What is written is the first type of a conversion; a comparison writes a mask.
                return found[0] if found and not instruction.mnemonic.startswith("v_cmp") else ""
        return ""


def _kernarg_number(properties: int) -> int:
    """Return the number of the first scalar register with the arguments' address."""
    return (4 if properties & _SEGMENT else 0) + 2 * sum(bool(properties & bit) for bit in _POINTERS)


def _kernarg_pair(properties: int) -> str:
    """Return the scalar registers in which a kernel gets the arguments' address."""
    first = _kernarg_number(properties)
    return f"s[{first}:{first + 1}]"


def _first_scalar(operand: str) -> int:
    """Return the number of the first scalar register that an operand names."""
    registers = registers_of(operand)
    return (registers & -registers).bit_length() - 1


def _reads_of(instruction: Instruction) -> int:
    """Return the registers that all operands but the first name, which is what is written as a rule."""
    access = access_of(instruction)
    operands: Sequence[str] = instruction.operands if access is not None else instruction.operands[1:]
    second = instruction.second[1][1:] if instruction.second else ()
    found = 0
    for operand in (*operands, *second):
        found |= _registers(operand)
    return found


def _registers(operand: str) -> int:
    """Return the registers that an operand names, none for a word that names no register."""
    try:
        return registers_of(operand)
    except UnknownInstructionError:
        return 0
