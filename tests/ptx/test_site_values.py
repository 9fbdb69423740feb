"""What the helpers give: the code that gets at an operand, run on the embedded device."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_examples import EXAMPLES

from neutrino.emulator.device import Device
from neutrino.ptx.instrument.registers import Guard, Scratch, UnsupportedError, Value, bits
from neutrino.ptx.instrument.site_values import SiteOperands
from neutrino.ptx.isa.instruction import read_instruction
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import parse

_HEAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<40>; .reg .f32 %f<8>; .reg .b64 %rd<16>; .reg .f64 %d<8>;
.reg .v4 .f32 %v; .reg .b32 %lane; .reg .b64 %place; .shared .align 16 .b8 buffer[64];
mov.u32 %lane, %laneid;
"""


def _operands(
    setup: str, instruction: str, *, after: bool = False, site: int = 0, line: int = 0
) -> SiteOperands:  # fmt: skip
    module = parse(f"{_HEAD}{setup}\n{instruction};\nret;\n}}\n")
    (entry,) = module.entries
    read = read_instruction(instruction)
    assert entry.body is not None
    assert read is not None
    return SiteOperands(
        read, Body(module.code, *entry.body), module.code.index(instruction), Scratch("%own_"), after=after,
        module_addresses={}, product=lambda name, is_out: None, site=site, line=lambda: line,
    )  # fmt: skip


def _run(setup: str, instruction: str, operands: SiteOperands, value: Value, *, is_run: bool) -> list[int]:
    """The value's bits in each lane of a warp, as the code before and after the instruction computes it."""
    wide = bits(value.type or "")
    if value.type == "pred":
        store = [f"selp.u64 %place, 1, 0, {value.text};"]
    elif value.type is None:
        store = [f"mov.u64 %place, {value.text};"]
    elif wide == 64:
        store = [f"mov.b64 %place, {value.text};"]
    else:
        store = [f"mov.b{wide} %shown{wide}, {value.text};", f"cvt.u64.u{wide} %place, %shown{wide};"]
    lines = [
        *(line.text for line in operands.early), f"{instruction};" if is_run else "",
        *(line.text for line in operands.here),
        ".reg .b64 %o; .reg .b16 %shown16; .reg .b32 %shown32; ld.param.u64 %o, [out];", *store,
        "mad.wide.u32 %o, %lane, 8, %o;", "st.global.u64 [%o], %place;",
    ]  # fmt: skip
    declared = "\n".join(line.text for line in operands._scratch.declarations())
    code = "\n".join(lines)
    device = Device()
    out = device.allocate(256)
    module = device.load(f"{_HEAD}{declared}\n{setup}\n{code}\nret;\n}}\n")
    device.launch(module.functions["k"], (1, 1, 1), (32, 1, 1), struct.pack("<Q", out))
    return list(struct.unpack("<32Q", device.read(out, 256)))


_BITS = {1.0: 0x3F800000, -0.5: 0xBF000000}


