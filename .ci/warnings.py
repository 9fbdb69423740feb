"""Compile each C file under the compilers below that are installed: their warnings are errors. Nothing is linked.

    python .ci/warnings.py [COMPILER ...]

The one that the build uses is left out unless it is named: the build has the same options, and stops at a warning.
Exits with 1 if a file does not compile. Where none of the others is there, only the build's own has seen the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from neutrino.emulator import build as emulator
from neutrino.gcn import build as gcn
from neutrino.loader import build as loader
from neutrino.tracing import build as reader

COMPILERS = ("gcc-12", "clang-14", "clang-19")
_ROOT = Path(__file__).resolve().parents[1]
_OPTIONS = ("-std=gnu11", "-D_GNU_SOURCE", "-fPIC", "-fvisibility=hidden")


def _commands(compiler: str) -> list[list[str]]:
    # gcc sees variables that are not set only where it optimizes; clang sees all that it warns of in the source.
    what = ("-O2", "-c", "-o", "/dev/null") if compiler.startswith("gcc") else ("-fsyntax-only",)
    options = [*_OPTIONS, *what]
    front = [f'-DNT_FRONT_HOOK="{loader.HOOK_PLACEHOLDER}"', f'-DNT_FRONT_DRIVER="{loader.DRIVER_PLACEHOLDER}"']
    hook = [compiler, *options, *loader.WARNINGS, *front, f"-I{loader.CSRC}"]
    every = {path.relative_to(loader.CSRC).as_posix() for path in loader.CSRC.rglob("*.c")}
    sources = sorted(every - (set(loader.LATE_SOURCES) - set(loader.SOURCES)))
    return [
        *([*hook, str(loader.CSRC / name)] for name in sources),
        *([*hook, "-DNEUTRINO_LATE", str(loader.CSRC / name)] for name in loader.LATE_SOURCES),
        *([compiler, *options, *module.WARNINGS, str(Path(module.__file__).parent / "csrc" / name)]
          for module in (emulator, reader, gcn) for name in module.SOURCES),
    ]  # fmt: skip


def _fails(command: list[str]) -> bool:
    done = subprocess.run(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{command[0]} {command[-1]}:\n{done.stderr}")
    return done.returncode != 0


def _is_of_the_build(compiler: str) -> bool:
    own, other = (shutil.which(name) for name in (loader.compiler()[0], compiler))
    return own is not None and other is not None and Path(own).resolve() == Path(other).resolve()


def main(compilers: list[str]) -> int:
    wanted = compilers or [name for name in COMPILERS if not _is_of_the_build(name)]
    found = [name for name in wanted if shutil.which(name)]
    if not found:
        print(f"none of {', '.join(wanted)} is installed: nothing was compiled", file=sys.stderr)
        return 0
    commands = [command for name in found for command in _commands(name)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = sum(pool.map(_fails, commands))
    print(f"{len(commands)} files compiled by {', '.join(found)}: {failed} with warnings or errors")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
