"""What instructions read and write without naming it, judged by LLVM's tables."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.code import Instruction, decode, split_target
from neutrino.gcn.isa.effects import Effects, effects
from neutrino.gcn.isa.memory import Kind, Space, access_of, gives_result, operands_of
from neutrino.gcn.isa.mnemonics import rows
from neutrino.gcn.isa.registers import (
    EXEC,
    FLAT_SCRATCH,
    M0_SET,
    MODE,
    SCC,
    VCC,
    UnknownInstructionError,
    registers_of,
    scalars_in,
    vectors_in,
)
from neutrino.gcn.processors import PROCESSORS
from tests.gcn.objects import code_objects, need_llvm

_NAMES = {
    "scc": SCC, "vcc": VCC, "vcc_lo": VCC, "exec": EXEC, "exec_lo": EXEC, "m0": M0_SET, "mode": MODE,
    "flat_scr": 3 << FLAT_SCRATCH,
}  # fmt: skip
_INSTRUCTION = re.compile(r"^\s+([a-z]\w+)[^\n]*?<MCInst #\d+ (\w+)", re.MULTILINE)
_MISSING = re.compile(r":(\d+):\d+: missing implicit register operand '([^']+)'")


@pytest.fixture(scope="module")
def objects() -> dict[str, Path]:
    return code_objects()


def _instruction(text: str) -> Instruction:
    """As decoded, from the text of an instruction."""
    mnemonic, _, rest = text.partition(" ")
    *front, last = [part.strip() for part in rest.split(",")]
    last, *modifiers = last.split(" ")
    operands = tuple(part for part in (*front, last) if part)
    return Instruction(0, 4, mnemonic, operands, tuple(modifiers), text)


def _of(text: str, generation: int = 9) -> Effects:
    return effects(_instruction(text), generation)


@pytest.mark.parametrize("name", ["gfx90a-O2", "gfx942-O0", "gfx1030-O2", "gfx1100-O2", "gfx1201-O2"])
def test_every_instruction_that_clang_writes_is_known(objects: dict[str, Path], name: str) -> None:
    found = code_object_functions(objects[name].read_bytes(), name)
    processor, features = split_target(found.target)
    module = decode(found.functions, processor, features, need_llvm())
    generation = PROCESSORS[processor].generation
    texts = {row.text: row for function in module.functions for row in function.instructions if row.text}
    for row in texts.values():
        effects(row, generation)
    assert len(texts) > 500


@pytest.mark.parametrize("name", ["gfx942-O2", "gfx1100-O2"])
def test_llvm_has_no_implicit_operand_that_is_not_known(objects: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Machine IR of every opcode, with what is known of it: LLVM says which implicit operands are missing."""
    if shutil.which("llc-19") is None or shutil.which("llvm-mc-19") is None:
        pytest.skip("there is no llc-19 and llvm-mc-19, which have LLVM's tables")
    found = code_object_functions(objects[name].read_bytes(), name)
    processor, features = split_target(found.target)
    module = decode(found.functions, processor, features, need_llvm())
    generation = PROCESSORS[processor].generation
    by_mnemonic: dict[str, Instruction] = {}
    for function in module.functions:
        for row in function.instructions:
            if row.text and row.target is None and row.second is None:
                by_mnemonic.setdefault(row.mnemonic, row)
    text = "\n".join(row.text for row in by_mnemonic.values()) + "\n"
    command = ["llvm-mc-19", "-triple=amdgcn-amd-amdhsa", f"-mcpu={processor}", "-show-inst"]
    shown = subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout
    opcodes = {opcode: mnemonic for mnemonic, opcode in _INSTRUCTION.findall(shown) if mnemonic in by_mnemonic}
    assert len(opcodes) > 150
    known = {opcode: effects(by_mnemonic[mnemonic], generation) for opcode, mnemonic in opcodes.items()}
    lines = ["---", "name: f", "body: |", "  bb.0:"]
    for opcode, row in known.items():
        words = [f"implicit ${word}" for word, registers in _NAMES.items() if row.reads & registers]
        words += [f"implicit-def ${word}" for word, registers in _NAMES.items() if row.writes & registers]
        if opcode.startswith("DS_"):
            # Before gfx9, whose encoding it is, LDS's size was in M0.
            words.append("implicit $m0")
        lines.append(f"    {opcode} {', '.join(words)}")
    path = tmp_path / "known.mir"
    path.write_text("\n".join(lines) + "\n...\n")
    command = ["llc-19", "-march=amdgcn", f"-mcpu={processor}", "-run-pass=none", "-o", "/dev/null", str(path)]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    missing = _MISSING.search(judged.stderr)
    assert missing is None, f"{lines[int(missing[1]) - 1]}: {missing[2]}"
    assert "error" not in judged.stderr, judged.stderr

    # The other way round: what is said to replace SCC does, since LLVM misses it where it is left out.
    replacing = sorted(opcode for opcode, row in known.items() if row.replaces & SCC)
    for opcode in replacing[:: max(1, len(replacing) // 8)]:
        path.write_text(f"---\nname: f\nbody: |\n  bb.0:\n    {opcode} implicit-def $exec, implicit $exec\n...\n")
        judged = subprocess.run(command, capture_output=True, text=True, check=False)
        missing = _MISSING.search(judged.stderr)
        assert missing is not None, opcode
        assert missing[2] == "implicit-def $scc", opcode


def test_an_unknown_instruction_is_refused_by_name() -> None:
    unknown = "s_movrels_b32 s0, s1", "image_load v0, v1, s[0:7]", "v_interp_p1_f32_e32 v0, v1, attr0.x"
    for text in unknown:
        with pytest.raises(UnknownInstructionError, match=text.split()[0]):
            _of(text)
    with pytest.raises(UnknownInstructionError, match="no instruction"):
        effects(Instruction(0, 4, "", (), (), ""), 9)
    with pytest.raises(UnknownInstructionError, match="s_mov_b32: operand src_new"):
        _of("s_mov_b32 s0, src_new")


def test_registers_of_operands() -> None:
    assert [*vectors_in(registers_of("-|v3|"))] == [3]
    assert [*vectors_in(registers_of("v[4:7]"))] == [4, 5, 6, 7]
    assert [*vectors_in(registers_of("v20.h"))] == [20]
    assert [*scalars_in(registers_of("s[104:105]"))] == [104, 105]
    assert registers_of("0x3f") == registers_of("1.0") == registers_of("off") == registers_of("null") == 0
    assert registers_of("vcc") == VCC


def test_what_keeps_a_part_is_read_too() -> None:
    for text in (
        "v_fmac_f32_e32 v1, v2, v3", "v_mov_b32_dpp v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf",
        "v_writelane_b32 v1, s0, 3",
        "global_load_short_d16_hi v1, v[2:3], off", "v_permlane32_swap_b32_e32 v1, v2",
    ):  # fmt: skip
        row = _of(text)
        assert registers_of("v1") & row.reads & row.writes, text
        assert not row.replaces & registers_of("v1")


def test_compares_into_exec_write_no_register_from_gfx10_on() -> None:
    assert _of("v_cmpx_gt_u32_e32 vcc, v1, v2", 9).writes & VCC
    row = _of("v_cmpx_gt_u32_e32 v1, v2", 10)
    assert row.writes == EXEC
    assert registers_of("v1") & row.reads


def test_parts_of_accesses() -> None:
    cases = {
        "global_load_dwordx4 v[0:3], v[4:5], off offset:-16": (Kind.LOAD, Space.GLOBAL, 16, "v[0:3]", "v[4:5]", ()),
        "global_store_b32 v0, v1, s[2:3]": (Kind.STORE, Space.GLOBAL, 4, "", "v0", ("v1",)),
        "global_atomic_add_u32 v0, v1, s[2:3]": (Kind.ATOMIC, Space.GLOBAL, 4, "", "v0", ("v1",)),
        "global_atomic_add v5, v0, v1, s[2:3] glc": (Kind.ATOMIC, Space.GLOBAL, 4, "v5", "v0", ("v1",)),
        "buffer_load_dword v0, v1, s[8:11], 0 offen": (Kind.LOAD, Space.BUFFER, 4, "v0", "v1", ()),
        "buffer_load_dword v1, s[8:11], 0 offen lds": (Kind.COPY, Space.BUFFER, 4, "", "v1", ()),
        "ds_read2_b64 v[0:3], v4 offset1:1": (Kind.LOAD, Space.SHARED, 16, "v[0:3]", "v4", ()),
        "ds_write_b64 v0, v[2:3]": (Kind.STORE, Space.SHARED, 8, "", "v0", ("v[2:3]",)),
        "s_load_dwordx2 s[0:1], s[2:3], 0x8": (Kind.LOAD, Space.SCALAR, 8, "s[0:1]", "", ()),
        "flat_load_ubyte v0, v[2:3]": (Kind.LOAD, Space.GENERIC, 1, "v0", "v[2:3]", ()),
        "scratch_store_b128 off, v[0:3], s33": (Kind.STORE, Space.LOCAL, 16, "", "off", ("v[0:3]",)),
    }
    for text, expected in cases.items():
        instruction = _instruction(text)
        access = access_of(instruction)
        assert access is not None, text
        parts = operands_of(instruction, access)
        found = access.kind, access.space, access.size, parts.result, parts.address, parts.data
        assert found == expected, text
        assert gives_result(instruction, access) == bool(parts.result)


def test_the_table_has_each_name_once() -> None:
    assert len(rows()) > 1000
    assert all(re.fullmatch(r"[sv]_[a-z0-9_]+", name) for name in rows())
