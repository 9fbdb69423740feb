"""What vector instructions compute whose operands are all of the lanes: name → types and function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from neutrino.emulator.gcn import floats

Function = Callable[..., Any]


class Operation(NamedTuple):
    """result, sources: types, such as ``f32``. function: of the sources. A last type of "+" stands for the result's
    old value, of the result's type."""

    result: str
    sources: tuple[str, ...]
    function: Function


OPERATIONS: dict[str, Operation] = {}
"""By name without ``v_`` and without the suffix of its encoding."""


def _put(names: str, result: str, sources: str, function: Function) -> None:
    """Add instructions that compute the same to ``OPERATIONS``. names, sources: separated by spaces; result, sources:
    types."""
    for name in names.split():
        OPERATIONS[name] = Operation(result, tuple(sources.split()), function)


def _shift(kind: str, left: bool) -> Function:
    """Return the function that shifts numbers of a NumPy type by their first argument, modulo the type's bits."""
    limit = np.dtype(kind).type(np.dtype(kind).itemsize * 8 - 1)
    if left:
        return lambda by, x: x << (by.astype(x.dtype) & limit)
    return lambda by, x: x >> (by.astype(x.dtype) & limit)


def _bit_field(x: Any, offset: Any, size: Any) -> Any:
    """Return the ``size`` bits of numbers from ``offset`` on, extended by zeros (V_BFE_U32)."""
    size = size & np.uint32(31)
    return (x >> (offset & np.uint32(31))) & ((np.uint32(1) << size) - np.uint32(1))


def _signed_field(x: Any, offset: Any, size: Any) -> Any:
    """Return the ``size`` bits of numbers from ``offset`` on, extended by their sign (V_BFE_I32)."""
    size = size & np.uint32(31)
    field = _bit_field(x.astype(np.int32), (offset & np.uint32(31)).astype(np.int32), size.astype(np.int32))
    field = field if field.dtype == np.int32 else field.astype(np.int32)
    unused = (np.uint32(32) - size) & np.uint32(31)
    shift = unused.astype(np.int32)
    return np.where(size == 0, np.int32(0), (field << shift) >> shift)


def _reverse(x: Any) -> Any:
    """Return words with their bits in reverse order."""
    x = np.atleast_1d(x)
    for by, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        m, shift = np.uint32(mask), np.uint32(by)
        x = (x >> shift & m) | (x & m) << shift
    return x >> np.uint32(16) | x << np.uint32(16)


def _leading(x: Any) -> Any:
    """Return the zeros in front of the highest bit, -1 without one."""
    wide = np.atleast_1d(x).astype(np.float64)
    exponent = np.frexp(wide)[1]
    return np.where(wide == 0, -1, 32 - exponent).astype(np.int32).view(np.uint32)


def _trailing(x: Any) -> Any:
    """Return the zeros below the lowest bit that is set, -1 without one."""
    lowest = np.atleast_1d(x & (~x + np.uint32(1)))
    return (np.frexp(lowest.astype(np.float64))[1] - 1).astype(np.int32).view(np.uint32)


def _sign_run(x: Any) -> Any:
    """Return how many bits at the upper end equal the sign bit, -1 if all do."""
    flipped = np.where(x < 0, ~x, x).view(np.uint32)
    return _leading(flipped)


def _permute_bytes(x: Any, y: Any, selector: Any) -> Any:
    """Return words of four bytes that a selector's bytes choose from x and y: 0 to 3 from y, 4 to 7 from x, 8 to 11 a
    sign (V_PERM_B32)."""
    x, y, selector = np.broadcast_arrays(np.atleast_1d(x), y, selector)
    pair = y.astype(np.uint64) | x.astype(np.uint64) << np.uint64(32)
    result = np.zeros(x.shape, np.uint32)
    for byte in range(4):
        which = selector >> np.uint32(8 * byte) & np.uint32(0xFF)
        at = np.minimum(which, np.uint32(7)).astype(np.uint64) * np.uint64(8)
        value = (pair >> at & np.uint64(0xFF)).astype(np.uint32)
        # 8 to 11: the sign of byte 1, 3, 5 or 7.
        sign_at = (np.minimum(which - np.uint32(8), np.uint32(3)) * np.uint32(16) + np.uint32(15)).astype(np.uint64)
        sign = np.where(pair >> sign_at & np.uint64(1), np.uint32(0xFF), np.uint32(0))
        value = np.where(which < 8, value, np.where(which < 12, sign, np.where(which == 12, 0, 0xFF)))
        result |= value.astype(np.uint32) << np.uint32(8 * byte)
    return result


