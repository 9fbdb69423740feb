"""The bench of tracepoints in functions, at lines and between lanes: it runs on the embedded device, its verdicts
notice what is wrong, and the recorded run is judged again."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import placed_verdicts
from bench.placed import PROBES, pack
from bench.placed_lanes import collectives
from bench.placed_model import Kernels, lines, sad
from bench.placed_records import unpack

Json = Any
Change = Callable[[Json], None]
ROOT = Path(__file__).resolve().parents[2]


def test_probes_name_the_lines_that_they_mean() -> None:
    numbers = lines()
    named = []
    for path in sorted(PROBES.glob("placed_*.toml")):
        for position, words in re.findall(r'^position = "(.*placed\.cu.*)"(.*)$', path.read_text(), re.MULTILINE):
            words = words.removeprefix(" # ")
            found = [int(number) for number in re.findall(r"\d+", position)]
            assert found == [numbers[word] for word in words.split()], f"{path.name}: {position}"
            named += words.split()
    assert {"FOLDED", "LOOP", "FIRST", "LAST", "ONCE", "WHOLE", "QUARTER", "TURN", "AGAIN"} == set(named)


def test_the_model_by_hand() -> None:
    """A thread whose calls can be followed on paper."""
    kernels = Kernels(np.arange(256, dtype=np.uint32))
    thread = kernels.run("calls", 15, 0)
    # weigh(15, 7): |15-15|+0, |0-16|+1, |17-17|+2, |2-18|+3, |19-19|+4, |4-20|+5, |21-21|+6.
    assert [row[3] for row in thread.sums[:7]] == [0, 17, 2, 19, 4, 21, 6]
    # 15 is a multiple of 3: weigh(6, 3) from the table's 6, 7, 8; and of 5: weigh(0x55, 3) and weigh(16, 2).
    assert [index for index, _, _ in thread.loads] == [*range(15, 22), 6, 7, 8, 85, 86, 87, 16, 17]
    assert [entry for _, _, entry in thread.loads] == 7 * [1] + 3 * [2] + 3 * [3] + 2 * [4]
    assert thread.entered == {"weigh": 4, "twice": 1, "depth": 0}
    second, third, fourth = sad(sad(sad(6, 6, 0), 7, 1), 8, 2), sad(sad(sad(85, 85, 0), 86, 1), 87, 2), 18
    assert thread.out == (6 ^ second) + third + 7 * fourth


def test_collectives_by_hand() -> None:
    """Three lanes, of which two have the same value."""
    values = {1: 6, 4: 3, 5: 6}
    of_four = collectives(0b110010, values, 4)
    assert of_four["any"] == 0b010000
    assert (of_four["all"], of_four["alike"], of_four["ballot"], of_four["votes"]) == (0, 0, 0b010000, 2)
    assert (of_four["add"], of_four["least"], of_four["greatest"]) == (15, 3, 6)
    assert (of_four["signed_add"], of_four["signed_least"], of_four["signed_greatest"]) == (3, 0xFFFFFFFF, 2)
    assert (of_four["and"], of_four["or"], of_four["xor"]) == (2, 7, 3)
    assert (of_four["first"], of_four["up"], of_four["down"], of_four["other"]) == (1 << 3 | 6, None, None, None)
    of_five = collectives(0b110010, values, 5)
    assert (of_five["any"], of_five["up"]) == (0b100010, 4 << 3 | 3)
    assert (of_five["other"], of_five["moved"]) == (1 << 3 | 6, None)


def _launch(case: str, number: int = 0, trace: int = 0) -> Callable[[Json], Json]:
    return lambda result: result["runs"][case]["traces"][trace]["launches"][number]


def _add(case: str, name: str, field: str, delta: int = 1, number: int = 0) -> Change:
    """One field of a sum."""

    def change(result: Json) -> None:
        _launch(case, number)(result)["maps"][name][field] += delta

    return change


def _flip(case: str, name: str, field: str, record: int = 0, bit: int = 0, number: int = 0) -> Change:
    """One bit of one record."""

    def change(result: Json) -> None:
        row = _launch(case, number)(result)["maps"][name]
        records = np.frombuffer(unpack(row["records"]), np.dtype([tuple(part) for part in row["fields"]])).copy()
        records[field][record] ^= records[field].dtype.type(1 << bit)
        row["records"] = pack(records)

    return change


def _count(case: str, name: str) -> Change:
    """One save more than there were, in the first slot that has any."""

    def change(result: Json) -> None:
        row = _launch(case)(result)["maps"][name]
        counts = np.frombuffer(unpack(row["counts"]), "<u4").copy()
        counts[np.flatnonzero(counts)[0]] += 1
        row["counts"] = pack(counts)

    return change


def _split(result: Json) -> None:
    """The first warp at WHOLE as if it had come in two halves, in every field alike."""
    row = _launch("line_lanes")(result)["maps"]["AtLine"]
    records = np.frombuffer(unpack(row["records"]), np.dtype([tuple(part) for part in row["fields"]])).copy()
    first = records[:32]
    for half, mask in ((slice(0, 16), 0xFFFF), (slice(16, 32), 0xFFFF0000)):
        for field in ("lanes", "ballot", "any"):
            first[field][half] = mask
    row["records"] = pack(records)


def _set(*path: str | int, to: Json) -> Change:
    def change(result: Json) -> None:
        for step in path[:-1]:
            result = result[step]
        result[path[-1]] = to

    return change


def _swap_launches(result: Json) -> None:
    rows = result["runs"]["counts"]["traces"][0]["launches"]
    rows[0]["maps"], rows[1]["maps"] = rows[1]["maps"], rows[0]["maps"]


def _mix_contexts(result: Json) -> None:
    for trace in result["runs"]["contexts"]["traces"]:
        for row in trace["launches"]:
            row["context"] = 0


def _into_one_trace(result: Json) -> None:
    traces = result["runs"]["contexts"]["traces"]
    (child,) = (trace for trace in traces if trace["pid"] == result["runs"]["contexts"]["child"]["pid"])
    traces.remove(child)
    traces[0]["launches"] += child["launches"]


def _of_other_devices(result: Json) -> None:
    result["runs"]["contexts"]["program"]["devices"] = 2
    for trace in result["runs"]["contexts"]["traces"]:
        for row in trace["launches"]:
            row["device"] = 0


def _on_two_devices(result: Json) -> Json:
    """As if the two contexts had been of two GPUs."""
    result = copy.deepcopy(result)
    result["runs"]["contexts"]["program"]["devices"] = 2
    for trace in result["runs"]["contexts"]["traces"]:
        for row in trace["launches"]:
            row["device"] = row["context"]
    return result


def faults(result: Json) -> Iterator[tuple[str, str, Change]]:
    """Which verdicts (the begin of their names), what is wrong, and how it comes about."""
    yield "provenance", "no tree", _set("tree", to="")
    yield "outputs", "a plain output", _set("plain", "launches", 3, "sha256", to="0" * 64)
    for case in result["runs"]:
        if case != "contexts":
            output = ("runs", case, "program", "launches", 0, "sha256")
            yield f"{case}: outputs", f"{case}: output", _set(*output, to="0" * 64)
            yield f"{case}: outputs", f"{case}: exit", _set("runs", case, "exit", to=1)
            yield f"{case}: ", f"{case}: no trace", _set("runs", case, "traces", to=[])
    for case in ("counts", "contexts"):
        yield case, f"{case}: cut off", _set("runs", case, "traces", 0, "complete", to=False)
        yield case, f"{case}: unprobed", _set("runs", case, "traces", 0, "kernels", 0, "launches", to={"numerics": 2})
        launched = ("runs", case, "traces", 0, "kernels", 0, "launches")
        yield case, f"{case}: one launch more", _set(*launched, "probed", to=9)
        yield case, f"{case}: no record", _set("runs", case, "traces", 0, "launches", to=[])
    yield "counts: sums", "launches swapped", _swap_launches
    for field in _launch("counts")(result)["maps"]["Counts"]:
        yield "counts: sums", f"Counts.{field}", _add("counts", "Counts", field)
    for field in _launch("counts")(result)["maps"]["Values"]:
        yield "counts: sums", f"Values.{field}", _add("counts", "Values", field, 4, 2)
    if result["runs"]["recursion"]["traces"][0]["launches"]:
        yield "recursion: recursion", "Depth.left", _add("recursion", "Depth", "left", -1, 1)
    other = {"name": "descend", "reason": "unsupported", "detail": "?", "launches": {"unsupported": 2}, "sites": []}
    yield "recursion: recursion", "another reason", _set("runs", "recursion", "traces", 0, "kernels", to=[other])
    for name in ("Lines", "Once"):
        for field in _launch("lines")(result)["maps"][name]:
            yield "lines: lines", f"{name}.{field}", _add("lines", name, field, -1)
    levels = {"Loads": "each thread", "Sums": "each thread", "Warps": "each warp", "Blocks": "each block"}
    for name, title in levels.items():
        for field, *_ in _launch("records")(result)["maps"][name]["fields"]:
            yield f"records: {title}", f"{name}.{field}", _flip("records", name, field, 7, 3, 1)
        yield f"records: {title}", f"{name}: count", _count("records", name)
        dropped = ("runs", "records", "traces", 0, "launches", 0, "maps", name, "dropped")
        yield f"records: {title}", f"{name}: dropped", _set(*dropped, to=1)
    yield "records: each thread", "Ends", _flip("records", "Ends", "loads")
    dropped = ("runs", "records", "traces", 0, "launches", 0, "maps", "Ends", "dropped")
    yield "records: each thread", "Ends: dropped", _set(*dropped, to=1)
    yield "growing: a", "value", _flip("growing", "Bursts", "value", 99, 31, 2)
    yield "growing: a", "count", _count("growing", "Bursts")
    yield "growing: a", "first cap", _set("runs", "growing", "traces", 0, "launches", 0, "maps", "Bursts", "cap", to=72)
    yield "growing: a", "third as first", lambda result: result["runs"]["growing"]["traces"][0]["launches"].__setitem__(
        2, result["runs"]["growing"]["traces"][0]["launches"][0]
    )
    for case, names in (("guards", ("Ran", "RanLoad")), ("guards_reaching", ("Came", "CameLoad"))):
        for name in names:
            for field, *_ in _launch(case)(result)["maps"][name]["fields"]:
                yield f"{case}: lanes", f"{name}.{field}", _flip(case, name, field, 9)
    for field, *_ in _launch("lanes")(result)["maps"]["Lanes"]["fields"]:
        yield "lanes: every", f"Lanes.{field}", _flip("lanes", "Lanes", field, 11)
    for field, *_ in _launch("line_lanes")(result)["maps"]["AtLine"]["fields"]:
        yield "line_lanes: lanes", f"AtLine.{field}", _flip("line_lanes", "AtLine", field, 5)
    yield "line_lanes: lanes", "a warp in halves", _split
    yield "contexts: records", "one context", _mix_contexts
    yield "contexts: records", "one trace", _into_one_trace
    yield "contexts: two", "another device", _of_other_devices
    yield "child: records", "one trace", _into_one_trace
    yield "child: records", "another child", _set("runs", "contexts", "program", "child", "pid", to=1)


def unnoticed(result: Json) -> list[str]:
    """Faults that the verdicts let pass; each is judged by the verdicts that are to see it."""
    passed = []
    for begins, what, change in faults(result):
        wrong = copy.deepcopy(result)
        change(wrong)
        judged = placed_verdicts.judge(wrong, begins)
        if not judged or all(verdict.good for verdict in judged):
            passed.append(what)
    return passed


def test_the_embedded_device(tmp_path: Path) -> None:
    """All of it, as on a GPU but for nvcc and what it links; then with one thing wrong at a time."""
    if shutil.which("clang-19") is None:
        pytest.skip("clang-19 is not installed")
    command = [sys.executable, "-m", "bench.placed", "--device", "embedded", "--jobs", "4", "--budget", "150", "--out",
               str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + (tmp_path / "placed_diagnostics.txt").read_text()
    result = json.loads((tmp_path / "placed_embedded.json").read_text())
    assert [verdict for verdict in placed_verdicts.judge(result) if not verdict.good] == []
    assert unnoticed(result) == []
    (verdict,) = placed_verdicts.judge(_on_two_devices(result), "contexts: two")
    assert verdict.good, verdict.figure


def _linked() -> Json:
    """What a run of linked.cu leaves, on a machine with two launches of each kernel."""
    program = {"checks": "ok", "outputs": ["a", "b"]}
    unprobed, probed = (
        [{"name": name, "reason": reason, "detail": "", "launches": {reason: 2}} for name in ("shift", "scale")]
        for reason in ("no-ptx", "probed")
    )
    called = {"entered": 25581, "left": 25581, "threads": 25600}
    rows = [{"kernel": "shift", "maps": {"Linked": called}},
            {"kernel": "scale", "maps": {"Linked": {"entered": 0, "left": 0, "threads": 25600}}}]  # fmt: skip
    return {
        "patch": 0, "plain": {"program": program},
        "command": {"exit": 0, "program": program, "traces": [{"kernels": unprobed, "launches": []}]},
        "patched": {"exit": 0, "program": program, "traces": [{"kernels": probed, "launches": [*rows, *rows]}]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("patch",), 3),
        (("patched", "program"), {"checks": "ok", "outputs": ["a", "c"]}),
        (("command", "traces"), []),
        (("command", "traces", 0, "kernels", 0, "reason"), "variant"),
        (("patched", "traces", 0, "kernels", 0, "launches"), {"numerics": 2}),
        (("patched", "traces", 0, "launches", 2, "maps", "Linked", "left"), 25580),
        (("patched", "traces", 0, "launches"), []),
    ],
)
def test_what_is_wrong_of_linked_code_is_noticed(path: tuple[str | int, ...], to: Json) -> None:
    result = {"device": "a GPU", "linked": _linked()}
    (verdict,) = placed_verdicts.judge(result, "linked")
    assert verdict.good, verdict.figure
    wrong = copy.deepcopy(result)
    _set("linked", *path, to=to)(wrong)
    (verdict,) = placed_verdicts.judge(wrong, "linked")
    assert not verdict.good


@pytest.mark.skipif(not placed_verdicts.RESULTS.exists(), reason="no GPU run has been committed yet")
def test_recorded_run() -> None:
    result = json.loads(placed_verdicts.RESULTS.read_text())
    assert "H200" in result["device"]
    assert [verdict for verdict in placed_verdicts.judge(result) if not verdict.good] == []
    assert unnoticed(result) == []
