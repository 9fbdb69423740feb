"""``neutrino -e`` as COMMAND's parent: signals and terminals as without it, results whatever ends the program."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neutrino.abi.launches import LaunchState
from neutrino.errors import NeutrinoError
from neutrino.tracing import Trace

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "\n@:\n  saxpy  4,096\n"
WAITING = "neutrino: adding the probes to this program's kernels; later runs find them in the cache\n"
"""On a terminal, where the machine is so busy that this takes a second."""
PROGRAM = """
import ctypes, os, signal, sys, time
handled = []
def handle(number, frame):
    handled.append(number)
for name in filter(None, sys.argv[1].split(",")):
    signal.signal(getattr(signal, name), handle)
library = ctypes.CDLL("./libvector.so")
x, y = (ctypes.c_float * 4096)(), (ctypes.c_float * 4096)()
assert library.vector_saxpy(4096, ctypes.c_float(2), x, y) == 0
print("ready", os.getpid(), os.getppid(), signal.getsignal(signal.SIGINT) is signal.SIG_IGN, flush=True)
until = time.monotonic() + 600
while time.monotonic() < until and not handled:
    time.sleep(0.01)
# Those that come twice come at once.
time.sleep(0.3)
print("handled", *handled, flush=True)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with libvector.so and ``waiting.py``, which launches saxpy once and waits for signals."""
    path = tmp_path_factory.mktemp("signals")
    subprocess.run(
        ["make", "-s", "-C", str(ROOT / "examples" / "embedded"), f"OUT={path}", f"PYTHON={sys.executable}"], check=True
    )
    (path / "waiting.py").write_text(PROGRAM)
    return path


class Run:
    """A run of waiting.py under ``neutrino -e``, in a process group of its own."""

    def __init__(
        self, folder: Path, home: Path, handled: str = "", *, terminal: int | None = None,
        before: Callable[[], None] = lambda: None, probe: tuple[str, ...] = ("-q", "-e", "st.global { @ = count() }"),
    ) -> None:  # fmt: skip
        self.home = home
        environment = {**os.environ, "XDG_CACHE_HOME": str(home / "cache")}

        def become_a_job() -> None:
            # It is ignored in all that nohup starts.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            before()
            os.setsid() if terminal is not None else os.setpgid(0, 0)
            if terminal is not None:
                fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "neutrino.cli.run", "--tracedir", str(home / "trace"), "--device", "embedded",
                *probe, sys.executable, "waiting.py", handled,
            ],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if terminal is None else terminal, text=True,
            preexec_fn=become_a_job,  # noqa: PLW1509
        )  # fmt: skip
        assert self.process.stdout is not None
        ready = self.process.stdout.readline().split()
        assert ready[:1] == ["ready"], ready
        self.command, self.parent, self.ignores_interrupt = int(ready[1]), int(ready[2]), ready[3] == "True"
        self._wait_for_records()

    def _wait_for_records(self) -> None:
        """Wait until the launch's records are in the trace, which are lost in a process that is killed earlier."""
        until = time.monotonic() + 600
        while time.monotonic() < until:
            with contextlib.suppress(NeutrinoError, OSError, StopIteration):
                trace = Trace(next((self.home / "trace").iterdir()))
                if (trace.launches["state"] == LaunchState.WRITTEN).sum() == 1:
                    return
            time.sleep(0.02)
        raise AssertionError("no records were written")

    def end(self) -> tuple[int, str, str]:
        """Its status, or the signal as a negative number; what COMMAND printed; what was printed on stderr."""
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, out, err


