"""Cubins: NVIDIA's machine code in ELF. Registers, stack, shared memory and parameters of kernels, and their
code.

NVIDIA documents none of this; the values were compared with ``cuobjdump -res-usage`` and with the PTX that
the cubins were assembled from (``tests/fatbin/test_cubin.py``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from neutrino.elf.constants import EM_CUDA, SHT_NOBITS, STT_FUNC
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.elf.rows import Section, Symbol

_OSABI_CUDA = 0x33
"""CUDA up to 12.x for sm_90 and below: e_flags holds the SM in its low byte, e_version is the toolkit."""
_OSABI_CUDA_V2 = 0x41
"""CUDA 13, and 12.8 and up for sm_100: e_flags holds the SM in bits 8 to 15, notes the rest."""
_FLAG_A = 0x800
_FLAG_A_V2 = 0x8
STO_CUDA_ENTRY = 0x10
_NOTE_CUINFO = struct.Struct("<12x12sHHI")
_COMPAT_ARCH_SPECIFIC = 9

# Formats of an attribute: how its value is stored.
_NVAL, _BVAL, _HVAL, _SVAL = 1, 2, 3, 4

_MAX_THREADS = 0x05
_PARAM_CBANK = 0x0A
_REQNTID = 0x10
_FRAME_SIZE = 0x11
MIN_STACK_SIZE = 0x12
_KPARAM_INFO = 0x17
_CBANK_PARAM_SIZE = 0x19
REGCOUNT = 0x2F
_KPARAM_INFO_V2 = 0x45
_NUM_BARRIERS = 0x4C

_ARCH_IN_NOTE = re.compile(rb"sm_(\d+)([af]?)\b")
_DEBUG_TARGET = re.compile(r"^([ \t]*\.target[^\n]*?)[ \t]*,[ \t]*debug\b", re.MULTILINE)
_EMPTY_DEBUG_SECTION = re.compile(r"^[ \t]*\.section[ \t]+\.debug_\w+\s*\{\s*\}[ \t]*\n?", re.MULTILINE)


@dataclass(frozen=True)
class CubinKernel:
    """The properties of one kernel in a cubin.

    registers: of a thread. frame, stack: bytes of stack that a thread needs, for the kernel itself and with
    what it calls (0 before linking). shared: bytes of static shared memory of a block, with the 1024 that the
    system reserves from sm_90 on. parameters: (ordinal, offset, size) in bytes, by ordinal; offsets count
    from parameter_base in constant bank 0, whose parameters take parameter_size bytes; both are 0 without
    parameters. code: all of ``.text.NAME``. max_threads, required_threads: ``.maxntid`` and ``.reqntid``,
    None where not given. barriers: named barriers.
    """

    name: str
    registers: int
    frame: int
    shared: int
    parameters: tuple[tuple[int, int, int], ...]
    parameter_base: int
    parameter_size: int
    code: bytes
    max_threads: tuple[int, int, int] | None
    required_threads: tuple[int, int, int] | None
    barriers: int
    stack: int


@dataclass(frozen=True)
class Cubin:
    """A cubin. arch: as ``sm_90a``, empty if unknown. toolkit: (major, minor) that made it, None if not
    recorded.

    virtual: the number of the architecture that its PTX was for, 80 where ``compute_80`` became sm_86; None if not
    recorded. debug_ptx: the PTX text that ``-lineinfo`` and ``-G`` leave in the cubin, in a form that ``ptxas``
    accepts; None where there is none. That of ``-G`` gives other code than the cubin's. kernels: by mangled
    name. functions: code of device functions by name. data: the whole cubin.
    """

    arch: str
    toolkit: tuple[int, int] | None
    debug_ptx: str | None
    kernels: dict[str, CubinKernel]
    functions: dict[str, bytes]
    virtual: int | None = None
    data: bytes | memoryview = field(default=b"", repr=False, compare=False)


@dataclass
class _Attributes:
    """Attributes of one kernel, gathered from ``.nv.info`` and ``.nv.info.NAME``."""

    registers: int | None = None
    frame: int = 0
    stack: int = 0
    parameter_base: int = 0
    parameter_size: int = 0
    max_threads: tuple[int, int, int] | None = None
    required_threads: tuple[int, int, int] | None = None
    barriers: int | None = None


def read_cubin(data: bytes | memoryview, name: str) -> Cubin:
    """Read a cubin. name: for error messages. Raises FormatError if it is not a valid cubin."""
    elf = open_cubin(data, name)
    symbols = {symbol.index: symbol for symbol in function_symbols(elf)}
    gathered = {index: _Attributes() for index in symbols}
    info = elf.section(".nv.info")
    if info is not None:
        for attribute, cursor in attributes(elf, info):
            if attribute in (REGCOUNT, _FRAME_SIZE, MIN_STACK_SIZE):
                index, value = cursor.integer(4, "symbol index"), cursor.integer(4, "attribute value")
                if index not in gathered:
                    continue
                if attribute == REGCOUNT:
                    gathered[index].registers = value
                elif attribute == _FRAME_SIZE:
                    gathered[index].frame = value
                else:
                    gathered[index].stack = value
    kernels = {}
    functions = {}
    for index, symbol in symbols.items():
        if symbol.other & STO_CUDA_ENTRY:
            kernels[symbol.name] = _kernel(elf, symbol, gathered[index])
        else:
            functions[symbol.name] = _code(elf, symbol)
    return Cubin(_arch(elf), _toolkit(elf), _debug_ptx(elf), kernels, functions, _virtual(elf), data)


def cubin_arch(data: bytes | memoryview, name: str) -> str:
    """The architecture alone, as ``sm_90a``; empty if unknown. Raises FormatError as ``read_cubin``."""
    return _arch(open_cubin(data, name))


def cubin_kernel_names(data: bytes | memoryview, name: str) -> tuple[str, ...]:
    """The kernels' mangled names alone. Raises FormatError as ``read_cubin``."""
    return tuple(symbol.name for symbol in function_symbols(open_cubin(data, name)) if symbol.other & STO_CUDA_ENTRY)


