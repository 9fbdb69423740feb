"""What ``neutrino --memusage`` has measured: as text, which is also printed when COMMAND ends, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from neutrino.cli.kernel_names import demangled, shorten
from neutrino.cli.streams import escaped

if TYPE_CHECKING:
    from neutrino.tracing.memory_usage import MemoryUsage
    from neutrino.tracing.trace import TraceKernel

Keep: TypeAlias = "Callable[[TraceKernel], bool]"

_NAME_WIDTH = 60
"""Characters of a kernel's name."""


def memory_results(path: Path) -> str:
    """Return what is printed of a complete trace when COMMAND ends. Damaged data are reported in the text."""
    # Imported here, in the process that reads the trace: a run itself does not need NumPy.
    from neutrino.errors import NeutrinoError
    from neutrino.tracing.memory_usage import memory_usage
    from neutrino.tracing.trace import Trace

    try:
        usage = memory_usage(Trace(path))
    except (NeutrinoError, OSError) as error:
        return f"neutrino: {error}\n"
    return "\n" + "".join(f"{line}\n" for line in usage_lines(usage))


def usage_lines(
    usage: MemoryUsage, keep: Keep = lambda _: True, *, shows_all: bool = False, is_wide: bool = False
) -> Iterator[str]:
    """Yield the lines of a report of --memusage: kernels with their maps (what probes save to), the totals, and what
    would not be probed.

    keep: whether to list a kernel; the totals are of all. shows_all: also kernels after the first ones. is_wide: whole
    names.
    """
    from neutrino.cli.section_text import section_lines
    from neutrino.tracing.shown.memory import shown_usage

    def label(name: str) -> str:
        """Return a kernel's name as it is shown."""
        return name if is_wide else shorten(name, _NAME_WIDTH)

    for number, section in enumerate(shown_usage(usage, keep, show_all=shows_all)):
        if number:
            yield ""
        yield from map(escaped, section_lines(section, label))


def usage_document(usage: MemoryUsage, keep: Keep) -> dict[str, Any]:
    """Return a trace's object in the JSON document of ``neutrino-report``; sizes are in bytes.

    keep: whether to list a kernel; the totals are of all.
    """
    from neutrino.cli.why import coverage_document

    trace, device = usage.trace, usage.device
    return {
        "path": str(trace.path),
        "complete": trace.complete,
        "started": trace.started,
        "process": trace.process,
        "devices": list(trace.devices),
        "would_be": coverage_document(trace.coverage),
        "memusage": {
            "trace": usage.trace_size,
            "data": usage.data,
            "records": usage.records,
            "rest": usage.rest,
            "has_logs": usage.has_logs,
            "with_logs": usage.size_with_logs,
            "max_trace_size": usage.max_trace_size,
            "limited": usage.limited_size,
            "device": None if device is None else {
                "maps": device.pools, "graphs": device.graphs, "contexts": device.contexts, "limit": device.limit,
                "launch_limit": device.launch_limit, "grows": not device.is_final,
            },
            "kernels": [
                {
                    "kernel": kernel.kernel.id,
                    "name": kernel.kernel.name,
                    "demangled": demangled(kernel.kernel),
                    "launches": kernel.launches,
                    "least": kernel.least,
                    "most": kernel.most,
                    "data": kernel.data,
                    "with_logs": kernel.with_logs if kernel.has_logs else None,
                    "maps": [
                        {
                            "name": entry.entry.name, "kind": entry.entry.kind.name, "level": entry.entry.level.value,
                            "least": entry.least, "most": entry.most, "data": entry.data, "is_log": entry.is_log,
                        }
                        for entry in kernel.maps
                    ],
                }
                for kernel in usage.kernels
                if keep(kernel.kernel)
            ],
        },
        "not_probed": [
            {
                "kernel": row.kernel.id, "name": row.kernel.name, "demangled": demangled(row.kernel),
                "reason": row.reason.word, "text": row.text, "detail": row.detail, "launches": row.launches,
            }
            for row in usage.not_probed
            if keep(row.kernel)
        ],
        "notes": [*trace.notes, *trace.faults],
    }  # fmt: skip
