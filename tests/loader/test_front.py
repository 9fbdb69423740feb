"""The ways in which programs get the driver: each finds the hook in front of it, and gets what it would get without."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from .conftest import HERE, IMAGE, Bench, compile_c
from .trace_files import ALL_PROBED, Files

PROGRAMS = HERE / "programs"
SOURCES = (str(PROGRAMS / "ways.c"), str(PROGRAMS / "program.c"))


@pytest.fixture(scope="module")
def built(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the program in all its forms."""
    folder = tmp_path_factory.mktemp("ways")
    driver = ("-Wl,--no-as-needed", f"-L{bench.driver.parent}", "-l:libcuda.so.1")
    beside = ("-Wl,-rpath,$ORIGIN", f"-L{folder}", f"-Wl,-rpath-link,{bench.driver.parent}")
    library = ("-shared", "-fPIC", "-DCALLED")
    compile_c(folder / "plain", *SOURCES)
    compile_c(folder / "exporting", *SOURCES, "-DPOINTERS", "-rdynamic")
    compile_c(folder / "linked", *SOURCES, "-DLINKED", *driver)
    compile_c(folder / "lazy", *SOURCES, "-DLINKED", "-Wl,-z,lazy", *driver)
    for name, flags in {"uses": ("-DLINKED", *driver), "pointers": ("-DPOINTERS",)}.items():
        compile_c(folder / f"lib{name}.so", *SOURCES, *library, *flags)
        compile_c(folder / name, SOURCES[0], "-DCALLER", "-Wl,--no-as-needed", f"-l{name}", *beside)
    return folder


def environments(bench: Bench, home: Path) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Without and with the hook."""
    home.mkdir(exist_ok=True)
    (home / "image").write_bytes(IMAGE)
    bench.run("plain", home)
    for trace in (home / "trace").iterdir():
        subprocess.run(["rm", "-r", str(trace)], check=True)
    plain = bench.environment(home)
    return plain, bench.hooked(plain, home)


def answers(environment: Mapping[str, str], *command: str | Path) -> tuple[str, int]:
    result = subprocess.run(
        [os.fspath(word) for word in command], env=environment, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    said = re.sub(r"neutrino: trace in .*\n", "", result.stderr)
    # Without the hook nothing.
    assert not said or re.fullmatch(ALL_PROBED, said)
    return result.stdout, result.returncode


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("plain", ["libcuda.so.1"]),
        ("plain", ["libcuda.so"]),
        ("plain", ["path", "DRIVER"]),
        ("plain", ["path", "LINK"]),
        ("plain", ["again", "DRIVER"]),
        ("plain", ["global"]),
        ("plain", ["deepbind"]),
        ("plain", ["dlmopen"]),
        ("exporting", ["libcuda.so.1"]),
        ("exporting", ["global"]),
        ("linked", ["libcuda.so.1"]),
        ("linked", ["path", "DRIVER"]),
        ("lazy", ["libcuda.so.1"]),
        ("uses", ["libcuda.so.1"]),
        ("pointers", ["libcuda.so.1"]),
        ("pointers", ["deepbind"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_program_finds_the_hook_and_gets_the_same(
    bench: Bench, built: Path, tmp_path: Path, program: str, how: Sequence[str]
) -> None:
    folder = tmp_path / "links"
    folder.mkdir()
    paths = {"DRIVER": bench.driver, "LINK": folder / "libcuda.so"}
    paths["LINK"].symlink_to(bench.driver)
    words = [os.fspath(paths.get(word, word)) for word in how]
    plain, hooked = environments(bench, tmp_path)
    # The stand-in is installed under one of its names alone.
    path = f"{bench.driver.parent}:{folder}"
    expected = answers({**plain, "LD_LIBRARY_PATH": path}, built / program, *words)
    assert expected[1] == 0, expected
    assert "\n120\n" in expected[0]
    assert answers({**hooked, "LD_LIBRARY_PATH": path}, built / program, *words) == expected
    assert Files(tmp_path / "trace").counted("count_p2") == {"probed": 20}


@pytest.mark.parametrize("has_threads", [False, True], ids=["alone", "with threads"])
def test_a_driver_with_a_libc_of_its_own(bench: Bench, tmp_path: Path, has_threads: bool) -> None:
    """glibc's copies share stacks of threads and the dynamic loader's memory, and know too little of each other."""
    compile_c(tmp_path / "apart", "-rdynamic", str(PROGRAMS / "apart.c"), SOURCES[1])
    compile_c(tmp_path / "storage.so", str(PROGRAMS / "storage.c"), "-shared", "-fPIC")
    words = [tmp_path / "apart", *([tmp_path / "storage.so"] if has_threads else [])]
    plain, hooked = environments(bench, tmp_path)
    expected = answers(plain, *words)
    # The child gets CUDA_ERROR_NOT_INITIALIZED.
    assert expected == (f"120\nsingle: 0\nfreed: {4 if has_threads else 0}\n120\nchild: {3 << 8}\n", 0)
    assert answers(hooked, *words) == expected
    assert Files(tmp_path / "trace").counted("count_p2") == {"probed": 40}


@pytest.mark.parametrize("tool", ["Nsight Compute", None])
def test_a_process_that_calls_the_driver_past_the_hook_says_so(
    bench: Bench, built: Path, tmp_path: Path, tool: str | None
) -> None:
    """Under Nsight Compute 2025.3 the injected library loads the hook, and the program's calls go to the driver."""
    plain, hooked = environments(bench, tmp_path)
    library = tmp_path / "libcuda-injection.so"
    (tmp_path / "empty.c").write_text("int nothing;\n")
    compile_c(library, str(tmp_path / "empty.c"), "-shared", "-fPIC")
    preload = {"LD_PRELOAD": str(library)} if tool else {}
    words = [str(built / "plain"), "around", f"/.{bench.driver}"]

    def run(environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600, check=False)

    expected, found = run({**plain, **preload}), run({**hooked, **preload})
    assert (found.stdout, found.returncode) == (expected.stdout, 0)
    cause = f"{tool} calls the driver in its place: run it without that tool" if tool else (
        "did not call the CUDA driver through Neutrino"
    )  # fmt: skip
    assert re.fullmatch(
        rf"neutrino: nothing was recorded: process \d+ used the GPU, but {re.escape(cause)}\n", found.stderr
    )
    assert run({**hooked, **preload, "NEUTRINO_QUIET": "1"}).stderr == ""
    assert not list((tmp_path / "trace").iterdir())


