"""``histogram``: what lands in memory is what NumPy counts, under every scale, type, level and architecture."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.abi.records import lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.errors import ProbeError
from neutrino.maps.histogram import Histogram
from neutrino.maps.integer_scales import Edges, Steps
from neutrino.maps.regions import region_layout
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.verification import load_probe_file, read_probes
from tests.maps.aggregates import Values, kernel_text, probes_of, random_values, read_by, run, run_twin, twin_of
from tests.oracle.assembling import assemble

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
SCALES = {
    "log2": 'scale = "log2"',
    "whole": 'scale = "linear"\nlow = 0\nhigh = 120\nstep = 8',
    "sevens": 'scale = "linear"\nlow = 3\nhigh = 101\nstep = 7',
    "edges": "edges = [1, 5, 99, 100]",
}
SIGNED = {
    "around": 'scale = "linear"\nlow = -90\nhigh = 60\nstep = 30',
    "edges": "edges = [-100, -3, 0, 1, 17]",
}


def table(scale: str) -> str:
    return f'type = "histogram"\n{scale}'


def expected(kind: Histogram, scalar: ScalarType, values: Values) -> list[int]:
    """The counts, one value after the other by the buckets' own bounds."""
    buckets = kind.scale.buckets(scalar)
    return [sum(low <= int(value) <= high for value in values.tolist()) for low, high in buckets]


def check(scale: str, kind: str, arch: str, level: str = "thread", count: int = 900) -> None:
    probes = probes_of(table(scale), kind, level)
    values = random_values(kind, count, np.random.default_rng(count))
    view = run(probes, values, kind, arch)
    histogram = view.map.kind
    assert isinstance(histogram, Histogram)
    rows = view.valid()
    assert rows["count"].tolist() == expected(histogram, ScalarType(kind), read_by(values, 70, 3, level))
    buckets = histogram.scale.buckets(ScalarType(kind))
    assert list(zip(rows["low"].tolist(), rows["high"].tolist(), strict=True)) == buckets


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("scale", sorted(SCALES))
def test_counts_are_numpys(scale: str, kind: str) -> None:
    check(SCALES[scale], kind, "sm_90")


@pytest.mark.parametrize("kind", [kind for kind in INTEGERS if kind[0] == "s"])
@pytest.mark.parametrize("scale", sorted(SIGNED))
def test_signed_scales(scale: str, kind: str) -> None:
    check(SIGNED[scale], kind, "sm_90")


@pytest.mark.parametrize("level", ["warp", "block"])
def test_levels(level: str) -> None:
    check(SCALES["log2"], "u32", "sm_90", level)


def test_where_lanes_cannot_be_matched() -> None:
    check(SCALES["sevens"], "u32", "sm_60")


@pytest.mark.parametrize(
    "scale",
    [
        'scale = "linear"\nlow = 0\nhigh = 4294967289\nstep = 1431655763',
        'scale = "linear"\nlow = 1\nhigh = 4294967295\nstep = 2',
        'scale = "linear"\nlow = 0\nhigh = 4294967295\nstep = 3',
    ],
)
def test_steps_that_are_hard_to_divide_by(scale: str) -> None:
    if "step = 2" in scale or "step = 3" in scale:
        with pytest.raises(ProbeError, match="up to 4096"):
            probes_of(table(scale), "u32")
        return
    check(scale, "u32", "sm_90")
    check(scale, "u64", "sm_90")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 31), st.integers(1, 4000), st.integers(1, 1 << 20), st.integers(0, 1 << 30))
def test_any_linear_scale(low: int, buckets: int, step: int, seed: int) -> None:
    high = low + buckets * step
    if high > 1 << 32:
        return
    probes = probes_of(table(f'scale = "linear"\nlow = {low}\nhigh = {high}\nstep = {step}'), "u32")
    random = np.random.default_rng(seed)
    edges = low + step * random.integers(0, buckets + 1, 60)
    values = np.concatenate([edges, edges - 1, edges + 1, random.integers(0, 1 << 32, 40)]).clip(0, (1 << 32) - 1)
    values = values.astype("<u4")
    rows = run(probes, values, "u32", "sm_90", 1, 64).valid()
    starts = rows["low"].astype(np.uint64)
    found = np.bincount(np.searchsorted(starts, values.astype(np.uint64), "right") - 1, minlength=len(rows))
    assert rows["count"].tolist() == found.tolist()


