"""Loads, stores and atomics of probes on global memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.gcn.instrument.code import Code, Scalar, Value, Vector
from neutrino.gcn.instrument.compute import Computing
from neutrino.ir.operands import Constant
from neutrino.ir.statements import Operator
from neutrino.ir.types import Type

_REACH = 2048
"""Below it every processor takes offsets of bytes in instructions."""
_WIDEST = 4
"""32-bit words that one instruction stores."""
_ATOMICS = {
    Operator.ADD: "add", Operator.SUB: "sub", Operator.MIN: "umin", Operator.MAX: "umax", Operator.OR: "or",
}  # fmt: skip


@dataclass(frozen=True)
class Where:
    """A place in memory. address: two VGPRs; or with ``base``, two SGPRs, one with bytes after these. offset: bytes
    after both."""

    address: Vector
    base: Scalar | None = None
    offset: int = 0

    @property
    def last(self) -> str:
        """The end of the text of an instruction that accesses this place: its base register and its offset."""
        after = f" offset:{self.offset}" if self.offset else ""
        return f"{'off' if self.base is None else self.base.text}{after}"


@dataclass(frozen=True)
class Stored:
    """A number to be stored. after: so many bytes after a place. size: its bytes there."""

    after: int
    value: Value
    size: int


class GlobalMemory:
    """Writes accesses in one snippet's code. computing: of the snippet."""

    def __init__(self, computing: Computing) -> None:
        """Begin a snippet."""
        self._computing = computing
        self._code: Code = computing.code

    def after(self, where: Where, offset: int) -> Where:
        """Return the place some bytes after another one, near enough for the offset of an instruction.

        Registers are taken for it.
        """
        total = where.offset + offset
        if 0 <= total < _REACH:
            return Where(where.address, where.base, total)
        code, machine = self._code, self._code.machine
        if where.base is not None:
            base = code.scalar(2)
            code.emit(f"{machine.add} {base.word(0)}, {where.base.word(0)}, {total & 0xFFFFFFFF:#x}")
            code.emit(f"{machine.add_carry} {base.word(1)}, {where.base.word(1)}, {total >> 32 & 0xFFFFFFFF:#x}")
            return Where(where.address, base)
        place = code.vector(2)
        amount = self._computing.in_vector(Constant(Type.U64, total & (1 << 64) - 1), 2)
        self._computing.add_pair(place, where.address, amount)
        return Where(place)

    def load(self, destination: Vector, where: Where, *, is_shared: bool = True) -> None:
        """Append code that loads 32-bit words, and waits for them.

        is_shared: whether other threads' atomics may have changed them just before.
        """
        code, machine = self._code, self._code.machine
        seen = machine.coherent if is_shared else ""
        name = machine.fetch(32 * destination.words)
        code.emit(f"{name} {destination.text}, {where.address.text}, {where.last}{seen}", *machine.wait_vector)

    def store(self, where: Where, parts: Sequence[Stored]) -> None:
        """Append code that stores numbers, in ascending places, in as few instructions as can be."""
        waiting: list[Stored] = []
        for part in parts:
            words = sum(one.size for one in waiting) // 4
            fits = waiting and waiting[-1].after + waiting[-1].size == part.after
            if waiting and (part.size < 4 or not fits or words + part.size // 4 > _WIDEST):
                self._store_words(where, waiting)
                waiting = []
            if part.size < 4:
                self._store_part(where, part)
            else:
                waiting.append(part)
        if waiting:
            self._store_words(where, waiting)

    def _store_part(self, where: Where, part: Stored) -> None:
        """Append a store of a number of 8 or 16 bits."""
        code, machine = self._code, self._code.machine
        with code.scope():
            value, place = self._computing.in_vector(part.value, 1), self.after(where, part.after)
            code.emit(f"{machine.store(8 * part.size)} {place.address.text}, {value.text}, {place.last}")

    def _store_words(self, where: Where, parts: Sequence[Stored]) -> None:
        """Append stores of numbers of one or two words that lie next to each other."""
        code, machine = self._code, self._code.machine
        words = sum(one.size for one in parts) // 4
        with code.scope():
            if len(parts) == 1:
                value = self._computing.in_vector(parts[0].value, words)
            else:
                value, number = code.vector(words), 0
                for part in parts:
                    for word in range(part.size // 4):
                        text = self._computing.word(part.value, word)
                        code.emit(f"v_mov_b32_e32 {value.word(number)}, {text}")
                        number += 1
            place = self.after(where, parts[0].after)
            code.emit(f"{machine.store(32 * words)} {place.address.text}, {value.text}, {place.last}")
            if words > 2:
                # The vector unit must not write them right behind the store.
                code.emit("s_nop 0")

    def atomic(self, operator: Operator, where: Where, value: Vector) -> None:
        """Append an atomic update of 32 or 64 bits in memory."""
        code, machine = self._code, self._code.machine
        name = machine.atomic(_ATOMICS[operator], 32 * value.words)
        code.emit(f"{name} {where.address.text}, {value.text}, {where.last}{machine.of_device}")

    def fetch_add(self, old: Vector, where: Where, value: Vector) -> None:
        """Append an atomic addition to 64 bits in memory, and wait for what they were.

        old: gets that.
        """
        code, machine = self._code, self._code.machine
        name = machine.atomic("add", 32 * value.words)
        code.emit(
            f"{name} {old.text}, {where.address.text}, {value.text}, {where.last}{machine.returns}{machine.of_device}",
            *machine.wait_vector,
        )

    def swap(self, old: Vector, where: Where, desired: Value, expected: Value) -> None:
        """Append an atomic that writes 64 bits to memory if it has the expected ones, and wait for what it had.

        old: gets that.
        """
        code, machine = self._code, self._code.machine
        with code.scope():
            both = code.vector(4)
            for number in range(2):
                code.emit(f"v_mov_b32_e32 {both.word(number)}, {self._computing.word(desired, number)}")
                code.emit(f"v_mov_b32_e32 {both.word(number + 2)}, {self._computing.word(expected, number)}")
            # In registers of its own: a lane in which nothing is swapped keeps what it has.
            code.emit(
                f"{machine.atomic('cmpswap', 64)} {old.text}, {where.address.text}, {both.text}, {where.last}"
                f"{machine.returns}{machine.of_device}",
                *machine.wait_vector,
            )

    def add_float(self, where: Where, value: Vector) -> None:
        """Append code that adds atomically to an f64 in memory, in the lanes that are active."""
        code, machine = self._code, self._code.machine
        code.changes_mode = True
        if machine.adds_doubles:
            code.emit(f"global_atomic_add_f64 {where.address.text}, {value.text}, {where.last}{machine.of_device}")
            return
        with code.scope():
            old, new, seen, outer, again = code.vector(2), code.vector(2), code.vector(2), code.mask(), code.mask()
            code.emit(f"s_mov_{machine.mask} {outer.text}, {machine.exec}")
            self.load(old, where)
            loop = code.label()
            code.emit(f"{loop}:", f"v_add_f64 {new.text}, {old.text}, {value.text}")
            self.swap(seen, where, new, old)
            code.emit(f"v_cmp_ne_u64_e64 {again.text}, {seen.text}, {old.text}")
            for number in range(2):
                code.emit(f"v_mov_b32_e32 {old.word(number)}, {seen.word(number)}")
            # Another thread was faster in these.
            code.emit(f"s_mov_{machine.mask} {machine.exec}, {again.text}", f"s_cbranch_execnz {loop}")
            code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}")
