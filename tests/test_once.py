"""The tests run with the libraries of the sources that are here, or say that they do not."""

from __future__ import annotations

import os
from pathlib import Path

from tests.once import BUILDS, built, missing_builds


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
