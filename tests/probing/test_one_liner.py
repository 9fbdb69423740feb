"""Probes in one line: what they become, and that faults are reported where they are."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.abi.levels import Level
from neutrino.errors import ProbeError
from neutrino.language.one_liner import FAULTS, read_one_liner
from neutrino.probing.ir.statements import If, Save
from neutrino.verification import load_probes

WRONG: dict[str, tuple[str, str, str]] = {
    "nothing": ("¦", "one-liner", "there is no probe"),
    "a position alone": ("¦ld.global", "one-liner", "'ld.global' has no statements"),
    "no statements": ("¦ld.global { }", "one-liner", "'ld.global' has no statements"),
    "no position": ("¦{ @ = count() }", "one-liner", "there is no position"),
    "an open brace": ("ld.global ¦{ @ = count()", "one-liner", "the { is not closed"),
    "another bracket": ("ld.global { @ = count(¦} ", "one-liner", "'}' closes nothing"),
    "an open filter": ("ld.global ¦/BYTES == 4 { @ = count() }", "one-liner", "the filter has no end"),
    "a comma": ("ld.global¦, st.global { @ = count() }", "one-liner", "',' in a position"),
    "an unknown opcode": ("¦LD.global { @ = count() }", "position", "LD.global"),
    "an unknown function": ("ld.global { @a = ¦cuont() }", "one-liner", "'cuont' makes no map"),
    "no value": ("ld.global { @a = ¦sum() }", "one-liner", "0 arguments of sum"),
    "two values": ("ld.global { @a = ¦hist(1, 2) }", "one-liner", "2 arguments of hist"),
    "two uses": ("ld.global { @a = count(); ¦@a = sum(BYTES) }", "one-liner", "@a is count() elsewhere"),
    "a map alone": ("ld.global { ¦@a }", "one-liner", "made by a function"),
    "a map's sum": ("ld.global { ¦@a = 1 + 2 }", "one-liner", "made by a function"),
    "no map": ("¦ld.global { x = 1 + BYTES }", "one-liner", "nothing is saved"),
    "a scale": ("ld.global { ¦@ = lhist(BYTES, 4, 0, 1) }", "one-liner", "no scale"),
    "a fraction": ("ld.global.f32 { x: f32 = OUT; @ = hist(¦x) }", "one-liner", "'x' is f32"),
    "elapsed of a load": ("¦ld.global { @ = max(elapsed) }", "one-liner", "elapsed is of kernels"),
    "elapsed of two ranges": ("¦range:a | range:b { @ = max(elapsed) }", "one-liner", "or of one range"),
    "C's and": ("ld.global { @ = sum(BYTES &¦& 1) }", "not-python", "not Python"),
    "no Python": ("ld.global { x = = 1 ; @ = count() }".replace("= =", "= ¦="), "not-python", "not Python"),
    "an unknown name": ("ld.global /¦foo == 1/ { @ = count() }", "python-name", "foo has no value here"),
    "the second text": ("kernel { @ = count() }\nld.global { @b = ¦sum() }", "one-liner", "0 arguments of sum"),
    "after an umlaut": ("ld.global { ä = BYTES; @ = ¦foo(ä) }", "one-liner", "'foo' makes no map"),
    "a loop": ("ld.global { ¦while 1: @ = count() }", "python-statement", "a while of a probe has a bound"),
    "a histogram with a key": ("ld.global { @a[¦lane] = hist(BYTES) }", "one-liner", "hist has no key"),
    "two kinds of keys": ("ld.global { @a[lane] = count(); ¦@a = count() }", "one-liner", "of other values elsewhere"),
    "a key that is a fraction": ("ld.global.f32 { x: f32 = OUT; @a[¦x] = count() }", "one-liner", "'x' is f32"),
    "too many keys": ("ld.global { @ = topk(ADDR, ¦1 + BYTES) }", "python-expression", "whole numbers"),
    "a long name": (f"ld.global {{ ¦@{'a' * 80} = count() }}", "one-liner", "80 characters"),
}


@pytest.mark.parametrize(("marked", "code", "words"), WRONG.values(), ids=WRONG)
def test_faults_have_their_place(marked: str, code: str, words: str) -> None:
    before, after = marked.split("¦")
    with pytest.raises(ProbeError) as caught:
        read_one_liner(before + after)
    place = before.count("\n") + 1, len(before) - before.rfind("\n")
    found = [(fault.line, fault.column, fault.code) for fault in caught.value.diagnostics]
    assert (*place, code) in found, caught.value
    fault = caught.value.diagnostics[found.index((*place, code))]
    assert words in fault.message
    assert fault.file == "-e"
    assert fault.source == (before + after).split("\n")[place[0] - 1]
    # What the text was changed to for Python's parser is not shown.
    assert "nl." not in f"{fault.message} {fault.hint}"


def test_every_fault_is_provoked() -> None:
    assert {code for _, code, _ in WRONG.values()} >= set(FAULTS)


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ProbeError) as caught:
        load_probes([], ["ld.global { @a = cuont(); @b = sum() }", "kernel { @c = max(foo) }"])
    assert [(fault.line, fault.code) for fault in caught.value.diagnostics] == [
        (1, "one-liner"), (1, "one-liner"), (2, "python-name"),
    ]  # fmt: skip


def test_clauses_share_maps_and_have_their_own_variables() -> None:
    draft = read_one_liner("ld.global { x = BYTES; @bytes = sum(x) } st.global { x = 2 * BYTES; @bytes = sum(x) }")
    assert [probe.name for probe in draft.probes] == ["e1", "e2"]
    (entry,) = draft.maps
    assert (entry.name, entry.kind.name, entry.level) == ("bytes", "sum", Level.THREAD)


def test_an_if_holds_the_rest_of_its_line() -> None:
    (probe,) = read_one_liner("st.global { if BYTES > 4: @a = count(); @b = count()\n @c = count() }").probes
    assert probe.before is not None
    (*_, chosen, last) = probe.before.statements
    assert isinstance(chosen, If)
    assert [save.map.name for save in chosen.then if isinstance(save, Save)] == ["a", "b"]
    assert isinstance(last, Save)


def test_sides() -> None:
    draft = read_one_liner("ld.global { @a = max(OUT) } st.global { @b = max(IN1) } kernel { @c = max(elapsed) }")
    sides = {probe.name: (probe.before is not None, probe.after is not None) for probe in draft.probes}
    assert sides == {"e1": (False, True), "e2": (True, False), "e3_start": (True, False), "e3": (False, True)}


@pytest.mark.parametrize(
    ("value", "function", "field"),
    [("BYTES", "sum", "u64"), ("s32(IN1)", "max", "s64"), ("f32(IN1)", "min", "f32"), ("s64(IN1)", "hist", "s64")],
)
def test_fields_have_the_kind_of_the_value(value: str, function: str, field: str) -> None:
    (entry,) = read_one_liner(f"st.global {{ @ = {function}({value}) }}").maps
    assert [item.type.value for item in entry.fields] == [field]


@pytest.mark.parametrize(
    "text",
    [
        "ld.global | st.global { @ = count() }",
        "ld.global /BYTES == 4 and ADDR > 0/ { @ = count() }",
        "ld.global /u32(BYTES) // 2 == 2/ { @ = sum(u32(BYTES) // 2) }",
        "ld.global{@=count()}kernel{@k=count()}",
        "kernel {\n  @k = count()\n  @t = max(\n    elapsed)\n};\nld.global { @ = count() }",
        "ld.global { if BYTES == 4: @four = count() }",
        "ld.global { @a = count(); ; @b = sum(bytes) ; }",
        "'ld.global' { @ = count() }",
        "vector.cu:42 { @ = count() }",
        "* func:f { @ = count() }",
    ],
)
def test_forms(text: str) -> None:
    assert load_probes([], [text]).maps


@given(st.text("ld.global st{}/@=;()[]'\n\\ \0äcountsm BYTES1,|&:#", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    # Any other error fails.
    with contextlib.suppress(ProbeError):
        assert read_one_liner(text).probes


@pytest.mark.parametrize(
    "text",
    [
        "ld.global { @[lane] = count() }",
        "ld.global /tid.y == 0 and lane < 4/ { @a[ADDR >> 12] = sum(BYTES) }",
        "kernel { @t[smid] = avg(elapsed) }",
        "st.global { @hot = topk(ADDR >> 7, 20); @many = count() }",
        "st.global { x = min(BYTES, 4); @a = max(max(x, 2)) }",
        "st.global { @a = max(warp.sum(u32(BYTES))) }",
        "ld.global { @a[s64(IN1)] = min(BYTES) }",
    ],
)
def test_keys_and_words(text: str) -> None:
    assert load_probes([], [text]).maps
