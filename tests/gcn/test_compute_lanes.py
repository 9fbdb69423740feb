"""What typed statements in AMD's kernels ask of other lanes, addresses and the clock; loops; operators of maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from neutrino.emulator.gcn.compiler import PRIVATE_APERTURE, SHARED_APERTURE
from neutrino.gcn.instrument.apertures import find_global
from neutrino.gcn.instrument.code import Code, Vector
from neutrino.gcn.instrument.compute import CannotError, why_not
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import (
    ClockAfter,
    Collective,
    Compare,
    Convert,
    IsGlobal,
    Load,
    Operation,
    Operator,
    Reduction,
    Reinterpret,
    Relation,
    Shuffle,
    reduced_type,
)
from neutrino.ir.types import PROBE_TYPES, Type
from neutrino.probing.ir.structured import For, If, Statement, While
from tests.gcn.compute_bench import MACHINES, assembled, differences, execute, lowered, machine_of, wave_of
from tests.gcn.objects import need_llvm
from tests.oracle.typed import HERE, edges, local, saving, site
from tests.oracle.typed_programs import reductions

VALUES = tuple(kind for kind in PROBE_TYPES if kind is not Type.F16X2)
_SOME = [np.arange(64) % 3 != 1, np.ones(64, np.bool_), np.arange(64) == 37 % 32, np.arange(64) > 20]
"""Lanes that come to the snippet."""


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("uniform", [(), ("IN1",)], ids=["lanes", "wave"])
@pytest.mark.parametrize("kind", VALUES)
def test_every_reduction(kind: Type, uniform: Sequence[str]) -> None:
    """Of all lanes, of those on either side of an ``If``, and of those that are in both of two."""
    place = MACHINES[VALUES.index(kind) % len(MACHINES)]
    width = max(kind.bits, 16)
    bits = np.dtype(f"u{width // 8}")
    x, y = local("x", kind), local("y", Type(f"u{width}"))
    body: list[Statement] = [Load(y, site("IN2"), HERE)]
    if kind is Type.PRED:
        word = local("word", Type.U16)
        body += [Load(word, site("IN1"), HERE), Compare(Relation.NE, x, word, Constant(Type.U16, 0), HERE)]
    else:
        body.append(Load(x, site("IN1"), HERE))
    odd, small = local("odd", Type.PRED), local("small", Type.PRED)
    rest, other = local("rest", y.type), local("other", Type.U32)
    body += [
        Operation(Operator.AND, rest, (y, Constant(y.type, 1)), HERE),
        Compare(Relation.EQ, odd, rest, Constant(y.type, 1), HERE),
        Compare(Relation.LT, small, y, Constant(y.type, 40), HERE), Convert(other, y, HERE),
    ]  # fmt: skip
    results: list[Register] = []

    def between(name: str) -> list[Statement]:
        made: list[Statement] = []
        asked = {*reductions(kind), *([Reduction.BALLOT] if kind is Type.PRED else [])} - {Reduction.MATCH}
        if kind.is_integer and kind.bits >= 32:
            asked |= {Reduction.MATCH, Reduction.SAME}
        for reduction in sorted(asked, key=lambda item: item.value):
            target = local(f"{name}_{reduction.value}", reduced_type(reduction, kind, Type.U64))
            body.append(Operation(Operator.MOVE, target, (Constant(target.type, 0),), HERE))
            made.append(Collective(reduction, target, x, HERE))
            results.append(target)
        for index, lane in enumerate((other, Constant(Type.U32, 33), Constant(Type.U32, 3), Constant(Type.U32, 70))):
            target = local(f"{name}_shuffled{index}", kind)
            body.append(Operation(Operator.MOVE, target, (Constant(kind, 0),), HERE))
            made.append(Shuffle(target, x, lane, HERE))
            results.append(target)
        return made

    everywhere, then, otherwise, inner = between("all"), between("then"), between("otherwise"), between("inner")
    body += [*everywhere, If(odd, (*then, If(small, (), tuple(inner), HERE)), tuple(otherwise), HERE)]
    random = np.random.default_rng(3)
    words = np.array([edge for edge in edges(kind) for _ in range(2)], np.uint64)
    left = random.choice(words, 256).astype(bits)
    left[64:128] = left[64]
    # Lanes of other numbers than there are, too.
    right = random.integers(0, 80, 256).astype(bits)
    # In parts, for as many results as there are registers to keep them in.
    for begin in range(0, len(results), 14):
        some = results[begin : begin + 14]
        kept = _only(body, some, results)
        more, save = saving(some)
        found = differences(
            machine_of(*place), need_llvm(), [*kept, *more, save], left, right, masks=_SOME, uniform=uniform
        )
        assert found == []


def _only(body: Sequence[Statement], some: Sequence[Register], results: Sequence[Register]) -> list[Statement]:
    """The statements without those whose results are others'."""
    found: list[Statement] = []
    for row in body:
        if isinstance(row, If):
            then, otherwise = (tuple(_only(rows, some, results)) for rows in (row.then, row.otherwise))
            found.append(replace(row, then=then, otherwise=otherwise))
        elif row.destination in some or row.destination not in results:  # type: ignore[union-attr]
            found.append(row)
    return found


