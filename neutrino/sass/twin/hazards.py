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
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from neutrino.sass.decoder import Code
from neutrino.sass.encoding import Form
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
_OF_NUMBERS = frozenset({RegisterFile.GENERAL, RegisterFile.UNIFORM})
_SIZES = {
    RegisterFile.GENERAL: 256, RegisterFile.UNIFORM: 256, RegisterFile.PREDICATE: 8, RegisterFile.UNIFORM_PREDICATE: 8,
}  # fmt: skip
FILES: Mapping[str, int] = {file.value: (1 << _SIZES[file]) - 1 << FIRST[file] for file in FIRST}
"""Letter of a register file → all its registers."""
_UNITS = (
    frozenset({"LDS", "STS", "LDSM", "STSM", "SHFL", "ATOMS"}),
    frozenset({"MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV", "FCHK"}),
    frozenset({"S2UR"}),
    frozenset({"DADD", "DFMA", "DMUL", "DSETP"}),
)
"""Opcodes whose results come in the order in which they were issued: shared memory, the unit for functions and
conversions, special registers, and double precision (where it has scoreboards, as on sm_80)."""
_UNIT: Mapping[str, int] = {name: number for number, names in enumerate(_UNITS) for name in names}
LONGEST = 40
"""Cycles after which every result of a fixed latency is there: more than any that ``ptxas`` waits for so."""
COPY = "LDGSTS"
"""``nvdisasm`` marks its predicate as defined, too; ``ptxas`` overwrites it at once, so it is only read."""
_KEPT = 2
"""Codes whose columns are kept: a kernel's and its twin's."""
_UNKNOWN = None, "", False, -1
"""What ``_of_form`` returns, of an instruction that the table does not have."""
_GUARD = "guard"
OVER = "over"
OTHERS = "*"
"""Stands for all other consumers in the table of latencies."""
_THIRD = "third"
_THIRD_PLACE = 64
"""Bit of the field of an instruction's third operand, the one that is added: a sum may be added to earlier than
multiplied."""
_PRODUCTS = frozenset({"HMMA", "IMMA", "DMMA", "QMMA", "BMMA"})
_SLOWER = frozenset({"WIDE", "HI", "MMA", "SP"})
"""Modifiers by which an opcode takes longer, or another unit."""
_SHAPE = re.compile(r"\d{3,}|\d+x\d+x\d+")
Report = Callable[[int, str], None]
"""(number of an instruction, rule that it breaks)"""
Cycles = Callable[[str, str, str, int], "int | None"]
"""(producer, register file, use, cycles since the producer) → cycles that it needs; None if that is not known.
Producers and uses are as in ``required``."""


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


