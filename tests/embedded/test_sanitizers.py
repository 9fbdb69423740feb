"""The stand-in driver under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from neutrino.emulator import build

from .conftest import HERE, Bench

FLAGS = {
    "address": ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-O1", "-fsanitize=thread"),
}
# Threads of queues, and what handles point at, live until the process ends, by design.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
    "TSAN_OPTIONS": "exitcode=99",
}
PROGRAMS = (
    "basic vecadd",
    "basic order",
    "graph replay",
    "graph by-hand",
    "graph errors",
    "graph threads",
    "life reset",
    "life reuse",
    "life spin",
    "life default-stream",
    "life events",
    "life libraries",
    "life fork",
    "life threads",
    "life memory",
    "life refused",
    "prints waits",
)


@pytest.fixture(scope="module", params=sorted(FLAGS))
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    flags = FLAGS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    command = [*build.compiler(), *flags, str(source), "-o", str(folder / "empty")]
    built = subprocess.run(command, capture_output=True, check=False)
    if built.returncode or subprocess.run([str(folder / "empty")], check=False).returncode:
        pytest.skip(f"this compiler has no working -fsanitize={request.param}")
    return Bench(folder).build(flags)


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_report(sanitized: Bench, program: str, tmp_path: Path) -> None:
    extra = OPTIONS | ({"HOST_IMAGE": str(HERE / "prints.ptx")} if program.startswith("prints") else {})
    result = sanitized.run(*program.split(), extra=extra, strict=1, seed=5, delay=300, count=tmp_path / "counts")
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)
