"""The attributes of kernels (EIATTR) that are understood, and how they are changed.

An attribute that is not here refuses the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from neutrino.elf.cursor import Cursor
from neutrino.errors import FormatError
from neutrino.sass.attributes import (
    ANNOTATIONS,
    ATOM16_EMUL_INSTR_REG_MAP,
    CBANK_PARAM_SIZE,
    COOP_GROUP_INSTR_OFFSETS,
    COOP_GROUP_MASK_REGIDS,
    CRS_STACK_SIZE,
    CTA_PER_CLUSTER,
    CTAIDZ_USED,
    CUDA_API_VERSION,
    EXIT_INSTR_OFFSETS,
    EXPLICIT_CLUSTER,
    EXTERNS,
    FRAME_SIZE,
    INDIRECT_BRANCH_TARGETS,
    INT_WARP_WIDE_INSTR_OFFSETS,
    KPARAM_INFO,
    KPARAM_INFO_V2,
    MAX_CLUSTER_RANK,
    MAX_STACK_SIZE,
    MAX_THREADS,
    MAXREG_COUNT,
    MBARRIER_INSTR_OFFSETS,
    MIN_STACK_SIZE,
    NUM_BARRIERS,
    NUM_MBARRIERS,
    PARAM_CBANK,
    REG_RECONFIG,
    REGCOUNT,
    REQNTID,
    S2RCTAID_INSTR_OFFSETS,
    SPARSE_MMA_MASK,
    SVAL,
    SW2861232_WAR,
    SW_WAR,
    SYSCALL_OFFSETS,
    UNNAMED,
    UNNAMED_OF_A_KERNEL,
    UNUSED_LOAD_BYTE_OFFSET,
    attributes,
)

_HEAD = struct.Struct("<BBH")
"""Format, number, and the size of the value, of SVAL."""
_MBARRIER_WORDS = 4
"""In MBARRIER_INSTR_OFFSETS of each instruction: its place, a register, an offset from it, and what it does."""
_NONE_LISTED = 0xFFFFFFFF
"""In COOP_GROUP_MASK_REGIDS: no register."""

OF_A_FUNCTION = frozenset({FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE, REGCOUNT})
"""Of ``.nv.info``: each begins with the number of a function's symbol."""
_PLAIN = {
    MAX_THREADS, REQNTID, KPARAM_INFO, CBANK_PARAM_SIZE, MAXREG_COUNT, CRS_STACK_SIZE, COOP_GROUP_MASK_REGIDS, SW_WAR,
    SW2861232_WAR, CTAIDZ_USED, CUDA_API_VERSION, NUM_MBARRIERS, KPARAM_INFO_V2, NUM_BARRIERS, SPARSE_MMA_MASK,
    REG_RECONFIG, UNNAMED, UNNAMED_OF_A_KERNEL, CTA_PER_CLUSTER, EXPLICIT_CLUSTER, MAX_CLUSTER_RANK,
}  # fmt: skip
"""Neither numbers of symbols nor places of instructions."""
ALWAYS_ALIKE: Mapping[int, bytes] = {UNNAMED_OF_A_KERNEL: b"\3\0\0\0"}
"""Attributes whose meaning nobody knows, with the one value that they are known with."""
PLACES = {
    EXIT_INSTR_OFFSETS, S2RCTAID_INSTR_OFFSETS, COOP_GROUP_INSTR_OFFSETS, INT_WARP_WIDE_INSTR_OFFSETS, SYSCALL_OFFSETS,
}  # fmt: skip
"""Lists of places of instructions in the code, in bytes, and of nothing else."""
_MIXED = {
    ATOM16_EMUL_INSTR_REG_MAP, INDIRECT_BRANCH_TARGETS, MBARRIER_INSTR_OFFSETS, UNUSED_LOAD_BYTE_OFFSET, ANNOTATIONS,
}  # fmt: skip
"""Places of instructions among other numbers: what is listed there keeps its place."""
_SYMBOLS = {PARAM_CBANK, EXTERNS}
OF_A_KERNEL = frozenset(_PLAIN | PLACES | _MIXED | _SYMBOLS)


@dataclass(frozen=True)
class Attribute:
    """One attribute. format: how its value is stored. value: the bytes of it; two for all formats but one."""

    format: int
    number: int
    value: bytes

    def packed(self) -> bytes:
        """Return the attribute as it is stored."""
        if self.format == SVAL:
            return _HEAD.pack(self.format, self.number, len(self.value)) + self.value
        return bytes((self.format, self.number)) + self.value


