"""Sums and averages of floating-point numbers: within the bound that docs/probes.md states, and bit for bit what the
documented order gives."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.emulator.device import Device
from neutrino.maps.float_sums import added_in_pairs
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.instrument.twin import TwinModule
from neutrino.ptx.text.module import parse
from neutrino.verification import load_probes, read_probes
from tests.maps.aggregates import Values, kernel_text, probes_of, random_values, read_by, run, run_twin, twin_of
from tests.oracle.assembling import assemble

SUM, AVERAGE = 'type = "sum"', 'type = "avg"'
BLOCKS, THREADS = 3, 70
ARCHITECTURES = ("sm_60", "sm_75", "sm_90")
_UNIT = Fraction(1, 1 << 53)
_COPIES = 8
_TYPES = {"f32": np.float32, "f64": np.float64}

_HALVES = """
.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 values, .param .u64 out, .param .u32 n)
{{
	.reg .pred %p;
	.reg .b16 %h, %sum;
	.reg .b32 %i, %n;
	.reg .b64 %at, %from, %to;
	ld.param.u64 %from, [values];
	ld.param.u64 %to, [out];
	ld.param.u32 %n, [n];
	mov.u32 %i, %tid.x;
	setp.ge.u32 %p, %i, %n;
	@%p bra DONE;
	mad.wide.u32 %at, %i, 2, %from;
	ld.global.b16 %h, [%at];
	neg.{kind} %sum, %h;
	st.global.b16 [%to], %sum;
DONE:
	ret;
}}
"""


def bound(values: Values, groups: int = BLOCKS * THREADS) -> Fraction:
    """How far a sum may be from the exact one, as the docs have it. groups: that add to a copy."""
    most = -(-len(values) // (BLOCKS * THREADS))
    roundings = most + groups + 4 + (_COPIES - 1).bit_length()
    share = roundings * _UNIT
    return share / (1 - share) * sum((abs(Fraction(value)) for value in values.tolist()), Fraction())


def assert_close(total: float, values: Values) -> None:
    exact = sum((Fraction(value) for value in values.tolist()), Fraction())
    assert abs(Fraction(total) - exact) <= bound(values)
    # ``math.fsum`` rounds the exact sum once.
    assert abs(Fraction(total) - Fraction(math.fsum(values.tolist()))) <= bound(values) + abs(exact) * _UNIT


def in_order(values: Values) -> Values:
    """The sums of warps by the documented order, of the kernel of ``aggregates``: its warps end in two groups."""
    reader = np.arange(len(values)) % (THREADS * BLOCKS)
    threads = np.zeros(THREADS * BLOCKS)
    for value, thread in zip(values.astype(np.float64).tolist(), reader.tolist(), strict=True):
        threads[thread] += value
    sums = []
    for block in threads.reshape(BLOCKS, THREADS):
        for first in range(0, THREADS, 32):
            number = np.arange(first, min(first + 32, THREADS)) + len(sums) // -(-THREADS // 32) * THREADS
            own = block[first : first + 32]
            halves = [added_in_pairs(own[number % 3 == 0]), added_in_pairs(own[number % 3 != 0])]
            sums.append(halves[0] + halves[1])
    return np.array(sums)


@pytest.mark.parametrize("kind", _TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("per", ["launch", "block", "warp", "thread", "sm"])
def test_sums_are_within_the_bound(kind: str, arch: str, per: str) -> None:
    values = random_values(kind, 700, np.random.default_rng(7))
    rows = run(probes_of(f'{SUM}\nper = "{per}"', kind), values, kind, arch).valid()
    assert rows.dtype["value"] == np.float64
    assert_close(math.fsum(rows["value"].tolist()), values)
    if per == "thread":
        reader = np.arange(len(values)) % (BLOCKS * THREADS)
        # In the order of the program, without a tree: NumPy's cumulative sums are in that order.
        expected = [np.cumsum(values[reader == thread], dtype=np.float64)[-1] for thread in range(BLOCKS * THREADS)]
        assert rows["value"].tolist() == expected


@pytest.mark.parametrize("kind", _TYPES)
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_the_order_is_the_documented_one(kind: str, arch: str) -> None:
    """Also of values whose sum depends on it."""
    random = np.random.default_rng(3)
    magnitudes = random.integers(-30, 30, 900)
    values = (random.standard_normal(900) * 2.0**magnitudes).astype(_TYPES[kind])
    rows = run(probes_of(f'{SUM}\nper = "warp"', kind), values, kind, arch).valid()
    assert rows["value"].tolist() == in_order(values).tolist()


@pytest.mark.parametrize("level", ["warp", "block"])
@pytest.mark.parametrize("kind", _TYPES)
def test_levels(level: str, kind: str) -> None:
    values = random_values(kind, 700, np.random.default_rng(3))
    chosen = read_by(values, THREADS, BLOCKS, level)
    (total,) = run(probes_of(SUM, kind, level), values, kind, "sm_90").valid()["value"].tolist()
    assert_close(total, chosen)
    rows = run(probes_of(AVERAGE, kind, level), values, kind, "sm_90").valid()
    assert rows["count"].tolist() == [len(chosen)]


_NUMBERS = {
    "f32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    # Sums of fewer than 2 ** 20 of these do not overflow.
    "f64": st.floats(-(2.0**1000), 2.0**1000, allow_nan=False),
}


@pytest.mark.parametrize("kind", _TYPES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_values(kind: str, data: st.DataObject) -> None:
    """Cancellation, huge and tiny numbers, subnormals."""
    drawn = data.draw(st.lists(_NUMBERS[kind], max_size=40))
    mirrored = data.draw(st.booleans())
    numbers = [*drawn, *(-number for number in reversed(drawn))] if mirrored else drawn
    values = np.array(numbers, _TYPES[kind])
    rows = run(probes_of(AVERAGE, kind), values, kind, "sm_90", threads=8, blocks=2).valid()
    if not len(values):
        assert not rows.size
        return
    assert rows["count"].tolist() == [len(values)]
    assert_close(float(rows["sum"][0]), values)
    assert rows["mean"].tolist() == [rows["sum"][0] / len(values)]


@pytest.mark.parametrize("kind", _TYPES)
def test_nothing_is_lost_to_larger_values(kind: str) -> None:
    """Subnormal numbers are added, and f32 are as f64, in which small ones do not vanish."""
    dtype = _TYPES[kind]
    tiny = np.nextafter(dtype(0), dtype(1))
    values = np.full(300, tiny, dtype)
    assert run(probes_of(SUM, kind), values, kind, "sm_90").valid()["value"].tolist() == [300 * float(tiny)]
    ones = np.where(np.arange(600) % 2, dtype(1), dtype(1 << 30))
    total = 300 * (1 + (1 << 30))
    assert run(probes_of(SUM, kind), ones, kind, "sm_90").valid()["value"].tolist() == [float(total)]


@pytest.mark.parametrize("table", [SUM, AVERAGE])
@pytest.mark.parametrize("kind", _TYPES)
@pytest.mark.parametrize("arch", ["sm_60", "sm_90"])
def test_nan_and_infinity(table: str, kind: str, arch: str) -> None:
    dtype, name = _TYPES[kind], "value" if table == SUM else "sum"

    def total(*special: float) -> float:
        values = np.ones(500, dtype)
        values[[11, 222, 433][: len(special)]] = special
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return float(run(probes_of(table, kind), values, kind, arch).valid()[name][0])

    assert math.isnan(total(math.nan))
    assert total(math.inf) == math.inf
    assert total(-math.inf, -math.inf) == -math.inf
    assert math.isnan(total(math.inf, -math.inf))
    assert math.isnan(total(math.inf, math.nan))


@pytest.mark.parametrize("kind", _TYPES)
def test_zeros(kind: str) -> None:
    """A sum of zeros is +0, also of -0 alone, and one of nothing; an average tells them apart."""
    for values in (np.zeros(0), np.zeros(40), np.full(40, -0.0)):
        (total,) = run(probes_of(SUM, kind), values.astype(_TYPES[kind]), kind, "sm_90").valid()["value"].tolist()
        assert (total, math.copysign(1, total)) == (0, 1)
        rows = run(probes_of(AVERAGE, kind), values.astype(_TYPES[kind]), kind, "sm_90").valid()
        assert rows.tolist() == ([(40, 0.0, 0.0)] if len(values) else [])


def test_sums_too_large_for_f64_are_infinite() -> None:
    values = np.full(300, 1.5e308)
    assert run(probes_of(SUM, "f64"), values, "f64", "sm_90").valid()["value"].tolist() == [math.inf]


def test_integers_and_floats_in_one_sum() -> None:
    """The integers are added exactly, and lie where C puts them."""
    probes = read_probes("test.toml", """platform = "cuda"
