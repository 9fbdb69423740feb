"""Pages of traces of an H200, which are kept with their recipes: every view draws, and figures are the report's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gallery import RECORD, TRACES, unpack
from neutrino.cli.report import main
from neutrino.page.registry import VIEWS
from neutrino.tracing import Trace
from tests.page.browser import chromium, opened
from tests.page.made_pages import page_of

NAMES = sorted(json.loads((TRACES / RECORD).read_text())["traces"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module", params=NAMES)
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trace, and its page."""
    folder = tmp_path_factory.mktemp("gpu")
    trace = unpack(request.param, folder)
    return trace, page_of(trace, folder)


def _document(trace: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([str(trace), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    return document


def test_every_view_draws_the_figures_of_the_report(
    browser: Any, kept: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """No error, no request; what ran, findings, and each map's ranges, sites and keys."""
    trace, page = kept
    document = _document(trace, capsys)
    assert document["devices"][0]["arch"] == "sm_90"
    assert document["clock"] == "cycles"
    coverage = document["coverage"]
    with opened(browser, page) as found:
        assert found.views() == [view.name for view in VIEWS]
        for view in found.views():
            found.go(view)
            assert "cannot be drawn" not in found.page.inner_text("main")
            assert found.page.evaluate("document.documentElement.scrollWidth") <= 1280
        found.go("overview")
        assert found.figures("coverage") == [f"{coverage['probed']:,} of {coverage['launches']:,}"]
        for title, name in (("launches", "probed"), ("with data", "written"), ("not probed", "not_probed")):
            expected = [kernel["launches"][name] for kernel in document["kernels"]]
            assert [int(text) for text in found.figures(f"kernels/{title}")] == expected
        found.go("findings")
        expected = [f"{finding['analysis']} {finding['state']}" for finding in document["findings"]]
        assert found.figures("findings") == expected
        text = found.page.text_content("main")
        assert all(finding["sentence"] in text for finding in document["findings"])
        found.go("maps")
        fields = [field for entry in document["kernels"][0]["maps"] for field in entry["fields"]]
        for title in ("min", "max"):
            assert found.figures(f"fields/{title}") == [str(field[title]) for field in fields]
        assert found.said == []


def _of(trace: Path, name: str) -> list[list[Any]]:
    """The views of a map, of each launch of each kernel that has data of it."""
    launches = [list(kernel.launches()) for kernel in Trace(trace).kernels]
    found = [[launch.maps[name] for launch in row if name in launch.maps] for row in launches]
    return [views for views in found if views]


def test_times_are_those_of_the_records(browser: Any, kept: tuple[Path, Path]) -> None:
    """Of each launch the longest time that a multiprocessor had blocks; and how many accesses there are."""
    trace, page = kept
    expected = []
    for views in _of(trace, "BlockSched"):
        times = []
        for records in (view.valid() for view in views):
            sms, place = np.unique(records["cuid"], return_inverse=True)
            begin, end = np.full(len(sms), np.iinfo(np.int64).max), np.zeros(len(sms), np.int64)
            starts = records["start"].astype(np.int64)
            np.minimum.at(begin, place, starts)
            np.maximum.at(end, place, starts + records["elapsed"])
            times.append(int((end - begin).max()))
        expected.append((sum(times), max(times)))
    with opened(browser, page) as found:
        found.go("kernels")
        seen = zip(map(int, found.figures("times/in all")), map(int, found.figures("times/most")), strict=True)
        assert sorted(seen) == sorted(expected)
        found.go("memory")
        accesses = [f"{len(view.valid()):,}" for views in _of(trace, "GlobalAccesses") for view in views]
        assert found.figures("memory/accesses") == accesses
        assert found.said == []


def test_a_planted_request_is_refused_and_seen(browser: Any, tmp_path: Path) -> None:
    page = page_of(unpack(NAMES[0], tmp_path), tmp_path)
    page.write_text(page.read_text().replace("<header", '<img src="http://127.0.0.1:9/x.png"><header'))
    with opened(browser, page) as found:
        assert any("Content Security Policy" in line for line in found.said)
