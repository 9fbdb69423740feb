"""Numbers that must not be rounded as text: keys, and the ends of a histogram's buckets."""

from __future__ import annotations

import math
import struct

Number = int | float


def bucket_ends(low: Number, high: Number) -> tuple[str, str]:
    """Return the least and the greatest number of a bucket as text.

    Of floating-point numbers an end may be said by the number next to it, if that is shorter: ``<4`` is the greatest
    one below 4. The bucket of NaNs is ``NaN``.
    """
    if isinstance(low, int) and isinstance(high, int):
        return f"{low:,}", f"{high:,}"
    if math.isnan(low):
        return "NaN", "NaN"
    is_single = all(_as_single(end) == end for end in (low, high))
    if low == high:
        text = _shortest(low, is_single)
        return text, text
    return _end(low, -math.inf, ">", is_single), _end(high, math.inf, "<", is_single)


def exact(number: Number) -> str:
    """Return a number as text: a floating-point one in the shortest way that is read as the same."""
    if isinstance(number, int):
        return str(number)
    return "NaN" if math.isnan(number) else _shortest(number, _as_single(number) == number)


def bucket_range(low: Number, high: Number) -> str:
    """Return a histogram's bucket in words, from its least and greatest number: ``7``, ``4 to 7``, ``2 to <4``, ``not a
    number``.
    """
    first, last = bucket_ends(low, high)
    if first == "NaN":
        return "not a number"
    return first if first == last else f"{first} to {last}"


def _end(number: float, way: float, mark: str, is_single: bool) -> str:
    """Return an end of a histogram's bucket as text, such as ``4`` or ``<4``.

    way: infinity out of the bucket. mark: ``<`` or ``>``, put before the number beyond the end where that is shorter.
    is_single: numbers are of f32.
    """
    own = _shortest(number, is_single)
    if math.isinf(number):
        return own
    beyond = _shortest(_next(number, way, is_single), is_single)
    return own if len(own) <= len(beyond) else mark + beyond


def _shortest(number: float, is_single: bool) -> str:
    """Return the shortest text that is read as this number, and no other of its type.

    is_single: that is f32, else f64.
    """
    if number == 0 or math.isinf(number):
        return f"{number + 0:g}"
    if is_single:
        numbers = (float(f"{number:.{digits}g}") for digits in range(1, 18))
        number = next(shorter for shorter in numbers if _as_single(shorter) == number)
    return repr(number).removesuffix(".0")


def _next(number: float, way: float, is_single: bool) -> float:
    """Return the next floating-point number of the type in a direction.

    way: towards it. is_single: the type is f32, else f64.
    """
    if not is_single:
        return math.nextafter(number, way)
    if number == 0:
        return math.copysign(2.0**-149, way)
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    # Of both signs the bits grow with the magnitude.
    bits += 1 if (number > 0) == (way > 0) else -1
    after: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return after


def _as_single(number: float) -> float:
    """Return the f32 number nearest to a number; infinity beyond all of them."""
    try:
        nearest: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return nearest
