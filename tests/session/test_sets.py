"""Several questions of one process: ``neutrino.trace`` with other probes than before, on the embedded device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neutrino.tracing.trace import Trace
from tests.cli.pages import ROOT, Folder

from .test_session import _NEUTRINO, _run, folder

__all__ = ["folder"]

QUESTIONS = ("gmem_bytes", "inst_count", "work_per_warp")
_RECORDS = """
def records(t):
    found = {}
    for kernel in t.kernels:
        found[kernel.name] = [
            [[name, view.valid().tobytes().hex()] for name, view in sorted(launch.maps.items())]
            for launch in kernel.launches
        ]
    return found
"""


def _alone(folder: Folder, probe: str, launches: str) -> Any:
    """What a process records that asks this question alone."""
    (found,) = _run(
        folder, f"""{_RECORDS}
vector = load()
with neutrino.trace("{probe}", device="embedded", quiet=True) as t:
    {launches}
say(records=records(t))
""")
    return found["records"]


def test_later_questions_are_answered_as_the_first(folder: Folder) -> None:
    launches = "saxpy(vector); sums(vector); saxpy(vector)"
    *found, total = _run(
        folder, f"""{_RECORDS}
vector = load()
for probe in {QUESTIONS} + {QUESTIONS[:1]}:
    with neutrino.trace(probe, device="embedded", quiet=True) as t:
        {launches}
    saxpy(vector)
    coverage = [t.coverage.probed, t.coverage.launches]
    say(records=records(t), coverage=coverage, sets=sorted({{k.kernel.id for k in t.kernels}}))
everything = t.trace.coverage
say(y=y[6], total=total.value, left_out=everything.left_out, probed=everything.probed, dir=str(t.trace.path))
""")  # fmt: skip
    for probe, one in zip((*QUESTIONS, QUESTIONS[0]), found, strict=True):
        assert one["coverage"] == [3, 3]
        assert one["records"] == _alone(folder, probe, launches), probe
    # The first question's twins are used again, and no kernel is of two sets.
    assert found[0]["sets"] == found[3]["sets"]
    assert len({kernel for one in found[:3] for kernel in one["sets"]}) == 6
    assert total["y"] == 12.0 * 12
    assert total["probed"] == 12
    # The last launch came after the last block, and may be counted in the trace by now.
    assert total["left_out"] in {3, 4}
    # One trace, whose sets, kernels and launches say which probes they had.
    trace = Trace(Path(total["dir"]))
    assert {kernel.id: kernel.set for kernel in trace.kernels} == {1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3}
    assert [one.number for one in trace.sets] == [1, 2, 3]
    assert [one.probes for one in trace.sets] == list(QUESTIONS)
    assert {int(record["kernel"]): int(record["set"]) for record in trace.launches if record["state"] == 2} == {
        1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3,
    }  # fmt: skip
    manifest = json.loads((trace.path / "kernel" / "3" / "manifest.json").read_text())
    assert manifest["set"] == 2
    assert "set" not in json.loads((trace.path / "kernel" / "1" / "manifest.json").read_text())
    assert (trace.path / "probe-2.toml").read_text() != (trace.path / "probe-3.toml").read_text()


def test_kernels_that_come_while_another_set_is_in_force(folder: Folder) -> None:
    """One that the first question has not seen, and one that is obtained between blocks."""
    (found,) = _run(
        folder, """
vector = load()
names = []
with neutrino.trace("gmem_bytes", device="embedded", quiet=True) as t:
    saxpy(vector)
names.append([kernel.name for kernel in t.kernels])
with neutrino.trace("inst_count") as t:
    sums(vector)
    saxpy(vector)
names.append(sorted(kernel.name for kernel in t.kernels))
with neutrino.trace("gmem_bytes") as t:
    sums(vector)
names.append([(kernel.name, kernel.maps["GmemBytes"].valid()["load"].tolist()) for kernel in t.kernels])
say(names=names, total=total.value)
""")
    assert found["names"] == [["saxpy"], ["saxpy", "sum"], [["sum", [4000]]]]
    assert found["total"] == 499500.0


def test_install_is_in_force_again_after_a_block(folder: Folder) -> None:
    (found,) = _run(
        folder, """
