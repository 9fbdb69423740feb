"""Expressions over the fields of records: Python's syntax and Python's results, computed on NumPy arrays.

The text is parsed, held against an allow-list and never evaluated as Python. Integers are exact: where operands and
result do not fit one type of NumPy, they are Python's integers.
"""

from __future__ import annotations

import ast
import difflib
import keyword
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.errors import ExpressionError
from neutrino.late_dataclass import dataclass

Array = npt.NDArray[Any]
Number = int | float
MOST_CHARACTERS = 2000
"""Of an expression: Python's parser takes deeper nesting than it can leave again."""
_MOST_NESTED = 100
_MOST_BITS = 128
"""Of an integer, but for its sign."""
_EXACT_IN_F64 = 1 << 53
_OBJECTS = np.dtype(object)
"""The type of Python's integers in an array."""
_ALLOWED = "fields, numbers, < <= > >= == !=, and, or, not, + - * // % & | ^ << >> ~ and parentheses"
_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add), ast.Sub: ("-", operator.sub), ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv), ast.Mod: ("%", operator.mod), ast.BitAnd: ("&", operator.and_),
    ast.BitOr: ("|", operator.or_), ast.BitXor: ("^", operator.xor), ast.LShift: ("<<", operator.lshift),
    ast.RShift: (">>", operator.rshift),
}  # fmt: skip
_OF_INTEGERS = frozenset(("&", "|", "^", "<<", ">>"))
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_REFUSED: dict[type[ast.AST], str] = {
    ast.Call: "calls are not allowed", ast.Attribute: "attributes are not allowed",
    ast.Subscript: "indices are not allowed", ast.Pow: "** is not allowed",
    ast.Div: "/ is not allowed; // divides and rounds down", ast.IfExp: "if … else is not allowed",
    ast.Lambda: "functions are not allowed", ast.NamedExpr: "assignments are not allowed",
    ast.Is: "is compares no numbers", ast.IsNot: "is compares no numbers", ast.In: "in is not allowed",
    ast.NotIn: "in is not allowed", ast.JoinedStr: "texts are not allowed",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class _Node:
    """A part of an expression. at: where it begins in the text. is_float: fractions; otherwise integers.

    is_logic: the result of ``and`` or ``or``, which is a truth value alone.
    """

    at: int
    is_float: bool = False
    is_logic: bool = False


@dataclass(frozen=True)
class _Constant(_Node):
    value: Number = 0


@dataclass(frozen=True)
class _Name(_Node):
    name: str = ""


@dataclass(frozen=True)
class _Unary(_Node):
    """sign: ``-``, ``+``, ``~`` or ``not``."""

    sign: str = ""
    operand: _Node = _Node(0)


@dataclass(frozen=True)
class _Binary(_Node):
    sign: str = ""
    operate: Callable[[Any, Any], Any] = operator.add
    left: _Node = _Node(0)
    right: _Node = _Node(0)


@dataclass(frozen=True)
class _Comparison(_Node):
    """first, and what it is compared with, one after the other, as in ``a < b <= c``."""

    first: _Node = _Node(0)
    others: tuple[tuple[Callable[[Any, Any], Any], _Node], ...] = ()


@dataclass(frozen=True)
class _Logic(_Node):
    is_and: bool = True
    parts: tuple[_Node, ...] = ()


@dataclass(frozen=True)
class Expression:
    """An expression over columns of numbers, such as ``elapsed > 10000 and start + elapsed < 2**63``'s parts.

    text: as it was written. names: of the columns that it needs. is_float: its values are fractions, else integers.
    """

    text: str
    names: frozenset[str]
    is_float: bool
    _root: _Node

    @classmethod
    def read(cls, text: str, columns: Mapping[str, bool]) -> Expression:
        """Parse an expression. columns: the names that it may have, and whether each is a floating-point column.

        Raises ExpressionError, with the place, for whatever is not in the allow-list, for other names, and for a text
        that is too long or nested too deeply.
        """
        if len(text) > MOST_CHARACTERS:
            raise ExpressionError(text, 0, f"longer than {MOST_CHARACTERS:,} characters")
        reader = _Reader(text, columns)
        root = reader.read()
        return cls(text, frozenset(reader.names), root.is_float, root)

    def values(self, columns: Mapping[str, Array], count: int) -> Array:
        """Return the value for each record: int64, uint64, Python's integers as objects, float64 or bool, ``[record]``.

        columns: those of ``names``, 1-D, of one length, integers or floating point as in those of ``read``. count: the
        length. Raises ExpressionError where Python would raise, as for a division by zero, and for integers that may
        need more than 128 bits. As in Python, what follows ``and``, ``or`` or a comparison in a chain is only computed
        for records whose result depends on it.
        """
        # Fractions have infinities and NaNs in place of warnings.
        with np.errstate(all="ignore"):
            found = _Evaluation(self.text, columns, count).of(self._root)
        return found if isinstance(found, np.ndarray) else _filled(found, count)

    def holds(self, columns: Mapping[str, Array], count: int) -> npt.NDArray[np.bool_]:
        """Return for each record whether the expression is true, that is not zero: bool ``[record]``.

        Parameters and errors are those of ``values``.
        """
        return _truth(self.values(columns, count), count)


def _hint(text: str) -> str:
    """Return how to write in Python what is written in another language; "" if nothing is known."""
    if "&&" in text or "||" in text:
        return "write 'and' and 'or'"
    if re.search(r"(?<![=!<>])=(?!=)", text):
        return "write == to compare"
    if re.search(r"!(?!=)", text):
        return "write 'not'"
    if re.search(r"(?:and|or|not|[-+*/%&|^<>=])\s*$", text):
        return "it ends where a value is missing"
    return ""


class _Reader:
    """Turns a text into nodes."""

    def __init__(self, text: str, columns: Mapping[str, bool]) -> None:
        """Prepare to parse an expression. text: the expression. columns: its names, and whether each is of fractions.
        """
        self._text = text
        self._columns = columns
        self.names: set[str] = set()
        # Line breaks within an expression are blanks. Each character stays in its place.
        self._line = re.sub(r"\s", " ", text)
        self._bytes = self._line.encode("utf-8", "surrogatepass")

    def read(self) -> _Node:
        """Return the node of the whole expression. Raises ExpressionError, with the place, for what is not allowed."""
        # Fields may have names that are words of Python, such as async: other names of their length stand for them.
        line = _WORD.sub(lambda match: self._placeholder(match[0]), self._line)
        begin = len(line) - len(line.lstrip(" "))
        if not line.strip():
            raise ExpressionError(self._text, 0, "an empty expression")
        self._offset = begin
        try:
            with warnings.catch_warnings():
                # Such as for 1and 2.
                warnings.simplefilter("ignore")
                tree = ast.parse(line[begin:], mode="eval")
        except SyntaxError as error:
            # Without a place it is the end, where something is missing.
            at = begin + error.offset - 1 if error.offset else len(self._text)
            message = error.msg.split(" (<")[0]
            hint = "write the number in digits alone, as 10000" if message.startswith("invalid decimal") else ""
            hint = hint or _hint(line[begin:])
            raise ExpressionError(self._text, min(at, len(self._text)), message, hint) from None
        except (ValueError, MemoryError, RecursionError):
            # A character that no text of Python has, or very deep nesting.
            raise ExpressionError(self._text, begin, "cannot be parsed") from None
        return self._node(tree.body, 1)

    def _placeholder(self, word: str) -> str:
        """Return a word of the text, or as many ``_`` for a field whose name is a keyword of Python, such as async."""
        is_field = word in self._columns and keyword.iskeyword(word) and word not in ("and", "or", "not")
        return "_" * len(word) if is_field else word

    def _at(self, node: ast.expr) -> int:
        """Return where a node of Python's tree begins in the text, in characters. Python counts bytes of UTF-8."""
        before = self._bytes[: node.col_offset + self._offset]
        return len(before.decode("utf-8", "surrogatepass"))

    def _fail(self, node: ast.expr, message: str, hint: str = "") -> ExpressionError:
        """Return the error for a part (node) of the expression that cannot be used; the message says why."""
        return ExpressionError(self._text, self._at(node), message, hint)

    def _refuse(self, node: ast.expr, kind: ast.AST) -> ExpressionError:
        """Return the error for a part of the expression that is not in the allow-list.

        kind: what it is, in Python's tree.
        """
        hint = "one value is here: join two, as in block * 32 + warp" if isinstance(kind, ast.Tuple) else ""
        return self._fail(node, _REFUSED.get(type(kind), "this is not allowed"), hint or f"there are {_ALLOWED}")

    def _number(self, tree: ast.expr, depth: int) -> _Node:
        """Return the node of a part whose value must be a number to calculate with.

        depth: how deep it is nested. Raises ExpressionError for ``and`` and ``or``.
        """
        node = self._node(tree, depth)
        if node.is_logic:
            raise self._fail(tree, "and, or: a truth value, which is no number to calculate with")
        return node

    def _node(self, tree: ast.expr, depth: int) -> _Node:
        """Return the node of a part of the expression.

        tree: as Python parsed it. depth: how deep it is nested. Raises ExpressionError for what is not in the
        allow-list.
        """
        if depth > _MOST_NESTED:
            raise self._fail(tree, f"nested more than {_MOST_NESTED} deep")
        at = self._at(tree)
        if isinstance(tree, ast.Constant):
            return self._constant(tree, at)
        if isinstance(tree, ast.Name):
            return self._name(tree, at)
        if isinstance(tree, ast.UnaryOp):
            if isinstance(tree.op, ast.Not):
                return _Unary(at, sign="not", operand=self._node(tree.operand, depth + 1))
            operand = self._number(tree.operand, depth + 1)
            sign = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}[type(tree.op)]
            if sign == "~" and operand.is_float:
                raise self._fail(tree.operand, "~ is for integers, and this has fractions")
            return _Unary(at, operand.is_float, sign=sign, operand=operand)
        if isinstance(tree, ast.BinOp):
            return self._binary(tree, at, depth)
        if isinstance(tree, ast.Compare):
            others = []
            first = self._number(tree.left, depth + 1)
            for kind, other in zip(tree.ops, tree.comparators, strict=True):
                if type(kind) not in _COMPARISONS:
                    raise self._refuse(other, kind)
                others.append((_COMPARISONS[type(kind)], self._number(other, depth + 1)))
            return _Comparison(at, first=first, others=tuple(others))
        if isinstance(tree, ast.BoolOp):
            parts = tuple(self._node(part, depth + 1) for part in tree.values)
            return _Logic(at, is_logic=True, is_and=isinstance(tree.op, ast.And), parts=parts)
        raise self._refuse(tree, tree)

    def _constant(self, tree: ast.Constant, at: int) -> _Node:
        """Return the node of a number.

        at: where it stands. Raises ExpressionError for another constant, or one of too many bits.
        """
        value = tree.value
        if isinstance(value, float):
            return _Constant(at, is_float=True, value=value)
        # A bool is an int, too.
        if type(value) is not int:
            raise self._fail(tree, "not a number", f"there are {_ALLOWED}")
        if value.bit_length() > _MOST_BITS:
            raise self._fail(tree, f"a number of more than {_MOST_BITS} bits")
        return _Constant(at, value=value)

    def _name(self, tree: ast.Name, at: int) -> _Node:
        """Return the node of a column's name.

        at: where it stands. Raises ExpressionError for a name that no column has.
        """
        # From the text, since Python normalizes names and some are placeholders.
        match = _WORD.match(self._line, at)
        name = match[0] if match else self._line[at : at + len(tree.id)]
        if name not in self._columns or len(name) != len(tree.id):
            raise unknown_name(self._text, at, name, self._columns)
        self.names.add(name)
        return _Name(at, self._columns[name], name=name)

    def _binary(self, tree: ast.BinOp, at: int, depth: int) -> _Node:
        """Return the node of an operation on two numbers.

        at: where it begins; depth: how deep it is nested. Raises ExpressionError for an operator that is not allowed.
        """
        if type(tree.op) not in _ARITHMETIC:
            raise self._refuse(tree.right, tree.op)
        sign, operate = _ARITHMETIC[type(tree.op)]
        left, right = self._number(tree.left, depth + 1), self._number(tree.right, depth + 1)
        for side, node in ((tree.left, left), (tree.right, right)):
            if sign in _OF_INTEGERS and node.is_float:
                raise self._fail(side, f"{sign} is for integers, and this has fractions")
        return _Binary(at, left.is_float or right.is_float, sign=sign, operate=operate, left=left, right=right)


