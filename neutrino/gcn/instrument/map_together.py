"""What one lane does for others: changes of memory that are the same in all lanes, which would wait for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from neutrino.abi.levels import Level, Per
from neutrino.gcn.instrument.code import Scalar, Value, Vector
from neutrino.gcn.instrument.map_flow import MapFlow
from neutrino.gcn.instrument.map_memory import GlobalMemory, Where
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.statements import Operator
from neutrino.ir.types import Type
from neutrino.maps.declaration import Map

_SUMS = frozenset({Operator.ADD, Operator.SUB})


class MapTogether(MapFlow):
    """Changes memory for all lanes that are here. entry: the map."""

    def __init__(self, here: Surroundings, entry: Map) -> None:
        """Begin a piece of code."""
        super().__init__(here)
        self.memory = GlobalMemory(self)
        self._entry = entry

    @property
    def no_carry(self) -> str:
        """The infix of 32-bit additions that leave VCC alone, where there are two forms."""
        return "_nc" if self.code.machine.generation >= 10 else ""

    def combine(self, operator: Operator, where: Where, value: Value, words: int) -> None:
        """Change 32 or 64 bits in memory by a value of each lane here. Where place and value are the same in all of
        them one does it for all, since lanes that change the same bits do so one after the other. words: of the bits.
        """
        code, level = self.code, self._entry.level
        if level is not Level.THREAD or (self._entry.per is Per.THREAD and where.base is not None):
            self.memory.atomic(operator, where, self.in_vector(value, words))
            return
        compared = [] if where.base is not None else [where.address.word(number) for number in range(2)]
        compared += [value.word(number) for number in range(words)] if isinstance(value, Vector) else []
        with code.scope():
            apart, end = code.label(), code.label()
            firsts = self.test_same(compared)
            if compared:
                code.emit(f"s_cbranch_scc0 {apart}")
            first: Value = value
            if isinstance(value, Vector):
                first = code.scalar(words)
                self.gather(first, firsts[-words:])
            with self._lowest_of_all() as number:
                total = self._times(first, number, words) if operator in _SUMS else self.in_vector(first, words)
                self.memory.atomic(operator, where, total)
            if compared:
                code.emit(f"s_branch {end}", f"{apart}:")
                self.memory.atomic(operator, where, self.in_vector(value, words))
                code.emit(f"{end}:")

    def test_same(self, words: Sequence[str]) -> list[Scalar]:
        """Set SCC to whether each of some VGPRs has the same in all lanes here; return what each has in the first."""
        code, machine = self.code, self.code.machine
        firsts = [code.scalar() for _ in words]
        if words:
            differs, part = code.mask(), code.mask()
            for number, (first, word) in enumerate(zip(firsts, words, strict=True)):
                to = part if number else differs
                code.emit(
                    f"v_readfirstlane_b32 {first.text}, {word}", f"v_cmp_ne_u32_e64 {to.text}, {first.text}, {word}"
                )
                if number:
                    code.emit(f"s_or_{machine.mask} {differs.text}, {differs.text}, {part.text}")
            code.emit(f"s_cmp_eq_u{machine.wave} {differs.text}, 0")
        return firsts

    def gather(self, destination: Scalar, words: Sequence[Scalar]) -> None:
        """Bring words into SGPRs next to each other."""
        for number, word in enumerate(words):
            self.code.emit(f"s_mov_b32 {destination.word(number)}, {word.text}")

    @contextmanager
    def _lowest_of_all(self) -> Iterator[Scalar]:
        """Leave the lowest lane of EXEC; gives how many there were."""
        code, machine = self.code, self.code.machine
        with code.scope():
            outer, number, lane = code.mask(), code.scalar(), code.scalar()
            find = "s_ff1_i32" if machine.generation < 11 else "s_ctz_i32"
            code.emit(
                f"s_mov_{machine.mask} {outer.text}, {machine.exec}",
                f"s_bcnt1_i32_{machine.mask} {number.text}, {machine.exec}",
                f"{find}_b{machine.wave} {lane.text}, {machine.exec}",
                f"s_lshl_{machine.mask} {machine.exec}, 1, {lane.text}",
            )
            yield number
            code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}")

    def _times(self, value: Value, number: Scalar, words: int) -> Vector:
        """Return the product of a value in SGPRs, or a constant, and a number, in VGPRs."""
        code, machine = self.code, self.code.machine
        product = code.scalar(words)
        code.emit(f"s_mul_i32 {product.word(0)}, {number.text}, {self.word(value, 0)}")
        if words == 2:
            part = code.scalar()
            code.emit(
                f"s_mul_hi_u32 {product.word(1)}, {number.text}, {self.word(value, 0)}",
                f"s_mul_i32 {part.text}, {number.text}, {self.word(value, 1)}",
                f"{machine.add} {product.word(1)}, {product.word(1)}, {part.text}",
            )
        return self.in_vector(product, words)

    def swap(self, old: Vector, where: Where, desired: Value, expected: Value) -> None:
        """Write 64 bits where memory has those that are expected, and get what it had. Of lanes that do the same one
        does it for all: the others, too, find that they have done it, if it has."""
        code = self.code
        if self._entry.level is not Level.THREAD:
            self.memory.swap(old, where, desired, expected)
            return
        with code.scope():
            apart, end = code.label(), code.label()
            compared = [one.word(number) for one in (where.address, desired, expected) if isinstance(one, Vector)
                        for number in range(2)]  # fmt: skip
            self.test_same(compared)
            code.emit(f"s_cbranch_scc0 {apart}")
            found = code.scalar(2)
            with self._lowest_of_all():
                self.memory.swap(old, where, desired, expected)
                for number in range(2):
                    code.emit(f"v_readfirstlane_b32 {found.word(number)}, {old.word(number)}")
            self.move(old, found, Type.U64)
            code.emit(f"s_branch {end}", f"{apart}:")
            self.memory.swap(old, where, desired, expected)
            code.emit(f"{end}:")

    def take(self, old: Vector, where: Where, units: Vector) -> None:
        """Add a u32 of each lane here to 64 bits in memory, and get what they were before it was added. If all add the
        same, one does it for all, and each has its part of that."""
        code, machine = self.code, self.code.machine
        with code.scope():
            apart, end = code.label(), code.label()
            combines = self._entry.level is Level.THREAD
            if combines:
                compared = [units.text, *(where.address.word(number) for number in range(2))]
                first, *_ = self.test_same(compared)
                code.emit(f"s_cbranch_scc0 {apart}")
                found, rank, part = code.scalar(2), code.vector(), code.vector(2)
                code.emit(f"v_mbcnt_lo_u32_b32 {rank.text}, exec_lo, 0")
                if machine.wave == 64:
                    code.emit(f"v_mbcnt_hi_u32_b32 {rank.text}, exec_hi, {rank.text}")
                with self._lowest_of_all() as number:
                    self.memory.fetch_add(old, where, self._times(first, number, 2))
                    for word in range(2):
                        code.emit(f"v_readfirstlane_b32 {found.word(word)}, {old.word(word)}")
                code.emit(
                    f"v_mul_lo_u32 {part.word(0)}, {rank.text}, {units.text}",
                    f"v_mul_hi_u32 {part.word(1)}, {rank.text}, {units.text}",
                )
                self.add_pair(old, self.in_vector(found, 2), part)
                code.emit(f"s_branch {end}", f"{apart}:")
            wide = code.vector(2)
            code.emit(f"v_mov_b32_e32 {wide.word(0)}, {units.text}", f"v_mov_b32_e32 {wide.word(1)}, 0")
            self.memory.fetch_add(old, where, wide)
            code.emit(f"{end}:")

    def lowest(self) -> list[str]:
        """Return what leaves the lowest lane of EXEC, which has one."""
        code, machine = self.code, self.code.machine
        with code.scope():
            lane = code.scalar()
            name = "s_ff1_i32" if machine.generation < 11 else "s_ctz_i32"
            return [
                f"{name}_b{machine.wave} {lane.text}, {machine.exec}",
                f"s_lshl_{machine.mask} {machine.exec}, 1, {lane.text}",
            ]
