"""Twins that a patched library carries, used by the hook in front of the driver: what the program and the trace get."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from neutrino.abi.entries import TWINS_HEADER
from neutrino.abi.sections import SECTION_HEADER, SECTION_TWINS
from neutrino.abi.structures import Struct
from neutrino.abi.versions import SECTION_VERSION, TWINS_VERSION
from neutrino.cli.report import main as report
from neutrino.device.kind import DeviceKind
from neutrino.tracing import Trace

from .conftest import IMAGE, RUN_KEY, TICKETS, Bench, in_parts, second
from .patched import Programs, section_of
from .trace_files import ALL_PROBED, Files


@pytest.fixture(scope="module")
def programs(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(bench, tmp_path_factory.mktemp("patched"))


def details(files: Files) -> list[str]:
    return [event["detail"] for event in files.events if event["event"] == "kernel"]


def test_a_patched_librarys_launches_are_recorded(programs: Programs, tmp_path: Path) -> None:
    library = programs.library("plain", section_of(), stub=None)
    result = programs.run(tmp_path, programs.user, f"+{library}", f"={library}", hook=True)
    assert (result.stdout, result.returncode) == ("120\n240\n", 0)
    assert re.fullmatch(rf"neutrino: trace in {tmp_path}/trace/\w+\n{ALL_PROBED}", result.stderr)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 40}
    assert len(files.check_tickets(programs.bench.maps)) == 240
    (image,) = (event for event in files.events if event["event"] == "image")
    assert (image["twins"], image["source"]) == ("section", str(library))
    (section,) = (event for event in files.events if event["event"] == "section")
    assert (section["library"], section["probes"], section["file"]) == (str(library), "tickets", "probe.toml")
    (process,) = (event for event in files.events if event["event"] == "process")
    assert (process["probes"], process["version"]) == (section["probes"], section["version"])
    assert (files.path / "probe.toml").read_bytes() == TICKETS.read_bytes()
    reader = subprocess.run(
        [sys.executable, files.path / "read.py"], capture_output=True, text=True, check=True, cwd=files.path
    )
    assert "count_p2" in reader.stdout
    trace = Trace(files.path)
    assert trace.complete
    assert not trace.notes


def test_scripts_of_a_patched_library_run_by_hand_alone(
    programs: Programs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on another machine, where what the library's probes name is not there, or is something else."""
    script, probes = tmp_path / "script.py", tmp_path / "tickets.toml"
    script.write_text("print('ran')")
    probes.write_text(f'analyze_hook = ["{script}", "{tmp_path}/gone/away.py"]\n{TICKETS.read_text()}')
    library = programs.library("scripts", section_of(probes=probes), stub=None)
    result = programs.run(tmp_path, programs.user, f"+{library}", hook=True)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    assert report([str(files.path)]) == 0
    assert not (files.path / "analyze.log").exists()
    capsys.readouterr()
    assert report([str(files.path), "--analyze"]) == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f'neutrino-report: {files.path}: analyze_hook "{tmp_path}/gone/away.py" is not there, and is not run; '
        f"named by {library}",
        f"neutrino-report: {files.path}: running {script}; named by {library}",
        f"neutrino-report: {files.path}: ran {script}; see {files.path / 'analyze.log'}",
    ]
    assert (files.path / "analyze.log").read_text() == "ran\n"
    assert "count_p2" in printed.out


