"""Analyze hooks and callbacks: run beside the program by ``neutrino``, and by hand by ``neutrino-report --analyze``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from neutrino.abi.control_file import CONTROL, CONTROL_MAGIC, CONTROL_VERSION, Command, last_answer
from neutrino.cli.ctl import main as ctl
from neutrino.cli.report import main as report
from neutrino.resources import tool_path
from neutrino.run import script_log
from neutrino.run.scripts import Scripts, analyze, attend
from neutrino.tracing import Trace

from .conftest import IMAGE, TICKETS, Bench
from .driven import driven
from .test_command import EMBEDDED, environment, neutrino
from .trace_files import Files

TELLS = """
import os, sys
ours = sorted(name for name in os.environ if "NEUTRINO" in name)
print("called", sys.argv[1:], os.getcwd(), os.environ.get("LD_AUDIT"), ours)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "image").write_bytes(IMAGE)
    return tmp_path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """What scripts need of a trace."""
    folder = tmp_path / "trace"
    (folder / "result").mkdir(parents=True)
    (folder / "events.jsonl").write_text('{"event":"process","time_ns":1}\n')
    return folder


def script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def soon(condition: Callable[[], bool], seconds: float = 600) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def over_when(condition: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a limit of 500 s be over when a condition holds, whatever the clock of a busy machine says."""
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * condition())
    monkeypatch.setattr(script_log, "time", clock)


def notes(trace: Path) -> list[str]:
    rows = [json.loads(line) for line in (trace / "events.jsonl").read_text().splitlines()]
    return [row["text"] for row in rows if row["event"] == "note"]


def log(trace: Path) -> str:
    path = trace / "analyze.log"
    return path.read_text() if path.exists() else ""


def test_scripts_run_in_the_trace_without_the_hook(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_AUDIT", "")
    monkeypatch.setenv("NEUTRINO_TRACEDIR", "/somewhere")
    tells = script(tmp_path, "tells.py", TELLS)
    (trace / "result" / "10.bin").write_bytes(b"10")
    (trace / "result" / "2.bin").write_bytes(b"2")
    attend(trace, None, Scripts((tells,), (tells,)))
    assert log(trace).splitlines() == [
        f"called ['{argument}'] {trace} None []"
        for argument in (trace / "result" / "2.bin", trace / "result" / "10.bin", trace)
    ]
    assert notes(trace) == []


def test_what_fails_or_hangs_is_noted_and_ended(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = script(tmp_path, "fails.py", "raise SystemExit(3)")
    hangs = script(
        tmp_path,
        "hangs.py",
        "import subprocess, time\nprint(subprocess.Popen(['sleep', '3000']).pid, flush=True)\ntime.sleep(3000)",
    )
    missing = str(tmp_path / "missing.py")
    last = script(tmp_path, "last.py", "print('last')")
    over_when(lambda: "\n" in log(trace), monkeypatch)
    attend(trace, None, Scripts((fails, hangs, missing, last), limit=500))
    assert notes(trace) == [
        f"{fails} failed (exit status 3); see analyze.log",
        f"{hangs} was ended: it ran longer than 500 s",
        f"{missing} failed (exit status 2); see analyze.log",
    ]
    assert [line[9:] for line in (trace / "event.log").read_text().splitlines()] == notes(trace)
    started, *rest = log(trace).splitlines()
    assert rest[-1] == "last"
    # What the script had started has ended with it.
    assert soon(lambda: not Path("/proc", started).exists() or " Z " in Path("/proc", started, "stat").read_text())


def test_a_line_that_was_cut_off_stays_the_last_one(trace: Path, tmp_path: Path) -> None:
    fails = script(tmp_path, "fails.py", "raise SystemExit(3)")
    with (trace / "events.jsonl").open("a") as events:
        events.write('{"event":"ker')
    attend(trace, None, Scripts((fails,)))
    assert (trace / "events.jsonl").read_text().endswith('\n{"event":"ker')
    assert "failed (exit status 3)" in (trace / "event.log").read_text()


def test_callbacks_come_once_a_second_a_file_and_see_the_last_launch(trace: Path, tmp_path: Path) -> None:
    """A program that appends ten times a second until it has been seen, a second and a half at least, and is killed."""
    sizes = script(
        tmp_path,
        "sizes.py",
        "import os, sys, time\n"
        "print('begin', time.monotonic(), os.path.getsize(sys.argv[1]), flush=True)\n"
        "time.sleep(0.2)\nprint('end', time.monotonic(), 0)\n",
    )
    program = subprocess.Popen([
        sys.executable, "-c",
        "import os, signal, sys, time\n"
        "count = 0\n"
        "while count < 16 or not os.path.exists(sys.argv[2]):\n"
        "    open(sys.argv[1], 'a').write('launch')\n    time.sleep(0.1)\n    count += 1\n"
        "open(sys.argv[1], 'a').write('last')\nos.kill(os.getpid(), signal.SIGKILL)",
        str(trace / "result" / "1.bin"), str(trace / "analyze.log"),
    ])  # fmt: skip
    process = os.pidfd_open(program.pid)
    attend(trace, process, Scripts((), (sizes,)))
    os.close(process)
    assert program.wait() == -signal.SIGKILL
    rows = [line.split() for line in log(trace).splitlines()]
    # Never two at a time.
    assert [row[0] for row in rows] == ["begin", "end"] * (len(rows) // 2)
    starts, ends = ([float(row[1]) for row in rows[first::2]] for first in (0, 1))
    seen = [int(row[2]) for row in rows[::2]]
    assert len(starts) >= 2
    # The last round comes when the program has ended, however soon that is.
    assert all(later - earlier > 0.99 for earlier, later in zip(ends, starts[1:-1], strict=False))
    assert seen == sorted(seen)
    assert seen[-1] == (trace / "result" / "1.bin").stat().st_size > 16 * 6


def test_a_callback_that_fails_each_time_is_noted_once_and_one_that_hangs_is_left_alone(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = script(tmp_path, "fails.py", "raise SystemExit(3)")
    hangs = script(tmp_path, "hangs.py", "import time; print('hangs', flush=True); time.sleep(3000)")
    over_when(lambda: "hangs" in log(trace), monkeypatch)
    for name in ("1.bin", "2.bin"):
        (trace / "result" / name).write_bytes(b"x")
    attend(trace, None, Scripts((), (fails, hangs), limit=500))
    assert notes(trace) == [
        f"{fails} failed (exit status 3); see analyze.log", f"{hangs} was ended: it ran longer than 500 s",
    ]  # fmt: skip
    assert log(trace).count("hangs") == 1


def test_each_flush_is_a_dump_for_hooks_and_callbacks(bench: Bench, tmp_path: Path) -> None:
    """Hooks run after each flush that has written something, and at the end; callbacks for what was written."""
    tells = (
        "import sys\nfrom pathlib import Path\nfrom neutrino.tracing import Trace\npath = Path(sys.argv[1])\n"
        "trace = Trace(path if path.is_dir() else path.parent.parent, is_tolerant=True)\n"
        "print(path.name, sum(len(kernel.written_numbers()) for kernel in trace.kernels))\n"
    )
    hook = script(tmp_path, "hook.py", tells)
    with driven(bench, tmp_path, ends=False) as program:
        path = program.files.path
        pidfd = os.pidfd_open(program.pid)
        watcher = threading.Thread(target=attend, args=(path, pidfd, Scripts((hook,), (hook,))))
        watcher.start()
        program.tell("launch 3")
        assert ctl([str(program.pid), "flush"]) == 0
        (data,) = path.glob("result/*.bin")
        assert soon(lambda: {f"{path.name} 3", f"{data.name} 3"} <= set(log(path).splitlines()))
        # Nothing new, and nothing that writes.
        assert ctl([str(program.pid), "flush"]) == ctl([str(program.pid), "status"]) == 0
        time.sleep(1.5)
        program.tell("launch 2")
        assert ctl([str(program.pid), "flush"]) == 0
        assert soon(lambda: {f"{path.name} 5", f"{data.name} 5"} <= set(log(path).splitlines()))
        program.tell("launch 1")
        program.end()
        watcher.join(600)
        os.close(pidfd)
    rows = [line.rsplit(" ", 1) for line in log(path).splitlines()]
    assert {name for name, _ in rows} == {path.name, data.name}
    assert [int(count) for name, count in rows if name == path.name] == [3, 5, 6]
    # Once a second what is there by then, and never the same twice.
    dumps = [int(count) for name, count in rows if name == data.name]
    assert len(dumps) >= 3
    assert dumps == sorted(set(dumps))
    assert dumps[-1] == 6
    assert notes(path) == []


def test_the_last_answer_is_read_as_numpy_reads_it() -> None:
    import numpy as np

    content = np.zeros((), CONTROL.dtype)
    content["magic"], content["version"], content["answer"] = CONTROL_MAGIC, CONTROL_VERSION, 7 << 8 | Command.FLUSH
    data = content.tobytes()
    assert last_answer(data) == (7, Command.FLUSH)
    content["version"] += 1
    for other in (b"", data[:-1], data + b"x", b"X" + data[1:], content.tobytes()):
        assert last_answer(other) == (0, 0)


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes that a log takes in this test."""
    monkeypatch.setattr(script_log, "LIMIT", 1000)
    return 1000


def test_a_log_takes_so_much_and_counts_the_rest_of_all_scripts(trace: Path, tmp_path: Path, small_log: int) -> None:
    prints = script(tmp_path, "prints.py", "import sys\nprint('x' * 599)\nprint('y' * 99, file=sys.stderr)")
    attend(trace, None, Scripts((prints,)))
    assert len(log(trace)) == 700
    for runs in (2, 3):
        assert analyze(trace, Scripts((prints,))) == []
        kept, line = log(trace)[:small_log], log(trace)[small_log:]
        assert sorted(kept.split()) == sorted(["x" * 599, "y" * 99, "x" * 300])
        assert line == f"\nneutrino: {700 * runs - small_log} more bytes were printed and dropped\n"


def test_a_script_that_prints_for_ever_has_its_time_and_no_more_of_the_disk(
    trace: Path, tmp_path: Path, small_log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = tmp_path / "counts"
    counts.touch()
    endless = script(
        tmp_path, "endless.py",
        f"import os\ncounts = os.open({str(counts)!r}, os.O_WRONLY | os.O_CREAT)\n"
        "for number in range(1 << 60):\n    os.write(1, 65536 * b'x')\n"
        "    if number % 16 == 0:\n        os.pwrite(counts, b'%20d' % (number << 16), 0)",
    )  # fmt: skip
    over_when(lambda: int(counts.read_text() or 0) > 1 << 24, monkeypatch)
    assert analyze(trace, Scripts((endless,), limit=500)) == [f"{endless} was ended: it ran longer than 500 s"]
    found = re.fullmatch(f"x{{{small_log}}}\nneutrino: ([0-9]+) more bytes were printed and dropped\n", log(trace))
    assert found
    # All that it printed is accounted for; it was written down a little before.
    assert 1 << 24 < int(counts.read_text()) <= int(found[1]) + small_log <= int(counts.read_text()) + (17 << 16)


def test_what_a_script_leaves_running_holds_nobody_up(trace: Path, tmp_path: Path) -> None:
    leaves = script(
        tmp_path, "leaves.py",
        "import subprocess\nchild = subprocess.Popen('sleep 0.5; while echo still; do :; done', shell=True)\n"
        "print('left', child.pid)",
    )  # fmt: skip
    assert analyze(trace, Scripts((leaves,))) == []
    word, number = log(trace).split()
    assert word == "left"
    # Nobody reads what it prints.
    assert soon(lambda: not Path("/proc", number).exists() or " Z " in Path("/proc", number, "stat").read_text())


def test_a_log_that_cannot_be_written_costs_only_what_scripts_print(trace: Path, tmp_path: Path) -> None:
    tells = script(tmp_path, "tells.py", f"print('told'); open({str(tmp_path / 'ran')!r}, 'w')")
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom neutrino.run.scripts import Scripts, analyze\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3, 3))\n"
        "print(analyze(Path(sys.argv[1]), Scripts((sys.argv[2],))))"
    )
    command = [sys.executable, "-c", code, str(trace), tells]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("[]\n", "")
    assert (tmp_path / "ran").exists()
    assert log(trace) == "tol"
    (trace / "analyze.log").unlink()
    os.mkfifo(trace / "analyze.log")
    assert analyze(trace, Scripts((tells,))) == [f"{tells} was not run: analyze.log: not a regular file"]


