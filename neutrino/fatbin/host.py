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
from neutrino.fatbin.wrapper import find_wrappers, writable_areas_outside

if TYPE_CHECKING:
    from neutrino.fatbin.archive import Member

_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin", ".nv_fatbin.orig")
"""Where nvcc and clang put containers: those for the driver, those that the device linker has read, and the name that
some tools give to a section after they have moved its containers elsewhere."""
_BUNDLES_SECTION = ".hip_fatbin"
_OFFLOADING_SECTION = ".llvm.offloading"
_PATCHED_MAGIC = b"NTSECTN\0"
"""At the start of a patched library's ``.neutrino`` section and its segment: the images there are Neutrino's own."""
_MAX_MEMBERS = 1 << 16
"""Members of thin archives that are read for one file, in all: thin archives that name each other would not end."""
_MAX_DEPTH = 8
"""How deep archives may be nested in archives."""
_MAX_WRAPPED = 1 << 16
"""Images of one file in containers that are only found through wrappers: these may overlap, and so be any number."""


def read_file(path: str | Path, *, search_data: bool = True) -> tuple[Container, ...]:
    """Read every container of device code in a file; none when an ELF file or an archive holds no device code.

    path: PTX, a cubin, a fatbin, an ELF64 shared library, executable or object, or an archive of such. Of a thin
    archive the files that it names are read, relative to its folder. The file is mapped, not read, and must not change
    while its images are in use.
    search_data: also search the program's data for images that nothing points to (``embedded``). If false, this is
    done only for a file without other containers: the search is most of the work in a library with large tables.

    Containers are in file order, except that those of an ELF file that were found by this search come last; so the
    others have the same indices either way. Raises FormatError for a file of another kind, OSError as ``open``.
    """
    context = _ReadContext(thin_archives=(Path(path),), search_data=search_data)
    containers = _read(_map(Path(path)), str(path), base=0, context=context)
    # Each section and each member was read with indices from 0.
    return tuple(replace(container, index=index) for index, container in enumerate(containers))


def read_data(data: bytes | memoryview, name: str, *, search_data: bool = True) -> tuple[Container, ...]:
    """Read every container of device code in a file's content, as ``read_file``.

    name: for error messages. Raises FormatError as ``read_file``, and also for a thin archive, because the files that
    it names cannot be found without its folder.
    """
    context = _ReadContext(thin_archives=(), search_data=search_data)
    containers = _read(memoryview(data), name, base=0, context=context)
    # Each section and each member was read with indices from 0.
    return tuple(replace(container, index=index) for index, container in enumerate(containers))


class _ReadContext:
    """The state of reading one file, with all archives in it."""

    def __init__(self, thin_archives: tuple[Path, ...], search_data: bool) -> None:
        """Begin to read a file.

        thin_archives: paths of the thin archives that are being read, outermost first; initially that of the file
        itself, or empty for data in memory. search_data: whether to search data for images that nothing points to.
        """
        self.thin_archives = thin_archives
        self.thin_members = 0
        """How many members of thin archives have been read."""
        self.depth = 0
        """In how many archives the one that is being read is nested."""
        self.nested_archives: dict[Path, memoryview] = {}
        """Mapped archives of which thin archives name members."""
        self.search_data = search_data


def _map(path: Path, *, is_archive_member: bool = False) -> memoryview:
    """Map a file into memory. Raises FormatError for an empty or special file, OSError as ``open``.

    is_archive_member: whether a thin archive names the file. It may name more files than a process may have open, so
    the mapping then keeps no descriptor open.
    """
    status = path.stat()
    # Checked before opening, because opening a FIFO waits for a writer.
    if stat.S_ISDIR(status.st_mode):
        path.open("rb").close()  # raises IsADirectoryError
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        raise FormatError(str(path), 0, "file", "empty or not a regular file", "a file with content")
    with path.open("rb") as file:
        if is_archive_member:
            from neutrino.fatbin.mapping import map_file

            return map_file(file, os.fstat(file.fileno()).st_size)
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _read(data: memoryview, name: str, base: int, context: _ReadContext) -> Iterator[Container]:
    """Yield the containers of a file or an archive's member, by the kind that its first bytes show.

    name, base: of the file, and the offset of the data in it, for error messages. context: the state of reading the
    whole file, with its limits. Raises FormatError when the data are of no known kind.
    """
    if is_fatbin(data) or is_bundle(data):
        yield from _containers(Cursor(data, name, base=base), "")
    elif bytes(data[:4]) == ELF_MAGIC and (elf := Elf(data, name, base)).machine not in (EM_CUDA, EM_AMDGPU):
        yield from _in_host(elf, context.search_data)
    elif _is_archive(data):
        yield from _in_archive(data, name, base, context)
    else:
        # A single image: an ELF file for a GPU, PTX or bitcode.
        yield read_bare(data, name, base=base)


