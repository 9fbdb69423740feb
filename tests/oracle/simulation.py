"""What probes must have recorded, computed by Python twins of their snippets from what the tracer saw.

Nothing here knows how the rewriter works: a probe under test is written twice, as TOML for the rewriter and as
functions over lanes for the simulation. Only a launch's shape and the reader's axes are shared.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.address_space import LOCAL_BASE, PARAM_BASE, SHARED_BASE, Space
from neutrino.emulator.tracer import Access, Execution
from neutrino.maps.declaration import Layout
from neutrino.tracing.views import Geometry, MapView

Array = npt.NDArray[Any]
LANES = 32
_SPACES = {"const", "global", "local", "param", "shared"}
_HEAD = re.compile(r"\s*(?:@\s*!?\s*[\w$%]+\s+)?[a-z]\w*(?:\.[\w:]+)*\s*(?P<operands>.*?)\s*;?\s*\Z", re.DOTALL)
_NO_RESULT = re.compile(r"(?:st|red|bar|barrier|bra|ret|exit|cp|membar|fence|prefetch|call|trap|nanosleep|stmatrix)\b")


# The tracer reports addresses within their space; generic ones begin with the space's window.
_WINDOWS = np.zeros(256, np.uint64)
_WINDOWS[[Space.SHARED, Space.LOCAL, Space.PARAM]] = SHARED_BASE, LOCAL_BASE, PARAM_BASE


class NoOperandError(Exception):
    """The statement has no such operand."""


@cache
def matches(pattern: str, opcode: str) -> bool:
    """Whether a tracepoint means an opcode: the first part equal, the others in this order; ``!part`` excludes.

    Alternatives stand between ``|``.
    """
    if "|" in pattern:
        return any(matches(alternative, opcode) for alternative in pattern.split("|"))
    words = pattern.split()
    wanted = words[0].split(".")
    parts = [part.split("::")[0] for part in opcode.split(".")]
    if wanted[0] != parts[0] or any(word[1:] in parts[1:] for word in words[1:]):
        return False
    at = 1
    for part in wanted[1:]:
        if part == "generic":
            if _SPACES.intersection(parts[1:]):
                return False
            continue
        if part not in parts[at:]:
            return False
        at = parts.index(part, at) + 1
    return True


@cache
def operands_of(text: str) -> tuple[str, ...]:
    """The operands of a statement, split at the commas outside brackets."""
    found = _HEAD.match(text)
    pieces, depth, piece = [], 0, ""
    for letter in found["operands"] if found else "":
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0:
            pieces.append(piece.strip())
            piece = ""
        else:
            piece += letter
    return tuple([*pieces, piece.strip()] if piece.strip() else pieces)


def _bits(values: Array) -> npt.NDArray[np.uint64]:
    """Register values as they are, zero-extended."""
    values = np.asarray(values)
    if values.dtype == bool:
        return values.astype(np.uint64)
    return values.view(f"u{values.dtype.itemsize}").astype(np.uint64)


def _immediate(text: str) -> int | None:
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}", text):
        return int(text[2:], 16)
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
        digits = text.rstrip("U")
        octal = re.fullmatch(r"-?0\d+", digits)
        return int(digits, 8 if octal else 0) & (1 << 64) - 1
    if re.fullmatch(r"-?\d+\.\d+(e[-+]?\d+)?", text):
        return int(struct.unpack("<Q", struct.pack("<d", float(text)))[0])
    return None


@dataclass(frozen=True)
class Lanes:
    """Some lanes that execute one statement. lanes: their places in the execution."""

    execution: Execution | None
    threads: npt.NDArray[np.int64]
    lanes: npt.NDArray[np.intp]

    @property
    def _statement(self) -> Execution:
        if self.execution is None:
            raise NoOperandError("the kernel itself has no operands")
        return self.execution

    def accesses(self) -> list[Access]:
        """What these lanes touched."""
        if len(self.lanes) == len(self._statement.threads):
            return self._statement.accesses
        found = []
        for access in self._statement.accesses:
            kept = np.isin(access.threads, self.threads)
            found.append(Access(access.threads[kept], access.addresses[kept], access.size, access.spaces[kept]))
        return found

    @property
    def address(self) -> npt.NDArray[np.uint64]:
        """ADDR: of a copy between two spaces, the side in global memory."""
        accesses = self.accesses()
        sides = [access for access in accesses if (access.spaces == Space.GLOBAL).all()] or accesses
        addresses = np.zeros(len(self.threads), np.uint64)
        told = np.zeros(len(self.threads), np.int64)
        order = np.argsort(self.threads)
        generic = not _SPACES.intersection(part.split("::")[0] for part in self._statement.site.opcode.split("."))
        for access in sides:
            place = order[np.searchsorted(self.threads, access.threads, sorter=order)]
            addresses[place] = access.addresses + (_WINDOWS[access.spaces] if generic else np.uint64(0))
            told[place] += 1
        if not (told == 1).all():
            raise NoOperandError(f"{self._statement.site.text!r}: not one address a lane")
        return addresses

    @property
    def size(self) -> int:
        """BYTES."""
        sizes = {access.size for access in self.accesses()}
        if len(sizes) != 1:
            raise NoOperandError(f"{self._statement.site.text!r}: not one size")
        return sizes.pop()

    def operand(self, number: int, *, element: int = 0) -> npt.NDArray[np.uint64]:
        """INn, from 1, as bits."""
        statement = self._statement
        operands = operands_of(statement.site.text)
        sources = operands if _NO_RESULT.match(statement.site.opcode) else operands[1:]
        if number > len(sources):
            raise NoOperandError(f"{statement.site.text!r} has no IN{number}")
        return self._value(sources[number - 1], element, statement.before)

    def result(self, element: int = 0) -> npt.NDArray[np.uint64]:
        """OUT, as bits."""
        statement = self._statement
        return self._value(operands_of(statement.site.text)[0].split("|")[0].strip(), element, statement.after)

    def _value(self, operand: str, element: int, values: Any) -> npt.NDArray[np.uint64]:
        if operand.startswith("{"):
            names = [name.strip() for name in operand[1:-1].split(",")]
            if element >= len(names):
                raise NoOperandError(f"{operand} has no element {element}")
            operand = names[element]
        elif element:
            raise NoOperandError(f"{operand} is no vector")
        immediate = _immediate(operand)
        if immediate is not None:
            return np.full(len(self.threads), immediate, np.uint64)
        if operand not in values:
            raise NoOperandError(f"{operand!r} of {self._statement.site.text!r} was not reported")
        return _bits(values[operand])[self.lanes]


class Simulation:
    """Contexted registers of every thread, and what was saved so far."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.threads = geometry.blocks * geometry.threads
        self._registers: dict[str, npt.NDArray[np.uint64]] = {}
        self._saved: dict[str, list[tuple[Array, list[Array]]]] = {}

    def register(self, name: str) -> npt.NDArray[np.uint64]:
        """A contexted register, one element a thread of the grid."""
        return self._registers.setdefault(name, np.zeros(self.threads, np.uint64))

    def save(self, target: str, lanes: Lanes, *values: Any) -> None:
        """SAVE: each value an array over the lanes, or a number."""
        columns = [np.broadcast_to(np.asarray(value), lanes.threads.shape) for value in values]
        self._saved.setdefault(target, []).append((lanes.threads, columns))

    def block_of(self, threads: Array) -> Array:
        return threads // self.geometry.threads

    def in_block(self, threads: Array) -> Array:
        return threads % self.geometry.threads

    def columns(self, target: str, dtype: np.dtype[np.void]) -> tuple[npt.NDArray[np.int64], Array]:
        """Everything saved, in order: threads, records."""
        saved = self._saved.get(target, [])
        count = sum(len(threads) for threads, _ in saved)
        threads = np.zeros(count, np.int64)
        records = np.zeros(count, dtype)
        at = 0
        for lanes, columns in saved:
            end = at + len(lanes)
            threads[at:end] = lanes
            for name, column in zip(dtype.names or (), columns, strict=True):
                records[name][at:end] = _as_field(column, dtype[name])
            at = end
        return threads, records

    def counts(self, target: str) -> int:
        """Saves into a map."""
        return sum(len(threads) for threads, _ in self._saved.get(target, []))


