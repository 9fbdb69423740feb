"""The cases of bench.scale in small, and one on a full disk that is copied on write."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.scale import GOOD, Bench, Size, faults, printed, read_trace

_SIZES = {
    "streams": Size(600, alive=100),
    "handles": Size(3_000, alive=50),
    "launches": Size(20_000, threads=4),
    "soak": Size(2_000, alive=50, threads=2, seconds=1, limit=8 << 20),
}


@pytest.fixture
def scale(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("name", _SIZES)
def test_everything_is_counted(scale: Bench, name: str) -> None:
    assert faults(scale.run(name, _SIZES[name])) == []


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


def test_a_full_disk_that_is_copied_on_write_costs_only_data(scale: Bench, small_btrfs: Path) -> None:
    size = Size(600_000, threads=2)
    plain, hooked = scale.plain("launches", size), scale.hooked("launches", size, small_btrfs)
    assert (hooked["output"], hooked["exit"]) == (plain["output"], GOOD)
    trace = read_trace(small_btrfs)
    assert [sum(counts.values()) for _, _, counts in trace["kernels"]] == printed(plain["output"])["launches"]
    assert any("(the disk is full)" in note for note in trace["notes"])
    assert trace["read"] == trace["states"]["WRITTEN"] > 0
