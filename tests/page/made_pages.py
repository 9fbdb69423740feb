"""Traces for pages, and pages of them as the command writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from neutrino.abi.results import FRAME
from neutrino.cli.probe import main as probe
from neutrino.cli.report import main
from neutrino.maps.log_reading import LOG_CONTROL, LOG_UNIT
from neutrino.verification import load_probes
from tests.page.made_traces import SITES, log_of
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\"'&<!--"


def write_schedule(
    path: Path, blocks: int = 600, warps: int = 4, sms: int = 7, slots: int = 3, seed: int = 1, launches: int = 3
) -> list[Any]:
    """Write a trace whose blocks' times are known; return them: for each launch an array with block, sm, begin, end.

    begin and end are those of a block's first and last warp. Clocks of multiprocessors are far apart, as on GPUs.
    """
    random = np.random.default_rng(seed)
    writer = TraceWriter(path)
    writer.kernel(1, "gemm", maps=[BLOCK_SCHED, GMEM_BYTES])
    writer.kernel(2, "idle", maps=[GMEM_BYTES])
    known = []
    clocks = random.integers(0, 1 << 40, sms)
    for _ in range(launches):
        free = np.zeros((sms, slots), np.int64)
        rows = np.zeros((blocks, warps), BLOCK_SCHED.dtype)
        table = np.zeros((blocks, 4), np.int64)
        for block in range(blocks):
            sm, slot = np.unravel_index(np.argmin(free), free.shape)
            begin = free[sm, slot] + int(random.integers(1, 40))
            took = random.integers(50, 5000 if block % 50 else 200_000, warps)
            late = random.integers(0, 20, warps)
            rows[block]["start"] = 10**15 + clocks[sm] + begin + late
            rows[block]["elapsed"], rows[block]["cuid"] = took, sm * 2
            first, last = begin + int(late.min()), begin + int((late + took).max())
            free[sm, slot] = last
            table[block] = block, sm * 2, 10**15 + int(clocks[sm]) + first, 10**15 + int(clocks[sm]) + last
        values = {"BlockSched": rows, "GmemBytes": [(4096, 128, 0, 0, 0)]}
        writer.launch(
            1, (blocks, 1, 1), (32 * warps, 1, 1), fill_regions([BLOCK_SCHED, GMEM_BYTES], blocks * warps, values)
        )
        known.append(table)
    writer.launch(2, (1, 1, 1), (32, 1, 1), fill_regions([GMEM_BYTES], 1, {"GmemBytes": [(1, 2, 3, 4, 5)]}))
    writer.write()
    return known


def write_accesses(path: Path, apart: int, device: str = "NVIDIA H200") -> Path:
    """Write a trace of one launch's accesses to memory, of 16 blocks of eight warps; return its folder.

    apart: by how much the clocks of one block's multiprocessor and the next one's differ.
    """
    dmat = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
    writer = TraceWriter(path, device=device)
    sites = [{"site": site, "probe": "p", "tracepoint": "ld", "line": 40 + site} for site in range(SITES)]
    writer.kernel(1, "walk", maps=[dmat], sites=sites)
    log = log_of(dmat, "random", 200_000, warps=128, apart=apart).records
    number = writer.launch(1, (16, 1, 1), (256, 1, 1), log.tobytes())
    record = writer.records[number]
    frame = np.frombuffer(writer.frames[1], FRAME.dtype, 1, offset=int(record["data_offset"]))
    record["log_units"] = frame["log_units"] = (len(log) - LOG_CONTROL) // LOG_UNIT
    return writer.write()


def page_of(trace: Path, folder: Path, *options: str) -> Path:
    """Write a trace's page as ``neutrino-report --html`` does; return its path."""
    path = folder / "page.html"
    assert main([str(trace), "--html", str(path), *options]) == 0
    return path


def probed_patterns(folder: Path) -> Path:
    """Run a kernel with many probes on the embedded device; return the trace."""
    probes = "dmat coalescing hot_lines opcode_mix barrier_wait launch_skew warp_timeline block_sched program_progress"
    arguments = [*probes.split(), str(ROOT / "examples/patterns.ptx"), "-k", "patterns", "--grid", "3", "--block", "72"]
    assert probe(["try", *arguments, "--tracedir", str(folder)]) == 0
    (trace,) = folder.iterdir()
    return trace
