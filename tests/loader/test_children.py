"""Programs that neutrino starts and that use no GPU: nothing of the hook is in them, and they notice nothing."""

from __future__ import annotations

import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from neutrino.loader import build, install, shared_folder
from neutrino.loader.hookable import why_not_hooked

from .conftest import HERE, Bench, compile_c
from .test_command import environment, neutrino

PROGRAMS = HERE / "programs"
PROBE = ("-p", "block_sched")
MOST_INSTRUCTIONS = 40_000
"""That a start may cost more with the module: about a third of what the start of /bin/true takes."""


def output(*command: str | Path) -> str:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout


def test_the_module_needs_nothing_and_exports_what_the_loader_calls(bench: Bench) -> None:
    module = bench.folder / "lib" / install.MODULE
    tags = output("readelf", "-dW", module)
    assert "SONAME" in tags
    assert "NEEDED" not in tags
    assert "INIT" not in tags
    assert "no relocations" in output("readelf", "-rW", module)
    symbols = [line.split()[1:] for line in output("nm", "-D", module).splitlines()]
    names = ("la_activity", "la_objopen", "la_objsearch", "la_symbind64", "la_version")
    assert symbols == [["T", name] for name in names]


def test_a_child_has_the_module_alone(tmp_path: Path) -> None:
    result = neutrino(tmp_path, *PROBE, "cat", "/proc/self/maps")
    assert result.stderr == ""
    assert install.MODULE in result.stdout
    assert "libcuda" not in result.stdout


