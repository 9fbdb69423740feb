"""Which version a tool is; asked once, then answered from a file."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from pathlib import Path

from neutrino.errors import NeutrinoError, ToolError
from neutrino.private_files import cache_root, private_folder, read_private, write_private
from neutrino.toolchain.process import run_tool

_VERSION = re.compile(r"V(\d+\.\d+\.\d+)\b")
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_BUILD = re.compile(r"^Build (\S+)", re.MULTILINE)
_VERSIONS_FILE = "assemblers.json"


@functools.lru_cache(maxsize=64)
def release_at(path: Path) -> tuple[tuple[int, int, int], str] | None:
    """A tool's version, and the same with its build; None when it cannot say. Kept by path, size and time."""
    status = path.stat()
    stamp = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    known = _known_versions()
    if stamp not in known:
        try:
            text = run_tool([path, "--version"], timeout=60).stdout.decode("utf-8", "replace")
        except ToolError:
            return None
        version, build = _VERSION.search(text), _BUILD.search(text)
        if not version:
            return None
        known[stamp] = (version[1], build[1] if build else "unknown")
        # Without a cache folder the next run asks again: slower, never wrong.
        with contextlib.suppress(OSError, NeutrinoError):
            write_private(private_folder(cache_root()) / _VERSIONS_FILE, json.dumps(known).encode())
    release, build_name = known[stamp]
    major, minor, patch = map(int, release.split("."))
    return (major, minor, patch), f"{release} {build_name}"


def _known_versions() -> dict[str, tuple[str, str]]:
    try:
        data = read_private(cache_root() / _VERSIONS_FILE)
        known = json.loads(data) if data else {}
    except (OSError, NeutrinoError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {
        stamp: (entry[0], entry[1])
        for stamp, entry in known.items()
        if isinstance(entry, list) and len(entry) == 2 and _RELEASE.fullmatch(str(entry[0]))
    }
