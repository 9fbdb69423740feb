"""What the shipped probes cost: the recorded figures are judged again, and one kernel is measured anew."""

from __future__ import annotations

import copy
import json

import pytest

from bench import registers
from neutrino.errors import ToolMissingError
from neutrino.resources import shipped_probes
from neutrino.toolchain.choice import find_assembler

_RESULT = json.loads(registers.RESULTS.read_text())


def test_recorded_figures_hold() -> None:
    wrong = [verdict for verdict in registers.judge(_RESULT) if not verdict.good]
    assert wrong == []
    assert set(_RESULT["probes"]) == set(shipped_probes())
    assert set(registers.LIGHT) <= set(_RESULT["probes"])
    assert len({(kernel, probe) for kernel, probe, *_ in _RESULT["hand"]}) == len(list(registers.HAND.glob("*.ptx")))


def test_the_page_holds_the_tables() -> None:
    page = (registers.ROOT / "bench" / "README.md").read_text()
    assert registers.page(_RESULT) in page


def test_dear_probes_and_spills_are_noticed() -> None:
    with_register = _RESULT["columns"].index("with")
    spilled = _RESULT["columns"].index("spilled_with")
    for place, value in ((with_register, 255), (spilled, 100_000)):
        result = copy.deepcopy(_RESULT)
        for row in result["probes"]["gmem_bytes"]:
            if row[3] == "probed":
                row[place] = value
        assert not all(verdict.good for verdict in registers.judge(result))


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
