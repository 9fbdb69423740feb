"""What saves to logs need besides their statements: tests for room, and saves that wait for others.

A body tests whether a log has room for its next saves (``EnsureRoom``) once for several of them. Each is written with
a mark before it. Once all code of a body is written, a mark becomes the test, or nothing where an earlier test, on
every way there, has made sure that there is room. So the rare code that takes more of the log's memory stands at few
places of a body.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Protocol

from neutrino.abi.structures import align_up
from neutrino.ir.memory import EachInTurn, IsSaving, Kept, MapStatement, ReadSaved, WereHere
from neutrino.ir.operands import Constant
from neutrino.ir.types import Type
from neutrino.maps.builder import Lanes
from neutrino.maps.declaration import Map
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.analysis.register_values import Sum
from neutrino.ptx.instrument.map_memory import AtMap
from neutrino.ptx.instrument.probe_block import ProbeBlock
from neutrino.ptx.instrument.records import Saved, in_few_stores
from neutrino.ptx.instrument.registers import Guard, Take, positive
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.inserted import Edits, Inserted, Label, Line, Lines, mem


class RoomCode(Protocol):
    """Writes the tests for room in one body. index: of the map."""

    def rooms(self, index: int) -> tuple[int, ...]:
        """For how many saves there may be one test: numbers to choose from, the best ones first."""
        ...

    def room(self, index: int, guard: str, need: int, most: int) -> Lines:
        """The code that makes sure that there is room for as many records as it needs.

        guard: as of ``RoomMark``. most: the number of ``rooms`` that was chosen for the body.
        """
        ...


def needs_lanes_together(bodies: Iterable[Body]) -> bool:
    """Whether a program asks which lanes of a warp are together, or has instructions that all of them have to come to
    together. Barriers are none of these: lanes may come to them one after the other."""
    opcodes = {opcode for body in bodies for opcode in body.opcodes}
    return any(
        opcode.word == "activemask"
        or (opcode.word in {"shfl", "vote"} and ".sync" not in opcode.text)
        or (".aligned" in opcode.text and opcode.word not in {"bar", "barrier"})
        for opcode in opcodes
    )


class RoomMark(NamedTuple):
    """The line before a save to a log, which becomes the test for room, or nothing, when ``place_rooms`` has chosen.

    number: of the map. guard: the predicate of the threads that save, "" for all.
    """

    number: int
    guard: str

    @property
    def text(self) -> str:
        """The mark as a line of code: no instruction, so that one that is left over does not assemble."""
        return "(room)"

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions of the line: none."""
        return ()

    @property
    def opcodes(self) -> tuple[str, ...]:
        """The opcodes of the line: none."""
        return ()


def first_marks(lines: Lines, stores: Lines) -> None:
    """Move the mark of the first save to each log to the beginning of a snippet's code, where fewer registers are in
    use. Not of a save under a predicate, which may be computed on the way. lines, stores: as of ``Code``."""
    seen: set[int] = set()
    for part in (lines, stores):
        for number, line in enumerate(part):
            if isinstance(line, RoomMark) and line.number not in seen:
                seen.add(line.number)
                if not line.guard:
                    del part[number]
                    lines.insert(0, line)


@dataclass(frozen=True)
class _Mark:
    """A save in the code of a body. edit: its number in the list of edits; line: in the edit. at, block: where the code
    goes. guard: as of ``RoomMark``. is_certain: each thread that reaches the block runs what the mark becomes."""

    edit: int
    line: int
    at: int
    block: int
    guard: str
    is_certain: bool


