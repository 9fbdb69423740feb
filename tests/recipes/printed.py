"""What ``neutrino -e`` prints, taken apart, and figures to hold it against.

A figure is the samples of a map, worked out elsewhere, and how they are put together: here, by definition.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Sample = tuple[str, Any, Any]
"""A kernel, a key (None without one), and a value."""
_MOST_KEYS = 20
_MOST_ROWS = 20
_TOTALS = {"count": "total", "sum": "total", "topk": "total", "avg": "mean", "min": "least", "max": "greatest"}


@dataclass(frozen=True)
class Figure:
    """What a map must have. function: as in the one-liner. most: keys that are printed. steps: of an ``lhist`` the
    least and the greatest value that have buckets of their own, and how many values a bucket has. near: how far apart
    numbers may be, of times that were read one after the other.
    """

    function: str
    samples: Sequence[Sample]
    most: int = _MOST_KEYS
    steps: tuple[int, int, int] = (0, 0, 0)
    near: float = 0

    def combined(self, values: Sequence[Any]) -> Any:
        """The number that is made of these samples."""
        if self.function in ("count", "topk"):
            return len(values)
        return {"sum": sum, "min": min, "max": max, "avg": lambda all_: sum(all_) / len(all_)}[self.function](values)

    def bucket(self, value: int) -> str:
        """The name of a value's bucket."""
        if self.function == "hist":
            low, high = (1 << value.bit_length() >> 1, (1 << value.bit_length()) - 1) if value else (0, 0)
        else:
            least, _, step = self.steps
            low = least + (value - least) // step * step
            high = low + step - 1
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"


@dataclass(frozen=True)
class Rows:
    """What a ``print`` must have. rows: each of a launch, a kernel, a block, a warp, a lane, and the columns."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    is_printed: bool = True


def sections(text: str) -> dict[str, list[str]]:
    """The parts of a text by their first line, without its colon."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            title, _, rest = line.partition(":")
            if title:
                found[title] = [rest.strip()] if rest else []
        elif line.strip():
            found[title].append(line[2:])
    return found


def number(text: str) -> Any:
    """A printed number; a text that is none as it is."""
    bare = text.replace(",", "")
    try:
        return int(bare, 0)
    except ValueError:
        try:
            return float(bare)
        except ValueError:
            return text


def _same(one: Any, other: Any, near: float = 0) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other or abs(one - other) <= 6e-6 * abs(other) + near or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def differences(text: str, expected: dict[str, Figure | Rows]) -> list[str]:
    """What printed results have otherwise than they must. expected: map → what it must have."""
    found = sections(text)
    wrong = []
    for name, figure in expected.items():
        title = name if name.startswith("print") else f"@{name}"
        mine = {key: lines for key, lines in found.items() if key.partition(",")[0] == title}
        if isinstance(figure, Rows):
            wrong += _of_rows(title, figure, mine.get(title))
        else:
            wrong += _of_map(title, figure, mine)
    # What else is said is no map's.
    maps = {key.partition(",")[0] for key in found if key.startswith(("@", "print"))}
    others = {name.removeprefix("@") for name in maps} - expected.keys()
    return wrong + [f"{other} is printed" for other in sorted(others)]


def _is_nothing(lines: list[str] | None) -> bool:
    """Whether it is said that a map is empty, and why."""
    return lines is not None and len(lines) == 1 and lines[0].startswith("nothing was saved: ")


