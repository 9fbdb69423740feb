"""The instructions that a probe's snippet may use, by the sections of the PTX ISA 9.0 manual.

They only read and write registers: no memory, no synchronization, no branch, no carry flag. Floating-point forms name
their rounding, since ``ptxas`` may fuse those that do not. Floating-point divisions are left out, since they become
function calls.

A form is ``(opcode, modifiers, operands)``. Modifiers: alternatives joined by ``|``, with ``?`` after those that may be
absent. Operands, with ``=`` before a destination, are kinds:
    t, s    the first and second type among the modifiers
    T, S    as t and s, or a wider integer register; S also a special register
    m       as t, or a special register
    w       an integer of twice the width of t
    p       a predicate, as a source also ``!p``
    t|p     two destinations; ``t|p?``: two, or the first alone
    i       a number from 0 to 255
    byte    as i, or a ``u32`` register
    lanes   the mask of lanes that participate
or a type itself.
"""

from __future__ import annotations

Form = tuple[str, str, str]
Need = tuple[tuple[int, int], int]
"""The lowest ``.version`` and ``sm_`` with an instruction."""

_INTS = "u16|u32|u64|s16|s32|s64"
_BITS = "b16|b32|b64"
_ROUND = "rn|rz|rm|rp"
_ROUND_TO_INT = "rni|rzi|rmi|rpi"
_COMPARE = "eq|ne|lt|le|gt|ge"
_COMPARE_FLOAT = _COMPARE + "|equ|neu|ltu|leu|gtu|geu|num|nan"
_JOIN = "and|or|xor"

# Saturation that cannot happen is a fault (``cvt.sat.u32.u32``).
_SATURATING = (
    ("u8", "s8|u16|s16|u32|s32|u64|s64"), ("s8", "u8|u16|s16|u32|s32|u64|s64"),
    ("u16", "s8|s16|u32|s32|u64|s64"), ("s16", "u16|u32|s32|u64|s64"),
    ("u32", "s8|s16|s32|u64|s64"), ("s32", "u32|u64|s64"), ("u64", "s8|s16|s32|s64"), ("s64", "u64"),
)  # fmt: skip

