"""What ten probes at once cost beside one of them, in parsing: ``python -m bench.parsing record`` (then ``judge``).

Parsing is reading a text into its module (``neutrino.ptx.text.module.parse``) and finding, in each body, the
instructions that the probes match (``neutrino.ptx.analysis.matching``). It is one pass, whatever the number of
probes. Writing the twins' text is work for each site, and ten probes have the sites of all ten: its times are
recorded beside the sites and the bytes that were written, and are no part of the bound. ``probes/ten.toml`` holds the
ten, whose tracepoints and numbers of hits are those of everyday probes; each is also taken alone. Processor time; the
runs take turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.corpus import texts
from bench.recorded import judge_files, say_verdicts
from bench.tree import made_of
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.analysis.matching import Matcher
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import parse
from neutrino.verification import load_probe_file

Json = Any
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "parsing.json"
PROBES = ROOT / "bench" / "probes" / "ten.toml"
SOURCES = ("ctranslate2", "nvcc", "triton", "fixtures")
ROUNDS = {"parsing": 5, "whole": 2}
MOST_TIMES = 1.5
"""What parsing for ten probes may take, in times of the mean of each alone."""
LEAST_BYTES = {"ctranslate2": 10_000_000, "nvcc": 500_000, "triton": 5_000_000, "fixtures": 100_000}


def probe_sets() -> dict[str, ProbeSet]:
    """The sets of probes that are compared: ``all`` ten at once, and each alone by its name."""
    every = load_probe_file(PROBES)
    return {"all": every} | {probe.name: every.only([probe.name]) for probe in every.probes}


def corpus(folder: Path, source: str) -> list[str]:
    """The PTX texts of one of SOURCES. folder: where the corpus is, or is made. Raises ToolError, OSError."""
    if source == "fixtures":
        paths = sorted((ROOT / "tests" / "fixtures" / "kernels").rglob("*.ptx"))
        return [path.read_bytes().decode("latin-1") for path in paths]
    from tests.corpus.collect import collect

    return [text for path in collect(folder, source) for text in texts(path.read_bytes(), path.name)]


def parsing(probes: ProbeSet, modules: Sequence[str]) -> dict[str, int]:
    """Read PTX texts and find the instructions that the probes match: the work that is timed.

    Returns their number as ``hits``.
    """
    matcher = Matcher(probes.probes)
    hits = 0
    for text in modules:
        module = parse(text)
        for function in (*module.entries, *module.functions):
            if function.body is not None:
                hits += len(matcher.find(module, function, Body(module.code, *function.body)).hits)
    return {"hits": hits}


def writing(probes: ProbeSet, modules: Sequence[str]) -> dict[str, int]:
    """Read PTX texts, match, and write the twins (copies of the kernels with the probes).

    Returns numbers of sites (instructions that probes match) and of characters written.
    """
    sites = written = 0
    for text in modules:
        twins = probe_module(parse(text), probes)
        written += len(twins.render())
        sites += sum(len(twin.sites) for twin in twins.kernels)
    return {"sites": sites, "written": written}


def record(folder: Path) -> Json:
    """Time parsing alone and parsing with writing, for each source of texts and set of probes; return processor seconds
    by round.

    folder: where the corpus is, or is made.
    """
    sets = probe_sets()
    results: Json = {**made_of("parsing"), "python": platform.python_version(), "sources": []}
    for source in SOURCES:
        modules = corpus(folder, source)
        row: Json = {"name": source, "texts": len(modules), "bytes": sum(map(len, modules)), "sets": {}}
        for name in sets:
            row["sets"][name] = {"parsing": [], "whole": []}
        for stage, work in (("parsing", parsing), ("whole", writing)):
            for _ in range(ROUNDS[stage]):
                for name, probes in sets.items():
                    row["sets"][name] |= _timed(row["sets"][name][stage], work, probes, modules)
        results["sources"].append(row)
    return results


def _timed(
    seconds: list[float],
    work: Callable[[ProbeSet, Sequence[str]], dict[str, int]],
    probes: ProbeSet,
    modules: Sequence[str],
) -> dict[str, int]:
    """Do a piece of work once and add its processor seconds to the list. Returns what the work counted."""
    before = time.process_time()
    counted = work(probes, modules)
    seconds.append(round(time.process_time() - before, 6))
    return counted


def times(row: Json, stage: str) -> float:
    """Return how many times as long ten probes at once take as one of them, for one source of texts, by best times.

    stage: "parsing" or "whole".
    """
    best = {name: min(entry[stage]) for name, entry in row["sets"].items()}
    return best.pop("all") / fmean(best.values())


def judge(results: Json) -> list[str]:
    """Return what the recorded results lack, a line each: too little text, too few rounds, ten probes too slow, a probe
    without hits."""
    rows = {row["name"]: row for row in results["sources"]}
    wrong = [f"{name}: not measured" for name in SOURCES if name not in rows]
    names = {"all", *(probe.name for probe in load_probe_file(PROBES).probes)}
    for name, row in rows.items():
        if row["bytes"] < LEAST_BYTES[name]:
            wrong.append(f"{name}: {row['bytes']} bytes, at least {LEAST_BYTES[name]} are needed")
        if row["sets"].keys() != names or len(names) != 11:
            wrong.append(f"{name}: other probes than the ten of {PROBES.name}")
            continue
        if any(len(entry[stage]) < least for entry in row["sets"].values() for stage, least in ROUNDS.items()):
            wrong.append(f"{name}: fewer rounds than {ROUNDS}")
            continue
        if (ratio := times(row, "parsing")) > MOST_TIMES:
            wrong.append(f"{name}: parsing for ten probes takes {ratio:.2f} times that for one, at most {MOST_TIMES}")
        single = {entry["hits"] for probe, entry in row["sets"].items() if probe != "all"}
        if row["sets"]["all"]["hits"] < max(single):
            wrong.append(f"{name}: ten probes hit less than one of them")
    for probe in names - {"all"}:
        if rows and not any(row["sets"].get(probe, {}).get("sites") for row in rows.values()):
            wrong.append(f"{probe}: no site in any source")
    return wrong


def table(results: Json) -> str:
    """Return the figures as a table for people, a line for each source of texts."""
    lines = []
    for row in results["sources"]:
        every = row["sets"]["all"]
        megabytes = row["bytes"] / 1e6
        best = {stage: min(every[stage]) for stage in ("parsing", "whole")}
        lines.append(
            f"{row['name']}: {megabytes:.1f} MB, ten probes: parsing {times(row, 'parsing'):.2f} times that for one, "
            f"{megabytes / best['parsing']:.0f} MB/s; with {every['sites']} sites written {times(row, 'whole'):.2f} "
            f"times, {megabytes / best['whole']:.1f} MB/s read, {every['written'] / 1e6 / best['whole']:.0f} written"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, if asked to, and print figures and unmet bounds.

    Returns the exit status: 1 when there are any, 2 without results.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.parsing")
    parser.add_argument("action", choices=("record", "judge"))
    parser.add_argument("--folder", type=Path, default=ROOT / ".corpus", help="where the corpus is, or is made")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the raw samples, as JSON")
    options = parser.parse_args(arguments)
    if options.action == "record":
        results = record(options.folder)
        options.out.write_text(json.dumps(results, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")
    command = "python -m bench.parsing record"
    return judge_files([options.out], command, ("sources",), lambda results: say_verdicts(results, table, judge))


if __name__ == "__main__":
    sys.exit(main())
