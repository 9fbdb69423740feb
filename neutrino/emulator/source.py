"""Code generation: each basic block becomes a Python function over arrays with one element per thread.

A generated function is called as ``block(m, f, at)``: the batch, the register file, and the indices of the threads that
execute it (None: all). It loads each register once, computes, and writes back the registers that are live afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neutrino.emulator.asynchronous_source import AsynchronousSource
from neutrino.emulator.blocks import Block, Ending, Graph, constant_mask
from neutrino.emulator.datatypes import PREDICATE, word
from neutrino.emulator.register_source import RegisterSource
from neutrino.emulator.resolution import Instruction
from neutrino.emulator.resolved_operands import Immediate, Register, Symbol, Vector
from neutrino.emulator.values_source import U32, U64, BlockValues
from neutrino.emulator.warp_source import WarpSource

# Hints, fences and the like: instructions that change no value.
_NO_EFFECT = frozenset(
    {
        "membar", "fence", "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "pragma", "setmaxnreg", "brkpt",
        "pmevent", "applypriority", "discard",
    }
)  # fmt: skip


@dataclass(frozen=True)
class BarrierUse:
    """What a ``bar`` or ``barrier`` instruction does.

    arrive_only: its threads do not wait. aligned: all threads of a warp must execute the same one. reduction: of the
    threads' predicates, ``popc``, ``and`` or ``or``, "" for none. destination: the register for its result.
    """

    arrive_only: bool
    aligned: bool
    reduction: str = ""
    destination: Register | None = None


class _Function:
    """A generated function ``name(m, f, at)``, compiled when it is first called.

    Of a chain's blocks most run as its parts alone. lines: the source. namespace: the globals. file: for tracebacks.
    """

    __slots__ = ("_file", "_function", "_lines", "_name", "_namespace")

    def __init__(self, name: str, lines: list[str], namespace: dict[str, Any], file: str) -> None:
        """name: the Python function's. lines: its source. namespace: its globals. file: a name for tracebacks."""
        self._name = name
        self._lines = lines
        self._namespace = namespace
        self._file = file
        self._function: Callable[..., Any] | None = None

    def __call__(self, m: Any, f: Any, at: Any) -> Any:
        """Compile the function at the first call, and call it.

        m: the batch; f: its register file; at: the indices of the threads that execute it, None for all.
        """
        function = self._function
        if function is None:
            exec(compile("\n".join(self._lines) + "\n", self._file, "exec"), self._namespace)
            function = self._function = self._namespace[self._name]
            self._lines = []
        return function(m, f, at)


@dataclass
class Unit:
    """The generated code of one function.

    pieces: a Python function for each block. chains: block → (a Python function for it and the blocks after it, its
    last block); a chain may run instead of its blocks where whole warps do, since only warp-wide instructions divide
    them. chain_counts: block → instructions in its chain. masks: block → Python function that returns the member masks
    of the block's first instruction, where they are no constant. barriers: block → the barrier that ends it.
    """

    graph: Graph
    pieces: list[Callable[..., Any]]
    chains: dict[int, tuple[Callable[..., Any], int]]
    masks: dict[int, Callable[..., Any]]
    barriers: dict[int, BarrierUse]
    chain_counts: dict[int, int]


def generate(graph: Graph, *, observed: bool) -> Unit:
    """Generate the code of a function. observed: report each statement to the launch's observer.

    Raises PtxRefusedError for a statement that the emulated device does not know.
    """
    return _Generator(graph, observed).unit()


