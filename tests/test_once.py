"""The tests run with the libraries of the sources that are here, or say that they do not; what is kept is of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import once
from tests.once import BUILDS, built, kept, missing_builds


def test_libraries_older_than_their_sources_are_told(tmp_path: Path) -> None:
    script, source = tmp_path / "build.py", tmp_path / "csrc" / "parts" / "part.c"
    first, second = tmp_path / "lib" / "libcuda.so.1", tmp_path / "lib" / "libother.so"
    source.parent.mkdir(parents=True)
    first.parent.mkdir()
    for number, path in enumerate((script, source, first, second)):
        path.touch()
        os.utime(path, (number, number))
    assert sorted(built(script)) == [first, second]
    assert missing_builds([script]) == ""
    os.utime(source, (9, 9))
    assert built(script) == []
    assert "run `make setup-dev`" in missing_builds([*BUILDS, script])
    assert str(tmp_path / "lib") in missing_builds([*BUILDS, script])
    for library in (first, second):
        library.unlink()
    assert missing_builds([script]) != ""


def test_what_is_kept_is_built_again_for_other_sources_options_and_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(once, "KEPT", tmp_path / "kept")
    source = tmp_path / "program.c"
    source.write_text("int main(void) { return 0; }")
    calls: list[Path] = []

    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "made").write_text(source.read_text())

    def ask(*options: str, compiler: str = "cc") -> Path:
        return kept("program", [compiler], options, [source], build)

    first = ask("-O2")
    assert ask("-O2") == first
    assert len(calls) == 1
    for changed in (ask("-O0"), ask("-O2", compiler="ld")):
        assert changed != first
    source.write_text("int main(void) { return 1; }")
    again = ask("-O2")
    assert again != first
    assert (again / "made").read_text() == source.read_text()
    assert len(calls) == 4
    # A build that did not end is made anew, and what nobody has used for long goes.
    again.with_name(f"{again.name}.built").unlink()
    (again / "half").touch()
    os.utime(first, (0, 0))
    assert ask("-O2") == again
    assert [path.name for path in again.iterdir()] == ["made"]
    assert not first.exists()