@pytest.mark.parametrize("kind", INTEGERS)
def test_a_histogram_takes_at_most_a_mebibyte(kind: str) -> None:
    """However many events a launch has: counts are of 64 bits, and the copies are limited."""
    largest = [] if kind[1:] == "8" else ['scale = "linear"\nlow = 1\nhigh = 4097\nstep = 1']
    for scale in [*SCALES.values(), *largest]:
        maps = probes_of(table(scale), kind).maps
        _, size = region_layout(maps, blocks=1 << 22, warps_per_block=32, lanes=32)
        assert size <= 1 << 20


def test_known_values_stay_in_registers() -> None:
    probes = probes_of(table(SCALES["log2"]), "u32", operand="5")
    (twin,) = twin_of(probes, "u32", "sm_90").kernels
    assert "match.any" not in twin.whole_text()
    values = np.zeros(900, "<u4")
    rows = run(probes, values, "u32", "sm_90").valid()
    assert {low: count for low, _, count in rows.tolist() if count} == {4: 900}


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("scale", sorted(SCALES))
def test_they_assemble(scale: str, arch: str) -> None:
    for kind in ("u32", "s64", "u8"):
        text = twin_of(probes_of(table(SCALES[scale]), kind), kind, arch).render()
        if arch == "sm_100":
            text = text.replace(".version 7.8", ".version 8.6")
        cubin, said = assemble(text, quick=False)
        assert cubin, said


