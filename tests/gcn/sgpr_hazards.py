"""Judges machine code of gfx12 for reads of SGPRs that come too early, as LLVM's pass AMDGPUWaitSGPRHazards does.

Once a vector instruction has read one of a pair of SGPRs, what is written to it later has to be waited for before it is
read: by ``s_wait_alu``, or a load of the scalar unit or by a buffer, which wait. Several ``ds_nop`` in a row end that
the pair counts as read. Compilers since LLVM 20 write these waits; what clang 19 compiles lacks many.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import Function, Instruction, is_call
from neutrino.gcn.isa.effects import effects
from neutrino.gcn.isa.memory import access_of

_VCC = 3 << 106
_NUMBERED = (1 << 124) - 1
"""SGPRs, VCC and the trap handler's; neither M0, null nor EXEC."""
_FLAT = ("flat_", "global_", "scratch_")
_FIELD = re.compile(r"depctr_(\w+)\((\d+)\)")
_ENDS = ("s_endpgm", "s_endpgm_saved")


@dataclass(frozen=True)
class _State:
    """tracked: pairs of which a vector instruction has read one. scalar, vector: SGPRs with what each unit
    has written, and may not be there yet. nops: of LDS, in a row."""

    tracked: int = 0
    scalar: int = 0
    vector: int = 0
    nops: int = 0

    def merged(self, other: _State) -> _State:
        return _State(
            self.tracked | other.tracked, self.scalar | other.scalar, self.vector | other.vector,
            min(self.nops, other.nops),
        )  # fmt: skip


def _pairs(registers: int) -> int:
    """Both of each pair of which one is in a set."""
    even = int("01" * 62, 2)
    return registers | (registers & even) << 1 | registers >> 1 & even


def _waited(row: Instruction) -> set[str]:
    return {match[1] for word in row.operands for match in _FIELD.finditer(word) if match[2] == "0"}


def _step(state: _State, row: Instruction, wave: int, named: int, read: int) -> tuple[_State, set[str]]:
    """The state behind an instruction, and the waits that it lacks: ``sa_sdst``, ``va_sdst``, ``va_vcc``. named: what a
    called or calling function may read. read: what vector instructions of such may have read."""
    name = row.mnemonic
    if name == "ds_nop":
        nops = state.nops + 1
        return replace(state, nops=nops, tracked=0 if nops >= (8 if wave == 64 else 4) else state.tracked), set()
    state = replace(state, nops=0)
    if name == "s_wait_alu":
        fields = _waited(row)
        scalar = 0 if "sa_sdst" in fields else state.scalar
        vector = state.vector & (_VCC if "va_sdst" in fields else _NUMBERED)
        return replace(state, scalar=scalar, vector=vector & ~(_VCC if "va_vcc" in fields else 0)), set()
    is_load = name.startswith("s_") and access_of(row) is not None
    if is_load or (access_of(row) is not None and not name.startswith((*_FLAT, "ds_"))):
        return replace(state, scalar=0, vector=0), set()
    is_vector = name.startswith("v_")
    if not is_vector and not name.startswith("s_"):
        return state, set()
    found = effects(row, 12)
    lacks = set()
    leaves = is_call(row) or name == "s_setpc_b64"
    reads = (named if leaves else found.reads) & _NUMBERED
    # The table of effects has reads of VCC that only some forms have; branches LLVM does not count.
    if not leaves and (name.startswith("s_cbranch") or ("vcc" not in row.text and not name.startswith("v_div_fmas"))):
        reads &= ~_VCC
    if not is_vector and not leaves:
        # The scalar unit waits for what the vector unit writes: LLVM looks at tracked pairs alone.
        arrived = (_NUMBERED & ~_VCC if reads & ~_VCC else 0) | (_VCC if reads & _VCC else 0)
        state = replace(state, vector=state.vector & ~arrived)
    late = reads if leaves else reads & state.tracked
    if state.scalar & late:
        lacks.add("sa_sdst")
    if state.vector & late & ~_VCC and (is_vector or leaves):
        lacks.add("va_sdst")
    if state.vector & late & _VCC:
        lacks.add("va_vcc")
    scalar, vector = state.scalar, state.vector
    tracked = state.tracked | (_pairs(reads) if is_vector else 0)
    if is_call(row):
        tracked |= read
    writes = (0 if found.calls else found.writes) & _NUMBERED & tracked
    if is_vector:
        vector |= writes
        scalar &= ~(writes & _VCC)
    else:
        scalar |= writes
        vector &= ~(writes & _VCC)
    return _State(tracked, scalar, vector), lacks


