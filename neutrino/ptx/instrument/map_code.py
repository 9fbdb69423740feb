"""The statements of map types as PTX: code for the saves of probes, and for the end of a thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from neutrino.abi.levels import Level, Per
from neutrino.ir.memory import (
    Accumulate,
    AccumulateSaved,
    Apart,
    AtomicUpdate,
    Block,
    Branch,
    CompareAndSwap,
    Elect,
    EnsureRoom,
    HasCondition,
    HasSlot,
    Here,
    IsSaving,
    Locate,
    MapStatement,
    OfLane,
    OverLanes,
    ReadSaved,
    ReserveInLog,
    SlotNumber,
    Store,
    StoreRecord,
    StoreSaved,
    StoreTogether,
)
from neutrino.ir.memory import Kept as TypeKept
from neutrino.ir.operands import Constant, Register, SavedOperand
from neutrino.ir.statements import Collective, Reduction
from neutrino.ir.types import Type
from neutrino.maps.builder import Combining, Lanes
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.float_sums import has_floats
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import Save, constant_key
from neutrino.ptx.instrument.lanes_together import MATCHES, REDUCES, EndingThreads, check_architecture
from neutrino.ptx.instrument.log_code import DeferredSaves, Gathered, GatheredCode, PendingSave, RoomMark
from neutrino.ptx.instrument.map_memory import AtMap
from neutrino.ptx.instrument.map_statements import Part, registers_in, save_cache
from neutrino.ptx.instrument.probe_block import Noted, ProbeBlock, Slots
from neutrino.ptx.instrument.records import (
    Code,
    Records,
    Saved,
    Written,
    as_bits,
    converted,
    takes_whole,
)
from neutrino.ptx.instrument.registers import Guard, LongLived, Take, Value, guarded, positive
from neutrino.ptx.instrument.sums import Sums
from neutrino.ptx.instrument.templates import Template, as_format, placeholder
from neutrino.ptx.isa.scalars import WARP_LANES, known_integer
from neutrino.ptx.text.inserted import Lines, Scope, mem, op

VERSION = (6, 2)
"""The ``.version`` that code between lanes needs, on architectures that have it; ``redux.sync`` has one of its own."""


def save_version(entry: Map, architecture: int) -> tuple[int, int]:
    """Return the PTX ``.version`` that saves to a map (a table or log of a probe) need, (0, 0) for any. architecture:
    80 for sm_80."""
    combines = entry.kind.combines_lanes or has_floats(entry.fields)
    return VERSION if combines and architecture >= MATCHES else (0, 0)


_OF_PLACE = (
    ReadSaved, IsSaving, HasCondition, SlotNumber, HasSlot, Accumulate, AccumulateSaved, EnsureRoom, StoreSaved,
    StoreRecord,
)  # fmt: skip
"""Statements whose code depends on the place."""
_STORES = (
    Here, OverLanes, OfLane, Locate, AtomicUpdate, CompareAndSwap, ReserveInLog, EnsureRoom, Store, StoreTogether,
    Branch, Apart, Block,
)  # fmt: skip
"""Statements that may not stand between a product and its sum, nor may what follows them."""


_MOST_TEMPLATES = 128
"""Of a map, which are remembered: each has some hundred lines."""
ConstantAdds = dict[tuple[int, int], int]
"""How much all threads add at a place to cells of maps in registers, by map and cell: (map number, cell number)."""


class MapCode:
    """Writes one body's code for the maps of probes. prefix: starts every private register.

    take: gives a new register of a type (``Take``). changed: gets the names of registers that the code writes. records,
    sums: write the parts of the code that are about these. architecture: 80 for ``sm_80``. kernel: for the body of a
    function that a kernel calls, that of the kernel; else None. sites: see ``Emission``.
    """

    def __init__(
        self, probes: ProbeSet, prefix: str, block: ProbeBlock, take: Take, changed: set[str], records: Records,
        sums: Sums, architecture: int, kernel: MapCode | None, sites: int | None,
    ) -> None:  # fmt: skip
        """Set up a writer of one body's code for the maps (tables and logs) of probes. take: gives a new register of a
        type. changed: gets the names of registers that the code writes. Others: see the class."""
        self.keyed_by_site = probes.keyed_by_site
        self.is_straight = probes.apart is not None
        self.maps: Sequence[Map] = kernel.maps if kernel else _fitting(probes, sites)
        self.block = block
        self.take = take
        self.records = records
        self.sums = sums
        self.architecture = architecture
        self.caches = [save_cache(entry, _divided) for entry in self.maps]
        combining = Combining.MATCH if architecture >= MATCHES else Combining.NOTHING
        self.lanes = Lanes(WARP_LANES, Combining.REDUCE if architecture >= REDUCES else combining)
        # Whether lanes that have parted have to be brought together again, as the program asks which are.
        self.meets: bool = kernel.meets if kernel else False
        self._prefix = prefix
        self._changed = changed
        # By the map's index and the register's number in the map, the registers that the body's code names; and those
        # of the kernel and all its functions.
        self._kept: dict[tuple[int, str], LongLived] = {}
        self._all_kept: dict[tuple[int, str], LongLived] = kernel._all_kept if kernel else {}
        # By the map's index and the register's name, those that map types' statements name.
        self._of_types: dict[tuple[int, str], TypeKept] = kernel._of_types if kernel else {}
        # The variable in local memory for saves that wait for each other, and how many bytes of it are in use.
        self.waiting_memory = f"{prefix[1:]}waiting"
        self.waiting_bytes = 0

    @property
    def long_lived(self) -> list[LongLived]:
        """The registers that the body's code uses for maps (tables and logs of probes) and that live to the end of the
        thread."""
        return self.sums.long_lived + self.records.long_lived + self.sums.counter_registers + list(self._kept.values())

    @property
    def has_end(self) -> bool:
        """Whether probes' maps have values in registers that are written to memory when a thread ends."""
        return self.sums.has_end or self.records.has_counts or bool(self._all_kept)

    def of_twin(self) -> tuple[Map, ...]:
        """Return the maps as the twin has them, once all sites are written: logs that no code saves to need no memory
        (cap 0)."""
        saved = {index for index, _ in self._all_kept}
        return tuple(
            replace(entry, cap=0) if entry.kind.layout is Layout.CHUNKS and index not in saved else entry
            for index, entry in enumerate(self.maps)
        )

    def keep(self, index: int, number: int | str, bits: int, first: int = 0, letter: str = "u") -> str:
        """Return the register that a map keeps under a number from the kernel's entry to the thread's end; made at the
        first call.

        index: of the map. bits: 32 or 64. first: its value at first. letter: ``u``, or ``b`` for other than integers.
        The register counts as named and changed by the body's code.
        """
        name, key, kind = f"{self._prefix}e{index}_{number}", (index, str(number)), f"{letter}{bits}"
        kept = self._all_kept.setdefault(key, LongLived(name, kind, str(first), kind))
        self._kept[key] = kept
        self._changed.add(name)
        return name

    def keep_for_type(self, index: int, register: TypeKept) -> str:
        """Return the PTX register for a register of the statements (in the map's type's IR) that lives to the end of
        the thread."""
        number = register.name[1:]
        self._of_types[index, number] = register
        letter = "b" if register.type.is_float else "u"
        return self.keep(index, number, register.type.bits, register.initial, letter)

    def kept_name(self, index: int, register: TypeKept) -> str:
        """The PTX register that ``keep_for_type`` chose for a register of the index-th map's statements, where a thread
        ends."""
        return self._kept[index, register.name[1:]].name

    def kept_by_type(self, index: int) -> list[TypeKept]:
        """The registers of the index-th map's statements that live to the thread's end (see ``keep_for_type``)."""
        return [register for (owner, _), register in self._of_types.items() if owner == index]

    def save_all(self, deferred: DeferredSaves, lines: Lines) -> None:
        """Append the code of saves, gathered at several places, that are written together."""
        for index, saves in sorted(deferred.saves.items()):
            entry, gathered = self.maps[index], Gathered(self.lanes, saves)
            texts = gathered.texts(deferred.mask, self.take, lines)

            def code(template: TemplateOf, entry: Map = entry, gathered: Gathered = gathered) -> None:
                writer = GatheredCode(*template.code, memory=template.local_memory)
                writer.take_from(template.take, dict(template.texts))
                writer.write(entry.kind.save_all(entry, gathered))

            self._write_template(index, ("together", gathered.known()), texts, lines, code)

    def _write_template(
        self, index: int, key: tuple[Hashable, ...], texts: Mapping[str, str], lines: Lines,
        code: Callable[[TemplateOf], None],
    ) -> None:  # fmt: skip
        """Append code of the index-th map that is remembered by a key.

        texts: the names in PTX of registers that it reads, by their names in statements. code: writes it into a
        template.
        """
        templates, block = self.caches[index].templates, self.block
        key = (index, *block.where, block.has_shift, self._prefix, self.lanes, *key)
        if key not in templates:
            if len(templates) >= _MOST_TEMPLATES:
                templates.clear()
            template = TemplateOf(self, index, texts)
            with block.noting(has_shift=block.has_shift) as noted:
                code(template)
            templates[key] = template.finished(noted), template.memory
        found, memory = templates[key]
        self.waiting_bytes = max(self.waiting_bytes, memory)
        found.write(dict(texts), self.take, lines)
        for register in found.kept:
            self.keep_for_type(index, register)
        block.note(found.reads, has_shift=found.has_shift)

    def label(self, index: int) -> str:
        """What the names of labels begin with in code of the index-th map. They are local to the code's braces."""
        return f"${self._prefix[1:]}k{index}"

    def rooms(self, index: int) -> tuple[int, ...]:
        """Return for how many saves in a row there may be one test that a log has room: numbers to choose from, the
        best first; () for map types without such tests. index: of the map."""
        return self.maps[index].kind.rooms(self.maps[index])

    def room(self, index: int, guard: str, need: int, most: int) -> Lines:
        """Return the PTX that makes sure that the index-th map, a log, has room for ``need`` records, in an own scope.

        guard: the predicate of the threads that save, "" for all. most: the number of ``rooms`` that was chosen for the
        body.
        """
        lines: Lines = [Scope.OPEN]
        here = self.take("b32")
        if self.meets:
            lines.append(op("activemask.b32", here))
        entry = self.maps[index]
        when = Register("%guard", Type.PRED, 0, entry.span, is_local=True) if guard else None
        code = self._code(index, lines, f"${self._prefix[1:]}room", ending=True)
        code.take_from(self.take, {"%guard": guard})
        code.write(entry.kind.make_room(entry, need, most, when))
        if self.meets:
            # As before, also for a program that asks which lanes are together.
            lines.append(op("bar.warp.sync", here))
        return [*lines, Scope.CLOSE]

    def _code(self, index: int, lines: Lines, label: str, *, ending: bool, slots: Slots | None = None) -> AtMap:
        """Return what lowers statements of the index-th map that are about no save. label: begins labels."""
        kept = partial(self.keep_for_type, index)
        return AtMap(
            self.maps[index], index, self.block, self.take, kept, lines, label, ending=ending, slots=slots,
            straight=self.is_straight,
        )  # fmt: skip

    def begin(self, lines: Lines) -> None:
        """Append the maps' code for where a kernel begins, once all other code is written: of addresses, and what opens
        logs."""
        indices = sorted({index for index, _ in self._all_kept})
        for index in indices:
            is_log = self.maps[index].kind.layout is Layout.CHUNKS
            slots = Slots(self.block, self.take)
            code = self._code(index, lines, self.label(index), ending=is_log, slots=slots)
            code.write(self.caches[index].statements_at_ends(self.kept_by_type(index), self.lanes, ending=False))

    def end(self, lines: Lines) -> None:
        """Append the code that writes to memory, where a thread ends, what it has in registers for maps.

        These are counts of records, values that map types keep, and sums; of the kernel, and of its functions as far as
        they are written.
        """
        self.records.end(Slots(self.block, self.take), lines)
        # The code names all registers, also those that only other bodies wrote.
        self._kept = dict(self._all_kept)
        group = EndingThreads(self.take, lines, self.architecture)
        # Threads with rows of their own do not combine their values: as on architectures that cannot.
        alone = EndingThreads(self.take, lines, 0)
        for index in sorted({index for index, _ in self._kept}):
            entry = self.maps[index]
            code = EndCode(self, index, lines, alone if entry.per is Per.THREAD else group)
            code.write_at_end(self.caches[index].statements_at_ends(self.kept_by_type(index), self.lanes, ending=True))
        # Last, since it ends most threads: one of a warp adds for all.
        self.sums.end(lines)


