"""Kernels that are found by their number, and by their name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, SupportsIndex, TypeVar, overload

from neutrino.demangle import demangle
from neutrino.errors import TraceError

_NAMED = 8
"""Kernels whose names are listed."""


class Named(Protocol):
    """A kernel of a trace, or of a part of one."""

    @property
    def mangled(self) -> str:
        """The name of the symbol."""

    @property
    def set(self) -> int:
        """The number of the probes that its twin has."""


_Kernel = TypeVar("_Kernel", bound=Named)


class NamedKernels(tuple[_Kernel, ...], Generic[_Kernel]):
    """Kernels in their order by number, and by name: ``kernels["saxpy"]``; with several sets of probes by name and the
    number of the set: ``kernels["saxpy", 2]``."""

    __slots__ = ()

    @overload
    def __getitem__(self, key: SupportsIndex | str | tuple[str, int]) -> _Kernel: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[_Kernel, ...]: ...
    def __getitem__(self, key: SupportsIndex | slice | str | tuple[str, int]) -> _Kernel | tuple[_Kernel, ...]:
        """Return a kernel by its number or name: mangled, demangled, or that before the parameters.

        key: an index, a slice, a name, or a name and the number of a set of probes. Raises TraceError if no kernel has
        that name, or several have, which happens if a program loads it twice; IndexError for a number beyond them.
        """
        if isinstance(key, slice):
            return super().__getitem__(key)
        if isinstance(key, tuple):
            name, number = key
            return self._called(name, number)
        if isinstance(key, str):
            return self._called(key)
        try:
            return super().__getitem__(key)
        except IndexError:
            raise IndexError(f"kernel {key}: there are {len(self)}: {listed(self) or 'none'}") from None

    def _called(self, name: str, number: int | None = None) -> _Kernel:
        """Return the kernel of a name. number: of the set of probes that its twin has; None for any."""
        names = {kernel.mangled: {kernel.mangled, demangle(kernel.mangled), shown(kernel)} for kernel in self}
        alike = {place: kernel for place, kernel in enumerate(self) if name in names[kernel.mangled]}
        found = {place: kernel for place, kernel in alike.items() if number in {None, kernel.set}}
        if len(found) == 1:
            return next(iter(found.values()))
        if not alike:
            raise TraceError(f"{name!r}: no kernel of the trace has this name; it has {listed(self) or 'none'}")
        if not found:
            others = ", ".join(str(each) for each in sorted({kernel.set for kernel in alike.values()}))
            raise TraceError(f"{name!r}: no kernel of set {number} has this name; there are those of set {others}")
        sets = {kernel.set for kernel in found.values()}
        several = len(sets) > 1
        places = ", ".join(f"kernels[{place}]" + f" of set {each.set}" * several for place, each in found.items())
        choice = f"; kernels[{name!r}, {min(sets)}] is that of set {min(sets)}" if len(sets) == len(found) else ""
        raise TraceError(f"{name!r}: {len(found)} kernels have this name: {places}{choice}")

    def __repr__(self) -> str:
        """The kernels in short: how many, and the first names."""
        return f"<{len(self)} kernel{'s' * (len(self) != 1)}{': ' * bool(self)}{listed(self)}>"


def shown(kernel: Named) -> str:
    """Return a kernel's demangled name without its parameters."""
    return demangle(kernel.mangled).partition("(")[0]


def listed(kernels: Sequence[Named]) -> str:
    """Return the names of the first _NAMED kernels, with how many more there are, in a line."""
    names = list(dict.fromkeys(map(shown, kernels)))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
