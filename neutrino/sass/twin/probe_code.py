"""Probe code as ``ptxas`` assembled it, ready to be put into kernels: taken out of a kernel of its own, understood
instruction by instruction, and refused by name where it is not.

The kernel of its own has three parts: the code for a kernel's entry, a barrier, the code for where a thread ends, a
barrier, EXIT. ``ptxas`` keeps its registers apart, so what the second part reads of the first one is right by itself.
Which kernel the code goes into is not known here: ``place_code`` gives it registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neutrino.errors import MachineCodeError
from neutrino.sass.decoder import decode
from neutrino.sass.encoding import Form
from neutrino.sass.fields import (
    ALWAYS,
    GUARD,
    INSTRUCTION_BYTES,
    NEGATED,
    NO_BARRIER,
    OPCODE,
    READ_BARRIER,
    REUSE,
    STALL,
    WAIT,
    WRITE_BARRIER,
    Field,
)
from neutrino.sass.instruction import Flow, Memory, RegisterFile
from neutrino.sass.twin import control
from neutrino.sass.twin.reference import Reference
from neutrino.sass.twin.sums import idle, set_sums

ENTRY_ENDS, EXIT_ENDS = 14, 15
"""Numbers of the barriers after the code for the entry, and after that for where a thread ends."""
_ZERO, _ZERO_UNIFORM = 255, 63
_STACK = 1
"""The register with the stack's address, which a kernel's first instruction sets."""
_BARRIER, _EXIT = 0xB1D, 0x94D
_BARRIER_NUMBER = Field(54, 4)
_SPECIAL = Field(72, 8)
"""Of S2R and S2UR: which of the hardware's values."""
_BANK, _OFFSET, _OPERANDS = Field(54, 5), Field(38, 16), Field(9, 3)
_CONSTANT_FORMS = (3, 5)
"""Forms of operands with a constant, of which ``constant_reads`` says more."""

PMTRIG = 0x0000000003800000_0000000100007801
"""PMTRIG 0x1 without control bits, which the table lacks: it counts an event for profilers, and makes a warp stop at a
barrier that is pending before the clock is read."""

LIFTED = frozenset({
    "BREV", "CS2R", "FLO", "HFMA2", "IADD3", "IMAD", "IMNMX", "ISETP", "LDC", "LDG", "LEA", "LOP3", "MOV", "NOP",
    "PLOP3", "POPC", "PRMT", "RED", "REDG", "S2R", "S2UR", "SEL", "SGXT", "SHF", "STG", "UIADD3", "UIMAD", "ULDC",
    "ULEA", "ULOP3", "UMOV", "UPRMT", "USHF", "VOTE",
})  # fmt: skip
"""Opcodes that do the same in a trampoline. What counts or joins lanes otherwise, waits, branches or uses other memory
is not among them."""
SAME_FOR_ALL = frozenset({"S2UR", "UIADD3", "UIMAD", "ULDC", "ULEA", "ULOP3", "UMOV", "UPRMT", "USHF"})
"""Those of them that may write a uniform register: with the same operands all lanes of a warp get the same value."""
_SPECIAL_READS, _CTAID_Z = frozenset({0x919, 0x9C3}), 0x27
"""S2R and S2UR, and which value the block's third index is."""
_TOLD_UNTIL = 90
"""Architectures below have an attribute of kernels that read it, CTAIDZ_USED."""
_SPECIAL_SAME = frozenset({0x25, 0x26, 0x27, 0x43})
"""CTAID.X, Y, Z and VIRTUALSMID: the same in all lanes and at all times. Not so clocks, masks, numbers of threads."""


@dataclass(frozen=True)
class Shape:
    """What all kernels with the same probes have in common. entry, exit: ``ptxas``' words for the entry and for where
    a thread ends, of one kernel. block_offset, block_size: of the probe block among that kernel's parameters, in bytes.
    parameter_base: where parameters begin in constant bank 0, in bytes. sums: initial values of the sums that code at
    accesses adds to, of 64 bits. sm: of the architecture that it is for."""

    entry: tuple[int, ...]
    exit: tuple[int, ...]
    block_offset: int
    block_size: int
    parameter_base: int
    sums: tuple[int, ...] = ()
    sm: int = 90


