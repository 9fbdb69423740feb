"""Code between a function's instructions: each keeps its bytes, branches and addresses lead where they led."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from neutrino.fatbin.code_object import descriptor_bytes, descriptors_of, open_code_object
from neutrino.fatbin.code_object_append import Appended, append_kernels, place
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.code import Function, Module, decode, split_target
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.splice import Insertion, Spliced, SpliceError, splice, spliced_size
from tests.gcn.objects import code_objects, need_llvm
from tests.gcn.twin_reader import NotATwinError, listings, read_twin


@pytest.fixture(scope="module")
def llvm() -> Llvm:
    return need_llvm()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return code_objects(tmp_path_factory)


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


def twins(path: Path, llvm: Llvm, seed: int) -> tuple[bytes, dict[str, tuple[Function, Spliced, list[Insertion]]]]:
    """Twins with code at places drawn by chance, appended to the code object."""
    chance = random.Random(seed)
    decoded = module(path, llvm)
    nops = [llvm.assemble(f"s_nop {number}", decoded.processor) for number in range(8)]
    data = path.read_bytes()
    header = headers(data)
    asked: list[tuple[Function, list[Insertion]]] = []
    for function in decoded.functions:
        if not function.is_kernel or function.refused:
            continue
        in_clause = 0
        insertions = []
        for instruction in function.instructions:
            if in_clause:
                in_clause -= 1
            elif instruction.offset >= header[function.name] and chance.random() < 0.4:
                code = b"".join(chance.choices(nops, k=chance.randint(1, 5)))
                insertions.append(Insertion(instruction.offset, code, chance.random() < 0.5))
            if instruction.mnemonic == "s_clause":
                in_clause = int(instruction.operands[0], 0) + 1
        asked.append((function, insertions))
    places = place(data, [spliced_size(*row) for row in asked])
    made = {
        function.name: (function, splice(function, insertions, address, header=header[function.name]), insertions)
        for (function, insertions), address in zip(asked, places, strict=True)
    }
    kernels = [Appended(f"{name}__neutrino", name, row[1].code, 40, 8, 64) for name, row in made.items()]
    return append_kernels(data, kernels), made


@pytest.mark.parametrize("name", [
    "gfx90a-O0", "gfx90a-preload", "gfx942-O2", "gfx942-features", "gfx1030-O2", "gfx1030-wave64", "gfx1100-O0",
    "gfx1100-v6", "gfx1201-O2", "gfx1201-wave64",
])  # fmt: skip
def test_a_twin_less_its_original_is_what_was_inserted(
    name: str, objects: Mapping[str, Path], llvm: Llvm, tmp_path: Path
) -> None:
    patched, made = twins(objects[name], llvm, len(name))
    header = headers(objects[name].read_bytes())
    (tmp_path / "twins.hsaco").write_bytes(patched)
    read = listings(tmp_path / "twins.hsaco")
    # A kernel that calls through a register is decoded as well; none of these is refused.
    assert len(made) >= 15
    for kernel, (function, spliced, insertions) in made.items():
        twin = read[f"{kernel}__neutrino"]
        reading = read_twin(read[kernel], twin, spliced.moved)
        expected: dict[int, bytes] = {}
        for insertion in insertions:
            expected[insertion.before] = expected.get(insertion.before, b"") + insertion.code
        assert reading.inserted == expected
        for row in function.instructions:
            if row.target is not None:
                # A header's branch passes over nothing.
                over = sum(
                    len(insertion.code)
                    for insertion in insertions
                    if insertion.before == row.target and not insertion.ahead_of_label
                )
                assert reading.passed[row.offset] == over * (row.offset >= header.get(kernel, 0))
        # Nor does a reader that is not told where they are find anything wrong.
        assert read_twin(read[kernel], twin)


def test_wrong_splices_are_noticed(objects: Mapping[str, Path], llvm: Llvm, tmp_path: Path) -> None:
    """Every branch field and every literal of every kernel, one at a time, one off."""
    path = objects["gfx90a-O2"]
    data = path.read_bytes()
    patched, made = twins(path, llvm, 3)
    control = tmp_path / "control.hsaco"
    control.write_bytes(patched)
    originals = listings(control)
    seeded = 0
    wrong: dict[str, list[bytes]] = {}
    for kernel, (function, spliced, _) in made.items():
        assert read_twin(originals[kernel], originals[f"{kernel}__neutrino"], spliced.moved)
        fields = [spliced.moved[row.offset] for row in function.instructions if row.target is not None]
        sums = {row.offset: row for row in function.instructions}
        for literal in function.literals:
            fields += [spliced.moved[half - 4] + 4 for half in (literal.low, literal.high) if half - 4 in sums]
        for at in fields:
            code = bytearray(spliced.code)
            code[at] ^= 1
            wrong.setdefault(kernel, []).append(bytes(code))
        # Another instruction in place of the last one.
        end = spliced.moved[function.instructions[-1].offset]
        wrong.setdefault(kernel, []).append(spliced.code[:end] + bytes(4) + spliced.code[end + 4 :])
    # One file has one wrong twin of each kernel, so few files have all of them.
    for number in range(max(map(len, wrong.values()))):
        chosen = {kernel: codes[number] for kernel, codes in wrong.items() if number < len(codes)}
        kernels = [
            Appended(f"{kernel}__neutrino", kernel, chosen.get(kernel, spliced.code), 40, 8, 64)
            for kernel, (_, spliced, _) in made.items()
        ]
        bad = tmp_path / "wrong.hsaco"
        bad.write_bytes(append_kernels(data, kernels))
        read = listings(bad)
        for kernel in chosen:
            twin = f"{kernel}__neutrino"
            moved = made[kernel][1].moved
            try:
                reading = read_twin(read[kernel], read[twin], moved)
            except NotATwinError:
                pass
            else:
                assert reading != read_twin(originals[kernel], originals[twin], moved)
            seeded += 1
    assert seeded >= 60
