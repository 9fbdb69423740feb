"""Probe sets written as TOML, and the tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from neutrino.errors import ToolMissingError
from neutrino.probing.model import ProbeSet
from neutrino.probing.toml import load_probe_file, load_probes
from neutrino.toolchain import find_tool


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
    """A probe set from the text of a probe file."""

    def load(text: str) -> ProbeSet:
        path = tmp_path / "probe.toml"
        path.write_text('platform = "cuda"\n' + text)
        return load_probe_file(path)

    return load


@pytest.fixture(scope="session")
def block_sched() -> ProbeSet:
    return load_probes(["block_sched"])


@pytest.fixture(scope="session")
def gmem_bytes() -> ProbeSet:
    return load_probes(["gmem_bytes"])
