"""A launch: waves run in turns, those of a work-group wait for one another at barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from neutrino.emulator.gcn.checks import Checks
from neutrino.emulator.gcn.compiler import BARRIER, END, RELOAD, YIELD
from neutrino.emulator.gcn.errors import GcnError, GcnFaultError
from neutrino.emulator.gcn.kernel import (
    PRELOAD_HEADER,
    Descriptor,
    Dispatch,
    packet_of,
    registers_of,
    set_up,
)
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.program import Program
from neutrino.emulator.gcn.wave import Group, Wave

Dimensions = tuple[int, int, int]
Observer = Callable[[Wave, int], None]

_LONG_SLICE = 1 << 16
"""Instructions after which a wave lets others run, without a seed: it may wait for them."""
_RESIDENT = 8
"""Work-groups that run at a time."""
_GENERATIONS = {"gfx9": 9, "gfx10": 10, "gfx11": 11, "gfx12": 12}


@dataclass
class Statistics:
    """What a launch has executed. instructions: of all waves. undefined: place of an instruction → registers that it
    read although nothing wrote them, as bits, if that was checked."""

    instructions: int = 0
    waves: int = 0
    undefined: dict[int, int] = field(default_factory=dict)


def launch(
    program: Program,
    descriptor: Descriptor,
    entry: int,
    memory: Memory,
    grid: Dimensions,
    block: Dimensions,
    kernarg: bytes,
    *,
    base: int = 0,
    dynamic_lds: int = 0,
    seed: int | None = None,
    poison: int = 0,
    checks: bool = False,
    observer: Observer | None = None,
    limit: int = 20_000_000,
) -> Statistics:
    """Run a kernel and return what it has executed.

    entry: address of its code, as the program has addresses. grid: in work-groups; block: in work-items. kernarg: its
    arguments, hidden ones included. base: what is added to the program's addresses to give those in memory, for
    program counters. dynamic_lds: bytes. seed: of the order in which waves run; None for one after the other. poison:
    seed of what registers hold that nothing wrote. checks: whether a use of a register before the wait for it is a
    fault, and uses of registers that nothing wrote are noted. limit: instructions of a wave.

    Raises UnknownInstructionError, GcnFaultError, and GcnError for arguments that do not fit the kernel.
    """
    if len(kernarg) > descriptor.kernarg:
        raise GcnError(f"{len(kernarg)} bytes of arguments for a kernel with {descriptor.kernarg}")
    if min(*grid, *block) < 1 or block[0] * block[1] * block[2] > 1024:
        raise GcnError(f"grid {grid}, block {block}")
    arguments = memory.put(kernarg + bytes(descriptor.kernarg - len(kernarg)) if descriptor.kernarg else bytes(4))
    packet = memory.put(packet_of(grid, block, descriptor, arguments))
    queue = memory.put(bytes(256))
    dispatch = Dispatch(program.processor, descriptor, grid, block, arguments, packet, queue)
    run = _Run(program, dispatch, memory, base, dynamic_lds, seed, poison, checks, observer, limit)
    run.first = program.place(entry + (PRELOAD_HEADER if descriptor.preload_length else 0))
    with np.errstate(all="ignore"):
        run.run()
    return run.statistics


class _Run:
    """A launch under way."""

    def __init__(
        self,
        program: Program,
        dispatch: Dispatch,
        memory: Memory,
        base: int,
        dynamic_lds: int,
        seed: int | None,
        poison: int,
        checks: bool,
        observer: Observer | None,
        limit: int,
    ) -> None:
        """Prepare a launch; no work-group runs yet. Parameters: see ``launch``."""
        self.statistics = Statistics()
        self.first = 0
        self._program, self._dispatch, self._memory, self._base = program, dispatch, memory, base
        self._lds = dispatch.descriptor.lds + dynamic_lds
        self._random = None if seed is None else np.random.default_rng(seed)
        self._poison = np.random.default_rng(poison)
        self._checks, self._observer, self._limit = checks, observer, limit
        self._generation = next(
            value for name, value in sorted(_GENERATIONS.items(), reverse=True, key=lambda row: len(row[0]))
            if program.processor.startswith(name)
        )  # fmt: skip

    def run(self) -> None:
        """Run all work-groups."""
        waiting = self._groups()
        running: list[Wave] = []
        resident: list[Group] = []
        while True:
            while len(resident) < _RESIDENT:
                group = next(waiting, None)
                if group is None:
                    break
                resident.append(group)
                running += group.waves
                if self._random is None:
                    break
            if not running:
                return
            if self._random is None:
                index, length = 0, _LONG_SLICE
            else:
                index = int(self._random.integers(len(running)))
                length = int(self._random.integers(1, 200))
            wave = running[index]
            event = self._advance(wave, length)
            group = wave.group
            if event == END:
                wave.state = "end"
                running.pop(index)
                self._finish(wave)
            elif event == BARRIER:
                wave.state = "barrier"
                running.pop(index)
            elif self._random is None:
                # It may wait for others, of work-groups that have not begun as well.
                running.append(running.pop(index))
                if event is None and len(resident) < _RESIDENT and (another := next(waiting, None)) is not None:
                    resident.append(another)
                    running += another.waves
            if event in (END, BARRIER):
                live = [other for other in group.waves if other.state != "end"]
                if not live:
                    resident.remove(group)
                elif all(other.state == "barrier" for other in live):
                    for other in live:
                        other.state = ""
                    running += live

    def _groups(self) -> Iterator[Group]:
        """Make the work-groups of the grid one after the other, x fastest, with their waves ready to run."""
        descriptor, block = self._dispatch.descriptor, self._dispatch.block
        lanes = self._program.lanes
        owned = registers_of(descriptor, self._program.processor)
        count = -(-block[0] * block[1] * block[2] // lanes)
        for z in range(self._dispatch.grid[2]):
            for y in range(self._dispatch.grid[1]):
                for x in range(self._dispatch.grid[0]):
                    group = Group((x, y, z), self._lds, 0xA5)
                    for number in range(count):
                        wave = Wave(lanes, number, group, self._memory, descriptor.stack, 0)
                        defined = set_up(wave, self._dispatch, self._poison)
                        wave.base = self._base
                        wave.place_of = self._place_of
                        wave.observer = self._observer
                        if self._checks:
                            wave.checks = Checks(self._generation, defined, owned)
                        wave.pc = self.first
                        self._load(wave)
                        group.waves.append(wave)
                        self.statistics.waves += 1
                    yield group

    def _place_of(self, address: int) -> int:
        """Return the index in the program of the instruction at an address in memory."""
        return self._program.place(address - self._base)

    def _load(self, wave: Wave) -> None:
        """Give a wave the steps (executable instructions) that fit its MODE register and index mode."""
        wave.code = self._program.steps(wave.mode, wave.index_mode, self._checks, self._observer is not None)

    def _advance(self, wave: Wave, length: int) -> int | None:
        """Run up to ``length`` instructions of a wave. Returns what stopped it: ``BARRIER``, ``END``, ``YIELD`` or
        None."""
        code, pc = wave.code, wave.pc
        begin = wave.count
        stop = begin + length
        event: int | None = None
        try:
            while wave.count < stop:
                to = code[pc](wave)
                wave.count += 1
                if to is None:
                    pc += 1
                elif to >= 0:
                    pc = to
                elif to == RELOAD:
                    pc += 1
                    self._load(wave)
                    code = wave.code
                else:
                    pc += 1
                    event = to
                    break
        except GcnFaultError as error:
            row = self._program.instructions[pc] if pc < len(self._program.instructions) else None
            at = f"{row.address:#x}: {row.text}" if row is not None else "the end of the code"
            where = f"wave {wave.number} of work-group {wave.group.index} at {at}"
            raise GcnFaultError(error.kind, f"{where}: {error}") from error
        executed = wave.count - begin
        self.statistics.instructions += executed
        wave.pc = pc
        if wave.count > self._limit:
            raise GcnFaultError(
                "limit", f"wave {wave.number} of work-group {wave.group.index} executed {wave.count} instructions"
            )
        return event

    def _finish(self, wave: Wave) -> None:
        """Take over from a wave that has ended which registers it read although nothing wrote them, if that was
        checked."""
        if wave.checks is not None:
            for place, registers in wave.checks.undefined.items():
                self.statistics.undefined[place] = self.statistics.undefined.get(place, 0) | registers


__all__ = ["YIELD", "Statistics", "launch"]
