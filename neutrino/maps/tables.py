"""Adding saves to the entries of a table in memory: of keys that are searched for, and of sites.

A key has a fixed number of places, which are tried one after the other, without a branch; lanes of a warp with equal
keys add at once. Sites have cells by their numbers. The lanes of a warp together hold what is saved at the first
sites, twice as many as they are: lane n of site n. Where a lane ends, it adds what it holds to memory. Atomics at a
site are left to lanes that are together without the one that holds; and to further sites, where two lanes add two
neighbouring cells at once. Each site has a copy of this code, so that it is short: a kernel with many sites waits for
its instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neutrino.abi.levels import Level
from neutrino.ir.memory import At, Kept
from neutrino.ir.operands import Constant, Register, Special
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Combining, Lanes, Number, SavedValues
from neutrino.maps.declaration import Map
from neutrino.maps.regions import COPIES_MOST, most_copies
from neutrino.maps.sampling import draw_number
from neutrino.maps.table_layout import KeyTable

_MOST_GROUPS = 2
"""Of as many sites as there are lanes, that lanes hold."""
_BASE, _HELD, _OF_GROUP = 0, 1, 4
_LANE, _ONCE, _NEAR = 9, 10, 14
"""Keys of kept registers: of each group from ``_HELD`` on the count, the sum, the least and the greatest value; from
``_ONCE`` on the value at sites that are executed once, and whether there is one; from ``_NEAR`` on the same of the
first of these, whose cells lanes add to at once."""
_CELLS = 4
"""Of a site, with all aggregates."""
_MULTIPLIER = 0x9E3779B97F4A7C15
"""2 to the 64 divided by the golden ratio, so that keys at any stride spread over the table."""


def add_to_key(
    code: Builder, entry: Map, table: KeyTable, key: Register, values: Mapping[str, Register], saved: SavedValues,
    chosen: Register | None = None,
) -> None:  # fmt: skip
    """Append the code by which a probe saves a key and values: it searches a table for the key's entry and adds to it.

    key: a u64. values: for each aggregate ("sum", "min", "max") that the entry keeps, the value that it gets: unsigned
    numbers of 32 or 64 bits, or for a sum an f64. saved: what is known of the save. chosen: a predicate, which threads
    save if the save is for them; None for all.
    """
    saves = code.both(code.saving(saved), chosen)
    here = code.here() if combines(entry, table, saved.lanes) else None
    inner = code
    # Saves under a condition are rare: where no lane has one, the rest is left out.
    if saves and here and saved.may_branch:
        inner = code.inner()
    _add_found(inner, table, here, key, values, saves)
    if saves and here and inner is not code:
        code.branch(code.over(here, Reduction.ANY, saves), inner, code.inner())


def add_some(
    code: Builder, table: KeyTable, keys: Sequence[Register], conditions: Sequence[Register | None], sample: int
) -> None:
    """Append the code of several saves of which one in ``sample`` is counted, chosen by one number for as many.

    It is for lanes that find those with the same key. keys: a u64 for each save. conditions: of each, a predicate,
    which threads save; None for all.
    """
    for first in range(0, len(keys), sample):
        some = slice(first, first + sample)
        _add_one_of(code, table, keys[some], conditions[some], draw_number(code), (1 << 32) // sample)


def _add_one_of(
    code: Builder, table: KeyTable, keys: Sequence[Register], conditions: Sequence[Register | None], number: Register,
    step: int,
) -> None:  # fmt: skip
    """Append the code of several saves of which one at most is chosen: all of them share a search.

    number: a u32, by which each thread chooses: the first save below ``step``, the next one below twice that, and so
    on; none above all. The others are those of ``add_some``.
    """
    here = code.here()
    is_one = code.compare(Relation.LE, number, len(keys) * step - 1)
    inner = code.inner()
    key, chosen = keys[0], is_one
    # Numbers, since a predicate cannot be chosen.
    saving: list[Number] = [
        1 if condition is None else inner.select(condition, 1, 0, Type.U32) for condition in conditions
    ]
    saves = saving[0]
    for place in range(1, len(keys)):
        is_further = inner.compare(Relation.GE, number, place * step)
        key = inner.select(is_further, keys[place], key, Type.U64)
        if any(conditions):
            saves = inner.select(is_further, saving[place], saves, Type.U32)
    if isinstance(saves, Register):
        chosen = inner.compare(Relation.NE, saves, 0, is_one)
    _add_found(inner, table, here, key, {}, chosen)
    code.branch(code.over(here, Reduction.ANY, is_one), inner, code.inner())


def _add_found(
    code: Builder, table: KeyTable, here: Register | None, key: Register, values: Mapping[str, Register],
    saves: Register | None,
) -> None:  # fmt: skip
    """Append the search for a key's entry, and the updates of it. here: the lanes that execute this, where those with
    one key add once; None where each adds. saves: a predicate, which threads save; None for all."""
    adds, totals = _together(code, table, here, key, values, saves) if here else _alone(values, saves)
    place = _find(code, table, key, adds, reads_first=here is not None)
    # After the key.
    _add(code, table, place, 1, totals, adds)


def add_to_site(
    code: Builder, entry: Map, table: KeyTable, site: int, values: Mapping[str, Register], saved: SavedValues
) -> None:  # fmt: skip
    """Append the code by which a probe saves values under a key with a known number, whose cells need no search.

    site: the number. values: for each aggregate ("sum", "min", "max") the value that it gets. saved: what is known of
    the save.
    """
    saves, lanes = code.saving(saved), saved.lanes
    # One number of 32 bits, whatever is kept of it.
    value = next(iter(values.values()), None)
    is_short = all(each is value and each.type is Type.U32 for each in values.values())
    is_short = is_short and saved.may_branch and _can_reduce_over_lanes(entry, lanes)
    if is_short and value and saved.is_elected and not saved.is_rare and site < _MOST_GROUPS * lanes.number:
        _add_of_holder(code, table, site, value, saved)
        return
    if is_short:
        is_same = value is not None and saved.is_same(1)
        rare = entry if saved.is_rare else None
        _add_in_lane_registers(code, table, site, value, saves, lanes, is_same=is_same, rare=rare)
        return
    here = code.here() if combines(entry, table, lanes) else None
    inner = code
    # Where no lane saves, the rest is left out.
    if saves and here and saved.may_branch:
        inner = code.inner()
    adds, totals = _together(inner, table, here, None, values, saves) if here else _alone(values, saves)
    _add(inner, table, _site_base(inner, entry, table), table.count_of(site), totals, adds)
    if saves and here and inner is not code:
        code.branch(code.over(here, Reduction.ANY, saves), inner, code.inner())


def add_to_numbered_site(
    code: Builder, entry: Map, table: KeyTable, site: Register, values: Mapping[str, Register], saved: SavedValues
) -> None:  # fmt: skip
    """Append the code by which each thread saves values under a site whose number is known at run time alone.

    The parameters are those of ``add_to_site``, with the number in a register.
    """
    own = saved.own_sites()
    if own and _add_to_own_sites(code, entry, table, own, site, values, saved):
        return
    adds, totals = _alone(values, code.saving(saved))
    stride = table.known.stride
    fits = code.compare(Relation.LT, site, table.place_words // stride)
    word = code.select(fits, code.compute(Operator.MUL, site, stride), table.count_of(table.place_words), Type.U32)
    _add(code, table, code.locate(word, _site_base(code, entry, table)), 0, totals, adds)


def _add_to_own_sites(
    code: Builder, entry: Map, table: KeyTable, sites: Sequence[int], site: Register, values: Mapping[str, Register],
    saved: SavedValues,
) -> bool:  # fmt: skip
    """Append the code by which each lane saves values under a site whose values it holds in registers.

    sites: those for which lanes save. site: the register with the number of the lane's own. The others are those of
    ``add_to_site``. Returns False, and has appended nothing, if lanes hold not all of the sites.
    """
    value = next(iter(values.values()), None)
    is_short = all(each is value and each.type is Type.U32 for each in values.values())
    if not is_short or sites[-1] >= _MOST_GROUPS * saved.lanes.number or not _can_reduce_over_lanes(entry, saved.lanes):
        return False
    saves = code.saving(saved)
    groups = sorted({number // saved.lanes.number for number in sites})
    for group in groups:
        when = saves
        if len(groups) > 1:
            relation = Relation.GE if group == groups[-1] else Relation.LT
            when = code.compare(relation, site, groups[-1] * saved.lanes.number, saves)
        registers = _registers(code, table, group)
        code.change(registers["count"], Operator.ADD, 1, when)
        for name in table.keep:
            total: Register | None = value
            if total is not None and name == "sum":
                total = code.convert(Type.U64, total)
            if total is not None:
                code.change(registers[name], _OPERATORS[name], total, when)
    return True


def begin_sites(code: Builder, entry: Map, table: KeyTable, kept: Sequence[Kept]) -> None:
    """Append the code for a kernel's start that sets the register with the address of known keys' cells, if saves use
    it.

    kept: the registers that saves to the map keep to the thread's end.
    """
    keys = {register.key for register in kept}
    if (_BASE,) in keys:
        code.change(_base(code), Operator.MOVE, _site_base(code, entry, table))
    if (_LANE,) in keys:
        code.change(_lane(code), Operator.MOVE, code.lane())


def bring_sites(code: Builder, entry: Map, table: KeyTable, kept: Sequence[Kept], lanes: Lanes) -> None:
    """Append the code for a thread's end that adds to memory what its lane holds in registers for known keys.

    kept: the registers that saves to the map keep, whose ``key`` says what each holds.
    """
    keys = {register.key for register in kept}
    if (_NEAR,) in keys:
        _bring_near(code, entry, table, lanes, has_base=(_BASE,) in keys)
    for group in range(_MOST_GROUPS):
        is_held, is_once = (_HELD + _OF_GROUP * group,) in keys, (_ONCE + 2 * group,) in keys
        if not is_held and not is_once:
            continue
        registers: Mapping[str, Register] = _registers(code, table, group) if is_held else {}
        if is_once:
            registers = _with_once(code, table, group, registers)
        base = _base(code) if (_BASE,) in keys else _site_base(code, entry, table)
        place = code.locate(_lane(code) if (_LANE,) in keys else code.lane(), base, table.known.stride)
        _bring(code, table, place, group * lanes.number * table.known.stride, registers)


def _bring(code: Builder, table: KeyTable, place: Register, first: int, registers: Mapping[str, Register]) -> None:
    """Append the code by which each lane adds what it holds of a site to memory. first: the site's first word after
    place."""
    holding = code.inner()
    updates = _updates(holding, table, registers)
    # Most warps raise nothing, and what another one raises meanwhile only gets greater: a load costs less than an
    # atomic.
    found = {
        word: holding.load(At(place, first + word))
        for word, (operator, _) in enumerate(updates)
        if operator is Operator.MAX
    }
    for word, (operator, value) in enumerate(updates):
        when = holding.compare(Relation.LT, found[word], value) if word in found else None
        holding.update(operator, At(place, first + word), value, when)
    code.apart(code.compare(Relation.NE, registers["count"], 0), holding)


def _bring_near(code: Builder, entry: Map, table: KeyTable, lanes: Lanes, *, has_base: bool) -> None:
    """Append the code that adds what lanes hold of the first sites to memory: where all lanes are here, each changes
    one cell, so that memory has one access for all counts and sums, and loads one for all extremes.

    has_base: the register with the address of the cells is set.
    """
    here = code.here()
    together, apart = code.inner(), code.inner()
    lane = code.lane()
    base = _base(code) if has_base else _site_base(code, entry, table)
    value, is_there = _once(code, _NEAR)
    site, cell = together.compute(Operator.SHR, lane, 2), together.compute(Operator.AND, lane, _CELLS - 1)
    own, saved = together.of_lane(value, site, here), together.of_lane(is_there, site, here)
    place = together.locate(lane, base)
    exists = together.compare(Relation.NE, saved, 0)
    adds = together.compare(Relation.LT, cell, 2, exists)
    raises = together.compare(Relation.GE, cell, 2, exists)
    number = together.convert(Type.U64, together.select(together.compare(Relation.EQ, cell, 0), saved, own, Type.U32))
    wide = together.convert(Type.U64, own)
    is_least = together.compare(Relation.EQ, cell, 2)
    extreme = together.select(is_least, together.compute(Operator.NOT, wide), wide, Type.U64)
    together.update(Operator.ADD, At(place, 0), number, adds)
    found = together.load(At(place, 0), raises)
    together.update(Operator.MAX, At(place, 0), extreme, together.compare(Relation.LT, found, extreme, raises))
    registers: dict[str, Register] = {"count": apart.convert(Type.U64, is_there), "sum": apart.convert(Type.U64, value)}
    _bring(apart, table, apart.locate(lane, base, _CELLS), 0, registers | {"min": value, "max": value})
    size = code.compute(Operator.POPC, here, type_=Type.U32)
    code.branch(code.compare(Relation.EQ, size, lanes.number), together, apart)


def _add_of_holder(code: Builder, table: KeyTable, site: int, value: Register, saved: SavedValues) -> None:
    """Append the code that adds one save for all lanes here: by the lane that holds the site's values, if it is here.

    It adds its own value; else the lowest lane adds its own to memory. value: what is saved, a u32.
    """
    group, holder = divmod(site, saved.lanes.number)
    holds = code.compare(Relation.EQ, _lane(code), holder)
    if saved.is_whole:
        near = {*table.keep} == {"sum", "min", "max"} and site < saved.lanes.number // _CELLS
        last, is_there = _once(code, _NEAR if near else _ONCE + 2 * group)
        code.change(last, Operator.MOVE, value, holds)
        code.change(is_there, Operator.MOVE, 1, holds)
        return
    here = code.here()
    registers = _registers(code, table, group)
    holding, apart, adding = code.inner(), code.inner(), code.inner()
    totals: dict[str, Register | Constant] = {"count": Constant(Type.U64, 1), **dict.fromkeys(table.keep, value)}
    for name, register in registers.items():
        total = totals[name]
        if isinstance(total, Register) and register.type is Type.U64:
            total = holding.convert(Type.U64, total)
        holding.change(register, _OPERATORS[name], total if isinstance(total, Register) else 1)
    # Instructions under a predicate, and no branch, in the machine code.
    code.apart(holds, holding)
    below = apart.below(here)
    # Zero is added: for a place that is the same in all lanes some targets would add up over the lanes once more.
    place = adding.locate(adding.convert(Type.U32, below), _base(code))
    _add(adding, table, place, table.count_of(site), totals, None)
    apart.apart(apart.compare(Relation.EQ, below, Constant(Type.LANES, 0)), adding, here)
    code.branch(code.absent(here, holder), apart, code.inner())


def _with_once(code: Builder, table: KeyTable, group: int, held: Mapping[str, Register]) -> dict[str, Register]:
    """Return by name what each lane holds of its site, where some sites of a group are executed once.

    held: the registers for the others, none without such sites. A lane holds the values of one site, which is of one
    kind.
    """
    value, is_there = _once(code, _ONCE + 2 * group)
    registers = {"count": code.convert(Type.U64, is_there)}
    for name in table.keep:
        registers[name] = code.convert(Type.U64, value) if name == "sum" else value
    if held:
        exists = code.compare(Relation.NE, is_there, 0)
        registers = {name: code.select(exists, one, held[name], held[name].type) for name, one in registers.items()}
    return registers


def _add_in_lane_registers(
    code: Builder, table: KeyTable, site: int, value: Register | None, saves: Register | None, lanes: Lanes, *,
    is_same: bool, rare: Map | None,
) -> None:  # fmt: skip
    """Append the code that adds a save, for the whole warp, to registers of the one lane that holds its site's values.

    Lane n holds what is saved at site n, so that memory is changed at the warp's end only. If that lane is not here, or
    for sites beyond the lanes' registers, memory is changed. value: what is saved, a u32, None without. saves: a
    predicate, None for always. is_same: the value is the same in all lanes. rare: the map, if the code is nearly never
    run: then memory is changed, and no register is kept.
    """
    is_held, keep = site < _MOST_GROUPS * lanes.number and rare is None, table.keep
    here = saving = code.here()
    if saves:
        saving = code.over(here, Reduction.BALLOT, saves)
    least = value
    if value and saves and not is_same:
        least, value = code.select(saves, value, -1, Type.U32), code.select(saves, value, 0, Type.U32)
    number = code.compute(Operator.POPC, saving, type_=Type.U32)
    least_of = greatest_of = None
    if value and is_same:
        # Without lanes that save, nothing changes.
        is_any = code.compare(Relation.NE, number, 0) if saves and keep != ("sum",) else None
        least_of = code.select(is_any, value, -1, Type.U32) if is_any and "min" in keep else value
        greatest_of = code.select(is_any, value, 0, Type.U32) if is_any and "max" in keep else value
    elif value:
        least_of = code.over(here, Reduction.MIN, least) if least and "min" in keep else None
        greatest_of = code.over(here, Reduction.MAX, value) if "max" in keep else None
    totals: dict[str, Register | Constant] = {}
    if least_of and "min" in keep:
        totals["min"] = least_of
    if greatest_of and "max" in keep:
        totals["max"] = greatest_of
    # The sum of a value that is the same in all lanes is a product. Of others it is seen while the kernel runs, where
    # the least and the greatest are at hand: clocks mostly are.
    is_tested = not is_same and is_held and {"sum", "min", "max"} == set(keep)
    factor = value if is_same else least_of if is_tested else None
    if value and "sum" in keep and not factor:
        totals["sum"] = code.over(here, Reduction.SUM, value, Type.U64)
    together, apart = code.inner(), code.inner()
    if is_held:
        group, holder = divmod(site, lanes.number)
        registers = _registers(code, table, group)
        leads = together.compare(Relation.EQ, together.lane(), holder)
        count = together.convert(Type.U64, number)
        together.change(registers["count"], Operator.ADD, count, leads)
        for name in keep:
            total = totals.get(name)
            if total is not None:
                together.change(registers[name], _OPERATORS[name], total, leads)
            elif factor is not None:
                together.add_product(registers[name], factor, number, leads)
    memory = apart if is_held else code
    if value and is_tested:
        totals["sum"] = memory.over(here, Reduction.SUM, value, Type.U64)
    elif value and is_same and "sum" in keep:
        totals["sum"] = memory.compute(Operator.MUL, memory.convert(Type.U64, value), memory.convert(Type.U64, number))
    below = memory.below(here)
    shares = not is_held and rare is None and ("sum" in keep or {"min", "max"} <= set(keep))
    if shares:
        # The lanes here by number. The lowest two add.
        rank = memory.compute(Operator.POPC, below, type_=Type.U32)
        leads = memory.compare(Relation.LT, rank, 2)
    else:
        rank = None
        leads = memory.compare(Relation.EQ, below, Constant(Type.LANES, 0))
    if saves:
        leads = memory.compute(Operator.AND, memory.compare(Relation.NE, number, 0), leads)
    adding = memory.inner()
    totals["count"] = adding.convert(Type.U64, number)
    base = _base(code) if rare is None else _site_base(adding, rare, table)
    if rank:
        size = adding.compute(Operator.POPC, here, type_=Type.U32) if saves else number
        _add_by_two(adding, table, base, table.count_of(site), totals, rank, size)
    else:
        # Zero is added: for a place that is the same in all lanes some targets would add up over the lanes once more.
        place = adding.locate(adding.convert(Type.U32, below), base)
        _add(adding, table, place, table.count_of(site), totals, None)
    memory.apart(leads, adding, here)
    if is_held:
        condition = code.absent(here, holder)
        if is_tested and least_of and greatest_of:
            differs = code.compare(Relation.NE, least_of, greatest_of)
            condition = code.compute(Operator.OR, differs, condition)
        code.branch(condition, apart, together)


_OPERATORS = {"count": Operator.ADD, "sum": Operator.ADD, "min": Operator.MIN, "max": Operator.MAX}


def _registers(code: Builder, table: KeyTable, group: int) -> dict[str, Kept]:
    """Return by name the registers in which each lane holds one key's values: the count and the sum have 64 bits,
    others 32.

    group: the lane holds the key with number ``group * lanes + lane``.
    """
    first = _HELD + _OF_GROUP * group
    registers = {"count": code.kept(first)}
    forms = {"sum": (1, Type.U64, 0), "min": (2, Type.U32, (1 << 32) - 1), "max": (3, Type.U32, 0)}
    for name in table.keep:
        number, type_, initial = forms[name]
        registers[name] = code.kept(first + number, type_=type_, initial=initial)
    return registers


def _once(code: Builder, first: int) -> tuple[Kept, Kept]:
    """Return the registers for sites that are executed once: the value, and whether there is one, 1 or 0. first: key of
    the first."""
    return code.kept(first, type_=Type.U32), code.kept(first + 1, type_=Type.U32)


def _lane(code: Builder) -> Kept:
    """Return the register with the thread's lane, which is read once: reading the special register takes long."""
    return code.kept(_LANE, type_=Type.U32)


