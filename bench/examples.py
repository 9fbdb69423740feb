"""Run the commands in the README and the documents, and put their output into the pages.

    python -m bench.examples record --out FOLDER   on a machine with a GPU: FOLDER/examples.json
    python -m bench.examples fill [DOCUMENT ...]   the documents get what bench/results/examples.json holds

A block fenced as ``console`` holds commands after ``$ ``, each followed by its output, in which a line ``…`` stands for
any lines that the page leaves out. A block whose commands need no GPU (``Block.is_here``) is run by a test as it
stands; the commands of all others must be in the recording.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cases import SUBMIT_MODES
from bench.recorded import ResultsError, load, read_results
from bench.road_verdicts import submitted
from bench.tree import made_of
from tests.corpus.all_kernels import reading_speed

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
_PAGES = ("running", "ahead", "probes", "diagnostics", "extract")
DOCUMENTS = (README, *(ROOT / "docs" / f"{name}.md" for name in _PAGES))
RECORDING = ROOT / "bench" / "results" / "examples.json"
HERE = (
    "neutrino-extract", "neutrino-patch", "neutrino-probe", "neutrino --device embedded", "neutrino --help",
    "neutrino-report --help",
)  # fmt: skip
NOT_RUN = ("git ", "make ", "source ", "python3 -m venv", ".venv/bin/pip", "pip ", "apt-get")
"""Set-up commands: they have no output on the pages, and `make check` and CI run them in their own way."""
_ELSEWHERE = "vector.hsaco"
"""Commands on this file are run by tests/gcn/test_pages.py, which has its kernels."""
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FIGURES = re.compile(r"<!-- figures -->.*?<!-- end -->", re.DOTALL)
_COMMANDS = ("neutrino", "neutrino-report", "neutrino-extract", "neutrino-patch", "neutrino-probe")
_BUILD = "examples/embedded"
# What no two runs have in common: the trace's name, and the process in a report.
_CHANGING = (
    (re.compile(r"\b[A-Z][a-z]{2}\d\d_\d{6}_\d+\b"), "Nov21_131500_4242"),
    (re.compile(r"\bpid \d+ on [\w.-]+, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "pid 4242 on host, 2026-11-21 13:15:00"),
)


@dataclass(frozen=True)
class Example:
    """One command of a page and the output printed there."""

    command: str
    output: str


@dataclass(frozen=True)
class Block:
    """Commands that stand together and run one after the other in one folder."""

    examples: tuple[Example, ...]

    @property
    def is_here(self) -> bool:
        """Whether these commands run without a GPU: the first one does, and the others use what it made."""
        return self.examples[0].command.startswith(HERE)

    @property
    def is_built(self) -> bool:
        """Whether these commands use the example of the embedded device, which has to be built before."""
        return any(f"{_BUILD}/build" in example.command for example in self.examples)

    @property
    def is_of_amd(self) -> bool:
        """Whether these commands need what the extra ``amd`` installs."""
        return any("examples/amd/" in example.command for example in self.examples)


def blocks(text: str) -> list[Block]:
    """Return the blocks of console commands on a page, in order, without those that only set up or run elsewhere."""
    found = []
    for block in _BLOCK.findall(text):
        if _ELSEWHERE in block:
            continue
        parts = [part.partition("\n") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
        examples = [Example(command, output) for command, _, output in parts if not command.startswith(NOT_RUN)]
        if examples:
            found.append(Block(tuple(examples)))
    return found


def run_block(block: Block, folder: Path) -> list[str]:
    """Run a block of commands in an empty folder with the examples, built if need be; return what each printed."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("build"))
    if block.is_built:
        subprocess.run(
            ["make", "--silent", "-C", _BUILD, f"PYTHON={sys.executable}"], cwd=folder, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    return [run(example.command, folder) for example in block.examples]


def comparable(output: str) -> str:
    """Return the words of a command's output, with what changes from run to run replaced, so that two outputs can be
    compared."""
    output = " ".join(output.split())
    for pattern, stand_in in _CHANGING:
        output = pattern.sub(stand_in, output)
    return output


def is_as_shown(printed: str, shown: str, words: Callable[[str], str] = comparable) -> bool:
    """Return whether a command printed what a page has of it, in which a line of dots stands for any lines.

    words: of an output, as ``comparable``.
    """
    parts = [words(part) for part in re.split(r"^ *…\n", shown, flags=re.MULTILINE)]
    if len(parts) == 1:
        return parts[0] == words(printed)
    # With spaces around the dots, so that words match whole: also before dots at the beginning, and after those at the
    # end.
    padded = f"{'' if parts[0] else ' '}{words(printed)}{'' if parts[-1] else ' '}"
    return re.fullmatch(" .+? ".join(map(re.escape, parts)), padded) is not None


def run(command: str, folder: Path) -> str:
    """Run a shell command in a folder; return its output, stderr included, as a terminal of 100 columns shows it."""
    with tempfile.TemporaryDirectory() as scratch:
        programs = Path(scratch) / "bin"
        programs.mkdir()
        for name in _COMMANDS:
            module = {"neutrino": "run"}.get(name, name.partition("-")[2])
            path = programs / name
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m neutrino.cli.{module} "$@"\n')
            path.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "COLUMNS": "100",
            "XDG_CACHE_HOME": scratch,
        }
        finished = subprocess.run(
            command, shell=True, cwd=folder, env=environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
        )  # fmt: skip
    lines = [line.rstrip() for line in finished.stdout.replace(str(folder), ".").splitlines()]
    return "\n".join(lines).strip("\n") + "\n" if any(lines) else ""


