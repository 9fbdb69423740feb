"""What surrounds the code of probes in a kernel: registers that are kept from the entry on, and what is saved around a
snippet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from neutrino.abi.probe_block import block_size
from neutrino.gcn.analysis.free_registers import KernelRegisters
from neutrino.gcn.analysis.liveness import Liveness
from neutrino.gcn.instrument.code import Code, Mask, NoRegistersError, Place, Scalar, Value, Vector, set_of
from neutrino.gcn.instrument.compute import CannotError
from neutrino.gcn.instrument.kernel_facts import EntryState
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.probe_registers import is_of_hardware
from neutrino.gcn.instrument.spare_registers import Attempt, SpareRegisters, spare_registers
from neutrino.gcn.isa.registers import VECTORS
from neutrino.ir.operands import Register, SiteOperand, Special
from neutrino.ir.types import Type

_AXES = "xyz"
_BITS = 10
"""Of a work-item's number on one axis, where one register has all three."""
_GROUP = {Special.CTAID_X: 0, Special.CTAID_Y: 1, Special.CTAID_Z: 2}
_GRID = {Special.NCTAID_X: 0, Special.NCTAID_Y: 1, Special.NCTAID_Z: 2}
_SIZE = {Special.NTID_X: 0, Special.NTID_Y: 1, Special.NTID_Z: 2}
_ITEM = {Special.TID_X: 0, Special.TID_Y: 1, Special.TID_Z: 2}
_MOST_VECTORS = 256
_ITEM_VECTORS = 3
"""VGPRs with the work-items' numbers when a wave begins, at most."""
_Y_AND_Z, _X = "ttmp7", "ttmp9"
"""Where work-groups' numbers are on gfx12."""


_KEPT = {
    "arguments": 2, "exec": 0, "group x": 1, "group y": 1, "group z": 1, "items": 1,
}  # fmt: skip
"""What the entry's code keeps if it is asked for → words in SGPRs, 0: as many as a lane mask has."""
_MEASURED, _MEASURED_KEPT = range(1000, 1128), 2000
"""Numbers of SGPRs that there are not, for finding out how many are needed."""
_KEEPS_SCC = (
    "s_mov_", "s_nop", "s_wait", "s_load", "s_mul_", "s_getreg", "s_mem", "s_sendmsg", "s_cbranch", "s_branch",
)  # fmt: skip
"""Beginnings of instructions that leave SCC as it is."""
_SETS_MODE = re.compile(r"s_round_mode|s_denorm_mode|s_setreg\w* hwreg\(HW_REG_(WAVE_)?MODE\b")
_PLAIN_MODE = 0xF0
"""Floats rounded to nearest even, and denormal ones kept."""
Build = Callable[["Here"], None]


class _NotBroughtError(Exception):
    """A snippet uses a value that is kept in lanes, and that was not brought into SGPRs for it. name: of the value."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class Needs:
    """What the probes of a kernel take. kept: values that live from the entry to the ends, in the order of the places
    that ask for them, with their words. scratch: SGPRs that a snippet takes at most. has_lane_items: whether lanes keep
    their work-items' numbers. site_words: VGPRs for values of an instruction that it overwrites."""

    kept: Mapping[str, int]
    scratch: int
    has_lane_items: bool
    site_words: int


