"""Logs, in every Python process under the runner, each import of a module that takes part in making twins."""

import os
import sys

_WATCHED = ("neutrino.maker.patcher", "neutrino.ptx", "neutrino.fatbin", "neutrino.sass")


class _Watch:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Python calls this before each import: write the module's name to the log, if it is watched, and
        find nothing.
        """
        log = os.environ.get("NEUTRINO_BENCH_LOG")
        if log and name.startswith(_WATCHED):
            # Not by pathlib, which would be an import of its own.
            with open(log, "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write(f"import {name}\n")


sys.meta_path.insert(0, _Watch)  # type: ignore[arg-type]