def missing_waits(
    function: Function, wave: int, named: int = _NUMBERED, read: int = _NUMBERED
) -> dict[int, set[str]]:  # fmt: skip
    """The waits that a function's instructions lack, by their offsets. named: SGPRs of the kernel and what it calls.
    read: those that vector instructions of these may have read where a function is called or begins."""
    graph = FlowGraph(function)
    start = _State() if function.is_kernel else _State(tracked=read & _NUMBERED)
    entry: dict[int, _State] = {0: start}
    lacking: dict[int, set[str]] = {}
    waiting = [0]
    while waiting:
        number = waiting.pop()
        state = entry[number]
        for index in range(graph.blocks[number].begin, graph.blocks[number].end):
            row = function.instructions[index]
            if row.mnemonic in _ENDS:
                break
            state, lacks = _step(state, row, wave, named, _pairs(read & _NUMBERED))
            if lacks:
                lacking.setdefault(row.offset, set()).update(lacks)
        for successor in graph.blocks[number].successors:
            merged = state if successor not in entry else entry[successor].merged(state)
            if merged != entry.get(successor):
                entry[successor] = merged
                waiting.append(successor)
    return lacking


def read_by_vectors(functions: Iterable[Function]) -> int:
    """The SGPRs that vector instructions of functions read, of kernels only what they may read before a call."""
    found = 0
    for function in functions:
        for row in _before_calls(function) if function.is_kernel else function.instructions:
            if row.mnemonic.startswith("v_"):
                found |= effects(row, 12).reads
    return found & _NUMBERED


def _before_calls(function: Function) -> list[Instruction]:
    """The instructions from which some way leads to a call."""
    graph, rows = FlowGraph(function), function.instructions
    ends = [
        max((index + 1 for index in range(block.begin, block.end) if is_call(rows[index])), default=block.begin)
        for block in graph.blocks
    ]
    leading = {number for number, block in enumerate(graph.blocks) if ends[number] > block.begin}
    while True:
        more = {number for number, block in enumerate(graph.blocks) if leading.intersection(block.successors)} - leading
        if not more:
            break
        leading |= more
    return [
        row for number, block in enumerate(graph.blocks)
        for row in rows[block.begin : block.end if leading.intersection(block.successors) else ends[number]]
    ]  # fmt: skip


def new_hazards(original: Function, twin: Function, inserted: dict[int, bytes], named: int, read: int) -> list[str]:
    """What a twin lacks and its original does not. inserted: what is in front of each instruction, by its offset in the
    original, as ``twin_reader`` finds it. named: SGPRs of the kernel and what it calls. read: those that vector
    instructions read, of the twin, of its copies of functions, and of functions that it may call as they are."""
    before, now = (missing_waits(one, original.wave, named, read) for one in (original, twin))
    own: dict[int, int] = {}
    moved = 0
    for row in original.instructions:
        moved += len(inserted.get(row.offset, b""))
        own[row.offset + moved] = row.offset
    texts = {row.offset: row.text for row in twin.instructions}
    found = []
    for offset, lacks in now.items():
        known = before.get(own[offset], set()) if offset in own else set()
        if lacks - known:
            found.append(f"{offset:#x} {texts[offset]}: {sorted(lacks - known)}{'' if offset in own else ', inserted'}")
    return found