def test_a_library_with_twins_in_several_images(programs: Programs, tmp_path: Path) -> None:
    with in_parts():
        library = programs.library("parts", section_of(), stub=None)
    result = programs.run(tmp_path, programs.user, f"+{library}", f"={library}", hook=True)
    assert (result.stdout, result.returncode) == ("120\n240\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 40}
    assert len(files.check_tickets(programs.bench.maps)) == 240


def test_a_runs_probes_win_over_those_of_the_library(programs: Programs, tmp_path: Path) -> None:
    library = programs.library("both", section_of(probes=TICKETS))
    programs.bench.run("plain", tmp_path)
    extra = {"NEUTRINO_KEY": RUN_KEY.hex(), "NEUTRINO_CACHE": str(tmp_path / "cache")}
    extra["NEUTRINO_TRACEDIR"] = str(tmp_path / "second")
    result = programs.run(tmp_path, programs.user, f"+{library}", hook=True, extra=extra)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "second")
    assert files.counted("count_p2") == {"probed": 20}
    assert len(files.check_tickets(programs.bench.maps)) == 120
    assert not [event for event in files.events if event["event"] == "section"]
    (image,) = (event for event in files.events if event["event"] == "image")
    assert image["cached"] == 1


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (lambda: None, ""),
        (lambda: section_of(arch="sm_80"), "no twins of this image for the embedded device"),
        (lambda: section_of(device=DeviceKind.GPU), "no twins of this image for the embedded device"),
        (lambda: section_of(second(IMAGE)), "no twins of this image for the embedded device"),
    ],
    ids=["unpatched", "another architecture", "another device", "another image"],
)
def test_what_has_no_twins_runs_as_it_is(
    programs: Programs, tmp_path: Path, section: Callable[[], bytes | None], said: str
) -> None:
    library = programs.library(f"without{os.urandom(3).hex()}", section())
    result = programs.run(tmp_path, programs.user, f"+{library}", hook=True)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"not-patched": 20}
    assert said in details(files)[0]
    assert bool(said) == bool(details(files)[0])


def put(section: bytes, layout: Struct, at: int, member: str, value: int) -> bytes:
    fields = layout.dtype.fields
    assert fields is not None
    kind, offset = fields[member][:2]
    data = bytearray(section)
    struct.pack_into("<Q" if kind.itemsize == 8 else "<I", data, at + offset, value % 2 ** (8 * kind.itemsize))
    return bytes(data)


def rows_at(section: bytes) -> int:
    return (SECTION_HEADER.size + 7) // 8 * 8


HUGE = 2**64 - 64
DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    **{
        f"{member} {value:#x}": lambda data, member=member, value=value: put(data, SECTION_HEADER, 0, member, value)
        for member, values in {
            "version": [0, SECTION_VERSION + 1], "size": [0, 8, HUGE, 1 << 32], "rows": [2**32 - 1],
            "rows_offset": [4, HUGE, 1 << 40], "names_offset": [0, HUGE, 1 << 40], "maker_offset": [HUGE],
            "probes_offset": [HUGE], "probes_size": [HUGE, 1 << 40], "reader_size": [HUGE],
        }.items()
        for value in values
    },
    **{
        f"entry {member} {value:#x}": lambda data, member=member, value=value: put(
            data, SECTION_TWINS, rows_at(data), member, value
        )
        for member, value in [("entry_offset", HUGE), ("entry_offset", 64), ("entry_size", 0), ("entry_size", HUGE),
                              ("entry_size", 100)]
    },
    "last byte": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
}  # fmt: skip


@pytest.mark.parametrize("any_bench", ["address"], indirect=True)
def test_a_damaged_section_is_not_used(any_bench: Bench, tmp_path: Path) -> None:
    programs = Programs(any_bench, tmp_path)
    sound = section_of()
    # One library, whose section is then changed in place: every case is a file of its own that nobody compiles.
    data = programs.library("sound", sound, stub=None).read_bytes()
    assert data.count(sound) == 1
    damaged = []
    for number, damage in enumerate(DAMAGED.values()):
        path = tmp_path / f"damaged{number}.so"
        path.write_bytes(data.replace(sound, damage(sound)))
        damaged.append(f"+{path}")
    result = programs.run(tmp_path, programs.user, *damaged, f"+{tmp_path / 'sound.so'}", hook=True)
    assert (result.stdout, result.returncode) == ("120\n" * (len(DAMAGED) + 1), 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2")["probed"] == 20
    assert files.counted("count_p2")["not-patched"] == 20 * len(DAMAGED)


def entry_at(section: bytes) -> int:
    fields = SECTION_TWINS.dtype.fields
    assert fields is not None
    return int(struct.unpack_from("<Q", section, rows_at(section) + fields["entry_offset"][1])[0])


@pytest.mark.parametrize(
    "other",
    [
        lambda data: put(data, SECTION_HEADER, 0, "version", SECTION_VERSION - 1),
        lambda data: put(data, TWINS_HEADER, entry_at(data), "version", TWINS_VERSION - 1),
    ],
    ids=["section", "entry"],
)
def test_what_another_version_patched_is_to_be_patched_again(
    programs: Programs, tmp_path: Path, other: Callable[[bytes], bytes]
) -> None:
    library = programs.library("other", other(section_of()))
    result = programs.run(tmp_path, programs.user, f"+{library}", hook=True)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"not-patched": 20}
    assert details(files) == [f"{library} was patched by another version of Neutrino; patch it again"]


