"""Accesses to memory by AMD's instructions: which memory, how many bytes a lane, and which operand has which part.

As the table of ``mnemonics``, it is closed: what is not in it is not known.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from neutrino.gcn.code import Instruction
from neutrino.gcn.isa.mnemonics import expand


class Space(enum.Enum):
    """Which memory an access is to.

    ``GENERIC``: the address says which. ``BUFFER``: global memory, by a descriptor with bounds. ``SCALAR``: global
    memory, once for all lanes. ``LOCAL``: a lane's own (scratch). ``SHARED``: a work-group's (LDS).
    """

    GLOBAL = "global"
    GENERIC = "generic"
    BUFFER = "buffer"
    SCALAR = "scalar"
    LOCAL = "local"
    SHARED = "shared"


class Kind(enum.Enum):
    """What an access does. ``COPY``: loads into LDS, past registers."""

    LOAD = "load"
    STORE = "store"
    ATOMIC = "atomic"
    COPY = "copy"


class Access(NamedTuple):
    """An access to memory.

    size: bytes of each lane; of scalar accesses, of the wave. addresses: how many, each with its part of ``size``.
    keeps_half: whether its result leaves the other half of a register as it is. returns: whether an atomic access
    always gives the old value; that of the others depends on a modifier. uses_m0: whether M0 has a part of the address.
    """

    kind: Kind
    space: Space
    size: int
    addresses: int = 1
    keeps_half: bool = False
    returns: bool = False
    uses_m0: bool = False


class Operands(NamedTuple):
    """Operands of an access by their part, as LLVM prints them; "" for those that it lacks.

    result: what is loaded, or the old value. address: a VGPR's part of the address, or ``off``. base: the scalar part,
    or the buffer's descriptor. offset: a scalar offset besides. data: what is stored or combined. immediate: bytes
    that are added to the address.
    """

    result: str
    address: str
    base: str
    offset: str
    data: tuple[str, ...]
    immediate: int


_LOADED = {
    "ubyte": 1, "sbyte": 1, "u8": 1, "i8": 1, "ushort": 2, "sshort": 2, "u16": 2, "i16": 2, "dword": 4, "dwordx2": 8,
    "dwordx3": 12, "dwordx4": 16, "b32": 4, "b64": 8, "b96": 12, "b128": 16,
}  # fmt: skip
_HALVES = {
    "ubyte_d16": 1, "ubyte_d16_hi": 1, "sbyte_d16": 1, "sbyte_d16_hi": 1, "short_d16": 2, "short_d16_hi": 2,
    "d16_u8": 1, "d16_hi_u8": 1, "d16_i8": 1, "d16_hi_i8": 1, "d16_b16": 2, "d16_hi_b16": 2,
}  # fmt: skip
_STORED = {
    "byte": 1, "short": 2, "byte_d16_hi": 1, "short_d16_hi": 2, "b8": 1, "b16": 2, "d16_hi_b8": 1, "d16_hi_b16": 2,
    "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "b32": 4, "b64": 8, "b96": 12, "b128": 16,
}  # fmt: skip
_ATOMICS = {
    "{swap,cmpswap,add,sub,smin,umin,smax,umax,and,or,xor,inc,dec,csub,fmin,fmax,fcmpswap,pk_add_f16,pk_add_bf16}": 4,
    "{swap,cmpswap,add,sub,smin,umin,smax,umax,and,or,xor,inc,dec,fmin,fmax,fcmpswap}_x2": 8,
    "{add,min,max,cmpswap,min_num,max_num}_f32": 4, "{add,min,max,min_num,max_num}_f64": 8,
    "{swap,cmpswap,and,or,xor}_b32": 4, "{swap,cmpswap,and,or,xor}_b64": 8,
    "{add,sub,inc,dec,min,max}_{u32,i32}": 4, "{add,sub,inc,dec,min,max}_{u64,i64}": 8,
    "{csub,sub_clamp,cond_sub}_u32": 4, "ordered_add_b64": 8,
}  # fmt: skip
_SPACES = {"global": Space.GLOBAL, "flat": Space.GENERIC, "scratch": Space.LOCAL, "buffer": Space.BUFFER}

_DS_LOADED = {"b32": 4, "b64": 8, "b96": 12, "b128": 16, "u8": 1, "i8": 1, "u16": 2, "i16": 2}
_DS_HALVES = {f"{name}_d16{end}": size for name, size in (("u8", 1), ("i8", 1), ("u16", 2)) for end in ("", "_hi")}
_DS_STORED = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16, "b8_d16_hi": 1, "b16_d16_hi": 2}
_DS_ATOMICS = {
    "{add,sub,rsub,inc,dec,min,max}{,_rtn}_u32": 4, "{add,sub,rsub,inc,dec,min,max}{,_rtn}_u64": 8,
    "{min,max}{,_rtn}_i32": 4, "{min,max}{,_rtn}_i64": 8, "{and,or,xor,mskor,cmpst,cmpstore}{,_rtn}_b32": 4,
    "{and,or,xor,mskor,cmpst,cmpstore}{,_rtn}_b64": 8, "{wrxchg,storexchg}_rtn_b32": 4,
    "{wrxchg,storexchg}_rtn_b64": 8, "{add,min,max,min_num,max_num,cmpst,cmpstore}{,_rtn}_f32": 4,
    "{add,min,max,min_num,max_num,cmpst,cmpstore}{,_rtn}_f64": 8, "pk_add{,_rtn}_{f16,bf16}": 4,
    "{sub_clamp,cond_sub}{,_rtn}_u32": 4, "condxchg32_rtn_b64": 8,
}  # fmt: skip
_SCALARS = {
    "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "dwordx8": 32, "dwordx16": 64, "b32": 4, "b64": 8,
    "b96": 12, "b128": 16, "b256": 32, "b512": 64, "u8": 1, "i8": 1, "u16": 2, "i16": 2,
}  # fmt: skip

CACHES = frozenset(
    {
        "buffer_inv", "buffer_wbl2", "buffer_gl0_inv", "buffer_gl1_inv", "buffer_wbinvl1", "buffer_wbinvl1_vol",
        "buffer_invl2", "global_inv", "global_wb", "global_wbinv",
    }
)  # fmt: skip
"""What changes caches alone."""
ACROSS_LANES = {"ds_permute_b32": 1, "ds_bpermute_b32": 1, "ds_bpermute_fi_b32": 1, "ds_swizzle_b32": 1, "ds_nop": 0}
"""What has LDS's encoding and accesses no memory → how many operands it writes."""


