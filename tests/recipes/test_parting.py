"""Probes that ask which lanes are together, many at one site: each figure is that of the probe alone, and the model's.

On kernels whose lanes part in every way, by the numbers of threads. Those of ``turns`` stay together for many turns of
a loop that polls, in which the embedded device must not let others go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from tests.recipes.bed import Folder, Program
from tests.recipes.model import Launch, Step
from tests.recipes.recorded import Recorded, record
from tests.recipes.shipped import JUDGES

_HEAD = """
.version 8.0
.target sm_90
.address_size 64
"""
# %t and %l: the thread in its block and the lane; %q: the thread's own word.
_KERNEL = """
.visible .entry {name}(
	.param .u64 out
)
{{
	.reg .pred %p<8>;
	.reg .b32 %t, %l, %k, %m, %n, %b, %r<8>;
	.reg .b64 %out, %q, %offset;
	mov.u32 %t, %tid.x;
	mov.u32 %k, %tid.y;
	mov.u32 %m, %ntid.x;
	mad.lo.u32 %t, %k, %m, %t;
	and.b32 %l, %t, 31;
	mov.u32 %b, %ctaid.x;
	mov.u32 %k, %ctaid.y;
	mov.u32 %m, %nctaid.x;
	mad.lo.u32 %b, %k, %m, %b;
	ld.param.u64 %out, [out];
	cvta.to.global.u64 %out, %out;
	shl.b32 %k, %t, 2;
	cvt.u64.u32 %offset, %k;
	add.u64 %q, %out, %offset;
{body}
	ret;
}}
"""
_NESTED = """
	and.b32 %k, %l, 1;
	setp.eq.u32 %p0, %k, 0;
	@%p0 bra EVEN;
	ld.global.u32 %r0, [%q];
	setp.lt.u32 %p1, %l, 9;
	@%p1 bra LOW;
	ld.global.u32 %r1, [%q];
	bra ODD;
LOW:
	st.global.u32 [%q], %l;
	setp.eq.u32 %p2, %l, 5;
	@%p2 bra ODD;
	ld.global.u32 %r1, [%q];
ODD:
	ld.global.u32 %r1, [%q];
	bra BOTH;
EVEN:
	ld.global.u32 %r0, [%q];
BOTH:
	st.global.u32 [%q], %t;
"""
# Each lane as many turns as its number; lane 31 forty times as many.
_TURNS = """
	mov.u32 %n, %l;
	setp.eq.u32 %p1, %l, 31;
	@%p1 mov.u32 %n, {most};
	mov.u32 %k, 0;
TURN:
	setp.ge.u32 %p0, %k, %n;
	@%p0 bra DONE;
	atom.global.add.u32 %r0, [%out+4096], 1;
	add.u32 %k, %k, 1;
	bra TURN;
DONE:
	st.global.u32 [%q], %n;
"""
# The guards of a series, of which some hold in no lane.
_SERIES = """
	rem.u32 %k, %l, 3;
	setp.eq.u32 %p0, %k, 1;
	setp.gt.u32 %p1, %l, 20;
	setp.gt.u32 %p2, %t, 4000;
	@%p0 ld.global.u32 %r0, [%q];
	@!%p0 ld.global.u32 %r0, [%q];
	@%p1 ld.global.u32 %r1, [%q];
	@%p2 ld.global.u32 %r1, [%q];
	@!%p2 st.global.u32 [%q], %l;
	@%p0 st.global.u32 [%q], %l;
"""
# In turn k the lanes with the number k modulo 8 leave, by two ways.
_LEAVING = """
	and.b32 %n, %l, 7;
	mov.u32 %k, 0;
TURN:
	ld.global.u32 %r0, [%q];
	setp.eq.u32 %p0, %k, %n;
	@%p0 bra LEAVE;
	add.u32 %k, %k, 1;
	setp.lt.u32 %p1, %k, 6;
	@%p1 bra TURN;
	st.global.u32 [%q], %k;
	exit;
LEAVE:
	setp.lt.u32 %p2, %l, 16;
	@%p2 exit;
	st.global.u32 [%q], %k;
"""
# Lanes in turns of their own within turns of their block's number, with a barrier between.
_LOOPS = """
	mov.u32 %r2, 0;
OUTER:
	and.b32 %n, %l, 3;
	mov.u32 %k, 0;
INNER:
	ld.global.u32 %r0, [%q];
	add.u32 %k, %k, 1;
	setp.le.u32 %p0, %k, %n;
	@%p0 bra INNER;
	bar.sync 0;
	st.global.u32 [%q], %k;
	add.u32 %r2, %r2, 1;
	setp.le.u32 %p1, %r2, %b;
	@%p1 bra OUTER;
"""
# Each warp in a loop of its own length, of which its odd lanes do twice as many turns.
_WARPS = """
	shr.u32 %n, %t, 5;
	add.u32 %n, %n, 1;
	mul.lo.u32 %n, %n, 20;
	and.b32 %m, %l, 1;
	setp.eq.u32 %p1, %m, 1;
	@%p1 shl.b32 %n, %n, 1;
	mov.u32 %k, 0;
