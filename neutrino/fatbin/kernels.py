"""The kernels of an image, whatever its form."""

from __future__ import annotations

from neutrino.fatbin.cubin import cubin_kernel_names
from neutrino.fatbin.image import Image, ImageKind
from neutrino.fatbin.ptxscan import ptx_entries


def kernel_names(image: Image) -> tuple[str, ...]:
    """Mangled names in the image's own order; none for a form that is not read (LTO IR, bitcode, unknown).

    Raises FormatError when the image is damaged.
    """
    if image.kind is ImageKind.PTX:
        return ptx_entries(image.data)
    if image.kind is ImageKind.CUBIN:
        return cubin_kernel_names(image.data, f"{image.file}, image {image.index}")
    if image.kind is ImageKind.CODE_OBJECT:
        from neutrino.fatbin.code_object import code_object_kernel_names

        return code_object_kernel_names(image.data, f"{image.file}, image {image.index}")
    return ()
