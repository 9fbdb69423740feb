"""What a kernel and the functions that it calls have in common while they are written, one body and its edits; and the
copy of a function that a kernel calls, with probes in it (``functions.py`` says what copies are).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.ptx.analysis.linkage import Call, Callee
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.ends import End
from neutrino.ptx.instrument.functions import FunctionCopy, State, around_call, copy_header, copy_name, pass_address
from neutrino.ptx.instrument.module_variables import pass_by_address, read_through_global_memory
from neutrino.ptx.instrument.plan import BodyPlan
from neutrino.ptx.instrument.registers import Kept
from neutrino.ptx.instrument.rewriting import Rewriting
from neutrino.ptx.instrument.site_writer import RunWriter, SiteWriter
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.edits import Edits, after

_DECLARATIONS = re.compile(r"(?:\s*\.(?:reg|shared|local|param|pragma)\b[^;{}]*;)*", re.ASCII)


def close(edits: Edits, code: str, end: End, closing: Sequence[str], label: str) -> None:
    """Put instructions before an end; around them a branch for the threads that do not end there.

    code: the module's blanked text. label: for that branch, used nowhere else.
    """
    lines = closing
    if end.guard:
        predicate = end.guard.strip()[1:].strip()
        other = predicate[1:].strip() if predicate.startswith("!") else f"!{predicate}"
        lines = [f"@{other} bra {label};", *closing]
        edits.insert(code.find(";", end.at) + 1, f"\n{label}:")
    edits.insert_before(end.at, lines)


def insert_at_entry(edits: Edits, body: Body, lines: Sequence[str]) -> None:
    """Put instructions before all others of a body, behind its declarations."""
    if lines:
        match = _DECLARATIONS.match(body.code, body.start + 1, body.end)
        edits.insert_first(match.end() if match else body.start + 1, after(lines))


_Key = tuple[int, str]


class BodyRewriter:
    """Writes one body. Its steps are called from ``KernelRewriter.run``, each for all bodies before the next.

    plan: what goes where. emission: writes its code. order: of module variables in the probe block.
    """

    def __init__(
        self, rewriting: Rewriting, plan: BodyPlan, emission: Emission, order: Mapping[str, int]
    ) -> None:
        self.rewriting = rewriting
        self.plan = plan
        self.callee = plan.callee
        self.emission = emission
        self.edits = Edits()
        # Code at the entry, and registers that have their values at ends of the thread alone.
        self.opening: list[str] = []
        self.loaded_late: set[str] = set()
        self._variables: dict[str, str] = {}
        self._labels = 0
        self._order = order

    def replace_variables(self) -> None:
        """Have it reach module variables by their addresses."""
        order = self._order
        for name in sorted((variable.name for variable in self.callee.variables), key=order.__getitem__):
            self._variables[name] = self.emission.variable(order[name])
        pass_by_address(self.callee, self._variables, self.edits)
        read_through_global_memory(self.callee, self.edits)

    def note_snippets(self) -> None:
        """Tell the emission which snippets the body will hold."""
        for snippet, level in self.plan.snippets:
            self.emission.note_snippet(snippet, level)

    def write_sites(self, *, alone: bool = False) -> None:
        """The code at all its sites. alone: of a kernel that calls no copies. Raises UnsupportedError, PtxError."""
        writer = SiteWriter(
            self.callee,
            self.rewriting.facts,
            self.emission,
            self.edits,
            variables=self._variables,
            places=self.plan.found.places,
        )
        for placed in self.plan.placed:
            writer.write_snippets(placed)
        RunWriter(self.callee.body, self.plan.runs, self.rewriting.facts, self.emission, self.edits).write(alone=alone)

    def write_entry(self) -> None:
        """The snippets at its entry."""
        mark = self.emission.scratch.mark()
        for probe, snippet in self.plan.at_entry:
            self.opening += self.emission.snippet(snippet, level=probe.level).all
        self.emission.scratch.release(mark)

    def snippets(self, given: Sequence[tuple[Probe, Snippet]], *, ending: bool = False) -> list[str]:
        """The code of snippets that name no instruction. ending: as of ``Emission.snippet``."""
        code = (self.emission.snippet(snippet, level=probe.level, ending=ending) for probe, snippet in given)
        return [line for one in code for line in one.all]

    def close_all(self, ends: Sequence[End], closing: list[str], counted: Mapping[str, int]) -> None:
        """The same code before each of some ends. counted: the arithmetic before that code was written."""
        for mnemonic, count in self.emission.arithmetic.items():
            self.emission.arithmetic[mnemonic] += (count - counted.get(mnemonic, 0)) * (len(ends) - 1)
        if closing:
            for end in ends:
                label = f"{self.rewriting.names.label}{self._labels}"
                close(self.edits, self.callee.module.code, end, closing, label)
                self._labels += 1

    def pass_state(
        self,
        state: State,
        base: str,
        names: Mapping[_Key, str],
        used: Mapping[_Key, set[str]],
        changed: Mapping[_Key, set[str]],
    ) -> None:
        """Have the calls go to copies, and the state stored before and loaded behind them.

        base: where the state is, for this body. names: of the copies. used, changed: the registers that each function
        names and changes, with all that it calls. Raises UnsupportedError.
        """
        body, address = self.callee.body, self.rewriting.names.state_address
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
            here = self.kept_from_entry()
            stored = needed & self.newer_than_state()
            stores = state.store(base, [kept for kept in here if kept.name in stored], scratch)
            loads = state.load(base, [kept for kept in here if kept.name in touched], scratch)
            self.edits.insert_before(start, stores)
            if loads:
                self.edits.insert_first(end, after(loads))
            scratch.release(mark)

    def newer_than_state(self) -> set[str]:
        """What may be another value in the registers than in the state: in a kernel all that it keeps."""
        return {entry.name for entry in self.emission.kept}

    def kept_from_entry(self) -> list[Kept]:
        """What lives in registers of the body from its entry on."""
        return [entry for entry in self.emission.kept if entry.name not in self.loaded_late]


class FunctionRewriter(BodyRewriter):
    """Writes the copy of one function for one kernel."""

    def __init__(
        self, rewriting: Rewriting, kernel: BodyRewriter, plan: BodyPlan, order: Mapping[str, int]
    ) -> None:
        self._kernel = kernel
        self._address = rewriting.names.state_address
        emission = Emission(
            rewriting.probes, rewriting.names.prefix, self._address, rewriting.architecture, kernel.emission
        )
        super().__init__(rewriting, plan, emission, order)

    @cached_property
    def copy_name(self) -> str:
        """The copy's name."""
        return copy_name(self.callee, self._kernel.callee)

    def write_around(self) -> None:
        """The snippets at its entry and its returns."""
        scratch = self.emission.scratch
        mark = scratch.mark()
        self.write_entry()
        counted = dict(self.emission.arithmetic)
        closing = self.snippets(self.plan.at_ends)
        if self.plan.at_ends:
            self.close_all(self.returns, closing, counted)
        scratch.release(mark)

    def write_exits(self, state: State) -> None:
        """The code at ends of the thread, which are the kernel's."""
        exits = [end for end in self.plan.ends if end.is_exit]
        if not exits:
            return
        of_kernel = [(probe, snippet) for probe, snippet in self._kernel.plan.at_ends if probe.tracepoint.is_kernel]
        counted = dict(self.emission.arithmetic)
        known = {kept.name for kept in self.emission.kept}
        closing = self.snippets(of_kernel)
        if self.emission.has_end:
            closing += self.emission.end()
        # What only the ends name is loaded there: most calls return.
        only_here = [kept for kept in self.emission.kept if kept.name not in known]
        self.loaded_late = {kept.name for kept in only_here}
        closing = state.load(self._address, only_here, self.emission.scratch) + closing
        self.close_all(exits, closing, counted)

    def load_and_store(self, state: State) -> None:
        """Load at the entry what it keeps, and store at the returns what may have changed."""
        kept = self.kept_from_entry()
        newer = self.newer_than_state()
        scratch = self.emission.scratch
        mark = scratch.mark()
        loads = state.load(self._address, kept, scratch)
        scratch.release(mark)
        stores = state.store(self._address, [entry for entry in kept if entry.name in newer], scratch)
        declarations, first = self.emission.function_entry()
        for end in self.returns:
            self.edits.insert_before(end.at, stores)
        insert_at_entry(self.edits, self.callee.body, declarations + first + loads + self.opening)

    def copy(self, users: Iterable[Callee], *, is_recursive: bool) -> FunctionCopy:
        """What it came to. users: the kernel and all functions that it calls. Raises UnsupportedError."""
        callee, module = self.callee, self.callee.module
        numbers = {
            user.linkage.number for user in users if any(call.callee == callee.key for call in user.calls)
        }
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
            dict(self.emission.arithmetic),
            is_recursive,
        )

    def newer_than_state(self) -> set[str]:
        """It has loaded all at its entry: what it may have changed since."""
        return self.emission.registers.changed

    @cached_property
    def returns(self) -> list[End]:
        """Where it goes back to what called it."""
        return [end for end in self.plan.ends if not end.is_exit]
