"""The model and the comparison themselves, against numbers worked out by hand."""

from __future__ import annotations

import struct
from collections import Counter

from tests.recipes.bed import ARRAYS, LAUNCHES, Model, model_of
from tests.recipes.printed import Figure, Rows, differences

_PER_BLOCK = 70
"""Threads of a block of saxpy; 13 of its blocks' 18 warps are full."""


def _model() -> Model:
    return model_of({name: (number + 1) << 20 for number, name in enumerate(ARRAYS)})


def _executed(launch: int, text: str) -> int:
    return sum(len(step.executing) for step in _model().steps if step.launch == launch and step.at.text.endswith(text))


def test_threads_leave_where_the_text_says() -> None:
    for launch, size in enumerate((400, 333, 400)):
        # Threads 32 to 63 of block 4, as far as they are inside; the first lanes of three warps of blocks 1, 3 and 5.
        whole = len([i for i in range(4 * _PER_BLOCK + 32, 4 * _PER_BLOCK + 64) if i < size])
        first = len([
            i for i in range(size) if i // _PER_BLOCK in (1, 3, 5) and i % _PER_BLOCK % 32 == 0
        ])
        assert _executed(launch, "@%outside ret") == 420 - size
        assert _executed(launch, "@%leaves exit") == whole
        assert _executed(launch, "@%leaves bra LEAVE") == first
        assert _executed(launch, "ld.global.f32 %right, [%py]") == size - whole - first
        assert first == (8, 6, 8)[launch]


def test_loops_turn_as_the_data_say() -> None:
    x = struct.unpack("<2048f", ARRAYS["x"])
    for launch, size in enumerate((400, 333, 400)):
        inner = outer = predicated = 0
        for i in range(size):
            block, thread = divmod(i, _PER_BLOCK)
            if (block == 4 and thread // 32 == 1) or (block % 2 and thread % 32 == 0):
                continue
            turns = max(int(x[i]), 0) if x[i] > 0 else 0
            outer += turns
            for first in range(turns):
                inner += len(range(first, turns, 2))
                predicated += len([at for at in range(first, turns, 2) if at != 2])
        assert _executed(launch, "bra OUTER") == outer
        assert _executed(launch, "fma.rn.f32 %sum, %v, %a, %sum") == inner
        assert _executed(launch, "@%loads ld.global.f32 %v, [%q]") == predicated


def test_sums() -> None:
    addends = struct.unpack("<1024f", ARRAYS["addends"])
    block_of = {i: i // 48 for i in range(384)}
    gone = {0} | {i for i in range(384) if block_of[i] == 5 and i % 48 >= 32}
    total = sum(addends[i] for i in range(900) if i % 384 not in gone)
    assert struct.unpack_from("<f", _model().arrays["total"]) == (total,)
    assert _executed(3, "add.u32 %i, %i, 384") == len([i for i in range(900) if i % 384 not in gone])
    # One more than the bits of the whole numbers.
    assert _executed(3, "atom.shared.add.u32 %old, [%k], 1") == sum(
        int(addends[i]).bit_length() for i in range(900) if i % 384 not in gone
    )


def test_lanes_that_parted_meet_again() -> None:
    together = Counter(
        len(step.reaching) for step in _model().steps if step.launch == 3 and step.at.text.startswith("add.u32 %i")
    )
    # Of 16 warps one has left whole; half of the others have 16 lanes; in block 0 one lane is missing.
    assert together[32] > together[31] > 0
    assert all(size <= 32 for size in together)


def test_warps_with_matrices() -> None:
    # Two warps of blocks 0 and 2, one of blocks 1 and 3; a block's number and one of the first instruction, one other.
    assert _executed(4, "{%c0, %c1, %c2, %c3}") == 32 * (2 * (1 + 1) + (2 + 1) + 2 * (3 + 1) + (4 + 1) + 2 + 1 + 2 + 1)
    assert len(LAUNCHES) == 6


def test_differences_are_found() -> None:
    text = "\n@n:\n  saxpy  1,200\n  sum       40\n  total  1,240\n\n"
    samples = [("saxpy", None, 1)] * 1200 + [("sum", None, 1)] * 40
    assert not differences(text, {"n": Figure("count", samples)})
    assert differences(text, {"n": Figure("count", samples[1:])})
    assert differences(text, {"n": Figure("count", samples[:-40])})
    assert differences(text, {"n": Figure("count", [])})
    assert differences(text, {})
    assert differences(text, {"n": Figure("count", samples), "m": Figure("count", samples)})
    keyed = "\n@n, sum:\n  PTX line 1: ret  2.5\n  PTX line 2: exit   1\n\n"
    means = [("sum", "PTX line 1: ret", 2), ("sum", "PTX line 1: ret", 3), ("sum", "PTX line 2: exit", 1)]
    assert not differences(keyed, {"n": Figure("avg", means)})
    assert differences(keyed, {"n": Figure("avg", means[1:])})
    assert differences(keyed, {"n": Figure("avg", [*means, ("sum", "PTX line 3: ret", 0)])})
    rows = "\n@r:\n  launch  kernel  block  warp  lane  x\n       0  sum         1     0     5  2.0\n  1 row: sum 1\n\n"
    row = (0, "sum", 1, 0, 5, 2)
    assert not differences(rows, {"r": Rows(("x",), [row])})
    assert differences(rows, {"r": Rows(("x",), [(0, "sum", 1, 0, 5, 3)])})
    assert differences(rows, {"r": Rows(("x",), [row, row])})
    assert differences(rows, {"r": Rows(("y",), [row])})
