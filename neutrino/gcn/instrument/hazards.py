"""Wait states that inserted code needs: neither the hardware nor an assembler provides them.

Of some pairs of instructions the second one sees what the first one wrote only some cycles later, of others the first
one still reads what the second one overwrites. Compilers put ``s_nop`` or waits in between; so does ``with_fences``,
for the instructions of a snippet and for their neighbours in the kernel. Where it is not known what ran before, the
worst is assumed.

Sources: AMD's manuals of the instruction sets ("CDNA 2", "CDNA 3": "Manually Inserted Wait States"; "RDNA 3", "RDNA 4":
"Dependency counters"), and LLVM, GCNHazardRecognizer.cpp, by which the tests judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from neutrino.gcn.code import Instruction, written
from neutrino.gcn.instrument.hazard_facts import LANES, SGPRS, Facts, facts_of_text, reach_of
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.isa.registers import ALL_VECTORS, EXEC, VCC

WINDOW = 24
"""Instructions around a snippet that may matter."""
BEHIND = 8
"""Instructions behind a snippet that may matter."""
_SHORT_PRODUCTS = re.compile(r"\d_(?:f16|bf16|i8|(?:fp8|bf8)_(?:fp8|bf8))$")
"""Matrix products that take half the passes on CDNA 3: not those of several blocks (``_4b_``), nor of f32."""
_NO_STATE = re.compile(r"[\w.$]+:")
_BRANCH = re.compile(r"s_c?branch\w*|s_endpgm\w*|s_setpc_b64|s_swappc_b64|s_call_b64")
_WAITS = {"va_vdst": ALL_VECTORS, "va_sdst": SGPRS & ~VCC, "va_vcc": VCC, "sa_sdst": SGPRS}
_FROM_LANES = ("v_readlane_b32", "v_readfirstlane_b32")
_FARTHEST = 20
"""Wait states after which nothing matters on gfx9 (``hazard_facts.reach_of``)."""
_NOPS = 8
"""Wait states of an ``s_nop`` at most."""


@dataclass
class _State:
    """What has run just before. recent: instructions that wait states must follow (``Facts.reach``), and how many wait
    states ago at least. scalar_writes, vector_writes: SGPRs that each unit may be about to write. masks: SGPRs that
    vector instructions read as masks. transcendental: VGPRs that are about to be written. comparison: whether the
    latest vector instruction may have written EXEC."""

    recent: dict[Facts, int] = field(default_factory=dict)
    scalar_writes: int = 0
    vector_writes: int = 0
    masks: int = 0
    transcendental: int = 0
    comparison: bool = False

    def copy(self) -> _State:
        """Return a copy of what has just run, which may change without this one."""
        return _State(
            dict(self.recent), self.scalar_writes, self.vector_writes, self.masks, self.transcendental, self.comparison
        )

    def merge(self, other: _State) -> _State:
        """Return what may have just run where two ways of the code meet: of each hazard the nearer one."""
        recent = dict(self.recent)
        for facts, states in other.recent.items():
            recent[facts] = min(states, recent.get(facts, states))
        return _State(
            recent, self.scalar_writes | other.scalar_writes, self.vector_writes | other.vector_writes,
            self.masks | other.masks, self.transcendental | other.transcendental, self.comparison or other.comparison,
        )  # fmt: skip

    def add_kept(self, registers: int, generation: int) -> None:
        """Note that instructions of the vector and the scalar unit have just written registers."""
        self.recent[_moves(registers, generation)] = 0
        self.scalar_writes |= registers & SGPRS
        self.vector_writes |= registers & SGPRS

    def wait(self, counters: Iterable[str]) -> None:
        """Note an instruction that waits for counters of the ALUs, by their names: what they count is done."""
        for counter in counters:
            if counter == "sa_sdst":
                self.scalar_writes = self.masks = 0
            elif counter == "va_vdst":
                self.transcendental = 0
            elif counter in _WAITS:
                self.vector_writes &= ~_WAITS[counter]

    def pass_states(self, count: int) -> None:
        """Note that so many wait states (cycles in which an instruction could start) have passed."""
        if self.recent:
            self.recent = {
                facts: states + count for facts, states in self.recent.items() if states + count < facts.reach
            }

    def run(self, facts: Facts) -> None:
        """Note an instruction that has just run: what it wrote, and that others are one wait state longer ago."""
        self.pass_states(facts.states)
        if facts.reach:
            self.recent[facts] = 0
        self.write(facts)

    def write(self, facts: Facts) -> None:
        """Note what an instruction that has just run wrote, and has waited for."""
        if facts.waits:
            self.wait(facts.waits)
        if facts.is_memory:
            self.transcendental = 0
        if facts.is_scalar:
            # It has waited for what the vector unit writes.
            self.vector_writes &= (VCC if facts.reads & SGPRS & ~VCC else SGPRS) & ~(facts.reads & VCC)
            self.scalar_writes |= facts.writes & SGPRS
        if facts.is_vector:
            self.vector_writes |= facts.writes & SGPRS
            self.masks |= facts.masks
            self.transcendental &= ~facts.writes
            if facts.is_transcendental:
                self.transcendental |= facts.writes & ALL_VECTORS
            self.comparison = facts.compares_to_exec


@lru_cache(maxsize=1 << 10)
def _moves(registers: int, generation: int) -> Facts:
    """Return what matters of vector instructions that write registers. generation: of the processor."""
    moves = Facts("v_mov_b32", 0, registers, is_vector=True)
    return replace(moves, reach=reach_of(moves, generation))


class Hazards:
    """The rules of one processor, for waves of one size."""

    def __init__(self, machine: Machine, read_by_vectors: int = SGPRS) -> None:
        """machine: what the code is for. read_by_vectors: SGPRs that vector instructions may have read at any time
        before: on gfx12 others need no waits."""
        self._machine = machine
        self._tracked = _pairs(read_by_vectors & SGPRS)
        self.generation = machine.generation
        self._is_new_cdna = machine.processor.startswith(("gfx94", "gfx95"))
        self._is_cdna4 = machine.processor.startswith("gfx95")
        self._nops_of_old = machine.generation == 9

    # States

    def facts(self, row: Instruction) -> Facts:
        """Return what of an instruction matters for the hazards of its neighbours."""
        return facts_of_text(row.text, self.generation)

    def state_behind(self, rows: Sequence[Instruction], *, is_start: bool = False) -> _State:
        """Return what has just run after instructions that ran one after the other.

        is_start: whether a wave begins in front of the first; else there are others, which are too far away to matter
        but for hazards that no time ends.
        """
        state = _State()
        if not is_start:
            state.scalar_writes = state.vector_writes = SGPRS
            state.masks = VCC
            if len(rows) < WINDOW:
                state = self.worst()
        ran = [self.facts(row) for row in rows if row.mnemonic]
        passed = 0
        recent: dict[Facts, int] = {}
        for facts in reversed(ran):
            if passed < facts.reach and facts not in recent:
                recent[facts] = passed
            passed += facts.states
        state.pass_states(passed)
        state.recent = {**state.recent, **recent}
        if self.generation > 9:
            for facts in ran:
                state.write(facts)
        return state

    def worst(self) -> _State:
        """Return what may have just run at most: for code of which it is not known what is in front of it."""
        matrix = "v_mfma_f64_16x16x4f64" if self._nops_of_old else "v_nop"
        worst = [
            Facts("v_cmpx_class_f32", 0, SGPRS | ALL_VECTORS | EXEC, is_vector=True, is_partial=True),
            Facts("v_exp_f32", 0, ALL_VECTORS, is_vector=True),
            Facts("v_dot2_f32_f16", 0, ALL_VECTORS, is_vector=True),
            Facts(matrix, 0, ALL_VECTORS, is_vector=True, is_matrix=True, third=ALL_VECTORS, passes=16),
            Facts("global_store_dwordx4", 0, 0, is_memory=True, data=ALL_VECTORS, is_float_atomic=True),
            Facts("s_setreg_b32", 0, 0, is_scalar=True, hardware="*"),
        ]
        reaching = [replace(facts, reach=reach_of(facts, self.generation)) for facts in worst]
        recent = {facts: 0 for facts in reaching if facts.reach}
        return _State(recent, SGPRS, SGPRS, VCC, ALL_VECTORS, comparison=True)

    # Rules

    def states_needed(self, state: _State, facts: Facts) -> int:
        """Return how many wait states (cycles without another instruction) are missing in front of an instruction."""
        if self.generation > 10 or not state.recent:
            return 0
        if self.generation == 10:
            if facts.name != "s_denorm_mode":
                return 0
            return max((3 - states for each, states in state.recent.items() if each.is_float_atomic), default=0)
        return max(0, *(self._between(each, facts) - states for each, states in state.recent.items()))

    def _between(self, first: Facts, then: Facts) -> int:
        """Return how many wait states gfx9 wants between two instructions, of which the second depends on the first."""
        needed = 0
        if first.is_vector:
            needed = self._behind_vector(first, then)
        vectors = first.writes & then.reads & ALL_VECTORS
        if then.is_lane_exchange and vectors:
            needed = max(needed, 2)
        if first.is_matrix and not then.is_matrix:
            needed = max(needed, self._behind_matrix(first, then))
        if first.data & then.writes and then.is_vector:
            needed = max(needed, 2 if self._is_new_cdna else 1)
        if first.name.startswith("s_setreg") and then.hardware and first.hardware in (then.hardware, "*"):
            needed = max(needed, 2)
        return needed

    def _behind_vector(self, first: Facts, then: Facts) -> int:
        """Return how many wait states there must be between a vector instruction and one that depends on it."""
        needed = 0
        scalars = first.writes & then.reads & SGPRS
        if scalars:
            if then.is_memory and not then.is_lds:
                needed = 5
            elif then.selects & scalars or (then.name.startswith("v_div_fmas") and scalars & VCC):
                needed = 4
            elif self._is_new_cdna and then.is_vector:
                needed = 2
        if first.writes & EXEC:
            if then.is_lane_exchange or (then.is_memory and not then.is_lds):
                needed = 5
            elif then.is_matrix or (self._is_new_cdna and then.name in (*LANES, *_FROM_LANES)):
                needed = max(needed, 4)
        if first.writes & then.reads & ALL_VECTORS:
            if then.is_matrix and not first.is_dot:
                needed = max(needed, 2)
            if self._is_new_cdna and then.is_vector:
                is_late = first.is_partial or (first.is_transcendental and not then.is_transcendental)
                if is_late or then.name in _FROM_LANES:
                    needed = max(needed, 1)
        both = (then.reads | then.writes) & ALL_VECTORS
        if first.is_dot and first.writes & both and first.name != then.name and (then.is_vector or then.is_memory):
            needed = max(needed, 3)
        return needed

    def _behind_matrix(self, first: Facts, then: Facts) -> int:
        """Return how many wait states there must be between a matrix product and an instruction on its registers."""
        if not (then.is_vector or then.is_memory):
            return 0
        needed = 0
        passes = first.passes
        if self._is_new_cdna and not self._is_cdna4 and _SHORT_PRODUCTS.search(first.name):
            passes //= 2
        more = 4 if self._is_cdna4 else 3
        if first.writes & (then.reads | then.writes) & ALL_VECTORS:
            needed = 19 if first.is_f64_matrix else passes + more
        if first.third & then.writes:
            needed = max(needed, min(passes, 15))
        if first.is_f64_matrix and (then.is_memory or "_f64" in then.name):
            needed = max(needed, 2)
        return needed

    def waits_needed(self, state: _State, facts: Facts) -> list[str]:
        """Return the names of the ALUs' counters that must be waited for in front of an instruction."""
        found = []
        if self.generation == 11 and facts.is_vector and state.transcendental & facts.reads:
            found.append("va_vdst")
        if self.generation == 12 and (facts.is_scalar or facts.is_vector):
            reads = _pairs(facts.reads & SGPRS) & self._tracked
            if state.scalar_writes & reads:
                found.append("sa_sdst")
            # The scalar unit waits for the vector unit by itself.
            if facts.is_vector and state.vector_writes & reads & ~VCC:
                found.append("va_sdst")
            if facts.is_vector and state.vector_writes & reads & VCC:
                found.append("va_vcc")
        return found

    def waits_behind(self, state: _State, facts: Facts) -> list[str]:
        """Return the names of the ALUs' counters that must be waited for right after an instruction."""
        if self.generation != 11 or self._machine.wave != 64 or not facts.is_scalar:
            return []
        found = []
        if facts.writes & state.masks & ~EXEC:
            found.append("sa_sdst")
        if facts.writes & EXEC:
            found.append("va_vdst")
        return found

    def waits_at_end(self, state: _State, named: int) -> list[str]:
        """Return the names of the ALUs' counters that must be waited for at a snippet's end, where the kernel goes on.

        named: the registers that the kernel names.
        """
        if self.generation == 12:
            read = (named | VCC) & self._tracked
            found = ["sa_sdst"] if state.scalar_writes & read else []
            found += ["va_sdst"] if state.vector_writes & read & ~VCC else []
            return [*found, *(["va_vcc"] if state.vector_writes & read & VCC else [])]
        return ["sa_sdst"] if self.generation == 11 and self._machine.wave == 64 and state.masks else []

    def wait(self, counters: list[str]) -> str:
        """Return the instruction that waits for counters of the ALUs."""
        if self.generation == 11 and counters == ["va_vdst"]:
            # As LLVM 19 writes it, which knows no other form.
            return "s_waitcnt_depctr 0xfff"
        name = "s_wait_alu" if self.generation == 12 else "s_waitcnt_depctr"
        return f"{name} {' '.join(f'depctr_{counter}(0)' for counter in counters)}"

    def forgets_reads(self, reads: int, written_later: int) -> list[str]:
        """Return the instructions after which it no longer matters which SGPRs vector instructions have read.

        On gfx12 the vector unit may take an old value of an SGPR that it has read before, however long ago, where the
        kernel writes it and reads it again; its compiler has put waits there as far as the kernel itself had read it.
        Only so many ``ds_nop`` in a row end that: LLVM, AMDGPUWaitSGPRHazards.cpp. reads: SGPRs that vector
        instructions of a snippet have read. written_later: those that the kernel writes.
        """
        if self.generation != 12 or not _pairs(reads) & written_later:
            return []
        return ["ds_nop"] * (4 if self._machine.wave == 32 else 8)

    def has_permute_problem(self, state: _State, facts: Facts) -> bool:
        """Return whether a permutation of lanes would see an old EXEC."""
        return self.generation in (10, 11) and facts.name.startswith("v_permlane") and state.comparison


