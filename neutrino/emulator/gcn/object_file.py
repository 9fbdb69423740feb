"""A code object in memory: its segments loaded and relocated, as the HSA runtime does, and its kernels.

It reads the file by itself, since what it judges is written by Neutrino.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from neutrino.emulator.gcn.errors import GcnError
from neutrino.emulator.gcn.kernel import DESCRIPTOR_SIZE, Descriptor, read_descriptor
from neutrino.emulator.gcn.launch import Dimensions, Observer, Statistics, launch
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.program import Program

Disassemble = Callable[[bytes, str, str], "list[tuple[int, int, str | None]]"]
"""Code, processor and features → offset, size and text of its instructions, None for words that are none."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_AMDGPU = 224
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_SHT_SYMTAB, _SHT_RELA, _SHT_DYNSYM = 2, 4, 11
_STT_OBJECT, _STT_FUNC = 1, 2
_NT_METADATA = 32
_ABS32_LO, _ABS32_HI, _ABS64, _RELATIVE64 = 1, 2, 3, 13
_PAGE = 4096
# LLVM, "AMDGPU ELF Header e_flags".
_MACHINES = {
    0x2C: "gfx900", 0x2F: "gfx906", 0x30: "gfx908", 0x33: "gfx1010", 0x36: "gfx1030", 0x3F: "gfx90a", 0x41: "gfx1100",
    0x46: "gfx1101", 0x47: "gfx1102", 0x48: "gfx1200", 0x49: "gfx1250", 0x4C: "gfx942", 0x4E: "gfx1201",
    0x4F: "gfx950", 0x44: "gfx1103", 0x43: "gfx1150", 0x4A: "gfx1151",
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """An argument of a kernel as the metadata have it. kind: ``global_buffer``, ``by_value``, ``hidden_…``."""

    offset: int
    size: int
    kind: str
    name: str


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel. entry: address of its code in the code object. arguments: in the order of the metadata."""

    name: str
    descriptor: Descriptor
    entry: int
    arguments: tuple[Argument, ...]

    def pack(self, values: Sequence[bytes]) -> bytes:
        """Return the arguments as the kernel reads them. values: of those that are not hidden, in their order.

        Raises GcnError for another number of values, or a value of another size.
        """
        explicit = [argument for argument in self.arguments if not argument.kind.startswith("hidden_")]
        if len(values) != len(explicit):
            raise GcnError(f"{len(values)} arguments for {self.name}, which has {len(explicit)}")
        packed = bytearray(self.descriptor.kernarg)
        for argument, value in zip(explicit, values, strict=True):
            if len(value) != argument.size:
                raise GcnError(f"{len(value)} bytes for argument {argument.name} of {argument.size}")
            packed[argument.offset : argument.offset + argument.size] = value
        return bytes(packed)

    def hidden(self, grid: Dimensions, block: Dimensions) -> dict[int, bytes]:
        """Return the hidden arguments that describe a launch, by offset; the others are 0."""
        dimensions = 3 if grid[2] * block[2] > 1 else 2 if grid[1] * block[1] > 1 else 1
        values = {"hidden_grid_dims": dimensions}
        for axis, letter in enumerate("xyz"):
            values[f"hidden_block_count_{letter}"] = grid[axis]
            values[f"hidden_group_size_{letter}"] = block[axis]
            values[f"hidden_remainder_{letter}"] = 0
            values[f"hidden_global_offset_{letter}"] = 0
        return {
            argument.offset: values.get(argument.kind, 0).to_bytes(argument.size, "little")
            for argument in self.arguments
            if argument.kind.startswith("hidden_")
        }


class LoadedObject:
    """A code object that has been loaded. base: what is added to its addresses. kernels: by name. symbols: addresses
    in memory by name, of variables and functions. variables: address in memory and size, by name."""

    def __init__(self, data: bytes, memory: Memory, disassemble: Disassemble) -> None:
        """Load it. Raises GcnError for a file that cannot be loaded."""
        self._data = data
        self.memory = memory
        self._disassemble = disassemble
        header = _HEADER.unpack_from(data)
        if header[0][:4] != b"\x7fELF" or header[2] != _AMDGPU:
            raise GcnError("no code object of AMD")
        flags = header[7]
        self.processor = _MACHINES.get(flags & 0xFF, "")
        if not self.processor:
            raise GcnError(f"a processor that the interpreter does not know ({flags & 0xFF:#x})")
        self._segments = [_SEGMENT.unpack_from(data, header[5] + i * header[9]) for i in range(header[10])]
        self._sections = [_SECTION.unpack_from(data, header[6] + i * header[11]) for i in range(header[12])]
        loads = [row for row in self._segments if row[0] == _PT_LOAD]
        if not loads:
            raise GcnError("nothing to load")
        self.end = max(row[3] + row[6] for row in loads)
        # Like ROCr's loader, which reserves all of them as one span.
        self.base = memory.allocate(self.end, _PAGE)
        self._image = bytearray(self.end)
        for _, _, offset, address, _, in_file, in_memory, _ in loads:
            part = data[offset : offset + in_file] + bytes(in_memory - in_file)
            self._image[address : address + in_memory] = part
        begin = 0
        for row in sorted(loads, key=lambda row: row[3]):
            if row[3] < begin or row[2] % _PAGE != row[3] % _PAGE:
                raise GcnError(f"the segment at {row[3]:#x} overlaps another, or no page of the file can be there")
            begin = row[3] + row[6]
        self._read_symbols()
        self._relocate()
        memory.write(self.base, bytes(self._image))
        self.kernels = self._read_kernels()
        self._programs: dict[int, Program] = {}

    def _read_symbols(self) -> None:
        """Read the symbols of both tables, which must agree."""
        self.symbols: dict[str, int] = {}
        self.variables: dict[str, tuple[int, int]] = {}
        self._functions: list[tuple[int, int]] = []
        self._by_table: dict[int, list[tuple[str, int]]] = {}
        for section in self._sections:
            if section[1] not in (_SHT_SYMTAB, _SHT_DYNSYM):
                continue
            strings = self._sections[section[6]]
            names = self._data[strings[4] : strings[4] + strings[5]]
            rows = self._by_table.setdefault(section[1], [])
            for at in range(section[4], section[4] + section[5], _SYMBOL.size):
                name_at, info, _, index, value, size = _SYMBOL.unpack_from(self._data, at)
                name = names[name_at : names.index(b"\0", name_at)].decode()
                rows.append((name, value))
                if index and name and index < 0xFF00:
                    self.symbols[name] = self.base + value
                    if info & 15 == _STT_FUNC and size:
                        self._functions.append((value, size))
                    elif info & 15 == _STT_OBJECT and not name.endswith(".kd"):
                        self.variables[name] = self.base + value, size

    def _relocate(self) -> None:
        """Apply the code object's relocations: write addresses in memory to the places that need them."""
        dynamic = self._by_table.get(_SHT_DYNSYM, [])
        for section in self._sections:
            if section[1] != _SHT_RELA or not section[2] & 2:
                continue
            for at in range(section[4], section[4] + section[5], _RELOCATION.size):
                offset, info, addend = _RELOCATION.unpack_from(self._data, at)
                kind, symbol = info & 0xFFFF_FFFF, info >> 32
                value = self.base + addend + (dynamic[symbol][1] if symbol else 0)
                if kind in (_ABS64, _RELATIVE64):
                    struct.pack_into("<Q", self._image, offset, value & (1 << 64) - 1)
                elif kind in (_ABS32_LO, _ABS32_HI):
                    struct.pack_into("<I", self._image, offset, value >> (32 * (kind == _ABS32_HI)) & 0xFFFF_FFFF)
                else:
                    raise GcnError(f"relocation {kind}")

    def _metadata(self) -> dict[str, Any]:
        """Return the code object's metadata note, a msgpack map; {} without one."""
        for segment in self._segments:
            if segment[0] != _PT_NOTE:
                continue
            at, end = segment[2], segment[2] + segment[5]
            while at + 12 <= end:
                name_size, size, kind = struct.unpack_from("<III", self._data, at)
                content = at + 12 + -(-name_size // 4) * 4
                if kind == _NT_METADATA and self._data[at + 12 : at + 18] == b"AMDGPU":
                    found: dict[str, Any] = msgpack.unpackb(self._data[content : content + size])
                    if found:
                        return found
                at = content + -(-size // 4) * 4
        return {}

    def _read_kernels(self) -> dict[str, LoadedKernel]:
        """Return the kernels by name, from the metadata and their descriptors. Raises GcnError where these do not fit.
        """
        kernels = {}
        for row in self._metadata().get("amdhsa.kernels", []):
            symbol = self.symbols.get(row[".symbol"])
            if symbol is None:
                raise GcnError(f"no symbol {row['.symbol']}")
            for rows in self._by_table.values():
                # Runtimes look into one table or the other.
                if [at for name, at in rows if name == row[".symbol"]] != [symbol - self.base]:
                    raise GcnError(f"{row['.symbol']} is not once in each table of symbols, with one address")
            at = symbol - self.base
            descriptor = read_descriptor(bytes(self._image[at : at + DESCRIPTOR_SIZE]))
            for key, value in (
                (".kernarg_segment_size", descriptor.kernarg), (".group_segment_fixed_size", descriptor.lds),
                (".private_segment_fixed_size", descriptor.scratch), (".wavefront_size", descriptor.lanes),
            ):  # fmt: skip
                if row[key] != value:
                    raise GcnError(f"{row['.name']}: {key} is {row[key]} in the note, {value} in the descriptor")
            arguments = tuple(
                Argument(part[".offset"], part[".size"], part[".value_kind"], part.get(".name", ""))
                for part in row.get(".args", [])
            )
            kernels[row[".name"]] = LoadedKernel(row[".name"], descriptor, at + descriptor.entry, arguments)
        return kernels

    def program(self, lanes: int) -> Program:
        """Return the code, as waves of 32 or 64 lanes run it."""
        found = self._programs.get(lanes)
        if found is None:
            features = ""
            if lanes == 64 and not self.processor.startswith("gfx9"):
                features = "+wavefrontsize64,-wavefrontsize32"
            rows: list[tuple[int, int, str | None]] = []
            # A function reaches to the next one: padding is never executed.
            for address, size in sorted(set(self._functions)):
                code = bytes(self._image[address : address + size])
                rows += [
                    (address + offset, length, text)
                    for offset, length, text in self._disassemble(code, self.processor, features)
                ]
            found = self._programs[lanes] = Program(dict.fromkeys(rows), self.processor, lanes)
        return found

    def run(
        self,
        name: str,
        grid: Dimensions,
        block: Dimensions,
        arguments: bytes,
        *,
        dynamic_lds: int = 0,
        seed: int | None = None,
        poison: int = 0,
        checks: bool = False,
        observer: Observer | None = None,
        limit: int = 20_000_000,
    ) -> Statistics:
        """Run a kernel. arguments: the explicit ones, packed; hidden ones are added. The others: as ``launch``.

        Raises GcnError for a kernel that is not there, and as ``launch``.
        """
        kernel = self.kernels.get(name)
        if kernel is None:
            raise GcnError(f"no kernel {name}; there are {', '.join(self.kernels) or 'none'}")
        packed = bytearray(arguments.ljust(kernel.descriptor.kernarg, b"\0"))
        for offset, value in kernel.hidden(grid, block).items():
            packed[offset : offset + len(value)] = value
        return launch(
            self.program(kernel.descriptor.lanes), kernel.descriptor, kernel.entry, self.memory, grid, block,
            bytes(packed), base=self.base, dynamic_lds=dynamic_lds, seed=seed, poison=poison, checks=checks,
            observer=observer, limit=limit,
        )  # fmt: skip
