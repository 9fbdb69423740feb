"""What the warps of a block do, found by what they execute: those that copy, multiply, store, or hand out work.

Evidence is any record that says which warp executed which instruction: a log or array with a field ``site`` (as those
of ``dmat`` and ``program_progress``), and results of each warp whose fields count kinds of instructions (``copy``,
``tensor``, ``store``, ``claim``, ``atomic``). A kernel has roles if its warps, by their number in the block, differ in
them. What no record tells is said, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Level, Per
from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map
from neutrino.tracing.percent import percent
from neutrino.tracing.recorded import parts_of
from neutrino.tracing.site_tables import sites_by_number
from neutrino.tracing.timeline import EXIT, LaunchTimeline, Names, Sources, Unit, is_of_warps
from neutrino.tracing.trace import TraceKernel

Array = npt.NDArray[Any]
MOST_LAUNCHES = 3
"""Launches of a kernel that are read, the first ones: roles are the program's, and the same in each."""
_MOST_RECORDS = 1 << 21
"""Records of a map in a launch that are read."""
_SOME = -1
"""In place of a count: at least once."""
_PARTLY = 0.9
"""Share of the blocks in which a warp must have a role."""


class Kind(Enum):
    """Kinds of instructions that tell roles."""

    COPY = "asynchronous copies into shared memory"
    TENSOR = "products on tensor cores"
    STORE = "stores to global memory"
    CLAIM = "requests for a block's work (clusterlaunchcontrol)"
    ATOMIC = "atomics"
    WAIT = "barriers and waits"


class Role(Enum):
    """What a warp is for. By the first kind of these that it executes: products, copies, requests for work, stores,
    atomics."""

    MMA = "mma"
    PRODUCER = "producer"
    SCHEDULER = "scheduler"
    EPILOGUE = "epilogue"
    OTHER = "other"


_ORDER = (
    (Kind.TENSOR, Role.MMA), (Kind.COPY, Role.PRODUCER), (Kind.CLAIM, Role.SCHEDULER), (Kind.STORE, Role.EPILOGUE),
    (Kind.ATOMIC, Role.SCHEDULER),
)  # fmt: skip
_FIELDS = {
    "copy": Kind.COPY, "copies": Kind.COPY, "tma": Kind.COPY, "async": Kind.COPY, "tensor": Kind.TENSOR,
    "mma": Kind.TENSOR, "store": Kind.STORE, "stores": Kind.STORE, "claim": Kind.CLAIM, "claims": Kind.CLAIM,
    "atomic": Kind.ATOMIC, "atomics": Kind.ATOMIC, "barrier": Kind.WAIT, "wait": Kind.WAIT, "waits": Kind.WAIT,
}  # fmt: skip
"""Kinds by the fields that count them in results of each warp."""
_WAITED = ("waited", "wait_cycles")
"""Fields that add up how long each warp waited."""
_KINDS: tuple[tuple[str, Kind | None], ...] = (
    # What waits for copies, or marks their groups, is no copy.
    (r"cp\.async(\.bulk)?\.wait|mbarrier\.(try_wait|test_wait)|wgmma\.wait|tcgen05\.wait", Kind.WAIT),
    (r"(bar|barrier)\.(cta\.)?(sync|red)|barrier\.cluster\.wait|s_barrier|s_waitcnt|s_wait_", Kind.WAIT),
    (r"cp\.async(\.bulk)?\.commit|cp\.async\.mbarrier", None),
    (r"cp(\.reduce)?\.async\.bulk(\.tensor)?(\.\dd)?\.global\.", Kind.STORE),
    (r"cp\.async|(global|buffer)_load_(lds|async)|.*_load_.*\blds\b", Kind.COPY),
    (r"w?mma\.|wgmma\.mma|tcgen05\.mma|v_s?w?mfma|v_wmma|v_swmmac|v_smfmac", Kind.TENSOR),
    (r"clusterlaunchcontrol\.try_cancel", Kind.CLAIM),
    (r"atom\.(?!.*shared)|(global|flat|buffer)_atomic.*\b(glc|sc0|th:TH_ATOMIC_RETURN)", Kind.ATOMIC),
    (r"st\.(?!.*(shared|local|param))|red\.(?!.*shared)|(global|flat|buffer)_(store|atomic)", Kind.STORE),
)
"""Kinds by how an instruction begins; the first that fits holds."""
_SIGNS = (
    (re.compile(r"wgmma\.(fence|commit_group|wait_group)|tcgen05\.commit"), Kind.TENSOR),
    (re.compile(r"mbarrier\.(arrive\.)?expect_tx"), Kind.COPY),
)
"""What only warps execute that also execute instructions of a kind: their waits, and what announces copies."""
_GUARD = re.compile(r"^\s*(\{\s*)?(@!?%?[\w$]+\s+)?")
_PATTERNS = tuple((re.compile(pattern), kind) for pattern, kind in _KINDS)


