"""Many streams, modules, libraries and threads on a driver that does nothing, also on a full disk that is copied on
write: the program computes as without the hook, and each launch is counted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neutrino.abi.launches import LaunchState
from neutrino.abi.reasons import Reason
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from neutrino.tracing import Trace, find_traces
from neutrino.twins.cache_entry import KernelEntry, write_entry
from neutrino.verification import load_probe_file

from .conftest import IMAGE, RUN_KEY, TICKETS, entry_of, second
from .null_driver import BUILT, PROGRAMS, build_driver, compile_c, hooked_environment, plain_environment

GOOD = 7
KERNEL = "count_p2"


@dataclass(frozen=True)
class Size:
    """How much of a case: see programs/scale.c. limit: bytes of the trace, 0 for none."""

    amount: int
    alive: int = 1
    threads: int = 1
    limit: int = 0


SIZES = {
    "streams": Size(600, alive=100),
    "handles": Size(3_000, alive=50),
    "launches": Size(20_000, threads=4),
    "mixed": Size(2_000, alive=50, threads=2, limit=8 << 20),
}


class Scale:
    """The driver, the program, its images, and a cache with a twin of the one and a reason for none of the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = build_driver(folder)
        compile_c(PROGRAMS / "scale.c", folder / "scale")
        cache, other = Cache(folder / "cache"), second(IMAGE)
        key = image_key(RUN_KEY, "sm_90", other)
        cache.root.mkdir()
        cache.write(image_key(RUN_KEY, "sm_90", IMAGE), entry_of(IMAGE))
        refused = KernelEntry(KERNEL, Reason.NUMERICS, "said the test")
        cache.write(key, write_entry(key, load_probe_file(TICKETS).maps, [refused], []))
        for name, image in (("image", IMAGE), ("other", other)):
            (folder / name).write_bytes(image)

    def run(self, name: str, size: Size, traces: Path | None = None) -> tuple[str, int]:
        """What the program prints, and its status. traces: with the hook, which puts its trace there."""
        environment: Mapping[str, str] = plain_environment(self.driver)
        if traces:
            environment = hooked_environment(self.driver, BUILT, self.folder / "cache", traces)
        if size.limit:
            environment = {**environment, "NEUTRINO_MAX_TRACE_SIZE": str(size.limit)}
        amounts = (size.amount, size.alive, size.threads)
        command = [self.folder / "scale", name, self.folder / "image", self.folder / "other", *amounts]
        done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True,
                              check=False)  # fmt: skip
        return done.stdout, done.returncode


@pytest.fixture
def scale(tmp_path: Path) -> Scale:
    return Scale(tmp_path)


def _launches(output: str) -> list[int]:
    """How many the program made, of the kernel that is probed and of the other."""
    (words,) = (line.split()[1:] for line in output.splitlines() if line.startswith("launches "))
    return [int(word) for word in words]


def _read(trace: Trace) -> int:
    """Launches whose data can be read."""
    views = (next(iter(maps.values())) for kernel in trace.kernels for maps in kernel.stacks())
    return sum(len(view.records) for view in views)


def _states(trace: Trace) -> dict[LaunchState, int]:
    counts = Counter(LaunchState(state) for state in trace.launches["state"].tolist())
    return {state: count for state, count in counts.items() if state is not LaunchState.EMPTY}


@pytest.mark.parametrize("name", SIZES)
def test_everything_is_counted(scale: Scale, tmp_path: Path, name: str) -> None:
    size = SIZES[name]
    traces = tmp_path / "traces"
    traces.mkdir(mode=0o700)
    plain, hooked = scale.run(name, size), scale.run(name, size, traces)
    assert hooked == plain == (plain[0], GOOD)
    trace = Trace(*find_traces(traces))
    counters: dict[Reason, Any] = {kernel.reason: kernel.counters for kernel in trace.kernels}
    assert len(trace.kernels) == len(counters) == 2
    made = _launches(plain[0])
    assert [sum(counters[reason].values()) for reason in (Reason.PROBED, Reason.NUMERICS)] == made
    assert {reason for reason, count in counters[Reason.NUMERICS].items() if count} == {Reason.NUMERICS}
    probed, states = counters[Reason.PROBED][Reason.PROBED], _states(trace)
    assert trace.complete
    assert set(states) == {LaunchState.WRITTEN}
    written = states[LaunchState.WRITTEN]
    if size.limit:
        assert 0 < _read(trace) <= written <= probed
    else:
        assert _read(trace) == written == probed > 0
        assert list(trace.notes) == []


@pytest.fixture
def small_btrfs(tmp_path: Path) -> Iterator[Path]:
    """A folder on a btrfs of 64 MiB, and nothing else on it."""
    image, folder = tmp_path / "btrfs", tmp_path / "mounted"
    make = shutil.which("mkfs.btrfs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if make is None:
        pytest.skip("there is no mkfs.btrfs here")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    folder.mkdir()
    subprocess.run([make, "--quiet", "--mixed", image], check=True, capture_output=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"no btrfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_that_is_copied_on_write_costs_only_data(scale: Scale, small_btrfs: Path) -> None:
    size = Size(600_000, threads=2)
    plain, hooked = scale.run("launches", size), scale.run("launches", size, small_btrfs)
    assert hooked == plain == (plain[0], GOOD)
    trace = Trace(*find_traces(small_btrfs))
    assert [sum(kernel.counters.values()) for kernel in trace.kernels] == _launches(plain[0])
    assert any("(the disk is full)" in note for note in trace.notes)
    assert _read(trace) == _states(trace)[LaunchState.WRITTEN] > 0
