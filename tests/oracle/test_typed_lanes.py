"""What typed statements ask of the warp, the grid and the clock, on the embedded device and in machine code."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.levels import LEVELS, Level
from neutrino.ir.operands import Constant, Register, Special
from neutrino.ir.statements import (
    ClockAfter,
    Collective,
    Compare,
    Convert,
    Load,
    Operation,
    Operator,
    Reduction,
    Relation,
    Shuffle,
    reduced_type,
)
from neutrino.ir.types import PROBE_TYPES, Type
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.structured import If, Save, Statement, While
from neutrino.ptx.snippets.lowering import lower
from neutrino.targets import trace_text
from neutrino.verification import read_probes
from tests.oracle.assembling import assemble
from tests.oracle.bench import Bench, Kernel, make_twins, skip_of
from tests.oracle.test_matrix import ALL
from tests.oracle.twin_launch import LoadedTwin
from tests.oracle.typed import (
    BLOCK,
    HERE,
    a_map,
    differences,
    draft,
    edges,
    kernel,
    local,
    run,
    saving,
    sealed,
    site,
)
from tests.oracle.typed_model import Machine
from tests.oracle.typed_programs import reductions

sys.path.insert(0, str(Path(__file__).parents[1] / "ptx"))
from machine import machine_code

A, B, LESS = local("a", Type.U32), local("b", Type.U32), local("less", Type.PRED)
COMPARED: tuple[Statement, ...] = (
    Load(A, site("IN1"), HERE), Load(B, site("IN2"), HERE), Compare(Relation.LT, LESS, A, B, HERE),
)  # fmt: skip
LEFT = np.arange(2 * BLOCK, dtype=np.uint32) * 7 % 100
RIGHT = np.arange(2 * BLOCK, dtype=np.uint32) * 13 % 100
VALUES = tuple(kind for kind in PROBE_TYPES if kind is not Type.F16X2)
WARP = 32


@pytest.mark.parametrize("kind", VALUES)
def test_every_reduction(kind: Type) -> None:
    """Of all lanes, of those on either side of an ``If``, and of those that are in both of two."""
    width = max(kind.bits, 16)
    bits = np.dtype(f"u{width // 8}")
    x, y = local("x", kind), local("y", Type(f"u{width}"))
    body: list[Statement] = [Load(y, site("IN2"), HERE)]
    if kind is Type.PRED:
        word = local("word", Type.U16)
        body += [Load(word, site("IN1"), HERE), Compare(Relation.NE, x, word, Constant(Type.U16, 0), HERE)]
    else:
        body.append(Load(x, site("IN1"), HERE))
    odd, small = local("odd", Type.PRED), local("small", Type.PRED)
    rest = local("rest", y.type)
    body += [
        Operation(Operator.AND, rest, (y, Constant(y.type, 1)), HERE),
        Compare(Relation.EQ, odd, rest, Constant(y.type, 1), HERE),
        Compare(Relation.LT, small, y, Constant(y.type, 60), HERE),
    ]
    # Of other lanes, some of which are not there, and some of which no warp has.
    other = local("other", Type.U32)
    body.append(Convert(other, y, HERE))
    results: list[Register] = []

    def between(name: str) -> list[Statement]:
        made: list[Statement] = []
        asked = {*reductions(kind), *([Reduction.BALLOT] if kind is Type.PRED else [])}
        if kind.is_integer and kind.bits >= 32:
            asked |= {Reduction.MATCH, Reduction.SAME}
        for reduction in sorted(asked, key=lambda item: item.value):
            target = local(f"{name}_{reduction.value}", reduced_type(reduction, kind, Type.U32))
            zero = Constant(target.type, 0)
            body.append(Operation(Operator.MOVE, target, (zero,), HERE))
            made.append(Collective(reduction, target, x, HERE))
            results.append(target)
        target = local(f"{name}_shuffled", kind)
        body.append(Operation(Operator.MOVE, target, (Constant(kind, 0),), HERE))
        made.append(Shuffle(target, x, other, HERE))
        results.append(target)
        return made

    if kind is Type.PRED:
        who, inside = local("who", Type.U32), local("inside", Type.U32)
        everyone = Constant(Type.PRED, 1)
        body.append(Operation(Operator.MOVE, inside, (Constant(Type.U32, 0),), HERE))
        body.append(Collective(Reduction.BALLOT, who, everyone, HERE))
        body.append(If(odd, (Collective(Reduction.BALLOT, inside, everyone, HERE),), (), HERE))
        results += [who, inside]
    everywhere, then, otherwise, inner = between("all"), between("then"), between("otherwise"), between("inner")
    body += [*everywhere, If(odd, (*then, If(small, (), tuple(inner), HERE)), tuple(otherwise), HERE)]
    more, save = saving(results)
    random = np.random.default_rng(3)
    words = [edge for edge in edges(kind) for _ in range(2)]
    count = -(-len(words) // BLOCK) * BLOCK + 4 * BLOCK
    left = random.integers(0, 1 << min(kind.bits, 62), count).astype(bits)
    left[: len(words)] = np.array(words, np.uint64).astype(bits)
    if kind is Type.PRED:
        left[:WARP], left[WARP : 2 * WARP] = 0, 1
    right = random.integers(0, 100, count).astype(bits)
    # A warp whose lanes are all on one side, and one with a single lane on the other.
    right[:WARP] |= 1
    right[WARP : 2 * WARP] &= 0xFE
    right[WARP + 9] |= 1
    assert differences(sealed(draft([*body, *more, save])), left, right) == []


def test_what_all_lanes_agree_on_is_skipped_together() -> None:
    """In an ``If`` of a condition that is the same in all lanes, instructions between lanes take its predicate: they
    are not executed where it is false. Where lanes may differ they are executed by all."""
    spread, lowest, far = (local(name, Type.U32) for name in ("spread", "lowest", "far"))
    agreed = local("agreed", Type.PRED)
    results = [local(f"r{number}", Type.U32) for number in range(4)]
    total, kept = local("total", Type.U32), Register("%kept", Type.U32, 3, HERE)

    def inside(targets: list[Register]) -> tuple[Statement, ...]:
        return (
            Collective(Reduction.MATCH, targets[0], B, HERE), Collective(Reduction.SUM, total, B, HERE),
            Operation(Operator.ADD, targets[1], (targets[0], total), HERE),
            Operation(Operator.ADD, kept, (kept, total), HERE),
        )  # fmt: skip

    body: tuple[Statement, ...] = (
        *COMPARED, *(Operation(Operator.MOVE, item, (Constant(Type.U32, 7),), HERE) for item in results),
        Collective(Reduction.MAX, spread, B, HERE), Collective(Reduction.MIN, lowest, B, HERE),
        Operation(Operator.SUB, spread, (spread, lowest), HERE), Operation(Operator.MOVE, far, (spread,), HERE),
        Compare(Relation.GT, agreed, far, Constant(Type.U32, 50), HERE),
        If(agreed, inside(results[:2]), (), HERE), If(LESS, inside(results[2:]), (), HERE),
    )  # fmt: skip
    more, save = saving([*results, kept])
    left, right = LEFT.copy(), RIGHT.copy()
    right[:WARP] = np.arange(WARP) % 5
    probes = sealed(draft([*body, *more, save]))
    assert differences(probes, left, right) == []
    text = trace_text(lower(probes))
    guarded = [line.split()[1].partition(".")[0] for line in text.splitlines() if re.match(r"@.* (match|redux)", line)]
    assert guarded == ["match", "redux"]
    assert len(re.findall("^(?:match|redux)", text, re.MULTILINE)) == 4
    _reads_back(probes)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.MAX, Reduction.FIRST])
def test_at_every_level_all_lanes_of_the_warp_count(level: Level, reduction: Reduction) -> None:
    """Also where the register that a level's thread saves must keep its value in others, since more of them read it."""
    total, kept = local("total", Type.U32), Register("%kept", Type.U32, 5, HERE)
    entry = a_map("M", ["u32", "u32"], level)
    body = (
        *COMPARED, Operation(Operator.MOVE, total, (Constant(Type.U32, 0),), HERE),
        If(LESS, (Collective(reduction, total, A, HERE),), (), HERE),
        Operation(Operator.ADD, kept, (kept, total), HERE), Save(entry, (total, kept), HERE),
    )  # fmt: skip
    machine = Machine(LEFT.size, {"IN1": LEFT, "IN2": RIGHT}, [kept])
    machine.run(body)
    ((_, (wanted, sums), _),) = machine.saved
    every = {Level.THREAD: 1, Level.WARP: WARP, Level.BLOCK: BLOCK}[level]
    (probe,) = (drafted := draft(body, level=level)).probes
    reader = draft((Save(a_map("R", ["u32"]), (kept,), HERE),), "st.global").probes[0]
    maps, probes = (entry, a_map("R", ["u32"])), (probe, replace(reader, name="reader"))
    both = sealed(DraftProbes(drafted.file, drafted.source, maps, drafted.registers, probes))
    views = run(both, kernel(LEFT, RIGHT))
    assert views["M"].records["f0"].reshape(-1).tolist() == wanted[::every].tolist()
    assert views["M"].records["f1"].reshape(-1).tolist() == sums[::every].tolist()
    changed = np.arange(LEFT.size) % every == 0
    assert views["R"].records["f0"].reshape(-1).tolist() == np.where(changed, sums, 5).tolist()
    _reads_back(both)


