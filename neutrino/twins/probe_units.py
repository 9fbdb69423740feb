"""Which probes of a set can be left out of a kernel by themselves, and the search for those that it takes.

Probes that save to one map are left out together: what the map says would else be of some of them only. A probe goes in
with those that write the registers that it reads, or not at all: its figures would be of a value that was never
computed. And a probe that only computes something for others goes in where one of these does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields

from neutrino.abi.reasons import PROBE_REMEDY, Reason
from neutrino.ir.operands import Inverted, Pair, Register
from neutrino.ir.statements import Assembly
from neutrino.late_dataclass import dataclass
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.structured import For, If, Save, Statement, While, registers_of, walk
from neutrino.probing.model import Subject


@dataclass(frozen=True)
class Refusal:
    """Why a kernel, or some probes in it, cannot be probed. detail: a sentence. remedy: what helps, "" if unknown.
    kind: a word of its target by which refusals are counted, "" without one."""

    reason: Reason
    detail: str
    remedy: str = ""
    kind: str = ""


@dataclass(frozen=True)
class ProbeLeftOut:
    """A probe of the set that is not in a kernel's twin, though others are. detail: what exactly stood in the way.

    remedy: what the user can do about it, "" if that is not known. maps: the names of those that it saves to, of which
    the twin records nothing.
    """

    probe: str
    tracepoint: str
    reason: Reason
    detail: str
    remedy: str
    maps: tuple[str, ...]


@dataclass(frozen=True)
class ProbeUnit:
    """Probes that go into a kernel together or not at all, for what they record.

    probes: in file order. needs: names of further probes that write the registers that these, or those, read. shared:
    the map that several probes save to; "" of a single probe.
    """

    probes: tuple[Probe, ...]
    needs: frozenset[str]
    shared: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The names of all probes that can only be left out of a kernel together with this unit's, its own included."""
        return self.needs.union(probe.name for probe in self.probes)


def units_of(probes: Sequence[Probe]) -> tuple[ProbeUnit, ...]:
    """Return the units of a set's probes, in file order. A probe that only computes what others read is in
    their needs, and has none of its own."""
    maps = {probe.name: maps_of(probe) for probe in probes}
    reads, writes = ({probe.name: of(probe) for probe in probes} for of in (_read_first, _written))
    # By the name of a probe: those that it needs, directly at first.
    needs = {
        name: {other for other in writes if other != name and read & writes[other]} for name, read in reads.items()
    }
    for name, needed in needs.items():
        waiting = [*needed]
        while waiting:
            added = needs[waiting.pop()] - needed
            needed |= added
            waiting += added
        needed.discard(name)
    # Those that record something, and those that nothing reads.
    serving = {other for name in needs if maps[name] for other in needs[name] if not maps[other]}
    units: list[list[Probe]] = []
    for probe in probes:
        if probe.name in serving:
            continue
        joined = [unit for unit in units if any(maps[other.name] & maps[probe.name] for other in unit)]
        # What two earlier units both share with this one makes one of them.
        merged = [*(other for unit in joined for other in unit), probe]
        position = units.index(joined[0]) if joined else len(units)
        units = [unit for unit in units if unit not in joined]
        units.insert(position, merged)
    return tuple(
        ProbeUnit(
            tuple(unit),
            frozenset[str]().union(*(needs[probe.name] for probe in unit)) - {probe.name for probe in unit},
            _shared([maps[probe.name] for probe in unit]),
        )
        for unit in units
    )


def _shared(maps: Sequence[frozenset[str]]) -> str:
    """Return the first map, by name, that several probes save to; "" without one. maps: the names of each probe's."""
    names = [name for of_probe in maps for name in of_probe]
    return min((name for name in names if names.count(name) > 1), default="")


def _snippets(probe: Probe) -> Iterator[Snippet]:
    """The parts of a probe's code: what runs before an instruction, and after it."""
    return (snippet for snippet in (probe.before, probe.after) if snippet is not None)


def maps_of(probe: Probe) -> frozenset[str]:
    """Return the names of the maps (stores of results) that a probe saves to."""
    return frozenset(
        statement.map.name for snippet in _snippets(probe) for statement in walk(snippet.statements)
        if isinstance(statement, Save)
    )  # fmt: skip


def _written(probe: Probe) -> frozenset[str]:
    """Return the names of the shared registers (of the probe file, not of one snippet) that a probe writes."""
    statements = (statement for snippet in _snippets(probe) for statement in walk(snippet.statements))
    return frozenset(name for statement in statements for name in _written_by(statement))


def _written_by(statement: Statement) -> Iterator[str]:
    """Yield the names of the shared registers (of the probe file, not of one snippet) that a statement writes, without
    those in statements within it.
    """
    if isinstance(statement, Assembly):
        registers = statement.writes
    else:
        registers = () if isinstance(statement, (Save, If, For, While)) else (statement.destination,)
    return (register.name for register in registers if not register.is_local)


def _in_order(statements: Iterable[Statement], *, always: bool = True) -> Iterator[tuple[Statement, bool]]:
    """Yield statements and those within them, each with whether every thread that begins the snippet executes it."""
    for statement in statements:
        yield statement, always and getattr(statement, "guard", None) is None
        if isinstance(statement, If):
            yield from _in_order((*statement.then, *statement.otherwise), always=False)
        elif isinstance(statement, For):
            yield from _in_order(statement.body, always=False)
        elif isinstance(statement, While):
            yield from _in_order((*statement.test, *statement.body), always=False)


