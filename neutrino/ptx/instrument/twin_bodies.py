"""Writes the bodies of one twin, as edits of the originals': that of the kernel, and those of the functions that it
calls and that get copies (``module_parts.py`` says what copies are).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from neutrino.abi.structures import align_up
from neutrino.lazy import lazy
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.ptx.analysis.flow_graph import End
from neutrino.ptx.analysis.linkage import Call, Callee
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.lanes_together import LaneMasks
from neutrino.ptx.instrument.log_code import needs_lanes_together, place_rooms
from neutrino.ptx.instrument.module_parts import (
    FunctionCopy,
    Parameters,
    State,
    around_call,
    copy_header,
    copy_name,
    names_in_calls,
    pass_address,
    pass_by_address,
    read_through_global_memory,
)
from neutrino.ptx.instrument.plan import BodyPlan, KernelPlan
from neutrino.ptx.instrument.registers import LongLived
from neutrino.ptx.instrument.rewriting import Rewriting
from neutrino.ptx.instrument.settled_clocks import settle_clocks
from neutrino.ptx.instrument.site_values import PlaceOperands
from neutrino.ptx.instrument.site_writer import SiteGroupWriter, SiteWriter
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.isa.instruction import machine_arithmetic
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.inserted import Declaration, Edits, Line, Lines, after, op
from neutrino.ptx.text.module import Function, Module


def close(edits: Edits, code: str, end: End, closing: Sequence[Line], label: str) -> None:
    """Insert instructions for the threads that end at a place: before a ``ret``, an ``exit`` or a function's closing
    brace.

    Of an end under a predicate the other threads branch over the instructions and the end. code: the module's text with
    comments blanked. closing: the instructions. label: the target of that branch, a name that is used nowhere else.
    """
    lines = closing
    if end.guard:
        # "@%p exit": the threads for which the opposite holds go to a label after it. [1:]: without the "@".
        predicate = end.guard.strip()[1:].strip()
        opposite = predicate[1:].strip() if predicate.startswith("!") else f"!{predicate}"
        lines = [op("bra", label, when=opposite), *closing]
        edits.insert(code.find(";", end.at) + 1, f"\n{label}:")
    edits.insert_before(end.at, lines)


def insert_at_entry(edits: Edits, body: Body, lines: Sequence[Line]) -> None:
    """Insert instructions at the beginning of a function's body, after its declarations, which they may refer to."""
    if lines:
        edits.insert_first(body.entry, after(lines))


_Key = tuple[int, str]
"""Of a function, ``Callee.key``: its module's number and its name."""


