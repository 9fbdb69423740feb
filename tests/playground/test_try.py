"""``neutrino-probe try``: kernels of several kinds, what it prints, and every way in which it can go wrong."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.work import counted

from .conftest import ROOT, Run

EXAMPLE = ROOT / "examples" / "embedded" / "kernels.ptx"
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
# Every thread reads index[i], and adds 1 atomically to counts[index[i]].
HISTOGRAM = HEAD + """
.visible .entry histogram(.param .u64 index, .param .u64 counts)
{
.reg .u32 %r<5>; .reg .u64 %d<5>;
ld.param.u64 %d0, [index]; ld.param.u64 %d1, [counts];
mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r0, %r1, %r2;
mul.wide.u32 %d2, %r3, 4; add.u64 %d0, %d0, %d2;
ld.global.u32 %r4, [%d0];
mul.wide.u32 %d3, %r4, 4; add.u64 %d1, %d1, %d3;
red.global.add.u32 [%d1], 1;
ret;
}
"""
# Shared memory, a barrier, and a block size that the text demands.
REVERSE = HEAD + """
.extern .shared .align 4 .b8 tile[];
.visible .entry reverse(.param .u64 x)
.reqntid 64
{
.reg .u32 %r<6>; .reg .u64 %d<4>; .reg .f32 %f;
ld.param.u64 %d0, [x];
mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; mad.lo.u32 %r2, %r0, 64, %r1;
mul.wide.u32 %d1, %r2, 4; add.u64 %d0, %d0, %d1;
ld.global.f32 %f, [%d0];
mov.u32 %r3, tile; shl.b32 %r4, %r1, 2; add.u32 %r4, %r3, %r4;
st.shared.f32 [%r4], %f;
bar.sync 0;
sub.u32 %r5, 63, %r1; shl.b32 %r5, %r5, 2; add.u32 %r5, %r3, %r5;
ld.shared.f32 %f, [%r5];
st.global.f32 [%d0], %f;
ret;
}
"""
EACH_LOAD = """
platform = "cuda"
[map.Loads]
type = "array"
level = "thread"
size = 16
cap = 2
data = { address = "u64", value = "f32", bytes = "u32" }
[probe.loads]
position = "ld.global"
level = "thread"
after = '''
.reg .u32 %bytes;
cvt.u32.u64 %bytes, BYTES;
SAVE [ Loads ] { ADDR, OUT, %bytes };
'''
"""

NEGATIVE = """
[map.S]
type = "sum"
level = "thread"
cap = 1
data = { wide = "u64", narrow = "u32", signed = "s32" }
[map.M]
level = "thread"
data = { kept = "u64", word = "u32", half = "u16", byte = "u8", bits = "s8" }
[probe.p]
position = "kernel"
level = "thread"
before = ".reg .u64 %n = -2; .reg .u32 %w = -1; SAVE [ S ] { -1, 0xffffffff, -3 }; SAVE [ M ] { %n, %w, -1, -1, 0xff };"
"""

pytestmark = pytest.mark.usefixtures("device")


def tried(run: Run, *arguments: str | Path) -> dict[str, Any]:
    result = run("probe", "try", *arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    return dict(json.loads(result.stdout))


def test_what_it_prints(run: Run) -> None:
    result = run("probe", "try", "block_sched", EXAMPLE, "--kernel", "saxpy", "--rows", "3", "--diff")
    assert (result.returncode, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["saxpy"]
    assert ["x", "f32", "×", "262,144,", "random", "read"] in rows
    assert ["n", "512"] in rows
    assert "512 of 262,144" in result.stdout
    assert "The same bits with and without the probe." in result.stdout
    assert "times are steps of the interpreter since the launch's first, not cycles" in result.stdout
    assert "BlockSched: 16 records" in result.stdout
    assert ["block", "warp", "start", "elapsed", "cuid"] in rows
    assert "… 13 more" in result.stdout
    assert any(row[:2] == ["+", "mov.u64"] and row[-1] == "%clock64;" for row in rows)


@pytest.mark.parametrize(("grid", "block"), [("1", "32"), ("3", "100"), ("2,2", "8,4,2")])
def test_bytes_are_those_of_the_launch(run: Run, grid: str, block: str) -> None:
    shown = tried(run, "gmem_bytes", EXAMPLE, "-k", "saxpy", "--grid", grid, "--block", block)
    assert shown["identical"]
    # Only the x axis counts in this kernel's index, so every other axis repeats elements.
    threads = 1
    for extent in (*grid.split(","), *block.split(",")):
        threads *= int(extent)
    (columns,) = [entry["columns"] for entry in shown["maps"]]
    assert (columns["load"], columns["store"]) == ([8 * threads], [4 * threads])


def test_records_hold_what_the_kernel_read(run: Run, tmp_path: Path) -> None:
    # A field may be called as an axis is, whose column has brackets then.
    (tmp_path / "loads.toml").write_text(EACH_LOAD.replace('bytes = "u32"', 'lane = "u32"'))
    (tmp_path / "reverse.ptx").write_text(REVERSE)
    shown = tried(run, "./loads.toml", "reverse.ptx", "--grid", "2", "--arg", "x=f32:128=2.5")
    assert shown["block"] == [64, 1, 1]
    assert shown["shared"] > 0
    (columns,) = [entry["columns"] for entry in shown["maps"]]
    assert columns["value"] == [2.5] * 128
    assert columns["lane"] == [4] * 128
    first = columns["address"][0]
    assert columns["address"] == [first + 4 * index for index in range(128)]
    assert columns["block"] == [0] * 64 + [1] * 64
    assert columns["warp"] == ([0] * 32 + [1] * 32) * 2
    assert columns["[lane]"] == list(range(32)) * 4


AGGREGATES = """
platform = "cuda"
[map.Bytes]
type = "histogram"
scale = "log2"
level = "thread"
data = { bytes = "u64" }
[map.Offsets]
type = "histogram"
scale = "linear"
low = 0
high = 128
step = 64
level = "thread"
data = { offset = "u32" }
[map.Highest]
type = "max"
level = "thread"
data = { offset = "u32" }
[probe.loads]
position = "ld.global"
level = "thread"
before = '''
.reg .u64 %address;
.reg .u32 %offset;
mov.u64 %address, ADDR;
cvt.u32.u64 %offset, %address;
and.b32 %offset, %offset, 127;
SAVE [ Bytes ] { BYTES };
SAVE [ Offsets ] { %offset };
SAVE [ Highest ] { %offset };
'''
"""


def test_histograms_and_extremes_come_through_the_hook(run: Run, tmp_path: Path) -> None:
    (tmp_path / "aggregates.toml").write_text(AGGREGATES)
    shown = tried(run, "./aggregates.toml", EXAMPLE, "-k", "saxpy")
    columns = {entry["name"]: entry["columns"] for entry in shown["maps"]}
    counts = dict(zip(columns["Bytes"]["low"], columns["Bytes"]["count"], strict=True))
    assert {low: count for low, count in counts.items() if count} == {4: 1024}
    assert columns["Offsets"] == {"low": [0, 64, 128], "high": [63, 127, 2**32 - 1], "count": [512, 512, 0]}
    assert columns["Highest"] == {"offset": [124]}


def test_logs_come_through_the_hook(run: Run, tmp_path: Path) -> None:
    log = EACH_LOAD.replace('"array"', '"log"').replace("cap = 2\n", "").replace('bytes = "u32"', 'lane = "u32"')
    (tmp_path / "log.toml").write_text(log)
    (tmp_path / "reverse.ptx").write_text(REVERSE)
    arguments = ("./log.toml", "reverse.ptx", "--grid", "2", "--arg", "x=f32:128=2.5")
    (entry,) = tried(run, *arguments)["maps"]
    assert entry["cap"] is None
    columns = entry["columns"]
    assert list(columns) == ["block", "warp", "[lane]", "order", "address", "value", "lane"]
    first = columns["address"][0]
    assert columns["address"] == [first + 4 * index for index in range(128)]
    assert columns["[lane]"] == list(range(32)) * 4
    assert columns["order"] == [0] * 128
    shown = run("probe", "try", *arguments, "--tracedir", "kept")
    assert "Loads: 128 records" in shown.stdout
    assert "Loads: 128 records, by thread" in run("report", "kept").stdout
    assert '"cap": null' in run("report", "kept", "--json").stdout


def test_generated_indices_stay_inside(run: Run, tmp_path: Path) -> None:
    (tmp_path / "histogram.ptx").write_text(HISTOGRAM)
    shown = tried(run, "gmem_bytes", "histogram.ptx")
    assert [(item["name"], item["type"]) for item in shown["arguments"]] == [("index", "u32"), ("counts", "u32")]
    assert {item["name"]: item["changed"] > 0 for item in shown["outputs"]} == {"index": False, "counts": True}


@pytest.mark.parametrize(
    ("file", "kernel", "written"),
    [
        ("clang/reductions.ptx", "softmax", {"softmax_param_1"}),
        ("clang/calls.ptx", "recursion", {"recursion_param_0"}),
        ("clang/histograms.ptx", "histogram_shared", {"histogram_shared_param_1"}),
        ("triton/matmul_f16.ptx", "matmul", {"matmul_param_2"}),
        ("hand/barriers.ptx", "phases", {"data"}),
    ],
)
def test_kernels_of_all_sorts(run: Run, file: str, kernel: str, written: set[str]) -> None:
    """By clang, Triton and hand: inputs are found for them, they write what they should, and the probe sees it."""
    shown = tried(run, "gmem_bytes", ROOT / "tests" / "fixtures" / "kernels" / file, "-k", kernel, "--grid", "2")
    assert shown["identical"]
    assert {item["name"] for item in shown["outputs"] if item["changed"]} == written
    (columns,) = [entry["columns"] for entry in shown["maps"]]
    assert sum(columns["load"] + columns["async"]) > 0
    assert sum(columns["store"] + columns["atomic"]) > 0


def test_several_probes_run_together(run: Run) -> None:
    result = run("probe", "try", "gmem_bytes", "block_sched", "inst_count", EXAMPLE, "-k", "axp", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["kernel"] == "saxpy"
    maps = {entry["name"]: entry["columns"] for entry in document["maps"]}
    # One thread reads two floats and writes one.
    (loaded,), (stored,) = maps["GmemBytes"]["load"], maps["GmemBytes"]["store"]
    assert loaded == 2 * stored > 0
    assert {"BlockSched", "GmemBytes"} < set(maps)
    alone = json.loads(run("probe", "try", "gmem_bytes", EXAMPLE, "-k", "saxpy", "--json").stdout)
    assert alone["maps"] == [entry for entry in document["maps"] if entry["name"] == "GmemBytes"]


WAITS = """
[map.Waits]
type = "array"
level = "thread"
cap = 2
data = { arrived = "u64", left = "u64" }
[map.Sides]
type = "sum"
level = "thread"
data = { before = "u64", after = "u64" }
[probe.wait]
position = "barrier & !(mbarrier | fence)"
level = "thread"
before = ".reg .u64 %arrived; mov.u64 %arrived, %clock64; SAVE [ Sides ] { 1, 0 };"
after = ".reg .u64 %left; mov.u64 %left, %clock64; SAVE [ Waits ] { %arrived, %left }; SAVE [ Sides ] { 0, 1 };"
"""


def test_both_sides_of_a_barrier(run: Run, tmp_path: Path) -> None:
    """Each thread arrives once and leaves once, and none of a block leaves before all have arrived."""
    (tmp_path / "waits.toml").write_text(WAITS)
    (tmp_path / "k.ptx").write_text(REVERSE)
    result = run("probe", "try", "./waits.toml", "k.ptx", "--grid", "3", "--shared", "256", "--json")
    assert result.returncode == 0, result.stderr
    maps = {entry["name"]: entry["columns"] for entry in json.loads(result.stdout)["maps"]}
    assert maps["Sides"] == {"before": [3 * 64], "after": [3 * 64]}
    waits = maps["Waits"]
    for block in range(3):
        own = [at for at, number in enumerate(waits["block"]) if number == block]
        assert len(own) == 64
        assert max(waits["arrived"][at] for at in own) <= min(waits["left"][at] for at in own)


def test_the_exact_name_is_preferred(run: Run, tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    (tmp_path / "k.ptx").write_text(text.replace("saxpy", "sums"))
    assert "sum\n" in run("probe", "try", "gmem_bytes", "k.ptx", "-k", "sum").stdout
    assert "sums\n" in run("probe", "try", "gmem_bytes", "k.ptx", "-k", "ums").stdout


def test_a_kernel_of_a_library(run: Run, demo: Path) -> None:
    """The PTX in a library is what a program with it would run."""
    of_library = run("probe", "try", "gmem_bytes", demo / "libvector.so", "-k", "saxpy", "--json")
    assert of_library.returncode == 0, of_library.stderr
    of_file = run("probe", "try", "gmem_bytes", EXAMPLE, "-k", "saxpy", "--json")
    assert json.loads(of_library.stdout)["maps"] == json.loads(of_file.stdout)["maps"]
    assert "no kernel matches; the file has saxpy, sum" in failed(
        run("probe", "try", "gmem_bytes", demo / "libvector.so", "-k", "absent")
    )


def test_a_random_schedule_is_alike_for_each_number(run: Run) -> None:
    first, same, fixed = (
        tried(run, "block_sched", EXAMPLE, "-k", "sum", *schedule)
        for schedule in (("--schedule", "3"), ("--schedule", "3"), ())
    )
    assert first["maps"] == same["maps"] != fixed["maps"]


def test_a_small_kernel_takes_little_work(run: Run) -> None:
    run("probe", "try", "block_sched", EXAMPLE, "-k", "saxpy")
    with counted() as work:
        assert run("probe", "try", "block_sched", EXAMPLE, "-k", "saxpy").returncode == 0
    # Reading, patching, the launch and the report in this process: 69,000 calls are usual.
    assert work.calls < 200_000


def test_the_trace_can_be_kept(run: Run, tmp_path: Path) -> None:
    result = run("probe", "try", "block_sched", EXAMPLE, "-k", "saxpy", "--tracedir", "kept")
    assert f"The trace: {tmp_path}/kept/" in result.stdout
    assert "saxpy" in run("report", "kept").stdout


def test_a_kernel_without_a_site_is_said_to_be_unprobed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "loads.toml").write_text(EACH_LOAD.replace('"ld.global"', '"atom.shared"').replace("OUT", "IN1"))
    result = run("probe", "try", "./loads.toml", EXAMPLE, "-k", "saxpy")
    assert result.returncode == 3
    assert "saxpy ran unprobed: no instruction matches" in result.stderr


def failed(result: subprocess.CompletedProcess[str]) -> str:
    assert (result.returncode, result.stdout) == (2, "")
    assert all(line.startswith("neutrino-probe: ") for line in result.stderr.splitlines())
    return result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("block_sched", "none.ptx"), "none.ptx: No such file"),
        (("block_sched", str(EXAMPLE)), "2 kernels match; choose one with --kernel: saxpy, sum"),
        (("block_sched", str(EXAMPLE), "-k", "daxpy"), "no kernel matches; the file has saxpy, sum"),
        (("block_sched", str(EXAMPLE), "-k", "s*", "-k", "/axpy$/"), "2 kernels match; choose one"),
        (("block_sched", str(EXAMPLE), "-k", "sum", "--filter", "s"), "no kernel matches"),
        (("block_sched", str(EXAMPLE), "-k", "/(/"), "not a regular expression"),
        (("blok_sched", str(EXAMPLE)), "did you mean block_sched?"),
        (("block_sched", str(EXAMPLE), "-k", "sum", "--arg", "m=3"), "arguments are x (0), total (1), n (2)"),
        (("block_sched", str(EXAMPLE), "-k", "sum", "--arg", "n=lots"), "it takes an integer"),
        (("block_sched", str(EXAMPLE), "-k", "sum", "--tracedir", str(EXAMPLE)), "no trace"),
    ],
)
def test_bad_input_is_named(run: Run, arguments: tuple[str, ...], said: str) -> None:
    assert said in failed(run("probe", "try", *arguments))


def test_a_bad_probe_is_shown_with_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "loads.toml").write_text(EACH_LOAD.replace("%bytes, BYTES", "%byte, BYTES"))
    result = run("probe", "try", "./loads.toml", EXAMPLE, "-k", "saxpy")
    assert (result.returncode, result.stdout) == (2, "")
    place, line, marks, hint = result.stderr.splitlines()
    assert place.startswith("loads.toml:14:13: error: register %byte is not declared")
    assert line == "   14 | cvt.u32.u64 %byte, BYTES;"
    assert marks == "      |             ^~~~~"
    assert hint == "  hint: did you mean %bytes?"


def test_text_that_is_no_kernel_is_refused_with_the_statement(run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(REVERSE.replace("bar.sync 0;", "frobnicate.b32 %r0, %r1;"))
    said = failed(run("probe", "try", "block_sched", "k.ptx"))
    assert "frobnicate.b32 %r0, %r1" in said


def test_ptx_made_by_nvcc_is_refused_with_the_reason(run: Run, tmp_path: Path) -> None:
    head = "//\n// Generated by NVIDIA NVVM Compiler\n// Compiler Build ID: CL-1\n//\n"
    (tmp_path / "k.ptx").write_text(head + REVERSE)
    said = failed(run("probe", "try", "block_sched", "k.ptx"))
    assert "reverse: the embedded device cannot run this text" in said
    assert "nvcc" in said


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        ("x=f32:100", "right after the end of x (f32 × 100, 400 bytes)"),
        ("y=f32:7", "after the end of y (f32 × 7, 28 bytes)"),
    ],
)
def test_an_access_out_of_bounds_names_argument_and_size(run: Run, buffer: str, said: str) -> None:
    message = failed(run("probe", "try", "block_sched", EXAMPLE, "-k", "saxpy", "--arg", buffer))
    assert said in message
    assert "PTX line" in message
    assert f"--arg {buffer[0]}=f32:COUNT makes it larger" in message


def test_a_kernel_that_never_ends_is_stopped(run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(HEAD + ".visible .entry k() { LOOP: bra LOOP; }\n")
    few = {"NEUTRINO_EMBEDDED": "steps=20000"}
    assert "step limit" in failed(run("probe", "try", "block_sched", "k.ptx", "--block", "1", extra=few))


def test_a_kernel_out_of_time_is_named_with_its_line_and_what_may_help(run: Run, tmp_path: Path) -> None:
    text = ".visible .entry k(.param .u32 n) { .reg .u32 %r; ld.param.u32 %r, [n];\nLOOP: bra LOOP; }\n"
    (tmp_path / "k.ptx").write_text(HEAD + text)
    said = failed(run("probe", "try", "block_sched", "k.ptx", "--timeout", "0.7"))
    assert "k has not ended within 0.7 s" in said
    assert "was at PTX line 5: 'bra LOOP;'" in said
    assert "a smaller --arg n=NUMBER, --grid 1 or --block 32 may make it shorter" in said


def _processes_about(folder: Path) -> list[str]:
    """Command lines that name a file below the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if f"{folder}/" in line]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_try_that_is_ended_takes_its_runs_along(cache: Path, tmp_path: Path, number: int) -> None:
    (tmp_path / "k.ptx").write_text(HEAD + ".visible .entry k() { LOOP: bra LOOP; }\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "neutrino.cli.probe", "try", "block_sched", "k.ptx"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as process:
        limit = time.monotonic() + 600
        # Between a fork and its exec there is one more.
        while (count := len(_processes_about(scratch))) != 2 and time.monotonic() < limit:
            time.sleep(0.1)
        assert count == 2
        process.send_signal(number)
    while _processes_about(scratch) and time.monotonic() < limit:
        time.sleep(0.1)
    assert _processes_about(scratch) == []
    if number == signal.SIGTERM:
        # The listener, whose command line does not name the folder, removes what it keeps there after its last client.
        while (left := list(scratch.iterdir())) and time.monotonic() < limit:
            time.sleep(0.1)
        assert left == []


def test_who_waits_at_a_terminal_is_told(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(HEAD + ".visible .entry k() { LOOP: bra LOOP; }\n")
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "neutrino.cli.probe", "try", "block_sched", "k.ptx", "--timeout", "4"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=end) as process:
        os.close(end)
        try:
            assert b"neutrino-probe: the kernel is still running (--timeout: 4 s)" in os.read(terminal, 1000)
        finally:
            process.kill()
    os.close(terminal)


# Threads 0 to 3 of each block print their number and the kernel's integer.
PATTERN = b"thread %d: %d\n\0"
PRINTS = f"""{HEAD}
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.global .align 1 .b8 pattern[{len(PATTERN)}] = {{{", ".join(map(str, PATTERN))}}};
""" + """
.visible .entry says(.param .u32 n)
{
.local .align 8 .b8 values[8];
.reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<3>;
mov.u32 %r1, %tid.x; setp.gt.u32 %p, %r1, 3; @%p bra END;
ld.param.u32 %r2, [n];
st.local.u32 [values], %r1; st.local.u32 [values+4], %r2;
mov.u64 %d1, pattern; cvta.global.u64 %d1, %d1;
mov.u64 %d2, values; cvta.local.u64 %d2, %d2;
{
.param .b64 a; .param .b64 b; .param .b32 r;
st.param.b64 [a], %d1; st.param.b64 [b], %d2;
call.uni (r), vprintf, (a, b);
ld.param.b32 %r3, [r];
}
END: ret;
}
"""


def test_what_the_kernel_printed_is_shown_once(run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(PRINTS)
    arguments = ("block_sched", "k.ptx", "--grid", "2", "--arg", "n=7", "--rows", "5")
    result = run("probe", "try", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("What the kernel printed") == 1
    assert result.stdout.count("thread 2: 7\n") == 1
    assert "    … 3 more (--rows)" in result.stdout
    assert "The same with and without the probe." in result.stdout
    shown = tried(run, *arguments)
    assert sorted(shown["printed"].splitlines()) == sorted([f"thread {index}: 7" for index in range(4)] * 2)
    assert shown["printed_alike"] is True


def test_another_text_with_the_probe_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(PRINTS.replace("ld.param.u32 %r2, [n]", "mov.u32 %r2, %clock"))
    result = run("probe", "try", "block_sched", "k.ptx", "--grid", "1")
    assert result.returncode == 1
    assert "NOT the same with the probe:" in result.stdout
    assert sum(line.startswith("  + thread 0: ") for line in result.stdout.splitlines()) == 1
    assert sum(line.startswith("  - thread 0: ") for line in result.stdout.splitlines()) == 1


def test_a_misaligned_access_says_nothing_of_sizes(run: Run, tmp_path: Path) -> None:
    body = ".reg .u64 %d; .reg .u32 %r; ld.param.u64 %d, [y]; ld.global.u32 %r, [%d+2]; ret;"
    (tmp_path / "k.ptx").write_text(f"{HEAD}.visible .entry k(.param .u64 y) {{ {body} }}\n")
    said = failed(run("probe", "try", "block_sched", "k.ptx"))
    assert "misaligned access" in said
    assert "that is y + 2 bytes" in said
    assert "COUNT" not in said


# Every thread counts in one variable, and the first one leaves the address of another one in a third.
VARIABLES = HEAD + """
.visible .global .align 4 .u32 counter = 5;
.global .align 4 .f32 table[4] = {1.5, 2.5, 3.5, 4.5};
.global .align 8 .u64 pointer = table;
.const .align 4 .u32 fixed = 3;
.visible .entry count()
{
.reg .u64 %d; .reg .u32 %r;
mov.u64 %d, counter; red.global.add.u32 [%d], 1;
mov.u64 %d, table; st.global.f32 [%d+8], 0f40000000;
ret;
}
"""


def test_variables_of_the_module_are_compared_and_listed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(VARIABLES)
    result = run("probe", "try", "gmem_bytes", "k.ptx")
    assert (result.returncode, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["counter", "1", "of", "1", "517"] in rows
    assert ["table", "1", "of", "4", "2"] in rows
    assert "The same bits with and without the probe." in result.stdout
    shown = tried(run, "gmem_bytes", "k.ptx")
    assert {item["name"]: item["changed"] for item in shown["outputs"]} == {"counter": 1, "table": 1, "pointer": 0}


def test_a_variable_that_differs_with_the_probe_is_told(run: Run, tmp_path: Path) -> None:
    """The clock runs on with a probe, so what a kernel stores of it is another number."""
    clock = "mov.u64 %t, %clock64; st.global.u64 [stamp], %t; ret;"
    text = f".visible .global .align 8 .u64 stamp;\n.visible .entry k() {{ .reg .u64 %t; bar.sync 0; {clock} }}\n"
    (tmp_path / "k.ptx").write_text(HEAD + text)
    result = run("probe", "try", "block_sched", "k.ptx", "--grid", "1", "--block", "1")
    assert result.returncode == 1
    assert "NOT the same bits with the probe: stamp" in result.stdout


@pytest.mark.parametrize(("kernel", "shared"), [("reverse", 32768), ("through_call", 32768), ("without", 0)])
def test_dynamic_shared_memory_is_for_kernels_that_use_it(
    run: Run, tmp_path: Path, kernel: str, shared: int
) -> None:
    more = """
.func touch() { .reg .u32 %r; mov.u32 %r, tile; st.shared.u32 [%r], %r; ret; }
.visible .entry through_call() { call.uni touch, (); ret; }
.visible .entry without() { ret; }
"""
    (tmp_path / "k.ptx").write_text(REVERSE + more)
    assert tried(run, "block_sched", "k.ptx", "-k", kernel)["shared"] == shared


K = ".visible .entry k() { ret; }\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x7fELF\2\1\1\0 .entry k", "this is an ELF file: a program, a library or machine code, not PTX"),
        (b"\x50\xed\x55\xba\1\0\x10\0", "this is a fatbin, not PTX"),
        (b".version 8.0\0\0\1", "this is data, with zero bytes in it, not PTX"),
        (f'{HEAD}.include "x"\n{K}'.encode(), "the .entry in line 5 is part of what cannot be read, line 4: '.include"),
        (f"{HEAD}{K}{K}".encode(), "2 kernels are named k, in lines 4, 5"),
        (f"{HEAD}// .entry k\n".encode(), "no kernel in it: there is no .entry"),
    ],
)
def test_a_file_without_a_kernel_to_choose_is_said_to_be_what_it_is(
    run: Run, tmp_path: Path, data: bytes, said: str
) -> None:
    (tmp_path / "k.ptx").write_bytes(data)
    assert said in failed(run("probe", "try", "block_sched", "k.ptx"))


def test_a_folder_is_said_to_be_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").mkdir()
    said = failed(run("probe", "try", "block_sched", "k.ptx"))
    assert said == "neutrino-probe: k.ptx: a folder, expected a file\n"


def test_a_long_statement_is_not_shown_whole(run: Run, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(f"{HEAD}.global .u32 a = {'(' * 5000}1{')' * 5000};\n{K}")
    said = failed(run("probe", "try", "block_sched", "k.ptx"))
    assert "PTX line 4" in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--block", "2048", "--block 2048,1,1: the device takes up to 1024,1024,64"),
        ("--block", "64,32", "--block 64,32,1: 2,048 threads, but a block has up to 1,024"),
        ("--grid", "1,65536", "--grid 1,65536,1: the device takes up to 2147483647,65535,65535"),
        ("--grid", "99999999999", "--grid 99999999999,1,1: the device takes up to 2147483647,65535,65535"),
        ("--shared", "232449", "--shared 232449: a block has up to 232,448 bytes"),
    ],
)
def test_a_launch_beyond_the_limits_names_them(run: Run, option: str, value: str, said: str) -> None:
    assert said in failed(run("probe", "try", "block_sched", EXAMPLE, "-k", "saxpy", option, value))