def _alone(
    values: Mapping[str, Register], saves: Register | None
) -> tuple[Register | None, dict[str, Register | Constant]]:
    """Return what each thread adds to a table by itself: a predicate, whether it does; by name the count 1 and the
    values."""
    return saves, {"count": Constant(Type.U64, 1), **values}


def _together(
    code: Builder, table: KeyTable, here: Register, key: Register | None, values: Mapping[str, Register],
    saves: Register | None,
) -> tuple[Register, dict[str, Register | Constant]]:  # fmt: skip
    """Return what the lanes with one key add together: a predicate, true in the lowest of them, which adds; the totals.

    here: the lanes that execute this. key: None if all have the same. values: by aggregate. saves: a predicate, None
    for always. The totals are by name, "count" among them.
    """
    same = here if key is None else code.over(here, Reduction.MATCH, key)
    if saves:
        # Lanes that save nothing are a group of their own: each operation between lanes is executed by all of its set.
        saving = code.over(here, Reduction.BALLOT, saves)
        others = code.compute(Operator.NOT, saving)
        same = code.compute(Operator.AND, same, code.select(saves, saving, others, Type.LANES))
    leads = code.lowest(same)
    if saves:
        leads = code.compute(Operator.AND, leads, saves)
    totals: dict[str, Register | Constant] = {"count": code.size(same)}
    for name, value in values.items():
        if name == "sum":
            totals[name] = code.over(same, Reduction.SUM, value, Type.F64 if value.type.is_float else Type.U64)
        else:
            totals[name] = code.over(same, Reduction.MIN if name == "min" else Reduction.MAX, value)
    return leads, totals


