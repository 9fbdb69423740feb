"""Copy and change big files: a copy is written beside its target, and renamed to the target when complete."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from neutrino.ahead.unfinished import begin
from neutrino.elf.constants import MAGIC
from neutrino.errors import PatchError

_BLOCK = 1 << 18
"""Bytes that stay in the cache between reading and hashing: half the time of blocks of 8 MiB."""
_NOT_HERE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
"""Errors of copy_file_range where the kernel or the file systems do not support it."""


@contextmanager
def written_aside(target: Path, mode: int) -> Iterator[int]:
    """A descriptor of a new file in target's folder, which takes target's name at the end of the block.

    mode: its permission bits. After an exception in the block there is no new file, and target is unchanged.
    """
    descriptor, name = begin(target)
    with ExitStack() as held:
        try:
            try:
                yield descriptor
                os.fchmod(descriptor, mode)
                # On some file systems only close reports that the file could not be written. The lock stays.
                held.callback(os.close, os.dup(descriptor))
            finally:
                os.close(descriptor)
            name.replace(target)
        except BaseException:
            name.unlink(missing_ok=True)
            raise


def copy(source: int, target: int, size: int) -> None:
    """Copy a file's first size bytes to the start of another, shared on disk where the file system can.

    Raises OSError, also when the source is shorter.
    """
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(source, target, min(size - done, 1 << 30), done, done)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
            break
        if not count:
            break
        done += count
    buffer = memoryview(bytearray(min(_BLOCK, size - done)))
    while done < size:
        count = os.preadv(source, [buffer[: size - done]], done)
        if not count:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        write(target, done, buffer[:count])
        done += count


def write(target: int, offset: int, data: bytes | memoryview) -> None:
    """Write all of data at an offset. Raises OSError."""
    view = memoryview(data)
    while view:
        count = os.pwrite(target, view[: 1 << 30], offset)
        view = view[count:]
        offset += count


def digest(source: int, size: int, changes: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """SHA-256 of a file's first size bytes, with changes (offset, bytes) applied.

    Memory is one block. Raises OSError, also when the file is shorter.
    """
    result = hashlib.sha256()
    buffer = memoryview(bytearray(min(_BLOCK, size)))
    position = 0
    while position < size:
        count = os.preadv(source, [buffer[: size - position]], position)
        if not count:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        for offset, data in changes:
            begin, end = max(offset, position), min(offset + len(data), position + count)
            if begin < end:
                buffer[begin - position : end - position] = data[begin - offset : end - offset]
        result.update(buffer[:count])
        position += count
    return result.digest()


@contextmanager
def mapped(path: Path) -> Iterator[tuple[int, memoryview]]:
    """A file's descriptor and bytes, not read before they are used. Raises PatchError for other than ELF files."""
    with path.open("rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.read(len(MAGIC)) != MAGIC:
            raise PatchError(str(path), "is not an ELF file")
        # Not closed by hand: what was read of it may still hold views.
        yield file.fileno(), memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
