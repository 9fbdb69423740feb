"""Small kernels that hold what rewriters get wrong: ends of every kind, jumps to probed instructions, guards that
their instruction overwrites, odd shapes, every state space, registers of every class."""

from __future__ import annotations

import numpy as np

from tests.oracle.bench import Kernel

_HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"

# Threads leave by a predicated exit, a predicated ret, exit in a branch, and by falling off the end; lane 0 of some
# warps is gone early. Case 2 of the table is a probed instruction right after its label.
_BRANCHES = """
.visible .entry branches(.param .u64 in, .param .u64 out, .param .u32 n)
{
	.reg .pred %p<9>;
	.reg .b32 %r<16>;
	.reg .b64 %rd<9>;
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [out];
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %tid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.y;
	mad.lo.s32 %r2, %r4, %r3, %r2;
	mov.u32 %r4, %ntid.y;
	mul.lo.s32 %r3, %r3, %r4;
	mov.u32 %r4, %ctaid.y; mov.u32 %r5, %nctaid.x; mov.u32 %r6, %ctaid.x;
	mad.lo.s32 %r4, %r4, %r5, %r6;
	mad.lo.s32 %r2, %r4, %r3, %r2;
	setp.ge.s32 %p1, %r2, %r1;
	@%p1 exit;
	mul.wide.s32 %rd3, %r2, 4;
	add.s64 %rd1, %rd1, %rd3;
	add.s64 %rd2, %rd2, %rd3;
	ld.global.u32 %r7, [%rd1];
	and.b32 %r8, %r7, 15;
	setp.eq.s32 %p2, %r8, 0;
	@%p2 st.global.u32 [%rd2], 1000; @%p2 ret;
work:
	mov.u32 %r9, 0;
	mov.u32 %r10, 0;
loop:
	add.s32 %r10, %r10, %r7;
	@%p2 add.s32 %r10, %r10, 1;
	setp.lt.s32 %p3, %r10, 0;
	@%p3 xor.b32 %r10, %r10, -1;
	add.s32 %r9, %r9, 1;
	setp.lt.s32 %p4, %r9, %r8;
	@%p4 bra loop;
	and.b32 %r11, %r7, 3;
table:
	.branchtargets zero, one, two, three;
	brx.idx %r11, table;
zero:
	st.global.u32 [%rd2], %r10;
	exit;
one:
	add.s32 %r10, %r10, 100;
two: st.global.u32 [%rd2+0], %r10;
	setp.gt.s32 %p5, %r8, 7;
	@%p5 st.global.u32 [%rd2+2048], %r9;
	@!%p5 ld.global.u32 %r12, [%rd1+-4];
	@!%p5 st.global.u32 [%rd2+1024], %r12;
	@%p5 setp.gt.s32 %p5, %r8, 9;
	@%p5 bra done;
	ret;
three: { .reg .b32 %r7; mov.b32 %r7, 7; add.s32 %r7, %r7, %r10; st.global.u32 [%rd2], %r7; }
done:
	st.global.u32 [%rd2+3072], %r10;
}
"""

