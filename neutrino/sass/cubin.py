"""Cubins: NVIDIA's machine code in ELF. Registers, stack, shared memory, parameters and code of kernels.

NVIDIA documents none of this; the values were compared with ``cuobjdump -res-usage`` and with the PTX that
the cubins were assembled from (``tests/fatbin/test_cubin.py``).
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from neutrino.elf.constants import E_MACHINE, EM_CUDA, SHT_NOBITS, STT_FUNC
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.elf.rows import Section, Symbol
from neutrino.sass.attributes import (
    CBANK_PARAM_SIZE,
    FRAME_SIZE,
    KPARAM_INFO,
    KPARAM_INFO_V2,
    MAX_THREADS,
    MIN_STACK_SIZE,
    NUM_BARRIERS,
    PARAM_CBANK,
    REGCOUNT,
    REQNTID,
    attributes,
)

_OSABI_CUDA = 0x33
"""CUDA up to 12.x for sm_90 and below: the SM is in the low byte of e_flags, the toolkit's version in e_version."""
_OSABI_CUDA_V2 = 0x41
"""CUDA 13, and 12.8 and up for sm_100: the SM is in bits 8 to 15 of e_flags, other versions are in notes."""
_FLAG_A = 0x800
_FLAG_A_V2 = 0x8
"""The bits of e_flags for the suffix ``a`` of the architecture, by OS ABI."""
STO_CUDA_ENTRY = 0x10
"""The bit of a symbol's st_other that marks a kernel."""
REGISTERS_SHIFT = 24
"""sh_info of a code section: the symbol's number below, up to sm_89 the number of registers above."""
_NOTE_CUINFO = struct.Struct("<12x12sHHI")
"""The note's header and name, a number that is not used, the PTX's architecture, and the toolkit's release."""
_OPENED = 2
"""Opened cubins that are kept: a kernel's and its twin's."""
_COMPAT_ARCH_SPECIFIC = 9
"""The attribute of ``.nv.compat`` that is not 0 for the suffix ``a``."""

_OF_A_KERNEL = frozenset({
    MAX_THREADS, PARAM_CBANK, REQNTID, KPARAM_INFO, CBANK_PARAM_SIZE, KPARAM_INFO_V2, NUM_BARRIERS,
})  # fmt: skip

_ARCH_IN_NOTE = re.compile(rb"sm_(\d+)([af]?)\b")
_DEBUG_TARGET = re.compile(r"^([ \t]*\.target[^\n]*?)[ \t]*,[ \t]*debug\b", re.MULTILINE)
_EMPTY_DEBUG_SECTION = re.compile(r"^[ \t]*\.section[ \t]+\.debug_\w+\s*\{\s*\}[ \t]*\n?", re.MULTILINE)


