"""Expressions give what Python gives for the same text, number by number, and refuse all else with its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import ExpressionError
from neutrino.tracing.expression import Expression
from tests.work import counted

TYPES = {"a": "<u8", "b": "<i8", "c": "<u4", "d": "<i1", "x": "<f4", "y": "<f8"}
COLUMNS = {name: kind[1] == "f" for name, kind in TYPES.items()}
EDGES = [0, 1, 2, 63, 64, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]


def integers_of(kind: str) -> st.SearchStrategy[int]:
    known = np.iinfo(kind)
    near = [edge for edge in (*EDGES, *(-edge for edge in EDGES)) if known.min <= edge <= known.max]
    return st.sampled_from(near) | st.integers(int(known.min), int(known.max)) | st.integers(0, 5)


def numbers_of(kind: str) -> st.SearchStrategy[Any]:
    if kind[1] == "f":
        return st.floats(width=8 * int(kind[2])) | st.integers(-3, 3).map(float)  # type: ignore[arg-type]
    return integers_of(kind)


RECORDS = st.lists(st.tuples(*(numbers_of(kind) for kind in TYPES.values())), min_size=1, max_size=12)
WHOLE = st.sampled_from(["a", "b", "c", "d"]) | st.sampled_from(EDGES).map(str) | st.integers(0, 70).map(str)
FRACTIONS = st.sampled_from(["x", "y"]) | st.floats(0, allow_infinity=False).map(repr)


def of_parts(parts: st.SearchStrategy[str], signs: list[str]) -> st.SearchStrategy[str]:
    return st.builds("({} {} {})".format, parts, st.sampled_from(signs), parts)


WHOLES = st.recursive(
    WHOLE,
    lambda parts: of_parts(parts, ["+", "-", "*", "//", "%", "&", "|", "^", ">>"])
    # Python takes as much memory as a shift asks for.
    | st.builds("({} << {} % 70)".format, parts, parts)
    | st.builds("({}{})".format, st.sampled_from(["-", "+", "~"]), parts),
    max_leaves=5,
)
NUMBERS = st.recursive(
    WHOLES | FRACTIONS,
    lambda parts: of_parts(parts, ["+", "-", "*", "//", "%"]) | st.builds("(-{})".format, parts),
    max_leaves=4,
)
COMPARISONS = st.builds(
    lambda first, others: first + "".join(f" {sign} {other}" for sign, other in others),
    NUMBERS,
    st.lists(st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBERS), min_size=1, max_size=3),
)
CONDITIONS = st.recursive(
    COMPARISONS | NUMBERS,
    lambda parts: st.builds("({} {} {})".format, parts, st.sampled_from(["and", "or"]), parts)
    | st.builds("(not {})".format, parts),
    max_leaves=5,
)


def columns_of(records: list[tuple[Any, ...]]) -> dict[str, Any]:
    return {
        name: np.array([record[number] for record in records], kind)
        for number, (name, kind) in enumerate(TYPES.items())
    }


def by_python(text: str, columns: dict[str, Any]) -> list[Any] | None:
    """What Python gives for each record; None where it raises for one, or makes a number beyond any use."""
    values = []
    for record in zip(*(column.tolist() for column in columns.values()), strict=True):
        try:
            values.append(eval(text, {"__builtins__": {}}, dict(zip(columns, record, strict=True))))
        except (ZeroDivisionError, ValueError, OverflowError, MemoryError):
            return None
    return values


def is_same(ours: Any, theirs: Any) -> bool:
    return bool(ours == theirs or (math.isnan(ours) and math.isnan(theirs)))


def tried(call: Callable[[], Any]) -> tuple[Any, ExpressionError | None]:
    """What a call returns, or why it was refused."""
    try:
        return call(), None
    except ExpressionError as error:
        return None, error


@pytest.mark.parametrize("texts", [WHOLES, NUMBERS], ids=["integers", "numbers"])
def test_numbers_are_those_of_python(texts: st.SearchStrategy[str]) -> None:
    compared = 0

    @settings(max_examples=300, deadline=None)
    @given(texts, RECORDS)
    def check(text: str, records: list[tuple[Any, ...]]) -> None:
        nonlocal compared
        columns = columns_of(records)
        expression = Expression.read(text, COLUMNS)
        expected = by_python(text, columns)
        values, error = tried(lambda: expression.values(columns, len(records)))
        if error:
            assert expected is None or "128 bits" in error.message
            return
        assert expected is not None
        found = values.tolist()
        assert len(found) == len(expected)
        assert all(map(is_same, found, expected)), (text, found, expected)
        compared += 1

    check()
    assert compared > 50


@settings(max_examples=300, deadline=None)
@given(CONDITIONS, RECORDS)
def test_conditions_hold_where_they_do_in_python(text: str, records: list[tuple[Any, ...]]) -> None:
    columns = columns_of(records)
    expression = Expression.read(text, COLUMNS)
    expected = by_python(text, columns)
    holds, error = tried(lambda: expression.holds(columns, len(records)))
    if error:
        assert expected is None or "128 bits" in error.message
        return
    assert expected is not None
    assert holds.tolist() == [bool(value) for value in expected], text
    assert {name for name in TYPES if name in expression.names} == expression.names


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("a - b", (0, 1), -1),
        ("a + b", (2**64 - 1, 2**63 - 1), 2**64 + 2**63 - 2),
        ("a == b", (2**64 - 1, -1), False),
        ("b < a", (2**63, -1), True),
        ("a * a", (2**64 - 1, 0), (2**64 - 1) ** 2),
        ("b // -1", (0, -(2**63)), 2**63),
        ("b % -1", (0, -(2**63)), 0),
        ("a == 9007199254740992.0", (2**53 + 1, 0), False),
        ("a < 1e400", (2**64 - 1, 0), True),
        ("~a", (0, 0), -1),
        ("-a", (2**64 - 1, 0), 1 - 2**64),
        ("a >> 64", (2**64 - 1, 0), 0),
        ("b >> a", (2**64 - 1, -5), -1),
        ("a >> b", (2**64 - 1, 63), 1),
        ("1 << b", (0, 100), 2**100),
        ("b << 200", (0, 0), 0),
        ("a and 7 // a > 1", (0, 0), False),
        ("1 < a < 10 // a", (0, 0), False),
        ("not b or 1 // b", (0, 0), True),
        ("(a > 1) + (b > 1) == 2", (2, 2), True),
    ],
)
def test_what_types_of_numpy_get_wrong(text: str, values: tuple[int, int], expected: int | bool) -> None:
    columns = {"a": np.array(values[:1], "<u8"), "b": np.array(values[1:], "<i8")}
    expression = Expression.read(text, {"a": False, "b": False})
    assert expression.values(columns, 1).tolist() == [expected]


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("", 0, "an empty expression"),
        ("  ", 0, "an empty expression"),
        ("a > nowhere", 4, "no field 'nowhere'; there are a, b, c, d, x, y"),
        ("ä > 1", 0, "no field"),
        ("ａ > 1", 0, "no field"),
        ("__import__('os').system('id') > 1", 0, "calls are not allowed"),
        ("a.real > 1", 0, "attributes are not allowed"),
        ("a > b.__class__", 4, "attributes are not allowed"),
        ("a[0]", 0, "indices are not allowed"),
        ("10**10**10 > a", 4, "** is not allowed"),
        ("a / 2 > 1", 4, "/ is not allowed; // divides and rounds down"),
        ("a @ b", 4, "this is not allowed"),
        ("a is b", 5, "is compares no numbers"),
        ("a in (1, 2)", 5, "in is not allowed"),
        ("a if b else c", 0, "if … else is not allowed"),
        ("(lambda: 0)", 1, "functions are not allowed"),
        ("(q := 1)", 1, "assignments are not allowed"),
        ("[a for a in b]", 0, "this is not allowed"),
        ("a == 'text'", 5, "not a number"),
        ("a == True", 5, "not a number"),
        ("a == 1j", 5, "not a number"),
        ("f'{a}'", 0, "texts are not allowed"),
        ("x & 1", 0, "& is for integers, and this has fractions"),
        ("1 << y", 5, "<< is for integers, and this has fractions"),
        ("~x", 1, "~ is for integers, and this has fractions"),
        ("(a and b) + 1", 1, "and, or: a truth value"),
        ("a == (b or c)", 6, "and, or: a truth value"),
        ("1" * 100 + " > a", 0, "a number of more than 128 bits"),
        ("0x" + "f" * 1900 + " > a", 0, "a number of more than 128 bits"),
        ("a > 1 " * 400, 0, "longer than 2,000 characters"),
        ("(" * 150 + "a" + ")" * 150, None, ""),
        ("(" * 999 + "a" + ")" * 999, None, ""),
        ("-" * 1999 + "a", None, ""),
        ("~" * 150 + "a", None, "nested more than 100 deep"),
        ("not " * 450 + "a", None, ""),
        ("a" + " + a" * 150, None, "nested more than 100 deep"),
        ("a" + "<a" * 900, None, ""),
        ("a > 1 and", 9, "invalid syntax"),
        ("  a >", 5, "invalid syntax"),
        (" a b", None, "invalid syntax"),
        ("a = 1", None, "invalid syntax"),
        ("(a > 1", 0, "'(' was never closed"),
        ("a > 1; b", None, "invalid syntax"),
        ("a > 1\nimport os", None, "invalid syntax"),
        ("a > \0", None, ""),
        ("a > \ud800", None, ""),
        ("a > \x1b[2J", None, ""),
    ],
)
def test_all_else_is_refused_with_its_place(text: str, at: int | None, message: str) -> None:
    with counted(lines=True) as work:
        _, error = tried(lambda: Expression.read(text, COLUMNS))
    if error:
        assert message in error.message
        assert at is None or error.at == at
        assert 0 <= error.at <= len(text)
        assert error.text == text
    else:
        # Brackets alone are no nesting for what is computed.
        assert text.startswith("((") or "<a<a" in text
    assert work.lines < 20_000 + 200 * len(text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="ab()+-*/%<>=&|^~ .[]'\"not0123e\\#:", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    expression, error = tried(lambda: Expression.read(text, COLUMNS))
    if error:
        assert 0 <= error.at <= len(text)
    else:
        assert expression.names <= COLUMNS.keys()


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("b > 1 // a", 9, "//: a division by zero"),
        ("b % (a - a)", 5, "%: a division by zero"),
        ("x // 0", 5, "//: a division by zero"),
        ("1 << -b", 5, "<<: a shift by a negative number"),
        ("a >> (a - 3)", 6, ">>: a shift by a negative number"),
        ("(a + 1) << 200", 0, "a result that may need more than 128 bits"),
        ("1 < b + 1 << (1 << 60)", 4, "a result that may need more than 128 bits"),
        ("1 << (1 << (1 << (1 << 60)))", 12, "a result that may need more than 128 bits"),
        ("(c+9)*(c+9)*(c+9)*(c+9) * 2 * (1 << 126)", 0, "a result that may need more than 128 bits"),
    ],
)
def test_what_python_would_raise_is_an_error_with_its_place(text: str, at: int, message: str) -> None:
    columns = {name: np.array([0, 1], kind) for name, kind in TYPES.items()}
    with pytest.raises(ExpressionError) as caught:
        Expression.read(text, COLUMNS).values(columns, 2)
    assert (caught.value.message, caught.value.at) == (message, at)


def test_fields_may_have_names_that_are_words_of_python() -> None:
    columns = {"async": np.arange(4, dtype="<u8"), "in": np.arange(4, dtype="<u4")}
    expression = Expression.read("async % 2 == 0 and in > 0", {"async": False, "in": False})
    assert expression.names == {"async", "in"}
    assert expression.holds(columns, 4).tolist() == [False, False, True, False]
    with pytest.raises(ExpressionError, match="no field '_____'"):
        Expression.read("_____ > 1", {"async": False})


def test_no_records() -> None:
    columns = {name: np.empty(0, kind) for name, kind in TYPES.items()}
    for text in ("a // b > 1", "x % y", "1", "a < b < c", "a and b", "~a", "a << b"):
        assert Expression.read(text, COLUMNS).holds(columns, 0).shape == (0,)
