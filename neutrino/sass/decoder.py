"""The decoder of NVIDIA's machine code: instructions of 16 bytes to registers, control fields and flow.

What the table of the architecture does not have is ``unknown``, by offset, and nothing is said of it. No tool of
NVIDIA's is asked: the tables hold what they said (``docs/machine-code.md``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from neutrino.errors import FormatError
from neutrino.sass.encoding import Encoding, Form, Place, encoding
from neutrino.sass.fields import (
    ALWAYS,
    GUARD,
    INSTRUCTION_BYTES,
    NEGATED,
    NO_BARRIER,
    NO_YIELD,
    READ_BARRIER,
    REUSE,
    STALL,
    WAIT,
    WRITE_BARRIER,
    Field,
)
from neutrino.sass.instruction import Control, Guard, Instruction, Operand, RegisterFile

Words: TypeAlias = NDArray[np.uint64]
"""[n, 2]: the low and the high half of each instruction."""
_Mask: TypeAlias = NDArray[np.unsignedinteger[Any]]
_Value = TypeVar("_Value")

_ZERO = 255
"""The number of the general register that is always zero, RZ."""
_HALF = 64
_P2R, _R2P = "P2R", "R2P"
"""They read and write the predicates of a mask, which is their immediate; nvdisasm marks none of them."""
_MASK_OPCODES = {0x803, 0x804}
"""The forms of the two whose mask is an immediate, at bit 32."""
_KEPT = 2
"""Decoded codes that are kept: a kernel's and its twin's."""
_TABLES = 4
"""Architectures of which something is kept."""
_COLUMNS = {
    RegisterFile.GENERAL: 4, RegisterFile.UNIFORM: 4, RegisterFile.PREDICATE: 1, RegisterFile.UNIFORM_PREDICATE: 1,
}  # fmt: skip
"""Words of 64 bits that a mask of a file's registers has."""


