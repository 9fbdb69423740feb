"""Figures in the README, bench/README.md and pages of docs, computed from the committed samples.

    python -m bench.figures           prints those that are not what the samples say; exit status 1 if there are any
    python -m bench.figures fill      writes what the samples say

Each sentence is a text with {} where a figure stands. Tables that a bench prints are compared by its own test. A row of
a table that links to another site states what was published there.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench import choice, first_runs, graphs, newcomer, prices
from bench.probed import launches
from bench.tree import ROOT

Json = Any

README, BENCH, COMPARISON = ROOT / "README.md", ROOT / "bench" / "README.md", ROOT / "docs" / "comparison.md"
FRAMEWORKS = ROOT / "docs" / "frameworks.md"
PAGES = (README, BENCH, COMPARISON, FRAMEWORKS)
LIBRARY = ROOT / "docs" / "library.md"
_PRICES = re.compile(r"(?<=<!-- prices -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""Where the library's page has what its probes cost."""
_MEASURED = re.compile(
    r"\d[\d,.]*(?: to \d[\d,.]*)?[ \xa0](?:%|µs|ns|ms|s|times|million|MiB|GB/s|MB/s|GB|bytes a record)(?!\w)"
)
"""What looks like a measured figure: a number with a unit."""
_PUBLISHED = r"^\|[^\n]*\]\(https://[^\n]*$"
"""A row of a table with a link to another site."""
STATED = (
    # Conditions and bounds, not results.
    "1.3 GB of disk", "that take 50 µs or more", "runs of two", "at most 20 % of the pairs",
    "0.3 s of", "5 GB/s in C, 2 GB/s by NumPy alone", "at most 200 MiB", "220 MB of wheels",
    "1 % is wanted", "so that 0.1 µs count",
    "at most 5 s of processor time, 8 MiB, and 200 MiB of memory",
    "at most 3 s of processor time", "at most 100 ms for each view", "60 s for the largest",
    "2 million slices per second of processor time",
)  # fmt: skip


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page, and what computes its figures. text: with {} for each; blanks stand for any white space."""

    page: Path
    text: str
    figures: Callable[[], Sequence[str]]

    @property
    def pattern(self) -> re.Pattern[str]:
        """A regular expression that matches this sentence with any figures, which are its groups."""
        parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in self.text.split("{}")]
        return re.compile(r"(\d[\d,.]*)".join(parts))


@cache
def _results(stem: str) -> Json:
    """Read the committed results with that name; remembered."""
    return json.loads((ROOT / "bench" / "results" / f"{stem}.json").read_text())


def _first_runs() -> list[str]:
    """Return figures for a page: how many times as long first runs of JAX and PyTorch take when probed."""
    runs = _results("first_runs_h200")["runs"]
    return [f"{first_runs.times(runs[name], 'first'):.2f}" for name in ("JAX", "PyTorch")]


def _jax() -> list[str]:
    """Return figures for a page: how many times as long JAX takes in its first run, its second and with ``--hot``.

    And the percentage of launches recorded there.
    """
    runs = _results("first_runs_h200")["runs"]["JAX"]
    hot = min(runs["hot"], key=lambda run: run["seconds"])
    return [
        f"{first_runs.times(runs, 'first'):.2f}", f"{first_runs.times(runs, 'second'):.2f}",
        f"{first_runs.times(runs, 'hot'):.2f}", f"{hot['probed'] / hot['launches']:.0%}".rstrip("%"),
    ]  # fmt: skip


def _replays() -> list[str]:
    """Return figures for a page: µs to submit a replay of a CUDA graph, what each probe adds, and the bound that is
    wanted."""
    results = _results("graphs_h200")
    more = graphs.added(results)
    return [
        f"{statistics.median(results['submit']['plain']):.1f}", *(f"{more[name]:.1f}" for name in graphs.SUBMITS[1:]),
        f"{graphs.WANTED_MICROSECONDS}",
    ]  # fmt: skip


def _graph_launches() -> list[str]:
    """Return a figure for a page: how many launches of the PyTorch program's CUDA graph were probed."""
    return [f"{launches(_results('graphs_h200')['cases']['torch graph'])['probed']:,}"]


