"""Twins of machine code in a program: made when it obtains a kernel, in front of a driver that does nothing.

The machine code is nvcc's, without PTX or with PTX for another architecture; nvdisasm and the checker judge the twins.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neutrino.abi.requests import OF_KEPT_KERNEL, OF_KERNEL
from neutrino.device.machine_code import PROVEN
from neutrino.sass.twin.checking import check_cubin
from neutrino.sass.twin.cutting import Cutter
from neutrino.tracing import Trace, find_traces
from tests.sass_twin.listing import instructions, tool

from .listeners import MAKE, MAKE_AHEAD, TEXT, listener
from .null_driver import BUILT, PROGRAMS, build_driver, compile_c, hooked_environment, plain_environment

SOURCE = """
template <typename T, int N> __global__ void scale(T *x)
{
    T v = x[threadIdx.x];
    for (int i = 0; i < N; i++)
        v = v * v + T(i);
    x[threadIdx.x] = v;
}
#define SCALE(T, N) template __global__ void scale<T, N>(T *);
SCALE(float, 1) SCALE(float, 2) SCALE(float, 3) SCALE(double, 1) SCALE(double, 2) SCALE(int, 5) SCALE(long long, 7)
__device__ int counter;
extern "C" __global__ void counted(int *x) { *x = atomicAdd(&counter, 1); }
extern "C" __global__ void shared(float *x)
{
    __shared__ float kept[64];
    kept[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (kept[63 - threadIdx.x] > 0)
        return;
    x[threadIdx.x] = kept[63 - threadIdx.x];
}
"""
_ADDED = re.compile(r"(?:@!?P\d )?IMAD\.WIDE\.U32 R(\d+), R\d+, 0x[0-9a-f]+, R\1$")
SCALES = tuple(f"_Z5scaleI{code}EvPT_" for code in ("fLi1E", "fLi2E", "fLi3E", "dLi1E", "dLi2E", "iLi5E", "xLi7E"))
PROBED = (*SCALES, "shared")
CODE, VARIANT, OWN = "code", "variant", "own"
_OPTIONS = {
    CODE: ("-arch=compute_90", "-code=sm_90"),
    VARIANT: ("-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_120,code=compute_120"),
    OWN: ("-gencode=arch=compute_90,code=[sm_90,compute_90]",),
}  # fmt: skip
NO_VARIABLE = "of its machine code no twin is made: uses the variable counter"


@dataclass
class Ran:
    """What a run has left: the events of images and kernels, launches by kernel and reason, and its terminal."""

    images: list[dict[str, Any]]
    kernels: dict[str, dict[str, Any]]
    counted: dict[str, dict[str, int]]
    folder: Path
    stderr: str

    @property
    def reasons(self) -> dict[str, str]:
        """Why each kernel has no twin: the reason's word, and the detail."""
        return {name: f"{row['reason']}: {row['detail']}".rstrip(": ") for name, row in self.kernels.items()}

    def file(self, name: str, file: str) -> Path:
        """A file that the trace has of a kernel."""
        return self.folder / "kernel" / str(self.kernels[name]["id"]) / file


class Bench:
    """The driver, the program, and the images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = build_driver(folder)
        (folder / "kernels.cu").write_text(SOURCE)
        for name, options in _OPTIONS.items():
            command = [tool("nvcc"), "-fatbin", *options, "kernels.cu", "-o", f"{name}.fatbin"]
            subprocess.run(command, cwd=folder, check=True)
        command = [tool("nvcc"), "-cubin", "-arch=sm_90", "kernels.cu", "-o", "kernels.cubin"]
        subprocess.run(command, cwd=folder, check=True)
        linked = (f"-L{self.driver.parent}", "-Wl,--no-as-needed", "-l:libcuda.so.1")
        for name, flags in {"coded": (), "constant": (f'-DCONSTANT="{folder / "code.fatbin"}"',)}.items():
            compile_c(PROGRAMS / "coded.c", folder / name, *flags, *linked)

    def run(
        self, home: Path, way: str, image: str, *names: str, mode: str = "unproven",
        probes: Sequence[str] = ("block_sched",), options: Sequence[str] = (), **variables: str,
    ) -> Ran:  # fmt: skip
        """Run the program without the hook and with it; its output must be the same."""
        program = self.folder / ("constant" if way == "constant" else "coded")
        command = [str(program), way, str(self.folder / image), *names]
        home.mkdir(exist_ok=True, mode=0o700)
        base = {
            "PATH": os.environ["PATH"], "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"),
            **plain_environment(self.driver), **variables,
        }  # fmt: skip
        plain = subprocess.run(command, env=base, capture_output=True, text=True, check=False)
        assert plain.returncode == 0, plain.stdout
        traces = home / "traces"
        shutil.rmtree(traces, ignore_errors=True)
        chosen = [word for probe in probes for word in ("-p", probe)]
        hooked = subprocess.run(
            [
                sys.executable, "-m", "neutrino", *chosen, "--machine-code", mode, "--driver", str(self.driver),
                "--tracedir", str(traces), *options, *command,
            ],
            env=base, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (hooked.stdout, hooked.returncode) == (plain.stdout, 0), hooked.stderr
        (path,) = find_traces(traces)
        events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
        counted = {
            kernel.name: {reason.word: count for reason, count in kernel.counters.items()}
            for kernel in Trace(path).kernels
        }
        images = [event for event in events if event["event"] == "image"]
        kernels = {event["name"]: event for event in events if event["event"] == "kernel"}
        return Ran(images, kernels, counted, path, hooked.stderr)


@pytest.fixture(scope="module")
def bench(ptxas: None, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("coded"))


def check_twins(bench: Bench, ran: Ran, names: Sequence[str], folder: Path) -> None:
    """The kernels ran twins of machine code, which are what the checker and nvdisasm take for such."""
    cubin = (bench.folder / "kernels.cubin").read_bytes()
    for name in names:
        assert ran.counted[name] == {"probed": 2}
        manifest = json.loads(ran.file(name, "manifest.json").read_text())
        assert manifest["made_of"] == "machine code"
        assert {site["tracepoint"] for site in manifest["sites"]} == {"kernel"}
        twin = ran.file(name, "twin.cubin").read_bytes()
        original = Cutter(cubin, "cubin").cut(name)
        assert check_cubin(original, twin, name, "cubin") == []
        before, after = instructions(original, name, folder), instructions(twin, name, folder)
        # An EXIT that is executed became a branch, and its trampoline ends with it.
        assert sum("CS2R" in line for line in after.values()) >= sum("CS2R" in line for line in before.values()) + 2
        assert re.search(r"\bBRA\b", after[0])


@pytest.mark.parametrize(
    ("way", "image"),
    [("module", "kernels.cubin"), ("constant", "code.fatbin"), ("library", "variant.fatbin")],
)
def test_kernels_of_machine_code_get_twins(bench: Bench, tmp_path: Path, way: str, image: str) -> None:
    """One by one, from memory that the program has written over or that nobody can; others are named."""
    ran = bench.run(tmp_path / "home", way, image, *PROBED, "counted")
    assert ran.reasons == {**dict.fromkeys(PROBED, "probed"), "counted": f"unsupported: {NO_VARIABLE}"}
    assert ran.counted["counted"] == {"unsupported": 2}
    check_twins(bench, ran, PROBED, tmp_path)
    own = [event for event in ran.images if event.get("twins") == "kernel"]
    assert len(own) == len(PROBED) + 1


def test_ptx_of_their_own_is_taken_first(bench: Bench, tmp_path: Path) -> None:
    ran = bench.run(tmp_path / "home", "library", "own.fatbin", "shared", "counted")
    assert ran.reasons == {"shared": "probed", "counted": "probed"}
    assert "made_of" not in json.loads(ran.file("shared", "manifest.json").read_text())
    assert [event.get("twins") for event in ran.images] == [None]


def test_only_takes_no_ptx(bench: Bench, tmp_path: Path) -> None:
    ran = bench.run(tmp_path / "home", "module", "own.fatbin", *PROBED, "counted", mode="only")
    assert ran.reasons["counted"] == f"unsupported: {NO_VARIABLE}"
    check_twins(bench, ran, PROBED, tmp_path)


@pytest.mark.parametrize(("mode", "probe"), [("off", "block_sched"), ("auto", "block_sched"), ("auto", "dmat")])
def test_without_the_option_they_run_as_they_are(bench: Bench, tmp_path: Path, mode: str, probe: str) -> None:
    """auto is as off for architectures and with probes of which no GPU has shown twins; else as unproven."""
    ran = bench.run(tmp_path / "home", "module", "code.fatbin", "shared", "counted", mode=mode, probes=(probe,))
    if mode == "auto" and probe in PROVEN.get("sm_90", ()):
        assert ran.reasons == {"shared": "probed", "counted": f"unsupported: {NO_VARIABLE}"}
        check_twins(bench, ran, ["shared"], tmp_path)
        return
    assert ran.reasons == dict.fromkeys(("shared", "counted"), "no-ptx")
    assert ran.counted == {"shared": {"no-ptx": 2}, "counted": {"no-ptx": 2}}


def test_what_the_option_cannot_do_is_said(bench: Bench, tmp_path: Path) -> None:
    ran = bench.run(tmp_path / "home", "module", "code.fatbin", "shared", CUDA_FORCE_PTX_JIT="1")
    assert ran.reasons == {"shared": "no-ptx"}
    said = "--machine-code unproven: CUDA_FORCE_PTX_JIT is set, so no twins are made of machine code"
    assert said in ran.stderr


def test_accesses_are_sites_of_probes_that_add_up_bytes(bench: Bench, tmp_path: Path) -> None:
    ran = bench.run(tmp_path / "home", "library", "code.fatbin", "shared", probes=("gmem_bytes",))
    assert ran.counted == {"shared": {"probed": 2}}
    manifest = json.loads(ran.file("shared", "manifest.json").read_text())
    sites = [(site["probe"], site["instruction"]) for site in manifest["sites"]]
    assert ("total", "") in sites
    # nvdisasm: each access of the original is a site, and has a trampoline with an addition.
    cubin = Cutter((bench.folder / "kernels.cubin").read_bytes(), "cubin").cut("shared")
    original = instructions(cubin, "shared", tmp_path)
    accesses = re.findall(r"\b(?:LDG|STG)\S*", "\n".join(original.values()))
    assert sorted(name for _, name in sites if name) == sorted(accesses) != []
    twin = instructions(ran.file("shared", "twin.cubin").read_bytes(), "shared", tmp_path)
    before, after = (sum(bool(_ADDED.match(line)) for line in listed.values()) for listed in (original, twin))
    assert after - before == len(accesses)


def test_accesses_are_sites_of_probes_that_log_them(bench: Bench, tmp_path: Path) -> None:
    ran = bench.run(tmp_path / "home", "library", "code.fatbin", "shared", probes=("dmat",))
    assert ran.counted == {"shared": {"probed": 2}}
    manifest = json.loads(ran.file("shared", "manifest.json").read_text())
    assert [one["name"] for one in manifest["maps"]] == ["GlobalAccesses", "BulkCopies", "TensorCopies", "NotTraced"]
    cubin = Cutter((bench.folder / "kernels.cubin").read_bytes(), "cubin").cut("shared")
    original = instructions(cubin, "shared", tmp_path)
    accesses = re.findall(r"\b(?:LDG|STG)\S*", "\n".join(original.values()))
    # SITE of each record is the number of an access in the code.
    sites = [(site["site"], site["instruction"], site["probe"]) for site in manifest["sites"]]
    probes = {"LDG": "load", "STG": "store"}
    assert sites == [(number, name, probes[name[:3]]) for number, name in enumerate(accesses)] != []


def test_other_probes_are_refused_by_name(bench: Bench, tmp_path: Path) -> None:
    ran = bench.run(tmp_path / "home", "module", "code.fatbin", "shared", probes=("block_sched", "value_watch"))
    detail = "of its machine code no twin is made: the probe "
    assert ran.reasons["shared"].startswith(f"unsupported: {detail}")
    assert ran.counted == {"shared": {"unsupported": 2}}


def test_later_runs_find_them_in_the_cache(bench: Bench, tmp_path: Path) -> None:
    for cached in (0, 1):
        ran = bench.run(tmp_path / "home", "library", "code.fatbin", "shared", SCALES[0])
        assert ran.counted == {"shared": {"probed": 2}, SCALES[0]: {"probed": 2}}
        assert [event["cached"] for event in ran.images] == [cached, cached]


@pytest.mark.parametrize(("option", "image"), [("--no-wait", "own.fatbin"), ("--when=launch", "code.fatbin")])
def test_nobody_waits_for_them_with_these_options(bench: Bench, tmp_path: Path, option: str, image: str) -> None:
    """The program may end before they are there; a kernel gets an entry of its own, whatever it is made of."""
    bench.run(tmp_path / "home", "library", image, "shared", options=[option])
    ran = bench.run(tmp_path / "home", "library", image, "shared", options=[option])
    assert ran.counted["shared"].keys() <= {"probed", "not-ready"}
    assert ran.reasons["shared"] in ("probed", "not-ready")
    assert {event["twins"] for event in ran.images} <= {"kernel"}


def test_a_kernel_that_is_not_selected_is_not_made(bench: Bench, tmp_path: Path) -> None:
    ran = bench.run(tmp_path / "home", "module", "code.fatbin", "shared", SCALES[0], options=("-k", "scale"))
    assert ran.counted == {"shared": {"not-selected": 2}, SCALES[0]: {"probed": 2}}


@pytest.mark.parametrize(("archs", "is_asked"), [("sm_90 sm_90a", True), ("sm_80 sm_90", True), ("sm_90a sm_9", False)])
@pytest.mark.parametrize("hot", ["", "1"])
def test_kernels_are_asked_for_on_some_architectures_alone(
    bench: Bench, tmp_path: Path, archs: str, is_asked: bool, hot: str
) -> None:
    """The device is an sm_90: elsewhere machine code without PTX is left alone, and a helper is not asked."""
    home = tmp_path / "home"
    with listener(home, TEXT) as found:
        home.chmod(0o700)
        hooked = hooked_environment(bench.driver, BUILT, home / "cache", home / "traces")
        subprocess.run(
            [bench.folder / "coded", "library", bench.folder / "code.fatbin", "shared"],
            check=True, capture_output=True,
            env={"PATH": os.environ["PATH"], **hooked, "NEUTRINO_SOCKET": str(found.path), "NEUTRINO_HOT": hot,
                 "NEUTRINO_MACHINE_CODE": "kernels", "NEUTRINO_CODE_ARCHS": archs},
        )  # fmt: skip
    assert any(data.startswith(OF_KEPT_KERNEL) for data in found.data) == is_asked
    assert is_asked or found.asked[MAKE] + found.asked[MAKE_AHEAD] == 0


@pytest.mark.parametrize("way", ["module", "constant"])
@pytest.mark.parametrize("is_full", [False, True], ids=["file", "disk is full"])
def test_an_image_is_written_once_for_all_of_its_kernels(
    bench: Bench, tmp_path: Path, way: str, is_full: bool
) -> None:
    """And requests have its digest; where no file can be written, each has the image."""
    home = tmp_path / "home"
    program = bench.folder / ("constant" if way == "constant" else "coded")
    image = (bench.folder / "code.fatbin").read_bytes()
    digest = hashlib.sha256(image).digest()

    def fill() -> None:
        if is_full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(image) - 1, len(image) - 1))

    with listener(home, TEXT) as found:
        home.chmod(0o700)
        hooked = hooked_environment(bench.driver, BUILT, home / "cache", home / "traces")
        subprocess.run(
            [program, way, bench.folder / "code.fatbin", *PROBED], check=True, capture_output=True, preexec_fn=fill,
            env={"PATH": os.environ["PATH"], **hooked, "NEUTRINO_SOCKET": str(found.path),
                 "NEUTRINO_MACHINE_CODE": "kernels"},
        )  # fmt: skip
    asked = {data for data in found.data if data.startswith((OF_KERNEL, OF_KEPT_KERNEL))}
    begin, end = (OF_KERNEL, image) if is_full else (OF_KEPT_KERNEL, digest)
    assert asked == {begin + name.encode() + b"\n" + end for name in PROBED}
    written = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    assert written == ({} if is_full else {digest.hex(): image})


@pytest.mark.parametrize("name", [CODE, VARIANT])
def test_a_patched_program_has_them(bench: Bench, tmp_path: Path, name: str) -> None:
    """neutrino-patch puts them into its copy, --check takes them, --restore gives the original; they run without the
    helper."""
    program, patched, restored = tmp_path / "program", tmp_path / "patched", tmp_path / "restored"
    linked = (f"-L{bench.driver.parent}", "-Wl,--no-as-needed", "-l:libcuda.so.1")
    compile_c(PROGRAMS / "coded.c", program, f'-DCONSTANT="{bench.folder / f"{name}.fatbin"}"', *linked)
    base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **plain_environment(bench.driver)}

    def command(*words: object, status: int = 0) -> str:
        called = [sys.executable, "-m", *map(str, words)]
        done = subprocess.run(called, env=base, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr + done.stdout
        return done.stdout

    patch = "neutrino.cli.patch"
    report = json.loads(
        command(patch, program, "-o", patched, "-p", "block_sched", "--arch", "sm_90", "--machine-code", "unproven",
                "--json")
    )  # fmt: skip
    rows = {row["name"]: row for row in report["kernels"]}
    assert {kernel for kernel, row in rows.items() if row["status"] == "probed"} == {*PROBED}
    assert rows["counted"]["detail"] == NO_VARIABLE
    command(patch, "--check", patched)
    command(patch, "--restore", patched, "-o", restored)
    assert restored.read_bytes() == program.read_bytes()
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    hooked = dict(hooked_environment(bench.driver, BUILT, home / "cache", home / "traces"), NEUTRINO_AHEAD="1")
    del hooked["NEUTRINO_KEY"], hooked["NEUTRINO_CACHE"]
    words = ("constant", "-", *PROBED, "counted")
    plain, probed = (
        subprocess.run([path, *words], env={**base, **more}, capture_output=True, text=True, check=True)
        for path, more in ((program, {}), (patched, hooked))
    )
    assert plain.stdout == probed.stdout
    (path,) = find_traces(home / "traces")
    counted = {one.name: {reason.word: count for reason, count in one.counters.items()} for one in Trace(path).kernels}
    assert counted == {**{kernel: {"probed": 2} for kernel in PROBED}, "counted": {"unsupported": 2}}
    words = ("-n", "-p", "block_sched", "--arch", "sm_90", "--machine-code", "off", "--json")
    without = json.loads(command(patch, program, *words, status=3))
    reason = "no-ptx" if name == CODE else "variant"
    assert without["totals"]["reasons"] == {reason: len(PROBED) + 1}
