"""What the fields of records hold by the probes' code: addresses of memory, and the clocks of the GPU."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from neutrino.ir.operands import Immediate, Register, SiteOperand, SpecialRegister
from neutrino.ir.statements import Assembly
from neutrino.late_dataclass import dataclass
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import Save, Straight


class Meaning(enum.Enum):
    """What a number is: an address, or when something was: in cycles of a multiprocessor, in nanoseconds of the GPU."""

    ADDRESS = "address"
    CLOCK = "clock"
    TIME = "time"

    @property
    def is_time(self) -> bool:
        """Whether the number says when something was."""
        return self is not Meaning.ADDRESS


Field = tuple[str, str]
"""A map and its field, by their names."""


@dataclass(frozen=True)
class _Shifted:
    """An address without its lowest bits, which are not made good yet: ``ADDR >> 7``."""

    bits: int


class _Other(enum.Enum):
    """Values that mean none of these. ZERO may stand for "not yet", as the initial value of a register does."""

    ZERO = 0
    ANY = 1


_Known = Meaning | _Shifted | _Other
_REGISTERS = {"%clock64": Meaning.CLOCK, "%globaltimer": Meaning.TIME}
_ROUNDS = 8
"""Of the registers of all probes, in which each may depend on another: of more nothing is known."""


def meanings_of(probes: ProbeSet) -> dict[Field, Meaning]:
    """Return what is known of the fields of all maps. A field means something only if each save to it saves that; of
    clocks only 64-bit fields do, since narrower ones begin again at 0.

    probes: in assembly, as a trace has them. Raises TypeError for typed code.
    """
    snippets = [
        snippet.straight for probe in probes.probes for snippet in (probe.before, probe.after) if snippet is not None
    ]
    shared: dict[str, _Known] = {}
    for _ in range(_ROUNDS):
        before = dict(shared)
        for statements in snippets:
            _Snippet(shared).read(statements)
        if shared == before:
            break
    else:
        return {}
    found: dict[Field, _Known] = {}
    for statements in snippets:
        snippet = _Snippet(shared)
        snippet.read(statements)
        for statement, values in snippet.saved:
            for field, known in zip(statement.map.fields, values, strict=False):
                if known in (Meaning.CLOCK, Meaning.TIME) and field.type.value not in ("u64", "s64"):
                    known = _Other.ANY
                key = statement.map.name, field.name
                found[key] = _joined(found[key], known) if key in found else known
    return {field: known for field, known in found.items() if isinstance(known, Meaning)}


class _Snippet:
    """What the registers hold at the end of a snippet, statement by statement. shared: those of all probes, changed."""

    def __init__(self, shared: dict[str, _Known]) -> None:
        """Begin with what all probes together write to the shared registers."""
        self._shared = shared
        self._local: dict[str, _Known] = {}
        self.saved: list[tuple[Save, list[_Known]]] = []

    def read(self, statements: Iterable[Straight]) -> None:
        """Go over the statements in their order."""
        for statement in statements:
            if isinstance(statement, Save):
                self.saved.append((statement, [self._known(operand) for operand in statement.operands]))
                continue
            written = self._assembled(statement)
            for register in statement.writes:
                self._write(register, written, is_certain=statement.guard is None)

    def _write(self, register: Register, known: _Known, *, is_certain: bool) -> None:
        """Note what is written to a register. is_certain: no predicate may keep the statement from it."""
        if register.is_local:
            if not is_certain and register.name in self._local:
                known = _joined(self._local[register.name], known)
            self._local[register.name] = known
            return
        own = self._shared.get(register.name, _Other.ANY if register.initial else _Other.ZERO)
        self._shared[register.name] = _joined(own, known)

    def _known(self, operand: object) -> _Known:
        """What an operand is, as far as that is known."""
        if isinstance(operand, Register):
            if operand.is_local:
                return self._local.get(operand.name, _Other.ANY)
            return self._shared.get(operand.name, _Other.ANY if operand.initial else _Other.ZERO)
        if isinstance(operand, SiteOperand):
            return Meaning.ADDRESS if operand.name == "ADDR" else _Other.ANY
        if isinstance(operand, SpecialRegister):
            return _REGISTERS.get(operand.name, _Other.ANY)
        return _Other.ZERO if _number(operand) == 0 else _Other.ANY

    def _assembled(self, statement: Assembly) -> _Known:
        """What an instruction of PTX writes; others are not known."""
        name, *modifiers = statement.opcode.split(".")
        sources = statement.operands[1:]
        if statement.target != "ptx" or len(statement.writes) != 1 or not sources:
            return _Other.ANY
        if name == "cvt":
            return self._converted(sources[0], modifiers[0])
        if name == "mov":
            return self._known(sources[0])
        if name == "selp" and len(sources) == 3:
            return _joined(self._known(sources[0]), self._known(sources[1]))
        return self._operated(name, sources)

    def _converted(self, source: object, kind: str) -> _Known:
        """What a value is in another type. Clocks of less than 64 bits begin again at 0."""
        known = self._known(source)
        if kind[0] not in "usb" or (known in (Meaning.CLOCK, Meaning.TIME) and kind[1:] != "64"):
            return _Other.ZERO if known is _Other.ZERO else _Other.ANY
        return known

    def _operated(self, name: str, sources: Sequence[object]) -> _Known:
        """What an operation of PTX gives. name: its opcode without modifiers."""
        known = [self._known(source) for source in sources]
        first = known[0]
        if name in ("min", "max") and len(known) == 2:
            return _joined(*known)
        number = _number(sources[-1])
        if name == "shr" and first is Meaning.ADDRESS and number is not None:
            return _Shifted(number)
        if name == "shl" and isinstance(first, _Shifted) and number == first.bits:
            return Meaning.ADDRESS
        # Of a mask the highest bits, which the lowest ones of an address are not.
        if name == "and" and Meaning.ADDRESS in known and (number is not None and number >> 48 & 0xFFFF == 0xFFFF):
            return Meaning.ADDRESS
        if name == "add" and known.count(Meaning.ADDRESS) == 1:
            return Meaning.ADDRESS
        if name == "sub" and first is Meaning.ADDRESS and number is not None:
            return Meaning.ADDRESS
        return _Other.ANY


def _joined(one: _Known, other: _Known) -> _Known:
    """Return what a value is that may be either of two."""
    if one == other or other is _Other.ZERO:
        return one
    return other if one is _Other.ZERO else _Other.ANY


def _number(operand: object) -> int | None:
    """Return the number that an operand is, as unsigned 64 bits if it is negative; None for another one."""
    if isinstance(operand, Immediate):
        try:
            return int(operand.text.rstrip("Uu"), 0) & (1 << 64) - 1
        except ValueError:
            return None
    return None
