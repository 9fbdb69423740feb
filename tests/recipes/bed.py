"""The program that recipes are judged by: its launches, a folder to run it in, and what it must have done."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tests.recipes.model import Launch, Step, Text, read, run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TEXT = (HERE / "kernels.ptx").read_text()
MOST_RUNS = 4
_INCOMPLETE = re.compile(r"ran without probes|found no memory| dropped")
"""What is said where maps had no memory."""
_INFINITE = (150, 301)
"""Elements of x and y that add up to a NaN."""


def _floats(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _arrays() -> dict[str, bytes]:
    x: list[float] = [i % 7 for i in range(2048)]
    y: list[float] = [1] * 512 + [0] * 3584
    for i in _INFINITE:
        x[i], y[i] = float("-inf"), float("inf")
    addends: list[float] = [i * i % 7 for i in range(1024)]
    return {
        "x": _floats(x), "y": _floats(y), "addends": _floats(addends), "total": bytes(64), "out": bytes(4096),
        "copies": bytes(1024),
    }  # fmt: skip


ARRAYS = _arrays()
# Of the three launches of saxpy the second one has another size.
_SAXPY = [
    Launch("saxpy", (3, 2, 1), (7, 5, 2), {"x": "x", "y": "y", "a": 2.0, "n": n}) for n in (400, 333, 400)
]
LAUNCHES = (
    *_SAXPY,
    Launch("sum", (2, 2, 2), (8, 6, 1), {"x": "addends", "total": "total", "n": 900}),
    Launch("matrix", (2, 2, 1), (16, 4, 1), {"out": "out", "n": 4}),
    Launch("copy", (2, 3, 1), (5, 4, 2), {"x": "x", "out": "copies", "n": 1}),
)


@dataclass(frozen=True, eq=False)
class Program:
    """text: its kernels. arrays: what they contain at first."""

    text: str
    arrays: Mapping[str, bytes]
    launches: tuple[Launch, ...]


PROGRAM = Program(TEXT, ARRAYS, LAUNCHES)


@cache
def texts() -> dict[str, Text]:
    return read(TEXT)


@dataclass(frozen=True)
class Model:
    """What the program's kernels do. arrays: their contents at the end. addresses: where they are."""

    steps: tuple[Step, ...]
    arrays: Mapping[str, bytes]
    addresses: Mapping[str, int]


@cache
def _model(program: Program, addresses: tuple[tuple[str, int], ...]) -> Model:
    contents = {name: (address, bytearray(program.arrays[name])) for name, address in addresses}
    steps = run(read(program.text), program.launches, contents)
    return Model(tuple(steps), {name: bytes(content) for name, (_, content) in contents.items()}, dict(addresses))


def model_of(addresses: Mapping[str, int], program: Program = PROGRAM) -> Model:
    """What the kernels do with the arrays at these addresses."""
    return _model(program, tuple(addresses.items()))


@dataclass(frozen=True)
class Finished:
    """What a command printed, and where the program's arrays were."""

    out: str
    err: str
    model: Model


class Folder:
    """A folder with a program. home: for the cache. schedule: of the embedded device."""

    def __init__(self, path: Path, home: Path, program: Program = PROGRAM, schedule: str = "") -> None:
        self.path = path
        self._device = ("--device", f"embedded:memory=1G{schedule}", "--max-device-memory", "512M")
        self.program = program
        self.environment = {
            **os.environ, "XDG_CACHE_HOME": str(home), "COLUMNS": "200", "PYTHONPATH": str(ROOT), "NO_COLOR": "1",
            # The device runs the twins' text: to optimise it first, as ptxas would, takes longer than to run it.
            "NEUTRINO_PTXAS": "/nonexistent/ptxas",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        plan = {
            "arrays": {name: content.hex() for name, content in program.arrays.items()},
            "launches": [asdict(launch) for launch in program.launches],
        }
        (path / "launches.json").write_text(json.dumps(plan))
        (path / "kernels.ptx").write_text(program.text)
        script = path / "program"
        script.write_text(f"#!{sys.executable}\n" + (HERE / "program.py").read_text())
        script.chmod(0o755)

    def printed(self, *arguments: str) -> Finished:
        """As ``run``, again where maps had no memory: on a loaded machine the launch before may still have it."""
        for _ in range(MOST_RUNS):
            finished = self.run(*arguments)
            if not _INCOMPLETE.search(finished.err):
                break
        return finished

    def run(self, *arguments: str) -> Finished:
        """Run ``neutrino`` with these arguments, of which the last ones are the program; its results must be right."""
        finished = subprocess.run(
            [sys.executable, "-m", "neutrino.cli.run", *self._device, *arguments], cwd=self.path, env=self.environment,
            text=True, capture_output=True, timeout=600, check=False,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        after = json.loads((self.path / "after.json").read_text())
        (self.path / "after.json").unlink()
        model = model_of(after["addresses"], self.program)
        for name, content in model.arrays.items():
            assert bytes.fromhex(after["arrays"][name]) == content, name
        return Finished(finished.stdout, finished.stderr, model)
