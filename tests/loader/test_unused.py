"""A COMMAND that never uses a GPU: one line says so on a terminal, and nobody waits for who says it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from neutrino.backend.ptx_module import OneModule
from neutrino.loader.embedded_driver import EmbeddedDevice
from neutrino.maker.keys import image_key
from neutrino.maker.serving import TwinSettings, make_entry
from neutrino.maker.store import Cache
from neutrino.probing.selection import Selection
from neutrino.ptx.instrument import twin
from neutrino.run.listener import Settings
from neutrino.run.probes import RunProbes
from neutrino.run.start import Request, prepare
from neutrino.run.terminal import Terminal as Remembered
from neutrino.verification import load_probes

from .conftest import IMAGE, Bench

LINE = "neutrino: nothing was recorded: COMMAND never used a GPU (no process of it was seen loading GPU code)"


TEXT = b"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry scale(.param .u64 p)
{
.reg .u64 %a; .reg .f32 %f;
ld.param.u64 %a, [p];
ld.global.f32 %f, [%a];
st.global.f32 [%a+4], %f;
ret;
}
// """


class Terminal:
    """A terminal that commands have as their stderr."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.shown = b""

    def read(self, seconds: float) -> bool:
        """Read what comes within that time; False once nobody has the terminal open any more."""
        if select.select([self.master], [], [], seconds)[0]:
            try:
                self.shown += os.read(self.master, 65536)
            except OSError:
                return False
        return True

    @property
    def lines(self) -> list[str]:
        return self.shown.decode().splitlines()

    def release(self) -> None:
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.release()
    os.close(opened.master)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "image").write_bytes(IMAGE)
    (tmp_path / "run").mkdir()
    return tmp_path


def start(home: Path, stderr: int, *arguments: str, extra: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ, "HOST_IMAGE": str(home / "image"), "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_RUNTIME_DIR": str(home / "run"), **(extra or {}),
    }  # fmt: skip
    command = [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "-p", "block_sched", *arguments]
    return subprocess.Popen(
        command, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
    )


def shown_until_the_listener_ends(home: Path, terminal: Terminal, *arguments: str) -> list[str]:
    """What the terminal shows of a run, until nothing of it is left."""
    process = start(home, terminal.slave, *arguments)
    # The folder with the listener's socket is removed as the last of all.
    while process.poll() is None or list((home / "run").iterdir()):
        terminal.read(0.05)
    terminal.read(0.05)
    return terminal.lines


def test_a_terminal_is_told(home: Path, terminal: Terminal) -> None:
    assert shown_until_the_listener_ends(home, terminal, "sh", "-c", "echo own >&2; true & wait") == ["own", LINE]


def test_quiet(home: Path, terminal: Terminal) -> None:
    assert shown_until_the_listener_ends(home, terminal, "-q", "true") == []


@pytest.mark.parametrize("scenario", ["plain", "unused"])
def test_a_command_that_used_the_driver_says_for_itself(
    bench: Bench, home: Path, terminal: Terminal, scenario: str
) -> None:
    lines = shown_until_the_listener_ends(home, terminal, "sh", "-c", f"'{bench.host}' {scenario}; true")
    assert LINE not in lines
    word = "called the CUDA driver" if scenario == "unused" else "launches"
    assert [word in line for line in lines].count(True) == 1


def test_a_trace_of_a_process_that_could_not_call_is_respected(home: Path, terminal: Terminal) -> None:
    assert shown_until_the_listener_ends(home, terminal, "mkdir", "-p", "trace/Nov20_131500_4242") == []


def test_a_pipe_is_not_told_and_ends_when_the_command_closes_it(home: Path) -> None:
    reading, writing = os.pipe()
    process = start(home, writing, "sh", "-c", "exec 2>&-; echo > closed; cat gate")
    os.mkfifo(home / "gate")
    os.close(writing)
    try:
        # The end of the pipe, though COMMAND and the listener still run.
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read() == b""
        assert process.poll() is None
    finally:
        (home / "gate").write_text("")
        assert process.wait(600) == 0


def test_nobody_keeps_a_terminal_open(home: Path, terminal: Terminal) -> None:
    os.mkfifo(home / "gate")
    process = start(home, terminal.slave, "sh", "-c", "exec 2>&-; echo > closed; cat gate")
    terminal.release()
    try:
        deadline = time.monotonic() + 600
        while terminal.read(1):
            assert time.monotonic() < deadline
        assert process.poll() is None
        assert terminal.lines == []
    finally:
        (home / "gate").write_text("")
        assert process.wait(600) == 0


def test_another_terminal_of_the_same_name_is_left_alone() -> None:
    # The least free number is given away first, if no other test takes or leaves one meanwhile.
    for _ in range(100):
        master, slave = os.openpty()
        remembered = Remembered.of(slave)
        assert remembered is not None
        os.close(slave)
        os.close(master)
        # Times of files are as coarse as the kernel's ticks.
        time.sleep(0.05)
        master, slave = os.openpty()
        if os.ttyname(slave) == remembered.path:
            break
        os.close(slave)
        os.close(master)
    else:
        raise AssertionError("no terminal's name came again")
    remembered.say("to the first")
    assert not select.select([master], [], [], 0.2)[0]
    same = Remembered.of(slave)
    assert same is not None
    same.say("to the second")
    assert os.read(master, 100) == b"neutrino: to the second\r\n"
    os.close(slave)
    remembered.say("to nobody")
    os.close(master)


@pytest.mark.parametrize("lines", [10, 20_000])
def test_a_terminal_is_told_once_of_a_long_twin(
    lines: int, tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the assembler has it, whichever worker is the first; the second image's is not told of."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(twin, "LONG", lines)
    heard: list[list[str]] = []
    assemble = OneModule.twins

    def assembles(self: OneModule, *arguments: Any, **more: Any) -> Any:
        terminal.read(0.2)
        heard.append(terminal.lines)
        return assemble(self, *arguments, **more)

    monkeypatch.setattr(OneModule, "twins", assembles)
    remembered = Remembered.of(terminal.slave)
    assert remembered
    settings = TwinSettings(
        RunProbes.of(load_probes(["gmem_bytes"])), Selection(("scale",)), bytes(32), Cache(tmp_path / "cache"), None,
        say=remembered.say,
    )  # fmt: skip
    for letter in b"ab":
        image = TEXT + bytes([letter, 0])
        make_entry(image, "sm_90", None, image_key(bytes(32), "sm_90", image), settings)
    terminal.read(0.2)
    assert len(heard) >= 2
    assert heard[0] == terminal.lines
    if lines == 10:
        (line,) = terminal.lines
        assert line.startswith("neutrino: scale: the twin has ")
        assert "ptxas may take minutes; -k and --filter choose kernels" in line
    else:
        assert not terminal.lines


def test_a_run_remembers_its_terminal(home: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of try does though it says nothing else."""
    noted: list[object] = []

    def started(settings: Settings, pid: int | None = None) -> Path:
        noted.append(settings.twins.say)
        return Path("/nowhere")

    monkeypatch.setattr("neutrino.run.start.start_listener", started)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.chdir(home)
    before = os.dup(2)
    try:
        os.dup2(terminal.slave, 2)
        for more in ({}, {"quiet": True}, {"quiet": True, "says_long": True}):
            prepare(
                Request(["true"], RunProbes.of(load_probes(["block_sched"])), ("block_sched",), Selection(),
                        device=EmbeddedDevice(), **more)
            )  # fmt: skip
    finally:
        os.dup2(before, 2)
        os.close(before)
    assert [one is not None for one in noted] == [True, False, True]
