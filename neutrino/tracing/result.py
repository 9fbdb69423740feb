"""``result/<id>.bin``, and later parts of it: the map data of one kernel's launches, in frames."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import LEVELS, Per
from neutrino.abi.results import FRAME, FRAME_MAGIC, MAP_DESCRIPTOR, RESULT_HEADER, RESULT_MAGIC
from neutrino.abi.structures import align_up
from neutrino.abi.versions import RESULT_VERSION, RESULT_VERSIONS
from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.regions import LANES, region_layout, run_layout
from neutrino.maps.registry import number_of
from neutrino.tracing.files import map_file
from neutrino.tracing.views import Frames, Geometry, MapView, MapViews, view_maps

Array = npt.NDArray[Any]
_FRAME_ALIGN = 64
"""Frames begin at multiples of this."""
_MAX_THREADS = 65535
"""Threads of a block in the launches that the hook probes."""


@dataclass(frozen=True)
class Result:
    """The data of one kernel: for each launch a frame, with the data of its maps after the frame's header.

    path: of the first file; later parts are beside it. kernel: its id in the trace. maps: from the kernel's manifest,
    checked against the files' own descriptors. is_whole: whether no part was removed. not_probed: why there are no
    views of some maps: their probes are left out of the twin.
    """

    path: Path
    kernel: int
    maps: tuple[Map, ...]
    is_whole: bool = True
    not_probed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _parts(self) -> tuple[_Part, ...]:
        """The files of the kernel's data that are there, in their order.

        Raises TraceError if one is damaged or of another kernel.
        """
        later = [path for path in self.path.parent.glob(f"{self.path.stem}.*.bin") if path.is_file()]
        first = [self.path] if self.is_whole or self.path.is_file() else []
        parts = [self._read_part(path) for path in (*first, *later)]
        return tuple(sorted(parts, key=lambda part: part.base))

    def _part_at(self, offset: int) -> _Part:
        """Return the file that an offset in the kernel's data is in; the first or the last one if it is in none.

        Raises TraceError if all were removed.
        """
        parts = self._parts
        if not parts:
            raise TraceError(f"{self.path}: cannot be read: its data were removed")
        index = bisect_right([part.base for part in parts], offset) - 1
        return parts[max(index, 0)]

    def check(self) -> None:
        """Raise TraceError if a file of the kernel's data is damaged or of another kernel."""
        _ = self._parts

    def holds_whole(self, offsets: Array) -> Array:
        """Return for each frame (the data of one launch) whether all of it is in the files.

        offsets: of the frames, in the kernel's data.
        """
        there = np.zeros(len(offsets), bool)
        for part in self._parts:
            found = np.flatnonzero((offsets >= part.base) & (offsets < part.base + part.data.size))
            there[found] = True
            if not len(found):
                continue
            # Frames are written one after the other, so that only the last one can be cut off.
            last = found[np.argmax(offsets[found])]
            begin = int(offsets[last]) - part.base
            whole = begin + FRAME.size <= part.data.size
            if whole:
                frame = np.frombuffer(part.data, FRAME.dtype, 1, begin)[0]
                whole = begin + FRAME.size + int(frame["size"]) <= part.data.size
            there[last] = whole
        return there

    def holds(self, offsets: Array) -> Array:
        """Return for each offset in the kernel's data, of frames that were written, whether its part is still there."""
        there = np.zeros(len(offsets), bool)
        for part in self._parts:
            there |= (offsets >= part.base) & (offsets < part.base + part.data.size)
        return there

    def _read_part(self, path: Path) -> _Part:
        """Map a file of the kernel's data. Raises TraceError if its header or its maps are not those of the kernel."""
        data = map_file(path, inside=2)

        # The header.
        end = RESULT_HEADER.size + len(self.maps) * MAP_DESCRIPTOR.size
        if data.size < end:
            raise TraceError(f"{path}: has {data.size} bytes, expected at least {end}: it is cut off")
        magic = bytes(data[: len(RESULT_MAGIC)])
        if magic != RESULT_MAGIC:
            raise TraceError(f"{path}: at 0x0: magic is {magic!r}, expected {RESULT_MAGIC!r}")
        header = np.frombuffer(data, RESULT_HEADER.dtype, 1)[0]
        expected = {
            "version": header["version"] if header["version"] in RESULT_VERSIONS else RESULT_VERSION,
            "kernel": self.kernel,
            "maps": len(self.maps),
            "map_size": MAP_DESCRIPTOR.size,
        }
        for name, value in expected.items():
            if header[name] != value:
                raise TraceError(f"{path}: {name} is {header[name]}, expected {value}")

        # The descriptors of the maps. A damaged manifest may have a name that is no valid text: it is encoded all the
        # same ("surrogatepass"), and differs from the file's.
        descriptors = np.frombuffer(data, MAP_DESCRIPTOR.dtype, len(self.maps), RESULT_HEADER.size)
        for row, entry in zip(descriptors, self.maps, strict=True):
            in_file = (row["name"], row["kind"], row["level"], row["per"], row["record_size"], row["cap"])
            in_manifest = (
                entry.name.encode("utf-8", "surrogatepass"),
                number_of(entry.kind),
                LEVELS.index(entry.level),
                entry.per_number,
                entry.size,
                entry.cap,
            )
            if in_file != in_manifest:
                raise TraceError(f"{path}: map {entry.name!r} differs from the one in the kernel's manifest.json")
            # In version 3 launches had caps of their own.
            if entry.kind.layout is Layout.SLOTS and not entry.cap:
                raise TraceError(f"{path}: map {entry.name!r} has a dynamic cap: read it with what wrote it")
        return _Part(path, int(header["base"]), data)

    def view(self, launch: Array, index: int) -> dict[str, MapView]:
        """Return the maps (what probes save to) of one launch, by name.

        launch: its record; index: its number in ``launches.bin``.
        """
        offset = int(launch["data_offset"])
        (units,) = self._log_units(np.array([offset], np.uint64).astype(np.int64))
        run = Run(_geometry(launch, int(units)), offset, step=0, indices=np.array([index]))
        # The view is of a run, here of one launch.
        return MapViews({name: view.of(0) for name, view in self.view_run(run).items()}, self.not_probed)

    def _log_units(self, offsets: Array) -> npt.NDArray[np.int64]:
        """Return how many units of memory of each log are in the frames at these offsets; 0 without logs.

        Launch records have the units that a launch had, of which a frame has those that were used.
        """
        units = np.zeros(len(offsets), np.int64)
        if not any(entry.kind.layout is Layout.CHUNKS for entry in self.maps):
            return units
        for number, offset in enumerate(offsets.tolist()):
            part = self._part_at(offset)
            begin = offset - part.base
            # A frame that is not in the file is reported when it is viewed.
            if 0 <= begin <= part.data.size - FRAME.size:
                units[number] = np.frombuffer(part.data, FRAME.dtype, 1, begin)["log_units"][0]
        return units

    def runs(self, launches: Array, indices: Array) -> Iterator[Run]:
        """Group launches, in the order given, into runs of one geometry whose frames are evenly spaced in the file.

        The maps of a run can be viewed as one strided array, without copying the data: a trace may have very many
        launches. launches: records by ``LAUNCH``, 1-D. indices: their numbers in ``launches.bin``.
        """
        if not len(launches):
            return
        # Signed, so that differences may be negative, and of 64 bits, as a product of the three extents needs.
        offsets = launches["data_offset"].astype(np.int64)
        blocks, threads = _volumes(launches["grid"]), _volumes(launches["block"])
        steps = np.diff(offsets)
        units = self._log_units(offsets)
        shapes = (blocks, threads, launches["lanes"].astype(np.int64), units)
        # Whether each launch has the geometry of the next, whose frame comes later in the same file.
        continues = np.logical_and.reduce([np.diff(shape) == 0 for shape in shapes]) & (steps > 0)
        if len(self._parts) > 1:
            part = np.searchsorted([part.base for part in self._parts], offsets, side="right")
            continues &= np.diff(part) == 0
        start = 0
        while start < len(launches):
            end = start + 1
            if end < len(launches) and continues[start]:
                # Each item is about a launch and the next one. The run ends with the first launch whose next one has
                # another geometry or is at another distance.
                breaks = np.flatnonzero(~continues[start:] | (steps[start:] != steps[start]))
                end = start + int(breaks[0]) + 1 if breaks.size else len(launches)
            # A single launch has no distance to the next.
            step = int(steps[start]) if end - start > 1 else 0
            yield Run(_geometry(launches[start], int(units[start])), int(offsets[start]), step, indices[start:end])
            start = end

    def view_run(self, run: Run, *, is_checked: bool = False) -> dict[str, MapView]:
        """Return the maps (what probes save to) of all launches of a run, by name; the launch is their first axis.

        is_checked: whether the frames' headers were found right before. Raises TraceError if the file ends before the
        last frame, or if a frame contradicts ``launches.bin``.
        """
        geometry = run.geometry
        if not geometry.blocks or not 0 < geometry.threads <= _MAX_THREADS:
            raise TraceError(
                f"{self.path}: launch {int(run.indices[0])} has {geometry.blocks} blocks of {geometry.threads} "
                f"threads, expected some, of 1 to {_MAX_THREADS}"
            )

        # All frames lie within the file.
        regions, size = region_layout(
            self.maps, geometry.blocks, geometry.warps, geometry.lanes, geometry.log_units, in_frame=True
        )
        part = self._part_at(run.offset)
        data = part.data
        begin = run.offset - part.base
        last = begin + run.step * (len(run.indices) - 1)
        # An offset from 2^63 on, in a damaged launches.bin, is a negative number in a run.
        if begin < 0 or last + FRAME.size + size > data.size:
            raise TraceError(
                f"{part.path}: the frame of launch {int(run.indices[-1])} at {last:#x} needs "
                f"{FRAME.size + size} bytes, but the file ends at {data.size:#x}: it is cut off"
            )

        if not is_checked:
            self._check_frames(part, run, size)
        placement = Frames(run.geometry, begin + FRAME.size, run.step, len(run.indices))
        placed = [
            row
            for row in zip(self.maps, regions, strict=True)
            if row[0].per is not Per.RUN and row[0].name not in self.not_probed
        ]
        return MapViews(view_maps(data, placement, placed), self.not_probed)

    def _check_frames(self, part: _Part, run: Run, size: int) -> None:
        """Check the headers of a run's frames.

        size: bytes of the maps (what probes save to) of each. Raises TraceError.
        """
        begin = run.offset - part.base
        # Check that each frame's header is that of its launch. NumPy strips zeros at the end of a string, so the magic
        # has none. lanes is 0, in earlier traces, where it is the default. A frame may be larger than its maps.
        frames = np.ndarray((len(run.indices),), FRAME.dtype, part.data, begin, (run.step,))
        grid, block = _volumes(frames["grid"]), _volumes(frames["block"])
        checks = (
            ("magic", frames["magic"] == FRAME_MAGIC.rstrip(b"\0")),
            ("launch number", frames["launch"] == run.indices),
            ("grid", grid == run.geometry.blocks),
            ("block", block == run.geometry.threads),
            ("lanes", np.where(frames["lanes"], frames["lanes"], LANES) == run.geometry.lanes),
            ("log units", frames["log_units"] == run.geometry.log_units),
            ("size", frames["size"] >= size),
        )
        for name, is_valid in checks:
            if not is_valid.all():
                first = int(np.flatnonzero(~is_valid)[0])
                raise TraceError(
                    f"{part.path}: at {begin + first * run.step:#x}: the {name} in the frame of launch "
                    f"{int(run.indices[first])} is not what launches.bin says"
                )

    @cached_property
    def whole_run(self) -> WholeRun:
        """The results of the run: of the maps (what probes save to) per run. Without their file there is no launch in
        them yet.

        Raises TraceError if the file is damaged.
        """
        regions, size = run_layout(self.maps)
        path = self.path.with_suffix(".run")
        if not regions or not path.is_file():
            return WholeRun(0, {})
        data = self._read_part(path).data
        begin = align_up(RESULT_HEADER.size + len(self.maps) * MAP_DESCRIPTOR.size, _FRAME_ALIGN)
        if begin + FRAME.size + size > data.size:
            raise TraceError(f"{path}: has {data.size} bytes, expected {begin + FRAME.size + size}: it is cut off")
        frame = np.frombuffer(data, FRAME.dtype, 1, begin)[0]
        if frame["magic"] != FRAME_MAGIC.rstrip(b"\0") or frame["size"] != size:
            raise TraceError(f"{path}: at {begin:#x}: no frame of {size} bytes")
        views = {}
        for entry, region in regions:
            if entry.name in self.not_probed:
                continue
            # A single copy.
            record = np.ndarray((1,), entry.dtype, data, begin + FRAME.size + region.records)
            views[entry.name] = MapView(entry, Geometry(0, 0, 0), record, None)
        return WholeRun(int(frame["launch"]), MapViews(views, self.not_probed))


