"""The kernels of an image of any kind."""

from __future__ import annotations

from neutrino.fatbin.image import Image, ImageKind


def kernel_names(image: Image, data: bytes | None = None) -> tuple[str, ...]:
    """Return the mangled names of an image's kernels, in its order; none for LTO IR, bitcode and unknown kinds.

    data: the decoded image, if the caller has it already. Raises FormatError when the image is damaged.
    """
    # Imports are within the function so that a listing loads only what its kinds of images need.
    if image.kind is ImageKind.PTX:
        from neutrino.fatbin.ptxscan import ptx_entries

        return ptx_entries(image.data if data is None else data)
    name = f"{image.file}, image {image.index}"
    if image.kind is ImageKind.CUBIN:
        from neutrino.sass.cubin import cubin_kernel_names

        return cubin_kernel_names(image.data if data is None else data, name)
    if image.kind is ImageKind.CODE_OBJECT:
        from neutrino.fatbin.code_object import code_object_kernel_names

        return code_object_kernel_names(image.data if data is None else data, name)
    if image.kind is ImageKind.TEXT:
        from neutrino.fatbin.gcn_text import gcn_kernel_names

        return gcn_kernel_names(image.data if data is None else data)
    return ()
