"""The arithmetic instructions that a GPU is asked about, and the PTX that asks: one kernel for each.

The list is written out here and does not ask the emulator: what it should know is the PTX ISA's matter (9.7.1 to 9.7.9,
9.7.15), as far as sm_90 has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from bench.arithmetic_operands import TUPLES, bits_of

BLOCK = 256
WARPS = TUPLES // 32


@dataclass(frozen=True)
class Bound:
    """How far an inexact result may be from the nearest one: `ulp` steps of the type, or `absolute`; either will do.

    domain: the largest magnitude of the operands for which this is so.
    """

    ulp: int
    absolute: float = 0.0
    domain: float | None = None


@dataclass(frozen=True)
class Form:
    """One instruction as it is written.

    opcode: with all modifiers. outputs, inputs: PTX types of the operands, `pred` for predicates, `amount` for a .u32
    that counts bits. constants: operands after `inputs`, as written. carry: as in the emulator's operations, the flag
    being the last input ("in"), the last output ("out") or both ("inout"), of subtractions as a borrow. bound: None
    where the result is exact.
    """

    opcode: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    constants: tuple[str, ...] = ()
    carry: str | None = None
    bound: Bound | None = None

    @property
    def name(self) -> str:
        """The instruction's opcode with its constants, which is unlike any other form's."""
        pair = " p|q" if len(self.outputs) > 1 and self.carry is None else ""
        return " ".join((self.opcode + pair, *self.constants))


INTEGERS = ("u16", "u32", "u64", "s16", "s32", "s64")
_EVERY_INTEGER = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
_CARRYING = ("u32", "s32", "u64", "s64")
_BITS = ("b16", "b32", "b64")
_MODES = ("rn", "rz", "rm", "rp")
_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _same(mnemonic: str, types: Sequence[str], count: int) -> Iterator[Form]:
    """Yield the test instructions ``mnemonic.type`` with ``count`` operands, all of one type, for each of the types."""
    for name in types:
        yield Form(f"{mnemonic}.{name}", (name,), (name,) * count)


def _integers() -> Iterator[Form]:
    """Yield the integer instructions to test, PTX ISA 9.7.1: sums, products, quotients, minima, dot products …"""
    # PTX ISA 9.7.1.
    for mnemonic in ("add", "sub"):
        yield from _same(mnemonic, INTEGERS, 2)
        yield from _same(f"{mnemonic}.sat", ("s32",), 2)
    yield from _same("add", ("u16x2", "s16x2"), 2)
    for name in INTEGERS:
        for part in ("lo", "hi"):
            yield Form(f"mul.{part}.{name}", (name,), (name,) * 2)
            yield Form(f"mad.{part}.{name}", (name,), (name,) * 3)
    for name, wide in _WIDER.items():
        yield Form(f"mul.wide.{name}", (wide,), (name, name))
        yield Form(f"mad.wide.{name}", (wide,), (name, name, wide))
    yield from _same("mad.hi.sat", ("s32",), 3)
    for part in ("lo", "hi"):
        yield from _same(f"mul24.{part}", ("u32", "s32"), 2)
        yield from _same(f"mad24.{part}", ("u32", "s32"), 3)
    yield from _same("mad24.hi.sat", ("s32",), 3)
    for mnemonic in ("div", "rem", "min", "max"):
        yield from _same(mnemonic, INTEGERS, 2)
    yield from _same("sad", INTEGERS, 3)
    for mnemonic in ("abs", "neg"):
        yield from _same(mnemonic, ("s16", "s32", "s64"), 1)
    for mnemonic in ("min", "max"):
        yield from _same(mnemonic, ("u16x2", "s16x2"), 2)
        yield from _same(f"{mnemonic}.relu", ("s16x2", "s32"), 2)
    for a, b in product(("u32", "s32"), repeat=2):
        total = "u32" if a == b == "u32" else "s32"
        for opcode in ("dp4a", "dp2a.lo", "dp2a.hi"):
            yield Form(f"{opcode}.{a}.{b}", (total,), (a, b, total))


def _carries() -> Iterator[Form]:
    """Yield the instructions to test that take or give a carry, PTX ISA 9.7.2."""
    # PTX ISA 9.7.2.
    for name in _CARRYING:
        for mnemonic, count in (("add", 2), ("sub", 2), ("mad.lo", 3), ("mad.hi", 3)):
            first, *rest = mnemonic.split(".")
            taking = ".".join((first + "c", *rest))
            yield Form(f"{mnemonic}.cc.{name}", (name, "pred"), (name,) * count, carry="out")
            yield Form(f"{taking}.{name}", (name,), (*(name,) * count, "pred"), carry="in")
            yield Form(f"{taking}.cc.{name}", (name, "pred"), (*(name,) * count, "pred"), carry="inout")


def _bits() -> Iterator[Form]:
    """Yield the bit instructions to test: logic, shifts, bit fields, counts (PTX ISA 9.7.1, 9.7.8), and prmt (9.7.9).
    """
    # PTX ISA 9.7.1 and 9.7.8; prmt, 9.7.9.
    for mnemonic in ("and", "or", "xor"):
        yield from _same(mnemonic, (*_BITS, "pred"), 2)
    yield from _same("not", (*_BITS, "pred"), 1)
    yield from _same("cnot", _BITS, 1)
    for table in ("0x96", "0xE8", "0xCA", "0x01", "0x80", "0x3C", "0x5A", "0xB4", "0xF0"):
        yield Form("lop3.b32", ("b32",), ("b32",) * 3, (table,))
    for name in _BITS:
        yield Form(f"shl.{name}", (name,), (name, "amount"))
    for name in (*_BITS, *INTEGERS):
        yield Form(f"shr.{name}", (name,), (name, "amount"))
    for direction, mode in product("lr", ("clamp", "wrap")):
        yield Form(f"shf.{direction}.{mode}.b32", ("b32",), ("b32", "b32", "amount"))
    for name in _CARRYING:
        yield Form(f"bfe.{name}", (name,), (name, "amount", "amount"))
        yield Form(f"bfind.{name}", ("u32",), (name,))
        yield Form(f"bfind.shiftamt.{name}", ("u32",), (name,))
    for name in ("b32", "b64"):
        yield Form(f"bfi.{name}", (name,), (name, name, "amount", "amount"))
        yield Form(f"popc.{name}", ("u32",), (name,))
        yield Form(f"clz.{name}", ("u32",), (name,))
        yield Form(f"brev.{name}", (name,), (name,))
    for mode in ("clamp", "wrap"):
        yield Form(f"bmsk.{mode}.b32", ("b32",), ("amount", "amount"))
        for name in ("u32", "s32"):
            yield Form(f"szext.{mode}.{name}", (name,), (name, "amount"))
    yield Form("prmt.b32", ("b32",), ("b32",) * 3)
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield Form(f"prmt.b32.{mode}", ("b32",), ("b32", "b32", "amount"))


_ORDERS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNSIGNED_ORDERS = (*_ORDERS, "lo", "ls", "hi", "hs")
_FLOAT_ORDERS = (*_ORDERS, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _orders(name: str) -> tuple[str, ...]:
    """Return the comparisons (``eq``, ``lt`` …) that the instruction setp has for a PTX type."""
    if "f" in name:
        return _FLOAT_ORDERS
    return {"b": _ORDERS[:2], "u": _UNSIGNED_ORDERS, "s": _ORDERS}[name[0]]


def _comparisons() -> Iterator[Form]:
    """Yield the comparisons and selections to test (setp, set, selp, slct), PTX ISA 9.7.6 and 9.7.7."""
    # PTX ISA 9.7.6 and 9.7.7.
    floats = ("f16", "bf16", "f32", "f64")
    for name in (*_BITS, *INTEGERS, *floats):
        two = (name, name)
        for order in _orders(name):
            yield Form(f"setp.{order}.{name}", ("pred",), two)
            if name in ("f16", "f32"):
                yield Form(f"setp.{order}.ftz.{name}", ("pred",), two)
        # Scalars of half precision have no p|q.
        if name not in ("f16", "bf16"):
            yield Form(f"setp.{_orders(name)[1]}.{name}", ("pred", "pred"), two)
            yield Form(f"setp.eq.xor.{name}", ("pred", "pred"), (*two, "pred"))
        for combine in ("and", "or", "xor"):
            yield Form(f"setp.{_orders(name)[-1]}.{combine}.{name}", ("pred",), (*two, "pred"))
    for name in ("f16x2", "bf16x2"):
        for order in _FLOAT_ORDERS:
            yield Form(f"setp.{order}.{name}", ("pred", "pred"), (name, name))
        yield Form(f"setp.lt.and.{name}", ("pred", "pred"), (name, name, "pred"))
    for result, name in product(("u32", "s32", "f32"), (*_BITS, *INTEGERS, "f32", "f64")):
        for order in (_orders(name)[0], _orders(name)[-1]):
            yield Form(f"set.{order}.{result}.{name}", (result,), (name, name))
        yield Form(f"set.{_orders(name)[1]}.and.{result}.{name}", (result,), (name, name, "pred"))
    for order in _FLOAT_ORDERS:
        yield Form(f"set.{order}.ftz.u32.f32", ("u32",), ("f32", "f32"))
        yield Form(f"set.{order}.f16x2.f16x2", ("f16x2",), ("f16x2", "f16x2"))
        yield Form(f"set.{order}.bf16x2.bf16x2", ("bf16x2",), ("bf16x2", "bf16x2"))
    for result, name, order in product(("u16", "s16", "u32", "s32"), ("f16", "bf16"), ("lt", "neu")):
        yield Form(f"set.{order}.{result}.{name}", (result,), (name, name))
    for name, order in product(("f16", "bf16"), ("eq", "gtu")):
        yield Form(f"set.{order}.{name}.{name}", (name,), (name, name))
    for name in (*_BITS, *INTEGERS, "f32", "f64"):
        yield Form(f"selp.{name}", (name,), (name, name, "pred"))
        for by in ("s32", "f32"):
            yield Form(f"slct.{name}.{by}", (name,), (name, name, by))
        yield Form(f"slct.ftz.{name}.f32", (name,), (name, name, "f32"))


def _holds(target: str, source: str) -> bool:
    """Whether every value of the integer type ``source`` fits the type ``target``, so that cvt takes no .sat."""
    wider = bits_of(target) - bits_of(source)
    return wider >= 0 if target[0] == source[0] else source[0] == "u" and wider > 0


def _moves() -> Iterator[Form]:
    """Yield the copies, and conversions from or to integers, to test, PTX ISA 9.7.9."""
    # PTX ISA 9.7.9.
    yield from _same("mov", (*_BITS, *INTEGERS, "f32", "f64", "pred"), 1)
    for source, target in product(_EVERY_INTEGER, repeat=2):
        yield Form(f"cvt.{target}.{source}", (target,), (source,))
        if not _holds(target, source):
            yield Form(f"cvt.sat.{target}.{source}", (target,), (source,))
    for source, target, mode in product(_EVERY_INTEGER, ("f16", "bf16", "f32", "f64"), _MODES):
        if (bits_of(source), target) != (8, "bf16"):
            yield Form(f"cvt.{mode}.{target}.{source}", (target,), (source,))
    for source, mode in product(("s32", "u64"), _MODES):
        yield Form(f"cvt.{mode}.sat.f32.{source}", ("f32",), (source,))
    for source, target, mode in product(("f16", "bf16", "f32", "f64"), _EVERY_INTEGER, ("rni", "rzi", "rmi", "rpi")):
        if (bits_of(target), source) != (8, "bf16"):
            yield Form(f"cvt.{mode}.{target}.{source}", (target,), (source,))
        if source == "f32":
            yield Form(f"cvt.{mode}.ftz.{target}.{source}", (target,), (source,))
    for kind in ("u16", "s16"):
        yield Form(f"cvt.pack.sat.{kind}.s32", ("u32",), ("s32", "s32"))
    for kind in ("u8", "s8", "u4", "s4", "u2", "s2"):
        yield Form(f"cvt.pack.sat.{kind}.s32.b32", ("u32",), ("s32", "s32", "b32"))


def _float_conversions() -> Iterator[Form]:
    """Yield the conversions (cvt) between floating-point types, and roundings to whole numbers, to test."""
    for mode in ("rni", "rzi", "rmi", "rpi"):
        for name in ("f16", "bf16", "f32", "f64"):
            yield Form(f"cvt.{mode}.{name}.{name}", (name,), (name,))
        yield Form(f"cvt.{mode}.ftz.f32.f32", ("f32",), ("f32",))
        yield Form(f"cvt.{mode}.sat.f32.f32", ("f32",), ("f32",))
    for dress in ("", ".ftz", ".sat", ".ftz.sat"):
        yield Form(f"cvt{dress}.f32.f32", ("f32",), ("f32",))
        yield Form(f"cvt{dress}.f32.f16", ("f32",), ("f16",))
    yield Form("cvt.sat.f64.f64", ("f64",), ("f64",))
    yield Form("cvt.sat.f16.f16", ("f16",), ("f16",))
    yield Form("cvt.f32.bf16", ("f32",), ("bf16",))
    yield Form("cvt.f64.f32", ("f64",), ("f32",))
    yield Form("cvt.ftz.f64.f32", ("f64",), ("f32",))
    yield Form("cvt.f64.f16", ("f64",), ("f16",))
    yield Form("cvt.f64.bf16", ("f64",), ("bf16",))
    yield Form("cvt.rn.f16.bf16", ("f16",), ("bf16",))
    yield Form("cvt.rn.bf16.f16", ("bf16",), ("f16",))
    for mode in _MODES:
        for dress in ("", ".ftz", ".sat", ".ftz.sat"):
            yield Form(f"cvt.{mode}{dress}.f32.f64", ("f32",), ("f64",))
            yield Form(f"cvt.{mode}{dress}.f16.f32", ("f16",), ("f32",))
        yield Form(f"cvt.{mode}.f16.f64", ("f16",), ("f64",))
        yield Form(f"cvt.{mode}.bf16.f64", ("bf16",), ("f64",))
        yield Form(f"cvt.{mode}.bf16.f32", ("bf16",), ("f32",))
    for mode, relu, finite in product(("rn", "rz"), ("", ".relu"), ("", ".satfinite")):
        yield Form(f"cvt.{mode}{relu}{finite}.f16.f32", ("f16",), ("f32",))
        yield Form(f"cvt.{mode}{relu}{finite}.bf16.f32", ("bf16",), ("f32",))
        yield Form(f"cvt.{mode}{relu}{finite}.f16x2.f32", ("f16x2",), ("f32", "f32"))
        yield Form(f"cvt.{mode}{relu}{finite}.bf16x2.f32", ("bf16x2",), ("f32", "f32"))
        if not finite:
            yield Form(f"cvt.{mode}{relu}.tf32.f32", ("tf32",), ("f32",))
    yield Form("cvt.rna.tf32.f32", ("tf32",), ("f32",))
    yield Form("cvt.rna.satfinite.tf32.f32", ("tf32",), ("f32",))
    for relu, name in product(("", ".relu"), ("e4m3x2", "e5m2x2")):
        yield Form(f"cvt.rn.satfinite{relu}.{name}.f32", (name,), ("f32", "f32"))
        yield Form(f"cvt.rn.satfinite{relu}.{name}.f16x2", (name,), ("f16x2",))
        yield Form(f"cvt.rn{relu}.f16x2.{name}", ("f16x2",), (name,))


def _floats() -> Iterator[Form]:
    """Yield the exact floating-point instructions to test, PTX ISA 9.7.3 to 9.7.5."""
    # PTX ISA 9.7.3 to 9.7.5.
    for mnemonic, count in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3), ("mad", 3)):
        modes = tuple("." + mode for mode in _MODES) + (() if count == 3 else ("",))
        for mode, ftz, sat in product(modes, ("", ".ftz"), ("", ".sat")):
            yield Form(f"{mnemonic}{mode}{ftz}{sat}.f32", ("f32",), ("f32",) * count)
        for mode in modes:
            yield Form(f"{mnemonic}{mode}.f64", ("f64",), ("f64",) * count)
        for name in ("f16", "f16x2"):
            if mnemonic == "mad":
                continue
            for mode, ftz, sat in product((".rn",) if count == 3 else ("", ".rn"), ("", ".ftz"), ("", ".sat")):
                yield Form(f"{mnemonic}{mode}{ftz}{sat}.{name}", (name,), (name,) * count)
    for name in ("bf16", "bf16x2"):
        for mnemonic in ("add", "sub", "mul"):
            yield from _same(mnemonic, (name,), 2)
            yield from _same(f"{mnemonic}.rn", (name,), 2)
        yield from _same("fma.rn", (name,), 3)
        yield from _same("fma.rn.relu", (name,), 3)
    for name, ftz in product(("f16", "f16x2"), ("", ".ftz")):
        yield Form(f"fma.rn{ftz}.relu.{name}", (name,), (name,) * 3)
    for mnemonic, count in (("div", 2), ("rcp", 1), ("sqrt", 1)):
        for mode in _MODES:
            for dress in ("", ".ftz"):
                yield from _same(f"{mnemonic}.{mode}{dress}", ("f32",), count)
            yield from _same(f"{mnemonic}.{mode}", ("f64",), count)
    for mnemonic in ("min", "max"):
        for nan, sign in product(("", ".NaN"), ("", ".xorsign.abs")):
            for ftz in ("", ".ftz"):
                yield from _same(f"{mnemonic}{ftz}{nan}{sign}", ("f32", "f16", "f16x2"), 2)
            yield from _same(f"{mnemonic}{nan}{sign}", ("bf16", "bf16x2"), 2)
        yield from _same(mnemonic, ("f64",), 2)
    for mnemonic in ("abs", "neg"):
        yield from _same(mnemonic, ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64"), 1)
        yield from _same(f"{mnemonic}.ftz", ("f16", "f16x2", "f32"), 1)
    yield from _same("copysign", ("f32", "f64"), 2)
    for test, name in product(("finite", "infinite", "number", "notanumber", "normal", "subnormal"), ("f32", "f64")):
        yield Form(f"testp.{test}.{name}", ("pred",), (name,))


# A step more than an H200 was off by at most, in steps of the type; all are within what PTX ISA 9.7.3 and 9.7.4 allow.
# sin and cos are bounded as they are there, absolutely, and lg2, near 1, as well.
_APPROXIMATIONS = {
    "div.approx": Bound(2),
    "div.full": Bound(2),
    "rcp.approx": Bound(2),
    "sqrt.approx": Bound(2),
    "rsqrt.approx": Bound(2),
    "sin.approx": Bound(0, 2.0**-15, 314.0),
    "cos.approx": Bound(0, 2.0**-15, 314.0),
    "lg2.approx": Bound(2, 2.0**-22),
    "ex2.approx": Bound(3),
}


def _approximations() -> Iterator[Form]:
    """Yield the approximate functions to test (division, roots, sine, exponential …), each with the error that is
    allowed."""
    for opcode, bound in _APPROXIMATIONS.items():
        count = 2 if opcode.startswith("div") else 1
        for ftz in ("", ".ftz"):
            yield Form(f"{opcode}{ftz}.f32", ("f32",), ("f32",) * count, bound=bound)
    # Of f64 the upper words count: 2**32 steps of the whole number are one of theirs.
    for opcode in ("rcp", "rsqrt"):
        yield Form(f"{opcode}.approx.ftz.f64", ("f64",), ("f64",), bound=Bound(2 << 32))
    yield Form("tanh.approx.f32", ("f32",), ("f32",), bound=Bound(115))
    for name in ("f16", "bf16"):
        for packed in (name, f"{name}x2"):
            yield Form(f"tanh.approx.{packed}", (packed,), (packed,), bound=Bound(2))
            # ex2 of bf16 has .ftz in its name, and that of f16 never.
            flush = ".ftz" if name == "bf16" else ""
            yield Form(f"ex2.approx{flush}.{packed}", (packed,), (packed,), bound=Bound(2))


def forms() -> tuple[Form, ...]:
    """Return every instruction to test but matrix products; no two have the same name."""
    tables = (_integers, _carries, _bits, _comparisons, _moves, _float_conversions, _floats, _approximations)
    found = {form.name: form for table in tables for form in table()}
    return tuple(found.values())


@dataclass(frozen=True)
class Product:
    """One matrix product (`mma.sync`) over words a lane: `a`, `b`, `c` in, `d` out; double: they are halves of f64.

    types: of the elements of a, b, c, d. whole: whether its operands are small whole numbers, so that it is exact.
    bound: how far a result may be off, in parts of the sum of the magnitudes that were added; 0 where it is exact.
    """

    opcode: str
    types: tuple[str, str, str, str]
    counts: tuple[int, int, int, int]
    whole: bool
    bound: float = 0.0

    @property
    def name(self) -> str:
        """A name of the matrix product that is unlike any other's: its opcode and the kind of its inputs."""
        return f"{self.opcode} {'whole' if self.whole else 'random'}"


