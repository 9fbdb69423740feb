"""Twins of the kernels of a module, and of a program: of modules that the device linker has put together.

A kernel of a program may call functions and name variables of other modules. Its twin takes the functions along, each
in the module that it is from, so that every module is assembled by itself and with its own options, as the originals
were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from neutrino.abi.reasons import Reason
from neutrino.errors import PtxError
from neutrino.lazy import lazy
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.ptx.analysis.linkage import Linkage, ObstacleError
from neutrino.ptx.instrument.module_parts import FunctionCopy
from neutrino.ptx.instrument.plan import KernelPlan, ModulePlan, plan_kernel, refusal_of
from neutrino.ptx.instrument.registers import UnsupportedError
from neutrino.ptx.instrument.rewriting import Rewriting, SkipError, module_obstacle
from neutrino.ptx.instrument.twin import TwinKernel, TwinModule, own_twin
from neutrino.ptx.instrument.twin_bodies import write_twin
from neutrino.ptx.text.module import Function, Module, ModuleStatement
from neutrino.twins.probe_units import Found, ProbeUnit, Refusal, left_out, search, searched, units_of
from neutrino.twins.values import SkippedKernel, Twin


def plan_module(
    module: Module,
    probes: ProbeSet,
    *,
    names: Collection[str] | None = None,
    version: tuple[int, int] | None = None,
    linkage: Linkage | None = None,
    demangle: Callable[[str], str] | None = None,
) -> ModulePlan:
    """Find where the probes go in a module's kernels.

    names: plan only these kernels; None plans all. Others are neither planned nor skipped. version: the highest
    ``.version`` that a twin may have where it needs a higher one than the module's; None: the module's own. linkage: of
    a module that is linked with others. demangle: returns a function's name as written in the source, for ``func:``.
    Raises PtxError when the text has no ``.version`` or no ``.target sm_``.
    """
    linkage = linkage or Linkage(module)
    rewriting = Rewriting(linkage, probes, version=version, demangle=demangle)
    kernels = []
    skipped = []
    chosen = [entry for entry in module.entries if entry.body is not None and (names is None or entry.name in names)]
    obstacle = module_obstacle(linkage) if chosen else None
    for entry in chosen:
        if obstacle is not None:
            skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, obstacle))
            continue
        try:
            kernels.append(plan_kernel(rewriting, entry))
        except SkipError as skip:
            skipped.append(SkippedKernel(entry.name, skip.reason, skip.detail))
        except UnsupportedError as error:
            remedy = f" (what helps: {error.remedy})" if error.remedy else ""
            skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, f"{error}{remedy}"))
        except (ObstacleError, PtxError) as error:
            skipped.append(SkippedKernel(entry.name, Reason.UNSUPPORTED, str(error)))
    return ModulePlan(module, tuple(kernels), tuple(skipped))


class FewerProbes:
    """Twins of a planned kernel with fewer probes than the plan has, for what shows only after it;
    ``TwinsWithFewer``."""

    def __init__(self, plan: KernelPlan) -> None:
        """Prepare to make twins (copies of a kernel) with fewer probes than a plan has. plan: the plan."""
        self._plan = plan

    @lazy
    def _probes(self) -> list[Probe]:
        """The probes with a site (a place where their code goes) in the kernel."""
        with_sites = {site.probe for site in self._plan.sites}
        return [probe for probe in self._plan.rewriting.probes.probes if probe.name in with_sites]

    @lazy
    def units(self) -> tuple[ProbeUnit, ...]:
        """The probes with a site in the kernel, in units of those that can be left out together."""
        return units_of(self._probes)

    def twin(self, names: Collection[str]) -> TwinKernel | Refusal:
        """Write the twin with those of its probes that have these names; return it, or why there is none."""
        plan = self._plan
        try:
            return write_twin(plan_kernel(plan.rewriting.only(names), plan.needs.kernel.function))
        except (SkipError, UnsupportedError, PtxError) as error:
            return refusal_of(error)

    def with_notes(self, twin: Twin, found: Found) -> TwinKernel:
        """Return a twin with fewer probes together with notes on those that a search left out."""
        earlier = *self._plan.probes_left_out, *twin.probes_left_out
        return replace(own_twin(twin), probes_left_out=(*earlier, *left_out(self._probes, self.units, found, {})))


def write_module(plan: ModulePlan) -> TwinModule:
    """Write the planned twins. The result's ``skipped``: those of the plan, then those that could not be written."""
    kernels = []
    skipped = list(plan.skipped)
    for kernel in plan.kernels:
        try:
            kernels.append(write_twin(kernel))
        except (UnsupportedError, PtxError) as error:
            # The plan has missed a reason. As it would have done, without the probes that it concerns.
            refusal = refusal_of(error)
            twin = _write_with_fewer(FewerProbes(kernel), refusal)
            if twin is None:
                skipped.append(SkippedKernel(kernel.name, refusal.reason, refusal.detail))
            else:
                kernels.append(twin)
    return TwinModule(plan.module, tuple(kernels), tuple(skipped))


