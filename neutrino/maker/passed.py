"""PTX that passed through a program's process, kept for later runs.

CuPy and Numba keep in files what they have compiled: machine code, without the PTX. When a later run loads it, the hook
looks here for the PTX from which an earlier run has compiled it (``image/passed_file.c``). A file is
``passed/<2 hex digits>/<64 hex digits>.ptx`` under the cache, by the SHA-256 of the machine code as fatbins store it:
who compiled it, NUL and zeros up to 32 bytes; the SHA-256 of the text; the text.

Other compilers, CuTe DSL's among them, have a static library make the machine code, so that no PTX passes by; but when
asked they leave both in files. The user names their folder (``--ptx``).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from neutrino.errors import FormatError
from neutrino.private_files import private_folder, write_private

_IDENTIFIER = "neutrino: passed by "
"""How the name of the source file begins in fatbins that the hook makes of machine code and its PTX (``passed.c``)."""
_HEAD = 256
"""Bytes at the start of a fatbin in which the name stands."""
_NAME_SIZE = 32
_MOST_BYTES = 64 << 20
"""Of a file; the hook reads no larger ones."""
SUFFIX = ".ptx"
OF_USER = "--ptx"
"""The option that names a folder; stands in place of the compiler's name."""


def keep_passed(root: Path, image: bytes) -> Path | None:
    """Store the PTX of an image that the hook has made of machine code and the PTX that it was compiled from.

    root: the cache's folder. Returns the file's path; None for any other image. Raises OSError; no incomplete file is
    left then.
    """
    if _IDENTIFIER.encode() not in image[:_HEAD]:
        return None
    # The listener imports this module, and starts before the program does.
    from neutrino.fatbin import ImageKind, read_container

    try:
        text, code = read_container(image, "image").images
        data = text.data.rstrip(b"\0")
    except (FormatError, ValueError):
        return None
    by = text.identifier.removeprefix(_IDENTIFIER).encode("latin-1")
    if (text.kind, code.kind) != (ImageKind.PTX, ImageKind.CUBIN) or len(by) >= _NAME_SIZE:
        return None
    if not text.identifier.startswith(_IDENTIFIER):
        return None
    path = _path(root, code.payload)
    if not path.exists():
        _write(root, path, by, data)
    return path


def keep_beside(root: Path, place: Path) -> int:
    """Store the PTX in files beside machine code: of each ``NAME.cubin``, what ``NAME.ptx`` in the same folder holds.

    root: the cache's folder. place: a folder, searched with all folders in it, or one ``NAME.cubin``. Returns how many
    there were. Raises OSError.
    """
    found = 0
    for code in sorted(place.rglob("*.cubin")) if place.is_dir() else [place]:
        text = code.with_suffix(SUFFIX)
        if not (code.is_file() and text.is_file()) or max(path.stat().st_size for path in (code, text)) > _MOST_BYTES:
            continue
        payload, data = code.read_bytes(), text.read_bytes().rstrip(b"\0")
        # As in a fatbin, whose payloads are of whole words.
        path = _path(root, payload + bytes(-len(payload) % 8))
        _write(root, path, OF_USER.encode(), data)
        found += 1
    return found


def _path(root: Path, payload: bytes | memoryview) -> Path:
    name = hashlib.sha256(payload).hexdigest()
    return root / "passed" / name[:2] / f"{name}{SUFFIX}"


def _write(root: Path, path: Path, by: bytes, data: bytes) -> None:
    for folder in (root, root / "passed", path.parent):
        private_folder(folder)
    # Whoever reads it checks the digest.
    write_private(path, by.ljust(_NAME_SIZE, b"\0") + hashlib.sha256(data).digest() + data, at_once=False)
