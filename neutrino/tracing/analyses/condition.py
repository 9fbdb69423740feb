"""Conditions on figures of findings, as ``--fail-if`` takes them: Python's syntax, held against an allow-list.

Nothing is evaluated as Python: the text is parsed, and its few kinds of nodes are computed here.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neutrino.errors import NeutrinoError
from neutrino.tracing.analyses.finding import Finding, State
from neutrino.tracing.analyses.registry import ANALYSES
from neutrino.tracing.analyses.run import Findings
from neutrino.tracing.coverage import Coverage

Value = int | float | str | bool
MOST_CHARACTERS = 1000
_MOST_NESTED = 50
_ALLOWED = "names of figures, numbers, texts, < <= > >= == !=, and, or, not, + - * / and parentheses"
_OF_TRACE = {
    "coverage": "share of the launches that was probed, 0 to 1",
    "launches": "launches of the process that were chosen",
    "issues": "findings of the trace that are issues",
    "minors": "findings of the trace that are minor",
}
"""Names that are of the whole trace."""
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


@dataclass(frozen=True)
class _Values:
    """What a part of a condition can be. words: of a text, () for any; None for a number, from least to most."""

    words: tuple[str, ...] | None = None
    least: float = -math.inf
    most: float = math.inf


_TRUTH = _Values(None, 0, 1)


class ConditionError(NeutrinoError):
    """A condition that cannot be read, or that a trace cannot answer."""


@dataclass(frozen=True)
class Hit:
    """Where a condition holds. name: the kernel's, "" where it is of the whole trace. values: of its names."""

    name: str
    values: dict[str, Value]


@dataclass(frozen=True)
class Condition:
    """A condition that has been read. names: those in it, as ``analysis.figure`` or of the trace."""

    text: str
    names: tuple[str, ...]
    _tree: ast.expr

    def hits(self, coverage: Coverage, findings: Findings) -> list[Hit]:
        """Return the kernels for which the condition holds; one without a name if it has names of the trace alone.

        Raises ConditionError if the trace has no kernel with all figures, or if a comparison makes no sense.
        """
        if not coverage.is_known and not {"coverage", "launches"}.isdisjoint(self.names):
            raise ConditionError(f"{self.text}: how many launches there were is not known: counts are missing")
        known: dict[str, Value] = {
            "coverage": coverage.share, "launches": coverage.launches,
            "issues": len(findings.of_state(State.ISSUE)), "minors": len(findings.of_state(State.MINOR)),
        }  # fmt: skip
        if all(name in _OF_TRACE for name in self.names):
            return self._held("", known)
        kernels: dict[int, list[Finding]] = {}
        for finding in findings.found:
            kernels.setdefault(finding.kernel, []).append(finding)
        hits, tried = [], False
        for own in kernels.values():
            figures = known | {
                f"{finding.analysis}.{figure.kind.name}": figure.value for finding in own for figure in finding.figures
            } | {
                f"{finding.analysis}.state": finding.state.value for finding in own if finding.thresholds
            }  # fmt: skip
            if all(name in figures for name in self.names):
                tried = True
                hits += self._held(own[0].name, figures)
        if not tried:
            raise ConditionError(f"{self.text}: {self._lacking(findings)}")
        return hits

    def _held(self, name: str, figures: Mapping[str, Value]) -> list[Hit]:
        """Return the hit of a kernel; none if the condition does not hold."""
        try:
            holds = bool(_compute(self._tree, figures))
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            raise ConditionError(f"{self.text}: {error}") from error
        return [Hit(name, {used: figures[used] for used in self.names})] if holds else []

    def _lacking(self, findings: Findings) -> str:
        """Return what the trace lacks to answer."""
        for name in self.names:
            analysis, _, figure = name.partition(".")
            if analysis in findings.not_run:
                probes = " ".join(f"-p {probe}" for probe in findings.not_run[analysis])
                return f"the trace has nothing for {name}: record it with {probes}"
            has_it = any(found.analysis == analysis and found.value(figure) is not None for found in findings.found)
            if figure == "state" and any(
                found.analysis == analysis and not found.thresholds for found in findings.found
            ):
                return f"{analysis} is not judged in this trace: its times are no durations"
            if figure not in ("", "state") and not has_it:
                return f"no finding of this trace has {name}"
        return f"no kernel has all of {', '.join(self.names)}"


