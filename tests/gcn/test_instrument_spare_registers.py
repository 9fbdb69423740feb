"""Values of probes in lanes of spare VGPRs: counted at every instruction of a kernel, whose results keep their bits."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest

from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.emulator.gcn.wave import Wave
from neutrino.fatbin.code_object import read_code_object
from neutrino.fatbin.code_object_append import Appended, append_kernels, place
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.analysis.placement import Placement
from neutrino.gcn.code import Module, decode, split_target, wave_features
from neutrino.gcn.instrument.code import NoRegistersError, Scalar
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.spare_registers import Lanes, SpareRegisters, spare_registers
from neutrino.gcn.processors import PROCESSORS
from neutrino.gcn.splice import Insertion, splice, spliced_size
from tests.emulator.gcn import judge
from tests.gcn.hazard_judge import HazardJudge
from tests.gcn.objects import need_clang, need_llvm

_VALUES = judge.inputs(5)
_SCRATCH = 5
_TWIN = "{}__counted"


def _module(data: bytes) -> Module:
    found = code_object_functions(data, "built here")
    processor, features = split_target(found.target)
    return decode(found.functions, processor, features, need_llvm())


def _registers(data: bytes, module: Module, kernel: str, left: int) -> tuple[SpareRegisters, KernelRegisters]:
    """Registers for two values and more, as if only so many SGPRs that nothing names were left."""
    function = module.function(kernel)
    assert function is not None
    registers = KernelRegisters(module, function, PROCESSORS[module.processor])
    machine = Machine(PROCESSORS[module.processor], function.wave)
    vgprs = read_code_object(data, "built here").kernels[kernel].vgprs
    taken = registers.free_scalars()[left:]
    wanted = {"often": 1, "count": 2, "other": 1}
    return spare_registers(registers, machine, wanted, _SCRATCH, vgprs=vgprs, taken=taken), registers


def _scalar_count(spare: SpareRegisters) -> int:
    """One more than the highest SGPR that the probes may name."""
    kept = (place.first + place.words for place in spare.kept.values() if isinstance(place, Scalar))
    return max((*kept, *(number + 1 for number in spare.free)), default=1)


def _snippet(spare: SpareRegisters, offset: int, *, is_scc_live: bool, not_lent: int) -> list[str]:
    """Add 1 to a value of two words, and overwrite as many SGPRs as it says that it takes."""
    machine = spare.machine
    for attempt in spare.attempts(offset, ["count"], not_lent, labels=f"n{offset}_"):
        try:
            code = attempt.begin()
            scratch = [code.scalar() for _ in range(_SCRATCH)]
        except NoRegistersError:
            continue
        kept, count = scratch[0].text, attempt.places["count"]
        if is_scc_live:
            code.emit(f"s_cselect_b32 {kept}, 1, 0")
        code.emit(f"{machine.add} {count.word(0)}, {count.word(0)}, 1")
        code.emit(f"{machine.add_carry} {count.word(1)}, {count.word(1)}, 0")
        code.emit(*(f"s_not_b32 {one.text}, {one.text}" for one in scratch[1:]))
        if is_scc_live:
            code.emit(f"s_cmp_lg_u32 {kept}, 0")
        return attempt.written()
    raise AssertionError("no attempt had enough registers")


def _begin(spare: SpareRegisters, not_lent: int) -> list[str]:
    for attempt in spare.attempts(0, ["often", "count", "other"], not_lent):
        try:
            code = attempt.begin()
        except NoRegistersError:
            continue
        count = attempt.places["count"]
        code.emit(f"s_mov_b32 {count.word(0)}, -3", f"s_mov_b32 {count.word(1)}, 7")
        code.emit(f"s_mov_b32 {attempt.places['often'].text}, 11", f"s_mov_b32 {attempt.places['other'].text}, 13")
        return attempt.written()
    raise AssertionError


def _twin(data: bytes, module: Module, kernel: str, left: int) -> tuple[bytes, SpareRegisters, int]:
    """A code object with a twin that counts its instructions, its registers, and how many pieces of code it has."""
    spare, registers = _registers(data, module, kernel, left)
    function, llvm = registers.kernel, need_llvm()
    features = wave_features(module.processor, module.features, function.wave)
    liveness, placement = registers.liveness, Placement(function)

    def assembled(lines: list[str]) -> bytes:
        return llvm.assemble("\n".join(lines), module.processor, features)

    insertions = [Insertion(0, assembled(_begin(spare, 0)), ahead_of_label=False)]
    for row in function.instructions:
        block = liveness.graph.block_of(liveness.graph.index_at[row.offset])
        is_closed = placement.before(row.offset) != row.offset
        if is_closed or block not in liveness.graph.reachable or row.mnemonic == "s_code_end":
            continue
        reads = liveness.effects[liveness.graph.index_at[row.offset]].named
        lines = _snippet(spare, row.offset, is_scc_live=liveness.scc_live_at(row.offset), not_lent=reads)
        insertions.append(Insertion(row.offset, assembled(lines)))
    (address,) = place(data, [spliced_size(function, insertions)])
    code = splice(function, insertions, address).code
    vgprs = max(spare.vectors, default=-1) + 1
    appended = Appended(_TWIN.format(kernel), kernel, code, _scalar_count(spare), vgprs, 8)
    return append_kernels(data, [appended]), spare, len(insertions) - 1


class _Counts:
    """Counts what a wave executes, and reads what the twin has counted before it ends."""

    def __init__(self, ends: set[int], counted: set[int], place_of: Scalar | Lanes) -> None:
        self._ends, self._counted, self._place = ends, counted, place_of
        self.executed: Counter[tuple[object, int]] = Counter()
        self.read: dict[tuple[object, int], int] = {}

    def __call__(self, wave: Wave, place: int) -> None:
        key = wave.group.index, wave.number
        if place in self._counted:
            self.executed[key] += 1
        if place in self._ends:
            where = self._place
            if isinstance(where, Lanes):
                words = [int(wave.v[where.vectors[lane // wave.lanes]][lane % wave.lanes])
                         for lane in range(where.first, where.first + 2)]  # fmt: skip
            else:
                words = [wave.s[where.first], wave.s[where.first + 1]]
            self.read[key] = words[0] | words[1] << 32


def _run(data: bytes, name: str, observer: _Counts | None = None) -> tuple[bytes, LoadedObject]:
    a, b, before = _VALUES
    loaded = LoadedObject(data, Memory(16 << 20), need_llvm().disassemble)
    at = [loaded.memory.put(values) for values in (a, b, before)]
    arguments = struct.pack("<QQQ", *at)
    loaded.run(
        name, (judge.GROUPS, 1, 1), (judge.BLOCK, 1, 1), arguments, seed=3, poison=4, checks=True, observer=observer
    )
    return loaded.memory.read(at[2], before.nbytes), loaded


@pytest.mark.parametrize(
    ("processor", "options", "left", "names"),
    [
        ("gfx942", ("-O2",), 1, ("common_divisor", "left_early", "calling")),
        ("gfx1100", ("-O1",), 0, ("shifted_wide", "scanned")),
        ("gfx1100", ("-O2", "-mwavefrontsize64"), 0, ("common_divisor",)),
    ],
)  # fmt: skip
def test_what_is_in_lanes_is_kept_and_results_keep_their_bits(
    tmp_path: Path, processor: str, options: tuple[str, ...], left: int, names: tuple[str, ...]
) -> None:
    need_clang()
    data = judge.compile_for_gpu(tmp_path, processor, options)
    module = _module(data)
    pieces = lent = 0
    for kernel in judge.kernels():
        if kernel.name not in names:
            continue
        image, spare, count = _twin(data, module, kernel.name, left)
        pieces += count
        kept = spare.kept["count"]
        assert isinstance(kept, Lanes)
        lent += spare.borrowed_at
        expected, plain = _run(data, kernel.name)
        function = module.function(kernel.name)
        assert function is not None

        # What the original executes, counted there.
        originals = Placement(function)
        at = {row.address: place for place, row in enumerate(plain.program(function.wave).instructions)}
        counted = {at[function.address + row.offset] for row in function.instructions
                   if function.address + row.offset in at and originals.before(row.offset) == row.offset}  # fmt: skip
        seen = _Counts(set(), counted, kept)
        again, _ = _run(data, kernel.name, seen)
        assert again == expected

        twin = LoadedObject(image, Memory(16 << 20), need_llvm().disassemble)
        ends = {place for place, row in enumerate(twin.program(function.wave).instructions) if row.text == "s_endpgm"}
        reading = _Counts(ends, set(), kept)
        found, _ = _run(image, _TWIN.format(kernel.name), reading)
        assert found == expected, kernel.name
        start = (7 << 32) + (1 << 32) - 3
        assert reading.read == {key: start + number for key, number in seen.executed.items()}, kernel.name
    assert pieces > 60
    assert lent > 0


def test_most_kernels_keep_values_in_scalar_registers(tmp_path: Path) -> None:
    need_clang()
    data = judge.compile_for_gpu(tmp_path, "gfx942", ("-O2",))
    module = _module(data)
    spare, registers = _registers(data, module, judge.kernels()[0].name, 200)
    assert not spare.vectors
    assert all(isinstance(one, Scalar) for one in spare.kept.values())
    assert set(spare.free) <= set(registers.free_scalars())
    attempts = list(spare.attempts(0, ["count"]))
    assert len(attempts) == 1
    code = attempts[0].begin()
    code.emit("s_nop 7")
    assert attempts[0].written() == ["s_nop 7"]


def test_llvm_finds_no_hazard_in_what_brings_and_keeps_values(tmp_path: Path) -> None:
    need_clang()
    compare, load = "v_cmp_eq_u32_e64 {}, v1, v2", "global_load_{} v1, v2, s[4:5]"
    for processor, mask, size in (("gfx942", "s[4:5]", "dword"), ("gfx1100", "s4", "b32")):
        data = judge.compile_for_gpu(tmp_path, processor, ("-O1",))
        spare, _ = _registers(data, _module(data), "calling", 0)
        sequences = []
        for attempt in spare.attempts(0, ["often", "count", "other"]):
            try:
                code = attempt.begin()
                code.emit(*(f"s_not_b32 {code.scalar().text}, 1" for _ in range(max(len(attempt.borrowed) - 4, 1))))
            except NoRegistersError:
                continue
            sequences.append([compare.format(mask), *attempt.written(), load.format(size)])
        assert sequences
        assert any(line.startswith("v_writelane_b32") for line in sequences[-1][:4])
        judged = HazardJudge(processor, spare.machine.wave)
        assert judged.added(sequences) == [[]] * len(sequences), processor
        if processor == "gfx942":
            # The control: without the waits LLVM adds them.
            bare = [line for line in sequences[-1] if not line.startswith("s_nop")]
            assert judged.added([bare]) != [[]]
