"""``neutrino.install`` and ``neutrino.trace`` in processes of their own, on the embedded device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

import neutrino
from neutrino.errors import NeutrinoError
from neutrino.tracing.memory_usage import memory_usage
from neutrino.tracing.trace import Trace
from tests.cli.pages import ROOT, Folder

_START = """
import ctypes, json, threading
import neutrino
def load():
    return ctypes.CDLL("./libvector.so")
numbers = (ctypes.c_float * 1000)(*range(1000))
y = (ctypes.c_float * 1000)()
total = ctypes.c_float()
def saxpy(vector):
    vector.vector_saxpy(1000, ctypes.c_float(2), numbers, y)
def sums(vector):
    vector.vector_sum(1000, numbers, ctypes.byref(total))
def say(**values):
    print(json.dumps(values))
"""

_NEUTRINO = (sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "-q")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("session"), tmp_path_factory.getbasetemp() / "cache")
    folder.build()
    return folder


def _run(folder: Folder, text: str, command: tuple[str, ...] = (), **environment: str) -> list[Any]:
    """The lines that a script prints, each of JSON. command: what runs it, by default Python alone."""
    (folder.path / "script.py").write_text(_START + text)
    done = subprocess.run(
        [*command, sys.executable, "script.py"], cwd=folder.path, text=True, capture_output=True, timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder.path / "cache"), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_records_are_those_of_the_command(folder: Folder) -> None:
    block = """
with neutrino.trace(OPTIONS) as t:
    saxpy(vector)
    sums(vector)
say(total=total.value, y=y[6], coverage=[t.coverage.probed, t.coverage.launches], is_written=t.is_written,
    maps={kernel.name: kernel.maps["GmemBytes"].valid().tolist() for kernel in t.kernels})
"""
    installed = 'neutrino.install("gmem_bytes", device="embedded", quiet=True, tracedir="a")\nvector = load()\n'
    command = (*_NEUTRINO, "-p", "gmem_bytes", "--tracedir", "b")
    found = [
        _run(folder, installed + block.replace("OPTIONS", "")),
        _run(folder, "vector = load()\n" + block.replace("OPTIONS", '"gmem_bytes", device="embedded", quiet=True')),
        _run(folder, "vector = load()\n" + block.replace("OPTIONS", ""), command),
    ]
    assert found[0] == found[1] == found[2]
    (one,) = found[0]
    # Each of 1,000 threads loads and stores elements of 4 bytes; the sum is added by atomics or stored once.
    assert one["total"] == sum(range(1000))
    assert one["coverage"] == [2, 2]
    assert one["is_written"]
    assert {name: rows[0][0] for name, rows in one["maps"].items()} == {"saxpy": 8000, "sum": 4000}


def test_blocks_have_their_own_launches(folder: Folder) -> None:
    (counts, shown, several) = _run(
        folder,
        """
neutrino.install("gmem_bytes", device="embedded", quiet=True)
vector = load()
saxpy(vector)
with neutrino.trace() as outer:
    saxpy(vector)
    with neutrino.trace() as inner:
        saxpy(vector)
        saxpy(vector)
    began, launched, found = threading.Event(), threading.Event(), []
    def record():
        with neutrino.trace() as t:
            began.set()
            launched.wait()
        found.append(len(t.launches))
    thread = threading.Thread(target=record)
    thread.start()
    began.wait()
    sums(vector)
    launched.set()
    thread.join()
with neutrino.trace(kernels="sum") as empty:
    saxpy(vector)
blocks = (outer, inner, empty)
say(counts=[len(t.launches) for t in blocks], probed=[t.coverage.probed for t in blocks], found=found)
say(text=[repr(inner.kernels), repr(empty.kernels)], dir=neutrino.trace_dir() == outer.trace.path)
try:
    outer.maps
except neutrino.NeutrinoError as error:
    say(error=str(error))
""",
    )
    assert counts == {"counts": [4, 2, 0], "probed": [4, 2, 1], "found": [1]}
    assert shown == {"text": ["<1 kernel: saxpy>", "<0 kernels>"], "dir": True}
    assert several == {"error": "several kernels: saxpy, sum; write t.kernels[NAME].maps, or give trace() a pattern"}


@pytest.mark.parametrize("installs", [True, False])
def test_only_blocks_are_recorded(folder: Folder, installs: bool) -> None:
    # trace() alone installs so.
    (found,) = _run(
        folder,
        f"""
if {installs}:
    neutrino.install("gmem_bytes", device="embedded", quiet=True, only_blocks=True)
    vector = load()
    saxpy(vector)
with neutrino.trace("gmem_bytes", device="embedded") if not {installs} else neutrino.trace() as t:
    vector = load()
    saxpy(vector)
    with neutrino.trace():
        saxpy(vector)
    saxpy(vector)
saxpy(vector)
with neutrino.trace() as u:
    sums(vector)
