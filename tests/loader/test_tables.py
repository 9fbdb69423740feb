"""The hook's tables: work per operation does not grow with what is in them, nor memory with what was."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from .conftest import CSRC, HERE, Bench, compile_c
from .trace_files import Files

RELOADS = 6_000


def test_work_per_handle_and_name_is_constant(tmp_path: Path) -> None:
    program = tmp_path / "steps"
    names = ("grace.c", "handles.c", "lock.c", "memory.c")
    sources = (HERE / "programs" / "steps.c", *(CSRC / "base" / name for name in names))
    compile_c(program, "-O1", "-DNT_COUNT_STEPS", *map(str, sources))
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    rows = [[int(word) for word in line.split()] for line in printed.splitlines()]
    # Of 10,000, 100,000 and a million operations: steps in a thousand of them.
    assert len(rows) == 3
    assert max(max(row) for row in rows) < 10_000


def test_modules_loaded_again_and_again_leave_nothing(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("reloads", tmp_path, extra={"HOST_COUNT": str(RELOADS)})
    assert result.returncode == 0
    (kilobytes,) = re.findall(r"grew by (-?\d+) KiB", result.stderr)
    # 500 bytes of each reload were kept. What launches.bin has of each launch is not counted.
    assert int(kilobytes) * 1024 < RELOADS * 100
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2")["probed"] >= RELOADS // 100
