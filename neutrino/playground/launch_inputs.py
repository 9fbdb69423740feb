"""The inputs of a launch: generated from the kernel's parameters, or given by the user."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from neutrino.errors import NeutrinoError
from neutrino.playground.elements import NAMES, ElementType, element_type
from neutrino.twins.kernel_text import Kernel, Role, Value

THREADS = 128
"""Threads of a block where the kernel does not say."""
BLOCKS = 4
"""Blocks of the grid where the user does not say."""
_BUFFER_BYTES = 1 << 20
"""The least size of a generated buffer."""
_ELEMENTS_PER_THREAD = 4
"""Elements of a generated buffer, at least: threads that work on a few elements each, as with ``.v4``, stay inside."""
_SHARED_BYTES = 32 << 10
"""Dynamic shared memory of a kernel that uses it, where the user does not say."""
_MAX_BUFFER_BYTES = 128 << 20
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", 9.0; by axis where there are three.
_MAX_THREADS = 1024
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = ((1 << 31) - 1, 65535, 65535)
MOST_SHARED = 227 << 10
"""Bytes of shared memory that a block may have, the kernel's own included."""
_DEFAULT_FLOAT = 1.5
"""The value of a generated floating-point argument."""
_BUFFER = re.compile(rf"(?P<type>{'|'.join(NAMES)}):(?P<count>\d+)(?:=(?P<fill>.+))?")
_FRACTION = re.compile(r"[-+]?(\d+\.\d*|\.\d+)(e[-+]?\d+)?|[-+]?\d+e[-+]?\d+|[-+]?inf|nan", re.IGNORECASE)
_FLOAT_FORMATS = {"f16": "<e", "f32": "<f", "f64": "<d"}  # for ``struct``


@dataclass(frozen=True)
class Buffer:
    """Device memory for a pointer argument.

    value: the pointer in the kernel's parameters. type: of the elements. data: its bytes before the launch. origin:
    where these bytes come from, for people: "random", "zeros", "from FILE" …
    """

    value: Value
    type: ElementType
    data: bytes
    origin: str

    @property
    def elements(self) -> int:
        """How many elements the buffer holds."""
        return len(self.data) // self.type.dtype.itemsize


@dataclass(frozen=True)
class Number:
    """An argument that is a number, or a null pointer. data: its bytes, little-endian. text: the number, for people.

    value: the number's place in the kernel's parameters.
    """

    value: Value
    data: bytes
    text: str


@dataclass(frozen=True)
class Inputs:
    """The inputs of one launch. grid: in blocks. block: in threads. shared: bytes of dynamic shared memory per block.

    arguments: of each parameter, in order, its size in bytes and the values in it.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[tuple[int, tuple[Buffer | Number, ...]], ...]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers among the launch's arguments, in their order."""
        return tuple(item for _, items in self.arguments for item in items if isinstance(item, Buffer))


@dataclass(frozen=True)
class Choices:
    """The user's settings of a launch; None for a generated value.

    arguments: name or position of a value → text. seed: of random data.
    """

    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    shared: int | None = None
    arguments: Mapping[str, str] | None = None
    seed: int = 0


def make_inputs(kernel: Kernel, choices: Choices) -> Inputs:
    """Return the inputs of one launch: the user's choices, and generated values for the rest.

    Pointers get buffers of 1 MiB, or more where the launch has more threads; integers the number of threads. Raises
    NeutrinoError for choices that do not fit the kernel, and for a file that cannot be read.
    """
    block = choices.block or kernel.block or (THREADS, 1, 1)
    # With ``.reqntid`` the kernel takes this block alone; with ``.maxntid`` also smaller ones.
    if kernel.exact and kernel.block and block != kernel.block:
        required, chosen = (",".join(map(str, extents)) for extents in (kernel.block, block))
        raise NeutrinoError(f"--block {chosen}: the kernel says .reqntid {required}, and runs with that alone")
    grid = choices.grid or (BLOCKS, 1, 1)
    default_shared = _SHARED_BYTES if kernel.dynamic_shared else 0
    shared = choices.shared if choices.shared is not None else default_shared
    _check_launch(grid, block, shared, kernel)

    generator = _ArgumentGenerator(math.prod(grid) * math.prod(block), choices)
    texts = _argument_texts(kernel, choices.arguments or {})
    arguments = tuple(
        (parameter.size, tuple(generator.argument(value, texts.get(value.name)) for value in values))
        for parameter, values in kernel.parameters
    )
    return Inputs(grid, block, shared, arguments)


