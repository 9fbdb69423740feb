"""Twins (instrumented copies) of the kernels of one code object for AMD's devices, appended to a copy of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neutrino.abi.reasons import Reason
from neutrino.assemble.dump import Dump
from neutrino.backend.gcn_devices import DEVICES, SUPPORTED
from neutrino.backend.gcn_source import CodeObjectSource, kernel_figures
from neutrino.backend.gcn_text import line_numbers
from neutrino.backend.gcn_values import GcnCode, GcnFunction, GcnKernel, GcnPlan, GcnTwin, Place
from neutrino.backend.manifest import MANIFEST, probed_entry, unassembled_manifest
from neutrino.backend.protocol import BackendResult
from neutrino.gcn.instrument.remembered import remembered
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.twins.cache_entry import KernelEntry
from neutrino.twins.probe_units import ProbeLeftOut, Refusal
from neutrino.twins.spool import SpooledFiles
from neutrino.twins.values import LeftOut, Site, Twin, ignore

if TYPE_CHECKING:
    from neutrino.gcn.analysis.calls import Calls
    from neutrino.gcn.code import Function
    from neutrino.gcn.snippets.opcodes import Matched

_BY_ADDRESS = "the function may be called by its address, and is not probed there"
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
        """Why no kernel of the code object can be probed, as reason and detail; None if some may be."""
        if self.source.processor not in DEVICES:
            return Reason.UNSUPPORTED, f"{self.source.processor}: kernels can be probed {SUPPORTED}"
        return None

    def plan(self, kernels: Sequence[str]) -> GcnPlan:
        """Find where the probes go in the named kernels. Raises ProbeError as ``Backend``; ToolMissingError without
        AMD's disassembler, FormatError for a damaged code object."""
        figures = kernel_figures(self.source.data)
        planned: list[GcnKernel] = []
        refused: dict[str, Refusal] = {}
        functions = {function.name: function for function in self.source.module.functions if function.is_kernel}
        for name in kernels:
            function = functions.get(name)
            if function is None:
                refused[name] = Refusal(Reason.UNSUPPORTED, "its code is not in the code object", kind="code")
            elif function.refused:
                refused[name] = Refusal(Reason.UNSUPPORTED, function.refused, kind="code")
            else:
                found = self._planned(function, figures[name])
                if isinstance(found, GcnKernel):
                    planned.append(found)
                else:
                    refused[name] = found
        reasons = {name: (refusal.reason, refusal.detail) for name, refusal in refused.items()}
        return GcnPlan(tuple(planned), reasons, {name: refusal.kind for name, refusal in refused.items()})

    @cached_property
    def _calls(self) -> Calls:
        """The calls of the code object's functions."""
        from neutrino.gcn.analysis.calls import Calls
        from neutrino.gcn.processors import PROCESSORS

        return Calls(self.source.module, PROCESSORS[self.source.processor].generation)

    @cached_property
    def _without_instruction(self) -> str:
        """Which operations that the probes name the processor has no instruction for, if it has none for any of them:
        in words; "" otherwise."""
        from neutrino.gcn.snippets.opcodes import named_on

        missing: list[str] = []
        for probe in self.probes.probes:
            found, lacking = named_on(probe.tracepoint, self.source.processor)
            if found or len(lacking) < len(probe.tracepoint.patterns):
                return ""
            missing += lacking
        return f"{self.source.processor} has no instruction for {', '.join(dict.fromkeys(missing))}" if missing else ""

    def _planned(self, kernel: Function, figures: Any) -> GcnKernel | Refusal:
        """Return where the probes go in a kernel, or the reason why it cannot be probed."""
        from neutrino.gcn.analysis.calls import UnknownCallError
        from neutrino.gcn.isa.registers import UnknownInstructionError

        try:
            reach = self._calls.reach(kernel)
        except (UnknownCallError, UnknownInstructionError) as error:
            kind = "call" if isinstance(error, UnknownCallError) else "instruction"
            return Refusal(Reason.UNSUPPORTED, str(error), kind=kind)
        kernel_probes = [probe for probe in self.probes.probes if probe.tracepoint.is_kernel]
        sites = [Site(probe.name, probe.tracepoint.text, 1, "", function=kernel.name) for probe in kernel_probes]
        functions: list[GcnFunction] = []
        line = 1
        number = itertools.count()
        for function, redirected in zip(reach.copied, reach.redirected, strict=True):
            at = self._matched(function)
            lines = line_numbers(function, line)
            for instruction in function.instructions if at else ():
                if instruction.offset in at:
                    site = next(number)
                    sites += [
                        Site(
                            probe.name, probe.tracepoint.text, lines[instruction.offset], instruction.text, site,
                            function=function.name,
                        )
                        for probe in at[instruction.offset]
                    ]  # fmt: skip
            # The size leads to the line behind the last one.
            count = lines[len(function.code)] - line
            functions.append(GcnFunction(function, line, count, at, redirected))
            line += count
        left_out = [row for function in reach.originals for row in self._left_out(function, kernel_probes)]
        if not sites:
            if left_out:
                why = f"but in functions that are left out: {left_out[0].reason}"
                return Refusal(Reason.NO_SITE, why, kind="site")
            return Refusal(Reason.NO_SITE, self._without_instruction, kind="site")
        places = tuple(Place(*place) for place in self.source.parameters[kernel.name])
        return GcnKernel(
            kernel.name, self.source, tuple(functions), reach.named, sites, self.probes, figures, places, left_out,
            self.probes_left_out,
        )  # fmt: skip

    def _matched(self, function: Function) -> dict[int, tuple[Probe, ...]]:
        """Return the probes at each instruction of a function, by its offset."""
        from neutrino.gcn.analysis.flow_graph import FlowGraph
        from neutrino.gcn.analysis.scratch_buffers import scratch_accesses
        from neutrino.gcn.processors import PROCESSORS
        from neutrino.gcn.snippets.opcodes import Matching, parameter_loads

        probes = [
            probe for probe in self.probes.probes
            if any(pattern.has_operands for pattern in probe.tracepoint.patterns)
        ]  # fmt: skip
        if not probes:
            return {}
        name, processor = function.name, PROCESSORS[self.source.processor]
        graph = FlowGraph(function)
        properties = self.source.properties[name] if function.is_kernel else 1
        parameters = parameter_loads(graph, properties) if function.is_kernel else frozenset()
        scratch = scratch_accesses(graph, processor.name, processor.generation, properties)
        begin = self.source.begins(name) if function.is_kernel else 0
        matching = Matching(function, probes, parameters, scratch, _matched_by(self.probes))
        return {
            instruction.offset: found for instruction in function.instructions
            if instruction.offset >= begin and (found := matching.probes_at(instruction))
        }  # fmt: skip

    def _left_out(self, function: Function, kernel_probes: Sequence[Probe]) -> Iterator[LeftOut]:
        """Yield what is not probed in a function that runs as it is. kernel_probes: those at kernels' ends."""
        from neutrino.gcn.code import is_end

        places = line_numbers(function)
        at = self._matched(function)
        ends = [probe for probe in kernel_probes if probe.after is not None]
        for instruction in function.instructions:
            probes = at.get(instruction.offset, ())
            for probe in (*probes, *(ends if is_end(instruction) else ())):
                yield LeftOut(
                    probe.name, probe.tracepoint.text, places[instruction.offset], instruction.text, "",
                    _BY_ADDRESS, function.name,
                )  # fmt: skip

    def write(self, plan: GcnPlan) -> GcnCode:
        """Write the twins of the planned kernels, and the code object with them."""
        from neutrino.backend.gcn_writing import write_twins

        code = write_twins(self.source, plan.kernels)
        # Decoded code takes fifty times as much memory as its bytes.
        self.source.forget()
        return code

    def assemble(self, code: GcnCode) -> None:
        """Do nothing: snippets were assembled when they were written, and original instructions keep their bytes."""
        self.dump.write("probed.hsaco", code.image)
        for twin in code.twins:
            self.dump.write(f"{twin.name}.s", twin.probed.encode())

    def entries(self, code: GcnCode, outcomes: None) -> BackendResult:
        """Return the kernels' cache entries, and the code object with the twins."""

        def manifest(twin: GcnTwin) -> dict[str, object]:
            """Return the manifest of one twin (instrumented copy of a kernel): what readers of its records must know.
            """
            before, after = twin.registers
            return unassembled_manifest(twin, self.source.arch, FORM) | {
                "registers": {"original": before, "twin": after, "capped": None}, "assembler": code.llvm,
            }  # fmt: skip

        entries = {name: KernelEntry(name, *refusal) for name, refusal in code.refused.items()}
        for twin in code.twins:
            entry = probed_entry(twin, manifest(twin), image=0)
            # Together the manifests of a thousand kernels would fill the memory.
            kept = {MANIFEST: code.spool.put(entry.files[MANIFEST]), **twin.texts}
            entries[twin.name] = replace(entry, files=SpooledFiles(kept))
        return BackendResult(entries, (code.image,) if code.twins else ())


@remembered
def _matched_by(probes: ProbeSet) -> Matched:
    """Return what is known of which instructions the probes match: code objects have much in common."""
    from neutrino.gcn.snippets.opcodes import Matched

    return Matched()