def _divided(statements: Sequence[MapStatement]) -> tuple[Part, ...]:
    """Divide the statements of a save into parts whose code goes to different places or can be reused in different
    ways.

    A new part begins at the first store, and around what depends on the place of the save. statements: in order.
    """
    parts: list[Part] = []
    # Of the part to come.
    gathered: list[MapStatement] = []
    is_store = False
    for statement in statements:
        is_first = isinstance(statement, _STORES) and not is_store
        of_place = isinstance(statement, _OF_PLACE)
        if gathered and (is_first or of_place or isinstance(gathered[0], _OF_PLACE)):
            parts.append(Part(gathered, of_place=isinstance(gathered[0], _OF_PLACE), is_store=is_store))
            gathered = []
        is_store = is_store or is_first
        gathered.append(statement)
    if gathered:
        parts.append(Part(gathered, of_place=isinstance(gathered[0], _OF_PLACE), is_store=is_store))
    return tuple(parts)


def _fitting(probes: ProbeSet, sites: int | None) -> tuple[Map, ...]:
    """Return the probes' maps, made smaller where it is known which keys a kernel with so many sites has (sites: None
    if not)."""
    maps = list(probes.maps)
    for index, keys in probes.keyed_by_constants.items():
        maps[index] = replace(maps[index], kind=maps[index].kind.for_keys(keys))
    if probes.apart is not None:
        sites = probes.apart
    if sites is None:
        return tuple(maps)
    for index in probes.keyed_by_site:
        entry = maps[index]
        maps[index] = replace(entry, kind=entry.kind.for_sites(sites))
    return tuple(maps)


