"""Grown cubins and twins without probes, judged by nvdisasm and cuobjdump."""

from __future__ import annotations

import re
import struct

import pytest

from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.fields import ALWAYS, GUARD, NEGATED, REUSE, WAIT
from neutrino.sass.twin import control
from neutrino.sass.twin.checking import check_cubin
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.growing import Growth, code_of, grow
from neutrino.sass.twin.trampolines import accesses, identity_twin, instruction_words, write_trampolines
from tests.sass_twin.listing import KERNELS, PTX, assemble, elf_dump, instructions, resources

_ACCESS = re.compile(r"(?:@!?P\d )?(LD|LDG|LDL|LDS|LDSM|ST|STG|STL|STS|STSM|ATOM|ATOMG|ATOMS|RED|REDG)\b")


def _is_twin(original: dict[int, str], twin: dict[int, str], trampolines) -> bool:
    """Whether a twin reads as its original with these trampolines, and nothing else but NOPs after it."""
    sites = {row.site: row for row in trampolines}
    expected = {}
    for place, line in original.items():
        row = sites.get(place)
        expected[place] = f"BRA `({row.place:#x})" if row else line
        if row:
            expected[row.displaced] = line
            expected[row.back] = f"BRA `({place + 16:#x})"
    rest = {line for place, line in twin.items() if place not in expected}
    reads = {place: line.replace(".reuse", "") for place, line in twin.items() if place in expected}
    return rest <= {"NOP"} and reads == {place: line.replace(".reuse", "") for place, line in expected.items()}


