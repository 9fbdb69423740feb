"""``-D NAME=VALUE``: every command that loads probes gives their constants other values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import neutrino
from neutrino.cli.probe import main

ROOT = Path(__file__).resolve().parents[2]
PROBE = """import neutrino.language as nl

STEP = 4

@nl.probe(pos="ld.global", level="thread", after=True)
def p():
    nl.save(STEP, dtype=nl.u32)
"""
KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 a)
{
    .reg .b64 %a;
    .reg .b32 %x;
    ld.param.u64 %a, [a];
    ld.global.b32 %x, [%a];
    st.global.b32 [%a], %x;
    ret;
}
"""


@pytest.fixture
def probe(tmp_path: Path) -> str:
    path = tmp_path / "p.py"
    path.write_text(PROBE)
    (tmp_path / "k.ptx").write_text(KERNEL)
    return str(path)


@pytest.mark.parametrize(("value", "saved"), [("7", "7"), ("0x10", "16")])
def test_compile_and_show(value: str, saved: str, probe: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["compile", probe], ["show", probe, str(Path(probe).parent / "k.ptx"), "--text-only"]):
        assert main([*command, "-D", f"STEP={value}"]) == 0
        given = capsys.readouterr().out
        assert main(command) == 0
        assert given == capsys.readouterr().out.replace("{ 4 }", f"{{ {saved} }}").replace(", 4;", f", {saved};")


def test_try_and_sites(probe: str, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = str(Path(probe).parent / "k.ptx")
    assert main(["try", probe, kernel, "--json", "-D", "STEP=77"]) == 0
    saved = json.loads(capsys.readouterr().out)["maps"][0]["columns"]
    assert set(saved["STEP"]) == {77}
    assert main(["sites", probe, kernel, "-D", "STEP=77"]) == 0


def test_check(probe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", probe, "block_sched", "-D", "STEP=9"]) == 0
    assert main(["check", probe, "-D", "STEP=2.5"]) == 2
    assert "-D STEP=2.5, but STEP is a whole number [python-define]" in capsys.readouterr().err
    assert main(["check", probe, "-D", "STEPS=2"]) == 2
    assert "-D STEPS: no probe file has a constant of that name; did you mean STEP?" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["STEP", "STEP=", "=4", "4=4", "STEP=four", "STEP=1" + "0" * 200])
def test_what_is_no_value(text: str, probe: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", probe, "-D", text])
    assert "argument -D/--define" in capsys.readouterr().err


def test_neutrino_takes_it(probe: str, tmp_path: Path) -> None:
    """A constant that no file has ends the run before COMMAND, and -D needs a probe."""
    for options, words in (
        (["-p", probe, "-D", "STEPS=1"], "did you mean STEP?"), (["-D", "STEP=1"], "-D needs a probe"),
    ):  # fmt: skip
        command = [sys.executable, "-m", "neutrino.cli.run", *options, "touch", str(tmp_path / "ran")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        assert ended.returncode in {2, 125}
        assert words in ended.stderr
        assert not (tmp_path / "ran").exists()


def test_a_run_records_with_it(probe: str, tmp_path: Path) -> None:
    """On the embedded device; the trace's probe.toml has the number, and its events the option."""
    demo = tmp_path / "demo"
    make = ["make", "-s", "-C", str(ROOT / "examples" / "embedded"), f"OUT={demo}", f"PYTHON={sys.executable}"]
    subprocess.run(make, check=True)
    options = ["--device", "embedded", "-q", "--tracedir", str(tmp_path / "trace"), "-p", probe, "-D", "STEP=77"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "neutrino.cli.run", *options, "./program"]
    subprocess.run(command, check=True, cwd=demo, env=environment, capture_output=True, timeout=600)
    (folder,) = (tmp_path / "trace").iterdir()
    assert "SAVE [ p ] { 77 };" in (folder / "probe.toml").read_text()
    assert "-DSTEP=77" in (folder / "events.jsonl").read_text()
    launches = [launch for kernel in neutrino.open_trace(folder).kernels for launch in kernel.launches()]
    saved = [launch.maps["p"].records["STEP"] for launch in launches]
    assert sum((values == 77).sum() for values in saved) > 0
    assert all(set(values.reshape(-1).tolist()) <= {0, 77} for values in saved)
