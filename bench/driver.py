"""What a GPU's driver answers to the questions of tests/embedded, for the stand-in driver to be compared with.

    python3 -m bench.driver record --out FOLDER    on a machine with a GPU and a C compiler: FOLDER/driver_h200.json

The programs ``tests/embedded/ask_*.c`` print a line for each question. Every group of a program is a process of its
own: one that breaks its context, crashes or never comes back takes nothing with it but the rest of its lines.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.probed import made_with
from bench.recorded import save

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = ROOT / "tests" / "embedded"
HEADERS = ROOT / "neutrino" / "emulator" / "csrc"
IMAGE = QUESTIONS / "questions.ptx"
RESULTS = ROOT / "bench" / "results" / "driver_h200.json"
PATIENCE = 30.0
"""Seconds that a group may take."""


@dataclass(frozen=True)
class Group:
    """Questions that one process asks. program: a source's name without its ending; name: the program's argument."""

    program: str
    name: str

    def __str__(self) -> str:
        """The key in the results of this group of questions to the driver: program and name."""
        return f"{self.program} {self.name}"


@dataclass(frozen=True)
class Answers:
    """What a group printed, whole lines and perhaps a last one that is not, and how its process ended.

    end: the exit status, negative for a signal; None: it did not end in time.
    """

    lines: tuple[str, ...]
    end: int | None


def sources() -> list[Path]:
    """Return the paths of the C programs that ask the CUDA driver questions."""
    return sorted(QUESTIONS.glob("ask_*.c"))


def source_hash(programs: Collection[str]) -> str:
    """Return a digest of the programs that ask the driver questions, as only answers to the same questions can be
    compared.

    SHA-256, in hex, of all that decides what they ask.
    """
    state = hashlib.sha256()
    asked = [path for path in sources() if path.stem in programs]
    graphs = [QUESTIONS / "asking_graphs.h"] if any("asking_graphs.h" in path.read_text() for path in asked) else []
    for path in (*asked, *graphs, QUESTIONS / "asking.h", QUESTIONS / "host.h", IMAGE):
        state.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()


def compile_programs(folder: Path, compiler: Sequence[str] = ("cc",), flags: Sequence[str] = ()) -> None:
    """Compile every program that asks the driver questions into the folder.

    Raises subprocess.CalledProcessError; FileNotFoundError without a compiler.
    """
    for source in sources():
        out = str(folder / source.stem)
        command = [*compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", *flags, f"-I{HEADERS}", str(source)]
        subprocess.run([*command, "-o", out, "-ldl", "-lpthread"], check=True)


def find_groups(folder: Path) -> Iterator[Group]:
    """The groups of questions of the compiled programs, as each program lists them itself. No driver is needed."""
    for source in sources():
        said = subprocess.run([str(folder / source.stem)], capture_output=True, text=True, check=True, timeout=10)
        for name in said.stdout.split():
            yield Group(source.stem, name)


def ask(folder: Path, group: Group, environment: Mapping[str, str]) -> Answers:
    """Ask the CUDA driver one group of questions, by running the program that does; return its answers.

    It is the libcuda.so.1 that the environment leads to.
    """
    with tempfile.TemporaryFile("w+") as out:
        command = [str(folder / group.program), group.name]
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.DEVNULL, env={**environment, "HOST_IMAGE": str(IMAGE)}
        )
        end: int | None
        try:
            end = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            end = None
        out.seek(0)
        return Answers(tuple(out.read().splitlines()), end)


def record(out: Path) -> int:
    """Ask the machine's CUDA driver all questions, and write its answers. Returns 0 when every group came to its end,
    else 1."""
    result = made_with("driver_h200")
    answers: dict[str, dict[str, Any]] = {}
    programs = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_programs(folder)
        for group in find_groups(folder):
            found = ask(folder, group, os.environ)
            programs.add(group.program)
            answers[str(group)] = {"end": found.end, "lines": found.lines}
    out.mkdir(parents=True, exist_ok=True)
    save(out / RESULTS.name, result | {"questions": source_hash(programs), "answers": answers})
    broken = [f"{group}: end {row['end']}" for group, row in answers.items() if row["end"] != 0]
    print("\n".join(broken))
    print(f"{sum(len(row['lines']) for row in answers.values())} answers; {len(broken)} groups broken")
    return 1 if broken else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.driver")
    parser.add_argument("action", choices=("record",))
    parser.add_argument("--out", type=Path, default=RESULTS.parent)
    sys.exit(record(parser.parse_args().out))