@dataclass(frozen=True)
class CubinKernel:
    """The properties of one kernel in a cubin.

    registers: per thread. frame: bytes of stack per thread for the kernel itself. stack: the same including the
    functions that it calls (0 before linking). shared: bytes of static shared memory per block, with the 1024 that the
    system reserves from sm_90 on. parameters: (ordinal, offset, size) of each, sorted by ordinal, in bytes; offsets
    count from parameter_base in constant bank 0. parameter_size: bytes of all of them; both are 0 without parameters.
    code: all of ``.text.NAME``. max_threads, required_threads: ``.maxntid`` and ``.reqntid`` (x, y, z), None where not
    given. barriers: number of named barriers.
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


@dataclass(frozen=True, eq=False)
class Cubin:
    """A cubin. Two are equal if they are the same object.

    arch: such as ``sm_90a``, empty if unknown. toolkit: version (major, minor) of the CUDA toolkit that made it, None
    if not recorded. virtual: the number of the architecture that its PTX was for, such as 80 if it was compiled from
    ``compute_80`` for sm_86; None if not recorded. debug_ptx: the PTX text that ``-lineinfo`` and ``-G`` store in the
    cubin, in a form that ``ptxas`` accepts; None if there is none. With ``-G``, assembling it gives other code than the
    cubin's. kernels: by mangled name. functions: code of the other device functions by name. elf: the file's tables.
    data: the whole cubin.
    """

    arch: str
    toolkit: tuple[int, int] | None
    debug_ptx: str | None
    kernels: Mapping[str, CubinKernel]
    functions: dict[str, bytes]
    virtual: int | None
    elf: Elf = field(repr=False)
    data: bytes | memoryview = field(repr=False)


@dataclass
class _Attributes:
    """Attributes of one kernel from ``.nv.info`` and ``.nv.info.NAME``; fields as in CubinKernel."""

    registers: int | None = None
    frame: int = 0
    stack: int = 0
    parameter_base: int = 0
    parameter_size: int = 0
    max_threads: tuple[int, int, int] | None = None
    required_threads: tuple[int, int, int] | None = None
    barriers: int | None = None


def read_cubin(data: bytes | memoryview, name: str, *, one_by_one: bool = False) -> Cubin:
    """Read the kernels, functions and versions of a cubin. data: the whole file. name: for error messages.

    one_by_one: whether each kernel is read when it is looked up, and functions are not; then that may raise, too.
    Raises FormatError if it is not a valid cubin.
    """
    if isinstance(data, bytes) and not one_by_one:
        return _read_once(data, name)
    return _read(data, name, one_by_one=one_by_one)


@functools.lru_cache(maxsize=_OPENED)
def _read_once(data: bytes, name: str) -> Cubin:
    """Read a cubin that several ask for, as ``_open_once``."""
    return _read(data, name, one_by_one=False)


def _read(data: bytes | memoryview, name: str, *, one_by_one: bool) -> Cubin:
    elf = open_cubin(data, name)
    kernels: Mapping[str, CubinKernel]
    functions = {}
    if one_by_one:
        kernels = _Kernels(elf)
    else:
        symbols = {symbol.index: symbol for symbol in function_symbols(elf)}
        attributes_by_symbol = _attributes_of(elf, symbols)
        kernels = {}
        for index, symbol in symbols.items():
            if symbol.other & STO_CUDA_ENTRY:
                kernels[symbol.name] = _kernel(elf, symbol, attributes_by_symbol[index])
            else:
                functions[symbol.name] = _code(elf, symbol)
    return Cubin(_arch(elf), _toolkit(elf), _debug_ptx(elf), kernels, functions, _virtual(elf), elf, data)


class _Kernels(Mapping[str, CubinKernel]):
    """The kernels of a cubin by name, each of which is read when it is looked up. Raises FormatError then."""

    def __init__(self, elf: Elf) -> None:
        symbols = list(function_symbols(elf))
        self._elf = elf
        self._symbols = {symbol.name: symbol for symbol in symbols if symbol.other & STO_CUDA_ENTRY}
        self._indices = {symbol.index for symbol in self._symbols.values()}
        self._read: dict[str, CubinKernel] = {}

    def __getitem__(self, name: str) -> CubinKernel:
        if name not in self._read:
            symbol = self._symbols[name]
            self._read[name] = _kernel(self._elf, symbol, self._attributes[symbol.index])
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._symbols)

    def __len__(self) -> int:
        return len(self._symbols)

    @functools.cached_property
    def _attributes(self) -> dict[int, _Attributes]:
        """What ``.nv.info`` says of each, by the number of its symbol."""
        return _attributes_of(self._elf, self._indices)


def _attributes_of(elf: Elf, symbols: Collection[int]) -> dict[int, _Attributes]:
    """Return what ``.nv.info`` says of functions. symbols: their numbers. Raises FormatError for a damaged section."""
    # .nv.info has attributes of all functions, each with the index of the function's symbol.
    attributes_by_symbol = {index: _Attributes() for index in symbols}
    info = elf.section(".nv.info")
    if info is not None:
        for attribute, cursor in section_attributes(elf, info, (REGCOUNT, FRAME_SIZE, MIN_STACK_SIZE)):
            index, value = cursor.integer(4, "symbol index"), cursor.integer(4, "attribute value")
            # Not the symbol of a function that the cubin defines.
            if index not in attributes_by_symbol:
                continue
            if attribute == REGCOUNT:
                attributes_by_symbol[index].registers = value
            elif attribute == FRAME_SIZE:
                attributes_by_symbol[index].frame = value
            else:
                attributes_by_symbol[index].stack = value
    return attributes_by_symbol


def cubin_arch(data: bytes | memoryview, name: str) -> str:
    """Return the architecture of a cubin, such as ``sm_90a``; empty if unknown. Raises as ``read_cubin``."""
    return _arch(open_cubin(data, name))


def cubin_kernel_names(data: bytes | memoryview, name: str) -> tuple[str, ...]:
    """Return the mangled names of the kernels in a cubin. Raises FormatError as ``read_cubin``."""
    return tuple(symbol.name for symbol in function_symbols(open_cubin(data, name)) if symbol.other & STO_CUDA_ENTRY)


def cubin_compatibility(data: bytes | memoryview, name: str) -> bytes:
    """Return the content of the ``.nv.compat`` section, which the cubin's entry in a fatbin repeats; empty if none.

    name: for error messages. Raises FormatError if it is not a valid cubin.
    """
    elf = open_cubin(data, name)
    section = elf.section(".nv.compat")
    return b"" if section is None else bytes(elf.contents(section))


def open_cubin(data: bytes | memoryview, name: str) -> Elf:
    """Open a cubin as an ELF file. name: for error messages. Raises FormatError when it is not one for CUDA."""
    return _open_once(data, name) if isinstance(data, bytes) else _open(data, name)


@functools.lru_cache(maxsize=_OPENED)
def _open_once(data: bytes, name: str) -> Elf:
    """Open a cubin that several ask for: what makes a twin of it, and what checks that."""
    return _open(data, name)


def _open(data: bytes | memoryview, name: str) -> Elf:
    elf = Elf(memoryview(data), name)
    if elf.machine != EM_CUDA:
        raise Cursor(elf.data, name).error("e_machine", str(elf.machine), f"{EM_CUDA} (CUDA)", at=E_MACHINE)
    return elf


def function_symbols(elf: Elf) -> Iterator[Symbol]:
    """Yield the symbols of all functions, kernels and others, that the cubin defines (not only refers to)."""
    for symbol in elf.symbols(kinds=(STT_FUNC,)):
        if 0 < symbol.section < len(elf.sections):
            yield symbol


def _code(elf: Elf, symbol: Symbol) -> bytes:
    """Return the machine code of a symbol's function. Raises FormatError when it leaves the section."""
    cursor = _contents(elf, elf.sections[symbol.section])
    cursor.seek(symbol.value, f"st_value of {symbol.name}")
    return bytes(cursor.take(symbol.size, f"code of {symbol.name}"))


