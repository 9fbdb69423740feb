"""What views are prepared from, and where what they draw is written to."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from neutrino.page.columns import Array, Columns, base64_pieces, gzipped_json, read_columns
from neutrino.tracing.analyses.devices import device_figures
from neutrino.tracing.summary import TraceSummary

Json = Any
MOST_TEXT = 4096
"""Characters of a name or another text of a trace that are in a page."""


@dataclass(frozen=True)
class Source:
    """A trace for a page. document: its object of ``neutrino-report --json``. launches: the numbers of those whose
    records are read; None for all. folders: in which sources of programs are looked for. is_assembled: whether texts
    of kernels are assembled, to show machine code.
    """

    summary: TraceSummary
    document: Json
    launches: range | None = None
    folders: Sequence[Path] = ()
    is_assembled: bool = False


class Blocks:
    """Writes blocks of data into a page, which takes no memory for those that are written.

    A block is a ``<script>`` of a type that browsers do not run, with base64: no data can end it.
    """

    def __init__(self, file: TextIO) -> None:
        """Begin without a block. file: the page, where one may be."""
        self._file = file
        self.count = 0
        self.bytes = 0

    def add(self, columns: Columns) -> int:
        """Write columns; return the block's number. Raises OSError."""
        return self._write(columns.compressed())

    def add_json(self, document: Json) -> int:
        """Write a JSON document; return the block's number. Raises OSError."""
        return self._write(gzipped_json(document))

    def _write(self, data: bytes) -> int:
        """Write compressed data as a block; return its number."""
        number = self.count
        self.count += 1
        self._file.write(f'<script type="text/plain" id="block-{number}">')
        for piece in base64_pieces(data):
            self._file.write(piece)
            self.bytes += len(piece)
        self._file.write("</script>\n")
        return number


class KeptBlocks(Blocks):
    """Blocks that are kept instead of written, for who draws them here."""

    def __init__(self) -> None:
        """Begin without a block."""
        super().__init__(io.StringIO())
        self._kept: list[bytes] = []

    def _write(self, data: bytes) -> int:
        """Keep compressed data; return their number."""
        self._kept.append(data)
        return len(self._kept) - 1

    def columns(self, number: int) -> dict[str, Array]:
        """Return the columns of a block by name."""
        return read_columns(self._kept[number])

    def json(self, number: int) -> Json:
        """Return the JSON document of a block."""
        return json.loads(gzip.decompress(self._kept[number]))


def multiprocessors_of(source: Source, launch: int) -> int:
    """Return how many multiprocessors the device of a launch has, by its vendor's data sheet; 0 if that is not known,
    as of a part of a device (MIG)."""
    trace = source.summary.trace
    ordinal = int(trace.launches["device"][launch])
    name = next((str(device.get("name", "")) for device in trace.devices if device.get("ordinal") == ordinal), "")
    figures = None if "MIG" in name else device_figures(name)
    return figures.multiprocessors if figures else 0


def shortened(value: Json) -> Json:
    """Return a JSON document with its long texts cut, which say so. Keys are cut, too."""
    if isinstance(value, str):
        if len(value) <= MOST_TEXT:
            return value
        return f"{value[:MOST_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        return {shortened(str(key)): shortened(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(entry) for entry in value]
    return value


def evenly(count: int, most: int) -> Sequence[int]:
    """Return the places of at most ``most`` of ``count`` things: evenly chosen, with the first and the last one."""
    if count <= most:
        return range(count)
    return sorted({at * (count - 1) // (most - 1) for at in range(most)}) if most > 1 else range(min(count, 1))