def _is_archive(data: memoryview) -> bool:
    """Whether data begin with the magic string of an archive."""
    # Imported within functions here and below: most files are not archives, and listing them should start quickly.
    from neutrino.fatbin.archive import is_archive

    return is_archive(data)


def _in_archive(data: memoryview, name: str, base: int, context: _ReadContext) -> Iterator[Container]:
    """Yield the containers of an archive's members, with the member's name in ``Container.member``.

    For an archive within an archive that is ``outer(inner)``. Parameters as for ``_read``. Raises FormatError when
    archives are nested too deep.
    """
    from neutrino.fatbin.archive import read_members

    if context.depth >= _MAX_DEPTH:
        raise FormatError(name, base, "archive", f"in {context.depth} others", f"at most {_MAX_DEPTH} in each other")
    context.depth += 1
    for member in read_members(Cursor(data, name, base=base)):
        display_name = f"{name}({member.name})"
        if member.data is not None:
            containers = _in_member(member.data, display_name, member.offset, context)
        else:
            containers = _in_thin_member(member, display_name, context)
        for container in containers:
            # If the member is itself an archive, its containers already have the name of the inner member.
            yield replace(container, member=f"{member.name}({container.member})" if container.member else member.name)
    context.depth -= 1


def _in_member(data: memoryview, name: str, base: int, context: _ReadContext) -> Iterator[Container]:
    """Yield the containers of one member of an archive; none if it is of no kind that may hold device code."""
    # Archives may hold any file. Members of other kinds are skipped, as linkers do.
    from neutrino.fatbin.ptxscan import is_ptx

    if bytes(data[:4]) == ELF_MAGIC or is_fatbin(data) or is_bundle(data) or _is_archive(data) or is_ptx(data):
        yield from _read(data, name, base, context)


def _in_thin_member(member: Member, name: str, context: _ReadContext) -> Iterator[Container]:
    """Yield the containers of a thin archive's member, which is a file that the archive names.

    name: of the member, for error messages. Raises FormatError for data in memory, where the archive has no folder;
    for a thin archive that contains itself; and for too many members.
    """
    if not context.thin_archives:
        raise FormatError(name, member.offset, "archive", "thin, without a folder", "an archive with its members in it")
    archive = context.thin_archives[-1]
    path = archive.parent / member.name
    context.thin_members += 1
    if path in context.thin_archives or context.thin_members > _MAX_MEMBERS:
        found = "itself" if path in context.thin_archives else f"more than {_MAX_MEMBERS} files"
        raise FormatError(str(archive), member.offset, "member", found, "files that thin archives name")

    # The path may lead to a regular archive, of which the thin one names a member by the offset of its header.
    if member.nested is not None:
        from neutrino.fatbin.archive import nested_member

        if path not in context.nested_archives:
            context.nested_archives[path] = _map(path, is_archive_member=True)
        data = context.nested_archives[path]
        target = nested_member(Cursor(data, str(path)), member.nested)
        # Only members of thin archives have no data, and nested_member refuses a thin archive.
        content = data[:0] if target.data is None else target.data
        for container in _in_member(content, f"{path}({target.name})", target.offset, context):
            yield replace(container, member=target.name)
        return

    # The member may itself be a thin archive, whose paths are relative to its own folder.
    context.thin_archives = (*context.thin_archives, path)
    yield from _in_member(_map(path, is_archive_member=True), str(path), base=0, context=context)
    context.thin_archives = context.thin_archives[:-1]


