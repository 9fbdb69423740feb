"""``neutrino-probe new``: what it writes is valid, records what a kernel loads, and replaces no file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import EXAMPLE, Probe


@pytest.mark.parametrize("name", ["first.toml", "first.py"])
def test_a_new_probe_works_as_it_is(probe: Probe, name: str, tmp_path: Path) -> None:
    said = probe("new", name)
    assert (said.status, said.out, said.err) == (0, f"{name}: written; neutrino-probe check {name}\n", "")
    text = (tmp_path / name).read_text()
    assert f"neutrino -p {name} COMMAND" in text
    # No errors and no warnings.
    checked = probe("check", name)
    assert (checked.status, checked.err) == (0, "")
    assert checked.out.startswith(f"{name}: valid: 1 probe, 1 map\n")
    tried = probe("try", f"./{name}", EXAMPLE, "-k", "saxpy", "--json")
    assert tried.status == 0, tried.err
    document = json.loads(tried.out)
    (loads,) = document["maps"]
    columns = loads["columns"]
    # Each thread of saxpy loads two floats, or none.
    assert columns["count"].count(1) == columns["count"].count(2) == len(columns["count"]) // 2
    assert set(columns["bytes"]) == {4}
    assert len(columns["address"]) == len(set(columns["address"])) > 0
    bytes_loaded = json.loads(probe("try", "gmem_bytes", EXAMPLE, "-k", "saxpy", "--json").out)["maps"][0]["columns"]
    assert sum(columns["bytes"]) == bytes_loaded["load"][0]


def test_both_forms_record_the_same(probe: Probe) -> None:
    """The two templates are one probe."""
    documents = []
    for each in ("first.toml", "first.py"):
        probe("new", each)
        documents.append(json.loads(probe("try", f"./{each}", EXAMPLE, "-k", "sum", "--json").out))
    one, other = (document["maps"][0]["columns"] for document in documents)
    assert [one[field] for field in ("block", "warp", "lane", "k", "bytes", "count")] == [
        other[field] for field in ("block", "warp", "lane", "k", "bytes", "count")
    ]
    assert one["count"]


def test_a_file_is_never_overwritten(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "kept.toml").write_text("mine")
    said = probe("new", "kept.toml")
    assert (said.status, said.err) == (2, "neutrino-probe: kept.toml exists, and is not overwritten\n")
    assert (tmp_path / "kept.toml").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("first", "first: name it first.toml for a probe in assembly, or first.py for Python"),
        ("probe.txt", "name it probe.txt.toml"),
        ("absent/p.toml", "No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_named(probe: Probe, name: str, words: str, tmp_path: Path) -> None:
    said = probe("new", name)
    assert said.status == 2
    assert words in said.err
    assert not list(tmp_path.iterdir())
