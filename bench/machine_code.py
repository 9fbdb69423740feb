"""Do PyTorch's kernels compute the same when they are cut out of its library, and with trampolines in them?

    python3 -m bench.machine_code record --out out/machine_code_h200.json     on a machine with a GPU and PyTorch
    python3 -m bench.machine_code judge [FILE]                                the verdicts alone
    python3 -m bench.machine_code probed FILE …                               which get a probe's code, without a GPU
    python3 -m bench.machine_code sums --out out/machine_code_sums_h200.json  gmem_bytes of machine code and of PTX

``record`` runs PyTorch's operators (``workloads/machine_code_ops.py``) once to see which kernels they launch, makes
five cubins of each (cut; grown by registers and a parameter; with a parameter and a trampoline at each access; with the
probe block_sched; with gmem_bytes) out of ``libtorch_cuda.so``, and runs the operators again with these launched in the
kernels' place. Results are compared bit by bit; of the large operators each kernel's time is measured. Of block_sched
there must be a record for each warp, with a multiprocessor that there is, and cycles that the launch had time for. Of
gmem_bytes the sums must be what some operators' arithmetic says. A process that dies is started again after the
operator at which it died.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.recorded import judge_files, save
from bench.tree import ROOT, made_of
from neutrino import load_probes
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.errors import FormatError, MachineCodeError
from neutrino.fatbin import ImageKind, read_file
from neutrino.sass.cubin import cubin_kernel_names, read_cubin
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.growing import Growth, code_of, grow
from neutrino.sass.twin.trampolines import identity_twin, instruction_words, write_trampolines
from neutrino.toolchain.tool_choice import find_assembler

Json = Any

RESULTS = ROOT / "bench" / "results" / "machine_code_h200.json"
SHIM = ROOT / "bench" / "workloads" / "machine_code_launches.c"
PROGRAM = ROOT / "bench" / "workloads" / "machine_code_ops.py"
PROBED = "block_sched"
BEFORE = ("cut", "grown", "identity")
"""Kinds of cubins of results that do not say which."""
SUMMED, LOGGED = "gmem_bytes", "dmat"
KINDS = (*BEFORE, PROBED, SUMMED)
FASTEST_CLOCK = 2.1e6
"""Cycles that a multiprocessor of an H200, at 1.98 GHz, never has in a millisecond."""
SLACK = 20_000
"""Cycles by which a warp may seem to take longer than the events around its launch say."""
REGISTERS, PARAMETER = 8, 16
"""More registers of a thread, of grown cubins; bytes of a parameter more, of these and of twins."""
LEAST_KERNELS = 50
SILENT_S = 40.0
"""Seconds without a line after which a process is ended."""
LONG_US = 50.0
TURNS = 7
"""How often a large operator runs while it is timed."""
ODD, LARGE = 1_000_003, 1 << 26
BYTES = {
    **dict.fromkeys(("add", "multiply", "divide", "maximum"), (8 * ODD, 4 * ODD)),
    **dict.fromkeys(("exp", "log", "sine", "square_root", "gelu", "relu", "clamp", "to_integer"), (4 * ODD, 4 * ODD)),
    **dict.fromkeys(("tanh", "sigmoid", "silu", "gelu_tanh"), (2 * ODD, 2 * ODD)),
    "add_half": (4 * ODD, 2 * ODD), "add_double": (16 * ODD, 8 * ODD), "add_integers": (16 * ODD, 8 * ODD),
    "to_half": (4 * ODD, 2 * ODD), "to_bytes": (ODD, ODD), "where": (9 * ODD, 4 * ODD), "less": (8 * ODD, ODD),
    "fill": (0, 4 * ODD), "zeros": (0, 4 * ODD), "lerp": (8 * ODD, 4 * ODD), "addcmul": (12 * ODD, 4 * ODD),
    "large_add": (8 * LARGE, 4 * LARGE), "large_gelu": (4 * LARGE, 4 * LARGE), "large_to_half": (4 * LARGE, 2 * LARGE),
    "large_softmax": (4 * LARGE, 4 * LARGE), "large_random": (0, 4 * LARGE),
}  # fmt: skip
"""Bytes that operators on elements load and store: each of their inputs once, and the result. Of an integer that
becomes a byte, the compiler loads the lowest byte alone."""
LEAST_OF_BYTES = 12
MOST_TIMES = {PROBED: (1.10, 1.25), SUMMED: (1.15, 1.35)}
"""Time with a probe over that without: the median, and nine of ten kernels, of 50 µs and more. What is missed is said,
and is no fault of what was computed."""
_FIGURES = ("operators", "kernels", "results", "made", "left", "died")


def record(out: Path, limit: float, kinds: Sequence[str] = KINDS) -> int:
    """Run everything for at most ``limit`` seconds, write the results, print the verdicts, return the exit status.

    kinds: of cubins, those of ``KINDS`` that are made.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="machine_code-") as text:
        folder = Path(text)
        shim = folder / "launches.so"
        compiler = shutil.which("gcc") or shutil.which("cc") or "cc"
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", str(SHIM), "-o", str(shim), "-ldl"], check=True)
        died: list[Json] = []
        head, rows = _operators(shim, "names", [], start + limit * 0.4, died)
        names = sorted({launch[0] for row in rows for launch in row["modes"].get("own", {}).get("launches", [])})
        print(f"{head.get('device')}: {len(rows)} operators launch {len(names)} kernels", flush=True)
        spec = importlib.util.find_spec("torch")
        assert spec is not None
        assert spec.origin is not None
        library = Path(spec.origin).parent / "lib" / "libtorch_cuda.so"
        made, left = make_twins(library, set(names), str(head.get("arch", "sm_90")), folder, kinds)
        index = folder / "kernels.tsv"
        index.write_text("".join("\t".join([name, *map(str, row)]) + "\n" for name, row in made.items()))
        print(f"{len(made)} kernels cut, {time.monotonic() - start:.0f} s", flush=True)
        _, rows = _operators(shim, "compare", [str(index), ",".join(kinds)], start + limit, died)
        results = {
            **{name: head.get(name) for name in ("device", "torch", "operators")},
            "kinds": kinds, "kernels": names, "made": sorted(made), "left": left, "died": died,
            **made_of("machine_code_h200"), "seconds": round(time.monotonic() - start, 1),
            "results": [_short(row) for row in rows],
        }  # fmt: skip
        results = numbered(results)
    out.parent.mkdir(parents=True, exist_ok=True)
    save(out, results)
    return say(results)