@dataclass(frozen=True)
class Named:
    """A register that an instruction names: field, file, how many registers from it on; number: a register of the
    code's own, or of a uniform register the number of its value. reads: whether the instruction reads it."""

    field: Field
    inverted: bool
    file: RegisterFile
    count: int
    number: int
    reads: bool


@dataclass(frozen=True)
class LiftedWord:
    """One instruction: its bits, and the registers in it that get other numbers."""

    bits: int
    named: tuple[Named, ...] = ()


@dataclass(frozen=True)
class Lifted:
    """Probe code that was understood. entry, exit: as in ``Shape``, without what has no place in a trampoline. general:
    the general registers of both, ascending. kept: those that the exit reads and the entry writes. predicates: those of
    both. uniform: of each value that is put into uniform registers, how many they are. sums: of each sum of the shape,
    the first of its two registers, which are not in ``general``; None where the exit does not read it. reference: what
    the checker compares the code with, None for nothing."""

    shape: Shape
    entry: tuple[LiftedWord, ...]
    exit: tuple[LiftedWord, ...]
    general: tuple[int, ...]
    kept: frozenset[int]
    predicates: tuple[int, ...]
    uniform: tuple[int, ...]
    sums: tuple[int | None, ...] = ()
    reference: Reference | None = None


@dataclass(frozen=True)
class Registers:
    """What probe code may use in a kernel. base: the first general register, a multiple of 4. predicates, uniform:
    numbers, those to take first in front. shared: those of the predicates that the kernel names as well."""

    base: int
    predicates: tuple[int, ...]
    uniform: tuple[int, ...]
    shared: frozenset[int]


@dataclass(frozen=True)
class Placed:
    """Probe code with a kernel's registers. top: the highest general register, -1 without one. sums: the first of the
    two registers of each sum that is kept, by its number. one: the register that holds 1 for them, -1 without sums.
    block_offset: of the probe block among the kernel's parameters, in bytes. reference: of ``Lifted``."""

    entry: tuple[int, ...]
    exit: tuple[int, ...]
    top: int
    block_offset: int
    sums: Mapping[int, int] = dataclasses.field(default_factory=dict)
    one: int = -1
    reference: Reference | None = None


