"""Functions called by the threads of a batch: frames, arguments, results, the way back.

At one call depth each thread is in one function at most, so (depth, function) has registers of its own, and recursion
needs nothing saved. Frames lie in local memory, the caller's below the callee's. Functions are numbered as in
`Kernel.functions`; the kernel itself has depth 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from neutrino.emulator.access import Accesses
from neutrino.emulator.address_space import Space
from neutrino.emulator.blocks import Block, Key
from neutrino.emulator.datatypes import PREDICATE, TYPES, poison, word
from neutrino.emulator.device_functions import DEVICE_FUNCTIONS
from neutrino.emulator.provided import PROVIDED
from neutrino.emulator.resolution import Instruction
from neutrino.emulator.resolved_operands import Operand, Register, Symbol, Variable, Vector
from neutrino.emulator.source import Unit
from neutrino.emulator.thread_sets import Lanes, of_indices
from neutrino.errors import FaultKind

_DEEPEST = 1024
_POISON = {name: poison(dtype) for name, dtype in TYPES.items()}


class RegisterFile:
    """The registers of one function at one call depth.

    values: an array per register with one element per thread of the batch, or a scalar for all threads.
    owned: the indices of registers whose arrays no other register shares, so that they may be changed in place.
    threads: of the batch. depth: the call depth. bases: see `base`.
    """

    __slots__ = ("bases", "depth", "owned", "threads", "values")

    def __init__(self, types: list[str], threads: int, depth: int, bases: list[Any]) -> None:
        """types: the PTX type of each register. bases: by depth, where frames begin; the batch extends this list."""
        self.values: list[Any] = [_POISON[name] for name in types]
        self.owned: set[int] = set()
        self.threads = threads
        self.depth = depth
        self.bases = bases

    @property
    def base(self) -> Any:
        """The address in local memory where the function's frame begins: a scalar, or one per thread."""
        return self.bases[self.depth]

    def write(self, index: int, value: Any, lanes: Lanes) -> None:
        """Set a register in the threads of `lanes`. value: a scalar, or an array with one element per such thread.

        index: the register's. An array that other registers may share is copied before its elements are changed.
        """
        at = lanes.at
        if at is None:
            # The array may belong to another register file, which may change it in place.
            self.values[index] = value.copy() if value.ndim else value
            self.owned.discard(index)
            return
        current = self.values[index]
        # Only some threads change: make the array this register's own before it is changed in place.
        if index not in self.owned:
            current = current.copy() if current.ndim else np.full(self.threads, current)
            self.values[index] = current
            self.owned.add(index)
        current[at] = value


