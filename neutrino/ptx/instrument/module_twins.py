"""From a module and a probe set to the twins of its kernels: one after the other, each by itself.

    text ─ parse ─► module ─ Linkage.needs ─► what a kernel needs ─ plan_twin ─► its plan ─ write_twin ─► its twin

What gets no twin is left out with the reason, by the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from neutrino.abi.reasons import Reason
from neutrino.errors import PtxError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.analysis.linkage import Linkage, ObstacleError
from neutrino.ptx.instrument.kernel_rewriter import write_twin
from neutrino.ptx.instrument.plan import ModulePlan, plan_twin
from neutrino.ptx.instrument.registers import UnsupportedError
from neutrino.ptx.instrument.rewriting import Rewriting, SkipError, module_obstacle
from neutrino.ptx.instrument.twin import SkippedKernel, TwinModule
from neutrino.ptx.text.module import Module


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
            kernels.append(plan_twin(rewriting, linkage.needs(entry)))
        except SkipError as skip:
            skipped.append(SkippedKernel(entry.name, skip.reason, skip.detail))
        except (ObstacleError, UnsupportedError, PtxError) as error:
            skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, str(error)))
    return ModulePlan(module, tuple(kernels), tuple(skipped))


def write_module(plan: ModulePlan) -> TwinModule:
    """Write the planned twins. The result's ``skipped``: those of the plan, then those that could not be written."""
    kernels = []
    skipped = list(plan.skipped)
    for kernel in plan.kernels:
        try:
            kernels.append(write_twin(kernel))
        except (UnsupportedError, PtxError) as error:
            skipped.append(SkippedKernel(kernel.name, Reason.UNSUPPORTED, str(error)))
    return TwinModule(plan.module, tuple(kernels), tuple(skipped))


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
