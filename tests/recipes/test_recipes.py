"""Every recipe of the pages, on kernels that part, with grids of several dimensions and threads that leave early."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.resources import shipped_probes
from neutrino.targets import lowered
from neutrino.verification import load_probes
from tests.once import once
from tests.oracle.assembling import assemble
from tests.recipes.bed import LAUNCHES, ROOT, TEXT, Folder, Model, model_of
from tests.recipes.judges import JUDGES, TIMED, groups, loads, sectors, single_loads, threads
from tests.recipes.pages import Recipe, files, one_liners, script, shipped
from tests.recipes.printed import Figure, Rows, differences
from tests.recipes.recorded import Recorded, record
from tests.recipes.shipped import JUDGES as SHIPPED
from tests.recipes.shipped import TIMES, by_thread

_MOST_TOGETHER = 9
_TIMED = ("block_sched", "warp_timeline")
"""Probes that are run beside the threads' own times, without others that would take time."""


def _together(judged: Container[str], most: int = _MOST_TOGETHER) -> list[list[Recipe]]:
    """The recipes that have these judges, in groups that run in one process each: their maps have different names."""
    groups: list[list[Recipe]] = []
    for recipe in dict.fromkeys(Recipe("", one.text, one.options) for one in one_liners() if one.text in judged):
        for group in groups:
            taken = frozenset[str]().union(*(one.maps for one in group))
            is_alike = group[0].options == recipe.options
            if len(group) < most and is_alike and not taken & recipe.maps:
                group.append(recipe)
                break
        else:
            groups.append([recipe])
    return groups


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("bed"), tmp_path_factory.getbasetemp() / "cache")


def test_every_recipe_has_a_judge() -> None:
    """A new recipe needs one in judges.py or shipped.py, or here if it is a file."""
    recipes = one_liners()
    assert len(recipes) > 40
    unjudged = [recipe for recipe in recipes if recipe.text not in JUDGES.keys() | TIMED.keys()]
    assert not unjudged, "a new recipe has no judge"
    assert {one.text for one in recipes} >= JUDGES.keys() | TIMED.keys(), "a judge has no recipe"
    assert SHIPPED.keys() == shipped_probes().keys() >= shipped() >= {"dmat", "latency"}
    assert files().keys() == FILES.keys()


@pytest.mark.parametrize("group", _together(JUDGES), ids=lambda group: group[0].text)
def test_one_liners(group: list[Recipe], folder: Folder) -> None:
    texts = [word for recipe in group for word in ("-e", recipe.text)]
    result = folder.printed("-q", *group[0].options, *texts, "./program")
    expected: dict[str, Figure | Rows] = {}
    for recipe in group:
        expected |= JUDGES[recipe.text](result.model)
    assert not differences(result.err, expected)


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("group", _together(JUDGES.keys() | TIMED.keys(), 2), ids=lambda group: group[0].text)
def test_their_twins_assemble(group: list[Recipe]) -> None:
    """Without optimising: what is asked here is whether they are PTX. ptxas takes longer for many in one kernel."""
    twins = probe_module(parse(TEXT), lowered(load_probes([], [recipe.text for recipe in group])))
    cubin, said = assemble(twins.render())
    assert cubin, said


@pytest.mark.parametrize("group", _together(TIMED), ids=lambda group: group[0].text)
def test_times(group: list[Recipe], folder: Folder) -> None:
    """Beside a probe that records how long each thread ran."""
    (folder.path / "times.py").write_text(TIMES)
    texts = [word for recipe in group for word in ("-e", recipe.text)]
    launches, result = record(folder, f"timed-{_together(TIMED).index(group)}", "-p", "./times.py", *texts)
    times = [
        (number, launch.kernel, row["[block]"], row["cycles"])
        for number, launch in launches.items()
        for row in launch.rows["Times"]
    ]
    assert len(times) == sum(launch.threads * launch.blocks for launch in LAUNCHES)
    expected: dict[str, Figure | Rows] = {}
    for recipe in group:
        expected |= TIMED[recipe.text](times)
    assert not differences(result.err, expected)


# Shipped probes


Kept = dict[Any, tuple[dict[int, Recorded], dict[str, int]]]
"""By the name of a probe or the key of a file: the launches, and where the arrays were."""


def _record_all(path: Path) -> None:
    """Record with all shipped probes, and with the files of the pages."""
    folder = Folder(path, path / "cache")
    (path / "times.py").write_text(TIMES)
    for key, text in files().items():
        (path / _name(key)).write_text(text)
    others = [name for name in shipped_probes() if name not in _TIMED]
    runs: dict[str, Sequence[Any]] = {
        "timed": [*_TIMED, "times.py"], "others": others,
        "trace": [*FILES],
    }  # fmt: skip
    kept: Kept = {}
    for place, keys in runs.items():
        names = [_name(key) if isinstance(key, tuple) else key for key in keys]
        probes = [word for name in names for word in ("-p", f"./{name}" if "." in name else name)]
        launches, result = record(folder, place, *probes, drops=frozenset({"Loads"}))
        kept |= dict.fromkeys(keys, (launches, dict(result.model.addresses)))
    (path / "kept").write_bytes(pickle.dumps(kept))