def _write_with_fewer(fewer: FewerProbes, refusal: Refusal) -> TwinKernel | None:
    """Write the twin (instrumented kernel) with as many of its probes as possible; None without any. refusal: why not
    with all."""

    def why_not(names: Collection[str]) -> Refusal | None:
        """Why the twin cannot be written with these probes; None if it can."""
        twin = fewer.twin(names)
        return twin if isinstance(twin, Refusal) else None

    found = searched(search(fewer.units, refusal), why_not)
    twin = fewer.twin(found.kept) if found.kept else refusal
    return fewer.with_notes(twin, found) if isinstance(twin, TwinKernel) else None


def probe_module(
    module: Module,
    probes: ProbeSet,
    *,
    names: Collection[str] | None = None,
    version: tuple[int, int] | None = None,
    linkage: Linkage | None = None,
    demangle: Callable[[str], str] | None = None,
) -> TwinModule:
    """Plan and write the twins (copies with probes) of a module's kernels. Parameters and errors are those of
    ``plan_module``.
    """
    return write_module(plan_module(module, probes, names=names, version=version, linkage=linkage, demangle=demangle))


class Program:
    """The PTX modules that were linked into one image of machine code; implements ``linkage.Surroundings``.

    functions: the names of the image's functions. own: by module, in the order of modules, the names of those that are
    from it. variables: the names of the image's variables, each as often as it occurs. missing: a message about what of
    the image none of the modules defines; "" when they define all of it.
    """

    def __init__(
        self,
        modules: Sequence[Module],
        *,
        functions: Collection[str],
        own: Sequence[Collection[str]],
        variables: Sequence[str],
        missing: str = "",
    ) -> None:
        """Describe a program of PTX modules that were linked into one image of machine code.

        functions, variables: names of the image's. own: by module, the names of the functions that are from it.
        missing: what none of the modules defines, as a message; "" without such.
        """
        self.modules = tuple(modules)
        self.linkages = tuple(Linkage(module, self, number) for number, module in enumerate(modules))
        self._functions = functions
        self._own = tuple(own)
        self._variables = variables
        self._missing = missing
        # What `addresses_taken` gave.
        self._taken: frozenset[str] | None = None
        # By name, the definitions that other modules can refer to: those with a linkage directive.
        self._definitions: dict[str, list[tuple[Linkage, Function]]] = {}
        for linkage in self.linkages:
            for function in linkage.module.functions:
                if function.body is not None and function.linkage:
                    self._definitions.setdefault(function.name, []).append((linkage, function))

    def definition(self, user: Linkage, name: str) -> tuple[Linkage, Function] | None:
        """The function that a name in a module refers to in the linked image, with its module; None when no module
        defines it.

        Several modules may define it: C++ templates are in each module that uses them, and the linker keeps one. Raises
        ObstacleError when the definitions differ, or when the image lacks the function or has it from elsewhere than
        these modules. user: the module.
        """
        # All definitions that the name may mean, that of user's own module first.
        local = user.module.symbols.get(name)
        is_local = isinstance(local, Function) and local.body is not None
        definitions = [(user, local)] if is_local and isinstance(local, Function) else []
        # A function without a linkage directive is static: then the name means the module's own and no other.
        if not definitions or definitions[0][1].linkage:
            definitions += [entry for entry in self._definitions.get(name, ()) if entry not in definitions]
        if not definitions:
            return None
        if name in self._functions:
            if not any(name in self._own[linkage.number] for linkage, _ in definitions):
                raise ObstacleError(f"it calls the function {name}, and what was linked is another of that name")
        elif not is_local:
            # One that user's module defines may be inlined everywhere, so that the image need not have it.
            raise ObstacleError(f"it calls the function {name}, which the linked code does not have")
        has_several = len(definitions) > 1
        if has_several and len({normalized_with_callees(*definition) for definition in definitions}) > 1:
            raise ObstacleError(f"it calls the function {name}, which translation units define differently")
        return definitions[0]

    def check_address(self, name: str) -> None:
        """Raise ObstacleError unless exactly one variable of the linked image has a name, so that the driver can give
        its address."""
        count = self._variables.count(name)
        if count != 1:
            raise ObstacleError(f"it uses the variable {name}, and the linked code has {count or 'none'} of that name")

    def addresses_taken(self) -> frozenset[str]:
        """Return the functions whose address any of the linked modules takes. Raises ObstacleError when not all modules
        are known."""
        if self._missing:
            raise ObstacleError(f"it calls functions by pointers, and {self._missing}")
        if self._taken is None:
            self._taken = frozenset[str]().union(*(linkage.addresses_taken() for linkage in self.linkages))
        return self._taken


# Labels and stack frames carry numbers that count through the module (LLVM's NVPTX backend).
_NUMBERED = re.compile(r"((?<![\w$])(?:\$L__[A-Za-z_]+|BB|__local_depot))\d+", re.ASCII)


def normalized(module: Module, function: Function) -> str:
    """Return a function's text in a normal form, to find out whether two modules have the same function.

    Left out are white space, comments, line information, and the numbers in names of labels and stack frames.
    """
    text = module.code[function.statement.start : function.statement.end]
    return "".join(_NUMBERED.sub(r"\1", text).split())


