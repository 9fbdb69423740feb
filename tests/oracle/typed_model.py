"""What typed statements mean, in NumPy, one element a thread: written from docs/ir.md, not from the lowering.

Values are arrays: integers and bits of their unsigned or signed NumPy type, ``bf16`` as float64 that it holds exactly,
other floats of their own type, predicates as booleans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.ir.operands import Constant, Register, SiteOperand, Value
from neutrino.ir.statements import (
    Collective,
    Compare,
    Convert,
    Load,
    Operation,
    Operator,
    Reduction,
    Reinterpret,
    Relation,
    Select,
    Shuffle,
)
from neutrino.ir.types import Type
from neutrino.probing.ir.structured import For, If, Save, Statement, While

Lanes = npt.NDArray[Any]


def dtype_of(kind: Type) -> np.dtype[Any]:
    """How a type's values are held here."""
    if kind is Type.PRED:
        return np.dtype(np.bool_)
    if kind is Type.BF16:
        return np.dtype(np.float64)
    if kind.is_float:
        return np.dtype(f"f{kind.bits // 8}")
    return np.dtype(f"{'i' if kind.is_signed else 'u'}{kind.bits // 8}")


def from_bits(bits: Lanes, kind: Type) -> Lanes:
    """Values from unsigned integers."""
    if kind is Type.PRED:
        return bits != 0
    if kind is Type.BF16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.astype(f"u{kind.bits // 8}").view(dtype_of(kind))


def rounded_to_bf16(values: Lanes) -> Lanes:
    """float64 to the nearest bf16, ties to even."""
    _, exponent = np.frexp(values)
    # 8 digits, but no place below that of the smallest subnormal number.
    place = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    near = np.rint(values / place) * place
    near = np.where(np.isfinite(values), near, values)
    return np.where(np.abs(near) > float.fromhex("0x1.fep127"), np.copysign(np.inf, values), near)


