"""Twins of device-linked code: from the PTX of its translation units, assembled one by one and linked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from neutrino.abi.reasons import Reason
from neutrino.assemble.attempts import Job, Outcomes, assemble
from neutrino.assemble.dump import Dump
from neutrino.assemble.parallel import StoppableSlots
from neutrino.backend.kernel_entries import entries_of
from neutrino.backend.protocol import BackendResult
from neutrino.backend.ptx_devices import FORMS
from neutrino.backend.ptx_linked_source import LinkedSource, program
from neutrino.backend.ptx_twin import fewer_probes, refusals, tell_of_long, unknown_encoding
from neutrino.backend.ptx_units import LinkedUnits
from neutrino.demangle import demangle
from neutrino.errors import PtxError, ToolMissingError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.plan import KernelPlan
from neutrino.ptx.instrument.programs import ProgramPlan, TwinProgram, plan_program, write_program
from neutrino.toolchain.nvlink import Linker
from neutrino.toolchain.ptxas import Assembler
from neutrino.twins.values import Twin, ignore


@dataclass(frozen=True)
class LinkedPlan:
    """Where the probes go in the kernels of device-linked code; a ``Plan``.

    program: the plan of all units; None if no kernel can be planned. others: kernels whose PTX is missing or must not
    be used, by name, with reason and detail.
    """

    program: ProgramPlan | None
    others: Mapping[str, tuple[Reason, str]] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        """The plans of the kernels that can be probed."""
        return self.program.kernels if self.program is not None else ()

    @property
    def refused(self) -> dict[str, tuple[Reason, str]]:
        """Why the other kernels cannot be probed, by name."""
        return {**self.others, **refusals(self.program.skipped if self.program is not None else ())}


@dataclass(frozen=True)
class LinkedCode:
    """Device-linked code with its twins. plan: what they were written from."""

    program: TwinProgram
    plan: LinkedPlan


@dataclass(frozen=True)
class LinkedTwins:
    """The ``Backend`` for device-linked code.

    source: the linked machine code, and the PTX of its translation units. version: the highest PTX ``.version`` that
    twins may have. tools: None if nothing is to be assembled. dump: gets the texts and outputs of each stage.
    max_registers: the user's register cap of twins, None without one. notice: as in ``PtxTwins``.
    target: as in ``Backend``.
    """

    source: LinkedSource
    probes: ProbeSet
    version: tuple[int, int]
    tools: tuple[Assembler, Linker] | None = None
    dump: Dump = field(default_factory=Dump)
    max_registers: int | None = None
    notice: Callable[[Twin], None] = ignore
    target: str = "ptx"

    @cached_property
    def kernels(self) -> Sequence[str]:
        """The names of the kernels in the linked machine code."""
        return list(self.source.machine.kernels) if self.source.machine is not None else []

    @property
    def refusal(self) -> tuple[Reason, str] | None:
        """Why no kernel can be probed, as reason and detail: the architecture is not supported. None if it is."""
        return unknown_encoding(self.source.arch)

    def plan(self, kernels: Sequence[str]) -> LinkedPlan:
        """Find where the probes go in the named kernels, by the PTX of the translation units that they come from.

        Kernels whose PTX is missing, must not be used or cannot be parsed are in the plan with the reason. Raises
        ProbeError if a probe reads an operand that a matched instruction does not have.
        """
        unit_of_kernel, refused = self.source.kernels or {}, self.source.refused or {}
        others = {name: refused[name] for name in kernels if name in refused}
        # By kernel, the number of the translation unit that it comes from.
        units = {name: unit_of_kernel[name] for name in kernels if name in unit_of_kernel}
        if not units:
            return LinkedPlan(None, others)
        try:
            plan = plan_program(
                program(self.source), self.probes, kernels=units, version=self.version, demangle=demangle
            )
        except PtxError as error:
            return LinkedPlan(None, others | dict.fromkeys(units, (Reason.UNSUPPORTED, str(error))))
        return LinkedPlan(plan, others)

    def write(self, plan: LinkedPlan) -> LinkedCode:
        """Write the twins (instrumented copies) of the planned kernels; return the units that have any."""
        if plan.program is None:
            raise LookupError("no kernel is planned")
        return LinkedCode(write_program(plan.program), plan)

    def assemble(self, code: LinkedCode) -> Outcomes:
        """Assemble and link the units with twins, and compare each twin with its original; return the outcomes.

        Raises ToolMissingError without tools, ToolError and OSError for failures of the machine.
        """
        if self.tools is None or self.source.machine is None:
            raise ToolMissingError("nvlink", "device-linked code is not taken without assembling it")
        assembler, linker = self.tools
        tell_of_long(code.program.kernels, self.notice)
        # Wraps the slots that limit all assemblers of the run, so that this job alone stops if one of its runs fails.
        slots = StoppableSlots(assembler.slots)
        assembler = replace(assembler, slots=slots)
        twins = code.program
        if not twins.kernels:
            return {}
        units = LinkedUnits(
            self.source, self.source.machine, twins, assembler, linker, self.dump, max_registers=self.max_registers
        )
        return assemble(Job([twins.kernels], units, slots, fewer=fewer_probes(code.plan.kernels)))

    def entries(self, code: LinkedCode, outcomes: Outcomes) -> BackendResult:
        """Return the kernels' cache entries, and the images of the twins that were accepted."""
        return entries_of(outcomes, refusals(code.program.skipped), FORMS)
