"""What a user names, and in it the files that may hold device code: a file, a folder, a wheel."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neutrino.errors import FormatError, NeutrinoError
from neutrino.fatbin.host import read_data, read_file

if TYPE_CHECKING:
    from neutrino.fatbin.container import Container
    from neutrino.fatbin.wheel import Member

_ELF64_LSB = b"\x7fELF\x02\x01"
_MAGICS = (
    _ELF64_LSB,
    b"!<arch>\n",
    b"!<thin>\n",
    b"\x50\xed\x55\xba",
    b"__CLANG_OFFLOAD_BUNDLE__",
    b"CCOB",
)
"""First bytes of the files that a folder or a wheel is searched for: ELF64, archives, CUDA's containers, clang's
bundles plain and compressed. Not bitcode: a bare file of it may as well be for the host."""
_ZIP_MAGIC = b"PK\x03\x04"
_WHEEL_SUFFIX = ".whl"
_TEXT_BEGINS = b"./ \t\r\n"
"""PTX text begins with white space, a comment or a directive."""
_HEAD = 4096
"""Bytes of a file that are read to decide whether it may hold device code."""


@dataclass(frozen=True)
class Input:
    """A file that may hold device code.

    path: of the file, or of the wheel that it is a member of. is_named: whether the user named the file itself, rather
    than a folder or wheel that contains it. member: of the wheel, None for a file on disk.
    """

    path: Path
    is_named: bool
    member: Member | None = None

    @property
    def name(self) -> str:
        """The name to show: the path; for a member, the wheel's path, a slash, and the member's name."""
        return f"{self.path}/{self.member.name}" if self.member else str(self.path)

    @property
    def stem(self) -> str:
        """The file's own name without its folder and its last suffix."""
        # The name of a wheel's member need not be a valid path on this system, so it is split by hand.
        return Path(self.member.name.rpartition("/")[2]).stem if self.member else self.path.stem

    def data(self) -> memoryview:
        """Return the file's content, mapped into memory; a compressed member is first decoded to a temporary file.

        Raises FormatError for a file that is empty, not a regular file or damaged, OSError as ``open`` and for a full
        disk.
        """
        if self.member is None:
            return _mapped(self.path)
        if not self.member.compressed:
            return self.member.payload
        return _unpacked(self.member)

    def read(self, data: memoryview, *, search_data: bool = True) -> tuple[Container, ...]:
        """Read the file's containers of device code. Raises as ``read_file``.

        data: the file's content, as the method ``data`` returns it. search_data: whether to search the program's data
        for images that nothing points to.
        """
        # A file on disk is read by its path, because a thin archive names files relative to its folder.
        if self.member is None:
            return read_file(self.path, search_data=search_data)
        return read_data(data, self.name, search_data=search_data)


def find_inputs(
    names: Sequence[str],
    on_error: Callable[[str, Exception], None],
    on_progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Input]:
    """Yield every file that is named, and of named folders and wheels every file that may hold device code.

    Whether it may is decided by its first bytes. Folders are walked recursively in the order of names; links in them
    are not followed, and special files are skipped. Wheels are searched wherever they are, other ZIP files only when
    they are named. on_error: called with the name of each file or folder that cannot be read, and the FormatError or
    OSError; the search goes on. on_progress: called with each folder and file of a folder or wheel before it is used.
    """
    for name in names:
        path = Path(name)
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                yield from _walk(path, on_error, on_progress)
            elif stat.S_ISREG(status.st_mode) and _head(path, len(_ZIP_MAGIC)) == _ZIP_MAGIC:
                yield from _members(path, on_error, on_progress)
            else:
                yield Input(path, is_named=True)
        except (NeutrinoError, OSError) as error:
            on_error(name, error)


