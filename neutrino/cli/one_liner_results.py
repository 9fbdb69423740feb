"""What one-liners (``neutrino -e``) have recorded, as text: per kernel, and in total over all kernels."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.cli.record_rows import (
    MOST_KERNELS,
    by_kernel,
    label,
    read_rows,
    row_lines,
    shortened,
    site_labels,
)
from neutrino.cli.row_options import MOST_ROWS
from neutrino.cli.streams import escaped
from neutrino.cli.table import counted
from neutrino.late_dataclass import dataclass
from neutrino.tracing.shown.exact_numbers import bucket_range, exact

if TYPE_CHECKING:
    from neutrino.language.uses import Use
    from neutrino.tracing import TraceKernel

_TIMES = re.compile(r"\b(?:elapsed|clock|time)\b", re.IGNORECASE | re.ASCII)
"""Words of one-liners that are times."""
_BAR_WIDTH = 40
_MOST_REFUSED = 3
"""Kernels of which is said why their twins could not be made."""
_MOST_KEYS = 20
"""Keys that are printed per kernel, unless the one-liner says how many."""
UNNAMED, SAVE, PRINT = "unnamed", "save", "print"
_OF_OTHER_TYPE = re.compile(r"(field '\w+' is \w+): make the field (\w+), or save ([\w.]+)\.bits$")
"""What is said of probe files."""
_WRONG_TYPE = re.compile(r"\b(OUT|IN\d) is \.[busf]\d+(?=, but .* take it as one of)")
_INSTRUCTION = re.compile(r"'(?:@\S+ )?([a-z]\w*\.[\w.:]*)")
_TYPES = re.compile(r"\.([busf]\d+)\b")
_LACKS = re.compile(r"([a-z][\w.:]*) has no (OUT|IN\d)\b")
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_HISTOGRAMS = ("hist", "lhist")
_TOTALS = {"count": "total", "sum": "total", "avg": "mean", "topk": "total", "min": "least", "max": "greatest"}


@dataclass
class _Value:
    """What was recorded of a kernel, or with a key. number: the sum, or the least or greatest value; None for nothing.

    count: how many values; 1 where that is not recorded.
    """

    number: Any = None
    count: int = 1

    def add(self, function: str, other: _Value) -> None:
        """Take in what was recorded of another kernel, or by other launches: the sum, or for min and max the least or
        greatest. function: of the map (what probes save to).
        """
        if other.number is None:
            return
        if self.number is None:
            self.number, self.count = other.number, other.count
        elif function in ("min", "max"):
            # NaN, where there is nothing else, is neither.
            if math.isnan(self.number) or math.isnan(other.number):
                self.number = other.number if math.isnan(self.number) else self.number
            else:
                self.number = {"min": min, "max": max}[function](self.number, other.number)
        else:
            self.number += other.number
            self.count += other.count

    def shown(self, function: str) -> Any:
        """Return the number that is printed; of an average (``avg``) the sum by the count.

        None where there is nothing.
        """
        return self.number / self.count if function == "avg" and self.number is not None else self.number


@dataclass
class _Result:
    """What a map has of one kernel, or of several.

    parts: of a histogram by the least and greatest value of a bucket, of a map with keys by key, else of (). lost: how
    many saves found no place for their key.
    """

    parts: dict[tuple[Any, ...], _Value] = field(default_factory=dict)
    lost: int = 0

    def add(self, function: str, other: _Result) -> None:
        """Take in what the map (what probes save to) has of another kernel, or of other launches.

        function: of the map.
        """
        for part, value in other.parts.items():
            self.parts.setdefault(part, _Value()).add(function, value)
        self.lost += other.lost

    def size(self, function: str) -> Any:
        """Return the number by which kernels are ordered: the sum of all parts, or for min and max the least or
        greatest. function: of the map (what probes save to).
        """
        numbers = [value.shown(function) for value in self.parts.values()]
        if function in ("min", "max"):
            return {"min": min, "max": max}[function](numbers)
        return sum(numbers)


def results_of(
    texts: Sequence[str], most_rows: int = MOST_ROWS, reading: Callable[[int], None] = lambda _: None,
    only: Sequence[str] = (),
) -> Callable[[Path], str]:
    """Return a function that returns what is printed of a trace of a run with these one-liners.

    most_rows: how many rows of a ``print`` are printed. reading: is called with the id of each kernel before its
    records are read. only: names of the maps (what probes save to) that are printed, without the @; all without any.
    Raises ProbeError if the one-liners have faults.
    """
    from neutrino.language.one_liner import uses_of_maps
    from neutrino.probing.model import DEFAULT_PLATFORM
    from neutrino.targets import LANGUAGES

    has_times = any(_TIMES.search(text) for text in texts)
    uses = uses_of_maps("\n".join(texts), LANGUAGES[DEFAULT_PLATFORM])
    chosen = [name or UNNAMED for name in only]
    uses = {name: use for name, use in uses.items() if not chosen or name in chosen}
    return partial(_results, uses=uses, most_rows=most_rows, reading=reading, has_times=has_times)


def require_maps(texts: Sequence[str], names: Sequence[str]) -> None:
    """Raise NeutrinoError for a map (what probes save to) that is asked for, and that no one-liner has.

    names: without the @.
    """
    from neutrino.errors import NeutrinoError
    from neutrino.language.one_liner import uses_of_maps
    from neutrino.probing.model import DEFAULT_PLATFORM
    from neutrino.targets import LANGUAGES

    known = uses_of_maps("\n".join(texts), LANGUAGES[DEFAULT_PLATFORM])
    for name in names:
        if (name or UNNAMED) not in known:
            there = ", ".join("@" + ("" if other == UNNAMED else other) for other in known)
            raise NeutrinoError(f"-e: interval: there is no map @{name}; there are {there}")


def _results(
    path: Path, uses: Mapping[str, Use], most_rows: int, reading: Callable[[int], None], has_times: bool
) -> str:
    """Return the results of a trace as text. Damaged data are reported in the text. The others: as ``results_of``.

    has_times: whether the one-liners read a clock.
    """
    # Imported here, in the process that reads the trace: a run itself does not need NumPy.
    from neutrino.abi.launches import LaunchState
    from neutrino.abi.reasons import Reason
    from neutrino.cli.nothing_saved import NothingSaved, not_probed_lines
    from neutrino.demangle import demangle
    from neutrino.errors import NeutrinoError
    from neutrino.tracing import Clock, Trace

    of_rows = {name: use for name, use in uses.items() if use.function in (SAVE, PRINT)}
    try:
        trace = Trace(path)
        names = {kernel.id: demangle(kernel.name) for kernel in trace.kernels}
        results: dict[str, dict[str, _Result]] = {name: {} for name in uses.keys() - of_rows.keys()}
        for kernel in trace.kernels if results else ():
            if kernel.manifest is None:
                continue
            reading(kernel.id)
            for views in kernel.stacks():
                for name in results.keys() & views.keys():
                    result = results[name].setdefault(names[kernel.id], _Result())
                    result.add(uses[name].function, _result(uses[name], views[name], kernel))
        rows = read_rows(trace, names, of_rows, most_rows, reading)
    except NeutrinoError as error:
        return f"neutrino: the results cannot be read: {error}\n"
    # Of a process of torchrun or mpirun: which of them prints.
    rank = next((f" (rank {trace.process[word]})" for word in _RANKS if word in trace.process), "")
    lines = []
    nothing = NothingSaved(trace)
    for name, use in uses.items():
        is_print = use.function == PRINT and name.partition("_")[0] == PRINT
        title = name if is_print else f"@{'' if name == UNNAMED else name}"
        if name not in of_rows:
            found = list(_map_lines(f"{title}{rank}", use, results[name]))
            lines += ["", *(found or [f"{title}{rank}: {nothing.in_run(names, name)}"])]
        elif not sum(rows[name].counts.values()) + rows[name].dropped:
            lines += ["", f"{title}{rank}: {nothing.in_run(names, name)}"]
        else:
            lines += ["", f"{title}{rank}:"]
            if use.function == PRINT:
                lines += row_lines(rows[name], use, names, most_rows, len(of_rows))
            else:
                lines.append(f"  {counted(sum(rows[name].counts.values()), 'row')}: {by_kernel(rows[name])}")
                lines.append(f"  to read them: neutrino-report {path} --rows {MOST_ROWS} --map {name}")
            if rows[name].dropped:
                dropped = counted(rows[name].dropped, "row")
                lines.append(f"  {dropped} more found no memory: --max-device-memory makes room")
        lines += not_probed_lines(trace, names, name)
    if has_times and trace.clock is Clock.STEPS:
        lines += ["", "Times are steps of the embedded device's interpreter, neither cycles nor nanoseconds."]
    # Not copied back in time, or lost.
    states = trace.launches["state"]
    lacking = int(((states == LaunchState.SUBMITTED) | (states == LaunchState.LOST)).sum())
    if lacking:
        launches = f"{lacking:,} launch{'es' if lacking > 1 else ''}"
        lines += ["", f"These are without {launches} whose records did not arrive; see neutrino-report {path}"]
    # Kernels without a site have nothing to count.
    missing = sum(count for reason, count in trace.coverage.not_probed.items() if reason is not Reason.NO_SITE)
    if missing:
        share = f"{trace.coverage.probed:,} of {trace.coverage.probed + missing:,} launches"
        lines += ["", f"These are of {share}: the others ran without probes; see neutrino-report {path} --why"]
        # Such as an operand of another type than the one-liner takes it for.
        refused = [kernel for kernel in trace.kernels if kernel.reason is Reason.UNSUPPORTED and kernel.counters]
        for kernel in refused[:_MOST_REFUSED]:
            detail = one_remedy(_OF_OTHER_TYPE.sub(_remedy, kernel.detail))
            lines.append(f"  {shortened(names[kernel.id])}: {escaped(detail)}")
    return "\n".join([*lines, ""]) + "\n"


def _remedy(said: re.Match[str]) -> str:
    """Return a message about a fault in a one-liner, made of one about probe files: what to write instead.

    said: the match of that message.
    """
    return f"{said[1]}: write {said[2]}({said[3]})"


def one_remedy(detail: str) -> str:
    """Return why a kernel was not probed, with one remedy where an operand is of another type than a one-liner takes it
    for: it holds for all instructions that the one-liner then matches, whatever else it matched before.
    """
    if (lacking := _LACKS.search(detail)) is not None:
        return f"{detail}: narrow the position to instructions that have {lacking[2]}, as in 'load & global & f32'"
    found = _WRONG_TYPE.search(detail)
    # The type in the instruction's name, which is what patterns match: OUT of ld.u32 has 32 bits of no type.
    types = _TYPES.findall(instruction[1]) if (instruction := _INSTRUCTION.search(detail)) else []
    if found is None or not types or types[-1] not in ("u32", "s32", "f32", "u64", "s64", "f64"):
        return detail
    clause = f"{{ … {types[-1]}({found[1]}) … }}"
    return f"{detail[: found.end()]}: write 'POSITION & {types[-1]} {clause}', and a clause for each other type"


def _result(use: Use, view: Any, kernel: TraceKernel) -> _Result:
    """Return what a map (what probes save to) has recorded in some launches of a kernel, by bucket or key.

    use: what the one-liner does with it. view: the map's records.
    """
    function = use.function
    rows = view.valid().reshape(-1)
    names = rows.dtype.names
    result = _Result()

    def add(part: tuple[Any, ...], number: Any, count: int = 1) -> None:
        """Take a number into the bucket, key or, for (), the only value of the result.

        count: how many values it is of.
        """
        result.parts.setdefault(part, _Value()).add(function, _Value(number, count))

    # Integers in Python's, which do not wrap around.
    if function in _HISTOGRAMS:
        filled = rows[rows["count"] > 0]
        for low, high, count in zip(*(filled[name].tolist() for name in ("low", "high", "count")), strict=True):
            # All NaNs are one key.
            add((math.nan, math.nan) if math.isnan(low) else (low, high), count)
    elif "key" in names:
        value = {"avg": "sum", "topk": "count"}.get(function, function)
        labels = site_labels(kernel, use.value.is_line) if use.value.is_site else {}
        for key, number, count in zip(*(rows[name].tolist() for name in ("key", value, "count")), strict=True):
            if use.value.is_site:
                add((label(labels, key),), number, count)
            else:
                # All NaNs are one key.
                add((math.nan if math.isnan(key) else key,), number, count)
        result.lost = view.dropped
    elif function == "avg":
        # The sum of integers is modulo 2 to the 64.
        is_float = rows.dtype["sum"].kind == "f"
        for total, mean, count in zip(*(rows[name].tolist() for name in ("sum", "mean", "count")), strict=True):
            add((), total if is_float else mean * count, count)
    else:
        for number in rows[names[0]].tolist():
            add((), number)
    return result


def _map_lines(title: str, use: Use, by_kernel: dict[str, _Result]) -> Iterable[str]:
    """Yield the lines about one map: each kernel, largest first, and the total. Nothing without a value."""
    # A kernel with a sum of 0 has no such instruction, or none that was executed.
    found = {
        name: result for name, result in by_kernel.items()
        if result.parts and (use.function not in ("count", "sum") or result.size(use.function) or _is_of_floats(result))
    }  # fmt: skip
    if not found:
        return
    order = sorted(found, key=lambda name: found[name].size(use.function), reverse=use.function != "min")
    total = _Result()
    kernels_of = Counter(part for result in found.values() for part in result.parts)
    for name, result in found.items():
        parts = {}
        for part, value in result.parts.items():
            # Lines of PTX and instructions of two kernels are not the same, as source lines are.
            is_other = use.value.is_site and kernels_of[part] > 1 and str(part[0]).startswith("PTX line")
            parts[(f"{part[0]} in {name}",) if is_other else part] = value
        total.add(use.function, _Result(parts, result.lost))
    if () in total.parts:
        yield f"{title}:"
        rows = [(shortened(name), _only(found[name], use)) for name in order[:MOST_KERNELS]]
        if len(order) > MOST_KERNELS:
            rows.append((f"and {len(order) - MOST_KERNELS} kernels more", ""))
        if len(order) > 1:
            rows.append((_TOTALS[use.function], _only(total, use)))
        yield from _columns(rows)
        return
    lines = _bucket_lines if use.function in _HISTOGRAMS else partial(_key_lines, use=use)
    for name in order[:MOST_KERNELS] if len(order) > 1 else ():
        yield f"{title}, {shortened(name)}:"
        yield from lines(found[name])
    yield f"{title}, {'all kernels' if len(order) > 1 else shortened(order[0])}:"
    yield from lines(total)


def _is_of_floats(result: _Result) -> bool:
    """Return whether a result is a sum of fractions, which may well be 0."""
    return any(isinstance(value.number, float) for value in result.parts.values())


def _columns(rows: Sequence[tuple[str, str]]) -> Iterable[str]:
    """Yield a line for each row: a name, and a number to the right."""
    width, digits = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, value in rows:
        yield f"  {name:{width}}  {value:>{digits}}".rstrip()


def _key_lines(result: _Result, use: Use) -> Iterable[str]:
    """Yield a line for each key, those with the largest numbers first (of a ``min`` the smallest).

    use: what the one-liner does with the map (what probes save to).
    """
    numbers = {key: value.shown(use.function) for key, value in result.parts.items()}
    sign = 1 if use.function == "min" else -1
    keys = sorted(numbers, key=lambda key: (math.isnan(numbers[key]), sign * numbers[key], key))
    most = use.most or _MOST_KEYS
    # Places are texts, which may come from the program.
    rows = [(_key(key[0], use), _number(numbers[key])) for key in keys[:most]]
    yield from _columns(rows)
    if len(keys) > most:
        yield f"  and {counted(len(keys) - most, 'key')} more"
    if result.lost:
        yield f"  {result.lost:,} times there was no room for a key: each number may lack as many values"


def _bucket_lines(result: _Result) -> Iterable[str]:
    """Yield a line for each bucket of a histogram that is not empty: its range, how many values, and a bar."""
    buckets = sorted((part, value.number) for part, value in result.parts.items())
    largest = max(count for _, count in buckets)
    texts = [(bucket_range(low, high), f"{count:,}") for (low, high), count in buckets]
    width, digits = (max(len(row[column]) for row in texts) for column in (0, 1))
    for (text, number), (_, count) in zip(texts, buckets, strict=True):
        yield f"  {text:>{width}}  {number:>{digits}}  {'#' * -(-count * _BAR_WIDTH // largest)}"


def _only(result: _Result, use: Use) -> str:
    """Return the one number of a map (what probes save to) without keys as text.

    use: what the one-liner does with the map.
    """
    return _number(result.parts[()].shown(use.function), use.value.is_address)


def _number(value: Any, is_address: bool = False) -> str:
    """Return a number as text: integers with separators, an address in hexadecimal, fractions with six digits or one
    decimal.
    """
    if isinstance(value, int):
        return f"{value:#x}" if is_address else f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= 100_000 else f"{value:.6g}"


def _key(key: int | float | str, use: Use) -> str:
    """Return a key as text: a number, or the place of an instruction.

    use: what the one-liner does with the map (what probes save to).
    """
    if isinstance(key, float):
        return exact(key)
    return escaped(key) if isinstance(key, str) else _number(key, use.value.is_address)
