"""The stand-in driver under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import HERE, SCENARIOS, Bench, sanitized_bench

# Threads of queues, and what handles point at, live until the process ends, by design.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
    "TSAN_OPTIONS": "exitcode=99",
}
PROGRAMS = (*SCENARIOS, "prints waits")


@pytest.fixture(scope="module", params=["address", "thread"])
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return sanitized_bench(tmp_path_factory, request.param)


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_report(sanitized: Bench, program: str, tmp_path: Path) -> None:
    extra = OPTIONS | ({"HOST_IMAGE": str(HERE / "prints.ptx")} if program.startswith("prints") else {})
    result = sanitized.run(*program.split(), extra=extra, strict=1, seed=5, delay=300, count=tmp_path / "counts")
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)
