"""The reader of NVIDIA's machine code, and of what ``ptxas`` says of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from neutrino.assemble.machine_code import MachineKernel, RegisterFile
from neutrino.sass import variant
from neutrino.sass.arithmetic import compare, compare_kinds, count_arithmetic
from neutrino.sass.cubin import Cubin, CubinKernel, read_cubin
from neutrino.sass.same_code import SameCode
from neutrino.toolchain.assembled import Assembled
from neutrino.twins.values import SUFFIX

_PERFORMANCE = re.compile(r"\(C75\d\d\)")
"""The numbers of ptxas' performance warnings."""
_FUNCTION = re.compile(r"in (?:the )?function '([^']+)'")
_STACK_UNKNOWN = 0xFFFFFFFF
"""The stack that a cubin states for a kernel with recursion: it gets what the program has set as limit."""


class SassReader:
    """The ``CodeReader`` of cubins."""

    registers = RegisterFile(unit=8, of_all=32, steps=(40, 48, 56, 64, 72, 80, 96, 128, 168))
    """Handed out in units of 8 (CUDA occupancy calculator, all of sm_75 to sm_120); 65,536 for 2,048 threads at most.
    With the steps one more warp fits on each quarter of a multiprocessor than with more: 16,384 for all of it."""

    def read(self, data: bytes, name: str) -> Cubin:
        """Read an image of machine code. name: for errors. ``CodeReader`` says more."""
        return read_cubin(data, name)

    def same_code(self, shipped: bytes | memoryview, assembled: bytes | memoryview) -> SameCode:
        """Return what compares the kernels of two images: the one that is shipped, and one assembled here.

        ``CodeReader`` says more.
        """
        return SameCode(shipped, assembled)

    def contradiction(self, running: MachineKernel, assembled: MachineKernel, arch: str) -> str | None:
        """Return what shows that two kernels of one name are not the same program; None if nothing does.

        ``CodeReader`` says more.
        """
        return variant.difference(_kernel(running), _kernel(assembled), arch)

    def has_known_stack(self, kernel: MachineKernel) -> bool:
        """Return whether the code states how much stack the kernel takes with all that it calls."""
        return _kernel(kernel).stack != _STACK_UNKNOWN

    def arithmetic(self, code: bytes, arch: str) -> dict[str, int]:
        """Count a kernel's instructions that compute with floats, by mnemonic. ``CodeReader`` says more."""
        return count_arithmetic(code, arch)

    def arithmetic_difference(
        self, original: Mapping[str, int], twin: Mapping[str, int], own: Mapping[str, int]
    ) -> str | None:
        """Return how such counts differ if that may change a result; None if it cannot. own: of the twin's probes."""
        return compare(original, twin, own)

    def kinds_difference(
        self, original: Mapping[str, int], twin: Mapping[str, int], own: Mapping[str, int]
    ) -> str | None:
        """Return which mnemonics only one of two codes has, whatever their counts; None if both have the same."""
        return compare_kinds(original, twin, own)

    def warnings(self, assembled: Assembled) -> Counter[str]:
        """Count the assembler's warnings that code is slower than it could be (serialized pipelines, ignored register
        hints), by text.

        Line numbers and the suffix of twins' names are removed, so that an original and its twin have equal texts.
        """
        return Counter(
            re.sub(r"\bline \d+", "line …", warning.replace(f"{SUFFIX}'", "'"))
            for warning in assembled.warnings
            if _PERFORMANCE.search(warning)
        )

    def warned_kernel(self, warning: str) -> str | None:
        """Return the name of the kernel that such a warning names, None if it names none."""
        match = _FUNCTION.search(warning)
        return match[1] if match else None


SASS = SassReader()
"""The one that all assemblies for NVIDIA's devices have."""


def _kernel(kernel: MachineKernel) -> CubinKernel:
    """Return a kernel as what this reader has read. Raises TypeError for another's."""
    if not isinstance(kernel, CubinKernel):
        raise TypeError(f"{type(kernel).__name__} is of no cubin")
    return kernel
