"""Dataclasses that are made late are what those of ``dataclasses`` are."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import KW_ONLY, InitVar, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from neutrino import late_dataclass

T = TypeVar("T")
Decorator = Callable[..., Any]
WAYS = [pytest.param(dataclasses.dataclass, id="at once"), pytest.param(late_dataclass.dataclass, id="late")]
"""What holds of the ones must hold of the others, so each test has both."""
pytestmark = pytest.mark.parametrize("dataclass", WAYS)


def _frozen(dataclass: Decorator) -> Any:
    @dataclass(frozen=True)
    class Point:
        """A place."""

        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list, compare=False)
        limit: ClassVar[int] = 7

        @property
        def far(self) -> bool:
            return self.x > 100

        @cached_property
        def double(self) -> int:
            return self.x * 2

    return Point


def _is_made(cls: type) -> bool:
    return isinstance(vars(cls)["__dataclass_fields__"], dict)


def test_values_compare_and_are_shown(dataclass: Decorator) -> None:
    point = _frozen(dataclass)
    one = point(1)
    assert (one.x, one.y, one.tags, one.far, one.double, point.y, point.limit) == (1, 2, [], False, 2, 2, 7)
    assert one == point(1, tags=["a"]) != point(2)
    assert len({one, point(1), point(2)}) == 2
    assert repr(one).endswith("Point(x=1, y=2, tags=[])")
    assert dataclasses.asdict(one) == {"x": 1, "y": 2, "tags": []}
    assert dataclasses.replace(one, y=5) == point(1, 5)
    assert copy.deepcopy(one) == one
    assert one != (1, 2)
    assert not hasattr(point, "tags")
    with pytest.raises(TypeError, match=r"Point\.__init__\(\) got an unexpected keyword argument 'z'"):
        point(1, z=3)


def test_frozen_ones_stay_as_they_are(dataclass: Decorator) -> None:
    one = _frozen(dataclass)(1)
    for change in (lambda: setattr(one, "x", 2), lambda: setattr(one, "other", 2), lambda: delattr(one, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError, match=r"cannot (assign to|delete) field '(x|other)'"):
            change()
    assert one.x == 1

    class Plain(_frozen(dataclass)):  # type: ignore[misc]
        pass

    plain = Plain(1)
    plain.other = 3
    assert plain.other == 3
    del plain.other
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del plain.x


def test_what_is_asked_of_the_class(dataclass: Decorator) -> None:
    """Before any object is made."""
    names = [item.name for item in dataclasses.fields(_frozen(dataclass))]
    assert names == ["x", "y", "tags"]
    assert dataclasses.is_dataclass(_frozen(dataclass))
    assert _frozen(dataclass).__match_args__ == ("x", "y", "tags")
    assert _frozen(dataclass).__dataclass_params__.frozen
    parameters = inspect.signature(_frozen(dataclass)).parameters
    assert list(parameters) == ["x", "y", "tags"]
    assert parameters["y"].default == 2
    assert issubclass(_frozen(dataclass), Hashable)
    assert _frozen(dataclass).__doc__ == "A place."


def test_a_match_of_a_class_takes_its_fields(dataclass: Decorator) -> None:
    point, other = _frozen(dataclass), _frozen(dataclass)
    match point(3, 4):
        case other(x, y):
            pytest.fail(f"{x}, {y} are of another class")
        case point(x, y):
            assert (x, y) == (3, 4)


def test_a_subclass_inherits_fields_of_whatever_is_not_made(dataclass: Decorator) -> None:
    for later in (dataclass, dataclasses.dataclass):
        base = _frozen(dataclass)

        @later(frozen=True)
        class Solid(base):  # type: ignore[misc,valid-type]
            z: int = 3

            def __post_init__(self) -> None:
                assert self.z == 3

        assert Solid(1) == Solid(1, 2, [], 3)
        assert Solid(1) != base(1)
        assert [item.name for item in dataclasses.fields(Solid)] == ["x", "y", "tags", "z"]
        assert [item.name for item in dataclasses.fields(base)] == ["x", "y", "tags"]


def test_a_subclass_calls_the_methods_of_its_base(dataclass: Decorator) -> None:
    @dataclass
    class Base:
        x: int

    @dataclass(init=False, repr=False, eq=False)
    class Derived(Base):
        y: int

        def __init__(self, x: int) -> None:
            super().__init__(x)
            self.y = -x

        def __repr__(self) -> str:
            return "+" + super().__repr__()

        def __eq__(self, other: object) -> bool:
            return super().__eq__(other)

        __hash__ = None  # type: ignore[assignment]

    assert (Derived(1).x, Derived(1).y) == (1, -1)
    assert repr(Derived(1)) == "+" + repr(Base(1)).replace("Base", "Derived")
    assert Derived(1) == Derived(1) != Derived(2)


def test_hashes_are_there_where_dataclasses_have_them(dataclass: Decorator) -> None:
    def made(options: dict[str, bool], body: dict[str, Any]) -> type:
        cls: type = dataclass(**options)(type("Made", (), {"__annotations__": {"x": "int"}, "x": 0, **body}))
        return cls

    def equal(self: object, other: object) -> bool:
        return self is other

    bodies: list[dict[str, Any]] = [
        {}, {"__eq__": equal}, {"__hash__": lambda self: 5}, {"__eq__": equal, "__hash__": lambda self: 5},
    ]  # fmt: skip
    flags = [{"eq": eq, "frozen": frozen} for eq in (True, False) for frozen in (True, False)]
    found = []
    for options, body in [(options, body) for options in flags for body in bodies]:
        cls = made(options, body)
        hashable = issubclass(cls, Hashable)
        one, two = cls(), cls()
        try:
            first: object = hash(one) == hash(two)
        except TypeError as error:
            first = str(error)
        assert hashable is (not isinstance(first, str))
        found.append((first, one == two))
    unhashable = "unhashable type: 'Made'"
    assert [first for first, _ in found] == [
        True, True, True, True, unhashable, unhashable, True, True, False, unhashable, True, True, False, unhashable,
        True, True,
    ]  # fmt: skip
    assert [equal for _, equal in found] == [True, False] * 4 + [False] * 8
    with pytest.raises(TypeError, match="Cannot overwrite attribute __hash__"):
        made({"unsafe_hash": True}, {"__hash__": lambda self: 5})()


def test_all_else_that_a_class_may_have(dataclass: Decorator) -> None:
    @dataclass(order=True)
    class Base(ABC, Generic[T]):
        x: int
        _: KW_ONLY
        start: InitVar[int] = 5
        total: int = field(init=False, default=0)

        def __post_init__(self, start: int) -> None:
            self.total = self.x + start

        @abstractmethod
        def value(self) -> T: ...

    @dataclass(order=True)
    class Derived(Base[int]):
        def value(self) -> int:
            return self.total

    with pytest.raises(TypeError, match="abstract"):
        Base(1)  # type: ignore[abstract]
    assert Derived(1, start=2).value() == 3
    assert Derived(1) < Derived(2) <= Derived(2) > Derived(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Derived(1))


def test_a_class_is_made_once_whoever_is_first(dataclass: Decorator) -> None:
    """Threads that meet it unmade get objects that are equal."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            point = _frozen(dataclass)
            start = threading.Barrier(4)
            found: list[Any] = []

            def work(point: Any = point, start: threading.Barrier = start, found: list[Any] = found) -> None:
                start.wait()
                for number in range(5):
                    one = point(number, tags=["t"])
                    found.append((one, hash(one), repr(one), one == point(number), one.tags))

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(found) == 20
            assert all(equal and tags == ["t"] for *_, equal, tags in found)
            assert len({one for one, *_ in found}) == len({value for _, value, *_ in found}) == 5
    finally:
        sys.setswitchinterval(before)