_ELEMENT_BITS = {"b1": 1, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8, "f16": 16, "bf16": 16, "f64": 64}
# Of m8n8k4 with f16 alone, which other hardware than tensor cores adds, several orders of its sums fit what was seen.
_QUAD_BOUND = 2.0**-17


def _products(
    shape: str, a: str, b: str, accumulators: Sequence[str], flags: Sequence[str] = ("",), orders: str = "row.col"
) -> Iterator[Product]:
    """Yield the matrix products (mma.sync) of one shape, such as ``m16n8k8``, to test: for each accumulator type and
    flag.

    Where results are floating point, once with exact (small whole) numbers and once without. a, b: types of their
    elements. accumulators: types of d, or of d and c with a space between. orders: ``row`` or ``col`` of a and b.
    """
    m, n, k = (int(number) for number in shape.replace("n", " ").replace("k", " ")[1:].split())
    # m8n8k4 with f16 is four products side by side.
    many = 4 if shape == "m8n8k4" and a == "f16" else 1
    for pair, flag in product(accumulators, flags):
        d, _, c = pair.partition(" ")
        c = c or d
        sizes = (m * k, k * n, m * n, m * n)
        counts = [
            many * size * _ELEMENT_BITS.get(name, 32) // 1024 for size, name in zip(sizes, (a, b, c, d), strict=True)
        ]
        tail = {"xor": ".xor.popc", "and": ".and.popc"}.get(flag, "")
        saturate = ".satfinite" if flag == "satfinite" else ""
        opcode = f"mma.sync.aligned.{shape}.{orders}{saturate}.{d}.{a}.{b}.{c}{tail}"
        kinds = (True, False) if d.startswith("f") else (False,)
        for whole in kinds:
            bound = _QUAD_BOUND if many > 1 and (c, d) == ("f16", "f16") and not whole else 0.0
            yield Product(opcode, (a, b, c, d), (counts[0], counts[1], counts[2], counts[3]), whole, bound)


