"""Files that hold containers: host libraries, executables, objects and archives of them, or a container or an image by
itself."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neutrino.elf.constants import EM_AMDGPU, EM_CUDA, PF_W, PT_LOAD, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_PROGBITS
from neutrino.elf.constants import MAGIC as ELF_MAGIC
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.elf.rows import Section
from neutrino.errors import FormatError
from neutrino.fatbin.areas import Area
from neutrino.fatbin.container import (
    BUNDLE_SECTION,
    Container,
    is_bundle,
    is_fatbin,
    read_bare,
    read_bundled_section,
    read_bundles,
    read_fatbins,
)
from neutrino.fatbin.wrapper import SECTIONS as WRAPPER_SECTIONS
from neutrino.fatbin.wrapper import find_wrappers, writable

if TYPE_CHECKING:
    from neutrino.fatbin.archive import Member

_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin", ".nv_fatbin.orig")
"""Where nvcc and clang put containers: those for the driver, and those that the device linker has read; and what some
tools rename the section to that they have moved containers out of."""
_BUNDLES_SECTION = ".hip_fatbin"
_OFFLOADING_SECTION = ".llvm.offloading"
_PATCHED_MAGIC = b"NTSECTN\0"
"""At the start of a patched library's ``.neutrino`` section and its segment: the images there are Neutrino's own."""
_MAX_MEMBERS = 1 << 16
"""Files that thin archives may name in all: those that name each other could name any number."""
_MAX_DEPTH = 8
"""Archives in archives."""
_MAX_WRAPPED = 1 << 16
"""Images of containers that only wrappers lead to, in one file: these may overlap."""


def read_file(path: str | Path, *, search_data: bool = True) -> tuple[Container, ...]:
    """Every container of a file; none when an ELF file or an archive holds no device code.

    In file order, but of each ELF file those last that nothing but its data's contents tell of (``embedded``).
    search_data: false leaves these out where the file has sections of containers: looking for them is most of the
    work in a library with large tables. The others have the same indices either way.

    path: PTX, a cubin, a fatbin, an ELF64 shared library, executable or object, or an archive of such. Of a thin
    archive the files that it names are read, relative to its folder. The file is mapped, not read, and must not change
    while its images are in use. Raises FormatError for what is neither of these, OSError as ``open``.
    """
    found = _read(_map(Path(path)), str(path), 0, _Reading((Path(path),), search_data))
    return tuple(replace(container, index=index) for index, container in enumerate(found))


def read_data(data: bytes | memoryview, name: str, *, search_data: bool = True) -> tuple[Container, ...]:
    """As read_file, for a file that is in memory. name: for error messages. Raises FormatError, also for a thin
    archive, since it has no folder here."""
    found = _read(memoryview(data), name, 0, _Reading((), search_data))
    return tuple(replace(container, index=index) for index, container in enumerate(found))


class _Reading:
    """What holds for all parts of a file. paths: the thin archives that are being read, outermost first. members: how
    many files these have named. depth: of archives in archives. nested: the archives that thin ones name members of.
    search_data: as for read_file."""

    def __init__(self, paths: tuple[Path, ...], search_data: bool) -> None:
        self.paths = paths
        self.members = 0
        self.depth = 0
        self.nested: dict[Path, memoryview] = {}
        self.search_data = search_data


def _map(path: Path, *, is_member: bool = False) -> memoryview:
    status = path.stat()
    # Looked at before it is opened, since opening a FIFO would wait for a writer.
    if stat.S_ISDIR(status.st_mode):
        path.open("rb").close()
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        raise FormatError(str(path), 0, "file", "empty or not a regular file", "a file with content")
    with path.open("rb") as file:
        if is_member:
            from neutrino.fatbin.mapping import map_file

            return map_file(file, os.fstat(file.fileno()).st_size)
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _read(data: memoryview, name: str, base: int, reading: _Reading) -> Iterator[Container]:
    if is_fatbin(data) or is_bundle(data):
        yield from _containers(Cursor(data, name, base=base), "")
    elif bytes(data[:4]) == ELF_MAGIC and (elf := Elf(data, name, base)).machine not in (EM_CUDA, EM_AMDGPU):
        yield from _in_host(elf, reading.search_data)
    elif _is_archive(data):
        yield from _in_archive(data, name, base, reading)
    else:
        yield read_bare(data, name, base=base)


def _is_archive(data: memoryview) -> bool:
    # Imported here and below, because most files are none, and a listing is to start soon.
    from neutrino.fatbin.archive import is_archive

    return is_archive(data)


def _in_archive(data: memoryview, name: str, base: int, reading: _Reading) -> Iterator[Container]:
    from neutrino.fatbin.archive import read_members

    if reading.depth >= _MAX_DEPTH:
        raise FormatError(name, base, "archive", f"in {reading.depth} others", f"at most {_MAX_DEPTH} in each other")
    reading.depth += 1
    for member in read_members(Cursor(data, name, base=base)):
        inner = f"{name}({member.name})"
        if member.data is not None:
            found = _in_member(member.data, inner, member.offset, reading)
        else:
            found = _in_thin_member(member, inner, reading)
        for container in found:
            yield replace(container, member=f"{member.name}({container.member})" if container.member else member.name)
    reading.depth -= 1


def _in_member(data: memoryview, name: str, base: int, reading: _Reading) -> Iterator[Container]:
    # Archives hold anything: what is not device code by its first bytes is passed over, as linkers do.
    from neutrino.fatbin.ptxscan import is_ptx

    if bytes(data[:4]) == ELF_MAGIC or is_fatbin(data) or is_bundle(data) or _is_archive(data) or is_ptx(data):
        yield from _read(data, name, base, reading)


def _in_thin_member(member: Member, name: str, reading: _Reading) -> Iterator[Container]:
    if not reading.paths:
        raise FormatError(name, member.offset, "archive", "thin, without a folder", "an archive with its members in it")
    path = reading.paths[-1].parent / member.name
    reading.members += 1
    if path in reading.paths or reading.members > _MAX_MEMBERS:
        found = "itself" if path in reading.paths else f"more than {_MAX_MEMBERS} files"
        raise FormatError(str(reading.paths[-1]), member.offset, "member", found, "files that thin archives name")
    if member.nested is not None:
        from neutrino.fatbin.archive import nested_member

        if path not in reading.nested:
            reading.nested[path] = _map(path, is_member=True)
        data = reading.nested[path]
        inner = nested_member(Cursor(data, str(path)), member.nested)
        for container in _in_member(inner.data or data[:0], f"{path}({inner.name})", inner.offset, reading):
            yield replace(container, member=inner.name)
        return
    reading.paths = (*reading.paths, path)
    yield from _in_member(_map(path, is_member=True), str(path), 0, reading)
    reading.paths = reading.paths[:-1]


def _in_host(elf: Elf, search_data: bool) -> list[Container]:
    """The containers of an ELF file for a CPU: of sections made for them and those that wrappers point to, then images
    in its data."""
    found = list(_in_sections(elf))
    areas = [area for area in _apart(_areas(elf)) if bytes(elf.data[area.begin : area.begin + 8]) != _PATCHED_MAGIC]
    named = [area for area in areas if area.section in WRAPPER_SECTIONS]
    referenced = {container.offset for container in found}
    searching = search_data or not found
    if searching:
        from neutrino.fatbin.embedded import find_embedded

        found += find_embedded(elf.data, areas, elf.file, elf.base)
    known = {container.offset - elf.base for container in found}
    wrappers: dict[int, list[int]] = {}
    places = areas if searching and not named else named
    left = _MAX_WRAPPED
    for version, (begin, end) in find_wrappers(elf, writable(places, found, elf.base)):
        if begin not in known:
            whole = Cursor(elf.data, elf.file, start=begin, end=end, base=elf.base)
            home = elf.section_at(begin)
            found.append(next(_containers(whole, "" if home is None else home.name)))
            known.add(begin)
            left -= 1 + len(found[-1].images)
            if left < 0:
                raise whole.error("containers of wrappers", f"of more than {_MAX_WRAPPED} images", "fewer")
        wrappers.setdefault(begin, []).append(version)
    if named:
        referenced |= {begin + elf.base for begin in wrappers}
    found.sort(key=lambda container: (container.offset not in referenced, container.offset))
    return [replace(one, wrappers=tuple(wrappers.get(one.offset - elf.base, ()))) for one in found]


def _containers(cursor: Cursor, section: str) -> Iterator[Container]:
    """The containers under the cursor, CUDA's or AMD's."""
    return (read_bundles if is_bundle(cursor.data, cursor.position) else read_fatbins)(cursor, section)


def _in_sections(elf: Elf) -> Iterator[Container]:
    """The containers of the sections that are made for them."""
    last_end = 0
    for section in sorted(filter(_is_known, elf.sections), key=lambda section: section.offset):
        begin, end = section.offset, section.offset + len(elf.contents(section))
        if begin == end:
            continue
        cursor = Cursor(elf.data, elf.file, start=begin, end=end, base=elf.base)
        if begin < last_end:
            raise cursor.error(f"section {section.name}", f"from {begin:#x} on", f"after {last_end:#x}, the last end")
        last_end = end
        if section.name == _BUNDLES_SECTION:
            yield from read_bundles(cursor, section.name)
        elif section.name in _FATBIN_SECTIONS:
            yield from read_fatbins(cursor, section.name)
        elif section.name == _OFFLOADING_SECTION:
            from neutrino.fatbin.offload_binary import read_offload_binaries

            yield from read_offload_binaries(cursor, section.name)
        elif container := read_bundled_section(cursor, section.name):
            yield container


def _is_known(section: Section) -> bool:
    known = (*_FATBIN_SECTIONS, _BUNDLES_SECTION, _OFFLOADING_SECTION)
    return section.name in known or section.name.startswith(BUNDLE_SECTION)


def _areas(elf: Elf) -> Iterator[Area]:
    """Where data may be that are no section of containers."""
    if not elf.sections:
        for segment in elf.segments:
            end = min(segment.offset + segment.file_size, len(elf.data))
            if segment.type == PT_LOAD and segment.offset < end:
                yield Area(segment.offset, end, "", bool(segment.flags & PF_W))
    for section in elf.sections:
        end = min(section.offset + section.size, len(elf.data))
        data = section.type == SHT_PROGBITS and section.flags & (SHF_ALLOC | SHF_EXECINSTR) == SHF_ALLOC
        if data and not _is_known(section) and section.offset < end:
            yield Area(section.offset, end, section.name, bool(section.flags & SHF_WRITE))


def _apart(areas: Iterable[Area]) -> Iterator[Area]:
    """The areas in the file's order, without what an earlier one has as well."""
    last_end = 0
    for area in sorted(areas, key=lambda area: area.begin):
        if area.end > last_end:
            yield Area(max(area.begin, last_end), area.end, area.section, area.writable)
            last_end = area.end
