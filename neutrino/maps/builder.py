"""How map types write statements: each method adds one, and returns the register with its result.

Types are checked here, so that a target gets no statement that mixes them.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from neutrino.abi.records import Field
from neutrino.errors import Span
from neutrino.ir.memory import (
    Accumulate,
    Apart,
    At,
    AtomicUpdate,
    Below,
    Block,
    Branch,
    CompareAnd,
    CompareAndSwap,
    EachInTurn,
    Elect,
    EnsureRoom,
    Extent,
    HasCondition,
    HasSlot,
    Here,
    IsAbsent,
    IsSaving,
    Kept,
    Leave,
    LoadCell,
    LoadStored,
    Locate,
    MapStatement,
    Meet,
    OfLane,
    OneOf,
    OverLanes,
    Part,
    ReadExtent,
    ReadSaved,
    ReserveInLog,
    SlotNumber,
    Store,
    StoreSaved,
    StoreTogether,
    WereHere,
    When,
)
from neutrino.ir.operands import Constant, Register, Special
from neutrino.ir.statements import (
    Collective,
    Compare,
    Convert,
    Operation,
    Operator,
    Reduction,
    Reinterpret,
    Relation,
    Select,
)
from neutrino.ir.types import Type

Number = Register | Constant | int
"""An operand; an integer is a constant of the type that the other operand has."""

SHIFTS = frozenset({Operator.SHL, Operator.SHR})


class Combining(enum.Enum):
    """What lanes of a warp can do together: nothing; find those with equal values; reduce values, too."""

    NOTHING = 0
    MATCH = 1
    REDUCE = 2


@dataclass(frozen=True)
class Lanes:
    """Those of a target. number: in a warp, 32 or 64."""

    number: int
    combining: Combining


class SavedValues(Protocol):
    """What is known of a SAVE when its code is written: nothing of its values, if nothing is found out.

    number: of an operand, from 0.
    """

    @property
    def lanes(self) -> Lanes:
        """What the lanes (threads) of a warp can do together on the target, such as reductions."""

    @property
    def may_branch(self) -> bool:
        """Whether the code that performs this save, a probe's statement that records values, may contain branches."""

    @property
    def is_conditional(self) -> bool:
        """Whether some of the threads that execute this save's code do not save, since it is under a condition."""

    @property
    def has_condition(self) -> bool:
        """Whether the save is under a condition of its own, besides that a thread may have no slot."""
        return self.is_conditional

    @property
    def is_elected(self) -> bool:
        """Whether one of the lanes (threads of a warp) here saves, and it is left open which one."""
        return False

    @property
    def is_whole(self) -> bool:
        """Whether the whole warp comes here together, and once: the code is run before its lanes may part."""
        return False

    @property
    def is_rare(self) -> bool:
        """Whether the code stands behind a branch that is nearly never taken: no register is to be kept for it."""
        return False

    def constant(self, number: int) -> int | None:
        """Return the value of an operand of the save if it is a constant in the probe, else None. number: its index."""
        return None

    def choices(self, number: int) -> tuple[int, ...]:
        """Return the two constants, ascending, of which an operand of the save is always one; () if that is not known.
        """
        return ()

    def is_same(self, number: int) -> bool:
        """Return whether an operand is known to have one value in all lanes that save it together."""
        return False

    def is_read_together(self, number: int) -> bool:
        """Return whether it has one since they read it together, as a clock."""
        return False

    def own_sites(self) -> tuple[int, ...]:
        """Return the sites, ascending, if each lane that saves has for its key the site whose number is its own, modulo
        the lanes of a warp; else ()."""
        return ()

    def site_key(self) -> int | None:
        """Return a number that tells the place of the save's key in a table without a search; None if the key must be
        searched for.

        It is the number of the site (the probed instruction) if the key, the first operand, is SITE in all saves to the
        map; or, if all saves to the map have constants as keys, the number of this one among them.
        """
        return None


class SavesTogether(Protocol):
    """What is known of several SAVEs whose code is written together, by their numbers."""

    @property
    def lanes(self) -> Lanes:
        """What the lanes (threads) of a warp can do together on the target, such as reductions."""

    @property
    def each(self) -> Sequence[SavedValues]:
        """What is known of each of them."""

    def kin(self, save: int) -> Hashable:
        """Return what SAVEs have in common whose values are expected to differ by the same amount in all lanes."""

    def condition(self, save: int) -> Hashable:
        """Return the same for SAVEs with the same condition; None for one that all threads execute."""

    def beyond(self, save: int, number: int) -> tuple[Hashable, int] | None:
        """Return that an operand, a u64, is a sum of what is not known, the same where that is the same, and an amount;
        None if that is not known.
        """

    def constant(self, save: int, number: int) -> Hashable:
        """Return of an operand that is a constant what is equal for equal ones, None of others."""


