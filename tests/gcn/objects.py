"""Code objects of ``kernels.hip``, built by clang once: for the tests of what reads or changes AMD's code."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from neutrino.errors import ToolMissingError
from neutrino.gcn.llvm import Llvm, find_llvm
from tests.once import kept

CLANG = "clang-19"
SOURCE = Path(__file__).with_name("kernels.hip")
KERNELS = (
    "saxpy", "wide", "block_sum", "tiles", "steps", "bits", "floats", "histogram", "atomics", "calls", "recursion",
    "pointers", "choices", "scratch", "checked", "lanes", "clock", "nothing",
)  # fmt: skip
"""The kernels of the source."""
_PRELOAD = ("-mllvm", "-amdgpu-kernarg-preload-count=8")
BUILDS: Mapping[str, tuple[str, ...]] = {
    **{f"{arch}-O{level}": (f"--offload-arch={arch}", f"-O{level}", "-mcode-object-version=4")
       for arch in ("gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201") for level in (0, 2)},
    "gfx906-O1": ("--offload-arch=gfx906:xnack+", "-O1"),
    "gfx942-features": ("--offload-arch=gfx942:sramecc+:xnack-", "-O3"),
    "gfx942-preload": ("--offload-arch=gfx942", "-O2", *_PRELOAD),
    "gfx90a-preload": ("--offload-arch=gfx90a", "-O2", *_PRELOAD),
    "gfx90a-lines": ("--offload-arch=gfx90a", "-O2", "-g"),
    "gfx1100-lines": ("--offload-arch=gfx1100", "-O1", "-g"),
    "gfx1030-wave64": ("--offload-arch=gfx1030", "-O2", "-mwavefrontsize64"),
    "gfx1100-wave64": ("--offload-arch=gfx1100", "-O2", "-mwavefrontsize64"),
    "gfx1201-wave64": ("--offload-arch=gfx1201", "-O1", "-mwavefrontsize64"),
    "gfx1100-v6": ("--offload-arch=gfx1100", "-O2", "-mcode-object-version=6"),
}  # fmt: skip
"""Options of the compiler by a name for what they build."""
_OPTIONS = ("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-w")


def need_llvm() -> Llvm:
    """AMD's LLVM, or the test is skipped with the reason."""
    try:
        return find_llvm("gfx942")
    except ToolMissingError as error:
        pytest.skip(error.hint)


def need_clang() -> str:
    """A clang that builds code objects, or the test is skipped with the reason."""
    if shutil.which(CLANG) is None:
        pytest.skip(f"no {CLANG} on PATH")
    # The whole path of one that it finds; the name alone otherwise.
    done = subprocess.run([CLANG, "-print-prog-name=lld"], capture_output=True, text=True, check=True)
    if not os.access(done.stdout.strip(), os.X_OK):
        pytest.skip(f"{CLANG} finds no lld, its linker for AMD's GPUs (Debian: lld-19)")
    return CLANG


def build(folder: Path) -> None:
    """Compile every one of BUILDS into the folder, as NAME.hsaco. AssertionError, with what clang said."""
    for name, options in BUILDS.items():
        argv = [CLANG, *_OPTIONS, *options, SOURCE.name, "-o", str(folder / f"{name}.hsaco")]
        done = subprocess.run(argv, cwd=SOURCE.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"


def compiled(source: str, folder: Path, *options: str) -> Path:
    """A code object of a HIP source of its own. Without clang the test is skipped."""
    path = folder / "compiled.hip"
    path.write_text(source)
    subprocess.run(
        [need_clang(), *_OPTIONS, *options, str(path), "-o", str(path.with_suffix(".hsaco"))], check=True
    )  # fmt: skip
    return path.with_suffix(".hsaco")


def code_objects(_: pytest.TempPathFactory | None = None) -> dict[str, Path]:
    """The code objects by the names of BUILDS; without clang the test is skipped.

    Its argument means nothing: tests/hsa, whose text a record judges, still gives one.
    """
    need_clang()
    options = (*_OPTIONS, *(f"{name}: {' '.join(options)}" for name, options in BUILDS.items()))
    folder = kept("gcn-objects", [CLANG], options, [SOURCE], build)
    return {name: folder / f"{name}.hsaco" for name in BUILDS}