def test_by_hand(trace: Path, tmp_path: Path) -> None:
    tells = script(tmp_path, "tells.py", "import sys; print(sys.argv[1])")
    fails = script(tmp_path, "fails.py", "raise SystemExit(3)")
    (trace / "result" / "1.bin").write_bytes(b"x")
    assert analyze(trace, Scripts((tells, fails), (tells,))) == [f"{fails} failed (exit status 3); see analyze.log"]
    assert log(trace).splitlines() == [str(trace / "result" / "1.bin"), str(trace)]
    assert notes(trace) == []


def only_trace(home: Path) -> Path:
    (path,) = (home / "trace").iterdir()
    return path


def test_the_program_ends_without_them(bench: Bench, home: Path) -> None:
    """Beside a whole run: the callback when there are launches, the hook after the end, which waits for neither."""
    waits = script(
        home,
        "waits.py",
        "import pathlib, sys, time\n"
        f"while not pathlib.Path({str(home / 'go')!r}).exists():\n    time.sleep(0.05)\n"
        "sys.path.insert(0, sys.argv[1])\nfrom read import parse\n"
        "files = sorted(pathlib.Path(sys.argv[1]).glob('result/*.bin'))\n"
        "print('analysed', [len(parse(path)[0]['launches']) for path in files])\n",
    )
    reads = script(home, "reads.py", "import sys; print('callback', sys.argv[1])")
    probes = home / "probes.toml"
    probes.write_text(f'analyze_hook = "waits.py"\n{TICKETS.read_text()}')
    result = neutrino(home, "-p", str(probes), "--callback", reads, str(bench.host), "plain")
    assert (result.stdout, result.returncode) == ("120\n", 0), result.stderr
    trace = only_trace(home)
    assert soon(lambda: re.search(r"^callback .*\n", log(trace), re.MULTILINE) is not None)
    assert "analysed" not in log(trace)
    (home / "go").touch()
    # The whole line: the log grows by what a pipe holds at the moment.
    assert soon(lambda: re.search(r"^analysed .*\n", log(trace), re.MULTILINE) is not None)
    (data,) = trace.glob("result/*.bin")
    *calls, last = log(trace).splitlines()
    assert set(calls) == {f"callback {data}"}
    assert last == "analysed [20]"
    # The trace names them, so that they can be run again.
    report = subprocess.run(
        [sys.executable, "-m", "neutrino.cli.report", "--analyze", "--json", str(trace)],
        capture_output=True, text=True, timeout=600, check=False, env=environment(home),
    )  # fmt: skip
    assert (report.returncode, report.stderr) == (
        0, f"neutrino-report: {trace}: running {reads}, {waits}; named by probe.toml\n"
        f"neutrino-report: {trace}: ran {reads}, {waits}; see {trace / 'analyze.log'}\n",
    )  # fmt: skip
    assert json.loads(report.stdout)["traces"][0]["complete"]
    assert log(trace).splitlines() == [*calls, last, f"callback {data}", last]


