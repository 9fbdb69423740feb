"""Code that stores the records that snippets save in slots, and values for records elsewhere: converted to fields,
where they go, how many there were."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import Map
from neutrino.maps.regions import has_counts
from neutrino.ptx.analysis.register_values import Sum
from neutrino.ptx.instrument.probe_block import ProbeBlock, Slots
from neutrino.ptx.instrument.registers import FLOATING, Guard, LongLived, Take, UnsupportedError, Value, bits, guarded
from neutrino.ptx.isa.forms import FLOATS, field_for
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.isa.scalars import SPECIAL_REGISTERS, WARP_LANES
from neutrino.ptx.text.inserted import Lines, mem, op, vector

# PTX ISA, "Floating-Point Constants": how the exact ones begin. They are no operands of moves of bits.
_EXACT_FLOAT = {"0f": "f32", "0d": "f64"}
NO_ROOM = "0xffffffff"
"""In place of a chunk's first unit: the chunk is after the end of the region. Records in it are not stored."""
LOST = 8
"""Offset of the count of lost records in the region."""
_SAME_FOR_ALL = frozenset({"vote", "redux"})
"""Instructions that give all lanes together the same, whatever each puts in."""
_OF_LANES = frozenset({"activemask", "match", "shfl", "ld", "atom"})
"""Instructions whose result may differ between lanes even if what they read does not."""
_HALVES = frozenset({"f16", "bf16"})
_FLOAT_FIELDS = frozenset({ScalarType.F32, ScalarType.F64})


def converted(value: Value, field: Field, take: Take, lines: Lines) -> Value:
    """Return a value in a register from which it can be stored in a field of a record. Appends code to lines.

    The register is of the field's width, or wider for fields of 8 and 16 bits. Integers are extended or cut, floats
    converted, and bits without a type are kept; a predicate becomes 0 or 1 (the table is in docs/probes.md). Raises
    UnsupportedError for a value that the field cannot hold.
    """
    _check_field(value, field)
    # There are no registers of 8 bits.
    width = max(field.type.size * 8, 16)
    # Immediates and special registers are moved into a register first: "cvt" takes neither.
    if value.type is None or value.text in SPECIAL_REGISTERS:
        kind = value.type or _EXACT_FLOAT.get(value.text[:2].lower(), f"b{width}")
        name = take(f"b{bits(kind)}")
        lines.append(op(f"mov.{kind}", name, value.text))
        value = Value(name, kind)
    elif value.type == "pred":
        name = take("b32")
        lines.append(op("selp.u32", name, "1", "0", value.text))
        value = Value(name, "u32")
    own_width = bits(value.type or "")
    half = value.used_as if value.used_as in _HALVES else value.type
    if half in _HALVES and field.type in _FLOAT_FIELDS and own_width == 16:
        return _widened(value, half, field, take, lines)
    # A store of 8 or 16 bits takes a register of 32.
    if own_width == width or (own_width == 32 and width == 16):
        return value
    name = take(f"b{width}")
    if field.type is ScalarType.F32 and own_width == 64:
        lines.append(op("cvt.rn.f32.f64", name, value.text))
    elif field.type is ScalarType.F64 and own_width == 32:
        lines.append(op("cvt.f64.f32", name, value.text))
    elif 0 < own_width <= 64:
        # By the field's sign, whatever the value's type.
        letter = "s" if field.type.value[0] == "s" else "u"
        lines.append(op(f"cvt.{letter}{width}.{letter}{own_width}", name, as_bits(value, take, lines)))
    else:
        raise UnsupportedError(f"a value of type .{value.type} cannot be saved as {field.type.value}")
    return Value(name, f"b{width}")