@functools.cache
def kind(name: str) -> str:
    """Return what latencies are known by: the opcode, and those of its modifiers that matter.

    name: with all modifiers, ``IMAD.WIDE.U32``.
    """
    opcode, *parts = name.split(".")
    if opcode in _PRODUCTS:
        return ".".join([opcode, *(part for part in parts if _SHAPE.fullmatch(part) or part in {"SP", "F16", "F32"})])
    return ".".join([opcode, *(part for part in parts if part in _SLOWER)])


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
    stall: cycles, at least 1. names: the opcode's; None for what the decoder's table does not have. kinds: what its
    latencies are known by. variable: whether the latency is. write_barrier, read_barrier: 7 for none. wait: mask.
    """

    def __init__(self, code: Code, begin: int = 0) -> None:
        """begin: number of the first instruction that is asked for; of those before it nothing is known."""
        self.code, self.sm = code, code.sm
        self.reads, self.writes = _masks(code.reads, begin), _masks(code.writes, begin)
        self.stall: list[int] = np.maximum(code.stall, 1).tolist()
        self.write_barrier: list[int] = code.write_barrier.tolist()
        self.read_barrier: list[int] = code.read_barrier.tolist()
        self.wait: list[int] = code.wait_mask.tolist()
        self.low: list[int] = code.words[:, 0].tolist()
        self.high: list[int] = code.words[:, 1].tolist()
        self.forms: list[Form | None] = code.of_each(code.forms)
        rows = [_UNKNOWN if form is None else _of_form(form) for form in code.forms]
        self.names: list[str | None] = code.of_each([name for name, *_ in rows])
        self.kinds = code.of_each([of_kind for _, of_kind, *_ in rows])
        for number in np.flatnonzero(code.having(lambda form: form is not None and _opcode(form) == COPY)).tolist():
            self.writes[number] &= ~FILES["P"]
        for index in code.unknown // INSTRUCTION_BYTES:
            low, high = (int(half) for half in code.words[index])
            if (low | high << 64) & (1 << STALL.low) - 1 == _PMTRIG:
                self.names[index] = self.kinds[index] = "PMTRIG"
        self.variable = code.of_each([variable for *_, variable, _ in rows])
        firsts = np.array(code.of_each([first for *_, first in rows]), np.int64)
        numbers = (code.words[:, 0] >> np.uint64(GUARD.low) & np.uint64((1 << GUARD.bits) - 1)).astype(np.int64)
        negated = (code.words[:, 0] >> np.uint64(NEGATED.low) & np.uint64(1)).astype(np.int64)
        is_guarded = (firsts >= 0) & (numbers != ALWAYS)
        self.guards = [1 << bit if bit >= 0 else 0 for bit in np.where(is_guarded, firsts + numbers, -1).tolist()]
        self.conditions: list[int] = np.where(is_guarded, 2 * (firsts + numbers) + negated, -1).tolist()
        self._thirds: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.low)

    def row(self, index: int) -> tuple[object, ...]:
        """Return all that ``step`` asks of an instruction."""
        columns = (
            self.names, self.kinds, self.reads, self.writes, self.guards, self.conditions, self.stall, self.variable,
            self.write_barrier, self.read_barrier, self.wait,
        )  # fmt: skip
        return self.third(index), *(column[index] for column in columns)

    def third(self, index: int) -> int:
        """Return the registers that an instruction reads as its third operand, a mask."""
        found = self._thirds.get(index)
        if found is None:
            found, form = 0, self.forms[index]
            for place in form.places if form is not None else ():
                field = place.field
                if field.low == _THIRD_PLACE and place.reads and field.file in _OF_NUMBERS:
                    number = self.high[index] & (1 << field.bits) - 1
                    found |= ((1 << place.count) - 1 << number + FIRST[field.file]) & self.reads[index]
            self._thirds[index] = found
        return found


@functools.lru_cache(maxsize=_KEPT)
def columns_of(code: Code) -> Columns:
    """Return the columns of decoded code, the same ones each time: several ask for those of a kernel."""
    return Columns(code)


def _of_form(form: Form) -> tuple[str, str, bool, int]:
    """Return the opcode's name, its kind, whether its latency is variable, and the bit of register 0 of the guard's
    file, -1 for what has no guard."""
    first = FIRST[form.guard] if form.guard is not None else -1
    return _opcode(form), kind(form.name), form.latency is Latency.VARIABLE, first


def _opcode(form: Form) -> str:
    """Return the opcode's name."""
    return form.name.partition(".")[0]


def all_named(code: Code) -> int:
    """Return the mask of all registers that any instruction reads or writes."""
    named = {file: np.bitwise_or.reduce(code.reads[file] | code.writes[file], axis=0, keepdims=True) for file in FIRST}
    return _masks(named)[0] if len(code) else 0


