"""The bench of tracepoints in functions, at lines and between lanes: it runs on the embedded device, and its
model of the threads is right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import placed_verdicts
from bench.placed import PROBES
from bench.placed_lanes import collectives
from bench.placed_model import Kernels, lines, sad

ROOT = Path(__file__).resolve().parents[2]


def test_probes_name_the_lines_that_they_mean() -> None:
    numbers = lines()
    named = []
    for path in sorted(PROBES.glob("placed_*.toml")):
        for position, words in re.findall(r'^position = "(.*placed\.cu.*)"(.*)$', path.read_text(), re.MULTILINE):
            words = words.removeprefix(" # ")
            found = [int(number) for number in re.findall(r"\d+", position)]
            assert found == [numbers[word] for word in words.split()], f"{path.name}: {position}"
            named += words.split()
    assert {"FOLDED", "LOOP", "FIRST", "LAST", "ONCE", "WHOLE", "QUARTER", "TURN", "AGAIN"} == set(named)


def test_the_model_by_hand() -> None:
    """A thread whose calls can be followed on paper."""
    kernels = Kernels(np.arange(256, dtype=np.uint32))
    thread = kernels.run("calls", 15, 0)
    # weigh(15, 7): |15-15|+0, |0-16|+1, |17-17|+2, |2-18|+3, |19-19|+4, |4-20|+5, |21-21|+6.
    assert [row[3] for row in thread.sums[:7]] == [0, 17, 2, 19, 4, 21, 6]
    # 15 is a multiple of 3: weigh(6, 3) from the table's 6, 7, 8; and of 5: weigh(0x55, 3) and weigh(16, 2).
    assert [index for index, _, _ in thread.loads] == [*range(15, 22), 6, 7, 8, 85, 86, 87, 16, 17]
    assert [entry for _, _, entry in thread.loads] == 7 * [1] + 3 * [2] + 3 * [3] + 2 * [4]
    assert thread.entered == {"weigh": 4, "twice": 1, "depth": 0}
    second, third, fourth = sad(sad(sad(6, 6, 0), 7, 1), 8, 2), sad(sad(sad(85, 85, 0), 86, 1), 87, 2), 18
    assert thread.out == (6 ^ second) + third + 7 * fourth


def test_collectives_by_hand() -> None:
    """Three lanes, of which two have the same value."""
    values = {1: 6, 4: 3, 5: 6}
    of_four = collectives(0b110010, values, 4)
    assert of_four["any"] == 0b010000
    assert (of_four["all"], of_four["alike"], of_four["ballot"], of_four["votes"]) == (0, 0, 0b010000, 2)
    assert (of_four["add"], of_four["least"], of_four["greatest"]) == (15, 3, 6)
    assert (of_four["signed_add"], of_four["signed_least"], of_four["signed_greatest"]) == (3, 0xFFFFFFFF, 2)
    assert (of_four["and"], of_four["or"], of_four["xor"]) == (2, 7, 3)
    assert (of_four["first"], of_four["up"], of_four["down"], of_four["other"]) == (1 << 3 | 6, None, None, None)
    of_five = collectives(0b110010, values, 5)
    assert (of_five["any"], of_five["up"]) == (0b100010, 4 << 3 | 3)
    assert (of_five["other"], of_five["moved"]) == (1 << 3 | 6, None)


def test_the_embedded_device(tmp_path: Path) -> None:
    """All of it, as on a GPU but for nvcc and what it links."""
    if shutil.which("clang-19") is None:
        pytest.skip("clang-19 is not installed")
    command = [sys.executable, "-m", "bench.placed", "--device", "embedded", "--jobs", "4", "--budget", "150", "--out",
               str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + (tmp_path / "placed_diagnostics.txt").read_text()
    result = json.loads((tmp_path / "placed_embedded.json").read_text())
    assert [verdict for verdict in placed_verdicts.judge(result) if not verdict.good] == []