@pytest.mark.parametrize(("setup", "instruction", "helper", "expected"), [
    ("", "add.s32 %r1, %r2, (1+2)*3", "IN2", lambda lane: 9),
    ("", "add.s32 %r1, %r2, -(5)", "IN2", lambda lane: (1 << 64) - 5),
    ("", "mul.lo.u32 %r1, %r2, WARP_SZ", "IN2", lambda lane: 32),
    ("", "or.b32 %r1, %r2, 017", "IN2", lambda lane: 15),
    ("", "and.b32 %r1, %r2, 0xfU", "IN2", lambda lane: 15),
    ("", "add.f32 %f1, %f2, 1.", "IN2", lambda lane: _BITS[1.0]),
    ("", "slct.f32.s32 %f1, -.5, %f2, %r1", "IN1", lambda lane: _BITS[-0.5]),
    ("", "slct.f64.f32 %d1, 1.5, %d2, %f1", "IN1", lambda lane: 0x3FF8000000000000),
    ("", "slct.f64.f32 %d1, %d3, %d2, 1.0", "IN3", lambda lane: _BITS[1.0]),
    ("", "cvt.f64.f32 %d1, 1e0", "IN1", lambda lane: _BITS[1.0]),
    ("", "fma.rn.f64 %d1, %d2, %d3, 0d3FF0000000000000", "IN3", lambda lane: 0x3FF0000000000000),
    ("setp.lt.u32 %p1, %lane, 5;", "setp.lt.and.u32 %p2|%p3, %r2, 5, !%p1", "IN3", lambda lane: int(lane >= 5)),
    ("setp.lt.u32 %p1, %lane, 5;", "selp.u32 %r1, 1, 2, %p1", "IN3", lambda lane: int(lane < 5)),
    ("mov.u32 %r4, 7;", "bfi.b32 %r1, %r2, %r3, 4, %r4", "IN4", lambda lane: 7),
    ("mov.u32 %r5, %lane;", "mov.b64 %rd1, {%r4, %r5}", "IN1.y", lambda lane: lane),
    ("mov.u32 %r5, %lane;", "mov.b64 %rd1, {%r4, %r5}", "IN1.1", lambda lane: lane),
    ("mov.f32 %v.z, 1.0;", "st.global.v4.f32 [%rd1], %v", "IN2.z", lambda lane: _BITS[1.0]),
    ("mov.u64 %rd1, 64;", "ld.global.b32 %r1, [%rd1+4*-2]", "ADDR", lambda lane: 56),
    ("mov.u64 %rd1, 64;", "ld.global.b32 %r1, [%rd1+-010]", "ADDR", lambda lane: 56),
    ("mov.u64 %rd1, 64;", "ld.global.b32 %r1, [ %rd1 + 0x8 ].unified", "IN1", lambda lane: 72),
    ("mov.u32 %r1, -16;", "ld.shared.b32 %r2, [%r1]", "ADDR", lambda lane: 0xFFFFFFF0),
    ("mov.u32 %r1, -16;", "ld.shared.b32 %r2, [%r1+20]", "ADDR", lambda lane: 4),
    ("mov.u64 %rd1, 99;", "tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%rd1, {%f5, %f6}]", "IN1", lambda lane: 99),
    ("mov.f32 %f6, 1.0;", "tex.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%rd1, {%f5, %f6}]", "IN1.2", lambda lane: _BITS[1.0]),
    ("mov.u32 %r2, 0x80FF7F01;", "vadd.s32.u32.s32 %r1, %r2.b3, %r2.h1", "IN1", lambda lane: 0x80),
    ("mov.u32 %r2, 0x80FF7F01;", "vadd.s32.u32.s32 %r1, %r2.b3, %r2.h1", "IN2", lambda lane: 0xFFFF80FF),
    ("mov.u32 %r2, 0x80FF7F01;", "vmad.s32.s32.s32 %r1, %r3, -%r2.b0, %r4", "IN2", lambda lane: 0xFFFFFFFF),
    ("setp.lt.u32 %p1, %lane, 5;", "@!%p1 mov.u32 %r1, 1", "PRED", lambda lane: int(lane >= 5)),
    ("setp.lt.u32 %p1, %lane, 5;", "@%p1 mov.u32 %r1, 1", "PRED", lambda lane: int(lane < 5)),
    ("", "mov.u32 %r1, 1", "PRED", lambda lane: 1),
    ("mov.u32 %r1, -1;", "mov.u32 %r1, 1", "LANES", lambda lane: 0xFFFFFFFF),
    ("", "mov.u32 %r1, 1", "SITE", lambda lane: 17),
    ("", "mov.u32 %r1, 1", "LINE", lambda lane: 42),
    ("", "mov.u32 %r1, 1", "ELEMENTS", lambda lane: 1),
    ("", "st.global.v4.f32 [%rd1], %v", "ELEMENTS", lambda lane: 4),
    ("", "st.global.v4.f32 [%rd1], %v", "HAS.st.v4", lambda lane: 1),
    ("", "st.global.v4.f32 [%rd1], %v", "HAS.ld.v4", lambda lane: 0),
    ("", "st.global.v4.f32 [%rd1], %v", "HAS.f32", lambda lane: 1),
    ("", "st.global.v4.f32 [%rd1], %v", "HAS.b32", lambda lane: 0),
    ("", "st.global.v4.f32 [%rd1], %v", "HAS.store", lambda lane: 1),
    ("", "st.shared::cta.b32 [%r1], %r2", "HAS.shared", lambda lane: 1),
    ("", "cp.async.ca.shared.global [%r1], [%rd1], 8", "BYTES", lambda lane: 8),
    ("", "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1]", "BYTES", lambda lane: 16),
    ("", "ld.global.v4.b32 {_, %r2, _, %r4}, [%rd1]", "BYTES", lambda lane: 8),
    ("", "st.global.v4.b64 [%rd1], {_, _, %rd2, _}", "BYTES", lambda lane: 8),
    ("", "st.global.v8.b32 [%rd1], {%r1, _, _, %r4, %r2, _, _, _}", "BYTES", lambda lane: 12),
    ("", "atom.global.v2.f32.add {_, %f1}, [%rd1], {%f2, %f3}", "BYTES", lambda lane: 8),
    ("mov.u32 %r4, 7;", "st.global.v8.b32 [%rd1], {_, _, _, %r4, %r2, _, _, _}", "IN2", lambda lane: 7),
    ("mov.u32 %r4, 7;", "st.global.v8.b32 [%rd1], {_, _, _, %r4, %r2, _, _, _}", "IN2.3", lambda lane: 7),
    ("setp.lt.u32 %p1, %lane, 5;", "cp.async.ca.shared.global [%r1], [%rd1], 8, !%p1", "BYTES",
     lambda lane: 8 if lane < 5 else 0),
    ("mov.u32 %r4, -1;", "cp.async.bulk.prefetch.L2.global [%rd1], %r4", "BYTES", lambda lane: 0xFFFFFFFF),
])  # fmt: skip
@pytest.mark.parametrize("after", [False, True])
def test_values(setup, instruction, helper, expected, after):
    operands = _operands(setup, instruction, after=after, site=17, line=42)
    name, _, element = helper.partition(".")
    value = operands(name, element or None)
    assert _run(setup, instruction, operands, value, is_run=False) == [expected(lane) for lane in range(32)]


