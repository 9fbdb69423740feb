"""Looks up opcodes in ``form_table``: their form, operand types and targets.

Also knows all modifiers of PTX, the types that an instruction of the program gives its operands, and gives hints on how
to write an instruction.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from neutrino.lazy import lazy
from neutrino.ptx.isa.form_table import ARITHMETIC, FORMS, NEWER_FORMS, Need
from neutrino.ptx.isa.opcodes import OPCODES

TYPES = frozenset(
    {"pred", "f16", "bf16", "f16x2", "bf16x2", "u16x2", "s16x2", "tf32"}
    | {f"{letter}{bits}" for letter in "busf" for bits in (8, 16, 32, 64)}
)
"""A modifier that is a type."""

REGISTER_TYPES = {"bf16": "b16", "bf16x2": "b32", "u16x2": "b32", "s16x2": "b32", "tf32": "b32"}
"""Types that registers cannot have → the only type of registers for such values (PTX ISA 9.0, 5.2.3)."""

NO_IMMEDIATES = frozenset({"f16", "f16x2", *REGISTER_TYPES})
"""Types of operands that cannot be literals."""

_COLLECTIVES = frozenset({"match", "redux", "shfl", "vote"})
"""Opcodes that exchange values between lanes of a warp."""


@dataclass(frozen=True)
class Form:
    """One row of the table. need: the lowest target with it, None if every target has it."""

    opcode: str
    modifiers: str
    operands: tuple[str, ...]
    need: Need | None

    @lazy
    def _slots(self) -> tuple[tuple[frozenset[str], bool], ...]:
        """The modifiers in order: the alternatives of each, and whether it may be absent."""
        return tuple((frozenset(slot.rstrip("?").split("|")), slot.endswith("?")) for slot in self.modifiers.split())

    def types(self, modifiers: list[str]) -> tuple[str, ...] | None:
        """Return the types among the modifiers of an opcode, in order; None if the modifiers do not fit this form.

        modifiers: the parts of the opcode after the first, such as ``rn`` and ``f32``.
        """
        index = 0  # of the first modifier that has no slot yet
        for alternatives, is_optional in self._slots:
            if index < len(modifiers) and modifiers[index] in alternatives:
                index += 1
            elif not is_optional:
                return None
        has_further_modifiers = index < len(modifiers)
        return None if has_further_modifiers else tuple(word for word in modifiers if word in TYPES)


@functools.cache
def forms() -> dict[str, tuple[Form, ...]]:
    """Return all forms of instructions that snippets may use, by the first part of their opcode (``add``)."""
    by_opcode: dict[str, list[Form]] = {}
    # No need: every target has the forms of FORMS.
    for_all_targets: list[tuple[Need | None, tuple[tuple[str, str, str], ...]]] = [
        (None, rows) for rows in FORMS.values()
    ]
    for need, rows in [*for_all_targets, *NEWER_FORMS.items()]:
        for opcode, modifiers, operands in rows:
            by_opcode.setdefault(opcode, []).append(Form(opcode, modifiers, tuple(operands.split()), need))
    return {opcode: tuple(opcode_forms) for opcode, opcode_forms in by_opcode.items()}


@functools.cache
def find_form(opcode: str) -> tuple[Form, tuple[str, ...]] | None:
    """Return the form of an opcode (``add.rn.f32``) and the types in it, in order; None if snippets may not use it."""
    name, *modifiers = opcode.split(".")
    for form in forms().get(name, ()):
        types = form.types(modifiers)
        if types is not None:
            return form, types
    return None


def operand_type(kind: str, types: tuple[str, ...]) -> str:
    """Return the PTX type of one operand of a snippet's instruction.

    kind: of ``form_table``; it may also be a type itself (``u32``). types: those among the modifiers, in order.
    """
    if kind in {"t", "m", "T"}:
        return types[0]
    if kind in {"s", "S"}:
        return types[1]
    if kind == "w":
        # The same class (u, s), twice as wide.
        return f"{types[0][0]}{2 * bits_of(types[0])}"
    if kind == "p":
        return "pred"
    return {"i": "b32", "lanes": "b32", "byte": "u32"}.get(kind, kind)


def bits_of(type_name: str) -> int:
    """Return the width of a PTX type (``u16``, ``f16x2``) in bits; 1 for ``pred``."""
    element = type_name.removesuffix("x2")
    digits = element[len(element.rstrip("0123456789")) :]
    if not digits:
        return 1
    # Of f16x2: the bits of an element, and their number.
    return int(digits) * (1 if element == type_name else 2)


def fits(register: str, expected: str, may_be_wider: bool = False) -> bool:
    """Return whether a register of a type can be an operand of the expected type (PTX ISA 9.0, 9.4).

    register, expected: PTX types, without the dot. The sizes must be equal. Integer registers do not fit float
    operands, nor the reverse; untyped bits (``b32``) fit both. may_be_wider: an integer register may have more bits
    than the operand.
    """
    if register == "pred" or expected == "pred":
        return register == expected
    if expected in REGISTER_TYPES:
        return register == REGISTER_TYPES[expected]
    same_class = "b" in (register[0], expected[0]) or (register[0] == "f") == (expected[0] == "f")
    # f16x2 and f32 have the same class and size, but are not interchangeable.
    if not same_class or ("f16x2" in (register, expected) and "f32" in (register, expected)):
        return False
    if may_be_wider:
        # Float registers must not be wider, even then.
        is_wide_enough = register[0] != "f" and bits_of(register) >= bits_of(expected)
        return is_wide_enough or bits_of(register) == bits_of(expected)
    return bits_of(register) == bits_of(expected)


@functools.cache
def misfit(opcode: str, position: int, operand: str, register: str | None) -> str | None:
    """Return in words why an instruction of a snippet cannot read a value of the probed instruction; None if it can.

    The verifier of snippets cannot check this: which type ``OUT`` or ``IN1`` has depends on the probed instruction.

    opcode: of the snippet's instruction. position: of the operand, from 0. operand: the name of the value (``IN1``).
    register: the type of the register that holds the value, None if it is a number.
    """
    form_and_types = find_form(opcode)
    # Never so for verified instructions: they have a form, and as many operands as it.
    if form_and_types is None:
        return None
    form, types = form_and_types
    if position >= len(form.operands):
        return None
    kind = form.operands[position]
    expected = operand_type(kind, types)
    if register is None:
        # It is an integer, while immediates of float operands are floats. "byte" operands are registers only.
        if expected in NO_IMMEDIATES or expected.startswith("f") or kind == "byte":
            return f"{operand} is a number, but '{opcode}' takes a .{expected} register"
    # Of the kinds of sources, only S may be a wider register.
    elif not fits(register, expected, may_be_wider=kind == "S"):
        said = f"{operand} is .{register}, but '{opcode}' takes .{expected}"
        if register == "pred":
            return f"{said}: mov has it in a register of integers as 1 or 0"
        width = bits_of(register)
        is_width = expected != "pred" and width != bits_of(expected)
        return said + (f": take it as one of {width} bits: u{width}, s{width}, f{width}" if is_width else "")
    return None


@functools.cache
def reads_special(opcode: str) -> bool:
    """Return whether a verified instruction can read special registers, such as ``%tid.x``."""
    form_and_types = find_form(opcode)
    if form_and_types is None:
        return False  # not a verified instruction
    form, _ = form_and_types
    # The kinds of operands that may be a special register.
    return not {"m", "S"}.isdisjoint(form.operands)


def need(opcode: str) -> Need | None:
    """Return the lowest PTX version and ``sm_`` that have a verified instruction; None if every target has it."""
    form_and_types = find_form(opcode)
    if form_and_types is None:
        return None  # not of a verified instruction
    form, _ = form_and_types
    return form.need


@functools.cache
def hidden_arithmetic(opcode: str) -> tuple[str, ...]:
    """Return the floating-point machine instructions (``FADD`` …) of an opcode whose name does not show them.

    For example, ``sin.approx.f32`` contains an ``FMUL``; the result is () for opcodes without any.
    """
    name, *modifiers = opcode.split(".")
    for row_name, row_modifiers, machine_instructions in ARITHMETIC:
        # A form without operands, only to match the modifiers.
        if row_name == name and Form(row_name, row_modifiers, (), None).types(modifiers) is not None:
            return machine_instructions
    return ()


def is_collective(opcode: str) -> bool:
    """Return whether an instruction exchanges values with other lanes of the warp."""
    return opcode.partition(".")[0] in _COLLECTIVES


# Further modifiers in chapter 9 of the manual, grouped by meaning; those in the two tables need not be listed.
_OTHER_MODIFIERS = """
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

