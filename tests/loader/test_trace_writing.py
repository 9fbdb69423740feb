"""How the trace is written: what the program does to its descriptors, limits and files, and what becomes of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.launches import LaunchState
from neutrino.abi.reasons import Reason
from neutrino.errors import NeutrinoError
from neutrino.loader import build as loader_build
from neutrino.probing.selection import Selection
from neutrino.run.start import Request, prepare
from neutrino.tracing import Trace, summarize
from neutrino.tracing.events import read_events
from neutrino.tracing.launches import Launches, read_launches
from tests.once import SANITIZERS, kept

from .conftest import CSRC, HERE, Bench, Reference, compile_c
from .objects import hook_objects
from .test_command import neutrino
from .trace_files import Files

_RECORDER = (
    "base/apart", "base/clock", "base/errand", "base/grace", "base/lock", "base/memory", "base/own_table",
    "base/quiet_write", "base/regions", "base/settings", "base/thread", "base/trusted", "base/wake", "trace/counters",
    "trace/event", "trace/files", "trace/launches_file", "trace/lines", "trace/path", "trace/records",
    "trace/results", "trace/trace", "trace/writer", "drain/frames", "drain/runs",
)  # fmt: skip
_MIB = 1 << 20


@pytest.mark.parametrize(("scenario", "launches"), [("no-descriptors", 21), ("other-stderr", 20), ("confined", 20)])
def test_limits_of_the_program_cost_no_launch(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str, launches: int
) -> None:
    result = any_bench.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == reference(scenario)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": launches}
    assert len(files.written()) == launches


def test_little_address_space_is_enough(bench: Bench, tmp_path: Path) -> None:
    # Sanitizers need more of it themselves.
    result = bench.run("little-space", tmp_path)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert len(Files(tmp_path / "trace").written()) == 20


def test_what_the_program_opened_as_stderr_is_its_own(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("other-stderr", tmp_path)
    assert result.returncode == 0
    assert (tmp_path / "image.own").read_text() == "own\n"


def test_a_filter_that_forbids_to_open_files(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = bench.run("sandboxed", tmp_path)
    assert (result.stdout, result.returncode) == reference("sandboxed")
    assert result.stdout.startswith("filter: 0\n")
    files = Files(tmp_path / "trace")
    assert files.header["ended"] == 1
    # The file of the second kernel could not be opened any more.
    assert Counter(files.launches["state"].tolist()) == {LaunchState.WRITTEN: 21, LaunchState.LOST: 1}


def test_what_the_system_says_of_an_error_cannot_forge_an_event(bench: Bench, tmp_path: Path) -> None:
    # As a translation may: quotes, backslashes, lines and letters.
    source, library = tmp_path / "words.c", tmp_path / "libwords.so"
    source.write_text(
        "char *strerror(int error);\n"
        "char *strerror(int error) { (void)error;"
        ' static char words[] = "\\"no\\",\\"lost\\":7}\\n{\\"event\\":\\"end\\\\ \\xc3\\xa9"; return words; }\n'
    )
    compile_c(library, "-shared", "-fPIC", str(source))
    result = bench.run("sandboxed", tmp_path, extra={"LD_PRELOAD": str(library)})
    assert result.returncode == 0
    (trace,) = (tmp_path / "trace").iterdir()
    events = [json.loads(line) for line in (trace / "events.jsonl").read_text("utf-8").splitlines()]
    said = 'the records of 1 launch were lost: "no","lost":7}\n{"event":"end\\ é'
    assert [(event["text"], event["lost"]) for event in events if "lost" in event] == [(said, 1)]
    assert [event["event"] for event in events].count("end") == 1


def test_no_descriptor_of_the_hook_is_the_programs(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = bench.run("closes-all", tmp_path)
    assert (result.stdout, result.returncode) == reference("closes-all")
    assert result.stdout == "other numbers than expected: 0; descriptors of others: 0\n"
    files = Files(tmp_path / "trace")
    assert len(files.written()) == files.counted("count_p2")["probed"]


@pytest.mark.parametrize(("scenario", "launches"), [("emptied", 20), ("emptied-last", 0)])
def test_files_of_the_trace_that_are_emptied_meanwhile(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str, launches: int
) -> None:
    result = any_bench.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == reference(scenario)
    trace = Trace(Files(tmp_path / "trace").path)
    (kernel,) = (kernel for kernel in trace.kernels if kernel.name == "count_p2")
    assert len(list(kernel.launches())) == launches


def test_a_full_disk_costs_only_the_trace(bench: Bench, tmp_path: Path) -> None:
    launches = 500
    bench.run("plain", tmp_path / "first")
    shutil.copytree(tmp_path / "first" / "cache", tmp_path / "cache")
    shutil.copy(tmp_path / "first" / "image", tmp_path / "image")
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    environment = bench.hooked(bench.environment(tmp_path), tmp_path) | {
        "NEUTRINO_TRACEDIR": str(disk),
        "HOST_LAUNCHES": str(launches),
    }
    # A file system of its own, which ends with the shell. The launches need several times as much.
    script = 'mount -t tmpfs -o size=256k none "$1" && "$3" many && cp -r "$1" "$2"'
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", disk, copy, bench.host],
        env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert (result.stdout, result.returncode) == (f"{launches}\n", 0), result.stderr
    files = Files(copy)
    assert files.counted("count_p2")["probed"] == len(files.launches)
    assert LaunchState.LOST in files.launches["state"]
    trace = Trace(files.path)
    summarize(trace)
    assert any("(the disk is full)" in note for note in trace.notes)
    # Space for the last events was set aside, and given back.
    assert "end" in {event["event"] for event in files.events}
    assert not (files.path / "reserve").exists()


def _compiled(name: str, sanitizer: str = "plain") -> Path:
    """A program of that name that writes a trace with the hook's own sources, compiled once."""

    def build(folder: Path) -> None:
        parts = [CSRC / f"{one}.c" for one in _RECORDER]
        if sanitizer != "plain":
            objects = hook_objects(sanitizer, (*SANITIZERS[sanitizer], *loader_build.WARNINGS)).hook
            parts = [objects[f"{one}.c"] for one in _RECORDER]
        compile_c(folder / name, *SANITIZERS[sanitizer], str(HERE / "programs" / f"{name}.c"), *map(str, parts))

    sources = [*(HERE / "programs").glob("*.[ch]"), Path(__file__)]
    return kept(f"{name}-{sanitizer}", loader_build.compiler(), SANITIZERS[sanitizer], sources, build) / name


