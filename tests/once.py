"""What costs much to build and what several folders of tests load: built once a run, whichever process asks first."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from neutrino.emulator import build as emulator_build
from neutrino.gcn import build as gcn_build
from neutrino.loader import build as loader_build
from neutrino.tracing import build as tracing_build

SANITIZERS: Mapping[str, tuple[str, ...]] = {
    "plain": ("-O2",),
    "address": ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-O1", "-g1", "-fsanitize=thread"),
}
"""Flags of the compiler, by name. AddressSanitizer sees the same in code that is not optimized, compiled sooner; what
they say needs functions and lines alone (-g1)."""


def once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """The folder of that name, into which build wrote in this process or in another of this run."""
    root = factory.getbasetemp()
    # The processes of a run have their folders side by side.
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, built = root / name, root / f"{name}.built"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            folder.mkdir(exist_ok=True)
            build(folder)
            built.touch()
    return folder


BUILDS = tuple(Path(str(module.__file__)) for module in (loader_build, emulator_build, tracing_build, gcn_build))
"""What builds the libraries that ``make setup`` leaves in the folder ``lib`` beside each."""


def built(script: Path) -> list[Path]:
    """The libraries that ``make setup`` has built with a build.py; none if its sources are newer."""
    libraries = [*(script.parent / "lib").glob("*.so*")]
    sources = [script, *(script.parent / "csrc").rglob("*.[ch]")]
    written = max(source.stat().st_mtime for source in sources)
    return libraries if all(library.stat().st_mtime > written for library in libraries) else []


def missing_builds(scripts: Iterable[Path]) -> str:
    """What to say where libraries are not built, or were built before their sources were changed; "" where all are."""
    missing = [script for script in scripts if not built(script)]
    if not missing:
        return ""
    folders = ", ".join(str(script.parent / "lib") for script in missing)
    return f"the C libraries in {folders} are missing, or older than their sources: run `make setup-dev` first"


def copy_built(script: Path, folder: Path) -> bool:
    """Copy the libraries that ``make setup`` has built with a build.py, and say so, if its sources are not newer."""
    libraries = [] if "CC" in os.environ else built(script)
    for library in libraries:
        folder.mkdir(exist_ok=True)
        shutil.copy2(library, folder)
    return bool(libraries)


def stand_in(factory: pytest.TempPathFactory, sanitizer: str = "plain") -> Path:
    """The folder of the stand-in driver. Skips where the compiler has no such sanitizer that works."""

    def build(folder: Path) -> None:
        if sanitizer != "plain":
            require_sanitizer(sanitizer, folder)
        elif copy_built(Path(emulator_build.__file__), folder):
            return
        emulator_build.build(folder, flags=SANITIZERS[sanitizer])

    return once(factory, f"stand-in-{sanitizer}", build)


def require_sanitizer(sanitizer: str, folder: Path) -> None:
    """Skip the test where the compiler has no such sanitizer that works. folder: for a program that tries it."""
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    command = [*emulator_build.compiler(), *SANITIZERS[sanitizer], str(source), "-o", str(folder / "empty")]
    built = subprocess.run(command, capture_output=True, check=False)
    if built.returncode or subprocess.run([str(folder / "empty")], check=False).returncode:
        pytest.skip(f"this compiler has no working -fsanitize={sanitizer}")
