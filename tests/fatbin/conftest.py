"""What NVIDIA's tools make of ``kernels.cu`` and of a small PTX text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fatbin_inputs import BUILDS, PTX, SOURCE, need, run


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
    """``kernels.cu`` as fatbins, by the keys of BUILDS."""
    folder = tmp_path_factory.mktemp("fatbins")
    made = {name: folder / f"{name}.fatbin" for name in BUILDS}
    running = {}
    for name, arguments in BUILDS.items():
        argv = [nvcc, "-fatbin", *arguments, "-o", str(made[name]), str(SOURCE)]
        running[name] = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if len(running) % 2 == 0:
            running[name].wait()
    for name, process in running.items():
        output, _ = process.communicate()
        assert process.returncode == 0, f"{name}: {output}"
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