# PTX ISA, 9.7.9: ld{.ss}{.vec}.type. All instructions have state space and vector before the type.
_BEFORE_TYPES = frozenset({"const", "global", "local", "param", "shared", "v2", "v4", "v8"})
_SHAPES = frozenset({"m#n#", "m#n#k#", "#x#", "#x#b", "#x#bx#"})
"""Shapes of matrices and of tensor memory, with ``#`` for each number."""


def _all_modifiers() -> frozenset[str]:
    """Collect the modifiers of all opcodes, of the forms that snippets may use, and ``_OTHER_MODIFIERS``."""
    words = set(_OTHER_MODIFIERS.split())
    for row in OPCODES:
        # The first part of a name is no modifier.
        words.update(part for alternatives in row.name[1:] for part in alternatives)
    for rows in forms().values():
        slots = (slot for form in rows for slot in form.modifiers.split())
        words.update(word for slot in slots for word in slot.rstrip("?").split("|"))
    return frozenset(words)


MODIFIERS = _all_modifiers()
"""All modifiers of PTX, without ``::`` and the sub-qualifier after it."""


def is_modifier(word: str) -> bool:
    """Return whether some instruction of PTX has a modifier.

    Words with a sub-qualifier (``L2::128B``) are not checked: the result is True for any.
    """
    return "::" in word or word in MODIFIERS or word in TYPES or _without_numbers(word) in _SHAPES


