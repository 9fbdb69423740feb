"""Where the lanes of a wave part at a conditional branch, and which of them go where it leads.

AMD's branches are the wave's. One that depends on SCC or VCC all active lanes take together, or none. Where lanes
differ, an instruction before the branch takes some out of EXEC (``s_and_saveexec_b64``), and ``s_cbranch_execz`` goes
around code that no lane is left for. There the lanes that reach the branch are those of EXEC in front of that
instruction; those that it takes out go where ``s_cbranch_execz`` leads, and those that stay where ``s_cbranch_execnz``
does.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from neutrino.gcn.code import Function, Instruction
from neutrino.gcn.isa.effects import effects
from neutrino.gcn.isa.mnemonics import plain
from neutrino.gcn.isa.registers import EXEC, registers_of

_CONDITIONAL = re.compile(r"s_cbranch_(scc[01]|vccn?z|execn?z)")
_MOVE = re.compile(r"s_mov_b(?:32|64)")
_AND = re.compile(r"s_and_b(?:32|64)")
_AND_NOT = re.compile(r"s_(?:andn2|and_not1)_b(?:32|64)")
_OR = re.compile(r"s_or_b(?:32|64)")
_SAVES = re.compile(r"s_(\w+)_saveexec_b(?:32|64)")
_EXEC = ("exec", "exec_lo")


class NoDecisionError(Exception):
    """Which lanes a branch is about cannot be told; the message says why."""


class By(enum.Enum):
    """What decides a branch. ``SCC``, ``VCC``: whether that is 0. ``ALL``: all lanes go the same way. ``COMPARISON``:
    an instruction that compares, and takes lanes out of EXEC. ``LANES``: one that does so by a set of lanes."""

    SCC = "scc"
    VCC = "vcc"
    ALL = "all"
    COMPARISON = "comparison"
    LANES = "lanes"


@dataclass(frozen=True)
class Decision:
    """Of a branch. place: the instruction in front of which EXEC has the lanes that reach it. is_taken: whether the
    branch is taken if SCC or VCC is not 0, or by the lanes that stay in EXEC. lanes: the operand with these lanes;
    is_inverted: with those that leave, rather."""

    place: Instruction
    by: By
    is_taken: bool
    lanes: str = ""
    is_inverted: bool = False


def is_conditional(mnemonic: str) -> bool:
    """Return whether an instruction is a conditional branch."""
    return _CONDITIONAL.fullmatch(mnemonic) is not None


def decision_of(function: Function, branch: Instruction, generation: int) -> Decision:
    """Return where the lanes part at a conditional branch of a function. Raises NoDecisionError."""
    match = _CONDITIONAL.fullmatch(branch.mnemonic)
    if match is None:
        raise NoDecisionError(f"{branch.mnemonic} is no conditional branch")
    word = match[1]
    if not word.startswith("exec"):
        return Decision(branch, By(word[:3]), is_taken=word in ("scc1", "vccnz"))
    block = _Block(generation)
    for row in _block_before(function, branch):
        block.add(row)
    found, is_taken = block.found, word == "execnz"
    if isinstance(found, str):
        raise NoDecisionError(found)
    if found is None:
        return Decision(branch, By.ALL, is_taken)
    row, lanes, is_inverted = found
    return Decision(row, By.LANES if lanes else By.COMPARISON, is_taken, lanes, is_inverted)


def _block_before(function: Function, branch: Instruction) -> list[Instruction]:
    """Return the instructions of a branch's basic block before it."""
    targets = {row.target for row in function.instructions if row.target is not None}
    found: list[Instruction] = []
    for row in function.instructions:
        if row.offset in targets:
            found.clear()
        if row.offset == branch.offset:
            break
        found.append(row)
        if row.target is not None or row.mnemonic.startswith(("s_setpc", "s_swappc", "s_endpgm")):
            found.clear()
    return found