def _check_field(value: Value, field: Field) -> None:
    """Raise UnsupportedError if a field's type cannot hold a value: a float in an integer field, or the reverse, or
    bits too many.

    value: which type it has says the instruction that it is from, else its register.
    """
    kind = value.used_as or value.type
    if kind is None:
        return
    is_field_float = field.type in _FLOAT_FIELDS
    name, field_type = value.name or "a value", f"field '{field.name}' is {field.type.value}"
    is_integer = kind[0] in "us" or kind == "pred"
    if (kind in FLOATS and not is_field_float) or (is_integer and is_field_float):
        helper = value.name.partition(" ")[0]
        bits_hint = f", or save {helper}.bits" if helper and kind != "pred" else ""
        raise UnsupportedError(f"{name} is .{kind}, but {field_type}: make the field {field_for(kind)}{bits_hint}")
    # What is left in a float field are bits without a type.
    if is_field_float and kind not in FLOATS and value.type is not None and bits(value.type) != field.type.size * 8:
        width = bits(value.type)
        right = f"f{width}" if width >= 32 else f"u{width}"
        raise UnsupportedError(f"{name} has {width} bits without a type, but {field_type}: make the field {right}")


def _widened(value: Value, half: str | None, field: Field, take: Take, lines: Lines) -> Value:
    """Convert a 16-bit float to the type of a field, f32 or f64, exactly. half: its type, f16 or bf16."""
    single = widened_half(value.text, half or "", take, lines)
    if field.type is ScalarType.F32:
        return Value(single, "b32")
    double = take("b64")
    lines.append(op("cvt.f64.f32", double, single))
    return Value(double, "b64")


def widened_half(register: str, half: str, take: Take, lines: Lines) -> str:
    """Convert a 16-bit float to f32; return the new register. half: its type, f16 or bf16. Appends the code to lines.
    """
    single = take("b32")
    if half == "bf16":
        # The upper half of a float. "cvt" has bf16 from sm_90 on only.
        zero = take("b16")
        lines += [op("mov.b16", zero, "0"), op("mov.b32", single, vector(zero, register))]
    else:
        lines.append(op("cvt.f32.f16", single, register))
    return single


def copied(value: Value, take: Take, lines: Lines) -> Value:
    """Return a copy of a value in a new register, as bits without a type. Appends the code to lines."""
    kind = f"b{bits(value.type or '')}"
    name = take(kind)
    lines.append(op(f"mov.{kind}", name, value.text))
    return Value(name, kind)


def as_bits(value: Value, take: Take, lines: Lines) -> str:
    """Return a register with a value's bits that integer instructions take, which refuse floating-point registers.

    It is the value's own register unless that has a floating-point type. Appends code to lines.
    """
    return copied(value, take, lines).text if value.type in FLOATING else value.text


@dataclass(frozen=True)
class Saved:
    """What is known of the value that lanes save to one field of a record.

    text: a register that can be stored in the field. is_same: whether all lanes of a group have the same, known when
    the code is written. is_read: they have it since they read it together, as a clock. choices: of an integer that has
    one of two values, known then, these. sum: what an address is the sum of, if that is known. constant: of a constant,
    what is equal for equal ones; None else.
    """

    text: str
    is_same: bool
    is_read: bool
    choices: tuple[int, ...]
    sum: Sum | None
    constant: Hashable = None