@pytest.mark.parametrize("state", ["twins", "no twins", "no trace"])
def test_errno_and_dlerror_are_as_without_the_hook(bench: Bench, tmp_path: Path, state: str) -> None:
    program = tmp_path / "errors"
    compile_c(program, str(PROGRAMS / "errors.c"), SOURCES[1])
    plain, hooked = environments(bench, tmp_path)
    if state == "no twins":
        # There is neither a cache nor a helper.
        hooked = {**hooked, "NEUTRINO_CACHE": "/nowhere", "NEUTRINO_SOCKET": "/nowhere/socket"}
    if state == "no trace":
        hooked = {**hooked, "NEUTRINO_TRACEDIR": "/proc/nowhere", "NEUTRINO_QUIET": "1"}
    expected, found = (
        subprocess.run([str(program)], env=environment, capture_output=True, text=True, timeout=600, check=False)
        for environment in (plain, hooked)
    )
    assert "errno 1234" in expected.stdout
    assert found.stdout.splitlines() == expected.stdout.splitlines()
    assert found.returncode == expected.returncode == 0
    if state == "twins":
        assert Files(tmp_path / "trace").counted("count_p2")["probed"] >= 9


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["open", "unshare", "environment"])
def test_a_restricted_program_runs_as_without_the_hook(bench: Bench, tmp_path: Path, what: str, when: str) -> None:
    """when: before or after its first kernels."""
    program = tmp_path / "sandboxed"
    compile_c(program, str(PROGRAMS / "sandboxed.c"), SOURCES[1])
    plain, hooked = environments(bench, tmp_path)
    expected = subprocess.run([str(program), what, when], env=plain, capture_output=True, text=True, check=False)
    assert (expected.returncode, expected.stdout.splitlines()[-1][-2:]) == (0, "40" if when == "before" else "60")
    found = subprocess.run([str(program), what, when], env=hooked, capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == (expected.stdout, expected.returncode)
    if what == "unshare" or (what, when) == ("environment", "after"):
        assert sum(Files(tmp_path / "trace").counted("count_p2").values()) == (40 if when == "before" else 60)
