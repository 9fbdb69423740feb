"""Files whose code a view cannot show: that is said, with what they have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from amd_inputs import need_llvm

from neutrino.abi.reasons import Reason
from neutrino.cli.patch import _counts
from neutrino.patched_files.patch_report import KernelReport, Report

PTX = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"


def extract(*arguments: str | Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "neutrino.cli.extract", *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_ptx_has_no_machine_code_to_disassemble(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(PTX)
    status, out, err = extract(tmp_path / "k.ptx", "--sass")
    assert (status, out) == (0, "")
    assert "no machine code of NVIDIA's GPUs to disassemble; it has 1 image of PTX; --coverage says" in err


def test_amds_code_is_named(tmp_path: Path) -> None:
    source = "kernel void add(global float *a) { a[__builtin_amdgcn_workitem_id_x()] += 1; }"
    library = tmp_path / "k.o"
    options = ("-target", "amdgcn-amd-amdhsa", "-mcpu=gfx906", "-nogpulib", "-x", "cl", "-cl-std=CL2.0", "-O2")
    # Not linked, so that lld is not needed.
    command = [need_llvm("clang"), *options, "-c", "-", "-o", str(library)]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this clang compiles nothing for gfx906: {done.stderr.strip()[-300:]}")
    status, out, err = extract(library, "--sass")
    assert (status, out) == (0, "")
    assert "no machine code of NVIDIA's GPUs to disassemble; it has 1 AMD code object" in err
    status, out, err = extract(library, "--coverage")
    assert status == 0
    assert "gfx906" in out
    assert "its code is for gfx906, for which no kernel can be probed" in err


@pytest.mark.parametrize(("archs", "shown"), [((), "gfx90a"), (("sm_90",), "sm_90")])
def test_the_line_of_kernels_names_what_they_are_for(archs: tuple[str, ...], shown: str) -> None:
    kernel = KernelReport("k", 0, 0, "gfx90a", (), Reason.UNSUPPORTED)
    report = Report.__new__(Report)
    for name, value in (("kernels", (kernel,)), ("archs", archs)):
        object.__setattr__(report, name, value)
    assert _counts(report) == f"1 kernel for {shown}: 0 of 1 probed"
