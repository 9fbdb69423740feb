"""The images of a file that may be patched: those that its program hands to the driver, which a patched file keeps."""

from __future__ import annotations

import mmap
from pathlib import Path

from neutrino.elf.constants import EM_AMDGPU, MAGIC
from neutrino.elf.reader import Elf
from neutrino.fatbin import Container, read_file
from neutrino.fatbin.container import read_bare
from neutrino.patched_files.original import read_original


def read_images(path: Path) -> tuple[Container, ...]:
    """Read the containers of a file, as ``read_file``; of a patched image those of the original.

    A patched library holds its containers as they were. A patched image has grown, so that its bytes are others.
    Raises FormatError, OSError as ``read_file``.
    """
    original = _original_of_image(path)
    return read_file(path) if original is None else (read_bare(memoryview(original), str(path)),)


def _original_of_image(path: Path) -> bytes | None:
    """Return the original of a patched image; None for every other file."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            elf = Elf(view, str(path))
            if elf.machine != EM_AMDGPU:
                return None
            original = read_original(elf)
            if original is None or not original.fits(len(view)):
                return None
            restored = bytearray(view[: original.size])
        for offset, content in original.changes:
            restored[offset : offset + len(content)] = content
        return bytes(restored)
