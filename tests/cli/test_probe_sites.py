"""``neutrino-probe sites`` and ``show``: what they say is held against the text itself and against other tools."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import FormatError, ToolMissingError
from neutrino.fatbin import read_container
from neutrino.patched_files.preview import preview
from neutrino.probing.selection import Selection
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.tool_choice import find_assembler
from neutrino.verification import load_probes

from .conftest import EXAMPLE, ROOT, Probe

COUNT = """\
[map.N]
type = "sum"
level = "thread"
data = { n = "u64" }
[probe.count]
position = "POSITION"
level = "thread"
before = ".reg .u64 %n; add.u64 %n, %n, 1;"
[probe.end]
position = "kernel"
level = "thread"
after = "SAVE [ N ] { %n };"
"""
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
NVCC = Path("/usr/local/cuda/bin/nvcc")


def kernels(probe: Probe, *arguments: str | Path, status: int = 0) -> dict[str, dict[str, Any]]:
    said = probe("sites", *arguments, "--json")
    assert (said.status, said.err) == (status, "")
    return {kernel["name"]: kernel for file in json.loads(said.out)["files"] for kernel in file["kernels"]}


@pytest.fixture(scope="session")
def saxpy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program's fatbin with line information, by nvcc."""
    if not NVCC.is_file():
        pytest.skip(f"no nvcc at {NVCC}")
    out = tmp_path_factory.mktemp("saxpy") / "saxpy.fatbin"
    source = ROOT / "examples" / "saxpy.cu"
    subprocess.run([NVCC, "-lineinfo", "-arch=sm_90", "-fatbin", source, "-o", out], check=True)
    return out


@pytest.fixture(scope="session")
def assembler() -> Assembler:
    try:
        return find_assembler()
    except ToolMissingError as error:
        pytest.skip(f"no ptxas: {error}")


@pytest.mark.parametrize("pattern", ["ld.global", "st.global.f32", "add", "red"])
def test_sites_are_the_lines_of_the_text_with_the_instruction(probe: Probe, tmp_path: Path, pattern: str) -> None:
    (tmp_path / "count.toml").write_text(COUNT.replace("POSITION", pattern))
    text = EXAMPLE.read_text().splitlines()
    word = re.compile(rf"^\s*(@!?%\w+\s+)?{re.escape(pattern)}[.\s]")
    expected = [number for number, line in enumerate(text, 1) if word.match(line)]
    assert expected
    found = []
    for kernel in kernels(probe, "count.toml", EXAMPLE).values():
        for site in kernel["sites"]:
            assert site["instruction"] in text[site["line"] - 1]
        numbered = [site for site in kernel["sites"] if site["probes"] == ["count"]]
        assert [site["site"] for site in numbered] == list(range(len(numbered)))
        found += [site["line"] for site in numbered]
        assert kernel["by_probe"].get("count", 0) == len(numbered)
    assert sorted(found) == expected
    said = probe("sites", "count.toml", EXAMPLE)
    rows = [line.split() for line in said.out.splitlines()]
    assert sorted(int(row[1]) for row in rows if row[2:3] == ["count"]) == expected


def test_source_lines_are_those_of_the_source(probe: Probe, saxpy: Path) -> None:
    (kernel,) = kernels(probe, "gmem_bytes", saxpy).values()
    source = (ROOT / "examples" / "saxpy.cu").read_text().splitlines()
    memory = [site for site in kernel["sites"] if site["probes"] != ["total"]]
    assert len(memory) == 3
    for site in memory:
        file, _, line = site["source"].partition(":")
        assert file == "saxpy.cu"
        assert "y[i] = " in source[int(line) - 1]
    assert "saxpy.cu:" in probe("sites", "gmem_bytes", saxpy).out


