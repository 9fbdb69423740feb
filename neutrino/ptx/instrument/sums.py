"""What probes add to maps of type sum: counted in registers, stored where a thread ends.

What runs of sites add is tallied where that may be (``tallies.py``); what is added otherwise has a register for each
field of a map.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import Map
from neutrino.probing.ir.operands import SavedOperand
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.statements import Save, registers_of
from neutrino.ptx.analysis.counter_placement import Fork, Form, Part, Row, Tallies, plan_tallies
from neutrino.ptx.instrument.conversions import as_bits, converted
from neutrino.ptx.instrument.end_sums import EndSums, Word, value_of
from neutrino.ptx.instrument.guards import Guard, guarded
from neutrino.ptx.instrument.private_registers import Kept, Take
from neutrino.ptx.instrument.probe_block import ProbeBlock
from neutrino.ptx.instrument.probe_registers import ProbeRegisters
from neutrino.ptx.instrument.slots import Slots
from neutrino.ptx.instrument.values import Value, bits

_DECIMAL = re.compile(r"[1-9]\d{0,8}", re.ASCII)


class Sums:
    """Writes the sums of one body. maps: of the probes. prefix: starts every private register.

    kernel: as for ``ProbeRegisters``.
    """

    def __init__(
        self, maps: Sequence[Map], prefix: str, registers: ProbeRegisters, block: ProbeBlock, take: Take,
        architecture: int, kernel: Sums | None,
    ) -> None:  # fmt: skip
        self._maps = maps
        self._cells = [entry.kind.cells(entry.fields) for entry in maps]
        self._prefix = prefix
        self._registers = registers
        self._block = block
        self._take = take
        self._architecture = architecture
        self._sums: dict[tuple[int, int], str] = {}
        # Of the kernel and all its functions.
        self._all_sums: dict[tuple[int, int], str] = kernel._all_sums if kernel else {}
        # What runs of sites add to, in place of registers and sums; None where each adds for itself.
        self._tallies: Tallies | None = None
        # What snippets at the ends add to sums, where it is told by tallies, and which registers hold theirs already.
        self._ending: dict[tuple[int, int], list[Form]] = {}
        self._settled: set[str] = set()

    @property
    def kept(self) -> list[Kept]:
        """The registers of sums that the body's code names."""
        found = []
        for (index, number), name in self._sums.items():
            kind = _unsigned(self._cells[index][number])
            found.append(Kept(name, kind, "0", kind))
        return found

    @property
    def kept_tallies(self) -> list[Kept]:
        """The counters that sums are told by."""
        return [
            Kept(self._tally_name(index), f"u{counter.bits}", "0", f"u{counter.bits}")
            for index, counter in enumerate(self._tallies.counters if self._tallies else ())
        ]

    @property
    def has_end(self) -> bool:
        """Sums have to be stored when a thread ends."""
        tallied = self._tallies is not None and any(isinstance(key, tuple) for key in self._tallies.forms)
        return bool(self._all_sums or self._ending or tallied)

    @property
    def are_tallied(self) -> bool:
        """What snippets at the ends add can be told by what is tallied."""
        return self._tallies is not None

    def tally(self, rows: Sequence[Row], forks: Sequence[Fork]) -> None:
        """Keep what these rows come to, once the code at sites is written.

        Their sums are registers of the probes and, by map and number, fields.
        """
        widths: dict[Hashable, int] = {name: bits(kind) for name, kind in self._registers.types.items()}
        for index, entry in enumerate(self._maps):
            widths.update(((index, number), field.type.size * 8) for number, field in enumerate(entry.fields))
        self._tallies = plan_tallies(rows, widths, forks)

    def add_row(self, number: int, guard: Guard | None) -> list[str]:
        """The code of one of the rows, where its run of sites begins."""
        if self._tallies is None:
            return []
        prefix = guard.prefix if guard else ""
        lines = []
        for index, amount in self._tallies.adds[number]:
            name = self._tally_name(index)
            lines.append(f"{prefix}add.u{self._tallies.counters[index].bits} {name}, {name}, {amount};")
        return lines

    def add(
        self, index: int, save: Save, operand_value: Callable[[SavedOperand], Value], lines: list[str], slots: Slots,
        guard: Guard | None, *, ending: bool,
    ) -> None:  # fmt: skip
        """Add a save's operands to the index-th map. operand_value: what an operand is there. ending: at an end, where
        what is tallied waits for ``end``.
        """
        target = self._maps[index]
        prefix = None
        for number, (field, operand) in enumerate(zip(target.fields, save.operands, strict=True)):
            if self._registers.is_zero(operand.text):
                continue
            if ending:
                form = self._told(operand.text)
                if form is not None:
                    self._ending.setdefault((index, number), []).append(form)
                    if self._registers.private(operand.text) not in self._registers.changed:
                        continue
            if prefix is None:
                prefix = guard.prefix if guard else ""
                if target.level is not Level.THREAD:
                    slot = slots.at(target.level, lines)
                    prefix = f"@{guarded(slot.inside, guard, self._take, lines)} "
            value = operand_value(operand)
            name = self._all_sums.setdefault((index, number), f"{self._prefix}s{index}_{number}")
            self._sums[index, number] = name
            self._registers.changed.add(name)
            # Constants need no register.
            text = value.text
            if value.type is not None or not _DECIMAL.fullmatch(value.text):
                text = as_bits(converted(value, field, self._take, lines), self._take, lines)
            kind = _unsigned(field)
            lines.append(f"{prefix}add.{kind} {name}, {name}, {text};")

    def count(self, index: int, number: int, prefix: str, lines: list[str]) -> None:
        """Add one to a cell of the index-th map. prefix: the predicate of the threads that do."""
        name = self._all_sums.setdefault((index, number), f"{self._prefix}s{index}_{number}")
        self._sums[index, number] = name
        self._registers.changed.add(name)
        lines.append(f"{prefix}add.{_unsigned(self._cells[index][number])} {name}, {name}, 1;")

    def settle(self, snippets: Iterable[Snippet]) -> list[str]:
        """Give the registers that snippets at the ends look at what was added to them; others' sums stay numbers."""
        if self._tallies is None:
            return []
        snippets = tuple(snippets)
        looked_at: set[str] = set()
        for statement in (statement for snippet in snippets for statement in snippet.straight):
            if not isinstance(statement, Save):
                looked_at.update(register.name for register in registers_of(statement))
                continue
            if statement.guard is not None:
                looked_at.add(statement.guard.name)
            for field, operand in zip(statement.map.fields, statement.operands, strict=True):
                name = operand.text
                if not statement.map.kind.adds_constants or not self._fits(name, field):
                    looked_at.add(name)
        lines: list[str] = []
        for name in sorted(looked_at.intersection(key for key in self._tallies.forms if isinstance(key, str))):
            width = bits(self._registers.types[name])
            value = self._own_value(self._tallies.forms[name], width, lines)
            own = self._registers.use(name)
            lines.append(f"add.u{width} {own}, {own}, {value};")
            self._registers.changed.add(own)
            self._settled.add(name)
        return lines

    def end(self, lines: list[str]) -> None:
        """Store the sums where a thread ends: those of the kernel and its functions so far."""
        self._sums = dict(self._all_sums)
        sums = EndSums(self._maps, self._take, self._block, self._architecture)
        tallies = self._tallies or Tallies((), (), {})
        for index, kept in enumerate(tallies.counters):
            sums.keep(Word(self._tally_name(index), kept.bits))
        for key, forms in self._ending.items():
            for form in forms:
                sums.add(key, form)
        for told, form in tallies.forms.items():
            if isinstance(told, tuple):
                sums.add(told, form)
        for key, name in self._sums.items():
            kind = self._cells[key[0]][key[1]].type
            number = sums.keep(Word(name, kind.size * 8, kind is ScalarType.S64))
            sums.add(key, Form(0, (Part(number, 0, 0, 1, None),)))
        lines += sums.write()

    def _fits(self, name: str, field: Field) -> bool:
        """A field takes what was added to a register as it is: neither may wrap where the other does not."""
        form = self._tallies.forms.get(name) if self._tallies else None
        if form is None or bits(self._registers.types[name]) == field.type.size * 8:
            return True
        if form.most is None or self._registers.private(name) in self._registers.changed:
            return False
        initial = self._registers.initial(name)
        return initial >= 0 and initial + form.most < 1 << 31

    def _told(self, operand: str) -> Form | None:
        """What of an operand tallies tell; all of it if nothing else changes the register."""
        if _DECIMAL.fullmatch(operand):
            return Form(int(operand))
        form = self._tallies.forms.get(operand) if self._tallies else None
        if form is None or operand in self._settled:
            return None
        if self._registers.private(operand) in self._registers.changed:
            return form
        return replace(form, constant=(form.constant + self._registers.initial(operand)) % (1 << 64))

    def _tally_name(self, index: int) -> str:
        return f"{self._prefix}c{index}"

    def _own_value(self, form: Form, width: int, lines: list[str]) -> str:
        counters = self._tallies.counters if self._tallies else ()
        words = [Word(self._tally_name(index), counter.bits) for index, counter in enumerate(counters)]
        return value_of(form, width, words, None, self._take, lines)


def _unsigned(field: Field) -> str:
    return f"u{field.type.size * 8}"
