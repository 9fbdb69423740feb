"""What is to be known of a kernel to launch it with generated inputs, whatever the language of its text."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from neutrino.late_dataclass import dataclass


class Role(Enum):
    """What an argument is used for."""

    POINTER = "pointer"
    INTEGER = "integer"
    FLOAT = "float"


@dataclass(frozen=True)
class Value:
    """One number in the parameters: a whole parameter, or a part of a structure that the kernel loads.

    name: the parameter's, with ``+8`` for a part of it. offset: bytes in the parameter. size: bytes. type: as ``f32``;
    for a pointer that of the elements it points at, else the value's own. loads, stores, updates: what the kernel does
    through a pointer; updates are atomics. One that is passed to a function counts as loaded and stored. is_guessed:
    whether it may as well be a fraction.
    """

    name: str
    offset: int
    size: int
    role: Role
    type: str
    loads: bool = False
    stores: bool = False
    updates: bool = False
    is_guessed: bool = False


class Parameter(NamedTuple):
    """A parameter of a kernel. size: in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class Kernel:
    """A kernel and the launches that it accepts.

    parameters: each with the values in it; none for a structure of which the kernel loads nothing. block: threads of a
    block in x, y, z, where the text says them, else None. exact: it must be launched with just these. dynamic_shared:
    it uses shared memory whose size the launch gives. most_threads, most_shared: of a block, where the kernel or its
    device takes fewer than others: threads, and bytes of that memory; None else.
    """

    name: str
    parameters: tuple[tuple[Parameter, tuple[Value, ...]], ...]
    block: tuple[int, int, int] | None
    exact: bool
    dynamic_shared: bool
    most_threads: int | None = None
    most_shared: int | None = None


class KernelText(Protocol):
    """A text with kernels. names: theirs, in its order."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the kernels in the text of GPU code, in its order."""

    @property
    def variables(self) -> Sequence[tuple[str, str]]:
        """The variables that kernels can write and the driver finds by name, each with the type of its elements."""

    def choose(self, name: str | None) -> str:
        """Return the name of the kernel of that name, or of the only one for None.

        Raises NeutrinoError, with the names to choose from, where there is none or it is not said which.
        """

    def kernel(self, name: str) -> Kernel:
        """Return what the text says of a kernel's parameters and launches. Raises NeutrinoError for unknown ones."""
