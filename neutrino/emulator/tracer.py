"""What a launch of unprobed text did, statement by statement.

The interpreter reports which lanes ran each statement and which addresses they touched. Probes, twins and maps are
unknown here: what a probe recorded can be checked against what the tracer saw of the original.
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
    """What is read of a statement. line: in the text given to ``Device.load``, from 1; opcode: the whole dotted one."""

    @property
    def line(self) -> int: ...
    @property
    def opcode(self) -> str: ...
    @property
    def text(self) -> str: ...


@dataclass
class Site:
    """One statement of the kernel. executions: of single threads; accessed: bytes by ``Space``, of all threads."""

    line: int
    opcode: str
    text: str
    executions: int = 0
    accessed: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Access:
    """One address a lane: uint64[n]; size: bytes a lane; spaces: uint8[n], values of ``Space``."""

    threads: Lanes
    addresses: npt.NDArray[np.uint64]
    size: int
    spaces: npt.NDArray[np.uint8]


@dataclass
class Execution:
    """A statement, run once by some lanes.

    threads: int64[n], linear thread indices over the grid. accesses: a copy touches two places; of some statements
    the lanes are reported one by one. before, after: register values of the lanes, where they were asked for.
    """

    site: Site
    threads: Lanes
    accesses: list[Access] = field(default_factory=list)
    before: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)


class Tracer:
    """An observer that keeps what it hears.

    keep: which statements' executions are kept, all are counted; None keeps none. registers: keep register
    values too.
    """

    def __init__(
        self, keep: Callable[[TracedStatement], bool] | None = None, *, registers: bool = False
    ) -> None:
        self._keep = keep
        self._kept: dict[int, bool] = {}
        self._sites: dict[int, Site] = {}
        # Statements are compared by identity, so they have to stay alive.
        self._statements: dict[int, TracedStatement] = {}
        self._open: dict[int, Execution] = {}
        self.executions: list[Execution] = []
        """Kept ones. Those of one thread are in the order in which it ran them."""
        self.registers = self._registers if registers else None

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every statement that some thread executed, by its place in the text."""
        return tuple(sorted(self._sites.values(), key=lambda site: site.line))

    def executed(self, statement: TracedStatement, threads: Lanes) -> None:
        """Some lanes run a statement."""
        site = self._site(statement)
        site.executions += len(threads)
        if self._kept[id(statement)]:
            execution = Execution(site, np.array(threads))
            self.executions.append(execution)
            self._open[id(statement)] = execution

    def accessed(
        self,
        statement: TracedStatement,
        threads: Lanes,
        addresses: npt.NDArray[np.uint64],
        size: int,
        spaces: npt.NDArray[np.uint8],
    ) -> None:
        """The lanes that run a statement touch addresses."""
        site = self._site(statement)
        for space, lanes in zip(*np.unique(spaces, return_counts=True), strict=True):
            site.accessed[int(space)] = site.accessed.get(int(space), 0) + size * int(lanes)
        execution = self._open.get(id(statement))
        if execution is not None:
            execution.accesses.append(Access(np.array(threads), np.array(addresses), size, np.array(spaces)))

    def of(self, matches: Callable[[str], bool]) -> Iterator[Execution]:
        """The kept executions of statements with certain opcodes, in order."""
        return (execution for execution in self.executions if matches(execution.site.opcode))

    def _registers(self, statement: TracedStatement, threads: Lanes, before: Values, after: Values) -> None:
        self._site(statement)
        execution = self._open.get(id(statement))
        if execution is not None and len(execution.threads) == len(threads):
            execution.before = {name: np.array(values) for name, values in before.items()}
            execution.after = {name: np.array(values) for name, values in after.items()}

    def _site(self, statement: TracedStatement) -> Site:
        known = self._sites.get(id(statement))
        if known is None:
            known = Site(statement.line, statement.opcode, statement.text)
            self._sites[id(statement)] = known
            self._statements[id(statement)] = statement
            self._kept[id(statement)] = self._keep is not None and self._keep(statement)
        return known
