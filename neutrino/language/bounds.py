"""How often loops turn at most: found by following the ranges of all registers through a snippet, turn by turn.

A range holds in every thread, whatever the program does. A loop has ended when its condition can be true no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from neutrino.ir.operands import Constant, Register, SiteOperand, Special, Value
from neutrino.ir.statements import Assembly, Compare, Computation, Convert, Load, Operation, Operator, Relation, Select
from neutrino.ir.types import Type
from neutrino.probing.ir.structured import For, If, Save, Statement, While, walk
from neutrino.probing.ir.verifier import BUDGET

UNKNOWN = 0
"""The bound of a loop that none was stated for."""

_MOST_STEPS = 20_000
"""Statements and turns that are followed in one snippet."""

_SITE_VALUES: Mapping[str, int] = {"HAS": 1, "ELEMENTS": 8}
"""Values of the instruction → the greatest one."""
_OPPOSITE: Mapping[Relation, Relation] = {
    Relation.EQ: Relation.NE, Relation.NE: Relation.EQ, Relation.LT: Relation.GE, Relation.GE: Relation.LT,
    Relation.GT: Relation.LE, Relation.LE: Relation.GT,
}  # fmt: skip


@dataclass(frozen=True)
class Range:
    """Integers from low to high, in which at most so many bits are 1 (of negative ones all bits count)."""

    low: int
    high: int
    ones: int = 64

    def cut(self) -> Range:
        """Return the same set of integers with its bounds made as tight as the other bounds allow."""
        if self.low < 0:
            return self
        ones = self.low.bit_count() if self.low == self.high else min(self.ones, self.high.bit_length())
        high = self.high if ones else 0
        return self if (ones, high) == (self.ones, self.high) else Range(self.low, high, ones)

    def joined(self, other: Range) -> Range:
        """Return a range that holds all integers of both."""
        return Range(min(self.low, other.low), max(self.high, other.high), max(self.ones, other.ones))


def _full(kind: Type) -> Range:
    """Return the range of all integers that a type can hold, for a register of which nothing is known."""
    if kind.is_signed:
        return Range(-(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1, kind.bits)
    return Range(0, (1 << kind.bits) - 1, kind.bits)


def _wrapped(low: int, high: int, kind: Type, ones: int = 64) -> Range:
    """Return the range of the integers from low to high when they are stored in a type, where they may wrap around.

    That is all of the type if some wrap around and others do not.
    """
    full, size = _full(kind), 1 << kind.bits
    first, last = ((bound - full.low) // size for bound in (low, high))
    return Range(low - first * size, high - first * size, ones).cut() if first == last else full


@dataclass
class _State:
    """What is known at one point. ranges: by the name of a register. tests: name of a predicate → the statement that
    it is from, whose operands are unchanged since. less: name of a register → the one that it is 1 less than. greatest:
    values of the hardware → the greatest one.
    """

    greatest: Mapping[Special, int]

    ranges: dict[str, Range] = field(default_factory=dict)
    tests: dict[str, Compare | Operation | Convert] = field(default_factory=dict)
    less: dict[str, str] = field(default_factory=dict)

    def copy(self) -> _State:
        """Return what is known, as a copy that can be changed by itself."""
        return _State(self.greatest, dict(self.ranges), dict(self.tests), dict(self.less))

    def joined(self, other: _State) -> _State:
        """Return what is known where two ways of control flow meet: what holds on both."""
        return _State(
            self.greatest,
            {name: item.joined(other.ranges[name]) for name, item in self.ranges.items() if name in other.ranges},
            {name: item for name, item in self.tests.items() if other.tests.get(name) is item},
            {name: item for name, item in self.less.items() if other.less.get(name) == item},
        )

    def value(self, value: Value) -> Range:
        """Return the range of an operand: all of its type if nothing else is known."""
        if isinstance(value, Register):
            return self.ranges.get(value.name) or _full(value.type)
        if isinstance(value, Constant):
            sign = value.type.is_signed and value.bits >> (value.type.bits - 1)
            number = value.bits - (1 << value.type.bits) if sign else value.bits
            return Range(number, number, value.bits.bit_count())
        if isinstance(value, Special) and value in self.greatest:
            return Range(0, self.greatest[value]).cut()
        has_type = isinstance(value, Special) and value is not Special.LANEMASK_LT
        return _full(value.type) if has_type and isinstance(value, Special) else _full(Type.U64)

    def assign(self, register: Register, value: Range) -> None:
        """Note that a register is assigned: what was known of its earlier value no longer holds."""
        self.forget(register.name)
        self.ranges[register.name] = value

    def forget(self, name: str) -> None:
        """Forget what is known of a register, and of others by it. name: of the register, which is assigned."""
        self.ranges.pop(name, None)
        self.tests = {
            tested: item for tested, item in self.tests.items()
            if tested != name and all(getattr(operand, "name", "") != name for operand in _operands(item))
        }  # fmt: skip
        self.less = {one: other for one, other in self.less.items() if name not in {one, other}}

    def where(self, predicate: Register, holds: bool) -> _State | None:
        """Return what is known in the branch where a predicate is true, or false; None if it never is."""
        known = self.value(predicate)
        if not known.low <= holds <= known.high:
            return None
        state = self.copy()
        state.ranges[predicate.name] = Range(holds, holds)
        return state if state._narrow(predicate.name, holds) else None

    def _narrow(self, predicate: str, holds: bool) -> bool:
        """Narrow the ranges of values, given that a predicate is true, or false; return whether that is possible at
        all.

        predicate: the name of its register. holds: which of the two. The ranges of the operands that it was computed
        from are narrowed.
        """
        test = self.tests.get(predicate)
        if isinstance(test, Compare):
            return self._compare(test.relation if holds else _OPPOSITE[test.relation], test.left, test.right)
        if isinstance(test, Convert):
            kind = test.source.type if isinstance(test.source, Register) else Type.U32
            zero = Constant(kind, 0)
            return self._compare(Relation.NE if holds else Relation.EQ, test.source, zero)
        if test is None:
            return True
        names = [source.name for source in test.sources if isinstance(source, Register)]
        if test.operator is Operator.NOT:
            return all(self._narrow(name, not holds) for name in names)
        if test.operator is Operator.MOVE or (test.operator is Operator.AND if holds else test.operator is Operator.OR):
            return all(self._narrow(name, holds) for name in names)
        return True

    def _compare(self, relation: Relation, left: Value, right: Value) -> bool:
        """Narrow what is known of two values, given that a relation holds between them; return whether it can hold at
        all.
        """
        one, other = self.value(left), self.value(right)
        if relation in {Relation.GT, Relation.GE}:
            return self._compare(Relation.LT if relation is Relation.GT else Relation.LE, right, left)
        if relation is Relation.EQ:
            both = Range(max(one.low, other.low), min(one.high, other.high), min(one.ones, other.ones))
            one = other = both
        elif relation is Relation.NE:
            one, other = _without(one, other), _without(other, one)
        else:
            strict = relation is Relation.LT
            one, other = (
                replace(one, high=min(one.high, other.high - strict)),
                replace(other, low=max(other.low, one.low + strict)),
            )
        for value, narrowed in ((left, one), (right, other)):
            if narrowed.low > narrowed.high:
                return False
            if isinstance(value, Register):
                self.ranges[value.name] = narrowed.cut()
        return True


def _without(one: Range, other: Range) -> Range:
    """Remove a number from a range: if ``other`` is that one number, and it is at one end of the range."""
    if other.low != other.high:
        return one
    return replace(one, low=one.low + (one.low == other.low), high=one.high - (one.high == other.low))


def _operands(test: Compare | Operation | Convert) -> tuple[Value, ...]:
    """Return the operands of the statement that computed a predicate."""
    if isinstance(test, Compare):
        return test.left, test.right
    return test.sources if isinstance(test, Operation) else (test.source,)


def with_bounds(
    statements: Sequence[Statement], greatest: Mapping[Special, int]
) -> tuple[tuple[Statement, ...], list[While]]:
    """Find how often the loops of a probe may turn where it does not say so; return the statements with these bounds.

    And the loops whose bound is not found. A loop that never turns is left out. greatest: by value of the hardware
    (such as the lane) the greatest that it can be.
    """
    if not any(isinstance(statement, While) and statement.bound == UNKNOWN for statement in walk(statements)):
        return tuple(statements), []
    follower = _Follower()
    follower.run(statements, _State(greatest))
    loops = [entry for entry in walk(statements) if isinstance(entry, While) and entry.bound == UNKNOWN]
    failed = [loop for loop in loops if follower.turns.get(id(loop), BUDGET + 1) > BUDGET]
    return _bounded(statements, follower.turns), failed


def _bounded(statements: Sequence[Statement], turns: Mapping[int, int]) -> tuple[Statement, ...]:
    """Return statements with the bounds of their loops filled in. turns: by the id of a loop without one, how often it
    turns at most.

    One that never turns leaves its test.
    """
    result: list[Statement] = []
    for statement in statements:
        if isinstance(statement, If):
            then, otherwise = _bounded(statement.then, turns), _bounded(statement.otherwise, turns)
            statement = replace(statement, then=then, otherwise=otherwise)
        elif isinstance(statement, For):
            statement = replace(statement, body=_bounded(statement.body, turns))
        elif isinstance(statement, While):
            test, body = _bounded(statement.test, turns), _bounded(statement.body, turns)
            bound = statement.bound if statement.bound != UNKNOWN else turns.get(id(statement), 1)
            if bound == 0:
                result += test
                continue
            statement = replace(statement, test=test, body=body, bound=bound)
        result.append(statement)
    return tuple(result)


class _Follower:
    """Follows the ranges through the statements of one snippet. turns: by the id of a loop that none was stated for,
    how often it turns at most, wherever it is; more than ``BUDGET`` if that is not known.
    """

    def __init__(self) -> None:
        """Set up an interpreter of a probe's statements on ranges of values, with no loop followed yet."""
        self.turns: dict[int, int] = {}
        self._steps = 0

    def run(self, statements: Sequence[Statement], state: _State) -> _State:
        """Interpret statements on ranges of values; return what is known after them. state: what is known before; it
        changes."""
        for statement in statements:
            self._steps += 1
            if isinstance(statement, If):
                state = self._if(statement, state)
            elif isinstance(statement, For):
                variable = statement.variable
                for value in statement.values:
                    self._steps += 1
                    state.assign(variable, _wrapped(value, value, variable.type))
                    state = self.run(statement.body, state)
                    if self._steps >= _MOST_STEPS:
                        self._forget((statement,), state)
                        break
            elif isinstance(statement, While):
                state = self._while(statement, state)
            elif not isinstance(statement, (Save, Assembly)):
                self._compute(statement, state)
        return state

    def _if(self, statement: If, state: _State) -> _State:
        """Follow both sides of an ``if``; return what is known after it. state: what is known before."""
        sides = [
            self.run(body, inside)
            for body, holds in ((statement.then, True), (statement.otherwise, False))
            if (inside := state.where(statement.condition, holds)) is not None
        ]
        # Neither can be where the ranges say that the code is never reached.
        return sides[0].joined(sides[-1]) if sides else state

    def _while(self, loop: While, state: _State) -> _State:
        """Follow a loop turn by turn, and note in ``turns`` how often it turns; return what is known after it."""
        exits: list[_State] = []
        most = loop.bound or BUDGET
        turns = 0
        while True:
            state = self.run(loop.test, state)
            after = state.where(loop.condition, False)
            if after is not None:
                exits.append(after)
            inside = state.where(loop.condition, True)
            if inside is None:
                break
            turns += 1
            self._steps += 1
            if turns > most or self._steps >= _MOST_STEPS:
                # A stated bound ends it; of another loop it is not known how it ends.
                if loop.bound == UNKNOWN or self._steps >= _MOST_STEPS:
                    turns = BUDGET + 1
                    self._forget((*loop.test, *loop.body), state)
                exits.append(state)
                break
            state = self.run(loop.body, inside)
        if loop.bound == UNKNOWN:
            self.turns[id(loop)] = max(self.turns.get(id(loop), 0), turns)
        joined = exits[0] if exits else state
        for other in exits[1:]:
            joined = joined.joined(other)
        return joined

    def _forget(self, statements: Sequence[Statement], state: _State) -> None:
        """Forget what is known of the registers that some statements assign, since they were not followed to their end.
        """
        for statement in walk(statements):
            target = statement.variable if isinstance(statement, For) else getattr(statement, "destination", None)
            if isinstance(target, Register):
                state.forget(target.name)

    def _compute(self, statement: Computation, state: _State) -> None:
        """Follow one statement that computes a value: note in state what is known of its destination from then on."""
        target = statement.destination
        value = _full(target.type)
        one_less: str | None = None
        if isinstance(statement, Operation) and (target.type.is_integer or target.type is Type.PRED):
            value = _operation(statement, state)
            first = statement.sources[0]
            if (
                statement.operator is Operator.SUB and isinstance(first, Register) and first != target
                and state.value(statement.sources[1]) == Range(1, 1, 1)
            ):  # fmt: skip
                one_less = first.name
        elif isinstance(statement, Compare):
            value = _comparison(statement.relation, state.value(statement.left), state.value(statement.right))
            if not getattr(statement.left, "type", Type.F32).is_integer:
                value = _full(Type.PRED)
        elif isinstance(statement, Select) and target.type.is_integer:
            sides = [
                state.value(side) for side, holds in ((statement.then, True), (statement.otherwise, False))
                if state.where(statement.condition, holds) is not None
            ]  # fmt: skip
            value = sides[0].joined(sides[-1]) if sides else value
        elif isinstance(statement, Convert) and not isinstance(statement.source, SiteOperand):
            value = _converted(statement.source, target.type, state)
        elif isinstance(statement, Load) and statement.operand.name in _SITE_VALUES:
            value = Range(0, _SITE_VALUES[statement.operand.name]).cut()
        state.assign(target, value)
        if one_less is not None:
            state.less[target.name] = one_less
        if target.type is Type.PRED and isinstance(statement, (Compare, Operation, Convert)):
            # Of floats, and what reads the predicate itself, nothing follows.
            kinds = [getattr(operand, "type", Type.F32) for operand in _operands(statement)]
            is_same = any(operand == target for operand in _operands(statement))
            if not is_same and all(kind.is_integer or kind is Type.PRED for kind in kinds):
                state.tests[target.name] = statement


