"""Twins of cubins that compilers write, made before the program asks for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.device.kind import DeviceKind
from neutrino.maker import compiled_cubins, maker_process
from neutrino.maker.history import History
from neutrino.probing.selection import Selection
from neutrino.run import start
from neutrino.toolchain.tool_choice import find_assembler

CUBIN = b"\x7fELF\2\1\1" + bytes(11) + b"\xbe\0" + bytes(600)
"""What the watcher takes for one."""
DEADLINE_S = 600.0
"""For processes on a loaded machine; a pass takes a second or two."""


class Folder:
    """A watched folder, whose events are handled when the test says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._notify = compiled_cubins._start(path)
        self._names = os.open(path, os.O_PATH)
        self.held: dict[bytes, int] = {}
        self.queue: deque[int] = deque()

    def handle(self) -> None:
        """Handle the events so far."""
        for mask, name in compiled_cubins._events(self._notify):
            compiled_cubins._follow(mask, name, self._names, self.held, self.queue)

    def taken(self) -> list[bytes]:
        """Handle the events so far; return what cubins hold that were found."""
        self.handle()
        found = [os.pread(descriptor, 1 << 20, 0) for descriptor in self.queue]
        self._close([*self.queue])
        self.queue.clear()
        return found

    def close(self) -> None:
        self._close([self._notify, self._names, *self.held.values(), *self.queue])

    def _close(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    watched = Folder(tmp_path)
    yield watched
    watched.close()


def test_a_cubin_is_found_although_it_is_deleted_at_once(folder: Folder) -> None:
    with (folder.path / "tempfile-vm-1").open("wb") as file:
        folder.handle()
        file.write(CUBIN)
    (folder.path / "tempfile-vm-1").unlink()
    assert folder.taken() == [CUBIN]
    assert not folder.held


def test_a_cubin_that_was_renamed_into_the_folder_is_found(
    folder: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "cubin"
    elsewhere.write_bytes(CUBIN)
    elsewhere.rename(folder.path / "cubin")
    assert folder.taken() == [CUBIN]


@pytest.mark.parametrize(
    "data",
    [CUBIN[:18] + b"\x3e\0" + CUBIN[20:], b"//\n.version 8.0\n" + bytes(600), CUBIN[:300], b"", CUBIN + bytes(4 << 20)],
    ids=["x86", "PTX", "small", "empty", "big"],
)
def test_other_files_are_not_taken(folder: Folder, data: bytes) -> None:
    (folder.path / "file").write_bytes(data)
    (folder.path / "folder").mkdir()
    assert folder.taken() == []


def test_only_regular_files_are_opened(folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "cubin"
    other.write_bytes(CUBIN)
    (folder.path / "link").symlink_to(other)
    os.mkfifo(folder.path / "fifo")
    folder.handle()
    # Nobody has it open: that a FIFO was opened to read would be noticed here.
    with pytest.raises(OSError, match="No such device"):
        os.open(folder.path / "fifo", os.O_WRONLY | os.O_NONBLOCK)
    assert folder.taken() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_other_users_are_not_opened(folder: Folder) -> None:
    path = folder.path / "cubin"
    path.touch()
    os.chown(path, 65534, 65534)
    path.write_bytes(CUBIN)
    assert folder.taken() == []


def test_few_files_are_held_open(folder: Folder) -> None:
    files = [(folder.path / f"file{number}").open("wb") for number in range(compiled_cubins._HELD + 10)]
    folder.handle()
    assert len(folder.held) == compiled_cubins._HELD
    files[0].write(CUBIN)
    for file in files:
        file.close()
    # It is opened by its name.
    assert folder.taken() == [CUBIN]


@pytest.mark.parametrize("is_moved", [False, True], ids=["deleted", "moved"])
def test_what_goes_before_it_was_written_is_not_held(
    is_moved: bool, folder: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = folder.path / "scratch"
    with path.open("wb") as file:
        folder.handle()
        assert folder.held
        if is_moved:
            path.rename(tmp_path_factory.mktemp("elsewhere") / "scratch")
        else:
            path.unlink()
        folder.handle()
        assert not folder.held
        file.write(CUBIN)
    assert folder.taken() == []


@pytest.mark.parametrize(
    ("lines", "renames"),
    [
        (["22 1 8:1 / / rw - ext4 /dev/sda1 rw"], False),
        (["22 1 8:1 / / rw - nfs4 server:/ rw", "23 22 0:30 / FOLDER rw shared:1 - tmpfs tmpfs rw"], False),
        (["22 1 8:1 / / rw - ext4 /dev/sda1 rw", "23 22 0:30 / FOLDER rw - nfs server:/tmp rw"], True),
        (["22 1 8:1 / / rw - ext4 /dev/sda1 rw", "23 22 0:30 / FOLDERER rw - nfs server:/tmp rw"], False),
        (["23 22 0:30 / /tmp rw - nfs server:/tmp rw", "24 22 0:31 / /tmp rw - xfs /dev/sdb rw"], False),
        ([], True),
    ],
)
def test_a_folder_where_held_files_are_renamed_is_not_watched(
    lines: list[str], renames: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("/tmp/with a space")
    text = "".join(f"{line}\n" for line in lines).replace("FOLDER", str(folder).replace(" ", "\\040"))
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_options: text)
    monkeypatch.setattr("os.path.realpath", str)
    assert compiled_cubins._renames(folder) == renames


def test_what_the_channel_does_not_take_yet_is_sent_later(tmp_path: Path) -> None:
    channel = compiled_cubins.start_watcher(tmp_path)
    assert channel is not None
    _until_watched(tmp_path, channel)
    for number in range(compiled_cubins._QUEUED):
        (tmp_path / f"cubin{number}").write_bytes(CUBIN + number.to_bytes(4, "little"))
    found = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < compiled_cubins._QUEUED and time.monotonic() < deadline:
        cubin = compiled_cubins.received(channel)
        if cubin is None:
            time.sleep(0.001)
        else:
            found.add(int.from_bytes(cubin[-4:], "little"))
    assert len(found) == compiled_cubins._QUEUED
    channel.close()


def _until_watched(folder: Path, channel: socket.socket) -> None:
    """Wait until cubins in a folder arrive."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        (folder / "first").write_bytes(CUBIN)
        time.sleep(0.01)
        if compiled_cubins.received(channel) is not None:
            break
    else:
        pytest.fail("no cubin arrived")
    # Those of the loop's other turns.
    time.sleep(0.2)
    while compiled_cubins.received(channel) is not None:
        pass


@pytest.mark.parametrize(
    ("options", "makes_ahead"),
    [({}, True), ({"hot": 4}, False), ({"save_temps": Path("/x")}, False), ({"waits": False}, True)],
)
def test_nothing_is_made_ahead_where_twins_wait_for_launches(options: dict[str, object], makes_ahead: bool) -> None:
    request = replace(start.Request(["true"], None, (), Selection()), **options)  # type: ignore[arg-type]
    assert start._makes_at_loads(request, DeviceKind.GPU) == makes_ahead
    assert not start._makes_at_loads(request, DeviceKind.EMBEDDED)


def test_the_first_run_with_a_key_is_likely_to_ask(tmp_path: Path) -> None:
    keys = [bytes([number]) * 32 for number in (1, 1, 2, 1)]
    histories = [start._history(tmp_path / "cache", key) for key in keys]
    assert [history.asks for history in histories if history] == [True, False, True, False]
    (tmp_path / "file").touch()
    assert start._history(tmp_path / "file", bytes(32)) is None


@pytest.mark.parametrize(
    ("runs", "likely"),
    [
        # What a first run asks for is in the cache then.
        (("asked", "", ""), [True, False, False]),
        # A program that compiles, and one that has stopped doing so.
        (("compiled", "asked", "asked", "asked"), [True, True, True, True]),
        (("compiled", "", ""), [True, True, False]),
        (("asked", "asked", ""), [True, False, True]),
    ],
)
def test_runs_that_asked_say_so_to_the_next_one(runs: tuple[str, ...], likely: list[bool], tmp_path: Path) -> None:
    found = []
    for run in runs:
        history = History.begin(tmp_path / "key")
        found.append(history.asks)
        if run:
            getattr(history, run)(b"request")
            assert history.is_first or (tmp_path / "key").read_bytes() == b"request"
    assert found == likely


@pytest.mark.parametrize("at_once", [True, False])
def test_the_patcher_is_imported_at_once_in_a_first_run(
    at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker_process, "_LEAST_PROCESSORS", 1)

    def write(name: str, message: bytes | None) -> None:
        (tmp_path / f"{name}.new").write_text(repr(message))
        (tmp_path / f"{name}.new").rename(tmp_path / name)

    channel = maker_process.start_maker(
        lambda message: write("prepared", message), lambda _, message: write("served", message), at_once=at_once
    )
    assert channel is not None
    if at_once:
        assert _text_of(tmp_path / "prepared") == "None"
    ours, its = socket.socketpair()
    with ours, its:
        assert maker_process.hand_over(channel, its, b"request")
        assert _text_of(tmp_path / "served") == "b'request'"
    assert _text_of(tmp_path / "prepared") == ("None" if at_once else "b'request'")
    channel.close()


@pytest.mark.parametrize("expected", [b"of an earlier run", b""])
def test_twins_are_made_before_the_first_request_if_what_it_will_be_is_known(
    expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker_process, "_LEAST_PROCESSORS", 1)
    compiled_in = tmp_path / "compiled"
    compiled_in.mkdir()

    def make(request: bytes, cubin: bytes) -> None:
        (tmp_path / "made.new").write_bytes(request + b" " + cubin[-4:])
        (tmp_path / "made.new").rename(tmp_path / "made")

    channel = maker_process.start_maker(
        lambda _: (tmp_path / "prepared").touch(), lambda *_: None, maker_process.Ahead(compiled_in, make),
        at_once=True, expected=expected,
    )  # fmt: skip
    assert channel is not None
    # The watcher was started before that.
    _text_of(tmp_path / "prepared")
    ours, its = socket.socketpair()
    with ours, its:
        if not expected:
            (compiled_in / "cubin").write_bytes(CUBIN)
            assert maker_process.hand_over(channel, its, b"asked for")
        # The watcher may not have begun yet.
        deadline = time.monotonic() + DEADLINE_S
        while not (tmp_path / "made").exists() and time.monotonic() < deadline:
            (compiled_in / "cubin").write_bytes(CUBIN[:-4] + b"last")
            time.sleep(0.05)
    assert _text_of(tmp_path / "made").startswith(expected.decode() or "asked for")
    channel.close()


def _text_of(path: Path) -> str:
    """What a file holds that another process writes."""
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return path.read_text()


PROGRAM = """
import os, socket, subprocess, sys, time
from pathlib import Path
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from neutrino.maker import maker_process
from neutrino.maker.messages import REQUEST
from neutrino.maker.serving import TwinSettings
from neutrino.run.listener import Settings, start_listener
from neutrino.maker.history import History
from neutrino.probing.selection import Selection
from neutrino.run.probes import RunProbes
from neutrino.verification import load_probes

# Also on a small machine.
maker_process._LEAST_PROCESSORS = 1
folder = Path(sys.argv[1])
compiled = folder / "compiled"
compiled.mkdir()
cache = Cache(folder / "cache")
probes = RunProbes.of(load_probes(["block_sched"]))
history = History.begin(folder / "history")
settings = TwinSettings(probes, Selection(), bytes(32), cache, None, compiled=compiled, history=history)
path = str(start_listener(Settings(settings)))
text = Path(sys.argv[2]).read_text()

def compile(name, *options):
    source, cubin = compiled / f"{name}.ptx", compiled / f"{name}.cubin"
    source.write_text(text.replace("NAME", name))
    subprocess.run([sys.argv[3], source, "-o", cubin, "-arch=sm_90", *options], check=True)
    return cubin.read_bytes()

def key(image):
    return image_key(bytes(32), "sm_90", image)

image = compile("asked_for", "-lineinfo")
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(path)
    header = REQUEST.pack(b"NTASK", 2, os.getpid(), key(image), b"sm_90", 13000, 0, len(image))
    connection.sendall(header + image)
    assert connection.recv(24, socket.MSG_WAITALL)[8:12] == bytes(4)
without_ptx = compile("without_ptx")
images = [compile(f"kernel{number}", "-lineinfo") for number in range(6)]
deadline = time.monotonic() + 600
while any(cache.read(key(image)) is None for image in images) and time.monotonic() < deadline:
    time.sleep(0.05)
print(sum(cache.read(key(image)) is not None for image in images), cache.read(key(without_ptx)), flush=True)
os.execv("/bin/true", ["true"])
"""
KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry NAME(.param .u64 out)
{
	.reg .b64 %rd<2>;
	.reg .b32 %r<2>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %tid.x;
	st.global.u32 [%rd1], %r1;
	ret;
}
"""


def test_twins_are_in_the_cache_before_they_are_asked_for(tmp_path: Path) -> None:
    ptxas = find_assembler(13000).path
    (tmp_path / "kernel.ptx").write_text(KERNEL)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(tmp_path / "kernel.ptx"), str(ptxas)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (result.stdout, result.returncode) == ("6 None\n", 0), result.stderr
    # The next run may have kernels that this one had not.
    assert b"sm_90" in History.begin(tmp_path / "history").request
    # The listener, the watcher and all workers end with the program.
    deadline = time.monotonic() + DEADLINE_S
    while _processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _processes_of(tmp_path) == []


def _processes_of(folder: Path) -> list[str]:
    """The processes on whose command line a folder is."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.fsencode(folder) in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found
