"""The registers that probes declare: one namespace of all probes, renamed, alive from a kernel's entry to its ends."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from neutrino.abi.levels import Level
from neutrino.probing.ir.probe_set import ProbeSet, Snippet
from neutrino.probing.ir.statements import Assembly, registers_of
from neutrino.ptx.instrument.private_registers import Kept
from neutrino.ptx.instrument.values import bits

# Levels from few threads to all.
_WIDER = {Level.BLOCK: (Level.WARP, Level.THREAD), Level.WARP: (Level.THREAD,), Level.THREAD: ()}


class ProbeRegisters:
    """The probes' registers in one body. prefix: starts every private register.

    kernel: for the body of a function that a kernel calls, those of the kernel. changed: private names of kept
    registers that the body's code writes.
    """

    def __init__(self, probes: ProbeSet, prefix: str, kernel: ProbeRegisters | None) -> None:
        self._registers = probes.registers
        self._prefix = prefix
        self.types = {register.name: register.type for register in probes.registers}
        self.changed: set[str] = set()
        self._used: set[str] = set()
        self._written: dict[Level, set[str]] = kernel._written if kernel else {level: set() for level in Level}
        self._named: dict[Level, set[str]] = kernel._named if kernel else {level: set() for level in Level}

    def note(self, snippet: Snippet, level: Level) -> None:
        """Tell, before any code is written, that the kernel will hold this snippet."""
        self._written[level] |= _written_by(snippet)
        for statement in snippet.straight:
            self._named[level].update(
                register.name for register in registers_of(statement) if not register.is_local
            )

    def change(self, snippet: Snippet) -> None:
        """Tell that the code of a snippet is written."""
        self.changed |= {self.private(name) for name in _written_by(snippet) if name in self.types}

    def needs_mask(self, snippet: Snippet, level: Level) -> bool:
        """Whether a snippet at that level writes what other lanes look at at a wider one."""
        written = _written_by(snippet) if level is not Level.THREAD else set()
        return not all(self._named[wider].isdisjoint(written) for wider in _WIDER[level])

    def may_tally(self, names: Iterable[Hashable], level: Level) -> bool:
        """Whether what is added to these at a level may be tallied: not where others look at lanes that add nothing."""
        wider = [self._named[other] for other in _WIDER[level]]
        return not any(name in found for name in names for found in wider)

    def private(self, name: str) -> str:
        """The name that a register has in twins."""
        return f"{self._prefix}r_{name[1:]}"

    def use(self, name: str) -> str:
        """The private name of a register, which is kept from now on."""
        self._used.add(name)
        return self.private(name)

    def initial(self, name: str) -> int:
        """What a register holds at first."""
        return next(entry.initial for entry in self._registers if entry.name == name)

    def is_zero(self, operand: str) -> bool:
        """Whether an operand is 0 all the time: that, or a register that no snippet writes."""
        if operand == "0":
            return True
        written = any(operand in names for names in self._written.values())
        return operand in self.types and not written and self.initial(operand) == 0

    @property
    def kept(self) -> list[Kept]:
        """Those that the code names."""
        return [
            Kept(self.private(entry.name), entry.type, _initial(entry.type, entry.initial), _move_type(entry.type))
            for entry in self._registers
            if entry.name in self._used
        ]


def _written_by(snippet: Snippet) -> set[str]:
    """Names in the destinations of a snippet's instructions."""
    written: set[str] = set()
    for statement in snippet.straight:
        if isinstance(statement, Assembly):
            written.update(register.name for register in statement.writes if not register.is_local)
    return written


def _move_type(register_type: str) -> str:
    """The type that ``mov`` takes for a register: it has none for 16-bit floats and packed pairs."""
    if register_type in {"pred", "f32", "f64"}:
        return register_type
    return f"b{bits(register_type)}"


def _initial(register_type: str, value: int) -> str:
    if register_type == "f32":
        return f"0f{value:08X}"
    if register_type == "f64":
        return f"0d{value:016X}"
    return str(value)