def unknown_name(text: str, at: int, name: str, known: Mapping[str, object]) -> ExpressionError:
    """Return the error for a name that no column has. text, at: where it was written. known: the names there are."""
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}?" if close else ""
    return ExpressionError(text, at, f"no field {name!r}; there are {', '.join(known)}", hint)


class _Evaluation:
    """Computes nodes for some records. Values are arrays, or Python's numbers where all records have the same."""

    def __init__(self, text: str, columns: Mapping[str, Array], count: int) -> None:
        """Prepare to evaluate an expression. text: for errors. columns: values by name, of ``count`` records."""
        self._text = text
        self._columns = columns
        self.count = count

    def of(self, node: _Node) -> Array | Number:
        """Evaluate a node of an expression for all records: an array, or one number that all have in common.

        Raises ExpressionError, as for a division by zero.
        """
        if isinstance(node, _Constant):
            return node.value
        if isinstance(node, _Name):
            values = self._columns[node.name]
            return values.astype(np.float64, copy=False) if node.is_float else values
        if isinstance(node, _Unary):
            operand = self.of(node.operand)
            if node.sign == "not":
                return ~_truth(operand, self.count)
            if node.sign == "+":
                return operand if node.is_float else _integers(operand)
            if node.is_float:
                return -operand
            # ~x is -1 - x, and -x is 0 - x, of integers of any size.
            return self._of_integers(node, "-", operator.sub, -1 if node.sign == "~" else 0, operand, node.at)
        if isinstance(node, _Binary):
            left, right = self.of(node.left), self.of(node.right)
            if node.is_float:
                return self._of_fractions(node, left, right)
            return self._of_integers(node, node.sign, node.operate, left, right, node.right.at)
        if isinstance(node, _Comparison):
            return self._compared(node)
        assert isinstance(node, _Logic)
        return self._decided(node)

    def _narrowed(self, chosen: Array) -> _Evaluation:
        """Return an evaluation of the same expression for only some records. chosen: bool, which."""
        return _Evaluation(self._text, _Chosen(self._columns, chosen), int(np.count_nonzero(chosen)))

    def _decided(self, node: _Logic) -> Array:
        """Return ``and`` or ``or`` of the parts of a node, bool for each record; a part is only computed for the
        records that those before it do not decide.
        """
        result = np.full(self.count, node.is_and)
        undecided = np.ones(self.count, bool)
        for number, part in enumerate(node.parts):
            if number and not undecided.any():
                break
            within = self if undecided.all() else self._narrowed(undecided)
            result[undecided] = _truth(within.of(part), within.count)
            undecided = result if node.is_and else ~result
            undecided = undecided.copy()
        return result

    def _compared(self, node: _Comparison) -> Array:
        """Return whether all comparisons of a chain (``a < b <= c``) hold, bool for each record; each is only computed
        for the records for which those before it hold.
        """
        result = np.ones(self.count, bool)
        within, left = self, self.of(node.first)
        for operate, other in node.others:
            right = within.of(other)
            holds = _filled(compare(operate, left, right), within.count)
            result[result] = holds
            if holds.all():
                left = right
                continue
            if not holds.any():
                break
            within, left = within._narrowed(holds), right[holds] if isinstance(right, np.ndarray) else right
        return result

    def _of_fractions(self, node: _Binary, left: Array | Number, right: Array | Number) -> Array | float:
        """Return the result of an operation on fractions. Raises ExpressionError for a division by zero."""
        a, b = _fractions(left), _fractions(right)
        if node.sign in ("//", "%") and np.any(b == 0):
            raise ExpressionError(self._text, node.right.at, f"{node.sign}: a division by zero")
        if isinstance(a, float) and isinstance(b, float):
            return float(node.operate(a, b))
        result: Array = node.operate(a, b)
        return result

    def _of_integers(
        self, node: _Node, sign: str, operate: Callable[[Any, Any], Any], left: Array | Number, right: Array | Number,
        right_at: int,
    ) -> Array | int:  # fmt: skip
        """Return the exact result of an operation on integers, in NumPy's type if it fits, else as Python's integers.

        node: for errors. sign, operate: the operation. right_at: where its right operand stands. Raises ExpressionError
        for a division by zero, a negative shift, and a result that may need more than 128 bits.
        """
        a, b = _integers(left), _integers(right)
        (a_low, a_high), (b_low, b_high) = _range(a), _range(b)
        if sign in ("//", "%") and b_low <= 0 <= b_high and np.any(np.asarray(b) == 0):
            raise ExpressionError(self._text, right_at, f"{sign}: a division by zero")
        if sign in ("<<", ">>") and b_low < 0:
            raise ExpressionError(self._text, right_at, f"{sign}: a shift by a negative number")
        bounds = _bounds(sign, a_low, a_high, b_low, b_high)
        if bounds is None or max(map(int.bit_length, bounds)) > _MOST_BITS:
            raise ExpressionError(self._text, node.at, f"a result that may need more than {_MOST_BITS} bits")
        if isinstance(a, int) and isinstance(b, int):
            return int(operate(a, b))
        if sign == ">>":
            # A shift by more gives the same, but for integers that are as wide.
            b, b_high = _clamped(b, b_high), min(b_high, _MOST_BITS)
        dtype = _dtype_for(min(a_low, b_low, bounds[0]), max(a_high, b_high, bounds[1]))
        if sign == ">>" and b_high > 63:
            dtype = _OBJECTS
        result: Array = operate(_cast(a, dtype), _cast(b, dtype))
        return _smallest(result) if dtype is _OBJECTS else result


