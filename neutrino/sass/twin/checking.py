"""Whether a twin is its original with trampolines, and nothing else: asked of every twin before anybody may load it.

The checker shares nothing with the writer but the decoder's table, of which the rules for inserted code make use
(``inserted.py``): it takes no list of sites, and follows each branch that the twin has in place of an instruction. The
rules are those of ``docs/machine-code.md``; each finding names the place and the rule.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from neutrino.elf.constants import STT_FUNC
from neutrino.elf.reader import Elf
from neutrino.errors import MachineCodeError
from neutrino.sass.attributes import (
    CBANK_PARAM_SIZE,
    CTAIDZ_USED,
    EXIT_INSTR_OFFSETS,
    INDIRECT_BRANCH_TARGETS,
    KPARAM_INFO,
    KPARAM_INFO_V2,
    PARAM_CBANK,
)
from neutrino.sass.cubin import open_cubin, read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.twin.accesses import Counted, addition
from neutrino.sass.twin.attributes import read_attributes
from neutrino.sass.twin.executed import CountedInstructions, Entrances
from neutrino.sass.twin.hazards import Finding
from neutrino.sass.twin.inserted import Piece, check_inserted
from neutrino.sass.twin.instruction_rules import Surroundings
from neutrino.sass.twin.reference import Reference

_BYTES = 16
_LINE = 128
_ADDED_WORD = 0x000FC00000000000_0000000000007918
"""The NOP with which ``ptxas`` fills code."""
_REUSE = 0xF << 122
_MOVABLE = frozenset({
    0x381, 0x981, 0x386, 0x986, 0x980, 0x385, 0x985, 0x984, 0x388, 0x988, 0x983, 0x387, 0x83B, 0x844, 0x38A, 0x98A,
    0x38B, 0x98B, 0x9A2, 0x38C, 0x98C, 0x38D, 0x9A8, 0x3A8, 0x3A9, 0x9A6, 0x98E, 0x987, 0x9A3, 0xF8C, 0xFAE,
})  # fmt: skip
"""Opcodes that mean the same in any place, as far as the checker knows: loads, stores, atomics, reductions of sm_90."""
_ALSO_MOVABLE = frozenset({
    0x002, 0x007, 0x008, 0x009, 0x00A, 0x00B, 0x00C, 0x00F, 0x010, 0x011, 0x012, 0x013, 0x016, 0x019, 0x01A,
    0x01B, 0x01C, 0x020, 0x021, 0x023, 0x024, 0x025, 0x026, 0x027, 0x028, 0x029, 0x02A, 0x02B, 0x030, 0x031,
    0x032, 0x033, 0x034, 0x035, 0x036, 0x038, 0x039, 0x03E, 0x040, 0x045, 0x046, 0x047, 0x048, 0x082, 0x087,
    0x08C, 0x090, 0x091, 0x092, 0x096, 0x099, 0x09B, 0x0A4, 0x0A5, 0x0B9, 0x100, 0x101, 0x102, 0x104, 0x105,
    0x106, 0x107, 0x108, 0x109, 0x110, 0x111, 0x112, 0x113, 0x118, 0x119, 0x182,
})  # fmt: skip
"""The same of arithmetic and moves, NOP, S2R and LDC, where instructions are counted: the opcodes' lowest bits, which
are of all forms of operands."""
_OF_ALL_FORMS = 0x1FF
_EXIT, _BRANCH = 0x94D, 0x947
_ENDS = frozenset({_EXIT, _BRANCH, 0x950, 0x949, 0x94A})
"""What no instruction after is reached from, if it is always executed: EXIT, BRA, RET, BRX, JMP."""
_BRANCH_CONTROL = 0x0FEA00
"""Bits 96 to 127 of a branch as ``ptxas`` writes it, without waits: five cycles, no scoreboard taken, nothing kept."""
_WAITS = 0x3F << 20
"""In these bits: the scoreboards that are waited for, which may be more."""
_CONTROL_LOW = 9
"""In these bits: how many are not of the control."""
_TABLES = {"sm_80": 80, "sm_90": 90, "sm_90a": 90}
"""Architectures of twins → the number of that whose table of instructions the decoder uses."""
_SPECIAL_READS = (0x919, 0x9C3)
"""S2R and S2UR."""
_THIRD_INDEX_TOLD_UNTIL = 90
"""Architectures below have an attribute of kernels that read the block's third index."""
_SPLIT_FROM = 90
"""From this one on, a branch has the lowest 8 bits of its distance apart."""
_DISTANCE = 0xFF << 16 | (1 << 48) - 1 << 34
"""Of branches: how far they go."""
_CONDITION = 0xF << 87
"""Of EXIT and branches: a second predicate, with its negation; 7 is PT."""
_TRUE = 7
_FALSE = 0xF
_UNCOUNTED = 2
"""Registers that a kernel's count has more than the highest number and one."""
_OF_THE_DRIVER = "__assertfail"
"""The function of the driver that does not come back."""
_COME_BACK = frozenset({"vprintf"})
"""Those that do, and that a kernel with inserted code may call: they keep registers by a convention (``inserted``)."""


