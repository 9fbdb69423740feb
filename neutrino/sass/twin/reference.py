"""Whether code in a trampoline is what ``ptxas`` assembled of the probes, with other registers: asked by the checker.

Of code at accesses that is more than additions nobody can say from its instructions alone that it does no harm and says
what is true. So it has to be, instruction by instruction, the code of a kernel that ``ptxas`` assembled of the probes'
PTX, as it is for twins of PTX. Registers have other numbers, one for each; constants of the probe block are where the
kernel has that; values of the access are read where ``ptxas`` loads a placeholder. This shares nothing with the code
that places it, ``access_code.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neutrino.sass.decoder import Code, decode
from neutrino.sass.encoding import Form
from neutrino.sass.fields import ALWAYS, Field
from neutrino.sass.instruction import RegisterFile

_REFERENCES = 64
"""Decoded codes that are kept: what `ptxas` assembled for the kinds of accesses, and the ends."""
_Test = Callable[[int], str]
"""What an instruction of a trampoline is asked: returns what is wrong with it, "" if nothing is."""
_CONTROL = 105
_NOP = 0x0000000000000000_0000000000007918
_GUARD = Field(12, 4)
_TARGET, _FIRST_SOURCE, _SECOND_SOURCE, _THIRD_SOURCE = Field(16, 8), Field(24, 8), Field(32, 8), Field(64, 8)
_NUMBER, _PREDICATE, _DISTANCE = Field(32, 32), Field(87, 4), Field(40, 24)
_SPECIAL, _OPERANDS, _OFFSET = Field(72, 8), Field(9, 3), Field(38, 16)
_WITH_CONSTANT = (3, 5)
_ZERO, _ZERO_UNIFORM, _STACK = 255, 63, 1
_BARRIER, _SKIPPED = "BAR", frozenset({"BSSY", "BSYNC"})
# What stands for the placeholders, without control bits and registers.
_MOVE, _MOVE_NUMBER = 0x0000000000000F00_0000000000007202, 0x0000000000000F00_0000000000007802
_ONE_IF = 0x0000000000000000_00000001FF007807
_ADD = 0x00000000078E0200_0000000000007825
_ADD_LOW = 0x0000000007FFE0FF_0000000000007810
_PUT_BY, _GIVE_BACK = 0x0000000000000000_00000000FF007803, 0x0000000000000000_0000000000007804
_PLACEHOLDERS, _APART = 0xA000, 32
_ADDRESS, _EXECUTES, _SITE, _KEPT, _RESULT = 0, 1, 2, 4, 100
_BRANCH = 0x947


@dataclass(frozen=True)
class Reference:
    """The probes' code as ``ptxas`` assembled it. entry, exit: up to the barrier at its end. accesses: likewise, by the
    first part of the access's name and its bytes. Where accesses only add to sums, the end alone has code of ``ptxas``:
    then entry and accesses are empty. block: where the probe block is in constant bank 0, in bytes. unnamed: first
    parts of the names of accesses that no probe is at, so that they have no code. sm: of the architecture, as 90.
    after: the code after accesses, as in ``accesses``, which is the code before them."""

    entry: tuple[int, ...]
    exit: tuple[int, ...]
    accesses: Mapping[tuple[str, int], tuple[int, ...]]
    block: int
    unnamed: frozenset[str] = frozenset()
    sm: int = 90
    after: Mapping[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all inserted code is compared."""
        return bool(self.entry)


@dataclass
class Renamed:
    """What is known of all trampolines of one twin. block: where it has the probe block. kept: placeholder, and
    which of its registers → register. general: registers that code has for itself. stored: placeholders that code
    stores. sites: numbers of sites by their instruction."""

    block: int
    kept: dict[tuple[int, int], int] = field(default_factory=dict)
    general: set[int] = field(default_factory=set)
    stored: set[int] = field(default_factory=set)
    sites: dict[int, int] = field(default_factory=dict)

    @property
    def kept_mask(self) -> int:
        """The registers that are kept, in a mask."""
        return sum(1 << register for register in set(self.kept.values()))


@dataclass(frozen=True)
class AtSite:
    """An access. index: of its instruction. word: of it. form: what it is. after: whether it is that of the code after
    it."""

    index: int
    word: int
    form: Form
    after: bool = False

    @property
    def result(self) -> range:
        """The general registers that it writes."""
        places = [one for one in self.form.places if one.writes and one.field.file is RegisterFile.GENERAL]
        if len(places) != 1 or places[0].field.get(self.word) == _ZERO:
            return range(0)
        first = places[0].field.get(self.word)
        return range(first, first + places[0].count)


