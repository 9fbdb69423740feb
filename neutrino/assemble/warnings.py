"""Performance warnings of ptxas."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from neutrino.assemble.assembly import Assembly
from neutrino.toolchain.ptxas import Assembled
from neutrino.twins.values import SUFFIX, Twin

_PERFORMANCE = re.compile(r"\(C75\d\d\)")
"""The numbers of ptxas' performance warnings."""
_FUNCTION = re.compile(r"in (?:the )?function '([^']+)'")


def performance_warnings(assembled: Assembled) -> Counter[str]:
    """Count ptxas' performance warnings by text: of serialized pipelines and ignored register hints.

    Line numbers and the suffix of twins' names are removed, so that an original and its twin have equal texts.
    """
    return Counter(
        re.sub(r"\bline \d+", "line …", warning.replace(f"{SUFFIX}'", "'"))
        for warning in assembled.warnings
        if _PERFORMANCE.search(warning)
    )


def newly_warned(
    twins: Collection[Twin], assembly: Assembly, before: Counter[str], after: Counter[str]
) -> dict[str, str]:
    """Return the kernels for whose twin, but not for the original, ptxas gives a warning: the warning by kernel name.

    Such a twin (instrumented copy) is refused: with a probe in it ptxas has given up an optimization of the kernel, so
    that it would be much slower. twins: those that were assembled. before, after: the performance warnings of all
    originals and of all twins. Raises as ``Assembler.assemble``.
    """
    warned: dict[str, str] = {}
    unnamed = False
    # The warnings that are given more often than for the originals.
    for text in (after - before).elements():
        match = _FUNCTION.search(text)
        if match:
            # The kernel's name, as performance_warnings has removed the twin's suffix.
            warned[match[1]] = text
        else:
            unnamed = True
    if unnamed:
        # Some warning does not name its kernel, so each is assembled alone to find out whose it is.
        for twin in twins:
            twin_warnings = performance_warnings(assembly.twins([twin.name]).assembled)
            for text in twin_warnings - performance_warnings(assembly.originals([twin.name])):
                warned[twin.name] = text
    return warned
