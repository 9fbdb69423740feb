"""A trace directory: the process, its kernels, their launches, and what the probes saved."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from neutrino.abi.launches import LAUNCH, MAX_KERNELS, LaunchState
from neutrino.abi.reasons import Reason
from neutrino.demangle import demangle
from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.tracing.accesses import AccessFacts, read_accesses
from neutrino.tracing.aggregate import plain_bytes
from neutrino.tracing.benchmark import Benchmark, read_benchmark
from neutrino.tracing.counts import KnownCounts, known_counts
from neutrino.tracing.coverage import Coverage
from neutrino.tracing.events import Events, member, read_events
from neutrino.tracing.files import links_in, read_files
from neutrino.tracing.launches import Launches, read_launches
from neutrino.tracing.manifest import Manifest, read_manifest
from neutrino.tracing.named_kernels import NamedKernels, shown
from neutrino.tracing.probe_sets import RecordedSet, recorded_sets
from neutrino.tracing.processes import runs_still
from neutrino.tracing.result import Result, WholeRun
from neutrino.tracing.views import MapView, MapViews

Array = npt.NDArray[Any]
_REASONS = {reason.word: reason for reason in Reason}
_BATCH = 1 << 14
"""Launches whose records are read at once."""
_FEWER_BLOCKS = 2
"""``variant`` in the record of a launch whose twin had fewer blocks at a time."""
EMBEDDED_DEVICE = "Neutrino embedded device"
"""How the name of the embedded device begins, as its driver reports it."""


class Clock(Enum):
    """What the probes' times count, from ``%clock``, ``%clock64`` and ``%globaltimer``."""

    CYCLES = "cycles"
    """A GPU's own clocks."""
    STEPS = "steps"
    """Steps of the embedded device's interpreter: an order of events, not a duration."""


