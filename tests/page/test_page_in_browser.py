"""Pages in a real browser without a network: every view draws, says what the report says, and nothing else runs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutrino.abi.reasons import Reason
from neutrino.cli.report import main
from neutrino.page.distributions import of_widths
from neutrino.page.registry import VIEWS
from neutrino.page.scripts import one_script
from neutrino.tracing import Trace
from tests.page.browser import chromium, opened
from tests.page.made_pages import HOSTILE, page_of, probed_patterns, write_accesses, write_schedule
from tests.page.redraws import write_large
from tests.tracing.test_comparison import run
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Any]]:
    folder = tmp_path_factory.mktemp("page")
    blocks = write_schedule(folder / "trace")
    return folder / "trace", page_of(folder / "trace", folder), blocks


@pytest.mark.parametrize(("scheme", "width"), [("light", 400), ("dark", 1280)])
def test_every_view_draws_without_an_error_or_a_request(browser: Any, known: Any, width: int, scheme: str) -> None:
    _, page, _ = known
    with opened(browser, page, width, scheme) as found:
        assert found.views() == [view.name for view in VIEWS]
        for view in found.views():
            found.go(view)
            assert "cannot be drawn" not in found.page.inner_text("main")
            # Nothing makes the page itself wider than its window.
            assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        assert found.said == []


def test_a_planted_request_is_refused_and_seen(browser: Any, known: Any, tmp_path: Path) -> None:
    _, page, _ = known
    for number, planted in enumerate(
        (
            '<img src="http://127.0.0.1:9/x.png">',
            "<script>document.title = 'run'</script>",
            '<p style="color:red">x</p>',
        )
    ):
        changed = tmp_path / f"{number}.html"
        changed.write_text(page.read_text().replace("<header", planted + "<header"))
        with opened(browser, changed) as found:
            assert any("Content Security Policy" in line for line in found.said), planted
            assert found.page.title() != "run"


def test_figures_are_those_of_the_report(browser: Any, known: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trace, page, blocks = known
    assert main([str(trace), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    with opened(browser, page) as found:
        coverage = document["coverage"]
        assert found.figures("coverage") == [f"{coverage['probed']} of {coverage['launches']}"]
        for title, name in (("launches", "probed"), ("with data", "written"), ("not probed", "not_probed")):
            expected = [str(kernel["launches"][name]) for kernel in document["kernels"]]
            assert found.figures(f"kernels/{title}") == expected
        found.go("kernels")
        times = [_time(table) for table in blocks]
        assert found.figures("times/in all") == [str(sum(times))]
        assert found.figures("times/most") == [str(max(times))]
        found.go("schedule")
        # The longest one, and the multiprocessors that were idle.
        assert max(times) != times[0]
        assert found.figures("schedule/blocks") == [f"{len(blocks[0]):,}"]
        assert found.figures("schedule/time") == [f"{max(times):,} cycles"]
        assert found.figures("schedule/multiprocessors") == ["7 of 132"]
        found.page.select_option("label:has-text('Multiprocessor') select", "5")
        found.drawn()
        found.page.focus("main canvas[tabindex]")
        found.page.keyboard.press("ArrowRight")
        assert found.page.text_content("#said") == "Multiprocessor 5: no block of this launch"
        found.go("warps")
        chosen = found.page.eval_on_selector("label:has-text('Launch') select", "one => one.selectedOptions[0].text")
        assert chosen == f"launch {times.index(max(times))}"


def _time(table: Any) -> int:
    """The longest time that a multiprocessor had blocks: their clocks have nothing in common."""
    sms = np.unique(table[:, 1])
    return int(max(table[table[:, 1] == sm][:, 3].max() - table[table[:, 1] == sm][:, 2].min() for sm in sms))


def test_schedule_has_every_block_exactly(browser: Any, known: Any) -> None:
    _, path, blocks = known
    with opened(browser, path) as found:
        texts = found.page.eval_on_selector_all(
            "script[id^=block-]", "all => all.map(one => [one.id, one.textContent])"
        )
        last = found.page.eval_on_selector("#document", "one => one.textContent")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.evaluate(
        "texts => { for (const [id, text] of texts) document.body.appendChild(Object.assign("
        "document.createElement('script'), {type: 'text/plain', id, textContent: text})); }",
        texts,
    )
    page.add_script_tag(content=one_script(["spans.js"], "data.js"))
    document = page.evaluate("number => module_data.jsonOf(number)", int(last))
    (row,) = document["traces"][0]["data"]["spans"]["kernels"]
    assert [drawn["launch"] for drawn in row["drawn"]] == [0, 1, 2]
    for drawn, table in zip(row["drawn"], blocks, strict=True):
        rows = page.evaluate(
            "async drawn => { const rows = await module_spans.blocksOf(drawn);"
            " return rows.groups.map(group => ({id: group.id,"
            " rows: Array.from({length: group.to - group.from}, (_, n) => "
            "{ const [a, b] = [rows.rowFrom[group.from + n], rows.rowFrom[group.from + n + 1]];"
            " return {name: [...rows.name.slice(a, b)], begin: [...rows.begin.slice(a, b)],"
            " end: [...rows.end.slice(a, b)]}; })})); }",
            drawn,
        )
        seen = []
        for group in rows:
            for line in group["rows"]:
                # Blocks of a row do not overlap.
                assert all(end <= begin for end, begin in zip(line["end"], line["begin"][1:], strict=False))
                seen += [
                    (int(name), group["id"], int(begin) + int(drawn["base"]), int(end) + int(drawn["base"]))
                    for name, begin, end in zip(line["name"], line["begin"], line["end"], strict=True)
                ]
        assert sorted(seen) == [tuple(line) for line in table.tolist()]
    context.close()


def test_a_picture_is_read_by_keys(browser: Any, known: Any) -> None:
    """The block that is said is one that ran at that moment."""
    _, page, _ = known
    with opened(browser, page) as found:
        found.go("schedule")
        found.page.focus("main canvas[tabindex]")
        for key in ("ArrowRight", "ArrowDown", "+", "ArrowLeft"):
            found.page.keyboard.press(key)
        said = found.page.text_content("#said")
        assert said.startswith("Multiprocessor ")
        assert found.said == []


def test_redrawing_touches_what_is_seen(browser: Any, tmp_path: Path) -> None:
    """Of each picture all records once, of a part those of that part, and each pixel once."""
    write_large(tmp_path / "trace", blocks=6000, launches=500, accesses=200_000, lines=30)
    (walk,) = (kernel for kernel in Trace(tmp_path / "trace").kernels if kernel.name == "walk")
    cells = walk.accesses(next(walk.launches())).grid[0].size
    expected = {"launches": 500, "schedule": 6000, "warps": 6000 // 132, "inside": 32 + 32 * 16, "memory": cells}
    page = page_of(tmp_path / "trace", tmp_path)
    with opened(browser, page) as found:
        for view, records in expected.items():
            found.go(view)
            found.page.focus("main canvas[tabindex]")
            found.page.keyboard.press("ArrowRight")
            found.drawn()
            whole = json.loads(found.page.get_attribute("body", "data-drawn"))
            assert whole["records"] == pytest.approx(records, rel=0.03), view
            assert whole["pixels"] <= 1280 * 1000
            for _ in range(5):
                found.page.keyboard.press("+")
            found.drawn()
            part = json.loads(found.page.get_attribute("body", "data-drawn"))
            assert 0 <= part["records"] < whole["records"] / 5 + 200, view
            assert part["pixels"] == whole["pixels"]
        assert found.said == []


def test_names_of_a_trace_are_never_markup(browser: Any, tmp_path: Path) -> None:
    """Text that would end a script, of ten million characters, that turns its direction, and no valid Unicode."""
    writer = TraceWriter(tmp_path / "trace</script>{style}")
    writer.events[0]["argv"] = [HOSTILE, "{policy}"]
    for number, name in enumerate((HOSTILE, "x" * 10_000_000, "\ud800 \u2066\u0000")):
        writer.kernel(number + 1, name, maps=[BLOCK_SCHED], demangled=name)
        regions = fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(1000, 50, 1)]})
        writer.launch(number + 1, (1, 1, 1), (32, 1, 1), regions)
    trace = writer.write()
    page = page_of(trace, tmp_path)
    assert page.stat().st_size < 1 << 20
    assert page.read_text().count("</script>") == page.read_text().count("<script")
    with opened(browser, page) as found:
        for view in found.views():
            found.go(view)
            assert found.page.query_selector("main img") is None
        assert found.said == []
        found.go("overview")
        text = found.page.inner_text("body")
        assert "</script><img src=x onerror=alert(1)>\\u{202e}" in text
        assert "\u202e" not in text
        assert "\u2066" not in text


@pytest.fixture(scope="module")
def patterns(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("patterns")
    trace = probed_patterns(folder / "trace")
    return trace, page_of(trace, folder)


def test_maps_of_a_run_are_those_of_the_report(
    browser: Any, patterns: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranges of fields, buckets, keys and sites, of many probes on the embedded device."""
    trace, page = patterns
    assert main([str(trace), "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["traces"][0]["kernels"]
    with opened(browser, page) as found:
        found.go("maps")
        assert found.said == []
        for title in ("min", "median", "max"):
            fields = [field for entry in kernel["maps"] for field in entry["fields"]]
            assert fields
            assert found.figures(f"fields/{title}") == [str(field[title]) for field in fields]
            # As people read them: addresses in hexadecimal, times since the launch's first one.
            texts = found.page.eval_on_selector_all(
                f"[data-figure='fields/{title}']", "all => all.map(one => one.textContent)"
            )
            shown = [
                hex(field[title]) if field.get("unit") == "address" else f"{field['since_first'][title]:,}"
                for field in fields if field.keys() & {"since_first"} or field.get("unit") == "address"
            ]  # fmt: skip
            assert len(shown) > 8
            assert [text for text, field in zip(texts, fields, strict=True)
                    if field.get("unit") == "address" or "since_first" in field] == shown  # fmt: skip
        keys = [key for entry in kernel["maps"] for key in entry.get("keys", [])[:24]]
        assert found.figures("keys/count") == [str(key["count"]) for key in keys]
        sites = [site for entry in kernel["maps"] for site in entry["sites"][:24]]
        assert found.figures("sites/records") == [str(site["records"]) for site in sites]
        found.go("launches")
        assert found.figures("launches/count") == ["1"]


def test_source_has_the_numbers_of_sites_at_their_lines(
    browser: Any, patterns: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, page = patterns
    assert main([str(trace), "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["traces"][0]["kernels"]
    (accesses,) = (entry for entry in kernel["maps"] if entry["name"] == "GlobalAccesses")
    sites = {site["site"]: site for site in json.loads((trace / "kernel/1/manifest.json").read_text())["sites"]}
    expected = sorted((sites[row["number"]]["line"], row["records"]) for row in accesses["sites"])
    with opened(browser, page) as found:
        found.go("source")
        seen = found.page.eval_on_selector_all(
            "button.line",
            "all => all.map(one => [one.querySelector('.at').textContent, one.querySelector('.amount').dataset.value,"
            " one.querySelector('.text').textContent])",
        )
        assert [(int(line), int(value)) for line, value, _ in seen] == expected
        instructions = {site["line"]: site["instruction"] for site in sites.values()}
        for line, _, text in seen:
            assert " ".join(text.strip().rstrip(";").split()) == instructions[int(line)]
        assert found.said == []


def test_findings_are_those_of_the_report(
    browser: Any, patterns: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, page = patterns
    assert main([str(trace), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    # Times of the embedded device are not judged, and stand last.
    rows = sorted(document["findings"], key=lambda finding: not finding["thresholds"])
    expected = [f"{finding['analysis']} {finding['state']}" for finding in rows]
    assert rows[0]["thresholds"]
    assert not rows[-1]["thresholds"]
    assert len(expected) > 3
    with opened(browser, page) as found:
        found.go("findings")
        assert found.figures("findings") == expected
        for finding in document["findings"]:
            for figure in finding["figures"]:
                name = f"finding/{finding['analysis']}/{figure['name']}"
                assert found.page.text_content(f'[data-figure="{name}"]') == figure["text"]
        # Each sentence is there as it is.
        text = found.page.text_content("main")
        assert all(finding["sentence"] in text for finding in document["findings"])


def test_memory_has_every_access(browser: Any, patterns: tuple[Path, Path]) -> None:
    """By kind, by instruction, by region and in the picture of warps: the sums are those of the records."""
    trace, page = patterns
    (kernel,) = Trace(trace).kernels
    (launch,) = kernel.launches()
    records = launch.maps["GlobalAccesses"].valid()
    with opened(browser, page) as found:
        found.go("memory")
        assert found.figures("memory/accesses") == [f"{len(records):,}"]
        seen = dict(
            zip(map(int, found.figures("accesses/site")), map(int, found.figures("accesses/accesses")), strict=True)
        )
        numbers, counts = np.unique(records["site"], return_counts=True)
        assert seen == dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        assert sum(map(int, found.figures("regions/accesses"))) == len(records)
        # The first cell of the picture that has accesses says how many and where.
        found.page.select_option("label:has-text('Addresses against') select", "warp")
        found.drawn()
        assert found.said == []


def test_texts_keep_their_size_and_columns_their_decimals(browser: Any, patterns: tuple[Path, Path]) -> None:
    _, page = patterns
    with opened(browser, page, 400) as found:
        found.go("maps")
        texts = found.page.eval_on_selector_all(
            "svg.chart",
            "all => all.map(chart => [...chart.querySelectorAll('text')].map(one => {"
            " const box = one.getBoundingClientRect();"
            " return [box.x, box.right, box.height, Number(one.getAttribute('y'))]; }))",
        )
        assert len(texts) > 3
        for chart in texts:
            assert all(9 < height < 20 for _, _, height, _ in chart)
            below = sorted((left, right) for left, right, _, y in chart if y > 180)
            assert below
            assert all(right <= left for (_, right), (left, _) in itertools.pairwise(below))
        found.go("memory")
        written = found.page.eval_on_selector_all(
            "[data-figure='accesses/at least']", "all => all.map(one => one.textContent)"
        )
        fractions = [text.partition(".")[2] for text in written if "." in text]
        assert fractions
        assert len({len(text) for text in fractions}) == 1
        found.go("launches")
        assert "1 launch" in found.page.inner_text("main .figures").split("\n")
        assert "from the first" not in found.page.inner_text("main")


@pytest.mark.parametrize(("apart", "begins"), [(10**6, "warp"), (1, "time")])
def test_what_is_counted_by_clocks_that_differ_says_so(browser: Any, tmp_path: Path, apart: int, begins: str) -> None:
    """Beside the working set, and beside what comes again; and the picture begins with an order that there is."""
    with opened(browser, page_of(write_accesses(tmp_path / "trace", apart), tmp_path)) as found:
        found.go("memory")
        assert found.page.input_value("label:has-text('Addresses against') select") == begins
        for title in ("Working set", "What comes again"):
            said = found.page.inner_text(f"h3:text-is('{title}') + p")
            assert "clocks that different multiprocessors do not share" in said
            (known,) = re.findall(r" were ([\d,]+) cycles apart, of ", said)
            assert 15 * apart <= int(known.replace(",", "")) < 16 * apart + 100
            assert ("more than half" in said) is (begins == "warp")


def test_narrow_windows_hide_nothing_without_a_hint(browser: Any, tmp_path: Path) -> None:
    """Sentences are within the window and make no row higher than its texts; other tables have a shadow."""
    trace = tmp_path / "trace"
    writer = TraceWriter(trace)
    writer.kernel(1, "gemm", maps=[BLOCK_SCHED])
    writer.kernel(2, "vendor", Reason.NO_PTX)
    writer.count(2, Reason.NO_PTX, 7)
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(5, 9, 1)]}))
    with opened(browser, page_of(writer.write(), tmp_path), 400) as found:
        found.go("coverage")
        cells = found.page.eval_on_selector_all(
            "main td.text:not(:empty), main tbody th",
            "all => all.map(one => { const box = one.getBoundingClientRect(); return [box.left, box.right]; })",
        )
        assert cells
        assert all(0 <= left < right <= 400 for left, right in cells)
        blank = found.page.eval_on_selector_all(
            "main tbody tr",
            "all => all.map(row => row.getBoundingClientRect().height"
            " - [...row.children].reduce((sum, one) => sum + one.getBoundingClientRect().height, 0))",
        )
        assert max(blank) < 20
        found.go("kernels")
        shades = found.page.evaluate("getComputedStyle(document.querySelector('main .scroll')).backgroundAttachment")
        assert shades == "local, local, scroll, scroll"


def test_keys_that_move_a_picture_say_what_is_seen(browser: Any, known: Any) -> None:
    with opened(browser, known[1]) as found:
        found.go("schedule")
        found.page.focus("main canvas[tabindex]")
        said = []
        for key in ("+", "Shift+ArrowRight", "Shift+ArrowLeft", "-", "Home"):
            found.page.keyboard.press(key)
            said.append(found.page.text_content("#said"))
        assert all(text.startswith("Shown: ") for text in said)
        assert "all" not in said[0]
        assert len(set(said[:2])) == 2
        assert said[-1].startswith("Shown: all, from 0 to ")
        found.page.keyboard.press("+")
        found.page.keyboard.press("End")
        longest = found.page.text_content("main [data-figure='schedule/time']")
        assert longest in found.page.text_content("#said")
        found.page.click("text=Zoom in")
        shown = found.page.text_content("#said").split(" to ")[1].replace(",", "")
        assert float(shown) == pytest.approx(float(longest.split()[0].replace(",", "")), rel=1e-4)


def test_labels_of_bars_are_within_their_picture(browser: Any, known: Any) -> None:
    """The last ones, too, which are as wide as their letters are."""
    for width in (400, 1280):
        with opened(browser, known[1], width) as found:
            found.go("maps")
            boxes = found.page.eval_on_selector_all(
                "svg.chart text",
                "all => all.map(one => [one.getBoundingClientRect().right,"
                " one.ownerSVGElement.getBoundingClientRect().right, one.textContent])",
            )
            assert any(text.startswith("+") for *_, text in boxes)
            assert all(right <= edge for right, edge, _ in boxes)


def test_warps_have_one_name(browser: Any, tmp_path: Path) -> None:
    run(tmp_path / "trace", 5, launches=2)
    with opened(browser, page_of(tmp_path / "trace", tmp_path, "-k", "gemm")) as found:
        found.go("inside")
        label = found.page.get_attribute("main canvas[tabindex]", "aria-label")
        first, last = re.findall(r"Warps (\S+) to (\S+) \(block.warp\)", label)[0]
        found.page.focus("main canvas[tabindex]")
        found.page.keyboard.press("ArrowUp")
        block, warp = first.split(".")
        assert found.page.text_content("#said").startswith(f"Block {block}, warp {warp}")
        assert "." in last


WIDTHS: list[tuple[list[tuple[Any, Any]], str]] = [
    ([(0, 9), (10, 19), (20, 29), (30, 31)], ""),
    ([(0, 9), (10, 12)], ""),
    ([(5, 5), (6, 6), (7, 7), (8, 8), (9, 9)], ""),
    ([(0, 9), (10, 19), (20, 29), (30, 10**6)], "The last bucket is wider than the others."),
    ([(0, 99), (100, 109), (110, 119), (120, 10**6)], "The first and the last bucket are wider than the others."),
    ([(0, 0), (1, 1), (2, 3), (4, 7), (8, 15)], "Buckets are wider the larger the values are"),
    ([(-8.0, -4.5), (-4.0, -2.5), (-2.0, -1.5), (1.0, 1.5), (2.0, 2.5), (4.0, 5.5)], "Buckets are wider the larger"),
    ([(0, 1), (2, 9), (10, 11), (12, 40), (41, 42)], "Buckets are not equally wide"),
    ([("-inf", 0.5), (0.5, 1.5), (1.5, 2.5), (2.5, "inf"), ("nan", "nan")], ""),
]


def test_widths_of_buckets_are_said_as_they_are(browser: Any) -> None:
    """The page says the same as pictures do, also of random buckets."""
    random = np.random.default_rng(5)
    many = [*(buckets for buckets, _ in WIDTHS), *(_random_buckets(random) for _ in range(300))]
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.add_script_tag(content=one_script(["chart.js"], "chart.js"))
    found = page.evaluate(
        "all => all.map(buckets => module_chart.ofWidths(buckets.map(([low, high]) => ({low, high}))))",
        many,
    )
    context.close()
    assert found == [of_widths(buckets) for buckets in many]
    for said, (buckets, expected) in zip(found, WIDTHS, strict=False):
        assert said.startswith(expected), buckets
        assert bool(said) is bool(expected), buckets
    assert len(set(found)) > 4


def _random_buckets(random: np.random.Generator) -> list[tuple[float, float]]:
    """Return a few buckets that follow each other, of whole numbers or others."""
    kind = random.integers(0, 3)
    count = int(random.integers(1, 9))
    widths = random.integers(1, 9, count) if kind else np.full(count, int(random.integers(1, 9)))
    widths[-1] = max(widths[-1] - random.integers(0, 5), 1)
    edges = [int(edge) for edge in np.cumsum([random.integers(-20, 20), *widths])]
    return [(low, high - 1) if kind < 2 else (low + 0.25, high + 0.25) for low, high in itertools.pairwise(edges)]


def test_comparison_is_that_of_diff(browser: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", 11)
    run(tmp_path / "slow", 13, slower={"gemm": 1.05}, slow_site=1.5)
    command = [str(tmp_path / "a"), "--diff", str(tmp_path / "slow")]
    assert main([*command, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert main([*command, "--html", str(tmp_path / "page.html")]) == 1
    with opened(browser, tmp_path / "page.html") as found:
        found.go("comparison")
        changed = [kernel for kernel in document["kernels"] if kernel["changed"]]
        assert found.figures("comparison/changed") == ["1 kernel"]
        kernels = [*changed, *(kernel for kernel in document["kernels"] if not kernel["changed"])]
        rows = [row for kernel in kernels for row in [*kernel["figures"], *kernel["details"]][:30]]
        assert [float(value) for value in found.figures("comparison/second")] == [row["second"] for row in rows]
        # Both traces are in the page.
        found.page.select_option("header select", "1")
        found.go("schedule")
        assert found.said == []


def test_inside_warps_are_all_ranges_and_their_times(browser: Any, tmp_path: Path) -> None:
    """Two waits of each warp in a launch, with the times that the trace has."""
    trace = run(tmp_path / "trace", 5, launches=2)
    (kernel,) = (kernel for kernel in trace.kernels if kernel.name == "gemm")
    records = next(kernel.launches()).maps["Waits"].valid()
    expected = {}
    for site in (3, 4):
        chosen = records[records["site"] == site]["elapsed"]
        expected[site] = (len(chosen), int(chosen.sum()), int(chosen.max()))
    with opened(browser, page_of(tmp_path / "trace", tmp_path, "-k", "gemm")) as found:
        found.go("inside")
        assert found.figures("inside/events") == [str(len(records))]
        columns = [map(int, found.figures(f"inside/{title}")) for title in ("count", "time", "most")]
        assert sorted(zip(*columns, strict=True)) == sorted(expected.values())
        assert found.said == []


def test_views_have_names_for_who_does_not_see_them(browser: Any, patterns: tuple[Path, Path]) -> None:
    """Buttons, choices, tables and pictures; and a keyboard reaches all that a mouse does."""
    _, page = patterns
    with opened(browser, page) as found:
        for view in found.views():
            found.go(view)
            nameless = found.page.evaluate(
                """() => [...document.querySelectorAll("button, select, canvas, svg[role], [role=region], table")]
                    .filter(one =>
                    !(one.getAttribute("aria-label") || one.textContent.trim()) ||
                    (one.tagName === "SELECT" && !one.closest("label")?.firstChild?.textContent.trim()) ||
                    (one.tagName === "TABLE" && !one.caption?.textContent)).map(one => one.outerHTML.slice(0, 80))"""
            )
            assert nameless == [], view
            assert found.page.evaluate("document.querySelectorAll('h2').length") == 1
            assert found.page.get_attribute("nav [aria-current=page]", "data-view") == view
        found.go("source")
        found.page.focus("main .lines")
        found.page.keyboard.press("ArrowDown")
        assert found.page.text_content("#said")
