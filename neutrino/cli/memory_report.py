"""What ``neutrino --memusage`` has measured: as text, which is also printed when COMMAND ends, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from neutrino.abi.reasons import Reason
from neutrino.cli.kernel_names import demangled, shorten
from neutrino.cli.streams import escaped
from neutrino.cli.table import counted, table

if TYPE_CHECKING:
    from neutrino.tracing.memory_usage import DeviceUsage, KernelUsage, MapUsage, MemoryUsage
    from neutrino.tracing.summary import NotProbed
    from neutrino.tracing.trace import TraceKernel

Keep: TypeAlias = "Callable[[TraceKernel], bool]"

_NAME_WIDTH = 60
"""Characters of a kernel's name."""
_MOST_KERNELS = 20
"""Kernels that are listed unless all are asked for."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_BYTES, _DATA = "bytes per launch", "bytes in the trace"


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
    kernels = [kernel for kernel in usage.kernels if keep(kernel.kernel)]
    if kernels:
        shown = kernels if shows_all else kernels[:_MOST_KERNELS]
        rows = [row for kernel in shown for row in _rows(kernel, is_wide)]
        head = ("kernel", "launches", _BYTES, _DATA)
        yield from (line[2:] for line in table(head, rows, head[1:]))
        if len(shown) < len(kernels):
            yield f"and {counted(len(kernels) - len(shown), 'kernel')} more (neutrino-report --all)"
        yield ""
    yield from _trace_lines(usage)
    yield from _device_lines(usage.device)
    # Those that are not chosen are no surprise; the line on coverage has their number.
    not_probed = [
        row
        for row in usage.not_probed
        if row.launches and row.reason is not Reason.NOT_SELECTED and keep(row.kernel)
    ]
    if not_probed:
        yield ""
        yield "Would not be probed"
        yield from _each_kernel(not_probed, is_wide) if shows_all else _by_reason(not_probed, is_wide)
    notes = usage.trace.notes
    if notes:
        yield ""
    for note in notes:
        yield f"note: {escaped(note)}"


def _each_kernel(rows: Sequence[NotProbed], is_wide: bool) -> Iterator[str]:
    """Yield a line for each kernel that would not be probed, with the reason. is_wide: whole names."""
    for row in rows:
        detail = f" ({escaped(row.detail)})" if row.detail else ""
        yield f"  {_name(row.kernel, is_wide)}: {_launches(row.launches)}, {_reason(row, detail)}"


def _by_reason(rows: Sequence[NotProbed], is_wide: bool) -> Iterator[str]:
    """Yield a line for each reason why kernels would not be probed, those of most launches first; the kernel's name if
    there is only one. is_wide: whole names.
    """
    by_reason: dict[Reason, list[NotProbed]] = {}
    for row in rows:
        by_reason.setdefault(row.reason, []).append(row)
    totals = {reason: sum(row.launches for row in found) for reason, found in by_reason.items()}
    for reason, found in sorted(by_reason.items(), key=lambda entry: -totals[entry[0]]):
        if len(found) == 1:
            yield from _each_kernel(found, is_wide)
        else:
            yield f"  {_launches(totals[reason])} of {counted(len(found), 'kernel')}, {_reason(found[0])}"
    if len(rows) > len(by_reason):
        yield "  neutrino-report --all names the kernels"


def _launches(count: int) -> str:
    """A number of launches in words."""
    return "1 launch" if count == 1 else f"{count:,} launches"


def _reason(row: NotProbed, detail: str = "") -> str:
    """Why a kernel would not be probed, and what helps. detail: what is put in brackets after the reason."""
    remedy = f"; what helps: {row.remedy}" if row.remedy else ""
    return f"{row.reason.word}: {row.text}{detail}{remedy}"


def _rows(usage: KernelUsage, is_wide: bool) -> Iterator[tuple[str, str, str, str]]:
    """Yield a kernel's row of the table, and one for each of its maps: name, launches, bytes per launch, bytes in the
    trace.
    """
    data = f"{usage.data:,}{' + logs' if usage.has_logs else ''}"
    if usage.has_logs and usage.with_logs is not None:
        data += f" (about {usage.with_logs:,})"
    yield _name(usage.kernel, is_wide), f"{usage.launches:,}", _span(usage), data
    for entry in usage.maps:
        more = " + log" if entry.is_log else ""
        yield f"  {escaped(entry.entry.name)}", "", _span(entry), f"{entry.data:,}{more}"


def _span(usage: KernelUsage | MapUsage) -> str:
    """Bytes of device memory that a launch takes: a number, or from the least to the most."""
    return f"{usage.least:,}" if usage.least == usage.most else f"{usage.least:,} to {usage.most:,}"


def _name(kernel: TraceKernel, is_wide: bool) -> str:
    """A kernel's demangled name, shortened unless is_wide."""
    name = demangled(kernel)
    return escaped(name if is_wide else shorten(name, _NAME_WIDTH))


def _trace_lines(usage: MemoryUsage) -> Iterator[str]:
    """Yield what the trace would take on disk, what of that is not known, and what a limit makes of it."""
    sizes = (usage.data, "data"), (usage.records, "launch records"), (usage.rest, "other files")
    parts = ", ".join(f"{size_text(size)} of {what}" for size, what in sizes)
    yield f"trace: {size_text(usage.trace_size)}{' and what logs hold' if usage.has_logs else ''} ({parts})"
    if usage.has_logs:
        names = dict.fromkeys(entry.entry.name for kernel in usage.kernels for entry in kernel.maps if entry.is_log)
        most = f", at most {size_text(usage.device.launch_limit // 2)} a launch" if usage.device else ""
        if usage.size_with_logs is not None:
            yield f"  about {size_text(usage.size_with_logs)}, if logs take what they took at most in an earlier run"
        else:
            yield (
                f"  not known before kernels are probed: what is saved to {', '.join(map(escaped, names))}{most};"
                " after a run with --launches 0:1, --memusage says about how much"
            )
    if usage.max_trace_size is not None and usage.limited_size is not None:
        limit, size = size_text(usage.max_trace_size), size_text(usage.limited_size)
        yield f"  under --max-trace-size {limit}: at most {size}, of the latest launches"


def _device_lines(device: DeviceUsage | None) -> Iterator[str]:
    """Yield what recording would allocate on the device. device: None if the process did not end normally."""
    if device is None:
        yield "device memory: not known, since the process did not end normally"
        return
    graphs = f", {size_text(device.graphs)} for graphs" if device.graphs else ""
    yield f"device memory: {size_text(device.pools)} for maps{graphs}, beside the twins' code"
    if not device.is_final:
        yield (
            "  it grows while launches wait for their data to be copied back, in each context to"
            f" {size_text(device.limit)} (--max-device-memory)"
        )


def size_text(size: int) -> str:
    """Return a size for people: ``512 bytes``, ``1.5 MiB``."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return counted(size, "byte")


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
