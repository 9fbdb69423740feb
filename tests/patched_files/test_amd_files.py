"""AMD's code objects in files: device-linked libraries, and where probes go in those that ship with the examples."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from neutrino.cli import patch, probe
from neutrino.loader import driver
from neutrino.playground.code_attempt import CodeRequest, attempt_code
from neutrino.playground.kernel_choice import find_code
from neutrino.playground.launch_inputs import Choices
from neutrino.probing.selection import Selection
from neutrino.verification import load_probes
from tests.gcn.objects import need_clang, need_llvm

LIBRARY = Path(__file__).parents[2] / "examples" / "amd" / "libvector.so"
HEAD = """
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
typedef struct { unsigned x, y, z; } dim3;
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
extern "C" unsigned __hipPushCallConfiguration(dim3, dim3, unsigned long, void *);
extern "C" unsigned __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void **);
"""
UNITS = {
    "first": HEAD + """
extern "C" __device__ unsigned scaled(unsigned value);
extern "C" __global__ void first(unsigned *x) {
  unsigned *own = x + __builtin_amdgcn_workitem_id_x();
  *own = scaled(*own);
}
""",
    "second": HEAD + """
__device__ unsigned factor = 3;
extern "C" __device__ unsigned scaled(unsigned value) { return value * factor; }
extern "C" __global__ void second(unsigned *x) { x[__builtin_amdgcn_workitem_id_x()] += factor; }
""",
}


@pytest.fixture(autouse=True)
def llvm() -> None:
    need_llvm()


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose device code clang has linked from two units, and beside it the objects of these."""
    clang = need_clang()
    folder = tmp_path_factory.mktemp("rdc")
    archs = ("--offload-arch=gfx942", "--offload-arch=gfx1100")
    options = ("-x", "hip", "-fgpu-rdc", *archs, "-nogpuinc", "-nogpulib", "-O2", "-fPIC", "-w", "-c")

    def run(*words: str) -> None:
        done = subprocess.run([clang, *words], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"this clang links no device code: {done.stderr.strip().splitlines()[-1]}")

    for name, text in UNITS.items():
        (folder / f"{name}.hip").write_text(text)
        run(*options, f"{name}.hip", "-o", f"{name}.o")
    run("--hip-link", "-fgpu-rdc", *archs, "-shared", "-nostdlib", "first.o", "second.o", "-o", "lib.so")
    return folder / "lib.so"


def test_device_linked_code_is_patched_checked_and_restored(
    linked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.so"
    assert patch.main([str(linked), "-p", "inst_count", "-o", str(out)]) == 0
    assert "2 kernels for gfx942, gfx1100: 4 of 4 probed" in capsys.readouterr().out
    assert patch.main(["--check", str(out)]) == 0
    assert "valid: 4 twins by inst_count for gfx942, gfx1100" in capsys.readouterr().out
    assert out.read_bytes() != linked.read_bytes()
    assert patch.main(["--restore", str(out), "-o", str(tmp_path / "back.so")]) == 0
    assert (tmp_path / "back.so").read_bytes() == linked.read_bytes()


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_device_linked_code_runs_with_probes(linked: Path, arch: str, tmp_path: Path) -> None:
    found = find_code(linked, Selection(("first",)), arch)
    probes = load_probes(["inst_count"], platform="hip")
    choices = Choices(grid=(1, 1, 1), block=(48, 1, 1))
    result = attempt_code(CodeRequest(found, probes, ("inst_count",), choices, tmp_path))
    x, factor = result.outputs
    before, after = (np.frombuffer(data, "u4") for data in (x.before, x.plain))
    assert (after[:48] == 3 * before[:48]).all()
    # The variable is that of the other unit.
    assert (factor.name, factor.plain) == ("factor", bytes([3, 0, 0, 0]))
    assert result.identical
    (launch,) = result.probed.launches()
    (counts,) = launch.maps["InstCount"].valid()
    assert counts["store"] == 48


def test_units_of_device_linked_code_are_refused_with_advice(
    linked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert patch.main([str(linked.with_name("first.o")), "-p", "inst_count", "-o", str(tmp_path / "out.o")]) == 2
    assert "is an object file; patch the shared library or program that it is linked into" in capsys.readouterr().err


def test_sites_are_those_of_the_code_object_also_where_the_machine_has_another_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "machine_archs", lambda: ("sm_90",))
    assert probe.main(["sites", "gmem_bytes", str(LIBRARY), "-k", "saxpy"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0][-1] == "gfx1100:"
    sites = [row for row in rows if row[:1] and row[0].isdigit() and row[1].isdigit()]
    assert [row[2:4] for row in sites] == [
        ["load_global", "global_load_b32"], ["load_global", "global_load_b32"], ["store_global", "global_store_b32"],
    ]  # fmt: skip


def test_a_shown_twin_has_the_labels_of_its_original(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["show", "gmem_bytes", str(LIBRARY), "--arch", "gfx942", "-k", "saxpy"]
    assert probe.main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("// saxpy: 4 sites, ")
    assert shown[2].startswith("// registers ")
    # What is branched to is the code that was inserted in front of the original's end.
    assert "  s_cbranch_execz .L78" in shown
    assert ".L78:" in shown
    originals = [line for line in shown if line.startswith("  ") and not line.startswith("    ")]
    assert [line.split()[0] for line in originals if "global_" in line] == [
        "global_load_dword", "global_load_dword", "global_store_dword",
    ]  # fmt: skip
    assert probe.main([*words, "--diff"]) == 0
    changed = capsys.readouterr().out.splitlines()
    assert "--- original" in changed
    assert not [line for line in changed if line.startswith("-") and "s_cbranch" in line]