@dataclass(frozen=True, repr=False)
class TraceLaunch:
    """One launch whose data are in the trace.

    index: its number in ``launches.bin``. record: its record there, by ``LAUNCH`` of ``neutrino/abi``. maps: name →
    view.
    """

    index: int
    record: Any
    maps: dict[str, MapView]

    def __repr__(self) -> str:
        """The launch in short: its number and the names of its maps."""
        return f"<TraceLaunch {self.index}: {', '.join(self.maps)}>"

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, which says where grid, block and so on are: there is nothing of that name."""
        where = f"write .record[{name!r}]" if name in (LAUNCH.dtype.names or ()) else "it has index, record and maps"
        raise AttributeError(f"a launch has no attribute {name!r}; {where}")


@dataclass(frozen=True)
class LaunchCounts:
    """A kernel's launches that have records. by_state: how many, by what happened to their data. capped, fewer_blocks:
    of the twin under a register cap, and though fewer of its blocks fit on a multiprocessor. fewer_by_threads: the
    latter by the threads of a block. written: the numbers of those whose data are in the trace, ascending.
    """

    launches: int
    by_state: dict[LaunchState, int]
    capped: int
    fewer_blocks: int
    fewer_by_threads: dict[int, int]
    written: Array


@dataclass(frozen=True, repr=False)
class TraceKernel:
    """A kernel that the program obtained from the driver.

    id: in this trace. image: id of the image (loaded module) that it is in. name: mangled. reason: PROBED when there is
    a twin (instrumented copy), else why there is none, with the detail in words. counters: launches by their outcome.
    log_need: in a run that was only measured, what an earlier run has learnt of the kernel's logs: the most units that
    one of a launch had, and 1/256 units for each warp; None if nothing. set: the number of the probes that its twin
    has, of ``Trace.sets``: a kernel of the program is another one here for each set.
    """

    id: int
    image: int
    name: str
    reason: Reason
    detail: str
    counters: dict[Reason, int]
    _trace: Trace = field(compare=False)
    log_need: tuple[int, int] | None = None
    set: int = 1

    def __repr__(self) -> str:
        """The kernel in short: its name, outcome and number of launches."""
        return f"<TraceKernel {self.id} {shown(self)}: {self.reason.word}, {sum(self.counters.values()):,} launches>"

    @cached_property
    def manifest(self) -> Manifest | None:
        """How the twin (copy with probes) was made; None without a twin, or if the process died before that was
        written.
        """
        path = self._trace.path / "kernel" / str(self.id) / "manifest.json"
        try:
            if os.path.lexists(path):
                return read_manifest(path)
            # Of a process that died it may not have been written yet.
            if self.reason is Reason.PROBED and self._trace._has_ended:
                raise TraceError(f"{path} is missing: the data of {self.name} cannot be read")
        except TraceError as error:
            self._trace.tolerate(error)
        return None

    def originals(self) -> Iterator[tuple[str, bytes]]:
        """Return the name and the text of each file with the code that the twin was made of: PTX or AMD's assembly."""
        return read_files(self._trace.path / "kernel" / str(self.id), "original.*", 3, self._trace.tolerate)

    @property
    def trace(self) -> Trace:
        """The trace that has this kernel."""
        return self._trace

    @property
    def trace_path(self) -> Path:
        """The path of the trace directory that has this kernel."""
        return self._trace.path

    @property
    def mangled(self) -> str:
        """The name of the symbol, which is ``name``."""
        return self.name

    @property
    def demangled(self) -> str:
        """The demangled name; the mangled one for a kernel without a twin."""
        return self.manifest.demangled if self.manifest else self.name

    @property
    def full_name(self) -> str:
        """The demangled name: from the trace, which has it for probed kernels only, else computed here."""
        return self.demangled if self.demangled != self.name else demangle(self.name)

    @cached_property
    def indices(self) -> Array:
        """Indices of this kernel's records in ``Trace.launches``, in the order of submission."""
        return self._trace.indices_of(self.id)

    @property
    def records(self) -> Array:
        """This kernel's launch records, in any state, as a 1-D structured array (a copy)."""
        return self.records_of(self.indices)

    def records_of(self, indices: Array) -> Array:
        """Some launch records, as a 1-D structured array (a copy). indices: in ``Trace.launches``."""
        return self._trace.launches[indices]

    @property
    def has_removed(self) -> bool:
        """Whether data or records of launches were removed from the trace to keep to the limit of its size."""
        return bool(self._trace.data_removed or self._trace.first_launch)

    @cached_property
    def written(self) -> Array:
        """For each of the kernel's launch records (``records``), whether its data are in the trace."""
        return self._is_written(self.indices)

    def _is_written(self, indices: Array) -> Array:
        """Return for each of some launches whether its data are in the trace. indices: in ``Trace.launches``."""
        launches = self._trace.launches
        written: Array = launches["state"][indices] == LaunchState.WRITTEN
        if self.result is None:
            return written & (not self._trace.is_tolerant)
        if self._trace.is_tolerant:
            readable = self.result.holds_whole(launches["data_offset"][indices])
            if lacking := int(np.count_nonzero(written & ~readable)) if not self._trace.data_removed else 0:
                what = "launch is" if lacking == 1 else "launches are"
                self._trace.tolerate(TraceError(f"{self.result.path}: the data of {lacking:,} {what} not in the file"))
            written &= readable
        elif self._trace.data_removed:
            written &= self.result.holds(launches["data_offset"][indices])
        return written

    def count_launches(self) -> LaunchCounts:
        """Count the launches that have records by their outcome, and remember which have their data in the trace."""
        numbers = self._trace.numbers_of(self.id)
        by_state, variants, written = dict.fromkeys(LaunchState, 0), [0, 0, 0], []
        fewer = Counter[int]()
        for first in range(0, len(numbers), _BATCH):
            part = numbers[first : first + _BATCH]
            states, variant = (self._trace.launches[name][part] for name in ("state", "variant"))
            for state in LaunchState:
                by_state[state] += int(np.count_nonzero(states == state))
            for number in range(len(variants)):
                variants[number] += int(np.count_nonzero(variant == number))
            threads = self._trace.launches["block"][part[variant == _FEWER_BLOCKS]].prod(axis=1, dtype=np.int64)
            fewer.update(threads.tolist())
            written.append(part[self._is_written(part)])
        found = np.concatenate(written) if written else numbers
        return LaunchCounts(len(numbers), by_state, variants[1], variants[_FEWER_BLOCKS], dict(fewer), found)

    def written_numbers(self, chosen: range | None = None) -> Array:
        """Return the numbers of the launches whose data are in the trace, in the order of submission.

        chosen: only of these numbers.
        """
        numbers = self.indices[self.written]
        return numbers if chosen is None else numbers[(numbers >= chosen.start) & (numbers < chosen.stop)]

    @property
    def launches(self) -> KernelLaunches:
        """The launches whose data are in the trace, in the order of submission: a sequence, read as it is asked for.

        ``kernel.launches(chosen)`` yields those of some numbers only, ``kernel.launches()`` all.
        """
        return KernelLaunches(self)

    def _yield_launches(self, chosen: range | None) -> Iterator[TraceLaunch]:
        """Yield the launches whose data are in the trace. chosen: only of these numbers, None for all."""
        result = self.result
        # The kernel has no twin.
        if result is None:
            return
        indices = self.written_numbers(chosen)
        for first in range(0, len(indices), _BATCH):
            part = indices[first : first + _BATCH]
            for index, record in zip(part, self._launches_of(part), strict=True):
                yield TraceLaunch(int(index), record, result.view(record, int(index)))

    def _launches_of(self, indices: Array) -> Array:
        """Return some launch records, by their indices, of which there is at least one: as a view if they are in a row.
        """
        first, last = int(indices[0]), int(indices[-1])
        if last - first + 1 == len(indices) and (np.diff(indices) == 1).all():
            return self._trace.launches[first : last + 1]
        return plain_bytes(self._trace.launches)[indices].view(LAUNCH.dtype)

    def stacks(self, numbers: Array | None = None, *, is_checked: bool = False) -> Iterator[dict[str, MapView]]:
        """Yield the same data as ``launches`` in larger pieces, of consecutive launches of one geometry.

        This is faster for many launches: NumPy then works on all of a piece at once. A piece is a view of each map
        (what probes save to), by name, whose first axis is the launch; it has no more than 16,384 launches. numbers: of
        the launches, all with their data in the trace, in their order; by default all of these as they were submitted.
        is_checked: whether they were read before, so that the headers of frames need no check.
        """
        for _, views in self.numbered_stacks(numbers, is_checked=is_checked):
            yield views

    @property
    def maps(self) -> dict[str, MapView]:
        """By name, the view of a map whose first axis is the launch. Raises TraceError if the launches have several
        shapes: then each of ``launches`` has its own, and ``stacks`` has those of each shape."""
        return self.maps_of(self.written_numbers())

    def maps_of(self, numbers: Array) -> dict[str, MapView]:
        """Return ``maps`` of some launches. numbers: as of ``stacks``."""
        found = list(itertools.islice(self.stacks(numbers), 2)) if len(numbers) else []
        if len(found) > 1:
            raise TraceError(f"{self.full_name}: its launches have several shapes; see launches, which have maps each")
        return found[0] if found else MapViews({})

    def numbered_stacks(
        self, numbers: Array | None = None, *, is_checked: bool = False
    ) -> Iterator[tuple[Array, dict[str, MapView]]]:
        """Yield what ``stacks`` does, each after the numbers of its launches, int64 ``[launch]``."""
        result = self.result
        if result is None:
            # The kernel has no twin.
            return
        chosen = self.written_numbers() if numbers is None else numbers
        for first in range(0, len(chosen), _BATCH):
            part = chosen[first : first + _BATCH].astype(np.int64)
            for run in result.runs(self._launches_of(part), part):
                yield run.indices, result.view_run(run, is_checked=is_checked)

    def accesses(self, launch: TraceLaunch, name: str = "GlobalAccesses", together: int = 0) -> AccessFacts:
        """Return what a launch's accesses to memory are like: patterns of instructions, pages over time, reuse.

        launch: of this kernel. name: of a log with the address and the site of each access, as ``dmat`` has it.
        together: how many blocks begin together, as the device has multiprocessors, to say how far their clocks are
        apart; 0 if that is not known. Raises KeyError if there is no map of this name, ValueError for another map.
        """
        listed = self.manifest.sites if self.manifest else ()
        sites = [site["site"] for site in listed if isinstance(site.get("site"), int)]
        return read_accesses(launch.maps[name], max(sites, default=-1) + 1, together)

    @property
    def whole_run(self) -> WholeRun:
        """The results of the maps (what probes save to) per run, of all launches together; ``launches`` and ``stacks``
        do not have them.
        """
        try:
            return WholeRun(0, {}) if self.result is None else self.result.whole_run
        except TraceError as error:
            self._trace.tolerate(error)
            return WholeRun(0, {})

    @cached_property
    def result(self) -> Result | None:
        """The kernel's data file; None without a twin (instrumented copy)."""
        if self.manifest is None:
            return None
        path = self._trace.path / "result" / f"{self.id}.bin"
        not_probed = {name: probe.shown for name, probe in self.manifest.not_probed.items()}
        result = Result(path, self.id, self.manifest.maps, not self._trace.data_removed, not_probed)
        if self._trace.is_tolerant:
            try:
                result.check()
            except TraceError as error:
                # Without a launch that has data there is no file, and nothing is missing.
                states = self._trace.launches["state"][self._trace.numbers_of(self.id)]
                if os.path.lexists(path) or (states == LaunchState.WRITTEN).any():
                    self._trace.tolerate(error)
                return None
        return result


