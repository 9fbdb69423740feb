"""The shipped scripts: by hand, as an analyze hook, and as a callback, once for each dump."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from neutrino.resources import shipped_script, tool_path
from neutrino.tracing import find_traces
from neutrino.tracing.analyses.registry import ANALYSES
from neutrino.verification import load_probes
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions

HERE = Path(__file__).parent
SCRIPTS = {**{name: (name,) for name in ANALYSES}, "block_sched": ("scheduling", "tail"), "dmat": ("access_patterns",)}
TOML = """
callback='dmat.py'
analyze_hook = "block_sched.py"

[map.Starts]
type = "array"
level = "warp"
data = { start = "u64" }

[probe.starts]
position = "kernel"
level = "warp"
before = '''.reg .u64 %now;
mov.u64 %now, %clock64;
SAVE [ Starts ] { %now };'''
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    writer = TraceWriter(tmp_path / "t", device="Another GPU")
    for kernel, end in ((1, 100), (2, 900)):
        writer.kernel(kernel, f"k{kernel}", maps=[BLOCK_SCHED])
        values = {"BlockSched": [(0, 100, 0), (0, end, 1)]}
        writer.launch(kernel, (2, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 2, values))
    return writer.write()


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, tool_path(f"{name}.py"), *arguments], check=False, capture_output=True, text=True,
        timeout=600,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_analysis_has_a_script(name: str, trace: Path) -> None:
    text = tool_path(f"{name}.py").read_text()
    assert f'run([{", ".join(chr(34) + analysis + chr(34) for analysis in SCRIPTS[name])}], sys.argv)' in text
    assert shipped_script(f"{name}.py") == tool_path(f"{name}.py")
    if name not in ("scheduling", "tail", "block_sched"):
        ran = run(name, trace)
        assert (ran.returncode, ran.stdout) == (3, "")
        assert f"-p {ANALYSES[SCRIPTS[name][0]].probes[0][0]}" in ran.stderr


def test_a_trace_or_a_dump_of_one_kernel(trace: Path) -> None:
    whole = run("block_sched", trace)
    assert [line for line in whole.stdout.splitlines() if not line.startswith(" ")] == [
        "issue: tail in k2(int*)", "ok: scheduling in k2(int*)", "ok: scheduling in k1(int*)", "ok: tail in k1(int*)",
    ]  # fmt: skip
    one = run("tail", trace / "result" / "2.bin")
    assert one.stdout.startswith("issue: tail in k2(int*)\n")
    assert "k1" not in one.stdout
    assert (whole.returncode, one.returncode) == (0, 0)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("a", "b"), ("/nowhere",)])
def test_bad_arguments(arguments: tuple[str, ...]) -> None:
    ran = run("tail", *arguments)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_a_probe_file_names_shipped_scripts_and_its_own_ones_come_first(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(TOML)
    probes = load_probes([str(path)])
    assert probes.callbacks == (str(tool_path("dmat.py")),)
    assert probes.analyze_hooks == (str(tool_path("block_sched.py")),)
    assert not [warning for warning in probes.warnings if warning.code == "script-missing"]
    (tmp_path / "dmat.py").write_text("")
    assert load_probes([str(path)]).callbacks == (str(tmp_path / "dmat.py"),)
    for name in ("../tools/dmat.py", "read.py", "/dmat.py", "dmat", "."):
        path.write_text(TOML.replace("dmat.py", name))
        assert not load_probes([str(path)]).callbacks


def test_a_callback_runs_once_for_each_dump(tmp_path: Path) -> None:
    """The prototype's line, callback='dmat.py', in a probe file; a dump is what a kernel's launches have saved."""
    probe = tmp_path / "accesses.py"
    probe.write_text("CALLBACK = 'dmat.py'\n" + (tool_path("dmat.py").parents[1] / "probes" / "dmat.py").read_text())
    launches = ["uncoalesced_bad:4:128", "uncoalesced_good:4:128", "hot_addresses_good:2:64"]
    subprocess.run(
        [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "-q", "--tracedir", tmp_path / "traces",
         "-p", probe, sys.executable, HERE / "launch_pairs.py", HERE / "pairs.ptx", *launches],
        check=True, timeout=600,
    )  # fmt: skip
    (found,) = find_traces(tmp_path / "traces")
    expected = {
        "issue: access_patterns in uncoalesced_bad", "ok: access_patterns in uncoalesced_good",
        "ok: access_patterns in hot_addresses_good",
    }  # fmt: skip
    # Scripts run beside the program, and may end after it. A file that has grown meanwhile is a dump of its own.
    end = time.monotonic() + 600
    lines: list[str] = []
    while time.monotonic() < end and not expected <= set(lines):
        log = found / "analyze.log"
        text = log.read_text() if log.exists() else ""
        lines = [line for line in text.splitlines() if not line.startswith(" ")]
        time.sleep(0.2)
    assert set(lines) == expected
    assert len(lines) <= 2 * len(expected)