def _find(
    code: Builder, table: KeyTable, key: Register, adds: Register | None, *, reads_first: bool
) -> Register:  # fmt: skip
    """Append the search for a key's entry in a hash table; return its address, or the last entry's if the key finds no
    place.

    A free entry is taken by an atomic compare-and-swap. The search starts at a hash of the key, and tries
    ``table.probes`` places. adds: a predicate, which threads search; None for all. reads_first: a place is read before,
    and one that is taken gets no compare-and-swap, which takes longer. An entry never changes its key.
    """
    places, base = table.places, code.base()
    word = code.compute(Operator.NOT, key)
    # The upper half of the product depends on all bits of the key.
    mixed = code.compute(Operator.XOR, code.compute(Operator.SHR, key, 32), key)
    mixed = code.compute(Operator.SHR, code.compute(Operator.MUL, mixed, _MULTIPLIER), 32)
    first = code.convert(Type.U32, mixed)
    place = code.compute(Operator.SHR, first, 32 - (places.bit_length() - 1))
    # Odd, so that all places would be tried in turn.
    step = code.compute(Operator.OR, first, 1)
    # The key whose inverse is 0 has an entry of its own: nothing is put into it, and it is found at once.
    place = code.select(code.compare(Relation.EQ, word, 0), places, place, Type.U32)
    old, found = code.variable(Constant(Type.U64, 0)), code.variable(base)
    searches = adds or code.variable(Constant(Type.PRED, 1))
    for number in range(table.probes):
        if number:
            place = code.compute(Operator.AND, code.compute(Operator.ADD, place, step), places - 1)
        code.relocate(found, place, base, table.words, searches)
        takes = searches
        if reads_first:
            code.change(old, Operator.MOVE, code.load(At(found, 0), searches))
            takes = code.compare(Relation.EQ, old, 0, searches)
        code.swap(old, At(found, 0), 0, word, takes)
        # Neither free nor the key's.
        searches = code.compute(Operator.AND, code.compare(Relation.NE, old, 0), searches)
        searches = code.compute(Operator.AND, code.compare(Relation.NE, old, word), searches)
    lost = code.locate(places + 1, base, table.words)
    return code.select(searches, lost, found, Type.U64)


