"""AMD's assembler and disassembler: what they accept, and how they refuse."""

from __future__ import annotations

import pytest

from neutrino.errors import ToolMissingError
from neutrino.gcn.llvm import AssemblyError, Llvm, find_llvm
from neutrino.toolchain import llvm_location

S_NOP, S_ENDPGM = bytes.fromhex("000080bf"), bytes.fromhex("000081bf")


@pytest.fixture(scope="module")
def llvm() -> Llvm:
    try:
        return find_llvm("gfx942")
    except ToolMissingError as error:
        pytest.skip(error.hint)


def test_text_of_code_is_code_of_text(llvm: Llvm) -> None:
    text = (
        "v_add_f32_e32 v1, s2, v3\ns_waitcnt vmcnt(0) lgkmcnt(0)\nglobal_load_dwordx4 v[0:3], v4, s[6:7] offset:16 sc0"
    )
    code = llvm.assemble(text, "gfx942")
    rows = llvm.disassemble(code, "gfx942")
    assert [line for _, _, line in rows] == text.splitlines()
    assert [(offset, size) for offset, size, _ in rows] == [(0, 4), (4, 4), (8, 8)]


def test_only_the_text_comes_back_not_what_fills_it_up(llvm: Llvm) -> None:
    assert llvm.assemble("s_nop 0\ns_endpgm", "gfx942") == S_NOP + S_ENDPGM
    assert llvm.assemble("", "gfx1100") == b""


def test_words_that_are_no_instruction_have_no_text(llvm: Llvm) -> None:
    assert llvm.disassemble(b"\xff" * 4 + S_NOP + b"\1\2", "gfx942") == [(0, 4, None), (4, 4, "s_nop 0"), (8, 2, None)]
    # The first word of an instruction of two.
    assert llvm.disassemble(llvm.assemble("s_mov_b32 s0, 0x12345", "gfx942")[:4], "gfx942") == [(0, 4, None)]
    assert llvm.disassemble(b"", "gfx942") == []


@pytest.mark.parametrize(("processor", "words"), [
    # What LLVM 23 was seen to crash on: reserved selections of SDWA, literals where none can be.
    ("gfx906", (0x7C99F8F9, 0xD773A87A)), ("gfx906", (0x3F78C0F9, 0x24307FE5)), ("gfx90a", (0x659234F9, 0x070F081A)),
    ("gfx942", (0xE0500000, 0xFF000100)), ("gfx90a", (0xE81CE1E1, 0xFF12B3B0)), ("gfx90a", (0xD3A777B5, 0x73FC5A84)),
    ("gfx942", (0xD3F71564, 0x53FCAC95)), ("gfx942", (0xD1C5C868, 0x156836FF)), ("gfx1030", (0x7C2ABAF9, 0xC2274ECB)),
])  # fmt: skip
def test_what_llvm_cannot_print_is_data(llvm: Llvm, processor: str, words: tuple[int, ...]) -> None:
    code = b"".join(word.to_bytes(4, "little") for word in words)
    assert llvm.disassemble(code, processor)[0] == (0, 4, None)


def test_processors_that_it_only_assembles_for_are_refused(llvm: Llvm) -> None:
    assert llvm.assemble("s_endpgm", "gfx700") == S_ENDPGM
    with pytest.raises(ToolMissingError, match="does not disassemble code for gfx700"):
        llvm.disassemble(S_ENDPGM, "gfx700")


def test_what_was_seen_before_is_the_same(llvm: Llvm) -> None:
    """Texts are kept by their words: those that begin alike stay apart, also where the code ends."""
    text = "v_mov_b32_e32 v0, 0x12345\nv_mov_b32_e32 v0, 0x54321\nv_mov_b32_e32 v0, 1\ns_endpgm"
    code = llvm.assemble(text, "gfx942")
    first = llvm.disassemble(code, "gfx942")
    assert [line for _, _, line in first] == text.splitlines()
    assert llvm.disassemble(code, "gfx942") == first
    assert llvm.disassemble(code[:4], "gfx942") == [(0, 4, None)]
    assert llvm.disassemble(code[:12], "gfx942") == [first[0], (8, 4, None)]


def test_every_complaint_has_its_line(llvm: Llvm) -> None:
    with pytest.raises(AssemblyError, match=r"^GCN line 2: invalid instruction: 's_foo'$") as caught:
        llvm.assemble("s_nop 0\ns_foo\ns_nop 0\n  s_bar s1\n", "gfx942")
    assert [(row.line, row.column, row.source) for row in caught.value.complaints] == [
        (2, 1, "s_foo"),
        (4, 3, "  s_bar s1"),
    ]
    # It is the same machine that goes on.
    assert llvm.assemble("s_nop 0", "gfx942") == S_NOP