@dataclass(frozen=True)
class _Word:
    """One instruction, with the fields that the checker reads."""

    bits: int

    @property
    def opcode(self) -> int:
        return self.bits & 0xFFF

    @property
    def guard(self) -> int:
        """The predicate's number, and 8 if it is negated."""
        return self.bits >> 12 & 0xF

    @property
    def condition(self) -> int:
        """The same of the second predicate of EXIT and branches."""
        return self.bits >> 87 & 0xF

    def under(self, guard: int, condition: int = _TRUE) -> _Word:
        """The same instruction under other predicates."""
        return _Word(self.bits & ~(0xF << 12) & ~_CONDITION | guard << 12 | condition << 87)

    @property
    def is_always(self) -> bool:
        return self.guard == _TRUE

    @property
    def is_never(self) -> bool:
        return self.guard == _FALSE

    @property
    def stall(self) -> int:
        return self.bits >> 105 & 0xF

    @property
    def barriers(self) -> frozenset[int]:
        return frozenset({self.bits >> 110 & 7, self.bits >> 113 & 7}) - {7}

    @property
    def waits(self) -> frozenset[int]:
        return frozenset(bit for bit in range(6) if self.bits >> 116 + bit & 1)

    @property
    def reads_third_index(self) -> bool:
        """Whether it is S2R or S2UR of CTAID.Z."""
        return self.opcode in _SPECIAL_READS and self.bits >> 72 & 0xFF == 0x27

    @property
    def is_plain_branch(self) -> bool:
        """Whether the control is that of a branch, but for what it waits for."""
        return (self.bits >> 96 & ~_WAITS) >> _CONTROL_LOW == _BRANCH_CONTROL >> _CONTROL_LOW

    @property
    def without_reuse(self) -> int:
        return self.bits & ~_REUSE

    def goes_to(self, place: int, sm: int) -> int | None:
        """Where an always taken branch at a place goes; None for any other instruction, and other forms of branches."""
        if self.opcode != _BRANCH or not self.is_always:
            return None
        # Bits 24 to 33 and 82 to 104 are of other forms of branches, but for the predicate PT in bits 87 to 89.
        if self.bits >> 24 & 0x3FF or self.bits >> 82 & 0x7FFFFF != 0xE0:
            return None
        low, high = self.bits >> 16 & 0xFF, self.bits >> 34 & (1 << 48) - 1
        if sm < _SPLIT_FROM and low:
            return None
        words, size = (high, 48) if sm < _SPLIT_FROM else (low | high << 8, 56)
        if words >> size - 1:
            words -= 1 << size
        return place + _BYTES + 4 * words


_HALVES = np.array([_ADDED_WORD & (1 << 64) - 1, _ADDED_WORD >> 64], np.uint64)
"""The low and the high half of ``_ADDED_WORD``."""


