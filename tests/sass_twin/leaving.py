"""Kernels in PTX whose threads end in many ways, some written by hand, some at random."""

from __future__ import annotations

import random

_HEAD = """.version 8.0
.target {arch}
.address_size 64
.func leaves(.param .b64 to, .param .b32 of)
{{
    .reg .b64 %rd<2>;
    .reg .b32 %r<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [to];
    ld.param.u32 %r1, [of];
    and.b32 %r2, %r1, 7;
    setp.eq.u32 %p1, %r2, 3;
    @%p1 exit;
    atom.global.add.u32 %r3, [%rd1], %r2;
    st.global.u32 [%rd1+4], %r3;
    ret;
}}
"""
_REGISTERS = """
    .reg .b64 %rd<4>;
    .reg .b32 %r<400>;
    .reg .f32 %f<16>;
    .reg .pred %p<8>;
    ld.param.u64 %rd1, [a];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mad.lo.u32 %r4, %r3, 77, %r2;
    mul.wide.u32 %rd2, %r4, 4;
    add.u64 %rd2, %rd1, %rd2;
"""

_BODIES = {
    # Ends under a predicate, one without, and a barrier between.
    "guarded": """
    setp.ge.u32 %p1, %r4, %r1;
    ld.global.u32 %r5, [%rd2];
    st.global.u32 [%rd1], %r5;
    bar.sync 0;
    @%p1 exit;
    setp.ne.u32 %p2, %r5, 3;
    st.global.u32 [%rd2+64], %r4;
    @!%p2 exit;
    bar.sync 0;
    st.global.u32 [%rd2+128], %r5;
""",
    # ptxas makes one EXIT of an end under two predicates.
    "both": """
    ld.global.u32 %r5, [%rd2];
    setp.lt.s32 %p1, %r2, %r1;
    setp.lt.s32 %p2, %r5, %r1;
    @%p2 bra LAST;
    st.global.u32 [%rd2+4], %r4;
LAST:
    and.pred %p3, %p1, %p2;
    st.global.u32 [%rd2+8], %r4;
    bar.sync 0;
    @%p3 exit;
    st.global.u32 [%rd2+12], %r5;
""",
    # Ends within a function, and in a loop.
    "called": """
    mov.u32 %r6, 0;
AGAIN:
    {
        .param .b64 to;
        .param .b32 of;
        st.param.b64 [to], %rd2;
        st.param.b32 [of], %r6;
        call leaves, (to, of);
    }
    ld.global.u32 %r7, [%rd2+8];
    setp.eq.u32 %p1, %r7, 9;
    @%p1 exit;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p2, %r6, %r1;
    @%p2 bra AGAIN;
    st.global.u32 [%rd2], %r6;
""",
    # Tensor cores, shuffles, votes.
    "matrix": """
    ld.global.u32 %r5, [%rd2];
    ld.global.u32 %r6, [%rd2+4];
    ld.global.u32 %r7, [%rd2+8];
    mov.f32 %f1, 0f00000000;
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f2, %f3, %f4, %f5}, {%r5, %r6}, {%r7}, {%f1, %f1, %f1, %f1};
    mov.b32 %r8, %f2;
    shfl.sync.down.b32 %r9, %r8, 4, 31, -1;
    setp.gt.u32 %p1, %r9, %r1;
    vote.sync.any.pred %p2, %p1, -1;
    st.global.f32 [%rd2+16], %f3;
    @!%p2 exit;
    redux.sync.add.u32 %r10, %r9, -1;
    st.global.u32 [%rd2+20], %r10;
    st.global.f32 [%rd2+24], %f4;
    st.global.f32 [%rd2+28], %f5;
""",
}


def _wide(count: int, name: str, directives: str) -> str:
    """A kernel that has this many values at a time."""
    loads = "".join(f"    ld.volatile.global.u32 %r{10 + one}, [%rd2+{4 * one}];\n" for one in range(count))
    stores = "".join(f"    st.volatile.global.u32 [%rd2+{4 * one}], %r{10 + one};\n" for one in reversed(range(count)))
    return _entry(name, f"{loads}    bar.sync 0;\n{stores}", directives)