def _of_rows(title: str, figure: Rows, lines: list[str] | None) -> list[str]:
    if not figure.rows:
        return [] if _is_nothing(lines) else [f"{title}: {lines}, and nothing was to be saved"]
    if lines is None:
        return [f"{title} is not printed"]
    of_kernel = Counter(row[1] for row in figure.rows)
    count = f"{len(figure.rows):,} row{'s' if len(figure.rows) > 1 else ''}"
    counted = f"{count}: {', '.join(f'{name} {rows:,}' for name, rows in of_kernel.items())}"
    if not figure.is_printed:
        return [] if lines[0] == counted else [f"{title}: {lines[0]} for {counted}"]
    counts = lines[-1]
    shown = figure.rows[:_MOST_ROWS]
    if len(figure.rows) > _MOST_ROWS:
        counted = f"{_MOST_ROWS} of {counted}; --rows N prints more"
    wrong = [] if counts == counted else [f"{title}: {counts} for {counted}"]
    header, *printed = [re.split(r"  +", line.strip()) for line in lines[:-1]]
    if header != ["launch", "kernel", "block", "warp", "lane", *figure.columns]:
        wrong.append(f"{title}: columns {header}")
    for row, texts in zip(shown, printed, strict=False):
        if len(row) != len(texts) or not all(map(_same, map(number, texts), row)):
            wrong.append(f"{title}: {texts} for {row}")
    return wrong if len(printed) == len(shown) else [*wrong, f"{title}: {len(printed)} rows for {len(shown)}"]


def _of_map(title: str, figure: Figure, found: dict[str, list[str]]) -> list[str]:
    by_kernel: dict[str, list[Sample]] = defaultdict(list)
    for sample in figure.samples:
        by_kernel[sample[0]].append(sample)
    if not by_kernel:
        is_right = found.keys() == {title} and _is_nothing(found[title])
        return [] if is_right else [f"{title}: {found}, and nothing was to be saved"]
    is_keyed = figure.samples[0][1] is not None or figure.function in ("hist", "lhist")
    if not is_keyed:
        numbers = {name: figure.combined([value for *_, value in samples]) for name, samples in by_kernel.items()}
        if len(numbers) > 1:
            numbers[_TOTALS[figure.function]] = figure.combined([value for *_, value in figure.samples])
        return _of_lines(title, numbers, found.get(title), len(numbers), near=figure.near)
    wrong = []
    parts = {f"{title}, {name}": samples for name, samples in by_kernel.items()}
    if len(parts) > 1:
        parts[f"{title}, all kernels"] = list(figure.samples)
    for name in found.keys() - parts.keys():
        wrong.append(f"{name}: printed, and nothing was to be saved")
    for name, samples in parts.items():
        values: dict[Any, list[Any]] = defaultdict(list)
        for _, key, value in samples:
            values[figure.bucket(value) if figure.function in ("hist", "lhist") else key].append(value)
        if figure.function in ("hist", "lhist"):
            numbers = {key: len(all_) for key, all_ in values.items()}
            wrong += _of_lines(name, numbers, [line.rstrip("# ") for line in found.get(name, [])], len(numbers))
        else:
            numbers = {key: figure.combined(all_) for key, all_ in values.items()}
            wrong += _of_lines(
                name, numbers, found.get(name), figure.most, least_first=figure.function == "min", near=figure.near
            )
    return wrong


def _of_lines(
    title: str, numbers: dict[Any, Any], lines: list[str] | None, most: int, *, least_first: bool = False,
    near: float = 0,
) -> list[str]:
    """What is wrong with lines of a name or a key, and a number. most: how many of them are printed."""
    if lines is None:
        return [f"{title} is not printed"]
    lines = list(lines)
    wrong = []
    if len(numbers) > most:
        more = lines.pop()
        rest = len(numbers) - most
        if more != f"and {rest:,} key{'s' if rest > 1 else ''} more":
            wrong.append(f"{title}: {more} for {rest}")
    printed: dict[Any, Any] = {}
    for line in lines:
        key, _, value = line.strip().rpartition("  ")
        printed[key.strip() if key.strip() in numbers else number(key.strip())] = number(value)
    for key, value in printed.items():
        if key not in numbers or not _same(value, numbers[key], near):
            wrong.append(f"{title}: {key}: {value} for {numbers.get(key)}")
    shown = sorted(numbers.values(), reverse=not least_first)[:most]
    largest = sorted(printed.values(), reverse=not least_first)
    if len(printed) != len(shown) or not all(map(_same, largest, shown, [near] * len(shown))):
        missing = sorted(map(str, numbers.keys() - printed.keys()))
        wrong.append(f"{title}: {len(printed)} numbers, not the {len(shown)} that are largest; missing {missing[:5]}")
    return wrong
