"""Device-linked libraries built by nvcc, and what is in them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from neutrino.errors import ToolMissingError
from neutrino.fatbin import Container, read_file
from neutrino.toolchain import find_tool

FOLDER = Path(__file__).parent / "rdc"
SOURCES = ("first", "second")


def need(tool: str) -> str:
    """The tool's path, or the test is skipped with the reason."""
    try:
        return str(find_tool(tool))
    except ToolMissingError as error:
        pytest.skip(str(error))


def targets(*pairs: str) -> tuple[str, ...]:
    """Options of nvcc. pairs: ``90:sm_90,compute_90``."""
    return tuple(f"-gencode=arch=compute_{pair.split(':')[0]},code=[{pair.split(':')[1]}]" for pair in pairs)


def build(folder: Path, options: Mapping[str, Sequence[str]], linking: Sequence[str], *, source: Path = FOLDER) -> Path:
    """A library of ``rdc/``, or of copies in source. options: of nvcc per unit; linking: for linking."""
    nvcc = need("nvcc")
    folder.mkdir()

    def compile_unit(name: str) -> Path:
        unit = folder / f"{name}.o"
        run(nvcc, "-rdc=true", "-c", "-Xcompiler=-fPIC", f"-I{FOLDER}", *options[name], str(source / f"{name}.cu"),
            "-o", str(unit))  # fmt: skip
        return unit

    with ThreadPoolExecutor(2) as pool:
        units = list(pool.map(compile_unit, options))
    library = folder / "library.so"
    run(nvcc, "-shared", *linking, *map(str, units), "-o", str(library))
    return library


def run(*argv: str) -> str:
    """Standard output. Skips where nvcc lacks what it needs; fails the test otherwise."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    printed = done.stdout + done.stderr
    if "cuda_runtime.h" in printed or "cudafe" in printed:
        pytest.skip(f"nvcc does not work: {printed.strip()[-300:]}")
    assert done.returncode == 0, printed
    return done.stdout


def parts(library: Path) -> tuple[Container, tuple[Container, ...]]:
    """The linked container that holds kernels, and the units."""
    containers = read_file(library)
    units = tuple(container for container in containers if container.section == "__nv_relfatbin")
    linked = [container for container in containers if container not in units]
    assert len(linked) == 1
    return linked[0], units