def _framework(name: str, *reasons: str) -> list[str]:
    """Return figures for a page: a framework's launches by what became of them. reasons: ``probed``, or words for why
    not."""
    found: Counter[str] = launches(_results("compatibility_h200")["frameworks"][name])
    return [f"{found[reason]:,}" for reason in reasons]


def _numba() -> list[str]:
    """Return figures for a page: how many launches of Numba's kernels were probed, and how many there were."""
    found: Counter[str] = launches(_results("passing_h200")["numba"]["trace"])
    return [f"{found['probed']:,}", f"{found.total():,}"]


def _price(probe: str) -> list[str]:
    """Return figures for a page: how many times as long kernels of 50 µs and more take with a probe, mean and largest.
    """
    found = prices.ratios(_results("prices_h200"), probe, prices.LONG_US)
    return [f"{statistics.fmean(found.values()):.2f}", f"{max(found.values()):.2f}"]


def _light() -> list[str]:
    """Return the same of block_sched and gmem_bytes, in percent above 1."""
    return [f"{float(times) * 100 - 100:.0f}" for probe in ("block_sched", "gmem_bytes") for times in _price(probe)]


def _choice() -> list[str]:
    """Return figures for a page: nanoseconds that the hook adds to a launch after ``off`` and with ``--every``, and
    percent.

    The hook is Neutrino's library in the program; the percentage is of the latter.
    """
    results = _results("choice_h200")

    def nanoseconds(mode: str) -> float:
        """Nanoseconds that a launch takes longer through the hook than past it, by medians."""
        through, past = (results["medians"][mode][what] for what in choice.TIMES)
        return float((through - past) * 1000)

    share = (choice.times(results, choice.EVERY) - 1) * 100
    return [f"{nanoseconds(choice.OFF):.0f}", f"{nanoseconds(choice.EVERY):.0f}", f"{share:.1f}"]


def _newcomer() -> list[str]:
    """Return figures for a page: seconds of ``make setup`` and of ``make demo``, and the environment's size in MB."""
    results = _results("newcomer")
    took = [f"{newcomer.seconds(results, [step]):.0f}" for step in ("setup", "demo")]
    return [*took, f"{results['bytes']['environment'] / 1e6:.0f}"]


SENTENCES = (
    Sentence(README, "`make setup` took {} s and `make demo` {} s; `.venv` takes {} MB", _newcomer),
    Sentence(
        README, "the first run of a JAX training loop takes {} times as long, of one in PyTorch {} times", _first_runs
    ),
    Sentence(README, "`block_sched` takes {} % in the mean and at most {} %, `gmem_bytes` {} % and {} %", _light),
    Sentence(BENCH, "training steps as a CUDA graph: {} launches probed", _graph_launches),
    Sentence(FRAMEWORKS, "training steps as a graph, {} launches were probed", _graph_launches),
    Sentence(
        FRAMEWORKS, "In 20 training steps in JAX {} launches were probed and {} of vendor libraries were not",
        lambda: _framework("jax", "probed", "vendor"),
    ),
    Sentence(
        FRAMEWORKS, "so that the first run of a training loop takes {} times as long", lambda: _first_runs()[:1]
    ),
    Sentence(FRAMEWORKS, "and the first run takes {} times as long", lambda: _jax()[2:3]),
    Sentence(
        FRAMEWORKS, "In a mix of them {} launches were; {} were of another architecture's PTX",
        lambda: _framework("cupy", "probed", "variant"),
    ),
    Sentence(FRAMEWORKS, "In a mix of its kernels on an H200, {} of {} launches were probed", _numba),
    Sentence(BENCH, "| a mix of Numba's kernels | {} of {} probed |", _numba),
    Sentence(
        BENCH, "A replay of 200 kernels takes {} µs to submit, {} µs more with `gmem_bytes` and {} µs more with "
        "`block_sched`, where {} µs are wanted", _replays,
    ),
    Sentence(
        BENCH, "| 20 training steps in JAX | {} probed, {} of vendor libraries",
        lambda: _framework("jax", "probed", "vendor"),
    ),
    Sentence(
        BENCH, "| a mix of CuPy's functions | {} probed, {} `variant`, {} of vendor libraries, {} whose function",
        lambda: _framework("cupy", "probed", "variant", "vendor", "launch-form"),
    ),
    *(
        Sentence(COMPARISON, f"| `{probe}` | {{}} | {{}} |", lambda probe=probe: _price(probe))  # type: ignore[misc]
        for probe in ("gmem_bytes", "latency", "value_watch", "coalescing")
    ),
    Sentence(
        BENCH, "JAX's first run takes {} times as long and its second {} times; with `--hot 4`, where nothing waits, "
        "the first takes {} times, and {} % of its launches are recorded", _jax,
    ),
    Sentence(BENCH, "The hook takes {} ns of a launch, and {} ns with `--every`, {} % of such a small one", _choice),
)  # fmt: skip


