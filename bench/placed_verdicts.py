"""What probes recorded inside functions, at source lines and between lanes, against the program's own logic.

    python -m bench.placed_verdicts [FILE]

prints one line a verdict. Exit status: 0 all good, 1 one is not, 2 the file cannot be judged. What had to come out is
computed here from the inputs by ``placed_model``, and from the rule by which each instruction between lanes is defined.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.placed_lanes import judge_collectives, judge_lines
from bench.placed_model import CHILD, CONTEXTS, Case, Launch, Thread, cases, inputs, lines, output
from bench.placed_records import (
    Json,
    Place,
    Recorded,
    active,
    existing_lanes,
    ran,
    recorded_launches,
    same_records,
    same_sums,
)
from bench.recorded import file_parser, judge_files
from bench.verdicts import BrokenError, Verdict, need, say

RESULTS = Path(__file__).parent / "results" / "placed_h200.json"
LINKED_THREADS, LINKED_ACTIVE = 100 * 256, 100 * 256 - 19
"""Threads of a launch of linked.cu, and those with an element."""
_LONG = 0xFFFFFFFFFFFFFFFF


def judge(results: Json, begins: str = "") -> list[Verdict]:
    """Check the recorded runs; return a verdict, good or bad, on each check, in a fixed order. begins: only those so
    named."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("provenance", partial(_provenance, results)),
        ("outputs as they are", partial(_plain, results)),
    ]
    embedded = results.get("device") == "embedded"
    for case in cases(embedded=embedded):
        run = results.get("runs", {}).get(case.name) or {}
        checks.append((f"{case.name}: outputs", partial(_outputs, run, case)))
        judges = {
            "placed_counts": [("sums in and around functions", _counts)],
            "placed_recursion": [("recursion", _recursion)],
            "placed_lines": [("lines of inlined code and loops", _lines)],
            "placed_records": [
                ("each thread's, in functions", _thread_records), ("each warp's", _warp_records),
                ("each block's", _block_records),
            ],
            "placed_guards": [("lanes that run it", _guards)],
            "placed_guards_reaching": [("lanes that come to it", _guards_reaching)],
            "placed_lanes": [("every collective", judge_collectives)],
            "placed_line_lanes": [("lanes at lines", judge_lines)],
        }[case.probes]  # fmt: skip
        checks += [(f"{case.name}: {title}", partial(check, run, case)) for title, check in judges]
    run = results.get("runs", {}).get("contexts") or {}
    checks += [
        ("contexts: outputs", partial(_context_outputs, results, run)),
        ("contexts: records kept apart", partial(_contexts, run)),
        ("contexts: two devices", partial(_devices, run)),
        ("child: records kept apart", partial(_child, run)),
    ]
    if not embedded:
        checks.append(("linked: another translation unit", partial(_linked, results.get("linked") or {})))
    return [_verdict(name, check) for name, check in checks if name.startswith(begins)]


def _verdict(name: str, check: Callable[[], str]) -> Verdict:
    """Run one check: a good verdict with its line, or a bad one with what was broken or is missing in the results."""
    try:
        return Verdict(name, True, check())
    except BrokenError as error:
        return Verdict(name, False, str(error))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, zlib.error) as error:
        return Verdict(name, False, f"the results are incomplete: {error!r}")


def _provenance(results: Json) -> str:
    """Check that the results say what they were made with. Returns that; raises BrokenError (by ``need``)."""
    needed = ("device", "tree") if results.get("device") == "embedded" else ("device", "driver", "nvcc", "tree")
    missing = [name for name in needed if not results.get(name)]
    need(not missing, f"no {', '.join(missing)}")
    need(not results.get("interrupted"), "the run was interrupted")
    return f"{results['device']}, driver {results['driver'] or '-'}, {results['nvcc'] or 'clang'}"


