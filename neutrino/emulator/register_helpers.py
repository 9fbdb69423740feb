"""Helpers of generated code for registers, which are arrays with one element per thread, or NumPy scalars.

A scalar has the same value in every thread. ``at``: the indices of the threads that execute the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def get(value: Any, at: Any) -> Any:
    """Return the elements of a register for the threads ``at``; a scalar is the same for all."""
    return value[at] if value.ndim else value


def put(file: Any, index: int, value: Any, at: Any) -> None:
    """Write register ``index`` of a register file in the threads ``at``. value: one element per thread, or a scalar.

    Copy on write: after a ``mov`` two registers may share one array. ``file.owned`` has the registers that do not: only
    their arrays may be changed in place.
    """
    values = file.values[index]
    if index not in file.owned:
        # A scalar becomes an array, since its threads no longer all have the same value.
        values = values.copy() if values.ndim else np.full(file.threads, values)
        file.values[index] = values
        file.owned.add(index)
    values[at] = value


def pick(condition: Any, new: Any, old: Any) -> Any:
    """Return ``new`` where a guard holds, and ``old`` elsewhere. condition: one element per thread, or a scalar."""
    if condition.ndim:
        return np.where(condition, new, old)
    return new if condition else old


def uniform(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that needs arrays so that it also takes scalars alone, and then returns scalars.

    Arguments that are the same in all threads are scalars; so a result that depends on nothing else stays one.
    """

    def call(*values: Any) -> Any:
        """Call the function as it is if any argument is an array; else with arrays of one element, and
        return scalars.
        """
        for value in values:
            if value.ndim:
                return function(*values)
        # Scalars alone: each becomes an array of one element.
        result = function(*(np.reshape(value, 1) for value in values))
        return tuple(output[0] for output in result) if isinstance(result, tuple) else result[0]

    return call
