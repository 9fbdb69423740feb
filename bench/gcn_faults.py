"""Faults that are put into copies of AMD's kernels, to see that running them shows it: ``python -m bench.gcn_faults``.

Kernels of ``judged.hip`` in the tests get code inserted that does nothing, and are appended to their object: that is
the control, which must compute what this CPU does. Then, one at a time, a fault: of inserted code, of what is moved,
of the descriptor, the note, symbols and segments. A fault is noticed if the interpreter refuses to load or to run the
copy, or if a result differs. Writes ``bench/results/gcn_faults.json``.
"""

from __future__ import annotations

import random
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.recorded import save
from bench.tree import made_of
from neutrino.emulator.gcn.errors import GcnError
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.object_file import LoadedObject
from neutrino.fatbin.code_object_append import Appended, append_kernels, place
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.code import Function, Instruction, decode, split_target
from neutrino.gcn.llvm import find_llvm
from neutrino.gcn.splice import Insertion, SpliceError, splice, spliced_size
from tests.emulator.gcn import judge

RESULTS = Path(__file__).resolve().parent / "results" / "gcn_faults.json"
LEAST = 60
"""Faults that must be noticed, of each processor."""
PROCESSORS = ("gfx942", "gfx1100")
_KERNELS = (
    "mixed_sums", "divided_wide", "collatz", "cyclic_code", "switched", "looked_up", "left_early", "float_quotients",
    "carried", "chosen", "summed", "sorted_together", "exchanged", "counted_together",
)  # fmt: skip
_TWIN = "__twin"
_SEED = 3
_WORD = 4
_LIMIT = 20_000
"""Instructions of a wave: none of the kernels needs more, and a lost branch may go on for ever."""


Change = Callable[[bytearray, dict[int, int]], None]


class _Copy:
    """A copy of one kernel with code inserted, and what faults need to know."""

    def __init__(self, data: bytes, name: str, processor: str) -> None:
        """Decode the kernel. data: the code object."""
        self.data, self.name, self.processor = data, name, processor
        self.llvm = find_llvm(processor)
        functions = code_object_functions(data, name)
        cpu, features = split_target(functions.target)
        rows = [(f.name, f.address, bytes(f.code), f.is_kernel, f.wave) for f in functions.functions]
        found = decode(rows, cpu, features, self.llvm).function(name)
        assert found is not None
        self.function: Function = found
        self.lanes = found.wave
        self._places: list[Instruction] = []

    def assembled(self, text: str) -> bytes:
        """Return the machine code of an assembly text for the kernel's processor."""
        return self.llvm.assemble(text, self.processor)

    def places(self) -> list[Instruction]:
        """Return the instructions of the kernel in front of which code may be inserted."""
        if self._places:
            return self._places
        allowed = self._places
        nop = self.assembled("s_nop 0")
        for row in self.function.instructions:
            try:
                splice(self.function, [Insertion(row.offset, nop)], self.function.address)
            except SpliceError:
                continue
            if row.mnemonic and not any(low.get_pc < row.offset <= low.high for low in self.function.literals):
                allowed.append(row)
        return allowed

    def nothing(self) -> list[Insertion]:
        """Return insertions into a kernel that change nothing that its own code reads."""
        choice = random.Random(_SEED)
        code = [self.assembled(text) for text in ("s_nop 0", "s_mov_b32 s90, 0x1234", "s_mov_b32 s91, s90")]
        return [Insertion(row.offset, choice.choice(code)) for row in self.places() if choice.random() < 0.5]

    def written(self, insertions: list[Insertion], change: Change | None = None) -> bytes:
        """Return the code object with a copy of the kernel into which code is inserted.

        change: what changes the copy's code, given where the original's instructions are in it.
        """
        (address,) = place(self.data, [spliced_size(self.function, insertions)])
        made = splice(self.function, insertions, address)
        code = bytearray(made.code)
        if change is not None:
            change(code, dict(made.moved))
        return append_kernels(self.data, [Appended(self.name + _TWIN, self.name, bytes(code), 92, 0, 8)])