neutrino.install("gmem_bytes", device="embedded", quiet=True)
vector = load()
saxpy(vector)
with neutrino.trace("inst_count") as t:
    saxpy(vector)
saxpy(vector)
with neutrino.trace() as u:
    saxpy(vector)
neutrino.install("work_per_warp")
saxpy(vector)
with neutrino.trace() as v:
    saxpy(vector)
say(maps=[[sorted(kernel.launches[0].maps) for kernel in one.kernels] for one in (t, u, v)],
    launches=[len(list(kernel.launches())) for kernel in v.trace.kernels], left_out=v.trace.coverage.left_out)
""")
    assert found["maps"][:2] == [[["InstCount"]], [["GmemBytes"]]]
    assert found["maps"][2] not in found["maps"][:2]
    assert [count for count in found["launches"] if count] == [3, 1, 2]
    assert found["left_out"] == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('with neutrino.trace("inst_count"): pass', "a block with other probes is open"),
        ('neutrino.install("inst_count")', "a block with other probes is open"),
        ('neutrino.trace("gmem_bytes", every=2).__enter__()', "this process is probed with other launches, every"),
    ],
)
def test_what_is_refused(folder: Folder, text: str, error: str) -> None:
    """And the block goes on."""
    (found,) = _run(
        folder, f"""
vector = load()
with neutrino.trace("gmem_bytes", device="embedded", quiet=True) as t:
    try:
        {text}
        message = ""
    except neutrino.NeutrinoError as error:
        message = str(error)
    saxpy(vector)
say(message=message, launches=len(t.launches))
""")
    assert found["message"].startswith(error)
    assert found["launches"] == 1


def test_launches_in_other_threads_while_the_set_changes(folder: Folder) -> None:
    """Each is counted once, and recorded once with the set whose twin ran."""
    (found,) = _run(
        folder, """
neutrino.install("gmem_bytes", device="embedded", quiet=True)
vector = load()
ys = [(ctypes.c_float * 1000)() for _ in range(3)]
# The library begins once, in one thread; the others need the context, too.
saxpy(vector)
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
done = threading.Event()
counts = [0] * 3
def work(i):
    driver.cuCtxSetCurrent(context)
    while not done.is_set():
        vector.vector_saxpy(1000, ctypes.c_float(2), numbers, ys[i])
        counts[i] += 1
threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
for thread in threads:
    thread.start()
for probe in ("inst_count", "gmem_bytes", "work_per_warp", "inst_count", "gmem_bytes") * 2:
    neutrino.install(probe)
done.set()
for thread in threads:
    thread.join()
neutrino.install("gmem_bytes")
with neutrino.trace() as t:
    pass
trace = t.trace
ok = all(
    int(view.valid()["load"].sum()) == 8000
    for kernel in trace.kernels if kernel.set == 1 for launch in kernel.launches() for view in launch.maps.values())
say(counts=sum(counts), results=[y[6] for y in ys] == [12.0 * count for count in counts],
    recorded=sum(len(list(kernel.launches())) for kernel in trace.kernels), probed=trace.coverage.probed,
    launches=trace.coverage.launches, ok=ok, sets=sorted({kernel.set for kernel in trace.kernels if kernel.launches()}))
""")
    assert found["results"]
    assert found["ok"]
    assert found["launches"] == found["counts"] + 1
    assert found["recorded"] == found["probed"]
    # None of the twins was missing at any time.
    assert found["probed"] == found["counts"] + 1
    assert set(found["sets"]) <= {1, 2, 3}


def test_two_hundred_changes(folder: Folder) -> None:
    """Neither twins nor memory are made anew for a question that was asked before."""
    (found,) = _run(
        folder, """
