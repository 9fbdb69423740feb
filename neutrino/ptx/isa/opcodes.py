"""The instructions of PTX: the operands of each, the classes that it belongs to, and what BYTES and OPS of it mean.

One table, by the sections of the PTX ISA 9.0 manual. Matching, operands and the verifier of snippets read it, and
``neutrino-probe opcodes`` prints it.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from neutrino.lazy import lazy

_Row = tuple[str, ...]

# A row: name; the first PTX ISA version and architecture with the instruction; operands; classes; marks, which are
# what BYTES or OPS of it are (``Measure``), "asynchronous", and where control goes after it (``Flow``).
#
# Name: dotted parts as in a tracepoint, alternatives joined by ``|``. If several rows fit an instruction, the one with
# the most parts is used. Operands, with ``?`` after those that may be absent, ``*`` after what may occur any number of
# times:
#     d     destination, d|p with a second one after ``|``, d+ read as well
#     s     source, p one that is a predicate, i a constant, n the number of bytes, k an instruction descriptor
#     [a]   address, [m] another address (of a barrier), [t] an object with coordinates
#     l     a label, a function, or the arguments of a call
_TABLE: dict[str, tuple[_Row, ...]] = {
    "9.7.1 Integer arithmetic": (
        ("add", "1.0", "10", "d s s"),
        ("sub", "1.0", "10", "d s s"),
        ("mul", "1.0", "10", "d s s"),
        ("mad", "1.0", "10", "d s s s"),
        ("mul24", "1.0", "10", "d s s"),
        ("mad24", "1.0", "10", "d s s s"),
        ("sad", "1.0", "10", "d s s s"),
        ("div", "1.0", "10", "d s s"),
        ("rem", "1.0", "10", "d s s"),
        ("abs", "1.0", "10", "d s"),
        ("neg", "1.0", "10", "d s"),
        ("min", "1.0", "10", "d s s"),
        ("max", "1.0", "10", "d s s"),
        ("popc", "2.0", "20", "d s"),
        ("clz", "2.0", "20", "d s"),
        ("bfind", "2.0", "20", "d s"),
        ("fns", "6.0", "30", "d s s s"),
        ("brev", "2.0", "20", "d s"),
        ("bfe", "2.0", "20", "d s s s"),
        ("bfi", "2.0", "20", "d s s s s"),
        ("szext", "7.6", "70", "d s s"),
        ("bmsk", "7.6", "70", "d s s"),
        ("dp4a", "5.0", "61", "d s s s"),
        ("dp2a", "5.0", "61", "d s s s"),
    ),
    "9.7.2 Extended-precision integer arithmetic": (
        ("add.cc", "1.2", "10", "d s s"),
        ("addc", "1.2", "10", "d s s"),
        ("sub.cc", "1.2", "10", "d s s"),
        ("subc", "1.2", "10", "d s s"),
        ("mad.cc", "3.0", "20", "d s s s"),
        ("madc", "3.0", "20", "d s s s"),
    ),
    "9.7.3 Floating-point arithmetic": (
        ("testp", "2.0", "20", "d s"),
        ("copysign", "2.0", "20", "d s s"),
        ("add.f32|f64", "1.0", "10", "d s s"),
        ("add.f32x2", "8.6", "100", "d s s"),
        ("sub.f32|f64", "1.0", "10", "d s s"),
        ("sub.f32x2", "8.6", "100", "d s s"),
        ("mul.f32|f64", "1.0", "10", "d s s"),
        ("mul.f32x2", "8.6", "100", "d s s"),
        ("fma.f32|f64", "1.4", "13", "d s s s"),
        ("fma.f32x2", "8.6", "100", "d s s s"),
        ("mad.f32|f64", "1.0", "10", "d s s s"),
        ("div.f32|f64", "1.0", "10", "d s s"),
        ("abs.f32|f64", "1.0", "10", "d s"),
        ("neg.f32|f64", "1.0", "10", "d s"),
        ("min.f32|f64", "1.0", "10", "d s s s?"),
        ("max.f32|f64", "1.0", "10", "d s s s?"),
        ("rcp", "1.0", "10", "d s", "special"),
        ("sqrt", "1.0", "10", "d s", "special"),
        ("rsqrt", "1.0", "10", "d s", "special"),
        ("sin", "1.0", "10", "d s", "special"),
        ("cos", "1.0", "10", "d s", "special"),
        ("lg2", "1.0", "10", "d s", "special"),
        ("ex2", "1.0", "10", "d s", "special"),
        ("tanh", "7.0", "75", "d s", "special"),
    ),
    "9.7.4 Half-precision floating-point": (
        ("add.f16|f16x2", "4.2", "53", "d s s"),
        ("add.bf16|bf16x2", "7.8", "90", "d s s"),
        ("sub.f16|f16x2", "4.2", "53", "d s s"),
        ("sub.bf16|bf16x2", "7.8", "90", "d s s"),
        ("mul.f16|f16x2", "4.2", "53", "d s s"),
        ("mul.bf16|bf16x2", "7.8", "90", "d s s"),
        ("fma.f16|f16x2", "4.2", "53", "d s s s"),
        ("fma.bf16|bf16x2", "7.0", "80", "d s s s"),
        ("neg.f16|f16x2", "6.0", "53", "d s"),
        ("neg.bf16|bf16x2", "7.0", "80", "d s"),
        ("abs.f16|f16x2", "6.5", "53", "d s"),
        ("abs.bf16|bf16x2", "7.0", "80", "d s"),
        ("min.f16|f16x2|bf16|bf16x2", "7.0", "80", "d s s"),
        ("max.f16|f16x2|bf16|bf16x2", "7.0", "80", "d s s"),
        ("tanh.f16|f16x2", "7.0", "75", "d s", "special"),
        ("tanh.bf16|bf16x2", "7.8", "90", "d s", "special"),
        ("ex2.f16|f16x2", "7.0", "75", "d s", "special"),
        ("ex2.bf16|bf16x2", "7.8", "90", "d s", "special"),
    ),
    "9.7.5 Mixed-precision floating-point": (
        ("add.f32.f16|bf16", "8.6", "100", "d s s"),
        ("sub.f32.f16|bf16", "8.6", "100", "d s s"),
        ("fma.f32.f16|bf16", "8.6", "100", "d s s s"),
    ),
    "9.7.6 Comparison and selection": (
        ("set", "1.0", "10", "d s s p?"),
        ("setp", "1.0", "10", "d|p s s p?"),
        ("selp", "1.0", "10", "d s s p"),
        ("slct", "1.0", "10", "d s s s"),
    ),
    "9.7.7 Half-precision comparison": (
        ("set.f16|f16x2", "4.2", "53", "d s s p?"),
        ("set.bf16|bf16x2", "7.8", "90", "d s s p?"),
        ("setp.f16|f16x2", "4.2", "53", "d|p s s p?"),
        ("setp.bf16|bf16x2", "7.8", "90", "d|p s s p?"),
    ),
    "9.7.8 Logic and shift": (
        ("and", "1.0", "10", "d s s"),
        ("or", "1.0", "10", "d s s"),
        ("xor", "1.0", "10", "d s s"),
        ("not", "1.0", "10", "d s"),
        ("cnot", "1.0", "10", "d s"),
        ("lop3", "4.3", "50", "d|p s s s i p?"),
        ("shf", "3.1", "32", "d s s s"),
        ("shl", "1.0", "10", "d s s"),
        ("shr", "1.0", "10", "d s s"),
    ),
    "9.7.9 Data movement and conversion": (
        ("mov", "1.0", "10", "d s"),
        ("shfl", "3.0", "30", "d|p s s s"),
        ("shfl.sync", "6.0", "30", "d|p s s s s"),
        ("prmt", "2.0", "20", "d s s s"),
        ("ld", "1.0", "10", "d [a] s?", "memory load", "access"),
        ("ld.global.nc", "3.1", "32", "d [a] s?", "memory load", "access"),
        ("ldu", "2.0", "20", "d [a]", "memory load", "access"),
        ("st", "1.0", "10", "[a] s s?", "memory store", "access"),
        ("st.async", "8.1", "90", "[a] s [m]?", "memory store", "access asynchronous"),
        ("st.bulk", "8.6", "100", "[a] n i", "memory store"),
        ("multimem.ld_reduce", "8.1", "90", "d [a]", "memory load", "access"),
        ("multimem.st", "8.1", "90", "[a] s", "memory store", "access"),
        ("multimem.red", "8.1", "90", "[a] s", "memory atomic", "access"),
        ("prefetch", "2.0", "20", "[a]"),
        ("prefetchu", "2.0", "20", "[a]"),
        ("applypriority", "7.4", "80", "[a] i"),
        ("discard", "7.4", "80", "[a] i"),
        ("createpolicy", "7.4", "80", "d s?"),
        ("createpolicy.range", "7.4", "80", "d [a] s s"),
        ("isspacep", "2.0", "20", "d s"),
        ("cvta", "2.0", "20", "d s", "convert"),
        ("cvt", "1.0", "10", "d s s? s? s?", "convert"),
        ("cvt.pack", "6.5", "72", "d s s s?", "convert"),
        ("mapa", "7.8", "90", "d s s"),
        ("getctarank", "7.8", "90", "d s"),
        ("cp.async", "7.0", "80", "[a] [a] i s? s?", "memory load store", "copy asynchronous"),
        ("cp.async.commit_group", "7.0", "80", ""),
        ("cp.async.wait_group", "7.0", "80", "i", "barrier"),
        ("cp.async.wait_all", "7.0", "80", "", "barrier"),
        ("cp.async.bulk", "8.0", "90", "[a] [a] n [m]? s? s?", "memory load store", "asynchronous"),
        ("cp.reduce.async.bulk", "8.0", "90", "[a] [a] n [m]? s?", "memory load atomic", "asynchronous"),
        ("cp.async.bulk.prefetch", "8.0", "90", "[a] n s?", "", "asynchronous"),
        ("cp.async.bulk.tensor", "8.0", "90", "[t] [t] s*", "memory load store", "asynchronous"),
        ("cp.reduce.async.bulk.tensor", "8.0", "90", "[t] [m] s?", "memory load atomic", "asynchronous"),
        ("cp.async.bulk.prefetch.tensor", "8.0", "90", "[t] s? s?", "", "asynchronous"),
        ("cp.async.bulk.commit_group", "8.0", "90", ""),
        ("cp.async.bulk.wait_group", "8.0", "90", "i", "barrier"),
        ("tensormap.replace", "8.3", "90a", "[a] s s?", "memory store"),
    ),
    "9.7.10 Texture": (
        ("tex", "1.0", "10", "d|p [t] s*", "memory load"),
        ("tld4", "2.0", "20", "d|p [t] s*", "memory load"),
        ("txq", "2.0", "20", "d [t] s?"),
        ("istypep", "4.0", "30", "d l"),
    ),
    "9.7.11 Surface": (
        ("suld", "1.5", "20", "d [t]", "memory load", "access"),
        ("sust", "1.5", "20", "[t] s", "memory store", "access"),
        ("sured", "2.0", "20", "[t] s", "memory atomic", "access"),
        ("suq", "2.0", "20", "d [t]"),
    ),
    "9.7.12 Control flow": (
        ("bra", "1.0", "10", "l", "branch", "jump"),
        ("brx.idx", "6.0", "30", "s l", "branch", "jump"),
        ("call", "1.0", "10", "l*", "branch", "call"),
        ("ret", "1.0", "10", "", "branch", "leave"),
        ("exit", "1.0", "10", "", "branch", "leave"),
    ),
    "9.7.13 Parallel synchronization and communication": (
        ("bar.sync", "1.0", "10", "s s?", "barrier"),
        ("bar.arrive", "2.0", "20", "s s", "barrier"),
        ("bar.red", "2.0", "20", "d s s p?", "barrier"),
        ("barrier.sync", "6.0", "30", "s s?", "barrier"),
        ("barrier.arrive", "6.0", "30", "s s", "barrier"),
        ("barrier.red", "6.0", "30", "d s s p?", "barrier"),
        ("bar.warp", "6.0", "30", "s", "barrier"),
        ("barrier.cluster", "7.8", "90", "", "barrier"),
        ("membar", "1.4", "10", "", "barrier"),
        ("fence", "6.0", "70", "[a]? i?", "barrier"),
        ("atom", "1.1", "11", "d [a] s s? s?", "memory atomic", "access"),
        ("red", "1.2", "11", "[a] s s?", "memory atomic", "access"),
        ("red.async", "8.1", "90", "[a] s [m]?", "memory atomic", "access asynchronous"),
        ("vote", "1.2", "12", "d p"),
        ("vote.sync", "6.0", "30", "d p s"),
        ("match", "6.0", "70", "d|p s s"),
        ("activemask", "6.2", "30", "d"),
        ("redux", "7.0", "80", "d s s"),
        ("griddepcontrol.launch_dependents", "7.8", "90", ""),
        ("griddepcontrol.wait", "7.8", "90", "", "barrier"),
        ("elect", "8.0", "90", "d|p s"),
        ("mbarrier.init", "7.0", "80", "[a] s"),
        ("mbarrier.inval", "7.0", "80", "[a]"),
        ("mbarrier.expect_tx", "8.0", "90", "[a] s"),
        ("mbarrier.complete_tx", "8.0", "90", "[a] s"),
        ("mbarrier.arrive", "7.0", "80", "d [a] s?", "barrier"),
        ("mbarrier.arrive_drop", "7.0", "80", "d [a] s?", "barrier"),
        ("mbarrier.test_wait", "7.0", "80", "d [a] s", "barrier"),
        ("mbarrier.try_wait", "7.8", "90", "d [a] s s?", "barrier"),
        ("mbarrier.pending_count", "7.0", "80", "d s"),
        ("cp.async.mbarrier.arrive", "7.0", "80", "[a]", "barrier"),
        ("tensormap.cp_fenceproxy", "8.3", "90", "[a] [a] n", "memory load store"),
        ("clusterlaunchcontrol.try_cancel", "8.6", "100", "[a] [m]", "", "asynchronous"),
        ("clusterlaunchcontrol.query_cancel", "8.6", "100", "d s"),
    ),
    "9.7.14 Warp-level matrix": (
        ("wmma.load", "6.0", "70", "d [a] s?", "memory load", "matrix"),
        ("wmma.store", "6.0", "70", "[a] s s?", "memory store", "matrix"),
        ("wmma.mma", "6.0", "70", "d s s s", "tensor", "warp"),
        ("mma", "6.4", "70", "d s s s s*", "tensor", "warp"),
        ("mma.sp", "7.1", "80", "d s s s s*", "tensor", "warp"),
        ("ldmatrix", "6.5", "75", "d [a]", "memory load", "fragment"),
        ("stmatrix", "7.8", "90", "[a] s", "memory store", "fragment"),
        ("movmatrix", "7.8", "75", "d s"),
    ),
    "9.7.15 Asynchronous warpgroup-level matrix": (
        ("wgmma.mma_async", "8.0", "90a", "d+ s s s*", "tensor", "warpgroup asynchronous"),
        ("wgmma.mma_async.sp", "8.2", "90a", "d+ s s s i s*", "tensor", "warpgroup asynchronous"),
        ("wgmma.fence", "8.0", "90a", "", "barrier"),
        ("wgmma.commit_group", "8.0", "90a", ""),
        ("wgmma.wait_group", "8.0", "90a", "i", "barrier"),
    ),
    "9.7.16 TensorCore 5th generation": (
        ("tcgen05.alloc", "8.6", "100a", "[a] s"),
        ("tcgen05.dealloc", "8.6", "100a", "s s"),
        ("tcgen05.relinquish_alloc_permit", "8.6", "100a", ""),
        ("tcgen05.ld", "8.6", "100a", "d [a] i?", "memory load", "fragment asynchronous"),
        ("tcgen05.ld.red", "8.8", "103a", "d d [a] i?", "memory load", "fragment asynchronous"),
        ("tcgen05.st", "8.6", "100a", "[a] s s?", "memory store", "fragment asynchronous"),
        ("tcgen05.wait", "8.6", "100a", "", "barrier"),
        ("tcgen05.cp", "8.6", "100a", "[a] s", "memory load store", "asynchronous"),
        ("tcgen05.shift", "8.6", "100a", "[a]", "", "asynchronous"),
        ("tcgen05.mma", "8.6", "100a", "[a] s s k s*", "tensor", "descriptor asynchronous"),
        ("tcgen05.mma.sp", "8.6", "100a", "[a] s s [m] k s*", "tensor", "descriptor asynchronous"),
        ("tcgen05.mma.ws", "8.6", "100a", "[a] s s k s*", "tensor", "descriptor asynchronous"),
        ("tcgen05.mma.ws.sp", "8.6", "100a", "[a] s s [m] k s*", "tensor", "descriptor asynchronous"),
        ("tcgen05.fence", "8.6", "100a", "", "barrier"),
        ("tcgen05.commit", "8.6", "100a", "[a] s?", "barrier"),
    ),
    "9.7.17 Stack manipulation": (
        ("stacksave", "7.3", "52", "d"),
        ("stackrestore", "7.3", "52", "s"),
        ("alloca", "7.3", "52", "d s i?"),
    ),
    "9.7.18 Video": (
        *((name, "2.0", "20", "d s s s?") for name in ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr")),
        ("vmad", "2.0", "20", "d s s s"),
        ("vset", "2.0", "20", "d s s s?"),
        *(
            (f"{name}{count}", "3.0", "30", "d s s s")
            for count in (2, 4)
            for name in ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax", "vset")
        ),
    ),
    "9.7.19 Miscellaneous": (
        ("brkpt", "1.0", "11", "", "", "pause"),
        ("nanosleep", "6.3", "70", "s"),
        ("pmevent", "1.4", "10", "i"),
        ("trap", "1.0", "10", "", "", "stop"),
        ("setmaxnreg", "8.0", "90a", "i"),
    ),
}


class Role(enum.Enum):
    """The role of an operand in its instruction; the values are as in the table."""

    DESTINATION = "d"
    DESTINATION_PAIR = "d|p"
    ACCUMULATOR = "d+"
    SOURCE = "s"
    PREDICATE = "p"
    CONSTANT = "i"
    SIZE = "n"
    DESCRIPTOR = "k"
    ADDRESS = "[a]"
    OTHER_ADDRESS = "[m]"
    OBJECT = "[t]"
    LABEL = "l"

    @property
    def is_written(self) -> bool:
        """Whether the instruction writes the operand's registers."""
        return self in {Role.DESTINATION, Role.DESTINATION_PAIR, Role.ACCUMULATOR}


