"""Counts worked out by hand, of kernels whose threads leave, call and overwrite what probes depend on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from neutrino.tracing.views import MapView
from tests.oracle.bench import Bench, Kernel
from tests.oracle.probes import Probe

_HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
_ENTRY = """.visible .entry k(.param .u64 in, .param .u64 out)
{
	.reg .pred %p<8>;
	.reg .b32 %r<16>;
	.reg .b64 %rd<8>;
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [out];
	mov.u32 %r1, %tid.x;
	setp.lt.u32 %p1, %r1, 7;
	setp.gt.u32 %p2, %r1, 20;
"""
_THREADS = 40
_LOW, _HIGH = 7, 19
"""Threads of a block for which %p1 and %p2 hold."""
_SUM = '[map.M]\ntype = "sum"\nlevel = "thread"\nsize = 8\ndata = { n = "u64" }\n'
_ARRAY = '[map.M]\ntype = "array"\nlevel = "thread"\nsize = 8\ncap = 16\ndata = { n = "u64" }\n'


def _at(position: str, *, level: str = "thread", lanes: str = "executing", **sides: str) -> str:
    snippets = "\n".join(f'{side} = """\n{text}\n"""' for side, text in sides.items())
    name = "p" + "".join(letter for letter in position if letter.isalnum())
    return f'[probe.{name}]\nposition = "{position}"\nlevel = "{level}"\nlanes = "{lanes}"\n{snippets}\n'


@dataclass(frozen=True)
class Case:
    """body: after the head of a kernel over two blocks. expected: the sum, or how often was saved, over one block."""

    name: str
    body: str
    probe: str
    expected: int
    functions: str = ""


CASES = (
    Case(
        "ends in a function that calls another",
        "call g, (%rd1);\n call f, (%rd1, %p1);\n call f, (%rd1, %p2);\n ret;",
        _SUM + _at("ld.global", before="SAVE [ M ] { 1 };") + _at("kernel", after="SAVE [ M ] { 100 };"),
        _THREADS * 2 + (_THREADS - _LOW) * 2 + (_THREADS - _LOW - _HIGH) * 2 + _THREADS * 100,
        ".func g (.reg .b64 a) { .reg .b32 v; ld.global.u32 v, [a]; ld.global.u32 v, [a+4]; ret; }\n"
        ".func f (.reg .b64 a, .reg .pred p) { @p exit; call g, (a); ret; }\n",
    ),
    Case(
        "counts of ends in a function that calls another",
        "call f, (%rd1, %p1);\n call f, (%rd1, %p2);\n ret;",
        _ARRAY + _at("ld.global", before="SAVE [ M ] { ADDR };") + _at("kernel", after="SAVE [ M ] { 100 };"),
        (_THREADS - _LOW) + (_THREADS - _LOW - _HIGH) + _THREADS,
        ".func g (.reg .b64 a) { .reg .b32 v; ld.global.u32 v, [a]; ret; }\n"
        ".func f (.reg .b64 a, .reg .pred p) { @p exit; call g, (a); ret; }\n",
    ),
    Case(
        "one predicate, written by one of two instructions alike",
        "@%p1 setp.eq.u32 %p3, %r1, 2;\n @%p1 setp.eq.u32 %p1, %r1, 2;\n ret;",
        _ARRAY + _at("setp.eq", after="SAVE [ M ] { 5 };"),
        2 * _LOW,
    ),
    Case(
        "after calls that not all threads come back from",
        "call f, (%p1);\n ret;",
        _SUM + _at("call", after="SAVE [ M ] { 1 };"),
        _THREADS - _LOW,
        ".func f (.reg .pred p) { @p exit; ret; }\n",
    ),
    Case(
        "a form feed after a predicate that changes in between",
        "@%p1\fadd.u32 %r3, %r1, 1;\n setp.lt.u32 %p1, %r1, 3;\n @%p1\fadd.u32 %r3, %r1, 1;\n ret;",
        _SUM + _at("add", before="SAVE [ M ] { 1 };"),
        _LOW + 3,
    ),
    # The loop's last block stands before its head, and falls through to it.
    *(
        Case(
            f"{position} of a loop whose threads fall through to its head",
            "mov.u32 %r2, 0;\n bra.uni H;\nL: add.u32 %r2, %r2, 1;\nH: setp.lt.u32 %p3, %r2, 3;\n @%p3 bra L;\n ret;",
            _SUM + _at(position, before="SAVE [ M ] { 1 };"),
            expected * _THREADS,
        )
        for position, expected in (("back-edge", 3), ("loop-head", 4), ("block", 9), ("loop-head | block", 9))
    ),
    Case(
        "threads that go back, each as often as its number says",
        "mov.u32 %r2, 0;\nL: add.u32 %r2, %r2, 1;\n setp.lt.u32 %p3, %r2, %r1;\n@%p3 bra L;\n ret;",
        _SUM + _at("back-edge", before="SAVE [ M ] { 1 };") + _at("kernel", after="SAVE [ M ] { 1000 };"),
        1000 * _THREADS + sum(max(number - 1, 0) for number in range(_THREADS)),
    ),
    Case(
        "a sum that a place adds to, and one that another reads",
        "mov.u32 %r2, 0;\nL: add.u32 %r2, %r2, 1;\n setp.lt.u32 %p3, %r2, 4;\n@%p3 bra L;\n ret;",
        _SUM + _at("add", before=".reg .u64 %n;\nadd.u64 %n, %n, 1;") + _at("back-edge", before="SAVE [ M ] { %n };"),
        (1 + 2 + 3) * _THREADS,
    ),
    Case(
        "two loops whose labels have the same names, each in its braces",
        "mov.u32 %r2, 0;\n" + 2 * "{ W: add.u32 %r2, %r2, 1; and.b32 %r3, %r2, 3; setp.eq.u32 %p3, %r3, 0;\n"
        "@%p3 bra D; bra W; D: }\n" + "ret;",
        _SUM + _at("back-edge", before="SAVE [ M ] { 1 };") + _at("loop-head", before="SAVE [ M ] { 100 };"),
        (2 * 3 + 2 * 4 * 100) * _THREADS,
    ),
    # A mark belongs to the way on which it stands: between a branch and a label, and between two labels.
    Case(
        "marks before and between labels",
        "@%p1 bra A;\n// neutrino begin r\nld.global.u32 %r3, [%rd1];\n@%p2 bra B;\n// neutrino end r\n"
        "bra.uni A;\nB:\n// neutrino end r\nA: ld.global.u32 %r3, [%rd1];\n ret;",
        _SUM + _at("range:r", before="SAVE [ M ] { 1 };", after="SAVE [ M ] { 100 };")
        + _at("ld.global & range:r", before="SAVE [ M ] { 10000 };"),
        (1 + 100 + 10000) * (_THREADS - _LOW),
    ),
    Case(
        "calls of one function by its name, under a predicate",
        "call g, (%rd1);\n @%p1 call f, (%rd1);\n { .param .b64 a; st.param.b64 [a], %rd1; call g2, (a); }\n ret;",
        _SUM + _at("call:f", before="SAVE [ M ] { 1 };", after="SAVE [ M ] { 10 };")
        + _at("call:g*", before="SAVE [ M ] { 100 };", after="SAVE [ M ] { 1000 };"),
        11 * _LOW + 2200 * _THREADS,
        ".func g (.reg .b64 a) { .reg .b32 v; ld.global.u32 v, [a]; ret; }\n"
        ".func g2 (.param .b64 a) { ret; }\n"
        ".func f (.reg .b64 a) { .reg .b32 v; ld.global.u32 v, [a]; ret; }\n",
    ),
    *(
        Case(
            f"{side} moves of arguments around a call that not all threads come back from",
            "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), f, (a); ld.param.b32 %r2, [b]; }\n ret;",
            _SUM + _at("ld.param | st.param", **{side: "SAVE [ M ] { 1 };"}),
            (2 + 1) * _THREADS + (_THREADS - _LOW) + _THREADS + (_THREADS - _LOW),
            ".func (.param .b32 o) f (.param .b32 i) { .reg .pred p; .reg .b32 t; ld.param.b32 t, [i]; "
            "setp.lt.u32 p, t, 7; @p exit; st.param.b32 [o], t; ret; }\n",
        )
        for side in ("before", "after")
    ),
)  # fmt: skip


def _total(view: MapView) -> int:
    return int(view.total()["n"]) if view.map.kind.name == "sum" else int(view.counts.sum())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_figures(case: Case) -> None:
    arguments = (np.arange(256, dtype=np.uint32), np.zeros((128, 16), np.uint32))
    text = _HEAD + case.functions + _ENTRY + case.body + "\n}\n"
    probe = Probe("figures", (), text=case.probe)
    bench = Bench(Kernel("k", text, "k", (2, 1, 1), (_THREADS, 1, 1), arguments), (probe,), (None, 3))
    twins = bench.twins(probe)
    (twin,) = twins.kernels
    for seed in bench.schedules:
        views, results = bench.run(probe, twin, twins.render(), seed)
        assert results == bench.results(seed)
        assert _total(views["M"]) == 2 * case.expected
