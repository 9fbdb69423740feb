"""Which functions of its code object a kernel of AMD's calls, and how the addresses come to the calls.

A call is known when the address that it takes was added to the program counter, on every way there, and came in
registers, in lanes of vector registers, or in stack slots to which whole vector registers were saved (clang's ``-O0``
does all of that). An address may also be stored or compared, where it must stay the original's: an address that is used
for anything but calls is said so, and a call of it leads to the original.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from neutrino.errors import NeutrinoError
from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.code import CALLS, MIXED_WAVES, Function, Instruction, Module, PcLiteral, is_call
from neutrino.gcn.isa.effects import effects
from neutrino.gcn.isa.registers import (
    ACCUMULATORS,
    EVERYTHING,
    EXEC,
    VECTORS,
    UnknownInstructionError,
    registers_of,
)

_LITERAL_AT = 4
_RETURN = "s[30:31]"
"""Where a caller leaves the address to return to, by the ABI. It is no other function's at a jump, then."""
_GIVEN = range(30)
"""SGPRs in which functions may be given values; they may change them. Results come back in vector registers."""
_KEPT_VECTORS = sum(0xFF << first for first in range(40, 256, 16))
"""VGPRs that a function restores: v40 to v47, v56 to v63 and so on; others that it does not use are kept as well."""
_PRESERVED = (
    EVERYTHING & ~((1 << len(_GIVEN)) - 1) & ~(((1 << 256) - 1) << VECTORS) & ~(((1 << 32) - 1) << ACCUMULATORS)
    | _KEPT_VECTORS << VECTORS
)
"""Registers that a function restores if it changes them (LLVM, "User Guide for AMDGPU Backend", "Function ABI")."""
_ALL_LANES = re.compile(r"s_(or_saveexec|mov)_b(32|64)")
_MATTER = ("s_mov_b", "s_or_saveexec_b", *CALLS, "s_setpc_b64")
"""Beginnings of what changes or notes something where no address is known, besides what makes one."""
_STORES = re.compile(r"(buffer|scratch)_store_(dword|b32)(x\d|)")
_LOADS = re.compile(r"(buffer|scratch)_load_(dword|b32)(x\d|)")
_SINGLE = re.compile(r"([sva])(\d+)|([sva])\[(\d+):(\d+)\]")
_SLOT_BASES = ("s32", "s33")
_COPIES = frozenset(
    {"v_mov_b32_e32", "v_mov_b32_e64", "v_accvgpr_write_b32", "v_accvgpr_read_b32", "v_accvgpr_mov_b32"}
)


class Place(NamedTuple):
    """Where a half of an address is. file: "s", "v" or "a" of a register, the base register of a stack slot, or "exec".
    number: the register's, or the slot's offset in bytes. lane: of a vector register or its slot; -1 for scalar ones.
    """

    file: str
    number: int
    lane: int = -1


class Half(NamedTuple):
    """A half of an address that was added to the program counter, or what may be one. address: the whole, None where it
    is not the same on all ways. is_high: which half. origins: offsets of the instructions that read the program
    counter for it."""

    address: int | None
    is_high: bool
    origins: frozenset[int]


_Known = Mapping[Place, Half]
_ALL_LANES_RUN = Place("exec", 0)
"""Says in a state that EXEC has all lanes: what it maps to means nothing."""
_YES = Half(0, False, frozenset())


class Called(NamedTuple):
    """A function that is called, or jumped to. origins: of its address, as a ``Half`` has them; empty for a call that
    has its distance itself (``s_call_b64``)."""

    function: Function
    origins: frozenset[int]


