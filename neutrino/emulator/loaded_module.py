"""A PTX module loaded on a device: its variables placed in memory and initialised, its kernels by name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from neutrino.emulator.address_space import OutOfMemoryError, Window
from neutrino.emulator.code import module_code
from neutrino.emulator.constant_expressions import evaluate_integer, float_bits
from neutrino.emulator.datatypes import TYPES
from neutrino.emulator.kernel import Kernel, kernel_of
from neutrino.emulator.text import Declaration, FunctionText, split_operands
from neutrino.errors import PtxRefusedError

# ``0xFF00(name)``: one byte of an address; and ``generic(name)``.
_MASKED = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)\s*\(\s*(.+)\s*\)", re.DOTALL)
_GENERIC = re.compile(r"generic\s*\(\s*([^()]+?)\s*\)")
_SYMBOL = re.compile(r"([A-Za-z_$%][\w$]*)\s*(?:([-+])\s*(.+))?", re.ASCII | re.DOTALL)
_MAX_DEPTH = 8
"""How deep the lists of an initial value may be nested, and the most dimensions of an array that has one."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'", "a": "\a", "b": "\b"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel. offset: in the parameter buffer; offset, size and align are in bytes."""

    name: str
    offset: int
    size: int
    align: int


class Function:
    """A kernel of a loaded module.

    text: its parsed source. Sizes are in bytes. parameter_size: of the packed buffer. shared_size: static shared memory
    per block. local_size: of the kernel's own stack frame, per thread. directives: name → numbers, of ``.reqntid``,
    ``.maxntid`` …
    """

    def __init__(self, module: LoadedModule, text: FunctionText) -> None:
        """module: that it is in. text: the kernel, parsed."""
        self.module = module
        self.name = text.name
        self.text = text
        self.directives: Mapping[str, tuple[int, ...]] = MappingProxyType(dict(text.directives))
        self.parameters = tuple(
            Parameter(variable.name, variable.place, variable.size, variable.alignment)
            for variable in module.code.parameters_of(text.name)
        )
        self.parameter_size = max((parameter.offset + parameter.size for parameter in self.parameters), default=0)

    @property
    def kernel(self) -> Kernel:
        """The kernel, resolved. Raises PtxRefusedError for a feature that the device does not have."""
        return kernel_of(self.module.code, self.name)

    def refused(self, message: str) -> PtxRefusedError:
        """Return the error to raise for a launch that this kernel does not support."""
        return PtxRefusedError(self.text.line, self.text.text, message)

    @property
    def shared_size(self) -> int:
        """Bytes of static shared memory per thread block."""
        return self.kernel.shared_size

    @property
    def local_size(self) -> int:
        """Bytes of the kernel's own stack frame, per thread."""
        return self.kernel.frame_size


