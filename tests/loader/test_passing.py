"""PTX that passes through the process is taken where the machine code that was made from it holds none.

NVRTC and nvJitLink are NVIDIA's own, which need no GPU; the driver does nothing.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from neutrino.backend.registry import target_of_device
from neutrino.fatbin import Container, ImageKind, read_container
from neutrino.maker.keys import image_key
from neutrino.maker.passed import keep_beside, keep_passed
from neutrino.maker.patcher import patch_image
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace, find_traces
from neutrino.verification import load_probe_file

from . import listeners
from .conftest import RUN_KEY, TICKETS
from .listeners import MAY_BE_CACHED, listener
from .null_driver import BUILT, PROGRAMS, build_driver, compile_c, hooked_environment, plain_environment

SOURCE = """extern "C" __global__ void scale(float *x, unsigned n)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		x[i] = x[i] * 3.0f + 1.0f;
}
"""
CALLER = """extern "C" __device__ float scaled(float x);
extern "C" __global__ void scale(float *x, unsigned n)
{
	unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n)
		x[i] = scaled(x[i]);
}
"""
CALLED = """extern "C" __device__ float scaled(float x)
{
	return x * 3.0f + 1.0f;
}
"""
OTHER = ".version 9.0\n.target sm_90\n.address_size 64\n.visible .func other()\n{\nret;\n}\n"
ARCH = "-arch=sm_90"


def library_of(package: str, name: str) -> Path:
    """The path of a library in a package of NVIDIA's; skips where that is not installed."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: pip install -e .[dev]")
    (file,) = (file for file in files if Path(str(file)).name.startswith(name))
    return Path(str(file.locate())).resolve()


class Nvrtc:
    """NVRTC, asked by the test itself."""

    def __init__(self) -> None:
        self.path = library_of("nvidia-cuda-nvrtc", "libnvrtc.so.")
        # NVRTC looks it up by its name alone.
        for builtins in self.path.parent.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(self.path))

    @functools.cache  # noqa: B019 - one object for all tests
    def compile(self, source: str, *options: str) -> dict[str, bytes]:
        """What a compilation gives: PTX and CUBIN; with -dlto LTOIR."""
        program = ctypes.c_void_p()
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        done = self.library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"a.cu", 0, None, None)
        assert done == 0
        assert self.library.nvrtcCompileProgram(program, len(options), words) == 0
        results = {}
        for kind in ("LTOIR",) if "-dlto" in options else ("PTX", "CUBIN"):
            size = ctypes.c_size_t()
            assert getattr(self.library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)) == 0
            data = ctypes.create_string_buffer(size.value)
            assert getattr(self.library, f"nvrtcGet{kind}")(program, data) == 0
            results[kind] = data.raw
        assert self.library.nvrtcDestroyProgram(ctypes.byref(program)) == 0
        return results


class NvJitLink:
    """nvJitLink, asked by the test itself."""

    def __init__(self) -> None:
        self.path = library_of("nvidia-nvjitlink", "libnvJitLink.so.")
        self.library = ctypes.CDLL(str(self.path))

    def ptx(self, inputs: Sequence[bytes], *options: str) -> bytes:
        """The PTX that LTO IR is linked to."""
        handle, size = ctypes.c_void_p(), ctypes.c_size_t()
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        assert self.library.nvJitLinkCreate(ctypes.byref(handle), len(options), words) == 0
        for data in inputs:
            assert self.library.nvJitLinkAddData(handle, 3, data, ctypes.c_size_t(len(data)), b"input") == 0
        assert self.library.nvJitLinkComplete(handle) == 0
        assert self.library.nvJitLinkGetLinkedPtxSize(handle, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value)
        assert self.library.nvJitLinkGetLinkedPtx(handle, text) == 0
        assert self.library.nvJitLinkDestroy(ctypes.byref(handle)) == 0
        return text.raw


