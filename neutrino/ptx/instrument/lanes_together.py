"""Code for what lanes of a warp have together: which they are, the greatest of their values, the sum of floats.

Each thread adds up floating-point numbers in a register of its own, in f64, in the order in which it saves. Where
threads of a warp end together, their sums are added up by a tree over the lanes, and the lowest lane adds the total to
memory. docs/probes.md has the bound that follows from this order.
"""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.ptx.instrument.registers import Guard, Scratch, Take, UnsupportedError, Value, under
from neutrino.ptx.isa.scalars import WARP_LANES
from neutrino.ptx.text.inserted import Lines, branches, op, vector

_ADD = "add.rn.f64"
"""How sums are added: ``rn``, so that ptxas fuses it with no product of the program."""
# PTX ISA, "match.sync" and "activemask": sm_70 and sm_30, .version 6.0 and 6.2; "redux.sync": sm_80.
MATCHES = 70
REDUCES = 80
_ATOMIC = 60
"""PTX ISA, "red": ``.f64`` requires sm_60."""
_DISTANCES = (1, 2, 4, 8, 16)


def leader(lanes: Value, scratch: Scratch, here: Lines) -> Value:
    """Return LEADER, as probes name it: a predicate, whether this thread is the lowest lane of LANES (lanes that came
    together).

    lanes: the mask of these; only their threads get the right value. Code is appended to here.
    """
    lower, leads = scratch.take("b32"), scratch.take("pred")
    here += [
        op("mov.u32", lower, "%lanemask_lt"),
        op("and.b32", lower, lower, lanes.text),
        op("setp.eq.u32", leads, lower, "0"),
    ]
    return Value(leads, "pred")


def pieces(address: Value, lanes: Value, guard: Guard | None, shift: int, take: Take, lines: Lines) -> Value:
    """Return the number of different aligned pieces of ``1 << shift`` bytes in which the addresses of lanes lie, a u32.

    lanes: the mask of the lanes that execute this under the guard; others get nothing that means anything.
    """
    piece, same, count, is_first = take("b64"), take("b32"), take("b32"), take("pred")
    when = under(guard)
    lines += [
        op("mov.u64", piece, address.text),
        op("shr.u64", piece, piece, str(shift)),
        op("match.any.sync.b64", same, piece, lanes.text, when=when),
        op("mov.u32", count, "%lanemask_lt"),
        op("and.b32", same, same, count),
        op("setp.eq.u32", is_first, same, "0"),
        op("vote.sync.ballot.b32", count, is_first, lanes.text, when=when),
        op("popc.b32", count, count),
    ]
    return Value(count, "u32")


class LaneMasks:
    """The masks of the lanes that come to one place together, for LANES in the snippets there.

    Code of a snippet may branch, after which a GPU need not run its lanes together. So masks of later snippets are
    those from before it. lines: the code at the place, as it grows. first: lines to put before it.
    """

    def __init__(self, lines: Lines) -> None:
        """Set up the masks of the lanes that come to one place together. lines: the code at the place, as it grows."""
        self._lines = lines
        self._known: dict[Guard | None, str] = {}
        self.first: Lines = []

    def of(self, guard: Guard | None, scratch: Scratch, here: Lines) -> Value:
        """Return the mask of the lanes that come to this place together and for which a guard (predicate) holds, None
        for all.

        Under the guard ``activemask`` gives these. Code goes to here, whose lines come after those so far, or to
        ``first``.
        """
        is_parted = branches(self._lines)
        if not is_parted or guard not in self._known:
            self._known[guard] = mask = scratch.take("b32")
            line = op("activemask.b32", mask, when=under(guard))
            (self.first if is_parted else here).append(line)
        return Value(self._known[guard], "b32")


def check_architecture(architecture: int) -> None:
    """Raise UnsupportedError for an architecture that cannot add floating-point numbers in memory."""
    if architecture < _ATOMIC:
        raise UnsupportedError(
            f"sums of floats need sm_{_ATOMIC}, the kernel is for sm_{architecture}",
            f"the kernel compiled for sm_{_ATOMIC} or newer",
        )