class _Words(Sequence[_Word]):
    """The instructions of code: of thousands few are looked at, each of which is made then."""

    def __init__(self, code: bytes) -> None:
        """code: of whole instructions."""
        self._code = code
        self.halves = np.frombuffer(code, "<u8").reshape(-1, 2)
        self._opcodes = self.halves[:, 0] & np.uint64(0xFFF)
        self._having: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.halves)

    @overload
    def __getitem__(self, index: int) -> _Word: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_Word]: ...
    def __getitem__(self, index: int | slice) -> _Word | Sequence[_Word]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        at = range(len(self))[index] * _BYTES
        return _Word(int.from_bytes(self._code[at : at + _BYTES], "little"))

    def having(self, opcode: int) -> list[int]:
        """The numbers of all instructions with an opcode, in order."""
        if opcode not in self._having:
            self._having[opcode] = np.flatnonzero(self._opcodes == opcode).tolist()
        return self._having[opcode]

    def next(self, opcode: int, begin: int) -> int | None:
        """The number of the first instruction with an opcode from one on, None without one."""
        found = self.having(opcode)
        at = bisect.bisect_left(found, begin)
        return found[at] if at < len(found) else None

    def others(self, begin: int = 0) -> list[int]:
        """The numbers of all instructions from one on that are not ``_ADDED_WORD``."""
        found: list[int] = (np.flatnonzero((self.halves[begin:] != _HALVES).any(axis=1)) + begin).tolist()
        return found


