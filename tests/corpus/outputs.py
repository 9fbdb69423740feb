"""Where runs over a corpus write what they found: below ``build/``, compared with what is recorded. Only ``--out
bench/results/NAME.json`` records.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.recorded import load, save
from bench.tree import ROOT

_MOST_SHOWN = 10
_SHOWN_WIDTH = 300
_OF_THE_RUN = frozenset({"assembled", "files", "seconds", "tree"})
"""Members that differ from run to run."""


OUT_HELP = "the results; below build/ unless given, and compared with those that are recorded"
"""Of ``--out``."""


def output(recorded: Path) -> Path:
    """Return where a run without ``--out`` writes. recorded: the tracked file of such results."""
    return ROOT / "build" / recorded.name


def write(out: Path | None, recorded: Path, results: Mapping[str, Any]) -> None:
    """Write results, and say on stderr where, and what in them differs from what is recorded. out: of ``--out``."""
    out = out or output(recorded)
    out.parent.mkdir(parents=True, exist_ok=True)
    before = load(recorded) if recorded.exists() else {}
    save(out, results)
    print(f"written: {out}", file=sys.stderr)
    if out.resolve() == recorded.resolve():
        return
    # As they are read again.
    print("\n".join(differences(load(out), before, recorded.name)), file=sys.stderr)


def differences(found: Mapping[str, Any], before: Mapping[str, Any], name: str) -> list[str]:
    """Return in lines what differs from what is recorded, without times. name: of the recorded file."""
    ours, theirs = Counter(_parts(found)), Counter(_parts(before))
    new, gone = list((ours - theirs).elements()), list((theirs - ours).elements())
    if not new and not gone:
        return [f"the same as in {name}, but for times"]
    parts = f"{len(new):,} parts of {ours.total():,}; {len(gone):,} recorded ones are not there"
    lines = [f"differs from {name} in {parts}"]
    lines += [f"+ {text[:_SHOWN_WIDTH]}" for text in new[:_MOST_SHOWN]]
    return [*lines, *(f"- {text[:_SHOWN_WIDTH]}" for text in gone[:_MOST_SHOWN])]


def _parts(value: Any, where: str = "") -> Iterator[str]:
    """Yield what can be compared, as JSON after where it is: each row of a table, and each other member."""
    if isinstance(value, dict) and (not where or any(map(_is_table, value.values()))):
        for key, member in value.items():
            if key not in _OF_THE_RUN:
                yield from _parts(member, f"{where} {key}".lstrip())
    elif _is_table(value):
        for row in value:
            # Rows of one table in another are told apart by what the outer one is of.
            has_tables = any(map(_is_table, row.values()))
            yield from _parts(row, f"{where} {next(iter(row.values()))}" if has_tables else where)
    else:
        yield f"{where}: {json.dumps(_lasting(value), sort_keys=True)}"


def _is_table(value: Any) -> bool:
    """Whether a value is a list of objects."""
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _lasting(value: Any) -> Any:
    """Return a value without members that differ from run to run."""
    if isinstance(value, dict):
        return {key: _lasting(one) for key, one in value.items() if key not in _OF_THE_RUN}
    return [_lasting(one) for one in value] if isinstance(value, list) else value
