"""What the verifier of typed IR refuses, and that it names the statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from neutrino.abi.levels import LEVELS, Level, Per
from neutrino.errors import Span
from neutrino.ir.operands import Constant, Immediate, Register, SiteOperand, Special, SpecialRegister
from neutrino.ir.statements import (
    Assembly,
    ClockAfter,
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
)
from neutrino.ir.types import Type
from neutrino.maps.declaration import Map
from neutrino.maps.sum import Sum
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.structured import For, If, Save, Statement, While
from neutrino.probing.ir.verifier import BUDGET, DEPTH, FAULTS, verify
from tests.oracle.typed import HERE, a_map, draft, local

THERE = Span(1, 3)
"""Where the fault must be."""
X, N = Register("%x", Type.U32, 0, HERE), Register("%n", Type.U64, 0, HERE)
F, H = Register("%f", Type.F32, 0, HERE), Register("%h", Type.F16X2, 0, HERE)
P, S, B = Register("%p", Type.PRED, 0, HERE), Register("%s", Type.S32, 0, HERE), Register("%b", Type.B32, 0, HERE)
K, J = local("i", Type.U32), local("j", Type.U8)
ONE, WIDE, YES = Constant(Type.U32, 1), Constant(Type.U64, 1), Constant(Type.PRED, 1)
SUM = a_map("T", ["u32"], kind=Sum())
M, SMALL, FLOAT = a_map("M", ["u64"]), a_map("S", ["u32", "u32"]), a_map("F", ["f32"])


def _add(destination: Register = X, *sources: object, span: Span = THERE) -> Operation:
    return Operation(Operator.ADD, destination, sources or (X, ONE), span)  # type: ignore[arg-type]


def _nested(depth: int, span: Span = HERE) -> Statement:
    """``If`` in ``If``, so many; the innermost at span."""
    found: Statement = If(P, (_add(span=HERE),), (), span)
    for _ in range(depth - 1):
        found = If(P, (found,), (), HERE)
    return found


FINE: dict[str, list[Statement]] = {
    "shared registers begin with a value": [_add()],
    "the hardware's values": [Operation(Operator.SUB, N, (Special.CLOCK, N), HERE), Save(M, (N,), HERE)],
    "assigned on both sides": [
        If(P, (Operation(Operator.MOVE, K, (ONE,), HERE),), (Operation(Operator.MOVE, K, (X,), HERE),), HERE),
        _add(X, X, K),
    ],
    "the variable after its loop": [For(K, 0, 3, 1, (), HERE), _add(X, X, K)],
    "backwards": [For(J, 255, -1, -5, (), HERE)],
    "a loop of no turns": [For(J, 3, 3, 1, (_add(X, X, ONE),), HERE)],
    "as many turns as there may be": [For(K, 0, BUDGET // 2, 1, (_add(),), HERE)],
    "as deep as may be": [_nested(DEPTH)],
    "of every field": [Save(SMALL, (B, S), HERE), Save(FLOAT, (B,), HERE), Save(FLOAT, (F,), HERE)],
    "of a site": [Load(H, SiteOperand("IN1"), HERE), Save(SMALL, (SiteOperand("IN1"), SiteOperand("IN2")), HERE)],
    "pairs are moved and selected": [Select(H, P, H, Constant(Type.F16X2, 0), HERE)],
    "other bits": [Reinterpret(F, X, HERE), Reinterpret(B, F, HERE), Reinterpret(H, ONE, HERE)],
    "a loop with a condition": [
        While((Compare(Relation.LT, local("c", Type.PRED), X, ONE, HERE),), local("c", Type.PRED), (_add(),), 3, HERE),
        If(local("c", Type.PRED), (), (), HERE),
    ],
    "as many turns as a loop may have": [While((), P, (), BUDGET, HERE)],
    "between lanes": [
        Collective(Reduction.SUM, K, X, HERE), Collective(Reduction.BALLOT, K, P, HERE),
        Collective(Reduction.ALL, local("c", Type.PRED), YES, HERE),
        Collective(Reduction.FIRST, local("b", Type.B32), B, HERE),
        Collective(Reduction.MIN, local("f", Type.F32), F, HERE),
    ],
    "the clock after any value": [ClockAfter(N, X, HERE), ClockAfter(N, P, HERE), ClockAfter(N, H, HERE)],
    "shifts of any integer": [Operation(Operator.SHL, N, (N, ONE), HERE)],
}

WRONG: dict[str, tuple[str, str, Sequence[Statement]]] = {
    "another type": ("ir-type", "f32 where the operation takes u32", [_add(X, X, F)]),
    "a wide constant": ("ir-type", "u64 where the operation takes u32", [_add(X, X, WIDE)]),
    "a constant that does not fit": ("ir-type", "256 does not fit in u8", [
        Operation(Operator.MOVE, J, (Constant(Type.U8, 256),), THERE)]),
    "a negative constant": ("ir-type", "-1 does not fit in u32", [_add(X, X, Constant(Type.U32, -1))]),
    "a site's value in a sum": ("ir-type", "IN1 where the operation takes u32", [_add(X, X, SiteOperand("IN1"))]),
    "a site's value compared": ("ir-type", "IN1 is loaded into a register first", [
        Compare(Relation.EQ, P, SiteOperand("IN1"), X, THERE)]),
    "a site's value converted": ("ir-type", "OUT is loaded into a register first", [
        Convert(X, SiteOperand("OUT"), THERE)]),
    "a comparison of two types": ("ir-type", "u64 where the operation takes u32", [
        Compare(Relation.EQ, P, X, N, THERE)]),
    "a comparison into a number": ("ir-type", "u32 where the operation takes pred", [
        Compare(Relation.EQ, X, X, X, THERE)]),
    "a choice by a number": ("ir-type", "u32 where the operation takes pred", [Select(X, X, X, X, THERE)]),
    "a choice of two types": ("ir-type", "u64 where the operation takes u32", [Select(X, P, X, N, THERE)]),
    "if a number": ("ir-type", "u32 where the operation takes pred", [If(X, (), (), THERE)]),
    "a shift by 64 bits": ("ir-type", "u64 where the operation takes u32", [
        Operation(Operator.SHL, N, (N, N), THERE)]),
    "a count into 64 bits": ("ir-type", "u64 where the operation takes u32", [
        Operation(Operator.POPC, N, (N,), THERE)]),
    "a count of signed bits": ("ir-type", "'clz' takes u32 or u64", [Operation(Operator.CLZ, X, (S,), THERE)]),
    "a count of a site's value": ("ir-type", "'popc' takes u32 or u64", [
        Operation(Operator.POPC, X, (SiteOperand("IN1"),), THERE)]),
    "a loop over fractions": ("ir-type", "the variable of a loop is f32", [
        For(local("q", Type.F32), 0, 2, 1, (), THERE)]),
    "a loop over what is shared": ("ir-type", "a register that all probes share", [For(X, 0, 2, 1, (), THERE)]),
    "a loop beyond its variable": ("ir-type", "u8 does not hold 250 to 258", [For(J, 250, 259, 2, (), THERE)]),
    "a loop below its variable": ("ir-type", "u8 does not hold -1 to 1", [For(J, -1, 2, 1, (), THERE)]),
    "a missing operand": ("ir-operator", "'add' takes 2 values", [_add(X, X)]),
    "one too many": ("ir-operator", "'neg' takes 1 values", [Operation(Operator.NEG, S, (S, S), THERE)]),
    "a division of 64 bits": ("ir-operator", "values of u64 have 'div' by constants alone", [
        Operation(Operator.DIV, N, (N, N), THERE)]),
    "a remainder of 64 bits by 0": ("ir-operator", "values of u64 have 'rem' by constants alone", [
        Operation(Operator.REM, N, (N, Constant(Type.U64, 0)), THERE)]),
    "a division of fractions": ("ir-operator", "values of f32 have no 'div'", [
        Operation(Operator.DIV, F, (F, F), THERE)]),
    "a sum of bits": ("ir-operator", "values of b32 have no 'add'", [_add(B, B, B)]),
    "an order of bits": ("ir-operator", "values of b32 have no 'lt'", [Compare(Relation.LT, P, B, B, THERE)]),
    "predicates compared": ("ir-operator", "values of pred have no 'eq'", [Compare(Relation.EQ, P, P, P, THERE)]),
    "a pair converted": ("ir-operator", "a pair of halves is not converted", [Convert(X, H, THERE)]),
    "a pair compared": ("ir-operator", "values of f16x2 have no 'eq'", [Compare(Relation.EQ, P, H, H, THERE)]),
    "read before it is assigned": ("ir-unassigned", "i may have no value here", [_add(X, X, K)]),
    "assigned on one side": ("ir-unassigned", "i may have no value here", [
        If(P, (Operation(Operator.MOVE, K, (ONE,), HERE),), (), HERE), _add(X, X, K)]),
    "assigned in a loop that may not run": ("ir-unassigned", "i may have no value here", [
        For(J, 0, 0, 1, (Operation(Operator.MOVE, K, (ONE,), HERE),), HERE), _add(X, X, K)]),
    "saved before it is assigned": ("ir-unassigned", "i may have no value here", [Save(SMALL, (K, X), THERE)]),
    "a condition without a value": ("ir-unassigned", "c may have no value here", [
        If(local("c", Type.PRED), (), (), THERE)]),
    "a loop without an end": ("ir-loop", "a loop whose step is 0", [For(K, 0, 5, 0, (), THERE)]),
    "a loop of too many turns": ("ir-loop", f"257 turns, more than {BUDGET}", [For(K, 0, 257, 1, (), THERE)]),
    "a loop for ever": ("ir-loop", "a loop of very many turns", [For(K, 0, 10**4000, 1, (), THERE)]),
    "its variable assigned": ("ir-loop", "i is the variable of a loop around this", [
        For(K, 0, 2, 1, (Operation(Operator.MOVE, K, (ONE,), THERE),), HERE)]),
    "its variable used again": ("ir-loop", "i is the variable of a loop around this", [
        For(K, 0, 2, 1, (For(K, 0, 2, 1, (), THERE),), HERE)]),
    "bits of another width": ("ir-type", "the 32 bits of f32 as u64, which has 64", [Reinterpret(N, F, THERE)]),
    "bits of a predicate": ("ir-operator", "a predicate has no bits", [Reinterpret(J, P, THERE)]),
    "bits of a site's value": ("ir-type", "IN1 is loaded into a register first", [
        Reinterpret(F, SiteOperand("IN1"), THERE)]),
    "a loop of no turns at all": ("ir-loop", "a loop of at most 0 turns, which are 1 to", [While((), P, (), 0, THERE)]),
    "a loop of more turns": ("ir-loop", "a loop of at most 257 turns", [While((), P, (), 257, THERE)]),
    "while a number": ("ir-type", "u32 where the operation takes pred", [While((), X, (), 2, THERE)]),
    "while nothing": ("ir-unassigned", "c may have no value here", [While((), local("c", Type.PRED), (), 2, THERE)]),
    "assigned in a body that may not run": ("ir-unassigned", "i may have no value here", [
        While((), P, (Operation(Operator.MOVE, K, (ONE,), HERE),), 2, HERE), _add(X, X, K)]),
    "a sum of fractions between lanes": ("ir-operator", "values of f32 have no 'sum' between lanes", [
        Collective(Reduction.SUM, local("f", Type.F32), F, THERE)]),
    "the least bits": ("ir-operator", "values of b32 have no 'min' between lanes", [
        Collective(Reduction.MIN, local("b", Type.B32), B, THERE)]),
    "any of a number": ("ir-type", "u32 where the operation takes pred", [
        Collective(Reduction.ANY, local("c", Type.PRED), X, THERE)]),
    "a ballot into a predicate": ("ir-type", "pred where the operation takes u32", [
        Collective(Reduction.BALLOT, local("c", Type.PRED), P, THERE)]),
    "a sum into another type": ("ir-type", "u32 where the operation takes u64", [
        Collective(Reduction.SUM, K, N, THERE)]),
    "a site's value between lanes": ("ir-type", "OUT is loaded into a register first", [
        Collective(Reduction.FIRST, K, SiteOperand("OUT"), THERE)]),
    "between lanes into what is shared": ("ir-collective", "'sum' between lanes into x, which all probes share", [
        Collective(Reduction.SUM, X, X, THERE)]),
    "a clock of 32 bits": ("ir-type", "u32 where the operation takes u64", [ClockAfter(X, N, THERE)]),
    "too many fields": ("ir-save", "1 values for the 2 fields of 'S'", [Save(SMALL, (X,), THERE)]),
    "a value of another width": ("ir-save", "a value of u32 for field 'f0', which is u64", [Save(M, (X,), THERE)]),
    "a fraction for an integer": ("ir-save", "a value of f32 for field 'f0', which is u32", [
        Save(SMALL, (F, X), THERE)]),
    "an integer for a fraction": ("ir-save", "a value of u32 for field 'f0', which is f32", [Save(FLOAT, (X,), THERE)]),
    "a predicate saved": ("ir-save", "a value of pred for field 'f0', which is u32", [Save(SMALL, (P, YES), THERE)]),
    "a map of another level": ("ir-save", "a thread probe saves to 'W', a warp map", [
        Save(a_map("W", ["u32"], Level.WARP), (X,), THERE)]),
    "a predicate of its own": ("ir-save", "under a predicate of its own", [Save(M, (N,), THERE, guard=P)]),
    "assembly": ("ir-assembly", "'mov.u32 %x, 1' among typed statements", [
        Assembly("ptx", "mov.u32", (X, Immediate("1")), THERE, writes=(X,))]),
    "a number of assembly saved": ("ir-assembly", "'7' among typed statements", [
        Save(M, (Immediate("7"),), THERE)]),
    "a special register of one target saved": ("ir-assembly", "'%clock64' among typed statements", [
        Save(M, (SpecialRegister("%clock64", Type.U64),), THERE)]),
}  # fmt: skip
"""Name → code, words of the message, statements of which those at THERE are wrong."""


@pytest.mark.parametrize("name", FINE)
def test_what_is_valid_is_accepted(name: str) -> None:
    assert verify(draft(FINE[name])) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_refused_where_it_is(name: str) -> None:
    code, words, body = WRONG[name]
    found = verify(draft(body))
    assert [(fault.code, fault.line, fault.column, fault.source) for fault in found] == [
        (code, THERE.line, THERE.column, "a line")
    ] * len(found)
    assert found
    assert words in found[0].message


def _foreign() -> list[DraftProbes]:
    """Drafts that name what is not theirs: an undeclared register, one of another type, another's map."""
    plain = draft([_add()])
    typed = draft([_add()], more=[])
    saved = draft([Save(M, (N,), THERE)])
    return [
        replace(plain, registers=()),
        replace(typed, registers=(replace(X, type=Type.S32),)),
        replace(saved, maps=()),
        replace(saved, maps=(replace(M, cap=7),)),
    ]