def _in_host(elf: Elf, search_data: bool) -> list[Container]:
    """Return the containers of an ELF file for a CPU.

    First, in file order, those in sections made for containers and those that wrappers point to (structures by which
    host code finds its containers); then those found by searching the data. search_data: if false, the data are only
    searched when there are no containers in sections.
    """
    # The offsets of containers count from the beginning of the file, those of areas and wrappers from that of the ELF
    # file's data, which is at elf.base: above 0 in an archive.
    containers = list(_in_sections(elf))
    # The images in a patched file's own section are Neutrino's, not the program's.
    areas = [
        area
        for area in _disjoint(_areas(elf))
        if bytes(elf.data[area.begin : area.begin + len(_PATCHED_MAGIC)]) != _PATCHED_MAGIC
    ]
    wrapper_areas = [area for area in areas if area.section in WRAPPER_SECTIONS]
    referenced_offsets = {container.offset for container in containers}

    searching = search_data or not containers
    if searching:
        from neutrino.fatbin.embedded import find_embedded

        containers += find_embedded(elf.data, areas, elf.file, elf.base)

    # Containers that only wrappers lead to are added. Wrappers are looked for in all data only when the file has no
    # section for them.
    known_offsets = {container.offset - elf.base for container in containers}
    wrapper_versions: dict[int, list[int]] = {}
    searched_areas = areas if searching and not wrapper_areas else wrapper_areas
    images_left = _MAX_WRAPPED
    for version, (begin, end) in find_wrappers(elf, writable_areas_outside(searched_areas, containers, elf.base)):
        if begin not in known_offsets:
            cursor = Cursor(elf.data, elf.file, start=begin, end=end, base=elf.base)
            section = elf.section_at(begin)
            # The wrapper points to one container; what follows it up to the end may be anything.
            containers.append(next(_containers(cursor, "" if section is None else section.name)))
            known_offsets.add(begin)
            # The container counts too: it may be empty, and there may be any number of such.
            images_left -= 1 + len(containers[-1].images)
            if images_left < 0:
                raise cursor.error("containers of wrappers", f"of more than {_MAX_WRAPPED} images", "fewer")
        wrapper_versions.setdefault(begin, []).append(version)

    # Wrappers that were found by searching all data do not count: without search_data they would not be found, and
    # the order must be the same then.
    if wrapper_areas:
        referenced_offsets |= {begin + elf.base for begin in wrapper_versions}
    # False sorts before True, so the containers that something points to come first.
    containers.sort(key=lambda container: (container.offset not in referenced_offsets, container.offset))
    return [
        replace(container, wrappers=tuple(wrapper_versions.get(container.offset - elf.base, ())))
        for container in containers
    ]


def _containers(cursor: Cursor, section: str) -> Iterator[Container]:
    """Yield the containers between the cursor and its end, which are all CUDA fatbins or all offload bundles."""
    read_all = read_bundles if is_bundle(cursor.data, cursor.position) else read_fatbins
    return read_all(cursor, section)


def _in_sections(elf: Elf) -> Iterator[Container]:
    """Yield the containers in the sections that compilers make for them, in file order.

    Raises FormatError for damaged containers, and for sections that overlap.
    """
    last_end = 0
    for section in sorted(filter(_holds_containers, elf.sections), key=lambda section: section.offset):
        begin, end = section.offset, section.offset + len(elf.contents(section))
        # An empty section may lie anywhere, also in another one.
        if begin == end:
            continue
        cursor = Cursor(elf.data, elf.file, start=begin, end=end, base=elf.base)
        # The same containers would be read once for each section that they are in.
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
        # What is left are sections of clang's for one target each; that of the host has no container.
        elif container := read_bundled_section(cursor, section.name):
            yield container


def _holds_containers(section: Section) -> bool:
    """Whether a section is one that compilers make for containers, by its name."""
    names = (*_FATBIN_SECTIONS, _BUNDLES_SECTION, _OFFLOADING_SECTION)
    return section.name in names or section.name.startswith(BUNDLE_SECTION)


def _areas(elf: Elf) -> Iterator[Area]:
    """Yield the parts of the file that are loaded as data and are not sections made for containers; they may overlap.

    These are sections of data; in a file without section headers, the PT_LOAD segments.
    """
    if not elf.sections:
        for segment in elf.segments:
            end = min(segment.offset + segment.file_size, len(elf.data))
            if segment.type == PT_LOAD and segment.offset < end:
                yield Area(segment.offset, end, section="", writable=bool(segment.flags & PF_W))
    for section in elf.sections:
        end = min(section.offset + section.size, len(elf.data))
        # Data are loaded, and not executable.
        is_data = section.type == SHT_PROGBITS and section.flags & (SHF_ALLOC | SHF_EXECINSTR) == SHF_ALLOC
        if is_data and not _holds_containers(section) and section.offset < end:
            yield Area(section.offset, end, section.name, writable=bool(section.flags & SHF_WRITE))


def _disjoint(areas: Iterable[Area]) -> Iterator[Area]:
    """Yield the areas in file order, each without the parts that an earlier one covers.

    So nothing is searched, and no image found, twice: sections of a damaged file may overlap.
    """
    last_end = 0
    for area in sorted(areas, key=lambda area: area.begin):
        if area.end > last_end:
            yield Area(max(area.begin, last_end), area.end, area.section, writable=area.writable)
            last_end = area.end