import resource
def memory():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
neutrino.install("gmem_bytes", device="embedded", quiet=True, only_blocks=True)
vector = load()
probes = [neutrino.load_probes(name) for name in ("gmem_bytes", "inst_count", "work_per_warp")]
sizes, loads = [], []
for i in range(201):
    with neutrino.trace(probes[i % 3]) as t:
        saxpy(vector)
    if i in (20, 200):
        sizes.append(memory())
        loads.append(len(t.trace.kernels))
say(grown=sizes[1] - sizes[0], kernels=loads, probed=t.trace.coverage.probed, threads=threading.active_count())
""")
    assert found["kernels"] == [6, 6]
    assert found["probed"] == 201
    # Records of launches, and pages of the allocators.
    assert found["grown"] < 8 << 20


def test_under_the_command_probes_are_its_own(folder: Folder) -> None:
    (folder.path / "asks.py").write_text('import neutrino\nwith neutrino.trace("inst_count"):\n    pass\n')
    done = subprocess.run(
        [*_NEUTRINO, "-p", "gmem_bytes", sys.executable, "asks.py"], cwd=folder.path, capture_output=True, text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder.path / "cache"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert "its probes are those of -p" in done.stderr


def test_processes_that_make_twins_end_when_others_are_asked_for(folder: Folder) -> None:
    """And start again for what is asked again."""
    (found,) = _run(
        folder, """
import os, time
vector = load()
def makers():
    found = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and b"own_process" in open(f"/proc/{name}/cmdline", "rb").read():
                found += os.environb[b"XDG_CACHE_HOME"] in open(f"/proc/{name}/environ", "rb").read()
        except OSError:
            pass
    return found
launches = []
for number in [*range(8), 0, 1]:
    with neutrino.trace("gmem_bytes", exclude=f"no {number}", device="embedded", quiet=True) as t:
        saxpy(vector)
    launches.append([int(t.maps["GmemBytes"].valid()["load"].sum()), t.kernels[0].kernel.set])
until = time.monotonic() + 600
while makers() > 10 and time.monotonic() < until:
    time.sleep(0.1)
say(launches=launches, makers=makers())
""")
    assert found["launches"] == [[8000, number + 1] for number in [*range(8), 0, 1]]
    # Of the first set and of four others, a listener and a maker each.
    assert 0 < found["makers"] <= 10


def test_probes_in_every_form(folder: Folder) -> None:
    """A list of a name, a path and a text in one line; and a function."""
    (folder.path / "counts.py").write_text("""
import neutrino.language as nl
@nl.Map(type="sum", level="thread")
class Loads:
    n: nl.u64
@nl.probe(pos="ld.global", level="thread", before=True)
def loads():
    Loads.save(1)
""")
    (found,) = _run(
        folder, """
vector = load()
import counts
import pathlib
names = []
for probes in (["gmem_bytes", pathlib.Path("counts.py")], [["ld.global { @n = count() }"]], counts.loads):
    with neutrino.trace(probes, device="embedded", quiet=True) as t:
        saxpy(vector)
    names.append(sorted(t.maps))
say(names=names, sets=[one.probes for one in t.trace.sets], set=repr(t.trace.sets[1]))
""")
    assert found["names"] == [["GmemBytes", "Loads"], ["n"], ["Loads"]]
    assert found["sets"] == ["gmem_bytes counts.py", "ld.global { @n = count() }", "loads"]
    assert found["set"] == "<set 2: ld.global { @n = count() }>"


def test_what_a_notebook_shows_is_short(folder: Folder) -> None:
    (found,) = _run(
        folder, """
import sys, types
pandas = types.ModuleType("pandas")
class DataFrame(dict):
    pass
pandas.DataFrame = DataFrame
vector = load()
probes = neutrino.load_probes("gmem_bytes")
with neutrino.trace(probes, device="embedded", quiet=True) as t:
    saxpy(vector)
    sums(vector)
    saxpy(vector)
try:
    t.to_pandas()
except neutrino.NeutrinoError as error:
    message = str(error)
