"""In which form the driver is handed twins."""

from __future__ import annotations

import shlex
from enum import Enum

from neutrino.device.source import Source
from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.fatbin.ptxscan import ptx_version
from neutrino.ptx.text.module import Kind, Module


class Emit(Enum):
    """In which form twins are handed to the driver."""

    SASS = "sass"
    """Machine code."""
    PTX = "ptx"
    """Text, which the driver compiles for whatever device it has."""
    BOTH = "both"
    """A container of both, of which the driver picks."""


def driver_image(source: Source, module: Module, text: str, cubin: bytes | None, emit: Emit) -> bytes:
    """Twins as the driver takes them. source, module: their originals'. text: theirs. cubin: of the text, None where
    nothing has assembled it.

    A container where there is more to say than the text: the options that the original was assembled with.
    """
    if emit is Emit.SASS and cubin is not None:
        return cubin
    image = _ptx_image(module, text)
    if emit is Emit.PTX and not source.options:
        return image
    entry = build_entry(
        ImageKind.PTX,
        image,
        module.target.partition(",")[0].strip(),
        version=ptx_version(text.encode("latin-1")) or (0, 0),
        options=shlex.join(source.options),
    )
    if emit is Emit.PTX or cubin is None:
        return build_container([entry])
    return build_container([entry, build_entry(ImageKind.CUBIN, cubin, source.arch)])


def _ptx_image(module: Module, text: str) -> bytes:
    """Twins' text as the driver takes it, ended by NUL.

    Under the comments of the original's head: they say who made it, and the embedded device does not run everyone's.
    """
    first = module.statements[0] if module.statements else None
    head = module.source(first) if first is not None and first.kind is Kind.BLANK else ""
    return (head + text).encode("latin-1") + b"\0"