def _without_numbers(word: str) -> str:
    """A word with ``#`` in place of each number."""
    parts = groupby(word, str.isdecimal)
    return "".join("#" if is_number else "".join(characters) for is_number, characters in parts)


def misplaced_modifier(opcode: Sequence[str]) -> int | None:
    """Return the index of a state space or vector modifier that follows a type (``f32`` before ``global``), else None.

    No instruction of PTX has that order, so a tracepoint with it matches nothing. opcode: its dotted parts.
    """
    is_after_type = False
    for index, word in enumerate(opcode[1:], 1):
        if is_after_type and word in _BEFORE_TYPES:
            return index
        is_after_type = is_after_type or word in TYPES
    return None


def types_last(opcode: Sequence[str]) -> list[str]:
    """Return the dotted parts of an opcode with its types moved to the end."""
    # The sort is stable, and False (no type) comes before True.
    return [opcode[0], *sorted(opcode[1:], key=lambda word: word in TYPES)]


def example(opcode: str, types: tuple[str, ...], form: Form) -> str:
    """Return an opcode with an operand of the right type in each place, such as ``add.u32 %u32, %u32, %u32;``.

    It is shown in hints. types: those among its modifiers. form: its row in ``form_table``.
    """
    words = []
    for operand in form.operands:
        # Without the marks of destinations ("="), and of two of them only the first ("t|p?").
        kind = operand.lstrip("=").rstrip("?").partition("|")[0]
        if kind == "lanes":
            words.append("LANES")
        elif kind == "i":
            words.append("1")
        else:
            expected = operand_type(kind, types)
            words.append(f"%{REGISTER_TYPES.get(expected, expected)}")
    return f"{opcode} {', '.join(words)};"


