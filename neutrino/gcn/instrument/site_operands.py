"""What an instruction's operands are to a probe: which registers are the result, the address and the inputs.

An instruction of AMD's says less of its operands than one of PTX: a register has 32 bits, and a tuple of them is one
value or several. Here ``OUT`` and ``IN1`` … are words of 32 bits; of two words that are one value, such as an f64 or
what is loaded with 64 bits, both are the value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from neutrino.gcn.code import Instruction
from neutrino.gcn.isa.memory import ACROSS_LANES, Access, Kind, Operands, access_of, operands_of
from neutrino.gcn.isa.mnemonics import plain, rows
from neutrino.gcn.snippets.opcodes import WHOLE, Part


class NoValueError(Exception):
    """An instruction does not have a value that a probe reads; the message names both."""


@dataclass(frozen=True)
class Words:
    """Registers, or a constant, that one value of an instruction or several are in.

    text: as LLVM prints the operand, without what changes its sign. unit: words of an element. is_whole: whether two
    words are one value where no element is named. bits: how many of a word count, from ``shift`` on. is_mask: whether
    it is a bit for each lane. type: of a float whose sign is changed, or of a constant: ``f32``; "" if it is not known.
    absolute, negative: whether the instruction takes it so.
    """

    text: str
    unit: int = 1
    is_whole: bool = True
    bits: int = 32
    shift: int = 0
    is_mask: bool = False
    type: str = ""
    absolute: bool = False
    negative: bool = False


_HALF = re.compile(r"(v\d+)\.([lh])")
_SIGNED = re.compile(r"(?P<negative>-|neg\()?(?P<absolute>\||abs\()?(?P<text>[^|()]+?)[|)]*")
_TYPE = re.compile(r"(?:f|bf|i|u|b)(?:8|16|24|32|64)")
_IS_MASK = re.compile(r"v_(?:cndmask|addc|subb|subbrev|add_co_ci|sub_co_ci|subrev_co_ci)_")
_GIVES_MASK = re.compile(r"v_cmpx?_")
_NARROW_SHIFTS = re.compile(r"v_(?:lshlrev|lshrrev|ashrrev)_[biu]64")
_NARROW_AMOUNTS = re.compile(
    r"s_(?:lshl|lshr|ashr|bfe|bitcmp[01]|bitset[01])_[biu]64|v_(?:ldexp|trig_preop|cmpx?_class)_\w+"
)
_PACKED = ("v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_", "v_dot", "v_sad_", "v_mqsad_")
_SELECTED = {"dst_sel:WORD_0": 0, "dst_sel:WORD_1": 16}
_BOUND = frozenset({"bound_ctrl:0", "bound_ctrl:1"})
"""How LLVM writes, by its version, that a lane without a source takes 0."""
_CHANGED = ("op_sel", "neg_")
_PAIR = re.compile(r"[vs]\[\d+:\d+\]")
_NOT_READ = ("hwreg(", "sendmsg(", "gpr_idx(")


class SiteOperandTexts:
    """The operands of one instruction by what probes call them. generation: of the processor, 9 to 12. part: of the
    instruction, whose operands they are."""

    def __init__(self, instruction: Instruction, generation: int, part: Part = WHOLE) -> None:
        """Take the instruction's operands apart."""
        if part.half is not None and instruction.second is not None:
            mnemonic, operands = instruction.second if part.half else (instruction.mnemonic, instruction.operands)
            instruction = instruction._replace(mnemonic=mnemonic, operands=operands, second=None)
        self.instruction = instruction
        self.access: Access | None = access_of(instruction)
        self._generation = generation
        self._element = part.element
        self._plain = plain(instruction.mnemonic)

    @property
    def parts(self) -> Operands:
        """Which operand of the probed instruction, an access to memory, is which: address, data and so on."""
        if self.access is None:
            raise self.lacks("ADDR")
        return operands_of(self.instruction, self.access)

    def lacks(self, name: str, why: str = "") -> NoValueError:
        """Return the error for a value, named as probes name it, that the probed instruction does not have, or that
        cannot be told.

        why: ends the message.
        """
        known_as = self.instruction.mnemonic or "data"
        return NoValueError(f"{known_as} has no {name}" + (f": {why}" if why else ""))

    def result(self) -> Words:
        """Return which registers have the instruction's result, the probes' OUT, and of which type. Raises
        NoValueError."""
        self._check_known("OUT")
        instruction, access = self.instruction, self.access
        if access is not None:
            text = self.parts.result
            if not text:
                why = "what it loads goes into LDS" if access.kind is Kind.COPY else ""
                raise self.lacks("OUT", why)
            if access.addresses == 2:
                return Words(text, unit=access.size // 8, is_whole=access.size == 16)
            shift = 16 if "d16_hi" in instruction.mnemonic else 0
            return self._halved(Words(text, bits=16 if access.keeps_half else 32, shift=shift))
        if self._plain in ACROSS_LANES:
            if not ACROSS_LANES[self._plain]:
                raise self.lacks("OUT")
            return Words(instruction.operands[0])
        if not self._written:
            raise self.lacks("OUT")
        text = instruction.operands[0]
        self._check_all_written()
        if _GIVES_MASK.match(self._plain):
            return Words(text, is_mask=True)
        kind = _types(self._plain)[:1]
        selected = next((word for word in instruction.modifiers if word.startswith("dst_sel:")), "dst_sel:DWORD")
        if selected != "dst_sel:DWORD":
            if selected not in _SELECTED or not kind or kind[0][-2:] != "16" or self._is_packed:
                raise self.lacks("OUT", "it writes a part of a register")
            return Words(text, bits=16, shift=_SELECTED[selected])
        if self._element is not None:
            return Words(text, is_whole=False)
        is_wide = kind in (["f64"], ["u64"], ["i64"], ["b64"]) and not self._plain.startswith("v_cvt_")
        if self._plain.startswith("v_cvt_"):
            is_wide = kind == ["f64"]
        bits = 16 if kind and kind[0][-2:] == "16" and not self._is_packed else 32
        words = Words(text, unit=2 if is_wide else 1, is_whole=not self._is_packed, bits=bits)
        if "_mix" in self._plain:
            # What op_sel chooses are halves of its inputs.
            return self._halved(Words(text, bits=bits, shift=16 if self._plain.endswith("mixhi_f16") else 0))
        if any(word.startswith("op_sel:") and _flag(word, -1) for word in instruction.modifiers) and bits == 16:
            words = Words(text, bits=16, shift=16)
        return self._halved(words)

    def _check_all_written(self) -> None:
        """Raise NoValueError for an instruction that may leave the result of an active lane as it was: by DPP, a lane
        whose value would come from a lane that there is not, or that is not active."""
        mnemonic, modifiers = self.instruction.mnemonic, self.instruction.modifiers
        if mnemonic.endswith("_dpp8"):
            is_certain = "fi:1" in modifiers
        elif mnemonic.endswith("_dpp") or any(word.startswith("dpp8:") for word in modifiers):
            is_dpp8 = any(word.startswith("dpp8:") for word in modifiers)
            is_certain = "fi:1" in modifiers if is_dpp8 else (
                "row_mask:0xf" in modifiers and "bank_mask:0xf" in modifiers and bool(_BOUND.intersection(modifiers))
            )  # fmt: skip
        else:
            return
        if not is_certain:
            raise self.lacks("OUT", "not all of its lanes may have a result (DPP)")

    def source(self, number: int) -> Words | None:
        """Return which registers have an input of the instruction, None for the address of an access. Raises
        NoValueError.

        number: 1 for the probes' IN1.
        """
        name = f"IN{number}"
        self._check_known(name)
        if self.access is not None:
            return self._stored(number)
        texts = self.instruction.operands[ACROSS_LANES.get(self._plain, self._written) :]
        row = rows().get(self._plain)
        if number > len(texts) or (row is not None and ("b" in row.marks or "k" in row.marks)):
            raise self.lacks(name)
        text = texts[number - 1]
        if self._element is not None:
            if any(word.startswith(_CHANGED) for word in self.instruction.modifiers) or not _PAIR.fullmatch(text):
                raise self.lacks(name, "its registers are taken otherwise")
            return Words(text, is_whole=False)
        if text.startswith(_NOT_READ) or self._plain.startswith(("s_wait", "s_nop", "s_sleep", "s_set", "s_delay")):
            raise self.lacks(name, "it is no number")
        self._check_plain(number)
        if number == 3 and _IS_MASK.match(self._plain):
            return Words(text, is_mask=True)
        match = _SIGNED.fullmatch(text)
        if match is None or text.startswith("sext("):
            raise self.lacks(name, f"{text} is an operand that is not known")
        kind = self._source_type(number)
        bits = 16 if kind[-2:] == "16" and not self._is_packed else 32
        words = Words(
            match["text"], unit=1, is_whole=not self._is_packed, bits=bits, type=kind,
            absolute=bool(match["absolute"]), negative=bool(match["negative"]) and not match["text"][0].isdigit(),
        )  # fmt: skip
        if match["negative"] and match["text"][0].isdigit():
            # A number.
            words = Words("-" + match["text"], is_whole=words.is_whole, bits=bits, type=kind)
        return self._halved(words)

    def _stored(self, number: int) -> Words | None:
        """Return which registers have an input of an access to memory: data that it stores, or combines with memory's.
        """
        access, parts = self.access, self.parts
        assert access is not None
        if number == 1:
            return None
        if number - 2 >= len(parts.data):
            raise self.lacks(f"IN{number}")
        text = parts.data[number - 2]
        if access.kind is Kind.ATOMIC:
            unit = access.size // 4
            return Words(text, unit=unit, is_whole=unit == 2)
        if access.addresses == 2:
            return Words(text, is_whole=access.size == 16)
        shift = 16 if "d16_hi" in self.instruction.mnemonic else 0
        return self._halved(Words(text, bits=min(32, 8 * access.size), shift=shift))

    @property
    def _written(self) -> int:
        """How many of the instruction's first operands it writes."""
        row = rows().get(self._plain)
        if row is None:
            return 0
        return 0 if self._plain.startswith("v_cmpx_") and self._generation > 9 else row.written

    @property
    def _is_packed(self) -> bool:
        """Whether a register has several numbers, or each register of a tuple one of its own."""
        return "_pk" in self._plain or self._plain.startswith(_PACKED)

    def _check_known(self, name: str) -> None:
        """Raise NoValueError for an instruction that is not known, or has two halves."""
        if self.instruction.second is not None:
            raise self.lacks(name, "it is two instructions")
        if self.access is None and self._plain not in ACROSS_LANES and self._plain not in rows():
            raise self.lacks(name, "the instruction is not known")

    def _check_plain(self, number: int) -> None:
        """Raise NoValueError for an input that is a part of a register, or is another lane's."""
        name = f"IN{number}"
        mnemonic = self.instruction.mnemonic
        if mnemonic.endswith("_sdwa"):
            raise self.lacks(name, "it may be a part of a register")
        if number == 1 and mnemonic.endswith(("_dpp", "_dpp8")):
            raise self.lacks(name, "it is another lane's")
        if "_mix" in self._plain:
            raise self.lacks(name, "it may be a half of a register")
        for word in self.instruction.modifiers:
            if word.startswith(("op_sel:", "neg_lo:", "neg_hi:")) and _flag(word, number - 1):
                raise self.lacks(name, f"its register is taken otherwise ({word})")
            if word.startswith("op_sel_hi:") and not _flag(word, number - 1):
                raise self.lacks(name, f"its register is taken otherwise ({word})")

    def _source_type(self, number: int) -> str:
        """Return the type of an input as the mnemonic says it, such as ``f32``; "" if it says none."""
        types = _types(self._plain)
        if not types:
            return "f32" if self._plain.startswith("v_cndmask") else ""
        if self._plain.startswith(("v_mad_u64_u32", "v_mad_i64_i32", "v_mad_co_", "v_mad_nc_")):
            return "u64" if number == 3 else "u32"
        if self._plain in ("v_mad_u32_u16", "v_mad_i32_i16") and number == 3:
            return "u32"
        if _NARROW_SHIFTS.fullmatch(self._plain) and number == 1:
            return "u32"
        if (_NARROW_AMOUNTS.fullmatch(self._plain) and number == 2) or self._plain.startswith("s_bfm_"):
            return "u32"
        return types[-1]

    def _halved(self, words: Words) -> Words:
        """Return the words of an operand that may be a half of a register by its name: ``v3.h``."""
        match = _HALF.fullmatch(words.text)
        if match is None:
            return words
        shift = 16 if match[2] == "h" else 0
        return Words(match[1], bits=min(16, words.bits), shift=shift, type=words.type, absolute=words.absolute,
                     negative=words.negative)  # fmt: skip


def _types(name: str) -> list[str]:
    """Return the types that a mnemonic has in its name, in order: f32 and f16 of ``v_cvt_f32_f16``."""
    return [word for word in name.split("_") if _TYPE.fullmatch(word)]


def _flag(modifier: str, place: int) -> bool:
    """Return whether a modifier's list, such as ``op_sel:[0,1,0]``, has a 1 at a place; False beyond its end."""
    flags = re.findall(r"\d+", modifier.partition(":")[2])
    return -len(flags) <= place < len(flags) and flags[place] != "0"
