"""A kernel by clang, from its code object to its results."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from neutrino.emulator.gcn.errors import GcnFaultError
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.errors import ToolMissingError
from neutrino.gcn.llvm import find_llvm
from tests.gcn.objects import need_clang

_SOURCE = Path(__file__).with_name("vadd.hip")
_N = 300


def _loaded(processor: str, folder: Path) -> LoadedObject:
    clang = need_clang()
    try:
        llvm = find_llvm(processor)
    except ToolMissingError as error:
        pytest.skip(error.hint)
    made = folder / "vadd.hsaco"
    subprocess.run(
        [
            clang, "-x", "hip", f"--offload-arch={processor}", "--offload-device-only", "-nogpuinc", "-nogpulib",
            "--no-gpu-bundle-output", "-O2", str(_SOURCE), "-o", str(made),
        ],
        check=True,
    )  # fmt: skip
    return LoadedObject(made.read_bytes(), Memory(1 << 20), llvm.disassemble)


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100"])
def test_results_are_numpy_s_and_nothing_is_written_behind_them(processor: str, tmp_path: Path) -> None:
    loaded = _loaded(processor, tmp_path)
    random = np.random.default_rng(3)
    a, b = random.standard_normal((2, _N)).astype(np.float32)
    memory = loaded.memory
    at = [memory.put(a), memory.put(b), memory.put(np.zeros(_N, np.float32))]
    statistics = loaded.run("vadd", (3, 1, 1), (128, 1, 1), struct.pack("<QQQi", *at, _N), seed=1, checks=True)
    assert memory.read(at[2], 4 * _N) == (a + b).tobytes()
    assert statistics.waves == (6 if processor == "gfx942" else 12)
    # One element more does not exist.
    with pytest.raises(
        GcnFaultError, match="lie in no buffer: 1200 bytes behind the begin of one of 1200 bytes"
    ) as caught:
        loaded.run("vadd", (3, 1, 1), (128, 1, 1), struct.pack("<QQQi", *at, _N + 1))
    assert caught.value.kind == "memory"