class Machine:
    """All threads, one after the other statement by statement. site: the bits of a site's values by their names.

    warp: the lanes of a warp; all of them are at the site together.
    """

    def __init__(
        self, threads: int, site: Mapping[str, Lanes], shared: Sequence[Register], warp: int = 32
    ) -> None:  # fmt: skip
        self._threads = threads
        self._warp = warp
        self._site = site
        self._values: dict[str, Lanes] = {}
        self.saved: list[tuple[str, tuple[Lanes, ...], Lanes]] = []
        """Of each save: the map's name, the values, and in which threads."""
        for register in shared:
            self._values[register.name] = self._everywhere(register.type, register.initial)

    def run(self, statements: Sequence[Statement], threads: Lanes | None = None) -> None:
        """All of them, in all threads, or in some."""
        with np.errstate(all="ignore"):
            self._run(statements, np.ones(self._threads, np.bool_) if threads is None else threads)

    def _run(self, statements: Sequence[Statement], threads: Lanes) -> None:
        for statement in statements:
            if isinstance(statement, If):
                condition = self._values[statement.condition.name]
                self._run(statement.then, threads & condition)
                self._run(statement.otherwise, threads & ~condition)
            elif isinstance(statement, For):
                kind = statement.variable.type
                for value in statement.values:
                    self._assign(statement.variable, self._everywhere(kind, value % (1 << kind.bits)), threads)
                    self._run(statement.body, threads)
            elif isinstance(statement, While):
                running = threads
                for _ in range(statement.bound):
                    self._run(statement.test, running)
                    running = running & self._values[statement.condition.name]
                    self._run(statement.body, running)
            elif isinstance(statement, Shuffle):
                self._assign(statement.destination, self._shuffled(statement, threads), threads)
            elif isinstance(statement, Collective):
                self._assign(statement.destination, self._exchanged(statement, threads), threads)
            elif isinstance(statement, Save):
                values = tuple(self.value(operand) for operand in statement.operands)  # type: ignore[arg-type]
                self.saved.append((statement.map.name, values, threads))
            else:
                self._assign(statement.destination, self._computed(statement), threads)  # type: ignore[union-attr]

    def _exchanged(self, statement: Collective, threads: Lanes) -> Lanes:
        """The result of a collective operation in each thread; 0 where it is not executed."""
        values = self.value(statement.source)  # type: ignore[arg-type]
        result = np.zeros(self._threads, dtype_of(statement.destination.type))
        for start in range(0, self._threads, self._warp):
            lanes = np.flatnonzero(threads[start : start + self._warp])
            if not lanes.size:
                continue
            if statement.reduction is Reduction.BALLOT:
                found: Any = sum(1 << int(lane) for lane in lanes if values[start + lane])
            elif statement.reduction is Reduction.MATCH:
                here = values[start + lanes]
                found = [sum(1 << int(lane) for lane in lanes[here == value]) for value in here]
            else:
                found = reduced(statement.reduction, statement.destination.type, values[start + lanes])
            result[start + lanes] = found
        return result

    def _shuffled(self, statement: Shuffle, threads: Lanes) -> Lanes:
        """What each thread gets of another lane."""
        result = self.value(statement.source).copy()
        given, wanted = self.value(statement.source), self.value(statement.lane)
        for thread in np.flatnonzero(threads):
            other = thread // self._warp * self._warp + int(wanted[thread])
            if wanted[thread] < self._warp and threads[other]:
                result[thread] = given[other]
        return result

    def _assign(self, register: Register, values: Lanes, threads: Lanes) -> None:
        assert values.dtype == dtype_of(register.type), (register, values.dtype)
        old = self._values.get(register.name, np.zeros_like(values))
        self._values[register.name] = np.where(threads, values, old)

    def _everywhere(self, kind: Type, bits: int) -> Lanes:
        return from_bits(np.full(self._threads, bits, np.uint64), kind)

    def value(self, operand: Value) -> Lanes:
        """What an operand is in each thread."""
        if isinstance(operand, Constant):
            return self._everywhere(operand.type, operand.bits)
        assert isinstance(operand, Register), operand
        return self._values[operand.name]

    def _computed(self, statement: Statement) -> Lanes:
        if isinstance(statement, Load):
            assert isinstance(statement.operand, SiteOperand)
            return from_bits(self._site[statement.operand.name], statement.destination.type)
        if isinstance(statement, Compare):
            return compared(statement.relation, self.value(statement.left), self.value(statement.right))
        if isinstance(statement, Select):
            condition = self._values[statement.condition.name]
            return np.where(condition, self.value(statement.then), self.value(statement.otherwise))
        if isinstance(statement, Reinterpret):
            kind = statement.destination.type
            return from_bits(to_bits(self.value(statement.source), statement.source.type), kind)  # type: ignore[union-attr]
        if isinstance(statement, Convert):
            have = statement.source.type  # type: ignore[union-attr]
            return converted(self.value(statement.source), have, statement.destination.type)
        assert isinstance(statement, Operation)
        sources = [self.value(source) for source in statement.sources]
        if statement.operator in {Operator.POPC, Operator.CLZ}:
            return _counted(statement.operator, sources[0])
        return computed(statement.operator, statement.destination.type, sources)


def to_bits(values: Lanes, kind: Type) -> Lanes:
    """Unsigned integers from values of a type with bits."""
    if kind is Type.BF16:
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.view(f"u{values.itemsize}")


def reduced(reduction: Reduction, kind: Type, values: Lanes) -> Any:
    """What a reduction of the values of some lanes gives."""
    if reduction is Reduction.FIRST:
        return values[0]
    if reduction is Reduction.SAME:
        return (values == values[0]).all()
    if reduction is Reduction.OR:
        return np.bitwise_or.reduce(values)
    if reduction in {Reduction.ANY, Reduction.ALL}:
        return values.any() if reduction is Reduction.ANY else values.all()
    if reduction is Reduction.SUM:
        total = sum(int(value) for value in values) % (1 << kind.bits)
        return np.array([total], np.uint64).astype(f"u{kind.bits // 8}").view(dtype_of(kind))[0]
    result = values[:1]
    operator = Operator.MIN if reduction is Reduction.MIN else Operator.MAX
    for value in values[1:]:
        result = computed(operator, kind, [result, np.array([value], values.dtype)])
    return result[0]


def compared(relation: Relation, left: Lanes, right: Lanes) -> Lanes:
    """A comparison, thread by thread."""
    result: Lanes = {
        Relation.EQ: np.equal, Relation.NE: np.not_equal, Relation.LT: np.less, Relation.LE: np.less_equal,
        Relation.GT: np.greater, Relation.GE: np.greater_equal,
    }[relation](left, right)  # fmt: skip
    return result