class _Chosen(dict[str, Array]):
    """Columns of some records, made when they are asked for."""

    def __init__(self, columns: Mapping[str, Array], chosen: Array) -> None:
        """Select records lazily, by column. columns: all records' values, by name. chosen: bool, which records are
        meant."""
        super().__init__()
        self._all = columns
        self._chosen = chosen

    def __missing__(self, name: str) -> Array:
        """Select the records' values of a column when they are first asked for."""
        self[name] = self._all[name][self._chosen]
        return self[name]


def _filled(values: Array | Number, count: int) -> Array:
    """Return values as an array with one for each of ``count`` records; a single number is repeated."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, int) and not isinstance(values, bool):
        filled = np.empty(count, _dtype_for(values, values))
        filled[:] = values
        return filled
    return np.full(count, values)


def _truth(values: Array | Number, count: int) -> npt.NDArray[np.bool_]:
    """Return which values are not zero, bool for each of ``count`` records; a NaN is not zero."""
    result: npt.NDArray[np.bool_] = np.asarray(_filled(values, count) != 0, dtype=bool)
    return result


def _integers(values: Array | Number) -> Array | int:
    """Return values as integers: truth values as 0 and 1, types of NumPy as int64 or uint64."""
    if not isinstance(values, np.ndarray):
        return int(values)
    if values.dtype.kind == "O" or values.dtype == np.uint64:
        return values
    return values.astype(np.int64, copy=False)


def _fractions(values: Array | Number) -> Array | float:
    """Return numbers, an array or one, as f64, rounded as Python does."""
    if not isinstance(values, np.ndarray):
        return float(values)
    return values.astype(np.float64, copy=False)


def _range(values: Array | int) -> tuple[int, int]:
    """Return the least and the greatest of integers, an array or one; zeros for an empty array."""
    if not isinstance(values, np.ndarray):
        return values, values
    return (int(values.min()), int(values.max())) if values.size else (0, 0)


def _bounds(sign: str, a_low: int, a_high: int, b_low: int, b_high: int) -> tuple[int, int] | None:
    """Return between which numbers the result of an operation (sign) on integers is, from the ranges of a and b; None
    beyond any limit.
    """
    if sign in ("&", "|", "^"):
        if sign == "&" and a_low >= 0 and b_low >= 0:
            return 0, min(a_high, b_high)
        bits = max(number.bit_length() if number >= 0 else (~number).bit_length() for number in (
            a_low, a_high, b_low, b_high))  # fmt: skip
        return (0 if a_low >= 0 and b_low >= 0 else -(1 << bits)), (1 << bits) - 1
    if sign == "%":
        # Between 0 and the divisor.
        return min(b_low + 1, 0), max(b_high - 1, 0)
    if sign == "<<" and b_high > _MOST_BITS:
        return (0, 0) if a_low == a_high == 0 else None
    a_ends, b_ends = [a_low, a_high], [b_low, b_high]
    if sign == "//":
        # Of divisors on both sides of zero those next to it give the greatest quotients.
        nearest = [number for number in (-1, 1) if b_low <= number <= b_high]
        b_ends = [number for number in (*b_ends, *nearest) if number]
    operate = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv,
               "<<": operator.lshift, ">>": operator.rshift}[sign]  # fmt: skip
    ends = [operate(a, b) for a in a_ends for b in b_ends]
    return min(ends, default=0), max(ends, default=0)


def _dtype_for(low: int, high: int) -> np.dtype[Any]:
    """Return NumPy's type in which all integers from low to high are exact; that of Python's integers if there is no
    other.
    """
    if low >= -(1 << 63) and high < 1 << 63:
        return np.dtype(np.int64)
    return np.dtype(np.uint64) if low >= 0 and high < 1 << 64 else _OBJECTS


def _cast(values: Array | int, dtype: np.dtype[Any]) -> Any:
    """Return integers in a type of NumPy that all of them fit."""
    if isinstance(values, np.ndarray):
        return values.astype(dtype, copy=False)
    return values if dtype is _OBJECTS else dtype.type(values)


def _clamped(values: Array | int, high: int) -> Array | int:
    """Return integers, numbers of bits to shift by, with those above _MOST_BITS set to that.

    high: the greatest of them.
    """
    if high <= _MOST_BITS:
        return values
    return np.minimum(values, _MOST_BITS) if isinstance(values, np.ndarray) else _MOST_BITS


def _smallest(values: Array) -> Array:
    """Return Python's integers (an array of objects) as a NumPy integer type if they fit."""
    return values.astype(_dtype_for(*_range(values)))


