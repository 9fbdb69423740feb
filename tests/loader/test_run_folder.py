"""Folders that last as long as a run, and what is left of runs that were killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from neutrino.run.folders import make_run_folder
from tests.loader.conftest import IMAGE, Bench
from tests.loader.test_command import neutrino

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away, or be another user")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "image").write_bytes(IMAGE)
    return tmp_path


def test_what_is_in_use_stays_and_what_is_left_goes(tmp_path: Path) -> None:
    first, lock = make_run_folder(tmp_path)
    assert first.stat().st_mode & 0o777 == 0o700
    (first / "file").write_text("")
    second, other = make_run_folder(tmp_path)
    assert first.is_dir()
    # Also where only another process has it open: that it was forked from has closed it.
    inherited = subprocess.Popen(["sleep", "100"], pass_fds=[lock])
    os.close(lock)
    os.close(make_run_folder(tmp_path)[1])
    assert first.is_dir()
    inherited.kill()
    inherited.wait()
    third, last = make_run_folder(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([second, third])
    os.close(other)
    os.close(last)


def test_others_and_what_has_another_name_stay(tmp_path: Path) -> None:
    for name in ("neutrino-abc", "neutrino-run-file", "neutrino-run-open"):
        (tmp_path / name).mkdir()
    (tmp_path / "neutrino-run-open").chmod(0o755)
    (tmp_path / "neutrino-run-file").rmdir()
    (tmp_path / "neutrino-run-file").write_text("")
    (tmp_path / "neutrino-run-link").symlink_to(tmp_path / "neutrino-abc")
    before = set(tmp_path.iterdir())
    folder, lock = make_run_folder(tmp_path)
    os.close(lock)
    assert set(tmp_path.iterdir()) == {*before, folder}


def test_a_killed_listeners_files_are_removed_by_a_later_run(bench: Bench, home: Path) -> None:
    # A socket's path must be short.
    runtime, temporary = Path(tempfile.mkdtemp()), home / "tmp"
    temporary.mkdir()
    folders = (runtime, temporary)
    extra = {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(temporary)}
    # The listener is the one process that has COMMAND's socket.
    find = f"""{sys.executable} - <<'END'
import os, pathlib, signal
path = os.environ["NEUTRINO_SOCKET"]
inode = next(line.split()[6] for line in open("/proc/net/unix") if line.rstrip().endswith(" " + path))
for one in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
    try:
        found = os.readlink(one) == f"socket:[{{inode}}]"
    except OSError:
        continue
    if found:
        os.kill(int(one.parts[2]), signal.SIGKILL)
END"""
    try:
        result = neutrino(home, "-p", "block_sched", "sh", "-c", find, extra=extra)
        assert result.returncode == 0, result.stderr
        left = [path for folder in folders for path in folder.iterdir()]
        assert [path.name.startswith("neutrino-run-") for path in left] == [True, True]
        # The listener's children end by themselves, when it is gone.
        deadline = time.monotonic() + 600
        while any(path.exists() for path in left) and time.monotonic() < deadline:
            result = neutrino(home, "-p", "block_sched", str(bench.host), "plain", extra=extra)
            assert (result.stdout, result.returncode) == ("120\n", 0)
        assert not any(path.exists() for path in left)
    finally:
        shutil.rmtree(runtime)


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A folder of another user in /tmp, with one of root's in it."""
    with tempfile.TemporaryDirectory(prefix="theirs-") as name:
        Path(name).chmod(0o755)
        (Path(name) / "work").mkdir()
        os.chown(name, 54321, 54321)
        yield Path(name)


@needs_root
def test_root_loads_nothing_from_another_users_folders(bench: Bench, theirs: Path) -> None:
    environment = {**os.environ, "HOME": str(theirs), "XDG_RUNTIME_DIR": str(theirs), "TMPDIR": str(theirs)}
    environment.pop("XDG_CACHE_HOME", None)
    show = "for file in $(echo $LD_AUDIT | tr : ' '); do cat $file | tr -c '[:print:]' '\\n' | grep libcuda; done"
    command = [sys.executable, "-m", "neutrino.cli.run", "--driver", str(bench.driver), "-p", "block_sched"]
    result = subprocess.run(
        [*command, "sh", "-c", f"env | grep -e NEUTRINO_ -e LD_AUDIT; {show}"],
        cwd=theirs / "work", env={**environment, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    starts = ("NEUTRINO_", "LD_AUDIT")
    paths = [line for line in result.stdout.splitlines() if line.startswith(starts) or "/hook/" in line]
    assert any("/var/cache/neutrino/" in line for line in paths)
    assert not [line for line in paths if str(theirs) in line]
    assert "traces are in /var/cache/neutrino/private/trace: in the current folder" in result.stderr
    assert [path.name for path in theirs.iterdir()] == ["work"]
    assert list((theirs / "work").iterdir()) == []
    # A folder that the user names is not replaced by another one in silence.
    command += ["--tracedir", str(theirs / "work"), "true"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 125
    assert f"no trace is made there: {theirs} belongs to user 54321" in result.stderr


@needs_root
def test_a_cache_that_others_can_replace_is_not_used(bench: Bench, home: Path) -> None:
    (home / "cache").mkdir()
    (home / "cache").chmod(0o775)
    result = neutrino(home, "-p", "block_sched", "sh", "-c", "echo $NEUTRINO_CACHE $LD_AUDIT")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("/var/cache/neutrino/private ")
    assert str(home / "cache") not in result.stdout
    assert list((home / "cache").iterdir()) == []
    assert neutrino(home, "-p", "block_sched", str(bench.host), "plain").stdout == "120\n"
