"""Attach a ``.neutrino`` section to a shared library or program, without moving anything of the original or changing
what it does.

One segment, and a section header table that names its section, follow the original::

    original | padding | segment: .neutrino, what restores the original, .dynstr, [.dynamic] | names, section headers
             ^ page                                                                  not loaded ^

``.dynstr`` is copied because the old one has no room for the stub's name; ``.dynamic`` if it has no spare DT_NULL. The
old ones keep their bytes. Section headers name the new places, since strip and patchelf use them; strip would remove
a segment without a section header.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from neutrino.ahead.appended import Appended, Attachment
from neutrino.ahead.aside import digest, mapped, written_aside
from neutrino.ahead.original import Original, copy_original, crc_of_tables, is_unchanged, read_original
from neutrino.ahead.place import find_section
from neutrino.elf.reader import Elf
from neutrino.errors import PatchError


def attach(source: Path, target: Path, section: Sequence[bytes | memoryview], auxiliary: str) -> Attachment:
    """Write target: source with a section and, when it is a library, the name of an auxiliary one.

    section: its parts in order, beginning with SECTION_HEADER, whose size, restore_offset and restore_size are filled
    in. auxiliary: path or name for DT_AUXILIARY. When source is patched, its original is patched anew; when a patched
    file was changed since, that is the original. Target appears complete or not at all; it may be source. Permissions
    are source's. Raises PatchError when source can carry no section, FormatError when it is damaged, OSError.
    """
    with begun(source, target) as attaching:
        attaching.start()
        return attaching.finish(section, auxiliary)


@contextmanager
def begun(source: Path, target: Path) -> Iterator[Attaching]:
    """As attach, in two steps: what does not need the section is done in threads while the section is made.

    Target appears at the end of the block, if it was finished by then. Raises as attach.
    """
    with (
        mapped(source) as (descriptor, data),
        suppress(_UnfinishedError),
        written_aside(target, stat.S_IMODE(os.fstat(descriptor).st_mode)) as new,
        # Its threads end before what they write to is closed.
        ThreadPoolExecutor(2) as pool,
    ):
        attaching = Attaching(Elf(data, str(source)), descriptor, new, pool)
        yield attaching
        if not attaching.is_finished:
            raise _UnfinishedError


class _UnfinishedError(Exception):
    """There is nothing to write."""


class Attaching:
    """An attachment in progress: the original is being copied and hashed. descriptor: of the new file."""

    def __init__(self, elf: Elf, source: int, new: int, pool: ThreadPoolExecutor) -> None:
        self._elf = elf
        self._source = source
        self.descriptor = new
        self._pool = pool
        self._copying: Future[Original] | None = None
        self.is_finished = False

    def start(self) -> None:
        """Begin to copy. From here on this process has threads."""
        self._copying = self._pool.submit(self._copy)

    def _copy(self) -> Original:
        """Copy the original; return it with its checksum."""
        size = len(self._elf.data)
        original = read_original(self._elf)
        if original is not None and _is_as_written(self._elf, original) and is_unchanged(self._source, size, original):
            copy_original(self._source, self.descriptor, original)
            return original
        hashing = self._pool.submit(digest, self._source, size)
        copy_original(self._source, self.descriptor, Original(size, b"", ()))
        return Original(size, hashing.result(), ())

    def finish(self, section: Sequence[bytes | memoryview], auxiliary: str) -> Attachment:
        """Put the section into the copy, once that is complete."""
        file = self._elf.file
        if not auxiliary or "\0" in auxiliary:
            raise PatchError(file, f"DT_AUXILIARY cannot be {auxiliary!r}")
        original = (self._copying or self._pool.submit(self._copy)).result()
        view = memoryview(mmap.mmap(self.descriptor, original.size, access=mmap.ACCESS_READ))
        appended = Appended(Elf(view, file), section, auxiliary)
        appended.write(self.descriptor, original.digest)
        self.is_finished = True
        return appended.attachment


def _is_as_written(elf: Elf, original: Original) -> bool:
    """Whether nothing has changed what patching wrote beside the section."""
    place = find_section(elf)
    return (
        place is not None
        and crc_of_tables(elf.data, place.offset + place.size, original.changes) == original.tables_crc
    )
