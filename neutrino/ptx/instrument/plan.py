"""Where the probes of a set go in one kernel and the functions that it calls, or why it gets no twin.

A plan is made without writing the twin, and says what writing does: the same sites, the same refusals. Whether a probe
can have the operands that it names is found out once for all instructions that look alike: by writing its code there,
which is thrown away (a trial).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from neutrino.abi.levels import Level
from neutrino.abi.probe_block import block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.structures import align_up
from neutrino.errors import PtxError
from neutrino.lazy import lazy
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.ptx.analysis.additions import SiteGroups
from neutrino.ptx.analysis.flow_graph import End, all_ends
from neutrino.ptx.analysis.linkage import Callee, Linkage, Needs, ObstacleError
from neutrino.ptx.analysis.matching import Found, Spot, near_misses
from neutrino.ptx.instrument.emission import Emission, needed_version
from neutrino.ptx.instrument.lanes_together import LaneMasks
from neutrino.ptx.instrument.module_parts import (
    Parameters,
    around_call,
    check_given_addresses,
    copy_header,
    copy_name,
    pass_address,
    pass_by_address,
    read_through_global_memory,
    with_their_callers,
)
from neutrino.ptx.instrument.registers import UnsupportedError
from neutrino.ptx.instrument.rewriting import Rewriting, SkipError, check_text, parameters_of
from neutrino.ptx.instrument.site_planner import SitePlanner
from neutrino.ptx.instrument.site_values import PlaceOperands
from neutrino.ptx.instrument.site_writer import Placed
from neutrino.ptx.instrument.twin import Shown, SiteList
from neutrino.ptx.text.inserted import Edits
from neutrino.ptx.text.module import Function, Module, Parameter
from neutrino.twins.probe_units import ProbeLeftOut, Refusal, left_out, search, searched
from neutrino.twins.values import SUFFIX, LeftOut, Site, SkippedKernel

_BLOCK_ALIGN = 8  # of the probe block

# PTX ISA, "Kernel Function Parameters": bytes of parameter space, by version and architecture.
_SMALL = 4352
_LARGE = 32764
_LARGE_VERSION = (8, 1)
_LARGE_ARCHITECTURE = 70


def block_offset(used: int) -> int:
    """The offset in bytes of the probe block (the parameter added for probes) among a kernel's parameters: after its
    own.

    used: the bytes of its own parameters.
    """
    return align_up(used, _BLOCK_ALIGN)


def version_with_room(
    needed: int, own: tuple[int, int], highest: tuple[int, int], architecture: int
) -> tuple[int, int]:
    """The lowest PTX ``.version``, from own to highest, in which a kernel may have as many bytes of parameters as
    needed.

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

    placed: the code at its instructions, in text order. spots: the places between them with code. site_groups: the
    instructions whose probes only add constants, which are added up per run; None where no instruction has a probe.
    points_to_constants: whether a generic load in the kernel may read a constant. sites: for manifests and listings.
    """

    callee: Callee
    found: Found
    at_entry: tuple[tuple[Probe, Snippet], ...]
    at_ends: tuple[tuple[Probe, Snippet], ...]
    snippets: tuple[tuple[Snippet, Level], ...]
    ends: tuple[End, ...]
    placed: tuple[Placed, ...]
    spots: tuple[Spot, ...]
    site_groups: SiteGroups | None
    points_to_constants: bool
    sites: SiteList


@dataclass(frozen=True)
class KernelPlan:
    """Where the probes go for one kernel. Offsets and sizes are bytes of its parameter space.

    rewriting: the probes that go in, and the module that the kernel is in. version: the ``.version`` that the twin
    needs. kernel, functions: its own body, and those of the called functions that get copies. probes_left_out: those of
    the set that cannot be placed in this kernel.
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
    probes_left_out: tuple[ProbeLeftOut, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.callee.function.name

    @property
    def bodies(self) -> tuple[BodyPlan, ...]:
        """The plans of the kernel's own body and of those of its functions that get copies."""
        return self.kernel, *self.functions

    @property
    def site_count(self) -> int:
        """How many sites (places where probes' code goes) there are; quicker than to list them."""
        return sum(body.sites.count for body in self.bodies)

    @property
    def next_site(self) -> int:
        """A number greater than those of all sites (probed places) of the kernel."""
        return max(body.found.next_number for body in self.bodies)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The places where probes' code goes."""
        return tuple(site for body in self.bodies for site in body.sites.sites)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The instructions that probes match and where their code does not go."""
        return tuple(entry for body in self.bodies for entry in body.sites.left_out)

    @property
    def lines(self) -> dict[str, int]:
        """The line of the PTX, from 1, at which the kernel and each function that is copied for it begin, by their
        names."""
        callees = [body.callee for body in self.bodies]
        return {callee.function.name: callee.module.line(callee.function.statement.start) for callee in callees}


@dataclass(frozen=True)
class ModulePlan:
    """The plans of a module's kernels, and the kernels that get no twin."""

    module: Module
    kernels: tuple[KernelPlan, ...]
    skipped: tuple[SkippedKernel, ...]


def plan_kernel(rewriting: Rewriting, kernel: Function) -> KernelPlan:
    """The plan of a kernel's twin (instrumented copy), with those of the probes that can be placed in it.

    Raises SkipError, UnsupportedError, ObstacleError or PtxError, which say why it gets none.
    """
    needs = rewriting.linkage.needs(kernel)
    if kernel.name + SUFFIX in rewriting.module.symbols:
        raise SkipError(Reason.UNSUPPORTED, f"the module has a {kernel.name + SUFFIX} already")
    for callee in (needs.kernel, *needs.functions):
        if callee.body not in rewriting.checked_bodies:
            check_text(callee.module, callee.body)
            rewriting.checked_bodies.add(callee.body)
    try:
        return _Planner(rewriting, needs).run()
    except (SkipError, UnsupportedError, PtxError) as error:
        refusal = refusal_of(error)
        # The probe block has a place for each map of the run, whether the kernel saves to it or not.
        if len(rewriting.units) == 1 or refusal.reason in (Reason.NO_SITE, Reason.PARAMETERS):
            raise
    return _plan_with_fewer(rewriting, kernel, refusal)


def _plan_with_fewer(rewriting: Rewriting, kernel: Function, refusal: Refusal) -> KernelPlan:
    """Return a plan with as many of the probes as can be placed. refusal: why not all can. Raises SkipError where none
    can.
    """
    units = rewriting.units

    def plan(names: Collection[str]) -> KernelPlan | Refusal:
        """The plan of the twin with these probes alone, or why there is none."""
        try:
            return _Planner(rewriting.only(names), rewriting.linkage.needs(kernel)).run()
        except (SkipError, UnsupportedError, PtxError) as error:
            return refusal_of(error)

    def why_not(names: Collection[str]) -> Refusal | None:
        """Why these probes cannot be placed together, None where they can or match nothing."""
        result = plan(names)
        return result if isinstance(result, Refusal) and result.reason is not Reason.NO_SITE else None

    found = searched(search(units, refusal), why_not)
    # What each probe that is refused with others comes to by itself.
    alone = {name: plan([name]) for index in found.refused for name in units[index].names - found.kept}
    refused = {name: result for name, result in alone.items() if isinstance(result, Refusal)}
    matching = [
        probe for probe in rewriting.probes.probes
        if probe.name not in refused or refused[probe.name].reason is not Reason.NO_SITE
    ]  # fmt: skip
    entries = left_out(matching, units, found, refused)
    kept = plan(found.kept) if found.kept else None
    if not isinstance(kept, KernelPlan):
        # What is not placed is all that matches.
        first = next(iter(found.refused.values()))
        details = dict.fromkeys(refusal.detail for refusal in found.refused.values())
        raise SkipError(first.reason, "; ".join(details))
    return replace(kept, probes_left_out=entries)


def refusal_of(error: SkipError | UnsupportedError | PtxError) -> Refusal:
    """Return the reason that an error of planning or writing a twin gives, as a value."""
    if isinstance(error, SkipError):
        return Refusal(error.reason, error.detail)
    return Refusal(Reason.UNSUPPORTED, str(error), error.remedy if isinstance(error, UnsupportedError) else "")


class _Planner:
    """Plans one twin (instrumented copy of a kernel). Takes out of ``needs`` what declares functions that get copies.
    """

    def __init__(self, rewriting: Rewriting, needs: Needs) -> None:
        """Prepare to plan one twin (instrumented copy of a kernel). needs: what it needs of the kernel's module."""
        self._rewriting = rewriting
        self._needs = needs
        self._twin_name = needs.kernel.function.name + SUFFIX
        matcher = rewriting.matcher
        # The probes at the kernel's entry and ends.
        around = rewriting.facts.in_order((
            *matcher.kernel_probes,
            *matcher.function_probes(needs.kernel.function.name),
        ))  # fmt: skip
        self._kernel = _Body(rewriting, needs.kernel, rewriting.find(needs.kernel), around, is_kernel=True)

    def run(self) -> KernelPlan:
        """Make the plan of the twin (instrumented copy of a kernel). Raises the errors that ``plan_kernel`` names."""
        rewriting, needs = self._rewriting, self._needs
        functions = self._functions()
        bodies = (self._kernel, *functions)
        # Whether probes have code around a body: at its entry or its ends.
        has_around = any(body.at_entry or body.at_ends for body in bodies)
        fault = next((body.found.fault for body in bodies if body.found.fault is not None), None)
        if fault is not None:
            raise UnsupportedError(fault)
        if not has_around and not any(body.found for body in bodies):
            raise SkipError(Reason.NO_SITE, self._nothing_matches())

        # The probe block, and the version that has room for it.
        parameters, used = rewriting.module.parameter_layout(needs.kernel.function)
        offset = block_offset(used)
        size = block_size(len(rewriting.probes.maps), len(needs.by_address))
        version = version_with_room(offset + size, rewriting.version, rewriting.highest, rewriting.architecture)
        if rewriting.facts.reads_parameters:
            for body in bodies:
                body.check_parameters()
        points_to_constants = self._replace_variables(bodies)
        version = max(version, *(body.needed_version() for body in bodies))
        if version > rewriting.highest:
            raise UnsupportedError(
                f"a probe needs PTX ISA {version[0]}.{version[1]}, which the driver does not take", "a newer driver"
            )

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
        """Plan the called functions that get copies of their own, in which code of probes can go; return them.

        These have sites, ends of the thread or module variables, or call such functions. Takes out of the statements to
        copy what declares them and the kernel, since they are written anew. Raises UnsupportedError when the address of
        such a function is taken: calls by it would not pass the state.
        """
        rewriting = self._rewriting
        # By the function's key, what probes match in it; and the keys of those that need a copy by themselves.
        found_by_key: dict[tuple[int, str], Found] = {}
        with_concern = []
        # Sites are numbered through: first the kernel's, then those of its functions.
        number = self._kernel.found.next_number
        for callee in self._needs.functions:
            found = rewriting.find_in_function(callee, number)
            number = found.next_number if found else number  # of no use without hits, see `find_in_function`
            found_by_key[callee.key] = found
            if _reason_to_copy(rewriting, callee, found):
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
        trial_emissions = _TrialEmissions(rewriting, self._needs.kernel, parts)
        for body in (self._kernel, *chosen):
            body.trial_emissions = trial_emissions
        for function in chosen:
            name = function.callee.function.name
            if name in self._needs.taken:
                what = _reason_to_copy(rewriting, function.callee, function.found) or "calls"
                raise UnsupportedError(f"{what} in the called function {name}, whose address is taken")
        for body in (self._kernel, *chosen):
            callee = body.callee
            self._do_not_copy(callee.linkage, callee.function.name)
            for call in callee.calls:
                if call.callee in keys:
                    self._do_not_copy(callee.linkage, callee.module.code[call.start : call.end])
        return chosen

    def _do_not_copy(self, linkage: Linkage, name: str) -> None:
        """Remove the declarations of a function from the statements that the twin copies unchanged, since it is written
        anew."""
        is_kernels_module = linkage.number == self._needs.kernel.linkage.number
        statements = self._needs.statements if is_kernels_module else self._needs.elsewhere.get(linkage.number, set())
        statements -= linkage.declarations(name)

    def _nothing_matches(self) -> str:
        """A message for a kernel without sites: what the probes look for, and which opcodes come close."""
        probes = self._rewriting.probes.probes
        patterns = [pattern for probe in probes for pattern in probe.tracepoint.patterns]
        near = near_misses(self._needs.kernel.module, self._needs.kernel.body, patterns)
        return (
            "no instruction matches "
            + ", ".join(sorted({probe.tracepoint.text for probe in probes}))
            + near
            + (": the text has no line information" if self._kernel.found.lacks_lines else "")
        )

    def _replace_variables(self, bodies: Sequence[_Body]) -> bool:
        """Check that all bodies can reach the module's variables by their addresses, as a twin has to. Raises
        ObstacleError.

        The result does not depend on the probes. Returns whether a generic load in the kernel may read a constant: some
        body makes generic addresses of these.
        """
        by_address = self._needs.by_address
        order = {variable.name: index for index, variable in enumerate(by_address)}
        try:
            # A list and no generator for `any`: each of them has to be checked.
            point_to_constants = [body.replace_variables(order) for body in bodies]
            if any(variable.space == "const" for variable in by_address):
                for callee in (self._needs.kernel, *self._needs.functions):
                    check_given_addresses(callee)
        except UnsupportedError as error:
            raise ObstacleError(str(error)) from None
        return any(point_to_constants)

    def _check_calls(self, functions: Sequence[_Body]) -> None:
        """Raise UnsupportedError for calls and functions that cannot be passed the kernel's state, found out by a
        trial.
        """
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


def _reason_to_copy(rewriting: Rewriting, callee: Callee, found: Found) -> str | None:
    """Why a function that a kernel calls needs a copy with probes, for a message; None if at most a function that it
    calls does."""
    first = found.hits[0].statement if found.hits else None
    # An ``exit`` ends the thread there, so that the code at ends of threads goes before it.
    if first is None and rewriting.facts.has_end_work:
        leaving = map(callee.body.statement, callee.body.leaving)
        first = next((statement for statement in leaving if statement.word == "exit"), None)
    if first is not None:
        return f"line {callee.module.line(first.position)}: {first.opcode}"
    if found.fault is not None:
        return found.fault
    places = [(place.at, place.text) for place in found.spots] + [(place.at, place.text) for place in found.unreachable]
    if places:
        at, text = places[0]
        return f"line {callee.module.line(at)}: {text}"
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
        """Prepare to plan where probes' code goes in one function body. found: the instructions that probes match;
        around: the probes at its entry and ends. is_kernel: whether it is the kernel's own body."""
        self.callee = callee
        self.found = found
        self.is_kernel = is_kernel
        # Of a kernel; its functions get those that are made when these are known.
        self.trial_emissions = _TrialEmissions(rewriting, callee, ())
        self.at_entry = [(probe, probe.before) for probe in around if probe.before]
        self.at_ends = [(probe, probe.after) for probe in around if probe.after]
        self.sites = SiteList(callee.function.name, callee.module, found.places)
        self._rewriting = rewriting
        self._variables: dict[str, str] = {}
        self._placed: tuple[Placed, ...] = ()
        self._spots: tuple[Spot, ...] = ()
        self._site_groups: SiteGroups | None = None

    def replace_variables(self, order: Mapping[str, int]) -> bool:
        """Check by a trial that code can reach the body's module variables by their addresses. Raises UnsupportedError.

        Returns whether the body makes generic addresses of constants. order: by name, the index in the probe block.
        """
        if not self.callee.variables:
            return False
        for name in sorted((variable.name for variable in self.callee.variables), key=order.__getitem__):
            self._variables[name] = self.emission.variable(order[name])
        edits = Edits()  # thrown away
        pass_by_address(self.callee, self._variables, edits)
        return read_through_global_memory(self.callee, edits)

    @lazy
    def snippets(self) -> tuple[tuple[Snippet, Level], ...]:
        """The snippets that the body will hold, each with its probe's level (whether threads, warps or blocks run it).
        """
        around = [(snippet, probe.level) for probe, snippet in (*self.at_entry, *self.at_ends)]
        at_instructions = [
            (snippet, probe.level)
            for probe in self._rewriting.facts.in_order(self.found.probes)
            for snippet in (probe.before, probe.after) if snippet is not None
        ]  # fmt: skip
        return (*around, *at_instructions)

    def needed_version(self) -> tuple[int, int]:
        """Return the ``.version`` (of the PTX language) that the body's snippets need. Raises UnsupportedError."""
        versions = self._rewriting.tried.versions
        needed = [(0, 0)]
        for snippet, _ in self.snippets:
            if id(snippet) not in versions:
                try:
                    versions[id(snippet)] = needed_version(snippet, self._rewriting.architecture)
                except UnsupportedError as error:
                    probe = self._rewriting.facts.probe_of(snippet)
                    raise UnsupportedError(f"probe '{probe}': {error}", error.remedy) from None
            needed.append(versions[id(snippet)])
        return max(needed)

    def check_parameters(self) -> None:
        """Raise UnsupportedError where its probes read parameters that the kernel does not have."""
        around = (probe for probe, _ in (*self.at_entry, *self.at_ends))
        for probe in self._rewriting.facts.in_order((*around, *self.found.probes)):
            for element in parameters_of(probe):
                try:
                    self.trial_emissions.parameters.find(element)
                except UnsupportedError as error:
                    raise UnsupportedError(f"probe '{probe.name}': {error}", error.remedy) from None

    @property
    def emission(self) -> Emission:
        """What writes code of this body on trial: it is thrown away, to see whether it can be written."""
        return self.trial_emissions.emissions[self.callee.key]

    def place_sites(self, *, points_to_constants: bool) -> None:
        """Find where the code at the body's instructions goes. Raises UnsupportedError, PtxError.

        points_to_constants: a generic load in the kernel may read a constant.
        """
        if self.found:
            sites = SitePlanner(
                self._rewriting, self.callee, self.found.places, self.sites, lambda: self.emission, self._variables,
                self.trial_emissions.parameters_shape, points_to_constants=points_to_constants,
            )  # fmt: skip
            self._site_groups = SiteGroups(self.callee.body)
            self._placed, self._spots = sites.place_all(self.found, self._site_groups)

    def check_names(self) -> None:
        """Raise UnsupportedError if the function's module has names that are reserved for probes' registers.

        They are chosen to occur in no text of the kernel's module; the function may be of another one.
        """
        prefix = self._rewriting.names.prefix
        if prefix in self.callee.module.text:
            raise UnsupportedError(f"the module of {self.callee.function.name} has names with {prefix}")

    @lazy
    def ends(self) -> tuple[End, ...]:
        """Where threads leave the body."""
        return all_ends(self.callee.body)

    def list_around(self, directive: str, ends: Sequence[End]) -> None:
        """List the body's entry and ends as sites of the probes that have code there. directive: ``.entry`` or
        ``.func``.

        Raises UnsupportedError for a snippet whose code cannot be written there.
        """
        function = self.callee.function
        checked = self._rewriting.tried.around
        for probe, snippet in (*self.at_entry, *self.at_ends):
            key = id(snippet), self.trial_emissions.parameters_shape
            if key not in checked:
                operands = PlaceOperands.around(self.emission.scratch, LaneMasks([]))
                self.emission.snippet(snippet, operands, level=probe.level)
                checked.add(key)
        for probe, _ in self.at_entry:
            line = self.callee.module.line(function.name_end)
            self.sites.add(Shown(line, f"{directive} {function.name}"), [probe])
        self.list_ends(ends, [probe for probe, _ in self.at_ends])

    def list_ends(self, ends: Sequence[End], probes: Sequence[Probe]) -> None:
        """List the given ends of the body, where threads leave it, as sites of probes."""
        if probes:
            for end in ends:
                self.sites.add(Shown(self.callee.module.line(end.at), end.shown), probes)

    def plan(self, *, points_to_constants: bool) -> BodyPlan:
        """Return the plan of the body, once all steps are done."""
        return BodyPlan(
            self.callee, self.found, tuple(self.at_entry), tuple(self.at_ends), self.snippets, self.ends,
            self._placed, self._spots, self._site_groups, points_to_constants, self.sites,
        )  # fmt: skip


class _TrialEmissions:
    """Emissions for trials, one per body: for code that is thrown away, to see whether it can be written.

    They are made when first asked for: few kernels need them. bodies: of each body, the kernel's first, the key of its
    callee, whether it is the kernel's, and its snippets. parameters: the kernel's. Not the bodies themselves, which
    refer to this object: such a cycle would leave every plan to the garbage collector.
    """

    def __init__(
        self,
        rewriting: Rewriting,
        kernel: Callee,
        bodies: Sequence[tuple[tuple[int, str], bool, tuple[tuple[Snippet, Level], ...]]],
    ) -> None:
        """Note for which bodies code may be written on trial, to see whether it can be. Parameters: see the class."""
        self._rewriting = rewriting
        self._bodies = bodies
        self.parameters = Parameters(kernel)

    @property
    def parameters_shape(self) -> Hashable:
        """What of the kernel's parameters decides whether code can be written: nothing if no probe reads them."""
        return self.parameters.shape if self._rewriting.facts.reads_parameters else None

    @lazy
    def emissions(self) -> dict[tuple[int, str], Emission]:
        """What writes code on trial, by the key of the function that the body is of."""
        rewriting, names = self._rewriting, self._rewriting.names
        emissions: dict[tuple[int, str], Emission] = {}
        kernel: Emission | None = None
        for key, is_kernel, snippets in self._bodies:
            block = names.block if is_kernel else names.state_address
            emission = Emission(
                rewriting.probes, names.prefix, block, rewriting.architecture, self.parameters, kernel
            )
            # The first body is the kernel's; the emissions of its functions refer to it.
            kernel = kernel or emission
            emissions[key] = emission
            for snippet, level in snippets:
                emission.note_snippet(snippet, level)
        return emissions