def _high_product(kind: str) -> Function:
    """Return the function for the upper 32 bits of a product. kind: ``i32`` or ``u32``."""
    wide: Any = np.int64 if kind == "i32" else np.uint64
    narrow: Any = np.int32 if kind == "i32" else np.uint32
    return lambda a, b: (a.astype(wide) * b.astype(wide) >> wide(32)).astype(narrow)


_U24 = np.uint32(0xFFFFFF)


def _signed24(x: Any) -> Any:
    """Return the lower 24 bits of words, extended by their sign."""
    return (x.astype(np.int32) << np.int32(8)) >> np.int32(8)


def _fraction(x: Any) -> Any:
    """Return x - floor(x), below 1 (V_FRACT)."""
    below_one = np.nextafter(x.dtype.type(1), x.dtype.type(0))
    return np.where(np.isfinite(x), np.minimum(x - np.floor(x), below_one), x - x)


def _in_double(function: Function) -> Function:
    """Return a function of floats that is computed in f64, and rounded to the type of its argument."""
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


def _exponent(x: Any) -> Any:
    """Return the exponents of floats as ``frexp`` has them; 0 for zeros, infinities and NaNs."""
    special = (x == 0) | ~np.isfinite(x)
    return np.where(special, 0, np.frexp(x)[1]).astype(np.int32)


def _mantissa(x: Any) -> Any:
    """Return the fractions of floats as ``frexp`` has them; infinities and NaNs as they are."""
    fractions: Any = np.frexp(x)[0]
    return np.where(np.isfinite(x), fractions, x)


def _ldexp(x: Any, by: Any) -> Any:
    """Return x · 2^by, in the type of x."""
    return np.ldexp(x, by.astype(np.int32)).astype(x.dtype)


# --- moves and bits ---
for _kind in ("b16", "b32", "b64"):
    _put(f"mov_{_kind}", _kind, _kind, lambda x: x)
_put("accvgpr_write_b32 accvgpr_read_b32 accvgpr_mov_b32", "b32", "b32", lambda x: x)
for _kind in ("b16", "b32"):
    _put(f"not_{_kind}", _kind, _kind, lambda x: ~x)
    _put(f"and_{_kind}", _kind, f"{_kind} {_kind}", lambda a, b: a & b)
    _put(f"or_{_kind}", _kind, f"{_kind} {_kind}", lambda a, b: a | b)
    _put(f"xor_{_kind}", _kind, f"{_kind} {_kind}", lambda a, b: a ^ b)
_put("xnor_b32", "b32", "b32 b32", lambda a, b: ~(a ^ b))
_put("or3_b32", "b32", "b32 b32 b32", lambda a, b, c: a | b | c)
_put("xor3_b32", "b32", "b32 b32 b32", lambda a, b, c: a ^ b ^ c)
_put("and_or_b32", "b32", "b32 b32 b32", lambda a, b, c: a & b | c)
_put("bfi_b32", "b32", "b32 b32 b32", lambda a, b, c: a & b | ~a & c)
_put("bfe_u32", "u32", "u32 u32 u32", _bit_field)
_put("bfe_i32", "i32", "u32 u32 u32", _signed_field)
_put(
    "bfm_b32", "b32", "b32 b32",
    lambda a, b: ((np.uint32(1) << (a & np.uint32(31))) - np.uint32(1)) << (b & np.uint32(31)),
)  # fmt: skip
_put("bfrev_b32", "b32", "b32", _reverse)
_put("bcnt_u32_b32", "u32", "b32 u32", lambda a, b: np.bitwise_count(a).astype(np.uint32) + b)
_put("ffbh_u32 clz_i32_u32", "u32", "u32", _leading)
_put("ffbl_b32 ctz_i32_b32", "u32", "u32", _trailing)
_put("ffbh_i32 cls_i32", "u32", "i32", _sign_run)
_put("perm_b32", "b32", "b32 b32 b32", _permute_bytes)
_put(
    "alignbit_b32", "b32", "b32 b32 b32",
    lambda a, b, c: ((b.astype(np.uint64) | a.astype(np.uint64) << np.uint64(32))
                     >> (c.astype(np.uint64) & np.uint64(31))).astype(np.uint32),
)  # fmt: skip
_put(
    "alignbyte_b32", "b32", "b32 b32 b32",
    lambda a, b, c: ((b.astype(np.uint64) | a.astype(np.uint64) << np.uint64(32))
                     >> (np.uint64(8) * (c.astype(np.uint64) & np.uint64(3)))).astype(np.uint32),
)  # fmt: skip

