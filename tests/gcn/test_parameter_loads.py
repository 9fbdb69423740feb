"""Which scalar loads are of a kernel's arguments: on every way through the code, not in the order of its text."""

from __future__ import annotations

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import decode
from neutrino.gcn.snippets.opcodes import parameter_loads
from tests.gcn.objects import need_llvm

_HAS_ARGUMENTS = 8
"""Their address is in s[0:1]."""


def loads_of_arguments(*lines: str, processor: str = "gfx1100") -> list[str]:
    """The lines of a kernel that load arguments. A number of words after a branch is how far it leads."""
    llvm = need_llvm()
    code = llvm.assemble("\n".join(lines), processor)
    wave = 64 if processor.startswith("gfx9") else 32
    (function,) = decode([("tried", 0, code, True, wave)], processor, "", llvm).functions
    found = parameter_loads(FlowGraph(function), _HAS_ARGUMENTS)
    return [row.text for row in function.instructions if row.offset in found]


def test_a_block_behind_others_has_what_its_ways_have() -> None:
    """Compilers put a block's copy at the end, after code that has other uses for the register."""
    assert loads_of_arguments(
        "s_cbranch_execnz 3",
        "s_load_b32 s0, s[0:1], 0x10",
        "s_endpgm",
        "s_load_b32 s4, s[0:1], 0x10",
        "s_endpgm",
    ) == ["s_load_b32 s0, s[0:1], 0x10", "s_load_b32 s4, s[0:1], 0x10"]


def test_what_is_there_on_some_ways_alone_is_none() -> None:
    assert loads_of_arguments(
        "s_cbranch_execnz 1",
        "s_mov_b32 s0, 0",
        "s_load_b32 s4, s[0:1], 0x10",
        "s_endpgm",
    ) == []  # fmt: skip


def test_a_loop_that_overwrites_it_has_it_the_first_time_alone() -> None:
    assert loads_of_arguments(
        "s_load_b32 s4, s[0:1], 0x10",
        "s_load_b32 s5, s[0:1], 0x10",
        "s_mov_b32 s1, 0",
        "s_cbranch_execnz 65532",
        "s_endpgm",
    ) == ["s_load_b32 s4, s[0:1], 0x10"]


def test_copies_are_followed_and_carries_overwrite() -> None:
    assert loads_of_arguments(
        "s_mov_b64 s[6:7], s[0:1]",
        "v_add_co_u32 v0, s0, v1, v2",
        "s_load_b32 s4, s[0:1], 0x10",
        "s_load_b32 s5, s[6:7], 0x10",
        "v_div_scale_f32 v0, s6, v1, v2, v1",
        "s_load_b32 s5, s[6:7], 0x10",
        "s_endpgm",
    ) == ["s_load_b32 s5, s[6:7], 0x10"]
