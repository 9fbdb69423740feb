"""Machine code as values: functions of decoded instructions, with the targets of branches and of program counters.

The original bytes are kept: nothing here is assembled again. What moves when code is inserted, branch fields and the
literals that are added to a program counter, is found here; a function with anything else that depends on its own place
is refused, with the instruction's name.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from neutrino.gcn.instruction_text import Decoded, taken_apart
from neutrino.gcn.llvm import WORD, Llvm

ENDS = frozenset({"s_endpgm", "s_endpgm_saved"})
"""Mnemonics of what ends a wave."""
CALLS = frozenset({"s_swappc_b64", "s_call_b64"})
"""Mnemonics of what calls a function."""
MIXED_WAVES = "kernels with waves of 32 and of 64 lanes may call it"
"""Why a function is refused whose instructions are not known, as they are others in waves of another size."""
_PC_RELATIVE = frozenset(
    {
        "s_subvector_loop_begin", "s_subvector_loop_end", "s_prefetch_inst_pc_rel", "s_prefetch_data_pc_rel",
        "s_add_pc_i64", "s_cbranch_i_fork", "s_cbranch_g_fork", "s_cbranch_join", "s_rfe_b64", "s_rfe_restore_b64",
    }
)  # fmt: skip
"""Mnemonics that depend on their own place in a way that is not rewritten: a function with one is refused."""
_GET_PC = re.compile(r"s_get_?pc_[bi]64")
_LOW_SUMS = frozenset({"s_add_u32", "s_add_co_u32"})
_HIGH_SUMS = frozenset({"s_addc_u32", "s_add_co_ci_u32"})
_WIDE_SUMS = frozenset({"s_add_nc_u64"})
_LITERAL_AT = 4
"""Offset in bytes of the literal in the instructions that have one."""
_SEARCHED = 12
"""Instructions behind the one that reads the program counter, among which its sums are looked for."""
_MOST_DECODED = 100_000
"""Instructions of a code object that are kept, together some 15 MB."""
_MOST_DECODED_AGAIN = 300_000
"""Instructions of a code object of which it is kept which they are: 8 bytes each, since most occur more than once."""
_REGISTERS = re.compile(r"s(?:(\d+)|\[(\d+):(\d+)\])")
_ADDRESSES = 1 << 64


class Instruction(NamedTuple):
    """A decoded instruction, or data.

    offset: in bytes from the function's beginning; size: in bytes. mnemonic, text: as LLVM prints them, both "" for
    data: words that are no instruction. operands: between the mnemonic and the modifiers, split at commas outside
    brackets; those of waits (``vmcnt(0)``) word by word. modifiers: what follows the operands, such as ``offset:16``
    and ``glc``. target: of a branch, as an offset like the instruction's own; it may lie outside the function.
    second: mnemonic and operands of the second half of an instruction that does two things (``v_dual_mov_b32 … ::
    v_dual_add_f32 …``), whose first half the other fields have.
    """

    offset: int
    size: int
    mnemonic: str
    operands: tuple[str, ...]
    modifiers: tuple[str, ...]
    text: str
    target: int | None = None
    second: tuple[str, tuple[str, ...]] | None = None

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.size


class Instructions(tuple[Instruction, ...]):
    """The instructions of a function, in order. What is found out of them all is kept as long as they are."""

    @cached_property
    def offsets(self) -> list[int]:
        """Their offsets, ascending."""
        return [row.offset for row in self]

    @cached_property
    def branches(self) -> list[Instruction]:
        """Those with a branch field, calls among them."""
        return [row for row in self if row.target is not None]

    @cached_property
    def distinct(self) -> dict[str, Instruction]:
        """One of each text, in order."""
        return {row.text: row for row in self}

    @cached_property
    def index_at(self) -> dict[int, int]:
        """The index of each, by its offset."""
        return {offset: index for index, offset in enumerate(self.offsets)}

    def begins(self, offset: int) -> bool:
        """Return whether one begins at an offset."""
        index = bisect_left(self.offsets, offset)
        return index < len(self) and self.offsets[index] == offset

    def having(self, offset: int) -> Instruction:
        """Return the one that has the byte at an offset."""
        return self[bisect_right(self.offsets, offset) - 1]

    def named(self, *mnemonics: str) -> list[int]:
        """Return the indices of those with one of these mnemonics, ascending for each."""
        found: list[int] = []
        for mnemonic in mnemonics:
            if mnemonic not in self._places:
                self._places[mnemonic] = list(self._places_of(mnemonic))
            found += self._places[mnemonic]
        return found

    def beginning_with(self, beginning: str) -> list[int]:
        """Return the indices, ascending, of those whose mnemonics begin with some characters."""
        return sorted(self.named(*(name for name in self.names if name.startswith(beginning))))

    def first_named(self, mnemonic: str) -> Instruction:
        """Return the first with a mnemonic, which one must have."""
        return self[self._mnemonics.index(mnemonic)]

    @cached_property
    def names(self) -> dict[str, None]:
        """Their mnemonics, each once, in order."""
        return dict.fromkeys(self._mnemonics)

    @cached_property
    def _mnemonics(self) -> list[str]:
        """The mnemonic of each."""
        return [row.mnemonic for row in self]

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """The indices of instructions by their mnemonics, of those that have been asked for."""
        return {}

    def _places_of(self, mnemonic: str) -> Iterator[int]:
        """Yield the indices of instructions with a mnemonic."""
        if mnemonic not in self.names:
            return
        index, find = -1, self._mnemonics.index
        with suppress(ValueError):
            while True:
                index = find(mnemonic, index + 1)
                yield index


class PcLiteral(NamedTuple):
    """A literal that is added to the program counter to give an address.

    get_pc: offset of the instruction that reads the program counter, which gives the address behind itself. low, high:
    offsets of the literal's two halves, 32 bits each. target: the address that it gives, as functions have it.
    """

    get_pc: int
    low: int
    high: int
    target: int


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel or another function.

    name: mangled. address: virtual, in its code object. code: its bytes. wave: lanes of its waves, 32 or 64. decoded:
    its instructions, or what gives them. literals: those that depend on the function's place. refused: why no code can
    be inserted into it, empty if some can.
    """

    name: str
    address: int
    code: bytes
    is_kernel: bool
    wave: int
    decoded: tuple[Instruction, ...] | DecodedAgain = field(repr=False)
    literals: tuple[PcLiteral, ...] = ()
    refused: str = ""

    @property
    def instructions(self) -> Instructions:
        """Its instructions; they cover the code without a gap. They may be decoded anew each time."""
        rows = self.decoded
        if isinstance(rows, Instructions):
            return rows
        return Instructions(rows) if isinstance(rows, tuple) else rows()


