"""What docs/probes.md and docs/ahead.md have about AMD's GPUs: a probe file, kernels that are tried and patched."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from neutrino.cli import patch, probe
from neutrino.gcn.llvm import find_llvm
from tests.gcn.objects import need_clang, need_llvm

PAGE = Path(__file__).parents[2] / "docs" / "probes.md"
VECTOR = """
#define __global__ __attribute__((global))
extern "C" __global__ void add(float *a, int n) {
  int i = __builtin_amdgcn_workitem_id_x() + __builtin_amdgcn_workgroup_id_x() * 64;
  if (i < n) a[i] += 1;
}
extern "C" __global__ void twice(int *a) { a[__builtin_amdgcn_workitem_id_x()] *= 2; }
"""


def build(folder: Path) -> None:
    """Make vector.hsaco, for gfx942. Skips without clang."""
    need_llvm()
    clang = need_clang()
    (folder / "vector.hip").write_text(VECTOR)
    flags = ["-x", "hip", "-nogpuinc", "-nogpulib", "--offload-device-only", "--no-gpu-bundle-output", "-w", "-O2"]
    command = [clang, *flags, "--offload-arch=gfx942", "vector.hip", "-o", "vector.hsaco"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_kernels_in_files_of_their_own_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pointers and numbers are told apart by what the kernel does with them, and 256 threads load and store 4 bytes."""
    build(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert probe.main(["sites", "gmem_bytes", "vector.hsaco", "-k", "add"]) == 0
    assert "3 sites in 1 of 1 kernel" in capsys.readouterr().out
    assert probe.main(["try", "gmem_bytes", "vector.hsaco", "-k", "add", "--block", "64"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for words in (
        "4 blocks of 64 threads", "arg0 f32 × 262,144, random read, written", "arg1 256",
        "The same bits with and without the probe.", f"3 sites; registers 3 → 4 by {find_llvm().name}",
        "load store atomic async uncounted", "1024 1024 0 0 0",
    ):
        assert words.split() in lines, words


def test_its_file_is_for_the_processors_that_have_its_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, section = PAGE.read_text().partition("\n## Probes for AMD's GPUs\n")
    (toml,) = re.findall(r"```toml\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    (tmp_path / "sched.toml").write_text(toml)
    monkeypatch.chdir(tmp_path)
    assert probe.main(["check", "sched.toml", "--target", "gfx90a"]) == 0
    capsys.readouterr()
    assert probe.main(["check", "sched.toml", "--target", "gfx1100"]) == 2
    lacking = re.findall(r"^sched.toml:(\d+):\d+: error: gfx1100 has no (\w+)", capsys.readouterr().err, re.MULTILINE)
    wanted = [line for line in toml.splitlines() if "s_memrealtime" in line or "hwreg" in line]
    assert [toml.splitlines()[int(number) - 1] for number, _ in lacking] == wanted
    assert [word for _, word in lacking] == ["s_memrealtime", "s_memrealtime", "HW_REG_HW_ID"]


def test_patching_prints_what_the_page_about_files_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, section = PAGE.with_name("ahead.md").read_text().partition("\n## Code for AMD's GPUs\n")
    (console,) = re.findall(r"```console\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    build(tmp_path)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ neutrino-patch (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    assert len(commands) >= 3
    for words, expected in commands:
        assert patch.main(words.split()) == 0
        said = capsys.readouterr()
        # LIEF need not be installed.
        shown, page = (
            [line for line in text.splitlines() if "LIEF" not in line] for text in (said.out + said.err, expected)
        )
        assert shown == page, words
    assert (tmp_path / "back.hsaco").read_bytes() == (tmp_path / "vector.hsaco").read_bytes()