def test_libraries_with_different_probes_and_one_that_comes_and_goes(programs: Programs, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(TICKETS.read_text() + "\n# Another file.\n")
    a = programs.library("a", section_of())
    b = programs.library("b", section_of(second(IMAGE), probes=other), image=second(IMAGE))
    c = programs.library("c", section_of())
    steps = [f"+{a}", f"+{b}", f"-{a}", f"+{c}", f"+{a}", f"={b}"]
    result = programs.run(tmp_path, programs.user, *steps, hook=True)
    assert (result.stdout, result.returncode) == ("120\n120\n120\n120\n240\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 100}
    named = [(event["library"], event["file"]) for event in files.events if event["event"] == "section"]
    assert named == [(str(a), "probe.toml"), (str(b), "probe-2.toml"), (str(c), "probe.toml")]
    assert (files.path / "probe-2.toml").read_bytes() == other.read_bytes()
    assert not (files.path / "probe-3.toml").exists()


def test_a_library_that_is_not_used_is_noted(programs: Programs, tmp_path: Path) -> None:
    used = programs.library("used", section_of())
    idle = programs.library("idle", section_of(second(IMAGE)), image=second(IMAGE))
    result = programs.run(tmp_path, programs.user, f"?{idle}", f"+{used}", hook=True)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert re.fullmatch(rf"neutrino: trace in {tmp_path}/trace/\w+\n{ALL_PROBED}", result.stderr)
    (note,) = Trace(Files(tmp_path / "trace").path).notes
    assert str(idle) in note


def neutrino(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neutrino.cli.run", *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(home / "cache"), "NEUTRINO_KEY": RUN_KEY.hex()},
        cwd=home, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_neutrino_without_a_probe_takes_those_of_the_libraries(programs: Programs, tmp_path: Path) -> None:
    library = programs.library("command", section_of())
    result = neutrino(tmp_path, "--device", "embedded", str(programs.user), f"+{library}")
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert re.fullmatch(rf"neutrino: trace in {tmp_path}/trace/\w+\n{ALL_PROBED}", result.stderr)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    assert len(files.check_tickets(programs.bench.maps)) == 120
    assert not (tmp_path / "cache" / "neutrino" / "twins").exists()


def test_launches_of_the_libraries_can_be_chosen(programs: Programs, tmp_path: Path) -> None:
    library = programs.library("chosen", section_of())
    options = ("--device", "embedded", "--launches", "4:", "--every", "5")
    result = neutrino(tmp_path, *options, str(programs.user), f"+{library}")
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 3, "not-selected": 17}
    # Six tickets each, from a number that differs between runs.
    tickets = files.check_tickets(programs.bench.maps)
    assert len(tickets) == 18
    assert [int(ticket - tickets[0]) for ticket in tickets[::6]] == [0, 30, 60]


def test_their_twins_can_be_loaded_after_launches(programs: Programs, tmp_path: Path) -> None:
    library = programs.library("later", section_of())
    for number, options in enumerate([("--when", "launch"), ("--hot", "21")]):
        home = tmp_path / str(number)
        home.mkdir()
        result = neutrino(home, "--device", "embedded", *options, str(programs.user), f"+{library}")
        assert (result.stdout, result.returncode) == ("120\n", 0)
        files = Files(home / "trace")
        counted = files.counted("count_p2")
        assert sum(counted.values()) == 20
        assert set(counted) <= {"probed", "not-ready"}
        assert counted["not-ready"] >= (1 if options[0] == "--when" else 20)
        files.check_tickets(programs.bench.maps)


@pytest.mark.parametrize(
    "options", [("-k", "a"), ("--filter", "a"), ("--save-temps", "d"), ("--timeout", "3"), ("--no-wait",)]
)
def test_what_needs_a_probe_says_so(tmp_path: Path, options: tuple[str, ...]) -> None:
    result = neutrino(tmp_path, *options, "true")
    assert (result.stdout, result.returncode) == ("", 125)
    assert f"{options[0]} needs a probe (-p, -e)" in result.stderr
    assert len(result.stderr.splitlines()) == 1