@dataclass(frozen=True)
class FunctionCalls:
    """The calls in one function. called: those that are known. unknown: the others, in words. escaped: offsets of the
    instructions that read the program counter for an address that is used for something else than calls, too."""

    called: tuple[Called, ...] = ()
    unknown: tuple[str, ...] = ()
    escaped: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Reach:
    """The functions that a kernel may run.

    copied: itself first, and those that calls lead to that can lead to copies: all of them may be copied together.
    redirected: of each of these, what ``splice.Member`` has by that name. originals: functions that may run from other
    calls, where no copy can: their addresses are taken, or not known. named: all whose registers must be left alone:
    those and, if a call's target is not known, all functions of the code object. unknown: the calls without a known
    target, in words.
    """

    copied: tuple[Function, ...]
    redirected: tuple[frozenset[int], ...]
    originals: tuple[Function, ...]
    named: tuple[Function, ...]
    unknown: tuple[str, ...]


class UnknownCallError(NeutrinoError):
    """A function may be called that is not known."""


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of a module's functions. generation: of the processor, 9 to 12."""

    module: Module
    generation: int
    _calls: dict[tuple[int, bool], FunctionCalls] = field(default_factory=dict)
    _changed: dict[int, int] = field(default_factory=dict)
    _read: dict[int, int] = field(default_factory=dict)

    def reach(self, kernel: Function) -> Reach:
        """Return what functions a kernel may run.

        Raises UnknownCallError where that cannot be said: a function calls one whose instructions are not known.
        UnknownInstructionError for an instruction that is not known, in a function with calls.
        """
        copied = {kernel.address: kernel}
        redirected: dict[int, frozenset[int]] = {}
        taken: dict[int, Function] = {}
        unknown: dict[str, None] = {}
        waiting = [kernel]
        while waiting:
            function = waiting.pop(0)
            calls = self.calls_of(function)
            unknown |= dict.fromkeys(calls.unknown)
            to_copies: set[int] = set()
            for called, origins in calls.called:
                if called.refused:
                    taken[called.address] = called
                    continue
                to_copies |= origins - calls.escaped
                if origins & calls.escaped:
                    taken[called.address] = called
                if (not origins or origins - calls.escaped) and called.address not in copied:
                    copied[called.address] = called
                    waiting.append(called)
            redirected[function.address] = frozenset(to_copies)
        originals = self._closure(taken.values())
        for function in originals:
            unknown |= dict.fromkeys(self.calls_of(function).unknown)
        named = (*copied.values(), *originals)
        if unknown:
            originals = self._closure((*taken.values(), *self._pointed))
            named = (*copied.values(), *(function for function in self.module.functions if not function.is_kernel))
        named = tuple({function.address: function for function in named}.values())
        mixed = next((function.name for function in named if function.refused == MIXED_WAVES), None)
        if mixed is not None:
            raise UnknownCallError(f"{mixed}: {MIXED_WAVES}")
        order = tuple(redirected[address] for address in copied)
        return Reach(tuple(copied.values()), order, originals, named, tuple(unknown))

    def calls_of(self, function: Function) -> FunctionCalls:
        """Return the calls in a function. Raises UnknownInstructionError if it has any, and such an instruction."""
        return self._calls_of(function, is_sure=True)

    def _closure(self, functions: Iterable[Function]) -> tuple[Function, ...]:
        """Return functions with all that known calls in them lead to, directly or through others. Raises as
        ``calls_of``."""
        return self._with_called(functions, is_sure=True)

    def _with_called(self, functions: Iterable[Function], *, is_sure: bool) -> tuple[Function, ...]:
        """Return functions with all that the calls in them lead to, directly or through others.

        is_sure: as for ``_calls_of``.
        """
        found = {function.address: function for function in functions}
        waiting = list(found.values())
        while waiting:
            for called, _ in self._calls_of(waiting.pop(), is_sure=is_sure).called:
                if called.address not in found:
                    found[called.address] = called
                    waiting.append(called)
        return tuple(found.values())

    def _calls_of(self, function: Function, *, is_sure: bool) -> FunctionCalls:
        """Return the calls in a function, as ``calls_of``; found once for each answer to is_sure.

        is_sure: whether registers that a call may change are taken not to have what they had. Which these are depends
        on what is called, so that it is found out first without that: then more calls seem to be known.
        """
        key = function.address, is_sure
        if key not in self._calls:
            self._calls[key] = _Search(self, function, is_sure).found()
        return self._calls[key]

    @cached_property
    def _pointed(self) -> tuple[Function, ...]:
        """The functions that a call of an unknown address may lead to: those whose addresses data have or some code
        uses for something else than calls; all where none is known to."""
        found = set(self.module.pointed)
        for function in self.module.functions:
            at = {literal.get_pc: literal.target for literal in function.literals if literal.target in self.by_address}
            try:
                escaped: Iterable[int] = self.calls_of(function).escaped if at else ()
            except UnknownInstructionError:
                escaped = at
            found |= {at[get_pc] for get_pc in escaped}
        named = tuple(function for address, function in self.by_address.items() if address in found)
        return named or tuple(self.by_address.values())

    @cached_property
    def by_address(self) -> Mapping[int, Function]:
        """The module's functions by their addresses, without kernels."""
        return {function.address: function for function in self.module.functions if not function.is_kernel}

    def changed_by(self, function: Function) -> int:
        """Return the registers that a call of a function changes. Raises as ``calls_of``."""
        if function.address not in self._changed:
            found = 0
            for each in self._with_called((function,), is_sure=False):
                if self._calls_of(each, is_sure=False).unknown:
                    found = EVERYTHING
                for row in each.instructions:
                    if row.mnemonic and not is_call(row):
                        found |= effects(row, self.generation).writes
            self._changed[function.address] = found & ~_PRESERVED
        return self._changed[function.address]

    def read_by(self, function: Function) -> int:
        """Return the registers that a function reads, or one that it calls. Raises as ``calls_of``."""
        if function.address not in self._read:
            found = 0
            for each in self._with_called((function,), is_sure=False):
                if self._calls_of(each, is_sure=False).unknown:
                    found = EVERYTHING
                for row in each.instructions:
                    if row.mnemonic and not is_call(row) and row.mnemonic != "s_setpc_b64":
                        found |= effects(row, self.generation).reads
            self._read[function.address] = found
        return self._read[function.address]