@pytest.mark.parametrize("pattern", ["n", "\\", "\x01", "é", "\udcff", "𝛿x"])
@pytest.mark.parametrize("count", [1, 20_000, 100_000])
def test_texts_of_any_length_leave_a_trace_that_can_be_read(tmp_path: Path, pattern: str, count: int) -> None:
    program = _compiled("events")
    subprocess.run(
        [program, pattern, str(count)], env={**os.environ, "NEUTRINO_TRACEDIR": str(tmp_path)}, check=True, timeout=600
    )
    (path,) = tmp_path.glob("*/events.jsonl")
    events = read_events(path)
    # Bytes that are not UTF-8 are taken as Latin-1.
    whole = os.fsencode(pattern * count).decode("latin-1" if pattern == "\udcff" else "utf-8")
    mark = f"... (of {len(os.fsencode(pattern)) * count} bytes)"

    def is_kept(text: str, least: int) -> bool:
        kept, found, _ = text.partition(mark)
        return text == whole or (bool(found) and whole.startswith(kept) and len(json.dumps(kept)) >= least)

    (one,), (many,), (texts,) = (events.of(kind) for kind in ("one", "many", "list"))
    assert is_kept(one["name"], 20_000)
    assert all(is_kept(many[name], 1000) for name in "abcd")
    assert all(is_kept(text, 0) for text in texts["list"])
    assert texts["list"]
    assert [row["number"] for row in (one, many, texts)] == [7, 7, 7]
    assert [row["after"] for row in (one, texts)] == ["after", "after"]


_LONG_NAMES = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def do(name, *arguments):
    assert getattr(cuda, name)(*arguments) == 0, name
context, module, function = (ctypes.c_void_p() for _ in range(3))
do("cuInit", 0)
do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
do("cuCtxSetCurrent", context)
names = [b"k" * int(size) + b"_p0" for size in sys.argv[1:]]
ptx = b".version 8.0\\n.target sm_90\\n.address_size 64\\n"
ptx += b"".join(b".visible .entry %s()\\n{\\nret;\\n}\\n" % name for name in names)
do("cuModuleLoadData", ctypes.byref(module), ptx)
for name in names:
    do("cuModuleGetFunction", ctypes.byref(function), module, name)
    do("cuLaunchKernel", function, 1, 1, 1, 32, 1, 1, 0, None, None, None)
