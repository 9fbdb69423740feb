"""The stand-in driver, programs of the driver API and the hook, compiled for these tests; twins made by the patcher."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from neutrino.abi.entries import FewerBlocks
from neutrino.abi.reasons import Reason
from neutrino.backend import ptx_parts as parts
from neutrino.device.kind import DeviceKind
from neutrino.loader import build, install
from neutrino.maker.keys import image_key, run_key
from neutrino.maker.patcher import patch_image
from neutrino.maker.store import Cache
from neutrino.maps.declaration import Map
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.twins.cache_entry import KernelEntry, read_entry, write_entry
from neutrino.verification import load_probe_file
from tests.once import SANITIZERS, copy_built, kept, once, stand_in

from .devices import interpreter
from .objects import hook_objects, linked_from

HERE = Path(__file__).parent
CSRC = Path(build.__file__).parent / "csrc"
ROOT = HERE.parent.parent
TICKETS = HERE / "tickets.toml"
RUN_KEY = run_key("probes", "selection", "assembler", "version", DeviceKind.EMBEDDED)
IMAGE = (HERE / "kernels.ptx").read_bytes() + b"// the tests change the last letter to have another image: a"
"""What the programs load, without the NUL that they add."""
POOL_LEAST = 4 << 20
"""Bytes of the smallest pool: 8 segments of 256 KiB, and 64 chunks of 32 KiB."""

PROGRAMS = {
    "host": (
        "host.c", "program.c", "bounds.c", "captures.c", "contexts.c", "files.c", "graphs.c", "launches.c", "modules.c",
        "processes.c", "sets.c", "streams.c", "watched.c",
    ),
    "random": ("random.c", "program.c"),
    "driven": ("driven.c", "program.c", "ranges.c"),
}  # fmt: skip
_SANITIZER_OPTIONS = {
    # The drain thread and what it points at live until the process ends, by design.
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
    "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
    "TSAN_OPTIONS": "exitcode=99:halt_on_error=0:report_signal_unsafe=0:die_after_fork=0:atexit_sleep_ms=0",
    # ThreadSanitizer's library has 768 KiB of static thread-local storage, which is scarce with LD_AUDIT.
    "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=1048576",
}
_SANITIZER_LOG = "SANITIZER_LOG"
"""Of a file to which program.c appends what sanitizers say: the hook's threads have no stderr to write to."""
_LOG = "sanitizer.log"


def check_sanitizers(home: Path, stderr: str) -> None:
    """They have reported nothing in a program that ran with ``Bench.environment(home)`` and wrote that on stderr."""
    log = home / _LOG
    said = stderr + (log.read_text(errors="replace") if log.exists() else "")
    assert "Sanitizer" not in said, said[:20000]
    assert "runtime error" not in said, said[:20000]


def nvtx_headers() -> Path:
    """The folder of NVIDIA's NVTX headers."""
    files = metadata.files("nvidia-nvtx") or []
    (header,) = (file for file in files if str(file).endswith("nvtx3/nvToolsExt.h"))
    return Path(str(header.locate())).parent.parent


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
            f"-isystem{nvtx_headers()}",
            *arguments,
            "-o",
            str(target),
            "-ldl",
            "-lpthread",
        ],
        check=True,
    )


def second(image: bytes) -> bytes:
    """The image with its last letter changed, as the programs change it."""
    return image[:-1] + bytes([image[-1] ^ 1])


def entry_of(image: bytes, probes: ProbeSet | None = None) -> bytes:
    """What the patcher makes of the image; probes: the tickets' where none are given."""
    return _entry_of(image, probes or load_probe_file(TICKETS), parts.PART_SIZE)


@functools.cache
def _entry_of(image: bytes, probes: ProbeSet, part_size: int) -> bytes:
    # part_size: what tests change, and must not find the entries of others by.
    return patch_image(
        image, probes, "sm_90", selection=Selection(), assembler=None,
        key=image_key(RUN_KEY, "sm_90", image), device=DeviceKind.EMBEDDED,
    )  # fmt: skip


def probes_with_cap(folder: Path, cap: int) -> ProbeSet:
    """The tests' probes, with room for that many tickets a warp; their file is written into folder."""
    folder.mkdir(exist_ok=True)
    path = folder / "tickets.toml"
    path.write_text(TICKETS.read_text().replace("cap = 1", f"cap = {cap}"))
    probes = load_probe_file(path)
    assert [entry.cap for entry in probes.maps] == [cap, 1]
    return probes