@dataclass
class Passed:
    """What a run of the program has left: what was asked for, the image's event and the kernel's, its launches."""

    asked: list[Container]
    images: list[dict[str, Any]]
    kernels: list[dict[str, Any]]
    counted: list[dict[str, int]]

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Of each kernel in the order in which they were obtained: its reason, and the detail."""
        return [(kernel["reason"], kernel["detail"]) for kernel in self.kernels]


class Bench:
    """The driver, the program, its files, and where its compilers are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nvrtc = Nvrtc()
        self.nvjitlink = NvJitLink()
        self.driver = build_driver(folder)
        compile_c(PROGRAMS / "passing.c", folder / "dlsym")
        depends = ("-DLINKED", f"-Wl,--no-as-needed,-rpath,{self.nvrtc.path.parent}", str(self.nvrtc.path))
        compile_c(PROGRAMS / "passing.c", folder / "lazy", *depends, "-Wl,-z,lazy")
        compile_c(PROGRAMS / "passing.c", folder / "now", *depends, "-Wl,-z,now")
        made = self.nvrtc.compile(SOURCE, ARCH)
        for name, data in {
            "a.cu": SOURCE.encode(), "a.ptx": made["PTX"].rstrip(b"\0"), "a.cubin": made["CUBIN"],
            "part.cubin": self.nvrtc.compile(SOURCE, ARCH, "-rdc=true")["CUBIN"], "other.ptx": OTHER.encode(),
            "whole.ltoir": self.nvrtc.compile(SOURCE, ARCH, "-dlto")["LTOIR"],
            "caller.ltoir": self.nvrtc.compile(CALLER, ARCH, "-dlto")["LTOIR"],
            "called.ltoir": self.nvrtc.compile(CALLED, ARCH, "-dlto")["LTOIR"],
            "called.ptx": self.nvrtc.compile(CALLED, ARCH, "-rdc=true")["PTX"].rstrip(b"\0"),
        }.items():  # fmt: skip
            (folder / name).write_bytes(data)
        self.environment = {"LINKED": str(folder / "a.cubin")}
        found = plain_environment(self.driver)["LD_LIBRARY_PATH"]
        self.paths = {"LD_LIBRARY_PATH": f"{found}:{self.nvrtc.path.parent}"}

    def words(self, words: Sequence[str]) -> list[str]:
        """A command line: NVRTC and NVJITLINK stand for the libraries, files are those of the folder."""
        known = {"NVRTC": str(self.nvrtc.path), "NVJITLINK": str(self.nvjitlink.path)}
        files = {at + path.name: f"{at}{path}" for path in self.folder.iterdir() if path.suffix for at in ("", "@")}
        return [known.get(word, files.get(word, word)) for word in words]

    def run(
        self, home: Path, *words: str, program: str | Sequence[str] = "dlsym",
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Passed:  # fmt: skip
        """Run a program, with more in its environment, without the hook and with it; its output must be the same."""
        started = [str(self.folder / program)] if isinstance(program, str) else program
        command = [*started, *self.words(words)]
        base = {**self.environment, "PATH": os.environ["PATH"], **more}
        plain = subprocess.run(
            command, env={**base, **self.paths}, capture_output=True, text=True, timeout=600, check=False
        )
        assert plain.returncode == 0, plain.stdout
        asked: list[Container] = []

        def entry_of(image: bytes) -> bytes:
            asked.append(read_container(image, "asked for"))
            keep_passed(home / "cache", image)
            return patch_image(
                image, load_probe_file(TICKETS), "sm_90", selection=Selection(),
                assembler=target_of_device("sm_90").run_tools(13000), key=image_key(RUN_KEY, "sm_90", image),
            )  # fmt: skip

        for folder in ("cache", "traces"):
            (home / folder).mkdir(mode=0o700, exist_ok=True)
        environment = hooked_environment(self.driver, BUILT, home / "cache", home / "traces")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listeners, "entry_of", entry_of)
            with listener(home, MAY_BE_CACHED) as found:
                hooked = subprocess.run(
                    command,
                    env={**base, **environment, **self.paths, "NEUTRINO_SOCKET": str(found.path)},
                    capture_output=True, text=True, timeout=600, check=False,
                )  # fmt: skip
        assert (hooked.stdout, hooked.returncode) == (plain.stdout, 0), hooked.stderr
        (path,) = find_traces(home / "traces")
        trace = Trace(path)
        counted = [{reason.word: count for reason, count in kernel.counters.items()} for kernel in trace.kernels]
        events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
        images, kernels = ([event for event in events if event["event"] == kind] for kind in ("image", "kernel"))
        return Passed(asked, images, kernels, counted)


@pytest.fixture(scope="module")
def bench(ptxas: None, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("passing"))


