"""Small kernels in which many kinds of instruction stand side by side, so that several probes meet at each of them.

Pointers and values change right after what uses them, so that code that waits for a later place finds other ones there.
What threads compute is the same under every schedule: each stores to a row of its own, and adds to shared words.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from tests.oracle.bench import Kernel

_INPUT, _ROW = 4096, 256
"""Bytes of the input and of a thread's row of the output."""
_SHAPES = (((2, 1, 1), (40, 1, 1)), ((2, 1, 1), (11, 3, 1)), ((1, 2, 1), (24, 3, 1)), ((2, 1, 1), (64, 1, 1)),
           ((3, 1, 1), (7, 1, 5)), ((1, 1, 1), (97, 1, 1)))  # fmt: skip
_SINGLES = (
    "add.f32 {d}, {a}, {b}", "sub.f32 {d}, {a}, {b}", "mul.f32 {d}, {a}, {b}", "fma.rn.f32 {d}, {a}, {b}, {a}",
    "div.full.f32 {d}, {a}, {b}", "sqrt.approx.f32 {d}, {a}", "rcp.approx.f32 {d}, {a}", "ex2.approx.f32 {d}, {a}",
    "lg2.approx.f32 {d}, {a}", "max.f32 {d}, {a}, {b}", "neg.f32 {d}, {a}",
)  # fmt: skip
_PAIRS = ("add.rn.f16x2 {d}, {a}, {b}", "mul.rn.f16x2 {d}, {a}, {b}", "fma.rn.f16x2 {d}, {a}, {b}, {a}",
          "fma.rn.bf16x2 {d}, {a}, {b}, {b}")  # fmt: skip
_DOUBLES = ("add.f64 {d}, {a}, {b}", "mul.f64 {d}, {a}, {b}", "fma.rn.f64 {d}, {a}, {b}, {a}",
            "div.rn.f64 {d}, {a}, {b}")  # fmt: skip
_WORDS = ("add.s32 {d}, {a}, {b}", "mul.lo.s32 {d}, {a}, {b}", "xor.b32 {d}, {a}, {b}", "shr.u32 {d}, {a}, 3",
          "and.b32 {d}, {a}, {b}", "mad.lo.s32 {d}, {a}, {b}, {a}", "min.s32 {d}, {a}, {b}")  # fmt: skip
_CONVERSIONS = ("cvt.rn.f32.s32 {f}, {r}", "cvt.rn.f32.f64 {f}, {d}", "cvt.f64.f32 {d}, {f}", "mov.b32 {r}, {f}",
                "cvt.rni.s32.f32 {r}, {f}", "mov.b32 {h}, {f}",
                "cvt.rn.f16.f32 %x, {f}; cvt.f32.f16 {f}, %x")  # fmt: skip
_WIDTHS = (("u8", 1, "%w"), ("u16", 2, "%w"), ("u32", 4, "%r"), ("f32", 4, "%f"), ("v2.f32", 8, "%f"), ("f64", 8, "%d"),
           ("v4.f32", 16, "%f"), ("v4.u32", 16, "%r"), ("v2.u16", 4, "%w"))  # fmt: skip
_HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry dense(.param .u64 in, .param .u64 out, .param .u64 total)
{
	.reg .pred %p<4>;
	.reg .b16 %w<4>, %x;
	.reg .b32 %r<6>, %h<4>, %t, %k, %c<3>, %tile, %slot;
	.reg .f32 %f<8>, %m;
	.reg .f64 %d<3>;
	.reg .b64 %in, %out, %total, %a<3>, %s<3>, %o, %g;
	.shared .align 16 .b8 tile[4096];
	ld.param.u64 %in, [in];
	ld.param.u64 %out, [out];
	ld.param.u64 %total, [total];
	mov.u32 %t, %tid.z; mov.u32 %k, %ntid.y; mov.u32 %r0, %tid.y;
	mad.lo.u32 %t, %t, %k, %r0;
	mov.u32 %k, %ntid.x; mov.u32 %r0, %tid.x;
	mad.lo.u32 %t, %t, %k, %r0;
	shl.b32 %slot, %t, 5;
	mov.u32 %tile, tile;
	add.u32 %slot, %slot, %tile;
	mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r1, %r2, 2, %r1;
	mad.lo.u32 %r2, %r1, 128, %t;
	mul.wide.u32 %o, %r2, 256;
	add.u64 %out, %out, %o;
	mul.lo.u32 %r3, %r2, 77; xor.b32 %r4, %r2, 21; mov.u32 %r5, 1000;
	st.shared.v4.u32 [%slot], {%r0, %r1, %r2, %r3};
	st.shared.v4.u32 [%slot+16], {%r4, %r5, %t, %k};
	cvt.rn.f32.u32 %f0, %t; mov.f32 %f1, 0f3F000000; mov.f32 %f2, 0fBF800000; mul.f32 %f3, %f0, %f1;
	mov.f32 %f4, 0f7F000000; mov.f32 %f5, 0f00000000; mov.f32 %f6, %f0; mov.f32 %f7, 0f40490FDB;
	cvt.f64.f32 %d0, %f0; mov.f64 %d1, 0d3FE0000000000000; mov.f64 %d2, 0dC010000000000000;
	mov.b32 %h0, 0x3C003E00; mov.b32 %h1, 0x7B00C200; mov.b32 %h2, 0x3F803F00; mov.b32 %h3, %r2;
	mov.b16 %w0, 3; mov.b16 %w1, 5; mov.b16 %w2, 7; mov.b16 %w3, 9;
	setp.lt.u32 %p0, %t, 17; setp.gt.u32 %p1, %r3, 900; setp.eq.u32 %p2, %r1, 0; setp.ne.u32 %p3, %r4, 20;
	bar.sync 0;
"""

_TAIL = """
	st.global.v4.u32 [%out+240], {%r0, %r1, %r2, %r3};
	st.global.v4.f32 [%out+224], {%f0, %f1, %f2, %f3};
	ret;
}
"""


@dataclass
class _Writer:
    """Writes the statements. valid: pointers that point somewhere. depth: of loops. fuses: products and sums of their
    own, with others in between."""

    random: random.Random
    lines: list[str] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)
    depth: int = 0
    labels: int = 0
    is_straight: bool = False
    fuses: bool = False

    def one(self, name: str, count: int) -> str:
        return f"%{name}{self.random.randrange(count)}"

    def guard(self) -> str:
        if self.is_straight:
            return ""
        return self.random.choice(("", "", "", "@%p0 ", "@!%p1 ", "@%p2 ", "@!%p3 "))

    def body(self, count: int) -> None:
        kinds = ("load", "load", "store", "float", "float", "float", "word", "pair", "double", "convert", "shared",
                 "atomic", "compare", "change", "if", "loop", "meet", "end", "run", "straight", "straight")  # fmt: skip
        if self.fuses:
            kinds += ("product",) * 9
        for _ in range(count):
            getattr(self, f"write_{self.random.choice(kinds)}")()

    def pointer(self, name: str) -> str:
        """A pointer to a place of the input (a) or of the thread's row (s), aligned to 16 bytes."""
        register = self.one(name, 3)
        if register not in self.valid:
            self.valid.add(register)
            base, most = ("%in", _INPUT // 2) if name == "a" else ("%out", _ROW // 2)
            if self.random.random() < 0.6:
                # Side by side, or all at one place.
                step = self.random.choice((0, 16, 16, 32)) if name == "a" else 0
                self.lines.append(
                    f"mul.wide.u32 %o, %t, {step}; add.u64 {register}, {base}, %o; "
                    f"add.u64 {register}, {register}, {self.random.randrange(most // 32) * 16 if name == 's' else 0};"
                )
            else:
                self.lines.append(
                    f"and.b32 %k, {self.one('r', 6)}, {most - 16}; cvt.u64.u32 %o, %k; add.u64 {register}, {base}, %o;"
                )
        return register

    def changed(self, register: str) -> None:
        """Let a pointer point elsewhere, or nowhere."""
        way = self.random.random()
        if way < 0.3 + 0.3 * self.is_straight:
            self.lines.append(f"xor.b64 {register}, {register}, {self.random.choice((16, 32, 64))};")
        elif way < 0.6 + 0.3 * self.is_straight:
            self.lines.append(f"mul.lo.u64 {register}, {register}, 3;")
            self.valid.discard(register)

    def write_load(self) -> None:
        kind, size, bank = self.random.choice(_WIDTHS)
        register = self.pointer(self.random.choice("aas"))
        at = f"[{register}+{self.random.randrange(16 // size) * size}]"
        space = self.random.choice((".global", ".global", ".global", ".global.nc", ""))
        if register.startswith("%s") and space == ".global.nc":
            space = ".global"
        self.lines.append(f"{self.guard()}ld{space}.{kind} {self.values(kind, bank)}, {at};")
        self.changed(register)

    def values(self, kind: str, bank: str) -> str:
        count = {"%w": 4, "%r": 6, "%f": 8, "%d": 3}[bank]
        elements = {"v2": 2, "v4": 4}.get(kind.partition(".")[0], 1)
        first = self.random.randrange(count - elements + 1)
        names = [f"{bank}{first + number}" for number in range(elements)]
        return names[0] if elements == 1 else f"{{{', '.join(names)}}}"

    def write_store(self) -> None:
        kind, size, bank = self.random.choice(_WIDTHS)
        register = self.pointer("s")
        at = f"[{register}+{self.random.randrange(16 // size) * size}]"
        self.lines.append(
            f"{self.guard()}st{self.random.choice(('.global', '.global', ''))}.{kind} {at}, {self.values(kind, bank)};"
        )
        self.changed(register)

    def write_run(self) -> None:
        """Accesses side by side."""
        for _ in range(self.random.randrange(2, 6)):
            self.random.choice((self.write_load, self.write_load, self.write_store))()

    def write_straight(self) -> None:
        """Statements without predicates, in which much waits."""
        kinds = ("load", "load", "store", "float", "float", "change", "pair", "double", "convert", "atomic")
        was_straight, self.is_straight = self.is_straight, True
        for _ in range(self.random.randrange(4, 12)):
            getattr(self, f"write_{self.random.choice(kinds)}")()
        self.is_straight = was_straight

    def write_product(self) -> None:
        """A product, a sum of it, and between them what probes record."""
        kinds = ("load", "store", "float", "word", "pair", "double", "change", "shared")
        self.lines.append(f"mul.f32 %m, {self.one('f', 8)}, {self.one('f', 8)};")
        was_straight, self.is_straight = self.is_straight, self.random.random() < 0.7
        for _ in range(self.random.randrange(1, 4)):
            getattr(self, f"write_{self.random.choice(kinds)}")()
        self.is_straight = was_straight
        form = self.random.choice(("add.f32 {d}, %m, {a}", "sub.f32 {d}, {a}, %m", "add.f32 {d}, {a}, %m"))
        self.some((form,), "f", 8)

    def some(self, forms: tuple[str, ...], bank: str, count: int) -> None:
        form = self.random.choice(forms)
        names = {name: self.one(bank, count) for name in "dab"}
        self.lines.append(f"{self.guard()}{form.format(**names)};")

    def write_float(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.some(_SINGLES, "f", 8)

    def write_word(self) -> None:
        self.some(_WORDS, "r", 6)

    def write_pair(self) -> None:
        self.some(_PAIRS, "h", 4)

    def write_double(self) -> None:
        self.some(_DOUBLES, "d", 3)

    def write_convert(self) -> None:
        form = self.random.choice(_CONVERSIONS)
        self.lines.append(
            form.format(f=self.one("f", 8), r=self.one("r", 6), d=self.one("d", 3), h=self.one("h", 4)) + ";"
        )

    def write_compare(self) -> None:
        self.lines.append(f"setp.gt.s32 {self.one('p', 4)}, {self.one('r', 6)}, {self.random.randrange(-5, 400)};")

    def write_change(self) -> None:
        self.changed(self.one(self.random.choice("as"), 3))

    def write_shared(self) -> None:
        way = self.random.randrange(4)
        register = self.one("r", 6)
        if way == 0:
            self.lines.append(f"{self.guard()}st.shared.v2.u32 [%slot+8], {{{register}, %r0}};")
        elif way == 1:
            self.lines.append(f"{self.guard()}ld.shared.v4.f32 {{%f0, %f1, %f2, %f3}}, [%slot+16];")
        elif way == 2:
            self.lines.append("cvt.u64.u32 %g, %slot; cvta.shared.u64 %g, %g;")
            self.lines.append(f"{self.guard()}ld.u32 {register}, [%g+4];")
        else:
            self.lines.append(f"{self.guard()}ld.shared.u32 {register}, [%slot+{self.random.randrange(8) * 4}];")

    def write_atomic(self) -> None:
        way = self.random.randrange(4)
        if way == 0:
            place, value = self.random.randrange(3) * 4, self.one("r", 6)
            self.lines.append(f"{self.guard()}red.global.add.u32 [%total+{place}], {value};")
        elif way == 1:
            register = self.pointer("s")
            self.lines.append(f"{self.guard()}atom.global.add.u32 {self.one('r', 6)}, [{register}], 3;")
            self.changed(register)
        elif way == 2:
            self.lines.append("and.b32 %k, %t, 4; cvt.u64.u32 %o, %k; add.u64 %g, %total, %o;")
            self.lines.append(f"{self.guard()}red.add.u32 [%g], 1;")
        else:
            self.lines.append(f"{self.guard()}atom.shared.add.u32 {self.one('r', 6)}, [%slot+12], 5;")

    def write_if(self) -> None:
        if self.depth > 1:
            return self.write_float()
        self.labels += 1
        over, end = f"over{self.labels}", f"end{self.labels}"
        before = set(self.valid)
        self.depth += 1
        self.lines.append(f"@{self.random.choice(('', '!'))}{self.one('p', 4)} bra {over};")
        self.body(self.random.randrange(1, 5))
        first = self.valid
        self.valid = before
        if self.random.random() < 0.5:
            self.lines.append(f"bra {end};\n{over}:")
            self.body(self.random.randrange(1, 4))
            self.lines.append(f"{end}:")
        else:
            self.lines.append(f"{over}:")
        self.depth -= 1
        self.valid &= first
        return None

    def write_loop(self) -> None:
        if self.depth > 1:
            return self.write_run()
        self.labels += 1
        counter, again = f"%c{self.depth}", f"again{self.labels}"
        self.lines.append(f"mov.u32 {counter}, 0;\n{again}:")
        self.valid.clear()
        self.depth += 1
        self.body(self.random.randrange(2, 6))
        self.depth -= 1
        times = self.random.randrange(2, 4)
        self.lines.append(f"add.u32 {counter}, {counter}, 1;\nsetp.lt.u32 %p3, {counter}, {times};\n@%p3 bra {again};")
        return None

    def write_meet(self) -> None:
        """A barrier, where all threads come to it, and a read of what another thread has stored."""
        if self.depth:
            return self.write_shared()
        self.lines += ["bar.sync 0;", f"xor.b32 %k, %slot, 32; ld.shared.u32 {self.one('r', 6)}, [%k];", "bar.sync 0;"]
        return None

    def write_end(self) -> None:
        if self.random.random() < 0.3:
            self.lines.append("setp.eq.u32 %p3, %t, 5;\n@%p3 exit;" if self.random.random() < 0.5 else "@%p3 ret;")


def dense(seed: int, size: int = 4, *, fuses: bool = False) -> Kernel:
    """A kernel by its number. size: of its outermost statements. fuses: with products that ptxas joins to sums."""
    writer = _Writer(random.Random(seed), fuses=fuses)
    writer.body(size)
    grid, block = writer.random.choice(_SHAPES)
    text = _HEAD + "\n".join(writer.lines) + _TAIL
    values = np.random.default_rng(seed).normal(size=_INPUT // 4).astype(np.float32) * 3
    values[::29], values[7::47] = np.nan, np.inf
    arguments = (values, np.zeros(6 * 128 * _ROW, np.uint8), np.zeros(4, np.uint32))
    return Kernel(f"dense{seed}", text, "dense", grid, block, arguments)