@pytest.mark.parametrize("place", MACHINES, ids=str)
@pytest.mark.parametrize("is_apart", [True, False], ids=["apart", "together"])
def test_loops_end_in_each_lane_by_itself(place: tuple[str, int], is_apart: bool) -> None:
    """A counter that begins the same everywhere, predicates, and a value that is there after the loop alone."""
    n, count, total = local("n", Type.U32), local("count", Type.U32), local("total", Type.U64)
    goes, seen, each = local("goes", Type.PRED), local("seen", Type.PRED), local("each", Type.S16)
    wide, one = local("wide", Type.U64), Constant(Type.U32, 1)
    limit = local("limit", Type.U32)
    first: list[Statement] = [Load(n, site("IN1"), HERE)]
    if not is_apart:
        first = [Operation(Operator.MOVE, n, (Constant(Type.U32, 5),), HERE)]
    body = [
        *first, Operation(Operator.MOVE, count, (Constant(Type.U32, 0),), HERE),
        Operation(Operator.MOVE, total, (Constant(Type.U64, 1),), HERE),
        Compare(Relation.GT, seen, n, Constant(Type.U32, 1 << 31), HERE),
        Operation(Operator.AND, limit, (n, Constant(Type.U32, 15)), HERE),
        While(
            (Compare(Relation.LT, goes, count, limit, HERE),), goes, (
                Operation(Operator.ADD, count, (count, one), HERE), Convert(wide, count, HERE),
                For(each, 3, -2, -2, (Operation(Operator.ADD, total, (total, total), HERE),
                                      Operation(Operator.ADD, total, (total, wide), HERE)), HERE),
                If(seen, (Operation(Operator.NOT, seen, (seen,), HERE),), (
                    Compare(Relation.EQ, seen, count, Constant(Type.U32, 3), HERE),), HERE),
            ), 11, HERE,
        ),
    ]  # fmt: skip
    more, save = saving([n, count, total, goes, seen])
    left = np.random.default_rng(4).integers(0, 1 << 32, 4 * place[1], np.uint32)
    body = [*body, *more, save]
    assert not any(map(why_not, body))
    assert differences(machine_of(*place), need_llvm(), body, left, left, masks=_SOME) == []


def test_doubles_are_rounded_to_f16_once() -> None:
    """Numbers beside those in the middle of two, by less than an f32 tells."""
    middles = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65520.0, 2**-25, 3 * 2**-25, 1023.5 * 2**-24, 2049.0])
    near = [middles, np.nextafter(middles, 0), np.nextafter(middles, 9e9), -middles, -np.nextafter(middles, 0)]
    values = np.concatenate([*near, [1e300, -1e300, 5e-324, np.nan, np.inf, 65519.99999999999]])
    left = values.view(np.uint64)
    x, y = local("x", Type.F64), local("y", Type.F16)
    more, save = saving([y])
    body = [Load(x, site("IN1"), HERE), Convert(y, x, HERE), *more, save]
    for place in MACHINES:
        assert differences(machine_of(*place), need_llvm(), body, left, left) == []


