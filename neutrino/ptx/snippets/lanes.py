"""Writing of instructions between the lanes of a warp."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.errors import Span
from neutrino.ir.operands import (
    AssemblyOperand,
    Immediate,
    Inverted,
    Pair,
    Register,
    SiteOperand,
    Special,
    Value,
)
from neutrino.ir.statements import Assembly, Collective, Computation, Reduction, Shuffle
from neutrino.ir.types import Type
from neutrino.ptx.isa.forms import is_collective
from neutrino.ptx.isa.instruction import OF_REQUESTS
from neutrino.ptx.snippets.writer import TARGET, Guard, Writer, move, register_bits

_LANES = SiteOperand("LANES")
"""The mask of all instructions between lanes: those that run the snippet at the site together."""
_LANES_PER_WARP = 32

_SAME_FOR_ALL = frozenset({"vote", "redux"})
"""Instructions between lanes that give all of them the same, whatever each one puts in."""
_CHANGING = frozenset({"activemask", "match", "shfl"})
"""Instructions whose result depends on the lane even if what they read does not."""
_LITERALS = frozenset({"LANES", "SITE", "LINE", "PARAM", "HAS", "ELEMENTS", "BLOCK"}) | OF_REQUESTS
"""Values of the instruction that are the same in all lanes at the site."""


class Uniform:
    """Follows the instructions of a snippet (a probe's code) in their order, to know which registers have one value in
    all lanes.

    names: of the registers that have one value now, in all lanes that run the snippet at a site together.
    """

    def __init__(self) -> None:
        """Begin to track which registers have one value in all lanes; no instruction is followed yet."""
        self.names: set[str] = set()
        self._written: set[str] = set()

    def note(self, statement: Assembly) -> None:
        """Note which registers have one value in all lanes after one more instruction."""
        guard = statement.guard
        # Where not all lanes execute it, they may have different values afterwards.
        together = guard is None or self._is_same(guard)
        same = together and self._gives_one_value(statement)
        for register in statement.writes:
            # Under a guard that does not hold, the register keeps what it has: the one value, or as a local one nothing
            # that is read.
            is_new = register.is_local and register.name not in self._written
            keeps = guard is None or register.name in self.names or is_new
            self._written.add(register.name)
            if same and keeps:
                self.names.add(register.name)
            else:
                self.names.discard(register.name)

    def has_written(self, register: Register) -> bool:
        """Return whether an instruction so far has written a register, in some lane."""
        return register.name in self._written

    def _gives_one_value(self, statement: Assembly) -> bool:
        """Return whether an instruction that all lanes execute together gives each the same result."""
        name = statement.opcode.partition(".")[0]
        if statement.opcode.startswith("match.all"):
            return True
        if name in _CHANGING or len(statement.writes) != 1:
            return False
        return name in _SAME_FOR_ALL or all(map(self._is_same, statement.operands[1:]))

    def _is_same(self, operand: AssemblyOperand) -> bool:
        """Return whether an operand has the same value in all lanes."""
        if isinstance(operand, Inverted):
            return self._is_same(operand.operand)
        if isinstance(operand, Register):
            return operand.name in self.names
        if isinstance(operand, SiteOperand):
            return operand.name in _LITERALS
        return isinstance(operand, Immediate)


class LaneWriter(Writer):
    """Writes reductions over the lanes of a warp, and values of other lanes.

    All lanes that run the snippet execute these instructions, as their mask says. Those for which the guard does not
    hold contribute a neutral value; where the guard is the same in all of them, it is that of the instructions.
    """

    def __init__(self, registers: dict[str, Register], declared: frozenset[str]) -> None:
        """Set up a writer of operations between lanes. registers, declared: see ``Writer``."""
        super().__init__(registers, declared)
        self._uniform = Uniform()
        # The guard that instructions between lanes take.
        self._skipped: Guard | None = None

    def _collective(self, statement: Collective, target: Register, guard: Guard | None) -> None:
        """Append the code of a reduction over the lanes of a warp. target: the register for the result.

        All lanes that run the snippet execute its instructions, as their mask says; those for which the guard does not
        hold contribute a neutral value, so that the result is of the others.
        """
        guard = self._skipping(guard)
        reduction, span = statement.reduction, statement.span
        value_type, source = self._type_of(statement.source), self._operand(statement.source, span)
        if reduction is Reduction.FIRST:
            self._first(statement, target, guard)
        elif reduction in {Reduction.ANY, Reduction.ALL, Reduction.BALLOT}:
            if guard is not None and reduction is Reduction.ALL:
                outside = guard.register if guard.is_inverted else Inverted(guard.register)
                source = self._computed("or.pred", Type.PRED, (source, outside), span)
            elif guard is not None:
                source = self._computed("and.pred", Type.PRED, (source, guard.operand), span)
            kind = "ballot.b32" if reduction is Reduction.BALLOT else f"{reduction.value}.pred"
            self._emit(f"vote.sync.{kind}", target, (source, _LANES), span)
        elif reduction is Reduction.MATCH:
            self._match(target, value_type, source, guard, span)
        elif reduction is Reduction.SAME:
            self._same(statement, target, source, guard)
        elif reduction is Reduction.OR:
            fed = self._fed(source, 0, 32, guard, span)
            self._emit("redux.sync.or.b32", target, (fed, _LANES), span)
        elif value_type.is_float:
            self._extreme_float(reduction, target, value_type, source, guard, span)
        elif value_type.bits == 64:
            self._reduce_64(reduction, target, value_type.is_signed, source, guard, span)
        elif value_type.bits == 32:
            self._reduce_32(reduction, target, value_type.is_signed, source, guard, span)
        else:
            wide_type = Type.S32 if value_type.is_signed else Type.U32
            wide, total = self._temporary(wide_type, span), self._temporary(wide_type, span)
            self._convert(wide, wide_type, value_type, source, span)
            self._reduce_32(reduction, total, value_type.is_signed, wide, guard, span)
            self._convert(target, value_type, wide_type, total, span)

    def _reduce_32(
        self, reduction: Reduction, target: Register, is_signed: bool, source: AssemblyOperand, guard: Guard | None,
        span: Span,
    ) -> None:  # fmt: skip
        """Append the code of a sum, minimum or maximum of 32-bit integers over the lanes for which the guard holds."""
        letter = "s" if is_signed else "u"
        fed = self._fed(source, _neutral(reduction, is_signed, 32), 32, guard, span)
        name = "add" if reduction is Reduction.SUM else reduction.value
        self._emit(f"redux.sync.{name}.{letter}32", target, (fed, _LANES), span)

    def _reduce_64(
        self, reduction: Reduction, target: Register, is_signed: bool, source: AssemblyOperand, guard: Guard | None,
        span: Span,
    ) -> None:  # fmt: skip
        """Append the code of a sum, minimum or maximum of 64-bit integers over the lanes for which the guard holds.

        It is put together from parts, since ``redux``, the instruction for it, has 32 bits.
        """
        fed = self._fed(source, _neutral(reduction, is_signed, 64), 64, guard, span)
        if reduction is Reduction.SUM:
            # In pieces of 27 bits: those of 32 lanes add up to less than 32 bits hold.
            sums = []
            for shift in (0, 27, 54):
                piece = fed
                if shift:
                    piece = self._computed("shr.u64", Type.U64, (fed, Immediate(str(shift))), span)
                if shift < 54:
                    piece = self._computed("and.b64", Type.U64, (piece, Immediate(str((1 << 27) - 1))), span)
                word = self._computed("cvt.u32.u64", Type.U32, (piece,), span)
                total = self._computed("redux.sync.add.u32", Type.U32, (word, _LANES), span)
                sums.append(self._computed("cvt.u64.u32", Type.U64, (total,), span))
            for shift, part in ((27, sums[1]), (54, sums[2])):
                self._emit("shl.b64", part, (part, Immediate(str(shift))), span)
                self._emit("add.u64", sums[0], (sums[0], part), span)
            self._emit("mov.b64", target, (sums[0],), span)
            return
        # The extreme of the upper words, then that of the lower words of the lanes that have it.
        upper, lower = self._halves(fed, span)
        best, best_lower = self._temporary(Type.U32, span), self._temporary(Type.U32, span)
        self._reduce_32(reduction, best, is_signed, upper, None, span)
        has_best = self._computed("setp.eq.u32", Type.PRED, (upper, best), span)
        self._reduce_32(reduction, best_lower, False, lower, Guard(has_best), span)
        self._join(target, best, best_lower, span)

    def _extreme_float(
        self, reduction: Reduction, target: Register, value_type: Type, source: AssemblyOperand, guard: Guard | None,
        span: Span,
    ) -> None:  # fmt: skip
        """Append the code of the minimum or maximum of floats, by comparing unsigned integers in the same order.

        These are the bits, all inverted if the sign is set, else only the sign. The neutral ones, which stand for NaNs
        too, become NaNs again, so that such is the result without any number.
        """
        if value_type.bits == 16:
            wide, best = self._temporary(Type.F32, span), self._temporary(Type.F32, span)
            self._convert(wide, Type.F32, value_type, source, span)
            self._extreme_float(reduction, best, Type.F32, wide, guard, span)
            self._convert(target, value_type, Type.F32, best, span)
            return
        width = value_type.bits
        unsigned, sign = Type(f"u{width}"), Immediate(str(1 << (width - 1)))
        is_number = self._computed(f"setp.num.{value_type}", Type.PRED, (source, source), span)
        bits = self._computed(f"mov.b{width}", unsigned, (source,), span)
        flipped = self._computed(f"shr.s{width}", unsigned, (bits, Immediate(str(width - 1))), span)
        self._emit(f"or.b{width}", flipped, (flipped, sign), span)
        self._emit(f"xor.b{width}", bits, (bits, flipped), span)
        key = self._fed(bits, _neutral(reduction, False, width), width, Guard(is_number), span)
        best = self._temporary(unsigned, span)
        reduce = self._reduce_64 if width == 64 else self._reduce_32
        reduce(reduction, best, False, key, guard, span)
        self._emit(f"shr.s{width}", flipped, (best, Immediate(str(width - 1))), span)
        self._emit(f"not.b{width}", flipped, (flipped,), span)
        self._emit(f"or.b{width}", flipped, (flipped, sign), span)
        self._emit(f"xor.b{width}", best, (best, flipped), span)
        self._emit(f"mov.b{width}", target, (best,), span)

    def _first(self, statement: Collective, target: Register, guard: Guard | None) -> None:
        """Append the code that gives all lanes the value that the lowest lane has for which the guard holds."""
        span = statement.span
        if guard is None:
            here = self._computed("mov.b32", Type.U32, (_LANES,), span)
        else:
            here = self._computed("vote.sync.ballot.b32", Type.U32, (guard.operand, _LANES), span)
        # How many zeros are below the lowest bit. Without any bit no lane takes the result.
        self._emit("brev.b32", here, (here,), span)
        lane = self._computed("clz.b32", Type.U32, (here,), span)
        self._from_lane(target, statement.source, lane, span)

    def _shuffle(self, statement: Shuffle, target: Register, guard: Guard | None) -> None:
        """Append the code that gives each lane the value of another one, or its own where that lane is not there."""
        span = statement.span
        guard = self._skipping(guard)
        if guard is None:
            here: AssemblyOperand = _LANES
        else:
            here = self._computed("vote.sync.ballot.b32", Type.U32, (guard.operand, _LANES), span)
        lane = self._operand(statement.lane, span)
        # A number of 32 and more leaves no bit.
        bit = self._computed("shr.u32", Type.U32, (here, lane), span)
        self._emit("and.b32", bit, (bit, Immediate("1")), span)
        is_there = self._computed("setp.ne.u32", Type.PRED, (bit, Immediate("0")), span)
        own = self._operand(Special.LANE, span)
        chosen = self._computed("selp.b32", Type.U32, (lane, own, is_there), span)
        self._from_lane(target, statement.source, chosen, span)

    def _from_lane(self, target: Register, source: Value, lane: Register, span: Span) -> None:
        """Append the code that puts the value which a lane has of a source into ``target``. lane: its number; it is
        there.
        """
        value_type = self._type_of(source)
        last = (lane, Immediate(str(_LANES_PER_WARP - 1)), _LANES)
        if value_type.bits < 64:
            found = self._computed("shfl.sync.idx.b32", Type.U32, (self._word(source, span), *last), span)
            if value_type is Type.PRED:
                self._emit("setp.ne.u32", target, (found, Immediate("0")), span)
            elif register_bits(value_type) == 32:
                self._emit("mov.b32", target, (found,), span)
            else:
                half = self._computed("cvt.u16.u32", Type.U16, (found,), span)
                self._emit("mov.b16", target, (half,), span)
            return
        upper, lower = self._halves(self._computed("mov.b64", Type.U64, (self._operand(source, span),), span), span)
        for word in (upper, lower):
            self._emit("shfl.sync.idx.b32", word, (word, *last), span)
        self._join(target, upper, lower, span)

    def _match(
        self, target: Register, value_type: Type, source: AssemblyOperand, guard: Guard | None, span: Span
    ) -> None:
        """Append the code that finds the lanes with the same value as this one, of those for which the guard holds."""
        bits = value_type.bits
        fed = self._computed(f"mov.b{bits}", Type(f"u{bits}"), (source,), span)
        self._emit(f"match.any.sync.b{bits}", target, (fed, _LANES), span)
        if guard is not None:
            inside = self._computed("vote.sync.ballot.b32", Type.U32, (guard.operand, _LANES), span)
            self._emit("and.b32", target, (target, inside), span)

    def _same(self, statement: Collective, target: Register, source: AssemblyOperand, guard: Guard | None) -> None:
        """Append the code that tells whether all lanes, for which the guard holds, have the same value."""
        span, value_type = statement.span, self._type_of(statement.source)
        bits = value_type.bits
        if guard is None:
            fed = self._computed(f"mov.b{bits}", Type(f"u{bits}"), (source,), span)
            lanes = self._temporary(Type.U32, span)
            if self._skipped is not None and not self._uniform.has_written(target):
                self._emit("mov.pred", target, (Immediate("0"),), span)
            register, is_inverted = self._skipped or (None, False)
            operands = (Pair(lanes, target), fed, _LANES)
            opcode = f"match.all.sync.b{bits}"
            self._append(Assembly(TARGET, opcode, operands, span, register, is_inverted, (lanes, target)))
            return
        value = self._temporary(value_type, span)
        self._first(statement, value, guard)
        alike = self._computed(f"setp.eq.b{bits}", Type.PRED, (source, value), span)
        outside = guard.register if guard.is_inverted else Inverted(guard.register)
        self._emit("or.pred", alike, (alike, outside), span)
        self._emit("vote.sync.all.pred", target, (alike, _LANES), span)

    def _skipping(self, guard: Guard | None) -> Guard | None:
        """Return the guard of a statement between lanes; None if all lanes agree on it.

        Then its instructions take the guard: no lane waits for another, and where it does not hold they cost little.
        """
        self._skipped = guard if guard is not None and self._is_agreed(guard) else None
        return None if self._skipped is not None else guard

    def _is_agreed(self, guard: Guard) -> bool:
        """Return whether all lanes that run the snippet together agree on a guard."""
        return guard.register.name in self._uniform.names

    def _takes_agreed_guard(self, statement: Computation, guard: Guard) -> bool:
        """Return whether a statement becomes one instruction between lanes, under a guard with one value in all of
        them.
        """
        if not isinstance(statement, Collective) or not self._is_agreed(guard):
            return False
        if statement.reduction in {Reduction.FIRST, Reduction.SUM, Reduction.MIN, Reduction.MAX}:
            value_type = self._type_of(statement.source)
            return statement.reduction is not Reduction.FIRST and value_type.is_integer and value_type.bits == 32
        return True

    def _emit(
        self, opcode: str, destination: Register, sources: Sequence[AssemblyOperand], span: Span,
        guard: Guard | None = None,
    ) -> None:  # fmt: skip
        """Append an instruction, one between lanes under the guard that all lanes share, whatever guard is given."""
        if is_collective(opcode):
            guard = self._skipped
            if guard is not None and not self._uniform.has_written(destination):
                # Else ptxas keeps what the register had before, as in the turn of a loop.
                self._emit(move(destination.type), destination, (Immediate("0"),), span)
        super()._emit(opcode, destination, sources, span, guard)

    def _append(self, instruction: Assembly) -> None:
        """Append an instruction, and note which registers have one value in all lanes after it."""
        super()._append(instruction)
        self._uniform.note(instruction)

    def _fed(
        self, source: AssemblyOperand, neutral: int, bits: int, guard: Guard | None, span: Span
    ) -> AssemblyOperand:
        """Return a value where the guard holds, else a neutral one, which does not change the result of a reduction."""
        if guard is None:
            # Not an immediate, which instructions between lanes may not take.
            return self._computed(f"mov.b{bits}", Type(f"u{bits}"), (source,), span)
        choices = (source, Immediate(str(neutral)))
        first, second = reversed(choices) if guard.is_inverted else choices
        return self._computed(f"selp.b{bits}", Type(f"u{bits}"), (first, second, guard.register), span)


def _neutral(reduction: Reduction, is_signed: bool, bits: int) -> int:
    """Return the value that changes no sum, minimum or maximum of integers, as an unsigned number."""
    least = 1 << (bits - 1) if is_signed else 0
    if reduction is Reduction.MIN:
        return least ^ ((1 << bits) - 1)
    return least if reduction is Reduction.MAX else 0