def products() -> tuple[Product, ...]:
    """Return every matrix product (mma.sync) to test."""
    found: list[Product] = []
    for orders in ("row.col", "row.row", "col.row", "col.col"):
        found += _products("m8n8k4", "f16", "f16", ("f16", "f32 f16", "f32"), orders=orders)
    for shape in ("m16n8k8", "m16n8k16"):
        found += _products(shape, "f16", "f16", ("f16", "f32"))
        found += _products(shape, "bf16", "bf16", ("f32",))
    for shape in ("m16n8k4", "m16n8k8"):
        found += _products(shape, "tf32", "tf32", ("f32",))
    for shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"):
        found += _products(shape, "f64", "f64", ("f64",))
    for a, b in product(("e4m3", "e5m2"), repeat=2):
        found += _products("m16n8k32", a, b, ("f32",))
    flags = ("", "satfinite")
    for names, shapes in (
        (("s8", "u8"), ("m8n8k16", "m16n8k16", "m16n8k32")),
        (("s4", "u4"), ("m8n8k32", "m16n8k32", "m16n8k64")),
    ):
        for (a, b), shape in product(product(names, repeat=2), shapes):
            found += _products(shape, a, b, ("s32",), flags)
    for shape in ("m8n8k128", "m16n8k128", "m16n8k256"):
        found += _products(shape, "b1", "b1", ("s32",), ("xor", "and"))
    return tuple(found)


