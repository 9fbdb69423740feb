"""neutrino-report --where and its companions on traces that are hostile or damaged: an error in words, or a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.cli.report import main
from neutrino.tracing import Trace
from tests.tracing.trace_writer import TraceWriter, fill_regions, make_map

MAP = make_map("M", "array", "thread", {"addr": "u64", "site": "u16", "part": "f32"}, cap=2)
FORMS = (
    ["--records"], ["--csv"], ["--json"], ["--where", "site < 3 and part > 0", "--sort", "-addr"],
    ["--group-by", "line"], ["--group-by", "site", "--csv"], ["--group-by", "addr >> 7", "--json"],
    ["--launch", "0:2", "--rows", "3"],
)  # fmt: skip


def write(path: Path) -> Path:
    writer = TraceWriter(path)
    sites = [{"probe": "p", "tracepoint": "ld", "line": 7, "instruction": "ld;", "site": 1, "source": "a.cu:5"}]
    writer.kernel(1, "k", maps=[MAP], sites=sites)
    random = np.random.default_rng(1)
    for _ in range(3):
        values = random.integers(0, 256, (64 * 2, MAP.size), np.uint8).reshape(-1).view(MAP.dtype)
        regions = fill_regions([MAP], 1, {"M": values, "M.counts": random.integers(0, 4, 64)}, blocks=2)
        writer.launch(1, (2, 1, 1), (32, 1, 1), regions)
    return writer.write()


def test_no_name_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\u202e\x9b31m\r\n"
    path = write(tmp_path / "t")
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event["event"] == "kernel":
            event["name"] += hostile
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    manifest = path / "kernel/1/manifest.json"
    document = json.loads(manifest.read_text())
    document["demangled"] += hostile
    for field in document["maps"][0]["fields"]:
        if field["name"] == "part":
            field["name"] += hostile
    for site in document["sites"]:
        site["source"] += hostile
        site["instruction"] += hostile
    manifest.write_text(json.dumps(document))
    forms = (*FORMS[:3], *FORMS[4:7], ["--group-by", "site", "--wide"], ["--where", "nothing"], ["--where", hostile])
    for form in forms:
        status = main([str(path), *form])
        shown = capsys.readouterr()
        assert status == (2 if "--where" in form else 0)
        assert not {"\x1b", "\u202e", "\x9b"} & set(shown.out + shown.err)
        assert shown.out.count("\r") == (shown.out.count("\n") if "--csv" in form else 0)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_said_in_words(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes of any file are changed, or its end is cut off."""
    path = write(tmp_path_factory.mktemp("damaged") / "t")
    name = data.draw(st.sampled_from(["launches.bin", "result/1.bin", "kernel/1/manifest.json", "events.jsonl"]))
    content = bytearray((path / name).read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    (path / name).write_bytes(content)
    form = data.draw(st.sampled_from(FORMS))
    assert main([str(path), "--map", "M", *form]) in (0, 2, 3)


def test_records_before_the_damage_are_not_taken_for_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t")
    offset = int(Trace(path).launches[2]["data_offset"])
    content = bytearray((path / "result/1.bin").read_bytes())
    content[offset : offset + 4] = b"none"
    (path / "result/1.bin").write_bytes(content)
    for form in FORMS[:7]:
        assert main([str(path), *form]) == 2
        assert "the magic in the frame of launch 2 is not what launches.bin says" in capsys.readouterr().err
    assert main([str(path), "--launch", ":2", "--csv"]) == 0
