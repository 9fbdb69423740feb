"""Writes one kernel's twin: the steps from the texts of the kernel and of the functions that it calls to the twin's."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.abi.structures import align_up
from neutrino.ptx.instrument.body_rewriter import BodyRewriter, FunctionRewriter, insert_at_entry
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.functions import FunctionCopy, State, reach
from neutrino.ptx.instrument.log_room import needs_lanes_together
from neutrino.ptx.instrument.parameters import Parameters
from neutrino.ptx.instrument.plan import KernelPlan
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.text.inserted import Declaration, Edits, Lines, op
from neutrino.ptx.text.module import Function, Module

# PTX ISA, "bar.warp.sync": before, lanes meet wherever ways meet.
_MEET = 70
_BLOCK_ALIGN = 8  # of the probe block, see abi/probe_block.py


def twin_header(module: Module, kernel: Function, body_start: int, twin_name: str, block: str, size: int) -> str:
    """The text of a twin before its body: the kernel's, with the twin's name and one more parameter, the probe block.

    body_start: position of the kernel's body in the module's text. twin_name: begins with the kernel's name. block: the
    parameter's name; size: its bytes.
    """
    edits = Edits()
    edits.insert(kernel.name_end, twin_name[len(kernel.name) :])
    parameter = f".param .align {_BLOCK_ALIGN} .b8 {block}[{size}]"
    if kernel.parameters is None:
        edits.insert(kernel.name_end, f"(\n\t{parameter}\n)")
    else:
        start, end = kernel.parameters
        own_parameters = module.code[start:end].rstrip()
        separator = ",\n\t" if own_parameters else "\n\t"
        edits.insert(start + len(own_parameters), f"{separator}{parameter}\n")
    return edits.apply(module.text, kernel.statement.start, body_start)


def write_twin(plan: KernelPlan) -> TwinKernel:
    """Write the planned twin. Raises UnsupportedError, PtxError for a reason against it that the plan has missed."""
    return KernelRewriter(plan).run()


class KernelRewriter(BodyRewriter):
    """Writes one twin: the body of the kernel, and by ``FunctionRewriter`` those of the functions that get copies."""

    def __init__(self, plan: KernelPlan) -> None:
        rewriting, names = plan.rewriting, plan.rewriting.names
        order = {variable.name: index for index, variable in enumerate(plan.needs.by_address)}
        parameters = Parameters(plan.kernel.callee)
        emission = Emission(
            rewriting.probes, names.prefix, names.block, rewriting.architecture, parameters, sites=plan.next_site
        )
        bodies = (function.body for function in (plan.kernel.callee, *plan.needs.functions))
        collective = any(rewriting.facts.holds_collective(probe) for probe in rewriting.probes.probes)
        if rewriting.architecture >= _MEET and (collective or needs_lanes_together(bodies)):
            emission.keep_lanes_together()
        super().__init__(rewriting, plan.kernel, emission, order)
        self.whole = plan
        self.needs = plan.needs
        self._functions = tuple(FunctionRewriter(rewriting, self, function, order) for function in plan.functions)

    def run(self) -> TwinKernel:
        """Write the twin. Raises as ``write_twin``."""
        functions = self._functions
        bodies = (self, *functions)
        for body in bodies:
            body.replace_variables()
        # All snippets of all bodies are to be known before code is written: they share registers.
        for body in bodies:
            body.note_snippets()
        for body in bodies:
            body.write_sites(alone=not functions)
        for function in functions:
            function.write_around()
        return self._twin(bodies, self._write_ends(functions))

    def _write_ends(self, functions: Sequence[FunctionRewriter]) -> list[tuple[int, FunctionCopy]]:
        """Write the entry and ends of the kernel and of its functions, and the code that passes the kernel's state.

        Returns the functions' copies with their modules' numbers. The kernel's entry comes last: it declares the
        registers that all other code has used.
        """
        state = State(self.whole.block_size)
        self._close_ends()
        for function in functions:
            function.write_exits(state)
        for body in (self, *functions):
            body.place_rooms()
        # Before the state is shared, which has registers that are changed here; and before the code at the entry, which
        # declares all registers.
        opening = self.emission.begin() + self.opening
        declarations, setup, recursive = self._share_state(state, functions) if functions else ([], [], set())
        own_declarations, first = self.emission.entry()
        insert_at_entry(self.edits, self.callee.body, own_declarations + declarations + first + setup + opening)
        users = (self.callee, *self.needs.functions)
        return [
            (function.callee.linkage.number, function.copy(users, is_recursive=function.callee.key in recursive))
            for function in functions
        ]

    def _close_ends(self) -> None:
        """Write the snippets at the kernel's entry and ends, and, at the ends, the code that writes its sums and counts
        to memory."""
        self.write_entry()
        at_ends = self.plan.at_ends
        counted_before = dict(self.emission.arithmetic)
        closing = self.emission.sums.settle(snippet for _, snippet in at_ends)
        closing += self.snippets(at_ends, ending=True)
        if self.emission.has_end:
            closing += self.emission.end()
        self.close_all(self.plan.ends if closing or at_ends else (), closing, counted_before)

    def _share_state(
        self, state: State, functions: Sequence[FunctionRewriter]
    ) -> tuple[Lines, Lines, set[tuple[int, str]]]:
        """Write the code that passes the kernel's state (probe block and kept registers) to its functions and back, in
        all bodies.

        state: its layout, which gets an entry for each register that is passed. Returns declarations and instructions
        for the kernel's entry, and the keys of the functions that call themselves, directly or not.
        """
        rewriting = self.rewriting
        # The register with the state's address, which functions get as an argument; and the local variable that it is.
        address, place = rewriting.names.state_address, rewriting.names.state
        bodies: tuple[BodyRewriter, ...] = (self, *functions)
        names = {function.callee.key: function.copy_name for function in functions}
        # By the body's key: the copies that it calls, and the registers that it names and changes.
        calls = {body.callee.key: {call.callee for call in body.callee.calls} & names.keys() for body in bodies}
        kept = {body.callee.key: {entry.name for entry in body.emission.kept} for body in bodies}
        changed = {body.callee.key: body.emission.registers.changed for body in bodies}
        # The same, with those of all functions that are called from there.
        used, may_change = reach(calls, kept), reach(calls, changed)
        self.pass_state(state, place, names, used, may_change)
        for function in functions:
            function.pass_state(state, address, names, used, may_change)
        # By key, all functions that are called from there, directly or not: a recursive one is among its own.
        called = reach(calls, calls)
        for function in functions:
            function.load_and_store(state)
        # Registers that only functions name get their first values in the kernel's entry, and go to the state at once.
        of_kernel = {entry.name for entry in self.emission.kept}
        of_functions = {entry.name: entry for function in functions for entry in function.emission.kept}
        setup: Lines = []
        for entry in (entry for name, entry in of_functions.items() if name not in of_kernel):
            self.emission.keep(entry)
            setup += state.store(place, [entry], self.emission.scratch)
        # The words of the probe block that functions read: they have no access to the kernel's parameters.
        reads = {offset: kind for function in functions for offset, kind in function.emission.block.reads.items()}
        setup += self.emission.block.copy(reads, place)
        setup.append(op("mov.u64", address, place))
        declarations: Lines = [
            Declaration("reg", "b64", address),
            Declaration("local", "b8", place, align_up(state.size, 16), align=16),
        ]
        return declarations, setup, {key for key in names if key in called[key]}

    def _twin(self, bodies: Sequence[BodyRewriter], copies: Sequence[tuple[int, FunctionCopy]]) -> TwinKernel:
        """The finished twin, once all bodies are written. copies: with their modules' numbers."""
        callee, needs, module, plan = self.callee, self.needs, self.callee.module, self.whole
        kernel = callee.function
        header = twin_header(
            module, kernel, callee.body.start, plan.twin_name, self.rewriting.names.block, plan.block_size
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
            twin_name=plan.twin_name,
            parameters=plan.parameters,
            block_offset=plan.block_offset,
            block_size=plan.block_size,
            maps=self.emission.maps_of_twin(),
            variables=tuple(variable.name for variable in needs.by_address),
            site_lists=tuple(body.sites for body in plan.bodies),
            own_arithmetic=own_arithmetic,
            original_text=module.source(kernel.statement),
            probed_text=header + self.edits.apply(module.text, callee.body.start, kernel.statement.end),
            version=plan.version,
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
            left_out=plan.left_out,
            copies=tuple(copy for number, copy in copies if number == callee.linkage.number),
            copies_elsewhere={number: tuple(function_copies) for number, function_copies in elsewhere.items()},
            probes_left_out=plan.probes_left_out,
        )
