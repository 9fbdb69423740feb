"""Operands of an instruction as functions of a warp, with the registers that they touch noted."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tests.sass_machine.lanes import lanes_of
from tests.sass_machine.text import Parsed, Text, UnknownMachineCodeError
from tests.sass_machine.timing import Use

if TYPE_CHECKING:
    from tests.sass_machine.warp import Warp

Lanes = NDArray[Any]
Get = Callable[["Warp"], Lanes]
Put = Callable[["Warp", list[Lanes], Lanes], None]
_ZERO = {"R": 255, "UR": 63, "P": 7, "UP": 7}
U32, U64, I64 = np.uint32, np.uint64, np.int64
_HALVES = {"H0_H0", "H1_H1", "H1_H0"}
_BYTES = {"B0": 0, "B1": 8, "B2": 16, "B3": 24}


class Operands:
    """What makes an instruction's function. uses, writes: registers touched so far. taken: parts of the name that mean
    something to who asked for them; what nobody asks for is not known."""

    def __init__(self, parsed: Parsed, word: int) -> None:
        self.parsed = parsed
        self.word = word
        self.uniform = parsed.name in UNIFORM
        self.name = parsed.name[1:] if self.uniform else parsed.name
        self.file = "UR" if self.uniform else "R"
        self.predicate_file = "UP" if self.uniform else "P"
        self.operands = list(parsed.operands)
        self.parts = list(parsed.parts)
        self.uses: list[Use] = []
        self.writes: list[tuple[str, int]] = []

    def unknown(self, why: str) -> UnknownMachineCodeError:
        """The error that it is not known."""
        return UnknownMachineCodeError(f"{self.parsed.text}: {why}")

    # -- the name

    def has(self, *parts: str) -> bool:
        """Whether the name has one of these parts, which are then taken."""
        found = [part for part in parts if part in self.parts]
        for part in found:
            self.parts.remove(part)
        return bool(found)

    def one_of(self, default: str, *parts: str) -> str:
        """The part of these that the name has."""
        for part in parts:
            if self.has(part):
                return part
        return default

    def finish(self) -> None:
        """Raise UnknownMachineCodeError for what nobody has asked for."""
        if self.parts or self.operands:
            left = [*self.parts, *(one.text for one in self.operands)]
            raise self.unknown(f"{', '.join(left)} means nothing here")

    # -- operands

    def take(self, *kinds: str) -> Text:
        """The next operand, of one of these kinds."""
        if not self.operands or (kinds and self.operands[0].kind not in kinds):
            raise self.unknown(f"no {' or '.join(kinds) or 'operand'} is where it should be")
        return self.operands.pop(0)

    def next_is(self, *kinds: str) -> bool:
        """Whether the next operand is of one of these kinds."""
        return bool(self.operands) and self.operands[0].kind in kinds

    def use(self, file: str, number: int, count: int, *, third: bool = False) -> None:
        """Note registers that are read."""
        # A group may begin with the register that is always zero: then there is none.
        if number != _ZERO[file]:
            self.uses.append(Use(tuple((file, number + at) for at in range(count)), third))

    def _is_third(self, one: Text) -> bool:
        mask = 0xFF if one.kind == "R" else 0x3F
        return (self.word >> 64 & mask) == one.number and not any(rest.kind in ("R", "UR") for rest in self.operands)

    def bits(self, *, plain: bool = False, signs: str = "-~") -> Get:
        """The next operand of 32 bits; signed as the text says it. plain: without any sign or part."""
        one = self.take("R", "UR", "imm", "float", "c")
        if one.parts or one.absolute or (one.sign and (plain or one.sign not in signs)):
            raise self.unknown(f"what {one.text} means here")
        raw = self.raw(one)
        if one.sign == "-":
            return lambda warp: np.negative(raw(warp))
        if one.sign == "~":
            return lambda warp: np.invert(raw(warp))
        return raw

    def signed(self) -> tuple[Get, str]:
        """The next operand of 32 bits as it is, and its sign."""
        one = self.take("R", "UR", "imm", "c")
        if one.parts or one.absolute:
            raise self.unknown(f"what {one.text} means here")
        return self.raw(one), one.sign

    def raw(self, one: Text) -> Get:
        """An operand of 32 bits, without its sign."""
        if one.kind in ("R", "UR"):
            number = one.number
            self.use(one.kind, number, 1, third=self._is_third(one))
            return (lambda warp: warp.r[number]) if one.kind == "R" else (lambda warp: warp.ur[number])
        if one.kind in ("imm", "float"):
            value = U32(one.number & 0xFFFFFFFF) if one.kind == "imm" else U32(self.word >> 32 & 0xFFFFFFFF)
            return lambda warp: value
        return self.constant(one, 1)[0]

    def constant(self, one: Text, words: int) -> list[Get]:
        """Words of a constant."""
        bank, offset, base = one.bank, one.number, one.base
        if base is None and one.uniform is None:
            return [lambda warp, at=offset + 4 * word: warp.constant(bank, at) for word in range(words)]
        file = "R" if base is not None else "UR"
        number = base if base is not None else one.uniform
        self.use(file, number, 1)

        def found(warp: Warp, more: int) -> Lanes:
            at = (warp.r if file == "R" else warp.ur)[number].astype(I64) + offset + more
            # Of lanes that do not take part the register may hold anything.
            taking = np.broadcast_to(lanes_of(warp.executing), at.shape) if len(at) > 1 else np.ones(1, bool)
            values = [warp.constant(bank, int(one)) if takes else 0 for one, takes in zip(at, taking, strict=True)]
            return np.array(values, U32)

        return [lambda warp, more=4 * word: found(warp, more) for word in range(words)]

    def part_of_constant(self, one: Text, size: int, extend: Callable[[Lanes], Lanes]) -> Get:
        """A byte or two of a constant. extend: makes words of them."""
        bank, offset, base, uniform = one.bank, one.number, one.base, one.uniform
        if base is not None:
            self.use("R", base, 1)
        if uniform is not None:
            self.use("UR", uniform, 1)

        def get(warp: Warp) -> Lanes:
            at = np.full(1, offset, I64)
            at = at + warp.r[base].astype(I64) if base is not None else at
            at = at + warp.ur[uniform].astype(I64) if uniform is not None else at
            taking = np.broadcast_to(lanes_of(warp.executing), at.shape) if len(at) > 1 else np.ones(1, bool)
            found = [
                int(warp.constant(bank, int(place) // 4 * 4)) >> 8 * (int(place) % 4) if takes else 0
                for place, takes in zip(at, taking, strict=True)
            ]  # fmt: skip
            return extend(np.array(found, U64).astype(U32) & U32((1 << 8 * size) - 1))

        return get

    def words(self, count: int) -> list[Get]:
        """The next operand, of so many words."""
        one = self.take("R", "UR", "c", "imm")
        if one.sign or one.parts or one.absolute:
            raise self.unknown(f"what {one.text} means here")
        return self.words_of(one, count)

    def words_of(self, one: Text, count: int) -> list[Get]:
        """An operand's words."""
        if one.kind == "c":
            return self.constant(one, count)
        if one.kind == "imm":
            parts = [U32(one.number >> 32 * at & 0xFFFFFFFF) for at in range(count)]
            return [lambda warp, part=part: part for part in parts]
        number, file = one.number, one.kind
        self.use(file, number, count, third=self._is_third(one))
        numbers = [number if number == _ZERO[file] else number + at for at in range(count)]
        if file == "R":
            return [lambda warp, at=at: warp.r[at] for at in numbers]
        return [lambda warp, at=at: warp.ur[at] for at in numbers]

    def pair(self) -> Get:
        """The next operand, of 64 bits."""
        one = self.take("R", "UR", "c", "imm")
        if one.parts and one.parts != ("64",):
            raise self.unknown(f"what {one.text} means here")
        low, high = self.words_of(one, 2)

        def get(warp: Warp) -> Lanes:
            value = np.asarray(low(warp)).astype(U64) | np.asarray(high(warp)).astype(U64) << U64(32)
            return np.negative(value) if one.sign == "-" else ~value if one.sign == "~" else value

        return get

    def half_floats(self, *, bf16: bool = False) -> Get:
        """The next operand, two floating-point numbers of 16 bits, in 64: [2, lane], the low one first."""
        one = self.take("R", "UR", "imm", "float", "c")
        halves = [part for part in one.parts if part in _HALVES]
        if set(one.parts) - _HALVES or one.sign == "~" or one.kind == "float":
            raise self.unknown(f"what {one.text} means here")
        raw = self.raw(one)
        low, high = {"H0_H0": (0, 0), "H1_H1": (16, 16)}.get(halves[0] if halves else "", (0, 16))

        def get(warp: Warp) -> Lanes:
            value = np.asarray(raw(warp))
            both = np.stack(np.broadcast_arrays(value >> U32(low) & U32(0xFFFF), value >> U32(high) & U32(0xFFFF)))
            wide = (both << U32(16)).view(np.float32) if bf16 else both.astype(np.uint16).view(np.float16)
            number = wide.astype(np.float64)
            number = np.abs(number) if one.absolute else number
            return np.negative(number) if one.sign else number

        return get

    def float32(self) -> Get:
        """The next operand, a floating-point number of 32 bits."""
        one = self.take("R", "UR", "imm", "float", "c")
        if one.parts or one.sign == "~":
            raise self.unknown(f"what {one.text} means here")
        raw = self.raw(one)
        # An immediate's bits have its sign.
        sign, absolute = one.sign if one.kind not in ("imm", "float") else "", one.absolute

        def get(warp: Warp) -> Lanes:
            value = np.asarray(raw(warp))
            if absolute:
                value = value & U32(0x7FFFFFFF)
            if sign:
                value = value ^ U32(0x80000000)
            return value.view(np.float32)

        return get

    def float64(self) -> Get:
        """The next operand, a floating-point number of 64 bits."""
        one = self.take("R", "UR", "imm", "float", "c")
        if one.parts or one.sign == "~":
            raise self.unknown(f"what {one.text} means here")
        if one.kind in ("imm", "float"):
            value = np.float64(struct.unpack("<d", struct.pack("<Q", (self.word >> 32 & 0xFFFFFFFF) << 32))[0])
            return lambda warp: value
        low, high = self.words_of(one, 2)

        def get(warp: Warp) -> Lanes:
            value = np.asarray(low(warp)).astype(U64) | np.asarray(high(warp)).astype(U64) << U64(32)
            if one.absolute:
                value = value & U64((1 << 63) - 1)
            if one.sign:
                value = value ^ U64(1 << 63)
            return value.view(np.float64)

        return get

    def predicate(self) -> Get:
        """The next operand, a predicate that is read."""
        one = self.take("P", "UP")
        number, file = one.number, one.kind
        self.use(file, number, 1)
        get = (lambda warp: warp.p[number]) if file == "P" else (lambda warp: warp.up[number])
        return (lambda warp: ~get(warp)) if one.sign == "!" else get

    # -- results

    def result(self, words: int = 1) -> Put:
        """The next operand, to which words are written: put(warp, values, mask)."""
        one = self.take("R", "UR")
        if one.sign or one.parts:
            raise self.unknown(f"what {one.text} means here")
        number, file = one.number, one.kind
        if number == _ZERO[file]:
            return lambda warp, values, mask: None
        self.writes += [(file, number + at) for at in range(words)]

        def put(warp: Warp, values: list[Lanes], mask: Lanes) -> None:
            rows = warp.r if file == "R" else warp.ur
            # Before any is written: it may be an operand of another word.
            kept = [np.array(value, U32) for value in values]
            for at, value in enumerate(kept):
                if file == "UR":
                    rows[number + at, 0] = value.reshape(-1)[0]
                else:
                    np.copyto(rows[number + at], value, where=mask)

        return put

    def predicate_result(self) -> Callable[[Warp, Lanes, Lanes], None]:
        """The next operand, a predicate that is written."""
        one = self.take("P", "UP")
        number, file = one.number, one.kind
        if one.sign:
            raise self.unknown(f"{one.text} is written")
        if number == 7:
            return lambda warp, value, mask: None
        self.writes.append((file, number))

        def put(warp: Warp, value: Lanes, mask: Lanes) -> None:
            if file == "UP":
                warp.up[number, 0] = np.asarray(value).reshape(-1)[0]
            else:
                np.copyto(warp.p[number], value, where=mask)

        return put

    # -- addresses

    def address(self, *, wide: bool = False) -> Callable[[Warp], Lanes]:
        """The next operand, an address, of 64 bits where it names a pair, or always."""
        one = self.take("mem")
        one = dataclasses.replace(one, wide=one.wide or (wide and one.descriptor is None))
        if one.descriptor is not None:
            self.use("UR", one.descriptor, 2, third=(self.word >> 64 & 0x3F) == one.descriptor)
        base, uniform, offset = one.base, one.uniform, one.number
        if base is not None:
            self.use("R", base, 2 if one.wide else 1)
        if uniform is not None:
            wide = one.wide_uniform or (one.wide or one.descriptor is not None)
            self.use("UR", uniform, 2 if wide else 1)

        def get(warp: Warp) -> Lanes:
            total = np.full(32, offset & (1 << 64) - 1, U64)
            if base is not None and base != 255:
                total = total + warp.r[base].astype(U64)
                if one.wide:
                    total = total + (warp.r[base + 1].astype(U64) << U64(32))
            if uniform is not None and uniform != 63:
                total = total + warp.ur[uniform].astype(U64)
                if wide:
                    total = total + (warp.ur[uniform + 1].astype(U64) << U64(32))
            return total if one.wide or one.descriptor is not None else total & U64(0xFFFFFFFF)

        return get


UNIFORM = frozenset({
    "UIADD3", "UIMAD", "ULOP3", "USHF", "ULEA", "USEL", "UISETP", "UMOV", "UPRMT", "UPLOP3", "UPOPC", "UFLO", "UBREV",
    "UBMSK", "USGXT", "UIABS",
})  # fmt: skip
"""Opcodes of the uniform datapath that are as those without the U."""
