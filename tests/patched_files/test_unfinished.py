"""Copies that killed processes leave beside their targets: named, removed where nobody has them, else left alone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neutrino.cli.patch import main
from neutrino.patched_files import unfinished
from neutrino.patched_files.large_files import replace_atomically
from neutrino.patched_files.unfinished import begin, find_unfinished

WRITES = """
import os, sys
from pathlib import Path
from neutrino.patched_files.large_files import replace_atomically
with replace_atomically(Path(sys.argv[1]), 0o755) as new:
    os.write(new, b"a part")
    # As a worker may have it open still.
    child = os.fork() if len(sys.argv) > 2 else None
    if child != 0:
        os.write(1, f"{child}\\n".encode())
    sys.stdin.read()
"""


@contextlib.contextmanager
def writing(target: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has begun to write target, and what it said; it goes on once its stdin has ended."""
    command = [sys.executable, "-c", WRITES, str(target), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        yield process, process.stdout.readline().strip()


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait(20) == -signal.SIGKILL


def test_a_copy_is_left_alone_while_it_is_written_and_removed_when_its_writer_was_killed(tmp_path: Path) -> None:
    target = tmp_path / "libk.so"
    with writing(target) as (process, _):
        assert len(hidden(tmp_path)) == 1
        assert find_unfinished(tmp_path, remove=True) == unfinished.Unfinished((), ())
        process.communicate("", timeout=600)
    assert (target.read_bytes(), hidden(tmp_path)) == (b"a part", [])
    with writing(target) as (process, _):
        kill(process)
    (name,) = hidden(tmp_path)
    assert find_unfinished(tmp_path, remove=False).left == (tmp_path / name,)
    assert find_unfinished(tmp_path, remove=True).removed == (tmp_path / name,)
    assert list(tmp_path.iterdir()) == [tmp_path / "libk.so"]


def test_a_process_that_has_it_still_from_the_killed_one_counts(tmp_path: Path) -> None:
    with writing(tmp_path / "libk.so", "fork") as (process, child):
        kill(process)
        assert find_unfinished(tmp_path, remove=True) == unfinished.Unfinished((), ())
        os.kill(int(child), signal.SIGKILL)
        # Its parent was killed: somebody else waits for it.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            while " Z " not in Path("/proc", child, "stat").read_text():
                pass
    assert len(find_unfinished(tmp_path, remove=True).removed) == 1


def test_in_another_namespace_of_processes_and_users(tmp_path: Path) -> None:
    """As in a container: the numbers of processes there mean nothing here, the lock does."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    tried = shutil.which("unshare") and subprocess.run([*inside, "true"], stderr=subprocess.DEVNULL, check=False)
    if not tried or tried.returncode:
        pytest.skip("no unshare, or no namespaces can be made here")
    command = [*inside, sys.executable, "-c", WRITES, str(tmp_path / "libk.so")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert find_unfinished(tmp_path, remove=True) == unfinished.Unfinished((), ())
        process.kill()
        process.stdout.read()
    assert len(find_unfinished(tmp_path, remove=True).removed) == 1


def test_what_is_not_certainly_ours_is_named_or_passed_over(tmp_path: Path) -> None:
    target = tmp_path / "libk.so"
    descriptor, ours = begin(target)
    os.close(descriptor)
    kernel = ours.name.split(".")[-2].split("-")[0]
    others = [
        # rsync's and an older release's, a target of that name, a folder, a pipe, a link.
        ".libk.so.aB3dE6", ".libk.so.a1b2c3d4", "libk.so.neutrino-part", f".libk.so.{kernel}.neutrino-part",
    ]  # fmt: skip
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / f".libk.so.{kernel}-12345678.neutrino-part").mkdir()
    os.mkfifo(tmp_path / f".libk.so.{kernel}-23456789.neutrino-part")
    (tmp_path / f".libk.so.{kernel}-34567890.neutrino-part").symlink_to(ours)
    # Of another machine, or from before this one was started anew: its locks may not be seen here.
    elsewhere = [tmp_path / f".libk.so.{tag}-abcd_f01.neutrino-part" for tag in ("00000000", "fedcba98")]
    for path in elsewhere:
        path.touch()
    before = set(tmp_path.iterdir())
    found = find_unfinished(tmp_path, remove=True)
    assert (found.removed, found.left) == ((ours,), tuple(elsewhere))
    assert before - set(tmp_path.iterdir()) == {ours}
    assert find_unfinished(tmp_path / "absent", remove=True) == unfinished.Unfinished((), ())


def test_a_file_of_another_user_is_named(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    descriptor, name = begin(tmp_path / "libk.so")
    os.close(descriptor)
    os.chown(name, 12345, 12345)
    assert find_unfinished(tmp_path, remove=True).left == (name,)


def test_one_taken_in_the_moment_before_its_lock_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, taken = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not taken and how == fcntl.LOCK_EX:
            taken.append(1)
            taken.extend(find_unfinished(tmp_path, remove=True).removed)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with replace_atomically(tmp_path / "libk.so", 0o644) as new:
        os.write(new, b"whole")
    assert len(taken) == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "libk.so"]
    assert (tmp_path / "libk.so").read_bytes() == b"whole"


@pytest.mark.parametrize("refusal", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_files_are_written_and_none_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    def none(descriptor: int, how: int) -> None:
        raise OSError(refusal, os.strerror(refusal))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", none)
        with replace_atomically(tmp_path / "libk.so", 0o644) as new:
            (name,) = hidden(tmp_path)
            assert find_unfinished(tmp_path, remove=True).left == (tmp_path / name,)
            os.write(new, b"whole")
            # Also where whoever looks has locks.
            patched.undo()
            assert find_unfinished(tmp_path, remove=True).removed == ()
    assert list(tmp_path.iterdir()) == [tmp_path / "libk.so"]


def test_the_command_says_what_it_removes_and_a_check_only_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "libk.so"
    target.write_bytes(b"\x7fELF")
    with writing(target) as (process, _):
        kill(process)
    (name,) = hidden(tmp_path)
    assert main(["--check", str(target)]) == 2
    said = f"neutrino-patch: {tmp_path / name} is an unfinished copy; remove it unless a run on another machine "
    assert f"{said}is still writing it\n" in capsys.readouterr().err
    assert hidden(tmp_path) == [name]
    assert main(["--restore", str(target), "-o", str(tmp_path / "back.so")]) == 2
    assert capsys.readouterr().err.startswith(
        f"neutrino-patch: removed {tmp_path / name}, left by a run that was killed\n"
    )
    assert hidden(tmp_path) == []
