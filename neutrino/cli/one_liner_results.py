"""What one-liners (``neutrino -e``) have recorded, as text: per kernel, and in total over all kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neutrino.language.one_liner import Use

_BAR_WIDTH = 40
_NAME_WIDTH = 60
_MOST_KERNELS = 20
"""Kernels that are printed per map; the rest is in the total."""
_MOST_KEYS = 20
"""Keys that are printed per kernel, unless the one-liner says how many."""
_UNNAMED = "unnamed"
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
        """Take in another kernel, or other launches. function: of the map."""
        if other.number is None:
            return
        if self.number is None:
            self.number, self.count = other.number, other.count
        elif function in ("min", "max"):
            self.number = {"min": min, "max": max}[function](self.number, other.number)
        else:
            self.number += other.number
            self.count += other.count

    def shown(self, function: str) -> Any:
        """Return what is printed: of an average the quotient."""
        return self.number / self.count if function == "avg" and self.number is not None else self.number


@dataclass
class _Result:
    """What a map has of one kernel, or of several.

    parts: of a histogram by the least and greatest value of a bucket, of a map with keys by key, else of (). lost: how
    many saves found no place for their key.
    """

    parts: dict[tuple[int, ...], _Value] = field(default_factory=dict)
    lost: int = 0

    def add(self, function: str, other: _Result) -> None:
        """Take in what the map has of another kernel, or of other launches. function: of the map."""
        for part, value in other.parts.items():
            self.parts.setdefault(part, _Value()).add(function, value)
        self.lost += other.lost

    def size(self, function: str) -> Any:
        """By which kernels are ordered, largest first."""
        numbers = [value.shown(function) for value in self.parts.values()]
        if function in ("min", "max"):
            return {"min": min, "max": max}[function](numbers)
        return sum(numbers)


def results_of(texts: Sequence[str]) -> Callable[[Path], str]:
    """Return a function that returns what is printed of a complete trace of a run with these one-liners.

    Raises ProbeError if they have faults.
    """
    from neutrino.language.one_liner import uses_of_maps

    return partial(_results, uses=uses_of_maps("\n".join(texts)))


def _results(path: Path, uses: Mapping[str, Use]) -> str:
    """Return the results of a trace as text. uses: how each map is used. Damaged data are reported in the text."""
    # Imported here, in the process that reads the trace: a run itself does not need NumPy.
    from neutrino.abi.reasons import Reason
    from neutrino.demangle import demangle
    from neutrino.errors import NeutrinoError
    from neutrino.tracing import Trace

    try:
        trace = Trace(path)
        results: dict[str, dict[str, _Result]] = {name: {} for name in uses}
        for kernel in trace.kernels:
            if kernel.manifest is None:
                continue
            kernel_name = demangle(kernel.name)
            for views in kernel.stacks():
                for name in uses.keys() & views.keys():
                    result = results[name].setdefault(kernel_name, _Result())
                    result.add(uses[name].function, _result(uses[name].function, views[name]))
    except NeutrinoError as error:
        return f"neutrino: the results cannot be read: {error}\n"
    # Of a process of torchrun or mpirun: which of them prints.
    rank = next((f" (rank {trace.process[word]})" for word in _RANKS if word in trace.process), "")
    lines = []
    for name, use in uses.items():
        lines += ["", *_map_lines(f"@{'' if name == _UNNAMED else name}{rank}", use, results[name])]
    # Kernels without a site have nothing to count.
    missing = sum(count for reason, count in trace.coverage.not_probed.items() if reason is not Reason.NO_SITE)
    if missing:
        share = f"{trace.coverage.probed:,} of {trace.coverage.probed + missing:,} launches"
        lines += ["", f"These are of {share}: the others ran without probes; see neutrino-report {path} --why"]
    return "\n".join([*lines, ""]) + "\n"


def _result(function: str, view: Any) -> _Result:
    """Return the result of some launches. view: of the map, whose rows are as its type reads them."""
    rows = view.valid().reshape(-1)
    names = rows.dtype.names
    result = _Result()

    def add(part: tuple[int, ...], number: Any, count: int = 1) -> None:
        result.parts.setdefault(part, _Value()).add(function, _Value(number, count))

    # In Python's integers, which do not wrap around.
    if function in _HISTOGRAMS:
        filled = rows[rows["count"] > 0]
        for low, high, count in zip(*(filled[name].tolist() for name in ("low", "high", "count")), strict=True):
            add((low, high), count)
    elif "key" in names:
        value = {"avg": "sum", "topk": "count"}.get(function, function)
        for key, number, count in zip(*(rows[name].tolist() for name in ("key", value, "count")), strict=True):
            add((key,), number, count)
        result.lost = view.dropped
    elif function == "avg":
        for mean, count in zip(rows["mean"].tolist(), rows["count"].tolist(), strict=True):
            add((), mean * count, count)
    else:
        for number in rows[names[0]].tolist():
            add((), number)
    return result


def _map_lines(title: str, use: Use, by_kernel: dict[str, _Result]) -> Iterable[str]:
    """Yield the lines about one map: each kernel, largest first, and the total."""
    # A kernel with a sum of 0 has no such instruction, or none that was executed.
    found = {
        name: result for name, result in by_kernel.items()
        if result.parts and (use.function not in ("count", "sum") or result.size(use.function))
    }  # fmt: skip
    if not found:
        yield f"{title}: nothing was saved"
        return
    order = sorted(found, key=lambda name: found[name].size(use.function), reverse=use.function != "min")
    total = _Result()
    for result in found.values():
        total.add(use.function, result)
    if () in total.parts:
        yield f"{title}:"
        rows = [(_short(name), _only(found[name], use)) for name in order[:_MOST_KERNELS]]
        if len(order) > _MOST_KERNELS:
            rows.append((f"and {len(order) - _MOST_KERNELS} kernels more", ""))
        if len(order) > 1:
            rows.append((_TOTALS[use.function], _only(total, use)))
        yield from _columns(rows)
        return
    lines = _bucket_lines if use.function in _HISTOGRAMS else partial(_key_lines, use=use)
    for name in order[:_MOST_KERNELS] if len(order) > 1 else ():
        yield f"{title}, {_short(name)}:"
        yield from lines(found[name])
    yield f"{title}, {'all kernels' if len(order) > 1 else _short(order[0])}:"
    yield from lines(total)


def _columns(rows: Sequence[tuple[str, str]]) -> Iterable[str]:
    """Yield a line for each row: a name, and a number to the right."""
    width, digits = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, value in rows:
        yield f"  {name:{width}}  {value:>{digits}}".rstrip()


def _key_lines(result: _Result, use: Use) -> Iterable[str]:
    """Yield a line for each key, those with the largest numbers first."""
    numbers = {key: value.shown(use.function) for key, value in result.parts.items()}
    sign = 1 if use.function == "min" else -1
    keys = sorted(numbers, key=lambda key: (sign * numbers[key], key))
    most = use.most or _MOST_KEYS
    rows = [(_number(key[0], use.is_address), _number(numbers[key])) for key in keys[:most]]
    yield from _columns(rows)
    if len(keys) > most:
        yield f"  and {len(keys) - most:,} keys more"
    if result.lost:
        yield f"  {result.lost:,} times there was no room for a key: each number may lack as many values"


def _bucket_lines(result: _Result) -> Iterable[str]:
    """Yield a line for each bucket that is not empty, with a bar."""
    buckets = sorted((part, value.number) for part, value in result.parts.items())
    largest = max(count for _, count in buckets)
    texts = [(f"{low:,}" if low == high else f"{low:,} to {high:,}", f"{count:,}") for (low, high), count in buckets]
    width, digits = (max(len(row[column]) for row in texts) for column in (0, 1))
    for (text, number), (_, count) in zip(texts, buckets, strict=True):
        yield f"  {text:>{width}}  {number:>{digits}}  {'#' * -(-count * _BAR_WIDTH // largest)}"


def _only(result: _Result, use: Use) -> str:
    """Return the number of a map without keys as text."""
    return _number(result.parts[()].shown(use.function), use.is_address)


def _number(value: Any, is_address: bool = False) -> str:
    """Return a number as text."""
    if isinstance(value, int):
        return f"{value:#x}" if is_address else f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= 100_000 else f"{value:.6g}"


def _short(name: str) -> str:
    """Return a kernel's name, shortened in the middle."""
    half = (_NAME_WIDTH - 1) // 2
    return name if len(name) <= _NAME_WIDTH else f"{name[:half]}…{name[-half:]}"
