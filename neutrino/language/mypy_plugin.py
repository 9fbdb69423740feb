"""A plugin for mypy: the ``save`` of a map takes one value for each field of its class.

In ``pyproject.toml``: ``[tool.mypy]``, ``plugins = ["neutrino.language.mypy_plugin"]``. Only mypy imports this module.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import ARG_POS, Argument, AssignmentStmt, NameExpr, Var
from mypy.plugin import ClassDefContext, Plugin
from mypy.plugins.common import add_method_to_class
from mypy.types import NoneType

_MAPS = frozenset({"neutrino.language.Map", "neutrino.Map"})


class _Maps(Plugin):
    """Gives the classes with ``@Map(…)`` their ``save``."""

    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        """Return what changes a class with a decorator of this name; None for any but ``Map``."""
        return _add_save if fullname in _MAPS else None


def _add_save(context: ClassDefContext) -> bool:
    """Add the method to a class. Returns False if the type of a field is not known yet: mypy then calls this again."""
    arguments = []
    for statement in context.cls.defs.body:
        if not isinstance(statement, AssignmentStmt) or statement.unanalyzed_type is None:
            continue
        (target,) = statement.lvalues
        if not isinstance(target, NameExpr):
            continue
        declared = context.api.anal_type(statement.unanalyzed_type)
        if declared is None:
            return False
        arguments.append(Argument(Var(target.name, declared), declared, None, ARG_POS, pos_only=True))
    add_method_to_class(context.api, context.cls, "save", arguments, NoneType(), is_staticmethod=True)
    return True


def plugin(version: str) -> type[Plugin]:
    """Return the class of this plugin; mypy calls this function with its version."""
    return _Maps
