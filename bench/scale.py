"""Much of everything, in front of a driver that does nothing: what a program has in memory stays flat, nothing is lost.

    python -m bench.scale record [CASE ...] [--seconds N] [--out FOLDER] [--work FOLDER]    into scale.json, soak.json
    python -m bench.scale verdicts [FILE]        recompute the verdicts from the file; exit 0 good, 1 not

CASE: streams, handles, launches (without one: these three) or soak, which lasts that many seconds, 3600 by default.
The cases are those of ``scale.c``. Each is recorded with the hash of the tree; others in the file stay. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.null_driver import BUILT, build_driver, compile_c, hooked_environment, plain_environment
from bench.recorded import ResultsError, judge_files, read_results
from bench.tree import made_of
from neutrino.abi.launches import LaunchState
from neutrino.abi.reasons import Reason
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from neutrino.tracing import Trace, find_traces
from neutrino.twins.cache_entry import KernelEntry, write_entry
from neutrino.verification import load_probe_file
from tests.loader.conftest import IMAGE, RUN_KEY, TICKETS, entry_of, second

Json = Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "scale.json"
SOAK = RESULTS.with_name("soak.json")
KERNEL = "count_p2"
GOOD = 7
"""The exit status of the program, as scale.c has it."""
MOST_GROWTH = 8 << 20
"""Bytes by which the least memory may grow after the warm-up: 17 for each of 500,000 handles."""
MOST_RESIDENT = 256 << 20
"""Bytes at any time. What waits for the disk or for the hook's thread varies, up to 64 MiB of data, 64 MiB of lines and
128 MiB of records; slots of launches take up to 36 MiB, as many as the pool has segments."""
MOST_DESCRIPTORS = 4
"""More of them after the warm-up: files that the writer opens for a moment."""
WARM_SECONDS = 60
WARM_SHARE = 4
"""The first quarter of the launches is the warm-up; of the soak the first minute."""
LIMITED = 256 << 20


@dataclass(frozen=True)
class Size:
    """How much of one case: see scale.c. limit: bytes of the trace, 0 for none."""

    amount: int
    alive: int = 1
    threads: int = 1
    seconds: int = 0
    limit: int = 0


SIZES = {
    "streams": Size(100_000, alive=20_000),
    "handles": Size(1_000_000, alive=1_000),
    "launches": Size(100_000_000, threads=4, limit=LIMITED),
    "soak": Size(200_000, alive=500, threads=4, seconds=3600, limit=LIMITED),
}
"""What the committed results must have done."""


class Bench:
    """The null driver, the program, its images and their cache entries, in a folder of their own."""

    def __init__(self, folder: Path, library: Path = BUILT) -> None:
        """Build the driver and the program in folder, and make a cache in which one image's kernel has a twin (copy
        with probes), the other's a reason for none. library: folder with the hook.
        """
        self._folder, self._library = folder, library
        self._driver = build_driver(folder)
        compile_c("scale.c", folder / "scale")
        cache = Cache(folder / "cache")
        other = second(IMAGE)
        key = image_key(RUN_KEY, "sm_90", other)
        refused = KernelEntry(KERNEL, Reason.NUMERICS, "said the bench")
        cache.root.mkdir()
        cache.write(image_key(RUN_KEY, "sm_90", IMAGE), entry_of(IMAGE))
        cache.write(key, write_entry(key, load_probe_file(TICKETS).maps, [refused], []))
        for name, image in (("image", IMAGE), ("other", other)):
            (folder / name).write_bytes(image)

    def _run(self, name: str, size: Size, environment: Mapping[str, str]) -> Json:
        """Run a case of the program scale.c; return what it printed, its exit status, and samples of its memory and
        descriptors."""
        samples = self._folder / "samples"
        amounts = (size.amount, size.alive, size.threads, size.seconds)
        command = [self._folder / "scale", name, self._folder / "image", self._folder / "other", samples, *amounts]
        done = subprocess.run(
            [str(word) for word in command], env=environment, capture_output=True, text=True, check=False
        )
        rows = [[float(word) if "." in word else int(word) for word in line.split()]
                for line in samples.read_text().splitlines()]  # fmt: skip
        # Without the folder, which differs from run to run.
        stderr = done.stderr.replace(f"{self._folder}/", "")
        return {"output": done.stdout, "stderr": stderr, "exit": done.returncode, "samples": rows}

    def plain(self, name: str, size: Size) -> Json:
        """Run a case of the program scale.c without the hook (Neutrino's library); return what it printed, and samples
        of its memory.

        size: how much of it to do.
        """
        return self._run(name, size, plain_environment(self._driver))

    def hooked(self, name: str, size: Size, traces: Path) -> Json:
        """Run a case of the program scale.c with the hook (Neutrino's library); return what it printed, and samples of
        its memory.

        size: how much of it to do. traces: the folder for its trace.
        """
        environment = hooked_environment(self._driver, self._library, self._folder / "cache", traces)
        limit = {"NEUTRINO_MAX_TRACE_SIZE": str(size.limit)} if size.limit else {}
        return self._run(name, size, {**environment, **limit})

    def run(self, name: str, size: Size) -> Json:
        """Run a case of the program scale.c without the hook and with it; return the results of both, and what the
        trace says.

        Without it not for the soak, which takes an hour.
        """
        plain = None if size.seconds else self.plain(name, size)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            hooked = self.hooked(name, size, Path(folder))
            return {"size": asdict(size), "plain": plain, "hooked": hooked, "trace": read_trace(Path(folder))}


def read_trace(folder: Path) -> Json:
    """Summarize a trace: launches by kernel and reason, records by state, launches whose data can be read."""
    (path,) = find_traces(folder)
    trace = Trace(path)
    states = Counter(trace.launches["state"].tolist())
    read = 0
    for kernel in trace.kernels:
        for views in kernel.stacks():
            (read_now,) = {len(view.records) for view in views.values()}
            read += read_now
    return {
        "complete": trace.complete,
        "kernels": [[kernel.name, kernel.reason.word, {reason.word: count for reason, count in kernel.counters.items()}]
                    for kernel in trace.kernels],
        "states": {LaunchState(state).name: count for state, count in sorted(states.items())},
        "first_launch": trace.first_launch,
        "data_removed": trace.data_removed,
        "read": read,
        "notes": list(trace.notes),
    }  # fmt: skip


def printed(output: str) -> dict[str, list[int]]:
    """Parse the lines that the test program prints: a word → the numbers after it."""
    return {words[0]: [int(word) for word in words[1:]] for words in map(str.split, output.splitlines())}


def growth(case: Json) -> tuple[int, int]:
    """Return by how many bytes and descriptors the program has grown after its warm-up.

    Bytes: the least in the last third of that time, over the least in the first. What waits varies; what leaks stays.
    Descriptors: the most, over the most before.
    """
    samples = case["hooked"]["samples"]
    launches = samples[-1][1] // WARM_SHARE
    warm = next(
        (number for number, (seconds, done, _, _) in enumerate(samples)
         if (seconds >= WARM_SECONDS if case["size"]["seconds"] else done >= launches)),
        len(samples) - 1,
    )  # fmt: skip
    after = samples[warm:]
    third = (len(after) + 2) // 3
    resident = min(row[2] for row in after[-third:]) - min(row[2] for row in after[:third])
    return resident, max(row[3] for row in after) - max(row[3] for row in samples[: warm + 1])


def faults(case: Json) -> list[str]:
    """Return what is wrong with a recorded case, a line each, but for the bytes that it grew by."""
    size, trace, hooked, plain = Size(**case["size"]), case["trace"], case["hooked"], case["plain"]
    wrong = []
    if hooked["exit"] != GOOD or (plain and plain["exit"] != GOOD):
        return [f"exit status {hooked['exit']}, expected {GOOD}: {hooked['stderr'][-500:]}"]
    if not size.seconds and (not plain or plain["output"] != hooked["output"]):
        wrong.append("the program's output differs")
    if growth(case)[1] > MOST_DESCRIPTORS:
        wrong.append(f"{growth(case)[1]} descriptors more after the warm-up")
    launches = printed(hooked["output"])["launches"]
    counted = {reason: counts for _, reason, counts in trace["kernels"]}
    if len(counted) != len(trace["kernels"]) or set(counted) != {"probed", "numerics"}:
        return [*wrong, f"kernels {trace['kernels']}, expected one that is probed and one that is not"]
    for reason, made in zip(("probed", "numerics"), launches, strict=True):
        if sum(counted[reason].values()) != made:
            wrong.append(f"{reason}: the trace has {counted[reason]}, the program made {made} launches")
    probed = counted["probed"].get("probed", 0)
    if set(counted["numerics"]) - {"numerics"} or not probed:
        wrong.append(f"launches by reason: {counted}")
    if not trace["complete"]:
        wrong.append("the trace is not complete")
    if trace["notes"] and not size.limit:
        wrong.append(f"notes: {trace['notes']}")
    states = {state: count for state, count in trace["states"].items() if state != "EMPTY"}
    written = states.get("WRITTEN", 0)
    if set(states) - {"WRITTEN"} or (written != probed if not size.limit else not 0 < written <= probed):
        wrong.append(f"records {states}, of {probed} launches that were probed")
    if trace["read"] != written if not size.limit else not 0 < trace["read"] <= written:
        wrong.append(f"the data of {trace['read']} launches can be read, of {written}")
    return wrong


def _judge(results: Json, names: Sequence[str]) -> list[str]:
    """Return what is wrong with recorded cases, a line each: missing, other sizes than wanted, lost launches, too much
    memory."""
    wrong = []
    for name in names:
        size = SIZES[name]
        case = results["cases"].get(name)
        if case is None or not case.get("tree"):
            wrong.append(f"{name}: missing")
            continue
        if case["size"] != asdict(size):
            wrong.append(f"{name}: {case['size']}, expected {asdict(size)}")
        wrong += [f"{name}: {fault}" for fault in faults(case)]
        if growth(case)[0] > MOST_GROWTH:
            wrong.append(f"{name}: {growth(case)[0]} bytes more after the warm-up, expected at most {MOST_GROWTH}")
        peak = max(row[2] for row in case["hooked"]["samples"])
        if peak > MOST_RESIDENT:
            wrong.append(f"{name}: {peak} bytes in memory, expected at most {MOST_RESIDENT}")
    return wrong


def verdicts(results: Json) -> list[str]:
    """Return what is wrong with the results of all cases but the hour-long soak, a message each."""
    return _judge(results, [name for name, size in SIZES.items() if not size.seconds])


def soak_verdicts(results: Json) -> list[str]:
    """Return what is wrong with the results of the soak (the hour-long case, which has a file of its own), a message
    each."""
    return _judge(results, ["soak"])


def _say(results: Json) -> int:
    """Print the figures and what is wrong with them. Returns 1 when anything is."""
    wrong = soak_verdicts(results) if "soak" in results["cases"] else verdicts(results)
    for name, case in results["cases"].items():
        rows, launches = case["hooked"]["samples"], sum(printed(case["hooked"]["output"]).get("launches", []))
        more, descriptors = growth(case)
        peak = max(row[2] for row in rows)
        print(f"{name:9} {launches:>13,} launches in {rows[-1][0]:,.0f} s, {peak >> 20} MiB at most, "
              f"after the warm-up {more / 1024:+,.0f} KiB, {descriptors:+} descriptors")  # fmt: skip
        for _, _, counts in case["trace"]["kernels"]:
            print(f"{'':9} {counts}")
    print("\n".join(wrong) or "all as without the hook, and every launch counted")
    return 1 if wrong else 0


def _file_of(name: str) -> str:
    """Return the name of the file that holds a test case's results."""
    return SOAK.name if SIZES[name].seconds else RESULTS.name


def record(names: Sequence[str], seconds: int, out: Path, work: Path | None) -> None:
    """Run cases, and write what they printed, sampled and traced into their files in the folder out.

    seconds: that the soak takes. work: parent of scratch folders.
    """
    for name in names:
        path = out / _file_of(name)
        size, sources = SIZES[name], made_of(path.stem)
        with tempfile.TemporaryDirectory(dir=work) as folder:
            case = Bench(Path(folder)).run(name, Size(**{**asdict(size), "seconds": seconds}) if size.seconds else size)
        try:
            results = read_results(path, ("cases",))
        except ResultsError:
            results = {"cases": {}}
        results["cases"][name] = {**sources, **case}
        path.write_text(json.dumps(results) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record cases, or print the verdicts on a file, as the command line says. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale")
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record")
    recording.add_argument("cases", nargs="*", metavar="CASE", default=[])
    recording.add_argument("--seconds", type=int, default=SIZES["soak"].seconds)
    recording.add_argument("--out", type=Path, default=RESULTS.parent)
    recording.add_argument("--work", type=Path)
    actions.add_parser("verdicts").add_argument("file", nargs="?", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.action == "record" and set(options.cases) - set(SIZES):
        parser.error(f"the cases are {', '.join(SIZES)}")
    if options.action == "record":
        names = options.cases or [name for name, size in SIZES.items() if not size.seconds]
        record(names, options.seconds, options.out, options.work)
        path = options.out / _file_of(names[-1])
    else:
        path = options.file
    return judge_files([path], "python -m bench.scale record --out out", ("cases",), _say)


if __name__ == "__main__":
    sys.exit(main())
