"""Typed statements on the embedded device compute what docs/ir.md says, which ``typed_model`` computes in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from neutrino.errors import ProbeError
from neutrino.ir.operands import Constant, Register, Value
from neutrino.ir.statements import Compare, Convert, Load, Operation, Operator, Relation, Select
from neutrino.ir.types import PROBE_TYPES, Type
from neutrino.probing.ir.structured import Statement
from neutrino.probing.ir.verifier import verify
from tests.oracle.typed import BLOCK, HERE, differences, draft, edges, local, pairs, saving, sealed, site
from tests.oracle.typed_programs import programs

NUMBERS = tuple(kind for kind in PROBE_TYPES if kind not in {Type.PRED, Type.F16X2})
INTEGERS = tuple(kind for kind in NUMBERS if kind.is_integer and kind.value[0] != "b")
BITS = (Type.B8, Type.B16, Type.B32, Type.B64)
FLOATS = (Type.F16, Type.BF16, Type.F32, Type.F64)
_ANY = frozenset({Operator.MOVE})
_ARITHMETIC = frozenset({Operator.ADD, Operator.SUB, Operator.MUL, Operator.MIN, Operator.MAX, Operator.NEG})
_LOGIC = frozenset({Operator.AND, Operator.OR, Operator.XOR, Operator.NOT})
_SHIFTS = frozenset({Operator.SHL, Operator.SHR})
_DIVISIONS = frozenset({Operator.DIV, Operator.REM})
OPERATORS = {
    **dict.fromkeys(INTEGERS, _ANY | _ARITHMETIC | _LOGIC | _SHIFTS),
    **dict.fromkeys(BITS, _ANY | _LOGIC | _SHIFTS),
    **{kind: _ANY | _ARITHMETIC | {Operator.ABS} for kind in FLOATS},
    Type.PRED: _ANY | _LOGIC,
    Type.F16X2: _ANY,
}
for _kind in INTEGERS:
    if _kind.bits < 64:
        OPERATORS[_kind] |= {Operator.DIV, Operator.REM}
    if _kind.is_signed:
        OPERATORS[_kind] |= {Operator.ABS}
"""Type → what it has, but for POPC and CLZ."""
_UNARY = frozenset({Operator.MOVE, Operator.NOT, Operator.NEG, Operator.ABS})


def _inputs(kind: Type) -> tuple[list[Statement], Register, Register, Register]:
    """The site's two values, and an amount to shift by: up to 15 below 64 bits' type, beyond the width too."""
    x, y, amount = local("x", kind), local("y", kind), local("amount", Type.U32)
    if kind is Type.PRED:
        a, b = local("a", Type.U16), local("b", Type.U16)
        body: list[Statement] = [
            Load(a, site("IN1"), HERE), Load(b, site("IN2"), HERE), Convert(x, a, HERE), Convert(y, b, HERE),
            Convert(amount, b, HERE),
        ]  # fmt: skip
        return body, x, y, amount
    body = [Load(x, site("IN1"), HERE), Load(y, site("IN2"), HERE)]
    wide = local("wide", Type(f"u{max(kind.bits, 16)}"))
    body += [Load(wide, site("IN2"), HERE), Convert(amount, wide, HERE)]
    return body, x, y, amount


@pytest.mark.parametrize("kind", PROBE_TYPES)
def test_a_type_has_the_operators_that_the_reference_lists(kind: Type) -> None:
    for operator in Operator:
        body: list[Statement] = []
        x, amount = local("x", kind), local("amount", Type.U32)
        result = local("result", Type.U32 if operator in {Operator.POPC, Operator.CLZ} else kind)
        body.append(Operation(Operator.MOVE, x, (Constant(kind, 0),), HERE))
        body.append(Operation(Operator.MOVE, amount, (Constant(Type.U32, 1),), HERE))
        second: list[Value] = [amount if operator in _SHIFTS else x]
        if operator in _UNARY | {Operator.POPC, Operator.CLZ}:
            second = []
        body.append(Operation(operator, result, (x, *second), HERE))
        wanted = operator in OPERATORS[kind]
        if operator in {Operator.POPC, Operator.CLZ}:
            wanted = kind in {Type.U32, Type.U64}
        try:
            sealed(draft(body))
        except ProbeError:
            assert not wanted, operator
        else:
            assert wanted, operator


@pytest.mark.parametrize("kind", [*NUMBERS, Type.PRED])
def test_every_operator(kind: Type) -> None:
    body, x, y, amount = _inputs(kind)
    results = []
    for operator in sorted(OPERATORS[kind], key=lambda item: item.value):
        result = local(operator.value, kind)
        second = () if operator in _UNARY else (amount,) if operator in _SHIFTS else (y,)
        if operator in {Operator.DIV, Operator.REM}:
            # By zero any value comes out.
            zero, divisor = local("zero", Type.PRED), local("divisor", kind)
            body += [
                Compare(Relation.EQ, zero, y, Constant(kind, 0), HERE),
                Select(divisor, zero, Constant(kind, 1), y, HERE),
            ]
            second = (divisor,)
        body.append(Operation(operator, result, (x, *second), HERE))
        results.append(result)
    if kind in {Type.U32, Type.U64}:
        for operator in (Operator.POPC, Operator.CLZ):
            result = local(operator.value, Type.U32)
            body.append(Operation(operator, result, (x,), HERE))
            results.append(result)
    more, save = saving(results)
    left, right = pairs(kind)
    assert differences(sealed(draft([*body, *more, save])), left, right) == []


@pytest.mark.parametrize("kind", NUMBERS)
def test_with_constants(kind: Type) -> None:
    """On either side, and nothing but constants."""
    # By constants, integers of 64 bits are divided as well.
    more_operators = _DIVISIONS if kind in {Type.U64, Type.S64} else frozenset()
    for operator in sorted((OPERATORS[kind] | more_operators) - _UNARY, key=lambda item: item.value):
        body, x, y, amount = _inputs(kind)
        results = []
        for number, word in enumerate(edges(kind)):
            constant, few = Constant(kind, word), Constant(Type.U32, word % 70)
            right = few if operator in _SHIFTS else constant
            left_value = amount if operator in _SHIFTS else y
            if len(results) > 60:
                break
            if operator not in _DIVISIONS or word:
                name = f"right{number}"
                body.append(Operation(operator, local(name, kind), (x, right), HERE))
                results.append(local(name, kind))
                body.append(Operation(operator, local(f"both{number}", kind), (constant, right), HERE))
                results.append(local(f"both{number}", kind))
            if operator not in _DIVISIONS:
                body.append(Operation(operator, local(f"left{number}", kind), (constant, left_value), HERE))
                results.append(local(f"left{number}", kind))
        more, save = saving(results)
        left, rights = pairs(kind, 1)
        assert differences(sealed(draft([*body, *more, save])), left[:128], rights[:128]) == [], operator


@pytest.mark.parametrize("kind", [*NUMBERS, Type.PRED])
def test_every_conversion(kind: Type) -> None:
    body, x, _, _ = _inputs(kind)
    results = []
    for other in (*NUMBERS, Type.PRED):
        result, fixed = local(f"to_{other}", other), local(f"constant_{other}", other)
        body.append(Convert(result, x, HERE))
        body.append(Convert(fixed, Constant(kind, edges(kind)[-2]), HERE))
        results += [result, fixed]
    more, save = saving(results)
    left, right = pairs(kind)
    assert differences(sealed(draft([*body, *more, save])), left, right) == []


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_comparison_and_select(kind: Type) -> None:
    body, x, y, _ = _inputs(kind)
    results = []
    for relation in Relation:
        if kind in BITS and relation not in {Relation.EQ, Relation.NE}:
            continue
        answer, one = local(f"is_{relation.value}", Type.PRED), local(f"is_{relation.value}_1", Type.PRED)
        body.append(Compare(relation, answer, x, y, HERE))
        body.append(Compare(relation, one, Constant(kind, edges(kind)[2]), y, HERE))
        results += [answer, one]
    for index, (then, otherwise) in enumerate([(x, y), (Constant(kind, edges(kind)[-1]), y), (x, Constant(kind, 1))]):
        chosen = local(f"chosen{index}", kind)
        body.append(Select(chosen, results[0], then, otherwise, HERE))
        results.append(chosen)
    more, save = saving(results)
    left, right = pairs(kind)
    assert differences(sealed(draft([*body, *more, save])), left, right) == []


def test_predicates_are_selected() -> None:
    body, x, y, _ = _inputs(Type.PRED)
    chosen, fixed = local("chosen", Type.PRED), local("fixed", Type.PRED)
    body.append(Select(chosen, x, y, Constant(Type.PRED, 1), HERE))
    body.append(Select(fixed, y, Constant(Type.PRED, 0), x, HERE))
    more, save = saving([chosen, fixed])
    assert differences(sealed(draft([*body, *more, save])), *pairs(Type.PRED)) == []


_FEW = 60


def test_random_programs(pytestconfig: pytest.Config) -> None:
    """Statements of all types in nested ``If`` and ``For``; registers that all probes share among them."""
    count = pytestconfig.getoption("--random-rewrites") or _FEW
    random = np.random.default_rng(7)
    left, right = (random.integers(0, 1 << 32, BLOCK, np.uint32) for _ in range(2))
    few = np.array(edges(Type.F32)[:BLOCK], np.uint32)
    left[: few.size], right[: few.size] = few, few[::-1]

    @settings(
        max_examples=count, phases=(Phase.generate,), deadline=None, database=None, derandomize=count == _FEW,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(programs())
    def check(program: tuple[tuple[Statement, ...], tuple[Register, ...]]) -> None:
        body, shared = program
        drafted = draft(body, more=shared)
        assume([fault.code for fault in verify(drafted)] != ["ir-budget"])
        assert differences(sealed(drafted), left, right) == []

    check()
