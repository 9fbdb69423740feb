"""Finding and running the device linker, with stand-ins where a release or a fault must be made up."""

from __future__ import annotations

import errno
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from neutrino.errors import ToolError, ToolMissingError
from neutrino.sass.cubin import read_cubin
from neutrino.toolchain import location, tool_version
from neutrino.toolchain.refusal import AssemblyError
from neutrino.toolchain.tool_choice import find_assembler, find_assembler_for, find_linker, find_linking_tools

HEAD = ".version 7.5\n.target sm_75\n.address_size 64\n"
CALLS = HEAD + """
.extern .func (.param .b32 out) callee(.param .b32 in);
.visible .entry k(.param .u64 p)
{
.reg .u64 %a; .reg .b32 %r;
ld.param.u64 %a, [p];
ld.global.b32 %r, [%a];
{ .param .b32 given; .param .b32 got; st.param.b32 [given], %r; call (got), callee, (given); ld.param.b32 %r, [got]; }
st.global.b32 [%a], %r;
ret;
}
"""
CALLEE = HEAD + """
.visible .func (.param .b32 out) callee(.param .b32 in)
{
.reg .b32 %r;
ld.param.b32 %r, [in];
mul.lo.s32 %r, %r, %r;
st.param.b32 [out], %r;
ret;
}
"""


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("NEUTRINO_PTXAS", raising=False)
    monkeypatch.delenv("NEUTRINO_NVLINK", raising=False)
    tool_version.release_at.cache_clear()
    yield
    tool_version.release_at.cache_clear()


