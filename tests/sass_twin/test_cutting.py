"""One kernel out of a cubin of many, judged by what ptxas writes of that kernel alone, by nvdisasm and cuobjdump."""

from __future__ import annotations

import contextlib
import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.elf.constants import SHF_ALLOC, SHF_WRITE, SHT_NOBITS, SHT_PROGBITS
from neutrino.errors import FormatError, MachineCodeError
from neutrino.sass.cubin import open_cubin, read_cubin
from neutrino.sass.resource_usage import resource_usage
from neutrino.sass.twin.attributes import Attribute, listed_places
from neutrino.sass.twin.constant_reads import constant_reads
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.sections import Part, read_parts, write_cubin
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


_TABLE = """
.version 8.0
.target sm_90
.address_size 64
{visible}.global .align 4 .b8 __cudart_i2opi_f[8] = {{65, 144, 67, 60, 153, 149, 98, 219}};
.visible .entry reduced(.param .u64 at)
{{
	.reg .b32 %r<3>;
	.reg .b64 %rd<5>;
	ld.param.u64 %rd1, [at];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd2, %r1, 4;
	mov.u64 %rd3, __cudart_i2opi_f;
	add.u64 %rd4, %rd3, %rd2;
	ld.global.u32 %r2, [%rd4];
	st.global.u32 [%rd1], %r2;
	ret;
}}
"""


def test_tables_of_mathematical_functions(tmp_path):
    data = assemble(_TABLE.format(visible=""), "sm_90", tmp_path)
    assert _literals(data, "reduced") == _literals(Cutter(data, "own").cut("reduced"), "reduced")
    assert list(_literals(data, "reduced").values()) == [bytes([65, 144, 67, 60, 153, 149, 98, 219])]
    # A program may write one that others can name.
    shared = assemble(_TABLE.format(visible=".visible "), "sm_90", tmp_path)
    with pytest.raises(MachineCodeError, match="uses the variable __cudart_i2opi_f"):
        Cutter(shared, "shared").cut("reduced")


def test_places_of_mbarriers():
    # Of each: the instruction's place, a register, an offset from it, what it does. Only the first is a place.
    rows = struct.pack("<8I", 0xF0, 0xFF, 0, 0x601, 0x2D0, 0x40, 0x10, 0x501)
    assert listed_places([Attribute(4, 0x39, rows)]) == {0xF0: 0x39, 0x2D0: 0x39}
    assert set(listed_places([Attribute(4, 0x39, rows[:-4])])) == {0xF0, 0xFF, 0, 0x601, 0x2D0, 0x40, 0x10}


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
    with pytest.raises(MachineCodeError, match=r"its code in a second form, \.nv\.capmerc, and nobody knows"):
        Cutter(newer, "newer").cut("reversed")
    changed = whole.replace(struct.pack("<BBHI", 4, 0x37, 4, 0x82), struct.pack("<BBHI", 4, 0x77, 4, 0x82))
    assert changed != whole
    with pytest.raises(MachineCodeError, match="attribute that is not known, 0x77"):
        Cutter(changed, "changed").cut("reversed")


_SHARED = """
.version 8.0
.target sm_90
.address_size 64
.shared .align 4 .b8 kept[40000];
.visible .entry shared(.param .u64 at)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [at];
	st.shared.u64 [kept+39992], %rd1;
	bar.sync 0;
	ld.shared.u32 %r1, [kept+39996];
	st.global.u32 [%rd1], %r1;
	ret;
}
"""
"""Not linked, it has a section of 40,000 bytes of which none is in the file."""


def test_a_cubin_that_is_not_linked_is_left_alone(tmp_path):
    relocatable = assemble(_SHARED, "sm_90", tmp_path, "-c")
    assert ".nv_debug.shared" in [section.name for section in open_cubin(relocatable, "relocatable").sections]
    cutter = Cutter(relocatable, "relocatable")
    assert cutter.kernels == ("shared",)
    with pytest.raises(MachineCodeError, match="shared: its cubin is not linked"):
        cutter.cut("shared")
    assert Cutter(assemble(_SHARED, "sm_90", tmp_path), "linked").cut("shared")


@pytest.mark.parametrize("name", [".nv_debug.shared", ".nv_debug_info_reg_sass", ".nv_debug_ptx_txt", ".debug_str"])
def test_sections_of_debuggers_are_left_out(whole, name):
    # nvlink leaves an empty .nv_debug.shared (of type SHT_NOBITS, writable, loaded) in libraries.
    elf = open_cubin(whole, "whole")
    parts = read_parts(elf)
    kind = SHT_NOBITS if name == ".nv_debug.shared" else SHT_PROGBITS
    flags = SHF_ALLOC | SHF_WRITE if kind == SHT_NOBITS else 0
    content = bytearray(b"" if kind == SHT_NOBITS else b"text\0")
    parts.append(Part(name, kind, flags, 0, 0, 4, 0, content, 0, 0))
    more = write_cubin(elf, parts, next(part for part in parts if part.name == ".shstrtab"))
    assert name in [section.name for section in open_cubin(more, "more").sections]
    for kernel in KERNELS:
        assert Cutter(more, "more").cut(kernel) == Cutter(whole, "whole").cut(kernel)


def test_an_attribute_without_a_name_has_its_one_value(whole):
    api = struct.pack("<BBHI", 4, 0x37, 4, 0x82)
    assert whole.count(api)
    # ptxas writes it so since CUDA 13.2.
    assert Cutter(whole.replace(api, struct.pack("<BBHI", 4, 0x66, 4, 3)), "known").cut("reversed")
    with pytest.raises(MachineCodeError, match=r"attribute that is not known, 0x66, with the value 04000000"):
        Cutter(whole.replace(api, struct.pack("<BBHI", 4, 0x66, 4, 4)), "unknown").cut("reversed")


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
