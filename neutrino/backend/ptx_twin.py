"""Twins (instrumented copies) of the kernels of one PTX module: the usual backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neutrino.abi.reasons import Reason
from neutrino.assemble.attempts import Job, Outcomes, assemble
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit
from neutrino.assemble.parallel import StoppableSlots
from neutrino.assemble.retargeting import Retargeting
from neutrino.backend.kernel_entries import entries_of, unassembled_entries
from neutrino.backend.manifest import unassembled_manifest
from neutrino.backend.protocol import BackendResult
from neutrino.backend.ptx_devices import FORMS, SUPPORTED, rank
from neutrino.backend.ptx_images import driver_image
from neutrino.backend.ptx_module import OneModule
from neutrino.backend.ptx_parts import split
from neutrino.backend.ptx_source import DEBUG_SECTION, Source
from neutrino.demangle import demangle
from neutrino.errors import PtxError
from neutrino.fatbin.ptxscan import ptx_entries, ptx_version, with_ptx_version
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.plan import KernelPlan, ModulePlan
from neutrino.ptx.instrument.programs import FewerProbes, plan_module, write_module
from neutrino.ptx.instrument.twin import TwinKernel, TwinModule
from neutrino.ptx.text.module import parse
from neutrino.sass.arithmetic import FIRST_ARCHITECTURE
from neutrino.toolchain.ptxas import Assembler
from neutrino.twins.values import SkippedKernel, Twin, ignore


@dataclass(frozen=True)
class PtxPlan:
    """Where the probes go in the kernels of a module; a ``Plan``.

    module: the plan of the module; None if it cannot be parsed. others: kernels that the module does not have, or all
    if it cannot be parsed, by name, with reason and detail.
    """

    module: ModulePlan | None
    others: Mapping[str, tuple[Reason, str]] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        """The plans of the kernels that can be probed."""
        return self.module.kernels if self.module is not None else ()

    @property
    def refused(self) -> dict[str, tuple[Reason, str]]:
        """Why the other kernels cannot be probed, by name."""
        return {**self.others, **refusals(self.module.skipped if self.module is not None else ())}


def refusals(skipped: Iterable[SkippedKernel]) -> dict[str, tuple[Reason, str]]:
    """Return the reason and detail of kernels without a twin, by name."""
    return {skip.name: (skip.reason, skip.detail) for skip in skipped}


def tell_of_long(twins: Iterable[TwinKernel], notice: Callable[[Twin], None]) -> None:
    """Call notice with each twin for which ptxas may take long."""
    for twin in twins:
        if twin.length_warning:
            notice(twin)


def fewer_probes(plans: Iterable[KernelPlan]) -> dict[str, FewerProbes]:
    """Return by name, of planned kernels with several probes, their twins with fewer."""
    return {plan.name: FewerProbes(plan) for plan in plans if len(plan.rewriting.probes.probes) > 1}


@dataclass(frozen=True)
class PtxCode:
    """A module with its twins. parts: the twins, in groups that become images. plan: what they were written from."""

    module: TwinModule
    parts: Sequence[tuple[TwinKernel, ...]]
    plan: PtxPlan


@dataclass(frozen=True)
class PtxTwins:
    """The ``Backend`` for one PTX module: twins ``NAME__neutrino``, in images of their own.

    source: the PTX, and the machine code that runs. version: the highest PTX ``.version`` that twins may have.
    assembler: None if nothing is assembled, so that twins stay PTX and are not verified. emit: the form of twins for
    the driver. bounded_stack: whether a thread has only as much stack as the program asked for. unproven: for PTX of
    another architecture, whether to accept kernels that are not proven to be the ones that run. max_registers: the
    user's register cap of twins, None without one. notice: is called with each long twin before it is
    assembled. dump: for ``--save-temps``. target: as in ``Backend``.
    """

    source: Source
    probes: ProbeSet
    version: tuple[int, int]
    assembler: Assembler | None = None
    emit: Emit = Emit.CODE
    bounded_stack: bool = True
    unproven: bool = False
    max_registers: int | None = None
    notice: Callable[[Twin], None] = ignore
    dump: Dump = field(default_factory=Dump)
    target: str = "ptx"

    @property
    def kernels(self) -> Sequence[str]:
        """The names of the kernels in the machine code that runs; without machine code, in the text."""
        if self.source.machine is not None:
            return list(self.source.machine.kernels)
        return [] if self.source.text is None else list(ptx_entries(self.source.text.encode("latin-1")))

    @property
    def refusal(self) -> tuple[Reason, str] | None:
        """Why no kernel can be probed: an unsupported architecture, or no PTX that may be used. None if some may be."""
        unsupported = unknown_encoding(self.source.arch)
        if unsupported is not None:
            return unsupported
        if self.source.text is None or self.source.reason is not Reason.PROBED:
            return self.source.reason, self.source.detail
        return None

    def plan(self, kernels: Sequence[str]) -> PtxPlan:
        """Parse the PTX and find where the probes go in the named kernels.

        If it cannot be parsed, or lacks a kernel, the plan has the reason. Raises ProbeError if a probe reads an
        operand that a matched instruction does not have.
        """
        text = self.source.text or ""
        if self.source.machine is not None:
            # The text may be from a later toolkit than the assembler, which refuses its .version: the latest nvJitLink
            # beside the ptxas of the driver's release. If it uses newer features, the assembler refuses those instead;
            # and each twin is compared with the machine code.
            text = _limit_version(text, self.version)
        try:
            module = parse(text)
            module_kernels = {entry.name for entry in module.entries}
            names = [name for name in kernels if name in module_kernels]
            plan = plan_module(module, self.probes, names=names, version=self.version, demangle=demangle)
        except PtxError as error:
            return PtxPlan(None, {name: (Reason.UNSUPPORTED, str(error)) for name in kernels})
        # The machine code may have kernels that its PTX lacks.
        missing = Reason.NO_PTX, f"the PTX in the {self.source.found} lacks this kernel"
        return PtxPlan(plan, {name: missing for name in kernels if name not in module_kernels})

    def write(self, plan: PtxPlan) -> PtxCode:
        """Write the twins (instrumented copies) of the planned kernels.

        Those of a big module are in several parts, which are assembled side by side.
        """
        if plan.module is None:
            raise LookupError("no kernel is planned")
        twins = write_module(plan.module)
        # Retargeted PTX, and PTX that a cubin keeps, is also assembled without probes, as one module, and compared with
        # the machine code that runs. The twins must be assembled like that, too, now and in later attempts: in one
        # part.
        is_whole = self.source.retargeted or self.source.found == DEBUG_SECTION
        if not twins.kernels:
            parts = []
        elif is_whole:
            parts = [twins.kernels]
        else:
            parts = split(twins.module, twins.kernels)
        self.dump.write("original.ptx", twins.module.text.encode("latin-1"))
        return PtxCode(twins, parts, plan)

    def assemble(self, code: PtxCode) -> Outcomes:
        """Assemble the twins and compare each with its original; return the outcomes by the original's name.

        Without an assembler there are none. Raises ToolError, OSError for failures of the machine.
        """
        if self.assembler is None:
            self.dump.write("probed.ptx", code.module.render().encode("latin-1"))
            return {}
        if not code.parts:
            # No twin was written.
            return {}
        tell_of_long(code.module.kernels, self.notice)
        # Wraps the slots that limit all assemblers of the run, so that this job alone stops if one of its runs fails.
        slots = StoppableSlots(self.assembler.slots)
        assembler = replace(self.assembler, slots=slots)
        return assemble(
            Job(
                code.parts,
                OneModule(
                    self.source, code.module, assembler, self.emit, bounded_stack=self.bounded_stack, dump=self.dump,
                    max_registers=self.max_registers,
                ),
                slots,
                retargeting=self._retargeting,
                unfused_after=self._unfused_after(code.plan),
                keeps_files=self.dump.folder is not None,
                fewer=fewer_probes(code.plan.kernels),
            )
        )

    def entries(self, code: PtxCode, outcomes: Outcomes) -> BackendResult:
        """Return the kernels' cache entries, and the images of the twins that were accepted.

        Without an assembler no twin was verified: the images are PTX, and manifests have no register counts.
        """
        if self.assembler is not None:
            return entries_of(outcomes, refusals(code.module.skipped), FORMS)

        def image(part: Sequence[TwinKernel]) -> bytes:
            """Return the image of one part: a module with its twins only."""
            text = code.module.render({twin.name for twin in part})
            return driver_image(self.source, code.module.module, text, None, self.emit)

        def manifest(twin: TwinKernel) -> dict[str, object]:
            """Return the manifest of one twin."""
            return unassembled_manifest(twin, self.source.arch, FORMS[self.emit])

        return unassembled_entries(code.parts, manifest, image)

    @property
    def _retargeting(self) -> Retargeting | None:
        """Return how the kernels' text differs in architecture from the code that runs; None if it is for the same."""
        source = self.source
        return Retargeting(source.retargeted, source.own, self.unproven) if source.retargeted else None

    def _unfused_after(self, plan: PtxPlan) -> frozenset[Reason]:
        """Return the refusals after which to assemble again with ``--fmad=false``, if no twin has another reason.

        With the option ptxas fuses no multiplication with an addition. The original may have been assembled with it:
        Triton passes it for ``enable_fp_fusion=False``. Only of a cubin that keeps its PTX the options are not known,
        so for everything else there are none.
        """
        if self.source.found != DEBUG_SECTION:
            return frozenset()
        # With other fusing, counts of arithmetic differ; PTX for another architecture then looks like another program.
        reasons = {Reason.NUMERICS, Reason.VARIANT} if self.source.retargeted else {Reason.NUMERICS}
        # A kernel that is refused for another reason already shows that not all twins have one of these.
        planned_refusals = {reason for reason, _ in plan.refused.values()}
        return frozenset(reasons) if planned_refusals <= reasons else frozenset()


def unknown_encoding(arch: str) -> tuple[Reason, str] | None:
    """Return why no kernel for an architecture (``sm_90a``) can be probed; None if its machine code is supported."""
    if rank(arch) >= FIRST_ARCHITECTURE:
        return None
    return Reason.UNSUPPORTED, f"{arch}: machine code is supported {SUPPORTED}"


def _limit_version(text: str, highest: tuple[int, int]) -> str:
    """Return a PTX text with its ``.version`` lowered to highest (major, minor) if it is above that."""
    data = text.encode("latin-1")
    version = ptx_version(data)
    if version is None or version <= highest:
        return text
    return with_ptx_version(data, highest).decode("latin-1")
