"""Histograms, least and greatest values in kernels whose warps part: an array in the same twin says what is right."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from neutrino.cli.probe import main as show
from neutrino.maps.histogram import Histogram
from neutrino.tracing.views import MapView
from tests.oracle.assembling import arithmetic, assemble
from tests.oracle.bench import Bench, skip_of
from tests.oracle.probes import Probe
from tests.oracle.test_matrix import ALL

KERNELS = (
    "branches", "choices", "exits", "gcd", "maximum_by_swap", "shuffles", "switch_table", "votes",
)  # fmt: skip
"""Small ones in which warps part in many ways: loops, guards, ends, jump tables, waiting for others."""
FEWER = ("choices", "exits", "gcd", "switch_table", "votes")
"""Where every thread saves, hundreds of times as much as elsewhere: one kernel for each way of parting."""
PER_KERNELS = ("choices", "exits", "votes")
_MAPS = """
[map.All]
level = "LEVEL"
cap = 1024
data = { value = "u32" }
[map.Order]
cap = 1024
level = "LEVEL"
data = { value = "u32", wide = "u64", narrow = "u8" }
[map.Last]
type = "ring"
cap = 5
level = "LEVEL"
data = { value = "u32", wide = "u64", narrow = "u8" }
[map.LastFew]
type = "ring"
cap = 4
level = "LEVEL"
data = { value = "u32" }
[map.LastOne]
type = "ring"
cap = 1
level = "LEVEL"
data = { value = "u32" }
[map.Log]
type = "histogram"
scale = "log2"
level = "LEVEL"
data = { value = "u32" }
[map.Steps]
type = "histogram"
scale = "linear"
low = 5
high = 131
step = 7
level = "LEVEL"
data = { value = "s32" }
[map.Least]
type = "min"
level = "LEVEL"
data = { value = "u32", wide = "u64" }
[map.Most]
type = "max"
level = "LEVEL"
data = { value = "u32", wide = "s64" }
[map.Keys]
type = "hash"
keep = ["sum", "min", "max"]
level = "LEVEL"
data = { key = "u32", value = "u64" }
[map.Few]
type = "hash"
room = 2
level = "LEVEL"
data = { key = "u32" }
[map.Top]
type = "topk"
n = 5
level = "LEVEL"
data = { key = "u32" }
[map.Odd]
type = "topk"
n = 300
level = "LEVEL"
data = { key = "s64", value = "u8" }
[map.Mean]
type = "avg"
level = "LEVEL"
data = { value = "s64" }
[map.Known]
type = "histogram"
edges = [1, 4, 9]
level = "LEVEL"
data = { value = "u8" }
"""
_SAVES = """
.reg .u32 %v, %lane, %number;
.reg .u32 %bit;
.reg .pred %odd;
.reg .u64 %w;
.reg .s64 %signed;
mov.u32 %v, %clock;
mov.u32 %lane, %laneid;
xor.b32 %v, %v, %lane;
and.b32 %v, %v, 255;
cvt.u64.u32 %w, %v;
sub.s64 %signed, %w, 100;
SAVE [ All ] { %v };
SAVE [ Order ] { %number, %w, %lane };
SAVE [ Last ] { %number, %w, %lane };
SAVE [ LastFew ] { %number };
SAVE [ LastOne ] { %number };
add.u32 %number, %number, 1;
SAVE [ Log ] { %v };
SAVE [ Steps ] { %v };
SAVE [ Least ] { %v, %w };
SAVE [ Most ] { %v, %w };
SAVE [ Keys ] { %v, %w };
SAVE [ Few ] { %v };
SAVE [ Top ] { %v };
and.b32 %bit, %v, 1;
setp.ne.u32 %odd, %bit, 0;
@%odd SAVE [ Odd ] { %signed, %v };
SAVE [ Mean ] { %signed };
SAVE [ Known ] { 4 };
"""


_PER = """
[map.All]
level = "LEVEL"
cap = 1024
data = { value = "u32", sm = "u32", site = "u32", same = "u32" }
[map.Sites]
type = "hash"
level = "LEVEL"
keep = ["sum", "min", "max"]
data = { site = "u32", large = "u32" }
[map.Same]
type = "hash"
level = "LEVEL"
keep = ["sum", "min", "max"]
data = { site = "u32", same = "u32" }
[map.SameLog]
type = "histogram"
scale = "log2"
level = "LEVEL"
data = { same = "u32" }
[map.Total_site]
type = "sum"
level = "LEVEL"
per = "site"
data = { value = "u64" }
[map.Least_site]
type = "min"
level = "LEVEL"
per = "site"
data = { value = "u32" }
""" + "".join(
    f"""
