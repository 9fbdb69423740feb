"""Hazards of machine code: what an instruction must wait for, by cycles or by scoreboards, before it may be issued.

Two kinds of results are told apart (``docs/machine-code.md``). Of a *fixed* latency: there after so many cycles, which
the stalls in between must fill; how many is in a table of the least that ``ptxas`` leaves between a producer and a
consumer (``python -m bench.sass_latencies``). Of a *variable* one: there when a scoreboard says so, which somebody must
have taken and waited for. The same holds for general registers that an instruction of variable latency reads, until
it has read them; predicates and uniform registers are read when it is issued. These instructions read their registers
in their order, and shared memory answers in order, so a scoreboard that a later one takes speaks for the earlier, too.

The rules were held against all kernels of whole libraries: ``ptxas`` breaks none of them.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from neutrino.sass.decoder import Code
from neutrino.sass.fields import ALWAYS, GUARD, INSTRUCTION_BYTES, NEGATED, NO_BARRIER, SCOREBOARDS, STALL
from neutrino.sass.instruction import Flow, Latency, RegisterFile

FIRST: Mapping[RegisterFile, int] = {
    RegisterFile.GENERAL: 0, RegisterFile.UNIFORM: 256, RegisterFile.PREDICATE: 512,
    RegisterFile.UNIFORM_PREDICATE: 520,
}  # fmt: skip
"""The bit of each file's register 0 in a mask of registers."""
_PMTRIG = 0x0000000003800000_0000000100007801
"""PMTRIG without its control bits, which the decoder's table lacks: an event for profilers, without a register."""
GENERAL = (1 << 256) - 1
"""All general registers, in a mask of registers."""
_SIZES = {
    RegisterFile.GENERAL: 256, RegisterFile.UNIFORM: 256, RegisterFile.PREDICATE: 8, RegisterFile.UNIFORM_PREDICATE: 8,
}  # fmt: skip
FILES: Mapping[str, int] = {file.value: (1 << _SIZES[file]) - 1 << FIRST[file] for file in FIRST}
"""Letter of a register file → all its registers."""
_UNITS = (
    frozenset({"LDS", "STS", "LDSM", "STSM", "SHFL", "ATOMS"}),
    frozenset({"MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV"}),
    frozenset({"S2UR"}),
)
"""Opcodes whose results come in the order in which they were issued: shared memory, the unit for functions and
conversions, and special registers."""
_UNIT: Mapping[str, int] = {name: number for number, names in enumerate(_UNITS) for name in names}
LONGEST = 40
"""Cycles after which every result of a fixed latency is there: more than any that ``ptxas`` waits for so."""
_GUARD = "guard"
_OVER = "over"
Report = Callable[[int, str], None]
"""(number of an instruction, rule that it breaks)"""
Cycles = Callable[[str, str, str, int], "int | None"]
"""(producer, register file, consumer, cycles since the producer) → cycles that it needs; None if that is not known."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with code. place: in bytes; -1 for the file. rule: what does not hold, in words."""

    place: int
    rule: str


@functools.cache
def _table(sm: int, kind: str) -> dict[str, dict[str, dict[str, int]]]:
    """Producer → register file → consumer → cycles. kind: ``cycles``, what was often seen, in which ``*`` stands for
    all other consumers, or ``seldom``."""
    folder = importlib.resources.files("neutrino.sass").joinpath("tables")
    found: dict[str, dict[str, dict[str, dict[str, int]]]] = json.loads(
        folder.joinpath(f"latencies_{sm}.json").read_text()
    )
    return found[kind]


def registers_of(mask: int) -> list[str]:
    """Return the names of the registers in a mask, ``R4``."""
    names = []
    for letter, of_file in FILES.items():
        bits, first = mask & of_file, (of_file & -of_file).bit_length() - 1
        while bits:
            names.append(f"{letter}{(bits & -bits).bit_length() - 1 - first}")
            bits &= bits - 1
    return names


