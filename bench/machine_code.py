"""Do PyTorch's kernels compute the same when they are cut out of its library, and with trampolines in them?

    python3 -m bench.machine_code record --out out/machine_code_h200.json     on a machine with a GPU and PyTorch
    python3 -m bench.machine_code judge [FILE]                                the verdicts alone
    python3 -m bench.machine_code cut FILE …                                  which kernels can be cut, without a GPU
    python3 -m bench.machine_code probed FILE …                               which get block_sched's code, likewise

``record`` runs PyTorch's operators (``workloads/machine_code_ops.py``) once to see which kernels they launch, makes
four cubins of each (cut; grown by registers and a parameter; with a parameter and a trampoline at each access; with the
probe block_sched) out of ``libtorch_cuda.so``, and runs the operators again with these launched in the kernels' place.
Results are compared bit by bit; of the large operators each kernel's time is measured. Of block_sched there must be a
record for each warp, with a multiprocessor that there is, and cycles that the launch had time for. A process that dies
is started again after the operator at which it died.
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
from neutrino.sass.twin.probed import probed_twin
from neutrino.sass.twin.trampolines import identity_twin, instruction_words, write_trampolines
from neutrino.toolchain.tool_choice import find_assembler

Json = Any

RESULTS = ROOT / "bench" / "results" / "machine_code_h200.json"
SHIM = ROOT / "bench" / "workloads" / "machine_code_launches.c"
PROGRAM = ROOT / "bench" / "workloads" / "machine_code_ops.py"
PROBED = "block_sched"
BEFORE = ("cut", "grown", "identity")
"""Kinds of cubins of results that do not say which."""
KINDS = (*BEFORE, PROBED)
MODES = ("again", *KINDS)
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
_FIGURES = ("operators", "kernels", "results", "made", "left", "died")


def record(out: Path, limit: float) -> int:
    """Run everything for at most ``limit`` seconds, write the results, print the verdicts, return the exit status."""
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
        made, left = make_twins(library, set(names), str(head.get("arch", "sm_90")), folder)
        index = folder / "kernels.tsv"
        index.write_text("".join("\t".join([name, *map(str, row)]) + "\n" for name, row in made.items()))
        print(f"{len(made)} kernels cut, {time.monotonic() - start:.0f} s", flush=True)
        _, rows = _operators(shim, "compare", [str(index)], start + limit, died)
        results = {
            **{name: head.get(name) for name in ("device", "torch", "operators")},
            "kinds": KINDS, "kernels": names, "made": sorted(made), "left": left, "died": died,
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
            found["times"] = {one(name): time_ for name, time_ in found["times"].items()}
            found["records"] = {one(name): counts for name, counts in found["records"].items()}
    left = {one(name): reason for name, reason in results["left"].items()}
    return {**results, "made": [one(name) for name in results["made"]], "left": left}


def _short(row: Json) -> Json:
    """A row of the program's, with launches counted by kernel, the shortest time of each in µs, and of probed ones the
    numbers of warps, records, odd records, and launches that were too short for what a warp recorded."""
    modes = {}
    for mode, found in row["modes"].items():
        counts: Counter[str] = Counter()
        times: dict[str, float] = {}
        records: dict[str, list[int]] = {}
        for name, how, milliseconds, *recorded in found["launches"]:
            counts[f"{how} {name}"] += 1
            if recorded:
                warps, written, odd, longest = map(int, recorded)
                is_long = float(milliseconds) and longest > float(milliseconds) * FASTEST_CLOCK + SLACK
                so_far = records.setdefault(name, [0, 0, 0, 0])
                records[name] = [a + b for a, b in zip(so_far, (warps, written, odd, int(is_long)), strict=True)]
            if row["large"] and float(milliseconds):
                times[name] = min(times.get(name, 1e9), round(1000 * float(milliseconds), 2))
        modes[mode] = {"same": found["same"], "launches": dict(counts), "times": times, "records": records}
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
    library: Path, names: set[str], arch: str, folder: Path
) -> tuple[dict[str, tuple[int | str, ...]], dict[str, str]]:
    """Make the cubins of these kernels. Returns the number of parameters and a file of each kind by name, and the
    reason of each kernel that is left alone."""
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
            pool.submit(_cubins_of, bytes(data), wanted, str(folder), number)
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


def _cubins_of(data: bytes, wanted: set[str], folder: str, number: int) -> dict[str, _Made]:
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
    """Return a cut cubin as it is, grown, with trampolines, or with block_sched's code.

    Raises MachineCodeError for what it cannot have.
    """
    if kind == "cut":
        return cut
    if kind == "identity":
        return identity_twin(cut, name, file, parameter=PARAMETER).data
    if kind == PROBED:
        return probed_twin(cut, name, file, probe_code().at).data
    longer, _ = write_trampolines(instruction_words(code_of(cut, name, file)), [])
    registers = read_cubin(cut, file).kernels[name].registers + REGISTERS
    return grow(cut, Growth(longer, registers, PARAMETER), file).data


@functools.cache
def probe_code() -> ProbeCode:
    """The code of block_sched."""
    return ProbeCode(load_probes([PROBED]), "sm_90", find_assembler())


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


def time_ratios(results: Json, mode: str) -> list[tuple[float, float, str]]:
    """Return of each kernel of 50 µs and more of the large operators: time in a mode over its own, own µs, operator."""
    ratios = []
    for row in results["results"]:
        for name, own in row["modes"].get("own", {}).get("times", {}).items():
            time_ = row["modes"].get(mode, {}).get("times", {}).get(name)
            if own >= LONG_US and time_ is not None and f"twin {name}" in row["modes"][mode]["launches"]:
                ratios.append((time_ / own, own, row["name"]))
    return sorted(ratios)


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
        good &= holds
        print(f"{'ok    ' if holds else 'missed'} {mode:8} {_plural(len(ran), 'kernel')} with the same bits, "
              f"wrong: {', '.join(wrong) or 'none'}; {times}")  # fmt: skip
    return 0 if good else 1


def cut_all(paths: Iterable[Path]) -> int:
    """Cut every sm_90 kernel of libraries, and print how many can be, and why not the others."""
    cut: Counter[str] = Counter()
    for path in paths:
        for container in read_file(path):
            for image in container.images:
                if image.kind is ImageKind.CUBIN and image.arch in ("sm_90", "sm_90a"):
                    cut.update(_reasons(bytes(image.data)))
    for reason, count in cut.most_common():
        print(f"{count:6} {reason}")
    return 0


def _reasons(data: bytes) -> Iterator[str]:
    """Yield of each kernel of a cubin "cut", or why it is left alone."""
    cutter = Cutter(data, "cubin")
    for kernel in cutter.kernels:
        try:
            cutter.cut(kernel)
            yield "cut"
        except MachineCodeError as error:
            yield re.sub(r"(the variable) _\w+", r"\1 …", error.reason)


def probe_all(paths: Iterable[Path], most: int) -> int:
    """Make a twin with block_sched of up to so many sm_90 kernels of each cubin of libraries; print how many there are,
    why not the others, and the CPU time of one."""
    found: Counter[str] = Counter()
    milliseconds: list[float] = []
    # Not counted: the code is assembled once.
    for offset in (0, 8):
        probe_code().at(offset)
    for path in paths:
        for container in read_file(path):
            for image in container.images:
                if image.kind is not ImageKind.CUBIN or image.arch not in ("sm_90", "sm_90a"):
                    continue
                cutter = Cutter(bytes(image.data), "cubin")
                for kernel in sorted(cutter.kernels)[:most]:
                    reason, spent = _probed(cutter, kernel)
                    found[reason] += 1
                    if not reason:
                        milliseconds.append(spent)
    for reason, count in found.most_common():
        print(f"{count:6} {reason or 'probed'}")
    if milliseconds:
        print(f"CPU time of a twin: {statistics.median(milliseconds):.1f} ms (median), {max(milliseconds):.1f} at most")
    return 0


def _probed(cutter: Cutter, kernel: str) -> tuple[str, float]:
    """Return why a kernel cannot be probed, "" if it can, and the milliseconds of CPU time that its twin took."""
    try:
        cut = cutter.cut(kernel)
        start = time.process_time()
        probed_twin(cut, kernel, "cubin", probe_code().at)
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
    judging = commands.add_parser("judge", help="print the verdicts on results")
    judging.add_argument("file", type=Path, nargs="?", default=RESULTS)
    cutting = commands.add_parser("cut", help="count which kernels of libraries can be cut")
    cutting.add_argument("file", type=Path, nargs="+")
    probing = commands.add_parser("probed", help="count which kernels of libraries get block_sched's code")
    probing.add_argument("file", type=Path, nargs="+")
    probing.add_argument("--most", type=int, default=1 << 20, help="kernels of each cubin (default all)")
    options = parser.parse_args(argv)
    if options.command == "record":
        return record(options.out, options.limit)
    if options.command == "probed":
        return probe_all(options.file, options.most)
    if options.command == "cut":
        return cut_all(options.file)
    return judge_files([options.file], "bench.machine_code record --out FILE", _FIGURES, say)


if __name__ == "__main__":
    sys.exit(main())
