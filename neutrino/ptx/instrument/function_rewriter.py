"""The copy of a function that a kernel calls, with probes in it (``functions.py`` says what copies are)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from neutrino.ptx.analysis.linkage import Callee
from neutrino.ptx.analysis.matching import Found
from neutrino.ptx.instrument.body_rewriter import BodyRewriter
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.ends import End, find_ends, insert_at_entry
from neutrino.ptx.instrument.functions import FunctionCopy, State, copy_header, copy_name
from neutrino.ptx.instrument.rewriting import Rewriting
from neutrino.ptx.instrument.values import UnsupportedError


class FunctionRewriter(BodyRewriter):
    """Writes the copy of one function for one kernel. found: what it holds, numbered behind the kernel's sites."""

    def __init__(self, rewriting: Rewriting, kernel: BodyRewriter, callee: Callee, found: Found) -> None:
        self._kernel = kernel
        self._address = rewriting.names.state_address
        emission = Emission(
            rewriting.probes, rewriting.names.prefix, self._address, rewriting.architecture, kernel.emission
        )
        around = rewriting.matcher.function_probes(callee.function.name)
        super().__init__(rewriting, callee, found, emission, around)
        self.is_tracepoint = bool(around)

    @property
    def is_concerned(self) -> bool:
        """It needs a copy whatever it calls."""
        return self.concern is not None

    @property
    def concern(self) -> str | None:
        """What of it asks for a copy; None when nothing does."""
        first = self.found.hits[0].statement if self.found.hits else None
        if first is None and self.rewriting.facts.has_end_work:
            first = next((statement for statement in self.found.ends if statement.word == "exit"), None)
        if first is not None:
            return f"line {self.callee.module.line(first.position)}: {first.opcode}"
        if self.callee.variables:
            return f"the variable {self.callee.variables[0].name}"
        return "a tracepoint" if self.is_tracepoint else None

    @cached_property
    def copy_name(self) -> str:
        """The copy's name. Raises UnsupportedError when a module has it already."""
        return copy_name(self.callee, self._kernel.callee)

    def write_around(self) -> None:
        """The snippets at its entry and its returns. Raises UnsupportedError."""
        prefix = self.rewriting.names.prefix
        if prefix in self.callee.module.text:
            raise UnsupportedError(f"the module of {self.callee.function.name} has names with {prefix}")
        scratch = self.emission.scratch
        mark = scratch.mark()
        self.write_entry(".func")
        counted = dict(self.emission.arithmetic)
        closing = self.snippets(self.at_ends)
        if self.at_ends:
            self.close_all(self.returns, closing, [probe for probe, _ in self.at_ends], counted)
        scratch.release(mark)

    def write_exits(self, state: State) -> None:
        """The code at ends of the thread, which are the kernel's. Raises UnsupportedError."""
        exits = [end for end in self._ends if end.is_exit]
        if not exits:
            return
        of_kernel = [(probe, snippet) for probe, snippet in self._kernel.at_ends if probe.tracepoint.is_kernel]
        counted = dict(self.emission.arithmetic)
        known = {kept.name for kept in self.emission.kept}
        closing = self.snippets(of_kernel)
        if self.emission.has_end:
            closing += self.emission.end()
        # What only the ends name is loaded there: most calls return.
        only_here = [kept for kept in self.emission.kept if kept.name not in known]
        self.loaded_late = {kept.name for kept in only_here}
        closing = state.load(self._address, only_here, self.emission.scratch) + closing
        self.close_all(exits, closing, [probe for probe, _ in of_kernel], counted)

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
            self.edits.ahead_of(end.at, stores)
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
    def _ends(self) -> list[End]:
        return find_ends(self.callee.body, self.found.ends)

    @cached_property
    def returns(self) -> list[End]:
        """Where it goes back to what called it."""
        return [end for end in self._ends if not end.is_exit]
