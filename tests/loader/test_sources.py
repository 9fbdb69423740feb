"""The C of the hook, of the stand-in driver and of the reader, as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.emulator import build as emulator_build
from neutrino.loader import build
from neutrino.tracing import build as tracing_build

OTHER_LIBRARIES = {"audit.c", "stub.c"}
FOLDERS = {
    Path(build.__file__).parent / "csrc": {*build.SOURCES, *build.LATE_SOURCES, *OTHER_LIBRARIES},
    Path(emulator_build.__file__).parent / "csrc": set(emulator_build.SOURCES),
    Path(tracing_build.__file__).parent / "csrc": set(tracing_build.SOURCES),
}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_each_file_is_built(folder: Path) -> None:
    assert {path.name for path in folder.glob("*.c")} == FOLDERS[folder]


def test_each_file_is_in_the_table() -> None:
    text = (Path(build.__file__).parents[2] / "docs" / "hook.md").read_text()
    table = text.split("| file | what |\n", 1)[1].split("\n\n", 1)[0]
    listed = [cell for line in table.splitlines()[1:] for cell in line.split("|")[1].split("`")[1::2]]
    folder = Path(build.__file__).parent / "csrc"
    assert sorted(name for name in listed if name.endswith(".c")) == sorted(
        path.name for path in folder.glob("*.c")
    )


def test_the_environment_is_read_once() -> None:
    folder = Path(build.__file__).parent / "csrc"
    # The stub and the late hook ask once, when they are loaded, whether the process is recorded at all.
    reading = {path.name for path in folder.glob("*.c") if "getenv(" in path.read_text()}
    assert reading == {"settings.c", "stub.c", "late.c"}
    assert (folder / "stub.c").read_text().count("getenv(") == 1
    assert (folder / "late.c").read_text().count("getenv(") == 2
