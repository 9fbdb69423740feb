"""What ptxas warns of that costs a kernel its speed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from neutrino.assemble.assembly import Assembly
from neutrino.ptx.instrument.registers import SUFFIX
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.toolchain.ptxas import Assembled

_PERFORMANCE = re.compile(r"\(C75\d\d\)")
_FUNCTION = re.compile(r"in (?:the )?function '([^']+)'")


def performance_warnings(assembled: Assembled) -> Counter[str]:
    """The warnings that a pipeline is serialised or a register hint ignored, alike for original and twin."""
    return Counter(
        re.sub(r"\bline \d+", "line …", warning.replace(f"{SUFFIX}'", "'"))
        for warning in assembled.warnings
        if _PERFORMANCE.search(warning)
    )


def newly_warned(
    twins: Collection[TwinKernel], assembly: Assembly, before: Counter[str], after: Counter[str]
) -> dict[str, str]:
    """Kernels whose twins ptxas warns of where it did not warn of the original, and the warning.

    twins: those that were assembled. before, after: the warnings of all originals and of all twins. Raises as
    ``Assembler.assemble``.
    """
    warned: dict[str, str] = {}
    unnamed = False
    for text in (after - before).elements():
        match = _FUNCTION.search(text)
        if match:
            warned[match[1]] = text
        else:
            unnamed = True
    if unnamed:
        # It does not say which kernel it is about, so each is assembled alone.
        for twin in twins:
            alone = performance_warnings(assembly.twins([twin.name]).assembled)
            for text in alone - performance_warnings(assembly.originals([twin.name])):
                warned[twin.name] = text
    return warned
