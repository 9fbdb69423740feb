"""The rules for code that a twin has in its trampolines at a kernel's entry, at its exits and at accesses of memory.

Asked by the checker of every twin. They are about what the inserted code could do to the kernel, and about what its own
instructions need; where a piece begins and ends the checker found by the branches. Which instructions the kernel has,
and what they write, the decoder says: its table is the one thing that this shares with the writer, as it was learned
from NVIDIA's disassembler and is compared with it by tests of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from neutrino.sass.decoder import Code
from neutrino.sass.fields import ALWAYS, GUARD, NEGATED, NO_BARRIER, SCOREBOARDS, Field
from neutrino.sass.instruction import Flow, Memory, RegisterFile
from neutrino.sass.twin.accesses import (
    KINDS,
    OTHERS,
    Counted,
    Sums,
    access_bytes,
    addition,
    check_body,
    check_counted,
    check_initial,
    check_site,
    check_sums,
    note_addition,
    registers_in,
    takes_scoreboard,
)
from neutrino.sass.twin.addresses import Value
from neutrino.sass.twin.executed import Added, CountedInstructions, check_executed
from neutrino.sass.twin.hazards import (
    FIRST,
    GENERAL,
    Finding,
    State,
    columns_of,
    registers_of,
    step,
)
from neutrino.sass.twin.instruction_rules import (
    PREDICATE_CYCLES,
    PREDICATES,
    SPECIAL,
    InstructionRules,
    Surroundings,
    Values,
    opcode_of,
    word_at,
)
from neutrino.sass.twin.leaps import leap_target, wrong_with_leap
from neutrino.sass.twin.reference import (
    AtSite,
    Comparison,
    Reference,
    Renamed,
    address_of,
    check_registers,
    put_by_of,
    something,
)
from neutrino.sass.twin.under_way import anywhere, longest

_GUARD, _NEVER = Field(12, 4), 0xF
_BRANCH_CYCLES = 5
"""Which the checker has seen that the branch at a site leaves."""
_LEAST_AFTER_SUM = 1 + 1 + 5
"""Cycles from an addition to the end of its trampoline: its own, the access', and those of the branch back."""
_LEAST_AFTER_COUNT = 1 + 5
"""The same where instructions are counted: its own, and those of a branch that was displaced."""
_LOADS = frozenset({"LDG", "LDS", "LDL", "LD"})
"""Opcodes after which there may be code: what they write are general registers, for which a scoreboard speaks."""
_CLOCKS = frozenset({0x50, 0x51})
"""What CS2R reads of the clock: its lower half, its upper half."""
_ADDED_NOTHING = 0x0000000000000000_0000000000007918
_NONE_PUT_BY = 0, -1


@dataclass(frozen=True)
class Piece:
    """A trampoline with code. site: number of the instruction that was displaced; all numbers count instructions from
    the section's first. ahead: what lets lanes that stay go back at once. body: the inserted code. end: the displaced
    instruction and what comes after it. Where there is inserted code after it as well: after: that. back: the branch
    back, which is not in end then. counts: of an EXIT's, what all lanes execute that come to it, the first part of
    ahead."""

    site: int
    ahead: range
    body: range
    end: range
    after: range = range(0)
    back: range = range(0)
    counts: range = range(0)


def check_inserted(
    original: Code, twin: Code, entry: Piece | None, exits: Sequence[Piece], accesses: Sequence[Piece],
    around: Surroundings,
) -> tuple[list[Finding], int]:  # fmt: skip
    """Return what is wrong with inserted code, and the highest general register in it, -1 without one.

    original, twin: all code of the section. entry: at the first instruction, None without. exits: at EXITs. accesses:
    at accesses of memory, those alone that have code.
    """
    if len(original.unknown):
        at = int(original.unknown[0])
        return [Finding(at, "what registers an instruction of the kernel names is not known")], -1
    return _Checker(original, twin, around).check(entry, exits, accesses)

