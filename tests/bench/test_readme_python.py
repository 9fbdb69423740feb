"""The README's Python example prints what stands below it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.examples import README, ROOT, Block, Example, run_block

_EXAMPLE = re.compile(r"^```python\n(import .*?)^```$.*?^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BUILT = "neutrino-extract examples/embedded/build/libvector.so"


def test_it_prints_what_the_readme_says(tmp_path: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("make is not on this machine")
    ((script, printed),) = _EXAMPLE.findall(README.read_text())
    run_block(Block((Example(_BUILT, ""),)), tmp_path)
    before = sorted(tmp_path.iterdir())
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout == printed
    # What is left in the checkout must not be in the way of later imports, as a copy.so would be.
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "trace"])
