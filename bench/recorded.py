"""Files of recorded results, and how their verdicts are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = Any


class ResultsError(Exception):
    """A file of results that is missing, or is not such a file; the message says which."""


def judge_files(paths: Sequence[Path], made_by: str, keys: Sequence[str], say: Callable[..., int]) -> int:
    """Read files of recorded results and print verdicts on them. Returns the exit status: that of ``say``, or 2 without
    a file.

    keys: what each file has. say: takes the results in the order of the paths, prints, returns the status. made_by: the
    command that records them, which the message for a missing file names.
    """
    results = []
    for path in paths:
        try:
            results.append(read_results(path, keys))
        except ResultsError as error:
            print(f"{path}: {error}; record it with `{made_by}`", file=sys.stderr)
            return 2
    return say(*results)


def save(path: Path, results: Mapping[str, Json]) -> None:
    """Write results to a file that ``load`` reads. Their ``rows``, where all have the same keys, become a table."""
    results = dict(results)
    rows = results.pop("rows", [])
    names = list(rows[0]) if rows and isinstance(rows[0], dict) else []
    if names and all(list(row) == names for row in rows):
        results["columns"], rows = names, [list(row.values()) for row in rows]
    text = json.dumps(results, separators=(",", ":"))
    if rows:
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        text = f'{text[:-1]}{"," if results else ""}"rows":[\n{lines}]}}'
    path.write_text(text + "\n")


def load(path: Path) -> Json:
    """Read results that ``save`` wrote, or other JSON."""
    found = json.loads(path.read_text())
    if isinstance(found, dict) and "columns" in found and "rows" in found:
        columns = found.pop("columns")
        found["rows"] = [dict(zip(columns, row, strict=True)) for row in found["rows"]]
    return found


def read_results(path: Path, keys: Sequence[str]) -> dict[str, Json]:
    """The object in a file of results. keys: those that it must have. Raises ResultsError."""
    try:
        found = load(path)
    except OSError as error:
        raise ResultsError(f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ResultsError(f"holds a {type(found).__name__}, expected an object with {', '.join(keys)}")
    missing = [key for key in keys if key not in found]
    if missing:
        raise ResultsError(f"has no {', '.join(missing)}")
    return found
