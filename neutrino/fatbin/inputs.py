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
"""Of what a folder or a wheel is searched for: ELF64, archives, CUDA's containers, clang's bundles plain and
compressed. Bitcode is not: a bare file of it may as well be for the host."""
_ZIP_MAGIC = b"PK\x03\x04"
_WHEEL_SUFFIX = ".whl"
_TEXT_BEGINS = b"./ \t\r\n"
"""PTX text begins with white space, a comment or a directive."""
_HEAD = 4096


@dataclass(frozen=True)
class Input:
    """A file that may hold device code. path: on disk, of the file or of the wheel that it is a member of.

    is_named: the user named the file itself, rather than a folder or wheel that it was found in.
    """

    path: Path
    is_named: bool
    member: Member | None = None

    @property
    def name(self) -> str:
        """As shown: the path; for a member, the wheel's path followed by the member's name."""
        return f"{self.path}/{self.member.name}" if self.member else str(self.path)

    @property
    def stem(self) -> str:
        """The file's own name without its folder and its last suffix."""
        # What a wheel calls its members need not be a path of this system.
        return Path(self.member.name.rpartition("/")[2]).stem if self.member else self.path.stem

    def data(self) -> memoryview:
        """The bytes: mapped where they lie; of a deflated member in a temporary file that has no name any more.

        Raises FormatError for a file that is empty, not a regular file or damaged, OSError as ``open`` and for a full
        disk.
        """
        if self.member is None:
            return _mapped(self.path)
        if not self.member.compressed:
            return self.member.payload
        return _unpacked(self.member)

    def read(self, data: memoryview, *, search_data: bool = True) -> tuple[Container, ...]:
        """Its containers. data: what ``data`` gave. search_data: as for ``read_file``. Raises as ``read_file``."""
        # By its path, since thin archives name files beside themselves.
        if self.member is None:
            return read_file(self.path, search_data=search_data)
        return read_data(data, self.name, search_data=search_data)


def find_inputs(
    names: Sequence[str], refused: Callable[[str, Exception], None], looking: Callable[[str], None] = lambda _: None
) -> Iterator[Input]:
    """Every file named, and of folders and wheels every file that begins as one with device code does.

    Folders are walked in the order of their names, each file and folder where its name stands; links in them are not
    followed, and what is neither file nor folder is passed over. Wheels are looked into wherever they are, other ZIP
    files where they are named. refused: called with what could not be looked into, by its name, and why (FormatError
    or OSError); the search goes on. looking: called with what is looked into next.
    """
    for name in names:
        path = Path(name)
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                yield from _walk(path, refused, looking)
            elif stat.S_ISREG(status.st_mode) and _head(path, len(_ZIP_MAGIC)) == _ZIP_MAGIC:
                yield from _members(path, refused, looking)
            else:
                yield Input(path, is_named=True)
        except (NeutrinoError, OSError) as error:
            refused(name, error)


def _walk(folder: Path, refused: Callable[[str, Exception], None], looking: Callable[[str], None]) -> Iterator[Input]:
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            # A name that lost its file meanwhile, or became a link, is caught as any other fault.
            status = path.stat() if path is folder else path.lstat()
            if stat.S_ISDIR(status.st_mode):
                looking(str(path))
                waiting += sorted(path.iterdir(), key=os.fsencode, reverse=True)
            elif stat.S_ISREG(status.st_mode) and status.st_size:
                head = _head(path, _HEAD)
                if head.startswith(_ZIP_MAGIC) and path.suffix == _WHEEL_SUFFIX:
                    yield from _members(path, refused, looking)
                elif _may_hold_device_code(head):
                    looking(str(path))
                    yield Input(path, is_named=False)
        except (NeutrinoError, OSError) as error:
            refused(str(path), error)


def _members(path: Path, refused: Callable[[str, Exception], None], looking: Callable[[str], None]) -> Iterator[Input]:
    from neutrino.fatbin.wheel import first_bytes, read_members

    for member in read_members(_mapped(path), str(path)):
        found = Input(path, is_named=False, member=member)
        try:
            head = first_bytes(member, _HEAD)
        except FormatError as error:
            refused(found.name, error)
            continue
        if _may_hold_device_code(head):
            looking(found.name)
            yield found


def _may_hold_device_code(head: bytes) -> bool:
    if head.startswith(_MAGICS):
        return True
    if head[:1] and head[:1] in _TEXT_BEGINS:
        from neutrino.fatbin.ptxscan import is_ptx

        return is_ptx(head)
    return False


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(str(path), 0, "file", _kind(status.st_mode), "a regular file, a folder or a wheel")
    if not status.st_size:
        raise FormatError(str(path), 0, "file", "empty", "a file with content")


def _kind(mode: int) -> str:
    for test, word in (
        (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    ):  # fmt: skip
        if test(mode):
            return word
    return "not a regular file"


def _open(path: Path) -> int:
    # Not to wait for the other end of what has become a FIFO since it was looked at.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _head(path: Path, size: int) -> bytes:
    descriptor = _open(path)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def _mapped(path: Path) -> memoryview:
    descriptor = _open(path)
    try:
        _check_regular(path, os.fstat(descriptor))
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)


def _unpacked(member: Member) -> memoryview:
    import shutil
    import tempfile

    from neutrino.fatbin.wheel import decode

    name = f"{member.file}/{member.name}"
    folder = tempfile.gettempdir()
    if shutil.disk_usage(folder).free < member.size:
        raise OSError(errno.ENOSPC, f"no room for its {member.size} bytes in {folder}; set TMPDIR", name)
    with tempfile.TemporaryFile(prefix="neutrino-") as file:
        decode(member, file)
        file.flush()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