class TemplateOf:
    """Code of the index-th map that is being written with placeholders for its registers.

    inputs: the names in statements of the registers that it reads. texts: their placeholders. code: the first arguments
    of ``AtMap`` for what writes it. memory: bytes of local memory that it needs.
    """

    def __init__(self, maps: MapCode, index: int, inputs: Iterable[str]) -> None:
        """Begin a template without code. Parameters: see the class."""
        self.texts = {name: placeholder(number) for number, name in enumerate(inputs)}
        self.memory = 0
        self._maps = maps
        self._index = index
        self._kinds: list[str] = []
        self._lines: Lines = []
        self._kept: list[TypeKept] = []
        self.code = (maps.maps[index], index, maps.block, self.take, self._keep, self._lines, maps.label(index))

    def take(self, kind: str) -> str:
        """Return a placeholder for a new register of a type, and note the type."""
        self._kinds.append(kind)
        return placeholder(len(self.texts) + len(self._kinds) - 1)

    def _keep(self, register: TypeKept) -> str:
        """Return the register of PTX for one that statements keep, and note it."""
        self._kept.append(register)
        return self._maps.keep_for_type(self._index, register)

    def local_memory(self, size: int) -> str:
        """Return the name of a variable in local memory with so many bytes, which is in use until a save is written."""
        self.memory = max(self.memory, size)
        return self._maps.waiting_memory

    def finished(self, noted: Noted, names: Mapping[str, str] | None = None) -> Template:
        """Return the code. noted: what it reads of the block. names: of statements' registers, those in PTX."""
        outputs = tuple((name, as_format(text)) for name, text in (names or {}).items() if name not in self.texts)
        return Template(
            tuple(self._lines), tuple(self._kinds), tuple(self.texts), outputs, tuple(dict.fromkeys(self._kept)),
            dict(noted.reads), noted.has_shift,
        )  # fmt: skip


