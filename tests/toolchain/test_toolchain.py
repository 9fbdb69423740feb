"""Finding, running and reading tools, with stand-ins for the assembler where a release or a fault must be
made up.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from neutrino.errors import ToolError, ToolMissingError
from neutrino.toolchain import location, tool_version
from neutrino.toolchain.assembled import Resources
from neutrino.toolchain.location import find_tool
from neutrino.toolchain.process import run_tool
from neutrino.toolchain.refusal import AssemblyError
from neutrino.toolchain.releases import release_of_ptx
from neutrino.toolchain.tool_choice import assembler_identity, find_assembler, find_assembler_for

KERNEL = """.version 7.5
.target sm_75
.address_size 64
.visible .entry k(.param .u64 p)
{
.reg .u64 %a; .reg .u32 %r;
ld.param.u64 %a, [p];
ld.global.u32 %r, [%a];
st.global.u32 [%a+4], %r;
ret;
}
"""


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("NEUTRINO_PTXAS", raising=False)
    tool_version.release_at.cache_clear()
    yield
    tool_version.release_at.cache_clear()


@pytest.fixture
def assembler():
    try:
        return find_assembler()
    except ToolMissingError as error:
        pytest.skip(f"no ptxas: {error}")


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def assembler_of(folder: Path, release: str) -> Path:
    banner = (
        f"Cuda compilation tools, release {release[:4]}, V{release}\nBuild cuda_{release[:4]}.r/compiler.1_0"
    )
    return script(folder / "ptxas", f"echo started >> {folder}/starts\nprintf '%s\\n' '{banner}'")


@pytest.fixture
def only(tmp_path, monkeypatch):
    """Makes the folders given the only places that are searched."""

    def restrict(*folders: Path) -> None:
        monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
        for name in ("CUDA_HOME", "CUDA_PATH"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(location, "_TOOLKIT", tmp_path / "no-toolkit")
        monkeypatch.setattr(sysconfig, "get_path", lambda scheme: str(tmp_path / "site"))

    return restrict


def test_run_tool_gives_output_and_takes_input():
    done = run_tool(["sh", "-c", "cat; echo err >&2"], input=b"in", timeout=600)
    assert (done.stdout, done.stderr) == (b"in", "err\n")


def test_run_tool_failures_keep_argv_status_and_stderr(tmp_path):
    with pytest.raises(ToolError, match=r"^sh: exit status 3: bad$") as caught:
        run_tool(["sh", "-c", "echo bad >&2; exit 3"], timeout=600)
    assert (caught.value.argv[0], caught.value.status, caught.value.stderr) == ("sh", 3, "bad\n")
    with pytest.raises(ToolMissingError):
        run_tool([tmp_path / "absent"], timeout=600)
    with pytest.raises(ToolError, match=r"no result within 0\.2 s"):
        run_tool(["sleep", "10"], timeout=0.2)
    with pytest.raises(ToolError) as caught:
        run_tool(["sh", "-c", "kill -SEGV $$"], timeout=600)
    assert caught.value.status == -11
    (tmp_path / "text").write_text("")
    with pytest.raises(ToolError, match="could not be started"):
        run_tool([tmp_path / "text"], timeout=600)


def test_the_variable_wins_then_path_then_toolkit_then_wheels(tmp_path, monkeypatch, only):
    only(tmp_path / "path")
    with pytest.raises(ToolMissingError, match="not found; somehow"):
        find_tool("nvdisasm", "somehow")
    places = [
        tmp_path / "site" / "triton" / "backends" / "nvidia" / "bin" / "nvdisasm",
        tmp_path / "site" / "nvidia" / "cu13" / "bin" / "nvdisasm",
        tmp_path / "no-toolkit" / "bin" / "nvdisasm",
    ]
    for place in places:
        assert script(place, "") == find_tool("nvdisasm")
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))
    assert script(tmp_path / "cuda" / "bin" / "nvdisasm", "") == find_tool("nvdisasm")
    assert script(tmp_path / "path" / "nvdisasm", "") == find_tool("nvdisasm")
    monkeypatch.setenv("NEUTRINO_NVDISASM", str(script(tmp_path / "mine", "")))
    assert find_tool("nvdisasm") == tmp_path / "mine"
    monkeypatch.setenv("NEUTRINO_NVDISASM", str(tmp_path / "nothing"))
    with pytest.raises(ToolMissingError, match="NEUTRINO_NVDISASM names"):
        find_tool("nvdisasm")


def test_no_assembler_says_how_to_get_one(tmp_path, only):
    only(tmp_path / "path")
    with pytest.raises(ToolMissingError, match=r'pip install "neutrino-gpu\[cuda\]"'):
        find_assembler(13000)


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (None, (13, 1, 80)),
        (13010, (13, 1, 80)),
        (13020, (13, 1, 80)),
        (13000, (12, 8, 93)),
        (12090, (12, 8, 93)),
        (12080, (12, 8, 93)),
        (12070, (12, 4, 131)),
        (12000, (12, 4, 131)),
    ],
)
def test_the_highest_release_not_newer_than_the_driver(tmp_path, only, driver, expected):
    for release in ("12.4.131", "12.8.93", "13.1.80"):
        assembler_of(tmp_path / release, release)
    only(*(tmp_path / release for release in ("12.8.93", "12.4.131", "13.1.80")))
    assert find_assembler(driver).version == expected


@pytest.mark.parametrize(
    ("toolkit", "arch", "expected"),
    [
        ((13, 1), "sm_90", (13, 1, 80)),
        ((13, 0), "sm_90a", (12, 8, 93)),
        ((12, 4), "sm_80", (12, 4, 131)),
        ((11, 8), "sm_80", (12, 4, 131)),
        (None, "sm_80", (12, 4, 131)),
        ((12, 4), "sm_100a", (12, 8, 93)),
        ((12, 4), "sm_110", (13, 1, 80)),
    ],
)
def test_ahead_of_time_the_newest_not_newer_than_the_toolkit(tmp_path, only, monkeypatch, toolkit, arch, expected):
    for release in ("12.4.131", "12.8.93", "13.1.80"):
        assembler_of(tmp_path / release, release)
    only(*(tmp_path / release for release in ("12.8.93", "12.4.131", "13.1.80")))
    assert find_assembler_for(toolkit, arch).version == expected
    monkeypatch.setenv("NEUTRINO_PTXAS", str(tmp_path / "13.1.80" / "ptxas"))
    assert find_assembler_for(toolkit, arch).version == (13, 1, 80)


@pytest.mark.parametrize(
    ("ptx", "release"), [((8, 4), (12, 4)), ((8, 5), (12, 5)), ((7, 8), (11, 8)), ((9, 0), (13, 0)), ((99, 0), None)]
)
def test_the_release_that_first_took_a_version(ptx, release):
    assert release_of_ptx(ptx) == release


def test_within_a_major_release_a_newer_assembler_will_do(tmp_path, only):
    for release in ("13.1.80", "13.2.51"):
        assembler_of(tmp_path / release, release)
    only(tmp_path / "13.2.51", tmp_path / "13.1.80")
    assert find_assembler(13000).version == (13, 1, 80)


def test_only_newer_majors_are_named(tmp_path, only):
    assembler_of(tmp_path / "new", "13.1.80")
    only(tmp_path / "new")
    with pytest.raises(
        ToolMissingError, match=r"driver is CUDA 12\.4 and only newer is here \(ptxas 13\.1\.80\)"
    ):
        find_assembler(12040)


def test_the_version_is_asked_once_per_file(tmp_path, only):
    path = assembler_of(tmp_path / "a", "13.0.88")
    only(tmp_path / "a")
    starts = tmp_path / "a" / "starts"
    first = assembler_identity(13000)
    assert first == "ptxas 13.0.88 cuda_13.0.r/compiler.1_0"
    tool_version.release_at.cache_clear()
    assert assembler_identity(13000) == first
    assert starts.read_text() == "started\n"
    known = next((tmp_path / "xdg").rglob("assemblers.json"))
    assert stat.S_IMODE(known.stat().st_mode) == 0o600
    tool_version.release_at.cache_clear()
    os.utime(path, ns=(1, 1))
    assembler_identity(13000)
    assert starts.read_text() == "started\nstarted\n"
    # A damaged file of known versions costs a start, nothing else.
    for damage in ("{", "[]", '{"a": 1}', known.read_text().replace("13.0.88", "13.0")):
        known.write_text(damage)
        tool_version.release_at.cache_clear()
        assert assembler_identity(13000) == first


def test_without_a_cache_folder_the_answer_is_the_same(tmp_path, only, monkeypatch):
    assembler_of(tmp_path / "a", "13.0.88")
    only(tmp_path / "a")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert find_assembler().version == (13, 0, 88)


def test_identity_imports_no_patcher():
    code = "import sys; import neutrino.toolchain.tool_choice; print(*sys.modules)"
    root = Path(tool_version.__file__).resolve().parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(root)},
    ).stdout.split()
    assert {"neutrino.toolchain.tool_choice", "neutrino.private_files"} <= set(printed)
    patcher = {"numpy", "neutrino.maker.patcher", "neutrino.ptx", "neutrino.fatbin", "neutrino.twins.cache_entry"}
    assert not patcher & set(printed)


@pytest.mark.parametrize(
    ("release", "accepted"),
    [("11.8.89", (7, 8)), ("12.6.85", (8, 5)), ("12.8.93", (8, 7)), ("13.0.88", (9, 0)), ("14.0.1", (9, 1))],
)
def test_ptx_version_by_release(tmp_path, only, release, accepted):
    assembler_of(tmp_path / "a", release)
    only(tmp_path / "a")
    assert find_assembler().ptx_version == accepted


def test_the_real_assembler_takes_its_ptx_version_and_not_the_next(assembler):
    major, minor = assembler.ptx_version
    assembler.assemble(KERNEL.replace(".version 7.5", f".version {major}.{minor}"), "sm_75")
    if assembler.version[:2] <= (13, 1):
        with pytest.raises(AssemblyError, match="version"):
            assembler.assemble(KERNEL.replace(".version 7.5", f".version {major}.{minor + 1}"), "sm_75")


def test_assemble_tells_registers_spills_and_frame_per_kernel(assembler):
    heavy = KERNEL.split(".visible", maxsplit=1)[0] + "\n".join(
        [
            ".visible .entry heavy(.param .u64 p) .maxntid 1024, 1, 1 .minnctapersm 1",
            "{ .reg .u64 %a; .reg .f64 %d<96>; .local .align 8 .b8 frame[32]; .reg .u64 %l;",
            "ld.param.u64 %a, [p]; mov.u64 %l, frame;",
            *(f"ld.volatile.global.f64 %d{index}, [%a+{8 * index}];" for index in range(96)),
            "st.local.f64 [%l], %d0; ld.volatile.global.u64 %l, [%a]; st.local.f64 [%l], %d1;",
            "ld.local.f64 %d0, [%l];",
            *(f"st.volatile.global.f64 [%a+{8 * index}], %d{95 - index};" for index in range(96)),
            "ret; }",
        ]
    )
    done = assembler.assemble(heavy + KERNEL.split("address_size 64")[1], "sm_75")
    assert set(done.resources) == {"heavy", "k"}
    assert done.resources["k"] == Resources(done.resources["k"].registers, 0, 0, 0)
    spilled = done.resources["heavy"]
    assert spilled.registers <= 64
    assert spilled.spill_stores > 0
    assert spilled.spill_loads > 0
    assert spilled.frame >= 32 + 64 * 8
    assert done.cubin.startswith(b"\x7fELF")


def test_options_reach_the_assembler(assembler):
    text = KERNEL.replace(".reg .u32 %r;", ".reg .u32 %r; .reg .f32 %f<4>;").replace(
        "ret;",
        "ld.global.f32 %f0, [%a]; mul.f32 %f1, %f0, %f0; add.f32 %f1, %f1, %f0; "
        "st.global.f32 [%a], %f1;\nret;",
    )
    assert assembler.assemble(text, "sm_75", "--fmad=false").cubin != assembler.assemble(text, "sm_75").cubin


def test_text_that_is_refused_is_a_verdict(assembler):
    with pytest.raises(AssemblyError) as caught:
        assembler.assemble(KERNEL.replace("ld.global.u32", "ld.globl.u32"), "sm_75")
    assert caught.value.reason.startswith("line 8: ")
    assert "globl" in caught.value.reason
    assert "/tmp" not in caught.value.reason
    with pytest.raises(AssemblyError):
        assembler.assemble(KERNEL, "sm_70")


def test_warnings_are_kept(assembler):
    text = KERNEL.replace(".visible .entry k(.param .u64 p)", ".visible .entry k(.param .u64 p) .maxnreg 4")
    assert any("maxnreg" in line or "register" in line for line in assembler.assemble(text, "sm_75").warnings)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("kill -KILL $$", ToolError),
        ("echo 'what(): std::bad_alloc' >&2; kill -ABRT $$", ToolError),
        ("echo \"ptxas fatal   : Output file 'x' could not be opened\" >&2; exit 255", ToolError),
        ("echo 'ptxas fatal   : Memory allocation failure' >&2; exit 255", ToolError),
        ("exit 127", ToolError),
        ('for last; do :; done; printf "\\177ELF" > "$last"', OSError),
        (":", OSError),
    ],
)
def test_faults_of_the_machine_are_no_verdict(tmp_path, only, body, error):
    banner = "Cuda compilation tools, release 13.0, V13.0.88"
    script(tmp_path / "a" / "ptxas", f'[ "$1" = --version ] && echo "{banner}" && exit 0\n{body}')
    only(tmp_path / "a", Path("/usr/bin"), Path("/bin"))
    with pytest.raises(error) as caught:
        find_assembler().assemble(KERNEL, "sm_75")
    assert not isinstance(caught.value, AssemblyError)


def test_a_crash_is_a_verdict(tmp_path, only):
    banner = "Cuda compilation tools, release 13.0, V13.0.88"
    script(tmp_path / "a" / "ptxas", f'[ "$1" = --version ] && echo "{banner}" && exit 0\nkill -SEGV $$')
    only(tmp_path / "a")
    with pytest.raises(AssemblyError) as caught:
        find_assembler().assemble(KERNEL, "sm_75")
    assert caught.value.reason == "it crashed (SIGSEGV)"


def test_a_truncated_cubin_is_a_full_disk(tmp_path, assembler, monkeypatch):
    small = tmp_path / "small"
    small.mkdir()
    mounted = os.getuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small], capture_output=True, check=False
    ).returncode == 0  # fmt: skip
    if not mounted:
        pytest.skip("mounting a small tmpfs needs root and the capability")
    try:
        monkeypatch.setattr("tempfile.tempdir", str(small))
        with pytest.raises(OSError, match=r"disk full|No space left") as caught:
            assembler.assemble(KERNEL.replace("ret;", "st.global.u32 [%a], %r;\n" * 300 + "ret;"), "sm_75")
        assert caught.value.errno == errno.ENOSPC
        with pytest.raises(OSError, match=r"disk full|No space left"):
            assembler.assemble(KERNEL, "sm_75", "-g")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)
