"""Where the addresses of inserted code come from: the values in its registers, and what they were made of.

Inserted code may touch nothing but the probe's memory. So an address is followed back through the instructions that
made it: it may be a sum of what is in the probe block, of what is read through a pointer from there, and of numbers
that are bounded: by an AND with a word of the block, or by the comparison with one under which the access is. How large
the memory is that a word of the block points to, only the host knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from neutrino.sass.encoding import Form
from neutrino.sass.fields import Field
from neutrino.sass.instruction import RegisterFile
from neutrino.sass.twin.hazards import FIRST

_ZERO_REGISTER = 255
_SPECIAL = Field(72, 8)
_ZERO_SPECIAL = 0xFF
_TABLE = Field(72, 8)
"""Of LOP3: its truth table."""
_OPERANDS = Field(9, 3)
_IMMEDIATE_OPERAND = 4
_IMMEDIATE, _MOVED = Field(32, 32), Field(32, 8)
_SIGN = 1 << 63
"""Of an immediate; and of a second operand, that it is negated."""
_NEGATIONS = 1 << 72 | 1 << 75
"""Of the first and the third operand of sums: that they are negated."""
_SHIFTED = frozenset({"LEA", "ULEA"})
"""Sums that have a number of bits where others have the sign of their third operand."""
_FIRST_NEGATION = 1 << 72
_FIRST_PREDICATE = 68
"""Where fields of predicates begin."""
_OFFSET_SIGN = 1 << 63
"""Of a memory instruction: its offset is negative."""
_COLUMNS = {24: 0xF0, 32: 0xCC, 64: 0xAA}
"""Where an operand of LOP3 is → the rows of its truth table in which it is 1."""
_SUMS = frozenset({"IADD3", "IMAD", "LEA", "UIADD3", "UIMAD", "ULEA", "VIADD"})
_MOVES = frozenset({"MOV", "SEL", "SHF", "UMOV", "USHF"})
_ADDRESS, _ADDRESS_REGISTERS = 24, 2
_LOADS = frozenset({"LDC", "ULDC"})
_SECOND, _THIRD = 32, 64
"""Where the second and the third operand are, if they are registers."""
_CONSTANT_IS_THIRD, _CONSTANT_IS_SECOND = 3, 5
"""Forms of operands in which the third or the second one is a constant; in the first of them the second operand is
where else the third is."""
_UNBOUNDED = "under no bound from the probe block"
BLOCK, DRIVER = "the probe block", "the driver's constants"


@dataclass(frozen=True)
class Under:
    """A guard. condition: its number and negation, as in ``Columns.conditions``. predicate: what is in it."""

    condition: int
    predicate: Value | None


@dataclass(frozen=True, eq=False)
class Value:
    """What one instruction left in a register. made_by: the first part of its name; for constants their owner,
    ``BLOCK`` or ``DRIVER``; "" for a value of which either this one or an older one is there. word: the instruction.
    sources: bit of the operand's field → the values in its registers, None for what nobody wrote. under: the guard
    under which it was made, None without one."""

    made_by: str
    word: int
    sources: tuple[tuple[int, tuple[Value | None, ...]], ...] = ()
    under: Under | None = None

    @property
    def constant(self) -> int | None:
        """The number, if it is known and the instruction just moves one: MOV of 32 bits, of RZ, CS2R of zero."""
        if self.made_by == "MOV" and not self.sources:
            if _OPERANDS.get(self.word) == _IMMEDIATE_OPERAND:
                return _IMMEDIATE.get(self.word)
            return 0 if _OPERANDS.get(self.word) == 1 and _MOVED.get(self.word) == _ZERO_REGISTER else None
        return 0 if self.made_by == "CS2R" and _SPECIAL.get(self.word) == _ZERO_SPECIAL else None


def made(form: Form, word: int, values: Mapping[int, Value], constant: str, under: Under | None) -> Value:
    """Return the value that an instruction makes.

    values: by the bit of its register in a mask. constant: whose constant the instruction reads, "" if it reads none.
    under: its guard.
    """
    if constant and is_load(form, word):
        return Value(constant, word, (), under)
    is_third = bool(constant) and _OPERANDS.get(word) == _CONSTANT_IS_THIRD
    sources: list[tuple[int, tuple[Value | None, ...]]] = []
    if constant:
        sources.append((_THIRD if is_third else _SECOND, (Value(constant, word),)))
    for place in form.places:
        field = place.field
        if place.reads and field.file in FIRST:
            number = field.get(word)
            if not _is_nothing(field.file, number):
                bits = range(FIRST[field.file] + number, FIRST[field.file] + number + place.count)
                low = _SECOND if is_third and field.low == _THIRD else field.low
                sources.append((low, tuple(values.get(bit) for bit in bits)))
    return Value(form.name.partition(".")[0], word, tuple(sources), under)


def is_load(form: Form, word: int) -> bool:
    """Whether an instruction that reads a constant does nothing but move it into a register."""
    name = form.name.partition(".")[0]
    if name in _LOADS or _OPERANDS.get(word) not in (_CONSTANT_IS_THIRD, _CONSTANT_IS_SECOND):
        return name in _LOADS
    read = [place for place in form.places if place.reads and not _is_nothing(place.field.file, place.field.get(word))]
    # Of IMAD the constant is added to a product of zeros.
    moves = name == "MOV" or (name == "IMAD" and _OPERANDS.get(word) == _CONSTANT_IS_THIRD)
    return moves and not read


def unsafe(
    form: Form, word: int, values: Mapping[int, Value], bounded: Collection[Value], under: Under | None
) -> str:  # fmt: skip
    """Say what is wrong with where the address of a memory instruction comes from; "" if nothing is.

    bounded: values that are below a bound from the probe block when the instruction is executed. under: its guard.
    """
    of_address: list[Value | None] = []
    has_general = any(
        place.field.file is RegisterFile.GENERAL and place.field.low == _ADDRESS
        and place.field.get(word) != _ZERO_REGISTER for place in form.places if place.reads
    )  # fmt: skip
    for place in form.places:
        field = place.field
        if not place.reads or field.file not in (RegisterFile.GENERAL, RegisterFile.UNIFORM):
            continue
        number = field.get(word)
        read = tuple(values.get(FIRST[field.file] + number + more) for more in range(place.count))
        if field.file is RegisterFile.GENERAL:
            if field.low == _ADDRESS and number != _ZERO_REGISTER:
                if place.count != _ADDRESS_REGISTERS:
                    return "has an address of 32 bits"
                of_address += read
        elif has_general and place.count == _ADDRESS_REGISTERS:
            if not all(value is not None and value.made_by in (BLOCK, DRIVER) for value in read):
                return "has a descriptor that is no constant of the driver's"
        else:
            of_address += read
    if not of_address:
        return "has no address in a register"
    if word & _OFFSET_SIGN:
        return "has a negative offset"
    walk = _Walk(bounded, frozenset([under] if under is not None else []))
    return next((reason for value in of_address if (reason := walk.unsafe(value))), "")


class _Walk:
    """Follows values back to what they were made of.

    bounded: as of ``unsafe``. under: guards that are known to hold.
    """

    def __init__(self, bounded: Collection[Value], under: frozenset[Under]) -> None:
        self.bounded, self.under = bounded, under
        self._fine: set[int] = set()

    def unsafe(self, value: Value | None) -> str:
        """As the function of this name, of a value in the address."""
        if value is None:
            return "has an address of which nobody wrote a part"
        if id(value) in self._fine or value in self.bounded or value.made_by == BLOCK or value.constant == 0:
            return ""
        reason = self._unsafe(value)
        if not reason:
            self._fine.add(id(value))
        return reason

    def _unsafe(self, value: Value) -> str:
        name = value.made_by
        if name == DRIVER:
            return f"has an address made of the driver's constants, {_UNBOUNDED}"
        if name == "":
            ((_, (new, older)),) = value.sources
            reason = _Walk(self.bounded, self.under | {value.under} if value.under else self.under).unsafe(new)
            return reason or ("" if value.under in self.under else self.unsafe(older))
        if name == "LDG":
            # What is read through a pointer from the block is the host's as well.
            parts = [part for low, some in value.sources if low == _ADDRESS for part in some]
            walk = _Walk((), self.under)
            return next((reason for part in parts if (reason := walk.unsafe(part))), "")
        if name in ("LOP3", "ULOP3"):
            return "" if _is_masked(value, self.under) else f"has an address made by {name}, {_UNBOUNDED}"
        if name not in _SUMS and name not in _MOVES:
            return f"has an address made by {name}, {_UNBOUNDED}"
        if value.word & _signs(name, value.word):
            return f"has an address from which {name} takes something away"
        for low, some in value.sources:
            # A choice is between two fine values, whatever decides; a carry is of a sum that is followed, too.
            if low < _FIRST_PREDICATE or name in _SUMS:
                for part in some:
                    reason = self.unsafe(part)
                    if reason:
                        return reason
        return ""


def _is_masked(value: Value, under: frozenset[Under]) -> bool:
    """Whether a logical operation leaves no bit that an operand from the probe block has not."""
    table = _TABLE.get(value.word)
    return any(
        low in _COLUMNS and not table & ~_COLUMNS[low] and not any(_Walk((), under).unsafe(part) for part in parts)
        for low, parts in value.sources
    )


def _signs(name: str, word: int) -> int:
    """Return the bits that would negate an operand of a sum or a move, or give it a negative constant."""
    if name not in _SUMS:
        return _SIGN if _OPERANDS.get(word) == _IMMEDIATE_OPERAND else 0
    return _SIGN | (_FIRST_NEGATION if name in _SHIFTED else _NEGATIONS)


def _is_nothing(file: RegisterFile, number: int) -> bool:
    if file is RegisterFile.GENERAL:
        return number == _ZERO_REGISTER
    return number == (63 if file is RegisterFile.UNIFORM else 7)


def either(value: Value, older: Value | None) -> Value:
    """Return what is in a register after an instruction under a guard. older: the value before."""
    return Value("", 0, ((0, (value, older)),), value.under)
