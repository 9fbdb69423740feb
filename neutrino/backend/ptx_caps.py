"""Register caps of twins: those of the attempts, and the one that the user sets (``--max-registers``)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from neutrino.device.register_limits import LEAST_CAP, MOST_CAP
from neutrino.ptx.instrument.twin import TwinKernel, registers_of_blocks

_MOST_THREADS = 1024


def with_user_cap(
    limit: int | None,
    twins: Iterable[TwinKernel],
    names: Collection[str],
    registers: Mapping[str, int] | None,
    options: Sequence[str],
) -> Mapping[str, int]:
    """Return by the original's name the register caps per thread that twins (instrumented kernels) are assembled under.

    limit: the user's for all twins, None for none. names: of the originals. registers: the caps of an attempt, None for
    none. options: of the assembler; a directive in the text, as a twin's cap is one, takes the place of theirs.
    """
    caps = dict(registers or {})
    if limit is not None:
        limit = min(limit, *_limits(options))
        for twin in twins:
            cap = twin.cap_within(limit) if twin.name in names else None
            if cap is not None:
                caps[twin.name] = min(cap, caps.get(twin.name, cap))
    return caps


def _limits(options: Sequence[str]) -> Iterable[int]:
    """Yield the limits of registers per thread that ``ptxas``' options set, and one that is none."""
    yield MOST_CAP
    words = [part for word in options for part in word.split("=", 1)]
    for name, value in itertools.pairwise([*words, ""]):
        if name.lstrip("-") == "maxrregcount" and re.fullmatch(r"\d+", value, re.ASCII):
            yield max(int(value), LEAST_CAP)
        elif name.lstrip("-") == "maxntid":
            # Whatever its value is.
            yield registers_of_blocks(_MOST_THREADS)