def normalized_with_callees(linkage: Linkage, function: Function) -> tuple[str, ...]:
    """Return a function's normalized text, then those of the static functions that it calls or names, directly or not.

    Two definitions in different modules are the same function if these are equal. A static function of one name may be
    another in each module. Functions that are not static are one in the image: ``Program.definition`` compares them
    when it is asked for them. The texts of callees are sorted by name.
    """
    by_name: dict[str, str] = {}
    waiting = [function]
    while waiting:
        user = waiting.pop()
        by_name[user.name] = normalized(linkage.module, user)
        _, names = linkage.symbols_used(user)
        for name in names:
            symbol = linkage.module.symbols[name]
            if isinstance(symbol, Function) and symbol.body is not None and not symbol.linkage and name not in by_name:
                waiting.append(symbol)
    return by_name.pop(function.name), *(by_name[name] for name in sorted(by_name))


@dataclass(frozen=True)
class TwinProgram:
    """The twins of a program's kernels, and the kernels that got none. modules: in the program's order."""

    modules: tuple[TwinModule, ...]
    skipped: tuple[SkippedKernel, ...]

    @property
    def kernels(self) -> tuple[TwinKernel, ...]:
        """The twins (copies of kernels with probes) of all modules of the program."""
        return tuple(kernel for module in self.modules for kernel in module.kernels)

    def render(
        self, names: Collection[str] | None = None, max_registers: Mapping[str, int] | None = None
    ) -> dict[int, str]:
        """Return the complete PTX of the modules that hold the named kernels' twins or that these need, by module
        number.

        names: the originals' names, all by default. max_registers: the most registers per thread of a twin, by the
        original's name; no limit for others.
        """
        chosen = [[kernel for kernel in module.kernels if names is None or kernel.name in names]
                  for module in self.modules]  # fmt: skip
        # By the module's number, what twins of other modules need of it: statements, copies of its functions; and the
        # copies of other modules' functions that its code calls.
        needed: dict[int, set[ModuleStatement]] = {}
        copies: dict[int, list[FunctionCopy]] = {}
        external: dict[int, list[FunctionCopy]] = {}
        for kernels in chosen:
            for kernel in kernels:
                for number, statements in kernel.elsewhere.items():
                    needed.setdefault(number, set()).update(statements)
                for number, function_copies in kernel.copies_elsewhere.items():
                    copies.setdefault(number, []).extend(function_copies)
                for copy in kernel.all_copies:
                    for number in copy.callers:
                        external.setdefault(number, []).append(copy)
        return {
            number: module.render_unit(
                kernels,
                needed.get(number, ()),
                max_registers,
                copies=copies.get(number, ()),
                external=external.get(number, ()),
            )
            for number, (module, kernels) in enumerate(zip(self.modules, chosen, strict=True))
            if kernels or needed.get(number) or copies.get(number)
        }


@dataclass(frozen=True)
class ProgramPlan:
    """The plans of a program's kernels. modules: in the program's order."""

    modules: tuple[ModulePlan, ...]

    @property
    def kernels(self) -> tuple[KernelPlan, ...]:
        """The plans of the kernels that get twins (copies with probes)."""
        return tuple(kernel for module in self.modules for kernel in module.kernels)

    @property
    def skipped(self) -> tuple[SkippedKernel, ...]:
        """The kernels of all modules that get no twin (copy with probes), with the reasons."""
        return tuple(skipped for module in self.modules for skipped in module.skipped)


def plan_program(
    program: Program,
    probes: ProbeSet,
    *,
    kernels: Mapping[str, int],
    version: tuple[int, int] | None = None,
    demangle: Callable[[str], str] | None = None,
) -> ProgramPlan:
    """Find where the probes go in a program's kernels.

    kernels: by name, the number of the module to take each from. version, demangle: see ``plan_module``.
    """
    modules = []
    for number, (module, linkage) in enumerate(zip(program.modules, program.linkages, strict=True)):
        names = [name for name, module_number in kernels.items() if module_number == number]
        try:
            plan = plan_module(module, probes, names=names, version=version, linkage=linkage, demangle=demangle)
        except PtxError as error:
            # The module cannot be read: its kernels get no twins, those of the others may.
            plan = ModulePlan(module, (), tuple(SkippedKernel(name, Reason.UNSUPPORTED, str(error)) for name in names))
        modules.append(plan)
    return ProgramPlan(tuple(modules))


def write_program(plan: ProgramPlan) -> TwinProgram:
    """Write the planned twins (copies of kernels with probes) of all modules of a program."""
    modules = tuple(write_module(module) for module in plan.modules)
    return TwinProgram(modules, tuple(skipped for module in modules for skipped in module.skipped))


def probe_program(
    program: Program,
    probes: ProbeSet,
    *,
    kernels: Mapping[str, int],
    version: tuple[int, int] | None = None,
    demangle: Callable[[str], str] | None = None,
) -> TwinProgram:
    """Plan and write the twins (copies with probes) of a program's kernels. Parameters are those of ``plan_program``.
    """
    return write_program(plan_program(program, probes, kernels=kernels, version=version, demangle=demangle))