class SaveCode(AtMap):
    """Writes one ``SAVE`` to the index-th map, by the statements of its type; says what is known of its values
    (``SavedValues``).

    operand_value: gives the value of an operand there. code: what to append to. slots: of the thread. guard: the
    predicate of the threads that save, None for all. waits, ending, constant_adds, deferred: see ``Emission.snippet``.
    given: by register, of the operands that the snippet has read, those of which more is known. written: what the
    snippet has before the save. is_whole: the whole warp comes here together, and once.
    """

    def __init__(
        self, maps: MapCode, index: int, save: Save, operand_value: Callable[[SavedOperand], Value], code: Code,
        slots: Slots, guard: Guard | None, *, waits: bool, ending: bool, constant_adds: ConstantAdds | None,
        deferred: DeferredSaves | None, given: Mapping[str, Value], written: Written, is_whole: bool,
    ) -> None:  # fmt: skip
        """Set up a writer of the code of one save: a probe's statement that records values in the index-th map.

        operand_value: gives the value of an operand. guard: the predicate of the threads that save, None for all.
        Others: see the class.
        """
        super().__init__(
            maps.maps[index], index, maps.block, maps.take, partial(maps.keep_for_type, index), code.lines,
            maps.label(index), ending=ending, slots=slots,
        )  # fmt: skip
        self._maps = maps
        self._slots: Slots = slots
        self._save = save
        self._operand_value = operand_value
        self._code = code
        self._guard = guard
        self._waits = waits
        # Names of the statements' registers that are read where the stores are.
        self._copied: set[str] = set()
        self._constant_adds = constant_adds
        self._deferred = deferred
        self._given = given
        self._written = written
        self._is_whole = is_whole
        self._predicate: str | None = None
        self._values: dict[int, Value] = {}

    def write_save(self) -> None:
        """Append the code of one save (a probe's statement that records values) to the snippet's code.

        From the first statement on that is about memory or other lanes it goes to the stores, which do not stand
        between a product and its sum. What does not depend on the place is remembered for other saves.
        """
        if self._deferred is not None and self._entry.kind.gathers(self._entry, self.lanes):
            self._gather(self._deferred)
            return
        parts = self._maps.caches[self._index].parts(self)
        # What the stores read of the program is copied where it may change it before.
        stores = [part for part in parts if part.is_store] if self._waits else []
        self._copied = {name for part in stores for name in part.names}
        for part in parts:
            if part.adds_floats:
                check_architecture(self._maps.architecture)
            if part.is_store:
                self._lines = self._code.stores
            if part.of_place or self._ending or self._maps.block.is_apart:
                self.write(part.statements)
                continue
            key = (self._index, *self._maps.block.where, self._label)
            template = part.templates.get(key)
            if template is None:
                template = part.templates[key] = self._template(part)
            template.write(self._names, self._take, self._lines)
            for register in template.kept:
                self._kept(register)
            self._maps.block.note(template.reads, has_shift=template.has_shift)

    def _template(self, part: Part) -> Template:
        """Return the PTX for statements that do not depend on the place, with placeholders for its registers, to be
        used again."""
        registers = dict.fromkeys(register.name for register in registers_in(part.statements))
        template = TemplateOf(self._maps, self._index, [name for name in registers if name in self._names])
        writer = AtMap(*template.code, ending=False)
        writer.take_from(template.take, dict(template.texts))
        with self._maps.block.noting() as noted:
            writer.write(part.statements)
            writer.write_pending_predicates()
        return template.finished(noted, writer.texts)

    # What is known: ``SavedValues``.

    @property
    def lanes(self) -> Lanes:
        """What the lanes (threads) of a warp can do together on the kernel's architecture, as reductions."""
        return self._maps.lanes

    @property
    def may_branch(self) -> bool:
        """Whether the code may have branches: not between a product and its sum, or ptxas would compute the product
        again."""
        return not self._waits and not self._maps.is_straight

    @property
    def is_conditional(self) -> bool:
        """Whether some of the threads that execute the code of this save do not save."""
        return self._guard is not None or self._save.map.level is not Level.THREAD

    @property
    def has_condition(self) -> bool:
        """Whether some threads that come here, with a slot or without, do not save."""
        return self._guard is not None

    @property
    def is_elected(self) -> bool:
        """Whether one of the lanes here saves, that for which ``ELECTED`` is true."""
        return self._guard is not None and self._written.is_elected(self._guard)

    @property
    def is_rare(self) -> bool:
        """Whether the code stands behind a branch that is nearly never taken."""
        return self._maps.block.is_apart

    @property
    def is_whole(self) -> bool:
        """Whether the whole warp comes here together, and once."""
        return self._is_whole

    def constant(self, number: int) -> int | None:
        """Return the value of an operand of the save if it is a constant, else None. number: its index."""
        value = self._value(number)
        return known_integer(value.text) if value.type is None else None

    def choices(self, number: int) -> tuple[int, ...]:
        """Return the two constants, ascending, of which an operand of the save has one; () if that is not known."""
        found = self._value(number).choices
        return found if len(found) == 2 else ()

    def is_same(self, number: int) -> bool:
        """Return whether an operand of the save has one value in all lanes that save it together."""
        value = self._value(number)
        if self.is_read_together(number) or self._written.is_constant(value, self._guard):
            return True
        return takes_whole(self._save.map.fields[number], value) and self._written.is_uniform(value)

    def is_read_together(self, number: int) -> bool:
        """Return whether it has one since they read it together, as a clock."""
        value = self._value(number)
        return takes_whole(self._save.map.fields[number], value) and self._written.is_clock(value, self._guard)

    def _value(self, number: int) -> Value:
        """Return the value of an operand of the save. Where it has to be computed, its code is written once."""
        if number not in self._values:
            self._values[number] = self._operand_value(self._save.operands[number])
        return self._values[number]

    def own_sites(self) -> tuple[int, ...]:
        """Return the sites, if the save's key is for each lane that of its own; else ()."""
        return self._value(0).sites

    def site_key(self) -> int | None:
        """Return the number that stands for the save's key in a table whose keys are sites or a few constants; None
        elsewhere."""
        if self._index in self._maps.keyed_by_site:
            return self.constant(0)
        key = constant_key(self._save)
        return None if key is None else self._maps.maps[self._index].kind.number_of(key)

    # What is written.

    def _write_special(self, statement: MapStatement) -> None:
        """Append the PTX for a statement of a map's type (IR) about what is saved; others are left to the base class.
        """
        if isinstance(statement, ReadSaved):
            self._read(statement)
        elif isinstance(statement, IsSaving):
            self._read_saving(statement.destination, self._counting_threads() or "")
        elif isinstance(statement, HasCondition):
            guard = self._guard
            self._read_saving(statement.destination, positive(guard, self._take, self._lines) if guard else "")
        elif isinstance(statement, EnsureRoom):
            self._lines.append(RoomMark(self._index, self._condition(statement.when) or ""))
        elif isinstance(statement, Accumulate):
            self._accumulate(statement)
        elif isinstance(statement, AccumulateSaved):
            self._accumulate_saved()
        elif isinstance(statement, StoreRecord):
            self._store_record()
        elif isinstance(statement, StoreSaved):
            self._store_saved(statement)
        else:
            super()._write_special(statement)

    def _read_saving(self, destination: Register, when: str) -> None:
        """Bring into a predicate whether the save, under its guard and at its level, is for this thread."""
        if when and destination.name in self._copied:
            self._set(destination, "mov.pred", when)
        else:
            self._names[destination.name] = when

    def _read(self, statement: ReadSaved) -> None:
        """Bring the value that is saved to a field of the map into a register."""
        field = self._save.map.fields[statement.number]
        value = self._value(statement.number)
        name = as_bits(converted(value, field, self._take, self._lines), self._take, self._lines)
        if statement.destination.name in self._copied:
            self._set(statement.destination, f"mov.b{max(field.type.size * 8, 16)}", name)
        else:
            self._names[statement.destination.name] = name

    def _accumulate(self, statement: Accumulate) -> None:
        """Add an amount to the register that sums up a cell of the map; constants for all threads go to
        ``constant_adds`` if given."""
        cell, amount = statement.cell, statement.amount
        if statement.when is None and isinstance(amount, Constant) and self._constant_adds is not None:
            self._constant_adds[self._index, cell] = self._constant_adds.get((self._index, cell), 0) + amount.bits
            return
        when = self._condition(statement.when) or ""
        self._maps.sums.add_amount(self._index, cell, self._text(amount), when, self._lines)

    def _accumulate_saved(self) -> None:
        """Add the saved operands to the registers in which the thread sums up the map's fields until it ends."""
        sums = self._maps.sums
        # What is computed from counters is added in every thread, which would be wrong for a save under a predicate.
        ending = self._ending and self._save.guard is None and sums.has_counters
        sums.add(self._index, self._save, self._operand_value, self._lines, self._slots, self._guard, ending=ending)

    def _store_record(self) -> None:
        """Store the saved operands as the next record in the part of the map's memory that is this thread's own."""
        values = [self._operand_value(operand) for operand in self._save.operands]
        self._maps.records.store(
            self._index, values, self._code, self._slots, self._guard, waits=self._waits, ending=self._ending
        )

    def _store_saved(self, statement: StoreSaved) -> None:
        """Store the saved operands as a record at the address that a statement gives."""
        values = [self._operand_value(operand) for operand in self._save.operands]
        stores = self._maps.records.as_few_stores(self._save.map, values, self._code.lines, self._waits)
        place, when = self._text(statement.place), self._text(statement.when)
        for where, kind, text in stores:
            self._emit(f"st.global.{kind}", mem(place, statement.after + where), text, when=when)

    def _gather(self, deferred: DeferredSaves) -> None:
        """Note the save, whose code is written with that of others."""
        written, guard = self._written, self._guard
        given_values = [self._value(number) for number in range(len(self._save.operands))]
        fitting = self._maps.records.fitting(self._save.map, given_values, self._lines, waits=True)
        saved = []
        for number, (value, given) in enumerate(zip(fitting, given_values, strict=True)):
            kept_field = self._save.map.fields[number]
            is_whole = takes_whole(kept_field, given)
            is_copy = is_whole or kept_field.type.value[0] in "us"
            copied = self._given.get(written.copied_from(given, guard), value) if is_copy else value
            choices = copied.choices if len(copied.choices) == 2 else ()
            moved = self._given.get(written.moved_from(given, guard), value) if is_whole else value
            total = deferred.sum_of(moved.address) if moved.address is not None else None
            is_read = self.is_read_together(number)
            constant = written.constant(given, guard)
            saved.append(Saved(value.text, self.is_same(number), is_read, choices, total, constant))
        if guard is not None:
            # The program may change its predicate.
            copy = self._take("pred")
            self._lines.append(op("mov.pred", copy, guard.register))
            guard = Guard(copy, guard.negated)
        if not deferred.mask:
            deferred.mask = self._take("b32")
            self._lines.append(op("activemask.b32", deferred.mask))
        deferred.saves.setdefault(self._index, []).append(PendingSave(tuple(saved), guard, deferred.kin, self.lanes))

    def _counting_threads(self) -> str | None:
        """Return a predicate that is true in the threads that the save is for, None for all. Its code is written once.

        At level thread its guard holds in these; at the levels warp and block it is the one thread that saves for the
        others.
        """
        if self._predicate is None:
            level = self._save.map.level
            if level is not Level.THREAD:
                slot = self._slots.at(level, self._lines)
                self._predicate = guarded(slot.inside, self._guard, self._take, self._lines)
            elif self._guard is not None:
                self._predicate = positive(self._guard, self._take, self._lines)
        return self._predicate


