"""Code of probes at accesses of memory, as ``ptxas`` assembled it, ready to be put into trampolines.

Each part (the entry's, the end's, and that of each kind of access) is a kernel of its own. Parts share nothing but what
they keep, which has placeholders (``placeholders.py``), so each is understood by itself. It goes straight on: a branch
over a few instructions, as ``ptxas`` writes it around atomics, becomes their guard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as fields
from types import MappingProxyType

import numpy as np

from neutrino.errors import MachineCodeError
from neutrino.sass.decoder import Code, decode
from neutrino.sass.fields import (
    ALWAYS,
    GUARD,
    INSTRUCTION_BYTES,
    NEGATED,
    NO_BARRIER,
    OPCODE,
    READ_BARRIER,
    REUSE,
    SCOREBOARDS,
    STALL,
    WAIT,
    WRITE_BARRIER,
)
from neutrino.sass.instruction import RegisterFile
from neutrino.sass.twin import control
from neutrino.sass.twin.hazards import Columns, State, required, step
from neutrino.sass.twin.placeholders import (
    ADDRESS,
    EXECUTES,
    KEPT,
    LATENCY,
    MOVED,
    RESULT,
    SITE,
    ZERO,
    Access,
    Placeholder,
    instead,
    placeholder_in,
    restore_predicates,
    save_predicates,
)
from neutrino.sass.twin.probe_code import (
    LIFTED,
    PMTRIG,
    SAME_FOR_ALL,
    Lifted,
    LiftedWord,
    Named,
    Reader,
    Registers,
    Shape,
    moved_constant,
    renamed,
    settled,
    uniform_numbers,
    until_exit,
)
from neutrino.sass.twin.reference import Reference
from neutrino.sass.twin.sums import idle

_ZERO = 255
_BRANCH_OPCODE = 0x947
_SPECIAL_READ, _ADDRESS_PLACE = "S2R", 24
_ALSO_LIFTED = frozenset({"ATOMG", "HFMA2", "MATCH", "SHFL", "VIADD", "VIADDMNMX", "VIMNMX"})
"""Opcodes that may be at accesses, too: what joins lanes does so with those that are there."""
_STORES = frozenset({"ATOMG", "RED", "REDG", "STG"})
_BRANCH, _BEGINS, _JOINS, _BARRIER = "BRA", "BSSY", "BSYNC", "BAR"
_COUNTS: Mapping[int, tuple[int, ...]] = {ADDRESS: (1, 2), EXECUTES: (1,), SITE: (1,), ZERO: (2,), RESULT: (1, 2)}
"""How many registers code at accesses is told in, by the placeholder's number: of an address the lower half or both."""
_FIRST_OWN, _FIRST_SUM = 1000, 2000
"""Numbers of registers that stand for placeholders which code has for itself, and for sums, until they are placed."""
_GROUP = 4
"""Registers that stay together: operands of 128 bits."""


@dataclass(frozen=True)
class PartWord:
    """One instruction of a part. placeholder: what it stands for; None for an instruction that is placed itself. named,
    bits: of that, as in ``LiftedWord``. leaps: whether it is a branch to the code's end."""

    lifted: LiftedWord
    placeholder: Placeholder | None = None
    leaps: bool = False


@dataclass(frozen=True)
class Part:
    """A part that was understood. words: ``ptxas``' own, with the barrier at the end, as the checker is told them.
    code: what becomes of them. general, predicates: the registers that it names, ascending. hurries: whether no cycles
    are left that no register needs, since two clocks are read around the access."""

    words: tuple[int, ...]
    code: tuple[PartWord, ...]
    general: tuple[int, ...]
    predicates: tuple[int, ...]
    hurries: bool = False


