"""The text of probed kernels and of their sources, with what was recorded at each line, for the source view."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neutrino.page.machine_code import machine_code
from neutrino.page.site_lines import STARTS, KernelText, site_lines
from neutrino.page.source import Blocks, Json, Source
from neutrino.tracing.summary import KernelSummary, MapSummary

_TEXTS = ("original.ptx", "original.s")
_LANGUAGES = frozenset((
    ".c", ".cc", ".cl", ".cpp", ".cu", ".cuh", ".cxx", ".f", ".f90", ".h", ".hh", ".hip", ".hpp", ".hxx", ".inc",
    ".inl", ".ipp", ".jl", ".mlir", ".mojo", ".py", ".pyx", ".rs", ".tpp", ".zig",
))  # fmt: skip
"""Names' ends of files that are read because a trace names them: it might name any file."""
_MOST_BYTES = 8 << 20
"""Of a text that is read."""
_MOST_LINES = 6000
"""Of a kernel's text in a page, else those about its sites."""
_AROUND = 25
"""Lines before and after one with a site that are in a page of a longer text."""
_MOST_KERNELS = 64
_MOST_ASSEMBLED = 8
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"((?:[^"\\]|\\.)*)"\s+)?"((?:[^"\\]|\\.)*)"')
_GCN_LOC = re.compile(r"^\s*;\s+(\S+):(\d+)(?::\d+)?\s*$")


def prepare_sources(source: Source, blocks: Blocks) -> Json:
    """Write the texts of probed kernels and of the sources that they name into a page; return what says where they are.

    Of a source file it is what the file has now: whether it has changed since is not known.
    """
    kernels: list[Json] = []
    version = source.summary.trace.process.get("driver_version")
    driver = version if isinstance(version, int) and not isinstance(version, bool) else None
    files: dict[str, int | str] = {}
    shown = sorted(source.summary.kernels, key=lambda kernel: -kernel.submitted)
    for kernel in shown[:_MOST_KERNELS]:
        manifest = kernel.kernel.manifest
        text = _text_of(kernel)
        if manifest is None or text is None:
            continue
        sites = site_lines(manifest, text)
        numbers = {site["site"] for site in manifest.sites if isinstance(site.get("site"), int)}
        lines = _chosen_lines(text, {line for line, _ in sites.values()})
        places = {line: text.places[line] for line in lines if line in text.places}
        # What the manifest says of sites is the module's, whose list of files the kernel's text may lack.
        places |= {line: parted for line, place in sites.values() if (parted := _parted(place))}
        named = sorted({path for path, _ in places.values()})
        for path in named[:32]:
            if path not in files:
                files[path] = _source_file(path, _folders(source), blocks)
        number_of = {path: at for at, path in enumerate(named)}
        document: Json = {
            "lines": [[line, text.lines[line - 1][:400]] for line in lines],
            "shown": [line + text.later.get(line, 0) for line in lines],
            "places": [[line, number_of[path], at] for line, (path, at) in sorted(places.items())],
            "sites": [[number, line] for number, (line, _) in sorted(sites.items())],
        }
        if source.is_assembled and text.name.endswith(".ptx"):
            document["code"] = (
                machine_code(manifest, text.lines, driver) if len(kernels) < _MOST_ASSEMBLED
                else {"fault": f"the page has machine code of the first {_MOST_ASSEMBLED} kernels"}
            )  # fmt: skip
        kernels.append({
            "kernel": kernel.kernel.id, "text": text.name, "cut": len(lines) < len(text.lines),
            "block": blocks.add_json(document), "files": named, "measures": list(_measures(kernel.maps)),
            "elsewhere": len(numbers - set(sites)),
        })  # fmt: skip
    return {"kernels": kernels, "files": files, "left_out": max(len(shown) - _MOST_KERNELS, 0)}


def _text_of(kernel: KernelSummary) -> KernelText | None:
    """Return the text that a kernel's twin (copy with probes) was made of; None if it cannot be read."""
    for name, found in kernel.kernel.originals():
        if name in _TEXTS and len(found) <= _MOST_BYTES:
            text = KernelText(name, re.split("\r\n?|\n", found.decode("utf-8", "replace")))
            _find_places(text)
            return text
    return None


def _find_places(text: KernelText) -> None:
    """Find where the source of each line is: after ``.loc`` in PTX, after a comment of the disassembler in GCN."""
    files: dict[str, str] = {}
    for line in text.lines:
        found = _FILE.match(line)
        if found:
            folder, name = found[2], found[3]
            files[found[1]] = f"{folder}/{name}" if folder and not name.startswith("/") else name
    place: tuple[str, int] | None = None
    for number, line in enumerate(text.lines, 1):
        if STARTS.match(line):
            place = None
        loc = _LOC.match(line)
        comment = None if loc else _GCN_LOC.match(line)
        if loc:
            place = (files[loc[1]], int(loc[2])) if loc[1] in files and int(loc[2]) else None
        elif comment:
            place = (comment[1], int(comment[2]))
        elif place is not None and line.strip() and not line.lstrip().startswith(("//", ";", ".", "}", "{")):
            text.places[number] = place


def _chosen_lines(text: KernelText, used: set[int]) -> list[int]:
    """Return the numbers of a text's lines that are in a page: all, or of long texts those about lines with sites."""
    if len(text.lines) <= _MOST_LINES:
        return list(range(1, len(text.lines) + 1))
    chosen: set[int] = set()
    for line in sorted(used)[: _MOST_LINES // 4]:
        chosen.update(range(max(line - _AROUND, 1), min(line + _AROUND, len(text.lines)) + 1))
    return sorted(chosen)[:_MOST_LINES]


def _folders(source: Source) -> list[Path]:
    """Return the folders in which sources without a whole path are looked for: those of ``--source``, and where the
    program and its libraries were.
    """
    trace = source.summary.trace
    named = [trace.process.get("folder"), *(image.get("source") for image in trace.images)]
    paths = [Path(name) for name in named if isinstance(name, str) and name.startswith("/")]
    return [*source.folders, *(path if path.is_dir() else path.parent for path in paths[:16])]


def _parted(place: str) -> tuple[str, int] | None:
    """Return the file and line of a place such as ``kernel.cu:42``; None if it is none."""
    path, _, line = place.rpartition(":")
    return (path, int(line)) if path and line.isdecimal() and line.isascii() and len(line) < 10 else None


def _source_file(path: str, folders: list[Path], blocks: Blocks) -> int | str:
    """Write a source file into the page; return the number of its block, or why it is not there.

    folders: in which it is looked for, too, by the end of its path.
    """
    if Path(path).suffix.lower() not in _LANGUAGES:
        return "its name is not that of a source"
    parts = [part for part in Path(path).parts if part != ".."]
    ends = [Path(*parts[at:]) for at in range(len(parts)) if parts[at] != "/"]
    candidates = [Path(path)] if path.startswith("/") else []
    for candidate in (*candidates, *(folder / end for folder in folders for end in ends)):
        text = _read(candidate)
        if text is not None:
            return blocks.add_json([line[:400] for line in text.split("\n")])
    return "it was not found; --source FOLDER says where sources are"


def _read(path: Path) -> str | None:
    """Return a source's text; None if there is none that can be read, or it is too long, or a link to what is no
    source: whoever made the trace may have made the link.
    """
    try:
        if path.resolve().suffix.lower() not in _LANGUAGES:
            return None
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MOST_BYTES:
            return None
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return None


def _measures(maps: Iterable[MapSummary]) -> Iterable[Json]:
    """Yield what maps have by site: a name, how the values of several sites of one line are put together, and values.

    A mean is written as sums and counts.
    """
    for entry in maps:
        if entry.sites:
            yield {
                "name": f"{entry.name}: records", "kind": "sum",
                "values": [[site.number, site.records] for site in entry.sites],
            }  # fmt: skip
        keys = [key for key in entry.keys if key.place or key.instruction]
        if not keys:
            continue
        sums = [key for key in keys if isinstance(key.kept.get("sum"), int)]
        if sums:
            values = [[key.key, key.kept["sum"], key.count] for key in sums if key.count]
            yield {"name": f"{entry.name}: mean", "kind": "mean", "values": values}
            yield {
                "name": f"{entry.name}: sum", "kind": "sum", "values": [[key.key, key.kept["sum"]] for key in sums],
            }  # fmt: skip
        yield {"name": f"{entry.name}: count", "kind": "sum", "values": [[key.key, key.count] for key in keys]}
        for name in ("max", "min"):
            kept: list[list[Any]] = [[key.key, key.kept[name]] for key in keys if isinstance(key.kept.get(name), int)]
            if kept:
                yield {"name": f"{entry.name}: {name}", "kind": name, "values": kept}