class Measure(enum.Enum):
    """How the helpers BYTES (bytes accessed) or OPS (operations) of an instruction are computed, per thread.

    BYTES: ``ACCESS``: size of the type times elements of the vector. ``COPY``: the bytes that ``cp.async`` reads.
    ``MATRIX``: a lane's share of the matrix. ``FRAGMENT``: the registers of its fragment. OPS: ``WARP``,
    ``WARPGROUP``: from the matrix shape, divided by 32 or 128 threads. ``DESCRIPTOR``: from the instruction
    descriptor, all counted for the one issuing thread.
    """

    ACCESS = "access"
    COPY = "copy"
    MATRIX = "matrix"
    FRAGMENT = "fragment"
    WARP = "warp"
    WARPGROUP = "warpgroup"
    DESCRIPTOR = "descriptor"


class Flow(enum.Enum):
    """Where control goes after an instruction that does not simply continue with the next one.

    ``JUMP``: to a label. ``LEAVE``: out of the function. ``STOP``: nowhere, the launch has failed. These three end a
    basic block; if their predicate is false, control continues with the next instruction. ``CALL``: into a function,
    which returns or ends the thread. ``PAUSE``: to a debugger, which may read registers.
    """

    JUMP = "jump"
    LEAVE = "leave"
    STOP = "stop"
    CALL = "call"
    PAUSE = "pause"

    @property
    def ends_block(self) -> bool:
        """Whether the instruction ends a basic block."""
        return self in {Flow.JUMP, Flow.LEAVE, Flow.STOP}


