"""What instructions compute with floating-point numbers, and how they become integers and the reverse."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tests.sass_machine.arithmetic import COMPARES, JOINS, Run, halves, opcode, wide
from tests.sass_machine.operands import I64, U32, U64, Lanes, Operands
from tests.sass_machine.warp import Warp


@opcode("FSETP", "DSETP")
def _fsetp(o: Operands) -> Run:
    unordered = {f"{name}U": name for name in COMPARES}
    relation = o.one_of("", *COMPARES, *unordered, "NUM", "NAN")
    ftz, join = o.has("FTZ"), o.one_of("", *JOINS)
    one, two = o.predicate_result(), o.predicate_result()
    number = o.float64 if o.name == "DSETP" else o.float32
    a, b, more = number(), number(), o.predicate()
    joins = JOINS[join]

    def run(warp: Warp, mask: Lanes) -> None:
        left, right = np.asarray(a(warp)), np.asarray(b(warp))
        if ftz:
            left, right = _flushed(left), _flushed(right)
        none = np.isnan(left) | np.isnan(right)
        if relation in ("NUM", "NAN"):
            value = none if relation == "NAN" else ~none
        else:
            value = COMPARES[unordered.get(relation, relation)](left, right)
            value = value | none if relation in unordered else value & ~none
        also = more(warp)
        results = joins(value, also), joins(~value, also)
        one(warp, results[0], mask)
        two(warp, results[1], mask)

    return run


def _flushed(value: Lanes) -> Lanes:
    value = np.asarray(value)
    return np.where(np.abs(value) < np.finfo(value.dtype).tiny, np.copysign(value.dtype.type(0), value), value)


_NAN32 = U32(0x7FFFFFFF)


def _bits32(value: Lanes) -> Lanes:
    """The bits of results: the hardware has one value that is no number."""
    value = np.asarray(value, np.float32)
    return np.where(np.isnan(value), _NAN32, value.view(U32))


def _fma32(a: Lanes, b: Lanes, c: Lanes, rounding: str = "RN") -> Lanes:
    """a × b + c, rounded once: in 64 bits to odd, then to 32."""
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        more = np.broadcast_to(np.asarray(c).astype(np.float64), np.shape(product))
        total = np.asarray(product + more)
        part = total - product
        error = (product - (total - part)) + (more - part)
        bits = total.view(I64)
        nudge = np.isfinite(total) & np.isfinite(error) & (error != 0) & (bits & 1 == 0)
        up = (error > 0) == (total > 0)
        bits = np.where(nudge, bits + np.where(up, 1, -1), bits)
        exact = bits.view(np.float64)
        near = exact.astype(np.float32)
        if rounding == "RN":
            return near
        over = {"RZ": np.abs(near) > np.abs(exact), "RM": near > exact, "RP": near < exact}[rounding]
        to = {"RZ": np.float32(0), "RM": np.float32(-np.inf), "RP": np.float32(np.inf)}[rounding]
        return np.where(over, np.nextafter(near, to), near)


@opcode("FADD", "FMUL", "FFMA")
def _f32(o: Operands) -> Run:
    ftz, saturates = o.has("FTZ"), o.has("SAT")
    rounding = o.one_of("RN", "RN", "RZ", "RM", "RP")
    put = o.result()
    terms = [o.float32() for _ in range(3 if o.name == "FFMA" else 2)]

    def run(warp: Warp, mask: Lanes) -> None:
        values = [np.asarray(get(warp)) for get in terms]
        if ftz:
            values = [_flushed(value) for value in values]
        with np.errstate(all="ignore"):
            if o.name == "FFMA":
                result = _fma32(*values, rounding)
            elif rounding != "RN":
                one, two = values
                factors = (one, np.float32(1), two) if o.name == "FADD" else (one, two, np.float32(-0.0))
                result = _fma32(*factors, rounding)
            else:
                result = values[0] + values[1] if o.name == "FADD" else values[0] * values[1]
        if ftz:
            result = _flushed(result)
        if saturates:
            result = np.where(np.isnan(result), np.float32(0), np.clip(result, 0, 1))
        put(warp, [_bits32(result)], mask)

    return run


def _fma64(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if not exact:
        return a * b + c
    try:
        return float(exact)
    except OverflowError:
        return math.copysign(math.inf, exact)


@opcode("DADD", "DMUL", "DFMA")
def _f64(o: Operands) -> Run:
    rounding = o.one_of("RN", "RN", "RP", "RM", "RZ")
    if rounding != "RN":
        raise o.unknown("its rounding")
    put = o.result(2)
    terms = [o.float64() for _ in range(3 if o.name == "DFMA" else 2)]

    def run(warp: Warp, mask: Lanes) -> None:
        values = np.broadcast_arrays(*(get(warp) for get in terms))
        with np.errstate(all="ignore"):
            if o.name == "DFMA":
                rows = zip(*(value.tolist() for value in values), strict=True)
                result = np.array([_fma64(*row) for row in rows], np.float64)
            else:
                result = values[0] + values[1] if o.name == "DADD" else values[0] * values[1]
        bits = np.where(np.isnan(result), U64(0xFFF8000000000000), np.asarray(result).view(U64))
        put(warp, halves(bits), mask)

    return run


@opcode("FMNMX")
def _fmnmx(o: Operands) -> Run:
    ftz, nan = o.has("FTZ"), o.has("NAN")
    put = o.result()
    a, b, least = o.float32(), o.float32(), o.predicate()

    def run(warp: Warp, mask: Lanes) -> None:
        left, right = np.broadcast_arrays(a(warp), b(warp))
        if ftz:
            left, right = _flushed(left), _flushed(right)
        # Of zeros the one with the sign is less.
        below = (left < right) | ((left == right) & np.signbit(left))
        value = np.where(below == least(warp), left, right)
        value = np.where(np.isnan(left), right, np.where(np.isnan(right), left, value))
        none = np.isnan(left) | np.isnan(right) if nan else np.isnan(left) & np.isnan(right)
        put(warp, [np.where(none, _NAN32, value.view(U32))], mask)

    return run


@opcode("MUFU")
def _mufu(o: Operands) -> Run:
    if o.has("RCP64H", "RSQ64H"):
        return _half_of_double(o)
    function = o.one_of("", "RCP", "RSQ", "SQRT", "EX2", "LG2", "SIN", "COS", "TANH")
    put, a = o.result(), o.float32()
    functions: dict[str, Callable[[Any], Any]] = {
        "RCP": lambda x: 1 / x, "RSQ": lambda x: 1 / np.sqrt(x), "SQRT": np.sqrt, "EX2": np.exp2, "LG2": np.log2,
        "SIN": np.sin, "COS": np.cos, "TANH": np.tanh,
    }  # fmt: skip

    def run(warp: Warp, mask: Lanes) -> None:
        value = _flushed(np.asarray(a(warp))).astype(np.float64)
        with np.errstate(all="ignore"):
            put(warp, [_bits32(_flushed(functions[function](value).astype(np.float32)))], mask)

    return run


def _half_of_double(o: Operands) -> Run:
    """Of a number of 64 bits the upper word, of which the lower is taken to be 0."""
    reciprocal = "RCP64H" in o.parsed.parts
    put, high = o.result(), o.bits()

    def run(warp: Warp, mask: Lanes) -> None:
        value = (wide(high(warp)) << U64(32)).view(np.float64)
        with np.errstate(all="ignore"):
            result = np.asarray(1 / value if reciprocal else 1 / np.sqrt(value))
        put(warp, [halves(np.where(np.isnan(result), U64(0xFFF8000000000000), result.view(U64)))[1]], mask)

    return run


@opcode("FCHK")
def _fchk(o: Operands) -> Run:
    """Whether a quotient needs the longer way, which is right for all."""
    decides = o.predicate_result()
    a, b = o.float32(), o.float32()

    def run(warp: Warp, mask: Lanes) -> None:
        powers = [np.asarray(get(warp)).view(U32) >> U32(23) & U32(255) for get in (a, b)]
        one, two = (power.astype(I64) for power in powers)
        hard = (one < 30) | (one > 220) | (two < 30) | (two > 220) | (abs(one - two) > 90)
        decides(warp, np.broadcast_to(hard, mask.shape), mask)

    return run


@opcode("FRND")
def _frnd(o: Operands) -> Run:
    ftz = o.has("FTZ")
    way = o.one_of("", "TRUNC", "FLOOR", "CEIL")
    put, a = o.result(), o.float32()
    function = {"": np.rint, "TRUNC": np.trunc, "FLOOR": np.floor, "CEIL": np.ceil}[way]

    def run(warp: Warp, mask: Lanes) -> None:
        value = _flushed(a(warp)) if ftz else np.asarray(a(warp))
        put(warp, [_bits32(function(value))], mask)

    return run


def _half_bits(value: Lanes, *, bf16: bool) -> Lanes:
    """The 16 bits of numbers, rounded once."""
    with np.errstate(all="ignore"):
        if not bf16:
            bits = value.astype(np.float16).view(np.uint16).astype(U32)
        else:
            # To odd in 32 bits, then to the nearest in 16.
            near = value.astype(np.float32)
            words = near.view(U32)
            away = np.abs(near.astype(np.float64)) > np.abs(value)
            words = np.where((near != value) & np.isfinite(near), (words - away.astype(U32)) | U32(1), words)
            bits = np.where(np.isinf(near), words, words + U32(0x7FFF) + (words >> U32(16) & U32(1))) >> U32(16)
    return np.where(np.isnan(value), U32(0x7FFF), bits)


@opcode("F2FP")
def _f2fp(o: Operands) -> Run:
    bf16 = o.has("BF16")
    if not bf16 and not o.has("F16"):
        raise o.unknown("this conversion")
    if not (o.has("F32") and o.has("PACK_AB")):
        raise o.unknown("this conversion")
    put, high, low = o.result(), o.float32(), o.float32()

    def run(warp: Warp, mask: Lanes) -> None:
        one, two = (_half_bits(np.asarray(get(warp)).astype(np.float64), bf16=bf16) for get in (low, high))
        put(warp, [one | two << U32(16)], mask)

    return run


@opcode("HADD2", "HMUL2", "HFMA2")
def _halves(o: Operands) -> Run:
    """Pairs of 16 bits, each rounded once. Of HFMA2 with two immediates only what puts a number into a register."""
    o.has("MMA")
    to32, bf16 = o.has("F32"), o.has("BF16_V2", "BF16")
    put = o.result()
    if [one.text for one in o.operands[:2]] == ["-RZ", "RZ"] and len(o.operands) == 4:
        o.operands.clear()
        number = U32(o.word >> 32 & 0xFFFFFFFF)
        return lambda warp, mask: put(warp, [number], mask)
    terms = [o.half_floats(bf16=bf16) for _ in range(3 if o.name == "HFMA2" else 2)]

    def run(warp: Warp, mask: Lanes) -> None:
        values = [get(warp) for get in terms]
        with np.errstate(all="ignore"):
            result = values[0] + values[1] if o.name == "HADD2" else values[0] * values[1]
            if o.name == "HFMA2":
                result = result + values[2]
        if to32:
            put(warp, [_bits32(result[0].astype(np.float32))], mask)
            return
        low, high = _half_bits(result, bf16=bf16)
        put(warp, [low | high << U32(16)], mask)

    return run


_INTEGERS = {"U8": (8, False), "S8": (8, True), "U16": (16, False), "S16": (16, True), "U32": (32, False),
             "S32": (32, True), "U64": (64, False), "S64": (64, True)}  # fmt: skip


def _rounded(exact: Fraction, digits: int, rounding: str) -> Fraction:
    """A number with so many binary digits."""
    if not exact:
        return exact
    magnitude = abs(exact)
    power = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** power:
        power -= 1
    unit = Fraction(2) ** (power - digits + 1)
    return _whole(exact / unit, rounding) * unit


def _whole(exact: Fraction, rounding: str) -> int:
    """A whole number near one."""
    return {"RN": round, "RP": math.ceil, "RM": math.floor, "RZ": math.trunc}[rounding](exact)


@opcode("I2F", "I2FP")
def _i2f(o: Operands) -> Run:
    target = o.one_of("F32", "F32", "F64")
    kind = o.one_of("S32", *_INTEGERS)
    rounding = o.one_of("RN", "RN", "RP", "RM", "RZ")
    bits, signed = _INTEGERS[kind]
    put = o.result(2 if target == "F64" else 1)
    one = o.take("R", "UR", "imm", "c")
    if one.sign or one.absolute or (one.parts and one.parts not in (("H0",), ("B0",))):
        raise o.unknown(f"what {one.text} means here")
    words = o.words_of(one, 2 if bits == 64 else 1)

    def convert(value: int) -> int:
        value &= (1 << bits) - 1
        if signed and value >> bits - 1:
            value -= 1 << bits
        result = float(_rounded(Fraction(value), 53 if target == "F64" else 24, rounding))
        return int(np.float64(result).view(U64)) if target == "F64" else int(np.float32(result).view(U32))

    def run(warp: Warp, mask: Lanes) -> None:
        value = sum(wide(word(warp)) << U64(32 * at) for at, word in enumerate(words))
        results = np.array([convert(int(one)) for one in np.asarray(value).reshape(-1)], U64)
        put(warp, halves(results) if target == "F64" else [results.astype(U32)], mask)

    return run


@opcode("F2I")
def _f2i(o: Operands) -> Run:
    ftz, source = o.has("FTZ"), o.one_of("F32", "F32", "F64")
    kind = o.one_of("S32", *_INTEGERS)
    rounding = {"TRUNC": "RZ", "FLOOR": "RM", "CEIL": "RP", "": "RN"}[o.one_of("", "TRUNC", "FLOOR", "CEIL")]
    o.has("NTZ")
    bits, signed = _INTEGERS[kind]
    put = o.result(2 if bits == 64 else 1)
    get = o.float64() if source == "F64" else o.float32()
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def convert(value: float) -> int:
        if math.isnan(value):
            result = 0 if bits == 32 and source == "F32" else 1 << 63 if bits == 64 else 1 << 31
        elif math.isinf(value):
            result = most if value > 0 else least
        else:
            result = min(max(_whole(Fraction(value), rounding), least), most)
        return result & (1 << 64) - 1

    def run(warp: Warp, mask: Lanes) -> None:
        values = np.asarray(get(warp))
        values = _flushed(values) if ftz else values
        results = np.array([convert(float(one)) for one in values.reshape(-1)], U64)
        put(warp, halves(results)[: 2 if bits == 64 else 1], mask)

    return run


@opcode("F2F")
def _f2f(o: Operands) -> Run:
    ftz = o.has("FTZ")
    kinds = [part for part in o.parts if part in ("F16", "F32", "F64")]
    o.has(*kinds)
    if kinds not in (["F64", "F32"], ["F32", "F64"]) or ftz:
        raise o.unknown("this conversion")
    put = o.result(2 if kinds[0] == "F64" else 1)
    get = o.float64() if kinds[1] == "F64" else o.float32()

    def run(warp: Warp, mask: Lanes) -> None:
        with np.errstate(all="ignore"):
            if kinds[0] == "F64":
                put(warp, halves(np.asarray(get(warp)).astype(np.float64).view(U64)), mask)
            else:
                put(warp, [_bits32(np.asarray(get(warp)).astype(np.float32))], mask)

    return run
