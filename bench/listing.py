"""How long a bare listing takes beside ``cuobjdump -lelf -lptx``, and how much memory.

    python -m bench.listing record LIBRARY ...     writes bench/results/listing.json; the machine must be idle
    python -m bench.listing judge                  recomputes the verdicts

Libraries of 100 to 240 MB count for the time: NVIDIA's libcurand 11.8 (nvidia-curand-cu11) and libnccl 2.21.5
(nvidia-nccl-cu11), from PyPI. They are listed, nothing of them is decoded. For the memory a fatbin of 2.6 GB is made
here, whose machine code is one hole. Runs of the two programs take turns, so that what else the machine does falls on
both alike. Python's own start and the start of the command are measured too: they are most of what a listing takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.recorded import judge_files, say_verdicts, timed_run
from bench.tree import made_of
from neutrino.toolchain.location import find_tool

Json = Any
_ROOT = Path(__file__).resolve().parent.parent
RESULTS = _ROOT / "bench" / "results" / "listing.json"
ROUNDS = 9
MOST_TIMES = 1.2
"""Of cuobjdump's best time."""
MOST_BYTES = 200 << 20
SIZES = (100_000_000, 240_000_000)
HUGE = 2_600_000_000
_HUGE_IMAGES = 1133
_OURS = [sys.executable, "-m", "neutrino.cli.extract"]


def record(libraries: Sequence[Path]) -> Json:
    """Time listing the images of each library by our program and by cuobjdump; return the raw samples.

    Seconds of wall clock, of processor, and peak bytes, run by run.
    """
    cuobjdump = find_tool("cuobjdump")
    results: Json = {
        **made_of("listing"),
        "python": platform.python_version(),
        "cuobjdump": _version(cuobjdump),
        "start": {
            "python": [_run([sys.executable, "-c", "pass"]) for _ in range(ROUNDS)],
            "command": [_run([*_OURS, "--version"]) for _ in range(ROUNDS)],
        },
        "libraries": [],
    }
    for path in libraries:
        tool = _cuobjdump_that_reads(path, cuobjdump)
        row: Json = {"name": path.name, "bytes": path.stat().st_size, "cuobjdump": _version(tool)}
        row |= {"ours": [], "theirs": []}
        commands: dict[str, list[str | Path]] = {"ours": [*_OURS, path], "theirs": [tool, "-lelf", "-lptx", path]}
        row["images"] = {who: _images(command) for who, command in commands.items()}
        for _ in range(ROUNDS):
            for who, command in commands.items():
                row[who].append(_run(command))
        row["load"] = os.getloadavg()[0]
        results["libraries"].append(row)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "huge.fatbin"
        _write_huge(path)
        results["huge"] = {"bytes": path.stat().st_size, "images": _images([*_OURS, path]), "run": _run([*_OURS, path])}
    return results


def judge(results: Json) -> list[str]:
    """Return which bounds on time, memory and images found the recorded results break, a line each; nothing when all
    are met."""
    wrong = []
    counted = [row for row in results["libraries"] if SIZES[0] <= row["bytes"] <= SIZES[1]]
    if len(counted) < 2:
        wrong.append(f"{len(counted)} libraries of {SIZES[0]} to {SIZES[1]} bytes, at least 2 are needed")
    for row in counted:
        if min(len(row["ours"]), len(row["theirs"])) < ROUNDS:
            wrong.append(f"{row['name']}: fewer than {ROUNDS} runs")
            continue
        ours, theirs = (min(run["seconds"] for run in row[who]) for who in ("ours", "theirs"))
        if ours > MOST_TIMES * theirs:
            times = f"{ours * 1e3:.0f} ms, cuobjdump {theirs * 1e3:.0f} ms: {ours / theirs:.2f} times"
            wrong.append(f"{row['name']}: {times}")
    for row in results["libraries"]:
        if row["images"]["ours"] < row["images"]["theirs"] or not row["images"]["theirs"]:
            wrong.append(f"{row['name']}: {row['images']['ours']} images, cuobjdump lists {row['images']['theirs']}")
        most = max(run["peak_bytes"] for run in row["ours"])
        if most > MOST_BYTES:
            wrong.append(f"{row['name']}: {most >> 20} MiB of memory, at most {MOST_BYTES >> 20}")
    huge = results["huge"]
    if huge["bytes"] < HUGE or huge["images"] != _HUGE_IMAGES or huge["run"]["peak_bytes"] > MOST_BYTES:
        wrong.append(f"{huge['bytes']} bytes: {huge['images']} images, {huge['run']['peak_bytes'] >> 20} MiB of memory")
    return wrong


