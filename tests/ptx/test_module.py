"""Reading PTX text: identity, module-level statements, parameter layout."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine import assemble

from neutrino.errors import PtxError
from neutrino.ptx.text.module import Kind, parse
from neutrino.sass.cubin import read_cubin

SAMPLE = """//
// a header; with { braces } and "quotes"
//
.version 8.4
.target sm_90a, debug
.address_size 64
/* .entry ghost() { */
.file 1 "a;b{c.cu"
.global .align 4 .b8 $str[6] = {104, 101, 108, 108, 111, 0};
.visible .const .align 16 .v4 .f32 table[2][3];
.extern .shared .align 16 .b8 dynamic[];
.weak .global .u32 one, two = 3, three[] = {1, 2};
.global .texref texture;
.global .attribute(.managed) .align 8 .u64 managed;
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.func (.param .b32 r) inner (.param .b32 a)
{ { .reg .b32 %r<2>; } ret; }
.entry hidden { ret; }
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0, // } not the end
	.param .align 8 .b8 kernel_param_1[88]
)
.maxntid 128, 1, 1
.pragma "nounroll";
{
	.loc 1 3 5 // {
	ret;
}
.section .debug_str { .b8 1 }
.alias other, inner;
"""


def test_statements():
    module = parse(SAMPLE)
    assert module.print() == SAMPLE
    assert (module.version, module.target, module.address_size) == ((8, 4), "sm_90a,debug", 64)
    assert module.architecture == 90
    assert [entry.name for entry in module.entries] == ["hidden", "kernel"]
    assert [function.name for function in module.functions] == ["vprintf", "inner"]
    kinds = [statement.kind for statement in module.statements if statement.kind is not Kind.BLANK]
    assert kinds == [
        Kind.VERSION, Kind.TARGET, Kind.ADDRESS_SIZE, Kind.FILE, *[Kind.VARIABLE] * 6,
        Kind.FUNCTION, Kind.FUNCTION, Kind.ENTRY, Kind.ENTRY, Kind.SECTION, Kind.ALIAS,
    ]  # fmt: skip


def test_variables():
    found = {variable.name: variable for variable in parse(SAMPLE).variables}
    seen = {name: (entry.space, entry.type, entry.size, entry.initialised) for name, entry in found.items()}
    assert seen == {
        "$str": ("global", ".b8", 6, True),
        "table": ("const", ".v4.f32", 96, False),
        "dynamic": ("shared", ".b8", None, False),
        "one": ("global", ".u32", 4, False),
        "two": ("global", ".u32", 4, True),
        "three": ("global", ".u32", None, True),
        "texture": ("texref", ".texref", None, False),
        "managed": ("global", ".u64", 8, False),
    }
    assert found["dynamic"].linkage == {"extern"}
    assert found["one"].linkage == {"weak"}
    assert found["table"].linkage == {"visible"}


def test_lines_count_from_one_in_any_order():
    module = parse("a\nb\r\nc\n")
    assert [module.line(position) for position in (0, 6, 2, 1, 5, 0)] == [1, 3, 2, 1, 3, 1]


FRAGMENTS = st.sampled_from([
    ".version 8.0", ".target sm_90", ".entry k", "(", ")", "{", "}", ";", '"', "//", "/*", "*/", "\n", "\r\n", ".func",
    ".global .u32 x", "=", "{1,2}", ".loc 1 2 3", ".file 1", "\0", ".section .debug {", "@p", ":", ",", "\\", "é", ".",
    ".pragma", ".visible .entry a() ", ".param .u64 p", "ret;", "[", "]",
])  # fmt: skip


@given(st.lists(FRAGMENTS | st.text(max_size=6)).map(" ".join) | st.text())
def test_identity_on_any_text(text):
    module = parse(text)
    assert module.print() == text
    assert len(module.code) == len(text)


@pytest.mark.parametrize("text", [
    SAMPLE, SAMPLE.replace("\n", "\r\n"), SAMPLE[:200], SAMPLE[::-1], "", "/*", '"', ".entry", "}{", ".visible",
])  # fmt: skip
def test_identity_on_awkward_text(text):
    assert parse(text).print() == text


# declaration up to the name, extent, bytes
PARAMETERS = [
    (".u8", "", 1), (".b16", "", 2), (".s32", "", 4), (".f32", "", 4), (".u64", "", 8), (".f64", "", 8),
    (".u64 .ptr .align 1", "", 8), (".u64 .ptr .global .align 16", "", 8), (".align 8 .b8", "[88]", 88),
    (".align 16 .b8", "[3]", 3), (".align 4 .b8", "[7]", 7), (".align 64 .b8", "[128]", 128), (".align 1 .b8", "[5]",
     5),
    (".align 8 .f32", "", 4),
]  # fmt: skip


def test_parameters_lie_where_ptxas_puts_them(tools, tmp_path):
    """Sixty kernels with parameters drawn at random, against what the cubin says."""
    drawing = random.Random(7)
    text = ".version 8.5\n.target sm_90\n.address_size 64\n"
    for number in range(60):
        drawn = [drawing.choice(PARAMETERS) for _ in range(number % 10)]
        declared = [f".param {kind} p{index}{extent}" for index, (kind, extent, _) in enumerate(drawn)]
        text += f".visible .entry k{number}({', '.join(declared)}) {{ ret; }}\n"
    module = parse(text)
    cubin = read_cubin(assemble(text, "sm_90", tmp_path).read_bytes(), "module.cubin")
    shipped = {kernel.name: [(offset, size) for _, offset,
    size in kernel.parameters] for kernel in cubin.kernels.values()}
    assert len(shipped) == 60
    for entry in module.entries:
        parameters, _ = module.parameter_layout(entry)
        assert [(parameter.offset, parameter.size) for parameter in parameters] == shipped[entry.name]


def test_unknown_parameter_is_named():
    module = parse(".version 8.0\n.target sm_90\n.entry k(\n.param .u64 a,\n.param .mystery b) { ret; }")
    with pytest.raises(PtxError, match=r"line 5.*mystery"):
        module.parameter_layout(module.entries[0])


def test_identity_on_nvcc_text(nvcc_ptx):
    module = parse(nvcc_ptx)
    assert module.print() == nvcc_ptx
    assert len(module.entries) >= 5
    assert not [module.source(entry) for entry in module.statements if entry.kind is Kind.UNKNOWN]
