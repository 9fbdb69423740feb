"""Device code for AMD GPUs, compiled by clang without ROCm: shared by the tests of bundles and code objects."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from fatbin_inputs import find, run

SOURCE = """\
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
typedef struct { unsigned x, y, z; } dim3;
extern "C" int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *);
extern "C" unsigned __hipPushCallConfiguration(dim3, dim3, unsigned long, void *);
extern "C" unsigned __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void **);

__global__ void NAME(float *data, int count, char flag)
{
    __shared__ float tile[96];
    int item = __builtin_amdgcn_workitem_id_x();
    tile[item] = data[item];
    __builtin_amdgcn_s_barrier();
    if (item < count)
        data[item] = tile[95 - item] + flag;
}

template <typename T> __global__ __attribute__((amdgpu_flat_work_group_size(64, 256))) void scratch(T *data, int at)
{
    volatile T kept[40];
    for (int i = 0; i < 40; i++)
        kept[i] = data[i];
    data[at] = kept[at];
}
template __global__ void scratch<double>(double *, int);
"""
FLAGS = ("-x", "hip", "-O1", "-fPIC", "-nogpuinc", "-nogpulib")
TARGETS = ("gfx90a", "gfx942:sramecc+:xnack-", "gfx942:sramecc+:xnack+", "gfx1100")
OLDEST_LLVM = 19
DEVICE_ONLY = ("--cuda-device-only", "--no-gpu-bundle-output")


@cache
def find_llvm(tool: str) -> str | None:
    """The newest LLVM's tool of that name that this machine has, of the releases that know what the tests need."""
    for suffix in ("-21", "-20", "-19", ""):
        path = find(tool + suffix)
        if path is not None and (suffix or _release(path) >= OLDEST_LLVM):
            return path
    return None


def _release(path: str) -> int:
    """The release that a tool says it is of, 0 where it says none."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(?:version|LLD) (\d+)\.", said)
    return int(found[1]) if found else 0


def need_llvm(tool: str) -> str:
    """The tool's path, or the test is skipped with the reason."""
    path = find_llvm(tool)
    if path is None:
        pytest.skip(f"no {tool} of LLVM {OLDEST_LLVM} or later on PATH")
    return path


def compile_hip(clang: str, folder: Path, output: str, *arguments: str, name: str = "add") -> Path:
    """SOURCE compiled, with the first kernel called name."""
    source = folder / "kernels.hip"
    if not source.exists():
        source.write_text(SOURCE)
    run(clang, *FLAGS, f"-DNAME={name}", *arguments, "-c", source, "-o", folder / output)
    return folder / output


def need_clang(folder: Path) -> str:
    """A clang that compiles for AMD GPUs, or the test is skipped with what it said."""
    clang = need_llvm("clang")
    (folder / "probe.hip").write_text(SOURCE)
    argv = [clang, *FLAGS, "-DNAME=a", *DEVICE_ONLY, "--offload-arch=gfx90a", "-c", "probe.hip", "-o", "probe.hsaco"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{clang} compiles nothing for gfx90a: {done.stderr.strip()[-300:]}")
    return clang
