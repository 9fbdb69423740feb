"""The originals of device-linked code and their twins, assembled unit by unit and linked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from neutrino.assemble.assembly import AssembledTwins, ExplicitTwins
from neutrino.assemble.dump import Dump
from neutrino.backend.ptx_caps import with_user_cap
from neutrino.backend.ptx_devices import LANGUAGE
from neutrino.backend.ptx_linked_source import LinkedSource
from neutrino.backend.ptx_module import only_kernels
from neutrino.backend.sass_reader import SASS
from neutrino.ptx.instrument.programs import TwinProgram
from neutrino.ptx.instrument.twin import own_twin
from neutrino.sass.cubin import Cubin
from neutrino.toolchain.assembled import Assembled
from neutrino.toolchain.nvlink import Linker
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.refusal import AssemblyError
from neutrino.twins.values import AssembledTwin


class LinkedUnits:
    """Assembles originals and twins of device-linked code by translation units; an ``Assembly``.

    source: the PTX of the units. machine: the linked machine code that runs. twins: the units with their twins
    (instrumented kernels). linker: puts the twins' units together. dump: for ``--save-temps``; mark: part of the file
    names there. name, language, arch, reader, bounded_stack, max_registers: as in
    ``Assembly``.
    """

    def __init__(
        self,
        source: LinkedSource,
        machine: Cubin,
        twins: TwinProgram,
        assembler: Assembler,
        linker: Linker,
        dump: Dump,
        mark: str = "",
        max_registers: int | None = None,
    ) -> None:
        """Set up the assembler of a program's linked translation units. machine: the linked machine code that runs;
        twins: the units with instrumented kernels. Others: see the class."""
        self._source = source
        self._twins = twins
        self._assembler = assembler
        self._linker = linker
        self._dump = dump
        self._mark = mark
        self.name = f"{assembler.name} with {linker.name}"
        self.language = LANGUAGE
        self.arch = source.arch
        self.machine = machine
        self.reader = SASS
        self.bounded_stack = True
        self.max_registers = max_registers

    @property
    def mark(self) -> str:
        """The part of the file names under ``--save-temps`` that tells these units from others."""
        return self._mark

    @property
    def is_part(self) -> bool:
        """Whether only some of the kernels are assembled. Never: linked units are assembled whole."""
        return False

    @property
    def can_be_explicit(self) -> bool:
        """Never: only the text of a single module is written so."""
        return False

    def of(self, twins: Sequence[AssembledTwin], mark: str, *, is_part: bool, unfused: bool = False) -> LinkedUnits:
        """Return the assembly of other twins (instrumented kernels) of some of these kernels, as ``Assembly``.

        Never in parts, nor unfused: the options of the units are stored with them.
        """
        if is_part or unfused:
            raise ValueError("linked units are assembled whole, and with their own options")
        other = {twin.name: own_twin(twin) for twin in twins}
        modules = tuple(
            replace(module, kernels=tuple(other[kernel.name] for kernel in module.kernels if kernel.name in other))
            for module in self._twins.modules
        )
        program = replace(self._twins, modules=modules)
        return LinkedUnits(
            self._source, self.machine, program, self._assembler, self._linker, self._dump, mark, self.max_registers
        )

    def explicit(self, twins: Sequence[AssembledTwin]) -> ExplicitTwins:
        """Refuse to write fused operations explicitly for all twins, since ``can_be_explicit`` is False here."""
        return ExplicitTwins({}, dict.fromkeys((twin.name for twin in twins), "it is device-linked code"))

    def caps(self, names: Collection[str], registers: Mapping[str, int] | None = None) -> Mapping[str, int]:
        """Return the limits on registers per thread for twins (copies with probes), as ``Assembly``."""
        options = [option for unit in self._source.units for option in unit.options]
        return with_user_cap(self.max_registers, self._twins.kernels, names, registers, options)

    def originals(self, names: Collection[str]) -> Assembled:
        """Assemble the original text of the translation units that have the named kernels.

        This is only for what ptxas reports of them, so nothing is linked and the result has no cubin. Raises as
        ``Assembler.assemble``.
        """
        parts = []
        for number, twins in enumerate(self._twins.modules):
            # The named kernels of this unit.
            module, unit_names = twins.module, {kernel.name for kernel in twins.kernels} & {*names}
            if not unit_names:
                continue
            text = only_kernels(module, unit_names)
            self._dump.write(f"original{self._mark}.{number}.ptx", text.encode("latin-1"))
            try:
                part = self._assemble(number, text)
            except AssemblyError:
                # only_kernels has left nothing out, so that the whole module is what was refused.
                if text is module.text:
                    raise
                # The text may refer to a kernel that was left out.
                part = self._assemble(number, module.text)
            parts.append(part)
        return _merge(b"", parts)

    def twins(
        self, names: Collection[str], registers: Mapping[str, int] | None = None, *, stage: str = ""
    ) -> AssembledTwins:
        """Assemble the translation units with the twins (instrumented copies) of the named kernels, and link them.

        registers: limits per thread, by the original kernel's name. stage: name of the files under ``--save-temps``; ""
        writes none. Raises as ``Assembler.assemble`` and ``Linker.link``.
        """
        # By the number of the unit.
        texts = self._twins.render(names, self.caps(names, registers))
        if stage:
            for number, text in texts.items():
                self._dump.write(f"{stage}{self._mark}.{number}.ptx", text.encode("latin-1"))
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(self._assemble, texts.keys(), texts.values()))
        linked = _merge(self._linker.link([part.cubin for part in parts], self.arch), parts)
        if stage:
            self._dump.write(f"{stage}{self._mark}.cubin", linked.cubin)
            self._dump.write(f"{stage}{self._mark}.warnings.txt", "\n".join(linked.warnings))
        return AssembledTwins(linked.cubin, linked)

    def _assemble(self, number: int, text: str) -> Assembled:
        """Assemble a text in place of a unit's, to an object file for linking, with the unit's own options."""
        # -c: relocatable code, which the linker takes.
        return self._assembler.assemble(text, self.arch, ("-c", *self._source.units[number].options))


def _merge(cubin: bytes, parts: Sequence[Assembled]) -> Assembled:
    """Return a cubin with what ptxas reports of all units that it was linked from."""
    resources = {name: report for part in parts for name, report in part.resources.items()}
    return Assembled(cubin, resources, tuple(warning for part in parts for warning in part.warnings))