def _same_outputs(program: Json, launches: Sequence[Launch]) -> None:
    """Check that a program made these launches, and that each computed what the source gives.

    program: its report. Raises BrokenError (by ``need``).
    """
    rows = program["launches"]
    told = [(row["kernel"], row["seed"]) for row in rows]
    need(told == [(launch.kernel, launch.seed) for launch in launches], f"the program launched {told}")
    for row, launch in zip(rows, launches, strict=True):
        expected = hashlib.sha256(output(launch, ran(launch)).tobytes()).hexdigest()
        need(row["sha256"] == expected, f"{launch.kernel}, seed {launch.seed}: another output than the source gives")


def _plain(results: Json) -> str:
    """Check the outputs of the run without Neutrino. Returns a line for the verdict; raises BrokenError."""
    chosen = cases(embedded=results.get("device") == "embedded")
    launches = [launch for case in chosen for launch in case.launches]
    _same_outputs(results["plain"], launches)
    return f"{len(launches)} launches, each with the output that its source gives"


def _outputs(run: Json, case: Case) -> str:
    """Check that a probed run ended well and computed what its source gives.

    run: the results of the case. Returns a line for the verdict; raises BrokenError.
    """
    need(run.get("exit") == 0, f"exit status {run.get('exit')}")
    _same_outputs(run["program"], case.launches)
    return f"{len(case.launches)} launches, as without Neutrino"


def _counts(run: Json, case: Case) -> str:
    """Check the sums of a case's launches (calls, loads, values) against the source.

    run: the results of the case. Returns a line for the verdict; raises BrokenError.
    """
    total = 0
    for recorded in recorded_launches(run, case):
        _check_counts(recorded)
        total += sum(thread.entered["weigh"] for _, thread in active(recorded.launch))
    return f"{total} calls of weigh from every place, and what it reads and computes, as by hand"


def _check_counts(recorded: Recorded) -> None:
    """Check one launch's sums of function entries, loads and operands against what its threads do.

    Raises BrokenError.
    """
    launch = recorded.launch
    every = [thread for _, thread in active(launch)]
    entered = {name: sum(thread.entered[name] for thread in every) for name in ("weigh", "twice")}
    in_weigh = [] if launch.kernel == "descend" else [load for thread in every for load in thread.loads]
    sums = [row for thread in every for row in thread.sums]
    same_sums(recorded, "Counts", {
        "entered": entered["weigh"], "left": entered["weigh"], "twice_entered": entered["twice"],
        "twice_left": entered["twice"], "loads": len(in_weigh), "sums": len(sums),
        "kernel_loads": 0 if launch.kernel == "descend" else len(every),
        "threads": launch.shape.grid * launch.shape.block,
    })  # fmt: skip
    same_sums(recorded, "Values", {
        "address": sum(recorded.address(index) for index, _, _ in in_weigh) & _LONG,
        "loaded": sum(value for _, value, _ in in_weigh), "bytes": 4 * len(in_weigh),
        **{name: sum(row[place] for row in sums) for place, name in enumerate(("in1", "in2", "in3", "out"))},
    })  # fmt: skip


def _recursion(run: Json, case: Case) -> str:
    """Check sums in a recursive function, or that its kernel was left alone with that reason.

    run: the results of the case. Returns a line for the verdict; raises BrokenError.
    """
    kernels = run["traces"][0]["kernels"]
    if [kernel["reason"] for kernel in kernels] == ["unsupported"]:
        (kernel,) = kernels
        need("depth is recursive" in kernel["detail"], kernel["detail"])
        need(kernel["launches"] == {"unsupported": len(case.launches)}, f"launches: {kernel['launches']}")
        need(not run["traces"][0]["launches"], "records of a kernel that was not probed")
        return f"the original ran: {kernel['detail']}"
    total = 0
    for recorded in recorded_launches(run, case):
        every = [thread for _, thread in active(recorded.launch)]
        entered = sum(thread.entered["depth"] for thread in every)
        same_sums(recorded, "Depth", {
            "entered": entered, "left": entered, "loads": entered,
            "loaded": sum(value for thread in every for _, value, _ in thread.loads),
        })  # fmt: skip
        total += entered
    return f"{total} calls of depth, to depth 15"


