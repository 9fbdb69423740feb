"""Level ``group`` and the words ``leader``, ``thread``, ``block``, in TOML and Python, on kernels that part.

What they record is compared with the model of the program, which shares no code with the rewriting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import pytest

from tests.recipes.bed import LAUNCHES, Folder, Model
from tests.recipes.model import Step
from tests.recipes.recorded import Recorded, record

_TOML = """
[map.Requests]
type = "sum"
level = "group"
data = { requests = "u64", lanes = "u64" }

[map.Odd]
type = "log"
level = "group"
data = { site = "u32", lanes = "u32" }

[map.Threads]
type = "log"
level = "thread"
data = { block = "u64", thread = "u32", leads = "u8" }

[probe.requests]
position = "ld.global | st.global | atom.global | red.global"
level = "group"
before = '''
.reg .b32 %lanes$, %odd$;
.reg .u64 %n$;
.reg .pred %p$;
popc.b32 %lanes$, LANES;
cvt.u64.u32 %n$, %lanes$;
SAVE [ Requests ] { 1, %n$ };
and.b32 %odd$, THREAD, 1;
setp.ne.u32 %p$, %odd$, 0;
@%p$ SAVE [ Odd ] { SITE, LANES };
'''

[probe.threads]
position = "kernel"
level = "thread"
after = "SAVE [ Threads ] { BLOCK, THREAD, LEADER };"
"""

_HEAD = '''
import neutrino.language as nl
from neutrino import Map, probe
'''
_PYTHON = '''

@Map(level="group", type="hash", keep=["sum"])
class ByBlock:
    block: nl.u64
    lanes: nl.u32


@Map(level="group", type="avg", per="warp")
class ByWarp:
    lanes: nl.u32


@probe(pos="ld.global | st.global | bra", level="group", before=True)
def by_block():
    lanes = nl.popc(nl.lanes)
    ByBlock.save(nl.block, lanes)
    ByWarp.save(lanes)
'''
_MIXED = '''
@Map(level="thread", type="hash", keep=["sum"])
class Mixed:
    kind: nl.u32
    lanes: nl.u32


@probe(pos="ld.global | st.global | bra", level="group", before=True)
def by_group():
    if nl.thread & 1:
        Mixed.save(0, nl.popc(nl.warp.ballot(nl.thread & 2 != 0)))


@probe(pos="ld.global | st.global | bra", level="thread", lanes="reaching", before=True)
def by_thread():
    if nl.leader:
        Mixed.save(1, nl.popc(nl.lanes))
'''
_REACHED = '''
@nl.probe(pos="ld.global | st.global", level="group", lanes="reaching", cap="dynamic")
def reached():
    nl.save((nl.block, nl.thread, nl.lanes, nl.site), dtype=nl.u64)
'''


_FILES = (
    ("groups.toml", _TOML),
    ("groups.py", _HEAD + _PYTHON),
    ("mixed.py", _HEAD + _MIXED),
    ("reached.py", _HEAD + _REACHED),
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, Recorded], Model]:
    folder = Folder(tmp_path_factory.mktemp("groups"), tmp_path_factory.getbasetemp() / "cache")
    for name, text in _FILES:
        (folder.path / name).write_text(text)
    launches, result = record(folder, "trace", *(word for name, _ in _FILES for word in ("-p", f"./{name}")))
    for one in launches.values():
        for rows in one.rows.values():
            for row in rows:
                if "site" in row:
                    row["line"] = one.lines[row["site"]]
    return launches, result.model


def _steps(model: Model, number: int) -> list[Step]:
    return [step for step in model.steps if step.launch == number and step.executing]


def _is_access(step: Step) -> bool:
    return step.at.space == "global" and step.at.parts[0] in ("ld", "st", "atom", "red")


def _is_chosen(step: Step) -> bool:
    return step.of("ld", "global") or step.of("st", "global") or step.at.parts[0] == "bra"


def _mask(lanes: Iterable[int]) -> int:
    return sum(1 << lane for lane in lanes)


def _totals(rows: list[dict[str, int]]) -> dict[int, tuple[int, int]]:
    return {row["key"]: (row["count"], row["sum"]) for row in rows}


def test_a_group_saves_once(recorded: tuple[dict[int, Recorded], Model]) -> None:
    launches, model = recorded
    assert len(launches) == len(LAUNCHES)
    parted = 0
    for number, launch in launches.items():
        steps = [step for step in _steps(model, number) if _is_access(step)]
        (row,) = launch.rows["Requests"]
        assert (row["requests"], row["lanes"]) == (len(steps), sum(len(step.executing) for step in steps))
        parted += sum(1 for step in steps if min(step.executing) != 0)
    # Else the first lane of the warp would do.
    assert parted > 20


def test_its_lowest_lane_saves(recorded: tuple[dict[int, Recorded], Model]) -> None:
    """The snippet's own predicate is that of the lowest lane."""
    launches, model = recorded
    for number, launch in launches.items():
        found = Counter(
            (row["[block]"], row["[warp]"], row["[lane]"], row["line"], row["lanes"])
            for row in launch.rows["Odd"]
        )
        assert found == Counter(
            (step.block, step.warp, min(step.executing), step.at.line, _mask(step.executing))
            for step in _steps(model, number) if _is_access(step) and min(step.executing) % 2
        )


