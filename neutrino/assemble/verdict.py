"""Whether an assembled twin may be used, and why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.assemble.assembly import Assembly, ExplicitTwins
from neutrino.assemble.builds import OriginalBuild, TwinBuild
from neutrino.assemble.numerics.same_rounding import ArithmeticComparison
from neutrino.assemble.retargeting import NOT_SHOWN, Retargeting
from neutrino.assemble.warnings import newly_warned
from neutrino.toolchain.assembled import Resources
from neutrino.twins.values import AssembledTwin, Copy


@dataclass(frozen=True)
class Verdict:
    """Why a kernel has no twin (instrumented copy). detail: a sentence for reports.

    of_probes: whether a twin with fewer probes may be accepted; False for what does not depend on them.
    """

    reason: Reason
    detail: str
    of_probes: bool = True


class Verifier:
    """Compares assembled twins (instrumented copies of kernels) with their originals.

    assembly: what assembled them. retargeting: set if their text is for another architecture than the originals'
    machine code, else None. explicit: the twins' explicit FMA, if they are written with it, else None.
    """

    def __init__(
        self, assembly: Assembly, retargeting: Retargeting | None, explicit: ExplicitTwins | None = None
    ) -> None:
        """Prepare to compare assembled twins (copies of kernels with probes) with their originals. assembly: what
        assembled them.

        retargeting: set if their text is for another architecture. explicit: those with explicit FMA, None without any.
        """
        self._assembly = assembly
        self._arithmetic = ArithmeticComparison(assembly, explicit)
        self.retargeting = retargeting

    def verdicts(
        self, twins: Sequence[AssembledTwin], original: OriginalBuild, built: TwinBuild
    ) -> dict[str, Verdict | None]:
        """Return why each of these twins (copies with probes) is refused, by the original kernel's name; None for one
        that may be used.

        Raises as ``Assembler.assemble`` and ``build_originals``: the originals' text may be assembled now, and if a
        warning does not name its kernel, each twin alone.
        """
        # The others were refused by ptxas, so it does not warn of them.
        assembled = [twin for twin in twins if twin.twin_name in built.kernels]
        new_warnings = (
            newly_warned(assembled, self._assembly, original.warnings, built.warnings) if built.warnings else {}
        )
        return {twin.name: self._verdict(twin, original, built, new_warnings) for twin in twins}

    def numerics(self, twin: AssembledTwin, original: OriginalBuild, built: TwinBuild) -> dict[str, Any]:
        """Return what the manifest of an accepted twin (instrumented copy) says of its arithmetic.

        original, built: the originals and the twins as they were built.
        """
        return self._arithmetic.manifest(twin, original, built)

    def of_refused_original(self, reason: str) -> Verdict:
        """Return the verdict on a twin (copy with probes) whose original the assembler refuses.

        reason: the assembler's.
        """
        detail = f"{self._assembly.name} refuses the original: {reason}"
        if self.retargeting is None:
            return Verdict(Reason.ASSEMBLER, detail, of_probes=False)
        return self._variant_verdict(self.retargeting, detail)

    def _verdict(
        self, twin: AssembledTwin, original: OriginalBuild, built: TwinBuild, new_warnings: Mapping[str, str]
    ) -> Verdict | None:
        """Return why a twin (copy with probes) is refused; None if it may be used.

        new_warnings: ptxas' warnings about twins but not about their originals, by the kernel's name.
        """
        # What the assembler refuses or warns of.
        if twin.name in original.failed:
            return self.of_refused_original(original.failed[twin.name])
        if twin.name in built.failed:
            return Verdict(Reason.ASSEMBLER, f"{self._assembly.name}: {built.failed[twin.name]}")
        if twin.name in new_warnings:
            return Verdict(Reason.ASSEMBLER, f"{self._assembly.name} warns: {new_warnings[twin.name]}")

        # What makes the text another program than the one that runs.
        if self.retargeting is not None:
            difference = self._variant_difference(twin, original, self.retargeting)
            if difference is not None:
                return self._variant_verdict(self.retargeting, difference)

        # What the hook (the library that launches twins) cannot launch, or what may compute other results.
        unsupported = _parameter_difference(twin, original, built, self._assembly.language)
        if unsupported is not None:
            return Verdict(Reason.UNSUPPORTED, unsupported, of_probes=False)
        growth = self._stack_growth(twin, original, built)
        if growth is not None:
            return Verdict(Reason.UNSUPPORTED, growth)
        difference = self._arithmetic.refusal(twin, original, built)
        return None if difference is None else Verdict(Reason.NUMERICS, difference)

    @staticmethod
    def _variant_verdict(retargeting: Retargeting, detail: str) -> Verdict:
        """The verdict on a twin (copy with probes) whose text is for another architecture than the code that runs.

        detail: why it is refused.
        """
        return Verdict(Reason.VARIANT, f"retargeted {retargeting.target}: {detail}", of_probes=False)

    def _variant_difference(self, twin: AssembledTwin, original: OriginalBuild, retargeting: Retargeting) -> str | None:
        """Return why PTX for another architecture is not accepted as the program that runs; None if it is.

        It is refused if its machine code contradicts the code that runs. Else it is accepted
        if the code that runs says that it was compiled from it, if the user accepts it unproven, or if both codes are
        equal.
        """
        if original.assembled is None:
            # There is no machine code that runs: the driver compiles this text itself.
            return None
        running = original.machine.kernels[twin.name]
        contradiction = self._assembly.reader.contradiction(
            running, original.assembled.kernels[twin.name], self._assembly.arch
        )
        if contradiction is not None or retargeting.own or retargeting.unproven:
            return contradiction
        difference = original.unlike_in_code(twin)
        if difference is None:
            return None
        made = f"{self._assembly.name} assembles the {self._assembly.language} to different code"
        return f"{NOT_SHOWN}: {made} ({difference})"

    def _stack_growth(self, twin: AssembledTwin, original: OriginalBuild, built: TwinBuild) -> str | None:
        """Return why the twin (copy with probes) might need more stack than a thread has; None if it does not.

        original, built: the originals and the twins as they were built, with the sizes of their stack frames.
        """
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        # With a known stack size the driver gives the twin the stack that its own cubin states.
        if not self._assembly.reader.has_known_stack(before) and after.frame > before.frame:
            grown = f"its stack frame grows from {before.frame} to {after.frame} bytes"
            return f"its stack size is not known in advance, and {grown}"
        if self._assembly.bounded_stack:
            for copy in twin.all_copies:
                growth = _recursive_growth(copy, original.of_text.resources[twin.name], built.resources[twin.twin_name])
                if growth is not None:
                    return growth
        return None


def _parameter_difference(twin: AssembledTwin, original: OriginalBuild, built: TwinBuild, language: str) -> str | None:
    """Return what is wrong with the parameters in the machine code of an original or its twin; None if nothing is.

    A twin is the instrumented copy. Both must have those of the PTX, and the twin the probe block (what a launch passes
    to its probes) after them. The hook (Neutrino's library in the program), which launches the twin, copies them by
    these offsets.
    """
    expected = [(parameter.offset, parameter.size) for parameter in twin.parameters]
    # In machine code a parameter is (index, offset, size).
    shipped = [(offset, size) for _, offset, size in original.machine.kernels[twin.name].parameters]
    if shipped != expected:
        return f"parameters (offset, size) of the machine code {shipped}, of the {language} {expected}"
    assembled = [(offset, size) for _, offset, size in built.kernels[twin.twin_name].parameters]
    if assembled != [*expected, (twin.block_offset, twin.block_size)]:
        return f"the assembler placed the twin's parameters at {assembled}"
    return None


def _recursive_growth(copy: Copy, before: Resources, after: Resources) -> str | None:
    """Return why a twin's instrumented copy of a recursive function is refused; None if its frame has not grown.

    The depth of the recursion is not known, so neither is the stack that larger frames need. before, after: what ptxas
    reports of the original kernel and of the twin.
    """
    if not copy.is_recursive:
        # Its stack is part of what the cubin states for the kernel.
        return None
    original_frame, copy_frame = before.functions.get(copy.name), after.functions.get(copy.copy_name)
    if original_frame is not None and copy_frame is not None and copy_frame <= original_frame:
        return None
    sizes = (original_frame, copy_frame)
    shown = " to ".join("an unknown number of" if size is None else str(size) for size in sizes)
    return f"{copy.name} is recursive to an unknown depth, and its stack frame grows from {shown} bytes"