def read_attributes(content: bytes | bytearray | memoryview, file: str) -> Iterator[Attribute]:
    """Yield the attributes of a ``.nv.info`` section. file: for error messages, in which offsets count from the
    section's first byte. Raises FormatError for an unknown format, and for a value that leaves the section."""
    for format_, number, value in attributes(Cursor(memoryview(content), file)):
        yield Attribute(format_, number, bytes(value.take(value.remaining, f"attribute {number:#x}")))


def replaced(attribute: Attribute, value: bytes) -> Attribute:
    """Return an attribute with another value."""
    return Attribute(attribute.format, attribute.number, value)


def symbol_of(attribute: Attribute, file: str) -> int:
    """Return the number of the symbol with which a value begins. Raises FormatError for a value of under 4 bytes."""
    return int(Cursor(memoryview(attribute.value), file).integer(4, f"symbol of attribute {attribute.number:#x}"))


def with_symbols(attribute: Attribute, new: Callable[[int], int], file: str) -> Attribute:
    """Return an attribute with the numbers of symbols in it changed. new: the number in the new file of one in the old.

    Raises FormatError for a value that is too short.
    """
    if attribute.number == EXTERNS:
        if len(attribute.value) % 4:
            raise FormatError(file, 0, "EXTERNS", f"{len(attribute.value)} bytes long", "a multiple of 4")
        numbers = struct.unpack(f"<{len(attribute.value) // 4}I", attribute.value)
        return replaced(attribute, struct.pack(f"<{len(numbers)}I", *map(new, numbers)))
    if attribute.number == PARAM_CBANK or attribute.number in OF_A_FUNCTION:
        number = new(symbol_of(attribute, file))
        return replaced(attribute, struct.pack("<I", number) + attribute.value[4:])
    return attribute


def listed_places(kept: list[Attribute]) -> dict[int, int]:
    """Return every number that an attribute lists, which may be the place of an instruction, with the attribute's
    number. Of EXIT_INSTR_OFFSETS nothing: what it lists may move, as ``moved_places`` says."""
    places: dict[int, int] = {}
    for attribute in kept:
        if attribute.number in (PLACES | _MIXED) - {EXIT_INSTR_OFFSETS}:
            words = [word for (word,) in struct.iter_unpack("<I", attribute.value[: len(attribute.value) // 4 * 4])]
            if attribute.number == MBARRIER_INSTR_OFFSETS and len(attribute.value) % (4 * _MBARRIER_WORDS) == 0:
                words = words[::_MBARRIER_WORDS]
            places.update({word: attribute.number for word in words if word != _NONE_LISTED and word not in places})
    return places


def branched_to(attributes: list[Attribute], file: str) -> set[int]:
    """Return the places to which branches by a register go, as INDIRECT_BRANCH_TARGETS lists them. Raises FormatError
    for another layout."""
    return {place for places in indirect_branches(attributes, file).values() for place in places}


def indirect_branches(attributes: list[Attribute], file: str) -> dict[int, list[int]]:
    """Return the places of branches by a register, and where each may go, as INDIRECT_BRANCH_TARGETS lists them: of
    each branch its place, 0, the number of targets, and these. Raises FormatError for another layout."""
    found: dict[int, list[int]] = {}
    for attribute in attributes:
        if attribute.number != INDIRECT_BRANCH_TARGETS:
            continue
        cursor = Cursor(memoryview(attribute.value), file)
        while cursor.remaining:
            branch = int(cursor.integer(4, "place of an indirect branch"))
            at = cursor.position
            unknown = cursor.integer(4, "word of INDIRECT_BRANCH_TARGETS")
            if unknown:
                raise cursor.error("word of INDIRECT_BRANCH_TARGETS", hex(unknown), "0", at=at)
            count = cursor.integer(4, "number of targets")
            places = [int(cursor.integer(4, "target of an indirect branch")) for _ in range(count)]
            found.setdefault(branch, []).extend(places)
    return found


def moved_places(attribute: Attribute, moved: Mapping[int, int]) -> Attribute:
    """Return an attribute whose places follow instructions that moved. moved: new place in the code by the old one."""
    if attribute.number != EXIT_INSTR_OFFSETS:
        return attribute
    count = len(attribute.value) // 4
    places = struct.unpack_from(f"<{count}I", attribute.value)
    return replaced(attribute, struct.pack(f"<{count}I", *(moved.get(place, place) for place in places)))
