"""The hook under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from neutrino.loader import build, install

from .conftest import Bench
from .trace_files import Files

FLAGS = {
    "address": ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-O1", "-fsanitize=thread"),
}
OPTIONS = {
    # The drain thread and what it points at live until the process ends, by design.
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
    "TSAN_OPTIONS": "exitcode=99:halt_on_error=0:report_signal_unsafe=0",
}
SCENARIOS = {
    "plain": "20\n",
    "extra": "20\n",
    "threads": "12000\n",
    "large": "7\n",
    "spin": "200\n",
    "reload": "50\n",
    "destroy": "30\n",
    "cut": "21\n",
    "fault": "10\n",
    "unannounced": "6\n",
    "own-streams": "40\n",
    "churn": "4800\n",
    "short-streams": "900\n",
    "names": "15\n",
    "primary": "15\n",
}
SETTINGS = {"unannounced": {"FAKE_SLOW": "1"}, "own-streams": {"NEUTRINO_POOL": str(4 << 20)}}


@pytest.fixture(scope="session", params=sorted(FLAGS))
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    flags = FLAGS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    built = subprocess.run(
        [*build.compiler(), *flags, str(source), "-o", str(folder / "empty")], capture_output=True, check=False
    )
    if built.returncode or subprocess.run([str(folder / "empty")], check=False).returncode:
        pytest.skip(f"this compiler has no working -fsanitize={request.param}")
    return Bench(folder).build(flags)


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_no_report(sanitized: Bench, scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_BUILT", sanitized.folder / "lib")
    result = sanitized.run(scenario, tmp_path, extra=OPTIONS | SETTINGS.get(scenario, {}))
    assert "Sanitizer" not in result.stderr, result.stderr[:4000]
    assert "runtime error" not in result.stderr, result.stderr[:4000]
    assert (result.stdout, result.returncode) == (SCENARIOS[scenario], 0), result.stderr[:4000]
    Files(tmp_path / "trace").check_records()
