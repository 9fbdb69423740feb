"""All faults of a file in Python, and of a one-liner, come in one round, and none that only follows from another."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from neutrino.errors import Diagnostic
from neutrino.verification import check_probes

HEAD = """from neutrino import probe, Map
import neutrino.language as nl
@Map(level="thread", type="array", cap=1)
class R:
    a: nl.u32
    b: nl.u32
@Map(level="thread", type="sum")
class S:
    n: nl.u64
seen: nl.u32 = 0
"""
# What is right, what is wrong in its place with a mark at the fault, and its code; from each stage of the check.
PARTS: dict[str, tuple[str, str, str]] = {
    "a position": ('pos="ld.global"', 'pos="ld.¦globl"', "unknown-modifier"),
    "an operand that is not there": ("R.save(nl.in2, 1)", "R.save(¦nl.in3, 1)", "operand-absent"),
    "the side": ("R.save(1, nl.in2)", "R.save(1, ¦nl.out)", "out-in-before"),
    "a level": ("level='thread', before=True", "level='warp', before=True", ""),
    "a call": ("S.save(5)", "¦print(5)", "python-call"),
    "a type": ("x = seen + 1", "x = seen + ¦1.5", "python-type"),
    "what lanes exchange": ("seen = nl.popc(seen)", "seen = nl.u32(¦nl.warp.sum(nl.f32(1)))", "ir-operator"),
    "a float": ("y: nl.f32 = nl.in2", "y: nl.u32 = ¦nl.in2", "helper-type"),
    "a place without operands": ("S.save(nl.lanes)", "S.save(¦nl.addr)", "operand-without-instruction"),
    "a statement": ("pass", "¦del x", "python-statement"),
}
TEXT = """
@probe({a position}, level="thread")
def loads():
    {a type}
    if x > 3:
        {a call}
    S.save(x)
@probe(pos="st.global", level="thread", before=True)
def stores():
    {an operand that is not there}
    {a statement}
@probe(pos="st.global", {a level})
def more():
    {the side}
@probe(pos="st.global.f32", level="thread", before=True)
def floats():
    {a float}
    S.save(nl.u64(y))
@probe(pos="kernel", level="thread")
def end():
    {what lanes exchange}
    {a place without operands}
