"""What the interpreter notes of a launch, worked out by hand."""

from __future__ import annotations

import struct

import numpy as np

from neutrino.emulator.gcn.launch import launch
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.program import Program
from neutrino.emulator.gcn.trace import Trace
from tests.emulator.gcn.by_text import descriptor

_TEXT = """s_load_dwordx2 s[4:5], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 3, v0
s_waitcnt lgkmcnt(0)
s_mov_b64 exec, 0xf0
global_load_dwordx2 v[2:3], v1, s[4:5] offset:8
s_mov_b64 exec, 3
ds_write_b16 v1, v2 offset:2
global_atomic_add v1, v2, s[4:5]
scratch_store_dword off, v2, off offset:4
s_endpgm"""


def test_accesses_and_instructions_are_noted() -> None:
    rows = [(4 * place, 4, text) for place, text in enumerate(_TEXT.split("\n"))]
    program = Program(rows, "gfx942", 64)
    trace = Trace(program)
    memory = Memory(1 << 20)
    at = memory.put(np.zeros(128, np.uint64))
    kernarg = struct.pack("<QQ", at, 0)
    settings = descriptor(64, lds=2048, scratch=16)
    launch(program, settings, 0, memory, (2, 1, 1), (128, 1, 1), kernarg, observer=trace.observe)
    waves = [((group, 0, 0), number) for group in range(2) for number in range(2)]
    assert sorted(trace.executed) == waves
    for wave in waves:
        assert dict(trace.executed[wave]) == {4 * place: 1 for place in range(10)}
        assert trace.lanes[wave][16] == 4
        assert trace.lanes[wave][24] == 2
    mine = [access for access in trace.accesses if access.wave == ((1, 0, 0), 1)]
    assert [(access.what, access.space, access.size, access.address) for access in mine] == [
        ("scalar load", "global", 8, 0), ("load", "global", 8, 16), ("store", "lds", 2, 24),
        ("atomic", "global", 4, 28), ("store", "scratch", 4, 32),
    ]  # fmt: skip
    load = mine[1]
    assert load.lanes.tolist() == [4, 5, 6, 7]
    assert load.exec == 0xF0
    # Work-items 68 to 71, of which each reads what is behind its own 8 bytes.
    assert load.addresses.tolist() == [at + 8 * (64 + lane) + 8 for lane in range(4, 8)]
    assert trace.bytes_of("load", "global") == dict.fromkeys(waves, 32)
    assert trace.bytes_of("scalar load", "global") == dict.fromkeys(waves, 8)
