"""Probes in one line where commands take the name of a probe: for AMD's GPUs and NVIDIA's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neutrino.cli import patch, probe
from neutrino.errors import NeutrinoError
from neutrino.verification import load_probes
from tests.gcn.objects import need_llvm

AMD = Path(__file__).parents[2] / "examples" / "amd" / "libvector.so"
LINE = "ld.global { @bytes = hist(BYTES) }"
PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry copied(.param .u64 to, .param .u64 from)
{
    .reg .u64 %to, %from, %at;
    .reg .u32 %value, %thread;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %at, %thread, 4;
    add.u64 %to, %to, %at;
    add.u64 %from, %from, %at;
    ld.global.u32 %value, [%from];
    st.global.u32 [%to], %value;
    ret;
}
"""


def test_a_line_is_tried_on_kernels_of_both_platforms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_llvm()
    text = tmp_path / "copied.ptx"
    text.write_text(PTX)
    sizes = "--grid", "2", "--block", "64"
    # Threads: 2 blocks of 64. Each loads x and y, or a word.
    for file, kernel, loads in ((AMD, "saxpy", 2), (text, "copied", 1)):
        chosen = ["-k", kernel, *(["--arch", "gfx1100"] if file is AMD else [])]
        assert probe.main(["sites", LINE, str(file), *chosen, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["files"]
        assert len(found["kernels"][0]["sites"]) == loads
        arguments = [] if file is not AMD else ["--arg", "arg3=128"]
        assert probe.main(["try", LINE, str(file), *chosen, *sizes, *arguments, "--json"]) == 0
        (shown,) = json.loads(capsys.readouterr().out)["maps"]
        columns = shown["columns"]
        of_words = columns["count"][columns["low"].index(4)]
        assert sum(columns["count"]) == of_words == loads * 128


def test_a_line_goes_into_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_llvm()
    copy = tmp_path / "copy.so"
    options = ["-p", LINE, "-p", "inst_count", "-p", "st.global { @stores = count() }", "--arch", "gfx942"]
    assert patch.main([str(AMD), *options, "-o", str(copy), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["probes"] == ["-e", "inst_count"]
    assert report["totals"]["probed"] == 2
    assert patch.main(["--check", str(copy)]) == 0
    assert "2 twins by -e inst_count for gfx942" in capsys.readouterr().out


def test_a_run_takes_lines_by_an_option_of_their_own() -> None:
    with pytest.raises(NeutrinoError, match="a probe in one line goes after -e"):
        load_probes([LINE])


def test_faults_of_a_line_are_shown_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["check", "ld.global { @bytes = hist(BYTE) }", "--target", "gfx942"]) == 2
    said = capsys.readouterr().err
    assert "-e:1:27: error: BYTE has no value here" in said
    assert "did you mean BYTES?" in said
    assert probe.main(["check", LINE, "block_sched", "--target", "gfx942", "-q"]) == 0