def address_of(site: AtSite) -> tuple[int, int] | None:
    """Return the first of two registers with the address of an access, and what is added; None for other addresses."""
    places = site.form.places
    own = [number for number, one in enumerate(places) if one.reads and one.field.low == 24
           and one.field.file is RegisterFile.GENERAL]  # fmt: skip
    uniform = [number for number, one in enumerate(places) if one.reads and one.field.file is RegisterFile.UNIFORM
               and one.field.get(site.word) != _ZERO_UNIFORM]  # fmt: skip
    if len(own) != 1 or places[own[0]].count != 2 or any(number > own[0] for number in uniform) or len(uniform) > 1:
        return None
    number = places[own[0]].field.get(site.word)
    if site.form.name.startswith("LDGSTS"):
        distance = site.word >> 32 & 0x7FF
        distance -= site.word >> 32 & 0x800
    else:
        distance = _DISTANCE.get(site.word)
        distance -= distance >> 23 << 24
    return None if number == _ZERO else (number, distance)


@functools.lru_cache(maxsize=_REFERENCES)
def _decoded(reference: tuple[int, ...], sm: int) -> Code:
    """Decode what many trampolines are compared with. sm: of the architecture, as 90."""
    return decode(np.array([[word & (1 << 64) - 1, word >> 64] for word in reference], np.uint64), sm)


PutBy = tuple[int, int]
"""Predicates (a mask) that are put into a register, and the number of that."""


def put_by_of(first: Sequence[tuple[int, int]], last: Sequence[tuple[int, int]]) -> PutBy | None:
    """Return how predicates are put by and given back: by the first instruction of code, and the last one of the same,
    or of other code; None if they are not. Of both the numbers and words, without those that do nothing."""
    if not first or not last or (first[0] == last[-1]):
        return None
    begin, end = _plain(first[0][1]), _plain(last[-1][1])
    register, mask = _TARGET.get(begin), _NUMBER.get(begin)
    puts_by = _NUMBER.put(_TARGET.put(_PUT_BY, register), mask) == begin
    gives_back = _NUMBER.put(_FIRST_SOURCE.put(_GIVE_BACK, register), mask) == end
    return (mask, register) if puts_by and gives_back else None


def something(body: Sequence[int]) -> list[tuple[int, int]]:
    """Return the instructions of code that do something, with their numbers."""
    return [(number, word) for number, word in enumerate(body) if not _is_nothing(word)]


