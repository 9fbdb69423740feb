"""Whether two cubins have the same code for a kernel: the same bytes, with equal references.

Equal instructions may load different constants, call different functions and access different variables. So references
are compared as well: literals by their bytes, and relocations by offset, type, name and addend. ``__constant__``
variables are compared by name, offset and size only, because a twin (the instrumented copy of a kernel) uses the
original's.
"""

from __future__ import annotations

import functools

from neutrino.elf.constants import STT_FUNC
from neutrino.elf.reader import Elf
from neutrino.elf.rows import Section, Symbol
from neutrino.sass.cubin import open_cubin

_BANKS = range(1, 18)
"""The numbers of constant banks, except 0, which has the parameters. A kernel has some of its own, such as for
literals, and all share others: 4 has the addresses of variables in global memory."""
_VARIABLES = ".nv.constant3"
"""The section of ``__constant__`` variables."""

_Reference = tuple[int, int, str, int]
"""A relocation: offset, type, symbol name, addend."""
_Constants = dict[str, tuple[object, ...]]
"""Section name → what must be equal of a constant bank."""


class _Code:
    """The code, references and constants of the functions in a cubin.

    A function's code is the section ``.text.NAME``, its own constant banks are ``.nv.constant<number>.NAME``; those
    without a name at the end are shared by all functions.
    """

    def __init__(self, elf: Elf) -> None:
        """Index the symbols of a cubin; by name only those that it defines, of equal names the first."""
        self._elf = elf
        self._symbols = {symbol.index: symbol for symbol in elf.symbols()}
        self._by_name: dict[str, Symbol] = {}
        for symbol in self._symbols.values():
            # Section 0 means that another cubin defines it; numbers above the sections have special meanings.
            if symbol.name and 0 < symbol.section < len(elf.sections):
                self._by_name.setdefault(symbol.name, symbol)

    def text(self, function: str) -> bytes | None:
        """Return a function's instructions, None if it has no code section."""
        section = self._elf.section(f".text.{function}")
        return None if section is None else bytes(self._elf.contents(section))

    def references(self, function: str) -> list[_Reference]:
        """Return the relocations in a function's instructions, sorted: offset, type, symbol name, addend."""
        section = self._elf.section(f".text.{function}")
        return [] if section is None else self._references(section)

    def constants(self, function: str) -> _Constants:
        """Return what must be equal of the function's own constant banks, by section name."""
        return self._constants(f".{function}")

    @functools.cached_property
    def shared_constants(self) -> _Constants:
        """What must be equal of the constant banks that all functions share, by section name."""
        return self._constants("")

    def referenced_names(self, function: str) -> set[str]:
        """Return the names of the symbols that a function refers to, in its code or through constant banks."""
        names = {name for _, _, name, _ in self.references(function)}
        # Shared banks first, then the function's own: their section names end with the function's name.
        for section_suffix in ("", f".{function}"):
            for bank in _BANKS:
                section = self._elf.section(f".nv.constant{bank}{section_suffix}")
                if section is not None:
                    names.update(name for _, _, name, _ in self._references(section))
        return names

    def is_function(self, name: str) -> bool:
        """Whether a name is that of a function that the cubin defines."""
        symbol = self._by_name.get(name)
        return symbol is not None and symbol.type == STT_FUNC and self._elf.section(f".text.{name}") is not None

    def initial_bytes(self, name: str) -> bytes | None:
        """Return the initial bytes of a variable or a literal; None if there is none of that name."""
        symbol = self._by_name.get(name)
        if symbol is None:
            # A literal has no symbol but a section of its own, with the literal's name.
            section = self._elf.section(name)
            return None if section is None else bytes(self._elf.contents(section))
        contents = self._elf.contents(self._elf.sections[symbol.section])
        # A symbol's value is an offset in its section.
        return bytes(contents[symbol.value : symbol.value + symbol.size])

    def _constants(self, section_suffix: str) -> _Constants:
        """Return what must be equal of constant banks, by section name: contents and references.

        section_suffix: ``.NAME`` for the banks of a function, empty for those that all functions share. Of
        ``__constant__`` variables the layout counts, not the initial contents.
        """
        constants: _Constants = {}
        for bank in _BANKS:
            section = self._elf.section(f".nv.constant{bank}{section_suffix}")
            if section is None:
                continue
            if section.name == _VARIABLES:
                constants[section.name] = (section.size, *self._variable_layout(section))
            else:
                constants[section.name] = (bytes(self._elf.contents(section)), *self._references(section))
        return constants

    def _variable_layout(self, section: Section) -> list[tuple[str, int, int]]:
        """Return name, offset and size in bytes of each variable in a section, sorted by name."""
        return sorted(
            (symbol.name, symbol.value, symbol.size)
            for symbol in self._symbols.values()
            if symbol.section == section.index and symbol.name
        )

    def _references(self, section: Section) -> list[_Reference]:
        """Return the relocations of a section, sorted: offset, type, symbol name, addend."""
        references: list[_Reference] = []
        for table in self._elf.relocation_tables.get(section.index, ()):
            for relocation in self._elf.relocations(table):
                name = self._name(self._symbols.get(relocation.symbol))
                references.append((relocation.offset, relocation.type, name, relocation.addend))
        return sorted(references)

    def _name(self, symbol: Symbol | None) -> str:
        """Return a symbol's name; that of its section if it has none itself, and empty for no symbol."""
        if symbol is None:
            return ""
        if symbol.name or not 0 < symbol.section < len(self._elf.sections):
            return symbol.name
        # A section symbol, which stands for the section as a whole.
        return self._elf.sections[symbol.section].name