class LoadedModule:
    """A PTX text on a device.

    functions: its kernels, by name. variables: name → (address, size) of its ``.global`` and ``.const`` variables.
    addresses: of these variables, by their number in the module. code: what depends on the text alone.
    """

    def __init__(self, text: str, heap: Window, constants: Window) -> None:
        """Load a text: ``.global`` variables go into ``heap``, ``.const`` ones into ``constants``.

        Raises PtxRefusedError if the text is not supported, a variable does not fit, or its value cannot be read.
        """
        self.code = module_code(text)
        self.addresses: list[np.uint64] = []
        # What ``unload`` has to free: (window, address).
        self._allocated: list[tuple[Window, int]] = []
        self._places: dict[str, tuple[int, int]] = {}  # ``variables``, while it is filled
        try:
            self._place_variables(heap, constants)
        except PtxRefusedError:
            # The memory of the variables before the refused one.
            self.unload()
            raise
        self.functions: Mapping[str, Function] = MappingProxyType(
            {
                name: Function(self, function)
                for name, function in self.code.texts.items()
                if function.entry and function.items is not None
            }
        )
        # Those of bodies, whose names end in a space, are nobody's to ask for.
        self.variables: Mapping[str, tuple[int, int]] = MappingProxyType(
            {name: place for name, place in self._places.items() if not name.endswith(" ")}
        )

    def unload(self) -> None:
        """Free the memory of its variables."""
        for window, address in self._allocated:
            window.free(address)
        self._allocated.clear()

    def _place_variables(self, heap: Window, constants: Window) -> None:
        """Allocate the variables, then initialise them: a value may be the address of a variable further down."""
        for declaration in self.code.declarations:
            variable = self.code.variables[declaration.name]
            size = variable.size
            if size == 0 and declaration.initialiser:
                size = self._open_size(declaration)
            window = constants if declaration.space == "const" else heap
            # An allocation has at least one byte.
            try:
                address = window.allocate(max(size, 1), variable.alignment)
            except OutOfMemoryError as error:
                raise PtxRefusedError(declaration.line, declaration.text, "no memory for the variable") from error
            self._allocated.append((window, address))
            self.addresses.append(np.uint64(address))
            self._places[declaration.name] = (address, size)
        for declaration in self.code.declarations:
            address, size = self._places[declaration.name]
            window = constants if declaration.space == "const" else heap
            start = address - window.base
            content = self._content(declaration, size)
            # Written directly: kernels cannot write constants, the device can.
            window.buffer[start : start + size] = np.frombuffer(content, np.uint8)

    def _open_size(self, declaration: Declaration) -> int:
        """Return the size in bytes of an array of open size (``a[] = { … }``), which its initialiser determines.

        Only the first dimension can be open: it is the number of elements of the outer list.
        """
        element_size = TYPES[declaration.type].itemsize * declaration.vector
        elements_per_row = 1
        for dimension in declaration.dimensions[1:]:
            elements_per_row *= dimension or 1
        text = declaration.initialiser.strip()
        if text.startswith('"'):
            return len(_string(text)) + 1  # and a zero byte, as in C
        rows = len(_list(text))
        return element_size * elements_per_row * rows

    def _content(self, declaration: Declaration, size: int) -> bytes:
        """Return the initial bytes of a variable, zeros where it has no value.

        Raises PtxRefusedError for more values than ``size`` bytes and for a value that cannot be read.
        """
        text = declaration.initialiser.strip()
        if not text:
            return bytes(size)
        if text.startswith('"'):
            content = _string(text)
        else:
            # Only the first may be open (None); its extent is in ``size``.
            dimensions = [dimension or 0 for dimension in declaration.dimensions]
            content = self._values(declaration, text, dimensions)
        if len(content) > size:
            raise PtxRefusedError(declaration.line, declaration.text, "more values than the variable holds")
        return content + bytes(size - len(content))

    def _values(self, declaration: Declaration, text: str, dimensions: list[int], depth: int = 0) -> bytes:
        """Return the bytes of one value, or of a list ``{a, {b, c}}`` of values.

        dimensions: those of the array that the list fills, outermost first. An inner list that is too short for its
        row is filled with zeros (PTX ISA 5.4.4). depth: how many lists enclose the text.
        """
        dtype = TYPES[declaration.type]
        if not text.startswith("{"):
            return self._value(declaration, text, dtype)
        if depth + len(dimensions) > _MAX_DEPTH:
            raise PtxRefusedError(declaration.line, declaration.text, "too many dimensions")
        # The elements of the outermost dimension are the rows.
        row_size = dtype.itemsize * declaration.vector * math.prod(dimensions[1:])
        rows = []
        for part in _list(text):
            row = self._values(declaration, part, dimensions[1:], depth + 1)
            if part.startswith("{"):
                row += bytes(max(row_size - len(row), 0))
            rows.append(row)
        return b"".join(rows)

    def _value(self, declaration: Declaration, text: str, dtype: np.dtype[Any]) -> bytes:
        """Return the bytes of one value of type ``dtype``: a number, an address, or one byte of an address.

        declaration: the variable that is initialised, for messages. Raises PtxRefusedError for other text.
        """
        shift = 0
        masked = _MASKED.fullmatch(text)
        if masked is not None:
            # 0xFF00(name): the byte of an address that the mask selects, here by the number of its lowest set bit.
            mask_text, text = masked[1], masked[2].strip()
            mask = int(mask_text, 0)
            while mask and not mask >> shift & 1:
                shift += 1
        value = self._address(text)
        if value is None:
            float_constant = float_bits(text)
            if float_constant is not None:
                return _float_bytes(*float_constant, dtype)
            value = evaluate_integer(text)
        if value is None:
            raise PtxRefusedError(declaration.line, declaration.text, f"cannot read the value {text!r}")
        if dtype.kind == "f" and dtype.itemsize > 2:
            # For an f32 or f64 an integer is a number; for an f16 it is the bits.
            return np.array([value]).astype(dtype).tobytes()
        return (value >> shift & (1 << 8 * dtype.itemsize) - 1).to_bytes(dtype.itemsize, "little")

    def _address(self, text: str) -> int | None:
        """Return the address that ``name``, ``name + offset`` or ``generic(name)`` stands for.

        Returns None for other text and for names of neither a variable nor a function.
        """
        # Generic addresses of global and constant memory are the addresses themselves, so generic() changes nothing.
        match = _SYMBOL.fullmatch(_GENERIC.sub(r"\1", text))
        if match is None:
            return None
        name, sign, distance = match.groups()
        offset = evaluate_integer(distance) if sign else 0
        if offset is None:
            return None
        if name in self._places:
            base, _size = self._places[name]
        elif name in self.code.function_addresses:
            base = self.code.function_addresses[name]
        else:
            return None
        return base - offset if sign == "-" else base + offset


def _float_bytes(bits: int, size: int, dtype: np.dtype[Any]) -> bytes:
    """Return a floating-point constant as a value of type ``dtype``. bits, size: of the constant, as ``float_bits``.

    For an untyped value (``.b32`` …) the rules are those of ptxas 13: a double becomes an f32 where 32 bits are asked
    for; else the bits are cut off, or extended by zeros.
    """
    number = np.array([bits], f"u{size}").view(f"f{size}")
    if size == 8 and dtype == np.dtype("u4"):
        dtype = np.dtype("f4")
    if dtype.kind == "f":
        # A number that is too large becomes an infinity.
        with np.errstate(all="ignore"):
            return number.astype(dtype).tobytes()
    return number.tobytes()[: dtype.itemsize].ljust(dtype.itemsize, b"\0")


def _list(text: str) -> tuple[str, ...]:
    """Return the elements of ``{a, b}``, or the text itself if it is no list. A comma may follow the last element."""
    if not (text.startswith("{") and text.endswith("}")):
        return (text,)
    inside = text[1:-1].strip().rstrip(",")
    return split_operands(inside)


def _string(text: str) -> bytes:
    """Return the bytes of a string literal, given with its quotes, with escape sequences replaced as in C.

    One character is one byte (latin-1). There is no zero byte at the end.
    """

    def replaced(match: re.Match[str]) -> str:
        """Return the character of one escape sequence: hexadecimal, octal, or a single letter."""
        hexadecimal, octal, letter = match.groups()
        if hexadecimal:
            return chr(int(hexadecimal, 16))
        if octal:
            return chr(int(octal, 8) & 0xFF)  # three octal digits have nine bits
        return _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(replaced, text[1:-1]).encode("latin-1", "replace")