# --- shifts; the amount is the first source ---
for _kind in ("b16", "b32", "b64"):
    _amount = "u16" if _kind == "b16" else "u32"
    _unsigned = f"u{_kind[1:]}"
    _dtype = {"u16": "u2", "u32": "u4", "u64": "u8"}[_unsigned]
    _put(f"lshlrev_{_kind}", _kind, f"{_amount} {_kind}", _shift(_dtype, True))
    _put(f"lshrrev_{_kind}", _kind, f"{_amount} {_kind}", _shift(_dtype, False))
for _kind, _dtype in (("i16", "i2"), ("i32", "i4"), ("i64", "i8")):
    _put(f"ashrrev_{_kind}", _kind, f"{'u16' if _kind == 'i16' else 'u32'} {_kind}", _shift(_dtype, False))
_put("lshl_add_u32", "u32", "u32 u32 u32", lambda a, b, c: (a << (b & np.uint32(31))) + c)
_put("add_lshl_u32", "u32", "u32 u32 u32", lambda a, b, c: (a + b) << (c & np.uint32(31)))
_put("lshl_or_b32", "b32", "b32 b32 b32", lambda a, b, c: a << (b & np.uint32(31)) | c)
_put("lshl_add_u64", "u64", "u64 u32 u64", lambda a, b, c: (a << (b.astype(np.uint64) & np.uint64(7))) + c)
_put("lshlrev_b64_e64", "b64", "u32 b64", _shift("u8", True))

# --- integers ---
for _kind in ("u32", "u16", "i32", "i16"):
    _put(f"add_{_kind} add_nc_{_kind}", _kind, f"{_kind} {_kind}", lambda a, b: a + b)
    _put(f"sub_{_kind} sub_nc_{_kind}", _kind, f"{_kind} {_kind}", lambda a, b: a - b)
    _put(f"subrev_{_kind} subrev_nc_{_kind}", _kind, f"{_kind} {_kind}", lambda a, b: b - a)
    _put(f"min_{_kind}", _kind, f"{_kind} {_kind}", np.minimum)
    _put(f"max_{_kind}", _kind, f"{_kind} {_kind}", np.maximum)
    _three = f"{_kind} {_kind} {_kind}"
    _put(f"min3_{_kind}", _kind, _three, lambda a, b, c: np.minimum(np.minimum(a, b), c))
    _put(f"max3_{_kind}", _kind, _three, lambda a, b, c: np.maximum(np.maximum(a, b), c))
    _put(f"med3_{_kind}", _kind, _three, floats.median)
    _put(f"maxmin_{_kind}", _kind, _three, lambda a, b, c: np.minimum(np.maximum(a, b), c))
    _put(f"minmax_{_kind}", _kind, _three, lambda a, b, c: np.maximum(np.minimum(a, b), c))