def _masks(by_file: Mapping[RegisterFile, np.ndarray], begin: int = 0) -> list[int]:
    """Masks of registers of all files, by instruction; 0 of those before that number."""
    files = by_file[RegisterFile.GENERAL][begin:], by_file[RegisterFile.UNIFORM][begin:]
    of_predicates = by_file[RegisterFile.PREDICATE][begin:], by_file[RegisterFile.UNIFORM_PREDICATE][begin:]
    rows = np.hstack([*(one.astype("<u8").view(np.uint8) for one in files), *(one[:, None] for one in of_predicates)])
    data, size = rows.tobytes(), rows.shape[1]
    found = [0] * begin
    found += [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]
    return found


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
    in_order: by unit, those of ``written`` that a unit answers in order. recent: (cycles since it was issued, ``kind``)
    → registers that an instruction of fixed latency wrote. taken: scoreboards that the instruction right
    above took, if it leaves one cycle only. written_under, read_under, recent_under: guard (as of
    ``Columns.conditions``) → registers of ``written``, ``read`` and ``recent`` that only lanes of that guard are
    concerned with."""

    written: _Awaited = field(default_factory=_Awaited)
    read: _Awaited = field(default_factory=_Awaited)
    in_order: tuple[int, ...] = (0,) * len(_UNITS)
    recent: dict[tuple[int, str], int] = field(default_factory=dict)
    taken: int = 0
    written_under: dict[int, int] = field(default_factory=dict)
    read_under: dict[int, int] = field(default_factory=dict)
    recent_under: dict[int, int] = field(default_factory=dict)

    def copy(self) -> State:
        """Return a state of its own with the same contents."""
        return State(
            _Awaited(self.written.clauses), _Awaited(self.read.clauses), self.in_order, dict(self.recent), self.taken,
            dict(self.written_under), dict(self.read_under), dict(self.recent_under),
        )  # fmt: skip

    def forget(self) -> None:
        """Begin anew: nothing is known to be under way."""
        self.written, self.read, self.in_order = _Awaited(), _Awaited(), (0,) * len(_UNITS)
        self.recent, self.taken = {}, 0
        self.written_under, self.read_under, self.recent_under = {}, {}, {}

    @property
    def _under(self) -> tuple[dict[int, int], ...]:
        return self.written_under, self.read_under, self.recent_under

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
        under = tuple(_both(mine, theirs) for mine, theirs in zip(self._under, other._under, strict=True))
        changed |= (more, self.taken | other.taken) != (self.in_order, self.taken)
        changed |= under != self._under
        self.written_under, self.read_under, self.recent_under = under
        self.in_order, self.taken = more, self.taken | other.taken
        return changed


def _both(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """Return what two maps of masks have in common."""
    return {key: mask for key in one.keys() & other.keys() if (mask := one[key] & other[key])}


def step(columns: Columns, index: int, state: State, report: Report | None, cycles: Cycles | None = None) -> None:
    """Issue an instruction: report the rules that it breaks, and change the state to that of the next one.

    index: the instruction's. report: gets the index and the rule, in words; None to report nothing. cycles: what is
    asked for the cycles that a consumer needs; None: the architecture's table. An unknown instruction ends all
    knowledge.
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
    if any(state.in_order):
        out = state.written.out
        state.in_order = tuple(mask & out for mask in state.in_order)
    if report:
        _report(columns, index, state, report, cycles or required(columns.sm))
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
        key = stall, columns.kinds[index]
        recent[key] = recent.get(key, 0) | writes
    state.recent = recent
    state.taken = written | read if stall < 2 else 0


def _concern(columns: Columns, index: int, state: State) -> None:
    """Note which lanes alone are concerned with what an instruction writes or still reads. state: before it."""
    if columns.conditions[index] < 0 and not (state.written_under or state.read_under or state.recent_under):
        return
    writes = columns.writes[index]
    reads = columns.reads[index] & GENERAL & ~writes if columns.variable[index] else 0
    recent = 0
    for mask in state.recent.values():
        recent |= mask
    state.written_under = _under(columns, index, state.written_under, writes, state.written.out)
    state.read_under = _under(columns, index, state.read_under, reads, state.read.out)
    state.recent_under = _under(columns, index, state.recent_under, writes, recent)


def _under(columns: Columns, index: int, known: Mapping[int, int], touched: int, others: int) -> dict[int, int]:
    """Return guard → registers that lanes of it alone are concerned with, after an instruction. known: before it.
    touched: with which the instruction is concerned. others: with which some lanes are before it."""
    writes, condition = columns.writes[index], columns.conditions[index]
    touched &= ~columns.guards[index]
    under = {
        guard: left for guard, mask in known.items()
        if not writes >> (guard >> 1) & 1 and (left := mask if guard == condition else mask & ~touched)
    }  # fmt: skip
    if condition >= 0 and not writes >> (condition >> 1) & 1:
        under[condition] = under.get(condition, 0) | touched & ~others
    return under


