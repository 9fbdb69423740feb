"""Code of probes at instructions: before and after them, with the values that they read of them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.gcn.analysis.branch_decisions import Decision, NoDecisionError, decision_of, is_conditional
from neutrino.gcn.analysis.liveness import Liveness
from neutrino.gcn.analysis.placement import Placement
from neutrino.gcn.code import Function, Instruction
from neutrino.gcn.instrument.additions import Additions
from neutrino.gcn.instrument.code import Mask, NoRegistersError, Scalar, Value, Vector
from neutrino.gcn.instrument.compute import UNIFORM_OPERANDS, CannotError, varying
from neutrino.gcn.instrument.counting import count, sums_of
from neutrino.gcn.instrument.frame import Frame, Here
from neutrino.gcn.instrument.probe_registers import all_in, exchanges_values, names_in, operands_in, written_in
from neutrino.gcn.instrument.site_operands import NoValueError
from neutrino.gcn.instrument.site_values import SiteValues
from neutrino.gcn.instrument.snippet import SnippetCode
from neutrino.gcn.isa.effects import effects
from neutrino.gcn.isa.registers import VECTORS
from neutrino.gcn.operation_names import division_steps, operations_of
from neutrino.gcn.snippets.opcodes import WHOLE, Part, matched_parts
from neutrino.ir.operands import Register, SiteOperand, Special
from neutrino.ir.statements import IsGlobal, Load
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import Statement
from neutrino.probing.model import Lanes


@dataclass(frozen=True)
class Piece:
    """Code at a place. offset: of the instruction that it is in front of. ahead_of_label: as of an ``Insertion``."""

    offset: int
    lines: list[str]
    ahead_of_label: bool = True


@dataclass(frozen=True)
class NotProbed:
    """A site that a probe cannot go to. offset: the instruction's. reason: why. kind: a word by which such sites are
    counted: ``value``, ``registers``."""

    probe: str
    offset: int
    reason: str
    kind: str


class SiteSnippets:
    """Writes the code of probes at a function's instructions.

    place: returns where code goes whose place is in front of an instruction. vectors: names of shared registers that
    differ between lanes. label: returns what a snippet's labels begin with. scratch: offsets of the
    instructions that access scratch memory as a buffer. problems: why probes cannot go to instructions, as far as that
    has been found out of the function; it is added to.
    """

    def __init__(
        self, frame: Frame, function: Function, liveness: Liveness, probes: ProbeSet, *, place: Callable[[int], int],
        vectors: Collection[str], label: Callable[[], str], scratch: Collection[int],
        problems: dict[tuple[int, int, Part], str],
    ) -> None:  # fmt: skip
        """Set up the writer. Parameters: see the class."""
        self._problems = problems
        self._frame, self._function, self._liveness, self._probes = frame, function, liveness, probes
        self._place, self._vectors, self._label = place, vectors, label
        self._scratch = scratch
        self._kept_words: dict[int, int] = {}
        """By place, words that are kept from there on: sites of a clause keep theirs all together."""
        self._placement = Placement(function)
        self._steps = division_steps(function)
        self._generation = frame.machine.generation
        self.not_probed: list[NotProbed] = []

    def code(
        self, instruction: Instruction, probe: Probe, number: int, additions: Additions | None = None
    ) -> Iterator[Piece]:
        """Yield the code of a probe at an instruction. number: the site's. additions: all that the probe does, if these
        are to be counted for all lanes together.

        A site that has no place for it, or not the values that it reads, is noted in ``not_probed``. Raises CannotError
        for what is possible nowhere.
        """
        pieces: list[Piece] = []
        for part in self.parts(instruction, probe):
            decision, reason = self._decision(instruction, probe)
            values = SiteValues(
                self._function, instruction, self._frame.machine, placement=self._placement, site=number,
                is_scratch=instruction.offset in self._scratch, part=part, decision=decision,
            )  # fmt: skip
            kind = "value"
            reason = reason or self._problem(instruction, probe, values)
            if not reason:
                try:
                    pieces += self._pieces(instruction, probe, values, number, additions, decision)
                except (NoValueError, NoRegistersError) as error:
                    reason = str(error)
                    kind = "registers" if isinstance(error, NoRegistersError) else "value"
            if reason:
                # All of its operations are left out together.
                self.not_probed.append(NotProbed(probe.name, instruction.offset, reason, kind))
                return
        yield from pieces

    def parts(self, instruction: Instruction, probe: Probe) -> tuple[Part, ...]:
        """Return what of an instruction a probe is at: all of it, but for one that consists of several operations."""
        if not operations_of(instruction):
            return (WHOLE,)
        return matched_parts(probe.tracepoint, instruction, steps=self._steps) or (WHOLE,)

    def _decision(self, instruction: Instruction, probe: Probe) -> tuple[Decision | None, str]:
        """Return where the lanes part that a probe at a conditional branch is for, if it is for all that reach it; None
        for others. And why that cannot be told, "" if it can."""
        if probe.lanes is not Lanes.REACHING or not is_conditional(instruction.mnemonic):
            return None, ""
        try:
            decision = decision_of(self._function, instruction, self._generation)
        except NoDecisionError as error:
            return None, str(error)
        if self._placement.before(decision.place.offset) != decision.place.offset:
            return None, f"no code may go in front of {decision.place.mnemonic}, where its lanes part"
        return decision, ""

    def _problem(self, instruction: Instruction, probe: Probe, values: SiteValues) -> str:
        """Return why a probe cannot go to an instruction, "" if it can."""
        key = instruction.offset, id(probe), values.part
        if key not in self._problems:
            self._problems[key] = self._found_problem(instruction, probe, values)
        return self._problems[key]

    def _found_problem(self, instruction: Instruction, probe: Probe, values: SiteValues) -> str:
        """Return what ``_problem`` does, found out anew."""
        if probe.after is not None and (instruction.target is not None or instruction.mnemonic.startswith(_LEAVING)):
            return f"nothing goes behind {instruction.mnemonic}, which leads elsewhere"
        for snippet, after in ((probe.before, False), (probe.after, True)):
            for operand in operands_in(snippet.statements) if snippet is not None else ():
                if reason := values.problem(operand, after=after):
                    return reason
        return ""

    def _pieces(
        self, instruction: Instruction, probe: Probe, values: SiteValues, number: int, additions: Additions | None,
        decision: Decision | None,
    ) -> Iterator[Piece]:
        """Yield the code of a probe at an instruction. Raises NoValueError, NoRegistersError, CannotError."""
        if additions is not None:
            where = self._place(self._placement.before(instruction.offset))
            yield Piece(where, self._counting(where, instruction, additions, values, number))
            return
        if probe.before is not None:
            place = instruction if decision is None else decision.place
            where = self._place(self._placement.before(place.offset))
            yield Piece(where, self._snippet(where, instruction, probe, probe.before, values, number, after=False))
        if probe.after is None:
            return
        kept: dict[SiteOperand, Value] = {}
        early = values.kept(operands_in(probe.after.statements))
        if early:
            where = self._place(self._placement.before(instruction.offset))
            yield Piece(where, self._keep(where, instruction, values, early, kept))
        where = self._place(self._placement.after(instruction.offset))
        lines = self._snippet(where, instruction, probe, probe.after, values, number, after=True, kept=kept)
        yield Piece(where, lines, ahead_of_label=False)

    def _lowered(self, where: int, instruction: Instruction, build: Callable[[Here], None], number: int) -> list[str]:
        """Return the code of a snippet in front of an instruction, with what is around it."""
        liveness = self._liveness
        own = self._frame.registers.vector_count
        named = self._named(instruction)
        # What the instruction reads may be of no use behind it, but for the snippet.
        vectors = (liveness.free_at(where) & ~named) >> VECTORS & (1 << own) - 1
        vectors |= (1 << 256) - (1 << min(self._frame.first_vector, 256))
        return self._frame.lowered(
            build, labels=self._label(), offset=where, liveness=liveness, vectors=vectors, site=number,
            is_exec_known=False, reads=named, scc=liveness.scc_live_at(where),
            vcc=liveness.vcc_live_at(where),
        )  # fmt: skip

    def _named(self, instruction: Instruction) -> int:
        """Return the registers that an instruction names, and those that stand in a stretch with it."""
        found = 0
        first, last = self._placement.before(instruction.offset), self._placement.after(instruction.offset)
        rows = self._function.instructions
        begin = bisect_left(rows.offsets, first)
        for row in rows[begin : bisect_left(rows.offsets, last, begin)]:
            found |= effects(row, self._generation).named
        return found

    def _counting(
        self, where: int, instruction: Instruction, additions: Additions, values: SiteValues, number: int
    ) -> list[str]:
        """Return the code that adds to registers, where conditions hold. Nothing of it needs an active lane."""
        rows, tests = _without_tests(additions.conditions)
        if not values.finds_global:
            rows, tests = additions.conditions, []
        varies = varying(rows, self._vectors)
        operands = operands_in(rows)

        def build(here: Here) -> None:
            """Append the code."""
            here.operands = values.prepare(operands, here, after=False)
            lowering = SnippetCode(here, varies, self._probes, Level.THREAD)
            # Predicates outlast the statements that compute them.
            masks = {row.condition.name: row.condition for row in additions.rows if row.condition is not None}
            for register in {**masks, **{test.destination.name: test.destination for test in tests}}.values():
                lowering.bind(register, here.code.mask())
            for test in tests:
                place = lowering.place(test.destination)
                assert isinstance(place, Mask)
                values.find_global(place, here.code)
            lowering.lower(_without_copies(lowering, rows, here.operands))
            conditions = {name: lowering.place(register) for name, register in masks.items()}
            count(here, sums_of(additions, instruction, self._frame.machine.wave, conditions))

        return self._lowered(where, instruction, build, number)

    def _snippet(
        self, where: int, instruction: Instruction, probe: Probe, snippet: Snippet, values: SiteValues, number: int, *,
        after: bool, kept: Mapping[SiteOperand, Value] | None = None,
    ) -> list[str]:  # fmt: skip
        """Return the code of a probe's snippet."""
        operands = operands_in(snippet.statements)
        # One lane has the bytes of a scalar access.
        uniform = UNIFORM_OPERANDS - {"BYTES"} if values.is_of_wave else UNIFORM_OPERANDS
        varies = varying(snippet.statements, self._vectors, uniform_operands=uniform)
        shared = {register.name for register in self._probes.registers if not register.is_local}
        is_narrow = probe.level in (Level.WARP, Level.BLOCK)
        exchanges = exchanges_values(snippet)
        if is_narrow and exchanges and written_in(snippet) & shared:
            raise CannotError(
                f"probe '{probe.name}': level {probe.level.value} with values of other lanes and registers that it"
                " assigns is not possible in AMD's kernels yet"
            )

        def build(here: Here) -> None:
            """Append the snippet."""
            code, machine = here.code, self._frame.machine
            end = code.label()
            lowering = SnippetCode(here, varies, self._probes, probe.level)
            decides = [operand for operand in operands if operand.name == "PRED"]
            early = values.prepare(decides, here, after=after) if is_narrow and decides else {}
            if is_narrow:
                # Lane 0, of the work-group's first wave.
                code.emit(f"s_bitcmp1_b32 {_low(machine.exec)}, 0", f"s_cbranch_scc0 {end}")
                if probe.level is Level.BLOCK:
                    with code.scope():
                        code.emit(f"s_cmp_lg_u32 {lowering.word(here.special(Special.WARP), 0)}, 0")
                    code.emit(f"s_cbranch_scc1 {end}")
            else:
                code.emit(f"s_cbranch_execz {end}")
            here.operands = values.prepare(operands, here, after=after, kept={**(kept or {}), **early})
            if is_narrow and not exchanges:
                outer = code.mask()
                code.emit(f"s_mov_{machine.mask} {outer.text}, {machine.exec}")
                code.emit(f"s_mov_{machine.mask} {machine.exec}, 1")
                lowering.lower(_without_copies(lowering, snippet.statements, here.operands))
                code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}")
            else:
                lowering.lower(_without_copies(lowering, snippet.statements, here.operands))
            code.emit(f"{end}:")

        return self._lowered(where, instruction, build, number)

    def _keep(
        self, where: int, instruction: Instruction, values: SiteValues, operands: list[SiteOperand],
        kept: dict[SiteOperand, Value],
    ) -> list[str]:  # fmt: skip
        """Return the code that computes values in front of an instruction for the snippet behind it, in VGPRs that are
        for nothing else. kept: gets them."""

        first = self._kept_words.get(where, 0)

        def build(here: Here) -> None:
            """Append the code."""
            at = first
            for operand, value in values.keep(operands, here).items():
                if not isinstance(value, (Scalar, Vector)):
                    kept[operand] = value
                    continue
                if type(value) not in (Scalar, Vector):
                    raise NoValueError(f"{operand.text}, a predicate, is overwritten by the instruction itself")
                at += at % value.words
                home = self._frame.site_vector(at, value.words)
                at += value.words
                self._kept_words[where] = at
                here.code.emit(*(f"v_mov_b32_e32 {home.word(word)}, {value.word(word)}" for word in range(value.words)))
                kept[operand] = home

        return self._lowered(where, instruction, build, 0)


