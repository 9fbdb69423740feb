"""What is shown of a run with ``--memusage``: how much memory recording would take, kernel by kernel and in all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from neutrino.abi.reasons import Reason
from neutrino.tracing.memory_usage import DeviceUsage, KernelUsage, MapUsage, MemoryUsage
from neutrino.tracing.shown.model import Cell, Column, Kind, Line, Name, Section, Table, counted
from neutrino.tracing.summary import NotProbed
from neutrino.tracing.trace import TraceKernel

MOST_KERNELS = 20
"""Kernels that are listed unless all are asked for."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def shown_usage(
    usage: MemoryUsage, keep: Callable[[TraceKernel], bool] = lambda _: True, *, show_all: bool = False
) -> Iterator[Section]:
    """Yield the sections of a report of --memusage: kernels with their maps (what probes save to), the totals, what
    would not be probed, and notes.

    keep: whether to list a kernel; the totals are of all. show_all: also kernels after the first ones.
    """
    kernels = [kernel for kernel in usage.kernels if keep(kernel.kernel)]
    if kernels:
        shown = kernels if show_all else kernels[:MOST_KERNELS]
        left_out = len(kernels) - len(shown)
        more = Line.of(f"and {_kernels(left_out)} more (neutrino-report --all)") if left_out else None
        columns = (Column("kernel", Kind.NAME), Column("launches"), Column("bytes per launch", unit="bytes"),
                   Column("bytes in the trace", unit="bytes"))  # fmt: skip
        rows = tuple(row for kernel in shown for row in _rows(kernel))
        yield Section("memory", None, (Table("memory", columns, rows, left_out=left_out, more=more),))
    yield Section("memory", None, (*_trace_lines(usage), *_device_lines(usage.device)))
    # Those that are not chosen are no surprise; the line on coverage has their number.
    not_probed = [
        row
        for row in usage.not_probed
        if row.launches and row.reason is not Reason.NOT_SELECTED and keep(row.kernel)
    ]
    if not_probed:
        lines = tuple(_each_kernel(not_probed) if show_all else _by_reason(not_probed))
        yield Section("not_probed", Line.of("Would not be probed"), lines)
    if usage.trace.notes:
        yield Section("notes", None, tuple(Line.of(f"note: {note}", role="note") for note in usage.trace.notes))


def _each_kernel(rows: Sequence[NotProbed]) -> Iterator[Line]:
    """Yield a line for each kernel that would not be probed, with the reason."""
    for row in rows:
        detail = f" ({row.detail})" if row.detail else ""
        name = Name(row.kernel.full_name, row.kernel.id)
        yield Line.of(name, f": {_launches(row.launches)}, {_reason(row, detail)}", indent=1)


def _by_reason(rows: Sequence[NotProbed]) -> Iterator[Line]:
    """Yield a line for each reason why kernels would not be probed, those of most launches first; the kernel's name if
    there is only one.
    """
    by_reason: dict[Reason, list[NotProbed]] = {}
    for row in rows:
        by_reason.setdefault(row.reason, []).append(row)
    totals = {reason: sum(row.launches for row in found) for reason, found in by_reason.items()}
    for reason, found in sorted(by_reason.items(), key=lambda entry: -totals[entry[0]]):
        if len(found) == 1:
            yield from _each_kernel(found)
        else:
            yield Line.of(f"{_launches(totals[reason])} of {_kernels(len(found))}, {_reason(found[0])}", indent=1)
    if len(rows) > len(by_reason):
        yield Line.of("neutrino-report --all names the kernels", indent=1)


def _launches(count: int) -> str:
    """A number of launches in words."""
    return counted(count, "launch", "launches")


def _kernels(count: int) -> str:
    """A number of kernels in words."""
    return counted(count, "kernel", "kernels")


def _reason(row: NotProbed, detail: str = "") -> str:
    """Why a kernel would not be probed, and what helps. detail: what is put in brackets after the reason."""
    remedy = f"; what helps: {row.remedy}" if row.remedy else ""
    return f"{row.reason.word}: {row.text}{detail}{remedy}"


def _rows(usage: KernelUsage) -> Iterator[tuple[Cell, ...]]:
    """Yield a kernel's row of the table, and one for each of its maps: name, launches, bytes per launch, bytes in the
    trace.
    """
    data = f"{usage.data:,}{' + logs' if usage.has_logs else ''}"
    if usage.has_logs and usage.with_logs is not None:
        data += f" (about {usage.with_logs:,})"
    name = Cell.named(Name(usage.kernel.full_name, usage.kernel.id))
    yield name, Cell(f"{usage.launches:,}", usage.launches), _span(usage), Cell(data, usage.data)
    for entry in usage.maps:
        more = " + log" if entry.is_log else ""
        # Below its kernel.
        own = Cell(f"  {entry.entry.name}", entry.entry.name)
        yield own, Cell(""), _span(entry), Cell(f"{entry.data:,}{more}", entry.data)


def _span(usage: KernelUsage | MapUsage) -> Cell:
    """Bytes of device memory that a launch takes: a number, or from the least to the most."""
    return Cell(f"{usage.least:,}" if usage.least == usage.most else f"{usage.least:,} to {usage.most:,}", usage.most)


def _trace_lines(usage: MemoryUsage) -> Iterator[Line]:
    """Yield what the trace would take on disk, what of that is not known, and what a limit makes of it."""
    sizes = (usage.data, "data"), (usage.records, "launch records"), (usage.rest, "other files")
    parts = ", ".join(f"{size_text(size)} of {what}" for size, what in sizes)
    yield Line.of(f"trace: {size_text(usage.trace_size)}{' and what logs hold' if usage.has_logs else ''} ({parts})")
    if usage.has_logs:
        names = dict.fromkeys(entry.entry.name for kernel in usage.kernels for entry in kernel.maps if entry.is_log)
        most = f", at most {size_text(usage.device.launch_limit // 2)} a launch" if usage.device else ""
        if usage.size_with_logs is not None:
            yield Line.of(
                f"about {size_text(usage.size_with_logs)}, if logs take what they took at most in an earlier run",
                indent=1,
            )
        else:
            yield Line.of(
                f"not known before kernels are probed: what is saved to {', '.join(names)}{most};"
                " after a run with --launches 0:1, --memusage says about how much",
                indent=1,
            )
    if usage.max_trace_size is not None and usage.limited_size is not None:
        limit, size = size_text(usage.max_trace_size), size_text(usage.limited_size)
        yield Line.of(f"under --max-trace-size {limit}: at most {size}, of the latest launches", indent=1)


def _device_lines(device: DeviceUsage | None) -> Iterator[Line]:
    """Yield what recording would allocate on the device. device: None if the process did not end normally."""
    if device is None:
        yield Line.of("device memory: not known, since the process did not end normally")
        return
    graphs = f", {size_text(device.graphs)} for graphs" if device.graphs else ""
    yield Line.of(f"device memory: {size_text(device.pools)} for maps{graphs}, beside the twins' code")
    if not device.is_final:
        yield Line.of(
            "it grows while launches wait for their data to be copied back, in each context to"
            f" {size_text(device.limit)} (--max-device-memory)",
            indent=1,
        )


def size_text(size: int) -> str:
    """Return a size for people: ``512 bytes``, ``1.5 MiB``."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return counted(size, "byte", "bytes")
