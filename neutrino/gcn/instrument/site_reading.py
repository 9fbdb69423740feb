"""Reads operands of the program's instructions into values of a snippet, and adds up addresses."""

from __future__ import annotations

import re
import struct

from neutrino.gcn.instrument.code import Code, Mask, Scalar, Value, Vector
from neutrino.gcn.instrument.site_operands import NoValueError, Words
from neutrino.ir.operands import Constant
from neutrino.ir.types import Type

_REGISTERS = re.compile(r"([sva])(?:(\d+)|\[(\d+):(\d+)\])")
_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)")
_FLOAT = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")
_WORDS_OF = {
    "exec": ("exec_lo", "exec_hi"), "vcc": ("vcc_lo", "vcc_hi"), "flat_scratch": ("flat_scratch_lo", "flat_scratch_hi"),
    "src_shared_base": None, "src_shared_limit": None, "src_private_base": None, "src_private_limit": None,
    "xnack_mask": ("xnack_mask_lo", "xnack_mask_hi"),
}  # fmt: skip
_SINGLE = re.compile(r"m0|(?:vcc|exec|flat_scratch|xnack_mask)_(?:lo|hi)|ttmp\d+")
_TTMP_RANGE = re.compile(r"ttmp\[(\d+):(\d+)\]")
_LETTERS = "xyzw"
_FORMATS = {"f16": "<e", "f32": "<f", "f64": "<d"}
_U32 = 0xFFFF_FFFF


