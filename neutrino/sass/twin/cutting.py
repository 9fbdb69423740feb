"""One kernel of a cubin of many, as a cubin of its own.

It has the kernel's code, attributes and constants, and the functions that lie in the kernel's code section. A kernel
that reads variables of its module is left alone, by name: a copy of its cubin would have variables of its own. Literals
(texts of assertions, tables of mathematical functions) are copied, and functions that the driver has
(``__assertfail``, ``vprintf``) are kept.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable

from neutrino.elf.constants import ET_REL, SHT_NULL, SHT_REL, SHT_RELA, SHT_SYMTAB, STT_FUNC, STT_OBJECT
from neutrino.elf.reader import Elf
from neutrino.elf.rows import REL_LAYOUT, RELA_LAYOUT
from neutrino.errors import FormatError, MachineCodeError
from neutrino.sass.attributes import EXTERNS, PARAM_CBANK, UNNAMED
from neutrino.sass.cubin import REGISTERS_SHIFT, STO_CUDA_ENTRY, open_cubin
from neutrino.sass.twin.attributes import (
    ALWAYS_ALIKE,
    OF_A_FUNCTION,
    OF_A_KERNEL,
    Attribute,
    read_attributes,
    symbol_of,
    with_symbols,
)
from neutrino.sass.twin.constant_reads import constant_reads
from neutrino.sass.twin.sections import (
    SHF_INFO_LINK,
    Part,
    SymbolEntry,
    content_of,
    read_parts,
    read_symbols,
    write_cubin,
    write_symbols,
)

_STT_SECTION = 3
_STB_LOCAL = 0
_TEXT, _INFO = ".text.", ".nv.info."
_OF_A_KERNEL = re.compile(
    r"\.text\.|\.nv\.info\.|\.nv\.constant[02]\.|\.nv\.shared\.|\.nv\.local\.|\.rela?\.text\.|\.rela?\.nv\.constant2\."
)
"""Names of a kernel's own sections begin so, and end with the kernel's name."""
_ADDRESSES, _LITERALS, _CONSTANTS = ".nv.constant4", ".nv.global.init", ".nv.constant3"
_OF_A_MODULE = frozenset({
    "", ".shstrtab", ".strtab", ".symtab", ".note.nv.tkinfo", ".note.nv.cuinfo", ".nv.info", ".nv.compat",
    ".nv.callgraph", ".nv.rel.action", ".nv.shared.reserved.0", ".debug_frame",
})  # fmt: skip
"""Kept in every cut; ``.nv.info`` and ``.nv.callgraph`` lose what is of other functions. ``.debug_frame`` is emptied,
not left out: without it cuobjdump calls the file invalid."""
_VARIABLES = frozenset({
    _ADDRESSES, f".rela{_ADDRESSES}", f".rel{_ADDRESSES}", _CONSTANTS, _LITERALS, ".nv.global",
})  # fmt: skip
"""Kept only as far as the kernel reads them."""
_FRAMES = ".debug_frame"
_SECOND_FORM = (".nv.capmerc", ".nv.merc", ".rela.nv.merc", ".rel.nv.merc")
"""Names of sections of sm_100 and up begin so: "capsule Mercury", from which NVIDIA's tools can finalize code again."""
_UNUSED = re.compile(r"\.rela?\.debug_\w+|\.debug_\w+|\.nv_debug[\w.]*|\.nv\.debug\w*")
"""For debuggers alone: not kept."""
_LITERAL = re.compile(r"\$str(\$\d+)?|__unnamed_\d+|__cudart_\w+")
"""Names that the compiler gives to literals, which nobody can write; and those of the tables of CUDA's mathematical
functions, which are of the module alone (STB_LOCAL) and have names that programs may not use."""
_OF_THE_DRIVER = frozenset({"__assertfail", "vprintf"})
_ADDRESS_BYTES = 8
_ADDRESS_TYPE = 2
"""The relocation that stores a symbol's whole address (R_CUDA_64)."""
_LITERAL_ALIGNMENT = 16
_UNIFORM_BANKS = frozenset({2})
"""Banks that a kernel has of its own besides bank 0: its literals."""


