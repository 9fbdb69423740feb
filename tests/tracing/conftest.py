"""The reader's C library, built with sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from neutrino.tracing import build


@pytest.fixture
def address_sanitizer(tmp_path: Path) -> str:
    """The path of the runtime, which must be loaded before Python."""
    flags = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    try:
        build.build(tmp_path, flags=flags)
    except subprocess.CalledProcessError:
        pytest.skip("this compiler has no -fsanitize=address")
    found = subprocess.run(
        [*build.compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not shutil.which("ldd") or not Path(found).is_file():
        pytest.skip("the runtime of -fsanitize=address is not a library here")
    return found
