"""What the shipped probes cost: one kernel is measured anew."""

from __future__ import annotations

import pytest

from bench import registers
from neutrino.errors import ToolMissingError
from neutrino.toolchain.tool_choice import find_assembler


def test_padding_is_no_instruction() -> None:
    nop, add = (0x7918).to_bytes(16, "little"), (0x7210).to_bytes(16, "little")
    assert registers.instructions(add + nop + add + nop + nop) == 3


def test_one_kernel_is_measured_anew() -> None:
    try:
        assembler = find_assembler()
    except ToolMissingError as error:
        pytest.skip(str(error))
    text = (registers.HAND / "vecadd.gmem_bytes.ptx").read_text()
    rows = registers.examine("vecadd.ptx", text, ["gmem_bytes", "tensorop"], assembler)
    ((file, kernel, reason, before, after, *spills, count, more),) = rows["gmem_bytes"]
    assert (file, kernel, reason, spills) == ("vecadd.ptx", "vecadd", "probed", [0, 0])
    assert 0 < before <= after < 32
    assert 0 < count < more
    # Nothing is added where there is no matrix.
    assert rows["tensorop"] == []
