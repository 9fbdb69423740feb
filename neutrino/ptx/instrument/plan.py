"""Where the probes of a set go in one kernel and the functions that it calls, or why it gets no twin.

A plan is made without writing the twin, and says what writing does: the same sites, the same refusals. Whether a probe
can have the operands that it names is found out once for all instructions that look alike: by writing its code there,
which is thrown away (a trial).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from neutrino.abi.levels import Level
from neutrino.abi.probe_block import block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.structures import align_up
from neutrino.errors import PtxError
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.ptx.analysis.additions import Added, Runs
from neutrino.ptx.analysis.flow_graph import End, all_ends
from neutrino.ptx.analysis.linkage import Callee, Linkage, Needs
from neutrino.ptx.analysis.matching import Found, Hit, OpcodeHits, near_misses
from neutrino.ptx.instrument.emission import Emission, needed_version
from neutrino.ptx.instrument.functions import around_call, copy_header, copy_name, pass_address, with_their_callers
from neutrino.ptx.instrument.module_variables import (
    check_given_addresses,
    check_load,
    pass_by_address,
    read_through_global_memory,
)
from neutrino.ptx.instrument.operands import PlaceOperands
from neutrino.ptx.instrument.registers import SUFFIX, UnsupportedError
from neutrino.ptx.instrument.rewriting import Rewriting, SkipError, check_text
from neutrino.ptx.instrument.site_writer import Placed, SiteWriter
from neutrino.ptx.instrument.twin import LeftOut, Shown, Site, SiteList, SkippedKernel
from neutrino.ptx.isa.instruction import Instruction, Mnemonic, guard_register
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Statement
from neutrino.ptx.text.edits import Edits
from neutrino.ptx.text.module import Module, Parameter

_BLOCK_ALIGN = 8  # of the probe block

# PTX ISA, "Kernel Function Parameters": bytes of parameter space, by version and architecture.
_SMALL = 4352
_LARGE = 32764
_LARGE_VERSION = (8, 1)
_LARGE_ARCHITECTURE = 70


def block_offset(used: int) -> int:
    """The probe block's offset in bytes in the parameter space: after the kernel's own parameters, of used bytes."""
    return align_up(used, _BLOCK_ALIGN)


def version_with_room(
    needed: int, own: tuple[int, int], highest: tuple[int, int], architecture: int
) -> tuple[int, int]:
    """The lowest ``.version``, from own to highest, that has parameter space for the needed bytes.

    architecture: 90 for ``sm_90``. Raises SkipError when none has.
    """
    large = architecture >= _LARGE_ARCHITECTURE
    if needed <= (_LARGE if large and own >= _LARGE_VERSION else _SMALL):
        return own
    if large and highest >= _LARGE_VERSION and needed <= _LARGE:
        return max(own, _LARGE_VERSION)
    limit = _LARGE if large and highest >= _LARGE_VERSION else _SMALL
    raise SkipError(Reason.PARAMETERS, f"{needed} bytes of parameters with the probe block, {limit} fit")


@dataclass(frozen=True)
class BodyPlan:
    """What to insert where in one body. found: what the probes match. at_entry, at_ends: the snippets there, with their
    probes. snippets: all that the body will hold, with their probes' levels. ends: where threads leave it.

    placed: the code at its instructions, in text order. runs: the instructions whose probes only add constants, which
    are added up per run; None where no instruction has a probe. points_to_constants: whether a generic load in the
    kernel may read a constant. sites: for manifests and listings.
    """

    callee: Callee
    found: Found
    at_entry: tuple[tuple[Probe, Snippet], ...]
    at_ends: tuple[tuple[Probe, Snippet], ...]
    snippets: tuple[tuple[Snippet, Level], ...]
    ends: tuple[End, ...]
    placed: tuple[Placed, ...]
    runs: Runs | None
    points_to_constants: bool
    sites: SiteList


@dataclass(frozen=True)
class KernelPlan:
    """Where the probes go for one kernel. Offsets and sizes are bytes of its parameter space.

    rewriting: the probes, and the module that the kernel is in. version: the ``.version`` that the twin needs.
    kernel, functions: its own body, and those of the called functions that get copies.
    """

    rewriting: Rewriting
    needs: Needs
    twin_name: str
    parameters: tuple[Parameter, ...]
    block_offset: int
    block_size: int
    version: tuple[int, int]
    kernel: BodyPlan
    functions: tuple[BodyPlan, ...]

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.kernel.callee.function.name

    @property
    def bodies(self) -> tuple[BodyPlan, ...]:
        """The kernel's own and those of its functions."""
        return self.kernel, *self.functions

    @property
    def site_count(self) -> int:
        """How many sites there are, which is less to find out than what stands there."""
        return sum(body.sites.count for body in self.bodies)

    @property
    def sites(self) -> tuple[Site, ...]:
        """Where the probes go."""
        return tuple(site for body in self.bodies for site in body.sites.sites)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Instructions that probes match and do not go to."""
        return tuple(entry for body in self.bodies for entry in body.sites.left_out)

    @property
    def lines(self) -> dict[str, int]:
        """The line, from 1, of the PTX where the kernel and each function with a copy for it begin, by their names."""
        callees = [body.callee for body in self.bodies]
        return {callee.function.name: callee.module.line(callee.function.statement.start) for callee in callees}


@dataclass(frozen=True)
class ModulePlan:
    """The plans of a module's kernels, and the kernels that get no twin."""

    module: Module
    kernels: tuple[KernelPlan, ...]
    skipped: tuple[SkippedKernel, ...]


