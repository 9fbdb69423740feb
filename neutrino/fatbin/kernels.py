"""The kernels of an image, whatever its form."""

from __future__ import annotations

from neutrino.fatbin.image import Image, ImageKind


def kernel_names(image: Image, data: bytes | None = None) -> tuple[str, ...]:
    """Mangled names in the image's own order; none for a form that is not read (LTO IR, bitcode, unknown).

    data: the image's, where they have been decoded already. Raises FormatError when the image is damaged.
    """
    # Here, because a listing imports this module, and most images are of one form.
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
    return ()