class _Generator(RegisterSource, WarpSource, AsynchronousSource):
    """Generates the Python code of one PTX function, block by block. barriers: as in ``Unit``, of the blocks so far.

    The function of a block is called with ``m`` (the batch), ``f`` (the register file) and ``at`` (the indices of the
    threads that execute it, None for all). ``emit`` appends a line to it; ``value`` and ``register_value`` return names
    of variables in it.
    """

    def __init__(self, graph: Graph, observed: bool) -> None:
        """graph: the function's basic blocks. observed: the code reports each statement to an observer."""
        super().__init__(graph, observed)
        self.barriers: dict[int, BarrierUse] = {}

    def unit(self) -> Unit:
        """Generate the Python functions for all blocks, chains of blocks and member masks.

        A block of a chain also has a function of its own: not all threads of a warp may be there together.
        """
        blocks = self.graph.blocks
        pieces: list[Callable[..., Any]] = []
        chains: dict[int, tuple[Callable[..., Any], int]] = {}
        masks: dict[int, Callable[..., Any]] = {}
        chain_counts: dict[int, int] = {}
        for block in blocks:
            pieces.append(self.block([block], f"piece_{block.index}"))
            # ``joined``: the block falls through into one that only this block precedes. A chain is as long as it can
            # be, so none begins inside of another.
            is_inside_chain = block.index > 0 and blocks[block.index - 1].joined
            last = block.index
            while blocks[last].joined:
                last += 1
            if not is_inside_chain and last > block.index:
                chain = blocks[block.index : last + 1]
                chains[block.index] = (self.block(chain, f"chain_{block.index}"), last)
                chain_counts[block.index] = sum(one.count for one in chain)
        # Member masks in registers; the scheduler knows the constant ones.
        for block in blocks:
            if block.warp and constant_mask(block) is None:
                masks[block.index] = self.mask(block)
        return Unit(self.graph, pieces, chains, masks, self.barriers, chain_counts)

    def function(self, name: str) -> _Function:
        """Return the function of this name that the lines so far are the source of, and begin with new lines."""
        lines, self.lines = self.lines, []
        return _Function(name, lines, self.namespace, f"<{self.program.text.name}>")

    def block(self, blocks: list[Block], name: str) -> _Function:
        """Generate the Python function ``name`` for one basic block, or for a chain of consecutive ones.

        It loads each register once, computes with local variables, and writes back the registers that are live after
        the last block. It returns what the scheduler needs at the end of that block: a branch condition, call
        arguments … (see `ending`).
        """
        self.lines += [f"def {name}(m, f, at):", "    r = f.values"]
        # A new function: nothing is in local variables yet.
        self.values = BlockValues()
        self.position = 0
        ending = ""
        for block in blocks:
            for instruction in block.instructions:
                self.instruction = instruction
                self.guard = self.guard_name(instruction)
                if self.observed and not instruction.hidden:
                    self.emit(f"m.executed({instruction.number}, at, {self.guard})")
                ends_block = instruction is block.instructions[-1] and block.ending is not Ending.NEXT
                if ends_block:
                    # Nothing to execute: the scheduler does what it says. Only a chain's last block has an ending.
                    ending = self.ending(block, instruction)
                elif self.observed and instruction.named:
                    before = self.named_values(instruction)
                    self.plain(instruction)
                    values = f"{before}, {self.named_values(instruction)}"
                    self.emit(f"m.valued({instruction.number}, at, {self.guard}, {values})")
                else:
                    self.plain(instruction)
                # Hidden instructions are not in the PTX text, so they are not counted.
                self.position += not instruction.hidden
        self.write_back(blocks[-1].live_out)
        self.emit(f"return {ending or None}")
        return self.function(name)

    def named_values(self, instruction: Instruction) -> str:
        """Return source for a tuple of (name, current value) pairs of the registers that a statement names.

        For observed launches: it is generated once before the statement's code, and once after it.
        """
        pairs = (f"({name!r}, {self.register_value(register)}), " for name, register in instruction.named)
        return f"({''.join(pairs)})"

    def mask(self, block: Block) -> _Function:
        """Generate the Python function that returns the member mask of the block's first, warp-wide, instruction."""
        self.lines += [f"def mask_{block.index}(m, f, at):", "    r = f.values"]
        self.values = BlockValues()
        self.instruction = block.instructions[0]
        # None is a constant mask, of all threads: no function is generated for it.
        if block.mask is not None:
            self.emit(f"return {self.value(block.mask, U32)}")
        return self.function(f"mask_{block.index}")

    def write_back(self, live: int) -> None:
        """Emit the assignments of the block's live results to the register file ``f``.

        live: bit set of the registers that are read after the block.
        """
        # The others were assigned for use inside the block alone.
        indices = sorted(index for index in self.values.written if live >> index & 1)
        if not indices:
            return
        results = [(index, self.register_value(Register(index, self.program.registers[index]))) for index in indices]
        # All threads: the new arrays take the place of the old ones.
        self.emit("if at is None:")
        for index, name in results:
            self.emit(f"    r[{index}] = {name}")
        # ``f.owned`` has the registers whose array may be modified in place. After a ``mov`` two registers may share
        # one array, a register that was read among them.
        shared = tuple(sorted(self.values.read.union(indices)))
        self.emit(f"    f.owned.difference_update({self.constant_object(shared)})")
        # Some threads: their elements are replaced.
        self.emit("else:")
        for index, name in results:
            self.emit(f"    put(f, {index}, {name}, at)")

    # -- how blocks end

    def ending(self, block: Block, instruction: Instruction) -> str:
        """Return source for what a block's function returns, "" for nothing. instruction: the block's last one.

        It is the condition of a branch, the index of a ``brx.idx``, or the operands of a call or barrier. The other
        endings, such as ``ret``, need nothing.
        """
        if block.ending is Ending.BRANCH:
            return self.guard or ""  # "" for an unconditional one
        if block.ending is Ending.TABLE:
            # Its list of labels is not among the resolved operands.
            (index,) = self.require(1)
            return self.value(index, U32)
        if block.ending is Ending.CALL:
            return self.call(instruction)
        if block.ending is Ending.BARRIER:
            return self.barrier(block, instruction)
        return ""

    def call(self, instruction: Instruction) -> str:
        """Return source for ``(address, (argument, …))`` of a call. The address is None for a direct call.

        An argument that is a variable in the frame is None: the scheduler copies its memory.
        """
        results, target, arguments = instruction.operands
        if not isinstance(results, Vector) or not isinstance(arguments, Vector):
            raise self.refused("cannot read the call")
        address = self.value(target, U64) if isinstance(target, Register) else "None"
        values = []
        for argument in arguments.elements:
            if isinstance(argument, Symbol):
                values.append("None")
            elif isinstance(argument, Register):
                values.append(self.register_value(argument))
            elif isinstance(argument, Immediate):
                # An integer has all its 64 bits; the scheduler cuts it to the size of the parameter.
                values.append(self.immediate(argument, word(argument.float_size or 8)))
            else:
                raise self.refused("an argument that is no value")
        return f"({address}, ({''.join(value + ', ' for value in values)}))"

    def barrier(self, block: Block, instruction: Instruction) -> str:
        """Return source for ``(number, thread count, predicate)`` of the barrier that ends a block.

        The last two are None where the instruction has none. What the scheduler must know besides goes into
        ``barriers``. The forms are ``bar.sync number[, count]``, ``bar.arrive number, count`` and
        ``bar.red.OPERATION destination, number[, count], predicate``.
        """
        parts = instruction.parts
        operands = list(instruction.operands)
        reduction = ""
        destination: Register | None = None
        predicate = "None"
        if "red" in parts:
            reduction = next((part for part in parts if part in ("popc", "and", "or")), "")
            if not reduction or len(operands) < 3 or not isinstance(operands[0], Register):
                raise self.refused("cannot read the barrier")
            destination = operands[0]
            predicate = self.value(operands[-1], PREDICATE)
            operands = operands[1:-1]
        elif "sync" not in parts and "arrive" not in parts:
            raise self.refused("an unknown barrier")
        if not 1 <= len(operands) <= 2 or ("arrive" in parts and len(operands) != 2):
            raise self.refused(f"{len(instruction.operands)} operands")
        number = self.value(operands[0], U32)
        count = self.value(operands[1], U32) if len(operands) > 1 else "None"
        # ``bar`` is short for ``barrier.aligned``.
        aligned = parts[0] == "bar" or "aligned" in parts
        self.barriers[block.index] = BarrierUse("arrive" in parts, aligned, reduction, destination)
        return f"({number}, {count}, {predicate})"

    # -- instructions

    def plain(self, instruction: Instruction) -> None:
        """Emit Python code for an instruction that does not end its block."""
        method = _METHODS.get(instruction.name)
        if method is not None:
            method(self)
        elif instruction.name not in _NO_EFFECT:
            self.compute(instruction)

    def warp_or_cluster_barrier(self) -> None:
        """Emit Python code for ``barrier.cluster.arrive``.

        ``bar.warp.sync`` needs no code: the scheduler makes its threads wait.
        """
        if self.instruction.parts[:2] == ("barrier", "cluster"):
            self.emit("m.cluster_arrive(at)")
        elif self.instruction.parts[:2] != ("bar", "warp"):
            raise self.refused("an unknown barrier")


_METHODS: dict[str, Callable[[_Generator], None]] = {
    "mov": _Generator.move,
    "cvta": _Generator.convert_address,
    "isspacep": _Generator.is_in_space,
    "ld": _Generator.load,
    "ldu": _Generator.load,
    "st": _Generator.store,
    "atom": _Generator.atomic,
    "red": _Generator.atomic,
    "createpolicy": _Generator.policy,
    "shfl": _Generator.shuffle,
    "vote": _Generator.vote,
    "match": _Generator.match,
    "redux": _Generator.reduce,
    "elect": _Generator.elect,
    "activemask": _Generator.active_mask,
    "mma": _Generator.matrix,
    "mapa": _Generator.map_shared,
    "getctarank": _Generator.get_rank,
    "ldmatrix": _Generator.matrices,
    "stmatrix": _Generator.matrices,
    "movmatrix": _Generator.transpose,
    "cp": _Generator.copy_async,
    "mbarrier": _Generator.memory_barrier,
    "bar": _Generator.warp_or_cluster_barrier,
    "barrier": _Generator.warp_or_cluster_barrier,
}
