"""Conversions between types."""

from __future__ import annotations

from neutrino.gcn.instrument.code import Mask, Place, Scalar, Value, Vector
from neutrino.gcn.instrument.compute_floats import Floats
from neutrino.gcn.instrument.compute_moves import WORD
from neutrino.ir.operands import Constant
from neutrino.ir.statements import Relation
from neutrino.ir.types import Type

_TWO_TO_THE = {63: 0x43E << 52, 64: 0x43F << 52}
"""Powers of 2 as f64."""


class Conversions(Floats):
    """Lowers ``Convert``."""

    def convert_into(self, destination: Place, to: Type, value: Value, source: Type) -> None:
        """Convert a value of one type to another."""
        if to is Type.PRED:
            assert isinstance(destination, Mask)
            if source is Type.PRED:
                self.move(destination, value, to)
            elif source.is_float:
                self.is_number_but_zero(destination, value, source)
            else:
                self.compare_integers(destination, Relation.NE, value, Constant(source, 0), source)
        elif source is Type.PRED:
            self.from_mask(destination, value, to)
        elif to is source:
            self.move(destination, value, to)
        elif not to.is_float and not source.is_float:
            self.integer(destination, to, value, source)
        else:
            with self.in_lanes(destination) as result:
                read = self.in_vector(value, self.words(source))
                if not source.is_float:
                    self._from_integer(result, to, read, source)
                elif to.is_float:
                    self._between_floats(result, to, read, source)
                else:
                    self._to_integer(result, to, read, source)

    # Integers

    def integer(self, destination: Place, to: Type, value: Value, source: Type) -> None:
        """Extend an integer by its sign, or cut it."""
        code = self.code
        if isinstance(value, Constant):
            self.move(destination, _converted(value, to), to)
            return
        if isinstance(value, Vector) and isinstance(destination, Scalar):
            value = self.in_scalar(value, value.words)
        if destination.words == 2 and value.words == 2:
            self.move(destination, value, to)
        elif destination.words == 2:
            prefix = "v" if isinstance(destination, Vector) else "s"
            code.emit(f"{prefix}_mov_b32 {destination.word(0)}, {value.word(0)}")
            if not source.is_signed:
                code.emit(f"{prefix}_mov_b32 {destination.word(1)}, 0")
            elif prefix == "v":
                code.emit(f"v_ashrrev_i32 {destination.word(1)}, 31, {destination.word(0)}")
            else:
                code.emit(f"s_ashr_i32 {destination.word(1)}, {destination.word(0)}, 31")
        else:
            prefix = "v" if isinstance(destination, Vector) else "s"
            code.emit(f"{prefix}_mov_b32 {destination.word(0)}, {value.word(0)}")
            if to.bits < source.bits or (to.bits < 32 and to.is_signed != source.is_signed):
                self.narrow(destination, to)

    # Integers to floats

    def _from_integer(self, destination: Vector, to: Type, value: Vector, source: Type) -> None:
        """Round an integer to a float, once; to a bf16 by way of an f32."""
        code = self.code
        code.changes_mode = True
        kind = "i32" if source.is_signed else "u32"
        if to is Type.F64:
            if value.words == 1:
                code.emit(f"v_cvt_f64_{kind} {destination.text}, {value.text}")
            else:
                self._pair_to_f64(destination, value, kind)
            return
        single = code.vector()
        if value.words == 1:
            code.emit(f"v_cvt_f32_{kind} {single.text}, {value.text}")
        else:
            # The last of the bits that an f64 has room for says whether there is more.
            odd, double = self._odd(value, is_signed=source.is_signed), code.vector(2)
            self._pair_to_f64(double, odd, kind)
            code.emit(f"v_cvt_f32_f64 {single.text}, {double.text}")
        # Integers that an f32 does not have are beyond the range of f16.
        self.from_f32(destination, single, to)

    def _pair_to_f64(self, destination: Vector, value: Vector, kind: str) -> None:
        """Round 64 bits to an f64: both words are exact, and their sum is rounded."""
        code, low, high = self.code, self.code.vector(2), self.code.vector(2)
        code.emit(
            f"v_cvt_f64_{kind} {high.text}, {value.word(1)}", f"v_ldexp_f64 {high.text}, {high.text}, 32",
            f"v_cvt_f64_u32 {low.text}, {value.word(0)}", f"v_add_f64 {destination.text}, {high.text}, {low.text}",
        )  # fmt: skip

    def _odd(self, value: Vector, *, is_signed: bool) -> Vector:
        """Return 64 bits without the lowest 11, and bit 11 is 1 if one of these was, where an f64 would be rounded."""
        code, result, part = self.code, self.code.vector(2), self.code.vector()
        code.emit(
            f"v_and_b32 {part.text}, 0x7ff, {value.word(0)}", f"{self.plain_add} {part.text}, 0x7ff, {part.text}",
            f"v_or_b32 {part.text}, {value.word(0)}, {part.text}",
            f"v_and_b32 {part.text}, 0xfffff800, {part.text}",
        )  # fmt: skip
        is_long, high = code.mask(), code.vector()
        if is_signed:
            code.emit(f"{self.plain_add} {high.text}, 0x200000, {value.word(1)}")
        else:
            code.emit(f"v_mov_b32 {high.text}, {value.word(1)}")
        limit = self.number(0x3FFFFF if is_signed else 0x1FFFFF)
        code.emit(f"v_cmp_gt_u32_e64 {is_long.text}, {high.text}, {limit.text}")
        code.emit(f"v_cndmask_b32_e64 {result.word(0)}, {value.word(0)}, {part.text}, {is_long.text}")
        code.emit(f"v_mov_b32 {result.word(1)}, {value.word(1)}")
        return result

    # Floats to floats

    def _between_floats(self, destination: Vector, to: Type, value: Vector, source: Type) -> None:
        """Convert a float to another type of floats, rounded once; to and from bf16 by way of an f32."""
        code = self.code
        code.changes_mode = True
        if source is Type.F64:
            single = code.vector()
            code.emit(f"v_cvt_f32_f64 {single.text}, {value.text}")
            if to is Type.F16:
                self._make_odd(single, value)
            self.from_f32(destination, single, to)
            return
        single = self.to_f32(value, source)
        if to is Type.F64:
            code.emit(f"v_cvt_f64_f32 {destination.text}, {single.text}")
        else:
            self.from_f32(destination, single, to)

    def _make_odd(self, single: Vector, exact: Vector) -> None:
        """Make an f32 that an f64 was rounded to the one beside it whose last bit is 1, where it is not that f64: what
        is rounded to fewer bits then is rounded as the f64 itself."""
        code = self.code
        back, near, beside, last = code.vector(2), code.vector(2), code.vector(), code.vector()
        is_inexact, is_beyond = code.mask(), code.mask()
        self.move(near, exact, Type.F64)
        code.emit(
            f"v_cvt_f64_f32 {back.text}, {single.text}",
            f"v_cmp_lg_f64_e64 {is_inexact.text}, {back.text}, {exact.text}",
            # Without the signs.
            f"v_and_b32 {back.word(1)}, 0x7fffffff, {back.word(1)}",
            f"v_and_b32 {near.word(1)}, 0x7fffffff, {near.word(1)}",
            f"v_cmp_gt_f64_e64 {is_beyond.text}, {back.text}, {near.text}",
            f"v_cndmask_b32_e64 {beside.text}, 1, -1, {is_beyond.text}",
            f"{self.plain_add} {beside.text}, {single.text}, {beside.text}",
            f"v_and_b32 {last.text}, 1, {single.text}",
            f"v_cmp_eq_u32_e64 {is_beyond.text}, 0, {last.text}",
            f"s_and_{self._machine.mask} {is_inexact.text}, {is_inexact.text}, {is_beyond.text}",
            f"v_cndmask_b32_e64 {single.text}, {single.text}, {beside.text}, {is_inexact.text}",
        )

    # Floats to integers

    def _to_integer(self, destination: Vector, to: Type, value: Vector, source: Type) -> None:
        """Round a float towards zero; beyond the range the nearest number, 0 for a NaN."""
        code = self.code
        code.changes_mode = True
        if source.bits == 16:
            value, source = self.to_f32(value, source), Type.F32
        kind = "i32" if to.is_signed else "u32"
        if destination.words == 2:
            if source is Type.F32:
                double = code.vector(2)
                code.emit(f"v_cvt_f64_f32 {double.text}, {value.text}")
                value = double
            self._to_pair(destination, value, is_signed=to.is_signed)
            return
        code.emit(f"v_cvt_{kind}_{source} {destination.text}, {value.text}")
        if to.bits < 32:
            highest = (1 << to.bits - to.is_signed) - 1
            code.emit(f"v_min_{kind} {destination.text}, {highest:#x}, {destination.text}")
            if to.is_signed:
                code.emit(f"v_max_{kind} {destination.text}, {~highest & WORD:#x}, {destination.text}")

    def _to_pair(self, destination: Vector, value: Vector, *, is_signed: bool) -> None:
        """Convert an f64 to 64 bits: its size in two words, limited; then the sign."""
        code = self.code
        whole, high, part = (code.vector(2) for _ in range(3))
        signs = self._signs(value)
        code.emit(f"v_trunc_f64 {whole.text}, {value.text}")
        if is_signed:
            code.emit(f"v_and_b32 {whole.word(1)}, 0x7fffffff, {whole.word(1)}")
        # A NaN, and what is below 0.
        code.emit(f"v_max_f64 {whole.text}, {whole.text}, 0")
        by, is_beyond = self.number(-32 & WORD), code.mask()
        limit = self.number(_TWO_TO_THE[63 if is_signed else 64], 2)
        code.emit(
            f"v_ldexp_f64 {high.text}, {whole.text}, {by.text}", f"v_floor_f64 {high.text}, {high.text}",
            f"v_ldexp_f64 {part.text}, {high.text}, 32", f"v_add_f64 {part.text}, {whole.text}, -{part.text}",
            f"v_cmp_ge_f64_e64 {is_beyond.text}, {whole.text}, {limit.text}",
            f"v_cvt_u32_f64 {destination.word(1)}, {high.text}", f"v_cvt_u32_f64 {destination.word(0)}, {part.text}",
        )  # fmt: skip
        if not is_signed:
            for number in range(2):
                code.emit(
                    f"v_cndmask_b32_e64 {destination.word(number)}, {destination.word(number)}, -1, {is_beyond.text}"
                )
            return
        signed = self._magnitude(destination, signs)
        # The highest number, or the lowest.
        code.emit(f"v_not_b32 {part.word(0)}, {signs.text}", f"v_xor_b32 {part.word(1)}, 0x7fffffff, {signs.text}")
        code.emit(
            f"v_cndmask_b32_e64 {destination.word(0)}, {signed.word(0)}, {part.word(0)}, {is_beyond.text}",
            f"v_cndmask_b32_e64 {destination.word(1)}, {signed.word(1)}, {part.word(1)}, {is_beyond.text}",
        )


def _converted(value: Constant, to: Type) -> Constant:
    """Return an integer constant in another type."""
    bits = value.bits
    if value.type.is_signed and bits >> value.type.bits - 1:
        bits -= 1 << value.type.bits
    return Constant(to, bits % (1 << to.bits))