def kind_of(instruction: str) -> Kind | None:
    """Return the kind of an instruction, of PTX or of AMD's machine code; None for others."""
    text = _GUARD.sub("", instruction, count=1)
    for pattern, kind in _PATTERNS:
        if pattern.match(text):
            return kind
    return None


def sign_of(instruction: str) -> Kind | None:
    """Return the kind of instructions that a warp must execute, too, that executes this one; None if it tells none."""
    text = _GUARD.sub("", instruction, count=1)
    return next((kind for pattern, kind in _SIGNS if pattern.match(text)), None)


@dataclass(frozen=True)
class RoleFacts:
    """The warps of one role. warps: their numbers in the block. executed: how often they executed each kind, as far as
    records tell: by threads or by warps. lifetime: of all of these warps in all blocks that were read; waited: of that.
    None where no record tells."""

    role: Role
    warps: tuple[int, ...]
    executed: Mapping[Kind, int]
    lifetime: int | None
    waited: int | None

    @property
    def waiting_share(self) -> float | None:
        """Which part of their time these warps waited; None where that is not known."""
        return self.waited / self.lifetime if self.lifetime and self.waited is not None else None


@dataclass(frozen=True)
class WarpRoles:
    """The roles of a kernel's warps. roles: by their first warp; none if the warps do the same, or if nothing tells.

    reason: why there are no roles, or what records do not tell; "" where all is known. critical: the role that others
    wait for; why: by what. overlap: share of the blocks' time in which warps of two roles or more were there.
    """

    roles: tuple[RoleFacts, ...]
    reason: str = ""
    critical: Role | None = None
    why: str = ""
    overlap: float | None = None
    unit: Unit = Unit.CYCLES

    @property
    def names(self) -> dict[int, str]:
        """The role of each warp, by its number in the block, in a word."""
        return {warp: facts.role.value for facts in self.roles for warp in facts.warps}

    def sentences(self) -> list[str]:
        """Return the facts in words."""
        found = []
        for facts in self.roles:
            kinds = [f"{count:,} {kind.value}" for kind, count in facts.executed.items() if kind is not Kind.WAIT]
            does = ", ".join(kinds)
            if not does:
                does = "none of these kinds" if facts.role is Role.OTHER else "by what goes with it"
            share = "" if facts.waiting_share is None else f"; waits {percent(facts.waiting_share)} of its time"
            found.append(f"{facts.role.value}: {_listed(facts.warps)} of a block ({does}){share}")
        if self.critical is not None:
            found.append(f"the critical role is {self.critical.value}: {self.why}")
        if self.overlap is not None:
            found.append(f"warps of two roles or more are there {percent(self.overlap)} of the time of a block")
        if self.reason:
            found.append(self.reason)
        return found


