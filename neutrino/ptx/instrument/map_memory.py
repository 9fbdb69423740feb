"""The statements of map types that are about memory, as PTX: of cells, and of a log's region."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

from neutrino.ir.memory import (
    At,
    AtomicUpdate,
    CompareAndSwap,
    Extent,
    HasSlot,
    LoadCell,
    LoadStored,
    Locate,
    MapStatement,
    OneOf,
    ReadExtent,
    ReserveInLog,
    SlotNumber,
    Store,
    StoreTogether,
)
from neutrino.ir.memory import Kept as TypeKept
from neutrino.ir.operands import Constant, Register
from neutrino.maps.declaration import Layout, Map
from neutrino.ptx.instrument.map_statements import Lowering
from neutrino.ptx.instrument.probe_block import ProbeBlock, Slots, copy_address
from neutrino.ptx.instrument.records import in_few_stores
from neutrino.ptx.instrument.registers import Take
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.text.inserted import Label, Lines, Scope, mem, op, vector

_CELL = 8
"""Bytes of a cell that has a place."""


class AtMap(Lowering):
    """Lowers statements that name cells of a map, or read what a launch has.

    entry, index: the map and its index. block: the probe block. take, kept, lines, label: as of ``Lowering``. ending:
    see ``ProbeBlock.load_map``. slots: of the thread, those known so far; None for none. straight: whether the code may
    have no branches.
    """

    def __init__(
        self, entry: Map, index: int, block: ProbeBlock, take: Take, kept: Callable[[TypeKept], str], lines: Lines,
        label: str, *, ending: bool, slots: Slots | None = None, straight: bool = False,
    ) -> None:  # fmt: skip
        """Set up a translator of statements (IR) about one map's memory to PTX.

        entry, index: the map and its number. kept: gives the register of a value that the map keeps. ending: whether
        the code is where threads end. slots: where the thread's records go, as far as that is computed already.
        straight: see the class.
        """
        super().__init__(take, kept, lines, label)
        self._entry = entry
        self._index = index
        self._block = block
        self._ending = ending
        self._is_straight = straight
        self._slots = slots or Slots(block, take)

    def take_from(self, take: Take, texts: dict[str, str]) -> None:
        """Have ``take`` give new PTX registers from now on, so that what was computed before is not known. texts: the
        PTX registers of statements' registers that were written before."""
        super().take_from(take, texts)
        self._slots = Slots(self._block, take)

    def write_at_end(self, statements: Iterable[MapStatement]) -> None:
        """Append the PTX for statements, in their order. Updates in a row under one predicate are one branch, of which
        ptxas would make several."""
        for when, run in groupby(statements, lambda one: one.when if isinstance(one, AtomicUpdate) else None):
            several = list(run)
            predicate = self._text(when) if when is not None and len(several) > 1 and not self._is_straight else ""
            if not predicate:
                self.write(several)
                continue
            # All threads compute the address, so that later updates may name it.
            self._address()
            self._lines += [Scope.OPEN, op("bra", f"{self._label}_none", when=f"!{predicate}")]
            self.write(replace(update, when=None) for update in several if isinstance(update, AtomicUpdate))
            self._lines += [Label(f"{self._label}_none"), Scope.CLOSE]

    def _write_inner(self, statements: Iterable[MapStatement]) -> None:
        """Append the code of statements. Slots that are found there are not known after them."""
        outer, self._slots = self._slots, self._slots.copy()
        super()._write_inner(statements)
        self._slots = outer

    def _write_special(self, statement: MapStatement) -> None:
        """Append the PTX for a statement of a map's type (IR) about the map's memory; others are left to the base
        class."""
        if isinstance(statement, Locate):
            self._locate(statement)
        elif isinstance(statement, LoadCell):
            when = self._condition(statement.when)
            if when is not None:
                self._set(statement.destination, "mov.u64", "0")
            self._set(statement.destination, "ld.relaxed.gpu.global.u64", self._where(statement.cell), when=when)
        elif isinstance(statement, CompareAndSwap):
            given = (self._text(statement.expected), self._text(statement.desired))
            where, when = self._where(statement.cell), self._condition(statement.when)
            self._set(statement.destination, "atom.global.cas.b64", where, *given, when=when)
        elif isinstance(statement, AtomicUpdate):
            self._update(statement)
        elif isinstance(statement, ReserveInLog):
            self._reserve(statement)
        elif isinstance(statement, Store):
            self._store(statement)
        elif isinstance(statement, StoreTogether):
            self._store_together(statement)
        elif isinstance(statement, LoadStored):
            where = mem(self._text(statement.place), statement.after)
            self._set(statement.destination, "ld.global.u32", where, when=self._text(statement.when))
        elif isinstance(statement, ReadExtent):
            self._lines.append(self._extent(statement.extent, self._target(statement.destination)))
        elif isinstance(statement, (SlotNumber, HasSlot)):
            slot = self._slots.at(self._entry.level, self._lines)
            is_number = isinstance(statement, SlotNumber)
            self._names[statement.destination.name] = slot.index if is_number else slot.inside
        else:
            super()._write_special(statement)

    def _locate(self, statement: Locate) -> None:
        """Append the code that computes the address of a cell (a word of the map's record) into a register."""
        cell, size, destination = statement.cell, _CELL * statement.words, statement.destination
        base = self._text(statement.base) if statement.base is not None else self._address()
        if isinstance(cell, Register):
            when = self._condition(statement.when)
            self._set(destination, "mad.wide.u32", self._text(cell), str(size), base, when=when)
        elif cell.bits:
            self._set(destination, "add.u64", base, str(cell.bits * size))
        else:
            self._names[destination.name] = base

    def _where(self, cell: At) -> str:
        """Return the operand of an instruction, such as ``[%rd1+8]``, that names a cell in memory."""
        offset = _CELL * cell.after
        return f"[{self._text(cell.place)}+{offset}]" if offset else f"[{self._text(cell.place)}]"

    def _condition(self, when: Register | None) -> str | None:
        """The predicate register under which a statement runs, None if it always does."""
        return self._text(when) if when is not None else None

    def _update(self, statement: AtomicUpdate) -> None:
        """Append the atomic instruction (``red``) that adds to, or otherwise updates, a cell of the map in memory."""
        cell = statement.cell
        if isinstance(cell, OneOf):
            offset = self._take("b64")
            offsets = (str(self._offset(cell.then)), str(self._offset(cell.otherwise)))
            self._emit("selp.b64", offset, *offsets, self._text(cell.condition))
            where = f"[{self._computed('add.u64', 64, self._address(), offset)}]"
        elif isinstance(cell, At):
            where = self._where(cell)
        else:
            base, place = self._address(), self._offset(cell)
            where = f"[{base}+{place}]" if place else f"[{base}]"
        when = self._condition(statement.when)
        kind = "f64" if statement.value.type.is_float else "u64"
        self._emit(f"red.global.{statement.operator.value}.{kind}", where, self._text(statement.value), when=when)

    def _reserve(self, statement: ReserveInLog) -> None:
        """Append the code that reserves units of a log's memory for records, by one atomic addition, and tests whether
        they fit."""
        block, when = self._block, self._condition(statement.when)
        units = self._text(statement.units)
        wide, first = self._computed("cvt.u64.u32", 64, units), self._take("b64")
        if when is not None:
            self._emit("mov.u64", first, "0")
        self._emit("atom.global.add.u64", first, mem(self._text(statement.base)), wide, when=when)
        if statement.after_own:
            own, warps = self._take("b32"), self._take("b32")
            self._lines += [block.load_log_first(self._index, own), block.load_warps(warps)]
            self._emit("mad.wide.u32", first, own, warps, first)
        # All of it must be before the end, also where what was taken is not a number of units: replays of a graph
        # for which there is no memory share some that is not zeroed.
        low, high, limit = self._target(statement.destination), self._take("b32"), self._take("b32")
        fits = self._take("pred")
        self._emit("mov.b64", vector(low, high), first)
        self._lines.append(block.load_log_limit(self._index, limit))
        if statement.most is not None:
            self._emit("min.u32", limit, limit, str(statement.most))
        self._emit("setp.eq.u32", fits, high, "0")
        self._emit("setp.le.and.u32", fits, low, limit, fits)
        self._emit("sub.u32", limit, limit, low)
        self._set(statement.fits, "setp.ge.and.u32", limit, units, fits)

    def _extent(self, extent: Extent, register: str) -> Instruction:
        """Return the instruction that loads a number of the launch, such as its warps, from the probe block into a
        register."""
        block = self._block
        if extent is Extent.OWN_UNITS:
            return block.load_log_first(self._index, register)
        return block.load_warps(register) if extent is Extent.WARPS else block.load_warps_per_block(register)

    def _store(self, statement: Store) -> None:
        """Append the instruction that stores one or several numbers side by side in memory."""
        size = statement.type.bits
        texts = []
        for value in statement.values:
            text = self._text(value)
            texts.append(self._computed(f"mov.b{size}", size, text) if isinstance(value, Constant) else text)
        where, when = mem(self._text(statement.place), statement.after), self._text(statement.when)
        vectors = f"v{len(texts)}.b{size}" if len(texts) > 1 else f"b{size}"
        self._emit(f"st.global.{vectors}", where, vector(*texts) if len(texts) > 1 else texts[0], when=when)

    def _store_together(self, statement: StoreTogether) -> None:
        """Store numbers in memory, in as few stores as can be."""
        single: list[tuple[int, str, str]] = []
        for part in statement.parts:
            text, kind, offset = self._text(part.value), f"b{part.type.bits}", part.after
            if isinstance(part.value, Constant):
                text = self._computed(f"mov.b{max(part.type.bits, 32)}", max(part.type.bits, 32), text)
            # Two of 16 bits become one of 32, as ``in_few_stores`` makes one of 64 of two of 32.
            if kind == "b16" and offset % 4 == 2 and single and single[-1][:2] == (offset - 2, "b16"):
                _, _, lower = single.pop()
                offset, kind, text = offset - 2, "b32", self._computed("prmt.b32", 32, lower, text, "0x5410")
            single.append((offset, kind, text))
        place, when = self._text(statement.place), self._condition(statement.when)
        for offset, kind, text in in_few_stores(single, statement.align, self._take, self._lines):
            self._emit(f"st.global.{kind}", mem(place, statement.after + offset), text, when=when)

    def _offset(self, cell: int) -> int:
        """Return the offset in bytes of a cell (a word that a field of the map uses) in the map's record. cell: its
        number."""
        return self._entry.kind.cells(self._entry.fields)[cell].offset

    def _address(self) -> str:
        """The register with the address of the memory of the map that this thread updates: of a log, or a copy of its
        record."""
        entry, block = self._entry, self._block
        if entry.kind.layout is Layout.CHUNKS:
            # Of a log there is one region for all.
            region = self._take("b64")
            block.load_map(self._index, region, self._lines, ending=self._ending, take=self._take)
            return region
        return copy_address(entry, self._index, block, self._take, self._lines, ending=self._ending)
