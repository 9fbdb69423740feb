"""Which bytes a program's images (GPU code) had as they were loaded: the hashes in a trace, looked for in files of now.

The hook hashes what the program hands to the driver. docs/findings.md says what that shows.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.tracing.files import map_file

if TYPE_CHECKING:
    from neutrino.tracing.trace import Trace

BEGIN = 65536
"""Bytes at the beginning of an image without probes that are hashed, after its size."""
_FATBIN, _ELF = re.escape(struct.pack("<I", 0xBA55ED50)), re.escape(b"\x7fELF")
_HEADER = struct.Struct("<IHHQ")
"""Of a fatbin: magic, version, bytes of the header, bytes after it. The hook takes the container's size from it."""


@dataclass(frozen=True)
class LoadedImage:
    """One image as it was loaded.

    id: as kernels name it. kind: ``fatbin``, ``cubin``, ``ptx``. size: in bytes. source: path of the file that it is
    from, or of the library that handed it to the driver; empty if there is none. digest: in hex. prefix: bytes that
    were hashed before those of the image. is_whole: the digest is over all bytes of the image, else over BEGIN at most.
    file, offset: where these bytes are now; file is None if they were not found.
    """

    id: int
    kind: str
    size: int
    source: str
    digest: str
    prefix: bytes
    is_whole: bool
    file: Path | None = None
    offset: int = 0

    def is_at(self, data: memoryview, offset: int) -> bool:
        """Return whether the image's bytes are at an offset of data."""
        if not 0 <= offset <= len(data) - self.size:
            return False
        found = hashlib.sha256(self.prefix)
        found.update(data[offset : offset + (self.size if self.is_whole else min(self.size, BEGIN))])
        return found.hexdigest() == self.digest


def loaded_images(trace: Trace) -> list[LoadedImage]:
    """Return the images whose bytes were hashed, and where in their sources the same bytes are now."""
    images = [image for event in trace.images if (image := _hashed(event)) is not None]
    found: dict[int, tuple[Path, int]] = {}
    for source in dict.fromkeys(image.source for image in images if image.source):
        found.update(_found_in(Path(source), [image for image in images if image.source == source]))
    return [replace(image, file=found[image.id][0], offset=found[image.id][1]) if image.id in found else image
            for image in images]  # fmt: skip


def _hashed(event: dict[str, Any]) -> LoadedImage | None:
    """Return what an event says of an image's bytes; None if they were not hashed, or it is damaged."""
    try:
        identity, size = int(event["id"]), int(event["size"])
        kind, source = str(event["kind"]), str(event.get("source", ""))
        if "key" in event:
            prefix = bytes.fromhex(event["settings"]) + str(event["arch"]).encode()
            return LoadedImage(identity, kind, size, source, str(event["key"]), prefix, True)
        return LoadedImage(identity, kind, size, source, str(event["begins"]), struct.pack("<Q", size), False)
    except (KeyError, TypeError, ValueError, OverflowError, struct.error):
        return None


def _found_in(path: Path, images: list[LoadedImage]) -> Iterator[tuple[int, tuple[Path, int]]]:
    """Yield which of some images are in a file, by number, and where."""
    try:
        mapped: Any = map_file(path, inside=0)
    except TraceError:
        return
    data = memoryview(mapped)
    fatbins: dict[int, list[int]] = {}
    for match in re.finditer(_FATBIN, data):
        if match.start() + _HEADER.size <= len(data):
            _, _, header, size = _HEADER.unpack_from(data, match.start())
            fatbins.setdefault(header + size, []).append(match.start())
    has_cubins = any(image.kind == "cubin" for image in images)
    cubins = [match.start() for match in re.finditer(_ELF, data)] if has_cubins else []
    for image in images:
        likely = {"fatbin": fatbins.get(image.size, []), "cubin": cubins}.get(image.kind, [0])
        for at in likely:
            if image.is_at(data, at):
                yield image.id, (path, at)
                break

