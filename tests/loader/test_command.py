"""``neutrino`` from end to end on the embedded device: patcher, assembler, listener and cache are the real ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool

from .conftest import IMAGE, TICKETS, Bench
from .trace_files import ALL_PROBED, Files


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "image").write_bytes(IMAGE)
    return tmp_path


@pytest.fixture
def ptxas() -> Path:
    try:
        return find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))


EMBEDDED = ("--device", "embedded")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOST_IMAGE": str(home / "image"), "XDG_CACHE_HOME": str(home / "cache")}


def neutrino(
    home: Path, *arguments: str, extra: Mapping[str, str] | None = None, device: tuple[str, ...] = EMBEDDED
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "neutrino.cli.run", *device, *arguments]
    return subprocess.run(
        command, env=environment(home) | dict(extra or {}), cwd=home, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip


@pytest.mark.usefixtures("ptxas")
def test_the_second_run_finds_everything_in_the_cache(bench: Bench, home: Path, ptxas: Path) -> None:
    log = home / "ptxas.log"
    logging = home / "ptxas"
    logging.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\nexec "{ptxas}" "$@"\n')
    logging.chmod(0o755)
    extra = {"NEUTRINO_PTXAS": str(logging)}
    for run in ("first", "second"):
        result = neutrino(
            home, "-p", str(TICKETS), "--tracedir", run, str(bench.host), "plain", extra=extra
        )
        assert (result.stdout, result.returncode) == ("120\n", 0), result.stderr
        assert re.fullmatch(rf"neutrino: trace in {home}/{run}/\w+\n{ALL_PROBED}", result.stderr)
        files = Files(home / run)
        assert files.counted("count_p2") == {"probed": 20}
        assert list(files.check_tickets(bench.maps)) == list(range(120))
        image = next(event for event in files.events if event["event"] == "image")
        assert image["cached"] == (run == "second")
        if run == "first":
            assert log.read_text()
            log.unlink()
        else:
            assert not log.exists()
    assert (files.path / "read.py").is_file()
    assert "Tickets" in (files.path / "probe.toml").read_text()
    manifest = json.loads(
        (files.path / "kernel" / str(files.kernels("count_p2")[0]) / "manifest.json").read_text()
    )
    assert manifest["registers"]["twin"] >= manifest["registers"]["original"] > 0


def test_starting_a_command_imports_no_patcher(home: Path) -> None:
    code = "import sys; sys.argv = ['neutrino']; import neutrino.cli.run; print(*sys.modules)"
    names = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "neutrino.run.listener" in names
    assert not {
        "neutrino.maker.patcher",
        "neutrino.ptx.text.module",
        "neutrino.ptx.instrument.twin",
        "neutrino.ptx.instrument.twin_bodies",
        "neutrino.fatbin",
        "numpy",
    } & set(names)


@pytest.mark.usefixtures("ptxas")
def test_a_damaged_entry_is_made_anew(bench: Bench, home: Path) -> None:
    for run in ("first", "second"):
        result = neutrino(home, "-p", "block_sched", "--tracedir", run, str(bench.host), "plain")
        assert (result.stdout, result.returncode) == ("120\n", 0)
        assert Files(home / run).counted("count_p2") == {"probed": 20}
        (entry,) = (home / "cache" / "neutrino").glob("twins/*/*.twins")
        entry.write_bytes(entry.read_bytes()[:-100])


@pytest.mark.usefixtures("ptxas")
def test_selection_leaves_a_kernel_alone(bench: Bench, home: Path) -> None:
    result = neutrino(home, "-p", "block_sched", "--filter", "count", str(bench.host), "plain")
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert Files(home / "trace").counted("count_p2") == {"not-selected": 20}


@pytest.mark.parametrize(
    ("options", "is_requested"),
    [(("--no-wait",), True), (("--when", "launch"), True), (("--hot", "20"), True), (("--hot", "21"), False)],
    ids=str,
)
def test_nobody_waits(bench: Bench, home: Path, options: tuple[str, ...], is_requested: bool) -> None:
    for run in ("first", "second"):
        arguments = ("-p", str(TICKETS), "--tracedir", run, *options)
        result = neutrino(home, *arguments, str(bench.host), "plain")
        assert (result.stdout, result.returncode) == ("120\n", 0), result.stderr
        files = Files(home / run)
        counted = files.counted("count_p2")
        assert sum(counted.values()) == 20
        assert set(counted) <= {"probed", "not-ready"}
        files.check_tickets(bench.maps)
        # Until it is there, in the cache: what was requested is made to its end, also by the very last launch.
        deadline = time.monotonic() + 600
        while is_requested and not list((home / "cache" / "neutrino").glob("twins/*/*.twins")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    if options == ("--no-wait",):
        assert counted == {"probed": 20}
    if not is_requested:
        assert counted == {"not-ready": 20}
        assert not list((home / "cache" / "neutrino").glob("twins/*/*.twins"))


def test_the_options_choose_launches(bench: Bench, home: Path) -> None:
    arguments = ("-p", str(TICKETS), "--launches", "3:12", "--every", "4", "--device", "0", "--duration", "1000")
    result = neutrino(home, *arguments, str(bench.host), "plain", extra={"NEUTRINO_LAUNCHES": "0:1"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert result.stderr.splitlines()[1:] == [
        "neutrino: 2 of 2 launches probed (100 %), 1 of 1 kernels; not chosen: 18 more"
    ]
    files = Files(home / "trace")
    assert files.counted("count_p2") == {"probed": 2, "not-selected": 18}
    assert list(files.check_tickets(bench.maps)) == [*range(24, 30), *range(48, 54)]


def test_no_option_of_an_earlier_run_chooses_launches(bench: Bench, home: Path) -> None:
    extra = {"NEUTRINO_LAUNCHES": "0:1", "NEUTRINO_EVERY": "3", "NEUTRINO_ONLY_DEVICES": "1", "NEUTRINO_DURATION": "1"}
    neutrino(home, "-p", str(TICKETS), str(bench.host), "plain", extra=extra)
    assert Files(home / "trace").counted("count_p2") == {"probed": 20}


def test_without_an_assembler_the_program_runs_and_the_reason_is_kept(bench: Bench, home: Path) -> None:
    broken = home / "ptxas"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    # Not said to be embedded, the device is taken for a GPU, whose twins are assembled.
    extra = bench.environment(home) | {"NEUTRINO_PTXAS": str(broken), "XDG_CACHE_HOME": str(home / "cache")}
    result = neutrino(home, "-p", "block_sched", str(bench.host), "plain", extra=extra, device=())
    assert (result.stdout, result.returncode) == ("120\n", 0)
    files = Files(home / "trace")
    assert files.counted("count_p2") in ({"helper": 20}, {"assembler": 20})
    assert not list((home / "cache").glob("neutrino/twins/*/*.twins"))


def test_the_commands_pid_status_and_output_are_its_own(home: Path) -> None:
    script = "import os, sys; print(os.getpid()); print('err', file=sys.stderr); sys.exit(7)"
    process = subprocess.Popen(
        [sys.executable, "-m", "neutrino.cli.run", *EMBEDDED, "-p", "block_sched", sys.executable, "-c", script],
        env=environment(home),
        cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, err = process.communicate(timeout=600)
    assert (out, err, process.returncode) == (f"{process.pid}\n", "err\n", 7)
    assert not (home / "trace").exists()


def test_a_signal_ends_the_command_as_without_neutrino(home: Path) -> None:
    result = neutrino(home, "-p", "block_sched", "sh", "-c", "kill -TERM $$")
    assert result.returncode == -signal.SIGTERM


def test_signals_that_python_ignores_are_the_commands_own(home: Path) -> None:
    command = ("sh", "-c", "grep SigIgn /proc/self/status")
    # Popen's child has them as they are by default, too.
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    assert neutrino(home, "-p", "block_sched", *command).stdout == alone.stdout
    hooked = f"'{sys.executable}' -m neutrino.cli.run --device embedded -p block_sched"
    result = subprocess.run(
        ["sh", "-c", f"{hooked} sh -c 'yes; kill -l $?' | head -1"],
        capture_output=True, text=True, timeout=600, check=False, cwd=home, env=environment(home),
    )  # fmt: skip
    assert "Broken pipe" not in result.stderr


def test_a_script_that_names_no_interpreter_runs(home: Path) -> None:
    script = home / "script"
    script.write_text('echo "$0 $1"; exit 6\n')
    script.chmod(0o755)
    result = neutrino(home, "-p", "block_sched", str(script), "a b")
    assert (result.stdout, result.returncode) == (f"{script} a b\n", 6)


def test_no_process_and_no_socket_stay_behind(home: Path) -> None:
    runtime = home / "run"
    runtime.mkdir()
    result = neutrino(home, "-p", "block_sched", "true", extra={"XDG_RUNTIME_DIR": str(runtime)})
    assert result.returncode == 0
    deadline = time.monotonic() + 600
    while list(runtime.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(runtime.iterdir()) == []


def test_without_a_driver_the_command_runs_and_one_line_says_so(home: Path) -> None:
    result = neutrino(home, "-p", "block_sched", "sh", "-c", "echo out; exit 5", device=())
    if "no CUDA driver" not in result.stderr:
        pytest.skip("this machine has a CUDA driver")
    assert (result.stdout, result.returncode) == ("out\n", 5)
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 125, "no COMMAND to run"),
        (("-p", "block_sched"), 125, "no COMMAND to run"),
        (("-p", "blok_sched", "true"), 125, "did you mean block_sched?"),
        (("-p", "./missing.toml", "true"), 125, "cannot read the probe file"),
        (("-p", "block_sched", "-k", "/(/", "true"), 125, "-k"),
        (("-p", "block_sched", "--pool", "many", "true"), 125, "is not a size"),
        (("-p", "block_sched", "--pool", "2T", "true"), 125, "is not a size"),
        (("-p", "block_sched", "--pool", "1025G", "true"), 125, "more than the maximum"),
        (("-p", "block_sched", "--launches", "5", "true"), 125, "'5' is not a range of launches such as 10:20"),
        (("-p", "block_sched", "--launches", ":", "true"), 125, "is not a range of launches"),
        (("-p", "block_sched", "--launches", "1:x", "true"), 125, "is not a range of launches"),
        (("-p", "block_sched", "--launches", "-1:4", "true"), 125, "launches"),
        (("-p", "block_sched", "--launches", "5:5", "true"), 125, "'5:5' holds no launch"),
        (("-p", "block_sched", "--launches", "0:0", "true"), 125, "'0:0' holds no launch"),
        (("-p", "block_sched", "--hot", "0", "true"), 125, "is not a number of launches from 1 on"),
        (("-p", "block_sched", "--hot", "3", "--when", "load", "true"), 125, "give one of them"),
        (("-p", "block_sched", "--when", "never", "true"), 125, "--when"),
        (("-p", "block_sched", "--every", "0", "true"), 125, "is not a number of launches from 1 on"),
        (("-p", "block_sched", "--every", "1.5", "true"), 125, "is not a number of launches from 1 on"),
        (("-p", "block_sched", "--launches", "5:10", "--every", "10", "true"), 125, "no launch has a number that both"),
        (("-p", "block_sched", "--duration", "0", "true"), 125, "is not a number of seconds"),
        (("-p", "block_sched", "--duration", "1m", "true"), 125, "is not a number of seconds"),
        (("-p", "block_sched", "--duration", "0.0001", "true"), 125, "is not a number of seconds"),
        (("-p", "block_sched", "--device", "64", "true"), 125, "the number of a device is less than 64"),
        (("-p", "block_sched", "--device", "cuda", "true"), 125, "or a number to probe only that GPU"),
        (("-p", "block_sched", "--device", "embedded:seed=3", "true"), 125, "given more than once"),
        (("-p", "block_sched", "--timeout", "0", "true"), 125, "from 1 to 86399"),
        (("-p", "block_sched", "--timeout", "-3", "true"), 125, "from 1 to 86399"),
        (("-p", "block_sched", "--tracedir", "image/trace", "true"), 125, "image is not a directory"),
        (("-p", "block_sched", "--save-temps", "image", "true"), 125, "nothing can be written there"),
        (("-p", "block_sched", "--driver", "image", "true"), 125, "not a 64-bit ELF library"),
        (("-p", "block_sched", "./image"), 126, "cannot be executed"),
        (("-p", "block_sched", "/"), 126, "cannot be executed"),
        (("-p", "block_sched", "no-such-command"), 127, "command not found"),
    ],
)
def test_nothing_starts_and_one_line_says_why(
    home: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    result = neutrino(home, *arguments, device=() if "--driver" in arguments else EMBEDDED)
    assert (result.stdout, result.returncode) == ("", status)
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_closed_and_full_streams_are_the_commands_own(bench: Bench, home: Path, closing: str) -> None:
    script = f"for d in 0 1 2; do test -e /proc/$$/fd/$d && echo $d >> {home}/open; done; '{bench.host}' plain; exit 7"
    # The shell's first two words run it with and without Neutrino.
    for prefix in ("", f"'{sys.executable}' -m neutrino.cli.run --device embedded -p block_sched "):
        (home / "open").unlink(missing_ok=True)
        run = subprocess.run(
            ["sh", "-c", f"{prefix}sh -c \"$1\" {closing}", "sh", script],
            env=environment(home) if prefix else bench.environment(home),
            cwd=home, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        found = run.returncode, run.stdout, (home / "open").read_text() if (home / "open").exists() else ""
        if not prefix:
            expected = found
    assert found == expected
    assert found[0] == 7
    assert Files(home / "trace").counted("count_p2") == {"probed": 20}


def test_no_message_of_ours_goes_to_the_commands_stdout(home: Path) -> None:
    command = f"'{sys.executable}' -m neutrino.cli.run -p nosuch true 2>&-"
    result = subprocess.run(command, shell=True, cwd=home, capture_output=True, text=True, check=False)
    assert (result.stdout, result.returncode) == ("", 125)


@pytest.mark.parametrize("cache", ["image", "/proc"])
def test_a_cache_that_cannot_be_is_named(home: Path, cache: str) -> None:
    result = neutrino(home, "-p", "block_sched", "true", extra={"XDG_CACHE_HOME": str(home / cache)})
    assert (result.stdout, result.returncode) == ("", 125)
    assert len(result.stderr.splitlines()) == 1
    assert f"{home / cache}/neutrino: the cache cannot be there" in result.stderr


@pytest.mark.usefixtures("ptxas")
def test_a_cache_that_is_filled_serves_without_being_written(bench: Bench, home: Path) -> None:
    arguments = ("-p", "block_sched", str(bench.host), "plain")
    neutrino(home, *arguments)
    before = {path: path.stat().st_mtime_ns for path in (home / "cache").rglob("*")}
    result = neutrino(home, *arguments)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert {path: path.stat().st_mtime_ns for path in (home / "cache").rglob("*")} == before


def test_a_runtime_folder_that_is_relative_is_not_taken(home: Path) -> None:
    (home / "run").mkdir()
    command = ("sh", "-c", "echo $NEUTRINO_SOCKET")
    result = neutrino(home, "-p", "block_sched", *command, extra={"XDG_RUNTIME_DIR": "run"})
    assert Path(result.stdout).is_absolute()
    assert list((home / "run").iterdir()) == []


@pytest.mark.usefixtures("ptxas")
def test_stages_are_kept_though_the_twins_are_cached(bench: Bench, home: Path) -> None:
    for run in ("first", "second"):
        neutrino(home, "-p", "block_sched", str(bench.host), "plain")
        result = neutrino(home, "-p", "block_sched", "--save-temps", run, str(bench.host), "plain")
        assert (result.stdout, result.returncode) == ("120\n", 0)
        assert len(list((home / run).glob("*/probed.ptx"))) == 1
    assert len(list((home / "cache" / "neutrino").glob("twins/*/*.twins"))) == 1


def test_a_typo_in_a_probe_is_shown_with_line_column_and_hint(home: Path) -> None:
    (home / "p.toml").write_text(
        'platform = "cuda"\n[map.M]\ntype = "array"\nlevel = "warp"\nsize = 8\ncap = 1\ndata = { start = "u64" }\n'
        '[probe.a]\nposition = "kernel"\nlevel = "warp"\n'
        'before = """\n.reg .u64 %start;\nmov.u64 %strt, %clock64;\nSAVE [ M ] { %start };\n"""\n'
    )
    result = neutrino(home, "-p", "./p.toml", "sh", "-c", "echo started")
    assert (result.stdout, result.returncode) == ("", 125)
    assert "p.toml:13:9" in result.stderr
    assert "%start" in result.stderr
