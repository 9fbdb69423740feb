"""The originals of one module and their twins, as an assembler of PTX makes machine code of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from neutrino.assemble.assembly import AssembledTwins
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit, driver_image
from neutrino.assemble.rewritten import Rewritten
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.text.module import Module
from neutrino.toolchain.ptxas import Assembled, Assembler
from neutrino.toolchain.refusal import AssemblyError


class CutError(Exception):
    """The originals of a part are refused without the module's other kernels."""


class OneModule:
    """The originals of one module, and the twins that were made of it: an ``Assembly``.

    mark: in the names of what is dumped. is_part: there are several, with other kernels; then ``originals`` raises
    CutError when they are refused.
    """

    def __init__(
        self, rewritten: Rewritten, assembler: Assembler, emit: Emit, dump: Dump, mark: str, is_part: bool
    ) -> None:
        self._rewritten = rewritten
        self._source = rewritten.source
        self._module = rewritten.module
        self._twins = rewritten.twins
        self._assembler = assembler
        self._emit = emit
        self._dump = dump
        self._is_part = is_part
        self._mark = mark
        self.name = assembler.name
        self.arch = rewritten.source.arch
        self.machine = rewritten.source.machine
        self.bounded_stack = rewritten.bounded_stack

    @property
    def can_pin(self) -> bool:
        """The twins are used as machine code: what else makes code of their text, or runs it, may not fuse at all."""
        return self._emit is Emit.SASS

    def pinned(self, twins: tuple[TwinKernel, ...]) -> OneModule:
        """The same, of these twins."""
        rewritten = replace(self._rewritten, twins=replace(self._twins, kernels=twins))
        return OneModule(rewritten, self._assembler, self._emit, self._dump, f"{self._mark}-pinned", self._is_part)

    def originals_text(self, names: Collection[str]) -> str:
        """What ``originals`` assembles."""
        # Of a variant all is assembled, so that the code refers to variables as that of the whole does.
        return self._module.text if self._source.retargeted else only_kernels(self._module, names)

    def originals(self, names: Collection[str]) -> Assembled:
        """As ``Assembly`` says."""
        text = self.originals_text(names)
        try:
            assembled = self.assemble(text)
        except AssemblyError as error:
            if self._is_part:
                raise CutError from error
            # A kernel that was cut out may be named by what is left; or one that was not is all that is refused.
            other = only_kernels(self._module, names) if self._source.retargeted else self._module.text
            if text == other:
                raise
            assembled = self.assemble(other)
        self._dump.write(f"original{self._mark}.cubin", assembled.cubin)
        self._dump.write(f"original{self._mark}.warnings.txt", "\n".join(assembled.warnings))
        return assembled

    def twins(
        self, names: Collection[str], registers: Mapping[str, int] | None = None, *, stage: str = ""
    ) -> AssembledTwins:
        """As ``Assembly`` says."""
        text = self.text(names, registers)
        if stage:
            self._dump.write(f"{stage}{self._mark}.ptx", text.encode("latin-1"))
        assembled = self.assemble(text)
        if stage:
            self._dump.write(f"{stage}{self._mark}.cubin", assembled.cubin)
            self._dump.write(f"{stage}{self._mark}.warnings.txt", "\n".join(assembled.warnings))
        image = driver_image(self._source, self._module, text, assembled.cubin, self._emit)
        return AssembledTwins(image, assembled, self._emit)

    def text(self, names: Collection[str], registers: Mapping[str, int] | None = None) -> str:
        """What ``twins`` assembles."""
        return self._twins.render(names, registers)

    def assemble(self, text: str, options: Sequence[str] = ()) -> Assembled:
        """Assemble a text as the module's, with further options. Raises as ``Assembler.assemble``."""
        return self._assembler.assemble(text, self._source.arch, (*self._source.options, *options))


def only_kernels(module: Module, names: Collection[str]) -> str:
    """The module's text without other kernels than these."""
    pieces, position = [], 0
    for entry in module.entries:
        if entry.name not in names:
            pieces.append(module.text[position : entry.statement.start])
            position = entry.statement.end
    return "".join([*pieces, module.text[position:]]) if pieces else module.text