def check_taken(bench: Bench, passed: Passed, by: str, expected: bytes | None = None, *, arch: str = "sm_90") -> None:
    """The program's only kernel was probed, by a twin made from the PTX that its machine code was compiled from.

    expected: that PTX; None: what NVRTC makes of the source. arch: of the PTX.
    """
    assert passed.reasons == [("probed", "")]
    assert passed.counted == [{"probed": 1}]
    (image,) = passed.images
    assert (image["kind"], image["ptx_by"]) == ("cubin", by)
    (container,) = passed.asked
    text, code = container.images
    assert (text.kind, text.arch, code.kind, code.arch) == (ImageKind.PTX, arch, ImageKind.CUBIN, "sm_90")
    # The compiler gives the same text to the test.
    assert text.data.rstrip(b"\0") == (expected or bench.nvrtc.compile(SOURCE, ARCH)["PTX"]).rstrip(b"\0")
    assert len(code.data) >= image["size"] > 0


@pytest.mark.parametrize("program", ["dlsym", "lazy", "now"])
def test_ptx_of_nvrtc_is_taken(bench: Bench, tmp_path: Path, program: str) -> None:
    """However the program has got NVRTC's functions."""
    check_taken(bench, bench.run(tmp_path, "nvrtc", "NVRTC", "a.cu", ARCH, program=program), "NVRTC")


@pytest.mark.parametrize("way", ["before", "forked"])
def test_nvrtc_may_be_called_before_the_driver_and_in_children(bench: Bench, tmp_path: Path, way: str) -> None:
    check_taken(bench, bench.run(tmp_path, way, "NVRTC", "a.cu", ARCH), "NVRTC")


def test_a_cubin_that_was_kept_meanwhile_is_known_by_its_bytes(bench: Bench, tmp_path: Path) -> None:
    passed = bench.run(tmp_path, "nvrtc", "NVRTC", "a.cu", ARCH, "--", "load", "a.cubin")
    assert passed.counted == [{"probed": 2}]
    assert len(passed.images) == 1


def later_run(bench: Bench, home: Path, change: Callable[[bytes], bytes]) -> Passed:
    """A run that loads a file which another run has compiled, with what the cache has kept of that, as changed."""
    first = home / "first"
    first.mkdir()
    check_taken(bench, bench.run(first, "nvrtc", "NVRTC", "a.cu", ARCH), "NVRTC")
    (kept,) = (first / "cache" / "passed").glob("*/*.ptx")
    again = home / "again" / "cache" / "passed" / kept.parent.name
    again.mkdir(parents=True)
    for folder in (home / "again", home / "again" / "cache", again.parent, again):
        folder.chmod(0o700)
    (again / kept.name).write_bytes(change(kept.read_bytes()))
    return bench.run(home / "again", "load", "a.cubin")


def test_what_an_earlier_run_has_compiled_is_known(bench: Bench, tmp_path: Path) -> None:
    """As CuPy and Numba load it from files of their own."""
    check_taken(bench, later_run(bench, tmp_path, lambda data: data), "NVRTC")


def test_the_user_names_a_folder_of_machine_code_with_its_ptx(bench: Bench, tmp_path: Path) -> None:
    """As CuTe DSL leaves both: the PTX that lies beside this machine code, whatever else has been kept for it."""
    folder = tmp_path / "dumped" / "deeper"
    folder.mkdir(parents=True)
    for name in ("a.cubin", "a.ptx", "part.cubin"):
        (folder / name).write_bytes((bench.folder / name).read_bytes())
    (folder / "other.ptx").write_bytes(b"")
    wrong = bench.folder / "a.ptx"
    (folder / "a.ptx").write_bytes(wrong.read_bytes().replace(b"fma.rn", b"add.rn"))
    assert keep_beside(tmp_path / "cache", tmp_path) == 1
    (folder / "a.ptx").write_bytes(wrong.read_bytes())
    assert keep_beside(tmp_path / "cache", folder / "a.cubin") == 1
    check_taken(bench, bench.run(tmp_path, "load", "a.cubin"), "--ptx")