def test_a_killed_program_and_each_of_two_are_analysed(bench: Bench, home: Path) -> None:
    script(home, "tells.py", "import sys; print('analysed', sys.argv[1])")
    probes = home / "probes.toml"
    probes.write_text(f'analyze_hook = "tells.py"\n{TICKETS.read_text()}')
    for scenario, traces, status in (("kill", 1, -signal.SIGKILL), ("fork-first", 2, 0)):
        result = neutrino(home, "-p", str(probes), "--tracedir", scenario, str(bench.host), scenario)
        assert result.returncode == status
        folders = list((home / scenario).iterdir())
        assert len(folders) == traces
        for trace in folders:
            assert soon(lambda: log(trace) == f"analysed {trace}\n")  # noqa: B023


def test_signals_that_are_ignored_or_blocked_are_the_commands_alone(bench: Bench, home: Path) -> None:
    """As a daemon may start it: twins are made and scripts run all the same, and COMMAND finds what it was given."""
    tells = "print(*(row.strip() for row in open('/proc/self/status') if row[:4] in 'SigBSigI'), flush=True)\n"
    script(home, "tells.py", tells)
    probes = home / "probes.toml"
    probes.write_text(f'analyze_hook = "tells.py"\n{TICKETS.read_text()}')
    # Whoever runs the tests may ignore others, as a shell does for what runs in the background.
    begin = (
        "import os, signal, sys\n"
        "for number in range(1, 32):\n"
        "    if number not in (signal.SIGKILL, signal.SIGSTOP):\n        signal.signal(number, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = (sys.executable, "-c", f"import os\n{tells}os.execv({str(bench.host)!r}, ['host', 'plain'])")
    run = (sys.executable, "-m", "neutrino.cli.run", "-q", *EMBEDDED, "-p", str(probes))
    alone, hooked = (
        subprocess.run(
            [sys.executable, "-c", begin, *prefix, *command], env=variables, cwd=home, capture_output=True, text=True,
            timeout=600, check=False,
        )
        for prefix, variables in (((), bench.environment(home)), (run, environment(home)))
    )  # fmt: skip
    # Signal 32, the C library's own, stays as it was found.
    assert re.fullmatch(r"SigBlk:\t0*6000 SigIgn:\t0{8}[08]1011000\n120\n", alone.stdout)
    assert (hooked.stdout, hooked.returncode, hooked.stderr) == (alone.stdout, 0, "")
    trace = only_trace(home)
    assert Files(home / "trace").counted("count_p2") == {"probed": 20}
    # What Python itself ignores is left.
    assert soon(lambda: log(trace).endswith("\n"))
    assert re.fullmatch(r"SigBlk:\t0* SigIgn:\t0{8}[08]1001000\n", log(trace))


def test_the_sample_tells_what_the_trace_holds(bench: Bench, home: Path) -> None:
    sample = tool_path("analyze_block_sched.py")
    shipped = (Path(__file__).parents[1] / "fixtures/probes/hand/block_sched.toml").read_text()
    (home / "probes.toml").write_text(f"analyze_hook = {json.dumps(str(sample))}\n{shipped}")
    result = neutrino(home, "-p", "./probes.toml", "-k", "count_p2", str(bench.host), "plain")
    assert result.returncode == 0, result.stderr
    trace = only_trace(home)
    assert soon(lambda: log(trace).count("the longest") == 20), log(trace)
    (kernel,) = (kernel for kernel in Trace(trace).kernels if kernel.manifest)
    told = re.findall(r"launch (\d+): (\d+) warps on (\d+) .*\n.* ran (\d+) to (\d+) .*median (\d+)", log(trace))
    expected = []
    for launch in kernel.launches():
        rows = launch.maps["BlockSched"].valid()
        times = sorted(int(value) for value in rows["elapsed"])
        units = len(set(rows["cuid"].tolist()))
        figures = (launch.index, len(rows), units, times[0], times[-1], times[(len(times) - 1) // 2])
        expected.append(tuple(map(str, figures)))
    assert told == expected
    assert len(told) == 20


def test_the_sample_says_that_a_trace_is_another_probes(bench: Bench, home: Path) -> None:
    result = neutrino(home, "-p", str(TICKETS), str(bench.host), "plain")
    assert result.returncode == 0
    sample = subprocess.run(
        [sys.executable, str(tool_path("analyze_block_sched.py")), str(only_trace(home))],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (sample.returncode, sample.stderr) == (3, "")
    assert "not a trace of block_sched" in sample.stdout


def test_a_callback_that_cannot_be_run_is_said_before_anything_starts(home: Path) -> None:
    result = neutrino(home, "-p", str(TICKETS), "--callback", "absent.py", "touch", "started")
    assert (result.returncode, result.stderr) == (125, "neutrino: --callback absent.py: no such file\n")
    result = neutrino(home, "--callback", str(TICKETS), "touch", "started")
    assert result.returncode == 125
    assert "--callback needs a probe (-p, -e)" in result.stderr
    assert not (home / "started").exists()


def test_by_hand_without_scripts_or_without_probes(
    bench: Bench, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = neutrino(home, "-p", str(TICKETS), str(bench.host), "plain")
    assert result.returncode == 0
    trace = only_trace(home)
    assert report([str(trace), "--analyze"]) == 0
    assert capsys.readouterr().err == f"neutrino-report: {trace}: its probes name no script\n"
    (trace / "probe.toml").write_text("platform = 7\n")
    assert report([str(trace), "--analyze"]) == 2
    captured = capsys.readouterr()
    assert "its probes cannot be read" in captured.err
    assert "count_p2" in captured.out


def test_by_hand_interrupted(trace: Path, tmp_path: Path) -> None:
    """The script ends with the report, which ends as by the signal; and nothing of ours is on stdout."""
    waits = script(tmp_path, "waits.py", "import os, time; print(os.getpid(), flush=True); time.sleep(3000)")
    (trace / "probe.toml").write_text(f"analyze_hook = {json.dumps(waits)}\n{TICKETS.read_text()}")
    # What a shell runs in the background ignores the signal, and so does what that starts.
    code = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "runpy.run_module('neutrino.cli.report', run_name='__main__')"
    report = subprocess.Popen(
        [sys.executable, "-c", code, "--analyze", "--json", str(trace)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert soon(lambda: log(trace).endswith("\n"))
    report.send_signal(signal.SIGINT)
    assert report.communicate(timeout=600) == (
        "", f"neutrino-report: {trace}: running {waits}; named by probe.toml\n",
    )  # fmt: skip
    assert report.returncode == -signal.SIGINT
    assert not Path("/proc", log(trace).strip()).exists()


@pytest.mark.parametrize("closing", ["2>&-", "2>/dev/full"])
def test_by_hand_where_nobody_is_told(trace: Path, tmp_path: Path, closing: str) -> None:
    fails = script(tmp_path, "fails.py", "raise SystemExit(3)")
    (trace / "probe.toml").write_text(f"analyze_hook = {json.dumps(fails)}\n{TICKETS.read_text()}")
    command = f"'{sys.executable}' -m neutrino.cli.report --analyze --json '{trace}' {closing}"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=600, check=False)
    # The trace has no launches.bin: there is nothing of it to report.
    assert (result.returncode, json.loads(result.stdout)["traces"]) == (2, [])


@pytest.fixture
def named(trace: Path, tmp_path: Path) -> Path:
    """A script that a patched library's probes name, of the user's own; it shows that it ran."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    path = folder / "named.py"
    path.write_text("print('ran')")
    (trace / "probe.toml").write_text(f"analyze_hook = {json.dumps(str(path))}\n{TICKETS.read_text()}")
    with (trace / "events.jsonl").open("a") as events:
        events.write('{"event":"section","time_ns":2,"library":"/lib/libk.so","file":"probe.toml"}\n')
    return path


def test_what_runs_is_said_before_it_runs(trace: Path, named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def analyze_noticed(path: Path, scripts: Scripts) -> list[str]:
        said.append(capsys.readouterr().err)
        return analyze(path, scripts)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("neutrino.run.scripts.analyze", analyze_noticed)
        report([str(trace), "--analyze"])
    assert said == [f"neutrino-report: {trace}: running {named}; named by /lib/libk.so\n"]
    assert log(trace) == "ran\n"


def test_a_script_that_is_not_there_is_named(trace: Path, named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As where a patched library has gone to another machine."""
    named.unlink()
    other = script(trace, "other.py", "print('other')")
    further = f"analyze_hook = [{json.dumps(other)}, 'gone.py']\n{TICKETS.read_text()}"
    (trace / "probe-2.toml").write_text(further)
    with (trace / "events.jsonl").open("a") as events:
        events.write('{"event":"section","time_ns":3,"library":"/lib/libm.so","file":"probe-2.toml"}\n')
    assert report([str(trace), "--analyze"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[:4] == [
        f'neutrino-report: {trace}: analyze_hook "{named}" is not there, and is not run; named by /lib/libk.so',
        f'neutrino-report: {trace}: analyze_hook "gone.py" is not there, and is not run; named by /lib/libm.so',
        f"neutrino-report: {trace}: running {other}; named by /lib/libm.so",
        f"neutrino-report: {trace}: ran {other}; see {trace / 'analyze.log'}",
    ]
    assert log(trace) == "other\n"


@pytest.mark.parametrize(
    "how", ["another user's", "written by anybody", "in a folder of anybody's", "by a link", "further up"]
)
def test_a_script_that_others_could_have_put_there_is_not_run(
    trace: Path, named: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    why = f"anybody may replace it, as anybody may write to {named.parent}"
    if how == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(named, 12345, 12345)
        why = "it belongs to user 12345"
    elif how == "written by anybody":
        named.chmod(0o666)
        why = "anybody may write to it"
    elif how == "in a folder of anybody's":
        named.parent.chmod(0o777)
    elif how == "further up":
        folder = named.parent / "above" / "below"
        folder.mkdir(parents=True)
        named.rename(folder / named.name)
        named.symlink_to(folder / named.name)
        folder.parent.chmod(0o777)
        why = f"{folder.parent} can be written by others (mode 777)"
    else:
        target = named.rename(trace / "target.py")
        named.symlink_to(target)
        trace.chmod(0o777)
        why = why.replace(str(named.parent), str(trace))
    assert report([str(trace), "--analyze"]) == 2
    said = capsys.readouterr().err.splitlines()[0]
    refusal = f"{named} is not run: {why}; named by /lib/libk.so; run it by hand if you trust it"
    assert said == f"neutrino-report: {trace}: {refusal}"
    assert log(trace) == ""


def test_a_script_in_a_folder_where_files_are_their_owners_is_run(
    trace: Path, named: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named.parent.chmod(0o1777)
    report([str(trace), "--analyze"])
    assert log(trace) == "ran\n"
    assert f"running {named}" in capsys.readouterr().err