def form_hint(name: str, modifiers: list[str]) -> str:
    """Return a hint, for an error message, what to write in place of an opcode whose modifiers no form has.

    name: the first part of the opcode, which some forms have. modifiers: its other parts. The hint lists the forms with
    the same last modifier, which is the type; all forms of the name if there are none.
    """
    type_word = modifiers[-1] if modifiers else ""
    rows = forms()[name]
    # rn: to the nearest float. rni: to the nearest integer.
    for rounding in ("rn", "rni"):
        if find_form(".".join((name, rounding, *modifiers))):
            return f"floating-point instructions carry their rounding: {'.'.join((name, rounding, *modifiers))}"
    if name == "div" and type_word in {"f32", "f64", "f16", "bf16"}:
        return "divisions of fractions become calls: multiply by rcp.approx.f32, or save both and divide afterwards"
    if name in {"div", "rem"} and type_word in {"u16", "s16"}:
        wide = f"{type_word[0]}32"
        return f"ptxas makes it floating-point: cvt.{wide}.{type_word} both operands, {name}.{wide}, and cvt back"
    if name in {"div", "rem"} and type_word in {"u64", "s64"}:
        return "it becomes a call: divide in 32 bits, shift by a power of two, or save both and divide afterwards"
    same_type = [row for row in rows if any(type_word in slot.rstrip("?").split("|") for slot in row.modifiers.split())]
    return "known: " + ", ".join(".".join((name, *row.modifiers.split())) for row in same_type or rows)


FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
"""Types of a single floating-point number. Pairs of halves (``f16x2``) are bits: no field of a record holds them."""

# Opcodes whose last type is that of the value that they move between registers and memory. The value's operand: 0 for
# the result, else the number of the input.
_MEMORY = {"ld": (0,), "ldu": (0,), "st": (2,), "atom": (0, 2, 3), "red": (2, 3)}
# Opcodes whose result and inputs have one type, if there is one type among their modifiers.
_UNIFORM = frozenset({
    "add", "sub", "mul", "fma", "mad", "div", "rem", "abs", "neg", "min", "max", "rcp", "sqrt", "rsqrt", "sin", "cos",
    "lg2", "ex2", "tanh", "copysign",
})  # fmt: skip
_WIDENING = "wide"


def is_untyped(kind: str) -> bool:
    """Return whether a PTX type says nothing of what its bits mean."""
    return kind[0] == "b" and not kind.startswith("bf")


@functools.cache
def value_type(opcode: str, operand: int) -> str | None:
    """Return the type that an instruction gives an operand; None if its opcode does not say.

    opcode: whole, as in a kernel (``ld.global.nc.f32``). operand: 0 for the result, else the number of the input.
    """
    parts = opcode.split(".")
    in_memory = _in_memory(parts, operand)
    if in_memory is not None:
        return in_memory
    known = find_form(opcode)
    if known is None:
        return _uniform(parts)
    form, types = known
    results = [kind for kind in form.operands if kind.startswith("=")]
    inputs = [kind for kind in form.operands if not kind.startswith("=")]
    kinds = inputs[operand - 1 : operand] if operand else results[:1]
    # Of a destination that may be two registers ("=t|p?") the first.
    return operand_type(kinds[0].lstrip("=").partition("|")[0].rstrip("?"), types) if kinds else None


def type_by_pattern(pattern: Sequence[str], operand: int) -> str | None:
    """Return the type that each instruction which an opcode pattern matches gives an operand.

    None: the pattern does not say, or what it says are bits. pattern: the dotted parts, some of which the instructions
    may have more of. operand: see ``value_type``.
    """
    kind = _in_memory(pattern, operand) or _uniform(pattern)
    return kind if kind is not None and (kind in FLOATS or kind[0] in "us") else None


def field_for(kind: str) -> str:
    """Return the type of a field that holds values of a PTX type (``FLOATS``, an integer or ``pred``) exactly."""
    if kind == "pred":
        return "u32"
    return {"f16": "f32", "bf16": "f32"}.get(kind, kind)


def _in_memory(parts: Sequence[str], operand: int) -> str | None:
    """Return the type of a value that a load, store or atomic moves; None for other instructions and operands."""
    if operand not in _MEMORY.get(parts[0], ()) or "async" in parts or "bulk" in parts:
        return None
    types = [part for part in parts[1:] if part in TYPES]
    return types[-1] if types else None


def _uniform(parts: Sequence[str]) -> str | None:
    """Return the one type of an arithmetic instruction, which all its operands have; None if that is not so."""
    types = [part for part in parts[1:] if part in TYPES]
    return types[0] if parts[0] in _UNIFORM and len(types) == 1 and _WIDENING not in parts else None
