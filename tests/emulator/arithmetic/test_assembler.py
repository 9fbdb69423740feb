"""Arithmetic on constants as ptxas computes it when it folds them, a judge that knows what NVIDIA's hardware does.

Each result is compared in the kernel with the expected one, and a store follows if they differ. Where ptxas knows both,
equal ones leave nothing and different ones an unconditional store; where it does not fold, the store keeps a predicate.
"""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest

from neutrino.emulator.arithmetic import find_operation
from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool
from tests.emulator.arithmetic import reference
from tests.emulator.arithmetic.reference import run

CASES = 24
LAST = 4 * CASES
# Where ptxas, folding, gives another NaN than an H200 computes, which is the judge above it: no NaN is tried there.
NUMBERS_ALONE = frozenset(
    (
        *("min.f64", "max.f64", "abs.f32", "neg.f32", "abs.ftz.f32", "neg.ftz.f32", "abs.f16x2", "neg.f16x2"),
        *("cvt.f64.f16", "cvt.f32.bf16", "cvt.rn.f16.f64", "cvt.ftz.f32.f32"),
    )
)
# Instructions that ptxas folds, all of their operands or most.
FOLDED = {
    "floats": (
        *("add.rn.f32", "sub.rn.f32", "mul.rn.f32", "add.rn.ftz.f32", "mul.rn.ftz.f32", "add.sat.f32"),
        *("min.f32", "max.f32", "min.ftz.f32", "abs.f32", "neg.f32", "abs.ftz.f32", "neg.ftz.f32"),
        *("min.f64", "max.f64", "abs.f16", "neg.f16", "abs.f16x2", "neg.f16x2"),
    ),
    "comparisons": (
        *("setp.lt.s32", "setp.lo.u32", "setp.ge.u64", "setp.eq.f32", "setp.ne.f32", "setp.ltu.f32", "setp.neu.f32"),
        *("setp.equ.f32", "setp.num.f32", "setp.nan.f32", "setp.gt.ftz.f32", "setp.ge.f64", "set.lt.f32.f32"),
        *("set.gtu.u32.f32", "set.eq.s32.u64", "slct.u32.s32", "slct.f32.f32", "slct.ftz.u32.f32"),
        *("testp.subnormal.f32", "testp.finite.f64", "testp.notanumber.f32"),
    ),
    "conversions": (
        *("cvt.f64.f32", "cvt.ftz.f64.f32", "cvt.rn.f32.f64", "cvt.rn.ftz.f32.f64", "cvt.f32.f16", "cvt.f64.f16"),
        *(
            "cvt.f32.bf16",
            "cvt.rn.f16.f32",
            "cvt.rn.bf16.f32",
            "cvt.rn.f16.f64",
            "cvt.rn.f16x2.f32",
            "cvt.rna.tf32.f32",
        ),
        *("cvt.rni.s32.f32", "cvt.rzi.s32.f32", "cvt.rzi.u64.f32", "cvt.rzi.s32.f64", "cvt.rzi.u32.f64"),
        *("cvt.rzi.s32.f16", "cvt.rzi.s64.f16", "cvt.rn.f32.s32", "cvt.sat.f32.f32", "cvt.ftz.f32.f32"),
        *(
            "cvt.rni.f32.f32",
            "cvt.rmi.f32.f32",
            "cvt.sat.u8.s32",
            "cvt.sat.s8.s32",
            "cvt.sat.u16.s32",
            "cvt.sat.u32.s64",
        ),
        *("cvt.sat.s32.u32", "cvt.s32.s8", "cvt.s64.s32", "cvt.u16.u32", "cvt.s8.s32", "cvt.u8.u32"),
    ),
    "integers": (
        *("add.s32", "add.u64", "add.sat.s32", "sub.sat.s32", "mul.lo.s32", "mul.hi.s32", "mul.hi.u32", "mul.wide.s32"),
        *("mul.wide.u16", "mad.lo.s32", "mad.wide.s32", "mul24.lo.s32", "mul24.hi.u32", "mad24.hi.s32", "mul.lo.s16"),
        *("mul.hi.u16", "min.s32", "max.u64", "abs.s32", "neg.s64"),
    ),
    "bits": (
        *("popc.b32", "popc.b64", "clz.b32", "clz.b64", "bfind.u32", "bfind.s32", "bfind.s64", "bfind.shiftamt.u32"),
        *(
            "brev.b32",
            "brev.b64",
            "bfe.u32",
            "bfe.s32",
            "bfe.s64",
            "bfi.b32",
            "bfi.b64",
            "shl.b32",
            "shl.b64",
            "shl.b16",
        ),
        *("shr.u32", "shr.s32", "shr.s64", "shr.b16", "shr.s16", "shf.l.wrap.b32", "shf.l.clamp.b32"),
        *("shf.r.wrap.b32", "shf.r.clamp.b32", "and.b32", "xor.b64", "not.b32", "cnot.b32"),
    ),
}