@dataclass(frozen=True)
class WholeRun:
    """What a kernel's maps per run have of all its launches together. launches: how many; maps: by name."""

    launches: int
    maps: dict[str, MapView]


@dataclass(frozen=True)
class _Part:
    """A file of a kernel's data. base: bytes of the data before it. data: the file's bytes, uint8."""

    path: Path
    base: int
    data: Array


@dataclass(frozen=True)
class Run:
    """Launches of one geometry whose frames begin at offset and lie step bytes apart in one file.

    step: 0 for a single launch. indices: their numbers in ``launches.bin``.
    """

    geometry: Geometry
    offset: int
    step: int
    indices: Array


def _volumes(extents: Array) -> Array:
    """Return the product of the three extents (x, y, z) in each row, such as of grids, modulo 2 to the 64, as int64."""
    x, y, z = (extents[:, axis].astype(np.int64) for axis in range(3))
    # By columns, which NumPy multiplies much faster than along rows of three.
    product: Array = x * y * z
    return product


def _geometry(launch: Array, log_units: int) -> Geometry:
    """Return the geometry of a launch from its record. log_units: as the frame has them.

    Earlier traces do not say how many lanes a warp has (0): they are of NVIDIA's GPUs.
    """
    # Multiplied as Python's integers: the product of three u32 may need more than 64 bits.
    blocks = 1
    threads = 1
    for axis in range(3):
        blocks *= int(launch["grid"][axis])
        threads *= int(launch["block"][axis])
    return Geometry(blocks, threads, int(launch["lanes"]) or LANES, log_units)