# -- PTX

HEAD = ".version 8.5\n.target sm_90a\n.address_size 64\n"
_OPEN = """.visible .entry {entry}(.param .u64 in, .param .u64 out)
{{
    .reg .pred %p<10>;
    .reg .b16 %h<10>;
    .reg .b32 %r<40>;
    .reg .b64 %d<20>;
    .reg .f64 %e<40>;
    ld.param.u64 %d18, [in];
    ld.param.u64 %d19, [out];
    mov.u32 %r36, %ctaid.x;
    mov.u32 %r37, %ntid.x;
    mov.u32 %r38, %tid.x;
    mad.lo.u32 %r36, %r36, %r37, %r38;
"""
_BY_WORD = """    mul.wide.u32 %d17, %r36, 8;
    add.u64 %d18, %d18, %d17;
    add.u64 %d19, %d19, %d17;
"""


def _register(name: str, place: int) -> str:
    """The PTX register of the kernel that holds the operand at this place; its letter follows the width of the type."""
    bits = bits_of(name)
    if bits == 1:
        return f"%p{place}"
    return f"%{'h' if bits <= 16 else 'r' if bits == 32 else 'd'}{place}"


def _load(name: str, place: int) -> list[str]:
    """PTX that loads a thread's operand into its register. place: of the operand among all; name: its PTX type."""
    bits, register, offset = bits_of(name), _register(name, place), place * 8 * TUPLES
    if bits > 1:
        return [f"ld.global.b{bits} {register}, [%d18+{offset}];"]
    return [f"ld.global.b32 %r{30 + place}, [%d18+{offset}];", f"setp.ne.u32 {register}, %r{30 + place}, 0;"]


