"""The record of shipped probes in AMD's kernels: what it says, and that verdicts fail for what is wrong."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.recorded import load
from tests.gcn import corpus_probed
from tests.gcn.packed import pack, unpacked


@pytest.fixture(scope="module")
def recorded() -> Any:
    return load(corpus_probed.RESULTS)


def failing(results: Any) -> list[str]:
    return [text for text, holds in corpus_probed.verdicts(results) if not holds]


def test_the_record_meets_its_bounds(recorded: Any) -> None:
    assert failing(recorded) == []


@pytest.mark.parametrize(("change", "message"), [
    ("wrong", "; 1 are not"), ("lost", "are accounted for"), ("waves", "keep their waves"), ("processor", "processors"),
])  # fmt: skip
def test_verdicts_fail_for_what_is_wrong(recorded: Any, change: str, message: str) -> None:
    results = copy.deepcopy(recorded)
    rows = [row for row in results["rows"] if row["probe"] == "block_sched"]
    row = rows[0]
    if change == "wrong":
        row["wrong"] = ["add: s_branch leads elsewhere"]
    elif change == "lost":
        row["kernels"] -= 1
        row["written"] -= 2
    elif change == "waves":
        for one in rows:
            one["waves"] = 0
    else:
        kept = {row["processor"]}
        results["rows"] = [one for one in results["rows"] if one["probe"] != "block_sched" or one["processor"] in kept]
    found = set(failing(results)) - set(failing(recorded))
    assert any(text.startswith("block_sched") and message in text for text in found), found


def test_kernels_are_chosen_by_their_names_alone() -> None:
    kernels = [f"kernel{number}" for number in range(2000)]
    few, more = (corpus_probed.chosen(kernels, "file", share) for share in (0.1, 0.3))
    assert few == corpus_probed.chosen(kernels, "file", 0.1)
    assert set(few) < set(more)
    assert (150 < len(few) < 250, 500 < len(more) < 700) == (True, True)
    assert few != corpus_probed.chosen(kernels, "other file", 0.1)
    assert corpus_probed.chosen(kernels, "file", 1.0) == kernels
    assert set(corpus_probed.COUNTING) < set(corpus_probed.portable())


def test_what_an_ended_run_has_counted_is_taken_up_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert corpus_probed.read_kept(kept, "sources") == {}
    rows = [["triton", "gfx942", "inst_count", vars(corpus_probed.Tally(kernels=3))]]
    kept.write_text(f'sources\n{json.dumps(["key", rows])}\n{json.dumps(["other", rows])}\n["third", [["triton"')
    found = corpus_probed.read_kept(kept, "sources")
    # The last line was being written.
    assert list(found) == ["key", "other"]
    (row,) = found["key"]
    assert corpus_probed.Tally.of(row[-1]) == corpus_probed.Tally(kernels=3)
    assert corpus_probed.read_kept(kept, "other sources") == {}


def test_what_a_code_object_s_counts_depend_on_is_in_their_key() -> None:
    keys = {corpus_probed.key_of(job) for job in (
        ("clang", "a", b"code", ("inst_count",)), ("triton", "a", b"code", ("inst_count",)),
        ("clang", "b", b"code", ("inst_count",)), ("clang", "a", b"other", ("inst_count",)),
        ("clang", "a", b"code", ("inst_count", "dmat")),
    )}  # fmt: skip
    assert len(keys) == 5


def test_counts_of_parts_are_added() -> None:
    one = corpus_probed.Tally(kernels=2, refused=Counter(registers=1), examples={"registers": "first"})
    examples = {"registers": "second", "map": "x"}
    one.add(corpus_probed.Tally(kernels=3, refused=Counter(registers=2, map=1), examples=examples))
    assert (one.kernels, one.refused) == (5, Counter(registers=3, map=1))
    assert one.examples == {"registers": "first", "map": "x"}


def test_what_is_packed_for_another_machine_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_probed, "has_chosen", lambda part, name, data: data != b"no kernel of it")
    objects = [("clang", "a.hsaco", b"one"), ("xla", "lib.so: 5.20", b"one"), ("wheels", "b", b"no kernel of it")]
    file = tmp_path / "packed"
    # The same code object twice in a part is one.
    pack(corpus_probed.chosen_once([*objects, ("clang", "c.hsaco", b"one")]), file)
    assert list(unpacked(file)) == objects[:2]
