"""Why a PTX instruction and its machine instructions are executed differently often, in words.

The machine instructions that ptxas's line table gives to a PTX instruction are its own, of the opcodes that
``counted_groups`` names for its group, and others beside them. A difference is the sum of two parts, and each has its
cause here: own executions that are not those of the PTX instruction, by the group and how they differ (``OWN``), and
executions of each instruction beside (``BESIDE``, by opcode). Both tables are closed: what they lack is unexplained.
"""

from __future__ import annotations

import enum


class Own(enum.Enum):
    """How a PTX instruction's own machine instructions compare with it, by executions."""

    SAME = "the same"
    NONE = "none of its own"
    TIMES = "several for each"
    FEWER = "fewer"
    MORE = "more"


_OPERAND = "is an operand of the instructions that use it"
_TOGETHER = "is computed together with others in one instruction, or was known, or nothing reads it"
_HALVES = "two instructions for 64 bits, or more for one that the machine lacks"
_MOVED = "stands where it is executed less often: in front of a loop, or only for lanes that read it"
_AHEAD = "stands where more lanes are: a branch became predicates, or it is also done ahead of a loop"
_EXPANDED = "is made of instructions of other groups"

OWN: dict[tuple[str, Own], str] = {
    ("address", Own.NONE): "addresses of the spaces are the same numbers",
    ("branch", Own.NONE): "became predicates of what it jumped over, an end of the threads, or the fall through",
    ("branch", Own.MORE): "is turned round: those branch that went on in PTX; or it stands at both ends of a loop",
    ("branch", Own.TIMES): "stands twice: a loop or what follows was copied",
    ("branch", Own.FEWER): "is turned round: those branch that went on in PTX; or only some need it still",
    ("compare", Own.NONE): "its predicate is another one's, turned round, or computed together with another",
    ("compare", Own.TIMES): _HALVES + "; an and with another predicate may compare once more",
    ("compare", Own.FEWER): _MOVED,
    ("compare", Own.MORE): _AHEAD,
    ("convert", Own.NONE): "between integers: the register is there already, or a shift or a mask",
    ("divide_single", Own.NONE): _EXPANDED,
    ("end", Own.NONE): "every thread ends at the branch that goes here",
    ("end", Own.FEWER): "the other threads end at the branch that goes here",
    ("integer", Own.NONE): _TOGETHER + "; addresses are computed once or are part of the access",
    ("integer", Own.TIMES): _HALVES,
    ("integer", Own.FEWER): _MOVED,
    ("integer", Own.MORE): _HALVES + ", of which one is done once in front of the loop",
    ("load_constant", Own.NONE): _OPERAND,
    ("load_shared", Own.NONE): "is part of a wider load: the bytes are the same",
    ("logic", Own.NONE): _TOGETHER,
    ("logic", Own.TIMES): _HALVES,
    ("logic", Own.FEWER): _MOVED,
    ("logic", Own.MORE): _AHEAD,
    ("move", Own.NONE): "the register is used under its first name; " + _OPERAND,
    ("move", Own.TIMES): "sets several registers, or an address of shared memory, which takes a sum as well",
    ("move", Own.FEWER): _MOVED,
    ("move", Own.MORE): _AHEAD,
    ("rest", Own.NONE): "has no opcodes of its own: a hint, or an address of another block's shared memory",
    ("select", Own.NONE): "what selects is a predicate of the instructions that use the result",
    ("select", Own.FEWER): _MOVED,
    ("shuffle", Own.NONE): "the same shuffle of the same value is done once",
    ("single", Own.NONE): "adds zero: counted as a move",
    ("wait", Own.NONE): "is part of the instruction that it belongs to: groups are counted by scoreboards",
    ("wait", Own.TIMES): "several fences, or by every lane of the warp that one elected lane stands for",
    ("wait", Own.FEWER): _MOVED,
    ("wait", Own.MORE): "by lanes of which one is elected afterwards; loops of one waiting instruction are unrolled",
    ("wmma", Own.NONE): "two of the matrix instructions that stand beside",
    ("wmma_memory", Own.NONE): "plain loads or stores, which stand beside",
}

BESIDE: dict[str, str] = {
    "ISETP": "compares integers for a predicate",
    "FSETP": "compares for an expansion's special cases",
    "UISETP": "compares in the uniform unit",
    "PLOP3": "combines predicates",
    "P2R": "keeps predicates in a register",
    "R2P": "brings predicates back",
    "SEL": "selects one of two numbers",
    "FSEL": "selects one of two numbers",
    "USEL": "selects in the uniform unit",
    "LDC": "loads a parameter or constant",
    "ULDC": "loads a parameter or constant",
    "MOV": "sets or copies a register",
    "UMOV": "sets or copies a uniform register",
    "CS2R": "sets two registers to zero, or reads a clock",
    "R2UR": "copies a register to the uniform unit",
    "S2R": "reads a special register",
    "S2UR": "reads a special register",
    "IMAD": "computes an integer",
    "IADD3": "computes an integer",
    "VIADD": "computes an integer",
    "LEA": "computes an address",
    "ULEA": "computes an address of shared memory",
    "UIADD3": "computes an integer in the uniform unit",
    "UIMAD": "computes an integer in the uniform unit",
    "LOP3": "computes bits or a predicate of them",
    "ULOP3": "computes bits in the uniform unit",
    "SHF": "shifts, also for the upper half of 64 bits",
    "USHF": "shifts in the uniform unit",
    "PRMT": "makes an address of another block's shared memory",
    "UPRMT": "makes an address of another block's shared memory",
    "BSSY": "remembers where lanes meet again",
    "BSYNC": "lanes meet again",
    "WARPSYNC": "lanes meet again",
    "BRA": "a branch around it, or of the loop that it is in",
    "EXIT": "ends the threads that would have branched to the end",
    "ELECT": "elects one lane",
    "NOP": "keeps matrix instructions apart, or fills a place",
    "LDG": "a load of a matrix, in parts",
    "STG": "a store of a matrix, in parts",
    "HMMA": "a product of matrices, in halves",
    "MUFU": "an expansion's approximation",
    "FMUL": "an expansion's product",
    "FFMA": "an expansion's product and sum",
    "UTMACCTL": "prefetches a descriptor",
}
"""Opcodes as ``counted_groups.machine_opcode`` names them."""

LINELESS: dict[str, tuple[str, ...]] = {
    "wgmma.mma_async": ("HGMMA", "IGMMA", "QGMMA", "BGMMA"),
    "mbarrier.try_wait": ("SYNCS.PHASECHK",),
}
"""PTX opcodes of whose machine instructions ptxas's line table says nothing, so that they seem to be of the instruction
that stands before: in PTX's order where there are as many on both sides, else each of the next one from there on."""
