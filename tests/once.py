"""What costs much to build, and what several folders of tests load: built once, whichever process asks first.

``once`` is for a run. ``kept`` is for what a compiler makes of sources: it stays in ``build/tests`` for the next runs,
until a source, an option or the compiler is another.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
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


ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "tests"
"""Where ``kept`` has its folders; ``make clean`` removes them."""
_UNUSED_DAYS = 2


def once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """The folder of that name, into which build wrote in this process or in another of this run."""
    root = factory.getbasetemp()
    # The processes of a run have their folders side by side.
    return _built_in(root.parent if "PYTEST_XDIST_WORKER" in os.environ else root, name, build)


def kept(
    name: str, compiler: Sequence[str], options: Iterable[str], sources: Iterable[Path], build: Callable[[Path], object]
) -> Path:
    """The folder of that name, into which build wrote in this run or an earlier one.

    compiler: the command; what it says of its version counts. options: all that changes what build makes. sources: the
    files that it reads besides all of C in the package. Nothing else may be written there. What no run has used for
    two days is removed.
    """
    said = (ROOT, name, *compiler, _version(tuple(compiler)), *platform.libc_ver(), *options, _package())
    digest = hashlib.sha256("\0".join(map(str, said)).encode())
    for source in sorted(sources):
        digest.update(f"\0{source}\0".encode() + source.read_bytes())
    KEPT.mkdir(parents=True, exist_ok=True)
    folder = _built_in(KEPT, f"{name}-{digest.hexdigest()[:24]}", build)
    now = time.time()
    os.utime(folder, (now, now))
    for old in KEPT.glob(f"{name}-{'?' * 24}"):
        if now - old.stat().st_mtime > _UNUSED_DAYS * 86400:
            old.with_name(f"{old.name}.built").unlink(missing_ok=True)
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _built_in(root: Path, name: str, build: Callable[[Path], object]) -> Path:
    """The folder of that name below root, into which build wrote once, in this process or in another."""
    folder, built = root / name, root / f"{name}.built"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists() or not folder.is_dir():
            # A build that was interrupted has left what is incomplete.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            built.touch()
    return folder


@cache
def _version(compiler: tuple[str, ...]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout


@cache
def _package() -> str:
    """A digest of all C in the package, and of what compiles it."""
    digest = hashlib.sha256()
    package = ROOT / "neutrino"
    for source in sorted((*package.rglob("*.[ch]"), *package.glob("*/build.py"))):
        digest.update(f"{source.relative_to(package)}\0".encode() + source.read_bytes())
    return digest.hexdigest()


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

    if sanitizer == "plain":
        return once(factory, "stand-in-plain", build)
    return kept(f"stand-in-{sanitizer}", emulator_build.compiler(), SANITIZERS[sanitizer], (), build)


def require_sanitizer(sanitizer: str, folder: Path) -> None:
    """Skip the test where the compiler has no such sanitizer that works. folder: for a program that tries it."""
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    command = [*emulator_build.compiler(), *SANITIZERS[sanitizer], str(source), "-o", str(folder / "empty")]
    built = subprocess.run(command, capture_output=True, check=False)
    if built.returncode or subprocess.run([str(folder / "empty")], check=False).returncode:
        pytest.skip(f"this compiler has no working -fsanitize={sanitizer}")
