"""The stand-in driver and programs of the driver API, compiled for these tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from neutrino.emulator import build
from tests.once import SANITIZERS, kept, once, stand_in

HERE = Path(__file__).parent
CSRC = Path(build.__file__).parent / "csrc"
ROOT = Path(build.__file__).parents[2]
PROGRAMS = ("basic", "graph", "life", "prints", "replays", "bodies", "green")
SCENARIOS = (
    "basic vecadd",
    "basic order",
    "graph replay",
    "graph by-hand",
    "graph errors",
    "graph threads",
    "replays write-value",
    "replays swapped",
    "replays nested",
    "replays disabled",
    "replays read-back",
    "replays identities",
    "replays attributes",
    "bodies conditional",
    "bodies memory-nodes",
    "green contexts",
    "life reset",
    "life reuse",
    "life spin",
    "life default-stream",
    "life events",
    "life libraries",
    "life library-threads",
    "life fork",
    "life threads",
    "life memory",
    "life refused",
)
"""Those that check all that they see by themselves, with or without sanitizers."""


def settings(**values: object) -> str:
    """A value for NEUTRINO_EMBEDDED."""
    pairs = {"python": sys.executable, "root": ROOT, **values}
    return ";".join(f"{key}={str(value).replace(';', '%3B')}" for key, value in pairs.items())


@dataclass(frozen=True)
class Bench:
    """Folder with the stand-in driver and the programs."""

    folder: Path

    def build(self, driver: Path, flags: tuple[str, ...]) -> Bench:
        """driver: the folder of the stand-in."""
        (self.folder / build.LIBRARY).symlink_to(driver / build.LIBRARY)
        for name in PROGRAMS:
            subprocess.run(
                [
                    *build.compiler(),
                    "-std=gnu11",
                    "-D_GNU_SOURCE",
                    "-g",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    f"-I{CSRC}",
                    *flags,
                    str(HERE / f"{name}.c"),
                    "-o",
                    str(self.folder / name),
                    "-ldl",
                    "-lpthread",
                ],
                check=True,
            )
        return self

    def environment(self, extra: Mapping[str, str] | None = None, **values: object) -> dict[str, str]:
        """What a program runs in. values: of NEUTRINO_EMBEDDED."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            "HOST_IMAGE": str(HERE / "kernels.ptx"),
            "NEUTRINO_EMBEDDED": settings(**values),
            **(extra or {}),
        }

    def run(
        self, *command: str, extra: Mapping[str, str] | None = None, **values: object
    ) -> subprocess.CompletedProcess[str]:
        """One of the programs, to its end. values: of NEUTRINO_EMBEDDED."""
        return subprocess.run(
            [str(self.folder / command[0]), *command[1:]],
            env=self.environment(extra, **values),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


def sanitized_bench(factory: pytest.TempPathFactory, sanitizer: str) -> Bench:
    driver = stand_in(factory, sanitizer)
    flags = SANITIZERS[sanitizer]

    def compile_into(folder: Path) -> None:
        Bench(folder).build(driver, flags)

    if sanitizer == "plain":
        return Bench(once(factory, "embedded-plain", compile_into))
    sources = [*HERE.glob("*.[ch]"), HERE / "conftest.py"]
    return Bench(kept(f"embedded-{sanitizer}", build.compiler(), (*flags, str(driver)), sources, compile_into))


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return sanitized_bench(tmp_path_factory, "plain")
