"""Code between a function's instructions: each keeps its bytes, branches and addresses lead where they led."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from neutrino.fatbin.code_object import descriptor_bytes, descriptors_of, open_code_object
from neutrino.fatbin.code_object_append import Appended, Part, append_kernels, place
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.analysis.calls import Calls
from neutrino.gcn.code import Function, Module, decode, split_target
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.processors import PROCESSORS
from neutrino.gcn.splice import (
    Insertion,
    Member,
    SplicedGroup,
    SpliceError,
    group_size,
    splice,
    splice_group,
    spliced_size,
)
from tests.gcn.objects import code_objects, need_llvm
from tests.gcn.twin_reader import Listing, NotATwinError, Reading, listing_of, listings, read_twin


@pytest.fixture(scope="module")
def llvm() -> Llvm:
    return need_llvm()


@pytest.fixture(scope="module")
def objects() -> Mapping[str, Path]:
    return code_objects()


def assembled(llvm: Llvm, text: str, address: int = 0x1000, processor: str = "gfx942") -> Function:
    code = llvm.assemble(text, processor)
    (function,) = decode([("kernel", address, code, True, 64)], processor, "", llvm).functions
    return function


def shown(llvm: Llvm, code: bytes, processor: str = "gfx942") -> list[str]:
    return [text or "" for _, _, text in llvm.disassemble(code, processor)]


LOOP = "s_mov_b32 s0, 4\nloop:\ns_sub_u32 s0, s0, 1\ns_cmp_lg_u32 s0, 0\ns_cbranch_scc1 loop\ns_endpgm"


def test_what_branches_to_an_instruction_runs_what_is_ahead_of_it(llvm: Llvm) -> None:
    function = assembled(llvm, LOOP)
    one, two = llvm.assemble("s_nop 1", "gfx942"), llvm.assemble("s_nop 2", "gfx942")
    # Asked for in another order than they run in: the code that only what falls through runs is in front.
    got = splice(function, [Insertion(4, two), Insertion(4, one, ahead_of_label=False)], 0x1000)
    assert shown(llvm, got.code) == [
        "s_mov_b32 s0, 4", "s_nop 1", "s_nop 2", "s_sub_u32 s0, s0, 1", "s_cmp_lg_u32 s0, 0",
        "s_cbranch_scc1 65532", "s_endpgm",
    ]  # fmt: skip
    assert got.moved == {0: 0, 4: 12, 8: 16, 12: 20, 16: 24, 20: 28}
    got = splice(function, [Insertion(4, one, ahead_of_label=False)], 0x1000)
    assert shown(llvm, got.code)[-2] == "s_cbranch_scc1 65533"


def test_a_header_keeps_its_place(llvm: Llvm) -> None:
    header = "s_load_dwordx2 s[0:1], s[4:5], 0x0\ns_branch begin\n.fill 61, 4, 0xbf800000\n"
    text = f"{header}begin:\ns_nop 0\ns_cbranch_scc0 begin\ns_endpgm"
    function = assembled(llvm, text)
    entry = Insertion(256, llvm.assemble("s_nop 7", "gfx942"), ahead_of_label=False)
    got = splice(function, [entry], 0x1000, header=256)
    assert got.code[:256] == function.code[:256]
    # The header's branch leads to the entry's code, that of the loop behind it.
    assert shown(llvm, got.code)[63:] == ["s_nop 7", "s_nop 0", "s_cbranch_scc0 65534", "s_endpgm"]
    with pytest.raises(SpliceError, match="in the kernel's header"):
        splice(function, [Insertion(8, entry.code)], 0x1000, header=256)


def with_address(llvm: Llvm, ahead: str, away: int) -> Function:
    """A function at 0x4000 that makes an address, by its distance from there."""
    text = (
        f"{ahead}s_getpc_b64 s[0:1]\ns_add_u32 s0, s0, away@rel32@lo+4\ns_addc_u32 s1, s1, away@rel32@hi+12\ns_endpgm"
    )
    code = llvm.assemble(text, "gfx942", symbols={"away": away})
    (function,) = decode([("kernel", 0x4000, code, True, 64)], "gfx942", "", llvm).functions
    assert [literal.target for literal in function.literals] == [0x4000 + away]
    return function


@pytest.mark.parametrize("away", [-0x1000, 0x7654])
def test_addresses_are_those_of_the_original(llvm: Llvm, away: int) -> None:
    function = with_address(llvm, "", away)
    nops = llvm.assemble("s_nop 0\ns_nop 0", "gfx942")
    for address in (0x12000, 0x1_8000_0000):
        got = splice(function, [Insertion(0, nops), Insertion(4, nops)], address)
        (again,) = decode([("twin", address, got.code, True, 64)], "gfx942", "", llvm).functions
        assert again.literals[0].target == 0x4000 + away


def test_an_address_in_the_function_moves_with_it(llvm: Llvm) -> None:
    function = with_address(llvm, "s_nop 3\ns_nop 4\n", 4)
    got = splice(function, [Insertion(0, llvm.assemble("s_nop 0", "gfx942"))], 0x9000)
    (again,) = decode([("twin", 0x9000, got.code, True, 64)], "gfx942", "", llvm).functions
    assert again.literals[0].target == 0x9008
    with pytest.raises(SpliceError, match="leads into an instruction, to 0x6"):
        splice(with_address(llvm, "s_nop 3\ns_nop 4\n", 6), [], 0x9000)


@pytest.mark.parametrize(("before", "code", "problem"), [
    (2, bytes(4), "where no instruction begins"),
    (400, bytes(4), "where no instruction begins"),
    (0, bytes(3), "3 bytes, no whole words"),
])  # fmt: skip
def test_what_cannot_be_inserted(llvm: Llvm, before: int, code: bytes, problem: str) -> None:
    with pytest.raises(SpliceError, match=problem):
        splice(assembled(llvm, LOOP), [Insertion(before, code)], 0)


def test_nothing_goes_into_a_clause(llvm: Llvm) -> None:
    text = "s_clause 0x1\nglobal_load_b32 v0, v1, s[0:1]\nglobal_load_b32 v2, v1, s[2:3]\ns_endpgm"
    function = assembled(llvm, text, processor="gfx1100")
    nop = llvm.assemble("s_nop 0", "gfx1100")
    for before in (4, 12):
        with pytest.raises(SpliceError, match="inside a clause"):
            splice(function, [Insertion(before, nop)], 0)
    assert len(splice(function, [Insertion(0, nop), Insertion(20, nop)], 0).code) == len(function.code) + 8


def test_a_refused_function_stays_refused(llvm: Llvm) -> None:
    with pytest.raises(SpliceError, match="s_getpc_b64 at 0x0 without a literal"):
        splice(assembled(llvm, "s_getpc_b64 s[0:1]\ns_setpc_b64 s[0:1]"), [], 0)


def test_a_branch_reaches_as_far_as_it_can_and_no_farther(llvm: Llvm) -> None:
    function = assembled(llvm, "s_branch end\ns_nop 0\nend:\ns_endpgm")
    nop = llvm.assemble("s_nop 0", "gfx942")
    got = splice(function, [Insertion(4, nop * (0x7FFF - 1))], 0)
    assert int.from_bytes(got.code[:2], "little") == 0x7FFF
    with pytest.raises(SpliceError, match=r"s_branch at 0x0 cannot reach 0x8, 32768 words away"):
        splice(function, [Insertion(4, nop * 0x7FFF)], 0)
    back = assembled(llvm, "begin:\ns_nop 0\ns_branch begin\ns_endpgm")
    assert splice(back, [Insertion(4, nop * 0x7FFE)], 0).code[-8:-6] == b"\x00\x80"
    with pytest.raises(SpliceError, match="-32769 words"):
        splice(back, [Insertion(4, nop * 0x7FFF)], 0)


@pytest.mark.parametrize("processor", ["gfx942", "gfx1100"])
def test_a_branch_that_no_longer_reaches_takes_a_way_by_others(llvm: Llvm, processor: str) -> None:
    body = "s_nop 0\n" * 9
    clause = "s_clause 0x1\ns_load_dword s4, s[0:1], 0x0\ns_load_dword s5, s[0:1], 0x4\n"
    clause = clause if processor == "gfx1100" else ""
    block = f"s_cbranch_scc0 end\n{body}s_cbranch_scc1 begin\n{clause}{body}s_branch end\n{body}"
    text = "begin:\n" + block * 450 + "end:\ns_endpgm"
    function = assembled(llvm, text, processor=processor)
    assert not function.refused
    chance = random.Random(3)
    nops = [llvm.assemble(f"s_nop {number}", processor) for number in range(8)]
    insertions = []
    left = 0
    for row in function.instructions:
        if left:
            left -= 1
        elif chance.random() < 0.3:
            insertions.append(Insertion(row.offset, b"".join(chance.choices(nops, k=24)), chance.random() < 0.5))
        left = 2 if row.mnemonic == "s_clause" else left
    for asked in ([], insertions):
        got = splice(function, asked, 0x1000)
        assert len(got.code) == spliced_size(function, asked)
        # Code of up to 420 KiB needs three branches one after the other.
        assert bool(got.islands) == (len(got.code) > 4 << 15)
        assert len(got.islands) < 20
        flags = llvm.disassemble(function.code, processor), llvm.disassemble(got.code, processor)
        original = listing_of("f", function.address, function.code, flags[0])
        twin = listing_of("t", 0x1000, got.code, flags[1])
        reading = read_twin(original, twin, got.moved)
        expected = dict(got.islands)
        for insertion in asked:
            expected[insertion.before] = expected.get(insertion.before, b"") + insertion.code
        assert reading.inserted == expected
        # A branch on the way may stand for the original's: where code is, it finds out itself then.
        alone = read_twin(original, twin)
        assert sum(map(len, alone.inserted.values())) == sum(map(len, expected.values()))
        ahead = {insertion.before: insertion for insertion in asked}
        for row in function.instructions:
            if row.target is not None:
                over = ahead.get(row.target)
                skipped = len(over.code) if over is not None and not over.ahead_of_label else 0
                assert reading.passed[row.offset] == skipped + len(got.islands.get(row.target, b""))
        if got.islands:
            # One of these branches, a word too far.
            offset, island = next(iter(got.islands.items()))
            bad = bytearray(got.code)
            bad[got.code.rindex(island, 0, got.moved[offset]) + len(island) - 4] ^= 1
            wrong = listing_of("w", 0x1000, bytes(bad), llvm.disassemble(bytes(bad), processor))
            for moved in (got.moved, None):
                with pytest.raises(NotATwinError, match="leads elsewhere"):
                    read_twin(original, wrong, moved)
        # Nothing runs into an island.
        rows = {row.address: row for row in twin.rows}
        for offset, code in got.islands.items():
            begin = 0x1000 + got.code.rindex(code, 0, got.moved[offset])
            before = max(address for address in rows if address < begin)
            jumps = rows[begin].target == begin + len(code)
            assert jumps or rows[before].mnemonic in ("s_branch", "s_endpgm")
            assert all(rows[at].mnemonic == "s_branch" for at in range(begin, begin + len(code), 4))


def module(path: Path, llvm: Llvm) -> Module:
    functions = code_object_functions(path.read_bytes(), path.name)
    processor, features = split_target(functions.target)
    return decode(functions.functions, processor, features, llvm)


def headers(data: bytes) -> dict[str, int]:
    """The bytes at the beginning of each kernel that the hardware jumps over: its descriptor asks for arguments in
    registers."""
    elf = open_code_object(data, "")
    return {
        name.removesuffix(".kd"): 256 if descriptor_bytes(elf, symbol)[58] & 0x7F else 0
        for name, symbol in descriptors_of(elf).items()
    }


class Group(NamedTuple):
    """A kernel and the functions that it calls, as they were asked for, and what became of them."""

    members: list[Member]
    spliced: SplicedGroup
    names: list[str]

    def appended(self, code: bytes | None = None) -> Appended:
        """What is appended. code: other than it should be."""
        parts = zip(self.names, self.spliced.offsets, self.spliced.members, strict=True)
        functions = tuple(Part(name, at, len(one.code)) for name, at, one in parts)
        kernel = self.members[0].function.name
        return Appended(self.names[0], kernel, code or self.spliced.code, 40, 8, 64, functions)


def twins(path: Path, llvm: Llvm, seed: int) -> tuple[bytes, dict[str, Group]]:
    """Twins with code at places drawn by chance, appended to the code object."""
    chance = random.Random(seed)
    decoded = module(path, llvm)
    nops = [llvm.assemble(f"s_nop {number}", decoded.processor) for number in range(8)]
    data = path.read_bytes()
    header = headers(data)
    calls = Calls(decoded, PROCESSORS[decoded.processor].generation)

    def member(function: Function, redirected: frozenset[int]) -> Member:
        in_clause = 0
        insertions = []
        begin = header[function.name] if function.is_kernel else 0
        for instruction in function.instructions:
            if in_clause:
                in_clause -= 1
            elif instruction.offset >= begin and chance.random() < 0.4:
                code = b"".join(chance.choices(nops, k=chance.randint(1, 5)))
                insertions.append(Insertion(instruction.offset, code, chance.random() < 0.5))
            if instruction.mnemonic == "s_clause":
                in_clause = int(instruction.operands[0], 0) + 1
        return Member(function, tuple(insertions), begin, redirected)

    asked: dict[str, list[Member]] = {}
    for kernel in decoded.functions:
        if kernel.is_kernel and not kernel.refused:
            reach = calls.reach(kernel)
            asked[kernel.name] = list(map(member, reach.copied, reach.redirected))
    made: dict[str, Group] = {}
    for (name, members), address in zip(asked.items(), place(data, list(map(group_size, asked.values()))), strict=True):
        group = splice_group(members, address)
        assert len(group.code) == group_size(members)
        names = [f"{name}__neutrino", *(f"{one.function.name}__neutrino_{name}" for one in members[1:])]
        made[name] = Group(members, group, names)
    return append_kernels(data, [group.appended() for group in made.values()]), made


def read_group(read: Mapping[str, Listing], group: Group, moved: bool = True) -> list[Reading]:
    """A twin and its copies of functions, as the reader reads them. moved: whether it is told where instructions are.
    """
    pairs = [(read[one.function.name], read[name]) for one, name in zip(group.members, group.names, strict=True)]
    copies = {original.rows[0].address: copy.rows[0].address for original, copy in pairs[1:]}
    return [
        read_twin(*pair, one.moved if moved else None, copies)
        for pair, one in zip(pairs, group.spliced.members, strict=True)
    ]


@pytest.mark.parametrize("name", [
    "gfx90a-O0", "gfx90a-preload", "gfx942-O2", "gfx942-features", "gfx1030-O2", "gfx1030-wave64", "gfx1100-O0",
    "gfx1100-v6", "gfx1201-O2", "gfx1201-wave64",
])  # fmt: skip
def test_a_twin_less_its_original_is_what_was_inserted(
    name: str, objects: Mapping[str, Path], llvm: Llvm, tmp_path: Path
) -> None:
    patched, made = twins(objects[name], llvm, len(name))
    (tmp_path / "twins.hsaco").write_bytes(patched)
    read = listings(tmp_path / "twins.hsaco")
    assert len(made) >= 15
    assert len(made["recursion"].members) >= 2
    for kernel, group in made.items():
        for member, reading in zip(group.members, read_group(read, group), strict=True):
            expected: dict[int, bytes] = {}
            for insertion in member.insertions:
                expected[insertion.before] = expected.get(insertion.before, b"") + insertion.code
            assert reading.inserted == expected
            assert reading.to_copies == member.redirected
            for row in member.function.instructions:
                if row.target is not None:
                    # A header's branch passes over nothing.
                    over = sum(
                        len(insertion.code)
                        for insertion in member.insertions
                        if insertion.before == row.target and not insertion.ahead_of_label
                    )
                    assert reading.passed[row.offset] == over * (row.offset >= member.header)
        # Each copy is there for some call.
        called = {literal.target for one in group.members for literal in one.function.literals
                  if literal.get_pc in one.redirected}  # fmt: skip
        assert called == {one.function.address for one in group.members[1:]}, kernel
        # Nor does a reader that is not told where they are find anything wrong.
        assert read_group(read, group, moved=False)


def test_wrong_splices_are_noticed(objects: Mapping[str, Path], llvm: Llvm, tmp_path: Path) -> None:
    """Branch fields and literals of every kernel and function, one at a time, one off, or four; every call that leads
    to a copy, leading to the original."""
    path = objects["gfx90a-O2"]
    data = path.read_bytes()
    patched, made = twins(path, llvm, 3)
    control = tmp_path / "control.hsaco"
    control.write_bytes(patched)
    originals = listings(control)
    wrong: dict[str, list[bytes]] = {}
    to_originals: list[tuple[str, bytes]] = []
    for kernel, group in made.items():
        assert read_group(originals, group)
        address = originals[group.names[0]].rows[0].address

        def seed(at: int, word: int, kernel: str = kernel, group: Group = group) -> None:
            code = bytearray(group.spliced.code)
            code[at : at + 4] = word.to_bytes(4, "little")
            wrong.setdefault(kernel, []).append(bytes(code))

        for member, one, offset in zip(group.members, group.spliced.members, group.spliced.offsets, strict=True):
            rows = {row.offset: row for row in member.function.instructions}

            def word(at: int, group: Group = group) -> int:
                return int.from_bytes(group.spliced.code[at : at + 4], "little")

            for row in rows.values():
                if row.target is not None:
                    at = offset + one.moved[row.offset]
                    seed(at, word(at) ^ 1)
            for literal in member.function.literals:
                halves = [offset + one.moved[half - 4] + 4 for half in (literal.low, literal.high) if half - 4 in rows]
                for at in halves:
                    seed(at, word(at) ^ 1)
                seed(halves[0], word(halves[0]) + 4)
                if literal.get_pc in member.redirected:
                    away = literal.target - (address + offset + one.moved[literal.get_pc] + 4)
                    assert away < 0
                    code = bytearray(group.spliced.code)
                    code[halves[0] : halves[0] + 4] = (away & 0xFFFFFFFF).to_bytes(4, "little")
                    code[halves[1] : halves[1] + 4] = b"\xff" * 4
                    to_originals.append((kernel, bytes(code)))
            # Another instruction in place of the last one.
            seed(offset + one.moved[member.function.instructions[-1].offset], 0)
    # One file has one wrong twin of each kernel, so few files have many of them.
    seeded = 0
    for codes in wrong.values():
        random.Random(1).shuffle(codes)
    assert len(to_originals) >= 3
    for kernel, code in to_originals:
        wrong[kernel].insert(0, code)
    for number in range(12):
        chosen = {kernel: codes[number] for kernel, codes in wrong.items() if number < len(codes)}
        bad = tmp_path / "wrong.hsaco"
        bad.write_bytes(append_kernels(data, [group.appended(chosen.get(kernel)) for kernel, group in made.items()]))
        read = listings(bad)
        for kernel in chosen:
            try:
                reading = read_group(read, made[kernel])
            except NotATwinError:
                pass
            else:
                assert reading != read_group(originals, made[kernel])
            seeded += 1
    assert seeded >= 100


def test_a_copy_that_is_missing_is_noticed(objects: Mapping[str, Path], llvm: Llvm, tmp_path: Path) -> None:
    path = objects["gfx90a-O2"]
    _, made = twins(path, llvm, 3)
    group = made["calls"]
    whole = group.appended()
    (tmp_path / "whole.hsaco").write_bytes(append_kernels(path.read_bytes(), [whole]))
    short = replace(whole, code=whole.code[: whole.functions[-1].offset], functions=whole.functions[:-1])
    (tmp_path / "short.hsaco").write_bytes(append_kernels(path.read_bytes(), [short]))
    assert {part.name for part in whole.functions} <= set(listings(tmp_path / "whole.hsaco"))
    read = listings(tmp_path / "short.hsaco")
    copies = {read["polynomial"].rows[0].address: 0} if "polynomial" in read else {}
    with pytest.raises(NotATwinError, match="gives"):
        read_twin(read["calls"], read["calls__neutrino"], group.spliced.members[0].moved, copies)