def plan_twin(rewriting: Rewriting, needs: Needs) -> KernelPlan:
    """The plan of a kernel's twin (instrumented copy). needs: the kernel, and what its code refers to.

    Raises SkipError, UnsupportedError or PtxError, which say why it gets none.
    """
    twin_name = needs.kernel.function.name + SUFFIX
    if twin_name in rewriting.module.symbols:
        raise SkipError(Reason.UNSUPPORTED, f"the module has a {twin_name} already")
    for callee in (needs.kernel, *needs.functions):
        if callee.body not in rewriting.checked_bodies:
            check_text(callee.module, callee.body)
            rewriting.checked_bodies.add(callee.body)
    return _Planner(rewriting, needs, twin_name).run()


class _Planner:
    """Plans one twin (instrumented copy). Takes out of ``needs`` what declares functions that get copies."""

    def __init__(self, rewriting: Rewriting, needs: Needs, twin_name: str) -> None:
        self._rewriting = rewriting
        self._needs = needs
        self._twin_name = twin_name
        matcher = rewriting.matcher
        # The probes at the kernel's entry and ends.
        around = rewriting.facts.in_order((
            *matcher.kernel_probes,
            *matcher.function_probes(needs.kernel.function.name),
        ))  # fmt: skip
        self._kernel = _Body(rewriting, needs.kernel, rewriting.find(needs.kernel), around, is_kernel=True)

    def run(self) -> KernelPlan:
        """Make the plan. Raises as ``plan_twin``."""
        rewriting, needs = self._rewriting, self._needs
        functions = self._functions()
        bodies = (self._kernel, *functions)
        # Whether probes have code around a body: at its entry or its ends.
        has_around = any(body.at_entry or body.at_ends for body in bodies)
        if not has_around and not any(body.found.hits for body in bodies):
            raise SkipError(Reason.NO_SITE, self._nothing_matches())

        # The probe block, and the version that has room for it.
        parameters, used = rewriting.module.parameter_layout(needs.kernel.function)
        offset = block_offset(used)
        size = block_size(len(rewriting.probes.maps), len(needs.by_address))
        version = version_with_room(offset + size, rewriting.version, rewriting.highest, rewriting.architecture)
        points_to_constants = self._replace_variables(bodies)
        version = max(version, *(body.needed_version() for body in bodies))
        if version > rewriting.highest:
            raise UnsupportedError(f"a probe needs PTX ISA {version[0]}.{version[1]}, which the driver does not take")

        # Where the code goes.
        for body in bodies:
            body.place_sites(points_to_constants=points_to_constants)
        for function in functions:
            function.check_names()
            function.list_around(".func", [end for end in function.ends if not end.is_exit])
        if not has_around and not any(body.sites for body in bodies):
            # There were hits, so each of them was left out.
            first = next(entry for body in bodies for entry in body.sites.left_out)
            raise SkipError(Reason.NO_SITE, f"line {first.line}: {first.instruction!r}: {first.reason}")
        self._kernel.list_around(".entry", self._kernel.ends)
        # A thread that ends in a called function ends the kernel there.
        of_kernel = [probe for probe, _ in self._kernel.at_ends if probe.tracepoint.is_kernel]
        for function in functions:
            function.list_ends([end for end in function.ends if end.is_exit], of_kernel)
        if functions:
            self._check_calls(functions)
        kernel, *others = [body.plan(points_to_constants=points_to_constants) for body in bodies]
        return KernelPlan(rewriting, needs, self._twin_name, parameters, offset, size, version, kernel, tuple(others))

    def _functions(self) -> tuple[_Body, ...]:
        """The called functions that get copies: with sites, ends of the thread, module variables, or calls of such.

        Takes out of the statements to copy what declares them and the kernel, since they are written anew. Raises
        UnsupportedError when the address of such a function is taken: calls by it would not pass the state.
        """
        rewriting = self._rewriting
        # By the function's key, what probes match in it; and the keys of those that need a copy by themselves.
        found_by_key: dict[tuple[int, str], Found] = {}
        with_concern = []
        # Sites are numbered through: first the kernel's, then those of its functions.
        number = self._kernel.found.next_number
        for callee in self._needs.functions:
            found = rewriting.find_in_function(callee, number)
            number = found.next_number if found.hits else number  # of no use without hits, see `find_in_function`
            found_by_key[callee.key] = found
            if _concern(rewriting, callee, found):
                with_concern.append(callee.key)
        keys = with_their_callers(self._needs.functions, with_concern)
        chosen = tuple(
            _Body(
                rewriting, callee, found_by_key[callee.key],
                rewriting.matcher.function_probes(callee.function.name), is_kernel=False,
            )
            for callee in self._needs.functions if callee.key in keys
        )  # fmt: skip
        parts = [(body.callee.key, body.is_kernel, body.snippets) for body in (self._kernel, *chosen)]
        trial_emissions = _TrialEmissions(rewriting, parts)
        for body in (self._kernel, *chosen):
            body.trial_emissions = trial_emissions
        for function in chosen:
            name = function.callee.function.name
            if name in self._needs.taken:
                what = _concern(rewriting, function.callee, function.found) or "calls"
                raise UnsupportedError(f"{what} in the called function {name}, whose address is taken")
        for body in (self._kernel, *chosen):
            callee = body.callee
            self._do_not_copy(callee.linkage, callee.function.name)
            for call in callee.calls:
                if call.callee in keys:
                    self._do_not_copy(callee.linkage, callee.module.code[call.start : call.end])
        return chosen

    def _do_not_copy(self, linkage: Linkage, name: str) -> None:
        """Take what declares that function in linkage's module out of the statements to copy: it is written anew."""
        is_kernels_module = linkage.number == self._needs.kernel.linkage.number
        statements = self._needs.statements if is_kernels_module else self._needs.elsewhere.get(linkage.number, set())
        statements -= linkage.declarations(name)

    def _nothing_matches(self) -> str:
        """A message for a kernel without sites: what the probes look for, and which opcodes come close."""
        probes = self._rewriting.probes.probes
        patterns = [pattern for probe in probes for pattern in probe.tracepoint.patterns]
        near = near_misses(self._needs.kernel.body, patterns)
        return (
            "no instruction matches "
            + ", ".join(sorted({probe.tracepoint.text for probe in probes}))
            + (f", but for the type: {', '.join(near)}" if near else "")
            + (": the text has no line information" if self._kernel.found.lacks_lines else "")
        )

    def _replace_variables(self, bodies: Sequence[_Body]) -> bool:
        """Check that all bodies can reach module variables by their addresses. Raises UnsupportedError when not.

        Returns whether a generic load in the kernel may read a constant: some body makes generic addresses of these.
        """
        by_address = self._needs.by_address
        order = {variable.name: index for index, variable in enumerate(by_address)}
        # A list and no generator for `any`: each of them has to be checked.
        point_to_constants = [body.replace_variables(order) for body in bodies]
        if any(variable.space == "const" for variable in by_address):
            for callee in (self._needs.kernel, *self._needs.functions):
                check_given_addresses(callee)
        return any(point_to_constants)

    def _check_calls(self, functions: Sequence[_Body]) -> None:
        """Refuse calls and functions that cannot be passed the kernel's state, by a trial. Raises UnsupportedError."""
        kernel = self._needs.kernel
        address = self._rewriting.names.state_address
        names = {function.callee.key: copy_name(function.callee, kernel) for function in functions}
        for callee in (kernel, *(function.callee for function in functions)):
            for call in callee.calls:
                if call.callee in names:
                    pass_address(callee.body, call, address)
                    around_call(callee.body, call)
        for function in functions:
            copy_header(function.callee, names[function.callee.key], address, visible=False)