class Columns:
    """What the rules need of decoded code, in a list per column.

    reads, writes: masks of registers, the guard included in reads. guards: the guard's alone. conditions: the guard's
    number, negation and file in one number, which is one more or one less for the opposite guard; -1 without a guard.
    stall: cycles, at least 1. names: the opcode's; None for what the decoder's table does not have. variable: whether
    the latency is. write_barrier, read_barrier: 7 for none. wait: mask.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        self.reads, self.writes = _masks(code.reads), _masks(code.writes)
        self.stall: list[int] = np.maximum(code.stall, 1).tolist()
        self.write_barrier: list[int] = code.write_barrier.tolist()
        self.read_barrier: list[int] = code.read_barrier.tolist()
        self.wait: list[int] = code.wait_mask.tolist()
        self.low: list[int] = code.words[:, 0].tolist()
        self.forms = [code.form(index) for index in range(len(code))]
        self.names = [None if form is None else form.name.partition(".")[0] for form in self.forms]
        for index in code.unknown // INSTRUCTION_BYTES:
            low, high = (int(half) for half in code.words[index])
            if (low | high << 64) & (1 << STALL.low) - 1 == _PMTRIG:
                self.names[index] = "PMTRIG"
        self.variable = [form is not None and form.latency is Latency.VARIABLE for form in self.forms]
        self.guards: list[int] = []
        self.conditions: list[int] = []
        for form, low in zip(self.forms, self.low, strict=True):
            number = GUARD.get(low)
            guarded = form is not None and form.guard is not None and number != ALWAYS
            bit = FIRST[form.guard] + number if guarded and form and form.guard else -1
            self.guards.append(1 << bit if bit >= 0 else 0)
            self.conditions.append(2 * bit + NEGATED.get(low) if bit >= 0 else -1)

    def __len__(self) -> int:
        return len(self.low)


def _masks(by_file: Mapping[RegisterFile, np.ndarray]) -> list[int]:
    """Masks of registers of all files, by instruction."""
    general, uniform = by_file[RegisterFile.GENERAL].tolist(), by_file[RegisterFile.UNIFORM].tolist()
    predicates, uniform_predicates = by_file[RegisterFile.PREDICATE], by_file[RegisterFile.UNIFORM_PREDICATE]
    return [
        a | b << 64 | c << 128 | d << 192 | (e | f << 64 | g << 128 | h << 192) << 256 | p << 512 | q << 520
        for (a, b, c, d), (e, f, g, h), p, q in zip(
            general, uniform, predicates.tolist(), uniform_predicates.tolist(), strict=True
        )
    ]


class _Awaited:
    """Registers that instructions of variable latency will still write, or still read.

    clauses: set of scoreboards (a mask) → registers (a mask) for which one of them has to be waited for. A register may
    be in several: then each has to be met. The empty set is of registers for which nobody has taken a scoreboard.
    """

    def __init__(self, clauses: Mapping[int, int] = MappingProxyType({})) -> None:
        self.clauses = dict(clauses)

    @property
    def out(self) -> int:
        """All registers that are awaited."""
        found = 0
        for registers in self.clauses.values():
            found |= registers
        return found

    def waited(self, mask: int) -> None:
        """Scoreboards of a mask were waited for."""
        self.clauses = {barriers: registers for barriers, registers in self.clauses.items() if not barriers & mask}

    def drop(self, registers: int) -> None:
        """Registers of a mask are awaited no longer."""
        self.clauses = {barriers: left for barriers, mask in self.clauses.items() if (left := mask & ~registers)}

    def take(self, registers: int, barriers: int, before: int) -> None:
        """An instruction was issued that awaits registers, and took scoreboards. before: registers that are done when
        its own are. All three are masks."""
        if barriers and before:
            moved: dict[int, int] = {}
            for had, mask in self.clauses.items():
                for key, some in ((had | barriers, mask & before), (had, mask & ~before)):
                    if some:
                        moved[key] = moved.get(key, 0) | some
            self.clauses = moved
        if registers:
            self.clauses[barriers] = self.clauses.get(barriers, 0) | registers

    def join(self, other: _Awaited) -> bool:
        """Add what may be awaited after another way here. Returns whether anything changed."""
        changed = False
        for barriers, mask in other.clauses.items():
            had = self.clauses.get(barriers, 0)
            if mask & ~had:
                self.clauses[barriers] = had | mask
                changed = True
        return changed


@dataclass
class State:
    """What is under way when an instruction may be issued. written, read: by instructions of variable latency.
    in_order: by unit, those of ``written`` that a unit answers in order. recent: (cycles since it was issued, opcode's
    name) → registers that an instruction of fixed latency wrote. taken: scoreboards that the instruction right above
    took, if it leaves one cycle only. under: guard (as of ``Columns.conditions``) → registers of ``written``, ``read``
    and ``recent`` that only lanes of that guard are concerned with; awaited_under: without ``recent``."""

    written: _Awaited = field(default_factory=_Awaited)
    read: _Awaited = field(default_factory=_Awaited)
    in_order: tuple[int, ...] = (0,) * len(_UNITS)
    recent: dict[tuple[int, str], int] = field(default_factory=dict)
    taken: int = 0
    under: dict[int, int] = field(default_factory=dict)
    awaited_under: dict[int, int] = field(default_factory=dict)

    def copy(self) -> State:
        """Return a state of its own with the same contents."""
        return State(
            _Awaited(self.written.clauses), _Awaited(self.read.clauses), self.in_order, dict(self.recent), self.taken,
            dict(self.under), dict(self.awaited_under),
        )  # fmt: skip

    def forget(self) -> None:
        """Begin anew: nothing is known to be under way."""
        self.written, self.read, self.in_order = _Awaited(), _Awaited(), (0,) * len(_UNITS)
        self.recent, self.taken, self.under, self.awaited_under = {}, 0, {}, {}

    def join(self, other: State) -> bool:
        """Add what may be under way after another way here. Returns whether anything changed."""
        changed = self.written.join(other.written)
        changed |= self.read.join(other.read)
        for key, mask in other.recent.items():
            had = self.recent.get(key, 0)
            if mask & ~had:
                self.recent[key] = had | mask
                changed = True
        more = tuple(mine | theirs for mine, theirs in zip(self.in_order, other.in_order, strict=True))
        under, awaited = _both(self.under, other.under), _both(self.awaited_under, other.awaited_under)
        changed |= (more, self.taken | other.taken) != (self.in_order, self.taken)
        changed |= (under, awaited) != (self.under, self.awaited_under)
        self.under, self.awaited_under = under, awaited
        self.in_order, self.taken = more, self.taken | other.taken
        return changed


def _both(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """Return what two maps of masks have in common."""
    return {key: mask for key in one.keys() & other.keys() if (mask := one[key] & other[key])}


def step(columns: Columns, index: int, state: State, report: Report | None, cycles: Cycles | None = None) -> None:
    """Issue an instruction: report the rules that it breaks, and change the state to that of the next one.

    index: the instruction's. report: gets the index and the rule, in words; None to report nothing. cycles: what is
    asked for the cycles that a consumer needs; None: the table of sm_90. An unknown instruction ends all knowledge.
    """
    name = columns.names[index]
    if name is None:
        state.forget()
        return
    waits, reads, writes = columns.wait[index], columns.reads[index], columns.writes[index]
    if state.taken & waits and report:
        report(index, "a scoreboard is waited for in the cycle after it was taken")
    if name == "DEPBAR":
        # How many may be left is not followed: they are taken to be none.
        waits = (1 << SCOREBOARDS) - 1
    if waits:
        state.written.waited(waits)
        state.read.waited(waits)
    out = state.written.out
    state.in_order = tuple(mask & out for mask in state.in_order)
    if report:
        _report(columns, index, state, report, cycles or required)
    variable = columns.variable[index]
    _concern(columns, index, state)
    if writes and columns.conditions[index] < 0:
        for awaited in (state.written, state.read):
            awaited.drop(writes)
        state.recent = {key: left for key, mask in state.recent.items() if (left := mask & ~writes)}
    write_barrier, read_barrier = columns.write_barrier[index], columns.read_barrier[index]
    written = 1 << write_barrier if write_barrier != NO_BARRIER else 0
    read = 1 << read_barrier if read_barrier != NO_BARRIER else 0
    if written or read or variable:
        state.read.take(reads & GENERAL & ~writes, written | read, state.read.out)
        unit = _UNIT.get(name)
        before = 0 if unit is None else state.in_order[unit]
        # An atomic operation that says by a predicate whether it was done does so when it has read its operands.
        early = 0 if written else writes & FILES["P"]
        state.written.take(writes & ~early, written, before)
        state.written.take(early, read, 0)
        state.in_order = tuple(
            mask | writes if number == unit else mask & ~writes for number, mask in enumerate(state.in_order)
        )
    stall = columns.stall[index]
    recent: dict[tuple[int, str], int] = {}
    for (age, producer), mask in state.recent.items():
        if age + stall < LONGEST:
            key = age + stall, producer
            recent[key] = recent.get(key, 0) | mask
    if writes and not (written or variable):
        key = stall, name
        recent[key] = recent.get(key, 0) | writes
    state.recent = recent
    state.taken = written | read if stall < 2 else 0


def _concern(columns: Columns, index: int, state: State) -> None:
    """Note which lanes alone are concerned with what an instruction writes or still reads. state: before it."""
    if columns.conditions[index] < 0 and not state.under and not state.awaited_under:
        return
    awaited = state.written.out | state.read.out
    state.awaited_under = _under(columns, index, state.awaited_under, awaited)
    for mask in state.recent.values():
        awaited |= mask
    state.under = _under(columns, index, state.under, awaited)


def _under(columns: Columns, index: int, known: Mapping[int, int], others: int) -> dict[int, int]:
    """Return guard → registers that lanes of it alone are concerned with, after an instruction. known: before it.
    others: registers with which some lanes are concerned before it."""
    writes, condition = columns.writes[index], columns.conditions[index]
    touched = (writes | (columns.reads[index] & GENERAL if columns.variable[index] else 0)) & ~columns.guards[index]
    under = {
        guard: left for guard, mask in known.items()
        if not writes >> (guard >> 1) & 1 and (left := mask if guard == condition else mask & ~touched)
    }  # fmt: skip
    if condition >= 0 and not writes >> (condition >> 1) & 1:
        under[condition] = under.get(condition, 0) | touched & ~others
    return under


def required(producer: str, file: str, consumer: str, _: int = 0) -> int | None:
    """Return how many cycles after a producer of fixed latency its consumer may be issued; None if none was seen.

    producer, consumer: opcodes' names; as consumer also ``guard`` (by a guard) and ``over`` (written again). file: the
    register's, ``R``, ``UR``, ``P`` or ``UP``.
    """
    often = _table(90, "cycles").get(producer, {}).get(file)
    if often is None:
        return None
    seldom = _table(90, "seldom").get(producer, {}).get(file, {})
    return often.get(consumer, seldom.get(consumer, often["*"]))


def _known(producer: str, file: str, consumer: str, _: int) -> int:
    """As ``required``, but 0 for what was not often seen."""
    return _table(90, "cycles").get(producer, {}).get(file, {}).get(consumer, 0)


def _report(columns: Columns, index: int, state: State, report: Report, cycles: Cycles) -> None:
    """Report what an instruction may not read or write yet."""
    condition = columns.conditions[index]
    # What only lanes of the opposite guard are concerned with, this instruction does not touch.
    apart = ~state.awaited_under.get(condition ^ 1, 0) if condition >= 0 else -1
    reads, writes = columns.reads[index] & apart, columns.writes[index] & apart
    name = columns.names[index] or ""
    unit = _UNIT.get(name)
    in_order = 0 if unit is None else state.in_order[unit]
    for mask, rule in (
        (state.written.out & reads, "is read before its scoreboard says that it is there"),
        (state.written.out & writes & ~in_order, "is written while a result for it is under way"),
        (0 if columns.variable[index] else state.read.out & writes, "is written before it has been read"),
    ):
        if mask:
            report(index, f"{', '.join(registers_of(mask))} {rule}")
    apart = ~state.under.get(condition ^ 1, 0) if condition >= 0 else -1
    reads, writes = columns.reads[index] & apart, columns.writes[index] & apart
    guard = columns.guards[index]
    operands = reads & ~guard if guard else reads
    for (age, producer), mask in state.recent.items():
        for used, consumer in ((operands, name), (guard, _GUARD), (writes, _OVER)):
            if not mask & used:
                continue
            for letter, of_file in FILES.items():
                registers = mask & used & of_file
                if not registers:
                    continue
                needed = cycles(producer, letter, consumer, age)
                names = ", ".join(registers_of(registers))
                if needed is None:
                    report(index, f"{names} is used {age} cycles after {producer}, whose latency is not known")
                elif age < needed:
                    report(index, f"{names} is used {age} cycles after {producer}, not {needed}")


def _successors(columns: Columns, index: int, targets: Mapping[int, int]) -> list[int]:
    """Instructions that may come next. Calls and returns are not followed."""
    form = columns.forms[index]
    if form is None:
        return []
    always = GUARD.get(columns.low[index]) == ALWAYS and not columns.low[index] >> 15 & 1
    if form.flow is Flow.BRANCH:
        found = [targets[index]] if index in targets else []
        # A branch has a condition besides its guard, and other forms ask the warp.
        others = FILES["P"] | FILES["UP"] | FILES["UR"]
        if not always or form.name != "BRA" or columns.reads[index] & others:
            found.append(index + 1)
        return found
    if form.flow is Flow.CALL:
        return []
    if form.flow in (Flow.RETURN, Flow.EXIT) and always:
        return []
    return [index + 1]


def hazards(code: Code, cycles: Cycles | None = None, report: Report | None = None) -> list[Finding]:
    """Return the rules that code breaks, by the flow of control.

    Nothing is assumed of what is under way at the start, after a call, and where an indirect branch may go. The
    latencies that are asked for are those that were often seen. cycles: as of ``step``. report: gets each (index, rule)
    instead of the findings being returned.
    """
    columns = Columns(code)
    count = len(columns)
    targets = {}
    starts = {0}
    for index, form in enumerate(columns.forms):
        if form is None or form.flow in (Flow.BRANCH, Flow.CALL, Flow.RETURN, Flow.EXIT):
            starts.add(index + 1)
        if form is not None and form.target and form.flow in (Flow.BRANCH, Flow.CALL):
            target = code[index].target
            if target is not None and not target % INSTRUCTION_BYTES and 0 <= target // INSTRUCTION_BYTES < count:
                targets[index] = target // INSTRUCTION_BYTES
                starts.add(targets[index])
    ordered = sorted(start for start in starts if start < count)
    ends = dict(zip(ordered, [*ordered[1:], count], strict=True))
    states: dict[int, State] = {}
    work = list(reversed(ordered))
    while work:
        start = work.pop()
        state = states.setdefault(start, State()).copy()
        for index in range(start, ends[start]):
            step(columns, index, state, None)
        for after in _successors(columns, ends[start] - 1, targets):
            if after >= count:
                continue
            known = states.get(after)
            if known is None:
                states[after] = state.copy()
            elif known.join(state) and after not in work:
                work.append(after)
    found: list[Finding] = []

    def collect(index: int, rule: str) -> None:
        found.append(Finding(index * INSTRUCTION_BYTES, rule))

    for start in ordered:
        state = states[start].copy()
        for index in range(start, ends[start]):
            step(columns, index, state, report or collect, cycles or _known)
    return found