def test_a_folder_without_pairs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.cubin").write_bytes(b"\x7fELF")
    command = [sys.executable, "-m", "neutrino", "--device", "embedded", "-p", "block_sched", "--ptx", str(tmp_path)]
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"--ptx {tmp_path}: no machine code NAME.cubin with its text NAME.ptx beside it" in done.stderr


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"", lambda data: data[:63], lambda data: data[:64], lambda data: data[:-1],
        lambda data: data[:-1] + b"?", lambda data: data.replace(b"NVRTC", b"other", 1),
        lambda data: b"N" * 32 + data[32:], lambda data: data + bytes(64 << 20),
    ],
)  # fmt: skip
def test_a_damaged_file_of_an_earlier_run_is_none(
    bench: Bench, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    assert later_run(bench, tmp_path, change).reasons == [("no-ptx", "")]


def test_another_cubin_of_the_same_source_is_not_taken_for_it(bench: Bench, tmp_path: Path) -> None:
    """Its machine code differs, so it is not known of what PTX it was made."""
    other = bench.nvrtc.compile(SOURCE, ARCH, "--fmad=false")["CUBIN"]
    (bench.folder / "unfused.cubin").write_bytes(other)
    passed = bench.run(tmp_path, "nvrtc", "NVRTC", "a.cu", ARCH, "--", "load", "unfused.cubin")
    assert passed.reasons == [("probed", ""), ("no-ptx", "")]


@pytest.mark.parametrize(("way", "by"), [("nvjitlink NVJITLINK", "nvJitLink"), ("culink", "cuLink")])
def test_ptx_that_alone_is_linked_is_taken(bench: Bench, tmp_path: Path, way: str, by: str) -> None:
    check_taken(bench, bench.run(tmp_path, *way.split(), "a.ptx"), by)


@pytest.mark.parametrize("way", ["nvjitlink", "plain", "release"])
@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ("whole.ltoir", "-lto"),
        ("caller.ltoir called.ltoir", "-lto"),
        ("caller.ltoir called.ltoir", "-lto -O3 -maxrregcount=32 -time -verbose -no-cache"),
    ],
)
def test_lto_ir_is_linked_again_for_its_ptx(bench: Bench, tmp_path: Path, way: str, inputs: str, options: str) -> None:
    """What the program gets is the same, bit by bit, and so are errno and the state of floating point."""
    passed = bench.run(tmp_path, way, "NVJITLINK", *options.split(), *inputs.split())
    data = [(bench.folder / name).read_bytes() for name in inputs.split()]
    check_taken(bench, passed, "nvJitLink", bench.nvjitlink.ptx(data, ARCH, *options.split(), "-ptx"))


@pytest.mark.parametrize("is_loaded", [False, True], ids=["found", "preloaded"])
@pytest.mark.parametrize("arch", ["-arch=sm_90", "-arch=sm_90a"])
def test_links_by_cuda_python_are_seen(bench: Bench, tmp_path: Path, arch: str, is_loaded: bool) -> None:
    """Numba links so. It looks among what is loaded first (RTLD_DEFAULT), and then in the library that it finds."""
    pytest.importorskip("cuda.bindings.nvjitlink", reason="cuda-bindings is not installed")
    program = [sys.executable, str(PROGRAMS / "passing.py"), arch]
    more = {"LD_PRELOAD": str(bench.nvjitlink.path)} if is_loaded else {}
    passed = bench.run(tmp_path, "caller.ltoir", "called.ltoir", program=program, more=more)
    data = [(bench.folder / name).read_bytes() for name in ("caller.ltoir", "called.ltoir")]
    expected = bench.nvjitlink.ptx(data, arch, "-lto", "-ptx")
    check_taken(bench, passed, "nvJitLink", expected, arch=arch.removeprefix("-arch="))


NO_PTX = "made by nvJitLink in this process: nvJitLink gave no PTX of its LTO IR"