def test_dynamic_shared_memory_beyond_what_the_kernel_leaves(run: Run, tmp_path: Path) -> None:
    body = ".shared .align 4 .b8 own[1024]; st.shared.u32 [own], 1; ret;"
    (tmp_path / "k.ptx").write_text(f"{HEAD}.visible .entry k() {{ {body} }}\n")
    said = failed(run("probe", "try", "block_sched", "k.ptx", "--shared", "232448"))
    assert "--shared 232448 and the kernel's own shared memory are more than the 232,448 bytes" in said


def test_negative_numbers_are_the_bits_of_their_fields(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(NEGATIVE)
    document = tried(run, tmp_path / "p.toml", EXAMPLE, "-k", "saxpy")
    maps = {entry["name"]: entry["columns"] for entry in document["maps"]}
    assert maps["S"] == {"wide": [2**64 - 512], "narrow": [2**32 - 512], "signed": [-3 * 512]}
    fields = {"kept": 2**64 - 2, "word": 2**32 - 1, "half": 65535, "byte": 255, "bits": -1}
    assert {name: set(maps["M"][name]) for name in fields} == {name: {value} for name, value in fields.items()}


def test_a_launch_without_memory_is_said_to_be_too_large(run: Run) -> None:
    said = failed(run("probe", "try", "block_sched", EXAMPLE, "-k", "saxpy", "--grid", "100000,100,10"))
    assert "saxpy: no memory for its buffers of 268,435,456 bytes, generated for --grid 100000,100,10 and" in said
