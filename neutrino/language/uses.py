"""How one-liners use maps: the functions that make them, and what is shown of each at the end of a run."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_KEYS, MOST_KEYS, MOST_ROOM = 256, 512, 16384
"""Keys that a map has room for: at least; where each has a number; at most, where the greatest are asked for."""
MOST_COLUMNS = 32
"""Values that a row can have."""
_MOST_WIDTH = 100
"""Characters of a value in a text, at most, as a format asks for them."""
_MOST_TEXT = 400
"""Characters of the text of ``print``."""
_FORMATS = {
    int: ("an integer", "integers have {:d}, {:#x}, {:b} and {:,}"),
    float: ("a fraction", "fractions have {:.3f} and {:e}"), str: ("a place", "places have {} and {:>20}"),
}  # fmt: skip
_C_FORMAT = re.compile(r"%[-+ #0]*\d*(?:ll|l|h)?([diuoxXfFeEgGps])")


@dataclass(frozen=True)
class Function:
    """A function that makes a map. arguments: in words. table: the keys of the map's table, from the arguments.

    field: the name of its one field, "" without a value. constants: names of the arguments after the value. keep: what
    a map with keys keeps of the values; None for a function that has none.
    """

    arguments: str
    table: Callable[[Mapping[str, Any]], dict[str, Any]]
    field: str = "value"
    constants: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None


FUNCTIONS: Mapping[str, Function] = {
    "count": Function("", lambda _: {"type": "sum"}, field="", keep=()),
    "sum": Function("value", lambda _: {"type": "sum"}, field="sum", keep=("sum",)),
    "min": Function("value", lambda _: {"type": "min"}, field="min", keep=("min",)),
    "max": Function("value", lambda _: {"type": "max"}, field="max", keep=("max",)),
    "avg": Function("value", lambda _: {"type": "avg"}, keep=("sum",)),
    "hist": Function("value", lambda _: {"type": "histogram", "scale": "log2"}),
    "lhist": Function(
        "value, low, high, step", lambda given: {"type": "histogram", "scale": "linear", **given},
        constants=("low", "high", "step"),
    ),
    # Kept as a hash, so that the results of launches and of kernels can be added up.
    "topk": Function("value, n", lambda given: {"type": "hash", "room": _room(given["n"])}, "key", ("n",)),
}  # fmt: skip
"""Functions that make maps of one number, or of one for each key or bucket."""
SAVE, PRINT = "save", "print"
ROWS: Mapping[str, str] = {SAVE: "value, …", PRINT: '"text with {}", value, …'}
"""Functions that keep rows → their arguments in words."""
ALL_FUNCTIONS = (*FUNCTIONS, *ROWS)


def _room(most: int) -> int:
    """Return how many keys a map must be able to hold so that the ``most`` frequent ones, which are printed, are right.
    """
    return max(_KEYS, min(4 * most, MOST_ROOM))


@dataclass(frozen=True)
class Value:
    """A value as it is shown: of a key or number, or a column of rows.

    field: of the record in a map of rows. title: as it was written. is_address: in hex. is_site: the number of an
    instruction, which is shown as its place. is_line: as its source line alone.
    """

    field: str = ""
    title: str = ""
    is_address: bool = False
    is_site: bool = False
    is_line: bool = False


@dataclass(frozen=True)
class Use:
    """How a map is used. function: the name. most: how many keys are printed; 0 for all.

    value: the key, or the number that is printed. columns: of rows. text: of ``print``, with a ``{}`` for each column;
    None to print a table.
    """

    function: str
    most: int = 0
    value: Value = Value()
    columns: tuple[Value, ...] = ()
    text: str | None = None


def field_name(written: str, others: Iterable[str]) -> str:
    """Choose the name of the field that keeps a value: the value as the user wrote it, ``value`` for what is computed.

    others: names that are taken; a number is appended to such a one.
    """
    name = written.lower().replace(".", "_")
    if not re.fullmatch(r"[a-z_]\w{0,59}", name, re.ASCII):
        name = "value"
    taken, number, candidate = set(others), 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


class TextError(Exception):
    """What is wrong with the text of ``print``. hint: how to mend it."""

    def __init__(self, message: str, hint: str = "") -> None:
        """Make the error of an unusable text of ``print``. message: what is wrong. hint: how to mend it."""
        super().__init__(message)
        self.hint = hint


def checked_text(text: str, examples: Sequence[float | str]) -> str:
    """Return the text of ``print`` as ``str.format`` takes it, without a newline at its end. Raises TextError.

    examples: for each value a fraction, an integer or, if it is shown as a place, a text.
    """
    text = text.removesuffix("\n")
    if len(text) > _MOST_TEXT:
        raise TextError(f"a text of {len(text)} characters", f"it may have {_MOST_TEXT}")
    try:
        places = [part[1:] for part in string.Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise TextError(f"{error} in the text", "write {} for a value, and {{ or }} for a brace") from None
    c_format = _C_FORMAT.search(text)
    if len(places) != len(examples):
        values = "1 value" if len(examples) == 1 else f"{len(examples)} values"
        hint = "write {} for each value, as in print('{:#x} has {}', ADDR, BYTES)"
        if c_format and not places:
            hint = f"write {{}} instead of {c_format[0]}; {{:#x}} is hex, {{:.2f}} has two decimals"
        raise TextError(f"{values} for {len(places)} places {{}} in the text", hint)
    for (name, spec, conversion), example in zip(places, examples, strict=True):
        if name or conversion:
            raise TextError(f"{{{name}{'!' + conversion if conversion else ''}}} in the text", "write {} or {:#x}")
        if "{" in (spec or ""):
            raise TextError("{ in a format", "write its width as a number")
        if any(len(digits) > 3 or int(digits) > _MOST_WIDTH for digits in re.findall(r"\d+", spec or "")):
            raise TextError(f"a width in {{:{spec}}}", f"it may be {_MOST_WIDTH}")
        try:
            if (spec or "").endswith("c"):
                # Not every number is a character.
                raise ValueError(spec)
            format(example, spec or "")
        except ValueError:
            kind, hint = _FORMATS[type(example)]
            raise TextError(f"{{:{spec}}} of {kind}", hint) from None
    return text