@given(st.sampled_from(INTEGERS), st.data())
def test_buckets_hold_every_value_once(kind: str, data: st.DataObject) -> None:
    scalar = ScalarType(kind)
    least, most = (-(1 << (scalar.size * 8 - 1)), (1 << (scalar.size * 8 - 1)) - 1) if kind[0] == "s" else (
        0, (1 << scalar.size * 8) - 1)  # fmt: skip
    edges = data.draw(st.lists(st.integers(least + 1, most), min_size=2, max_size=64, unique=True).map(sorted))
    histogram = Histogram(Edges(tuple(edges)))
    buckets = histogram.scale.buckets(scalar)
    assert (buckets[0][0], buckets[-1][1]) == (least, most)
    assert all(high + 1 == low for (_, high), (low, _) in pairwise(buckets))
    fields, _, _ = lay_out_fields([("value", scalar)])
    assert histogram.size(fields) == 8 * len(buckets)


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ("", "u32", "has no scale"),
        ('scale = "log10"', "u32", "scale is 'log10'"),
        ('scale = "log2"\nlow = 1', "u32", "low is of a linear scale"),
        ('scale = "linear"\nlow = 0\nhigh = 10', "u32", "step is no integer"),
        ('scale = "linear"\nlow = 0\nhigh = 10\nstep = 3', "u32", "from 0 to 10 by 3 is no scale"),
        ('scale = "linear"\nlow = -1\nhigh = 1\nstep = 1', "u32", "is no scale of a u32"),
        ('scale = "linear"\nlow = 0\nhigh = 8589934592\nstep = 4294967291', "u64", "is no scale"),
        ('scale = "log2"\ncap = 2', "u64", "a histogram has one record"),
        ("edges = [5]", "u32", "edges is no list of integers"),
        ("edges = [5, 4]", "u32", "do not divide"),
        ("edges = [4, 300]", "u8", "do not divide"),
        ('scale = "log2"\nbase = 3', "u32", "unknown key 'base'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(keys: str, kind: str, message: str) -> None:
    with pytest.raises(ProbeError) as caught:
        probes_of(table(keys), kind)
    assert message in str(caught.value)


def test_maps_in_python_have_the_keys_of_their_types(tmp_path: Path) -> None:
    path = tmp_path / "elapsed.py"
    path.write_text(
        "from neutrino import probe, Map\nimport neutrino.language as nl\n"
        '@Map(level="warp", type="histogram", scale="linear", low=0, high=1000, step=100)\n'
        "class Elapsed:\n    elapsed: nl.u64\n"
        '@probe(pos="kernel", level="warp")\n'
        "def thread_end():\n    Elapsed.save(nl.clock())\n"
    )
    (entry,) = load_probe_file(path).maps
    assert entry.kind == Histogram(Steps(0, 1000, 100))


_SIZES = """
	cp.async.ca.shared.global [%place], [%from], 16, %size;
	cp.async.ca.shared.global [%place], [%from], 16, %sixteen;
	call stop, (%value);
	cp.async.ca.shared.global [%place], [%from], 16, %size;
	@%odd cp.async.ca.shared.global [%place], [%from], 16, %nested;
	@%odd bra AGAIN;
	cp.async.ca.shared.global [%place], [%from], 16, %value;
	cp.async.ca.shared.global [%place], [%from], 16, !%odd;
	cp.async.ca.shared.global [%place], [%from], 16, %few;
	bra AGAIN;
"""
_STOP = """
.func stop(.reg .u32 %x)
{
	.reg .pred %p;
	setp.eq.u32 %p, %x, 15;
	@%p exit;
	ret;
}
"""


def _with_sizes(low: int, high: int) -> str:
    """The kernel with copies whose sizes depend on the values, which are below 16: one of two, any, and constants. A
    thread that finds 15 ends in a function."""
    text = kernel_text("u32", "sm_90").replace(".visible", ".shared .align 16 .b8 room[2048];\n" + _STOP + ".visible")
    select = f"""
	.reg .pred %odd, %big; .reg .b32 %size, %sixteen, %nested, %place, %few;
	and.b32 %few, %value, 1;
	setp.ne.u32 %odd, %few, 0;
	setp.gt.u32 %big, %value, 6;
	selp.b32 %size, {high}, {low}, %big;
	selp.b32 %nested, %size, {low}, %odd;
	selp.b32 %few, 4, %size, %odd;
	mov.u32 %sixteen, 16;
	mov.u32 %place, %tid.x;
	shl.b32 %place, %place, 4;
	{{ .reg .b32 %size; mov.u32 %size, room; add.u32 %place, %place, %size; }}
	add.u32 %i, %i, %step;
"""
    head, _, tail = text.partition("	add.u32 %i, %i, %step;\n	bra AGAIN;\n")
    return head + select + _SIZES + tail


def _sizes_of(values: list[int], low: int, high: int) -> list[int]:
    """What one thread that finds these values copies, copy for copy."""
    sizes = []
    for value in values:
        size = high if value > 6 else low
        sizes += [size, 16]
        if value == 15:
            break
        sizes += [size, size] if value % 2 else [size, value, 0, size]
    return sizes


@pytest.mark.parametrize(("low", "high"), [(0, 16), (3, 10), (8, 9)])
def test_one_of_two_values_stays_in_registers(low: int, high: int) -> None:
    """As a masked copy has them. Sizes of more values are counted in memory."""
    probes = read_probes(
        "test.toml",
        """platform = "cuda"
[map.M]
type = "histogram"
edges = [1, 9, 12]
level = "thread"
data = { bytes = "u64" }
[probe.copies]
position = "cp.async"
level = "thread"
before = "SAVE [ M ] { BYTES };"
""",
    )
    twins = probe_module(parse(_with_sizes(low, high)), probes)
    (twin,) = twins.kernels
    # Where the size is any number and where it is one of three.
    assert twin.whole_text().count("match.any") == 2
    values = np.random.default_rng(low).integers(0, 16, 900).astype("<u4")
    values[5:600] %= 15
    blocks, threads = 3, 70
    everything = [
        size
        for thread in range(blocks * threads)
        for size in _sizes_of(values[thread :: blocks * threads].tolist(), low, high)
    ]
    rows = run_twin(twins, values, blocks, threads)["M"].valid()
    counts = np.bincount(np.searchsorted([0, 1, 9, 12], everything, "right") - 1, minlength=4)
    assert rows["count"].tolist() == counts.tolist()
