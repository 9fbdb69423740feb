"""Where the memory of maps is that a wave writes: addresses of regions, slots and rows, in SGPRs."""

from __future__ import annotations

from neutrino.abi.levels import Level, Per
from neutrino.abi.probe_block import (
    BLOCK_CELL,
    BLOCK_COPY_MASK,
    BLOCK_HEADER,
    BLOCK_PER_MAP,
    BLOCK_WARP_CAPACITY,
    BLOCK_WARPS_PER_BLOCK,
)
from neutrino.gcn.instrument.code import Code, Mask, Scalar, Vector
from neutrino.gcn.instrument.compute import Computing
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.operands import Special
from neutrino.maps.declaration import Map
from neutrino.maps.regions import SM_ROWS, copy_stride, most_copies, row_stride

_COPIES = "hwreg({}, 4, 12)"
"""Bits that differ between compute units, by which copies of a record are chosen."""


class Places:
    """Addresses in one snippet's code. computing: of the snippet."""

    def __init__(self, computing: Computing) -> None:
        """Begin a snippet."""
        self._computing = computing
        self._here: Surroundings = computing.here
        self._code: Code = computing.code

    def region(self, index: int, *, counts: bool = False) -> Scalar:
        """Append code that loads the address of a map's memory; return the two SGPRs that have it.

        index: of the map among the launch's. counts: whether that of its counts of records.
        """
        code, here, machine = self._code, self._here, self._code.machine
        address = here.block_words(BLOCK_HEADER + BLOCK_PER_MAP * index + (8 if counts else 0), 2)
        with code.scope():
            cell = here.block_words(BLOCK_CELL, 2)
            # What the cell holds is added to all addresses; without a cell nothing is.
            known = code.label()
            code.emit(f"s_cmp_eq_u64 {cell.text}, 0", f"s_cbranch_scc1 {known}")
            code.emit(machine.load(cell.text, cell.text, 0, 2), machine.wait_scalar)
            code.emit(f"{machine.add} {address.word(0)}, {address.word(0)}, {cell.word(0)}")
            code.emit(f"{machine.add_carry} {address.word(1)}, {address.word(1)}, {cell.word(1)}")
            code.emit(f"{known}:")
        return address

    def add(self, address: Scalar, number: Scalar, stride: int) -> None:
        """Append code that adds a number of strides (sizes of slots or rows) to an address."""
        code, machine = self._code, self._code.machine
        with code.scope():
            low, high = code.scalar(), code.scalar()
            code.emit(f"s_mul_i32 {low.text}, {number.text}, {stride & 0xFFFFFFFF:#x}")
            code.emit(f"s_mul_hi_u32 {high.text}, {number.text}, {stride & 0xFFFFFFFF:#x}")
            if stride >> 32:
                upper = code.scalar()
                code.emit(f"s_mul_i32 {upper.text}, {number.text}, {stride >> 32:#x}")
                code.emit(f"{machine.add} {high.text}, {high.text}, {upper.text}")
            code.emit(f"{machine.add} {address.word(0)}, {address.word(0)}, {low.text}")
            code.emit(f"{machine.add_carry} {address.word(1)}, {address.word(1)}, {high.text}")

    def block_number(self) -> Scalar:
        """Append code that computes the linear number of the work-group in the grid; return it, a u32."""
        code, here, machine, word = self._code, self._here, self._code.machine, self._computing.word
        number = code.scalar()
        with code.scope():
            part = code.scalar()
            code.emit(f"s_mov_b32 {number.text}, {word(here.special(Special.CTAID_Z), 0)}")
            for group, count in ((Special.CTAID_Y, Special.NCTAID_Y), (Special.CTAID_X, Special.NCTAID_X)):
                with code.scope():
                    code.emit(f"s_mul_i32 {part.text}, {number.text}, {word(here.special(count), 0)}")
                    code.emit(f"{machine.add} {number.text}, {part.text}, {word(here.special(group), 0)}")
        return number

    def wave_number(self) -> Scalar:
        """Append code that computes the linear number of the wave in the grid; return it, a u32."""
        code, here, machine, word = self._code, self._here, self._code.machine, self._computing.word
        number = self.block_number()
        with code.scope():
            count = here.block_words(BLOCK_WARPS_PER_BLOCK)
            code.emit(f"s_mul_i32 {number.text}, {number.text}, {count.text}")
            code.emit(f"{machine.add} {number.text}, {number.text}, {word(here.special(Special.WARP), 0)}")
        return number

    # Slots

    def slot(self, level: Level) -> Scalar:
        """Return the number of the slot that records of a level go to: of the wave, or at level block its work-group.
        """
        return self.block_number() if level is Level.BLOCK else self.wave_number()

    def has_memory(self, number: Scalar, level: Level) -> None:
        """Set SCC to whether the launch has memory for a slot. number: as ``slot`` returns it."""
        code, here = self._code, self._here
        with code.scope():
            wave = number
            if level is Level.BLOCK:
                # There is memory for a work-group if there is for its first wave.
                wave = code.scalar()
                count = here.block_words(BLOCK_WARPS_PER_BLOCK)
                code.emit(f"s_mul_i32 {wave.text}, {number.text}, {count.text}")
            capacity = here.block_words(BLOCK_WARP_CAPACITY)
            code.emit(f"s_cmp_lt_u32 {wave.text}, {capacity.text}")

    def narrow(self, level: Level) -> None:
        """Leave of the active lanes that which saves for others: the first one of the wave or work-group."""
        code, machine = self._code, self._code.machine
        if level is Level.THREAD:
            return
        code.emit(f"s_and_{machine.mask} {machine.exec}, {machine.exec}, 1")
        if level is Level.BLOCK:
            with code.scope():
                wave = self._here.special(Special.WARP)
                code.emit(f"s_cmp_eq_u32 {self._computing.word(wave, 0)}, 0")
                code.emit(f"s_cselect_{machine.mask} {machine.exec}, {machine.exec}, 0")

    def owners(self, number: Scalar, level: Level) -> Mask:
        """Return the active lanes that have slots of a level, of those for which the launch has memory. number: as
        ``slot`` returns it."""
        code, machine = self._code, self._code.machine
        found = code.mask()
        with code.scope():
            self.has_memory(number, level)
            code.emit(f"s_cselect_{machine.mask} {found.text}, {machine.exec}, 0")
            if level is not Level.THREAD:
                code.emit(f"s_and_{machine.mask} {found.text}, {found.text}, 1")
            if level is Level.BLOCK:
                wave = self._here.special(Special.WARP)
                code.emit(f"s_cmp_eq_u32 {self._computing.word(wave, 0)}, 0")
                code.emit(f"s_cselect_{machine.mask} {found.text}, {found.text}, 0")
        return found

    def slot_memory(self, index: int, entry: Map, *, counts: bool = False) -> tuple[Scalar, Vector]:
        """Return where the slots of the wave or work-group are, and how far after that each lane's first record is.

        counts: where their counts are. Sets SCC to whether there is memory for them.
        """
        code = self._code
        size, cap = (4, 1) if counts else (entry.size, entry.cap)
        address = self.region(index, counts=counts)
        lanes = code.machine.wave if entry.level is Level.THREAD else 1
        place = code.vector()
        with code.scope():
            if lanes > 1:
                self.lanes_apart(place, size)
            else:
                code.emit(f"v_mov_b32_e32 {place.text}, 0")
            number = self.slot(entry.level)
            self.add(address, number, size * cap * lanes)
            self.has_memory(number, entry.level)
        return address, place

    def lanes_apart(self, place: Vector, stride: int) -> None:
        """Append code that writes to a VGPR how many bytes each lane's part of memory is after the first lane's."""
        code = self._code
        with code.scope():
            lane = self._computing.in_vector(self._here.special(Special.LANE), 1)
            size = code.scalar()
            code.emit(f"s_mov_b32 {size.text}, {stride:#x}", f"v_mul_lo_u32 {place.text}, {lane.text}, {size.text}")

    # Records

    def record(self, index: int, entry: Map) -> tuple[Scalar, Vector]:
        """Return where the record is that a lane adds to: a copy of the launch's, or a row; and how far after that a
        lane's own is."""
        code = self._code
        address, place = self.region(index), code.vector()
        code.emit(f"v_mov_b32_e32 {place.text}, 0")
        if entry.per.has_rows:
            self._row(entry, address, place)
        else:
            self._copy(entry, address)
        return address, place

    def _copy(self, entry: Map, address: Scalar) -> None:
        """Append code that adds to an address where this wave's copy of the launch's record begins."""
        code, machine = self._code, self._code.machine
        most = most_copies(entry.kind, entry.size)
        if most == 1:
            return
        with code.scope():
            mask, number = self._here.block_words(BLOCK_COPY_MASK), code.scalar()
            register = "HW_REG_HW_ID" if machine.generation == 9 else "HW_REG_HW_ID1"
            # Any copy is right; compute units take different ones.
            code.emit(f"s_getreg_b32 {number.text}, {_COPIES.format(register)}")
            code.emit(f"s_and_b32 {number.text}, {number.text}, {mask.text}")
            code.emit(f"s_and_b32 {number.text}, {number.text}, {most - 1:#x}")
            self.add(address, number, copy_stride(entry.size))

    def _row(self, entry: Map, address: Scalar, place: Vector) -> None:
        """Add to an address where the row of the work-group, wave, lane or compute unit begins; of a lane the rest is
        in ``place``. The first row is of those that have none."""
        code, here, machine = self._code, self._here, self._code.machine
        stride = row_stride(entry)
        with code.scope():
            if entry.per is Per.SM:
                unit, number = here.special(Special.CUID), code.scalar()
                code.emit(f"{machine.add} {number.text}, {self._computing.word(unit, 0)}, 1")
                code.emit(f"s_cmp_le_u32 {number.text}, {SM_ROWS}", f"s_cselect_b32 {number.text}, {number.text}, 0")
                self.add(address, number, stride)
                return
            level = Level.BLOCK if entry.per is Per.BLOCK else Level.WARP
            number, has_row = self.slot(level), code.scalar()
            self.has_memory(number, level)
            code.emit(f"s_cselect_b32 {has_row.text}, 1, 0")
            if entry.per is Per.THREAD:
                code.emit(f"s_mul_i32 {number.text}, {number.text}, {machine.wave}")
            code.emit(f"{machine.add} {number.text}, {number.text}, 1")
            code.emit(f"s_mul_i32 {number.text}, {number.text}, {has_row.text}")
            self.add(address, number, stride)
            if entry.per is Per.THREAD:
                rows = code.scalar()
                code.emit(f"s_mul_i32 {rows.text}, {has_row.text}, {stride:#x}")
                lane = self._computing.in_vector(here.special(Special.LANE), 1)
                code.emit(f"v_mul_lo_u32 {place.text}, {lane.text}, {rows.text}")
