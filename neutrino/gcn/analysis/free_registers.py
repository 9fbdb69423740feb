"""The registers that a kernel of AMD's leaves: scalar ones that it never names, vector ones that cost nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from neutrino.gcn.analysis.calls import Calls, Reach, UnknownCallError
from neutrino.gcn.analysis.liveness import Liveness
from neutrino.gcn.code import Function, Module
from neutrino.gcn.isa.registers import UnknownInstructionError, scalars_in, vectors_in
from neutrino.gcn.processors import Processor


@dataclass(frozen=True, eq=False)
class KernelRegisters:
    """The registers of a kernel, and of all that it may call.

    module: that the kernel is in. known_functions: itself and those that it may call, where they are known already.
    """

    module: Module
    kernel: Function
    processor: Processor
    known_functions: tuple[Function, ...] = ()

    @cached_property
    def liveness(self) -> Liveness:
        """The analysis that says which registers the kernel's own code still needs at each of its instructions."""
        return Liveness(self.kernel, self.processor.generation)

    @cached_property
    def refused(self) -> str:
        """Why the registers are not known, "" if they are: an instruction that is not known, or a called function whose
        instructions are not."""
        try:
            _ = self.named
        except (UnknownInstructionError, UnknownCallError) as error:
            return str(error)
        return self.kernel.refused

    @cached_property
    def reach(self) -> Reach:
        """The functions that the kernel may call. Raises UnknownCallError, UnknownInstructionError."""
        return Calls(self.module, self.processor.generation).reach(self.kernel)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The kernel and those that it may call: all whose registers must be left alone. Raises as ``reach``."""
        return self.known_functions or self.reach.named

    @cached_property
    def named(self) -> int:
        """All registers that some instruction of ``functions`` reads or writes. Raises as that does."""
        found = self.liveness.named
        for function in self.functions:
            if function is self.kernel:
                continue
            try:
                found |= Liveness(function, self.processor.generation).named
            except UnknownInstructionError as error:
                raise UnknownInstructionError(f"{function.name}: {error}") from None
        return found

    def free_scalars(self, waves: int | None = None) -> list[int]:
        """Return the SGPRs that nothing names, ascending. waves: that are to fit on a SIMD still, None for any number.

        What the hardware gives a kernel at its entry is in some of them, as far as the kernel does not use it. Raises
        UnknownInstructionError.
        """
        used = set(scalars_in(self.named))
        limit = self.processor.sgprs
        if waves is not None:
            limit = self.processor.free_scalars_limit(max(used, default=-1) + 1, waves)
        return [number for number in range(limit) if number not in used]

    @property
    def scalar_count(self) -> int:
        """How many SGPRs the kernel and what it calls take: one more than the highest number that is named."""
        return max(scalars_in(self.named), default=-1) + 1

    @property
    def vector_count(self) -> int:
        """How many VGPRs the kernel and what it calls take: one more than the highest number that is named."""
        return max(vectors_in(self.named), default=-1) + 1

    @cached_property
    def is_indexed(self) -> bool:
        """Whether some instruction accesses VGPRs by an index: then those below the kernel's count are in use."""
        return any(
            row.is_indexed
            for function in self.functions
            for row in Liveness(function, self.processor.generation).effects.values()
        )
