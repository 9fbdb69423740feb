"""One kernel's twin: the steps from its text to the twin's, of the kernel itself and of the functions that it calls."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.abi.probe_block import block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.structures import align_up
from neutrino.ptx.analysis.linkage import Linkage, Needs
from neutrino.ptx.analysis.matching import near_misses
from neutrino.ptx.instrument.body_rewriter import BodyRewriter, FunctionRewriter, find_ends, insert_at_entry
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.functions import FunctionCopy, State, concerned, reach
from neutrino.ptx.instrument.module_variables import check_given_addresses
from neutrino.ptx.instrument.registers import SUFFIX, UnsupportedError
from neutrino.ptx.instrument.rewriting import Rewriting, SkipError, check_text
from neutrino.ptx.instrument.twin import LeftOut, TwinKernel
from neutrino.ptx.text.edits import Edits
from neutrino.ptx.text.module import Function, Module, Parameter

_ALIGN = 8

# PTX ISA, "Kernel Function Parameters": bytes of parameter space, by version and architecture.
_SMALL = 4352
_LARGE = 32764
_LARGE_VERSION = (8, 1)
_LARGE_ARCHITECTURE = 70


def block_offset(used: int) -> int:
    """Where the block lies, in bytes. used: bytes of the kernel's own parameters."""
    return align_up(used, _ALIGN)


def version_with_room(
    needed: int, own: tuple[int, int], highest: tuple[int, int], architecture: int
) -> tuple[int, int]:
    """The lowest ``.version``, from own to highest, that has parameter space for that many bytes.

    Raises SkipError when none has.
    """
    large = architecture >= _LARGE_ARCHITECTURE
    if needed <= (_LARGE if large and own >= _LARGE_VERSION else _SMALL):
        return own
    if large and highest >= _LARGE_VERSION and needed <= _LARGE:
        return max(own, _LARGE_VERSION)
    limit = _LARGE if large and highest >= _LARGE_VERSION else _SMALL
    raise SkipError(Reason.PARAMETERS, f"{needed} bytes of parameters with the probe block, {limit} fit")


def twin_header(module: Module, kernel: Function, body_start: int, twin_name: str, block: str, size: int) -> str:
    """A kernel's text before its body with the twin's name, which begins with the kernel's, and its last parameter.

    block: the parameter's name; size: its bytes.
    """
    edits = Edits()
    edits.insert(kernel.name_end, twin_name[len(kernel.name) :])
    parameter = f".param .align {_ALIGN} .b8 {block}[{size}]"
    if kernel.parameters is None:
        edits.insert(kernel.name_end, f"(\n\t{parameter}\n)")
    else:
        start, end = kernel.parameters
        given = module.code[start:end].rstrip()
        separator = ",\n\t" if given else "\n\t"
        edits.insert(start + len(given), f"{separator}{parameter}\n")
    return edits.apply(module.text, kernel.statement.start, body_start)


def write_twin(rewriting: Rewriting, needs: Needs) -> TwinKernel:
    """The twin of a kernel. Raises SkipError, UnsupportedError, PtxError: why it gets none."""
    twin_name = needs.kernel.function.name + SUFFIX
    if twin_name in rewriting.module.symbols:
        raise SkipError(Reason.UNSUPPORTED, f"the module has a {twin_name} already")
    for callee in (needs.kernel, *needs.functions):
        check_text(callee.module, callee.body)
    return KernelRewriter(rewriting, needs, twin_name).run()


