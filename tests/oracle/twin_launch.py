"""The host's side of a twin's launch, as the hook does it, on the embedded device.

Each section of each map (records, counts) is an allocation of its own, of exactly the bytes that the layout
gives it: one byte too far is a fault. Afterwards the sections are put together as ``region_layout`` says and
read by the reader that reads traces.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from zlib import crc32

import numpy as np

from neutrino.emulator.device import Device
from neutrino.emulator.geometry import WARP
from neutrino.emulator.loaded_module import LoadedModule
from neutrino.emulator.state import Observer
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.regions import copies_in, region_layout
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.tracing.views import Frames, Geometry, MapView, view_maps

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """What the program asks for. parameters: the original's, packed; shared: bytes.

    log_units: what the host's side gives each of the twin's logs. log_first: how much of it is each warp's own.
    """

    grid: Shape
    block: Shape
    parameters: bytes
    shared: int = 0
    log_units: int = 1 << 15
    log_first: int = 0

    @property
    def geometry(self) -> Geometry:
        return Geometry(prod(self.grid), prod(self.block), WARP, log_units=self.log_units)


_SHIFT = 1 << 40


class Regions:
    """The maps of one launch on a device, zeroed. in_graph: their addresses reach the twin in two parts: what the probe
    block says, and what a cell adds to it."""

    def __init__(
        self, device: Device, maps: Sequence[Map], geometry: Geometry, log_first: int = 0, *, in_graph: bool
    ) -> None:
        self._device = device
        self._maps = tuple(maps)
        self._geometry = geometry
        self._warps = geometry.blocks * geometry.warps
        self._log_first = log_first
        self._layout, self._size = region_layout(
            maps, geometry.blocks, geometry.warps, geometry.lanes, log_units=geometry.log_units
        )
        self._sections: dict[int, tuple[int, int]] = {}
        for region in self._layout:
            self._add(region.records, region.records_size)
            if region.counts is not None:
                self._add(region.counts, region.counts_size)
        self._shift, self._cell = (_SHIFT, device.allocate(8)) if in_graph else (0, 0)
        if in_graph:
            device.write(self._cell, _SHIFT.to_bytes(8, "little"))

    def _add(self, offset: int, size: int) -> None:
        address = self._device.allocate(size)
        self._device.write(address, bytes(size))
        self._sections[offset] = (address, size)

    def block(self, variables: Sequence[int]) -> bytes:
        """The probe block. variables: device addresses, in the twin's order."""
        words = []
        for entry, region in zip(self._maps, self._layout, strict=True):
            words.append(self._before_shift(region.records))
            units = 0
            if entry.kind.layout is Layout.CHUNKS and entry.cap:
                units = self._geometry.log_units
                # As nt_regions_describe.
                if self._log_first * self._warps <= units:
                    units |= self._log_first << 32
            words.append(units if region.counts is None else self._before_shift(region.counts))
        words += variables
        header = (self._geometry.warps, self._warps, 0, copies_in(self._warps) - 1)
        return struct.pack(f"<4IQ{len(words)}Q", *header, self._cell, *words)

    def _before_shift(self, offset: int) -> int:
        return (self._sections[offset][0] - self._shift) % (1 << 64)

    def read(self) -> dict[str, MapView]:
        """What the launch left in the maps."""
        data = np.zeros(self._size, np.uint8)
        for offset, (address, size) in self._sections.items():
            data[offset : offset + size] = np.frombuffer(self._device.read(address, size), np.uint8)
        frames = Frames(self._geometry, 0, 0, 1)
        views = view_maps(data, frames, zip(self._maps, self._layout, strict=True))
        return {name: view.of(0) for name, view in views.items()}

    def free(self) -> None:
        """Give the memory back."""
        for address, _ in self._sections.values():
            self._device.free(address)
        if self._cell:
            self._device.free(self._cell)


def is_in_graph(twin: TwinKernel) -> bool:
    """Whether a twin's first run is as in a graph: that of every other one, by their texts."""
    return bool(crc32(twin.probed_text.encode()) & 1)


@dataclass(frozen=True)
class LoadedTwin:
    """A twin whose module is on the device, and where the original's variables are: name → (address, size)."""

    twin: TwinKernel
    module: LoadedModule
    variables: Mapping[str, tuple[int, int]]

    def launch(
        self, device: Device, launch: Launch, observer: Observer | None = None, times: int = 1, *,
        in_graph: bool | None = None,
    ) -> dict[str, MapView]:  # fmt: skip
        """Run it in the original's place; what its maps then hold. times: run it again, with the same memory.

        in_graph: whether it runs as in a graph, where a twin has other code at its ends; None: half of all twins do, by
        their texts.
        """
        twin = self.twin
        if in_graph is None:
            in_graph = is_in_graph(twin)
        regions = Regions(device, twin.maps, launch.geometry, launch.log_first, in_graph=in_graph)
        block = regions.block([self.variables[name][0] for name in twin.variables])
        if len(block) != twin.block_size:
            raise ValueError(f"{twin.name}: the probe block has {len(block)} bytes, not {twin.block_size}")
        packed = launch.parameters.ljust(twin.block_offset, b"\0") + block
        function = self.module.functions[twin.twin_name]
        for _ in range(times):
            device.launch(function, launch.grid, launch.block, packed, shared=launch.shared, observer=observer)
        views = regions.read()
        regions.free()
        return views
