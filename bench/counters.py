"""What the shipped probes count beside what Nsight Compute counts, kernel by kernel, on a GPU.

    python3 -m bench.counters --out FOLDER [--cutlass WHEEL] [--budget SECONDS] [--only NAME,NAME]

Profiles programs as they are with ncu, runs them again under ``neutrino`` with the probes, and writes both sides, raw,
to FOLDER/counters_h200.json, and of each instruction to FOLDER/lines_h200.json, which ``counters_verdicts``
and ``lines_verdicts`` judge. WHEEL: ``nvidia_cutlass-*.whl`` or CUTLASS's headers; without it that program
is left out, and the result says so. Exit status: 0 when every verdict is good, 1 otherwise.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import counted_lines, counted_ncu, counters_verdicts, lines_verdicts
from bench.counted_groups import probe_text
from bench.programs import SOURCES, Finished, find_cuda_tool, run_program
from bench.road import COMMAND, ROOT, query_gpu
from bench.tree import tree_hash
from bench.verdicts import table
from neutrino.abi.reasons import Reason
from neutrino.errors import TraceError
from neutrino.maps.registry import SUM
from neutrino.ptx.text.module import parse
from neutrino.tracing import Trace, find_traces
from neutrino.tracing.views import MapView

Json = Any

RESULT, LINES_RESULT = "counters_h200.json", "lines_h200.json"
DIAGNOSTICS = "counters_diagnostics.txt"
PROBES: Mapping[str, tuple[str, ...]] = {
    "memory": ("gmem_bytes", "tensorop"),
    "shared": ("smem_bank_conflict",),
    "branches": ("branch_divergence",),
    "instructions": ("inst_count", "GROUPS"),
    "lines": ("LINES",),
}
"""Which probes go into one run. GROUPS: the one of ``counted_groups``, beside ``inst_count``, since loops that wait for
something turn more or less often in another run. LINES: the one of ``counted_lines``. Those that end basic blocks run
alone: kernels that multiply and add around them run unprobed."""
_ARCHITECTURE = "arch=compute_90a,code=[sm_90a,compute_90a]"
ABOUT = ("device", "driver", "tree", "cutlass", "nvcc", "ncu", "started")
"""Where a result is from: in both files."""
BUILD_LIMIT, RUN_LIMIT = 200.0, 120.0


@dataclass(frozen=True)
class Program:
    """One program. kernels: names of those that count, where a framework launches others, too; a part of each.

    most: branches taken and instructions with a predicate that any thread executes, at most.
    """

    name: str
    source: str
    kernels: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    needs_cutlass: bool = False
    most: int = 1024


PROGRAMS = (
    Program("counted", "counted.cu"),
    Program("counted_cutlass", "counted_cutlass.cu", flags=("--expt-relaxed-constexpr", "-DNDEBUG"),
            needs_cutlass=True, most=8192),
    Program("counted_triton", "counted_triton.py", ("softmax_kernel", "layernorm_kernel", "matmul_kernel")),
)  # fmt: skip


@dataclass
class Bench:
    """One run of the whole. folder: scratch. end: of the budget, by the monotonic clock."""

    neutrino: Sequence[str]
    ncu: str
    folder: Path
    end: float
    cutlass: Path | None = None
    result: dict[str, Json] = field(default_factory=dict)
    diagnostics: list[str] = field(default_factory=list)
    lines: dict[str, Json] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """For every program: caches of its own."""
        path = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        left_out = {"LD_PRELOAD", "NEUTRINO_TRACEDIR"}
        return {
            **{name: value for name, value in os.environ.items() if name not in left_out},
            "PYTHONPATH": os.pathsep.join(path),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "TRITON_CACHE_DIR": str(self.folder / "triton"),
        }

    def run(self, name: str, argv: Sequence[str], limit: float = RUN_LIMIT) -> Finished:
        """One command, within what is left of the budget."""
        left = self.end - time.monotonic()
        done = run_program(argv, self.environment(), self.folder, name, min(limit, max(left, 1.0)))
        print(f"{name:36} exit {done.status} in {done.seconds:5.1f} s", file=sys.stderr, flush=True)
        self.result.setdefault("runs", {})[name] = {"exit": done.status, "seconds": done.seconds}
        if done.status != 0:
            said = f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
            head = f"=== {name}: exit {done.status}, timed out: {done.timed_out}\n{shlex.join(argv)}"
            self.diagnostics.append(f"{head}\n{said}")
        return done

    def command(self, program: Program, report: Path) -> list[str]:
        """The program's own command line."""
        if program.source.endswith(".py"):
            return [sys.executable, str(SOURCES / program.source), "--out", str(report)]
        return [str(self.folder / program.name), "--out", str(report)]

    def build(self, program: Program) -> bool:
        """Compile it, if it is no script. Machine code for the H200 with every feature, and its PTX."""
        if program.source.endswith(".py"):
            return True
        include: list[str] = []
        if program.needs_cutlass:
            if self.cutlass is None:
                return False
            include = [f"-I{self.cutlass / 'include'}", f"-I{self.cutlass / 'tools' / 'util' / 'include'}"]
        argv = [str(find_cuda_tool("nvcc")), "-O3", "-std=c++17", "-gencode", _ARCHITECTURE, *program.flags, *include]
        argv += ["-o", str(self.folder / program.name), str(SOURCES / program.source)]
        argv += ["-cudart", "static", "-ldl", "-lpthread"]
        return self.run(f"nvcc_{program.name}", argv, BUILD_LIMIT).status == 0

    def plain(self, program: Program) -> Json:
        """What it computes without anything; a script is compiled by this, too."""
        report = self.folder / f"{program.name}.plain.json"
        self.run(f"{program.name}_plain", self.command(program, report))
        return _outputs(report)

    def profile(self, program: Program) -> list[Json]:
        """The machine's side: each launch in order."""
        report = self.folder / f"{program.name}.profile"
        names = "|".join(program.kernels)
        argv = counted_ncu.record_command(self.ncu, report, self.command(program, report.with_suffix(".json")), names)
        if self.run(f"{program.name}_ncu", argv).status != 0:
            return []
        pages = {}
        for page in ("raw", "source"):
            done = self.run(f"{program.name}_ncu_{page}", counted_ncu.page_command(self.ncu, report, page), 60)
            pages[page] = done.stdout
        try:
            launches = counted_ncu.read(pages["raw"], pages["source"])
        except (ValueError, KeyError) as error:
            heads = "\n".join(f"--- {page}\n{text[:4000]}" for page, text in pages.items())
            self.diagnostics.append(f"=== {program.name}: {error!r}\n{heads}")
            return []
        return [vars(launch) for launch in launches]

    def listings(self, program: Program) -> list[counted_lines.Listing]:
        """Each kernel's PTX beside the machine code that runs, where ``ptxas`` makes that code of it once more."""
        folder = self.folder / f"{program.name}.images"
        folder.mkdir()
        if program.source.endswith(".py"):
            ptxas = triton_ptxas()
            texts, images = (sorted((self.folder / "triton").rglob(f"*.{kind}")) for kind in ("ptx", "cubin"))
        else:
            ptxas = str(find_cuda_tool("ptxas"))
            binary = str(self.folder / program.name)
            argv = [str(find_cuda_tool("cuobjdump")), "-xptx", "all", "-xelf", "all", binary]
            run_program(["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *argv], os.environ, folder, "extract", 60)
            texts, images = (sorted(folder.glob(f"*.{kind}")) for kind in ("ptx", "cubin"))
        found = []
        for number, text in enumerate(texts):
            module = parse(text.read_text("latin-1"))
            copy, cubin = folder / f"{number}.numbered", folder / f"{number}.assembled"
            copy.write_text(counted_lines.numbered(module, counted_lines.read_lines(module)), "latin-1")
            arch = (module.target or "").split(",")[0]
            argv = [ptxas, f"-arch={arch}", "-lineinfo", str(copy), "-o", str(cubin)]
            self.run(f"{program.name}_ptxas_{number}", argv)
            argv = [str(find_cuda_tool("nvdisasm")), "-g", str(cubin)]
            said = self.run(f"{program.name}_nvdisasm_{number}", argv).stdout
            found += counted_lines.listings(module, cubin, said, images)
        return found

    def probe(self, program: Program, run: str) -> Json:
        """The probes' side of one run: its outputs, and each launch in order."""
        name = f"{program.name}_{run}"
        report, traces = self.folder / f"{name}.json", self.folder / f"{name}.trace"
        own = {"GROUPS": self.folder / "groups.toml", "LINES": self.folder / f"{program.name}.lines.toml"}
        own["LINES"].write_text(counted_lines.probe_text(program.most))
        options = [word for probe in PROBES[run] for word in ("-p", str(own.get(probe, probe)))]
        options += [word for kernel in program.kernels for word in ("-k", kernel)]
        argv = [*self.neutrino, *options, "--tracedir", str(traces), *self.command(program, report)]
        self.run(name, argv)
        try:
            launches, unprobed = _launches(traces, program.kernels)
        except (TraceError, IndexError) as error:
            self.diagnostics.append(f"=== {name}: {error!r}")
            launches, unprobed = [], []
        return {"outputs": _outputs(report), "launches": launches, "unprobed": unprobed}

    def drive(self, programs: Sequence[Program]) -> None:
        """Everything. ncu runs alone: its counters see whatever else is on the GPU."""
        (self.folder / "groups.toml").write_text(probe_text())
        with ThreadPoolExecutor(len(programs)) as pool:
            built = list(pool.map(self.build, programs))
        programs = [program for program, good in zip(programs, built, strict=True) if good]
        self.result["programs"] = {program.name: {} for program in programs}
        kept = self.result["programs"]
        with ThreadPoolExecutor(3) as pool:
            for program, outputs in zip(programs, pool.map(self.plain, programs), strict=True):
                kept[program.name]["outputs"] = outputs
        for program in programs:
            kept[program.name]["ncu"] = self.profile(program)
        tasks = [(program, run) for program in programs for run in PROBES]
        with ThreadPoolExecutor(4) as pool:
            for (program, run), found in zip(tasks, pool.map(lambda task: self.probe(*task), tasks), strict=True):
                kept[program.name][run] = found
        for program in programs:
            found, program_kept = self.listings(program), kept[program.name]
            self.lines[program.name] = counted_lines.join(found, program_kept["ncu"], program_kept["lines"]["launches"])
            for profile in program_kept["ncu"]:
                del profile["rows"]
            del program_kept["lines"]["launches"]


def _outputs(report: Path) -> Json:
    try:
        return json.loads(report.read_text())["outputs"]
    except (OSError, ValueError, KeyError):
        return None


def _launches(traces: Path, kernels: Sequence[str]) -> tuple[list[Json], list[Json]]:
    """Each probed launch of the kernels in order of submission, and what was not probed, with the reasons."""
    rows: list[tuple[int, Json]] = []
    unprobed: list[Json] = []
    for path in find_traces(traces):
        trace = Trace(path)
        for kernel in trace.kernels:
            if kernels and not any(name in kernel.name for name in kernels):
                continue
            # A kernel with a twin may have launches that could not take it.
            reasons = {reason for reason, count in kernel.counters.items() if count} - {Reason.PROBED}
            if kernel.manifest is None:
                reasons.add(kernel.reason)
            for reason in sorted(reasons - ({Reason.NOT_SELECTED} if kernels else set())):
                detail = kernel.detail if reason is kernel.reason else ""
                unprobed.append([kernel.name, reason.word, detail])
            views = {launch.index: launch.maps for launch in kernel.launches()}
            manifest = kernel.manifest.raw if kernel.manifest else {}
            for index, record in zip(kernel.indices, kernel.records, strict=True):
                maps = views.get(int(index), {})
                rows.append((int(record["submit_ns"]), {
                    "kernel": kernel.name,
                    "reason": kernel.reason.word,
                    "detail": kernel.detail,
                    "grid": [int(part) for part in record["grid"]],
                    "block": [int(part) for part in record["block"]],
                    "registers": manifest.get("registers"),
                    "maps": {name: view.total() for name, view in maps.items() if view.map.kind == SUM},
                    **_sites(maps.get("Sites"), len(manifest.get("sites", ()))),
                }))  # fmt: skip
    return [row for _, row in sorted(rows, key=lambda entry: entry[0])], unprobed


def _sites(view: MapView | None, count: int) -> Json:
    """How often each of count sites was saved, and how many saves were dropped; {} without the map."""
    if view is None:
        return {}
    return {"sites": np.bincount(view.valid()["site"], minlength=count).tolist(), "dropped": view.dropped}


def triton_ptxas() -> str:
    """The assembler that comes with Triton."""
    spec = importlib.util.find_spec("triton")
    folders = spec.submodule_search_locations if spec is not None else None
    return str(Path(next(iter(folders or ()), "")) / "backends" / "nvidia" / "bin" / "ptxas")


def _headers(cutlass: Path | None, folder: Path) -> tuple[Path | None, str]:
    """The folder that holds CUTLASS's include and tools, and what it is."""
    if cutlass is None or not cutlass.exists():
        return None, "absent"
    if cutlass.is_file():
        with zipfile.ZipFile(cutlass) as wheel:
            wheel.extractall(folder / "cutlass")
        return folder / "cutlass" / "cutlass_library" / "source", cutlass.name
    return cutlass, cutlass.name


def find_ncu() -> str:
    """Nsight Compute's command line. Raises FileNotFoundError where there is none."""
    return str(find_cuda_tool("ncu"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="bench.counters", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results")))
    parser.add_argument("--neutrino", default=COMMAND, help="the command that probes a program")
    parser.add_argument("--cutlass", type=Path, help="nvidia_cutlass-*.whl, or a folder of its headers")
    parser.add_argument("--only", default="", help="names of programs, with commas between; default all")
    parser.add_argument("--budget", type=float, default=240, help="seconds for everything")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    only = set(filter(None, options.only.split(",")))
    programs = [program for program in PROGRAMS if not only or program.name in only]
    cutlass = options.cutlass or next(iter(sorted(ROOT.glob(".corpus/c*/nvidia_cutlass-*.whl"))), None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="counters_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "cache").mkdir(mode=0o700)
        headers, version = _headers(cutlass, folder)
        bench = Bench(shlex.split(options.neutrino), find_ncu(), folder, time.monotonic() + options.budget, headers)
        bench.result |= {
            "device": query_gpu("name"),
            "driver": query_gpu("driver_version"),
            "tree": tree_hash(ROOT),
            "cutlass": version,
            "nvcc": _version([str(find_cuda_tool("nvcc")), "--version"], folder),
            "ncu": _version([bench.ncu, "--version"], folder),
            "started": int(start),
        }
        try:
            bench.drive(programs)
        except KeyboardInterrupt:
            bench.result["interrupted"] = True
        finally:
            bench.result["seconds"] = round(time.time() - start, 1)
            text = json.dumps(bench.result, separators=(",", ":")).replace('{"kernel"', '\n{"kernel"')
            (options.out / RESULT).write_text(text + "\n")
            lines = {**{name: bench.result[name] for name in ABOUT}, "programs": bench.lines}
            lines_text = counted_lines.to_json(lines)
            (options.out / LINES_RESULT).write_text(lines_text)
            (options.out / DIAGNOSTICS).write_text("\n".join(bench.diagnostics))
            for page in folder.glob("*_ncu_*.out"):
                shutil.copy(page, options.out / page.name.replace(".out", ".csv"))
    print(f"{options.out / RESULT}: {len(text)} bytes, {bench.result['seconds']} s")
    judged = counters_verdicts.judge(json.loads(text))
    judged += lines_verdicts.judge(json.loads(lines_text), json.loads(text))
    print(table(judged))
    print("\n".join(counters_verdicts.report(json.loads(text))))
    return 0 if all(verdict.good for verdict in judged) else 1


def _version(argv: Sequence[str], folder: Path) -> str:
    done = run_program(argv, os.environ, folder, "version", 30)
    lines = [line for line in done.stdout.splitlines() if "release" in line.lower() or "version" in line.lower()]
    return lines[-1].strip() if lines else ""


if __name__ == "__main__":
    sys.exit(main())
