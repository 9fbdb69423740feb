"""What each PTX instruction is executed, by the probes, and its machine instructions, by Nsight Compute.

    python -m bench.lines_verdicts [FILE] [--counters FILE] [--report [NAME]]

judges the difference instruction by instruction from the raw results, of which those of ``counters_verdicts`` are a
part; with ``--report`` it prints every instruction of the kernels whose title holds NAME, both counts and the causes.
Exit status: 0 all good, 1 one is not, 2 a file cannot be judged or no kernel has the name.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bench import counters_verdicts
from bench.counted_causes import BESIDE, LINELESS, OWN, Own
from bench.counted_groups import BY_NAME, GROUPS, Group, group_of, machine_opcode
from bench.counted_lines import UnlikeError, executions
from bench.judged import file_parser, judge_files
from bench.verdicts import Verdict, say

Json = Any
RESULTS = Path(__file__).parent / "results" / "lines_h200.json"
_OPCODE = re.compile(r"(?:@\s*!?\s*[\w$%]+\s+)?([a-z_][\w.:]*)", re.ASCII)


@dataclass
class Line:
    """One PTX instruction of one launch. machine: text and executions of what became of it.

    Executions are by threads whose predicate holds, on both sides.
    """

    text: str
    opcode: str
    count: int
    machine: list[tuple[str, int]] = field(default_factory=list)

    @property
    def group(self) -> Group:
        """KeyError where no group has it."""
        return BY_NAME[group_of(self.opcode)]

    @cached_property
    def own(self) -> int:
        """Executions of the machine instructions that are its own."""
        return sum(count for text, count in self.machine if machine_opcode(text)[0] in self.group.machine)

    @cached_property
    def beside(self) -> list[tuple[str, int]]:
        """Opcode and executions of the others."""
        pairs = [(machine_opcode(text)[0], count) for text, count in self.machine]
        return [(opcode, count) for opcode, count in pairs if opcode not in self.group.machine]

    @property
    def state(self) -> Own:
        """How its own compare with it."""
        if self.own == self.count:
            return Own.SAME
        if not self.own:
            return Own.NONE
        if self.count and self.own % self.count == 0:
            return Own.TIMES
        return Own.FEWER if self.own < self.count else Own.MORE

    @property
    def difference(self) -> int:
        """Machine instructions less PTX instructions."""
        return sum(count for _, count in self.machine) - self.count

    def causes(self) -> list[tuple[int, str]]:
        """The difference in parts, each with its cause, "" where there is none in the tables."""
        parts = []
        if self.state is not Own.SAME:
            parts.append((self.own - self.count, OWN.get((self.group.name, self.state), "")))
        found: dict[str, int] = {}
        for opcode, count in self.beside:
            found[opcode] = found.get(opcode, 0) + count
        for opcode, count in found.items():
            cause = BESIDE.get(opcode, "")
            parts.append((count, cause and f"{opcode} {cause}"))
        return parts


def read_launch(row: Json, threads: int) -> list[Line]:
    """The instructions of a launch. Raises UnlikeError where its numbers cannot be one kernel's."""
    rows = [(entry, None) if isinstance(entry, str) else entry for entry in row["ptx"]]
    heads = [_OPCODE.match(text) for text, _ in rows]
    opcodes = [head[1] if head else "" for head in heads]
    shape = [(opcode, text.startswith("@"), target) for opcode, (text, target) in zip(opcodes, rows, strict=True)]
    counts = executions(shape, threads, row.get("sites") or ())
    lines = [Line(text, opcode, count) for (text, _), opcode, count in zip(rows, opcodes, counts, strict=True)]
    places = _places(lines, row["machine"])
    for (text, _, count), place in zip(row["machine"], places, strict=True):
        if count:
            lines[place].machine.append((text, count))
    return lines


def _places(lines: Sequence[Line], machine: Sequence[Json]) -> list[int]:
    """Of each machine instruction the place of its PTX instruction: that of the line table, or that of LINELESS."""
    found = [place for _, place, _ in machine]
    for opcode, starts in LINELESS.items():
        here = [at for at, (text, _, _) in enumerate(machine) if "".join(machine_opcode(text)).startswith(starts)]
        there = [place for place, line in enumerate(lines) if line.opcode.startswith(opcode)]
        for number, at in enumerate(here):
            behind = there[number:] if len(here) == len(there) else [place for place in there if place >= found[at]]
            if not behind:
                raise UnlikeError(f"{machine[at][0]} is of no {opcode}")
            found[at] = behind[0]
    return found


def judge(result: Json, counters: Json) -> list[Verdict]:
    """counters: of the same run, whose sums these are."""
    found = [Verdict("the same run", all(result.get(name) == counters.get(name) for name in ("tree", "started")), "")]
    launches = {name: iter(rows) for name, rows in result["programs"].items()}
    kernels = list(counters_verdicts.kernels(counters))
    for name in result["programs"]:
        outputs = counters["programs"][name]["lines"]["outputs"]
        same = outputs is not None and outputs == counters["programs"][name]["outputs"]
        found.append(Verdict(f"{name} results, lines", same, f"{len(outputs or ())} outputs"))
    judged = 0
    for kernel in kernels:
        row = next(launches[kernel.program], None)
        if row is None or row["kernel"] != kernel.name or "why" in row:
            found.append(Verdict(f"{kernel.title} lines", False, (row or {}).get("why", "no record")))
            continue
        try:
            lines = read_launch(row, kernel.threads)
        except UnlikeError as error:
            found.append(Verdict(f"{kernel.title} lines", False, str(error)))
            continue
        judged += 1
        found += _kernel(kernel, row, lines)
    found.append(Verdict("kernels, line by line", judged == len(kernels) > 0, f"{judged} of {len(kernels)}"))
    return found