class EndCode(AtMap):
    """Writes the code that brings a map's values from registers to memory where a thread ends, by its type's
    statements.

    group: the threads that end together. Cells are the words of a map's record in memory, by their numbers.
    """

    def __init__(self, maps: MapCode, index: int, lines: Lines, group: EndingThreads) -> None:
        """Set up a writer of a map's code for where threads end, which brings values from registers to memory. group:
        the threads that end together."""
        super().__init__(
            maps.maps[index], index, maps.block, maps.take, partial(maps.kept_name, index), lines, maps.label(index),
            ending=True, straight=maps.is_straight,
        )  # fmt: skip
        self._maps = maps
        self._group = group
        self._base = ""

    def _write_special(self, statement: MapStatement) -> None:
        """Append the PTX for a statement of a map's type (IR) about threads that end together; others are left to the
        base class."""
        maps, index = self._maps, self._index
        if isinstance(statement, Collective):
            self._names[statement.destination.name] = self._reduced(statement)
        elif isinstance(statement, Elect):
            self._names[statement.destination.name] = self._elected(statement.reduction)
        elif isinstance(statement, Accumulate):
            amount, operation = self._text(statement.amount), statement.operator.value
            maps.sums.add_amount(index, statement.cell, amount, "", self._lines, operation=operation)
        else:
            super()._write_special(statement)

    def _reduced(self, statement: Collective) -> str:
        """Return a register with the sum or the greatest of a value over the threads of a warp that end together."""
        source, type_ = self._text(statement.source), statement.destination.type
        if statement.reduction is Reduction.MAX and not type_.is_float:
            return self._group.greatest(source, type_.bits)
        if statement.reduction is Reduction.SUM and type_ is Type.F64:
            tree = self._group.tree
            return tree.add_up(source) if tree is not None else source
        raise TypeError(f"{statement.reduction} of {type_} over the threads that end together")

    def _elected(self, reduction: Reduction) -> str:
        """A predicate for the threads that write the result of a reduction over threads that end together; "" for all.
        """
        if reduction is not Reduction.SUM:
            return self._group.writes or ""
        tree = self._group.tree
        return tree.leads if tree is not None else ""

    def _address(self) -> str:
        """Return the register with the address of the map's memory; the code that computes it is written once."""
        self._base = self._base or super()._address()
        return self._base