class SameCode:
    """Compares kernels of two cubins: usually the shipped machine code, and PTX assembled for the same architecture.

    If a kernel's code is the same in both, that PTX is the program that runs, and probes can be inserted into it.
    Raises FormatError for a damaged cubin, here or in ``difference``.
    """

    def __init__(self, shipped: bytes | memoryview, assembled: bytes | memoryview) -> None:
        """Prepare to compare kernels of two cubins. shipped, assembled: the whole cubins; only error messages tell them
        apart."""
        self._shipped = _Code(open_cubin(shipped, "the machine code"))
        self._assembled = _Code(open_cubin(assembled, "the PTX, assembled"))

    def difference(self, kernel: str, *, self_contained: bool = False) -> str | None:
        """Compare the kernels of that name in both cubins, with all functions that they call.

        self_contained: the kernel's PTX refers to no functions, and to no variables in global or constant memory. If
        the code is the same, then neither does the other kernel, so references need not be followed.
        Returns what differs first, as a message; None when everything is the same.
        """
        shipped, assembled = self._shipped, self._assembled
        visited: set[str] = set()
        pending = [kernel]
        while pending:
            function = pending.pop()
            visited.add(function)
            where = "" if function == kernel else f" of the called function {function}"
            # Two kernels without code are not the same: there is nothing to compare.
            text = shipped.text(function)
            if text is None or text != assembled.text(function):
                return f"the instructions{where}"
            if shipped.constants(function) != assembled.constants(function):
                return f"the literals{where}"
            if shipped.references(function) != assembled.references(function):
                return f"what the instructions{where} refer to"
            if self_contained:
                continue
            # The code and the function's own banks refer to the same names in both cubins, as was compared above. Those
            # of the shared banks are compared at the end.
            for name in sorted(shipped.referenced_names(function) - visited):
                if shipped.is_function(name):
                    pending.append(name)
                elif shipped.initial_bytes(name) != assembled.initial_bytes(name):
                    return f"what {name} holds"
        if not self_contained and shipped.shared_constants != assembled.shared_constants:
            return "the variables in constant memory, or the addresses of those in global memory"
        return None
