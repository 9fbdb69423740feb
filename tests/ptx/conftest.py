"""Probe sets written as TOML, and the tools."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from ptx_text import array

from neutrino.errors import ToolMissingError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.toolchain.location import find_tool
from neutrino.verification import load_probe_file, load_probes


@pytest.fixture(scope="session")
def tools() -> None:
    """Skip where ptxas or nvdisasm is missing."""
    for name in ("ptxas", "nvdisasm"):
        try:
            find_tool(name)
        except ToolMissingError as error:
            pytest.skip(str(error))


@pytest.fixture
def probe_set(tmp_path: Path) -> Callable[[str], ProbeSet]:
    """A probe set from the text of a probe file; a map that nothing uses is added where the text has none."""

    def load(text: str) -> ProbeSet:
        path = tmp_path / "probe.toml"
        unused = "" if "[map." in text else array(["u64"], 8)
        path.write_text('platform = "cuda"\n' + unused + text)
        return load_probe_file(path)

    return load


@pytest.fixture
def count_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of how often a thread comes by a place, so that each run of sites adds where it stands."""
    monkeypatch.setattr(FlowGraph, "runs_once", lambda self, index: False)
    monkeypatch.setattr(FlowGraph, "runs_always", lambda self, index: False)


@pytest.fixture(scope="session")
def block_sched() -> ProbeSet:
    return load_probes(["block_sched"])


@pytest.fixture(scope="session")
def gmem_bytes() -> ProbeSet:
    return load_probes(["gmem_bytes"])


@pytest.fixture(scope="session")
def nvcc_ptx(tmp_path_factory: pytest.TempPathFactory) -> str:
    """``kernels.cu`` as nvcc writes it for sm_80, with line information."""
    out = tmp_path_factory.mktemp("nvcc") / "kernels.ptx"
    source = Path(__file__).parent / "kernels.cu"
    try:
        nvcc = find_tool("nvcc")
    except ToolMissingError as error:
        pytest.skip(str(error))
    argv = [str(nvcc), "-ptx", "-std=c++17", "-lineinfo", "-arch=compute_80", str(source), "-o", str(out)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"nvcc does not work: {result.stderr.strip()}")
    return out.read_bytes().decode("latin-1")