# Every state space, plain and generic, vectors, variables of the module, a chain of pointers.
_MEMORY = """
.const .align 4 .b8 small[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.const .align 4 .u32 factors[4] = {3, 5, 7, 11};
.global .align 4 .u32 total = 5;
.global .align 8 .u64 sums[4] = {1, 2, 3, 4};
.visible .entry memory(.param .u64 in, .param .u64 out, .param .u32 n, .param .u16 tag)
{
	.reg .pred %p<5>;
	.reg .b16 %rs<5>;
	.reg .b32 %r<24>;
	.reg .f32 %f<5>;
	.reg .b64 %rd<16>;
	.shared .align 16 .b8 tile[1152];
	.local .align 8 .b8 spill[32];
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [out];
	ld.param.u32 %r1, [n];
	ld.param.u16 %rs1, [tag];
	mov.u32 %r2, %tid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.y;
	mad.lo.s32 %r2, %r4, %r3, %r2;
	mov.u32 %r4, %ntid.y;
	mul.lo.s32 %r3, %r3, %r4;
	mov.u32 %r4, %ctaid.y; mov.u32 %r5, %nctaid.x; mov.u32 %r6, %ctaid.x;
	mad.lo.s32 %r4, %r4, %r5, %r6;
	mad.lo.s32 %r5, %r4, %r3, %r2;
	setp.ge.s32 %p1, %r5, %r1;
	mul.wide.s32 %rd3, %r5, 16;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	mov.u64 %rd6, spill;
	cvta.local.u64 %rd7, %rd6;
	mov.u32 %r6, tile;
	shl.b32 %r7, %r2, 4;
	add.s32 %r6, %r6, %r7;
	mov.u32 %r8, 0; mov.u32 %r9, 0; mov.u32 %r10, 0; mov.u32 %r11, 0;
	@!%p1 ld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%rd4];
	st.shared.v4.u32 [%r6], {%r8, %r9, %r10, %r11};
	bar.sync 0;
	xor.b32 %r7, %r7, 16;
	mov.u32 %r12, tile;
	add.s32 %r12, %r12, %r7;
	ld.shared.u32 %r13, [%r12];
	ld.shared.v2.u32 {%r14, %r15}, [%r12+8];
	bar.sync 0;
	st.local.u32 [spill+4], %r13;
	add.s64 %rd14, %rd7, 8;
	st.u32 [%rd14], %r14;
	ld.u32 %r16, [%rd7+4];
	ld.local.u32 %r17, [%rd6+8];
	@%p1 ret;
	ld.const.u32 %r18, [factors+4];
	ld.const.u8 %rs2, [small+2];
	cvt.u32.u16 %r19, %rs2;
	mad.lo.s32 %r18, %r18, %r19, %r16;
	cvt.u32.u16 %r19, %rs1;
	add.s32 %r18, %r18, %r19;
	add.s32 %r18, %r18, %r17;
	st.global.v2.u32 [%rd5], {%r18, %r15};
	add.s64 %rd15, %rd5, 8;
	st.u32 [%rd15], %r13;
	cvt.u64.u32 %rd9, %r6;
	cvta.shared.u64 %rd9, %rd9;
	ld.u32 %r20, [%rd9+4];
	st.global.u32 [%rd5+12], %r20;
	atom.global.add.u32 %r21, [total], 1;
	and.b32 %r22, %r2, 3;
	mul.wide.u32 %rd10, %r22, 8;
	mov.u64 %rd11, sums;
	add.s64 %rd11, %rd11, %rd10;
	cvt.u64.u32 %rd12, %r8;
	red.global.add.u64 [%rd11], %rd12;
	mov.u64 %rd13, %rd5;
	st.global.u64 [%rd5+8192], %rd13;
	ld.global.u64 %rd13, [%rd13+8192];
	ld.global.u32 %r23, [%rd13];
	add.s32 %r23, %r23, 1;
	st.global.u32 [%rd13+8200], %r23;
	ret;
}
"""

# Products with one sum each, registers of every class that live across the sites, a called function, reductions over
# parts of warps.
_FLOATS = """
.func (.param .b32 result) size(.param .b32 value)
{
	.reg .f32 %f<3>;
	ld.param.f32 %f1, [value];
	abs.f32 %f2, %f1;
	st.param.f32 [result], %f2;
	ret;
}
.visible .entry floats(.param .u64 in, .param .u64 out, .param .u32 n)
{
	.reg .pred %p<6>;
	.reg .f16 %h<5>;
	.reg .b32 %r<12>;
	.reg .f32 %f<16>;
	.reg .f64 %fd<6>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [out];
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
	mad.lo.s32 %r2, %r2, %r3, %r4;
	setp.ge.s32 %p1, %r2, %r1;
	@%p1 ret;
	mul.wide.s32 %rd3, %r2, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	ld.global.f32 %f1, [%rd4];
	cvt.rn.f16.f32 %h1, %f1;
	cvt.f64.f32 %fd1, %f1;
	setp.gt.f32 %p2, %f1, 0f3F000000;
	ld.global.f32 %f2, [%rd4+1024];
	mul.f32 %f3, %f1, %f2;
	add.f32 %f4, %f3, %f1;
	mul.f32 %f5, %f4, %f2;
	@%p2 ld.global.f32 %f14, [%rd4+4];
	mul.f32 %f6, %f4, 0f3FC00000;
	@%p2 ld.global.f32 %f14, [%rd4+8];
	sub.f32 %f7, %f5, %f4;
	add.f32 %f7, %f7, %f6;
	@%p2 add.f32 %f7, %f7, 0f40000000;
	mul.f64 %fd2, %fd1, %fd1;
	add.f64 %fd3, %fd2, %fd1;
	cvt.rn.f32.f64 %f8, %fd3;
	mul.f16 %h2, %h1, %h1;
	add.f16 %h3, %h2, %h1;
	cvt.f32.f16 %f9, %h3;
	mov.u32 %r7, 0;
	mov.f32 %f10, 0f00000000;
again:
	fma.rn.f32 %f10, %f10, %f1, %f7;
	st.global.f32 [%rd5+2048], %f10;
	add.s32 %r7, %r7, 1;
	setp.lt.u32 %p3, %r7, 5;
	@%p3 bra again;
	{
		.param .b32 given;
		.param .b32 back;
		st.param.f32 [given], %f10;
		call.uni (back), size, (given);
		ld.param.f32 %f11, [back];
	}
	@%p2 fma.rn.f32 %f11, %f11, %f8, %f9;
	activemask.b32 %r8;
	mov.b32 %r9, %f11;
	shfl.sync.bfly.b32 %r10|%p4, %r9, 1, 31, %r8;
	@%p4 xor.b32 %r9, %r9, %r10;
	cvt.f64.f32 %fd4, %f7;
	fma.rn.f64 %fd5, %fd4, %fd3, %fd1;
	cvt.rn.f32.f64 %f12, %fd5;
	@!%p2 bra low;
	st.global.f32 [%rd5+1024], %f12;
	bra.uni end;
low:
	st.global.f32 [%rd5+1024], %f11;
end:
	st.global.b32 [%rd5], %r9;
	cvt.f32.f16 %f13, %h1;
	st.global.f32 [%rd5+3072], %f13;
	ret;
}
"""

