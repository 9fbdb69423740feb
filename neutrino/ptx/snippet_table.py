"""The instructions that a probe's snippet may use, by the sections of the PTX ISA 9.0 manual.

Only what reads and writes registers is here: no memory, no synchronisation, no branch, no carry flag, nothing
newer than sm_75 and PTX ISA 6.5. Floating-point forms carry their rounding, since ``ptxas`` may fuse those
that do not, and floating-point divisions are left out, since they become calls.

A form is ``(opcode, modifiers, operands)``. Modifiers: alternatives joined by ``|``, ``?`` for those that may
be absent. Operands, ``=`` before a destination: ``t`` and ``s`` the first and second type of the modifiers,
``w`` twice the width of ``t``, ``p`` a predicate (as a source also ``!p``), ``pp`` one predicate or ``p|q``,
``i`` an immediate, ``m`` as ``t`` and special registers too, ``T`` and ``S`` as ``t`` and ``s`` or wider; or
a type itself.
"""

from __future__ import annotations

Form = tuple[str, str, str]

_INTS = "u16|u32|u64|s16|s32|s64"
_BITS = "b16|b32|b64"
_ROUND = "rn|rz|rm|rp"
_COMPARE = "eq|ne|lt|le|gt|ge"
_COMPARE_FLOAT = _COMPARE + "|equ|neu|ltu|leu|gtu|geu|num|nan"
_JOIN = "and|or|xor"

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
        ("div", "u16|u32|s16|s32", "=t t t"),
        ("rem", "u16|u32|s16|s32", "=t t t"),
        ("abs", "s16|s32|s64", "=t t"),
        ("neg", "s16|s32|s64", "=t t"),
        ("min", _INTS, "=t t t"),
        ("max", _INTS, "=t t t"),
        ("popc", "b32|b64", "=u32 t"),
        ("clz", "b32|b64", "=u32 t"),
        ("bfind", "shiftamt? u32|u64|s32|s64", "=u32 t"),
        ("fns", "b32", "=t t u32 s32"),
        ("brev", "b32|b64", "=t t"),
        ("bfe", "u32|u64|s32|s64", "=t t u32 u32"),
        ("bfi", "b32|b64", "=t t t u32 u32"),
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
    ),
    "9.7.6 comparison and selection": (
        ("setp", f"{_COMPARE} {_INTS}", "=pp t t"),
        ("setp", "lo|ls|hi|hs u16|u32|u64", "=pp t t"),
        ("setp", f"eq|ne {_BITS}", "=pp t t"),
        ("setp", f"{_COMPARE_FLOAT} ftz? f32", "=pp t t"),
        ("setp", f"{_COMPARE_FLOAT} f64", "=pp t t"),
        ("setp", f"{_COMPARE} {_JOIN} {_INTS}", "=pp t t p"),
        ("setp", f"eq|ne {_JOIN} {_BITS}", "=pp t t p"),
        ("setp", f"{_COMPARE_FLOAT} {_JOIN} ftz? f32", "=pp t t p"),
        ("setp", f"{_COMPARE_FLOAT} {_JOIN} f64", "=pp t t p"),
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
        ("cvt", f"{_ROUND} f32|f64 u8|s8|{_INTS}", "=T S"),
        ("cvt", f"rni|rzi|rmi|rpi u8|s8|{_INTS} f64", "=T S"),
        ("cvt", f"rni|rzi|rmi|rpi ftz? u8|s8|{_INTS} f32", "=T S"),
        ("cvt", f"{_ROUND} f32 f64", "=T S"),
        ("cvt", "f64 f32", "=T S"),
        ("cvt", "ftz? f32 f16", "=T S"),
        ("cvt", "rn|rz f16 f32", "=T S"),
    ),
    "9.7.13 parallel synchronisation": (("activemask", "b32", "=t"),),
}

FORBIDDEN: dict[str, str] = {
    **dict.fromkeys(
        (
            "st", "atom", "red", "sust", "sured", "stmatrix", "multimem", "discard", "cp", "tensormap",
            "clusterlaunchcontrol",
        ),
        "a probe writes no memory but its maps; use SAVE",
    ),
    **dict.fromkeys(
        (
            "ld", "ldu", "tex", "tld4", "txq", "suld", "suq", "istypep", "ldmatrix", "wmma", "prefetch",
            "prefetchu",
        ),
        "a probe reads no memory of the program; use OUT, IN1, IN2, IN3",
    ),
    **dict.fromkeys(
        (
            "bar", "barrier", "membar", "fence", "mbarrier", "shfl", "vote", "match", "redux", "elect",
            "nanosleep", "griddepcontrol", "wgmma", "mma", "tcgen05", "setmaxnreg",
        ),
        "a probe does not synchronise, with other threads or with the hardware",
    ),
    **dict.fromkeys(
        (
            "bra", "brx", "call", "ret", "exit", "trap", "brkpt", "pmevent", "alloca", "stacksave",
            "stackrestore",
        ),
        "a probe runs straight through: no branch, call or end",
    ),
    **dict.fromkeys(("addc", "subc", "madc"), "the carry flag belongs to the program"),
}  # fmt: skip
"""Opcode → why a probe may not use it."""

OPCODES = frozenset(
    (
        "abs", "activemask", "add", "addc", "alloca", "and", "applypriority", "atom", "bar", "barrier",
        "bfe", "bfi", "bfind", "bmsk", "bra", "brev", "brkpt", "brx", "call", "clusterlaunchcontrol",
        "clz", "cnot", "copysign", "cos", "cp", "createpolicy", "cvt", "cvta", "discard", "div", "dp2a",
        "dp4a", "elect", "ex2", "exit", "fence", "fma", "fns", "getctarank", "griddepcontrol",
        "isspacep", "istypep", "ld", "ldmatrix", "ldu", "lg2", "lop3", "mad", "mad24", "madc", "mapa",
        "match", "max", "mbarrier", "membar", "min", "mma", "mov", "movmatrix", "mul", "mul24",
        "multimem", "nanosleep", "neg", "not", "or", "pmevent", "popc", "prefetch", "prefetchu", "prmt",
        "rcp", "red", "redux", "rem", "ret", "rsqrt", "sad", "selp", "set", "setmaxnreg", "setp", "shf",
        "shfl", "shl", "shr", "sin", "slct", "sqrt", "st", "stackrestore", "stacksave", "stmatrix",
        "sub", "subc", "suld", "suq", "sured", "sust", "szext", "tanh", "tcgen05", "tensormap", "testp",
        "tex", "tld4", "trap", "txq", "vabsdiff", "vabsdiff2", "vabsdiff4", "vadd", "vadd2", "vadd4",
        "vavrg2", "vavrg4", "vmad", "vmax", "vmax2", "vmax4", "vmin", "vmin2", "vmin4", "vote", "vset",
        "vset2", "vset4", "vshl", "vshr", "vsub", "vsub2", "vsub4", "wgmma", "wmma", "xor",
    )
)  # fmt: skip
"""Every opcode's first part (PTX ISA 9.0, chapter 9): what a tracepoint can begin with."""

NO_AFTER = frozenset({"bra", "brx", "ret", "exit", "trap"})
"""Control does not come out behind these."""