class Cutter:
    """The kernels of one cubin. file: its name in messages. kernels: mangled names, in the order of the symbols."""

    def __init__(self, data: bytes | memoryview, file: str, elf: Elf | None = None) -> None:
        """Read a cubin's tables. data: the whole file. elf: of it, if it was opened. Raises FormatError where it is not
        a valid cubin."""
        self.file = file
        self._elf = elf = elf or open_cubin(data, file)
        self._unlinked = elf.type == ET_REL
        if self._unlinked:
            named = elf.symbols(kinds=(STT_FUNC,))
            self.kernels = tuple(row.name for row in named if row.section and row.other & STO_CUDA_ENTRY)
            return
        # Without contents, which of a library's cubins are megabytes: a kernel needs few of them.
        self._parts = read_parts(elf, contents=False)
        table = next((index for index, part in enumerate(self._parts) if part.type == SHT_SYMTAB), None)
        if table is None or not 0 < self._parts[table].link < len(self._parts):
            raise FormatError(file, 0, "symbol table", "absent", "one with its names")
        self._symbols = read_symbols(elf, table)
        self._by_name = {part.name: index for index, part in reversed(list(enumerate(self._parts)))}
        functions = [symbol for symbol in self._symbols if symbol.type == STT_FUNC and self._defined(symbol)]
        self.kernels = tuple(symbol.name for symbol in functions if symbol.other & STO_CUDA_ENTRY)
        self._owners = {symbol.name for symbol in functions}
        self._of_section: dict[int, list[SymbolEntry]] = {}
        for symbol in self._symbols:
            self._of_section.setdefault(symbol.section, []).append(symbol)
        self._of_module: list[int] = []
        self._own: dict[str, list[int]] = {}
        self._unknown = ""
        self._sort_sections()

    def cut(self, kernel: str) -> bytes:
        """Return a cubin that has one kernel alone. kernel: its mangled name, one of ``kernels``.

        Raises MachineCodeError for a kernel that is left alone, FormatError for a damaged cubin.
        """
        if self._unlinked:
            raise MachineCodeError(kernel, "its cubin is not linked (nvcc -rdc=true), nor is it ever loaded")
        text = self._by_name.get(_TEXT + kernel)
        if kernel not in self.kernels or text is None:
            raise MachineCodeError(kernel, "the cubin has no such kernel")
        kept = self._sections(kernel)
        literals, externs = self._variables(kernel, self._content(text))
        parts, sections = self._parts_of(kept, bool(literals or externs), bool(literals))
        symbols, numbers = self._symbols_of(kernel, text, sections, literals, externs)

        def new(number: int) -> int:
            if number not in numbers:
                name = self._symbols[number].name if number < len(self._symbols) else str(number)
                raise MachineCodeError(kernel, f"refers to the symbol {name}, which is not its own")
            return numbers[number]

        functions = {row.index for row in self._of_section.get(text, ()) if row.type == STT_FUNC}
        by_name = {part.name: part for part in parts}
        by_name[".nv.info"].content = self._module_attributes(functions, kernel, numbers)
        own = by_name.get(_INFO + kernel)
        if own is not None:
            own.content = self._kernel_attributes(own, kernel, numbers)
        if ".nv.callgraph" in by_name:
            graph = by_name[".nv.callgraph"]
            graph.content = self._callgraph(graph, functions, kernel, numbers)
        if literals or externs:
            self._fill_variables(by_name, symbols, numbers, literals, externs)
        for part in parts:
            self._relink(part, sections, new, kernel)
        table = next(part for part in parts if part.type == SHT_SYMTAB)
        write_symbols(parts, symbols, table)
        return write_cubin(self._elf, parts, by_name[".shstrtab"])

    def _content(self, index: int) -> memoryview:
        """Return a section's bytes, not copied. index: its number. Raises FormatError where they leave the file."""
        return self._elf.contents(self._elf.sections[index])

    def _defined(self, symbol: SymbolEntry) -> bool:
        """Whether the cubin defines a symbol in one of its sections."""
        return 0 < symbol.section < len(self._parts)

    def _sections(self, kernel: str) -> list[int]:
        """Return the sections that a kernel's cubin has besides those of variables, in the file's order.

        Raises MachineCodeError for a section that is not known, and for relocations in the kernel's code.
        """
        if any(name.startswith(_SECOND_FORM) for name in self._by_name):
            what = "has its code in a second form, .nv.capmerc, and nobody knows when the driver takes that"
            raise MachineCodeError(kernel, f"the cubin {what}")
        if self._unknown:
            raise MachineCodeError(kernel, f"the cubin has a section that is not known, {self._unknown}")
        for index in self._own.get(kernel, ()):
            part = self._parts[index]
            if part.type in (SHT_REL, SHT_RELA) and self._elf.sections[index].size:
                raise MachineCodeError(kernel, f"has relocations, {part.name.removesuffix('.' + kernel)}")
        return sorted([*self._of_module, *self._own.get(kernel, ())])

    def _sort_sections(self) -> None:
        """Say of each section whose it is: the module's, one function's, or unknown."""
        for index, part in enumerate(self._parts):
            named = _OF_A_KERNEL.match(part.name)
            owner = part.name[named.end() :] if named else ""
            if part.name in _OF_A_MODULE:
                self._of_module.append(index)
            elif part.name in _VARIABLES or _UNUSED.fullmatch(part.name):
                continue
            elif named and owner in self._owners:
                self._own.setdefault(owner, []).append(index)
            else:
                self._unknown = self._unknown or part.name[:60]

    def _variables(self, kernel: str, text: memoryview) -> tuple[dict[int, int], dict[int, int]]:
        """Return which literals and functions of the driver a kernel refers to. text: its code.

        Each as offset in bank 4 → number of the symbol. Raises MachineCodeError for other constants and variables of
        the module.
        """
        literals: dict[int, int] = {}
        externs: dict[int, int] = {}
        entries: dict[int, list[tuple[int, int, int]]] | None = None
        for read in constant_reads(text):
            if read.bank in _UNIFORM_BANKS and f".nv.constant{read.bank}.{kernel}" in self._by_name:
                continue
            if read.bank == 3:
                raise MachineCodeError(kernel, "reads constants of its module (bank 3)")
            if read.bank != 4:
                raise MachineCodeError(kernel, f"reads constant bank {read.bank}")
            if read.offset is None:
                raise MachineCodeError(kernel, "reads addresses of variables by a computed offset (bank 4)")
            if entries is None:
                entries = self._addresses()
            entry = read.offset // _ADDRESS_BYTES * _ADDRESS_BYTES
            for number, kind, addend in entries.get(entry, [(-1, 0, 0)]):
                symbol = self._symbols[number] if 0 <= number < len(self._symbols) else None
                if symbol is None or kind != _ADDRESS_TYPE or addend:
                    raise MachineCodeError(kernel, "reads an address that no relocation explains (bank 4)")
                if symbol.section == 0 and symbol.name in _OF_THE_DRIVER:
                    externs[entry] = number
                elif read.by_register:
                    raise MachineCodeError(kernel, "reads addresses of variables by a computed offset (bank 4)")
                elif self._is_literal(symbol):
                    literals[entry] = number
                else:
                    raise MachineCodeError(kernel, f"uses the variable {symbol.name or 'without a name'}")
        return literals, externs

    def _is_literal(self, symbol: SymbolEntry) -> bool:
        """Whether a symbol is a literal of the compiler's: initialized, with a name that sources cannot have."""
        named = symbol.type == STT_OBJECT and _LITERAL.fullmatch(symbol.name) is not None
        named = named and symbol.info >> 4 == _STB_LOCAL
        if not named or not self._defined(symbol) or self._parts[symbol.section].name != _LITERALS:
            return False
        return symbol.value + symbol.size <= len(self._content(symbol.section))

    def _addresses(self) -> dict[int, list[tuple[int, int, int]]]:
        """Return the relocations of bank 4: offset in it → number of the symbol, type, addend."""
        entries: dict[int, list[tuple[int, int, int]]] = {}
        index = self._by_name.get(_ADDRESSES)
        if index is not None:
            for table in self._elf.relocation_tables.get(index, ()):
                for row in self._elf.relocations(table):
                    entries.setdefault(row.offset, []).append((row.symbol, row.type, row.addend))
        return entries

    def _parts_of(self, kept: list[int], has_addresses: bool, has_literals: bool) -> tuple[list[Part], dict[int, int]]:
        """Return copies of the sections to be written, and the new index of each by its old one.

        has_addresses, has_literals: whether bank 4 and its relocations, and the literals, are written as well.
        """
        more = [_ADDRESSES, f".rela{_ADDRESSES}", f".rel{_ADDRESSES}"] if has_addresses else []
        more += [_LITERALS] if has_literals else []
        indices = sorted({*kept, *(self._by_name[name] for name in more if name in self._by_name)})
        parts = []
        for index in indices:
            part = self._parts[index]
            content = bytearray() if part.name == _FRAMES else content_of(self._elf, self._elf.sections[index])
            parts.append(Part(**{**vars(part), "content": content}))
        return parts, {old: new for new, old in enumerate(indices)}

    def _symbols_of(
        self, kernel: str, text: int, sections: dict[int, int], literals: dict[int, int], externs: dict[int, int]
    ) -> tuple[list[SymbolEntry], dict[int, int]]:
        """Return the symbols of the new cubin, and the new number of each by its old one.

        sections: new index by old one. literals, externs: as ``_variables`` returns them.
        """
        wanted = {*literals.values(), *externs.values()}
        rows: list[SymbolEntry] = []
        numbers: dict[int, int] = {}
        some = [row for section in {0, *sections} for row in self._of_section.get(section, ())]
        for row in sorted({row.index: row for row in (*self._symbols[:1], *some)}.values(), key=lambda row: row.index):
            of_variables = row.section in sections and self._parts[row.section].name == _LITERALS
            if row.index == 0:
                keep = True
            elif row.type == _STT_SECTION:
                keep = row.section in sections
            elif row.section == 0:
                keep = row.index in wanted or row.name.startswith(".nv.reservedSmem.")
            else:
                keep = row.section in sections and (not of_variables or row.index in wanted)
            if keep:
                numbers[row.index] = len(rows)
                rows.append(SymbolEntry(**{**vars(row), "section": sections.get(row.section, row.section)}))
        return rows, numbers

    def _module_attributes(self, functions: set[int], kernel: str, numbers: dict[int, int]) -> bytearray:
        """Return ``.nv.info`` with the attributes of these functions (numbers of symbols) and those of the module.

        Raises MachineCodeError for an attribute that is not known.
        """
        if self._unknown_attribute:
            what = f"the cubin has an attribute that is not known, {self._unknown_attribute:#x}"
            raise MachineCodeError(kernel, what)
        of_all, of_functions = self._info
        chosen = dict(of_all)
        for function in functions:
            for place, attribute in of_functions.get(function, ()):
                chosen[place] = with_symbols(attribute, numbers.__getitem__, self.file)
        return bytearray().join(chosen[place].packed() for place in sorted(chosen))

    @functools.cached_property
    def _info(self) -> tuple[dict[int, Attribute], dict[int, list[tuple[int, Attribute]]]]:
        """The attributes in ``.nv.info`` that are of the whole cubin, by their number in it; and those of functions,
        with that number, by the symbol's."""
        index = self._by_name.get(".nv.info")
        content = self._content(index) if index is not None else memoryview(b"")
        of_all: dict[int, Attribute] = {}
        of_functions: dict[int, list[tuple[int, Attribute]]] = {}
        for place, attribute in enumerate(read_attributes(content, self.file)):
            if attribute.number in OF_A_FUNCTION:
                of_functions.setdefault(symbol_of(attribute, self.file), []).append((place, attribute))
            else:
                of_all[place] = attribute
        return of_all, of_functions

    @property
    def _unknown_attribute(self) -> int:
        """The number of the first attribute in ``.nv.info`` that is not known, 0 if all are."""
        return next((one.number for one in self._info[0].values() if one.number != UNNAMED), 0)

    def _kernel_attributes(self, info: Part, kernel: str, numbers: dict[int, int]) -> bytearray:
        """Return ``.nv.info.NAME`` with the new numbers of symbols.

        Raises MachineCodeError for an attribute that is not known, and for a symbol that is not in the new cubin.
        """
        out = bytearray()
        for attribute in read_attributes(info.content, self.file):
            if attribute.number not in OF_A_KERNEL:
                raise MachineCodeError(kernel, f"has an attribute that is not known, {attribute.number:#x}")
            if attribute.number in ALWAYS_ALIKE and attribute.value != ALWAYS_ALIKE[attribute.number]:
                value = f"{attribute.number:#x}, with the value {attribute.value.hex()[:16]}"
                raise MachineCodeError(kernel, f"has an attribute that is not known, {value}")
            if attribute.number in (EXTERNS, PARAM_CBANK):
                for number in struct.unpack_from(f"<{len(attribute.value) // 4}I", attribute.value):
                    if number not in numbers:
                        name = self._symbols[number].name if number < len(self._symbols) else str(number)
                        raise MachineCodeError(kernel, f"refers to the symbol {name}, which is not its own")
                    if attribute.number == PARAM_CBANK:
                        break
            out += with_symbols(attribute, numbers.__getitem__, self.file).packed()
        return out

    def _callgraph(self, graph: Part, functions: set[int], kernel: str, numbers: dict[int, int]) -> bytearray:
        """Return the pairs of caller and callee whose caller is one of these functions, and those without a caller.

        Raises MachineCodeError for a callee that is not in the new cubin.
        """
        out = bytearray()
        for caller, callee in struct.iter_unpack("<II", graph.content[: len(graph.content) // 8 * 8]):
            if caller == 0:
                out += struct.pack("<II", caller, callee)
            elif caller in functions:
                if callee not in numbers:
                    name = self._symbols[callee].name if callee < len(self._symbols) else str(callee)
                    raise MachineCodeError(kernel, f"calls {name}, which is not in its code section")
                out += struct.pack("<II", numbers[caller], numbers[callee])
        return out

    def _fill_variables(
        self,
        parts: dict[str, Part],
        symbols: list[SymbolEntry],
        numbers: dict[int, int],
        literals: dict[int, int],
        externs: dict[int, int],
    ) -> None:
        """Set the contents of bank 4, of its relocations and of the literals to what the kernel reads of them."""
        if literals:
            packed = bytearray()
            for number in sorted(set(literals.values()), key=lambda number: self._symbols[number].value):
                old = self._symbols[number]
                packed += bytes(-len(packed) % _LITERAL_ALIGNMENT)
                symbols[numbers[number]].value = len(packed)
                packed += self._content(old.section)[old.value : old.value + old.size]
            part = parts[_LITERALS]
            part.content, part.alignment = packed, max(part.alignment, _LITERAL_ALIGNMENT)
        parts[_ADDRESSES].content = bytearray(len(parts[_ADDRESSES].content))
        for name in (f".rela{_ADDRESSES}", f".rel{_ADDRESSES}"):
            part_of_relocations = parts.get(name)
            if part_of_relocations is not None:
                rows = sorted({**literals, **externs}.items())
                part_of_relocations.content = bytearray().join(
                    RELA_LAYOUT.pack(offset, numbers[number] << 32 | _ADDRESS_TYPE, 0)
                    if part_of_relocations.type == SHT_RELA
                    else REL_LAYOUT.pack(offset, numbers[number] << 32 | _ADDRESS_TYPE)
                    for offset, number in rows
                )

    def _relink(self, part: Part, sections: dict[int, int], new: Callable[[int], int], kernel: str) -> None:
        """Set sh_link and sh_info of a section to the new numbers. Raises MachineCodeError where one is not written."""
        if part.type == SHT_NULL:
            return
        if part.link:
            if part.link not in sections:
                raise MachineCodeError(kernel, f"{part.name[:40]} is linked to a section that is not its own")
            part.link = sections[part.link]
        if part.flags & SHF_INFO_LINK or part.type in (SHT_REL, SHT_RELA):
            if part.info and part.info not in sections:
                raise MachineCodeError(kernel, f"{part.name[:40]} is of a section that is not its own")
            part.info = sections.get(part.info, 0)
        elif part.name.startswith(_TEXT):
            high, symbol = part.info >> REGISTERS_SHIFT, part.info & (1 << REGISTERS_SHIFT) - 1
            part.info = high << REGISTERS_SHIFT | new(symbol)