def numbered(results: Json) -> Json:
    """Return results with the numbers of kernels in ``kernels``, as text, instead of their names."""
    number = {name: str(index) for index, name in enumerate(results["kernels"])}

    def one(name: str) -> str:
        return number.get(name, name)

    def launched(key: str) -> str:
        how, name = key.split(" ", 1)
        return f"{how} {one(name)}"

    for row in results["results"]:
        for found in row["modes"].values():
            found["launches"] = {launched(key): count for key, count in found["launches"].items()}
            for what in found.keys() & {"times", "records", "sums"}:
                found[what] = {one(name): figures for name, figures in found[what].items()}
    left = {one(name): reason for name, reason in results["left"].items()}
    return {**results, "made": [one(name) for name in results["made"]], "left": left}


def _short(row: Json) -> Json:
    """A row of the program's, with launches counted by kernel, the shortest time of each in µs; with block_sched the
    numbers of warps, records, odd records, and launches that were too short for what a warp recorded; with gmem_bytes
    the fields of its map, all launches together."""
    modes = {}
    for mode, found in row["modes"].items():
        counts: Counter[str] = Counter()
        times: dict[str, float] = {}
        records: dict[str, list[int]] = {}
        sums: dict[str, list[int]] = {}
        for name, how, milliseconds, *recorded in found["launches"]:
            counts[f"{how} {name}"] += 1
            if recorded and mode == SUMMED:
                before = sums.setdefault(name, [0] * len(recorded))
                sums[name] = [a + int(b) for a, b in zip(before, recorded, strict=True)]
            elif recorded:
                warps, written, odd, longest = map(int, recorded)
                is_long = float(milliseconds) and longest > float(milliseconds) * FASTEST_CLOCK + SLACK
                so_far = records.setdefault(name, [0, 0, 0, 0])
                records[name] = [a + b for a, b in zip(so_far, (warps, written, odd, int(is_long)), strict=True)]
            if row["large"] and float(milliseconds):
                times[name] = min(times.get(name, 1e9), round(1000 * float(milliseconds), 2))
        figures = {"times": times, "records": records, "sums": sums}
        modes[mode] = {
            "same": found["same"], "launches": dict(counts), **{name: known for name, known in figures.items() if known}
        }  # fmt: skip
    return {**{name: row[name] for name in ("number", "name", "large")}, "modes": modes, "error": row.get("error", "")}


