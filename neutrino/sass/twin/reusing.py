"""Probe code in a kernel's own registers, for kernels that have no others left.

At a kernel's first instruction nothing is in them yet, and where a thread ends nothing of them is needed any more. What
the entry keeps for the exits is in uniform registers, which the kernel never names: only the clock, which all lanes of
a warp read alike at the first instruction. At an exit the code begins by waiting until nothing of the kernel's is under
way that could still change these registers, or read them. The clock is read before that where a register can be found
that nothing of the kernel's is under way for; in other kernels about 50 cycles later than by other code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from neutrino.errors import MachineCodeError
from neutrino.sass.fields import OPCODE, REUSE, STALL, WAIT, WRITE_BARRIER, Field
from neutrino.sass.instruction import RegisterFile
from neutrino.sass.twin import control
from neutrino.sass.twin.free_registers import Reusable
from neutrino.sass.twin.probe_code import (
    PMTRIG,
    Lifted,
    LiftedWord,
    Named,
    Placed,
    Registers,
    moved_constant,
    renamed,
    settled,
    uniform_numbers,
)
from neutrino.sass.twin.sums import idle, set_sums

_CS2R, _S2R = 0x805, 0x919
_CS2R_WHOLE = 1 << 80
"""Bit of CS2R that reads 64 bits."""
_DESTINATION, _SOURCE, _UNIFORM_SOURCE = Field(16, 8), Field(24, 8), Field(32, 6)
_UNIFORM_DESTINATION = Field(16, 6)
_SPECIAL = Field(72, 8)
_LANE_MASKS = frozenset({0x38, 0x39, 0x3A, 0x3B, 0x3C})
"""Special registers that a lane reads alike at all times: EQMASK, LTMASK, LEMASK, GTMASK, GEMASK."""
_TO_UNIFORM = 0x00000000000E0000_00000000000072CA
"""R2UR of sm_90 and up, without control bits and registers."""
_TO_UNIFORM_SLOWLY = 0x00000000000E0000_00000000000073C2
"""That of older ones, whose result a scoreboard says is there."""
_FAST_FROM = 90
_FROM_UNIFORM = 0x0000000008000F00_0000000000007C02
"""MOV of a uniform register, the same."""
_NOTHING = 0xFF
"""The special register that is always zero."""
_ALL_SCOREBOARDS = 0x3F
_SETTLING = (control.LONGEST_STALL,) * 3
"""Cycles that instructions which do nothing wait, so that every result of a fixed latency is there (``hazards``)."""
_PAIR, _QUAD = 2, 4


def place_reusing(
    lifted: Lifted, registers: Registers, reusable: Reusable, block_offset: int, name: str,
    sums: Collection[int] = (),
) -> Placed:  # fmt: skip
    """Return probe code in a kernel's own registers, but for sums that accesses add to: they are above these.

    reusable: those that it may have. Other parameters: of ``place_code``. Raises MachineCodeError for code
    that keeps more than the clock and sums, and where the kernel has too few registers.
    """
    clocks, again = _kept(lifted, name)
    ahead = _read_first(lifted.exit)
    kept = {number: registers.base + _PAIR * index for index, number in enumerate(sorted({*sums}))}
    holds_one = registers.base + _PAIR * len(kept) if kept else -1
    above = {
        first + index: kept[number] + index
        for number, first in enumerate(lifted.sums) if first is not None and number in kept for index in range(_PAIR)
    }  # fmt: skip
    first_of = [one for word in ahead for one in word.named]
    general = _numbers([*again, *lifted.exit], clocks, first_of, above, reusable, name)
    if any(general[one.number] not in reusable.at_once for word in ahead for one in word.named):
        ahead = []
    if len(lifted.predicates) > len(registers.predicates):
        raise MachineCodeError(name, f"has too few predicates left for {len(lifted.predicates)} of the probe's")
    predicates = dict(zip(lifted.predicates, registers.predicates, strict=False))
    first_kept = len(lifted.uniform)
    uniform = uniform_numbers([*lifted.uniform, *(1 for _ in clocks)], registers.uniform, name)
    maps: Mapping[RegisterFile, Mapping[int, int]] = {
        RegisterFile.GENERAL: general, RegisterFile.PREDICATE: predicates, RegisterFile.UNIFORM: uniform,
    }  # fmt: skip
    entry: list[int] = []
    for word in lifted.entry:
        if OPCODE.get(word.bits) == _CS2R:
            entry.append(control.with_stall(renamed(word, maps), control.LONGEST_STALL))
    if clocks:
        entry += [idle(cycles) for cycles in _SETTLING[1:]]
    leave = [renamed(word, maps) for word in ahead]
    leave += [idle(cycles, 0 if number else _ALL_SCOREBOARDS) for number, cycles in enumerate(_SETTLING)]
    for index, register in enumerate(clocks):
        there = uniform[first_kept + index]
        entry.append(_to_uniform(general[register], there, lifted.shape.sm))
        back = _DESTINATION.put(_UNIFORM_SOURCE.put(_FROM_UNIFORM, there), general[register])
        leave.append(back | control.control(_PAIR))
    moved = block_offset - lifted.shape.block_offset
    start = lifted.shape.parameter_base + lifted.shape.block_offset
    rest = [word for word in lifted.exit if not any(word is one for one in ahead)]
    leave += [moved_constant(REUSE.put(renamed(word, maps), 0), start, moved) for word in (*again, *rest)]
    shares = bool(set(predicates.values()) & registers.shared)
    entry = [*settled(entry, shares_predicates=False),
             *set_sums({register: lifted.shape.sums[number] for number, register in kept.items()}, holds_one)]
    top = max([*general.values(), *(register + 1 for register in kept.values()), holds_one])
    return Placed(tuple(entry), tuple(settled(leave, shares_predicates=shares)), top, block_offset, kept, holds_one)


def _to_uniform(register: int, uniform: int, sm: int) -> int:
    """Return the instruction that moves a register into a uniform one. sm: of the architecture, as 90."""
    word = (_TO_UNIFORM if sm >= _FAST_FROM else _TO_UNIFORM_SLOWLY) | control.control(_PAIR)
    if sm < _FAST_FROM:
        word = WRITE_BARRIER.put(word, 0)
    return _UNIFORM_DESTINATION.put(_SOURCE.put(word, register), uniform)


def _kept(lifted: Lifted, name: str) -> tuple[list[int], list[LiftedWord]]:
    """Return the registers in which the entry leaves the clock, and its instructions that an exit may repeat instead.

    Raises MachineCodeError for what is kept otherwise.
    """
    clocks: list[int] = []
    again: list[LiftedWord] = []
    for word in lifted.entry:
        opcode = OPCODE.get(word.bits)
        written = [number for one in word.named if one.file is RegisterFile.GENERAL
                   for number in range(one.number, one.number + one.count)]  # fmt: skip
        if opcode == _CS2R and word.bits & _CS2R_WHOLE:
            clocks += [number for number in written if number in lifted.kept]
        elif opcode == _S2R and _SPECIAL.get(word.bits) in _LANE_MASKS:
            again.append(word)
        elif word.named:
            raise MachineCodeError(name, "keeps more from the entry on than the clock")
    repeated = {one.number for word in again for one in word.named}
    if lifted.kept - {*clocks} - repeated or len({*clocks}) != len(clocks):
        raise MachineCodeError(name, "keeps more from the entry on than the clock")
    return clocks, again


def _read_first(words: Sequence[LiftedWord]) -> list[LiftedWord]:
    """Return the instructions of an exit's code that read the clock, if they can be its first ones: that one and the
    event before it."""
    found: list[LiftedWord] = []
    seen: set[int] = set()
    for word in words:
        if word.bits & (1 << STALL.low) - 1 == PMTRIG:
            found.append(word)
        elif OPCODE.get(word.bits) == _CS2R and _SPECIAL.get(word.bits) & 0xFF != _NOTHING:
            one = word.named[0] if len(word.named) == 1 else None
            is_apart = one is not None and one.count == 1 and one.number not in seen
            return [*found, word] if is_apart and not WAIT.get(word.bits) else []
        seen |= {one.number for one in word.named if one.file is RegisterFile.GENERAL}
    return []


def _numbers(
    words: Sequence[LiftedWord], clocks: Sequence[int], first: Sequence[Named], above: Mapping[int, int],
    reusable: Reusable, name: str,
) -> dict[int, int]:  # fmt: skip
    """Return which of a kernel's registers each of the code's gets: neighbours in one operand stay neighbours. first:
    what is written before nothing is under way any more, if it can be. above: those that have other registers already.

    Raises MachineCodeError where there are too few.
    """
    groups: list[set[int]] = [{*clocks}] if clocks else []
    for word in words:
        for one in word.named:
            if one.file is not RegisterFile.GENERAL:
                continue
            joined = set(range(one.number, one.number + one.count))
            if joined <= above.keys():
                continue
            if joined & above.keys():
                raise MachineCodeError(name, "has a sum and something else in one operand")
            apart = [group for group in groups if not group & joined]
            for group in groups:
                joined |= group if group & joined else set()
            groups = [*apart, joined]
    left = dict.fromkeys(reusable.settled)
    numbers: dict[int, int] = dict(above)
    for number in {one.number for one in first if {one.number} in groups}:
        quiet = next((one for one in reversed(reusable.settled) if one in reusable.at_once), None)
        if quiet is not None:
            numbers[number] = quiet
            del left[quiet]
            groups.remove({number})
    for group in sorted(groups, key=lambda one: (-len(one), min(one))):
        low = min(group)
        width = max(group) + 1 - low
        step = 1 if width == 1 else _PAIR if width == _PAIR and not low % _PAIR else _QUAD
        shift = next((first - low for first in range(low % step, 256, step)
                      if all(number + first - low in left for number in group)), None)  # fmt: skip
        if shift is None:
            raise MachineCodeError(name, f"has {len(left)} registers of its own left for the probe's code")
        for number in group:
            numbers[number] = number + shift
            del left[number + shift]
    return numbers