_ADDRESS = SiteOperand("ADDR")
_LEAVING = ("s_endpgm", "s_setpc", "s_swappc", "s_call", "s_cbranch", "s_branch")


def _without_tests(statements: Sequence[Statement]) -> tuple[tuple[Statement, ...], list[IsGlobal]]:
    """Return statements without those that test whether ADDR is global, and without those that bring ADDR to these
    alone; and the tests."""
    addresses = {row.destination.name for row in statements if isinstance(row, Load) and row.operand == _ADDRESS}
    tests = [row for row in statements if isinstance(row, IsGlobal) and names_in(row.address) & addresses]
    others = [row for row in statements if row not in tests]
    needed = {name for row in others if not isinstance(row, Load) for name in names_in(row)}
    unneeded = addresses - needed
    rows = [row for row in others if not (isinstance(row, Load) and row.destination.name in unneeded)]
    return tuple(rows), tests


def _without_copies(
    lowering: SnippetCode, statements: Sequence[Statement], operands: Mapping[SiteOperand, Value]
) -> list[Statement]:
    """Return statements without those that bring a value of the instruction, all of its bits, into a local register
    that nothing else assigns: that is where the value is."""
    destinations = (
        getattr(row, name, None) for row in all_in(statements) for name in ("destination", "variable")
    )  # fmt: skip
    assigned = Counter(one.name for one in destinations if isinstance(one, Register))
    found = []
    for row in statements:
        if isinstance(row, Load) and row.destination.is_local and assigned[row.destination.name] == 1:
            value = operands.get(row.operand) if isinstance(row.operand, SiteOperand) else None
            if isinstance(value, (Scalar, Vector)) and lowering.is_place(row.destination, value):
                lowering.bind(row.destination, value)
                continue
        found.append(row)
    return found


def _low(register: str) -> str:
    """Return the lower half of EXEC."""
    return register if register.endswith("_lo") else f"{register}_lo"