def _lines(run: Json, case: Case) -> str:
    """Check how often each source line was come to, in loops and where it is inlined.

    run: the results of the case. Returns a line for the verdict; raises BrokenError.
    """
    most = 0.0
    for recorded in recorded_launches(run, case):
        words, x = inputs(recorded.launch)
        rows = [(element, thread) for element, (_, thread) in zip(x, active(recorded.launch), strict=False)]
        others = [entry for _, thread in rows for entry in thread.others]
        turns = sum(line == "FIRST" for line, _ in others)
        folded = sum(line == "FOLDED" for line, _ in others)
        indices = [index for line, index in others if line == "ONCE"]
        found = recorded.maps["Lines"]
        # The compiler decides how many runs of instructions the head of the loop is; what begins also ends.
        loop = found["loop"]
        need(loop >= turns + sum(bool(element & 7) for element, _ in rows), f"Lines.loop: {loop}, and {turns} turns")
        same_sums(recorded, "Lines", {
            "folded": folded, "folded_ends": folded, "body": turns, "body_ends": turns, "loop": loop, "loop_ends": loop,
            "sads": 2 * turns, "out": sum(value for line, value in others if line in ("FIRST", "LAST")),
        })  # fmt: skip
        same_sums(recorded, "Once", {
            "loads": len(indices), "address": sum(recorded.address(index) for index in indices) & _LONG,
            "loaded": sum(int(words[index]) for index in indices), "first": turns,
        })  # fmt: skip
        most = max(most, loop / turns)
    return f"each line as often as it is come to, inlined twice; {most:.2f} runs of the loop's lines a turn"


def _load_records(recorded: Recorded, thread: Thread) -> list[tuple[int, int, int]]:
    """Return the records that a probe must save of a thread's loads: address, value, and how many were before it."""
    return [(recorded.address(index), value, order) for order, (index, value, _) in enumerate(thread.loads)]


def _thread_records(run: Json, case: Case) -> str:
    """Check the records that each thread saved inside functions, in order.

    run: the results of the case. Returns a line for the verdict; raises BrokenError.
    """
    saved = 0
    for recorded in recorded_launches(run, case):
        at = f"placed.cu:{lines()['LOAD']}"
        sites = [number for number, source in recorded.sites.items() if source.split(",")[0] == at]
        need(len(sites) == 1, f"the sites at {at} are {sites}")
        loads, sums = {}, {}
        shape = recorded.launch.shape
        ends = {shape.place(i): [(0, 0)] for i in range(shape.grid * shape.block)}
        for place, thread in active(recorded.launch):
            loads[place] = [
                (*row, entry, sites[0])
                for row, (_, _, entry) in zip(_load_records(recorded, thread), thread.loads, strict=True)
            ]
            sums[place] = thread.sums
            ends[place] = [(len(thread.loads), thread.entered["weigh"])]
        saved += same_records(recorded, "Loads", loads)
        saved += same_records(recorded, "Sums", sums)
        same_records(recorded, "Ends", ends)
    return f"{saved} records, each in its place, with address, operands, result, and registers that live on"


def _warp_records(run: Json, case: Case) -> str:
    """Check the records that the first lane of each warp saved.

    run: the results of the case. Returns a line for the verdict; raises BrokenError.
    """
    saved = 0
    for recorded in recorded_launches(run, case):
        expected = {
            place[:2]: _load_records(recorded, thread) for place, thread in active(recorded.launch) if place[2] == 0
        }
        saved += same_records(recorded, "Warps", expected)
    return f"{saved} records of warps' first lanes"


def _block_records(run: Json, case: Case) -> str:
    """Check the records that the first thread of each block saved.

    run: the results of the case. Returns a line for the verdict; raises BrokenError.
    """
    saved = 0
    for recorded in recorded_launches(run, case):
        expected = {
            place[:1]: _load_records(recorded, thread)
            for place, thread in active(recorded.launch)
            if not any(place[1:])
        }
        saved += same_records(recorded, "Blocks", expected)
    return f"{saved} records of blocks' first threads"


