"""``position``: every pattern that there is, and what it comes to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.probing.model import CLASSES, Pattern, SourceLines, Subject
from tests.fronts import parse_tracepoint

OPCODE, CLASS, FUNCTION, LINE = Subject.OPCODE, Subject.CLASS, Subject.FUNCTION, Subject.LINE


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("kernel", [Pattern(Subject.KERNEL)]),
        ("*", [Pattern(Subject.ANY)]),
        ("ld", [Pattern(OPCODE, ("ld",))]),
        ("ld.shared::cta.L2::128B", [Pattern(OPCODE, ("ld", "shared::cta", "L2::128B"))]),
        # An instruction, not the class of its name.
        ("barrier.cta", [Pattern(OPCODE, ("barrier", "cta"))]),
        *((word, [Pattern(CLASS, group=word)]) for word in CLASSES),
        ("bra @ !uni", [Pattern(OPCODE, ("bra",), without=("uni",), predicated=True)]),
        ("* func:f(int) @", [Pattern(Subject.ANY, function="f(int)", predicated=True)]),
        ("func:_Z1fv", [Pattern(FUNCTION, function="_Z1fv")]),
        ("func:ns::f*", [Pattern(FUNCTION, function="ns::f*")]),
        ("func:void f<int, 3>(float const*, int)", [Pattern(FUNCTION, function="void f<int, 3>(float const*, int)")]),
        ("file.cu:42", [Pattern(LINE, lines=SourceLines("file.cu", 42, 42))]),
        ("/a/b-c/file.cu:42-50", [Pattern(LINE, lines=SourceLines("/a/b-c/file.cu", 42, 50))]),
        ("cp.async.bulk !tensor !prefetch", [Pattern(OPCODE, ("cp", "async", "bulk"), without=("tensor", "prefetch"))]),
        (
            "memory !shared func:void f(int) !nc k.py:7",
            [Pattern(CLASS, group="memory", without=("shared", "nc"), function="void f(int)",
                     lines=SourceLines("k.py", 7, 7))],
        ),
        (" ld.global |st.global| kernel", [Pattern(OPCODE, ("ld", "global")), Pattern(OPCODE, ("st", "global")),
                                           Pattern(Subject.KERNEL)]),
        # Wildcards
        ("atom.*.add", [Pattern(OPCODE, ("atom", "*", "add"))]),
        ("ld*.v?".replace("?", "*"), [Pattern(OPCODE, ("ld*", "v*"))]),
        ("*.global", [Pattern(OPCODE, ("*", "global"))]),
        # Calls, marked ranges, and places in the flow graph
        ("call:f<int>(int, int) @", [Pattern(OPCODE, ("call",), callees=("f<int>(int, int)",), predicated=True)]),
        ("range:soft-max.1", [Pattern(Subject.RANGE, ranges=("soft-max.1",))]),
        ("ld func:f() range:a range:b*|block",
         [Pattern(OPCODE, ("ld",), function="f()", ranges=("a", "b*")), Pattern(Subject.BLOCK)]),
        ("loop-head a.cu:3 func:f", [Pattern(Subject.LOOP_HEAD, lines=SourceLines("a.cu", 3, 3), function="f")]),
        ("back-edge & !(func:f | range:a)", [Pattern(Subject.BACK_EDGE, not_functions=("f",), not_ranges=("a",))]),
        ("!call:f(a & b) & call:_Z* & range:a & range:a",
         [Pattern(OPCODE, ("call",), callees=("_Z*",), not_callees=("f(a & b)",), ranges=("a",))]),
        # Conditions
        (
            "load & file:attn.py:50-80 & !volatile",
            [Pattern(CLASS, group="load", lines=SourceLines("attn.py", 50, 80), without=("volatile",))],
        ),
        (
            "(load | st.global) & !(func:void f<a & b>(int&, int) | ld.shared) & !@",
            [
                Pattern(CLASS, group="load", not_functions=("void f<a & b>(int&, int)",), excludes=(("ld", "shared"),),
                        unpredicated=True),
                Pattern(OPCODE, ("st", "global"), not_functions=("void f<a & b>(int&, int)",),
                        excludes=(("ld", "shared"),), unpredicated=True),
            ],
        ),
        ("!!load & ld.global", [Pattern(CLASS, group="load", requires=(("ld", "global"),))]),
        ("func:f & @ & * & !a.cu:3", [Pattern(Subject.ANY, function="f", predicated=True,
                                              not_lines=(SourceLines("a.cu", 3, 3),))]),
        (
            "kernel | load & volatile",
            [Pattern(Subject.KERNEL), Pattern(CLASS, group="load", requires=(("volatile",),))],
        ),
        ("load & !(ld.global & nc)", [Pattern(CLASS, group="load", excludes=(("ld", "global"),)),
                                      Pattern(CLASS, group="load", without=("nc",))]),
        ("ld func:f|* func:g", [Pattern(OPCODE, ("ld",), function="f"), Pattern(Subject.ANY, function="g")]),
    ],
)  # fmt: skip
def test_patterns(text: str, patterns: list[Pattern]) -> None:
    tracepoint, faults = parse_tracepoint(text)
    assert not faults
    assert tracepoint is not None
    assert tracepoint.text == text
    assert list(tracepoint.patterns) == patterns


def test_the_positions_of_the_page_are_patterns() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    pages = "".join((docs / name).read_text() for name in ("tracepoints.md", "probes.md"))
    written = re.findall(r'^position = "(.*)"$', pages, re.MULTILINE)
    assert "load & file:attn.py:50-80 & !volatile" in written
    for text in written:
        assert not parse_tracepoint(text)[1]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["kernel", "ld", ".global", "func:", "call:", "range:", "loop-head",
             "f(", "int)", "|", " ", "!", "@", "a.cu:", "42", "-", ":", "*", "é",
             " & ", "(", ")", "load",
             "\t", "\0", "9" * 30]
        ),
        max_size=12,
    ).map("".join)
)  # fmt: skip
def test_any_words_are_patterns_or_faults_at_their_place(text: str) -> None:
    tracepoint, faults = parse_tracepoint(text)
    assert (tracepoint is None) == bool(faults)
    assert all(0 <= fault.start <= len(text) and fault.message and fault.code for fault in faults)


@pytest.mark.parametrize("separator", [",", ", ", ";", " ; ", ":", " : ", "/", " / ", "+", " + ", " or ", " and ", " "])
@pytest.mark.parametrize(
    "parts",
    [("ld.global", "st.global"), ("load", "store", "atomic"), ("kernel", "bar.sync"), ("loop-head", "ld.shared.u32")],
)
def test_other_separators_are_answered_with_the_position_to_write(separator: str, parts: tuple[str, ...]) -> None:
    tracepoint, faults = parse_tracepoint(separator.join(parts))
    assert tracepoint is None
    (hint,) = {fault.hint for fault in faults}
    written = re.findall(r'"([^"]+)"', hint)[-1]
    meant, none = parse_tracepoint(written)
    assert none == []
    assert meant is not None
    wanted, _ = parse_tracepoint(" | ".join(parts))
    assert wanted is not None
    assert meant.patterns == wanted.patterns


@pytest.mark.parametrize(
    "text", ["kernel.cu:x", "a.py:", "inner.cuh:1.5", "ld.global || st.global", "ld.global;", "ld.global volatile"]
)
def test_what_is_no_list_of_patterns_has_another_hint(text: str) -> None:
    _, (fault,) = parse_tracepoint(text)
    assert 'join patterns by "|": "' not in fault.hint
    assert fault.hint