@dataclass
class Written:
    """The instructions that were written for a snippet (a probe's code) so far.

    parted: how many of them are before its last label or branch. elected: the registers that have ``ELECTED``.
    """

    instructions: list[Instruction]
    parted: int = 0
    elected: set[str] = dataclasses.field(default_factory=set)

    def is_elected(self, guard: Guard) -> bool:
        """Return whether a guard is ``ELECTED`` itself: true in one lane, whichever, of those that run the snippet."""
        value = Value(guard.register, "pred")
        return not guard.negated and self.moved_from(value, None) in self.elected

    def is_clock(self, value: Value, guard: Guard | None) -> bool:
        """Return whether a value is the clock, read at the same time by all lanes (threads of a warp) that save it
        together.

        That is so if it was read after the last label or branch. guard: of the threads that save.
        """
        return _source(value.text, _is_move, guard, self.instructions[self.parted :]) in {"%clock64", "%clock"}

    def is_constant(self, value: Value, guard: Guard | None) -> bool:
        """Return whether a value is the same constant in all threads for which the guard (predicate) holds.

        It is an immediate, or a register that the last of the instructions that write it sets to one, under the guard
        or none.
        """
        source = _source(value.text, _is_conversion, guard, self.instructions)
        return value.type is None or (value.type != "pred" and source.removeprefix("-")[:1].isdigit())

    def constant(self, value: Value, guard: Guard | None) -> tuple[str, ...] | None:
        """Return a constant's digits and the opcodes that convert them, equal for equal constants; None for others."""
        if not self.is_constant(value, guard):
            return None
        passed: list[str] = []
        source = _source(value.text, _is_conversion, guard, self.instructions, passed)
        return (source, *passed)

    def is_uniform(self, value: Value) -> bool:
        """Return whether a value is known to be the same in all lanes that run the snippet together.

        It was computed after the last label or branch, by instructions without a predicate, from numbers and from what
        votes and reductions over these lanes give.
        """
        found: set[str] = set()
        seen: set[str] = set()
        for instruction in self.instructions[: self.parted]:
            seen.update(instruction.written)
        for instruction in self.instructions[self.parted :]:
            word = instruction.mnemonic.word
            sources = [] if word in _SAME_FOR_ALL else instruction.operands[1:]
            is_same = instruction.predicate is None and word not in _OF_LANES and len(instruction.written) == 1
            is_same = is_same and all(source in found or source[:1].isdigit() for source in sources)
            for name in instruction.written:
                # What is written twice may have been written in some lanes only.
                (found.add if is_same and name not in seen else found.discard)(name)
            seen.update(instruction.written)
        return value.text in found

    def copied_from(self, value: Value, guard: Guard | None) -> str:
        """The register or number that an integer value is a copy of, extended or cut to another width; "" if it was
        computed."""
        return _source(value.text, _is_integer_copy, guard, self.instructions)

    def moved_from(self, value: Value, guard: Guard | None) -> str:
        """Return the register or number that a value is an exact copy of, made by moves alone; "" if it was computed.
        """
        return _source(value.text, _is_move, guard, self.instructions)


def _is_move(instruction: Instruction) -> bool:
    """Return whether an instruction (``mov``) moves a value as it is."""
    return instruction.mnemonic.word == "mov"


def _is_conversion(instruction: Instruction) -> bool:
    """Return whether an instruction moves or converts a value, so that equal values give equal results."""
    return instruction.mnemonic.word in {"mov", "cvt"}


def _is_integer_copy(instruction: Instruction) -> bool:
    """Return whether an instruction copies an integer, to another width at most, and so neither computes nor rounds."""
    word, *types = instruction.parts
    if word == "mov":
        return len(types) == 1 and types[0][0] in "bus"
    return word == "cvt" and len(types) == 2 and all(kind[0] in "us" for kind in types)


def _source(
    text: str, copies: Callable[[Instruction], bool], guard: Guard | None, written: Sequence[Instruction],
    passed: list[str] | None = None,
) -> str:  # fmt: skip
    """Return the constant or register from which a register got its value, through copies, under the guard or none.

    "" where an instruction computed it otherwise. copies: says which instructions are copies. written: the instructions
    so far. passed: gets the opcodes of these copies.
    """
    for instruction in reversed(written):
        if text not in instruction.written:
            continue
        if instruction.operands[0] != text or not copies(instruction):
            return ""
        own = instruction.predicate
        if own is not None and (guard is None or (own, instruction.negated) != (guard.register, guard.negated)):
            return ""
        text = instruction.operands[1]
        if passed is not None:
            passed.append(instruction.opcode)
    return text


def takes_whole(field: Field, value: Value) -> bool:
    """Return whether a field of a record keeps all bits of a value unchanged, without any conversion by ``converted``.
    """
    width = max(field.type.size * 8, 16)
    if value.type == "pred":
        return False
    kind = value.type or _EXACT_FLOAT.get(value.text[:2].lower(), f"b{width}")
    half = value.used_as if value.used_as in _HALVES else kind
    if half in _HALVES and field.type in _FLOAT_FIELDS and bits(kind) == 16:
        return False
    return bits(kind) == width or (bits(kind) == 32 and width == 16)