def test_kernels_without_a_site_are_told_with_the_reason(probe: Probe, tmp_path: Path) -> None:
    text = COUNT.partition("[probe.end]")[0].replace("POSITION", "atom.shared")
    (tmp_path / "count.toml").write_text(text.replace("add.u64 %n, %n, 1;", "SAVE [ N ] { %n };"))
    said = probe("sites", "count.toml", EXAMPLE)
    assert said.status == 3
    assert "0 sites in 0 of 2 kernels" in said.out
    assert "no instruction matches atom.shared: saxpy, sum" in " ".join(said.out.split())
    assert {kernel["reason"] for kernel in kernels(probe, "count.toml", EXAMPLE, status=3).values()} == {"no-site"}


def test_kernels_are_chosen_by_name(probe: Probe) -> None:
    assert set(kernels(probe, "block_sched", EXAMPLE, "-k", "sax")) == {"saxpy"}
    assert set(kernels(probe, "block_sched", EXAMPLE, "--filter", "sax")) == {"sum"}
    said = probe("sites", "block_sched", EXAMPLE, "-k", "nope")
    assert (said.status, said.out) == (3, "")
    assert "no kernel matches" in said.err


def test_many_sites_are_counted_by_kernel_and_listed_when_asked(probe: Probe, tmp_path: Path) -> None:
    loads = "ld.global.u32 %r, [%d];\n" * 50
    body = f"{{ .reg .u32 %r; .reg .u64 %d; ld.param.u64 %d, [x];\n{loads}ret; }}\n"
    names = [f"k{number}" for number in range(40)]
    text = HEAD + "".join(f".visible .entry {name}(.param .u64 x)\n{body}" for name in names)
    (tmp_path / "many.ptx").write_text(text)
    said = probe("sites", "gmem_bytes", "many.ptx")
    rows = [line.split() for line in said.out.splitlines()]
    assert "2,040 sites in 40 of 40 kernels" in said.out
    assert ["51", "1", "k0", "load_global", "50,", "total", "1"] in rows
    assert "… 15 more kernels with 765 sites" in said.out
    assert len(rows) < 40
    everything = probe("sites", "gmem_bytes", "many.ptx", "--all").out
    assert all(f"\n{name}: 51 sites\n" in everything for name in names)
    assert everything.count("ld.global.u32 %r, [%d]") == 2000


def test_a_wheel_is_looked_into(probe: Probe, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.writestr("package/__init__.py", "")
        wheel.writestr("package/kernels.ptx", EXAMPLE.read_text())
    said = probe("sites", "block_sched", "some.whl")
    assert said.status == 0
    assert said.out.startswith("some.whl/package/kernels.ptx, sm_75:")
    assert set(kernels(probe, "block_sched", "some.whl")) == {"saxpy", "sum"}


@pytest.mark.parametrize("command", ["sites", "show"])
@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 2, "file is empty"),
        (bytes(range(256)), 2, "content is 00 01 02 03, expected a fatbin container, a cubin, or PTX text"),
        (b"\n\n#!/bin/sh\r\n" + "é".encode() * 256, 2, "content is text that begins with '#!/bin/sh', expected "),
        (b"saxpy:\0", 2, "content is 73 61 78 70, expected"),
        (b"\x50\xed\x55\xba\1\0\x10\0" + b"\xff" * 8, 2, "expected"),
        (None, 2, "No such file or directory"),
        (b"/", 0, "no device code found"),
    ],
)
def test_what_holds_no_kernels_is_said(
    probe: Probe, tmp_path: Path, command: str, content: bytes | None, status: int, said: str
) -> None:
    if content == b"/":
        (tmp_path / "file").mkdir()
    elif content is not None:
        (tmp_path / "file").write_bytes(content)
    result = probe(command, "block_sched", "file")
    assert (result.status, result.out) == (status, "")
    assert said in result.err
    assert all(line.startswith("neutrino-probe: ") for line in result.err.splitlines())


