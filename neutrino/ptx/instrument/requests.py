"""Code that looks at what the lanes of a warp access together, of several sites at once: each lane is for one of them.

Where all lanes of the warp are here, lane n computes what there is to know of the site with number n, modulo 32, and
runs the probe's code for it; so a probe's code runs once for many sites. Mostly the addresses of each site lie at one
distance from lane to lane: then that and the first address say all. Sites whose addresses are known to differ by one
amount in all lanes are looked at once. If any site's are otherwise, or some lanes of the warp are elsewhere, the lanes
that are here compare their addresses, and run the probe's code, for one site after the other.

A snippet may be written so if one of the lanes saves (level group), to maps in which the order of records does not
count, what follows from the lanes, their sectors and the site: it reads no other registers than its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from neutrino.abi.levels import Level, Per
from neutrino.ir.operands import Register, SiteOperand
from neutrino.lazy import lazy
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.float_sums import has_floats
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.structured import Save
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.analysis.matching import Hit
from neutrino.ptx.analysis.register_values import Addresses, Sum
from neutrino.ptx.instrument.emission import Emission, computes_only
from neutrino.ptx.instrument.explicit_fma import Products
from neutrino.ptx.instrument.lanes_together import REDUCES
from neutrino.ptx.instrument.registers import Guard, Value, positive, under
from neutrino.ptx.instrument.site_values import SiteOperands
from neutrino.ptx.instrument.unlikely_code import Meetings
from neutrino.ptx.isa.instruction import OF_REQUESTS, REGISTER, Instruction, constant_bytes, read_address
from neutrino.ptx.isa.scalars import WARP_LANES, known_integer
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.inserted import Edits, Label, Lines, Scope, after, before, mem, op, vector

_KNOWN = OF_REQUESTS | {"LANES", "LEADER", "SITE", "BYTES"}
"""What a snippet may read of its sites."""
_LEADER = SiteOperand("LEADER")
_SECTOR_BITS = 5
_OR_DIFFERENCE = "0xF6"
"""The table of ``lop3`` for ``a | (b ^ c)``."""
_FAR = 1 << 26
"""Bytes from lane to lane: 31 times less than that is less than 32 bits hold."""
_ROW = 24
"""Bytes in local memory for a site: an address, how much further its own is, its number, and the bytes of an access."""
_WHOLE = "-1"
"""The set of all lanes."""


@dataclass(frozen=True)
class _Site:
    """A site that waits. number: of it. bytes_: of a thread's access. sum: what its address is the sum of, if that is
    known. operands: make the values at it anew."""

    number: int
    bytes_: int
    guard: Guard | None
    sum: Sum | None
    operands: Callable[[], SiteOperands]

    @property
    def lane(self) -> int:
        """The lane that is for it."""
        return self.number % WARP_LANES


_Amounts = Sequence[tuple[_Site, int]]
"""Sites whose addresses differ by known amounts: each with how many bytes it is beyond the first."""


@dataclass
class _Group:
    """Sites of one snippet. key: of the group. at, is_after: where their code goes; index: of the last instruction
    before that. block: the basic block. until: the first instruction that changes a register which the code reads."""

    snippet: Snippet
    key: tuple[int, bool]
    block: int
    sites: list[_Site] = field(default_factory=list)
    at: int = 0
    is_after: bool = False
    index: int = 0
    until: int = 0


@dataclass(frozen=True)
class _Base:
    """Sites whose addresses differ by known amounts, in bytes beyond that of the first one. first, stride: registers
    with that one's lowest 32 bits in lane 0, and how much it grows from lane to lane."""

    amounts: _Amounts
    first: str
    stride: str


@dataclass(frozen=True)
class _Own:
    """Registers with what each lane knows. lane: its number. Of its own site: the lanes that execute it, the bytes of
    an access (maybe a number), the sectors, and the different bytes; and a predicate, whether any lane executes it.
    is_unknown: whether the sectors and bytes are not right, in some lane."""

    lane: str
    lanes: str
    size: str
    sectors: str
    distinct: str
    saves: str
    is_unknown: str


