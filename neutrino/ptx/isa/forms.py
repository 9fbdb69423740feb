"""The forms of ``form_table``: which one an opcode is, its types, which targets know it; which modifiers there are."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.ptx.isa.form_table import ARITHMETIC, FORMS, NEWER_FORMS, Need
from neutrino.ptx.isa.opcodes import OPCODES

TYPE = re.compile(r"pred|[busf](?:8|16|32|64)|b?f16(?:x2)?|[us]16x2|tf32", re.ASCII)
"""A modifier that is a type."""

REGISTER_TYPES = {"bf16": "b16", "bf16x2": "b32", "u16x2": "b32", "s16x2": "b32", "tf32": "b32"}
"""The only register type of those that have none of their own (PTX ISA 9.0, 5.2.3)."""

NO_IMMEDIATES = frozenset({"f16", "f16x2", *REGISTER_TYPES})
"""Types of operands that cannot be numbers."""

_COLLECTIVES = frozenset({"match", "redux", "shfl", "vote"})


@dataclass(frozen=True)
class Form:
    """One row of the table. need: the lowest target that knows it, None where every target does."""

    opcode: str
    modifiers: str
    operands: tuple[str, ...]
    need: Need | None

    @functools.cached_property
    def _slots(self) -> tuple[tuple[frozenset[str], bool], ...]:
        return tuple((frozenset(slot.rstrip("?").split("|")), slot.endswith("?")) for slot in self.modifiers.split())

    def types(self, modifiers: list[str]) -> tuple[str, ...] | None:
        """The types among the modifiers when they fit this form, else None."""
        at = 0
        for words, optional in self._slots:
            if at < len(modifiers) and modifiers[at] in words:
                at += 1
            elif not optional:
                return None
        return None if at < len(modifiers) else tuple(word for word in modifiers if TYPE.fullmatch(word))


@functools.cache
def forms() -> dict[str, tuple[Form, ...]]:
    """The forms by the first part of their opcode."""
    found: dict[str, list[Form]] = {}
    every: list[tuple[Need | None, tuple[tuple[str, str, str], ...]]] = [(None, rows) for rows in FORMS.values()]
    for need, rows in [*every, *NEWER_FORMS.items()]:
        for opcode, modifiers, operands in rows:
            found.setdefault(opcode, []).append(Form(opcode, modifiers, tuple(operands.split()), need))
    return {opcode: tuple(entries) for opcode, entries in found.items()}


@functools.cache
def find_form(opcode: str) -> tuple[Form, tuple[str, ...]] | None:
    """The form of a whole opcode (``add.rn.f32``) and the types among its modifiers; None if no snippet may use it."""
    name, *modifiers = opcode.split(".")
    for form in forms().get(name, ()):
        types = form.types(modifiers)
        if types is not None:
            return form, types
    return None


def operand_type(kind: str, types: tuple[str, ...]) -> str:
    """The type of an operand, from its word in the table and the types among the modifiers."""
    if kind in {"t", "m", "T"}:
        return types[0]
    if kind in {"s", "S"}:
        return types[1]
    if kind == "w":
        return f"{types[0][0]}{2 * bits_of(types[0])}"
    if kind == "p":
        return "pred"
    return {"i": "b32", "lanes": "b32", "byte": "u32"}.get(kind, kind)


def bits_of(kind: str) -> int:
    """Bits of a type; 1 for ``pred``."""
    digits = re.search(r"(\d+)(?:x(2))?$", kind)
    return int(digits[1]) * int(digits[2] or 1) if digits else 1


def fits(register: str, wanted: str, relaxed: bool = False) -> bool:
    """Whether a register of a type can be an operand of another (PTX ISA 9.0, 9.4).

    Sizes must be equal, float and integer are apart, bits go with all. relaxed: a register may be wider.
    """
    if register == "pred" or wanted == "pred":
        return register == wanted
    if wanted in REGISTER_TYPES:
        return register == REGISTER_TYPES[wanted]
    same_class = "b" in (register[0], wanted[0]) or (register[0] == "f") == (wanted[0] == "f")
    if not same_class or ("f16x2" in (register, wanted) and "f32" in (register, wanted)):
        return False
    if relaxed:
        # Registers of a float type are never wider than the instruction's type.
        wider = register[0] != "f" and bits_of(register) >= bits_of(wanted)
        return wider or bits_of(register) == bits_of(wanted)
    return bits_of(register) == bits_of(wanted)


@functools.cache
def misfit(opcode: str, position: int, operand: str, register: str | None) -> str | None:
    """Why a verified instruction cannot read a site's value of a type, in words; None where it can.

    position: among the operands, from 0. operand: its name. register: the type of the register that holds the value,
    None of a number.
    """
    found = find_form(opcode)
    if found is None or position >= len(found[0].operands):
        return None
    form, types = found
    kind = form.operands[position]
    expected = operand_type(kind, types)
    if register is None:
        if expected in NO_IMMEDIATES or expected.startswith("f") or kind == "byte":
            return f"{operand} is a number, but '{opcode}' takes a .{expected} register"
    elif not fits(register, expected, kind == "S"):
        return f"{operand} is .{register}, but '{opcode}' takes .{expected}"
    return None


@functools.cache
def reads_special(opcode: str) -> bool:
    """Whether a verified instruction takes special registers."""
    found = find_form(opcode)
    return found is not None and not {"m", "S"}.isdisjoint(found[0].operands)


def need(opcode: str) -> Need | None:
    """The lowest target that knows a verified instruction; None where every target does."""
    found = find_form(opcode)
    return found[0].need if found else None


@functools.cache
def hidden_arithmetic(opcode: str) -> tuple[str, ...]:
    """Floating-point machine instructions (``FADD`` …) that an opcode becomes though it is not called after them."""
    name, *modifiers = opcode.split(".")
    for other, words, found in ARITHMETIC:
        if other == name and Form(other, words, (), None).types(modifiers) is not None:
            return found
    return ()


def is_collective(opcode: str) -> bool:
    """Whether an instruction involves the warp's other lanes."""
    return opcode.partition(".")[0] in _COLLECTIVES


