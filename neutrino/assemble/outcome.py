"""The outcome of assembling a twin so far: a value that each attempt replaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from neutrino.abi.structures import align_up
from neutrino.assemble.assembly import Assembly
from neutrino.assemble.builds import OriginalBuild, TwinBuild, spills
from neutrino.assemble.verdict import Verdict, Verifier
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.sass.cubin import CubinKernel
from neutrino.toolchain.ptxas import Resources

_REGISTER_UNIT = 8
"""Registers are handed out to threads in units of this many (CUDA occupancy calculator, all of sm_75 to sm_120)."""


@dataclass(frozen=True)
class Run:
    """Twins assembled together, and what each is compared with. original: None where its text is refused."""

    assembly: Assembly
    verifier: Verifier
    original: OriginalBuild | None = None
    built: TwinBuild = field(default_factory=TwinBuild)


@dataclass(frozen=True)
class Result:
    """Verified machine code of a twin, in the image of built. numerics: as in manifests."""

    built: TwinBuild
    code: CubinKernel
    resources: Resources
    numerics: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The outcome of the latest attempt at a twin.

    twin: with the text that was assembled. run: its last attempt, None if a part of its module cannot be assembled
    alone. refusal: why it may not be used; None if it may, then result has its code. under_cap: the code with a
    register cap, for launches that need it. options: assembler options that the attempt added. first: the refusal of
    the first attempt, without such options.
    """

    twin: TwinKernel
    run: Run | None
    refusal: Verdict | None = None
    result: Result | None = None
    under_cap: Result | None = None
    options: tuple[str, ...] = ()
    first: Verdict | None = None

    @property
    def limit(self) -> int | None:
        """The register cap that keeps it within its original's share of the register file, if it exceeds that."""
        if self.result is None or self.run is None or self.run.original is None:
            return None
        limit = align_up(self.run.original.machine.kernels[self.twin.name].registers, _REGISTER_UNIT)
        return limit if align_up(self.result.code.registers, _REGISTER_UNIT) > limit else None

    def with_cap(self, capped: Result) -> Outcome:
        """The same with the code under a register cap: as the only code if that spills no more than the original, else
        as a second choice.
        """
        original = self.run.original if self.run is not None else None
        if original is None:
            return self
        own, others = spills(capped.resources), spills(original.resources[self.twin.name])
        if all(own[kind] <= others[kind] for kind in others):
            return replace(self, result=capped)
        return replace(self, under_cap=capped)