def _updates(
    code: Builder, table: KeyTable, totals: Mapping[str, Register | Constant]
) -> list[tuple[Operator, Register | Constant]]:
    """Return the operation and value that change each word of a table's entry after its key, in their order.

    totals: by name, the count and the aggregates. A minimum is kept inverted, as a maximum.
    """
    updates: list[tuple[Operator, Register | Constant]] = [(Operator.ADD, totals["count"])]
    for name in table.keep:
        wide = totals[name]
        if isinstance(wide, Register) and wide.type.bits < 64:
            wide = code.convert(Type.U64, wide)
        if isinstance(wide, Register) and name == "min":
            wide = code.compute(Operator.NOT, wide)
        updates.append((Operator.ADD if name == "sum" else Operator.MAX, wide))
    return updates


def _add(
    code: Builder, table: KeyTable, place: Register, count: int, totals: Mapping[str, Register | Constant],
    when: Register | None,
) -> None:  # fmt: skip
    """Append the atomic updates of a key's count and aggregates in memory. when: a predicate, None for always.

    place: an address in the table. count: how many words after it the count is. totals: by name, what is added.
    """
    # Next to each other, so that in the machine code one branch skips all of them.
    for word, (operator, value) in enumerate(_updates(code, table, totals), count):
        code.update(operator, At(place, word), value, when)