@dataclass(frozen=True, slots=True)
class DecodedAgain:
    """Gives the instructions of one of the functions that share a ``_Recent``. number: which one."""

    recent: _Recent
    number: int

    def __call__(self) -> Instructions:
        """Return the instructions."""
        return self.recent.instructions(self.number)


class _Recent:
    """Keeps the instructions of some functions, those that were asked for last: of a large code object they take fifty
    times as much memory as its bytes. Of the others it keeps which they are, without their places."""

    def __init__(self, decode_one: Callable[[int], list[Decoded]], codes: Sequence[bytes]) -> None:
        """decode_one: returns the instructions of a function, by its number. codes: the bytes of each."""
        self._decode_one, self._codes = decode_one, codes
        self._kept: OrderedDict[int, Instructions] = OrderedDict()
        self._count = 0
        self._decoded: dict[int, list[Decoded]] = {}
        self._decoded_count = 0

    def keep_decoded(self, number: int, rows: list[Decoded]) -> None:
        """Keep the instructions of a function without their places, if there is room for them."""
        if self._decoded_count + len(rows) <= _MOST_DECODED_AGAIN:
            self._decoded[number] = rows
            self._decoded_count += len(rows)

    def keep(self, number: int, rows: Instructions) -> None:
        """Keep the instructions of a function, and forget those that were asked for longest ago."""
        self._kept[number] = rows
        self._count += len(rows)
        while self._count > _MOST_DECODED and len(self._kept) > 1:
            _, forgotten = self._kept.popitem(last=False)
            self._count -= len(forgotten)

    def instructions(self, number: int) -> Instructions:
        """Return the instructions of a function."""
        rows = self._kept.get(number)
        if rows is None:
            found = self._decoded.get(number)
            rows = placed(self._codes[number], self._decode_one(number) if found is None else found)
            self.keep(number, rows)
        else:
            self._kept.move_to_end(number)
        return rows


