"""What the probes counted against what Nsight Compute counted, judged again from the raw results.

    python -m bench.counters_verdicts [FILE] [--report [NAME]]

prints one line a verdict; with ``--report`` the tables of the kernels whose title holds NAME, too, of all without one.
Exit status: 0 all good, 1 one is not, 2 the file cannot be judged or no kernel has the name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from bench.counted_groups import BY_NAME, CLASSES, GROUPS, Group
from bench.judged import file_parser, judge_files
from bench.verdicts import Verdict, say

Json = Any
RESULTS = Path(__file__).parent / "results" / "counters_h200.json"
COMMAND = "python3 -m bench.counters --out out"
"""Makes the results, and those of ``lines_verdicts``."""
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

SHARED_OPCODES: dict[str, tuple[str, ...]] = {"load": ("LDS",), "store": ("STS",), "matrix": ("LDSM", "STSM")}
"""Field of ``smem_bank_conflict`` → machine instructions."""

SHARED_GROUPS = {"load": "load_shared", "store": "store_shared"}
"""Field of ``smem_bank_conflict`` → the group of its PTX instructions, of which ptxas makes one wider one."""

EXECUTED = ("smsp__inst_executed", "smsp__thread_inst_executed", "smsp__thread_inst_executed_pred_on")
"""Of all machine instructions: executions by warps, by threads, by threads whose predicate held."""

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
    """One launch, both sides. name: mangled. maps: of all runs together. missing: runs without a record, and why."""

    def __init__(
        self, program: str, index: int, profile: Json, runs: Mapping[str, Json], missing: Mapping[str, str]
    ) -> None:
        self.program = program
        self.name: str = profile["kernel"]
        self.title = f"{program} {index} {self.name[:40]}"
        self.metrics: dict[str, int | None] = profile["metrics"]
        self.machine: dict[str, list[int]] = profile["machine"]
        self.shared: dict[str, list[int]] = profile["shared"]
        self.accessed: dict[str, int] = profile["accessed"]
        self.rows = {run: row for run, row in runs.items() if row is not None}
        self.missing = missing
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
            runs, missing = {}, {}
            for run in RUNS:
                rows = [row for row in program[run]["launches"] if row["kernel"] == profile["kernel"]]
                runs[run] = row = rows[before] if before < len(rows) else None
                if row is None or not row["maps"]:
                    missing[run] = f"no record of {run}: {_reason(program[run], row, profile['kernel'])}"
            yield Kernel(name, index, profile, runs, missing)


def _reason(run: Json, row: Json, kernel: str) -> str:
    """The trace's, of a launch without a record. The kernel may have a twin that this launch could not take."""
    said = [words for name, *words in run["unprobed"] if name == kernel]
    if row is not None:
        said = [[row["reason"], row["detail"]]]
    return "; ".join(": ".join(filter(None, words)) for words in said) or "the results do not say why"


def judge(result: Json) -> list[Verdict]:
    """All verdicts."""
    every = list(kernels(result))
    found = list(_programs(result, every))
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


def _programs(result: Json, every: Sequence[Kernel]) -> Iterator[Verdict]:
    for name, program in result["programs"].items():
        outputs = [program["outputs"], *(program[run]["outputs"] for run in RUNS)]
        same = outputs[0] is not None and all(other == outputs[0] for other in outputs)
        yield Verdict(f"{name} results", same, f"{len(outputs[0] or ())} outputs, the same with every set of probes")
        names = [launch["kernel"] for launch in program["ncu"]]
        launched = {run: [row["kernel"] for row in program[run]["launches"] if row["maps"]] for run in RUNS}
        good = bool(names) and all(launched[run] == names for run in ALL_PROBED)
        figures = ", ".join(f"{len(launched[run])} with {run}" for run in RUNS)
        figures += "".join(f"; {kernel.name[:40]}: {words}" for kernel in every for words in kernel.missing.values()
                           if kernel.program == name)  # fmt: skip
        yield Verdict(f"{name} launches", good, f"{len(names)} profiled; {figures}")


def _kernel(kernel: Kernel) -> Iterator[Verdict]:
    yield _page(kernel)
    yield from _alike(kernel)
    yield from _global(kernel)
    yield from _tensor(kernel)
    yield from _instructions(kernel)
    yield from _shared(kernel)


