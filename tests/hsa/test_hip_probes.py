"""Shipped probes through AMD's own HIP runtime: patched bundles load, and their launches leave the right records."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.gcn.exact import portable_probes
from tests.gcn.objects import code_objects, need_llvm
from tests.hsa.build import build
from tests.hsa.probed import BUNDLER
from tests.hsa.test_hip import HEADER, ISAS, LIBRARIES, start
from tests.once import once

KERNELS = {"gfx90a": "histogram", "gfx1030": "saxpy"}
"""One for each processor."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return code_objects(tmp_path_factory)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in; without AMD's runtime and HSA's headers the test is skipped."""
    if not any(Path(folder, "libamdhip64.so.5").exists() for folder in LIBRARIES):
        pytest.skip("no libamdhip64.so.5 (Debian: libamdhip64-5)")
    if not HEADER.exists():
        pytest.skip(f"no {HEADER} (Debian: libhsa-runtime-dev)")
    return once(tmp_path_factory, "hsa-stand-in", build)


@pytest.mark.parametrize("processor", ISAS)
def test_patched_bundles_run_with_each_probe(
    processor: str, stand_in: Path, objects: Mapping[str, Path], tmp_path: Path
) -> None:
    """By kernelParams and by extra: results are the original's, records what it executed."""
    need_llvm()
    if shutil.which(BUNDLER) is None:
        pytest.skip(f"no {BUNDLER} on PATH")
    for each in ISAS:
        shutil.copy(objects[f"{each}-O2"], tmp_path / f"{each}.hsaco")
    found = start(stand_in, processor, "tests.hsa.probed", str(tmp_path), KERNELS[processor], "")
    assert found.keys() == portable_probes().keys()
    twins = 0
    for probe, each in found.items():
        assert [*each] == [KERNELS[processor]]
        (became,) = each.values()
        if isinstance(became, str):
            assert became.startswith("no_site"), (probe, became)
            continue
        wrong, records = became
        assert not wrong, probe
        # Kernels without a NaN have no first one.
        assert records or probe == "nan_finder"
        twins += 1
    assert twins >= 12


@pytest.mark.parametrize("processor", ISAS)
def test_a_file_of_neutrino_patch_runs(
    processor: str, stand_in: Path, objects: Mapping[str, Path], tmp_path: Path
) -> None:
    """AMD's runtime loads what the tool has written: the kernel's results stay, and records are what it executed."""
    need_llvm()
    if shutil.which(BUNDLER) is None:
        pytest.skip(f"no {BUNDLER} on PATH")
    for each in ISAS:
        shutil.copy(objects[f"{each}-O2"], tmp_path / f"{each}.hsaco")
    probes = "gmem_bytes,block_sched"
    found = start(stand_in, processor, "tests.hsa.probed", str(tmp_path), KERNELS[processor], probes, "file")
    assert [*found] == probes.split(",")
    for each in found.values():
        wrong, records = each[KERNELS[processor]]
        assert not wrong
        assert records