@pytest.mark.parametrize(("setup", "instruction", "helper", "before", "behind"), [
    ("mov.u32 %r1, %lane;", "add.u32 %r1, %r1, 1", "IN1", lambda lane: lane, lambda lane: lane),
    ("mov.u32 %r1, %lane;", "add.u32 %r1, %r1, 1", "OUT", None, lambda lane: lane + 1),
    ("mov.u64 %rd1, 5;", "mov.b64 {%r1, %r2}, %rd1", "OUT.y", None, lambda lane: 0),
    ("setp.lt.u32 %p1, %lane, 5;", "@%p1 setp.ge.u32 %p1|%p2, %lane, 9", "PRED", lambda lane: int(lane < 5),
     lambda lane: int(lane < 5)),
    ("setp.lt.u32 %p1, %lane, 5;", "@!%p1 setp.ge.u32 %p1|%p2, %lane, 9", "OUT", None,
     lambda lane: int(lane < 5 or lane >= 9)),
    ("setp.lt.u32 %p1, %lane, 5;", "and.pred %p1, !%p1, %p1", "IN1", lambda lane: int(lane >= 5),
     lambda lane: int(lane >= 5)),
    ("setp.lt.u32 %p1, %lane, 5;", "shfl.sync.idx.b32 %r1|%p1, %lane, 3, 31, -1", "OUT", None, lambda lane: 3),
    ("mov.f32 %v.y, 1.0;", "mov.f32 %v.y, -0.5", "OUT", None, lambda lane: _BITS[-0.5]),
    ("mov.f32 %v.y, 1.0;", "neg.f32 %v.y, %v.y", "IN1", lambda lane: _BITS[1.0], lambda lane: _BITS[1.0]),
])  # fmt: skip
def test_values_that_the_instruction_overwrites(setup, instruction, helper, before, behind):
    for after, expected in ((False, before), (True, behind)):
        operands = _operands(setup, instruction, after=after)
        name, _, element = helper.partition(".")
        if expected is None:
            with pytest.raises(UnsupportedError, match="does not exist before"):
                operands(name, element or None)
            continue
        value = operands(name, element or None)
        assert _run(setup, instruction, operands, value, is_run=after) == [expected(lane) for lane in range(32)]


def test_lanes_are_those_of_each_snippet():
    """The lanes under the guard, whatever was asked for before."""
    setup = "setp.lt.u32 %p1, %lane, 5; setp.ge.u32 %p2, %lane, 30;"
    operands = _operands(setup, "@%p1 mov.u32 %r1, 1")
    own = operands("LANES", None)
    operands.begin_snippet(Guard("%p2", False))
    other = operands("LANES", None)
    operands.begin_snippet(None)
    everybody = operands("LANES", None)
    for value, mask in ((own, 0x1F), (other, 0xC0000000), (everybody, 0xFFFFFFFF)):
        seen = _run(setup, "", operands, value, is_run=False)
        assert [bits for lane, bits in enumerate(seen) if mask >> lane & 1] == [mask] * mask.bit_count()


def _descriptor(m: int, n: int, longer: bool = False) -> int:
    return n // 8 << 17 | m // 16 << 24 | longer << 31 | 0b1_0010_1001_0010