class KernelLaunches(Sequence[TraceLaunch]):
    """The launches of a kernel whose data are in the trace, in the order of submission. Each is read when it is
    asked for.
    """

    def __init__(self, kernel: TraceKernel) -> None:
        """Give access to a kernel's launches."""
        self._kernel = kernel

    def __call__(self, chosen: range | None = None) -> Iterator[TraceLaunch]:
        """Yield the launches. chosen: only of these numbers, None for all."""
        return self._kernel._yield_launches(chosen)

    def __iter__(self) -> Iterator[TraceLaunch]:
        """Yield all launches."""
        return self()

    def __len__(self) -> int:
        """How many there are; 0 for a kernel without a twin (copy with probes)."""
        return 0 if self._kernel.result is None else len(self._kernel.written_numbers())

    @overload
    def __getitem__(self, key: int) -> TraceLaunch: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[TraceLaunch, ...]: ...
    def __getitem__(self, key: int | slice) -> TraceLaunch | tuple[TraceLaunch, ...]:
        """Return a launch by its position among these, not by its number in the trace. Raises IndexError."""
        if isinstance(key, slice):
            return tuple(self[position] for position in range(*key.indices(len(self))))
        if not len(self):
            raise IndexError("the kernel has no launches whose data are in the trace")
        number = int(self._kernel.written_numbers()[key])
        return next(self(range(number, number + 1)))

    def __repr__(self) -> str:
        """How many there are, in short."""
        return f"<{len(self)} launches of {shown(self._kernel)}>"