@dataclass(frozen=True)
class Bench:
    """A folder with the stand-in driver, the programs and the hook, all compiled with the same sanitizers."""

    folder: Path
    sanitizer: str

    @property
    def driver(self) -> Path:
        return self.folder / "driver" / "libcuda.so.1"

    @property
    def host(self) -> Path:
        return self.folder / "host"

    @property
    def random_program(self) -> Path:
        return self.folder / "random"

    @property
    def maps(self) -> tuple[Map, ...]:
        """Tickets and Entered, as most tests use them."""
        return load_probe_file(TICKETS).maps

    def build(self, driver: Path) -> Bench:
        """driver: the folder of the stand-in."""
        flags = SANITIZERS[self.sanitizer]
        self.driver.parent.symlink_to(driver)

        def build_hook() -> None:
            if self.sanitizer != "plain":
                with linked_from(hook_objects(self.sanitizer, (*flags, *build.WARNINGS))):
                    build.build(self.folder / "lib", flags=flags)
            elif not copy_built(Path(build.__file__), self.folder / "lib"):
                build.build(self.folder / "lib", flags=flags)

        with ThreadPoolExecutor(2) as pool:
            jobs = [
                pool.submit(build_hook),
                *(
                    pool.submit(
                        compile_c, self.folder / name, *flags, *(str(HERE / "programs" / one) for one in sources)
                    )
                    for name, sources in PROGRAMS.items()
                ),
            ]
            for job in jobs:
                job.result()
        return self

    def environment(self, home: Path, device: Mapping[str, object] | None = None) -> dict[str, str]:
        """What the programs need to find the stand-in and their image. device: settings of the stand-in."""
        settings = {"python": interpreter(), "root": ROOT, "strict": 1, **(device or {})}
        return {
            **os.environ,
            **(_SANITIZER_OPTIONS | {_SANITIZER_LOG: str(home / _LOG)} if self.sanitizer != "plain" else {}),
            "HOST_IMAGE": str(home / "image"),
            "LD_LIBRARY_PATH": str(self.driver.parent),
            "NEUTRINO_EMBEDDED": ";".join(f"{key}={value}" for key, value in settings.items()),
        }

    def hooked(self, environment: Mapping[str, str], home: Path) -> dict[str, str]:
        """The environment with the hook in it; twins come from home/cache, traces go to home/trace."""
        cache = Cache(home / "cache")
        if not cache.root.exists():
            cache.root.mkdir()
        with mock.patch.object(install, "_BUILT", self.folder / "lib"):
            module = install.install_hook(self.driver, cache.root)
        return {
            **environment,
            **install.variables(module, environment),
            "NEUTRINO_DRIVER": str(self.driver),
            "NEUTRINO_KEY": RUN_KEY.hex(),
            "NEUTRINO_CACHE": str(cache.root),
            "NEUTRINO_TRACEDIR": str(home / "trace"),
        }

    def run(
        self,
        program: str,
        home: Path,
        *arguments: str,
        hook: bool = True,
        twins: bool = True,
        probes: ProbeSet | None = None,
        extra: Mapping[str, str] | None = None,
        device: Mapping[str, object] | None = None,
        image: bytes = IMAGE,
    ) -> subprocess.CompletedProcess[str]:
        """``host SCENARIO``, or another program of the folder, with and without the hook.

        twins: they are in the cache, made with the given probes; else none can be had. device: settings of the
        stand-in.
        """
        home.mkdir(exist_ok=True)
        (home / "image").write_bytes(image)
        if hook and twins:
            cache = Cache(home / "cache")
            for variant in (image, second(image)):
                cache.write(image_key(RUN_KEY, "sm_90", variant), entry_of(variant, probes))
        environment = self.environment(home, device)
        if hook:
            environment = self.hooked(environment, home)
        command = [str(self.random_program), *arguments] if program == "random" else [str(self.host), program]
        result = subprocess.run(
            command, env=environment | dict(extra or {}), capture_output=True, text=True, timeout=600, check=False
        )
        check_sanitizers(home, result.stderr)
        return result


def write_reasons(home: Path, reason: Reason) -> None:
    """Cache entries that give that reason in place of twins."""
    cache = Cache(home / "cache")
    home.mkdir(exist_ok=True)
    for variant in (IMAGE, second(IMAGE)):
        key = image_key(RUN_KEY, "sm_90", variant)
        cache.write(key, write_entry(key, load_probe_file(TICKETS).maps, [
            KernelEntry("count_p2", reason, "said the test")], []))  # fmt: skip


def in_parts() -> AbstractContextManager[object]:
    """While it holds, twins are made in an image for each kernel, as those of a big module are in several."""
    return mock.patch.multiple(parts, PART_SIZE=1, _TIMES_COMMON=0)


def write_capped(home: Path) -> None:
    """Cache entries in which each kernel's twin is in an image of its own, and in another one under a cap."""
    cache = Cache(home / "cache")
    home.mkdir(exist_ok=True)
    maps = load_probe_file(TICKETS).maps
    for variant in (IMAGE, second(IMAGE)):
        with in_parts():
            entry = read_entry(entry_of(variant), "entry")
        count = len(entry.images)
        kernels = [replace(kernel, capped=count + kernel.image) for kernel in entry.kernels]
        cache.write(entry.key, write_entry(entry.key, maps, kernels, 2 * entry.images))


def write_with_fewer_blocks(home: Path, fewer: FewerBlocks) -> None:
    """Cache entries whose twins some launches may run though fewer blocks of them fit on a multiprocessor."""
    cache = Cache(home / "cache")
    home.mkdir(exist_ok=True)
    maps = load_probe_file(TICKETS).maps
    for variant in (IMAGE, second(IMAGE)):
        entry = read_entry(entry_of(variant), "entry")
        kernels = [replace(kernel, fewer_blocks=fewer) for kernel in entry.kernels]
        cache.write(entry.key, write_entry(entry.key, maps, kernels, entry.images))


