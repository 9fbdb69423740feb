"""Reading and probing PTX in two trees of Neutrino that take turns: ``python -m bench.two_trees OTHER FOLDER ...``.

OTHER is a checkout of another commit (``git worktree add --detach OTHER COMMIT``); each FOLDER of ``.ptx`` files is one
part of the result. For each file and probe both trees read the text, write the twins of all its kernels and put them
together, each tree in a process of its own. They take turns part by part, as a tree reads the files of a library one
after another; processor time is counted, for each file the best of several rounds. Prints per
part and probe the time of OTHER, of this tree, their ratio, and how many files' twins differ; then the same for the
files with many kernels for their size, and for the others.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROBES = ("gmem_bytes", "inst_count")
SMALL_KERNEL = 1024
"""Bytes of text for each kernel, up to which a file counts as one with many."""


def _first(*names: str) -> Any:
    """Import the first of these modules that the tree has: older trees have them under other names.

    Raises ModuleNotFoundError when it has none.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(", ".join(names))


def work() -> None:
    """Serve requests: read a probe's name and paths of PTX files, a line of JSON, from standard input, and answer with
    a line each."""
    probe_files = _first("neutrino.verification", "neutrino.probing.toml")
    twins = _first("neutrino.ptx.instrument.programs", "neutrino.ptx.instrument.module_twins")
    module = _first("neutrino.ptx.text.module", "neutrino.ptx.module")
    sets = {probe: probe_files.load_probes([probe]) for probe in PROBES}
    for line in sys.stdin:
        probe, paths = json.loads(line)
        for path in paths:
            text = Path(path).read_bytes().decode("latin-1").rstrip("\0")
            start = time.process_time()
            made = twins.probe_module(module.parse(text), sets[probe], version=(9, 0))
            rendered = made.render()
            spent = time.process_time() - start
            skipped = [[kernel.name, str(kernel.reason), kernel.detail] for kernel in made.skipped]
            digest = hashlib.sha256(json.dumps([rendered, skipped]).encode()).hexdigest()
            kernels = len(made.kernels) + len(skipped)
            print(json.dumps({"seconds": spent, "digest": digest, "kernels": kernels, "bytes": len(text)}), flush=True)


class _Tree:
    """A process that works with one tree."""

    def __init__(self, root: Path) -> None:
        """Start a process that works with one source tree. root: the checkout whose Neutrino it uses."""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--work"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(root)},
        )  # fmt: skip

    def ask(self, probe: str, paths: list[Path]) -> list[dict[str, Any]]:
        """Let the other process probe PTX files; return for each its processor seconds, a digest of the result, and
        sizes.

        Those are numbers of kernels and bytes; the digest is of the twins (copies with probes). Raises RuntimeError
        without pipes.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        self._process.stdin.write(json.dumps([probe, [str(path) for path in paths]]) + "\n")
        self._process.stdin.flush()
        return [json.loads(self._process.stdout.readline()) for _ in paths]

    def close(self) -> None:
        """End the process that works with the other tree, and wait for it."""
        self._process.communicate()


def measure(trees: tuple[_Tree, _Tree], paths: list[Path], probe: str, rounds: int) -> list[dict[str, Any]]:
    """Probe files in both trees, in turns.

    Returns for each file the best seconds of either (other, own), and whether the twins (copies with probes) are the
    same.
    """
    rows = []
    turns = [[tree.ask(probe, paths) for tree in trees] for _ in range(rounds)]
    answers_of_trees = [list(zip(*answers, strict=True)) for answers in zip(*turns, strict=True)]
    for path, other, own in zip(paths, *answers_of_trees, strict=True):
        rows.append({
            "other": min(answer["seconds"] for answer in other), "own": min(answer["seconds"] for answer in own),
            "same": other[0]["digest"] == own[0]["digest"], "bytes": own[0]["bytes"], "kernels": own[0]["kernels"],
            "path": str(path),
        })  # fmt: skip
    return rows


def shown(title: str, rows: list[dict[str, Any]]) -> str:
    """Return a line that compares two trees: files, seconds in each tree, their ratio. title: what the rows are of."""
    other, own = (sum(row[side] for row in rows) for side in ("other", "own"))
    differ = sum(not row["same"] for row in rows)
    size = sum(row["bytes"] for row in rows)
    return (
        f"{title:42} {len(rows):5} files {size / 1e6:7.2f} MB  other {other:8.3f} s  own {own:8.3f} s  "
        f"ratio {own / other if other else 0:5.3f}  {differ} differ"
    )


def main() -> int:
    """Print what reading PTX files and writing their twins costs in processor time, in this checkout and in OTHER, and
    which files' twins differ. Returns the exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.two_trees", description="Compare two trees' processor time.")
    parser.add_argument("other", type=Path, metavar="OTHER", help="checkout of another commit")
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="with .ptx files, at any depth")
    parser.add_argument("--rounds", type=int, default=3, help="how often each file is read (default %(default)s)")
    chosen = parser.parse_args()
    trees = (_Tree(chosen.other.resolve()), _Tree(ROOT))
    rows_by_probe: dict[str, list[dict[str, Any]]] = {probe: [] for probe in PROBES}
    for folder in chosen.folders:
        paths = sorted(path.resolve() for path in folder.rglob("*.ptx"))
        for probe in PROBES:
            rows = measure(trees, paths, probe, chosen.rounds)
            rows_by_probe[probe] += rows
            print(shown(f"{folder.name} {probe}", rows), flush=True)
            for row in rows:
                if not row["same"]:
                    print("  differs:", row["path"])
    for probe, rows in rows_by_probe.items():
        small = [row for row in rows if row["bytes"] <= SMALL_KERNEL * max(row["kernels"], 1)]
        print(shown(f"a kernel per kB or more, {probe}", small))
        print(shown(f"fewer, {probe}", [row for row in rows if row not in small]))
    for tree in trees:
        tree.close()
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    else:
        sys.exit(main())