_put("add_nc_u64", "u64", "u64 u64", lambda a, b: a + b)
_put("sub_nc_u64", "u64", "u64 u64", lambda a, b: a - b)
_put("mul_u64", "u64", "u64 u64", lambda a, b: a * b)
_put("min_u64", "u64", "u64 u64", np.minimum)
_put("max_u64", "u64", "u64 u64", np.maximum)
_put("min_i64", "i64", "i64 i64", np.minimum)
_put("max_i64", "i64", "i64 i64", np.maximum)
_put("add3_u32", "u32", "u32 u32 u32", lambda a, b, c: a + b + c)
_put("xad_u32", "u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c)
_put("mul_lo_u32 mul_lo_i32", "u32", "u32 u32", lambda a, b: a * b)
_put("mul_lo_u16", "u16", "u16 u16", lambda a, b: a * b)
_put("mad_u16 mad_legacy_u16", "u16", "u16 u16 u16", lambda a, b, c: a * b + c)
_put("mad_i16 mad_legacy_i16", "i16", "i16 i16 i16", lambda a, b, c: a * b + c)
_put("mad_u32_u16", "u32", "u16 u16 u32", lambda a, b, c: a.astype(np.uint32) * b.astype(np.uint32) + c)
_put("mad_i32_i16", "i32", "i16 i16 i32", lambda a, b, c: a.astype(np.int32) * b.astype(np.int32) + c)
_put("mul_hi_u32", "u32", "u32 u32", _high_product("u32"))
_put("mul_hi_i32", "i32", "i32 i32", _high_product("i32"))
_put("mul_u32_u24", "u32", "u32 u32", lambda a, b: (a & _U24) * (b & _U24))
_put("mul_i32_i24", "i32", "i32 i32", lambda a, b: _signed24(a) * _signed24(b))
_put(
    "mul_hi_u32_u24", "u32", "u32 u32",
    lambda a, b: ((a & _U24).astype(np.uint64) * (b & _U24).astype(np.uint64) >> np.uint64(32)).astype(np.uint32),
)  # fmt: skip
_put(
    "mul_hi_i32_i24", "i32", "i32 i32",
    lambda a, b: (_signed24(a).astype(np.int64) * _signed24(b).astype(np.int64) >> np.int64(32)).astype(np.int32),
)  # fmt: skip
_put("mad_u32_u24", "u32", "u32 u32 u32", lambda a, b, c: (a & _U24) * (b & _U24) + c)
_put("mad_i32_i24", "i32", "i32 i32 i32", lambda a, b, c: _signed24(a) * _signed24(b) + c)
_put("sad_u32", "u32", "u32 u32 u32", lambda a, b, c: np.where(a > b, a - b, b - a).astype(np.uint32) + c)

# --- floats ---
_FUSED = {"f32": floats.fma32, "f16": floats.fma16, "f64": floats.fma64}
for _kind in ("f16", "f32", "f64"):
    _two, _three = f"{_kind} {_kind}", f"{_kind} {_kind} {_kind}"
    _fma = _FUSED[_kind]
    _put(f"add_{_kind}", _kind, _two, lambda a, b: a + b)
    _put(f"sub_{_kind}", _kind, _two, lambda a, b: a - b)
    _put(f"subrev_{_kind}", _kind, _two, lambda a, b: b - a)
    _put(f"mul_{_kind} mul_dx9_zero_{_kind}", _kind, _two, lambda a, b: a * b)
    for _suffix in ("", "_num"):
        _put(f"min{_suffix}_{_kind}", _kind, _two, floats.minimum)
        _put(f"max{_suffix}_{_kind}", _kind, _two, floats.maximum)
        _put(f"min3{_suffix}_{_kind}", _kind, _three, lambda a, b, c: floats.minimum(floats.minimum(a, b), c))
        _put(f"max3{_suffix}_{_kind}", _kind, _three, lambda a, b, c: floats.maximum(floats.maximum(a, b), c))
        _put(f"med3{_suffix}_{_kind}", _kind, _three, floats.median)
        _put(f"maxmin{_suffix}_{_kind}", _kind, _three, lambda a, b, c: floats.minimum(floats.maximum(a, b), c))
        _put(f"minmax{_suffix}_{_kind}", _kind, _three, lambda a, b, c: floats.maximum(floats.minimum(a, b), c))
    _put(f"minimum_{_kind}", _kind, _two, np.minimum)
    _put(f"maximum_{_kind}", _kind, _two, np.maximum)
    _put(f"minimum3_{_kind}", _kind, _three, lambda a, b, c: np.minimum(np.minimum(a, b), c))
    _put(f"maximum3_{_kind}", _kind, _three, lambda a, b, c: np.maximum(np.maximum(a, b), c))
    _put(f"fma_{_kind} fma_legacy_{_kind} fmaak_{_kind} fma_dx9_zero_{_kind}", _kind, _three, _fma)
    _put(f"fmamk_{_kind}", _kind, _three, lambda a, k, b, fma=_fma: fma(a, k, b))
    _put(f"fmac_{_kind} fmac_dx9_zero_{_kind}", _kind, f"{_two} +", _fma)
    # Not fused, and rounded twice.
    _put(f"mad_{_kind} madak_{_kind} mad_legacy_{_kind}", _kind, _three, lambda a, b, c: a * b + c)
    _put(f"madmk_{_kind}", _kind, _three, lambda a, k, b: a * k + b)
    _put(f"mac_{_kind}", _kind, f"{_two} +", lambda a, b, c: a * b + c)
    _put(f"rcp_{_kind}", _kind, _kind, lambda x: x.dtype.type(1) / x)
    _put(f"sqrt_{_kind}", _kind, _kind, np.sqrt)
    _put(f"rsq_{_kind}", _kind, _kind, _in_double(lambda x: 1 / np.sqrt(x)))
    _put(f"exp_{_kind}", _kind, _kind, _in_double(np.exp2))
    _put(f"log_{_kind}", _kind, _kind, _in_double(np.log2))
    _put(f"sin_{_kind}", _kind, _kind, _in_double(lambda x: np.sin(x * (2 * np.pi))))
    _put(f"cos_{_kind}", _kind, _kind, _in_double(lambda x: np.cos(x * (2 * np.pi))))
    _put(f"floor_{_kind}", _kind, _kind, np.floor)
    _put(f"ceil_{_kind}", _kind, _kind, np.ceil)
    _put(f"trunc_{_kind}", _kind, _kind, np.trunc)
    _put(f"rndne_{_kind}", _kind, _kind, np.rint)
    _put(f"fract_{_kind}", _kind, _kind, _fraction)
    _put(f"frexp_mant_{_kind}", _kind, _kind, _mantissa)
    _put(f"div_fixup_{_kind} div_fixup_legacy_{_kind}", _kind, _three, floats.divide_fixup)
_put("rcp_iflag_f32", "f32", "f32", lambda x: x.dtype.type(1) / x)
_put("frexp_exp_i32_f32", "i32", "f32", _exponent)
_put("frexp_exp_i32_f64", "i32", "f64", _exponent)
_put("frexp_exp_i16_f16", "i16", "f16", lambda x: _exponent(x).astype(np.int16))
_put("ldexp_f32", "f32", "f32 i32", _ldexp)
_put("ldexp_f64", "f64", "f64 i32", _ldexp)
_put("ldexp_f16", "f16", "f16 i16", _ldexp)
_put("mul_legacy_f32", "f32", "f32 f32", lambda a, b: np.where((a == 0) | (b == 0), np.float32(0), a * b))

# --- conversions ---
_NUMPY = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "i16": np.int16, "u16": np.uint16, "i32": np.int32,
    "u32": np.uint32,
}  # fmt: skip