def _pairs(registers: int) -> int:
    """Return a set of SGPRs, and with each the other one of its pair (even and odd)."""
    even = int("01" * 62, 2)
    return registers | (registers & even) << 1 | registers >> 1 & even


def depends_on_before(lines: Iterable[str], machine: Machine) -> bool:
    """Return whether the fences of a snippet may depend on what runs before it, or on its place."""
    generation = machine.generation
    if generation == 12 or (generation == 11 and machine.wave == 64):
        return True
    found = (facts for line in lines if (facts := _line(line, generation).facts) is not None)
    if generation == 10:
        return any(facts.name.startswith(("v_permlane", "s_denorm_mode")) or facts.reach for facts in found)
    # The scalar unit waits by itself for all but what sets hardware registers.
    return any(not facts.is_scalar or facts.hardware or facts.reach for facts in found)


def with_fences(
    before: Sequence[Sequence[Instruction]] | None,
    lines: Sequence[str],
    after: Sequence[Sequence[Instruction]] | None,
    machine: Machine,
    *,
    is_start: bool = False,
    kept: int = 0,
    named: int = VCC,
    written_later: int = 0,
    read_by_vectors: int = SGPRS,
) -> list[str]:
    """Return a snippet with what its instructions and its neighbours need in between.

    before: the ways that lead to it, each a list of instructions that ends where the snippet begins, ``WINDOW`` of them
    or as many as there are up to what is not known; None where nothing is known. after: the ways from its end on, in
    the same manner. is_start: whether a wave begins at the beginning of ways that are shorter. kept: registers that
    another snippet may have written just before, as a set of ``isa.registers``. named: those that the kernel names.
    written_later: SGPRs that the kernel's vector or scalar unit writes after the snippet. read_by_vectors: those that
    vector instructions may have read before, in the kernel or in snippets, this one included.
    """
    rules = Hazards(machine, read_by_vectors)
    if before is None:
        state = rules.worst()
    else:
        states = [
            rules.state_behind(way[-WINDOW:], is_start=is_start and len(way) < WINDOW) for way in before
        ] or [rules.state_behind([], is_start=is_start)]  # fmt: skip
        state = states[0]
        for each in states[1:]:
            state = state.merge(each)
    if kept:
        state.add_kept(kept, rules.generation)
    found, end, reads = _fenced(rules, state, lines, named)
    found += _nops(_missing_behind(rules, end, after))
    return [*found, *rules.forgets_reads(reads, written_later)]


