"""Programs that load ever more different images: what the hook keeps of them is bounded, and no launch is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.loader import build
from neutrino.tracing import Trace, find_traces
from tests.loader.null_driver import build_driver, hooked_environment
from tests.once import once

from .conftest import HERE, compile_c
from .objects import linked_from, unfolded_objects

MOST = 40


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hook that keeps fewer images, the program, and a driver."""

    def make(folder: Path) -> None:
        counting = [name for name in build.SOURCES if "NT_IMAGE_MOST" in (build.CSRC / name).read_text()]
        assert counting
        with linked_from(unfolded_objects(), counting):
            build.build(folder / "lib", flags=("-O0", f"-DNT_IMAGE_MOST={MOST}u"))
        compile_c(folder / "distinct", str(HERE / "programs" / "distinct.c"))
        build_driver(folder)

    return once(tmp_path_factory, "many-images", make)


@pytest.mark.parametrize(("loaded", "further"), [(MOST, 0), (MOST + 1, 1), (500, 500 - MOST)])
def test_images_beyond_a_number_are_kept_as_one(built: Path, tmp_path: Path, loaded: int, further: int) -> None:
    for name in ("cache", "traces"):
        (tmp_path / name).mkdir(mode=0o700)
    driver = built / "driver" / "libcuda.so.1"
    environment = hooked_environment(driver, built / "lib", tmp_path / "cache", tmp_path / "traces")
    # Nothing of another rank is probed, so no listener is asked.
    ranks = {"NEUTRINO_ONLY_RANKS": "1", "RANK": "0"}
    result = subprocess.run(
        [built / "distinct", str(loaded)],
        env={**environment, **ranks},
        check=False,
        capture_output=True,
        timeout=600,
    )
    assert result.returncode == 0
    (path,) = find_traces(tmp_path / "traces")
    kernels = {kernel.name: kernel.counters for kernel in Trace(path).kernels}
    known = {f"kernel_{i}": {Reason.NOT_SELECTED: 1} for i in range(min(loaded, MOST))}
    rest = {"(kernels of further images)": {Reason.TABLE_FULL: further}} if further else {}
    assert kernels == known | rest
