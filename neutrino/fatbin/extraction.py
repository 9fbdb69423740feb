"""Writing images to files of their own, under names that stay inside the output folder.

Names come from untrusted files: member names of archives and wheels, target ids of bundles. Each part of a file name is
reduced to letters, digits and ``+ - _ .``, so that no name leads to another folder.
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
    ImageKind.TEXT: "s",
    ImageKind.CUBIN: "cubin",
    ImageKind.NVVM: "ltoir",
    ImageKind.CODE_OBJECT: "hsaco",
    ImageKind.BITCODE: "bc",
    ImageKind.UNKNOWN: "bin",
}
_UNSAFE = re.compile(r"[^A-Za-z0-9+_.-]")
_LONGEST_PART = 100
"""Characters that are kept of each part of a name: file systems allow 255 bytes for the whole name."""


def safe_part(text: str) -> str:
    """Make text safe as a part of a file name: all characters but letters, digits and ``+-_.`` become ``_``."""
    part = _UNSAFE.sub("_", text)
    # No leading "." or "-": the file would be hidden, mean a folder ("." and ".."), or look like an option.
    return re.sub(r"^[.-]", "_", part)[:_LONGEST_PART] or "_"


class Namer:
    """Assigns each input file a unique stem, with which its output files begin."""

    def __init__(self) -> None:
        """Prepare to give each input file a unique stem, with which its output files begin; none is taken yet."""
        self._taken: set[str] = set()

    def stem(self, stem: str) -> str:
        """Return a safe stem that no input has yet: ``stem``, or else ``stem-2``, ``stem-3`` and so on.

        The result depends on the inputs before, so inputs in the same order get the same stems.
        """
        base = safe_part(stem)
        unique, count = base, 1
        while unique in self._taken:
            count += 1
            unique = f"{base}-{count}"
        self._taken.add(unique)
        return unique


def file_name(stem: str, container: Container, image: Image, extension: str | None = None) -> str:
    """Return the file name for an image: ``<stem>.<container>.<image>.<arch>.<ext>``.

    stem: of the input file, from a Namer. extension: None for the usual one of the image's kind.
    """
    arch = safe_part(image.arch) if image.arch else "unknown"
    return f"{stem}.{container.index}.{image.index}.{arch}.{extension or EXTENSIONS[image.kind]}"


def write_aside(target: Path, data: bytes | memoryview) -> None:
    """Write data to a temporary file beside the target, and rename it to the target, so that it is never incomplete.

    A link at the target is replaced, not followed. Raises OSError with the target's name; no temporary file is left.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    # The outer try only makes the message name the target, not the temporary file.
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            temporary.replace(target)
        # Also when the user interrupts the program: KeyboardInterrupt is not an Exception.
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror, str(target)) from error