@dataclass(frozen=True)
class Opcode:
    """One row of the table.

    name: the dotted parts that identify it, each with its alternatives. section: number and title in the manual.
    version: the first PTX ISA version with it. architecture: the first one, such as ``sm_80`` or ``sm_90a``.
    operands: their roles in order, including optional ones. variadic: the last one may occur any number of times.
    classes: words of ``model.CLASSES``. asynchronous: its result is available only after a later wait. flow: where
    control goes, None if to the next instruction. syntax: the operands as the table writes them.
    """

    name: tuple[tuple[str, ...], ...]
    section: str
    version: tuple[int, int]
    architecture: str
    operands: tuple[Role, ...]
    syntax: str
    variadic: bool
    classes: frozenset[str]
    measure: Measure | None
    asynchronous: bool
    flow: Flow | None

    @property
    def text(self) -> str:
        """The opcode's name as the table writes it, with alternatives."""
        return ".".join("|".join(alternatives) for alternatives in self.name)

    @lazy
    def destinations(self) -> int:
        """Number of operands that are written; they precede the others."""
        return sum(role.is_written for role in self.operands)

    def fits(self, parts: Sequence[str]) -> tuple[int, ...] | None:
        """Return where the parts of this row's name are in an opcode, as indices; None if the row does not fit it.

        parts: the dotted parts of the opcode. The first ones must match; the others must occur in the same order, with
        any modifiers between them. A part also matches with a sub-qualifier: ``sp`` matches ``sp::ordered_metadata``.
        """
        indices: list[int] = []
        index = 0
        for alternatives in self.name:
            while index < len(parts) and parts[index].partition("::")[0] not in alternatives:
                # No modifier precedes the first part.
                if not indices:
                    return None
                index += 1
            if index == len(parts):
                return None
            indices.append(index)
            index += 1
        return tuple(indices)


