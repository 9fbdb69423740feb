"""Warnings of the assembler that a twin's text makes slower code than the original's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from neutrino.assemble.assembly import Assembly
from neutrino.twins.values import AssembledTwin


def newly_warned(
    twins: Collection[AssembledTwin], assembly: Assembly, before: Counter[str], after: Counter[str]
) -> dict[str, str]:
    """Return the kernels for whose twin, but not for the original, the assembler gives a warning: that by kernel name.

    Such a twin (instrumented copy) is refused: with a probe in it the assembler has given up an optimization of the
    kernel, so that it would be much slower. twins: those that were assembled. before, after: the warnings of all
    originals and of all twins. Raises as ``Assembler.assemble``.
    """
    reader = assembly.reader
    warned: dict[str, str] = {}
    unnamed = False
    # The warnings that are given more often than for the originals.
    for text in (after - before).elements():
        kernel = reader.warned_kernel(text)
        if kernel is not None:
            warned[kernel] = text
        else:
            unnamed = True
    if unnamed:
        # Some warning does not name its kernel, so each is assembled alone to find out whose it is.
        for twin in twins:
            twin_warnings = reader.warnings(assembly.twins([twin.name]).assembled)
            for text in twin_warnings - reader.warnings(assembly.originals([twin.name])):
                warned[twin.name] = text
    return warned
