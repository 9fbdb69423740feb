"""Where traces are: a folder, or those right inside it."""

from __future__ import annotations

import os
from pathlib import Path

from neutrino.errors import TraceError


def find_traces(path: str | Path) -> list[Path]:
    """Return the trace directories at a path: the path itself, or else those right inside it, oldest first.

    Raises TraceError when there are none.
    """
    folder = Path(path)
    # Whatever it is: what is no file is reported when it is read.
    if os.path.lexists(folder / "events.jsonl"):
        return [folder]
    try:
        inside = [entry for entry in folder.iterdir() if os.path.lexists(entry / "events.jsonl")]
    except NotADirectoryError:
        raise TraceError(f"{path}: a file, and traces are folders: give one, or a folder of them") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    outer = next((parent for parent in folder.absolute().parents if (parent / "events.jsonl").is_file()), None)
    if not inside and outer is not None:
        raise TraceError(f"{path}: a folder in a trace, and no trace: give {outer}")
    if not inside:
        raise TraceError(f"{path}: neither a trace directory nor a folder of them: there is no events.jsonl")
    return sorted(inside, key=_age)


def _age(folder: Path) -> tuple[int, str]:
    """Return a key by which traces sort from old to new: when the launches were last written, then the name."""
    try:
        return (folder / "launches.bin").stat().st_mtime_ns, folder.name
    except OSError:
        # Without that file the trace is damaged, which is reported when it is read.
        return 0, folder.name
