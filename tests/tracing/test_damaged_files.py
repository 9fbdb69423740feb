"""Each file of a trace missing, empty, cut off anywhere, garbage, or no file at all: what can be read is read.

A report never ends with anything but a message, never waits for a FIFO, and shows the other traces of the folder.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neutrino.abi.benchmark_file import BENCHMARK_HEADER, BENCHMARK_MAGIC, SAMPLE
from neutrino.abi.launches import LAUNCH
from neutrino.abi.versions import BENCHMARK_VERSION
from neutrino.cli.report import main
from neutrino.errors import TraceError
from neutrino.page.sources import _read
from neutrino.resources import tool_path
from neutrino.tracing import Trace
from neutrino.tracing.files import read_file
from tests.page.test_page_data import blocks_of
from tests.tracing.trace_writer import BLOCK_SCHED, RECORDS_OFFSET, TraceWriter, fill_regions, make_map

VALUES = make_map("Plain", "array", "thread", {"value": "u32"})
FORMS: tuple[list[str], ...] = (
    [], ["--json"], ["--why"], ["--why", "--json"], ["--rows", "2", "--all"],
    ["--records", "--map", "Plain"], ["--csv", "--map", "Plain"], ["--group-by", "value", "--map", "Plain"],
)  # fmt: skip


def write(path: Path, name: str = "vecadd") -> Path:
    """A trace of two kernels with three launches each."""
    writer = TraceWriter(path)
    writer.kernel(1, name, maps=[BLOCK_SCHED])
    writer.kernel(2, f"{name}2", maps=[VALUES])
    random = np.random.default_rng(1)
    for _ in range(3):
        for kernel, entry in ((1, BLOCK_SCHED), (2, VALUES)):
            slots = 2 if kernel == 1 else 64
            values = random.integers(0, 99, (slots, entry.size), np.uint8).reshape(-1).view(entry.dtype)
            regions = fill_regions([entry], 1, {entry.name: values}, blocks=2)
            writer.launch(kernel, (2, 1, 1), (32, 1, 1), regions)
    written = writer.write()
    header = np.zeros(1, BENCHMARK_HEADER.dtype)
    header["magic"], header["version"], header["record_size"] = BENCHMARK_MAGIC, BENCHMARK_VERSION, SAMPLE.size
    sample = np.zeros(1, SAMPLE.dtype)
    sample["kernel"], sample["elapsed_ns"] = 1, 5000
    (written / "benchmark.bin").write_bytes(header.tobytes().ljust(SAMPLE.size, b"\0") + sample.tobytes())
    return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two traces, of which the tests damage copies of the first."""
    path = tmp_path_factory.mktemp("job")
    write(path / "bad")
    write(path / "good", "untouched")
    return path


FILES = (
    "events.jsonl", "launches.bin", "counters.bin", "benchmark.bin", "control", "probe.toml", "result/1.bin",
    "kernel/1/manifest.json", "result", "kernel", "kernel/1",
)  # fmt: skip


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _socket(path: Path) -> None:
    # A socket's path is short.
    short = Path(f"/tmp/neutrino-test-{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(short))
        short.rename(path)


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


STATES: dict[str, Callable[[Path], None]] = {
    "missing": lambda _: None,
    "empty": lambda path: path.write_bytes(b"") and None,
    "FIFO": os.mkfifo,
    "folder": Path.mkdir,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 40) and None,
    "zeros": lambda path: path.write_bytes(bytes(10000)) and None,
    "huge": _huge,
}


def report(path: Path, capsys: pytest.CaptureFixture[str], *form: str) -> tuple[int, str, str]:
    status = main([str(path), "--all-traces", *form])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, captured.out, captured.err


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", FILES)
def test_what_can_be_read_is_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, state: str
) -> None:
    if state == "huge" and name in ("events.jsonl", "kernel/1/manifest.json"):
        pytest.skip("that would take all of the memory")
    job = tmp_path / "job"
    shutil.copytree(folder, job)
    target = job / "bad" / name
    before = not target.exists()
    _remove(target)
    STATES[state](target)
    for form in FORMS if state in ("FIFO", "empty", "garbage") else FORMS[:2]:
        status, out, err = report(job, capsys, *form)
        # --why says of a trace that all is well, and tables of records have a column of the traces if there are two.
        assert "untouched" in out or ("good" in out and form not in FORMS[:2]), (form, out, err)
        is_material = not before and name != "probe.toml" and not (name == "events.jsonl" and state == "missing")
        if form == [] and is_material and not (state == "missing" and name == "benchmark.bin"):
            assert status == 2 or "note:" in out, out
            is_named = name != "events.jsonl" or state not in ("empty", "zeros")
            assert not is_named or name.split("/", maxsplit=1)[0].split(".", maxsplit=1)[0] in out + err
        # The other kernel of the damaged trace.
        if name in ("result/1.bin", "kernel/1/manifest.json", "kernel/1", "benchmark.bin", "counters.bin"):
            assert "vecadd2" in out or form not in FORMS[:2], (form, out)