@dataclass(eq=False)
class Frame:
    """Of one kernel. registers: what it leaves. entry: what registers have when a wave begins. block: where the probe
    block is among the twin's arguments. maps: how many it is for. vgprs: that the kernel has.

    needs: of its probes; None while they are found out: then nothing that is written is of use but for that.
    """

    machine: Machine
    registers: KernelRegisters
    entry: EntryState
    block: int
    maps: int
    vgprs: int
    needs: Needs | None = None
    _homes: dict[str, tuple[type[Scalar], int] | Vector] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    _lane_items: Vector | None = None
    _site_vectors: Vector | None = None
    _site_words: int = 0
    _taken_vectors: int = 0
    _scratch: int = 0
    _entry_vectors: set[int] = field(default_factory=set)
    _end_vectors: set[int] = field(default_factory=set)
    _taken: int = 0
    _own_used: int | None = None
    """SGPRs that the latest snippet took, as a set; None if those that are free did not suffice."""
    _written: dict[object, list[tuple[int, int, list[str]]]] = field(default_factory=dict)
    _borrowing: dict[object, list[str]] = field(default_factory=dict)
    _highest_scalar: int = 0
    _highest_vector: int = 0

    def __post_init__(self) -> None:
        """Choose the registers. Raises CannotError, NoRegistersError if the kernel leaves too few."""
        twin = self.entry.for_twin()
        if twin is None:
            raise CannotError("it has no arguments, and no SGPRs are left for their address", "registers")
        self.twin_entry = twin
        self._at_entry = sum(count for _, count in twin.scalars.values())
        self._vector_count = max(self.registers.vector_count, 1)
        self._spare = SpareRegisters(self.registers, self.machine, {}, tuple(_MEASURED))
        if self.needs is not None:
            self._spare = spare_registers(
                self.registers, self.machine, self.needs.kept, self.needs.scratch, vgprs=self.vgprs,
                boundary=self.entry.vector_boundary if self.machine.kind.is_unified else _MOST_VECTORS,
                taken=range(self._at_entry),
            )  # fmt: skip
            if self._spare.vectors:
                self._vector_count = max(self._vector_count, *(number + 1 for number in self._spare.vectors))
            if self.needs.has_lane_items:
                self._lane_items = self.keep_vector()
            if self.needs.site_words:
                self._site_vectors = self.keep_vector(self.needs.site_words)

    @property
    def found(self) -> Needs:
        """What has been asked for so far: the values that are kept, and the registers that snippets take."""
        return Needs(self._asked, self._scratch, self._lane_items is not None, self._site_words)

    # Registers that are kept

    def add_home(self, name: str, kind: type[Scalar], words: int) -> None:
        """Have SGPRs for a probe's register. kind: of the place."""
        self._homes[name] = kind, words

    def keep_vector(self, words: int = 1) -> Vector:
        """Return VGPRs for values of the whole kernel, after those that it has. Raises CannotError."""
        first = self._vector_count + self._taken_vectors
        if words > 1 and self.machine.aligns_vectors:
            first += first % 2
        self._taken_vectors = first + words - self._vector_count
        if first + words > _MOST_VECTORS:
            raise CannotError("no vector registers are left in it", "registers")
        return Vector(first, words)

    def add_vector_home(self, name: str, words: int) -> None:
        """Have VGPRs for a probe's register."""
        self._homes[name] = self.keep_vector(words)

    def add_passing_home(self, name: str, words: int, *, is_end: bool) -> None:
        """Have VGPRs for a register that code at the kernel's entry alone uses, or at its ends alone: there those of
        the program are free. After all others have theirs. Raises CannotError."""
        passing = self._end_vectors if is_end else self._entry_vectors
        taken = self._kept_vectors | set_of(passing)
        free = ((1 << _MOST_VECTORS) - 1 if is_end else self.vectors_at_entry) & ~taken
        step = 2 if words > 1 and self.machine.aligns_vectors else 1
        for first in range(0, _MOST_VECTORS - words, step):
            numbers = (1 << words) - 1 << first
            if not numbers & ~free:
                passing.update(range(first, first + words))
                self._homes[name] = Vector(first, words)
                self._highest_vector = max(self._highest_vector, first + words)
                return
        raise CannotError("no vector registers are left in it", "registers")

    @property
    def vectors_at_entry(self) -> int:
        """The VGPRs that the entry's code may use, as a set: those without a work-item's numbers have no value yet."""
        return (1 << _MOST_VECTORS) - (1 << _ITEM_VECTORS) & ~self._kept_vectors

    @property
    def _kept_vectors(self) -> int:
        """The VGPRs that are kept for the whole kernel, as a set."""
        return (1 << self.first_vector) - (1 << self._vector_count) | set_of(self._spare.vectors)

    def home(self, name: str) -> tuple[type[Scalar], int] | Vector:
        """Return the kind and the words of a probe's register, or the VGPRs that it is in."""
        return self._homes[name]

    def lane_items(self) -> Vector:
        """Return the VGPR with the work-items' numbers of each lane, and have the entry's code keep them."""
        if self._lane_items is None:
            if self.needs is not None:
                raise CannotError("numbers of work-items are not kept in it", "registers")
            self._lane_items = self.keep_vector()
        return self._lane_items

    def site_vector(self, first: int, words: int) -> Vector:
        """Return VGPRs for a value that is kept from in front of an instruction till behind it. first: words that are
        before it."""
        self._site_words = max(self._site_words, first + words)
        return Vector((self._site_vectors.first if self._site_vectors is not None else 0) + first, words)

    @property
    def taken(self) -> int:
        """The registers that snippets may write, as a set of ``isa.registers``."""
        passing = set_of(self._entry_vectors) | set_of(self._end_vectors)
        return self._taken | (self._kept_vectors | passing) << VECTORS

    @property
    def scalars_named(self) -> int:
        """How many SGPRs probes name: one more than the highest number."""
        return self._highest_scalar

    @property
    def vectors_named(self) -> int:
        """How many VGPRs probes name, those of the kernel included where these are fewer."""
        kept = self._vector_count + self._taken_vectors if self._taken_vectors else 0
        return max(self._highest_vector, kept, *(number + 1 for number in self._spare.vectors), 1)

    @property
    def first_vector(self) -> int:
        """The number of the first VGPR after those that the kernel names and that are kept."""
        return self._vector_count + self._taken_vectors

    def entry_lines(self) -> list[str]:
        """Return the code at the entry: what is kept goes where it is kept, and SGPRs to where the kernel has them."""
        machine, lines = self.machine, []
        kept = self.needs.kept if self.needs is not None else self._asked
        for name in _KEPT:
            if name in kept:
                lines += self.lowered(partial(self._keep, name), labels="k")
        if self._lane_items is not None:
            lines += self._items_of_lanes(self._lane_items)
        if machine.packs_ids and self.entry.axes < 3:
            lines.append(f"v_and_b32_e32 v0, {(1 << _BITS * self.entry.axes) - 1:#x}, v0")
        lines += [f"s_mov_b32 s{to}, s{at}" for to, at in self.entry.moves_from(self.twin_entry)]
        return lines

    def _keep(self, name: str, here: Here) -> None:
        """Append code that brings one of the values of ``_KEPT``, which registers have at a kernel's entry, to where it
        is kept."""
        place, machine, emit = here.kept(name), self.machine, here.code.emit
        if name == "exec":
            emit(f"s_mov_{machine.mask} {place.text}, {machine.exec}")
        elif name == "arguments":
            first, _ = self.twin_entry.scalars["arguments"]
            emit(f"s_mov_b64 {place.text}, s[{first}:{first + 1}]")
        elif name == "items":
            self._items(here.code, place)
        elif not self.entry.is_architected:
            first, _ = self.twin_entry.scalars[name]
            emit(f"s_mov_b32 {place.text}, s{first}")
        elif name.endswith("x"):
            emit(f"s_mov_b32 {place.text}, {_X}")
        else:
            is_y = name.endswith("y")
            emit(f"s_and_b32 {place.text}, {_Y_AND_Z}, 0xffff" if is_y else f"s_lshr_b32 {place.text}, {_Y_AND_Z}, 16")

    def _items(self, code: Code, place: Scalar) -> None:
        """Append what brings the numbers of the wave's first work-item to an SGPR, 10 bits for each axis."""
        if self.machine.packs_ids:
            code.emit(f"v_readfirstlane_b32 {place.text}, v0")
            return
        with code.scope():
            part = code.scalar()
            code.emit(f"v_readfirstlane_b32 {place.text}, v2")
            for number in (1, 0):
                code.emit(
                    f"v_readfirstlane_b32 {part.text}, v{number}", f"s_lshl_b32 {place.text}, {place.text}, {_BITS}",
                    f"s_or_b32 {place.text}, {place.text}, {part.text}",
                )  # fmt: skip

    def _items_of_lanes(self, place: Vector) -> list[str]:
        """Return what brings work-items' numbers to a VGPR, 10 bits for each axis."""
        if self.machine.packs_ids:
            return [f"v_mov_b32_e32 {place.text}, v0"]
        return [
            f"v_lshlrev_b32_e32 {place.text}, {_BITS}, v2", f"v_or_b32_e32 {place.text}, v1, {place.text}",
            f"v_lshlrev_b32_e32 {place.text}, {_BITS}, {place.text}", f"v_or_b32_e32 {place.text}, v0, {place.text}",
        ]  # fmt: skip

    # Snippets

    def lowered(
        self, build: Build, *, labels: str, offset: int | None = 0, liveness: Liveness | None = None,
        vectors: int = 0, site: int = 0, is_exec_known: bool = True, reads: int = 0, scc: bool = False,
        vcc: bool = False, operands: Mapping[SiteOperand, Value] | None = None,
    ) -> list[str]:  # fmt: skip
        """Return the code of a snippet that ``build`` appends, and what is to be around it.

        ``build`` may be called several times, with more registers: what it does besides, it does each time. labels: of
        the snippet alone. offset: of the instruction that it is in front of; 0: the entry; None: a wave's end.
        liveness: of its function, if that is not the kernel. vectors: VGPRs that are free there, as a set that has a
        bit for each. reads: registers of the program that it reads. scc, vcc: whether these are in use there. operands:
        values of the site's instruction.

        Raises NoRegistersError.
        """
        passing = self._end_vectors if offset is None else self._entry_vectors if liveness is None else ()
        free = vectors & ~(self._kept_vectors | set_of(passing))
        if offset == 0 and liveness is None:
            reads |= (1 << self._at_entry) - 1
        names: list[str] = []
        while True:
            missing = ""
            problem = NoRegistersError("no registers are left for a probe")
            for number, attempt in enumerate(self._spare.attempts(offset, names, reads, labels, liveness)):
                try:
                    code = attempt.begin(free)
                    saved = code.scalar() if scc else None
                    saved_vcc = code.mask() if vcc else None
                    build(Here(self, code, site, is_exec_known, operands or {}, attempt))
                except NoRegistersError as error:
                    problem = error
                    continue
                except _NotBroughtError as error:
                    missing = error.name
                    break
                self._set_mode(code)
                self._save_around(code, saved, saved_vcc)
                self._note(code)
                self._own_used = None if number else code.used[0]
                return attempt.written()
            if not missing:
                raise problem
            names.append(missing)

    def lowered_once(
        self, key: object, build: Build, *, label: Callable[[], str], offset: int, liveness: Liveness, scc: bool,
        vcc: bool,
    ) -> list[str]:  # fmt: skip
        """Return code as ``lowered``, which takes no VGPRs and depends on its place by the SGPRs alone that it gets:
        it is written once for all places where these are the same. key: all that ``build`` depends on besides. label:
        returns what labels begin with. Raises NoRegistersError."""
        free = self._spare.free_at(offset, 0, liveness)
        # It takes the lowest ones that fit, so that those above do not matter.
        known = self._written.setdefault((key, scc, vcc), [])
        for mask, lowest, lines in known:
            if free & mask == lowest:
                return lines
        # What borrows others depends on all that are in use.
        in_use = (key, scc, vcc, free, liveness.under_way_at(offset) if self._spare.has_few else 0)
        if in_use in self._borrowing:
            return self._borrowing[in_use]
        lines = self.lowered(
            build, labels=label(), offset=offset, liveness=liveness, scc=scc, vcc=vcc, is_exec_known=False
        )
        if self._own_used is None:
            self._borrowing[in_use] = lines
        else:
            mask = (1 << self._own_used.bit_length()) - 1
            known.append((mask, free & mask, lines))
        return lines

    def _set_mode(self, code: Code) -> None:
        """Set how floats are computed in a snippet that does so, and set it back after it. Raises CannotError."""
        mode = self.entry.mode
        if not code.changes_mode:
            return
        if self._sets_mode:
            raise CannotError("it changes how floats are rounded, as probes that compute floats would have to", "mode")
        if mode != _PLAIN_MODE:
            name = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 8)"
            code.lines[:] = [f"{name}, {_PLAIN_MODE:#x}", *code.lines, f"{name}, {mode:#x}"]

    @cached_property
    def _sets_mode(self) -> bool:
        """Whether the kernel, or what it calls, changes how floats are computed."""
        return any(_SETS_MODE.match(one.text) for function in self.registers.functions for one in function.instructions)

    def _save_around(self, code: Code, scc: Scalar | None, vcc: Scalar | None) -> None:
        """Save SCC and VCC around a snippet in SGPRs, as far as it changes them."""
        machine, text = self.machine, "\n".join(code.lines)
        before, after = [], []
        if scc is not None and any(line.startswith("s_") and not line.startswith(_KEEPS_SCC) for line in code.lines):
            before.append(f"s_cselect_b32 {scc.text}, 1, 0")
            after.append(f"s_cmp_lg_u32 {scc.text}, 0")
        if vcc is not None and "vcc" in text:
            name = "vcc" if machine.wave == 64 else "vcc_lo"
            before.append(f"s_mov_{machine.mask} {vcc.text}, {name}")
            after.insert(0, f"s_mov_{machine.mask} {name}, {vcc.text}")
        code.lines[:] = [*before, *code.lines, *after]

    def _note(self, code: Code) -> None:
        """Note which registers a snippet takes, so that the kernel's descriptor asks for as many."""
        if self.needs is None:
            self._scratch = max(self._scratch, code.used[0].bit_count())
            return
        scalars, vectors = code.used
        self._highest_scalar = max(self._highest_scalar, scalars.bit_length())
        self._highest_vector = max(self._highest_vector, vectors.bit_length())
        self._taken |= scalars | vectors << VECTORS

    def place(self, attempt: Attempt, name: str, kind: type[Scalar], words: int) -> Scalar:
        """Return where a snippet has what is kept under a name. Raises _NotBroughtError."""
        if self.needs is None:
            self._asked.setdefault(name, words)
            return kind(_MEASURED_KEPT + 2 * list(self._asked).index(name), words)
        found = attempt.places.get(name)
        if found is None:
            kept = self._spare.kept[name]
            if not isinstance(kept, Scalar):
                raise _NotBroughtError(name)
            found = kept
            self._highest_scalar = max(self._highest_scalar, found.first + words)
            self._taken |= set_of(range(found.first, found.first + found.words))
        return kind(found.first, words)