TURN:
	atom.global.add.u32 %r0, [%out+4096], 1;
	add.u32 %k, %k, 1;
	setp.lt.u32 %p0, %k, %n;
	@%p0 bra TURN;
	ld.global.u32 %r1, [%q];
	st.global.u32 [%q], %k;
"""
_BODIES = {
    "nested": _NESTED, "turns": _TURNS.format(most=300), "series": _SERIES, "leaving": _LEAVING, "loops": _LOOPS,
    "warps": _WARPS,
}  # fmt: skip
_ARGUMENTS = {"out": "out"}
_LAUNCHES = (
    Launch("nested", (1, 1, 1), (32, 1, 1), _ARGUMENTS),
    Launch("nested", (2, 2, 1), (7, 7, 1), _ARGUMENTS),
    Launch("turns", (1, 1, 1), (32, 1, 1), _ARGUMENTS),
    Launch("turns", (2, 1, 1), (9, 7, 1), _ARGUMENTS),
    Launch("series", (1, 1, 1), (32, 1, 1), _ARGUMENTS),
    Launch("series", (1, 2, 1), (5, 9, 1), _ARGUMENTS),
    Launch("leaving", (1, 1, 1), (32, 1, 1), _ARGUMENTS),
    Launch("leaving", (3, 1, 1), (10, 5, 1), _ARGUMENTS),
    Launch("loops", (2, 2, 1), (12, 4, 1), _ARGUMENTS),
    Launch("warps", (2, 1, 1), (16, 6, 1), _ARGUMENTS),
)
_TEXT = _HEAD + "".join(_KERNEL.format(name=name, body=body.strip("\n")) for name, body in _BODIES.items())

_CHOSEN = "ld.global | st.global | atom.global"
# Of each kind of map one. Each probe asks anew which lanes are there, after the code of those before it.
_PROBES = {
    "log.py": f'''
import neutrino.language as nl
from neutrino import Map, probe

@Map(level="group", type="log")
class Log:
    site: nl.u32
    lanes: nl.u32

@probe(pos="{_CHOSEN}", level="group", before=True)
def log():
    Log.save(nl.site, nl.lanes)
''',
    "hash.py": f'''
import neutrino.language as nl
from neutrino import Map, probe

@Map(level="group", type="hash", keep=["sum"])
class Hash:
    key: nl.u64
    lanes: nl.u32

@probe(pos="{_CHOSEN}", level="group", before=True)
def hashed():
    Hash.save(nl.block * 64 + nl.popc(nl.lanes), nl.popc(nl.lanes))
''',
    "threads.py": f'''
import neutrino.language as nl
from neutrino import Map, probe

@Map(level="thread", type="log")
class Each:
    site: nl.u32
    lanes: nl.u32
    leads: nl.u32

@probe(pos="{_CHOSEN}", level="thread", before=True)
def each():
    Each.save(nl.site, nl.lanes, nl.leader)
''',
    "after.py": f'''
import neutrino.language as nl
from neutrino import Map, probe

@Map(level="thread", type="hash", keep=["sum"])
class After:
    leads: nl.u32
    lanes: nl.u32

@probe(pos="{_CHOSEN}", level="thread", after=True)
def after():
    if nl.leader:
        After.save(1, nl.popc(nl.lanes))
''',
    "sum.py": f'''
import neutrino.language as nl
from neutrino import Map, probe

@Map(level="group", type="sum")
class Sum:
    groups: nl.u64
    lanes: nl.u64

@probe(pos="{_CHOSEN}", level="group", before=True)
def summed():
    Sum.save(1, nl.warp.sum(nl.u32(1)))
''',
}
_SHORT = ("nested", "series", "leaving")
_SHIPPED = ("coalescing", "branch_divergence", "atomic_contention")


def _folder(factory: pytest.TempPathFactory, launches: Sequence[Launch], schedule: str = "") -> Folder:
    program = Program(_TEXT, {"out": bytes(8192)}, tuple(launches))
    made = Folder(factory.mktemp("parting"), factory.getbasetemp() / "cache", program, schedule)
    for name, text in _PROBES.items():
        (made.path / name).write_text(text)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return _folder(tmp_path_factory, _LAUNCHES)


Found = tuple[dict[int, Recorded], tuple[Step, ...]]


def _run(folder: Folder, place: str, names: Iterable[str]) -> Found:
    probes = [word for name in names for word in ("-p", f"./{name}" if "." in name else name)]
    launches, finished = record(folder, place, *probes)
    assert len(launches) == len(folder.program.launches)
    return launches, finished.model.steps


@pytest.fixture(scope="module")
def together(folder: Folder) -> Found:
    """With all probes, in an order in which each that asks for lanes follows others that branch."""
    return _run(folder, "together", [*_PROBES, *_SHIPPED])


def test_the_model_by_hand(together: Found) -> None:
    """How many groups of how many lanes come to the last instruction that matches, and to all."""
    _, steps = together
    sizes = [
        Counter(len(step.executing) for step in steps if step.launch == number and step.executing and _is_chosen(step))
        for number in range(len(_LAUNCHES))
    ]
    # Odd lanes, those from 9 on, those below, of these without 5, all odd ones; the even ones; all.
    assert sizes[0] == Counter([16, 12, 4, 3, 16, 16, 32])
    # Turns 0 to 30 of the lanes from 1 on, then of lane 31 alone; at the end all.
    assert sizes[2] == Counter([*range(31, 0, -1), *[1] * 269, 32])
    # Lanes 1, 4 … 31; the others; those from 21 on; all; lanes 1, 4 … 31.
    assert sizes[4] == Counter([11, 21, 11, 32, 11])
    # Of eight residues one leaves in each of six turns, and two stay and store; half of those that left meet to store.
    assert sizes[6] == Counter([32, 28, 24, 20, 16, 12, 8, 12])
    # Of blocks 0 to 3, each with a warp and half of one, as many times as the number says and one.
    assert sizes[8] == Counter([32, 24, 16, 8, 32, 16, 12, 8, 4, 16] * (1 + 2 + 3 + 4))
    # Three warps of two blocks: 20, 40 and 60 turns of all, and as many of half; then a load and a store.
    assert sizes[9] == Counter({32: 2 * (20 + 40 + 60 + 2 * 3), 16: 2 * (20 + 40 + 60)})


def _is_chosen(step: Step) -> bool:
    return step.of("ld", "global") or step.of("st", "global") or step.of("atom", "global")


def _check(name: str, launch: Recorded, number: int, steps: list[Step]) -> None:
    """Hold what one probe recorded of a launch against its steps."""
    chosen = [step for step in steps if step.executing and _is_chosen(step)]
    if name in JUDGES:
        JUDGES[name](launch, steps, number)
    elif name == "log.py":
        found = Counter(
            (row["[block]"], row["[warp]"], row["[lane]"], launch.lines[row["site"]], row["lanes"])
            for row in launch.rows["Log"]
        )
        assert found == Counter(
            (step.block, step.warp, min(step.executing), step.at.line, _mask(step)) for step in chosen
        )
    elif name == "threads.py":
        found = Counter(
            (row["[block]"], row["[warp]"], row["[lane]"], launch.lines[row["site"]], row["lanes"], row["leads"])
            for row in launch.rows["Each"]
        )
        assert found == Counter(
            (step.block, step.warp, lane, step.at.line, _mask(step), lane == min(step.executing))
            for step in chosen for lane in step.executing
        )
    elif name == "hash.py":
        sizes = Counter((64 * step.block + len(step.executing), len(step.executing)) for step in chosen)
        assert {row["key"]: (row["count"], row["sum"]) for row in launch.rows["Hash"]} == {
            key: (count, size * count) for (key, size), count in sizes.items()
        }
    elif name == "after.py":
        (row,) = launch.rows["After"]
        assert (row["count"], row["sum"]) == (len(chosen), sum(len(step.executing) for step in chosen))
    else:
        (row,) = launch.rows["Sum"]
        assert (row["groups"], row["lanes"]) == (len(chosen), sum(len(step.executing) for step in chosen))


def _mask(step: Step) -> int:
    return sum(1 << lane for lane in step.executing)


@pytest.mark.parametrize("name", [*_PROBES, *_SHIPPED])
def test_probes_at_one_site_do_not_part_each_others_lanes(name: str, together: Found) -> None:
    launches, steps = together
    for number, launch in launches.items():
        _check(name, launch, number, [step for step in steps if step.launch == number])


@pytest.mark.parametrize("name", ["log.py", "hash.py", "threads.py"])
def test_a_probe_alone(name: str, folder: Folder) -> None:
    launches, steps = _run(folder, f"of-{name}", [name])
    for number, launch in launches.items():
        _check(name, launch, number, [step for step in steps if step.launch == number])


def test_masks_are_of_the_site(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a random schedule lanes that a probe's code parts do not meet before the next; all see the same groups."""
    different = 0
    for seed in (1, 2):
        folder = _folder(tmp_path_factory, [one for one in _LAUNCHES if one.kernel in _SHORT], f",seed={seed}")
        launches, _ = _run(folder, "trace", ["log.py", "hash.py", "threads.py", "sum.py"])
        for launch in launches.values():
            logged = Counter(row["lanes"].bit_count() for row in launch.rows["Log"])
            hashed = Counter[int]()
            for row in launch.rows["Hash"]:
                hashed[row["key"] % 64] += row["count"]
            led = Counter(row["lanes"].bit_count() for row in launch.rows["Each"] if row["leads"])
            assert logged == hashed == led
            assert launch.rows["Sum"] == [
                {"groups": logged.total(), "lanes": sum(size * count for size, count in logged.items())}
            ]
            different += logged.keys() != {32}
    assert different
