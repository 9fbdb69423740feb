"""The traces and pictures of ``docs/gallery.md``, made again.

    python3 -m bench.gallery record --out FOLDER [--budget SECONDS]     on a GPU with nvcc, PyTorch and Triton
    python3 -m bench.gallery keep FOLDER/gallery.tar.gz                 anywhere: into tests/fixtures/h200
    python3 -m bench.gallery draw [--out FOLDER]                        anywhere, with Chromium: docs/pictures

``record`` runs the programs of ``RECIPES``, each with its probes, one after the other. ``keep`` writes each trace as an
archive, without what no reader needs, and ``traces.json`` with the recipe and the hash of each. ``draw`` writes each
trace's page by ``neutrino-report --html``, and takes the pictures from it (``gallery_pictures.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import lzma
import os
import shlex
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.command_line import COMMAND
from bench.gallery_pictures import PICTURES, draw
from bench.programs import Finished, build_command, query_gpu, run_program
from bench.tree import ROOT
from neutrino.tracing import find_traces

Json = Any
WORKLOADS = ROOT / "bench" / "workloads"
TRACES = ROOT / "tests" / "fixtures" / "h200"
RECORD = "traces.json"
PAGE = ROOT / "docs" / "gallery.md"
ARCHIVE = "gallery.tar.gz"
MOST_TRACE_BYTES, MOST_BYTES = 1 << 20, 5 << 19
"""Of an archive, and of all together."""
_NOT_KEPT = {"analyze.log", "control", "event.log", "probed.ptx", "read.py", "reserve"}
_LIMIT, _LEAST = 75.0, 8.0
"""Seconds that a run may take, and that must be left for it to begin."""


@dataclass(frozen=True)
class Recipe:
    """How a trace is made. source: of ``bench/workloads``. arguments: of the program; ``REPORT`` stands for a file.
    probes: the options of ``neutrino``. flags: of nvcc.
    """

    name: str
    source: str
    arguments: tuple[str, ...]
    probes: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """What the compiled program is called, and where: the same for each time that it is made."""
        return f"./{self.name}"

    def shown(self) -> list[str]:
        """The commands that make the trace, for people, as they are typed in the checkout's folder."""
        words = self.arguments
        if self.source.endswith(".py"):
            return [shlex.join(["neutrino", *self.probes, "python3", f"bench/workloads/{self.source}", *words])]
        flags = [flag.replace(str(ROOT), ".").replace("./", "") for flag in self.flags]
        compiled = f"nvcc -O3 -arch=sm_90 {' '.join(flags)} -o {self.name} bench/workloads/{self.source}"
        return [compiled, shlex.join(["neutrino", *self.probes, self.program, *words])]


_CUDA = ("-lineinfo", "-I", str(ROOT / "neutrino" / "include"))
_ROLES = "bench/probes/roles.py"
RECIPES = (
    Recipe("roles", "roles.cu", ("--seeds", "2", "--out", "REPORT"),
           ("-p", "block_sched", "-p", _ROLES, "--launches", "1:2"), _CUDA),
    Recipe("faults", "faults.cu", ("--seeds", "1", "--out", "REPORT"),
           ("-p", "coalescing", "-p", "smem_bank_conflict", "-p", "branch_divergence", "-p", "hot_lines", "-p",
            "atomic_contention", "-p", "nan_finder"), _CUDA),
    Recipe("sparse", "sparse.cu", ("--seeds", "2", "--out", "REPORT"), ("-p", "dmat", "--launches", "1:2"), _CUDA),
    Recipe("fenced", "roles.cu", ("--seeds", "18", "--out", "REPORT"),
           ("-p", "block_sched", "-p", "barrier_wait", "--launches", "2:18"), (*_CUDA, "-DFENCED")),
    Recipe("unfenced", "roles.cu", ("--seeds", "18", "--out", "REPORT"),
           ("-p", "block_sched", "-p", "barrier_wait", "--launches", "2:18"), _CUDA),
    Recipe("eleven", "triton_eleven.py",
           ("--kernels", "gemm", "streamk_gemm", "conv", "attention", "softmax", "total", "--rounds", "3", "--out",
            "REPORT"), ("-p", "block_sched", "--launches", "2:4")),
    Recipe("training", "torch_training.py", ("--steps", "3"),
           ("-p", "block_sched", "-p", "gmem_bytes", "--range", "training", "--range-scope", "process")),
)  # fmt: skip
"""What is recorded: first what needs least, so that most is there when time is up."""
_WARMED = {"eleven", "training"}
"""Those whose compilers take long: they run twice, and count the second time."""


