"""The rules for twins that count the instructions of their kernels, by basic block: every way through a block has to
add just what its instructions are worth.

A block is a run of instructions that a lane enters at the first one alone, and of which it executes all or those that
a predicate leaves out. So it is enough that in each block, for each sum, what is added under a condition is what the
instructions under this condition are worth together. A condition is a predicate as it is at that place: after it is
written it is another one. Where lanes may come to is found here, not asked of what writes twins; where more is taken
for a beginning than is one, the rules are only stricter.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neutrino.sass.decoder import Code
from neutrino.sass.encoding import Form
from neutrino.sass.fields import ALWAYS, GUARD, INSTRUCTION_BYTES, NEGATED, Field
from neutrino.sass.instruction import Flow, RegisterFile

_PLUS_ZERO = 255
_FACTOR = Field(24, 8)
_MOVED = frozenset({"IMAD", "IMAD.U32", "HFMA2", "HFMA2.MMA", "HFMA2.BF16_V2"})
_AS_MOVE = "MOV"
_CONDITION, _TRUE = Field(87, 4), 7
_ENDS = frozenset({"EXIT", "BRA", "RET", "BRX", "BRXU", "JMP", "JMX", "JMXU"})
"""After these, if they are always executed, nothing goes on."""
_BY_REGISTER = frozenset({"BRX", "BRXU", "JMX", "JMXU", "JMP"})
"""Branches of which an attribute has to say where they go."""
_PARTS = frozenset({Flow.BRANCH, Flow.CALL, Flow.RETURN, Flow.EXIT})
"""After these another block begins."""
_MOVES_CONSTANT = frozenset({"MOV", "UMOV", "IMAD"})
_BELOW = (1 << 105 - 24) - 1
"""Of LEPC: how far the place is, from the next instruction, and what is above that, up to the control bits."""
_CONSTANT, _OPERANDS = Field(32, 32), Field(9, 3)
_WITH_CONSTANT = (2, 4)
"""Forms of operands with a constant in the instruction."""
_FILES = {RegisterFile.PREDICATE: "P", RegisterFile.UNIFORM_PREDICATE: "UP"}
Condition = tuple[str, int, int, int]
"""File, number, 1 if negated, and how often it was written in the block; the file is "" for no condition."""
ALWAYS_HOLDS: Condition = ("", 0, 0, 0)


@dataclass(frozen=True)
class CountedInstructions:
    """What the probes count at instructions, in every kernel: by the first two parts of the instruction's kind
    (``kind_of``), or else the first, what it adds to which sum, by their numbers. Instructions of other kinds no kernel
    may have, nor those with None."""

    added: Mapping[str, Mapping[int, int] | None]

    def at(self, kind: str) -> Mapping[int, int] | None:
        """Return what an instruction of a kind adds, None if that is not known."""
        parts = kind.split(".")
        return self.added.get(".".join(parts[:2]), self.added.get(parts[0]))


@dataclass(frozen=True)
class Entrances:
    """Where lanes may come to besides what instructions say. functions: places of functions in the section. indirect:
    of branches by a register → where they go; of these alone it is known. In bytes."""

    functions: frozenset[int] = frozenset()
    indirect: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Added:
    """One addition at a site. index: its number in the twin. first: register of the sum. amount: the constant. guard:
    the predicate's number, and whether it is negated. uniform: whether it stands for a predicate of the uniform
    datapath."""

    index: int
    first: int
    amount: int
    guard: tuple[int, int]
    uniform: bool = False


def kind_of(form: Form, word: int) -> str:
    """Return what an instruction counts as: its name with modifiers; MOV for products with RZ, by which ``ptxas`` moves
    registers and constants. word: 128 bits."""
    return _AS_MOVE if form.name in _MOVED and _FACTOR.get(word) == _PLUS_ZERO else form.name


def check_executed(
    code: Code, counted: CountedInstructions, entrances: Entrances, added: Mapping[int, Sequence[Added]],
    registers: Sequence[int],
) -> Iterable[tuple[int, str]]:  # fmt: skip
    """Yield what is wrong with the counts of a kernel.

    code: the original's. added: what is added at a site, by the number of its instruction, before that. registers: the
    first one of each sum that threads end with, in the order of the sums' numbers. Yields number of the instruction, in
    the original, and the rule.
    """
    blocks = _Blocks(code, entrances)
    yield from blocks.wrong
    expected, kept = [], set[int]()
    for block in blocks.reached:
        rows: Counter[tuple[int, Condition]] = Counter()
        for index, condition in _conditions(code, block):
            form = code.form(index)
            kind = kind_of(form, _word(code, index)) if form is not None else ""
            row = counted.at(kind)
            if row is None:
                yield index, f"what {kind or 'an unknown instruction'} counts is not known"
                continue
            for number, amount in row.items():
                if condition is not None and amount:
                    rows[number, condition] += amount
                    kept.add(number)
        expected.append(rows)
    if len(kept) != len(registers):
        yield 0, f"threads end with {len(registers)} sums, instructions add to {len(kept)}"
        return
    of_register = dict(zip(registers, sorted(kept), strict=True))
    seen = set[int]()
    for block, wanted in zip(blocks.reached, expected, strict=True):
        have: Counter[tuple[int, Condition]] = Counter()
        for index, one, condition in _added(code, block, added):
            seen.add(index)
            if condition is None:
                yield index, "what is counted here is under a predicate of which it is not known that it is there"
            elif one.first not in of_register:
                yield index, f"R{one.first} is added to, which is no sum that threads end with"
            else:
                have[of_register[one.first], condition] += one.amount
        if have != wanted:
            differ = {key for key in {*have, *wanted} if have[key] != wanted[key]}
            number, condition = min(differ)
            what = f"{have[number, condition]} instead of {wanted[number, condition]}"
            under = f" under {condition[0]}{condition[1]}" if condition[0] else ""
            yield block[0], f"the block adds {what} to sum {number}{under}"
    for index in added.keys() & blocks.closed:
        yield index, "something is counted where lanes are together that come from several places"
    for index in added.keys() - seen:
        yield index, "something is counted where nobody comes"


def _conditions(code: Code, block: range) -> Iterator[tuple[int, Condition | None]]:
    """Yield the instructions of a block, each with the condition under which it is executed, None for never."""
    written: Counter[tuple[str, int]] = Counter()
    for index in block:
        yield index, _condition(code, index, written)
        _note_writes(code, index, written)


def _added(
    code: Code, block: range, added: Mapping[int, Sequence[Added]]
) -> Iterator[tuple[int, Added, Condition | None]]:  # fmt: skip
    """Yield what is added in a block: number of the site, the addition, and its condition; None where the predicate may
    not be there yet: only after an instruction with it as its guard, or before one, it is."""
    written: Counter[tuple[str, int]] = Counter()
    guarding = set[tuple[str, int, int]]()
    for index in block:
        own = _condition(code, index, written)
        if own is not None and own[0]:
            guarding.add((own[0], own[1], own[3]))
        for one in added.get(index, ()):
            number, negated = one.guard
            if number == ALWAYS:
                yield index, one, ALWAYS_HOLDS if not negated else None
                continue
            file = _FILES[RegisterFile.UNIFORM_PREDICATE if one.uniform else RegisterFile.PREDICATE]
            version = written[file, number]
            yield index, one, (file, number, negated, version) if (file, number, version) in guarding else None
        _note_writes(code, index, written)


def _condition(code: Code, index: int, written: Mapping[tuple[str, int], int]) -> Condition | None:
    """Return the condition of an instruction's guard, None if it is never executed."""
    form, low = code.form(index), int(code.words[index, 0])
    number, negated = GUARD.get(low), NEGATED.get(low)
    if form is None or form.guard is None or number == ALWAYS:
        return None if form is not None and form.guard is not None and negated else ALWAYS_HOLDS
    file = _FILES[form.guard]
    return file, number, negated, written[file, number]