def _opcode(section: str, row: _Row) -> Opcode:
    """Parse a row of ``_TABLE``. section: its key there."""
    # Classes and marks may be absent: those columns are then empty.
    name, version, architecture, operands, classes, marks = (*row, "", "")[:6]
    major, _, minor = version.partition(".")
    operand_words = operands.split()
    mark_words = set(marks.split())
    return Opcode(
        name=tuple(tuple(part.split("|")) for part in name.split(".")),
        section=section,
        version=(int(major), int(minor)),
        architecture=f"sm_{architecture}",
        operands=tuple(Role(word.rstrip("?*")) for word in operand_words),
        syntax=operands,
        variadic=any(word.endswith("*") for word in operand_words),
        classes=frozenset(classes.split()),
        measure=next((measure for measure in Measure if measure.value in mark_words), None),
        asynchronous="asynchronous" in mark_words,
        flow=next((flow for flow in Flow if flow.value in mark_words), None),
    )


OPCODES: tuple[Opcode, ...] = tuple(_opcode(section, row) for section, rows in _TABLE.items() for row in rows)
"""The whole table, in the manual's order."""


def _rows_by_first_part() -> dict[str, list[Opcode]]:
    """Group the rows of the table by the first part of their names, such as ``ld``."""
    rows: dict[str, list[Opcode]] = {}
    for row in OPCODES:
        # The first part has one alternative only.
        rows.setdefault(row.name[0][0], []).append(row)
    return rows


