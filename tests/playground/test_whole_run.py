"""Maps per run: one result of all launches, which is there while the program runs, and when it was killed."""

from __future__ import annotations

import importlib.util
import json
import math
import platform
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.results import FRAME, FRAME_MAGIC
from neutrino.errors import TraceError
from neutrino.resources import tool_path
from neutrino.tracing import Trace, find_traces

from .conftest import Run

pytestmark = pytest.mark.usefixtures("device")

LAUNCHES = 12
PROGRAM = """
import ctypes, os, pathlib, signal, sys
vector = ctypes.CDLL(sys.argv[1])
n, launches = 512, int(sys.argv[2])
x, y = (ctypes.c_float * n)(), (ctypes.c_float * n)()
for launch in range(launches):
    size = 64 if sys.argv[3:] else n - 32 * launch
    assert vector.vector_saxpy(size, ctypes.c_float(2), x, y) == 0
    # What has been copied back is in the file soon.
    if sys.argv[3:] and list(pathlib.Path("trace").glob("*/result/*.run")):
        os.kill(os.getpid(), signal.SIGKILL)
"""
MAPS = """
from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", type="sum", per="run")
class All:
    bytes: nl.u64
    count: nl.u64

@Map(level="thread", type="sum")
class Each:
    bytes: nl.u64
    count: nl.u64

@Map(level="thread", type="histogram", per="run", edges=[100, 200])
class Values:
    value: nl.u32

@Map(level="thread", type="array", cap=CAP)
class Rows:
    value: nl.u64

@Map(level="thread", type="max", per="run")
class Most:
    value: nl.u32
    zero: nl.u64

@Map(level="block", type="avg", per="run")
class Mean:
    value: nl.s64

@probe(pos="ld.global", level="thread", before=True)
def loads():
    x = nl.tid.x + nl.u32(nl.addr & 3)
    All.save(nl.bytes, 1)
    Each.save(nl.bytes, 1)
    Values.save(x)
    Rows.save(nl.u64(x))
    Most.save(x, 0)

@probe(pos="kernel", level="block", before=True)
def blocks():
    Mean.save(nl.s64(nl.ctaid.x) - 1)
"""


ALONE = """
from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", type="sum", per="run")
class All:
    count: nl.u64

@probe(pos="ld.global", level="thread", before=True)
def loads():
    All.save(1)
"""


def run_program(run: Run, folder: Path, demo: Path, probes: str, launches: int, *more: str) -> tuple[int, Path]:
    """Run the program with probes. Returns its exit status and the trace."""
    (folder / "p.py").write_text(probes)
    (folder / "program.py").write_text(PROGRAM)
    done = run(
        "run", "--device", "embedded", "-q", "--max-device-memory", "128M", "-p", "./p.py",
        sys.executable, "program.py", demo / "libvector.so", str(launches), *more,
    )  # fmt: skip
    (trace,) = find_traces(folder / "trace")
    return done.returncode, trace


# With room for many rows the data of a launch are copied in pieces.
@pytest.mark.parametrize(("cap", "launches"), [(2, LAUNCHES), (2600, 3)])
def test_the_run_has_what_all_launches_have(
    run: Run, demo: Path, tmp_path: Path, cap: int, launches: int, capsys: pytest.CaptureFixture[str]
) -> None:
    status, path = run_program(run, tmp_path, demo, MAPS.replace("CAP", str(cap)), launches)
    assert status == 0
    (kernel,) = [item for item in Trace(path).kernels if item.name == "saxpy"]
    views = [launch.maps for launch in kernel.launches()]
    assert [sorted(maps) for maps in views] == [["Each", "Rows"]] * launches
    whole = kernel.whole_run
    assert whole.launches == launches
    assert (len(views[0]["Rows"].records.tobytes()) > 8 << 20) == (cap > 2)
    each = [maps["Each"].total() for maps in views]
    assert len({row["count"] for row in each}) == launches
    assert whole.maps["All"].total() == {name: sum(row[name] for row in each) for name in ("bytes", "count")}
    rows = np.concatenate([maps["Rows"].valid()["value"] for maps in views])
    assert len(rows) == sum(row["count"] for row in each)
    edges = ((0, 100), (100, 200), (200, 1 << 32))
    buckets = [int(np.count_nonzero((rows >= low) & (rows < high))) for low, high in edges]
    assert whole.maps["Values"].valid()["count"].tolist() == buckets
    assert buckets[1]
    assert whole.maps["Most"].valid().tolist() == [(int(rows.max()), 0)]
    grids = [int(record["grid"][0]) for record in kernel.records]
    total, blocks = sum(sum(range(-1, grid - 1)) for grid in grids), sum(grids)
    assert whole.maps["Mean"].valid().tolist() == [(blocks, total, total / blocks)]

    # read.py, and the report.
    spec = importlib.util.spec_from_file_location("read_script", tool_path("read.py"))
    assert spec is not None
    assert spec.loader is not None
    read = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(read)
    header, sections, records = read.parse_run(path / "result" / f"{kernel.id}.run")
    assert (header["name"], header["launches"]) == ("saxpy", launches)
    assert [section["name"] for section in sections] == ["All", "Values", "Most", "Mean"]
    for name, view in whole.maps.items():
        assert np.atleast_1d(records[name]).tolist() == view.valid().tolist()
    assert list(read.parse(path / "result" / f"{kernel.id}.bin")[2]) == ["Each", "Rows"]
    read._print_summary(path / "result" / f"{kernel.id}.run", None)
    assert f"saxpy, {launches} launches in the results of the run\n  All (sum, thread): 1" in capsys.readouterr().out
    (document,) = json.loads(run("report", "trace", "--json").stdout)["traces"]
    maps = {entry["name"]: entry for entry in document["kernels"][0]["maps"]}
    assert maps["All"]["records"] == maps["Each"]["records"] == launches
    assert [field["total"] for field in maps["All"]["fields"]] == [field["total"] for field in maps["Each"]["fields"]]
    assert f"All: {launches} launches of a sum per run" in run("report", "trace").stdout


