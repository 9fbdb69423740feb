"""``neutrino-ctl``: recording switched on and off in a process that runs, its records written, its state reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from neutrino.abi.control_file import CONTROL, Command, Recording
from neutrino.cli.ctl import main
from neutrino.errors import NeutrinoError
from neutrino.loader.steering import find
from neutrino.tracing import Trace

from .conftest import Bench
from .driven import Driven, driven

LIMIT_S = 600.0


def ask(program: Driven, command: Command) -> Recording:
    with find(program.pid) as process:
        return process.ask(command, LIMIT_S).off


def control(program: Driven) -> Path:
    return program.files.path / "control"


def written(program: Driven) -> int:
    return len(program.files.written())


def test_launches_run_originals_while_it_is_off(any_bench: Bench, tmp_path: Path) -> None:
    with driven(any_bench, tmp_path) as program:
        program.tell("launch 5")
        assert ask(program, Command.OFF) == Recording.STEERED
        program.tell("launch 7", "synchronize", "launch 2")
        assert ask(program, Command.STATUS) == Recording.STEERED
        assert ask(program, Command.ON) == Recording(0)
        program.tell("launch 3")
        # A second time, and what it is already.
        assert ask(program, Command.ON) == Recording(0)
        assert ask(program, Command.OFF) == ask(program, Command.OFF) == Recording.STEERED
        program.tell("launch 4")
    program.check(any_bench, 21, probed=8, not_selected=13)
    notes = [event["text"] for event in program.files.events if event["event"] == "note"]
    assert notes == [f"neutrino-ctl: recording is {text}" for text in ("off", "on again", "off")]
    assert not control(program).exists()


def test_a_launch_that_is_off_is_at_most_one_call(bench: Bench, tmp_path: Path) -> None:
    """The hook jumps to the driver, which returns to the program, if the compiler made it so."""
    calls = []
    for launches in (8, 520):
        home = tmp_path / str(launches)
        counts = home / "counts.json"
        extra = {"NEUTRINO_EMBEDDED": f"{bench.environment(home)['NEUTRINO_EMBEDDED']};count={counts}"}
        with driven(bench, home, extra) as program:
            ask(program, Command.OFF)
            program.tell(f"launch {launches}")
        calls.append(Counter(json.loads(counts.read_text())["hook"]))
    assert calls[1] - calls[0] in (Counter(), Counter({"cuLaunchKernel": 512}))


def test_each_replay_of_a_graph(any_bench: Bench, tmp_path: Path) -> None:
    with driven(any_bench, tmp_path) as program:
        program.tell("graph 3", "replay 4")
        ask(program, Command.OFF)
        program.tell("replay 5")
        ask(program, Command.ON)
        program.tell("replay 2")
        ask(program, Command.OFF)
        # Instantiated while it is off, and recorded later.
        program.tell("graph 2", "replay 1")
        ask(program, Command.ON)
        program.tell("replay 3")
    program.check(any_bench, 3 * 11 + 2 * 4, probed=3 * 6 + 2 * 3, not_selected=3 * 5 + 2 * 1)


def test_nodes_that_are_set_while_recording_is_off(any_bench: Bench, tmp_path: Path) -> None:
    with driven(any_bench, tmp_path) as program:
        program.tell("graph 3", "replay 1", "set-nodes 1", "replay 2")
        ask(program, Command.OFF)
        program.tell("set-nodes 1", "replay 1", "set-nodes 2", "replay 3", "set-nodes 1")
        ask(program, Command.ON)
        program.tell("replay 2", "set-nodes 1", "replay 1")
        ask(program, Command.OFF)
        program.tell("graph 4", "set-nodes 1")
        ask(program, Command.ON)
        program.tell("set-nodes 1", "replay 2")
    program.check(any_bench, 3 * 10 + 4 * 2, probed=3 * 6 + 4 * 2, not_selected=3 * 4)


def test_nodes_that_are_set_while_recording_is_off_are_not_set_again(bench: Bench, tmp_path: Path) -> None:
    """JAX sets each node before each replay: between questions the twin must not come and go each time."""
    calls = []
    for times in (2, 66):
        home = tmp_path / str(times)
        counts = home / "counts.json"
        extra = {"NEUTRINO_EMBEDDED": f"{bench.environment(home)['NEUTRINO_EMBEDDED']};count={counts}"}
        with driven(bench, home, extra) as program:
            program.tell("graph 3", "replay 1")
            ask(program, Command.OFF)
            program.tell(*["set-nodes 1", "replay 1"] * times)
        calls.append(Counter(json.loads(counts.read_text())["hook"]))
    more = calls[1] - calls[0]
    assert more["cuGraphExecKernelNodeSetParams_v2"] in (0, 64 * 3)  # the program's own, which the hook hands on
    assert more.total() <= 64 * (3 * 4 + 3), more


def test_replays_of_an_updated_graph(any_bench: Bench, tmp_path: Path) -> None:
    # Its nodes have no names that are certain, so twins stay there, and record nothing.
    with driven(any_bench, tmp_path) as program:
        program.tell("graph 3", "replay 2", "update 3", "replay 2")
        ask(program, Command.OFF)
        program.tell("replay 5")
        ask(program, Command.ON)
        program.tell("replay 1")
    program.check(any_bench, 30, probed=15, not_selected=15)


def test_a_flush_has_all_records_written(any_bench: Bench, tmp_path: Path) -> None:
    with driven(any_bench, tmp_path) as program:
        program.tell("launch 6")
        ask(program, Command.FLUSH)
        assert written(program) == 6
        assert program.files.counted("count_p2") == {"probed": 6}
        program.tell("graph 2", "replay 3")
        ask(program, Command.FLUSH)
        assert written(program) == 12
        program.files.check_tickets(any_bench.maps)
    program.check(any_bench, 12, probed=12)


def test_a_flush_leaves_a_capture_alone(bench: Bench, tmp_path: Path) -> None:
    with driven(bench, tmp_path) as program:
        program.tell("launch 1", "begin-capture", "launch 2")
        # To wait for a context ends the captures of its streams.
        with find(program.pid) as process, pytest.raises(NeutrinoError, match="a kernel may be running"):
            process.ask(Command.FLUSH, 1.5)
        # What is asked next comes first.
        assert ask(program, Command.STATUS) == Recording(0)
        program.tell("end-capture", "replay 2")
        ask(program, Command.FLUSH)
        assert written(program) == 5
    program.check(bench, 5, probed=5)


def test_what_the_command_prints(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {"NEUTRINO_PROBES": "tickets", "NEUTRINO_POOL": str(4 << 20)}
    with driven(bench, tmp_path, extra) as program:
        program.tell("launch 5")
        assert main([str(program.pid), "off"]) == 0
        assert capsys.readouterr().out == "recording: off, by neutrino-ctl\n"
        program.tell("launch 3")
        assert main([str(program.pid), "flush"]) == 0
        path = program.files.path
        assert capsys.readouterr().out == f"written: {path}\n"
        assert main([str(program.pid), "status"]) == 0
        assert capsys.readouterr().out == (
            f"recording: off, by neutrino-ctl\ntrace: {path}\nprobes: tickets\nlaunches probed: 5\n"
            "launches not chosen: 3\ndevice memory for maps: 4 MiB\n"
        )
        assert main([str(program.pid), "on"]) == 0
        assert capsys.readouterr().out == "recording: on\n"


def test_top_ends_with_the_report(bench: Bench, tmp_path: Path) -> None:
    """It shows what is recorded while the program runs, and at last what neutrino-report shows."""
    with driven(bench, tmp_path, ends=False) as program:
        program.tell("launch 5")
        command = [sys.executable, "-m", "neutrino.cli.ctl", str(program.pid), "top", "--interval", "0.2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as top:
            assert top.stdout is not None
            assert top.stderr is not None
            heading = top.stdout.readline()
            program.tell("launch 4")
            program.end()
            rest, faults = top.stdout.read(), top.stderr.read()
    assert (faults, top.returncode) == ("", 0)
    assert heading.startswith(f"process {program.pid}, ")
    assert heading.endswith(": what it has recorded so far\n")
    assert "5 of 5 launches probed (100 %)" in rest
    last = rest.rpartition(f"process {program.pid} has ended\n")[2]
    assert "9 of 9 launches probed (100 %)" in last
    report = [sys.executable, "-m", "neutrino.cli.report_start", str(program.files.path)]
    assert last == subprocess.run(report, capture_output=True, text=True, check=True).stdout


def test_top_ends_after_so_many_reports(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with driven(bench, tmp_path) as program:
        program.tell("launch 3")
        assert main([str(program.pid), "top", "--count", "2", "--interval", "0.1"]) == 0
        out = capsys.readouterr().out
        assert out.count("what it has recorded so far\n") == out.count("3 of 3 launches probed") == 2


def test_off_wins_over_the_programs_own_switch(bench: Bench, tmp_path: Path) -> None:
    with driven(bench, tmp_path, {"NEUTRINO_SWITCHED": "1"}) as program:
        assert ask(program, Command.STATUS) == Recording.SWITCHED
        assert ask(program, Command.OFF) == Recording.SWITCHED | Recording.STEERED
        program.tell("record 1", "launch 2")
        assert ask(program, Command.STATUS) == Recording.STEERED
        assert ask(program, Command.ON) == Recording(0)
        program.tell("launch 3", "record 0", "launch 4")
    program.check(bench, 9, probed=3, not_selected=6)


def test_with_a_choice_of_launches(bench: Bench, tmp_path: Path) -> None:
    # Launches that are not recorded have no number.
    with driven(bench, tmp_path, {"NEUTRINO_LAUNCHES": "2:6"}) as program:
        program.tell("launch 3")
        ask(program, Command.OFF)
        program.tell("launch 10")
        ask(program, Command.ON)
        program.tell("launch 5")
    program.check(bench, 18, probed=4, not_selected=14)


# --- what cannot be steered ---


def failure(pid: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert main([str(pid), "status"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_a_process_without_a_trace(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"process {os.getpid()} has no trace: it was not started with neutrino" in failure(os.getpid(), capsys)
    with driven(bench, tmp_path / "plain", hook=False) as program:
        assert "has no trace" in failure(program.pid, capsys)
    # With the hook, before it has loaded anything.
    with driven(bench, tmp_path / "late", {"DRIVEN_LATE": "1"}) as program:
        assert "has not loaded GPU code yet" in failure(program.pid, capsys)


def test_a_process_that_has_ended(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with driven(bench, tmp_path) as program:
        program.tell("launch 1")
    assert failure(program.pid, capsys) == f"neutrino-ctl: there is no process {program.pid}\n"


def test_a_process_that_was_killed(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with driven(bench, tmp_path, ends=False) as program, find(program.pid) as process:
        program.process.kill()
        # It is a zombie until it is waited for.
        with pytest.raises(NeutrinoError, match=f"process {program.pid} has ended before it answered"):
            process.ask(Command.OFF, LIMIT_S)
        assert failure(program.pid, capsys) == f"neutrino-ctl: there is no process {program.pid}\n"
        program.process.wait()
        assert failure(program.pid, capsys) == f"neutrino-ctl: there is no process {program.pid}\n"
    # A trace that was cut off keeps the file.
    assert control(program).exists()


def test_another_process_of_the_same_number(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neutrino.loader import steering

    with driven(bench, tmp_path) as program, find(program.pid) as process:
        monkeypatch.setattr(steering, "_start_of", lambda pid: "1")
        program.process.send_signal(signal.SIGSTOP)
        with pytest.raises(NeutrinoError, match="has ended before it answered"):
            process.ask(Command.STATUS, LIMIT_S)
        program.process.send_signal(signal.SIGCONT)


def test_a_process_that_is_stopped(bench: Bench, tmp_path: Path) -> None:
    with driven(bench, tmp_path) as program:
        program.process.send_signal(signal.SIGSTOP)
        with find(program.pid) as process, pytest.raises(NeutrinoError, match=r"its hook has not answered$"):
            process.ask(Command.OFF, 0.2)
        program.process.send_signal(signal.SIGCONT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user() -> None:
    script = f"""