FORMS: dict[str, tuple[Form, ...]] = {
    "9.7.1 integer arithmetic": (
        ("add", _INTS, "=t t t"),
        ("add", "sat s32", "=t t t"),
        ("sub", _INTS, "=t t t"),
        ("sub", "sat s32", "=t t t"),
        ("mul", f"lo|hi {_INTS}", "=t t t"),
        ("mul", "wide u16|u32|s16|s32", "=w t t"),
        ("mad", f"lo|hi {_INTS}", "=t t t t"),
        ("mad", "wide u16|u32|s16|s32", "=w t t w"),
        ("mad", "hi sat s32", "=t t t t"),
        ("mul24", "lo|hi u32|s32", "=t t t"),
        ("mad24", "lo|hi u32|s32", "=t t t t"),
        ("sad", _INTS, "=t t t t"),
        # Not of 16 bits, which ptxas computes in floating point, nor of 64, which it calls a function for.
        ("div", "u32|s32", "=t t t"),
        ("rem", "u32|s32", "=t t t"),
        ("abs", "s16|s32|s64", "=t t"),
        ("neg", "s16|s32|s64", "=t t"),
        ("min", _INTS, "=t t t"),
        ("max", _INTS, "=t t t"),
        ("popc", "b32|b64", "=u32 t"),
        ("clz", "b32|b64", "=u32 t"),
        ("bfind", "shiftamt? u32|u64|s32|s64", "=u32 t"),
        ("fns", "b32", "=t t u32 s32"),
        ("brev", "b32|b64", "=t t"),
        ("bfe", "u32|u64|s32|s64", "=t t byte byte"),
        ("bfi", "b32|b64", "=t t t byte byte"),
        ("dp4a", "u32|s32 u32|s32", "=u32 t s u32"),
        ("dp2a", "lo|hi u32|s32 u32|s32", "=u32 t s u32"),
    ),
    "9.7.3 floating point": (
        ("add", f"{_ROUND} ftz? sat? f32", "=t t t"),
        ("add", f"{_ROUND} f64", "=t t t"),
        ("sub", f"{_ROUND} ftz? sat? f32", "=t t t"),
        ("sub", f"{_ROUND} f64", "=t t t"),
        ("mul", f"{_ROUND} ftz? sat? f32", "=t t t"),
        ("mul", f"{_ROUND} f64", "=t t t"),
        ("fma", f"{_ROUND} ftz? sat? f32", "=t t t t"),
        ("fma", f"{_ROUND} f64", "=t t t t"),
        ("abs", "ftz? f32", "=t t"),
        ("abs", "f64", "=t t"),
        ("neg", "ftz? f32", "=t t"),
        ("neg", "f64", "=t t"),
        ("min", "ftz? f32", "=t t t"),
        ("min", "f64", "=t t t"),
        ("max", "ftz? f32", "=t t t"),
        ("max", "f64", "=t t t"),
        ("testp", "finite|infinite|number|notanumber|normal|subnormal f32|f64", "=p t"),
        ("copysign", "f32|f64", "=t t t"),
        ("rcp", "approx ftz? f32", "=t t"),
        ("sqrt", "approx ftz? f32", "=t t"),
        ("rsqrt", "approx ftz? f32", "=t t"),
        ("ex2", "approx ftz? f32", "=t t"),
        ("lg2", "approx ftz? f32", "=t t"),
        ("sin", "approx ftz? f32", "=t t"),
        ("cos", "approx ftz? f32", "=t t"),
    ),
    "9.7.4 half precision": (
        ("add", "rn ftz? sat? f16|f16x2", "=t t t"),
        ("sub", "rn ftz? sat? f16|f16x2", "=t t t"),
        ("mul", "rn ftz? sat? f16|f16x2", "=t t t"),
        ("fma", "rn ftz? sat? f16|f16x2", "=t t t t"),
        ("abs", "ftz? f16|f16x2", "=t t"),
        ("neg", "ftz? f16|f16x2", "=t t"),
        ("setp", f"{_COMPARE_FLOAT} ftz? f16", "=p t t"),
        ("setp", f"{_COMPARE_FLOAT} {_JOIN} ftz? f16", "=p t t p"),
        ("setp", f"{_COMPARE_FLOAT} ftz? f16x2", "=p|p t t"),
        ("setp", f"{_COMPARE_FLOAT} {_JOIN} ftz? f16x2", "=p|p t t p"),
        ("set", f"{_COMPARE_FLOAT} ftz? u16|s16|u32|s32|f16 f16", "=t s s"),
        ("set", f"{_COMPARE_FLOAT} ftz? f16x2 f16x2", "=t s s"),
    ),
    "9.7.6 comparison and selection": (
        ("setp", f"{_COMPARE} {_INTS}", "=p|p? t t"),
        ("setp", "lo|ls|hi|hs u16|u32|u64", "=p|p? t t"),
        ("setp", f"eq|ne {_BITS}", "=p|p? t t"),
        ("setp", f"{_COMPARE_FLOAT} ftz? f32", "=p|p? t t"),
        ("setp", f"{_COMPARE_FLOAT} f64", "=p|p? t t"),
        ("setp", f"{_COMPARE} {_JOIN} {_INTS}", "=p|p? t t p"),
        ("setp", f"eq|ne {_JOIN} {_BITS}", "=p|p? t t p"),
        ("setp", f"{_COMPARE_FLOAT} {_JOIN} ftz? f32", "=p|p? t t p"),
        ("setp", f"{_COMPARE_FLOAT} {_JOIN} f64", "=p|p? t t p"),
        ("set", f"{_COMPARE} u32|s32|f32 {_INTS}", "=t s s"),
        ("set", f"eq|ne u32|s32|f32 {_BITS}", "=t s s"),
        ("set", f"{_COMPARE_FLOAT} ftz? u32|s32|f32 f32", "=t s s"),
        ("set", f"{_COMPARE_FLOAT} u32|s32|f32 f64", "=t s s"),
        ("selp", f"{_BITS}|{_INTS}|f32|f64", "=t t t p"),
        ("slct", f"{_BITS}|{_INTS}|f32|f64 s32", "=t t t s32"),
    ),
    "9.7.8 logic and shift": (
        ("and", "pred", "=p p p"),
        ("or", "pred", "=p p p"),
        ("xor", "pred", "=p p p"),
        ("not", "pred", "=p p"),
        ("and", _BITS, "=t t t"),
        ("or", _BITS, "=t t t"),
        ("xor", _BITS, "=t t t"),
        ("not", _BITS, "=t t"),
        ("cnot", _BITS, "=t t"),
        ("lop3", "b32", "=t t t t i"),
        ("shf", "l|r clamp|wrap b32", "=t t t u32"),
        ("shl", _BITS, "=t t u32"),
        ("shr", f"{_BITS}|{_INTS}", "=t t u32"),
    ),
    "9.7.9 data movement and conversion": (
        ("mov", "pred", "=p p"),
        ("mov", f"{_BITS}|{_INTS}|f32|f64", "=t m"),
        ("prmt", "b32", "=t t t t"),
        ("prmt", "b32 f4e|b4e|rc8|ecl|ecr|rc16", "=t t t t"),
        ("cvta", "global|local|shared|const u64", "=t t"),
        ("cvta", "to global|local|shared|const u64", "=t t"),
        ("isspacep", "global|local|shared|const", "=p u64"),
        ("cvt", f"u8|s8|{_INTS} u8|s8|{_INTS}", "=T S"),
        *(("cvt", f"sat {into} {of}", "=T S") for into, of in _SATURATING),
        ("cvt", "pack sat u16|s16 s32", "=u32 s s"),
        ("cvt", "pack sat u8|s8 s32 b32", "=u32 s s b32"),
        ("cvt", f"{_ROUND} f32|f64 u8|s8|{_INTS}", "=T S"),
        ("cvt", f"{_ROUND} f16 u8|s8|{_INTS}", "=T S"),
        ("cvt", f"{_ROUND_TO_INT} sat? u8|s8|{_INTS} f64", "=T S"),
        ("cvt", f"{_ROUND_TO_INT} ftz? sat? u8|s8|{_INTS} f32", "=T S"),
        ("cvt", f"{_ROUND_TO_INT} u8|s8|{_INTS} f16", "=T S"),
        ("cvt", f"{_ROUND_TO_INT} ftz? f32 f32", "=T S"),
        ("cvt", f"{_ROUND_TO_INT} f64 f64", "=T S"),
        ("cvt", f"{_ROUND} f32 f64", "=T S"),
        ("cvt", "f64 f32", "=T S"),
        ("cvt", "ftz? f32 f16", "=T S"),
        ("cvt", "f64 f16", "=T S"),
        ("cvt", f"{_ROUND} f16 f32", "=T S"),
        ("cvt", f"{_ROUND} f16 f64", "=T S"),
    ),
    # A collective waits for the lanes of its mask. Those of LANES are at this place already, and run straight
    # through to it, so that it cannot wait for what does not come.
    "9.7.13 parallel synchronisation": (
        ("activemask", "b32", "=t"),
        ("match", "any sync b32|b64", "=u32 t lanes"),
        ("match", "all sync b32|b64", "=u32|p? t lanes"),
        ("vote", "sync all|any|uni pred", "=p p lanes"),
        ("vote", "sync ballot b32", "=t p lanes"),
        ("shfl", "sync idx|up|down|bfly b32", "=t|p? t b32 b32 lanes"),
    ),
}
"""The forms that every target from ``SINCE_ALL`` on has."""

