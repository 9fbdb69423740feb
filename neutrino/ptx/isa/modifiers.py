"""The modifiers of PTX ISA 9.0's instructions: a tracepoint that names another finds nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neutrino.ptx.isa.forms import TYPE, forms
from neutrino.ptx.isa.opcodes import OPCODES

# Chapter 9, by what they say. Those of the tables of opcodes and of snippets' forms go without saying.
_WORDS = """
    const global local param shared generic
    weak relaxed acquire release acq_rel sc volatile mmio cta cluster gpu sys nc unified
    ca cg cs lu cv wb wt v2 v4 v8 b128
    add and or xor inc dec min max cas exch noftz popc red sync arrive warp aligned
    uni cc hi lo wide sat satfinite ftz approx full rnd rs oob shr7 shr15 po b0 b1 b2 b3 h0 h1 noinc noComplete
    b2b4 b4b8 e2m1 e2m3 e3m2 e4m3 e5m2 ue8m0 ue4m3 e2m1x2 e2m1x4 e2m3x2 e2m3x4 e3m2x2 e3m2x4 e4m3x2 e4m3x4 e5m2x2
    e5m2x4 ue8m0x2 f32x2 b1 b4 s4 u4 s2 u2 b4x16 b6x16 b8x16 b4x16_p64 b6x16_p32 b6p2x16 s2f6x2 scaled
    xorsign abs NaN
    1d 2d 3d a1d a2d cube acube 2dms a2dms base level grad r g b a p trap clamp zero
    width height depth channel_data_type channel_order normalized_coords force_unnormalized_coords filter_mode
    addr_mode_0 addr_mode_1 addr_mode_2 array_size num_mipmap_levels num_samples memory_layout
    texref samplerref surfref
    load store mma row col c d sp block_scale scale trans num x1 x2 x4 x8 x16 x32 x64 x128
    all any ballot up down bfly idx
    async bulk bulk_group commit_group wait_group wait_all read prefetch tensor tile im2col im2col_no_offs reduce
    cp_mask ignore_oob multicast cache_hint fractional fence_proxy proxy alias tensormap mbarrier mbarrier_init
    complete_tx expect_tx parity phase init inval arrive_drop test_wait try_wait pending_count
    global_address rank box_dim global_dim global_stride element_stride elemtype interleave_layout swizzle_mode
    swizzle_atomicity fill_mode
    launch_dependents wait is_canceled get_first_ctaid try_cancel query_cancel
    alloc dealloc relinquish_alloc_permit ld st cp shift commit ws down stats_max ashift
    gl L1 L2 range cvt 4d 5d b1024 mask
"""

_BEFORE_TYPES = frozenset({"const", "global", "local", "param", "shared", "v2", "v4", "v8"})
# Section 9.7.9: ld{.ss}{.vec}.type, and so in all.
_SHAPE = re.compile(r"m\d+n\d+(?:k\d+)?|\d+x\d+b|\d+x\d+|32x32b|16x32bx2", re.ASCII)


def _gathered() -> frozenset[str]:
    words = set(_WORDS.split())
    for row in OPCODES:
        words.update(part for alternatives in row.name[1:] for part in alternatives)
    for rows in forms().values():
        words.update(word for form in rows for slot in form.modifiers.split() for word in slot.rstrip("?").split("|"))
    return frozenset(words)


MODIFIERS = _gathered()
"""Their words, those before a ``::``."""


def is_modifier(word: str) -> bool:
    """Whether some instruction has it. Of qualified ones (``L2::128B``) nothing is said: they pass."""
    return "::" in word or word in MODIFIERS or bool(TYPE.fullmatch(word) or _SHAPE.fullmatch(word))


def behind_type(opcode: Sequence[str]) -> int | None:
    """The part that is a state space or a vector behind a type; no instruction has such a one. None without one."""
    typed = False
    for index, word in enumerate(opcode[1:], 1):
        if typed and word in _BEFORE_TYPES:
            return index
        typed = typed or bool(TYPE.fullmatch(word))
    return None


def types_last(opcode: Sequence[str]) -> list[str]:
    """The parts of an opcode with its types behind the others."""
    return [opcode[0], *sorted(opcode[1:], key=lambda word: bool(TYPE.fullmatch(word)))]
