"""``neutrino --doctor`` on machines that lack something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.loader.build import compiler
from neutrino.loader.embedded_driver import stand_in


def doctor(tmp_path: Path, *arguments: str, **variables: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the exit status, and of each thing its state and text, with the remedy in the next line."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")} | variables
    result = subprocess.run(
        [sys.executable, "-m", "neutrino.cli.run", "--doctor", *arguments],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert result.stderr == ""
    found: dict[str, tuple[str, str]] = {}
    name = ""
    lines, _, verdict = result.stdout.rpartition("\n\n")
    for line in lines.splitlines():
        if line.startswith("    "):
            found[name] = (found[name][0], f"{found[name][1]}\n{line.strip()}")
        else:
            state, name, text = line.split(None, 2)
            found[name] = (state, text)
    assert ("cannot" in verdict) == (result.returncode != 0)
    return result.returncode, found


def test_a_machine_that_has_all(tmp_path: Path) -> None:
    """The embedded device's driver stands for that of a GPU."""
    status, found = doctor(tmp_path, "--driver", str(stand_in()))
    if found["ptxas"][0] == "no":
        pytest.skip("no ptxas on this machine")
    assert status == 0
    assert {name for name, (state, _) in found.items() if state == "no"} == set()
    assert found["GPU"] == ("ok", "Neutrino embedded device (PTX interpreter, step clock) (sm_90)")
    assert found["driver"] == ("ok", f"{stand_in()}, CUDA 13.0")
    assert found["cache"] == ("ok", f"{tmp_path}/cache/neutrino, twins of 0 images, 0.0 MB")


def test_what_is_missing_is_named_with_a_remedy(tmp_path: Path) -> None:
    no_library = tmp_path / "libcuda.so.1"
    no_library.write_text("no library")
    strange = tmp_path / "a:b"
    status, found = doctor(
        tmp_path, "--driver", str(no_library), NEUTRINO_PTXAS="/nowhere/ptxas", XDG_CACHE_HOME=str(strange)
    )
    assert status == 3
    assert {name for name, (state, _) in found.items() if state == "no"} == {"driver", "ptxas", "cache"}
    assert "NEUTRINO_PTXAS names /nowhere/ptxas" in found["ptxas"][1]
    assert all("\n" in text for state, text in found.values() if state != "ok")


def test_a_driver_without_a_gpu(tmp_path: Path) -> None:
    """The driver's own word for it."""
    source = tmp_path / "driver.c"
    source.write_text("""
        int cuInit(unsigned flags) { return flags ? 1 : 100; }
        int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
        int cuGetErrorName(int error, const char **text)
        {
            *text = error == 100 ? "CUDA_ERROR_NO_DEVICE" : 0;
            return 0;
        }
    """)
    driver = tmp_path / "libcuda.so.1"
    subprocess.run([*compiler(), "-shared", "-fPIC", str(source), "-o", str(driver)], check=True)
    status, found = doctor(tmp_path, "--driver", str(driver))
    assert status == 3
    assert found["driver"][0] == "ok"
    assert found["GPU"][0] == "no"
    assert found["GPU"][1].startswith("the driver says CUDA_ERROR_NO_DEVICE\n")
