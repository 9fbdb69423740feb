"""Which sources a result was made from, and which of them it judges."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = ("bench", "neutrino", "probes", "probes_amd", "tools")
_SUFFIXES = {".c", ".css", ".cu", ".cuh", ".h", ".html", ".js", ".map", ".py", ".toml"}
_LEFT_OUT = {"__pycache__", "generated", "lib", "results"}
_HOOK = "neutrino/loader/csrc"
_TWINS = ("neutrino/ptx/instrument", "neutrino/ptx/snippets", "neutrino/maps")
JUDGED: Mapping[str, tuple[str, ...]] = {
    "accesses_h200": ("bench/workloads/accesses.cu", "probes/dmat.*", "probes/latency.*", *_TWINS),
    "check_corpus": ("neutrino/fatbin", "neutrino/sass", "neutrino/elf", "neutrino/patched_files"),
    "clocks_h200": (
        "bench/workloads/barriers.cu", "bench/probes/clocks_at_barriers.py", "probes/barrier_wait.*",
        "probes/block_sched.*", *_TWINS,
    ),
    "choice_h200": ("bench/workloads/submit.cu", f"{_HOOK}/launch", f"{_HOOK}/image/choice.*"),
    "compatibility_h200": ("bench/workloads/forms.cu", _HOOK),
    "corpus_amd": (
        "neutrino/gcn/code.py", "neutrino/gcn/listing.py", "neutrino/gcn/llvm.py",
        "neutrino/fatbin/code_object.py", "neutrino/fatbin/code_object_functions.py", "tests/gcn/triton_amd.py",
    ),
    "corpus_sass": (
        "neutrino/sass/decoder.py", "neutrino/sass/encoding.py", "neutrino/sass/instruction.py",
        "bench/nvdisasm_reading.py", "tests/sass/sample.ptx",
    ),
    "corpus": ("neutrino/ptx", "neutrino/assemble", "neutrino/backend"),
    "device_h200": ("neutrino/emulator/*.py", "neutrino/emulator/arithmetic", "tests/kernels/*.py"),
    "driver_h200": ("tests/embedded/ask*.[ch]", "neutrino/emulator/csrc"),
    "exact_amd": (
        "neutrino/gcn", "neutrino/backend/gcn_*.py", "neutrino/fatbin/code_object_append.py", "neutrino/maps", "probes",
        "probes_amd", "neutrino/emulator/gcn", "tests/emulator/gcn/triton_cases.py", "tests/gcn/triton_amd.py",
        "tests/emulator/gcn/judged.hip", "tests/gcn/executed.py", "tests/gcn/trace_models.py", "tests/gcn/exact.py",
        "tests/gcn/operation_trace.py", "tests/gcn/branch_trace.py",
    ),
    "examples": ("examples",),
    "findings_h200": ("bench/workloads/triton_eleven.py", "neutrino/tracing/analyses", "probes", *_TWINS),
    "first_runs_h200": ("neutrino/run", "neutrino/maker", f"{_HOOK}/image"),
    "gcn_numpy": ("neutrino/emulator/gcn", "tests/emulator/gcn/triton_cases.py", "tests/gcn/triton_amd.py"),
    "graphs_h200": ("bench/workloads/replays.cu", _HOOK),
    "machine_code_sums_h200": (
        "bench/workloads/machine_code_sums.ptx", "bench/machine_code_sums.py", "neutrino/sass/twin",
        "neutrino/backend/sass_*.py", "probes/gmem_bytes.*", *_TWINS,
    ),
    "machine_code_h200": ("bench/workloads/machine_code_*", "neutrino/sass/twin"),
    "newcomer": ("setup.py", "neutrino/cli/probe_new.py"),
    "passing_h200": (
        "bench/workloads/cupy_mix.py", "bench/workloads/numba_mix.py", f"{_HOOK}/image/passed*.*",
        "neutrino/maker/passed.py",
        f"{_HOOK}/image/links.*", f"{_HOOK}/front/passing.*", f"{_HOOK}/front/linked.*",
        f"{_HOOK}/front/audit_passing.*", f"{_HOOK}/image/ltoir.*", f"{_HOOK}/front/second_link.*",
    ),
    "pictures": (
        "neutrino/page", "neutrino/tracing/accesses.py", "neutrino/tracing/csrc/accesses.*",
        "neutrino/tracing/csrc/log_groups.c",
    ),
    "prices_h200": ("bench/workloads/triton_prices.py", "bench/workloads/triton_eleven.py", "probes", *_TWINS),
    "probed_amd": (
        "neutrino/gcn", "neutrino/backend/gcn_*.py", "neutrino/fatbin/code_object_append.py", "neutrino/maps", "probes",
        "probes_amd", "tests/gcn/triton_amd.py", "tests/gcn/twin_reader.py",
    ),
    "published_h200": (
        "bench/workloads/published*", "probes/block_sched.*", "neutrino/tracing/analyses/block_times.py",
        "neutrino/tracing/analyses/scheduling.py", "neutrino/tracing/analyses/tail.py", *_TWINS,
    ),
    "questions": ("bench/workloads/questions_vector.py", "neutrino/session.py", f"{_HOOK}/image", f"{_HOOK}/front"),
    "questions_h200": (
        "bench/workloads/questions_*.py", "neutrino/session.py", f"{_HOOK}/image", f"{_HOOK}/graph", f"{_HOOK}/front",
    ),
    "reading": ("neutrino/tracing",),
    "road_h200": (_HOOK, *_TWINS),
    "rounding_h200": ("neutrino/assemble/numerics", "neutrino/backend/ptx_explicit_fma.py", *_TWINS),
    "sass_coverage": (
        "neutrino/sass", "neutrino/backend/sass_*.py", "bench/sass_coverage.py", "probes/block_sched.*",
        "probes/gmem_bytes.*",
    ),
    "training_h200": ("bench/workloads/training_steps.py", "neutrino/sass/twin", "probes/block_sched.*"),
    "values_h200": ("bench/workloads/values.cu", "bench/probes/values.toml", *_TWINS),
}  # fmt: skip
"""Stem of a file of results → what it judges: files, folders with all below them, and patterns."""


OVERTAKEN: tuple[str, ...] = (
    "accesses_h200", "check_corpus", "clocks_h200", "compatibility_h200", "corpus", "corpus_amd", "corpus_sass",
    "driver_h200", "exact_amd", "examples", "first_runs_h200", "pictures", "prices_h200", "probed_amd", "reading",
    "road_h200", "rounding_h200", "sass_coverage", "values_h200",
)  # fmt: skip
"""Results whose files have changed since they were recorded, and which are to be recorded again."""
TO_COME: tuple[str, ...] = ()
"""Results that nobody has recorded yet."""


def made_of(name: str) -> dict[str, object]:
    """Return what a file of results says of the sources it was made from: digests of the whole tree, and of what it
    judges.

    name: its stem, a key of ``JUDGED``.
    """
    return {"tree": tree_hash(ROOT), "files": judged_files(name)}


def judged_files(name: str) -> dict[str, str]:
    """Return the digests of the source files that a file of results judges, by entry of ``JUDGED``.

    Each is over path and contents of the files that the entry stands for. KeyError: no such name. FileNotFoundError: an
    entry stands for no file, so that its hash would be that of nothing.
    """
    hashes = {}
    for pattern in JUDGED[name]:
        sources = _sources(pattern)
        if not sources:
            raise FileNotFoundError(f"bench/tree.py: JUDGED[{name!r}]: no source file is at {pattern!r}")
        hashes[pattern] = _hash(ROOT, sources)
    return hashes


def changed_files(name: str, results: Mapping[str, object]) -> list[str]:
    """Return which sources have changed since results were recorded: the entries (paths or patterns) that ``JUDGED``
    has for them and whose hashes differ.

    name: the stem of the file of results. results: its contents, with the hashes of then in ``files``.
    """
    parts: Any = results.get("cases") or results.get("rows") or ()
    recorded: list[Any] = [results, *(parts.values() if isinstance(parts, dict) else parts)]
    hashes = [part["files"] for part in recorded if isinstance(part, dict) and "files" in part]
    now = judged_files(name)
    return [entry for entry, digest in now.items() if not hashes or any(it.get(entry) != digest for it in hashes)]


def _sources(pattern: str) -> list[Path]:
    """Return the source files that an entry of ``JUDGED`` stands for: a file, a folder with all below it, or a pattern.
    """
    found = [path for path in ROOT.glob(pattern) for path in ([path] if path.is_file() else path.rglob("*"))]
    files = [path for path in found if path.is_file() and path.suffix in _SUFFIXES | {".hip", ".ptx"}]
    return [path for path in files if not _LEFT_OUT.intersection(path.relative_to(ROOT).parts)]


def tree_hash(root: Path) -> str:
    """Return a digest (SHA-256, in hex) over path and contents of every source file that can change a result.

    It does not ask git, which the machine with the GPU may not have: generated files and results are left out by the
    name of their folder.
    """
    paths = [path for folder in _FOLDERS for path in (root / folder).rglob("*") if path.suffix in _SUFFIXES]
    kept = (path for path in paths if path.is_file() and not _LEFT_OUT.intersection(path.relative_to(root).parts))
    return _hash(root, kept)


def _hash(root: Path, paths: Iterable[Path]) -> str:
    """Return a digest (SHA-256, in hex) over paths (below root) and contents of files, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
