"""What one-liners (``neutrino -e``) have recorded, as text: per kernel, and in total over all kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

_BAR_WIDTH = 40
_NAME_WIDTH = 60
_MOST_KERNELS = 20
"""Kernels that are printed per map; the rest is in the total."""
_UNNAMED = "unnamed"


@dataclass
class _Result:
    """What a map has of one kernel, or of several. total: of a sum, or the least or greatest value; None for nothing.

    buckets: count by the least and greatest value of a bucket.
    """

    total: Any = None
    buckets: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, kind: str, other: _Result) -> None:
        """Take in what the map has of another kernel, or of other launches. kind: of the map."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        if other.total is None:
            return
        if self.total is None:
            self.total = other.total
        elif kind in ("min", "max"):
            self.total = {"min": min, "max": max}[kind](self.total, other.total)
        else:
            self.total += other.total

    @property
    def size(self) -> Any:
        """By which kernels are ordered, largest first."""
        return sum(self.buckets.values()) if self.buckets else 0 if self.total is None else self.total


def results_of(texts: Sequence[str]) -> Callable[[Path], str]:
    """Return a function that returns what is printed of a complete trace of a run with these one-liners.

    Raises ProbeError if they have faults.
    """
    from neutrino.language.one_liner import read_one_liner

    return partial(_results, names=tuple(entry.name for entry in read_one_liner("\n".join(texts)).maps))


def _results(path: Path, names: Sequence[str]) -> str:
    """Return the results of a trace as text. names: of the maps. Damaged data are reported in the text."""
    # Imported here, in the process that reads the trace: a run itself does not need NumPy.
    from neutrino.demangle import demangle
    from neutrino.errors import NeutrinoError
    from neutrino.tracing import Trace

    try:
        trace = Trace(path)
        kinds: dict[str, str] = {}
        results: dict[str, dict[str, _Result]] = {}
        for kernel in trace.kernels:
            if kernel.manifest is None:
                continue
            kinds |= {entry.name: entry.kind.name for entry in kernel.manifest.maps if entry.name in names}
            name = demangle(kernel.name)
            for views in kernel.stacks():
                for map_name in kinds.keys() & views.keys():
                    view = views[map_name]
                    of_map = results.setdefault(map_name, {}).setdefault(name, _Result())
                    of_map.add(kinds[map_name], _result(kinds[map_name], view.valid()))
    except NeutrinoError as error:
        return f"neutrino: the results cannot be read: {error}\n"
    lines: list[str] = []
    for map_name in names:
        lines += ["", *_map_lines(map_name, kinds.get(map_name, ""), results.get(map_name, {}))]
    return "\n".join([*lines, ""]) + "\n" if lines else ""


def _result(kind: str, rows: Any) -> _Result:
    """Return the result of some launches. rows: the map's rows, as its type reads them."""
    result = _Result()
    if not rows.size:
        return result
    if kind == "histogram":
        flat = rows.reshape(-1)
        filled = flat[flat["count"] > 0]
        for low, high, count in zip(*(filled[name].tolist() for name in ("low", "high", "count")), strict=True):
            result.buckets[low, high] = result.buckets.get((low, high), 0) + count
        return result
    (name, *_) = rows.dtype.names
    values = rows[name]
    # In Python's integers, which do not wrap around.
    result.total = sum(values.reshape(-1).tolist()) if kind == "sum" else getattr(values, kind)().item()
    return result


def _map_lines(map_name: str, kind: str, by_kernel: dict[str, _Result]) -> Iterable[str]:
    """Yield the lines about one map: each kernel, largest first, and the total."""
    title = "@" if map_name == _UNNAMED else f"@{map_name}"
    total = _Result()
    for result in by_kernel.values():
        total.add(kind, result)
    # A kernel with a sum of 0 has no such instruction, or none that was executed.
    found = {name: result for name, result in by_kernel.items()
             if result.buckets or (result.total if kind == "sum" else result.total is not None)}  # fmt: skip
    if not found:
        yield f"{title}: nothing was saved"
        return
    order = sorted(found, key=lambda name: found[name].size, reverse=kind != "min")
    if kind == "histogram":
        for name in order[:_MOST_KERNELS] if len(order) > 1 else ():
            yield f"{title}, {_short(name)}:"
            yield from _bucket_lines(found[name])
        yield f"{title}, {'all kernels' if len(order) > 1 else _short(order[0])}:"
        yield from _bucket_lines(total)
    else:
        yield f"{title}:"
        rows = [(_short(name), _number(found[name].total)) for name in order[:_MOST_KERNELS]]
        if len(order) > _MOST_KERNELS:
            rows.append((f"and {len(order) - _MOST_KERNELS} kernels more", ""))
        if len(order) > 1:
            rows.append(({"sum": "total", "min": "least", "max": "greatest"}[kind], _number(total.total)))
        width, digits = max(len(name) for name, _ in rows), max(len(value) for _, value in rows)
        for name, value in rows:
            yield f"  {name:{width}}  {value:>{digits}}".rstrip()


def _bucket_lines(result: _Result) -> Iterable[str]:
    """Yield a line for each bucket from the first to the last that is not empty, with a bar."""
    buckets = sorted(result.buckets.items())
    largest = max(result.buckets.values())
    texts = [(f"{low:,}" if low == high else f"{low:,} to {high:,}", f"{count:,}") for (low, high), count in buckets]
    width, digits = (max(len(row[column]) for row in texts) for column in (0, 1))
    for (text, number), (_, count) in zip(texts, buckets, strict=True):
        yield f"  {text:>{width}}  {number:>{digits}}  {'#' * -(-count * _BAR_WIDTH // largest)}"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _short(name: str) -> str:
    """Return a kernel's name, shortened in the middle."""
    half = (_NAME_WIDTH - 1) // 2
    return name if len(name) <= _NAME_WIDTH else f"{name[:half]}…{name[-half:]}"
