"""--range with Python programs: ranges by the package nvtx, and by ``neutrino.range``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import neutrino
from neutrino.errors import NeutrinoError
from neutrino.run.range_choice import INJECTION
from tests.cli.pages import Folder

from .test_session import _NEUTRINO, _run, folder

__all__ = ["folder"]

_PROBED = (*_NEUTRINO, "-p", "gmem_bytes")
_SAY = """
with neutrino.trace() as t:
    work()
say(probed=t.coverage.probed, left_out=t.coverage.left_out, y=y[6])
"""
_NVTX = """
import nvtx
def work():
    saxpy(vector)
    with nvtx.annotate("step", domain="app"):
        saxpy(vector)
        with nvtx.annotate("inner"):
            saxpy(vector)
    entered, leaves = threading.Event(), threading.Event()
    def other():
        with nvtx.annotate("step", domain="app"):
            entered.set()
            leaves.wait()
    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    saxpy(vector)
    leaves.set()
    thread.join()
    started = nvtx.start_range("whole", domain="app")
    saxpy(vector)
    nvtx.end_range(started)
"""


@pytest.mark.parametrize(
    ("options", "probed"),
    [
        (("--range", "app@step"), 2), (("--range", "app@step", "--range-scope", "process"), 3),
        (("--range", "inner/"), 1), (("--range", "app@whole", "--range", "inner"), 2), (("--range", "app@whole/"), 0),
        (("--range", "*@*"), 3), (("--range", "step"), 0), ((), 5),
    ],
)  # fmt: skip
def test_ranges_of_the_package_nvtx(folder: Folder, options: tuple[str, ...], probed: int) -> None:
    (found,) = _run(folder, f"vector = load()\n{_NVTX}{_SAY}", (*_PROBED, *options))
    assert found == {"probed": probed, "left_out": 5 - probed, "y": 60.0}


@pytest.mark.parametrize(
    ("options", "probed"),
    [('ranges="app@step"', 2), ('ranges=["app@step", "inner"], range_scope="process"', 3)],
)
def test_ranges_of_a_process_that_runs(folder: Folder, options: str, probed: int) -> None:
    # A program that it starts inherits the variables, and is not probed.
    child = """
import subprocess, sys
code = '''
import ctypes, nvtx
from neutrino.loader.embedded_driver import stand_in
x, y = (ctypes.c_float * 1000)(*range(1000)), (ctypes.c_float * 1000)()
with nvtx.annotate("step", domain="app"):
    driver = ctypes.CDLL(str(stand_in()), ctypes.RTLD_GLOBAL)
    ctypes.CDLL("./libvector.so").vector_saxpy(1000, ctypes.c_float(2), x, y)
print(y[6])
'''
import os
done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
say(child=done.stdout + done.stderr, traces=len(os.listdir("children")))
"""
    installed = f'neutrino.install("gmem_bytes", device="embedded", quiet=True, tracedir="children", {options})\n'
    subprocess.run(["rm", "-rf", str(folder.path / "children")], check=True)
    found, after = _run(folder, f"{installed}vector = load()\n{_NVTX}{_SAY}{child}")
    assert found == {"probed": probed, "left_out": 5 - probed, "y": 60.0}
    assert after == {"child": "12.0\n", "traces": 1}


_OWN = """
@neutrino.range("step")
def step():
    saxpy(vector)
    with neutrino.range("inner") as inner:
        saxpy(vector)
        try:
            # Again, and left by an error.
            with inner:
                saxpy(vector)
                raise KeyError
        except KeyError:
            saxpy(vector)
def work():
    saxpy(vector)
    step()
    entered, leaves = threading.Event(), threading.Event()
    def other():
        with neutrino.range("step"):
            entered.set()
            leaves.wait()
    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    saxpy(vector)
    leaves.set()
    thread.join()
"""


@pytest.mark.parametrize(
    ("options", "probed"),
    [
        (("--range", "neutrino@step"), 4), (("--range", "neutrino@inner/"), 3), (("--range", "neutrino@*"), 4),
        (("--range", "neutrino@step", "--range-scope", "process"), 5), (("--range", "step"), 0), ((), 6),
    ],
)  # fmt: skip
def test_ranges_of_neutrino_itself(folder: Folder, options: tuple[str, ...], probed: int) -> None:
    (found,) = _run(folder, f"vector = load()\n{_OWN}{_SAY}", (*_PROBED, *options))
    assert found == {"probed": probed, "left_out": 6 - probed, "y": 72.0}


def test_ranges_of_neutrino_in_a_process_that_runs(folder: Folder) -> None:
    installed = 'neutrino.install("gmem_bytes", device="embedded", quiet=True, ranges="neutrino@inner")\n'
    # One that begins before the hook is there ends nothing of it.
    text = f"""
with neutrino.range("inner"):
    {installed}
    vector = load()
    saxpy(vector)
    with neutrino.range("inner"):
        saxpy(vector)
saxpy(vector)
{_OWN}{_SAY}
say(notes=[note for note in t.trace.notes if "range" in note])
"""
    found, notes = _run(folder, text)
    assert found == {"probed": 3, "left_out": 3, "y": 9 * 12.0}
    assert notes == {"notes": []}


def test_ranges_where_nothing_is_probed(folder: Folder) -> None:
    (found,) = _run(folder, """
with neutrino.range("step") as marked:
    say(name=repr(marked), imports="neutrino.run.own_process" in __import__("sys").modules)
""")
    assert found == {"name": "<range step>", "imports": False}


def test_another_tool_that_takes_nvtx(folder: Folder) -> None:
    command = [*_PROBED, "--range", "step", "true"]
    done = subprocess.run(
        command, cwd=folder.path, capture_output=True, text=True, check=False,
        env={"XDG_CACHE_HOME": str(folder.path / "cache"), "PATH": "/usr/bin:/bin", INJECTION: "/opt/tool.so",
             "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == (
        f"neutrino: --range: {INJECTION} is /opt/tool.so, so another tool gets the calls of NVTX, and nothing would be "
        "probed; unset it, or run without --range\n"
    )


def test_what_an_outer_run_has_set_is_no_tool_of_its_own(folder: Folder) -> None:
    inner = (*_PROBED, "--range", "app@step")
    (found,) = _run(folder, f"vector = load()\n{_NVTX}{_SAY}", (*_PROBED, "--range", "x", *inner))
    assert found["probed"] == 2
    # And without --range it is not set any more.
    (found,) = _run(folder, f"import os\nsay(path=os.environ.get({INJECTION!r}))", (*_PROBED, "--range", "x", *_PROBED))
    assert found == {"path": None}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--range", "a/b"), "neutrino: --range a/b: ranges within ranges (/) are not known here"),
        (("--range", ""), "neutrino: --range : that names no range"),
        (("--range-scope", "gpu"), "neutrino: argument --range-scope: invalid choice: 'gpu'"),
    ],
)
def test_ranges_that_the_command_refuses(tmp_path: Path, options: tuple[str, ...], error: str) -> None:
    done = subprocess.run(
        [*_PROBED, *options, "true"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 125
    assert done.stderr.startswith(error)


def test_a_range_has_a_name() -> None:
    with pytest.raises(NeutrinoError, match=r"range\(None\): write the range's name, a text"):
        neutrino.range(None)  # type: ignore[arg-type]
