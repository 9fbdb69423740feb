"""Which registers an instruction of AMD's processors reads and writes, those that it does not name included.

What an instruction reads is never less than it does read, what it is said to replace is never more than it does: both
ways a register seems to be in use for longer. An instruction that is not known raises, with its name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from neutrino.gcn.code import Instruction, written
from neutrino.gcn.isa.memory import ACROSS_LANES, CACHES, Access, Kind, Space, access_of, gives_result
from neutrino.gcn.isa.mnemonics import plain, rows
from neutrino.gcn.isa.registers import (
    ALL_SCALARS,
    ALL_VECTORS,
    EVERYTHING,
    EXEC,
    FLAT_SCRATCH,
    M0_SET,
    MODE,
    SCC,
    VCC,
    UnknownInstructionError,
    registers_of,
)


class Effects(NamedTuple):
    """What an instruction does, as sets of ``registers``.

    reads, writes: at most these. replaces: of what it writes, what has nothing of the old value afterwards: scalar
    registers alone, since vector ones keep those of inactive lanes. is_indexed: whether it accesses vector registers
    by an index: it reads and writes all of them. calls: whether it calls a function, which may read and write all
    registers; a return reads all. named: what it reads or writes itself, without what an index may lead to, and without
    what called and calling functions do.
    """

    reads: int
    writes: int
    replaces: int
    named: int
    is_indexed: bool = False
    calls: bool = False


_IMPLICIT_READS = {"c": SCC, "v": VCC, "e": EXEC, "m": M0_SET, "o": MODE}
_IMPLICIT_WRITES = {"C": SCC, "V": VCC, "E": EXEC, "M": M0_SET, "O": MODE}


def effects(instruction: Instruction, generation: int) -> Effects:
    """Return what an instruction reads and writes. generation: of the processor, 9 to 12.

    Raises UnknownInstructionError, with the instruction's name, for one that is not known, and for data.
    """
    _, _, mnemonic, operands, modifiers, text, _, second = instruction
    if not text:
        return _effects(mnemonic, operands, modifiers, second, generation)
    # A text is hashed once, its parts each time.
    known = _BY_TEXT.setdefault(generation, {})
    found = known.get(text)
    if found is None:
        if len(known) >= _MOST_TEXTS:
            known.clear()
        found = known[text] = _effects(mnemonic, operands, modifiers, second, generation)
    return found


_BY_TEXT: dict[int, dict[str, Effects]] = {}
"""What is known of instructions, by the processor's generation and their texts."""
_MOST_TEXTS = 1 << 14


@lru_cache(maxsize=1 << 13)
def effects_of(text: str, generation: int) -> Effects:
    """Return what an instruction reads and writes, as ``effects``, by its whole text. It is found faster so."""
    return effects(written(text), generation)


@lru_cache(maxsize=1 << 12)
def _effects(
    mnemonic: str,
    operands: tuple[str, ...],
    modifiers: tuple[str, ...],
    second: tuple[str, tuple[str, ...]] | None,
    generation: int,
) -> Effects:
    """Return what an instruction, given by its parts, reads and writes; remembered, as for ``effects``.

    second: mnemonic and operands of its second half, if it has two.
    """
    if not mnemonic:
        raise UnknownInstructionError("words that are no instruction")
    try:
        first = _single(mnemonic, operands, modifiers, generation)
        if second is None:
            return _shared(first)
        other = _single(second[0], second[1], (), generation)
    except UnknownInstructionError as error:
        raise UnknownInstructionError(f"{mnemonic}: {error}") from None
    return _shared(Effects(first.reads | other.reads, first.writes | other.writes, 0, first.named | other.named))


def _shared(row: Effects) -> Effects:
    """Return an equal value whose sets are those of others where these are equal: each has up to 200 bytes."""
    if len(_SETS) > _MOST_SETS:
        _SETS.clear()
    reads, writes, replaces, named = (_SETS.setdefault(each, each) for each in row[:4])
    return Effects(reads, writes, replaces, named, row.is_indexed, row.calls)


_SETS: dict[int, int] = {}
_MOST_SETS = 1 << 14