@pytest.mark.parametrize("name", ["events.jsonl", "launches.bin", "counters.bin", "benchmark.bin", "result/2.bin"])
def test_files_cut_at_every_length(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    job = tmp_path / "job"
    shutil.copytree(folder, job)
    target = job / "bad" / name
    whole = target.read_bytes()
    places = {*range(0, 200, 11), *range(len(whole) - 400, len(whole), 23), RECORDS_OFFSET, len(whole) // 2}
    for length in sorted(place for place in places if 0 <= place < len(whole)):
        target.write_bytes(whole[:length])
        status, out, err = report(job, capsys)
        assert "untouched" in out
        assert status in (0, 2)
        # Nothing is shown for whole that is not.
        if name == "result/2.bin":
            assert status == 2
            assert "result/2.bin" in err
            shown = json.loads(report(job, capsys, "--json")[1])["traces"]
            kernels = {kernel["name"]: kernel for kernel in shown[0]["kernels"]} if shown else {}
            assert kernels["vecadd"]["maps"][0]["records"] == 6
            assert sum(entry["records"] for entry in kernels["vecadd2"]["maps"]) in (0, 64, 128)


def test_a_trace_whose_launches_were_cut_off_while_it_was_written_is_not_complete(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = shutil.copytree(folder / "bad", tmp_path / "t")
    assert Trace(trace).complete
    # The hook makes the file as long again as it was.
    size = (trace / "launches.bin").stat().st_size
    os.truncate(trace / "launches.bin", RECORDS_OFFSET + 4 * LAUNCH.size)
    os.truncate(trace / "launches.bin", size)
    assert not Trace(trace).complete
    _, out, _ = report(trace, capsys)
    assert "the trace is not complete: launches.bin has no records of 2 launches" in out


def test_a_kernel_without_data_has_no_file_and_is_not_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "idle", maps=[VALUES])
    trace = writer.write()
    (trace / "result/1.bin").unlink(missing_ok=True)
    for form in FORMS[:2]:
        status, _, err = report(trace, capsys, *form)
        assert (status, err) == (0, "")


def test_a_kernel_without_a_name_hides_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = shutil.copytree(folder / "bad", tmp_path / "t")
    events = [json.loads(line) for line in (trace / "events.jsonl").read_text().splitlines()]
    for name in (None, "", 5, "_Z" + "x" * 300_000, "\udcff\x1b[2J"):
        for event in events:
            if event["event"] == "kernel" and event["id"] == 1:
                event["name"] = name
        (trace / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        for form in FORMS:
            status, out, err = report(trace, capsys, *form)
            assert status == 0, err
            assert "\x1b" not in out


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_members_of_any_type(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    trace = shutil.copytree(folder / "bad", tmp_path_factory.mktemp("any") / "t")
    lines = (trace / "events.jsonl").read_text().splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    event = json.loads(lines[number])
    event[data.draw(st.sampled_from(sorted(event)))] = data.draw(JSON)
    lines[number] = json.dumps(event)
    (trace / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    status, _, _ = report(trace, capsys, *data.draw(st.sampled_from(FORMS)))
    assert status in (0, 2, 3)


@pytest.mark.parametrize("state", ["FIFO", "empty", "garbage", "device", "folder"])
def test_the_script_in_the_trace_goes_on(folder: Path, tmp_path: Path, state: str) -> None:
    trace = shutil.copytree(folder / "bad", tmp_path / "t")
    shutil.copy(tool_path("read.py"), trace / "read.py")
    (trace / "result/1.bin").unlink()
    STATES[state](trace / "result/1.bin")
    with (trace / "events.jsonl").open("a") as events:
        events.write("{\n")
    done = subprocess.run(
        [sys.executable, str(trace / "read.py")], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 2
    assert "1.bin" in done.stderr
    assert "Traceback" not in done.stderr
    assert "vecadd2" in done.stdout


SECRET = "of-another-user: 5f3759df"


@pytest.mark.parametrize("name", [*FILES, "kernel/1/original.s", "kernel/1/original.ptx", "probe-2.toml"])
def test_no_link_in_a_trace_is_followed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    trace = shutil.copytree(folder / "bad", tmp_path / "t")
    for kernel in (1, 2):
        (trace / f"kernel/{kernel}/original.ptx").write_text(f"// {kernel}: {SECRET}\n")
    for file in ("probe.toml", "probe-2.toml"):
        (trace / file).write_text("")
    target = trace / name
    # The file or folder itself, elsewhere: it would be read without a complaint.
    elsewhere = tmp_path / "elsewhere"
    if target.exists():
        target.rename(elsewhere)
    else:
        elsewhere.write_text(f"linked: {SECRET}")
    target.symlink_to(elsewhere)
    page = tmp_path / "page.html"
    for form in (["--html", str(page)], ["--proof"], ["--json"]):
        status = main([str(trace), *form])
        captured = capsys.readouterr()
        said = captured.out + captured.err
        if name in ("control", "benchmark.bin"):
            continue
        if name.startswith("kernel/1/original") and form == ["--json"]:
            continue
        assert status == 2, (form, said)
        assert "it is a link, and links in a trace are not followed" in said, (form, said)
        # Of that kernel nothing is shown that is behind the link.
        digest = hashlib.sha256((elsewhere / "1/original.ptx").read_bytes() if name == "kernel" else b"").hexdigest()
        assert digest not in said
    if name.startswith("kernel"):
        texts = [gzip.decompress(data) for data in blocks_of(page.read_text()).values()]
        blocks = [data for data in texts if SECRET.encode() in data]
        # original.s is beside the kernel's own text.
        expected = {"kernel": [], "kernel/1/original.s": ["// 1: ", "// 2: "]}.get(name, ["// 2: "])
        assert len(blocks) == len(expected)
        assert all(any(f"{begin}{SECRET}".encode() in data for data in blocks) for begin in expected)
        assert not any(b"linked" in data for data in texts)


def test_a_source_that_a_trace_names_is_no_link_to_another_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "real.cu").write_text("__global__")
    (tmp_path / "evil.cu").symlink_to("secret")
    (tmp_path / "linked.cu").symlink_to("real.cu")
    assert _read(tmp_path / "evil.cu") is None
    assert _read(tmp_path / "linked.cu") == "__global__"


def test_a_link_to_the_trace_itself_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(folder / "bad")
    assert Trace(tmp_path / "latest").coverage.probed == 6
    with pytest.raises(TraceError, match="it is a link"):
        read_file(tmp_path / "latest" / "events.jsonl", inside=2)


@pytest.mark.parametrize("form", ["", "--html", "--png", "--json", "--why", "--perfetto", "--iket", "--summary"])
def test_a_trace_whose_events_are_no_file_ends_with_2_in_every_form(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    trace = shutil.copytree(folder / "bad", tmp_path / "t")
    (trace / "events.jsonl").unlink()
    os.mkfifo(trace / "events.jsonl")
    files = [str(tmp_path / "out")] if form in ("--html", "--png", "--perfetto", "--iket") else []
    assert main([str(trace), *([form] if form else []), *files]) == 2
    assert "events.jsonl: cannot be read: it is a FIFO" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["1e400", "-1e999", "Infinity", "NaN", "[0, {\"a\": -Infinity}]"])
@pytest.mark.parametrize("file", ["events.jsonl", "kernel/1/manifest.json"])
def test_a_number_that_json_cannot_have_is_named_and_never_shown(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, number: str
) -> None:
    trace = shutil.copytree(folder / "bad", tmp_path / "t")
    first, *others = (trace / file).read_text().split("\n")
    (trace / file).write_text("\n".join([first[0] + f'"odd": {number}, ' + first[1:], *others]))

    def refuse(text: str) -> None:
        raise AssertionError(text)

    status, out, err = report(trace, capsys, "--json")
    json.loads(out, parse_constant=refuse)
    assert status == 2
    assert f"{file}: " in err
    assert "is no finite number" in err


@pytest.mark.parametrize("time", ["soon", 1.5, True, None])
def test_a_time_of_an_event_that_is_no_integer_is_named(folder: Path, tmp_path: Path, time: object) -> None:
    trace = shutil.copytree(folder / "bad", tmp_path / "t")
    with (trace / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "note", "text": "x", "time_ns": time}) + "\n")
    assert any(f"time_ns is {time!r}, expected an integer" in fault for fault in Trace(trace, is_tolerant=True).faults)