class Reader:
    """Reads operands. code: what the instructions go to."""

    def __init__(self, code: Code) -> None:
        """Begin a snippet's beginning."""
        self._code = code
        self._vcc: Scalar | None = None

    def copy_vcc(self) -> None:
        """Append code that copies VCC, which additions overwrite, to registers of the snippet, to be read there."""
        self._vcc = self._code.scalar(2)
        self._code.emit(f"s_mov_b64 {self._vcc.text}, vcc")

    # Whole operands

    def read(self, words: Words, element: str | None, lacks: NoValueError) -> Value:
        """Return where an element of an operand of the probed instruction is; code that takes it apart is appended.

        Raises what ``lacks`` returns if the operand has no such element, or it is not known.
        """
        if words.is_mask:
            if element is not None:
                raise lacks
            return self._mask(words.text)
        texts = self._word_texts(words.text)
        if texts is None:
            if element is not None:
                raise lacks
            return _constant(words, lacks)
        unit = words.unit
        if element is None:
            if len(texts) == 2 and unit == 1 and words.is_whole:
                unit = 2
            chosen = texts[:unit]
        else:
            place = _LETTERS.find(element) if element in _LETTERS else int(element) if element.isdecimal() else -1
            chosen = texts[unit * place : unit * (place + 1)] if place >= 0 else []
        if len(chosen) != unit:
            raise lacks
        value = self._of_words(chosen)
        if words.shift or words.bits < 32:
            value = self._part(value, words.shift, words.bits)
        if words.absolute or words.negative:
            value = self._signed(value, words, lacks)
        return value

    def _word_texts(self, text: str) -> list[str] | None:
        """Return the names of an operand's registers, word by word; None for a constant."""
        match = _REGISTERS.fullmatch(text)
        if match is not None:
            first, last = (int(match[2]),) * 2 if match[2] else (int(match[3]), int(match[4]))
            return [f"{match[1]}{number}" for number in range(first, last + 1)]
        if text in ("vcc", "vcc_lo", "vcc_hi") and self._vcc is not None:
            words = [self._vcc.word(0), self._vcc.word(1)]
            return words if text == "vcc" else words[:1] if text == "vcc_lo" else words[1:]
        if _SINGLE.fullmatch(text):
            return [text]
        match = _TTMP_RANGE.fullmatch(text)
        if match is not None:
            return [f"ttmp{number}" for number in range(int(match[1]), int(match[2]) + 1)]
        pair = _WORDS_OF.get(text)
        return list(pair) if pair else None

    def _of_words(self, texts: list[str]) -> Value:
        """Return registers as a value of a probe: the program's own, or copies of those that no value can be in
        (accumulators, ``vcc``)."""
        code = self._code
        numbers = [int(text[1:]) for text in texts if text[1:].isdecimal() and text[0] in "sv"]
        if len(numbers) == len(texts):
            return (Vector if texts[0][0] == "v" else Scalar)(numbers[0], len(numbers))
        if texts[0][0] == "a" and texts[0][1:].isdecimal():
            place: Vector | Scalar = code.vector(len(texts))
            code.emit(*(f"v_accvgpr_read_b32 {place.word(word)}, {text}" for word, text in enumerate(texts)))
            return place
        place = code.scalar(len(texts))
        code.emit(*(f"s_mov_b32 {place.word(word)}, {text}" for word, text in enumerate(texts)))
        return place

    def _mask(self, text: str) -> Mask:
        """Append code that reads a set of lanes from SGPRs; lanes that are not active are left out."""
        code, machine = self._code, self._code.machine
        texts = self._word_texts(text) or []
        source = text if not text.startswith("vcc") or self._vcc is None else _range(texts)
        place = code.mask()
        code.emit(f"s_and_{machine.mask} {place.text}, {source}, {machine.exec}")
        return place

    def _part(self, value: Value, shift: int, bits: int) -> Value:
        """Append code that takes some bits of a register, extended by zeros."""
        code = self._code
        if isinstance(value, Vector):
            place: Vector | Scalar = code.vector()
            code.emit(
                f"v_lshrrev_b32_e32 {place.text}, 16, {value.word(0)}" if shift
                else f"v_and_b32_e32 {place.text}, {(1 << bits) - 1:#x}, {value.word(0)}"
            )  # fmt: skip
            if shift and bits < 16:
                code.emit(f"v_and_b32_e32 {place.text}, {(1 << bits) - 1:#x}, {place.text}")
            return place
        assert isinstance(value, Scalar)
        place = code.scalar()
        code.emit(f"s_bfe_u32 {place.text}, {value.word(0)}, {bits << 16 | shift:#x}")
        return place

    def _signed(self, value: Value, words: Words, lacks: NoValueError) -> Value:
        """Append code that gives a float the sign with which the instruction takes it: none, or the other one."""
        size = {"f16": 16, "f32": 32, "f64": 64}.get(words.type)
        assert isinstance(value, (Vector, Scalar))
        if size is None or value.words != max(1, size // 32):
            raise lacks
        code = self._code
        sign = 1 << (size - 1) % 32
        is_vector = isinstance(value, Vector)
        place: Vector | Scalar = code.vector(value.words) if is_vector else code.scalar(value.words)
        last = value.words - 1
        for word in range(last):
            code.emit(f"{'v_mov_b32_e32' if is_vector else 's_mov_b32'} {place.word(word)}, {value.word(word)}")
        source, to = value.word(last), place.word(last)
        for is_wanted, name, number in ((words.absolute, "and", sign - 1), (words.negative, "xor", sign)):
            if is_wanted:
                code.emit(
                    f"v_{name}_b32_e32 {to}, {number:#x}, {source}" if is_vector
                    else f"s_{name}_b32 {to}, {source}, {number:#x}"
                )  # fmt: skip
                source = to
        return place

    # Parts of addresses

    def vector_pair(self, text: str) -> Vector:
        """Return the two VGPRs that have an address, as the operand names them."""
        value = self._of_words(self._word_texts(text) or [])
        assert isinstance(value, Vector)
        assert value.words == 2
        return value

    def vector_word(self, text: str) -> Vector:
        """Return the VGPR that has an offset, as the operand names it."""
        value = self._of_words(self._word_texts(text) or [])
        assert isinstance(value, Vector)
        assert value.words == 1
        return value

    def pair(self, text: str) -> Scalar:
        """Return the two SGPRs that have an address, as the operand names them."""
        value = self._of_words(self._word_texts(text) or [])
        assert isinstance(value, Scalar)
        assert value.words == 2
        return value

    def scalar_text(self, text: str) -> str:
        """Return a scalar offset as an operand of scalar instructions; "" for none."""
        if text in ("", "0", "off", "null"):
            return ""
        words = self._word_texts(text)
        return text if words is None else words[0]

    def buffer_base(self, text: str) -> Scalar:
        """Append code that takes the address where a buffer begins out of its descriptor: 48 bits."""
        words = self._word_texts(text)
        assert words is not None
        assert len(words) == 4
        place = self._code.scalar(2)
        self._code.emit(f"s_mov_b32 {place.word(0)}, {words[0]}", f"s_and_b32 {place.word(1)}, {words[1]}, 0xffff")
        return place

    def lane_word(self, text: str, added: int | Scalar) -> Vector:
        """Append code that adds numbers of 32 bits in each lane; return the sum as 64 bits.

        text: a VGPR with one of them.
        """
        code = self._code
        place = code.vector(2)
        source = self.vector_word(text).text
        add = "v_add_u32_e32" if code.machine.generation == 9 else "v_add_nc_u32_e32"
        if isinstance(added, Scalar):
            code.emit(f"{add} {place.word(0)}, {added.word(0)}, {source}")
        elif added:
            code.emit(f"{add} {place.word(0)}, {added & _U32:#x}, {source}")
        else:
            code.emit(f"v_mov_b32_e32 {place.word(0)}, {source}")
        code.emit(f"v_mov_b32_e32 {place.word(1)}, 0")
        return place


def sum_scalar(code: Code, base: Scalar | None, offset: str, immediate: int) -> Scalar:
    """Return a base, an unsigned scalar offset ("" without one) and an immediate one, added up in 64 bits; without a
    base the offsets, in 32 bits. The base itself if nothing is added."""
    machine = code.machine
    if _INTEGER.fullmatch(offset):
        offset, immediate = "", immediate + int(offset, 0)
    if base is None:
        place = code.scalar(2)
        code.emit(f"{machine.add} {place.word(0)}, {offset}, {immediate & _U32:#x}", f"s_mov_b32 {place.word(1)}, 0")
        return place
    result = base
    for low, high in ((offset, "0"), (f"{immediate & _U32:#x}" if immediate else "", "-1" if immediate < 0 else "0")):
        if low:
            place = result if result is not base else code.scalar(2)
            code.emit(
                f"{machine.add} {place.word(0)}, {result.word(0)}, {low}",
                f"{machine.add_carry} {place.word(1)}, {result.word(1)}, {high}",
            )
            result = place
    return result


def add_lanes(code: Code, lanes: Vector, added: Scalar | int) -> Vector:
    """Append code that adds numbers of 64 bits in each lane.

    lanes: one word or two. added: a pair, or a signed number of 32 bits.
    """
    machine = code.machine
    vcc = "vcc" if machine.wave == 64 else "vcc_lo"
    place = code.vector(2)
    low, high = place.word(0), place.word(1)
    add = f"v_add_co_u32_e32 {low}, vcc" if machine.generation == 9 else f"v_add_co_u32 {low}, {vcc}"
    carry = "v_addc_co_u32_e32" if machine.generation == 9 else "v_add_co_ci_u32_e32"
    if isinstance(added, Scalar):
        assert lanes.words == 1
        # With the carry, only one other scalar operand fits on gfx9, and none in this encoding.
        code.emit(
            f"v_mov_b32_e32 {high}, {added.word(1)}", f"{add}, {added.word(0)}, {lanes.text}",
            f"{carry} {high}, {vcc}, 0, {high}, {vcc}",
        )  # fmt: skip
        return place
    code.emit(
        f"{add}, {added & _U32:#x}, {lanes.word(0)}",
        f"{carry} {high}, {vcc}, {-1 if added < 0 else 0}, {lanes.word(1)}, {vcc}",
    )
    return place


def _constant(words: Words, lacks: NoValueError) -> Constant:
    """Return a number among the instruction's operands, as the bits that it takes. Raises what ``lacks`` returns for
    another word."""
    text, kind = words.text, words.type
    size = 64 if kind[-2:] == "64" else 16 if words.bits == 16 else 32
    if _INTEGER.fullmatch(text):
        number = int(text, 0)
        if kind == "f64" and text.startswith("0x"):
            # A literal is the upper half.
            number <<= 32
    elif _FLOAT.fullmatch(text):
        number = int.from_bytes(struct.pack(_FORMATS[f"f{size}"], float(text)), "little")
    else:
        raise lacks
    if words.absolute or words.negative:
        raise lacks
    return Constant({16: Type.B16, 32: Type.B32, 64: Type.B64}[size], number & (1 << size) - 1)


def _range(texts: list[str]) -> str:
    """Return scalar registers in a row as assembly names them: ``s[4:5]``."""
    first = int(texts[0][1:])
    return texts[0] if len(texts) == 1 else f"s[{first}:{first + len(texts) - 1}]"
