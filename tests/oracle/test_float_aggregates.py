"""Aggregates of floating-point numbers in kernels whose warps part and leave early: an array in the same twin says what
is right, and the program computes what it did."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from neutrino.cli.probe import main as show
from neutrino.tracing.views import MapView
from tests.oracle.assembling import arithmetic
from tests.oracle.bench import Bench, skip_of
from tests.oracle.probes import Probe
from tests.oracle.test_aggregates import FEWER, KERNELS
from tests.oracle.test_matrix import ALL

_MAPS = """
[map.All]
level = "LEVEL"
cap = 1024
data = { value = "f32" }
[map.Sum]
type = "sum"
level = "LEVEL"
data = { value = "f32", number = "u32", wide = "f64" }
[map.PerWarp]
type = "sum"
level = "LEVEL"
per = "PER"
data = { value = "f64" }
[map.Mean]
type = "avg"
level = "LEVEL"
data = { value = "f32" }
[map.Powers]
type = "histogram"
scale = "log2"
level = "LEVEL"
data = { value = "f32" }
[map.Steps]
type = "histogram"
scale = "linear"
low = -4
high = 12.5
step = 0.5
level = "LEVEL"
data = { value = "f32" }
[map.Keys]
type = "hash"
keep = ["sum", "min", "max"]
level = "LEVEL"
data = { key = "f32", value = "f32" }
[map.Top]
type = "topk"
n = 4
level = "LEVEL"
data = { key = "u32", value = "f64" }
"""
_SAVES = """
.reg .u32 %v, %lane, %few;
.reg .f32 %x;
.reg .f64 %wide;
.reg .pred %odd;
mov.u32 %v, %clock;
mov.u32 %lane, %laneid;
xor.b32 %v, %v, %lane;
and.b32 %v, %v, 255;
cvt.rn.f32.u32 %x, %v;
add.rn.f32 %x, %x, 0fC2C80000;
mul.rn.f32 %x, %x, 0f3E000000;
cvt.f64.f32 %wide, %x;
and.b32 %few, %v, 7;
setp.ne.u32 %odd, %few, 3;
SAVE [ All ] { %x };
SAVE [ Sum ] { %x, 1, %wide };
SAVE [ PerWarp ] { %wide };
@%odd SAVE [ Mean ] { %x };
SAVE [ Powers ] { %x };
SAVE [ Steps ] { %x };
SAVE [ Keys ] { %x, %x };
@%odd SAVE [ Top ] { %few, %wide };
"""


def probe(level: str, position: str) -> Probe:
    per = {"thread": "warp", "warp": "warp", "block": "block"}[level]
    text = f'{_MAPS}[probe.p]\nposition = "{position}"\nlevel = "LEVEL"\nbefore = """{_SAVES}"""\n'
    return Probe(f"floats_{level}", (), text=text.replace("LEVEL", level).replace("PER", per))


def check(views: dict[str, MapView], name: str) -> int:
    """Compare all maps with the array. The values are eighths, so that all of their sums are exact."""
    assert views["All"].dropped == 0, name
    values = views["All"].valid()["value"].astype(np.float64)
    numbers = (values * 8 + 100).astype(np.int64)
    odd = values[numbers % 8 != 3]
    total = math.fsum(values.tolist())
    assert views["Sum"].valid().tolist() == [(total, len(values), total)], name
    assert math.fsum(views["PerWarp"].valid()["value"].tolist()) == total, name
    mean = [(len(odd), math.fsum(odd.tolist()), math.fsum(odd.tolist()) / len(odd))] if len(odd) else []
    assert views["Mean"].valid().tolist() == mean, name
    for histogram in ("Powers", "Steps"):
        rows = views[histogram].valid()[:-1]
        counts = [int(((values >= low) & (values <= high)).sum()) for low, high, _ in rows.tolist()]
        assert rows["count"].tolist() == counts, (name, histogram)
    # By edges, as NumPy has it.
    edges = np.arange(-4, 13, 0.5)
    counts = np.bincount(np.searchsorted(edges, values, "right"), minlength=len(edges) + 1).tolist()
    assert views["Steps"].valid()["count"].tolist() == [*counts, 0], name
    keys, times = np.unique(values, return_counts=True)
    wanted = [(key, count, key * count, key, key, 0) for key, count in zip(keys.tolist(), times.tolist(), strict=True)]
    assert views["Keys"].valid().tolist() == wanted, name
    sums = {few: math.fsum(values[numbers % 8 == few].tolist()) for few in set((numbers % 8).tolist()) - {3}}
    top = views["Top"].valid()
    assert dict(zip(top["key"].tolist(), top["sum"].tolist(), strict=True)).items() <= sums.items(), name
    assert top["sum"].tolist() == sorted(sums.values(), reverse=True)[:4], name
    return len(values)


@pytest.mark.parametrize(
    ("level", "position", "names"),
    [
        ("thread", "ld | st | setp | red | atom", ("exits", "gcd", "votes")), ("warp", "setp | add", FEWER),
        ("block", "setp | add", KERNELS),
    ],
)  # fmt: skip
def test_they_agree_with_the_records(level: str, position: str, names: tuple[str, ...]) -> None:
    values = 0
    for name in names:
        own = probe(level, position)
        bench = Bench(ALL[name], (), (1,))
        twins = bench.twins(own)
        assert skip_of(twins) is None, name
        bench.place(1).device.step_limit = 1 << 22
        views, results = bench.run(own, twins.kernels[0], twins.render(), 1)
        values += check(views, name)
        for one, other in zip(results, bench.results(None), strict=True):
            assert bench.comparable(one) == bench.comparable(other), name
    assert values > 100


FUSED: dict[str, tuple[str, str]] = {
    "sum": ('type = "sum"', "OUT"), "avg": ('type = "avg"', "OUT"), "max": ('type = "max"', "OUT"),
    "powers": ('type = "histogram"\nscale = "log2"', "OUT"),
    "steps": ('type = "histogram"\nscale = "linear"\nlow = 0\nhigh = 1\nstep = 0.1', "OUT"),
    "keys": ('type = "hash"\nkeep = ["sum", "max"]', "OUT, OUT"),
}  # fmt: skip


def fused(table: str, saved: str) -> str:
    """A probe that saves products, each of which the program adds to something."""
    fields = 'key = "f32", value = "f32"' if "," in saved else 'value = "f32"'
    return f"""