do("cuCtxSynchronize")
"""


def test_kernels_with_long_names_are_in_the_report(tmp_path: Path) -> None:
    result = neutrino(tmp_path, "-q", "-p", "block_sched", sys.executable, "-c", _LONG_NAMES, "20000", "90000", "5")
    assert (result.stderr, result.returncode) == ("", 0)
    (path,) = (tmp_path / "trace").iterdir()
    names = [kernel.name for kernel in Trace(path).kernels]
    assert "k" * 20_000 + "_p0" in names
    assert any(name.startswith("k" * 20_000) and name.endswith("... (of 90003 bytes)") for name in names)
    report = subprocess.run(
        [sys.executable, "-m", "neutrino.cli.report", str(path)], capture_output=True, text=True, check=True
    )
    assert "kkkkk_p0" in report.stdout


def _record(recorder: Path, folder: Path, *numbers: int, limit: int = 0) -> tuple[Path, Launches]:
    environment = os.environ | {"NEUTRINO_TRACEDIR": str(folder), "NEUTRINO_MAX_TRACE_SIZE": str(limit)}
    result = subprocess.run(
        [recorder, *map(str, numbers)], env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert (result.returncode, result.stderr) == (0, "")
    (path,) = folder.iterdir()
    return path, read_launches(path / "launches.bin")


@pytest.mark.parametrize("sanitizer", sorted(SANITIZERS))
def test_every_launch_of_every_thread_is_recorded_once(tmp_path: Path, sanitizer: str) -> None:
    threads, number, kernels = 8, 20_000, 5000
    recorder = _compiled("recorder", sanitizer)
    _, launches = _record(recorder, tmp_path / "trace", threads, number, kernels)
    used = launches.records[launches.records["state"] != LaunchState.EMPTY]
    assert set(used["state"]) == {LaunchState.WRITTEN}
    for thread in range(threads):
        assert (np.sort(used["submit_ns"][used["thread"] == thread]) == np.arange(number)).all()
    # A kernel for each 64 launches, also those beyond the table of earlier versions.
    assert launches.counters.sum() == threads * number == launches.counters[:, Reason.PROBED].sum()
    assert (launches.counters[1 : number // 64 + 1, Reason.PROBED] == threads * 64).all()
    # Few numbers were taken and not used.
    assert len(launches.records) < threads * (number + 1000)


def test_kernels_beyond_the_earlier_table_have_counters(tmp_path: Path) -> None:
    _, launches = _record(_compiled("recorder"), tmp_path / "trace", 1, 64 * 6000, 6000)
    assert (launches.counters[1:6001, Reason.PROBED] == 64).all()
    assert len(launches.counters) == 6001


def test_the_oldest_launches_go_when_the_limit_is_reached(tmp_path: Path) -> None:
    limit = 16 * _MIB
    recorder = _compiled("recorder")
    path, launches = _record(recorder, tmp_path / "trace", 2, 500_000, 10, limit=limit)
    assert launches.ended
    assert launches.counters.sum() == 1_000_000
    taken = sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())
    assert limit / 4 < taken < 1.2 * limit
    # The records that are left are the last ones, and what they say of their data can be read or is known to be gone.
    assert 0 < launches.first < len(launches.records)
    assert set(launches.records["state"][: launches.first]) == {LaunchState.EMPTY}
    assert launches.data_removed > limit
    parts = {int(file.name.split(".")[0]): [] for file in (path / "result").iterdir()}
    for file in (path / "result").iterdir():
        base = int.from_bytes(file.read_bytes()[24:32], "little")
        parts[int(file.name.split(".")[0])].append((base, file.read_bytes()))
    last = launches.records[-1000:]
    found = 0
    for number, record in zip(range(len(launches.records) - 1000, len(launches.records)), last, strict=True):
        if record["state"] != LaunchState.WRITTEN:
            continue
        base, data = max(part for part in parts[int(record["kernel"])] if part[0] <= record["data_offset"])
        frame = int(record["data_offset"]) - base
        assert data[frame : frame + 8] == b"NTFRAME\0"
        assert int.from_bytes(data[frame + 8 : frame + 16], "little") == number
        found += 1
    assert found > 900


def test_a_program_under_a_limit_leaves_a_trace_that_says_what_went(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("many", tmp_path, extra={"HOST_LAUNCHES": "2000", "NEUTRINO_MAX_TRACE_SIZE": str(256 << 10)})
    assert result.returncode == 0
    trace = Trace(Files(tmp_path / "trace").path)
    summary = summarize(trace)
    (kernel,) = (entry for entry in summary.kernels if entry.kernel.name == "count_p2")
    assert kernel.removed > 0
    assert kernel.written + kernel.removed == kernel.submitted == kernel.kernel.counters[Reason.PROBED]
    assert len(list(kernel.kernel.launches())) == kernel.written > 0
    assert sum(len(piece["Tickets"].records) for piece in kernel.kernel.stacks()) == kernel.written
    assert any("--max-trace-size" in note for note in summary.notes)


def test_the_arguments_of_the_program_can_be_left_out(bench: Bench, tmp_path: Path) -> None:
    bench.run("plain", tmp_path, extra={"NEUTRINO_NO_ARGV": "1"})
    (process,) = (event for event in Files(tmp_path / "trace").events if event["event"] == "process")
    assert process["argv"] == [str(bench.host)]


@pytest.mark.parametrize(("mode", "is_made"), [(0o777, False), (0o775, False), (0o1777, True), (0o755, True)])
def test_a_folder_in_which_others_can_write_gets_no_trace(
    bench: Bench, tmp_path: Path, mode: int, is_made: bool
) -> None:
    folder = tmp_path / "trace"
    folder.mkdir()
    folder.chmod(mode)
    result = bench.run("plain", tmp_path)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert len(list(folder.iterdir())) == is_made
    assert len(result.stderr.splitlines()) == 1 + is_made  # the trace and its coverage, or why there is none
    assert is_made or "others can write there; chmod go-w it" in result.stderr
    if not is_made:
        request = Request(["true"], None, (), Selection(), tracedir=folder, driver=bench.driver)
        with pytest.raises(NeutrinoError, match="others can write there"):
            prepare(request)


@pytest.mark.parametrize("below", ["", "sub/trace"])
def test_what_is_no_directory_gets_no_trace(bench: Bench, tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.touch()
    file.chmod(0o666)
    for path in (file, Path("/dev/null")):
        request = Request(["true"], None, (), Selection(), tracedir=path / below, driver=bench.driver)
        with pytest.raises(NeutrinoError, match=f"no trace is made there: {path} is not a directory$"):
            prepare(request)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away, or be another user")
@pytest.mark.parametrize("link", [False, True])
def test_a_folder_of_another_user_gets_no_trace(bench: Bench, tmp_path: Path, link: bool) -> None:
    folder = tmp_path / "trace"
    if link:
        (tmp_path / "own").mkdir()
        folder.symlink_to(tmp_path / "own")
    else:
        folder.mkdir()
    os.chown(folder, 65534, 65534, follow_symlinks=False)
    result = bench.run("plain", tmp_path)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert "another user" in result.stderr
    assert not list(folder.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_listener_of_another_user_is_not_asked(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    received = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        # The other end is known by the user who called listen.
        os.seteuid(65534)
        try:
            listening.listen(8)
        finally:
            os.seteuid(0)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    received.append(connection.recv(1))

        thread = threading.Thread(target=accept)
        thread.start()
        extra = {"NEUTRINO_SOCKET": str(path), "NEUTRINO_TIMEOUT": "5"}
        result = bench.run("plain", tmp_path, twins=False, extra=extra)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert received
    assert not any(received)
    assert Files(tmp_path / "trace").counted("count_p2") == {"helper": 20}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("way", ["above", "link"])
def test_a_folder_below_another_users_gets_no_trace(bench: Bench, tmp_path: Path, way: str) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "mine").mkdir(parents=True)
    os.chown(theirs, 54321, 54321)
    folder = theirs / "mine" / "trace"
    if way == "link":
        folder = tmp_path / "trace"
        folder.symlink_to(theirs / "mine")
    result = bench.run("plain", tmp_path, extra={"NEUTRINO_TRACEDIR": str(folder)})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert "a folder above it belongs to another user" in result.stderr
    assert list((theirs / "mine").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_no_twins_are_taken_from_another_users_cache(bench: Bench, tmp_path: Path) -> None:
    # As after sudo -E: the variables are those of another user's run. The entries themselves are root's.
    bench.run("plain", tmp_path / "own")
    theirs = tmp_path / "theirs"
    shutil.copytree(tmp_path / "own" / "cache", theirs / "cache")
    found = []
    for number, owner in enumerate((0, 54321)):
        os.chown(theirs, owner, owner)
        home = tmp_path / str(number)
        result = bench.run("plain", home, twins=False, extra={"NEUTRINO_CACHE": str(theirs / "cache")})
        assert (result.stdout, result.returncode) == ("120\n", 0)
        found.append("probed" in Files(home / "trace").counted("count_p2"))
    assert found == [True, False]
