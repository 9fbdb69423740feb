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

_EXAMPLE = re.compile(r"^```python\n(import neutrino\n.*?)^```$.*?^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = "neutrino --device embedded -p block_sched -p gmem_bytes examples/embedded/build/program"


def test_it_prints_what_the_readme_says(tmp_path: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("make is not on this machine")
    text = README.read_text()
    assert f"$ {RUN}\n" in text
    ((script, printed),) = _EXAMPLE.findall(text)
    run_block(Block((Example(RUN, ""),)), tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout == printed
