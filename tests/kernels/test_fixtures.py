"""The PTX files: who made them, that they can be made again, that the vendor's assembler takes them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool
from tests.kernels.cases import cases
from tests.kernels.model import FIXTURES

FILES = sorted(FIXTURES.rglob("*.ptx"))
CLANG = "19.1.7"


def _name(path: Path) -> str:
    return path.relative_to(FIXTURES).as_posix()


def test_every_kernel_has_a_case() -> None:
    entries = {
        (path, name)
        for path in FILES
        for name in re.findall(r"\.entry\s+([\w$]+)", re.sub(r"//[^\n]*|/\*.*?\*/", " ", path.read_text(), flags=re.S))
    }
    covered = {(case.path, case.kernel) for case in cases()}
    assert entries == covered
    assert len(covered) >= 45
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)


def test_sizes() -> None:
    sizes = [path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file()]
    assert max(sizes) < 100 << 10
    assert sum(sizes) < 1 << 20


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_no_vendor_compiler(path: Path) -> None:
    assert not re.search(r"NVIDIA NVVM Compiler|Cuda compilation tools|__nv_|libdevice", path.read_text())


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_ptxas_takes_it(path: Path, tmp_path: Path) -> None:
    try:
        ptxas = find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))
    target = re.search(r"^\s*\.target\s+(sm_\w+)", path.read_text(), re.M)
    assert target is not None
    command = [str(ptxas), f"-arch={target[1]}", str(path), "-o", str(tmp_path / "out.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_clang_makes_the_same_text(tmp_path: Path) -> None:
    clang = shutil.which("clang-19")
    if clang is None:
        pytest.skip("clang-19 is not installed")
    version = subprocess.run([clang, "--version"], capture_output=True, text=True, timeout=600, check=True).stdout
    if f" {CLANG} " not in version:
        pytest.skip(f"the files are those of clang {CLANG}, installed is {version.splitlines()[0]}")
    subprocess.run([sys.executable, FIXTURES / "remake.py", "clang", tmp_path], timeout=120, check=True)
    kept = {path.name: path.read_text() for path in (FIXTURES / "clang").glob("*.ptx")}
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == kept
