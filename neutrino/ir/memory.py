"""The statements of map types: what becomes of saved values, in registers that a thread keeps and in memory.

A map type writes three pieces of code in them: for where a kernel begins, for each SAVE, and for where a thread ends.
All threads at the place execute a statement, in their order; but what it changes besides its destination it changes in
threads alone for which ``when`` is true (None: all of them), or which save, where it says so.

Cells are what a map's record in memory consists of, by their numbers. A launch has copies of the record, or rows of
blocks, warps or threads (``maps/regions.py``); a thread adds to the cells of its own.
"""

from __future__ import annotations

import enum
from dataclasses import field

from neutrino.errors import Span
from neutrino.ir.operands import Constant, Register
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
from neutrino.late_dataclass import dataclass


@dataclass(frozen=True)
class Kept(Register):
    """A register of a map, which each thread keeps from the kernel's entry to its end. key: what it is, for the map
    type, and so its name."""

    key: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReadSaved:
    """``destination =`` what a SAVE has for a field of its map, converted to the field's type. number: the field's.
    save: of several that are written together, which."""

    destination: Register
    number: int
    span: Span = field(compare=False)
    save: int = 0


@dataclass(frozen=True)
class IsSaving:
    """``destination``, a predicate: whether this thread saves. For SAVEs that not all threads at the place execute.
    save: of several that are written together, which."""

    destination: Register
    span: Span = field(compare=False)
    save: int = 0


