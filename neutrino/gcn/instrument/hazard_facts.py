"""What of an instruction matters to those that follow it at once: registers, and the units that read and write them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from neutrino.gcn.code import Instruction, written
from neutrino.gcn.isa.effects import effects
from neutrino.gcn.isa.memory import Kind, Space, access_of, operands_of
from neutrino.gcn.isa.mnemonics import plain
from neutrino.gcn.isa.registers import (
    ALL_SCALARS,
    ALL_VECTORS,
    EVERYTHING,
    EXEC,
    M0_SET,
    VCC,
    UnknownInstructionError,
    registers_of,
)

SGPRS = ALL_SCALARS & ~(EXEC | M0_SET) & (1 << 124) - 1
"""Those that hazards are about, VCC among them."""
LANES = ("v_readlane_b32", "v_writelane_b32")
_MATRIX = re.compile(r"v_(?:s?mfma\w*?|smfmac)_")
_TRANSCENDENTAL = re.compile(r"v_(?:s_)?(?:rcp|rsq|sqrt|exp|log|sin|cos)_")
_MASK_READS = re.compile(r"v_(?:cndmask|addc|subb|subbrev|add_co_ci|sub_co_ci|subrev_co_ci|div_fmas)_")
_SCALAR_MEMORY = re.compile(
    r"s_(?:buffer_|scratch_)?(?:load|store|atomic)_|s_(?:memtime|memrealtime|dcache|gl1|prefetch)"
)
_REACH, _MATRIX_REACH, _ATOMIC_REACH = 5, 20, 3
"""Wait states after which nothing that ``Hazards`` knows of is left of vector instructions and large stores, of matrix
products, and on gfx10 of atomics of floats."""
_HARDWARE = re.compile(r"hwreg\((\w+)")


@dataclass(frozen=True)
class Facts:
    """What of an instruction matters. reads, writes: registers that it names, and VCC. states: how many wait states it
    is. data: what a large store reads late. third: what a matrix product is added to. waits: what it waits for. reach:
    after how many wait states it no longer matters to those that follow, 0 where it never does."""

    name: str
    reads: int
    writes: int
    states: int = 1
    is_vector: bool = False
    is_scalar: bool = False
    is_memory: bool = False
    is_lds: bool = False
    is_matrix: bool = False
    is_f64_matrix: bool = False
    is_lane_exchange: bool = False
    is_partial: bool = False
    selects: int = 0
    masks: int = 0
    data: int = 0
    third: int = 0
    passes: int = 0
    hardware: str = ""
    waits: frozenset[str] = frozenset()
    is_float_atomic: bool = False
    reach: int = 0

    @cached_property
    def _hash(self) -> int:
        """The hash, of which a set of what has run asks for each instruction that follows."""
        return hash((self.name, self.reads, self.writes, self.states, self.selects, self.masks, self.data, self.reach))

    def __hash__(self) -> int:
        """Return the hash of some members: those that mostly differ."""
        return self._hash

    @cached_property
    def is_transcendental(self) -> bool:
        """Whether the instruction is one of those, such as square roots, that run beside other vector instructions."""
        return _TRANSCENDENTAL.match(self.name) is not None

    @cached_property
    def is_dot(self) -> bool:
        """Whether the instruction is a dot product."""
        return self.name.startswith("v_dot")

    @cached_property
    def compares_to_exec(self) -> bool:
        """Whether the instruction is a vector comparison whose result goes to EXEC."""
        return self.name.startswith("v_cmpx_")


@lru_cache(maxsize=1 << 13)
def facts_of_text(text: str, generation: int) -> Facts:
    """Return what of an instruction, given by its whole text, matters for the hazards of its neighbours."""
    row = written(text)
    return facts_of(row.mnemonic, row.operands, row.modifiers, row.second, generation)


@lru_cache(maxsize=1 << 10)
def facts_of(
    mnemonic: str,
    operands: tuple[str, ...],
    modifiers: tuple[str, ...],
    second: tuple[str, tuple[str, ...]] | None,
    generation: int,
) -> Facts:
    """Return what of an instruction, given by its parts, matters for the hazards of its neighbours."""
    row = Instruction(0, 0, mnemonic, operands, modifiers, "", None, second)
    name = plain(mnemonic)
    try:
        found = effects(row, generation)
        reads, writes = found.reads, found.writes
        if found.calls:
            reads = writes = 0
    except UnknownInstructionError:
        reads = writes = EVERYTHING
    reads &= SGPRS | ALL_VECTORS
    writes &= SGPRS | ALL_VECTORS | EXEC
    is_vector = name.startswith("v_")
    access = access_of(row)
    data = 0
    if access is not None and access.kind is Kind.STORE and access.size > 8 and access.space is not Space.SHARED:
        parts = operands_of(row, access)
        if access.space is not Space.BUFFER or not parts.offset.startswith("s"):
            data = registers_of(parts.data[0])
    is_matrix = _MATRIX.match(name) is not None
    selects = registers_of(operands[2]) & SGPRS if name in LANES and len(operands) > 2 else 0
    masks = 0
    if _MASK_READS.match(name):
        masks = registers_of(operands[-1]) & SGPRS if len(operands) > 3 else 0
        masks |= VCC if name.startswith("v_div_fmas") else 0
    hardware = next((match[1] for text in operands if (match := _HARDWARE.match(text))), "")
    if name.startswith(("s_getreg", "s_setreg")) and not hardware:
        hardware = operands[-1]
    states = int(operands[0], 0) + 1 if name == "s_nop" else 1
    facts = Facts(
        name, reads, writes, states, is_vector,
        is_scalar=name.startswith("s_") and not _SCALAR_MEMORY.match(name),
        is_memory=not name.startswith(("v_", "s_")), is_lds=name.startswith("ds_"), is_matrix=is_matrix,
        is_f64_matrix=is_matrix and "f64_" in name,
        is_lane_exchange=mnemonic.endswith(("_dpp", "_dpp8")) or any(_is_exchange(word) for word in modifiers),
        is_partial=any(word.startswith(("dst_sel:", "op_sel:")) and word != "dst_sel:DWORD" for word in modifiers),
        selects=selects, masks=masks, data=data,
        third=registers_of(operands[3]) & ALL_VECTORS if is_matrix and len(operands) > 3 else 0,
        passes=_passes(name), hardware=hardware, waits=_waited(name, operands),
        is_float_atomic="_atomic_" in name and re.search(r"_f(?:16|32|64)|fmin|fmax|bf16", name) is not None,
    )  # fmt: skip
    return replace(facts, reach=reach_of(facts, generation))


def reach_of(facts: Facts, generation: int) -> int:
    """Return after how many wait states an instruction no longer matters to those that follow it, 0 where none must
    pass: the most that ``Hazards`` asks for after it."""
    if generation > 10:
        return 0
    if generation == 10:
        return _ATOMIC_REACH if facts.is_float_atomic else 0
    if facts.is_matrix:
        return _MATRIX_REACH
    matters = facts.is_vector or facts.writes & ALL_VECTORS or facts.data or facts.name.startswith("s_setreg")
    return _REACH if matters else 0


def _is_exchange(word: str) -> bool:
    """Return whether a modifier is one of DPP, by which an instruction reads other lanes."""
    return word.startswith(("row_", "wave_", "quad_perm", "dpp8")) and not word.startswith("row_mask")


def _passes(name: str) -> int:
    """Return how many passes of four cycles a matrix product takes, at most.

    name: its mnemonic.
    """
    size = next((count for size, count in (("4x4x", 2), ("16x16x", 8), ("32x32x", 16)) if f"_{size}" in name), 16)
    return size if _MATRIX.match(name) else 0


def _waited(name: str, operands: tuple[str, ...]) -> frozenset[str]:
    """Return the counters of the ALUs that a wait instruction brings to 0."""
    if name not in ("s_waitcnt_depctr", "s_wait_alu"):
        return frozenset()
    found = set()
    for word in operands:
        match = re.fullmatch(r"depctr_(\w+)\(0\)", word)
        if match:
            found.add(match[1])
        elif re.fullmatch(r"0x[0-9a-f]+|\d+", word):
            number = int(word, 0)
            found |= {"sa_sdst"} if not number & 1 else set()
            found |= {"va_vcc"} if not number & 2 else set()
            found |= {"va_sdst"} if not number >> 9 & 7 else set()
            found |= {"va_vdst"} if not number >> 12 else set()
    return frozenset(found)
