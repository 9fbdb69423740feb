"""Twins (instrumented copies) of the kernels of one code object for AMD's devices, appended to a copy of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neutrino.abi.reasons import Reason
from neutrino.assemble.dump import Dump
from neutrino.backend.gcn_devices import DEVICES, SUPPORTED
from neutrino.backend.gcn_source import CodeObjectSource, kernel_figures
from neutrino.backend.gcn_text import function_text
from neutrino.backend.gcn_values import GcnCode, GcnKernel, GcnPlan, GcnTwin, Place
from neutrino.backend.kernel_entries import unassembled_entries
from neutrino.backend.manifest import unassembled_manifest
from neutrino.backend.protocol import BackendResult
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.twins.cache_entry import KernelEntry
from neutrino.twins.probe_units import ProbeLeftOut
from neutrino.twins.values import Site, Twin, ignore

if TYPE_CHECKING:
    from neutrino.gcn.code import Function

FORM = "code"
"""How manifests call the form of twins."""


@dataclass(frozen=True)
class GcnTwins:
    """The ``Backend`` for one code object.

    source: what runs. probes: those that the target can do. probes_left_out: the others. notice: called with each long
    twin. dump: for ``--save-temps``.
    """

    source: CodeObjectSource
    probes: ProbeSet
    probes_left_out: tuple[ProbeLeftOut, ...] = ()
    notice: Callable[[Twin], None] = ignore
    dump: Dump = field(default_factory=Dump)
    target: str = "gcn"

    @property
    def kernels(self) -> Sequence[str]:
        """The names of all kernels of the code object."""
        return list(self.source.parameters) if self.source.data else []

    @property
    def refusal(self) -> tuple[Reason, str] | None:
        """Why no kernel can be probed; None if some may be."""
        if self.source.processor not in DEVICES:
            return Reason.UNSUPPORTED, f"{self.source.processor}: kernels can be probed {SUPPORTED}"
        return None

    def plan(self, kernels: Sequence[str]) -> GcnPlan:
        """Find where the probes go in the named kernels. Raises ProbeError as ``Backend``; ToolMissingError without
        AMD's disassembler, FormatError for a damaged code object."""
        figures = kernel_figures(self.source.data)
        planned: list[GcnKernel] = []
        refused: dict[str, tuple[Reason, str]] = {}
        functions = {function.name: function for function in self.source.module.functions if function.is_kernel}
        for name in kernels:
            function = functions.get(name)
            if function is None:
                refused[name] = Reason.UNSUPPORTED, "its code is not in the code object"
            elif function.refused:
                refused[name] = Reason.UNSUPPORTED, function.refused
            else:
                found = self._planned(function, figures[name])
                if isinstance(found, GcnKernel):
                    planned.append(found)
                else:
                    refused[name] = found
        return GcnPlan(tuple(planned), refused)

    def _planned(self, function: Function, figures: Any) -> GcnKernel | tuple[Reason, str]:
        """Return where the probes go in a kernel, or why it has none."""
        from neutrino.gcn.snippets.opcodes import matches, parameter_loads

        text = function_text(function)
        parameters = parameter_loads(function, self.source.properties[function.name])
        sites: list[Site] = []
        at: dict[int, tuple[Probe, ...]] = {}
        kernel_probes = [probe for probe in self.probes.probes if probe.tracepoint.is_kernel]
        sites += [Site(probe.name, probe.tracepoint.text, 1, "", function=function.name) for probe in kernel_probes]
        others = [
            probe for probe in self.probes.probes
            if any(pattern.has_operands for pattern in probe.tracepoint.patterns)
        ]  # fmt: skip
        begin = self.source.begins(function.name)
        for instruction in function.instructions:
            if instruction.offset < begin:
                continue
            is_parameter = instruction.offset in parameters
            found = tuple(
                probe for probe in others if matches(probe.tracepoint, instruction, is_parameter=is_parameter)
            )
            if found:
                number = len(at)
                at[instruction.offset] = found
                sites += [
                    Site(
                        probe.name, probe.tracepoint.text, text.places[instruction.offset], instruction.text, number,
                        function=function.name,
                    )
                    for probe in found
                ]  # fmt: skip
        if not sites:
            return Reason.NO_SITE, ""
        places = tuple(Place(*place) for place in self.source.parameters[function.name])
        return GcnKernel(
            function.name, self.source, function, text, sites, at, self.probes, figures, places,
            probes_left_out=self.probes_left_out,
        )  # fmt: skip

    def write(self, plan: GcnPlan) -> GcnCode:
        """Write the twins of the planned kernels, and the code object with them."""
        from neutrino.backend.gcn_writing import write_twins

        return write_twins(self.source, plan.kernels)

    def assemble(self, code: GcnCode) -> None:
        """Do nothing: snippets were assembled when they were written, and original instructions keep their bytes."""
        self.dump.write("probed.hsaco", code.image)
        for twin in code.twins:
            self.dump.write(f"{twin.name}.s", twin.probed.encode())

    def entries(self, code: GcnCode, outcomes: None) -> BackendResult:
        """Return the kernels' cache entries, and the code object with the twins."""

        def manifest(twin: GcnTwin) -> dict[str, object]:
            """Return the manifest of one twin."""
            before, after = twin.registers
            return unassembled_manifest(twin, self.source.arch, FORM) | {
                "registers": {"original": before, "twin": after, "capped": None}, "assembler": code.llvm,
            }  # fmt: skip

        result = unassembled_entries([code.twins] if code.twins else [], manifest, lambda _: code.image)
        refused = {name: KernelEntry(name, *refusal) for name, refusal in code.refused.items()}
        return BackendResult({**result.entries, **refused}, result.images)
