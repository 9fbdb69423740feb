"""Figures of the pages are those of the committed samples, and samples are of the sources that they judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import figures, prices, tree
from bench.verdicts import Missed, run_checks, table

RESULTS = tree.ROOT / "bench" / "results"
STEMS = sorted(path.stem for path in RESULTS.glob("*.json"))


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: str(page.relative_to(tree.ROOT)))
def test_pages_say_what_the_samples_say(page: Path) -> None:
    assert list(figures.differences(page)) == []


def test_a_wrong_figure_and_one_without_samples_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    sentence = figures.Sentence(page, "a launch takes {} µs", lambda: ["3.5"])
    monkeypatch.setattr(figures, "SENTENCES", (sentence,))
    page.write_text("There a launch takes 3.5\nµs.\n")
    assert list(figures.differences(page)) == []
    page.write_text("There a launch takes 4 µs, and 7 % more.\n")
    wrong, unknown = figures.differences(page)
    assert wrong.endswith(": 4; the samples say 3.5")
    assert unknown == "page.md:1: '7 %' is of no sentence that the samples give"
    figures.fill(page)
    assert page.read_text() == "There a launch takes 3.5 µs, and 7 % more.\n"


def test_the_library_has_the_prices_of_the_record(tmp_path: Path) -> None:
    page = figures.LIBRARY.read_text()
    assert figures.priced(page, prices.RESULTS) == page, "python -m bench.figures fill"
    record = tmp_path / "prices.json"
    times = {
        "gemm large": [60e3, 120e3], "conv large": [60e3, 240e3], "pool usual": [5e3, 5.5e3], "total usual": [4e3, 7e3],
    }  # fmt: skip
    rows = {name: {"ns": ns} for name, ns in times.items()} | {"gather large": {}}
    record.write_text(json.dumps({"device": "a GPU", "driver": "1.2", "runs": {"dmat": {"rows": rows}}}))
    assert "| `dmat` | 3.00 | 4.00 | conv large | 1.8 | 3.0 |" in figures.priced(page, record).splitlines()


def test_every_record_names_what_it_judges() -> None:
    assert sorted(tree.JUDGED) == sorted([*STEMS, *tree.TO_COME])
    for stem in tree.JUDGED:
        for entry in tree.JUDGED[stem]:
            assert tree._sources(entry), f"{stem}: {entry}"


def test_an_entry_without_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "JUDGED", {"made_up": ("neutrino/tracing", "neutrino/tracing/none.*")})
    for ask in (tree.judged_files, tree.made_of, lambda name: tree.changed_files(name, {})):
        with pytest.raises(FileNotFoundError, match=r"JUDGED\['made_up'\]: .*'neutrino/tracing/none\.\*'"):
            ask("made_up")


@pytest.mark.parametrize("stem", STEMS)
def test_what_a_record_judges_has_not_changed(stem: str) -> None:
    """Record it again where it has; until then it stands in ``OVERTAKEN``, which the page says."""
    changed = tree.changed_files(stem, json.loads((RESULTS / f"{stem}.json").read_text()))
    assert bool(changed) == (stem in tree.OVERTAKEN), changed


def test_the_page_names_records_that_changes_have_overtaken() -> None:
    (line,) = (row for row in figures.BENCH.read_text().splitlines() if row.startswith("Recorded before changes"))
    assert line.partition(": ")[2].rstrip(".") == ", ".join(f"`{stem}`" for stem in tree.OVERTAKEN)


def test_a_bound_that_is_missed_is_marked() -> None:
    verdicts = run_checks([("a", lambda: "0.9"), ("b", lambda: Missed("1.2; wanted: 1"))])
    assert table(verdicts).splitlines() == [
        "ok     a  0.9", "missed b  1.2; wanted: 1", "1 of 2 verdicts are good, 1 missed",
    ]  # fmt: skip