@pytest.mark.parametrize("place", MACHINES, ids=str)
@pytest.mark.parametrize("is_uniform", [False, True], ids=["lanes", "wave"])
def test_operators_of_maps(place: tuple[str, int], is_uniform: bool) -> None:
    """Beside plain numbers of Python."""
    machine = machine_of(*place)
    random = np.random.default_rng(8)
    lanes = np.ones(machine.wave, np.bool_)
    for kind in (Type.U32, Type.U64):
        bits, mask = kind.bits, (1 << kind.bits) - 1
        left, right = (random.choice(np.array(edges(kind), np.uint64), machine.wave) for _ in range(2))
        left, right = left.astype(f"u{bits // 8}"), right.astype(f"u{bits // 8}")
        if is_uniform:
            left, right = np.full_like(left, left[5]), np.full_like(right, right[6])
        x, y = local("x", kind), local("y", kind)
        high, highest, lowest = local("high", kind), local("highest", Type.U32), local("lowest", Type.U32)
        body: list[Statement] = [
            Load(x, site("IN1"), HERE), Load(y, site("IN2"), HERE), Operation(Operator.MUL_HIGH, high, (x, y), HERE),
            Operation(Operator.HIGHEST, highest, (x,), HERE), Operation(Operator.LOWEST, lowest, (x,), HERE),
        ]  # fmt: skip
        results = [high, highest, lowest]
        if kind is Type.U32:
            summed, signed, short = local("summed", Type.U64), local("signed", Type.U64), local("short", Type.U32)
            wide, a, b = local("addend", Type.U64), local("a", Type.S32), local("b", Type.S32)
            body += [
                Convert(wide, y, HERE), Reinterpret(a, x, HERE), Reinterpret(b, y, HERE),
                Operation(Operator.MUL_ADD, summed, (x, y, wide), HERE),
                Operation(Operator.MUL_ADD, signed, (a, b, wide), HERE),
                Operation(Operator.MUL_ADD, short, (x, y, x), HERE),
            ]  # fmt: skip
            results += [summed, signed, short]
        _, save = saving(results)
        uniform = ("IN1", "IN2") if is_uniform else ()
        snippet = lowered(machine, need_llvm(), [*body, save], bits, uniform=uniform)
        wave = wave_of(snippet, left, right, (), lanes, 1, uniform)
        execute(snippet, wave)
        for lane in range(machine.wave):
            one, other = int(left[lane]), int(right[lane])
            wanted = [one * other >> bits, (one.bit_length() - 1) % (1 << 32),
                      ((one & -one).bit_length() - 1) % (1 << 32)]  # fmt: skip
            if kind is Type.U32:
                of_signs = [word - (word >> 31 << 32) for word in (one, other)]
                wanted += [one * other + other, of_signs[0] * of_signs[1] + other, (one * other + one) & mask]
            got = [
                sum(int(wave.v[saved.first + word, lane]) << 32 * word for word in range(saved.words))
                for saved in snippet.saved
            ]
            assert got == [number % (1 << 32 * saved.words)
                           for number, saved in zip(wanted, snippet.saved, strict=True)]  # fmt: skip


def test_addresses_are_global_but_for_two_windows() -> None:
    addresses = [0, 1 << 40, SHARED_APERTURE, SHARED_APERTURE + 77, SHARED_APERTURE - 1, SHARED_APERTURE + (1 << 32),
                 PRIVATE_APERTURE, PRIVATE_APERTURE + 0xFFFFFFFF, PRIVATE_APERTURE - 1, 0x7F0012345678]  # fmt: skip
    wanted = [True, True, False, False, True, True, False, False, True, True]
    x, inside = local("x", Type.U64), local("inside", Type.PRED)
    more, save = saving([inside])
    body = [Load(x, site("IN1"), HERE), IsGlobal(inside, x, HERE), *more, save]
    for place in MACHINES:
        machine = machine_of(*place)
        left = np.resize(np.array(addresses, np.uint64), machine.wave)
        for uniform in ((), ("IN1",)):
            snippet = lowered(machine, need_llvm(), body, 64, uniform=uniform)
            for word in left[:10] if uniform else left[:1]:
                values = np.full_like(left, word) if uniform else left
                wave = wave_of(snippet, values, values, (), np.ones(machine.wave, np.bool_), 1, uniform)
                execute(snippet, wave)
                expected = [wanted[addresses.index(int(value))] for value in values]
                assert wave.v[snippet.saved[0].first].astype(bool).tolist() == expected