def cubin_compatibility(data: bytes | memoryview, name: str) -> bytes:
    """The cubin's ``.nv.compat`` section, which its entry in a container repeats; empty if there is none."""
    elf = open_cubin(data, name)
    section = elf.section(".nv.compat")
    return b"" if section is None else bytes(elf.contents(section))


def open_cubin(data: bytes | memoryview, name: str) -> Elf:
    """The cubin as the ELF file that it is. Raises FormatError for any other file."""
    elf = Elf(memoryview(data), name)
    if elf.machine != EM_CUDA:
        raise Cursor(elf.data, name).error("e_machine", str(elf.machine), f"{EM_CUDA} (CUDA)", at=0x12)
    return elf


def function_symbols(elf: Elf) -> Iterator[Symbol]:
    """The symbols of the functions that the cubin defines, kernels and others."""
    for symbol in elf.symbols(kinds=(STT_FUNC,)):
        if 0 < symbol.section < len(elf.sections):
            yield symbol


def _code(elf: Elf, symbol: Symbol) -> bytes:
    cursor = _contents(elf, elf.sections[symbol.section])
    cursor.seek(symbol.value, f"st_value of {symbol.name}")
    return bytes(cursor.take(symbol.size, f"code of {symbol.name}"))


def _contents(elf: Elf, section: Section) -> Cursor:
    base = 0 if section.type == SHT_NOBITS else section.offset
    return Cursor(elf.contents(section), elf.file, base=elf.base + base)


def _kernel(elf: Elf, symbol: Symbol, own: _Attributes) -> CubinKernel:
    name = symbol.name
    text = elf.sections[symbol.section]
    parameters: list[tuple[int, int, int]] = []
    info = elf.section(f".nv.info.{name}")
    if info is not None:
        for attribute, cursor in attributes(elf, info):
            if attribute in (_KPARAM_INFO, _KPARAM_INFO_V2):
                cursor.integer(4, "parameter index")
                ordinal = cursor.integer(2, "parameter ordinal")
                offset = cursor.integer(2, "parameter offset")
                word = cursor.integer(4, "parameter size")
                # The 14 bits of the first form end at 16383 bytes; the second is used beyond.
                size = word >> 18 if attribute == _KPARAM_INFO else word & 0xFFFF
                parameters.append((ordinal, offset, size))
            elif attribute == _PARAM_CBANK:
                cursor.integer(4, "constant bank symbol")
                own.parameter_base = cursor.integer(2, "parameter base")
                own.parameter_size = cursor.integer(2, "size of the parameters")
            elif attribute == _CBANK_PARAM_SIZE:
                own.parameter_size = cursor.integer(2, "size of the parameters")
            elif attribute == _MAX_THREADS:
                own.max_threads = _dimensions(cursor, "maximum of threads")
            elif attribute == _REQNTID:
                own.required_threads = _dimensions(cursor, "required threads")
            elif attribute == _NUM_BARRIERS:
                own.barriers = cursor.integer(1, "number of barriers")
    shared = elf.section(f".nv.shared.{name}")
    return CubinKernel(
        name=name,
        # Before sm_90 the text section says it as well, in the high byte of sh_info.
        registers=text.info >> 24 if own.registers is None else own.registers,
        frame=own.frame,
        stack=own.stack,
        shared=0 if shared is None else shared.size,
        parameters=tuple(sorted(parameters)),
        parameter_base=own.parameter_base,
        parameter_size=own.parameter_size,
        code=bytes(elf.contents(text)),
        max_threads=own.max_threads,
        required_threads=own.required_threads,
        # The older ABI keeps the count in sh_flags instead.
        barriers=(text.flags >> 20 & 0x7F) if own.barriers is None else own.barriers,
    )