sys.modules["pandas"] = pandas
messages = []
kernel = t.kernels[0].kernel
launches = kernel.launches
view = launches[0].maps["GmemBytes"]
shown = [repr(one) for one in (probes, view, launches[0], launches, t, t.kernels[0])]
for wrong in ("view['loads']", "view.load", "view.sum()", "launches[0].grid", "t.maps_of", "launches[0].maps.Gmem"):
    try:
        eval(wrong)
    except (AttributeError, neutrino.TraceError) as error:
        messages.append(str(error))
field = view["load"].tolist()
table, rows = t.to_pandas(), view.to_pandas()
assert kernel.maps["GmemBytes"].valid().tobytes() == t.kernels["saxpy"].maps["GmemBytes"].valid().tobytes()
with neutrino.trace("ld.globl { @n = count() }"):
    saxpy(vector)
with neutrino.trace("inst_count") as other:
    saxpy(vector)
every = other.trace.kernels
named = [every["saxpy", 1].set, every["saxpy", 3].set, other.kernels["saxpy"].set]
try:
    every["saxpy"]
except neutrino.TraceError as error:
    ambiguous = str(error)
say(messages=messages, field=field, shown=shown, named=named, ambiguous=ambiguous, message=message,
    columns=list(table), kernels=table["kernel"], grids=table["grid_x"],
    load=rows["load"].tolist(), count=[len(launches), len(list(launches)), len(list(kernel.launches()))],
    numbers=[launches[-1].index, launches[1].index, [one.index for one in launches[:2]]])
""")
    assert all(text.count("\n") < 3 and len(text) < 240 for text in found["shown"])
    assert found["shown"][0].startswith("<ProbeSet of ")
    assert found["shown"][1].startswith("<map GmemBytes: ")
    assert found["shown"][1].endswith(" records of load, store, atomic, async, uncounted>")
    assert found["message"] == "pandas is not installed: pip install pandas"
    assert found["columns"][:3] == ["launch", "kernel", "grid_x"]
    assert found["kernels"] == ["saxpy", "sum", "saxpy"]
    assert found["load"] == [8000]
    assert found["count"] == [2, 2, 2]
    assert found["numbers"] == [2, 2, [0, 2]]
    assert found["named"] == [1, 3, 3]
    fields = "load, store, atomic, async, uncounted"
    for message, part in zip(
        found["messages"],
        (f"map GmemBytes has no field 'loads'; it has {fields}", f"with the fields {fields}, and to_pandas()",
         "no attribute 'sum'; the records are valid()", "write .record['grid']", "'maps_of'", "there are GmemBytes"),
        strict=True,
    ):  # fmt: skip
        assert part in message
    assert found["field"] == found["load"] == [8000]
    assert found["ambiguous"].startswith("'saxpy': 3 kernels have this name: kernels[0] of set 1, kernels[")
    assert found["ambiguous"].endswith(" of set 3; kernels['saxpy', 1] is that of set 1")


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("probes", ["inst_count", "gmem_bytes"])
def test_a_capture_outlives_a_block_that_begins_meanwhile(folder: Folder, mode: int, probes: str) -> None:
    """Whether the block is refused, as one with other probes, or not: waiting for the GPU would invalidate it."""
    (found,) = _run(
        folder, f"""
import ctypes
vector = load()
with neutrino.trace("gmem_bytes", device="embedded", quiet=True):
    saxpy(vector)
cuda = ctypes.CDLL("libcuda.so.1")
stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
results = [cuda.cuStreamCreate(ctypes.byref(stream), 1), cuda.cuStreamBeginCapture_v2(stream, {mode})]
said = ""
try:
    with neutrino.trace("{probes}"):
        pass
except neutrino.NeutrinoError as error:
    said = str(error)
results.append(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
with neutrino.trace("{probes}") as t:
    saxpy(vector)
say(results=results, said=said, probed=t.coverage.probed)
""")
    assert found["results"] == [0, 0, 0]
    assert ("a stream is being captured" in found["said"]) == (probes == "inst_count")
    assert found["probed"] == 1
