"""The commands of documents that use the demo program, and what they print there.

    python -m tests.cli.pages docs/cookbook.md ...     run each command and put outputs that differ into the page

A ``console`` block has commands after ``$ ``, each followed by its output, in which a line ``…`` stands for any lines
that the page leaves out. They run in order in a folder with the program of examples/embedded; a ``python`` block whose
first line is ``# NAME.py`` is that file there. Tests run one-liners of a page together where each has maps of its own:
what they print is then the same, one after the other.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import examples as examples_of_documents
from bench.examples import comparable as without_names
from neutrino.cli import probe, report

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(
    ROOT / "docs" / f"{name}.md"
    for name in ("one-liners", "tutorial", "cookbook", "python", "timelines", "comparing", "findings")
)
PROGRAM = "y[6] = 37, sum of y = 77806\n"
"""What the program prints."""
_ONE_LINER = "neutrino --device embedded -q -e "
_MOST_TOGETHER = 9
"""One-liners in one run."""
_INCOMPLETE = re.compile(r"ran without probes|pool-full|found no memory| dropped")
"""What is said where the maps of a launch had no memory; on a loaded machine the launch before may still have it."""
_MOST_RUNS = 4
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)
_TIMES = re.compile(r"\b(elapsed|clock|time)\b")
"""Other probes in the same run take time, too."""
_MAP = re.compile(r"@(\w*)(?:\[\w*\])? = |(?<!= )\b(print)\(")
# One-liners that run together leave one trace.
_OTHERS = re.compile(r"^neutrino-report: \S+: the newest trace; .* there \(--all-traces\)$", re.MULTILINE)
# Where the program's memory is depends on how much of the device the maps take.
_ADDRESS = re.compile(r"\b(0x20[0-9a-f]{7,}|3518\d{10})\b")


@dataclass(frozen=True)
class Example:
    """A command and the output that the page has of it."""

    command: str
    output: str

    @property
    def maps(self) -> frozenset[str] | None:
        """The maps of a one-liner that can run with others; None for other commands."""
        words = shlex.split(self.command)
        is_alone = words[:5] != shlex.split(_ONE_LINER) or words[6:] != ["./program"] or _TIMES.search(words[5])
        return None if is_alone else frozenset(first or second for first, second in _MAP.findall(words[5]))


def examples(page: str) -> list[Example]:
    """The commands of a page, in order."""
    parts = [part for block in _BLOCK.findall(page) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Example(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def comparable(output: str) -> str:
    """An output's words without what changes from run to run."""
    return _ADDRESS.sub("ADDRESS", without_names(_OTHERS.sub("", output)))


def is_as_shown(printed: str, shown: str) -> bool:
    """Whether a command printed what a page has of it."""
    return examples_of_documents.is_as_shown(printed, shown, comparable)