def roles_of(
    kernel: TraceKernel, launches: range | None = None, *, most_launches: int = MOST_LAUNCHES,
    most_records: int | None = None,
) -> WarpRoles:  # fmt: skip
    """Find the roles of a kernel's warps, by the launches whose data are in the trace.

    launches: only these. most_launches: that are read. most_records: of a map in a launch; with it, when warps were
    there is told of no launch that has more warps, or more ranges and marks. Without it 2 million, and all times.
    """
    numbers = kernel.written_numbers(launches)[:most_launches]
    if not len(numbers):
        return WarpRoles((), "no launch has data in the trace")
    try:
        evidence = _Evidence(kernel, numbers, most_records)
    except TraceError as error:
        return WarpRoles((), str(error))
    silent = _silent(kernel, evidence.told)
    unknown = ""
    if silent:
        kinds = " and ".join(kind.value for kind in silent)
        unknown = f"no record says which warps execute {kinds}, which the kernel has"
    if not evidence.told or {Kind.TENSOR, Kind.COPY} & set(silent):
        return WarpRoles((), unknown or (
            "no record says which warp executes what: a field site in a log, as of dmat or program_progress, or "
            "results of each warp with fields such as copy, tensor and store"
        ))  # fmt: skip
    if evidence.warps < 2:
        return WarpRoles((), "a block has one warp")
    roles = [evidence.role(warp) for warp in range(evidence.warps)]
    if len({role for role in roles if role is not Role.OTHER}) < 1 or len(set(roles)) == 1:
        return WarpRoles((), unknown or "the warps of a block do the same: they have no roles of their own")
    by_role: dict[Role, list[int]] = {}
    for warp, role in enumerate(roles):
        by_role.setdefault(role, []).append(warp)
    facts = tuple(evidence.facts(role, tuple(warps)) for role, warps in by_role.items())
    critical, why = _critical(facts, evidence)
    return WarpRoles(facts, unknown, critical, why, evidence.overlap(roles), evidence.unit)


