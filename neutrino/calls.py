"""Calls of the Python API with wrong arguments: an error that names the right ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def names_arguments(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Have calls with wrong arguments raise ArgumentError, which names the right ones, in place of TypeError."""

    @functools.wraps(function)
    def called(*args: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        """Call the function. Raises ArgumentError, and what it raises."""
        try:
            return function(*args, **options)
        except TypeError:
            fault = _fault(function, args, tuple(options))
            if not fault:
                raise
        # Imported here: a probe file waits for nothing that only a wrong call needs.
        from neutrino.errors import ArgumentError

        raise ArgumentError(fault)

    return called


def unknown_option(function: str, name: str, known: Sequence[str]) -> str:
    """Return what to say of an option that a function does not have. known: those that it has."""
    if name in {"probe", "probes"}:
        return f"{function}() has no option {name}; probes come first, without a name: {function}('gmem_bytes', …)"
    import difflib

    likely = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {likely[0]}?" if likely else f"it has {', '.join(known)}"
    return f"{function}() has no option {name}; {meant}"


def _fault(function: Callable[..., object], args: Sequence[object], options: Sequence[str]) -> str:
    """Return what is wrong with a call; "" if its arguments are those that the function takes."""
    import inspect

    signature = inspect.signature(function)
    try:
        signature.bind(*args, **dict.fromkeys(options))
    except TypeError as error:
        name, parameters = function.__name__, signature.parameters
        named = [
            each.name for each in parameters.values()
            if each.kind in {each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD}
        ]  # fmt: skip
        unknown = [option for option in options if option not in named]
        if unknown:
            return unknown_option(name, unknown[0], named)
        if args and all(each.kind in {each.KEYWORD_ONLY, each.VAR_KEYWORD} for each in parameters.values()):
            return f"{name}() takes its arguments by name, as {named[0]}=…; it has {', '.join(named)}"
        return f"{name}(): {error}; it has {', '.join(named)}"
    return ""