@dataclass
class Code:
    """Inserted instructions, one per entry. lines: those that may stand anywhere; stores: the predicated stores after
    them, which may not stand between a product and a sum that ptxas fuses: it would no longer fuse these."""

    lines: Lines
    stores: Lines

    @property
    def all(self) -> Lines:
        """All of the code: what may stand anywhere, then the stores."""
        return self.lines + self.stores


class Records:
    """Writes the code for maps that keep records, in one body: storing a record in a thread's slot, and counting them.

    maps: of the probes. prefix: starts every private register. take: gives a new register of a type (``Take``).
    changed: gets the names of registers that the code writes. kernel: for the body of a function that a kernel calls,
    the records of the kernel; else None.
    """

    def __init__(
        self, maps: Sequence[Map], prefix: str, block: ProbeBlock, take: Take, changed: set[str],
        kernel: Records | None,
    ) -> None:  # fmt: skip
        """Set up a writer of the code that stores records of probes in one body. take: gives a new register of a type.
        changed: gets the names of registers that the code writes. kernel: for a called function's body, the kernel's
        writer."""
        self._maps = maps
        self._prefix = prefix
        self._block = block
        self._take = take
        self._changed = changed
        # By the map's index, the registers that count saves: those that the body's code names, and those of the kernel
        # and all its functions.
        self._counters: dict[int, str] = {}
        self._all_counters: dict[int, str] = kernel._all_counters if kernel else {}

    @property
    def long_lived(self) -> list[LongLived]:
        """The registers that count a thread's records and live to its end, as far as the body's code uses them."""
        return [LongLived(name, "u32", "0", "u32") for name in self._counters.values()]

    @property
    def has_counts(self) -> bool:
        """Whether the kernel, or its functions as far as they are written, counts the records that threads save."""
        return bool(self._all_counters)

    def store(
        self, index: int, values: list[Value], code: Code, slots: Slots, guard: Guard | None, *, waits: bool,
        ending: bool,
    ) -> None:  # fmt: skip
        """Append the code that stores a record in the index-th map, in the memory that is this thread's own (its slot).

        values: of the fields, in order. guard: the predicate of the threads that save, None for all. waits: the stores
        will be inserted further down, so that values are copied: the program may change their registers before. ending:
        the code stands where the thread ends.
        """
        target = self._maps[index]
        lines = code.lines
        slot = slots.at(target.level, lines)
        takes_part = guarded(slot.inside, guard, self._take, lines)
        lanes = WARP_LANES if target.level is Level.THREAD else 1
        # The address of the record: an array [slot][cap][lane] of records, see ``maps/regions.py``. At the levels warp
        # and block there is no index of a lane.
        base = self._take("b64")
        self._block.load_map(index, base, lines, ending=ending, users=takes_part)
        self._scaled(base, slot.index, target.cap * lanes * target.size, lines)
        if lanes > 1:
            self._scaled(base, slot.lane, target.size, lines)
        # With counts, the counter is the index of the next record in the slot. Records from cap on are counted and not
        # stored, so that readers know how many are lost; or they replace the oldest ones.
        stores = takes_part
        if has_counts(target):
            counter = self._all_counters.setdefault(index, f"{self._prefix}k{index}")
            self._counters[index] = counter
            self._changed.add(counter)
            place = counter
            if target.cap == 1:
                place = ""
            elif target.kind.keeps_last:
                place = self._take("b32")
                is_power_of_two = not target.cap & (target.cap - 1)
                remainder = op("and.b32", place, counter, str(target.cap - 1))
                lines.append(remainder if is_power_of_two else op("rem.u32", place, counter, str(target.cap)))
            else:
                stores = self._take("pred")
                lines.append(op("setp.lt.and.u32", stores, counter, str(target.cap), takes_part))
            if place:
                self._scaled(base, place, lanes * target.size, lines)
            lines.append(op("add.u32", counter, counter, "1", when=takes_part))
        for where, kind, text in self.as_few_stores(target, values, lines, waits):
            at = f"[{base}+{where}]" if where else f"[{base}]"
            code.stores.append(op(f"st.global.{kind}", at, text, when=stores))

    def end(self, slots: Slots, lines: Lines) -> None:
        """Append the code that writes the counts of a thread's records to memory where the thread ends.

        Those of the kernel, and of its functions as far as their code has been written. slots: of the thread.
        """
        # The code names all counters, also those that only other bodies wrote.
        self._counters = dict(self._all_counters)
        for index, counter in self._counters.items():
            target = self._maps[index]
            slot = slots.at(target.level, lines)
            base = self._take("b64")
            self._block.load_map(index, base, lines, counts=True, ending=True)
            lanes = WARP_LANES if target.level is Level.THREAD else 1
            # Each count is 4 bytes.
            self._scaled(base, slot.index, 4 * lanes, lines)
            if lanes > 1:
                self._scaled(base, slot.lane, 4, lines)
            lines.append(op("st.global.u32", mem(base), counter, when=slot.inside))

    def _scaled(self, base: str, index: str, scale: int, lines: Lines) -> None:
        """Append code for base += index · scale. base: a register of 64 bits; index: one of 32; scale: a constant."""
        # The instruction multiplies 32 bits by 32.
        if scale < 1 << 32:
            lines.append(op("mad.wide.u32", base, index, str(scale), base))
            return
        wide = self._take("b64")
        lines += [op("cvt.u64.u32", wide, index), op("mad.lo.u64", base, wide, str(scale), base)]

    def fitting(self, target: Map, values: list[Value], lines: Lines, waits: bool) -> list[Value]:
        """Return the values of a record in registers from which they can be stored in its fields. Appends code to
        lines.

        waits: the stores come further down, so that values are copied.
        """
        fitting = []
        for field, value in zip(target.fields, values, strict=True):
            register = converted(value, field, self._take, lines)
            # Floating-point registers do not mix with others in a vector. With waits the program may change a register.
            if waits or register.type in FLOATING:
                register = copied(register, self._take, lines)
            fitting.append(register)
        return fitting

    def as_few_stores(
        self, target: Map, values: list[Value], lines: Lines, waits: bool
    ) -> list[tuple[int, str, str]]:
        """Return as few stores as possible that write a record: each is its offset in the record in bytes, type and
        operand.

        Adjacent fields of 32 bits are paired to one store of 64 bits, and two of 64 to a vector store of 128, where the
        offset is aligned to that size in every record. Appends to lines what brings values into registers. waits: the
        stores come further down, so that values are copied.
        """
        single = [
            (field.offset, f"b{field.type.size * 8}", fitting.text)
            for field, fitting in zip(target.fields, self.fitting(target, values, lines, waits), strict=True)
        ]
        return in_few_stores(single, target.size, self._take, lines)