def _kernel(kernel: counters_verdicts.Kernel, row: Json, lines: Sequence[Line]) -> Iterator[Verdict]:
    ours, theirs = sum(line.count for line in lines), sum(count for *_, count in row["machine"])
    wrong = [f"{row['dropped']} records dropped"] if row.get("dropped") else []
    by_opcode = Counter[str]()
    for text, _, count in row["machine"]:
        by_opcode[machine_opcode(text)[0]] += count
    profiled = Counter({opcode: counts[2] for opcode, counts in kernel.machine.items()})
    wrong += [f"{opcode}: {by_opcode[opcode]}, the profile's are {profiled[opcode]}"
              for opcode in sorted({*by_opcode, *profiled}) if by_opcode[opcode] != profiled[opcode]]  # fmt: skip
    if sum(line.difference for line in lines) != theirs - ours:
        wrong.append("machine instructions of no line")
    by_group = Counter[str]()
    for line in lines:
        by_group[group_of(line.opcode)] += line.count
    # Loops that wait turn more or less often in another run.
    if "InstCount" in kernel.maps and "SYNCS" not in kernel.machine:
        if ours != kernel.maps["InstCount"]["all"]:
            wrong.append(f"{ours} instructions, and inst_count has {kernel.maps['InstCount']['all']}")
        wrong += [f"{name}: {by_group[name]} for {count}" for name, count in kernel.groups.items()
                  if by_group[name] != count]  # fmt: skip
    branches = kernel.maps.get("BranchDivergence")
    if branches and "SYNCS" not in kernel.machine:
        conditional = [line for line in lines if line.text.startswith("@") and line.opcode.split(".")[0] == "bra"]
        taken = sum(line.count for line in conditional)
        if taken != branches["taken"]:
            wrong.append(f"{taken} conditional branches taken, and branch_divergence has {branches['taken']}")
    figure = f"{len(lines)} PTX instructions, executed {ours} times; machine {theirs}, {theirs - ours:+}"
    yield Verdict(f"{kernel.title} lines", not wrong, "; ".join(wrong) or figure)
    exact = {group.name for group in GROUPS if group.exact and not any(by_group[name] for name in group.unless)}
    unlike = [line for line in lines if line.group.name in exact and not _is_like(line)]
    yield Verdict(
        f"{kernel.title} lines of their own",
        not unlike,
        "; ".join(f"{line.text}: {line.count}, machine {line.own}" for line in unlike[:3]) or
        f"{sum(line.group.name in exact for line in lines)} accesses, products, barriers …, each as often as its own",
    )  # fmt: skip
    parts = [(line, part) for line in lines for part in line.causes()]
    unknown = [f"{line.text} {line.state.value} {part[0]:+}: {line.machine}" for line, part in parts if not part[1]]
    differing = sum(bool(line.causes()) for line in lines)
    yield Verdict(
        f"{kernel.title} lines explained", not unknown,
        "; ".join(unknown[:3]) or f"{differing} instructions differ, {len(parts)} causes",
    )  # fmt: skip


def _is_like(line: Line) -> bool:
    """Whether its own machine instructions are executed as often, or, where ptxas merges such, not at all.

    An end counts at a branch that goes to it, too.
    """
    if line.group.name == "end":
        return line.own <= line.count
    return line.own == line.count or (not line.own and (line.group.name, Own.NONE) in OWN)


def report(result: Json, counters: Json, name: str) -> Iterator[str]:
    """Every instruction of the kernels whose title holds name."""
    launches = {program: iter(rows) for program, rows in result["programs"].items()}
    for kernel in counters_verdicts.kernels(counters):
        row = next(launches[kernel.program], None)
        if row is None or name not in kernel.title or "why" in row:
            continue
        yield f"\n{kernel.title}\n{'':4} {'PTX':>10} {'machine':>10} {'difference':>10}"
        for place, line in enumerate(read_launch(row, kernel.threads), 1):
            yield f"{place:4} {line.count:10} {line.count + line.difference:10} {line.difference:+10}  {line.text}"
            for text, count in line.machine:
                yield f"{'':16}{count:10}             {text}"
            for part, cause in line.causes():
                yield f"{'':26}{part:+11}    {cause or 'unexplained'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above."""
    parser = file_parser("bench.lines_verdicts", __doc__, RESULTS)
    parser.add_argument("--counters", type=Path, help="counters_h200.json of the same run (default: that beside FILE)")
    parser.add_argument("--report", nargs="?", const="", metavar="NAME", help="each instruction of kernels named so")
    options = parser.parse_args(arguments)
    counters = options.counters or options.file.with_name(counters_verdicts.RESULTS.name)

    def told(result: Json, counters: Json) -> int:
        status = say(judge(result, counters))
        if options.report is None:
            return status
        return max(status, counters_verdicts.say_report(report(result, counters, options.report)))

    return judge_files([options.file, counters], counters_verdicts.COMMAND, ("programs",), told)


if __name__ == "__main__":
    sys.exit(main())
