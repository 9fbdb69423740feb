"""Bytes and arithmetic: how many operations a kernel does for each byte, and on which side of the roofline that is."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.tracing.analyses.block_times import block_times, has_times
from neutrino.tracing.analyses.devices import device_figures, ridges
from neutrino.tracing.analyses.evidence import Analysis, Evidence, middle
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold, brief
from neutrino.tracing.percent import percent

_FLOATS = ("fp16", "fp32", "fp64")
_TENSOR = ("f64", "tf32", "f16", "bf16", "f8", "f4")


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield the operations for each byte of global memory that threads ask for, and with times how near to the
    device's limits that comes."""
    moved = evidence.totals("GmemBytes", ("load", "store"))
    mix = evidence.totals("OpcodeMix", _FLOATS)
    launches = evidence.summary.written
    if moved is None or mix is None or not launches:
        return
    size = sum(moved[name] for name in moved if name != "uncounted")
    tensor = sum((evidence.totals("TensorOps") or {}).get(name, 0) for name in _TENSOR)
    single = sum(mix[name] for name in _FLOATS)
    # One instruction is one operation, or two of a fused multiplication and addition.
    least, most = (single * each + tensor for each in (1, 2))
    if not size:
        return
    intensity = most / size
    values: dict[str, int | float | str] = {
        "bytes": size // launches, "operations": most // launches, "intensity": intensity,
        "intensity_least": least / size,
    }  # fmt: skip
    caveats = ["bytes are those that threads ask for, before caches: what memory moves may be less"]
    if moved.get("uncounted"):
        caveats.append(f"{moved['uncounted']:,} accesses of unknown size are not in it")
    table = device_figures(evidence.device)
    low, high = (table.ridge, table.ridge) if table is not None else ridges()
    if table is not None and tensor > single:
        low = high = table.tensor_ridge
    where = f"on a {table.name}" if table is not None else "on all devices of the table"
    limit = {
        "memory": "memory is the nearer limit unless caches serve them", "arithmetic": "arithmetic is",
        "either": "either may be",
    }  # fmt: skip
    if intensity < low:
        nearer, side = "memory", f"below the {brief(low)} from which arithmetic is the limit {where}"
    elif least / size > high:
        nearer, side = "arithmetic", f"above the {brief(high)} up to which memory is the limit {where}"
    else:
        nearer, side = "either", f"near the {brief(low)} to {brief(high)} at which the limit changes"
    asked = f"a launch asks for {brief(size / launches)} bytes of global memory"
    sentence = (
        f"{asked} and does up to {brief(most / launches)} floating-point operations, {brief(intensity)} for each byte: "
        f"{side}, so {limit[nearer]}"
    )
    seconds = _seconds(evidence) if table is not None else 0.0
    remedies: tuple[str, ...] = ()
    if table is not None and seconds:
        peak = table.tensor if tensor > single else table.single
        by_memory, by_arithmetic = size / launches / seconds / table.memory, most / launches / seconds / peak
        values["seconds"] = seconds
        if by_memory > 1:
            # Which limit is nearer depends on what memory moves, of which nothing is known but that it is less.
            nearer = "either"
            values["cached"] = 1 - 1 / by_memory
            sentence = (
                f"{asked}, of which memory can move {percent(1 / by_memory)} at most in {brief(seconds * 1e6)} µs: "
                f"caches serve the rest; of the limit of arithmetic it reaches {percent(by_arithmetic)}"
            )
        else:
            reached = max(by_memory, by_arithmetic)
            values["reached"] = reached
            sentence += f"; it reaches {percent(reached)} of that limit at most, in {brief(seconds * 1e6)} µs"
            remedies = (
                "more loads in flight: more warps at a time, wider or more independent loads, asynchronous copies",
            )
    values["side"] = nearer
    certainty = evidence.certainty(["GmemBytes", "OpcodeMix"], is_timed="seconds" in values, caveats=caveats)
    yield analysis.finding(evidence, sentence, values, certainty, remedies=remedies)


def _seconds(evidence: Evidence) -> float:
    """Return how long a launch takes, by the median: without probes if that was timed, else by the warps' own times; 0
    if that is not known."""
    cost = evidence.cost
    if cost is not None:
        return max(cost.original_ns - cost.floor_ns, 0.0) / 1e9
    if not evidence.has_time or not has_times(evidence, "WarpTimes"):
        return 0.0
    lengths = [int(launch.end.max()) for launch in block_times(evidence, "WarpTimes")]
    return middle(lengths) / 1e9 if lengths else 0.0


ANALYSIS = Analysis(
    "roofline",
    "Is memory or arithmetic the limit?",
    (("gmem_bytes", "opcode_mix"), ("gmem_bytes", "opcode_mix", "tensorop", "warp_timeline")),
    (
        FigureKind("bytes", "", "of global memory that a launch's threads ask for"),
        FigureKind("operations", "", "floating-point operations of a launch, each instruction as two"),
        FigureKind("intensity", "", "operations for each byte, each instruction as two"),
        FigureKind("intensity_least", "", "operations for each byte, each instruction as one"),
        FigureKind("side", "", "which limit is nearer", ("memory", "arithmetic", "either")),
        FigureKind("seconds", "s", "of a launch"),
        FigureKind(
            "reached", "share", "of the nearer limit of the device, if no cache serves what is asked for",
            is_bounded=False,
        ),
        FigureKind("cached", "share", "bytes that caches must have served, since memory cannot move all in that time"),
    ),
    (Threshold("reached", 0.4, 0.15, below=True),),
    run,
)  # fmt: skip
