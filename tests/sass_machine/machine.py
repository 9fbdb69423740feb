"""An interpreter of sm_90 machine code, for tests: it runs a kernel of a cubin, and judges when its instructions come.

Lanes of a warp go on in groups; which group, and which warp, is next is the same in every run, or drawn at random:
``turns``. What an instruction means is in ``arithmetic`` and ``communication``; what is not there is an error that
names it, when a warp comes to it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from neutrino.sass.cubin import CubinKernel, open_cubin, read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.instruction import RegisterFile
from tests.sass_machine import communication, floats  # noqa: F401  (they fill OPCODES)
from tests.sass_machine.arithmetic import OPCODES, Run
from tests.sass_machine.communication import LOCAL_BASE
from tests.sass_machine.lanes import LANES, lanes_of, mask_of
from tests.sass_machine.memory import Memory, MemoryFaultError
from tests.sass_machine.operands import Operands
from tests.sass_machine.text import Parsed, UnknownMachineCodeError, read
from tests.sass_machine.timing import HazardError, Op, Timing, kind_of
from tests.sass_machine.warp import Group, MachineError, Warp

Extents = tuple[int, int, int]
_NOTHING = frozenset({
    "NOP", "PMTRIG", "MEMBAR", "ERRBAR", "CCTL", "DEPBAR", "LDGDEPBAR", "YIELD", "NANOSLEEP", "FENCE", "CGAERRBAR",
    "ENDCOLLECTIVE",
})  # fmt: skip
"""Opcodes that do nothing here: all memory is written at once."""
_BASE = 0x210
"""Where parameters begin in constant bank 0."""
_DIMENSIONS, _STACK, _WARPS = (0x0, 0x0C), 0x28, 0x2C
_LOCAL, _LEAST_LOCAL, _MOST_WARPS = 0x20, 2048, 48
"""Where the window of local memory is for generic addresses; bytes of it; what the embedded device says of %nwarpid."""
_STEPS = 400_000
"""Instructions of warps after which a launch counts as endless."""
_OFFSET_LOW, _OFFSET_HIGH = 16, 34
_BELOW_CONTROL = (1 << 105) - 1
_BRANCH, _ALWAYS = 0x947, 7
_DISTANCE = 0xFF << _OFFSET_LOW | (1 << 48) - 1 << _OFFSET_HIGH
_INSERTED = frozenset({"IMAD"})
"""Opcodes of which the kernel may have the very instructions that are inserted."""
_TURN = 12
"""Instructions at most until another warp or group may be next, where turns are drawn."""

__all__ = ["HazardError", "Launch", "MachineError", "MemoryFaultError", "Program", "UnknownMachineCodeError"]


@dataclass
class _Step:
    """An instruction made ready. guard: its predicate's row and whether it is negated."""

    op: Op
    parsed: Parsed
    guard: tuple[bool, bool, int] | None
    run: Run | None
    flow: Callable[[Warp, Group, int], None] | None
    place: int


def _offset(word: int) -> int:
    """How far a branch goes, from the next instruction."""
    value = (word >> _OFFSET_LOW & 0xFF) | (word >> _OFFSET_HIGH & (1 << 48) - 1) << 8
    return 4 * (value - (1 << 56) if value >> 55 else value)


def _ones(bits: int) -> Iterator[int]:
    """The numbers of the bits that are 1."""
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1


