"""What the probes counted against what Nsight Compute counted, judged again from the raw results.

    python -m bench.counters_verdicts [FILE] [--report]

prints one line a verdict; with ``--report`` the tables of each kernel, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from bench.counted_groups import BY_NAME, CLASSES, GROUPS, Group
from bench.verdicts import Verdict, table

Json = Any
RESULTS = Path(__file__).parent / "results" / "counters_h200.json"
RUNS = ("memory", "shared", "branches", "instructions")
ALL_PROBED = ("memory",)
"""Runs in which every kernel is probed. In others the original runs where a probe's ends of basic blocks would change
the arithmetic, or where many sums would lower the occupancy."""

GLOBAL: dict[str, tuple[str, ...]] = {
    "load": ("ld",),
    "store": ("st",),
    "atomic": ("atom", "red"),
    "async": ("ldgsts",),
}
"""Field of ``gmem_bytes`` → ``sm__sass_data_bytes_mem_global_op_…``, added."""

TENSOR: dict[str, str] = {
    "f16": "fp16", "bf16": "bf16_dst_fp32", "tf32": "tf32_dst_fp32", "f64": "fp64", "f8": "fp8", "i8": "int8",
    "b1": "int1",
}  # fmt: skip
"""Field of ``tensorop`` → ``sm__ops_path_tensor_src_…``."""

SHARED: dict[str, tuple[str, ...]] = {
    "load": ("load", "load_64", "load_128"),
    "store": ("store", "store_64", "store_128"),
    "matrix": ("load_matrix", "store_matrix"),
}
"""Field of ``smem_bank_conflict`` → kinds of the profile."""

_BRANCHES = ("branch_targets", "branch_targets_threads_divergent", "inst_executed_op_branch")

BULK_BYTES = {"bulk": 4096}
"""Bytes of each bulk copy of a kernel: Nsight Compute counts these instructions, not their bytes."""

FORMULAS: dict[tuple[str, str], tuple[int, str]] = {
    ("generic", "load"): (
        16 * 85 * 4, "85 of 128 threads read 4 bytes of global memory; ncu counts generic reads of shared memory, too"),
    ("generic", "store"): (
        16 * (102 + 26) * 4,
        "102 of 128 threads write 4 bytes through the pointer, the others later; ncu counts generic writes of shared "
        "memory, too"),
    ("MmaMultistage", "async"): (
        2 * 192 * (2 * 256 + 2 * 384),
        "two columns of blocks copy A, two rows B, all of K = 192, 2 bytes each; what is outside is zero-filled"),
}  # fmt: skip
"""(part of the kernel's name, field of ``gmem_bytes``) → bytes by formula, where Nsight Compute means others."""

NEEDED = 12
"""Kernels that have to be there, at least."""


class Kernel:
    """One launch, both sides. name: mangled. maps: of all runs together."""

    def __init__(self, program: str, index: int, profile: Json, runs: Mapping[str, Json]) -> None:
        self.program = program
        self.name: str = profile["kernel"]
        self.title = f"{program} {index} {self.name[:40]}"
        self.metrics: dict[str, int | None] = profile["metrics"]
        self.machine: dict[str, list[int]] = profile["machine"]
        self.shared: dict[str, list[int]] = profile["shared"]
        self.accessed: dict[str, int] = profile["accessed"]
        self.rows = {run: row for run, row in runs.items() if row is not None}
        self.maps: dict[str, dict[str, int]] = {
            name: fields for row in self.rows.values() for name, fields in row["maps"].items()
        }

    @property
    def groups(self) -> dict[str, int]:
        """Thread instructions of PTX by group."""
        return self.maps.get("Groups", {})

    def on(self, group: Group) -> int:
        """Machine instructions of a group: threads whose predicate held."""
        return sum(self.machine.get(opcode, [0, 0, 0])[2] for opcode in group.machine)

    def metric(self, name: str) -> int:
        """0 where the chip did not count."""
        return self.metrics.get(name) or 0

    @property
    def threads(self) -> int:
        """Of the launch."""
        row = next(iter(self.rows.values()))
        return int(prod(row["grid"]) * prod(row["block"]))


def kernels(result: Json) -> Iterator[Kernel]:
    """Every profiled launch, with what the probed runs have of it."""
    for name, program in result["programs"].items():
        for index, profile in enumerate(program["ncu"]):
            # The launches of a kernel come in one order; a run may lack a kernel.
            before = sum(other["kernel"] == profile["kernel"] for other in program["ncu"][:index])
            runs = {}
            for run in RUNS:
                rows = [row for row in program[run]["launches"] if row["kernel"] == profile["kernel"]]
                runs[run] = rows[before] if before < len(rows) else None
            yield Kernel(name, index, profile, runs)


def judge(result: Json) -> list[Verdict]:
    """All verdicts."""
    found = list(_programs(result))
    every = list(kernels(result))
    families = {
        "mma": sum(kernel.groups.get("mma", 0) + kernel.groups.get("wmma", 0) > 0 for kernel in every),
        "wgmma": sum(kernel.groups.get("wgmma", 0) > 0 for kernel in every),
        "triton": sum("triton" in kernel.program for kernel in every),
        "cutlass": sum("cutlass" in kernel.program for kernel in every),
    }
    figure = f"{len(every)} kernels: " + ", ".join(f"{count} {name}" for name, count in families.items())
    found.append(Verdict("kernels", len(every) >= NEEDED and all(families.values()), figure))
    counted = sum("InstCount" in kernel.maps for kernel in every)
    found.append(Verdict("kernels with inst_count", counted >= NEEDED, f"{counted} of {len(every)}"))
    for kernel in every:
        found += _kernel(kernel)
    return found


def _programs(result: Json) -> Iterator[Verdict]:
    for name, program in result["programs"].items():
        outputs = [program["outputs"], *(program[run]["outputs"] for run in RUNS)]
        same = outputs[0] is not None and all(other == outputs[0] for other in outputs)
        yield Verdict(f"{name} results", same, f"{len(outputs[0] or ())} outputs, the same with every set of probes")
        names = [launch["kernel"] for launch in program["ncu"]]
        launched = {run: [row["kernel"] for row in program[run]["launches"] if row["maps"]] for run in RUNS}
        good = bool(names) and all(launched[run] == names for run in ALL_PROBED)
        figures = ", ".join(f"{len(launched[run])} with {run}" for run in RUNS)
        yield Verdict(f"{name} launches", good, f"{len(names)} profiled; {figures}")


def _kernel(kernel: Kernel) -> Iterator[Verdict]:
    yield from _global(kernel)
    yield from _tensor(kernel)
    yield from _instructions(kernel)
    yield from _shared(kernel)


def _equal(kernel: Kernel, what: str, pairs: Sequence[tuple[str, int, int]]) -> Verdict:
    """pairs: name, the probe's number, Nsight Compute's."""
    wrong = [f"{name}: {ours} for {theirs}" for name, ours, theirs in pairs if ours != theirs]
    figure = "; ".join(wrong) or ", ".join(f"{name} {ours}" for name, ours, _ in pairs if ours)
    return Verdict(f"{kernel.title} {what}", not wrong, figure)


def _global(kernel: Kernel) -> Iterator[Verdict]:
    fields = kernel.maps.get("GmemBytes")
    if fields is None:
        yield Verdict(f"{kernel.title} gmem_bytes", False, "no record")
        return
    pairs = []
    for name, kinds in GLOBAL.items():
        theirs = sum(kernel.metric(f"sm__sass_data_bytes_mem_global_op_{kind}") for kind in kinds)
        if name == "async":
            # The counter of small copies disagrees with the source page, which knows nothing of zero-filled ones.
            theirs = fields[name] if fields[name] == kernel.accessed.get("LDGSTS") else theirs
            theirs += BULK_BYTES.get(kernel.name, 0) * kernel.on(BY_NAME["bulk_copy"])
        for (part, field), (bytes_, _) in FORMULAS.items():
            if part in kernel.name and field == name:
                theirs = bytes_
        pairs.append((name, fields[name], theirs))
    yield _equal(kernel, "gmem_bytes", pairs)


def _tensor(kernel: Kernel) -> Iterator[Verdict]:
    fields = kernel.maps.get("TensorOps", {})
    pairs = [
        (name, fields.get(name, 0), kernel.metric(f"sm__ops_path_tensor_src_{kind}")) for name, kind in TENSOR.items()
    ]
    if any(ours or theirs for _, ours, theirs in pairs):
        yield _equal(kernel, "tensorop", pairs)


def _instructions(kernel: Kernel) -> Iterator[Verdict]:
    fields = kernel.maps.get("InstCount")
    groups = kernel.groups
    if fields is None or not groups:
        return
    total = sum(groups.values())
    pairs = [("end", groups["end"], kernel.threads), ("all", fields["all"], total)]
    pairs += [(name, fields[name], sum(groups[group] for group in members)) for name, members in CLASSES.items()
              if not groups["wmma_memory"] or name not in {"load", "store"}]  # fmt: skip
    yield _equal(kernel, "inst_count, by group", pairs)
    pairs = [(group.name, _wanted(kernel, group), kernel.on(group)) for group in GROUPS if is_exact(kernel, group)]
    if "SYNCS" not in kernel.machine:
        # Loops that wait for a barrier in shared memory turn more or less often in another pass of ncu.
        counted = sum(counts[2] for counts in kernel.machine.values())
        pairs.append(("source page", counted, kernel.metric("smsp__thread_inst_executed_pred_on")))
    for name, opcode in (("load", "LDS"), ("store", "STS")):
        if not kernel.groups["wmma_memory"]:
            pairs.append((f"shared {name} bytes", kernel.maps["SharedBytes"][name], kernel.accessed.get(opcode, 0)))
    yield _equal(kernel, "inst_count, by machine", pairs)


def _shared(kernel: Kernel) -> Iterator[Verdict]:
    """Wavefronts, where ptxas made no wider accesses of the program's."""
    fields = kernel.maps.get("SmemBankConflict")
    if fields is None or not kernel.groups:
        return
    if kernel.groups["load_shared"] != kernel.on(BY_NAME["load_shared"]):
        return
    pairs = []
    for name, kinds in SHARED.items():
        for place, what in ((1, "wavefronts"), (2, "least")):
            theirs = sum(kernel.shared.get(kind, [0, 0, 0])[place] for kind in kinds)
            pairs.append((f"{name}_{what}", fields[f"{name}_{what}"], theirs))
    if any(ours or theirs for _, ours, theirs in pairs):
        yield _equal(kernel, "smem_bank_conflict", pairs)


def _wanted(kernel: Kernel, group: Group) -> int:
    return kernel.groups[group.name] + sum(kernel.groups[name] * count for name, count in group.also)


def is_exact(kernel: Kernel, group: Group) -> bool:
    """Whether the two sides have to be the same number in this kernel."""
    if not group.exact or (kernel.groups["wmma_memory"] and group.name.startswith(("load_", "store_"))):
        return False
    if group.merges and kernel.on(group) < kernel.groups[group.name]:
        return False
    return not any(kernel.groups[name] for name in group.unless)


def report(result: Json) -> str:
    """Each kernel's two sides, group by group, so that their difference adds up; and shared memory and branches."""
    lines: list[str] = []
    known = {opcode for group in GROUPS for opcode in group.machine}
    for kernel in kernels(result):
        lines.append(f"\n{kernel.title}")
        if not kernel.groups:
            lines.append("  no record")
            continue
        ours, theirs = sum(kernel.groups.values()), sum(counts[2] for counts in kernel.machine.values())
        lines.append(f"  {'':16} {'PTX':>12} {'machine':>12} {'difference':>12}")
        rest = {opcode: counts[2] for opcode, counts in kernel.machine.items() if opcode not in known}
        for group in GROUPS:
            left, right = kernel.groups[group.name], kernel.on(group)
            if left or right:
                why = "the same" if left == right else group.why or (f"{group.also}" if group.also else "")
                lines.append(f"  {group.name:16} {left:12} {right:12} {right - left:12}  {why}")
        if rest:
            words = ", ".join(f"{opcode} {count}" for opcode, count in sorted(rest.items()))
            lines.append(f"  {'rest':16} {0:12} {sum(rest.values()):12} {sum(rest.values()):12}  {words}")
        lines.append(f"  {'all':16} {ours:12} {theirs:12} {theirs - ours:12}")
        lines += _shared_lines(kernel)
    return "\n".join(lines)


def _shared_lines(kernel: Kernel) -> Iterator[str]:
    fields = kernel.maps.get("SmemBankConflict")
    if fields is not None and (kernel.shared or any(fields.values())):
        for name, kinds in SHARED.items():
            ours = fields[name], fields[f"{name}_wavefronts"], fields[f"{name}_least"]
            theirs = [sum(kernel.shared.get(kind, [0, 0, 0])[place] for kind in kinds) for place in range(3)]
            counted = tuple(
                kernel.metric(f"l1tex__data_{what}_mem_shared_op_{kind}")
                for kind in {"load": ("ld",), "store": ("st",)}.get(name, ())
                for what in ("pipe_lsu_wavefronts", "bank_conflicts_pipe_lsu")
            )
            if any(ours) or any(theirs):
                yield f"  shared {name}: {ours}, machine {tuple(theirs)} {counted}"
    branches = kernel.maps.get("BranchDivergence")
    if branches is not None and branches["branches"]:
        theirs = [kernel.metric(f"smsp__sass_{name}") for name in _BRANCHES]
        yield f"  branches {branches}, machine {theirs}"


def main(arguments: Sequence[str]) -> int:
    """The command line above."""
    words = [argument for argument in arguments if argument != "--report"]
    path = Path(words[0]) if words else RESULTS
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    judged = judge(result)
    print(table(judged))
    if "--report" in arguments:
        print(report(result))
    return 0 if all(verdict.good for verdict in judged) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