class BodyRewriter:
    """Writes one function body of a kernel's twin (instrumented copy), as edits of the original's.

    Its steps are called from ``KernelRewriter.run``, each for all bodies before the next. plan: what to insert where.
    emission: writes the code. order: by name, a module variable's index in the probe block.
    """

    def __init__(self, rewriting: Rewriting, plan: BodyPlan, emission: Emission, order: Mapping[str, int]) -> None:
        """Prepare to write one function body of a twin (instrumented copy of a kernel).

        order: by module variable, its place in the probe block.
        """
        self.rewriting = rewriting
        self.plan = plan
        self.callee = plan.callee
        self.emission = emission
        self.edits = Edits()
        # Code of snippets at the entry; and the kept registers that only code at ends of the thread names, so that they
        # are loaded there and not at the entry.
        self.opening: Lines = []
        self.loaded_late: set[str] = set()
        # By module variable, the register with its address.
        self._variables: dict[str, str] = {}
        # How many labels were used, which numbers the next one.
        self._labels = 0
        self._order = order
        # Whether code that ends a basic block may stand at a position; set with the code of sites.
        self.is_clear: Callable[[int], bool] = lambda position: True

    def replace_variables(self) -> None:
        """Replace the module's variables that the body names by registers with their addresses, as the twin uses the
        original's.

        Loads of constants become loads from global memory, where the twin finds them.
        """
        order = self._order
        for name in sorted((variable.name for variable in self.callee.variables), key=order.__getitem__):
            self._variables[name] = self.emission.variable(order[name])
        pass_by_address(self.callee, self._variables, self.edits)
        read_through_global_memory(self.callee, self.edits)

    def note_snippets(self) -> None:
        """Announce to the emission which snippets (probes' code) the body will hold; see ``Emission.note_snippet``."""
        for snippet, level in self.plan.snippets:
            self.emission.note_snippet(snippet, level)

    def write_sites(self, *, alone: bool = False) -> None:
        """Insert the code of probes at all sites (matched instructions and places) of the body.

        alone: see ``SiteGroupWriter.write``. Raises UnsupportedError, PtxError.
        """
        writer = SiteWriter(
            self.callee,
            self.rewriting.facts,
            self.emission,
            self.edits,
            variables=self._variables,
            places=self.plan.found.places,
            # The code of places between instructions is written before that of the others.
            together=0 if self.plan.spots else self.emission.saves_together(len(self.plan.placed)),
        )
        # First, so that it stands before the code of the instruction that follows the place.
        for spot in self.plan.spots:
            writer.write_spot(spot)
        for placed in self.plan.placed:
            writer.write_snippets(placed)
        writer.write_collected()
        self.is_clear = writer.is_clear
        groups = SiteGroupWriter(
            self.callee.body, self.plan.site_groups, self.rewriting.facts, self.emission, self.edits
        )
        groups.write(alone=alone)

    def write_entry(self) -> None:
        """Write the code of probes for the body's entry into ``opening``. It is inserted later: declarations come
        before it."""
        mark = self.emission.scratch.mark()
        self.opening += self.snippets(self.plan.at_entry)
        self.emission.scratch.release(mark)

    def snippets(self, given: Sequence[tuple[Probe, Snippet]], *, ending: bool = False) -> Lines:
        """Return the PTX of snippets (probes' code) at no particular instruction, as at a kernel's entry or ends.

        ending: see ``Emission.snippet``.
        """
        lines: Lines = []
        masks = LaneMasks(lines)
        for probe, snippet in given:
            operands = PlaceOperands.around(self.emission.scratch, masks)
            code = self.emission.snippet(snippet, operands, level=probe.level, ending=ending)
            lines += operands.here + code.all
        return masks.first + lines

    @property
    def arithmetic(self) -> Counter[str]:
        """How many floating-point instructions are inserted, by SASS mnemonic, to compare the counts of twin and
        original."""
        counts: Counter[str] = Counter()
        for opcode, count in Counter(self.edits.inserted_opcodes()).items():
            for mnemonic in machine_arithmetic(opcode):
                counts[mnemonic] += count
        return counts

    def close_all(self, ends: Sequence[End], closing: Lines) -> None:
        """Insert the same code before each of some ends of a body: each ``ret`` or ``exit``, or the closing brace."""
        if closing:
            for end in ends:
                # Used only for an end under a predicate.
                label = f"{self.rewriting.names.label}{self._labels}"
                close(self.edits, self.callee.module.code, end, closing, label)
                self._labels += 1

    def place_rooms(self) -> None:
        """Insert the tests whether logs have memory for the records to come, once the code of all sites and ends is
        written."""
        if not self.emission.has_logs:
            return
        scratch = self.emission.scratch
        mark = scratch.mark()
        # They may stand within code that has registers in use.
        scratch.skip_used()
        self.opening = place_rooms(self.callee.body, self.edits, self.opening, self.emission.room_code)
        scratch.release(mark)

    def pass_state(
        self,
        state: State,
        base: str,
        names: Mapping[_Key, str],
        used: Mapping[_Key, set[str]],
        changed: Mapping[_Key, set[str]],
    ) -> None:
        """Have calls go to the copies of functions with probes, and pass them the kernel's state (values of long-lived
        registers).

        It is stored in memory before each call, and loaded after it. base: the state's address, as this body has it:
        the variable's name or a register. names: of the copies, by the function's key. used, changed: by the function's
        key, names of the registers that it names and changes, those of the functions that it calls included. Raises
        UnsupportedError for a call of an unknown form.
        """
        body, address = self.callee.body, self.rewriting.names.state_address
        # By start and end of a call sequence, before and after which the state is stored and loaded, the calls in it.
        sequences: dict[tuple[int, int], list[Call]] = {}
        for call in self.callee.calls:
            if call.callee in names:
                self.edits.replace(call.start, call.end, names[call.callee])
                self.edits.insert(*pass_address(body, call, address))
                sequences.setdefault(around_call(body, call), []).append(call)
        scratch = self.emission.scratch
        for (start, end), calls in sequences.items():
            mark = scratch.mark()
            needed = set().union(*(used[call.callee] for call in calls))
            touched = set().union(*(changed[call.callee] for call in calls))
            # Only what this body has in registers itself: the rest of the state is in memory already.
            registers = self.long_lived_from_entry()
            stored = needed & self.newer_than_state()
            stores = state.store(base, [kept for kept in registers if kept.name in stored], scratch)
            loads = state.load(base, [kept for kept in registers if kept.name in touched], scratch)
            self.edits.insert_before(start, stores)
            if loads:
                self.edits.insert_first(end, after(loads))
            scratch.release(mark)

    def newer_than_state(self) -> set[str]:
        """Return the names of the registers whose values in memory may be out of date, so that they are stored before a
        call.

        In a kernel these are all that live to its end.
        """
        return {entry.name for entry in self.emission.long_lived}

    def long_lived_from_entry(self) -> list[LongLived]:
        """The registers of probes, sums and maps that hold their values from this body's entry on."""
        return [entry for entry in self.emission.long_lived if entry.name not in self.loaded_late]


