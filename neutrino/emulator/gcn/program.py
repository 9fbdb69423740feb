"""A program: instructions with addresses, and the steps that they become when they are first executed."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from typing import NamedTuple

from neutrino.emulator.gcn.access import compile_access
from neutrino.emulator.gcn.compiler import Compiler
from neutrino.emulator.gcn.errors import GcnFaultError
from neutrino.emulator.gcn.scalar import compile_scalar
from neutrino.emulator.gcn.text import parse
from neutrino.emulator.gcn.vector import compile_vector
from neutrino.emulator.gcn.wave import Step, Wave

_MEMORY = ("global_", "flat_", "scratch_", "buffer_", "ds_", "tbuffer_")


class Instruction(NamedTuple):
    """address: within the code object. size: bytes. text: None for a word that is no instruction."""

    address: int
    size: int
    text: str | None


class Program:
    """Instructions, in the order of their addresses. processor: such as ``gfx942``. lanes: of a wave."""

    def __init__(self, instructions: Iterable[tuple[int, int, str | None]], processor: str, lanes: int) -> None:
        """Set up a program from (address, size, text) of its instructions, in any order; nothing is compiled yet."""
        self.instructions = sorted(Instruction(*row) for row in instructions)
        self.processor = processor
        self.lanes = lanes
        self._addresses = [row.address for row in self.instructions]
        self._steps: dict[tuple[int, int, bool, bool], list[Step]] = {}

    def place(self, address: int) -> int:
        """Return the place of the instruction at an address. Raises GcnFaultError where there is none."""
        place = bisect.bisect_left(self._addresses, address)
        if place == len(self._addresses) or self._addresses[place] != address:
            raise GcnFaultError("code", f"no instruction begins at {address:#x}")
        return place

    def steps(self, mode: int, indexed: int, checked: bool, observed: bool) -> list[Step]:
        """Return what the instructions do, while MODE has a value, and M0 indexes operands (0 for none)."""
        key = mode & 0xFF, indexed, checked, observed
        steps = self._steps.get(key)
        if steps is None:
            steps = self._steps[key] = []
            compiler = Compiler(self.processor, self.lanes, mode, indexed)
            steps += [self._first(steps, compiler, place, checked, observed) for place in range(len(self._addresses))]
            steps.append(_off_the_end)
        return steps

    def _first(self, steps: list[Step], compiler: Compiler, place: int, checked: bool, observed: bool) -> Step:
        """Return a step that makes the instruction's own one when it is first executed."""

        def first(wave: Wave) -> int | None:
            """Compile the instruction, put its own step in place of this one, and execute it."""
            step = self._compiled(compiler, place, checked)
            if observed:
                step = _observed(step, place)
            steps[place] = step
            return step(wave)

        return first

    def _compiled(self, c: Compiler, place: int, checked: bool) -> Step:
        """Return the function (a step) that executes the instruction with an index.

        checked: with a check of the registers that it uses. Raises GcnFaultError for what is no instruction.
        """
        row = self.instructions[place]
        if row.text is None:
            raise GcnFaultError("code", f"the words at {row.address:#x} are no instruction")
        ins = parse(row.text)
        c.begin(ins)
        name = ins.mnemonic
        if name.startswith("v_"):
            step = compile_vector(c, ins)
        elif name.startswith(_MEMORY):
            step = compile_access(c, ins)
        else:
            behind = row.address + row.size

            def target() -> int:
                """Return the index of the instruction that a branch leads to."""
                words = int(ins.operands[-1], 0) & 0xFFFF
                return self.place(behind + 4 * (words - 0x10000 if words & 0x8000 else words))

            step = compile_scalar(c, ins, place, _once(target), behind)
        return _checked(step, c, place, row.text) if checked else step


def _once(function: Callable[[], int]) -> Callable[[], int]:
    """Return a function that calls another one the first time only, and then returns the same result."""
    found: list[int] = []

    def cached() -> int:
        """Return the result, computed by the first call."""
        if not found:
            found.append(function())
        return found[0]

    return cached


def _observed(step: Step, place: int) -> Step:
    """Return a step that first calls the wave's observer with the instruction's index, and then executes it."""
    def observe(wave: Wave) -> int | None:
        """Call the observer, then execute the instruction."""
        if wave.observer is not None:
            wave.observer(wave, place)
        return step(wave)

    return observe


def _checked(step: Step, c: Compiler, place: int, text: str) -> Step:
    """Return a step that also checks that the registers which the instruction uses have arrived, and notes the
    operations under way that it begins. text: the instruction, for messages."""
    reads, writes, issues = c.reads, c.writes, tuple(c.issues)

    def check(wave: Wave) -> int | None:
        """Check the registers, execute the instruction, and note what it has begun."""
        checks = wave.checks
        assert checks is not None
        checks.use(place, text, reads, writes, bool(issues))
        result = step(wave)
        for kind, registers in issues:
            checks.issue(kind, registers)
        return result

    return check


def _off_the_end(wave: Wave) -> None:
    """Raise GcnFaultError: the step behind the last instruction."""
    raise GcnFaultError("code", "a wave runs off the end of the code")
