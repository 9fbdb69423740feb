"""The C of the hook, of the stand-in driver and of the reader, as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.emulator import build as emulator_build
from neutrino.loader import build
from neutrino.tracing import build as tracing_build

OTHER_LIBRARIES = {*build.AUDIT_SOURCES, "front/stub.c"}
FOLDERS = {
    Path(build.__file__).parent / "csrc": {*build.SOURCES, *build.LATE_SOURCES, *OTHER_LIBRARIES},
    Path(emulator_build.__file__).parent / "csrc": set(emulator_build.SOURCES),
    Path(tracing_build.__file__).parent / "csrc": set(tracing_build.SOURCES),
}


def _sources(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.c")}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_each_file_is_built(folder: Path) -> None:
    assert _sources(folder) == FOLDERS[folder]


def test_each_file_is_in_the_table() -> None:
    text = (Path(build.__file__).parent / "csrc" / "README.md").read_text()
    table = text.split("| file | what |\n", 1)[1].split("\n\n", 1)[0]
    listed = [cell for line in table.splitlines()[1:] for cell in line.split("|")[1].split("`")[1::2]]
    folder = Path(build.__file__).parent / "csrc"
    assert sorted(name for name in listed if name.endswith(".c")) == sorted(_sources(folder))


def test_the_environment_is_read_once() -> None:
    folder = Path(build.__file__).parent / "csrc"
    # The stub and the late hook ask once, when they are loaded, whether the process is recorded at all.
    counts = {name: (folder / name).read_text().count("getenv(") for name in _sources(folder)}
    reading = {name: count for name, count in counts.items() if count}
    settings = reading.pop("base/settings.c")
    assert settings
    assert reading == {"front/stub.c": 1, "front/late.c": 2}
