"""Constants are computed while a file is read: choices, conditions and bounds of them, and loops' variables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import ProbeError
from neutrino.ir.operands import Constant
from neutrino.ir.statements import Assembly, Compare, Operation, Select
from neutrino.ir.types import Type
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import For, walk
from neutrino.ptx.snippets.lowering import lower
from neutrino.verification import load_probe_file
from tests.fronts import read_one_liner, read_python_text
from tests.oracle.typed import BLOCK, kernel, run

HEAD = "import neutrino.language as nl\nA = 4\nB = 7\nFRACTION = 2.5\nON = True\nOFF = False\n"
WORDS = np.arange(BLOCK, dtype=np.uint32)


def file_of(body: str, top: str = "", saved: str = "k", kind: str = "u32") -> str:
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return (
        f'{HEAD}{top}\n@nl.probe(pos="xor", level="thread", before=True)\ndef p():\n{lines}\n'
        f"    nl.save({saved}, dtype=nl.{kind})\n"
    )


def compiled(tmp_path: Path, text: str) -> ProbeSet:
    path = tmp_path / "p.py"
    path.write_text(text)
    return load_probe_file(path)


def before(probes: Sequence[Probe]) -> Snippet:
    """The one snippet of the one probe."""
    (probe,) = probes
    assert probe.before is not None
    return probe.before


def recorded(tmp_path: Path, text: str) -> list[int]:
    records = run(compiled(tmp_path, text), kernel(WORDS, WORDS))["p"].records.reshape(-1)
    return [int(record.item()[0]) for record in records]


NUMBERS = st.sampled_from(["0", "1", "3", "A", "B", "12", "A + 1", "B % 3", "nl.min(A, B, 3)", "nl.abs(A - B)"])


def _conditions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda each: f"({' '.join(each)})")
        | inner.map("(not {})".format)
        | st.tuples(NUMBERS, inner, NUMBERS).map(lambda each: f"(({each[0]} if {each[1]} else {each[2]}) > 3)")
    )


CONDITIONS = st.recursive(
    st.sampled_from(["ON", "OFF", "True", "A", "0 < A <= B < 9", "A != 4"])
    | st.tuples(NUMBERS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), NUMBERS).map(" ".join),
    _conditions, max_leaves=5,
)  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(CONDITIONS, NUMBERS, NUMBERS)
def test_choices_are_pythons(condition: str, then: str, otherwise: str) -> None:
    """As values, in bounds and as numbers of a map: nothing of them is computed at a site."""
    class_ = type("nl", (), {"min": staticmethod(min), "max": staticmethod(max), "abs": staticmethod(abs)})
    names = {"A": 4, "B": 7, "ON": True, "OFF": False, "nl": class_}
    wanted = eval(f"({then}) if {condition} else ({otherwise})", names)
    choice = f"({then}) if {condition} else ({otherwise})"
    draft = read_python_text("p.py", file_of(f"k: nl.u32 = {choice}"))
    (move, _) = before(draft.probes).statements
    assert isinstance(move, Operation)
    assert move.sources == (Constant(Type.U32, wanted),)
    decided = read_python_text("p.py", file_of(f"k: nl.u32 = 1\nif {condition}:\n    k = 2"))
    assert len(before(decided.probes).statements) == (3 if eval(condition, names) else 2)
    top = f"\nN = {choice}\n@nl.Map(level='thread', type='array', cap=1 + N)\nclass M:\n    value: nl.u32\n"
    drafted = read_python_text("p.py", file_of(f"k: nl.u32 = N\nfor i in range({choice}): k += 1", top))
    loop = [statement for statement in before(drafted.probes).statements if isinstance(statement, For)]
    assert [len(each.values) for each in loop] == [wanted]
    assert [each.cap for each in drafted.maps if each.name == "M"] == [1 + wanted]


def test_the_side_that_is_left_out_costs_nothing_and_gives_its_type(tmp_path: Path) -> None:
    for body, wanted in (
        ("k: nl.u32 = nl.lane if A > 3 else nl.popc(nl.in1)", list(range(32)) * 2),
        ("wide = 5 if A > 3 else nl.u64(nl.lane)\nk = nl.u32(wide >> 1)", [2] * BLOCK),
        ("k = nl.select(OFF or B < A, nl.lane // 3, nl.lane)", list(range(32)) * 2),
        ("rows = nl.array(nl.u32, 4)\nk = rows[9] if A > 8 else nl.lane", list(range(32)) * 2),
        ("k = nl.u32(A > 3 and nl.lane > 2)", [int(lane > 2) for lane in range(32)] * 2),
        ("k = nl.u32(A > 5 and nl.lane > 2)", [0] * BLOCK),
        ("k = nl.u32(nl.lane > 2 or not OFF)", [1] * BLOCK),
        ("k = nl.u32(0 < A < nl.lane)", [int(lane > 4) for lane in range(32)] * 2),
    ):
        text = file_of(body)
        assert recorded(tmp_path, text) == wanted, body
        probes = compiled(tmp_path, text)
        statements = list(walk(before(probes.probes).statements))
        assert not [each for each in statements if isinstance(each, Select)], body
        assert len([each for each in statements if isinstance(each, Compare)]) <= 1, body
        assembly = [each for each in before(lower(probes).probes).straight if isinstance(each, Assembly)]
        assert not [each for each in assembly if each.opcode.startswith(("popc", "div"))], body


LOOPS: dict[str, tuple[str, int]] = {
    "of a turn": (
        "for i in range(4):\n    for j in range(i + 1): s += j + 1",
        sum(j + 1 for i in range(4) for j in range(i + 1)),
    ),
    "of two turns": (
        "for i in range(3):\n    for j in range(i, 4):\n        for n in range(i * j, A + 1): s += n",
        sum(n for i in range(3) for j in range(i, 4) for n in range(i * j, 5)),
    ),
    "downwards": ("for j in range(6, 1, -2): s += j", 6 + 4 + 2),
    "downwards to 0": ("for j in range(3, -1, -1): s += j * 2", 12),
    "downwards on the left": ("for j in range(5, 0, -1): s = j + s", 15),
    "downwards in a difference": ("for j in range(5, 0, -1): s += (j - 1) * 3", 30),
    "downwards compared": ("for j in range(5, 0, -1):\n    if s < j: s += 10", 10),
    "downwards in a minimum": ("s = 99\nfor j in range(9, 4, -1): s = nl.min(s, j)", 5),
    "upwards beside signed ones": ("t: nl.s32 = -3\nfor j in range(4): t += j\ns = nl.u32(t)", 3),
    "wide": ("w: nl.u64 = 1\nfor j in range(3, 0, -1): w *= j\ns = nl.u32(w)", 6),
    "by a function": ("for i in range(4): s += triangle(i + 1)", 1 + 3 + 6 + 10),
    "by a function downwards": ("for i in range(3, 0, -1): s += triangle(i)", 1 + 3 + 6),
    "by a function with a type": ("for i in range(3, -1, -1): s += typed(i + 1)", 0 + 1 + 3 + 6),
    "a typed number": ("s = typed(4) + typed(A - 1)", 6 + 3),
    "a divisor": (
        "w = nl.u64(840)\nfor i in range(1, 5): s += nl.u32(w // i + w % (i + 1))",
        sum(840 // i + 840 % (i + 1) for i in range(1, 5)),
    ),
    "an element": (
        "rows = nl.array(nl.u32, 5)\nfor i in range(2):\n    for j in range(i, 5): rows[j] += j\n"
        "for j in range(5): s += rows[j]",
        sum(j for i in range(2) for j in range(i, 5)),
    ),
    "a bound": ("for i in range(1, 3):\n    n = nl.lane | 1\n    while nl.bound(i) and n > 0: s += 1", 3),
    "letters": ("for größe in range(3):\n    for j in range(größe): s += 1", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_numbers_that_are_known(name: str, tmp_path: Path) -> None:
    body, wanted = LOOPS[name]
    top = "def triangle(n):\n    total: nl.u32 = 0\n    for m in range(n): total += m + 1\n    return total\n"
    # A function that nothing calls is a fault.
    typed = "def typed(n: nl.u16):\n    total: nl.u32 = 0\n    for m in range(n): total += m\n    return total\n"
    top = top if "triangle" in body else typed if "typed" in body else ""
    text = file_of(f"s: nl.u32 = 0\n{body}", top, "s")
    assert recorded(tmp_path, text) == [wanted] * BLOCK


def test_a_value_of_the_instruction_by_the_turn(tmp_path: Path) -> None:
    text = file_of("s: nl.u32 = 0\nfor i in range(1):\n    x: nl.u32 = nl.in1[i]\n    s += x", "", "s")
    assert recorded(tmp_path, text) == WORDS.tolist()


def test_a_function_that_returns_a_number_is_told_how(tmp_path: Path) -> None:
    top = "def chosen(n):\n    return 1 if n > 3 else 2\n"
    with pytest.raises(ProbeError) as caught:
        compiled(tmp_path, file_of("k = chosen(4)", top))
    (fault,) = caught.value.diagnostics
    assert fault.hint == "write -> nl.u32 after the parameters of chosen"
    written = top.replace("(n):", "(n) -> nl.u32:")
    assert recorded(tmp_path, file_of("k = chosen(4)", written)) == [1] * BLOCK


REFUSED: dict[str, tuple[str, str, str]] = {
    "a computed bound": ("n: nl.u32 = nl.lane\nfor i in range(¦n): k = i", "whole numbers that", "'n' is not"),
    "of a computed choice": ("for i in range(¦2 if nl.lane > 3 else 4): k = 1", "whole numbers", "nl.lane > 3"),
    "a fraction": ("for i in range(¦FRACTION): k = 1", "whole numbers", "'FRACTION'"),
    "a truth value": ("for i in range(¦A > 3): k = 1", "whole numbers", "'A > 3'"),
    "no number at all": ("for i in range(¦nothing): k = 1", "nothing has no value here", ""),
    "nothing divided": ("for i in range(¦A // (B - 7)): k = 1", "A // (B - 7)", ""),
    "below 0 as unsigned": ("s: nl.u32 = 0\nfor j in range(2, -2, -1): s = ¦s + j", "u32 and s32", ""),
    "beyond signed ones": ("t: nl.s32 = 0\nfor j in range(2): t = ¦t + j * 2147483648", "s32 and u32", ""),
    "what wraps around": ("t: nl.s32 = 0\nfor j in range(2): t = ¦t + (j - 1)", "s32 and u32", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_where_it_is(name: str, tmp_path: Path) -> None:
    body, words, more = REFUSED[name]
    marked = file_of(f"k: nl.u32 = 0\n{body}")
    start = marked.partition("¦")[0]
    with pytest.raises(ProbeError) as caught:
        compiled(tmp_path, marked.replace("¦", ""))
    (fault,) = caught.value.diagnostics
    assert (fault.line, fault.column) == (start.count("\n") + 1, len(start) - start.rfind("\n"))
    assert words in fault.message
    assert more in fault.message


def test_texts_are_chosen_as_well(tmp_path: Path) -> None:
    text = HEAD + (
        '@nl.probe(pos="ld" if A > 3 else "st", level="warp" if OFF else "thread", after=A < B, '
        "cap=2 if ON and A > 3 else 1)\ndef p():\n    nl.save(nl.lane, dtype=nl.u32)\n"
    )
    probes = compiled(tmp_path, text)
    (probe,), (entry,) = probes.probes, probes.maps
    assert (probe.tracepoint.text, probe.level.value, entry.cap) == ("ld", "thread", 2)
    assert probe.after is not None


def test_one_liners_choose_as_well() -> None:
    draft = read_one_liner("ld.global { @ = lhist(BYTES, 0, 64 if 3 > 2 else 8, 8); @b = sum(4 if 1 < 2 else BYTES) }")
    assert len(draft.maps) == 2