def _page(kernel: Kernel) -> Verdict:
    """The source page's executions, opcode by opcode, beside the counters of them all."""
    unlike = [f"{opcode}: {warps} by warps, {threads} by threads, {on} of them with the predicate"
              for opcode, (warps, threads, on) in kernel.machine.items()
              if not 0 <= on <= threads <= 32 * warps]  # fmt: skip
    if unlike:
        return Verdict(f"{kernel.title} source page", False, "; ".join(unlike))
    if "SYNCS" in kernel.machine:
        # Loops that wait for a barrier in shared memory turn more or less often in another pass of ncu.
        return Verdict(f"{kernel.title} source page", True, "waits, as often as it takes, in each pass of ncu")
    sums = [sum(counts[place] for counts in kernel.machine.values()) for place in range(3)]
    pairs = [(name, ours, kernel.metric(name)) for name, ours in zip(EXECUTED, sums, strict=True)]
    return _equal(kernel, "source page", pairs)


def _alike(kernel: Kernel) -> Iterator[Verdict]:
    """What the runs say of a launch agrees, and what the probes say of it with each other."""
    shapes = {(*row["grid"], *row["block"], (row["registers"] or {}).get("original")) for row in kernel.rows.values()}
    wrong = [] if len(shapes) <= 1 else [f"grids, blocks and registers differ: {sorted(map(str, shapes))}"]
    instructions, groups = kernel.maps.get("TensorInstructions"), kernel.groups
    if instructions and groups:
        for name in ("mma", "wmma", "wgmma"):
            ours = 32 * sum(count for shape, count in instructions.items() if shape.partition("_")[0] == name)
            if ours != groups[name]:
                wrong.append(f"{name}: tensorop's shapes are {ours} threads', the group {groups[name]}")
    tensor = kernel.maps.get("TensorOps", {})
    absent = {**kernel.maps.get("TensorIssued", {}), **{name: tensor.get(name, 0) for name in ("f4", "i4")}}
    wrong += [f"{name}: {count}, of what the machine does not have" for name, count in absent.items() if count]
    branches = kernel.maps.get("BranchDivergence")
    if branches and any(branches.values()):
        came = branches["taken"] + branches["passed"]
        if not 0 <= branches["diverged"] <= branches["branches"] <= came <= 32 * branches["branches"]:
            wrong.append(f"branches of warps and threads do not go together: {branches}")
        if groups and branches["taken"] > groups["branch"]:
            wrong.append(f"{branches['taken']} branches taken, inst_count's group has {groups['branch']}")
    yield Verdict(f"{kernel.title} runs agree", not wrong, "; ".join(wrong) or f"{len(kernel.rows)} runs")


def _equal(kernel: Kernel, what: str, pairs: Sequence[tuple[str, int, int]]) -> Verdict:
    """pairs: name, the probe's number, Nsight Compute's."""
    wrong = [f"{name}: {ours} for {theirs}" for name, ours, theirs in pairs if ours != theirs]
    figure = "; ".join(wrong) or ", ".join(f"{name} {ours}" for name, ours, _ in pairs if ours)
    return Verdict(f"{kernel.title} {what}", not wrong, figure)


def _global(kernel: Kernel) -> Iterator[Verdict]:
    fields = kernel.maps.get("GmemBytes")
    if fields is None:
        yield Verdict(f"{kernel.title} gmem_bytes", False, kernel.missing.get("memory", "no record"))
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
    # Copies of tensors, whose bytes are in a descriptor.
    uncounted = 0 if kernel.name in BULK_BYTES else kernel.on(BY_NAME["bulk_copy"])
    pairs.append(("uncounted", fields["uncounted"], uncounted))
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
    pairs = [("end", groups["end"], kernel.threads), ("all", fields["all"], total),
             ("branch", fields["branch"], groups["branch"] + groups["end"])]  # fmt: skip
    pairs += [(name, fields[name], sum(groups[group] for group in members)) for name, members in CLASSES.items()
              if not groups["wmma_memory"] or name not in {"load", "store"}]  # fmt: skip
    yield _equal(kernel, "inst_count, by group", pairs)
    pairs = [(group.name, _wanted(kernel, group), kernel.on(group)) for group in GROUPS if is_exact(kernel, group)]
    for name, opcode in (("load", "LDS"), ("store", "STS")):
        if not kernel.groups["wmma_memory"]:
            pairs.append((f"shared {name} bytes", kernel.maps["SharedBytes"][name], kernel.accessed.get(opcode, 0)))
    yield _equal(kernel, "inst_count, by machine", pairs)