"""


def found(path: Path) -> list[Diagnostic]:
    return list(check_probes([str(path)]).diagnostics)


def made(wrong: set[str]) -> tuple[str, list[tuple[int, int, str]]]:
    """A file with these faults, and their places and codes."""
    text, marks = HEAD + TEXT, []
    for name, (right, fault, code) in PARTS.items():
        before, _, after = text.partition(f"{{{name}}}")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        if name in wrong and name == "a level":
            # It stands at the save, which is for threads.
            marks.append((line + 2, 5, "ir-save"))
        elif name in wrong:
            marks.append((line, column + fault.index("¦"), code))
        text = before + (fault if name in wrong else right).replace("¦", "") + after
    return text, sorted(marks)


@pytest.mark.parametrize("wrong", [*({name} for name in PARTS), *map(set, itertools.combinations(PARTS, 2))])
def test_in_any_pair(wrong: set[str], tmp_path: Path) -> None:
    _compare(wrong, tmp_path)


@pytest.mark.parametrize("right", PARTS)
def test_all_but_one(right: str, tmp_path: Path) -> None:
    _compare(set(PARTS) - {right}, tmp_path)


def test_all_of_them(tmp_path: Path) -> None:
    _compare(set(PARTS), tmp_path)


def _compare(wrong: set[str], tmp_path: Path) -> None:
    text, marks = made(wrong)
    path = tmp_path / "p.py"
    path.write_text(text)
    assert [(item.line, item.column, item.code) for item in found(path)] == marks, text


INSIDE: dict[str, str] = {
    "an if": "if ¦nothing:\n    S.save(¦nine)\nelse:\n    S.save(1, ¦ten)",
    "a for": "for i in range(¦nothing):\n    S.save(¦nine + i)\n    S.save(i)",
    "a while": "while ¦nothing > 1:\n    S.save(¦nine)",
    "a bound": "while nl.bound(¦nothing) and seen:\n    S.save(¦nine)",
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_is_inside_of_a_wrong_head_is_read(name: str, tmp_path: Path) -> None:
    lines = "".join(f"    {line}\n" for line in INSIDE[name].replace("S.save(1, ¦ten)", "S.save(¦ten)").split("\n"))
    marked = f'{HEAD}@probe(pos="ld.global", level="thread")\ndef p():\n{lines}'
    path = tmp_path / "p.py"
    path.write_text(marked.replace("¦", ""))
    wanted = []
    for number, line in enumerate(marked.split("\n"), start=1):
        parts = line.split("¦")
        wanted += [(number, len("".join(parts[:count])) + 1) for count in range(1, len(parts))]
    assert [(item.line, item.column) for item in found(path)] == wanted


FOLLOWS: dict[str, str] = {
    "a variable": "x = ¦nothing\nS.save(x + 1)\nif x > 2: S.save(x)",
    "in one branch": "if seen > 1: x: nl.u32 = ¦nothing\nelse: x = 1\nS.save(nl.u64(x))",
    "a loop that ended": "x: nl.u32 = 5\nwhile x > 0:\n    x -= ¦nothing",
    "a choice's side": "if ¦nothing: x: nl.u32 = 1\nelse: x = 2\nS.save(nl.u64(x))",
    "a range": "n = nl.u64(0)\nfor i in range(¦nothing): n += i\nS.save(n)",
    "a clock that waits": "start = nl.clock()\nwait: nl.u32 = ¦nl.outt\nS.save(nl.clock(after=wait) - start)",
    "a function's result": "x = ¦nl.foo()\nS.save(triple(x))",
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_nothing_is_said_that_follows(name: str, tmp_path: Path) -> None:
    lines = "".join(f"    {line}\n" for line in FOLLOWS[name].split("\n"))
    own = "def triple(value):\n    return nl.u64(value) * 3\n" if "triple" in lines else ""
    marked = f'{HEAD}{own}@probe(pos="ld.global", level="thread")\ndef p():\n{lines}'
    path = tmp_path / "p.py"
    path.write_text(marked.replace("¦", ""))
    start = marked.partition("¦")[0]
    place = (start.count("\n") + 1, len(start) - start.rfind("\n"))
    assert [(item.line, item.column) for item in found(path)] == [place]


DECLARATIONS: dict[str, tuple[str, str]] = {
    "a map": ('@Map(level="thread", type="¦som")\nclass B:\n    n: nl.u64\n', "B.save(1)"),
    "a register": ("b: nl.¦u33 = 0\n", "b += 1\nS.save(b)"),
    "a constant": ("B = ¦nothing\n", "S.save(B)\nfor i in range(B): S.save(i)"),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_uses_of_a_wrong_declaration_are_no_faults(name: str, tmp_path: Path) -> None:
    declared, used = DECLARATIONS[name]
    lines = "".join(f"    {line}\n" for line in used.split("\n"))
    path = tmp_path / "p.py"
    head = '@probe(pos="ld.global", level="thread", before=True)\ndef p():\n'
    text = f"{HEAD}{declared}{head}{lines}    S.save(nl.out)\n"
    path.write_text(text.replace("¦", ""))
    codes = [(item.line, item.code) for item in found(path)]
    # That of the declaration, and one that has nothing to do with it.
    assert len(codes) == 2, codes
    assert codes[0][0] <= HEAD.count("\n") + declared.count("\n")
    assert codes[1] == (text.count("\n"), "out-in-before")


_WRONG_ARGUMENTS = ['lvl="warp"', 'level="warps"', 'level="thread", before=True, after=True', 'lanes="all"']


@pytest.mark.parametrize("wrong", _WRONG_ARGUMENTS)
def test_a_probe_with_wrong_arguments_is_read(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(f'{HEAD}@probe(pos="ld.global", {wrong})\ndef p():\n    S.save(1)\n    print(5)\n')
    first = found(path)
    assert first[-1].code == "python-call"
    assert {item.code for item in first[:-1]} == {"python-decorator"}


def test_one_liners_say_all_as_well() -> None:
    # A line is no further fault of a clause with one, whether it is shown or a number.
    for text, wanted in (
        ('st.global /IN2 + 1 == 0/ { print("{}", line) }', ["python-type"]),
        ("st.global { @[line] = sum(IN2 + 1); @b = foo(1) }", ["python-type", "one-liner"]),
        ("st.global { @ = sum(nothing); @b = max(line) }", ["python-name"]),
    ):
        assert [item.code for item in check_probes([], [text]).diagnostics] == wanted, text
    text = (
        "ld.globl { @ = count() } st.global { @b = sum(IN3); @c = foo(1) } kernel { @d = sum(ADDR) } "
        "ld { x = y; @ = count() }"
    )
    diagnostics = check_probes([], [text]).diagnostics
    assert [item.code for item in diagnostics] == [
        "unknown-modifier", "operand-absent", "one-liner", "operand-without-instruction", "python-name",
    ]  # fmt: skip
    assert [re.split(r"[ ();]", text[item.column - 1 :])[0] for item in diagnostics] == [
        "globl", "IN3", "foo", "ADDR", "y",
    ]  # fmt: skip