def _name(key: tuple[str, str, str]) -> str:
    page, language, name = key
    return f"{Path(page).stem}_{name}.{'py' if language == 'python' else 'toml'}"


@pytest.fixture(scope="module")
def all_recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which everything was recorded, once a run."""
    return once(tmp_path_factory, "recipes", _record_all)


@pytest.fixture(scope="module")
def recorded(all_recorded: Path) -> dict[Any, tuple[dict[int, Recorded], Model]]:
    """What each shipped probe and each file recorded, and what was to be."""
    kept: Kept = pickle.loads((all_recorded / "kept").read_bytes())
    return {key: (launches, model_of(addresses)) for key, (launches, addresses) in kept.items()}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_probes(name: str, recorded: dict[Any, tuple[dict[int, Recorded], Model]]) -> None:
    launches, model = recorded[name]
    assert {number: launch.kernel for number, launch in launches.items()} == {
        number: launch.kernel for number, launch in enumerate(LAUNCHES)
    }
    for number, launch in launches.items():
        SHIPPED[name](launch, [step for step in model.steps if step.launch == number], number)


def test_probes_whose_code_waits_for_other_sites(folder: Folder) -> None:
    """Without a log beside them, whose saves wait as well: in the run of all, sites of coalescing do not."""
    names = ("coalescing", "nan_finder", "value_watch", "latency", "gmem_bytes")
    launches, result = record(folder, "waiting", *(word for name in names for word in ("-p", name)))
    for number, launch in launches.items():
        steps = [step for step in result.model.steps if step.launch == number]
        for name in names:
            SHIPPED[name](launch, steps, number)


def test_parts_of_the_accesses(folder: Folder) -> None:
    """dmat of each second block and warp and each third access, and hot_lines of pages."""
    parts = ("-D", "BLOCKS=2", "-D", "WARPS=2", "-D", "ACCESSES=3", "-D", "LINE_BITS=12", "-D", "SAMPLE=1")
    launches, result = record(folder, "parts", *parts, "-p", "dmat", "-p", "hot_lines")
    for number, launch in launches.items():
        steps = [step for step in result.model.steps if step.launch == number]
        expected = Counter(
            (*thread, address, step.at.line)
            for thread, mine in by_thread(steps).items() if thread[0] % 2 == thread[1] % 2 == 0
            for step, address in mine[::3]
        )  # fmt: skip
        found = Counter(
            (row["[block]"], row["[warp]"], row["[lane]"], row["address"], launch.lines[row["site"]])
            for row in launch.rows["GlobalAccesses"]
        )
        assert found == expected
        of_threads = by_thread(steps, "ld", "st", "atom", "red").values()
        pages = Counter(address >> 12 << 12 for mine in of_threads for _, address in mine)
        assert {row["key"]: row["count"] for row in launch.rows["HotLines"]} == pages


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
            if step.launch == number and step.at.space == "global" and step.at.parts[0] in kinds:
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


def _requests(launches: Mapping[int, Recorded], model: Model) -> None:
    """Loads as groups of lanes execute them, and those lanes."""
    for number, launch in launches.items():
        chosen = [len(step.executing) for step in groups(model, loads) if step.launch == number]
        assert launch.rows["Requests"] == [{"requests": len(chosen), "lanes": sum(chosen)}]


FILES = {
    ("tutorial.md", "python", "Accesses"): _accesses,
    ("cookbook.md", "python", "Moved"): _moved,
    ("probes.md", "toml", "Loads"): _first_loads,
    ("probes.md", "toml", "Requests"): _requests,
}


@pytest.mark.parametrize("file", FILES, ids=" ".join)
def test_files(file: tuple[str, str, str], recorded: dict[Any, tuple[dict[int, Recorded], Model]]) -> None:
    FILES[file](*recorded[file])


def test_sectors_of_the_tutorial(
    all_recorded: Path, recorded: dict[Any, tuple[dict[int, Recorded], Model]]
) -> None:
    """What its script prints: of the first launch of each kernel, of each access, the mean over its requests."""
    _, model = recorded["tutorial.md", "python", "Accesses"]
    finished = subprocess.run(
        [sys.executable, "-c", script("tutorial.md", "sectors.py")], cwd=all_recorded, text=True, capture_output=True,
        check=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    requests: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    moved: Counter[str] = Counter()
    for step in model.steps:
        is_traced = step.at.space == "global" and step.at.parts[0] != "cp"
        if is_traced and step.executing and step.launch in (0, 3, 4, 5):
            requests[step.kernel][step.at.text].append(len(sectors(step)))
            moved[step.kernel] += len(step.executing) * step.at.size
    expected = [f"{kernel}: {number:,} bytes" for kernel, number in moved.items()]
    expected += [
        f"  {sum(all_) / len(all_):g} sectors per request: {text}"
        for of_kernel in requests.values()
        for text, all_ in of_kernel.items()
    ]
    # What is linear and what random has tests of its own.
    found = [re.sub(r"(?<=request), [\w ]+(?=:)", "", line) for line in finished.stdout.splitlines()]
    assert sorted(found) == sorted(expected)
