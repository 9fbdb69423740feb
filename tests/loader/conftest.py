"""A fake driver, a program of the driver API, and the hook, compiled for these tests; cache entries made by hand."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from neutrino.cache import Cache, image_key, run_key
from neutrino.entry import KernelEntry, write_entry
from neutrino.loader import build, install
from neutrino.probing.layout import Reason, block_size
from neutrino.probing.model import Field, Level, Map, MapKind, ScalarType, Span

HERE = Path(__file__).parent
CSRC = Path(build.__file__).parent / "csrc"
BLOCK_SCHED = Map(
    "BlockSched",
    MapKind.ARRAY,
    Level.WARP,
    16,
    1,
    (
        Field("start", ScalarType.U64, 0),
        Field("elapsed", ScalarType.U32, 8),
        Field("cuid", ScalarType.U32, 12),
    ),
    Span(1, 1),
)
RUN_KEY = run_key("probes", "selection", "assembler", "version")
IMAGE = b".version 9.0\n" + b" " * 5000


def compile_c(target: Path, *arguments: str) -> None:
    subprocess.run(
        [
            *build.compiler(),
            "-std=gnu11",
            "-D_GNU_SOURCE",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{CSRC}",
            *arguments,
            "-o",
            str(target),
            "-ldl",
            "-lpthread",
        ],
        check=True,
    )


@dataclass(frozen=True)
class Bench:
    """Folder with the fake driver, the program and the hook."""

    folder: Path

    @property
    def driver(self) -> Path:
        return self.folder / "libcuda.so.1"

    @property
    def host(self) -> Path:
        return self.folder / "host"

    def build(self, flags: tuple[str, ...]) -> Bench:
        self.folder.mkdir(parents=True, exist_ok=True)
        compile_c(
            self.driver,
            *flags,
            "-shared",
            "-fPIC",
            "-Wl,-soname,libcuda.so.1",
            "-Wl,-Bsymbolic",
            str(HERE / "fake_driver.c"),
        )
        compile_c(self.host, *flags, str(HERE / "host.c"))
        build.build(self.folder / "lib", flags=flags)
        return self

    def run(
        self,
        scenario: str,
        home: Path,
        *,
        twins: bool = True,
        reason: Reason = Reason.PROBED,
        extra: Mapping[str, str] | None = None,
        image: bytes = IMAGE,
        cap: int = 1,
    ) -> subprocess.CompletedProcess[str]:
        """The program under the hook, its twins in a cache below home; traces in home/trace."""
        cache = Cache(home / "cache")
        home.mkdir(exist_ok=True)
        (home / "image").write_bytes(image)
        if twins:
            for variant in {image, _second(image)}:
                key = image_key(RUN_KEY, "sm_90", variant)
                cache.write(key, entry_for(key, reason, cap))
        else:
            cache.root.mkdir()
        installed = install.install_hook(self.driver, cache.root)
        environment = {
            **os.environ,
            "HOST_IMAGE": str(home / "image"),
            "LD_LIBRARY_PATH": str(self.folder),
            "LD_PRELOAD": install.preload(installed, os.environ.get("LD_PRELOAD", "")),
            "NEUTRINO_DRIVER": str(self.driver),
            "NEUTRINO_KEY": RUN_KEY.hex(),
            "NEUTRINO_CACHE": str(cache.root),
            "NEUTRINO_TRACEDIR": str(home / "trace"),
            **(extra or {}),
        }
        return subprocess.run(
            [str(self.host), scenario],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def _second(image: bytes) -> bytes:
    changed = bytearray(image)
    changed[4000] ^= 1
    return bytes(changed)


def entry_for(key: bytes, reason: Reason, cap: int = 1) -> bytes:
    def kernel(name: str, parameters: int) -> KernelEntry:
        if reason is not Reason.PROBED:
            return KernelEntry(name, reason, "said the test")
        return KernelEntry(
            name,
            reason,
            twin=f"{name}__neutrino",
            parameters=tuple((8 * i, 8) for i in range(parameters)),
            block_offset=8 * parameters,
            block_size=block_size(1, 0),
            files={"manifest.json": b"{}", "original.ptx": b"o", "probed.ptx": b"p"},
        )

    kernels = [kernel("count_p2", 2), kernel("spin_p1", 1), kernel("fault_p1", 1)]
    return write_entry(key, [replace(BLOCK_SCHED, cap=cap)], kernels, [b"FAKETWIN\0"])


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench")).build(("-O2",))


@pytest.fixture
def use_lib(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The hook compiled for the tests in place of the installed one."""
    monkeypatch.setattr(install, "_BUILT", bench.folder / "lib")
    return bench
