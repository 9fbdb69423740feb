"""A source's text with twins of the selected kernels, none of them assembled yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neutrino.abi.reasons import Reason
from neutrino.cache.entry import KernelEntry
from neutrino.device.source import Source
from neutrino.fatbin import demangle
from neutrino.fatbin.ptxscan import ptx_version, with_ptx_version
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.module_twins import probe_module
from neutrino.ptx.instrument.twin import TwinModule
from neutrino.ptx.text.module import Module, parse


@dataclass(frozen=True)
class Rewritten:
    """A module with its twins, none of them assembled yet, and the entries of the selected kernels that got none.

    bounded_stack: as for ``Assembly``.
    """

    source: Source
    probes: ProbeSet
    module: Module
    twins: TwinModule
    entries: Mapping[str, KernelEntry]
    bounded_stack: bool = True


def rewrite(
    source: Source,
    text: str,
    probes: ProbeSet,
    selected: Sequence[str],
    version: tuple[int, int],
    *,
    bounded_stack: bool,
) -> Rewritten:
    """Twins of the selected kernels. text: the source's. version: the highest ``.version`` that twins may have.

    Raises PtxError for text that is no PTX, ProbeError when a probe asks for what an instruction has not.
    """
    if source.retargeted:
        # The text may be a later toolkit's than the machine code; the assembler says whether that matters.
        text = _with_version(text, version)
    module = parse(text)
    lacking = set(selected) - {entry.name for entry in module.entries}
    wanted = [name for name in selected if name not in lacking]
    twins = probe_module(module, probes, names=wanted, version=version, demangle=demangle)
    entries = {
        name: KernelEntry(name, Reason.NO_PTX, f"the PTX in the {source.found} lacks this kernel") for name in lacking
    }
    entries |= {skip.name: KernelEntry(skip.name, skip.reason, skip.detail) for skip in twins.skipped}
    return Rewritten(source, probes, module, twins, entries, bounded_stack)


def _with_version(text: str, highest: tuple[int, int]) -> str:
    data = text.encode("latin-1")
    own = ptx_version(data)
    return text if own is None or own <= highest else with_ptx_version(data, highest).decode("latin-1")
