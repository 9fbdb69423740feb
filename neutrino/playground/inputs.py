"""The inputs of a launch: generated from the kernel's parameters, or given by the user."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neutrino.errors import NeutrinoError
from neutrino.playground.elements import NAMES, ElementType, element_type
from neutrino.playground.parameters import Kernel, Role, Value

THREADS = 128
"""Threads of a block where the kernel does not say."""
BLOCKS = 4
_BUFFER_BYTES = 1 << 20
_SHARED_BYTES = 32 << 10
_MOST_BYTES = 128 << 20
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", 9.0; by axis where there are three.
_MOST_THREADS = 1024
_MOST_BLOCK = (1024, 1024, 64)
_MOST_GRID = ((1 << 31) - 1, 65535, 65535)
MOST_SHARED = 227 << 10
"""Bytes of shared memory that a block may have, the kernel's own included."""
_PLAIN_FLOAT = 1.5
_BUFFER = re.compile(rf"(?P<type>{'|'.join(NAMES)}):(?P<count>\d+)(?:=(?P<fill>.+))?")
_FLOAT_FORMATS = {"f16": "<e", "f32": "<f", "f64": "<d"}


@dataclass(frozen=True)
class Buffer:
    """Device memory for a pointer argument. data: what it holds before the launch. origin: where that is from."""

    value: Value
    type: ElementType
    data: bytes
    origin: str

    @property
    def elements(self) -> int:
        """How many elements it holds."""
        return len(self.data) // self.type.dtype.itemsize


@dataclass(frozen=True)
class Number:
    """A plain number. data: its bytes. text: as it is shown."""

    value: Value
    data: bytes
    text: str


@dataclass(frozen=True)
class Inputs:
    """One launch. grid: blocks; block: threads; shared: bytes of dynamic shared memory.

    arguments: by parameter, in order: its size in bytes and what is in it.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[tuple[int, tuple[Buffer | Number, ...]], ...]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers, in order."""
        return tuple(item for _, items in self.arguments for item in items if isinstance(item, Buffer))


@dataclass(frozen=True)
class Choices:
    """The user's settings of a launch; None for a generated value. arguments: name or position → text. seed: of random
    data."""

    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    shared: int | None = None
    arguments: Mapping[str, str] | None = None
    seed: int = 0


def make_inputs(kernel: Kernel, choices: Choices) -> Inputs:
    """Inputs for one launch. Raises NeutrinoError for choices that do not fit the kernel, or a file that is not there.

    Pointers get buffers of 1 MiB, or more where the launch has more threads; integers the number of threads.
    """
    block = choices.block or kernel.block or (THREADS, 1, 1)
    if kernel.exact and kernel.block and block != kernel.block:
        wanted, given = (",".join(map(str, extents)) for extents in (kernel.block, block))
        raise NeutrinoError(f"--block {given}: the kernel says .reqntid {wanted}, and runs with that alone")
    grid = choices.grid or (BLOCKS, 1, 1)
    shared = choices.shared if choices.shared is not None else _SHARED_BYTES if kernel.dynamic_shared else 0
    _check_launch(grid, block, shared)
    generator = _ArgumentGenerator(math.prod(grid) * math.prod(block), choices)
    values = [value for _, values in kernel.parameters for value in values]
    texts = _texts(values, choices.arguments or {})
    arguments = tuple(
        (parameter.size, tuple(generator.argument(value, texts.get(value.name)) for value in values))
        for parameter, values in kernel.parameters
    )
    return Inputs(grid, block, shared, arguments)


def _check_launch(grid: tuple[int, int, int], block: tuple[int, int, int], shared: int) -> None:
    """Raise NeutrinoError for a launch that the device does not take."""
    for option, extents, most in (("grid", grid, _MOST_GRID), ("block", block, _MOST_BLOCK)):
        if any(extent > limit for extent, limit in zip(extents, most, strict=True)):
            given, limits = (",".join(map(str, numbers)) for numbers in (extents, most))
            raise NeutrinoError(f"--{option} {given}: the device takes up to {limits}")
    if math.prod(block) > _MOST_THREADS:
        given = ",".join(map(str, block))
        raise NeutrinoError(f"--block {given}: {math.prod(block):,} threads, but a block has up to {_MOST_THREADS:,}")
    if shared > MOST_SHARED:
        raise NeutrinoError(f"--shared {shared}: a block has up to {MOST_SHARED:,} bytes (227 KiB) of shared memory")


def _texts(values: Sequence[Value], arguments: Mapping[str, str]) -> dict[str, str]:
    """The user's arguments, by the value's name."""
    names = [value.name for value in values]
    texts = {}
    for key, text in arguments.items():
        if key in names:
            texts[key] = text
        elif re.fullmatch(r"\d+", key) and int(key) < len(names):
            texts[names[int(key)]] = text
        else:
            known = ", ".join(f"{name} ({position})" for position, name in enumerate(names)) or "none"
            raise NeutrinoError(f"--arg {key}: the kernel's arguments are {known}")
    return texts


