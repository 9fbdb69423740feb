"""The instructions of PTX for people: each row of `ptx/isa/opcodes.py` in words, as a command prints it."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.probing.model import CLASSES
from neutrino.ptx.isa.opcodes import OPCODES, Measure, Opcode, Role, find

HEAD = ("instruction", "since", "classes", "OUT", "inputs", "ADDR", "BYTES", "OPS")
LEGEND = """\
since: the first PTX version and architecture. OUT: yes, pair (the first of two), later (asynchronous: refused).
inputs, in the order of IN1, IN2 …: v a value, a an address (ADDR, if that column says so), p a predicate, c a
constant, n a number of bytes, o an object and coordinates, d an instruction descriptor, l a label or function;
? optional, * any number."""

_LETTERS = {
    Role.SOURCE: "v", Role.PREDICATE: "p", Role.CONSTANT: "c", Role.SIZE: "n", Role.DESCRIPTOR: "d", Role.ADDRESS: "a",
    Role.OTHER_ADDRESS: "a", Role.OBJECT: "o", Role.LABEL: "l",
}  # fmt: skip
_BYTES = {
    Measure.ACCESS: "type × vector",
    Measure.COPY: "those read",
    Measure.MATRIX: "matrix / 32",
    Measure.FRAGMENT: "4 × registers",
}
_OPERATIONS = {
    Measure.WARP: "2·m·n·k / 32",
    Measure.WARPGROUP: "2·m·n·k / 128",
    Measure.DESCRIPTOR: "2·m·n·k by the descriptor",
}


def rows(word: str | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the instructions that a word names, as cells under ``HEAD``, in the manual's order.

    word: a class, an instruction with any modifiers (``ld.global.v4.f32`` is a ``ld``), or the beginning of names
    (``mbarrier``, ``cp.async``); None for all instructions. Yields nothing for a word that names none.
    """
    if word is None or word in CLASSES:
        chosen = [opcode for opcode in OPCODES if word is None or word in opcode.classes]
    else:
        parts = tuple(word.split("."))
        exact = find(parts)
        chosen = [opcode for opcode in OPCODES if opcode is exact or _begins(opcode, parts)]
    yield from map(_cells, chosen)


def words() -> Iterator[str]:
    """Yield classes and names: what a misspelt word may have meant."""
    yield from CLASSES
    yield from (opcode.text for opcode in OPCODES)


def _begins(opcode: Opcode, parts: tuple[str, ...]) -> bool:
    """Whether the name of a row begins with these parts."""
    return len(parts) <= len(opcode.name) and all(
        part in alternatives for part, alternatives in zip(parts, opcode.name, strict=False)
    )


def _cells(opcode: Opcode) -> tuple[str, ...]:
    inputs = opcode.syntax.split()[opcode.destinations :]
    letters = (_LETTERS[Role(word.rstrip("?*"))] + word[len(word.rstrip("?*")) :] for word in inputs)
    result = ""
    if opcode.destinations:
        result = "pair" if opcode.operands[0] is Role.DESTINATION_PAIR else "yes"
        result = "later" if opcode.asynchronous else result
    size = "an operand" if Role.SIZE in opcode.operands else _BYTES.get(opcode.measure, "") if opcode.measure else ""
    return (
        opcode.text,
        f"{opcode.version[0]}.{opcode.version[1]} {opcode.architecture}",
        ", ".join(group for group in CLASSES if group in opcode.classes),
        result,
        " ".join(letters),
        "yes" if Role.ADDRESS in opcode.operands else "",
        size,
        _OPERATIONS.get(opcode.measure, "") if opcode.measure else "",
    )