@pytest.mark.parametrize("command", ["sites", "show"])
def test_a_vendors_library_is_left_alone(probe: Probe, tmp_path: Path, command: str) -> None:
    (tmp_path / "libcublas.so.12").write_text(EXAMPLE.read_text())
    result = probe(command, "block_sched", "libcublas.so.12")
    assert (result.status, result.out) == (3, "")
    assert "vendor-licensed library" in result.err


def test_an_architecture_that_is_none_is_said(probe: Probe) -> None:
    result = probe("sites", "block_sched", EXAMPLE, "--arch", "sm_9x")
    assert (result.status, result.err) == (2, "neutrino-probe: --arch sm_9x: not an architecture; write it as sm_90\n")


@pytest.mark.parametrize("command", ["sites", "show"])
def test_a_wrong_probe_is_shown_with_its_line(probe: Probe, tmp_path: Path, command: str) -> None:
    (tmp_path / "count.toml").write_text(COUNT.replace("POSITION", "ld.global").replace("%n, 1", "%m, 1"))
    result = probe(command, "count.toml", EXAMPLE)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("count.toml:8:")
    assert " ^~" in result.err


TWICE = HEAD + """
.func (.param .b32 r) twice(.param .b64 p)
{
	.reg .b64 %rd<2>;
	.reg .b32 %r<3>;
	ld.param.b64 %rd1, [p];
	ld.global.b32 %r1, [%rd1];
	add.s32 %r2, %r1, %r1;
	st.param.b32 [r], %r2;
	ret;
}
.visible .entry k(.param .u64 x)
{
	.reg .b64 %rd<3>;
	.reg .b32 %r<3>;
	ld.param.u64 %rd1, [x];
	ld.global.u32 %r1, [%rd1];
	{
	.param .b64 a;
	.param .b32 b;
	st.param.b64 [a], %rd1;
	call.uni (b), twice, (a);
	ld.param.b32 %r2, [b];
	}
	st.global.u32 [%rd1], %r2;
	ret;
}
"""


def test_sites_in_called_functions_name_them(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(TWICE)
    (kernel,) = kernels(probe, "gmem_bytes", "k.ptx").values()
    lines = TWICE.splitlines()
    inside = {site["line"]: site["function"] for site in kernel["sites"]}
    assert inside == {
        lines.index("\tld.global.b32 %r1, [%rd1];") + 1: "twice",
        lines.index("\tld.global.u32 %r1, [%rd1];") + 1: "k",
        lines.index("\tst.global.u32 [%rd1], %r2;") + 1: "k",
        len(lines) - 1: "k",
    }
    rows = [line.split() for line in probe("sites", "gmem_bytes", "k.ptx").out.splitlines()]
    assert [row[2] for row in rows if "ld.global.b32" in row] == ["twice"]


def test_functions_with_probes_are_shown_with_the_kernel(probe: Probe, tmp_path: Path, assembler: Assembler) -> None:
    if not shutil.which("patch"):
        pytest.skip("patch is not on this machine")
    (tmp_path / "k.ptx").write_text(TWICE)
    said = probe("show", "gmem_bytes", "k.ptx", "--diff", "--text-only")
    command = ["patch", "-s", "-l", "-o", "out.ptx", "k.ptx"]
    done = subprocess.run(command, input=said.out, text=True, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert "k__neutrino" in assembler.assemble((tmp_path / "out.ptx").read_text(), "sm_80").resources
    whole = probe("show", "gmem_bytes", "k.ptx", "--text-only").out
    document = json.loads(probe("show", "gmem_bytes", "k.ptx", "--text-only", "--json").out)
    assert instructions(whole) == instructions(document["probed"])


SHIPPED = load_probes(["block_sched", "gmem_bytes"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(TWICE)), st.integers(0, 40), st.text("{}();,.@%!:\n \"/*", max_size=3))))
def test_damaged_text_is_refused_or_read(cuts: list[tuple[int, int, str]]) -> None:
    text = TWICE
    for at, size, put in cuts:
        text = text[:at] + put + text[at + size :]
    with contextlib.suppress(FormatError):
        for kernel in preview([read_container(text.encode(), "text")], "sm_80", SHIPPED, Selection()):
            assert kernel.plan is not None or kernel.detail