@dataclass
class _Twin:
    """The code of an original and its twin, and what was found. taken: instruction of a trampoline → its site. entry,
    exits, accesses: trampolines with inserted code. moved: place of an EXIT in the original → its place in the twin, in
    bytes. sm: of the architecture. has_after: whether there may be code after accesses. executed: whether the twin
    counts instructions: then others may be displaced than accesses, and lanes may do something before they stay or
    end."""

    old: _Words
    new: _Words
    sm: int
    has_after: bool = False
    executed: bool = False
    found: list[Finding] = field(default_factory=list)
    taken: dict[int, int] = field(default_factory=dict)
    entry: Piece | None = None
    exits: list[Piece] = field(default_factory=list)
    accesses: list[Piece] = field(default_factory=list)
    moved: dict[int, int] = field(default_factory=dict)

    def report(self, place: int, rule: str) -> None:
        self.found.append(Finding(place, rule))

    def check(self) -> None:
        """Follow every site."""
        old, new = self.old, self.new
        sites: list[int] = []
        cleared: list[int] = []
        for index in np.flatnonzero((old.halves != new.halves[: len(old)]).any(axis=1)).tolist():
            before, after = old[index], new[index]
            # Without ``.reuse``, an instruction does the same; cleared it may be only where a branch follows.
            if after.bits == before.without_reuse:
                cleared.append(index)
            else:
                sites.append(index)
        for index in set(cleared) - {index - 1 for index in sites}:
            self.report(index * _BYTES, ".reuse is cleared although no site follows")
        for index in sites:
            self._check_site(index)
        end = len(old)
        for index in new.others(end):
            if index not in self.taken:
                self.report(index * _BYTES, "an instruction that no site leads to")
        last = next((old[index] for index in reversed(old.others())), None)
        if self.taken and (last is None or last.opcode not in _ENDS or not last.is_always):
            self.report(end * _BYTES, "the old code may run on into the trampolines")
        if self.exits:
            done = {piece.site for piece in self.exits}
            for index in old.having(_EXIT):
                ends = not old[index].is_never and old[index].condition != _FALSE
                if ends and index not in done:
                    self.report(index * _BYTES, "an EXIT has no trampoline, although others have")

    def _check_site(self, index: int) -> None:
        """Check what is in the place of an instruction, and the trampoline that it leads to."""
        place = index * _BYTES
        before, branch = self.old[index], self.new[index]
        target = branch.goes_to(place, self.sm)
        if target is None:
            self.report(place, "an instruction was changed into another, not into a branch")
            return
        if before.is_never:
            self.report(place, "an instruction was displaced that is never executed")
        if not branch.is_plain_branch:
            self.report(place, "the branch takes a scoreboard, or has other cycles than ptxas' own")
        if not before.waits <= branch.waits:
            self.report(place, "the branch does not wait for what its instruction waited for")
        if index and self.new[index - 1].bits & _REUSE:
            self.report(place - _BYTES, "an operand is kept for an instruction that has a branch in its place")
        first = target // _BYTES
        if target % _BYTES or not len(self.old) <= first < len(self.new) - 1:
            self.report(place, f"the branch goes to {target:#x}, where no trampoline is")
        elif before.opcode == _EXIT:
            self._check_exit(index, first)
        elif index == 0 and before.opcode not in _MOVABLE:
            self._check_entry(first)
        elif self.executed and before.opcode == _BRANCH:
            self._check_branch(index, first)
        else:
            self._check_access(index, first)

    def _take(self, parts: range, site: int) -> None:
        """Note that instructions are a site's. site: its number."""
        for part in parts:
            if part in self.taken:
                other = self.taken[part] * _BYTES
                self.report(part * _BYTES, f"two sites share an instruction, {other:#x} is the other")
            self.taken[part] = site

    def _check_back(self, index: int, site: int, before: _Word | None) -> None:
        """Check the branch back. index: of it. site: of the displaced instruction, after which it goes. before: the
        instruction above it that took what it might wait for."""
        back, place = self.new[index], index * _BYTES
        if back.goes_to(place, self.sm) != (site + 1) * _BYTES:
            self.report(place, f"no branch back to {(site + 1) * _BYTES:#x}")
        elif not back.is_plain_branch:
            self.report(place, "the branch back takes a scoreboard, or has other cycles than ptxas' own")
        elif before is not None and before.barriers & back.waits and before.stall < 2:
            self.report(place - _BYTES, "a scoreboard is waited for in the cycle after it was taken")

    def _check_access(self, index: int, first: int) -> None:
        """Check a trampoline at an access: inserted code, if any, the displaced instruction, and the branch back."""
        before, at = self.old[index], first
        if before.opcode not in _MOVABLE and not (self.executed and before.opcode & _OF_ALL_FORMS in _ALSO_MOVABLE):
            self.report(index * _BYTES, f"an instruction was displaced that may not move, {before.opcode:#x}")
        if self.has_after:
            self._check_around(index, first)
            return
        if self.new[first].bits != before.without_reuse:
            # The last one above the branch back.
            back = self.new.next(_BRANCH, first + 1)
            at = (first + 1 if back is None else back) - 1
        self._take(range(first, at + 2), index)
        if self.new[at].bits != before.without_reuse:
            self.report(at * _BYTES, "the displaced instruction is another than the site's")
        self._check_back(at + 1, index, self.new[at])
        if at > first:
            self.accesses.append(Piece(index, range(first, first), range(first, at), range(at, at + 2)))

    def _check_around(self, index: int, first: int) -> None:
        """Check a trampoline at an access, where there may be inserted code on both sides of it."""
        before = self.old[index]
        back = self.new.next(_BRANCH, first + 1)
        # Branches under a predicate are the inserted code's.
        while back is not None and not self.new[back].is_always:
            back = self.new.next(_BRANCH, back + 1)
        if back is None:
            self.report(first * _BYTES, f"no branch back to {(index + 1) * _BYTES:#x}")
            return
        places = [at for at in range(first, back) if self.new[at].bits == before.without_reuse]
        at = places[0] if places else back - 1
        self._take(range(first, back + 1), index)
        if len(places) != 1:
            self.report(at * _BYTES, "the displaced instruction is another than the site's, or there twice")
        self._check_back(back, index, self.new[back - 1])
        self.accesses.append(
            Piece(index, range(first, first), range(first, at), range(at, at + 1), range(at + 1, back),
                  range(back, back + 1))
        )  # fmt: skip

    def _check_branch(self, index: int, first: int) -> None:
        """Check a trampoline at a branch: inserted code, the branch to where it went, and one back for lanes that it
        does not take."""
        before, at = self.old[index], self.new.next(_BRANCH, first)
        wanted = before.under(_TRUE).goes_to(index * _BYTES, self.sm)
        if wanted is None:
            self.report(index * _BYTES, "a branch was displaced that more than its predicates decide about")
        if at is None:
            self.report(first * _BYTES, "the trampoline of a branch has none")
            return
        after = self.new[at]
        goes_on = not (before.is_always and before.condition == _TRUE)
        self._take(range(first, at + 1 + goes_on), index)
        if after.under(_TRUE).goes_to(at * _BYTES, self.sm) != wanted:
            self.report(at * _BYTES, "the displaced branch goes elsewhere than the site's")
        if (after.bits ^ before.without_reuse) & ~_DISTANCE:
            self.report(at * _BYTES, "the displaced instruction is another than the site's")
        if goes_on:
            self._check_back(at + 1, index, after)
        if at > first:
            self.accesses.append(Piece(index, range(first, first), range(first, at), range(at, at + 1 + goes_on)))

    def _check_entry(self, first: int) -> None:
        """Check the trampoline of the first instruction: inserted code, the instruction, and the branch back."""
        before = self.old[0]
        back = self.new.next(_BRANCH, first + 1)
        if back is None:
            self.report(first * _BYTES, "no branch back to 0x10")
            return
        self._take(range(first, back + 1), 0)
        if self.new[back - 1].bits != before.without_reuse:
            self.report((back - 1) * _BYTES, "the displaced instruction is another than the site's")
        self._check_back(back, 0, self.new[back - 1])
        self.entry = Piece(0, range(first, first), range(first, back - 1), range(back - 1, back + 1))

    def _check_exit(self, index: int, first: int) -> None:
        """Check an EXIT's trampoline: what lets other lanes go back, inserted code, and the EXIT."""
        before = self.old[index]
        stays = first
        if self.executed and not (before.is_always and before.condition == _TRUE):
            # What all lanes do that come to it.
            stays = self.new.next(_BRANCH, first) or first
        body = stays + self._check_staying(index, stays)
        end = self.new.next(_EXIT, body)
        if end is None:
            self.report(first * _BYTES, "the trampoline of an EXIT has none")
            return
        self._take(range(first, end + 1), index)
        if self.new[end].bits != _Word(before.without_reuse).under(_TRUE).bits:
            self.report(end * _BYTES, "the EXIT is another than the site's, or not of all lanes that are there")
        self.moved[index * _BYTES] = end * _BYTES
        counts = range(first, stays)
        if self.executed and stays == body:
            # Nobody stays: the code that all EXITs have follows.
            counts = range(first, self._begin_of_end(first, end))
            body = counts.stop
        self.exits.append(Piece(index, range(first, body), range(body, end), range(end, end + 1), counts=counts))

    def _begin_of_end(self, first: int, end: int) -> int:
        """Return where the code of an EXIT begins after additions of what is counted there."""
        while first < end and addition(self.new[first].bits) is not None:
            first += 1
        return first

    def _check_staying(self, index: int, first: int) -> int:
        """Check how lanes that an EXIT does not end go back, all at once. Returns how many instructions that takes."""
        before, place = self.old[index], first * _BYTES
        if before.is_always and before.condition == _TRUE:
            return 0
        if first + 2 >= len(self.new):
            self.report(place, "the trampoline of an EXIT has none")
            return 0
        leap = self.new[first]
        target = leap.under(_TRUE).goes_to(place, self.sm)
        if before.condition == _TRUE:
            stays = leap.guard == before.guard ^ 8 and leap.condition == _TRUE and target == (index + 1) * _BYTES
            count = 1
        else:
            stays = (leap.guard, leap.condition) == (before.guard, before.condition) and target == place + 2 * _BYTES
            self._check_back(first + 1, index, None)
            count = 2
        if not stays:
            self.report(place, "lanes that stay do not go back at once")
        elif not leap.is_plain_branch:
            self.report(place, "the branch takes a scoreboard, or has other cycles than ptxas' own")
        return count


