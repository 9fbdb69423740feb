"""What these tests share: the commands as a user starts them, in a home of their own."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from neutrino.errors import NeutrinoError
from neutrino.loader.embedded_driver import stand_in

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests, so that a twin is made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run ``neutrino``, ``neutrino-report`` … by the name after the hyphen, ``run`` for ``neutrino`` itself.

    Commands of which no process becomes another program run in this one, which spares Python's start and imports.
    """

    def call(
        module: str, *arguments: str | Path, extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        own = {"XDG_CACHE_HOME": str(cache), "COLUMNS": "120", "PYTHONPATH": str(ROOT), **(extra or {})}
        words = list(map(str, arguments))
        if module in ("report", "extract", "probe"):
            with monkeypatch.context() as patch:
                patch.delenv("LD_LIBRARY_PATH", raising=False)
                patch.chdir(tmp_path)
                for name, value in own.items():
                    patch.setenv(name, value)
                status = importlib.import_module(f"neutrino.cli.{module}").main(words)
            return subprocess.CompletedProcess(words, status, *capsys.readouterr())
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        return subprocess.run(
            [sys.executable, "-m", f"neutrino.cli.{module}", *words],
            cwd=tmp_path, env=environment | own, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    return call


@pytest.fixture(scope="session")
def device() -> None:
    """The embedded device; a checkout in which it was not built cannot run these tests."""
    try:
        stand_in()
    except NeutrinoError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built example: ``program`` and ``libvector.so``."""
    if not shutil.which("make"):
        pytest.skip("make is not on this machine")
    out = tmp_path_factory.mktemp("demo")
    subprocess.run(
        ["make", "--silent", "-C", ROOT / "examples" / "embedded", f"OUT={out}", f"PYTHON={sys.executable}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
    )  # fmt: skip
    return out
