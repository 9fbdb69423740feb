"""What stands against using a twin."""

from __future__ import annotations

from collections.abc import Mapping

from neutrino.abi.reasons import Reason
from neutrino.assemble.assembly import Assembly
from neutrino.assemble.built import Built, Original
from neutrino.assemble.numerics.comparison import Arithmetic
from neutrino.assemble.retargeting import NOT_SHOWN, Retargeting
from neutrino.ptx.instrument.functions import FunctionCopy
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.sass import variant
from neutrino.toolchain.ptxas import Resources

_STACK_UNKNOWN = 0xFFFFFFFF
"""The stack that a cubin states for a kernel with recursion: it gets what the program has set as limit."""

Verdict = tuple[Reason, str]
"""Why a kernel has no twin, and what exactly stood in the way."""


class Judge:
    """Holds twins as they were assembled against their originals. retargeting: None where the text is theirs."""

    def __init__(self, assembly: Assembly, arithmetic: Arithmetic, retargeting: Retargeting | None) -> None:
        self._assembly = assembly
        self._arithmetic = arithmetic
        self._retargeting = retargeting

    def verdict(
        self, twin: TwinKernel, original: Original, built: Built, warned: Mapping[str, str]
    ) -> Verdict | None:
        """What stands against using a twin, None when nothing does. warned: new warnings, by the kernel's name."""
        if twin.name in built.failed:
            return Reason.ASSEMBLER, f"{self._assembly.name}: {built.failed[twin.name]}"
        if twin.name in warned:
            return Reason.ASSEMBLER, f"{self._assembly.name} warns: {warned[twin.name]}"
        other = self._other_program(twin, original)
        if other is not None:
            return Reason.VARIANT, self.of_variant(other)
        unsupported = _other_parameters(twin, original, built) or self._more_stack(twin, original, built)
        if unsupported is not None:
            return Reason.UNSUPPORTED, unsupported
        difference = self._arithmetic.refusal(twin, original, built)
        return None if difference is None else (Reason.NUMERICS, difference)

    def of_variant(self, detail: str) -> str:
        """The detail of a verdict, with what was retargeted to what where that was."""
        return f"retargeted {self._retargeting.target}: {detail}" if self._retargeting else detail

    def _other_program(self, twin: TwinKernel, original: Original) -> str | None:
        """What keeps retargeted text from being taken for the program that runs; None when nothing."""
        if self._retargeting is None or original.assembled is None:
            return None
        before = original.machine.kernels[twin.name]
        other = variant.difference(before, original.assembled.kernels[twin.name], self._assembly.arch)
        if other is not None or self._retargeting.own or self._retargeting.unproven:
            return other
        unlike = original.unlike_in_code(twin)
        return f"{NOT_SHOWN}: {self._assembly.name} makes other code of the PTX ({unlike})" if unlike else None

    def _more_stack(self, twin: TwinKernel, original: Original, built: Built) -> str | None:
        before, after = original.machine.kernels[twin.name], built.kernels[twin.twin_name]
        if before.stack == _STACK_UNKNOWN and after.frame > before.frame:
            grown = f"its stack frame grows from {before.frame} to {after.frame} bytes"
            return f"what stack it needs is not known beforehand, and {grown}"
        if self._assembly.bounded_stack:
            for copy in twin.all_copies:
                deeper = _deeper(copy, original.resources[twin.name], built.resources[twin.twin_name])
                if deeper is not None:
                    return deeper
        return None


def _other_parameters(twin: TwinKernel, original: Original, built: Built) -> str | None:
    expected = [(parameter.offset, parameter.size) for parameter in twin.parameters]
    shipped = [(offset, size) for _, offset, size in original.machine.kernels[twin.name].parameters]
    if shipped != expected:
        return f"parameters (offset, size) of the machine code {shipped}, of the PTX {expected}"
    assembled = [(offset, size) for _, offset, size in built.kernels[twin.twin_name].parameters]
    if assembled != [*expected, (twin.block_offset, twin.block_size)]:
        return f"the assembler placed the twin's parameters at {assembled}"
    return None


def _deeper(copy: FunctionCopy, before: Resources, after: Resources) -> str | None:
    """What speaks against a recursive function's copy: nobody knows how deep it goes, and how much stack is left."""
    if not copy.is_recursive:
        return None
    frame, own_frame = before.functions.get(copy.name), after.functions.get(copy.copy_name)
    if frame is not None and own_frame is not None and own_frame <= frame:
        return None
    told = " to ".join("an unknown number of" if size is None else str(size) for size in (frame, own_frame))
    return f"{copy.name} calls itself, how deep is not known, and its stack frame grows from {told} bytes"