def _converted(source: Register | Constant | Special, kind: Type, state: _State) -> Range:
    """Return the range of a value after its conversion to another type. state: what is known of the value."""
    known = state.value(source)
    if source.type.is_float or not (kind.is_integer or kind is Type.PRED) or source.type is Type.F16X2:
        return _full(kind)
    if kind is Type.PRED:
        return _comparison(Relation.NE, known, Range(0, 0, 0))
    ones = known.ones if known.low >= 0 else 64
    return _wrapped(known.low, known.high, kind, ones)


def _comparison(relation: Relation, one: Range, other: Range) -> Range:
    """Return the range of a comparison's predicate, 0 or 1 where the operands' ranges decide it, else both."""
    if relation in {Relation.GT, Relation.GE}:
        return _comparison(Relation.LT if relation is Relation.GT else Relation.LE, other, one)
    if relation in {Relation.EQ, Relation.NE}:
        is_apart = one.high < other.low or other.high < one.low
        is_equal = one.low == one.high == other.low == other.high
        known = relation is Relation.NE if is_apart else relation is Relation.EQ if is_equal else None
    else:
        strict = relation is Relation.LT
        always = one.high < other.low if strict else one.high <= other.low
        never = one.low >= other.high if strict else one.low > other.high
        known = True if always else False if never else None
    return Range(0, 1) if known is None else Range(known, known)