@dataclass(eq=False)
class Here:
    """The ``Surroundings`` of a snippet."""

    frame: Frame
    code: Code
    site: int
    is_exec_known: bool
    operands: Mapping[SiteOperand, Value]
    attempt: Attempt

    def home(self, register: Register) -> Place:
        """Return where a shared register is."""
        return self.home_named(register.name)

    def home_named(self, name: str) -> Place:
        """Return where a register is that a probe shares between its sites, by its name."""
        home = self.frame.home(name)
        return home if isinstance(home, Vector) else self.frame.place(self.attempt, f"register {name}", *home)

    def kept(self, name: str) -> Scalar:
        """Return where a value is that the entry's code keeps, and have it keep that: ``arguments``, ``exec``, ``group
        x`` …, ``items``, the first work-item's numbers of the wave."""
        return self.frame.place(self.attempt, name, Scalar, _KEPT[name] or self.frame.machine.mask_words)

    def operand(self, operand: SiteOperand) -> Value:
        """Return where a value of the probed instruction, such as its address, is; or one of the hardware."""
        if is_of_hardware(operand):
            return self._of_hardware(operand)
        if operand not in self.operands:
            raise CannotError(f"{operand.text} is not possible in AMD's kernels yet")
        return self.operands[operand]

    def _of_hardware(self, operand: SiteOperand) -> Scalar:
        """Append a hand-written instruction that reads the hardware, and return where its value is."""
        code, is_time = self.code, not operand.name.startswith("s_getreg")
        place = code.scalar(2 if is_time else 1)
        code.emit(", ".join(filter(None, (f"{operand.name} {place.text}", operand.element))))
        if is_time:
            code.emit(self.frame.machine.wait_scalar)
        return place

    def block_words(self, offset: int, words: int = 1) -> Scalar:
        """Append code that loads words of the probe block (what a launch passes to the probes), and waits for them.

        offset: from the block's beginning, in bytes.
        """
        machine, place = self.frame.machine, self.code.scalar(words)
        pointer = self.kept("arguments")
        self.code.emit(machine.load(place.text, pointer.text, self.frame.block + offset, words), machine.wait_scalar)
        return place

    def _geometry(self, number: int) -> Scalar:
        """Return a number of the launch's geometry, which the probe block has, by its place there."""
        return self.block_words(block_size(self.frame.maps, 0) + 4 * number)

    def grid_blocks(self, axis: int) -> Value:
        """Return how many work-groups the grid has on an axis."""
        return self._geometry(axis)

    def special(self, special: Special) -> Value:
        """Return where a value of the hardware, such as the lane's number, is; code that reads it is appended."""
        code, machine, frame = self.code, self.frame.machine, self.frame
        if special in _GROUP:
            return self.kept(f"group {_AXES[_GROUP[special]]}")
        if special in _GRID:
            return self._geometry(_GRID[special])
        if special in _SIZE:
            return self._geometry(3 + _SIZE[special])
        if special in _ITEM:
            place = code.vector()
            items = frame.lane_items()
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
        if special is Special.LANEMASK_LT:
            # Sets of lanes are u64 for waves of both sizes.
            lanes = code.vector(2)
            with code.scope():
                lane = code.vector()
                code.emit(*machine.lane(lane.text))
                code.emit(f"v_lshlrev_b64 {lanes.text}, {lane.text}, -1")
            code.emit(*(f"v_not_b32_e32 {lanes.word(word)}, {lanes.word(word)}" for word in range(2)))
            return lanes
        if special is Special.WARP:
            return self._wave()
        raise CannotError(f"{special.value} is not possible in AMD's kernels yet")

    def _clock(self) -> Scalar:
        """Append code that reads the counter of cycles; on gfx11, which has none of more than 20 bits, that of 100 MHz.
        """
        code, machine = self.code, self.frame.machine
        clock = code.scalar(2)
        if machine.clock_bits < 64:
            code.emit(*machine.time(clock.text))
            return clock
        with code.scope():
            code.emit(*machine.clock(clock.word(0), clock.word(1), clock.text, code.scalar().text))
        return clock

    def _wave(self) -> Scalar:
        """Append code that computes the wave's number in its work-group: the linear number of its first work-item by
        its lanes."""
        code, machine = self.code, self.frame.machine
        items, wave = self.kept("items"), code.scalar()
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


def add_home(frame: Frame, register: Register, *, is_vector: bool) -> None:
    """Have registers for a value of the whole kernel."""
    words = words_of(register.type, frame.machine)
    if is_vector and register.type is not Type.PRED:
        frame.add_vector_home(register.name, words)
    else:
        frame.add_home(register.name, Mask if register.type is Type.PRED else Scalar, words)