class Calls(Accesses, ABC):
    """Calls and returns.

    At one call depth each thread is in one function at most, so (depth, function) has registers of its own. Functions
    are numbered as in `Kernel.functions`; the kernel itself has depth 0. Stack frames lie in local memory, the caller's
    below the callee's. The batch sets units, the generated code of each function.

    In all methods, `lanes` is the set of threads that call or return (`lanes.at`: their indices in the batch, None for
    all), and a key is where threads are: (negative call depth, function, basic block).
    """

    units: list[Unit]

    def start_calls(self) -> None:
        """Set up the kernel's own frame (the local memory of a function that runs); called before the first step of the
        batch (the threads that are emulated together).
        """
        # By depth: where the frames begin in local memory, a scalar or one address per thread.
        self.bases: list[Any] = [np.uint64(0)]
        # By depth: which call each thread came from, as an index of self.call_sites. At depth 0 there is no such call.
        self.origins: list[Any] = [None]
        # (where the caller is, the call instruction, the block to resume at), and its index in this list by
        # (negative depth, function, statement).
        self.call_sites: list[tuple[Key, Instruction, int]] = []
        self.call_site_numbers: dict[tuple[int, int, int], int] = {}
        self.reserve_local(self.kernel.frame_size)

    @abstractmethod
    def add(self, key: Key, lanes: Lanes) -> None:
        """Let threads go on at a place of the program (key: negative call depth, function, basic block).

        The batch implements it.
        """

    @abstractmethod
    def file(self, depth: int, function: int) -> RegisterFile:
        """Return the registers of a function at a call depth. Implemented by the batch."""

    def call(self, key: Key, block: Block, lanes: Lanes, result: Any, file: RegisterFile) -> None:
        """Execute the ``call`` that ends a basic block: send each thread into the function that it calls.

        key: (negative call depth, function, block) of the threads. result: (addresses of the called functions, None for
        a direct call; values of the arguments, see `pass_values`). file: not needed here; all ends of blocks get it.
        Raise DeviceFaultError if an address is no function, or not one of those that the instruction lists.
        """
        instruction = block.instructions[-1]
        target, values = result
        if target is None:
            # A direct call names its function.
            symbol = instruction.operands[1]
            name = symbol.name if isinstance(symbol, Symbol) else ""
            self.call_named(key, block, instruction, name, lanes, values)
            return
        threads = lanes.indices()
        targets = np.broadcast_to(target, (threads.size,))
        for address in np.unique(targets):
            selected = targets == address
            name = self.kernel.module.names_by_address.get(int(address), "")
            # An instruction without a list may call any function.
            allowed_names = [label.name for label in instruction.targets]
            if not name or (allowed_names and name not in allowed_names):
                self.fault(
                    FaultKind.BAD_CALL,
                    instruction.number,
                    "",
                    thread=int(threads[selected][0]),
                    address=int(address),
                )
            if selected.all():
                self.call_named(key, block, instruction, name, lanes, values)
            else:
                callers = of_indices(threads[selected], self.threads)
                their_values = tuple(value[selected] if value is not None and value.ndim else value for value in values)
                self.call_named(key, block, instruction, name, callers, their_values)

    def call_named(
        self, key: Key, block: Block, instruction: Instruction, name: str, lanes: Lanes, values: Any
    ) -> None:
        """Send threads into the function `name`: allocate frames, pass arguments, and make them runnable there.

        key: (negative call depth, function, block) of the caller. values: the values of the arguments, see
        `pass_values`. Raise DeviceFaultError if the numbers of arguments or results differ from the function's, or if
        the call is too deep for the stack.
        """
        name = self.kernel.module.resolved_name(name)
        function = self.kernel.numbers.get(name)
        if function is None:
            # Not a function of the module, so one that the device provides: others are refused before the launch.
            self.call_device_function(key, block, instruction, name, lanes, values)
            return
        negative_depth, caller_function, _ = key
        caller_depth = -negative_depth
        depth = caller_depth + 1
        program = self.units[function].graph.program
        caller = self.units[caller_function].graph.program

        # Operands of a call: (results), function, (arguments).
        arguments = _elements(instruction.operands[2])
        results = _elements(instruction.operands[0])
        signature = program.signature
        if len(arguments) != len(signature.parameters) or len(results) != len(signature.results):
            detail = f"{name} takes {len(signature.parameters)} and gives {len(signature.results)}"
            self.fault(FaultKind.BAD_CALL, instruction.number, detail, thread=int(lanes.indices()[0]))

        # The new frame begins where the caller's ends: one address for all threads, or one per thread.
        base = self.bases[caller_depth]
        if base.ndim and lanes.at is not None:
            base = base[lanes.at]
        base = base + np.uint64(caller.frame_size)
        top = int(base.max() if base.ndim else base) + program.frame_size
        if depth > _DEEPEST or not self.reserve_local(top):
            detail = f"calls {depth} deep, {top} bytes of local memory"
            self.fault(FaultKind.OUT_OF_BOUNDS, instruction.number, detail, thread=int(lanes.indices()[0]))

        self.push_frame(depth, base, key, instruction, block.next, lanes)
        self.pass_values(depth, function, signature.parameters, caller_depth, arguments, values, lanes, instruction)
        # Execution begins at the function's first block, 0.
        self.add((-depth, function, 0), lanes)

    def push_frame(self, depth: int, base: Any, key: Key, instruction: Instruction, resume: int, lanes: Lanes) -> None:
        """Record, for the calling threads, where the callee's frame begins and which call they came from.

        depth: the callee's call depth. base: address of its frame in local memory, a scalar or one per calling thread.
        key: (negative call depth, function, block) of the caller. instruction: the call. resume: the caller's block to
        return to.
        """
        negative_depth, caller_function, _ = key
        call_site_key = (negative_depth, caller_function, instruction.number)
        call_site = self.call_site_numbers.get(call_site_key)
        if call_site is None:
            call_site = self.call_site_numbers[call_site_key] = len(self.call_sites)
            self.call_sites.append((key, instruction, resume))
        if len(self.bases) <= depth:
            # The first call at this depth.
            self.bases.append(base if not base.ndim else self.scatter(base, lanes))
            self.origins.append(np.zeros(self.threads, np.int32))
        else:
            # The frames of earlier calls at this depth. One scalar serves all threads as long as the calls agree.
            bases = self.bases[depth]
            if bases.ndim or base.ndim or bases != base:
                if not bases.ndim:
                    bases = self.bases[depth] = np.full(self.threads, bases)
                bases[lanes.indices()] = base
        if lanes.at is None:
            self.origins[depth][:] = call_site
        else:
            self.origins[depth][lanes.at] = call_site

    def scatter(self, values: Any, lanes: Lanes) -> Any:
        """Return an array for all threads of the batch with `values` in the threads of `lanes`, and 0 elsewhere."""
        scattered = np.zeros(self.threads, values.dtype)
        scattered[lanes.indices()] = values
        return scattered

    def place(self, depth: int, variable: Variable, lanes: Lanes) -> Any:
        """Return the address in local memory of a variable of the frame at `depth`: a scalar, or one per thread.

        `lanes.at` holds the indices of the threads, None for all threads of the batch.
        """
        base = self.bases[depth]
        if base.ndim and lanes.at is not None:
            base = base[lanes.at]
        return base + np.uint64(variable.place)

    def register_elements(self, depth: int, function: int, register: Register, lanes: Lanes) -> Any:
        """Return a register's value in the threads of `lanes`: a scalar, or an array with one element each.

        `lanes.at` holds the indices of the threads, None for all threads of the batch.
        """
        value = self.file(depth, function).values[register.index]
        return value[lanes.at] if value.ndim and lanes.at is not None else value

    def load_variable(self, depth: int, variable: Variable, dtype: np.dtype[Any], lanes: Lanes, statement: int) -> Any:
        """Return the first word, of type `dtype`, of a variable of the frame at `depth`, for the threads of `lanes`.

        statement: the index in the module of the call, for fault reports. `lanes.at` holds the indices of the threads.
        """
        address = self.place(depth, variable, lanes)
        (value,) = self.load_some(statement, Space.LOCAL, address, dtype, 1, lanes.at)
        return value

    def store_variable(
        self,
        depth: int,
        variable: Variable,
        value: Any,
        dtype: np.dtype[Any],
        lanes: Lanes,
        instruction: Instruction,
    ) -> None:
        """Store the bits of a value, as a word of type `dtype`, in a variable of the frame at `depth`.

        value: a scalar, or one element per thread of `lanes`. instruction: the call, for fault reports.
        """
        address = self.place(depth, variable, lanes)
        cast = _reinterpret(value, dtype, instruction)
        self.store_some(instruction.number, Space.LOCAL, address, dtype, (cast,), lanes.at)

    def pass_values(
        self,
        depth: int,
        function: int,
        parameters: tuple[Register | Variable, ...],
        caller_depth: int,
        arguments: tuple[Operand, ...],
        values: Any,
        lanes: Lanes,
        instruction: Instruction,
    ) -> None:
        """Set each parameter of the called function, at `depth`, to an argument of its caller, at `caller_depth`.

        parameters: of the function. arguments: the operands of the call, ``instruction``, one per parameter. values:
        for each argument the value of a register or constant, None for a variable, which is read here. Raise
        PtxRefusedError for an argument that is not in the caller's frame, or of another type than its parameter.
        """
        for parameter, argument, given_value in zip(parameters, arguments, values, strict=True):
            value = given_value
            if isinstance(argument, Symbol):
                if argument.variable is None or argument.variable.space != "local":
                    raise instruction.refused(f"{argument.name} cannot be passed")
                if isinstance(parameter, Variable):
                    # All bytes, of which there may be more than a word.
                    self.copy(depth, parameter, caller_depth, argument.variable, lanes, instruction.number)
                    continue
                # Memory has no predicates: `_reinterpret` refuses the byte that is read in place of one.
                dtype = parameter.dtype if parameter.dtype != PREDICATE else word(1)
                value = self.load_variable(caller_depth, argument.variable, dtype, lanes, instruction.number)
            if isinstance(parameter, Register):
                cast = _reinterpret(value, parameter.dtype, instruction)
                self.file(depth, function).write(parameter.index, cast, lanes)
            else:
                self.store_variable(depth, parameter, value, _variable_word(parameter), lanes, instruction)

    def copy(
        self,
        target_depth: int,
        target: Variable,
        source_depth: int,
        source: Variable,
        lanes: Lanes,
        statement: int,
    ) -> None:
        """Copy a variable of one frame to one of another, eight bytes at a time, without reports to the observer.

        statement: the index in the module of the call, for fault reports.
        """
        target_address = self.place(target_depth, target, lanes)
        source_address = self.place(source_depth, source, lanes)
        # No instruction of the program makes these accesses.
        observer, self.observer = self.observer, None
        for offset in range(0, min(target.size, source.size), 8):
            step = np.uint64(offset)
            (value,) = self.load_some(statement, Space.LOCAL, source_address + step, word(8), 1, lanes.at)
            self.store_some(statement, Space.LOCAL, target_address + step, word(8), (value,), lanes.at)
        self.observer = observer

    def return_from(self, depth: int, function: int, lanes: Lanes) -> None:
        """Send threads at `depth` back to where each of them was called from, with the results."""
        threads = lanes.indices()
        origins = self.origins[depth][threads]
        signature = self.units[function].graph.program.signature
        for call_site in np.unique(origins):
            selected = origins == call_site
            returning = lanes if selected.all() else of_indices(threads[selected], self.threads)
            (negative_depth, caller, _), instruction, resume = self.call_sites[int(call_site)]
            # The first operand of a call is the list of its results.
            targets = _elements(instruction.operands[0])
            self.return_values(
                depth, function, signature.results, -negative_depth, caller, targets, returning, instruction
            )
            self.add((negative_depth, caller, resume), returning)

    def return_values(
        self,
        depth: int,
        function: int,
        results: tuple[Register | Variable, ...],
        caller_depth: int,
        caller_function: int,
        targets: tuple[Operand, ...],
        lanes: Lanes,
        instruction: Instruction,
    ) -> None:
        """Set each target of a call, in the caller's frame, to a result of the called function, at `depth`.

        Results and targets are registers or variables in a frame; a result whose target is ``_`` is dropped.
        """
        for result, target in zip(results, targets, strict=True):
            if isinstance(target, Symbol) and target.variable is not None and isinstance(result, Variable):
                # All bytes, of which there may be more than a word.
                self.copy(caller_depth, target.variable, depth, result, lanes, instruction.number)
                continue
            if isinstance(result, Register):
                value = self.register_elements(depth, function, result, lanes)
            else:
                value = self.load_variable(depth, result, _variable_word(result), lanes, instruction.number)
            if isinstance(target, Register):
                cast = _reinterpret(value, target.dtype, instruction)
                self.file(caller_depth, caller_function).write(target.index, cast, lanes)
            elif isinstance(target, Symbol) and target.variable is not None:
                dtype = _variable_word(target.variable)
                self.store_variable(caller_depth, target.variable, value, dtype, lanes, instruction)

    def call_device_function(
        self, key: Key, block: Block, instruction: Instruction, name: str, lanes: Lanes, values: Any
    ) -> None:
        """Run a function that the device itself provides, such as ``vprintf``, and resume after the call.

        key: (negative call depth, function, block) of the caller. values: the values of the arguments, None for
        variables, which are read here. Raise PtxRefusedError if the number of arguments is wrong.
        """
        negative_depth, function, _ = key
        depth = -negative_depth
        statement = instruction.number
        # Operands of a call: (results), function, (arguments).
        operands = _elements(instruction.operands[2])
        targets = _elements(instruction.operands[0])
        if len(operands) != PROVIDED[name]:
            raise instruction.refused(f"{name} takes {PROVIDED[name]} arguments")

        arguments = []
        for number, operand in enumerate(operands):
            if isinstance(operand, Symbol) and operand.variable is not None:
                dtype = _device_function_word(operand.variable)
                arguments.append(self.load_variable(depth, operand.variable, dtype, lanes, statement))
            else:
                # A register or a constant.
                arguments.append(values[number])

        result = DEVICE_FUNCTIONS[name](self, statement, arguments, lanes.indices())

        # Functions without a result return None.
        for target in targets if result is not None else ():
            if isinstance(target, Register):
                cast = _reinterpret(result, target.dtype, instruction)
                self.file(depth, function).write(target.index, cast, lanes)
            elif isinstance(target, Symbol) and target.variable is not None:
                dtype = _device_function_word(target.variable)
                self.store_variable(depth, target.variable, result, dtype, lanes, instruction)
        self.add((negative_depth, function, block.next), lanes)