@pytest.fixture
def runs(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs, and ends those that a failed test leaves."""
    started: list[Run] = []

    def start(*arguments: str, **options: object) -> Run:
        started.append(Run(folder, tmp_path, *arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"])
def test_a_signal_for_neutrino_alone_is_passed_on_once(runs: Callable[..., Run], name: str) -> None:
    run = runs(name)
    assert run.parent == run.process.pid
    assert os.getpgid(run.command) == run.process.pid
    os.kill(run.process.pid, getattr(signal, name))
    assert run.end() == (7, f"handled {int(getattr(signal, name))}\n", f"{RESULTS}\n")


def test_a_signal_for_the_group_arrives_once(runs: Callable[..., Run]) -> None:
    run = runs("SIGTERM")
    os.killpg(run.process.pid, signal.SIGTERM)
    assert run.end() == (7, "handled 15\n", f"{RESULTS}\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGABRT])
def test_neutrino_ends_by_the_signal_that_ended_command(runs: Callable[..., Run], number: int) -> None:
    run = runs()
    os.kill(run.process.pid, number)
    status, out, err = run.end()
    assert (status, out) == (-number, "")
    assert err.startswith(RESULTS)
    assert f"Process {run.command} was killed or still runs: its last launches may be missing" in err


def test_a_second_signal_ends_no_printing(runs: Callable[..., Run]) -> None:
    run = runs("SIGINT")
    os.killpg(run.process.pid, signal.SIGINT)
    while run.process.poll() is None:
        if not Path(f"/proc/{run.command}").exists():
            os.kill(run.process.pid, signal.SIGTERM)
        time.sleep(0.05)
    status, _, err = run.end()
    assert (status, err) == (7, f"{RESULTS}\n")


def test_a_killed_command(runs: Callable[..., Run]) -> None:
    run = runs("SIGTERM")
    os.kill(run.command, signal.SIGKILL)
    status, _, err = run.end()
    assert status == -signal.SIGKILL
    assert err.startswith(RESULTS)


def test_command_ends_with_neutrino(runs: Callable[..., Run]) -> None:
    run = runs()
    descriptor = os.pidfd_open(run.command)
    os.kill(run.process.pid, signal.SIGKILL)
    assert run.end()[0] == -signal.SIGKILL
    until = time.monotonic() + 600
    while time.monotonic() < until:
        try:
            signal.pidfd_send_signal(descriptor, 0)
        except ProcessLookupError:
            break
        time.sleep(0.01)
    else:
        raise AssertionError("COMMAND runs on")
    os.close(descriptor)


def test_ignored_signals_stay_ignored(runs: Callable[..., Run]) -> None:
    """As under nohup, and in the background of a shell without job control."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    run = runs("SIGTERM", before=ignore)
    assert run.ignores_interrupt
    os.killpg(run.process.pid, signal.SIGINT)
    time.sleep(0.2)
    assert run.process.poll() is None
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end() == (7, "handled 15\n", f"{RESULTS}\n")


def read_all(master: int) -> str:
    """What a terminal shows, until nobody has it open any more."""
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(master, 65536):
            shown += part
    os.close(master)
    return shown.decode().replace("\r\n", "\n").replace(WAITING, "")


def test_control_c(runs: Callable[..., Run]) -> None:
    master, slave = os.openpty()
    run = runs("SIGINT", terminal=slave)
    os.close(slave)
    os.write(master, b"\x03")
    status, out, _ = run.end()
    assert (status, out) == (7, "handled 2\n")
    assert read_all(master).replace("^C", "") == f"{RESULTS}\n"


def test_stopped_and_continued(runs: Callable[..., Run]) -> None:
    run = runs("SIGTERM")
    os.kill(run.process.pid, signal.SIGTSTP)
    # As a shell waits for its job.
    assert os.waitid(os.P_PID, run.process.pid, os.WSTOPPED) is not None
    assert Path(f"/proc/{run.command}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    os.killpg(run.process.pid, signal.SIGCONT)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end() == (7, "handled 15\n", f"{RESULTS}\n")


def test_a_closed_terminal(runs: Callable[..., Run]) -> None:
    master, slave = os.openpty()
    run = runs(terminal=slave)
    os.close(slave)
    os.close(master)
    assert run.end()[0] == -signal.SIGHUP
    (trace,) = (run.home / "trace").iterdir()
    assert (trace / "results.txt").read_text().startswith(RESULTS)


def test_the_trace_of_a_killed_process_is_named_without_results(runs: Callable[..., Run]) -> None:
    master, slave = os.openpty()
    run = runs(terminal=slave, probe=("-p", "block_sched"))
    assert run.command == run.process.pid
    os.kill(run.command, signal.SIGTERM)
    assert run.end()[0] == -signal.SIGTERM
    (trace,) = (run.home / "trace").iterdir()
    # By the listener, which ends a moment later.
    shown, wanted = "", f"neutrino: trace in {trace}: its process was killed; its last launches may be missing\n"
    while wanted not in shown:
        shown += os.read(master, 4096).decode().replace("\r\n", "\n")
    assert shown.replace(WAITING, "") == wanted
    os.close(master)
    os.close(slave)


def test_nothing_recorded_is_said(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "-e", "kernel { @ = count() }"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(
        [*command, "sh", "-c", "exit 5"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (5, "")
    assert result.stderr == (
        "neutrino: nothing was recorded by the end of COMMAND: no process of it was seen loading GPU code\n"
    )


@pytest.mark.parametrize(
    ("options", "command", "status", "said"),
    [
        (("--tracedir", "file/trace"), "true", 125, "--tracedir"),
        (("--driver", "file"), "true", 125, "not a 64-bit ELF library"),
        ((), "./file", 126, "cannot be executed"),
        ((), "no-such-command", 127, "command not found"),
    ],
)
def test_errors_before_command_starts(
    tmp_path: Path, options: tuple[str, ...], command: str, status: int, said: str
) -> None:
    (tmp_path / "file").touch()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    device = () if "--driver" in options else ("--device", "embedded")
    result = subprocess.run(
        [sys.executable, "-m", "neutrino.cli.run", *device, *options, "-e", "kernel { @ = count() }", command],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (status, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("neutrino: ")
    assert said in line
