"""What a program ships for one of AMD's devices: a code object, with the code of its functions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from neutrino.backend.gcn_devices import picked_image, processor_of
from neutrino.fatbin.code_object import descriptor_bytes, descriptors_of, metadata_of, open_code_object
from neutrino.fatbin.compressed_bundle import forget_decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neutrino.fatbin import Container
    from neutrino.gcn.code import Module

_PROPERTIES, _PRELOAD = 56, 58
"""Offsets of ``kernel_code_properties`` and ``kernarg_preload`` in a descriptor."""
_PRELOAD_LENGTH = 0x7F
PRELOAD_HEADER = 256
"""Bytes after which the code of a kernel with preloaded arguments begins."""
Parameters = list[tuple[int, int]]
"""Offset and size in bytes of each argument that a launch passes, without those that HIP's runtime adds."""


@dataclass(frozen=True, eq=False)
class CodeObjectSource:
    """A code object that a device runs; ``Shipped``.

    image: its index in the container, None where nothing fits. arch: its target id. data: its bytes. retargeted: always
    "": code objects have no text that could be for another architecture.
    """

    image: int | None
    arch: str
    data: bytes = field(repr=False)
    retargeted: str = ""

    @property
    def processor(self) -> str:
        """The processor, such as ``gfx942``."""
        return processor_of(self.arch)

    @cached_property
    def parameters(self) -> Mapping[str, Parameters]:
        """Offset and size in bytes of each argument of the kernels, by name. Raises FormatError for a damaged note."""
        return parameters_of(self.data, "code object")

    @cached_property
    def descriptors(self) -> Mapping[str, bytes]:
        """The descriptor of each kernel, by its name; none of a kernel whose descriptor has no symbol."""
        elf = open_code_object(self.data, "code object")
        metadata, symbols = metadata_of(elf), descriptors_of(elf)
        kernels = metadata.maps("amdhsa.kernels") if metadata is not None else ()
        found = {kernel.text(".name"): symbols.get(kernel.text(".symbol")) for kernel in kernels}
        return {name: bytes(descriptor_bytes(elf, symbol)) for name, symbol in found.items() if symbol is not None}

    @cached_property
    def properties(self) -> Mapping[str, int]:
        """``kernel_code_properties`` of each kernel, by its name."""
        return {
            name: int.from_bytes(descriptor[_PROPERTIES : _PROPERTIES + 2], "little")
            for name, descriptor in self.descriptors.items()
        }

    def begins(self, kernel: str) -> int:
        """Return where a kernel's code begins to run, in bytes from its beginning.

        Code that loads arguments stands before that of a kernel to which the hardware passes them in registers, for
        hardware that does not.
        """
        preloaded = int.from_bytes(self.descriptors[kernel][_PRELOAD : _PRELOAD + 2], "little") & _PRELOAD_LENGTH
        return PRELOAD_HEADER if preloaded else 0

    @cached_property
    def module(self) -> Module:
        """The functions, decoded. Raises FormatError, and ToolMissingError without AMD's LLVM."""
        from neutrino.fatbin.code_object_functions import code_object_functions
        from neutrino.gcn.code import decode, split_target
        from neutrino.gcn.llvm import find_llvm

        found = code_object_functions(self.data, "code object")
        processor, features = split_target(found.target or self.arch)
        return replace(decode(found.functions, processor, features, find_llvm(processor)), pointed=found.pointed)

    def forget(self) -> None:
        """Forget the decoded functions, which are decoded again if somebody asks for them."""
        self.__dict__.pop("module", None)

    def summary(self) -> dict[str, object]:
        """Return what ``source.json`` of ``--save-temps`` says of it."""
        return {"image": self.image, "arch": self.arch, "bytes": len(self.data)}


def find_code_object(container: Container, arch: str) -> CodeObjectSource:
    """Return what a device of an architecture runs of a container."""
    image = picked_image(container, arch)
    if image is None:
        return CodeObjectSource(None, arch, b"")
    data = bytes(image.data)
    # To make its twins takes seconds, and memory; the next image is soon decoded again.
    forget_decoded()
    return CodeObjectSource(image.index, image.arch, data)


def parameters_of(data: bytes | memoryview, name: str) -> dict[str, Parameters]:
    """Return the arguments of a code object's kernels, by name. name: of the file. Raises FormatError."""
    metadata = metadata_of(open_code_object(data, name))
    kernels: dict[str, Parameters] = {}
    for kernel in metadata.maps("amdhsa.kernels") if metadata is not None else ():
        kernels[kernel.text(".name")] = [
            (argument.number(".offset"), argument.number(".size"))
            for argument in kernel.maps(".args")
            if not argument.text(".value_kind").startswith("hidden_")
        ]
    return kernels


def kernel_figures(data: bytes) -> dict[str, Any]:
    """Return the properties of a code object's kernels, by name. Raises FormatError for a damaged one."""
    from neutrino.fatbin.code_object import read_code_object

    return dict(read_code_object(data, "code object").kernels)