class _Search:
    """Follows addresses through one function, along all ways at once."""

    def __init__(self, calls: Calls, function: Function, is_sure: bool) -> None:
        """is_sure: as for ``Calls._calls_of``."""
        self._calls, self._function, self._is_sure = calls, function, is_sure
        self._literals = {literal.get_pc: literal for literal in function.literals}
        self._sums = {half - _LITERAL_AT for literal in function.literals for half in (literal.low, literal.high)}
        self._called: dict[int, set[int]] = {}
        self._unknown: dict[int, str] = {}
        self._escaped: set[int] = set()

    def found(self) -> FunctionCalls:
        """Return the calls in the function, after following addresses along all of its ways.

        Raises UnknownInstructionError.
        """
        function = self._function
        taken = {literal.get_pc for literal in function.literals if literal.target in self._calls.by_address}
        if not function.instructions.named(*CALLS, "s_setpc_b64"):
            return FunctionCalls(escaped=frozenset(taken))
        graph = FlowGraph(function)
        at_entry: dict[int, _Known] = {0: {}}
        # A jump may lead to any place whose address is made here; with nothing known.
        if any(_is_jump(row, is_kernel=function.is_kernel) for row in function.instructions):
            for literal in function.literals:
                index = graph.index_at.get(literal.target - function.address)
                if index is not None:
                    at_entry[graph.block_of(index)] = {}
        waiting = list(at_entry)
        while waiting:
            number = waiting.pop()
            known = self._through_block(graph, number, at_entry[number])
            for successor in graph.blocks[number].successors:
                before = at_entry.get(successor)
                met = known if before is None else _met(before, known)
                if met != before:
                    at_entry[successor] = met
                    waiting.append(successor)
            if not waiting:
                # Nothing is seen to lead to the others; if something does, nothing is known there.
                left = next((other for other in range(len(graph.blocks)) if other not in at_entry), None)
                if left is not None:
                    at_entry[left] = {}
                    waiting.append(left)
        for noted in (self._called, self._unknown, self._escaped):
            noted.clear()
        for number, known in at_entry.items():
            self._through_block(graph, number, known)
        called = (
            Called(self._calls.by_address[address], frozenset(origins))
            for address, origins in sorted(self._called.items())
        )
        unknown = tuple(words for _, words in sorted(self._unknown.items()))
        return FunctionCalls(tuple(called), unknown, frozenset(self._escaped))

    def _through_block(self, graph: FlowGraph, number: int, known: _Known) -> _Known:
        """Return which registers and stack slots have which addresses at a basic block's end.

        Calls in the block, and other uses of addresses, are noted on the way. known: what has which address at its
        beginning.
        """
        block = graph.blocks[number]
        state, generation = dict(known), self._calls.generation
        for row in self._function.instructions[block.begin : block.end]:
            # Where nothing is known, little makes that change. It raises.
            if state or row.offset in self._literals or row.mnemonic.startswith(_MATTER) or not row.mnemonic:
                self._step(row, state)
            else:
                effects(row, generation)
        return state

    def _step(self, row: Instruction, state: dict[Place, Half]) -> None:
        """Change which registers and stack slots are known to have which addresses (state), as an instruction does."""
        literal = self._literals.get(row.offset)
        if literal is not None:
            self._make_address(row, literal, state)
        elif row.offset in self._sums or (row.mnemonic == "s_sext_i32_i16" and self._is_amid_sums(row)):
            # The address is known already.
            return
        elif is_call(row):
            self._call(row, state)
        elif row.mnemonic == "s_setpc_b64":
            if _is_jump(row, is_kernel=self._function.is_kernel):
                self._jump(row, state)
        elif not self._copy(row, state):
            self._other(row, state)

    def _make_address(self, row: Instruction, literal: PcLiteral, state: dict[Place, Half]) -> None:
        """Note in state that two SGPRs have the halves of an address that code makes from the program counter."""
        self._kill(registers_of(row.operands[0]), state)
        for place, is_high in zip(_places(row.operands[0]), (False, True), strict=True):
            state[place] = Half(literal.target, is_high, frozenset((literal.get_pc,)))

    def _is_amid_sums(self, row: Instruction) -> bool:
        """Return whether an instruction stands between one that reads the program counter and its sums."""
        return any(literal.get_pc < row.offset < literal.high for literal in self._function.literals)

    def _target(self, row: Instruction, state: Mapping[Place, Half]) -> tuple[int | None, frozenset[int]]:
        """Return the address that a call or a jump leads to, None where it is not known; and its origins.

        Origins are the offsets of the instructions that made the address from the program counter.
        """
        if row.target is not None:
            return self._function.address + row.target, frozenset()
        low, high = (state.get(place) for place in _places(row.operands[-1]))
        if low is None or high is None:
            return None, frozenset().union(*(half.origins for half in (low, high) if half is not None))
        is_whole = low.address == high.address and (low.is_high, high.is_high) == (False, True)
        return low.address if is_whole else None, low.origins | high.origins

    def _call(self, row: Instruction, state: dict[Place, Half]) -> None:
        """Note which function a call instruction leads to, and forget in state the registers that the call may change.
        """
        address, origins = self._target(row, state)
        called = self._leads_to(row, address, origins)
        changed, read = EVERYTHING & ~_PRESERVED, EVERYTHING
        if not self._is_sure:
            changed = read = 0
        elif called is not None:
            changed, read = self._calls.changed_by(called), self._calls.read_by(called)
        taken = registers_of(row.operands[-1]) if row.target is None else 0
        for place, half in state.items():
            if place.file == "s" and place.number in _GIVEN and _mask(place) & read & ~taken:
                self._use(half)
        self._kill(changed | registers_of(row.operands[0]), state)

    def _jump(self, row: Instruction, state: dict[Place, Half]) -> None:
        """Note which function a jump out of this one leads to: the wave goes on there, and does not come back."""
        address, origins = self._target(row, state)
        inside = (address or 0) - self._function.address
        if address is None or not 0 < inside < len(self._function.code):
            self._leads_to(row, address, origins)

    def _leads_to(self, row: Instruction, address: int | None, origins: frozenset[int]) -> Function | None:
        """Note that a call or jump leads to an address, and return the function there, None where it is not known."""
        called = self._calls.by_address.get(-1 if address is None else address)
        if called is None:
            where = f"{row.mnemonic} at {row.offset:#x} of {self._function.name}"
            self._unknown[row.offset] = f"{where} calls a function by a pointer"
            self._use(Half(None, False, origins))
            return None
        self._called.setdefault(called.address, set()).update(origins)
        return called

    def _copy(self, row: Instruction, state: dict[Place, Half]) -> bool:
        """Carry out in state an instruction that copies halves of addresses unchanged. Returns whether it is one."""
        name, operands = row.mnemonic, row.operands
        if name in ("s_mov_b64", "s_mov_b32"):
            halves = [state.get(place) for place in _places(operands[1])]
            return self._set(_places(operands[0]), halves, state) if any(halves) else False
        if name.startswith("v_writelane_b32") and operands[2].isdigit():
            (place,), (half,) = _places(operands[0]), [state.get(place) for place in _places(operands[1])] or [None]
            return self._set([place._replace(lane=int(operands[2]))], [half], state)
        if name.startswith("v_readlane_b32") and operands[2].isdigit():
            half = state.get(_places(operands[1])[0]._replace(lane=int(operands[2])))
            return self._set(_places(operands[0]), [half], state)
        if _ALL_LANES_RUN not in state:
            return self._moves_slots(row, state, whole=False)
        if name in _COPIES and _SINGLE.fullmatch(operands[1]) and operands[1][0] != "s":
            self._copy_lanes(_places(operands[1])[0], _places(operands[0])[0], state)
            return True
        return self._moves_slots(row, state, whole=True)

    def _moves_slots(self, row: Instruction, state: dict[Place, Half], *, whole: bool) -> bool:
        """Carry out in state an instruction that saves a vector register to a stack slot, or loads it. Returns whether
        it is one.

        Stack slots into which registers are saved are the compiler's own: no pointer of the program's leads there.
        whole: whether all lanes run.
        """
        slot = _slot(row)
        if slot is None:
            return False
        is_store, register, place, size = slot
        if is_store:
            for other in [
                other for other in state
                if other.file == place.file and place.number <= other.number < place.number + size
            ]:
                del state[other]
        single = _SINGLE.fullmatch(register)
        if not whole or size != _LITERAL_AT or single is None or single[1] is None:
            return False
        vector = _places(register)[0]
        if is_store:
            self._copy_lanes(vector, place, state)
        else:
            self._copy_lanes(place, vector, state)
        return True

    @staticmethod
    def _copy_lanes(source: Place, to: Place, state: dict[Place, Half]) -> None:
        """Carry out in state a copy of a vector register or stack slot to another: of the address halves of all its
        lanes."""
        found = [(place, half) for place, half in state.items() if place[:2] == source[:2]]
        for place in [place for place in state if place[:2] == to[:2]]:
            del state[place]
        for place, half in found:
            state[to._replace(lane=place.lane)] = half

    def _set(self, places: list[Place], halves: list[Half | None], state: dict[Place, Half]) -> bool:
        """Note in state that places (registers, lanes of them, stack slots) have these halves of addresses, None for
        anything else. Returns whether there are as many places as halves; if not, nothing is changed."""
        if len(places) != len(halves):
            return False
        self._kill(sum(_mask(place) for place in places if place.lane < 0), state)
        for place, half in zip(places, halves, strict=True):
            state.pop(place, None)
            if half is not None:
                state[place] = half
        return True

    def _other(self, row: Instruction, state: dict[Place, Half]) -> None:
        """Carry out in state an instruction that is no copy: addresses that it reads may go anywhere, what it writes
        has none."""
        found = effects(row, self._calls.generation)
        for place, half in state.items():
            if place.file in "sva" and _mask(place) & found.reads:
                self._use(half)
        self._kill(found.writes, state)
        all_lanes = _ALL_LANES.fullmatch(row.mnemonic)
        if all_lanes and found.writes & EXEC and row.operands[1] == "-1" and int(all_lanes[2]) == self._function.wave:
            state[_ALL_LANES_RUN] = _YES

    def _use(self, half: Half) -> None:
        """Note that an address is used for something else than calls, so that calls elsewhere may lead to its function.
        """
        for get_pc in half.origins:
            if self._literals[get_pc].target in self._calls.by_address:
                self._escaped.add(get_pc)

    @staticmethod
    def _kill(written: int, state: dict[Place, Half]) -> None:
        """Forget in state the addresses in registers that are written, and in stack slots that are found through these.
        """
        if not written:
            return
        for place in [place for place in state if _mask(place) & written]:
            del state[place]