class Comparison:
    """Compares one trampoline's code with the code that it should be."""

    def __init__(
        self, reference: Sequence[int], offset: int, known: Renamed, site: AtSite | None, sm: int
    ) -> None:  # fmt: skip
        """Prepare. reference: of ``Reference``. offset, sm: its ``block`` and ``sm``. known: of the twin. site: of the
        code at an access."""
        self.reference, self.known, self.site = reference, known, site
        self.code = _decoded(tuple(reference), sm)
        self.moved = known.block - offset
        self.block = offset
        self.general: dict[int, int] = {_ZERO: _ZERO}
        self.predicates: dict[int, int] = {ALWAYS: ALWAYS}
        self.uniform: dict[int, int] = {}
        # From where on a branch's guard ends, and that guard.
        self._until, self._under = -1, -1
        self._leap = self._leap_in_reference() if site is not None and site.after else -1

    def _leap_in_reference(self) -> int:
        """Return the number of a branch over all of the rest of code after an access, which is the first one and joins
        no lanes; -1 without one."""
        names = [_base(self.code.form(index)) for index in range(len(self.reference))]
        first = next((index for index, one in enumerate(names) if one in ("BRA", "BSSY")), -1)
        if first < 0 or names[first] != "BRA" or _GUARD.get(self.reference[first]) in (ALWAYS, 15):
            return -1
        return first if self.code[first].target == 16 * (len(names) - 1) and names[-1] == _BARRIER else -1

    def check(
        self, body: Sequence[int], named: int, around: PutBy | None = None
    ) -> Iterable[tuple[int, str]]:  # fmt: skip
        """Yield what differs: number of the body's instruction, and the rule. named: predicates (a mask by number) that
        the kernel names, which have to get their values back at an access. around: how, where there is code after it;
        the two instructions for it are not in the body then."""
        words = something(body)
        put_by = around if around is not None else put_by_of(words, words) if self.site is not None else None
        if put_by is not None and around is None:
            words = words[1:-1]
        at = 0
        for index, word in enumerate(self.reference):
            if index >= self._until:
                self._under = -1
            expected = self._expected(index, word)
            if expected is None:
                yield len(body), f"what ptxas assembled has a part at {16 * index:#x} of which it is not known what for"
                return
            for one in expected:
                if at == len(words):
                    yield len(body), "an instruction is missing that ptxas assembled"
                    return
                number, found = words[at]
                at += 1
                rule = one(found)
                if rule:
                    yield number, rule
                    return
        if at < len(words):
            yield words[at][0], "an instruction that ptxas did not assemble"
        yield from ((0, rule) for rule in self._clashes(named, put_by))

    def _clashes(self, named: int, put_by: PutBy | None) -> Iterable[str]:
        """Yield registers that two things have."""
        written = sum(1 << number for number in self.predicates.values() if number != ALWAYS)
        mask, register = put_by if put_by is not None else (0, -1)
        if self.site is not None:
            if written & named & ~mask:
                yield "a predicate of the kernel's does not get its value back"
            if written >> (_GUARD.get(self.site.word) & 7) & 1 and _GUARD.get(self.site.word) & 7 != ALWAYS:
                yield "the predicate of the access is one of the inserted code's"
        own = {number for number in self.general.values() if number != _ZERO}
        self.known.general |= own | ({register} if register >= 0 else set())
        if register in own:
            yield f"R{register} has predicates that were put by, and something else"
        for maps, what in ((self.general, "R"), (self.predicates, "P")):
            if len(set(maps.values())) < len(maps):
                yield f"two registers of what ptxas assembled are one {what} register"

    def _expected(self, index: int, word: int) -> list[_Test] | None:
        """Return tests of the instructions that one of the reference becomes; None if that is not known."""
        form = self.code.form(index)
        if form is None:
            # PMTRIG, which the table lacks and names no register.
            return [lambda found: "" if _plain(found) == _plain(word) else _OTHER]
        name = form.name.partition(".")[0]
        target = self.code[index].target if form.target else None
        if index == self._leap:
            return [lambda found: self._leaps(word, found)]
        if name == "BRA":
            if target is None or target <= 16 * index or _GUARD.get(word) in (ALWAYS, 15) or self._under >= 0:
                return None
            self._until, self._under = target // 16, _GUARD.get(word) ^ 8
            return []
        if _is_nothing(word) or name in _SKIPPED or (name == _BARRIER and index == len(self.reference) - 1):
            return []
        if _sets_stack(form, word):
            return []
        if self.site is not None and self.site.after and name == "S2R" and self._is_of_placeholders(index):
            return []
        if name == "CS2R" and _SPECIAL.get(word) == _ZERO and self._under < 0 and _GUARD.get(word) == ALWAYS:
            register = _TARGET.get(word)
            return [self._moves(register + more, _ZERO, own=True) for more in (0, 1)]
        if name in ("LDS", "STS"):
            return self._of_placeholder(form, word)
        return [lambda found: self._same(form, word, found)]

    def _is_of_placeholders(self, index: int) -> bool:
        """Whether what an instruction reads is the address of placeholders alone, which have none in a twin."""
        mask = self._reads_and_writes(index)[1]
        for later in range(index + 1, len(self.reference)):
            reads, writes = self._reads_and_writes(later)
            word = self.reference[later]
            is_placeholder = _base(self.code.form(later)) in ("LDS", "STS") and _DISTANCE.get(word) >= _PLACEHOLDERS
            if reads & mask and not (is_placeholder and 1 << _FIRST_SOURCE.get(word) == mask):
                return False
            if is_placeholder and _base(self.code.form(later)) == "STS" and 1 << _SECOND_SOURCE.get(word) & mask:
                return False
            mask &= ~writes
        return True

    def _reads_and_writes(self, index: int) -> tuple[int, int]:
        """The general registers that an instruction of the reference reads and writes, masks."""
        form, word = self.code.form(index), self.reference[index]
        masks = [0, 0]
        for place in form.places if form is not None else ():
            if place.field.file is RegisterFile.GENERAL and place.field.get(word) != _ZERO:
                mask = (1 << place.count) - 1 << place.field.get(word)
                masks[0] |= mask if place.reads else 0
                masks[1] |= mask if place.writes else 0
        return masks[0], masks[1]

    def _of_placeholder(self, form: Form, word: int) -> list[_Test] | None:
        number, rest = divmod(_DISTANCE.get(word) - _PLACEHOLDERS, _APART)
        wide = form.name.endswith(".64")
        if rest or _GUARD.get(word) != ALWAYS or number < 0:
            return None
        if number == _RESULT:
            if self.site is None or not self.site.after or form.name not in ("LDS", "LDS.64"):
                return None
            first = _TARGET.get(word)
            return [functools.partial(self._result, first + more, more) for more in range(1 + wide)]
        if number >= _KEPT:
            register = (_SECOND_SOURCE if form.name.startswith("STS") else _TARGET).get(word)
            return [
                self._keeps(number, more, register + more if register != _ZERO else _ZERO,
                            stores=form.name.startswith("STS"))
                for more in range(1 + wide)
            ]  # fmt: skip
        register = _TARGET.get(word)
        if self.site is None or form.name.startswith("STS"):
            return None
        if number == _SITE:
            return [lambda found: self._number(register, found)]
        if number == _EXECUTES:
            return [lambda found: self._executes(register, found)]
        if number == _ADDRESS and self.site.after:
            # The access may have written to it.
            return None
        if number == _ADDRESS and not wide:
            return [lambda found: self._low_address(register, found)]
        if number == _ADDRESS and wide:
            return [
                lambda found: self._exact(register, found, _NUMBER.put(_MOVE_NUMBER, 1)),
                lambda found: self._address(register, found),
            ]
        return None

    def _leaps(self, word: int, found: int) -> str:
        """Compare a branch to the code's end; where it leads, others ask."""
        guard, other = _GUARD.get(word), _GUARD.get(found)
        same = found & 0xFFF == _BRANCH and guard & 8 == other & 8
        return "" if same and self._map(self.predicates, guard & 7, other & 7) else _OTHER

    def _result(self, register: int, more: int, found: int) -> str:
        """Compare a move of what the access has written."""
        assert self.site is not None
        result = self.site.result
        if more >= len(result):
            return "the inserted code reads more than the access has written"
        return self._exact(register, found, _SECOND_SOURCE.put(_MOVE, result[more]))

    def _map(self, maps: dict[int, int], number: int, found: int) -> bool:
        return maps.setdefault(number, found) == found

    def _exact(self, register: int, found: int, word: int) -> str:
        target = _TARGET.get(found)
        same = _plain(found) == _TARGET.put(word, target) and self._map(self.general, register, target)
        return "" if same else "the inserted code gets another value than that of the access"

    def _number(self, register: int, found: int) -> str:
        assert self.site is not None
        number = _NUMBER.get(found)
        self.known.sites[self.site.index] = number
        return self._exact(register, found, _NUMBER.put(_MOVE_NUMBER, number))

    def _executes(self, register: int, found: int) -> str:
        assert self.site is not None
        # Of a choice between 0 and 1, the 1 unless the predicate holds.
        return self._exact(register, found, _PREDICATE.put(_ONE_IF, _GUARD.get(self.site.word) ^ 8))

    def _low_address(self, register: int, found: int) -> str:
        assert self.site is not None
        address = address_of(self.site)
        if address is None:
            return "the address of the access is not in two registers"
        return self._exact(register, found, _NUMBER.put(_FIRST_SOURCE.put(_ADD_LOW, address[0]), address[1]))

    def _address(self, register: int, found: int) -> str:
        assert self.site is not None
        address = address_of(self.site)
        target = _TARGET.get(found)
        if address is None:
            return "the address of the access is not in two registers"
        first, distance = address
        word = _NUMBER.put(_THIRD_SOURCE.put(_FIRST_SOURCE.put(_ADD, target), first), distance)
        rule = self._exact(register, found, word)
        return rule or ("" if self._map(self.general, register + 1, target + 1) else _OTHER)

    def _moves(self, target: int, source: int, *, own: bool) -> _Test:
        def test(found: int) -> str:
            to, what = _TARGET.get(found), _SECOND_SOURCE.get(found)
            same = _plain(found) == _SECOND_SOURCE.put(_TARGET.put(_MOVE, to), what)
            return "" if same and what == source and own and self._map(self.general, target, to) else _OTHER

        return test

    def _keeps(self, number: int, more: int, register: int, *, stores: bool) -> _Test:
        def test(found: int) -> str:
            to, what = _TARGET.get(found), _SECOND_SOURCE.get(found)
            if _plain(found) != _SECOND_SOURCE.put(_TARGET.put(_MOVE, to), what):
                return "what is kept is not moved to or from its register"
            kept, own = (to, what) if stores else (what, to)
            if stores:
                self.known.stored.add(number)
            if self.known.kept.setdefault((number, more), kept) != kept:
                return f"R{kept} has not what is kept there elsewhere"
            return "" if self._map(self.general, register, own) else _OTHER

        return test

    def _same(self, form: Form, word: int, found: int) -> str:
        """Compare an instruction with one that is placed as it is."""
        expected = _plain(word)
        if self._under >= 0 and not self._is_harmless(form):
            if _GUARD.get(expected) != ALWAYS:
                return "an instruction of what ptxas assembled has two guards"
            expected = _GUARD.put(expected, self._under)
        guard = _GUARD.get(expected)
        if form.guard is RegisterFile.PREDICATE and guard & 7 != ALWAYS:
            if not self._map(self.predicates, guard & 7, _GUARD.get(found) & 7):
                return _OTHER
            expected = _GUARD.put(expected, guard & 8 | _GUARD.get(found) & 7)
        reads = [place for place in form.places if place.reads]
        for place in [*reads, *(place for place in form.places if not place.reads)]:
            if not self._same_operand(place.field, place.count, word, found, writes=place.writes):
                return _OTHER
            expected = place.field.put(expected, place.field.get(found))
        if _OPERANDS.get(word) in _WITH_CONSTANT and _OFFSET.get(word) >= self.block:
            expected = _OFFSET.put(expected, _OFFSET.get(word) + self.moved)
        return "" if expected == _plain(found) else _OTHER

    def _same_operand(self, where: Field, count: int, word: int, found: int, *, writes: bool) -> bool:
        file, inverted = getattr(where, "file"), getattr(where, "inverted")  # noqa: B009
        number, other = where.get(word), where.get(found)
        if inverted:
            number, other = ALWAYS - number, ALWAYS - other
        if file is RegisterFile.PREDICATE:
            return self._map(self.predicates, number, other)
        if file is RegisterFile.UNIFORM:
            if _ZERO_UNIFORM in (number, other):
                return number == other
            if writes:
                self.uniform.update({number + more: other + more for more in range(count)})
            return all(self.uniform.get(number + more) == other + more for more in range(count))
        if file is not RegisterFile.GENERAL:
            return number == other
        if _ZERO in (number, other):
            return number == other
        return all(self._map(self.general, number + more, other + more) for more in range(count))

    def _is_harmless(self, form: Form) -> bool:
        """Whether an instruction may be executed by lanes that ptxas has branch over it: it makes uniform registers."""
        written = {place.field.file for place in form.places if place.writes}
        return written == {RegisterFile.UNIFORM}


_OTHER = "another instruction than ptxas assembled, or other registers"


def check_registers(known: Renamed) -> Iterable[str]:
    """Yield registers that keep something and are used for something else, and numbers that two sites share."""
    kept = list(known.kept.values())
    if len(set(kept)) < len(kept):
        yield "two values are kept in one register"
    for register in sorted(set(kept) & known.general):
        yield f"R{register} is kept, and used for something else"
    numbers = [number for _, number in sorted(known.sites.items())]
    if numbers and numbers != list(range(len(numbers))):
        yield "the sites are not numbered in their order"


def _base(form: Form | None) -> str:
    """The opcode's name."""
    return "" if form is None else form.name.partition(".")[0]


def _sets_stack(form: Form, word: int) -> bool:
    """Whether an instruction sets the stack's address from a constant, as the first one of every kernel does."""
    written = [place.field.get(word) for place in form.places if place.writes]
    return written == [_STACK] and _OPERANDS.get(word) in _WITH_CONSTANT and _GUARD.get(word) == ALWAYS


def _plain(word: int) -> int:
    """An instruction without its control bits."""
    return word & (1 << _CONTROL) - 1


def _is_nothing(word: int) -> bool:
    return _plain(word) == _NOP
