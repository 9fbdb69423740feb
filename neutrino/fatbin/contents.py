"""The contents of an image, decoded once: its text or code, its kernels, and their resource usage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neutrino.fatbin.image import Image, ImageKind
from neutrino.fatbin.kernels import kernel_names

if TYPE_CHECKING:
    from neutrino.fatbin.code_object import CodeObjectKernel
    from neutrino.sass.resource_usage import FunctionUsage


@dataclass(frozen=True)
class Contents:
    """A decoded image.

    data: its text or code. kernels: mangled names in the image's order. functions: resource usage of a cubin's
    functions, kernels and others. code_objects: that of the kernels of an AMD code object. Both are empty unless
    they were asked for.
    """

    data: bytes = field(repr=False)
    kernels: tuple[str, ...]
    functions: tuple[FunctionUsage, ...] = ()
    code_objects: tuple[CodeObjectKernel, ...] = ()


def read_contents(image: Image, *, resources: bool = False) -> Contents:
    """Decode an image and find its kernels.

    resources: whether to read the resource usage of its functions too, which cubins and code objects have. Raises
    FormatError when the image is damaged.
    """
    data = image.data
    names = kernel_names(image, data)
    if not resources:
        return Contents(data, names)
    name = f"{image.file}, image {image.index}"
    if image.kind is ImageKind.CUBIN:
        from neutrino.sass.resource_usage import resource_usage

        return Contents(data, names, functions=resource_usage(data, name).functions)
    if image.kind is ImageKind.CODE_OBJECT:
        from neutrino.fatbin.code_object import read_code_object

        return Contents(data, names, code_objects=tuple(read_code_object(data, name).kernels.values()))
    return Contents(data, names)
