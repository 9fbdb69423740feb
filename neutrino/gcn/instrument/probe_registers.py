"""Which registers and saves probes' statements name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from neutrino.gcn.instrument.remembered import remembered
from neutrino.ir.operands import Register, SiteOperand
from neutrino.ir.statements import Collective, Shuffle
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.structured import Save, Statement

_INNER = ("then", "otherwise", "body", "test")


@remembered
def names_in(node: object) -> frozenset[str]:
    """Return the names of the registers in a statement, or in several."""
    return frozenset(_names_in(node))


def _names_in(node: object) -> set[str]:
    """Return them, found by going through the statement."""
    if isinstance(node, Register):
        return {node.name}
    if isinstance(node, tuple):
        return set().union(*map(_names_in, node))
    if isinstance(node, Save):
        return _names_in(node.operands) | _names_in(node.guard)
    return set().union(*(_names_in(value) for value in _parts(node)))


def is_of_hardware(operand: SiteOperand) -> bool:
    """Return whether a value is one that a hand-written instruction reads from the hardware, not the site's."""
    return operand.name.startswith("s_")


@remembered
def operands_in(node: object) -> tuple[SiteOperand, ...]:
    """Return the values of the instruction at a site in a statement, or in several, in their order."""
    return tuple(_operands_in(node))


def _operands_in(node: object) -> list[SiteOperand]:
    """Return them, found by going through the statement."""
    if isinstance(node, SiteOperand):
        return [] if is_of_hardware(node) else [node]
    parts = node if isinstance(node, tuple) else node.operands if isinstance(node, Save) else _parts(node)
    return list(dict.fromkeys(operand for part in parts for operand in _operands_in(part)))


def _parts(node: object) -> Iterator[object]:
    """Return the members of a statement in which other statements or operands may be."""
    for name in getattr(node, "__dataclass_fields__", ()):
        if name not in ("span", "map"):
            yield getattr(node, name)


def all_in(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield statements, and those inside them."""
    for statement in statements:
        yield statement
        for name in _INNER:
            inner = getattr(statement, name, ())
            if isinstance(inner, tuple):
                yield from all_in(inner)


def saves_in(statements: Iterable[Statement]) -> Iterator[Save]:
    """Yield the saves among statements, and in those inside them."""
    return (statement for statement in all_in(statements) if isinstance(statement, Save))


@remembered
def exchanges_values(snippet: Snippet) -> bool:
    """Return whether lanes read what others have."""
    return any(isinstance(statement, (Collective, Shuffle)) for statement in all_in(snippet.statements))


def shared_in(snippet: Snippet) -> frozenset[str]:
    """Return the names of the registers in a snippet; local ones too."""
    return names_in(snippet.statements)


@remembered
def written_in(snippet: Snippet) -> frozenset[str]:
    """Return the names of the registers that a snippet assigns."""
    found = set()
    for statement in all_in(snippet.statements):
        destination = getattr(statement, "destination", None) or getattr(statement, "variable", None)
        if isinstance(destination, Register):
            found.add(destination.name)
    return frozenset(found)
