"""Images written out as files of their own, under names that stay inside the output folder.

Names come from files that anyone may have made: member names of archives and wheels, target ids of bundles. What
becomes part of a file name is reduced to letters, digits and ``+ - _ .``, so that none leads elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

from neutrino.fatbin.container import Container
from neutrino.fatbin.image import Image, ImageKind

EXTENSIONS = {
    ImageKind.PTX: "ptx",
    ImageKind.CUBIN: "cubin",
    ImageKind.NVVM: "ltoir",
    ImageKind.CODE_OBJECT: "hsaco",
    ImageKind.BITCODE: "bc",
    ImageKind.UNKNOWN: "bin",
}
_UNSAFE = re.compile(r"[^A-Za-z0-9+_.-]")
_LONGEST_PART = 100
"""Characters kept of a name: file systems allow 255 bytes in all."""


def safe_part(text: str) -> str:
    """Text as a part of a file name: other characters than letters, digits and ``+-_.`` become ``_``."""
    part = _UNSAFE.sub("_", text)
    # Neither hidden nor a folder's name for itself or its parent, nor taken for an option.
    return re.sub(r"^[.-]", "_", part)[:_LONGEST_PART] or "_"


class Namer:
    """Gives each input a unique stem: the second one of a name gets ``-2``, and so on."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def stem(self, stem: str) -> str:
        """The stem to use for an input with this stem. Inputs must come in the same order to get the same."""
        base = safe_part(stem)
        chosen, count = base, 1
        while chosen in self._taken:
            count += 1
            chosen = f"{base}-{count}"
        self._taken.add(chosen)
        return chosen


def file_name(stem: str, container: Container, image: Image, extension: str | None = None) -> str:
    """``<stem>.<container>.<image>.<arch>.<ext>``. stem: as a Namer gave it."""
    arch = safe_part(image.arch) if image.arch else "unknown"
    return f"{stem}.{container.index}.{image.index}.{arch}.{extension or EXTENSIONS[image.kind]}"


def write_aside(target: Path, data: bytes | memoryview) -> None:
    """Write a file aside and put it in place of what has its name: links to elsewhere are replaced, not followed.

    Raises OSError that names target: there is no half file then.
    """
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            aside.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror, str(target)) from error