@dataclass(frozen=True)
class Parts:
    """All parts of the probes' code. accesses: by what their accesses have in common, the code before them. uniform: of
    each value that is in uniform registers, how many they are. kept: of each register that is kept, 1 or 2. shape:
    where the probe block is in the parts. unnamed: first parts of the names of accesses that no probe is at. after: the
    code after accesses, as in ``accesses``."""

    shape: Shape
    entry: Part
    exit: Part
    accesses: Mapping[tuple[str, int], Part]
    uniform: tuple[int, ...]
    kept: tuple[int, ...]
    unnamed: frozenset[str] = frozenset()
    after: Mapping[tuple[str, int], Part] = fields(default_factory=dict)

    def asks(self, kind: tuple[str, int], placeholder: int) -> bool:
        """Whether the code at a kind of access is told something."""
        parts = [of_kind[kind] for of_kind in (self.accesses, self.after) if kind in of_kind]
        return any(
            one.placeholder is not None and one.placeholder.number == placeholder for part in parts for one in part.code
        )


@dataclass(frozen=True)
class PlacedParts:
    """What ``place_parts`` made for one kernel. accesses: by the number of the site's instruction, the code before it
    and that after it. top: the highest general register. kept: the first register of what is kept, each."""

    entry: tuple[int, ...]
    exit: tuple[int, ...]
    accesses: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]
    top: int
    kept: tuple[int, ...]


def lift_parts(
    entry: Sequence[int], leave: Sequence[int], accesses: Mapping[tuple[str, int], Sequence[int]],
    kept: Sequence[int], shape: Shape, name: str, unnamed: frozenset[str] = frozenset(),
    after: Mapping[tuple[str, int], Sequence[int]] = MappingProxyType({}),
) -> Parts:  # fmt: skip
    """Return parts with all that they name understood.

    entry, leave, accesses, after: the code of one kernel each. kept, shape, unnamed: as in ``Parts``. name: for
    messages. Raises MachineCodeError for whatever has no place in a trampoline.
    """
    reader = Reader(shape, name, LIFTED | _ALSO_LIFTED, waits=True)
    before = {key: replace(_lift(reader, words, kept, name), hurries=bool(after)) for key, words in accesses.items()}
    behind = {key: _lift(reader, words, kept, name, is_after=True) for key, words in after.items()}
    ends = _lift(reader, entry, kept, name, "entry"), _lift(reader, leave, kept, name)
    return Parts(shape, *ends, before, tuple(reader.values), tuple(kept), unnamed, behind)


def lift_end(leave: Sequence[int], numbers: Sequence[int], more: int, shape: Shape, name: str) -> Lifted:
    """Return code for where a thread ends, which adds sums of 64 bits to memory.

    numbers: of these sums among those of the shape, in the order of their placeholders. more: how many further
    placeholders of 64 bits the code may have for itself. Else as ``lift_parts``.
    """
    reader = Reader(shape, name, LIFTED | _ALSO_LIFTED)
    part = _lift(reader, leave, (2,) * (len(numbers) + more), name)
    sums = {number: _FIRST_SUM + 2 * index for index, number in enumerate(numbers)}
    registers = [*sums.values(), *(_FIRST_OWN + 2 * index for index in range(more))]
    out: list[LiftedWord] = []
    own: set[int] = set()
    after: Placeholder | None = None
    for one in part.code:
        held = one.placeholder
        if held is None:
            if after is not None:
                out[-1] = replace(out[-1], bits=_for_at_least(out[-1].bits, LATENCY))
            out.append(one.lifted)
        else:
            if held.stores and not (after is not None and after.stores):
                out.append(LiftedWord(idle(LATENCY)))
            place = registers[held.number - KEPT] if held.number >= KEPT else _ZERO
            out += _moves(held, place, one.lifted.bits)
            own |= {place, place + 1} if _FIRST_OWN <= place < _FIRST_SUM else set()
        after = held
    reference = Reference((), part.words, {}, shape.parameter_base + shape.block_offset, sm=shape.sm)
    return Lifted(
        shape, (), tuple(out), tuple(sorted({*part.general} | own)), frozenset(), part.predicates, tuple(reader.values),
        tuple(sums.get(number) for number in range(len(shape.sums))), reference,
    )  # fmt: skip