def test_registers_and_maps_are_the_drafts_own() -> None:
    codes = [[fault.code for fault in verify(drafted)] for drafted in _foreign()]
    assert codes == [["ir-register"] * 2, ["ir-register"] * 2, ["ir-save"], ["ir-save"]]
    assert all((fault.line, fault.column) == (1, 3) for drafted in _foreign() for fault in verify(drafted))


@pytest.mark.parametrize(
    ("body", "words", "span"),
    [
        ([_add()] * (BUDGET + 1), "257 statements", HERE),
        ([For(K, 0, 16, 1, (For(J, 0, 16, 1, (_add(),), HERE),), HERE)], "528 statements", HERE),
        ([While((_add(),), P, (_add(),) * 15, 16, HERE)], "272 statements", HERE),
        ([_nested(DEPTH + 1, THERE)], "nested more than 32 deep", THERE),
    ],
)
def test_the_budget(body: list[Statement], words: str, span: Span) -> None:
    (fault,) = verify(draft(body))
    assert (fault.code, fault.line, fault.column) == ("ir-budget", span.line, span.column)
    assert words in fault.message


def test_every_fault_is_provoked() -> None:
    provoked = {code for code, _, _ in WRONG.values()} | {"ir-register", "ir-budget", "ir-group"}
    assert provoked == set(FAULTS)


