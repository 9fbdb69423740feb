"""Typed statements that compute values, as scalar and vector instructions, in conditions and loops.

``compute_moves`` says how values are held. Code of a condition that not all lanes agree on has EXEC with those lanes
alone; where all agree it is branched around.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from neutrino.gcn.instrument.code import Mask, Place, Scalar, Value, Vector
from neutrino.gcn.instrument.compute_floats import OF_FLOATS
from neutrino.gcn.instrument.compute_lanes import LaneExchange
from neutrino.gcn.instrument.compute_moves import CannotError, type_of
from neutrino.gcn.instrument.compute_scalars import BITWISE, OF_SCALARS
from neutrino.gcn.instrument.compute_uniform import UNIFORM_OPERANDS, VARYING, varying
from neutrino.gcn.instrument.remembered import remembered
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.operands import Constant, Register, SiteOperand, Special
from neutrino.ir.statements import (
    ClockAfter,
    Collective,
    Compare,
    Convert,
    IsGlobal,
    Load,
    Operation,
    Operator,
    Reinterpret,
    Relation,
    Select,
    Shuffle,
)
from neutrino.ir.types import Type
from neutrino.probing.ir.structured import For, If, Save, Statement, While

_DIVISIONS = (Operator.DIV, Operator.REM)
_PLAIN = (Convert, Compare, Select, Reinterpret, Load, Save, Collective, Shuffle, IsGlobal, ClockAfter)
"""Statements of which everything can be computed."""


def why_not(statement: Statement) -> str:
    """Return what of a statement cannot be computed, "" if all of it can be."""
    if isinstance(statement, Operation):
        return _why_no_operation(statement)
    inner: tuple[Statement, ...] = ()
    if isinstance(statement, If):
        inner = (*statement.then, *statement.otherwise)
    elif isinstance(statement, For):
        inner = statement.body
    elif isinstance(statement, While):
        inner = (*statement.test, *statement.body)
    elif not isinstance(statement, _PLAIN):
        return f"{type(statement).__name__} is not possible in AMD's kernels yet"
    return next(filter(None, map(why_not, inner)), "")


def _why_no_operation(statement: Operation) -> str:
    """Return what of an operation cannot be computed, "" if all of it can be."""
    operator, type_ = statement.operator, statement.destination.type
    if operator in _DIVISIONS and type_.bits == 64:
        divisor = statement.sources[1]
        if not isinstance(divisor, Constant) or not divisor.bits:
            return f"{operator.value} of {type_} by what is not known is not possible in AMD's kernels"
    if operator is Operator.FMA and type_.bits == 16:
        return f"fma of {type_} is not possible in AMD's kernels yet"
    if type_.is_float and operator not in OF_FLOATS and operator is not Operator.MOVE:
        return f"{operator.value} of {type_} is not possible in AMD's kernels"
    return ""


class Computing(LaneExchange):
    """Lowers the statements of one snippet.

    here: where it stands. vectors: names of its registers that differ between lanes, as ``varying`` returns them.
    """

    def __init__(self, here: Surroundings, vectors: Iterable[str] = ()) -> None:
        """Begin a snippet."""
        super().__init__(here, vectors)
        # Local registers that statements around those that are lowered now name, too.
        self._around: frozenset[str] = frozenset()

    def lower(self, statements: Iterable[Statement]) -> None:
        """Append the instructions for typed statements.

        Registers of local variables are given back after the last statement that names them.
        """
        rows = tuple(statements)
        around, outer = self._around, set(self._places)
        for row, (others, last) in zip(rows, _named_elsewhere(rows), strict=True):
            self._around = around | others
            with self.code.scope():
                self._lower(row)
            for name in last:
                if name not in outer and name not in around and name in self._places:
                    self.code.release(self._places.pop(name))
        self._around = around

    def _lower(self, statement: Statement) -> None:
        """Append the instructions for one typed statement. Raises CannotError for one that is not possible."""
        if reason := why_not(statement):
            raise CannotError(reason)
        if isinstance(statement, Save):
            self.save(statement)
        elif isinstance(statement, If):
            self._branch(statement)
        elif isinstance(statement, For):
            for value in statement.values:
                constant = Constant(statement.variable.type, value % (1 << statement.variable.type.bits))
                self.move(self.place(statement.variable), constant, statement.variable.type)
                self._inside(statement.body, {statement.variable.name})
        elif isinstance(statement, While):
            self._loop(statement)
        else:
            with self.assigning(statement.destination) as place:  # type: ignore[union-attr]
                self._assign(place, statement)

    def _assign(self, place: Place, statement: Statement) -> None:
        """Append the instructions for a statement that gives a register a value. place: where that belongs."""
        if isinstance(statement, Operation):
            self.operation(place, statement)
        elif isinstance(statement, Convert):
            source = statement.source
            self.convert_into(place, statement.destination.type, self.value(source), type_of(source))
        elif isinstance(statement, Compare):
            left, right = self.value(statement.left), self.value(statement.right)
            self.compare_into(place, statement.relation, left, right, type_of(statement.left))
        elif isinstance(statement, Select):
            values = (self.value(statement.condition), self.value(statement.then), self.value(statement.otherwise))
            self.select_into(place, *values)
        elif isinstance(statement, Reinterpret):
            source = statement.source
            self._reinterpret(place, self.value(source), type_of(source), statement.destination.type)
        elif isinstance(statement, Load):
            self._load(place, statement)
        elif isinstance(statement, Collective):
            source = statement.source
            self.reduce(place, statement.reduction, self.value(source), type_of(source))
        elif isinstance(statement, Shuffle):
            source = statement.source
            self.shuffle(place, self.value(source), type_of(source), self.value(statement.lane))
        elif isinstance(statement, IsGlobal):
            assert isinstance(place, Mask)
            self.is_global(place, self.value(statement.address))
        elif isinstance(statement, ClockAfter):
            # The value is in a register of the snippet: what wrote it there waited for it, and this comes later.
            self.move(place, self.here.special(Special.CLOCK), Type.U64)
        else:
            raise CannotError(why_not(statement))

    def save(self, statement: Save) -> None:
        """Refuse to save values to a map. A class for probes that may save has its own."""
        raise CannotError("saves are not possible here")

    def _load(self, place: Place, statement: Load) -> None:
        """Append code that reads a value of the probed instruction into a register of the probe.

        Bits are taken as they are; into a predicate goes whether they are not 0, and of a predicate 1 or 0.
        """
        value, type_ = self.value(statement.operand), statement.destination.type
        if isinstance(value, Mask) and type_ is not Type.PRED:
            self.from_mask(place, value, Type.U64 if type_.bits == 64 else Type.U32)
        elif type_ is Type.PRED and not isinstance(value, Mask):
            words = value.words if not isinstance(value, Constant) else self.words(value.type)
            kind = Type.U64 if words == 2 else Type.U32
            self.compare_into(place, Relation.NE, value, Constant(kind, 0), kind)
        else:
            self.move(place, value, type_)
            self.narrow(place, type_)

    def _reinterpret(self, place: Place, value: Value, source: Type, to: Type) -> None:
        """Append code that takes bits as another type of the same width."""
        if isinstance(value, Constant):
            value = Constant(to, value.bits)
        self.move(place, value, to)
        if source.is_signed != to.is_signed:
            self.narrow(place, to)

    # Conditions and loops

    def _inside(self, statements: tuple[Statement, ...], also: set[str]) -> None:
        """Append statements within another one. also: local registers that are named elsewhere in that."""
        around = self._around
        self._around = around | also
        self.lower(statements)
        self._around = around

    def _begin_apart(self, statement: If | While) -> Mask:
        """Begin code that not all lanes execute; return which do around it. Predicates that get their first value in
        there are false in all lanes before."""
        code, machine = self.code, self._machine
        for register in _registers_in(statement):
            if register.type is Type.PRED and register.is_local and register.name not in self._places:
                self.move(self.place(register), Constant(Type.PRED, 0), Type.PRED)
        outer = code.mask()
        code.emit(f"s_mov_{machine.mask} {outer.text}, {machine.exec}")
        self._conditions += 1
        return outer

    def _branch(self, statement: If) -> None:
        """Append code that runs one of two lists of statements, by a predicate.

        Where lanes differ, each list runs with those lanes alone that it is for.
        """
        code, machine = self.code, self._machine
        lists, name = (statement.then, statement.otherwise), statement.condition.name
        named = [{name}.union(*map(_locals_in, rows)) for rows in lists[::-1]]
        if statement.condition.name not in self._vectors:
            otherwise, end = code.label(), code.label()
            with code.scope():
                self.test(self.value(statement.condition))
            code.emit(f"s_cbranch_scc0 {otherwise}")
            self._inside(statement.then, named[0])
            if statement.otherwise:
                code.emit(f"s_branch {end}")
            code.emit(f"{otherwise}:")
            self._inside(statement.otherwise, named[1])
            code.emit(f"{end}:")
            return
        outer = self._begin_apart(statement)
        condition = self.place(statement.condition)
        if statement.otherwise:
            inner = code.mask()
            code.emit(f"s_mov_{machine.mask} {inner.text}, {condition.text}")
            condition = inner
        for rows, names, narrowed in (
            (lists[0], named[0], f"s_and_{machine.mask} {machine.exec}, {outer.text}, {condition.text}"),
            (lists[1], named[1], f"{machine.and_not} {machine.exec}, {outer.text}, {condition.text}"),
        ):
            if rows:
                end = code.label()
                code.emit(narrowed, f"s_cbranch_execz {end}")
                self._inside(rows, names)
                code.emit(f"{end}:")
        self._conditions -= 1
        code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}")

    def _loop(self, statement: While) -> None:
        """Append code that runs a test and, as long as its predicate is true, statements, a limited number of times."""
        code, machine = self.code, self._machine
        names = {statement.condition.name, *_locals_in(statement)}
        is_apart = statement.condition.name in self._vectors
        outer = self._begin_apart(statement) if is_apart else None
        turns, again, end = code.scalar(), code.label(), code.label()
        code.emit(f"s_movk_i32 {turns.text}, {statement.bound:#x}", f"{again}:")
        self._inside(statement.test, names)
        if is_apart:
            condition = self.place(statement.condition)
            code.emit(f"s_and_{machine.mask} {machine.exec}, {machine.exec}, {condition.text}")
            code.emit(f"s_cbranch_execz {end}")
        else:
            with code.scope():
                self.test(self.value(statement.condition))
            code.emit(f"s_cbranch_scc0 {end}")
        self._inside(statement.body, names)
        code.emit(f"{machine.subtract} {turns.text}, {turns.text}, 1", f"s_cmp_lg_u32 {turns.text}, 0")
        code.emit(f"s_cbranch_scc1 {again}", f"{end}:")
        if outer is not None:
            self._conditions -= 1
            code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}")

    # Values

    def operation(self, place: Place, statement: Operation) -> None:
        """Append code for an arithmetic or logic operation."""
        operator, type_ = statement.operator, statement.destination.type
        values = [self.value(source) for source in statement.sources]
        if operator is Operator.MOVE:
            self.move(place, values[0], type_)
        elif type_ is Type.PRED:
            self._combine(place, operator, values)
        elif type_.is_float:
            with self.in_lanes(place) as result:
                self.float_operation(result, operator, type_, values)
        elif operator in _DIVISIONS:
            with self.in_lanes(place) as result:
                self.divide(result, operator, type_, values)
        else:
            source = type_of(statement.sources[0])
            is_scalar = isinstance(place, Scalar) and not any(isinstance(value, Vector) for value in values)
            if is_scalar and operator in OF_SCALARS:
                assert isinstance(place, Scalar)
                self.scalar(place, operator, type_, values, source)
            else:
                with self.in_lanes(place) as result:
                    self.vector(result, operator, type_, values, source)

    def _combine(self, place: Place, operator: Operator, values: list[Value]) -> None:
        """Append code for a logic operation on predicates, kept as lane masks. Bits of lanes that are not active are
        0."""
        code, machine = self.code, self._machine
        texts = [self.mask_text(value) for value in values]
        if operator is Operator.NOT:
            code.emit(f"{machine.and_not} {place.text}, {machine.exec}, {texts[0]}")
        else:
            code.emit(f"s_{BITWISE[operator]}_{machine.mask} {place.text}, {', '.join(texts)}")
            code.emit(f"s_and_{machine.mask} {place.text}, {place.text}, {machine.exec}")

    def compare_into(self, place: Place, relation: Relation, left: Value, right: Value, type_: Type) -> None:
        """Append code that compares two numbers into a predicate, which is 0 in lanes that are not active."""
        assert isinstance(place, Mask)
        if type_.is_float:
            self.compare_floats(place, relation, left, right, type_)
        else:
            self.compare_integers(place, relation, left, right, type_)

    def select_into(self, place: Place, condition: Value, then: Value, otherwise: Value) -> None:
        """Append code that takes one of two values, by a predicate, given the registers that have them."""
        code, machine = self.code, self._machine
        if isinstance(place, Mask):
            texts = [self.mask_text(value) for value in (condition, then, otherwise)]
            part, other = code.mask(), code.mask()
            code.emit(f"s_and_{machine.mask} {part.text}, {texts[1]}, {texts[0]}")
            code.emit(f"{machine.and_not} {other.text}, {texts[2]}, {texts[0]}")
            code.emit(f"s_or_{machine.mask} {place.text}, {part.text}, {other.text}")
            code.emit(f"s_and_{machine.mask} {place.text}, {place.text}, {machine.exec}")
        elif isinstance(place, Vector):
            self.choose(place, condition, then, otherwise)
        else:
            self.test(condition)
            for number in range(place.words):
                code.emit(f"s_cselect_b32 {place.word(number)}, {self.pair(then, otherwise, number)}")


def _registers_in(statement: Statement) -> list[Register]:
    """Return the registers that a statement names, in those inside it, too."""
    found: list[Register] = []
    waiting: list[object] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Register):
            found.append(node)
        elif isinstance(node, (tuple, list)):
            waiting += node
        elif hasattr(node, "__dataclass_fields__") and not isinstance(node, (Constant, SiteOperand)):
            waiting += [getattr(node, name) for name in node.__dataclass_fields__ if name not in ("span", "map")]
    return found


@remembered
def _locals_in(statement: Statement) -> frozenset[str]:
    """Return the names of the local registers that a statement names, in those inside it, too."""
    return frozenset(register.name for register in _registers_in(statement) if register.is_local)


@remembered
def _named_elsewhere(rows: tuple[Statement, ...]) -> list[tuple[frozenset[str], list[str]]]:
    """Return for each of several statements which local registers others of them name, and which none after it names.
    """
    names = [_locals_in(row) for row in rows]
    counts = Counter(name for found in names for name in found)
    last = {name: number for number, found in enumerate(names) for name in found}
    return [
        (
            frozenset(name for name, count in counts.items() if count > (name in found)),
            [name for name in found if last[name] == number],
        )
        for number, found in enumerate(names)
    ]


__all__ = ["UNIFORM_OPERANDS", "VARYING", "CannotError", "Computing", "varying", "why_not"]
