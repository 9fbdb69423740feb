"""Where a twin counts the instructions of its kernel: in each basic block once, and once more for each predicate.

A count stands before an instruction that may run in a trampoline. Under a predicate it stands at an instruction that
has it as its guard, or after one: there the predicate has been written for certain. What nobody comes to counts
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.errors import MachineCodeError
from neutrino.sass.decoder import Code
from neutrino.sass.fields import ALWAYS, GUARD, INSTRUCTION_BYTES, NEGATED, REUSE, WAIT, Field
from neutrino.sass.instruction import Flow, RegisterFile
from neutrino.sass.twin import control
from neutrino.sass.twin.sums import add_to_sum

_DISPLACED = frozenset({
    "BMSK", "BREV", "DADD", "DFMA", "DMUL", "DSETP", "F2F", "F2FP", "F2I", "FADD", "FCHK", "FFMA", "FLO", "FMNMX",
    "FMUL", "FRND", "FSEL", "FSET", "FSETP", "HADD2", "HFMA2", "HMNMX2", "HMUL2", "HSET2", "HSETP2", "I2F", "I2FP",
    "I2I", "I2IP", "IABS", "IADD3", "IDP", "IMAD", "ISETP", "LD", "LDC", "LDG", "LDL", "LDS", "LEA", "LOP3", "MOV",
    "MUFU", "PLOP3", "POPC", "PRMT", "S2R", "SEL", "SGXT", "SHF", "ST", "STG", "STL", "STS", "VHMNMX", "VIADD",
    "VIADDMNMX", "VIMNMX", "VIMNMX3",
})  # fmt: skip
"""Instructions that do the same in a trampoline: they go on to the next, and ask no other lanes."""
_LAST = frozenset({
    "NOP", "UBMSK", "UIADD3", "UIMAD", "UISETP", "ULDC", "ULEA", "ULOP3", "UMOV", "UPRMT", "USEL", "USHF",
})  # fmt: skip
"""The same where a block has nothing else: of the uniform datapath, which groups of lanes share."""
_BY_REGISTER = frozenset({"BRX", "BRXU", "JMX", "JMXU", "JMP"})
_IMMEDIATE, _WITH_IMMEDIATE = Field(32, 32), (2, 4)
_OPERANDS = Field(9, 3)
_LEPC, _BELOW_CONTROL = 0x10 << 24, (1 << 105) - 1
"""The place after the next instruction, as LEPC has it."""
_AGAIN = 6
"""Cycles until a sum can be added to again."""
_BEFORE_END = 12
"""Cycles until code at an EXIT may read sums."""
Weights = Callable[[int], Mapping[int, int]]
"""Number of an instruction → number of a sum → what is added to it for the instruction."""


@dataclass(frozen=True)
class Count:
    """One addition of a constant. number: of the sum. guard: number of the predicate under which it is, and 1 if it is
    negated."""

    number: int
    amount: int
    guard: tuple[int, int]


Counts = Mapping[int, tuple[Count, ...]]
"""Place of an instruction in the code, in bytes → what is added before it."""


@dataclass
class _Group:
    """What instructions of a block add under one condition. first: number of the first of them. last: of the one after
    which the predicate is another. at: of those that have the predicate as their guard."""

    guard: tuple[int, int]
    uniform: bool
    first: int
    last: int
    at: list[int] = field(default_factory=list)
    rows: Counter[int] = field(default_factory=Counter)


def plan_counts(
    code: Code, weights: Weights, functions: Collection[int], indirect: Mapping[int, Sequence[int]],
    fixed: Collection[int], kernel: str,
) -> Counts:  # fmt: skip
    """Return what to add where so that a kernel's instructions are counted.

    functions: where functions of the section begin. indirect: of branches by a register → where they go. fixed: what
    may not be displaced. All in bytes. Raises MachineCodeError for a kernel in which something cannot be counted.
    """
    counts: dict[int, list[Count]] = {}
    together = _together(code, kernel)
    closed = {one for begin, end in together.items() for one in range(begin + 1, end + 1)}
    fixed = {*fixed, *(index * INSTRUCTION_BYTES for index in closed)}
    for block in _blocks(code, functions, indirect, together, kernel):
        groups = [group for group in _groups(code, block, weights) if +group.rows]
        chosen: set[int] = set()
        # Those under predicates first: the other one may be at the same instruction.
        for group in sorted(groups, key=lambda one: one.guard == (ALWAYS, 0)):
            site = _site(code, group, chosen, fixed, kernel)
            chosen.add(site)
            rows = [Count(number, amount, group.guard) for number, amount in sorted(group.rows.items()) if amount]
            counts.setdefault(site * INSTRUCTION_BYTES, []).extend(rows)
    return {place: tuple(rows) for place, rows in counts.items()}


def additions(counts: Sequence[Count], sums: Mapping[int, int], one: int, kernel: str, *, ends: bool) -> list[int]:
    """Return the instructions for counts. sums: by their number, the first register. one: the register that holds 1.
    ends: whether the code of an EXIT follows."""
    words = []
    for index, count in enumerate(counts):
        word = add_to_sum(sums[count.number], one, count.amount, count.guard, kernel)
        if any(other.number == count.number for other in counts[index + 1 :]):
            word = control.with_stall(word, _AGAIN)
        words.append(word)
    if ends and words:
        words[-1] = control.with_stall(words[-1], _BEFORE_END)
    return words


def counting_trampoline(word: int, site: int, place: int, added: Sequence[int], sm: int) -> tuple[list[int], int]:
    """Return a trampoline that counts, and the branch to it.

    word: the displaced instruction, no EXIT. site, place: its own place and the trampoline's, in bytes. added: the
    instructions that count. sm: of the architecture, as 90.
    """
    new, back = list(added), site + INSTRUCTION_BYTES
    here = place + len(new) * INSTRUCTION_BYTES
    target = control.plain_target(word, site, sm)
    displaced = REUSE.put(word, 0)
    new.append(displaced if target is None else control.moved_branch(displaced, here, target, sm))
    if control.branch_target(word, site, sm) is None:
        new.append(control.branch(here + INSTRUCTION_BYTES, back, sm))
    return new, control.branch(site, place, sm, wait=WAIT.get(word))


def _site(code: Code, group: _Group, chosen: Collection[int], fixed: Collection[int], kernel: str) -> int:
    """Return the instruction before which a group's additions go: one that is displaced anyway, if there is one."""
    places = range(min(group.at, default=group.first), group.last + 1)
    if group.uniform:
        name = _name(code, group.at[0])
        what = f"{name} under a predicate of the uniform datapath at {group.at[0] * INSTRUCTION_BYTES:#x}"
        raise MachineCodeError(kernel, f"has {what}, which cannot be counted yet")
    known = [index for index in places if index in chosen]
    if known:
        return known[0]
    own = set(group.at)
    found = sorted(
        (rank, index not in own, index) for index in places
        if index and index * INSTRUCTION_BYTES not in fixed and (rank := _rank(code, index)) is not None
    )  # fmt: skip
    if not found:
        at = places.start * INSTRUCTION_BYTES
        raise MachineCodeError(kernel, f"has no instruction from {at:#x} on at which a basic block can be counted")
    return found[0][-1]


