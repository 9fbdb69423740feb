"""The instructions that hand-written snippets for AMD's GPUs may hold, and what each means as a typed statement.

Those that compute become typed statements, which every generation has; only what reads the hardware stays as it is
written. So a snippet never changes SCC, VCC or EXEC of the program: what a typed statement becomes saves them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from neutrino.ir.statements import Operator
from neutrino.ir.types import Type


class Meaning(enum.Enum):
    """What kind of typed statement an instruction becomes.

    ``OPERATION``: as its operator says. ``CONVERT``: its source in another type. ``HARDWARE``: it stays.
    """

    OPERATION = "operation"
    CONVERT = "convert"
    HARDWARE = "hardware"


class Form(NamedTuple):
    """An instruction. destination, sources: types of its operands. is_reversed: the amount of its shift comes first.

    setting: it takes ``hwreg(…)``, or ``sendmsg(…)``, after its destination.
    """

    meaning: Meaning
    destination: Type
    sources: tuple[Type, ...]
    operator: Operator | None = None
    is_reversed: bool = False
    setting: bool = False


U32, U64, S32, S64, B32, B64, F32 = Type.U32, Type.U64, Type.S32, Type.S64, Type.B32, Type.B64, Type.F32


def _operation(operator: Operator, kind: Type, count: int = 2, *, reverse: bool = False) -> Form:
    """Return the form of an operation whose operands have one type; the amount of a shift is 32 bits."""
    is_shift = operator in (Operator.SHL, Operator.SHR)
    sources = (kind, U32) if is_shift else (kind,) * count
    return Form(Meaning.OPERATION, kind, sources, operator, is_reversed=reverse)


_ROWS: tuple[tuple[str, Form], ...] = (
    # What the seeds of this dialect call helpers: they stand for several instructions on each generation.
    ("add64", _operation(Operator.ADD, U64)),
    ("sub64", _operation(Operator.SUB, U64)),
    ("mul64", _operation(Operator.MUL, U64)),
    ("cvt32", Form(Meaning.CONVERT, U32, (U64,))),
    ("cvt64", Form(Meaning.CONVERT, U64, (U32,))),
    ("s_mov_b32 v_mov_b32", _operation(Operator.MOVE, B32, 1)),
    ("s_mov_b64", _operation(Operator.MOVE, B64, 1)),
    ("s_add_u32 s_add_i32 s_add_co_u32 v_add_u32 v_add_nc_u32", _operation(Operator.ADD, U32)),
    ("s_sub_u32 s_sub_i32 s_sub_co_u32 v_sub_u32 v_sub_nc_u32", _operation(Operator.SUB, U32)),
    ("s_add_u64 s_add_nc_u64 v_add_nc_u64", _operation(Operator.ADD, U64)),
    ("s_sub_u64 s_sub_nc_u64 v_sub_nc_u64", _operation(Operator.SUB, U64)),
    ("s_mul_i32 v_mul_lo_u32", _operation(Operator.MUL, U32)),
    ("s_mul_u64 v_mul_u64", _operation(Operator.MUL, U64)),
    ("s_min_u32 v_min_u32", _operation(Operator.MIN, U32)),
    ("s_max_u32 v_max_u32", _operation(Operator.MAX, U32)),
    ("s_min_i32 v_min_i32", _operation(Operator.MIN, S32)),
    ("s_max_i32 v_max_i32", _operation(Operator.MAX, S32)),
    ("s_and_b32 v_and_b32", _operation(Operator.AND, B32)),
    ("s_or_b32 v_or_b32", _operation(Operator.OR, B32)),
    ("s_xor_b32 v_xor_b32", _operation(Operator.XOR, B32)),
    ("s_not_b32 v_not_b32", _operation(Operator.NOT, B32, 1)),
    ("s_and_b64", _operation(Operator.AND, B64)),
    ("s_or_b64", _operation(Operator.OR, B64)),
    ("s_xor_b64", _operation(Operator.XOR, B64)),
    ("s_not_b64", _operation(Operator.NOT, B64, 1)),
    ("s_lshl_b32", _operation(Operator.SHL, U32)),
    ("s_lshl_b64", _operation(Operator.SHL, U64)),
    ("s_lshr_b32", _operation(Operator.SHR, U32)),
    ("s_lshr_b64", _operation(Operator.SHR, U64)),
    ("s_ashr_i32", _operation(Operator.SHR, S32)),
    ("s_ashr_i64", _operation(Operator.SHR, S64)),
    ("v_lshlrev_b32", _operation(Operator.SHL, U32, reverse=True)),
    ("v_lshlrev_b64", _operation(Operator.SHL, U64, reverse=True)),
    ("v_lshrrev_b32", _operation(Operator.SHR, U32, reverse=True)),
    ("v_lshrrev_b64", _operation(Operator.SHR, U64, reverse=True)),
    ("v_ashrrev_i32", _operation(Operator.SHR, S32, reverse=True)),
    ("v_ashrrev_i64", _operation(Operator.SHR, S64, reverse=True)),
    ("s_bcnt1_i32_b32", Form(Meaning.OPERATION, U32, (U32,), Operator.POPC)),
    ("s_bcnt1_i32_b64", Form(Meaning.OPERATION, U32, (U64,), Operator.POPC)),
    ("s_memtime", Form(Meaning.HARDWARE, U64, ())),
    ("s_memrealtime", Form(Meaning.HARDWARE, U64, ())),
    ("s_getreg_b32", Form(Meaning.HARDWARE, U32, (), setting=True)),
    ("s_sendmsg_rtn_b64", Form(Meaning.HARDWARE, U64, (), setting=True)),
)  # fmt: skip

FORMS: Mapping[str, Form] = {name: form for names, form in _ROWS for name in names.split()}
"""By mnemonic, in lower case; in snippets upper case is taken, too."""

HARDWARE_REGISTERS: Mapping[str, frozenset[str]] = {
    "hw_reg_hw_id": frozenset({"gfx9", "gfx10"}),
    "hw_reg_hw_id1": frozenset({"gfx10", "gfx11", "gfx12"}),
    "hw_reg_hw_id2": frozenset({"gfx10", "gfx11", "gfx12"}),
    "hw_reg_xcc_id": frozenset({"gfx94", "gfx95"}),
    "hw_reg_gpr_alloc": frozenset({"gfx9", "gfx10", "gfx11", "gfx12"}),
    "hw_reg_lds_alloc": frozenset({"gfx9", "gfx10", "gfx11", "gfx12"}),
    "hw_reg_mode": frozenset({"gfx9", "gfx10", "gfx11", "gfx12"}),
    "hw_reg_status": frozenset({"gfx9", "gfx10", "gfx11", "gfx12"}),
    "hw_reg_shader_cycles": frozenset({"gfx103", "gfx11"}),
    "hw_reg_shader_cycles_lo": frozenset({"gfx12"}),
    "hw_reg_shader_cycles_hi": frozenset({"gfx12"}),
}  # fmt: skip
"""Registers of the hardware that ``s_getreg_b32`` may read → beginnings of the processors that have them."""

TIMES: Mapping[str, frozenset[str]] = {
    "s_memtime": frozenset({"gfx9", "gfx10"}), "s_memrealtime": frozenset({"gfx9", "gfx10"}),
    "s_sendmsg_rtn_b64": frozenset({"gfx11", "gfx12"}),
}  # fmt: skip
"""Instructions that read times → beginnings of the processors that have them."""

INSTEAD: Mapping[str, str] = {
    "s_memtime": "nl.clock() of a probe in Python is read on every generation",
    "s_memrealtime": "nl.time() of a probe in Python is read on every generation",
    "s_sendmsg_rtn_b64": "nl.time() of a probe in Python is read on every generation",
    "hw_reg_hw_id": "nl.cuid() of a probe in Python is read on every generation",
    "hw_reg_xcc_id": "nl.cuid() of a probe in Python is read on every generation",
    "hw_reg_hw_id1": "nl.cuid() of a probe in Python is read on every generation",
    **dict.fromkeys(
        ("hw_reg_shader_cycles", "hw_reg_shader_cycles_lo", "hw_reg_shader_cycles_hi"),
        "nl.clock() of a probe in Python is read on every generation",
    ),
}  # fmt: skip
"""What only some processors have → the portable helper."""


REALTIME = "sendmsg(MSG_RTN_GET_REALTIME)"
"""What ``s_sendmsg_rtn_b64`` may ask for: the ticks of the clock of 100 MHz."""
SHORT_CYCLES = "hw_reg_shader_cycles"
"""The counter of cycles that has 20 bits, and comes round after so many."""


def has(where: frozenset[str], processor: str) -> bool:
    """Return whether a processor is one of those meant. where: beginnings of their names."""
    return any(processor.startswith(beginning) for beginning in where)
