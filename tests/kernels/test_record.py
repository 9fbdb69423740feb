"""bench/device.py against a driver that computes one kernel rightly, and fails in every way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.device import Json, digest, kept_elements
from tests.kernels.cases import cases

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Json:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not installed")
    folder = tmp_path_factory.mktemp("stub")
    driver = folder / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", HERE / "stub_driver.c", "-o", driver]
    subprocess.run(command, check=True, timeout=60)
    smi = folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA Stub, 1.2.3'\n")
    smi.chmod(0o755)
    environment = {
        **os.environ, "LD_LIBRARY_PATH": str(folder), "PATH": os.pathsep.join([str(folder), os.environ["PATH"]]),
    }  # fmt: skip
    command = [sys.executable, "-m", "bench.device", "record", "--out", str(folder), "--budget", "250"]
    subprocess.run(command, check=True, cwd=HERE.parents[1], env=environment, stdout=subprocess.DEVNULL)
    return json.loads((folder / "device_h200.json").read_text())


def test_every_case_has_its_row(recorded: Json) -> None:
    assert (recorded["device"], recorded["driver"]) == ("NVIDIA Stub", "1.2.3")
    assert list(recorded["cases"]) == [case.name for case in cases()]
    (case,) = (case for case in cases() if case.name == "vecadd")
    row = recorded["cases"]["vecadd"]
    assert row["wrong"] == []
    assert row["digest"] == case.digest()
    assert row["outputs"]["2"]["sha256"] == digest(case.expected[2].array)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gcd", "exit status 9"),
        ("triton_gelu_sm_90", "CUDA_ERROR_INVALID_PTX: a word of the compiler's"),
    ],
)
def test_a_case_that_fails_stands_alone(recorded: Json, name: str, said: str) -> None:
    rows = recorded["cases"]
    assert said in rows[name]["error"]
    after = list(rows)[list(rows).index(name) + 1]
    assert "outputs" in rows[after]


def test_wrong_outputs_are_told_and_kept(recorded: Json) -> None:
    rows = recorded["cases"]
    assert "saxpy: argument 2" in rows["saxpy"]["wrong"][0]
    (case,) = (case for case in cases() if case.name == "softmax")
    kept = rows["softmax"]["outputs"]["1"]
    before = np.asarray(case.arguments[1]).reshape(-1)
    elements = kept_elements(kept, before.dtype)
    assert elements is not None
    assert np.array_equal(elements, before[:: kept["step"]])
    assert kept["step"] > 1
