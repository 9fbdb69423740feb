"""What surrounds the code of probes in a kernel: registers that are kept from the entry on, and what is saved around a
snippet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.abi.probe_block import block_size
from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.instrument.code import Code, Mask, Place, Scalar, Value, Vector
from neutrino.gcn.instrument.compute import CannotError
from neutrino.gcn.instrument.kernel_facts import EntryState
from neutrino.gcn.instrument.machine import Machine
from neutrino.ir.operands import Register, SiteOperand, Special
from neutrino.ir.types import Type

_AXES = "xyz"
_BITS = 10
"""Of a work-item's number on one axis, where one register has all three."""
_GROUP = {Special.CTAID_X: 0, Special.CTAID_Y: 1, Special.CTAID_Z: 2}
_GRID = {Special.NCTAID_X: 0, Special.NCTAID_Y: 1, Special.NCTAID_Z: 2}
_SIZE = {Special.NTID_X: 0, Special.NTID_Y: 1, Special.NTID_Z: 2}
_ITEM = {Special.TID_X: 0, Special.TID_Y: 1, Special.TID_Z: 2}
_Y_AND_Z, _X = "ttmp7", "ttmp9"
"""Where work-groups' numbers are on gfx12."""


@dataclass(eq=False)
class Frame:
    """Of one kernel. registers: what it leaves. entry: what registers have when a wave begins. block: where the probe
    block is among the twin's arguments. maps: how many it is for. waves: that shall fit on a SIMD still.
    """

    machine: Machine
    registers: KernelRegisters
    entry: EntryState
    block: int
    maps: int
    waves: int
    homes: dict[str, Place] = field(default_factory=dict)
    _reserved: dict[str, Place] = field(default_factory=dict)
    _kept: dict[str, Place] = field(default_factory=dict)
    _taken_vectors: int = 0

    def __post_init__(self) -> None:
        """Choose the registers. Raises CannotError if the kernel leaves too few."""
        twin = self.entry.for_twin()
        if twin is None:
            raise CannotError("it has no arguments, and no SGPRs are left for their address")
        self.twin_entry = twin
        at_entry = sum(count for _, count in twin.scalars.values())
        free = [number for number in self.registers.free_scalars(self.waves) if number >= at_entry]
        self.scalars: set[int] = set(free)
        self._vector_count = max(self.registers.vector_count, 1)
        mask = self.machine.mask_words
        for name, words in (
            ("arguments", 2), ("exec", mask), ("vcc", mask), ("group x", 1), ("group y", 1), ("group z", 1),
            ("items", 1), ("scc", 1),
        ):  # fmt: skip
            self._reserved[name] = self.keep_scalar(words)

    # Registers that are kept

    def keep_scalar(self, words: int = 1) -> Scalar:
        """Return SGPRs for a value of the whole kernel. Raises CannotError."""
        for first in sorted(self.scalars):
            numbers = range(first, first + words)
            if first % words == 0 and self.scalars.issuperset(numbers):
                self.scalars.difference_update(numbers)
                return Scalar(first, words)
        raise CannotError("too few scalar registers are free in it")

    def keep_vector(self, words: int = 1) -> Vector:
        """Return VGPRs for values of the whole kernel, after those that it has."""
        first = self._vector_count + self._taken_vectors
        if words > 1 and self.machine.aligns_vectors:
            first += first % 2
        self._taken_vectors = first + words - self._vector_count
        if first + words > 256:
            raise CannotError("no vector registers are left in it")
        return Vector(first, words)

    def kept(self, name: str) -> Place:
        """Return where a value is that the entry's code keeps, and have it keep that: ``arguments``, ``exec``, ``group
        x`` …, ``items``, the first work-item's numbers of the wave, and ``lane items``, those of each lane, if these
        were reserved. ``scc`` and ``vcc`` are for what is saved around snippets."""
        if name not in self._reserved:
            raise CannotError("numbers of work-items are not kept in it")
        return self._kept.setdefault(name, self._reserved[name])

    def reserve_lane_items(self) -> None:
        """Have a VGPR for the work-items' numbers of each lane."""
        self._reserved.setdefault("lane items", self.keep_vector())

    @property
    def scalars_named(self) -> int:
        """The highest SGPR that is kept, and one."""
        places = (*self.homes.values(), *self._kept.values())
        return max((place.first + place.words for place in places if not isinstance(place, Vector)), default=0)

    @property
    def vectors_named(self) -> int:
        """How many VGPRs the kernel names with those that are kept."""
        return self._vector_count + self._taken_vectors

    def entry_lines(self) -> list[str]:
        """Return the code at the entry: what is kept goes where it is kept, and SGPRs to where the kernel has them."""
        machine, lines = self.machine, []
        places = self.twin_entry.scalars
        kept = self._kept
        if "exec" in kept:
            lines.append(f"s_mov_{machine.mask} {kept['exec'].text}, {machine.exec}")
        if "arguments" in kept:
            first, _ = places["arguments"]
            lines.append(f"s_mov_b64 {kept['arguments'].text}, s[{first}:{first + 1}]")
        for axis in _AXES:
            place = kept.get(f"group {axis}")
            if place is not None:
                lines += self._group(axis, place.text)
        if "items" in kept or "lane items" in kept:
            lines += self._items(kept.get("items"), kept.get("lane items"))
        if machine.packs_ids and self.entry.axes < 3:
            lines.append(f"v_and_b32_e32 v0, {(1 << _BITS * self.entry.axes) - 1:#x}, v0")
        lines += [f"s_mov_b32 s{to}, s{at}" for to, at in self.entry.moves_from(self.twin_entry)]
        return lines

    def _group(self, axis: str, to: str) -> list[str]:
        """Return what brings the work-group's number to a register."""
        if not self.entry.is_architected:
            first, _ = self.twin_entry.scalars[f"group {axis}"]
            return [f"s_mov_b32 {to}, s{first}"]
        if axis == "x":
            return [f"s_mov_b32 {to}, {_X}"]
        return [f"s_and_b32 {to}, {_Y_AND_Z}, 0xffff" if axis == "y" else f"s_lshr_b32 {to}, {_Y_AND_Z}, 16"]

    def _items(self, scalar: Place | None, vector: Place | None) -> list[str]:
        """Return what brings work-items' numbers to registers, 10 bits for each axis."""
        lines = []
        if self.machine.packs_ids:
            if vector is not None:
                lines.append(f"v_mov_b32_e32 {vector.text}, v0")
            if scalar is not None:
                lines.append(f"v_readfirstlane_b32 {scalar.text}, v0")
            return lines
        if vector is not None:
            lines += [
                f"v_lshlrev_b32_e32 {vector.text}, {_BITS}, v2", f"v_or_b32_e32 {vector.text}, v1, {vector.text}",
                f"v_lshlrev_b32_e32 {vector.text}, {_BITS}, {vector.text}",
                f"v_or_b32_e32 {vector.text}, v0, {vector.text}",
            ]  # fmt: skip
            if scalar is not None:
                lines.append(f"v_readfirstlane_b32 {scalar.text}, {vector.text}")
        elif scalar is not None:
            # The arguments' address is not needed as an operand yet, so that a further register is free.
            part = self.keep_scalar()
            lines.append(f"v_readfirstlane_b32 {scalar.text}, v2")
            for number in (1, 0):
                lines += [
                    f"v_readfirstlane_b32 {part.text}, v{number}", f"s_lshl_b32 {scalar.text}, {scalar.text}, {_BITS}",
                    f"s_or_b32 {scalar.text}, {scalar.text}, {part.text}",
                ]  # fmt: skip
            self.scalars.add(part.first)
        return lines

    # Snippets

    def snippet(
        self, labels: str, *, vectors: Iterable[int], site: int = 0, is_exec_known: bool = False,
        operands: Mapping[SiteOperand, Value] | None = None,
    ) -> Here:  # fmt: skip
        """Return the surroundings of a snippet. labels: of it alone. vectors: VGPRs that are free there."""
        taken = range(self._vector_count, self.vectors_named)
        code = Code(self.machine, self.scalars, set(vectors) - set(taken), labels)
        return Here(self, code, site, is_exec_known, operands or {})

    def framed(self, lines: Sequence[str], *, scc: bool, vcc: bool) -> list[str]:
        """Return a snippet's code with SCC and VCC saved around it, as far as they are in use and it changes them."""
        machine = self.machine
        text = "\n".join(lines)
        saved, restored = [], []
        if scc:
            place = self.kept("scc")
            saved.append(f"s_cselect_b32 {place.text}, 1, 0")
            restored.append(f"s_cmp_lg_u32 {place.text}, 0")
        if vcc and "vcc" in text:
            name = "vcc" if machine.wave == 64 else "vcc_lo"
            kept = self.kept("vcc").text
            saved.append(f"s_mov_{machine.mask} {kept}, {name}")
            restored.insert(0, f"s_mov_{machine.mask} {name}, {kept}")
        return [*saved, *lines, *restored]