def _operators(
    shim: Path, what: str, more: Sequence[str], deadline: float, died: list[Json]
) -> tuple[dict[str, Json], list[Json]]:
    """Run all operators, in as many processes as are needed; return what the program says of itself, and its rows.

    what, more: arguments of the program. deadline: by the monotonic clock. died: gets what did not end.
    """
    head: dict[str, Json] = {}
    rows: list[Json] = []
    start = 0
    while time.monotonic() < deadline:
        argv = [sys.executable, str(PROGRAM), str(shim), what, str(start), *more]
        at, said = "", ""
        with tempfile.TemporaryFile("w+") as errors:
            for line in _lines(argv, {**os.environ, "LD_PRELOAD": str(shim)}, deadline, errors):
                if line.startswith("begin "):
                    at = line.removeprefix("begin ").strip()
                elif line.startswith("{"):
                    found = json.loads(line)
                    if "operators" in found:
                        head = found
                    else:
                        rows.append(found)
                        at = "" if "CUDA" not in found.get("error", "") else at
            errors.seek(0)
            said = errors.read().strip()[-400:]
        done = int(at.split()[0]) + 1 if at else (rows[-1]["number"] + 1 if rows else 0)
        if not head or (done >= len(head["operators"]) and not at):
            if not head:
                died.append({"at": "start", "what": what, "said": said})
            break
        died.append({"at": at or f"{done} ?", "what": what, "said": said})
        if done == start and not at:
            break
        start = done
    else:
        died.append({"at": f"{start} deadline", "what": what, "said": ""})
    return head, rows