def check_code(original: bytes, twin: bytes, around: Surroundings | None = None, sm: int = 90) -> list[Finding]:
    """Return what is wrong with a twin's code: nothing if it is its original with trampolines, of which those at the
    entry, at EXITs and at accesses may have code.

    original, twin: all of ``.text.NAME``. around: what the cubins say; None where no inserted code may be. sm: of the
    architecture.
    """
    return _check_code(original, twin, around, "code", sm)[0]


def _check_code(
    original: bytes, twin: bytes, around: Surroundings | None, kernel: str, sm: int
) -> tuple[list[Finding], dict[int, int], int]:  # fmt: skip
    """Return what ``check_code`` does, new places of EXITs by their old ones, and the highest general register of
    inserted code, -1 without any. kernel: its mangled name. sm: of the architecture."""
    if len(twin) % _LINE or len(twin) < len(original) or len(original) % _BYTES:
        return [Finding(-1, f"the code is {len(twin)} bytes long, not a longer multiple of {_LINE}")], {}, -1
    has_after = around is not None and around.reference is not None and bool(around.reference.after)
    executed = around is not None and isinstance(around.counted, CountedInstructions)
    code = _Twin(_Words(original), _Words(twin), sm, has_after, executed)
    code.check()
    top = -1
    asked = around is not None and (around.counted is not None or around.reference is not None)
    if asked or code.entry is not None or code.exits or code.accesses:
        if around is None:
            return [*code.found, Finding(-1, "the twin has inserted code, but no parameter for it")], code.moved, -1
        decoded = decode(original, sm, kernel), decode(twin, sm, kernel, len(code.old))
        more, top = check_inserted(*decoded, code.entry, code.exits, code.accesses, around)
        code.found += more
    return code.found, code.moved, top