class Program:
    """A kernel's instructions, made ready. strict_from: from where on ptxas has not scheduled the code, in bytes.
    fresh: general registers from this on are that code's own. banks: constant banks by number, but for 0."""

    def __init__(
        self, kernel: CubinKernel, strict_from: int | None = None, fresh: int = 256,
        banks: Mapping[int, bytes] | None = None,
    ) -> None:  # fmt: skip
        code = kernel.code
        self.kernel = kernel
        self.banks = dict(banks or {})
        self.fresh = fresh
        self.words = [int.from_bytes(code[at : at + 16], "little") for at in range(0, len(code), 16)]
        self._strict_from = len(code) if strict_from is None else strict_from
        self._old = {self._without_distance(word) for word in self.words[: self._strict_from // 16]}
        self._code = decode(code, 90, kernel.name)
        self._steps: dict[int, _Step] = {}

    @staticmethod
    def _without_distance(word: int) -> int:
        """An instruction without its control bits, of a branch without how far it goes."""
        word &= _BELOW_CONTROL
        return word & ~_DISTANCE if word & 0xFFF == _BRANCH and word >> 12 & 0xF != _ALWAYS else word

    def is_inserted(self, place: int) -> bool:
        """Whether an instruction comes after the kernel's own code."""
        return place >= self._strict_from

    @property
    def executed_places(self) -> frozenset[int]:
        """Where instructions are that any launch has come to."""
        return frozenset(self._steps)

    @cached_property
    def _texts(self) -> Mapping[int, Parsed]:
        """All instructions as nvdisasm prints them, by their words."""
        return read(self.words)

    def step(self, place: int) -> _Step:
        """The instruction at a place. Raises UnknownMachineCodeError, MachineError."""
        found = self._steps.get(place)
        if found is None:
            if place % 16 or not 0 <= place < 16 * len(self.words):
                raise MachineError(f"goes on at {place:#x}, where there is no instruction")
            found = self._steps[place] = self._make(place)
        return found

    def _make(self, place: int) -> _Step:
        word = self.words[place // 16]
        parsed = self._texts[word]
        operands = Operands(parsed, word)
        run, flow = None, _FLOWS.get(parsed.name)
        if flow is not None:
            flow = flow(operands, place + 16, place + 16 + _offset(word))
        elif operands.name in OPCODES:
            run = OPCODES[operands.name](operands)
        elif parsed.name in _NOTHING:
            operands.parts, operands.operands = [], []
        else:
            raise operands.unknown("an opcode that nobody has taught")
        operands.finish()
        guard = parsed.guard
        # Of the kernel's own instructions, which may stand in a trampoline, ptxas has scheduled what they use.
        own = self._without_distance(word) in self._old and parsed.name not in _INSERTED
        strict = place >= self._strict_from and not own
        op = Op(
            place, parsed.text, parsed.name, kind_of(parsed.name, parsed.parts),
            None if guard is None or guard[2] == 7 else ("UP" if guard[1] else "P", guard[2]),
            tuple(operands.uses), tuple(operands.writes), word >> 105 & 15, word >> 116 & 63, word >> 110 & 7,
            word >> 113 & 7, strict, self.fresh,
            int(parsed.operands[1].number) if parsed.name == "DEPBAR" and len(parsed.operands) > 1 else 0,
        )  # fmt: skip
        self._compare(op, place)
        return _Step(op, parsed, guard, run, flow, place)

    def _compare(self, op: Op, place: int) -> None:
        """Raise MachineError if the decoder says that other registers are read or written than are here."""
        index = place // 16
        if 16 * index in self._code.unknown:
            return
        mine = {"reads": {one for use in op.reads for one in use.registers}, "writes": set(op.writes)}
        if op.guard is not None:
            mine["reads"].add(op.guard)
        for what, masks in (("reads", self._code.reads), ("writes", self._code.writes)):
            theirs = set()
            for file in (RegisterFile.GENERAL, RegisterFile.UNIFORM):
                for at, part in enumerate(masks[file][index].tolist()):
                    theirs |= {(file.value, 64 * at + number) for number in _ones(part)}
            for file in (RegisterFile.PREDICATE, RegisterFile.UNIFORM_PREDICATE):
                theirs |= {(file.value, number) for number in _ones(int(masks[file][index])) if number < 7}
            if mine[what] != theirs and op.name not in _DECODED_OTHERWISE:
                raise MachineError(f"{op} {what} {sorted(mine[what])}, but the decoder says {sorted(theirs)}")


_DECODED_OTHERWISE = frozenset({"LDGSTS", "BRA"})
"""``nvdisasm`` marks the predicate of the one as written, and of BRA.DIV a pair of registers as read."""


class Block:
    """A block of a launch."""

    def __init__(self, launch: Launch, index: Extents, number: int) -> None:
        self.launch = launch
        self.index = index
        self.multiprocessor = launch.multiprocessor(number)
        self.shared = Memory(0, launch.shared)
        self.shared.allow(0, launch.shared)
        threads = prod(launch.block)
        whole = -(-threads // LANES)
        self.local = Memory(0, launch.local_size * LANES * whole)
        self.local.allow(0, launch.local_size * LANES * whole)
        self.warps = [
            Warp(self, warp, (1 << min(LANES, threads - LANES * warp)) - 1, Timing(judged=launch.judged))
            for warp in range(whole)
        ]  # fmt: skip

    def run(self) -> None:
        """Run all warps to their ends."""
        turns = self.launch.turns
        while living := [warp for warp in self.warps if warp.alive]:
            if turns is not None:
                turns.shuffle(living)
            went = [self.launch.advance(warp, None if turns is None else turns.randint(1, _TURN)) for warp in living]
            if not any(went) and not self._release():
                waiting = [(warp.number, one) for warp in living for one in warp.groups]
                raise MachineError(f"nobody can go on: {waiting[:8]}")

    def _release(self) -> bool:
        """Let those go on for whom all threads of the block have come to a barrier."""
        waiting = [(warp, one) for warp in self.warps for one in warp.groups if one.waits == "BAR"]
        for number in {one.number for _, one in waiting}:
            mine = [(warp, one) for warp, one in waiting if one.number == number]
            come = {warp.number: 0 for warp in self.warps}
            for warp, one in mine:
                come[warp.number] |= one.mask
            if all(come[warp.number] == warp.alive for warp in self.warps):
                for _, one in mine:
                    one.waits = ""
                return True
        return False


class Launch:
    """A launch of a kernel. parameters: packed. memory: global.

    seed: of the turns that warps and lanes take; None for the same ones each time. judged: whether registers that are
    used too early are errors. steps: instructions of warps after which it counts as endless. accesses: what lanes
    touched of global memory, (opcode, addresses, bytes). ends: the clock when a warp ended, by block and warp.
    lanes_at: how many lanes executed the instruction at each place, those in which its guard held.
    """

    def __init__(
        self, program: Program, grid: Extents, block: Extents, parameters: bytes, memory: Memory, *,
        shared: int = 0, seed: int | None = None, judged: bool = True, steps: int = _STEPS,
    ) -> None:  # fmt: skip
        kernel = program.kernel
        self.program = program
        self.grid, self.block = grid, block
        self.memory = memory
        self.shared = max(kernel.shared, 1024) + shared
        self.local_size = -(-max(kernel.stack, kernel.frame, _LEAST_LOCAL) // 16) * 16
        self.turns = None if seed is None else random.Random(seed)
        self.garbage = np.random.default_rng(seed or 0)
        self.judged = judged
        self.executed = 0
        self._steps = steps
        self.accesses: list[tuple[str, NDArray[np.uint64], int]] = []
        self.ends: dict[tuple[Extents, int], int] = {}
        self.lanes_at: Counter[int] = Counter()
        if len(parameters) > kernel.parameter_size:
            raise ValueError(f"{len(parameters)} bytes of parameters, not {kernel.parameter_size}")
        bank = bytearray(_BASE + -(-kernel.parameter_size // 16) * 16)
        bank[_BASE : _BASE + len(parameters)] = parameters
        for at, extents in zip(_DIMENSIONS, (block, grid), strict=True):
            bank[at : at + 12] = np.array(extents, "<u4").tobytes()
        bank[_STACK : _STACK + 4] = self.local_size.to_bytes(4, "little")
        bank[_WARPS : _WARPS + 4] = _MOST_WARPS.to_bytes(4, "little")
        bank[_LOCAL : _LOCAL + 8] = LOCAL_BASE.to_bytes(8, "little")
        self.constants = {0: np.frombuffer(bytes(bank), "<u4")}
        for number, data in program.banks.items():
            self.constants[number] = np.frombuffer(data.ljust(-(-len(data) // 4) * 4, b"\0"), "<u4")

    def now(self, warp: Warp) -> int:
        """The clock that a warp reads."""
        return self.begin(warp.number) + warp.timing.clock

    def index(self, number: int) -> Extents:
        """A block's index, by its number."""
        x, y, _ = self.grid
        return number % x, number // x % y, number // (x * y)

    @staticmethod
    def multiprocessor(block: int) -> int:
        """Where a block runs, by its number."""
        return block % 7

    @staticmethod
    def begin(warp: int) -> int:
        """What the clock says when a warp begins, by its number in the block."""
        return 1_000_000 + 1000 * warp

    def run(self) -> Launch:
        """Run it to its end. Raises HazardError, MachineError, MemoryFaultError, UnknownMachineCodeError."""
        indices = [(x, y, z) for z, y, x in product(*(range(extent) for extent in reversed(self.grid)))]
        numbers = list(range(len(indices)))
        if self.turns is not None:
            self.turns.shuffle(numbers)
        with np.errstate(over="ignore"):
            for number in numbers:
                Block(self, indices[number], number).run()
        return self

    def advance(self, warp: Warp, most: int | None) -> bool:
        """Let a warp go on, until nothing of it can; or so many instructions. Returns whether it went on."""
        went = 0
        while warp.alive and (most is None or went < most):
            ready = [one for one in warp.groups if not one.waits]
            if not ready:
                if warp.release():
                    continue
                break
            group = ready[0] if self.turns is None else self.turns.choice(ready)
            budget, may_leave = None if most is None else most - went, True
            # ptxas's code leaves what concerns a group in uniform registers for a few instructions. So groups take
            # turns where the flow goes on, but in inserted code anywhere.
            while not group.waits and group.mask and (budget is None or budget > 0 or not may_leave):
                may_leave = self._issue(warp, group)
                went += 1
                if budget is not None:
                    budget -= 1
        return went > 0

    def _issue(self, warp: Warp, group: Group) -> bool:
        """Issue an instruction. Returns whether other lanes of the warp may be next."""
        self.executed += 1
        if self.executed > self._steps:
            raise MachineError("the launch does not end")
        step = self.program.step(group.place)
        mask = group.mask
        if step.guard is not None:
            negated, uniform, number = step.guard
            if uniform:
                mask = mask if bool(warp.up[number, 0]) != negated else 0
            else:
                holds = mask_of(warp.p[number])
                mask &= ~holds if negated else holds
        try:
            warp.timing.issue(step.op, mask, group.mask)
        except HazardError as error:
            raise HazardError(f"{error} (block {warp.block.index}, warp {warp.number})") from None
        warp.executing = mask
        self.lanes_at[step.place] += mask.bit_count()
        if step.flow is not None:
            group.place += 16
            step.flow(warp, group, mask)
            if not warp.alive:
                self.ends[warp.block.index, warp.number] = self.now(warp)
            return True
        if mask and step.run is not None:
            try:
                step.run(warp, lanes_of(mask))
            except (MachineError, MemoryFaultError) as error:
                raise type(error)(f"{step.op}: {error}") from None
        group.place += 16
        return self.program.is_inserted(step.place)


_Flow = Callable[[Warp, Group, int], None]
_FLOWS: dict[str, Callable[[Operands, int, int], _Flow]] = {}


def _flow(*names: str) -> Callable[[Callable[[Operands, int, int], _Flow]], Callable[[Operands, int, int], _Flow]]:
    def note(make: Callable[[Operands, int, int], _Flow]) -> Callable[[Operands, int, int], _Flow]:
        for name in names:
            _FLOWS[name] = make
        return make

    return note


def _go(warp: Warp, group: Group, mask: int, target: int) -> None:
    """Some lanes of a group go elsewhere."""
    if mask == group.mask:
        group.place = target
    elif mask:
        warp.split(group, np.where(lanes_of(mask), target, group.place))


@_flow("BRA")
def _bra(o: Operands, after: int, target: int) -> _Flow:
    divergent, uniform = o.has("DIV"), o.has("U")
    condition = None
    if divergent:
        wanted = o.bits()
    elif o.next_is("P", "UP"):
        condition = o.predicate()
    o.take()
    if uniform and condition is None:
        raise o.unknown("its condition")

    def run(warp: Warp, group: Group, mask: int) -> None:
        if divergent:
            # Lanes that have ended are not waited for.
            mask = mask if group.mask != int(np.asarray(wanted(warp)).reshape(-1)[0]) & warp.alive else 0
        elif condition is not None:
            mask &= mask_of(np.broadcast_to(condition(warp), LANES))
        _go(warp, group, mask, target)

    return run


@_flow("BSSY")
def _bssy(o: Operands, after: int, target: int) -> _Flow:
    number = int(o.take("other").text[1:])
    o.take()

    def run(warp: Warp, group: Group, mask: int) -> None:
        warp.barriers[number][lanes_of(mask)] = mask

    return run


@_flow("BSYNC")
def _bsync(o: Operands, after: int, target: int) -> _Flow:
    number = int(o.take("other").text[1:])
    return lambda warp, group, mask: _park(warp, group, mask, "BSYNC", number)


def _park(warp: Warp, group: Group, mask: int, waits: str, number: int) -> None:
    """Let some lanes of a group wait."""
    if not mask:
        return
    if mask == group.mask:
        group.waits, group.number = waits, number
    else:
        warp.groups.append(Group(group.place, mask, waits, number))
        group.mask &= ~mask


@_flow("BREAK")
def _break(o: Operands, after: int, target: int) -> _Flow:
    condition = o.predicate() if o.next_is("P") else None
    number = int(o.take("other").text[1:])

    def run(warp: Warp, group: Group, mask: int) -> None:
        if condition is not None:
            mask &= mask_of(condition(warp))
        warp.barriers[number] &= np.uint32(~mask & 0xFFFFFFFF)

    return run


@_flow("WARPSYNC")
def _warpsync(o: Operands, after: int, target: int) -> _Flow:
    every, collective = o.has("ALL"), o.has("COLLECTIVE")
    get = None if every else o.bits()
    if collective:
        # Where they go on together, which is behind what they do together.
        o.take()

    def run(warp: Warp, group: Group, mask: int) -> None:
        wanted = 0xFFFFFFFF
        if get is not None and mask:
            values = np.unique(np.broadcast_to(get(warp), LANES)[lanes_of(mask)])
            if len(values) > 1:
                raise MachineError("WARPSYNC with different masks")
            wanted = int(values[0])
        _park(warp, group, mask, "WARPSYNC", wanted)

    return run


@_flow("EXIT")
def _exit(o: Operands, after: int, target: int) -> _Flow:
    condition = o.predicate() if o.next_is("P") else None

    def run(warp: Warp, group: Group, mask: int) -> None:
        if condition is not None:
            mask &= mask_of(condition(warp))
        warp.end(group, mask)

    return run


@_flow("BAR")
def _bar(o: Operands, after: int, target: int) -> _Flow:
    o.has("SYNC", "DEFER_BLOCKING")
    number = o.take("imm").number
    return lambda warp, group, mask: _park(warp, group, mask, "BAR", number)


@_flow("CALL")
def _call(o: Operands, after: int, target: int) -> _Flow:
    if o.has("ABS"):
        # Of the driver, which is not here; whether anybody comes to it is another question.
        o.has("NOINC")
        o.words(2)

        def refuse(warp: Warp, group: Group, mask: int) -> None:
            if mask:
                raise MachineError(f"{o.parsed.text} calls a function that is not here")

        return refuse
    o.has("REL", "NOINC")
    o.take()
    return lambda warp, group, mask: _go(warp, group, mask, target)


@_flow("RET", "BRX")
def _ret(o: Operands, after: int, target: int) -> _Flow:
    o.has("REL", "NODEC")
    get = o.pair()
    o.take()

    def run(warp: Warp, group: Group, mask: int) -> None:
        places = (np.broadcast_to(get(warp), LANES) + np.uint64(target & (1 << 64) - 1)).view(np.int64)
        warp.split(group, np.where(lanes_of(mask), places, group.place))

    return run


@_flow("LEPC")
def _lepc(o: Operands, after: int, target: int) -> _Flow:
    raise o.unknown("where the code is")


@_flow("BMOV")
def _bmov(o: Operands, after: int, target: int) -> _Flow:
    o.has("32")
    clears = o.has("CLEAR")
    if o.next_is("R"):
        put = o.result()
        number = int(o.take("other").text[1:])

        def save(warp: Warp, group: Group, mask: int) -> None:
            put(warp, [warp.barriers[number].copy()], lanes_of(mask))
            if clears:
                warp.barriers[number][lanes_of(mask)] = 0

        return save
    number = int(o.take("other").text[1:])
    get = o.bits()

    def restore(warp: Warp, group: Group, mask: int) -> None:
        np.copyto(warp.barriers[number], np.broadcast_to(get(warp), LANES), where=lanes_of(mask))

    return restore


def program_of(cubin: bytes, kernel: str, original: CubinKernel | None = None) -> Program:
    """A kernel of a cubin, made ready, with its constant banks. original: of a twin, what it was made of."""
    elf = open_cubin(cubin, kernel)
    banks = {}
    for number in (2, 3):
        for name in (f".nv.constant{number}", f".nv.constant{number}.{kernel}"):
            section = elf.section(name)
            if section is not None:
                banks[number] = bytes(elf.contents(section))
    made = read_cubin(cubin, kernel, one_by_one=True).kernels[kernel]
    if original is None:
        return Program(made, banks=banks)
    # Two registers of each count are nobody's.
    return Program(made, len(original.code), original.registers - 2, banks)
