"""The language of probes in Python: what a probe file imports as ``nl``.

    import neutrino.language as nl

    @nl.probe(pos="ld.global", level="thread", after=True, size=16)
    def loads():
        nl.save((nl.addr, nl.clock()), dtype=nl.u64)

A probe file is parsed and compiled, and never run: what stands here has the types and the documentation for editors and
type checkers, and nothing that computes. ``docs/language.md`` is the reference. mypy needs the plugin
``neutrino.language.mypy_plugin`` to know the ``save`` of maps.

Type checkers take the integer types for ``int`` and the floating-point types for ``float``; widths and signs are
checked when a probe is compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar, overload

from neutrino.calls import names_arguments

__all__ = [
    "Array",
    "Map",
    "Place",
    "Value",
    "Vector",
    "Warp",
    "abs",
    "addr",
    "array",
    "bf16",
    "bits",
    "block",
    "bound",
    "bytes",
    "clock",
    "cluster_ctaid",
    "cluster_nctaid",
    "clusterid",
    "clz",
    "ctaid",
    "cuid",
    "distinct",
    "elected",
    "elements",
    "f16",
    "f32",
    "f64",
    "has",
    "in1",
    "in2",
    "in3",
    "in4",
    "in5",
    "in6",
    "in7",
    "in8",
    "in9",
    "is_global",
    "lane",
    "lanemask_lt",
    "lanes",
    "leader",
    "line",
    "max",
    "min",
    "nclusterid",
    "nctaid",
    "ntid",
    "ops",
    "out",
    "param",
    "popc",
    "pred",
    "probe",
    "s8",
    "s16",
    "s32",
    "s64",
    "save",
    "sectors",
    "select",
    "site",
    "smid",
    "thread",
    "tid",
    "time",
    "u8",
    "u16",
    "u32",
    "u64",
    "unlikely",
    "warp",
    "warpid",
]  # fmt: skip

u8: TypeAlias = int
"""An unsigned integer of 8 bits."""
u16: TypeAlias = int
"""An unsigned integer of 16 bits."""
u32: TypeAlias = int
"""An unsigned integer of 32 bits."""
u64: TypeAlias = int
"""An unsigned integer of 64 bits."""
s8: TypeAlias = int
"""A signed integer of 8 bits."""
s16: TypeAlias = int
"""A signed integer of 16 bits."""
s32: TypeAlias = int
"""A signed integer of 32 bits."""
s64: TypeAlias = int
"""A signed integer of 64 bits."""
f16: TypeAlias = float
"""A floating-point number of 16 bits (IEEE binary16)."""
bf16: TypeAlias = float
"""A floating-point number of 16 bits with the exponent of an ``f32`` (bfloat16)."""
f32: TypeAlias = float
"""A floating-point number of 32 bits."""
f64: TypeAlias = float
"""A floating-point number of 64 bits."""

Level: TypeAlias = Literal["thread", "warp", "block", "group"]
"""Which threads run a probe: each one, the first of each warp or of each block, or the lowest of the lanes that execute
the instruction together."""
Per: TypeAlias = Literal["launch", "block", "warp", "thread", "sm", "site", "run"]
"""Whose values a map combines."""
Lanes: TypeAlias = Literal["executing", "reaching"]
"""Of an instruction with a predicate: the lanes for which it executes, or all that reach it."""

_Function = TypeVar("_Function", bound=Callable[..., None])
_Class = TypeVar("_Class", bound=type)
_Number = TypeVar("_Number", int, float)


def _refuse(name: str) -> NoReturn:
    """Raise TypeError: nothing of the language is run."""
    raise TypeError(
        f"nl.{name} is for probes, which are compiled and not run: name the file with neutrino -p, or give the probe "
        "to neutrino.trace"
    )


class _Save:
    """The ``save`` of a map, which is called in probes alone."""

    def __get__(self, _: object, owner: type) -> NoReturn:
        """Raise TypeError: nothing of the language is run."""
        raise TypeError(
            f"{owner.__name__}.save is for probes, which are compiled and not run: give the probe to neutrino.trace"
        )


_PLACE = "__neutrino_place__"


def place_of_map(value: object) -> tuple[str, int] | None:
    """Return where a class with ``@Map`` was declared, as file and line; None for anything else."""
    place: tuple[str, int] | None = value.__dict__.get(_PLACE) if isinstance(value, type) else None
    return place


def _as_map(declared: _Class) -> _Class:
    """Return a class as it is, with where it is declared. Called in the module that declares it."""
    # A class does not know its line.
    frame = sys._getframe(1)
    setattr(declared, _PLACE, (frame.f_code.co_filename, frame.f_lineno))
    if "save" not in declared.__dict__:
        declared.save = _Save()  # type: ignore[attr-defined]
    return declared


# Declarations


@names_arguments
def probe(
    *,
    pos: str = "",
    position: str = "",
    level: Level,
    before: bool = False,
    after: bool = False,
    lanes: Lanes = "executing",
    size: int = 0,
    cap: int | Literal["dynamic"] = 1,
) -> Callable[[_Function], _Function]:
    """Declare a function as a probe, which is put into kernels before or after the instructions that ``pos`` names.

    pos, position: ``kernel``, an opcode such as ``ld.global``, a class such as ``memory``, or another tracepoint.
    before, after: the side; without either ``@probe`` is after, and ``@nl.probe`` before. size, cap: of what the probe
    saves by ``nl.save``: bytes of a record (checked if they are given), and records kept per thread, warp or block.

    Returns the function as it is. Raises nothing: a file's faults are reported when it is compiled.
    """
    return lambda function: function


@names_arguments
def Map(  # noqa: N802 - it is written as a class
    *,
    level: Level,
    type: str = "array",
    per: Per = "launch",
    size: int = 0,
    cap: int | Literal["dynamic"] = 1,
    **options: Any,
) -> Callable[[_Class], _Class]:
    """Declare a class as a map: its annotations are the fields of a record, and probes call its ``save``.

    level: whose records it keeps; that of the probes that save to it. type: ``array``, or an aggregate such as ``sum``.
    per: whose values an aggregate combines: all of a launch, or those of each block, warp, thread, multiprocessor or
    instruction (site), or all of the process (run).
    size: bytes of a record, which are checked if they are given. cap: records kept per thread, warp or block. options:
    of the type, such as the steps of a histogram.

    Returns the class, whose ``save`` is for probes alone. Raises nothing: faults are reported when it is compiled.
    """
    return _as_map


def save(values: float | tuple[float, ...], dtype: type[int] | type[float]) -> None:
    """Save a value, or each of a tuple, as a field of a type in the probe's own record.

    All ``nl.save`` of one block make one record, which is stored at the last of them.
    """
    _refuse("save")


# Values of the instruction that a probe is at


class Value(int):
    """A value of the instruction that a probe is at. It may also be written with parentheses: ``nl.addr()``."""

    def __call__(self) -> int:
        """Return the value itself. (All functions here are read by Neutrino and never run: one that is called raises an
        error.)
        """
        _refuse("addr")


class Vector(int):
    """An operand of the instruction that a probe is at, of the type that it is used as: ``x: nl.f32 = nl.out``.

    ``nl.out.y`` and ``nl.out[1]`` are elements of a vector; without one it is the first.
    """

    x: int
    """The first element."""
    y: int
    """The second element."""
    z: int
    """The third element."""
    w: int
    """The fourth element."""

    def __call__(self) -> Vector:
        """Return the operand itself."""
        _refuse("out")

    def __getitem__(self, element: int) -> int:
        """Return an element, from 0 on."""
        _refuse("out")


out = Vector()
"""The result of the instruction; only in a probe that runs after it."""
in1 = Vector()
"""The first input, before the instruction."""
in2 = Vector()
"""The second input, before the instruction."""
in3 = Vector()
"""The third input, before the instruction."""
in4 = Vector()
"""The fourth input, before the instruction."""
in5 = Vector()
"""The fifth input, before the instruction."""
in6 = Vector()
"""The sixth input, before the instruction."""
in7 = Vector()
"""The seventh input, before the instruction."""
in8 = Vector()
"""The eighth input, before the instruction."""
in9 = Vector()
"""The ninth input, before the instruction."""
addr = Value()
"""The address of a memory access (``u64``)."""
bytes = Value()
"""How many bytes a thread's access, or a copy, moves (``u64``)."""
ops = Value()
"""How many operations a matrix instruction does (``u64``)."""
pred = Value()
"""Whether the instruction's own predicate lets it execute; true without one."""
lanes = Value()
"""The lanes of the warp that run the probe here, one bit each (``u32``)."""
leader = Value()
"""Whether the thread is the lowest of the lanes that run the probe here together (a predicate)."""
elected = Value()
"""Whether the thread is one of these lanes, whichever costs least (a predicate)."""
thread = Value()
"""The thread's linear number in its block, x fastest (``u32``)."""
block = Value()
"""The block's linear number in the grid, x fastest (``u64``)."""
site = Value()
"""The number of the instruction in the kernel, the same in all launches (``u32``)."""
line = Value()
"""The source line of the instruction, 0 where the kernel does not say (``u32``)."""
elements = Value()
"""How many elements its vector has, 1 of a scalar (``u32``): a number at each instruction."""
sectors = Value()
"""How many sectors of 32 bytes the lanes that run the probe here together access (``u32``)."""
distinct = Value()
"""How many different bytes the lanes that run the probe here together access (``u32``)."""


