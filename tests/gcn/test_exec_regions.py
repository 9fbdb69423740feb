"""Regions of instructions that the same lanes execute, judged by what the interpreter sees of whole kernels."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.emulator.gcn.trace import Trace
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.analysis.exec_regions import ExecRegions
from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import Function, decode, split_target
from neutrino.gcn.processors import PROCESSORS
from tests.emulator.gcn import judge
from tests.gcn.objects import need_clang, need_llvm


def _counted(data: bytes, kernel: judge.Judged) -> list[tuple[dict[int, int], dict[int, int]]]:
    """How often each wave of a launch executes each instruction, and with how many lanes, by address."""
    loaded = LoadedObject(data, Memory(16 << 20), need_llvm().disassemble)
    arguments = struct.pack("<QQQ", *(loaded.memory.put(values) for values in judge.inputs(5)))
    trace = Trace(loaded.program(loaded.kernels[kernel.name].descriptor.lanes))
    loaded.run(kernel.name, (judge.GROUPS, 1, 1), (judge.BLOCK, 1, 1), arguments, observer=trace.observe)
    return [(dict(trace.executed[wave]), dict(trace.lanes[wave])) for wave in trace.executed]


@pytest.mark.parametrize(("processor", "level", "step"), [("gfx90a", "-O1", 8), ("gfx1100", "-O2", 9)])
def test_a_region_is_executed_as_its_head_is(tmp_path: Path, processor: str, level: str, step: int) -> None:
    need_clang()
    data = judge.compile_for_gpu(tmp_path, processor, (level,))
    found = code_object_functions(data, "built here")
    module = decode(found.functions, *split_target(found.target), need_llvm())
    regions = instructions = executed = 0
    for kernel in judge.kernels()[::step]:
        function = module.function(kernel.name)
        assert isinstance(function, Function)
        exec_regions = ExecRegions(FlowGraph(function), PROCESSORS[processor].generation)
        heads = {row.offset: exec_regions.head(row.offset) for row in function.instructions}
        regions += len(set(heads.values()))
        instructions += len(heads)
        for counts, lanes in _counted(data, kernel):
            for offset, head in heads.items():
                at, first = function.address + offset, function.address + head
                assert (counts.get(at), lanes.get(at)) == (counts.get(first), lanes.get(first)), (kernel.name, offset)
                executed += at in counts
    assert executed > 1000
    assert regions * 2 < instructions


def test_nothing_is_counted_in_front_of_where_a_kernel_begins() -> None:
    llvm = need_llvm()
    code = llvm.assemble("s_nop 0\ns_nop 1\ns_nop 2\ns_mov_b64 exec, 1\ns_nop 3\ns_endpgm", "gfx90a", "")
    (function,) = decode([("kernel", 0, code, True, 64)], "gfx90a", "", llvm).functions
    assert [ExecRegions(FlowGraph(function), 9, 4).head(offset) for offset in (4, 8, 12, 16, 20)] == [4, 4, 4, 16, 16]