class _Evidence:
    """What the records of some launches say of each warp of a block."""

    def __init__(self, kernel: TraceKernel, numbers: Array, most: int | None) -> None:
        """Read the records. most: as ``most_records`` of ``roles_of``. Raises TraceError for damaged data."""
        self._kernel = kernel
        self._most, self._limit = most or _MOST_RECORDS, most
        self._has_ends = False
        self.warps = 0
        self.told: set[Kind] = set()
        self._counts: dict[Kind, Array] = {}
        self._blocks: dict[Kind, Array] = {}
        self._all_blocks = 0
        self._waited: Array | None = None
        self._lives: list[tuple[Array, Array, Array]] = []
        self.unit = Unit.CYCLES
        sites = sites_by_number(kernel.manifest.sites if kernel.manifest else ())
        texts = {number: str(site.get("instruction", "")) for number, site in sites.items()}
        self._kinds = {number: kind for number, text in texts.items() if (kind := kind_of(text))}
        self._signs = {number: kind for number, text in texts.items() if (kind := sign_of(text))}
        self._guarded = {number for number, text in texts.items() if text.lstrip("{ \t").startswith("@")}
        sources = Sources.of(kernel)
        maps = [entry for entry in (kernel.manifest.probed_maps if kernel.manifest else ()) if entry.per is not Per.RUN]
        # Times alone tell no roles, and there may be very many.
        for number in numbers.tolist() if any(map(_tells, maps)) else ():
            ((indices, views),) = kernel.numbered_stacks(np.array([number]))
            geometry = next(iter(views.values())).geometry if views else None
            if geometry is None or (self.warps and geometry.warps != self.warps):
                # Roles are those of one shape of blocks.
                continue
            if not self.warps:
                self.warps = geometry.warps
                self._waited = None
            self._blocks_read = geometry.blocks
            seen: dict[Kind, Array] = {}
            for entry in maps:
                for kind, warp, count in self._read(entry, views[entry.name], indices):
                    self._count(kind, warp, count, seen, geometry.blocks)
            self._all_blocks += self._blocks_read
            for kind, blocks in seen.items():
                read = blocks.reshape(-1, self.warps)[: self._blocks_read]
                self._blocks[kind] = self._blocks.get(kind, 0) + read.sum(axis=0)
            # Records of sites tell when warps ended only if the end is among them.
            if sources is not None and (sources.lifetimes is not None or self._has_ends):
                self._add_lives(LaunchTimeline(kernel.trace, kernel, sources, number, Names()))

    def _read(self, entry: Map, view: Any, indices: Array) -> Iterator[tuple[Kind, Array, Array]]:
        """Yield what records of a map say: a kind, numbers of warps in the grid, and how often each executed it,
        ``_SOME`` if that is not known."""
        names = [field.name for field in entry.fields]
        is_result = is_of_warps(entry)
        has_sites = "site" in names and entry.kind.layout in (Layout.SLOTS, Layout.CHUNKS)
        counted = {name: _FIELDS[name] for name in names if name in _FIELDS} if is_result else {}
        waited = next((name for name in _WAITED if name in names), "") if is_result else ""
        if entry.level is Level.BLOCK or not (counted or waited or has_sites):
            return
        self.told |= set(counted.values())
        left = self._most
        for _, places, records in parts_of(view, indices):
            warp = places["block"].astype(np.int64) * self.warps + places["warp"]
            for name, counted_kind in counted.items():
                yield counted_kind, warp, records[name].astype(np.int64)
            if waited:
                self._wait(warp, records[waited].astype(np.int64))
            if has_sites:
                for number in np.unique(records["site"]).tolist():
                    self._has_ends = self._has_ends or number == EXIT
                    if entry.level is Level.WARP and number in self._guarded:
                        # It may be of lanes that reach the instruction and do not execute it.
                        continue
                    mask = records["site"] == number
                    kind, sign = self._kinds.get(number), self._signs.get(number)
                    if sign is not None:
                        self.told.add(sign)
                        yield sign, warp[mask], np.full(int(mask.sum()), _SOME)
                    if kind is not None:
                        self.told.add(kind)
                        yield kind, warp[mask], np.ones(int(mask.sum()), np.int64)
                    length = next((name for name in ("elapsed", "cycles") if name in names), "")
                    if kind is Kind.WAIT and length:
                        self._wait(warp[mask], records[length][mask].astype(np.int64))
            left -= len(records)
            if left <= 0 and len(warp):
                # Records are in the order of the blocks: those of the last one may go on.
                self._blocks_read = max(min(self._blocks_read, int(places["block"][-1])), 1)
                return

    def _wait(self, warp: Array, time: Array) -> None:
        """Add how long warps waited."""
        if self._waited is None:
            self._waited = np.zeros(self.warps, np.int64)
        self._waited += np.bincount(warp % self.warps, time, self.warps).astype(np.int64)

    def _count(self, kind: Kind, warp: Array, count: Array, seen: dict[Kind, Array], blocks: int) -> None:
        """Add how often warps executed a kind, and remember in which blocks."""
        added = np.bincount(warp % self.warps, np.maximum(count, 0), self.warps).astype(np.int64)
        self._counts[kind] = self._counts.get(kind, 0) + added
        here = seen.setdefault(kind, np.zeros(blocks * self.warps, bool))
        # A result of a warp that executed none is 0.
        here[warp[count != 0]] = True

    def _add_lives(self, launch: LaunchTimeline) -> None:
        """Add when warps were there, unless there is more than is to be read."""
        self.unit = launch.unit
        if self._limit and max(launch.blocks * launch.warps, launch.events) > self._limit:
            return
        for piece in launch.pieces():
            part = piece.lifetimes
            # Of a warp whose end is not there the last record tells no end: it may have gone on for long.
            there = ~part.is_open
            if there.any():
                self._lives.append((part.warp[there], part.begin[there], part.end[there]))

    def role(self, warp: int) -> Role:
        """Return the role of a warp: by the first kind that it executes in nearly all blocks."""
        for kind, role in _ORDER:
            if kind in self._blocks and self._blocks[kind][warp] >= _PARTLY * self._all_blocks:
                return role
        return Role.OTHER

    def facts(self, role: Role, warps: tuple[int, ...]) -> RoleFacts:
        """Return what is known of the warps of a role."""
        some = list(warps)
        counts = {kind: int(self._counts[kind][some].sum()) for kind in Kind if kind in self._counts}
        executed = {kind: count for kind, count in counts.items() if count}
        lifetime = None
        if self._lives:
            lifetime = sum(
                int((end - begin)[np.isin(warp % self.warps, some)].sum()) for warp, begin, end in self._lives
            )
        waited = None if self._waited is None else int(self._waited[some].sum())
        return RoleFacts(role, warps, executed, lifetime, waited)

    def ends_last(self, groups: Mapping[Role, tuple[int, ...]]) -> tuple[Role, float] | None:
        """Return the role whose warps end last in most blocks, and in which share of them; None without times."""
        spans = self._spans(groups)
        if spans is None or not len(spans[1]):
            return None
        last = np.bincount(np.argmax(spans[1], axis=1), minlength=len(groups))
        index = int(np.argmax(last))
        return list(groups)[index], float(last[index] / len(spans[1]))

    def _spans(self, groups: Mapping[Role, tuple[int, ...]]) -> tuple[Array, Array] | None:
        """Return when the first warp of each role began and the last one ended, int64 ``[block][role]``, of blocks all
        of whose warps have times; None without times."""
        if not self._lives:
            return None
        begins, ends = [], []
        for warp, begin, end in self._lives:
            block = warp // self.warps
            starts = np.flatnonzero(np.append(True, block[1:] != block[:-1])) if len(block) else block
            sizes = np.diff(np.append(starts, len(block)))
            whole = starts[sizes == self.warps]
            rows = whole[:, None] + np.arange(self.warps)
            begins.append(np.stack([begin[rows[:, list(some)]].min(axis=1) for some in groups.values()], axis=1))
            ends.append(np.stack([end[rows[:, list(some)]].max(axis=1) for some in groups.values()], axis=1))
        return np.concatenate(begins), np.concatenate(ends)

    def overlap(self, roles: list[Role]) -> float | None:
        """Return the share of the blocks' time in which warps of two roles or more were there; None without times."""
        groups = {role: tuple(warp for warp, its in enumerate(roles) if its is role) for role in dict.fromkeys(roles)}
        spans = self._spans(groups)
        if spans is None or not len(spans[0]):
            return None
        begins, ends = spans
        times = np.concatenate([begins, ends], axis=1)
        step = np.concatenate([np.ones_like(begins), -np.ones_like(ends)], axis=1)
        order = np.argsort(times, axis=1, kind="stable")
        times, step = np.take_along_axis(times, order, axis=1), np.take_along_axis(step, order, axis=1)
        there = np.cumsum(step, axis=1)[:, :-1]
        length = np.diff(times, axis=1)
        total = float(length[there >= 1].sum())
        return float(length[there >= 2].sum()) / total if total else None