# Chapter 9, by what they say. Those of the tables of opcodes and of snippets' forms go without saying.
_WORDS = """
    const global local param shared generic
    weak relaxed acquire release acq_rel sc volatile mmio cta cluster gpu sys nc unified
    ca cg cs lu cv wb wt v2 v4 v8 b128
    add and or xor inc dec min max cas exch noftz popc red sync arrive warp aligned
    uni cc hi lo wide sat satfinite ftz approx full rnd rs oob shr7 shr15 po b0 b1 b2 b3 h0 h1 noinc noComplete
    b2b4 b4b8 e2m1 e2m3 e3m2 e4m3 e5m2 ue8m0 ue4m3 e2m1x2 e2m1x4 e2m3x2 e2m3x4 e3m2x2 e3m2x4 e4m3x2 e4m3x4 e5m2x2
    e5m2x4 ue8m0x2 f32x2 b1 b4 s4 u4 s2 u2 b4x16 b6x16 b8x16 b4x16_p64 b6x16_p32 b6p2x16 s2f6x2 scaled
    xorsign abs NaN
    1d 2d 3d a1d a2d cube acube 2dms a2dms base level grad r g b a p trap clamp zero
    width height depth channel_data_type channel_order normalized_coords force_unnormalized_coords filter_mode
    addr_mode_0 addr_mode_1 addr_mode_2 array_size num_mipmap_levels num_samples memory_layout
    texref samplerref surfref
    load store mma row col c d sp block_scale scale trans num x1 x2 x4 x8 x16 x32 x64 x128
    all any ballot up down bfly idx
    async bulk bulk_group commit_group wait_group wait_all read prefetch tensor tile im2col im2col_no_offs reduce
    cp_mask ignore_oob multicast cache_hint fractional fence_proxy proxy alias tensormap mbarrier mbarrier_init
    complete_tx expect_tx parity phase init inval arrive_drop test_wait try_wait pending_count
    global_address rank box_dim global_dim global_stride element_stride elemtype interleave_layout swizzle_mode
    swizzle_atomicity fill_mode
    launch_dependents wait is_canceled get_first_ctaid try_cancel query_cancel
    alloc dealloc relinquish_alloc_permit ld st cp shift commit ws down stats_max ashift
    gl L1 L2 range cvt 4d 5d b1024 mask
"""

_BEFORE_TYPES = frozenset({"const", "global", "local", "param", "shared", "v2", "v4", "v8"})
# Section 9.7.9: ld{.ss}{.vec}.type, and so in all.
_SHAPE = re.compile(r"m\d+n\d+(?:k\d+)?|\d+x\d+b|\d+x\d+|32x32b|16x32bx2", re.ASCII)


def _gathered() -> frozenset[str]:
    words = set(_WORDS.split())
    for row in OPCODES:
        words.update(part for alternatives in row.name[1:] for part in alternatives)
    for rows in forms().values():
        words.update(word for form in rows for slot in form.modifiers.split() for word in slot.rstrip("?").split("|"))
    return frozenset(words)


MODIFIERS = _gathered()
"""Their words, those before a ``::``."""


def is_modifier(word: str) -> bool:
    """Whether some instruction has it. Of qualified ones (``L2::128B``) nothing is said: they pass."""
    return "::" in word or word in MODIFIERS or bool(TYPE.fullmatch(word) or _SHAPE.fullmatch(word))


def behind_type(opcode: Sequence[str]) -> int | None:
    """The part that is a state space or a vector after a type, which no instruction has; None without one."""
    typed = False
    for index, word in enumerate(opcode[1:], 1):
        if typed and word in _BEFORE_TYPES:
            return index
        typed = typed or bool(TYPE.fullmatch(word))
    return None


def types_last(opcode: Sequence[str]) -> list[str]:
    """The parts of an opcode with its types after the others."""
    return [opcode[0], *sorted(opcode[1:], key=lambda word: bool(TYPE.fullmatch(word)))]
