"""From a module and a probe set to the twins of its kernels: one after the other, each by itself.

    text ─ parse ─► module ─ Linkage.needs ─► what a kernel needs ─ write_twin ─► its twin, or why it gets none
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from neutrino.abi.reasons import Reason
from neutrino.errors import PtxError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.analysis.linkage import Linkage, ObstacleError
from neutrino.ptx.instrument.kernel_rewriter import write_twin
from neutrino.ptx.instrument.registers import UnsupportedError
from neutrino.ptx.instrument.rewriting import Rewriting, SkipError, module_obstacle
from neutrino.ptx.instrument.twin import SkippedKernel, TwinModule
from neutrino.ptx.text.module import Module


def probe_module(
    module: Module,
    probes: ProbeSet,
    *,
    names: Collection[str] | None = None,
    version: tuple[int, int] | None = None,
    linkage: Linkage | None = None,
    demangle: Callable[[str], str] | None = None,
) -> TwinModule:
    """Write the twins of a module's kernels.

    names: only these kernels, the others are left out without a word. version: the highest ``.version`` that
    may be raised to where the probe block needs parameter space; None: the module's own. linkage: of a module that
    is linked with others. demangle: gives a function's name as people write it, for ``func:``. Raises PtxError when
    the text has no ``.version`` or no ``.target sm_``.
    """
    linkage = linkage or Linkage(module)
    rewriting = Rewriting(linkage, probes, version=version, demangle=demangle)
    kernels = []
    skipped = []
    chosen = [
        entry for entry in module.entries if entry.body is not None and (names is None or entry.name in names)
    ]
    obstacle = module_obstacle(linkage) if chosen else None
    for entry in chosen:
        if obstacle is not None:
            skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, obstacle))
            continue
        try:
            kernels.append(write_twin(rewriting, linkage.needs(entry)))
        except SkipError as skip:
            skipped.append(SkippedKernel(entry.name, skip.reason, skip.detail))
        except (ObstacleError, UnsupportedError, PtxError) as error:
            skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, str(error)))
    return TwinModule(module, tuple(kernels), tuple(skipped))