def _add_by_two(
    code: Builder, table: KeyTable, base: Register, count: int, totals: Mapping[str, Register | Constant],
    rank: Register, size: Register,
) -> None:  # fmt: skip
    """Append the updates that ``_add`` would, each pair of them done by two lanes at once, as one access.

    Each lane changes one of two neighbouring cells that are updated alike. rank: number of the lane among those here.
    size: how many they are, a u32.
    """
    place = code.locate(rank, base)
    is_first = code.compare(Relation.EQ, rank, 0)
    # Without a second lane the first one does its part, too.
    is_alone = code.compare(Relation.LT, size, 2)
    updates = _updates(code, table, totals)
    words = iter(enumerate(updates, count))
    for word, (operator, value) in words:
        # The next cell has to be changed by the same operation; else the first lane alone changes this one.
        after = word + 1 - count
        if after == len(updates) or updates[after][0] is not operator:
            code.update(operator, At(place, word), value, is_first)
            continue
        # The first lane, at the word, gets the value; the second one, which is a cell further, the other value.
        _, (_, other) = next(words)
        code.update(operator, At(place, word), code.select(is_first, value, other, Type.U64), None)
        code.update(operator, At(place, word + 1), other, is_alone)


def _site_base(code: Builder, entry: Map, table: KeyTable) -> Register:
    """Return the address of the cells of the key with number 0 that this thread uses.

    Where the table has room for several sets of cells, threads on different multiprocessors use different ones, so that
    they wait less for each other.
    """
    base = code.base()
    # The copy is chosen by the lower bits of the multiprocessor's number, the set of cells in it by those above.
    copies = most_copies(entry.kind, entry.size)
    words = table.known.period * table.known.stride
    # A power of two, so that an AND gives each its number.
    uses = min(1 << (table.place_words // words).bit_length() - 1, COPIES_MOST // copies) if words else 1
    if uses < 2:
        return base
    unit = code.compute(Operator.SHR, code.special(Special.CUID), copies.bit_length() - 1)
    use = code.compute(Operator.AND, unit, uses - 1)
    return code.locate(use, base, words)


def _base(code: Builder) -> Kept:
    """Return the register that holds the address of the cells of known keys up to the thread's end."""
    return code.kept(_BASE)


def _can_reduce_over_lanes(entry: Map, lanes: Lanes) -> bool:
    """Return whether the lanes of a warp can add up what they save before memory is changed, on this target and in this
    map."""
    return entry.level is Level.THREAD and lanes.combining is Combining.REDUCE


def combines(entry: Map, table: KeyTable, lanes: Lanes) -> bool:
    """Return whether lanes of a warp that save the same key find each other and add once for all, as far as the target
    can."""
    needed = (Combining.REDUCE,) if table.keep else (Combining.REDUCE, Combining.MATCH)
    return entry.level is Level.THREAD and lanes.combining in needed
