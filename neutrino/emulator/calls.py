"""Functions called by the threads of a batch: frames, arguments, results, the way back.

At one depth of calls each thread is in one function at most, so (depth, function) has registers of its own, and
recursion needs nothing saved. Frames lie in local memory, the caller's below the callee's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from neutrino.emulator.access import Accesses
from neutrino.emulator.blocks import Block, Key
from neutrino.emulator.datatypes import PREDICATE, TYPES, poison, word
from neutrino.emulator.device_functions import DEVICE_FUNCTIONS
from neutrino.emulator.lanes import Lanes, of_indices
from neutrino.emulator.memory import Space
from neutrino.emulator.program import Instruction, Operand, Register, Sink, Symbol, Variable, Vector
from neutrino.emulator.provided import PROVIDED
from neutrino.emulator.source import Unit
from neutrino.errors import FaultKind

_DEEPEST = 1024
_POISON = {name: poison(dtype) for name, dtype in TYPES.items()}


class RegisterFile:
    """The registers of one function at one depth of calls.

    values: an array each, one element a thread, or a scalar. owned: the indices of arrays that no other register has.
    """

    __slots__ = ("bases", "depth", "owned", "threads", "values")

    def __init__(self, types: list[str], threads: int, depth: int, bases: list[Any]) -> None:
        self.values: list[Any] = [_POISON[name] for name in types]
        self.owned: set[int] = set()
        self.threads = threads
        self.depth = depth
        self.bases = bases

    @property
    def base(self) -> Any:
        """Where the frames begin: a scalar, or one per thread."""
        return self.bases[self.depth]

    def write(self, index: int, value: Any, lanes: Lanes) -> None:
        """Set a register in some threads."""
        at = lanes.at
        if at is None:
            # It may be an array of another file, which goes on to own it.
            self.values[index] = value.copy() if value.ndim else value
            self.owned.discard(index)
            return
        old = self.values[index]
        if index not in self.owned:
            old = old.copy() if old.ndim else np.full(self.threads, old)
            self.values[index] = old
            self.owned.add(index)
        old[at] = value


class Calls(Accesses, ABC):
    """Calls and returns."""

    units: list[Unit]

    def start_calls(self) -> None:
        """Before the first step."""
        self.bases: list[Any] = [np.uint64(0)]
        # By depth: which call each thread made, as an index of self.sites.
        self.origins: list[Any] = [None]
        self.sites: list[tuple[Key, Instruction, int]] = []
        self.site_numbers: dict[tuple[int, int, int], int] = {}
        self.reserve_local(self.kernel.frame_size)

    @abstractmethod
    def add(self, key: Key, lanes: Lanes) -> None:
        """Let threads go on at a block: the machine's."""

    @abstractmethod
    def file(self, depth: int, function: int) -> RegisterFile:
        """The registers of a function at a depth of calls: the machine's."""

    def call(self, key: Key, block: Block, lanes: Lanes, result: Any, file: RegisterFile) -> None:
        """Send threads into the function that each of them calls."""
        instruction = block.instructions[-1]
        target, values = result
        if target is None:
            symbol = instruction.operands[1]
            name = symbol.name if isinstance(symbol, Symbol) else ""
            self.call_named(key, block, instruction, name, lanes, values)
            return
        threads = lanes.indices()
        targets = np.broadcast_to(target, (threads.size,))
        for address in np.unique(targets):
            chosen = targets == address
            name = self.kernel.module.names_by_address.get(int(address), "")
            listed = [one.name for one in instruction.targets]
            if not name or (listed and name not in listed):
                self.fault(
                    FaultKind.BAD_CALL,
                    instruction.number,
                    "",
                    thread=int(threads[chosen][0]),
                    address=int(address),
                )
            some = lanes if chosen.all() else of_indices(threads[chosen], self.threads)
            part = values
            if some is not lanes:
                part = tuple(
                    value[chosen] if value is not None and value.ndim else value for value in values
                )
            self.call_named(key, block, instruction, name, some, part)

    def call_named(
        self, key: Key, block: Block, instruction: Instruction, name: str, lanes: Lanes, values: Any
    ) -> None:
        name = self.kernel.module.resolved_name(name)
        function = self.kernel.numbers.get(name)
        if function is None:
            self.call_device_function(key, block, instruction, name, lanes, values)
            return
        depth = 1 - key[0]
        program = self.units[function].graph.program
        caller = self.units[key[1]].graph.program
        arguments = instruction.operands[2]
        actual = arguments.elements if isinstance(arguments, Vector) else ()
        results = instruction.operands[0]
        returned = results.elements if isinstance(results, Vector) else ()
        if len(actual) != len(program.signature.parameters) or len(returned) != len(program.signature.results):
            detail = f"{name} takes {len(program.signature.parameters)} and gives {len(program.signature.results)}"
            self.fault(FaultKind.BAD_CALL, instruction.number, detail, thread=int(lanes.indices()[0]))
        base = self.bases[depth - 1]
        if base.ndim and lanes.at is not None:
            base = base[lanes.at]
        base = base + np.uint64(caller.frame_size)
        top = int(base.max() if base.ndim else base) + program.frame_size
        if depth > _DEEPEST or not self.reserve_local(top):
            detail = f"calls {depth} deep, {top} bytes of local memory"
            self.fault(FaultKind.OUT_OF_BOUNDS, instruction.number, detail, thread=int(lanes.indices()[0]))
        self.enter(depth, base, key, instruction, block.next, lanes)
        self.pass_values(
            depth, function, program.signature.parameters, -key[0], key[1], actual, values, lanes, instruction
        )
        self.add((-depth, function, 0), lanes)

    def enter(self, depth: int, base: Any, key: Key, instruction: Instruction, resume: int, lanes: Lanes) -> None:
        # Remember, for these threads, where the new frame begins and where it came from.
        identity = (key[0], key[1], instruction.number)
        site = self.site_numbers.get(identity)
        if site is None:
            site = self.site_numbers[identity] = len(self.sites)
            self.sites.append((key, instruction, resume))
        if len(self.bases) <= depth:
            self.bases.append(base if not base.ndim else self.spread(base, lanes))
            self.origins.append(np.zeros(self.threads, np.int32))
        else:
            known = self.bases[depth]
            if known.ndim or base.ndim or known != base:
                if not known.ndim:
                    known = self.bases[depth] = np.full(self.threads, known)
                known[lanes.indices()] = base
        if lanes.at is None:
            self.origins[depth][:] = site
        else:
            self.origins[depth][lanes.at] = site

    def spread(self, values: Any, lanes: Lanes) -> Any:
        whole = np.zeros(self.threads, values.dtype)
        whole[lanes.indices()] = values
        return whole

    def place(self, depth: int, variable: Variable, lanes: Lanes) -> Any:
        """The local address of a variable of a frame."""
        base = self.bases[depth]
        if base.ndim and lanes.at is not None:
            base = base[lanes.at]
        return base + np.uint64(variable.place)

    def pass_values(
        self,
        depth: int,
        function: int,
        formals: tuple[Register | Variable, ...],
        from_depth: int,
        from_function: int,
        actual: tuple[Operand, ...],
        values: Any,
        lanes: Lanes,
        instruction: Instruction,
    ) -> None:
        """Give each of ``formals``, at one depth, the value of one of ``actual``, at another.

        values: of those that are registers or constants, None where the value is to be read here.
        """
        for number, (formal, source) in enumerate(zip(formals, actual, strict=True)):
            if isinstance(source, Symbol):
                if source.variable is None or source.variable.space != "local":
                    raise instruction.refused(f"{source.name} cannot be passed")
                if isinstance(formal, Variable):
                    self.copy(depth, formal, from_depth, source.variable, lanes, instruction.number)
                    continue
                dtype = formal.dtype if formal.dtype != PREDICATE else word(1)
                place = self.place(from_depth, source.variable, lanes)
                (value,) = self.load_some(instruction.number, Space.LOCAL, place, dtype, 1, lanes.at)
            elif values is not None:
                value = values[number]
            elif isinstance(source, Register):
                value = self.file(from_depth, from_function).values[source.index]
                value = value[lanes.at] if value.ndim and lanes.at is not None else value
            elif isinstance(source, Sink):
                continue
            else:
                raise instruction.refused("an operand that cannot be passed")
            if isinstance(formal, Register):
                cast = _as(value, formal.dtype, instruction)
                self.file(depth, function).write(formal.index, cast, lanes)
            else:
                dtype = word(formal.size) if formal.size in (1, 2, 4, 8, 16) else word(1)
                place = self.place(depth, formal, lanes)
                cast = _as(value, dtype, instruction)
                self.store_some(instruction.number, Space.LOCAL, place, dtype, (cast,), lanes.at)

    def copy(self, depth: int, to: Variable, from_depth: int, source: Variable, lanes: Lanes, number: int) -> None:
        """Copy a variable of one frame to one of another, eight bytes at a time."""
        target = self.place(depth, to, lanes)
        origin = self.place(from_depth, source, lanes)
        observer, self.observer = self.observer, None
        for offset in range(0, min(to.size, source.size), 8):
            step = np.uint64(offset)
            (value,) = self.load_some(number, Space.LOCAL, origin + step, word(8), 1, lanes.at)
            self.store_some(number, Space.LOCAL, target + step, word(8), (value,), lanes.at)
        self.observer = observer

    def return_from(self, depth: int, function: int, lanes: Lanes) -> None:
        """Send threads back to where each of them was called from, with the results."""
        threads = lanes.indices()
        origins = self.origins[depth][threads]
        signature = self.units[function].graph.program.signature
        for site in np.unique(origins):
            chosen = origins == site
            some = lanes if chosen.all() else of_indices(threads[chosen], self.threads)
            key, instruction, resume = self.sites[int(site)]
            results = instruction.operands[0]
            wanted = results.elements if isinstance(results, Vector) else ()
            self.give_back(depth, function, signature.results, -key[0], key[1], wanted, some, instruction)
            self.add((key[0], key[1], resume), some)

    def give_back(
        self,
        depth: int,
        function: int,
        formals: tuple[Register | Variable, ...],
        to_depth: int,
        to_function: int,
        wanted: tuple[Operand, ...],
        lanes: Lanes,
        instruction: Instruction,
    ) -> None:
        for formal, target in zip(formals, wanted, strict=True):
            if isinstance(target, Symbol) and target.variable is not None and isinstance(formal, Variable):
                self.copy(to_depth, target.variable, depth, formal, lanes, instruction.number)
                continue
            if isinstance(formal, Register):
                value = self.file(depth, function).values[formal.index]
                value = value[lanes.at] if value.ndim and lanes.at is not None else value
            else:
                dtype = word(formal.size) if formal.size in (1, 2, 4, 8, 16) else word(1)
                (value,) = self.load_some(
                    instruction.number, Space.LOCAL, self.place(depth, formal, lanes), dtype, 1, lanes.at
                )
            if isinstance(target, Register):
                self.file(to_depth, to_function).write(
                    target.index, _as(value, target.dtype, instruction), lanes
                )
            elif isinstance(target, Symbol) and target.variable is not None:
                dtype = word(target.variable.size) if target.variable.size in (1, 2, 4, 8, 16) else word(1)
                place = self.place(to_depth, target.variable, lanes)
                cast = _as(value, dtype, instruction)
                self.store_some(instruction.number, Space.LOCAL, place, dtype, (cast,), lanes.at)

    def call_device_function(
        self, key: Key, block: Block, instruction: Instruction, name: str, lanes: Lanes, values: Any
    ) -> None:
        """A function that no module defines."""
        operands = instruction.operands
        actual = operands[2].elements if isinstance(operands[2], Vector) else ()
        returned = operands[0].elements if isinstance(operands[0], Vector) else ()
        if len(actual) != PROVIDED[name]:
            raise instruction.refused(f"{name} takes {PROVIDED[name]} arguments")
        arguments = []
        for number, source in enumerate(actual):
            if isinstance(source, Symbol) and source.variable is not None:
                place = self.place(-key[0], source.variable, lanes)
                dtype = word(source.variable.size if source.variable.size in (4, 8) else 1)
                (value,) = self.load_some(instruction.number, Space.LOCAL, place, dtype, 1, lanes.at)
                arguments.append(value)
            else:
                arguments.append(values[number])
        result = DEVICE_FUNCTIONS[name](self, instruction.number, arguments, lanes.indices())
        for target in returned if result is not None else ():
            if isinstance(target, Register):
                cast = _as(result, target.dtype, instruction)
                self.file(-key[0], key[1]).write(target.index, cast, lanes)
            elif isinstance(target, Symbol) and target.variable is not None:
                place = self.place(-key[0], target.variable, lanes)
                dtype = word(target.variable.size if target.variable.size in (4, 8) else 1)
                cast = _as(result, dtype, instruction)
                self.store_some(instruction.number, Space.LOCAL, place, dtype, (cast,), lanes.at)
        self.add((key[0], key[1], block.next), lanes)


def _as(value: Any, dtype: np.dtype[Any], instruction: Instruction) -> Any:
    # The same bits in another type; wider ones are extended by zeros.
    held = value.dtype
    if held == dtype:
        return value
    if PREDICATE in (held, dtype):
        raise instruction.refused("a predicate cannot be passed as a number")
    if held.itemsize == dtype.itemsize:
        return value.view(dtype)
    return value.view(word(held.itemsize)).astype(word(dtype.itemsize)).view(dtype)
