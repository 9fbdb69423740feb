"""What code at accesses is told about the access, and what it keeps between accesses: placeholders until it is placed.

``ptxas`` assembles the code in a kernel of its own, where loads of shared memory at certain offsets from an address
that differs by lane stand for these values, and stores for what is kept. In a twin each of them becomes one or two
instructions of fixed latency in the same place (``instead``).
"""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.sass.encoding import Form
from neutrino.sass.fields import ALWAYS, GUARD, NEGATED, NO_BARRIER, STALL, WAIT, Field
from neutrino.sass.instruction import Memory
from neutrino.sass.twin import control

FIRST_OFFSET, DISTANCE = 0xA000, 32
"""The offset of the first placeholder, and how far they are apart, in bytes, so that no two are loaded together."""
ADDRESS, EXECUTES, SITE, ZERO, KEPT = 0, 1, 2, 3, 4
"""Numbers of placeholders: the address of 64 bits; 1 in lanes that execute the access, else 0; the number of the site;
0 of 64 bits; from ``KEPT`` on registers that are kept from the entry to the end."""
RESULT = 100
"""The first register, or both of the first pair, that the access has written: in code after it. No number of what is
kept is as high."""
_ZERO = 255
_DESTINATION, _ADDRESS, _SOURCE = Field(16, 8), Field(24, 8), Field(32, 8)
MOVED = _DESTINATION, _SOURCE
"""The fields of a move between registers."""
_IMMEDIATE, _ADDEND, _OFFSET = Field(32, 32), Field(64, 8), Field(40, 24)
_CHOICE, _CHOICE_NEGATED = Field(87, 3), Field(90, 1)
_SPECIAL, _NOTHING = Field(72, 8), 0xFF
"""Of CS2R: which of the hardware's values; 0."""
_MOVE = 0x0000000000000F00_0000000000007202
"""MOV of a register, without control bits, as all of these."""
_CONSTANT = 0x0000000000000F00_0000000000007802
_SELECT = 0x0000000000000000_00000001FF007807
"""SEL of RZ and 1."""
_ADD_WIDE = 0x00000000078E0200_0000000000007825
"""IMAD.WIDE of a register, a constant with a sign, and two registers."""
_ADD = 0x0000000007FFE0FF_0000000000007810
"""IADD3 of a register, a constant and RZ."""
_SAVE, _RESTORE = 0x0000000000000000_00000000FF007803, 0x0000000000000000_0000000000007804
"""P2R of predicates in a mask, R2P of the same."""
LATENCY = 6
"""Cycles after which results of fixed latency can be used, by any instruction that is here or in probe code."""
_WIDE = frozenset({"LDS.64", "STS.64"})
_LOADS, _STORES = frozenset({"LDS", "LDS.64"}), frozenset({"STS", "STS.64"})


@dataclass(frozen=True)
class Placeholder:
    """A placeholder that an instruction loads or stores. number: see ``ADDRESS``. register: of the code's own, its
    first. count: of registers."""

    number: int
    register: int
    count: int
    stores: bool


@dataclass(frozen=True)
class Access:
    """What code at an access is told. address: number of the first of the two registers with the address. offset: of
    the instruction, in bytes. guard: number of the predicate under which it is executed, 1 if it is negated. site: its
    number. result: the first register that it writes, and how many; None if no code is after it. barrier: the
    scoreboard that says that they are there."""

    address: int
    offset: int
    guard: tuple[int, int]
    site: int
    result: tuple[int, int] | None = None
    barrier: int = NO_BARRIER


def placeholder_in(form: Form, word: int) -> Placeholder | None:
    """Return the placeholder that an instruction stands for; None for any other instruction."""
    if form.name == "CS2R" and _SPECIAL.get(word) == _NOTHING and GUARD.get(word) == ALWAYS and not NEGATED.get(word):
        # Of fixed latency as well, but how long it takes is hardly known.
        return Placeholder(ZERO, _DESTINATION.get(word), 2, stores=False)
    if form.memory is not Memory.SHARED or form.name not in _LOADS | _STORES or _ADDRESS.get(word) == _ZERO:
        return None
    number, rest = divmod(_OFFSET.get(word) - FIRST_OFFSET, DISTANCE)
    if number < 0 or rest or GUARD.get(word) != ALWAYS or NEGATED.get(word):
        return None
    stores = form.name in _STORES
    register = (_SOURCE if stores else _DESTINATION).get(word)
    return Placeholder(number, register, 1 + (form.name in _WIDE), stores)


def instead(one: Placeholder, register: int, kept: int, access: Access | None, held: int) -> list[int]:
    """Return the instructions in the place of a placeholder.

    register: the first of the code's in the kernel, or RZ. kept: the first register that is kept. access: of the code;
    None at the entry and the end. held: the control bits of the instruction that is replaced: the first one waits as it
    did, and the last one takes as many cycles at least. Raises LookupError without an access.
    """
    if one.number == RESULT:
        if access is None or access.result is None or one.stores or one.count > access.result[1]:
            raise LookupError("the result of an access outside of the code after it")
        words = [_move(register + index, access.result[0] + index) for index in range(one.count)]
        words[0] = WAIT.put(words[0], 1 << access.barrier)
    elif one.number >= KEPT:
        words = [
            _move(kept + index, register + index if register != _ZERO else _ZERO) if one.stores
            else _move(register + index, kept + index)
            for index in range(one.count)
        ]  # fmt: skip
    elif one.number == ZERO:
        words = [_move(register + index, _ZERO) for index in range(one.count)]
    elif access is None or one.stores:
        raise LookupError(f"placeholder {one.number} outside of an access")
    elif one.number == SITE:
        words = [_IMMEDIATE.put(_DESTINATION.put(_CONSTANT, register), access.site) | control.control(1)]
    elif one.number == EXECUTES:
        predicate, negated = access.guard
        word = _CHOICE_NEGATED.put(_CHOICE.put(_SELECT, predicate), 1 - negated)
        words = [_DESTINATION.put(word, register) | control.control(1)]
    elif one.count == 1:
        word = _ADDRESS.put(_DESTINATION.put(_ADD, register), access.address)
        words = [_IMMEDIATE.put(word, access.offset) | control.control(1)]
    else:
        one_ = _IMMEDIATE.put(_DESTINATION.put(_CONSTANT, register), 1) | control.control(LATENCY)
        word = _ADDEND.put(_ADDRESS.put(_DESTINATION.put(_ADD_WIDE, register), register), access.address)
        words = [one_, _IMMEDIATE.put(word, access.offset) | control.control(1)]
    words[0] = WAIT.put(words[0], WAIT.get(words[0]) | WAIT.get(held))
    words[-1] = control.with_stall(words[-1], max(STALL.get(words[-1]), STALL.get(held)))
    return words


def _move(target: int, source: int) -> int:
    return _SOURCE.put(_DESTINATION.put(_MOVE, target), source) | control.control(1)


def save_predicates(register: int, mask: int) -> int:
    """Return the instruction that puts the predicates of a mask into a register."""
    return _IMMEDIATE.put(_DESTINATION.put(_SAVE, register), mask) | control.control(control.LONGEST_STALL)


def restore_predicates(register: int, mask: int) -> int:
    """Return the instruction that gives the predicates of a mask back what ``save_predicates`` put into a register."""
    return _IMMEDIATE.put(_ADDRESS.put(_RESTORE, register), mask) | control.control(control.LONGEST_STALL)