class Code(Sequence[Instruction]):
    """Decoded code. ``code[i]`` is an instruction; columns over all of them are arrays of n rows.

    words: [n, 2]. stall, write_barrier, read_barrier (7: none), wait_mask, reuse: [n] bytes; yields: [n] booleans.
    reads, writes: per register file, masks by number: [n, 4] of 64 bits for GENERAL and UNIFORM, [n] bytes for
    PREDICATE and UNIFORM_PREDICATE; a guard counts as read. unknown: offsets in bytes that the table cannot read: their
    masks are empty and ``code[i]`` raises FormatError.
    """

    def __init__(self, words: Words, table: Encoding, name: str, begin: int = 0) -> None:
        """Decode all words. name: for error messages. begin: of ``decode``."""
        self.words = words
        self.name = name
        self._table = table
        low, high = words[:, 0], words[:, 1]
        self.stall = _bits(high, STALL).astype(np.uint8)
        # The bit says that it does not yield.
        self.yields = _bits(high, NO_YIELD) == np.uint64(0)
        self.write_barrier = _bits(high, WRITE_BARRIER).astype(np.uint8)
        self.read_barrier = _bits(high, READ_BARRIER).astype(np.uint8)
        self.wait_mask = _bits(high, WAIT).astype(np.uint8)
        self.reuse = _bits(high, REUSE).astype(np.uint8)
        self.forms, self._form_of = _forms(low[begin:], high[begin:], table)
        if begin:
            self._form_of = np.concatenate([np.full(begin, len(self.forms), np.intp), self._form_of])
            self.forms.append(None)
        known = self.having(lambda form: form is not None)
        known[:begin] = True
        self.unknown = np.flatnonzero(~known) * INSTRUCTION_BYTES
        self.reads, self.writes = self._masks()

    def __len__(self) -> int:
        return len(self.words)

    @overload
    def __getitem__(self, index: int) -> Instruction: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Instruction]: ...
    def __getitem__(self, index: int | slice) -> Instruction | Sequence[Instruction]:
        """An instruction by its number. Raises FormatError for an unknown one."""
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        return self._instruction(range(len(self))[index])

    def __iter__(self) -> Iterator[Instruction]:
        return (self._instruction(index) for index in range(len(self)))

    @property
    def sm(self) -> int:
        """The number of the architecture, as 90."""
        return self._table.sm

    @property
    def zero_uniform(self) -> int:
        """The number of URZ, the uniform register that is always zero."""
        return self._table.zero_uniform

    def form(self, index: int) -> Form | None:
        """The form of an instruction by its number; None when it is unknown."""
        return self.forms[int(self._form_of[index])]

    def of_each(self, of_form: Sequence[_Value]) -> list[_Value]:
        """Return for every instruction what there is for its form. of_form: in the order of ``forms``."""
        values = np.empty(len(of_form), object)
        values[:] = of_form
        each: list[_Value] = values[self._form_of].tolist()
        return each

    def having(self, has: Callable[[Form | None], bool]) -> NDArray[np.bool_]:
        """Whether each instruction's form has something. has: says so of a form, None of unknown instructions."""
        return np.array([has(form) for form in self.forms], bool)[self._form_of]

    def joined(self, masks: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """Return by form, in the order of ``forms``, the registers of all of its instructions that are chosen. masks:
        such as ``writes`` of a file, [n, 4]."""
        found = np.zeros((len(self.forms), masks.shape[1]), np.uint64)
        np.bitwise_or.at(found, self._form_of[chosen], masks[chosen])
        return found

    def targets(self) -> Mapping[int, int]:
        """Return where branches and calls go, in bytes, by their numbers: of those whose instruction says it."""
        return self._targets

    @functools.cached_property
    def _targets(self) -> Mapping[int, int]:
        found = {}
        branches = np.flatnonzero(self.having(lambda form: form is not None and bool(form.target)))
        for index, (low, high) in zip(branches.tolist(), self.words[branches].tolist(), strict=True):
            form = self.form(index)
            target = _target(form, low | high << _HALF, index * INSTRUCTION_BYTES) if form is not None else None
            if target is not None:
                found[index] = target
        return MappingProxyType(found)

    def _instruction(self, index: int) -> Instruction:
        """Make one instruction's object. Raises FormatError."""
        low, high = (int(half) for half in self.words[index])
        offset = index * INSTRUCTION_BYTES
        form = self.form(index)
        if form is None:
            raise FormatError(
                self.name, offset, "instruction", f"{high:016x}{low:016x}", f"one of the table of {self._table.arch}"
            )
        word = low | high << _HALF
        guard_number, negated = GUARD.get(word), bool(NEGATED.get(word))
        guard = None
        if form.guard is not None and (guard_number != ALWAYS or negated):
            guard = Guard(form.guard, guard_number, negated)
        operands = []
        for place in form.places:
            number = place.field.get(word)
            if place.field.inverted:
                number = ALWAYS - number
            if number != self._nothing(place):
                operands.append(Operand(
                    place.field.file, number + place.field.plus, place.count, place.reads, place.writes, place.printed
                ))  # fmt: skip
        mask = _predicate_mask(form, word)
        if mask:
            writes = form.name.startswith(_R2P)
            operands += [Operand(RegisterFile.PREDICATE, one, 1, not writes, writes) for one in range(7)
                         if mask >> one & 1]  # fmt: skip
        write_barrier, read_barrier = int(self.write_barrier[index]), int(self.read_barrier[index])
        control = Control(
            int(self.stall[index]), bool(self.yields[index]),
            None if write_barrier == NO_BARRIER else write_barrier,
            None if read_barrier == NO_BARRIER else read_barrier,
            int(self.wait_mask[index]), int(self.reuse[index]),
        )  # fmt: skip
        return Instruction(
            offset, low, high, form.opcode, form.name, guard, tuple(operands), control, form.latency, form.memory,
            form.memory_bytes, form.flow, _target(form, word, offset),
        )  # fmt: skip

    def _nothing(self, place: Place) -> int:
        """The number that stands for no register in a place; -1 for none."""
        file = place.field.file
        if file is RegisterFile.GENERAL:
            return _ZERO
        if file is RegisterFile.UNIFORM:
            return self._table.zero_uniform
        return -1 if file is RegisterFile.BARRIER else ALWAYS

    def _masks(self) -> tuple[dict[RegisterFile, _Mask], dict[RegisterFile, _Mask]]:
        """Masks of the registers read and written, by file."""
        count = len(self)
        reads: dict[RegisterFile, _Mask] = {}
        writes: dict[RegisterFile, _Mask] = {}
        for file, columns in _COLUMNS.items():
            reads[file] = np.zeros((count, columns), np.uint64)
            writes[file] = np.zeros((count, columns), np.uint64)
        order = np.argsort(self._form_of, kind="stable")
        bounds = np.searchsorted(self._form_of[order], np.arange(len(self.forms) + 1)).tolist()
        # One operand of all instructions that have it is read together.
        having: dict[Place, list[NDArray[np.intp]]] = {}
        guarded: dict[RegisterFile, list[NDArray[np.intp]]] = {}
        for index, form in enumerate(self.forms):
            if form is None:
                continue
            rows = order[bounds[index] : bounds[index + 1]]
            for place in form.places:
                if place.reads or place.writes:
                    having.setdefault(place, []).append(rows)
            if form.guard is not None:
                guarded.setdefault(form.guard, []).append(rows)
            if form.name.startswith((_P2R, _R2P)):
                named = writes if form.name.startswith(_R2P) else reads
                mask = self.words[rows, 0] >> np.uint64(32) & np.uint64(0x7F)
                named[RegisterFile.PREDICATE][rows, 0] |= mask if form.opcode in _MASK_OPCODES else np.uint64(0x7F)
        for place, lists in having.items():
            self._add(place, np.concatenate(lists), reads if place.reads else None, writes if place.writes else None)
        for file, lists in guarded.items():
            rows = np.concatenate(lists)
            guard = self.words[rows, 0] >> np.uint64(GUARD.low) & np.uint64((1 << GUARD.bits) - 1)
            reads[file][rows, 0] |= (np.uint64(1) << guard) & np.uint64(0x7F)
        for masks in (reads, writes):
            for file in (RegisterFile.PREDICATE, RegisterFile.UNIFORM_PREDICATE):
                masks[file] = masks[file][:, 0].astype(np.uint8)
        return reads, writes

    def _add(
        self, place: Place, rows: NDArray[np.intp], reads: dict[RegisterFile, _Mask] | None,
        writes: dict[RegisterFile, _Mask] | None,
    ) -> None:  # fmt: skip
        """Add the registers of one place to the masks of these rows."""
        field = place.field
        column, at = divmod(field.low, _HALF)
        number = self.words[rows, column] >> np.uint64(at) & np.uint64((1 << field.bits) - 1)
        if field.inverted:
            number = np.uint64(ALWAYS) - number
        there = number != np.uint64(max(self._nothing(place), 0))
        columns = _COLUMNS[field.file]
        first = (rows[there] * columns, number[there] + np.uint64(field.plus))
        for index in range(place.count):
            register = first[1] + np.uint64(index)
            # A group that would leave the file is no instruction; its registers wrap into none.
            inside = register < np.uint64(64 * columns)
            bit = (np.uint64(1) << (register & np.uint64(63)))[inside]
            flat = (first[0] + (register >> np.uint64(6)).astype(np.intp))[inside]
            for masks in (reads, writes):
                if masks is not None:
                    masks[field.file].reshape(-1)[flat] |= bit


def decode(code: bytes | memoryview | Words, sm: int, name: str = "machine code", begin: int = 0) -> Code:
    """Decode machine code. code: bytes, a multiple of 16, or words [n, 2]. sm: of its architecture, as 90.

    name: for error messages. begin: number of the first instruction that is asked for; those before it are left out: of
    no form, though not listed as unknown. Raises ArgumentError for an architecture without a table, FormatError for
    another size. Words that the table does not have are listed in ``Code.unknown``.
    """
    if isinstance(code, np.ndarray):
        return Code(np.ascontiguousarray(code, np.uint64).reshape(-1, 2), encoding(sm), name, begin)
    if len(code) % INSTRUCTION_BYTES:
        raise FormatError(name, 0, "size", f"{len(code)} bytes", f"a multiple of {INSTRUCTION_BYTES}")
    if isinstance(code, bytes):
        return _decode_once(code, sm, name, begin)
    return Code(np.frombuffer(code, "<u8").reshape(-1, 2), encoding(sm), name, begin)


@functools.lru_cache(maxsize=_KEPT)
def _decode_once(code: bytes, sm: int, name: str, begin: int) -> Code:
    """Decode code that several ask for: what makes a twin, what checks it, and what says whether it waits."""
    return Code(np.frombuffer(code, "<u8").reshape(-1, 2), encoding(sm), name, begin)


@functools.lru_cache(maxsize=_TABLES)
def _opcode_masks(table: Encoding) -> Words:
    """The bits of an instruction that say of which form it is, by its opcode."""
    masks = np.zeros((1 << 12, 2), np.uint64)
    masks[:] = (1 << 12) - 1, 0
    for number, opcode in table.opcodes.items():
        masks[number] = opcode.mask & (1 << _HALF) - 1, opcode.mask >> _HALF
    return masks


def _forms(low: Words, high: Words, table: Encoding) -> tuple[list[Form | None], NDArray[np.intp]]:
    """The different forms in code, and the number of each instruction's; its opcode's mask tells forms apart."""
    masks = _opcode_masks(table)
    number = (low & np.uint64(0xFFF)).astype(np.intp)
    key_low, key_high = low & masks[number, 0], high & masks[number, 1]
    order = np.lexsort((key_low, key_high))
    if not len(order):
        return [], np.zeros(0, np.intp)
    sorted_low, sorted_high = key_low[order], key_high[order]
    first = np.ones(len(order), bool)
    first[1:] = (sorted_low[1:] != sorted_low[:-1]) | (sorted_high[1:] != sorted_high[:-1])
    of_word = np.empty(len(order), np.intp)
    of_word[order] = np.cumsum(first) - 1
    keys = zip(sorted_low[first].tolist(), sorted_high[first].tolist(), strict=True)
    return [table.form(one | other << _HALF) for one, other in keys], of_word


def _bits(high: Words, field: Field) -> Words:
    """The values of a field of the high half."""
    values: Words = high >> np.uint64(field.low - _HALF) & np.uint64((1 << field.bits) - 1)
    return values


def _predicate_mask(form: Form, word: int) -> int:
    """The predicates that P2R reads or R2P writes, bit by number; 0 for other instructions."""
    if not form.name.startswith((_P2R, _R2P)):
        return 0
    return word >> 32 & 0x7F if form.opcode in _MASK_OPCODES else 0x7F


def _target(form: Form, word: int, offset: int) -> int | None:
    """The offset to which a branch goes."""
    if not form.target:
        return None
    total, top = 0, 0
    for at, width, power in form.target:
        total |= (word >> at & (1 << width) - 1) << power
        top = power + width
    if total >> top - 1 & 1:
        total -= 1 << top
    return offset + INSTRUCTION_BYTES + total
