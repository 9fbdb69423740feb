"""Copy, hash and change large files without reading them into memory, and replace a file atomically."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from neutrino.elf.constants import MAGIC
from neutrino.errors import PatchError
from neutrino.patched_files.unfinished import begin

_BLOCK = 1 << 18
"""Bytes that stay in the cache between reading and hashing: half the time of blocks of 8 MiB."""
_LARGEST_CALL = 1 << 30
"""Bytes per system call: Linux transfers less than 2 GiB at once."""
_COPY_UNSUPPORTED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
"""Errors of copy_file_range where the kernel or the file systems do not support it."""


@contextmanager
def replace_atomically(target: Path, mode: int) -> Iterator[int]:
    """Yield the descriptor of a new file beside target, and rename that file to target at the end of the block.

    So target is never incomplete. mode: the file's permission bits. After an exception in the block there is no new
    file, and target is unchanged.
    """
    # The file is locked, which shows other processes that it is still being written, and is not an abandoned one.
    descriptor, temporary = begin(target)
    with ExitStack() as lock:
        try:
            try:
                yield descriptor
                os.fchmod(descriptor, mode)
                # On some file systems only close() reports a failed write, so the file is closed before it is renamed.
                # The duplicate keeps its lock until then.
                lock.callback(os.close, os.dup(descriptor))
            finally:
                os.close(descriptor)
            temporary.replace(target)
        except BaseException:
            # Also for KeyboardInterrupt and SystemExit.
            temporary.unlink(missing_ok=True)
            raise


def copy_prefix(source: int, target: int, size: int) -> None:
    """Copy a file's first size bytes to the start of another. source, target: open descriptors.

    The bytes share their blocks on disk where the file system supports that. Raises OSError, also when the source is
    shorter.
    """
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(source, target, min(size - done, _LARGEST_CALL), done, done)
        except OSError as error:
            if error.errno not in _COPY_UNSUPPORTED:
                raise
            break
        if not count:
            # The end of source, or a file system that reports it wrongly: the loop below finds out.
            break
        done += count
    # Where the kernel cannot copy, or has stopped early, the remaining bytes go through a buffer.
    buffer = memoryview(bytearray(min(_BLOCK, size - done)))
    while done < size:
        count = os.preadv(source, [buffer[: size - done]], done)
        if not count:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        write_at(target, done, buffer[:count])
        done += count


def write_at(target: int, offset: int, data: bytes | memoryview) -> None:
    """Write all of data to the descriptor target at a byte offset, in as many calls as that takes. Raises OSError."""
    view = memoryview(data)
    while view:
        count = os.pwrite(target, view[:_LARGEST_CALL], offset)
        view = view[count:]
        offset += count


def sha256_prefix(source: int, size: int, changes: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """Return the SHA-256 of a file's first size bytes, as they would be with changes (offset, bytes) applied.

    With the changes that undo patching it is the digest of the original, of which no file need be written. source: the
    file's descriptor. At most one block is in memory. Raises OSError, also when the file is shorter.
    """
    result = hashlib.sha256()
    buffer = memoryview(bytearray(min(_BLOCK, size)))
    position = 0
    while position < size:
        count = os.preadv(source, [buffer[: size - position]], position)
        if not count:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        for offset, data in changes:
            # The part of the change that lies in this block; begin and end are positions in the file.
            begin, end = max(offset, position), min(offset + len(data), position + count)
            if begin < end:
                buffer[begin - position : end - position] = data[begin - offset : end - offset]
        result.update(buffer[:count])
        position += count
    return result.digest()


@contextmanager
def mapped_elf(path: Path) -> Iterator[tuple[int, memoryview]]:
    """Yield an ELF file's descriptor and its memory-mapped bytes. Raises PatchError for any other file, OSError."""
    with path.open("rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.read(len(MAGIC)) != MAGIC:
            raise PatchError(str(path), "is not an ELF file")
        # The mapping is left to the garbage collector: closing it would fail while the caller has slices of it.
        yield file.fileno(), memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