@functools.cache
def accesses() -> Mapping[str, Access]:
    """Return how each instruction that accesses memory does so, by its mnemonic."""
    found: dict[str, Access] = {}
    for prefix, space in _SPACES.items():
        for name, size in _LOADED.items():
            found[f"{prefix}_load_{name}"] = Access(Kind.LOAD, space, size)
            if prefix in ("global", "scratch"):
                found[f"{prefix}_load_lds_{name}"] = Access(Kind.COPY, space, size, uses_m0=True)
        for name, size in _HALVES.items():
            found[f"{prefix}_load_{name}"] = Access(Kind.LOAD, space, size, keeps_half=True)
        for name, size in _STORED.items():
            found[f"{prefix}_store_{name}"] = Access(Kind.STORE, space, size)
        for names, size in _ATOMICS.items():
            for name in expand(names):
                if prefix != "scratch":
                    found[f"{prefix}_atomic_{name}"] = Access(Kind.ATOMIC, space, size)
    for name, size in (("b64", 8), ("b128", 16)):
        found[f"global_load_tr_{name}"] = Access(Kind.LOAD, Space.GLOBAL, size)
    return {**found, **_shared(), **_scalar()}


def _scalar() -> dict[str, Access]:
    """Return how the scalar unit's loads and stores access memory, by their mnemonics."""
    found: dict[str, Access] = {}
    for name, size in _SCALARS.items():
        for prefix in ("s_load", "s_buffer_load", "s_scratch_load"):
            found[f"{prefix}_{name}"] = Access(Kind.LOAD, Space.SCALAR, size)
        for prefix in ("s_store", "s_buffer_store", "s_scratch_store"):
            found[f"{prefix}_{name}"] = Access(Kind.STORE, Space.SCALAR, size)
    return found


