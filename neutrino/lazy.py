"""Properties that are computed when they are first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801
    """What ``functools.cached_property`` is from Python 3.12 on: it takes no lock, which costs more than what most
    properties compute. Two threads that ask at once may compute a value twice; both get the same one afterwards."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        """Set up an attribute that is computed by a function when first asked for, and then kept."""
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> lazy[T]: ...

    @overload
    def __get__(self, instance: object, owner: type[Any]) -> T: ...

    def __get__(self, instance: object | None, owner: type[Any]) -> lazy[T] | T:
        """The value. From then on it is an attribute of the object, which is found before this property is."""
        if instance is None:
            return self
        value = self._compute(instance)
        instance.__dict__[self._name] = value
        return value