def _as_field(column: Array, kind: np.dtype[Any]) -> Array:
    """Bits or numbers as a field holds them: cut to its width."""
    if column.dtype.kind in "ui":
        return column.astype(np.int64).astype(np.uint64).astype(f"u{kind.itemsize}").view(kind)
    return column.astype(kind)


Snippet = Callable[[Simulation, Lanes], None]


@dataclass(frozen=True)
class Side:
    """The Python twin of one snippet. position: as in TOML; after: which side; warp, block: at that level."""

    position: str
    run: Snippet
    after: bool = False
    warp: bool = False
    block: bool = False


def simulate(sides: Iterable[Side], executions: Iterable[Execution], geometry: Geometry) -> Simulation:
    """Run the snippets over an original's executions."""
    sides = tuple(sides)
    simulation = Simulation(geometry)
    everyone = np.arange(simulation.threads, dtype=np.int64)
    kernel = [side for side in sides if side.position == "kernel"]
    others = [side for side in sides if side.position != "kernel"]
    wanted: dict[str, list[Side]] = {}
    for side in kernel:
        if not side.after:
            side.run(simulation, _lanes(None, everyone, side, geometry))
    for execution in executions:
        opcode = execution.site.opcode
        if opcode not in wanted:
            found = [side for side in others if matches(side.position, opcode)]
            wanted[opcode] = sorted(found, key=lambda side: side.after)
        for side in wanted[opcode]:
            side.run(simulation, _lanes(execution, execution.threads, side, geometry))
    for side in kernel:
        if side.after:
            side.run(simulation, _lanes(None, everyone, side, geometry))
    return simulation


