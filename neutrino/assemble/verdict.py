"""Whether an assembled twin may be used, and why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.assemble.assembly import Assembly
from neutrino.assemble.builds import OriginalBuild, TwinBuild
from neutrino.assemble.numerics.comparison import ArithmeticComparison
from neutrino.assemble.numerics.explicit_fma import ExplicitTwins
from neutrino.assemble.retargeting import NOT_SHOWN, Retargeting
from neutrino.assemble.warnings import newly_warned
from neutrino.ptx.instrument.functions import FunctionCopy
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.sass import variant
from neutrino.toolchain.ptxas import Resources

_STACK_UNKNOWN = 0xFFFFFFFF
"""The stack that a cubin states for a kernel with recursion: it gets what the program has set as limit."""


@dataclass(frozen=True)
class Verdict:
    """Why a kernel has no twin: the reason, and its details."""

    reason: Reason
    detail: str


class Verifier:
    """Compares assembled twins with their originals.

    retargeting: None if the originals were assembled from this text. explicit: the twins with explicit FMA, if any.
    """

    def __init__(
        self, assembly: Assembly, retargeting: Retargeting | None, explicit: ExplicitTwins | None = None
    ) -> None:
        self._assembly = assembly
        self._arithmetic = ArithmeticComparison(assembly.name, assembly.arch, explicit)
        self.retargeting = retargeting

    def verdicts(
        self, twins: Sequence[TwinKernel], original: OriginalBuild, built: TwinBuild
    ) -> dict[str, Verdict | None]:
        """Why each of these twins is refused, by the kernel's name; None for one that may be used.

        Raises as ``Assembler.assemble``: where a warning does not name its kernel, each is assembled alone.
        """
        assembled = [twin for twin in twins if twin.twin_name in built.kernels]
        warned = newly_warned(assembled, self._assembly, original.warnings, built.warnings)
        return {twin.name: self._verdict(twin, original, built, warned) for twin in twins}

    def numerics(self, twin: TwinKernel, original: OriginalBuild, built: TwinBuild) -> dict[str, Any]:
        """What the manifest holds under ``numerics`` of a twin that was not refused."""
        return self._arithmetic.manifest(twin, original, built)

    def of_refused_original(self, reason: str) -> Verdict:
        """The verdict on a twin whose original's own text is refused."""
        detail = f"{self._assembly.name} refuses the original: {reason}"
        if self.retargeting is None:
            return Verdict(Reason.ASSEMBLER, detail)
        return self._variant(self.retargeting, detail)

    def _verdict(
        self, twin: TwinKernel, original: OriginalBuild, built: TwinBuild, warned: Mapping[str, str]
    ) -> Verdict | None:
        """warned: new warnings, by the kernel's name."""
        if twin.name in original.failed:
            return self.of_refused_original(original.failed[twin.name])
        if twin.name in built.failed:
            return Verdict(Reason.ASSEMBLER, f"{self._assembly.name}: {built.failed[twin.name]}")
        if twin.name in warned:
            return Verdict(Reason.ASSEMBLER, f"{self._assembly.name} warns: {warned[twin.name]}")
        if self.retargeting is not None:
            other = self._other_program(twin, original, self.retargeting)
            if other is not None:
                return self._variant(self.retargeting, other)
        unsupported = _other_parameters(twin, original, built) or self._more_stack(twin, original, built)
        if unsupported is not None:
            return Verdict(Reason.UNSUPPORTED, unsupported)
        difference = self._arithmetic.refusal(twin, original, built)
        return None if difference is None else Verdict(Reason.NUMERICS, difference)

    @staticmethod
    def _variant(retargeting: Retargeting, detail: str) -> Verdict:
        return Verdict(Reason.VARIANT, f"retargeted {retargeting.target}: {detail}")

    def _other_program(self, twin: TwinKernel, original: OriginalBuild, retargeting: Retargeting) -> str | None:
        """Why retargeted text is not accepted as the program that runs; None if it is."""
        if original.assembled is None:
            return None
        before = original.machine.kernels[twin.name]
        other = variant.difference(before, original.assembled.kernels[twin.name], self._assembly.arch)
        if other is not None or retargeting.own or retargeting.unproven:
            return other
        unlike = original.unlike_in_code(twin)
        return f"{NOT_SHOWN}: {self._assembly.name} assembles the PTX to different code ({unlike})" if unlike else None

    def _more_stack(self, twin: TwinKernel, original: OriginalBuild, built: TwinBuild) -> str | None:
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        if before.stack == _STACK_UNKNOWN and after.frame > before.frame:
            grown = f"its stack frame grows from {before.frame} to {after.frame} bytes"
            return f"its stack size is not known in advance, and {grown}"
        if self._assembly.bounded_stack:
            for copy in twin.all_copies:
                deeper = _deeper(copy, original.resources[twin.name], built.resources[twin.twin_name])
                if deeper is not None:
                    return deeper
        return None


def _other_parameters(twin: TwinKernel, original: OriginalBuild, built: TwinBuild) -> str | None:
    expected = [(parameter.offset, parameter.size) for parameter in twin.parameters]
    shipped = [(offset, size) for _, offset, size in original.machine.kernels[twin.name].parameters]
    if shipped != expected:
        return f"parameters (offset, size) of the machine code {shipped}, of the PTX {expected}"
    assembled = [(offset, size) for _, offset, size in built.kernels[twin.twin_name].parameters]
    if assembled != [*expected, (twin.block_offset, twin.block_size)]:
        return f"the assembler placed the twin's parameters at {assembled}"
    return None


def _deeper(copy: FunctionCopy, before: Resources, after: Resources) -> str | None:
    """Why a recursive function's copy is refused: its depth, and so the stack that it needs, is not known."""
    if not copy.is_recursive:
        return None
    frame, own_frame = before.functions.get(copy.name), after.functions.get(copy.copy_name)
    if frame is not None and own_frame is not None and own_frame <= frame:
        return None
    shown = " to ".join("an unknown number of" if size is None else str(size) for size in (frame, own_frame))
    return f"{copy.name} is recursive to an unknown depth, and its stack frame grows from {shown} bytes"
