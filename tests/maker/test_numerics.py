"""The counts of arithmetic in machine code: against nvdisasm, and what the rule lets through."""

from __future__ import annotations

import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.errors import FormatError, ToolMissingError
from neutrino.sass.arithmetic import compare, count_arithmetic
from neutrino.toolchain.location import find_tool
from tests.maker.nvdisasm_counts import ARCHITECTURES, counted_as, disagreements, disassemble, forms


@pytest.fixture(scope="module")
def nvdisasm():
    try:
        return find_tool("nvdisasm")
    except ToolMissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_form_counts_as_nvdisasm_prints_it(arch, assembler, nvdisasm, tmp_path):
    cubin = tmp_path / "forms.cubin"
    cubin.write_bytes(assembler.assemble(forms(arch), arch).cubin)
    listing = disassemble(cubin)
    assert list(listing) == ["forms"]
    assert disagreements(cubin, arch, listing) == []
    found = Counter(counted_as(mnemonic, operands) for mnemonic, operands, _ in listing["forms"])
    # The check above would pass on an empty listing.
    expected = {"FADD", "FFMA", "FMUL", "DADD", "DFMA", "DMUL", "HADD2", "HFMA2", "HMUL2"}
    expected |= {"FADD2", "FFMA2", "FMUL2"} if arch in ("sm_100a", "sm_103a") else set()
    assert expected <= {name for name in found if name}


UVIMNMX = struct.pack("<2Q", 0x200040A784A, 0x000FE2000BFE0100)
"""``UVIMNMX.S32 UR10, UR4, 0x200, UPT`` of sm_120, as nvdisasm prints it; on sm_100 the word is FMUL2's."""


@pytest.mark.parametrize(("arch", "counts"), [("sm_120", {}), ("sm_110a", {}), ("sm_100a", {"FMUL2": 1})])
def test_words_that_mean_other_things_elsewhere(arch, counts):
    assert count_arithmetic(UVIMNMX, arch) == counts