[map.Sum_{per}]
type = "sum"
level = "LEVEL"
per = "{per}"
data = {{ narrow = "u32", value = "s64" }}
[map.Fixed_{per}]
type = "sum"
level = "LEVEL"
per = "{per}"
data = {{ one = "u64" }}
[map.Log_{per}]
type = "histogram"
scale = "log2"
level = "LEVEL"
per = "{per}"
data = {{ value = "u32" }}
[map.Least_{per}]
type = "min"
level = "LEVEL"
per = "{per}"
data = {{ value = "u32", wide = "s64" }}
[map.Mean_{per}]
type = "avg"
level = "LEVEL"
per = "{per}"
data = {{ value = "s64" }}
"""
    for per in ("block", "warp", "thread", "sm")
)
_PER_SAVES = """
.reg .u32 %v, %lane, %sm, %same, %large;
.reg .u64 %w;
.reg .s64 %signed;
mov.u32 %v, %clock;
mul.lo.u32 %same, %v, 0x9e3779b1;
mov.u32 %lane, %laneid;
mov.u32 %sm, %smid;
xor.b32 %v, %v, %lane;
and.b32 %v, %v, 255;
cvt.u64.u32 %w, %v;
sub.s64 %signed, %w, 100;
SAVE [ All ] { %v, %sm, SITE, %same };
shl.b32 %large, %v, 24;
SAVE [ Sites ] { SITE, %large };
SAVE [ Same ] { SITE, %same };
SAVE [ SameLog ] { %same };
SAVE [ Total_site ] { %w };
SAVE [ Least_site ] { %v };
""" + "".join(
    f"""