def place_rooms(body: Body, edits: Edits, opening: Sequence[Line], tests: RoomCode) -> Lines:
    """Replace the marks in a body's edits, and in the code at its entry, which is returned.

    opening: that code. tests: writes the tests.
    """
    # The code at the entry comes before that of all sites there.
    inserted = [(body.entry, tuple(opening))]
    inserted += [(at, () if isinstance(new, str) else new.lines) for at, _, new in edits.edits]
    places = [
        (number, line, mark)
        for number, (_, lines) in enumerate(inserted)
        for line, mark in enumerate(lines)
        if isinstance(mark, RoomMark)
    ]
    if not places:
        return list(opening)
    graph = FlowGraph(body)
    labels: dict[int, int] = {}
    for label in body.labels:
        labels.setdefault(label.before, label.start)
    of_maps: dict[int, list[_Mark]] = {}
    for number, line, room in places:
        at, _ = inserted[number]
        block, is_certain = _place(body, graph, labels, at)
        found = _Mark(number, line, at, block, room.guard, is_certain and not room.guard)
        of_maps.setdefault(room.number, []).append(found)
    # By edit and line, what stands in place of the mark.
    chosen: dict[tuple[int, int], Lines] = {}
    for index, marks in of_maps.items():
        # Edits at one position stand in the order of the list.
        marks.sort(key=lambda mark: (mark.at, mark.edit, mark.line))
        code = {("", 0): Lines()}
        # The first of the numbers with the fewest tests.
        plans = [(most, _needs(body, graph, marks, most)) for most in tests.rooms(index)]
        most, needs = min(plans, key=lambda plan: sum(map(bool, plan[1].values())))
        for mark, need in needs.items():
            key = (mark.guard, need) if need else ("", 0)
            if key not in code:
                code[key] = tests.room(index, mark.guard, need, most)
            chosen[mark.edit, mark.line] = code[key]
    for number in sorted({edit for edit, _ in chosen if edit}):
        at, lines = inserted[number]
        before = edits.edits[number - 1][2]
        if isinstance(before, Inserted):
            edits.edits[number - 1] = (at, at, Inserted(_with(lines, chosen, number), is_after=before.is_after))
    return list(_with(opening, chosen, 0))


def _with(lines: Sequence[Line], chosen: Mapping[tuple[int, int], Lines], number: int) -> tuple[Line, ...]:
    """Return the lines of the edit with a number, with what is chosen in place of marks."""
    return tuple(part for line, text in enumerate(lines) for part in chosen.get((number, line), [text]))


def _place(body: Body, graph: FlowGraph, labels: Mapping[int, int], at: int) -> tuple[int, bool]:
    """The block that code at a position is in, and whether each thread that reaches the block runs it.

    labels: by the index of a statement, the position of its first label.
    """
    # Of the statement that the code goes right before, or after.
    index = min(bisect_left(body.ends, at), len(body.ends) - 1)
    block, mnemonic = graph.block(index), body.mnemonics[index]
    # Before the label of a block it is in the one before, perhaps after the branch that ends that.
    if graph.starts[block] == index and at <= labels.get(index, -1):
        return block - 1, False
    # Threads that do not end here branch over the code before an end under a predicate.
    is_left = index in body.guarded and index in body.leaving
    is_after_end = at == body.ends[index] and mnemonic is not None and mnemonic.ends_block
    return block, not is_left and not is_after_end


def _needs(body: Body, graph: FlowGraph, marks: Sequence[_Mark], most: int) -> dict[_Mark, int]:
    """For each save how many saves a test there is for; 0 for no test.

    marks: of one log, in the order of the code. Calls may save as well, and leave any room.
    """
    # By block what happens there, in order: a save, or None for a call.
    events: dict[int, list[_Mark | None]] = {}
    calls = [(body.ends[index], 0, graph.block(index), None) for index in body.calls]
    merged = [*calls, *((mark.at, 1, mark.block, mark) for mark in marks)]
    for _, _, block, mark in sorted(merged, key=lambda one: one[:2]):
        events.setdefault(block, []).append(mark)
    needs: dict[_Mark, int] = dict.fromkeys(marks, 1)
    # Forward: where there is room for certain. Where a way leads back, nothing is known.
    reached = graph.postorder
    predecessors: dict[int, list[int]] = {block: [] for block in reached}
    for block in reached:
        for after in graph.successors[block]:
            predecessors[after].append(block)
    room_after: dict[int, int] = {}
    for block in reversed(reached):
        room = min((room_after.get(before, 0) for before in predecessors[block]), default=0) if block else 0
        for mark in events.get(block, ()):
            if mark is None:
                room = 0
            elif room:
                needs[mark] = 0
                room -= 1
            elif mark.is_certain:
                room = most - 1
        room_after[block] = room
    # Backward: how many saves follow before the next test.
    saves_from: dict[int, int] = {}
    for block in reached:
        ahead = max((saves_from.get(after, 0) for after in graph.successors[block]), default=0)
        for mark in reversed(events.get(block, ())):
            if mark is None:
                ahead = 0
            elif not needs[mark]:
                ahead += 1
            else:
                needs[mark] = 1 + ahead if mark.is_certain else 1
                ahead = 0
        saves_from[block] = ahead
    return needs