PAIR = """.version 8.8
.target {arch}
.address_size 64
.visible .entry pair(.param .u64 p)
{{
.reg .pred %p; .reg .b32 %h<6>; .reg .f32 %f<6>; .reg .u64 %a;
ld.param.u64 %a, [p];
ld.global.{load} {r}0, [%a]; ld.global.{load} {r}1, [%a+4]; ld.global.{load} {r}2, [%a+8];
mul.{type} {r}3, {r}0, {r}1;
{between}
add.{type} {r}4, {r}3, {r}2;
st.global.{load} [%a+12], {r}4;
ret;
}}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("operands", [("f32", "%f", "f32"), ("f16x2", "%h", "b32")], ids=lambda item: item[0])
@pytest.mark.parametrize(
    ("between", "fused"),
    [
        ("", True),
        ("st.global.{load} [%a+16], {r}2;", True),
        ("st.global.{load} [%a+16], {r}3;", False),
        ("setp.ne.u64 %p, %a, 64; @%p st.global.{load} [%a+16], {r}2;", False),
    ],
)
def test_a_fusion_undone_is_seen(arch, operands, between, fused, assembler):
    kind, register, load = operands

    def counts(text_between: str) -> dict[str, int]:
        inserted = text_between.format(load=load, r=register)
        text = PAIR.format(arch=arch, load=load, r=register, type=kind, between=inserted)
        return count_arithmetic(_code(assembler.assemble(text, arch).cubin, "pair"), arch)

    plain, probed = counts(""), counts(between)
    assert sum(plain.values()) == 1
    assert (compare(plain, probed, {}) is None) == fused
    if not fused:
        product = "FMUL" if kind == "f32" else "HMUL2"
        # Not even when the probe claims the product as its own.
        assert compare(plain, probed, {product: 1}) is not None


def _code(cubin: bytes, kernel: str) -> bytes:
    import io

    from elftools.elf.elffile import ELFFile

    return ELFFile(io.BytesIO(cubin)).get_section_by_name(f".text.{kernel}").data()


def test_a_word_of_blackwell_is_no_half_precision():
    # IADD.64 R4, R6, 0x1 on sm_120a, HFMA2.MMA before.
    code = struct.pack("<QQ", 0x0000000106047835, 0)
    assert count_arithmetic(code, "sm_120a") == {}
    assert count_arithmetic(code, "sm_90a") == {"HFMA2": 1}


@pytest.mark.parametrize(("code", "arch"), [(b"\0" * 17, "sm_90"), (b"\0" * 16, "sm_61"), (b"", "")])
def test_refused(code, arch):
    with pytest.raises(FormatError):
        count_arithmetic(code, arch)


@given(st.binary(max_size=640).map(lambda data: data[: len(data) // 16 * 16]))
def test_any_words_are_counted_one_by_one(code):
    total: Counter[str] = Counter()
    for offset in range(0, len(code), 16):
        total.update(count_arithmetic(code[offset : offset + 16], "sm_90a"))
    assert count_arithmetic(code, "sm_90a") == dict(total)


COUNTS = st.dictionaries(st.sampled_from(["FFMA", "FMUL", "FADD", "HFMA2", "HMUL2", "HADD2"]), st.integers(1, 9))


@given(COUNTS, COUNTS)
def test_compare_is_exact_but_for_products(original, own):
    twin = dict(Counter(original) + Counter(own))
    assert compare(original, twin, own) is None
    for mnemonic in original:
        more = dict(twin) | {mnemonic: twin[mnemonic] + 1}
        found = compare(original, more, own)
        may_fuse = {"F": ("FMUL", "FFMA"), "H": ("HMUL2", "HFMA2")}[mnemonic[0]]
        if any(name in more for name in may_fuse):
            assert mnemonic in (found or "")
        else:
            assert found is None
    # Where the kernel has none of these, what is undone is the probe's.
    if "FFMA" in twin and {"FFMA", "FMUL", "FADD"} & original.keys():
        undone = dict(Counter(twin) + Counter(FMUL=1, FADD=1) - Counter(FFMA=1))
        assert compare(original, undone, own) is not None


def test_repeated_sums_are_accepted_where_nothing_can_fuse():
    assert compare({"FADD": 7, "DFMA": 2}, {"FADD": 11, "DFMA": 2}, {}) is None
    assert compare({"FADD": 7, "FMUL": 1}, {"FADD": 11, "FMUL": 1}, {}) == "FADD 7 → 11"
    # What the kernel has nothing of is the probe's, of which the assembler may make more.
    own = {"DADD": 1, "DFMA": 2}
    assert compare({"FFMA": 1}, {"FFMA": 1, "DADD": 4, "DFMA": 7}, own) is None
    assert compare({"FFMA": 1}, {"FFMA": 1, "DADD": 1, "DFMA": 2, "DMUL": 1}, own) == "DMUL 0 → 1"
    assert compare({"DADD": 1}, {"DADD": 5, "DFMA": 7}, own) is not None
    assert compare({"FADD": 7}, {"FADD": 8, "FMUL": 1}, {}) == "FADD 7 → 8, FMUL 0 → 1"
    assert compare({"FADD": 7, "FFMA": 1}, {"FADD": 11}, {}) == "FADD 7 → 11, FFMA 1 → 0"
    assert compare({"FADD": 7}, {"FADD": 8, "FMUL": 1}, {"FMUL": 1}) == "FADD 7 → 8"


def test_a_folded_copy_is_accepted():
    assert compare({"FMUL": 2, "FADD": 1}, {"FMUL": 2, "FADD": 1}, {"FMUL": 1}) is None
    assert compare({"FMUL": 2}, {"FMUL": 1}, {"FMUL": 1}) == "FMUL 2 → 1 (1 of them the probe's)"