def converted(values: Lanes, have: Type, kind: Type) -> Lanes:
    """Values of one type as those of another."""
    if have is kind:
        return values
    if kind is Type.PRED:
        return values != 0
    if have is Type.PRED:
        return values.astype(dtype_of(kind))
    if Type.BF16 in {have, kind} and Type.F32 not in {have, kind}:
        return converted(converted(values, have, Type.F32), Type.F32, kind)
    if kind is Type.BF16:
        return rounded_to_bf16(values.astype(np.float64))
    if have.is_float and kind.is_integer:
        return np.array([_whole(float(value), kind) for value in values], dtype_of(kind))
    return values.astype(dtype_of(kind))


def _whole(value: float, kind: Type) -> int:
    lowest = -(1 << (kind.bits - 1)) if kind.is_signed else 0
    highest = lowest + (1 << kind.bits) - 1
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return highest if value > 0 else lowest
    return min(max(int(value), lowest), highest)


def _counted(operator: Operator, values: Lanes) -> Lanes:
    bits = values.dtype.itemsize * 8
    written = [f"{int(value):0{bits}b}" for value in values]
    if operator is Operator.POPC:
        return np.array([word.count("1") for word in written], np.uint32)
    return np.array([len(word) - len(word.lstrip("0")) for word in written], np.uint32)


def computed(operator: Operator, kind: Type, sources: Sequence[Lanes]) -> Lanes:
    """An operation of one type."""
    if operator is Operator.MOVE:
        return sources[0]
    if kind is Type.PRED:
        return _of_bits(operator, sources)
    if kind.is_float:
        result = _of_floats(operator, sources)
        return rounded_to_bf16(result) if kind is Type.BF16 else result.astype(dtype_of(kind))
    return _of_integers(operator, kind, sources)


def _of_bits(operator: Operator, sources: Sequence[Lanes]) -> Lanes:
    if operator is Operator.NOT:
        return ~sources[0]
    found = {Operator.AND: np.bitwise_and, Operator.OR: np.bitwise_or, Operator.XOR: np.bitwise_xor}
    result: Lanes = found[operator](*sources)
    return result


def _of_floats(operator: Operator, sources: Sequence[Lanes]) -> Lanes:
    first, last = sources[0], sources[-1]
    if operator is Operator.NEG:
        return -first
    if operator is Operator.ABS:
        return np.abs(first)
    if operator in {Operator.MIN, Operator.MAX}:
        # Of zeros the negative one is less.
        less = (first < last) | ((first == last) & np.signbit(first))
        chosen = np.where(less == (operator is Operator.MIN), first, last)
        return np.where(np.isnan(first), last, np.where(np.isnan(last), first, chosen))
    result: Lanes = {Operator.ADD: np.add, Operator.SUB: np.subtract, Operator.MUL: np.multiply}[operator](first, last)
    return result


_WRAPPING: Mapping[Operator, np.ufunc] = {
    Operator.ADD: np.add, Operator.SUB: np.subtract, Operator.MUL: np.multiply, Operator.MIN: np.minimum,
    Operator.MAX: np.maximum, Operator.AND: np.bitwise_and, Operator.OR: np.bitwise_or, Operator.XOR: np.bitwise_xor,
    Operator.NOT: np.invert, Operator.NEG: np.negative, Operator.ABS: np.absolute,
}  # fmt: skip
"""Of integers of one type: of results that are too large, NumPy keeps the low bits as well."""


def _of_integers(operator: Operator, kind: Type, sources: Sequence[Lanes]) -> Lanes:
    assert sources[0].dtype == dtype_of(kind), (operator, kind, sources[0].dtype)
    if operator in {Operator.SHL, Operator.SHR}:
        first, amounts = sources
        within = np.minimum(amounts, kind.bits - 1).astype(first.dtype)
        shifted = first << within if operator is Operator.SHL else first >> within
        # Of signed integers, the highest bit is left.
        is_filled = kind.is_signed and operator is Operator.SHR
        return shifted if is_filled else np.where(amounts < kind.bits, shifted, first.dtype.type(0))
    assert all(source.dtype == sources[0].dtype for source in sources), (operator, kind)
    if operator in {Operator.DIV, Operator.REM}:
        numbers = zip(*(source.tolist() for source in sources), strict=True)
        results = [_divided(operator, one, other) % (1 << kind.bits) for one, other in numbers]
        return np.array(results, f"u{kind.bits // 8}").view(dtype_of(kind))
    result: Lanes = _WRAPPING[operator](*sources)
    return result


def _divided(operator: Operator, first: int, second: int) -> int:
    if second == 0:
        return 0
    quotient = abs(first) // abs(second) * (1 if (first < 0) == (second < 0) else -1)
    return quotient if operator is Operator.DIV else first - quotient * second
