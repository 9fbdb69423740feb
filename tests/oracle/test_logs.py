"""Logs: in random kernels they hold what the tracer saw, thread by thread in order, or count what did not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from neutrino.tracing.views import MapView
from tests.oracle.assembling import arithmetic, assemble
from tests.oracle.bench import Bench, Kernel, skip_of
from tests.oracle.probes import Probe
from tests.oracle.random_kernels import kernels
from tests.oracle.random_probes import probes
from tests.oracle.simulation import Lanes, Side, Simulation, compare
from tests.oracle.test_aggregates import KERNELS
from tests.oracle.test_matrix import ALL
from tests.oracle.twin_launch import LoadedTwin

_FEW = 24


def test_random_kernels(pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("--random-rewrites") or _FEW
    dropped = 0

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count == _FEW,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(
        kernels(), probes(("log", "log", "log", "array")), st.sampled_from((1 << 15, 100, 7, 0)),
        st.sampled_from(("sm_80", "sm_80", "sm_75")), st.sampled_from((0, 1, 6, 40)),
    )  # fmt: skip
    def check(kernel: Kernel, probe: Probe, log_units: int, architecture: str, log_first: int) -> None:
        nonlocal dropped
        # Records are in groups from sm_80 on, before in rows.
        kernel = replace(kernel, text=kernel.text.replace("sm_80", architecture))
        bench = Bench(kernel, (probe,), (None, 3), log_units, log_first)
        twins = bench.twins(probe)
        skip = skip_of(twins)
        if skip is not None:
            event(f"{skip.reason.word}")
            assume(False)
        for seed in bench.schedules:
            views, results = bench.run(probe, twins.kernels[0], twins.render(), seed)
            for one, other in zip(results, bench.results(None), strict=True):
                assert bench.comparable(one) == bench.comparable(other), kernel.text
            simulation = bench.simulation(probe)
            for view in views.values():
                assert compare(view, simulation) == [], kernel.text
                if view.map.kind.name == "log":
                    dropped += view.dropped
                    assert not view.dropped or log_units < 1 << 15

    check()
    assert dropped > 100


_TEXT = """
[map.All]
type = "log"
level = "LEVEL"
data = { address = "u64", number = "u32" }
[map.Both]
type = "log"
level = "LEVEL"
data = { number = "u8" }
[probe.accesses]
position = "ld.global | st.global"
level = "LEVEL"
before = \"\"\"
.reg .u32 %n, %t;
SAVE [ All ] { ADDR, %n };
add.u32 %n, %n, 1;
SAVE [ Both ] { 7 };
SAVE [ Both ] { 9 };
\"\"\"
"""


def _access(simulation: Simulation, lanes: Lanes) -> None:
    number = simulation.register("n")
    simulation.save("All", lanes, lanes.address, number[lanes.threads])
    number[lanes.threads] += 1
    simulation.save("Both", lanes, 7)
    simulation.save("Both", lanes, 9)


def _accesses(level: str) -> Probe:
    side = Side("ld.global | st.global", _access, warp=level == "warp", block=level == "block")
    return Probe(f"accesses_{level}", (side,), text=_TEXT.replace("LEVEL", level))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Three kernels have all levels, the others one each: which branches they have and who keeps a log are apart."""
    if metafunc.function is not test_kernels_that_part_and_call:
        return
    firsts = {"thread": 4, "warp": 5, "block": 2}
    found = [(name, level, 0) for name in ("branches", "calls") for level in firsts]
    found += [(name, level, first) for name in ("branches", "calls", "memory") for level, first in firsts.items()]
    thorough = metafunc.config.getoption("--thorough")
    for number, name in enumerate(name for name in KERNELS if name in ALL and name != "branches"):
        wanted = firsts if thorough else list(firsts)[number % 3 :][:1]
        found += [(name, level, firsts[level]) for level in wanted]
    metafunc.parametrize(("name", "level", "log_first"), found)


def test_kernels_that_part_and_call(name: str, level: str, log_first: int, pytestconfig: pytest.Config) -> None:
    probe = _accesses(level)
    bench = Bench(ALL[name], (probe,), log_first=log_first)
    twins = bench.twins(probe)
    skip = skip_of(twins)
    if skip is not None:
        assert skip.reason.word == "no-site", skip
        return
    fixed, one, other = bench.schedules
    schedules = bench.schedules if pytestconfig.getoption("--thorough") else (fixed, other) if log_first else (one,)
    assert bench.judge(probe, twins, schedules=schedules) == []


@pytest.mark.parametrize(
    ("level", "log_units", "is_short"),
    [
        ("thread", 1 << 15, False), ("thread", 40, True), ("warp", 1 << 15, False), ("warp", 40, True),
        ("block", 10, True),
    ],
)
def test_a_kernel_that_runs_again_in_a_replay_appends(level: str, log_units: int, *, is_short: bool) -> None:
    probe = _accesses(level)
    bench = Bench(ALL["branches"], (probe,), (1,), log_units)
    twin = bench.twins(probe).kernels[0]
    place = bench.place(1)
    loaded = LoadedTwin(twin, place.device.load(bench.twins(probe).render()), {})
    once, thrice = (loaded.launch(place.device, place.launch(), times=times) for times in (1, 3))
    one, three = once["All"], thrice["All"]
    assert len(three.valid()) + three.dropped == 3 * (len(one.valid()) + one.dropped)
    assert bool(three.dropped) == is_short
    # Each run's records of a thread are after those of the run before.
    rows = list(zip(*(column.tolist() for column in three.places().values()), strict=True))
    assert rows == sorted(set(rows))
    if not three.dropped:
        own, all_of = _threads(one), _threads(three)
        for thread in np.unique(own).tolist():
            expected = np.tile(one.valid()["number"][own == thread], 3)
            np.testing.assert_array_equal(three.valid()["number"][all_of == thread], expected)


def _threads(view: MapView) -> npt.NDArray[np.int64]:
    """A number for the thread, warp or block of each record."""
    columns, zero = view.places(), np.zeros(len(view.valid()), np.int64)
    return columns["block"] * 1000 + columns.get("warp", zero) * 32 + columns.get("lane", zero)


FUSED = """
[map.Products]
type = "log"
level = "thread"
data = { value = "f32" }
[probe.p]
position = "mul.f32"
level = "thread"
after = "SAVE [ Products ] { OUT };"
"""


@pytest.mark.usefixtures("ptxas")
def test_products_are_fused_as_before() -> None:
    """What takes a chunk and stores in it waits until the sum of a product has been taken."""
    fused = Probe("fused", (), text=FUSED)
    bench = Bench(ALL["products"], ())
    twins = bench.twins(fused)
    assert skip_of(twins) is None
    twin = twins.kernels[0]
    original = arithmetic(ALL["products"].text, ALL["products"].entry)
    assert original["FFMA"]
    assert arithmetic(twins.render(), twin.twin_name) == original | twin.own_arithmetic
    views, results = bench.run(fused, twin, twins.render(), None)
    assert len(views["Products"].valid())
    for one, other in zip(results, bench.results(None), strict=True):
        assert bench.comparable(one) == bench.comparable(other)


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("name", ["branches", "calls", "memory"])
def test_they_assemble(name: str) -> None:
    twins = Bench(ALL[name], ()).twins(_accesses("thread"))
    cubin, said = assemble(twins.render(), quick=False)
    assert cubin, said