def _code_faults(copy: _Copy) -> Iterator[tuple[str, bytes]]:
    """Yield copies with faults of what is inserted or moved."""
    base = copy.nothing()
    places = copy.places()
    wide = copy.lanes == 64
    execution, vcc, mov = ("exec", "vcc", "s_mov_b64") if wide else ("exec_lo", "vcc_lo", "s_mov_b32")

    def inserted(what: str, text: str, at: Instruction) -> tuple[str, bytes]:
        """Return the fault's name, and the object whose copy has an instruction too many that does harm."""
        return what, copy.written([*base, Insertion(at.offset, copy.assembled(text))])

    def first(pattern: str, rows: list[Instruction]) -> Instruction | None:
        """Return the first instruction whose text matches a pattern, None if none does."""
        return next((row for row in rows if re.match(pattern, row.text)), None)

    entry = places[0]
    yield inserted("the arguments' address lost", "s_mov_b64 s[0:1], 0", entry)
    yield inserted("EXEC cut", f"{mov} {execution}, 1", entry)
    yield inserted("the work-item's number lost", "v_mov_b32 v0, 0", entry)
    yield inserted("ended early", "s_endpgm", places[len(places) // 2])
    yield inserted("a register that the wave has not", "v_mov_b32 v200, 0", entry)
    store = first(r"(global|flat)_(store|atomic)", places)
    if store is not None:
        yield inserted("EXEC cut in front of a store", f"{mov} {execution}, 0", store)
    carry = first(r"s_cbranch_scc|s_cselect|s_addc|s_add_co_ci|s_subb", places)
    if carry is not None:
        for value in (0, 1):
            yield inserted(f"SCC made {value}", f"s_cmp_eq_u32 0, {1 - value}", carry)
    choice = first(r"v_cndmask\w+_e32|s_cbranch_vcc|v_addc_co_u32_e32|v_add_co_ci_u32_e32", places)
    if choice is not None:
        yield inserted("VCC lost", f"{mov} {vcc}, 0", choice)
        yield inserted("VCC set", f"{mov} {vcc}, -1", choice)
    rows = copy.function.instructions
    nop = struct.pack("<I", 0xBF800000)

    def nops(row: Instruction) -> Callable[[bytearray, dict[int, int]], None]:
        """Return what overwrites an instruction in the copy with instructions that do nothing."""
        def change(code: bytearray, moved: dict[int, int]) -> None:
            """Overwrite the instruction where it is in the copy."""
            at = moved[row.offset]
            code[at : at + row.size] = nop * (row.size // _WORD)

        return change

    waits = [row for row in rows if row.mnemonic.startswith("s_wait")][:3]
    for number, row in enumerate(waits):
        yield f"wait {number} lost", copy.written(base, nops(row))
    for row in [row for row in rows if row.mnemonic.startswith(("global_store", "ds_write", "ds_store"))][:1]:
        yield "a store lost", copy.written(base, nops(row))
    for row in [row for row in rows if row.mnemonic == "s_barrier"][1:2]:
        yield "a barrier lost", copy.written(base, nops(row))
    for row in [row for row in rows if row.target is not None][:2]:
        for by in (-1, 1):

            def shifted(code: bytearray, moved: dict[int, int], row: Instruction = row, by: int = by) -> None:
                """Let a branch in the copy lead one word too far, or too short."""
                at = moved[row.offset]
                (words,) = struct.unpack_from("<h", code, at)
                struct.pack_into("<h", code, at, words + by)

            yield f"a branch {by:+d} word", copy.written(base, shifted)
    for literal in copy.function.literals[:1]:

        def moved_literal(code: bytearray, moved: dict[int, int], literal: Any = literal) -> None:
            """Make an address that the copy's code forms from the program counter 64 bytes too high."""
            low = max(offset for offset in moved if offset <= literal.low)
            at = moved[low] + literal.low - low
            struct.pack_into("<I", code, at, (struct.unpack_from("<I", code, at)[0] + 64) & 0xFFFF_FFFF)

        yield "an address 64 bytes off", copy.written(base, moved_literal)


def _file_faults(copy: _Copy) -> Iterator[tuple[str, bytes]]:
    """Yield copies with faults of the descriptor, the note, symbols and segments."""
    data = copy.written(copy.nothing())
    loaded = LoadedObject(data, Memory(16 << 20), copy.llvm.disassemble)
    address = loaded.symbols[copy.name + _TWIN + ".kd"] - loaded.base
    segments = [row for row in loaded._segments if row[0] == 1]
    at = next(address - row[3] + row[2] for row in segments if row[3] <= address < row[3] + row[6])

    def changed(what: str, offset: int, layout: str, change: Callable[[int], int]) -> tuple[str, bytes]:
        """Return the fault's name, and the object with a number of the copy's descriptor changed.

        offset, layout: where it is in the descriptor, and its format as ``struct`` has it.
        """
        new = bytearray(data)
        (value,) = struct.unpack_from(layout, new, at + offset)
        struct.pack_into(layout, new, at + offset, change(value))
        return what, bytes(new)

    yield changed("descriptor: LDS", 0, "<I", lambda value: value + 128)
    yield changed("descriptor: scratch", 4, "<I", lambda value: value + 16)
    yield changed("descriptor: arguments", 8, "<I", lambda value: value - 8)
    yield changed("descriptor: entry", 16, "<q", lambda value: value + 4)
    yield changed("descriptor: entry of no code", 16, "<q", lambda value: value + (1 << 20))
    yield changed("descriptor: vector registers", 48, "<I", lambda value: value & ~0x3F)
    yield changed("descriptor: user registers", 52, "<I", lambda value: value + 2)
    yield changed("descriptor: no number of the work-group", 52, "<I", lambda value: value & ~0x80)
    yield changed("descriptor: no arguments", 56, "<H", lambda value: value & ~8)
    yield changed("descriptor: lanes", 56, "<H", lambda value: value ^ 0x400)
    if copy.processor.startswith("gfx9"):
        yield changed("descriptor: scalar registers", 48, "<I", lambda value: value & ~0x3C0)
    twin = (copy.name + _TWIN).encode()
    for key in (b".kernarg_segment_size", b".group_segment_fixed_size", b".wavefront_size"):
        new = bytearray(data)
        # The note that counts is the last one.
        found = new.rindex(key) + len(key)
        new[found] = new[found] ^ 1
        yield f"note: {key.decode()}", bytes(new)
    name = data.rindex(twin + b".kd\0")
    renamed = bytearray(data)
    renamed[name] ^= 1
    yield "a symbol's name", bytes(renamed)
    for number, row in enumerate(segments[-2:]):
        header = data.index(struct.pack("<IIQQ", row[0], row[1], row[2], row[3]))
        shifted = bytearray(data)
        struct.pack_into("<Q", shifted, header + 16, row[3] + 8)
        yield f"segment {number}: address", bytes(shifted)
        cut = bytearray(data)
        struct.pack_into("<QQ", cut, header + 32, row[5] // 2, row[6] // 2)
        yield f"segment {number}: size", bytes(cut)


def _noticed(data: bytes, copy: _Copy, kernel: judge.Judged, values: Any, expected: Any) -> str:
    """Return how a copy differs from the kernel, "" if it does not."""
    twin = judge.Judged(kernel.name + _TWIN, kernel.is_phased, kernel.kind)
    try:
        for seed in (1, 2):
            for _, found, _ in judge.on_gpu(data, copy.llvm.disassemble, [twin], values, seed, _LIMIT):
                if judge.differences(kernel, expected, found):
                    return "results"
    except GcnError as error:
        return getattr(error, "kind", "refused")
    return ""


def main() -> int:
    """Try all faults, write what was noticed, and return 1 if too few were."""
    rows: list[dict[str, str]] = []
    kernels = {kernel.name: kernel for kernel in judge.kernels()}
    values = judge.inputs(_SEED)
    with tempfile.TemporaryDirectory() as folder:
        cpu = judge.compile_for_cpu(Path(folder))
        for processor in PROCESSORS:
            data = judge.compile_for_gpu(Path(folder), processor, ("-O2",))
            for name in _KERNELS:
                kernel = kernels[name]
                expected = judge.on_cpu(cpu, kernel, *values)
                copy = _Copy(data, name, processor)
                control = _noticed(copy.written(copy.nothing()), copy, kernel, values, expected)
                rows.append({"processor": processor, "kernel": name, "fault": "", "noticed": control})
                faults = [*_code_faults(copy), *(_file_faults(copy) if name in _KERNELS[:2] else ())]
                for fault, broken in faults:
                    how = _noticed(broken, copy, kernel, values, expected)
                    rows.append({"processor": processor, "kernel": name, "fault": fault, "noticed": how})
                missed = [row["fault"] for row in rows if row["kernel"] == name and row["fault"] and not row["noticed"]
                          and row["processor"] == processor]  # fmt: skip
                print(f"{processor} {name}: control {control or 'right'}, {len(faults)} faults, not noticed: {missed}")
    save(RESULTS, {"rows": rows, **made_of("gcn_faults")})
    return int(problems(rows) != [])


def problems(rows: list[dict[str, str]]) -> list[str]:
    """Return what is wrong with the results: kernels of which fewer faults were noticed than must be, and copies
    without a fault in which one was seen."""
    found = [f"control {row['processor']} {row['kernel']}" for row in rows if not row["fault"] and row["noticed"]]
    for processor in PROCESSORS:
        count = sum(row["processor"] == processor and row["fault"] != "" and row["noticed"] != "" for row in rows)
        if count < LEAST:
            found.append(f"{processor}: {count} faults noticed")
    return found


if __name__ == "__main__":
    sys.exit(main())