def differences(page: Path) -> Iterator[str]:
    """Return which figures on a page are not those of the committed samples, a line each."""
    text = page.read_text()
    covered: list[tuple[int, int]] = []
    for sentence in SENTENCES:
        if sentence.page != page:
            continue
        matches = list(sentence.pattern.finditer(text))
        if len(matches) != 1:
            yield f"{page.name}: {len(matches)} times: {sentence.text}"
            continue
        covered.append(matches[0].span())
        found, expected = list(matches[0].groups()), list(sentence.figures())
        if found != expected:
            yield f"{page.name}: {sentence.text}: {', '.join(found)}; the samples say {', '.join(expected)}"
    # Blocks and tables of figures are compared by the tests of the benches that print them.
    stated = [r"\s+".join(map(re.escape, text.split(" "))) for text in STATED]
    elsewhere = [r"^```.*?^```$|<!-- figures -->.*?<!-- end -->", _PUBLISHED, *stated]
    covered += [match.span() for part in elsewhere for match in re.finditer(part, text, re.MULTILINE | re.DOTALL)]
    for match in _MEASURED.finditer(text):
        if not any(first <= match.start() and match.end() <= end for first, end in covered):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{page.name}:{line}: {match[0]!r} is of no sentence that the samples give"


def priced(page: str, record: Path) -> str:
    """Return the library's page with the prices of a record; with those words that there is none, if there is none."""
    table = prices.page_table(json.loads(record.read_text())) if record.exists() else "Not recorded yet.\n"
    return _PRICES.sub(lambda _: table, page)


def fill(page: Path) -> None:
    """Update the figures in a page's sentences from the committed samples."""
    text = page.read_text()
    for sentence in SENTENCES:
        match = sentence.pattern.search(text) if sentence.page == page else None
        if match:
            parts, end = [], match.start()
            for number, figure in enumerate(sentence.figures(), 1):
                parts += [text[end : match.start(number)], figure]
                end = match.end(number)
            text = text[: match.start()] + "".join(parts) + text[end:]
    page.write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the figures in the pages, or write them, as the command line says.

    Returns 1 when one is not what the samples say.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.figures")
    parser.add_argument("action", nargs="?", choices=("check", "fill"), default="check")
    parser.add_argument("--prices", type=Path, default=prices.RESULTS, help="the record of bench.prices")
    options = parser.parse_args(arguments)
    if options.action == "fill":
        for page in PAGES:
            fill(page)
        LIBRARY.write_text(priced(LIBRARY.read_text(), options.prices))
    wrong = [line for page in PAGES for line in differences(page)]
    if LIBRARY.read_text() != priced(LIBRARY.read_text(), options.prices):
        wrong.append(f"{LIBRARY.name}: the prices are not those of {options.prices}")
    print("\n".join(wrong) or "all figures are what the samples say")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
