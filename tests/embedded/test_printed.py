"""What kernels print reaches the program's standard output, when and as a driver writes it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from neutrino.emulator import build
from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool

from .conftest import HERE, ROOT, Bench

IMAGE = {"HOST_IMAGE": str(HERE / "prints.ptx")}
MIXED = (
    "before\n"
    + "".join(f"launch {launch} block {block}\n" for launch in range(3) for block in range(4))
    + "between\nlaunch 3 block 0\nlaunch 3 block 1\ndone\n"
)


def test_it_is_written_at_the_next_wait_of_every_kind_and_not_before(bench: Bench) -> None:
    result = bench.run("prints", "waits", extra=IMAGE, strict=1)
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)


def test_it_stands_between_the_programs_own_lines(bench: Bench) -> None:
    result = bench.run("prints", "mixed", extra=IMAGE, strict=1)
    assert (result.stdout, result.stderr, result.returncode) == (MIXED, "", 0)


def test_what_a_kernel_printed_before_it_faulted_is_written(bench: Bench) -> None:
    result = bench.run("prints", "fault", extra=IMAGE, strict=1)
    assert (result.stdout, result.returncode) == ("launch 1 block 0\ndone\n", 0)
    (line,) = result.stderr.splitlines()
    assert "trap" in line


def test_the_latest_is_kept_up_to_the_limit(bench: Bench) -> None:
    result = bench.run("prints", "limit", extra=IMAGE, strict=1)
    kept = "".join(f"launch {launch} block 0\n" for launch in range(5))[-36:]
    assert (result.stdout, result.returncode) == (kept + "done\n", 0)


def test_a_program_that_has_closed_its_output_gets_none(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("prints", "closed", str(tmp_path / "other"), extra=IMAGE, strict=1)
    assert (result.stdout, result.stderr, result.returncode) == ("", "", 0)


def test_the_probe_changes_nothing_of_it(bench: Bench, tmp_path: Path) -> None:
    try:
        find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))
    # The stand-in of these tests, whichever was installed.
    code = (
        "import pathlib, runpy; from neutrino.loader import embedded_driver; "
        f"embedded_driver._LIBRARY = pathlib.Path({str(bench.folder / build.LIBRARY)!r}); "
        "runpy.run_module('neutrino.cli.run', run_name='__main__')"
    )
    command = [sys.executable, "-c", code, "--device", "embedded", "-p", "block_sched"]
    environment: Mapping[str, str] = {**os.environ, **IMAGE, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, "--tracedir", str(tmp_path / "trace"), str(bench.folder / "prints"), "mixed"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (result.stdout, result.returncode) == (MIXED, 0), result.stderr
    (trace,) = (tmp_path / "trace").iterdir()
    # It was probed indeed.
    assert '"probed"' in (trace / "events.jsonl").read_text()
