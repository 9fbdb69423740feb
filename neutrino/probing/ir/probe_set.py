"""Verified probes: what ``load_probes`` returns and what the code that inserts probes takes."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import InitVar, field, fields, replace
from functools import cached_property
from typing import Any

from neutrino.abi.levels import Level
from neutrino.errors import Diagnostic, Span
from neutrino.ir.operands import Inverted, Register, SiteOperand
from neutrino.ir.statements import Assembly
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Map
from neutrino.probing.ir.structured import Save, Statement, Straight, constant_key, registers_of, saving_to
from neutrino.probing.model import DEFAULT_PLATFORM, Lanes, Tracepoint


@dataclass(frozen=True)
class Snippet:
    """The statements that a probe inserts before or after a site, in order.

    deferral: of a lowered snippet, how it can be written in parts, if it can. branching: likewise, how its unlikely
    code can stand behind a branch at the site.
    """

    statements: tuple[Statement, ...]
    deferral: Deferral | None = field(default=None, compare=False)
    branching: Branching | None = field(default=None, compare=False)

    @cached_property
    def straight(self) -> tuple[Straight, ...]:
        """The statements of a lowered snippet (a probe's code in assembly). Raises TypeError if some are typed, to be
        lowered first."""
        lowered = tuple(statement for statement in self.statements if isinstance(statement, (Assembly, Save)))
        if len(lowered) < len(self.statements):
            raise TypeError("a snippet with typed statements, which are lowered first")
        return lowered

    @cached_property
    def operands_of_site(self) -> frozenset[str]:
        """Names of the site's values that a lowered snippet reads: ``OUT``, ``HAS`` …"""
        operands = {
            operand.operand if isinstance(operand, Inverted) else operand
            for statement in self.straight for operand in (*statement.operands, statement.guard)
        }  # fmt: skip
        return frozenset(operand.name for operand in operands if isinstance(operand, SiteOperand))

    @cached_property
    def named(self) -> frozenset[str]:
        """Names of the shared registers that a lowered snippet reads or writes; local ones are not included."""
        registers = (register for statement in self.straight for register in registers_of(statement))
        return frozenset(register.name for register in registers if not register.is_local)

    @cached_property
    def written(self) -> frozenset[str]:
        """Names of the shared registers that a lowered snippet writes; local ones are not included."""
        instructions = (statement for statement in self.straight if isinstance(statement, Assembly))
        written = (register for instruction in instructions for register in instruction.writes)
        return frozenset(register.name for register in written if not register.is_local)


@dataclass(frozen=True)
class Deferral:
    """A lowered snippet in parts, of which one may run after a later site, as ``If.unlikely`` says.

    here: what stays at the site, None for nothing. test: computes the predicates ``conditions`` there; unless all are
    true, ``later`` does nothing. state: computes ``state_conditions`` where ``later`` is about to run, likewise; these
    are the same for all sites. once: what ``later`` does where it does something, if it names nothing of its site but
    the number, and ``state_conditions`` do not hold any more after it; None else. extremes: two registers, of which
    ``later`` does nothing but lower the one and raise the other to the floats ``conditions``, if all of these are
    finite; None else. nan: the type, as opcodes have it, of which ``OUT`` is a NaN or has one where ``conditions``
    are true, if ``once`` is there and no other code makes ``state_conditions`` hold again; None else.
    of_out: with ``extremes``, the only one of ``conditions`` is ``OUT``. halves: the type of ``OUT``, as opcodes have
    it, if its two halves are ``conditions``; None else. is_counting: with ``extremes``, what ``later``
    does besides comes to the same in any order.
    """

    here: Snippet | None
    test: Snippet
    conditions: tuple[Register, ...]
    state: Snippet
    state_conditions: tuple[Register, ...]
    later: Snippet
    once: Snippet | None
    extremes: tuple[Register, Register] | None
    nan: str | None
    of_out: bool
    halves: str | None
    is_counting: bool


@dataclass(frozen=True)
class Branching:
    """A lowered snippet that ends with unlikely code which cannot run later.

    test: comes first, and computes the predicate ``condition``; inside: runs last. is_clocked: it reads a clock, and
    all threads at the site run it where the condition is true; if not, threads may run it in which it is false, and for
    which the snippet is not: then it does nothing, by that condition, which it names.
    """

    test: Snippet
    condition: Register
    inside: Snippet
    is_clocked: bool


@dataclass(frozen=True)
class Probe:
    """One probe: a tracepoint, and at least one of the snippets before and after. span: of its declaration."""

    name: str
    tracepoint: Tracepoint
    level: Level
    before: Snippet | None
    after: Snippet | None
    span: Span
    lanes: Lanes = Lanes.EXECUTING

    def with_snippets(self, change: Callable[[Snippet], Snippet]) -> Probe:
        """Return the probe with ``change`` applied to each of its snippets."""
        before = change(self.before) if self.before is not None else None
        after = change(self.after) if self.after is not None else None
        return replace(self, before=before, after=after)


class _Seal:
    """Required to construct a ``ProbeSet``. Only this module has it, so no code can skip ``verified``."""


_SEAL = _Seal()


_SHOWN = 6
"""Maps that are named in short."""


@dataclass(frozen=True, repr=False)
class ProbeSet:
    """All probes of a run, verified. At a site they run in the order of ``probes``.

    file, source: path and text of the probe file. reads_back: the source is one probe file in the newer dialect of
    TOML, and reading it gives this set; never so for a merged set. warnings: in file order. parts: the sets of the
    single files, if this one was merged from several; spans refer to those files. target: of its hand-written
    instructions, its name; "" without any. platform: what probe files call the target. analyze_hooks, callbacks:
    absolute paths of scripts that run when the trace has ended, and at each new launch in it. apart: of code that is
    cut out of a copy and put into kernels that are not known yet, how many sites they may have; None of all other.

    Only ``verified`` creates one: ``ProbeSet(…)`` and ``dataclasses.replace`` raise TypeError.
    """

    file: str
    source: str
    reads_back: bool
    target: str
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    probes: tuple[Probe, ...]
    warnings: tuple[Diagnostic, ...] = ()
    parts: tuple[ProbeSet, ...] = ()
    analyze_hooks: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    platform: str = DEFAULT_PLATFORM
    apart: int | None = None
    seal: InitVar[_Seal | None] = None

    def __post_init__(self, seal: _Seal | None) -> None:
        """Refuse a set that ``verified`` has not made. Raises TypeError."""
        # So that no set exists that the verifier has not seen.
        if seal is not _SEAL:
            raise TypeError("a ProbeSet is made by neutrino.load_probes, which verifies what is in it")

    def __repr__(self) -> str:
        """The set in short: where it is from, its probes and maps."""
        maps = ", ".join(entry.name for entry in self.maps[:_SHOWN])
        more = f" and {len(self.maps) - _SHOWN} more" if len(self.maps) > _SHOWN else ""
        count = "1 probe" if len(self.probes) == 1 else f"{len(self.probes)} probes"
        return f"<ProbeSet of {self.file}: {count}, maps {maps}{more}>"

    def __hash__(self) -> int:
        """Return a hash of the path and text: sets are keys of caches, and hashing all members would be slow."""
        return hash((self.file, self.source))

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of maps, registers and probes. Comments and positions in the file do not change it."""
        # Imported here: who reads a trace needs no keys of caches.
        import hashlib

        meaning = [self.target, _plain(self.maps), _plain(self.registers), _plain(self.probes)]
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    @cached_property
    def keyed_by_site(self) -> frozenset[int]:
        """The indices of the maps whose keys are sites in all saves, so that readers and code need not search for a
        key.

        Only for a set that is lowered.
        """
        snippets = (snippet for probe in self.probes for snippet in (probe.before, probe.after) if snippet is not None)
        saves = [statement for snippet in snippets for statement in snippet.straight if isinstance(statement, Save)]
        others = {save.map.name for save in saves if save.operands[0] != SiteOperand("SITE")}
        saved = {save.map.name for save in saves}
        return frozenset(index for index, entry in enumerate(self.maps) if entry.name in saved - others)

    @cached_property
    def keyed_by_constants(self) -> dict[int, tuple[int, ...]]:
        """By the index of a map whose keys are constants in all saves: these keys, ascending. Only for a set that is
        lowered.
        """
        found: dict[str, set[int | None]] = {}
        for probe in self.probes:
            for snippet in (probe.before, probe.after):
                for save in snippet.straight if snippet is not None else ():
                    if isinstance(save, Save):
                        found.setdefault(save.map.name, set()).add(constant_key(save))
        return {
            index: tuple(sorted(key for key in keys if key is not None))
            for index, entry in enumerate(self.maps)
            if None not in (keys := found.get(entry.name, {None}))
        }

    def with_callbacks(self, paths: tuple[str, ...]) -> ProbeSet:
        """Return the set with further scripts that run whenever there are new launches."""
        return replace(self, callbacks=(*self.callbacks, *paths), seal=_SEAL)

    def only(self, names: Collection[str]) -> ProbeSet:
        """Return the set with only those of its probes that have one of these names."""
        chosen = tuple(probe for probe in self.probes if probe.name in names)
        return replace(self, probes=chosen, reads_back=False, seal=_SEAL)

    def with_code_apart(self, sites: int) -> ProbeSet:
        """Return the set for code that stands alone: each site (probed instruction) has all of its probes' code, the
        same at each but for its number, below ``sites``, and that goes straight on."""
        return replace(self, apart=sites, seal=_SEAL)

    def lowered(self, target: str, registers: tuple[Register, ...], probes: tuple[Probe, ...]) -> ProbeSet:
        """Return the set as a target has lowered it: with the same probes, whose snippets are straight-line code."""
        return replace(self, target=target, registers=registers, probes=probes, seal=_SEAL)


def verified(
    file: str,
    source: str,
    reads_back: bool,
    target: str,
    maps: tuple[Map, ...],
    registers: tuple[Register, ...],
    probes: tuple[Probe, ...],
    warnings: tuple[Diagnostic, ...] = (),
    parts: tuple[ProbeSet, ...] = (),
    analyze_hooks: tuple[str, ...] = (),
    callbacks: tuple[str, ...] = (),
    platform: str = DEFAULT_PLATFORM,
) -> ProbeSet:
    """Create a set from its members, as in ``ProbeSet``. Call this only after the verifier has accepted them.

    Saves are sampled for NVIDIA's GPUs alone; elsewhere all are counted.
    """
    if platform != DEFAULT_PLATFORM:
        maps = tuple(replace(entry, kind=entry.kind.complete()) for entry in maps)
        by_name = {entry.name: entry for entry in maps}
        probes = tuple(
            probe.with_snippets(lambda one: replace(one, statements=saving_to(by_name, one.statements)))
            for probe in probes
        )
    # Without the seal, ProbeSet raises TypeError.
    return ProbeSet(
        file, source, reads_back, target, maps, registers, probes, warnings, parts, analyze_hooks, callbacks, platform,
        seal=_SEAL,
    )


def _plain(value: Any) -> Any:
    """Convert dataclasses, enumerations and mappings to lists and dictionaries for JSON, without source positions.

    The digest is computed from it, so a class or member renamed in the IR changes every digest.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        # As pairs: keys of a JSON object must be strings.
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if hasattr(value, "__dataclass_fields__"):
        # Without what does not count for equality, and positions. The name of the class tells apart two classes with
        # equal members.
        members = (member.name for member in fields(value) if member.compare and member.name != "span")
        return {"": type(value).__name__, **{name: _plain(getattr(value, name)) for name in members}}
    return value
