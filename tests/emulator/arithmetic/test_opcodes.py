"""Which opcodes are ours, what is said of those that are wrong, and that no operation warns or touches its operands."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from neutrino.emulator.arithmetic import find_matrix_operation, find_operation

KERNELS = Path(__file__).parents[2] / "fixtures" / "kernels"
# What an instruction's first word is when it does more than compute from registers.
OTHERS = frozenset(
    [
        "activemask",
        "applypriority",
        "atom",
        "bar",
        "barrier",
        "bra",
        "brx",
        "call",
        "cp",
        "createpolicy",
        "cvta",
        "discard",
        "elect",
        "exit",
        "fence",
        "getctarank",
        "griddepcontrol",
        "isspacep",
        "istypep",
        "ld",
        "ldmatrix",
        "ldu",
        "mapa",
        "match",
        "mbarrier",
        "membar",
        "movmatrix",
        "multimem",
        "nanosleep",
        "pmevent",
        "prefetch",
        "prefetchu",
        "red",
        "redux",
        "ret",
        "setmaxnreg",
        "shfl",
        "st",
        "stackrestore",
        "stacksave",
        "stmatrix",
        "trap",
        "vote",
        "wgmma",
        "wmma",
    ]
)
STATEMENT = re.compile(r"(?:^|[;{}:\n])\s*(?:@!?[%\w$]+\s+)?([a-z]\w*(?:\.[\w:]+)+)\s+[^.\s=]")


def opcodes():
    """Every dotted opcode in the kernels of the tests."""
    found: set[str] = set()
    for path in sorted(KERNELS.rglob("*.ptx")):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        found.update(STATEMENT.findall(text))
    return sorted(found)


def computes(opcode):
    """Whether it is for the arithmetic; a vector that is moved or unpacked is several registers, and the engine's."""
    return opcode.split(".")[0] not in OTHERS and not opcode.startswith(("mov.v2", "mov.v4"))


def test_every_kernels_opcodes_are_known():
    names = opcodes()
    computing = [name for name in names if computes(name)]
    assert len(computing) > 100
    unknown = [name for name in computing if find_operation(name) is None and find_matrix_operation(name) is None]
    assert unknown == []
    assert [name for name in names if name not in computing and find_operation(name) is not None] == []


def _sample(dtype, generator, size):
    if dtype == np.bool_:
        return generator.random(size) < 0.5
    return generator.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype)


MORE = [
    "add.rz.ftz.sat.f32",
    "sub.rp.f64",
    "fma.rm.f32",
    "fma.rn.relu.bf16x2",
    "mul.rn.f32x2",
    "div.approx.f32",
    "div.rz.f64",
    "sqrt.rm.f64",
    "rsqrt.approx.ftz.f64",
    "tanh.approx.bf16x2",
    "ex2.approx.f16x2",
    "min.xorsign.abs.f16x2",
    "max.NaN.bf16",
    "copysign.f64",
    "setp.geu.xor.ftz.f32",
    "set.num.f16x2.f16x2",
    "slct.f64.f32",
    "lop3.b32",
    "prmt.b32",
    "prmt.b32.ecr",
    "shf.r.wrap.b32",
    "bfe.s64",
    "bfi.b64",
    "bfind.shiftamt.u64",
    "fns.b32",
    "bmsk.wrap.b32",
    "szext.clamp.s32",
    "dp4a.s32.u32",
    "dp2a.hi.u32.s32",
    "sad.u16",
    "rem.s64",
    "mul24.hi.s32",
    "mad24.lo.u32",
    "add.cc.u32",
    "subc.cc.u64",
    "madc.hi.cc.s32",
    "cvt.rn.satfinite.e4m3x2.f32",
    "cvt.rni.s64.f64",
    "cvt.rp.f32.u64",
    "cvt.rna.tf32.f32",
    "cvt.pack.sat.s4.s32.b32",
    "cvt.rz.bf16x2.f32",
    "testp.subnormal.f32",
    "mov.b64",
]


def test_types_scalars_and_purity():
    """Arrays, scalars and both give the same numbers of the promised types; operands stay; nothing warns."""
    failed = {}
    for opcode in sorted({*MORE, *filter(computes, opcodes())}):
        try:
            _judge_purity(opcode)
        except (AssertionError, ValueError, Warning) as error:
            failed[opcode] = error
    assert failed == {}


def _judge_purity(opcode):
    operation = find_operation(opcode)
    if operation is None:
        assert find_matrix_operation(opcode) is not None
        return
    generator = np.random.default_rng(1)
    arrays = [_sample(dtype, generator, 33) for dtype in operation.inputs]
    if opcode.startswith("lop3"):
        arrays[3] = np.full(33, 0x96, np.uint32)
    for array in arrays:
        array.setflags(write=False)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        whole = operation.function(*arrays)
        single = operation.function(*(array[7] for array in arrays))
        # The last operand as an immediate.
        last = operation.function(*arrays[:-1], arrays[-1][7])
        first = operation.function(arrays[0][7], *arrays[1:])
        nothing = operation.function(*(array[:0] if array.ndim else array for array in arrays))
    several = len(operation.outputs) > 1
    for index, dtype in enumerate(operation.outputs):
        results = [result[index] if several else result for result in (whole, single, last, first, nothing)]
        assert [result.dtype for result in results] == [dtype] * 5
        bits = np.dtype(f"u{dtype.itemsize}")
        words = [np.array(result).view(bits) for result in results]
        assert words[0].shape == (33,)
        assert words[1].shape == ()
        assert words[4].shape == (0,)
        for mixed in words[2:4]:
            assert np.broadcast_to(mixed, 33)[7] == words[1] == words[0][7]


@pytest.mark.parametrize(
    ("opcode", "what"),
    [
        ("add.rx.f32", "rx"),
        ("add.rm.f16", "rm"),
        ("mul.u32", "part of the product"),
        ("mul.wide.u64", "wide"),
        ("setp.s32", "comparison"),
        ("setp.lo.s32", "comparison"),
        ("setp.lt.b32", "comparison"),
        ("cvt.s32.f32", "rounding"),
        ("cvt.rn.f32.q32", "q32"),
        ("prmt.b64", "b64"),
        ("shf.l.b32", "mode"),
        ("sin.f32", "form"),
        ("sin.approx.f64", "f64"),
        ("add.ftz.f64", "ftz"),
        ("min.xorsign.f32", "abs"),
        ("min.relu.u32", "relu"),
        ("fma.rn.oob.f16", "oob"),
        ("cvt.rs.f16x2.f32", "rounding"),
        ("cvt.rn.bf16x2.ue8m0x2", "ue8m0x2"),
        ("cvt.rn.satfinite.f64.f32", "satfinite"),
        ("mad.wide.cc.u32", "wide"),
        ("rcp.approx.f64", "ftz"),
        ("add", "type"),
    ],
)
def test_wrong_modifiers_are_named(opcode, what):
    with pytest.raises(ValueError, match=what):
        find_operation(opcode)


@pytest.mark.parametrize(
    "opcode", ["ld.global.f32", "bra", "bar.sync", "atom.add.f32", "cvta.to.global.u64", "nonsense.f32"]
)
def test_what_is_not_arithmetic(opcode):
    assert find_operation(opcode) is None