def _contents(elf: Elf, section: Section) -> Cursor:
    """Return a cursor over a section's contents. Error messages have offsets in the file."""
    # The offset of a section without contents means nothing.
    base = 0 if section.type == SHT_NOBITS else section.offset
    return Cursor(elf.contents(section), elf.file, base=elf.base + base)


def _kernel(elf: Elf, symbol: Symbol, properties: _Attributes) -> CubinKernel:
    """Return the properties of the kernel that a symbol stands for.

    properties: those from ``.nv.info``, to which this function adds those from ``.nv.info.NAME``. Raises FormatError
    for damaged attributes.
    """
    name = symbol.name
    text = elf.sections[symbol.section]
    parameters: list[tuple[int, int, int]] = []
    info = elf.section(f".nv.info.{name}")
    if info is not None:
        for attribute, cursor in section_attributes(elf, info, _OF_A_KERNEL):
            if attribute in (KPARAM_INFO, KPARAM_INFO_V2):
                cursor.integer(4, "parameter index")
                ordinal = cursor.integer(2, "parameter ordinal")
                offset = cursor.integer(2, "parameter offset")
                size_word = cursor.integer(4, "parameter size")
                # The first form has the size in the 14 high bits, up to 16383 bytes; the second, which is used beyond
                # that, in the 16 low bits.
                size = size_word >> 18 if attribute == KPARAM_INFO else size_word & 0xFFFF
                parameters.append((ordinal, offset, size))
            elif attribute == PARAM_CBANK:
                cursor.integer(4, "constant bank symbol")
                properties.parameter_base = cursor.integer(2, "parameter base")
                properties.parameter_size = cursor.integer(2, "size of the parameters")
            elif attribute == CBANK_PARAM_SIZE:
                properties.parameter_size = cursor.integer(2, "size of the parameters")
            elif attribute == MAX_THREADS:
                properties.max_threads = _dimensions(cursor, "maximum of threads")
            elif attribute == REQNTID:
                properties.required_threads = _dimensions(cursor, "required threads")
            elif attribute == NUM_BARRIERS:
                properties.barriers = cursor.integer(1, "number of barriers")
    shared = elf.section(f".nv.shared.{name}")
    return CubinKernel(
        name=name,
        # Without the attribute: before sm_90 the count is also in the high byte of the text section's sh_info.
        registers=text.info >> REGISTERS_SHIFT if properties.registers is None else properties.registers,
        frame=properties.frame,
        stack=properties.stack,
        shared=0 if shared is None else shared.size,
        parameters=tuple(sorted(parameters)),
        parameter_base=properties.parameter_base,
        parameter_size=properties.parameter_size,
        code=bytes(elf.contents(text)),
        max_threads=properties.max_threads,
        required_threads=properties.required_threads,
        # In the older ABI the number of barriers is in bits 20 to 26 of the text section's sh_flags.
        barriers=(text.flags >> 20 & 0x7F) if properties.barriers is None else properties.barriers,
    )