@dataclass(frozen=True, slots=True)
class Module:
    """The code of a code object. processor: such as ``gfx942``. features: LLVM's, such as ``+sramecc,-xnack``.
    functions: in the order of their addresses. pointed: addresses that its data have of what is in it."""

    processor: str
    features: str
    functions: tuple[Function, ...]
    pointed: frozenset[int] = frozenset()

    def function(self, name: str) -> Function | None:
        """Return the function of that name, None if there is none."""
        return next((function for function in self.functions if function.name == name), None)


def is_call(instruction: Instruction) -> bool:
    """Return whether an instruction calls a function, which comes back behind it."""
    return instruction.mnemonic in CALLS


def is_end(instruction: Instruction) -> bool:
    """Return whether a wave ends with an instruction."""
    return instruction.mnemonic in ENDS


def split_target(target: str) -> tuple[str, str]:
    """Return processor and features of a target id: ``gfx942``, ``+sramecc,-xnack`` of ``gfx942:sramecc+:xnack-``."""
    processor, *signed = target.split(":")
    return processor, ",".join(f"{feature[-1]}{feature[:-1]}" for feature in signed if feature[-1:] in ("+", "-"))


def wave_features(processor: str, features: str, wave: int) -> str:
    """Return the features with that of a wave size, which processors with a choice need for both directions."""
    if wave != 64 or processor.startswith(("gfx6", "gfx7", "gfx8", "gfx9")):
        return features
    return ",".join(filter(None, (features, "+wavefrontsize64,-wavefrontsize32")))


def decode(functions: Iterable[tuple[str, int, bytes, bool, int]], processor: str, features: str, llvm: Llvm) -> Module:
    """Decode functions: name, address, bytes, whether it is a kernel, and lanes of a wave of each.

    A function whose lanes are 0, since kernels of both sizes may call it, is decoded as of 32 lanes, and refused.
    processor, features: as ``Module``. Raises ToolMissingError for a processor that the LLVM does not know.
    """
    rows = sorted(functions, key=lambda row: row[1])

    def decode_one(number: int) -> list[Decoded]:
        """Return the instructions of a function once more."""
        _, _, code, _, wave = rows[number]
        return llvm.decode(code, processor, wave_features(processor, features, wave))

    recent = _Recent(decode_one, [code for _, _, code, _, _ in rows])
    found = []
    for number, row in enumerate(rows):
        decoded = decode_one(number)
        function = _function(row, decoded)
        recent.keep_decoded(number, decoded)
        recent.keep(number, function.instructions)
        found.append(replace(function, decoded=DecodedAgain(recent, number)))
    return Module(processor, features, tuple(found))


def decode_each(
    functions: Iterable[tuple[str, int, bytes, bool, int]], processor: str, features: str, llvm: Llvm
) -> Iterator[Function]:
    """Yield decoded functions one by one, in the order that they are given in; parameters and errors as ``decode``.

    A large code object has millions of instructions, which together would fill the memory.
    """
    for row in functions:
        yield _function(row, llvm.decode(row[2], processor, wave_features(processor, features, row[4])))


def _function(row: tuple[str, int, bytes, bool, int], decoded: Sequence[Decoded]) -> Function:
    """Return a function of decoded instructions. row: as for ``decode``."""
    name, address, code, is_kernel, wave = row
    instructions = placed(code, decoded)
    literals, problem = _literals(instructions, code, address)
    refused = problem or _problem(instructions, len(code))
    if not wave:
        refused = MIXED_WAVES
    if not code:
        refused = "it has no code"
    return Function(name, address, code, is_kernel, wave or 32, instructions, tuple(literals), refused)


def instructions_of(code: bytes, processor: str, features: str, llvm: Llvm) -> Instructions:
    """Decode the instructions of a function. features: with that of the wave size, as ``wave_features`` gives them."""
    return placed(code, llvm.decode(code, processor, features))