@overload
def param(which: int | str) -> int: ...


@overload
def param(which: int | str, *, offset: int = 0, dtype: type[_Number]) -> _Number: ...


def param(which: int | str, *, offset: int = 0, dtype: type[Any] = int) -> Any:
    """Return a parameter of the kernel, as the launch passed it. which: its number, from 0, or its name in PTX.

    offset, dtype: what to read of it, for structures: a byte, and the type of what begins there. Without them it is the
    whole parameter, taken as the type that it is used as.
    """
    _refuse("param")


# Values of the hardware


def clock(*, after: float = 0) -> int:
    """Return the cycles of the multiprocessor (``u64``): fast, and another count on each multiprocessor.

    after: a value that is waited for, as what a load gives. Without it the clock waits for nothing.
    """
    _refuse("clock")


def time() -> int:
    """Return the nanoseconds of the GPU (``u64``): slow, and the same count everywhere."""
    _refuse("time")


def cuid() -> int:
    """Return the number of the multiprocessor, or compute unit, that runs the thread (``u32``)."""
    _refuse("cuid")


def smid() -> int:
    """Return the number of the multiprocessor that the thread runs on; another name of ``cuid``."""
    _refuse("smid")


class Place(int):
    """A place of the thread, or a number of places, by axis; without an axis that of ``x``."""

    x: int
    """Along the first axis."""
    y: int
    """Along the second axis."""
    z: int
    """Along the third axis."""

    def __call__(self) -> int:
        """Return the number along the first axis, x."""
        _refuse("tid")


