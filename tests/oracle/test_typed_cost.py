"""Shipped probes in Python cost no more registers and machine instructions than the same ones in assembly."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from neutrino.resources import shipped_probes
from neutrino.toolchain.tool_choice import find_assembler
from tests.twin_costs import COLUMNS, FIXTURES, examine

HAND = Path(__file__).parents[1] / "fixtures" / "probes" / "hand"
FILES = (
    "clang/atomics.ptx", "clang/histograms.ptx", "hand/jumps.ptx", "hand/tensors.ptx", "triton/argmax.ptx",
    "triton/layernorm_bf16.ptx", "triton/softmax_sm_90.ptx",
)  # fmt: skip
MORE_REGISTERS = {"branch_divergence": 0.5, "program_progress": 0.25}
"""By probe, how many more there may be in the mean over the kernels: ptxas allocates a few differently, in both
directions."""
MORE_INSTRUCTIONS = {"program_progress": 1}
"""By probe, how many more there may be in all kernels together: ptxas places what waits for a barrier differently."""
NOT_JUDGED = {"smem_bank_conflict", "block_sched"}
"""Other algorithms: one is to execute less where accesses have no conflict, one is about the last thread of a warp."""

CLOCK_REGISTERS = 4.2
"""Most that ``block_sched`` may add in the mean over the kernels of ``FILES``. These are small: what the end computes
counts there more than elsewhere."""


def test_each_probe_by_hand_has_one_in_python() -> None:
    assert {path.stem for path in HAND.glob("*.toml")} <= {
        name for name, path in shipped_probes().items() if path.suffix == ".py"
    }


@pytest.mark.parametrize("name", sorted({path.stem for path in HAND.glob("*.toml")} - NOT_JUDGED))
def test_they_cost_no_more(name: str, ptxas: object) -> None:
    """Machine instructions and registers of the twins of all kernels together, at most those with the assembly."""
    paths = [str(HAND / f"{name}.toml"), str(shipped_probes()[name])]
    by_kernel: list[tuple[str, int, int]] = []
    for file in FILES:
        text = (FIXTURES / file).read_bytes().decode("latin-1")
        found = examine(file, text, paths, find_assembler())
        hand, own = (
            {row[1]: dict(zip(COLUMNS, row, strict=True)) for row in found.get(path, []) if row[2] == "probed"}
            for path in paths
        )
        assert hand.keys() <= own.keys()
        for kernel, row in ((kernel, own[kernel]) for kernel in hand):
            assert row["spilled_with"] <= row["spilled"], kernel
            more = (row[column] - hand[kernel][column] for column in ("with", "instructions_with"))
            by_kernel.append((kernel, *more))
    assert by_kernel
    assert sum(instructions for _, _, instructions in by_kernel) <= MORE_INSTRUCTIONS.get(name, 0), by_kernel
    assert fmean(registers for _, registers, _ in by_kernel) <= MORE_REGISTERS.get(name, 0), by_kernel


def test_a_clock_from_entry_to_exit_costs_few_registers(ptxas: object) -> None:
    """In the mean over kernels of all sizes: the clock takes two, what else lives beside it is little."""
    probe = str(shipped_probes()["block_sched"])
    added = []
    for file in FILES:
        text = (FIXTURES / file).read_bytes().decode("latin-1")
        rows = examine(file, text, [probe], find_assembler())[probe]
        probed = [dict(zip(COLUMNS, row, strict=True)) for row in rows if row[2] == "probed"]
        assert all(row["spilled_with"] <= row["spilled"] for row in probed)
        added += [row["with"] - row["registers"] for row in probed]
    assert len(added) > len(FILES)
    assert fmean(added) <= CLOCK_REGISTERS
