"""One kernel out of a cubin of many, judged by what ptxas writes of that kernel alone, by nvdisasm and cuobjdump."""

from __future__ import annotations

import contextlib
import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import FormatError, MachineCodeError
from neutrino.sass.cubin import open_cubin, read_cubin
from neutrino.sass.resource_usage import resource_usage
from neutrino.sass.twin.constant_reads import constant_reads
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.sections import read_parts
from tests.sass_twin.listing import KERNELS, PTX, assemble, elf_dump, instructions, resources

_UNPRINTED = {".shstrtab", ".strtab", ".symtab", ".debug_frame", ".rela.debug_frame"}
_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(.*?^\}$", re.MULTILINE | re.DOTALL)


def _alone(kernel: str) -> str:
    """The PTX text with this kernel as its only one."""
    return _ENTRY.sub(lambda entry: entry[0] if entry[1] == kernel else "", PTX.read_text())


@pytest.mark.parametrize("kernel", ["reversed", "divided", "nothing"])
def test_as_ptxas_writes_the_kernel_alone(kernel, whole, tmp_path):
    theirs = open_cubin(assemble(_alone(kernel), "sm_90", tmp_path), "theirs")
    mine = open_cubin(Cutter(whole, "whole").cut(kernel), "mine")
    expected = {part.name: part for part in read_parts(theirs)}
    got = {part.name: part for part in read_parts(mine)}
    # ptxas of one kernel leaves the module's variables out as well, unless it exports them.
    variables = {name for name in expected if re.search(r"\.nv\.(global|constant[34])(\.init)?$", name)}
    assert set(got) == set(expected) - variables - {".rela.debug_frame"}
    for name in set(got) - _UNPRINTED:
        mine_, theirs_ = got[name], expected[name]
        for field in ("type", "flags", "alignment", "entry_size", "memory_size"):
            assert getattr(mine_, field) == getattr(theirs_, field), (name, field)
        if not name.startswith((".nv.info", ".nv.callgraph", ".note")):
            assert mine_.content == theirs_.content, name
    rows = [(s.type, s.flags, s.alignment, s.file_size, s.memory_size) for s in mine.segments if s.type == 1]
    loaded = [(s.type, s.flags, s.alignment, s.file_size, s.memory_size) for s in theirs.segments if s.type == 1]
    # The first is the program headers; ptxas keeps one that loads nothing, or variables.
    assert [row for row in rows[1:] if not row[1] & 2] == [
        row for row in loaded[1:] if not row[1] & 2 and row[3] in {len(p.content) for p in got.values()}
    ]


@pytest.mark.parametrize("kernel", KERNELS)
def test_reads_as_in_the_whole(kernel, whole, tmp_path):
    cut = Cutter(whole, "whole").cut(kernel)
    assert instructions(cut, kernel, tmp_path) == instructions(whole, kernel, tmp_path)
    assert resources(cut, kernel, tmp_path) == resources(whole, kernel, tmp_path)
    assert "Invalid" not in elf_dump(cut, tmp_path)
    assert read_cubin(cut, "cut").kernels == {kernel: read_cubin(whole, "whole").kernels[kernel]}
    assert len(resource_usage(cut, "cut").functions) == 1
    # A cut of a cut is the same file.
    assert Cutter(cut, "cut").cut(kernel) == cut


def _literals(data: bytes, kernel: str) -> dict[int, str | bytes]:
    """What the addresses in bank 4 that a kernel reads are of: a function's name, or a literal's bytes."""
    elf = open_cubin(data, "cubin")
    symbols = list(elf.symbols())
    bank = elf.section(".nv.constant4")
    assert bank is not None
    (table,) = elf.relocation_tables[bank.index]
    rows = {row.offset: symbols[row.symbol] for row in elf.relocations(table)}
    found: dict[int, str | bytes] = {}
    for read in constant_reads(elf.contents(elf.sections[next(s.section for s in symbols if s.name == kernel)])):
        assert read.bank == 4
        assert read.offset is not None
        row = rows[read.offset]
        section = elf.sections[row.section]
        content = bytes(elf.contents(section))[row.value : row.value + row.size] if row.section else row.name
        found[read.offset] = content
    return found


@pytest.mark.parametrize(("kernel", "named"), [("asserted", {"__assertfail"}), ("printed", {"vprintf"})])
def test_literals_and_functions_of_the_driver(kernel, named, whole):
    of_cut = _literals(Cutter(whole, "whole").cut(kernel), kernel)
    assert of_cut == _literals(whole, kernel)
    assert {name for name in of_cut.values() if isinstance(name, str)} == named
    texts = b"".join(text for text in of_cut.values() if isinstance(text, bytes))
    assert (b"within" in texts) if kernel == "asserted" else texts.startswith(b"%d of %d\n")


def test_variables_of_the_module_are_left_alone_by_name(whole):
    cutter = Cutter(whole, "whole")
    with pytest.raises(MachineCodeError, match="counted: uses the variable counter"):
        cutter.cut("counted")
    with pytest.raises(MachineCodeError, match="scaled: reads constants of its module"):
        cutter.cut("scaled")
    with pytest.raises(MachineCodeError, match="no such kernel"):
        cutter.cut("absent")


def test_what_is_not_known_is_left_alone_by_name(whole, tmp_path):
    text = PTX.read_text()
    newer = assemble(text.replace(".target sm_90", ".target sm_100"), "sm_100", tmp_path)
    with pytest.raises(MachineCodeError, match=r"section that is not known, \.nv\.capmerc"):
        Cutter(newer, "newer").cut("reversed")
    relocatable = assemble(text, "sm_90", tmp_path, "-c")
    with pytest.raises(MachineCodeError, match=r"has relocations, \.rela\.text|not known"):
        Cutter(relocatable, "relocatable").cut("asserted")
    changed = whole.replace(struct.pack("<BBHI", 4, 0x37, 4, 0x82), struct.pack("<BBHI", 4, 0x77, 4, 0x82))
    assert changed != whole
    with pytest.raises(MachineCodeError, match="attribute that is not known, 0x77"):
        Cutter(changed, "changed").cut("reversed")


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 1 << 20), value=st.binary(min_size=1, max_size=8), kernel=st.sampled_from(KERNELS))
def test_damaged_files_get_clear_errors(whole, at, value, kernel):
    # Headers, tables and attributes are at the file's ends, so that half of the places are there.
    place = at % (len(whole) - len(value))
    data = whole[:place] + value + whole[place + len(value) :]
    with contextlib.suppress(FormatError, MachineCodeError):
        cut = Cutter(data, "damaged").cut(kernel)
        assert Cutter(cut, "cut").kernels


def test_constants_that_nvdisasm_prints(whole, tmp_path):
    for kernel in (*KERNELS, "counted", "scaled"):
        listed = instructions(whole, kernel, tmp_path)
        code = read_cubin(whole, "whole").kernels[kernel].code
        banks = {
            place: {int(bank, 16) for bank in re.findall(r"\bc\[(0x[0-9a-f]+)\]", line)} - {0}
            for place, line in listed.items()
        }
        assert {read.place: {read.bank} for read in constant_reads(code)} == {p: b for p, b in banks.items() if b}