def _moves(held: Placeholder, place: int, control_bits: int) -> list[LiftedWord]:
    """Return the moves in the place of a placeholder, with registers to be named. place: number of the first register
    that stands for it, RZ for 0. control_bits: of the instruction that is replaced."""
    out = []
    for index, word in enumerate(instead(held, held.register, place & 0xFF, None, control_bits)):
        there, own = (place, held.register) if held.stores else (held.register, place)
        named = [
            Named(field, False, RegisterFile.GENERAL, 1, first + index, reads=number == 1)
            for number, (field, first) in enumerate(zip(MOVED, (there, own), strict=True)) if first != _ZERO
        ]  # fmt: skip
        out.append(LiftedWord(word, tuple(named)))
    return out


def _lift(
    reader: Reader, words: Sequence[int], kept: Sequence[int], name: str, part: str = "exit", *, is_after: bool = False
) -> Part:  # fmt: skip
    """Understand one part. part: the reader's name for what may be in it. is_after: whether it is code after an
    access, which may leap to its end."""
    words = until_exit(words, name)
    reader.written, reader.general, reader.predicates, reader.unread = {}, set(), set(), set()
    code = decode(_halves(words), reader.sm, name)
    leap = _leap_in(words, code) if is_after else None
    straight = _straight(words, code, name, leap)
    out: list[PartWord] = []
    taken = 0
    last = len(straight) - 1
    for index, word in enumerate(straight):
        form = code.form(index)
        # Scoreboards that nothing here has taken are not waited for: they were those of placeholders.
        wait = WAIT.get(word) & taken
        taken &= ~wait
        word = WAIT.put(word, wait)
        if word & (1 << STALL.low) - 1 == PMTRIG:
            out.append(PartWord(LiftedWord(word)))
            continue
        if form is None:
            raise MachineCodeError(name, f"the probe's code has an instruction that the table lacks, {word:#034x}")
        base = form.name.partition(".")[0]
        if index == leap:
            taken &= ~wait
            guard = Named(GUARD, False, RegisterFile.PREDICATE, 1, GUARD.get(word), reads=True)
            control_bits = STALL.put(WAIT.put(0, wait), STALL.get(word))
            leaping = control.guarded(control_bits, GUARD.get(word), negated=bool(NEGATED.get(word)))
            out.append(PartWord(LiftedWord(leaping, (guard,)), leaps=True))
            continue
        if base in (_BRANCH, _BEGINS, _JOINS, _BARRIER):
            if index < last or wait:
                out.append(PartWord(LiftedWord(idle(max(STALL.get(word), 1), wait))))
            continue
        one = placeholder_in(form, word)
        if one is not None:
            _note(reader, one, kept, name)
            out.append(PartWord(LiftedWord(STALL.put(WAIT.put(0, wait), STALL.get(word))), one))
            continue
        if reader.sets_stack(form, word) or (is_after and _addresses_placeholders_alone(code, words, index)):
            continue
        reader.check(form, word, part)
        if base in _STORES and READ_BARRIER.get(word) == NO_BARRIER:
            # Its operands change when the code runs again.
            own = WRITE_BARRIER.get(word)
            word = READ_BARRIER.put(word, (own + 1) % SCOREBOARDS if own != NO_BARRIER else SCOREBOARDS - 1)
        named = reader.named(form, word)
        for field in (WRITE_BARRIER, READ_BARRIER):
            taken |= 1 << field.get(word) if field.get(word) != NO_BARRIER else 0
        out.append(PartWord(LiftedWord(reader.with_constant(form, word), named)))
    general, predicates = (tuple(sorted(numbers)) for numbers in (reader.general, reader.predicates))
    return Part(tuple(words), tuple(out), general, predicates, is_after)


def _halves(words: Sequence[int]) -> np.ndarray:
    return np.array([[word & (1 << 64) - 1, word >> 64] for word in words], np.uint64)


def _note(reader: Reader, one: Placeholder, kept: Sequence[int], name: str) -> None:
    """Note what a placeholder does to registers. Raises MachineCodeError for one that stands for nothing."""
    counts = {**_COUNTS, **{KEPT + number: (count,) for number, count in enumerate(kept)}}
    if one.count not in counts.get(one.number, ()) or (one.stores and one.number == RESULT):
        raise MachineCodeError(name, f"the probe's code has the placeholder {one.number}, which stands for nothing")
    if one.stores and one.register == _ZERO:
        return
    for register in range(one.register, one.register + one.count):
        if one.stores and (RegisterFile.GENERAL, register) not in reader.written:
            raise MachineCodeError(name, f"the probe's code keeps R{register}, which nothing wrote")
        reader.written[RegisterFile.GENERAL, register] = True
        reader.general.add(register)


