"""The stub that patched libraries name: recording without the ``neutrino`` command, and nothing where nobody asks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.abi.launches import LaunchState
from neutrino.patched_files.attach import attach
from neutrino.tracing import Trace

from .conftest import IMAGE, Bench, compile_c, second
from .patched import PROGRAMS, Programs, section_of
from .trace_files import ALL_PROBED, Files

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the stub records on x86-64 alone")


@pytest.fixture(scope="module")
def programs(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    made = Programs(bench, tmp_path_factory.mktemp("patched"))
    made.library("one", section_of())
    made.library("two", section_of(second(IMAGE)), image=second(IMAGE))
    return made


@pytest.fixture(scope="module")
def one(programs: Programs) -> Path:
    return programs.folder / "one.so"


@pytest.fixture(scope="module")
def two(programs: Programs) -> Path:
    return programs.folder / "two.so"


def check(programs: Programs, trace: Path, launches: int) -> Files:
    files = Files(trace)
    assert files.counted("count_p2") == {"probed": launches}
    assert len(files.check_tickets(programs.bench.maps)) == 6 * launches
    assert files.header["ended"] == 1
    return files


def test_a_library_attached_by_the_patcher_records(programs: Programs, tmp_path: Path) -> None:
    plain = programs.library("to-patch", None)
    patched = tmp_path / "patched.so"
    attach(plain, patched, [section_of()], str(programs.stub))
    result = programs.run(tmp_path, programs.user, f"+{patched}")
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert re.fullmatch(rf"neutrino: trace in {tmp_path}/trace/\w+\n{ALL_PROBED}", result.stderr)
    files = check(programs, tmp_path / "trace", 20)
    assert (files.path / "read.py").is_file()
    assert Trace(files.path).complete


@pytest.mark.parametrize("way", ["stub", "nothing", "command"])
def test_a_patched_library_in_a_namespace_of_its_own(programs: Programs, tmp_path: Path, way: str) -> None:
    plain = programs.library("to-patch", None)
    patched = tmp_path / "patched.so"
    attach(plain, patched, [section_of()], str(programs.stub))
    extra = {"NEUTRINO_TRACEDIR": ""} if way == "nothing" else {}
    for library in (plain, patched):
        steps = [f"!{library}", f"!{library}"]
        result = programs.run(tmp_path, programs.user, *steps, hook=way == "command", extra=extra)
        assert (result.stdout, result.returncode) == ("120\nclosed: 0\n120\nclosed: 0\n", 0), result.stderr


def test_without_a_wish_nothing_happens(programs: Programs, tmp_path: Path, one: Path) -> None:
    extra = {"NEUTRINO_TRACEDIR": "", "LD_DEBUG": "bindings"}
    result = programs.run(tmp_path, programs.user, f"+{one}", extra=extra)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert list(tmp_path.iterdir()) == []
    bound = re.findall(r"binding file \S*/libneutrino_stub\.so \S+ to \S+ \S+ normal symbol `(\w+)'", result.stderr)
    # All of its functions are looked up when it is loaded, which shows that it was.
    assert "dlopen" in bound
    assert "libneutrino_late" not in result.stderr
    assert not re.findall(r"to \S*/libneutrino_stub\.so", result.stderr)


@pytest.mark.parametrize("reset", ["early", "late"])
def test_a_context_older_than_the_hook_that_is_reset(
    programs: Programs, tmp_path: Path, one: Path, reset: str
) -> None:
    program = programs.compile("renewed", f"-I{PROGRAMS}", str(PROGRAMS / "program.c"))
    result = programs.run(tmp_path, program, one, reset)
    assert (result.stdout, result.returncode) == ("120\nat the same address\n120\n0 bytes changed\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 40}
    # What the hook does not see it cannot drain before.
    lost = int((files.launches["state"] == LaunchState.LOST).sum())
    assert lost == 0 or (reset == "early" and lost <= 20)
    assert len(files.check_tickets(programs.bench.maps)) == 6 * (40 - lost)


@pytest.mark.parametrize("first", ["", "driver", "folder"])
def test_two_libraries_one_after_the_other(
    programs: Programs, tmp_path: Path, one: Path, two: Path, first: str
) -> None:
    steps = [first, f"+{one}", f"+{two}", f"-{one}", f"={two}", f"+{one}"]
    result = programs.run(tmp_path, programs.user, *steps)
    assert (result.stdout, result.returncode) == ("120\n120\n240\n120\n", 0)
    check(programs, tmp_path / "trace", 80)


def test_libraries_that_come_and_go_in_threads(any_bench: Bench, tmp_path: Path) -> None:
    if any_bench.sanitizer == "thread":
        # With and without the stub: each dlclose frees what another thread's dlopen allocated.
        pytest.skip("ThreadSanitizer does not know the dynamic loader's lock")
    programs = Programs(any_bench, tmp_path)
    one = programs.library("one", section_of())
    two = programs.library("two", section_of(second(IMAGE)), image=second(IMAGE))
    neighbour = programs.compile("neighbour.so", "-shared", "-fPIC", "-DNUMBER=1", source="neighbour.c")
    result = programs.run(tmp_path, programs.user, f"+{one}", f"@{neighbour}", f"+{two}", f"-{one}", f"+{one}")
    assert (result.stdout, result.returncode) == ("120\n120\n120\n", 0)
    check(programs, tmp_path / "trace", 60)


@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_a_program_linked_with_the_library_and_the_driver(programs: Programs, tmp_path: Path, binding: str) -> None:
    library = programs.library(
        f"linked-{binding}", section_of(), "-Wl,-z,relro", f"-Wl,-z,{binding}", "-Wl,--no-as-needed",
        f"-L{programs.bench.driver.parent}", "-l:libcuda.so.1", sources=("linked.c",),
    )  # fmt: skip
    program = programs.compile(
        f"started-{binding}", "-Wl,--no-as-needed", str(library),
        f"-Wl,-rpath-link,{programs.bench.driver.parent}", source="started.c",
    )  # fmt: skip
    result = programs.run(tmp_path, program)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    check(programs, tmp_path / "trace", 20)


@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_a_program_that_takes_the_loaders_addresses(
    programs: Programs, tmp_path: Path, one: Path, two: Path, binding: str
) -> None:
    program = programs.compile(
        f"addresses-{binding}", "-fno-pie", "-no-pie", f"-Wl,-z,{binding}",
        str(Path(__file__).parent / "programs" / "addresses.c"), source="user.c",
    )  # fmt: skip
    table = subprocess.run(["readelf", "--dyn-syms", "-W", str(program)], capture_output=True, text=True, check=True)
    assert re.search(r" 0*[1-9a-f]\w* +0 FUNC +GLOBAL +DEFAULT +UND dlsym", table.stdout)
    result = programs.run(tmp_path, program, f"+{one}", f"+{two}")
    assert (result.stdout, result.returncode) == ("120\n120\n", 0)
    check(programs, tmp_path / "trace", 40)


def test_kernels_that_run_while_the_library_is_loaded(programs: Programs, tmp_path: Path) -> None:
    library = programs.library("eager", section_of(), "-DAT_LOADING")
    result = programs.run(tmp_path, programs.user, f"+{library}")
    assert (result.stdout, result.returncode) == ("at loading: 120\n240\n", 0)
    check(programs, tmp_path / "trace", 40)


def test_python_loads_two_libraries(programs: Programs, tmp_path: Path, one: Path, two: Path) -> None:
    script = (
        "import ctypes, sys\n"
        "for path in sys.argv[1:]:\n"
        "    work = ctypes.CDLL(path).patched_work\n"
        "    work.restype = ctypes.c_uint64\n"
        "    print(work(20))\n"
        "cuda = ctypes.CDLL('libcuda.so.1')\n"
        "version = ctypes.c_int()\n"
        "assert cuda.cuDriverGetVersion(ctypes.byref(version)) == 0\n"
        "assert not hasattr(cuda, 'cuNobody')\n"
    )
    result = programs.run(tmp_path, sys.executable, "-c", script, one, two)
    assert (result.stdout, result.returncode) == ("120\n120\n", 0), result.stderr
    check(programs, tmp_path / "trace", 40)


def test_a_child_passes_through_and_one_that_begins_records(
    programs: Programs, tmp_path: Path, one: Path, two: Path
) -> None:
    result = programs.run(tmp_path, programs.user, f"?{one}", "fork", f"+{one}")
    assert (result.stdout, result.returncode) == ("120\n", 0)
    check(programs, tmp_path / "trace", 20)


@pytest.mark.parametrize("other", ["hook", "hook, not loaded yet", "copy"])
def test_of_two_hooks_one_records(programs: Programs, tmp_path: Path, one: Path, other: str) -> None:
    # In front of the driver the hook is loaded when the program asks for that.
    steps = ["driver", f"+{one}"] if other == "hook" else [f"+{one}"]
    if other == "copy":
        copy = tmp_path / programs.stub.name
        shutil.copy(programs.stub, copy)
        shutil.copy(programs.stub.with_name("libneutrino_late.so"), tmp_path)
        steps.append(f"+{programs.library('tied-to-copy', section_of(second(IMAGE)), image=second(IMAGE), stub=copy)}")
    result = programs.run(tmp_path, programs.user, *steps, hook=other != "copy")
    count = 2 if other == "copy" else 1
    assert (result.stdout, result.returncode) == ("120\n" * count, 0)
    assert f"\nneutrino: {20 * count} of {20 * count} launches probed" in result.stderr
    assert len(result.stderr.splitlines()) == 2
    check(programs, tmp_path / "trace", 20 * count)


def test_the_trace_may_be_relative_and_need_not_be_possible(programs: Programs, tmp_path: Path, one: Path) -> None:
    folder = tmp_path / "where"
    folder.mkdir()
    command = ["env", "-C", str(folder), str(programs.user), f"?{one}", "folder", f"+{one}"]
    result = programs.run(tmp_path, *command, extra={"NEUTRINO_TRACEDIR": "here"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    check(programs, folder / "here", 20)
    result = programs.run(tmp_path, *command, extra={"NEUTRINO_TRACEDIR": "/proc/no/such"})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert "no trace directory could be made" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_a_driver_the_program_is_told_what_it_would_be(programs: Programs, tmp_path: Path, one: Path) -> None:
    answers = []
    for folder in (str(tmp_path / "trace"), ""):
        extra = {"NEUTRINO_TRACEDIR": folder, "LD_LIBRARY_PATH": ""}
        result = programs.run(tmp_path, programs.user, f"+{one}", extra=extra)
        answers.append((result.stdout, result.stderr, result.returncode))
    if answers[1][2] == 0:
        pytest.skip("this machine has a CUDA driver")
    assert answers[0] == answers[1] == ("no driver\n", "", 7)
    assert not (tmp_path / "trace").exists()


def _runtime(programs: Programs) -> tuple[Path, Path, dict[str, str]]:
    """The runtime, a patched library that uses it, and the environment in which they are found."""
    runtime = programs.folder / "libruntime.so"
    if not runtime.exists():
        compile_c(runtime, "-shared", "-fPIC", *(str(Path(__file__).parent / "programs" / name)
                  for name in ("runtime.c", "program.c")))  # fmt: skip
    library = programs.library("shared", section_of(), "-Wl,--no-as-needed", str(runtime), sources=("patched.c",))
    return runtime, library, {"LD_LIBRARY_PATH": f"{programs.bench.driver.parent}:{programs.folder}"}


@pytest.mark.parametrize("first", ["runtime", "library"])
def test_a_runtime_that_has_looked_the_driver_up(programs: Programs, tmp_path: Path, first: str) -> None:
    runtime, library, extra = _runtime(programs)
    order = (f"*{runtime}", f"+{library}") if first == "runtime" else (f"?{library}", f"*{runtime}", f"+{library}")
    result = programs.run(tmp_path, programs.user, *order, extra=extra)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    check(programs, tmp_path / "trace", 20)


@pytest.mark.parametrize("quiet", ["", "1"])
def test_what_was_looked_up_before_is_named(programs: Programs, tmp_path: Path, quiet: str) -> None:
    runtime, library, extra = _runtime(programs)
    extra |= {"NEUTRINO_QUIET": quiet, "READ_ONLY": "1"}
    result = programs.run(tmp_path, programs.user, f"*{runtime}", f"+{library}", extra=extra)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    (note,) = Trace(Files(tmp_path / "trace").path).notes
    assert str(library) in note
    assert "looked up before" in note
    said = result.stderr.splitlines()
    assert len(said) == (0 if quiet else 3)
    assert quiet or f"nothing of {library} was recorded" in said[0]
    assert quiet or said[2] == "neutrino: nothing was probed: no launch of a kernel was seen"


@pytest.mark.parametrize("linking", ["now", "lazy", "executable", "addresses"])
def test_the_dynamic_loader_answers_as_without_the_stub(
    programs: Programs, tmp_path: Path, one: Path, linking: str
) -> None:
    for name, number in (("third", 3), ("second", 2), ("first", 1)):
        needed = ["-Wl,--no-as-needed", str(tmp_path / "second.so")] if name == "first" else []
        compile_c(tmp_path / f"{name}.so", "-shared", "-fPIC", f"-DNUMBER={number}", "-Wl,-rpath,$ORIGIN",
                  str(Path(__file__).parent / "programs" / "neighbour.c"), *needed)  # fmt: skip
    sources = Path(__file__).parent / "programs"
    flags = {"now": ["-Wl,-z,now", "-Wl,-z,relro"], "lazy": ["-Wl,-z,lazy", "-Wl,-z,relro"],
             "executable": ["-no-pie", "-Wl,-z,norelro"],
             "addresses": ["-fno-pie", "-no-pie", "-Wl,-z,lazy", str(sources / "addresses.c")]}[linking]  # fmt: skip
    asking = tmp_path / "asking"
    compile_c(asking, *flags, str(sources / "asking.c"))
    answers = []
    for folder in (str(tmp_path / "trace"), ""):
        result = programs.run(tmp_path, asking, one, tmp_path, extra={"NEUTRINO_TRACEDIR": folder})
        assert result.returncode == 0, result.stdout
        assert "next of the first: 2\nbeside it: 3\n" in result.stdout
        answers.append(result.stdout)
    assert answers[0] == answers[1]
    assert not (tmp_path / "trace").exists()


def test_a_stub_that_was_not_relocated_returns_at_once(programs: Programs, tmp_path: Path) -> None:
    # glibc before 2.32 calls the start of a dlopened library's DT_AUXILIARY object without having relocated it.
    tags = subprocess.run(["readelf", "-dW", str(programs.stub)], capture_output=True, text=True, check=True).stdout
    assert "INIT_ARRAY" not in tags
    assert "FINI" not in tags
    result = programs.run(tmp_path, programs.compile("unrelocated"), programs.stub)
    assert (result.stdout, result.returncode) == ("returned\n", 0)


def test_the_stub_needs_nothing(programs: Programs) -> None:
    # What it lacked where a patched library is used would make loading that library fail.
    tags = subprocess.run(["readelf", "-dVW", str(programs.stub)], capture_output=True, text=True, check=True).stdout
    assert "SONAME" in tags
    assert "NEEDED" not in tags
    assert "VERNEED" not in tags
    symbols = subprocess.run(["nm", "-D", str(programs.stub)], capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in symbols.splitlines()} == {"w"}


@pytest.mark.parametrize("lacks", ["the hook", "a version", "a library"])
def test_a_hook_that_cannot_be_loaded_is_not_there(programs: Programs, tmp_path: Path, lacks: str) -> None:
    stub, late = tmp_path / programs.stub.name, tmp_path / "libneutrino_late.so"
    shutil.copy(programs.stub, stub)
    if lacks != "the hook":
        data = programs.stub.with_name(late.name).read_bytes()
        # The last of glibc's versions by name and hash, or the SONAME that they are of.
        needed = {"a version": b"GLIBC_2.2.5\0", "a library": b"libc.so.6\0"}[lacks]
        assert needed in data
        late.write_bytes(data.replace(needed, b"X" + needed[1:]))
    library = programs.library(f"lacking-{len(lacks)}", section_of(), stub=stub)
    result = programs.run(tmp_path, programs.user, f"+{library}", f"={library}")
    assert (result.stdout, result.stderr, result.returncode) == ("120\n240\n", "", 0)
    assert not (tmp_path / "trace").exists()