def _lines(argv: Sequence[str], environment: dict[str, str], deadline: float, errors: Any) -> Iterator[str]:
    """Yield a program's lines; it is ended when it is silent for long, and at the deadline."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, env=environment) as process:
        assert process.stdout is not None
        selector = selectors.DefaultSelector()
        selector.register(process.stdout, selectors.EVENT_READ)
        pending = b""
        while True:
            wait = min(SILENT_S, deadline - time.monotonic())
            if wait <= 0 or not selector.select(wait):
                process.kill()
                break
            read = os.read(process.stdout.fileno(), 1 << 20)
            if not read:
                break
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")


def make_twins(
    library: Path, names: set[str], arch: str, folder: Path, kinds: Sequence[str]
) -> tuple[dict[str, tuple[int | str, ...]], dict[str, str]]:
    """Make the cubins of these kernels, of some kinds. Returns the number of parameters and a file of each kind by
    name, and the reason of each kernel that is left alone."""
    images = [
        image.data
        for container in read_file(library)
        for image in container.images
        if image.kind is ImageKind.CUBIN and image.arch in (arch, f"{arch}a")
    ]
    made: dict[str, tuple[int | str, ...]] = {}
    left = dict.fromkeys(names, "in no cubin of the library")
    bodies: dict[str, bytes] = {}
    several: set[str] = set()
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        tasks = [
            pool.submit(_cubins_of, bytes(data), wanted, str(folder), number, kinds)
            for number, data in enumerate(images)
            if (wanted := names & set(cubin_kernel_names(data, "cubin")))
        ]
        for task in tasks:
            for name, (row, body, reason) in task.result().items():
                if name in bodies and bodies[name] != body:
                    several.add(name)
                bodies[name] = body
                left[name] = reason
                if row is not None:
                    made[name] = row
                if not reason:
                    del left[name]
    # Which of them a program launches is not known here.
    for name in several:
        left[name] = "in several cubins, with other code"
        made.pop(name, None)
    return made, left


_Made = tuple[tuple[int | str, ...] | None, bytes, str]


def _cubins_of(
    data: bytes, wanted: set[str], folder: str, number: int, kinds: Sequence[str]
) -> dict[str, _Made]:  # fmt: skip
    """Cut, grow and twin kernels of one cubin: by name the row of ``make_twins`` or none, the code, and the reason."""
    found: dict[str, _Made] = {}
    cutter, file = Cutter(data, "cubin"), f"cubin {number}"
    for index, name in enumerate(sorted(wanted)):
        body = b""
        try:
            body = code_of(data, name, file)
            cut = cutter.cut(name)
            count = len(read_cubin(cut, file).kernels[name].parameters)
            files, reasons = [], []
            for kind in KINDS:
                if kind not in kinds:
                    files.append("")
                    continue
                path = Path(folder) / f"{number}_{index}.{kind}.cubin"
                try:
                    path.write_bytes(_changed(cut, name, kind, file))
                    files.append(str(path))
                except MachineCodeError as error:
                    files.append("")
                    reasons.append(f"{kind}: {error.reason}")
            found[name] = ((count, *files), body, "; ".join(reasons))
        except MachineCodeError as error:
            found[name] = (None, body, error.reason)
        except FormatError as error:
            found[name] = (None, body, str(error))
    return found


def _changed(cut: bytes, name: str, kind: str, file: str) -> bytes:
    """Return a cut cubin as it is, grown, with trampolines, or with a probe's code.

    Raises MachineCodeError for what it cannot have.
    """
    if kind == "cut":
        return cut
    if kind == "identity":
        return identity_twin(cut, name, file, parameter=PARAMETER).data
    if kind in (PROBED, SUMMED):
        return probe_code(kind).twin_of(cut, name, file).data
    longer, _ = write_trampolines(instruction_words(code_of(cut, name, file)), [], 90)
    registers = read_cubin(cut, file).kernels[name].registers + REGISTERS
    return grow(cut, Growth(longer, registers, PARAMETER), file).data


@functools.cache
def probe_code(probe: str) -> ProbeCode:
    """The code of a probe of the library."""
    return ProbeCode(load_probes([probe]), "sm_90", find_assembler())


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def twins_that_ran(results: Json, mode: str) -> tuple[set[str], list[str]]:
    """Return the kernels whose cubins ran in a mode in operators that gave the same bits, and the operators that did
    not, or whose launches failed."""
    ran: set[str] = set()
    wrong: list[str] = []
    for row in results["results"]:
        found = row["modes"].get(mode)
        if found is None or not row["modes"].get("again", {}).get("same"):
            continue
        launched = [key.split(" ", 1) for key in found["launches"]]
        if not found["same"] or any(how == "failed" for how, _ in launched):
            wrong.append(row["name"])
        else:
            ran.update(name for how, name in launched if how == "twin")
    return ran, wrong


def recorded(results: Json, mode: str) -> tuple[int, int, int, int]:
    """Return how many warps the probed launches of a mode had, how many of them have records, how many records cannot
    be, and how many launches were shorter than a warp's cycles."""
    rows = [counts for row in results["results"] for counts in row["modes"].get(mode, {}).get("records", {}).values()]
    warps, records, odd, long = (sum(row[index] for row in rows) for index in range(4))
    return warps, records, odd, long