def _tells(entry: Map) -> bool:
    """Whether a map may tell which warps execute what: it counts kinds by warp, or has sites of warps or threads."""
    names = {field.name for field in entry.fields}
    has_sites = "site" in names and entry.kind.layout in (Layout.SLOTS, Layout.CHUNKS)
    return entry.level is not Level.BLOCK and (has_sites or (is_of_warps(entry) and not names.isdisjoint(_FIELDS)))


def _critical(facts: tuple[RoleFacts, ...], evidence: _Evidence) -> tuple[Role | None, str]:
    """Return the role that others wait for, and by what that is said."""
    shares = {one.role: one.waiting_share for one in facts if one.waiting_share is not None}
    if len(shares) == len(facts):
        role = min(shares, key=lambda one: shares[one] or 0.0)
        others = ", ".join(f"{one.value} {percent(share)}" for one, share in shares.items() if one is not role)
        return role, f"it waits {percent(shares[role] or 0.0)} of its time, others more ({others})"
    last = evidence.ends_last({one.role: one.warps for one in facts})
    if last is None:
        return None, ""
    return last[0], f"its warps end last in {percent(last[1])} of the blocks; how long warps wait is not in the trace"


def _silent(kernel: TraceKernel, told: set[Kind]) -> list[Kind]:
    """Return the kinds that the kernel's text has and of which no record tells who executes them."""
    text = ""
    for _, data in kernel.originals():
        text = data.decode("utf-8", "replace")
    there = {kind for line in text.split("\n") if (kind := kind_of(line))}
    return [kind for kind in (Kind.TENSOR, Kind.COPY, Kind.CLAIM, Kind.STORE) if kind in there - told]


def _listed(warps: tuple[int, ...]) -> str:
    """Return numbers of warps in words: ``warps 0 to 3, 5``."""
    runs: list[list[int]] = []
    for warp in warps:
        if runs and runs[-1][1] == warp - 1:
            runs[-1][1] = warp
        else:
            runs.append([warp, warp])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return f"{'warp' if len(warps) == 1 else 'warps'} {', '.join(texts)}"
