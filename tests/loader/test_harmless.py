"""Ends in signal handlers, cancelled threads and descriptors: a program finds them as without the hook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loader.null_driver import build_driver
from tests.loader.trace_files import Files

PROGRAM = Path(__file__).parent / "programs" / "harmless.c"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, and a driver that does nothing, whose calls return at once."""
    folder = tmp_path_factory.mktemp("harmless")
    build_driver(folder)
    subprocess.run(
        ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-rdynamic",
         str(PROGRAM), "-o", str(folder / "harmless"), "-ldl", "-lpthread"], check=True,
    )  # fmt: skip
    return folder


def run(built: Path, home: Path, *arguments: str, hooked: bool = True, cache: str = "cache") -> tuple[str, int]:
    """What the program prints, and its status. hooked: beneath neutrino."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home / cache), "XDG_RUNTIME_DIR": str(home)}
    command = [str(built / "harmless"), *arguments]
    if hooked:
        command = [
            sys.executable, "-m", "neutrino.cli.run", "-q", "--tracedir", str(home / "trace"), "--driver",
            str(built / "driver" / "libcuda.so.1"), "-p", "block_sched", *command,
        ]  # fmt: skip
    else:
        environment["LD_LIBRARY_PATH"] = str(built / "driver")
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.stderr == ""
    return result.stdout, result.returncode


@pytest.mark.parametrize("where", ["allocates", "loads", "thread"])
def test_exit_in_a_signal_handler(built: Path, tmp_path: Path, where: str) -> None:
    """The thread that ends the process may have been interrupted in malloc, or in the hook, and has locks."""
    assert run(built, tmp_path, "end", where, "8") == ("0 of 8 did not end\n", 0)


def test_no_signal_comes_while_the_hook_is_in_the_dynamic_loader(built: Path, tmp_path: Path) -> None:
    """glibc takes its lock first, then notes whose it is: a handler that calls exit between the two waited for ever."""
    # For each image, where it is and where the call comes from.
    assert run(built, tmp_path, "interrupt") == ("interrupted 0 of 8 calls\n", 0)


@pytest.mark.parametrize("arguments", [("cancel",), ("cancel", "later")], ids=["first-load", "later-load"])
def test_a_cancelled_thread_leaves_no_lock(built: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    plain = run(built, tmp_path, *arguments, hooked=False)
    assert plain == ("the calls returned: 1, then the thread was cancelled: 1\nothers go on\n", 0)
    assert run(built, tmp_path, *arguments) == plain


@pytest.mark.parametrize("is_cached", [False, True], ids=["first-run", "second-run"])
def test_no_descriptor_is_in_the_programs_table(built: Path, tmp_path: Path, is_cached: bool) -> None:
    if is_cached:
        run(built, tmp_path, "watch")
    assert run(built, tmp_path, "watch") == ("descriptors that the program has not opened: 0\n", 0)


def test_a_program_whose_table_of_descriptors_is_full(built: Path, tmp_path: Path) -> None:
    """What the hook opens needs no room there: all is probed, and its threads have their names."""
    output, status = run(built, tmp_path, "fill")
    assert status == 0
    assert output.splitlines() == [f"thread neutrino-{name}" for name in ("drain", "end", "files", "write")]
    assert Files(tmp_path / "trace").counted("count") == {"probed": 6}


@pytest.mark.parametrize("arguments", [("reuse",), ("reuse", "socket")], ids=["file", "socket"])
def test_numbers_that_a_program_closes_are_its_own(built: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert run(built, tmp_path, *arguments) == run(built, tmp_path, *arguments, hooked=False)
