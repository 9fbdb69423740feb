"""The least and the greatest of several results of a basic block, by as few minima and maxima as that takes.

A result that lies between 0 and another one of them needs none, if the least so far is at most 0 and the greatest at
least 0: a factor times a constant, a term of a sum of numbers that are not negative. Such a number alone cannot be the
least. Where the sides of 0 are not known yet, these results are looked at after all. If all but they are finite, they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from neutrino.ir.operands import Register
from neutrino.probing.ir.probe_set import Deferral
from neutrino.ptx.analysis.float_facts import FloatFacts, float_types
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.records import widened_half
from neutrino.ptx.instrument.registers import Guard, under
from neutrino.ptx.instrument.site_values import SiteOperands
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.text.inserted import Label, Lines, op, vector

_INFINITY = "0f7F800000"
_ZERO = "0f00000000"


@dataclass(eq=False)
class Watched:
    """An f32 result of the program. text: the register that has it; name: of the program's own register.

    is_nonnegative: it is at least +0 or a NaN. cover: another result between which and 0 it lies. covers: whether it is
    that of others.
    """

    text: str
    name: str
    instruction: Instruction
    is_nonnegative: bool
    cover: Watched | None = None
    covers: bool = False

    @property
    def has_least(self) -> bool:
        """Whether it has to be compared with the least whatever that is."""
        return self.cover is None and not self.is_nonnegative


@dataclass
class _Running:
    """What of a group was brought to registers of its own: a least, a greatest one. is_one_sided: some result only to
    the greatest. pairs: by the type of pairs of halves that were brought to
    registers of theirs, whether to a least one, too."""

    has_least: bool = False
    has_greatest: bool = False
    is_one_sided: bool = False
    pairs: dict[str, bool] = field(default_factory=dict)


class WatchedValues:
    """Writes the code for the extremes of a group of results. register: gives a register of the group, of a type."""

    def __init__(
        self, emission: Emission, facts: Callable[[], FloatFacts], register: Callable[[str, str], str]
    ) -> None:  # fmt: skip
        """Set up a writer for the groups of a body. Parameters: see the class."""
        self._emission = emission
        self._facts = facts
        self._register = register
        self._running = _Running()

    def begin(self) -> None:
        """Begin a group, of which nothing is in registers yet."""
        self._running = _Running()

    def watched(self, deferral: Deferral, operands: SiteOperands, guard: Guard | None) -> Watched | None:
        """Return the result of a site, if it can be looked at when its group ends."""
        instruction = operands.instruction
        is_plain = guard is None and instruction.predicate is None and float_types(instruction)[:1] == ("f32",)
        if not deferral.of_out or not is_plain or len(instruction.written) != 1:
            return None
        (name,) = instruction.written
        return Watched(operands("OUT", None).text, name, instruction, self._facts().is_nonnegative(name))

    def covers(self, instruction: Instruction, value: Watched) -> bool:
        """Whether a value lies between 0 and the result of an instruction that reads it."""
        if instruction.predicate is not None or value.name not in self._facts().covered(instruction):
            return False
        # What is below normal numbers may come in as 0.
        return "ftz" not in instruction.parts or "ftz" in value.instruction.parts

    def join(self, value: Watched, others: Sequence[Watched]) -> None:
        """Note which of the other values of a group lie between 0 and a value, or the reverse."""
        sources = [other for other in others if other.name in value.instruction.sources]
        for other in sources:
            if other.cover is None and self.covers(value.instruction, other):
                other.cover, value.covers = value, True
            elif value.cover is None and self._facts().covering(value.instruction) == other.name:
                value.cover, other.covers = other, True

    def bring(self, deferral: Deferral, operands: SiteOperands, guard: Guard | None) -> Lines:
        """Return the code that brings the values of a site to the least and the greatest one of the group.

        The greatest is a NaN once a value was.
        """
        is_always = guard is None and operands.instruction.predicate is None
        is_one_sided = is_always and self._is_nonnegative(operands.instruction)
        if is_always and deferral.halves is not None and deferral.halves in float_types(operands.instruction)[:1]:
            return self._bring_pair(deferral.halves, operands("OUT", None).text, is_one_sided=is_one_sided)
        lines, values = self._emission.conditions(deferral.test, deferral.conditions, operands)
        running = self._running
        sides = (("least", "min.f32"), ("greatest", "max.NaN.f32"))[is_one_sided:]
        for (side, opcode), shared in zip(sides, (deferral.extremes or ())[is_one_sided:], strict=True):
            register, rest = self._register(side, "b32"), values
            if not (running.has_least if side == "least" else running.has_greatest):
                first, *rest = values
                if guard is None:
                    lines.append(op("mov.b32", register, first))
                else:
                    elsewhere = self._emission.shared(shared)
                    choice = (elsewhere, first) if guard.negated else (first, elsewhere)
                    lines.append(op("selp.b32", register, *choice, guard.register))
            lines += [op(opcode, register, register, value, when=under(guard)) for value in rest]
        running.has_least |= not is_one_sided
        running.has_greatest = True
        running.is_one_sided |= is_one_sided
        return lines

    def _bring_pair(self, kind: str, pair: str, *, is_one_sided: bool) -> Lines:
        """Return the code that brings a pair of halves, by one instruction for both, to the extreme pairs of the group.

        kind: its type.
        """
        running = self._running
        lines: Lines = []
        for side, opcode in (("least", f"min.{kind}"), ("greatest", f"max.NaN.{kind}"))[is_one_sided:]:
            register = self._register(f"{side}_{kind}", "b32")
            has = running.pairs.get(kind, False) if side == "least" else kind in running.pairs
            lines.append(op(opcode, register, register, pair) if has else op("mov.b32", register, pair))
        running.pairs[kind] = running.pairs.get(kind, False) or not is_one_sided
        running.is_one_sided |= is_one_sided
        return lines

    def _of_pairs(self, side: str, lines: Lines) -> list[str]:
        """Append the code that takes pairs of extremes apart; return the halves as f32. side: which extremes."""
        singles: list[str] = []
        for kind, has_least in self._running.pairs.items():
            if side == "greatest" or has_least:
                halves = [self._emission.scratch.take("b16") for _ in range(2)]
                lines.append(op("mov.b32", vector(*halves), self._register(f"{side}_{kind}", "b32")))
                singles += [widened_half(half, kind[:-2], self._emission.scratch.take, lines) for half in halves]
        return singles

    def _is_nonnegative(self, instruction: Instruction) -> bool:
        """Whether a conversion gives numbers that are at least +0, or NaNs."""
        is_narrowed = instruction.parts[0] == "cvt" and float_types(instruction)[1:] == ("f32",)
        return is_narrowed and all(map(self._facts().is_nonnegative, instruction.sources))

    def fold(
        self, values: Sequence[Watched], extremes: tuple[Register, Register], end: str, lines: Lines
    ) -> tuple[str, Lines]:  # fmt: skip
        """Append the code that brings the values of a group to the extremes of the thread, if all are finite.

        Returns the predicate that is true in the threads in which that is all, and the code for the others up to where
        some values are not finite: it brings what was left out, and goes on at the label ``end``.
        """
        running, take = self._running, self._emission.scratch.take
        least, greatest = self._register("least", "b32"), self._register("greatest", "b32")
        both = [value.text for value in values if value.has_least] + self._of_pairs("least", lines)
        upper = [value.text for value in values if value.cover is None] + self._of_pairs("greatest", lines)
        for register, opcode, texts, has in (
            (least, "min.f32", both, running.has_least), (greatest, "max.NaN.f32", upper, running.has_greatest),
        ):  # fmt: skip
            first = [op("mov.b32", register, text) for text in texts[: 0 if has else 1]]
            lines += [*first, *(op(opcode, register, register, text) for text in texts[len(first) :])]
        has_least = running.has_least or bool(both)
        size, finite = take("b32"), take("pred")
        lines.append(op("abs.f32", size, greatest))
        if has_least:
            other = take("b32")
            lines += [op("abs.f32", other, least), op("max.NaN.f32", size, size, other)]
        lines.append(op("setp.lt.f32", finite, size, _INFINITY))
        lowest, highest = map(self._emission.shared, extremes)
        if has_least:
            lines.append(op("min.f32", lowest, lowest, least, when=finite))
        lines.append(op("max.f32", highest, highest, greatest, when=finite))
        lower = [value.text for value in values if not value.has_least]
        higher = [value.text for value in values if value.cover is not None and not value.is_nonnegative]
        if not lower and not running.is_one_sided:
            return finite, []
        is_all = take("pred")
        lines.append(op("setp.le.and.f32", is_all, lowest, _ZERO, finite))
        if higher:
            lines.append(op("setp.ge.and.f32", is_all, highest, _ZERO, is_all))
        if running.is_one_sided:
            return is_all, []
        apart = f"${self._emission.prefix.removeprefix('%')}apart"
        others = [op("min.f32", lowest, lowest, text) for text in lower]
        others += [op("max.f32", highest, highest, text) for text in higher]
        return is_all, [op("bra", apart, when=f"!{finite}"), *others, op("bra", end), Label(apart)]
