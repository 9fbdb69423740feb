"""What patching, checking and restoring a library of 2.6 GB costs beside the same one without the bulk.

    python -m bench.ahead_size record             writes bench/results/ahead_size.json
    python -m bench.ahead_size judge              recomputes the verdicts

The library is that of ``examples/embedded``, its device code after a ``.bss`` of 2.6 GB, which is in the file then,
filled here with other bytes than zeros: offsets of containers are above 2 GiB. It is patched in turns with the small
one, whose ``ptxas`` commands are the same, and with plain copies. What is still to be written to the disk is written
between the runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.recorded import judge_files, say_verdicts, timed_run
from bench.tree import made_of

Json = Any
_ROOT = Path(__file__).resolve().parent.parent
RESULTS = _ROOT / "bench" / "results" / "ahead_size.json"
SIZE = 2_600_000_000
MOST_SECONDS = 5.0
"""That patching a library of SIZE takes more than the small one."""
MOST_BYTES = 200 << 20
FEWEST = 3
"""Rounds that count."""
_PATCH = [sys.executable, "-m", "neutrino.cli.patch"]
_BEHIND_BSS = "SECTIONS { .nv_fatbin : { *(.nv_fatbin) } } INSERT AFTER .bss;\n"
_BLOCK = 1 << 26


def record(folder: Path, rounds: int, size: int = SIZE) -> Json:
    """Measure patching a small and a huge library, several times; return the raw samples: seconds and peak bytes, run
    by run.

    folder: with room for three times SIZE. size: of the bulk.
    """
    libraries = {"small": folder / "libsmall.so", "big": folder / "libbig.so"}
    _link(folder, libraries["small"])
    _link(folder, libraries["big"], size)
    _fill(libraries["big"])
    results: Json = {**made_of("ahead_size"), "python": platform.python_version()}
    for name, path in libraries.items():
        samples: Json = {what: [] for what in ("copy", "patch", "check", "restore", "restored")}
        results[name] = {"bytes": path.stat().st_size, **samples}
    for _ in range(rounds):
        for name, path in libraries.items():
            _measure_once(results[name], path)
    return results


def _measure_once(row: Json, library: Path) -> None:
    """Copy, patch, check and restore a library once, and add the seconds and bytes that each took to row.

    restored: whether the original's bytes came back.
    """
    patched, restored = library.with_suffix(".patched"), library.with_suffix(".restored")
    row["copy"].append(_run(["cp", library, patched]))
    patched.unlink()
    row["patch"].append(_run([*_PATCH, library, "-p", "block_sched", "--arch", "sm_90", "-o", patched]))
    row["check"].append(_run([*_PATCH, "--check", patched]))
    row["restore"].append(_run([*_PATCH, "--restore", patched, "-o", restored]))
    row["restored"].append(_digest(restored) == _digest(library))
    patched.unlink()
    restored.unlink()


def judge(results: Json) -> list[str]:
    """Return which bounds on seconds, memory and restored bytes the recorded results break, a line each; nothing when
    all are met."""
    wrong = []
    big, small = results["big"], results["small"]
    if big["bytes"] < SIZE:
        wrong.append(f"{big['bytes']} bytes, at least {SIZE}")
    if min(len(row[what]) for row in (big, small) for what in ("patch", "check", "restore")) < FEWEST:
        wrong.append(f"fewer than {FEWEST} rounds")
    elif extra(results) > MOST_SECONDS:
        wrong.append(f"{extra(results):.2f} s more than the small library, at most {MOST_SECONDS}")
    peak = max(run["peak_bytes"] for what in ("patch", "check", "restore") for run in big[what])
    if peak > MOST_BYTES:
        wrong.append(f"{peak >> 20} MiB of memory, at most {MOST_BYTES >> 20}")
    if not all((*big["restored"], *small["restored"])):
        wrong.append("not restored")
    return wrong


def extra(results: Json, what: str = "patch") -> float:
    """Seconds that a step (patch, check …) takes more for the big library than for the small one, by medians."""
    big, small = (statistics.median(run["seconds"] for run in results[name][what]) for name in ("big", "small"))
    return big - small


def table(results: Json) -> str:
    """Return the figures as a table for people: for each library seconds (median) and peak memory of each step."""
    lines = []
    for name in ("small", "big"):
        words = []
        for what in ("copy", "patch", "check", "restore"):
            runs = results[name][what]
            seconds = statistics.median(run["seconds"] for run in runs)
            words.append(f"{what} {seconds:.2f} s, {max(run['peak_bytes'] for run in runs) >> 20} MiB")
        lines.append(f"{results[name]['bytes'] / 1e6:.1f} MB: {'; '.join(words)}")
    return "\n".join([*lines, f"patching the big one: {extra(results):.2f} s more (limit {MOST_SECONDS})"])


def _link(folder: Path, library: Path, bulk: int = 0) -> None:
    """Build a shared library with device code of the embedded example.

    bulk: bytes of an array that lies before that code, so that its offset in the file is beyond them; 0 for none.
    """
    example = _ROOT / "examples" / "embedded"
    subprocess.run(
        ["make", "-s", "-C", example, f"OUT={folder}", f"PYTHON={sys.executable}", str(folder / "fatbin.S")], check=True
    )
    (folder / "behind_bss").write_text(_BEHIND_BSS)
    (folder / "bulk.c").write_text(f"char bulk[{bulk}l];\n" if bulk else "")
    options = ["-O2", "-fPIC", "-shared", *([f"-Wl,-T,{folder}/behind_bss"] if bulk else [])]
    sources = [example / "vector.c", folder / "fatbin.S", folder / "bulk.c"]
    command = [os.environ.get("CC", "cc"), *options, "-o", library, *sources, "-ldl"]
    subprocess.run([str(word) for word in command], check=True)


def _fill(library: Path) -> None:
    """Put other bytes than zeros into the bulk, which is all but the file's first and last blocks."""
    noise = os.urandom(_BLOCK)
    with library.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        begin = _BLOCK
        while begin + 2 * _BLOCK < size:
            os.pwrite(file.fileno(), noise, begin)
            begin += _BLOCK


def _run(command: Sequence[str | Path]) -> Json:
    """Flush the disk's caches, then run a command; return the seconds and peak bytes that it took."""
    os.sync()
    return timed_run(command, cwd=_ROOT)


def _digest(path: Path) -> str:
    """Return a digest (SHA-256, in hex) of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, if asked to, and print figures and unmet bounds.

    Returns the exit status: 1 when there are any, 2 without results.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.ahead_size")
    parser.add_argument("action", choices=("record", "judge"))
    parser.add_argument("--folder", type=Path, help="for the libraries (default: the system's for temporary files)")
    parser.add_argument("--rounds", type=int, default=FEWEST)
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of the bulk")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the raw samples go, as JSON")
    options = parser.parse_args(arguments)
    if options.action == "record":
        with tempfile.TemporaryDirectory(prefix="neutrino-size-", dir=options.folder) as name:
            results = record(Path(name), options.rounds, options.size)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    command = "python -m bench.ahead_size record"
    return judge_files([options.out], command, ("small", "big"), lambda results: say_verdicts(results, table, judge))


if __name__ == "__main__":
    sys.exit(main())
