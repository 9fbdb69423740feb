"""What docs/probes.md has about AMD's GPUs: its probe file and its commands, with what they print."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from neutrino.cli import patch, probe
from neutrino.gcn.llvm import find_llvm
from tests.cli.pages import is_as_shown
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


def test_its_commands_print_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, section = PAGE.read_text().partition("\n## Probes for AMD's GPUs\n")
    section = section.partition("\n## ")[0]
    console = "".join(re.findall(r"```console\n(.*?)```", section, re.DOTALL))
    monkeypatch.setenv("COLUMNS", "100")
    version = find_llvm().name
    build(tmp_path)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ neutrino-probe (.*)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    assert commands
    for words, expected in commands:
        probe.main(words.split())
        said = capsys.readouterr()
        # Which LLVM it is depends on the machine.
        printed = (said.out + said.err).replace(version, "LLVM 23.0.0")
        assert is_as_shown(printed, expected), printed


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
