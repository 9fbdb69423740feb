"""Files of a trace, which may be something else than files: whoever opens a FIFO would wait for a writer, and a link
may lead to a file that the trace's maker could not read, and would like to have in a page that is passed on.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.errors import TraceError

Array = npt.NDArray[Any]
_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


def map_file(path: Path, *, inside: int) -> Array:
    """Map a file read-only and return its bytes as uint8. Raises TraceError when it cannot be read.

    inside: how many of the path's last parts are in a trace, none of which may be a link; 0 for a file of the user's.
    """
    try:
        descriptor = _open(path, inside)
        try:
            if not os.fstat(descriptor).st_size:
                # An empty file cannot be mapped.
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
        finally:
            os.close(descriptor)
    except (OSError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_file(path: Path, *, inside: int) -> bytes:
    """Return what is in a file. Raises TraceError when it cannot be read, or is larger than the memory.

    inside: as for ``map_file``.
    """
    try:
        with os.fdopen(_open(path, inside), "rb") as file:
            return file.read()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (MemoryError, OverflowError) as error:
        raise TraceError(f"{path}: cannot be read: there is not enough memory for it") from error


def read_files(
    folder: Path, pattern: str, inside: int, tolerate: Callable[[TraceError], None]
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file in a folder, by name. inside: as for ``map_file``. tolerate: gets the
    error of one that cannot be read, which is left out.
    """
    for path in sorted(folder.glob(pattern)):
        try:
            content = read_file(path, inside=inside)
        except TraceError as error:
            tolerate(error)
        else:
            yield path.name, content


def links_in(folder: Path) -> Iterator[TraceError]:
    """Yield an error for each file with probes in a trace that is a link."""
    for path in (folder / "probe.toml", *sorted(folder.glob("probe-*.toml"))):
        if path.is_symlink():
            yield _refused(path)


def parse_json(text: bytes) -> Any:
    """Return what a JSON text has. Raises ValueError for what is no JSON, and for a number that no float can hold:
    no JSON could have it again.
    """
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def is_in_trace(path: Path) -> bool:
    """Whether there is a file right inside a trace. Raises TraceError for a link, which may lead out of the trace."""
    try:
        kind = path.lstat().st_mode
    except OSError:
        return False
    if stat.S_ISLNK(kind):
        raise _refused(path)
    return stat.S_ISREG(kind)


def _open(path: Path, inside: int) -> int:
    """Return a descriptor of a regular file. Raises OSError, and TraceError for what is no such file, and for links
    among the last ``inside`` parts of the path.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = _open_inside(path, inside, flags) if inside else os.open(path, flags)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise TraceError(f"{path}: cannot be read: it is {_KINDS.get(kind, 'no file')}")
    return descriptor


def _finite(text: str) -> float:
    """Return a number. Raises ValueError for ``1e400``, ``Infinity`` and ``NaN``."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no finite number")
    return number


def _open_inside(path: Path, inside: int, flags: int) -> int:
    """Open a file from folder to folder, so that no link is followed, even one that is put there meanwhile."""
    *folders, name = path.parts[-inside:]
    above = Path(*path.parts[:-inside])
    folder = os.open(above, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(folders):
            flags_of_folder = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                inner = os.open(part, flags_of_folder, dir_fd=folder)
            except NotADirectoryError as error:
                if stat.S_ISLNK(os.lstat(part, dir_fd=folder).st_mode):
                    raise _refused(above.joinpath(*folders[: number + 1])) from error
                raise
            os.close(folder)
            folder = inner
        try:
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise _refused(path) from error
            raise
    finally:
        os.close(folder)


def _refused(path: Path) -> TraceError:
    """Return the error about a link in a trace."""
    return TraceError(f"{path}: cannot be read: it is a link, and links in a trace are not followed")
