"""The attributes of kernels (EIATTR) in ``.nv.info`` sections: which of them are understood, and how they are changed.

Numbers and names are those that ``cuobjdump -elf`` of CUDA 13.5 prints for what ``ptxas`` writes; NVIDIA documents
none. An attribute that is not here refuses the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from neutrino.elf.cursor import Cursor
from neutrino.errors import FormatError

_NVAL, _BVAL, _HVAL, _SVAL = 1, 2, 3, 4
_HEAD = struct.Struct("<BBH")
_NONE_LISTED = 0xFFFFFFFF
"""In COOP_GROUP_MASK_REGIDS: no register."""

# Of .nv.info; each begins with the number of a function's symbol.
FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE, REGCOUNT = 0x11, 0x12, 0x23, 0x2F
OF_A_FUNCTION = frozenset({FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE, REGCOUNT})

# Of .nv.info.NAME.
MAX_THREADS = 0x05
PARAM_CBANK = 0x0A
EXTERNS = 0x0F
REQNTID = 0x10
KPARAM_INFO = 0x17
CBANK_PARAM_SIZE = 0x19
MAXREG_COUNT = 0x1B
EXIT_INSTR_OFFSETS = 0x1C
S2RCTAID_INSTR_OFFSETS = 0x1D
CRS_STACK_SIZE = 0x1E
COOP_GROUP_INSTR_OFFSETS = 0x28
COOP_GROUP_MASK_REGIDS = 0x29
ATOM16_EMUL_INSTR_REG_MAP = 0x2E
INT_WARP_WIDE_INSTR_OFFSETS = 0x31
INDIRECT_BRANCH_TARGETS = 0x34
SW_WAR = 0x36
CUDA_API_VERSION = 0x37
NUM_MBARRIERS = 0x38
MBARRIER_INSTR_OFFSETS = 0x39
UNUSED_LOAD_BYTE_OFFSET = 0x44
KPARAM_INFO_V2 = 0x45
SYSCALL_OFFSETS = 0x46
NUM_BARRIERS = 0x4C
SPARSE_MMA_MASK = 0x50
REG_RECONFIG = 0x54
ANNOTATIONS = 0x55
UNNAMED = 0x5F
"""In every cubin of CUDA 13; ``cuobjdump`` does not print it."""

_PLAIN = {
    MAX_THREADS, REQNTID, KPARAM_INFO, CBANK_PARAM_SIZE, MAXREG_COUNT, CRS_STACK_SIZE, COOP_GROUP_MASK_REGIDS, SW_WAR,
    CUDA_API_VERSION, NUM_MBARRIERS, KPARAM_INFO_V2, NUM_BARRIERS, SPARSE_MMA_MASK, REG_RECONFIG, UNNAMED,
}  # fmt: skip
"""Neither numbers of symbols nor places of instructions."""
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
        if self.format == _SVAL:
            return _HEAD.pack(self.format, self.number, len(self.value)) + self.value
        return bytes((self.format, self.number)) + self.value


def read_attributes(content: bytes | bytearray, file: str) -> Iterator[Attribute]:
    """Yield the attributes of a ``.nv.info`` section. file: for error messages, in which offsets count from the
    section's first byte. Raises FormatError for an unknown format, and for a value that leaves the section."""
    cursor = Cursor(memoryview(content), file)
    while cursor.remaining:
        at = cursor.position
        format_, number = cursor.integer(1, "attribute format"), cursor.integer(1, "attribute")
        if format_ not in (_NVAL, _BVAL, _HVAL, _SVAL):
            raise cursor.error("attribute format", str(format_), "1 to 4", at=at)
        size = cursor.integer(2, "attribute size") if format_ == _SVAL else 2
        yield Attribute(format_, number, bytes(cursor.take(size, f"attribute {number:#x}")))


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


def listed_places(attributes: list[Attribute]) -> dict[int, int]:
    """Return every number that an attribute lists, which may be the place of an instruction, with the attribute's
    number. Of EXIT_INSTR_OFFSETS nothing: what it lists may move, as ``moved_places`` says."""
    places: dict[int, int] = {}
    for attribute in attributes:
        if attribute.number in (PLACES | _MIXED) - {EXIT_INSTR_OFFSETS}:
            for (word,) in struct.iter_unpack("<I", attribute.value[: len(attribute.value) // 4 * 4]):
                if word != _NONE_LISTED:
                    places.setdefault(word, attribute.number)
    return places


def moved_places(attribute: Attribute, moved: Mapping[int, int]) -> Attribute:
    """Return an attribute whose places follow instructions that moved. moved: new place in the code by the old one."""
    if attribute.number != EXIT_INSTR_OFFSETS:
        return attribute
    count = len(attribute.value) // 4
    places = struct.unpack_from(f"<{count}I", attribute.value)
    return replaced(attribute, struct.pack(f"<{count}I", *(moved.get(place, place) for place in places)))
