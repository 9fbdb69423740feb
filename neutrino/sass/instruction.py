"""One machine instruction as the decoder reads it: registers, control fields, memory access and flow."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class RegisterFile(enum.Enum):
    """Where a register is: per lane (R, P), or per warp, of the uniform datapath (UR, UP). B are convergence barriers.

    The value is the letter of its name in NVIDIA's tools.
    """

    GENERAL = "R"
    UNIFORM = "UR"
    PREDICATE = "P"
    UNIFORM_PREDICATE = "UP"
    BARRIER = "B"

    # What an enumeration has instead takes far longer, and members are keys of most tables here.
    __hash__ = object.__hash__


class Latency(enum.Enum):
    """How code knows that a result is there. FIXED: after so many cycles. VARIABLE: by a scoreboard, which some of its
    instructions set. UNKNOWN: too few were seen to tell."""

    FIXED = "fixed"
    VARIABLE = "variable"
    UNKNOWN = "unknown"


class Memory(enum.Enum):
    """The memory that an instruction reads or writes, by lanes at addresses of their own. ASYNC: copies of the tensor
    memory accelerator and other accesses that are not by lanes. NONE: no access."""

    NONE = ""
    GLOBAL = "global"
    GENERIC = "generic"
    SHARED = "shared"
    LOCAL = "local"
    CONSTANT = "constant"
    GLOBAL_TO_SHARED = "global to shared"
    TEXTURE = "texture"
    SURFACE = "surface"
    ASYNC = "asynchronous"


class Flow(enum.Enum):
    """What an instruction does to the flow of its warp. NEXT: nothing. CONVERGENCE: it joins, parts or counts lanes.
    BARRIER: it waits for other warps of the block. WAIT: it waits for operations that were started before."""

    NEXT = ""
    BRANCH = "branch"
    CALL = "call"
    RETURN = "return"
    EXIT = "exit"
    CONVERGENCE = "convergence"
    BARRIER = "barrier"
    WAIT = "wait"


@dataclass(frozen=True)
class Control:
    """The fields of an instruction by which the hardware schedules it.

    stall: cycles until the next one of the warp may be issued. yields: another warp may be preferred then.
    write_barrier, read_barrier: number of the scoreboard that is held until the results are written, or the operands
    read; None for none. wait_mask: the scoreboards that it waits for before it is issued, bit by number. reuse: the
    operands that are kept for the next instruction, bit by operand.
    """

    stall: int
    yields: bool
    write_barrier: int | None
    read_barrier: int | None
    wait_mask: int
    reuse: int


@dataclass(frozen=True)
class Guard:
    """The predicate under which an instruction runs: file (PREDICATE or UNIFORM_PREDICATE), number, negated."""

    file: RegisterFile
    number: int
    negated: bool


@dataclass(frozen=True)
class Operand:
    """Neighbouring registers that an instruction names by their first, in the order of NVIDIA's text.

    count: how many, 1 to 128. reads, writes: as NVIDIA's tools mark them; of convergence barriers neither is known.
    printed: False where the text leaves it out, as the descriptor of an access on sm_80; these come last. Registers
    that are always zero or true are no operands.
    """

    file: RegisterFile
    number: int
    count: int
    reads: bool
    writes: bool
    printed: bool = True


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    offset: in the code, in bytes. low, high: its two halves. opcode: bits 0 to 11. name: in full, ``LDG.E.64``; of
    IMAD without the words for copies, shifts and sums. guard: None when it always runs. memory_bytes: that a lane
    reads or writes, 0 without such an access. target: the offset to which it branches, None if it names none.
    """

    offset: int
    low: int
    high: int
    opcode: int
    name: str
    guard: Guard | None
    operands: tuple[Operand, ...]
    control: Control
    latency: Latency
    memory: Memory
    memory_bytes: int
    flow: Flow
    target: int | None

    @property
    def base_name(self) -> str:
        """The name's first part, ``LDG``."""
        return self.name.partition(".")[0]

    def reads(self) -> frozenset[tuple[RegisterFile, int]]:
        """Every register that it reads, the guard's included."""
        found = {(one.file, one.number + index) for one in self.operands if one.reads for index in range(one.count)}
        if self.guard is not None and self.guard.number != 7:
            found.add((self.guard.file, self.guard.number))
        return frozenset(found)

    def writes(self) -> frozenset[tuple[RegisterFile, int]]:
        """Every register that it writes, or may write when it has a guard."""
        return frozenset((one.file, one.number + index) for one in self.operands if one.writes
                         for index in range(one.count))  # fmt: skip