def _concern(rewriting: Rewriting, callee: Callee, found: Found) -> str | None:
    """What in a called function makes a copy of it necessary, for a message; None when at most its calls do."""
    first = found.hits[0].statement if found.hits else None
    # An ``exit`` ends the thread there, so that the code at ends of threads goes before it.
    if first is None and rewriting.facts.has_end_work:
        leaving = map(callee.body.statement, callee.body.leaving)
        first = next((statement for statement in leaving if statement.word == "exit"), None)
    if first is not None:
        return f"line {callee.module.line(first.position)}: {first.opcode}"
    if callee.variables:
        return f"the variable {callee.variables[0].name}"
    return "a tracepoint" if rewriting.matcher.function_probes(callee.function.name) else None


class _Body:
    """Plans one body. found: what probes match in it. around: the probes at its entry and its ends. is_kernel: it is
    the kernel's, not a called function's.

    trial_emissions: for trials, of the kernel and of its functions that get copies; set anew when these are known.
    """

    def __init__(
        self, rewriting: Rewriting, callee: Callee, found: Found, around: Sequence[Probe], *, is_kernel: bool
    ) -> None:
        self.callee = callee
        self.found = found
        self.is_kernel = is_kernel
        self.trial_emissions = _TrialEmissions(rewriting, ())
        self.at_entry = [(probe, probe.before) for probe in around if probe.before]
        self.at_ends = [(probe, probe.after) for probe in around if probe.after]
        self.sites = SiteList(callee.function.name, callee.module, found.places)
        self._rewriting = rewriting
        self._variables: dict[str, str] = {}
        self._placed: tuple[Placed, ...] = ()
        self._runs: Runs | None = None

    def replace_variables(self, order: Mapping[str, int]) -> bool:
        """Check by a trial that its module variables can be reached by their addresses. Raises UnsupportedError.

        Returns whether it makes generic addresses of constants. order: by name, the index in the probe block.
        """
        if not self.callee.variables:
            return False
        for name in sorted((variable.name for variable in self.callee.variables), key=order.__getitem__):
            self._variables[name] = self.emission.variable(order[name])
        edits = Edits()  # thrown away
        pass_by_address(self.callee, self._variables, edits)
        return read_through_global_memory(self.callee, edits)

    @cached_property
    def snippets(self) -> tuple[tuple[Snippet, Level], ...]:
        """The snippets that it will hold, each with its probe's level."""
        around = [(snippet, probe.level) for probe, snippet in (*self.at_entry, *self.at_ends)]
        at_instructions = [
            (snippet, probe.level)
            for probe in self._rewriting.facts.in_order(self.found.probes)
            for snippet in (probe.before, probe.after) if snippet is not None
        ]  # fmt: skip
        return (*around, *at_instructions)

    def needed_version(self) -> tuple[int, int]:
        """The ``.version`` that its snippets need. Raises UnsupportedError."""
        versions = self._rewriting.tried.versions
        needed = [(0, 0)]
        for snippet, _ in self.snippets:
            if id(snippet) not in versions:
                versions[id(snippet)] = needed_version(snippet, self._rewriting.architecture)
            needed.append(versions[id(snippet)])
        return max(needed)

    @property
    def emission(self) -> Emission:
        """Writes code that is thrown away, to see whether it can be written."""
        return self.trial_emissions.emissions[self.callee.key]

    def place_sites(self, *, points_to_constants: bool) -> None:
        """Find where the code at its instructions goes. Raises UnsupportedError, PtxError."""
        if self.found.hits:
            sites = _Sites(self._rewriting, self, self._variables, points_to_constants=points_to_constants)
            self._runs = Runs(self.callee.body)
            self._placed = sites.place_all(self.found.hits, self._runs)

    def check_names(self) -> None:
        """Refuse a function whose module has names of the probes', which are chosen to occur in no text of the kernel's
        module. Raises UnsupportedError."""
        prefix = self._rewriting.names.prefix
        if prefix in self.callee.module.text:
            raise UnsupportedError(f"the module of {self.callee.function.name} has names with {prefix}")

    @cached_property
    def ends(self) -> tuple[End, ...]:
        """Where threads leave it."""
        return all_ends(self.callee.body)

    def list_around(self, directive: str, ends: Sequence[End]) -> None:
        """List the sites at its entry and its ends. directive: ``.entry`` or ``.func``. Raises UnsupportedError for a
        snippet whose code cannot be written there."""
        function = self.callee.function
        checked = self._rewriting.tried.around
        for probe, snippet in (*self.at_entry, *self.at_ends):
            if id(snippet) not in checked:
                self.emission.snippet(snippet, PlaceOperands.around(self.emission.scratch), level=probe.level)
                checked.add(id(snippet))
        for probe, _ in self.at_entry:
            line = self.callee.module.line(function.name_end)
            self.sites.add(Shown(line, f"{directive} {function.name}"), [probe])
        self.list_ends(ends, [probe for probe, _ in self.at_ends])

    def list_ends(self, ends: Sequence[End], probes: Sequence[Probe]) -> None:
        """List the sites of probes at some ends."""
        if probes:
            for end in ends:
                self.sites.add(Shown(self.callee.module.line(end.at), end.shown), probes)

    def plan(self, *, points_to_constants: bool) -> BodyPlan:
        """The plan, once all steps are done."""
        return BodyPlan(
            self.callee, self.found, tuple(self.at_entry), tuple(self.at_ends), self.snippets, self.ends,
            self._placed, self._runs, points_to_constants, self.sites,
        )  # fmt: skip