def _shared() -> dict[str, Access]:
    """Return how instructions access LDS (the memory of a work-group), by their mnemonics."""
    found: dict[str, Access] = {}
    shared = Space.SHARED
    for old, new in (("read", "load"), ("write", "store")):
        kind = Kind.LOAD if old == "read" else Kind.STORE
        sizes = _DS_LOADED if old == "read" else _DS_STORED
        for verb in (old, new):
            found |= {f"ds_{verb}_{name}": Access(kind, shared, size) for name, size in sizes.items()}
            found[f"ds_{verb}_addtid_b32"] = Access(kind, shared, 4, uses_m0=True)
        for size in (32, 64):
            for verb in (f"{old}2", f"{old}2st64", f"{new}_2addr", f"{new}_2addr_stride64"):
                found[f"ds_{verb}_b{size}"] = Access(kind, shared, size // 4, addresses=2)
    for verb in ("read", "load"):
        for name, size in _DS_HALVES.items():
            found[f"ds_{verb}_{name}"] = Access(Kind.LOAD, shared, size, keeps_half=True)
    for name, size in (("b64_tr_b4", 8), ("b64_tr_b8", 8), ("b64_tr_b16", 8), ("b96_tr_b6", 12)):
        found[f"ds_read_{name}"] = Access(Kind.LOAD, shared, size)
    for names, size in _DS_ATOMICS.items():
        for name in expand(names):
            found[f"ds_{name}"] = Access(Kind.ATOMIC, shared, size, returns="_rtn" in name)
    for name in ("ds_append", "ds_consume"):
        found[name] = Access(Kind.ATOMIC, shared, 4, returns=True, uses_m0=True)
    return found


def access_of(instruction: Instruction) -> Access | None:
    """Return how an instruction accesses memory, None if it does not or is not known."""
    access = accesses().get(instruction.mnemonic)
    if access is not None and access.kind is Kind.LOAD and "lds" in instruction.modifiers:
        # Into LDS, past registers.
        return access._replace(kind=Kind.COPY, uses_m0=True)
    return access


def gives_result(instruction: Instruction, access: Access) -> bool:
    """Return whether an instruction that accesses memory writes registers: a load, or an atomic that returns the old
    value."""
    if access.kind is not Kind.ATOMIC:
        return access.kind is Kind.LOAD
    return access.returns or (
        access.space is not Space.SHARED
        and any(word in ("glc", "sc0") or _RETURNS.fullmatch(word) for word in instruction.modifiers)
    )


_RETURNS = re.compile(r"th:(TH_ATOMIC_(\w+_)?RETURN|[357]|TH_ATOMIC_RT_RETURN)")
_OFFSET = re.compile(r"offset:(-?(?:0x)?[0-9a-fA-F]+)")


def operands_of(instruction: Instruction, access: Access) -> Operands:
    """Return which operand of an instruction that accesses memory is which: address, data and so on.

    access: as ``access_of`` gives it.
    """
    operands = list(instruction.operands)
    found = next((match for word in instruction.modifiers if (match := _OFFSET.fullmatch(word))), None)
    immediate = int(found[1], 0) if found else 0
    result = gives_result(instruction, access)
    is_store = access.kind in (Kind.STORE, Kind.ATOMIC)
    first = ""
    if access.space is Space.BUFFER:
        # What is loaded, stored or combined comes first, and is the old value's place too.
        if access.kind is not Kind.COPY:
            first = operands.pop(0)
        address, base, offset = _padded(operands, 3)
        return Operands(first if result else "", address, base, offset, (first,) if is_store else (), immediate)
    if result:
        first = operands.pop(0)
    if access.space is Space.SCALAR:
        data = () if result else (operands.pop(0),)
        base, offset = _padded(operands, 2)
        return Operands(first, "", base, offset, data, immediate)
    if access.space is Space.SHARED:
        address, *values = operands or [""]
        return Operands(first, address, "", "", tuple(value for value in values if value != "gds"), immediate)
    address = operands.pop(0) if operands else ""
    data = (operands.pop(0),) if is_store and operands else ()
    return Operands(first, address, operands[0] if operands else "", "", data, immediate)


def _padded(operands: list[str], count: int) -> list[str]:
    """Return the first operands, with empty ones for those that are missing."""
    return [*operands, *[""] * count][:count]
