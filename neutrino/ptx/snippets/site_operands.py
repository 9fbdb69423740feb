"""``OUT``, ``IN1``, ``ADDR`` and the other helpers of snippets: what each is, and at which tracepoints it exists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.model import Pattern, Subject
from neutrino.probing.written import WrittenProbe
from neutrino.ptx.isa.opcodes import OPCODES, Measure, Opcode, Role, find, in_class

_WITH_ELEMENTS = ("OUT", *(f"IN{number}" for number in range(1, 10)))
_WITHOUT = ("ADDR", "BYTES", "OPS", "PRED", "LANES", "SITE")
_ELEMENT = r"(?:\.(?P<element>[xyzw]|\d{1,3}))?"

HELPERS = (*_WITH_ELEMENTS, *_WITHOUT)
"""Their names."""

HELPER = re.compile(rf"(?P<name>{'|'.join(_WITH_ELEMENTS)}){_ELEMENT}|{'|'.join(_WITHOUT)}", re.ASCII)
"""A helper as a whole operand; name and element of those that have elements."""

HELPER_TYPES = {"ADDR": "u64", "BYTES": "u64", "OPS": "u64", "PRED": "pred", "LANES": "b32", "SITE": "u32"}
"""The types of those that have one whatever the instruction."""

_MOST_ELEMENTS = 128
_BYTES = frozenset({Measure.ACCESS, Measure.COPY, Measure.MATRIX, Measure.FRAGMENT})
_OPERATIONS = frozenset({Measure.WARP, Measure.WARPGROUP, Measure.DESCRIPTOR})
_NO_OPERANDS = {
    Subject.KERNEL: ("'kernel'", "a kernel has no operands; probe an instruction"),
    Subject.FUNCTION: ("a function", "a function has no operands; probe an instruction, such as 'ld.global func:NAME'"),
    Subject.LINE: ("a source line", "a line has no operands; probe an instruction, such as 'ld.global file.cu:42'"),
}


@dataclass(frozen=True)
class Side:
    """Where a snippet goes."""

    probe: Probe | WrittenProbe
    after: bool


def misplaced(word: str, side: Side) -> tuple[str, str, str] | None:
    """Why a helper has no value on this side of the probe's sites: code, message, hint; None if it may have one."""
    match = HELPER.fullmatch(word)
    if match is None:
        return "not-an-operand", f"'{word}' is no operand", "the helpers are " + ", ".join(HELPERS)
    element = match["element"]
    if element and element.isdigit() and int(element) >= _MOST_ELEMENTS:
        return "operand-absent", f"no operand has an element {element}", f"they count from 0 to {_MOST_ELEMENTS - 1}"
    for pattern in side.probe.tracepoint.patterns:
        if word in {"LANES", "SITE"} and pattern.subject is Subject.LINE:
            continue
        if not pattern.has_operands:
            where, hint = _NO_OPERANDS[pattern.subject]
            return "operand-without-instruction", f"{word} at {where}", hint
    if match["name"] == "OUT" and not side.after:
        return "out-in-before", f"{word} in 'before'", "the result is there in 'after' only"
    for pattern in side.probe.tracepoint.patterns:
        fault = _lacked(pattern, match["name"] or word, word)
        if fault is not None:
            return fault
    return None


def possible(pattern: Pattern) -> Sequence[Opcode]:
    """The rows of the table of opcodes that an instruction found by the pattern may have, the nearest first.

    Rows that it cannot have may be among them, where modifiers exclude each other.
    """
    if pattern.subject is Subject.CLASS:
        return tuple(in_class(pattern.group))
    if pattern.subject is not Subject.OPCODE:
        return OPCODES
    plain = find(pattern.opcode)
    rows = [row for row in OPCODES if pattern.opcode[0] in row.name[0]]
    if plain is not None:
        rows = [plain, *(row for row in rows if len(row.name) > len(plain.name))]
    excluded = set(pattern.without)
    return [row for row in rows if not any(excluded.issuperset(parts) for parts in row.name)]


def _lacked(pattern: Pattern, name: str, word: str) -> tuple[str, str, str] | None:
    """The fault where no instruction that the pattern finds has the operand."""
    faults = []
    for row in possible(pattern):
        fault = _lacks(row, name, word)
        if fault is None:
            return None
        faults.append(fault)
    return faults[0] if faults else None


def _lacks(row: Opcode, name: str, word: str) -> tuple[str, str, str] | None:
    absent = "operand-absent"
    if name == "OUT" and row.asynchronous:
        hint = f"the result of {row.text} is not there yet when the next instruction runs"
        return "out-asynchronous", f"{word} of an asynchronous instruction", hint
    if name == "OUT" and not row.destinations:
        return absent, f"{row.text} has no {word}", "it writes no register"
    if name.startswith("IN") and not row.variadic and int(name[2:]) > len(row.operands) - row.destinations:
        inputs = len(row.operands) - row.destinations
        return absent, f"{row.text} has no {name}", f"it has {inputs or 'no'} input{'s' if inputs != 1 else ''}"
    if name.startswith("IN") and word != name and not row.variadic:
        role = row.operands[row.destinations + int(name[2:]) - 1]
        if role is Role.ADDRESS:
            return absent, f"{row.text} has no {word}", f"{name} is its address, which has no elements"
    if name == "ADDR" and not {Role.ADDRESS, Role.OBJECT}.intersection(row.operands):
        return absent, f"{row.text} has no {name}", "it accesses no memory"
    if name == "BYTES" and row.measure not in _BYTES and Role.SIZE not in row.operands:
        return absent, f"{row.text} has no {name}", "how many bytes it accesses does not stand in it"
    if name == "OPS" and row.measure not in _OPERATIONS:
        return absent, f"{row.text} has no {name}", "instructions of the class tensor have it"
    return None
