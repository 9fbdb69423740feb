"""Whether a text is assembly for AMD's GPUs, as LLVM writes and reads it, and for which one: without parsing it."""

from __future__ import annotations

import re

_SEARCHED = 4096
"""The directive is one of the first of a text."""
# Lines of directives and comments, and blank ones, before the one that names the target.
_TARGET = re.compile(
    rb'(?:[ \t]*(?:[.;#/][^\n]*)?\r?\n)*[ \t]*\.amdgcn_target[ \t]+"[^"\n]*-(?:unknown)?-(?P<target>[A-Za-z][\w.:+-]*)"'
)
# The directive that begins a kernel's descriptor.
_KERNEL = re.compile(rb'^[ \t]*\.amdhsa_kernel[ \t]+(?:"([^"\n]+)"|([\w.$@]+))', re.MULTILINE)


def gcn_kernel_names(data: bytes) -> tuple[str, ...]:
    """Return the mangled names of the kernels that a text has descriptors of, in its order."""
    names = ((quoted or plain).decode("utf-8", "replace") for quoted, plain in _KERNEL.findall(data))
    return tuple(dict.fromkeys(names))


def gcn_target(data: bytes | memoryview) -> str | None:
    """Return the target id that a text is for, such as ``gfx942:sramecc+``; None if it is no such text."""
    match = _TARGET.match(data[:_SEARCHED])
    return match["target"].decode("ascii") if match else None