def _reads_back(probes) -> None:  # type: ignore[no-untyped-def]
    again = read_probes("probe.toml", trace_text(lower(probes)))
    assert trace_text(again).partition("\n")[2] == trace_text(lower(probes)).partition("\n")[2]


@pytest.mark.parametrize("name", ["branches", "exits", "switch_table", "votes"])
def test_lanes_that_part_are_counted_once(name: str) -> None:
    """Each lane adds one to the sum of the lanes that are there, and the lowest saves it: all together the threads."""
    lanes, first, own, one = (local(word, Type.U32) for word in ("lanes", "first", "own", "one"))
    leads = local("leads", Type.PRED)
    entry, threads = a_map("Leaders", ["u32"], kind=_sum()), a_map("Threads", ["u32"], kind=_sum())
    body: tuple[Statement, ...] = (
        Operation(Operator.MOVE, one, (Constant(Type.U32, 1),), HERE),
        Operation(Operator.MOVE, own, (Special.LANE,), HERE),
        Collective(Reduction.SUM, lanes, one, HERE), Collective(Reduction.FIRST, first, own, HERE),
        Compare(Relation.EQ, leads, first, own, HERE),
        If(leads, (Save(entry, (lanes,), HERE),), (), HERE), Save(threads, (one,), HERE),
    )  # fmt: skip
    for seed in (None, 1):
        bench = Bench(ALL[name], (), (seed,))
        probes = sealed(draft(body, "ld | st | setp | add | bra"))
        twins = make_twins(ALL[name], probes)
        assert skip_of(twins) is None
        at = bench.place(seed)
        loaded = LoadedTwin(twins.kernels[0], at.device.load(twins.render()), at.module.variables)
        views = loaded.launch(at.device, at.launch())
        assert views["Leaders"].total()["f0"] == views["Threads"].total()["f0"] > 0


