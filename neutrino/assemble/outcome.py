"""The outcome of assembling a twin so far: a value that each attempt replaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from neutrino.abi.entries import FewerBlocks
from neutrino.abi.structures import align_up
from neutrino.assemble.assembly import Assembly
from neutrino.assemble.builds import OriginalBuild, TwinBuild, spills
from neutrino.assemble.machine_code import MachineKernel
from neutrino.assemble.verdict import Verdict, Verifier
from neutrino.toolchain.assembled import Resources
from neutrino.twins.values import AssembledTwin

_MANY_SPILLS = 64
"""Bytes of spill stores and loads of a thread. Threads of a full multiprocessor have more than its cache holds."""
_SOME_SPILLS = 48
"""Bytes that are little enough to have more threads run."""


@dataclass(frozen=True)
class Run:
    """One run of an assembly for a group of twins.

    verifier: compares them with their originals. original: the originals as built; None if their text was refused.
    built: the twins as built.
    """

    assembly: Assembly
    verifier: Verifier
    original: OriginalBuild | None = None
    built: TwinBuild = field(default_factory=TwinBuild)


@dataclass(frozen=True)
class Result:
    """The verified machine code of one twin.

    built: the twins that it was assembled with, whose image it is in. code: its machine code. resources: what ptxas
    reports of it. numerics: the comparison of its arithmetic, as in manifests.
    """

    built: TwinBuild
    code: MachineKernel
    resources: Resources
    numerics: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The outcome of the latest attempt at a twin (instrumented copy of a kernel).

    twin: with the text that was assembled. run: the run that this comes from; None if its part of the module cannot be
    assembled alone. refusal: why the twin may not be used; None if it may, then result has its code. under_cap: a
    second version of the code, with a register cap, for launches that the first has too many registers for. unfused:
    whether the assembler was asked to fuse nothing. first: the refusal of the last attempt in which it was not.
    """

    twin: AssembledTwin
    run: Run | None
    refusal: Verdict | None = None
    result: Result | None = None
    under_cap: Result | None = None
    unfused: bool = False
    first: Verdict | None = None

    @property
    def limit(self) -> int | None:
        """The register cap per thread that keeps the twin (copy with probes) within its original's share of the
        register file, or within what all threads of a full multiprocessor have.

        So as many blocks of the twin fit on a multiprocessor as of the original. None if the twin does not exceed that
        share, or is not accepted.
        """
        if self.result is None or self.run is None or self.run.original is None:
            return None
        file = self.run.assembly.reader.registers
        own = align_up(self.run.original.machine.kernels[self.twin.name].registers, file.unit)
        limit = max(own, file.of_all)
        return limit if align_up(self.result.code.registers, file.unit) > limit else None

    @property
    def fewer_blocks(self) -> FewerBlocks:
        """Which launches may run the uncapped code, of which fewer blocks may fit on a multiprocessor: it is better
        than that under the cap if this has many spills, but not where blocks that wait for each other would not fit."""
        if self.limit is None:
            return FewerBlocks.NONE
        if self.under_cap is not None and sum(spills(self.under_cap.resources).values()) < _MANY_SPILLS:
            return FewerBlocks.NONE
        return FewerBlocks.ALL_FIT if self.twin.may_wait else FewerBlocks.ANY

    @property
    def fewer_registers(self) -> int | None:
        """The register cap to try for code that fewer blocks fit of: with it two warps more fit on each quarter of a
        multiprocessor, or one. ``ptxas`` takes registers freely for code that seldom runs. None if there is nothing to
        try."""
        if self.fewer_blocks is not FewerBlocks.ANY or self.run is None or self.result is None or self.limit is None:
            return None
        limit, taken = self.limit, self.result.code.registers
        steps = [step for step in self.run.assembly.reader.registers.steps if limit < step < taken]
        return steps[-2:][0] if steps else None

    def with_fewer_registers(self, capped: Result) -> Outcome:
        """Return this outcome with code that was assembled under the cap ``fewer_registers``, if that spills hardly
        more than the code before; else unchanged.
        """
        before = sum(spills(self.result.resources).values()) if self.result is not None else 0
        is_better = sum(spills(capped.resources).values()) <= before + _SOME_SPILLS
        return replace(self, result=capped) if is_better else self

    def with_cap(self, capped: Result) -> Outcome:
        """Return this outcome with code that was assembled under a register cap.

        It replaces the uncapped code if it spills no more than the original, or than that code. Otherwise it would be
        slower, so it becomes a second version, for launches that the first has too many registers for.
        """
        original = self.run.original if self.run is not None else None
        if original is None:
            # Then ``limit`` is None, so there is no capped code.
            return self
        capped_spills, original_spills = spills(capped.resources), original.spills(self.twin.name)
        uncapped_spills = spills(self.result.resources) if self.result is not None else original_spills
        if all(count <= max(original_spills[kind], uncapped_spills[kind]) for kind, count in capped_spills.items()):
            return replace(self, result=capped)
        return replace(self, under_cap=capped)
