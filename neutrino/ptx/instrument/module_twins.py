"""From a module and a probe set to the twins of its kernels: one after the other, each by itself.

    text ─ parse ─► module ─ Linkage.needs ─► what a kernel needs ─ plan_kernel ─► its plan ─ write_twin ─► its twin

What gets no twin is left out with the reason, by the plan; so are, in a kernel that gets one, probes that it cannot
take.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property

from neutrino.abi.reasons import Reason
from neutrino.errors import PtxError
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.ptx.analysis.linkage import Linkage, ObstacleError
from neutrino.ptx.instrument.kernel_rewriter import write_twin
from neutrino.ptx.instrument.plan import KernelPlan, ModulePlan, plan_kernel, refusal_of
from neutrino.ptx.instrument.registers import UnsupportedError
from neutrino.ptx.instrument.rewriting import Rewriting, SkipError, module_obstacle
from neutrino.ptx.instrument.twin import TwinKernel, TwinModule, own_twin
from neutrino.ptx.text.module import Module
from neutrino.twins.probe_units import Found, ProbeUnit, Refusal, left_out, search, searched, units_of
from neutrino.twins.values import SkippedKernel, Twin


def plan_module(
    module: Module,
    probes: ProbeSet,
    *,
    names: Collection[str] | None = None,
    version: tuple[int, int] | None = None,
    linkage: Linkage | None = None,
    demangle: Callable[[str], str] | None = None,
) -> ModulePlan:
    """Find where the probes go in a module's kernels.

    names: plan only these kernels; None plans all. Others are neither planned nor skipped. version: the highest
    ``.version`` that a twin may have where it needs a higher one than the module's; None: the module's own. linkage: of
    a module that is linked with others. demangle: returns a function's name as written in the source, for ``func:``.
    Raises PtxError when the text has no ``.version`` or no ``.target sm_``.
    """
    linkage = linkage or Linkage(module)
    rewriting = Rewriting(linkage, probes, version=version, demangle=demangle)
    kernels = []
    skipped = []
    chosen = [entry for entry in module.entries if entry.body is not None and (names is None or entry.name in names)]
    obstacle = module_obstacle(linkage) if chosen else None
    for entry in chosen:
        if obstacle is not None:
            skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, obstacle))
            continue
        try:
            kernels.append(plan_kernel(rewriting, entry))
        except SkipError as skip:
            skipped.append(SkippedKernel(entry.name, skip.reason, skip.detail))
        except UnsupportedError as error:
            remedy = f" (what helps: {error.remedy})" if error.remedy else ""
            skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, f"{error}{remedy}"))
        except (ObstacleError, PtxError) as error:
            skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, str(error)))
    return ModulePlan(module, tuple(kernels), tuple(skipped))


class FewerProbes:
    """Twins of a planned kernel with fewer probes than the plan has, for what shows only after it;
    ``TwinsWithFewer``."""

    def __init__(self, plan: KernelPlan) -> None:
        self._plan = plan

    @cached_property
    def _probes(self) -> list[Probe]:
        """Those with a site in the kernel."""
        with_sites = {site.probe for site in self._plan.sites}
        return [probe for probe in self._plan.rewriting.probes.probes if probe.name in with_sites]

    @cached_property
    def units(self) -> tuple[ProbeUnit, ...]:
        """The probes with a site in the kernel, in units of those that can be left out together."""
        return units_of(self._probes)

    def twin(self, names: Collection[str]) -> TwinKernel | Refusal:
        """Return the twin with only those of these probes that have these names, or why there is none."""
        plan = self._plan
        try:
            return write_twin(plan_kernel(plan.rewriting.only(names), plan.needs.kernel.function))
        except (SkipError, UnsupportedError, PtxError) as error:
            return refusal_of(error)

    def with_notes(self, twin: Twin, found: Found) -> TwinKernel:
        """Return a twin with the kept probes of a search, with notes about the others."""
        earlier = *self._plan.probes_left_out, *twin.probes_left_out
        return replace(own_twin(twin), probes_left_out=(*earlier, *left_out(self._probes, self.units, found, {})))


def write_module(plan: ModulePlan) -> TwinModule:
    """Write the planned twins. The result's ``skipped``: those of the plan, then those that could not be written."""
    kernels = []
    skipped = list(plan.skipped)
    for kernel in plan.kernels:
        try:
            kernels.append(write_twin(kernel))
        except (UnsupportedError, PtxError) as error:
            # The plan has missed a reason. As it would have done, without the probes that it concerns.
            refusal = refusal_of(error)
            twin = _write_with_fewer(FewerProbes(kernel), refusal)
            if twin is None:
                skipped.append(SkippedKernel(kernel.name, refusal.reason, refusal.detail))
            else:
                kernels.append(twin)
    return TwinModule(plan.module, tuple(kernels), tuple(skipped))


def _write_with_fewer(fewer: FewerProbes, refusal: Refusal) -> TwinKernel | None:
    """Write the twin with the probes with which it can be written; None without any. refusal: why not with all."""

    def why_not(names: Collection[str]) -> Refusal | None:
        twin = fewer.twin(names)
        return twin if isinstance(twin, Refusal) else None

    found = searched(search(fewer.units, refusal), why_not)
    twin = fewer.twin(found.kept) if found.kept else refusal
    return fewer.with_notes(twin, found) if isinstance(twin, TwinKernel) else None


def probe_module(
    module: Module,
    probes: ProbeSet,
    *,
    names: Collection[str] | None = None,
    version: tuple[int, int] | None = None,
    linkage: Linkage | None = None,
    demangle: Callable[[str], str] | None = None,
) -> TwinModule:
    """Plan and write the twins of a module's kernels. Parameters and errors: as in ``plan_module``."""
    return write_module(plan_module(module, probes, names=names, version=version, linkage=linkage, demangle=demangle))
