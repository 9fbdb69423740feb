"""The program of ``examples/embedded``, built for tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "embedded"


def build_example(folder: Path) -> Path:
    """Build the program and its library in a folder, by this Python; return the program's path.

    Raises CalledProcessError.
    """
    make = ["make", "-s", "-C", str(_EXAMPLE), f"OUT={folder}", f"PYTHON={sys.executable}"]
    subprocess.run(make, check=True, capture_output=True, timeout=600)
    return folder / "program"