def in_few_stores(
    single: Sequence[tuple[int, str, str]], size: int, take: Take, lines: Lines
) -> list[tuple[int, str, str]]:
    """Merge stores of a record's fields into fewer, wider ones, where they are side by side and aligned.

    single: the store of each field: offset in bytes, type, operand. size: of a record; records are at multiples of it.
    """
    # Two of 32 bits become one of 64: the upper half at an offset of 8·n + 4, right after the lower.
    paired: list[tuple[int, str, str]] = []
    for offset, kind, text in single:
        if kind == "b32" and offset % 8 == 4 and size % 8 == 0 and paired and paired[-1][:2] == (offset - 4, "b32"):
            wide = take("b64")
            lines.append(op("mov.b64", wide, vector(paired[-1][2], text)))
            paired[-1] = (offset - 4, "b64", wide)
        else:
            paired.append((offset, kind, text))
    # Two of 64 bits become a vector store, likewise.
    stores: list[tuple[int, str, str]] = []
    for offset, kind, text in paired:
        if kind == "b64" and offset % 16 == 8 and size % 16 == 0 and stores and stores[-1][:2] == (offset - 8, "b64"):
            stores[-1] = (offset - 8, "v2.b64", f"{{{stores[-1][2]}, {text}}}")
        else:
            stores.append((offset, kind, text))
    return stores
