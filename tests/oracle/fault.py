"""What a seeded fault of the rewriter is: a small change, of a kind that one makes, and what has to notice it.

A fault is a change of a value: of the twin's text where a slip of the rewriter would have shown, of the probe that it
is given, or of what the host knows of a twin. None reaches into the rewriter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from neutrino.ptx.instrument.twin import TwinKernel
from tests.oracle.bench import Kernel
from tests.oracle.probes import Probe

Pair = tuple[Kernel, Probe]


@dataclass(frozen=True)
class Fault:
    """name: what is wrong. on: where it has to show, one is enough. caught_by: the kinds of problem that it may cause.

    rewrite: changes the twins' text. probe: changes the probe's TOML. manifest: changes what the host knows of a twin.
    """

    name: str
    on: tuple[Pair, ...]
    caught_by: frozenset[str]
    rewrite: Callable[[str], str] = field(default=lambda text: text)
    probe: Callable[[str], str] | None = None
    manifest: Callable[[TwinKernel], TwinKernel] = field(default=lambda kernel: kernel)


RECORDS = frozenset({"records"})
RESULTS = frozenset({"results", "fault"})
RUN = frozenset({"records", "results", "fault"})
MEMORY_OR_RECORDS = frozenset({"fault", "records"})
ARITHMETIC = frozenset({"arithmetic"})


class Faults(list[Fault]):
    """Faults in the order in which they are described."""

    def rewritten(
        self,
        name: str,
        pattern: str,
        into: str | Callable[[re.Match[str]], str],
        *on: Pair,
        by: frozenset[str] = RECORDS,
        count: int = 0,
    ) -> None:
        """A twin's text in which what a pattern finds, line by line, is something else."""
        compiled = re.compile(pattern, re.MULTILINE)
        self.changed(name, lambda text: compiled.sub(into, text, count=count), *on, by=by)

    def changed(self, name: str, rewrite: Callable[[str], str], *on: Pair, by: frozenset[str] = RECORDS) -> None:
        """A twin's text, rewritten."""
        self.append(Fault(name, on, by, rewrite))