def _cast(kind: str) -> Function:
    """Return the function that converts numbers to a type, rounded to nearest."""
    return lambda x: x.astype(_NUMPY[kind])


def _cut(kind: str) -> Function:
    """Return the function that converts floats to an integer type, toward zero and limited to its range."""
    return lambda x: floats.to_integer(x, _NUMPY[kind])


for _to, _from in (
    ("f32", "f16"), ("f16", "f32"), ("f32", "i32"), ("f32", "u32"), ("f64", "f32"), ("f32", "f64"), ("f64", "i32"),
    ("f64", "u32"), ("f16", "i16"), ("f16", "u16"),
):  # fmt: skip
    _put(f"cvt_{_to}_{_from}", _to, _from, _cast(_to))
for _to, _from in (
    ("i32", "f32"), ("u32", "f32"), ("i32", "f64"), ("u32", "f64"), ("i16", "f16"), ("u16", "f16"),
):  # fmt: skip
    _put(f"cvt_{_to}_{_from}", _to, _from, _cut(_to))


def _nearest(x: Any) -> Any:
    """Return floats rounded to the nearest i32, halves upwards."""
    return floats.to_integer(np.floor(x + np.float32(0.5)), np.int32)


_put("cvt_rpi_i32_f32 cvt_nearest_i32_f32", "i32", "f32", _nearest)
_put("cvt_flr_i32_f32 cvt_floor_i32_f32", "i32", "f32", lambda x: floats.to_integer(np.floor(x), np.int32))
_put("cvt_i32_i16", "i32", "i16", lambda x: x.astype(np.int32))
_put("cvt_u32_u16", "u32", "u16", lambda x: x.astype(np.uint32))
for _byte in range(4):
    _put(
        f"cvt_f32_ubyte{_byte}", "f32", "u32",
        lambda x, at=8 * _byte: (x >> np.uint32(at) & np.uint32(0xFF)).astype(np.float32),
    )  # fmt: skip


