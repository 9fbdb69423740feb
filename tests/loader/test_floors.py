"""The hook's C stands on floors: nothing on one calls what is on a higher one, and no two files call each other."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from neutrino.loader import build

from .conftest import CSRC
from .objects import unfolded_objects

Calls = dict[tuple[str, str], set[str]]
"""By a file and another, whose names the first uses: these."""


@pytest.fixture(scope="module")
def hook() -> dict[str, Path]:
    """The object files of the hook."""
    return unfolded_objects().hook


@pytest.fixture(scope="module")
def late(hook: dict[str, Path]) -> dict[str, Path]:
    return hook | unfolded_objects().late


def _symbols(path: Path) -> tuple[set[str], set[str]]:
    """The names that an object file defines for others, and those that it wants of others."""
    defined, wanted = set(), set()
    with path.open("rb") as file:
        for symbol in ELFFile(file).get_section_by_name(".symtab").iter_symbols():
            if symbol["st_info"]["bind"] == "STB_LOCAL" or not symbol.name:
                continue
            (wanted if symbol["st_shndx"] == "SHN_UNDEF" else defined).add(symbol.name)
    return defined, wanted


def _calls(objects: Mapping[str, Path]) -> Calls:
    symbols = {name: _symbols(path) for name, path in objects.items()}
    owners = {symbol: name for name, (defined, _) in symbols.items() for symbol in defined}
    calls: Calls = {}
    for name, (_, wanted) in symbols.items():
        for symbol in wanted & owners.keys():
            calls.setdefault((name, owners[symbol]), set()).add(symbol)
    return calls


def _floor(name: str) -> int:
    return build.FLOORS.index(name.split("/", maxsplit=1)[0])


def _upward(calls: Calls) -> Calls:
    return {pair: names for pair, names in calls.items() if _floor(pair[1]) > _floor(pair[0])}


def _in_circles(calls: Calls) -> set[str]:
    """The files that, by calls of calls, reach themselves."""
    left = set(calls)
    while True:
        # A file that calls nothing that is left, or that nothing left calls, is in no circle.
        callers, called = {pair[0] for pair in left}, {pair[1] for pair in left}
        kept = {pair for pair in left if pair[0] in called and pair[1] in callers}
        if kept == left:
            return callers | called
        left = kept


@pytest.mark.parametrize("which", ["hook", "late"])
def test_nothing_calls_upward_or_in_circles(which: str, request: pytest.FixtureRequest) -> None:
    calls = _calls(request.getfixturevalue(which))
    assert len(calls) > 200
    assert _upward(calls) == {}
    assert _in_circles(calls) == set()


@pytest.mark.parametrize(
    ("name", "text", "upward"),
    [
        ("base/added.c", "void nt_launch_end(void); void added(void) { nt_launch_end(); }", {"nt_launch_end"}),
        ("memory/added.c", "extern int nt_launch_passed; int *added = &nt_launch_passed;", {"nt_launch_passed"}),
    ],
)
def test_a_call_upward_is_found(
    hook: dict[str, Path], tmp_path: Path, name: str, text: str, upward: set[str]
) -> None:
    (tmp_path / "added.c").write_text(text)
    subprocess.run([*build.compiler(), "-c", "added.c"], cwd=tmp_path, check=True)
    calls = _calls(hook | {name: tmp_path / "added.o"})
    assert _upward(calls) == {(name, "launch/launch.c"): upward}


def test_a_circle_on_one_floor_is_found(hook: dict[str, Path], tmp_path: Path) -> None:
    # grace.c asks for the time; here the clock waits for readers.
    asking = "uint64_t nt_grace_ticket(void); uint64_t nt_clock_now_ns(void) { return nt_grace_ticket(); }"
    (tmp_path / "clock.c").write_text(f"#include <stdint.h>\n{asking}\n")
    subprocess.run([*build.compiler(), "-c", "clock.c"], cwd=tmp_path, check=True)
    calls = _calls(hook | {"base/clock.c": tmp_path / "clock.o"})
    assert _upward(calls) == {}
    assert {"base/clock.c", "base/grace.c"} <= _in_circles(calls)


def test_no_header_of_a_higher_floor_is_included() -> None:
    included = {
        (path.relative_to(CSRC).as_posix(), header)
        for path in CSRC.rglob("*.[ch]")
        for header in re.findall(r'^#include "(.*)"$', path.read_text(), re.MULTILINE)
    }
    assert len(included) > 300
    assert all((CSRC / header).is_file() for _, header in included)
    assert {pair for pair in included if _floor(pair[1]) > _floor(pair[0])} == set()


def _prefix(name: str) -> str:
    """What the public names of a file begin with: nt_ and the file's name."""
    stem = Path(name).stem
    return f"nt_{_PREFIXES.get(name, stem)}"


_PREFIXES = {"front/late_state.c": "late"}


@pytest.mark.parametrize("which", ["hook", "late"])
def test_public_names_begin_with_their_file(which: str, request: pytest.FixtureRequest) -> None:
    objects = request.getfixturevalue(which)
    prefixes = {_prefix(name): name for name in objects}
    wrong = {}
    for name, path in objects.items():
        for symbol in _symbols(path)[0]:
            if not symbol.startswith("nt_"):
                continue  # What is exported has the names that others look for.
            fitting = [prefix for prefix in prefixes if symbol == prefix or symbol.startswith(f"{prefix}_")]
            if prefixes.get(max(fitting, key=len, default="")) != name:
                wrong[symbol] = name
    assert wrong == {}