FLOATS = """
[map.Total]
type = "sum"
level = "thread"
per = "run"
data = { value = "f32", twice = "f64" }
[map.Mean]
type = "avg"
level = "thread"
per = "run"
data = { value = "f32" }
[probe.loads]
position = "ld.global.f32"
level = "thread"
after = '''
.reg .f64 %two; cvt.f64.f32 %two, OUT; add.rn.f64 %two, %two, %two;
SAVE [ Total ] { OUT, %two };
SAVE [ Mean ] { OUT };
'''
"""
# Rounds upwards, as its threads do, and those that they start.
ROUNDING = """
import ctypes, sys
assert ctypes.CDLL("libm.so.6").fesetround(0x800) == 0
vector = ctypes.CDLL(sys.argv[1])
x, y = (ctypes.c_float * 64)(), (ctypes.c_float * 64)()
for number in map(float, sys.argv[2:]):
    x[5], y[:] = number, [0] * 64
    assert vector.vector_saxpy(64, ctypes.c_float(2), x, y) == 0
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of a rounding mode")
@pytest.mark.parametrize(
    "numbers",
    [
        # Of which each sum of two is rounded.
        (2.0**80, 1.25, -(2.0**80), 2.0**-140, 3.5),
        (2.0**53, 1.0), (2.0**53, 1.0, 2.0**-30), (-(2.0**53), -1.0, -(2.0**-30)),
        (1.0, math.inf, -3.0), (math.inf, 2.0, -math.inf, 1.0), (0.0, math.nan),
        (1.5, 2.0**-149, -1.5),
    ],
)  # fmt: skip
def test_floats_are_added_up_as_if_at_once(
    run: Run, demo: Path, tmp_path: Path, numbers: tuple[float, ...]
) -> None:  # fmt: skip
    """The sum over the launches is the exact one, rounded once."""
    (tmp_path / "p.toml").write_text(FLOATS)
    (tmp_path / "program.py").write_text(ROUNDING)
    done = run(
        "run", "--device", "embedded", "-q", "-p", "./p.toml",
        sys.executable, "program.py", demo / "libvector.so", *map(repr, numbers),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = find_traces(tmp_path / "trace")
    (kernel,) = [item for item in Trace(path).kernels if item.name == "saxpy"]
    whole = kernel.whole_run
    assert whole.launches == len(numbers)
    (total,), (mean,) = (whole.maps[name].valid().tolist() for name in ("Total", "Mean"))
    try:
        exact = math.fsum(numbers)
    except ValueError:
        # Infinities of both signs.
        exact = math.nan
    count = 2 * 64 * len(numbers)
    wanted = np.array([exact, 2 * exact, count, exact, exact / count])
    np.testing.assert_array_equal(np.array([*total, *mean]), wanted)


def test_a_killed_run_is_there(run: Run, demo: Path, tmp_path: Path) -> None:
    """Of the launches whose data came back. What is left of a launch in its own file is the header of a frame."""
    status, path = run_program(run, tmp_path, demo, ALONE, 20_000, "killed")
    assert status in (-signal.SIGKILL, 128 + signal.SIGKILL)
    trace = Trace(path)
    assert not trace.complete
    (kernel,) = [item for item in trace.kernels if item.name == "saxpy"]
    launches = kernel.whole_run.launches
    assert launches > 0
    assert kernel.whole_run.maps["All"].total() == {"count": launches * 2 * 64}
    assert all(not launch.maps for launch in kernel.launches())
    frames = (path / "result" / f"{kernel.id}.bin").read_bytes()
    assert len(frames) == 128 + frames.count(FRAME_MAGIC) * FRAME.size
    # What is damaged is named.
    file = path / "result" / f"{kernel.id}.run"
    data = file.read_bytes()
    for damaged in (data[:-1], data.replace(b"NTFRAME", b"NTFRAMF"), data[:100]):
        file.write_bytes(damaged)
        (kernel,) = [item for item in Trace(path).kernels if item.name == "saxpy"]
        with pytest.raises(TraceError, match=r"\.run: "):
            _ = kernel.whole_run
