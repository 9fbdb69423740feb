"""Collects the corpus: images with PTX that other compilers made, or that are taken from a wheel, in one folder.

``FOLDER/<source>/*.{fatbin,cubin,ptx}`` with the sources nvcc, clang, triton and ctranslate2. What is there stays.
Nothing of it is committed; packages come from PyPI into ``FOLDER/venv`` and ``FOLDER/wheels``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from neutrino.errors import ToolError, ToolMissingError
from neutrino.fatbin import read_file, write_container
from neutrino.toolchain.location import find_tool
from neutrino.toolchain.process import run_tool

from . import clang_kernels

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NVCC_ARCHITECTURES = ("75", "80", "90", "90a", "100a", "120")
CLANG_VARIANTS = (
    ("sm_75", "-O0", "on"), ("sm_75", "-O2", "fast"), ("sm_80", "-O2", "on"), ("sm_80", "-O1", "off"),
    ("sm_90a", "-O2", "fast"),
)  # fmt: skip
TRITON = "triton==3.6.0"
CTRANSLATE2 = "ctranslate2==4.8.5"


def nvcc_sources() -> tuple[Path, ...]:
    """The CUDA sources: this folder's and the bench's."""
    return (HERE / "kernels.cu", *sorted((ROOT / "bench" / "workloads").glob("*.cu")))


def collect_nvcc(
    folder: Path, sources: Sequence[Path] | None = None, architectures: Sequence[str] = NVCC_ARCHITECTURES
) -> None:
    """A fatbin with machine code and PTX for each CUDA source (all by default) and each architecture.

    Raises ToolMissingError without nvcc. A source that nvcc refuses for an architecture is left out, with a line.
    """
    nvcc = find_tool("nvcc")
    for source in sources or nvcc_sources():
        for number in architectures:
            out = folder / f"{source.stem}.sm_{number}.fatbin"
            if out.exists():
                continue
            code = f"arch=compute_{number},code=[sm_{number},compute_{number}]"
            try:
                run_tool([nvcc, "-fatbin", "-std=c++17", "-gencode", code, source, "-o", out], timeout=600)
            except ToolError as error:
                print(f"{source.name} for sm_{number}: {error}", file=sys.stderr)


def collect_clang(folder: Path, variants: Sequence[tuple[str, str, str]] = CLANG_VARIANTS) -> None:
    """PTX of the OpenCL kernels by clang 19, one file for each variant. Raises ToolMissingError without it."""
    clang = shutil.which("clang-19") or shutil.which("clang")
    if clang is None:
        raise ToolMissingError("clang-19", "install Debian's clang-19")
    source = folder / "kernels.cl"
    source.write_text(clang_kernels.source())
    for arch, level, contraction in variants:
        out = folder / f"kernels{level}.{contraction}.{arch}.ptx"
        if not out.exists():
            run_tool(
                [
                    clang, "-x", "cl", "-cl-std=CL2.0", "-ffreestanding", "-nogpulib", "-w", "-S",
                    "--target=nvptx64-nvidia-cuda", f"-march={arch}", level, f"-ffp-contract={contraction}",
                    "-Xclang", "-cl-ext=+cl_khr_fp16,+cl_khr_fp64", "-Xclang", "-finclude-default-header",
                    source, "-o", out,
                ],
                timeout=600,
            )  # fmt: skip


def collect_triton(folder: Path) -> None:
    """Cubins by Triton and its own ptxas, which keep their PTX, and the PTX with its comments."""
    if any(folder.glob("*.cubin")):
        return
    venv = folder.parent / "venv"
    if not venv.exists():
        run_tool([sys.executable, "-m", "venv", venv], timeout=600)
        run_tool([venv / "bin" / "pip", "install", "--quiet", TRITON], timeout=1800)
    cache = folder.parent / "triton-cache"
    subprocess.run(
        [venv / "bin" / "python", HERE / "triton_kernels.py", folder], check=True, timeout=1800,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder.parent), "TRITON_CACHE_DIR": str(cache)},
    )  # fmt: skip


def collect_ctranslate2(folder: Path) -> None:
    """The containers of the ctranslate2 wheel's library: PTX for sm_86 and machine code from sm_53 to sm_86."""
    if any(folder.glob("*.fatbin")):
        return
    wheels = folder.parent / "wheels"
    if not any(wheels.glob("ctranslate2-*.whl")):
        run_tool(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", wheels, CTRANSLATE2], timeout=1800
        )
    library = folder / "library.so"
    with zipfile.ZipFile(next(wheels.glob("ctranslate2-*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if "/libctranslate2-" in name)
        library.write_bytes(wheel.read(name))
    for container in read_file(library):
        if container.images:
            (folder / f"container{container.index:02}.fatbin").write_bytes(write_container(container))
    library.unlink()


COLLECTORS: dict[str, Callable[[Path], None]] = {
    "nvcc": collect_nvcc,
    "clang": collect_clang,
    "triton": collect_triton,
    "ctranslate2": collect_ctranslate2,
}


def collect(folder: Path, source: str) -> list[Path]:
    """The images of one source, made if they are not there. Raises ToolError, OSError."""
    place = folder / source
    place.mkdir(parents=True, exist_ok=True)
    COLLECTORS[source](place)
    return sorted(path for path in place.iterdir() if path.suffix in (".fatbin", ".cubin", ".ptx"))