_ROWS_BY_FIRST_PART = _rows_by_first_part()

FIRST_PARTS = frozenset(_ROWS_BY_FIRST_PART)
"""The words that the opcode of an instruction can begin with."""

FLOW: Mapping[str, Flow] = {row.name[0][0]: row.flow for row in OPCODES if row.flow is not None}
"""First part of an opcode → where control goes after the instruction; no entry: to the next instruction."""

NO_AFTER = frozenset(word for word, flow in FLOW.items() if flow.ends_block)
"""First parts of the opcodes that end a basic block, so that no snippet can run after them."""


@functools.cache
def find(parts: tuple[str, ...]) -> Opcode | None:
    """Return the row of the table for an opcode, given as its dotted parts; None if PTX ISA 9.0 does not have it."""
    best_key: tuple[int, tuple[int, ...]] | None = None
    best_row = None
    for row in _ROWS_BY_FIRST_PART.get(parts[0], ()) if parts else ():
        indices = row.fits(parts)
        if indices is None:
            continue
        # The row with the most parts is the most specific; of equal ones, that whose parts occur first.
        key = (-len(indices), indices)
        if best_key is None or key < best_key:
            best_key, best_row = key, row
    return best_row


def in_class(group: str) -> Iterator[Opcode]:
    """Return the rows of a class, one of ``model.CLASSES``."""
    return (opcode for opcode in OPCODES if group in opcode.classes)


