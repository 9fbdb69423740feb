"""Files that a command may replace: those that it has written before. Others are somebody's work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from neutrino.errors import NeutrinoError

_HEAD = 1 << 20
"""Bytes at the beginning, and at the end, that are looked at. The title of a page is in its first kilobytes."""


def refuse_foreign(path: str | Path, is_own: Callable[[bytes], bool], what: str) -> None:
    """Raise NeutrinoError if a file exists that is not empty, and is not of the kind that would be written there, or if
    there is a folder.

    is_own: of the file's first and last MiB. what: such a file would be, as ``a page of neutrino-report``. What cannot
    be read is left to who writes it; so are devices and pipes.
    """
    target = Path(path)
    try:
        if target.is_dir():
            raise NeutrinoError(f"{path}: a folder, where the name of a file is needed, for {what}")
        if not target.is_file():
            return
        with target.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(os.fstat(file.fileno()).st_size - _HEAD, len(head)))
            head += file.read()
    except (OSError, ValueError):
        return
    if head and not is_own(head):
        raise NeutrinoError(f"{path}: exists, and is not {what}: it is not overwritten; name another file")


def is_page(text: bytes) -> bool:
    """Whether a file is a page of ``neutrino-report --html``."""
    return text.startswith(b"<!doctype html>") and b"<title>Neutrino" in text


def is_timeline(data: bytes) -> bool:
    """Whether a file is one of ``--perfetto``: packets of Perfetto, or gzip's, in which they are."""
    # The first packet, field 1 of a trace, begins with its timestamp, field 8 or 0x40.
    return data.startswith(b"\x1f\x8b") or (data.startswith(b"\n") and b"\x40" in data[2:4] and b"\x01" in data[:64])


def is_events(text: bytes) -> bool:
    """Whether a file is one of ``--iket``."""
    return text.startswith(b"{") and b'"producer": "Neutrino' in text


def is_picture(data: bytes) -> bool:
    """Whether a file is a picture by Matplotlib, which draws those of ``--png`` and ``--svg``."""
    return b"atplotlib" in data