SINCE_ALL: Need = ((6, 5), 75)

_BF16 = "bf16|bf16x2"

NEWER_FORMS: dict[Need, tuple[Form, ...]] = {
    ((7, 0), 75): (
        ("tanh", "approx f32|f16|f16x2", "=t t"),
        ("ex2", "approx f16|f16x2", "=t t"),
    ),
    ((7, 0), 80): (
        ("min", "ftz? NaN f32", "=t t t"),
        ("max", "ftz? NaN f32", "=t t t"),
        ("min", "ftz? NaN? f16|f16x2", "=t t t"),
        ("max", "ftz? NaN? f16|f16x2", "=t t t"),
        ("min", f"NaN? {_BF16}", "=t t t"),
        ("max", f"NaN? {_BF16}", "=t t t"),
        ("fma", "rn ftz? relu f16|f16x2", "=t t t t"),
        ("fma", f"rn relu? {_BF16}", "=t t t t"),
        ("abs", _BF16, "=t t"),
        ("neg", _BF16, "=t t"),
        ("cvt", "rn|rz relu? bf16 f32", "=t s"),
        ("cvt", "rn|rz relu? bf16x2|f16x2 f32", "=t s s"),
        ("cvt", "rna tf32 f32", "=t s"),
        ("redux", "sync add|min|max u32|s32", "=t t lanes"),
        ("redux", "sync and|or|xor b32", "=u32 u32 lanes"),
    ),
    ((7, 1), 80): (("cvt", "f32 bf16", "=t s"),),
    ((7, 6), 75): (
        ("bmsk", "clamp|wrap b32", "=u32 u32 u32"),
        ("szext", "clamp|wrap u32|s32", "=t t u32"),
    ),
    ((7, 8), 75): (("isspacep", "param|shared::cta", "=p u64"),),
    ((7, 8), 90): (
        ("add", f"rn {_BF16}", "=t t t"),
        ("sub", f"rn {_BF16}", "=t t t"),
        ("mul", f"rn {_BF16}", "=t t t"),
        ("tanh", f"approx {_BF16}", "=t t"),
        ("ex2", f"approx ftz {_BF16}", "=t t"),
        ("setp", f"{_COMPARE_FLOAT} bf16", "=p t t"),
        ("setp", f"{_COMPARE_FLOAT} bf16x2", "=p|p t t"),
        ("isspacep", "shared::cluster", "=p u64"),
        ("getctarank", "u64", "=u32 t"),
    ),
    ((8, 0), 90): (
        ("min", "u16x2|s16x2", "=t t t"),
        ("max", "u16x2|s16x2", "=t t t"),
        ("add", "u16x2|s16x2", "=t t t"),
    ),
}
"""Lowest target with them → further forms (all of section 9.7). A snippet with one of them is not put into kernels for
older targets."""