def _is_jump(row: Instruction, *, is_kernel: bool = False) -> bool:
    """Return whether an instruction jumps to an address, and is no return."""
    return row.mnemonic == "s_setpc_b64" and (is_kernel or row.operands[0] != _RETURN)


def _met(first: _Known, second: _Known) -> dict[Place, Half]:
    """Return what is known where two ways of the code meet: the addresses that registers and slots have on both.

    An address that is there on one way only is not known any more, but its origins are.
    """
    met: dict[Place, Half] = {}
    for place in {**first, **second}:
        one, other = first.get(place), second.get(place)
        if one is not None and one == other:
            met[place] = one
            continue
        origins = frozenset().union(*(half.origins for half in (one, other) if half is not None))
        if not origins:
            continue
        is_same = one is not None and other is not None and one[:2] == other[:2]
        either = one if one is not None else other
        assert either is not None
        met[place] = Half(either.address if is_same else None, either.is_high, origins)
    return met


def _mask(place: Place) -> int:
    """Return the register that a place is in, or by which its stack slot is found, as a set of ``isa.registers``."""
    if place.file == "v":
        return 1 << VECTORS + place.number
    if place.file == "a":
        return 1 << ACCUMULATORS + place.number
    if place.file == "s":
        return 1 << place.number
    return EXEC if place == _ALL_LANES_RUN else registers_of(place.file) if place.file in _SLOT_BASES else 0


