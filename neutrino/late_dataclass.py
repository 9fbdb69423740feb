"""Dataclasses whose methods are compiled when the first object is made.

``dataclasses.dataclass`` writes and compiles up to six methods for each class, which takes longer than all else that an
import does. A command imports some two hundred such classes and makes objects of a few dozen.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_ORDER = ("__lt__", "__le__", "__gt__", "__ge__")
_ATTRIBUTES = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
"""Of the class itself: what ``fields``, ``replace``, ``is_dataclass``, ``match`` and subclasses ask for."""
_SIGNATURE = "__signature__"
_LOCK = threading.RLock()
"""One for all classes, since a class is made after its bases."""

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """``dataclasses.dataclass``, put off until an object of the class is made, compared, hashed or shown, or until
        someone asks for the class's fields.

        What is wrong with a field is said that much later. options: as of ``dataclasses.dataclass``, but for ``slots``
        and ``weakref_slot``, which need another class: TypeError.
        """
        if "slots" in options or "weakref_slot" in options:
            raise TypeError("a dataclass with slots is another class than the one that it is made of")
        return _put_off(cls, options) if cls is not None else lambda later: _put_off(later, options)


class _Attribute:
    """An attribute of a class that is there once the class is made."""

    def __init__(self, cls: type, name: str, make: Callable[[], None]) -> None:
        """Stand for an attribute of a class. make: puts the attribute in this one's place."""
        self._cls, self._name, self._make = cls, name, make

    def __get__(self, instance: object | None, owner: type) -> Any:
        """The attribute, also for subclasses, which inherit it."""
        self._make()
        if self._name == _SIGNATURE:
            # Which no class has of itself: the parameters are those of its ``__init__``.
            from inspect import signature

            return signature(owner)
        return getattr(self._cls, self._name)


def _put_off(cls: type, options: dict[str, Any]) -> type:
    """Give a class what stands for a dataclass's methods and attributes, until the first of them is used; return it."""
    stand_ins: dict[str, Any] = {}

    def make() -> None:
        # Other threads use the class meanwhile, so all that it has is replaced, and nothing is taken away before.
        with _LOCK:
            if stand_ins:
                _complete(cls, options, stand_ins)
                stand_ins.clear()

    if options.get("eq", True):
        # Objects that can be compared and changed have no hash; replaced below if there is one.
        stand_ins["__hash__"] = None
    stand_ins |= {name: _method(cls, name, make) for name in _methods(options)}
    stand_ins |= {name: _Attribute(cls, name, make) for name in (*_ATTRIBUTES, _SIGNATURE)}
    if options.get("frozen", False):
        stand_ins |= {method.__name__: method for method in _frozen(cls)}
    for name in stand_ins.keys() & _given(cls):
        del stand_ins[name]
    for name, value in stand_ins.items():
        setattr(cls, name, value)
    return cls


def _given(cls: type) -> set[str]:
    """Return what the body of a class defines. Python itself sets ``__hash__`` to None beside an ``__eq__``."""
    names = set(vars(cls))
    return names - {"__hash__"} if vars(cls).get("__hash__") is None and "__eq__" in names else names


def _methods(options: dict[str, Any]) -> list[str]:
    """Return the methods that are compiled for a dataclass with these options."""
    is_compared = options.get("eq", True)
    names = ["__init__"] if options.get("init", True) else []
    names += ["__repr__"] if options.get("repr", True) else []
    names += ["__eq__"] if is_compared else []
    names += ["__hash__"] if options.get("unsafe_hash", False) or (is_compared and options.get("frozen", False)) else []
    names += _ORDER if options.get("order", False) else ()
    names += ["__replace__"] if sys.version_info >= (3, 13) else []
    return names


def _method(cls: type, name: str, make: Callable[[], None]) -> Callable[..., Any]:
    """Return a method that makes the class and then is what the class has by this name."""

    def method(self: object, *arguments: Any, **named: Any) -> Any:
        make()
        # Of this class: that of a subclass may be what calls this one.
        return getattr(cls, name)(self, *arguments, **named)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    return method


def _frozen(cls: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the methods that keep a class's objects from being changed. Subclasses may have attributes of their own.

    Those that ``dataclasses`` makes know the class, which is not this one.
    """

    def check(self: object, name: str, verb: str) -> None:
        from dataclasses import FrozenInstanceError, fields

        if type(self) is cls or name in {field.name for field in fields(cls)}:
            raise FrozenInstanceError(f"cannot {verb} field {name!r}")

    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        check(self, name, "assign to")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        check(self, name, "delete")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _complete(cls: type, options: dict[str, Any], stand_ins: dict[str, Any]) -> None:
    """Make a class a dataclass: a copy of it is made one, and lends its methods and attributes. stand_ins: what stands
    for these.
    """
    import dataclasses
    from inspect import get_annotations

    left_out = {"__dict__", "__weakref__", *stand_ins}
    namespace = {name: value for name, value in vars(cls).items() if name not in left_out}
    namespace |= {"__annotations__": get_annotations(cls), "__qualname__": cls.__qualname__}
    copy = type(cls)(cls.__name__, cls.__bases__, dict(namespace))
    made = vars(dataclasses.dataclass(**options)(copy))
    for name, value in made.items():
        is_lent = name not in namespace or namespace[name] is None or isinstance(namespace[name], dataclasses.Field)
        if is_lent and name not in ("__dict__", "__weakref__", "__setattr__", "__delattr__"):
            setattr(cls, name, value)
    # What dataclasses have not: the parameters, and defaults of fields that a function makes.
    for name in vars(cls).keys() - made.keys():
        delattr(cls, name)