def _dimensions(cursor: Cursor, field: str) -> tuple[int, int, int]:
    return cursor.integer(4, field), cursor.integer(4, field), cursor.integer(4, field)


def attributes(elf: Elf, section: Section) -> Iterator[tuple[int, Cursor]]:
    """Every attribute of a ``.nv.info`` section with its value; an unknown attribute is stepped over by its
    format."""
    cursor = _contents(elf, section)
    while cursor.remaining:
        kind = cursor.integer(1, "attribute format")
        attribute = cursor.integer(1, "attribute")
        if kind == _SVAL:
            size = cursor.integer(2, "attribute size")
        elif kind in (_NVAL, _BVAL, _HVAL):
            size = 2
        else:
            raise cursor.error("attribute format", str(kind), "1 to 4", at=cursor.position - 2)
        begin = cursor.position
        cursor.take(size, f"attribute {attribute:#x}")
        yield attribute, Cursor(cursor.data, cursor.file, start=begin, end=begin + size, base=cursor.base)


def _arch(elf: Elf) -> str:
    if elf.os_abi == _OSABI_CUDA:
        return f"sm_{elf.flags & 0xFF}{'a' if elf.flags & _FLAG_A else ''}"
    if elf.os_abi != _OSABI_CUDA_V2:
        return ""
    number = elf.flags >> 8 & 0xFF
    return f"sm_{number}{_suffix(elf, number)}"


def _suffix(elf: Elf, number: int) -> str:
    """``a`` is in e_flags (12.9), ``.nv.compat`` (13.0) or the assembler's command line; ``f`` in the latter
    alone."""
    if elf.flags & _FLAG_A_V2:
        return "a"
    compat = elf.section(".nv.compat")
    if compat is not None:
        for attribute, cursor in attributes(elf, compat):
            if attribute == _COMPAT_ARCH_SPECIFIC and cursor.integer(1, "architecture specific"):
                return "a"
    note = elf.section(".note.nv.tkinfo")
    if note is None:
        return ""
    suffixes = {found[2] for found in _ARCH_IN_NOTE.finditer(elf.contents(note)) if int(found[1]) == number}
    return suffixes.pop().decode("ascii") if len(suffixes) == 1 else ""


def _toolkit(elf: Elf) -> tuple[int, int] | None:
    if elf.os_abi == _OSABI_CUDA:
        return _release(elf.version)
    note = elf.section(".note.nv.cuinfo")
    if note is None:
        return None
    *_, release = _contents(elf, note).unpack(_NOTE_CUINFO, "note cuinfo")
    return _release(release)


def _virtual(elf: Elf) -> int | None:
    if elf.os_abi == _OSABI_CUDA:
        return elf.flags >> 16 & 0xFF or None
    note = elf.section(".note.nv.cuinfo")
    if note is None:
        return None
    _, _, number, _ = _contents(elf, note).unpack(_NOTE_CUINFO, "note cuinfo")
    return int(number) or None


def _release(number: int) -> tuple[int, int]:
    return number // 10, number % 10


def _debug_ptx(elf: Elf) -> str | None:
    """The text without the debug sections that ``-G`` declares and the cubin keeps the heads of only.

    ``.target sm_80, debug`` goes with them: it demands their contents.
    """
    section = elf.section(".nv_debug_ptx_txt")
    if section is None:
        return None
    text = bytes(elf.contents(section)).replace(b"\0", b"\n").decode("latin-1")
    text, dropped = _EMPTY_DEBUG_SECTION.subn("", text)
    return _DEBUG_TARGET.sub(r"\1", text) if dropped else text