TraceKernels = NamedKernels[TraceKernel]
"""Kernels of a trace in the order of their ids, and by name."""


class Trace:
    """A trace directory. What is damaged raises TraceError, which names the file and the place; or is left out.

    Opening reads ``events.jsonl`` and maps ``launches.bin``; the data of a kernel are mapped when they are asked for.
    process: the event about the traced process, empty if it died before writing it. devices, images: the events about
    each GPU and each loaded module. kernels: all that the program obtained from the driver, by ascending id, and by
    name.
    """

    def __init__(self, path: str | Path, *, is_tolerant: bool = False) -> None:
        """Open a trace directory. Raises TraceError if it is none, or if its events or launches are damaged.

        is_tolerant: whether to leave out what is damaged, here and later, and to list it in ``faults``.
        """
        self.path = Path(path)
        self.is_tolerant = is_tolerant
        self._faults: list[str] = []
        faults = self._faults if is_tolerant else None
        if not os.path.lexists(self.path / "events.jsonl"):
            raise TraceError(f"{path}: not a trace directory: it has no events.jsonl")
        # The launches first: where these say that the trace has ended, its last event was written before.
        self._launches: Launches = read_launches(self.path / "launches.bin", faults)
        self._events: Events = read_events(self.path / "events.jsonl", faults)
        self._counts: KnownCounts = self._known_counts()
        processes = self._events.of("process")
        self.process: dict[str, Any] = processes[0] if processes else {}
        self.devices: tuple[dict[str, Any], ...] = self._events.of("device")
        self.images: tuple[dict[str, Any], ...] = self._events.of("image")
        self.kernels: TraceKernels = self._read_kernels()
        if self._launches.ended and not self._events.of("end"):
            self.tolerate(TraceError(f"{self.path / 'events.jsonl'}: the last event is missing: it is cut off"))
        elif is_tolerant and not self._events.rows:
            # Not even that of the process, which is the first: the disk was full, if the process has not just begun.
            self._faults.append(f"{self.path / 'events.jsonl'}: it has no event: was the disk full?")
        for error in links_in(self.path):
            self.tolerate(error)

    def __repr__(self) -> str:
        """The trace in short: its path, and how many kernels and launches it has."""
        return f"<Trace {str(self.path)!r}: {len(self.kernels)} kernels, {self.coverage.launches:,} launches>"

    def _repr_html_(self) -> str | None:
        """The trace as notebooks show it: the page of ``neutrino-report --html`` in a frame; None if there is none."""
        # Imported here: few programs show traces.
        from neutrino.tracing.notebook import framed_page

        return framed_page(self.path)

    @property
    def faults(self) -> tuple[str, ...]:
        """What was found damaged so far and left out, a sentence each, with the file; of a tolerant trace."""
        return tuple(dict.fromkeys(self._faults))

    def tolerate(self, error: TraceError) -> None:
        """Note a fault of a damaged trace; raise it as the error that it is if the trace is not tolerant."""
        if not self.is_tolerant:
            raise error
        self._faults.append(str(error))

    @property
    def launches(self) -> Array:
        """All launch records by number, 1-D, by ``LAUNCH``; memory-mapped. Those that are EMPTY were not used."""
        return self._launches.records

    @property
    def counters(self) -> Array:
        """Launches by kernel and reason, u64 ``[kernel][reason]``; row 0 is of functions that the hook (Neutrino's
        library in the program) never saw.
        """
        return self._counts.counters

    def _known_counts(self) -> KnownCounts:
        """Return what is known of the number of launches. Raises TraceError for a damaged file, unless the trace is
        tolerant.
        """
        known = {row["id"] for row in self._events.of("kernel") if isinstance(row.get("id"), int)}
        is_damaged = any("/counters.bin: " in fault for fault in self._faults)
        # Records are only looked at if need be.
        counts = known_counts(
            self._launches, known, lambda: self._by_kernel[0], self.numbers_of, is_damaged=is_damaged
        )
        if counts.fault:
            self.tolerate(TraceError(f"{self.path / 'counters.bin'}: {counts.fault}"))
        return counts

    @cached_property
    def lost(self) -> tuple[int, str]:
        """How many launches have lost their records, as the process has noted at its end, and the note; 0 and "" if
        none.
        """
        notes = [row for row in self._events.of("note") if isinstance(row.get("lost"), int) and row["lost"] > 0]
        return (notes[-1]["lost"], str(notes[-1].get("text", ""))) if notes else (0, "")

    @cached_property
    def sets(self) -> tuple[RecordedSet, ...]:
        """The sets of probes that were in force, by number: one, unless the program has asked again."""
        return recorded_sets(self.process, self._events.of("set"))

    @cached_property
    def coverage(self) -> Coverage:
        """How many of the process's launches and kernels were probed, and why others were not."""
        choice = self.process.get("choice")
        return Coverage.of(
            self.counters, choice if isinstance(choice, str) else None, is_known=self._counts.is_whole
        )

    @cached_property
    def benchmark(self) -> Benchmark | None:
        """What ``neutrino --benchmark`` has measured; None without that option. Raises TraceError if it is damaged."""
        return read_benchmark(self.path / "benchmark.bin", self.coverage.not_probed)

    @property
    def rank(self) -> int | None:
        """The rank that a launcher (torchrun, mpirun, srun) gave the process; None without one."""
        for name in ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
            text = str(self.process.get(name) or "")
            if text:
                return int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None
        return None

    @property
    def data_removed(self) -> int:
        """Bytes of launches' data that were removed to keep to the limit of the trace's size."""
        return self._launches.data_removed

    @property
    def first_launch(self) -> int:
        """The number of the first launch whose record was not removed."""
        return self._launches.first

    @property
    def complete(self) -> bool:
        """Whether the process ended the trace itself, and nothing is missing from it."""
        return self._has_ended and not self._lacking_records and not self.lost[0]

    @property
    def has_end(self) -> bool:
        """Whether the process has come to its normal end, also if its last records could not be written."""
        return bool(self._events.of("end"))

    @property
    def _has_ended(self) -> bool:
        """Whether the process ended the trace itself: it was not killed, and runs no more."""
        return self._launches.ended and bool(self._events.of("end"))

    @cached_property
    def _lacking_records(self) -> int:
        """How many probed launches have no record though they were counted: ``launches.bin`` was cut off meanwhile.

        The hook (Neutrino's library in the program) makes the file as long again as it was, so that what is gone is
        EMPTY.
        """
        if not self._has_ended or self.first_launch or self._launches.shared_row:
            return 0
        lacking = 0
        for kernel in self.kernels:
            states = self.launches["state"][self.numbers_of(kernel.id)]
            # With --memusage those that would be probed are counted so, and have records, too.
            of_twin = np.count_nonzero(states != LaunchState.FALLBACK)
            lacking += max(kernel.counters.get(Reason.PROBED, 0) - int(of_twin), 0)
        return lacking

    @property
    def clock(self) -> Clock:
        """What unit the times in the records have: cycles, or steps of the emulator."""
        embedded = any(str(device.get("name", "")).startswith(EMBEDDED_DEVICE) for device in self.devices)
        return Clock.STEPS if embedded else Clock.CYCLES

    @property
    def device_memory(self) -> dict[str, Any] | None:
        """The event about the device memory that the hook (Neutrino's library in the program) had, in bytes; None if
        the process did not end normally.
        """
        events = self._events.of("memory")
        return events[-1] if events else None

    @property
    def started(self) -> float:
        """When the trace began, in seconds since the epoch."""
        return self._launches.realtime_ns / 1e9

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader of a report: those of the hook (Neutrino's library in the program) that wrote the trace,
        and what the trace lacks.
        """
        path = self.path / "events.jsonl"
        texts = []
        for row in self._events.of("note"):
            try:
                texts.append(member(row, "text", str, path))
            except TraceError as error:
                self.tolerate(error)
        if self._events.truncated:
            texts.append("events.jsonl: its last line is cut off; it is left out")
        if self._lacking_records:
            texts.append(
                f"the trace is not complete: launches.bin has no records of {self._lacking_records:,} launches that "
                "counters.bin counts: it was cut off while it was written"
            )
        elif self.lost[0] and self._has_ended:
            texts.append("the trace is not complete: records of launches are missing")
        elif not self.complete and self._events.of("end"):
            texts.append("the trace is not complete: its last records could not be written")
        elif self._launches.ended and not self.complete:
            texts.append("the trace is not complete: its last events are missing")
        elif not self.complete:
            killed = "" if runs_still(self.process, self.started) else "was killed or "
            texts.append(f"the trace is not complete: the process {killed}is still running")
        if self.first_launch:
            texts.append(f"the records of launches before number {self.first_launch:,} were removed (--max-trace-size)")
        try:
            _ = self.benchmark
        except TraceError as error:
            texts.append(f"the benchmark cannot be read: {error}")
        # Kernels beyond the table of counters share its last row; a single kernel there shares it with none.
        shared = sum(kernel.id >= MAX_KERNELS - 1 for kernel in self.kernels)
        if shared > 1 and self._launches.shared_row:
            texts.append(f"{shared} kernels share one row of counters; their launches are counted together")
        return tuple(texts)

    @cached_property
    def _by_kernel(self) -> tuple[dict[int, tuple[int, int]], Array]:
        """The numbers of all used launch records, by kernel and ascending; and for each kernel's id its first place
        there and the one after its last. Read in pieces, so that hardly more memory is taken than for the numbers."""
        launches = self.launches

        def parts() -> Iterator[tuple[int, int, Array]]:
            """Yield an id, how many launches in a piece it has, and their numbers."""
            for first in range(0, len(launches), _BATCH):
                used = np.flatnonzero(launches["state"][first : first + _BATCH] != LaunchState.EMPTY)
                if not len(used):
                    continue
                kernels = launches["kernel"][first : first + _BATCH][used]
                order = np.argsort(kernels, kind="stable")
                ids, begins = np.unique(kernels[order], return_index=True)
                for identity, numbers in zip(ids.tolist(), np.split(used[order] + first, begins[1:]), strict=True):
                    yield identity, len(numbers), numbers

        counts: dict[int, int] = {}
        for identity, count, _ in parts():
            counts[identity] = counts.get(identity, 0) + count
        spans, place = {}, 0
        for identity, count in counts.items():
            spans[identity] = (place, place + count)
            place += count
        # Numbers below 2 to the 32 take half of the memory.
        sorted_numbers = np.empty(place, np.uint32 if len(launches) < 1 << 32 else np.int64)
        filled = {identity: first for identity, (first, _) in spans.items()}
        for identity, count, numbers in parts():
            # In a running process more records may be used by now.
            _, end = spans.get(identity, (0, 0))
            at = filled.get(identity, end)
            fits = min(count, end - at)
            sorted_numbers[at : at + fits] = numbers[:fits]
            filled[identity] = at + fits
        return spans, sorted_numbers

    def numbers_of(self, kernel: int) -> Array:
        """Return the numbers of one kernel's launch records, ascending, which is not the order of submission where
        several threads launched. kernel: its id."""
        spans, numbers = self._by_kernel
        first, end = spans.get(kernel, (0, 0))
        return numbers[first:end]

    def indices_of(self, kernel: int) -> Array:
        """Return the indices in ``launches`` of one kernel's records, in the order of submission. kernel: its id."""
        numbers = self.numbers_of(kernel).astype(np.int64)
        submitted = self.launches["submit_ns"][numbers]
        # Threads take numbers in advance, so that these may not be in the order of submission.
        if (submitted[1:] < submitted[:-1]).any():
            numbers = numbers[np.argsort(submitted, kind="stable")]
        return numbers

    def _read_kernels(self) -> TraceKernels:
        """Return the kernels of the trace's events, in the order of their ids. Raises TraceError for invalid events."""
        kernels: dict[int, TraceKernel] = {}
        for row in self._events.of("kernel"):
            try:
                kernel = self._read_kernel(row)
            except TraceError as error:
                self.tolerate(error)
                continue
            # A kernel is reported again when its reason changes; the last event is valid.
            kernels[kernel.id] = kernel
        return TraceKernels(kernels[identity] for identity in sorted(kernels))

    def _read_kernel(self, row: dict[str, Any]) -> TraceKernel:
        """Return the kernel that an event (a row of ``events.jsonl``) is about.

        Raises TraceError for an invalid one.
        """
        path = self.path / "events.jsonl"
        identity = member(row, "id", int, path)
        word = member(row, "reason", str, path)
        if identity < 0:
            raise TraceError(f"{path}: kernel id {identity}, expected a number from 0")
        if word not in _REASONS:
            raise TraceError(f"{path}: kernel {identity}: reason {word!r:.80} is not one of this version")
        name, detail = row.get("name"), row.get("detail")
        return TraceKernel(
            identity,
            member(row, "image", int, path),
            # Up to version 0.1.0 an event had null for a name that was longer than an event may be.
            name if isinstance(name, str) and name else f"kernel {identity}",
            _REASONS[word],
            # Missing or null where the reason says all.
            detail if isinstance(detail, str) else "",
            self._counters(identity),
            self,
            (member(row, "log_units", int, path), member(row, "log_per_warp", int, path))
            if "log_units" in row else None,
            member(row, "set", int, path) if "set" in row else 1,
        )  # fmt: skip

    def _counters(self, kernel: int) -> dict[Reason, int]:
        """Return how many launches of a kernel had each outcome; outcomes without a launch are left out."""
        row = self._launches.counters_of(kernel, self.counters)
        return {reason: int(row[reason]) for reason in Reason if row[reason]}
