"""Typed statements in AMD's kernels compute what docs/ir.md says, which ``typed_model`` computes in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

from neutrino.gcn.instrument.compute import why_not
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Compare, Convert, Operation, Operator, Relation, Select
from neutrino.ir.types import PROBE_TYPES, Type
from neutrino.probing.ir.structured import Statement
from neutrino.probing.ir.verifier import verify
from tests.gcn.compute_bench import MACHINES, differences, machine_of
from tests.gcn.objects import need_llvm
from tests.oracle.test_typed import BITS, NUMBERS, OPERATORS, _inputs
from tests.oracle.typed import HERE, draft, edges, local, pairs, saving
from tests.oracle.typed_programs import programs

_UNARY = frozenset({Operator.MOVE, Operator.NOT, Operator.NEG, Operator.ABS})
_SHIFTS = frozenset({Operator.SHL, Operator.SHR})
_DIVISIONS = frozenset({Operator.DIV, Operator.REM})


def _chosen(kind: Type) -> tuple[str, int]:
    """Another processor for each type."""
    return MACHINES[list(PROBE_TYPES).index(kind) % len(MACHINES)]


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--thorough"))


def check_everywhere(
    thorough: bool, body: Sequence[Statement], results: Sequence[Register], kind: Type, uniform: Sequence[str]
) -> None:
    """Compare what statements compute on one processor, of some pairs; or on all, of all pairs."""
    for place in MACHINES if thorough else (_chosen(kind),):
        check_values(place, body, results, kind, uniform, 1 << 14 if thorough else 256)


def check_values(
    place: tuple[str, int], body: Sequence[Statement], results: Sequence[Register], kind: Type,
    uniform: Sequence[str] = (), most: int = 256,
) -> None:  # fmt: skip
    """Compare what statements compute of pairs of a type's values. uniform: those that are in SGPRs."""
    more, save = saving(results)
    left, right = pairs(kind)
    if left.size > most:
        # Some of all pairs.
        chosen = np.random.default_rng(5).permutation(left.size)[:most]
        left, right = left[chosen], right[chosen]
    if uniform:
        left, right = (words[: 12 * place[1] : place[1]].repeat(place[1]) for words in (left, right))
    body = [*body, *more, save]
    assert [why_not(statement) for statement in body if why_not(statement)] == []
    assert differences(machine_of(*place), need_llvm(), body, left, right, uniform=uniform) == []


def every_operator(kind: Type) -> tuple[list[Statement], list[Register]]:
    """Each that a type has, of the site's two values."""
    body, x, y, amount = _inputs(kind)
    results = []
    for operator in sorted(OPERATORS[kind], key=lambda item: item.value):
        result = local(operator.value, kind)
        second = () if operator in _UNARY else (amount,) if operator in _SHIFTS else (y,)
        if operator in _DIVISIONS:
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
    return body, results


@pytest.mark.parametrize("uniform", [(), ("IN1", "IN2")], ids=["lanes", "wave"])
@pytest.mark.parametrize("kind", [*NUMBERS, Type.PRED])
def test_every_operator(thorough: bool, kind: Type, uniform: tuple[str, ...]) -> None:
    check_everywhere(thorough, *every_operator(kind), kind, uniform)


@pytest.mark.parametrize("kind", NUMBERS)
def test_with_constants(kind: Type) -> None:
    """On either side, and nothing but constants."""
    more_operators = _DIVISIONS if kind in {Type.U64, Type.S64} else frozenset()
    random = np.random.default_rng(kind.bits)
    words = [int(word) for word in random.permutation(np.array(edges(kind), np.uint64))[:5]]
    body, x, y, amount = _inputs(kind)
    results = []
    for operator in sorted((OPERATORS[kind] | more_operators) - _UNARY, key=lambda item: item.value):
        for number, word in enumerate(words):
            name = f"{operator.value}{number}"
            constant, few = Constant(kind, word), Constant(Type.U32, word % 70)
            right = few if operator in _SHIFTS else constant
            left_value = amount if operator in _SHIFTS else y
            sides = []
            if operator not in _DIVISIONS or word:
                sides += [("right", (x, right)), ("both", (constant, right))]
            if operator not in _DIVISIONS:
                sides.append(("left", (constant, left_value)))
            for side, sources in sides:
                results.append(local(f"{side}{name}", kind))
                body.append(Operation(operator, results[-1], sources, HERE))
    place = _chosen(kind)
    for begin in range(0, len(results), 20):
        some = results[begin : begin + 20]
        kept = [row for row in body if row.destination in some or row.destination not in results]  # type: ignore[union-attr]
        check_values(place, kept, some, kind, most=128)


def every_conversion(kind: Type) -> tuple[list[Statement], list[Register]]:
    """To each type, of the site's first value and of a constant."""
    body, x, _, _ = _inputs(kind)
    results = []
    for other in (*NUMBERS, Type.PRED):
        result, fixed = local(f"to_{other}", other), local(f"constant_{other}", other)
        body.append(Convert(result, x, HERE))
        body.append(Convert(fixed, Constant(kind, edges(kind)[-2]), HERE))
        results += [result, fixed]
    return body, results


@pytest.mark.parametrize("uniform", [(), ("IN1", "IN2")], ids=["lanes", "wave"])
@pytest.mark.parametrize("kind", [*NUMBERS, Type.PRED])
def test_every_conversion(thorough: bool, kind: Type, uniform: tuple[str, ...]) -> None:
    check_everywhere(thorough, *every_conversion(kind), kind, uniform)


def every_comparison(kind: Type) -> tuple[list[Statement], list[Register]]:
    """Of the site's values and of constants, and choices between them."""
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
    return body, results


@pytest.mark.parametrize("uniform", [(), ("IN1", "IN2")], ids=["lanes", "wave"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_every_comparison_and_select(thorough: bool, kind: Type, uniform: tuple[str, ...]) -> None:
    check_everywhere(thorough, *every_comparison(kind), kind, uniform)


_FEW, _MANY = 6, 200


@pytest.mark.parametrize("place", MACHINES, ids=str)
def test_random_programs(thorough: bool, place: tuple[str, int]) -> None:
    """Statements of all types in nested ``If``, ``For`` and ``While``; registers that all probes share among them."""
    count = _MANY if thorough else _FEW
    random = np.random.default_rng(7)
    left, right = (random.integers(0, 1 << 32, place[1], np.uint32) for _ in range(2))
    few = np.array(edges(Type.F32)[: place[1]], np.uint32)
    left[: few.size], right[: few.size] = few, few[::-1]
    machine, llvm = machine_of(*place), need_llvm()

    @settings(
        max_examples=count, phases=(Phase.generate,), deadline=None, database=None, derandomize=count == _FEW,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(programs(Type.U64))
    def check(program: tuple[tuple[Statement, ...], tuple[Register, ...]]) -> None:
        body, shared = program
        faults = [fault.code for fault in verify(draft(body, more=shared))]
        assume("ir-budget" not in faults)
        assert differences(machine, llvm, body, left, right, shared, seed=count) == []

    check()