def record(neutrino: Sequence[str], out: Path, budget: float, only: Sequence[str]) -> int:
    """Run the programs with their probes, and write their traces into ``out / ARCHIVE``. Returns the exit status.

    budget: seconds; nothing begins when they are over. Compilers run at first, all at once, and ``_WARMED`` with their
    probes, which fills the caches. Then one program runs at a time.
    """
    begin = time.monotonic()
    chosen = [recipe for recipe in RECIPES if not only or recipe.name in only]
    rows: dict[str, Json] = {}
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gallery_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        failed = _prepare(neutrino, folder, chosen)
        for recipe in chosen:
            left = budget - (time.monotonic() - begin)
            if recipe.name in failed:
                rows[recipe.name] = {"failed": failed[recipe.name]}
            elif left < _LEAST:
                rows[recipe.name] = {"failed": "no time was left"}
            else:
                rows[recipe.name] = _run(neutrino, folder, recipe, min(left, _LIMIT))
            print(f"{recipe.name}: {rows[recipe.name].get('failed') or 'done'}"[-3000:], file=sys.stderr)
        results = {
            "device": query_gpu("name"), "driver": query_gpu("driver_version"), "started": int(time.time()),
            "seconds": round(time.monotonic() - begin, 1), "traces": rows,
        }  # fmt: skip
        with tarfile.open(out / ARCHIVE, "w:gz", compresslevel=3) as archive:
            _add(archive, RECORD, json.dumps(results, indent=1).encode())
            for recipe in chosen:
                if "folder" in (row := rows[recipe.name]):
                    archive.add(row["folder"], recipe.name)
    print(f"{out / ARCHIVE}: {(out / ARCHIVE).stat().st_size:,} bytes, {results['seconds']} s", file=sys.stderr)
    return 1 if any("failed" in row for row in rows.values()) else 0


def _prepare(neutrino: Sequence[str], folder: Path, recipes: Sequence[Recipe]) -> dict[str, str]:
    """Compile the CUDA programs, and run the Python programs once; return what the compilers said that failed."""

    def one(recipe: Recipe) -> str:
        if recipe.source.endswith(".py"):
            if recipe.name in _WARMED:
                _probe(neutrino, folder, recipe, "first", _LIMIT)
            return ""
        command = build_command(WORKLOADS / recipe.source, folder / recipe.name, recipe.flags)
        done = run_program(command, os.environ, folder, f"nvcc_{recipe.name}", _LIMIT)
        return "" if done.status == 0 else f"nvcc: {done.stderr}"

    with ThreadPoolExecutor(len(recipes) or 1) as pool:
        said = dict(zip((recipe.name for recipe in recipes), pool.map(one, recipes), strict=True))
    return {name: text for name, text in said.items() if text}


def _probe(neutrino: Sequence[str], folder: Path, recipe: Recipe, name: str, limit: float) -> tuple[Finished, Path]:
    """Run a recipe's program with its probes; return how it ended, and the folder of its traces."""
    words = [str(folder / f"{recipe.name}.json") if word == "REPORT" else word for word in recipe.arguments]
    is_python = recipe.source.endswith(".py")
    program = [sys.executable, str(WORKLOADS / recipe.source)] if is_python else [str(folder / recipe.name)]
    probes = [str(ROOT / word) if word == _ROLES else word for word in recipe.probes]
    traces = folder / f"{name}_{recipe.name}"
    caches = {
        "XDG_CACHE_HOME": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }  # fmt: skip
    argv = [*neutrino, *probes, "--tracedir", str(traces), *program, *words]
    return run_program(argv, {**os.environ, **caches}, folder, f"{name}_{recipe.name}", limit), traces


def _run(neutrino: Sequence[str], folder: Path, recipe: Recipe, limit: float) -> Json:
    """Record a recipe's trace; return what is known of it, and in ``failed`` what went wrong."""
    done, traces = _probe(neutrino, folder, recipe, "trace", limit)
    row: Json = {"seconds": done.seconds, "said": done.stderr[-2000:], "source_sha256": _hash_of(recipe)}
    # Processes that the program starts may load GPU code, too: the trace with most in it is that of the program.
    found = find_traces(traces) if traces.is_dir() and any(traces.iterdir()) else []
    if found:
        row["folder"] = str(max(found, key=lambda path: sum(f.stat().st_size for f in path.rglob("*") if f.is_file())))
    report = folder / f"{recipe.name}.json"
    if report.is_file():
        with contextlib.suppress(ValueError):
            row["checks"] = json.loads(report.read_text()).get("checks", "ok")
    if done.status != 0 or not found or row.get("checks", "ok") != "ok":
        row["failed"] = f"exit status {done.status}, {len(found)} traces\n{done.stdout[-1500:]}{done.stderr[-4000:]}"
    return row


def _hash_of(recipe: Recipe) -> str:
    """Return the digest of a recipe's source."""
    return source_hash((WORKLOADS / recipe.source).read_bytes(), recipe.source)


def source_hash(source: bytes, name: str) -> str:
    """Return the digest of a recipe's source: of Python without the module's docstring. name: of its file."""
    quotes = b'"' * 3
    code = source.split(quotes, 2)[2] if name.endswith(".py") and source.startswith(quotes) else source
    return hashlib.sha256(code).hexdigest()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Write a file into an archive, with nothing of this machine or of today."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    archive.addfile(entry, io.BytesIO(data))


def archived(trace: Path) -> bytes:
    """Return a trace as an archive (tar), the same bytes each time, without what no reader needs."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(trace.rglob("*")):
            if path.is_file() and path.name not in _NOT_KEPT:
                _add(archive, path.relative_to(trace).as_posix(), path.read_bytes())
    return raw.getvalue()


def packed(trace: Path) -> bytes:
    """Return a trace's archive, compressed (xz)."""
    return lzma.compress(archived(trace), preset=9 | lzma.PRESET_EXTREME)