def compare(operate: Callable[[Any, Any], Any], left: Array | Number, right: Array | Number) -> Array | bool:
    """Return whether a comparison holds, as Python compares: an integer with a fraction exactly, too.

    operate: such as ``operator.lt``. left, right: arrays of one length, as ``Expression.values`` returns them, or
    Python's numbers. Returns bool ``[record]``, of two numbers one bool.
    """
    if not isinstance(left, np.ndarray) and not isinstance(right, np.ndarray):
        return bool(operate(left, right))
    if _is_float(left) and _is_float(right):
        result: Array = operate(left, right)
        return result
    if not _is_float(left) and not _is_float(right):
        a, b = _integers(left), _integers(right)
        ends = (*_range(a), *_range(b))
        dtype = _dtype_for(min(ends), max(ends))
        return np.asarray(operate(_cast(a, dtype), _cast(b, dtype)), bool)
    whole = _integers(left if _is_float(right) else right)
    low, high = _range(whole)
    if low >= -_EXACT_IN_F64 and high <= _EXACT_IN_F64:
        exact: Array = operate(_fractions(left), _fractions(right))
        return exact
    # By Python's own comparison, number by number.
    first, second = (side.astype(object) if isinstance(side, np.ndarray) else side for side in (left, right))
    return np.asarray(operate(first, second), bool)


def _is_float(values: Array | Number) -> bool:
    """Whether values, an array or one number, are fractions."""
    return values.dtype.kind == "f" if isinstance(values, np.ndarray) else isinstance(values, float)