def write_with_lanes(home: Path, lanes: int) -> None:
    """Cache entries of kernels whose warps have so many lanes, as far as the hook knows."""
    cache = Cache(home / "cache")
    home.mkdir(exist_ok=True)
    maps = load_probe_file(TICKETS).maps
    for variant in (IMAGE, second(IMAGE)):
        entry = read_entry(entry_of(variant), "entry")
        kernels = [replace(kernel, lanes=lanes) for kernel in entry.kernels]
        cache.write(entry.key, write_entry(entry.key, maps, kernels, entry.images))


def write_with_local_memory(home: Path, size: int) -> None:
    """Cache entries in which the twin of count_p2 needs that many bytes of local memory per thread."""
    cache = Cache(home / "cache")
    home.mkdir(exist_ok=True)
    maps = load_probe_file(TICKETS).maps
    for variant in (IMAGE, second(IMAGE)):
        entry = read_entry(entry_of(variant), "entry")
        head, _, rest = entry.images[0].partition(b"count_p2__neutrino(")
        rest = rest.replace(b"{", b"{\n.local .align 8 .b8 large[%d];" % size, 1)
        image = head + b"count_p2__neutrino(" + rest
        cache.write(entry.key, write_entry(entry.key, maps, entry.kernels, [image, *entry.images[1:]]))


def write_immense(home: Path) -> None:
    """Cache entries whose records of one launch would not fit 64 bits of addresses."""
    cache = Cache(home / "cache")
    home.mkdir(exist_ok=True)
    probes = load_probe_file(TICKETS)
    maps = [replace(entry, size=65536, cap=2**32 - 1) if entry.cap == 1 and entry.name == "Tickets" else entry
            for entry in probes.maps]  # fmt: skip
    for variant in (IMAGE, second(IMAGE)):
        entry = read_entry(entry_of(variant), "entry")
        cache.write(entry.key, write_entry(entry.key, maps, entry.kernels, entry.images))


def sanitized_bench(factory: pytest.TempPathFactory, sanitizer: str) -> Bench:
    """The folder of this run for one of SANITIZERS. Skips where the compiler has no such sanitizer that works."""
    driver = stand_in(factory, sanitizer)

    def compile_into(folder: Path) -> None:
        Bench(folder, sanitizer).build(driver)

    if sanitizer == "plain":
        return Bench(once(factory, "bench-plain", compile_into), sanitizer)
    options = (*SANITIZERS[sanitizer], str(driver))
    sources = [*(HERE / "programs").glob("*.[ch]"), HERE / "conftest.py"]
    return Bench(kept(f"bench-{sanitizer}", build.compiler(), options, sources, compile_into), sanitizer)


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return sanitized_bench(tmp_path_factory, "plain")


@pytest.fixture(scope="session")
def slow_clock(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What a program gets in its environment to meet no limit of seconds: ``slow_clock.c``. Not under sanitizers."""

    def compile_into(folder: Path) -> None:
        compile_c(folder / "slow_clock.so", "-shared", "-fPIC", "-O2", str(HERE / "programs" / "slow_clock.c"))

    return {"LD_PRELOAD": str(once(tmp_path_factory, "slow-clock", compile_into) / "slow_clock.so")}


@pytest.fixture(scope="session", params=("address", "thread"))
def any_bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer."""
    return sanitized_bench(tmp_path_factory, request.param)


def in_turn(names: str, rows: Iterable[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Parametrise a test by rows, with one of the two of ``any_bench`` for each by turns.

    For variants of scenes that run under both elsewhere. names: of the parameters in a row.
    """
    ways = itertools.cycle(("address", "thread"))


    def shown(value: object) -> str:
        return " ".join(value.values()) if isinstance(value, dict) else str(value)

    return pytest.mark.parametrize(
        f"{names}, any_bench", [(*row, next(ways)) for row in rows], indirect=["any_bench"], ids=shown
    )


class Reference:
    """What programs print and return without the hook; asked once in a run for each program and its settings."""

    def __init__(self, bench: Bench, factory: pytest.TempPathFactory) -> None:
        self._bench = bench
        self._factory = factory

    def __call__(
        self, program: str, *arguments: str, device: Mapping[str, object] | None = None
    ) -> tuple[str, int]:

        def ask(folder: Path) -> None:
            result = self._bench.run(program, folder, *arguments, hook=False, device=device)
            assert "neutrino: trace" not in result.stderr
            (folder / "answer.json").write_text(json.dumps([result.stdout, result.returncode]))

        said = repr((program, arguments, sorted((device or {}).items())))
        name = f"reference-{program}-{hashlib.sha256(said.encode()).hexdigest()[:16]}"
        stdout, status = json.loads((once(self._factory, name, ask) / "answer.json").read_text())
        return stdout, status


@pytest.fixture(scope="session")
def reference(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(bench, tmp_path_factory)