@functools.cache
def required(sm: int) -> Cycles:
    """Return what says how many cycles after a producer of fixed latency a register of it may be used, on one
    architecture; it says None where none was seen.

    It is asked for the producer's ``kind``, the register's file (``R``, ``UR``, ``P`` or ``UP``), and the use: the
    ``kind`` of the consumer; with ``third`` after it, one that reads the register as its third operand; with ``over``
    before it, one that writes it again; or ``guard``. sm: of the architecture, as 90.
    """
    often_of, seldom_of = _table(sm, "cycles"), _table(sm, "seldom")

    def cycles(producer: str, file: str, use: str, _: int = 0) -> int | None:
        often = often_of.get(producer, {}).get(file)
        if often is None:
            return None
        seldom = seldom_of.get(producer, {}).get(file, {})
        if use == f"{OVER} {producer}":
            # A unit gives its results in order.
            return 1
        return often.get(use, seldom.get(use, often[OTHERS]))

    return cycles


def _known(sm: int) -> Cycles:
    """As ``required``, but 0 for what was not often seen."""
    often_of = _table(sm, "cycles")
    return lambda producer, file, use, _: often_of.get(producer, {}).get(file, {}).get(use, 0)


def _report(columns: Columns, index: int, state: State, report: Report, cycles: Cycles) -> None:
    """Report what an instruction may not read or write yet."""
    condition = columns.conditions[index]
    reads, writes = columns.reads[index], columns.writes[index]
    name = columns.names[index] or ""
    unit = _UNIT.get(name)
    in_order = 0 if unit is None else state.in_order[unit]
    # What only lanes of the opposite guard are concerned with, this instruction does not touch.
    written, read = state.written.out, state.read.out
    if condition >= 0:
        written &= ~state.written_under.get(condition ^ 1, 0)
        read &= ~state.read_under.get(condition ^ 1, 0)
    if written & (reads | writes) or read & writes:
        for mask, rule in (
            (written & reads, "is read before its scoreboard says that it is there"),
            (written & writes & ~in_order, "is written while a result for it is under way"),
            (0 if columns.variable[index] else read & writes, "is written before it has been read"),
        ):
            if mask:
                report(index, f"{', '.join(registers_of(mask))} {rule}")
    if condition >= 0:
        apart = ~state.recent_under.get(condition ^ 1, 0)
        reads, writes = reads & apart, writes & apart
    guard = columns.guards[index]
    operands = reads & ~guard if guard else reads
    touched = reads | writes
    of_kind = columns.kinds[index]
    for (age, producer), mask in state.recent.items():
        if not mask & touched:
            continue
        third = columns.third(index) & mask & operands
        for used, use in (
            (mask & operands & ~third, of_kind), (third, f"{of_kind} {_THIRD}"), (mask & guard & reads, _GUARD),
            (mask & writes, f"{OVER} {of_kind}"),
        ):  # fmt: skip
            if not used:
                continue
            for letter, of_file in FILES.items():
                registers = used & of_file
                if not registers:
                    continue
                needed = cycles(producer, letter, use, age)
                if needed is not None and age >= needed:
                    continue
                names = ", ".join(registers_of(registers))
                if needed is None:
                    report(index, f"{names} is used {age} cycles after {producer}, whose latency is not known")
                else:
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
    columns = columns_of(code)
    all_targets = code.targets()
    asked = cycles or _known(code.sm)
    count = len(columns)
    targets = {}
    starts = {0}
    for index, form in enumerate(columns.forms):
        if form is None or form.flow in (Flow.BRANCH, Flow.CALL, Flow.RETURN, Flow.EXIT):
            starts.add(index + 1)
        if form is not None and form.target and form.flow in (Flow.BRANCH, Flow.CALL):
            target = all_targets.get(index)
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
            step(columns, index, state, report or collect, asked)
    return found
