"""Libraries with GPU code that a program without any loads."""

from __future__ import annotations

from pathlib import Path

from neutrino.elf.constants import DT_NEEDED, DT_STRTAB, PT_DYNAMIC
from neutrino.elf.reader import Elf
from neutrino.elf.rows import DYNAMIC_LAYOUT
from neutrino.errors import FormatError

_RPATHS = frozenset({15, 29})
"""DT_RPATH, DT_RUNPATH."""
_GPU_CODE = (".nv_fatbin", ".hip_fatbin")


def libraries_with_code(path: Path) -> list[Path]:
    """Return the libraries that an ELF file names, in the folders that it names itself, and that hold GPU code."""
    try:
        elf = Elf(memoryview(path.read_bytes()), str(path))
        folders, names = [], []
        for tag, value in _entries(elf):
            text = _text(elf, value) if tag in {DT_NEEDED, *_RPATHS} else ""
            if tag == DT_NEEDED:
                names.append(text)
            elif text:
                folders += [part.replace("${ORIGIN}", "$ORIGIN") for part in text.split(":")]
        places = [Path(folder.replace("$ORIGIN", str(path.parent))) for folder in folders if folder]
        return [file for name in names for file in _found(places, name) if _has_code(file)]
    except (FormatError, OSError, ValueError):
        return []


def no_kernels(path: Path) -> str:
    """Say that a file has no kernels, and which library with GPU code it loads, if there is one."""
    found = libraries_with_code(path)
    return f"no CUDA kernels found{f'; it loads {found[0]}, which has GPU code: patch that' if found else ''}"


def _found(places: list[Path], name: str) -> list[Path]:
    """Return the first file of a name in some folders, if there is one."""
    return [place / name for place in places if (place / name).is_file()][:1]


def _has_code(path: Path) -> bool:
    """Whether a library has a section of GPU code."""
    elf = Elf(memoryview(path.read_bytes()), str(path))
    return any(elf.section(name) is not None for name in _GPU_CODE)


def _entries(elf: Elf) -> list[tuple[int, int]]:
    """Return all tags and values of the dynamic section."""
    rows: list[tuple[int, int]] = []
    for segment in elf.segments:
        if segment.type == PT_DYNAMIC:
            size = segment.file_size - segment.file_size % DYNAMIC_LAYOUT.size
            rows += DYNAMIC_LAYOUT.iter_unpack(elf.bytes_at(segment.offset, size, "PT_DYNAMIC"))
    return rows


def _text(elf: Elf, offset: int) -> str:
    """Return a text of the dynamic section's strings."""
    place = elf.file_range(elf.dynamic.get(DT_STRTAB, 0) + offset)
    if place is None:
        return ""
    start, end = place[0], place[1]
    return bytes(elf.data[start : min(start + 4096, max(end, start))]).partition(b"\0")[0].decode(errors="replace")