def _store(name: str, register: str, place: int) -> list[str]:
    """PTX that stores a result from a register. place: of the result among all; name: its PTX type."""
    bits, offset = bits_of(name), place * 8 * TUPLES
    if bits > 1:
        return [f"st.global.b{bits} [%d19+{offset}], {register};"]
    return [f"selp.u32 %r{30 + place}, 1, 0, {register};", f"st.global.b32 [%d19+{offset}], %r{30 + place};"]


def kernel(form: Form, entry: str) -> str:
    """Return the PTX of a test kernel that applies an instruction to the operands of each thread.

    Parameters: u64 [operands, TUPLES] in, u64 [results, TUPLES] out, of which it writes as many bytes as a type has.
    """
    takes, gives = form.carry in ("in", "inout"), form.carry in ("out", "inout")
    borrow = form.opcode.startswith("sub")
    operands = list(form.inputs[:-1] if takes else form.inputs)
    results = list(form.outputs[:-1] if gives else form.outputs)
    lines = [line for place, name in enumerate(operands) for line in _load(name, place)]
    # Operands are registers 0 to 4, results those from 5 on.
    written = [_register(name, 5 + place) for place, name in enumerate(results)]
    target = "|".join(written)
    sources = [_register(name, place) for place, name in enumerate(operands)]
    if takes:
        lines.append(f"ld.global.b32 %r30, [%d18+{len(operands) * 8 * TUPLES}];")
        lines.append("sub.cc.u32 %r31, 0, %r30;" if borrow else "add.cc.u32 %r31, %r30, -1;")
    lines.append(f"{form.opcode} {', '.join((target, *sources, *form.constants))};")
    if gives:
        lines.append("subc.u32 %r32, 0, 0;" if borrow else "addc.u32 %r32, 0, 0;")
        lines += ["and.b32 %r32, %r32, 1;", f"st.global.b32 [%d19+{len(results) * 8 * TUPLES}], %r32;"]
    for place, (name, register) in enumerate(zip(results, written, strict=True)):
        lines += _store(name, register, place)
    body = "".join(f"    {line}\n" for line in (*lines, "ret;"))
    return f"{_OPEN.format(entry=entry)}{_BY_WORD}{body}}}\n"