ARITHMETIC: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("rcp", "approx f32", ("FMUL", "FMUL")),
    ("sqrt", "approx f32", ("FMUL", "FMUL")),
    ("rsqrt", "approx f32", ("FMUL", "FMUL")),
    ("ex2", "approx f32", ("FMUL", "FMUL")),
    ("lg2", "approx f32", ("FMUL", "FADD")),
    ("sin", "approx ftz? f32", ("FMUL",)),
    ("cos", "approx ftz? f32", ("FMUL",)),
    ("abs", "ftz f32", ("FADD",)),
    ("neg", "ftz f32", ("FADD",)),
    ("abs", "ftz f16", ("HADD2",)),
    ("neg", "ftz f16", ("HADD2",)),
    ("abs", "ftz f16x2", ("HADD2", "HADD2")),
    ("neg", "ftz f16x2", ("HADD2", "HADD2")),
    ("cvt", "rmi ftz sat? s64 f32", ("FMUL",)),
    ("cvt", "rpi ftz sat? s64|u64 f32", ("FMUL",)),
)
"""Opcode, modifiers, and the floating-point machine instructions that ``ptxas`` 13.0 emits for them on sm_75 to sm_120
although their PTX names do not say so (unlike ``add.f32``)."""

FORBIDDEN: dict[str, str] = {
    **dict.fromkeys(
        (
            "st", "atom", "red", "sust", "sured", "stmatrix", "multimem", "discard", "cp", "tensormap",
            "clusterlaunchcontrol",
        ),
        "writes-memory",
    ),
    **dict.fromkeys(
        (
            "ld", "ldu", "tex", "tld4", "txq", "suld", "suq", "istypep", "ldmatrix", "wmma", "prefetch",
            "prefetchu",
        ),
        "reads-memory",
    ),
    **dict.fromkeys(
        (
            "bar", "barrier", "membar", "fence", "mbarrier", "elect", "nanosleep", "griddepcontrol", "wgmma", "mma",
            "tcgen05", "setmaxnreg",
        ),
        "synchronises",
    ),
    **dict.fromkeys(
        (
            "bra", "brx", "call", "ret", "exit", "trap", "brkpt",
        ),
        "leaves-snippet",
    ),
    **dict.fromkeys(("addc", "subc", "madc"), "carry-flag"),
}  # fmt: skip
"""Opcode → the code of the fault that it is in a snippet."""