def test_an_offset_may_lead_into_a_window_and_out_of_it() -> None:
    for place in MACHINES:
        machine = machine_of(*place)
        for added in (0, 1, 8, 4095, -1, -4096, 0x7FFFFF, -0x800000):
            code = Code(machine, range(8, 60), ())
            found = code.mask()
            find_global(code, found, Vector(0, 2), added)
            assert not code.vectors_used
            snippet = assembled(machine, need_llvm(), code)
            edges = [window + edge + near for window in (SHARED_APERTURE, PRIVATE_APERTURE) for edge in (0, 1 << 32)
                     for near in (-added, -added - 1, -added + 1, added, 0, -1)]  # fmt: skip
            for start in range(0, len(edges), machine.wave):
                values = np.resize(np.array(edges[start:], np.uint64), machine.wave)
                wave = wave_of(snippet, values, values, (), np.ones(machine.wave, np.bool_), 1)
                execute(snippet, wave)
                got = [bool(wave.s[found.first + lane // 32] >> lane % 32 & 1) for lane in range(machine.wave)]
                upper = {SHARED_APERTURE >> 32, PRIVATE_APERTURE >> 32}
                assert got == [(int(value) + added) % (1 << 64) >> 32 not in upper for value in values], added


def test_the_clock_is_read_behind_the_value() -> None:
    x, before, after = local("x", Type.U32), local("before", Type.U64), local("after", Type.U64)
    _, save = saving([after])
    body = [Load(x, site("IN1"), HERE), ClockAfter(after, x, HERE), save]
    for place in MACHINES:
        text = lowered(machine_of(*place), need_llvm(), body, 32).text.splitlines()
        clock = next(index for index, line in enumerate(text) if "memtime" in line or "SHADER_CYCLES" in line)
        assert any(" v0" in line for line in text[:clock])
    assert before.type is after.type


def test_what_cannot_be_computed_is_said() -> None:
    x, y, half = local("x", Type.U64), local("y", Type.U64), local("half", Type.F16)
    assert why_not(Operation(Operator.DIV, x, (x, y), HERE)) == (
        "div of u64 by what is not known is not possible in AMD's kernels"
    )
    inner = Operation(Operator.FMA, half, (half, half, half), HERE)
    goes = local("goes", Type.PRED)
    around = If(goes, (), (inner,), HERE), While((), goes, (inner,), 3, HERE), For(x, 0, 1, 1, (inner,), HERE)
    for statement in around:
        assert why_not(statement) == "fma of f16 is not possible in AMD's kernels yet"
    assert why_not(Operation(Operator.DIV, x, (x, Constant(Type.U64, 3)), HERE)) == ""
    with pytest.raises(CannotError, match="no room in 32 bits"):
        lowered(machine_of("gfx942", 64), need_llvm(), [
            Load(local("z", Type.U32), site("IN1"), HERE),
            Collective(Reduction.MATCH, local("set", Type.U32), local("z", Type.U32), HERE),
        ], 32)  # fmt: skip




@pytest.mark.parametrize("place", MACHINES, ids=str)
def test_predicates_change_in_the_lanes_of_a_condition_alone(place: tuple[str, int]) -> None:
    """Those of other lanes stay, also where what they are copied from is true there."""
    x, y = local("x", Type.U32), local("y", Type.U32)
    odd, big, kept, made = (local(name, Type.PRED) for name in ("odd", "big", "kept", "made"))
    low = local("low", Type.U32)
    shared = Register("%shared", Type.PRED, 0, HERE)
    body: list[Statement] = [
        Load(x, site("IN1"), HERE), Load(y, site("IN2"), HERE), Operation(Operator.AND, low, (x, y), HERE),
        Convert(odd, low, HERE), Compare(Relation.GT, big, x, y, HERE), Compare(Relation.LT, kept, low, y, HERE),
        If(odd, (
            Operation(Operator.MOVE, kept, (big,), HERE), Operation(Operator.MOVE, shared, (big,), HERE),
            Convert(made, big, HERE),
        ), (Operation(Operator.NOT, made, (kept,), HERE),), HERE),
    ]  # fmt: skip
    more, save = saving([odd, big, kept, made, shared])
    left, right = (np.random.default_rng(seed).integers(0, 4, 4 * place[1], np.uint32) for seed in (1, 2))
    assert differences(machine_of(*place), need_llvm(), [*body, *more, save], left, right, [shared], masks=_SOME) == []