def _read_first(probe: Probe) -> frozenset[str]:
    """Return the shared registers whose values a probe reads from before its snippet, as others may have left them.

    What its ``before`` always writes, its ``after`` at the same instruction has from there.
    """
    read: set[str] = set()
    own: set[str] = set()
    for snippet in _snippets(probe):
        own = set(own) if _is_one_instruction(probe) else set()
        for statement, always in _in_order(snippet.statements):
            read |= {name for name in _sources(statement) if name not in own}
            if always:
                own |= {*_written_by(statement)}
    return frozenset(read)


def _sources(statement: Statement) -> Iterator[str]:
    """Yield the names of the shared registers (of the probe file, not of one snippet) that a statement reads, without
    those in statements within it.
    """
    if isinstance(statement, Save):
        registers: Iterable[Register] = registers_of(statement)
    elif not isinstance(statement, Assembly):
        values = [getattr(statement, member.name) for member in fields(statement) if member.name != "destination"]
        operands = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
        registers = [operand for operand in operands if isinstance(operand, Register)]
    else:
        # Destinations come first, and what is read may be one of them.
        left = list(statement.writes)
        found: list[Register] = []
        for operand in (*statement.operands, statement.guard):
            inner = operand.operand if isinstance(operand, Inverted) else operand
            for register in (inner.first, inner.second) if isinstance(inner, Pair) else (inner,):
                if not isinstance(register, Register):
                    continue
                if operand is not statement.guard and register in left:
                    left.remove(register)
                else:
                    found.append(register)
        registers = found
    return (register.name for register in registers if not register.is_local)


def _is_one_instruction(probe: Probe) -> bool:
    """Whether nothing but an instruction is between a probe's two snippets: no other site, as in a called function."""
    return all(
        (pattern.subject is Subject.OPCODE and pattern.opcode[0] != "call")
        or (pattern.subject is Subject.CLASS and pattern.group != "branch")
        for pattern in probe.tracepoint.patterns
    )  # fmt: skip


@dataclass(frozen=True)
class Found:
    """The result of a search. kept: the names of the probes that a kernel takes. refused: by a unit's index, why the
    kernel does not take it."""

    kept: frozenset[str]
    refused: Mapping[int, Refusal]


Search = Generator[frozenset[str], Refusal | None, Found]
"""Yields the names of probes to try together, all others being left out, and is sent why not, None where they go in."""


def search(units: Sequence[ProbeUnit], refusal: Refusal) -> Search:
    """Find out which of some probes a kernel takes together, when it does not take all of them.

    units: of ``units_of``. refusal: why not all. In the order of units each is taken that goes in with those before it;
    by halves, so that one unit of n costs about 2 log n tries, and at most 2 n are made.
    """
    kept: frozenset[str] = frozenset()
    refused: dict[int, Refusal] = {}
    known = {frozenset(name for unit in units for name in unit.names): refusal}

    def take(group: Sequence[int]) -> Generator[frozenset[str], Refusal | None, None]:
        """Keep all units of a group, or if they do not go in together, try each half of it. group: their indices."""
        nonlocal kept
        names = kept.union(*(units[index].names for index in group))
        answer = known[names] if names in known else (yield names)
        if answer is None:
            kept = names
            return
        known[names] = answer
        if len(group) == 1:
            refused[group[0]] = answer
            return
        half = len(group) // 2
        yield from take(group[:half])
        yield from take(group[half:])

    yield from take(range(len(units)))
    return Found(kept, refused)


def searched(steps: Search, why_not: Callable[[frozenset[str]], Refusal | None]) -> Found:
    """Run a search to its end. why_not: why probes of these names do not go in together, None where they do."""
    try:
        names = next(steps)
        while True:
            names = steps.send(why_not(names))
    except StopIteration as end:
        found: Found = end.value
        return found


def left_out(
    probes: Sequence[Probe], units: Sequence[ProbeUnit], found: Found, alone: Mapping[str, Refusal]
) -> tuple[ProbeLeftOut, ...]:
    """Return those of some probes that a search has not kept, each with its reason, in file order.

    units: of the probes. alone: by name, probes that are refused by themselves, as far as that is known.
    """
    entries = []
    for probe in probes:
        if probe.name in found.kept:
            continue
        # It is in several refused units if these need it. Its own is the better reason.
        indices = [index for index in found.refused if probe.name in units[index].names]
        index = next((index for index in indices if probe in units[index].probes), indices[0])
        unit, refusal = units[index], found.refused[index]
        cause = next((name for name in sorted(unit.names) if name in alone), None)
        if probe.name in alone:
            refusal = alone[probe.name]
        elif probe not in unit.probes:
            refusal = _for_another(refusal, f"only probe '{unit.probes[0].name}' reads what it computes")
        elif cause in unit.needs:
            refusal = _for_another(refusal, f"it reads what probe '{cause}' computes")
        elif cause is not None:
            refusal = _for_another(refusal, f"it saves to the map {unit.shared}, as probe '{cause}' does")
        entries.append(_entry(probe, refusal))
    return tuple(entries)


def _for_another(refusal: Refusal, why: str) -> Refusal:
    """Return why a probe is left out because another one is. refusal: of that one."""
    return Refusal(refusal.reason, f"{why}, which is left out", "registers and maps of its own")


def _entry(probe: Probe, refusal: Refusal) -> ProbeLeftOut:
    """Return what reports say of a probe that is left out. refusal: why."""
    detail, remedy = refusal.detail, refusal.remedy or PROBE_REMEDY.get(refusal.reason, "")
    # A refusal of the whole kernel names the probe.
    for beginning in (f"probe '{probe.name}': ", f"probe '{probe.name}' "):
        detail = detail.removeprefix(beginning)
    if refusal.reason is Reason.NUMERICS and not refusal.remedy:
        detail = f"it would change how the assembler fuses arithmetic ({detail})"
    maps = tuple(sorted(maps_of(probe)))
    return ProbeLeftOut(probe.name, probe.tracepoint.text, refusal.reason, detail, remedy, maps)
