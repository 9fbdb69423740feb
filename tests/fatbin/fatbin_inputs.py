"""NVIDIA's tools and what is given to them: shared by the tests of containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "kernels.cu"
ARCHS = (
    "-gencode=arch=compute_80,code=[sm_80,compute_80]",
    "-gencode=arch=compute_90a,code=[sm_90a,compute_90a]",
    "-gencode=arch=compute_100f,code=[sm_100f,compute_100f]",
)
BUILDS: dict[str, tuple[str, ...]] = {
    "default": ARCHS,
    "lineinfo": (*ARCHS[:2], "-lineinfo", "-maxrregcount=40"),
    "debug": (*ARCHS[1:2], "-G"),
    "relocatable": (*ARCHS[:1], "-rdc=true"),
    "whole-program": (*ARCHS[:1], "-ewp"),
    "lto": ("-rdc=true", "-gencode=arch=compute_80,code=[lto_80,sm_80,compute_80]"),
    "lto-stored": ("-rdc=true", "-gencode=arch=compute_80,code=[lto_80,compute_80]", "--compress-mode=none"),
    "same-arch": tuple(f"-gencode=arch=compute_{n},code=compute_{n}" for n in ("90", "90a", "100")),
}
"""Arguments of ``nvcc -fatbin``, by what is special about them."""
PACKINGS: dict[str, tuple[str, ...]] = {
    "none": ("--compress-mode=none",),
    "lz4": ("--compress-mode=speed",),
    "size": ("--compress-mode=size",),
    "lz4-all": ("--compress-mode=speed", "-compress-all"),
}
"""What nvcc passes on to fatbinary, to pack the images of "default" otherwise."""
FATBINS = (*BUILDS, *PACKINGS)


def find(tool: str) -> str | None:
    """The tool's path: on PATH or in the wheels of this Python."""
    wheels = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"))
    return shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, wheels)]))


def need(tool: str) -> str:
    """The tool's path, or the test is skipped with the reason."""
    path = find(tool)
    if path is None:
        pytest.skip(f"{tool} is neither on PATH nor in a wheel of this Python")
    return path


def run(*argv: str | Path, cwd: Path | None = None) -> str:
    """Run a tool that must succeed; its standard output."""
    done = subprocess.run(list(map(str, argv)), cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{argv}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


PTX = """\
.version 8.0
.target {arch}
.address_size 64
.visible .entry add_one(.param .u64 data, .param .align 8 .b8 pair[24], .param .u8 flag)
.maxntid 128, 2, 1
{{
\t.reg .b32 %r<3>;
\t.reg .b64 %rd<3>;
\tld.param.u64 %rd1, [data];
\tcvta.to.global.u64 %rd2, %rd1;
\tld.global.u32 %r1, [%rd2];
\tadd.s32 %r2, %r1, 1;
\tst.global.u32 [%rd2], %r2;
\tret;
}}
.entry second()
.reqntid 64
{{
\tbar.sync 3;
\tret;
}}
"""
"""A text that ptxas takes for every architecture from sm_75 on (13.0)."""