def _shared(kernel: Kernel) -> Iterator[Verdict]:
    """Accesses by warps, and wavefronts; less is asked where ptxas made wider accesses of the program's."""
    fields = kernel.maps.get("SmemBankConflict")
    if fields is None:
        return
    wrong, found = [], []
    for name, kinds in SHARED.items():
        ours = [fields[f"{name}{part}"] for part in ("", "_wavefronts", "_least")]
        theirs = [sum(kernel.shared.get(kind, [0, 0, 0])[place] for kind in kinds) for place in range(3)]
        counts = [kernel.machine.get(opcode, [0, 0, 0]) for opcode in SHARED_OPCODES[name]]
        accesses, wavefronts, least = ours
        if _is_merged(kernel, name):
            good = theirs[0] <= accesses <= least <= wavefronts
            good = good and accesses * 32 >= kernel.groups.get(SHARED_GROUPS[name], 0)
        elif all(threads == on for _, threads, on in counts):
            good = ours == theirs
        else:
            # Warps of which no thread's predicate holds come to a machine instruction, too.
            good = ours[1:] == theirs[1:] and accesses <= min(theirs[0], least) and bool(accesses) == bool(least)
        if not good:
            wrong.append(f"{name} (accesses, wavefronts, at least): {ours} for {theirs}")
        elif any(ours):
            found.append(f"{name} {ours}")
    if wrong or found:
        yield Verdict(f"{kernel.title} smem_bank_conflict", not wrong, "; ".join(wrong) or ", ".join(found))


def _is_merged(kernel: Kernel, name: str) -> bool:
    """Whether ptxas made wider accesses of several; without the groups' numbers, whether there are wide ones."""
    if name not in SHARED_GROUPS:
        return False
    if kernel.groups:
        group = BY_NAME[SHARED_GROUPS[name]]
        return kernel.groups[group.name] != kernel.on(group)
    return any(kind in kernel.shared for kind in SHARED[name][1:])


def _wanted(kernel: Kernel, group: Group) -> int:
    return kernel.groups[group.name] + sum(kernel.groups[name] * count for name, count in group.also)


def is_exact(kernel: Kernel, group: Group) -> bool:
    """Whether the two sides have to be the same number in this kernel."""
    if not group.exact or (kernel.groups["wmma_memory"] and group.name.startswith(("load_", "store_"))):
        return False
    if group.merges and kernel.on(group) < kernel.groups[group.name]:
        return False
    return not any(kernel.groups[name] for name in group.unless)


def report(result: Json, name: str = "") -> list[str]:
    """The two sides of each kernel whose title holds the name, group by group, so that their difference adds up; and
    shared memory and branches."""
    lines: list[str] = []
    known = {opcode for group in GROUPS for opcode in group.machine}
    for kernel in kernels(result):
        if name not in kernel.title:
            continue
        lines.append(f"\n{kernel.title}")
        lines += [f"  {words}" for words in kernel.missing.values()]
        if not kernel.groups:
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
    return lines


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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above."""
    parser = file_parser("bench.counters_verdicts", __doc__, RESULTS)
    parser.add_argument("--report", nargs="?", const="", metavar="NAME", help="the tables of kernels named so, or all")
    options = parser.parse_args(arguments)

    def told(result: Json) -> int:
        status = say(judge(result))
        return status if options.report is None else max(status, say_report(report(result, options.report)))

    return judge_files([options.file], COMMAND, ("programs",), told)


def say_report(lines: Iterable[str]) -> int:
    """Print a report. Returns the exit status: 2 when no kernel has the name."""
    nothing = True
    for line in lines:
        print(line)
        nothing = False
    if nothing:
        print("no kernel's title holds that name; the verdicts above begin with the titles", file=sys.stderr)
    return 2 if nothing else 0


if __name__ == "__main__":
    sys.exit(main())
