"""What instructions compute with integers, bits and predicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.sass_machine.operands import I64, U32, U64, Lanes, Operands
from tests.sass_machine.warp import Warp

Run = Callable[[Warp, Lanes], None]
"""(warp, mask of lanes) → does it."""
OPCODES: dict[str, Callable[[Operands], Run]] = {}
LOW = U64(0xFFFFFFFF)
_ONE = U64(1)


def opcode(*names: str) -> Callable[[Callable[[Operands], Run]], Callable[[Operands], Run]]:
    """What makes the function of these opcodes."""

    def note(make: Callable[[Operands], Run]) -> Callable[[Operands], Run]:
        for name in names:
            OPCODES[name] = make
        return make

    return note


def wide(value: Lanes) -> Lanes:
    """Words of 32 bits, in 64."""
    return np.asarray(value).astype(U64)


def _int(value: Lanes) -> Lanes:
    """Signed numbers of 32 bits, in 64."""
    return np.asarray(value).astype(U32).view(np.int32).astype(I64)


def halves(value: Lanes) -> list[Lanes]:
    """Words of 64 bits as two of 32."""
    return [(value & LOW).astype(U32), (value >> U64(32)).astype(U32)]


@opcode("MOV")
def _mov(o: Operands) -> Run:
    put = o.result()
    get = o.bits(signs="")
    # A mask of the bytes that are moved.
    if o.next_is("imm") and o.take("imm").number != 0xF:
        raise o.unknown("a part is moved")
    return lambda warp, mask: put(warp, [get(warp)], mask)


@opcode("IADD3", "VIADD")
def _iadd3(o: Operands) -> Run:
    put = o.result()
    carries = []
    extended = o.has("X")
    while o.next_is("P", "UP"):
        carries.append(o.predicate_result())
    terms = [o.signed() for _ in range(2 if o.name == "VIADD" else 3)]
    ins = [o.predicate() for _ in range(2)] if extended and o.next_is("P", "UP") else []
    if extended and any(sign == "-" for _, sign in terms):
        raise o.unknown("a negation with a carry")

    def term(warp: Warp, at: int) -> Lanes:
        get, sign = terms[at]
        value = wide(get(warp))
        return U64(1 << 32) - value if sign == "-" else value ^ LOW if sign == "~" else value

    def run(warp: Warp, mask: Lanes) -> None:
        total = term(warp, 0) + term(warp, 1)
        for carry in ins:
            total = total + carry(warp).astype(U64)
        first = total >> U64(32)
        if len(terms) == 3:
            third = term(warp, 2)
            if len(carries) > 1:
                second = ((total & LOW) + third) >> U64(32)
            total = total + third
        put(warp, [(total & LOW).astype(U32)], mask)
        if len(carries) == 1:
            carries[0](warp, (total >> U64(32)) != 0, mask)
        elif carries:
            carries[0](warp, first != 0, mask)
            carries[1](warp, second != 0, mask)

    return run


@opcode("IMAD")
def _imad(o: Operands) -> Run:
    form = o.one_of("", "WIDE", "HI")
    unsigned = o.has("U32")
    o.has("MOV", "SHL", "IADD")
    extended = o.has("X")
    put = o.result(2 if form == "WIDE" else 1)
    carry = o.predicate_result() if o.next_is("P", "UP") else None
    one, two = o.signed(), o.signed()
    if form:
        third = o.pair()
    else:
        get, sign = o.signed()
        third = lambda warp: _signed(wide(get(warp)), sign)  # noqa: E731
    carried = o.predicate() if extended else None
    if any(sign == "~" for _, sign in (one, two)):
        raise o.unknown("a factor is inverted")

    def run(warp: Warp, mask: Lanes) -> None:
        a, b = np.asarray(one[0](warp)), np.asarray(two[0](warp))
        if unsigned or not form:
            a, b = wide(a), wide(b)
        else:
            a, b = _int(a).view(U64), _int(b).view(U64)
        if one[1] == "-":
            a = np.negative(a)
        if two[1] == "-":
            b = np.negative(b)
        product = a * b
        more = third(warp)
        total = product + more
        if carried is not None:
            total = total + carried(warp).astype(U64)
        if carry is not None:
            if not (form and unsigned) or carried is not None:
                raise o.unknown("a carry of this")
            carry(warp, total < product, mask)
        if form == "WIDE":
            put(warp, halves(total), mask)
        else:
            put(warp, [(total >> U64(32) if form == "HI" else total & LOW).astype(U32)], mask)

    return run


def _signed(value: Lanes, sign: str) -> Lanes:
    return np.negative(value) if sign == "-" else ~value if sign == "~" else value


@opcode("LEA")
def _lea(o: Operands) -> Run:
    high, extended, signed = o.has("HI"), o.has("X"), o.has("SX32")
    put = o.result()
    carry = o.predicate_result() if o.next_is("P", "UP") else None
    one, two = o.signed(), o.signed()
    third = o.signed() if high and not signed else None
    shift = o.take("imm").number
    carried = o.predicate() if extended else None
    signs = {sign for _, sign in (one, two, *((third,) if third else ()))}
    if signs - {""} and (carry is not None or carried is not None or high):
        raise o.unknown("a sign with a carry")

    def run(warp: Warp, mask: Lanes) -> None:
        a = np.asarray(one[0](warp))
        value = _int(a).view(U64) if signed else wide(a)
        if third is not None:
            value = value | wide(third[0](warp)) << U64(32)
        value = _signed(value, one[1]) << U64(shift)
        value = value >> U64(32) if high else value & LOW
        total = value + (_signed(wide(two[0](warp)), two[1]) & LOW)
        if carried is not None:
            total = total + carried(warp).astype(U64)
        put(warp, [(total & LOW).astype(U32)], mask)
        if carry is not None:
            carry(warp, total >> U64(32) != 0, mask)

    return run


@opcode("SHF")
def _shf(o: Operands) -> Run:
    left = o.one_of("", "L", "R")
    kind = o.one_of("", "U32", "S32", "U64", "S64")
    high, wraps = o.has("HI"), o.has("W")
    put = o.result()
    low, amount, above = o.bits(), o.bits(), o.bits()
    most = 64 if kind.endswith("64") else 32
    if not left or not kind:
        raise o.unknown("which shift it is")

    def run(warp: Warp, mask: Lanes) -> None:
        value = wide(low(warp)) | wide(above(warp)) << U64(32)
        by = wide(amount(warp))
        by = by & U64(most - 1) if wraps else np.minimum(by, U64(most))
        all_out = by == U64(64)
        by = np.where(all_out, U64(63), by)
        if left == "L":
            value = np.where(all_out, U64(0), value << by)
        elif kind[0] == "S":
            value = (value.view(I64) >> by.view(I64)).view(U64)
        else:
            value = np.where(all_out, U64(0), value >> by)
        put(warp, [(value >> U64(32) if high else value & LOW).astype(U32)], mask)

    return run


def _table(bits: int, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """A function of three bits, bit by bit; of words, or of predicates."""
    result = np.zeros_like(np.broadcast_arrays(a, b, c)[0])
    for number in range(8):
        if bits >> number & 1:
            result = result | ((a if number & 4 else ~a) & (b if number & 2 else ~b) & (c if number & 1 else ~c))
    return result


@opcode("LOP3")
def _lop3(o: Operands) -> Run:
    o.has("LUT")
    both = o.has("PAND")
    decides = o.predicate_result() if o.next_is("P", "UP") else None
    put = o.result()
    a, b, c = o.bits(), o.bits(), o.bits()
    bits = o.take("imm").number
    more = o.predicate()

    def run(warp: Warp, mask: Lanes) -> None:
        value = _table(bits, np.asarray(a(warp)), np.asarray(b(warp)), np.asarray(c(warp)))
        put(warp, [value], mask)
        if decides is not None:
            decides(warp, (value != 0) & more(warp) if both else (value != 0) | more(warp), mask)

    return run


@opcode("PLOP3")
def _plop3(o: Operands) -> Run:
    o.has("LUT")
    one, two = o.predicate_result(), o.predicate_result()
    a, b, c = o.predicate(), o.predicate(), o.predicate()
    first, second = o.take("imm").number, o.take("imm").number

    def run(warp: Warp, mask: Lanes) -> None:
        values = a(warp), b(warp), c(warp)
        results = _table(first, *values), _table(second, *values)
        one(warp, results[0], mask)
        two(warp, results[1], mask)

    return run


COMPARES: dict[str, Callable[[Any, Any], Any]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip
JOINS: dict[str, Callable[[Any, Any], Any]] = {"AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor}


@opcode("ISETP")
def _isetp(o: Operands) -> Run:
    relation, unsigned = o.one_of("", *COMPARES), o.has("U32")
    join, extended = o.one_of("", *JOINS), o.has("EX")
    one, two = o.predicate_result(), o.predicate_result()
    a, b, more = o.bits(), o.bits(), o.predicate()
    below = o.predicate() if extended else None
    compare, joins = COMPARES[relation], JOINS[join]

    def run(warp: Warp, mask: Lanes) -> None:
        left, right = np.asarray(a(warp)), np.asarray(b(warp))
        if not unsigned:
            left, right = _int(left), _int(right)
        value = compare(left, right)
        if below is not None:
            same, low = left == right, below(warp)
            if relation == "EQ":
                value = same & low
            elif relation == "NE":
                value = ~same | low
            else:
                value = np.where(same, low, value)
        also = more(warp)
        results = joins(value, also), joins(~value, also)
        one(warp, results[0], mask)
        two(warp, results[1], mask)

    return run


@opcode("SEL", "FSEL")
def _sel(o: Operands) -> Run:
    put = o.result()
    if o.name == "FSEL":
        a, b = (lambda warp, get=get: np.asarray(get(warp)).view(U32) for get in (o.float32(), o.float32()))
    else:
        a, b = o.bits(), o.bits()
    which = o.predicate()
    return lambda warp, mask: put(warp, [np.where(which(warp), a(warp), b(warp))], mask)


@opcode("PRMT")
def _prmt(o: Operands) -> Run:
    put = o.result()
    a, choice, b = o.bits(), o.bits(), o.bits()

    def run(warp: Warp, mask: Lanes) -> None:
        both = wide(a(warp)) | wide(b(warp)) << U64(32)
        chosen = wide(choice(warp))
        total = np.zeros(1, U64)
        for byte in range(4):
            by = chosen >> U64(4 * byte) & U64(15)
            value = both >> (U64(8) * (by & U64(7))) & U64(255)
            value = np.where(by & U64(8), np.where(value & U64(128), U64(255), U64(0)), value)
            total = total | value << U64(8 * byte)
        put(warp, [total.astype(U32)], mask)

    return run


@opcode("VIMNMX", "IMNMX")
def _imnmx(o: Operands) -> Run:
    unsigned = o.has("U32")
    put = o.result()
    a, b, least = o.bits(), o.bits(), o.predicate()

    def run(warp: Warp, mask: Lanes) -> None:
        put(warp, [_chosen(a(warp), b(warp), least(warp), unsigned)], mask)

    return run


def _chosen(a: Lanes, b: Lanes, least: Lanes, unsigned: bool) -> Lanes:
    a, b = np.asarray(a), np.asarray(b)
    left, right = (a, b) if unsigned else (_int(a), _int(b))
    return np.where((left < right) == least, a, b)


@opcode("VIADDMNMX")
def _viaddmnmx(o: Operands) -> Run:
    unsigned = o.has("U32")
    put = o.result()
    a, b, c, least = o.bits(), o.bits(), o.bits(), o.predicate()

    def run(warp: Warp, mask: Lanes) -> None:
        total = np.asarray(a(warp)) + np.asarray(b(warp))
        put(warp, [_chosen(total, c(warp), least(warp), unsigned)], mask)

    return run


@opcode("IABS")
def _iabs(o: Operands) -> Run:
    put, a = o.result(), o.bits()
    return lambda warp, mask: put(warp, [np.abs(_int(a(warp))).astype(U32)], mask)


@opcode("SGXT")
def _sgxt(o: Operands) -> Run:
    unsigned, wraps = o.has("U32"), o.has("W")
    put, a, b = o.result(), o.bits(), o.bits()

    def run(warp: Warp, mask: Lanes) -> None:
        width = wide(b(warp))
        width = width & U64(31) if wraps else np.minimum(width, U64(32))
        value = wide(a(warp)) & ((_ONE << width) - _ONE)
        if not unsigned:
            top = np.where(width == 0, U64(0), value >> np.maximum(width, _ONE) - _ONE & _ONE)
            value = np.where(top == 1, value | ~((_ONE << width) - _ONE), value)
        put(warp, [(value & LOW).astype(U32)], mask)

    return run


@opcode("BMSK")
def _bmsk(o: Operands) -> Run:
    wraps = o.has("W")
    put, a, b = o.result(), o.bits(), o.bits()

    def run(warp: Warp, mask: Lanes) -> None:
        start, width = wide(a(warp)), wide(b(warp))
        if wraps:
            start, width = start & U64(31), width & U64(31)
        start, width = np.minimum(start, U64(32)), np.minimum(width, U64(32))
        put(warp, [((((_ONE << width) - _ONE) << start) & LOW).astype(U32)], mask)

    return run


@opcode("POPC")
def _popc(o: Operands) -> Run:
    put, a = o.result(), o.bits()

    def run(warp: Warp, mask: Lanes) -> None:
        put(warp, [np.array([int(one).bit_count() for one in np.asarray(a(warp)).reshape(-1)], U32)], mask)

    return run


@opcode("BREV")
def _brev(o: Operands) -> Run:
    put, a = o.result(), o.bits()

    def run(warp: Warp, mask: Lanes) -> None:
        values = [int(f"{int(one):032b}"[::-1], 2) for one in np.asarray(a(warp)).reshape(-1)]
        put(warp, [np.array(values, U32)], mask)

    return run


@opcode("FLO")
def _flo(o: Operands) -> Run:
    unsigned, shift = o.has("U32"), o.has("SH")
    put, a = o.result(), o.bits()
    if o.next_is("P", "UP"):
        raise o.unknown("a predicate")

    def place(value: int) -> int:
        if not unsigned and value >> 31:
            value ^= 0xFFFFFFFF
        return 0xFFFFFFFF if not value else 32 - value.bit_length() if shift else value.bit_length() - 1

    def run(warp: Warp, mask: Lanes) -> None:
        put(warp, [np.array([place(int(one)) for one in np.asarray(a(warp)).reshape(-1)], U32)], mask)

    return run


@opcode("P2R")
def _p2r(o: Operands) -> Run:
    part = _part(o)
    put = o.result()
    if o.take("other").text != "PR":
        raise o.unknown("which predicates")
    old, bits = o.bits(), o.take("imm").number
    for number in range(7):
        if bits >> number & 1:
            o.use("P", number, 1)

    def run(warp: Warp, mask: Lanes) -> None:
        value = np.asarray(old(warp)) & U32(~(bits << part) & 0xFFFFFFFF)
        for number in range(7):
            if bits >> number & 1:
                value = value | warp.p[number].astype(U32) << U32(number + part)
        put(warp, [value], mask)

    return run


@opcode("R2P")
def _r2p(o: Operands) -> Run:
    if o.take("other").text != "PR":
        raise o.unknown("which predicates")
    one = o.take("R")
    part = {"": 0, "B1": 8, "B2": 16, "B3": 24}[one.parts[0] if one.parts else ""]
    a, bits = o.raw(one), o.take("imm").number
    o.writes += [("P", number) for number in range(7) if bits >> number & 1]

    def run(warp: Warp, mask: Lanes) -> None:
        value = np.array(a(warp))
        for number in range(7):
            if bits >> number & 1:
                np.copyto(warp.p[number], value >> U32(number + part) & U32(1) != 0, where=mask)

    return run


def _part(o: Operands) -> int:
    return {"": 0, "B1": 8, "B2": 16, "B3": 24}[o.one_of("", "B1", "B2", "B3")]