import os, sys
sys.path[:] = {sys.path!r}
from neutrino.errors import NeutrinoError
from neutrino.loader.steering import find
os.setgid(65533)
os.setuid(65533)
try:
    with find(int(sys.argv[1])):
        print("found")
except NeutrinoError as error:
    print(error)
"""
    with subprocess.Popen(["sleep", "60"], user=65534, stdout=subprocess.DEVNULL) as other:
        command = [sys.executable, "-c", script, str(other.pid)]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        other.kill()
    assert asked.stderr == ""
    assert asked.stdout == f"process {other.pid} belongs to user 65534: only its user can steer it\n"


@pytest.mark.parametrize("arguments", [["0", "on"], ["x", "on"], ["1", "start"], ["1"], ["1", "on", "--timeout", "0"]])
def test_wrong_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


# --- the file ---


@pytest.mark.parametrize("content", [b"", b"NTCTRL", b"x" * CONTROL.size, bytes(range(256)) * 64], ids=len)
def test_a_damaged_file_harms_nobody(any_bench: Bench, tmp_path: Path, content: bytes) -> None:
    with driven(any_bench, tmp_path) as program:
        with find(program.pid) as process:
            control(program).write_bytes(content)
            program.tell("launch 3")
            with pytest.raises(NeutrinoError):
                process.ask(Command.STATUS, 1.0)
        program.tell("launch 2")
    program.check(any_bench, 5, probed=5)


def test_a_command_that_the_process_does_not_know(bench: Bench, tmp_path: Path) -> None:
    offsets = CONTROL.dtype.fields
    assert offsets is not None
    with driven(bench, tmp_path) as program:
        file = control(program)
        with file.open("r+b") as opened:
            opened.seek(offsets["request"][1])
            opened.write((1 << 8 | 99).to_bytes(8, "little"))
        deadline = time.monotonic() + LIMIT_S
        while int.from_bytes(file.read_bytes()[offsets["answer"][1] :][:8], "little") != 1 << 8 | 99:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert file.read_bytes()[offsets["is_understood"][1]] == 0
        assert ask(program, Command.STATUS) == Recording(0)


def test_the_file_is_the_users_alone(bench: Bench, tmp_path: Path) -> None:
    with driven(bench, tmp_path) as program:
        program.tell("launch 1")
        assert control(program).stat().st_mode & 0o777 == 0o600


def test_a_trace_that_was_moved(bench: Bench, tmp_path: Path) -> None:
    with driven(bench, tmp_path) as program:
        program.tell("launch 1")
        program.files.path.rename(tmp_path / "moved")
        assert ask(program, Command.OFF) == Recording.STEERED
        with find(program.pid) as process:
            assert process.trace_dir == tmp_path / "moved"


def test_reports_read_a_trace_that_is_under_way(bench: Bench, tmp_path: Path) -> None:
    with driven(bench, tmp_path) as program:
        program.tell("launch 4")
        ask(program, Command.FLUSH)
        trace = Trace(program.files.path)
        assert trace.coverage.probed == 4
        assert not trace.complete