REASONS = {
    "writes-memory": "a probe writes no memory but its maps; use SAVE",
    "reads-memory": "a probe reads no memory of the program; use OUT, IN1, IN2 …",
    "synchronises": "a probe does not synchronise, with other threads or with the hardware",
    "leaves-snippet": "a probe runs straight through: no branch, call, label or end",
    "carry-flag": "the carry flag belongs to the program",
}
"""Code of a fault → why a probe may not do it."""

FAULTS: dict[str, str] = {
    "unknown-opcode": "`position` does not begin with a PTX instruction",
    "unknown-modifier": "a warning: no instruction has this modifier: patterns match nothing; after `HAS` an error",
    "modifier-order": "a warning: a state space or a vector after a type, so the pattern matches nothing",
    "nothing-after": "an `after` where nothing can run: after a branch or an end, or at a place in the flow graph",
    "not-an-instruction": "a statement that is not an instruction, `.reg` or `SAVE`",
    "label": "a label in a snippet",
    "brackets": "`{ }` or `[ ]` in an instruction: a vector or an address",
    "writes-memory": "a store, an atomic or a copy",
    "reads-memory": "a load",
    "synchronises": "a barrier, a fence or another instruction that waits",
    "leaves-snippet": "a branch, a call or an end",
    "carry-flag": "an instruction that reads or writes the carry flag",
    "unknown-instruction": "an opcode that PTX does not have",
    "instruction-not-allowed": "an instruction of PTX that snippets cannot use",
    "unknown-form": "modifiers or types that do not exist together; floating-point instructions need a rounding",
    "operand-count": "too few or too many operands",
    "not-an-operand": "a word that is not a register, number or helper",
    "not-ascii": "a character in an instruction that PTX does not allow",
    "undeclared-register": "a register that no `.reg` of the file declares, such as one of the program's",
    "vector-register": "a special register that is a vector, without an element",
    "special-register": "a special register where the instruction takes none; read it with `mov`",
    "write-refused": "a special register or a helper as the destination",
    "not-a-destination": "a destination in a form that the instruction does not have",
    "not-a-predicate": "a guard or a selector that is not a predicate",
    "register-type": "a register of another type than the instruction takes",
    "immediate-wanted": "a register where the instruction takes only a number",
    "immediate-refused": "a number where the instruction takes only a register",
    "immediate-type": "an integer for a floating-point type, or the reverse",
    "immediate-range": "a number that does not fit",
    "operand-without-instruction": "`OUT`, `IN1` … at a kernel, a function or a source line",
    "operand-absent": "an operand that the matched instructions do not have",
    "out-in-before": "`OUT` in `before`",
    "out-asynchronous": "`OUT` of an instruction whose result comes later",
    "helper-type": "a helper of another width or kind than the instruction takes",
    "group-register": "a register without `$` in its name that a probe at level `group` writes",
    "collective-level": "an instruction between lanes at level `warp` or `block` that writes a kept register",
    "collective-mask": "an instruction between lanes with another mask than `LANES`",
    "collective-guard": "an instruction between lanes under a predicate that they may not agree on",
    "scratch-unset": "a register with `$` in its name that is read before the snippet sets it",
    "predicated-save": "a `SAVE` under a predicate that is not a register, or in the older form",
    "save-type": "a register, helper or number of another type than the field: an integer for a float, or the reverse",
    "save-range": "a number that does not fit in its field",
    "early-clock": "a warning: a time is taken after a load that may still be under way",
}
"""Code of a fault → its meaning, as ``neutrino-probe codes`` prints it."""
