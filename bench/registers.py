"""Registers and machine instructions that each shipped probe adds: ``python -m bench.registers record`` and ``judge``.

Twins are made as for a GPU, by ``ptxas``, of the kernels of ``tests/kernels``, of those that nvcc compiles from the
bench's own programs, and of a sample of the Triton corpus where it is there. A few kernels are probed by hand, too
(``bench/hand``), for the same figures. Judged are the light probes: they keep little from a kernel's entry to its end,
and at each site add a constant or nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.programs import find_cuda_tool
from bench.recorded import judge_files
from bench.tree import made_of
from bench.verdicts import Verdict, say
from neutrino.abi.reasons import Reason
from neutrino.maker.patcher import patch_image
from neutrino.maps.registry import SUM
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.ptx.text.module import parse
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.tool_choice import find_assembler
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probes

Json = Any
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "registers.json"
FIXTURES = ROOT / "tests" / "fixtures" / "kernels"
HAND = ROOT / "bench" / "hand"
PROGRAMS = ("counted", "half", "histogram", "matmul", "reduction", "shapes", "softmax", "vecadd")
CORPUS = 24
"""Files of the Triton corpus, spread over it."""

LIGHT: Mapping[str, str] = {
    "block_sched": "one clock is kept",
    "gmem_bytes": "a sum for each kind of access that there is, constants added",
    "tensorop": "a sum for the one type that a kernel multiplies, and one for its shape",
}
"""Probes that the bound holds for, and why they are light. The others keep a sum for each of many classes, compute at
each site, or store a record there."""
SPILLING = {"gmem_bytes": 1, "inst_count": 1, "smem_bank_conflict": 2}
"""Kernels that may spill with a probe: a cumulative sum of f64 in Triton, 8 and 16 bytes; and those that get fewer
registers than ``ptxas`` takes by itself, so that more of their blocks fit, at most 48 bytes."""
MOST_REGISTERS = 3.0
"""In the mean over the kernels that such a probe changes."""
PROBES = (
    "block_sched", "branch_divergence", "gmem_bytes", "inst_count", "program_progress", "smem_bank_conflict",
    "tensorop", "value_watch",
)  # fmt: skip
"""Shipped probes whose cost is followed from change to change; docs/library.md has the others' prices."""
COLUMNS = (
    "file",
    "kernel",
    "reason",
    "registers",
    "with",
    "spilled",
    "spilled_with",
    "instructions",
    "instructions_with",
)

_INSTRUCTION = 16
_NOP = 0x918
_WORD = 12


def instructions(code: bytes) -> int:
    """Count the machine instructions of a kernel, without the padding after it. code: for sm_75 or newer, 16 bytes
    each."""
    words = [
        int.from_bytes(code[at : at + 8], "little") & ((1 << _WORD) - 1) for at in range(0, len(code), _INSTRUCTION)
    ]
    while words and words[-1] == _NOP:
        words.pop()
    return len(words)