def _check_launch(
    grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, kernel: Kernel
) -> None:
    """Raise NeutrinoError for a launch beyond the limits of the device or the kernel.

    shared: bytes of dynamic shared memory.
    """
    for option, extents, limits in (("grid", grid, _MAX_GRID), ("block", block, _MAX_BLOCK)):
        if any(extent > limit for extent, limit in zip(extents, limits, strict=True)):
            extents_text, limits_text = (",".join(map(str, numbers)) for numbers in (extents, limits))
            raise NeutrinoError(f"--{option} {extents_text}: the device takes up to {limits_text}")
    if math.prod(block) > _MAX_THREADS:
        block_text = ",".join(map(str, block))
        raise NeutrinoError(
            f"--block {block_text}: {math.prod(block):,} threads, but a block has up to {_MAX_THREADS:,}"
        )
    if kernel.most_threads is not None and math.prod(block) > kernel.most_threads:
        block_text = ",".join(map(str, block))
        raise NeutrinoError(
            f"--block {block_text}: {math.prod(block):,} threads, but the kernel was compiled for blocks of up to "
            f"{kernel.most_threads:,}"
        )
    if kernel.most_shared is not None and shared > kernel.most_shared:
        raise NeutrinoError(
            f"--shared {shared}: beside its own, a block of this kernel has up to {kernel.most_shared:,} bytes of "
            "shared memory"
        )
    if shared > MOST_SHARED:
        raise NeutrinoError(f"--shared {shared}: a block has up to {MOST_SHARED:,} bytes (227 KiB) of shared memory")