def _walk(
    folder: Path, on_error: Callable[[str, Exception], None], on_progress: Callable[[str], None]
) -> Iterator[Input]:
    """Yield every file below a folder that may hold device code, in the order of names, as for find_inputs."""
    pending = [folder]
    while pending:
        path = pending.pop()
        try:
            # Only the named folder itself may be a link. A file that was removed or replaced since the folder was
            # listed is reported as any other error.
            status = path.stat() if path is folder else path.lstat()
            if stat.S_ISDIR(status.st_mode):
                on_progress(str(path))
                # Reversed, because the last item of the list is next.
                pending += sorted(path.iterdir(), key=os.fsencode, reverse=True)
            # Special files and empty ones hold nothing: in a folder they are no errors.
            elif stat.S_ISREG(status.st_mode) and status.st_size:
                head = _head(path, _HEAD)
                if head.startswith(_ZIP_MAGIC) and path.suffix == _WHEEL_SUFFIX:
                    yield from _members(path, on_error, on_progress)
                elif _may_hold_device_code(head):
                    on_progress(str(path))
                    yield Input(path, is_named=False)
        except (NeutrinoError, OSError) as error:
            on_error(str(path), error)


def _members(
    path: Path, on_error: Callable[[str, Exception], None], on_progress: Callable[[str], None]
) -> Iterator[Input]:
    """Yield every member of a wheel or ZIP file that may hold device code, as for find_inputs.

    Raises FormatError when the ZIP file itself is damaged; a damaged member is only passed to on_error.
    """
    from neutrino.fatbin.wheel import first_bytes, read_members

    for member in read_members(_mapped(path), str(path)):
        candidate = Input(path, is_named=False, member=member)
        try:
            head = first_bytes(member, _HEAD)
        except FormatError as error:
            on_error(candidate.name, error)
            continue
        if _may_hold_device_code(head):
            on_progress(candidate.name)
            yield candidate


def _may_hold_device_code(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is of a kind that may hold device code."""
    if head.startswith(_MAGICS):
        return True
    # The first byte is compared before the slow import, which most files do not need. An empty head has none, but
    # empty bytes are "in" all bytes.
    if head[:1] and head[:1] in _TEXT_BEGINS:
        from neutrino.fatbin.ptxscan import is_ptx

        return is_ptx(head)
    return False


def _check_regular(path: Path, status: os.stat_result) -> None:
    """Raise a FormatError unless a file is a regular one with content. status: of the file at path."""
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(str(path), 0, "file", _kind(status.st_mode), "a regular file, a folder or a wheel")
    if not status.st_size:
        raise FormatError(str(path), 0, "file", "empty", "a file with content")


def _kind(mode: int) -> str:
    """Say what a special file is, for a message. mode: its ``st_mode``."""
    for is_kind, description in (
        (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    ):  # fmt: skip
        if is_kind(mode):
            return description
    return "not a regular file"


def _open(path: Path) -> int:
    """Open a file for reading without waiting, as on a pipe; return its descriptor."""
    # O_NONBLOCK, because the file may have been replaced by a FIFO since it was checked: opening that would wait.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _head(path: Path, size: int) -> bytes:
    """Return at most ``size`` bytes from the beginning of a file."""
    descriptor = _open(path)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def _mapped(path: Path) -> memoryview:
    """Map a file into memory. Raises FormatError for an empty or special file, OSError as ``open``."""
    descriptor = _open(path)
    try:
        _check_regular(path, os.fstat(descriptor))
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)


def _unpacked(member: Member) -> memoryview:
    """Decode a compressed member of a wheel to an unnamed temporary file, and map that into memory.

    Raises FormatError for damaged data, OSError when the disk has not enough free space.
    """
    import shutil
    import tempfile

    from neutrino.fatbin.wheel import decode

    display_name = f"{member.file}/{member.name}"
    folder = tempfile.gettempdir()
    if shutil.disk_usage(folder).free < member.size:
        raise OSError(errno.ENOSPC, f"no room for its {member.size} bytes in {folder}; set TMPDIR", display_name)
    with tempfile.TemporaryFile(prefix="neutrino-") as file:
        decode(member, file)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