def _single(mnemonic: str, operands: tuple[str, ...], modifiers: tuple[str, ...], generation: int) -> Effects:
    """Return what an instruction of one half, or one half of another, reads and writes.

    Raises UnknownInstructionError without its name.
    """
    instruction = Instruction(0, 0, mnemonic, operands, modifiers, "")
    access = access_of(instruction)
    if access is not None:
        return _of_access(instruction, access)
    if mnemonic in CACHES:
        return Effects(EXEC, 0, 0, EXEC)
    if mnemonic in ACROSS_LANES:
        return _of_operands(operands, ACROSS_LANES[mnemonic], EXEC, 0, is_vector=True)
    row = rows().get(plain(mnemonic))
    if row is None:
        raise UnknownInstructionError("an instruction that is not known")
    written, marks, is_vector = row
    if (mnemonic.startswith(_NO_REGISTERS) and mnemonic != "s_sleep_var") or (
        "b" in marks and mnemonic not in _BY_REGISTER
    ):
        operands = ()
    if mnemonic.startswith("v_cmpx_") and generation > 9:
        written = 0
    reads = EXEC if is_vector else 0
    writes = 0
    for mark in marks:
        reads |= _IMPLICIT_READS.get(mark, 0)
        writes |= _IMPLICIT_WRITES.get(mark, 0)
    # Of DPP and SDWA forms lanes or parts may keep what they have.
    written_too = "t" in marks or "d" in marks or mnemonic.endswith(("_dpp", "_dpp8", "_sdwa"))
    found = _of_operands(operands, written, reads, writes, is_vector=is_vector, reads_written=written_too)
    if "x" in marks:
        found = found._replace(reads=found.reads | ALL_VECTORS, writes=found.writes | ALL_VECTORS, is_indexed=True)
    if "k" in marks:
        # Whatever the called function does.
        return Effects(EVERYTHING, EVERYTHING, 0, found.named, calls=True)
    if mnemonic == "s_setpc_b64":
        return found._replace(reads=EVERYTHING)
    return found


_NO_REGISTERS = (
    "s_nop", "s_sleep", "s_sethalt", "s_setprio", "s_trap", "s_code_end", "s_clause", "s_delay_alu", "s_inst_prefetch",
    "s_set_inst_prefetch_distance", "s_waitcnt", "s_wait_", "s_sendmsghalt", "s_round_mode", "s_denorm_mode",
    "s_icache_inv", "s_set_gpr_idx_mode", "s_ttracedata", "s_incperflevel", "s_decperflevel", "s_barrier_wait",
    "s_barrier_leave",
)  # fmt: skip
"""Beginnings of the mnemonics whose operands name no registers, but words of their own."""
_BY_REGISTER = frozenset({"s_setpc_b64"})


_WORDS = ("hwreg(", "sendmsg(", "gpr_idx(")
"""Beginnings of operands that name no registers."""


def _of_operands(
    operands: tuple[str, ...], written: int, reads: int, writes: int, *, is_vector: bool, reads_written: bool = False
) -> Effects:
    """Return what an instruction does whose first operands are written and whose others are read.

    reads, writes: besides its operands. reads_written: whether what is written is read as well.
    """
    if len(operands) < written:
        raise UnknownInstructionError("an instruction with too few operands")
    replaces = writes
    for place, operand in enumerate(operands):
        if operand.startswith(_WORDS):
            continue
        registers = registers_of(operand)
        if place < written:
            writes |= registers
            replaces |= registers & ALL_SCALARS
            if reads_written:
                reads |= registers
        else:
            reads |= registers
    return Effects(reads, writes, replaces & ~EXEC if is_vector else replaces, reads | writes)


def _of_access(instruction: Instruction, access: Access) -> Effects:
    """Return what an instruction that accesses memory reads and writes. access: how it does."""
    reads = M0_SET if access.uses_m0 else 0
    if access.space is not Space.SCALAR:
        reads |= EXEC
    if access.space in (Space.GENERIC, Space.LOCAL):
        reads |= 3 << FLAT_SCRATCH
    written = int(gives_result(instruction, access))
    # The old value of a buffer's atomic access goes where its data are; TFE and D16 leave parts as they are.
    reads_written = access.keeps_half or (access.kind is Kind.ATOMIC and access.space is Space.BUFFER)
    reads_written = reads_written or "tfe" in instruction.modifiers
    operands = tuple(operand for operand in instruction.operands if operand != "gds")
    return _of_operands(operands, written, reads, 0, is_vector=False, reads_written=reads_written)