def check_cubin(
    original: bytes, twin: bytes, kernel: str, file: str, counted: Counted | CountedInstructions | None = None,
    reference: Reference | None = None,
) -> list[Finding]:  # fmt: skip
    """Return what is wrong with a twin's cubin, its code included.

    original, twin: cubins of one kernel. kernel: its mangled name. file: for the errors of damaged cubins. counted:
    what code at accesses has to count; None: if there is any, the bytes of all accesses of global memory. reference:
    what inserted code has to be, where that is known. Raises FormatError for a damaged cubin.
    """
    old, new = read_cubin(original, file), read_cubin(twin, file)
    found: list[Finding] = []
    if (old.arch, old.toolkit, old.virtual) != (new.arch, new.toolkit, new.virtual):
        found.append(Finding(-1, f"the twin is for {new.arch}, the original for {old.arch}"))
    if set(old.kernels) != {kernel} or set(new.kernels) != {kernel}:
        return [*found, Finding(-1, "the twin has other kernels than the original")]
    if set(old.functions) != set(new.functions) or any(new.functions[name] == b"" for name in new.functions):
        found.append(Finding(-1, "the twin has other functions than the original"))
    sm = _TABLES.get(old.arch, 0)
    if not sm:
        return [*found, Finding(-1, f"of the instructions of {old.arch or 'an unknown architecture'} nothing is known")]
    before, after = old.kernels[kernel], new.kernels[kernel]
    for name in ("frame", "stack", "shared", "max_threads", "required_threads", "barriers"):
        if getattr(before, name) != getattr(after, name):
            found.append(Finding(-1, f"{name} is {getattr(after, name)}, of the original {getattr(before, name)}"))
    base = before.parameter_base or _end_of_constants(original, kernel, file)
    if after.parameters and after.parameter_base != base:
        found.append(Finding(-1, f"parameter_base is {after.parameter_base}, not {base}"))
    if after.registers < before.registers:
        found.append(Finding(-1, f"{after.registers} registers, of the original {before.registers}"))
    more = after.parameters[len(before.parameters) :]
    if after.parameters[: len(before.parameters)] != before.parameters or len(more) > 1:
        found.append(Finding(-1, "the parameters are not the original's with one more at most"))
    for _, offset, size in more:
        if offset < before.parameter_size or offset + size != after.parameter_size:
            found.append(Finding(-1, f"the new parameter is at {offset}, not after the original's"))
    if not more and after.parameter_size != before.parameter_size:
        found.append(Finding(-1, "the parameters have another size than the original's"))
    found += _check_sections(original, twin, kernel, file, after.parameter_base + after.parameter_size)
    around = None
    if (counted is not None or reference is not None) and not more:
        found.append(Finding(-1, "the twin has no parameter for what it should count"))
    if more:
        begin = after.parameter_base + more[0][1]
        symbols = open_cubin(original, file).symbols()
        calls = any(symbol.name in _COME_BACK and symbol.section == 0 for symbol in symbols)
        entrances = _entrances(original, kernel, file) if isinstance(counted, CountedInstructions) else Entrances()
        around = Surroundings(
            before.registers, (begin, begin + more[0][2]), base, counted, reference, calls, sm, entrances
        )  # fmt: skip
    rules, moved, top = _check_code(before.code, after.code, around, kernel, sm)
    found += rules
    if top >= 0 and after.registers < top + 1 + _UNCOUNTED:
        found.append(Finding(-1, f"{after.registers} registers, of which inserted code names R{top}"))
    elf = open_cubin(original, file)
    if top >= 0:
        found += _check_calls(elf)
    added = _Words(after.code[len(before.code) :])
    third = sm < _THIRD_INDEX_TOLD_UNTIL and any(
        added[index].reads_third_index for opcode in _SPECIAL_READS for index in added.having(opcode)
    )
    return found + _check_attributes(elf, open_cubin(twin, file), kernel, moved, inserted=top >= 0, third_index=third)


