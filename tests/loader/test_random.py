"""Programs of random calls: with the hook they print what they print without it, and the trace holds what they did."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import POOL_LEAST, Bench, Reference
from .trace_files import Files

PROGRAMS = [
    # seed, threads, calls of each
    (1, 1, 300),
    (2, 3, 120),
    (3, 4, 100),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_random_calls(
    any_bench: Bench, tmp_path: Path, reference: Reference, program: tuple[int, int, int]
) -> None:
    device = {"seed": program[0], "delay": 200}
    arguments = tuple(map(str, program))
    result = any_bench.run("random", tmp_path, *arguments, device=device, extra={"NEUTRINO_POOL": str(POOL_LEAST)})
    expected, status = reference("random", *arguments, device=device)
    assert "but" not in expected
    assert result.stdout.splitlines() == expected.splitlines()
    assert result.returncode == status == 0
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2", "count_p6")
    assert counted["probed"] == len(files.written()) > 0
    assert "refused" in counted
    assert counted.keys() <= {"probed", "refused", "pool-full", "context"}
    files.check_tickets(any_bench.maps)
