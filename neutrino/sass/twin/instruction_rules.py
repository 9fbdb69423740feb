"""The rules for each instruction of code that a twin has in its trampolines; ``inserted`` follows the code by them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from neutrino.sass.decoder import Code
from neutrino.sass.encoding import Form
from neutrino.sass.fields import ALWAYS, INSTRUCTION_BYTES, NO_BARRIER, Field
from neutrino.sass.instruction import Latency, Memory, RegisterFile
from neutrino.sass.twin.accesses import (
    Counted,
)
from neutrino.sass.twin.addresses import BLOCK, DRIVER, Under, Value, either, is_load, made, unsafe
from neutrino.sass.twin.executed import CountedInstructions, Entrances
from neutrino.sass.twin.hazards import (
    COPY,
    FILES,
    FIRST,
    GENERAL,
    Columns,
    Finding,
    all_named,
    registers_of,
)
from neutrino.sass.twin.reference import (
    Reference,
)
from neutrino.sass.twin.under_way import bits_of

_ALLOWED = frozenset({
    "BREV", "CS2R", "FLO", "HFMA2", "IABS", "IADD3", "IMAD", "IMNMX", "ISETP", "LDC", "LDG", "LEA", "LOP3", "MOV",
    "NOP", "PLOP3", "PMTRIG", "POPC", "PRMT", "R2UR", "RED", "REDG", "S2R", "S2UR", "SEL", "SGXT", "SHF", "STG",
    "UIADD3", "UIMAD", "ULDC", "ULEA", "ULOP3", "UMOV", "UPRMT", "USHF", "VIADD", "VIMNMX", "VOTE",
})  # fmt: skip
"""Opcodes that may be inserted: they go on to the next instruction, and neither count lanes nor wait for others."""
_ALLOWED_AS_ASSEMBLED = _ALLOWED | {"ATOMG", "MATCH", "P2R", "R2P", "SHFL", "VIADDMNMX"}
"""The same of code that is compared with what ``ptxas`` assembled: what counts lanes counts those that are there."""
_UNIFORM = frozenset({"S2UR", "UIADD3", "UIMAD", "ULDC", "ULEA", "ULOP3", "UMOV", "UPRMT", "USHF"})
"""Those of them that may write uniform registers: they give the same for the same operands."""
_SAME_IN_A_WARP = frozenset({0x25, 0x26, 0x27, 0x43})
"""Special registers that all lanes of a warp see alike, at all times: CTAID.X, Y and Z, and the multiprocessor."""
_CONTROL = 105
"""Bits of an instruction below its control bits."""
_OPERANDS, _BANK, _OFFSET = Field(9, 3), Field(54, 5), Field(38, 16)
_WITH_CONSTANT = (3, 5)
_CONSTANT_IS_SECOND = 5
"""The form of operands in which the second one is a constant."""
_OF_BLOCK = 1 << 528
"""Stands for a constant of the probe block in a mask of registers, above all of them."""
_REUSE = Field(122, 4)
_STALL_AND_YIELD = Field(105, 5)
_NO_SUCH_STALL = frozenset({0x10, *range(0x1C, 0x20)})
"""Stalls 0 and from 12 on with the bit that says "no yield": ``nvdisasm`` knows none of them."""
_UNCOUNTED = 2
"""Registers that ``ptxas`` adds to those that it names."""
_STACK = 1
"""The register with the stack's address."""
_MOVED_LEAST = 24
"""Registers that a warp has at least where they are moved between warps, as PTX says of ``setmaxnreg``."""
_PRESERVED, _PRESERVED_UNIFORM = 22, 36
"""From R22 and UR36 on, ``ptxas`` itself keeps values over calls of the driver's functions."""
SPECIAL = Field(72, 8)
PREDICATE_CYCLES = 13
"""Cycles after which a predicate can be used in every way: the most that ``ptxas`` leaves."""
PREDICATES = FILES["P"]


@dataclass(frozen=True)
class Surroundings:
    """What the cubins say. registers: count of the original. block: begin and end of the new parameter in constant bank
    0, in bytes. driver: end of what the driver keeps there, where parameters begin. counted: what is asked of code at
    accesses; None: if there is any, the bytes of all. reference: what all inserted code has to be, where that is known;
    then nothing is counted. calls: whether the kernel calls functions of the driver that come back. sm: of the
    architecture. entrances: where lanes may come to, where instructions are counted."""

    registers: int
    block: tuple[int, int]
    driver: int
    counted: Counted | CountedInstructions | None = None
    reference: Reference | None = None
    calls: bool = False
    sm: int = 90
    entrances: Entrances = field(default_factory=Entrances)


