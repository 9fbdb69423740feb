"""Twins of the kernels of one PTX module: the first way of probing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neutrino.abi.reasons import Reason
from neutrino.assemble.attempts import Job, Outcomes, assemble
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit, driver_image
from neutrino.assemble.one_module import OneModule
from neutrino.assemble.parallel import StoppableSlots
from neutrino.assemble.parts import split
from neutrino.assemble.retargeting import Retargeting
from neutrino.backend.entries import entries_of, unassembled_entries
from neutrino.backend.manifest import unassembled_manifest
from neutrino.backend.protocol import BackendResult
from neutrino.demangle import demangle
from neutrino.device.source import DEBUG_SECTION, Device, Source
from neutrino.errors import PtxError
from neutrino.fatbin.ptxscan import ptx_entries, ptx_version, with_ptx_version
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.module_twins import plan_module, write_module
from neutrino.ptx.instrument.plan import KernelPlan, ModulePlan
from neutrino.ptx.instrument.twin import SkippedKernel, TwinKernel, TwinModule
from neutrino.ptx.text.module import parse
from neutrino.sass.arithmetic import FIRST_ARCHITECTURE
from neutrino.toolchain.ptxas import Assembler


@dataclass(frozen=True)
class PtxPlan:
    """Where the probes go in a module's kernels. others: those that the module lacks, or that cannot be read, and
    why."""

    module: ModulePlan | None
    others: Mapping[str, tuple[Reason, str]] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        """As of ``Plan``."""
        return self.module.kernels if self.module is not None else ()

    @property
    def refused(self) -> dict[str, tuple[Reason, str]]:
        """As of ``Plan``."""
        return {**self.others, **refusals(self.module.skipped if self.module is not None else ())}


def refusals(skipped: Iterable[SkippedKernel]) -> dict[str, tuple[Reason, str]]:
    """Kernels without a twin by name, and why they have none."""
    return {skip.name: (skip.reason, skip.detail) for skip in skipped}


@dataclass(frozen=True)
class PtxCode:
    """A module with its twins. parts: of a big module, each an image of its own. plan: what they were written by."""

    module: TwinModule
    parts: Sequence[tuple[TwinKernel, ...]]
    plan: PtxPlan


@dataclass(frozen=True)
class PtxTwins:
    """A ``Backend``: twins ``NAME__neutrino`` beside the originals, in images of their own.

    version: the highest ``.version`` that twins may have. assembler: None where nothing is assembled, and twins go out
    as text, unverified. bounded_stack: a thread has no more stack than the program has asked for. unproven: of a
    retargeted source also kernels that are not shown to be what runs.
    """

    source: Source
    probes: ProbeSet
    version: tuple[int, int]
    assembler: Assembler | None = None
    emit: Emit = Emit.SASS
    bounded_stack: bool = True
    unproven: bool = False
    dump: Dump = field(default_factory=Dump)
    target: str = "ptx"

    @property
    def kernels(self) -> Sequence[str]:
        """Those of the machine code that runs, else of the text."""
        if self.source.machine is not None:
            return list(self.source.machine.kernels)
        return [] if self.source.text is None else list(ptx_entries(self.source.text.encode("latin-1")))

    @property
    def refusal(self) -> tuple[Reason, str] | None:
        """As of ``Backend``."""
        return unknown_encoding(self.source.arch) or (
            (self.source.reason, self.source.detail)
            if self.source.text is None or self.source.reason is not Reason.PROBED
            else None
        )

    def plan(self, kernels: Sequence[str]) -> PtxPlan:
        """As of ``Backend``."""
        text = self.source.text or ""
        if self.source.retargeted:
            # The text may be a later toolkit's than the machine code; the assembler says whether that matters.
            text = _with_version(text, self.version)
        try:
            module = parse(text)
            here = {entry.name for entry in module.entries}
            wanted = [name for name in kernels if name in here]
            plan = plan_module(module, self.probes, names=wanted, version=self.version, demangle=demangle)
        except PtxError as error:
            return PtxPlan(None, {name: (Reason.UNSUPPORTED, str(error)) for name in kernels})
        lacking = Reason.NO_PTX, f"the PTX in the {self.source.found} lacks this kernel"
        return PtxPlan(plan, {name: lacking for name in kernels if name not in here})

    def write(self, plan: PtxPlan) -> PtxCode:
        """As of ``Backend``: in parts, where the module is big."""
        if plan.module is None:
            raise LookupError("no kernel is planned")
        # The whole is held against the whole, here and where it is assembled in another way.
        is_whole = self.source.retargeted or self.source.found == DEBUG_SECTION
        twins = write_module(plan.module)
        parts = [twins.kernels] if is_whole else split(twins.module, twins.kernels)
        parts = parts if twins.kernels else []
        self.dump.write("original.ptx", twins.module.text.encode("latin-1"))
        return PtxCode(twins, parts, plan)

    def assemble(self, code: PtxCode) -> Outcomes:
        """As of ``Backend``; nothing without an assembler."""
        if self.assembler is None:
            self.dump.write("probed.ptx", code.module.render().encode("latin-1"))
            return {}
        if not code.parts:
            return {}
        slots = StoppableSlots(self.assembler.slots)
        assembler = replace(self.assembler, slots=slots)
        return assemble(
            Job(
                code.parts,
                OneModule(self.source, code.module, assembler, self.emit, self.bounded_stack, self.dump),
                slots,
                Retargeting.of(self.source, unproven=self.unproven),
                self._unfused_after(code.plan),
            )
        )

    def entries(self, code: PtxCode, outcomes: Outcomes) -> BackendResult:
        """As of ``Backend``."""
        if self.assembler is not None:
            return entries_of(outcomes, self.probes, refusals(code.module.skipped))

        def image(part: Sequence[TwinKernel]) -> bytes:
            text = code.module.render({twin.name for twin in part})
            return driver_image(self.source, code.module.module, text, None, self.emit)

        def manifest(twin: TwinKernel) -> dict[str, object]:
            return unassembled_manifest(twin, self.source.arch, self.probes, self.emit)

        return unassembled_entries(code.parts, manifest, image)

    def _unfused_after(self, plan: PtxPlan) -> frozenset[Reason]:
        """A cubin does not say how it was assembled. Triton's enable_fp_fusion=False passes --fmad=false."""
        if self.source.found != DEBUG_SECTION:
            return frozenset()
        unlike = {Reason.NUMERICS, Reason.VARIANT} if self.source.retargeted else {Reason.NUMERICS}
        others = {reason for reason, _ in plan.refused.values()}
        return frozenset(unlike) if others <= unlike else frozenset()


def unknown_encoding(arch: str) -> tuple[Reason, str] | None:
    """Why no kernel for an architecture can be probed: its machine code is not understood; None where it is."""
    device = Device.parse(arch)
    if device is not None and device.number >= FIRST_ARCHITECTURE:
        return None
    return Reason.UNSUPPORTED, f"{arch}: machine code is supported from sm_{FIRST_ARCHITECTURE} on"


def _with_version(text: str, highest: tuple[int, int]) -> str:
    data = text.encode("latin-1")
    own = ptx_version(data)
    return text if own is None or own <= highest else with_ptx_version(data, highest).decode("latin-1")