@pytest.mark.parametrize("text", [
    "s_branch nowhere", '.warning "careful"', "v_mov_b32 v0, v256", "neutrino_end_of_text:", ".long \0",
    "s_nop \ud800", "s_load_b64 s[0:1], s[2:3], 0", "s_add_u32 s0, s0, elsewhere@rel32@lo",
    '.amdgcn_target "amdgcn-amd-amdhsa--gfx90a"',
])  # fmt: skip
def test_whatever_the_assembler_says_is_an_error(llvm: Llvm, text: str) -> None:
    with pytest.raises(AssemblyError):
        llvm.assemble(text, "gfx942")


def test_symbols_of_the_text_and_others_are_resolved(llvm: Llvm) -> None:
    text = "s_getpc_b64 s[0:1]\ns_add_u32 s0, s0, {0}@rel32@lo+4\ns_addc_u32 s1, s1, {0}@rel32@hi+12\nhere: s_endpgm"
    inside = llvm.assemble(text.format("here"), "gfx942")
    assert (inside[8:12], inside[16:20]) == ((16).to_bytes(4, "little"), bytes(4))
    # Two words of 32 bits of the distance from behind s_getpc.
    outside = llvm.assemble(text.format("there"), "gfx942", symbols={"there": -4})
    assert outside[8:12] + outside[16:20] == (-8).to_bytes(8, "little", signed=True)


def test_a_wave_of_64_lanes_is_a_feature(llvm: Llvm) -> None:
    features = "+wavefrontsize64,-wavefrontsize32"
    code = llvm.assemble("v_cmp_eq_u32_e32 vcc, v0, v1", "gfx1100", features)
    assert llvm.disassemble(code, "gfx1100", features) == [(0, 4, "v_cmp_eq_u32_e32 vcc, v0, v1")]
    assert llvm.disassemble(code, "gfx1100") == [(0, 4, "v_cmp_eq_u32_e32 vcc_lo, v0, v1")]


@pytest.mark.parametrize("processor", ["gfx9999", "x86-64", "", "gfx942\0", "gfx942,"])
def test_unknown_processors_are_no_others(llvm: Llvm, processor: str) -> None:
    assert not llvm.knows(processor)
    with pytest.raises(ToolMissingError):
        llvm.assemble("s_nop 0", processor)
    with pytest.raises(ToolMissingError):
        llvm.disassemble(S_NOP, processor)
    with pytest.raises(ToolMissingError, match=r"neutrino-gpu\[amd\]"):
        find_llvm(processor)


def test_without_any_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.delenv("NEUTRINO_LLVM", raising=False)
    monkeypatch.setattr("neutrino.gcn.llvm.llvm_candidates", lambda: iter(()))
    with pytest.raises(ToolMissingError, match=r'pip install "neutrino-gpu\[amd\]"'):
        find_llvm.__wrapped__("gfx942")


def test_a_rocm_is_preferred_and_what_is_no_llvm_passed_over(llvm: Llvm, monkeypatch, tmp_path) -> None:
    rocm = tmp_path / "rocm"
    (rocm / "lib/llvm/lib").mkdir(parents=True)
    library = rocm / "lib/llvm/lib/libLLVM.so"
    library.write_bytes(b"not a library")
    monkeypatch.delenv("NEUTRINO_LLVM", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(rocm))
    assert next(llvm_location.llvm_candidates()) == library
    assert find_llvm.__wrapped__("gfx942").path == llvm.path
    monkeypatch.setenv("NEUTRINO_LLVM", str(library))
    with pytest.raises(ToolMissingError, match="cannot be used"):
        find_llvm.__wrapped__("gfx942")
    monkeypatch.setenv("NEUTRINO_LLVM", str(rocm / "missing"))
    with pytest.raises(ToolMissingError, match=r"NEUTRINO_LLVM names .*missing, which is not a file"):
        find_llvm.__wrapped__("gfx942")


def test_texts_that_are_assembled_together_are_what_each_is_alone(llvm: Llvm) -> None:
    loop = ".Lloop:\n  s_add_i32 s0, s0, -1\n  s_cmp_lg_u32 s0, 0\n  s_cbranch_scc1 .Lloop"
    # The second and the third have one label for two places.
    texts = ["s_nop 1", loop, f"s_nop 0\n{loop}\ns_branch .Lend\n.Lend:", "", "v_mov_b32_e32 v0, 0x12345678", "s_nop 1"]
    for processor in ("gfx90a", "gfx1100"):
        found = llvm.assemble_each(texts, processor)
        assert found == [llvm.assemble(text, processor) for text in texts]
        assert len(set(found)) == len(set(texts))
    assert llvm.assemble_each([], "gfx90a") == []
    with pytest.raises(AssemblyError, match="s_nothing"):
        llvm.assemble_each(["s_nop 0", "s_nothing"], "gfx90a")