def _may_save_elsewhere(entry: Map) -> bool:
    """Whether it makes no difference for a map which of the threads of a warp saves, and in what order."""
    is_sum = entry.kind.layout is Layout.COPIES and not has_floats(entry.fields)
    return is_sum and entry.level is Level.THREAD and entry.per in {Per.LAUNCH, Per.RUN}


def _signed(number: int) -> int:
    """Return a number modulo 2 to the 64 as a signed one, which an addition takes."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


class RequestCode:
    """Collects sites of a body, in text order, and inserts their code after several of them."""

    _MOST = 16

    def __init__(self, body: Body, products: Products, emission: Emission, edits: Edits) -> None:
        """Set up a writer that has collected nothing. Parameters: those of ``SiteWriter``."""
        self._body = body
        self._products = products
        self._emission = emission
        self._edits = edits
        self._meetings = Meetings(body)
        self._addresses = Addresses(body)
        self._groups: dict[tuple[int, bool], _Group] = {}
        # By the snippet's id, which stays: the snippet is kept with it.
        self._fitting: dict[int, tuple[Snippet, bool]] = {}
        self.count = 0
        """How many sites were collected."""

    def come_to(self, statement: Statement) -> None:
        """Insert the code of sites that cannot wait for that of an instruction, which comes next."""
        for group in list(self._groups.values()):
            if self._graph.block(statement.index) != group.block or self._meetings.lie_between(
                group.index, statement.index
            ):
                self._write(group)

    def fits(self, snippet: Snippet) -> bool:
        """Return whether a snippet's code may be written for several sites together."""
        if self._emission.architecture < REDUCES:
            return False
        known = self._fitting.get(id(snippet))
        if known is None:
            known = self._fitting[id(snippet)] = snippet, self._fits(snippet)
        return known[1]

    @staticmethod
    def _fits(snippet: Snippet) -> bool:
        """Return whether one of the lanes at a site saves, and nothing but what is known of requests."""
        read = snippet.operands_of_site
        if read.isdisjoint(OF_REQUESTS) or not read <= _KNOWN or snippet.deferral or snippet.branching or snippet.named:
            return False
        # Predicates that are true in the lowest lane alone.
        leaders: set[str] = set()
        for statement in snippet.straight:
            if isinstance(statement, Save):
                if statement.guard is None or statement.guard.name not in leaders or statement.is_inverted:
                    return False
                if not _may_save_elsewhere(statement.map):
                    return False
                continue
            if not computes_only(statement.opcode) or statement.guard is not None:
                return False
            target, *sources = statement.operands
            if statement.opcode in {"mov.pred", "and.pred"} and isinstance(target, Register) and any(
                source == _LEADER or getattr(source, "name", "") in leaders for source in sources
            ):
                leaders.add(target.name)
        return True

    def add(
        self, snippet: Snippet, operands: Callable[[], SiteOperands], instruction: Instruction, guard: Guard | None,
        hit: Hit, at: int,
    ) -> bool:  # fmt: skip
        """Keep a site for later. operands: make the values at it. guard: of the threads that execute it.

        Returns False where its code cannot wait at all.
        """
        statement, size = hit.statement, constant_bytes(instruction)
        address = next((read_address(each) for each in instruction.operands if each.startswith("[")), None)
        if size is None or address is None or (guard and guard.register.startswith(self._emission.prefix)):
            return False
        spot = self._products.first_clear(at)
        names = {address.base, guard.register} if guard else {address.base}
        until = self._until_changed([name for name in names if REGISTER.fullmatch(name)], statement, at, spot)
        if until is None:
            return False
        index, number = bisect_right(self._body.ends, spot) - 1, hit.number or 0
        # Lanes that have loaded their addresses access what has nothing in common: others do not wait with them.
        key = id(snippet), self._addresses.is_scattered(instruction)
        group = self._groups.get(key)
        if group is not None and (
            len(group.sites) >= self._MOST or index >= group.until or number >= group.sites[0].number + WARP_LANES
        ):
            self._write(group)
            group = None
        if group is None:
            group = self._groups[key] = _Group(snippet, key, self._graph.block(statement.index), until=until)
        offset = known_integer(address.offset)
        sum_ = self._addresses.of(address.base, statement.index) if offset is not None else None
        if sum_ is not None and offset is not None:
            sum_ = Sum(sum_.terms, (sum_.constant + offset) % (1 << 64))
        group.sites.append(_Site(number, size, guard, sum_, operands))
        group.until = min(group.until, until)
        group.at, group.is_after = spot, spot != statement.start
        group.index = max(index, statement.index)
        self.count += 1
        return True

    def write(self) -> None:
        """Insert the code of all sites that wait."""
        for group in list(self._groups.values()):
            self._write(group)

    def _write(self, group: _Group) -> None:
        """Insert the code of the sites of a group, which wait no more then."""
        emission, scratch = self._emission, self._emission.scratch
        mark = emission.mark_above()
        prefix = f"${emission.prefix.removeprefix('%')}"
        each, end = f"{prefix}each", f"{prefix}end"
        here, is_part = scratch.take("b32"), scratch.take("pred")
        bases = self._by_sum(group.sites)
        lines: Lines = [Scope.OPEN, op("activemask.b32", here), op("setp.ne.s32", is_part, here, _WHOLE)]
        lines.append(op("bra", each, when=is_part))
        own = self._look(group.sites, bases, lines)
        lines.append(op("bra", each, when=own.is_unknown))
        lines.append(op("bra", end, when=f"!{own.saves}"))
        always = scratch.take("pred")
        lines.append(op("mov.pred", always, "1"))
        values = self._values(own, always, self._own_number(group.sites, own.lane, lines), lines)
        code = emission.snippet(group.snippet, values, level=Level.THREAD)
        lines += [*code.lines, *code.stores, op("bra", end), Label(each)]
        self._write_in_turn(group, bases, here, f"{prefix}next", f"{prefix}more", lines)
        lines += [Label(end), Scope.CLOSE]
        self._edits.insert(group.at, after(lines) if group.is_after else before(lines))
        scratch.release(mark)
        del self._groups[group.key]

    # One site after the other

    def _write_in_turn(
        self, group: _Group, bases: Sequence[_Amounts], here: str, again: str, more: str, lines: Lines
    ) -> None:  # fmt: skip
        """Append the code of the sites for the lanes that are here: the lowest that executes a site saves for it.

        It is a loop, which reads the sites from local memory, so that they take no registers meanwhile. again, more:
        labels.
        """
        emission, take = self._emission, self._emission.scratch.take
        memory = emission.waiting(_ROW * len(group.sites))
        start, at, end, executing = take("b64"), take("b64"), take("b64"), take("b32")
        rows = [(site, base[0][0], amount) for base in bases for site, amount in base]
        always = sum(1 << place for place, (site, _, _) in enumerate(rows) if site.guard is None)
        lines += [op("mov.u64", start, memory), op("mov.u32", executing, str(always))]
        for place, (site, first, amount) in enumerate(rows):
            mark = emission.scratch.mark()
            about, further = take("b64"), take("b64")
            lines += [
                op("mov.b64", about, str(site.bytes_ << 32 | site.number)),
                op("mov.b64", further, str(amount)),
                op("st.local.b64", mem(start, _ROW * place), self._address(first, lines)),
                op("st.local.b64", mem(start, _ROW * place + 8), further),
                op("st.local.b64", mem(start, _ROW * place + 16), about),
            ]
            if site.guard is not None:
                executes = positive(site.guard, take, lines)
                lines.append(op("or.b32", executing, executing, str(1 << place), when=executes))
            emission.scratch.release(mark)
        address, piece, wide = take("b64"), take("b64"), take("b64")
        lanes, lower, same, number, size = (take("b32") for _ in range(5))
        executes, leads, is_first, is_more = (take("pred") for _ in range(4))
        lines += [
            op("mov.u64", at, start),
            op("add.u64", end, start, str(_ROW * len(rows))),
            Label(again),
            op("bar.warp.sync", here),
            op("ld.local.b64", address, mem(at)),
            op("ld.local.b64", piece, mem(at, 8)),
            op("ld.local.b32", number, mem(at, 16)),
            op("ld.local.b32", size, mem(at, 20)),
            op("add.u64", address, address, piece),
            op("and.b32", same, executing, "1"),
            op("setp.eq.u32", executes, same, "1"),
            op("shr.u32", executing, executing, "1"),
            op("vote.sync.ballot.b32", lanes, executes, here),
            op("mov.u32", lower, "%lanemask_lt"),
            op("and.b32", lower, lower, lanes),
            op("setp.eq.u32", leads, lower, "0"),
            op("and.pred", leads, leads, executes),
        ]
        found = {}
        for shift in (_SECTOR_BITS, 0):
            found[shift] = count = take("b32")
            lines += [
                op("shr.u64", piece, address, str(shift)),
                op("match.any.sync.b64", same, piece, here),
                op("and.b32", same, same, lower),
                op("setp.eq.u32", is_first, same, "0"),
                op("and.pred", is_first, is_first, executes),
                op("vote.sync.ballot.b32", count, is_first, here),
                op("popc.b32", count, count),
            ]
        lines += [op("mul.lo.u32", found[0], found[0], size), op("cvt.u64.u32", wide, size)]
        # The number is no lane's own, so a table gets what is saved at once, whatever lanes hold.
        lines += [op("bra", more, when=f"!{leads}"), op("mov.pred", leads, "1")]
        known = {"LANES": Value(lanes, "b32"), "LEADER": Value(leads, "pred"), "SITE": Value(number, "u32"),
                 "SECTORS": Value(found[_SECTOR_BITS], "u32"), "DISTINCT": Value(found[0], "u32"),
                 "BYTES": Value(wide, "u64")}  # fmt: skip
        code = emission.snippet(group.snippet, lambda helper, element: known[helper], level=Level.THREAD)
        lines += [
            *code.lines,
            *code.stores,
            Label(more),
            op("add.u64", at, at, str(_ROW)),
            op("setp.lt.u64", is_more, at, end),
            op("bra.uni", again, when=is_more),
        ]

    def _address(self, site: _Site, lines: Lines) -> str:
        """Return a register of 64 bits with the address at a site."""
        operands = site.operands()
        operands.begin_snippet(site.guard)
        value = operands("ADDR", None)
        lines += operands.here
        if value.type is not None:
            return value.text
        name = self._emission.scratch.take("b64")
        lines.append(op("mov.u64", name, value.text))
        return name

    # By a whole warp: each lane for its own site

    def _look(self, sites: Sequence[_Site], bases: Sequence[_Amounts], lines: Lines) -> _Own:
        """Append the code by which each lane finds what there is to know of its site, where the addresses of all sites
        lie at one distance from lane to lane."""
        take = self._emission.scratch.take
        lane, differs, lanes, first = (take("b32") for _ in range(4))
        lines += [op("mov.u32", lane, "%laneid"), op("mov.u32", differs, "0")]
        ballots = self._ballots(sites, lines)
        found = [self._base(amounts, lane, differs, lines) for amounts in bases]
        # Of this lane's site: the lanes that execute it, none of other lanes; and its first address and stride.
        is_own = take("pred")
        stride = found[0].stride if len(bases) == 1 else take("b32")
        sizes = {site.bytes_ for site in sites}
        size = str(sites[0].bytes_) if len(sizes) == 1 else take("b32")
        own = [lanes, first, *([stride] if len(bases) > 1 else []), *([size] if len(sizes) > 1 else [])]
        lines += [op("mov.u32", name, "0") for name in own]
        for base in found:
            for site, amount in base.amounts:
                lines += [
                    op("setp.eq.u32", is_own, lane, str(site.lane)),
                    op("mov.u32", lanes, ballots[site.guard], when=is_own),
                    op("add.u32", first, base.first, str(amount % (1 << 32)), when=is_own),
                ]
                if len(bases) > 1:
                    lines.append(op("mov.u32", stride, base.stride, when=is_own))
                if len(sizes) > 1:
                    lines.append(op("mov.u32", size, str(site.bytes_), when=is_own))
        is_whole = all(site.guard is None for site in sites)
        sectors, distinct, is_unknown = self._sectors(lanes, first, stride, size, lines, is_whole=is_whole)
        saves = take("pred")
        lines += [
            op("setp.ne.u32", saves, lanes, "0"),
            op("and.pred", is_unknown, is_unknown, saves),
            op("setp.ne.or.u32", is_unknown, differs, "0", is_unknown),
            op("vote.sync.any.pred", is_unknown, is_unknown, _WHOLE),
        ]
        return _Own(lane, lanes, size, sectors, distinct, saves, is_unknown)

    def _ballots(self, sites: Sequence[_Site], lines: Lines) -> dict[Guard | None, str]:
        """Return by guard the register with the lanes for which it holds."""
        take = self._emission.scratch.take
        found: dict[Guard | None, str] = {None: _WHOLE}
        for guard in dict.fromkeys(site.guard for site in sites):
            if guard is not None:
                found[guard] = take("b32")
                lines.append(op("vote.sync.ballot.b32", found[guard], positive(guard, take, lines), _WHOLE))
        return found

    @staticmethod
    def _by_sum(sites: Sequence[_Site]) -> list[_Amounts]:
        """Return the sites by what their addresses are sums of, each with how many bytes it is beyond the first."""
        found: dict[Hashable, list[_Site]] = {}
        for site in sites:
            found.setdefault(site.number if site.sum is None else site.sum.terms, []).append(site)
        return [
            [(site, _signed(site.sum.constant - some[0].sum.constant) if site.sum and some[0].sum else 0)
             for site in some]
            for some in found.values()
        ]  # fmt: skip

    def _base(self, amounts: _Amounts, lane: str, differs: str, lines: Lines) -> _Base:
        """Append the code that looks whether the addresses of a base lie at one distance from lane to lane; bits of
        ``differs`` become 1 where not.

        Where lanes that execute none of its sites are not as expected, they may be looked at, too.
        """
        take = self._emission.scratch.take
        address = self._address(amounts[0][0], lines)
        low, high, first, second, upper, expected = (take("b32") for _ in range(6))
        guards = list(dict.fromkeys(site.guard for site, _ in amounts))
        when = ""
        if len(guards) == 1:
            when = under(guards[0])
        elif None not in guards and len(guards) == 2:
            either = take("pred")
            one, other = (positive(guard, take, lines) for guard in guards if guard is not None)
            lines.append(op("or.pred", either, one, other))
            when = either
        lines += [
            op("mov.b64", vector(low, high), address),
            op("shfl.sync.idx.b32", first, low, "0", "31", _WHOLE),
            op("shfl.sync.idx.b32", second, low, "1", "31", _WHOLE),
            op("shfl.sync.idx.b32", upper, high, "0", "31", _WHOLE),
            op("sub.u32", second, second, first),
            op("mad.lo.u32", expected, lane, second, first),
            op("lop3.b32", differs, differs, low, expected, _OR_DIFFERENCE, when=when),
            op("lop3.b32", differs, differs, high, upper, _OR_DIFFERENCE, when=when),
        ]
        return _Base(amounts, first, second)

    def _sectors(
        self, lanes: str, first: str, stride: str, size: str, lines: Lines, *, is_whole: bool
    ) -> tuple[str, str, str]:  # fmt: skip
        """Return registers with the sectors, and the different bytes, of lanes whose addresses lie at one distance; and
        with the predicate that is true where that does not say it.

        Each access lies in one sector. From 32 bytes on each lane has one of its own, if the lowest 32 bits of the
        addresses do not come back to the first. Below that the lanes touch all from their first one to their last, if
        there are no gaps between the lanes.
        """
        take = self._emission.scratch.take
        distance, is_back, start, span = take("b32"), take("pred"), take("b32"), take("b32")
        lowest, highest, number, length = "0", "31", "32", "31"
        if not is_whole:
            lowest, highest, number, length = (take("b32") for _ in range(4))
            lines += [
                op("popc.b32", number, lanes),
                op("bfind.u32", highest, lanes),
                op("brev.b32", lowest, lanes),
                op("clz.b32", lowest, lowest),
                op("sub.u32", length, highest, lowest),
            ]
        is_wide, is_same, is_unknown = (take("pred") for _ in range(3))
        sectors, distinct = take("b32"), take("b32")
        lines += [
            op("abs.s32", distance, stride),
            op("setp.lt.s32", is_back, stride, "0"),
            op("selp.b32", start, highest, lowest, is_back),
            op("mad.lo.u32", start, start, stride, first),
            op("and.b32", start, start, str((1 << _SECTOR_BITS) - 1)),
            op("mad.lo.u32", span, distance, length, start),
            op("shr.u32", span, span, str(_SECTOR_BITS)),
            op("add.u32", span, span, "1"),
            op("setp.ge.u32", is_wide, distance, str(1 << _SECTOR_BITS)),
            op("selp.b32", sectors, number, span, is_wide),
            op("setp.eq.u32", is_same, distance, "0"),
            op("selp.b32", distinct, "1", number, is_same),
            op("mul.lo.u32", distinct, distinct, size),
        ]
        if is_whole:
            lines.append(op("setp.ge.u32", is_unknown, distance, str(_FAR)))
            return sectors, distinct, is_unknown
        below, gaps = take("b32"), take("b32")
        lines += [
            op("add.u32", below, distance, "-1"),
            op("sub.u32", gaps, number, length),
            op("setp.lt.u32", is_unknown, below, str((1 << _SECTOR_BITS) - 1)),
            op("setp.ne.and.u32", is_unknown, gaps, "1", is_unknown),
            op("setp.ge.or.u32", is_unknown, distance, str(_FAR), is_unknown),
        ]
        return sectors, distinct, is_unknown

    def _own_number(self, sites: Sequence[_Site], lane: str, lines: Lines) -> Value:
        """Return the number of the site that each lane is for."""
        numbers = tuple(site.number for site in sites)
        first = numbers[0] // WARP_LANES * WARP_LANES
        number = self._emission.scratch.take("b32")
        lines.append(op("add.u32", number, lane, str(first)))
        if numbers[-1] >= first + WARP_LANES:
            is_next = self._emission.scratch.take("pred")
            lines.append(op("setp.lt.u32", is_next, lane, str(numbers[0] - first)))
            lines.append(op("add.u32", number, number, str(WARP_LANES), when=is_next))
        return Value(number, "u32", sites=numbers)

    def _values(
        self, own: _Own, always: str, number: Value, lines: Lines
    ) -> Callable[[str, str | None], Value]:  # fmt: skip
        """Return what gives each lane the values of its own site. always: a predicate that is true. number: that of the
        site."""
        known = {"LANES": Value(own.lanes, "b32"), "LEADER": Value(always, "pred"), "SITE": number,
                 "SECTORS": Value(own.sectors, "u32"), "DISTINCT": Value(own.distinct, "u32"),
                 "BYTES": Value(own.size, None)}  # fmt: skip
        if own.size.startswith("%"):
            wide = self._emission.scratch.take("b64")
            lines.append(op("cvt.u64.u32", wide, own.size))
            known["BYTES"] = Value(wide, "u64")
        return lambda helper, element: known[helper]

    # Where code can wait

    def _until_changed(self, names: Sequence[str], statement: Statement, at: int, spot: int) -> int | None:
        """Return the index of the first instruction that changes a register of the program which code reads that is to
        wait.

        statement, at: its own, and where it would stand next to it; spot: where it can stand at the earliest. None
        where that is too late, as a register has changed or is not in scope any more.
        """
        declaration = self._body.declaration
        first = statement.index + (at > statement.start)
        last = bisect_right(self._body.ends, spot) - 1
        until = len(self._body.ends)
        for name in names:
            declared = declaration(name, at)
            if declared is None or declaration(name, spot) != declared:
                return None
            changes = self._changes.get(name, [])
            following = bisect_left(changes, first)
            if following < len(changes):
                until = min(until, changes[following])
            until = min(until, bisect_right(self._body.ends, declared.end))
        return None if until <= last else until

    @lazy
    def _changes(self) -> dict[str, list[int]]:
        """By name of a register of the program, the instructions that write it, by index in the body."""
        changes: defaultdict[str, list[int]] = defaultdict(list)
        for statement in self._body:
            if statement.instruction is not None:
                for name in statement.instruction.written:
                    changes[name].append(statement.index)
        return changes

    @lazy
    def _graph(self) -> FlowGraph:
        """The basic blocks of the body."""
        return FlowGraph(self._body)