@dataclass
class Values:
    """What inserted code has written so far. written: registers (a mask). uniform: uniform register → the value in it,
    as the instruction and the values that it had. loaded: general and uniform registers that hold what was loaded from
    the probe block. made: what is in registers, by their bits in a mask. bounded: predicates (numbers) that hold only
    if a value is below a bound from there → that value."""

    written: int = 0
    uniform: dict[int, object] = field(default_factory=dict)
    loaded: int = 0
    made: dict[int, Value] = field(default_factory=dict)
    bounded: dict[int, Value] = field(default_factory=dict)

    def copy(self) -> Values:
        return Values(self.written, dict(self.uniform), self.loaded, dict(self.made), dict(self.bounded))


class InstructionRules:
    """What each instruction of a twin's inserted code has to keep to, by itself and after those before it."""

    def __init__(self, original: Code, twin: Code, around: Surroundings) -> None:
        self.twin = twin
        # Nothing but trampolines is followed.
        self.columns = Columns(twin, len(original))
        self.around = around
        self.found: list[Finding] = []
        self.top = -1
        self.named = all_named(original)
        late = original.having(lambda form: form is not None and form.latency is Latency.VARIABLE)
        late |= original.write_barrier != NO_BARRIER
        late &= ~original.having(lambda form: form is not None and form.name.startswith(COPY))
        predicates = np.bitwise_or.reduce(original.writes[RegisterFile.PREDICATE][late], initial=0)
        self.late = int(predicates) << FIRST[RegisterFile.PREDICATE]
        self.first_free = max(around.registers - _UNCOUNTED, (self.named & GENERAL).bit_length())
        # Registers of the kernel's that the code may use where it is (a mask): none of them at accesses.
        own = (1 << self.first_free) - 1 & ~(1 << _STACK)
        self.moves = any(form is not None and form.name.startswith("USETMAXREG") for form in original.forms)
        self.ended = own & (1 << _MOVED_LEAST) - 1 if self.moves else own
        self.lent, self.at_entry = 0, False
        # Uniform register → the value that it always has.
        self.values: dict[int, object] = {}
        self.original = original
        # Of the kernel's registers those that code at an access may read (a mask).
        self.readable = 0

    def _report(self, index: int, rule: str) -> None:
        self.found.append(Finding(index * INSTRUCTION_BYTES, rule))

    def _check_instruction(self, index: int, cycles: int, values: Values) -> None:
        """Check one inserted instruction by itself. cycles: since the branch at the site was issued."""
        columns, name = self.columns, self.columns.names[index]
        word = word_at(self.twin, index)
        form = columns.forms[index]
        if name is None:
            self._report(index, "an inserted instruction is not in the decoder's table")
            return
        if name not in (_ALLOWED if self.around.reference is None else _ALLOWED_AS_ASSEMBLED):
            self._report(index, f"{name} may not be inserted")
        reads = columns.reads[index] & ~columns.guards[index]
        if name == "HFMA2" and reads and self.around.reference is None:
            self._report(index, "HFMA2 may be inserted to move a constant alone")
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
        if form.memory is Memory.GLOBAL and not (self.around.reference and self.around.reference.is_whole):
            reason = unsafe(form, word, values.made, self._bounded(index, values), self._under(index, values))
            if reason:
                self._report(index, f"{name} {reason}")
        self._note(index, form, word, values)

    def _check_registers(self, index: int, form: Form, cycles: int, values: Values) -> None:
        """Check which registers an instruction names."""
        reads, writes = self.columns.reads[index], self.columns.writes[index]
        if any(place.field.file is RegisterFile.BARRIER for place in form.places):
            self._report(index, f"{form.name} names a convergence barrier")
        if (reads | writes) & FILES["UP"]:
            self._report(index, f"{form.name} names a uniform predicate")
        general = (reads | writes) & GENERAL
        self.top = max(self.top, general.bit_length() - 1)
        if self.moves and general & ~self.ended:
            names = ", ".join(registers_of(general & ~self.ended))
            self._report(index, f"{names} may be another warp's, as the kernel moves registers between warps")
        if self.around.calls:
            lost = general & ~self.lent & (1 << _PRESERVED) - 1
            if self.at_entry:
                lost |= writes & FILES["UR"] & (1 << FIRST[RegisterFile.UNIFORM] + _PRESERVED_UNIFORM) - 1
            if lost & ~(self.readable & ~writes):
                names = ", ".join(registers_of(lost))
                self._report(index, f"{names} may be changed by a function of the driver that the kernel calls")
        below = general & (1 << self.first_free) - 1 & ~self.lent & ~(self.readable & ~writes)
        if below:
            names = ", ".join(registers_of(below))
            self._report(index, f"{names} is the kernel's, whose registers end below R{self.first_free}")
        shared = writes & FILES["UR"] & self.named
        if shared:
            self._report(index, f"{', '.join(registers_of(shared))} is written, which the kernel names")
        unknown = reads & ~values.written
        if unknown:
            self._report(index, f"{', '.join(registers_of(unknown))} is read, which no inserted code has written")
        predicates = writes & PREDICATES & self.named
        if predicates & self.late:
            names = ", ".join(registers_of(predicates & self.late))
            self._report(index, f"{names} is written, for which the kernel may have a result under way")
        if predicates and cycles < PREDICATE_CYCLES:
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

    def _bounded(self, index: int, values: Values) -> list[Value]:
        """The values that are below a bound wherever an instruction is executed."""
        predicate, negated = divmod(self.columns.conditions[index], 2)
        below = values.bounded.get(predicate - FIRST[RegisterFile.PREDICATE])
        return [] if negated or below is None else [below]

    def _under(self, index: int, values: Values) -> Under | None:
        """The guard of an instruction."""
        condition = self.columns.conditions[index]
        return None if condition < 0 else Under(condition, values.made.get(condition >> 1))

    def _note(self, index: int, form: Form, word: int, values: Values) -> None:
        """Note what an instruction writes."""
        reads, writes = self.columns.reads[index], self.columns.writes[index]
        name = self.columns.names[index] or ""
        if writes & FILES["UR"]:
            self._note_uniform(index, form, word, values)
        from_block = is_load(form, word) and _OFFSET.get(word) >= self.around.block[0]
        others = reads & ~values.loaded & ~self.columns.guards[index]
        moved = name in ("MOV", "UMOV", "IMAD") and bool(reads) and not others
        values.loaded = values.loaded | writes if from_block or moved else values.loaded & ~writes
        for number in range(ALWAYS) if writes & PREDICATES else ():
            if writes >> FIRST[RegisterFile.PREDICATE] + number & 1:
                values.bounded.pop(number, None)
        if name == "ISETP" and self.columns.conditions[index] < 0:
            values.bounded.update(self._bounds(form, word, values))
        self._note_made(index, form, word, values)
        values.written |= writes

    def _note_made(self, index: int, form: Form, word: int, values: Values) -> None:
        """Note what an instruction leaves in the registers that it writes."""
        constant = ""
        if _OPERANDS.get(word) in _WITH_CONSTANT:
            constant = BLOCK if _OFFSET.get(word) >= self.around.block[0] else DRIVER
        new = made(form, word, values.made, constant, self._under(index, values))
        writes = self.columns.writes[index]
        while writes:
            bit = (writes & -writes).bit_length() - 1
            writes &= writes - 1
            values.made[bit] = new if new.under is None else either(new, values.made.get(bit))

    def _bounds(self, form: Form, word: int, values: Values) -> dict[int, Value]:
        """The predicates that hold only if a comparison does, which is of a value with a larger one that was loaded."""
        parts = form.name.split(".")
        if "U32" not in parts or "AND" not in parts or "EX" in parts:
            return {}
        operands = [
            1 << FIRST[place.field.file] + place.field.get(word) for place in form.places
            if place.reads and place.field.file in (RegisterFile.GENERAL, RegisterFile.UNIFORM)
        ]  # fmt: skip
        loaded = values.loaded
        if _OPERANDS.get(word) == _CONSTANT_IS_SECOND and _OFFSET.get(word) >= self.around.block[0]:
            operands.append(_OF_BLOCK)
            loaded |= _OF_BLOCK
        if len(operands) != 2:
            return {}
        below, above = operands if "LT" in parts else operands[::-1]
        if not ({"LT", "GT"} & set(parts)) or not above & loaded or below & loaded:
            return {}
        value = values.made.get(below.bit_length() - 1)
        # The first one holds if the comparison does; the second one if it does not.
        targets = [
            place.field.get(word) for place in form.places
            if place.writes and place.field.file is RegisterFile.PREDICATE
        ]  # fmt: skip
        return {} if value is None or not targets or targets[0] == ALWAYS else {targets[0]: value}

    def _note_uniform(self, index: int, form: Form, word: int, values: Values) -> None:
        """A uniform register has one value in the whole kernel, which no lane decides about."""
        name = self.columns.names[index] or ""
        written = registers_of(self.columns.writes[index] & FILES["UR"])
        names = ", ".join(written)
        if name == "R2UR" and self.at_entry:
            # At the first instruction all lanes of a warp are there, and read the clock at once.
            sources_of = [values.made.get(bit) for bit in bits_of(self.columns.reads[index])]
            if not sources_of or any(value is None or value.made_by != "CS2R" for value in sources_of):
                self._report(index, f"{names} gets what lanes may see differently")
        elif name not in _UNIFORM or self.columns.reads[index] & ~FILES["UR"]:
            self._report(index, f"{names} is written by {name}, in which groups of lanes may differ")
            return
        if name == "S2UR" and SPECIAL.get(word) not in _SAME_IN_A_WARP:
            special = f"special register {SPECIAL.get(word):#x}"
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


def opcode_of(form: Form | None) -> str:
    """The opcode's name."""
    return "" if form is None else form.name.partition(".")[0]


def word_at(code: Code, index: int) -> int:
    return int(code.words[index, 0]) | int(code.words[index, 1]) << 64


def _bytes(form: Form) -> int:
    """How many bytes of constants an instruction reads at most."""
    widths = {"64": 8, "128": 16}
    return next((widths[part] for part in form.name.split(".")[1:] if part in widths), 8 if "WIDE" in form.name else 4)
