"""What ``neutrino --benchmark`` has measured, as text and for JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neutrino.tracing.benchmark import Benchmark
    from neutrino.tracing.trace import Trace

_NAME_WIDTH = 60
"""Characters of a kernel's name at the end of a run."""


def benchmark_text(path: Path) -> str:
    """Return what is printed at the end of a run whose trace is at path. Damaged data are reported in the text."""
    # Imported here, in the process that reads the trace: a run itself does not need NumPy.
    from neutrino.cli.kernel_names import shorten
    from neutrino.cli.section_text import section_lines
    from neutrino.errors import NeutrinoError
    from neutrino.tracing.shown.benchmark import shown_benchmark
    from neutrino.tracing.trace import Trace

    try:
        trace = Trace(path)
        found = trace.benchmark
    except NeutrinoError as error:
        return f"neutrino: the benchmark cannot be read: {error}\n"
    if found is None:
        return "neutrino: nothing was timed: the driver has no cuEventElapsedTime\n"
    names = {kernel.id: kernel.full_name for kernel in trace.kernels}
    lines = section_lines(shown_benchmark(found, names), lambda name: shorten(name, _NAME_WIDTH))
    return "\n" + "".join(f"{line}\n" for line in lines)


def benchmark_document(found: Benchmark, trace: Trace) -> dict[str, Any]:
    """Return the object ``benchmark`` of ``neutrino-report --json``. Times are in nanoseconds. trace: has the names."""
    from neutrino.cli.kernel_names import demangled

    names = {kernel.id: (kernel.name, demangled(kernel)) for kernel in trace.kernels}
    return {
        "floor_ns": found.floor_ns,
        "untimed": found.untimed,
        "slowdown": found.slowdown,
        "groups": [
            {
                "kernel": group.kernel,
                **dict(zip(("name", "demangled"), names.get(group.kernel or 0, (None, None)), strict=True)),
                "graph": group.graph,
                "grid": list(group.grid),
                "block": list(group.block),
                "shared": group.shared,
                "device": group.device,
                "originals": len(group.originals),
                "probed": len(group.probed),
                "warm_up": group.warm_up,
                "overlapped": group.overlapped,
                "medians_ns": [None if math.isnan(median) else median for median in group.medians_ns],
                "ratio": group.ratio.ratio if group.ratio else None,
                "interval": [group.ratio.low, group.ratio.high] if group.ratio else None,
                "ratio_above_floor": group.ratio_above_floor,
                "short": group.is_short,
                "verdict": group.verdict,
            }
            for group in found.groups
        ],
    }