@dataclass(frozen=True)
class _Step:
    """A level of the tree. source: a register with the lane from which a lane takes what it adds. when: a predicate,
    whether there is one."""

    source: str
    when: str


class LaneTree:
    """Adds up values of 64 bits over groups of a warp's lanes, as many lanes as a group has.

    The lanes of a group, by their order, are the leaves of a binary tree: neighbours are added, then the sums of two
    neighbours, and so on, so that the lowest lane of the group has the total. Lanes that are not there leave no gaps.

    here: the mask of the lanes that execute the code. group: that of this lane's group, or the same register. Code
    that finds the lanes is appended to lines at once.

    leads: a predicate register, whether this is the lowest lane of its group.
    """

    def __init__(self, here: str, group: str, take: Take, lines: Lines) -> None:
        """Set up a sum over groups of lanes: append the code that finds which lanes add to which. Parameters: see the
        class."""
        self._here = here
        self._take = take
        self._lines = lines
        lower, self.leads = take("b32"), take("pred")
        lines += [
            op("mov.u32", lower, "%lanemask_lt"),
            op("and.b32", lower, lower, group),
            op("setp.eq.u32", self.leads, lower, "0"),
        ]
        self._steps = self._find(group)

    def add_up(self, value: str) -> str:
        """Return a register with the total of a value over each group of lanes; the group's lowest lane alone has it.

        value: a register of 64 bits. In other lanes the result has no meaning.
        """
        take, lines = self._take, self._lines
        total, other, low, high = take("b64"), take("b64"), take("b32"), take("b32")
        lines.append(op("mov.b64", total, value))
        for step in self._steps:
            lines.append(op("mov.b64", vector(low, high), total))
            # 31: a shuffle within the whole warp, not within segments of it.
            lines += [op("shfl.sync.idx.b32", word, word, step.source, "31", self._here) for word in (low, high)]
            lines += [op("mov.b64", other, vector(low, high)), op(_ADD, total, total, other, when=step.when)]
        return total

    def _find(self, group: str) -> list[_Step]:
        """Append the code that finds, for each level of the tree, the lane whose sum this lane adds to its own; return
        the levels.

        In the order of the group's lanes it is as many places further as a sum has leaves: 1, 2, 4 and so on.
        """
        take, lines = self._take, self._lines
        lane, following = take("b32"), take("b32")
        lines += [
            op("mov.u32", lane, "%laneid"),
            op("mov.u32", following, "%lanemask_gt"),
            op("and.b32", following, following, group),
            op("brev.b32", following, following),
            # The number of a lane, or 32 if there is none.
            op("clz.b32", following, following),
        ]
        steps = []
        for distance in _DISTANCES:
            source, when = take("b32"), take("pred")
            lines += [
                op("setp.lt.u32", when, following, str(WARP_LANES)),
                # Without one it is this lane: what lanes have that do not take part is undefined.
                op("selp.b32", source, following, lane, when),
            ]
            steps.append(_Step(source, when))
            if distance != _DISTANCES[-1]:
                after = take("b32")
                lines.append(op("shfl.sync.idx.b32", after, following, source, "31", self._here))
                following = after
        return steps