tid = Place()
"""The thread's place in its block (``u32`` each)."""
ntid = Place()
"""How many threads a block has (``u32`` each)."""
ctaid = Place()
"""The block's place in the grid (``u32`` each)."""
nctaid = Place()
"""How many blocks the grid has (``u32`` each)."""
clusterid = Place()
"""The cluster's place among the clusters of the grid (``u32`` each)."""
nclusterid = Place()
"""How many clusters the grid has (``u32`` each)."""
cluster_ctaid = Place()
"""The block's place in its cluster (``u32`` each)."""
cluster_nctaid = Place()
"""How many blocks a cluster has (``u32`` each)."""
lane = Value()
"""The thread's place in its warp (``u32``)."""
lanemask_lt = Value()
"""A bit for each lane below the thread's (``u32``)."""
warpid = Value()
"""The warp's place in its block, by the threads' places (``u32``)."""


class Warp:
    """Functions over the lanes of a warp that run the probe here together, those of each enclosing ``if`` alone."""

    def sum(self, value: int) -> int:
        """Return the sum of an integer over the lanes."""
        _refuse("warp.sum")

    def min(self, value: _Number) -> _Number:
        """Return the least value that any of the lanes has."""
        _refuse("warp.min")

    def max(self, value: _Number) -> _Number:
        """Return the greatest value that any of the lanes has."""
        _refuse("warp.max")

    def any(self, condition: float) -> bool:
        """Return whether a condition is true in one of the lanes."""
        _refuse("warp.any")

    def all(self, condition: float) -> bool:
        """Return whether a condition is true in all of the lanes."""
        _refuse("warp.all")

    def ballot(self, condition: float) -> int:
        """Return the lanes in which a condition is true, one bit each (``u32``)."""
        _refuse("warp.ballot")

    def bit_or(self, value: int) -> int:
        """Return the bits that are 1 in one of the lanes (``u32``)."""
        _refuse("warp.bit_or")

    def match(self, value: int) -> int:
        """Return the lanes that have the same value, one bit each (``u32``). value: an integer of 32 or 64 bits."""
        _refuse("warp.match")

    def same(self, value: int) -> bool:
        """Return whether all lanes have the same value. value: an integer of 32 or 64 bits."""
        _refuse("warp.same")

    def shuffle(self, value: _Number, lane: int) -> _Number:
        """Return the value that another lane has; the thread's own where that lane is not there."""
        _refuse("warp.shuffle")

    def first(self, value: _Number) -> _Number:
        """Return the value of the lowest of the lanes."""
        _refuse("warp.first")


