"""What all twins (instrumented copies of kernels) of one module share while they are planned and written, and checks
for what makes a twin impossible."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from neutrino.abi.reasons import Reason
from neutrino.errors import PtxError
from neutrino.ir.statements import Assembly
from neutrino.lazy import lazy
from neutrino.maps.regions import has_counts
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import Save, site_operands_of
from neutrino.ptx.analysis.additions import Additions
from neutrino.ptx.analysis.linkage import Callee, Linkage
from neutrino.ptx.analysis.matching import Found, Matcher
from neutrino.ptx.instrument.registers import PrivateNames, UnsupportedError
from neutrino.ptx.isa.forms import is_collective
from neutrino.ptx.isa.instruction import OF_REQUESTS
from neutrino.ptx.isa.scalars import SPECIAL_REGISTERS
from neutrino.ptx.snippets.lowering import lower
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import Kind, Module, ModuleStatement
from neutrino.twins.probe_units import ProbeUnit, units_of

_SPECIAL = frozenset(name.partition(".")[0] for name in SPECIAL_REGISTERS)


class SkipError(Exception):
    """A kernel gets no twin, for another reason than that its code is not supported. detail: what manifests say."""

    def __init__(self, reason: Reason, detail: str) -> None:
        """Make the error that a kernel gets no twin (copy with probes). reason: why. detail: what manifests say."""
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def module_obstacle(linkage: Linkage) -> str | None:
    """Say why no kernel of a module can have a twin (copy with probes), such as an unknown directive; None when nothing
    is in the way."""
    module = linkage.module
    if module.address_size != 64:
        return f".address_size is {module.address_size}, not 64"
    aliases = {directive for _, directive in linkage.aliases.values()}
    for statement in module.statements:
        # An alias directive that could not be read counts as unknown, too.
        if statement.kind is Kind.UNKNOWN or (statement.kind is Kind.ALIAS and statement not in aliases):
            line = module.line(statement.start)
            source = module.source(statement).strip().split("\n")[0]
            return f"line {line}: {source!r} at module level is not supported"
    return None


def check_text(module: Module, body: Body) -> None:
    """Raise UnsupportedError for a body that ptxas (NVIDIA's assembler) may read otherwise than ``text.body.Body``
    does.
    """
    # Where nothing closes a body, it goes to the end of the text.
    if body.end == len(module.code) and module.code.count("{", body.start) != module.code.count("}", body.start):
        raise UnsupportedError(f"line {module.line(body.start)}: the text ends within the body that begins there")
    # "ld .f32": ptxas reads one opcode, ``Body`` the opcode "ld". Directives may be written so.
    for position in body.spaced_dots:
        statement = body.statement(body.index_at(position))
        if module.code[statement.start] != ".":
            raise UnsupportedError(f"line {module.line(statement.start)}: white space within an opcode")
    # Special registers are recognised by name, so no register of the body may have the name of one.
    for start, end in body.directive_spans:
        if not module.code.startswith(".reg", start):
            continue
        for words in module.code[start:end].split("%")[1:]:
            # ``%r<5>``, or the last one before a comma or the semicolon.
            name = "%" + words.partition("<")[0].rstrip(",; \t\r\n\v\f")
            if name in _SPECIAL:
                raise UnsupportedError(f"line {module.line(start)}: a register of its own is called {name}")


class ProbeFacts:
    """Facts about probes and their snippets, computed once, since they are asked for at every site.

    Probes and snippets are known by ``id``: the very objects given here. probes: of one set, in file order.
    """

    def __init__(self, probes: Sequence[Probe]) -> None:
        """Find out facts about a set of probes, such as which read operands. Parameters: see the class."""
        self._order = {id(probe): index for index, probe in enumerate(probes)}
        self._names = {id(snippet): probe.name for probe in probes for snippet in _snippets(probe)}
        self._reading = {id(probe) for probe in probes if _names_operands(probe)}
        self._collective = {id(snippet) for probe in probes for snippet in _snippets(probe) if _has_collective(snippet)}
        self._storing = {id(probe) for probe in probes if any(save.map.kind.stores_at_sites for save in _saves(probe))}
        self.reads_parameters = any(map(parameters_of, probes))
        """Whether some probe names a parameter of its kernel."""
        self.has_end_work = any(
            (probe.tracepoint.is_kernel and probe.after is not None) or any(map(_ends_with_store, _saves(probe)))
            for probe in probes
        )
        """Whether every end of a thread gets code, in functions too: ``after`` of a kernel, sums or counts."""

    def probe_of(self, snippet: Snippet) -> str:
        """The name of the probe that a snippet (a piece of its code) belongs to."""
        return self._names[id(snippet)]

    def in_order(self, probes: Iterable[Probe]) -> list[Probe]:
        """The given probes without duplicates, in the order of the file that defines them."""
        probes = tuple(probes)
        if len(probes) < 2:
            return list(probes)
        return sorted({id(probe): probe for probe in probes}.values(), key=lambda probe: self._order[id(probe)])

    def must_be_clear(self, probe: Probe) -> bool:
        """Return whether a probe's code may not stand between a product and a sum that ptxas may fuse, as a predicated
        store.

        It may keep ptxas from fusing these, and so change the result.
        """
        return id(probe) in self._storing or self.holds_collective(probe)

    def reads_operands(self, probe: Probe) -> bool:
        """Whether a probe names operands of its instructions, by OUT, IN… or ADDR."""
        return id(probe) in self._reading

    def holds_collective(self, probe: Probe) -> bool:
        """Whether a probe's code has an instruction between lanes (as ``shfl``), which may end a basic block."""
        return any(map(self.is_collective, _snippets(probe)))

    def is_collective(self, snippet: Snippet) -> bool:
        """Whether a snippet (a probe's code at one place) has an instruction between lanes (as ``shfl``), which may end
        a basic block."""
        return id(snippet) in self._collective


def _snippets(probe: Probe) -> Iterator[Snippet]:
    """The snippets of a probe: its code before and after what it matches, as far as it has each."""
    return (snippet for snippet in (probe.before, probe.after) if snippet)


def _saves(probe: Probe) -> Iterator[Save]:
    """The SAVE statements, which record values, of a probe's code."""
    for snippet in _snippets(probe):
        yield from (statement for statement in snippet.straight if isinstance(statement, Save))


def _ends_with_store(save: Save) -> bool:
    """Return whether a save leaves something in registers that has to be written to memory where threads end."""
    return save.map.kind.settles or has_counts(save.map)


def _names_operands(probe: Probe) -> bool:
    """Return whether a probe names an operand of its instructions: a result, a source or the address."""
    return any(
        operand.name.startswith(("OUT", "IN", "ADDR", *OF_REQUESTS))
        for snippet in _snippets(probe)
        for statement in snippet.straight
        for operand in site_operands_of(statement)
    )


def parameters_of(probe: Probe) -> list[str | None]:
    """Return the parameters of its kernel that a probe names, each as it is written after ``PARAM.``, such as
    "0+8.u32"."""
    return [
        operand.element
        for snippet in _snippets(probe)
        for statement in snippet.straight
        for operand in site_operands_of(statement)
        if operand.name == "PARAM"
    ]


def _has_collective(snippet: Snippet) -> bool:
    """Return whether a snippet has an instruction between lanes (threads of a warp)."""
    return not snippet.operands_of_site.isdisjoint(OF_REQUESTS) or any(
        isinstance(statement, Assembly) and is_collective(statement.opcode) for statement in snippet.straight
    )


_MOST_SHAPES = 1 << 14


class TriedCode:
    """What is known about the code of probes on one architecture. Plans find it out by writing code that is thrown
    away.
    """

    def __init__(self) -> None:
        """Begin to remember which code of probes could be written on trial: nothing yet."""
        self.versions: dict[int, tuple[int, int]] = {}
        """By the snippet's id, the ``.version`` that it needs."""
        self.around: set[Hashable] = set()
        """The ids of snippets at entries and ends that could be written, with what of the parameters they depend on."""
        self.shapes: dict[Hashable, bool] = {}
        """By the shape of an instruction with its probes (``SitePlanner``), if their code could be written there:
        whether opcode and guard alone decide about that code."""

    def limit(self) -> None:
        """Forget all shapes where they have become too many: texts may hold anything."""
        if len(self.shapes) > _MOST_SHAPES:
            self.shapes.clear()


@dataclass(frozen=True)
class _ProbeKnowledge:
    """What is known of probes whatever the module, shared by all modules that they are inserted into.

    matcher: finds the sites. additions: which probes only add constants. tried: by architecture.
    """

    matcher: Matcher
    facts: ProbeFacts
    additions: Additions
    tried: defaultdict[int, TriedCode]


@functools.lru_cache(maxsize=8)
def _probe_knowledge(probes: ProbeSet, demangle: Callable[[str], str] | None) -> _ProbeKnowledge:
    """Return what is known of a set of probes whatever the module, remembered for the last few sets."""
    return _ProbeKnowledge(
        Matcher(probes.probes, demangle), ProbeFacts(probes.probes),
        Additions(probes.probes if probes.apart is None else ()), defaultdict(TriedCode),
    )


class Rewriting:
    """The insertion of a probe set into the kernels of a module: what its twins share.

    Parameters and errors are those of ``programs.plan_module``. version: the module's own; highest: the highest
    that a twin may have. architecture: 90 for ``sm_90a``. names: of what the twins add. probes: after lowering.
    """

    def __init__(
        self,
        linkage: Linkage,
        probes: ProbeSet,
        *,
        version: tuple[int, int] | None,
        demangle: Callable[[str], str] | None,
    ) -> None:
        """Prepare to insert probes into a module. version: the highest PTX version that a copy may have, None for the
        module's. demangle: gives readable names. Raises PtxError for a text that is no PTX module for a GPU."""
        if not isinstance(probes, ProbeSet):
            raise TypeError(f"probes to insert are a verified ProbeSet, not {type(probes).__name__}")
        module = linkage.module
        if module.version is None or module.architecture is None:
            raise PtxError(1, module.text[:80], "no .version, or no .target sm_; not a PTX module for a GPU")
        self.module = module
        self.linkage = linkage
        # For `only`, which makes another of these.
        self._given = probes, version, demangle
        self._others: dict[frozenset[str], Rewriting] = {}
        self.probes = probes = lower(probes)
        self.version = module.version
        self.highest = max(version or module.version, module.version)
        self.architecture = module.architecture
        self.names = PrivateNames.for_text(module.text)
        # Cached by equality: these probes may be other objects than those of the earlier module that the cached ones
        # are from. From here on only the matcher's own objects are used, by their ids.
        known = _probe_knowledge(probes, demangle)
        self.matcher, self.facts, self.additions = known.matcher, known.facts, known.additions
        self.tried = known.tried[self.architecture]
        self.tried.limit()
        self.checked_bodies: set[Body] = set()
        """Those that passed ``check_text``: a function may be called by many kernels."""
        # By the function's key, what probes match in it, with numbers from 0.
        self._found_in: dict[tuple[int, str], Found] = {}

    @lazy
    def units(self) -> tuple[ProbeUnit, ...]:
        """The probes in groups that can only be left out of a kernel together."""
        return units_of(self.probes.probes)

    def only(self, names: Collection[str]) -> Rewriting:
        """Return the insertion of only the probes with these names into the same module, for kernels that do not take
        all."""
        key = frozenset(names)
        if len(key) == len(self.probes.probes):
            return self
        if key not in self._others:
            probes, version, demangle = self._given
            self._others[key] = Rewriting(self.linkage, probes.only(key), version=version, demangle=demangle)
        return self._others[key]

    @lazy
    def private_statements(self) -> frozenset[ModuleStatement]:
        """The statements that declare variables of which each loaded image has its own, such as shared ones."""
        return frozenset(
            variable.statement for variable in self.module.variables if variable.space not in {"global", "const"}
        )

    def find(self, callee: Callee, first: int = 0) -> Found:
        """Find the instructions that probes match in the body of a kernel or a function. first: the number of its first
        site."""
        return self.matcher.find(callee.module, callee.function, callee.body, first)

    def find_in_function(self, callee: Callee, first: int) -> Found:
        """Return which instructions probes match in a function that several kernels may call.

        It is searched again for each kernel only if something matches, since the sites' numbers, from ``first`` on,
        depend on the kernel. If nothing does, ``next_number`` of the result means nothing.
        """
        found = self._found_in.get(callee.key)
        if found is None:
            found = self._found_in[callee.key] = self.find(callee)
        return self.find(callee, first) if found else found