def test_linear_numbers(recorded: tuple[dict[int, Recorded], Model]) -> None:
    """Of all threads, where they end: those of maps, in grids and blocks of two and three dimensions."""
    launches, _ = recorded
    for number, launch in launches.items():
        rows = launch.rows["Threads"]
        assert {(row["block"], row["thread"]) for row in rows} == {
            (block, thread) for block in range(LAUNCHES[number].blocks) for thread in range(LAUNCHES[number].threads)
        }
        assert len(rows) == LAUNCHES[number].blocks * LAUNCHES[number].threads
        leaders: Mapping[tuple[int, int], list[int]] = defaultdict(list)
        for row in rows:
            assert row["block"] == row["[block]"]
            assert row["thread"] == 32 * row["[warp]"] + row["[lane]"]
            if row["leads"]:
                leaders[row["[block]"], row["[warp]"]].append(row["[lane]"])
        # Those that end last in a warp, and maybe others before.
        assert leaders.keys() == {(row["[block]"], row["[warp]"]) for row in rows}


def test_groups_in_python(recorded: tuple[dict[int, Recorded], Model]) -> None:
    launches, model = recorded
    for number, launch in launches.items():
        steps = [step for step in _steps(model, number) if _is_chosen(step)]
        by_block: dict[int, list[int]] = defaultdict(list)
        by_warp: dict[tuple[int, int], list[int]] = defaultdict(list)
        for step in steps:
            by_block[step.block].append(len(step.executing))
            by_warp[step.block, step.warp].append(len(step.executing))
        assert _totals(launch.rows["ByBlock"]) == {block: (len(all_), sum(all_)) for block, all_ in by_block.items()}
        assert {(row["[block]"], row["[warp]"]): (row["count"], row["sum"]) for row in launch.rows["ByWarp"]} == {
            warp: (len(all_), sum(all_)) for warp, all_ in by_warp.items()
        }


def test_conditions_and_what_lanes_exchange(recorded: tuple[dict[int, Recorded], Model]) -> None:
    """An ``if`` asks the lowest lane; votes in it are of all lanes in which it holds, as at any level."""
    launches, model = recorded
    for number, launch in launches.items():
        odd = [step for step in _steps(model, number) if _is_chosen(step) and min(step.executing) % 2]
        reached = [step for step in model.steps if step.launch == number and _is_chosen(step)]
        votes = [len([lane for lane in step.executing if lane % 2 and lane & 2]) for step in odd]
        expected = {1: (len(reached), sum(len(step.reaching) for step in reached))}
        if odd:
            expected[0] = len(odd), sum(votes)
        assert _totals(launch.rows["Mixed"]) == expected


def test_all_that_reach_an_instruction(recorded: tuple[dict[int, Recorded], Model]) -> None:
    launches, model = recorded
    predicated = 0
    for number, launch in launches.items():
        steps = [
            step for step in model.steps
            if step.launch == number and step.reaching and (step.of("ld", "global") or step.of("st", "global"))
        ]
        predicated += sum(1 for step in steps if set(step.reaching) != set(step.executing))
        assert Counter(
            (row["block"], row["thread"], row["lanes"], row["line"]) for row in launch.rows["reached"]
        ) == Counter(
            (step.block, 32 * step.warp + min(step.reaching), _mask(step.reaching), step.at.line) for step in steps
        )
    assert predicated