# Products and sums in one basic block, so that their number in the machine code is known.
_PRODUCTS = """
.visible .entry products(.param .u64 in, .param .u64 out)
{
	.reg .b32 %r<4>;
	.reg .f32 %f<12>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [out];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd3, %r1, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	ld.global.f32 %f1, [%rd4];
	ld.global.f32 %f2, [%rd4+256];
	mul.f32 %f3, %f1, %f2;
	add.f32 %f4, %f3, %f1;
	mul.f32 %f5, %f4, %f2;
	mul.f32 %f6, %f4, %f1;
	sub.f32 %f7, %f5, %f1;
	add.f32 %f8, %f6, %f7;
	st.global.f32 [%rd5], %f8;
	ret;
}
"""

# Functions: recursion that stores and leaves early, registers as parameters, module variables in both spaces, an end
# of the thread after two calls, one without parameters, predicated calls, calls in a loop, a copied structure.
_CALLS = """
.const .align 4 .u32 weights[4] = {3, 5, 7, 11};
.global .align 4 .u32 visits = 9;
.global .align 8 .u64 reached[2] = {1, 2};
.func (.param .b32 result) descend(.param .b32 depth, .param .b64 place)
;
.func note
{
	.reg .b32 %r<3>;
	ld.global.u32 %r1, [reached+8];
	red.global.add.u32 [visits], 1;
}
.func (.reg .b32 %out) weigh(.reg .b32 %in, .reg .b32 %depth)
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<6>;
	.reg .pred %many;
	setp.gt.s32 %many, %depth, 3;
	and.b32 %r1, %in, 3;
	mul.wide.u32 %rd1, %r1, 4;
	mov.u64 %rd2, weights;
	add.s64 %rd2, %rd2, %rd1;
	ld.const.u32 %r2, [%rd2];
	@%many add.s32 %r2, %r2, %in;
	mad.lo.s32 %out, %in, 2, %r2;
	@!%many ret;
	atom.global.add.u32 %r3, [visits], 2;
	call.uni note;
	add.s32 %out, %out, 1;
	ret.uni;
}
.func leave(.param .align 8 .b8 pair[16])
{
	.reg .pred %p<3>;
	.reg .b32 %r<3>;
	.reg .b64 %rd<3>;
	ld.param.u32 %r1, [pair];
	ld.param.u64 %rd1, [pair+8];
	setp.eq.s32 %p1, %r1, 4;
	@%p1 st.global.u32 [%rd1], 1000;
	@%p1 exit;
	setp.eq.s32 %p2, %r1, 5;
	@%p2 ret;
	st.global.u32 [%rd1+4096], %r1;
}
.func (.param .b32 result) descend(.param .b32 depth, .param .b64 place)
{
	.reg .pred %p<4>;
	.reg .b32 %r<8>;
	.reg .b64 %rd<4>;
	ld.param.u32 %r1, [depth];
	ld.param.u64 %rd1, [place];
	ld.global.u32 %r2, [%rd1];
	st.param.b32 [result], %r2;
	setp.lt.s32 %p1, %r1, 1;
	@%p1 ret;
	setp.eq.s32 %p2, %r1, 3;
	@%p2 call (%r6), weigh, (%r2, 4);
	sub.s32 %r3, %r1, 1;
	{
		.param .b32 a;
		.param .b64 b;
		.param .b32 back;
		st.param.b32 [a], %r3;
		st.param.b64 [b], %rd1;
		call (back), descend, (a, b);
		ld.param.b32 %r4, [back];
	}
	@%p2 add.s32 %r4, %r4, %r6;
	mad.lo.s32 %r4, %r4, 3, %r1;
	st.global.u32 [%rd1+8192], %r4;
	st.param.b32 [result], %r4;
	ret;
}
.visible .entry calls(.param .u64 in, .param .u64 out, .param .u32 n)
{
	.reg .pred %p<6>;
	.reg .b32 %r<16>;
	.reg .b64 %rd<8>;
	ld.param.u64 %rd1, [in];
	ld.param.u64 %rd2, [out];
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %tid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.y;
	mad.lo.s32 %r2, %r4, %r3, %r2;
	mov.u32 %r4, %ntid.y;
	mul.lo.s32 %r3, %r3, %r4;
	mov.u32 %r4, %ctaid.y; mov.u32 %r5, %nctaid.x; mov.u32 %r6, %ctaid.x;
	mad.lo.s32 %r4, %r4, %r5, %r6;
	mad.lo.s32 %r2, %r4, %r3, %r2;
	setp.ge.s32 %p1, %r2, %r1;
	@%p1 bra over;
	mul.wide.s32 %rd3, %r2, 4;
	add.s64 %rd1, %rd1, %rd3;
	add.s64 %rd2, %rd2, %rd3;
	ld.global.u32 %r7, [%rd1];
	and.b32 %r8, %r7, 7;
	setp.gt.s32 %p2, %r8, 3;
	mov.u32 %r9, 0;
	mov.u32 %r10, 0;
	st.global.u32 [%rd2], %r7;
again:
	call (%r12), weigh, (%r8, %r8);
	add.s32 %r10, %r10, %r12;
	@%p2 call note;
	add.s32 %r9, %r9, 1;
	setp.lt.s32 %p3, %r9, 3;
	@%p3 bra again;
	{
		.param .align 8 .b8 given[16];
		st.param.b32 [given], %r8;
		st.param.b64 [given+8], %rd2;
		call leave, (given);
	}
	{
		.param .b32 depth;
		.param .b64 place;
		.param .b32 got;
		st.param.b32 [depth], %r8;
		st.param.b64 [place], %rd2;
		call.uni (got), descend, (depth, place);
		ld.param.b32 %r13, [got];
	}
	add.s32 %r10, %r10, %r13;
	st.global.u32 [%rd2+2048], %r10;
over:
	ret;
}
"""


