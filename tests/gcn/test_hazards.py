"""Wait states that inserted code needs, as LLVM's hazard recognizer sees them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.gcn.hazard_judge import HazardJudge

# What writes a scalar register and what reads it so many wait states later at least, "Manually Inserted Wait States"
# of AMD's manuals of the instruction sets of MI200 and MI300.
NEEDED = (
    (["v_readfirstlane_b32 s4, v1"], ["v_readlane_b32 s5, v0, s4"], 4),
    (["v_readfirstlane_b32 s4, v1"], ["global_load_dword v2, v0, s[4:5]"], 5),
    (["v_mov_b32 v3, 0"], ["v_mov_b32_dpp v5, v3 row_shr:1 row_mask:0xf bank_mask:0xf"], 2),
)


@pytest.mark.parametrize("processor", ["gfx90a", "gfx942"])
def test_a_missing_wait_state_is_noticed(processor: str) -> None:
    judge = HazardJudge(processor)

    def sequences(too_few: int) -> list[list[str]]:
        return [[*before, f"s_nop {states - 1 - too_few}", *after] for before, after, states in NEEDED]

    assert judge.added(sequences(0)) == [[]] * len(NEEDED)
    assert all(map(_adds_a_wait, judge.added(sequences(1)))), judge.added(sequences(1))


def _adds_a_wait(added: Sequence[tuple[int, str]]) -> bool:
    return [text.split()[0] for _, text in added] == ["S_NOP"]