def _operation(statement: Operation, state: _State) -> Range:
    """Return the range of the result of an operation on integers or predicates. state: what is known of its operands.
    """
    operator, kind = statement.operator, statement.destination.type
    sources = [state.value(source) for source in statement.sources]
    if any(isinstance(source, SiteOperand) for source in statement.sources):
        return _full(kind)
    one, other = sources[0], sources[-1]
    if kind is Type.PRED:
        return _of_predicates(operator, one, other)
    if operator is Operator.MOVE:
        return one
    if operator is Operator.ADD:
        return _wrapped(one.low + other.low, one.high + other.high, kind)
    if operator is Operator.SUB:
        return _wrapped(one.low - other.high, one.high - other.low, kind)
    if operator is Operator.MUL:
        products = [left * right for left in (one.low, one.high) for right in (other.low, other.high)]
        return _wrapped(min(products), max(products), kind)
    if operator is Operator.NEG:
        return _wrapped(-one.high, -one.low, kind)
    if operator in {Operator.MIN, Operator.MAX}:
        choose = min if operator is Operator.MIN else max
        return Range(choose(one.low, other.low), choose(one.high, other.high), max(one.ones, other.ones)).cut()
    if operator is Operator.POPC:
        return Range(0, one.ones).cut()
    if operator is Operator.SHL and other.low == other.high:
        amount = min(other.low, kind.bits)
        ones = one.ones if one.low >= 0 else 64
        return _wrapped(one.low << amount, one.high << amount, kind, ones)
    if operator is Operator.SHR:
        least, most = min(other.low, kind.bits), min(other.high, kind.bits)
        ones = one.ones if one.low >= 0 else 64
        low = one.low >> (least if one.low < 0 else most)
        return Range(low, one.high >> (most if one.high < 0 else least), ones).cut()
    if one.low < 0 or other.low < 0:
        return _full(kind)
    return _of_natural_numbers(statement, one, other, state)


