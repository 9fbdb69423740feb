"""Performance warnings of ptxas."""

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
    """Warnings of serialised pipelines and ignored register hints, with the same wording for original and twin."""
    return Counter(
        re.sub(r"\bline \d+", "line …", warning.replace(f"{SUFFIX}'", "'"))
        for warning in assembled.warnings
        if _PERFORMANCE.search(warning)
    )


def newly_warned(
    twins: Collection[TwinKernel], assembly: Assembly, before: Counter[str], after: Counter[str]
) -> dict[str, str]:
    """Kernels for whose twin, but not for the original, ptxas gives a warning; and that warning.

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
        # The warning does not name its kernel, so each is assembled alone.
        for twin in twins:
            alone = performance_warnings(assembly.twins([twin.name]).assembled)
            for text in alone - performance_warnings(assembly.originals([twin.name])):
                warned[twin.name] = text
    return warned
