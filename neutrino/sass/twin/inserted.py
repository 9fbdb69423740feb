"""The rules for code that a twin has in its trampolines at a kernel's entry and at its exits.

Asked by the checker of every twin. They are about what the inserted code could do to the kernel, and about what its own
instructions need; where a piece begins and ends the checker found by the branches. Which instructions the kernel has,
and what they write, the decoder says: its table is the one thing that this shares with the writer, as it was learned
from NVIDIA's disassembler and is compared with it by tests of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neutrino.sass.decoder import Code
from neutrino.sass.encoding import Form
from neutrino.sass.fields import ALWAYS, INSTRUCTION_BYTES, NO_BARRIER, SCOREBOARDS, Field
from neutrino.sass.instruction import Flow, Latency, Memory, RegisterFile
from neutrino.sass.twin.hazards import FILES, FIRST, GENERAL, Columns, Finding, State, registers_of, step

_ALLOWED = frozenset({
    "BREV", "CS2R", "FLO", "IABS", "IADD3", "IMAD", "IMNMX", "ISETP", "LDC", "LDG", "LEA", "LOP3", "MOV", "NOP",
    "PLOP3", "PMTRIG", "POPC", "PRMT", "REDG", "S2R", "S2UR", "SEL", "SGXT", "SHF", "STG", "UIADD3", "UIMAD", "ULDC",
    "ULEA", "ULOP3", "UMOV", "UPRMT", "USHF", "VIADD", "VIMNMX", "VOTE",
})  # fmt: skip
"""Opcodes that may be inserted: they go on to the next instruction, and neither count lanes nor wait for others."""
_UNIFORM = frozenset({"S2UR", "UIADD3", "UIMAD", "ULDC", "ULEA", "ULOP3", "UMOV", "UPRMT", "USHF"})
"""Those of them that may write uniform registers: they give the same for the same operands."""
_SPECIAL = Field(72, 8)
_SAME_IN_A_WARP = frozenset({0x25, 0x26, 0x27, 0x43})
"""Special registers that all lanes of a warp see alike, at all times: CTAID.X, Y and Z, and the multiprocessor."""
_STORES = frozenset({"STG", "REDG"})
_CONTROL = 105
"""Bits of an instruction below its control bits."""
_OPERANDS, _BANK, _OFFSET = Field(9, 3), Field(54, 5), Field(38, 16)
_WITH_CONSTANT = (3, 5)
_REUSE = Field(122, 4)
_STALL_AND_YIELD = Field(105, 5)
_NO_SUCH_STALL = frozenset({0x10, *range(0x1C, 0x20)})
"""Stalls 0 and from 12 on with the bit that says "no yield": ``nvdisasm`` knows none of them."""
_UNCOUNTED = 2
"""Registers that ``ptxas`` adds to those that it names."""
_PREDICATE_CYCLES = 13
"""Cycles after which a predicate can be used in every way: the most that ``ptxas`` leaves."""
_BRANCH_CYCLES = 5
"""Which the checker has seen that the branch at a site leaves."""
_PREDICATES = FILES["P"]


@dataclass(frozen=True)
class Piece:
    """A trampoline with code. site: number of the instruction that was displaced; all numbers count instructions from
    the section's first. ahead: what lets lanes that stay go back at once. body: the inserted code. end: the displaced
    instruction and what comes after it."""

    site: int
    ahead: range
    body: range
    end: range


@dataclass(frozen=True)
class Surroundings:
    """What the cubins say. registers: count of the original. block: begin and end of the new parameter in constant bank
    0, in bytes. driver: end of what the driver keeps there, where parameters begin."""

    registers: int
    block: tuple[int, int]
    driver: int


@dataclass
class _Values:
    """What inserted code has written so far. written: registers (a mask). uniform: uniform register → the value in it,
    as the instruction and the values that it had. loaded: general and uniform registers that hold what was loaded from
    the probe block. bounded: predicates (numbers) that hold only below a bound from there."""

    written: int = 0
    uniform: dict[int, object] = field(default_factory=dict)
    loaded: int = 0
    bounded: frozenset[int] = frozenset()

    def copy(self) -> _Values:
        return _Values(self.written, dict(self.uniform), self.loaded, self.bounded)


def check_inserted(
    original: Code, twin: Code, entry: Piece | None, exits: Sequence[Piece], around: Surroundings
) -> tuple[list[Finding], int]:
    """Return what is wrong with inserted code, and the highest general register in it, -1 without one.

    original, twin: all code of the section. entry: at the first instruction, None without. exits: at EXITs.
    """
    if len(original.unknown):
        at = int(original.unknown[0])
        return [Finding(at, "what registers an instruction of the kernel names is not known")], -1
    return _Checker(original, twin, around).check(entry, exits)


class _Checker:
    """Follows the inserted code of one twin."""

    def __init__(self, original: Code, twin: Code, around: Surroundings) -> None:
        self.twin = twin
        self.columns = Columns(twin)
        self.around = around
        self.found: list[Finding] = []
        self.top = -1
        kernel = Columns(original)
        self.named, self.late = 0, 0
        for index in range(len(kernel)):
            self.named |= kernel.reads[index] | kernel.writes[index]
            if kernel.write_barrier[index] != NO_BARRIER or kernel.variable[index]:
                self.late |= kernel.writes[index] & _PREDICATES
        self.first_free = max(around.registers - _UNCOUNTED, (self.named & GENERAL).bit_length())
        # Uniform register → the value that it always has.
        self.values: dict[int, object] = {}
        self.original = kernel

    def check(self, entry: Piece | None, exits: Sequence[Piece]) -> tuple[list[Finding], int]:
        """Return the findings and the highest general register."""
        state, values = State(), _Values()
        if entry is not None:
            self._check_first(entry)
            self._follow(entry, state, values)
            self._check_settled(entry, state)
            self._end(entry, state)
        for piece in exits:
            mine = state.copy()
            self._follow(piece, mine, values.copy())
            self._end(piece, mine)
        return self.found, self.top

    def _report(self, index: int, rule: str) -> None:
        self.found.append(Finding(index * INSTRUCTION_BYTES, rule))

    def _check_first(self, entry: Piece) -> None:
        """The first instruction runs once, and does not depend on its place."""
        form = self.original.forms[0]
        if form is None or form.flow is not Flow.NEXT or form.memory not in (Memory.NONE, Memory.CONSTANT):
            self._report(entry.site, "the kernel's first instruction may not move")
        for index, one in enumerate(self.original.forms):
            if one is not None and one.target and self.original.code[index].target == 0:
                self._report(index, "the kernel comes back to its first instruction, where inserted code runs")

    def _follow(self, piece: Piece, state: State, values: _Values) -> None:
        """Follow a piece up to its end. state: of what is under way at the site, which changes to that at the end."""
        state.recent = {
            (age + _BRANCH_CYCLES, producer): mask for (age, producer), mask in state.recent.items()
        }  # fmt: skip
        cycles = _BRANCH_CYCLES
        for index in piece.ahead:
            step(self.columns, index, state, None)
            cycles += self.columns.stall[index]
        for index in piece.body:
            self._check_instruction(index, cycles, values)
            step(self.columns, index, state, self._report)
            cycles += self.columns.stall[index]

    def _end(self, piece: Piece, state: State) -> None:
        """Follow the end of a piece: the displaced instruction and the branch back."""
        for index in piece.end:
            step(self.columns, index, state, self._report)

    def _check_settled(self, piece: Piece, state: State) -> None:
        """At the end of code that the kernel goes on after, nothing is under way."""
        last = piece.body.stop
        if state.written.out:
            names = ", ".join(registers_of(state.written.out))
            self._report(last, f"{names} is still to be written where the inserted code ends")
        if state.read.out:
            names = ", ".join(registers_of(state.read.out))
            self._report(last, f"{names} is still to be read where the inserted code ends")
        taken = 0
        for index in piece.body:
            taken &= ~self.columns.wait[index]
            for barrier in (self.columns.write_barrier[index], self.columns.read_barrier[index]):
                taken |= 1 << barrier if barrier != NO_BARRIER else 0
        if taken:
            numbers = ", ".join(str(number) for number in range(SCOREBOARDS) if taken >> number & 1)
            self._report(last, f"scoreboard {numbers} was taken and not waited for where the inserted code ends")
        for (age, _), mask in state.recent.items():
            late = mask & _PREDICATES & self.named
            if late and age < _PREDICATE_CYCLES:
                names = ", ".join(registers_of(late))
                self._report(last, f"{names} is the kernel's, and written {age} cycles before it goes on")

    def _check_instruction(self, index: int, cycles: int, values: _Values) -> None:
        """Check one inserted instruction by itself. cycles: since the branch at the site was issued."""
        columns, name = self.columns, self.columns.names[index]
        word = int(self.twin.words[index, 0]) | int(self.twin.words[index, 1]) << 64
        form = columns.forms[index]
        if name is None:
            self._report(index, "an inserted instruction is not in the decoder's table")
            return
        if name not in _ALLOWED:
            self._report(index, f"{name} may not be inserted")
        if _REUSE.get(word):
            self._report(index, "an operand is kept in inserted code")
        if _STALL_AND_YIELD.get(word) in _NO_SUCH_STALL:
            self._report(index, f"a stall of {word >> 105 & 0xF} cycles without yielding does not exist")
        if form is None:
            return
        if form.guard is RegisterFile.UNIFORM_PREDICATE and columns.guards[index]:
            self._report(index, f"{name} is guarded by a uniform predicate, which nobody sets")
        if form.memory not in (Memory.NONE, Memory.GLOBAL, Memory.CONSTANT):
            self._report(index, f"{form.name} uses {form.memory.value} memory")
        if columns.writes[index] and form.latency is Latency.UNKNOWN:
            self._report(index, f"how long {name} takes is not known")
        self._check_registers(index, form, cycles, values)
        self._check_constant(index, form, word)
        if name in _STORES and not self._is_bounded(index, values):
            self._report(index, f"{name} is not under a comparison with a bound from the probe block")
        self._note(index, form, word, values)

    def _check_registers(self, index: int, form: Form, cycles: int, values: _Values) -> None:
        """Check which registers an instruction names."""
        reads, writes = self.columns.reads[index], self.columns.writes[index]
        if any(place.field.file is RegisterFile.BARRIER for place in form.places):
            self._report(index, f"{form.name} names a convergence barrier")
        if (reads | writes) & FILES["UP"]:
            self._report(index, f"{form.name} names a uniform predicate")
        general = (reads | writes) & GENERAL
        self.top = max(self.top, general.bit_length() - 1)
        below = general & (1 << self.first_free) - 1
        if below:
            names = ", ".join(registers_of(below))
            self._report(index, f"{names} is the kernel's, whose registers end below R{self.first_free}")
        shared = writes & FILES["UR"] & self.named
        if shared:
            self._report(index, f"{', '.join(registers_of(shared))} is written, which the kernel names")
        unknown = reads & ~values.written
        if unknown:
            self._report(index, f"{', '.join(registers_of(unknown))} is read, which no inserted code has written")
        predicates = writes & _PREDICATES & self.named
        if predicates & self.late:
            names = ", ".join(registers_of(predicates & self.late))
            self._report(index, f"{names} is written, for which the kernel may have a result under way")
        if predicates and cycles < _PREDICATE_CYCLES:
            names = ", ".join(registers_of(predicates))
            self._report(index, f"{names} is the kernel's, and written {cycles} cycles after the site")

    def _check_constant(self, index: int, form: Form, word: int) -> None:
        """Constants are the driver's, below the parameters, or the new parameter's."""
        if _OPERANDS.get(word) not in _WITH_CONSTANT:
            return
        name = self.columns.names[index]
        indexed = name in ("LDC", "ULDC") and self.columns.reads[index] & ~self.columns.guards[index]
        begin, size = _OFFSET.get(word), _bytes(form)
        first, last = self.around.block
        if _BANK.get(word) or indexed or not (begin + size <= self.around.driver or first <= begin <= last - size):
            self._report(index, f"{form.name} reads a constant that is neither the driver's nor the probe block's")

    def _is_bounded(self, index: int, values: _Values) -> bool:
        """Whether a store is under a predicate that holds below a bound alone."""
        predicate, negated = divmod(self.columns.conditions[index], 2)
        return not negated and predicate - FIRST[RegisterFile.PREDICATE] in values.bounded

    def _note(self, index: int, form: Form, word: int, values: _Values) -> None:
        """Note what an instruction writes."""
        reads, writes = self.columns.reads[index], self.columns.writes[index]
        name = self.columns.names[index] or ""
        if writes & FILES["UR"]:
            self._note_uniform(index, form, word, values)
        offset = _OFFSET.get(word)
        from_block = name in ("LDC", "ULDC") and offset >= self.around.block[0]
        others = reads & ~values.loaded & ~self.columns.guards[index]
        moved = name in ("MOV", "UMOV", "IMAD") and bool(reads) and not others
        values.loaded = values.loaded | writes if from_block or moved else values.loaded & ~writes
        bounded = set(values.bounded)
        for number in range(ALWAYS):
            if writes >> FIRST[RegisterFile.PREDICATE] + number & 1:
                bounded.discard(number)
        if name == "ISETP" and self.columns.conditions[index] < 0:
            bounded |= self._bounds(form, word, values)
        values.bounded = frozenset(bounded)
        values.written |= writes

    def _bounds(self, form: Form, word: int, values: _Values) -> set[int]:
        """The predicates that a comparison makes bounded: below a loaded value, and all else that holds as well."""
        parts = form.name.split(".")
        if "U32" not in parts or "AND" not in parts or "EX" in parts:
            return set()
        operands = [
            1 << FIRST[place.field.file] + place.field.get(word) for place in form.places
            if place.reads and place.field.file in (RegisterFile.GENERAL, RegisterFile.UNIFORM)
        ]  # fmt: skip
        if len(operands) != 2:
            return set()
        below, above = operands if "LT" in parts else operands[::-1]
        if not ({"LT", "GT"} & set(parts)) or not above & values.loaded or below & values.loaded:
            return set()
        # The first one holds if the comparison does; the second one if it does not.
        targets = [
            place.field.get(word) for place in form.places
            if place.writes and place.field.file is RegisterFile.PREDICATE
        ]  # fmt: skip
        return set(targets[:1]) - {ALWAYS}

    def _note_uniform(self, index: int, form: Form, word: int, values: _Values) -> None:
        """A uniform register has one value in the whole kernel, which no lane decides about."""
        name = self.columns.names[index] or ""
        written = registers_of(self.columns.writes[index] & FILES["UR"])
        names = ", ".join(written)
        if name not in _UNIFORM or self.columns.reads[index] & ~FILES["UR"]:
            self._report(index, f"{names} is written by {name}, in which groups of lanes may differ")
            return
        if name == "S2UR" and _SPECIAL.get(word) not in _SAME_IN_A_WARP:
            special = f"special register {_SPECIAL.get(word):#x}"
            self._report(index, f"{names} gets {special}, which lanes may see differently")
        bits = word & (1 << _CONTROL) - 1
        sources: list[object] = []
        for place in form.places:
            if place.field.file is RegisterFile.UNIFORM:
                number = place.field.get(word)
                bits = place.field.put(bits, 0)
                if place.reads:
                    sources += [values.uniform.get(number + more) for more in range(place.count)]
        for part, register in enumerate(written):
            number = int(register.removeprefix("UR"))
            value = (bits, tuple(sources), part)
            values.uniform[number] = value
            if self.values.setdefault(number, value) != value:
                self._report(index, f"{register} gets two values, between which groups of lanes may take turns")


def _bytes(form: Form) -> int:
    """How many bytes of constants an instruction reads at most."""
    widths = {"64": 8, "128": 16}
    return next((widths[part] for part in form.name.split(".")[1:] if part in widths), 8 if "WIDE" in form.name else 4)
