"""The attributes of kernels (EIATTR), as cubins store them in sections like ``.nv.info``.

Numbers and names are those that ``cuobjdump -elf`` of CUDA 13.5 prints for what ``ptxas`` writes; NVIDIA documents
none.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator

from neutrino.elf.cursor import Cursor

# Formats of an attribute (EIFMT): how its value is stored.
NVAL, BVAL, HVAL, SVAL = 1, 2, 3, 4
_ATTRIBUTE = struct.Struct("<BBH")
"""Format, attribute, and the size of the value, of SVAL."""

# Of .nv.info; each begins with the number of a function's symbol.
FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE, REGCOUNT = 0x11, 0x12, 0x23, 0x2F

# Of .nv.info.NAME.
CTAIDZ_USED = 0x04
"""Up to sm_89, of kernels that read the block's third index, which others need not get."""
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
SW2861232_WAR = 0x35
SW_WAR = 0x36
CUDA_API_VERSION = 0x37
NUM_MBARRIERS = 0x38
MBARRIER_INSTR_OFFSETS = 0x39
UNUSED_LOAD_BYTE_OFFSET = 0x44
KPARAM_INFO_V2 = 0x45
SYSCALL_OFFSETS = 0x46
CTA_PER_CLUSTER = 0x3D
EXPLICIT_CLUSTER = 0x3E
MAX_CLUSTER_RANK = 0x3F
NUM_BARRIERS = 0x4C
SPARSE_MMA_MASK = 0x50
REG_RECONFIG = 0x54
ANNOTATIONS = 0x55
UNNAMED = 0x5F
"""In every cubin of CUDA 13; ``cuobjdump`` does not print it."""
UNNAMED_OF_A_KERNEL = 0x66
"""Of every kernel since CUDA 13.2, always 3; ``cuobjdump`` calls it unknown."""


def attributes(cursor: Cursor, chosen: Collection[int] | None = None) -> Iterator[tuple[int, int, Cursor]]:
    """Yield attributes, each as its format, its number and a cursor over its value.

    cursor: over the section, at an attribute. chosen: their numbers; None for all. The size of a value follows from the
    format, so that attributes that nobody knows are skipped. Raises FormatError for an unknown format, and for a value
    that leaves the section.
    """
    data, position, end = cursor.data, cursor.position, cursor.end
    # A library may have millions of attributes. So one of the usual format, SVAL, is read at once; any other, and one
    # that is cut off, is read field by field with all checks.
    while position < end:
        if end - position < _ATTRIBUTE.size:
            format_, number, begin, size = _checked_attribute(cursor, position)
        else:
            format_, number, size = _ATTRIBUTE.unpack_from(data, position)
            begin = position + _ATTRIBUTE.size
            if format_ != SVAL or begin + size > end:
                format_, number, begin, size = _checked_attribute(cursor, position)
        if chosen is None or number in chosen:
            yield format_, number, Cursor(data, cursor.file, start=begin, end=begin + size, base=cursor.base)
        position = begin + size


def _checked_attribute(cursor: Cursor, position: int) -> tuple[int, int, int, int]:
    """Return an attribute of any format: its format, its number, the offset at which its value begins, and the value's
    size.

    position: of the attribute; like the result, an offset in the section. Raises FormatError for an unknown format,
    and for a value that leaves the section.
    """
    cursor.seek(position, "attribute format")
    format_ = cursor.integer(1, "attribute format")
    number = cursor.integer(1, "attribute")
    if format_ == SVAL:
        size = cursor.integer(2, "attribute size")
    elif format_ in (NVAL, BVAL, HVAL):
        # The value is where SVAL has its size.
        size = 2
    else:
        raise cursor.error("attribute format", str(format_), "1 to 4", at=position)
    begin = cursor.position
    cursor.take(size, f"attribute {number:#x}")
    return format_, number, begin, size