def _pair(low: Any, high: Any) -> Any:
    """Return words of two halves, each u16 or f16."""
    low, high = np.atleast_1d(low), np.atleast_1d(high)
    return low.view(np.uint16).astype(np.uint32) | high.view(np.uint16).astype(np.uint32) << np.uint32(16)


_put(
    "cvt_pkrtz_f16_f32 cvt_pk_rtz_f16_f32", "b32", "f32 f32",
    lambda a, b: _pair(floats.f32_to_f16_toward_zero(a), floats.f32_to_f16_toward_zero(b)),
)  # fmt: skip
_put("cvt_pk_f16_f32", "b32", "f32 f32", lambda a, b: _pair(a.astype(np.float16), b.astype(np.float16)))
_put("cvt_pk_bf16_f32", "b32", "f32 f32", lambda a, b: _pair(floats.f32_to_bf16(a), floats.f32_to_bf16(b)))
_put("pack_b32_f16", "b32", "f16 f16", _pair)
_put(
    "cvt_pk_u16_u32", "b32", "u32 u32",
    lambda a, b: _pair(*(np.minimum(x, np.uint32(0xFFFF)).astype(np.uint16) for x in (a, b))),
)  # fmt: skip
_put(
    "cvt_pk_i16_i32", "b32", "i32 i32",
    lambda a, b: _pair(np.clip(a, -32768, 32767).astype(np.int16), np.clip(b, -32768, 32767).astype(np.int16)),
)  # fmt: skip

COMPARISONS: dict[str, Function] = {
    "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lg": lambda a, b: (a < b) | (a > b),
    "ge": lambda a, b: a >= b,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "ne": lambda a, b: a != b,
    "tru": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "t": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
}


def float_class(value: Any, classes: Any) -> Any:
    """Return whether floats are of one of the classes that the bits of ``classes`` stand for (V_CMP_CLASS)."""
    tiny = np.finfo(value.dtype).tiny
    raw = value.view(f"u{value.dtype.itemsize}")
    quiet_bit = {2: 9, 4: 22, 8: 51}[value.dtype.itemsize]
    is_quiet = (raw >> raw.dtype.type(quiet_bit) & raw.dtype.type(1)) != 0
    negative, magnitude = np.signbit(value), np.abs(value)
    nan, infinite, zero = np.isnan(value), np.isinf(value), value == 0
    denormal = (magnitude < tiny) & ~zero
    normal = ~(nan | infinite | zero | denormal)
    rows = (
        nan & ~is_quiet, nan & is_quiet, infinite & negative, normal & negative, denormal & negative, zero & negative,
        zero & ~negative, denormal & ~negative, normal & ~negative, infinite & ~negative,
    )  # fmt: skip
    result = np.zeros(np.broadcast(value, classes).shape, bool)
    for bit, row in enumerate(rows):
        result |= row & (classes >> classes.dtype.type(bit) & classes.dtype.type(1) != 0)
    return result