def is_undisturbed(lines: Iterable[str], before: Iterable[Sequence[Instruction]]) -> bool:
    """Return whether no wait state is needed on gfx9 between what runs before a snippet and what is in it: of what may
    matter nothing has its registers. before: as for ``with_fences``."""
    touched = EXEC
    for line in lines:
        facts = _line(line, 9).facts
        if facts is not None:
            touched |= facts.reads | facts.writes
    for way in before:
        passed = 0
        for row in reversed(way):
            if not row.mnemonic:
                continue
            facts = facts_of_text(row.text, 9)
            if passed < facts.reach and (
                (facts.writes | facts.data | facts.third) & touched or facts.is_f64_matrix or facts.hardware
            ):  # fmt: skip
                return False
            passed += facts.states
            if passed >= _FARTHEST:
                break
    return True


@dataclass(frozen=True)
class Undisturbed:
    """A snippet that ``is_undisturbed``: it needs the same wait states wherever it is, but for those at its end.

    lines: with them. end: what of it has run just before its end.
    """

    lines: list[str]
    end: _State

    @classmethod
    def of(cls, lines: Sequence[str], machine: Machine, kept: int) -> Undisturbed:
        """Return this of a snippet. kept: as for ``with_fences``."""
        state = _State()
        if kept:
            state.add_kept(kept, machine.generation)
        found, end, _ = _fenced(Hazards(machine), state, lines, VCC)
        return cls(found, end)

    def between(self, after: Sequence[Sequence[Instruction]] | None, machine: Machine) -> list[str]:
        """Return it with the wait states that are missing between its end and what runs after it. after: as for
        ``with_fences``."""
        return [*self.lines, *_nops(_missing_behind(Hazards(machine), self.end, after))]


