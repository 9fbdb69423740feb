"""Whether two cubins have the same code for a kernel: the same bytes, with equal references.

Equal instructions may load different constants, call different functions and access different variables. So what a
kernel refers to is compared as well: its literals, and by relocation and place the functions and variables; variables
by name and place, since a twin uses the original's.
"""

from __future__ import annotations

import functools

from neutrino.elf.constants import STT_FUNC
from neutrino.elf.reader import Elf
from neutrino.elf.rows import Section, Symbol
from neutrino.sass.cubin import open_cubin

_BANKS = range(1, 18)
"""Constant banks (EIATTR and c[0x11] at most) but for 0, the parameters. Kernels have some of their own, as for
literals, and share others: 4 has the addresses of what is in global memory."""
_VARIABLES = ".nv.constant3"
"""What ``__constant__`` variables are in."""

_Reference = tuple[int, int, str, int]
_Constants = dict[str, tuple[object, ...]]


class _Code:
    """A cubin, asked for what its functions are made of."""

    def __init__(self, elf: Elf) -> None:
        self._elf = elf
        self._symbols = {symbol.index: symbol for symbol in elf.symbols()}
        self._by_name: dict[str, Symbol] = {}
        for symbol in self._symbols.values():
            if symbol.name and 0 < symbol.section < len(elf.sections):
                self._by_name.setdefault(symbol.name, symbol)

    def text(self, function: str) -> bytes | None:
        """A function's instructions, None if it has no code section."""
        section = self._elf.section(f".text.{function}")
        return None if section is None else bytes(self._elf.contents(section))

    def references(self, function: str) -> list[_Reference]:
        """The relocations in a function's instructions: offset, type, name, addend."""
        section = self._elf.section(f".text.{function}")
        return [] if section is None else self._references(section)

    def constants(self, function: str) -> _Constants:
        """The function's own constant banks."""
        return self._constants(f".{function}")

    @functools.cached_property
    def shared_constants(self) -> _Constants:
        """The constant banks that all functions share."""
        return self._constants("")

    def named(self, function: str) -> set[str]:
        """What a function refers to by name, directly or by constants."""
        found = {name for _, _, name, _ in self.references(function)}
        for owner in ("", f".{function}"):
            for bank in _BANKS:
                section = self._elf.section(f".nv.constant{bank}{owner}")
                if section is not None:
                    found.update(name for _, _, name, _ in self._references(section))
        return found

    def is_function(self, name: str) -> bool:
        """Whether a name is that of a function with a code section."""
        symbol = self._by_name.get(name)
        return symbol is not None and symbol.type == STT_FUNC and self._elf.section(f".text.{name}") is not None

    def initial_bytes(self, name: str) -> bytes | None:
        """The initial bytes of a variable or a literal; None where there is none of that name."""
        symbol = self._by_name.get(name)
        if symbol is None:
            # Literals have no symbol: each has a section of its own, which is named after it.
            section = self._elf.section(name)
            return None if section is None else bytes(self._elf.contents(section))
        contents = self._elf.contents(self._elf.sections[symbol.section])
        return bytes(contents[symbol.value : symbol.value + symbol.size])

    def _constants(self, owner: str) -> _Constants:
        found: _Constants = {}
        for bank in _BANKS:
            section = self._elf.section(f".nv.constant{bank}{owner}")
            if section is None:
                continue
            if section.name == _VARIABLES:
                found[section.name] = (section.size, *self._places(section))
            else:
                found[section.name] = (bytes(self._elf.contents(section)), *self._references(section))
        return found

    def _places(self, section: Section) -> list[tuple[str, int, int]]:
        """Name, offset and bytes of the variables in a section."""
        return sorted(
            (symbol.name, symbol.value, symbol.size)
            for symbol in self._symbols.values()
            if symbol.section == section.index and symbol.name
        )

    def _references(self, section: Section) -> list[_Reference]:
        found: list[_Reference] = []
        for table in self._elf.relocation_tables.get(section.index, ()):
            for relocation in self._elf.relocations(table):
                name = self._name(self._symbols.get(relocation.symbol))
                found.append((relocation.offset, relocation.type, name, relocation.addend))
        return sorted(found)

    def _name(self, symbol: Symbol | None) -> str:
        if symbol is None:
            return ""
        if symbol.name or not 0 < symbol.section < len(self._elf.sections):
            return symbol.name
        # The symbol of a section as a whole.
        return self._elf.sections[symbol.section].name


class SameCode:
    """Compares kernels of two cubins. Raises FormatError for a damaged one, here or when asked."""

    def __init__(self, shipped: bytes | memoryview, assembled: bytes | memoryview) -> None:
        self._one = _Code(open_cubin(shipped, "the machine code"))
        self._other = _Code(open_cubin(assembled, "the PTX, assembled"))

    def difference(self, kernel: str, *, self_contained: bool = False) -> str | None:
        """What of the kernels of that name is not the same, in words; None when all is.

        self_contained: its text names no functions, and no variables in global or constant memory; then neither does
        the code of the other, if it is the same.
        """
        one, other = self._one, self._other
        seen: set[str] = set()
        waiting = [kernel]
        while waiting:
            function = waiting.pop()
            seen.add(function)
            where = "" if function == kernel else f" of the called function {function}"
            text = one.text(function)
            if text is None or text != other.text(function):
                return f"the instructions{where}"
            if one.constants(function) != other.constants(function):
                return f"the literals{where}"
            if one.references(function) != other.references(function):
                return f"what the instructions{where} refer to"
            for name in sorted(one.named(function) - seen) if not self_contained else ():
                if one.is_function(name):
                    waiting.append(name)
                elif one.initial_bytes(name) != other.initial_bytes(name):
                    return f"what {name} holds"
        if not self_contained and one.shared_constants != other.shared_constants:
            return "the variables in constant memory, or the addresses of those in global memory"
        return None
