"""Which lanes execute statements of map types: conditions, blocks that lanes leave, code for some lanes alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from neutrino.gcn.instrument.code import Mask
from neutrino.gcn.instrument.compute import Computing
from neutrino.gcn.instrument.map_memory import Where
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.memory import Apart, Block, Branch, EachInTurn, Kept, Leave, Meet, When
from neutrino.ir.operands import Register


class MapFlow(Computing):
    """Lowers the statements of map types that say who executes others. EXEC has at least one lane."""

    def __init__(self, here: Surroundings) -> None:
        """Begin a piece of code."""
        super().__init__(here)
        # Where the map's record is, once code for all lanes here has found out.
        self._record: Where | None = None
        # Of the blocks and conditions around, from the outermost on, the lanes that come back after each.
        self._outer: list[tuple[str, Mask, str]] = []

    def is_kept(self, register: Register) -> bool:
        """Return whether a register lives longer than this piece of code."""
        return isinstance(register, Kept)

    def _rows(self, statements: Any) -> None:
        """Append code for statements, in the lanes that are active here."""
        self.lower(statements)

    @contextmanager
    def only(self, when: Register | None, *, skips: bool = True) -> Iterator[None]:
        """Narrow EXEC to the lanes in which a predicate is true. skips: go around the code if there are none."""
        if when is None:
            yield
            return
        code, machine = self.code, self.code.machine
        outer, end = code.mask(), code.label()
        code.pin(outer)
        condition = self.place(when)
        code.emit(f"s_and_saveexec_{machine.mask} {outer.text}, {condition.text}")
        if skips:
            code.emit(f"s_cbranch_execz {end}")
        yield
        if skips:
            code.emit(f"{end}:")
        code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}")
        code.release(outer)

    @contextmanager
    def _inner(self, name: str) -> Iterator[Mask]:
        """Write code that not all lanes here may come to. What it finds out is not known after it. Gives the lanes that
        are here after it."""
        code, machine, known = self.code, self.code.machine, self._record
        outer = code.mask()
        code.pin(outer)
        code.emit(f"s_mov_{machine.mask} {outer.text}, {machine.exec}")
        self._outer.append((name, outer, code.label()))
        yield outer
        _, _, end = self._outer.pop()
        code.emit(f"{end}:", f"s_mov_{machine.mask} {machine.exec}, {outer.text}")
        code.release(outer)
        if self._record is not known:
            self._forget()
        self._record = known

    def _apart(self, statement: Apart) -> None:
        """Append code for statements that only those lanes run in which a predicate is true."""
        machine = self.code.machine
        with self._inner(""):
            condition = self.place(statement.condition)
            self.code.emit(
                f"s_and_{machine.mask} {machine.exec}, {machine.exec}, {condition.text}",
                f"s_cbranch_execz {self._outer[-1][2]}",
            )
            self._rows(statement.then)

    def _when(self, statement: When) -> None:
        """Append code for statements that write registers only in lanes in which a predicate is true."""
        with self.only(statement.condition, skips=False):
            for change in statement.then:
                super()._lower(change)

    def _branch_all(self, statement: Branch) -> None:
        """Append a branch between two lists of statements, by a predicate that is the same in all lanes."""
        code = self.code
        otherwise, end = code.label(), code.label()
        condition, known = self.place(statement.condition), self._record
        code.emit(f"s_cmp_lg_u{code.machine.wave} {condition.text}, 0", f"s_cbranch_scc0 {otherwise}")
        for rows, label in ((statement.then, otherwise), (statement.otherwise, end)):
            self._rows(rows)
            if self._record is not known:
                self._forget()
            self._record = known
            code.emit(*((f"s_branch {end}",) if label is otherwise else ()), f"{label}:")

    def _block(self, statement: Block) -> None:
        """Append code for a block of statements that lanes may leave before its end."""
        with self._inner(statement.name):
            self._rows(statement.then)

    def _leave(self, statement: Leave) -> None:
        """Append code by which lanes leave a block: all that are active, or those in which a predicate is true."""
        code, machine = self.code, self.code.machine
        around = [name for name, _, _ in self._outer].index(statement.name)
        with code.scope():
            leaving = code.mask()
            if statement.when is None:
                code.emit(f"s_mov_{machine.mask} {leaving.text}, {machine.exec}")
            else:
                name = machine.and_not if statement.is_inverted else f"s_and_{machine.mask}"
                code.emit(f"{name} {leaving.text}, {machine.exec}, {self.place(statement.when).text}")
            # They are back at the end of the block, not before.
            for _, mask, _ in self._outer[around + 1 :]:
                code.emit(f"{machine.and_not} {mask.text}, {mask.text}, {leaving.text}")
            code.emit(f"{machine.and_not} {machine.exec}, {machine.exec}, {leaving.text}")
        code.emit(f"s_cbranch_execz {self._outer[-1][2]}")

    def _in_turn(self, statement: EachInTurn) -> None:
        """Append statements once for each row of values, which go into the same registers one after the other."""
        for row in statement.rows:
            for register, value in zip(statement.registers, row, strict=True):
                self.move(self.place(register), self.value(value), register.type)
            self._rows(statement.then)

    def _meet(self, statement: Meet) -> None:
        """Lanes of a wave are together wherever they are."""

    def _forget(self) -> None:
        """Give back the registers of the record's place."""
        if self._record is not None and self._record.base is not None:
            self.code.release(self._record.address, self._record.base)