WAITING_ALIGN = 8
"""Rows of values that wait in local memory are at multiples of it, in bytes."""


@dataclass(frozen=True)
class PendingSave:
    """A save whose code is written with that of others.

    values: of the fields, in registers that nothing changes until then, or constants. guard: of the threads that save,
    None for all. kin: saves with the same one are expected to have values that differ by the same amount in all lanes.
    """

    values: tuple[Saved, ...]
    guard: Guard | None
    kin: Hashable
    lanes: Lanes
    may_branch: bool = True
    is_elected: bool = False
    is_whole: bool = False
    is_rare: bool = False

    @property
    def is_conditional(self) -> bool:
        """Whether some threads that come here do not save."""
        return self.guard is not None

    @property
    def has_condition(self) -> bool:
        """Whether some threads that come here do not save."""
        return self.guard is not None

    def constant(self, number: int) -> int | None:
        """Return None: no operand is asked whether it is a constant."""
        return None

    def own_sites(self) -> tuple[int, ...]:
        """Return (): the map has no keys."""
        return ()

    def site_key(self) -> int | None:
        """Return None: the map has no keys."""
        return None

    def choices(self, number: int) -> tuple[int, ...]:
        """Return the two constants, ascending, of which an operand has one; () if that is not known."""
        return self.values[number].choices

    def is_same(self, number: int) -> bool:
        """Return whether an operand has one value in all lanes that save it together."""
        return self.values[number].is_same

    def is_read_together(self, number: int) -> bool:
        """Return whether it has one since they read it together."""
        return self.values[number].is_read


@dataclass
class DeferredSaves:
    """Saves (records of probes) at places of one basic block whose code may be written at the last of them.

    kin: as in ``PendingSave``, for the place whose code is being written. sum_of: what an address there is the sum of.
    mask: the register with the lanes that were together at the first of the places; "" before there is a save. saves:
    by map number.
    """

    kin: Hashable
    sum_of: Callable[[tuple[str, int]], Sum | None]
    mask: str = ""
    saves: dict[int, list[PendingSave]] = field(default_factory=dict)


@dataclass(frozen=True)
class Gathered:
    """What is known of saves that are written together."""

    lanes: Lanes
    each: Sequence[PendingSave]

    def kin(self, save: int) -> Hashable:
        """Return what saves have in common that are expected to differ alike in all lanes: ``PendingSave.kin``."""
        return self.each[save].kin

    def condition(self, save: int) -> Hashable:
        """Return the guard of a save."""
        return self.each[save].guard

    def beyond(self, save: int, number: int) -> tuple[Hashable, int] | None:
        """Return what an address is the sum of, if that is known, and an amount."""
        found = self.each[save].values[number].sum
        return None if found is None else (found.terms, found.constant)

    def constant(self, save: int, number: int) -> Hashable:
        """Return of an operand that is a constant what is equal for equal ones, None of others."""
        return self.each[save].values[number].constant

    def texts(self, mask: str, take: Take, lines: Lines) -> dict[str, str]:
        """Return the registers that have what is saved, by names for ``GatheredCode``; appends code of predicates.

        mask: the register with the lanes that were together at the first of the saves.
        """
        found = {_MASK: mask}
        guards: dict[Guard, str] = {}
        for number, save in enumerate(self.each):
            found |= {_value_name(number, place): value.text for place, value in enumerate(save.values)}
            if save.guard is not None:
                if save.guard not in guards:
                    guards[save.guard] = positive(save.guard, take, lines)
                found[_guard_name(number)] = guards[save.guard]
        return found

    def known(self) -> Hashable:
        """Return what the code of the saves depends on: equal for saves with the same code but for registers."""
        kinds: dict[Hashable, int] = {}
        conditions: dict[Hashable, int] = {None: 0}
        terms: dict[Hashable, tuple[int, int]] = {}
        constants: dict[Hashable, int] = {}
        found: list[Hashable] = []
        for number, save in enumerate(self.each):
            sums = []
            for place in range(len(save.values)):
                known = self.beyond(number, place)
                if known is None:
                    sums.append((-1, 0))
                    continue
                first, least = terms.setdefault(known[0], (len(terms), known[1]))
                sums.append((first, (known[1] - least) % (1 << 64)))
            values = tuple(
                (value.is_same, value.is_read, value.choices,
                 None if value.constant is None else constants.setdefault((place, value.constant), len(constants)))
                for place, value in enumerate(save.values)
            )  # fmt: skip
            kind = kinds.setdefault(save.kin, len(kinds))
            found.append((kind, conditions.setdefault(save.guard, len(conditions)), values, tuple(sums)))
        return tuple(found)