class _TrialEmissions:
    """Emissions for trials, one per body: for code that is thrown away, to see whether it can be written.

    They are made when first asked for: few kernels need them. bodies: of each body, the kernel's first, the key of its
    callee, whether it is the kernel's, and its snippets. Not the bodies themselves, which refer to this object: such a
    cycle would leave every plan to the garbage collector.
    """

    def __init__(
        self,
        rewriting: Rewriting,
        bodies: Sequence[tuple[tuple[int, str], bool, tuple[tuple[Snippet, Level], ...]]],
    ) -> None:
        self._rewriting = rewriting
        self._bodies = bodies

    @cached_property
    def emissions(self) -> dict[tuple[int, str], Emission]:
        """By the key of the body's callee."""
        rewriting, names = self._rewriting, self._rewriting.names
        emissions: dict[tuple[int, str], Emission] = {}
        kernel: Emission | None = None
        for key, is_kernel, snippets in self._bodies:
            block = names.block if is_kernel else names.state_address
            emission = Emission(rewriting.probes, names.prefix, block, rewriting.architecture, kernel)
            # The first body is the kernel's; the emissions of its functions refer to it.
            kernel = kernel or emission
            emissions[key] = emission
            for snippet, level in snippets:
                emission.note_snippet(snippet, level)
        return emissions


