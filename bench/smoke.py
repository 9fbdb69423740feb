"""The first look at a GPU: three small programs, plain and with each probe, and everything they have to say.

    python -m bench.smoke [--out FOLDER] [--neutrino "COMMAND"]

Prints, for every run, exit status, stdout, stderr, event.log and the trace's summary; keeps the traces' text
in FOLDER/smoke_traces.txt. Exit status: 0 when every run ended well with the outputs of the plain one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.cases import EACH, Mode, Workload, workload
from bench.programs import build, command, run_program
from bench.road import COMMAND, Road

PROGRAMS = ("vecadd", "half", "triton_add")
SEEDS = 2


def look(road: Road, folder: Path, entry: Workload, mode: Mode) -> list[str]:
    """Run one program in one mode and print all there is.

    Returns its outputs' digests, empty when it failed.
    """
    name = f"{entry.name}_{mode.value}"
    report, traces = folder / f"{name}.json", folder / f"{name}.trace"
    argv = command(replace(entry, seeds=SEEDS), folder, report)
    if mode.probes:
        options = [word for probe in mode.probes for word in ("-p", probe)]
        argv = [*road.neutrino, *options, "--tracedir", str(traces), *argv]
    log = folder / f"{name}.log"
    finished = run_program(argv, road.environment(log, entry.variables.items()), folder, name, 120)
    print(f"\n=== {name}: exit {finished.status}, {finished.seconds} s, timed out: {finished.timed_out}")
    print(f"stdout: {finished.stdout.strip()[-500:]}\nstderr: {finished.stderr.strip()[-3000:]}")
    if log.exists():
        print(f"log: {log.read_text().strip()[-1000:]}")
    for path in traces.glob("*/event.log"):
        print(f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}")
    if traces.exists():
        argv = [sys.executable, "-m", "neutrino.cli.report", str(traces)]
        said = run_program(argv, road.environment(log), folder, f"{name}.report", 60)
        print(f"neutrino-report: exit {said.status}\n{said.stdout[-3000:]}{said.stderr[-1500:]}")
        out = folder / f"{name}.measured"
        argv = [sys.executable, "-m", "bench.measure", str(report), str(traces), str(out)]
        said = run_program(argv, road.environment(log), folder, f"{name}.measure", 60)
        if said.status == 0:
            measured = json.loads(out.read_text())
            print(dict(zip(measured["columns"], measured["rows"][0], strict=True)))
            print(f"images {measured['images']}, notes {measured['notes']}")
        else:
            print(f"measure: {said.stderr[-1500:]}")
    if finished.status != 0 or not report.exists():
        return []
    outputs: list[str] = json.loads(report.read_text())["outputs"]
    return outputs


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above."""
    parser = argparse.ArgumentParser(prog="bench.smoke", description="Small programs, and all they say.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "smoke")))
    parser.add_argument("--neutrino", default=COMMAND, help="the command that probes a program")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    good = True
    with tempfile.TemporaryDirectory(prefix="smoke_", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        entries = [workload(name) for name in PROGRAMS]
        road = Road(shlex.split(options.neutrino), folder, 600)
        for name, said in build(folder, entries).items():
            print(f"nvcc {name}: {said}")
        for entry in entries:
            outputs = {mode: look(road, folder, entry, mode) for mode in EACH}
            same = all(digests and digests == outputs[Mode.PLAIN] for digests in outputs.values())
            good = good and same
            print(f"\n*** {entry.name}: {'same outputs in every mode' if same else 'FAILED'}")
        texts = [*folder.glob("*.trace/*/event*"), *folder.glob("*.trace/*/kernel/*/manifest.json")]
        kept = [f"=== {path.relative_to(folder)}\n{path.read_text(errors='replace')}" for path in texts]
        (options.out / "smoke_traces.txt").write_text("\n".join(kept))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
