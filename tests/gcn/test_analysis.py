"""Registers in use and free, judged by running: whatever is called free is overwritten before each instruction."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from neutrino.emulator.gcn.errors import GcnError
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.emulator.gcn.wave import Wave
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.analysis.liveness import Liveness
from neutrino.gcn.analysis.placement import Placement
from neutrino.gcn.code import Function, Instruction, Module, decode, split_target
from neutrino.gcn.isa.registers import ACCUMULATORS, SCC, vectors_in
from neutrino.gcn.processors import processor_named
from tests.emulator.gcn import judge
from tests.gcn.objects import CLANG, SOURCE, code_objects, need_clang, need_llvm

_VALUES = judge.inputs(5)
_VCC, _CLOBBERS = 106, (0x5A5A5A5A, 0xFFFFFFFF)


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    return code_objects()


def _decoded(data: bytes) -> Module:
    found = code_object_functions(data, "built here")
    processor, features = split_target(found.target)
    return decode(found.functions, processor, features, need_llvm())


def _registers(module: Module, kernel: str) -> KernelRegisters:
    processor, function = processor_named(module.processor), module.function(kernel)
    assert processor is not None
    assert function is not None
    return KernelRegisters(module, function, processor)


class _Clobber:
    """Overwrites registers before each instruction of a kernel: those that are free, or some that are in use."""

    def __init__(self, registers: KernelRegisters, addresses: list[int], *, in_use: bool = False) -> None:
        self._registers, self._addresses, self._in_use = registers, addresses, in_use
        self._free = registers.free_scalars()
        self._places: dict[int, tuple[bool, bool, list[int]]] = {}
        self.count = 0

    def __call__(self, wave: Wave, place: int) -> None:
        offset = self._addresses[place] - self._registers.kernel.address
        if not 0 <= offset < len(self._registers.kernel.code):
            return
        if offset not in self._places:
            liveness = self._registers.liveness
            free = liveness.free_vectors_at(offset, self._registers.vector_count + 2)
            self._places[offset] = liveness.scc_live_at(offset), liveness.vcc_live_at(offset), free
        scc, vcc, vectors = self._places[offset]
        value = _CLOBBERS[self.count & 1]
        self.count += 1
        if self._in_use:
            self._overwrite_what_is_read(wave, offset, scc=scc, vectors=set(vectors))
            return
        if not scc:
            wave.scc ^= 1
        if not vcc:
            wave.s[_VCC] = wave.s[_VCC + 1] = value
        for number in self._free:
            wave.s[number] = value
        wave.v[vectors] = value

    def _overwrite_what_is_read(self, wave: Wave, offset: int, *, scc: bool, vectors: set[int]) -> None:
        liveness = self._registers.liveness
        reads = liveness.effects[liveness.graph.index_at[offset]].reads
        wave.scc ^= scc and bool(reads & SCC)
        read = set(vectors_in(reads))
        assert not read & vectors
        wave.v[sorted(read)] ^= 1 << 3


def _run(loaded: LoadedObject, kernel: judge.Judged, observer: _Clobber | None) -> np.ndarray:
    a, b, before = _VALUES
    at = [loaded.memory.put(values) for values in (a, b, before)]
    arguments = struct.pack("<QQQ", *at)
    loaded.run(kernel.name, (judge.GROUPS, 1, 1), (judge.BLOCK, 1, 1), arguments, observer=observer)
    return np.frombuffer(loaded.memory.read(at[2], before.nbytes), np.uint64)


@pytest.mark.parametrize(("processor", "level", "step"), [("gfx942", "-O2", 6), ("gfx1100", "-O1", 7)])
def test_what_is_called_free_is_not_used(tmp_path: Path, processor: str, level: str, step: int) -> None:
    need_clang()
    data = judge.compile_for_gpu(tmp_path, processor, (level,))
    module = _decoded(data)
    noticed = overwritten = 0
    for kernel in judge.kernels()[::step]:
        loaded = LoadedObject(data, Memory(16 << 20), need_llvm().disassemble)
        expected = _run(loaded, kernel, None)
        registers = _registers(module, kernel.name)
        lanes = loaded.kernels[kernel.name].descriptor.lanes
        addresses = [row.address for row in loaded.program(lanes).instructions]
        clobber = _Clobber(registers, addresses)
        assert (_run(loaded, kernel, clobber) == expected).all(), kernel.name
        overwritten += clobber.count
        # The control: what is called in use is.
        try:
            noticed += (_run(loaded, kernel, _Clobber(registers, addresses, in_use=True)) != expected).any()
        except GcnError:
            noticed += 1
    assert overwritten > 1000
    assert noticed >= 2


_COMMENTS = re.compile(
    r"^; Kernel info:.*?; NumVgprs: (\d+)\n(?:; NumAgprs: (\d+)\n; TotalNumVgprs: (\d+)\n)?.*?; Occupancy: (\d+)",
    re.MULTILINE | re.DOTALL,
)


@pytest.mark.parametrize(("processor", "wave"), [("gfx90a", 64), ("gfx1030", 64), ("gfx1201", 32)])
def test_registers_and_waves_are_those_that_llvm_writes(
    objects: dict[str, Path], tmp_path: Path, processor: str, wave: int
) -> None:
    name = f"{processor}-wave64" if wave == 64 and processor != "gfx90a" else f"{processor}-O2"
    listing = tmp_path / "kernels.s"
    options = ["-mwavefrontsize64"] if name.endswith("wave64") else ["-mcode-object-version=4"]
    subprocess.run(
        [CLANG, "-x", "hip", "--offload-device-only", "-nogpuinc", "-nogpulib", "-w", f"--offload-arch={processor}",
         "-O2", *options, "-S", SOURCE.name, "-o", str(listing)],
        cwd=SOURCE.parent, check=True,
    )  # fmt: skip
    text = listing.read_text()
    module = _decoded(objects[name].read_bytes())
    judged = 0
    for function in module.functions:
        registers = _registers(module, function.name) if function.is_kernel else None
        if registers is None or registers.refused or len(registers.functions) > 1:
            continue
        begin = text.index(f"\n{function.name}:")
        found = _COMMENTS.search(text, text.index("; Kernel info:", begin))
        assert found is not None
        vgprs, agprs, total, waves = (int(word or 0) for word in found.groups())
        accumulators = (registers.named >> ACCUMULATORS).bit_length()
        assert (registers.vector_count, accumulators) == (vgprs, agprs), function.name
        size = ".amdhsa_group_segment_fixed_size "
        shared = int(text[text.index(size, begin) + len(size) :].split()[0])
        if not shared:
            # Else LDS may leave fewer.
            assert registers.processor.waves(total or vgprs, function.wave, registers.scalar_count) == waves
        judged += 1
    assert judged >= 10


def test_a_call_by_a_pointer_leaves_the_registers_of_every_function(objects: dict[str, Path]) -> None:
    for name in ("gfx942-O2", "gfx1100-O2"):
        module = _decoded(objects[name].read_bytes())
        refused = {function.name for function in module.functions
                   if function.is_kernel and _registers(module, function.name).refused}  # fmt: skip
        assert refused == set(), name
        functions = {function.name for function in module.functions if not function.is_kernel}
        assert {function.name for function in _registers(module, "pointers").functions} == {"pointers", *functions}
        (unknown,) = _registers(module, "pointers").reach.unknown
        assert "of pointers calls a function by a pointer" in unknown
        reached = {function.name for function in _registers(module, "calls").functions}
        assert {"calls"} < reached < functions | {"calls"}


def test_what_a_kernel_names_is_not_free(objects: dict[str, Path]) -> None:
    for name in ("gfx90a-O2", "gfx1030-O2"):
        module = _decoded(objects[name].read_bytes())
        for function in module.functions:
            if not function.is_kernel or _registers(module, function.name).refused:
                continue
            registers = _registers(module, function.name)
            named = set()
            for each in registers.functions:
                for row in each.instructions:
                    for first, last in re.findall(r"\bs\[(\d+):(\d+)\]", row.text):
                        named |= {*range(int(first), int(last) + 1)}
                    named |= {int(number) for number in re.findall(r"\bs(\d+)\b", row.text)}
            free = registers.free_scalars()
            assert not named & set(free)
            assert {*free, *named} >= {*range(registers.processor.sgprs)}


def _function(*rows: str) -> Function:
    """A function of instructions of 4 bytes; ``-> 3`` behind a branch is the row that it leads to."""
    instructions = []
    for place, row in enumerate(rows):
        text, _, target = row.partition(" -> ")
        mnemonic, *rest = text.split(" ", 1)
        operands = tuple(part.strip() for part in rest[0].split(", ")) if rest else ()
        instructions.append(
            Instruction(4 * place, 4, mnemonic, operands, (), text, 4 * int(target) if target else None)
        )
    return Function("k", 0, bytes(4 * len(rows)), True, 64, tuple(instructions))


def test_scc_is_in_use_as_long_as_some_way_reads_it() -> None:
    function = _function(
        "s_cmp_eq_u32 s0, 0", "s_mov_b32 s1, 1", "s_cbranch_scc1 4 -> 5", "s_add_u32 s2, s2, 1", "s_addc_u32 s3, s3, 0",
        "s_mov_b32 s4, 0", "s_endpgm",
    )  # fmt: skip
    liveness = Liveness(function, 9)
    assert [liveness.scc_live_at(4 * place) for place in range(7)] == [False, True, True, False, True, False, False]


def test_a_vector_register_is_in_use_wherever_it_is_read_behind() -> None:
    # The write to v1 leaves what inactive lanes have.
    function = _function(
        "v_mov_b32_e32 v1, 0", "s_mov_b64 exec, s[0:1]", "v_mov_b32_e32 v1, 1", "global_store_dword v2, v1, off",
        "global_load_dword v3, v2, off", "s_nop 0", "s_endpgm",
    )  # fmt: skip
    liveness = Liveness(function, 9)
    assert liveness.free_vectors_at(0, 5) == [0, 3, 4]
    # A load is under way to v3 although nothing reads it.
    assert liveness.free_vectors_at(20, 5) == [0, 1, 2, 4]


def test_loops_lead_back() -> None:
    function = _function("s_cmp_eq_u32 s0, 0", "s_nop 0", "s_cselect_b32 s1, 1, 0", "s_branch 1 -> 1")
    graph = FlowGraph(function)
    assert [(block.begin, block.end, block.successors) for block in graph.blocks] == [(0, 1, (1,)), (1, 4, (1,))]
    assert Liveness(function, 9).scc_live_at(12)


def test_nothing_goes_into_a_clause() -> None:
    function = _function(
        "s_nop 0", "s_clause 0x1", "s_load_b32 s0, s[2:3], 0x0", "s_load_b32 s1, s[2:3], 0x4", "s_nop 0"
    )
    placement = Placement(function)
    assert [placement.before(offset) for offset in (0, 4, 8, 12, 16)] == [0, 4, 4, 4, 16]
    assert [placement.after(offset) for offset in (0, 4, 8, 12)] == [4, 16, 16, 16]


def test_an_address_of_the_program_counter_stays_together(objects: dict[str, Path]) -> None:
    module = _decoded(objects["gfx90a-O2"].read_bytes())
    literals = 0
    for function in module.functions:
        placement = Placement(function)
        for literal in function.literals:
            literals += 1
            assert placement.before(literal.low - 4) == placement.before(literal.high - 4) == literal.get_pc
    assert literals