def bytes_moved(results: Json) -> tuple[int, list[str]]:
    """Return of how many operators gmem_bytes has the bytes that their arithmetic says, and those of which it has not,
    with both. Operators of which any launch was not probed are left out."""
    right, wrong = 0, []
    for row in results["results"]:
        found = row["modes"].get(SUMMED)
        if found is None or row["name"] not in BYTES or any(not key.startswith("twin ") for key in found["launches"]):
            continue
        runs = 1 + (TURNS if row["large"] else 1)
        total = [sum(column) for column in zip(*found.get("sums", {}).values(), strict=True)]
        expected = [runs * one for one in (*BYTES[row["name"]], 0, 0, 0)]
        right += total == expected
        if total != expected:
            wrong.append(f"{row['name']}: {total} for {expected}")
    return right, wrong


def time_ratios(results: Json, mode: str) -> list[tuple[float, float, str]]:
    """Return of each kernel of 50 µs and more of the large operators: time in a mode over its own, own µs, operator."""
    ratios = []
    for row in results["results"]:
        for name, own in row["modes"].get("own", {}).get("times", {}).items():
            time_ = row["modes"].get(mode, {}).get("times", {}).get(name)
            if own >= LONG_US and time_ is not None and f"twin {name}" in row["modes"][mode]["launches"]:
                ratios.append((time_ / own, own, row["name"]))
    return sorted(ratios)