@dataclass(frozen=True)
class Guarded:
    """One thread of ``guarded``. low: it runs the first instruction if less than lane, else the second."""

    place: Place
    x: int
    thread: Thread

    @property
    def runs_first(self) -> bool:
        """Whether this thread of the test kernel runs the instruction under the predicate @p; else it runs the one
        under @!p."""
        return self.x & 31 < self.place[2]


def _guarded(launch: Launch) -> list[Guarded]:
    """Return the threads of a launch of the test kernel ``guarded``, each with its input."""
    x = inputs(launch)[1]
    return [Guarded(place, int(word), thread) for word, (place, thread) in zip(x, active(launch), strict=True)]


def _guards(run: Json, case: Case) -> str:
    """Check records of predicated instructions, saved only by lanes that run them.

    run: the results of the case. Returns a line for the verdict; raises BrokenError.
    """
    total = 0
    for recorded in recorded_launches(run, case):
        rows = _guarded(recorded.launch)
        first: dict[tuple[int, int], int] = {}
        for row in rows:
            first[row.place[:2]] = first.get(row.place[:2], 0) | row.runs_first << row.place[2]
        existing = existing_lanes(recorded.launch.shape)
        ran_sad, ran_load = {}, {}
        for row in rows:
            warp, values = row.place[:2], dict(row.thread.others)
            yes, no = [(1, first[warp], 1, values["SAD"])], [(0, 0, 0, 0)]
            ran_sad[row.place] = yes if row.runs_first else no
            mask = existing[warp] & ~first[warp]
            loaded = [(recorded.address(row.x & 255), 4, 1, mask, 1, values["VALUE"])]
            ran_load[row.place] = [(0,) * 6] if row.runs_first else loaded
            total += row.runs_first
        same_records(recorded, "Ran", ran_sad)
        same_records(recorded, "RanLoad", ran_load)
    return f"{total} threads at @p, the others at @!p: LANES, PRED, OUT, ADDR, BYTES exact"


def _guards_reaching(run: Json, case: Case) -> str:
    """Check records of predicated instructions, saved by every lane that comes to them, also with a false predicate.

    run: the results of the case. Returns a line for the verdict; raises BrokenError.
    """
    total = 0
    for recorded in recorded_launches(run, case):
        existing = existing_lanes(recorded.launch.shape)
        came, came_load = {}, {}
        for row in _guarded(recorded.launch):
            values, mask = dict(row.thread.others), existing[row.place[:2]]
            # Lanes that do not run it still have in its result what was there before.
            came[row.place] = [(1, mask, int(row.runs_first), values["SAD"])]
            came_load[row.place] = [(1, mask, int(not row.runs_first), values["VALUE"])]
            total += 1
        same_records(recorded, "Came", came)
        same_records(recorded, "CameLoad", came_load)
    return f"{total} threads, those that do not run it among them: LANES, PRED, OUT exact"


def _context_outputs(results: Json, run: Json) -> str:
    """Check outputs of a program with two contexts and a child process, plain and probed.

    Returns a line for the verdict; raises BrokenError.
    """
    need(run.get("exit") == 0, f"exit status {run.get('exit')}")
    for side in (results["contexts_plain"], run):
        _same_outputs(side["program"], CONTEXTS.launches)
        _same_outputs(side["child"], CHILD.launches)
        need(side["program"]["child"]["exit"] == 0, f"the child's exit status {side['program']['child']['exit']}")
    return f"{len(CONTEXTS.launches)} launches in two contexts, {len(CHILD.launches)} of a child, as without Neutrino"


def _trace_of(run: Json, pid: int) -> Json:
    """The trace of a process, of the two that a run must have. Raises BrokenError (by ``need``)."""
    need(len(run["traces"]) == 2, f"{len(run['traces'])} traces, expected the program's and its child's")
    found = [trace for trace in run["traces"] if trace["pid"] == pid]
    need(len(found) == 1, f"{len(found)} traces of process {pid}")
    return found[0]