def product_kernel(matrix: Product, entry: str) -> str:
    """Return the PTX of a test kernel in which each warp computes one matrix product.

    Parameters: u32 [threads, a + b + c words] in, u32 [threads, d words] out.
    """
    *read, written = matrix.counts
    double = matrix.types[3] == "f64"
    step, letter = (2, "e") if double else (1, "r")
    lines = [
        f"mul.wide.u32 %d16, %r36, {4 * sum(read)};",
        "add.u64 %d18, %d18, %d16;",
        f"mul.wide.u32 %d16, %r36, {4 * written};",
        "add.u64 %d19, %d19, %d16;",
    ]
    names = [f"%{letter}{index}" for index in range(sum(read) // step)]
    size = 32 * step
    lines += [
        f"ld.global.{'f' if double else 'b'}{size} {name}, [%d18+{4 * step * index}];"
        for index, name in enumerate(names)
    ]
    vectors, rest = [], names
    for count in read:
        vectors.append(f"{{{', '.join(rest[: count // step])}}}")
        rest = rest[count // step :]
    results = [f"%{letter}{len(names) + index}" for index in range(written // step)]
    lines.append(f"{matrix.opcode} {{{', '.join(results)}}}, {', '.join(vectors)};")
    lines += [
        f"st.global.{'f' if double else 'b'}{size} [%d19+{4 * step * index}], {name};"
        for index, name in enumerate(results)
    ]
    body = "".join(f"    {line}\n" for line in (*lines, "ret;"))
    return f"{_OPEN.format(entry=entry)}{body}}}\n"