def _words(dtype, opcode, place):
    """Operands as unsigned words: of floats those of `reference.operands`, of integers ends, small and random ones."""
    if dtype.kind == "f":
        return reference.operands(f"f{8 * dtype.itemsize}", 1, CASES, place)[0]
    if "f16" in opcode:
        name = "bf16" if "bf16" in opcode else "f16"
        words = [reference.operands(name, 1, CASES, place + seed)[0] for seed in (0, 50)]
        return words[0] if dtype.itemsize == 2 else words[0].astype("u4") | words[1].astype("u4") << np.uint32(16)
    word = np.dtype(f"u{dtype.itemsize}")
    generator = np.random.default_rng(place)
    bits = 8 * word.itemsize
    random = np.frombuffer(generator.bytes(CASES * word.itemsize), word)
    random = random >> generator.integers(0, bits, CASES).astype(word)
    random = np.where(generator.random(CASES) < 0.3, ~random, random)
    ends = np.array([0, 1, 2, 31, 32, 33, 64, 1 << bits - 1, (1 << bits - 1) - 1, (1 << bits) - 1], word)
    words = np.where(generator.random(CASES) < 0.3, ends[generator.integers(0, len(ends), CASES)], random)
    # A field's place and length are said to be numbers up to 255; what ptxas makes of others in 64 bits differs.
    return words & word.type(255) if opcode.startswith("bf") and opcode.endswith("64") and place > 0 else words


def _without_nan(words, dtype, opcode):
    """Words with the exponent's lowest bit cleared in each value that is NaN."""
    name = "bf16" if "bf16" in opcode.split(".")[-1] else "f16" if dtype.kind == "u" else f"f{8 * dtype.itemsize}"
    fraction = reference.PARAMETERS[name][0] - 1
    word = np.dtype(reference.WORDS[name])
    parts = np.ascontiguousarray(words).view(word)
    infinity = word.type(((1 << 8 * word.itemsize - 1) - 1) >> fraction << fraction)
    nan = (parts & word.type((1 << 8 * word.itemsize - 1) - 1)) > infinity
    return np.where(nan, parts & ~word.type(1 << fraction), parts).view(words.dtype)


def _kernel(index, opcode):
    """An entry that stores the number of each case whose result is not ours, and something at the end."""
    operation = find_operation(opcode)
    words = [_words(dtype, opcode, place) for place, dtype in enumerate(operation.inputs)]
    if opcode in NUMBERS_ALONE:
        words = [_without_nan(word, dtype, opcode) for word, dtype in zip(words, operation.inputs, strict=True)]
    result = np.asarray(run(opcode, *(word.view(dtype) for word, dtype in zip(words, operation.inputs, strict=True))))
    truth = result.dtype == np.bool_
    # Registers have at least 16 bits: narrower results are extended.
    wide = (
        result.astype(np.uint32)
        if truth
        else result.astype(f"{result.dtype.kind}2")
        if result.itemsize == 1
        else result
    )
    expected = wide.view(f"u{wide.itemsize}")
    bits = 8 * wide.itemsize
    lines = [f".visible .entry k{index}(.param .u64 p) {{ .reg .b64 %p; ld.param.u64 %p, [p];"]
    for case in range(CASES):
        lines.append(f"{{ .reg .pred q, r; .reg .b{bits} c;")
        for place, (word, dtype) in enumerate(zip(words, operation.inputs, strict=True)):
            width = max(16, 8 * dtype.itemsize)
            lines.append(f".reg .b{width} a{place}; mov.b{width} a{place}, {int(word[case]):#x};")
        sources = ", ".join(f"a{place}" for place in range(len(words)))
        lines.append(f"{opcode} r, {sources}; selp.b32 c, 1, 0, r;" if truth else f"{opcode} c, {sources};")
        lines.append(f"setp.ne.b{bits} q, c, {int(expected[case]):#x}; @q st.global.u32 [%p+{4 * case}], 1; }}")
    return "\n".join([*lines, f"st.global.u32 [%p+{LAST}], 1; ret; }}"]), words, expected


_STORE = re.compile(r"(@!?U?P\d+\s+)?STG\.E\S* desc\[UR\d+\]\[R\d+\.64(?:\+(0x[0-9a-f]+))?\]")


@pytest.mark.parametrize("group", FOLDED)
def test_folded_constants(group, tmp_path):
    try:
        ptxas, nvdisasm = find_tool("ptxas"), find_tool("nvdisasm")
    except ToolMissingError as error:
        pytest.skip(str(error))
    kernels = [_kernel(index, opcode) for index, opcode in enumerate(FOLDED[group])]
    text = ".version 8.0\n.target sm_90\n.address_size 64\n" + "\n".join(kernel[0] for kernel in kernels)
    source, cubin = tmp_path / "folded.ptx", tmp_path / "folded.cubin"
    source.write_text(text)
    subprocess.run([ptxas, "-arch=sm_90", source, "-o", cubin], check=True, capture_output=True, timeout=600)
    listing = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True, timeout=600).stdout
    sections = re.split(r"\.section\s+\.text\.k(\d+)", listing)
    wrong, unknown = [], 0
    assert len(sections) == 2 * len(kernels) + 1
    for number, section in zip(sections[1::2], sections[2::2], strict=True):
        _, words, expected = kernels[int(number)]
        stores = [(match[1], int(match[2] or "0", 16)) for match in _STORE.finditer(section)]
        assert (None, LAST) in stores
        for predicate, offset in stores:
            if offset == LAST:
                continue
            if predicate:
                unknown += 1
                continue
            case = offset // 4
            given = ", ".join(hex(int(word[case])) for word in words)
            wrong.append(f"{FOLDED[group][int(number)]}({given}) is not {int(expected[case]):#x}")
    assert wrong == []
    assert unknown < 0.2 * CASES * len(kernels)