every = u.trace.coverage
say(launches=[len(t.launches), len(u.launches)], left_out=every.left_out, probed=every.probed,
    all=[t.coverage.probed, t.coverage.launches, t.coverage.left_out], y=y[6])
""",
    )
    outside = 1 + installs
    assert found == {
        "launches": [3, 1], "left_out": outside, "probed": 4, "all": [3, 3, 0], "y": 12.0 * (3 + outside),
    }  # fmt: skip


def test_a_choice_of_launches(folder: Folder) -> None:
    (found,) = _run(
        folder,
        """
neutrino.install("gmem_bytes", device="embedded", quiet=True, launches=(2, 9), every=3)
vector = load()
with neutrino.trace() as t:
    for _ in range(10):
        saxpy(vector)
    sums(vector)
say(launches=len(t.launches), coverage=[t.coverage.probed, t.coverage.launches, t.coverage.left_out], y=y[6])
""",
    )
    # The numbers 3 and 6 of saxpy.
    assert found == {"launches": 2, "coverage": [2, 2, 9], "y": 120.0}


@pytest.mark.parametrize("option", ["wait=False", "hot=3", "hot=11"])
def test_launches_do_not_wait(folder: Folder, option: str) -> None:
    (found,) = _run(
        folder,
        f"""
neutrino.install("gmem_bytes", device="embedded", quiet=True, {option})
vector = load()
with neutrino.trace() as t:
    for _ in range(10):
        saxpy(vector)
left = sum(t.coverage.not_probed.values())
words = [reason.word for reason in t.coverage.not_probed]
say(words=words, sum=left + t.coverage.probed, probed=len(t.launches), y=y[6])
""",
    )
    assert found["words"] == ["not-ready"] or option == "wait=False"
    assert found["sum"] == 10
    assert found["probed"] <= {"wait=False": 10, "hot=3": 7, "hot=11": 0}[option]
    assert found["y"] == 120.0


def test_what_an_earlier_run_has_left_in_the_environment_does_not_count(folder: Folder) -> None:
    (found,) = _run(
        folder,
        """
with neutrino.trace("gmem_bytes", device="embedded", quiet=True) as t:
    vector = load()
    saxpy(vector)
    saxpy(vector)
say(launches=len(t.launches))
""",
        NEUTRINO_EVERY="2", NEUTRINO_AHEAD="1",
    )  # fmt: skip
    assert found == {"launches": 2}


def test_a_process_that_has_used_its_gpu(folder: Folder) -> None:
    (late,) = _run(
        folder,
        f"KERNELS = {str(ROOT / 'examples/embedded/kernels.ptx')!r}\n" + """
import os
from neutrino.loader.embedded_driver import EmbeddedDevice, stand_in
os.environ.update(EmbeddedDevice().environment(dict(os.environ)))
driver = ctypes.CDLL(str(stand_in()), ctypes.RTLD_GLOBAL)
vector = load()
saxpy(vector)
with neutrino.trace("gmem_bytes", device="embedded", quiet=True) as t:
    saxpy(vector)
    text = open(KERNELS, "rb").read()
    module = ctypes.c_void_p()
    function = ctypes.c_void_p()
    status = [driver.cuModuleLoadData(ctypes.byref(module), text)]
    status.append(driver.cuModuleGetFunction(ctypes.byref(function), module, b"sum"))
say(status=status, y=y[6], kernels=[kernel.name for kernel in t.trace.kernels], reason=t.trace.kernels[0].reason.word,
    coverage=[t.coverage.probed, t.coverage.launches])