def _rank(code: Code, index: int) -> int | None:
    """Return how well an instruction can be displaced: 0 best; None if it cannot."""
    name, word, form = _name(code, index), _word(code, index), code.form(index)
    if form is None or (GUARD.get(word) == ALWAYS and NEGATED.get(word)):
        return None
    if form.guard is RegisterFile.UNIFORM_PREDICATE and GUARD.get(word) != ALWAYS:
        return None
    # At branches, groups of lanes take turns anyway; and it is one branch more instead of two.
    if name == "BRA" and control.plain_target(word, 0, code.sm) is not None:
        return 0
    if name == "EXIT":
        return 0
    return 1 if name in _DISPLACED else 2 if name in _LAST else None


def _groups(code: Code, block: range, weights: Weights) -> list[_Group]:
    """Return what a block's instructions add, by condition."""
    always = _Group((ALWAYS, 0), False, block.start, block.stop - 1)
    groups = [always]
    current: dict[tuple[bool, int, int], _Group] = {}
    # Of either sign: the predicate is there at both.
    guarding: dict[tuple[bool, int], list[int]] = {}
    for index in block:
        form, word = code.form(index), _word(code, index)
        guard = GUARD.get(word), NEGATED.get(word)
        if form is None or guard == (ALWAYS, 1):
            continue
        added = weights(index)
        if form.guard is None or guard[0] == ALWAYS:
            always.rows.update(added)
        else:
            uniform = form.guard is RegisterFile.UNIFORM_PREDICATE
            key = uniform, *guard
            if key not in current:
                current[key] = _Group(guard, uniform, index, block.stop - 1)
                groups.append(current[key])
            current[key].rows.update(added)
            guarding.setdefault((uniform, guard[0]), []).append(index)
            for negated in (0, 1):
                if (uniform, guard[0], negated) in current:
                    current[uniform, guard[0], negated].at = guarding[uniform, guard[0]]
        for uniform, file in ((False, RegisterFile.PREDICATE), (True, RegisterFile.UNIFORM_PREDICATE)):
            written = int(code.writes[file][index])
            for number in range(ALWAYS) if written else ():
                if written >> number & 1:
                    guarding.pop((uniform, number), None)
                    for negated in (0, 1):
                        group = current.pop((uniform, number, negated), None)
                        if group is not None:
                            group.last = index
    return groups