def _fenced(rules: Hazards, state: _State, lines: Sequence[str], named: int) -> tuple[list[str], _State, int]:
    """Return a snippet with what its instructions need in between, what of it has run just before its end, and the
    SGPRs that its vector instructions read. state: what has run before it. named: as for ``with_fences``."""
    fencer = _Fencer(rules, lines)
    found = fencer.fenced(state)
    end = fencer.end
    # What the kernel itself has done is not for snippets to wait for.
    end.recent = {facts: states for facts, states in end.recent.items() if facts in fencer.own}
    end.masks &= fencer.masks
    end.scalar_writes &= fencer.writes
    end.vector_writes &= fencer.writes
    missing = rules.waits_at_end(end, named)
    if missing:
        found.append(rules.wait(missing))
        end.wait(missing)
    return found, end, fencer.reads


def _missing_behind(rules: Hazards, end: _State, after: Sequence[Sequence[Instruction]] | None) -> int:
    """Return how many wait states are missing between a snippet's end and the kernel's instructions after it."""
    if rules.generation > 10 or not end.recent:
        return 0
    if after is None:
        after = [
            [written(text) for text in ("v_div_fmas_f32 v0, v0, v0, v0", "s_setreg_imm32_b32 hwreg(HW_REG_MODE), 0")]
        ]
    needed = touched = 0
    for each in end.recent:
        touched |= each.writes | each.data | each.third
    # Of others only those matter that have these registers, unless it is about something else.
    is_any = touched & EXEC or any(each.is_f64_matrix or each.hardware or each.is_float_atomic for each in end.recent)
    for way in after:
        passed = 0
        for row in way[:BEHIND]:
            if not row.mnemonic:
                break
            facts = rules.facts(row)
            if is_any or (facts.reads | facts.writes) & touched:
                state = end.copy()
                state.pass_states(passed)
                needed = max(needed, rules.states_needed(state, facts))
            # What the kernel's own instructions need among themselves, they have.
            passed += facts.states
    return needed