@pytest.mark.parametrize("kernel", KERNELS)
def test_twins_without_probes(kernel, whole, tmp_path):
    cut = Cutter(whole, "whole").cut(kernel)
    twin = identity_twin(cut, kernel, "cut", registers=5)
    original = instructions(cut, kernel, tmp_path)
    listed = instructions(twin.data, kernel, tmp_path)
    assert _is_twin(original, listed, twin.trampolines)
    printed = {place for place, line in original.items() if _ACCESS.match(line)}
    assert {row.site for row in twin.trampolines} | set(twin.left) == printed
    # Every branch that the twin has in place of an instruction waits for what that instruction waited for.
    words, old = instruction_words(code_of(twin.data, kernel, "twin")), instruction_words(code_of(cut, kernel, "cut"))
    for row in twin.trampolines:
        assert WAIT.get(words[row.site // 16]) == WAIT.get(old[row.site // 16])
        assert REUSE.get(words[row.displaced // 16]) == 0
        assert words[row.displaced // 16] == REUSE.put(old[row.site // 16], 0)
        assert REUSE.get(words[row.site // 16 - 1]) == 0
    used, had = resources(twin.data, kernel, tmp_path), resources(cut, kernel, tmp_path)
    assert used == {**had, "REG": had["REG"] + 5}


def test_what_is_never_executed_keeps_its_place(whole, tmp_path):
    # Some releases of ptxas put "@!PT LDS RZ, [RZ]" four times above MEMBAR, as PyTorch's library has it.
    cut = Cutter(whole, "whole").cut("reversed")
    words = instruction_words(code_of(cut, "reversed", "cut"))
    listed = instructions(cut, "reversed", tmp_path)
    (load,) = (place for place, line in listed.items() if re.match(r"(@!?P\d )?LDS ", line))
    before, _ = accesses(decode(code_of(cut, "reversed", "cut"), 90), {})
    assert load in before
    words[load // 16] = NEGATED.put(GUARD.put(words[load // 16], ALWAYS), 1)
    code = b"".join(word.to_bytes(16, "little") for word in words)
    changed = grow(cut, Growth(code), "cut").data
    assert instructions(changed, "reversed", tmp_path)[load].startswith("@!PT LDS ")
    assert load not in {row.site for row in identity_twin(changed, "reversed", "changed").trampolines}
    assert set(accesses(decode(code, 90), {})[0]) == set(before) - {load}


def test_the_judge_sees_what_is_wrong_with_a_twin(whole, tmp_path):
    kernel = "divided"
    cut = Cutter(whole, "whole").cut(kernel)
    twin = identity_twin(cut, kernel, "cut")
    original = instructions(cut, kernel, tmp_path)
    code = bytearray(code_of(twin.data, kernel, "twin"))
    first, second = twin.trampolines
    faults = {
        "a branch back to the site": (first.back, control.branch(first.back, first.site, 90)),
        "a branch to the other trampoline": (first.site, control.branch(first.site, second.place, 90)),
        "a displaced instruction lost": (second.displaced, control.nop()),
        "another instruction changed": (0x20, control.nop()),
        "something after the trampolines": (second.back + 16, control.branch(second.back + 16, 0, 90)),
    }
    for name, (place, word) in faults.items():
        wrong = bytes(code[:place]) + word.to_bytes(16, "little") + bytes(code[place + 16 :])
        data = grow(cut, Growth(wrong), "cut").data
        assert not _is_twin(original, instructions(data, kernel, tmp_path), twin.trampolines), name
    assert _is_twin(original, instructions(grow(cut, Growth(bytes(code)), "cut").data, kernel, tmp_path),
                    twin.trampolines)  # fmt: skip


def test_another_parameter(whole, tmp_path):
    cut = Cutter(whole, "whole").cut("divided")
    grown = grow(cut, Growth(code_of(cut, "divided", "cut"), registers=40, parameter=16), "cut")
    before, after = read_cubin(cut, "cut").kernels["divided"], read_cubin(grown.data, "grown").kernels["divided"]
    # 8 + 8 + 4 bytes of parameters; the new one is aligned to 8.
    assert (before.parameter_size, after.parameter_size, grown.parameter_offset) == (20, 40, 24)
    assert after.parameters == (*before.parameters, (3, 24, 16))
    assert (after.registers, after.parameter_base, grown.parameter_base) == (40, before.parameter_base, 0x210)
    dump = elf_dump(grown.data, tmp_path)
    parameters = re.findall(r"Ordinal : 0x(\w+)\s+Offset\s+: 0x(\w+)\s+Size\s+: 0x(\w+)", dump)
    assert parameters == [("3", "18", "10"), ("2", "10", "4"), ("1", "8", "8"), ("0", "0", "8")]
    assert "0x280210" in dump
    assert "register count: 40" in dump
    had, has = resources(cut, "divided", tmp_path), resources(grown.data, "divided", tmp_path)
    assert has == {**had, "REG": 40, "CONSTANT[0]": 0x210 + 40}
    # The identity of growing: nothing more is the same file.
    assert grow(cut, Growth(code_of(cut, "divided", "cut")), "cut").data == cut


def test_the_first_parameter(whole, tmp_path):
    cut = Cutter(whole, "whole").cut("nothing")
    grown = grow(cut, Growth(code_of(cut, "nothing", "cut"), parameter=24), "cut")
    text = PTX.read_text()
    with_one = text.replace("entry nothing()", "entry nothing(.param .align 8 .b8 one[24])")
    theirs = Cutter(assemble(with_one, "sm_90", tmp_path), "theirs").cut("nothing")
    assert with_one != text
    assert resources(grown.data, "nothing", tmp_path) == resources(theirs, "nothing", tmp_path)
    assert (grown.parameter_offset, grown.parameter_base) == (0, 0x210)
    lists = []
    for data in (grown.data, theirs):
        # The number of the constant bank's symbol is another in each file.
        dump = re.sub(r"(PARAM_CBANK\s+Format:\s+\S+\s+Value:\s+)0x\w+", r"\1-", elf_dump(data, tmp_path))
        lists.append(sorted(re.findall(r"Attribute:[^<]*", dump.partition(".nv.info.nothing")[2].partition("\n\n")[0])))
    assert lists[0] == lists[1]
    assert not check_cubin(cut, grown.data, "nothing", "grown")
    elsewhere = grown.data.replace(struct.pack("<HH", 0x210, 24), struct.pack("<HH", 0x208, 24))
    assert f"parameter_base is {0x208}, not {0x210}" in [
        finding.rule for finding in check_cubin(cut, elsewhere, "nothing", "elsewhere")
    ]


@pytest.mark.parametrize(("size", "most"), [(4096, 4096), (20000, 32764), (32744, 32764)])
def test_many_parameters(size, most, tmp_path):
    text = PTX.read_text().replace(".version 8.0", ".version 8.1")
    text = text.replace("entry nothing()", f"entry nothing(.param .align 8 .b8 many[{size}])")
    cut = Cutter(assemble(text, "sm_90", tmp_path), "many").cut("nothing")
    code = code_of(cut, "nothing", "cut")
    room = (most - size) // 8 * 8
    with pytest.raises(MachineCodeError, match=f"over {most}"):
        grow(cut, Growth(code, parameter=room + 8), "cut")
    if room:
        grown = grow(cut, Growth(code, parameter=room), "cut")
        assert read_cubin(grown.data, "grown").kernels["nothing"].parameter_size == size + room
        assert resources(grown.data, "nothing", tmp_path)["CONSTANT[0]"] == 0x210 + size + room
        assert not check_cubin(cut, grown.data, "nothing", "grown")


def test_places_of_exits_follow(whole, tmp_path):
    cut = Cutter(whole, "whole").cut("reversed")
    listed = instructions(cut, "reversed", tmp_path)
    exits = [place for place, line in listed.items() if "EXIT" in line]
    moved = {exits[0]: 0x400}
    data = grow(cut, Growth(code_of(cut, "reversed", "cut"), moved=moved), "cut").data
    found = re.search(r"EIATTR_EXIT_INSTR_OFFSETS\s+Format:\s+\S+\s+Value:\s+((?:0x\w+ )+)", elf_dump(data, tmp_path))
    assert found is not None
    assert {int(place, 16) for place in found[1].split()} == {0x400, *exits[1:]}


def test_what_a_kernel_cannot_have(whole, tmp_path):
    cutter = Cutter(whole, "whole")
    cut = cutter.cut("switched")
    code = code_of(cut, "switched", "cut")
    # __launch_bounds__(1024): 64 registers a thread fill the file.
    assert grow(cut, Growth(code, registers=64), "cut").data != cut
    with pytest.raises(MachineCodeError, match="would need 65 registers, too many for 1024 threads"):
        grow(cut, Growth(code, registers=65), "cut")
    with pytest.raises(MachineCodeError, match="would need 256 registers, over 255"):
        grow(cut, Growth(code, registers=256), "cut")
    with pytest.raises(MachineCodeError, match="over 4096"):
        grow(cut, Growth(code, parameter=4090), "cut")
    with pytest.raises(MachineCodeError, match="not a longer multiple"):
        grow(cut, Growth(code[:-128]), "cut")
    changing = PTX.read_text().replace(".target sm_90", ".target sm_90a")
    changing = changing.replace("reversed_param_2\n)", "reversed_param_2\n)\n.reqntid 128, 1, 1\n.minnctapersm 1")
    changing = changing.replace("bar.sync \t0;", "bar.sync \t0;\n\tsetmaxnreg.inc.sync.aligned.u32 128;", 1)
    other = Cutter(assemble(changing, "sm_90a", tmp_path), "other")
    with pytest.raises(MachineCodeError, match="moves registers between warps"):
        identity_twin(other.cut("reversed"), "reversed", "other")


def test_branches(tmp_path, whole):
    cut = Cutter(whole, "whole").cut("divided")
    words = instruction_words(code_of(cut, "divided", "cut"))
    distances = (16, 0, -16, 0x7F0, -0x800, 0x12340, -0x123450, 0x7FFFFF0, -0x7FFFFF0)
    targets = {}
    for place, distance in enumerate(distances, start=16):
        targets[place * 16] = target = place * 16 + 16 + distance
        words[place] = word = control.branch(place * 16, target, 90, wait=0b101)
        assert control.branch_target(word, place * 16, 90) == target
        assert control.branch_target(NEGATED.put(word, 1), place * 16, 90) is None
    code = b"".join(each.to_bytes(16, "little") for each in words)
    listed = instructions(grow(cut, Growth(code), "cut").data, "divided", tmp_path)
    # nvdisasm prints labels for places in the code alone; elsewhere it prints the distance.
    inside = {place for place, target in targets.items() if 0 <= target < len(code)}
    assert len(inside) == 3
    for place, target in targets.items():
        line = listed[place]
        if place in inside:
            assert line == f"BRA `({target:#x})"
        else:
            assert line.startswith("BRA ")
            assert int(line.split()[1], 0) in (target - place - 16, target)


def test_nothing_to_displace(whole):
    cut = Cutter(whole, "whole").cut("nothing")
    code, trampolines = write_trampolines(instruction_words(code_of(cut, "nothing", "cut")), [], 90)
    assert trampolines == ()
    assert set(instruction_words(code)[-8:]) == {control.nop()}
