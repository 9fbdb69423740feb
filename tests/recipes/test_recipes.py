"""Every recipe of the pages, on kernels that part, with grids of several dimensions and threads that leave early."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Container, Mapping

import pytest

from neutrino.resources import shipped_probes
from tests.recipes.bed import LAUNCHES, Folder, Model
from tests.recipes.judges import JUDGES, TIMED, sectors, single_loads, threads
from tests.recipes.pages import Recipe, files, one_liners, script, shipped
from tests.recipes.printed import Figure, Rows, differences
from tests.recipes.recorded import Recorded, launches_of
from tests.recipes.shipped import JUDGES as SHIPPED
from tests.recipes.shipped import TIMES

_MOST_TOGETHER = 9
_ROOM = ("--device", "embedded:memory=1G", "--max-device-memory", "512M")
_TIMED = ("block_sched", "warp_timeline")
"""Probes that are run beside the threads' own times, without others that would take time."""


def _together(judged: Container[str]) -> list[list[Recipe]]:
    """The recipes that have these judges, in groups that run in one process each: their maps have different names."""
    groups: list[list[Recipe]] = []
    for recipe in dict.fromkeys(Recipe("", one.text, one.options) for one in one_liners() if one.text in judged):
        for group in groups:
            taken = frozenset[str]().union(*(one.maps for one in group))
            if len(group) < _MOST_TOGETHER and group[0].options == recipe.options and not taken & recipe.maps:
                group.append(recipe)
                break
        else:
            groups.append([recipe])
    return groups


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("bed"), tmp_path_factory.getbasetemp() / "cache")


def test_judges() -> None:
    assert SHIPPED.keys() == shipped_probes().keys() >= shipped() >= {"dmat", "latency"}
    assert files().keys() == {*FILES, README}


@pytest.mark.parametrize("group", _together(JUDGES), ids=lambda group: group[0].text)
def test_one_liners(group: list[Recipe], folder: Folder) -> None:
    texts = [word for recipe in group for word in ("-e", recipe.text)]
    result = folder.run(*_ROOM, "-q", *group[0].options, *texts, "./program")
    expected: dict[str, Figure | Rows] = {}
    for recipe in group:
        expected |= JUDGES[recipe.text](result.model)
    assert not differences(result.err, expected)


@pytest.mark.parametrize("group", _together(TIMED), ids=lambda group: group[0].text)
def test_times(group: list[Recipe], folder: Folder) -> None:
    """Beside a probe that records how long each thread ran."""
    (folder.path / "times.py").write_text(TIMES)
    trace = folder.path / f"timed-{_together(TIMED).index(group)}"
    texts = [word for recipe in group for word in ("-e", recipe.text)]
    result = folder.run(*_ROOM, "-q", "--tracedir", trace.name, "-p", "./times.py", *texts, "./program")
    times = [
        (number, launch.kernel, row["[block]"], row["cycles"])
        for number, launch in launches_of(trace).items()
        for row in launch.rows["Times"]
    ]
    assert len(times) == sum(launch.threads * launch.blocks for launch in LAUNCHES)
    expected: dict[str, Figure | Rows] = {}
    for recipe in group:
        expected |= TIMED[recipe.text](times)
    assert not differences(result.err, expected)


# Shipped probes


@pytest.fixture(scope="module")
def recorded(folder: Folder) -> dict[str, tuple[dict[int, Recorded], Model]]:
    """What each shipped probe recorded, and what it should have."""
    (folder.path / "times.py").write_text(TIMES)
    others = [name for name in shipped_probes() if name not in _TIMED]
    found = {}
    for number, names in enumerate(([*_TIMED, "./times.py"], others)):
        probes = [word for name in names for word in ("-p", name)]
        result = folder.run(*_ROOM, "-q", "--tracedir", f"shipped{number}", *probes, "./program")
        launches = launches_of(folder.path / f"shipped{number}")
        found |= dict.fromkeys(names, (launches, result.model))
    return found


_OF_FIRST_LANES = {"block_sched", "program_progress", "warp_timeline", "work_per_warp"}
"""They record what a warp's first lane does."""


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.xfail(strict=False)] if name in _OF_FIRST_LANES else []) for name in SHIPPED
])
def test_shipped_probes(name: str, recorded: dict[str, tuple[dict[int, Recorded], Model]]) -> None:
    launches, model = recorded[name]
    assert {number: launch.kernel for number, launch in launches.items()} == {
        number: launch.kernel for number, launch in enumerate(LAUNCHES)
    }
    for number, launch in launches.items():
        SHIPPED[name](launch, [step for step in model.steps if step.launch == number], number)


# Files of the pages