_Origin = tuple[Instruction, str, bool] | str | None
"""How EXEC has come to its lanes: the instruction that took some out, by which operand ("": it compares), and whether
that has those that leave; None if none were; else why it cannot be told."""


class _Block:
    """Follows EXEC through the instructions of a basic block. A set of lanes has a number; that of EXEC at the begin is
    0."""

    def __init__(self, generation: int) -> None:
        """generation: of the processor, 9 to 12."""
        self._generation = generation
        self._origins: list[_Origin] = [None]
        self._now = 0
        self._saved: dict[str, int] = {}
        """Sets of lanes in registers."""
        self._parts: dict[int, int] = {}
        """Sets of which it is known that their lanes are all in another one."""

    @property
    def found(self) -> _Origin:
        """How EXEC has come to the lanes that it has now."""
        return self._origins[self._now]

    def add(self, row: Instruction) -> None:
        """Take an instruction into account."""
        mnemonic, operands, before = row.mnemonic, row.operands, self._now
        writes = effects(row, self._generation).writes
        new: int | None = None
        if _MOVE.fullmatch(mnemonic):
            new = self._lanes_in(operands[1])
        elif _AND.fullmatch(mnemonic) and before in map(self._lanes_in, operands[1:3]) and operands[0] not in _EXEC:
            new = self._set(f"which lanes {_text(row)} takes out is not known")
            self._parts[new] = before
        saves = _SAVES.fullmatch(mnemonic)
        self._saved = {text: lanes for text, lanes in self._saved.items() if not registers_of(text) & writes}
        if saves is not None:
            self._saved[operands[0]] = before
        elif new is not None and operands[0] not in _EXEC:
            self._saved[operands[0]] = new
        if not writes & EXEC:
            return
        if new is None:
            self._now = self._set(self._origin(row, saves[1] if saves is not None else ""))
            return
        self._now = new
        if self._parts.get(new) == before:
            self._origins[new] = row, operands[1], False

    def _set(self, origin: _Origin) -> int:
        """Return the number of a new set of lanes."""
        self._origins.append(origin)
        return len(self._origins) - 1

    def _lanes_in(self, operand: str) -> int | None:
        """Return the number of the set of lanes in an operand, None if it is not known."""
        return self._now if operand in _EXEC else self._saved.get(operand)

    def _origin(self, row: Instruction, saves: str) -> _Origin:
        """Return how an instruction that changes EXEC does so. saves: the operation of one that saves it, too."""
        mnemonic, operands = row.mnemonic, row.operands
        text = _text(row)
        if saves == "and":
            return row, operands[1], False
        if mnemonic.startswith("v_cmpx_"):
            if mnemonic.endswith(("_sdwa", "_dpp", "_dpp8")):
                return f"{mnemonic} compares values of other lanes, or parts of them"
            return row, "", False
        sources = operands[1:3]
        if _AND.fullmatch(mnemonic) and self._now in map(self._lanes_in, sources):
            others = [operand for operand in sources if self._lanes_in(operand) != self._now]
            return row, (others or sources)[0], False
        if _AND_NOT.fullmatch(mnemonic) and self._lanes_in(sources[0]) == self._now:
            return row, sources[1], True
        if _OR.fullmatch(mnemonic) and self._now in map(self._lanes_in, sources):
            return None
        if saves or mnemonic.startswith("s_xor_"):
            return f"{text} begins the other side of a branch before it"
        return f"which lanes {text} takes out is not known"


def _text(row: Instruction) -> str:
    """Return an instruction as people read it."""
    return row.text.partition("//")[0].strip()


def comparison(row: Instruction, mask: str, generation: int) -> str:
    """Return the instruction that writes into SGPRs which active lanes ``v_cmpx_…`` leaves. mask: these."""
    operands = row.operands[1:] if generation == 9 else row.operands
    name = plain(row.mnemonic).replace("v_cmpx_", "v_cmp_")
    return " ".join([f"{name}_e64 {', '.join((mask, *operands))}", *row.modifiers])