def _note_writes(code: Code, index: int, written: Counter[tuple[str, int]]) -> None:
    for file, letter in _FILES.items():
        mask = int(code.writes[file][index])
        for number in range(ALWAYS) if mask else ():
            if mask >> number & 1:
                written[letter, number] += 1


class _Blocks:
    """The blocks of a kernel that lanes may come to. wrong: what is not understood: number of the instruction, rule."""

    def __init__(self, code: Code, entrances: Entrances) -> None:
        self._code = code
        self.wrong: list[tuple[int, str]] = []
        self._end = len(code) * INSTRUCTION_BYTES
        flows = code.of_each([form.flow if form is not None else Flow.NEXT for form in code.forms])
        self._names = code.of_each([form.name.partition(".")[0] if form is not None else "" for form in code.forms])
        # Where lanes of a BSSY meet is right after BSYNC, from which they come.
        together = self._together(code.targets(), flows)
        self.closed = frozenset(one for begin, end in together.items() for one in range(begin + 1, end + 1))
        targets = {
            index: place for index, place in code.targets().items()
            if index not in together
            and (self._names[index], self._names[place // INSTRUCTION_BYTES - 1]) != ("BSSY", "BSYNC")
        }  # fmt: skip
        begins = {0, *entrances.functions, *targets.values()}
        for places in entrances.indirect.values():
            begins.update(places)
        constants = set() if self._all_return_behind(flows) else {place for _, place in self._constants()}
        begins |= constants
        for index, flow in enumerate(flows):
            # After BPT no launch goes on.
            if flow in _PARTS and self._names[index] != "BPT":
                begins.add((index + 1) * INSTRUCTION_BYTES)
            if self._names[index] in _BY_REGISTER and index * INSTRUCTION_BYTES not in entrances.indirect:
                self.wrong.append((index, f"where {self._names[index]} goes is not known"))
        self._begins = sorted(place // INSTRUCTION_BYTES for place in begins if 0 <= place < self._end)
        for place in begins:
            if place % INSTRUCTION_BYTES or not 0 <= place <= self._end:
                self.wrong.append((0, f"something goes to {place:#x}, where no instruction is"))
        self.reached = self._follow({0, *entrances.functions, *constants}, targets, flows, entrances)

    def _together(self, targets: Mapping[int, int], flows: Sequence[Flow]) -> dict[int, int]:
        """Return what lanes that come from several places do together, and then go on where each was: numbers of
        WARPSYNC.COLLECTIVE → of ENDCOLLECTIVE, behind which it goes on. Others are wrong."""
        found: dict[int, int] = {}
        for index in np.flatnonzero(self._code.having(_is_collective)).tolist():
            if self._names[index] != "WARPSYNC":
                if index not in found.values():
                    self.wrong.append((index, f"{self._names[index]} ends what nothing begins"))
                continue
            end = index + 1
            while end < len(self._names) and flows[end] is Flow.NEXT:
                end += 1
            ends = self._names[end : end + 1] == ["ENDCOLLECTIVE"]
            if ends and targets.get(index) == (end + 1) * INSTRUCTION_BYTES:
                found[index] = end
            else:
                self.wrong.append((index, "WARPSYNC.COLLECTIVE goes on elsewhere than behind ENDCOLLECTIVE"))
        return found

    def _all_return_behind(self, flows: Sequence[Flow]) -> bool:
        """Whether every function that is called returns to the instruction behind the call: no constant is moved for
        another place, for one with each call is for that."""
        moved: dict[int, set[int]] = {}
        last = -1
        places = dict(self._constants())
        for index, flow in enumerate(flows):
            if index in places:
                moved.setdefault(last, set()).add(places[index])
            if self._names[index] == "LEPC" and (
                _word(self._code, index) >> 24 & _BELOW != INSTRUCTION_BYTES or flows[index + 1 :][:1] != [Flow.CALL]
            ):
                return False
            behind = (index + 1) * INSTRUCTION_BYTES
            by_place = index > 0 and self._names[index - 1] == "LEPC"
            if self._names[index] == "CALL" and not by_place and behind not in moved.get(last, ()):
                return False
            if flow in _PARTS:
                last = index
        return True

    def _constants(self) -> Iterator[tuple[int, int]]:
        """Yield constants that may be where a function returns to: the number of the instruction, and the place."""
        for index, name in enumerate(self._names):
            word = _word(self._code, index)
            moves = name in _MOVES_CONSTANT and _OPERANDS.get(word) in _WITH_CONSTANT
            value = _CONSTANT.get(word) if moves else 0
            if value % INSTRUCTION_BYTES == 0 and 0 < value < self._end:
                yield index, value

    def _follow(
        self, roots: set[int], targets: Mapping[int, int], flows: Sequence[Flow], entrances: Entrances
    ) -> list[range]:  # fmt: skip
        """Return the blocks that are reached, in order."""
        found: dict[int, range] = {}
        left = [place // INSTRUCTION_BYTES for place in roots if place < self._end]
        while left:
            begin = left.pop()
            if begin in found or begin >= len(self._code):
                continue
            at = bisect.bisect_right(self._begins, begin)
            end = self._begins[at] if at < len(self._begins) else len(self._code)
            found[begin] = range(begin, end)
            for index in range(begin, end):
                if index in targets:
                    left.append(targets[index] // INSTRUCTION_BYTES)
                if self._names[index] in _BY_REGISTER:
                    places = entrances.indirect.get(index * INSTRUCTION_BYTES, ())
                    left += [place // INSTRUCTION_BYTES for place in places]
            if not self._is_end(end - 1):
                left.append(end)
                if end >= len(self._code):
                    self.wrong.append((end - 1, "the code runs on behind its end"))
        return [found[begin] for begin in sorted(found)]

    def _is_end(self, index: int) -> bool:
        """Whether nothing goes on after an instruction."""
        name, word = self._names[index], _word(self._code, index)
        plain = GUARD.get(word) == ALWAYS and not NEGATED.get(word)
        if name == "BRA":
            form = self._code.form(index)
            # BRA.U, .DIV and .CONV are decided by more.
            plain = plain and form is not None and form.name == "BRA"
        return name in _ENDS and plain and (name not in ("EXIT", "BRA") or _CONDITION.get(word) == _TRUE)


def _is_collective(form: Form | None) -> bool:
    return form is not None and "COLLECTIVE" in form.name


def _word(code: Code, index: int) -> int:
    return int(code.words[index, 0]) | int(code.words[index, 1]) << 64