@pytest.fixture
def tools():
    try:
        assembler = find_assembler()
        return assembler, find_linker(assembler)
    except ToolMissingError as error:
        pytest.skip(f"no ptxas with its nvlink: {error}")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Makes stand-ins, each ``(tool, release)`` in a folder of its own; they are the only tools that are found."""

    def make(*made: tuple[str, str], body: str = "exit 1") -> Path:
        folders = []
        for tool, release in made:
            path = tmp_path / release / tool
            path.parent.mkdir(exist_ok=True)
            banner = f"Cuda compilation tools, release {release[:4]}, V{release}"
            path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{banner}" && exit 0\n{body}\n')
            path.chmod(0o755)
            folders.append(str(path.parent))
        monkeypatch.setenv("PATH", os.pathsep.join(folders))
        for name in ("CUDA_HOME", "CUDA_PATH"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(location, "_TOOLKIT", tmp_path / "no-toolkit")
        monkeypatch.setattr(sysconfig, "get_path", lambda scheme: str(tmp_path / "site"))
        return tmp_path

    return make


def test_units_are_linked(tools):
    assembler, linker = tools
    units = [assembler.assemble(text, "sm_75", ("-c",)).cubin for text in (CALLS, CALLEE)]
    linked = read_cubin(linker.link(units, "sm_75"), "linked")
    assert set(linked.kernels) == {"k"}
    assert set(linked.functions) == {"callee"}
    assert linker.version >= assembler.version
    assert linker.version[0] == assembler.version[0]
    assert linker.identity.startswith(linker.name)


def test_what_does_not_go_together_is_a_verdict(tools):
    assembler, linker = tools
    unit = assembler.assemble(CALLS, "sm_75", ("-c",)).cubin
    with pytest.raises(AssemblyError) as caught:
        linker.link([unit], "sm_75")
    assert caught.value.reason == "error   : Undefined reference to 'callee'"
    with pytest.raises(AssemblyError, match="Multiple definition"):
        linker.link([unit, unit], "sm_75")
    with pytest.raises(AssemblyError, match="arch does not match"):
        linker.link([unit], "sm_80")


def test_the_oldest_that_is_not_older_than_the_assembler(folder):
    folder(("ptxas", "12.8.93"), ("nvlink", "12.4.131"), ("nvlink", "12.9.86"), ("nvlink", "12.8.93"),
           ("nvlink", "13.0.88"))  # fmt: skip
    assert find_linker(find_assembler()).version == (12, 8, 93)


@pytest.mark.parametrize(
    ("here", "names"),
    [((), r"needs one of release 12, not older than itself; "),
     ((("nvlink", "12.4.131"), ("nvlink", "13.0.88")), r"and here is nvlink 12\.4\.131, nvlink 13\.0\.88; ")],
)  # fmt: skip
def test_without_a_linker_that_fits_it_is_said_what_there_is(folder, here, names):
    folder(("ptxas", "12.8.93"), *here)
    with pytest.raises(ToolMissingError, match=names):
        find_linker(find_assembler())
    with pytest.raises(ToolMissingError, match=names):
        find_linking_tools((12, 8), "sm_90")


def test_an_assembler_without_its_linker_is_passed_over(folder):
    folder(("ptxas", "12.4.131"), ("ptxas", "12.8.93"), ("ptxas", "13.0.88"), ("nvlink", "13.0.88"))
    assert find_assembler_for((12, 4), "sm_90").version == (12, 4, 131)
    assembler, linker = find_linking_tools((12, 4), "sm_90")
    assert (assembler.version, linker.version) == ((13, 0, 88), (13, 0, 88))


def test_the_variable_names_the_linker(folder, monkeypatch):
    made = folder(("ptxas", "13.0.88"), ("nvlink", "13.0.88"), ("nvlink", "13.1.80"))
    monkeypatch.setenv("NEUTRINO_NVLINK", str(made / "13.1.80" / "nvlink"))
    assert find_linker(find_assembler()).version == (13, 1, 80)
    (made / "13.1.80" / "nvlink").write_text("#!/bin/sh\nexit 1\n")
    tool_version.release_at.cache_clear()
    with pytest.raises(ToolMissingError, match="does not say its version"):
        find_linker(find_assembler())


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("kill -KILL $$", ToolError),
        ("echo 'nvlink fatal   : Internal error: writing file' >&2; exit 1", ToolError),
        ("echo \"nvlink fatal   : Could not open output file '/nowhere'\" >&2; exit 1", ToolError),
        ('for last; do :; done; printf "\\177ELF" > "$last"', OSError),
        ("sleep 10", ToolError),
    ],
)
def test_faults_of_the_machine_are_no_verdict(folder, body, error):
    made = folder(("ptxas", "13.0.88"), ("nvlink", "13.0.88"), body=f"PATH=/usr/bin:/bin\n{body}")
    assert made.is_dir()
    with pytest.raises(error) as caught:
        find_linker(find_assembler()).link([b"x"], "sm_75", timeout=0.5)
    assert not isinstance(caught.value, AssemblyError)


def test_a_crash_is_a_verdict(folder):
    folder(("ptxas", "13.0.88"), ("nvlink", "13.0.88"), body="kill -SEGV $$")
    with pytest.raises(AssemblyError) as caught:
        find_linker(find_assembler()).link([b"x"], "sm_75")
    assert caught.value.reason == "it crashed (SIGSEGV)"


def test_a_full_disk_is_told_as_such(tools, tmp_path, monkeypatch):
    assembler, linker = tools
    units = [assembler.assemble(text, "sm_75", ("-c",)).cubin for text in (CALLS, CALLEE)]
    small = tmp_path / "small"
    small.mkdir()
    size = sum(len(unit) // 4096 + 1 for unit in units) * 4 + 4
    mounted = os.getuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", small], capture_output=True, check=False
    ).returncode == 0  # fmt: skip
    if not mounted:
        pytest.skip("mounting a small tmpfs needs root and the capability")
    try:
        monkeypatch.setattr("tempfile.tempdir", str(small))
        with pytest.raises((ToolError, OSError)) as caught:
            linker.link(units, "sm_75")
        assert not isinstance(caught.value, AssemblyError)
        assert isinstance(caught.value, ToolError) or caught.value.errno == errno.ENOSPC
    finally:
        subprocess.run(["umount", small], check=True)