class Folder:
    """A folder with the program, in which commands run. home: for traces of folded runs, and the cache."""

    def __init__(self, path: Path, home: Path) -> None:
        self.path = path
        self._environment = {
            **os.environ, "XDG_CACHE_HOME": str(home), "COLUMNS": "100", "PYTHONPATH": str(ROOT), "NO_COLOR": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip

    def build(self) -> None:
        """Build the program here."""
        make = ["make", "-s", "-C", str(ROOT / "examples" / "embedded"), f"OUT={self.path}", f"PYTHON={sys.executable}"]
        subprocess.run(make, check=True, env=self._environment)

    def begin(self, page: str) -> None:
        """Write the files that the page shows, and remove the traces of others."""
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        for text, name in _FILE.findall(page):
            (self.path / name).write_text(text)

    def run(self, command: str) -> str:
        """What a command prints, as a terminal shows it: its output, then what comes at its end."""
        words = shlex.split(command)
        if words[0] in ("neutrino-report", "neutrino-probe"):
            return self._call(report.main if words[0] == "neutrino-report" else probe.main, words[1:])
        argv = words[1:] if words[0] == "python" else ["-m", "neutrino.cli.run", *words[1:]]
        finished = subprocess.run(
            [sys.executable, *argv], cwd=self.path, env=self._environment, text=True,
            capture_output=True, timeout=600, check=False,
        )  # fmt: skip
        return (finished.stdout + finished.stderr).replace(str(self.path), ".")

    def _call(self, main: Callable[[Sequence[str]], object], arguments: Sequence[str]) -> str:
        """What a command prints that needs no process of its own."""
        printed = io.StringIO()
        before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
        os.environ.update({name: self._environment[name] for name in before})
        started_in = Path.cwd()
        os.chdir(self.path)
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                main(arguments)
        finally:
            os.chdir(started_in)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        return printed.getvalue()


def differences(page: Path, folder: Folder) -> list[str]:
    """Run the commands of a page; what was printed otherwise than the page has it."""
    text = page.read_text()
    folder.begin(text)
    wrong: list[str] = []
    groups: list[list[Example]] = []
    for run in _runs(examples(text)):
        if (example := run[0]).maps is not None:
            group = next((group for group in groups if _fits(example, group)), None)
            if group is None:
                groups.append(group := [])
            group.append(example)
            continue
        for example, printed in zip(run, _complete(folder, *(each.command for each in run)), strict=True):
            if not is_as_shown(printed, example.output):
                wrong.append(f"$ {example.command}\n{printed}")
    for group in groups:
        texts = " ".join(f"-e {shlex.quote(shlex.split(example.command)[5])}" for example in group)
        options = "--tracedir together --device embedded:memory=2G --max-device-memory 512M -q"
        (printed,) = _complete(folder, f"neutrino {options} {texts} ./program")
        expected = PROGRAM + "".join(example.output.removeprefix(PROGRAM) for example in group)
        if not all(example.output.startswith(PROGRAM) for example in group):
            wrong.append("a one-liner's output does not begin with the program's")
        if not is_as_shown(printed, expected):
            wrong.append(f"$ {texts}\n{printed}")
    return wrong


def _runs(examples: Sequence[Example]) -> Iterator[list[Example]]:
    """The examples in order: each run of a program with the commands after it, which read its trace."""
    run: list[Example] = []
    for example in examples:
        if run and (example.maps is not None or example.command.startswith("neutrino ")):
            yield run
            run = []
        run.append(example)
        if example.maps is not None:
            yield run
            run = []
    if run:
        yield run


def _complete(folder: Folder, *commands: str) -> list[str]:
    """What the commands of a run print, once all its launches had memory for their maps."""
    traces = folder.path / "trace"
    before = set(traces.glob("*"))
    for _ in range(_MOST_RUNS):
        # A report of the folder shows all traces in it.
        for incomplete in set(traces.glob("*")) - before:
            shutil.rmtree(incomplete)
        printed = [folder.run(command) for command in commands]
        if not any(map(_INCOMPLETE.search, printed)):
            break
    return printed


def _fits(example: Example, group: Sequence[Example]) -> bool:
    taken = frozenset[str]().union(*(each.maps or () for each in group))
    return len(group) < _MOST_TOGETHER and not taken & (example.maps or frozenset())


def filled(text: str, outputs: Mapping[int, str]) -> str:
    """A page with other outputs. outputs: by the number of the command."""
    number = iter(range(len(outputs)))

    def block(match: re.Match[str]) -> str:
        commands = [part.partition("\n")[0] for part in re.split(r"^\$ ", match[1], flags=re.MULTILINE)[1:]]
        lines = "".join(f"$ {command}\n{outputs[next(number)]}" for command in commands)
        # Lines of tables end in spaces.
        return "```console\n" + re.sub(r" +$", "", lines, flags=re.MULTILINE) + "```"

    return _BLOCK.sub(block, text)


def main(pages: Sequence[str]) -> None:
    """Fill pages with what each of their commands prints by itself, where that is not what they have."""
    for page in map(Path, pages):
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as path:
            folder = Folder(Path(path), Path(home))
            folder.build()
            text = page.read_text()
            folder.begin(text)
            outputs = []
            for example in examples(text):
                printed = folder.run(example.command)
                outputs.append(example.output if is_as_shown(printed, example.output) else printed)
            page.write_text(filled(text, dict(enumerate(outputs))))


if __name__ == "__main__":
    main(sys.argv[1:])