def table(results: Json) -> str:
    """Return the figures as a table for people, one library a line."""
    lines = []
    for row in results["libraries"]:
        ours, theirs = (min(run["seconds"] for run in row[who]) * 1e3 for who in ("ours", "theirs"))
        cpu, their_cpu = (min(run["cpu_seconds"] for run in row[who]) * 1e3 for who in ("ours", "theirs"))
        lines.append(
            f"{row['name']}: {row['bytes'] / 1e6:.0f} MB, {row['images']['ours']} images: {ours:.0f} ms, cuobjdump "
            f"{theirs:.0f} ms ({ours / theirs:.2f}); processor {cpu:.0f}, {their_cpu:.0f} ms; "
            f"{max(run['peak_bytes'] for run in row['ours']) >> 20} MiB"
        )
    start = {what: min(run["seconds"] for run in runs) * 1e3 for what, runs in results["start"].items()}
    lines.append(f"of which Python's start {start['python']:.0f} ms, with the command's {start['command']:.0f} ms")
    huge = results["huge"]
    lines.append(f"{huge['bytes'] / 1e9:.1f} GB: {huge['run']['seconds']:.2f} s, {huge['run']['peak_bytes'] >> 20} MiB")
    return "\n".join(lines)


def _run(command: Sequence[str | Path]) -> Json:
    """Run a command of the bench: seconds of wall clock and processor, peak bytes."""
    return timed_run(command, env=_environment(), quiet=True)


def _environment() -> dict[str, str]:
    """Environment variables with which a command uses this tree's Neutrino."""
    return {**os.environ, "PYTHONPATH": str(_ROOT)}


def _images(command: Sequence[str | Path]) -> int:
    """Run a program that lists a library's images, ours or cuobjdump; return how many it lists."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=True, env=_environment()
    )
    first = [line.split()[0] for line in done.stdout.splitlines() if line.split()]
    return sum(word in {"PTX", "ELF"} or word.replace(".", "", 1).isdigit() for word in first)


def _version(tool: Path) -> str:
    """Run a CUDA tool and return the line in which it says its release."""
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if "release" in line).strip()


def _cuobjdump_that_reads(path: Path, cuobjdump: Path) -> Path:
    """Return a cuobjdump that can list the library: 13 refuses what has code for sm_35, which 12's (as Triton ships it)
    reads."""
    named = os.environ.get("BENCH_CUOBJDUMP")
    for tool in (cuobjdump, *([Path(named)] if named else [])):
        done = subprocess.run([tool, "-lelf", "-lptx", path], capture_output=True, check=False)
        if done.returncode == 0 and done.stdout:
            return tool
    raise SystemExit(f"{path}: no cuobjdump here reads it; name an older one in BENCH_CUOBJDUMP")


def _write_huge(path: Path) -> None:
    """Write a container of GPU code of over 2 GiB, whose cubins are holes in the file, so that it takes no room on the
    disk.
    """
    size = HUGE // _HUGE_IMAGES // 8 * 8 + 8
    entry = struct.Struct("<HHIQIIHHIIIQQQ")
    header = entry.pack(2, 0x0101, entry.size, size, 0, 0, 7, 1, 80, 0, 0, 0x11, 0, 0)
    step = entry.size + size
    with path.open("wb") as file:
        file.write(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, step * _HUGE_IMAGES))
        for index in range(_HUGE_IMAGES):
            file.seek(16 + index * step)
            file.write(header)
        file.truncate(16 + step * _HUGE_IMAGES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, if asked to, and print figures and unmet bounds.

    Returns the exit status: 1 when there are any, 2 without results.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.listing")
    parser.add_argument("action", choices=("record", "judge"))
    parser.add_argument("libraries", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the raw samples, as JSON")
    options = parser.parse_args(arguments)
    if options.action == "record":
        results = record(options.libraries)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    command = "python -m bench.listing record LIBRARY ..."
    return judge_files([options.out], command, ("libraries", "huge"), lambda it: say_verdicts(it, table, judge))


if __name__ == "__main__":
    sys.exit(main())