def _summed(count: int, name: str, directives: str) -> str:
    """A kernel that has this many values at a time, and stores their sum."""
    loads = "".join(f"    ld.volatile.global.u32 %r{10 + one}, [%rd2+{4 * one}];\n" for one in range(count))
    # In another order, so that all are needed at a time.
    sums = "".join(f"    xor.b32 %r5, %r{10 + one}, %r6;\n    mul.lo.u32 %r6, %r5, %r{10 + one * 7 % count};\n"
                   for one in reversed(range(count)))  # fmt: skip
    product = (
        "    mov.f32 %f1, 0f00000000;\n    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%f2, %f3, %f4, %f5}, {%r10, %r11}, {%r12}, {%f1, %f1, %f1, %f1};\n    mov.b32 %r6, %f2;\n"
    )
    end = "    st.global.u32 [%rd2], %r6;\n"
    return _entry(name, f"{loads}    bar.sync 0;\n{product}{sums}{end}", directives)


def _entry(name: str, body: str, directives: str = "") -> str:
    return f".visible .entry {name}(.param .u64 a, .param .u32 n)\n{directives}\n{{{_REGISTERS}{body}    ret;\n}}\n"


class _Random:
    """Writes bodies at random: stores, ends under predicates, branches, loops and calls."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._labels = 0

    def body(self, depth: int = 0) -> str:
        return "".join(self._statement(depth) for _ in range(self._random.randint(2, 5)))

    def _label(self) -> str:
        self._labels += 1
        return f"L{self._labels}"

    def _condition(self, predicate: str) -> str:
        how = self._random.choice(["lt.u32", "ne.u32", "ge.s32"])
        value = self._random.choice(["%r1", "%r2", str(self._random.randint(0, 99))])
        load = f"    ld.global.u32 %r9, [%rd2+{4 * self._random.randint(0, 40)}];\n"
        return f"{load}    setp.{how} {predicate}, %r9, {value};\n"

    def _statement(self, depth: int) -> str:
        kind = self._random.choice(["store", "store", "end", "end of two", "if", "loop", "call"])
        if depth > 2 or kind == "store":
            return f"    st.global.u32 [%rd2+{4 * self._random.randint(0, 40)}], %r{self._random.randint(1, 4)};\n"
        negated = self._random.choice(["", "!"])
        if kind == "end":
            return f"{self._condition('%p1')}    @{negated}%p1 exit;\n"
        if kind == "end of two":
            both = self._condition("%p1") + self._condition("%p2")
            return f"{both}    and.pred %p3, %p1, %p2;\n    @{negated}%p3 exit;\n"
        if kind == "call":
            return ("    {\n        .param .b64 to;\n        .param .b32 of;\n        st.param.b64 [to], %rd2;\n"
                    "        st.param.b32 [of], %r4;\n        call leaves, (to, of);\n    }\n")  # fmt: skip
        label = self._label()
        if kind == "if":
            return f"{self._condition('%p1')}    @{negated}%p1 bra {label};\n{self.body(depth + 1)}{label}:\n"
        return f"{label}:\n{self.body(depth + 1)}{self._condition('%p1')}    @{negated}%p1 bra {label};\n"


HAND_WRITTEN = (*_BODIES, "roomy")
RANDOM = tuple(f"random{seed}" for seed in range(8))


def module(arch: str) -> str:
    """The module of all of them: those above, ``roomy`` with 200 registers, ``full`` with 255, ``crowded`` with 64 for
    1,024 threads, as ``summed``, which has few stores."""
    parts = [_HEAD.format(arch=arch)]
    parts += [_entry(name, body) for name, body in _BODIES.items()]
    parts.append(_wide(150, "roomy", ""))
    parts.append(_wide(330, "full", ".maxntid 128, 1, 1"))
    parts.append(_wide(80, "crowded", ".reqntid 1024, 1, 1"))
    parts.append(_summed(48, "summed", ".reqntid 1024, 1, 1"))
    parts += [_entry(name, _Random(seed).body()) for seed, name in enumerate(RANDOM)]
    return "\n".join(parts)