@dataclass(frozen=True)
class HasCondition:
    """``destination``, a predicate: whether a SAVE's own condition holds in this thread, which may have no slot. For
    SAVEs that have one (``SavedValues.has_condition``)."""

    destination: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class CompareAnd:
    """``destination = (left relation right) and also``. also: a predicate; the others are as for ``Compare``."""

    relation: Relation
    destination: Register
    left: Register | Constant
    right: Register | Constant
    also: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class When:
    """Statements whose destinations, registers that are kept, change where a predicate is true."""

    condition: Register
    then: tuple[Operation, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Accumulate:
    """Add an amount to a cell, or subtract it: in a register till the thread ends, then in memory.

    cell: its number. operator: ``ADD`` or ``SUB``. amount: of a type with the cell's width.
    """

    cell: int
    amount: Register | Constant
    span: Span = field(compare=False)
    when: Register | None = None
    operator: Operator = Operator.ADD


@dataclass(frozen=True)
class AccumulateSaved:
    """Add what a SAVE has for each field to the cell of the field's number, as ``Accumulate`` does, in the threads that
    save."""

    span: Span = field(compare=False)


@dataclass(frozen=True)
class Here:
    """``destination``, of type ``lanes``: the lanes that are at the place together."""

    destination: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class WereHere:
    """``destination``, of type ``lanes``: those that were together at the first of several SAVEs that are written
    together."""

    destination: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class OverLanes:
    """``destination = reduction(source)`` over a set of lanes, each of which is here and executes it with the same set.

    Sets need not be the same in all lanes that are here. destination: of ``BALLOT`` and ``MATCH`` of type ``lanes``; of
    a ``SUM`` of a u32 it may be a u64.
    """

    reduction: Reduction
    destination: Register
    source: Register
    lanes: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class IsAbsent:
    """``destination``, a predicate: whether a lane is not in a set. lane: its number."""

    destination: Register
    lanes: Register
    lane: Register | Constant
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Below:
    """``destination``, of type ``lanes``: the lanes of a set that are below this thread's."""

    destination: Register
    lanes: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Branch:
    """One of two pieces of code, by a predicate that is the same in all lanes that are here.

    What they compute is not read after them. Not where ``SavedValues.may_branch`` is false.
    """

    condition: Register
    then: tuple[MapStatement, ...]
    otherwise: tuple[MapStatement, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Apart:
    """Statements for the threads in which a predicate is true; a target may branch around them.

    What they compute is not read after them. lanes: those that are here, which are together again after it; None where
    the thread ends. Not where ``SavedValues.may_branch`` is false.
    """

    condition: Register
    then: tuple[MapStatement, ...]
    lanes: Register | None
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Block:
    """Statements that ``Leave`` may leave for what follows them. name: no other block around or in it has it."""

    name: str
    then: tuple[MapStatement, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Leave:
    """Threads go to the end of the block with a name, in which the statement is.

    when: a predicate, which of them; with ``is_inverted`` those in which it is false; None: all. is_uniform: it is the
    same in all lanes that are here. Where it is not, the block is the innermost one. Lanes that have parted may be
    apart till a ``Meet``.
    """

    name: str
    when: Register | None
    is_inverted: bool
    is_uniform: bool
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Meet:
    """Lanes of a set wait for each other, and are together."""

    lanes: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class EachInTurn:
    """Execute statements once for each of several rows of values, one after the other.

    registers: they get the values of a row, each of its type; rows: these. lanes: those that are here, which begin each
    turn together.
    """

    registers: tuple[Register, ...]
    rows: tuple[tuple[Register | Constant, ...], ...]
    lanes: Register
    then: tuple[MapStatement, ...]
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Locate:
    """``destination``, a u64: the place in memory of a cell, which is a u64.

    cell: its number, a u32, or that of a group of so many words. base: the place of cell 0; None for the record's.
    """

    destination: Register
    cell: Register | Constant
    base: Register | None
    span: Span = field(compare=False)
    words: int = 1
    when: Register | None = None


@dataclass(frozen=True)
class At:
    """The cell that is so many after a place."""

    place: Register
    after: int


@dataclass(frozen=True)
class LoadCell:
    """``destination``, a u64: what a cell has in memory. Where ``when`` is false it has no meaning."""

    destination: Register
    cell: At
    span: Span = field(compare=False)
    when: Register | None = None


@dataclass(frozen=True)
class CompareAndSwap:
    """``destination``, a u64: what a cell had in memory. Where that is ``expected`` it gets ``desired``, at once for
    other threads."""

    destination: Register
    cell: At
    expected: Register | Constant
    desired: Register | Constant
    span: Span = field(compare=False)
    when: Register | None = None


@dataclass(frozen=True)
class OneOf:
    """One of two cells, by a predicate. then, otherwise: their numbers."""

    condition: Register
    then: int
    otherwise: int


@dataclass(frozen=True)
class AtomicUpdate:
    """``cell = operator(cell, value)`` in memory, at once for other threads.

    operator: ``ADD``, ``MIN``, ``MAX`` or ``OR``. cell: its number, or where it is. value: of the cell's type.
    """

    operator: Operator
    cell: int | OneOf | At
    value: Register | Constant
    span: Span = field(compare=False)
    when: Register | None = None


@dataclass(frozen=True)
class Elect:
    """``destination``, a predicate: whether this thread writes what a ``Collective`` gave, for all lanes that it was
    over: one of them; on targets that cannot combine lanes, where a result is the thread's own, each.

    reduction: of the ``Collective``. Of a ``SUM`` of floats, which is by a tree over the lanes, in their order, others
    have no result.
    """

    reduction: Reduction
    destination: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class OfLane:
    """``destination =`` what a register has in a lane, for lanes that are together and execute it with the same set.

    lane: its number, a u32, modulo the lanes of a warp. Of one that is not in the set it has no meaning. source: of 32
    or 64 bits.
    """

    destination: Register
    source: Register
    lane: Register | Constant
    lanes: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class SlotNumber:
    """``destination``, a u32: the number of this thread's slot, of its warp in the grid, at level block its block."""

    destination: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class HasSlot:
    """``destination``, a predicate: whether this thread has a slot, for which the launch has memory. At the levels warp
    and block only the first thread of each has one."""

    destination: Register
    span: Span = field(compare=False)


class Extent(enum.Enum):
    """What a launch has: units of a log that are each warp's own; warps that its memory has room for; warps of a
    block."""

    OWN_UNITS = "own_units"
    WARPS = "warps"
    WARPS_PER_BLOCK = "warps_per_block"


@dataclass(frozen=True)
class ReadExtent:
    """``destination``, a u32: a number of the launch, the same in all threads."""

    destination: Register
    extent: Extent
    span: Span = field(compare=False)


@dataclass(frozen=True)
class ReserveInLog:
    """Take units of a log's region, after all that were taken so far, at once for other threads.

    destination: a u32, the number of the first of them. fits: a predicate, whether there is memory for all of them.
    base: the place of the log's first control word. units: a u32, how many. In threads for which ``when`` is false
    neither result has a meaning. after_own: they come after the units that are warps' own, too. most: how many units
    are used of a region, at most; None for all.
    """

    destination: Register
    fits: Register
    base: Register
    units: Register
    when: Register | None
    span: Span = field(compare=False)
    after_own: bool = False
    most: int | None = None


@dataclass(frozen=True)
class Store:
    """Store numbers one after the other in memory, each in the bytes of the type; as u8 and u16 a u32 is cut.

    place: where, and ``after`` so many bytes after that, a multiple of all bytes.
    """

    place: Register
    after: int
    values: tuple[Register | Constant, ...]
    type: Type
    when: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Part:
    """A number of those that ``StoreTogether`` stores. after: so many bytes after the place. type: in memory, as of
    ``Store``."""

    after: int
    value: Register | Constant
    type: Type


@dataclass(frozen=True)
class StoreTogether:
    """Store numbers of any types, in as few stores as can be. parts: ascending. align: what the place and all that is
    ``after`` it are a multiple of, in bytes; after: so many bytes after the place the parts begin."""

    place: Register
    after: int
    parts: tuple[Part, ...]
    align: int
    when: Register | None
    span: Span = field(compare=False)


@dataclass(frozen=True)
class LoadStored:
    """``destination``, a u32: what this thread has stored so many bytes after a place.

    Where ``when`` is false it keeps its value."""

    destination: Register
    place: Register
    after: int
    when: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class EnsureRoom:
    """Make sure that a log has room for the next record of this thread, by what ``MapType.make_room`` returns.

    A target may do it at once for several saves that follow each other, and then leave out those of the others. when:
    of which threads; None for all.
    """

    when: Register | None
    span: Span = field(compare=False)


@dataclass(frozen=True)
class StoreSaved:
    """Store what a SAVE has for the fields as a record so many bytes after a place."""

    place: Register
    after: int
    when: Register
    span: Span = field(compare=False)


@dataclass(frozen=True)
class StoreRecord:
    """Store what a SAVE has for the fields as the next record of the slot of this thread, or of its warp or block, and
    count it, in the threads that save.

    In a full slot it replaces the oldest one if the map's type keeps the last records, else it is not stored.
    """

    span: Span = field(compare=False)


MapComputation = (
    Operation
    | Convert
    | Reinterpret
    | Compare
    | Select
    | Collective
    | ReadSaved
    | IsSaving
    | HasCondition
    | CompareAnd
    | Elect
    | Here
    | WereHere
    | OverLanes
    | IsAbsent
    | Below
    | Locate
    | LoadCell
    | CompareAndSwap
    | OfLane
    | SlotNumber
    | HasSlot
    | ReadExtent
    | ReserveInLog
    | LoadStored
)
"""A statement that assigns a value to its ``destination``. ``Collective`` is over the lanes that are here together."""

MapStatement = (
    MapComputation
    | When
    | Accumulate
    | AccumulateSaved
    | AtomicUpdate
    | Branch
    | Apart
    | Block
    | Leave
    | Meet
    | EachInTurn
    | EnsureRoom
    | Store
    | StoreTogether
    | StoreSaved
    | StoreRecord
)
"""A statement of a map type."""
