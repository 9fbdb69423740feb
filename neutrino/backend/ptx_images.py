"""Twins (instrumented kernels) as the driver loads them: machine code, PTX, or both."""

from __future__ import annotations

import shlex

from neutrino.assemble.emit import Emit
from neutrino.backend.ptx_source import Source
from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.fatbin.ptxscan import ptx_version
from neutrino.ptx.text.module import Kind, Module


def driver_image(source: Source, module: Module, text: str, cubin: bytes | None, emit: Emit) -> bytes:
    """Return twins (instrumented kernels) as the driver loads them: as machine code, PTX or both, by emit.

    source, module: of the original kernels. text: the twins' PTX. cubin: the assembled text, None if it was not
    assembled. Text is put into a fatbin if the original was compiled with options, since only a fatbin can state them.
    """
    if emit is Emit.CODE and cubin is not None:
        return cubin
    # What was not assembled can only be loaded as text, whatever emit is.
    image = _ptx_image(module, text)
    if emit is Emit.TEXT and not source.options:
        return image
    # .target may list options after the architecture.
    entry = build_entry(
        ImageKind.PTX,
        image,
        module.target.partition(",")[0].strip(),
        version=ptx_version(text.encode("latin-1")) or (0, 0),
        options=shlex.join(source.options),
    )
    if emit is Emit.TEXT or cubin is None:
        return build_container([entry])
    return build_container([entry, build_entry(ImageKind.CUBIN, cubin, source.arch)])


def _ptx_image(module: Module, text: str) -> bytes:
    """Return the PTX of twins (instrumented kernels) as bytes that end with NUL, as the driver takes it.

    module: of the original kernels. text: the twins' PTX. The result begins with the comments at the start of the
    original: they name the compiler, which the embedded device checks.
    """
    first = module.statements[0] if module.statements else None
    comments = module.source(first) if first is not None and first.kind is Kind.BLANK else ""
    return (comments + text).encode("latin-1") + b"\0"
