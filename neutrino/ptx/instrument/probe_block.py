"""Inserted code that reads the probe block (the twin's extra parameter), and computes a thread's numbers, its slot, or
the address of the copy of a record that it adds to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from neutrino.abi.levels import Level, Per
from neutrino.abi.probe_block import (
    BLOCK_CELL,
    BLOCK_COPY_MASK,
    BLOCK_HEADER,
    BLOCK_LOG_FIRST,
    BLOCK_LOG_UNITS,
    BLOCK_PER_MAP,
    BLOCK_PER_VARIABLE,
    BLOCK_WARP_CAPACITY,
    BLOCK_WARPS_PER_BLOCK,
)
from neutrino.maps.declaration import NO_LIMIT, Map
from neutrino.maps.regions import SM_ROWS, copy_stride, most_copies, row_stride
from neutrino.ptx.instrument.registers import Scratch, Take, Value, bits
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.isa.scalars import WARP_LANES
from neutrino.ptx.text.inserted import Declaration, Lines, mem, op, vector


def thread_number(scratch: Scratch, here: Lines) -> Value:
    """Return THREAD, as probes name it: the thread's linear number in its block, x fastest. Appends the code to here.
    """
    number, b, c = (scratch.take("b32") for _ in range(3))
    here += [
        op("mov.u32", number, "%tid.z"),
        op("mov.u32", b, "%ntid.y"),
        op("mov.u32", c, "%tid.y"),
        op("mad.lo.u32", number, number, b, c),
        op("mov.u32", b, "%ntid.x"),
        op("mov.u32", c, "%tid.x"),
        op("mad.lo.u32", number, number, b, c),
    ]
    return Value(number, "u32")


def block_number(scratch: Scratch, here: Lines) -> Value:
    """Return BLOCK, as probes name it: the block's linear number in the grid, x fastest. Appends the code to here.

    Grids have up to 2^31 x 65535 x 65535 blocks: the row's number has 32 bits, the block's does not.
    """
    row, b, c = (scratch.take("b32") for _ in range(3))
    number, wide = scratch.take("b64"), scratch.take("b64")
    here += [
        op("mov.u32", row, "%ctaid.z"),
        op("mov.u32", b, "%nctaid.y"),
        op("mov.u32", c, "%ctaid.y"),
        op("mad.lo.u32", row, row, b, c),
        op("mov.u32", b, "%nctaid.x"),
        op("mov.u32", c, "%ctaid.x"),
        op("cvt.u64.u32", wide, c),
        op("mad.wide.u32", number, row, b, wide),
    ]
    return Value(number, "u64")


@dataclass
class Noted:
    """What some code reads of the probe block: words, by their offsets with their types; whether it adds the maps'
    displacement."""

    reads: dict[int, str]
    has_shift: bool


class ProbeBlock:
    """The probe block (``abi/probe_block.py``) as one body reads it. A kernel has it as a parameter; a function that a
    kernel calls reads the words that it needs from the kernel's state in local memory, which begins as the block does.

    address: the parameter's name, or a register with the state's address. space: ``param`` or ``local``. maps: the
    number of maps. prefix: starts every private register. take: gives a new register of a type. reads: the words that
    were read, byte offset → type.
    """

    def __init__(self, address: str, space: str, maps: int, prefix: str, take: Take) -> None:
        """Set up how one body reads the probe block (the addresses and limits given to probes). Parameters: see the
        class."""
        self._address = address
        self._space = space
        self._maps = maps
        self._take = take
        self.reads: dict[int, str] = {}
        # What is added to the addresses of maps, in a register from the kernel's entry on; whether code names it.
        self._displacement = f"{prefix}b"
        self._has_displacement = False
        self.is_apart = False
        """Whether code is being written that nearly never runs."""
        self._is_in_place = False

    @property
    def where(self) -> tuple[str, str, int]:
        """How code has to address the probe block; code that was written for equal values can be used again."""
        return self._address, self._space, self._maps

    def note(self, reads: Mapping[int, str], *, has_shift: bool) -> None:
        """Note that code reads these words of the probe block, and whether it adds the maps' displacement to addresses.
        """
        self.reads.update(reads)
        self._has_displacement = self._has_displacement or has_shift

    @property
    def has_shift(self) -> bool:
        """Whether code names the register with what is added to addresses, so that it is loaded at the kernel's entry.
        """
        return self._has_displacement

    @contextmanager
    def noting(self, *, has_shift: bool = False) -> Iterator[Noted]:
        """While the context is open, note what code reads of the probe block in the object that is returned, and
        nowhere else. has_shift: whether the code may take it that ``has_shift`` is true."""
        before, had_shift = self.reads, self._has_displacement
        self.reads, self._has_displacement = {}, has_shift
        noted = Noted({}, has_shift=False)
        try:
            yield noted
        finally:
            noted.reads, noted.has_shift = self.reads, self._has_displacement
            self.reads, self._has_displacement = before, had_shift

    @contextmanager
    def apart(self) -> Iterator[None]:
        """While the context is open, code stands behind a branch that is nearly never taken: it loads what it needs
        itself, so that no register holds that through the kernel."""
        self.is_apart = True
        try:
            yield
        finally:
            self.is_apart = False

    def load(self, kind: str, register: str, offset: int) -> Instruction:
        """Return the instruction that loads a word of the probe block into a register; the word counts as read.

        kind: its type. offset: in bytes.
        """
        self.reads[offset] = kind
        return op(f"ld.{self._space}.{kind}", register, mem(self._address, offset))

    def load_variable(self, index: int, register: str) -> Instruction:
        """The instruction that loads the address of the index-th of the program's module variables from the probe
        block."""
        return self.load("u64", register, BLOCK_HEADER + BLOCK_PER_MAP * self._maps + BLOCK_PER_VARIABLE * index)

    def load_map(
        self, index: int, register: str, lines: Lines, *, counts: bool = False, ending: bool,
        take: Take | None = None, users: str | None = None,
    ) -> None:  # fmt: skip
        """Append code that brings the address of the memory of the index-th map (a probe's table or log) into a
        register.

        counts: that of its counts of records instead. ending: the code stands where the thread ends. take: as of the
        block, None for its own. users: a predicate, of the threads that use the address; where it is false, the address
        may be wrong. None: all threads use it.
        """
        lines.append(self.load_records(index, register, counts=counts))
        self.displace(register, lines, ending=ending, take=take, users=users)

    def load_records(self, index: int, register: str, *, counts: bool = False) -> Instruction:
        """Return the instruction that loads where the memory of the index-th map is, or that of its counts, as the
        launch has it: ``displace`` makes an address of it."""
        return self.load("u64", register, BLOCK_HEADER + BLOCK_PER_MAP * index + (8 if counts else 0))

    def displace(
        self, register: str, lines: Lines, *, ending: bool, take: Take | None = None, users: str | None = None
    ) -> None:
        """Append code that adds to a register what is added to all addresses of maps. Parameters: see ``load_map``."""
        take = take or self._take
        if self._space == "local":
            # In the state, what is added stands in the cell's place.
            shift = take("b64")
            lines.append(self.load("u64", shift, BLOCK_CELL))
        elif (ending or self.is_apart) and not self._has_displacement:
            if self._is_in_place:
                return
            shift = take("b64")
            lines += self._load_displacement(shift, users)
        else:
            # Where a product and its sum may stand around the code, no load may be predicated. So it is loaded at the
            # entry; not also for the end, since the register would live through the whole kernel.
            self._has_displacement = True
            shift = self._displacement
        lines.append(op("add.u64", register, register, shift))

    def displaced(self, take: Take, lines: Lines) -> list[str]:
        """Return registers of 32 bits that are all 0 where nothing has to be loaded to be added to addresses of maps at
        a thread's end; [] where nothing ever has. Appends code to lines."""
        if self._has_displacement:
            return []
        cell, low, high = take("b64"), take("b32"), take("b32")
        lines += [self.load("u64", cell, BLOCK_CELL), op("mov.b64", vector(low, high), cell)]
        return [low, high]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While the context is open, the code is for threads in which the registers of ``displaced`` are all 0."""
        self._is_in_place = True
        try:
            yield
        finally:
            self._is_in_place = False

    @property
    def is_parameter(self) -> bool:
        """Whether the probe block is a parameter of the body, not in local memory."""
        return self._space == "param"

    def load_log_limit(self, index: int, register: str) -> Instruction:
        """The instruction that loads how many units of memory the index-th map, a log, has in all: into a register of
        32 bits."""
        return self.load("u32", register, BLOCK_HEADER + BLOCK_PER_MAP * index + BLOCK_LOG_UNITS)

    def load_log_first(self, index: int, register: str) -> Instruction:
        """The instruction that loads how many units of memory of the index-th map, a log, each warp has for itself: 32
        bits."""
        return self.load("u32", register, BLOCK_HEADER + BLOCK_PER_MAP * index + BLOCK_LOG_FIRST)

    def load_warps(self, register: str) -> Instruction:
        """The instruction that loads for how many warps of the launch there is memory for records: 32 bits."""
        return self.load("u32", register, BLOCK_WARP_CAPACITY)

    def load_warps_per_block(self, register: str) -> Instruction:
        """The instruction that loads how many warps a block of the launch has: 32 bits."""
        return self.load("u32", register, BLOCK_WARPS_PER_BLOCK)

    def entry(self) -> tuple[Lines, Lines]:
        """Return declarations and instructions that the kernel's entry needs for the probe block. Call it when all code
        is written."""
        if not self._has_displacement:
            return [], []
        return [Declaration("reg", "u64", self._displacement)], self._load_displacement(self._displacement)

    def _load_displacement(self, register: str, users: str | None = None) -> Lines:
        """Return code that loads the displacement to add to the addresses of maps; it is 0 outside of graphs (recorded
        launches).

        users: see ``load_map``.
        """
        cell, is_there = self._take("b64"), self._take("pred")
        is_needed = op("setp.ne.u64", is_there, cell, "0")
        if users is not None:
            # ptxas loads as early as it can. A load that waits for this predicate holds no registers beside those that
            # the predicate is computed from.
            is_needed = op("setp.ne.and.u64", is_there, cell, "0", users)
        return [
            self.load("u64", cell, BLOCK_CELL),
            op("mov.u64", register, "0"),
            is_needed,
            op("ld.global.u64", register, mem(cell), when=is_there),
        ]

    def copy(self, words: Mapping[int, str], state: str) -> Lines:
        """Return the code with which a kernel copies words of the probe block to its state in local memory, for
        functions to read.

        They go to the same offsets. words: byte offset → type. state: the name of the state's variable.
        """
        lines: Lines = []
        for offset, kind in sorted(words.items()):
            word = self._take(f"b{bits(kind)}")
            lines += self._load_displacement(word) if offset == BLOCK_CELL else [self.load(kind, word, offset)]
            lines.append(op(f"st.local.{kind}", f"[{state}+{offset}]", word))
        return lines


@dataclass(frozen=True)
class Slot:
    """The registers that say where in a launch's regions of memory (``maps/regions.py``) a thread's records go.

    index: of the warp in the grid, at block level of the block, 32 bits. lane: in the warp, 32 bits; at block level of
    no use. inside: a predicate, whether this thread has a slot: at warp and block level only the first thread has one,
    and at any level only if the regions have room for its warp.
    """

    index: str
    lane: str
    inside: str


class Slots:
    """A thread's slots (where its records go in memory), by level. The code that computes one is appended where it is
    first asked for, under no predicate; all other code that asks must run after it."""

    def __init__(self, block: ProbeBlock, take: Take, *, of_groups: bool = False) -> None:
        """Prepare to compute where a thread's records go in memory; nothing is computed yet.

        of_groups: any thread may save for its warp, not only the first.
        """
        self._block = block
        self._take = take
        self._of_groups = of_groups
        self._slots: dict[Level, Slot] = {}

    def copy(self) -> Slots:
        """Slots of which the same are known, for code that not all threads reach."""
        slots = Slots(self._block, self._take, of_groups=self._of_groups)
        slots._slots.update(self._slots)
        return slots

    def at(self, level: Level, lines: Lines) -> Slot:
        """Return the registers that say where this thread's records at a level (thread, warp, block) go in memory.

        The first call for a level appends the code that computes them to lines.
        """
        if level not in self._slots:
            self._slots[level] = self._block_slot(lines) if level is Level.BLOCK else self._warp_slot(level, lines)
        return self._slots[level]

    def _warp_slot(self, level: Level, lines: Lines) -> Slot:
        """Append the code that computes where the records of a thread, or of its warp, go: the warp's index in the
        grid, and the lane.

        The index is the block's index * warps per block + the warp's in the block.
        """
        # a, b, c hold intermediate numbers. lane is at first the thread's linear index in its block: its lowest 5 bits
        # are the lane in the warp, those above them the warp's index in the block.
        warp, lane, a, b, c = (self._take("b32") for _ in range(5))
        inside = self._take("pred")
        lines += [
            op("mov.u32", a, "%tid.z"),
            op("mov.u32", b, "%ntid.y"),
            op("mov.u32", c, "%tid.y"),
            op("mad.lo.u32", a, a, b, c),
            op("mov.u32", b, "%ntid.x"),
            op("mov.u32", c, "%tid.x"),
            op("mad.lo.u32", lane, a, b, c),
            *_block_index(a, b, c),
            self._block.load("u32", b, BLOCK_WARPS_PER_BLOCK),
            op("shr.u32", c, lane, "5"),
            op("mad.lo.u32", warp, a, b, c),
            op("and.b32", lane, lane, str(WARP_LANES - 1)),
            self._block.load("u32", b, BLOCK_WARP_CAPACITY),
            op("setp.lt.u32", inside, warp, b),
        ]
        if level is Level.WARP and not self._of_groups:
            lines.append(op("setp.eq.and.u32", inside, lane, "0", inside))
        return Slot(warp, lane, inside)

    def _block_slot(self, lines: Lines) -> Slot:
        """Append the code that computes where the records of a block go: its index; only the thread 0, 0, 0 writes
        them."""
        # lane becomes the three indices of the thread, joined by "or": 0 in that thread alone. There is room for a
        # block if there is room for its first warp.
        block, lane, a, b = (self._take("b32") for _ in range(4))
        inside = self._take("pred")
        lines += [
            *_block_index(block, a, b),
            self._block.load("u32", a, BLOCK_WARPS_PER_BLOCK),
            op("mul.lo.u32", a, block, a),
            self._block.load("u32", b, BLOCK_WARP_CAPACITY),
            op("setp.lt.u32", inside, a, b),
            op("mov.u32", lane, "%tid.x"),
            op("mov.u32", a, "%tid.y"),
            op("or.b32", lane, lane, a),
            op("mov.u32", a, "%tid.z"),
            op("or.b32", lane, lane, a),
            op("setp.eq.and.u32", inside, lane, "0", inside),
        ]
        return Slot(block, lane, inside)


def _block_index(index: str, a: str, b: str) -> Lines:
    """Code that puts the block's linear index in the grid (x fastest) into the register index.

    a, b: registers for intermediate values.
    """
    return [
        op("mov.u32", index, "%ctaid.z"),
        op("mov.u32", a, "%nctaid.y"),
        op("mov.u32", b, "%ctaid.y"),
        op("mad.lo.u32", index, index, a, b),
        op("mov.u32", a, "%nctaid.x"),
        op("mov.u32", b, "%ctaid.x"),
        op("mad.lo.u32", index, index, a, b),
    ]


def copies_limit(entry: Map) -> int | None:
    """Return how many copies of its record a map may have at most, a power of two; None where the launch alone decides.
    """
    return None if entry.kind.copies_bytes == NO_LIMIT else most_copies(entry.kind, entry.size)


class CopyNumbers:
    """The numbers of the copies of records that a thread adds to; the code that computes one is written once.

    lower: a register that is zero in the threads that add, but that ptxas cannot know to be the same in all lanes (see
    below); None if there is none.
    """

    def __init__(self, block: ProbeBlock, take: Take, lower: str | None = None) -> None:
        """Nothing is computed yet. Parameters: see the class."""
        self._block = block
        self._take = take
        self._lower = lower
        self._of_launch = ""
        self._known: dict[int | None, str] = {}

    def of(self, entry: Map, lines: Lines) -> str:
        """Return a register with the number of the copy of a map's record; appends code to lines if it is new."""
        limit = copies_limit(entry)
        if limit not in self._known:
            if not self._of_launch:
                self._of_launch = self._in_launch(lines)
            copy = self._of_launch
            # Some map types have fewer copies than the launch's mask allows. Their number is a power of two.
            if limit is not None:
                copy = self._take("b32")
                lines.append(op("and.b32", copy, self._of_launch, str(limit - 1)))
            if self._lower is not None:
                # "or" with zero: what is the same in all lanes ptxas would compute apart from the rest, in more
                # instructions.
                lines.append(op("or.b32", copy, copy, self._lower))
            self._known[limit] = copy
        return self._known[limit]

    def _in_launch(self, lines: Lines) -> str:
        """Append the code that finds the number of the copy where the launch alone says how many there are."""
        copy, mask = self._take("b32"), self._take("b32")
        lines += [
            op("mov.u32", copy, "%smid"),
            self._block.load("u32", mask, BLOCK_COPY_MASK),
            op("and.b32", copy, copy, mask),
        ]
        return copy


def copy_address(
    entry: Map, index: int, block: ProbeBlock, take: Take, lines: Lines, copies: CopyNumbers | None = None, *,
    ending: bool,
) -> str:  # fmt: skip
    """Return a register with the address of the copy of a map's record that this thread adds to. Appends the code to
    lines.

    A launch has several copies of a record that all threads add to, so that fewer of them add to one address; readers
    add the copies up. Each multiprocessor uses one. entry: the map; index: its index. copies: their numbers, as far as
    they are computed already. ending: see ``ProbeBlock.load_map``.
    """
    if entry.per.has_rows:
        return _row_address(entry, index, block, take, lines, ending=ending)
    copies = copies or CopyNumbers(block, take)
    copy, base = copies.of(entry, lines), take("b64")
    block.load_map(index, base, lines, ending=ending, take=take)
    lines.append(op("mad.wide.u32", base, copy, str(copy_stride(entry.size)), base))
    return base


def _row_address(entry: Map, index: int, block: ProbeBlock, take: Take, lines: Lines, *, ending: bool) -> str:
    """Return a register with the address of the row that this thread adds to, for a map with rows.

    It is the row of the thread's block, warp or multiprocessor, or its own; or the first row, which belongs to none, if
    the region has no room for it.
    """
    stride = row_stride(entry)
    row, base, inside = take("b32"), take("b64"), take("pred")
    if entry.per is Per.SM:
        lines += [op("mov.u32", row, "%smid"), op("setp.lt.u32", inside, row, str(SM_ROWS))]
    elif entry.per is Per.BLOCK:
        a, b = take("b32"), take("b32")
        lines += [
            *_block_index(row, a, b),
            # There is room for a block if there is room for its first warp.
            block.load("u32", a, BLOCK_WARPS_PER_BLOCK),
            op("mul.lo.u32", a, row, a),
            block.load("u32", b, BLOCK_WARP_CAPACITY),
            op("setp.lt.u32", inside, a, b),
        ]
    else:
        slot = Slots(block, take).at(Level.THREAD, lines)
        row, inside = slot.index, slot.inside
        if entry.per is Per.THREAD:
            # Threads may be more than 32 bits count.
            offset = take("b64")
            lines += [
                op("mul.wide.u32", offset, row, str(WARP_LANES * stride)),
                op("mad.wide.u32", offset, slot.lane, str(stride), offset),
                op("add.u64", offset, offset, str(stride)),
                op("selp.b64", offset, offset, "0", inside),
            ]
            block.load_map(index, base, lines, ending=ending, take=take)
            lines.append(op("add.u64", base, base, offset))
            return base
    # There is room for fewer rows than 32 bits count, so that those after the first are no more.
    place = take("b32")
    lines += [op("add.u32", place, row, "1"), op("selp.b32", place, place, "0", inside)]
    block.load_map(index, base, lines, ending=ending, take=take)
    lines.append(op("mad.wide.u32", base, place, str(stride), base))
    return base
