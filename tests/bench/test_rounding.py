"""The bench of roundings: its kernels need every proof, and it runs on the embedded device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.rounding_kernels import FAMILIES, PRELUDE, kernels
from neutrino.abi.reasons import Reason
from neutrino.errors import ToolMissingError
from neutrino.maker.patcher import patch_image
from neutrino.probing.selection import Selection
from neutrino.toolchain.tool_choice import find_assembler
from neutrino.twins.cache_entry import read_entry
from neutrino.verification import load_probe_file

ROOT = Path(__file__).resolve().parents[2]


def test_kernels_are_the_same_in_every_process() -> None:
    own = "".join(kernel.source for kernel in kernels() if kernel.family == "mixed")
    command = [sys.executable, "-m", "bench.rounding_kernels", "mixed"]
    again = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "7"}, capture_output=True, text=True,
                           check=True)  # fmt: skip
    assert again.stdout == PRELUDE + own + "\n"
    names = [kernel.name for kernel in kernels()]
    assert len(names) == len(set(names)) >= 150
    assert {kernel.family for kernel in kernels()} == FAMILIES.keys()


def test_kernels_need_every_proof(tmp_path: Path) -> None:
    try:
        assembler = find_assembler()
    except ToolMissingError as error:
        pytest.skip(str(error))
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    chosen = [kernel for kernel in kernels() if kernel.name.startswith(("divisions", "apart", "polynomial_f32"))]
    source, image = tmp_path / "some.cu", tmp_path / "some.fatbin"
    source.write_text(PRELUDE + "".join(kernel.source for kernel in chosen))
    options = ["-w", "-O3", "-std=c++17", "-fatbin", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"]
    subprocess.run([nvcc, *options, "-o", str(image), str(source)], check=True, capture_output=True)
    probes = load_probe_file(ROOT / "bench" / "probes" / "rounding_fields.toml")
    data = patch_image(image.read_bytes(), probes, "sm_90", selection=Selection((), ()), assembler=assembler,
                       key=bytes(32))  # fmt: skip
    made = read_entry(data, "entry").kernels
    assert {kernel.name for kernel in chosen} == {kernel.name for kernel in made}
    proofs = {
        json.loads(entry.files["manifest.json"])["numerics"]["proof"] for entry in made if entry.reason is Reason.PROBED
    }
    assert proofs == {"counts", "no-pair", "pinned", "lines"}


def test_the_embedded_device(tmp_path: Path) -> None:
    """The road of a run, with the kernels that this device takes."""
    file = tmp_path / "rounding.json"
    command = [sys.executable, "-m", "bench.rounding", "record", "--device", "embedded", "--out", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    first, *others = result["runs"]
    assert len(first["names"].split()) >= 5
    assert [row["probe"] for row in others][-1] == "rounding_out"
    assert all("names" not in row and set(row["digests"].split()) == {"."} for row in others)
