"""What a kernel and the functions that it calls have in common while they are written, one body and its edits; and the
copy of a function that a kernel calls, with probes in it (``functions.py`` says what copies are).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.ptx.analysis.linkage import Call, Callee
from neutrino.ptx.analysis.matching import Found
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.functions import FunctionCopy, State, around_call, copy_header, copy_name, pass_address
from neutrino.ptx.instrument.module_variables import pass_by_address, read_through_global_memory
from neutrino.ptx.instrument.registers import Kept, UnsupportedError
from neutrino.ptx.instrument.rewriting import Rewriting
from neutrino.ptx.instrument.site_writer import SiteWriter
from neutrino.ptx.instrument.twin import Shown, SiteList
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.edits import Edits, behind

_DECLARATIONS = re.compile(r"(?:\s*\.(?:reg|shared|local|param|pragma)\b[^;{}]*;)*", re.ASCII)


class End(NamedTuple):
    """Where threads leave a body. at: the position before which code goes. guard: ``@!%p`` as written, None without.

    shown: the instruction in one line, ``}`` where threads fall off the body.
    """

    at: int
    guard: str | None
    shown: str

    @property
    def is_exit(self) -> bool:
        """The thread ends here, in a called function too."""
        return self.shown.split()[-1].startswith("exit")


def find_ends(body: Body, leaving: Sequence[Statement]) -> list[End]:
    """Every end of a body, falling off it included. leaving: its ``ret`` and ``exit``, as in ``Found.ends``."""
    found = [End(statement.start, statement.guard, " ".join(statement.text.split())) for statement in leaving]
    if _is_fallen_off(body):
        found.append(End(body.end - 1, None, "}"))
    return found


def _is_fallen_off(body: Body) -> bool:
    """Control may come to the closing brace."""
    rest = len(body) - 1
    if rest == 0 or body.mnemonics[rest] is not None or any(label.before == rest for label in body.labels):
        return True
    last = body.statement(rest - 1)
    return last.guard is not None or last.mnemonic is None or not last.mnemonic.ends_block


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
    edits.ahead_of(end.at, lines)


def insert_at_entry(edits: Edits, body: Body, lines: Sequence[str]) -> None:
    """Put instructions before all others of a body, behind its declarations."""
    if lines:
        match = _DECLARATIONS.match(body.code, body.start + 1, body.end)
        edits.insert_first(match.end() if match else body.start + 1, behind(lines))


_Key = tuple[int, str]


class BodyRewriter:
    """Writes one body. Its steps are called from ``KernelRewriter.run``, each for all bodies before the next.

    found: what it holds. emission: writes its code. around: the probes at its entry and its ends.
    points_to_constants: a generic load may mean a constant.
    """

    def __init__(
        self, rewriting: Rewriting, callee: Callee, found: Found, emission: Emission, around: Sequence[Probe]
    ) -> None:
        self.rewriting = rewriting
        self.callee = callee
        self.found = found
        self.emission = emission
        self.edits = Edits()
        self.points_to_constants = False
        self.at_entry = [(probe, probe.before) for probe in around if probe.before]
        self.at_ends = [(probe, probe.after) for probe in around if probe.after]
        self.list = SiteList(callee.function.name, callee.module, found.places)
        self.left_out = self.list.left_out
        # Code at the entry, and registers that have their values at ends of the thread alone.
        self.opening: list[str] = []
        self.loaded_late: set[str] = set()
        self._variables: dict[str, str] = {}
        self._labels = 0

    def replace_variables(self, order: Mapping[str, int]) -> None:
        """Have it reach module variables by their addresses. order: of the variables in the probe block.

        Raises UnsupportedError.
        """
        for name in sorted((variable.name for variable in self.callee.variables), key=order.__getitem__):
            self._variables[name] = self.emission.variable(order[name])
        pass_by_address(self.callee, self._variables, self.edits)
        self.points_to_constants = read_through_global_memory(self.callee, self.edits)

    def note_snippets(self) -> None:
        """Tell the emission which snippets the body will hold. Raises UnsupportedError."""
        for probe, snippet in (*self.at_entry, *self.at_ends):
            self.emission.note_snippet(snippet, probe.level)
        for probe in self.rewriting.facts.in_order(self.found.probes):
            for side in (probe.before, probe.after):
                if side is not None:
                    self.emission.note_snippet(side, probe.level)

    def write_sites(self, *, alone: bool = False) -> None:
        """The code at all its sites. alone: of a kernel that calls no copies. Raises UnsupportedError, PtxError."""
        writer = SiteWriter(
            self.callee,
            self.rewriting.facts,
            self.rewriting.additions,
            self.emission,
            self.edits,
            self.list,
            variables=self._variables,
            places=self.found.places,
            points_to_constants=self.points_to_constants,
        )
        for hit in self.found.hits:
            writer.write(hit)
        writer.write_runs(alone=alone)

    def write_entry(self, directive: str) -> None:
        """The snippets at its entry. directive: ``.entry`` or ``.func``, as sites show it."""
        function = self.callee.function
        mark = self.emission.scratch.mark()
        for probe, snippet in self.at_entry:
            self.opening += self.emission.snippet(snippet, level=probe.level).all
            line = self.callee.module.line(function.name_end)
            self.list.add(Shown(line, f"{directive} {function.name}"), [probe])
        self.emission.scratch.release(mark)

    def snippets(self, given: Sequence[tuple[Probe, Snippet]], *, ending: bool = False) -> list[str]:
        """The code of snippets that name no instruction. ending: as of ``Emission.snippet``."""
        code = (self.emission.snippet(snippet, level=probe.level, ending=ending) for probe, snippet in given)
        return [line for one in code for line in one.all]

    def close_all(
        self, ends: Sequence[End], closing: list[str], probes: Sequence[Probe], counted: Mapping[str, int]
    ) -> None:
        """The same code before each of some ends. counted: the arithmetic before that code was written."""
        for mnemonic, count in self.emission.arithmetic.items():
            self.emission.arithmetic[mnemonic] += (count - counted.get(mnemonic, 0)) * (len(ends) - 1)
        for end in ends:
            if closing:
                label = f"{self.rewriting.names.label}{self._labels}"
                close(self.edits, self.callee.module.code, end, closing, label)
                self._labels += 1
            self.list.add(Shown(self.callee.module.line(end.at), end.shown), probes)

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
            self.edits.ahead_of(start, stores)
            if loads:
                self.edits.insert_first(end, behind(loads))
            scratch.release(mark)

    def newer_than_state(self) -> set[str]:
        """What may be another value in the registers than in the state: in a kernel all that it keeps."""
        return {entry.name for entry in self.emission.kept}

    def kept_from_entry(self) -> list[Kept]:
        """What lives in registers of the body from its entry on."""
        return [entry for entry in self.emission.kept if entry.name not in self.loaded_late]


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