SAVE [ Sum_{per} ] {{ %v, %signed }};
SAVE [ Fixed_{per} ] {{ 3 }};
SAVE [ Log_{per} ] {{ %v }};
SAVE [ Least_{per} ] {{ %v, %signed }};
SAVE [ Mean_{per} ] {{ %signed }};
"""
    for per in ("block", "warp", "thread", "sm")
)
_FINEST = {"thread": ("block", "warp", "thread", "sm"), "warp": ("block", "warp", "sm"), "block": ("block", "sm")}


def per_probe(level: str, position: str) -> Probe:
    """A probe whose maps combine the values of blocks, warps, threads and multiprocessors."""
    maps = [part for part in re.split(r"(?=\n\[map)", _PER) if _is_allowed(part, level)]
    saves = "\n".join(line for line in _PER_SAVES.split("\n") if _is_allowed(line, level))
    text = f'{"".join(maps)}\n[probe.p]\nposition = "{position}"\nlevel = "LEVEL"\nbefore = """{saves}"""\n'
    return Probe(f"per_{level}", (), text=text.replace("LEVEL", level))


def _is_allowed(text: str, level: str) -> bool:
    found = re.search(r"_(block|warp|thread|sm)\b", text)
    return found is None or found[1] in _FINEST[level]


def check_per(views: dict[str, MapView], name: str, level: str) -> int:
    """Compare the results of each block, warp, thread and multiprocessor with the records that each of them saved."""
    everything = views["All"]
    assert everything.dropped == 0, name
    records = everything.valid()
    values, places = records["value"].astype(np.int64), everything.places()
    geometry = everything.geometry
    axes = {axis: places[axis] for axis in ("block", "warp", "lane") if axis in places}
    axes_of = {"block": ("block",), "warp": ("block", "warp"), "thread": ("block", "warp", "lane"), "sm": ("sm",)}
    axes["sm"] = records["sm"].astype(np.int64)
    sites = {site: values[records["site"] == site].tolist() for site in sorted(set(records["site"].tolist()))}
    assert views["Total_site"].valid().tolist() == [(site, len(row), sum(row), 0) for site, row in sites.items()], name
    assert views["Least_site"].valid().tolist() == [(site, len(row), min(row), 0) for site, row in sites.items()], name
    # Lanes of a warp that are together have the same clock, and so one value in Same.
    same = records["same"].astype(np.int64)
    for table, column in (("Sites", values << 24), ("Same", same)):
        rows_of = {site: column[records["site"] == site].tolist() for site in sites}
        entries = [(site, len(row), sum(row), min(row), max(row), 0) for site, row in rows_of.items()]
        assert views[table].valid().tolist() == entries, (name, table)
    lengths = np.bincount([value.bit_length() for value in same.tolist()], minlength=33).tolist()
    assert views["SameLog"].valid()["count"].tolist() == lengths, name
    for per in _FINEST[level]:
        owners = list(zip(*(axes[axis].tolist() for axis in axes_of[per]), strict=True))
        rows: dict[tuple[int, ...], list[int]] = {}
        for owner, value in zip(owners, values.tolist(), strict=True):
            rows.setdefault(owner, []).append(value)

        def found(kind: str, per: str = per) -> dict[tuple[int, ...], list[tuple[object, ...]]]:
            view = views[f"{kind}_{per}"]
            there, results = view.places(), view.valid()
            assert tuple(there) == axes_of[per]
            by_owner: dict[tuple[int, ...], list[tuple[object, ...]]] = {}
            whose = zip(*(column.tolist() for column in there.values()), strict=True)
            for owner, result in zip(whose, results.tolist(), strict=True):
                by_owner.setdefault(owner, []).append(result)
            return by_owner

        sums = {owner: [(sum(row), sum(row) - 100 * len(row))] for owner, row in rows.items()}
        existing = {
            "block": geometry.blocks, "warp": geometry.blocks * geometry.warps,
            "thread": geometry.blocks * geometry.threads, "sm": len(rows),
        }  # fmt: skip
        # Sums are also there of blocks, warps and threads that saved nothing.
        for kind, wanted in (
            ("Sum", sums), ("Fixed", {owner: [(3 * len(row),)] for owner, row in rows.items()}),
        ):  # fmt: skip
            results = found(kind)
            assert len(results) == existing[per], (name, per)
            saved = {owner: result for owner, result in results.items() if owner in rows}
            assert saved == wanted, (name, kind, per)
            assert all(not any(result[0]) for owner, result in results.items() if owner not in rows), (name, kind, per)
        least = {owner: [(min(row), min(row) - 100)] for owner, row in rows.items()}
        assert found("Least") == least, (name, per)
        mean = {owner: [(len(row), sum(row) - 100 * len(row), np.mean(row) - 100)] for owner, row in rows.items()}
        means = found("Mean")
        assert means.keys() == mean.keys()
        assert all(means[owner] == [pytest.approx(row[0])] for owner, row in mean.items()), (name, per)
        counts = {
            owner: np.bincount([value.bit_length() for value in row], minlength=33).tolist()
            for owner, row in rows.items()
        }
        buckets = {owner: [row[2] for row in result] for owner, result in found("Log").items()}
        assert buckets == counts, (name, per)
        assert views[f"Fixed_{per}"].total() == {"one": 3 * len(values)}
    return len(values)


def probe(level: str, position: str) -> Probe:
    sides = f'before = """{_SAVES}"""'
    text = f'{_MAPS}[probe.p]\nposition = "{position}"\nlevel = "LEVEL"\n{sides}\n'.replace("LEVEL", level)
    return Probe(f"aggregates_{level}", (), text=text)


def check_rings(views: dict[str, MapView], name: str) -> None:
    """Compare the rings with what all threads saved, in order."""
    everything = views["Order"]
    places = everything.places()
    owners = list(zip(*(places[axis].tolist() for axis in ("block", "warp", "lane") if axis in places), strict=True))
    for ring, cap in (("Last", 5), ("LastFew", 4), ("LastOne", 1)):
        view = views[ring]
        rows: dict[tuple[int, ...], list[object]] = {}
        names = list(view.records.dtype.names or ())
        for owner, row in sorted(zip(owners, everything.valid()[names].tolist(), strict=True), key=lambda row: row[0]):
            rows.setdefault(owner, []).append(row)
        found: dict[tuple[int, ...], list[object]] = {}
        there = view.places()
        axes = [there[axis].tolist() for axis in ("block", "warp", "lane") if axis in there]
        order = [there["k"].tolist(), *axes]
        for (k, *owner), row in zip(zip(*order, strict=True), view.valid().tolist(), strict=True):
            assert k == len(found.setdefault(tuple(owner), [])), (name, ring)
            found[tuple(owner)].append(row)
        assert found == {owner: row[-cap:] for owner, row in rows.items()}, (name, ring)
        assert view.dropped == sum(max(0, len(row) - cap) for row in rows.values())


def check(views: dict[str, MapView], name: str) -> int:
    """Compare all maps with the array; how many values there were."""
    assert views["All"].dropped == 0, name
    check_rings(views, name)
    values = views["All"].valid()["value"].astype(np.int64)
    for histogram in ("Log", "Steps"):
        kind = views[histogram].map.kind
        assert isinstance(kind, Histogram)
        starts = [low for low, _ in kind.scale.buckets(views[histogram].map.fields[0].type)]
        numbers = np.searchsorted(starts, values, "right") - 1
        counts = np.bincount(numbers, minlength=len(starts)).tolist()
        assert views[histogram].valid()["count"].tolist() == counts, (name, histogram)
    wanted_mean = [(len(values), int((values - 100).sum()), (values - 100).mean())] if len(values) else []
    assert views["Mean"].valid().tolist() == wanted_mean, name
    keys, counts = np.unique(values, return_counts=True)
    pairs = list(zip(keys.tolist(), counts.tolist(), strict=True))
    assert views["Keys"].valid().tolist() == [(key, count, key * count, key, key, 0) for key, count in pairs], name
    top = sorted(((*pair, 0) for pair in pairs), key=lambda row: (-row[1], row[0]))
    assert views["Top"].valid().tolist() == top[:5], name
    odd = [(key - 100, count, key * count, 0) for key, count in pairs if key & 1]
    assert views["Odd"].valid().tolist() == sorted(odd, key=lambda row: (-row[2], row)), name
    few, exact = views["Few"], dict(pairs)
    assert few.valid()["count"].sum() + few.dropped == len(values)
    for key, count, missed in few.valid().tolist():
        assert count <= exact[key] <= count + missed, name
    assert views["Known"].valid()["count"].tolist() == [0, 0, len(values), 0], name
    for extreme, best in (("Least", np.min), ("Most", np.max)):
        rows = views[extreme].valid()
        wanted = [(int(best(values)),) * 2] if len(values) else []
        assert rows.tolist() == wanted, (name, extreme)
    return len(values)


@pytest.mark.parametrize(
    ("level", "position", "seed"),
    [
        ("thread", "ld | st | setp | red | atom", 1),
        ("warp", "setp | add", 2),
        ("block", "setp | add", 1),
    ],
)
def test_they_agree_with_the_records(level: str, position: str, seed: int | None) -> None:
    values = 0
    for name in FEWER if level == "thread" else KERNELS:
        own = probe(level, position)
        bench = Bench(ALL[name], (), (seed,))
        twins = bench.twins(own)
        assert skip_of(twins) is None, name
        bench.place(seed).device.step_limit = 1 << 22
        views, results = bench.run(own, twins.kernels[0], twins.render(), seed)
        values += check(views, name)
        for one, other in zip(results, bench.results(None), strict=True):
            assert bench.comparable(one) == bench.comparable(other), name
    assert values > 100


@pytest.mark.parametrize(
    ("level", "position"), [("thread", "ld | st | setp | red | atom"), ("warp", "setp | add"), ("block", "setp | add")]
)
def test_each_owner_has_its_own_result(level: str, position: str) -> None:
    values = 0
    # Where few threads save, more blocks.
    for name in (*PER_KERNELS, *(("branches",) if level != "thread" else ())):
        own = per_probe(level, position)
        bench = Bench(ALL[name], (), (1,))
        twins = bench.twins(own)
        assert skip_of(twins) is None, name
        bench.place(1).device.step_limit = 1 << 22
        views, results = bench.run(own, twins.kernels[0], twins.render(), 1)
        values += check_per(views, name, level)
        for one, other in zip(results, bench.results(None), strict=True):
            assert bench.comparable(one) == bench.comparable(other), name
    assert values > 30


FUSED = """
[map.Products]
type = "histogram"
scale = "log2"
level = "thread"
data = { value = "u32" }
[map.Extremes]
type = "max"
level = "thread"
data = { value = "f32" }
[map.Mean]
type = "avg"
level = "thread"
data = { value = "u32" }
[map.Last]
type = "ring"
cap = 3
level = "thread"
data = { value = "u32" }
[probe.p]
position = "mul.f32"
level = "thread"
after = '''
SAVE [ Products ] { OUT.bits };
SAVE [ Extremes ] { OUT };
SAVE [ Mean ] { OUT.bits };
SAVE [ Last ] { OUT.bits };
'''
"""


@pytest.mark.usefixtures("ptxas")
def test_products_are_fused_as_before() -> None:
    """What they add to memory waits until the sum of a product has been taken."""
    fused = Probe("fused", (), text=FUSED)
    bench = Bench(ALL["products"], ())
    twins = bench.twins(fused)
    assert skip_of(twins) is None
    twin = twins.kernels[0]
    original = arithmetic(ALL["products"].text, ALL["products"].entry)
    assert original["FFMA"]
    # A product that is saved is there besides its sum.
    assert arithmetic(twins.render(), twin.twin_name) == original | twin.own_arithmetic
    views, results = bench.run(fused, twin, twins.render(), None)
    assert views["Products"].valid()["count"].sum() == views["Mean"].valid()["count"].sum() > 0
    for one, other in zip(results, bench.results(None), strict=True):
        assert bench.comparable(one) == bench.comparable(other)


@pytest.mark.usefixtures("ptxas")
def test_they_assemble() -> None:
    for name in KERNELS:
        twins = Bench(ALL[name], ()).twins(probe("thread", "ld | st"))
        cubin, said = assemble(twins.render(), quick=True)
        assert cubin, said


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("table", ['type = "hash"\nkeep = ["sum", "min"]\nroom = 5', 'type = "topk"\nn = 3'])
def test_arithmetic_beside_keys_is_proven(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel with products that are fused gets a twin that rounds the same, whose registers are then known."""
    kernel, probe_file = tmp_path / "products.ptx", tmp_path / "keys.toml"
    kernel.write_text(ALL["products"].text)
    probe_file.write_text(
        f"""platform = "cuda"
[map.Keys]
{table}
level = "thread"
data = {{ key = "u32", value = "u32" }}
[probe.p]
position = "mul.f32"
level = "thread"
after = "SAVE [ Keys ] {{ OUT.bits, OUT.bits }};"
"""
    )
    assert show(["show", str(probe_file), str(kernel)]) == 0
    printed = capsys.readouterr().out
    assert "// products: 3 sites" in printed
    assert "by ptxas" in printed
