"""The file's own functions, which probes call: what their parameters are, what they assign, and where they end."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Sequence

from neutrino.language.faults import Faults


class Function:
    """A function of the file. What its calls need to know of it is found once, since each call reads its statements.

    node: its definition.
    """

    def __init__(self, node: ast.FunctionDef) -> None:
        """Describe a function of a probe file for the calls of it. node: its definition in Python's syntax tree."""
        self.node = node
        self.name = node.name
        self._body: list[ast.stmt] | None = None

    def parameters(self, faults: Faults) -> dict[str, ast.expr | None]:
        """Return the function's parameters, in order: name → annotation, None without one.

        Raises LanguageError for parameters with defaults, ``*args``, ``**kwargs`` and those given by name alone.
        """
        arguments = self.node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults:
            hint = "write them as in def f(a, b: nl.u32):"
            message = f"function {self.name} has parameters that are not given one by one"
            raise faults.refuse(self.node, "python-statement", message, hint)
        return {argument.arg: argument.annotation for argument in self._arguments}

    @property
    def parameter_names(self) -> list[str]:
        """The names of the function's parameters, in order."""
        return [argument.arg for argument in self._arguments]

    @property
    def _arguments(self) -> list[ast.arg]:
        """The function's parameters that can be given by position."""
        return [*self.node.args.posonlyargs, *self.node.args.args]

    @functools.cached_property
    def assigned(self) -> frozenset[str]:
        """The names of the variables that the function assigns."""
        return frozenset(assigned_names(self.node))

    @functools.cached_property
    def _saves(self) -> bool:
        """Whether the function saves: calls some method named ``save``, which may be that of a map."""
        return any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "save"
            for node in ast.walk(self.node)
        )

    def saves_or_shares(self, shared: Collection[str]) -> bool:
        """Return whether calling this function of a probe file has a lasting effect: it saves, or assigns a shared
        register.

        shared: the names of the registers that all probes share. A parameter of the same name is the function's own.
        """
        own = {argument.arg for argument in self._arguments}
        return self._saves or bool((self.assigned - own) & set(shared))

    def with_single_end(self, result: str, faults: Faults) -> list[ast.stmt]:
        """Return the function's body without ``return``: each assigns its value to the variable ``result``, the same in
        all calls.

        A ``return`` inside an ``if`` ends the function there: what follows the ``if`` becomes its other branch. Raises
        LanguageError for a ``return`` elsewhere, and if only some ways through the function return a value.
        """
        if self._body is None:
            body, ends = _ended(self.node.body, result, faults)
            if not ends and any(isinstance(node, ast.Return) and node.value for node in ast.walk(self.node)):
                message = f"function {self.name} returns a value on some ways through it only"
                raise faults.refuse(self.node, "python-statement", message, "end it with a return")
            self._body = body
        return self._body


def assigned_names(node: ast.AST) -> set[str]:
    """Return the names that a function or statement assigns."""
    return {item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}


def _ended(nodes: Sequence[ast.stmt], result: str, faults: Faults) -> tuple[list[ast.stmt], bool]:
    """Rewrite statements without ``return``, as ``with_single_end`` does; return them, and whether each way returns a
    value."""
    body: list[ast.stmt] = []
    for index, node in enumerate(nodes):
        if isinstance(node, ast.Return):
            if index + 1 < len(nodes):
                raise faults.refuse(nodes[index + 1], "python-statement", "a statement after return", "remove it")
            if node.value is not None:
                target = ast.copy_location(ast.Name(result, ast.Store()), node)
                body.append(ast.copy_location(ast.Assign([target], node.value), node))
            return body, node.value is not None
        if isinstance(node, ast.If) and _returns(node):
            # The statements after it run where no branch has returned.
            rest = list(nodes[index + 1 :])
            if _returns_everywhere(node.body):
                then, then_ends = _ended(node.body, result, faults)
                otherwise, ends = _ended([*node.orelse, *rest], result, faults)
            elif _returns_everywhere(node.orelse):
                then, then_ends = _ended([*node.body, *rest], result, faults)
                otherwise, ends = _ended(node.orelse, result, faults)
            else:
                message = "a return in a branch that may also go on"
                raise faults.refuse(node, "python-statement", message, "let each way through the branch return")
            body.append(ast.copy_location(ast.If(node.test, then or [ast.Pass()], otherwise), node))
            return body, then_ends and ends
        if _returns(node):
            raise faults.refuse(node, "python-statement", "a return inside a loop", "assign, and return after the loop")
        body.append(node)
    return body, False


def _returns(node: ast.stmt) -> bool:
    """Return whether a statement has a ``return`` in it."""
    return any(isinstance(item, ast.Return) for item in ast.walk(node))


def _returns_everywhere(nodes: Sequence[ast.stmt]) -> bool:
    """Return whether each way through statements ends with a ``return``."""
    if not nodes:
        return False
    last = nodes[-1]
    if isinstance(last, ast.If):
        return _returns_everywhere(last.body) and _returns_everywhere(last.orelse)
    return isinstance(last, ast.Return)