def _addresses_placeholders_alone(code: Code, words: Sequence[int], index: int) -> bool:
    """Whether an instruction reads the lane's mask into a register that gives placeholders their addresses, and nothing
    else reads it."""
    form = code.form(index)
    if form is None or form.name != _SPECIAL_READ or GUARD.get(words[index]) != ALWAYS:
        return False
    (register,) = (one.field.get(words[index]) for one in form.places if one.writes)
    for later in range(index + 1, len(words)):
        other = code.form(later)
        places = [] if other is None else [
            one for one in other.places if one.field.file is RegisterFile.GENERAL
            and one.field.get(words[later]) <= register < one.field.get(words[later]) + one.count
        ]  # fmt: skip
        if any(one.reads for one in places) and (other is None or placeholder_in(other, words[later]) is None):
            return False
        if any(one.reads and one.field.low != _ADDRESS_PLACE for one in places):
            return False
        if any(one.writes for one in places):
            break
    return True


def _leap_in(words: Sequence[int], code: Code) -> int | None:
    """Return the number of a branch to the end of code after an access, under a predicate, from which the lanes do not
    come together again; None without one. It is the first branch, and nothing joins lanes around it."""
    forms = [code.form(index) for index in range(len(words))]
    names = [form.name.partition(".")[0] if form is not None else "" for form in forms]
    first = next((index for index, one in enumerate(names) if one in (_BRANCH, _BEGINS)), None)
    if first is None or names[first] != _BRANCH:
        return None
    target = code[first].target
    return first if target is not None and names[target // 16 :] == [_BARRIER] else None


def _straight(words: Sequence[int], code: Code, name: str, leap: int | None = None) -> list[int]:
    """Return code with guards in the place of branches over instructions, but for a leap to its end (number of the
    branch). Raises MachineCodeError for others."""
    out = list(words)
    for index, word in enumerate(words):
        form = code.form(index)
        if form is None or form.name.partition(".")[0] != _BRANCH or index == leap:
            continue
        target = code[index].target
        predicate, negated = GUARD.get(word), NEGATED.get(word)
        end = -1 if target is None else target // 16
        if not index < end < len(words) or predicate == ALWAYS or control.CONDITION.get(word) != ALWAYS:
            raise MachineCodeError(name, "the probe's code has a branch that is no condition of what follows")
        for between in range(index + 1, end):
            inner = code.form(between)
            base = inner.name.partition(".")[0] if inner is not None else ""
            if base in SAME_FOR_ALL and not any(place.writes and place.field.file is RegisterFile.GENERAL
                                                for place in (inner.places if inner is not None else ())):
                # All lanes get the same from it, so it does no harm in those that are not meant.
                continue
            is_free = GUARD.get(words[between]) == ALWAYS and not NEGATED.get(words[between])
            writes = {
                place.field.get(words[between]) for place in (inner.places if inner is not None else ())
                if place.writes and place.field.file is RegisterFile.PREDICATE
            }  # fmt: skip
            if inner is None or inner.guard is not RegisterFile.PREDICATE or not is_free or predicate in writes:
                raise MachineCodeError(name, f"the probe's code has {base or 'an instruction'} in a branch")
            out[between] = control.guarded(words[between], predicate, negated=not negated)
    return out


def _leaping(words: list[int], sm: int) -> list[int]:
    """Return code after an access with its branch to the end, if it has one, and with nothing under way there. sm: of
    the architecture."""
    leap = next((index for index, word in enumerate(words) if OPCODE.get(word) == _BRANCH_OPCODE), None)
    taken = _taken(words) | _taken(words[:leap] if leap is not None else ())
    out = settled([*words, *([idle(1, taken)] if taken else [])], shares_predicates=False)
    if leap is not None:
        end = len(out) - bool(taken)
        branch = control.branch(leap * INSTRUCTION_BYTES, end * INSTRUCTION_BYTES, sm, WAIT.get(out[leap]))
        out[leap] = control.guarded(branch, GUARD.get(out[leap]), negated=bool(NEGATED.get(out[leap])))
    return out


def _taken(words: Sequence[int]) -> int:
    """Return the scoreboards that code takes and does not wait for, a mask."""
    taken = 0
    for word in words:
        taken &= ~WAIT.get(word)
        for barrier in (WRITE_BARRIER.get(word), READ_BARRIER.get(word)):
            taken |= 1 << barrier if barrier != NO_BARRIER else 0
    return taken


def missing_cycles(words: Sequence[int], name: str, sm: int) -> Iterator[tuple[int, int]]:
    """Yield which instructions of code would be issued too early after those whose results they use, and by how many
    cycles, if those before are issued in time.

    What ``ptxas`` leaves between two instructions is enough, but where it was seldom seen, the table of latencies, by
    which twins are checked, asks for more. sm: of the architecture, as 90.
    """
    columns, state, asked = Columns(decode(_halves(words), sm, name)), State(), required(sm)
    missing = 0

    def least(producer: str, file: str, use: str, age: int) -> int:
        nonlocal missing
        missing = max(missing, (asked(producer, file, use, age) or 0) - age)
        return 0

    for index in range(len(columns)):
        missing = 0
        step(columns, index, state.copy(), _unheard, least)
        if missing:
            yield index, missing
            state.recent = {(age + missing, producer): mask for (age, producer), mask in state.recent.items()}
        step(columns, index, state, None)


def _unheard(_: int, rule: str) -> None:
    """What is wrong besides, the checker says."""


def with_cycles(words: Sequence[int], missing: Sequence[tuple[int, int]]) -> list[int]:
    """Return code in which the instructions before some take more cycles. missing: of ``missing_cycles``."""
    more = dict(missing)
    out: list[int] = []
    for index, word in enumerate(words):
        cycles = more.get(index, 0)
        if cycles and out and STALL.get(out[-1]) + cycles <= control.LONGEST_STALL:
            out[-1] = control.with_stall(out[-1], STALL.get(out[-1]) + cycles)
            cycles = 0
        while cycles:
            out.append(idle(min(cycles, control.LONGEST_STALL)))
            cycles -= STALL.get(out[-1])
        out.append(word)
    return out


def _for_at_least(word: int, cycles: int) -> int:
    """Return an instruction that takes so many cycles at least."""
    return control.with_stall(word, max(STALL.get(word), cycles))


def place_parts(
    parts: Parts, registers: Registers, block_offset: int, sites: Mapping[int, tuple[tuple[str, int], Access]],
    name: str,
) -> PlacedParts:  # fmt: skip
    """Return the parts with a kernel's registers.

    registers: what the kernel leaves. block_offset: of the probe block among its parameters, in bytes. sites: by the
    number of the instruction, which part and what it is told. name: the kernel's. Raises MachineCodeError where the
    kernel has too few registers left.
    """
    used = [parts.entry, parts.exit, *parts.accesses.values(), *parts.after.values()]
    numbers = {number for part in used for number in part.general}
    groups = {group: registers.base + _GROUP * index
              for index, group in enumerate(sorted({number // _GROUP for number in numbers}))}  # fmt: skip
    general = {number: groups[number // _GROUP] + number % _GROUP for number in numbers}
    free = registers.base + _GROUP * len(groups)
    kept: list[int] = []
    for count in parts.kept:
        free += free % count
        kept.append(free)
        free += count
    placing = _Placing(
        {RegisterFile.GENERAL: general, RegisterFile.PREDICATE: {},
         RegisterFile.UNIFORM: uniform_numbers(parts.uniform, registers.uniform, name)},
        registers, kept, parts.shape.parameter_base + parts.shape.block_offset,
        block_offset - parts.shape.block_offset, free, name, parts.shape.sm,
    )  # fmt: skip
    entry, leave = placing.whole(parts.entry), placing.whole(parts.exit)
    accesses = {
        index: placing.around(parts.accesses.get(key), parts.after.get(key), access)
        for index, (key, access) in sites.items()
    }  # fmt: skip
    return PlacedParts(entry, leave, accesses, placing.top, tuple(kept))


@dataclass
class _Placing:
    """Places the parts of one kernel. start, moved: of ``moved_constant``. free: the first register that nothing has.
    top: the highest register so far. sm: of the architecture."""

    maps: Mapping[RegisterFile, Mapping[int, int]]
    registers: Registers
    kept: Sequence[int]
    start: int
    moved: int
    free: int
    name: str
    sm: int

    def __post_init__(self) -> None:
        self.top = self.free - 1
        # By the part: the same at all accesses of a kind.
        self._late: dict[int, tuple[tuple[int, int], ...]] = {}

    def whole(self, part: Part) -> tuple[int, ...]:
        """Return the code for the entry or the end, where nothing of the kernel's predicates is needed any more."""
        chosen = self._predicates(part, self.registers.predicates)
        shares = bool(set(chosen.values()) & self.registers.shared)
        return tuple(settled(self._words(part, chosen, None), shares_predicates=shares))

    def around(
        self, before: Part | None, after: Part | None, access: Access
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:  # fmt: skip
        """Return the code before an access and that after it: predicates that the kernel names get their values back
        after both, so that nothing is between two clocks that need not be."""
        guard = access.guard[0]
        # The access's own guard is read before, but perhaps after others are written.
        pool = [one for one in self.registers.predicates if one != guard]
        taken: set[int] = set()
        words: list[list[int]] = [[], []]
        for number, part in enumerate((before, after)):
            if part is None:
                continue
            chosen = self._predicates(part, pool)
            taken |= set(chosen.values())
            words[number] = self._words(part, chosen, access)
        first, second = settled(words[0], shares_predicates=False), _leaping(words[1], self.sm)
        mask = sum(1 << one for one in taken & self.registers.shared)
        if mask:
            self.top = max(self.top, self.free)
            # What the kernel wrote to them has time to arrive, before and after.
            first = [idle(control.LONGEST_STALL), save_predicates(self.free, mask), *first]
            (second if after is not None else first).append(restore_predicates(self.free, mask))
        if after is not None:
            # A scoreboard can be waited for from the second cycle after the access took it.
            second.insert(0, idle(1))
        return tuple(first), tuple(second)

    def _predicates(self, part: Part, pool: Sequence[int]) -> dict[int, int]:
        if len(part.predicates) > len(pool):
            what = f"has {len(pool)} predicates left for {len(part.predicates)} of the probe's"
            raise MachineCodeError(self.name, what)
        return dict(zip(part.predicates, pool, strict=False))

    def _words(self, part: Part, predicates: Mapping[int, int], access: Access | None) -> list[int]:
        maps = {**self.maps, RegisterFile.PREDICATE: predicates}
        general = self.maps[RegisterFile.GENERAL]
        out: list[int] = []
        after = None
        for one in part.code:
            held = one.placeholder
            if one.leaps:
                held_bits = renamed(one.lifted, maps)
                out.append(control.guarded(
                    control.branch(0, 0, self.sm, WAIT.get(held_bits)), GUARD.get(held_bits),
                    negated=bool(NEGATED.get(held_bits)),
                ))  # fmt: skip
            elif held is not None:
                if held.stores and not (after is not None and after.stores) and out and not part.hurries:
                    # A store would be issued later after what computes, and as late after a clock at the entry.
                    out.append(idle(LATENCY if access is not None else control.LONGEST_STALL))
                register = general.get(held.register, _ZERO)
                kept = self.kept[held.number - KEPT] if KEPT <= held.number < RESULT else -1
                out += instead(held, register, kept, access, one.lifted.bits)
            else:
                if after is not None and not part.hurries:
                    out[-1] = _for_at_least(out[-1], LATENCY)
                out.append(moved_constant(REUSE.put(renamed(one.lifted, maps), 0), self.start, self.moved))
            after = held
        if after is not None and out and not part.hurries:
            out[-1] = _for_at_least(out[-1], LATENCY)
        if id(part) not in self._late:
            self._late[id(part)] = tuple(missing_cycles(out, self.name, self.sm))
        return with_cycles(out, self._late[id(part)])
