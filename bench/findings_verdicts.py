"""Which of Nsight Compute's metrics confirm or deny each analysis, and what that says of recorded findings.

A criterion was written down before its metric was first looked at; so was the value from which on it confirms. An
analysis *says* something of a kernel where a finding is minor or an issue. What it says and Nsight Compute denies is a
false alarm; what it does not say and Nsight Compute confirms is missed. Both are in ``UNLIKE`` with the reason, or the
verdict is bad; so it is where an entry no longer holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.verdicts import BrokenError, Verdict, need, run_checks

Json = Any

KERNELS = (
    "gemm", "streamk_gemm", "conv", "grouped_gemm", "attention", "layernorm", "softmax", "total", "pool", "embedding",
    "gather",
)  # fmt: skip


METRICS = re.compile(
    r"smsp__average_warps_issue_stalled_\w+(?<!_not_issued)_per_issue_active\.ratio"
    r"|sm__(inst_executed_)?pipe_(fma|fmaheavy|fmalite|fp16|fp64)(_cycles_active)?\.avg\.pct_of_peak_sustained_active"
    r"|(gpu__compute_memory|sm_)_throughput\.avg\.pct_of_peak_sustained_elapsed"
    r"|sm__warps_active\.avg\.pct_of_peak_sustained_active|sm__maximum_warps_per_active_cycle_pct"
    r"|sm__cycles_active\.(avg|max)|lts__t_sectors\.(avg|max)|sm__inst_executed_pipe_tensor\.sum"
    r"|smsp__sass_branch_targets(_threads_divergent)?\.sum"
)
COLUMNS = re.compile(
    r"Warp Stall Sampling \(All Samples\)|stall_barrier|L2 Theoretical Sectors Global( Ideal)?"
    r"|L1 Wavefronts Shared( Ideal)?"
)
"""What ``CRITERIA`` look at: metrics, and columns of the source page."""


@dataclass(frozen=True)
class Run:
    """A process with probes. analyses: those whose findings are taken from it. rounds: launches of each kernel beside
    two. is_timed: it has the GPU to itself."""

    name: str
    probes: tuple[str, ...]
    analyses: tuple[str, ...]
    rounds: int = 1
    is_timed: bool = False
    options: tuple[str, ...] = ()


RUNS = (
    Run("coalescing", ("coalescing",), ("uncoalesced",)),
    Run("shared", ("smem_bank_conflict",), ("bank_conflicts",)),
    Run("branches", ("branch_divergence",), ("divergence",)),
    Run("hot", ("hot_lines", "atomic_contention"), ("hot_addresses",)),
    Run("nan", ("nan_finder",), ("first_nan",)),
    Run("work", ("work_per_warp",), ("imbalance",)),
    Run("accesses", ("dmat",), ("access_patterns", "roles"), 0,
        options=("--max-device-memory", "16G", "--launches", "1:2")),
    Run("blocks", ("block_sched",), ("tail", "scheduling"), 4, is_timed=True),
    Run("waits", ("barrier_wait", "warp_timeline"), ("barrier_wait",), 24, is_timed=True, options=("--benchmark",)),
    Run("latency", ("latency",), ("latency",), 2, is_timed=True),
    Run("arithmetic", ("gmem_bytes", "opcode_mix", "tensorop"), ("tensor_cores", "roofline"), 24, is_timed=True,
        options=("--benchmark",)),
)  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """What ncu says of the last launch of a kernel. metrics: by name. opcodes: opcode → title of a column of the source
    page → sum over its instructions.
    """

    metrics: Mapping[str, float]
    opcodes: Mapping[str, Mapping[str, float]]

    def share(self, part: str, whole: str) -> float:
        """Return a metric by another one; 0 of nothing. KeyError: ncu has no such metric."""
        return self.metrics[part] / self.metrics[whole] if self.metrics[whole] else 0.0

    def summed(self, opcodes: str, title: str) -> float:
        """Return the sum of a column over opcodes. opcodes: a regular expression for the whole of each."""
        return sum(row.get(title, 0.0) for opcode, row in self.opcodes.items() if re.fullmatch(opcodes, opcode))

    def matching(self, pattern: str) -> dict[str, float]:
        """Return the metrics whose whole names match; by the pattern's first group. KeyError: none does."""
        found = {match[1]: value for name, value in self.metrics.items() if (match := re.fullmatch(pattern, name))}
        if not found:
            raise KeyError(pattern)
        return found


