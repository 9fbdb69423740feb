"""Containers of device code: read them out of files and memory, look into cubins, write containers back.

``read_file`` and ``read_container`` give ``Container``s of ``Image``s; ``write_container`` gives back the
same bytes.
"""

from neutrino.fatbin.compression import Compression
from neutrino.fatbin.container import Container, build_container, read_container, write_container
from neutrino.fatbin.cubin import Cubin, CubinKernel, read_cubin
from neutrino.fatbin.demangle import demangle
from neutrino.fatbin.entry import build_entry
from neutrino.fatbin.host import read_file
from neutrino.fatbin.image import Image, ImageKind
from neutrino.fatbin.kernels import kernel_names

__all__ = [
    "Compression",
    "Container",
    "Cubin",
    "CubinKernel",
    "Image",
    "ImageKind",
    "build_container",
    "build_entry",
    "demangle",
    "kernel_names",
    "read_container",
    "read_cubin",
    "read_file",
    "write_container",
]
