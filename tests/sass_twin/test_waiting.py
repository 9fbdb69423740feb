"""Whether kernels may wait for other blocks, by the machine code that ptxas makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino import load_probes
from neutrino.abi.entries import FewerBlocks
from neutrino.backend.sass_twin import SassKernel, _fewer_blocks
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.twin.waiting import may_wait
from tests.sass_twin.listing import PTX, assemble, instructions

_HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
_KERNEL = """
.visible .entry {name}(.param .u64 data, .param .u32 count)
{{
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<9>; .reg .pred %p<9>;
    .shared .align 8 .b8 kept[256];
    ld.param.u64 %d0, [data]; ld.param.u32 %r0, [count]; mov.u32 %r1, %tid.x; mov.u32 %r2, 0;
    {body}
    st.global.u32 [%d0+64], %r2;
    ret;
}}
"""
_WAITING = {
    "flag": "L: ld.volatile.global.u32 %r3, [%d0]; setp.eq.s32 %p0, %r3, 0; @%p0 bra L;",
    "lock": "L: atom.global.cas.b32 %r3, [%d0], 0, 1; setp.ne.s32 %p0, %r3, 0; @%p0 bra L;",
    "within": "L: ld.volatile.global.u32 %r3, [%d0]; setp.ne.s32 %p0, %r3, 0; @%p0 bra M; bra L; M: mov.u32 %r2, %r3;",
    "sum": "L: ld.volatile.global.u32 %r3, [%d0]; add.s32 %r2, %r2, %r3; setp.lt.s32 %p0, %r2, %r0; @%p0 bra L;",
    "of_the_warp": "L: ld.volatile.global.u32 %r3, [%d0]; setp.eq.s32 %p0, %r3, 0;"
    " vote.sync.any.pred %p1, %p0, 0xffffffff; @%p1 bra L;",
    "moved": "L: ld.volatile.global.u32 %r3, [%d0]; shfl.sync.idx.b32 %r4, %r3, 0, 31, 0xffffffff;"
    " setp.eq.s32 %p0, %r4, 0; @%p0 bra L;",
    "shared": "mov.u64 %d1, kept; L: ld.volatile.shared.u32 %r3, [%d1]; setp.eq.s32 %p0, %r3, 0; @%p0 bra L;",
    "by_barrier": "L: ld.volatile.global.u32 %r4, [%d0]; add.s32 %r2, %r2, 1; setp.lt.s32 %p0, %r4, %r1;"
    " bar.red.popc.u32 %r3, 0, %p0; setp.gt.s32 %p1, %r3, 0; @%p1 bra L;",
    "divided": "cvt.u64.u32 %d5, %r0; L: ld.volatile.global.u64 %d2, [%d0]; div.u64 %d3, %d2, %d5;"
    " setp.eq.s64 %p0, %d3, 3; @%p0 bra L;",
    "selected": "L: ld.volatile.global.u32 %r3, [%d0]; setp.ne.s32 %p0, %r3, 0; selp.b32 %r2, 1, 0, %p0;"
    " setp.eq.s32 %p1, %r2, 0; @%p1 bra L;",
    # How often the inner loop runs decides what the outer one is left by.
    "parity": "L: ld.volatile.global.u32 %r3, [%d0]; M: xor.b32 %r2, %r2, 1; st.volatile.global.u32 [%d0+4], %r3;"
    " shr.u32 %r3, %r3, 1; setp.ne.s32 %p0, %r3, 0; @%p0 bra M; setp.eq.s32 %p1, %r2, 0; @%p1 bra L;",
    # So does which of two ways was taken, or whether one was.
    "ways": "L: ld.volatile.global.u32 %r3, [%d0]; setp.eq.s32 %p0, %r3, 0; @%p0 bra M; st.volatile.global.u32"
    " [%d0+4], %r1; bar.sync 1; add.s32 %r2, %r2, 1; bra N; M: st.volatile.global.u32 [%d0+8], %r1; bar.sync 2;"
    " N: setp.lt.s32 %p1, %r2, %r0; @%p1 bra L;",
    "skipped": "L: ld.volatile.global.u32 %r3, [%d0]; setp.eq.s32 %p0, %r3, 0; @%p0 bra N; add.s32 %r2, %r2, 1;"
    " N: setp.lt.s32 %p1, %r2, %r0; @%p1 bra L;",
    "earlier_round": "ld.volatile.global.u32 %r3, [%d0]; L: mov.u32 %r4, %r3; ld.volatile.global.u32 %r3, [%d0+4];"
    " st.volatile.global.u32 [%d0+8], %r3; setp.eq.s32 %p0, %r4, 0; @%p0 bra L;",
    "lanes_that_are_left": "activemask.b32 %r4; L: ld.volatile.global.u32 %r3, [%d0]; setp.eq.s32 %p0, %r3, 1;"
    " @%p0 bra M; st.volatile.global.u32 [%d0+4], %r1; activemask.b32 %r5; setp.eq.s32 %p1, %r4, %r5; @%p1 bra L; M:",
    "ends": "L: ld.volatile.global.u32 %r3, [%d0]; setp.ne.s32 %p0, %r3, 0; @%p0 exit; st.volatile.global.u32 [%d0+4],"
    " %r3; bra L;",
    "inner": "L: M: ld.volatile.global.u32 %r3, [%d0]; setp.eq.s32 %p0, %r3, 0; @%p0 bra M; add.s32 %r2, %r2, 1;"
    " st.volatile.global.u32 [%d0+8], %r2; setp.lt.s32 %p1, %r2, %r0; @%p1 bra L;",
    "tickets": "L: atom.global.add.u32 %r3, [%d0], 1; st.volatile.global.u32 [%d0+8], %r3; setp.lt.s32 %p0, %r3, %r0;"
    " @%p0 bra L;",
    # It ends, but that is not seen.
    "search": "mov.u32 %r3, %r0; L: add.s32 %r4, %r2, %r3; shr.u32 %r4, %r4, 1; mul.wide.u32 %d1, %r4, 4;"
    " add.s64 %d1, %d0, %d1; ld.global.u32 %r5, [%d1]; setp.lt.u32 %p0, %r5, %r1; @%p0 add.s32 %r2, %r4, 1;"
    " @!%p0 mov.u32 %r3, %r4; setp.lt.s32 %p1, %r2, %r3; @%p1 bra L;",
}
_FREE = {
    "counted": "ld.global.u32 %r0, [%d0]; L: add.s32 %r2, %r2, 1; ld.volatile.global.u32 %r3, [%d0+8];"
    " st.volatile.global.u32 [%d0+8], %r3; setp.lt.s32 %p0, %r2, %r0; @%p0 bra L;",
    "without_reads": "ld.global.u32 %r3, [%d0]; L: shr.u32 %r3, %r3, 3; st.volatile.global.u32 [%d0+8], %r3;"
    " setp.ne.s32 %p0, %r3, 0; @%p0 bra L;",
    "broken_off": "L: ld.volatile.global.u32 %r3, [%d0]; setp.eq.s32 %p0, %r3, 7; @%p0 bra M;"
    " st.volatile.global.u32 [%d0+8], %r3; add.s32 %r2, %r2, 1; setp.lt.s32 %p1, %r2, %r0; @%p1 bra L; M:",
    "ways": "L: ld.volatile.global.u32 %r3, [%d0]; setp.eq.s32 %p0, %r3, 0; @%p0 bra M; st.volatile.global.u32"
    " [%d0+4], %r1; bar.sync 1; bra N; M: st.volatile.global.u32 [%d0+8], %r1; bar.sync 2; N: add.s32 %r2, %r2, 1;"
    " setp.lt.s32 %p1, %r2, %r0; @%p1 bra L;",
    "digits": "L: ld.volatile.global.u32 %r3, [%d0]; M: st.volatile.global.u32 [%d0+4], %r3; shr.u32 %r3, %r3, 1;"
    " setp.ne.s32 %p0, %r3, 0; @%p0 bra M; add.s32 %r2, %r2, 1; setp.lt.s32 %p1, %r2, %r0; @%p1 bra L;",
    "straight": "ld.global.u32 %r2, [%d0];",
    "branch": "ld.global.u32 %r3, [%d0]; setp.eq.s32 %p0, %r3, 0; @%p0 bra M; st.global.u32 [%d0+4], %r1;"
    " M: mov.u32 %r2, 1;",
    "loop": "L: ld.volatile.global.u32 %r3, [%d0]; st.global.u32 [%d0+8], %r3; add.s32 %r2, %r2, 1;"
    " setp.lt.s32 %p0, %r2, %r0; @%p0 bra L;",
    "stride": "mov.u32 %r4, %ntid.x; mov.u32 %r5, %nctaid.x; mul.lo.s32 %r4, %r4, %r5; L: mul.wide.u32 %d1, %r1, 4;"
    " add.s64 %d1, %d0, %d1; atom.global.add.u32 %r3, [%d1+128], 1; st.global.u32 [%d1], %r3;"
    " add.s32 %r1, %r1, %r4; setp.lt.s32 %p0, %r1, %r0; @%p0 bra L;",
    "nested": "L: mov.u32 %r6, 0; M: ld.volatile.global.u32 %r3, [%d0]; st.global.u32 [%d0+8], %r3;"
    " add.s32 %r6, %r6, 1; setp.lt.s32 %p0, %r6, %r1; @%p0 bra M; add.s32 %r2, %r2, 1;"
    " setp.lt.s32 %p1, %r2, %r0; @%p1 bra L;",
    "divided": "cvt.u64.u32 %d5, %r0; mov.u64 %d6, 99; L: ld.volatile.global.u64 %d2, [%d0]; div.u64 %d3, %d2, %d5;"
    " st.volatile.global.u64 [%d0+8], %d3; add.s32 %r2, %r2, 1; setp.lt.s32 %p0, %r2, %r1; @%p0 bra L;",
    "reused": "ld.volatile.global.u32 %r3, [%d0]; st.global.u32 [%d0+8], %r3; mov.u32 %r3, 0; L: add.s32 %r3, %r3, 1;"
    " st.volatile.global.u32 [%d0+4], %r3; setp.lt.s32 %p0, %r3, %r0; @%p0 bra L;",
}  # fmt: skip


@pytest.fixture(scope="module")
def codes(tmp_path_factory) -> dict[str, bytes]:
    """The machine code of the kernels above, by name."""
    bodies = _WAITING | {f"{name}_free": body for name, body in _FREE.items()}
    kernels = "".join(_KERNEL.format(name=name, body=body) for name, body in bodies.items())
    cubin = assemble(_HEAD + kernels, "sm_90", tmp_path_factory.mktemp("waiting"))
    return {name: kernel.code for name, kernel in read_cubin(cubin, "kernels").kernels.items()}


@pytest.mark.parametrize("name", _WAITING)
def test_what_memory_decides_about_may_wait(codes, name):
    assert may_wait(decode(codes[name], 90))


@pytest.mark.parametrize("name", _FREE)
def test_other_loops_do_not_wait(codes, name):
    assert not may_wait(decode(codes[f"{name}_free"], 90))


def test_division_is_a_call(codes, tmp_path):
    """The two kernels that divide call a function, as nvdisasm says."""
    cubin = assemble(_HEAD + _KERNEL.format(name="divided", body=_WAITING["divided"]), "sm_90", tmp_path)
    assert any("CALL.REL" in line for line in instructions(cubin, "divided", tmp_path).values())


def test_calls_by_a_register_may_wait_unless_they_end_the_launch(tmp_path):
    text = (
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);"
        + _KERNEL.format(
            name="asserted",
            body="setp.lt.s32 %p0, %r1, %r0; @%p0 bra M; { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d;"
            " .param .b64 e; st.param.b64 [a], %d0; st.param.b64 [b], %d0; st.param.b32 [c], 1; st.param.b64 [d], %d0;"
            " st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); } M:",
        )
    )
    (kernel,) = read_cubin(assemble(_HEAD + text, "sm_90", tmp_path), "asserted").kernels.values()
    code = decode(kernel.code, 90)
    assert may_wait(code)
    assert not may_wait(code, aborts=True)


def test_what_is_not_known_may_wait(codes):
    """An instruction that the table lacks, at each place that is executed."""
    code = codes["straight_free"]
    ends = next(at for at in range(0, len(code), 16) if int.from_bytes(code[at : at + 2], "little") & 0xFFF == 0x94D)
    for at in range(0, ends, 16):
        assert may_wait(decode(code[:at] + bytes(16) + code[at + 16 :], 90)), at


def test_no_kernel_waits_less_than_its_text_says(whole):
    """The other analysis, of the PTX that the code was made of: what it says may wait does not become free."""
    found = {name: may_wait(decode(kernel.code, 90)) for name, kernel in read_cubin(whole, "whole").kernels.items()}
    twins = probe_module(parse(PTX.read_text()), load_probes(["block_sched"]))
    texts = {twin.name: twin.may_wait for twin in twins.kernels}
    assert texts
    assert {name for name, waits in texts.items() if waits} <= {name for name, waits in found.items() if waits}
    assert not all(found.values())


@pytest.mark.parametrize(
    ("name", "registers", "expected"),
    [
        ("flag", (33, 40), FewerBlocks.NONE), ("flag", (40, 40), FewerBlocks.NONE),
        ("flag", (40, 41), FewerBlocks.ALL_FIT), ("loop", (40, 41), FewerBlocks.ANY),
    ],
)  # fmt: skip
def test_it_counts_only_where_registers_take_more_room(
    tmp_path: Path, name: str, registers: tuple[int, int], expected: FewerBlocks
) -> None:
    """They are handed out in units of eight."""
    body = (_WAITING | _FREE)[name]
    cubin = assemble(_HEAD + _KERNEL.format(name=name, body=body), "sm_90", tmp_path)
    assert _fewer_blocks(SassKernel(name, cubin, load_probes(["block_sched"])), "sm_90", *registers) is expected
