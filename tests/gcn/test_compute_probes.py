"""A probe that computes all kinds of values, at instructions of kernels that clang compiles: maps have what a model
says, and results of the program keep their bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.verification import load_probes
from tests.emulator.gcn import judge
from tests.gcn.objects import need_clang, need_llvm
from tests.gcn.test_instrument_probes import FLAT, judged

_WAVE64 = ("-mwavefrontsize64",)
_PROBE = """
from neutrino import Map, probe
import neutrino.language as nl

scale: nl.f32 = 1.5
often: nl.u64 = 0

@Map(level="thread", type="sum", per="thread")
class Row:
    single: nl.u64
    double: nl.u64
    quotient: nl.u64
    rest: nl.s64
    turns: nl.u64
    together: nl.u64
    same: nl.u64
    other: nl.u64
    least: nl.u64

@probe(pos="store | load", level="thread", before=True)
def row():
    n = nl.lane * 7 % 11 + nl.u32(nl.bytes)
    single = nl.f32(n) * scale - 0.1
    scale = scale * 1.25
    narrow: nl.f16 = nl.f16(single) * nl.f16(0.3)
    brain: nl.bf16 = nl.bf16(single) + nl.bf16(narrow)
    double = nl.f64(nl.u64(nl.s64(nl.f64(single) * -1e7))) + nl.f64(brain)
    turns: nl.u32 = 0
    left = n
    while nl.bound(6) and left > 2:
        left = left // 2 if left % 2 == 0 else left - 3
        turns += 1
        if nl.warp.any(left == 5):
            turns += 16
    together: nl.u32 = 0
    if n % 3 == 1:
        together = nl.warp.sum(n) + nl.warp.max(nl.thread)
    else:
        together = nl.warp.bit_or(turns) ^ nl.warp.first(n)
    same = nl.u64(nl.warp.match(n % 4)) ^ nl.u64(nl.warp.ballot(n > 6))
    other = nl.warp.shuffle(n, nl.lane ^ 5)
    least = nl.warp.min(single - 20)
    often += nl.u64(nl.popc(same)) + nl.u64(turns)
    quotient = nl.thread // nl.max(n, 1)
    rest = nl.s64(nl.f64(single) * -3.7e5) % -1000
    Row.save(
        nl.u64(nl.bits(single)), nl.bits(double), nl.u64(quotient), rest, nl.u64(turns), nl.u64(together), same,
        nl.u64(other), nl.u64(nl.bits(least)),
    )

@Map(level="thread", type="max", per="thread")
class Often:
    often: nl.u64
    scale: nl.u32

@probe(pos="kernel", level="thread", after=True)
def last():
    Often.save(often, nl.bits(scale))
"""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Two processors, with a kernel each; with ``--thorough`` all that LLVM 19 compiles for, with four."""
    rows: list[tuple[str, tuple[str, ...], str]] = [("gfx942", (), "scanned"), ("gfx1100", (), "exchanged")]
    if metafunc.config.getoption("--thorough"):
        places = [("gfx90a", ()), ("gfx942", ())]
        places += [(each, options) for each in ("gfx1030", "gfx1100", "gfx1201") for options in ((), _WAVE64)]
        names = ("scanned", "exchanged", "sorted_together", "left_early")
        rows = [(*place, name) for place in places for name in names]
    metafunc.parametrize(("processor", "options", "name"), rows)


def test_values_of_all_kinds_are_computed_at_instructions(
    tmp_path: Path, processor: str, options: tuple[str, ...], name: str
) -> None:
    need_llvm()
    need_clang()
    (tmp_path / "values.py").write_text(_PROBE)
    data = judge.compile_for_gpu(tmp_path, processor, ("-O1", *options))
    assert judged(load_probes([str(tmp_path / "values.py")], platform="hip"), data, [name], FLAT)