[map.M]
type = "sum"
level = "thread"
data = { lanes = "u32", value = "f32", bytes = "u64" }
[probe.loads]
position = "ld.global"
level = "thread"
after = "SAVE [ M ] { LANES, OUT, BYTES };"
""")  # fmt: skip
    values = random_values("f32", 700, np.random.default_rng(5))
    (row,) = run(probes, values, "f32", "sm_90").valid()
    assert (row["lanes"] > 700, row["bytes"]) == (True, 4 * 700)
    assert_close(float(row["value"]), values)


@pytest.mark.parametrize("field", ["f32", "f64"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves(kind: str, field: str) -> None:
    """They are widened exactly, subnormal ones too; also in a one-liner, where the position names the type."""
    bits = np.random.default_rng(2).integers(0, 1 << 16, 500).astype("<u2")
    if kind == "f16":
        numbers = bits.view("<f2").astype(np.float64)
    else:
        numbers = (bits.astype("<u4") << 16).view("<f4").astype(np.float64)
    # bf16 has numbers like 1e38 and 1e-38, whose sum is as exact as f64 is.
    is_finite = np.isfinite(numbers)
    bits, numbers = bits[is_finite], numbers[is_finite]
    toml = read_probes("test.toml", f"""platform = "cuda"
[map.unnamed]
type = "sum"
level = "thread"
data = {{ sum = "{field}" }}
[probe.loads]
position = "neg.{kind}"
level = "thread"
before = "SAVE [ unnamed ] {{ IN1 }};"
""")  # fmt: skip
    line = load_probes([], [f"neg.{kind} {{ @ = sum(IN1) }}"])
    for probes in (toml, line):
        twins = probe_module(parse(_HALVES.format(kind=kind)), probes)
        assert not twins.skipped, twins.skipped
        view = run_twin(twins, bits, 1, 512)["unnamed"]
        (total,) = view.valid()["sum"].tolist()
        exact = sum(map(Fraction, numbers.tolist()), Fraction())
        assert abs(Fraction(total) - exact) <= 32 * _UNIT * sum(abs(Fraction(number)) for number in numbers.tolist())


def test_two_dimensional_grids() -> None:
    values = random_values("f32", 700, np.random.default_rng(9))
    # All rows of threads and of blocks read the same values.
    twins = twin_of(probes_of(SUM, "f32"), "f32", "sm_90")
    once = run_twin(twins, values, BLOCKS, THREADS)["M"].valid()["value"][0]
    several = _run_grid(twins, values, (BLOCKS, 2, 1), (THREADS, 3, 2))
    assert several == pytest.approx(12 * once, rel=1e-12)


def _run_grid(twins: TwinModule, values: Values, grid: tuple[int, int, int], block: tuple[int, int, int]) -> float:
    import struct

    from tests.oracle.twin_launch import Launch, LoadedTwin

    device = Device(memory=16 << 20, seed=1)
    module = device.load(twins.render())
    source, out = device.allocate(values.nbytes), device.allocate(64)
    device.write(source, values)
    packed = struct.pack("<QQI", source, out, len(values))
    launch = Launch(grid, block, packed)
    return float(LoadedTwin(twins.kernels[0], module, {}).launch(device, launch)["M"].valid()["value"][0])


def test_what_is_refused() -> None:
    twins = probe_module(parse(kernel_text("f32", "sm_50")), probes_of(SUM, "f32"))
    assert "sums of floats need sm_60" in str(twins.skipped)


def test_additions_are_counted() -> None:
    """What machine code is compared with: one for each site, and at each of two ends one for each level of the tree."""
    (twin,) = twin_of(probes_of(SUM, "f32"), "f32", "sm_90").kernels
    assert dict(twin.own_arithmetic) == {"DADD": 1 + 2 * 5}


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_they_assemble(arch: str) -> None:
    for kind in _TYPES:
        for table in (SUM, AVERAGE, f'{SUM}\nper = "thread"'):
            text = twin_of(probes_of(table, kind), kind, arch).render()
            if arch in ("sm_100", "sm_120"):
                text = text.replace(".version 7.8", ".version 8.7")
            cubin, said = assemble(text, quick=False)
            assert cubin, said
