"""Several sets of probes in one process: each launch runs one set's twin, and its record says whose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.reasons import Reason
from neutrino.device.kind import DeviceKind
from neutrino.maker.keys import image_key, run_key
from neutrino.maker.patcher import patch_image
from neutrino.maker.store import Cache
from neutrino.probing.selection import Selection
from neutrino.verification import load_probe_file

from .conftest import IMAGE, TICKETS, Bench, Reference, second, write_reasons
from .trace_files import Files

KEYS = tuple(run_key(f"probes {i}", "selection", "assembler", "version", DeviceKind.EMBEDDED) for i in range(2))


def _asked(home: Path) -> dict[str, str]:
    """The environment of a program that changes between three sets, whose twins are in the cache. All have the same
    probes, so that the tickets of all say what ran."""
    home.mkdir(exist_ok=True)
    probes = load_probe_file(TICKETS)
    for key in KEYS:
        for variant in (IMAGE, second(IMAGE)):
            entry_key = image_key(key, "sm_90", variant)
            entry = patch_image(
                variant, probes, "sm_90", selection=Selection(), assembler=None, key=entry_key,
                device=DeviceKind.EMBEDDED,
            )  # fmt: skip
            Cache(home / "cache").write(entry_key, entry)
    return {"NEUTRINO_ASKS": "1", "HOST_KEYS": ",".join(key.hex() for key in KEYS), "NEUTRINO_POOL": str(64 << 20)}


def _check(files: Files, bench: Bench, launches: int) -> None:
    """All launches were probed, and recorded once, with the set that their kernel is of."""
    assert files.counted("count_p2") == {"probed": launches}
    assert len(files.written()) == launches
    files.check_tickets(bench.maps)
    sets = {int(event["id"]): int(event.get("set", 1)) for event in files.events if event["event"] == "kernel"}
    for record in files.written():
        assert record["set"] == sets[int(record["kernel"])]


def test_the_set_changes_while_threads_launch(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("sets-change", tmp_path, extra=_asked(tmp_path))
    assert (result.stdout, result.returncode) == reference("sets-change")
    files = Files(tmp_path / "trace")
    _check(files, any_bench, 60 * (1 + 1 + 3 + 1))
    assert len({int(event["number"]) for event in files.events if event["event"] == "set"}) == 2


def test_graphs_run_the_set_in_force_at_their_launch(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("sets-in-graphs", tmp_path, extra=_asked(tmp_path))
    assert (result.stdout, result.returncode) == reference("sets-in-graphs")
    files = Files(tmp_path / "trace")
    _check(files, any_bench, 12 * 3 * 5)
    # The first three replays, and then three after each change: to the first set, which was in force, the others, …
    expected = [1] * 3 + [number for i in range(11) for number in [i % 3 + 1] * 3]
    written = files.written()
    order = np.argsort(written["submit_ns"], kind="stable")
    assert written["set"][order].tolist() == np.repeat(expected, 5).tolist()


def test_nodes_that_were_set_under_no_probes_run_those_of_later_sets(
    any_bench: Bench, tmp_path: Path, reference: Reference
) -> None:
    """The kernel has no twin of the first set, in which the program's own parameters of each node are kept."""
    asked = _asked(tmp_path)
    write_reasons(tmp_path, Reason.UNSUPPORTED)
    result = any_bench.run("sets-in-set-graphs", tmp_path, extra=asked, twins=False)
    assert (result.stdout, result.returncode) == reference("sets-in-set-graphs")
    files = Files(tmp_path / "trace")
    # Five times of 12 the first set was in force.
    assert files.counted("count_p2") == {"probed": 7 * 3 * 5, "unsupported": 5 * 3 * 5}
    expected = [number for i in range(11) for number in [i % 3 + 1] * 3 if number != 1]
    written = files.written()
    order = np.argsort(written["submit_ns"], kind="stable")
    assert written["set"][order].tolist() == np.repeat(expected, 5).tolist()


@pytest.mark.parametrize(("extra", "number"), [({}, 0), ({"NEUTRINO_ASKS": "1"}, 2)])
def test_only_a_process_that_asks_gets_others(bench: Bench, tmp_path: Path, extra: dict[str, str], number: int) -> None:
    """Else what images hold is not kept."""
    result = bench.run("sets-numbers", tmp_path, extra={**_asked(tmp_path), "NEUTRINO_ASKS": "", **extra})
    assert result.stdout == f"{number} {number}\n0\n"
