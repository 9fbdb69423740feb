"""Where probes keep what lives from a kernel's entry to its ends, and which SGPRs a snippet may use.

Most kernels never name enough SGPRs. Where they do, words are kept in the lanes of VGPRs that the kernel does not name
(``v_writelane``, ``v_readlane``, which do not depend on EXEC): a snippet reads them into SGPRs and writes them back.
SGPRs for that and for its values are those that are not in use at its place, and then some that are in use, which it
keeps in lanes meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.analysis.liveness import Liveness
from neutrino.gcn.instrument.code import Code, NoRegistersError, Scalar, set_of
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.isa.registers import NAMED_SCALARS, VECTORS, registers_of, scalars_in

_BORROWED = 24
"""Lanes for SGPRs that are in use."""
_ATTEMPTS = ((0, False), (6, False), (12, False), (_BORROWED, False), (_BORROWED, True))
"""How many of these a snippet gets, which is tried again with more where they do not suffice; and whether it waits for
loads that may be under way to them."""
_MOST_VECTORS = 256
_LANE_MASKS = re.compile(r"v_(?:cndmask_b32|addc_co|subb_co|subbrev_co|add_co_ci|sub_co_ci|subrev_co_ci|div_fmas)")


@dataclass(frozen=True)
class Lanes:
    """Words that are kept in lanes of VGPRs. first: the number of the first lane, counted over all of ``vectors``."""

    vectors: tuple[int, ...]
    first: int
    words: int


@dataclass(frozen=True, eq=False)
class SpareRegisters:
    """The registers of one kernel's probes.

    kept: where each value is that lives from the entry to the ends, by a name. free: SGPRs that nothing else uses.
    vectors: VGPRs in whose lanes words are, none in most kernels. borrowed_at: the first lane for SGPRs in use.
    has_few: whether snippets get SGPRs besides that are not in use at their places.
    """

    registers: KernelRegisters
    machine: Machine
    kept: Mapping[str, Scalar | Lanes]
    free: tuple[int, ...]
    vectors: tuple[int, ...] = ()
    borrowed_at: int = 0
    has_few: bool = False

    def attempts(
        self, offset: int | None, names: Iterable[str], not_lent: int = 0, labels: str = "",
        liveness: Liveness | None = None,
    ) -> Iterator[Attempt]:  # fmt: skip
        """Yield ways to write a snippet in front of an instruction, with more and more SGPRs.

        offset: None where a wave ends, and nothing of the program is in use. names: of the kept values that it uses.
        not_lent: registers that it reads of the program, as a set of ``isa.registers``, or that it must not touch for
        another reason. labels: as for ``Code``. liveness: of the function, if it is not the kernel.
        """
        own = self.free_at(offset, not_lent, liveness)
        if offset is None or not self.has_few:
            yield Attempt(self, own, (), tuple(names), labels)
            return
        for count, waits in _ATTEMPTS if self.vectors else _ATTEMPTS[:1]:
            borrowed: list[int] = []
            if count:
                taken = own | self._never_lent | not_lent | self._kept_numbers
                if not waits:
                    taken |= (liveness or self.registers.liveness).under_way_at(offset)
                # In pairs, so that two words fit.
                for number in range(0, self._limit, 2):
                    if not taken >> number & 3:
                        borrowed += [number, number + 1]
                        if len(borrowed) >= count:
                            break
            yield Attempt(self, own, tuple(borrowed[:count]), tuple(names), labels, waits=waits)

    def free_at(self, offset: int | None, not_lent: int = 0, liveness: Liveness | None = None) -> int:
        """Return the SGPRs that a snippet may use without keeping their values, as a set that has a bit for each.
        Parameters as ``attempts``."""
        if not self.has_few:
            return self._free
        if offset is None:
            return self._free | (1 << self._limit) - 1 & ~self._kept_numbers
        at_site = (liveness or self.registers.liveness).free_at(offset) & self._lent
        return self._free | at_site & ~not_lent

    @cached_property
    def _free(self) -> int:
        """``free`` as a set."""
        return set_of(self.free)

    @cached_property
    def _lent(self) -> int:
        """The SGPRs that the kernel names, and that snippets get where they are not in use."""
        named = self.registers.named & NAMED_SCALARS & (1 << self._limit) - 1
        return named & ~self._never_lent

    @cached_property
    def _kept_numbers(self) -> int:
        """The SGPRs that have values which are kept for probes, as a set."""
        places = (place for place in self.kept.values() if isinstance(place, Scalar))
        return set_of(place.first + word for place in places for word in range(place.words))

    @property
    def _limit(self) -> int:
        """How many SGPRs the kernel has in any case, among which some are lent to snippets."""
        return self.registers.scalar_count

    @cached_property
    def _never_lent(self) -> int:
        """SGPRs that vector instructions of the kernel read as masks of 64 lanes, on gfx11: what the scalar unit writes
        there afterwards can be read too early. Pairs count as one."""
        if self.machine.generation != 11 or self.machine.wave == 32:
            return 0
        found: set[int] = set()
        for function in self.registers.functions:
            for row in function.instructions:
                if not _LANE_MASKS.match(row.mnemonic):
                    continue
                for operand in row.operands:
                    found |= {each for number in scalars_in(registers_of(operand)) for each in (number, number ^ 1)}
        return set_of(found)


@dataclass(eq=False)
class Attempt:
    """A way to write one snippet: ``places`` has the SGPRs with the kept values. free: those that it may use, as a set
    that has a bit for each. borrowed: others, whose values it keeps meanwhile."""

    spare: SpareRegisters
    free: int
    borrowed: tuple[int, ...]
    names: tuple[str, ...]
    labels: str = ""
    waits: bool = False
    places: dict[str, Scalar] = field(default_factory=dict)
    _code: Code | None = None

    def begin(self, vectors: int = 0) -> Code:
        """Return the text and registers that a snippet is written with. Raises NoRegistersError.

        vectors: VGPRs that it may use, as a set that has a bit for each.
        """
        code = Code(
            self.spare.machine, self.free | set_of(self.borrowed), vectors & ~set_of(self.spare.vectors), self.labels
        )
        for name in self.names:
            place = self.spare.kept[name]
            self.places[name] = place if isinstance(place, Scalar) else code.scalar(place.words)
        self._code = code
        return code

    def written(self, changed: Collection[str] | None = None) -> list[str]:
        """Return the snippet's instructions, with what brings kept values and keeps SGPRs that are in use.

        changed: names of the values that it may have changed; None: all.
        """
        code = self._code
        if code is None:
            raise ValueError("nothing is written yet")
        spare, machine = self.spare, self.spare.machine
        used = code.scalars_used if self.borrowed else ()
        lent = [
            (number, spare.borrowed_at + index) for index, number in enumerate(self.borrowed) if number in used
        ]
        kept = [(name, place) for name in self.names if isinstance(place := spare.kept[name], Lanes)]
        if not lent and not kept:
            return list(code.lines)
        save = [_write(machine, spare.vectors, lane, f"s{number}") for number, lane in lent]
        read = [
            _read(machine, place.vectors, place.first + word, self.places[name].word(word))
            for name, place in kept for word in range(place.words)
        ]  # fmt: skip
        write = [
            _write(machine, place.vectors, place.first + word, self.places[name].word(word))
            for name, place in kept if changed is None or name in changed for word in range(place.words)
        ]  # fmt: skip
        restore = [_read(machine, spare.vectors, lane, f"s{number}") for number, lane in lent]
        lines = [*((machine.wait_scalar,) if self.waits else ()), *machine.ahead_of_lanes, *save]
        if read:
            lines += [*machine.before_read_of_lane, *read, *machine.after_read_of_lane]
        lines += [*code.lines, *write]
        if restore:
            lines += [*machine.before_read_of_lane, *restore, *machine.after_read_of_lane]
        return lines


def spare_registers(
    registers: KernelRegisters, machine: Machine, wanted: Mapping[str, int], scratch: int, *, vgprs: int,
    boundary: int = _MOST_VECTORS, taken: Collection[int] = (),
) -> SpareRegisters:  # fmt: skip
    """Find a place for each value that is kept, and SGPRs for the snippets.

    wanted: the words of each value, 1 or 2, by its name; those that are used most come first. scratch: SGPRs that a
    snippet takes besides. vgprs: how many VGPRs a wave of the kernel has, accumulators included. boundary: where these
    begin. taken: SGPRs that are not free although nothing names them.

    Raises NoRegistersError if there are too few, and as ``KernelRegisters``.
    """
    kind = machine.kind
    waves = kind.waves(vgprs, machine.wave, registers.scalar_count)
    free = [number for number in registers.free_scalars(waves) if number not in taken]
    kept, left = _kept_in_scalars(wanted, free, scratch)
    missing = {name: words for name, words in wanted.items() if name not in kept}
    if not missing and len(left) >= scratch:
        return SpareRegisters(registers, machine, kept, tuple(left))
    # Then snippets get SGPRs that are not in use at their places, and all that are free keep values.
    kept, left = _kept_in_scalars(wanted, free, 0)
    missing = {name: words for name, words in wanted.items() if name not in kept}
    words = sum(missing.values())
    count = -(-(words + _BORROWED) // machine.wave)
    vectors = tuple(_spare_vectors(registers, machine, vgprs, boundary, count))
    if not vectors and missing:
        raise NoRegistersError(
            "its scalar registers are all in use, and no vector register is left in whose lanes a probe keeps values"
        )
    at = 0
    for name, size in missing.items():
        kept[name] = Lanes(vectors, at, size)
        at += size
    places = {name: kept[name] for name in wanted}
    return SpareRegisters(registers, machine, places, tuple(left), vectors, at, has_few=True)


def _kept_in_scalars(
    wanted: Mapping[str, int], free: Iterable[int], scratch: int
) -> tuple[dict[str, Scalar | Lanes], list[int]]:
    """Return the values for which there are SGPRs, so that some are left for snippets, and these."""
    left = list(free)
    kept: dict[str, Scalar | Lanes] = {}
    for name, words in wanted.items():
        if len(left) - words < scratch:
            break
        first = next(
            (one for one in left if words == 1 or (one % 2 == 0 and one + 1 in left)), None
        )  # fmt: skip
        if first is None:
            continue
        for number in range(first, first + words):
            left.remove(number)
        kept[name] = Scalar(first, words)
    return kept, left


def _spare_vectors(
    registers: KernelRegisters, machine: Machine, vgprs: int, boundary: int, count: int
) -> list[int]:  # fmt: skip
    """Return VGPRs that the kernel does not name, those first that it has in any case; none if there are too few."""
    named = registers.named >> VECTORS
    unnamed = [number for number in range(_MOST_VECTORS) if not named >> number & 1]
    if registers.is_indexed:
        unnamed = [number for number in unnamed if number >= min(vgprs, boundary)]
    return unnamed[:count] if len(unnamed) >= count else []


def _write(machine: Machine, vectors: tuple[int, ...], lane: int, scalar: str) -> str:
    """Return the instruction that keeps an SGPR's value in a lane of a VGPR."""
    vector, number = divmod(lane, machine.wave)
    return f"v_writelane_b32 v{vectors[vector]}, {scalar}, {number}"


def _read(machine: Machine, vectors: tuple[int, ...], lane: int, scalar: str) -> str:
    """Return the instruction that brings a kept value from a lane of a VGPR into an SGPR."""
    vector, number = divmod(lane, machine.wave)
    return f"v_readlane_b32 {scalar}, v{vectors[vector]}, {number}"
