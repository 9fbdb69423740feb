"""Device-linked code: a library built by nvcc, and containers put together from the PTX in it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.backend.ptx_linked_source import RELOCATABLE_SECTION
from neutrino.errors import ToolMissingError
from neutrino.fatbin import Container, ImageKind, build_container, build_entry, read_container, read_file
from neutrino.ptx.text.module import without_locations
from neutrino.toolchain.location import find_tool
from neutrino.toolchain.nvlink import Linker
from neutrino.toolchain.ptxas import Assembler

FOLDER = Path(__file__).parent / "rdc"
SOURCES = ("first", "second")
Parts = tuple[Container, tuple[Container, ...]]


def need(tool: str) -> str:
    """The tool's path, or the test is skipped with the reason."""
    try:
        return str(find_tool(tool))
    except ToolMissingError as error:
        pytest.skip(str(error))


def run(*argv: str) -> str:
    """Standard output. Skips where nvcc lacks what it needs; fails the test otherwise."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    printed = done.stdout + done.stderr
    if "cuda_runtime.h" in printed or "cudafe" in printed:
        pytest.skip(f"nvcc does not work: {printed.strip()[-300:]}")
    assert done.returncode == 0, printed
    return done.stdout


def build(folder: Path) -> Path:
    """The library of ``rdc/``, with machine code and PTX for sm_90; its objects are beside it."""
    nvcc = need("nvcc")
    options = ("-rdc=true", "-c", "-Xcompiler=-fPIC", "-gencode=arch=compute_90,code=[sm_90,compute_90]", "-lineinfo")

    def compile_unit(name: str) -> str:
        run(nvcc, *options, str(FOLDER / f"{name}.cu"), "-o", str(folder / f"{name}.o"))
        return str(folder / f"{name}.o")

    with ThreadPoolExecutor(2) as pool:
        units = list(pool.map(compile_unit, SOURCES))
    library = folder / "library.so"
    run(nvcc, "-shared", "-arch=sm_90", *units, "-o", str(library))
    return library


def parts(library: Path) -> Parts:
    """The linked container that holds kernels, and the units."""
    containers = read_file(library)
    units = tuple(container for container in containers if container.section == RELOCATABLE_SECTION)
    linked = [container for container in containers if container not in units]
    assert len(linked) == 1
    return linked[0], units


def texts(units: Sequence[Container]) -> list[str]:
    """The units' PTX, without what is for debuggers."""
    found = [image.data.decode("latin-1") for unit in units for image in unit.images if image.kind is ImageKind.PTX]
    plain = [re.sub(r"\.section\s+\.debug_\w+\s*\{.*?\n\s*\}", "", text, flags=re.DOTALL) for text in found]
    return [without_locations(text, keep=False) for text in plain]


def link(tools: tuple[Assembler, Linker], units: Sequence[tuple[str, str]], arch: str) -> Parts:
    """What nvcc would make of units: for each its PTX, whatever it is for, and the ptxas options to store with it."""
    assembler, linker = tools
    containers = []
    cubins = []
    for index, (text, options) in enumerate(units):
        text = re.sub(r"\.target \w+", f".target {arch}", text)
        cubin = assembler.assemble(text, arch, f"-c {options}").cubin
        entries = [
            build_entry(ImageKind.CUBIN, cubin, arch),
            build_entry(ImageKind.PTX, text.encode("latin-1"), arch, options=f"--compile-only {options} "),
        ]
        container = read_container(build_container(entries), f"unit {index}")
        containers.append(replace(container, index=index, section=RELOCATABLE_SECTION))
        cubins.append(cubin)
    linked = build_container([build_entry(ImageKind.CUBIN, linker.link(cubins, arch), arch)])
    return replace(read_container(linked, "linked"), index=len(units), section=".nv_fatbin"), tuple(containers)