def record(out: Path) -> None:
    """Run the pages' commands that need a GPU in a fresh folder, and write what they printed into the folder out."""
    outputs: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shutil.copytree(ROOT / "examples", folder / "examples")
        for block in (block for document in DOCUMENTS for block in blocks(document.read_text())):
            if not block.is_here:
                outputs |= {example.command: run(example.command, folder) for example in block.examples}
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    result = {"gpu": gpu.stdout.strip(), **made_of("examples"), "outputs": outputs}
    (out / RECORDING.name).write_text(json.dumps(result, indent=1) + "\n")


def fill(outputs: Mapping[str, str], documents: Sequence[Path] = DOCUMENTS) -> None:
    """Update the outputs of commands on the pages: with recorded ones, or by running the commands that need no GPU."""
    for document in documents:
        text = _filled(document.read_text(), outputs)
        document.write_text(_FIGURES.sub(lambda _: f"<!-- figures -->\n{figures()}\n<!-- end -->", text))


def _filled(text: str, outputs: Mapping[str, str]) -> str:
    """A page's text with the outputs below the commands of its console blocks replaced.

    outputs: recorded ones by command; commands that need no GPU are run.
    """
    here: list[dict[str, str]] = []
    for block in blocks(text):
        if block.is_here:
            with tempfile.TemporaryDirectory() as folder:
                ran = run_block(block, Path(folder))
            pairs = zip(block.examples, ran, strict=True)
            here.append({
                example.command: example.output if is_as_shown(output, example.output) else output
                for example, output in pairs
            })  # fmt: skip
    outputs_of = iter(here)

    def filled(match: re.Match[str]) -> str:
        """Return the new text of one console block: its commands, each with its output, a recorded one, or of a block
        that needs no GPU, that of the run just made.
        """
        if _ELSEWHERE in match[1]:
            return match[0]
        parts = re.split(r"^\$ ", match[1], flags=re.MULTILINE)[1:]
        commands = [part.partition("\n")[0] for part in parts]
        runnable = [command for command in commands if not command.startswith(NOT_RUN)]
        known = next(outputs_of) if runnable and runnable[0].startswith(HERE) else outputs
        return "```console\n" + "".join(f"$ {command}\n{known.get(command, '')}" for command in commands) + "```"

    return _BLOCK.sub(filled, text)


def figures() -> str:
    """Return the README's table of figures, computed from the committed raw samples."""
    road, corpus = (load(ROOT / "bench" / "results" / f"{name}.json") for name in ("road_h200", "corpus"))
    runs = [mode for modes in road["runs"].values() for mode in modes.values()]
    traces = [run["trace"] for run in runs if run.get("trace")]
    kernels = [kernel for trace in traces for kernel in trace["kernels"] if "registers" in kernel]
    grown = [kernel["registers"][1] - kernel["registers"][0] for kernel in kernels]
    rows = [row for source in corpus["sources"] for row in source["rows"]]
    probed = sum(row["reasons"].get("probed", 0) for row in rows)
    speed = reading_speed(corpus["sources"]) / 1e6
    ready = max(image[3] for run in road["warm"].values() for image in run["trace"]["images"])
    seeds = sum(modes["plain"]["seeds"] for modes in road["runs"].values())
    lines = [
        ("what", "figure"),
        ("---", "---"),
        ("workloads whose outputs are bit-identical with and without probes",
         f"{len(road['runs'])} programs, {seeds} seeded inputs"),
        ("submitting a small launch: without Neutrino, not probed, `block_sched`, `gmem_bytes`",
         ", ".join(f"{submitted(road, mode):.2f}" for mode in SUBMIT_MODES) + " µs"),
        ("registers per thread that the probes of these workloads add",
         f"median {statistics.median(grown):.0f}, at most {max(grown)}, over {len(kernels)} kernels"),
        ("second run: a cached image is ready in", f"at most {ready:.2f} ms"),
        ("corpus (nvcc, clang, Triton, ctranslate2): kernels × devices × probes that get a twin",
         f"{probed} of {sum(row['kernels'] for row in rows)}"),
        ("reading and probing PTX, one core, over that corpus", f"{speed:.0f} MB/s"),
    ]  # fmt: skip
    return "\n".join(f"| {name} | {figure} |" for name, figure in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the examples on a GPU, or fill pages with recorded outputs, as the command line says.

    Returns the exit status: 2 without a recording.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.examples")
    parser.add_argument("action", choices=("record", "fill"))
    parser.add_argument("documents", nargs="*", type=Path, default=DOCUMENTS, help="those to fill (default: all)")
    parser.add_argument("--out", type=Path, default=RECORDING.parent)
    options = parser.parse_args(arguments)
    if options.action == "record":
        record(options.out)
        return 0
    missing = [path for path in options.documents if not path.is_file()]
    if missing:
        parser.error(f"no such document: {', '.join(map(str, missing))}")
    try:
        outputs = read_results(RECORDING, ("outputs",))["outputs"]
    except ResultsError as error:
        print(f"{RECORDING}: {error}; `python -m bench.examples record` makes it", file=sys.stderr)
        return 2
    fill(outputs, options.documents)
    return 0


if __name__ == "__main__":
    sys.exit(main())
