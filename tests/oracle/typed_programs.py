"""Random typed snippets that the verifier must accept: operations of all types, also between lanes, in nested ``If``,
``For`` and ``While``."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from neutrino.ir.operands import Constant, Register, Value
from neutrino.ir.statements import (
    SETS_OF_LANES,
    Collective,
    Compare,
    Convert,
    Load,
    Operation,
    Operator,
    Reduction,
    Reinterpret,
    Relation,
    Select,
    Shuffle,
)
from neutrino.ir.types import PROBE_TYPES, Type
from neutrino.probing.ir.structured import For, If, Statement, While
from tests.oracle.typed import HERE, edges, local, saving, site

_KINDS = tuple(kind for kind in PROBE_TYPES if kind is not Type.F16X2)
_LOGIC = (Operator.AND, Operator.OR, Operator.XOR, Operator.NOT)
_SHIFTS = (Operator.SHL, Operator.SHR)
_OF_PREDICATES = (Reduction.ANY, Reduction.ALL)
_OF_NUMBERS = (Reduction.MIN, Reduction.MAX)
_UNARY = frozenset({Operator.MOVE, Operator.NOT, Operator.NEG, Operator.ABS})


def reductions(kind: Type) -> tuple[Reduction, ...]:
    """Those whose result has the type of the value."""
    if kind is Type.PRED:
        return (*_OF_PREDICATES, Reduction.FIRST)
    if kind.is_untyped or kind is Type.F16X2:
        return (Reduction.FIRST,)
    of_bits = (Reduction.OR, Reduction.MATCH) if kind is Type.U32 else ()
    return (*_OF_NUMBERS, Reduction.FIRST, *(() if kind.is_float else (Reduction.SUM,)), *of_bits)


def _operators(kind: Type) -> tuple[Operator, ...]:
    """Those of a type with a value for all operands: no division."""
    if kind is Type.PRED:
        return (Operator.MOVE, *_LOGIC)
    if kind.value[0] == "b" and kind is not Type.BF16:
        return (Operator.MOVE, *_LOGIC, *_SHIFTS)
    common = (Operator.MOVE, Operator.ADD, Operator.SUB, Operator.MUL, Operator.MIN, Operator.MAX, Operator.NEG)
    if kind.is_float:
        return (*common, Operator.ABS)
    return (*common, *_LOGIC, *_SHIFTS, *((Operator.ABS,) if kind.is_signed else ()))


@st.composite
def programs(
    draw: st.DrawFn, lane_mask: Type = Type.U32
) -> tuple[tuple[Statement, ...], tuple[Register, ...]]:
    """Statements that end with a save, maybe within an ``If``, and the shared registers among theirs.

    The site has two values of 32 bits. lane_mask: the type of sets of lanes.
    """
    kinds = draw(st.lists(st.sampled_from(_KINDS), min_size=2, max_size=4, unique=True))
    kinds = list(dict.fromkeys([*kinds, Type.U32, Type.PRED]))
    shared = tuple(Register(f"%shared_{kind}", kind, draw(_word(kind)), HERE) for kind in kinds)
    own = [local(f"{name}_{kind}", kind) for kind in kinds for name in ("a", "b")]
    first: list[Statement] = [Load(local("in1", Type.U32), site("IN1"), HERE)]
    first += [Load(local("in2", Type.U32), site("IN2"), HERE)]
    for index, register in enumerate(own):
        given = local(f"in{index % 2 + 1}", Type.U32)
        plain = Operation(Operator.MOVE, register, (given,), HERE)
        first.append(plain if register.type is Type.U32 else Convert(register, given, HERE))
    values = (*shared, *own)
    body = _with_sets(draw(_block(values, 3)), lane_mask)
    more, save = saving(values)
    last: list[Statement] = [*more, save]
    if draw(st.booleans()):
        condition = local("last", Type.PRED)
        test = Compare(Relation.LT, condition, local("in1", Type.U32), local("in2", Type.U32), HERE)
        sides = (tuple(last), ()) if draw(st.booleans()) else ((), tuple(last))
        last = [test, If(condition, *sides, HERE)]
    return (*first, *body, *last), shared


def _with_sets(node: Any, lane_mask: Type) -> Any:
    """Statements with sets of lanes as a target has them: cut to the 32 bits that are drawn."""
    if isinstance(node, tuple):
        return tuple(itertools.chain.from_iterable(
            row if isinstance(row, tuple) else (row,) for row in (_with_sets(one, lane_mask) for one in node)
        ))  # fmt: skip
    if isinstance(node, Collective) and node.reduction in SETS_OF_LANES and lane_mask is not Type.U32:
        found = local("set_of_lanes", lane_mask)
        return replace(node, destination=found), Convert(node.destination, found, HERE)
    inner = {name: _with_sets(getattr(node, name), lane_mask) for name in _LISTS.get(type(node), ())}
    return replace(node, **inner) if inner else node


_LISTS: dict[type, tuple[str, ...]] = {If: ("then", "otherwise"), For: ("body",), While: ("test", "body")}


def _word(kind: Type) -> st.SearchStrategy[int]:
    return st.sampled_from(edges(kind)) | st.integers(0, (1 << (1 if kind is Type.PRED else kind.bits)) - 1)


@st.composite
def _block(draw: st.DrawFn, values: tuple[Register, ...], depth: int) -> tuple[Statement, ...]:
    found: list[Statement] = []
    for _ in range(draw(st.integers(1, 4))):
        found += draw(_statement(values, depth))
    return tuple(found)


@st.composite
def _statement(draw: st.DrawFn, values: tuple[Register, ...], depth: int) -> tuple[Statement, ...]:
    predicates = [value for value in values if value.type is Type.PRED]
    which = draw(st.integers(0, 10 if depth else 6))
    if which == 10:
        condition = draw(st.sampled_from(predicates))
        test = draw(st.just(()) | _block(values, 0))
        return (While(test, condition, draw(_block(values, depth - 1)), draw(st.integers(1, 3)), HERE),)
    if which >= 8:
        condition = draw(st.sampled_from(predicates))
        then, otherwise = draw(_block(values, depth - 1)), draw(st.just(()) | _block(values, depth - 1))
        return (If(condition, then, otherwise, HERE),)
    if which == 7:
        start, turns = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        step = draw(st.sampled_from((1, 2, 5)))
        kind = draw(st.sampled_from((Type.U32, Type.S8, Type.U16, Type.S64, Type.B32)))
        loop = local(f"loop{depth}_{kind}", kind)
        # What it is read into is drawn among the others.
        target = draw(st.sampled_from(values))
        inside = (Convert(target, loop, HERE), *draw(_block(values, depth - 1)))
        return (For(loop, start, start + turns * step, step, inside, HERE),)
    target = draw(st.sampled_from(values))
    kind = target.type
    if which == 0:
        source = draw(st.sampled_from(values))
        return (Convert(target, source, HERE),)
    if which == 1:
        compared = draw(st.sampled_from([value for value in values if value.type is not Type.PRED]))
        of_bits = compared.type.value[0] == "b" and compared.type is not Type.BF16
        relation = draw(st.sampled_from((Relation.EQ, Relation.NE) if of_bits else tuple(Relation)))
        operands = draw(_operand(values, compared.type)), draw(_operand(values, compared.type))
        return (Compare(relation, draw(st.sampled_from(predicates)), *operands, HERE),)
    if which == 3 and target.is_local and draw(st.integers(0, 4)) == 0:
        return (Shuffle(target, draw(_operand(values, kind)), draw(_operand(values, Type.U32)), HERE),)
    if which == 3 and kind is Type.PRED and target.is_local and draw(st.booleans()):
        return (Collective(Reduction.SAME, target, draw(_operand(values, Type.U32)), HERE),)
    if which == 3 and target.is_local:
        return (Collective(draw(st.sampled_from(reductions(kind))), target, draw(_operand(values, kind)), HERE),)
    # Which NaN an operation gives is not said, so that only integers have known bits.
    integers = [value for value in values if value.type.is_integer and value.type.bits == kind.bits]
    if which == 4 and integers and kind is not Type.PRED:
        return (Reinterpret(target, draw(st.sampled_from(integers)), HERE),)
    if which == 2:
        condition = draw(st.sampled_from(predicates))
        return (Select(target, condition, draw(_operand(values, kind)), draw(_operand(values, kind)), HERE),)
    operator = draw(st.sampled_from(_operators(kind)))
    sources = [draw(_operand(values, kind))]
    if operator in _SHIFTS:
        sources.append(draw(_operand(values, Type.U32)))
    elif operator not in _UNARY:
        sources.append(draw(_operand(values, kind)))
    return (Operation(operator, target, tuple(sources), HERE),)


@st.composite
def _operand(draw: st.DrawFn, values: tuple[Register, ...], kind: Type) -> Value:
    if draw(st.integers(0, 3)) == 0:
        return Constant(kind, draw(_word(kind)))
    return draw(st.sampled_from([value for value in values if value.type is kind]))