def split(words: Sequence[int], name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the code for the entry and for where a thread ends, with the barriers at their ends.

    words: a kernel's code as ``ptxas`` assembled it. name: the kernel's. Raises MachineCodeError where the two barriers
    are not there once, in order and always executed, with EXIT after them.
    """
    at = [
        (_BARRIER_NUMBER.get(word), index) for index, word in enumerate(words)
        if OPCODE.get(word) == _BARRIER and _is_always(word)
    ]  # fmt: skip
    barriers = sum(OPCODE.get(word) == _BARRIER for word in words)
    if barriers != 2 or [number for number, _ in at] != [ENTRY_ENDS, EXIT_ENDS]:
        raise MachineCodeError(name, "the probe's code is not in two parts with a barrier after each")
    first, second = at[0][1], at[1][1]
    _check_end(words, second, name)
    return tuple(words[: first + 1]), tuple(words[first + 1 : second + 1])


def until_exit(words: Sequence[int], name: str) -> tuple[int, ...]:
    """Return the code for where a thread ends, of a kernel that has no other, with the barrier at its end. Parameters
    and errors: of ``split``."""
    at = [index for index, word in enumerate(words) if OPCODE.get(word) == _BARRIER]
    if [_BARRIER_NUMBER.get(words[index]) for index in at] != [EXIT_ENDS] or not _is_always(words[at[0]]):
        raise MachineCodeError(name, "the probe's code has not one barrier, after it")
    _check_end(words, at[0], name)
    return tuple(words[: at[0] + 1])


def _check_end(words: Sequence[int], barrier: int, name: str) -> None:
    """Raise MachineCodeError unless EXIT comes after the last barrier. barrier: its index."""
    if barrier + 1 >= len(words) or OPCODE.get(words[barrier + 1]) != _EXIT or not _is_always(words[barrier + 1]):
        raise MachineCodeError(name, "the probe's code goes on where a thread has ended")


def lift(shape: Shape, name: str) -> Lifted:
    """Return probe code with all that it names understood.

    name: the kernel that the code was assembled as, for messages. Raises MachineCodeError for whatever is not.
    """
    reader = Reader(shape, name)
    entry = reader.part(shape.entry, "entry")
    named_by_entry = dict(reader.written)
    leave = reader.part(shape.exit, "exit")
    return Lifted(
        shape, entry, leave, tuple(sorted(reader.general)),
        frozenset(number for file, number in reader.carried if file is RegisterFile.GENERAL and (file, number)
                  in named_by_entry),
        tuple(sorted(reader.predicates)), tuple(reader.values),
    )  # fmt: skip


class Reader:
    """Reads the two parts one after the other.

    written: registers that were written so far, with whether in this part. carried: those of another part that this one
    reads first. values: how many uniform registers each value takes.
    """

    def __init__(self, shape: Shape, name: str, lifted: frozenset[str] = LIFTED, *, waits: bool = False) -> None:
        """Prepare to read the parts of a shape. name: for messages. lifted: opcodes that it may have. waits: whether
        the code waits at its end until its stores have read their operands."""
        self.lifted = lifted
        self.waits = waits
        self._shape = shape
        self.sm = shape.sm
        self._name = name
        self.written: dict[tuple[RegisterFile, int], bool] = {}
        self.carried: set[tuple[RegisterFile, int]] = set()
        self.general: set[int] = set()
        self.predicates: set[int] = set()
        self.values: list[int] = []
        # By an instruction's bits and the values that it reads: the number of the value that it gives.
        self._known: dict[tuple[int, tuple[int, ...], int], int] = {}
        # Values that S2UR was to bring and that nothing has read yet, of the part that is read.
        self.unread: set[int] = set()
        # By uniform register, the value in it and which of its registers.
        self._uniform: dict[int, tuple[int, int]] = {}

    def part(self, words: Sequence[int], part: str) -> tuple[LiftedWord, ...]:
        """Read one part, with the barrier at its end. part: its name in messages."""
        self.written, self.unread = dict.fromkeys(self.written, False), set()
        halves = np.array([[word & (1 << 64) - 1, word >> 64] for word in words], np.uint64)
        code = decode(halves, self.sm, self._name)
        out: list[LiftedWord] = []
        for index, word in enumerate(words):
            form = code.form(index)
            if word & (1 << STALL.low) - 1 == PMTRIG:
                out.append(LiftedWord(word))
                continue
            if form is None:
                raise self._refusal(f"an instruction that the table lacks, {word:#034x}")
            if OPCODE.get(word) == _BARRIER:
                out += in_place_of(word, out)
                continue
            if self.sets_stack(form, word):
                continue
            self.check(form, word, part)
            named = self.named(form, word)
            out.append(LiftedWord(self.with_constant(form, word), named))
        return tuple(out)

    def _refusal(self, what: str) -> MachineCodeError:
        return MachineCodeError(self._name, f"the probe's code has {what}")

    def sets_stack(self, form: Form, word: int) -> bool:
        """Whether an instruction does nothing but set the stack's address, as every kernel's first one does."""
        writes = [place.field.get(word) for place in form.places if place.writes]
        # From sm_90 on by LDC, before by MOV or IMAD.MOV.
        return _is_always(word) and constant_offset(word) is not None and writes == [_STACK]

    def check(self, form: Form, word: int, part: str) -> None:
        """Raise MachineCodeError for an instruction that has no place in a trampoline."""
        base = form.name.partition(".")[0]
        if base not in self.lifted or form.flow is not Flow.NEXT:
            raise self._refusal(f"{form.name}, which is not put into kernels")
        if form.memory not in (Memory.NONE, Memory.GLOBAL, Memory.CONSTANT):
            raise self._refusal(f"an access of {form.memory.value} memory, {form.name}")
        if part == "entry" and base in {"STG", "RED", "REDG"} and not self.waits:
            raise self._refusal(f"{form.name} at the entry, before whose end its operands might change")
        reads = any(place.reads and place.field.get(word) != _ZERO for place in form.places)
        if base == "HFMA2" and reads and self.lifted is LIFTED:
            raise self._refusal(f"{form.name}, which is known as a move of a constant alone")
        if form.guard is RegisterFile.UNIFORM_PREDICATE and not _is_always(word):
            raise self._refusal(f"{form.name} under a uniform predicate")
        if base == "S2UR" and _SPECIAL.get(word) not in _SPECIAL_SAME:
            raise self._refusal(f"S2UR of a value that lanes may see differently, {_SPECIAL.get(word):#x}")

    def with_constant(self, form: Form, word: int) -> int:
        """Return an instruction after its constant was checked: one of the driver's, or of the probe block."""
        found = constant_offset(word)
        if found is None:
            return word
        shape, base = self._shape, form.name.partition(".")[0]
        indexed = base in {"LDC", "ULDC"} and any(
            place.reads and place.field.file is not RegisterFile.PREDICATE
            and place.field.get(word) not in (_ZERO, _ZERO_UNIFORM)
            for place in form.places
        )  # fmt: skip
        begin = shape.parameter_base
        inside = begin + shape.block_offset <= found < begin + shape.block_offset + shape.block_size
        if _BANK.get(word) or indexed or not (found < begin or inside):
            raise self._refusal(f"{form.name} of a constant that is neither the driver's nor the probe block's")
        return word

    def named(self, form: Form, word: int) -> tuple[Named, ...]:
        """Return the registers that an instruction names, and note what it reads and writes."""
        reads: list[Named] = []
        writes: list[Named] = []
        guard = GUARD.get(word)
        if form.guard is RegisterFile.PREDICATE and guard != ALWAYS:
            reads.append(Named(GUARD, False, RegisterFile.PREDICATE, 1, guard, reads=True))
        for place in form.places:
            number = place.field.get(word)
            if place.field.inverted:
                number = ALWAYS - number
            file = place.field.file
            if file in (RegisterFile.BARRIER, RegisterFile.UNIFORM_PREDICATE):
                if file is RegisterFile.BARRIER or number != ALWAYS:
                    raise self._refusal(f"{form.name} with a {file.value} register")
                continue
            if number == {RegisterFile.GENERAL: _ZERO, RegisterFile.UNIFORM: _ZERO_UNIFORM}.get(file, ALWAYS):
                continue
            one = Named(place.field, place.field.inverted, file, place.count, number, place.reads)
            if place.reads:
                reads.append(one)
            if place.writes:
                writes.append(one)
            if not place.reads and not place.writes:
                raise self._refusal(f"{form.name} with a register of which it is not known what for")
        return self._noted(form, word, reads, writes)

    def _noted(self, form: Form, word: int, reads: list[Named], writes: list[Named]) -> tuple[Named, ...]:
        """Note what an instruction reads and writes; return it with values in the place of uniform registers."""
        for one in reads:
            for number in range(one.number, one.number + one.count):
                register = one.file, number
                if one.file is RegisterFile.GENERAL and number == _STACK:
                    raise self._refusal(f"{form.name} that reads the stack's address")
                if register not in self.written:
                    raise self._refusal(f"{form.name} that reads {one.file.value}{number}, which nothing wrote")
                if not self.written[register]:
                    self.carried.add(register)
                    if one.file is RegisterFile.PREDICATE:
                        raise self._refusal(f"P{number}, which would have to be kept from the entry on")
        out = [self._of_value(one) if one.file is RegisterFile.UNIFORM else one for one in reads]
        written = [one for one in writes if one.file is RegisterFile.UNIFORM]
        if len(written) > 1 or (written and form.name.partition(".")[0] not in SAME_FOR_ALL):
            raise self._refusal(f"{form.name}, which writes a uniform register in which groups of lanes may differ")
        for one in writes:
            for number in range(one.number, one.number + one.count):
                if one.file is RegisterFile.GENERAL and number == _STACK:
                    raise self._refusal(f"{form.name} that changes the stack's address")
                self.written[one.file, number] = True
            if one.file is not RegisterFile.UNIFORM:
                out.append(one)
                continue
            if any(read.file is not RegisterFile.UNIFORM for read in reads):
                raise self._refusal(f"{form.name}, which makes a uniform register of a lane's own")
            values = tuple(read.number for read in out if read.file is RegisterFile.UNIFORM)
            value = self._value(word, [*(read.field for read in reads), one.field], values, one.count)
            if form.name.partition(".")[0] == "S2UR":
                self.unread.add(value)
            for index in range(one.count):
                self._uniform[one.number + index] = value, index
            out.append(replace(one, number=value))
        for one in [*reads, *writes]:
            numbers = range(one.number, one.number + one.count)
            if one.file is RegisterFile.GENERAL:
                self.general.update(numbers)
                if one.number // 4 != numbers[-1] // 4:
                    raise self._refusal(f"{form.name} with registers that are not within four")
            elif one.file is RegisterFile.PREDICATE:
                self.predicates.update(numbers)
        return tuple(out)

    def _of_value(self, one: Named) -> Named:
        """Return what a uniform register stands for: the value's number, with the register's place in it times 256."""
        value, first = self._uniform[one.number]
        self.unread.discard(value)
        if any(self._uniform[one.number + index] != (value, first + index) for index in range(one.count)):
            raise self._refusal("uniform registers of two values as one operand")
        return replace(one, number=value + 256 * first)

    def _value(self, word: int, fields: Sequence[Field], values: tuple[int, ...], count: int) -> int:
        """Return the number of the value that an instruction gives: the same for the same operands."""
        bits = word & (1 << STALL.low) - 1
        for field in fields:
            bits = field.put(bits, 0)
        nth = 0
        # Two that are under way at once would be one register's.
        while (known := self._known.get((bits, values, nth))) in self.unread:
            nth += 1
        if known is None:
            known = self._known[bits, values, nth] = len(self.values)
            self.values.append(count)
        return known


def place_code(
    lifted: Lifted, registers: Registers, block_offset: int, name: str, sums: Collection[int] = ()
) -> Placed:  # fmt: skip
    """Return probe code with a kernel's registers and the place of its probe block.

    block_offset: of the block among the kernel's parameters, in bytes. name: the kernel's. sums: the numbers of those
    that its accesses add to; others the code must not have. Raises MachineCodeError where the kernel has too
    few registers left.
    """
    groups = {group: registers.base + 4 * index for index, group in
              enumerate(sorted({number // 4 for number in lifted.general}))}  # fmt: skip
    general = {number: groups[number // 4] + number % 4 for number in lifted.general}
    # After the code's registers, which begin at a multiple of four: two for each sum, and one that holds 1.
    next_register = registers.base + 4 * len(groups)
    kept = {number: next_register + 2 * index for index, number in enumerate(sorted({*sums}))}
    one = next_register + 2 * len(kept) if kept else -1
    for number, register in kept.items():
        first = lifted.sums[number]
        if first is not None:
            general.update({first: register, first + 1: register + 1})
    if len(lifted.predicates) > len(registers.predicates):
        left, needed = len(registers.predicates), len(lifted.predicates)
        raise MachineCodeError(name, f"has {left} predicates left for {needed} of the probe's")
    predicates = dict(zip(lifted.predicates, registers.predicates, strict=False))
    maps: Mapping[RegisterFile, Mapping[int, int]] = {
        RegisterFile.GENERAL: general, RegisterFile.PREDICATE: predicates,
        RegisterFile.UNIFORM: uniform_numbers(lifted.uniform, registers.uniform, name),
    }  # fmt: skip
    moved = block_offset - lifted.shape.block_offset
    start = lifted.shape.parameter_base + lifted.shape.block_offset
    waits = bool(set(predicates.values()) & registers.shared)

    def part(words: Sequence[LiftedWord]) -> tuple[int, ...]:
        placed = [moved_constant(REUSE.put(renamed(word, maps), 0), start, moved) for word in words]
        return tuple(settled(placed, shares_predicates=waits))

    entry = set_sums({register: lifted.shape.sums[number] for number, register in kept.items()}, one)
    top = max([*general.values(), *(register + 1 for register in kept.values()), one])
    return Placed((*part(lifted.entry), *entry), part(lifted.exit), top, block_offset, kept, one)


def uniform_numbers(values: Sequence[int], free: Sequence[int], name: str) -> dict[int, int]:
    """Return the uniform register of each value, and of each further register of it (``_of_value``). free: in the order
    in which they are taken; a pair begins at an even one."""
    left = dict.fromkeys(free)
    numbers: dict[int, int] = {}
    # Those of several registers first, while there are neighbours.
    for value in sorted(range(len(values)), key=lambda one: -values[one]):
        count = values[value]
        first = next(
            (one for one in left if one % count == 0 and all(one + index in left for index in range(count))), None
        )
        if first is None:
            raise MachineCodeError(name, f"has no uniform registers left for {sum(values)} of the probe's")
        for index in range(count):
            del left[first + index]
            numbers[value + 256 * index] = first + index
    return numbers


def renamed(word: LiftedWord, maps: Mapping[RegisterFile, Mapping[int, int]]) -> int:
    """Return an instruction with a kernel's registers."""
    bits = word.bits
    for one in word.named:
        number = maps[one.file][one.number]
        bits = one.field.put(bits, ALWAYS - number if one.inverted else number)
    return bits


def settled(words: list[int], *, shares_predicates: bool) -> list[int]:
    """Return a part's instructions so that what follows them depends on nothing that is still under way.

    shares_predicates: whether predicates are written that the kernel names: before and after the code what was written
    to them has time to arrive.
    """
    taken = 0
    for word in words:
        taken &= ~WAIT.get(word)
        for field in (WRITE_BARRIER, READ_BARRIER):
            if field.get(word) != NO_BARRIER:
                taken |= 1 << field.get(word)
    out = list(words)
    if out and shares_predicates:
        out.insert(0, idle(control.LONGEST_STALL))
    if taken or (out and shares_predicates):
        out.append(idle(control.LONGEST_STALL if shares_predicates else 1, taken))
    for index, word in enumerate(out[:-1]):
        barriers = {WRITE_BARRIER.get(word), READ_BARRIER.get(word)} - {NO_BARRIER}
        waits = WAIT.get(out[index + 1])
        # A scoreboard can be waited for from two cycles after it was taken.
        if any(waits >> barrier & 1 for barrier in barriers) and STALL.get(word) < 2:
            out[index] = control.with_stall(word, 2)
    return out


def in_place_of(word: int, before: list[LiftedWord]) -> list[LiftedWord]:
    """Return what takes the place of a barrier that is left out, for its cycles and waits: an instruction that does
    nothing, or none where there is nothing before it to be apart from."""
    stall, wait = STALL.get(word), WAIT.get(word)
    return [LiftedWord(idle(max(stall, 1), wait))] if before and (wait or stall > 1) else []


def moved_constant(word: int, start: int, moved: int) -> int:
    """Return an instruction that reads its constant of the probe block elsewhere, by so many bytes. start: of the block
    in the constant bank."""
    offset = constant_offset(word)
    return word if offset is None or offset < start else _OFFSET.put(word, offset + moved)


def constant_offset(word: int) -> int | None:
    """Return where in its constant bank an instruction reads, in bytes; None for one that reads no constant."""
    if _OPERANDS.get(word) not in _CONSTANT_FORMS or OPCODE.get(word) == _BARRIER:
        return None
    return _OFFSET.get(word)


def reads_third_index(words: Sequence[int], sm: int) -> bool:
    """Whether code reads the block's third index on an architecture whose cubins say so. sm: of it, as 90."""
    return sm < _TOLD_UNTIL and any(
        OPCODE.get(word) in _SPECIAL_READS and _SPECIAL.get(word) == _CTAID_Z for word in words
    )


def _is_always(word: int) -> bool:
    """Whether an instruction is executed whatever the predicates are."""
    return GUARD.get(word) == ALWAYS and not NEGATED.get(word)


def packed(words: Sequence[int]) -> bytes:
    """Return instructions as they are stored."""
    return b"".join(word.to_bytes(INSTRUCTION_BYTES, "little") for word in words)
