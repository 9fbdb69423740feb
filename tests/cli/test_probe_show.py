"""What `neutrino-probe show` says of a twin's length and registers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from neutrino.cli import probe_show
from neutrino.cli.occupancy import warps_by_registers
from neutrino.cli.probe import main
from neutrino.ptx.instrument import twin

KERNEL = Path(__file__).parents[2] / "examples" / "embedded" / "kernels.ptx"


@pytest.mark.parametrize(
    ("registers", "arch", "warps"),
    [
        # Of the tables in CUDA's occupancy calculator.
        (16, "sm_90a", 64), (32, "sm_90a", 64), (33, "sm_80", 48), (40, "sm_80", 48), (41, "sm_100a", 40),
        (64, "sm_90", 32), (65, "sm_90", 28), (128, "sm_90", 16), (255, "sm_90", 8), (32, "sm_86", 48),
        (40, "sm_120a", 48), (64, "sm_75", 32), (72, "sm_75", 28),
    ],
)  # fmt: skip
def test_warps_by_registers(registers: int, arch: str, warps: int) -> None:
    assert warps_by_registers(registers, arch) == warps


def test_long_twins_are_announced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the assembler runs, and only then."""
    heard: list[str] = []
    monkeypatch.setattr(
        probe_show,
        "_assemble",
        lambda kernel, probes, cap: (None, heard.append(capsys.readouterr().err) or "not assembled"),
    )
    command = ["show", "gmem_bytes", str(KERNEL), "-k", "saxpy"]
    assert main(command) == 0
    assert heard == [""]
    monkeypatch.setattr(twin, "LONG", 10)
    assert main(command) == 0
    assert "ptxas may take minutes" in heard[1]
    capsys.readouterr()
    assert main([*command, "--text-only"]) == 0
    assert capsys.readouterr().err == ""


def test_a_long_twin_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything waits for ptxas; a twin of 250 loads has less than 20,000 lines, one of 400 has more."""
    for count in (250, 400):
        path = tmp_path / f"loads{count}.ptx"
        loads = "\n".join(f"ld.global.u32 %r, [%a+{4 * index}];" for index in range(count))
        path.write_text(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry loads(.param .u64 p)\n"
            f"{{\n.reg .u64 %a; .reg .u32 %r;\nld.param.u64 %a, [p];\n{loads}\nret;\n}}\n"
        )
    assert main(["sites", "dmat", str(tmp_path / "loads250.ptx")]) == 0
    assert "ptxas" not in capsys.readouterr().out
    assert main(["sites", "dmat", str(tmp_path / "loads400.ptx")]) == 0
    text = capsys.readouterr().out
    said = re.search(r"loads: the twin has ([\d,]+) lines, its original \d+: ptxas may take minutes", text)
    assert said is not None
    # As show has it.
    assert main(["show", "dmat", str(tmp_path / "loads400.ptx"), "--text-only", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["probed"]
    assert int(said[1].replace(",", "")) == text.count("\n") > 20_000
