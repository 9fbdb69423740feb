"""--launches, --every, --device, --duration: exactly the chosen launches are probed, and the others cost nothing."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.reasons import CHOICE_OPTIONS, Reason
from neutrino.tracing import Trace

from .conftest import IMAGE, POOL_LEAST, RUN_KEY, Bench, Reference, in_turn, write_reasons
from .trace_files import Files

LARGE = {"NEUTRINO_POOL": str(64 << 20)}
CHOICES = [
    {"NEUTRINO_LAUNCHES": "0:1"},
    {"NEUTRINO_LAUNCHES": "3:8"},
    {"NEUTRINO_LAUNCHES": "7:"},
    {"NEUTRINO_LAUNCHES": "15:4000"},
    {"NEUTRINO_EVERY": "3"},
    {"NEUTRINO_EVERY": "7"},
    {"NEUTRINO_LAUNCHES": "4:17", "NEUTRINO_EVERY": "5"},
]


def ids(choice: dict[str, str]) -> str:
    return " ".join(choice.values())


def chosen(choice: dict[str, str], numbers: Iterable[int]) -> list[int]:
    """Those of the numbers that are chosen."""
    first, _, end = choice.get("NEUTRINO_LAUNCHES", "0:").partition(":")
    every = int(choice.get("NEUTRINO_EVERY", "1"))
    return [n for n in numbers if int(first) <= n < int(end or 10**9) and n % every == 0]


def check_counts(counted: dict[str, int], choice: dict[str, str], launches: int, reason: Reason = Reason.PROBED) -> int:
    """Of so many launches of a kernel, the chosen ones have that reason. Returns how many."""
    count = len(chosen(choice, range(launches)))
    expected = {reason.word: count, Reason.NOT_SELECTED.word: launches - count}
    assert counted == {word: number for word, number in expected.items() if number}
    return count


def tickets_of(sizes: Iterable[int], wanted: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The tickets that launches take, by their numbers; sizes: warps of all launches in order."""
    warps = list(sizes)
    begins = np.concatenate([[0], np.cumsum(warps)])
    parts = [np.arange(begins[n], begins[n + 1]) for n in wanted]
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.uint64)


@pytest.mark.parametrize("choice", CHOICES, ids=ids)
def test_just_the_chosen_launches_are_probed(
    bench: Bench, tmp_path: Path, reference: Reference, choice: dict[str, str]
) -> None:
    result = bench.run("plain", tmp_path, extra=choice)
    assert (result.stdout, result.returncode) == reference("plain")
    files = Files(tmp_path / "trace")
    check_counts(files.counted("count_p2"), choice, 20)
    expected = tickets_of([6] * 20, chosen(choice, range(20)))
    assert list(files.check_tickets(bench.maps)) == list(expected)


@pytest.mark.parametrize("choice", CHOICES, ids=ids)
def test_numbers_are_of_each_kernel(bench: Bench, tmp_path: Path, reference: Reference, choice: dict[str, str]) -> None:
    result = bench.run("mixture", tmp_path, extra=choice | LARGE)
    assert (result.stdout, result.returncode) == reference("mixture")
    files = Files(tmp_path / "trace")
    launches = sorted(int(row.sum()) for row in files.counters if row.any())
    assert launches == [1, 2, 3, 4, 7, 1200]
    for row in files.counters:
        if row.any():
            check_counts({r.word: int(row[r]) for r in Reason if row[r]}, choice, int(row.sum()))


@in_turn(
    "choice", [(choice,) for choice in (*CHOICES[4:], {"NEUTRINO_LAUNCHES": "100:301", "NEUTRINO_EVERY": "2"})]
)
def test_threads_share_the_numbers(any_bench: Bench, tmp_path: Path, choice: dict[str, str]) -> None:
    any_bench.run("threads", tmp_path, extra=choice | LARGE)
    files = Files(tmp_path / "trace")
    count = check_counts(files.counted("count_p2"), choice, 600)
    assert len(files.written()) == count
    files.check_tickets(any_bench.maps)


@pytest.mark.parametrize("reason", [Reason.NO_PTX, Reason.VENDOR])
def test_what_is_not_probed_counts_if_it_was_chosen(bench: Bench, tmp_path: Path, reason: Reason) -> None:
    write_reasons(tmp_path, reason)
    choice = {"NEUTRINO_LAUNCHES": "2:9"}
    bench.run("plain", tmp_path, twins=False, extra=choice)
    assert check_counts(Files(tmp_path / "trace").counted("count_p2"), choice, 20, reason) == 7


