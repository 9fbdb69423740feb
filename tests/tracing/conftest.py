"""The reader's C library, built with sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from neutrino.tracing import build
from tests.once import kept


@pytest.fixture(scope="session")
def address_sanitizer() -> tuple[str, Path]:
    """The paths of the runtime, which must be loaded before Python, and of the library, for processors of any kind."""
    flags = ("-O1", "-DWITHOUT_512", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    try:
        folder = kept("reader-address", build.compiler(), flags, (), lambda folder: build.build(folder, flags=flags))
    except subprocess.CalledProcessError:
        pytest.skip("this compiler has no -fsanitize=address")
    found = subprocess.run(
        [*build.compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not shutil.which("ldd") or not Path(found).is_file():
        pytest.skip("the runtime of -fsanitize=address is not a library here")
    return found, folder / build.LIBRARY
