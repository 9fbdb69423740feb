"""Operands of instructions as functions of a wave.

A compiler makes a step of one instruction: it is asked for operands by their text and type, and notes which registers
are read and written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.errors import UnknownInstructionError
from neutrino.emulator.gcn.numbering import EXEC, FLAT_SCRATCH, M0, SGPRS, UPPER_HALVES, VCC, VGPRS, WORD, XNACK_MASK
from neutrino.emulator.gcn.text import Parsed
from neutrino.emulator.gcn.wave import Wave, bits, mask_number

Array = npt.NDArray[Any]
BARRIER, END, RELOAD, YIELD = -1, -2, -3, -4
"""The wave waits at a barrier; has ended; runs other steps for the same instructions; lets others run."""
Scalar = Callable[[Wave], int]
Lanes = Callable[[Wave], Any]
"""Values of the lanes: an array, or a NumPy number that all lanes have."""

SHARED_APERTURE, PRIVATE_APERTURE = 0x10000 << 32, 0x20000 << 32
"""Addresses at which flat instructions see LDS and scratch."""
APERTURE_SIZE = 1 << 32

_NAMED = {
    "vcc": VCC, "vcc_lo": VCC, "vcc_hi": VCC + 1, "exec": EXEC, "exec_lo": EXEC, "exec_hi": EXEC + 1, "m0": M0,
    "flat_scratch": FLAT_SCRATCH, "flat_scratch_lo": FLAT_SCRATCH, "flat_scratch_hi": FLAT_SCRATCH + 1,
    "xnack_mask": XNACK_MASK, "xnack_mask_lo": XNACK_MASK, "xnack_mask_hi": XNACK_MASK + 1,
}  # fmt: skip
_TTMP = 108
_REGISTER = re.compile(r"(v|a|s|ttmp)(?:(\d+)|\[(\d+)(?::(\d+))?\])(?:\.([lh]))?")
_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)")
_FLOAT = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
_INVERSE_TWO_PI = {"f16": 0x3118, "f32": 0x3E22F983, "f64": 0x3FC45F306DC9C882}

TYPES: dict[str, npt.DTypeLike] = {
    "u8": np.uint8, "u16": np.uint16, "i16": np.int16, "f16": np.float16, "b16": np.uint16, "u32": np.uint32,
    "i32": np.int32, "f32": np.float32, "b32": np.uint32, "u64": np.uint64, "i64": np.int64, "f64": np.float64,
    "b64": np.uint64, "bf16": np.uint16,
}  # fmt: skip
_WIDTHS = {"16": 16, "32": 32, "64": 64}


class Register(NamedTuple):
    """file: ``v`` or ``s``. first: its number; accumulation registers follow the vector ones. size: in registers.
    half: 1 for the upper half of a vector register, 0 for the lower, None if the text does not say."""

    file: str
    first: int
    size: int
    half: int | None


def register(text: str) -> Register | None:
    """Return the registers that a text names, None if it is something else."""
    if text in _NAMED:
        return Register("s", _NAMED[text], 2 if text in ("vcc", "exec", "flat_scratch", "xnack_mask") else 1, None)
    match = _REGISTER.fullmatch(text)
    if match is None:
        return None
    file, single, first, last, half = match.groups()
    begin = int(single or first)
    count = int(last) - begin + 1 if last else 1
    if file == "a":
        begin += 256
    elif file == "ttmp":
        begin += _TTMP
    return Register("v" if file in "va" else "s", begin, count, None if half is None else int(half == "h"))


def width(kind: str) -> int:
    """Return the bits of a type."""
    return _WIDTHS.get(kind[-2:], 8)


def constant(text: str, kind: str) -> int | None:
    """Return the bits of a constant operand of a type, None if the text is something else."""
    bits_wide = width(kind)
    if text.startswith(("lit64(", "lit(")):
        text = text[text.index("(") + 1 : -1]
    if _INTEGER.fullmatch(text):
        value = int(text, 0)
        # The literal of a double is its upper half; the inline constants, which are printed as decimals, are not.
        if kind == "f64" and "0x" in text and 0 <= value <= WORD:
            value <<= 32
        return value & (1 << bits_wide) - 1
    if _FLOAT.fullmatch(text):
        form = {16: "f16", 32: "f32", 64: "f64"}[bits_wide]
        if text.startswith("0.159154"):
            return _INVERSE_TWO_PI[form]
        number = np.array(float(text), TYPES[form])
        return int(number.view(f"u{bits_wide // 8}"))
    return None


class Compiler:
    """Makes steps of instructions. processor: such as ``gfx942``. lanes: of a wave. mode: the MODE register's value
    while the steps run. indexed: the operands that M0 indexes, 0 for none.

    reads, writes: registers of the present instruction, as the bits of ``numbering``.
    issues: for the checks of waits, the counter that its results count in, and the registers that they are written to.
    """

    def __init__(self, processor: str, lanes: int, mode: int, indexed: int = 0) -> None:
        """Set up what makes executable steps of instructions of one processor, for waves of 32 or 64 lanes.

        mode: the MODE register's value (rounding, denormal numbers). indexed: the operands that M0 indexes, as bits.
        """
        self.processor = processor
        self.generation = int(processor.split("-", maxsplit=1)[0][3:-2]) if processor[3:-2].isdigit() else 9
        self.lanes = lanes
        self.mode = mode
        self.indexed = indexed
        self.text = ""
        self.reads = self.writes = 0
        self.issues: list[tuple[str, int]] = []
        self.flush32 = not mode >> 4 & 1
        self.flush16 = not mode >> 6 & 1
        self.round32, self.round64 = mode & 3, mode >> 2 & 3

    def unknown(self, reason: str = "") -> UnknownInstructionError:
        """Return the error for the present instruction, which the emulator does not know. reason: what of it; "" for
        all."""
        return UnknownInstructionError(self.text, reason)

    def begin(self, parsed: Parsed) -> None:
        """Begin to compile an instruction: nothing is noted yet of the registers that it reads and writes."""
        self.text = parsed.text
        self.reads = self.writes = 0
        self.issues = []

    def note_read(self, found: Register, count: int, half: int | None = None) -> None:
        """Note, for the checks, that the present instruction reads registers, or halves of one."""
        self.reads |= _places(found, count, half)

    def note_written(self, found: Register, count: int, half: int | None = None) -> None:
        """Note, for the checks, that the present instruction writes registers, or halves of one."""
        self.writes |= _places(found, count, half)

    def vector_registers(self, text: str, count: int, written: bool, half: int | None = None) -> int:
        """Return the number of the first vector register that an operand names, and note that ``count`` from there on
        are read or written. half: which one of it is meant, None for all of it."""
        found = register(text)
        if found is None or found.file != "v":
            raise self.unknown(f"operand {text}")
        (self.note_written if written else self.note_read)(found, count, half)
        return found.first

    def scalar(self, text: str, bits_wide: int = 32) -> Scalar:
        """Return the function for a scalar operand, whose values are from 0 on."""
        value = constant(text, "b64" if bits_wide == 64 else "b32")
        if value is not None:
            return lambda wave: value
        if text == "null":
            return lambda wave: 0
        if text in ("scc", "src_scc"):
            return lambda wave: wave.scc
        if text in ("src_vccz", "vccz"):
            return lambda wave: int((wave.pair(VCC) if wave.lanes == 64 else wave.s[VCC]) == 0)
        if text in ("src_execz", "execz"):
            return lambda wave: int(wave.execute() == 0)
        aperture = {"src_shared_base": SHARED_APERTURE, "src_private_base": PRIVATE_APERTURE}.get(text)
        if aperture is None:
            aperture = {
                "src_shared_limit": SHARED_APERTURE + APERTURE_SIZE - 1,
                "src_private_limit": PRIVATE_APERTURE + APERTURE_SIZE - 1,
            }.get(text)
        if aperture is not None:
            # As a word it is the upper half, which is what addresses differ in.
            shown = aperture if bits_wide == 64 else aperture >> 32
            return lambda wave: shown
        found = register(text)
        if found is None or found.file != "s" or found.first + bits_wide // 32 > SGPRS:
            raise self.unknown(f"operand {text}")
        first = found.first
        self.note_read(found, bits_wide // 32)
        if bits_wide == 64:
            return lambda wave: wave.s[first] | wave.s[first + 1] << 32
        return lambda wave: wave.s[first]

    def signed_scalar(self, text: str, bits_wide: int = 32) -> Scalar:
        """Return the function for a signed scalar operand."""
        read = self.scalar(text, bits_wide)
        half, whole = 1 << bits_wide - 1, 1 << bits_wide

        def signed(wave: Wave) -> int:
            """Return the operand's value as a signed number."""
            value = read(wave)
            return value - whole if value & half else value

        return signed

    def scalar_out(self, text: str, bits_wide: int = 32) -> Callable[[Wave, int], None]:
        """Return the function that writes a scalar operand; what does not fit is cut off."""
        if text == "null":
            return lambda wave, value: None
        found = register(text)
        if found is None or found.file != "s":
            raise self.unknown(f"operand {text}")
        first = found.first
        self.note_written(found, bits_wide // 32)
        if first >= EXEC:

            def write_exec(wave: Wave, value: int) -> None:
                """Write EXEC, or half of it: the mask of active lanes follows."""
                if bits_wide == 64:
                    wave.set_pair(first, value)
                else:
                    wave.s[first] = value & WORD
                wave.set_exec()

            return write_exec
        if bits_wide == 64:

            def write_pair(wave: Wave, value: int) -> None:
                """Write 64 bits to two scalar registers of a wave."""
                wave.s[first] = value & WORD
                wave.s[first + 1] = value >> 32 & WORD

            return write_pair

        def write(wave: Wave, value: int) -> None:
            """Write 32 bits to a scalar register of a wave."""
            wave.s[first] = value & WORD

        return write

    def mask(self, text: str) -> Callable[[Wave], Array]:
        """Return the function for an operand that has a bit for each lane."""
        read = self.scalar(text, self.lanes)
        lanes = self.lanes
        return lambda wave: bits(read(wave), lanes)

    def mask_out(self, text: str) -> Callable[[Wave, Array], None]:
        """Return the function that writes a bit for each lane."""
        write = self.scalar_out(text, self.lanes)
        return lambda wave, mask: write(wave, mask_number(mask))

    def vector(self, text: str, kind: str, half: int = 0, slot: int = 0) -> Lanes:
        """Return the function for an operand of the lanes.

        text: with ``-`` and ``|`` around it, if it has them. kind: such as ``f32``. half: the half of a register that a
        type of 16 bits is read from, unless the text says so. slot: the number of the source, for indexed registers.
        """
        if text.startswith("-") and constant(text, kind) is None:
            return self._negated(self.vector(text[1:], kind, half, slot), kind)
        if text.startswith("neg("):
            return self._negated(self.vector(text[4:-1], kind, half, slot), kind)
        if text.startswith("|"):
            return self._absolute(self.vector(text[1:-1], kind, half, slot), kind)
        if text.startswith("abs("):
            return self._absolute(self.vector(text[4:-1], kind, half, slot), kind)
        dtype = np.dtype(TYPES[kind])
        bits_wide = dtype.itemsize * 8
        found = register(text)
        if found is None or found.file == "s":
            value = constant(text, kind)
            if value is not None:
                if half and bits_wide == 16 and "0x" in text:
                    value = (constant(text, "b32") or 0) >> 16
                number = np.array(value, f"u{bits_wide // 8}").view(dtype)[()]
                return self._flushed(lambda wave: number, kind)
            read = self.scalar(text, max(32, bits_wide))
            unsigned = {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits_wide]
            if bits_wide == 16:
                shift = 16 * half
                return self._flushed(lambda wave: np.uint16(read(wave) >> shift & 0xFFFF).view(dtype), kind)
            return self._flushed(lambda wave: unsigned(read(wave)).view(dtype), kind)
        if found.half is not None:
            half = found.half
        first = found.first
        self.note_read(found, max(1, bits_wide // 32), half if bits_wide == 16 else None)
        if self.indexed >> slot & 1:
            if bits_wide != 32:
                raise self.unknown("indexed registers of other sizes")
            return lambda wave: wave.v[first + (wave.s[M0] & 0xFF)].view(dtype)
        if bits_wide == 16:
            if kind == "f16":
                return self._flushed(lambda wave: wave.hf[first, :, half], kind)
            if kind == "i16":
                return lambda wave: wave.h[first, :, half].view(np.int16)
            return lambda wave: wave.h[first, :, half]
        if bits_wide == 64:
            second = first + 1

            def wide(wave: Wave) -> Any:
                """Return 64-bit values of the lanes, whose words are in two registers."""
                pair = np.empty((wave.lanes, 2), np.uint32)
                pair[:, 0] = wave.v[first]
                pair[:, 1] = wave.v[second]
                return pair.view(dtype)[:, 0]

            return self._flushed(wide, kind)
        if kind == "f32":
            return self._flushed(lambda wave: wave.f[first], kind)
        if kind == "i32":
            return lambda wave: wave.i[first]
        return lambda wave: wave.v[first]

    def _flushed(self, read: Lanes, kind: str) -> Lanes:
        """Return the function for an operand whose denormal numbers are 0, if the mode says so."""
        if not (self.flush32 if kind == "f32" else self.flush16 if kind in ("f16", "f64") else False):
            return read
        return lambda wave: flush(read(wave))

    def _negated(self, read: Lanes, kind: str) -> Lanes:
        """Return the function for an operand with its sign bit flipped. read: the function for the operand itself."""
        if kind[0] == "f":
            return lambda wave: -read(wave)
        sign = np.array(1 << width(kind) - 1, f"u{width(kind) // 8}")[()]
        return lambda wave: (read(wave).view(sign.dtype) ^ sign).view(TYPES[kind])

    def _absolute(self, read: Lanes, kind: str) -> Lanes:
        """Return the function for an operand with its sign bit cleared. read: the function for the operand itself."""
        if kind[0] == "f":
            return lambda wave: np.abs(read(wave))
        rest = np.array((1 << width(kind) - 1) - 1, f"u{width(kind) // 8}")[()]
        return lambda wave: (read(wave).view(rest.dtype) & rest).view(TYPES[kind])

    def vector_out(self, text: str, kind: str, half: int = 0) -> Callable[[Wave, Any], None]:
        """Return the function that writes the lanes of EXEC. half: as ``vector``.

        Results of 16 bits: gfx9 clears the upper half where the lower is written, later ones keep it.
        """
        found = register(text)
        bits_wide = width(kind)
        if found is None or found.file != "v":
            raise self.unknown(f"operand {text}")
        first = found.first
        clears = bits_wide == 16 and self.generation < 10 and found.half is None and not half
        if found.half is not None:
            half = found.half
        self.note_written(found, max(1, bits_wide // 32), half if bits_wide == 16 and not clears else None)
        if self.indexed >> 3 & 1:
            if bits_wide != 32:
                raise self.unknown("indexed registers of other sizes")

            def write_indexed(wave: Wave, value: Any) -> None:
                """Write active lanes of the register that M0 counts from the named one."""
                row = wave.v[first + (wave.s[M0] & 0xFF)].view(TYPES[kind])
                np.copyto(row, value, where=wave.mask)

            return write_indexed
        if bits_wide == 16:
            dtype = np.dtype(TYPES[kind])

            def write_half(wave: Wave, value: Any) -> None:
                """Write one half of a register in active lanes; the other half is cleared on gfx9."""
                mask = wave.mask
                np.copyto(wave.h[first, :, half], np.asarray(value, dtype).view(np.uint16), where=mask)
                if clears:
                    np.copyto(wave.h[first, :, 1], np.uint16(0), where=mask)

            return write_half
        if bits_wide == 64:
            second = first + 1
            dtype = np.dtype(TYPES[kind])

            def write_wide(wave: Wave, value: Any) -> None:
                """Write 64-bit values to two registers in active lanes."""
                raw = np.asarray(value, dtype).view(np.uint64)
                np.copyto(wave.v[first], raw.astype(np.uint32), where=wave.mask)
                np.copyto(wave.v[second], (raw >> np.uint64(32)).astype(np.uint32), where=wave.mask)

            return write_wide
        if kind == "f32":

            def write_float(wave: Wave, value: Any) -> None:
                """Write f32 values to a register in active lanes."""
                if wave.full:
                    wave.f[first] = value
                else:
                    np.copyto(wave.f[first], value, where=wave.mask)

            return write_float
        if kind == "i32":

            def write_signed(wave: Wave, value: Any) -> None:
                """Write i32 values to a register in active lanes."""
                if wave.full:
                    wave.i[first] = value
                else:
                    np.copyto(wave.i[first], value, where=wave.mask)

            return write_signed

        def write(wave: Wave, value: Any) -> None:
            """Write u32 values to a register in active lanes."""
            if wave.full:
                wave.v[first] = value
            else:
                np.copyto(wave.v[first], value, where=wave.mask)

        return write


def flush(value: Any) -> Any:
    """Return floats with zeros, of the same sign, in place of denormal numbers."""
    tiny = np.finfo(value.dtype).tiny
    return np.where(np.abs(value) < tiny, np.copysign(value.dtype.type(0), value), value)


def _places(found: Register, count: int, half: int | None) -> int:
    """Return the bits of registers: lower halves of vector registers, scalar ones, upper halves of vector ones."""
    if found.file == "s":
        return (1 << count) - 1 << VGPRS + found.first
    rows = (1 << count) - 1 << found.first
    if half is not None:
        return rows << UPPER_HALVES if half else rows
    return rows | rows << UPPER_HALVES