def test_a_start_costs_little(tmp_path: Path) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    counted = []
    for prefix in ([], [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", *PROBE]):
        log = tmp_path / "log"
        tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--log-file={log}", "/bin/true"]
        subprocess.run([*prefix, *tool], check=True, cwd=tmp_path,
                       env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")})  # fmt: skip
        (found,) = re.findall(r"I +refs: +([\d,]+)", log.read_text())
        counted.append(int(found.replace(",", "")))
    assert counted[0] < counted[1] <= counted[0] + MOST_INSTRUCTIONS


@pytest.mark.parametrize("sanitizer", ["address", "undefined", "leak", "thread"])
def test_a_program_with_a_sanitizer_starts(tmp_path: Path, sanitizer: str) -> None:
    program = tmp_path / "program"
    source = tmp_path / "program.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("ran"); return 3; }\n')
    command = [*build.compiler(), f"-fsanitize={sanitizer}", str(source), "-o", str(program)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"this compiler has no -fsanitize={sanitizer}")
    extra = {"ASAN_OPTIONS": "", "LSAN_OPTIONS": "detect_leaks=0"}
    result = neutrino(tmp_path, *PROBE, str(program), extra=extra)
    assert (result.stdout, result.stderr, result.returncode) == ("ran\n", "", 3)


def test_a_library_with_fixed_thread_local_storage_has_room(tmp_path: Path) -> None:
    # As much as an allocator's, which programs are linked to or have in LD_PRELOAD.
    fixed_library(tmp_path / "libroom.so", 3072)
    extra = {"LD_PRELOAD": str(tmp_path / "libroom.so")}
    result = neutrino(tmp_path, *PROBE, "env", *(f"{name}={value}" for name, value in extra.items()), "echo", "ran")
    assert (result.stdout, result.stderr, result.returncode) == ("ran\n", "", 0)


ROOM = "glibc.rtld.optional_static_tls"


def fixed_library(path: Path, size: int) -> None:
    """Compile a library with so many bytes of thread-local storage that is of the fixed kind."""
    source = path.with_suffix(".c")
    source.write_text(
        f'__thread char {path.stem}[{size}] __attribute__((tls_model("initial-exec")));\n'
        f"char *where_{path.stem}(void) {{ return {path.stem}; }}\n"
    )
    compile_c(path, "-shared", "-fPIC", str(source))


@pytest.fixture
def roomy(tmp_path: Path) -> Path:
    """A program whose libraries have 40 KiB of fixed thread-local storage; it prints all that it was started with."""
    sizes = {"liba": 24 << 10, "libb": 16 << 10}
    for name, size in sizes.items():
        fixed_library(tmp_path / f"{name}.so", size)
    program = tmp_path / "program"
    libraries = [str(tmp_path / f"{name}.so") for name in sizes]
    compile_c(program, str(PROGRAMS / "roomy.c"), *libraries, f"-Wl,-rpath,{tmp_path}")
    return program


SAID = "NEUTRINO_", "LD_AUDIT="
"""The variables of neutrino itself, which its children have as a matter of course."""


@pytest.mark.parametrize(
    "tunables", [None, "", "glibc.malloc.check=0", f"{ROOM}=1", f"{ROOM}=0x2000:a=b", f"{ROOM}=65536"]
)
def test_a_program_that_needs_room_starts_as_without(tmp_path: Path, roomy: Path, tunables: str | None) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{roomy} of-the-script\n")
    script.chmod(0o755)
    (tmp_path / "link").symlink_to(roomy)
    for name, command in {
        "a path": [str(roomy), "a", "", "c d"],
        "another name": ["bash", "-c", f"exec -a other {roomy} x"],
        "a script": [str(script), "y"],
        "a link, and the search of PATH": ["env", f"PATH={tmp_path}", "link"],
    }.items():
        set_tunables = [] if tunables is None else [f"GLIBC_TUNABLES={tunables}"]
        command = ["sh", "-c", '"$@"', "sh", "env", *set_tunables, "LAST=1", *command]
        plain = subprocess.run(
            command, env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
        )
        probed = neutrino(tmp_path, *PROBE, *command)
        assert (plain.returncode, probed.returncode, probed.stderr) == (7, 7, ""), name
        own = [line for line in probed.stdout.splitlines() if not line.startswith(SAID)]
        assert sorted(own) == sorted(line for line in plain.stdout.splitlines() if not line.startswith(SAID)), name
        assert "NEUTRINO_TUNABLES_BEFORE" not in probed.stdout
        assert f"/{install.MODULE}" in probed.stdout, "its own children could not be probed"


def test_a_program_that_cannot_be_run_anew_says_what_helps(tmp_path: Path, roomy: Path) -> None:
    (loader,) = re.findall(r"interpreter: ([^]]+)", output("readelf", "-lW", roomy))
    start = f"{loader} {roomy}; exit $?"
    result = neutrino(tmp_path, *PROBE, "sh", "-c", start)
    assert result.returncode == 127
    said, *_ = result.stderr.splitlines()
    remedy = re.search(r"GLIBC_TUNABLES=\S+=\d+", said)
    assert remedy, result.stderr
    helped = [
        neutrino(tmp_path, *PROBE, "sh", "-c", f"{remedy[0]} {start}"),
        neutrino(tmp_path, "--follow", "none", *PROBE, "sh", "-c", start),
    ]
    assert [(result.returncode, result.stderr) for result in helped] == [(7, "")] * 2


def test_stacks_of_children_are_as_large_as_without(tmp_path: Path) -> None:
    program = tmp_path / "program"
    compile_c(program, str(PROGRAMS / "small_stacks.c"), "-lpthread")
    plain = int(output(program))
    assert plain > 4096
    probed = neutrino(tmp_path, *PROBE, "sh", "-c", f"{program}; exit $?")
    # glibc's own addition for a module.
    assert (plain - int(probed.stdout) <= 304, probed.returncode) == (True, 0)


def test_the_rust_compiler_starts(tmp_path: Path) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    result = neutrino(tmp_path, *PROBE, "sh", "-c", "rustc --version; exit $?")
    assert (result.stdout, result.stderr, result.returncode) == (output("rustc", "--version"), "", 0)


def test_children_are_not_followed_if_not_wanted(tmp_path: Path) -> None:
    show = 'echo "${LD_AUDIT-none}"; exec cat /proc/self/maps'
    both = 'cat /proc/$$/maps; echo "${LD_AUDIT-none}"; cat /proc/self/maps'
    result = neutrino(tmp_path, "--follow", "none", *PROBE, "sh", "-c", both)
    own, _, child = result.stdout.partition("none\n")
    assert install.MODULE in own
    assert child
    assert install.MODULE not in child
    followed = neutrino(tmp_path, *PROBE, "sh", "-c", show)
    assert install.MODULE in followed.stdout.splitlines()[0]
    # The user's own module stays.
    own_module = tmp_path / "own.so"
    compile_c(own_module, "-shared", "-fPIC", str(PROGRAMS / "module.c"))
    result = neutrino(tmp_path, "--follow", "none", *PROBE, "sh", "-c", show, extra={"LD_AUDIT": str(own_module)})
    assert result.stdout.splitlines()[0] == str(own_module)


def test_a_module_of_the_users_own_stays(bench: Bench, tmp_path: Path) -> None:
    own = tmp_path / "own.so"
    compile_c(own, "-shared", "-fPIC", str(PROGRAMS / "module.c"))
    result = bench.run("plain", tmp_path, extra=install.variables(
        Path(bench.hooked({}, tmp_path)["LD_AUDIT"]), {"LD_AUDIT": str(own)}))  # fmt: skip
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert result.stderr.splitlines()[0] == "asked"
    assert len(list((tmp_path / "trace").iterdir())) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "/m/libneutrino_audit.so"),
        ({"LD_AUDIT": "/a.so:/b.so"}, "/a.so:/b.so:/m/libneutrino_audit.so"),
        ({"LD_AUDIT": "/a.so:/other/hook/0/libneutrino_audit.so:"}, "/a.so:/m/libneutrino_audit.so"),
    ],
)
def test_of_several_hooks_the_last_is_asked(before: Mapping[str, str], after: str) -> None:
    assert install.variables(Path("/m/libneutrino_audit.so"), before)["LD_AUDIT"] == after


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can read, unlike those of the tests."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs as other users")
def test_a_child_of_another_user_says_nothing(bench: Bench, tmp_path: Path, open_folder: Path) -> None:
    program = open_folder / "ways"
    compile_c(program, *(str(PROGRAMS / name) for name in ("ways.c", "program.c")))
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    result = neutrino(tmp_path, *PROBE, *other, "id", "-u")
    assert (result.stdout, result.stderr, result.returncode) == ("65534\n", "", 0)
    # It may not read the hook either, and gets what it would get without.
    command = [*other, str(program), "libcuda.so.1"]
    alone = subprocess.run(command, capture_output=True, text=True, check=False)
    if alone.returncode == 0:
        pytest.skip("this machine has a CUDA driver")
    result = neutrino(tmp_path, *PROBE, *command)
    assert (result.stdout, result.stderr, result.returncode) == (alone.stdout, "", alone.returncode)