class KernelRewriter(BodyRewriter):
    """Writes one twin. needs: of its module."""

    def __init__(self, rewriting: Rewriting, needs: Needs, twin_name: str) -> None:
        matcher, names = rewriting.matcher, rewriting.names
        around = rewriting.facts.in_order((
            *matcher.kernel_probes,
            *matcher.function_probes(needs.kernel.function.name),
        ))  # fmt: skip
        emission = Emission(rewriting.probes, names.prefix, names.block, rewriting.architecture)
        super().__init__(rewriting, needs.kernel, rewriting.find(needs.kernel), emission, around)
        self.needs = needs
        self._twin_name = twin_name
        self._size = block_size(len(rewriting.probes.maps), len(needs.by_address))

    def run(self) -> TwinKernel:
        """All steps in order. Raises as ``write_twin``."""
        functions = self._functions()
        bodies = (self, *functions)
        around = any(body.at_entry or body.at_ends for body in bodies)
        if not around and not any(body.found.hits for body in bodies):
            raise SkipError(Reason.NO_SITE, self._nothing_matches())
        rewriting = self.rewriting
        parameters, used = rewriting.module.parameter_layout(self.callee.function)
        offset = block_offset(used)
        version = version_with_room(
            offset + self._size, rewriting.version, rewriting.highest, rewriting.architecture
        )
        self._replace_variables(bodies)
        for body in bodies:
            body.note_snippets()
        version = max(version, *(body.emission.version for body in bodies))
        if version > rewriting.highest:
            raise UnsupportedError(f"a probe needs PTX ISA {version[0]}.{version[1]}, which the driver does not take")
        for body in bodies:
            body.write_sites(alone=not functions)
        for function in functions:
            function.write_around()
        left_out = tuple(entry for body in bodies for entry in body.left_out)
        if not around and not any(body.list for body in bodies):
            first = left_out[0]
            raise SkipError(Reason.NO_SITE, f"line {first.line}: {first.instruction!r}: {first.reason}")
        copies = self._write_ends(functions)
        return self._twin(parameters, offset, version, bodies, left_out, copies)

    def _functions(self) -> tuple[FunctionRewriter, ...]:
        """The called functions that get copies: with sites, ends of the thread, module variables, or calls of such.

        What declares them, and the kernel, is not taken along otherwise.
        """
        found = {}
        number = self.found.next_number
        for callee in self.needs.functions:
            holds = self.rewriting.find_in_function(callee, number)
            number = holds.next_number if holds.hits else number
            found[callee.key] = FunctionRewriter(self.rewriting, self, callee, holds)
        keys = concerned(self.needs.functions, [key for key, function in found.items() if function.is_concerned])
        chosen = tuple(function for key, function in found.items() if key in keys)
        for function in chosen:
            name = function.callee.function.name
            if name in self.needs.taken:
                what = f"{function.concern or 'calls'} in the called function {name}"
                raise UnsupportedError(f"{what}, whose address is taken")
        for body in (self, *chosen):
            callee = body.callee
            self._leave(callee.linkage, callee.function.name)
            for call in callee.calls:
                if call.callee in keys:
                    self._leave(callee.linkage, callee.module.code[call.start : call.end])
        return chosen

    def _leave(self, linkage: Linkage, name: str) -> None:
        """Do not take along what declares a function of that name in a module: it gets a copy."""
        own = linkage.number == self.callee.linkage.number
        statements = self.needs.statements if own else self.needs.elsewhere.get(linkage.number, set())
        statements -= linkage.declarations(name)

    def _nothing_matches(self) -> str:
        """What the probes look for, and what there is instead."""
        probes = self.rewriting.probes.probes
        patterns = [pattern for probe in probes for pattern in probe.tracepoint.patterns]
        near = near_misses(self.callee.body, patterns)
        return (
            "no instruction matches "
            + ", ".join(sorted({probe.tracepoint.text for probe in probes}))
            + (f", but for the type: {', '.join(near)}" if near else "")
            + (": the text has no line information" if self.found.lacks_lines else "")
        )

    def _replace_variables(self, bodies: Sequence[BodyRewriter]) -> None:
        """Have all reach module variables by their addresses, in the order of the probe block."""
        order = {variable.name: index for index, variable in enumerate(self.needs.by_address)}
        for body in bodies:
            body.replace_variables(order)
        if any(variable.space == "const" for variable in self.needs.by_address):
            for callee in (self.callee, *self.needs.functions):
                check_given_addresses(callee)
        points_to_constants = any(body.points_to_constants for body in bodies)
        for body in bodies:
            body.points_to_constants = points_to_constants

    def _write_ends(self, functions: Sequence[FunctionRewriter]) -> list[tuple[int, FunctionCopy]]:
        """Entry and ends of the kernel, and what its functions need of it; their copies with their modules' numbers.

        The entry comes last: its declarations say what was used.
        """
        state = State(self._size)
        self._close_ends()
        for function in functions:
            function.write_exits(state)
        declarations, setup, recursive = self._share_state(state, functions) if functions else ([], [], set())
        own, first = self.emission.entry()
        insert_at_entry(self.edits, self.callee.body, own + declarations + first + setup + self.opening)
        users = (self.callee, *self.needs.functions)
        return [
            (function.callee.linkage.number, function.copy(users, is_recursive=function.callee.key in recursive))
            for function in functions
        ]

    def _close_ends(self) -> None:
        """The snippets at its entry, and code at its ends."""
        self.write_entry(".entry")
        counted = dict(self.emission.arithmetic)
        closing = self.emission.sums.settle(snippet for _, snippet in self.at_ends)
        closing += self.snippets(self.at_ends, ending=True)
        if self.emission.has_end:
            closing += self.emission.end()
        ends = find_ends(self.callee.body, self.found.ends) if closing or self.at_ends else []
        self.close_all(ends, closing, [probe for probe, _ in self.at_ends], counted)

    def _share_state(
        self, state: State, functions: Sequence[FunctionRewriter]
    ) -> tuple[list[str], list[str], set[tuple[int, str]]]:
        """Bring the kernel's state to its functions and back.

        Declarations and code for the kernel's entry, and the functions that call themselves, directly or not.
        """
        rewriting = self.rewriting
        address, place = rewriting.names.state_address, rewriting.names.state
        bodies: tuple[BodyRewriter, ...] = (self, *functions)
        names = {function.callee.key: function.copy_name for function in functions}
        calls = {body.callee.key: {call.callee for call in body.callee.calls} & names.keys() for body in bodies}
        kept = {body.callee.key: {entry.name for entry in body.emission.kept} for body in bodies}
        changed = {body.callee.key: body.emission.registers.changed for body in bodies}
        used, may_change = reach(calls, kept), reach(calls, changed)
        self.pass_state(state, place, names, used, may_change)
        for function in functions:
            function.pass_state(state, address, names, used, may_change)
        called = reach(calls, calls)
        for function in functions:
            function.load_and_store(state)
        known = {entry.name for entry in self.emission.kept}
        others = {entry.name: entry for function in functions for entry in function.emission.kept}
        setup: list[str] = []
        for entry in (entry for name, entry in others.items() if name not in known):
            self.emission.keep(entry)
            setup += state.store(place, [entry], self.emission.scratch)
        reads = {offset: kind for function in functions for offset, kind in function.emission.block.reads.items()}
        setup += self.emission.block.copy(reads, place, self.emission.scratch.take)
        setup.append(f"mov.u64 {address}, {place};")
        declarations = [f".reg .b64 {address};", f".local .align 16 .b8 {place}[{align_up(state.size, 16)}];"]
        return declarations, setup, {key for key in names if key in called[key]}

    def _twin(
        self,
        parameters: tuple[Parameter, ...],
        offset: int,
        version: tuple[int, int],
        bodies: Sequence[BodyRewriter],
        left_out: tuple[LeftOut, ...],
        copies: Sequence[tuple[int, FunctionCopy]],
    ) -> TwinKernel:
        """What it all came to. copies: with their modules' numbers."""
        callee, needs, module = self.callee, self.needs, self.callee.module
        kernel = callee.function
        header = twin_header(
            module, kernel, callee.body.start, self._twin_name, self.rewriting.names.block, self._size
        )
        own_arithmetic: dict[str, int] = {}
        for body in bodies:
            for mnemonic, count in body.emission.arithmetic.items():
                own_arithmetic[mnemonic] = own_arithmetic.get(mnemonic, 0) + count
        elsewhere: dict[int, list[FunctionCopy]] = {}
        for number, copy in copies:
            if number != callee.linkage.number:
                elsewhere.setdefault(number, []).append(copy)
        return TwinKernel(
            name=kernel.name,
            twin_name=self._twin_name,
            parameters=parameters,
            block_offset=offset,
            block_size=self._size,
            variables=tuple(variable.name for variable in needs.by_address),
            site_lists=tuple(body.list for body in bodies),
            own_arithmetic=own_arithmetic,
            original_text=module.source(kernel.statement),
            probed_text=header + self.edits.apply(module.text, callee.body.start, kernel.statement.end),
            version=version,
            statements=frozenset(needs.statements),
            statement=kernel.statement,
            header=len(header),
            bodies=(callee.body, *(function.body for function in needs.functions)),
            calls=tuple(function.function.name for function in needs.functions),
            elsewhere={number: frozenset(statements) for number, statements in needs.elsewhere.items()},
            self_contained=not (
                needs.by_address
                or needs.functions
                or needs.elsewhere
                or needs.statements - self.rewriting.private_statements
            ),
            left_out=left_out,
            copies=tuple(copy for number, copy in copies if number == callee.linkage.number),
            copies_elsewhere={number: tuple(made) for number, made in elsewhere.items()},
        )