""",
    )
    # What it had looked up runs as it is, unseen; what it loads afterwards has a twin.
    assert late == {"status": [0, 0], "y": 24.0, "kernels": ["sum"], "reason": "probed", "coverage": [0, 0]}


REFUSED = (
    ("neutrino.install()", "no probes: name some, as install('gmem_bytes')"),
    ("with neutrino.trace(): pass", "no probes: give trace() some, or call install() before"),
    ('neutrino.install("gmem_bytes", every=0)',
     "every=0: write an integer from 1 on"),
    ('neutrino.install("gmem_bytes", device="embedded", devices=[64])',
     "devices=64: write an integer from 0 to 63"),
    ('neutrino.install("gmem_bytes", device="embedded", launches="1:2")',
     "launches='1:2': write two numbers, as (10, 20), or None as the second"),
    ('neutrino.install("gmem_bytes", device="embedded", duration=float("nan"))',
     "duration=nan: write a number of seconds"),
    ('neutrino.install("gmem_bytes", device="embedded", max_trace_size=1)',
     "max_trace_size=1: write an integer from 4194304 to 1099511627776"),
    ('neutrino.install("gmem_bytes", launches=(5, 9), every=10)',
     "--launches 5:9 --every 10: no launch has a number that both choose"),
    ('neutrino.install("gmem_bytes", device="other")',
     "device='other': there is no device of that name; use embedded, or leave device out to use the machine's "
     "GPU, or a number to probe only that GPU"),
    ('neutrino.install("gmem_bytes", device=1.5)', "device=1.5: write 'embedded', or the number of a GPU"),
    ('neutrino.install("gmem_bytes", device=0, devices=[1])', "device=0 and devices=[1]: give one of the two"),
    ('neutrino.install("gmem_bytes", device="embedded", tracedir=5)', "tracedir=5: write the path of a folder"),
    ('neutrino.install("gmem_bytes", device=64)', "devices=64: write an integer from 0 to 63"),
    ('with neutrino.trace("gmem_bytes", device="embedded", quite=True): pass',
     "trace() has no option quite; did you mean quiet?"),
    ('neutrino.install("gmem_bytes", wat=True)', "install() has no option wat; did you mean wait?"),
    ('neutrino.trace("gmem_bytes", device="embedded").kernels',
     "nothing is recorded yet: write with neutrino.trace(…) as t: and after it t.kernels"),
    ('neutrino.trace("ld.global").__enter__()',
     "ld.global: no such shipped probe; a probe in one line says what it does: 'ld.global { @n = count() }'"),
    ('neutrino.trace("gmem").__enter__()',
     "gmem: no such shipped probe; did you mean gmem_bytes? neutrino-probe list has them all, and a file's name needs "
     "a '/' or ends in .toml or .py"),
    ('neutrino.install("gmem_bytes", device="embedded", tracedir="/proc/x")',
     "--tracedir /proc/x: no trace can be written there: No such file or directory"),
    ("neutrino.install(None)", "None is no probe: give names, paths, or functions with @nl.probe"),
    ('neutrino.install("gmem_bytes", kernels=5)', "kernels=5: write a pattern, as 'attn*', or a list of them"),
)
"""Calls that install nothing, so that one process can make them all, and what they raise."""


def _script(text: str) -> str:
    indented = text.replace("\n", "\n    ")
    return f"try:\n    {indented}\nexcept neutrino.NeutrinoError as error:\n    say(error=str(error))\n"


def test_wrong_arguments_install_nothing(folder: Folder) -> None:
    said = _run(folder, "".join(_script(text) for text, _ in REFUSED))
    assert said == [{"error": error} for _, error in REFUSED]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('neutrino.install("gmem_bytes", device="embedded", wait=False); neutrino.install("block_sched")',
         "this process has other probes already: with wait=False, hot or memusage they are chosen once"),
        ('neutrino.install("gmem_bytes", device="embedded", every=3)\n'
         'neutrino.install("gmem_bytes")\n'
         'neutrino.install("gmem_bytes", device="embedded", every=4, hot=2)',
         "this process is probed with other hot, launches, every, devices, duration or ranges already; options are "
         "chosen once, by install()"),
        ('with neutrino.trace("gmem_bytes", device="embedded") as t: t.kernels',
         "the block has not ended yet, and its launches may be running: read it after the with block"),
        ('with neutrino.trace("gmem_bytes", device="embedded") as t: pass\nt.kernels',
         "no trace: nothing was launched inside the block, or its GPU code was loaded before the probes were there: "
         "put the calls inside the block, and install() before the framework's import"),
    ],
)  # fmt: skip
def test_errors(folder: Folder, text: str, error: str) -> None:
    assert _run(folder, _script(text)) == [{"error": error}]


def test_the_block_reads_its_records_after_an_error(folder: Folder) -> None:
    (found,) = _run(
        folder,
        """
vector = load()
try:
    with neutrino.trace("gmem_bytes", device="embedded", quiet=True) as t:
        saxpy(vector)
        raise KeyError("x")
except KeyError:
    say(launches=len(t.launches))
""",
    )
    assert found == {"launches": 1}


def test_installing_is_of_no_use_under_the_command(folder: Folder) -> None:
    command = (*_NEUTRINO, "-p", "gmem_bytes")
    text = """
try:
    neutrino.install("block_sched")
except neutrino.NeutrinoError as error:
    say(error=str(error))
"""
    (found,) = _run(folder, text, command)
    assert found["error"].startswith("this process runs under neutrino")


def test_only_measuring(folder: Folder) -> None:
    (found,) = _run(
        folder,
        """
neutrino.install("gmem_bytes", device="embedded", quiet=True, tracedir="measured", memusage=True)
vector = load()
saxpy(vector)
sums(vector)
say(y=y[6], total=total.value, trace=str(neutrino.trace_dir()))
""",
    )
    assert (found["y"], found["total"]) == (12, sum(range(1000)))
    usage = memory_usage(Trace(found["trace"]))
    assert {kernel.kernel.name: kernel.launches for kernel in usage.kernels} == {"saxpy": 1, "sum": 1}
    assert not list((folder.path / "measured").rglob("result/*"))
    with pytest.raises(NeutrinoError, match="leave out wait=False and hot"):
        neutrino.install("gmem_bytes", memusage=True, hot=3)