@pytest.mark.parametrize("size", [-1, -2, -30])
def test_of_a_text_that_was_cut_the_kernel_is_refused(probe: Probe, tmp_path: Path, size: int) -> None:
    (tmp_path / "k.ptx").write_text(TWICE.rstrip()[:size])
    said = probe("sites", "gmem_bytes", "k.ptx")
    assert said.status == 3
    assert re.search(r"unsupported +line \d+: the text ends within the body that begins there", said.out)


def test_a_missing_semicolon_is_said_of_its_line(probe: Probe, tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    line = text[: text.index("ld.global.f32 %right, [%y];")].count("\n") + 1
    (tmp_path / "k.ptx").write_text(text.replace("ld.global.f32 %right, [%y];", "ld.global.f32 %right, [%y]"))
    said = probe("sites", "inst_count", "k.ptx", "-k", "saxpy")
    assert said.status == 3
    assert f"PTX line {line}: no ';' before the next instruction: 'ld.global.f32 %right, [%y]': saxpy" in said.out


def test_a_terminal_gets_colours_and_its_width(tmp_path: Path) -> None:
    (tmp_path / "many.ptx").write_text(HEAD + "".join(
        f".visible .entry {'long_name_' * 8}{number}(.param .u64 x)\n"
        "{ .reg .u64 %d; .reg .u32 %r; ld.param.u64 %d, [x];"
        f" {'ld.global.u32 %r, [%d]; atom.global.add.u32 %r, [%d], 1; st.global.u32 [%d], %r; ' * 30} ret; }}\n"
        for number in range(3)
    ))  # fmt: skip
    counted = on_terminal(tmp_path, "sites", "gmem_bytes", "many.ptx")
    assert "273 sites in 3 of 3 kernels" in counted
    assert max(map(len, counted.splitlines())) <= 80
    shown = ("show", "block_sched", str(EXAMPLE), "-k", "sum", "--diff", "--text-only")
    assert "\x1b[1;32m+" in on_terminal(tmp_path, *shown)
    assert "\x1b[" not in on_terminal(tmp_path, *shown, NO_COLOR="1")


def on_terminal(folder: Path, *arguments: str, **variables: str) -> str:
    """What a terminal of 80 columns gets on stdout."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **variables}
    command = [sys.executable, "-m", "neutrino.cli.probe", *arguments]
    chunks = []
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=end, stderr=subprocess.DEVNULL):
        os.close(end)
        # EIO: the other end is closed.
        with contextlib.suppress(OSError):
            while chunk := os.read(terminal, 65536):
                chunks.append(chunk)
    os.close(terminal)
    return b"".join(chunks).decode().replace("\r\n", "\n")


def test_a_reader_that_has_enough_ends_it_quietly() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "neutrino.cli.probe", "show", "block_sched", EXAMPLE, "-k", "sum", "--text-only"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        if process.stdout is None or process.stderr is None:
            raise OSError("no pipes")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


# Show


def instructions(text: str) -> list[str]:
    """Lines that say something: without comments, indentation and blank lines."""
    stripped = (line.split("//")[0].strip() for line in text.splitlines())
    return [line for line in stripped if line]


@pytest.mark.parametrize("probes", [("block_sched",), ("gmem_bytes", "block_sched")])
@pytest.mark.parametrize("kernel", ["saxpy", "sum"])
def test_the_text_is_the_twins_and_comments(probe: Probe, probes: tuple[str, ...], kernel: str) -> None:
    said = probe("show", *probes, EXAMPLE, "-k", kernel, "--text-only")
    document = json.loads(probe("show", *probes, EXAMPLE, "-k", kernel, "--text-only", "--json").out)
    assert (said.status, said.err) == (0, "")
    assert instructions(said.out) == instructions(document["probed"])
    assert document["original"] in EXAMPLE.read_text()
    text = said.out.splitlines()
    for site in document["sites"]:
        # Each probe is named above what it put in before the instruction.
        places = [number for number, line in enumerate(text) if line.strip() == f"{site['instruction']};"]
        before = [line.strip() for place in places for line in text[max(0, place - 60) : place]]
        assert site["instruction"].startswith(".entry") or any(
            line.startswith("//") and f"{site['probe']}: " in line for line in before
        )


def test_the_difference_makes_the_twin_of_the_original(probe: Probe, tmp_path: Path, assembler: Assembler) -> None:
    """By patch(1), in the file that was shown; and ptxas takes what comes out."""
    if not shutil.which("patch"):
        pytest.skip("patch is not on this machine")
    said = probe("show", "gmem_bytes", EXAMPLE, "-k", "saxpy", "--diff")
    command = ["patch", "-s", "-l", "-o", "out.ptx", str(EXAMPLE)]
    done = subprocess.run(command, input=said.out, text=True, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    patched = (tmp_path / "out.ptx").read_text()
    whole = probe("show", "gmem_bytes", EXAMPLE, "-k", "saxpy", "--text-only").out
    assert "\n".join(instructions(whole)) in "\n".join(instructions(patched))
    cubin = assembler.assemble(patched, "sm_75")
    assert cubin.resources["saxpy__neutrino"].registers == _registers(said.out)[1]


def test_registers_are_those_of_the_assembler(probe: Probe, assembler: Assembler) -> None:
    said = probe("show", "block_sched", EXAMPLE, "-k", "saxpy", "--arch", "sm_90")
    assembled = assembler.assemble(EXAMPLE.read_bytes(), "sm_90")
    assert _registers(said.out)[0] == assembled.resources["saxpy"].registers
    facts = json.loads(probe("show", "block_sched", EXAMPLE, "-k", "saxpy", "--arch", "sm_90", "--json").out)
    assert _registers(said.out) == (facts["registers"]["original"], facts["registers"]["twin"])


@pytest.mark.parametrize(
    ("kernel", "shipped", "changed"),
    [
        ("softmax_sm_90", "dmat", r"\.maxnreg \d+"),
        ("layernorm_bf16", str(ROOT / "tests/fixtures/probes/hand/smem_bank_conflict.toml"), r"\s*mul\.rn\.f32 .*"),
    ],
)
def test_what_is_shown_is_what_was_assembled(
    probe: Probe, assembler: Assembler, kernel: str, shipped: str, changed: str
) -> None:
    """Under a register cap, and with arithmetic that says itself what is fused."""
    file = ROOT / "tests" / "fixtures" / "kernels" / "triton" / f"{kernel}.ptx"
    shown = probe("show", shipped, file, "--arch", "sm_90").out
    document = json.loads(probe("show", shipped, file, "--arch", "sm_90", "--json").out)
    assert " ".join(instructions(document["probed"])).split() == " ".join(instructions(shown)).split()
    module = file.read_text().replace(document["original"], document["probed"])
    (resources,) = assembler.assemble(module, document["arch"]).resources.values()
    assert resources.registers == document["registers"]["twin"] == _registers(shown)[1]
    assert re.search(rf"^{changed}$", shown, re.MULTILINE)
    assert not re.search(rf"^{changed}$", document["original"], re.MULTILINE)
    assert re.search(rf"^\+{changed}$", probe("show", shipped, file, "--arch", "sm_90", "--diff").out, re.MULTILINE)


def _registers(text: str) -> tuple[int, int]:
    match = re.search(r"^// registers (\d+) → (\d+)", text, re.MULTILINE)
    assert match is not None
    return int(match[1]), int(match[2])


@pytest.mark.parametrize("kernel", ["saxpy", "sum"])
def test_the_instructions_put_in_are_counted(probe: Probe, kernel: str) -> None:
    said = probe("show", "gmem_bytes", "block_sched", EXAMPLE, "-k", kernel, "--diff", "--text-only").out
    lines = [(line[0], line[1:].strip()) for line in said.splitlines() if line]
    written = [mark for mark, text in lines if text.endswith(";") and not text.startswith((".", "//"))]
    assert f"sites, {written.count('+') - written.count('-')} instructions inserted\n" in said


def test_code_by_nvcc_is_shown_alike(probe: Probe, saxpy: Path) -> None:
    """Its lines are not indented, and inserted code moves them."""
    said = probe("show", "gmem_bytes", saxpy, "--diff", "--text-only")
    assert said.status == 0
    lines = said.out.splitlines()
    (place,) = [place for place, line in enumerate(lines) if line == " ld.global.f32 %f2, [%rd6];"]
    above = itertools.takewhile(lambda line: line.startswith("+"), reversed(lines[:place]))
    assert any("// load_global: before ld.global" in line for line in above)
    gone = [line for line in lines if line.startswith("-") and not line.startswith("---")]
    assert len(gone) == 2


def test_several_kernels_are_named(probe: Probe) -> None:
    said = probe("show", "block_sched", EXAMPLE)
    assert (said.status, said.out) == (2, "")
    assert [line.split(": ")[1].strip() for line in said.err.splitlines()[1:]] == ["saxpy", "sum"]


def test_the_whole_name_wins_over_names_that_hold_it(probe: Probe, tmp_path: Path) -> None:
    body = "() { ret; }\n"
    (tmp_path / "k.ptx").write_text(f"{HEAD}.visible .entry k{body}.visible .entry kk{body}")
    assert json.loads(probe("show", "block_sched", "k.ptx", "-k", "k", "--json").out)["kernel"] == "k"
    assert probe("show", "block_sched", "k.ptx", "-k", "k*").status == 2


def test_a_kernel_that_cannot_be_probed_is_said_why(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(f"{HEAD}.address_size 32\n.visible .entry k() {{ ret; }}\n")
    said = probe("show", "block_sched", "k.ptx")
    assert (said.status, said.out) == (3, "")
    assert said.err == "neutrino-probe: k: unsupported: .address_size is 32, not 64\n"


def test_places_between_instructions(probe: Probe, tmp_path: Path) -> None:
    """``sites`` lists them with marks and labels, in text order; ``show`` says of which side code at a mark is."""
    text = (
        f"{HEAD}.visible .entry k()\n{{\n.reg .pred %p; .reg .b32 %r;\nmov.u32 %r, 0;\n// neutrino begin r\nL:\n"
        "add.u32 %r, %r, 1;\nsetp.lt.u32 %p, %r, 9;\n@%p bra L;\n// neutrino end r\nret;\n}\n"
    )
    (tmp_path / "k.ptx").write_text(text)
    (tmp_path / "p.toml").write_text(
        COUNT.replace("POSITION", "loop-head | back-edge")
        + '[probe.time]\nposition = "range:r"\nlevel = "thread"\nbefore = ".reg .u64 %t; mov.u64 %t, %clock64;"\n'
        'after = ".reg .u64 %e; mov.u64 %e, %clock64; sub.u64 %t, %e, %t;"\n'
    )
    sites = kernels(probe, "p.toml", "k.ptx")["k"]["sites"]
    assert [(site["site"], site["line"], site["instruction"], site["probes"]) for site in sites] == [
        (0, 8, "// neutrino begin r", ["time"]),
        (1, 10, "L: add.u32 %r, %r, 1", ["count"]),
        (2, 12, "@%p bra L", ["count"]),
        (3, 13, "// neutrino end r", ["time"]),
        (None, 14, "ret", ["end"]),
    ]
    shown = probe("show", "p.toml", "k.ptx", "--text-only").out.split("\n")
    said = [line.strip() for line in shown if "// time:" in line or "// neutrino" in line]
    assert said == ["// time: before range:r", "// neutrino begin r", "// time: after range:r", "// neutrino end r"]