def placed(code: bytes, decoded: Sequence[Decoded]) -> Instructions:
    """Return the instructions of a function at their places. decoded: in order, without a gap."""
    new, offset = tuple.__new__, 0
    rows = []
    for size, text, mnemonic, operands, modifiers, second, is_branch in decoded:
        target = None
        if is_branch:
            target = offset + size + WORD * int.from_bytes(code[offset : offset + 2], "little", signed=True)
        # There are millions: so it takes half of the time.
        rows.append(new(Instruction, (offset, size, mnemonic, operands, modifiers, text, target, second)))
        offset += size
    return Instructions(rows)


def written(text: str) -> Instruction:
    """Return an instruction of a text that nothing has assembled: without a place, a size, and a branch's target."""
    row = taken_apart(text)
    return Instruction(0, 0, row.mnemonic, row.operands, row.modifiers, text, None, row.second)


def _problem(instructions: Sequence[Instruction], size: int) -> str:
    """Return why no code can be inserted between the instructions, empty if some can. size: of the code."""
    starts = {instruction.offset for instruction in instructions}
    for instruction in instructions:
        if instruction.mnemonic in _PC_RELATIVE:
            return f"{instruction.mnemonic} at {instruction.offset:#x} depends on its own place"
        target = instruction.target
        if target is not None and target not in starts and (not is_call(instruction) or 0 <= target < size):
            where = "into an instruction" if 0 <= target < size else "out of the function"
            return f"{instruction.mnemonic} at {instruction.offset:#x} leads {where}"
    return ""


def _literals(instructions: Sequence[Instruction], code: bytes, address: int) -> tuple[list[PcLiteral], str]:
    """Return the literals that are added to program counters; and why the others cannot be found, empty without any."""
    found: list[PcLiteral] = []
    for index, instruction in enumerate(instructions):
        if not _GET_PC.fullmatch(instruction.mnemonic):
            continue
        halves = _sums(instruction, instructions[index + 1 : index + 1 + _SEARCHED])
        if halves is None:
            return found, f"{instruction.mnemonic} at {instruction.offset:#x} without a literal that is added to it"
        low, high = halves
        distance = int.from_bytes(code[low : low + WORD] + code[high : high + WORD], "little", signed=True)
        found.append(PcLiteral(instruction.offset, low, high, (address + instruction.end + distance) % _ADDRESSES))
    return found, ""


def _sums(get_pc: Instruction, following: Sequence[Instruction]) -> tuple[int, int] | None:
    """Return the offsets of the two halves of what is added to a program counter, None if that is not found."""
    pair = _range(get_pc.operands[0]) if get_pc.operands else None
    if pair is None:
        return None
    low_register, high_register = f"s{pair[0]}", f"s{pair[1]}"
    low: int | None = None
    for instruction in following:
        has_literal = instruction.size == WORD + _LITERAL_AT
        sides = instruction.operands[:2]
        if low is None and instruction.mnemonic in _LOW_SUMS and sides == (low_register, low_register) and has_literal:
            low = instruction.offset + _LITERAL_AT
        elif low is not None and instruction.mnemonic in _HIGH_SUMS and sides == (high_register, high_register):
            return (low, instruction.offset + _LITERAL_AT) if has_literal else None
        elif low is None and instruction.mnemonic in _WIDE_SUMS and sides == (get_pc.operands[0],) * 2:
            # The literal has both halves, one behind the other.
            literal = instruction.offset + _LITERAL_AT
            return (literal, literal + WORD) if instruction.size == 2 * WORD + _LITERAL_AT else None
        elif instruction.target is not None or not instruction.mnemonic:
            return None
        elif instruction.mnemonic == "s_sext_i32_i16" and instruction.operands == (high_register, high_register):
            # gfx12 reads 48 bits of the program counter.
            continue
        elif (written := _range(instruction.operands[0]) if instruction.operands else None) is not None and (
            written[0] <= pair[1] and pair[0] <= written[1]
        ):
            return None
    return None


def _range(operand: str) -> tuple[int, int] | None:
    """Return the first and the last number of an operand's scalar registers, None if it is something else."""
    match = _REGISTERS.fullmatch(operand)
    if match is None:
        return None
    return (int(match[1]), int(match[1])) if match[1] else (int(match[2]), int(match[3]))