class EndingThreads:
    """The threads of a warp that end together: what they keep is combined, and one of them writes it to memory.

    Code that finds them is appended to lines when they are first needed. Where the architecture has no instructions
    between lanes for it, each thread writes for itself.
    """

    def __init__(self, take: Take, lines: Lines, architecture: int) -> None:
        """Set up the code by which threads of a warp that end together combine values. take: gives a new register of a
        type.

        architecture: 80 for ``sm_80``.
        """
        self._take = take
        self._lines = lines
        self._combines = architecture >= MATCHES
        self._reduces = architecture >= REDUCES
        # Registers: the mask of the threads; whether it is the whole warp; whether this thread writes for all.
        self._here = ""
        self._all = ""
        self._writes: str | None = None
        self._tree: LaneTree | None = None

    def greatest(self, kept: str, bits: int) -> str:
        """Return a register with the greatest value that a register has in any of the threads that end together.

        Where values cannot be combined over lanes, it is the register itself. kept: the register's name. bits: 32 or
        64, of an unsigned value.
        """
        self._compute_masks()
        if not self._combines:
            return kept
        if bits == 32:
            return self._reduced(kept) if self._reduces else self._shuffled(kept, bits)
        if not self._reduces:
            return self._shuffled(kept, bits)
        # 64 bits: the greatest upper half, then the greatest lower half of the threads with that upper half.
        low, high, same, whole = self._take("b32"), self._take("b32"), self._take("pred"), self._take("b64")
        self._lines.append(op("mov.b64", vector(low, high), kept))
        upper = self._reduced(high)
        self._lines += [op("setp.eq.u32", same, high, upper), op("selp.b32", low, low, "0", same)]
        lower = self._reduced(low)
        self._lines.append(op("mov.b64", whole, vector(lower, upper)))
        return whole

    @property
    def writes(self) -> str | None:
        """A predicate, true in the threads that write to memory where they end: one for all, or each for itself; None
        if all do."""
        self._compute_masks()
        return self._writes

    @property
    def tree(self) -> LaneTree | None:
        """What adds up a value over the threads that end together, for the lowest of them; None where each writes for
        itself."""
        self._compute_masks()
        if self._tree is None and self._combines:
            self._tree = LaneTree(self._here, self._here, self._take, self._lines)
        return self._tree

    def _compute_masks(self) -> None:
        """Append the code that finds the threads and the lowest of them, which writes for all. Only the first call
        appends anything, and none where values cannot be combined."""
        if not self._combines or self._here:
            return
        self._here, lower, self._writes = self._take("b32"), self._take("b32"), self._take("pred")
        self._lines += [
            op("activemask.b32", self._here),
            op("mov.u32", lower, "%lanemask_lt"),
            op("and.b32", lower, lower, self._here),
            op("setp.eq.u32", self._writes, lower, "0"),
        ]
        if not self._reduces:
            # Shuffles read undefined values from lanes that do not take part. So unless all lanes of the warp are here
            # (the mask is -1) each thread writes for itself.
            self._all = self._take("pred")
            self._lines += [
                op("setp.eq.s32", self._all, self._here, "-1"),
                op("setp.ne.or.s32", self._writes, self._here, "-1", self._writes),
            ]

    def _reduced(self, name: str) -> str:
        """Return a register with the greatest value that a 32-bit register has in the threads that end together
        (``redux``)."""
        total = self._take("b32")
        self._lines.append(op("redux.sync.max.u32", total, name, self._here))
        return total

    def _shuffled(self, kept: str, bits: int) -> str:
        """Return a register with the greatest value that a register has in the warp, by shuffles (a butterfly
        reduction).

        It has this thread's own value if not all lanes are here. A shuffle moves 32 bits, so that a value of 64 is
        taken apart into two words and put together again.
        """
        best, other = self._take(f"b{bits}"), self._take(f"b{bits}")
        words = [self._take("b32") for _ in range(bits // 32)]
        self._lines.append(op(f"mov.b{bits}", best, kept))
        for distance in (16, 8, 4, 2, 1):
            if bits == 64:
                self._lines.append(op("mov.b64", vector(words[0], words[1]), best))
            for word in words:
                source = word if bits == 64 else best
                # 31: a shuffle within the whole warp, not within segments of it.
                self._lines.append(op("shfl.sync.bfly.b32", word, source, str(distance), "31", self._here))
            if bits == 64:
                self._lines.append(op("mov.b64", other, vector(words[0], words[1])))
            self._lines.append(op(f"max.u{bits}", best, best, other if bits == 64 else words[0]))
        self._lines.append(op(f"selp.b{bits}", best, best, kept, self._all))
        return best
