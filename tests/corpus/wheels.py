"""Wheels of PyPI with GPU code, downloaded once, and the libraries in them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WHEELS = Path(__file__).resolve().parents[2] / ".corpus" / "wheels"
PLATFORMS = ("manylinux_2_32_x86_64", "manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64",
             "manylinux_2_17_x86_64", "manylinux2014_x86_64")  # fmt: skip


@dataclass(frozen=True)
class Package:
    """A wheel of PyPI. requirement: as pip takes it. pattern: of the downloaded file. patch: architecture to make
    twins for, empty for none. tags: platforms that the wheel may be for."""

    requirement: str
    pattern: str
    patch: str = ""
    python: str = "3.11"


class CorpusError(Exception):
    """A wheel or a tool that cannot be had; the message says what to do."""


def fetch(package: Package, wheels: Path) -> Path:
    """The package's wheel, downloaded unless it is there. Raises CorpusError."""
    wheels.mkdir(parents=True, exist_ok=True)
    found = sorted(wheels.glob(package.pattern))
    if not found:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                "--python-version", package.python, "--implementation", "cp", "--dest", str(wheels),
                *(f"--platform={platform}" for platform in PLATFORMS), package.requirement]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or "no message").splitlines()[-1]
            raise CorpusError(f"{package.requirement}: pip could not download it: {said}. Without a network, put the "
                              f"wheel into {wheels}")  # fmt: skip
        found = sorted(wheels.glob(package.pattern))
    return found[-1]


def libraries(wheel: Path, folder: Path) -> Iterator[Path]:
    """The wheel's shared libraries and GPU images, unpacked into folder one at a time."""
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            if re.search(r"\.so(\.[\d.]+)?$", member):
                path = folder / Path(member).name
                with archive.open(member) as source, path.open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                path.chmod(0o755)
                yield path