def _of_natural_numbers(statement: Operation, one: Range, other: Range, state: _State) -> Range:
    """Return the range of the result of an operation on numbers that are not negative, for operators ``_operation``
    leaves out."""
    operator, kind = statement.operator, statement.destination.type
    names = [getattr(source, "name", "") for source in statement.sources]
    if operator is Operator.AND and names[0] != names[1] and "" not in names:
        for (number, name), less in (((one, names[0]), names[1]), ((other, names[1]), names[0])):
            if state.less.get(less) == name:
                # x & (x - 1) is x without its lowest 1; x - 1 of 0 is not negative in unsigned types, and 0 stays 0.
                return Range(0, max(number.high - 1, 0), max(number.ones - 1, 0)).cut()
    if operator is Operator.AND:
        low = one.low & other.low if one.low == one.high and other.low == other.high else 0
        return Range(low, min(one.high, other.high), min(one.ones, other.ones)).cut()
    if operator in {Operator.OR, Operator.XOR}:
        low = max(one.low, other.low) if operator is Operator.OR else 0
        return Range(low, (1 << max(one.high, other.high).bit_length()) - 1, one.ones + other.ones).cut()
    # Of a division by 0 the result is any value.
    if operator is Operator.DIV and other.low > 0:
        return Range(one.low // other.high, one.high // other.low).cut()
    if operator is Operator.REM and other.low > 0:
        return one if one.high < other.low else Range(0, min(one.high, other.high - 1)).cut()
    return _full(kind)


def _of_predicates(operator: Operator, one: Range, other: Range) -> Range:
    """Return the range of an operation on predicates. one, other: the ranges of its operands, within 0 and 1."""
    if operator is Operator.MOVE:
        return one
    if operator is Operator.NOT:
        return Range(1 - one.high, 1 - one.low)
    if operator is Operator.AND:
        return Range(one.low & other.low, one.high & other.high)
    if operator is Operator.OR:
        return Range(one.low | other.low, one.high | other.high)
    return Range(0, 1)
