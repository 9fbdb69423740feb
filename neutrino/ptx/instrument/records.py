"""Code that stores the records that snippets save: values converted to fields, where they go, how many there were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.abi.probe_block import BLOCK_DYNAMIC_CAP
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import DYNAMIC_CAP, Map
from neutrino.maps.regions import has_counts
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.ptx.instrument.probe_block import ProbeBlock, Slots
from neutrino.ptx.instrument.registers import FLOATING, Guard, Kept, Take, UnsupportedError, Value, bits, guarded
from neutrino.ptx.isa.scalars import WARP_LANES

# PTX ISA, "Floating-Point Constants": how the exact ones begin. They are no operands of moves of bits.
_EXACT_FLOAT = {"0f": "f32", "0d": "f64"}


def converted(value: Value, field: Field, take: Take, lines: list[str]) -> Value:
    """Bring a value into a register from which it can be stored in a field: of the field's width, or a wider one for
    fields of 8 and 16 bits. Returns the register. Appends code to lines.

    Integers are extended or cut, floats converted; a predicate becomes 0 or 1. Raises UnsupportedError for a value that
    no field can hold.
    """
    # There are no registers of 8 bits.
    width = max(field.type.size * 8, 16)
    # Immediates and special registers are moved into a register first: "cvt" takes neither.
    if value.type is None or value.text in SPECIAL_REGISTERS:
        kind = value.type or _EXACT_FLOAT.get(value.text[:2].lower(), f"b{width}")
        name = take(f"b{bits(kind)}")
        lines.append(f"mov.{kind} {name}, {value.text};")
        value = Value(name, kind)
    elif value.type == "pred":
        name = take("b32")
        lines.append(f"selp.u32 {name}, 1, 0, {value.text};")
        value = Value(name, "u32")
    own_width = bits(value.type or "")
    # A store of 8 or 16 bits takes a register of 32.
    if own_width == width or (own_width == 32 and width == 16):
        return value
    name = take(f"b{width}")
    if field.type is ScalarType.F32 and value.type == "f64":
        lines.append(f"cvt.rn.f32.f64 {name}, {value.text};")
    elif field.type is ScalarType.F64 and value.type == "f32":
        lines.append(f"cvt.f64.f32 {name}, {value.text};")
    elif 0 < own_width <= 64:
        # By the field's sign, whatever the value's type.
        letter = "s" if field.type.value[0] == "s" else "u"
        lines.append(f"cvt.{letter}{width}.{letter}{own_width} {name}, {as_bits(value, take, lines)};")
    else:
        raise UnsupportedError(f"a value of type .{value.type} cannot be saved as {field.type.value}")
    return Value(name, f"b{width}")


def copied(value: Value, take: Take, lines: list[str]) -> Value:
    """A copy of the value in a new register of untyped bits. Appends the code to lines."""
    kind = f"b{bits(value.type or '')}"
    name = take(kind)
    lines.append(f"mov.{kind} {name}, {value.text};")
    return Value(name, kind)


def as_bits(value: Value, take: Take, lines: list[str]) -> str:
    """The name of a register with the value that integer instructions take: they refuse floating-point registers.

    It is the value's own register unless that has a floating-point type. Appends code to lines.
    """
    return copied(value, take, lines).text if value.type in FLOATING else value.text


@dataclass
class Code:
    """Inserted instructions, one per entry. lines: those that may stand anywhere; stores: the predicated stores after
    them, which may not stand between a product and a sum that ptxas fuses: it would no longer fuse these."""

    lines: list[str]
    stores: list[str]

    @property
    def all(self) -> list[str]:
        """Everything, in order."""
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
    def kept(self) -> list[Kept]:
        """The counts of saves that the body's code names."""
        return [Kept(name, "u32", "0", "u32") for name in self._counters.values()]

    @property
    def has_counts(self) -> bool:
        """Whether code of the kernel, or of its functions as far as it has been written, counts records."""
        return bool(self._all_counters)

    def store(
        self, index: int, values: list[Value], code: Code, slots: Slots, guard: Guard | None, *, waits: bool,
        ending: bool,
    ) -> None:  # fmt: skip
        """Append to code what saves a record of the index-th map, in the threads that have a slot.

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
        self._block.load_map(index, base, lines, ending=ending)
        cap = str(target.cap)
        if target.cap == DYNAMIC_CAP:
            # Known at a launch only: it is in the probe block.
            cap, first = self._take("b32"), self._take("b64")
            lines += [
                self._block.load("u32", cap, BLOCK_DYNAMIC_CAP),
                f"mul.wide.u32 {first}, {slot.index}, {cap};",
                f"mad.lo.u64 {base}, {first}, {lanes * target.size}, {base};",
            ]
        else:
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
            if target.kind.keeps_last:
                place = self._take("b32")
                is_power_of_two = not target.cap & (target.cap - 1)
                remainder = f"and.b32 {place}, {counter}, {target.cap - 1};"
                lines.append(remainder if is_power_of_two else f"rem.u32 {place}, {counter}, {target.cap};")
            else:
                stores = self._take("pred")
                lines.append(f"setp.lt.and.u32 {stores}, {counter}, {cap}, {takes_part};")
            self._scaled(base, place, lanes * target.size, lines)
            lines.append(f"@{takes_part} add.u32 {counter}, {counter}, 1;")
        for where, kind, text in self.as_few_stores(target, values, lines, waits):
            at = f"[{base}+{where}]" if where else f"[{base}]"
            code.stores.append(f"@{stores} st.global.{kind} {at}, {text};")

    def end(self, slots: Slots, lines: list[str]) -> None:
        """Append the code that writes the counts of records to memory where a thread ends: those of the kernel, and of
        its functions as far as their code has been written. slots: of the thread."""
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
            lines.append(f"@{slot.inside} st.global.u32 [{base}], {counter};")

    def _scaled(self, base: str, index: str, scale: int, lines: list[str]) -> None:
        """Append code for base += index · scale. base: a register of 64 bits; index: one of 32; scale: a constant."""
        # The instruction multiplies 32 bits by 32.
        if scale < 1 << 32:
            lines.append(f"mad.wide.u32 {base}, {index}, {scale}, {base};")
            return
        wide = self._take("b64")
        lines += [f"cvt.u64.u32 {wide}, {index};", f"mad.lo.u64 {base}, {wide}, {scale}, {base};"]

    def as_few_stores(
        self, target: Map, values: list[Value], lines: list[str], waits: bool
    ) -> list[tuple[int, str, str]]:
        """The stores of a record, as few as possible: each its (offset in the record in bytes, type, operand).

        Adjacent fields of 32 bits are paired to one store of 64 bits, and two of 64 to a vector store of 128, where
        the offset is aligned to that size in every record. Appends to lines what brings values into registers. waits:
        as in ``store``.
        """
        single: list[tuple[int, str, str]] = []
        for field, value in zip(target.fields, values, strict=True):
            fitting = converted(value, field, self._take, lines)
            # Floating-point registers do not mix with others in a vector. With waits the program may change a register.
            if waits or fitting.type in FLOATING:
                fitting = copied(fitting, self._take, lines)
            single.append((field.offset, f"b{field.type.size * 8}", fitting.text))
        # Two of 32 bits become one of 64: the upper half at an offset of 8·n + 4, right after the lower.
        paired: list[tuple[int, str, str]] = []
        for offset, kind, text in single:
            if (
                kind == "b32"
                and offset % 8 == 4
                and target.size % 8 == 0
                and paired
                and paired[-1][:2] == (offset - 4, "b32")
            ):
                wide = self._take("b64")
                lines.append(f"mov.b64 {wide}, {{{paired[-1][2]}, {text}}};")
                paired[-1] = (offset - 4, "b64", wide)
            else:
                paired.append((offset, kind, text))
        # Two of 64 bits become a vector store, likewise.
        stores: list[tuple[int, str, str]] = []
        for offset, kind, text in paired:
            if (
                kind == "b64"
                and offset % 16 == 8
                and target.size % 16 == 0
                and stores
                and stores[-1][:2] == (offset - 8, "b64")
            ):
                stores[-1] = (offset - 8, "v2.b64", f"{{{stores[-1][2]}, {text}}}")
            else:
                stores.append((offset, kind, text))
        return stores
