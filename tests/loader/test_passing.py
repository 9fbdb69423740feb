"""PTX that passes through the process is taken where the machine code that was made from it holds none.

NVRTC and nvJitLink are NVIDIA's own; the driver does nothing.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from neutrino.backend.registry import target_of_device
from neutrino.fatbin import Container, ImageKind, read_container
from neutrino.maker.keys import image_key
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
OTHER = '.version 9.0\n.target sm_90\n.address_size 64\n.visible .func other()\n{\nret;\n}\n'
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
        """What a compilation gives: PTX and CUBIN."""
        program = ctypes.c_void_p()
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        done = self.library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"a.cu", 0, None, None)
        assert done == 0
        assert self.library.nvrtcCompileProgram(program, len(options), words) == 0
        results = {}
        for kind in ("PTX", "CUBIN"):
            size = ctypes.c_size_t()
            assert getattr(self.library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)) == 0
            data = ctypes.create_string_buffer(size.value)
            assert getattr(self.library, f"nvrtcGet{kind}")(program, data) == 0
            results[kind] = data.raw
        assert self.library.nvrtcDestroyProgram(ctypes.byref(program)) == 0
        return results


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
        self.nvjitlink = library_of("nvidia-nvjitlink", "libnvJitLink.so.")
        self.driver = build_driver(folder)
        compile_c(PROGRAMS / "passing.c", folder / "dlsym")
        depends = ("-DLINKED", f"-Wl,--no-as-needed,-rpath,{self.nvrtc.path.parent}", str(self.nvrtc.path))
        compile_c(PROGRAMS / "passing.c", folder / "lazy", *depends, "-Wl,-z,lazy")
        compile_c(PROGRAMS / "passing.c", folder / "now", *depends, "-Wl,-z,now")
        made = self.nvrtc.compile(SOURCE, ARCH)
        for name, data in {
            "a.cu": SOURCE.encode(), "a.ptx": made["PTX"].rstrip(b"\0"), "a.cubin": made["CUBIN"],
            "part.cubin": self.nvrtc.compile(SOURCE, ARCH, "-rdc=true")["CUBIN"], "other.ptx": OTHER.encode(),
        }.items():  # fmt: skip
            (folder / name).write_bytes(data)
        self.environment = {"LINKED": str(folder / "a.cubin")}
        found = plain_environment(self.driver)["LD_LIBRARY_PATH"]
        self.paths = {"LD_LIBRARY_PATH": f"{found}:{self.nvrtc.path.parent}"}

    def words(self, words: Sequence[str]) -> list[str]:
        """A command line: NVRTC and NVJITLINK stand for the libraries, files are those of the folder."""
        known = {"NVRTC": str(self.nvrtc.path), "NVJITLINK": str(self.nvjitlink)}
        files = {at + path.name: f"{at}{path}" for path in self.folder.iterdir() if path.suffix for at in ("", "@")}
        return [known.get(word, files.get(word, word)) for word in words]

    def run(self, home: Path, *words: str, program: str = "dlsym") -> Passed:
        """Run the program without the hook and with it; its output must be the same."""
        command = [str(self.folder / program), *self.words(words)]
        base = {**self.environment, "PATH": os.environ["PATH"]}
        plain = subprocess.run(
            command, env={**base, **self.paths}, capture_output=True, text=True, timeout=120, check=False
        )
        assert plain.returncode == 0, plain.stdout
        asked: list[Container] = []

        def entry_of(image: bytes) -> bytes:
            asked.append(read_container(image, "asked for"))
            return patch_image(
                image, load_probe_file(TICKETS), "sm_90", selection=Selection(),
                assembler=target_of_device("sm_90").run_tools(13000), key=image_key(RUN_KEY, "sm_90", image),
            )  # fmt: skip

        for folder in ("cache", "traces"):
            (home / folder).mkdir(mode=0o700)
        environment = hooked_environment(self.driver, BUILT, home / "cache", home / "traces")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listeners, "entry_of", entry_of)
            with listener(home, MAY_BE_CACHED) as found:
                hooked = subprocess.run(
                    command,
                    env={**base, **environment, **self.paths, "NEUTRINO_SOCKET": str(found.path)},
                    capture_output=True, text=True, timeout=120, check=False,
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


def check_taken(bench: Bench, passed: Passed, by: str) -> None:
    """The program's only kernel was probed, by a twin made from the PTX that its machine code was compiled from."""
    assert passed.reasons == [("probed", "")]
    assert passed.counted == [{"probed": 1}]
    (image,) = passed.images
    assert (image["kind"], image["ptx_by"]) == ("cubin", by)
    (container,) = passed.asked
    text, code = container.images
    assert (text.kind, text.arch, code.kind, code.arch) == (ImageKind.PTX, "sm_90", ImageKind.CUBIN, "sm_90")
    # NVRTC gives the same text to the test.
    assert text.data.rstrip(b"\0") == bench.nvrtc.compile(SOURCE, ARCH)["PTX"].rstrip(b"\0")
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


def test_another_cubin_of_the_same_source_is_not_taken_for_it(bench: Bench, tmp_path: Path) -> None:
    """Its machine code differs, so it is not known of what PTX it was made."""
    other = bench.nvrtc.compile(SOURCE, ARCH, "--fmad=false")["CUBIN"]
    (bench.folder / "unfused.cubin").write_bytes(other)
    passed = bench.run(tmp_path, "nvrtc", "NVRTC", "a.cu", ARCH, "--", "load", "unfused.cubin")
    assert passed.reasons == [("probed", ""), ("no-ptx", "")]


@pytest.mark.parametrize(("way", "by"), [("nvjitlink NVJITLINK", "nvJitLink"), ("culink", "cuLink")])
def test_ptx_that_alone_is_linked_is_taken(bench: Bench, tmp_path: Path, way: str, by: str) -> None:
    check_taken(bench, bench.run(tmp_path, *way.split(), "a.ptx"), by)


NOT_PTX, SEVERAL = "it was linked from something other than PTX", "it was linked from several inputs"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("nvjitlink NVJITLINK part.cubin", f"made by nvJitLink in this process: {NOT_PTX}"),
        ("nvjitlink NVJITLINK @a.ptx", f"made by nvJitLink in this process: {NOT_PTX}"),
        ("nvjitlink NVJITLINK a.ptx other.ptx", f"made by nvJitLink in this process: {SEVERAL}"),
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