class Builder:
    """Builds a piece of code, a list of statements of the IR, which a backend translates for a GPU.

    span: the place in the probe file that all of them are said to be from, that of the map's declaration. name: begins
    the names of registers, so that they are none of other code's. Methods that compute something append a statement and
    return the register with the result.
    """

    def __init__(self, span: Span, name: str = "") -> None:
        """Begin a piece of code without statements. Parameters: see the class."""
        self.statements: list[MapStatement] = []
        self._span = span
        self._name = name
        self._numbers = count(1)

    def inner(self) -> Builder:
        """Return a new builder for the code of an inner block, as ``branch`` takes; its registers have other names than
        this one's."""
        inner = Builder(self._span, self._name)
        inner._numbers = self._numbers
        return inner

    def add(self, statement: MapStatement) -> None:
        """Append a statement for which the builder has no method of its own."""
        self.statements.append(statement)

    def kept(self, *key: int, type_: Type = Type.U64, initial: int = 0) -> Kept:
        """Return a register that lives from the kernel's entry to the thread's end, the same one for the same key.

        key: numbers that the map type gives it, to find it again at the end. initial: its first value, as bits.
        """
        return Kept(f"%{'_'.join(map(str, key))}", type_, initial, self._span, key=key)

    def saved(self, number: int, saved_field: Field, save: int = 0) -> Register:
        """Append the statement that reads a value of the save (what a probe records); return its register.

        Narrow integers are extended to 32 bits. number: of the field among those that the save names. saved_field: the
        field itself, for its type. save: as of ``ReadSaved``.
        """
        register = self._local(Type(saved_field.type.value))
        self.add(ReadSaved(register, number, self._span, save))
        if register.type.bits >= 32:
            return register
        return self.convert(Type.S32 if register.type.is_signed else Type.U32, register)

    def saving(self, saved: SavedValues, save: int = 0) -> Register | None:
        """Return a predicate that says whether this thread saves here; None if all threads that execute the code do."""
        if not saved.is_conditional:
            return None
        register = self._local(Type.PRED)
        self.add(IsSaving(register, self._span, save))
        return register

    def condition(self, saved: SavedValues) -> Register | None:
        """Append the test of the save's own condition; return the predicate. None if it has none."""
        if not saved.has_condition:
            return None
        register = self._local(Type.PRED)
        self.add(HasCondition(register, self._span))
        return register

    def compute(
        self, operator: Operator, left: Register, *right: Number, type_: Type | None = None,
        into: Register | None = None,
    ) -> Register:  # fmt: skip
        """Append the computation ``operator(left, *right)``; return the register with the result.

        type_: of the result, where it is not left's. into: the register for it; None for a new one.
        """
        result = into or self._local(type_ or left.type)
        amount = Type.U32 if operator in SHIFTS else left.type
        self.add(Operation(operator, result, (left, *(self._of(item, amount) for item in right)), self._span))
        return result

    def both(self, left: Register | None, right: Register | None) -> Register | None:
        """Return the conjunction of two predicates, where None is always true."""
        if left is None or right is None:
            return left or right
        return self.compute(Operator.AND, left, right)

    def compare(self, relation: Relation, left: Register, right: Number, also: Register | None = None) -> Register:
        """Append a comparison; return the predicate: whether the relation holds and, if one is given, the predicate
        ``also``."""
        result, number = self._local(Type.PRED), self._of(right, left.type)
        if also is None:
            self.add(Compare(relation, result, left, number, self._span))
        else:
            self.add(CompareAnd(relation, result, left, number, also, self._span))
        return result

    def select(
        self, condition: Register, then: Number, otherwise: Number, type_: Type, into: Register | None = None
    ) -> Register:
        """Append a selection; return the register with ``then if condition else otherwise``. into: see ``compute``."""
        result = into or self._local(type_)
        self.add(Select(result, condition, self._of(then, type_), self._of(otherwise, type_), self._span))
        return result

    def convert(self, type_: Type, source: Register) -> Register:
        """Append the conversion of a value to another type; return the register with the result."""
        result = self._local(type_)
        self.add(Convert(result, source, self._span))
        return result

    def widened(self, value: Register) -> Register:
        """Return a register of 64 bits with an integer, extended by zeros or, if it is signed, by its sign."""
        return value if value.type.bits == 64 else self.convert(Type.S64 if value.type.is_signed else Type.U64, value)

    def as_bits(self, type_: Type, source: Register) -> Register:
        """Return a register with the same bits as a value, as another type of the same width (a bit cast)."""
        if type_ is source.type:
            return source
        if type_.bits != source.type.bits:
            raise TypeError(f"{source.type} has not the width of {type_}")
        result = self._local(type_)
        self.add(Reinterpret(result, source, self._span))
        return result

    def together(self, reduction: Reduction, source: Register) -> Register:
        """Return a register with a value reduced (added up, say) over the lanes of the warp that execute this together.
        """
        result = self._local(source.type)
        self.add(Collective(reduction, result, source, self._span))
        return result

    def were_here(self) -> Register:
        """Return the set of lanes that were together at the first of several SAVEs."""
        result = self._local(Type.LANES)
        self.add(WereHere(result, self._span))
        return result

    def here(self) -> Register:
        """Return the set of lanes (threads of the warp) that execute this together."""
        result = self._local(Type.LANES)
        self.add(Here(result, self._span))
        return result

    def over(
        self, lanes: Register, reduction: Reduction, source: Register, type_: Type | None = None,
        into: Register | None = None,
    ) -> Register:  # fmt: skip
        """Return a value reduced (added up, say) over a set of lanes of the warp.

        type_: of the result, where it is not that of source. Votes and searches for equal values give a set of lanes.
        into: see ``compute``.
        """
        if reduction in {Reduction.BALLOT, Reduction.MATCH}:
            type_ = Type.LANES
        result = into or self._local(type_ or source.type)
        self.add(OverLanes(reduction, result, source, lanes, self._span))
        return result

    def absent(self, lanes: Register, lane: Register | int) -> Register:
        """Return a predicate register: whether a lane is not in a set of lanes."""
        result = self._local(Type.PRED)
        self.add(IsAbsent(result, lanes, self._of(lane, Type.U32), self._span))
        return result

    def below(self, lanes: Register) -> Register:
        """Return the lanes of a set that have lower numbers than this thread's, as a set."""
        result = self._local(Type.LANES)
        self.add(Below(result, lanes, self._span))
        return result

    def lowest(self, lanes: Register) -> Register:
        """Return a predicate that says whether this thread's lane is the lowest of a set of lanes."""
        return self.compare(Relation.EQ, self.below(lanes), Constant(Type.LANES, 0))

    def size(self, lanes: Register) -> Register:
        """Return the number of lanes in a set, a u64."""
        return self.convert(Type.U64, self.compute(Operator.POPC, lanes, type_=Type.U32))

    def lane(self) -> Register:
        """Return the register with this thread's number in its warp, its lane."""
        return self.special(Special.LANE)

    def branch(self, condition: Register, then: Builder, otherwise: Builder) -> None:
        """Add a branch: the statements of ``then`` run where a predicate is true, else those of ``otherwise``.

        condition: the same in all lanes here.
        """
        self.add(Branch(condition, tuple(then.statements), tuple(otherwise.statements), self._span))

    def base(self) -> Register:
        """Return the address of the first cell (word) of the map's record in memory."""
        return self.locate(0)

    def apart(self, condition: Register, then: Builder, lanes: Register | None = None) -> None:
        """Append statements that only those threads run in which a predicate is true. lanes: see ``Apart``."""
        self.add(Apart(condition, tuple(then.statements), lanes, self._span))

    def locate(self, cell: Register | int, base: Register | None = None, words: int = 1) -> Register:
        """Return the address of a cell (a word of the map's record), or of a group of ``words`` cells.

        cell: number of the cell or group. base: address of number 0; None for the start of the record.
        """
        result = self._local(Type.U64)
        self.add(Locate(result, self._of(cell, Type.U32), base, self._span, words))
        return result

    def relocate(self, place: Register, cell: Register, base: Register, words: int, when: Register) -> None:
        """Change the address in a register (``place``, of ``variable``) to that of another cell, in threads with
        ``when`` true.

        cell, base, words: as of ``locate``.
        """
        self.add(Locate(place, cell, base, self._span, words, when))

    def load(self, cell: At, when: Register | None = None) -> Register:
        """Append a load; return the register with what is in memory at a cell, a u64.

        when: in which threads that is needed; None: in all.
        """
        result = self._local(Type.U64)
        self.add(LoadCell(result, cell, self._span, when))
        return result

    def swap(self, old: Register, cell: At, expected: int, desired: Register, when: Register) -> None:
        """Add an atomic compare-and-swap: a cell gets ``desired`` if it has the value ``expected``.

        old: a register (of ``variable``) that gets what the cell had before. when: a predicate, which threads do so.
        """
        self.add(CompareAndSwap(old, cell, self._of(expected, Type.U64), desired, self._span, when))

    def variable(self, initial: Register | Constant) -> Register:
        """Return a new register with a first value, which ``relocate`` and ``swap`` may change."""
        result = self._local(initial.type)
        self.add(Operation(Operator.MOVE, result, (initial,), self._span))
        return result

    def of_lane(
        self, source: Register, lane: Register | int, lanes: Register, into: Register | None = None
    ) -> Register:
        """Append a shuffle; return what a register has in another lane of a set. into: see ``compute``."""
        result = into or self._local(source.type)
        self.add(OfLane(result, source, self._of(lane, Type.U32), lanes, self._span))
        return result

    def block(self, name: str, then: Builder) -> None:
        """Add statements that ``leave`` may leave. Parameters: as of ``Block``."""
        self.add(Block(name, tuple(then.statements), self._span))

    def leave(
        self, name: str, when: Register | None = None, *, unless: Register | None = None, is_uniform: bool = False
    ) -> None:
        """Leave a block where the predicate ``when`` is true, or ``unless`` is false; else always. is_uniform: as of
        ``Leave``.
        """
        condition = when if unless is None else unless
        is_uniform = is_uniform or condition is None
        self.add(Leave(name, condition, unless is not None, is_uniform, self._span))

    def meet(self, lanes: Register) -> None:
        """Have lanes of a set wait for each other."""
        self.add(Meet(lanes, self._span))

    def in_turn(
        self, registers: Sequence[Register], rows: Sequence[Sequence[Register | Constant]], lanes: Register,
        then: Builder,
    ) -> None:  # fmt: skip
        """Add statements that run once for each row. Parameters: as of ``EachInTurn``."""
        of_rows = tuple(map(tuple, rows))
        self.add(EachInTurn(tuple(registers), of_rows, lanes, tuple(then.statements), self._span))

    def fresh(self, type_: Type) -> Register:
        """Return a new register that no statement has given a value yet."""
        return self._local(type_)

    def slot(self) -> Register:
        """Return the number of the part of the map's memory that belongs to this thread (its slot)."""
        result = self._local(Type.U32)
        self.add(SlotNumber(result, self._span))
        return result

    def has_slot(self) -> Register:
        """Return a predicate: whether a part of the map's memory belongs to this thread, so that it may store records.
        """
        result = self._local(Type.PRED)
        self.add(HasSlot(result, self._span))
        return result

    def extent(self, extent: Extent) -> Register:
        """Return a number of the launch, such as how many warps it has, a u32."""
        result = self._local(Type.U32)
        self.add(ReadExtent(result, extent, self._span))
        return result

    def reserve(
        self, base: Register, units: Register, when: Register | None, *, after_own: bool = False,
        most: int | None = None,
    ) -> tuple[Register, Register]:  # fmt: skip
        """Append an atomic reservation of units of a log's memory; return the first one's number, and whether memory is
        left.

        Parameters: as of ``ReserveInLog``.
        """
        result, fits = self._local(Type.U32), self._local(Type.PRED)
        self.add(ReserveInLog(result, fits, base, units, when, self._span, after_own, most))
        return result, fits

    def ensure_room(self, when: Register | None) -> None:
        """Append the test, and the reservation if need be, that leaves a log memory for this thread's next record,
        where ``when`` holds."""
        self.add(EnsureRoom(when, self._span))

    def after(self, place: Register, number: Register, size: int, into: Register | None = None) -> Register:
        """Return the address that lies ``number`` times ``size`` bytes after an address; with a size below 0, before
        it.

        into: see ``compute``.
        """
        kind = Type.U32 if size >= 0 else Type.S32
        number = self.as_bits(kind, number)
        result = into or self._local(Type.U64)
        constant = Constant(kind, size % (1 << 32))
        self.add(Operation(Operator.MUL_ADD, result, (number, constant, place), self._span))
        return result

    def multiply_add(
        self, left: Register, right: Number, addend: Number, type_: Type = Type.U32, into: Register | None = None
    ) -> Register:
        """Return ``left * right + addend``, a u32 or a u64. left, right: u32, or for a u64 both s32. into: see
        ``compute``.
        """
        result = into or self._local(type_)
        sources = left, self._of(right, left.type), self._of(addend, type_)
        self.add(Operation(Operator.MUL_ADD, result, sources, self._span))
        return result

    def store(self, place: Register, after: int, values: Sequence[Number], type_: Type, when: Register) -> None:
        """Append a store of numbers to memory, one after the other, in threads with the predicate ``when`` true.

        place: an address; after: how many bytes after it the first one goes. type_: of each number in memory.
        """
        wide = Type.U32 if type_.bits < 32 else type_
        self.add(Store(place, after, tuple(self._of(value, wide) for value in values), type_, when, self._span))

    def load_stored(self, variable: Register, place: Register, after: int, when: Register) -> None:
        """Append a load into a register of what this thread has stored so many bytes after an address, where ``when``
        holds."""
        self.add(LoadStored(variable, place, after, when, self._span))

    def store_together(
        self, place: Register, after: int, parts: Iterable[tuple[int, Number, Type]], align: int,
        when: Register | None = None,
    ) -> None:  # fmt: skip
        """Add a store of numbers: of each so many bytes after ``after``, its value and its type in memory. Parameters:
        as of ``StoreTogether``.
        """
        found = tuple(
            Part(offset, self._of(value, Type.U32 if type_.bits < 32 else type_), type_)
            for offset, value, type_ in parts
        )
        self.add(StoreTogether(place, after, found, align, when, self._span))

    def store_saved(self, place: Register, after: int, when: Register) -> None:
        """Append a store of the record that a probe saves, so many bytes after an address, in threads with ``when``
        true."""
        self.add(StoreSaved(place, after, when, self._span))

    def special(self, special: Special) -> Register:
        """Return the value of a special register of the hardware, such as the lane."""
        result = self._local(special.type)
        self.add(Operation(Operator.MOVE, result, (special,), self._span))
        return result

    def elect(self, reduction: Reduction) -> Register:
        """Return a predicate, true in the one of the lanes here that writes the result of a reduction; in each, if
        lanes do not combine.

        reduction: the one whose result is written; see ``Elect``.
        """
        result = self._local(Type.PRED)
        self.add(Elect(reduction, result, self._span))
        return result

    def change(self, kept: Register, operator: Operator, value: Number, when: Register | None = None) -> None:
        """Append ``kept = operator(kept, value)``, or with ``MOVE`` ``kept = value``, for a register that lives to the
        thread's end, or one of ``variable``.

        when: a predicate; None to do so always.
        """
        number = self._of(value, kept.type)
        change = Operation(operator, kept, (number,) if operator is Operator.MOVE else (kept, number), self._span)
        self.add(change if when is None else When(when, (change,), self._span))

    def add_product(self, kept: Kept, left: Register, right: Register, when: Register) -> None:
        """Append ``kept = left * right + kept``, in threads with the predicate ``when`` true. left, right: u32. kept:
        u64."""
        change = Operation(Operator.MUL_ADD, kept, (left, right, kept), self._span)
        self.add(When(when, (change,), self._span))

    def accumulate(
        self, cell: int, amount: Register | int, when: Register | None = None, *, operator: Operator = Operator.ADD
    ) -> None:
        """Append the addition of an amount to a cell of the map's record (``operator=SUB``: a subtraction).

        The target may sum up several in a register of the thread before memory is changed. when: a predicate, None for
        always.
        """
        self.add(Accumulate(cell, self._of(amount, Type.U64), self._span, when, operator))

    def update(
        self, operator: Operator, cell: int | OneOf | At, value: Number, when: Register | None
    ) -> None:  # fmt: skip
        """Append an atomic change of a cell in memory: ``cell = operator(cell, value)``. when: a predicate, None for
        always."""
        self.add(AtomicUpdate(operator, cell, self._of(value, Type.U64), self._span, when))

    def _of(self, number: Number, type_: Type) -> Register | Constant:
        """Make an operand of a type: an integer becomes a constant, a register is checked to have the type's width.

        Raises TypeError for a register of another width.
        """
        if isinstance(number, int):
            return Constant(type_, number % (1 << type_.bits))
        if number.type.bits != type_.bits:
            raise TypeError(f"{number.type} in an operation on {type_}")
        return number

    def _local(self, type_: Type) -> Register:
        """Return a new register, with a name of its own, for a result."""
        return Register(f"%{self._name}{next(self._numbers)}", type_, 0, self._span, is_local=True)