def _elements(operand: Operand) -> tuple[Operand, ...]:
    """Return the elements of an operand list in parentheses; none if the operand is no list."""
    return operand.elements if isinstance(operand, Vector) else ()


def _variable_word(variable: Variable) -> np.dtype[Any]:
    """Return the type of the word that fills a variable; a byte if no word has its size, as that of an array.

    It is for values that go from a register to a variable, or back; for an array that is its first byte.
    """
    return word(variable.size) if variable.size in (1, 2, 4, 8, 16) else word(1)


def _device_function_word(variable: Variable) -> np.dtype[Any]:
    """Return the type of the word that fills an argument or result of a provided function: 4 or 8 bytes, else one."""
    return word(variable.size if variable.size in (4, 8) else 1)


def _reinterpret(value: Any, dtype: np.dtype[Any], instruction: Instruction) -> Any:
    """Return the bits of a value as another type, cut off or extended by zeros if the sizes differ.

    It is for arguments and results of calls, whose two sides may be declared with different types. instruction: the
    call, for the error. Raise PtxRefusedError if only one of the types is the predicate type.
    """
    source_type = value.dtype
    if source_type == dtype:
        return value
    if PREDICATE in (source_type, dtype):
        raise instruction.refused("a predicate cannot be passed as a number")
    if source_type.itemsize == dtype.itemsize:
        return value.view(dtype)
    # By way of unsigned words, so that the bits are extended by zeros and no value is converted.
    return value.view(word(source_type.itemsize)).astype(word(dtype.itemsize)).view(dtype)