def _sum():  # type: ignore[no-untyped-def]
    from neutrino.maps.registry import SUM

    return SUM


@pytest.mark.parametrize("position", ["kernel", "func:site"])
def test_at_a_kernels_entry_and_ends(position: str) -> None:
    lanes, one = local("lanes", Type.U32), local("one", Type.PRED)
    body = (
        Operation(Operator.MOVE, one, (Constant(Type.PRED, 1),), HERE),
        Collective(Reduction.BALLOT, lanes, one, HERE), Save(a_map("M", ["u32"]), (lanes,), HERE),
    )  # fmt: skip
    for after in (False, True):
        views = run(sealed(draft(body, position, after=after)), kernel(LEFT, RIGHT))
        assert set(views["M"].records["f0"].reshape(-1).tolist()) == {0xFFFFFFFF}


GEOMETRY = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .b64 %a;
    .reg .b32 %x;
    ld.param.u64 %a, [out];
    mov.u32 %x, %ctaid.x;
    st.global.u32 [%a], %x;
    ret;
}
"""


def test_where_a_thread_is() -> None:
    grid, block = (3, 2, 2), (5, 4, 3)
    place = Kernel("geometry", GEOMETRY, "k", grid, block, (np.zeros(4, np.uint32),), ordered=False, stable=False)
    body: list[Statement] = []
    results = {}
    for special in Special:
        if special.type is Type.U32 and special is not Special.CUID:
            results[special] = local(special.name.lower(), Type.U32)
            body.append(Operation(Operator.MOVE, results[special], (special,), HERE))
    warp = local("warp_plus", Type.U32)
    body.append(Operation(Operator.ADD, warp, (Special.WARP, Constant(Type.U32, 100)), HERE))
    more, save = saving([*results.values(), warp])
    bench = Bench(place, ())
    probes = sealed(draft([*body, *more, save], "st.global"))
    twins = make_twins(place, probes)
    assert skip_of(twins) is None
    at = bench.place(None)
    loaded = LoadedTwin(twins.kernels[0], at.device.load(twins.render()), at.module.variables)
    records = loaded.launch(at.device, at.launch())["M"].records
    slots = records.reshape(12, 2, WARP)
    for number, special in enumerate(results):
        found = slots[f"f{number}"].reshape(12, -1)[:, :60]
        thread, of_block = np.meshgrid(np.arange(60), np.arange(12))
        wanted = {
            "tid.x": thread % 5, "tid.y": thread // 5 % 4, "tid.z": thread // 20,
            "ctaid.x": of_block % 3, "ctaid.y": of_block // 3 % 2, "ctaid.z": of_block // 6,
            "lane": thread % WARP, "lanemask_lt": (1 << thread % WARP) - 1, "warp": thread // WARP,
            **{f"ntid.{axis}": extent for axis, extent in zip("xyz", block, strict=True)},
            **{f"nctaid.{axis}": extent for axis, extent in zip("xyz", grid, strict=True)},
        }  # fmt: skip
        # Each block is a cluster of its own there.
        for axis in "xyz":
            wanted |= {f"clusterid.{axis}": wanted[f"ctaid.{axis}"], f"nclusterid.{axis}": wanted[f"nctaid.{axis}"]}
            wanted |= {f"cluster_ctaid.{axis}": 0, f"cluster_nctaid.{axis}": 1}
        assert (found == wanted[special.value]).all(), special
    of_warp = slots[f"f{len(results)}"].reshape(12, -1)[:, :60]
    assert (of_warp == 100 + np.arange(60) // WARP).all()
    cubin, said = assemble(twins.render())
    assert cubin, said


@pytest.mark.parametrize(("position", "wanted"), [("ld.global", [70, 71]), ("k.cu:70-71", [70]), ("xor", [0])])
def test_the_line_of_the_source(position: str, wanted: list[int]) -> None:
    """Of each of two instructions of one opcode, of the first of several lines, and 0 of code that is on none."""
    place = kernel(LEFT, RIGHT)
    text = place.text.replace("ld.global.b32 %x", ".loc 1 70 3\n    ld.global.b32 %x")
    text = text.replace("ld.global.b32 %y", ".loc 1 71 9\n    ld.global.b32 %y")
    text = text.replace("    xor", "    .loc 1 0 0\n    xor")
    place = replace(place, text=f'{text}\n.file 1 "/src/k.cu"\n')
    line, wide = local("line", Type.U32), local("wide", Type.U32)
    entry = replace(a_map("M", ["u32", "u64"]), cap=4)
    body = (
        Load(line, site("LINE"), HERE), Operation(Operator.ADD, wide, (line, Constant(Type.U32, 0)), HERE),
        Save(entry, (wide, site("LINE")), HERE),
    )  # fmt: skip
    view = run(sealed(draft(body, position)), place)["M"]
    assert view.counts is not None
    assert (view.counts == len(wanted)).all()
    for field in ("f0", "f1"):
        assert {*view.records[field].reshape(-1).tolist()} - {0} == {*wanted} - {0}


def test_clusters_need_sm_90() -> None:
    n = local("n", Type.U32)
    body = (Operation(Operator.MOVE, n, (Special.CLUSTERID_X,), HERE), Save(a_map("M", ["u32"]), (n,), HERE))
    skip = skip_of(make_twins(kernel(LEFT, RIGHT, 80), sealed(draft(body))))
    assert skip is not None
    assert "%clusterid.x' needs sm_90, the kernel is for sm_80" in skip.detail


def test_a_loop_ends_at_its_bound() -> None:
    """Collatz steps: most threads reach 1 before the bound, the others stop there."""
    x, n, odd, goes = local("x", Type.U32), local("n", Type.U32), local("odd", Type.PRED), local("goes", Type.PRED)
    rest = local("rest", Type.U32)
    one = Constant(Type.U32, 1)
    test = (Compare(Relation.GT, goes, x, one, HERE),)
    turn = (
        Operation(Operator.AND, rest, (x, one), HERE), Compare(Relation.EQ, odd, rest, one, HERE),
        If(
            odd,
            (Operation(Operator.MUL, x, (x, Constant(Type.U32, 3)), HERE), Operation(Operator.ADD, x, (x, one), HERE)),
            (Operation(Operator.SHR, x, (x, one), HERE),),
            HERE,
        ),
        Operation(Operator.ADD, n, (n, one), HERE),
    )  # fmt: skip
    bound = 20
    body = (
        Load(x, site("IN1"), HERE), Operation(Operator.MOVE, n, (Constant(Type.U32, 0),), HERE),
        While(test, goes, turn, bound, HERE), Save(a_map("M", ["u32", "u32"]), (x, n), HERE),
    )  # fmt: skip
    records = run(sealed(draft(body)), kernel(LEFT, RIGHT))["M"].records.reshape(-1)
    for given, found in zip(LEFT.tolist(), records, strict=True):
        value, steps = given, 0
        while value > 1 and steps < bound:
            value, steps = value * 3 + 1 if value % 2 else value // 2, steps + 1
        assert (found["f0"], found["f1"]) == (value, steps)
    assert {bound} < set(records["f1"].tolist())


CHASE = """.version {version}
.target {arch}
.address_size 64
.visible .entry k(.param .u64 in)
{{
    .reg .b64 %a, %d;
    .reg .b32 %x;
    .reg .b16 %h;
    .reg .f32 %f;
    ld.param.u64 %a, [in];
    ld.global.nc.{kind} {register}, [%a];
    st.global.{kind} [%a+64], {register};
    ret;
}}
"""
LOADED = {Type.U32: "%x", Type.U64: "%d", Type.F32: "%f", Type.U16: "%h"}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("kind", LOADED)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_the_clock_waits_for_a_value(arch: str, kind: Type, tmp_path: Path, ptxas: object) -> None:
    """In machine code an instruction that needs the load's result stands between the load and the clock.

    A plain clock is read without waiting for the result, which shows once for each architecture that the test can fail.
    """
    text = CHASE.format(arch=arch, kind=kind, register=LOADED[kind], version="8.7")
    place = Kernel("chase", text, "k", (1, 1, 1), (WARP, 1, 1), (np.zeros(64, np.uint64),))
    started, value, done = Register("%started", Type.U64, 0, HERE), local("value", kind), local("done", Type.U64)
    before = Operation(Operator.MOVE, started, (Special.CLOCK,), HERE)
    waits = {}
    for is_plain in (False, True) if kind is Type.U32 else (False,):
        read = Operation(Operator.MOVE, done, (Special.CLOCK,), HERE) if is_plain else ClockAfter(done, value, HERE)
        body = [
            Load(value, site("OUT"), HERE), read, Operation(Operator.SUB, done, (done, started), HERE),
            Save(a_map("M", ["u64"]), (done,), HERE),
        ]  # fmt: skip
        first = draft([before], "ld.global").probes[0]
        second = draft(body, "ld.global", after=True)
        probes = (replace(first, name="starts"), *second.probes)
        drafted = DraftProbes(second.file, second.source, second.maps, (started, *second.registers), probes)
        twins = make_twins(place, sealed(drafted))
        assert skip_of(twins) is None
        code = machine_code(twins.render(), arch, tmp_path)["k__neutrino"]
        waits[is_plain] = _waits_before_clock(code)
    assert waits[False], code
    assert not waits.get(True), code


def _waits_before_clock(code: list[str]) -> bool:
    """Whether an instruction between the kernel's load and the next read of the clock reads what was loaded."""
    (load,) = [number for number, line in enumerate(code) if "LDG" in line and "CONSTANT" in line]
    register = re.search(r"LDG\S* (R\d+)", code[load])
    assert register is not None
    clock = next(number for number in range(load, len(code)) if "SR_CLOCKLO" in code[number])
    return any(re.search(rf"\b{register[1]}\b", line.partition(" ")[2]) for line in code[load + 1 : clock])


def test_the_clock_after_a_value_is_a_clock() -> None:
    """On the embedded device: later than the one before the load, in every thread."""
    started, value, done = local("started", Type.U64), local("value", Type.U32), local("done", Type.U64)
    body = [
        Operation(Operator.MOVE, started, (Special.CLOCK,), HERE), Load(value, site("OUT"), HERE),
        ClockAfter(done, value, HERE), Save(a_map("M", ["u64", "u64"]), (started, done), HERE),
    ]  # fmt: skip
    records = run(sealed(draft(body, after=True)), kernel(LEFT, RIGHT))["M"].records
    assert (records["f1"] > records["f0"]).all()
