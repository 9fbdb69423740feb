"""Runs in which a tool has loaded a library into each process, as ``compute-sanitizer neutrino …`` does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.run.clean_process import clean, is_injected
from neutrino.tracing import Trace
from tests.example import build_example

from .conftest import compile_c

ROOT = Path(__file__).parents[2]
TRACKING = "NVIDIA-PROCESS-TRACKING-CONFIGURATION"


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a stand-in for such a tool."""
    library = tmp_path_factory.mktemp("tool") / "libtree_tool.so"
    compile_c(library, "-shared", "-fPIC", str(Path(__file__).parent / "programs" / "tree_tool.c"))
    return library


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of ``examples/embedded``."""
    return build_example(tmp_path_factory.mktemp("program"))


def run(program: Path, home: Path, variables: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    """Probe the program with an empty cache."""
    for name in ("runtime", "tmp"):
        (home / name).mkdir(parents=True, mode=0o700)
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(home / "cache"), "TMPDIR": str(home / "tmp"),
        "XDG_RUNTIME_DIR": str(home / "runtime"), **variables,
    }  # fmt: skip
    command = [sys.executable, "-m", "neutrino", "--device", "embedded", "--tracedir", str(home / "trace"), *options]
    done = subprocess.run(
        [*command, "-p", "gmem_bytes", str(program)], env=environment, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("y[6] = 37, sum of y = 77806\n", 0), done.stderr
    return done


def test_the_stand_in_ends_what_closes_its_descriptors(tool: Path) -> None:
    script = "import os; os.closerange(3, 100); os.fork()"
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "LD_PRELOAD": str(tool)}, check=False)
    assert done.returncode == 255
    # It is loaded into what is executed, whatever the environment says.
    script = "import os; os.execve('/bin/sh', ['sh', '-c', 'echo $LD_PRELOAD'], {})"
    done_ = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "LD_PRELOAD": str(tool)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done_.stdout == f"{tool}\n"


@pytest.mark.parametrize("hides", [False, True])
def test_twins_are_made_without_the_tool(tool: Path, program: Path, tmp_path: Path, hides: bool) -> None:
    variables = {"LD_PRELOAD": str(tool)} | ({"TREE_TOOL_HIDES": "1", TRACKING: "uid: 1"} if hides else {})
    done = run(program, tmp_path, variables)
    assert "4 of 4 launches probed (100 %), 2 of 2 kernels" in done.stderr
    (path,) = (tmp_path / "trace").iterdir()
    (saxpy,) = (kernel for kernel in Trace(path).kernels if kernel.name == "saxpy")
    assert [int(launch.maps["GmemBytes"].total()["load"]) for launch in saxpy.launches()] == [32768] * 3


def test_a_helper_that_has_ended_is_named(program: Path, tmp_path: Path) -> None:
    # As with a tool that is not known: the helper ends at its first fork.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, neutrino.run.listener as one\none.start_run_maker = lambda *_: os._exit(1)\n"
    )
    done = run(program, tmp_path, {"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert "not probed: 4 helper (the helper has ended before it was asked); see neutrino-report" in done.stderr
    (path,) = (tmp_path / "trace").iterdir()
    assert {kernel.detail for kernel in Trace(path).kernels} == {"the helper has ended before it was asked"}


def test_variables_of_tools() -> None:
    usual = {"PATH": "/bin", "NVIDIA_VISIBLE_DEVICES": "all", "NV_GPU": "0", "LD_PRELOAD": "", "CUDA_PATH": "/cuda"}
    assert not is_injected(usual)
    for name in ("LD_PRELOAD", "LD_AUDIT", TRACKING, "NV_SANITIZER_INJECTION_PORT_BASE", "CUDA_INJECTION64_PATH"):
        with_tool = {**usual, name: "x"}
        assert is_injected(with_tool)
        assert clean(with_tool) == {key: value for key, value in usual.items() if key != "LD_PRELOAD"}
