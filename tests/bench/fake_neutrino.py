"""In place of ``neutrino`` and a GPU: runs the program, then writes the trace that its launches would leave.

fake_neutrino.py -p PROBE… [-k NAME] --tracedir DIR PROGRAM…
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from neutrino.abi.reasons import Reason
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions


def main() -> int:
    arguments = sys.argv[1:]
    probes, selected = [], True
    while arguments[0].startswith("-"):
        name, value = arguments[:2]
        arguments = arguments[2:]
        if name == "-p":
            probes.append(value)
        elif name == "-k":
            selected = False
        else:
            traces = Path(value)
    status = subprocess.call(arguments, env={**os.environ, "FAKE_PROBES": " ".join(probes)})
    report = Path(arguments[arguments.index("--out") + 1])
    if not report.exists():
        return status
    if "block_sched" in probes:
        # As the first run of a probe would: the assembler starts and the patcher is imported.
        subprocess.run([os.environ["NEUTRINO_PTXAS"], "--version"], stdout=subprocess.DEVNULL, check=True)
        importlib.import_module("neutrino.sass.arithmetic")
    maps = [entry for entry, name in ((BLOCK_SCHED, "block_sched"), (GMEM_BYTES, "gmem_bytes")) if name in probes]
    writer = TraceWriter(traces / "Nov21_100000_1")
    writer.event("image", id=1, kind="fatbin", size=10, source="", cached=0, ready_ms=100.5)
    writer.kernel(1, "work", Reason.PROBED if selected else Reason.NOT_SELECTED, maps=maps)
    for _, grid, block, _, asked in json.loads(report.read_text())["launches"]:
        warps = grid[0] * (block[0] // 32)
        values = {
            "BlockSched": [(100 + warp, 50, warp % 4) for warp in range(warps)],
            "GmemBytes": [(*asked, 0)],
        }
        if selected:
            writer.launch(1, tuple(grid), tuple(block), fill_regions(maps, warps, values))
        else:
            writer.count(1, Reason.NOT_SELECTED, 1)
    writer.write()
    return status


if __name__ == "__main__":
    sys.exit(main())
