"""Traces with any damage, in any two files: a message and all that is readable, in every form; and pages that draw."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neutrino.cli.report import main
from tests.page.browser import chromium, opened
from tests.page.made_pages import HOSTILE, probed_patterns

FORMS = {
    "html": ["--html", "OUT"], "perfetto": ["--perfetto", "OUT"], "iket": ["--iket", "OUT"],
    "terminal": [], "summary": ["--summary"], "json": ["--json"], "xml": ["--xml"],
}  # fmt: skip
ODD: tuple[Any, ...] = (None, True, -1, 1 << 70, 1e308, "", HOSTILE, [], {}, [1, "x"], {"a": [1]}, "\ud800\x1b[2J")
CONTROLS = set(map(chr, (*range(9), *range(11, 32), 127, *range(128, 160), 0x202E, 0x2066)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return probed_patterns(tmp_path_factory.mktemp("whole") / "trace")


def members(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all members of a JSON document."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from members(value[key], (*path, key))


def damage(data: st.DataObject, path: Path) -> None:
    """Change a file: cut it off, as one that is still written to; flip bytes; or put something odd into a document."""
    contents = bytearray(path.read_bytes())
    ways = ["cut", "flip"] + 3 * ["odd"] * (path.suffix in (".json", ".jsonl"))
    way = data.draw(st.sampled_from(ways), label=f"{path.name}: how")
    if way == "cut":
        path.write_bytes(contents[: data.draw(st.integers(0, len(contents)), label="length")])
    elif way == "flip" and contents:
        for at in data.draw(st.lists(st.integers(0, len(contents) - 1), min_size=1, max_size=9), label="at"):
            contents[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0xFF]), label="byte")
        path.write_bytes(contents)
    elif way == "odd":
        texts = contents.decode().split("\n") if path.suffix == ".jsonl" else [contents.decode()]
        number = data.draw(st.sampled_from([at for at, text in enumerate(texts) if text.strip()]), label="line")
        document = json.loads(texts[number])
        *way_to, last = data.draw(st.sampled_from(list(members(document))), label="member")
        place = document
        for key in way_to:
            place = place[key]
        place[last] = data.draw(st.sampled_from(ODD), label="value")
        texts[number] = json.dumps(document)
        path.write_text("\n".join(texts))


def copied(data: st.DataObject, whole: Path, folder: Path) -> Path:
    """A copy of the trace with damage in one file or two."""
    trace = folder / "trace"
    shutil.copytree(whole, trace)
    files = sorted(path for path in trace.rglob("*") if path.is_file() and path.suffix != ".py")
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True), label="files"):
        damage(data, path)
    return trace


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_form_ends_with_a_message(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    trace = copied(data, whole, folder)
    capsys.readouterr()
    # Some of them for each: reading costs most, and is the same for all.
    for name in data.draw(st.lists(st.sampled_from(sorted(FORMS)), min_size=4, max_size=4, unique=True), label="forms"):
        options = FORMS[name]
        status = main([str(trace), *(str(folder / name) if option == "OUT" else option for option in options)])
        out, err = capsys.readouterr()
        assert status in (0, 2, 3), name
        assert "Traceback" not in err, name
        assert status != 2 or err, name
        # Nothing of a trace steers a terminal.
        assert not CONTROLS & set(err), name
        if name in ("terminal", "summary"):
            assert not CONTROLS & set(out), name
        if name == "json" and out:
            json.loads(out)
        if name == "xml" and out:
            ElementTree.fromstring(out)
    shutil.rmtree(folder)


def test_pages_of_damaged_traces_draw_all_their_views(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What no view expects is in its data, and none fails."""
    with chromium() as browser:

        @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
        @given(data=st.data())
        def check(data: st.DataObject) -> None:
            folder = tmp_path_factory.mktemp("drawn")
            trace = copied(data, whole, folder)
            if main([str(trace), "--html", str(folder / "page.html")]) not in (0, 3):
                return
            if not (folder / "page.html").exists():
                return
            with opened(browser, folder / "page.html", 400) as found:
                for view in found.views():
                    found.go(view)
                    assert "cannot be drawn" not in found.page.inner_text("main"), view
                assert found.said == []
            shutil.rmtree(folder)

        check()
