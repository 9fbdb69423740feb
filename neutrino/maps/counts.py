"""Counting to cells whose number is computed, by as few atomics as lanes can do with.

Up to 64 cells of a warp of 32 lanes, or 128 of one of 64, are held by its lanes together: lane n has the warp's counts
of cell n, and of that after all lanes. Of more cells each thread counts the last one that it came to, since values
repeat: bytes of an access, trips of a loop. What is counted so goes to memory where the cell changes, or the thread
ends. Where lanes cannot do so, those of one cell add up what they count, and the lowest of them adds it to memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.abi.levels import Level, Per
from neutrino.abi.records import Field
from neutrino.ir.memory import At, Kept
from neutrino.ir.operands import Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Combining, Lanes, SavedValues
from neutrino.maps.declaration import Map

_NONE = (1 << 32) - 1
"""The cell of threads that count nothing."""
_MOST_GROUPS = 2
"""Of as many cells as there are lanes, that lanes hold."""
_MOST = 1 << 25
"""What a thread counts in its register, so that the sum over 64 lanes fits in 32 bits."""
_MOST_DIFFERENCE = 1 << 16
"""Of two values that are added up, so that a sum of them does not exceed 64 bits, however often a thread saves."""
_BASE, _HELD, _LAST, _COUNT = 0, 1, 3, 4
"""Keys of kept registers: ``_HELD`` is the first of as many as there are groups. Those of ``count_either``
have three."""


def count_at(code: Builder, entry: Map, cell: Register, cells: int, saved: SavedValues) -> None:
    """Append the code that adds one to the histogram cell whose number is in a register, in threads that save.

    Lanes of a warp that count to the same cell add once for all, as far as the target can do that. cells: how many the
    record has. saved: what is known of the save.
    """
    saves, lanes = code.saving(saved), saved.lanes
    # Whether no lanes have anything to add together: one thread counts for its warp, or each has a row of its own.
    alone = entry.level is not Level.THREAD or entry.per is Per.THREAD
    if alone or lanes.combining is Combining.NOTHING:
        code.update(Operator.ADD, At(code.locate(cell), 0), 1, saves)
    elif lanes.combining is not Combining.REDUCE or not saved.may_branch:
        cell = code.select(saves, cell, _NONE, Type.U32) if saves else cell
        _add_by_cell(code, cell, code.here(), None, saves)
    elif cells <= _MOST_GROUPS * lanes.number:
        base = None if saved.is_rare else _base(code)
        _count_in_lane_registers(code, cell, -(-cells // lanes.number), base, saves, lanes)
    else:
        _count_while_same_cell(code, cell, saves)


def can_count_either(values: Sequence[int]) -> bool:
    """Return whether ``count_either`` can be used for values: there must be two, not far from each other."""
    return len(values) == 2 and values[1] - values[0] <= _MOST_DIFFERENCE


def count_either(
    code: Builder, field: Field, values: Sequence[int], cells: Sequence[int], saved: SavedValues
) -> None:  # fmt: skip
    """Append the code that counts, in registers, which of two known values is saved, each in its own cell of a
    histogram.

    values: both, ascending. cells: the number of the cell of each. Memory is changed at the thread's end only.
    """
    if cells[0] == cells[1]:
        code.accumulate(cells[0], 1, code.saving(saved))
        return
    # All are counted in the first cell. A register adds up the value less the first one; that divided by the difference
    # of both is the second one's count. So it takes no comparison, and hardly more than an addition.
    low, high = values
    value, saves = code.saved(0, field), code.saving(saved)
    code.accumulate(cells[0], 1, saves)
    wide = value if value.type.bits == 64 else code.convert(Type.U64, value)
    above = code.kept(high - low, *cells, type_=Type.U64)
    code.change(above, Operator.ADD, wide, saves)
    if low:
        code.change(above, Operator.SUB, low, saves)


def begin_counts(code: Builder, kept: Sequence[Kept]) -> None:
    """Append the code for a kernel's start that sets the register with the address of the map's record, if saves use
    it.

    kept: the registers that saves to the map have asked for.
    """
    if any(register.key == (_BASE,) for register in kept):
        code.change(_base(code), Operator.MOVE, code.base())


def bring_counts(code: Builder, kept: Sequence[Kept], lanes: Lanes) -> None:
    """Append the code for a thread's end that adds to memory what the thread has counted in registers.

    kept: the registers that saves to the map have asked for, whose ``key`` says what each holds.
    """
    differences = [register for register in kept if len(register.key) > 1]
    for above in differences:
        # From count_either: the difference of its two values, and the cells of both.
        difference, first, second = above.key
        is_power_of_two = not difference & (difference - 1)
        divisor = difference.bit_length() - 1 if is_power_of_two else difference
        count = code.compute(Operator.SHR if is_power_of_two else Operator.DIV, above, divisor, type_=Type.U64)
        code.accumulate(second, count)
        code.accumulate(first, count, operator=Operator.SUB)
    keys = sorted(register.key[0] for register in kept if register not in differences)
    # From _count_in_lane_registers: lane n has the count of cell n of each group of as many cells as there are lanes.
    held = [key for key in keys if _HELD <= key < _HELD + _MOST_GROUPS]
    if held:
        lane = code.lane()
        base = _base(code) if _BASE in keys else None
        for key in held:
            count = code.kept(key)
            holds = code.compare(Relation.NE, count, 0)
            place = At(code.locate(lane, base), lanes.number * (key - _HELD))
            code.update(Operator.ADD, place, count, holds)
    if _LAST in keys:
        here = code.here()
        _add_register_counts(code, here, code.compare(Relation.NE, code.kept(_COUNT, type_=Type.U32), 0))


def _count_in_lane_registers(
    code: Builder, cell: Register, groups: int, base: Kept | None, saves: Register | None, lanes: Lanes
) -> None:  # fmt: skip
    """Append the code that counts in a lane's register where all lanes here count to the same cell, else in memory.

    Lane n keeps the counts of cells n, n + the number of lanes, and so on, a register (group) each. Where cells differ,
    or the lane in question is not here, memory is changed. cell: its number. base: address of cell 0, None
    for the record's. saves: a predicate, None for always.
    """
    here = saving = code.here()
    if saves:
        saving = code.over(here, Reduction.BALLOT, saves)
        cell = code.select(saves, cell, _NONE, Type.U32)
    # Whether some lane counts to another cell than the others.
    least = code.over(here, Reduction.MIN, cell)
    differs = code.compare(Relation.NE, cell, least)
    if saves:
        differs = code.compute(Operator.AND, differs, saves)
    some = code.over(here, Reduction.ANY, differs)
    holder = code.compute(Operator.AND, least, lanes.number - 1)
    # The lane that holds the cell has to be here.
    some = code.compute(Operator.OR, some, code.absent(here, holder))
    number = code.size(saving)
    together, apart = code.inner(), code.inner()
    leads = together.compare(Relation.EQ, together.lane(), holder)
    for group in range(groups):
        holds = leads
        if groups > 1:
            of_group = together.compare(Relation.GE if group else Relation.LT, least, lanes.number)
            holds = together.compute(Operator.AND, of_group, leads)
        together.change(together.kept(_HELD + group), Operator.ADD, number, holds)
    _add_by_cell(apart, cell, here, base, saves)
    code.branch(some, apart, together)


def _count_while_same_cell(code: Builder, cell: Register, saves: Register | None) -> None:
    """Append the code that counts in a register as long as a thread counts to the same cell as the time before.

    Where the cell changes in any lane, the count so far is first added to memory, to the cell that it belongs to.
    """
    last, count = code.kept(_LAST, type_=Type.U32), code.kept(_COUNT, type_=Type.U32)
    here = code.here()
    if saves:
        # In the others the cell stays.
        cell = code.select(saves, cell, last, Type.U32)
    changes = code.compare(Relation.NE, cell, last)
    # Nor does a count grow beyond its register.
    changes = code.compute(Operator.OR, code.compare(Relation.GE, count, _MOST), changes)
    changing = code.inner()
    _add_register_counts(changing, here, changes)
    changing.change(last, Operator.MOVE, cell, changes)
    changing.change(count, Operator.MOVE, 0, changes)
    code.branch(code.over(here, Reduction.ANY, changes), changing, code.inner())
    code.change(count, Operator.ADD, 1, saves)


def _add_register_counts(code: Builder, here: Register, adds: Register) -> None:
    """Append the code that adds each thread's count in a register to the cell in memory that it belongs to.

    It is that to which the thread counted last. here: the lanes that execute this. adds: a predicate, which of them
    add. Lanes with the same cell add once for all.
    """
    # Other lanes are a group of their own: each operation between lanes is executed by all of its set.
    cell = code.select(adds, code.kept(_LAST, type_=Type.U32), _NONE, Type.U32)
    same = code.over(here, Reduction.MATCH, cell)
    total = code.over(same, Reduction.SUM, code.kept(_COUNT, type_=Type.U32))
    leads = code.compute(Operator.AND, code.lowest(same), adds)
    leads = code.compute(Operator.AND, code.compare(Relation.NE, total, 0), leads)
    amount = code.convert(Type.U64, total)
    code.update(Operator.ADD, At(code.locate(cell), 0), amount, leads)


def _add_by_cell(
    code: Builder, cell: Register, here: Register, base: Kept | None, saves: Register | None
) -> None:  # fmt: skip
    """Append the code that counts in memory: of the lanes that count to the same cell, the lowest adds how many they
    are.

    cell: ``_NONE`` in lanes that count nothing, which are a group of their own. here: the lanes that execute this.
    base: address of cell 0, None for the record's. saves: a predicate, None if all lanes count.
    """
    same = code.over(here, Reduction.MATCH, cell)
    leads = code.lowest(same)
    if saves:
        leads = code.compute(Operator.AND, code.compare(Relation.NE, cell, _NONE), leads)
    amount = code.size(same)
    code.update(Operator.ADD, At(code.locate(cell, base), 0), amount, leads)


def _base(code: Builder) -> Kept:
    """Return the register that holds the address of the first cell of the map's record up to the thread's end."""
    return code.kept(_BASE)
