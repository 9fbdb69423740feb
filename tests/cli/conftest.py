"""What these tests share: ``neutrino-probe`` called in this process, in an empty folder, its words taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from neutrino.cli.probe import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "embedded" / "kernels.ptx"


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


Probe = Callable[..., Said]


@pytest.fixture
def probe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Probe:
    """``neutrino-probe``, run in tmp_path with the arguments."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> Said:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Said(status, *capsys.readouterr())

    return call
