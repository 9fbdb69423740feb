"""Images of the program whose kernels are asked for one by one: files in the folder of the listener's socket.

A process writes an image there once, however many of its kernels it asks for. A worker keeps what it has read of
images. The second one that reads an image leaves the machine code that the driver picks, decoded, for those that
follow: in the run's folder for temporary files, since that of sockets is often in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from neutrino.abi.requests import OF_KEPT_KERNEL, OF_KERNEL
from neutrino.errors import FormatError, NeutrinoError

DIGEST_BYTES = 32
"""Of an image's SHA-256."""


@dataclass(frozen=True)
class Asked:
    """What a request asks for. image: its bytes, b"" where it is in a file. kernel: the mangled name of the only kernel
    that is asked for, "" for all. digest: of the image in a file, b"" without one."""

    image: bytes
    kernel: str = ""
    digest: bytes = b""


def asked_for(data: bytes) -> Asked:
    """Return what a request asks for. data: what follows its head. Raises FormatError for a name without an end."""
    prefix = next((one for one in (OF_KERNEL, OF_KEPT_KERNEL) if data.startswith(one)), None)
    if prefix is None:
        return Asked(data)
    name, end, rest = data[len(prefix) :].partition(b"\n")
    if not end or (prefix == OF_KEPT_KERNEL and len(rest) != DIGEST_BYTES):
        raise FormatError("image", len(prefix), "the kernel's name", "without an end", "a line feed and more after it")
    kernel = name.decode("latin-1")
    return Asked(b"", kernel, rest) if prefix == OF_KEPT_KERNEL else Asked(rest, kernel)


class KeptImages:
    """The images in one folder, for devices of one architecture."""

    def __init__(self, folder: Path, scratch: Path, arch: str) -> None:
        """folder: of the listener's socket. scratch: for machine code; not used if others than this user can look into
        it. arch: such as ``sm_90``."""
        self._folder = folder
        self._arch = arch
        status = scratch.stat() if scratch.is_dir() else None
        is_private = status is not None and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        self._scratch = scratch if is_private else None

    def read(self, digest: bytes) -> bytes:
        """Return the bytes of an image, or the machine code that stands for it. digest: the image's SHA-256.

        Raises NeutrinoError if there is no such image.
        """
        path, code = self._folder / digest.hex(), self._code(digest)
        with contextlib.suppress(OSError):
            if code is not None:
                return code.read_bytes()
        try:
            image = path.read_bytes()
        except OSError as error:
            raise NeutrinoError(f"the program's image is not there any more: {error.strerror}") from error
        if hashlib.sha256(image).digest() != digest:
            raise NeutrinoError("the program's image was damaged on the way")
        return image

    def keep_alone(self, digest: bytes, code: bytes | memoryview) -> None:
        """Write the machine code that stands for an image, unless that was done, or nobody else has read the image so
        far. What cannot be written is not kept."""
        path = self._code(digest)
        if path is None or path.exists():
            return
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                path.with_suffix(f"{path.suffix}.read").touch(mode=0o600, exist_ok=False)
                return
            descriptor, temporary = tempfile.mkstemp(dir=self._scratch, prefix=".", suffix=".part")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(code)
                Path(temporary).replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
                raise

    def _code(self, digest: bytes) -> Path | None:
        """Return the path of the machine code that stands for an image; None where none is kept."""
        return self._scratch / f"{digest.hex()}.{self._arch}" if self._scratch is not None else None