[map.M]
{table}
level = "thread"
data = {{ {fields} }}
[probe.p]
position = "mul.f32"
level = "thread"
after = "SAVE [ M ] {{ {saved} }};"
"""


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(("table", "saved"), FUSED.values(), ids=FUSED)
def test_the_program_computes_the_same(table: str, saved: str) -> None:
    """Also where it adds what the probe reads; what is kept in registers leaves all fusions as they were."""
    own = Probe("fused", (), text=fused(table, saved))
    bench = Bench(ALL["products"], ())
    twins = bench.twins(own)
    assert skip_of(twins) is None
    twin = twins.kernels[0]
    if table in ('type = "sum"', 'type = "avg"', 'type = "max"'):
        before = arithmetic(ALL["products"].text, ALL["products"].entry)
        after = arithmetic(twins.render(), twin.twin_name)
        assert before["FFMA"] == after["FFMA"] > 0
        assert after["FMUL"] <= before.get("FMUL", 0) + twin.own_arithmetic["FMUL"]
        assert after.get("FADD", 0) == before.get("FADD", 0)
    _, results = bench.run(own, twin, twins.render(), None)
    for one, other in zip(results, bench.results(None), strict=True):
        assert bench.comparable(one) == bench.comparable(other)


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(("table", "saved"), FUSED.values(), ids=FUSED)
def test_they_are_proven(table: str, saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The twin is accepted, though ptxas may repeat its f64 arithmetic."""
    kernel, probe_file = tmp_path / "products.ptx", tmp_path / "floats.toml"
    kernel.write_text(ALL["products"].text)
    probe_file.write_text(f'platform = "cuda"{fused(table, saved)}')
    assert show(["show", str(probe_file), str(kernel)]) == 0
    printed = capsys.readouterr().out
    assert "// products: 3 sites" in printed
    assert "by ptxas" in printed