def _places(operand: str) -> list[Place]:
    """Return the single registers that an operand names, such as s4 and s5 for ``s[4:5]``; none for other operands."""
    match = _SINGLE.fullmatch(operand)
    if match is None:
        return []
    if match[1]:
        return [Place(match[1], int(match[2]))]
    return [Place(match[3], number) for number in range(int(match[4]), int(match[5]) + 1)]


def _slot(row: Instruction) -> tuple[bool, str, Place, int] | None:
    """Return of an instruction that accesses a slot of the stack: whether it writes it, the vector registers, where it
    is, and how many bytes it has. None for others."""
    store, load = _STORES.fullmatch(row.mnemonic), _LOADS.fullmatch(row.mnemonic)
    match = store or load
    if match is None or len(row.modifiers) > 1:
        return None
    offset = 0
    if row.modifiers:
        word, _, number = row.modifiers[0].partition(":")
        if word != "offset":
            return None
        offset = int(number, 0)
    size = _LITERAL_AT * int(match[3][1:] or 1)
    if match[1] == "buffer":
        register, address, resource, base = row.operands
        if address != "off" or resource != "s[0:3]":
            return None
    else:
        first, second, base = row.operands
        register, address = (second, first) if store else (first, second)
        if address != "off":
            return None
    if base not in (*_SLOT_BASES, "0", "off"):
        return None
    return bool(store), register, Place(base if base in _SLOT_BASES else "stack", offset, 0), size
