"""What a kernel and the functions that it calls have in common while they are written: one body and its edits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.ptx.analysis.linkage import Call, Callee
from neutrino.ptx.analysis.matching import Found
from neutrino.ptx.instrument.constant_space import read_through_global_memory
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.ends import End, close
from neutrino.ptx.instrument.functions import State, around_call, pass_address
from neutrino.ptx.instrument.private_registers import Kept
from neutrino.ptx.instrument.rewriting import Rewriting
from neutrino.ptx.instrument.site_list import Shown, SiteList
from neutrino.ptx.instrument.site_writer import SiteWriter
from neutrino.ptx.instrument.variables import pass_by_address
from neutrino.ptx.text.edits import Edits, behind

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
