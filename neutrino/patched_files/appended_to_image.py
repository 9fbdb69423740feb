"""The ``.neutrino`` section of a file that is itself an image for a GPU: at its end, by a section header, not loaded.

A driver maps what an image's segments say and nothing else, so the image loads as before. The twins in the section are
for the hook, which finds it by its name in what a program hands to the driver.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from neutrino.abi.sections import SECTION_MAGIC
from neutrino.abi.structures import align_up
from neutrino.elf.constants import SHT_PROGBITS
from neutrino.elf.cursor import release
from neutrino.elf.reader import Elf
from neutrino.elf.tables import ELF_HEADER_SIZE, SectionHeader, Tables
from neutrino.errors import PatchError
from neutrino.patched_files.appended import Attachment, retired_sections
from neutrino.patched_files.carrier import refusal
from neutrino.patched_files.large_files import write_at
from neutrino.patched_files.original import Original, crc_of_tables, pack_record, record_size
from neutrino.patched_files.section import NAME, complete_header

_ALIGNMENT = 64
"""Of the section in the file, which the hook reads in place as C structures."""


class AppendedToImage:
    """The section that is appended to an image, and the changes that make it known; as ``Appended``.

    Raises PatchError when the image cannot carry a section, FormatError when it is damaged.
    """

    def __init__(self, elf: Elf, section: Sequence[bytes | memoryview]) -> None:
        """Plan everything that ``write`` will do. section: the ``.neutrino`` section in parts."""
        reason = refusal(elf)
        if reason is not None:
            raise PatchError(elf.file, reason)
        self._elf = elf
        self._section = section
        self._tables = tables = Tables(elf)
        if not tables.sections:
            raise PatchError(elf.file, "has no section headers, by which the twins in it would be found")
        self._retired = retired_sections(elf, tables)
        ranges = [(0, ELF_HEADER_SIZE), *((offset, offset + len(SECTION_MAGIC)) for offset in self._retired)]
        self._changes = tuple((begin, bytes(elf.bytes_at(begin, end - begin, "table"))) for begin, end in ranges)
        self._offset = align_up(len(elf.data), _ALIGNMENT)
        self._record_offset = align_up(sum(map(len, section)), 8)
        size = self._record_offset + record_size(self._changes)
        tables.add_section(NAME, SectionHeader(0, SHT_PROGBITS, 0, 0, self._offset, size, 0, 0, _ALIGNMENT, 0))
        self.attachment = Attachment(self._offset, size, 0, ())

    def write(self, new: int, checksum: bytes) -> None:
        """Append the section to a copy of the image, and change the copy's header.

        new: descriptor of the copy. checksum: the original's SHA-256. Raises OSError.
        """
        tables, begin, size = self._tables, self._offset, self.attachment.size
        position = begin
        for part in self._section:
            write_at(new, position, part)
            position += len(part)
            release(memoryview(part))
        write_at(new, begin, complete_header(self._section, size, self._record_offset))
        # The names and headers of sections end the file.
        names = tables.sections[tables.names_index]
        names.offset, names.size = begin + size, len(tables.names)
        headers = align_up(names.offset + names.size, 8)
        write_at(new, names.offset, bytes(tables.names))
        write_at(new, headers, tables.pack_sections())
        for offset in self._retired:
            write_at(new, offset, bytes(len(SECTION_MAGIC)))
        write_at(new, 0, tables.pack_header(headers))
        # The record holds the checksum of all tables above, which is computed from the file.
        with mmap.mmap(new, 0, access=mmap.ACCESS_READ) as written, memoryview(written) as view:
            crc = crc_of_tables(view, begin + size, self._changes)
        original = Original(len(self._elf.data), checksum, self._changes, crc)
        write_at(new, begin + self._record_offset, pack_record(original, self._record_offset))