def _end_of_constants(data: bytes, kernel: str, file: str) -> int:
    """Return the size of a kernel's constant bank 0, after which its first parameter would be, 0 without one."""
    section = open_cubin(data, file).section(f".nv.constant0.{kernel}")
    return 0 if section is None else section.size


def _check_calls(elf: Elf) -> list[Finding]:
    """Return functions of the driver that may use the registers of inserted code."""
    return [
        Finding(-1, f"the kernel calls {symbol.name}, whose registers are not known")
        for symbol in elf.symbols(kinds=(STT_FUNC,))
        if symbol.section == 0 and symbol.name != _OF_THE_DRIVER and symbol.name not in _COME_BACK
    ]  # fmt: skip


def _check_attributes(
    old: Elf, new: Elf, kernel: str, moved: dict[int, int], *, inserted: bool, third_index: bool
) -> list[Finding]:  # fmt: skip
    """Return attributes of the kernel that differ, but for those of parameters and the places of EXITs.

    moved: new place of EXITs by the old one. inserted: whether there is code at the first instruction.
    third_index: whether inserted code reads the block's third index, which an attribute has to say.
    """
    name = f".nv.info.{kernel}"
    sections = old.section(name), new.section(name)
    if sections[0] is None or sections[1] is None:
        return [] if sections[0] is sections[1] else [Finding(-1, f"the section {name} is in one cubin only")]
    of_parameters = {KPARAM_INFO, KPARAM_INFO_V2, CBANK_PARAM_SIZE, PARAM_CBANK}
    found = []
    lists = []
    for elf, section in zip((old, new), sections, strict=True):
        content = bytes(elf.contents(section)) if section is not None else b""
        lists.append([row for row in read_attributes(content, elf.file) if row.number not in of_parameters])
    if third_index and all(row.number != CTAIDZ_USED for row in lists[1]):
        found.append(Finding(-1, "inserted code reads the block's third index, and no attribute says so"))
    elif third_index and all(row.number != CTAIDZ_USED for row in lists[0]):
        lists[1] = [row for row in lists[1] if row.number != CTAIDZ_USED]
    for before, after in zip(*lists, strict=False):
        value = before.value
        if before.number == EXIT_INSTR_OFFSETS:
            places = (place for (place,) in struct.iter_unpack("<I", value[: len(value) // 4 * 4]))
            value = struct.pack(f"<{len(value) // 4}I", *(moved.get(place, place) for place in places))
        if (before.number, before.format, value) != (after.number, after.format, after.value):
            found.append(Finding(-1, f"attribute {before.number:#x} is not what the trampolines make of the original"))
        if inserted and before.number == INDIRECT_BRANCH_TARGETS and 0 in _indirect_targets(before.value):
            found.append(Finding(0, "the kernel may come back to its first instruction by a register"))
    if len(lists[0]) != len(lists[1]):
        found.append(Finding(-1, "the twin has other attributes than the original"))
    return found


def _entrances(data: bytes, kernel: str, file: str) -> Entrances:
    """Return where lanes may come to in a kernel, besides what its instructions say."""
    elf = open_cubin(data, file)
    text, section = elf.section(f".text.{kernel}"), elf.section(f".nv.info.{kernel}")
    functions = {
        symbol.value for symbol in elf.symbols(kinds=(STT_FUNC,)) if text is not None and symbol.section == text.index
    }  # fmt: skip
    indirect: dict[int, list[int]] = {}
    for row in read_attributes(bytes(elf.contents(section)), file) if section is not None else ():
        words = list(struct.unpack_from(f"<{len(row.value) // 4}I", row.value))
        at = 0
        # Of another layout nothing is known, so that the branches are findings.
        while row.number == INDIRECT_BRANCH_TARGETS and words[at + 1 : at + 2] == [0] and at + 2 < len(words):
            indirect.setdefault(words[at], []).extend(words[at + 3 : at + 3 + words[at + 2]])
            at += 3 + words[at + 2]
    return Entrances(frozenset(functions), indirect)


def _indirect_targets(value: bytes) -> set[int]:
    """Return the places in INDIRECT_BRANCH_TARGETS: of each branch its place, 0, how many there are, and these. Of
    another layout everything is taken for a place."""
    words = list(struct.unpack_from(f"<{len(value) // 4}I", value))
    targets: set[int] = set()
    at = 0
    while at < len(words):
        if words[at + 1 : at + 2] != [0] or at + 3 > len(words) or at + 3 + words[at + 2] > len(words):
            return set(words)
        targets.update(words[at + 3 : at + 3 + words[at + 2]])
        at += 3 + words[at + 2]
    return targets


def _check_sections(original: bytes, twin: bytes, kernel: str, file: str, parameters_end: int) -> list[Finding]:
    """Return sections that differ and may not. parameters_end: bytes of constant bank 0 that a launch fills."""
    may_differ = {f".text.{kernel}", ".nv.info", f".nv.info.{kernel}", ".symtab", f".nv.constant0.{kernel}"}
    old, new = open_cubin(original, file), open_cubin(twin, file)
    found = []
    if [section.name for section in old.sections] != [section.name for section in new.sections]:
        return [Finding(-1, "the twin has other sections than the original")]
    for before, after in zip(old.sections, new.sections, strict=True):
        same = before.name in may_differ or bytes(old.contents(before)) == bytes(new.contents(after))
        if not same or (before.type, before.flags, before.link) != (after.type, after.flags, after.link):
            found.append(Finding(-1, f"the section {before.name} differs"))
        if before.name == f".nv.constant0.{kernel}" and after.size < parameters_end:
            found.append(Finding(-1, f"constant bank 0 has {after.size} bytes, for parameters up to {parameters_end}"))
    sizes = {symbol.name: symbol.size for symbol in new.symbols()}
    text = new.section(f".text.{kernel}")
    if text is None or sizes.get(kernel) != text.size:
        found.append(Finding(-1, "the kernel's symbol has another size than its code"))
    return found


def require(found: list[Finding], kernel: str) -> None:
    """Raise MachineCodeError for the first finding, if there is one. kernel: the mangled name."""
    if found:
        at = f" at {found[0].place:#x}" if found[0].place >= 0 else ""
        raise MachineCodeError(kernel, f"its twin failed the check{at}: {found[0].rule}")