def known_names() -> dict[str, str]:
    """Return all names that a condition may have, and what they are."""
    names = {
        f"{analysis.name}.{figure.name}": figure.meaning + (f" ({figure.unit})" if figure.unit else "")
        for analysis in ANALYSES.values()
        for figure in analysis.figures
    }
    states = {f"{name}.state": "'ok', 'minor' or 'issue'" for name in ANALYSES}
    return names | states | _OF_TRACE


def _values_of(name: str) -> _Values:
    """Return what a figure can be. name: as ``known_names`` has it."""
    analysis, _, figure = name.partition(".")
    if not figure:
        return _TRUTH if name == "coverage" else _Values(None, 0)
    if figure == "state":
        return _Values(tuple(state.value for state in State))
    kind = next(kind for kind in ANALYSES[analysis].figures if kind.name == figure)
    return _Values(kind.words, 0, 1 if kind.unit == "share" and kind.is_bounded else math.inf)


def read_condition(text: str) -> Condition:
    """Read a condition. A figure that only one analysis has may stand without the analysis's name.

    Raises ConditionError, which lists the names where one is not known.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConditionError(f"a condition has more than {MOST_CHARACTERS:,} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConditionError(f"{text}: not a condition: {reason}; write it as in nan_count > 0") from error
    names: dict[str, None] = {}
    _check_truth(tree, text, _check(tree, text, names, 0))
    if not names:
        raise ConditionError(f"{text}: there is no figure in it; {_listed(known_names())}")
    return Condition(text, tuple(names), tree)


def _check(node: ast.expr, text: str, names: dict[str, None], depth: int) -> _Values:
    """Hold a part of a condition against the allow-list, and collect its names; return what it can be.

    Raises ConditionError, also for a comparison that no trace could decide.
    """
    if depth > _MOST_NESTED:
        raise ConditionError(f"{text}: nested more than {_MOST_NESTED} deep")
    if (name := _name(node)) is not None:
        whole = _resolved(name, text)
        names[whole] = None
        return _values_of(whole)
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str)):
        value = node.value
        return _Values((value,)) if isinstance(value, str) else _Values(None, value, value)
    if isinstance(node, ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        for part in node.values if isinstance(node, ast.BoolOp) else [node.operand]:
            _check_truth(part, text, _check(part, text, names, depth + 1))
        return _TRUTH
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number_of(node.operand, text, names, depth)
        return _Values(None, -inner.most, -inner.least)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        for part in (node.left, node.right):
            _number_of(part, text, names, depth)
        return _Values()
    if isinstance(node, ast.Compare) and all(type(sign) in _COMPARISONS for sign in node.ops):
        parts = [node.left, *node.comparators]
        found = [_check(part, text, names, depth + 1) for part in parts]
        for number, sign in enumerate(node.ops):
            both = parts[number : number + 2]
            if not all(isinstance(part, ast.Constant) for part in both):
                pair = ast.unparse(ast.Compare(both[0], [sign], both[1:]))
                _check_pair(found[number], type(sign), found[number + 1], f"{text}: {pair[:80]}")
        return _TRUTH
    raise ConditionError(f"{text}: {ast.unparse(node)[:80]!r} is not allowed; there are {_ALLOWED}")


def _check_truth(node: ast.expr, text: str, values: _Values) -> None:
    """Raise ConditionError for a text in place of something that holds or does not."""
    if values.words is not None:
        raise ConditionError(f"{text}: {ast.unparse(node)[:80]} is a text, and holds always: compare it by == or !=")


def _number_of(node: ast.expr, text: str, names: dict[str, None], depth: int) -> _Values:
    """Check a part that must be a number. Raises ConditionError for a text."""
    values = _check(node, text, names, depth + 1)
    if values.words is not None:
        raise ConditionError(f"{text}: {ast.unparse(node)[:80]} is a text and no number")
    return values


def _check_pair(left: _Values, sign: type[ast.cmpop], right: _Values, where: str) -> None:
    """Raise ConditionError for a comparison of a text with a number, or of which it is known how it ends.

    where: the condition and the comparison in it.
    """
    if left.words is not None and right.words is not None:
        if sign not in (ast.Eq, ast.NotEq):
            raise ConditionError(f"{where}: texts have no order; compare them by == or !=")
        _check_words(left.words, right.words, where)
        return
    if left.words is not None or right.words is not None:
        raise ConditionError(f"{where}: a text and a number cannot be compared")
    if sign in (ast.Gt, ast.GtE):
        left, right, sign = right, left, ast.Lt if sign is ast.Gt else ast.LtE
    apart = left.most < right.least or left.least > right.most
    if sign in (ast.Eq, ast.NotEq):
        same = left.least == left.most == right.least == right.most
        always, never = (same, apart) if sign is ast.Eq else (apart, same)
    elif sign is ast.Lt:
        always, never = left.most < right.least, left.least >= right.most
    else:
        always, never = left.most <= right.least, left.least > right.most
    if always or never:
        is_share = 1 in (left.most, right.most) and 0 in (left.least, right.least)
        scale = "shares are from 0 to 1" if is_share else "figures are 0 or more"
        raise ConditionError(f"{where} is {'always' if always else 'never'} true: {scale}")


def _check_words(left: tuple[str, ...], right: tuple[str, ...], where: str) -> None:
    """Raise ConditionError if no text is among both, which names those that are. (): any text."""
    if not left or not right or set(left) & set(right):
        return
    wrong, known = (left, right) if len(left) == 1 else (right, left)
    close = difflib.get_close_matches(wrong[0].lower(), known, 1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ConditionError(f"{where}: it is never {wrong[0]!r}{hint}; there are {', '.join(map(repr, known))}")


def _name(node: ast.expr) -> str | None:
    """Return a name, ``figure`` or ``analysis.figure``; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _resolved(name: str, text: str) -> str:
    """Return a name with its analysis. Raises ConditionError for one that is not known or that several have."""
    known = known_names()
    if name in known:
        return name
    found = [whole for whole in known if whole.partition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConditionError(f"{text}: several analyses have {name!r}: {', '.join(found)}")
    close = difflib.get_close_matches(name, [*known, *(whole.partition(".")[2] for whole in known)], 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConditionError(f"{text}: no figure is called {name!r}{hint}\n{_listed(known)}")


def _listed(known: Mapping[str, str]) -> str:
    """Return the names that there are, in lines."""
    rows = [f"  {name}: {meaning}" for name, meaning in known.items() if not name.endswith(".state")]
    return "\n".join(["there are", *rows, "  ANALYSIS.state: 'ok', 'minor' or 'issue'"])


def _compute(node: ast.expr, figures: Mapping[str, Value]) -> Value:
    """Compute a part of a condition that has been checked. Raises TypeError for what cannot be compared."""
    if (name := _name(node)) is not None:
        return figures[name if name in figures else _resolved(name, name)]
    if isinstance(node, ast.Constant):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.BoolOp):
        values = (bool(_compute(part, figures)) for part in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp):
        value = _compute(node.operand, figures)
        return not value if isinstance(node.op, ast.Not) else -_number(value)
    if isinstance(node, ast.BinOp):
        left, right = (_number(_compute(part, figures)) for part in (node.left, node.right))
        result: float = _ARITHMETIC[type(node.op)](left, right)
        return result
    assert isinstance(node, ast.Compare)
    value = _compute(node.left, figures)
    for sign, part in zip(node.ops, node.comparators, strict=True):
        other = _compute(part, figures)
        if isinstance(value, str) != isinstance(other, str):
            raise TypeError(f"{value!r} and {other!r} cannot be compared")
        if not _COMPARISONS[type(sign)](value, other):
            return False
        value = other
    return True


def _number(value: Value) -> int | float:
    """Return a number. Raises TypeError for a text."""
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    return value