def test_forms_of_launches_are_numbered_alike(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    bench.run("forms", tmp_path / "all")
    launches = sum(Files(tmp_path / "all" / "trace").counted("count_p2").values())
    choice = {"NEUTRINO_EVERY": "2"}
    result = bench.run("forms", tmp_path / "some", extra=choice)
    assert (result.stdout, result.returncode) == reference("forms")
    check_counts(Files(tmp_path / "some" / "trace").counted("count_p2"), choice, launches)


# --- graphs ---


def replays_order() -> Iterator[int]:
    """The warps of the launches of the scenario graph-replays, in order."""
    for replay in range(100):
        yield from (2, 4, 6, 8, 10)
        if replay % 10 == 0:
            yield 3


@in_turn(
    "choice",
    [(choice,) for choice in (
        *CHOICES[1:5], {"NEUTRINO_EVERY": "2"}, {"NEUTRINO_LAUNCHES": "100:333", "NEUTRINO_EVERY": "11"},
    )],
)  # fmt: skip
def test_each_kernel_of_each_replay_is_a_launch(
    any_bench: Bench, tmp_path: Path, reference: Reference, choice: dict[str, str]
) -> None:
    result = any_bench.run("graph-replays", tmp_path, extra=choice | LARGE)
    assert (result.stdout, result.returncode) == reference("graph-replays")
    files = Files(tmp_path / "trace")
    count = check_counts(files.counted("count_p2"), choice, 510)
    assert len(files.written()) == count
    expected = tickets_of(replays_order(), chosen(choice, range(510)))
    assert list(files.check_tickets(any_bench.maps)) == list(expected)


@in_turn(
    "scenario, launches",
    [
        ("capture", 18 + 3 * 5 * 3), ("fork-and-join", 12), ("capture-first", 6), ("nodes", 4), ("graph-streams", 276),
        ("graph-threads", 960), ("graph-sizes", 200), ("graph-handed", 400), ("graph-captured-end", 6),
        ("capture-amid", 440), ("graph-contexts", 15),
    ],
)  # fmt: skip
def test_graphs_compute_what_they_do_without_a_choice(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str, launches: int
) -> None:
    choice = {"NEUTRINO_LAUNCHES": "2:150", "NEUTRINO_EVERY": "3"}
    result = any_bench.run(scenario, tmp_path, extra=choice | LARGE)
    assert (result.stdout, result.returncode) == reference(scenario)
    files = Files(tmp_path / "trace")
    count = check_counts(files.counted("count_p2"), choice, launches)
    assert np.isin(files.written()["kernel"], files.kernels("count_p2")).sum() == count
    files.check_tickets(any_bench.maps)


@in_turn(
    "scenario, launches, choice",
    [
        ("graph-changes", 82 * 4, {"NEUTRINO_EVERY": "2"}), ("graph-changes", 82 * 4, {"NEUTRINO_LAUNCHES": "1:40"}),
        ("graph-disabled", 4, {"NEUTRINO_LAUNCHES": "1:40"}), ("graph-disabled", 4, {"NEUTRINO_EVERY": "2"}),
    ],
)  # fmt: skip
def test_updated_graphs_run_originals_and_count_what_was_chosen(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str, launches: int, choice: dict[str, str]
) -> None:
    result = any_bench.run(scenario, tmp_path, extra=choice | LARGE)
    assert (result.stdout, result.returncode) == reference(scenario)
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    assert len(files.written()) == counted["probed"] > 0
    assert counted["graph"] > 0
    assert counted["probed"] + counted["graph"] == len(chosen(choice, range(launches)))
    assert sum(counted.values()) == launches
    files.check_tickets(any_bench.maps)


def test_chosen_replays_without_room(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    choice = {"NEUTRINO_EVERY": "2"}
    result = any_bench.run("graph-crowd", tmp_path, extra=choice | {"NEUTRINO_POOL": str(POOL_LEAST)})
    assert (result.stdout, result.returncode) == reference("graph-crowd")
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    assert counted["probed"] + counted["pool-full"] == len(chosen(choice, range(801 * 3)))
    assert sum(counted.values()) == 801 * 3
    assert counted["pool-full"] > 0
    files.check_tickets(any_bench.maps)


# --- time and place ---


def test_probing_ends_after_the_duration(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("lasting", tmp_path, extra={"HOST_COUNT": "25", "NEUTRINO_DURATION": "1800000"})
    alone = any_bench.run("lasting", tmp_path, extra={"HOST_COUNT": "25"}, hook=False)
    assert (result.stdout, result.returncode) == (alone.stdout, 0)
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    # With the last: 3 launches and a replay of the other image's kernel, and a replay.
    assert counted == {"probed": 25 * 3, "not-selected": 25 * 3 + 3 + 2 + 2}
    assert len(files.written()) == 25 * 3
    files.check_tickets(any_bench.maps)
    begin = next(event["monotonic_ns"] for event in files.events if event["event"] == "process")
    assert (files.written()["submit_ns"] <= begin + 1800 * 10**9).all()
    first, other = (event for event in files.events if event["event"] == "image")
    assert "cached" in first
    # Twins of what is loaded later are not even asked for.
    assert "cached" not in other
    # Of the one all bytes are hashed, of the other the beginning.
    own = RUN_KEY + first["arch"].encode() + IMAGE
    assert (first["size"], first["settings"], first["key"]) == (len(IMAGE), RUN_KEY.hex(), sha256(own).hexdigest())
    changed = struct.pack("<Q", len(IMAGE)) + IMAGE[:-1] + bytes([IMAGE[-1] ^ 1])
    assert (other["begins"], "key" in other) == (sha256(changed).hexdigest(), False)


@in_turn("scenario", [("plain",), ("variables",), ("graph-replays",), ("forms",), ("names",)])
def test_other_devices_get_neither_twins_nor_memory(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str
) -> None:
    counts = tmp_path / "counts.json"
    result = any_bench.run(scenario, tmp_path, extra={"NEUTRINO_ONLY_DEVICES": "1,3"}, device={"count": counts})
    assert (result.stdout, result.returncode) == reference(scenario)
    files = Files(tmp_path / "trace")
    launches = int(files.counters.sum())
    assert launches == int(files.counters[:, Reason.NOT_SELECTED].sum()) > 0
    assert (tmp_path / "trace").exists()
    (path,) = (tmp_path / "trace").iterdir()
    assert Trace(path).coverage.sentence == (
        f"nothing was probed: none of {launches} launches was chosen ({CHOICE_OPTIONS})"
    )
    said = f"neutrino: {Trace(path).coverage.sentence}; the program has device 0 only\n"
    assert said in result.stderr
    alone = tmp_path / "alone.json"
    any_bench.run(scenario, tmp_path, hook=False, device={"count": alone})
    called, own = (Counter(json.loads(file.read_text())["program"]) for file in (counts, alone))
    called.update(Counter(json.loads(counts.read_text())["hook"]))
    for name in ("cuMemAlloc_v2", "cuModuleLoadData", "cuLibraryLoadData", "cuStreamCreate", "cuEventCreate"):
        assert called[name] == own[name], name


def test_the_device_that_was_named_is_probed(bench: Bench, tmp_path: Path) -> None:
    bench.run("names", tmp_path, extra={"NEUTRINO_ONLY_DEVICES": "0"})
    assert Files(tmp_path / "trace").counted("count_p2") == {"probed": 15}


# --- cost ---


def _hook_calls(bench: Bench, home: Path, scenario: str, launches: int) -> Counter[str]:
    counts = home / "counts.json"
    bench.run(
        scenario, home, device={"count": counts},
        extra={"HOST_LAUNCHES": str(launches), "NEUTRINO_LAUNCHES": "3:5", "NEUTRINO_EVERY": "2"} | LARGE,
    )  # fmt: skip
    assert Files(home / "trace").counted("count_p2")["probed"] == 1
    return Counter(json.loads(counts.read_text())["hook"])


def test_a_launch_that_is_not_chosen_is_at_most_one_call(bench: Bench, tmp_path: Path) -> None:
    """The hook jumps to the driver, which returns to the program, if the compiler made it so."""
    added = _hook_calls(bench, tmp_path / "b", "many", 1024 + 64) - _hook_calls(bench, tmp_path / "a", "many", 64)
    assert added.pop("cuLaunchKernel", 0) in (0, 1024)
    # The drain thread's, once more or less as it happens to wake.
    assert added.total() < 8, added


def test_a_replay_that_is_not_chosen_writes_nothing(bench: Bench, tmp_path: Path) -> None:
    calls = [_hook_calls(bench, tmp_path / str(count), "graph-many", count) for count in (64, 1088)]
    added = calls[1] - calls[0]
    # Waits of the program's own.
    del added["cuStreamSynchronize"], added["cuCtxGetCurrent"], added["cuCtxGetId"]
    assert added == {"cuGraphLaunch": 1024, "cuStreamIsCapturing": 1024}


# --- all at once ---


@in_turn(
    "seed, choice",
    [
        (1, {"NEUTRINO_EVERY": "3"}), (2, {"NEUTRINO_EVERY": "3"}),
        (2, {"NEUTRINO_LAUNCHES": "5:60", "NEUTRINO_EVERY": "2"}),
        (1, {"NEUTRINO_LAUNCHES": "5:60", "NEUTRINO_EVERY": "2"}),
    ],
)  # fmt: skip
def test_a_program_of_random_calls(
    any_bench: Bench, tmp_path: Path, reference: Reference, seed: int, choice: dict[str, str]
) -> None:
    arguments, device = (str(seed), "3", "120"), {"seed": seed, "delay": 200}
    extra = choice | {"NEUTRINO_POOL": str(POOL_LEAST)}
    result = any_bench.run("random", tmp_path, *arguments, device=device, extra=extra)
    assert (result.stdout, result.returncode) == reference("random", *arguments, device=device)
    files = Files(tmp_path / "trace")
    # Row 0 is of functions that the hook has not seen obtained, which have no numbers.
    for row in files.counters[1:]:
        launches = int(row.sum())
        assert launches - int(row[Reason.NOT_SELECTED]) == len(chosen(choice, range(launches)))
    assert int(files.counters[:, Reason.PROBED].sum()) == len(files.written()) > 0
    files.check_tickets(any_bench.maps)
