"""Records of what a launch did, statement by statement.

The emulator reports which threads executed each statement and which addresses they accessed. This module knows nothing
of probes, so what a probe recorded can be checked against the trace of the original kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Lanes = npt.NDArray[np.int64]
Values = Mapping[str, npt.NDArray[Any]]


class TracedStatement(Protocol):
    """The attributes of a statement that are used. line: in the PTX text, from 1. opcode: with all its modifiers."""

    @property
    def line(self) -> int:
        """Its line in the PTX text, from 1."""
    @property
    def opcode(self) -> str:
        """Its opcode with all modifiers, as ``ld.global.u32``."""
    @property
    def text(self) -> str:
        """Its text."""


@dataclass
class Site:
    """One statement that was executed. executions: summed over threads. accessed: ``Space`` → bytes of all threads."""

    line: int
    opcode: str
    text: str
    executions: int = 0
    accessed: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Access:
    """One memory access of n threads: addresses is uint64[n]; size: bytes per thread; spaces: ``Space``, uint8[n]."""

    threads: Lanes
    addresses: npt.NDArray[np.uint64]
    size: int
    spaces: npt.NDArray[np.uint8]


@dataclass
class Execution:
    """One execution of a statement by n threads.

    threads: int64[n], linear thread indices over the grid. accesses: a copy has two; some statements report one per
    thread. before, after: register name → value per thread, if the tracer was created with ``registers``.
    """

    site: Site
    threads: Lanes
    accesses: list[Access] = field(default_factory=list)
    before: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)


class Tracer:
    """An observer of a launch that counts all executions, and records some.

    keep: returns whether the executions of a statement are recorded; None records none. registers: record register
    values too.
    """

    def __init__(self, keep: Callable[[TracedStatement], bool] | None = None, *, registers: bool = False) -> None:
        """Begin with nothing recorded.

        keep: returns whether the executions of a statement are recorded; None records none. registers: record register
        values too.
        """
        self._keep = keep
        # All by id(statement). ``_statements`` keeps the statements alive, so that no id is used again for another.
        self._is_recorded: dict[int, bool] = {}
        self._sites: dict[int, Site] = {}
        self._statements: dict[int, TracedStatement] = {}
        # The last execution of each recorded statement, to which its accesses and register values belong.
        self._latest: dict[int, Execution] = {}
        self.executions: list[Execution] = []
        """The recorded ones. Those of one thread are in the order in which it ran them."""
        # The launch looks for a method of this name, and spares itself the work without one.
        self.registers = self._registers if registers else None

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every statement that some thread executed, by line."""
        return tuple(sorted(self._sites.values(), key=lambda site: site.line))

    def executed(self, statement: TracedStatement, threads: Lanes) -> None:
        """Called before some threads execute a statement. threads: linear indices over the grid."""
        site = self._site(statement)
        site.executions += len(threads)
        if self._is_recorded[id(statement)]:
            # Copies, here and below: the launch may reuse its arrays.
            execution = Execution(site, np.array(threads))
            self.executions.append(execution)
            self._latest[id(statement)] = execution

    def accessed(
        self,
        statement: TracedStatement,
        threads: Lanes,
        addresses: npt.NDArray[np.uint64],
        size: int,
        spaces: npt.NDArray[np.uint8],
    ) -> None:
        """Called when threads that execute a statement access memory, ``size`` bytes each, after ``executed`` for them.

        addresses, spaces (values of ``Space``): one per thread.
        """
        site = self._site(statement)
        # Counted for every statement, recorded or not.
        for space, thread_count in zip(*np.unique(spaces, return_counts=True), strict=True):
            site.accessed[int(space)] = site.accessed.get(int(space), 0) + size * int(thread_count)
        execution = self._latest.get(id(statement))
        if execution is not None:
            execution.accesses.append(Access(np.array(threads), np.array(addresses), size, np.array(spaces)))

    def of(self, matches: Callable[[str], bool]) -> Iterator[Execution]:
        """Yield the recorded executions of the statements whose opcode ``matches`` accepts, in order."""
        return (execution for execution in self.executions if matches(execution.site.opcode))

    def is_recorded(self, statement: TracedStatement) -> bool:
        """Return whether the statement's executions are recorded, so that its registers' values are asked for."""
        return id(statement) in self._latest

    def _registers(self, statement: TracedStatement, threads: Lanes, before: Values, after: Values) -> None:
        """Called after a statement, with the values of its registers before and after it.

        before, after: register name → one value per thread of ``threads``.
        """
        execution = self._latest.get(id(statement))
        # None: the statement is not recorded. Other threads: not the execution that the values belong to.
        if execution is not None and len(execution.threads) == len(threads):
            execution.before = {name: np.array(values) for name, values in before.items()}
            execution.after = {name: np.array(values) for name, values in after.items()}

    def _site(self, statement: TracedStatement) -> Site:
        """Return the counters of a statement, created when it is first executed."""
        site = self._sites.get(id(statement))
        if site is None:
            site = Site(statement.line, statement.opcode, statement.text)
            self._sites[id(statement)] = site
            self._statements[id(statement)] = statement
            self._is_recorded[id(statement)] = self._keep is not None and self._keep(statement)
        return site