_NOT_BY_OPCODE = Added((), 0)  # stands for instructions whose opcode does not decide what is added

_NEXT = re.compile(r"\n\s*(?:@|[a-z]\w*\.[a-z]|(?:ret|exit|trap)\s*\Z)", re.ASCII)
"""A line that begins as an instruction, within what goes on to the next semicolon. No operand looks so."""

# In an operand: a name, or an integer other than 0.
_TOKEN = re.compile(r"(?P<name>[A-Za-z_$%][\w$%]*)|(?<![\w.$%])[1-9]\d*(?![\w.])", re.ASCII)
_VECTOR = re.compile(r"\.reg\s*\.v[248]\b", re.ASCII)


class _Sites:
    """Decides where the code at one body's instructions goes, in text order, and refuses what cannot be written.

    variables: as in ``SiteWriter``. points_to_constants: a generic load may read a constant, which lies elsewhere for
    the twin.
    """

    def __init__(
        self, rewriting: Rewriting, body: _Body, variables: Mapping[str, str], *, points_to_constants: bool
    ) -> None:
        self._rewriting = rewriting
        self._module = body.callee.module
        self._code = body.callee.module.code
        self._body = body.callee.body
        self._facts = rewriting.facts
        self._additions = rewriting.additions
        self._planned = body
        self._sites = body.sites
        self._places = body.found.places
        self._variables = variables
        self._points_to_constants = points_to_constants
        self._calls = bool(self._body.call_sequences)
        # Instructions where writing has been tried: by opcode, guard and probes, where more than these does not matter.
        self._tried: set[tuple[str, str | None, tuple[int, ...]]] = set()
        # By declaration, the beginning of what `_shape` writes for its registers.
        self._words: dict[object, str] = {}

    @cached_property
    def _trial(self) -> SiteWriter:
        callee, emission = self._planned.callee, self._planned.emission
        return SiteWriter(callee, self._facts, emission, Edits(), variables=self._variables, places=self._places)

    def place_all(self, hits: Sequence[Hit], runs: Runs) -> tuple[Placed, ...]:
        """Place the code of all hits of the body, and count in runs what they add. Raises UnsupportedError, PtxError.

        Returns the places that get code. Instructions at which probes only add constants, most of them as a rule, are
        counted by their opcodes, without looking at each.
        """
        if not isinstance(hits, OpcodeHits):
            # Some hits depend on their source lines.
            every = [self._place(hit, runs) for hit in hits]
            return tuple(placed for placed in every if placed.has_code)
        indices, mnemonics = hits.indices, self._body.mnemonics
        by_opcode = self._added_by_opcode(hits)
        added = [by_opcode.get(mnemonics[index], _NOT_BY_OPCODE) for index in indices]
        not_by_opcode = self._not_by_opcode(indices)
        # Indices of the hits that need a look at each; those between them are counted all at once, in text order.
        one_by_one = [at for at, index in enumerate(indices) if index in not_by_opcode or added[at] is _NOT_BY_OPCODE]
        with_code = []
        start = 0
        for at in one_by_one:
            runs.add_all(indices, added, start, at)
            placed = self._place(hits[at], runs)
            if placed.has_code:
                with_code.append(placed)
            start = at + 1
        runs.add_all(indices, added, start, len(indices))
        # `_place` has listed its sites itself; the rest is listed here, with how many probes they have.
        count = sum([len(one.amounts) * sites for one, sites in Counter(added).items()])
        self._sites.add_hits(hits, one_by_one, count - sum([len(added[at].amounts) for at in one_by_one]))
        return tuple(with_code)

    def _not_by_opcode(self, indices: Sequence[int]) -> set[int]:
        """The instructions where more than the opcode decides about the code of probes, by their indices in the body:
        those with a guard, of several lines, or in a call sequence. indices: of the sites.
        """
        body = self._body
        result = {*body.guarded, *body.multiline(indices)}
        for start, end in body.call_sequences:
            result.update(range(body.index_at(start), body.index_at(end) + 1))
        return result

    def _added_by_opcode(self, hits: OpcodeHits) -> dict[Mnemonic | None, Added]:
        """By opcode, what probes add at its instructions without a guard, if they do nothing else there."""
        added: dict[Mnemonic | None, Added] = {}
        for opcode, probes in hits.unguarded.items():
            # Such loads are looked at one by one, in `_place`, as is what ends a block or calls.
            is_checked_load = self._points_to_constants and opcode.text.startswith("ld")
            if opcode.flow is None and not is_checked_load:
                alone = self._additions.added_alone(probes, self._body, opcode)
                if alone is not None:
                    added[opcode] = alone
        return added

    def _place(self, hit: Hit, runs: Runs) -> Placed:
        """Decide where the code of one instruction's probes goes: next to it, or around the call that it is part of.

        Lists the site, and leaves to runs what its probes only add. Raises UnsupportedError, PtxError.
        """
        statement = hit.statement
        decoded, start, end = statement.mnemonic, statement.start, statement.end
        if decoded is None:
            raise PtxError(self._module.line(start), self._code[start : start + 80], "not an instruction")
        if self._code.find("\n", start, end - 1) >= 0:
            # A statement of several lines may be two, the first of which lacks its semicolon.
            self._check_end(statement)
        if self._points_to_constants and decoded.text.startswith("ld"):
            check_load(statement, self._module.line(start))
        probes = hit.probes
        in_call = self._calls and self._body.call_sequence(statement.position) is not None
        # The probes that have a site here.
        shown: Collection[Probe] = probes
        # Whether its additions are no part of a run of sites: a called function may end the thread, so that a thread
        # may execute the sites before a call and not those after it.
        stands_alone = False
        if decoded.flow is not None or in_call or hit.opens or hit.closes:
            if in_call:
                start, end, probes = self._around_call(hit)
            stands_alone = start != statement.start or decoded.flow is Flow.CALL
            # After a branch, ``ret`` or ``exit`` no code runs: only ``before`` snippets go there.
            if decoded.ends_block and any(probe.after for probe in probes):
                self._sites.leave_out(
                    self._shown(statement), [probe for probe in probes if probe.after], "nothing runs after it"
                )
                probes = tuple(probe for probe in probes if probe.before)
                stands_alone = True
            shown = self._facts.in_order((*probes, *hit.opens)) if hit.opens else probes
        self._sites.add(statement, tuple(shown), hit.number)
        parted = self._additions.part(probes)
        added = self._additions.added(parted, statement) if parted.adding and not stands_alone else None
        if added is not None:
            runs.add_site(statement, added)
        placed = Placed(hit, start, end, parted.all if added is None else parted.others)
        if placed.has_code:
            self._check(placed)
        return placed

    def _check_end(self, statement: Statement) -> None:
        """Raises PtxError when a line of a statement looks like another instruction: a semicolon is missing."""
        text = statement.text
        after_opcode = statement.position - statement.start + len(statement.opcode)
        if next_instruction := _NEXT.search(text, after_opcode):
            line = self._module.line(statement.start)
            raise PtxError(line, text[: next_instruction.start()], "no ';' before the next instruction")

    def _around_call(self, hit: Hit) -> tuple[int, int, tuple[Probe, ...]]:
        """Where code before and after an instruction of a call goes, and the probes whose code does: outside the call.

        Leaves out probes that read operands of a move of arguments or results, which are not known there. Raises
        UnsupportedError when the call sequence holds other instructions.
        """
        statement = hit.statement
        sequence = self._body.call_sequence(statement.position)
        if sequence is None:
            return statement.start, statement.end, hit.probes
        is_call = statement.word == "call"
        if not self._body.is_plain_call(sequence):
            detail = "shares its braces with other instructions" if is_call else "is part of a call sequence"
            shown = self._shown(statement)
            raise UnsupportedError(f"line {shown.line}: {shown.text!r} {detail}")
        if is_call:
            return sequence[0], sequence[1], hit.probes
        # A move of an argument goes before the call, one of a result after it: not all threads come back from calls.
        side = sequence[0] if statement.opcode.startswith("st") else sequence[1]
        lacking = [probe for probe in hit.probes if self._facts.reads_operands(probe)]
        reason = "it is part of a call, around which its operands are not known"
        self._sites.leave_out(self._shown(statement), lacking, reason)
        return side, side, tuple(probe for probe in hit.probes if probe not in lacking) if lacking else hit.probes

    def _shown(self, statement: Statement) -> Shown:
        return Shown.of(statement, self._module, self._places)

    def _check(self, placed: Placed) -> None:
        """Refuse a site at which probes lack what they name, by a trial. Raises UnsupportedError, PtxError.

        One trial per opcode, guard and probes where these decide about the code, else per shape of the instruction.
        """
        hit = placed.hit
        statement, guard = hit.statement, hit.statement.guard
        probes = tuple(map(id, placed.probes))
        # Not plain: code of source lines, or an instruction that names its own predicate.
        plain = not hit.opens and not hit.closes and not (
            guard and guard_register(guard) in self._code[statement.position : statement.end]
        )  # fmt: skip
        key = (statement.opcode, guard, probes)
        if plain and key in self._tried:
            return
        instruction = statement.instruction
        if instruction is None or not self._code.startswith(";", statement.end - 1):
            start = statement.start
            raise PtxError(self._module.line(start), self._code[start : start + 80], "not an instruction")
        if not plain and (hit.opens or hit.closes):
            self._trial.write_snippets(placed)
            return
        # Shared with all modules of these probes. The value: whether opcode and guard alone decide about the code.
        tried_shapes = self._rewriting.tried.shapes
        # Code between lanes is refused at some places between a product and its sum, so that the places matter.
        clear = None
        if any(map(self._facts.holds_collective, placed.probes)):
            sides = placed.start, placed.end
            clear = tuple((self._trial.is_clear(side), self._trial.may_exchange(side)) for side in sides)
        shape = (statement.opcode, guard is None, probes, clear, *self._shape(instruction, statement.position))
        if shape not in tried_shapes:
            tried_shapes[shape] = self._trial.write_snippets(placed)
        if plain and tried_shapes[shape]:
            self._tried.add(key)

    def _shape(self, instruction: Instruction, position: int) -> Iterator[str]:
        """An instruction's operands with the names of registers replaced by what matters of them for inserted code: how
        they are declared, and whether the instruction writes them. Equal shapes get equal code, but for names.
        """
        written = instruction.written
        declared = self._body.declaration

        def replacement(match: re.Match[str]) -> str:
            name = match["name"]
            if name is None:
                return "1"  # for every integer other than 0: only an offset of 0 needs no addition
            declaration = declared(name, position)
            if declaration is None:
                return f"[{name in self._variables}]{name}"
            known = self._words.get(declaration)
            if known is None:
                head = self._code[declaration.start : self._code.find(";", declaration.start)]
                is_vector = declaration.count is None and _VECTOR.match(head) is not None
                known = self._words[declaration] = f"<{declaration.space} {declaration.type} {is_vector}"
            return f"{known} {name in written}>"

        return (_TOKEN.sub(replacement, operand) for operand in instruction.operands)