class _Fencer:
    """Fences the lines of one snippet, whose branches lead to its own labels, or out of it."""

    def __init__(self, rules: Hazards, lines: Sequence[str]) -> None:
        """Take the lines apart."""
        self._rules = rules
        self._lines = [_line(line, rules.generation) for line in lines]
        self._at_labels: dict[str, _State] = {}
        self.end = _State()
        self.own: set[Facts] = set()
        self.masks = self.writes = self.reads = 0
        """SGPRs that its vector instructions read as masks, what it writes, and SGPRs that vector instructions read."""

    def fenced(self, start: _State) -> list[str]:
        """Return the snippet's lines with the waits and wait states that its instructions need in between.

        start: what has run before.
        """
        while True:
            known = {label: _key(state) for label, state in self._at_labels.items()}
            found = self._once(start.copy())
            # A way back to a label brings what the lines behind it have done.
            if {label: _key(state) for label, state in self._at_labels.items()} == known:
                return found

    def _once(self, state: _State) -> list[str]:
        """Go through the snippet's lines once, and return them with waits and wait states.

        What has run before each label is noted, for jumps back to it.
        """
        rules, found = self._rules, []
        for line, label, facts, target, permuted in self._lines:
            if facts is None:
                if label in self._at_labels:
                    state = state.merge(self._at_labels[label])
                self._at_labels[label] = state.copy()
                found.append(line)
                continue
            counters = rules.waits_needed(state, facts)
            if counters:
                found.append(rules.wait(counters))
                state.wait(counters)
                state.pass_states(1)
            missing = rules.states_needed(state, facts)
            if missing:
                found += _nops(missing)
                state.pass_states(missing)
            if permuted and rules.has_permute_problem(state, facts):
                found.append(f"v_mov_b32_e32 {permuted}, {permuted}")
            state.run(facts)
            if facts.reach:
                self.own.add(facts)
            self.masks |= facts.masks
            self.writes |= facts.writes
            if facts.is_vector:
                self.reads |= facts.reads & SGPRS
            found.append(line)
            counters = rules.waits_behind(state, facts)
            if counters:
                found.append(rules.wait(counters))
                state.wait(counters)
            if target:
                known = self._at_labels.get(target)
                self._at_labels[target] = state.copy() if known is None else known.merge(state)
        self.end = state
        return found