class FunctionRewriter(BodyRewriter):
    """Writes the copy, with probes, of one function that a kernel calls.

    Its code gets the address of the kernel's state (values of long-lived registers) as one more argument, loads from
    there the registers that it names, and stores those that it changes.
    """

    def __init__(self, rewriting: Rewriting, kernel: BodyRewriter, plan: BodyPlan, order: Mapping[str, int]) -> None:
        """Prepare to write the instrumented copy of a function that a kernel calls. kernel: what writes the kernel.

        order: by module variable, its place in the probe block.
        """
        self._kernel = kernel
        self._address = rewriting.names.state_address
        emission = Emission(
            rewriting.probes, rewriting.names.prefix, self._address, rewriting.architecture,
            Parameters(kernel.callee), kernel.emission,
        )  # fmt: skip
        super().__init__(rewriting, plan, emission, order)

    @lazy
    def copy_name(self) -> str:
        """The name of this kernel's own copy of the function, with probes."""
        return copy_name(self.callee, self._kernel.callee)

    def write_around(self) -> None:
        """Write the code of probes on this function as a whole: at its entry, and at its returns to the caller."""
        scratch = self.emission.scratch
        mark = scratch.mark()
        self.write_entry()
        closing = self.snippets(self.plan.at_ends)
        if self.plan.at_ends:
            self.close_all(self.returns, closing)
        scratch.release(mark)

    def write_exits(self, state: State) -> None:
        """Insert the code for the kernel's ends where this function ends the thread itself (``exit``).

        The thread does not come to an end of the kernel any more. state: its layout, to load what that code needs.
        """
        exits = [end for end in self.plan.ends if end.is_exit]
        if not exits:
            return
        of_kernel = [(probe, snippet) for probe, snippet in self._kernel.plan.at_ends if probe.tracepoint.is_kernel]
        named_before = {kept.name for kept in self.emission.long_lived}
        closing = self.snippets(of_kernel)
        if self.emission.has_end:
            closing += self.emission.end()
        # What only the ends name is loaded there and not at the entry: most calls return.
        only_at_exits = [kept for kept in self.emission.long_lived if kept.name not in named_before]
        self.loaded_late = {kept.name for kept in only_at_exits}
        closing = state.load(self._address, only_at_exits, self.emission.scratch) + closing
        self.close_all(exits, closing)

    def load_and_store(self, state: State) -> None:
        """Insert loads of the long-lived registers that the function names, and stores of those that it changes.

        The loads are at its entry, the stores at its returns; they go to and from the kernel's state in memory. state:
        gives each register its place there. Called when all other code is written, since this declares what that code
        names.
        """
        kept = self.long_lived_from_entry()
        newer = self.newer_than_state()
        scratch = self.emission.scratch
        # Loads and stores may use the same scratch registers: the loads are done when the stores are executed.
        mark = scratch.mark()
        loads = state.load(self._address, kept, scratch)
        scratch.release(mark)
        stores = state.store(self._address, [entry for entry in kept if entry.name in newer], scratch)
        declarations, first = self.emission.function_entry()
        for end in self.returns:
            self.edits.insert_before(end.at, stores)
        insert_at_entry(self.edits, self.callee.body, declarations + first + loads + self.opening)

    def copy(self, users: Iterable[Callee], *, is_recursive: bool) -> FunctionCopy:
        """Return the finished copy of the function. users: the kernel and all functions that it calls. Raises
        UnsupportedError.

        is_recursive: this one calls itself, directly or not.
        """
        callee, module = self.callee, self.callee.module
        settle_clocks(callee.body, self.edits, self.is_clear, is_kernel=False)
        # Numbers of the modules that call it; it has to be visible to those other than its own.
        numbers = {user.linkage.number for user in users if any(call.callee == callee.key for call in user.calls)}
        callers = frozenset(numbers - {callee.linkage.number})
        header, prototype = copy_header(callee, self.copy_name, self._address, visible=bool(callers))
        statement = callee.function.statement
        return FunctionCopy(
            callee.function.name,
            self.copy_name,
            module.source(statement),
            header + self.edits.apply(module.text, callee.body.start, statement.end),
            prototype,
            statement,
            callers,
            dict(self.arithmetic),
            is_recursive,
        )

    def newer_than_state(self) -> set[str]:
        """Return the names of registers whose values in the kernel's state may be out of date: those that this function
        changes.

        It has loaded all of them at its entry.
        """
        return self.emission.registers.changed

    @lazy
    def returns(self) -> list[End]:
        """The ends where the function returns to its caller, not those of the thread."""
        return [end for end in self.plan.ends if not end.is_exit]