def _inputs() -> np.random.Generator:
    return np.random.default_rng(2026)


def _branches() -> Kernel:
    values = _inputs().integers(0, 1 << 20, 257, np.int32)
    values[0] = 4
    # Block 1 begins with a thread that leaves at once.
    values[[1, 5, 72, 100]] &= ~15
    arguments = (values, np.zeros(1024, np.int32), np.int32(211))
    return Kernel("branches", _HEAD + _BRANCHES, "branches", (2, 2, 1), (24, 3, 1), arguments)


def _memory() -> Kernel:
    values = _inputs().integers(0, 1 << 32, (288, 4), np.uint32)
    arguments = (values, np.zeros(4096, np.uint32), np.uint32(261), np.uint16(9))
    return Kernel("memory", _HEAD + _MEMORY, "memory", (2, 2, 1), (12, 6, 1), arguments)


def _floats() -> Kernel:
    values = _inputs().random(512, np.float32)
    arguments = (values, np.zeros(1024, np.float32), np.uint32(150))
    return Kernel("floats", _HEAD + _FLOATS, "floats", (4, 1, 1), (48, 1, 1), arguments)


def _products() -> Kernel:
    arguments = (_inputs().random(128, np.float32), np.zeros(64, np.float32))
    return Kernel("products", _HEAD + _PRODUCTS, "products", (1, 1, 1), (64, 1, 1), arguments)


def _calls() -> Kernel:
    values = _inputs().integers(0, 1 << 20, 257, np.int32)
    # Threads 0 and 32 of block 1 end in a function.
    values[[72, 104]] = values[[72, 104]] & ~7 | 4
    arguments = (values, np.zeros(4096, np.int32), np.int32(139))
    return Kernel("calls", _HEAD + _CALLS, "calls", (2, 1, 1), (24, 3, 1), arguments)


BRANCHES, MEMORY, FLOATS, PRODUCTS, CALLS = _branches(), _memory(), _floats(), _products(), _calls()
KERNELS = (BRANCHES, MEMORY, FLOATS, PRODUCTS, CALLS)