warp = Warp()
"""Functions over the lanes of a warp: ``nl.warp.sum(x)``."""


# Functions


def bits(value: float) -> int:
    """Return the bits of a value, which take the type that they are used as: ``x: nl.f32 = nl.bits(word)``."""
    _refuse("bits")


def bound(turns: int) -> bool:
    """Begin the condition of a loop in a probe, ``while nl.bound(8) and x > 0``, which ends after so many turns.

    Only the compiler of probes gives it this meaning; a call from Python raises an error.
    """
    _refuse("bound")


def min(first: _Number, second: _Number, *others: _Number) -> _Number:
    """Return the least of two or more values."""
    _refuse("min")


def max(first: _Number, second: _Number, *others: _Number) -> _Number:
    """Return the greatest of two or more values."""
    _refuse("max")


def abs(value: _Number) -> _Number:
    """Return a value without its sign; of the least signed integer, itself."""
    _refuse("abs")


def popc(value: int) -> int:
    """Return how many bits of an integer are 1 (``u32``)."""
    _refuse("popc")


def clz(value: int) -> int:
    """Return how many zeros an integer has before its first 1 (``u32``); for 0 its width."""
    _refuse("clz")


def select(condition: float, then: _Number, otherwise: _Number) -> _Number:
    """Return ``then if condition else otherwise``: both are computed, and there is no branch."""
    _refuse("select")


def unlikely(condition: bool) -> bool:
    """Say of the condition of an ``if`` that it is nearly always false, so that testing it should cost little.

    ``if nl.unlikely(condition):`` does the same as ``if condition:``, but may do so some instructions later.
    """
    _refuse("unlikely")


def has(what: str | type[int] | type[float]) -> bool:
    """Return whether the instruction has a type, a modifier, an opcode or a class: ``nl.has("v4")``.

    It is known when the code is inserted: a condition on it costs nothing.
    """
    _refuse("has")


def is_global(address: int) -> bool:
    """Return whether a generic address, such as ``nl.addr`` of a plain ``ld``, is in global memory."""
    _refuse("is_global")


class Array(Generic[_Number]):
    """A small array, each of whose elements is a register."""

    def __getitem__(self, index: int) -> _Number:
        """Return an element. With a computed index it is chosen among all of them; one beyond the array reads 0."""
        _refuse("array")

    def __setitem__(self, index: int, value: _Number) -> None:
        """Assign an element. With a computed index beyond the array nothing is assigned."""
        _refuse("array")


def array(dtype: type[_Number], size: int) -> Array[_Number]:
    """Return an array of ``size`` elements, which are 0. size: a constant."""
    _refuse("array")