def _argument_texts(kernel: Kernel, arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the user's arguments (``--arg KEY=TEXT``) by the name of the value.

    arguments: by name or by the parameter's position, from 0, as probes count them; of a part of a structure with its
    byte, as ``4+8``. Raises NeutrinoError for a key that is neither.
    """
    keys: dict[str, str] = {}
    known = []
    for position, (parameter, values) in enumerate(kernel.parameters):
        if not values:
            known.append(f"{parameter.name} ({position}), which is not read")
        for value in values:
            number = f"{position}{value.name.removeprefix(parameter.name)}"
            keys |= {value.name: value.name, number: value.name}
            known.append(f"{value.name} ({number})")
    texts = {}
    for key, text in arguments.items():
        # Positions may have zeros in front.
        plain = re.sub(r"\A0+(?=\d)", "", key)
        if key not in keys and plain not in keys:
            raise NeutrinoError(f"--arg {key}: the kernel's arguments are {', '.join(known) or 'none'}")
        texts[keys.get(key) or keys[plain]] = text
    return texts


class _ArgumentGenerator:
    """Generates arguments, from one source of random numbers so that no two buffers are alike."""

    def __init__(self, threads: int, choices: Choices) -> None:
        """Set up a generator of random arguments for a launch. threads: of the whole launch."""
        self._threads = threads
        self._random_numbers = np.random.default_rng(choices.seed)

    def argument(self, value: Value, text: str | None) -> Buffer | Number:
        """Return an argument for a value of the kernel. text: what the user gave for it, None to generate one.

        Raises NeutrinoError for a text that does not fit the value.
        """
        if value.role is Role.POINTER:
            # Not accessed by the kernel, nor passed on, which counts as loads and stores: it needs no memory.
            if text is None and not (value.loads or value.stores or value.updates):
                return Number(value, bytes(value.size), "null, never used")
            return self._generated_buffer(value) if text is None else self._buffer_from_text(value, text)
        return self._generated_number(value) if text is None else _encoded_text(value, text)

    def _generated_buffer(self, value: Value) -> Buffer:
        """Return a buffer for a pointer of the kernel, whose size its PTX does not say.

        It has 1 MiB, or 4 elements per thread if that is more, but at most 128 MiB.
        Its contents are random if the kernel loads from it, else zeros.
        """
        element = element_type(value.type)
        size = max(_BUFFER_BYTES, _ELEMENTS_PER_THREAD * self._threads * element.dtype.itemsize)
        count = min(size, _MAX_BUFFER_BYTES) // element.dtype.itemsize
        if not value.loads:
            return Buffer(value, element, bytes(count * element.dtype.itemsize), "zeros")
        return Buffer(value, element, self._random(element, count), "random")

    def _random(self, element: ElementType, count: int) -> bytes:
        """Return ``count`` random elements: fractions from -1 to 1, or integers below the number of threads."""
        # The kernel may use integers that it loads as indices. A generated buffer has at least 4 elements per thread,
        # unless that is more than 128 MiB.
        return element.random(count, self._threads, self._random_numbers).tobytes()

    def _buffer_from_text(self, value: Value, text: str) -> Buffer:
        """Return the buffer that ``TYPE:COUNT`` (random), ``TYPE:COUNT=NUMBER`` or ``@FILE`` describes.

        TYPE may be another one than the analysis of the kernel found. Raises NeutrinoError for other text, for a size
        that is not allowed, and for a number that the type does not hold.
        """
        if text.startswith("@"):
            return _file_buffer(value, element_type(value.type), text[1:])
        match = _BUFFER.fullmatch(text)
        if match is None:
            raise NeutrinoError(
                f"--arg {value.name}={text}: a pointer takes TYPE:COUNT, TYPE:COUNT=NUMBER or @FILE; "
                f"TYPE is one of {', '.join(NAMES)}"
            )
        element, count = ElementType(match["type"]), int(match["count"])
        if not 0 < count * element.dtype.itemsize <= _MAX_BUFFER_BYTES:
            raise NeutrinoError(f"--arg {value.name}={text}: a buffer takes 1 to {_MAX_BUFFER_BYTES} bytes")
        if match["fill"] is None:
            return Buffer(value, element, self._random(element, count), "random")
        number = _parsed(value, match["fill"], is_float=element.is_float)
        # Fractions as doubles first: ``encode`` rounds them to the element type. Integers must fit as they are.
        try:
            numbers = np.full(count, number, "f8" if element.is_float else element.dtype)
        except OverflowError:
            raise NeutrinoError(f"--arg {value.name}={text}: {element.name} does not hold {number}") from None
        with np.errstate(over="ignore"):
            data = element.encode(numbers).tobytes()
        # A finite number that is too large for a float type becomes an infinity.
        if element.is_float and math.isfinite(number) and np.isinf(element.decode(data)[0]):
            raise NeutrinoError(f"--arg {value.name}={text}: {element.name} does not hold {number:g}")
        return Buffer(value, element, data, f"all {match['fill']}")

    def _generated_number(self, value: Value) -> Number:
        """Return 1.5 for a fraction; for an integer the number of threads, or the maximum of its size if less.

        An integer is often the number of elements, of which each thread usually computes one.
        """
        if value.role is Role.FLOAT:
            return _encoded(value, _DEFAULT_FLOAT)
        # The signed maximum: the kernel may read it as either.
        maximum = (1 << (8 * value.size - 1)) - 1
        return _encoded(value, min(self._threads, maximum))


def _encoded_text(value: Value, text: str) -> Number:
    """Return the number that the user gave for a value. Raises NeutrinoError if the text is none or does not fit.

    A fraction shows that what was taken for an integer is none.
    """
    if value.is_guessed and _FRACTION.fullmatch(text):
        value = replace(value, role=Role.FLOAT, type=f"f{8 * value.size}")
    return _encoded(value, _parsed(value, text, is_float=value.role is Role.FLOAT))


def _parsed(value: Value, text: str, *, is_float: bool) -> int | float:
    """Return the number that the user's text for a value stands for; integers may be written as ``0x10``.

    is_float: it may be a fraction. Raises NeutrinoError for a text that is none.
    """
    try:
        number = float(text) if is_float else int(text, 0)
    except ValueError:
        expected = "a number" if is_float else "an integer"
        raise NeutrinoError(f"--arg {value.name}={text}: it takes {expected}") from None
    # Python reads a number that is too large for a float as an infinity.
    if is_float and math.isinf(number) and "inf" not in text.lower():
        raise NeutrinoError(f"--arg {value.name}={text}: {value.type or 'a fraction'} does not hold it; write inf")
    return number


def _encoded(value: Value, number: int | float) -> Number:
    """Return a number as the little-endian bytes of a value. Raises NeutrinoError if its type does not hold it."""
    bits = 8 * value.size
    if value.role is Role.FLOAT:
        is_bf16 = value.type == "bf16"
        try:
            data = struct.pack("<f" if is_bf16 else _FLOAT_FORMATS[value.type], number)
        except OverflowError:
            raise NeutrinoError(f"--arg {value.name}={number:g}: {value.type} does not hold it") from None
        if is_bf16:
            data = data[2:]  # the upper half of an f32; its bytes come last
        # A type that is smaller than the value, as an f16 in 32 bits, is in the low bytes.
        return Number(value, data.ljust(value.size, b"\0"), f"{number:g}")
    integer = int(number)
    # PTX integers have no sign of their own: both signed and unsigned ones are accepted.
    if not -(1 << (bits - 1)) <= integer < 1 << bits:
        raise NeutrinoError(f"--arg {value.name}={integer}: it has {bits} bits")
    return Number(value, (integer & ((1 << bits) - 1)).to_bytes(value.size, "little"), str(integer))


def _file_buffer(value: Value, element: ElementType, path: str) -> Buffer:
    """Return a buffer with the contents of a file, or with the array of an ``.npy`` file.

    Raises NeutrinoError for a file that is empty or cannot be read.
    """
    # Reading a pipe might never end.
    if Path(path).exists() and not Path(path).is_file():
        raise NeutrinoError(f"--arg {value.name}=@{path}: cannot be read: it is not a regular file")
    try:
        data = Path(path).read_bytes()
        if path.endswith(".npy"):
            data = np.load(path, allow_pickle=False).tobytes()
    except (OSError, ValueError) as error:
        # The system's text alone: the whole message of an OSError repeats the path. NumPy's errors have none.
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise NeutrinoError(f"--arg {value.name}=@{path}: cannot be read: {reason}") from error
    if not data:
        raise NeutrinoError(f"--arg {value.name}=@{path}: the file is empty")
    return Buffer(value, element, data, f"from {path}")