@dataclass(eq=False)
class Here:
    """The ``Surroundings`` of a snippet."""

    frame: Frame
    code: Code
    site: int
    is_exec_known: bool
    operands: Mapping[SiteOperand, Value]

    def home(self, register: Register) -> Place:
        """Return where a shared register is."""
        return self.frame.homes[register.name]

    def operand(self, operand: SiteOperand) -> Value:
        """Return a value of the site's instruction."""
        if operand not in self.operands:
            raise CannotError(f"{operand.text} is not possible in AMD's kernels yet")
        return self.operands[operand]

    def block_words(self, offset: int, words: int = 1) -> Scalar:
        """Load words of the probe block, and wait for them."""
        machine, place = self.frame.machine, self.code.scalar(words)
        pointer = self.frame.kept("arguments")
        self.code.emit(machine.load(place.text, pointer.text, self.frame.block + offset, words), machine.wait_scalar)
        return place

    def _geometry(self, number: int) -> Scalar:
        return self.block_words(block_size(self.frame.maps, 0) + 4 * number)

    def grid_blocks(self, axis: int) -> Value:
        """Return how many work-groups the grid has on an axis."""
        return self._geometry(axis)

    def special(self, special: Special) -> Value:
        """Return a value of the hardware."""
        code, machine, frame = self.code, self.frame.machine, self.frame
        if special in _GROUP:
            return frame.kept(f"group {_AXES[_GROUP[special]]}")
        if special in _GRID:
            return self._geometry(_GRID[special])
        if special in _SIZE:
            return self._geometry(3 + _SIZE[special])
        if special in _ITEM:
            place = code.vector()
            items = frame.kept("lane items")
            code.emit(f"v_bfe_u32 {place.text}, {items.text}, {_BITS * _ITEM[special]}, {_BITS}")
            return place
        if special is Special.CLOCK:
            return self._clock()
        if special is Special.TIME:
            ticks, part = code.scalar(2), code.scalar(2)
            code.emit(*machine.time(ticks.text))
            # Ticks of 10 ns each.
            code.emit(f"s_lshl_b64 {part.text}, {ticks.text}, 3", f"s_lshl_b64 {ticks.text}, {ticks.text}, 1")
            code.emit(f"{machine.add} {ticks.word(0)}, {ticks.word(0)}, {part.word(0)}")
            code.emit(f"{machine.add_carry} {ticks.word(1)}, {ticks.word(1)}, {part.word(1)}")
            code.release(part)
            return ticks
        if special is Special.CUID:
            unit, part = code.scalar(), code.scalar()
            code.emit(*machine.unit(unit.text, part.text))
            code.release(part)
            return unit
        if special is Special.LANE:
            lane = code.vector()
            code.emit(*machine.lane(lane.text))
            return lane
        if special is Special.WARP:
            return self._wave()
        raise CannotError(f"{special.value} is not possible in AMD's kernels yet")

    def _clock(self) -> Scalar:
        """Read the counter of cycles; on gfx11, which has none of more than 20 bits, that of 100 MHz."""
        code, machine = self.code, self.frame.machine
        clock = code.scalar(2)
        if machine.clock_bits < 64:
            code.emit(*machine.time(clock.text))
            return clock
        with code.scope():
            code.emit(*machine.clock(clock.word(0), clock.word(1), clock.text, code.scalar().text))
        return clock

    def _wave(self) -> Scalar:
        """Return the wave's number in its work-group: the linear number of its first work-item by its lanes."""
        code, machine = self.code, self.frame.machine
        items, wave = self.frame.kept("items"), code.scalar()
        with code.scope():
            part = code.scalar()
            # z, then y and x.
            code.emit(f"s_bfe_u32 {wave.text}, {items.text}, {_BITS << 16 | 2 * _BITS:#x}")
            for axis in (1, 0):
                size = self._geometry(3 + axis)
                code.emit(f"s_mul_i32 {wave.text}, {wave.text}, {size.text}")
                code.emit(f"s_bfe_u32 {part.text}, {items.text}, {_BITS << 16 | axis * _BITS:#x}")
                code.emit(f"{machine.add} {wave.text}, {wave.text}, {part.text}")
        code.emit(f"s_lshr_b32 {wave.text}, {wave.text}, {machine.wave.bit_length() - 1}")
        return wave


def words_of(type_: Type, machine: Machine) -> int:
    """Return how many registers a value of a type takes."""
    if type_ in (Type.PRED, Type.LANES):
        return machine.mask_words
    return 2 if type_.bits == 64 else 1


def home_for(frame: Frame, register: Register, *, is_vector: bool) -> Place:
    """Return registers for a value of the whole kernel."""
    words = words_of(register.type, frame.machine)
    if register.type is Type.PRED:
        place = frame.keep_scalar(words)
        return Mask(place.first, place.words)
    return frame.keep_vector(words) if is_vector else frame.keep_scalar(words)
