"""The page in a notebook's frame, which has no origin; and at the end of a run."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest

from neutrino.cli.report import main
from neutrino.cli.run_page import open_page
from neutrino.page.registry import VIEWS
from neutrino.run.traces import RunTraces
from neutrino.tracing import Trace
from tests.page.browser import chromium
from tests.page.made_pages import write_schedule


def test_frame_shows_every_view_and_cannot_reach_the_notebook(tmp_path: Path) -> None:
    write_schedule(tmp_path / "trace", blocks=40)
    frame = Trace(tmp_path / "trace")._repr_html_()
    assert frame is not None
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><title>notebook</title><p>cell</p>{frame}<p>next</p>")
    said = []
    with chromium() as browser:
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(notebook.as_uri())
        inside = page.frames[1]
        inside.wait_for_selector("body[data-ready=overview]")
        for view in VIEWS:
            inside.click(f"nav button[data-view={view.name}]")
            inside.wait_for_selector(f"body[data-ready={view.name}]")
        assert inside.evaluate("(() => { try { return parent.document.title; } catch { return 'no'; } })()") == "no"
        assert page.title() == "notebook"
    assert said == []


def test_no_page_is_no_frame(tmp_path: Path) -> None:
    write_schedule(tmp_path / "trace", blocks=4, launches=1)
    trace = Trace(tmp_path / "trace")
    (tmp_path / "trace" / "events.jsonl").unlink()
    assert trace._repr_html_() is None


def test_open_shows_the_page_of_the_run_in_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of all traces of this run, and of no other; without a browser its address is said."""
    write_schedule(tmp_path / "trace", blocks=4, launches=1)
    write_schedule(tmp_path / "other", blocks=4, launches=1)
    shown: list[str] = []

    def shows(address: str) -> bool:
        shown.append(address)
        return len(shown) == 1

    monkeypatch.setattr(webbrowser, "open", shows)
    events = tmp_path / "trace" / "events.jsonl"
    first, *others = events.read_text().splitlines(keepends=True)
    events.write_text(json.dumps(json.loads(first) | {"run": "this", "monotonic_ns": 1}) + "\n" + "".join(others))
    page = tmp_path / "trace" / "page.html"
    for _ in range(2):
        open_page(RunTraces(tmp_path, "this", frozenset()))
        assert shown.pop() == page.as_uri()
        shown.append("")
        said = capsys.readouterr().err
        assert f"page in {page}" in said
    assert f"no browser was found; open {page.as_uri()}" in said
    assert not (tmp_path / "other" / "page.html").exists()


def test_open_without_a_file_puts_the_page_into_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_schedule(tmp_path / "trace", blocks=4, launches=1)
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: shown.append(address) or True)
    assert main([str(tmp_path / "trace"), "--open"]) == 0
    assert shown == [(tmp_path / "trace" / "page.html").as_uri()]
    assert main([str(tmp_path / "trace")]) == 0
