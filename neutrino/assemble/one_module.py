"""Assembles the originals and the twins of one PTX module."""

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
    """The originals and the twins of one module: an ``Assembly``.

    source: where the module is from. twins_of: the module with its twins. bounded_stack: as in ``Assembly``. mark: part
    of the names in dumps. is_part: these are some of the module's kernels; then ``originals`` raises CutError if they
    are refused. known: results by the SHA-256 of the text, since several attempts may assemble the same text.
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
        """The assembler's."""
        return self.assembler.name

    @property
    def arch(self) -> str:
        """The target architecture."""
        return self.source.arch

    @property
    def machine(self) -> Cubin | None:
        """The originals' machine code that runs."""
        return self.source.machine

    @property
    def module(self) -> Module:
        """The originals' text."""
        return self.twins_of.module

    def of(self, twins: Sequence[TwinKernel], mark: str, *, is_part: bool, options: Sequence[str]) -> OneModule:
        """The same with these twins only. options: added to the assembler's."""
        source = replace(self.source, options=(*self.source.options, *options)) if options else self.source
        known = {} if options else self.known
        twins_of = replace(self.twins_of, kernels=tuple(twins))
        return replace(self, source=source, twins_of=twins_of, mark=mark, is_part=is_part, known=known)

    def originals_text(self, names: Collection[str]) -> str:
        """What ``originals`` assembles."""
        # A variant is assembled whole, so that its code refers to variables as the code that runs does.
        return self.module.text if self.source.retargeted else only_kernels(self.module, names)

    def originals(self, names: Collection[str]) -> Assembled:
        """As ``Assembly`` says."""
        text = self.originals_text(names)
        try:
            assembled = self.assemble(text)
        except AssemblyError as error:
            if self.is_part:
                raise CutError from error
            # The rest may refer to a kernel that was left out; or only another kernel is refused.
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
        """The text of a module with one twin."""
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
    """The module's text with these kernels only."""
    pieces, position, kept = [], 0, {*names}
    for entry in module.entries:
        if entry.name not in kept:
            pieces.append(module.text[position : entry.statement.start])
            position = entry.statement.end
    return "".join([*pieces, module.text[position:]]) if pieces else module.text
