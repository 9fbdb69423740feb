"""Kernels without PTX in files: what commands say of their machine code, and of which probes it takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neutrino.abi.reasons import REASON_REMEDY, Reason
from neutrino.cli.extract import main as extract
from neutrino.cli.patch import main
from neutrino.cli.probe import main as probe
from neutrino.resources import shipped_probes
from neutrino.toolchain.ptxas import Assembler
from tests.patched_files.libraries import SCALE, STORE, fatbin, link


@pytest.fixture(scope="module")
def library(assembler: Assembler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose kernels, scale, clear and store, have machine code for sm_90 alone."""
    containers = [fatbin(assembler, text, cubins=["sm_90"]) for text in (SCALE, STORE)]
    return link(tmp_path_factory.mktemp("machine_code") / "libcode.so", containers)


def _report(library: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    main([str(library), "-n", "-j", "1", "--json", *options])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def _probed(library: Path, capsys: pytest.CaptureFixture[str], *options: str) -> int:
    totals = _report(library, capsys, *options)["totals"]
    assert totals["kernels"] == 3
    return int(totals["probed"])


def test_one_probe_at_a_time(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``what helps`` of no-ptx and the pages say: a GPU has shown the code of each alone."""
    assert "one of block_sched and gmem_bytes in a run" in REASON_REMEDY[Reason.NO_PTX]
    for name in ("block_sched", "gmem_bytes"):
        assert _probed(library, capsys, "-p", name) == 3
    both = ("-p", "block_sched", "-p", "gmem_bytes")
    report = _report(library, capsys, *both)
    assert report["totals"]["probed"] == 0
    helps = (
        "kernels without PTX: no GPU has shown twins of machine code with block_sched, gmem_bytes together; name one "
        "at a time with -p, or --machine-code unproven"
    )
    assert report["notes"] == [helps]
    assert main([str(library), "-n", *both]) == 3
    assert f"note: {helps}" in capsys.readouterr().out


def test_what_helps_names_unproven_where_it_does(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The page's table is held against the twins below.
    assert len(re.findall(r"^\| `\w+` \| with `--machine-code unproven` \|", PAGE.read_text(), re.MULTILINE)) == 10
    assert "--machine-code unproven with others" in REASON_REMEDY[Reason.NO_PTX]
    report = _report(library, capsys, "-p", "dmat")
    assert report["totals"]["reasons"] == {"no-ptx": 3}
    (note,) = report["notes"]
    assert note.endswith("with dmat; where the probes can be put there, --machine-code unproven makes them")
    assert _probed(library, capsys, "-p", "dmat", "--machine-code", "unproven") == 3
    assert _report(library, capsys, "-p", "dmat", "--machine-code", "off")["notes"] == []


def test_as_many_blocks_as_before_are_not_worth_a_line(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = _report(library, capsys, "-p", "block_sched")
    for kernel in report["kernels"]:
        # Twins with more registers, of which as many warps fit.
        assert kernel["registers"]["original"] < kernel["registers"]["twin"] <= 32
        assert "warps_by_registers" not in kernel
    assert main([str(library), "-n", "-p", "block_sched"]) == 0
    assert "fewer blocks" not in capsys.readouterr().out


@pytest.mark.parametrize("arch", ["sm_91", "99", "sm_130"])
def test_an_architecture_that_no_gpu_has(library: Path, arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(library), "-n", "-p", "block_sched", "--arch", arch]) == 2
    error = capsys.readouterr().err
    assert f"--arch {arch}: no GPU of this architecture is known; known are sm_75, sm_80, " in error
    assert "sm_90, sm_100" in error


_QUESTIONS = (
    (), ("--machine-code", "off"), ("-p", "gmem_bytes"), ("-p", "dmat"),
    ("-p", "dmat", "--machine-code", "unproven"), ("-p", "block_sched", "-p", "gmem_bytes"),
    ("-p", "coalescing", "--machine-code", "unproven"), ("-k", "scale"), ("--arch", "sm_100"),
)  # fmt: skip


@pytest.mark.parametrize("options", _QUESTIONS, ids=" ".join)
def test_coverage_says_what_patching_does(
    library: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = options if "--arch" in options else ("--arch", "sm_90", *options)
    extract([str(library), "--coverage", "--json", *asked])
    (coverage,) = json.loads(capsys.readouterr().out)["coverage"]
    probes = () if "-p" in options else ("-p", "block_sched")
    report = _report(library, capsys, *probes, *asked)
    selected = [kernel for kernel in report["kernels"] if kernel["reason"] != "not-selected"]
    assert [(one["name"], one["reason"], one["detail"], one["sites"]) for one in coverage["kernels"]] == [
        (one["name"], one["reason"], one["detail"], one["sites"]) for one in selected
    ]
    assert coverage["can_be_probed"] == report["totals"]["probed"]
    extract([str(library), "--coverage", *asked])
    text = " ".join(capsys.readouterr().out.split())
    assert ("twins of machine code were made, or tried, for" in text) == (coverage["of_machine_code"] > 0)
    assert ("nothing was assembled" in text) == (coverage["of_machine_code"] == 0)
    assert all(note in text for note in report["notes"] if note.startswith("kernels without PTX"))


def test_coverage_of_a_patched_copy(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy.so"
    assert main([str(library), "-p", "block_sched", "-j", "1", "-o", str(copy)]) == 0
    capsys.readouterr()
    assert extract([str(copy), "--coverage"]) == 0
    said = capsys.readouterr().out
    assert "3 twins with block_sched" in said
    assert "sm_90: 3 of 3 kernels can be probed" in said


def test_coverage_of_many_kernels_in_processes(
    assembler: Assembler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, body = STORE.split(".visible", 1)
    text = head + "".join(".visible" + body.replace("store", f"store_{number}") for number in range(70))
    many = link(tmp_path / "libmany.so", [fatbin(assembler, text, cubins=["sm_90"])])
    command = [sys.executable, "-m", "neutrino.cli.extract", str(many), "--coverage", "--json", "-p", "gmem_bytes"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    (coverage,) = json.loads(run.stdout)["coverage"]
    assert (coverage["total"], coverage["can_be_probed"], coverage["of_machine_code"]) == (70, 70, 70)
    assert {kernel["sites"] for kernel in coverage["kernels"]} == {
        kernel["sites"] for kernel in _report(many, capsys, "-p", "gmem_bytes", "-k", "store_7")["kernels"]
        if kernel["status"] == "probed"
    }  # fmt: skip


def test_sites_say_where_machine_code_is_answered(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``sites`` and ``show`` read PTX: that these kernels have none is no word on what patching does."""
    note = "note: sites are looked for in PTX; neutrino-extract --coverage says which kernels without it get twins"
    assert probe(["sites", "block_sched", str(library), "--arch", "sm_90"]) == 3
    assert note in capsys.readouterr().out
    assert probe(["show", "block_sched", str(library), "-k", "scale", "--arch", "sm_90"]) == 3
    assert note in capsys.readouterr().err
    # Where no twin of machine code is made, there is nothing to refer to.
    assert probe(["sites", "block_sched", str(library), "--arch", "sm_80"]) == 3
    assert "note: sites" not in capsys.readouterr().out


def test_coverage_without_an_assembler(library: Path) -> None:
    command = [sys.executable, "-m", "neutrino.cli.extract", str(library), "--coverage"]
    environment = {**os.environ, "NEUTRINO_PTXAS": "/nonexistent/ptxas"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "sm_90: 0 of 3 kernels can be probed" in run.stdout
    assert "twins of machine code need an assembler" in run.stdout


MIXED = """\
.version 8.0
.target {arch}
.address_size 64
.visible .entry mixed(.param .u64 data, .param .u32 count)
{{
	.reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .f32 %f<3>; .shared .b32 tile[64];
	ld.param.u64 %d1, [data];
	ld.param.u32 %r1, [count];
	mov.u32 %r2, %tid.x;
	cvta.to.global.u64 %d2, %d1;
	mul.wide.u32 %d3, %r2, 4;
	add.s64 %d2, %d2, %d3;
	ld.global.u32 %r3, [%d2];
	and.b32 %r4, %r3, 63;
	shl.b32 %r4, %r4, 2;
	mov.u32 %r5, tile;
	add.u32 %r5, %r5, %r4;
	st.shared.u32 [%r5], %r2;
	bar.sync 0;
	setp.ge.u32 %p, %r3, %r1;
	@%p bra DONE;
	ld.shared.u32 %r6, [%r5];
	cvt.rn.f32.u32 %f1, %r6;
	red.global.add.f32 [%d2], %f1;
DONE:
	ret;
}}
"""
_WHEN = "no|with `--machine-code unproven`"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "machine-code.md"


@pytest.fixture(scope="module")
def every_kind(assembler: Assembler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with most of what the shipped probes are at: accesses, atomics, shared memory, a barrier, a branch."""
    containers = [fatbin(assembler, text, cubins=["sm_90"]) for text in (SCALE, MIXED)]
    return link(tmp_path_factory.mktemp("every_kind") / "libkinds.so", containers)


def _of_the_page() -> str:
    page = PAGE.read_text()
    return page.partition("#### Which probes")[2].partition("#### Blocks that wait")[0]


@pytest.mark.parametrize("name", shipped_probes())
def test_the_page_lists_the_shipped_probes_that_machine_code_takes(
    every_kind: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = re.findall(rf"^\| `(\w+)` \| (yes|{_WHEN}) \| (.*)\|$", _of_the_page(), re.MULTILINE)
    assert {row[0] for row in rows} == set(shipped_probes())
    # Of those that are not put in, the page says why.
    assert all((when == "no") == bool(why.strip()) for _, when, why in rows)
    listed = {name: when for name, when, _ in rows if when != "no"}
    unproven = _report(every_kind, capsys, "-p", name, "--machine-code", "unproven")["totals"]
    assert unproven["kernels"] == 3
    assert (unproven["probed"] > 0) == (name in listed)
    assert (_report(every_kind, capsys, "-p", name)["totals"]["probed"] > 0) == (listed.get(name) == "yes")


def test_the_probes_of_the_page_go_into_machine_code(
    library: Path, every_kind: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = re.findall(r"^```python\n(.*?)^```$", _of_the_page(), re.MULTILINE | re.DOTALL)
    assert len(files) == 2
    for number, text in enumerate(files):
        path = tmp_path / f"own_{number}.py"
        path.write_text(text)
        assert _probed(library, capsys, "-p", str(path), "--machine-code", "unproven") == 3
        assert _probed(every_kind, capsys, "-p", str(path), "--machine-code", "unproven") == 3


LINES = [
    (line.replace("\\|", "|"), when)
    for line, when in re.findall(rf"^\| `([^`]* \{{[^`]*)` \| ({_WHEN}) \|$", _of_the_page(), re.MULTILINE)
]


def test_the_page_lists_lines_of_both_kinds() -> None:
    assert len(LINES) > 10
    assert {when for _, when in LINES} == {"no", "with `--machine-code unproven`"}


@pytest.mark.parametrize(("line", "when"), LINES)
def test_the_lines_of_the_page(every_kind: Path, line: str, when: str, capsys: pytest.CaptureFixture[str]) -> None:
    probed = _probed(every_kind, capsys, "-p", line, "--machine-code", "unproven")
    assert (probed > 0) == (when != "no")


def test_probes_together(every_kind: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With code that a GPU has shown for each alone."""
    both = "-p", "block_sched", "-p", "gmem_bytes"
    assert _probed(every_kind, capsys, *both) == 0
    assert _probed(every_kind, capsys, *both, "--machine-code", "unproven") == 3
