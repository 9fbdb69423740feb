"""Twins with so much code that branches take detours: what has been inserted is all counted, and results are as without
it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from neutrino.fatbin.code_object_functions import CodeFunction, code_object_functions
from neutrino.gcn.llvm import find_llvm
from tests.gcn.exact import Judge, Work, Written, portable_probes
from tests.gcn.objects import compiled, need_llvm
from tests.gcn.twin_reader import Listing, Row, listing_of, read_twin

_SOURCE = """
#define INLINE __attribute__((device, always_inline))
template <int N> struct Steps {
    static INLINE void run(float &x, float y, int turn) {
        if (turn >> (N & 3) & 1) x = x * y + N;
        if (x > 1000.0f) { x -= 999.0f; y += x; }
        Steps<N - 1>::run(x, y, turn);
    }
};
template <> struct Steps<0> { static INLINE void run(float &x, float y, int turn) {} };
extern "C" __attribute__((global)) void far(const float *a, float *o) {
    const int i = __builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x();
    float x = a[i];
    for (int turn = 0; turn < 3; turn++) {
        if (x < 0.0f) break;
        Steps<LENGTH>::run(x, 1.5f, turn);
    }
    o[i] = x;
}
"""
"""A loop of which the end is far from the head, and from what leaves it in the middle."""
_FARTHEST = 128 << 10
"""Bytes that a branch leads on or back at most."""


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100"])
def test_detours_are_counted_and_keep_results(tmp_path: Path, processor: str) -> None:
    need_llvm()
    path = compiled(_SOURCE, tmp_path, f"--offload-arch={processor}", "-O1", "-DLENGTH=20")
    values = np.linspace(-0.5, 3.0, 128, dtype=np.float32), np.zeros(128, np.float32)
    judge = Judge(path.read_bytes(), "far", Work((2, 1, 1), (64, 1, 1), values))
    written = judge.write("nan_finder", portable_probes()["nan_finder"])
    assert isinstance(written, Written)
    functions = {one.name: one for one in code_object_functions(written.image, "").functions}
    original, twin = (_listed(functions[name], processor) for name in ("far", written.twin.twin_name))
    inserted = read_twin(original, twin).inserted
    far = [row for row in original.rows if row.target and _distance(original, row, inserted) > _FARTHEST]
    assert far
    assert sum(map(len, inserted.values())) == written.twin.inserted
    assert len(twin.rows) - len(original.rows) == written.twin.added
    outcome = judge.run(written)
    assert outcome.state in ("equal", "facts"), outcome.why


def _listed(function: CodeFunction, processor: str) -> Listing:
    """A function as the reader reads it."""
    rows = find_llvm(processor).disassemble(function.code, processor, "")
    return listing_of(function.name, function.address, function.code, rows)


def _distance(original: Listing, row: Row, inserted: Mapping[int, bytes]) -> int:
    """The bytes between a branch and its target in a twin, at least. inserted: in front of each instruction."""
    assert row.target is not None
    ends = sorted((row.end - original.rows[0].address, row.target - original.rows[0].address))
    return ends[1] - ends[0] + sum(len(code) for offset, code in inserted.items() if ends[0] <= offset < ends[1])