def _moved(launches: Mapping[int, Recorded], model: Model) -> None:
    """Of each block the bytes that its threads ask for."""
    for number, launch in launches.items():
        moved: dict[int, int] = dict.fromkeys(range(LAUNCHES[number].blocks), 0)
        for step in model.steps:
            if step.launch == number and step.at.space == "global":
                moved[step.block] += len(step.executing) * step.at.size
        assert {row["[block]"]: row["bytes"] for row in launch.rows["Moved"]} == moved


def _accesses(launches: Mapping[int, Recorded], model: Model) -> None:
    """All accesses that name global memory, by thread in its order."""
    kinds = {"ld": 0, "st": 1, "atom": 2, "red": 2}
    for number, launch in launches.items():
        found: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        for row in launch.rows["Accesses"]:
            thread = row["[block]"], row["[warp]"], row["[lane]"]
            found[thread].append((row["address"], launch.lines[row["site"]], row["bytes"], row["kind"]))
        expected: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        for step in model.steps:
            if step.launch == number and step.at.space == "global":
                for lane, address in step.addresses.items():
                    fields = address, step.at.line, step.at.size, kinds[step.at.parts[0]]
                    expected[step.block, step.warp, lane].append(fields)
        assert found == expected


def _first_loads(launches: Mapping[int, Recorded], model: Model) -> None:
    """The first four loads of each thread, with the first element of each."""
    for number, launch in launches.items():
        found: dict[tuple[int, ...], list[tuple[int, str]]] = defaultdict(list)
        for row in launch.rows["Loads"]:
            # As a text, by which a NaN is one.
            found[row["[block]"], row["[warp]"], row["[lane]"]].append((row["address"], str(row["value"])))
        expected: dict[tuple[int, ...], list[tuple[int, str]]] = defaultdict(list)
        for step, lane in threads(model, single_loads):
            if step.launch == number:
                expected[step.block, step.warp, lane].append((step.addresses[lane], str(step.outputs[lane][0])))
        assert found == {thread: mine[:4] for thread, mine in expected.items()}


README = ("README.md", "python", "BlockSched")
FILES = {
    ("tutorial.md", "python", "Accesses"): _accesses,
    ("cookbook.md", "python", "Moved"): _moved,
    ("probes.md", "toml", "Loads"): _first_loads,
    ("probes.md", "python", "Loads"): _first_loads,
}


def test_the_file_of_the_readme() -> None:
    """It is the shipped probe, which has a judge."""
    (shipped_text,) = (path.read_text() for name, path in shipped_probes().items() if name == "block_sched")
    assert ast.dump(ast.parse(files()[README])) == ast.dump(ast.parse(shipped_text))


@pytest.fixture(scope="module")
def of_files(folder: Folder) -> dict[tuple[str, str, str], tuple[dict[int, Recorded], Model]]:
    """What each file recorded, and what it should have. Two files have a map of the same name."""
    found = {}
    alone = ("probes.md", "python", "Loads")
    for place, keys in (("trace", [key for key in FILES if key != alone]), ("other", [alone])):
        probes: list[str] = []
        for key in keys:
            _, language, name = key
            path = folder.path / f"{name}.{'py' if language == 'python' else 'toml'}"
            path.write_text(files()[key])
            probes += ["-p", f"./{path.name}"]
        result = folder.run(*_ROOM, "-q", "--tracedir", place, *probes, "./program")
        launches = launches_of(folder.path / place, drops=True)
        found |= dict.fromkeys(keys, (launches, result.model))
    return found


@pytest.mark.parametrize("file", FILES, ids=" ".join)
def test_files(
    file: tuple[str, str, str], of_files: dict[tuple[str, str, str], tuple[dict[int, Recorded], Model]]
) -> None:
    FILES[file](*of_files[file])


def test_sectors_of_the_tutorial(
    folder: Folder, of_files: dict[tuple[str, str, str], tuple[dict[int, Recorded], Model]]
) -> None:
    """What its script prints: of the first launch of each kernel, of each access, the mean over its requests."""
    _, model = of_files["tutorial.md", "python", "Accesses"]
    finished = subprocess.run(
        [sys.executable, "-c", script("tutorial.md", "sectors.py")], cwd=folder.path, env=folder.environment, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    requests: dict[tuple[str, str], list[int]] = defaultdict(list)
    for step in model.steps:
        if step.at.space == "global" and step.executing and step.launch in (0, 3, 4):
            requests[step.kernel, step.at.text].append(len(sectors(step)))
    expected = [
        f"{kernel}: {sum(all_) / len(all_):g} sectors per request at {text}"
        for (kernel, text), all_ in requests.items()
    ]
    assert sorted(finished.stdout.splitlines()) == sorted(expected)
