"""The kernel of examples/patterns.ptx for the library of probes: loads by an index, in many patterns."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.oracle.bench import Kernel

BLOCKS, THREADS, TURNS, ELEMENTS = 3, 72, 3, 1024
"""The last warp of each block has 8 lanes."""

_TEXT = (Path(__file__).parents[2] / "examples" / "patterns.ptx").read_text()
_COUNT = BLOCKS * THREADS


def _kernel(name: str, indices: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> Kernel:
    random = np.random.default_rng(14)
    values = random.random((ELEMENTS, 2), np.float32)
    # Of which none is negative, except for some.
    values.sort(axis=1)
    values[:] = values[:, ::-1]
    values[random.integers(0, ELEMENTS, 60), 1] = 2
    arguments = (values, indices.astype(np.uint32), np.zeros(_COUNT, np.float32), np.zeros(8, np.uint32))
    # What an atomic returns depends on the order, and nothing reads it.
    return Kernel(name, _TEXT, "patterns", (BLOCKS, 1, 1), (THREADS, 1, 1), arguments)


_STRIDES = ((0, 4), (2, 2), (4, 4), (8, 8), (-4, 4), (16, 4), (24, 8), (32, 16), (-64, 4), (4096, 1), (12, 4), (20, 4))
"""Bytes from thread to thread, and of an access."""
_MASKS = ("", "-1", "0x0000ffff", "0x000000ff", "0xff000000", "0x00ff00ff", "0x55555555", "1", "0x80000000", "0")
"""Which lanes execute an access, "" where it has no predicate."""


def strided(seed: int) -> Kernel:
    """Accesses side by side at several distances from lane to lane, in whole and parted warps, with and without
    predicates; some from one pointer, with amounts that are known."""
    random = np.random.default_rng(seed)
    lines, pointers = [], []
    for number in range(40):
        if number in {13, 27}:
            lines.append(f"bar.sync 0; setp.lt.u32 %half, %t, {20 * (number // 13)}; @%half bra after{number};")
        if number % 3 == 0:
            stride, size = _STRIDES[int(random.integers(len(_STRIDES)))]
            at = f"%at{len(pointers)}"
            pointers.append(at)
            lines.append(f"mad.lo.s32 %k, %t, {stride}, {200000 + int(random.integers(64)) // size * size};")
            if random.integers(5) == 0:
                lines.append(f"mul.lo.s32 %k, %t, %t; mad.lo.s32 %k, %k, {size}, 200000;")
            lines.append(f"cvt.s64.s32 {at}, %k; add.s64 {at}, {at}, %base;")
        mask, amount = _MASKS[int(random.integers(len(_MASKS)))], size * int(random.integers(-40, 40))
        when = ""
        if mask:
            when = f"@%p{number} "
            lines.append(f"shr.u32 %k, {mask}, %lane; and.b32 %k, %k, 1; setp.eq.u32 %p{number}, %k, 1;")
        word = {1: "u8 %h", 2: "u16 %h", 4: "u32 %v", 8: "v2.u32 {%v, %w}", 16: "v4.u32 {%v, %w, %x, %y}"}[size]
        kind, register = word.split(" ", 1)
        if random.integers(3):
            lines.append(f"{when}ld.global.{kind} {register}, [{at}+{amount}];")
        else:
            lines.append(f"{when}st.global.{kind} [{at}+{amount}], {register.replace('%h', '%z')};")
        if number in {26, 39}:
            lines.append(f"after{13 if number == 26 else 27}:")
    text = f""".version 8.0
.target sm_90
.address_size 64
.visible .entry strided(.param .u64 memory)
{{
    .reg .pred %half, %p<40>;
    .reg .b16 %h, %z;
    .reg .b32 %t, %k, %lane, %v, %w, %x, %y;
    .reg .b64 %base, %at<{len(pointers)}>;
    ld.param.u64 %base, [memory];
    mov.u32 %t, %tid.x;
    and.b32 %lane, %t, 31;
    mov.u32 %v, 0; mov.u32 %w, 0; mov.u32 %x, 0; mov.u32 %y, 0; mov.u16 %z, 0;
{chr(10).join(lines)}
    ret;
}}
"""
    return Kernel(f"strided{seed}", text, "strided", (2, 1, 1), (72, 1, 1), (np.zeros(600000, np.uint8),))


def patterns() -> dict[str, Kernel]:
    """The kernel by the pattern in which its threads load."""
    each = np.arange(_COUNT * TURNS)
    random = np.random.default_rng(7)
    found = {
        "linear": each,
        "stride": each * 9 % ELEMENTS,
        "gather": random.permutation(ELEMENTS)[:_COUNT].repeat(TURNS),
        "broadcast": np.repeat(np.arange(TURNS), _COUNT),
        "random": random.integers(0, ELEMENTS, _COUNT * TURNS),
    }
    return {name: _kernel(name, indices) for name, indices in found.items()}
