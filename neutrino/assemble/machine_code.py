"""What is to be known of machine code, whatever runs it: what it states of kernels, and how two codes are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from neutrino.toolchain.assembled import Assembled


class MachineKernel(Protocol):
    """One kernel in machine code.

    registers: per thread. frame: bytes of stack per thread for the kernel itself. parameters: (ordinal, offset, size)
    of each, in bytes. code: its instructions.
    """

    @property
    def registers(self) -> int:
        """How many registers a thread of the kernel has."""

    @property
    def frame(self) -> int:
        """Bytes of stack per thread that the kernel itself takes."""

    @property
    def parameters(self) -> Sequence[tuple[int, int, int]]:
        """(Ordinal, offset, size) of each parameter, in bytes."""

    @property
    def code(self) -> bytes:
        """The bytes of the kernel's machine instructions."""


class MachineCode(Protocol):
    """The machine code of an image. kernels, functions: by name; functions are separate ones. data: the whole image."""

    @property
    def kernels(self) -> Mapping[str, MachineKernel]:
        """The kernels of an image of machine code, by name."""

    @property
    def functions(self) -> Mapping[str, bytes]:
        """The machine code of functions that the image's kernels call, by name."""

    @property
    def data(self) -> bytes | memoryview:
        """All bytes of the image, as it was read."""


@dataclass(frozen=True)
class RegisterFile:
    """How threads share registers.

    unit: they are handed out to a thread in units of this many. of_all: those of each thread when as many run as can.
    steps: numbers of a thread with which one more warp fits than with more, ascending.
    """

    unit: int
    of_all: int
    steps: tuple[int, ...]


class CodeComparison(Protocol):
    """Compares the kernels of two images."""

    def difference(self, kernel: str, *, self_contained: bool = False) -> str | None:
        """Return what differs in a kernel's code, or in what it refers to; None if nothing does.

        self_contained: whether it names nothing in global or constant memory, and no function.
        """


class CodeReader(Protocol):
    """Reads and compares the machine code of one kind of device. registers: how its threads share them."""

    @property
    def registers(self) -> RegisterFile:
        """How this kind of GPU shares its registers among the threads of a multiprocessor."""

    def read(self, data: bytes, name: str) -> MachineCode:
        """Read an image of machine code. name: for errors. Raises FormatError."""

    def same_code(self, shipped: bytes | memoryview, assembled: bytes | memoryview) -> CodeComparison:
        """Return what compares the kernels of two images: the one that is shipped, and one assembled here.

        Raises FormatError.
        """

    def contradiction(self, running: MachineKernel, assembled: MachineKernel, arch: str) -> str | None:
        """Return what shows that two kernels of one name are not the same program; None if nothing does.

        running: of the code that runs. assembled: of text assembled here, for ``arch``.
        """

    def has_known_stack(self, kernel: MachineKernel) -> bool:
        """Return whether the code states how much stack the kernel takes with all that it calls."""

    def arithmetic(self, code: bytes, arch: str) -> dict[str, int]:
        """Count a kernel's instructions that compute with floats, by mnemonic.

        code: its machine code, for ``arch``. Raises FormatError.
        """

    def arithmetic_difference(
        self, original: Mapping[str, int], twin: Mapping[str, int], own: Mapping[str, int]
    ) -> str | None:
        """Return how the counts of two kernels' arithmetic instructions differ if that may change a result; None if it
        cannot.

        own: the counts of what the twin's probes compute themselves.
        """

    def kinds_difference(
        self, original: Mapping[str, int], twin: Mapping[str, int], own: Mapping[str, int]
    ) -> str | None:
        """Return which mnemonics only one of two kernels has, of their counted instructions; None if both have the
        same."""

    def warnings(self, assembled: Assembled) -> Counter[str]:
        """Count the assembler's warnings of code that is slower than it could be, by text.

        An original and its twin (instrumented copy) have equal texts.
        """

    def warned_kernel(self, warning: str) -> str | None:
        """Return the name of the kernel that such a warning names, None if it names none."""
