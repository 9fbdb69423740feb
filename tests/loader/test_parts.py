"""Twins of one image in several images of their own: each is loaded when the first kernel in it is obtained."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from neutrino.abi.launches import LaunchState
from neutrino.twins.cache_entry import read_entry

from .conftest import IMAGE, Bench, Reference, entry_of, in_parts, write_capped
from .trace_files import Files

KERNELS = ("count_p2", "loop_p2", "count_p0")
"""What the scenario obtains: 5 launches of each."""


def _run(
    bench: Bench, home: Path, scenario: str, failing: str = "", *, twins: bool = True
) -> tuple[tuple[str, int], dict[str, int]]:
    """What the program printed and returned, and how often the driver was called: for it, and by the hook for twins."""
    counts = home / "counts.json"
    settings: dict[str, Any] = {"count": counts} | ({"fail": failing} if failing else {})
    with in_parts():
        assert len(read_entry(entry_of(IMAGE), "entry").images) > len(KERNELS)
        result = bench.run(scenario, home, twins=twins, device=settings)
    calls = json.loads(counts.read_text())
    # The hook's last call in a function of the driver may be a jump, by which the program seems to be the caller.
    return (result.stdout, result.returncode), Counter(calls["program"]) + Counter(calls["hook"])


def test_only_images_of_kernels_that_are_used_are_loaded(
    any_bench: Bench, tmp_path: Path, reference: Reference
) -> None:
    answers, calls = _run(any_bench, tmp_path, "parts")
    assert answers == reference("parts")
    assert calls["cuModuleLoadData"] == calls["cuModuleUnload"] == 1 + len(KERNELS)
    files = Files(tmp_path / "trace")
    assert [files.counted(kernel) for kernel in KERNELS] == 3 * [{"probed": 5}]
    assert len(files.written()) == 15
    files.check_tickets(any_bench.maps)


def test_images_of_twins_under_a_cap_are_loaded_with_those_without(bench: Bench, tmp_path: Path) -> None:
    write_capped(tmp_path)
    _, calls = _run(bench, tmp_path, "parts", twins=False)
    assert calls["cuModuleLoadData"] == calls["cuModuleUnload"] == 1 + 2 * len(KERNELS)
    assert Files(tmp_path / "trace").counted(*KERNELS) == {"probed": 15}


@pytest.mark.parametrize("failing", range(3))
def test_an_image_that_does_not_load_leaves_the_kernels_in_others_probed(
    bench: Bench, tmp_path: Path, reference: Reference, failing: int
) -> None:
    # The first that is loaded is the program's own.
    answers, calls = _run(bench, tmp_path, "parts", f"load@{failing + 2}")
    assert answers == reference("parts")
    assert (calls["cuModuleLoadData"], calls["cuModuleUnload"]) == (1 + 3, 1 + 2)
    files = Files(tmp_path / "trace")
    expected = [{"load": 5} if number == failing else {"probed": 5} for number in range(3)]
    assert [files.counted(kernel) for kernel in KERNELS] == expected
    assert set(files.launches["state"]) == {LaunchState.WRITTEN}
    notes = [event["text"] for event in files.events if event["event"] == "note"]
    assert notes == ["the driver did not load the twins of image 1: error 200"]


def test_threads_that_need_an_image_at_once_load_it_once(
    any_bench: Bench, tmp_path: Path, reference: Reference
) -> None:
    answers, calls = _run(any_bench, tmp_path, "parts-at-once")
    assert answers == reference("parts-at-once")
    # Twenty rounds with an image of the program and two of twins; and the module that the program begins with.
    assert calls["cuModuleLoadData"] == calls["cuModuleUnload"] == 20 * (1 + 2) + (1 + 1)
    assert calls["cuLibraryLoadData"] == calls["cuLibraryUnload"] == 20 * (1 + 2)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == files.counted("loop_p2") == {"probed": 80}
    assert len(files.written()) == 160