def _blocks(
    code: Code, functions: Collection[int], indirect: Mapping[int, Sequence[int]], together: Collection[int],
    kernel: str,
) -> Iterator[range]:  # fmt: skip
    """Yield the basic blocks that lanes may come to, in order. together: of ``_together``."""
    last = len(code)
    targets = {
        index: place // INSTRUCTION_BYTES for index, place in code.targets().items()
        # Where lanes of a BSSY meet is right after BSYNC, from which they come.
        if index not in together
        and (_name(code, index), _name(code, place // INSTRUCTION_BYTES - 1)) != ("BSSY", "BSYNC")
    }  # fmt: skip
    begins = {0, *(place // INSTRUCTION_BYTES for place in functions), *targets.values()}
    jumps: dict[int, list[int]] = {}
    after: dict[int, bool] = {}
    for index in range(last):
        form = code.form(index)
        if form is None:
            continue
        name, word = form.name.partition(".")[0], _word(code, index)
        at = f"{form.name} at {index * INSTRUCTION_BYTES:#x}"
        if name in _BY_REGISTER:
            if index * INSTRUCTION_BYTES not in indirect:
                raise MachineCodeError(kernel, f"has {at}, whose targets no list has")
            jumps[index] = [place // INSTRUCTION_BYTES for place in indirect[index * INSTRUCTION_BYTES]]
            begins.update(jumps[index])
        # After BPT no launch goes on.
        parts = form.flow in (Flow.BRANCH, Flow.CALL, Flow.RETURN, Flow.EXIT) and name != "BPT"
        if parts:
            begins.add(index + 1)
            always = (GUARD.get(word), NEGATED.get(word)) == (ALWAYS, 0)
            condition = control.CONDITION.get(word), control.CONDITION_NEGATED.get(word)
            ends = name in ("RET", *_BY_REGISTER) or (form.name in ("BRA", "EXIT") and condition == (ALWAYS, 0))
            after[index] = not always or not ends
    roots = {0, *(place // INSTRUCTION_BYTES for place in functions)}
    if not _returns_behind_calls(code):
        # Where to, is in a constant that is moved to a register.
        roots |= {one // INSTRUCTION_BYTES for one in _immediates(code, range(last)) if one < last * INSTRUCTION_BYTES}
        begins |= roots
    ordered = sorted(one for one in begins if 0 <= one < last)
    stops = dict(zip(ordered, [*ordered[1:], last], strict=True))
    reached: set[int] = set()
    left = sorted(roots)
    while left:
        begin = left.pop()
        if begin in reached or begin not in stops:
            continue
        reached.add(begin)
        for index in range(begin, stops[begin]):
            left += [targets[index]] if index in targets else []
            left += jumps.get(index, [])
        if after.get(stops[begin] - 1, True):
            left.append(stops[begin])
    yield from (range(begin, stops[begin]) for begin in sorted(reached))


def _together(code: Code, kernel: str) -> dict[int, int]:
    """Return what lanes do together that come from several places, by ``WARPSYNC.COLLECTIVE``, each of which goes on
    behind it: number of that → of ENDCOLLECTIVE. Raises MachineCodeError for other uses of these."""
    found = {}
    for index in range(len(code)):
        form = code.form(index)
        if form is None or _name(code, index) != "WARPSYNC" or "COLLECTIVE" not in form.name:
            continue
        end, behind = index + 1, code.targets().get(index, 0) // INSTRUCTION_BYTES
        while end < behind - 1 and _name(code, end) != "ENDCOLLECTIVE":
            end += 1
        if behind != end + 1 or end >= len(code) or _name(code, end) != "ENDCOLLECTIVE":
            raise MachineCodeError(kernel, f"has {form.name} at {index * INSTRUCTION_BYTES:#x}, and no end of it")
        found[index] = end
    return found


def _returns_behind_calls(code: Code) -> bool:
    """Return whether functions come back to the instruction after the call, as each call says: by a constant ahead of
    it in its block, or by LEPC."""
    begin = 0
    for index in range(len(code)):
        form = code.form(index)
        flow = Flow.NEXT if form is None else form.flow
        if flow is Flow.CALL:
            by_place = index and _name(code, index - 1) == "LEPC"
            if by_place and _word(code, index - 1) & _BELOW_CONTROL != _LEPC | _word(code, index - 1) & 0xFFFFFF:
                return False
            if not by_place and (index + 1) * INSTRUCTION_BYTES not in _immediates(code, range(begin, index)):
                return False
        elif _name(code, index) == "LEPC" and (index + 1 == len(code) or _name(code, index + 1) != "CALL"):
            return False
        if flow in (Flow.BRANCH, Flow.CALL, Flow.RETURN, Flow.EXIT):
            begin = index + 1
    return True


def _immediates(code: Code, among: range) -> set[int]:
    """Return constants that are moved to registers and may be places of instructions."""
    found = set()
    for index in among:
        word = _word(code, index)
        if _name(code, index) in ("MOV", "UMOV", "IMAD") and _OPERANDS.get(word) in _WITH_IMMEDIATE:
            value = _IMMEDIATE.get(word)
            if value and value % INSTRUCTION_BYTES == 0:
                found.add(value)
    return found


def _name(code: Code, index: int) -> str:
    form = code.form(index)
    return "" if form is None else form.name.partition(".")[0]


def _word(code: Code, index: int) -> int:
    return int(code.words[index, 0]) | int(code.words[index, 1]) << 64
