"""Code for the sums of probes: each thread adds up in registers; where threads end, these are added to memory.

Where probes only add constants, threads do not add to each sum: they count in a few counters how often they execute
which runs of sites. The sums are computed from these where a thread ends (``analysis/counter_placement.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.ir.operands import SavedOperand
from neutrino.maps.declaration import Map
from neutrino.maps.float_sums import FLOATS
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.structured import Save, registers_of
from neutrino.ptx.analysis.counter_placement import CounterPlan, Fork, FormulaTerm, Row, SumFormula, plan_counters
from neutrino.ptx.instrument.end_sums import EndSums, Word, value_of
from neutrino.ptx.instrument.probe_block import ProbeBlock, Slots
from neutrino.ptx.instrument.records import as_bits, converted
from neutrino.ptx.instrument.registers import Guard, LongLived, ProbeRegisters, Take, Value, bits, guarded, under
from neutrino.ptx.snippets.writer import operand_text
from neutrino.ptx.text.inserted import Lines, op


def _is_decimal(text: str) -> bool:
    """Whether an operand is a number from 1, in decimal, that fits any field."""
    return text.isdecimal() and text[0] != "0" and len(text) < 10


class Sums:
    """Writes the code for sums in one body: registers in which a thread adds up what probes add to fields of maps, or
    counters from which these sums are computed where the thread ends (see ``choose_counters``).

    maps: of the probes. prefix: starts every private register. registers: the probes' own. block: has the addresses of
    the maps' records. take: gives a new register of a type (``Take``). architecture: 80 for ``sm_80``. kernel: for the
    body of a function that a kernel calls, the sums of the kernel; else None.
    """

    def __init__(
        self, maps: Sequence[Map], prefix: str, registers: ProbeRegisters, block: ProbeBlock, take: Take,
        architecture: int, kernel: Sums | None,
    ) -> None:  # fmt: skip
        """Set up a writer of the code for sums (accumulators of probes) in one body; none yet. Parameters: see the
        class."""
        self._maps = maps
        self._cells = [entry.kind.cells(entry.fields) for entry in maps]
        self._prefix = prefix
        self._registers = registers
        self._block = block
        self._take = take
        self._architecture = architecture
        # The registers of sums that the body's code names, by field; and those of the kernel and all its functions.
        self._sums: dict[tuple[int, int], str] = {}
        self._all_sums: dict[tuple[int, int], str] = kernel._all_sums if kernel else {}
        # The counters that runs of sites add to, in place of the probes' registers and the sums; None without counters.
        self._counter_plan: CounterPlan | None = None
        # Their registers.
        self._counters: list[Word] = []
        # By field, what snippets at the ends add to it that is computed from counters.
        self._ending: dict[tuple[int, int], list[SumFormula]] = {}
        # The probes' registers to which `update_registers` has added what the counters stand for.
        self._updated: set[str] = set()

    @property
    def long_lived(self) -> list[LongLived]:
        """The registers in which a thread adds up sums until it ends, as far as the body's code uses them."""
        registers = []
        for (map_index, cell), name in self._sums.items():
            # Signed and unsigned numbers are added alike.
            kind = _unsigned(self._cells[map_index][cell])
            registers.append(LongLived(name, kind, "0", kind))
        return registers

    @property
    def counter_registers(self) -> list[LongLived]:
        """The registers of the counters from which sums are computed where a thread ends."""
        return [LongLived(word.name, f"u{word.bits}", "0", f"u{word.bits}") for word in self._counters]

    @property
    def has_end(self) -> bool:
        """Whether a thread has sums to add to memory where it ends."""
        formulas = self._counter_plan.formulas if self._counter_plan is not None else {}
        has_field_formula = any(isinstance(key, tuple) for key in formulas)
        return bool(self._all_sums or self._ending or has_field_formula)

    @property
    def has_counters(self) -> bool:
        """Whether sums of constants are not added up at sites (probed instructions), but computed from counters at the
        thread's end."""
        return self._counter_plan is not None

    def choose_counters(self, rows: Sequence[Row], forks: Sequence[Fork]) -> None:
        """Choose counters from which all that groups of sites (probed instructions) add can be computed where a thread
        ends.

        Called once, when the code at sites is written. rows: of each group, what it adds to which sums: registers of
        the probes, by name, and fields, by ``Key``. forks: see ``plan_counters``.
        """
        # Bits by sum.
        widths: dict[Hashable, int] = {name: bits(kind) for name, kind in self._registers.types.items()}
        for index, entry in enumerate(self._maps):
            widths.update(((index, number), field.type.size * 8) for number, field in enumerate(entry.fields))
        self._counter_plan = plan_counters(rows, widths, forks)
        self._counters = [
            Word(f"{self._prefix}c{index}", counter.bits) for index, counter in enumerate(self._counter_plan.counters)
        ]

    def count_group(self, number: int, guard: Guard | None) -> Lines:
        """Return the code that adds to the counters when a group of sites (probed instructions) is executed; [] without
        counters.

        It is for the group's beginning. number: of the group, which is that of its row in ``choose_counters``. guard:
        the predicate of the group's sites, None without one.
        """
        if self._counter_plan is None:
            return []
        when = under(guard)
        added = [(self._counters[index], str(amount)) for index, amount in self._counter_plan.adds[number]]
        return [op(f"add.u{word.bits}", word.name, word.name, amount, when=when) for word, amount in added]

    def add(
        self, index: int, save: Save, operand_value: Callable[[SavedOperand], Value], lines: Lines, slots: Slots,
        guard: Guard | None, *, ending: bool,
    ) -> None:  # fmt: skip
        """Append the code with which a save (a probe's statement that records values) adds its operands to the sums of
        a map.

        index: of the map. operand_value: gives the value of an operand there. slots: of the thread. guard: the
        predicate of the threads that save, None for all. ending: the save is at an end of the thread: the part of an
        operand that is computed from counters is noted, and ``end`` adds it.
        """
        target = self._maps[index]
        when = None
        for number, (field, operand) in enumerate(zip(target.fields, save.operands, strict=True)):
            text = operand_text(operand)
            if field.type in FLOATS or self._registers.is_zero(text):
                continue
            if ending:
                formula = self._known_part(text)
                if formula is not None:
                    self._ending.setdefault((index, number), []).append(formula)
                    # Only what code has changed in the register itself is left to add here.
                    if self._registers.private(text) not in self._registers.changed:
                        continue
            # Made once, and only if something is added.
            if when is None:
                when = under(guard)
                if target.level is not Level.THREAD:
                    slot = slots.at(target.level, lines)
                    when = guarded(slot.inside, guard, self._take, lines)
            value = operand_value(operand)
            name = self.name(index, number)
            # Constants need no register and no conversion.
            text = value.text
            if value.type is not None or not _is_decimal(value.text):
                text = as_bits(converted(value, field, self._take, lines), self._take, lines)
            kind = _unsigned(field)
            lines.append(op(f"add.{kind}", name, name, text, when=when))

    def add_amount(
        self, index: int, number: int, amount: str, when: str, lines: Lines, *, operation: str = "add"
    ) -> None:  # fmt: skip
        """Append the code that adds a number or a register to the register in which a thread sums up a cell of the
        index-th map.

        number: of the cell. when: the predicate of the threads that do, as ``%p``; "" for all. operation: or ``sub``.
        """
        name = self.name(index, number)
        lines.append(op(f"{operation}.{_unsigned(self._cells[index][number])}", name, name, amount, when=when))

    def name(self, index: int, number: int) -> str:
        """Return the register in which a thread sums up a cell of the index-th map, for code that changes it. number:
        of the cell."""
        name = self._all_sums.setdefault((index, number), f"{self._prefix}s{index}_{number}")
        self._sums[index, number] = name
        self._registers.changed.add(name)
        return name

    def update_registers(self, snippets: Iterable[Snippet]) -> Lines:
        """Return the code that adds to probes' registers what counters stand for, before snippets at a thread's end
        read them.

        Where counters are kept, code at sites adds to them and not to these registers. Registers that the snippets only
        add to sums are left out: ``add`` and ``end`` add their formulas to the sums directly. snippets: all at the
        ends.
        """
        if self._counter_plan is None:
            return []
        # Names of the registers whose values the snippets need.
        read: set[str] = set()
        for statement in (statement for snippet in snippets for statement in snippet.straight):
            if not isinstance(statement, Save):
                read.update(register.name for register in registers_of(statement))
                continue
            if statement.guard is not None:
                read.add(statement.guard.name)
            adds_constants = statement.map.adds_constants
            for field, operand in zip(statement.map.fields, statement.operands, strict=True):
                name = operand_text(operand)
                if not adds_constants or not self._field_fits(name, field):
                    read.add(name)
        lines: Lines = []
        # Keys that are strings are registers, the others fields.
        for name in sorted(read.intersection(key for key in self._counter_plan.formulas if isinstance(key, str))):
            width = bits(self._registers.types[name])
            value = self._value_here(self._counter_plan.formulas[name], width, lines)
            private_name = self._registers.use(name)
            lines.append(op(f"add.u{width}", private_name, private_name, value))
            self._registers.changed.add(private_name)
            self._updated.add(name)
        return lines

    def end(self, lines: Lines) -> None:
        """Append the code that adds this thread's sums to memory where it ends: those of the kernel, and of its
        functions as far as their code has been written."""
        # The code names all of them, also those that only other bodies added to.
        self._sums = dict(self._all_sums)
        sums = EndSums(self._maps, self._take, self._block, self._architecture)
        counter_plan = self._counter_plan or CounterPlan((), (), {})
        # First the counters: formulas name them by their index.
        for word in self._counters:
            sums.add_register(word)
        for key, formulas in self._ending.items():
            for formula in formulas:
                sums.add(key, formula)
        for sum_key, formula in counter_plan.formulas.items():
            # A tuple is a field; registers of the probes are no sums in memory.
            if isinstance(sum_key, tuple):
                sums.add(sum_key, formula)
        for key, name in self._sums.items():
            index, number = key
            scalar = self._cells[index][number].type
            counter_number = sums.add_register(Word(name, scalar.size * 8, signed=scalar is ScalarType.S64))
            # All bits of the register, times one.
            sums.add(key, SumFormula(0, (FormulaTerm(counter_number, shift=0, width=0, factor=1, most=None),)))
        lines += sums.write()

    def _field_fits(self, name: str, field: Field) -> bool:
        """Return whether a field that a register is saved to may get the register's formula of counters in place of its
        value.

        name: a register of the probes that a snippet at the end saves. field: of the map. The value, extended to the
        field's width, is another number than the formula's where it has wrapped around in the register, or code has
        changed the register. So the widths must be equal, or the greatest value of the formula (``most``, None if not
        known) must fit the register. A register without a formula has no counters, so that nothing stands in place of
        its value.
        """
        formula = self._counter_plan.formulas.get(name) if self._counter_plan else None
        if formula is None or bits(self._registers.types[name]) == field.type.size * 8:
            return True
        if formula.most is None or self._registers.private(name) in self._registers.changed:
            return False
        initial = self._registers.initial(name)
        # Not negative even as a signed number of 32 bits: it is extended to the same number by zeros and by sign.
        return initial >= 0 and initial + formula.most < 1 << 31

    def _known_part(self, operand: str) -> SumFormula | None:
        """Return the part of an operand's value, at an end, that is constant or computed from counters, as a formula;
        else None.

        It is the whole value unless other code has changed the register. operand: of a ``SAVE``, as text.
        """
        if _is_decimal(operand):
            return SumFormula(int(operand))
        formula = self._counter_plan.formulas.get(operand) if self._counter_plan else None
        # After `update_registers` the register itself holds the whole value.
        if formula is None or operand in self._updated:
            return None
        # A changed register is added by itself, and its initial value with it.
        if self._registers.private(operand) in self._registers.changed:
            return formula
        return replace(formula, constant=(formula.constant + self._registers.initial(operand)) % (1 << 64))

    def _value_here(self, formula: SumFormula, width: int, lines: Lines) -> str:
        """Return a register of that width in bits with the value that a formula of the counters has in this thread."""
        return value_of(formula, width, self._counters, None, self._take, lines)


def _unsigned(field: Field) -> str:
    """Return the unsigned type of a field's width: sums of signed numbers are the same bits."""
    return f"u{field.type.size * 8}"