def unpack(name: str, folder: Path, traces: Path = TRACES) -> Path:
    """Write a kept trace into a folder of its name in ``folder``; return that. Raises OSError."""
    path = folder / name
    with tarfile.open(traces / f"{name}.tar.xz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none
        archive.extractall(path)
    return path


def keep(source: Path, traces: Path = TRACES) -> int:
    """Write what ``record`` has left into the folder of traces. Returns the exit status: 1 where one is too large."""
    traces.mkdir(parents=True, exist_ok=True)
    kept = traces / RECORD
    rows: Json = json.loads(kept.read_text())["traces"] if kept.is_file() else {}
    too_large = []
    with tempfile.TemporaryDirectory(prefix="gallery_") as name:
        folder = Path(name)
        with tarfile.open(source) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)
        results = json.loads((folder / RECORD).read_text())
        for recipe in RECIPES:
            row = results["traces"].get(recipe.name)
            if row is None or "failed" in row:
                continue
            data = packed(folder / recipe.name)
            if len(data) > MOST_TRACE_BYTES:
                too_large.append(f"{recipe.name}: {len(data):,} bytes")
            (traces / f"{recipe.name}.tar.xz").write_bytes(data)
            rows[recipe.name] = {
                "device": results["device"], "driver": results["driver"], "started": results["started"],
                "commands": recipe.shown(), "source": f"bench/workloads/{recipe.source}",
                "source_sha256": row["source_sha256"],
                "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
            }  # fmt: skip
            print(f"{recipe.name}: {len(data):,} bytes")
    known = {recipe.name for recipe in RECIPES}
    rows = {name: row for name, row in rows.items() if name in known}
    for path in traces.glob("*.tar.xz"):
        if path.name.partition(".")[0] not in known:
            path.unlink()
    kept.write_text(json.dumps({"traces": dict(sorted(rows.items()))}, indent=1) + "\n")
    total = sum(row["bytes"] for row in rows.values())
    print(f"all: {total:,} bytes")
    if total > MOST_BYTES:
        too_large.append(f"all: {total:,} bytes")
    for line in too_large:
        print(f"too large: {line}", file=sys.stderr)
    return 1 if too_large else 0


def draw_all(traces: Path, out: Path) -> int:
    """Draw the pictures from kept traces. Returns the exit status: 1 where one is missing or too large."""
    with tempfile.TemporaryDirectory(prefix="gallery_") as name:
        kept = {path.name.partition(".")[0]: path for path in sorted(traces.glob("*.tar.xz"))}
        folders = {trace: unpack(trace, Path(name), traces) for trace in kept}
        wrong = draw(folders, out)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def table(rows: Json) -> str:
    """Return the table of the traces for ``PAGE``. rows: of ``RECORD``."""
    lines = ["| trace | commands | KB | SHA-256 |", "| --- | --- | --- | --- |"]
    for recipe in RECIPES:
        if (row := rows.get(recipe.name)) is not None:
            commands = "<br>".join(f"`{command}`" for command in row["commands"])
            lines.append(f"| `{recipe.name}` | {commands} | {row['bytes'] / 1000:.0f} | `{row['sha256'][:16]}…` |")
    return "\n".join(lines)


def fill_page() -> None:
    """Write the table into the page, in place of the one that is there."""
    rows = json.loads((TRACES / RECORD).read_text())["traces"]
    lines = PAGE.read_text().split("\n")
    places = [at for at, line in enumerate(lines) if line.startswith("| trace |")]
    end = next((at for at in range(places[0], len(lines)) if not lines[at].startswith("|")), len(lines))
    PAGE.write_text("\n".join([*lines[: places[0]], table(rows), *lines[end:]]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0 all is there, 1 something is missing."""
    parser = argparse.ArgumentParser(prog="python3 -m bench.gallery", description=(__doc__ or "").partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    recorded = actions.add_parser("record", help="run the programs on a GPU")
    recorded.add_argument("--neutrino", default=COMMAND, help="the command that probes a program")
    recorded.add_argument("--budget", type=float, default=115.0, help="seconds after which no program begins")
    recorded.add_argument("--only", nargs="+", default=[], choices=[recipe.name for recipe in RECIPES])
    recorded.add_argument("--out", type=Path, required=True)
    kept = actions.add_parser("keep", help="keep what was recorded")
    kept.add_argument("archive", type=Path)
    drawn = actions.add_parser("draw", help="draw the pictures from what is kept")
    drawn.add_argument("--traces", type=Path, default=TRACES)
    drawn.add_argument("--out", type=Path, default=PICTURES)
    options = parser.parse_args(arguments)
    if options.action == "draw":
        return draw_all(options.traces, options.out)
    if options.action == "record":
        return record(shlex.split(options.neutrino), options.out, options.budget, options.only)
    status = keep(options.archive)
    fill_page()
    return status


if __name__ == "__main__":
    sys.exit(main())