def _dimensions(cursor: Cursor, field: str) -> tuple[int, int, int]:
    """Read three numbers (x, y, z) of 4 bytes each. field: names them in errors."""
    return cursor.integer(4, field), cursor.integer(4, field), cursor.integer(4, field)


def section_attributes(elf: Elf, section: Section, chosen: Collection[int]) -> Iterator[tuple[int, Cursor]]:
    """Yield the chosen attributes of a ``.nv.info`` section, each as its number and a cursor over its value.

    section: ``.nv.info`` (of all functions), ``.nv.info.NAME`` (of one kernel), or another in the same encoding.
    chosen: numbers of attributes. Raises FormatError as ``attributes``, with offsets in the file.
    """
    for _, number, cursor in attributes(_contents(elf, section), chosen):
        yield number, cursor


def _arch(elf: Elf) -> str:
    """Return the architecture, such as ``sm_90a``; empty if the cubin's OS ABI is not a known one."""
    # The older OS ABI has the number in the low byte of e_flags, and a bit for the suffix.
    if elf.os_abi == _OSABI_CUDA:
        return f"sm_{elf.flags & 0xFF}{'a' if elf.flags & _FLAG_A else ''}"
    if elf.os_abi != _OSABI_CUDA_V2:
        return ""
    # The newer one has the number in bits 8 to 15.
    number = elf.flags >> 8 & 0xFF
    return f"sm_{number}{_suffix(elf, number)}"


def _suffix(elf: Elf, arch_number: int) -> str:
    """Return the suffix of the architecture, ``a``, ``f`` or none, for the newer OS ABI.

    ``a`` is in e_flags (CUDA 12.9), in ``.nv.compat`` (13.0), or in the note with the assembler's command line; ``f``
    only in the latter.
    """
    if elf.flags & _FLAG_A_V2:
        return "a"
    compat = elf.section(".nv.compat")
    if compat is not None:
        for _, cursor in section_attributes(elf, compat, (_COMPAT_ARCH_SPECIFIC,)):
            if cursor.integer(1, "architecture specific"):
                return "a"
    note = elf.section(".note.nv.tkinfo")
    if note is None:
        return ""
    # If the command line names several, it is not known which one the cubin is for.
    suffixes = {match[2] for match in _ARCH_IN_NOTE.finditer(elf.contents(note)) if int(match[1]) == arch_number}
    return suffixes.pop().decode("ascii") if len(suffixes) == 1 else ""


def _toolkit(elf: Elf) -> tuple[int, int] | None:
    """Return the version (major, minor) of the CUDA toolkit that made the cubin, None if it is not recorded."""
    # The older OS ABI has it in e_version, the newer one in a note.
    if elf.os_abi == _OSABI_CUDA:
        return _release(elf.version)
    note = elf.section(".note.nv.cuinfo")
    if note is None:
        return None
    *_, release = _contents(elf, note).unpack(_NOTE_CUINFO, "note cuinfo")
    return _release(release)


def _virtual(elf: Elf) -> int | None:
    """Return the number of the architecture that the PTX was for, such as 80; None if it is not recorded."""
    # The older OS ABI has it in bits 16 to 23 of e_flags, the newer one in a note; 0 means not recorded.
    if elf.os_abi == _OSABI_CUDA:
        return elf.flags >> 16 & 0xFF or None
    note = elf.section(".note.nv.cuinfo")
    if note is None:
        return None
    _, _, number, _ = _contents(elf, note).unpack(_NOTE_CUINFO, "note cuinfo")
    return int(number) or None


def _release(number: int) -> tuple[int, int]:
    """Split a toolkit's release into (major, minor); 124 stands for 12.4."""
    return number // 10, number % 10


def _debug_ptx(elf: Elf) -> str | None:
    """Return the PTX text that the cubin contains, in a form that ``ptxas`` accepts; None if there is none.

    With ``-G`` the text declares debug sections, but their contents are not in the cubin. The declarations are removed,
    and so is ``, debug`` in ``.target``, which requires these contents.
    """
    section = elf.section(".nv_debug_ptx_txt")
    if section is None:
        return None
    # The lines of the text are separated by NULs. latin-1 keeps every byte, whatever the encoding is.
    text = bytes(elf.contents(section)).replace(b"\0", b"\n").decode("latin-1")
    text, removed = _EMPTY_DEBUG_SECTION.subn("", text)
    return _DEBUG_TARGET.sub(r"\1", text) if removed else text
