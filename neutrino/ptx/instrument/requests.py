"""Code that looks at what the lanes of a warp access together, of several sites at once: each lane is for one of them.

Where all lanes of the warp are here, lane n computes what there is to know of the site with number n, modulo 32, and
runs the probe's code for it; so a probe's code runs once for many sites. Mostly the addresses of each site lie at one
distance from lane to lane: then that and the first address say all. Sites whose addresses are known to differ by one
amount in all lanes are looked at once. If any site's are otherwise, the lanes compare their addresses for one site
after the other, and each keeps what is found of its own. Where some lanes of the warp may be elsewhere, it is the
lowest of those that are here which runs the probe's code then, for each site in turn.

A snippet may be written so if one of the lanes saves (level group), to maps in which the order of records does not
count, what follows from the lanes, their sectors and the site: it reads no other registers than its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from neutrino.abi.levels import Level, Per
from neutrino.ir.operands import Register, SiteOperand
from neutrino.lazy import lazy
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.float_sums import has_floats
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.structured import Save
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.analysis.lane_addresses import LaneAddresses
from neutrino.ptx.analysis.matching import Hit
from neutrino.ptx.analysis.register_values import Sum
from neutrino.ptx.instrument.emission import Emission, computes_only
from neutrino.ptx.instrument.explicit_fma import Products
from neutrino.ptx.instrument.lanes_together import REDUCES
from neutrino.ptx.instrument.registers import Guard, Value, positive, under
from neutrino.ptx.instrument.request_sites import Amounts, Base, Facts, Own, RequestGroup, Site
from neutrino.ptx.instrument.site_values import SiteOperands
from neutrino.ptx.instrument.unlikely_code import Meetings, until_changed
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
_ROW, _LONG_ROW = 8, 16
"""Bytes in local memory for a site: its address; and its number and the bytes of an access, where no rule gives these.
"""
_WHOLE = "-1"
"""The set of all lanes."""


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
        self._addresses = LaneAddresses(body, emission.threads_in_line)
        self._groups: dict[tuple[int, bool], RequestGroup] = {}
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
        read = [name for name in names if REGISTER.fullmatch(name)]
        if any(self._body.declaration(name, at) is None for name in read):
            return False
        until = until_changed(self._body, lambda name: self._changes.get(name, ()), read, statement, at, spot)
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
            group = self._groups[key] = RequestGroup(snippet, key, self._graph.block(statement.index), until=until)
        offset = known_integer(address.offset)
        sum_ = self._addresses.of(address.base, statement.index) if offset is not None else None
        if sum_ is not None and offset is not None:
            sum_ = Sum(sum_.terms, (sum_.constant + offset) % (1 << 64))
        group.sites.append(Site(number, size, guard, sum_, operands))
        group.until = min(group.until, until)
        group.at, group.is_after = spot, spot != statement.start
        group.index = max(index, statement.index)
        self.count += 1
        return True

    def write(self) -> None:
        """Insert the code of all sites that wait."""
        for group in list(self._groups.values()):
            self._write(group)

    def _write(self, group: RequestGroup) -> None:
        """Insert the code of the sites of a group, which wait no more then."""
        with self._emission.scratch.apart():
            lines = self._code(group)
        self._edits.insert(group.at, after(lines) if group.is_after else before(lines))
        del self._groups[group.key]

    def _code(self, group: RequestGroup) -> Lines:
        """Return the code of the sites of a group."""
        emission, scratch = self._emission, self._emission.scratch
        prefix = f"${emission.prefix.removeprefix('%')}"
        each, save, end = (f"{prefix}{name}" for name in ("each", "save", "end"))
        is_whole = emission.fills_warps and group.index < self._graph.straight
        # Addresses that lanes have loaded mostly lie anywhere: one by one at once.
        is_looked = not group.key[1]
        here = _WHOLE if is_whole else scratch.take("b32")
        bases = self._by_sum(group.sites)
        lines: Lines = [Scope.OPEN]
        if not is_whole:
            lines.append(op("activemask.b32", here))
            if is_looked:
                is_part = scratch.take("pred")
                lines += [op("setp.ne.s32", is_part, here, _WHOLE), op("bra", each, when=is_part)]
        own: Own | None = None
        is_unknown: str | None = None
        if is_whole or is_looked:
            own, is_unknown = self._look(group.sites, bases if is_looked else (), lines)
        if not is_whole or is_unknown != "":
            if is_unknown is not None:
                lines.append(op("bra", save, when=f"!{is_unknown}" if is_unknown else ""))
            lines.append(Label(each))
            self._write_in_turn(group, bases, own if is_whole else None, here, prefix, lines)
            if own is not None and not is_whole:
                lines.append(op("bra", end))
        if own is not None:
            lines += [Label(save), op("bra", end, when=f"!{own.saves}")]
            always = scratch.take("pred")
            lines.append(op("mov.pred", always, "1"))
            values = self._values(own, always, self._own_number(group.sites, own.lane, lines), lines)
            code = emission.snippet(group.snippet, values, level=Level.THREAD)
            lines += code.all
        return [*lines, Label(end), Scope.CLOSE]

    # One site after the other

    def _write_in_turn(
        self, group: RequestGroup, bases: Sequence[Amounts], own: Own | None, here: str, prefix: str, lines: Lines
    ) -> None:  # fmt: skip
        """Append the code that looks at one site after the other. Each lane keeps in ``own`` what is found of its site;
        where that is None, the lowest lane that executes a site saves for it.

        It is a loop, which reads the sites from local memory, so that they take no registers meanwhile. here: the mask
        of the lanes. prefix: of labels.
        """
        emission, take = self._emission, self._emission.scratch.take
        again, known, more = (f"{prefix}{name}" for name in ("next", "known", "more"))
        rows = sorted(
            ((site, base[0][0], amount) for base in bases for site, amount in base), key=lambda row: row[0].number
        )
        sites = [site for site, _, _ in rows]
        is_guarded = any(site.guard is not None for site in sites)
        is_long = len({site.bytes_ for site in sites}) > 1 or sites[-1].number - sites[0].number >= len(sites)
        length = _LONG_ROW if is_long else _ROW
        memory = emission.waiting(length * len(sites))
        at, left, number, executing = take("b64"), take("b32"), take("b32"), take("b32")
        lines += [
            op("mov.u64", at, memory),
            op("mov.u32", left, str(len(sites))),
            op("mov.u32", number, str(sites[0].number)),
        ]
        self._put_into_rows(rows, length, at, executing if is_guarded else None, lines)
        address, piece = take("b64"), take("b64")
        lanes, lower, same, many, sectors, distinct = (take("b32") for _ in range(6))
        executes, leads, is_first, is_known = (take("pred") for _ in range(4))
        size = take("b32") if is_long else str(sites[0].bytes_)
        lines.append(Label(again))
        if own is None:
            lines.append(op("bar.warp.sync", here))
        lines.append(op("ld.local.b64", address, mem(at)))
        if is_long:
            lines += [op("ld.local.b32", number, mem(at, _ROW)), op("ld.local.b32", size, mem(at, _ROW + 4))]
        if is_guarded:
            lines += [
                op("and.b32", same, executing, "1"),
                op("setp.eq.u32", executes, same, "1"),
                op("shr.u32", executing, executing, "1"),
                op("vote.sync.ballot.b32", lanes, executes, here),
            ]
        else:
            lines += [op("mov.pred", executes, "1"), op("mov.u32", lanes, here)]
        lines += [op("mov.u32", lower, "%lanemask_lt"), op("and.b32", lower, lower, lanes)]

        def count(found: str, value: str) -> None:
            lines.extend([
                op("match.any.sync.b64", same, value, here),
                op("and.b32", same, same, lower),
                op("setp.eq.u32", is_first, same, "0"),
                op("and.pred", is_first, is_first, executes),
                op("vote.sync.ballot.b32", found, is_first, here),
                op("popc.b32", found, found),
            ])  # fmt: skip

        lines.append(op("shr.u64", piece, address, str(_SECTOR_BITS)))
        count(sectors, piece)
        # As many sectors as lanes: no two lanes have one address.
        lines += [
            op("popc.b32", many, lanes),
            op("mov.u32", distinct, many),
            op("setp.eq.u32", is_known, many, sectors),
            op("bra", known, when=is_known),
        ]
        count(distinct, address)
        lines += [Label(known), op("mul.lo.u32", distinct, distinct, size)]
        if own is not None:
            own_lane, is_own = take("b32"), take("pred")
            lines += [
                op("and.b32", own_lane, number, str(WARP_LANES - 1)),
                op("setp.eq.u32", is_own, own_lane, own.lane),
                op("mov.u32", own.sectors, sectors, when=is_own),
                op("mov.u32", own.distinct, distinct, when=is_own),
            ]
        else:
            width = Value(size, None)
            if is_long:
                wide = take("b64")
                lines.append(op("cvt.u64.u32", wide, size))
                width = Value(wide, "u64")
            lines += [
                op("setp.eq.u32", leads, lower, "0"),
                op("and.pred", leads, leads, executes),
                op("bra", more, when=f"!{leads}"),
                op("mov.pred", leads, "1"),
            ]
            # The number is no lane's own, so a table gets what is saved at once, whatever lanes hold.
            values = {"LANES": Value(lanes, "b32"), "LEADER": Value(leads, "pred"), "SITE": Value(number, "u32"),
                      "SECTORS": Value(sectors, "u32"), "DISTINCT": Value(distinct, "u32"), "BYTES": width}  # fmt: skip
            code = emission.snippet(group.snippet, lambda helper, element: values[helper], level=Level.THREAD)
            lines += [*code.lines, *code.stores, Label(more)]
        lines.append(op("add.u64", at, at, str(length)))
        if not is_long:
            lines.append(op("add.u32", number, number, "1"))
        lines += [
            op("add.u32", left, left, "-1"),
            op("setp.ne.u32", is_first, left, "0"),
            op("bra.uni", again, when=is_first),
        ]

    def _put_into_rows(
        self, rows: Sequence[tuple[Site, Site, int]], length: int, at: str, executing: str | None, lines: Lines
    ) -> None:
        """Append the code that writes a row of local memory for each site: its address, and in long rows its bytes and
        its number.

        rows: of each site, that whose address it is, and how many bytes after. length: of a row. at: has the first
        row's address. executing: gets a bit for each site, whether this lane executes it; None where all do.
        """
        scratch, take = self._emission.scratch, self._emission.scratch.take
        if executing is not None:
            always = sum(1 << place for place, (site, *_) in enumerate(rows) if site.guard is None)
            lines.append(op("mov.u32", executing, str(always)))
        for place, (site, first, amount) in enumerate(rows):
            mark = scratch.mark()
            address = self._address(first, lines)
            if amount:
                further = take("b64")
                lines.append(op("add.u64", further, address, str(amount)))
                address = further
            lines.append(op("st.local.b64", mem(at, length * place), address))
            if length > _ROW:
                about = take("b64")
                lines.append(op("mov.b64", about, str(site.bytes_ << 32 | site.number)))
                lines.append(op("st.local.b64", mem(at, length * place + _ROW), about))
            if site.guard is not None and executing is not None:
                executes = positive(site.guard, take, lines)
                lines.append(op("or.b32", executing, executing, str(1 << place), when=executes))
            scratch.release(mark)

    def _address(self, site: Site, lines: Lines) -> str:
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

    def _look(
        self, sites: Sequence[Site], bases: Sequence[Amounts], lines: Lines
    ) -> tuple[Own, str | None]:  # fmt: skip
        """Append the code by which each lane finds what there is to know of its site, where the addresses of all sites
        lie at one distance from lane to lane.

        Returns registers with what each lane knows; and the predicate that is true where sectors and different bytes
        are not known, "" if they always are. It is None without bases: then nothing is known of them.
        """
        take = self._emission.scratch.take
        lane, is_own, saves, sectors, distinct = take("b32"), take("pred"), take("pred"), take("b32"), take("b32")
        shifted, differs = take("b32"), take("b32")
        lines += [
            op("mov.u32", lane, "%laneid"),
            op("mov.u32", shifted, str(sum(1 << site.lane for site in sites))),
            op("shr.u32", shifted, shifted, lane),
            op("and.b32", shifted, shifted, "1"),
            op("setp.ne.u32", is_own, shifted, "0"),
            op("mov.u32", differs, "0"),
        ]
        facts = self._own_facts(sites, bases, lane, differs, lines)
        lanes = facts.lanes
        if lanes == _WHOLE:
            lanes = take("b32")
            lines.append(op("mov.u32", lanes, _WHOLE))
        lines.append(op("setp.ne.and.u32", saves, lanes, "0", is_own))
        own = Own(lane, lanes, facts.size, sectors, distinct, saves)
        if not bases:
            lines += [op("mov.u32", sectors, "0"), op("mov.u32", distinct, "0")]
            return own, None
        is_unknown = self._sectors(facts, sectors, distinct, lines)
        if is_unknown:
            lines.append(op("and.pred", is_unknown, is_unknown, saves))
        if any(self._stride(base) is None for base in bases):
            if not is_unknown:
                is_unknown = take("pred")
                lines.append(op("mov.pred", is_unknown, "0"))
            lines.append(op("setp.ne.or.u32", is_unknown, differs, "0", is_unknown))
        if is_unknown:
            lines.append(op("vote.sync.any.pred", is_unknown, is_unknown, _WHOLE))
        return own, is_unknown

    def _own_facts(
        self, sites: Sequence[Site], bases: Sequence[Amounts], lane: str, differs: str, lines: Lines
    ) -> Facts:
        """Append the code that finds the facts of each site, and chooses for each lane those of its own; others have
        any of them. Bits of ``differs`` become 1 where addresses do not lie at one distance. Without bases nothing is
        said of addresses."""
        take = self._emission.scratch.take
        amounts = {site.number: (base, amount) for base in bases for site, amount in base}
        ballots: dict[Guard | None, str] = {None: _WHOLE}
        looked: dict[int, Base] = {}
        firsts: dict[tuple[int, int], str] = {}
        bits: dict[int, str] = {}

        def of_site(site: Site) -> Facts:
            if site.guard is not None and site.guard not in ballots:
                ballots[site.guard] = ballot = take("b32")
                lines.append(op("vote.sync.ballot.b32", ballot, positive(site.guard, take, lines), _WHOLE))
            lanes, size = ballots[site.guard], str(site.bytes_)
            if site.number not in amounts:
                return Facts(lanes, "0", "0", size)
            base, amount = amounts[site.number]
            amount %= 1 << _SECTOR_BITS
            key = id(base)
            if key not in looked:
                looked[key] = self._base(base, lane, differs, lines)
                firsts[key, 0] = looked[key].first
            if (key, amount) not in firsts:
                firsts[key, amount] = first = take("b32")
                lines.append(op("add.u32", first, looked[key].first, str(amount)))
            return Facts(lanes, firsts[key, amount], looked[key].stride, size)

        def choose(some: Sequence[Site], bit: int) -> Facts:
            if len(some) == 1:
                return of_site(some[0])
            upper = [site for site in some if site.lane >> bit & 1]
            lower = [site for site in some if not site.lane >> bit & 1]
            if not upper or not lower:
                return choose(some, bit - 1)
            one, other = choose(lower, bit - 1), choose(upper, bit - 1)
            if one == other:
                return one
            if bit not in bits:
                bits[bit] = is_set = take("pred")
                masked = take("b32")
                lines.append(op("and.b32", masked, lane, str(1 << bit)))
                lines.append(op("setp.ne.u32", is_set, masked, "0"))
            names = [a if a == b else take("b32") for a, b in zip(one, other, strict=True)]
            lines.extend(
                op("selp.b32", name, b, a, bits[bit]) for name, a, b in zip(names, one, other, strict=True) if a != b
            )
            return Facts(*names)

        return choose(sites, WARP_LANES.bit_length() - 2)

    @staticmethod
    def _by_sum(sites: Sequence[Site]) -> list[Amounts]:
        """Return the sites by what their addresses are sums of, each with how many bytes it is beyond the first."""
        found: dict[Hashable, list[Site]] = {}
        for site in sites:
            found.setdefault(site.number if site.sum is None else site.sum.terms, []).append(site)
        return [
            [(site, _signed(site.sum.constant - some[0].sum.constant) if site.sum and some[0].sum else 0)
             for site in some]
            for some in found.values()
        ]  # fmt: skip

    def _stride(self, amounts: Amounts) -> int | None:
        """Return how much the addresses of a base grow from lane to lane, if the text of the body says that, and not
        too much to be looked at in 32 bits; else None."""
        sum_ = amounts[0][0].sum
        stride = self._addresses.stride(sum_) if sum_ is not None else None
        return stride if stride is not None and -_FAR <= stride < _FAR else None

    def _base(self, amounts: Amounts, lane: str, differs: str, lines: Lines) -> Base:
        """Append the code that looks whether the addresses of a base lie at one distance from lane to lane, if that is
        not known; bits of ``differs`` become 1 where not.

        Where lanes that execute none of its sites are not as expected, they may be looked at, too.
        """
        take = self._emission.scratch.take
        address = self._address(amounts[0][0], lines)
        low, high, first, second, upper, expected = (take("b32") for _ in range(6))
        stride = self._stride(amounts)
        if stride is not None:
            lines += [op("mov.b64", vector(low, high), address), op("mad.lo.u32", first, lane, str(-stride), low)]
            return Base(amounts, first, str(stride))
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
        return Base(amounts, first, second)

    def _sectors(self, facts: Facts, sectors: str, distinct: str, lines: Lines) -> str:
        """Append the code that sets two registers to the sectors, and the different bytes, of lanes whose addresses lie
        at one distance; return the predicate that is true where that does not say it, "" where it always does.

        Each access lies in one sector. Lanes without a gap between them touch all sectors from their first one to their
        last, or each one of its own. From 32 bytes on, gaps or not, each has its own, if the lowest 32 bits of the
        addresses do not come back to the first.
        """
        take = self._emission.scratch.take
        lanes, first, stride, size = facts
        known = known_integer(stride)
        number, others, begin, shifted = str(WARP_LANES), str(WARP_LANES - 1), first, ""
        if lanes != _WHOLE:
            number = take("b32")
            lines.append(op("popc.b32", number, lanes))
        if known == 0:
            lines += [op("mov.u32", sectors, "1"), op("mov.u32", distinct, size)]
            return ""
        if known is not None:
            lines.append(op("mul.lo.u32", distinct, size, number))
            if abs(known) >= 1 << _SECTOR_BITS:
                lines.append(op("mov.u32", sectors, number))
                return ""
        if lanes != _WHOLE:
            others, begin, lowest, shifted, following = (take("b32") for _ in range(5))
            lines += [
                op("add.u32", others, number, "-1"),
                # The lowest lane, if there are no gaps.
                op("bfind.u32", lowest, lanes),
                op("sub.u32", lowest, lowest, others),
                op("mad.lo.u32", begin, lowest, stride, first),
                op("shr.u32", shifted, lanes, lowest),
                op("add.u32", following, shifted, "1"),
                op("and.b32", shifted, shifted, following),
            ]
        start, last, is_unknown = take("b32"), take("b32"), take("pred")
        lines += [
            op("and.b32", start, begin, str((1 << _SECTOR_BITS) - 1)),
            op("mad.lo.u32", last, stride, others, start),
            op("shr.s32", last, last, str(_SECTOR_BITS)),
        ]
        if known is None or known < 0:
            lines.append(op("abs.s32", last, last))
        lines += [op("add.u32", last, last, "1"), op("min.u32", sectors, last, number)]
        if known is not None:
            if shifted:
                lines.append(op("setp.ne.u32", is_unknown, shifted, "0"))
            return is_unknown if shifted else ""
        far, is_same = take("b32"), take("pred")
        lines += [
            op("setp.eq.u32", is_same, stride, "0"),
            op("selp.b32", distinct, "1", number, is_same),
            op("mul.lo.u32", distinct, distinct, size),
            op("add.u32", far, stride, str(_FAR)),
        ]
        if not shifted:
            lines.append(op("setp.ge.u32", is_unknown, far, str(2 * _FAR)))
            return is_unknown
        near, is_near = take("b32"), take("pred")
        lines += [
            op("add.u32", near, stride, str((1 << _SECTOR_BITS) - 1)),
            op("setp.lt.u32", is_near, near, str((2 << _SECTOR_BITS) - 1)),
            op("setp.ne.and.u32", is_near, stride, "0", is_near),
            op("setp.ne.and.u32", is_unknown, shifted, "0", is_near),
            op("setp.ge.or.u32", is_unknown, far, str(2 * _FAR), is_unknown),
        ]
        return is_unknown

    def _own_number(self, sites: Sequence[Site], lane: str, lines: Lines) -> Value:
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
        self, own: Own, always: str, number: Value, lines: Lines
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
