"""The version of a tool, which is stored in a file after the tool has been asked once."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from pathlib import Path

from neutrino.errors import NeutrinoError, ToolError
from neutrino.places import cache_root
from neutrino.private_files import private_folder, read_private, write_private
from neutrino.toolchain.process import run_tool

_VERSION = re.compile(r"V(\d+\.\d+\.\d+)\b")
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_BUILD = re.compile(r"^Build (\S+)", re.MULTILINE)
_VERSIONS_FILE = "assemblers.json"


@functools.lru_cache(maxsize=64)
def release_at(path: Path) -> tuple[tuple[int, int, int], str] | None:
    """Return the version of the tool at a path, such as (13, 0, 88), and a string with its version and build.

    The string differs between builds, so it is used in cache keys. None when the tool fails or prints no version. The
    result is stored in a file in the cache folder; the tool is run again when its path, size or modification time
    changes.
    """
    status = path.stat()
    stamp = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    versions = _known_versions()
    # The tool is run, and the file written, only the first time.
    if stamp not in versions:
        try:
            printed = run_tool([path, "--version"], timeout=60).stdout.decode("utf-8", "replace")
        except ToolError:
            return None
        version_match, build_match = _VERSION.search(printed), _BUILD.search(printed)
        if not version_match:
            return None
        versions[stamp] = (version_match[1], build_match[1] if build_match else "unknown")
        # Without a writable cache folder the next process only has to run the tool again.
        with contextlib.suppress(OSError, NeutrinoError):
            write_private(private_folder(cache_root()) / _VERSIONS_FILE, json.dumps(versions).encode())
    version, build = versions[stamp]
    major, minor, patch = map(int, version.split("."))
    return (major, minor, patch), f"{version} {build}"


def _known_versions() -> dict[str, tuple[str, str]]:
    """Read the file of versions: (version, build) of each tool by its stamp.

    Empty if the file is missing or damaged; invalid rows are left out.
    """
    try:
        data = read_private(cache_root() / _VERSIONS_FILE)
        rows = json.loads(data) if data else {}
    except (OSError, NeutrinoError, ValueError):
        return {}
    if not isinstance(rows, dict):
        return {}
    # JSON has a tuple as a list. The version is checked because release_at splits it; the build may be any text.
    return {
        stamp: (row[0], row[1])
        for stamp, row in rows.items()
        if isinstance(row, list) and len(row) == 2 and _RELEASE.fullmatch(str(row[0]))
    }