def test_faults_come_in_file_order() -> None:
    body = [_add(X, X, F, span=Span(3, 1)), _add(X, X, F, span=Span(2, 5)), _add(X, X, F, span=Span(2, 1))]
    drafted = replace(draft(body), source="a\nb\nc\n")
    assert [(fault.line, fault.column, fault.source) for fault in verify(drafted)] == [
        (2, 1, "b"), (2, 5, "b"), (3, 1, "c"),
    ]  # fmt: skip


def test_a_group_assigns_no_register_that_all_share() -> None:
    of_snippet = [_add(K, X, X), Save(SUM, (K,), HERE)]
    assert verify(draft(of_snippet, level=Level.GROUP)) == []
    (fault,) = verify(draft([If(P, (_add(),), (), HERE)], level=Level.GROUP))
    assert (fault.code, fault.line, fault.column) == ("ir-group", THERE.line, THERE.column)
    assert "assigns x" in fault.message
    assert "lowest lane is another one" in fault.hint


def test_a_group_has_no_slots() -> None:
    for entry, words in (
        (M, "keeps records of each thread"), (replace(SUM, per=Per.THREAD), "a result for each thread"),
        (a_map("W", ["u32"], Level.WARP, Sum()), "a warp map"),
        (replace(a_map("W", ["u32"], Level.WARP), cap=2), "a warp map"),
        (a_map("B", ["u32"], Level.BLOCK), "a block map"),
    ):
        value = X if entry is not M else N
        (fault,) = verify(draft([Save(entry, (value,), THERE)], level=Level.GROUP))
        assert fault.code == "ir-save"
        assert words in fault.message


def test_a_map_of_every_level_takes_its_probes() -> None:
    for level in LEVELS:
        entry: Map = a_map("L", ["u32"], level)
        assert verify(draft([Save(entry, (X,), HERE)], level=level)) == []
