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

from neutrino.elf.constants import EM_AMDGPU
from neutrino.elf.reader import Elf
from neutrino.errors import PatchError
from neutrino.patched_files.appended import Appended, Attachment
from neutrino.patched_files.appended_to_image import AppendedToImage
from neutrino.patched_files.large_files import mapped_elf, replace_atomically, sha256_prefix
from neutrino.patched_files.original import Original, copy_original, crc_of_tables, is_unchanged, read_original
from neutrino.patched_files.place import find_section


def attach(source: Path, target: Path, section: Sequence[bytes | memoryview], auxiliary: str) -> Attachment:
    """Write target: a copy of source with a ``.neutrino`` section; a library is tied to the stub and never unloaded.

    section: its parts in order, beginning with SECTION_HEADER, whose size, restore_offset and restore_size are filled
    in. auxiliary: path or name of the stub (the library that loads the hook) for DT_AUXILIARY, so that the dynamic
    loader loads it together with target.

    A patched source is replaced by its original first; but if another tool has changed it after patching, it is taken
    as it is. Target is replaced atomically and may be source; it gets source's permissions. Raises PatchError when
    source cannot carry a section, FormatError when it is damaged, and OSError. Returns where the section was placed.
    """
    with attaching_to(source, target) as attaching:
        attaching.start()  # copies the original to a temporary file beside target
        return attaching.finish(section, auxiliary)  # adds the section to it; the end of the block renames it


@contextmanager
def attaching_to(source: Path, target: Path) -> Iterator[Attaching]:
    """Write target, a copy of source with a ``.neutrino`` section, while the caller still makes the section.

    Copying a large file takes long, and so does assembling what is in the section: both go on at the same time. Call
    ``start`` on the yielded object, which copies source in threads, and later ``finish`` with the section. Target is
    replaced at the end of the block, and only if ``finish`` was called. Raises PatchError, FormatError, OSError.
    """
    with (
        mapped_elf(source) as (descriptor, data),
        suppress(_UnfinishedError),
        replace_atomically(target, stat.S_IMODE(os.fstat(descriptor).st_mode)) as new,
        # Its threads end before what they write to is closed.
        ThreadPoolExecutor(2) as pool,
    ):
        attaching = Attaching(Elf(data, str(source)), descriptor, new, pool)
        yield attaching
        if not attaching.is_finished:
            raise _UnfinishedError


class _UnfinishedError(Exception):
    """Leaves ``replace_atomically`` without writing target, since ``finish`` was not called."""


class Attaching:
    """An attachment in progress. ``start`` copies the original in threads, ``finish`` adds the section to the copy.

    elf, source: the source file and its descriptor. descriptor: of the new file, which holds the copy. copying: the
    result of the copying thread, None before ``start``. is_finished: whether ``finish`` has succeeded.
    """

    def __init__(self, elf: Elf, source: int, new: int, pool: ThreadPoolExecutor) -> None:
        """Begin to write a patched file. elf, source: the original and its descriptor. new: the new one's. pool: runs
        the copying."""
        self._elf = elf
        self._source = source
        self.descriptor = new
        self._pool = pool
        self._copying: Future[Original] | None = None
        self.is_finished = False

    def start(self) -> None:
        """Start to copy and hash the original. From here on this process has threads, so it must not fork."""
        self._copying = self._pool.submit(self._copy)

    def _copy(self) -> Original:
        """Copy the original to the new file and return its size and SHA-256 as an ``Original``.

        If source is a patched file that no other tool has changed, the original is the one inside it, else source.
        """
        size = len(self._elf.data)
        original = read_original(self._elf)
        # First the tables, which are short, then the digest of the whole original.
        if (
            original is not None
            and _tables_unchanged(self._elf, original)
            and is_unchanged(self._source, size, original)
        ):
            copy_original(self._source, self.descriptor, original)
            return original
        # Source as it is: an original without changes. Hash and copy it at the same time, so the copy is made without
        # the digest, which copying does not need.
        hashing = self._pool.submit(sha256_prefix, self._source, size)
        copy_original(self._source, self.descriptor, Original(size, b"", ()))
        return Original(size, hashing.result(), ())

    def finish(self, section: Sequence[bytes | memoryview], auxiliary: str) -> Attachment:
        """Wait for the copy of the original, then append the section to it; return where the section is.

        section: its parts in order. auxiliary: name of the stub (the library that loads the hook) for DT_AUXILIARY.
        Raises PatchError if the file cannot carry a section, FormatError if it is damaged, OSError.
        """
        file = self._elf.file
        if not auxiliary or "\0" in auxiliary:
            raise PatchError(file, f"DT_AUXILIARY cannot be {auxiliary!r}")
        # Copied now if start was not called. Everything else refers to the copy, since source may be a patched file.
        original = (self._copying or self._pool.submit(self._copy)).result()
        view = memoryview(mmap.mmap(self.descriptor, original.size, access=mmap.ACCESS_READ))
        elf = Elf(view, file)
        appended: Appended | AppendedToImage = (
            AppendedToImage(elf, section) if elf.machine == EM_AMDGPU else Appended(elf, section, auxiliary)
        )
        appended.write(self.descriptor, original.digest)
        self.is_finished = True
        return appended.attachment


def _tables_unchanged(elf: Elf, original: Original) -> bool:
    """Whether the tables that patching wrote outside the ``.neutrino`` section are still as it wrote them.

    If not, another tool has changed the file since. original: as the patched file elf records it.
    """
    place = find_section(elf)
    return (
        place is not None
        and crc_of_tables(elf.data, place.offset + place.size, original.changes) == original.tables_crc
    )