class _ArgumentGenerator:
    """Generates arguments, from one source of random numbers so that no two buffers are alike."""

    def __init__(self, threads: int, choices: Choices) -> None:
        self._threads = threads
        self._random_numbers = np.random.default_rng(choices.seed)

    def argument(self, value: Value, text: str | None) -> Buffer | Number:
        """One argument. text: the user's, if any."""
        if value.role is Role.POINTER:
            if text is None and not (value.loads or value.stores or value.updates):
                return Number(value, bytes(value.size), "null, never used")
            return self._buffer(value) if text is None else self._given_buffer(value, text)
        return self._number(value) if text is None else self._given_number(value, text)

    def _buffer(self, value: Value) -> Buffer:
        kind = element_type(value.type)
        size = max(_BUFFER_BYTES, 4 * self._threads * kind.dtype.itemsize)
        count = min(size, _MOST_BYTES) // kind.dtype.itemsize
        if not value.loads:
            return Buffer(value, kind, bytes(count * kind.dtype.itemsize), "zeros")
        return Buffer(value, kind, self._random(kind, count), "random")

    def _random(self, kind: ElementType, count: int) -> bytes:
        # Integers that are read may be indices, so they stay below what every buffer holds.
        return kind.random(count, self._threads, self._random_numbers).tobytes()

    def _given_buffer(self, value: Value, text: str) -> Buffer:
        kind = element_type(value.type)
        if text.startswith("@"):
            return _file_buffer(value, kind, text[1:])
        match = _BUFFER.fullmatch(text)
        if match is None:
            raise NeutrinoError(
                f"--arg {value.name}={text}: a pointer takes TYPE:COUNT, TYPE:COUNT=NUMBER or @FILE; "
                f"TYPE is one of {', '.join(NAMES)}"
            )
        kind, count = ElementType(match["type"]), int(match["count"])
        if not 0 < count * kind.dtype.itemsize <= _MOST_BYTES:
            raise NeutrinoError(f"--arg {value.name}={text}: a buffer takes 1 to {_MOST_BYTES} bytes")
        if match["fill"] is None:
            return Buffer(value, kind, self._random(kind, count), "random")
        number = _parsed(value, match["fill"], kind.is_float)
        try:
            filled = np.full(count, number, "f8" if kind.is_float else kind.dtype)
        except OverflowError:
            raise NeutrinoError(f"--arg {value.name}={text}: {kind.name} does not hold {number}") from None
        with np.errstate(over="ignore"):
            data = kind.encode(filled).tobytes()
        if kind.is_float and math.isfinite(number) and np.isinf(kind.decode(data)[0]):
            raise NeutrinoError(f"--arg {value.name}={text}: {kind.name} does not hold {number:g}")
        return Buffer(value, kind, data, f"all {match['fill']}")

    def _number(self, value: Value) -> Number:
        if value.role is Role.FLOAT:
            return _encoded(value, _PLAIN_FLOAT)
        return _encoded(value, min(self._threads, (1 << (8 * value.size - 1)) - 1))

    def _given_number(self, value: Value, text: str) -> Number:
        return _encoded(value, _parsed(value, text, value.role is Role.FLOAT))


def _parsed(value: Value, text: str, is_float: bool) -> int | float:
    try:
        number = float(text) if is_float else int(text, 0)
    except ValueError:
        kind = "a number" if is_float else "an integer"
        raise NeutrinoError(f"--arg {value.name}={text}: it takes {kind}") from None
    # Python reads digits that no float holds as an infinity.
    if is_float and math.isinf(number) and "inf" not in text.lower():
        raise NeutrinoError(f"--arg {value.name}={text}: {value.type or 'a fraction'} does not hold it; write inf")
    return number


def _encoded(value: Value, number: int | float) -> Number:
    bits = 8 * value.size
    if value.role is Role.FLOAT:
        try:
            data = struct.pack("<f" if value.type == "bf16" else _FLOAT_FORMATS[value.type], number)
        except OverflowError:
            raise NeutrinoError(f"--arg {value.name}={number:g}: {value.type} does not hold it") from None
        data = data[2:] if value.type == "bf16" else data
        return Number(value, data.ljust(value.size, b"\0"), f"{number:g}")
    whole = int(number)
    if not -(1 << (bits - 1)) <= whole < 1 << bits:
        raise NeutrinoError(f"--arg {value.name}={whole}: it has {bits} bits")
    return Number(value, (whole & ((1 << bits) - 1)).to_bytes(value.size, "little"), str(whole))


def _file_buffer(value: Value, kind: ElementType, path: str) -> Buffer:
    # A pipe may never end.
    if Path(path).exists() and not Path(path).is_file():
        raise NeutrinoError(f"--arg {value.name}=@{path}: cannot be read: it is not a regular file")
    try:
        data = Path(path).read_bytes()
        if path.endswith(".npy"):
            data = np.load(path, allow_pickle=False).tobytes()
    except (OSError, ValueError) as error:
        words = (error.strerror if isinstance(error, OSError) else None) or error
        raise NeutrinoError(f"--arg {value.name}=@{path}: cannot be read: {words}") from error
    if not data:
        raise NeutrinoError(f"--arg {value.name}=@{path}: the file is empty")
    return Buffer(value, kind, data, f"from {path}")
