"""Twins in machine code with ``latency``, which has code on both sides of loads, run by the interpreter: the kernel's
results, the number of loads that the twin in PTX counts, times that a load may take, and no register used too early.

Of all loads (``SAMPLE=1``) the numbers are the same; which of them one in 16 measures the clock says, which differs.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.sass_machine.launching import Host
from tests.sass_machine.mutants import tally
from tests.sass_machine.test_twins import few_blocks
from tests.sass_twin.listing import tool

_CASES = {"vecadd": (2, 256), "collatz": (1, 64), "nested_loops": (1, 64)}
"""Blocks and their threads. The last one names all predicates, and its loads are in loops that lanes leave alone."""
_LONGEST = 1000
"""More cycles than any load takes here, where memory answers at once."""


@pytest.fixture(scope="module", params=_CASES)
def host(request: pytest.FixtureRequest) -> Host:
    tool("ptxas")
    blocks, threads = _CASES[request.param]
    return Host(few_blocks(request.param, (blocks, 1, 1), (threads, 1, 1)))


def _probe(folder: Path, sample: int) -> str:
    """A file with the probe that measures one load in so many."""
    path = folder / f"latency_{sample}.py"
    text = Path("probes/latency.py").read_text()
    assert text.count("SAMPLE = 16\n") == 1
    path.write_text(text.replace("SAMPLE = 16\n", f"SAMPLE = {sample}\n"))
    return str(path)


def _numbers(views: dict) -> list[int]:
    """The number of loads at each site. ``ptxas`` orders loads otherwise than PTX has them."""
    return sorted(views["PerLoad"].valid()["count"].tolist())


@pytest.mark.parametrize("sample", [1, 2, 16])
def test_results_numbers_and_times(host, sample, tmp_path):
    probe = _probe(tmp_path, sample)
    wanted = {place: array.tobytes() for place, array in host.run_ptx().items()}
    of_ptx = _numbers(host.run_twin_of_ptx(_probe(tmp_path, 1)))
    assert sum(of_ptx) > 0
    measured = 0
    for seed in (None, 1, 2):
        views = host.run_twin(probe, seed=seed, in_graph=seed is None)
        assert {place: array.tobytes() for place, array in host.results().items()} == wanted
        rows = views["PerLoad"].valid()
        counts = _numbers(views)
        if sample == 1:
            assert counts == of_ptx
        # Estimates are of whole executions of a warp, up to 32 lanes.
        assert all(count % sample == 0 and 0 < count <= sample * sum(of_ptx) for count in counts)
        (overhead,) = views["ClockOverhead"].valid()["cycles"].tolist()
        assert 0 < overhead < _LONGEST
        for row in rows:
            least, most, mean = int(row["min"]), int(row["max"]), int(row["sum"]) / int(row["count"])
            assert 0 < least <= mean <= most < _LONGEST
            # The code between the two clocks of a load is longer than that between the two at the entry.
            assert least >= overhead
        measured += len(rows)
    assert measured or sample == 16


def test_faults_are_seen_by_both_judges(tmp_path):
    tool("ptxas")
    host = Host(dataclasses.replace(few_blocks("vecadd", (1, 1, 1), (32, 1, 1))))
    found = tally(host, _probe(tmp_path, 1), every=3)
    # Nothing that goes wrong when it runs may pass the checker.
    assert found.missed == []
    assert found.tried["wait"] >= 4
    assert found.ran["wait"] >= 0.5 * found.tried["wait"]
