"""Assembles the originals and the twins of one PTX module."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neutrino.assemble.assembly import AssembledTwins, CutError, ExplicitTwins
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit
from neutrino.backend.ptx_caps import with_user_cap
from neutrino.backend.ptx_devices import LANGUAGE
from neutrino.backend.ptx_explicit_fma import unlike_originals, write_explicit
from neutrino.backend.ptx_images import driver_image
from neutrino.backend.ptx_source import Source
from neutrino.backend.sass_reader import SASS, SassReader
from neutrino.errors import FormatError, PtxError
from neutrino.ptx.instrument.twin import TwinKernel, TwinModule, own_twin
from neutrino.ptx.text.module import Module
from neutrino.sass.cubin import Cubin
from neutrino.toolchain.assembled import Assembled
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.refusal import AssemblyError
from neutrino.twins.values import AssembledTwin

_UNFUSED = ("--fmad=false",)
"""The option of ptxas with which it fuses no product with a sum."""


@dataclass(frozen=True)
class OneModule:
    """Assembles the originals and the twins (instrumented kernels) of one PTX module; an ``Assembly``.

    source: where the module comes from, with the machine code that runs. twins_of: the module with its twins. emit: the
    form of twins for the driver. bounded_stack: as in ``Assembly``. dump: for ``--save-temps``. mark: part of the file
    names there. is_part: whether these are only some of the module's kernels; then ``originals`` raises CutError if
    they are refused. max_registers: as in ``Assembly``. known: results by the SHA-256 of text and options, since
    several attempts may assemble one text.
    """

    source: Source
    twins_of: TwinModule
    assembler: Assembler
    emit: Emit = Emit.CODE
    bounded_stack: bool = True
    dump: Dump = field(default_factory=Dump)
    mark: str = ""
    is_part: bool = False
    max_registers: int | None = None
    known: dict[bytes, Assembled | AssemblyError] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """The assembler's name, with its version."""
        return self.assembler.name

    @property
    def language(self) -> str:
        """The name of the assembly language of the texts that are assembled."""
        return LANGUAGE

    @property
    def arch(self) -> str:
        """The GPU architecture to assemble for."""
        return self.source.arch

    @property
    def machine(self) -> Cubin | None:
        """The machine code of the original kernels, the one that runs."""
        return self.source.machine

    @property
    def reader(self) -> SassReader:
        """What reads and compares the machine code."""
        return SASS

    @property
    def module(self) -> Module:
        """The original PTX module, without probes."""
        return self.twins_of.module

    @property
    def can_be_explicit(self) -> bool:
        """Only as machine code: a driver that compiles the text, or the embedded device, may fuse differently."""
        return self.emit is Emit.CODE

    def of(self, twins: Sequence[AssembledTwin], mark: str, *, is_part: bool, unfused: bool = False) -> OneModule:
        """Return the assembly of some of the module's twins (instrumented kernels), as ``Assembly``."""
        source = replace(self.source, options=(*self.source.options, *_UNFUSED)) if unfused else self.source
        # The keys of known do not cover the source's options, so results with others must not be shared.
        known = {} if unfused else self.known
        twins_of = replace(self.twins_of, kernels=tuple(own_twin(twin) for twin in twins))
        return replace(self, source=source, twins_of=twins_of, mark=mark, is_part=is_part, known=known)

    def explicit(self, twins: Sequence[AssembledTwin]) -> ExplicitTwins:
        """Write the PTX of twins (instrumented kernels) with explicit FMA, as ``Assembly``."""
        own_twins = [own_twin(twin) for twin in twins]
        names = [twin.name for twin in own_twins]
        # The original text, assembled: what is fused there is found from it, so it must stand for the code that runs.
        assembled = self.originals(names)
        try:
            differing = unlike_originals(own_twins, self.machine, assembled, self.name)
            explicit = write_explicit(
                [twin for twin in own_twins if twin.name not in differing],
                text=self.originals_text(names),
                original=assembled,
                assemble=self.assemble,
                render=self.rendered,
                arch=self.arch,
            )
        except (FormatError, PtxError) as error:
            # A newer assembler may write line information, or a twin's text may have a form, that is not supported.
            # That says nothing about single twins, so all of them are refused.
            return ExplicitTwins({}, dict.fromkeys(names, str(error)))
        return replace(explicit, refused={**explicit.refused, **differing})

    def originals_text(self, names: Collection[str]) -> str:
        """Return the text that ``originals`` assembles for the named kernels."""
        # PTX for another architecture is assembled whole, so that its code refers to variables as the code that runs
        # does, with which it is compared.
        return self.module.text if self.source.retargeted else only_kernels(self.module, names)

    def originals(self, names: Collection[str]) -> Assembled:
        """Assemble the original text of the named kernels, without the module's others if that is possible.

        Raises as ``Assembler.assemble``; but CutError instead of AssemblyError if these are only a part of the module's
        kernels that are assembled in parallel.
        """
        text = self.originals_text(names)
        try:
            assembled = self.assemble(text)
        except AssemblyError as error:
            if self.is_part:
                raise CutError from error
            # Text of these kernels alone may refer to one that was left out: try the whole module. Of the whole module,
            # if that was refused (PTX for another architecture), another kernel may be the cause: try these alone.
            second_text = only_kernels(self.module, names) if self.source.retargeted else self.module.text
            if text == second_text:
                raise
            assembled = self.assemble(second_text)
        self._dump_output(f"original{self.mark}", assembled)
        return assembled

    def twins(
        self, names: Collection[str], registers: Mapping[str, int] | None = None, *, stage: str = ""
    ) -> AssembledTwins:
        """Assemble the twins (instrumented copies) of the named kernels, and return them with their image.

        registers: limits per thread, by the original kernel's name. stage: name of the files under ``--save-temps``; ""
        writes none. Raises as ``Assembler.assemble``.
        """
        text = self.text(names, registers)
        if stage:
            self.dump.write(f"{stage}{self.mark}.ptx", text.encode("latin-1"))
        assembled = self.assemble(text)
        if stage:
            self._dump_output(f"{stage}{self.mark}", assembled)
        # In the form in which the driver gets the twins, which may be the text.
        image = driver_image(self.source, self.module, text, assembled.cubin, self.emit)
        return AssembledTwins(image, assembled, self.emit)

    def text(self, names: Collection[str], registers: Mapping[str, int] | None = None) -> str:
        """Return the PTX text with the named twins (copies of kernels with probes) that ``twins`` assembles."""
        return self.twins_of.render(names, self.caps(names, registers))

    def caps(self, names: Collection[str], registers: Mapping[str, int] | None = None) -> Mapping[str, int]:
        """Return the limits on registers per thread for twins (copies with probes), as ``Assembly``."""
        return with_user_cap(self.max_registers, self.twins_of.kernels, names, registers, self.source.options)

    def rendered(self, twin: TwinKernel) -> str:
        """Return the PTX of a module with this twin (copy of a kernel with probes) only."""
        return replace(self.twins_of, kernels=(twin,)).render()

    def assemble(self, text: str, options: Sequence[str] = ()) -> Assembled:
        """Assemble a text with the module's options and further ones. Raises as ``Assembler.assemble``.

        A text that was assembled before, or refused, is not assembled again.
        """
        # The module's own options need not be in the key: they are the same for all results in known.
        key = hashlib.sha256("\0".join((*options, text)).encode("latin-1", "replace")).digest()
        result = self.known.get(key)
        if result is None:
            try:
                result = self.assembler.assemble(text, self.arch, (*self.source.options, *options))
            except AssemblyError as error:
                result = error
            self.known[key] = result
        if isinstance(result, AssemblyError):
            raise result
        return result

    def _dump_output(self, name: str, assembled: Assembled) -> None:
        """Write an assembled image and the assembler's warnings to the folder for debugging."""
        self.dump.write(f"{name}.cubin", assembled.cubin)
        self.dump.write(f"{name}.warnings.txt", "\n".join(assembled.warnings))


def only_kernels(module: Module, names: Collection[str]) -> str:
    """Return the module's text without the kernels that are not named; the same string if all of them are."""
    # position: up to where the text is copied or left out.
    pieces, position, included = [], 0, {*names}
    for entry in module.entries:
        if entry.name not in included:
            pieces.append(module.text[position : entry.statement.start])
            position = entry.statement.end
    return "".join([*pieces, module.text[position:]]) if pieces else module.text