@pytest.mark.parametrize(("instruction", "descriptor", "operations"), [
    ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1", _descriptor(128, 256), 2 * 128 * 256 * 16),
    ("tcgen05.mma.cta_group::2.kind::tf32 [%r1], %rd1, %rd2, %r2, %p1", _descriptor(256, 256), 2 * 256 * 256 * 8),
    ("tcgen05.mma.cta_group::1.kind::i8 [%r1], [%r3], %rd2, %r2, {%r4,%r5,%r6,%r7}, %p1", _descriptor(64, 8),
     2 * 64 * 8 * 32),
    ("tcgen05.mma.sp.cta_group::1.kind::f8f6f4 [%r1], %rd1, %rd2, [%r3], %r2, %p1", _descriptor(128, 64),
     2 * 128 * 64 * 64),
    ("tcgen05.mma.ws.sp.cta_group::1.kind::f16 [%r1], %rd1, %rd2, [%r3], %r2, %p1", _descriptor(32, 128),
     2 * 32 * 128 * 32),
    ("tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::2X [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1",
     _descriptor(128, 248), 2 * 128 * 248 * 64),
    ("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1",
     _descriptor(128, 256, longer=True), 2 * 128 * 256 * 96),
    ("tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1",
     _descriptor(256, 16), 2 * 256 * 16 * 32),
])  # fmt: skip
def test_operations_by_the_descriptor(instruction, descriptor, operations):
    setup = f"mov.b32 %r2, {descriptor};"
    operands = _operands(setup, instruction)
    value = operands("OPS", None)
    assert value.type == "b64"
    assert _run(setup, instruction, operands, value, is_run=False) == [operations] * 32


@pytest.mark.parametrize(("instruction", "helper", "detail"), [
    ("vadd2.s32.s32.s32 %r1, %r2.h10, %r3, %r4", "IN1", "cannot read"),
    ("bra.uni there", "IN1", "cannot read"),
    ("call (%r1), helper, (%r2)", "IN1", "cannot read"),
    ("call (%r1), helper, (%r2)", "OUT", "has no OUT"),
    ("ld.global.b128 %rd1, [%rd2]", "OUT.y", "has no OUT.y"),
    ("ld.global.b32 %r1, [%rd2+there]", "ADDR", "no integer"),
    ("multimem.cp.async.bulk.global.shared::cta [%rd1], [%r1], 64", "ADDR", "no instruction of PTX ISA 9.0"),
    ("tex.1d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [image, {%f5}]", "IN1", "cannot read"),
    ("sust.p.1d.v4.b32.trap [%rd1, {%r1}], {%r2,%r3,%r4,%r5}", "BYTES", "has no BYTES"),
    ("add.f32 %f1, %f2, 1e39", "IN2", "does not fit"),
    ("st.global.v8.b32 [%rd1], {%r1, _, _, %r4, %r2, _, _, _}", "IN2.y", "IN2.y of st.global.v8.b32 is not stored"),
    ("ld.global.v4.b32 {%r1, _, %r3, %r4}, [%rd1]", "OUT.y", "thrown away"),
    ("add.u32 %r1, %r2, %r3", "OPS", "has no OPS"),
    ("add.u32 %r1, %r2, %r3", "PRED.x", "has no PRED.x"),
    ("tcgen05.mma.cta_group::1.kind::f99 [%r1], %rd1, %rd2, %r2, %p1", "OPS", "no known depth"),
])  # fmt: skip
def test_what_is_refused(instruction, helper, detail):
    operands = _operands("", instruction, after=True)
    name, _, element = helper.partition(".")
    with pytest.raises(UnsupportedError, match=detail):
        operands(name, element or None)


_HELPERS = ("OUT", *(f"IN{number}" for number in range(1, 10)), "ADDR", "BYTES", "OPS", "PRED", "LANES", "SITE", "LINE")
_CHARACTERS = st.sampled_from([*"%rpfd019xyz_.,:;|!+-*()[]{} ", "_", "0x", "::", "e9", "9" * 5000, "WARP_SZ", "%tid.x"])


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([instruction for _, instruction, _ in EXAMPLES]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.lists(_CHARACTERS, max_size=4)), max_size=3),
    st.sampled_from([None, "y", "0", "127"]),
    st.booleans(),
)
def test_whatever_stands_there_is_a_value_or_is_refused(instruction, changes, element, after):
    for place, size, new in changes:
        at = int(place * len(instruction))
        instruction = instruction[:at] + "".join(new) + instruction[at + size :]
    read = read_instruction(instruction)
    if read is None:
        return
    (entry,) = (module := parse(f"{_HEAD}ret;\n}}\n")).entries
    assert entry.body is not None
    operands = SiteOperands(
        read, Body(module.code, *entry.body), len(_HEAD), Scratch("%own_"), after=after, module_addresses={},
        product=lambda name, is_out: None,
    )  # fmt: skip
    for helper in _HELPERS:
        try:
            value = operands(helper, element)
        except UnsupportedError:
            continue
        assert value.type is None or value.type == "pred" or bits(value.type) in {8, 16, 32, 64}
