"""Shipped files are found in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino import resources
from neutrino.cli import run


def test_a_checkout_has_them_beside_the_package() -> None:
    assert {"block_sched", "gmem_bytes"} <= set(resources.shipped_probes())
    assert resources.tool_path("read.py").is_file()


def test_an_installed_package_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "neutrino")
    for folder, name in (("probes", "mine.toml"), ("probes_amd", "mine.py"), ("tools", "read.py")):
        (tmp_path / "neutrino" / folder).mkdir(parents=True)
        (tmp_path / "neutrino" / folder / name).write_text("")
    assert list(resources.shipped_probes()) == ["mine"]
    assert [path.name for path in resources.shipped_probes("hip").values()] == ["mine.py"]
    assert resources.tool_path("read.py") == tmp_path / "neutrino" / "tools" / "read.py"
    with pytest.raises(FileNotFoundError, match=r"absent\.py: a file that ships with Neutrino is missing"):
        resources.tool_path("absent.py")


def test_the_folder_of_the_header_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run.main(["--include-dir"])
    assert ended.value.code == 0
    assert (Path(capsys.readouterr().out.removesuffix("\n")) / "neutrino_mark.h").is_file()