STATE_SPACES = frozenset({"const", "global", "local", "param", "shared"})
"""State spaces that a modifier can name, without their ``::`` sub-qualifier (PTX ISA 5.1)."""

OTHER_NAMES: Mapping[str, str] = {
    "__syncthreads": "bar.sync | barrier.sync", "__syncwarp": "bar.warp.sync", "__threadfence": "membar | fence",
    "__shfl_sync": "shfl.sync", "atomicadd": "atom.add | red.add", "ldg": "ld.global", "stg": "st.global",
    "lds": "ld.shared", "sts": "st.shared", "ldl": "ld.local", "stl": "st.local", "ffma": "fma.rn.f32",
    "imad": "mad.lo", "hmma": "mma", "hgmma": "wgmma.mma_async", "ldgsts": "cp.async",
}  # fmt: skip
"""What CUDA C++ and machine code call an instruction, in lower case → the pattern that matches it in PTX."""


def meaning_of(word: str, modifiers: Sequence[str]) -> bool | None:
    """Return whether a word of a pattern that is no modifier holds for an opcode; None for words without such a
    meaning.

    The only one is ``generic``: no modifier is called so, and an access is generic if it has no state space.
    """
    if word != "generic":
        return None
    return not any(modifier.partition("::")[0] in STATE_SPACES for modifier in modifiers)
