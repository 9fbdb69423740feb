"""Sums where warps end in parts, several times, partial, under predicates, inside and outside of graphs: NumPy says
what each thread did."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.oracle.bench import Bench, Kernel, skip_of
from tests.oracle.probes import Probe

_FEW = 12
_KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry ends(.param .u64 given)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [given];
	mov.u32 %r0, %tid.x;
	mul.wide.u32 %rd2, %r0, 4;
	add.u64 %rd1, %rd1, %rd2;
"""
_STAGE = """	rem.u32 %r1, %r0, TURNS;
L_NUMBER:
	ld.global.u32 %r2, [%rd1];
	st.global.u32 [%rd1], %r1;
	sub.s32 %r1, %r1, 1;
	setp.ge.s32 %p0, %r1, 0;
	@%p0 bra L_NUMBER;
	rem.u32 %r3, %r0, EACH;
	setp.eq.u32 %p1, %r3, REST;
	@NOT%p1 HOW;
"""
_MAPS = """
[map.A]
type = "sum"
level = "thread"
data = { bytes = "u64", one = "u64", wide = "u64", less = "s64" }
[map.B]
type = "sum"
level = "thread"
data = { stored = "u64", narrow = "u32", always = "u64", small = "u64" }
[map.C]
type = "sum"
level = "thread"
data = { loads = "u64", stores = "u64", both = "u64", threads = "u64" }
[map.D]
type = "sum"
level = "thread"
per = "warp"
data = { loads = "u64", small = "u64", more = "u64" }
"""
_LOADS = """
[probe.load]
position = "ld.global"
level = "thread"
before = \"\"\"
.reg .u32 %t;
.reg .u64 %w, %x;
.reg .s64 %s;
mov.u32 %t, %tid.x;
cvt.u64.u32 %x, %t;
mul.wide.u32 %w, %t, FACTOR;
sub.s64 %s, 3, %x;
SAVES
\"\"\"
"""
_STORES = """
[probe.store]
position = "st.global"
level = "thread"
before = \"\"\"
SAVES
\"\"\"
[probe.end]
position = "kernel"
level = "thread"
after = \"\"\"
ENDS
\"\"\"
"""


@dataclass(frozen=True)
class _Stage:
    """A loop of 1 + tid % turns loads and stores, then an end for tid % each == rest, or for all others."""

    turns: int
    each: int
    rest: int
    negated: bool
    how: str

    def text(self, number: int) -> str:
        """The stage in PTX."""
        parts = {"TURNS": self.turns, "EACH": self.each, "REST": self.rest, "NOT": "!" * self.negated, "HOW": self.how,
                 "NUMBER": number}  # fmt: skip
        text = _STAGE
        for name, part in parts.items():
            text = text.replace(name, str(part))
        return text


_stage = st.builds(
    _Stage, st.integers(1, 3), st.integers(1, 9), st.integers(0, 8), st.booleans(), st.sampled_from(["ret", "exit"])
)
# Which saves there are, so that sums are added by one lane or by several, for one map or for more.
_SETS = {
    "A": ("SAVE [ A ] { BYTES, 1, %w, %s };", "", ""),
    "AB": ("SAVE [ A ] { BYTES, 1, %w, %s };", "SAVE [ B ] { BYTES, 7, 1, 3 };", ""),
    "C": ("SAVE [ C ] { 1, 0, 5, 0 };", "SAVE [ C ] { 0, 1, 2, 0 };", "SAVE [ C ] { 0, 0, 0, 1 };"),
    "BC": ("SAVE [ C ] { 1, 0, 5, 0 };\nSAVE [ B ] { 0, 0, 0, %x };", "SAVE [ C ] { 0, 1, 2, 0 };",
           "SAVE [ C ] { 0, 0, 0, 1 };"),
    "D": ("SAVE [ D ] { 1, %x, %w };", "", ""),
}  # fmt: skip


def _wanted(stages: list[_Stage], threads: int, blocks: int, factor: int, which: str) -> dict[str, int]:
    """What the fields' sums are, by ``map.field``."""
    thread = np.arange(threads)
    alive, turns = np.ones(threads, bool), np.zeros(threads, np.int64)
    for stage in stages:
        turns[alive] += 1 + thread[alive] % stage.turns
        alive &= (thread % stage.each == stage.rest) == stage.negated
    count, weighted = int(turns.sum()), int((turns * thread).sum())
    loads = {
        "A.bytes": 4 * count, "A.one": count, "A.wide": factor * weighted, "A.less": 3 * count - weighted,
        "B.stored": 4 * count, "B.narrow": 7 * count, "B.always": count, "B.small": 3 * count,
        "C.loads": count, "C.stores": count, "C.both": 7 * count, "C.threads": threads,
        "D.loads": count, "D.small": weighted, "D.more": factor * weighted,
    }  # fmt: skip
    if which == "BC":
        loads |= {"B.stored": 0, "B.narrow": 0, "B.always": 0, "B.small": weighted}
    return {name: value * blocks for name, value in loads.items() if name[0] in which}


def _check(stages: list[_Stage], threads: int, blocks: int, factor: int, which: str) -> None:
    text = _KERNEL + "".join(stage.text(number) for number, stage in enumerate(stages)) + "\tret;\n}\n"
    given_words = np.zeros(threads, np.uint32)
    kernel = Kernel("ends", text, "ends", (blocks, 1, 1), (threads, 1, 1), (given_words,))
    maps = "".join(f"[map.{part}" for part in _MAPS.split("[map.")[1:] if part[0] in which)
    load, store, end = _SETS[which]
    probes = maps + _LOADS.replace("FACTOR", str(factor)).replace("SAVES", load)
    stores, _, ends = _STORES.partition("[probe.end]")
    probes += stores.replace("SAVES", store) if store else ""
    probes += ("[probe.end]" + ends).replace("ENDS", end) if end else ""
    probe = Probe("ends", (), text=probes)
    bench = Bench(kernel, (probe,), (None, 3))
    twins = bench.twins(probe)
    assert skip_of(twins) is None, skip_of(twins)
    wanted = _wanted(stages, threads, blocks, factor, which)
    for seed in bench.schedules:
        views, results = bench.run(probe, twins.kernels[0], twins.render(), seed)
        assert results == bench.results(seed)
        found = {}
        for name, view in views.items():
            types = {field.name: np.dtype(field.type.value.replace("u", "uint").replace("s", "int"))
                     for field in view.map.fields}  # fmt: skip
            rows = view.total()
            for field, kind in types.items():
                found[f"{name}.{field}"] = int(np.asarray(rows[field]).sum(dtype=kind))
        assert found == wanted, text


@pytest.mark.parametrize("which", _SETS)
def test_sums_are_what_threads_did(which: str, pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("--random-rewrites") or _FEW

    @settings(
        max_examples=count,
        phases=(Phase.generate,),
        deadline=None,
        database=None,
        derandomize=count == _FEW,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        st.lists(_stage, max_size=4), st.sampled_from([1, 7, 31, 32, 33, 64, 95]), st.integers(1, 3),
        st.sampled_from([1, 3, 1 << 22, 4_000_000_000]),
    )  # fmt: skip
    def check(stages: list[_Stage], threads: int, blocks: int, factor: int) -> None:
        _check([_Stage(1, 1, 1, False, "ret"), *stages], threads, blocks, factor, which)

    check()
