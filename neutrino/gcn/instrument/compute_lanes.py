"""Values between lanes: reductions over those that are active, and values of other lanes.

Lanes take their turns in a loop, by ``v_readlane``: nothing is written to lanes that are not active, whose registers
the program may still need.
"""

from __future__ import annotations

from collections.abc import Callable

from neutrino.gcn.instrument.apertures import find_global
from neutrino.gcn.instrument.code import Mask, Place, Scalar, Value, Vector
from neutrino.gcn.instrument.compute_conversions import Conversions
from neutrino.gcn.instrument.compute_moves import CannotError
from neutrino.ir.operands import Constant
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type

_OPERATORS = {
    Reduction.SUM: Operator.ADD, Reduction.MIN: Operator.MIN, Reduction.MAX: Operator.MAX, Reduction.OR: Operator.OR,
}  # fmt: skip
_OF_PREDICATES = (Reduction.ANY, Reduction.ALL, Reduction.BALLOT)


class LaneExchange(Conversions):
    """Lowers ``Collective``, ``Shuffle`` and ``IsGlobal``."""

    def reduce(self, destination: Place, reduction: Reduction, value: Value, type_: Type) -> None:
        """Reduce a value over the active lanes. type_: of the value."""
        if reduction in _OF_PREDICATES:
            self._of_predicate(destination, reduction, value)
        elif reduction is Reduction.MATCH:
            self._match(destination, value, type_)
        elif reduction is Reduction.SAME:
            self._is_same(destination, value, type_)
        elif type_ is Type.PRED:
            # Of the first lane.
            code, machine = self.code, self._machine
            assert isinstance(destination, Mask)
            lane, bits = code.scalar(), self._here_of(value)
            code.emit(self._first_lane(lane, machine.exec), f"s_bitcmp1_{machine.mask} {bits.text}, {lane.text}")
            code.emit(f"s_cselect_{machine.mask} {destination.text}, {machine.exec}, 0")
        elif reduction is Reduction.FIRST or (not isinstance(value, Vector) and reduction is not Reduction.SUM):
            self.move(destination, self.in_scalar(value, self.words(type_)), type_)
        elif type_.is_float:
            self._extreme_of_floats(destination, _OPERATORS[reduction], value, type_)
        else:
            self._of_integers(destination, _OPERATORS[reduction], value, type_)

    def _first_lane(self, lane: Scalar, mask: str) -> str:
        """Return the instruction that finds the lowest lane of a mask."""
        name = "s_ff1_i32_b" if self._machine.generation < 11 else "s_ctz_i32_b"
        return f"{name}{self._machine.wave} {lane.text}, {mask}"

    def _for_each_lane(self, body: Callable[[Scalar], Mask | None]) -> None:
        """Execute code for active lanes, one after the other. body: writes it, of a lane's number; returns the lanes
        that are done with it, None for that lane alone."""
        code, machine = self.code, self._machine
        remaining, lane, again = code.mask(), code.scalar(), code.label()
        code.emit(f"s_mov_{machine.mask} {remaining.text}, {machine.exec}", f"{again}:")
        code.emit(self._first_lane(lane, remaining.text))
        done = body(lane)
        if done is None:
            code.emit(f"s_bitset0_{machine.mask} {remaining.text}, {lane.text}")
            self.test(remaining)
        else:
            code.emit(f"{machine.and_not} {remaining.text}, {remaining.text}, {done.text}")
        code.emit(f"s_cbranch_scc1 {again}")

    def _of_lane(self, result: Scalar, value: Vector, lane: str) -> None:
        """Read a value of one lane. lane: its number, as an operand."""
        for number in range(value.words):
            self.code.emit(f"v_readlane_b32 {result.word(number)}, {value.word(number)}, {lane}")

    def _of_integers(self, destination: Place, operator: Operator, value: Value, type_: Type) -> None:
        """Reduce integers, in SGPRs."""
        code, words = self.code, self.words(type_)
        result, part = code.scalar(words), code.scalar(words)
        if not isinstance(value, Vector):
            # As often as there are lanes.
            lanes = code.scalar()
            code.emit(f"s_bcnt1_i32_{self._machine.mask} {lanes.text}, {self._machine.exec}")
            self.scalar(result, Operator.MUL, type_, [self.in_scalar(value, words), lanes], type_)
            self.move(destination, result, type_)
            return
        if operator is Operator.ADD:
            self.move(result, Constant(type_, 0), type_)
        else:
            self.move(result, value, type_)

        def add(lane: Scalar) -> None:
            """Add the value of one lane."""
            self._of_lane(part, value, lane.text)
            self.scalar(result, operator, type_, [result, part], type_)

        self._for_each_lane(add)
        self.move(destination, result, type_)

    def _extreme_of_floats(self, destination: Place, operator: Operator, value: Value, type_: Type) -> None:
        """Find the least or the greatest of floats, in VGPRs that are the same in all lanes."""
        code, words = self.code, self.words(type_)
        assert isinstance(value, Vector)
        result, part = code.vector(words), code.scalar(words)
        self.move(part, value, type_)
        self.move(result, part, type_)

        def add(lane: Scalar) -> None:
            """Compare with the value of one lane."""
            self._of_lane(part, value, lane.text)
            self.float_operation(result, operator, type_, [result, part])

        self._for_each_lane(add)
        self.move(destination, result, type_)

    # Sets of lanes

    def _here_of(self, value: Value) -> Mask:
        """Return in which of the active lanes a predicate is true."""
        code, machine = self.code, self._machine
        bits = code.mask()
        code.emit(f"s_and_{machine.mask} {bits.text}, {self.mask_text(value)}, {machine.exec}")
        return bits

    def _of_predicate(self, destination: Place, reduction: Reduction, value: Value) -> None:
        """Compute whether a predicate is true in any or in all of the active lanes, or in which."""
        code, machine = self.code, self._machine
        bits = self._here_of(value)
        if reduction is Reduction.BALLOT:
            self._set(destination, bits)
            return
        if reduction is Reduction.ALL:
            code.emit(f"s_cmp_eq_u{machine.wave} {bits.text}, {machine.exec}")
        code.emit(f"s_cselect_{machine.mask} {destination.text}, {machine.exec}, 0")

    def _set(self, destination: Place, lanes: Mask) -> None:
        """Write a set of lanes."""
        if destination.words < lanes.words:
            raise CannotError(f"a set of {self._machine.wave} lanes has no room in 32 bits")
        self.move(destination, Scalar(lanes.first, lanes.words), Type.U64)

    def _match(self, destination: Place, value: Value, type_: Type) -> None:
        """Find out which lanes have the same value, for each lane."""
        code, machine = self.code, self._machine
        if not isinstance(value, Vector):
            self._set(destination, self._here_of(Constant(Type.PRED, 1)))
            return
        if destination.words < machine.mask_words:
            raise CannotError(f"a set of {machine.wave} lanes has no room in 32 bits")
        found, part, same = code.vector(destination.words), code.scalar(value.words), code.mask()
        self.move(found, Constant(Type.U64, 0), Type.U64)

        def match(lane: Scalar) -> Mask:
            """Find those that have the value of one lane."""
            self._of_lane(part, value, lane.text)
            with code.scope():
                self.compare_integers(same, Relation.EQ, value, part, type_)
                self.choose(found, same, Scalar(same.first, same.words), found)
            return same

        self._for_each_lane(match)
        self.move(destination, found, Type.U64)

    def _is_same(self, destination: Place, value: Value, type_: Type) -> None:
        """Compute whether all active lanes have the same value."""
        code, machine = self.code, self._machine
        if not isinstance(value, Vector):
            code.emit(f"s_mov_{machine.mask} {destination.text}, {machine.exec}")
            return
        same = code.mask()
        self.compare_integers(same, Relation.EQ, value, self.in_scalar(value, value.words), type_)
        code.emit(f"s_cmp_eq_u{machine.wave} {same.text}, {machine.exec}")
        code.emit(f"s_cselect_{machine.mask} {destination.text}, {machine.exec}, 0")

    # Other lanes

    def shuffle(self, destination: Place, value: Value, type_: Type, lane: Value) -> None:
        """Take the value of a lane by its number, where it is one of those that are active; else the own one."""
        code = self.code
        if isinstance(destination, Mask):
            one, wanted = code.vector(), code.vector()
            self.from_mask(one, value, Type.U32)
            self.shuffle(wanted, one, Type.U32, lane)
            self.compare_integers(destination, Relation.NE, wanted, Constant(Type.U32, 0), Type.U32)
            return
        if not isinstance(value, Vector):
            self.move(destination, value, type_)
            return
        result, part, end = code.vector(value.words), code.scalar(value.words), code.label()
        self.move(result, value, type_)
        if not isinstance(lane, Vector):
            number = self.in_scalar(lane, 1)
            self._unless_there(number, end)
            self._of_lane(part, value, number.text)
            self.move(result, part, type_)
            code.emit(f"{end}:")
        else:
            number, chosen, same = code.scalar(), code.scalar(), code.mask()
            index = lane

            def take(one: Scalar) -> Mask:
                """Take the value of the lane that one lane wants, for all that want the same."""
                self._of_lane(number, index, one.text)
                with code.scope():
                    self.compare_integers(same, Relation.EQ, index, number, Type.U32)
                    # What a vector instruction wrote does not choose a lane at once.
                    code.emit(f"s_mov_b32 {chosen.text}, {number.text}")
                    self._unless_there(chosen, end)
                    self._of_lane(part, value, chosen.text)
                    self.choose(result, same, part, result)
                    code.emit(f"{end}:")
                return same

            self._for_each_lane(take)
        self.move(destination, result, type_)

    def _unless_there(self, lane: Scalar, label: str) -> None:
        """Go to a label if a lane is not active, or if waves have none of that number."""
        code, machine = self.code, self._machine
        code.emit(f"s_cmp_lt_u32 {lane.text}, {machine.wave}", f"s_cbranch_scc0 {label}")
        code.emit(f"s_bitcmp1_{machine.mask} {machine.exec}, {lane.text}", f"s_cbranch_scc0 {label}")

    # Addresses

    def is_global(self, destination: Mask, address: Value) -> None:
        """Compute whether a generic address is neither in LDS nor in scratch memory, of which each has 4 GiB."""
        code, machine = self.code, self._machine
        if isinstance(address, Vector):
            find_global(code, destination, address)
            return
        parts = []
        for name in ("src_shared_base", "src_private_base"):
            window, outside = code.scalar(2), code.mask()
            code.emit(f"s_mov_b64 {window.text}, {name}")
            upper = (
                Constant(Type.U32, address.bits >> 32) if isinstance(address, Constant) else Scalar(address.first + 1)
            )
            self.compare_integers(outside, Relation.NE, upper, Scalar(window.first + 1), Type.U32)
            parts.append(outside.text)
        code.emit(f"s_and_{machine.mask} {destination.text}, {', '.join(parts)}")
