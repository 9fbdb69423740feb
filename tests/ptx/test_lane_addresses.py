"""What is known of the distance between lanes, and between addresses, is true of all threads, by NumPy's arithmetic."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from neutrino.ptx.analysis.lane_addresses import LaneAddresses
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import parse
from tests.oracle.library import IN_LINE, RandomSums

_KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 base, .param .u32 number)
.reqntid 96
{
.reg .u64 %base, %a, %o<70>; .reg .u32 %k, %n<300>; .reg .pred %p;
ld.param.u64 %base, [base];
BODY
ret;
}
"""
_STEPS = 60


_Found = list[tuple[frozenset[object], int, int | None]]


def _addresses(text: str, registers: list[str], threads: int = IN_LINE) -> _Found:
    """Of registers at the end of a kernel with these instructions: terms, constant, and distance from lane to lane."""
    module = parse(_KERNEL.replace("BODY", text))
    body = Body(module.code, *module.entries[0].body)
    addresses = LaneAddresses(body, threads)
    last = max(index for index, one in enumerate(body.mnemonics) if one is not None and one.text == "ret")
    found = []
    for register in registers:
        sum_ = addresses.of(register, last)
        assert sum_ is not None
        found.append((sum_.terms, sum_.constant, addresses.stride(sum_)))
    return found


def test_random_sums() -> None:
    known = equal = 0
    for seed in range(150):
        random = np.random.default_rng(seed)
        sums = RandomSums(random)
        for _ in range(_STEPS):
            for _ in range(int(random.integers(4))):
                sums.step()
            sums.widen()
        by_terms = defaultdict(list)
        found = _addresses("\n".join(sums.lines), [f"%o{number}" for number in range(len(sums.wide))])
        for value, (terms, constant, stride) in zip(sums.wide, found, strict=True):
            by_terms[terms].append(value - np.uint64(constant))
            if stride is not None:
                lanes = value.reshape(-1, 32)
                assert (lanes[:, 1:] - lanes[:, :-1] == np.uint64(stride % (1 << 64))).all(), (seed, stride)
                known += bool(stride)
        for first, *others in by_terms.values():
            for other in others:
                assert (first == other).all(), seed
                equal += 1
    assert known > 1000
    assert equal > 1000


@pytest.mark.parametrize(
    ("text", "stride"),
    [
        ("mov.u32 %n0, %tid.x; mul.wide.u32 %o0, %n0, 4; add.s64 %a, %o0, %base;", 4),
        ("mov.u32 %n0, %tid.x; shl.b32 %n1, %n0, 2; and.b32 %n2, %n1, 508; mad.wide.u32 %a, %n2, 2, %base;", 8),
        ("mov.u32 %n0, %tid.x; shl.b32 %n1, %n0, 3; and.b32 %n2, %n1, 248; mad.wide.s32 %a, %n2, -2, %base;", -16),
        ("mov.u32 %n0, %ctaid.x; mad.wide.u32 %a, %n0, 4, %base;", 0),
        ("mov.u32 %n0, %ctaid.x; shl.b32 %n1, %n0, 9; mov.u32 %n2, %tid.x; or.b32 %n3, %n2, %n1;"
         "mad.wide.u32 %a, %n3, 4, %base;", 4),
        # Of sixteen rows of two lanes each.
        ("mov.u32 %n0, %tid.x; and.b32 %n1, %n0, 15; mad.wide.u32 %a, %n1, 4, %base;", None),
        ("mov.u32 %n0, %tid.x; shr.u32 %n1, %n0, 1; mad.wide.u32 %a, %n1, 4, %base;", None),
        # A sum of 32 bits with a sign may wrap within a warp.
        ("mov.u32 %n0, %tid.x; ld.param.u32 %n1, [number]; add.s32 %n2, %n0, %n1;"
         "mad.wide.s32 %a, %n2, 4, %base;", None),
        ("mov.u32 %n0, %tid.y; mad.wide.u32 %a, %n0, 4, %base;", None),
        # What is loaded may differ, whatever the address; and what one predicate's threads alone compute.
        ("ld.global.u64 %o0, [%base]; add.s64 %a, %base, %o0;", None),
        ("mov.u32 %k, %tid.x; setp.eq.u32 %p, %k, 3; mov.b64 %a, %base; @%p add.s64 %a, %a, 16;", None),
        ("{ .param .b64 base; call.uni (base), f, (); ld.param.b64 %a, [base]; }", None),
        ("mov.u32 %n0, %clock; mad.wide.u32 %a, %n0, 4, %base;", None),
        # Products that carry out of 32 bits, and a number that has no sign there.
        ("mov.u32 %n0, %tid.x; mul.lo.s32 %n1, %n0, -1; mad.wide.u32 %a, %n1, 4, %base;", None),
        ("mov.u32 %n0, %tid.x; mad.wide.u32 %a, %n0, -4, %base;", None),
        # A register that is written twice.
        ("mov.u32 %n0, %tid.x; mov.u32 %n1, 5; shr.u32 %n1, %n0, 1; mad.wide.u32 %a, %n1, 4, %base;", None),
        ("mov.b64 %a, %base; bra L; L: add.s64 %a, %a, 16;", None),
    ],
)  # fmt: skip
def test_distances(text: str, stride: int | None) -> None:
    assert _addresses(text, ["%a"])[0][2] == stride
    # Nothing follows from the numbers of threads in blocks of other shapes.
    assert _addresses(text, ["%a"], threads=0)[0][2] is None