@dataclass(frozen=True)
class Criterion:
    """How Nsight Compute judges an analysis.

    figure: what of Nsight's is looked at, in words. value: computes it. least: from which value on it confirms; below:
    up to which. slack: how far, as a part of that, a value may be on the other side, since times of both sides are of
    different runs. only_denies: other causes raise the figure, too, so that it may be anything where nothing is said.
    """

    figure: str
    value: Callable[[Profile], float]
    least: float
    below: bool = False
    slack: float = 0.0
    only_denies: bool = False

    @property
    def bound(self) -> str:
        """From which value on it confirms, in words."""
        return f"{'at most' if self.below else 'at least'} {self.least:g}"

    def outcome(self, said: bool, value: float) -> str:
        """Return ``agree``, ``false alarm`` or ``missed``."""
        sign = -1 if self.below else 1
        bound = self.least * (1 - sign * self.slack if said else 1 + sign * self.slack)
        confirmed = sign * value >= sign * bound
        if said == confirmed or (self.only_denies and not said):
            return "agree"
        return "false alarm" if said else "missed"


def _excess(opcodes: str, what: str, profile: Profile) -> float:
    """Return the part of sectors or wavefronts beyond the ideal. what: the title of their column. KeyError: it has
    nothing, though there are such instructions.
    """
    found, ideal = (profile.summed(opcodes, title) for title in (what, f"{what} Ideal"))
    if not found and any(re.fullmatch(opcodes, opcode) for opcode in profile.opcodes):
        raise KeyError(what)
    return 1 - ideal / found if found else 0.0


def _ways(profile: Profile) -> float:
    """Return the wavefronts of accesses to shared memory, by the ideal."""
    return 1 / (1 - _excess("LDS|STS|LDSM|STSM", "L1 Wavefronts Shared", profile))