_MASK = "mask"


def _value_name(save: int, number: int) -> str:
    """Return the name of the value of a save's field, by their numbers."""
    return f"value{save}_{number}"


def _guard_name(save: int) -> str:
    """Return the name of a save's predicate, by its number."""
    return f"guard{save}"


class GatheredCode(AtMap):
    """Writes the code of several saves to the index-th map, a log.

    memory: gives the name of a variable in local memory with so many bytes. The others are as of ``AtMap``. What is
    saved has names as ``Gathered.texts`` returns them.
    """

    def __init__(
        self, entry: Map, index: int, block: ProbeBlock, take: Take, kept: Callable[[Kept], str], lines: Lines,
        label: str, *, memory: Callable[[int], str],
    ) -> None:  # fmt: skip
        """Set up a translator to PTX of the code of several saves. Parameters: see the class."""
        super().__init__(entry, index, block, take, kept, lines, label, ending=False)
        self._memory = memory

    def _write_special(self, statement: MapStatement) -> None:
        """Append the code of a statement about what is saved; others are left to the base class."""
        if isinstance(statement, ReadSaved):
            self._names[statement.destination.name] = self._names[_value_name(statement.save, statement.number)]
        elif isinstance(statement, IsSaving):
            self._names[statement.destination.name] = self._names[_guard_name(statement.save)]
        elif isinstance(statement, WereHere):
            self._names[statement.destination.name] = self._names[_MASK]
        elif isinstance(statement, EachInTurn):
            self._in_turn(statement)
        else:
            super()._write_special(statement)

    def _in_turn(self, statement: EachInTurn) -> None:
        """Append a loop, which reads the values from local memory, so that they take no registers meanwhile."""
        self.write_pending_predicates()
        sizes = [8 if register.type.bits == 64 else 4 for register in statement.registers]
        offsets = list(accumulate(sizes, lambda at, size: align_up(at, size) + size, initial=0))
        offsets = [end - size for end, size in zip(offsets[1:], sizes, strict=True)]
        stride = align_up(offsets[-1] + sizes[-1], WAITING_ALIGN)
        total = stride * len(statement.rows)
        start, at, end, is_next = (self._take(kind) for kind in ("b64", "b64", "b64", "pred"))
        self._emit("mov.u64", start, self._memory(total))
        for number, row in enumerate(statement.rows):
            single = []
            for offset, size, value in zip(offsets, sizes, row, strict=True):
                text, kind = self._text(value), f"b{8 * size}"
                if isinstance(value, Constant):
                    text = self._computed(f"mov.{kind}", 8 * size, str(value.bits))
                elif value.type is Type.PRED:
                    text = self._computed("selp.b32", 32, "1", "0", text)
                single.append((offset, kind, text))
            for offset, kind, text in in_few_stores(single, WAITING_ALIGN, self._take, self._lines):
                self._emit(f"st.local.{kind}", mem(start, number * stride + offset), text)
        self._branches += 1
        label = f"{self._label}_{self._branches}_next"
        self._emit("mov.u64", at, start)
        self._emit("add.u64", end, start, str(total))
        # So that no lane is at another row than those that it is together with. Other lanes may be.
        self._lines.append(Label(label))
        self._emit("bar.warp.sync", self._text(statement.lanes))
        for register, size, offset in zip(statement.registers, sizes, offsets, strict=True):
            if register.type is Type.PRED:
                self._set(register, "setp.ne.u32", self._loaded(32, at, offset), "0")
            else:
                self._names[register.name] = self._loaded(8 * size, at, offset)
        self._emit("add.u64", at, at, str(stride))
        self._write_inner(statement.then)
        self._emit("setp.lt.u64", is_next, at, end)
        self._emit("bra.uni", label, when=is_next)

    def _loaded(self, bits: int, at: str, offset: int) -> str:
        """Return a register with a number from local memory."""
        return self._computed(f"ld.local.b{bits}", bits, mem(at, offset))
