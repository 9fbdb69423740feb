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


_SHORT = {1: "u8 %h", 2: "u16 %h", 4: "u32 %v", 8: "v2.u32 {%v, %w}", 16: "v4.u32 {%v, %w, %x, %y}"}
IN_LINE, _ROOM = 96, 1 << 19


class RandomSums:
    """Registers of a random kernel, computed from the numbers of threads and blocks; values: what each thread of the
    grid has in them, by which accesses are chosen that stay in memory."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        thread, block = np.divmod(np.arange(2 * IN_LINE, dtype=np.uint64), IN_LINE)[::-1]
        self.lines = ["mov.u32 %n0, %tid.x;", "mov.u32 %n1, %ctaid.x;", "mov.u32 %n2, %laneid;",
                      "ld.param.u32 %n3, [number];"]  # fmt: skip
        self.narrow = [thread, block, thread % 32, np.full_like(thread, 37)]
        self.wide: list[np.ndarray[tuple[int, ...], np.dtype[np.uint64]]] = []

    def _of(self, *numbers: int) -> int:
        return int(self._random.choice(np.array(numbers, np.int64)))

    def step(self) -> None:
        """Add a register of 32 bits."""
        one, other = (int(self._random.integers(len(self.narrow))) for _ in range(2))
        a, b = self.narrow[one], self.narrow[other]
        number = self._of(1, 2, 3, 4, 7, 15, 16, 31, 32, 63, 64, 96, 127, 128, 248, 256, 508, 896, -1, -16)
        amount, source = self._of(0, 1, 2, 3, 4, 5, 9, 27), np.uint64(number % (1 << 32))
        text, value = [
            (f"and.b32 %d, %n{one}, {number}", a & source), (f"or.b32 %d, %n{one}, {number}", a | source),
            (f"xor.b32 %d, %n{one}, %n{other}", a ^ b), (f"or.b32 %d, %n{one}, %n{other}", a | b),
            (f"and.b32 %d, %n{one}, %n{other}", a & b), (f"add.s32 %d, %n{one}, {number}", a + source),
            (f"add.u32 %d, %n{one}, %n{other}", a + b), (f"shl.b32 %d, %n{one}, {amount}", a << np.uint64(amount)),
            (f"shr.u32 %d, %n{one}, {amount}", a >> np.uint64(amount)), (f"mov.b32 %d, %n{one}", a),
            (f"mul.lo.s32 %d, %n{one}, {number}", a * source), (f"mul.lo.u32 %d, %n{one}, %n{other}", a * b),
        ][int(self._random.integers(12))]  # fmt: skip
        self.lines.append(text.replace("%d", f"%n{len(self.narrow)}") + ";")
        self.narrow.append(value & np.uint64(0xFFFFFFFF))

    def widen(self) -> None:
        """Add a register of 64 bits."""
        one = int(self._random.integers(len(self.narrow)))
        a, factor = self.narrow[one], self._of(1, 2, 4, 6, 8, 16, 24, 32, 40, -4)
        signed = a.astype(np.uint32).astype(np.int32).astype(np.int64).astype(np.uint64)
        times = np.uint64(factor % (1 << 64))
        choices = [(f"cvt.u64.u32 %d, %n{one}", a), (f"cvt.s64.s32 %d, %n{one}", signed),
                   (f"mul.wide.u32 %d, %n{one}, {abs(factor)}", a * np.uint64(abs(factor))),
                   (f"mul.wide.s32 %d, %n{one}, {factor}", signed * times)]  # fmt: skip
        if self.wide:
            last, other = (int(self._random.integers(len(self.wide))) for _ in range(2))
            b, c = self.wide[last], self.wide[other]
            shift = self._of(0, 1, 2, 3, 4)
            choices += [
                (f"mad.wide.u32 %d, %n{one}, {abs(factor)}, %o{last}", a * np.uint64(abs(factor)) + b),
                (f"mad.wide.s32 %d, %n{one}, {factor}, %o{last}", signed * times + b),
                (f"add.s64 %d, %o{last}, %o{other}", b + c), (f"sub.s64 %d, %o{last}, %o{other}", b - c),
                (f"add.s64 %d, %o{last}, {8 * factor}", b + np.uint64(8 * factor % (1 << 64))),
                (f"shl.b64 %d, %o{last}, {shift}", b << np.uint64(shift)),
                (f"mul.lo.s64 %d, %o{last}, {factor}", b * times),
                (f"mad.lo.s64 %d, %o{last}, {factor}, %o{other}", b * times + c),
                (f"mad.lo.u64 %d, %o{last}, %o{other}, %o{last}", b * c + b),
            ]  # fmt: skip
        text, value = choices[int(self._random.integers(len(choices)))]
        self.lines.append(text.replace("%d", f"%o{len(self.wide)}") + ";")
        self.wide.append(value)

    def reachable(self) -> list[int]:
        """The registers of 64 bits that are places in memory in all threads."""
        return [number for number, value in enumerate(self.wide) if int(value.max()) < _ROOM]


def in_line(seed: int) -> Kernel:
    """Accesses at random sums of what is the same in all lanes, of the lanes' numbers, and of what is neither, by whole
    warps whose text states how many threads a block has."""
    random = np.random.default_rng(seed)
    sums = RandomSums(random)
    for _ in range(60):
        for _ in range(int(random.integers(4))):
            sums.step()
        sums.widen()
    lines = []
    for number, place in enumerate(random.choice(sums.reachable(), 36)):
        aligned = int(np.gcd.reduce(sums.wide[place], initial=np.uint64(16)))
        size = min(aligned, int(random.choice(np.array((1, 2, 4, 4, 8, 16)))))
        mask, when = _MASKS[int(random.integers(len(_MASKS)))] if random.integers(2) else "", ""
        if number % 9 == 0:
            lines.append("bar.sync 0;")
        if mask:
            when = f"@%p{number} "
            lines.append(f"shr.u32 %k, {mask}, %n2; and.b32 %k, %k, 1; setp.eq.u32 %p{number}, %k, 1;")
        elif random.integers(2):
            when = f"@%p{number} "
            lines.append(f"setp.lt.u32 %p{number}, %n0, {int(random.integers(IN_LINE))};")
        kind, register = _SHORT[size].split(" ", 1)
        at = f"[%a{number}+{size * int(random.integers(9))}]"
        lines.append(f"add.s64 %a{number}, %base, %o{place};")
        if random.integers(3):
            lines.append(f"{when}ld.global.{kind} {register}, {at};")
        else:
            lines.append(f"{when}st.global.{kind} {at}, {register.replace('%h', '%z')};")
    text = f""".version 8.0
.target sm_90
.address_size 64
.visible .entry in_line(.param .u64 memory, .param .u32 number)
.reqntid {IN_LINE}
{{
    .reg .pred %p<36>;
    .reg .b16 %h, %z;
    .reg .b32 %k, %v, %w, %x, %y, %n<{len(sums.narrow)}>;
    .reg .b64 %base, %a<36>, %o<{len(sums.wide)}>;
    ld.param.u64 %base, [memory];
    mov.u32 %v, 0; mov.u32 %w, 0; mov.u32 %x, 0; mov.u32 %y, 0; mov.u16 %z, 0;
{chr(10).join([*sums.lines, *lines])}
    ret;
}}
"""
    memory = np.zeros(_ROOM + 256, np.uint8)
    return Kernel(f"in_line{seed}", text, "in_line", (2, 1, 1), (IN_LINE, 1, 1), (memory, np.uint32(37)))


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
