"""What `neutrino-probe show` says of a twin's length and registers."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.cli import probe_show
from neutrino.cli.probe import main
from neutrino.device.registers import warps_by_registers

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
    monkeypatch.setattr(probe_show, "_LONG", 10)
    assert main(command) == 0
    assert "ptxas may take minutes" in heard[1]
    capsys.readouterr()
    assert main([*command, "--text-only"]) == 0
    assert capsys.readouterr().err == ""