def test_the_shared_folder_is_roots_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_folder.is_shared(Path("/usr"))
    # In /tmp, whose entries others may make again after they were removed for their age.
    assert not shared_folder.is_shared(tmp_path)
    assert not shared_folder.is_shared(tmp_path / "missing")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert shared_folder.shared_folder() is None


def test_others_can_read_the_module_and_not_the_hook(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "_BUILT", bench.folder / "lib")
    before = os.umask(0o077)
    try:
        module = install.install_hook(bench.driver, tmp_path / "cache", tmp_path / "shared")
    finally:
        os.umask(before)
    (hook,) = (tmp_path / "cache").rglob("libcuda.so.1")

    def modes(path: Path) -> list[int]:
        return [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, path.parent.parent)]

    assert modes(module) == [0o644, 0o755, 0o755]
    assert modes(hook) == [0o600, 0o700, 0o700]


def test_a_static_command_is_named(bench: Bench, tmp_path: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("ran"); return 4; }\n')
    program = tmp_path / "static"
    if subprocess.run([*build.compiler(), "-static", str(source), "-o", str(program)], check=False).returncode:
        pytest.skip("this machine has no static libc")
    result = neutrino(tmp_path, *PROBE, str(program))
    assert (result.stdout, result.returncode) == ("ran\n", 4)
    assert len(result.stderr.splitlines()) == 1
    assert "statically linked" in result.stderr
    script = tmp_path / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    assert why_not_hooked(script) == "it is statically linked"
    assert why_not_hooked(bench.host) is None
    assert why_not_hooked(Path("/lib64/ld-linux-x86-64.so.2")) is None
    assert why_not_hooked(tmp_path / "missing") is None


def elf(path: Path, *, bits: int = 64, interpreter: bytes = b"/lib64/ld-linux-x86-64.so.2\0") -> Path:
    """The start of an ELF program with one segment, PT_INTERP."""
    header = struct.pack("<16sHHIQQQIHHH", b"\x7fELF" + bytes([bits // 32]), 2, 62, 1, 0, 64, 0, 0, 64, 56, 1)
    segment = struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(interpreter), 0, 1)
    path.write_bytes(header.ljust(64, b"\0") + segment + interpreter)
    return path


def test_programs_that_have_no_such_loader_are_named(tmp_path: Path) -> None:
    assert why_not_hooked(elf(tmp_path / "glibc")) is None
    assert "musl" in (why_not_hooked(elf(tmp_path / "musl", interpreter=b"/lib/ld-musl-x86_64.so.1\0")) or "")
    assert "32-bit" in (why_not_hooked(elf(tmp_path / "short", bits=32)) or "")
    (tmp_path / "cut").write_bytes(elf(tmp_path / "glibc").read_bytes()[:80])
    assert why_not_hooked(tmp_path / "cut") is None
    privileged = elf(tmp_path / "privileged")
    if os.geteuid() == 0:
        os.chown(privileged, 65534, -1)
        privileged.chmod(0o4755)
        assert "set-user-id" in (why_not_hooked(privileged) or "")