# PTX ISA, "bar.warp.sync": before, lanes meet wherever ways meet.
_MEET = 70
_BLOCK_ALIGN = 8  # of the probe block, see abi/probe_block.py


def twin_header(module: Module, kernel: Function, body_start: int, twin_name: str, block: str, size: int) -> str:
    """Return the text of a twin before its body: the kernel's, with the twin's name and one more parameter.

    That is the probe block, by which code of probes finds the maps. body_start: position of the kernel's body in the
    module's text. twin_name: begins with the kernel's name. block: the parameter's name. size: its bytes.
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
        """Prepare to write the twin (instrumented copy) of a kernel as a plan says."""
        rewriting, names = plan.rewriting, plan.rewriting.names
        order = {variable.name: index for index, variable in enumerate(plan.needs.by_address)}
        parameters = Parameters(plan.kernel.callee)
        emission = Emission(
            rewriting.probes, names.prefix, names.block, rewriting.architecture, parameters, sites=plan.next_site
        )
        if emission.has_logs and rewriting.architecture >= _MEET:
            bodies = (function.body for function in (plan.kernel.callee, *plan.needs.functions))
            collective = any(rewriting.facts.holds_collective(probe) for probe in rewriting.probes.probes)
            if collective or needs_lanes_together(bodies):
                emission.keep_lanes_together()
        super().__init__(rewriting, plan.kernel, emission, order)
        self.whole = plan
        self.needs = plan.needs
        self._functions = tuple(FunctionRewriter(rewriting, self, function, order) for function in plan.functions)

    def run(self) -> TwinKernel:
        """Write the twin (the kernel's copy with probes); return it. Raises the errors of ``write_twin``."""
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
        """Write the code of probes at the kernel's entry and ends, and what adds sums and counts to memory at the ends.
        """
        self.write_entry()
        at_ends = self.plan.at_ends
        closing = self.emission.sums.update_registers(snippet for _, snippet in at_ends)
        closing += self.snippets(at_ends, ending=True)
        if self.emission.has_end:
            closing += self.emission.end()
        self.close_all(self.plan.ends if closing or at_ends else (), closing)

    def _share_state(
        self, state: State, functions: Sequence[FunctionRewriter]
    ) -> tuple[Lines, Lines, set[tuple[int, str]]]:
        """Write the code that passes the kernel's state (probe block and long-lived registers) to its functions and
        back.

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
        kept = {body.callee.key: {entry.name for entry in body.emission.long_lived} for body in bodies}
        changed = {body.callee.key: body.emission.registers.changed for body in bodies}
        # The same, with those of all functions that are called from there.
        used, may_change = names_in_calls(calls, kept), names_in_calls(calls, changed)
        self.pass_state(state, place, names, used, may_change)
        for function in functions:
            function.pass_state(state, address, names, used, may_change)
        # By key, all functions that are called from there, directly or not: a recursive one is among its own.
        called = names_in_calls(calls, calls)
        for function in functions:
            function.load_and_store(state)
        # Registers that only functions name get their first values in the kernel's entry, and go to the state at once.
        of_kernel = {entry.name for entry in self.emission.long_lived}
        of_functions = {entry.name: entry for function in functions for entry in function.emission.long_lived}
        setup: Lines = []
        for entry in (entry for name, entry in of_functions.items() if name not in of_kernel):
            self.emission.declare_for_functions(entry)
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
        """Put the finished twin together, once all bodies are written. copies: of functions, with their modules'
        numbers."""
        callee, needs, module, plan = self.callee, self.needs, self.callee.module, self.whole
        kernel = callee.function
        header = twin_header(
            module, kernel, callee.body.start, plan.twin_name, self.rewriting.names.block, plan.block_size
        )
        settle_clocks(callee.body, self.edits, self.is_clear, is_kernel=True)
        own_arithmetic: Counter[str] = Counter()
        for body in bodies:
            own_arithmetic.update(body.arithmetic)
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
            own_arithmetic=dict(own_arithmetic),
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