def read_by_vectors(lines: Iterable[str], generation: int) -> int:
    """Return the SGPRs that vector instructions among lines read."""
    found = 0
    for line in lines:
        facts = _line(line, generation).facts
        if facts is not None and facts.is_vector:
            found |= facts.reads & SGPRS
    return found


class _Line(NamedTuple):
    """A line of a snippet. label: its name, "" for an instruction. facts: of an instruction. target: the label that it
    may lead to, "" for none. permuted: what a permutation of lanes reads, "" for another instruction."""

    text: str
    label: str
    facts: Facts | None
    target: str
    permuted: str


@lru_cache(maxsize=1 << 14)
def _line(line: str, generation: int) -> _Line:
    """Take a line apart. Snippets of different sites mostly have the same ones."""
    text = line.strip()
    if _NO_STATE.fullmatch(text):
        return _Line(line, text.removesuffix(":"), None, "", "")
    row = written(text)
    facts = facts_of_text(text, generation)
    target = row.operands[-1] if row.operands and _BRANCH.fullmatch(row.mnemonic) else ""
    return _Line(line, "", facts, target, row.operands[1] if facts.name.startswith("v_permlane") else "")


def _key(state: _State) -> tuple[object, ...]:
    """Return what tells two states apart."""
    return (
        frozenset(state.recent.items()), state.scalar_writes, state.vector_writes, state.masks, state.transcendental,
        state.comparison,
    )  # fmt: skip


def _nops(count: int) -> list[str]:
    """Return instructions that do nothing for so many wait states."""
    found = []
    while count > 0:
        found.append(f"s_nop {min(count, _NOPS) - 1}")
        count -= _NOPS
    return found