@pytest.mark.parametrize(
    ("fails", "calls"),
    [
        ("", ["create -ptx -no-cache", "add", "add", "complete", "ptx", "destroy"]),
        ("old", [
            "create -ptx -no-cache", "destroy", "create -ptx", "add", "add", "complete", "ptx", "destroy",
        ]),
        ("create", ["create -ptx -no-cache", "destroy", "create -ptx", "destroy"]),
        ("add", ["create -ptx -no-cache", "add", "destroy"]),
        ("complete", ["create -ptx -no-cache", "add", "add", "complete", "destroy"]),
        ("size", ["create -ptx -no-cache", "add", "add", "complete", "destroy"]),
        ("nothing", ["create -ptx -no-cache", "add", "add", "complete", "destroy"]),
        ("get", ["create -ptx -no-cache", "add", "add", "complete", "destroy"]),
    ],
)  # fmt: skip
def test_a_second_link_that_fails_changes_nothing(bench: Bench, tmp_path: Path, fails: str, calls: list[str]) -> None:
    """It has the program's inputs and options, and leaves nothing behind. The program's own calls are as without it."""
    library = tmp_path / "libnvJitLink.so.13"
    # Older releases have no other hash table.
    style = "sysv" if fails == "old" else "gnu"
    compile_c(PROGRAMS / "fake_nvjitlink.c", library, "-shared", "-fPIC", f"-Wl,--hash-style={style}")
    for name in ("one", "two"):
        (bench.folder / f"{name}.ltoir").write_bytes(bytes.fromhex("ed434e7f00000000") + name.encode())
    more = {"FAKE": fails, "FAKE_LOG": str(tmp_path / "log"), "FAKE_PTX": str(bench.folder / "a.ptx")}
    passed = bench.run(tmp_path, "plain", str(library), "-lto", "-fma=1", "-time", "one.ltoir", "two.ltoir", more=more)

    own = [
        "create -arch=sm_90 -lto -fma=1 -time", "add 3 one", "add 3 two", "complete", "cubin", "destroy",
    ]  # fmt: skip
    named = iter(["one", "two"])
    second = [
        call.replace("create", "create -arch=sm_90 -lto -fma=1") if call.startswith("create") else
        f"add 3 {next(named)}" if call == "add" else call
        for call in calls
    ]  # fmt: skip
    log = (tmp_path / "log").read_text().splitlines()
    # The run without the hook is the first.
    assert log == [*own, *own[:-1], *second, own[-1]]
    assert passed.reasons == [("probed", "") if fails in ("", "old") else ("no-ptx", NO_PTX)]


def test_what_holds_its_ptx_is_not_linked_again(bench: Bench, tmp_path: Path) -> None:
    """With line information nvJitLink puts PTX into the cubin."""
    passed = bench.run(tmp_path, "plain", "NVJITLINK", "-lto", "-lineinfo", "whole.ltoir")
    assert passed.reasons == [("probed", "")]
    (container,) = passed.asked
    (code,) = container.images
    assert code.kind is ImageKind.CUBIN
    assert "ptx_by" not in passed.images[0]


def test_each_link_of_lto_ir_has_its_own_ptx(bench: Bench, tmp_path: Path) -> None:
    words = "plain NVJITLINK -lto whole.ltoir -- plain NVJITLINK -lto -fma=0 whole.ltoir"
    passed = bench.run(tmp_path, *words.split())
    assert passed.reasons == [("probed", ""), ("probed", "")]
    texts = [container.images[0].data for container in passed.asked]
    assert [b"fma.rn.f32" in text for text in texts] == [True, False]


NOT_PTX, SEVERAL = "it was linked from something other than PTX and LTO IR", "it was linked from several inputs"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("nvjitlink NVJITLINK part.cubin", f"made by nvJitLink in this process: {NOT_PTX}"),
        ("nvjitlink NVJITLINK @a.ptx", f"made by nvJitLink in this process: {NOT_PTX}"),
        ("nvjitlink NVJITLINK a.ptx other.ptx", f"made by nvJitLink in this process: {SEVERAL}"),
        ("plain NVJITLINK -lto caller.ltoir called.ptx", f"made by nvJitLink in this process: {SEVERAL}"),
        ("plain NVJITLINK -lto called.ptx caller.ltoir", f"made by nvJitLink in this process: {SEVERAL}"),
        (
            "plain NVJITLINK -lto --device-stack-protector=true whole.ltoir",
            "made by nvJitLink in this process: it was linked from LTO IR with an option that is not supported",
        ),
        ("plain NVJITLINK -lto @whole.ltoir", f"made by nvJitLink in this process: {NOT_PTX}"),
        ("culink a.cubin", f"made by cuLink in this process: {NOT_PTX}"),
        ("culink @a.ptx", f"made by cuLink in this process: {NOT_PTX}"),
        ("culink a.ptx other.ptx", f"made by cuLink in this process: {SEVERAL}"),
        ("culink debug a.ptx", "made by cuLink in this process: it was linked with debug information"),
        ("load a.cubin", ""),
    ],
)
def test_what_is_not_taken_is_named(bench: Bench, tmp_path: Path, words: str, why: str) -> None:
    passed = bench.run(tmp_path, *words.split())
    assert passed.reasons == [("no-ptx", why)]
    assert passed.counted == [{"no-ptx": 1}]
    assert passed.asked == []