def _contexts(run: Json) -> str:
    """Check that launches in two contexts have sums of their own. Returns a line for the verdict; raises BrokenError.
    """
    program = run["program"]
    trace = _trace_of(run, program["pid"])
    for recorded in recorded_launches(run, CONTEXTS, trace, program):
        _check_counts(recorded)
    told = [row["context"] for row in program["launches"]]
    found = [row["context"] for row in trace["launches"]]
    need(len(set(told)) == 2, "the program used one context")
    need(len(set(zip(told, found, strict=True))) == 2 == len(set(found)), f"contexts {found}, the program's are {told}")
    capped = sum(row["capped"] for row in trace["launches"])
    return f"by modules and by one library, each launch's sums its own; {capped} of {len(found)} under a register cap"


def _devices(run: Json) -> str:
    """Check that records name the device of their launch, where there are two. Returns a line for the verdict; raises
    BrokenError."""
    program = run["program"]
    if program["devices"] < 2:
        return f"not run: {program['devices']} device is visible; the two contexts were of that one"
    devices = [row["device"] for row in _trace_of(run, program["pid"])["launches"]]
    told = [row["context"] for row in program["launches"]]
    need(devices == told, f"records of devices {devices}, the program used {told}")
    return f"{program['devices']} are visible; launches on devices {devices}"


def _child(run: Json) -> str:
    """Check that a forked child process recorded its own launches in a trace of its own.

    Returns a line for the verdict; raises BrokenError.
    """
    program = run["program"]
    need(program["child"]["pid"] == run["child"]["pid"], "another process than the one that was forked")
    trace = _trace_of(run, run["child"]["pid"])
    for recorded in recorded_launches(run, CHILD, trace, run["child"]):
        _check_counts(recorded)
    return f"{len(CHILD.launches)} launches in a trace of its own"


def _linked(linked: Json) -> str:
    """Check a program of two translation units, linked by nvlink: left alone at run time, probed when patched ahead of
    time. linked: what was recorded of it. Returns a line for the verdict; raises BrokenError.
    """
    need(linked.get("patch") == 0, f"neutrino-patch ended with status {linked.get('patch')}")
    ways = {way: linked[way] for way in ("plain", "command", "patched")}
    for way, row in ways.items():
        need(row["program"]["checks"] == "ok", f"{way}: {row['program']['checks']}")
        need(row["program"]["outputs"] == ways["plain"]["program"]["outputs"], f"{way}: other outputs")
        need(row.get("exit", 0) == 0, f"{way}: exit status {row.get('exit')}")
    seeds = len(ways["plain"]["program"]["outputs"])
    launches = {"shift": seeds, "scale": seeds}
    (trace,) = ways["command"]["traces"]
    said = {kernel["name"]: (kernel["reason"], kernel["launches"]) for kernel in trace["kernels"]}
    expected = {name: ("no-ptx", {"no-ptx": count}) for name, count in launches.items()}
    need(said == expected, f"under neutrino: {said}, expected {expected}")
    (trace,) = ways["patched"]["traces"]
    kernels = {kernel["name"]: kernel["launches"] for kernel in trace["kernels"]}
    need(kernels == {name: {"probed": count} for name, count in launches.items()}, f"patched: {trace['kernels']}")
    sums = [(row["kernel"], row["maps"]["Linked"]) for row in trace["launches"]]
    each = [("shift", {"entered": LINKED_ACTIVE, "left": LINKED_ACTIVE, "threads": LINKED_THREADS}),
            ("scale", {"entered": 0, "left": 0, "threads": LINKED_THREADS})]  # fmt: skip
    need(sums == each * seeds, f"patched: {sums}, expected {each} {seeds} times")
    return f"at run time no-ptx; patched ahead of time {LINKED_ACTIVE} calls of the other unit's function a launch"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdicts on a file of results.

    Returns the exit status: 0 all good, 1 one is not, 2 there is no such file.
    """
    options = file_parser("bench.placed_verdicts", __doc__, RESULTS).parse_args(arguments)
    command = "python3 -m bench.placed --out out"
    return judge_files([options.file], command, ("device", "plain", "runs"), lambda results: say(judge(results)))


if __name__ == "__main__":
    sys.exit(main())