def test_objects_from_another_process_are_equal(dataclass: Decorator) -> None:
    """Whose class this process has made no object of."""
    name = "dataclasses" if dataclass is dataclasses.dataclass else "neutrino.late_dataclass"
    lines = f"import pickle, sys\nfrom {name} import dataclass\n@dataclass(frozen=True)\nclass Point:\n    x: int\n"
    written = subprocess.run(
        [sys.executable, "-c", lines + "sys.stdout.buffer.write(pickle.dumps([Point(1), Point(1), Point(2)]))"],
        check=True, stdout=subprocess.PIPE,
    ).stdout  # fmt: skip
    for question in ("a == b != c", "len({a, b, c}) == 2", "'Point(x=1)' in repr(a)", "replace(a, x=2) == c"):
        reading = lines + "from dataclasses import replace\na, b, c = pickle.load(sys.stdin.buffer)\nprint(" + question
        command = [sys.executable, "-c", reading + ")"]
        answer = subprocess.run(command, input=written, check=True, stdout=subprocess.PIPE)
        assert answer.stdout == b"True\n", question


def test_what_cannot_be_put_off_is_refused(dataclass: Decorator) -> None:
    if dataclass is dataclasses.dataclass:
        assert dataclass(slots=True)(type("Point", (), {})).__slots__ == ()
        return
    with pytest.raises(TypeError, match="slots"):
        dataclass(slots=True)


def test_late_ones_are_made_late(dataclass: Decorator) -> None:
    point = _frozen(dataclass)
    is_late = dataclass is not dataclasses.dataclass
    assert _is_made(point) is not is_late
    point(1)
    assert _is_made(point)
    at_once = vars(_frozen(dataclasses.dataclass))
    assert vars(point).keys() == at_once.keys()
    kept = ("__setattr__", "__delattr__")
    codes = {name: value.__code__.co_code for name, value in at_once.items() if inspect.isfunction(value)}
    assert {name: getattr(point, name).__code__.co_code for name in codes if name not in kept} == {
        name: code for name, code in codes.items() if name not in kept
    }