def sources(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the PTX texts that are probed: where each is from, its file name, the text. folder: for what nvcc makes."""
    for path in sorted(FIXTURES.rglob("*.ptx")):
        yield "fixtures", f"{path.parent.name}/{path.name}", path.read_bytes().decode("latin-1")
    try:
        nvcc = find_cuda_tool("nvcc")
    except FileNotFoundError:
        return
    for name in PROGRAMS:
        target = folder / f"{name}.ptx"
        source = ROOT / "bench" / "workloads" / f"{name}.cu"
        subprocess.run([str(nvcc), "-O3", "-std=c++17", "-arch=compute_90a", "-ptx", "-o", str(target), str(source)],
                       check=True, capture_output=True, timeout=300)  # fmt: skip
        yield "nvcc", f"{name}.ptx", target.read_text()
    corpus = sorted((ROOT / ".corpus" / "triton").glob("*.sm_[89]*.ptx"))
    for path in corpus[:: max(1, len(corpus) // CORPUS)]:
        yield "triton", path.name, path.read_bytes().decode("latin-1")


def _arch(text: str) -> str:
    """Return the architecture to assemble a PTX text for: its own target, at least sm_75."""
    match = re.match(r"sm_(\d+)", parse(text).target)
    return f"sm_{max(int(match[1]), 75)}" if match else "sm_90"


def examine(file: str, text: str, probes: Sequence[str], assembler: Assembler) -> dict[str, list[Json]]:
    """Probe every kernel of a PTX text; return registers, spills and instructions before and after, by probe.

    A row of COLUMNS for each kernel in which the probe has a site; None where one could not be probed.
    """
    arch = _arch(text)
    target = parse(text).target
    original = read_cubin(assembler.assemble(text, target if target[-1] in "af" else arch).cubin, file).kernels
    found: dict[str, list[Json]] = {}
    for probe in probes:
        loaded = load_probes([probe])
        image = text.encode("latin-1") + b"\0"
        data = patch_image(image, loaded, arch, selection=Selection((), ()), assembler=assembler, key=bytes(32))
        entry = read_entry(data, file)
        twins = [read_cubin(image, file).kernels for image in entry.images]
        rows = found.setdefault(probe, [])
        for kernel in entry.kernels:
            if kernel.reason is not Reason.PROBED:
                if kernel.reason is not Reason.NO_SITE:
                    rows.append([file, kernel.name, kernel.reason.word, *[None] * (len(COLUMNS) - 3)])
                continue
            manifest = json.loads(kernel.files["manifest.json"])
            if not _changes(loaded, manifest["sites"]):
                continue
            spills = [sum(manifest["spills"][side].values()) for side in ("original", "twin")]
            rows.append([
                file, kernel.name, "probed", manifest["registers"]["original"], manifest["registers"]["twin"], *spills,
                instructions(original[kernel.name].code), instructions(twins[kernel.image][kernel.twin].code),
            ])  # fmt: skip
    return found


def _changes(probes: ProbeSet, sites: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a probe does anything in a kernel but at its beginning and end. sites: those of the kernel, from its
    manifest."""
    return all(entry.kind.name != SUM.name for entry in probes.maps) or any(site["site"] is not None for site in sites)


def by_hand(assembler: Assembler) -> list[Json]:
    """Compare our instrumented kernels with those into which the same probe was written by hand; return a row for each.

    Kernel, probe, and [registers, bytes spilled, instructions] of the original, of Neutrino's copy, of the one by hand.
    """
    rows: list[Json] = []
    texts = {path: path.read_text() for path in sorted(FIXTURES.glob("clang/*.ptx"))}
    for path in sorted(HAND.glob("*.ptx")):
        kernel, probe = path.stem.split(".")
        file, text = next((file, text) for file, text in texts.items() if f".entry {kernel}(" in text)
        (row,) = [row for row in examine(file.name, text, [probe], assembler)[probe] if row[1] == kernel]
        made = assembler.assemble(path.read_text(), _arch(path.read_text()))
        (own,) = read_cubin(made.cubin, path.name).kernels.values()
        resources = made.resources[kernel]
        spilled = resources.spill_stores + resources.spill_loads
        rows.append([kernel, probe, [row[3], row[5], row[7]], [row[4], row[6], row[8]],
                     [own.registers, spilled, instructions(own.code)]])  # fmt: skip
    return rows


def record(out: Path, jobs: int) -> Json:
    """Measure all kernels under all probes, ``jobs`` at a time, and write the figures to ``out``.

    Raises ToolMissingError without a ptxas.
    """
    assembler = find_assembler()
    probes = list(PROBES)
    rows: dict[str, list[Json]] = {probe: [] for probe in probes}
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        every = list(sources(Path(folder)))
        for (origin, _, _), found in zip(
            every, pool.map(lambda entry: examine(entry[1], entry[2], probes, assembler), every), strict=True
        ):
            counts[origin] = counts.get(origin, 0) + 1
            for probe, kept in found.items():
                rows[probe] += [[origin, *row] for row in kept]
    result = {
        "assembler": assembler.name, **made_of("registers"), "machine": platform.machine(), "files": counts,
        "columns": ["source", *COLUMNS], "probes": rows, "hand": by_hand(assembler),
    }  # fmt: skip
    out.write_text(json.dumps(result, separators=(",", ":")).replace('["fixtures"', '\n["fixtures"') + "\n")
    return result


def figures(result: Json) -> dict[str, dict[str, float]]:
    """Summarize for each probe: how many kernels, registers and instructions added (mean and most), kernels that spill
    more."""
    found = {}
    for probe, rows in result["probes"].items():
        good = [dict(zip(result["columns"], row, strict=True)) for row in rows if row[3] == "probed"]
        registers = [row["with"] - row["registers"] for row in good]
        added = [row["instructions_with"] - row["instructions"] for row in good]
        found[probe] = {
            "kernels": len(good),
            "not_probed": len(rows) - len(good),
            "registers": fmean(registers) if good else 0.0,
            "most_registers": max(registers, default=0),
            "instructions": fmean(added) if good else 0.0,
            "most_instructions": max(added, default=0),
            "spill": sum(row["spilled_with"] > row["spilled"] for row in good),
        }
    return found


def judge(result: Json) -> list[Verdict]:
    """Check the recorded figures; return a verdict, good or bad, on each probe.

    The light probes have bounds, and no probe may make a kernel spill that did not, but for ``SPILLING``.
    """
    found = []
    for probe, figure in figures(result).items():
        words = (
            f"{figure['kernels']} kernels: registers +{figure['registers']:.2f}, at most {figure['most_registers']:+}; "
            f"instructions +{figure['instructions']:.1f}; {figure['spill']} spill more"
        )
        good = figure["kernels"] >= 1 and figure["spill"] <= SPILLING.get(probe, 0)
        if probe in LIGHT:
            good = good and figure["registers"] <= MOST_REGISTERS
        found.append(Verdict(f"{probe}{' (light)' if probe in LIGHT else ''}", good, words))
    missing = [source for source in ("fixtures", "nvcc", "triton") if not result["files"].get(source)]
    found.append(Verdict("kernels", not missing, f"files {result['files']}" + (f", no {missing}" if missing else "")))
    return found


def page(result: Json) -> str:
    """Return the tables of bench/README.md, as Markdown, made from recorded results."""
    lines = [
        "| probe | kernels | registers, mean | at most | instructions, mean | at most | spill more |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for probe, figure in figures(result).items():
        lines.append(
            f"| `{probe}`{', light' if probe in LIGHT else ''} | {figure['kernels']} | {figure['registers']:+.2f} | "
            f"{figure['most_registers']:+} | {figure['instructions']:+.1f} | {figure['most_instructions']:+} | "
            f"{figure['spill']} |"
        )
    lines += ["", "| kernel | probe | original | by Neutrino | by hand |", "| --- | --- | ---: | ---: | ---: |"]
    for kernel, probe, *sides in result["hand"]:
        words = [f"{registers} registers, {count} instructions" for registers, _, count in sides]
        lines.append(f"| `{kernel}` | `{probe}` | {' | '.join(words)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, judge, or print the tables for the page, as the command line says. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.registers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mode", choices=("record", "judge", "page"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.mode == "record":
        record(options.out, options.jobs)
    command, keys = "python -m bench.registers record", ("columns", "probes", "files", "hand")
    return judge_files([options.out], command, keys, _print_page if options.mode == "page" else _say)


def _say(result: Json) -> int:
    """Print the verdicts on recorded results; return 1 when one is bad, else 0."""
    return say(judge(result))


def _print_page(result: Json) -> int:
    """Print the tables for the page; 1 when a verdict is bad, else 0."""
    good = all(verdict.good for verdict in judge(result))
    print(page(result))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
