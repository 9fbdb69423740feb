"""What NVIDIA's tools make of ``kernels.cu`` and of a small PTX text."""

from __future__ import annotations

import re
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fatbin_inputs import BUILDS, FATBINS, PACKINGS, PTX, SOURCE, need, run


@pytest.fixture(scope="session")
def ptxas() -> str:
    return need("ptxas")


@pytest.fixture(scope="session")
def cuobjdump() -> str:
    return need("cuobjdump")


@pytest.fixture(scope="session")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An nvcc that works: a wheel's own may lack headers, or have a front end newer than its assembler."""
    path = need("nvcc")
    argv = [path, "-arch=sm_80", "-cubin", "-o", str(tmp_path_factory.mktemp("nvcc") / "probe.cubin"), str(SOURCE)]
    probe = subprocess.run(argv, capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"nvcc does not work: {(probe.stderr + probe.stdout).strip()[-300:]}")
    return path


@pytest.fixture(scope="session")
def fatbins(nvcc: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``kernels.cu`` as fatbins, by the keys of FATBINS."""
    folder = tmp_path_factory.mktemp("fatbins")
    made = {name: folder / f"{name}.fatbin" for name in FATBINS}

    def build(name: str) -> str:
        # What "default" is made of stays, for PACKINGS.
        (folder / name).mkdir()
        kept = ("--verbose", "--keep", "--keep-dir", str(folder / name))
        argv = [nvcc, "-fatbin", *kept, *BUILDS[name], "-o", str(made[name]), str(SOURCE)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        return done.stderr

    with ThreadPoolExecutor(2) as pool:
        said = dict(zip(BUILDS, pool.map(build, BUILDS), strict=True))
    (line,) = re.findall(r"^#\$ (fatbinary .*)$", said["default"], re.MULTILINE)
    (home,) = re.findall(r"^#\$ _HERE_=(.*)$", said["default"], re.MULTILINE)
    command = shlex.split(line)
    command[0] = f"{home}/fatbinary"
    for name, packing in PACKINGS.items():
        run(*(f"--create={made[name]}" if word.startswith("--create=") else word for word in command), *packing)
    return made


@pytest.fixture(scope="session")
def cubins(ptxas: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """PTX assembled, by architecture."""
    folder = tmp_path_factory.mktemp("cubins")
    made = {}
    for arch in ("sm_75", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_120f"):
        version = "9.0" if arch >= "sm_1" and arch < "sm_2" else "8.0"
        source = folder / f"{arch}.ptx"
        source.write_text(PTX.format(arch=arch).replace(".version 8.0", f".version {version}"))
        run(ptxas, f"-arch={arch}", source, "-o", folder / f"{arch}.cubin")
        made[arch] = (folder / f"{arch}.cubin").read_bytes()
    return made