def _lanes(execution: Execution | None, threads: Array, side: Side, geometry: Geometry) -> Lanes:
    if not (side.warp or side.block):
        return Lanes(execution, threads, np.arange(len(threads)))
    inside = threads % geometry.threads
    first = np.flatnonzero(inside == 0 if side.block else inside % LANES == 0)
    return Lanes(execution, threads[first], first)


@dataclass(frozen=True)
class Difference:
    """Where a map is not what it must be."""

    map: str
    what: str

    def __str__(self) -> str:
        return f"map {self.map}: {self.what}"


def compare(view: MapView, simulation: Simulation, *, ignore: Iterable[str] = ()) -> list[Difference]:
    """The differences between a map and what the simulation saved into it. ignore: fields that are not compared."""
    name = view.map.name
    if view.map.kind.layout is Layout.COPIES and view.map.kind.name != "sum":
        return _compare_aggregate(view, simulation)
    dtype = view.map.dtype
    threads, records = simulation.columns(name, dtype)
    fields = [field for field in dtype.names or () if field not in set(ignore)]
    if view.map.kind.name == "sum":
        return _compare_sums(view, records, fields)
    if view.map.level.value != "thread":
        inside = simulation.in_block(threads)
        owner = inside % LANES == 0 if view.map.level.value == "warp" else inside == 0
        threads, records = threads[owner], records[owner]
    order = np.argsort(threads, kind="stable")
    threads, records = threads[order], records[order]
    first = np.r_[True, threads[1:] != threads[:-1]] if len(threads) else np.zeros(0, bool)
    starts = np.flatnonzero(first)
    number = np.arange(len(threads)) - np.repeat(starts, np.diff(np.r_[starts, len(threads)]))
    if view.map.kind.name == "log":
        return _compare_log(view, simulation, threads, number, records, fields)
    warps = view.geometry.warps
    block, inside = simulation.block_of(threads), simulation.in_block(threads)
    warp = (inside // LANES,) if view.map.level.value != "block" else ()
    lane = (inside % LANES,) if view.map.level.value == "thread" else ()
    expected = np.zeros(view.records.shape, view.records.dtype)
    counts = np.zeros((view.geometry.blocks, *([warps] if warp else []), *([LANES] if lane else [])), np.int64)
    np.add.at(counts, (block, *warp, *lane), 1)
    differences = []
    if view.counts is not None and not np.array_equal(view.counts, counts):
        wrong = np.argwhere(view.counts != counts)
        at = tuple(wrong[0])
        differences.append(
            Difference(name, f"{len(wrong)} counts, first at {at}: {view.counts[at]} in place of {counts[at]}")
        )
    # With a cap of 1 the last save stays.
    kept = number < view.cap if view.map.cap != 1 else np.ones(len(number), bool)
    place = np.where(view.map.cap != 1, number, 0)
    if view.map.kind.name == "ring":
        lengths = np.diff(np.r_[starts, len(threads)])
        kept, place = number + view.cap >= np.repeat(lengths, lengths), number % view.cap
    index = (block, *warp, place, *lane)
    expected[tuple(part[kept] for part in index)] = records[kept]
    for field in fields:
        equal = _same_bits(view.records[field], expected[field])
        if not equal.all():
            wrong = np.argwhere(~equal)
            at = tuple(wrong[0])
            found, wanted = view.records[field][at], expected[field][at]
            differences.append(
                Difference(name, f"{len(wrong)} values of {field}, first at {at}: {found!r} in place of {wanted!r}")
            )
    return differences


def _compare_aggregate(view: MapView, simulation: Simulation) -> list[Difference]:
    """The differences between the rows of a map with one result a launch and what was saved, in Python's integers."""
    kind, name = view.map.kind.name, view.map.name
    numpy_types = {"u": "<u", "s": "<i"}
    form = [(field.name, f"{numpy_types[field.type.value[0]]}{field.type.size}") for field in view.map.fields]
    _, records = simulation.columns(name, np.dtype(form))
    columns = [[int(value) for value in records[field.name].tolist()] for field in view.map.fields]
    rows = view.valid()
    wanted: list[tuple[Any, ...]] = []
    if kind == "avg" and columns[0]:
        total, count = sum(columns[0]), len(columns[0])
        signed = view.map.fields[0].type.value[0] == "s"
        wrapped = (total + (1 << 63)) % (1 << 64) - (1 << 63) if signed else total % (1 << 64)
        wanted = [(count, wrapped, float(Fraction(total, count)))]
    elif kind in ("min", "max") and columns[0]:
        wanted = [tuple((min if kind == "min" else max)(column) for column in columns)]
    elif kind == "histogram":
        counts = [sum(low <= value <= high for value in columns[0]) for low, high, _ in rows.tolist()]
        wanted = [(low, high, count) for (low, high, _), count in zip(rows.tolist(), counts, strict=True)]
    elif kind in ("hash", "topk"):
        return _compare_keys(view, columns)
    return [] if rows.tolist() == wanted else [Difference(name, f"{rows.tolist()} in place of {wanted}")]


def _compare_keys(view: MapView, columns: list[list[int]]) -> list[Difference]:
    """The differences of a map with keys: none where all keys have a place; else the bounds must hold.

    columns: what was saved, the keys first.
    """
    groups: dict[int, list[int]] = {}
    for key, value in zip(columns[0], columns[-1], strict=True):
        groups.setdefault(key, []).append(value)
    kept = [name for name in view.valid().dtype.names or () if name in ("sum", "min", "max")]
    functions: dict[str, Callable[[list[int]], int]] = {
        "sum": lambda values: sum(values) % (1 << 64), "min": min, "max": max,
    }  # fmt: skip
    full = {key: (len(values), *(functions[name](values) for name in kept)) for key, values in groups.items()}
    rows = [tuple(row) for row in view.valid().tolist()]
    # Every key has eight places, or all that there are.
    if view.dropped and len(groups) <= min(8, view.map.document()["places"]):
        return [Difference(view.map.name, f"{view.dropped} saves of {len(groups)} keys found no place")]
    if not view.dropped:
        wanted = [(key, *row, 0) for key, row in sorted(full.items())]
        if view.map.kind.name == "topk":
            wanted.sort(key=lambda row: -row[2 if kept else 1])
            wanted = wanted[: view.map.document()["n"]]
        return [] if rows == wanted else [Difference(view.map.name, f"{rows} in place of {wanted}")]
    wrong = [row for row in rows if not row[1] <= full[row[0]][0] <= row[1] + row[-1]]
    found = {row[0] for row in rows}
    if view.map.kind.name == "hash":
        wrong += [(key, *row) for key, row in full.items() if key not in found and row[0] > view.dropped]
        if sum(row[1] for row in rows) + view.dropped != len(columns[0]):
            wrong.append((view.dropped,))
        if "sum" in kept:
            found_sums = sum(row[2 + kept.index("sum")] for row in rows)
            if (found_sums + view.dropped_sum - sum(columns[-1])) % (1 << 64):
                wrong.append((view.dropped_sum,))
    return [Difference(view.map.name, f"beyond the bounds: {wrong}")] if wrong else []


def _compare_log(
    view: MapView, simulation: Simulation, threads: Array, number: Array, records: Array, fields: list[str]
) -> list[Difference]:
    """As ``compare``, of a log. threads, number: of each record, whose it is and which of that thread's, from 0."""
    name, level = view.map.name, view.map.level.value
    places, found = view.places(), view.valid()
    columns = [simulation.block_of(threads)]
    if level != "block":
        columns.append(simulation.in_block(threads) // LANES)
    if level == "thread":
        columns.append(simulation.in_block(threads) % LANES)
    wanted = list(zip(*(column.tolist() for column in (*columns, number)), strict=True))
    got = list(zip(*(column.tolist() for column in places.values()), strict=True))
    differences = []
    if len(got) + view.dropped != len(wanted):
        what = f"{len(got)} records and {view.dropped} dropped in place of {len(wanted)}"
        differences.append(Difference(name, what))
    kept = set(got)
    if got != sorted(kept) or not kept <= set(wanted):
        return [*differences, Difference(name, "records of others, or in another order")]
    # What did not fit are a thread's last records.
    if any(place[-1] and (*place[:-1], place[-1] - 1) not in kept for place in got):
        differences.append(Difference(name, "a record is missing between others"))
    row_of = {place: row for row, place in enumerate(wanted)}
    expected = records[[row_of[place] for place in got]] if got else records[:0]
    return differences + [
        Difference(name, f"values of {field} in a log")
        for field in fields
        if not _same_bits(found[field], expected[field]).all()
    ]


def _compare_sums(view: MapView, records: Array, fields: list[str]) -> list[Difference]:
    total = view.total()
    differences = []
    for field in fields:
        kind = view.records.dtype[field]
        wanted = int(np.add.reduce(records[field], dtype=kind))
        if total[field] != wanted:
            differences.append(Difference(view.map.name, f"sum of {field} is {total[field]} in place of {wanted}"))
    return differences


def _same_bits(one: Array, other: Array) -> npt.NDArray[np.bool_]:
    kind = f"u{one.dtype.itemsize}"
    return np.ascontiguousarray(one).view(kind) == np.ascontiguousarray(other).view(kind)
