"""Probes in one line: what they become, and that faults are reported where they are."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.abi.levels import Level
from neutrino.errors import ProbeError
from neutrino.language.one_liner import FAULTS
from neutrino.probing.ir.structured import If, Save
from neutrino.verification import load_probes
from tests.fronts import read_one_liner, uses_of_maps

WRONG: dict[str, tuple[str, str, str]] = {
    "nothing": ("¦", "one-liner", "there is no probe"),
    "a position alone": ("¦ld.global", "one-liner", "'ld.global' has no statements"),
    "no statements": ("¦ld.global { }", "one-liner", "'ld.global' has no statements"),
    "no position": ("¦{ @ = count() }", "one-liner", "there is no position"),
    "an open brace": ("ld.global ¦{ @ = count()", "one-liner", "the { is not closed"),
    "another bracket": ("ld.global { @ = count¦(} ", "one-liner", "the ( is not closed"),
    "bits in a chain": ("ld.global /¦tid.x < 4 & lane == 0/ { @ = count() }", "not-python", "with & or |"),
    "an open key": ("ld.global { @a¦[tid = count() }", "one-liner", "the [ is not closed"),
    "a map without its @": ("ld.global { ¦n = count() }", "one-liner", "the name of a map begins with @"),
    "keys without their @": ("ld.global { ¦n[tid] = max(BYTES) }", "one-liner", "the name of a map begins with @"),
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
    "too many keys": ("ld.global { @ = topk(ADDR, ¦1 + BYTES) }", "python-expression", "whole numbers"),
    "nothing to print": ("ld.global { ¦print() }", "one-liner", "0 values of print"),
    "two texts": ("ld.global { print('a', ¦'b') }", "one-liner", "a text in the place"),
    "an f-string": ("ld.global { print(¦f'{BYTES}') }", "one-liner", "a text in the place"),
    "an option of print": ("ld.global { ¦print(BYTES, sep=1) }", "one-liner", "sep= in print"),
    "C's format": ("ld.global { print(¦'%d bytes', BYTES) }", "one-liner", "1 value for 0 places"),
    "too few values": ("ld.global { print(¦'{} {}', BYTES) }", "one-liner", "1 value for 2 places"),
    "a place with a name": ("ld.global { print(¦'{x}', BYTES) }", "one-liner", "{x} in the text"),
    "a wide place": ("ld.global { print(¦'{:999}', BYTES) }", "one-liner", "a width"),
    "an integer's format": ("ld.global { print(¦'{:x}', f32(OUT)) }", "one-liner", "{:x} of a fraction"),
    "a wide place in other digits": ("ld.global { print(¦'{:٩٩٩٩}', BYTES) }", "one-liner", "a width"),
    "a character": ("ld.global { print(¦'{:c}', BYTES) }", "one-liner", "{:c} of an integer"),
    "a lone brace": ("ld.global { print(¦'{', BYTES) }", "one-liner", "Single '{'"),
    "a long text": (f"ld.global {{ print(¦'{'a' * 500}') }}", "one-liner", "a text of 500 characters"),
    "an open text": ("ld.global { print(¦'abc) }", "one-liner", "the ' is not closed"),
    "an open quote": ("¦'func:f { @ = count() }", "one-liner", "the ' is not closed"),
    "two texts of one map": ("ld.global { @a = print('x {}', lane); ¦@a = print('y {}', lane) }", "one-liner", "@a is"),
    "many values": (f"ld.global {{ @a = ¦save({'lane, ' * 40}) }}", "one-liner", "40 values of save"),
    "a save without a name": ("ld.global { ¦save(BYTES) }", "one-liner", "the map of save has no name"),
    "a save with a key": ("ld.global { @a[¦lane] = save(BYTES) }", "one-liner", "save has no key"),
    "a save as a method": ("ld.global { ¦@a.save(BYTES) }", "one-liner", "'@a.save' is called"),
    "printf": ("ld.global { ¦printf('x') }", "one-liner", "'printf' is called"),
    "a map with +=": ("ld.global { ¦@a += 1 }", "one-liner", "made by a function"),
    "an empty filter": ("ld.global ¦/ / { @ = count() }", "one-liner", "the filter is empty"),
    "one brace more": ("ld.global { @ = count() } ¦}", "one-liner", "'}' closes nothing"),
    "no semicolon": ("ld.global { print(lane) ¦print(lane) }", "not-python", "not Python"),
    "a misspelt word": ("ld.global { @ = sum(¦Bytes) }", "python-name", "Bytes has no value"),
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


def test_the_line_is_no_fault_of_its_own() -> None:
    """Beside another one."""
    with pytest.raises(ProbeError) as caught:
        read_one_liner('st.global /IN2 == 0/ { print("{}", line) }')
    assert [fault.code for fault in caught.value.diagnostics] == ["python-type"]


def test_bits_with_parentheses_may_stand_in_a_chain() -> None:
    for text in ("0 < (tid.x & 7) < 4", "0 < ( (tid.x) | 1 ) < 4", "tid.x & 7 < 4", "tid.x == 4 and lane & 1 == 0"):
        assert read_one_liner(f"ld.global /{text}/ {{ @ = count() }}").probes


def test_the_line_is_a_number_where_it_is_not_shown() -> None:
    assert read_one_liner("ld.global /line == 3/ { @ = sum(line + 1) }").probes


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ld.global { @[blok] = count() }", "did you mean block?"),
        ("ld.global /leadr/ { @ = count() }", "did you mean leader?"),
        ("ld.global /group/ { @ = count() }", "leader"),
        ("ld.global /thred == 0/ { @ = count() }", "did you mean thread?"),
        ("ld.global /laneid == 0/ { @ = count() }", "lane"),
        ("ld.global { @[blockIdx] = count() }", "ctaid"),
        ("ld.global { @[threadIdx.x] = count() }", "tid"),
    ],
)
def test_hints_for_words(text: str, hint: str) -> None:
    with pytest.raises(ProbeError) as caught:
        read_one_liner(text)
    (fault,) = caught.value.diagnostics
    assert hint in fault.hint


def test_every_fault_is_provoked() -> None:
    assert {code for _, code, _ in WRONG.values()} >= set(FAULTS)


def test_a_fault_is_reported_once() -> None:
    with pytest.raises(ProbeError) as caught:
        read_one_liner("ld.global { @ = topk(f32(OUT), 0) }")
    assert [fault.code for fault in caught.value.diagnostics] == ["one-liner"]


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
        "'func:f<int, 3>(char {})' | \"func:g\" { @ = count() }",
        "ld.global{print('# {{}} ; }} @x {}', LANES)} st.global { print(\"'\") }",
        "ld.global { @a = count() # don't\n}",
        "ld.global /TID.X == 0 and CTAID == 0/ { a = nl.array(u32, 2); for i in range(2): a[i] = LANE; print(i) }",
    ],
)
def test_forms(text: str) -> None:
    assert load_probes([], [text]).maps


@given(st.text("ld.global st{}/@=;()[]'\"\n\\ \0äcountsm BYTES1,|&:#", max_size=60))
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
        "ld.generic /is_global(ADDR)/ { @a = sum(BYTES) }",
        "ld.global { if has(f32) and not has('v4') or ELEMENTS == 2: @v = count() }",
    ],
)
def test_keys_and_words(text: str) -> None:
    assert load_probes([], [text]).maps


def test_room_for_the_keys_of_topk() -> None:
    for n, room in ((3, 256), (1000, 4000), (9000, 16384)):
        (entry,) = load_probes([], [f"ld.global {{ @a = topk(ADDR, {n}) }}"]).maps
        assert entry.kind.options()["room"] == room


@pytest.mark.parametrize("n", [0, -1, 16385, 100000000])
def test_topk_of_no_keys_or_too_many(n: int) -> None:
    with pytest.raises(ProbeError, match=f"topk of {n} keys"):
        load_probes([], [f"kernel {{ @a = topk(tid, {n}) }}"])


@pytest.mark.parametrize(
    ("text", "field"),
    [("ld.global.s8 { @ = min(OUT) }", "s64"), ("ld.global.s16 { @ = sum(OUT + 1) }", "s64"),
     ("ld.global.u32 /OUT > 5/ { @ = sum(OUT & 7) }", "u64"), ("st.global.s32 { @ = max(IN2) }", "s64"),
     ("st.global.s32 { @ = sum(IN1 + 1) }", ""), ("add.s32 { @[OUT] = sum(u32(IN1)) }", "s64"),
     ("mul.wide.s32 { @ = sum(OUT) }", "s64"), ("ld.global.s8 { @ = max(abs(OUT)) }", "s64"),
     ("ld.global.f32 { @ = max(abs(OUT) * 2) }", "f32"), ("fma.f64 { @ = min(OUT - IN3) }", "f64"),
     ("ld.global { @ = sum(OUT + 1) }", ""), ("ld.global { @ = sum(OUT) }", "u64")],
)  # fmt: skip
def test_operands_that_are_computed_with_have_the_type_that_the_position_names(text: str, field: str) -> None:
    """An operand without a type is not computed with: its width is unknown. The first one of a store is an address."""
    if not field:
        with pytest.raises(ProbeError, match="has no type"):
            load_probes([], [text])
        return
    (entry,) = load_probes([], [text]).maps
    assert entry.fields[0].type.value == field


def test_rows_keep_values_as_they_are() -> None:
    values = "ADDR, OUT, OUT.x, line, lane, s64(lane) - 1, lane > 3, 0.5, -2, 7"
    rows, printed = read_one_liner(f"ld.global.f32 {{ @a = save({values}); print('{{}}', SITE) }}").maps
    assert [(field.name, field.type.value) for field in rows.fields] == [
        ("addr", "u64"), ("out", "f32"), ("out_x", "f32"), ("site", "u32"), ("lane", "u32"), ("value", "s64"),
        ("value_2", "u8"), ("value_3", "f64"), ("value_4", "s64"), ("value_5", "u64"),
    ]  # fmt: skip
    assert (printed.name, printed.kind.name) == ("print", "log")


def test_prints_have_names_of_their_own() -> None:
    text = "ld.global { @print = count(); print(lane); for i in range(2): print(i) } st.global { print(lane) }"
    uses = uses_of_maps(text)
    assert {name: use.function for name, use in uses.items()} == {
        "print": "count", "print_2": "print", "print_3": "print", "print_4": "print",
    }  # fmt: skip
    assert [use.columns[0].title for use in uses.values() if use.columns] == ["lane", "i", "lane"]


@pytest.mark.parametrize(
    ("position", "kind"),
    [("ld.global.f64", "f64"), ("ld.f32 | st.f32", "f32"), ("add.s32", "s32"), ("ld.global", "u64"),
     ("cvt.f32.s32", "s32"), ("ld.f32 | ld.f64", "u64"), ("add.f16", "f32"),
     ("add.f16x2", "u64")],
)  # fmt: skip
def test_operands_have_the_type_that_the_position_names(position: str, kind: str) -> None:
    (rows,) = read_one_liner(f"{position} {{ print(IN1) }}").maps
    assert [item.type.value for item in rows.fields] == [kind]