def said_of_times(mode: str, ratios: Sequence[float]) -> str:
    """Return the line that says whether a probe costs no more time than it may. ratios: sorted, at least one."""
    most, most_of_nine = MOST_TIMES[mode]
    middle, nine = statistics.median(ratios), ratios[-(-9 * len(ratios) // 10) - 1]
    is_met = middle <= most and nine <= most_of_nine
    return (
        f"{'ok    ' if is_met else 'missed'} {mode:8} × {middle:.3f} and × {nine:.3f} at nine of ten kernels; "
        f"{most} and {most_of_nine} are wanted"
    )


def say(results: Json) -> int:
    """Print the table and the verdicts; return the exit status: 0 when all hold."""
    rows = results["results"]
    unsteady = [row["name"] for row in rows if not row["modes"].get("again", {}).get("same", False)]
    print(f"{results['device']}, PyTorch {results['torch']}: {_plural(len(rows), 'operator')}, "
          f"{_plural(len(results['kernels']), 'kernel')}; {len(results['made'])} twinned")  # fmt: skip
    for reason, count in Counter(re.sub(r"_Z\w+", "…", reason) for reason in results["left"].values()).most_common():
        print(f"  {count:4} left alone: {reason}")
    for row in rows:
        if row["error"]:
            print(f"  {row['name']}: {row['error']}")
    for one in results["died"]:
        print(f"  did not end: {one['what']} {one['at']}: {one['said'][-150:]}")
    print(f"  not the same in two plain runs, so not judged: {', '.join(unsteady) or 'none'}")
    good = not results["died"]
    for mode in results.get("kinds", BEFORE):
        ran, wrong = twins_that_ran(results, mode)
        ratios = time_ratios(results, mode)
        times = "no times"
        if ratios:
            middle, (worst, _, at) = statistics.median(ratio for ratio, _, _ in ratios), ratios[-1]
            times = f"× {middle:.3f} (median of {len(ratios)} of {LONG_US:.0f} µs and more), at most {worst:.2f} ({at})"
        warps, records, odd, long = recorded(results, mode)
        holds = len(ran) >= LEAST_KERNELS and not wrong and warps == records and not odd and not long
        if mode == PROBED:
            holds &= warps > 0
            times += f"; {records:,} records of {warps:,} warps, {odd:,} impossible, {long:,} launches too short"
        if mode == SUMMED:
            right, wrong_bytes = bytes_moved(results)
            holds &= right >= LEAST_OF_BYTES and not wrong_bytes
            others = "; ".join(wrong_bytes) or "none"
            times += f"; bytes of {right} operators as their arithmetic says, others: {others}"
        good &= holds
        print(f"{'ok    ' if holds else 'missed'} {mode:8} {_plural(len(ran), 'kernel')} with the same bits, "
              f"wrong: {', '.join(wrong) or 'none'}; {times}")  # fmt: skip
        if mode in MOST_TIMES and ratios:
            print(said_of_times(mode, [ratio for ratio, _, _ in ratios]))
    return 0 if good else 1


def probe_all(paths: Iterable[Path], most: int, probe: str) -> int:
    """Make a twin with a probe of up to so many sm_90 kernels of each cubin of libraries; print how many there are, why
    not the others, and the CPU time of one."""
    found: Counter[str] = Counter()
    milliseconds: list[float] = []
    # Not counted: the code is assembled once.
    for offset in (0, 8):
        probe_code(probe).at(offset)
    for path in paths:
        for container in read_file(path):
            for image in container.images:
                if image.kind is not ImageKind.CUBIN or image.arch not in ("sm_90", "sm_90a"):
                    continue
                cutter = Cutter(bytes(image.data), "cubin")
                for kernel in sorted(cutter.kernels)[:most]:
                    reason, spent = _probed(cutter, kernel, probe)
                    found[reason] += 1
                    if not reason:
                        milliseconds.append(spent)
    for reason, count in found.most_common():
        print(f"{count:6} {reason or 'probed'}")
    if milliseconds:
        print(f"CPU time of a twin: {statistics.median(milliseconds):.1f} ms (median), {max(milliseconds):.1f} at most")
    return 0


def _probed(cutter: Cutter, kernel: str, probe: str) -> tuple[str, float]:
    """Return why a kernel cannot be probed, "" if it can, and the milliseconds of CPU time that its twin took."""
    try:
        cut = cutter.cut(kernel)
        start = time.process_time()
        probe_code(probe).twin_of(cut, kernel, "cubin")
        return "", 1000 * (time.process_time() - start)
    except MachineCodeError as error:
        return re.sub(r"0x[0-9a-f]+|_\w{6,}|\d+", "…", error.reason), 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="bench.machine_code", description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run on this GPU")
    recording.add_argument("--out", type=Path, required=True)
    recording.add_argument("--limit", type=float, default=110.0, help="seconds for all (default 110)")
    recording.add_argument(
        "--kinds", type=lambda text: text.split(","), default=KINDS, help=f"of cubins (default {','.join(KINDS)})"
    )
    judging = commands.add_parser("judge", help="print the verdicts on results")
    judging.add_argument("file", type=Path, nargs="?", default=RESULTS)
    probing = commands.add_parser("probed", help="count which kernels of libraries get a probe's code")
    probing.add_argument("file", type=Path, nargs="+")
    probing.add_argument("--most", type=int, default=1 << 20, help="kernels of each cubin (default all)")
    chosen = (PROBED, SUMMED, LOGGED)
    probing.add_argument("--probe", choices=chosen, default=PROBED, help=f"which one (default {PROBED})")
    adding = commands.add_parser("sums", help="compare gmem_bytes of machine code and of PTX on this GPU")
    adding.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    if options.command == "record":
        if not set(options.kinds) <= set(KINDS):
            parser.error(f"--kinds {','.join(options.kinds)}: not of {', '.join(KINDS)}")
        return record(options.out, options.limit, options.kinds)
    if options.command == "probed":
        return probe_all(options.file, options.most, options.probe)
    if options.command == "sums":
        from bench.machine_code_sums import record_sums

        return record_sums(options.out)
    return judge_files([options.file], "bench.machine_code record --out FILE", _FIGURES, say)


if __name__ == "__main__":
    sys.exit(main())
