"""The originals of one module and their twins, as an assembler of PTX makes machine code of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from neutrino.assemble.assembly import AssembledTwins, CutError
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit, driver_image
from neutrino.device.source import Source
from neutrino.ptx.instrument.twin import TwinKernel, TwinModule
from neutrino.ptx.text.module import Module
from neutrino.sass.cubin import Cubin
from neutrino.toolchain.ptxas import Assembled, Assembler
from neutrino.toolchain.refusal import AssemblyError


@dataclass(frozen=True)
class OneModule:
    """The originals of one module, and twins that were made of it: an ``Assembly``.

    source: where the module is from. twins_of: the module with its twins. bounded_stack: as of ``Assembly``. mark: in
    the names of what is dumped. is_part: there are several, with other kernels; then ``originals`` raises CutError when
    they are refused. options: for the assembler, beside the source's. known: what texts gave before, by their SHA-256:
    of a small module several attempts assemble the same.
    """

    source: Source
    twins_of: TwinModule
    assembler: Assembler
    emit: Emit = Emit.SASS
    bounded_stack: bool = True
    dump: Dump = field(default_factory=Dump)
    mark: str = ""
    is_part: bool = False
    known: dict[bytes, Assembled | AssemblyError] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Of the assembler."""
        return self.assembler.name

    @property
    def arch(self) -> str:
        """To assemble for."""
        return self.source.arch

    @property
    def machine(self) -> Cubin | None:
        """The originals as they run."""
        return self.source.machine

    @property
    def module(self) -> Module:
        """The originals' text."""
        return self.twins_of.module

    def of(self, twins: Sequence[TwinKernel], mark: str, *, is_part: bool, options: Sequence[str]) -> OneModule:
        """The same, of these twins alone. options: for the assembler, beside those that it has already."""
        source = replace(self.source, options=(*self.source.options, *options)) if options else self.source
        known = {} if options else self.known
        twins_of = replace(self.twins_of, kernels=tuple(twins))
        return replace(self, source=source, twins_of=twins_of, mark=mark, is_part=is_part, known=known)

    def originals_text(self, names: Collection[str]) -> str:
        """What ``originals`` assembles."""
        # Of a variant all is assembled, so that the code refers to variables as that of the whole does.
        return self.module.text if self.source.retargeted else only_kernels(self.module, names)

    def originals(self, names: Collection[str]) -> Assembled:
        """As ``Assembly`` says."""
        text = self.originals_text(names)
        try:
            assembled = self.assemble(text)
        except AssemblyError as error:
            if self.is_part:
                raise CutError from error
            # A kernel that was cut out may be named by what is left; or one that was not is all that is refused.
            other = only_kernels(self.module, names) if self.source.retargeted else self.module.text
            if text == other:
                raise
            assembled = self.assemble(other)
        self._keep(f"original{self.mark}", assembled)
        return assembled

    def twins(
        self, names: Collection[str], registers: Mapping[str, int] | None = None, *, stage: str = ""
    ) -> AssembledTwins:
        """As ``Assembly`` says."""
        text = self.text(names, registers)
        if stage:
            self.dump.write(f"{stage}{self.mark}.ptx", text.encode("latin-1"))
        assembled = self.assemble(text)
        if stage:
            self._keep(f"{stage}{self.mark}", assembled)
        image = driver_image(self.source, self.module, text, assembled.cubin, self.emit)
        return AssembledTwins(image, assembled, self.emit)

    def text(self, names: Collection[str], registers: Mapping[str, int] | None = None) -> str:
        """What ``twins`` assembles."""
        return self.twins_of.render(names, registers)

    def rendered(self, twin: TwinKernel) -> str:
        """A module of one twin, whichever that is."""
        return replace(self.twins_of, kernels=(twin,)).render()

    def assemble(self, text: str, options: Sequence[str] = ()) -> Assembled:
        """Assemble a text as the module's, with further options. Raises as ``Assembler.assemble``."""
        key = hashlib.sha256("\0".join((*options, text)).encode("latin-1", "replace")).digest()
        made = self.known.get(key)
        if made is None:
            try:
                made = self.assembler.assemble(text, self.arch, (*self.source.options, *options))
            except AssemblyError as error:
                made = error
            self.known[key] = made
        if isinstance(made, AssemblyError):
            raise made
        return made

    def _keep(self, name: str, assembled: Assembled) -> None:
        self.dump.write(f"{name}.cubin", assembled.cubin)
        self.dump.write(f"{name}.warnings.txt", "\n".join(assembled.warnings))


def only_kernels(module: Module, names: Collection[str]) -> str:
    """The module's text without other kernels than these."""
    pieces, position, kept = [], 0, {*names}
    for entry in module.entries:
        if entry.name not in kept:
            pieces.append(module.text[position : entry.statement.start])
            position = entry.statement.end
    return "".join([*pieces, module.text[position:]]) if pieces else module.text