def _stalled(*reasons: str) -> Callable[[Profile], float]:
    """Return what computes the part of warps' time between two instructions that they are stalled for reasons."""

    def value(profile: Profile) -> float:
        """Return that part of one kernel."""
        found = profile.matching(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
        kept = {reason: value for reason, value in found.items() if not reason.endswith("_not_issued")}
        return sum(kept[reason] for reason in reasons) / sum(kept.values())

    return value


_SAMPLES = "Warp Stall Sampling (All Samples)"
_WAITS = r"(?:DEPBAR|LDGDEPBAR|ARRIVES|SYNCS.*|WARPGROUP.*|UCGABAR.*)"


def _waited(profile: Profile) -> float:
    """Return the part of samples of warps that wait at a barrier, or at an instruction that waits for copies or tensor
    cores.
    """
    found = profile.summed(_WAITS, _SAMPLES) + sum(
        row.get("stall_barrier", 0.0) for opcode, row in profile.opcodes.items() if not re.fullmatch(_WAITS, opcode)
    )
    every = profile.summed(".*", _SAMPLES)
    if not every:
        raise KeyError(_SAMPLES)
    return found / every


def _idle(profile: Profile) -> float:
    """Return for how much of the longest multiprocessor's time the others have no warp, on average."""
    return 1 - profile.share("sm__cycles_active.avg", "sm__cycles_active.max")


def _unoccupied(profile: Profile) -> float:
    """Return the part of warps that fit on a multiprocessor by the kernel's resources and were not there."""
    return 1 - profile.share(
        "sm__warps_active.avg.pct_of_peak_sustained_active", "sm__maximum_warps_per_active_cycle_pct"
    )


def _hot(profile: Profile) -> float:
    """Return the sectors of the busiest slice of L2, by the mean of all slices."""
    return profile.share("lts__t_sectors.max", "lts__t_sectors.avg")


def _busy_without(profile: Profile) -> float:
    """Return how much of their peak the ordinary floating-point pipes do, in percent; 0 if tensor cores are used."""
    if profile.metrics["sm__inst_executed_pipe_tensor.sum"]:
        return 0.0
    pipes = r"sm__(?:inst_executed_)?(pipe_(?:fma|fmaheavy|fmalite|fp16|fp64)(?:_cycles_active)?)"
    return max(profile.matching(pipes + r"\.avg\.pct_of_peak_sustained_active").values())


_LIMITS = tuple(
    f"{name}.avg.pct_of_peak_sustained_elapsed" for name in ("gpu__compute_memory_throughput", "sm__throughput")
)


def _reached(profile: Profile) -> float:
    """Return how much of the nearer limit is reached, memory or arithmetic, in percent."""
    return max(profile.metrics[name] for name in _LIMITS)


CRITERIA: dict[str, Criterion] = {
    "uncoalesced": Criterion(
        "sectors beyond the ideal, of loads and stores", partial(_excess, "LDG?|STG?", "L2 Theoretical Sectors Global"),
        0.2,
    ),
    "access_patterns": Criterion(
        "sectors beyond the ideal, of all accesses",
        partial(_excess, "LDG?|STG?|LDGSTS|RED|REDG|ATOM|ATOMG", "L2 Theoretical Sectors Global"), 0.2,
    ),
    "bank_conflicts": Criterion("wavefronts, by the ideal", _ways, 1.5),
    "divergence": Criterion(
        "branches at which lanes part, of their targets",
        lambda profile: profile.share("smsp__sass_branch_targets_threads_divergent.sum",
                                      "smsp__sass_branch_targets.sum"),
        0.1,
    ),
    "hot_addresses": Criterion("sectors of L2's busiest slice, by the mean", _hot, 2.0),
    "tail": Criterion("time that multiprocessors have no warp, of the longest one's", _idle, 0.1, slack=0.25),
    "scheduling": Criterion(
        "warps that fit by the kernel's resources and are not there", _unoccupied, 0.05, slack=0.25, only_denies=True
    ),
    "imbalance": Criterion(
        "warps that fit by the kernel's resources and are not there", _unoccupied, 0.15, slack=0.25, only_denies=True
    ),
    "barrier_wait": Criterion("samples of warps that wait so", _waited, 0.1, slack=0.25),
    "latency": Criterion("stalls for global memory, of all stalls", _stalled("long_scoreboard"), 0.3, slack=0.25),
    "tensor_cores": Criterion("percent of the ordinary pipes' peak, without tensor cores", _busy_without, 30),
    "roofline": Criterion("percent of the nearer limit", _reached, 60, below=True, slack=0.25),
}  # fmt: skip
"""By analysis. ``first_nan`` and ``roles`` are not here, of which Nsight Compute sees nothing. The program's own check
against PyTorch takes no NaN, and all warps of these kernels run the same code: so both have to say nothing.
"""
NOTHING_TO_SEE = {"coalescing": {"streamk_gemm"}, "nan": {"streamk_gemm", "pool", "embedding", "gather"}}
"""By the run, kernels without an instruction that its probes look at."""


def _of(analysis: str, kernels: str, reason: str) -> dict[tuple[str, str], str]:
    """Return entries of ``UNLIKE`` with one reason. kernels: with blanks between."""
    return {(kernel, analysis): reason for kernel in kernels.split()}


UNLIKE: dict[tuple[str, str], str] = {
    **_of(
        "side", "attention",
        "caches serve nearly all bytes, and neither memory nor arithmetic is near its limit",
    ),
    **_of(
        "latency", "streamk_gemm conv grouped_gemm",
        "missed: warps wait for asynchronous copies, which the probe does not time",
    ),
    **_of(
        "latency", "total pool embedding",
        "missed: the worst load takes less than 800 cycles, but warps wait for little else",
    ),
    **_of(
        "roofline", "gemm conv grouped_gemm attention embedding",
        "missed: caches serve most bytes, so that less of memory's limit is reached than the finding can tell",
    ),
}  # fmt: skip
"""Kernel and analysis of false alarms, and of what is missed, with the reason; docs/findings.md lists them. ``side``:
what ``roofline`` says of the nearer limit.
"""


@dataclass(frozen=True)
class Row:
    """One kernel, of an analysis. state: the finding's, "" where there is none. value: Nsight Compute's."""

    kernel: str
    state: str
    value: float
    outcome: str


def rows(results: Json, analysis: str) -> list[Row]:
    """Return what Nsight Compute says of an analysis of each kernel. KeyError: it lacks a metric."""
    criterion = CRITERIA[analysis]
    found = []
    for kernel in KERNELS:
        state, value = state_of(results, kernel, analysis), criterion.value(Profile(**results["ncu"][kernel]))
        found.append(Row(kernel, state, value, criterion.outcome(state in {"minor", "issue"}, value)))
    return found


def state_of(results: Json, kernel: str, analysis: str) -> str:
    """Return the state of an analysis' finding on a kernel; "" where it has none."""
    run = next(run for run in RUNS if analysis in run.analyses)
    states = [row["state"] for row in results["runs"][run.name]["findings"]
              if (row["kernel"], row["analysis"]) == (kernel, analysis)]  # fmt: skip
    need(len(states) <= 1, f"{analysis} has {len(states)} findings on {kernel}")
    return states[0] if states else ""


def judge(results: Json) -> list[Verdict]:
    """Return a verdict for each run and each analysis, from the recorded samples."""
    checks = [(f"run {run.name}", partial(_run, results, run)) for run in RUNS]
    checks += [(analysis, partial(_agrees, results, analysis)) for analysis in CRITERIA]
    checks += [(name, partial(_silent, results, name)) for name in ("first_nan", "roles")]
    return run_checks([*checks, ("roofline's side", partial(_sides, results))])


def _run(results: Json, run: Run) -> str:
    """Check that a run computed what the plain one did, and that each kernel was probed. Returns a line."""
    found = results["runs"][run.name]
    need("failed" not in found, str(found.get("failed")))
    need(tuple(results["plain"]) == KERNELS, f"kernels of the plain run are {', '.join(results['plain'])}")
    need(found["outputs"] == results["plain"], "outputs differ from the plain run's")
    left_out = {kernel for kernel, *_ in found["not_probed"]}
    need(not left_out, f"not probed: {found['not_probed']}")
    without = [kernel for kernel in KERNELS if not found["launches"].get(kernel, {}).get("written", 0)]
    seen = set(without) <= NOTHING_TO_SEE.get(run.name, set())
    need(seen, f"no launch was recorded of {', '.join(without)}")
    return f"{len(KERNELS) - len(without)} kernels, outputs as in the plain run"


def _agrees(results: Json, analysis: str) -> str:
    """Check that the findings of an analysis agree with Nsight Compute, but for those of ``UNLIKE``. Returns a line."""
    unlike, said = [], 0
    for row in rows(results, analysis):
        said += row.state in {"minor", "issue"}
        is_listed = (row.kernel, analysis) in UNLIKE
        if (row.outcome == "agree") == is_listed:
            words = "is listed, and agrees" if is_listed else f"{row.outcome}, Nsight Compute has {row.value:.3g}"
            unlike.append(f"{row.kernel}: {words}")
    need(not unlike, "; ".join(unlike))
    listed = sum(entry == analysis for _, entry in UNLIKE)
    return f"said of {said} kernels, not of {len(KERNELS) - said}; {listed} listed as unlike"


def _sides(results: Json) -> str:
    """Check that roofline names the side that Nsight Compute has nearer to its limit. Returns a line."""
    wrong = []
    for kernel in KERNELS:
        side = figure(results, kernel, "roofline", "side")
        memory, arithmetic = (results["ncu"][kernel]["metrics"][name] for name in _LIMITS)
        nearer = "memory" if memory >= arithmetic else "arithmetic"
        is_listed = (kernel, "side") in UNLIKE
        if (side in {nearer, "either"}) == is_listed:
            wrong.append(f"{kernel}: {side}; Nsight Compute has {memory:.0f} % of memory's, {arithmetic:.0f} % of the "
                         "multiprocessors'")  # fmt: skip
    need(not wrong, "; ".join(wrong))
    return f"{len(KERNELS)} kernels, {sum(entry == 'side' for _, entry in UNLIKE)} listed as unlike"


def _silent(results: Json, analysis: str) -> str:
    """Check that an analysis says nothing of these kernels, but for those of ``UNLIKE``. Returns a line."""
    said = [
        kernel for kernel in KERNELS
        if (state_of(results, kernel, analysis) in {"minor", "issue"}) != ((kernel, analysis) in UNLIKE)
    ]  # fmt: skip
    need(not said, f"says something of {', '.join(said)}, or nothing where that is listed")
    return f"{len(KERNELS)} kernels"


def figure(results: Json, kernel: str, analysis: str, name: str) -> Json:
    """Return a figure of a finding. KeyError: there is none."""
    for run in results["runs"].values():
        for row in run.get("findings", ()):
            if (row["kernel"], row["analysis"]) == (kernel, analysis):
                return row["figures"][name]
    raise KeyError(f"{analysis} of {kernel}")


_MARKS = {"agree": "", "false alarm": "F", "missed": "M"}


def table(results: Json) -> str:
    """Return a table for people: by analysis and kernel what is said, Nsight Compute's figure, and F (false alarm) or M
    (missed) where they disagree.
    """
    lines = [f"{results['device']}, driver {results['driver']}", f"{'':16}" + "".join(f"{n[:12]:>14}" for n in KERNELS)]
    for analysis in CRITERIA:
        try:
            found = rows(results, analysis)
        except (BrokenError, KeyError, TypeError, ZeroDivisionError) as error:
            lines.append(f"{analysis:16} {error!r}")
            continue
        cells = [f"{_MARKS[row.outcome]} {row.state or '-'} {row.value:.3g}" for row in found]
        lines.append(f"{analysis:16}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def criteria_lines() -> list[str]:
    """Return what bench/README.md has of the criteria."""
    return [f"| {row.figure} | {row.bound} | `{name}` |" for name, row in CRITERIA.items()]


def unlike_lines() -> list[str]:
    """Return what docs/findings.md has of what is unlike."""
    of_reasons: dict[tuple[str, str], list[str]] = {}
    for (kernel, analysis), reason in UNLIKE.items():
        of_reasons.setdefault((analysis, reason), []).append(f"`{kernel}`")
    listed = ((analysis, ", ".join(names), reason) for (analysis, reason), names in of_reasons.items())
    return [f"- `{analysis}` of {names}: {reason}" for analysis, names, reason in listed]
