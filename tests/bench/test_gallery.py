"""The gallery: its traces are those that their hashes say, its pictures are small, its page has every view."""

from __future__ import annotations

import hashlib
import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gallery import (
    MOST_BYTES,
    MOST_TRACE_BYTES,
    PAGE,
    RECIPES,
    RECORD,
    TRACES,
    WORKLOADS,
    archived,
    packed,
    source_hash,
    table,
    unpack,
)
from bench.gallery_pictures import MOST_BYTES as MOST_OF_PICTURES
from bench.gallery_pictures import MOST_PICTURE_BYTES, PICTURES, SHOWN, draw
from neutrino.page.registry import VIEWS
from tests.page.browser import chromium

ROWS = json.loads((TRACES / RECORD).read_text())["traces"]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_trace_is_that_of_its_recipe(name: str, tmp_path: Path) -> None:
    """And it is archived as the same bytes again, from what is unpacked."""
    (recipe,) = (recipe for recipe in RECIPES if recipe.name == name)
    data = (TRACES / f"{name}.tar.xz").read_bytes()
    row = ROWS[name]
    assert row["sha256"] == hashlib.sha256(data).hexdigest()
    assert row["bytes"] == len(data) <= MOST_TRACE_BYTES
    assert row["commands"] == recipe.shown()
    assert row["source_sha256"] == source_hash((WORKLOADS / recipe.source).read_bytes(), recipe.source)
    assert archived(unpack(name, tmp_path)) == lzma.decompress(data)


def test_a_trace_is_packed_into_the_same_bytes_again(tmp_path: Path) -> None:
    name = min(ROWS, key=lambda name: int(ROWS[name]["bytes"]))
    assert packed(unpack(name, tmp_path)) == (TRACES / f"{name}.tar.xz").read_bytes()


def test_traces_and_pictures_are_small() -> None:
    assert sum(path.stat().st_size for path in TRACES.iterdir()) <= MOST_BYTES
    sizes = {path.name: path.stat().st_size for path in PICTURES.iterdir()}
    assert max(sizes.values()) <= MOST_PICTURE_BYTES
    assert sum(sizes.values()) <= MOST_OF_PICTURES


def test_every_view_has_a_picture_on_the_page() -> None:
    page = PAGE.read_text()
    assert {view.name for view in VIEWS} == {picture.view for picture in SHOWN}
    for picture in SHOWN:
        assert set(picture.traces) <= set(ROWS)
        assert f"](pictures/{picture.path})" in page
        assert (PICTURES / picture.path).read_bytes().startswith(b"\x89PNG")
    assert table(ROWS) in page


def test_a_picture_is_drawn_from_a_kept_trace(tmp_path: Path) -> None:
    """What is chosen in the view is drawn, and a trace that is not there is said."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    with chromium():
        pass
    (schedule,) = (picture for picture in SHOWN if picture.view == "schedule")
    folders = {"eleven": unpack("eleven", tmp_path / "traces")}
    assert draw(folders, tmp_path / "out", [schedule]) == []
    first = replace(schedule, choose={"Kernel and map": "gemm"}, name="other")
    missing = replace(schedule, traces=("none",), name="missing")
    assert draw(folders, tmp_path / "out", [first, missing]) == ["missing.png: no trace none"]
    pictures = [image.open(tmp_path / "out" / name) for name in ("schedule.png", "other.png")]
    assert all(picture.width > 1000 and 500 < picture.height <= schedule.height for picture in pictures)
    assert pictures[0].convert("RGB").tobytes() != pictures[1].convert("RGB").tobytes()
