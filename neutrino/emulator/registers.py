"""What generated code does with registers: arrays with one element a thread, or scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def get(value: Any, at: Any) -> Any:
    """The elements of a register for the threads ``at``."""
    return value[at] if value.ndim else value


def put(file: Any, index: int, value: Any, at: Any) -> None:
    """Write the elements of a register for the threads ``at``.

    The array may be another register's as well until it is written in place for the first time.
    """
    old = file.values[index]
    if index not in file.owned:
        old = old.copy() if old.ndim else np.full(file.threads, old)
        file.values[index] = old
        file.owned.add(index)
    old[at] = value


def pick(condition: Any, new: Any, old: Any) -> Any:
    """``new`` where a guard holds, ``old`` elsewhere."""
    if condition.ndim:
        return np.where(condition, new, old)
    return new if condition else old


def uniform(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, made to take scalars only as well."""

    def call(*values: Any) -> Any:
        for value in values:
            if value.ndim:
                return function(*values)
        result = function(*(np.reshape(value, 1) for value in values))
        return tuple(one[0] for one in result) if isinstance(result, tuple) else result[0]

    return call