class _Checker(InstructionRules):
    """Follows the inserted code of one twin."""

    def check(
        self, entry: Piece | None, exits: Sequence[Piece], accesses: Sequence[Piece]
    ) -> tuple[list[Finding], int]:  # fmt: skip
        """Return the findings and the highest general register."""
        state, values = State(), Values()
        if entry is not None:
            self._check_first(entry)
            self.lent, self.at_entry = self.ended, True
            self._follow(entry, state, values)
            self.lent, self.at_entry = 0, False
            self._check_settled(entry.body, state, entry.body.stop)
            self._give_back(values)
            self._end(entry, state)
        reference = self.around.reference
        if reference is not None and reference.is_whole:
            self._check_reference(entry, exits, accesses, reference, state, values)
        elif isinstance(self.around.counted, CountedInstructions):
            self._check_executed(self.around.counted, accesses, exits, state, values)
        elif accesses or reference is not None or self.around.counted is not None:
            self._check_accesses(accesses, exits, state, values)
        # All begin in the same state, so that nothing is wrong with those that are as one with which nothing is.
        right: set[object] = set()
        bodies: dict[object, int] = {}
        for piece in exits:
            body = tuple(word_at(self.twin, index) for index in piece.body)
            same = self._around(piece), body
            if same in right:
                continue
            before = len(self.found)
            mine = state.copy()
            self.lent = self.ended
            if self._named_in(piece) & self.ended:
                mine.join(anywhere(self.original))
            # What is asked of an instruction by itself holds later, too.
            cycles = self._ahead(piece, mine)
            is_right = cycles >= bodies.get(body, cycles + 1)
            self._follow(piece, mine, None if is_right else values.copy(), cycles)
            self.lent = 0
            self._end(piece, mine)
            if len(self.found) == before:
                right.add(same)
                bodies[body] = min(cycles, bodies.get(body, cycles))
        return self.found, self.top

    def _around(self, piece: Piece) -> object:
        """Return what is the same of two pieces with the same body that are alike in all that is followed: what is
        asked of the other instructions."""
        return len(piece.ahead), *(self.columns.row(index) for index in (*piece.ahead, *piece.end))

    def _check_reference(
        self, entry: Piece | None, exits: Sequence[Piece], accesses: Sequence[Piece], reference: Reference,
        state: State, values: Values,
    ) -> None:  # fmt: skip
        """Check that all inserted code is what ``ptxas`` assembled, and follow that at accesses. state, values: after
        the entry's code."""
        known = Renamed(self.around.block[0])
        if entry is None:
            self._report(0, "the entry has no code, which would set what is kept")
        for piece in [entry] if entry is not None else []:
            self._compare(piece, reference.entry, known, None)
        self._compare_ends(exits, reference, known)
        done = set()
        for piece in accesses:
            form, site = self.original.form(piece.site), word_at(self.original, piece.site)
            for rule in check_site(form, site, _LOADS if reference.after else KINDS):
                self._report(piece.site, rule)
            key = (opcode_of(form), access_bytes(form)) if form is not None else ("", 0)
            if form is None or (key not in reference.accesses and key not in reference.after):
                self._report(piece.site, "there is code at what no probe is at")
                continue
            done.add(piece.site)
            at = AtSite(piece.site, site, form)
            if reference.after:
                self._compare_around(piece, reference, key, known, at)
            else:
                self._compare(piece, reference.accesses[key], known, at)
            self._follow_access(piece, at, known, state, values)
        names = {name for name, _ in (*reference.accesses, *reference.after)}
        accessing = {*KINDS, *OTHERS, *names}
        for index in np.flatnonzero(self.original.having(lambda form: opcode_of(form) in accessing)).tolist():
            name = opcode_of(self.original.form(index))
            if _GUARD.get(word_at(self.original, index)) == _NEVER:
                continue
            if name in reference.unnamed:
                if index in done:
                    self._report(index, f"{name} has code, and no probe is there")
            elif name not in names and (name in OTHERS or KINDS.get(name) == "atomic"):
                self._report(index, f"{name} is an access for which the probes have no code")
            elif name in names and index not in done:
                self._report(index, f"{name} has no code, although others have")
        for rule in check_registers(known):
            self._report(0, rule)

    def _compare(self, piece: Piece, reference: Sequence[int], known: Renamed, site: AtSite | None) -> None:
        """Compare a piece with what it should be."""
        around = self.around.reference
        if around is None:
            return
        comparison = Comparison(reference, around.block, known, site, around.sm)
        named = self.named >> FIRST[RegisterFile.PREDICATE] & (1 << ALWAYS) - 1
        body = [word_at(self.twin, index) for index in piece.body]
        for number, rule in comparison.check(body, named):
            self._report(piece.body.start + number, rule)

    def _compare_around(
        self, piece: Piece, reference: Reference, key: tuple[str, int], known: Renamed, at: AtSite
    ) -> None:  # fmt: skip
        """Compare the code before and after an access with what it should be. key: of what its kind has."""
        named = self.named >> FIRST[RegisterFile.PREDICATE] & (1 << ALWAYS) - 1
        bodies = [[word_at(self.twin, index) for index in where] for where in (piece.body, piece.after)]
        around = put_by_of(something(bodies[0]), something(bodies[1]))
        if around is not None:
            # As what does nothing these two are not compared.
            bodies[0][something(bodies[0])[0][0]] = bodies[1][something(bodies[1])[-1][0]] = _ADDED_NOTHING
        sides = (piece.body, reference.accesses, at), (piece.after, reference.after, replace(at, after=True))
        for (where, codes, site), body in zip(sides, bodies, strict=True):
            code = codes.get(key)
            if code is None:
                for number, _ in something(body):
                    self._report(where.start + number, "there is code on a side of an access where no probe is")
                continue
            comparison = Comparison(code, reference.block, known, site, reference.sm)
            for number, rule in comparison.check(body, named, around if around is not None else _NONE_PUT_BY):
                self._report(where.start + number, rule)

    def _compare_ends(self, exits: Sequence[Piece], reference: Reference, known: Renamed) -> None:
        """Compare the code of all EXITs with what it should be; where it is the same, and right, once."""
        right: set[tuple[int, ...]] = set()
        for piece in exits:
            body, before = tuple(word_at(self.twin, index) for index in piece.body), len(self.found)
            if body not in right:
                self._compare(piece, reference.exit, known, None)
                if len(self.found) == before:
                    right.add(body)

    def _follow_access(self, piece: Piece, at: AtSite, known: Renamed, state: State, values: Values) -> None:
        """Follow code at an access, which reads the access's address and its guard, and what is kept."""
        mine, own = state.copy(), values.copy()
        own.written |= PREDICATES
        address = address_of(at)
        self.readable = 3 << address[0] if address is not None else 0
        own.written |= self.readable
        for kind in {self.columns.kinds[index] for index in (*piece.body, *piece.after)
                     if self.columns.writes[index] & known.kept_mask}:
            mine.recent[_LEAST_AFTER_SUM, kind] = known.kept_mask
        self._follow(piece, mine, own)
        if not self.around.reference or not self.around.reference.after:
            self._check_settled(piece.body, mine, piece.body.stop)
            self._end(piece, mine)
        else:
            self._check_settled(piece.body, mine, piece.body.stop, goes_on=False)
            self._end(piece, mine)
            self._follow_after(piece, at, mine, own)
        self.readable = 0

    def _follow_after(self, piece: Piece, at: AtSite, state: State, values: Values) -> None:
        """Follow code after an access, which reads what that has written. state: after the access. values: after the
        code before it."""
        columns, (displaced,) = self.columns, piece.end
        if opcode_of(at.form) not in _LOADS or columns.writes[displaced] & ~GENERAL or not at.result:
            self._report(piece.site, "there is code after what is no load into general registers")
        if columns.write_barrier[displaced] == NO_BARRIER:
            self._report(piece.site, "there is code after a load for which no scoreboard speaks")
        result = self.readable = sum(1 << register for register in at.result)
        values.written |= result
        cycles = _BRANCH_CYCLES + sum(columns.stall[index] for index in (*piece.body, displaced))
        done: list[int] = []
        ways: list[tuple[list[int], State]] = []
        for index in piece.after:
            word = word_at(self.twin, index)
            if columns.names[index] == "BRA":
                rule = wrong_with_leap(columns, index, word, piece.body, piece.after) or (
                    "there is more than one branch in code after an access" if ways else ""
                )
                if rule:
                    self._report(index, rule)
            else:
                self._check_instruction(index, cycles, values)
            is_clock = columns.names[index] == "CS2R" and SPECIAL.get(word) in _CLOCKS
            step(columns, index, state, self._report)
            if is_clock and state.written.out & result:
                self._report(index, "the clock is read after a load whose result was not waited for")
            cycles += columns.stall[index]
            done.append(index)
            target = leap_target(word, index) if columns.names[index] == "BRA" else None
            if target is not None and index < target <= piece.after.stop:
                leaping, tail = state.copy(), range(target, piece.after.stop)
                for later in tail:
                    step(columns, later, leaping, self._report)
                ways.append(([*done, *tail], leaping))
        for way, there in [*ways, (done, state)]:
            self._check_settled(way, there, piece.after.stop)
            for index in piece.back:
                step(columns, index, there, self._report)

    def _named_in(self, piece: Piece) -> int:
        """The general registers that inserted code names, a mask."""
        found = 0
        for index in piece.body:
            found |= self.columns.reads[index] | self.columns.writes[index]
        return found & GENERAL

    def _give_back(self, values: Values) -> None:
        """The kernel goes on: what was left in registers of its own is lost."""
        values.written &= ~self.ended
        values.loaded &= ~self.ended
        values.made = {bit: value for bit, value in values.made.items() if not self.ended >> bit & 1}

    def _check_accesses(
        self, accesses: Sequence[Piece], exits: Sequence[Piece], state: State, values: Values
    ) -> None:  # fmt: skip
        """Check code at accesses, and what all other code does to its sums; then sums are as in state and values."""
        sums = Sums()
        sites: dict[int, set[int]] = {}
        for piece in accesses:
            form, site = self.original.form(piece.site), word_at(self.original, piece.site)
            for rule in check_site(form, site):
                self._report(piece.site, rule)
            if form is None or form.name.partition(".")[0] not in KINDS:
                continue
            words = [word_at(self.twin, index) for index in piece.body]
            for number, rule in check_body(words, piece.site, site, form, sums):
                self._report(piece.body[number], rule)
            sites[piece.site] = {one.first for word in words if (one := addition(word)) is not None}
        if self.around.counted is None:
            for index, rule in check_sums(columns_of(self.original), sites, sums):
                self._report(index, rule)
        self._follow_sums(accesses, sums, _LEAST_AFTER_SUM, state, values)
        if not exits:
            self._report(0, "no EXIT has code, which would add the sums to memory")
        if self.around.reference is not None:
            self._check_ends(exits, self.around.reference, sums)
        elif accesses:
            self._report(0, "it is not known what EXITs should have for the sums of accesses")
        elif isinstance(self.around.counted, Counted):
            for index, rule in check_counted(columns_of(self.original), sums, self.around.counted, ()):
                self._report(index, rule)

    def _check_executed(
        self, counted: CountedInstructions, sites: Sequence[Piece], exits: Sequence[Piece], state: State,
        values: Values,
    ) -> None:  # fmt: skip
        """Check code that counts instructions, and what all other code does to its sums; then sums are as in state and
        values."""
        sums = Sums()
        added: dict[int, list[Added]] = {}
        ends = [
            Piece(one.site, one.counts[:0], one.counts, one.ahead[len(one.counts) :]) for one in exits if one.counts
        ]  # fmt: skip
        for piece in (*sites, *ends):
            for index in piece.body:
                word = word_at(self.twin, index)
                one = addition(word)
                if one is None or one.one < 0:
                    self._report(index, "what counts instructions is not an addition of a constant to a sum of 64 bits")
                    continue
                for rule in note_addition(one, sums):
                    self._report(index, rule)
                guard = GUARD.get(word), NEGATED.get(word)
                added.setdefault(piece.site, []).append(Added(index, one.first, one.amount, guard))
        # What the kernel has under way there, it waits for itself.
        mine = State()
        self._follow_sums([*sites, *ends], sums, _LEAST_AFTER_COUNT, mine, values)
        state.recent.update(mine.recent)
        reference = self.around.reference
        if not exits:
            self._report(0, "no EXIT has code, which would add the sums to memory")
        if reference is None:
            self._report(0, "it is not known what EXITs should have for the sums of instructions")
            return
        firsts = self._compare_sums(exits, reference, sums)
        for index, rule in check_executed(self.original, counted, self.around.entrances, added, firsts):
            self._report(index, rule)

    def _follow_sums(
        self, accesses: Sequence[Piece], sums: Sums, least: int, state: State, values: Values
    ) -> None:  # fmt: skip
        """Follow additions to sums, from what the entry's code leaves in these on. least: cycles from one to whatever
        comes after its trampoline."""
        for rule in check_initial(sums, values.made):
            self._report(0, rule)
        kinds = {self.columns.kinds[index] for piece in accesses for index in piece.body}
        for kind in kinds:
            state.recent[least, kind] = sums.mask
        right: set[object] = set()
        for piece in accesses:
            mine, before = state.copy(), len(self.found)
            # What is asked of each instruction by itself, and then holds wherever the same ones are.
            body = len(piece.ahead), tuple(word_at(self.twin, index) for index in piece.body)
            known = None if body in right else values.copy()
            if known is not None:
                # Their guard is the kernel's.
                known.written |= PREDICATES
            self._follow(piece, mine, known)
            for index in piece.body:
                if takes_scoreboard(self.columns, index):
                    self._report(index, "code at an access takes a scoreboard")
            if len(self.found) == before:
                right.add(body)
            self._end(piece, mine)
        for register in registers_in(sums.mask):
            values.made[register] = Value("a sum", 0)

    def _check_ends(self, exits: Sequence[Piece], reference: Reference, sums: Sums) -> None:
        """Check that each EXIT has the code for these sums, and that accesses add to them what is counted there."""
        firsts = self._compare_sums(exits, reference, sums)
        if isinstance(self.around.counted, Counted):
            for index, rule in check_counted(columns_of(self.original), sums, self.around.counted, firsts):
                self._report(index, rule)

    def _compare_sums(self, exits: Sequence[Piece], reference: Reference, sums: Sums) -> list[int]:
        """Check that each EXIT has the code that ``ptxas`` assembled for these sums, and changes none of them. Returns
        the first register of each, in the order of the sums' numbers."""
        known = Renamed(self.around.block[0])
        self._compare_ends(exits, reference, known)
        for rule in check_registers(known):
            self._report(0, rule)
        # What the code stores it has for itself.
        kept = {place: register for place, register in known.kept.items() if place[0] not in known.stored}
        added = {first + more for first, one in sums.sums.items() for more in range(one.registers)}
        pairs = {(number, 1): kept[number, 0] + 1 for number, more in kept if not more}
        if {*kept.values()} != added or any(kept.get(place) != register for place, register in pairs.items()):
            ends = sorted(kept.values())
            self._report(0, f"threads end with sums in {ends}, accesses add to those in {sorted(added)}")
        changed = known.general | {register for place, register in known.kept.items() if place[0] in known.stored}
        for register in sorted(changed & {*registers_in(sums.mask), *sums.ones}):
            self._report(0, f"R{register} is part of a sum, and used for something else where threads end")
        return [register for (_, more), register in sorted(kept.items()) if not more]

    def _check_first(self, entry: Piece) -> None:
        """The first instruction runs once, and does not depend on its place."""
        form = self.original.form(0)
        if form is None or form.flow is not Flow.NEXT or form.memory not in (Memory.NONE, Memory.CONSTANT):
            self._report(entry.site, "the kernel's first instruction may not move")
        for index, target in self.original.targets().items():
            if target == 0:
                self._report(index, "the kernel comes back to its first instruction, where inserted code runs")

    def _ahead(self, piece: Piece, state: State) -> int:
        """Follow what is ahead of a piece's body; return the cycles since the branch at the site was issued. state: of
        what is under way at the site, which changes to that at the body."""
        state.recent = {
            (age + _BRANCH_CYCLES, producer): mask for (age, producer), mask in state.recent.items()
        }  # fmt: skip
        cycles = _BRANCH_CYCLES
        for index in piece.ahead:
            step(self.columns, index, state, None)
            cycles += self.columns.stall[index]
        return cycles

    def _follow(self, piece: Piece, state: State, values: Values | None, cycles: int | None = None) -> None:
        """Follow a piece up to its end. state: of what is under way at the site, which changes to that at the end.
        values: at the body; None if each of its instructions by itself is known to be right. cycles: of ``_ahead``, if
        that was followed."""
        if cycles is None:
            cycles = self._ahead(piece, state)
        for index in piece.body:
            if values is not None:
                self._check_instruction(index, cycles, values)
            step(self.columns, index, state, self._report)
            cycles += self.columns.stall[index]

    def _end(self, piece: Piece, state: State) -> None:
        """Follow the end of a piece: the displaced instruction and the branch back."""
        for index in piece.end:
            step(self.columns, index, state, self._report)

    def _check_settled(
        self, way: Sequence[int], state: State, last: int, *, goes_on: bool = True
    ) -> None:  # fmt: skip
        """At the end of code that the kernel goes on after, nothing of it is under way.

        way: the instructions that were executed. state: after them. last: number of what comes after the code.
        goes_on: whether the kernel's predicates have their values there.
        """
        own = ~((1 << self.first_free) - 1)
        for mask, what in ((state.written.out & own, "written"), (state.read.out & own, "read")):
            if mask:
                names = ", ".join(registers_of(mask))
                self._report(last, f"{names} is still to be {what} where the inserted code ends")
        taken = 0
        for index in way:
            taken &= ~self.columns.wait[index]
            for barrier in (self.columns.write_barrier[index], self.columns.read_barrier[index]):
                taken |= 1 << barrier if barrier != NO_BARRIER else 0
        if taken:
            numbers = ", ".join(str(number) for number in range(SCOREBOARDS) if taken >> number & 1)
            self._report(last, f"scoreboard {numbers} was taken and not waited for where the inserted code ends")
        for (age, producer), mask in state.recent.items():
            if mask & self.ended and age < longest(producer, self.twin.sm):
                names = ", ".join(registers_of(mask & self.ended))
                self._report(last, f"{names} is the kernel's, and written {age} cycles before it goes on")
            late = mask & PREDICATES & self.named if goes_on else 0
            if late and age < PREDICATE_CYCLES:
                names = ", ".join(registers_of(late))
                self._report(last, f"{names} is the kernel's, and written {age} cycles before it goes on")
