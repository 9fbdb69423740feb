"""Compile the reader's aggregates and what accesses are like: ``neutrino/tracing/lib/libneutrino_aggregate.so``.

Needs a C compiler alone.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

SOURCES = ("aggregate.c", "accesses.c", "log_groups.c")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wvla")
LIBRARY = "libneutrino_aggregate.so"

_HERE = Path(__file__).resolve().parent


def compiler() -> list[str]:
    """Return the command of the C compiler: ``$CC``, else the one that built Python if installed, else ``cc``."""
    if "CC" in os.environ:
        return shlex.split(os.environ["CC"])
    command = shlex.split(sysconfig.get_config_var("CC") or "cc")
    # Python's own flags (such as -pthread) are dropped.
    return [part for part in command if not part.startswith("-")] if shutil.which(command[0]) else ["cc"]


def build(target: Path, *, flags: tuple[str, ...] = ("-O3",), warnings: tuple[str, ...] = WARNINGS) -> Path:
    """Compile the library into the folder ``target``, and return its path.

    flags: for optimisation or sanitizers. warnings: options of the compiler, too. Raise CalledProcessError if the
    compiler fails.
    """
    source = _HERE / "csrc"
    target.mkdir(parents=True, exist_ok=True)
    # Not over a library that a running reader has mapped: a new file takes its place.
    made = target / f".{LIBRARY}.new"
    command = [
        *compiler(), "-std=gnu11", "-g", "-fPIC", "-shared", "-fvisibility=hidden", *flags, *warnings,
        f"-ffile-prefix-map={source}=csrc", *(str(source / name) for name in SOURCES), "-o", str(made),
        f"-Wl,-soname,{LIBRARY}", "-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return made.replace(target / LIBRARY)


if __name__ == "__main__":
    import argparse

    _parser = argparse.ArgumentParser("python -m neutrino.tracing.build", description="Compile the reader of traces.")
    _parser.add_argument("folder", nargs="?", type=Path, default=_HERE / "lib", help="default: in the package")
    build(_parser.parse_args().folder)
