"""The command line of a bench that records raw samples on a GPU and computes verdicts from them."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.recorded import judge_files, save
from bench.verdicts import Verdict, say

Json = Any
COMMAND = f"{shlex.quote(sys.executable)} -m neutrino.cli.run"
"""What probes a program, unless the command line says otherwise."""


@dataclass(frozen=True)
class Bench:
    """``python3 -m bench.NAME record|judge [--out FILE]``.

    record: takes the options and the words of ``neutrino``, and returns the samples. keys: those that a file of
    results has at least. rounds: the default of ``--rounds``; None: there is no such option. add: adds further options.
    """

    name: str
    results: Path
    keys: Sequence[str]
    record: Callable[[argparse.Namespace, Sequence[str]], Json]
    judge: Callable[[Json], list[Verdict]]
    table: Callable[[Json], str] | None = None
    rounds: int | None = None
    add: Callable[[argparse.ArgumentParser], None] = lambda parser: None

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Record on a GPU, if asked to, and print the verdicts.

        Returns the exit status: 0 all good, 1 a verdict is not, 2 the file cannot be judged.
        """
        parser = argparse.ArgumentParser(prog=f"python -m bench.{self.name}")
        parser.add_argument("action", choices=("record", "judge"))
        parser.add_argument("--neutrino", default=COMMAND, help="the command that probes a program")
        if self.rounds is not None:
            parser.add_argument("--rounds", type=int, default=self.rounds, help="timed processes of each mode")
        self.add(parser)
        parser.add_argument("--out", type=Path, default=self.results, help="the raw samples, as JSON")
        options = parser.parse_args(arguments)
        if options.action == "record":
            samples = self.record(options, shlex.split(options.neutrino))
            save(options.out, samples)
        return judge_files([options.out], f"python3 -m bench.{self.name} record", self.keys, self._say)

    def _say(self, results: Json) -> int:
        """Print the verdicts on recorded results and their table. Returns 1 when a verdict is bad, else 0."""
        status = say(self.judge(results))
        if self.table is not None:
            print(self.table(results))
        return status
