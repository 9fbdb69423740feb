"""Containers of device code: read them out of files and memory, write containers back.

``read_file`` and ``read_container`` give ``Container``s of ``Image``s; ``write_container`` gives back the
same bytes. A name's module is imported when the name is first used: a listing needs few of them, and starts sooner.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neutrino.fatbin.bundle import build_bundle
    from neutrino.fatbin.code_object import CodeObject, CodeObjectKernel, read_code_object
    from neutrino.fatbin.compression import Compression
    from neutrino.fatbin.container import Container, build_container, read_container, write_container
    from neutrino.fatbin.entry import build_entry
    from neutrino.fatbin.host import read_file
    from neutrino.fatbin.image import Image, ImageKind
    from neutrino.fatbin.kernels import kernel_names

_MODULES = {
    "CodeObject": "code_object",
    "CodeObjectKernel": "code_object",
    "Compression": "compression",
    "Container": "container",
    "Image": "image",
    "ImageKind": "image",
    "build_bundle": "bundle",
    "build_container": "container",
    "build_entry": "entry",
    "kernel_names": "kernels",
    "read_code_object": "code_object",
    "read_container": "container",
    "read_file": "host",
    "write_container": "container",
}

__all__ = [
    "CodeObject",
    "CodeObjectKernel",
    "Compression",
    "Container",
    "Image",
    "ImageKind",
    "build_bundle",
    "build_container",
    "build_entry",
    "kernel_names",
    "read_code_object",
    "read_container",
    "read_file",
    "write_container",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used. Raises AttributeError for any other name."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    # Python only calls this function for names that the module does not have.
    globals()[name] = value
    return value
