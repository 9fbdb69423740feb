"""``benchmark.bin``: how long launches took on the GPU with and without the probes, and what that says of kernels."""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.benchmark_file import BENCHMARK_HEADER, BENCHMARK_MAGIC, SAMPLE, SampleFlag, SampleKind
from neutrino.abi.launches import NO_KERNEL
from neutrino.abi.reasons import Reason
from neutrino.abi.versions import BENCHMARK_VERSION
from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.tracing.files import map_file

Array = npt.NDArray[Any]
CONFIDENCE = 0.95
"""How often, at least, the interval of a ratio holds the true one, if launches are independent of each other."""
SHORT_FLOORS = 20
"""A kernel whose median is below so many floors is short: what two events add by themselves makes its ratio smaller."""
_EXACT = 500
"""Samples up to which ranks are from the binomial distribution itself, above from the normal one near it."""
_RESOLUTION_NS = 1000
"""Of the begin of a launch: times since a reference have 24 bits."""
_PER_THREAD = 2
"""CU_STREAM_PER_THREAD, the handle of a stream that each thread has."""
_GEOMETRY = ("kernel", "graph", "grid", "block", "shared", "device")
"""What launches of a group have in common."""


def median_ranks(count: int, confidence: float) -> tuple[int, int] | None:
    """Return which of so many values in order, from 1, have the median of their distribution between them.

    They do at least as often as confidence says, whatever the distribution is. None where there are too few values.
    """
    if count > _EXACT:
        # Imported here: most traces have no benchmark.
        from statistics import NormalDist

        deviation = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(count) / 2
        rank = math.floor(count / 2 - deviation)
        return rank, count + 1 - rank
    # The median is below the value of a rank if fewer values than the rank are below the median: Binomial(count, 1/2).
    rank, term, tail = 0, 0.5**count, 0.0
    while tail + term <= (1 - confidence) / 2:
        tail += term
        term *= (count - rank) / (rank + 1)
        rank += 1
    return (rank, count + 1 - rank) if rank else None


@dataclass(frozen=True)
class RatioOfMedians:
    """How many times as long the probed launches take. low, high: its interval by ``CONFIDENCE``."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, originals: Array, probed: Array) -> RatioOfMedians | None:
        """Compute the ratio of the medians of two samples of times, 1-D; None if they are too few or show no time.

        The interval is that of the order statistics of both medians, each so sure that both hold as often as
        ``CONFIDENCE`` says. It assumes no distribution, and is rather too wide than too narrow.
        """
        ranks = [median_ranks(len(times), math.sqrt(CONFIDENCE)) for times in (originals, probed)]
        if ranks[0] is None or ranks[1] is None:
            return None
        sides = [np.sort(times) for times in (originals, probed)]
        (low, high), (probed_low, probed_high) = (
            (float(times[first - 1]), float(times[last - 1]))
            for times, (first, last) in zip(sides, (ranks[0], ranks[1]), strict=True)
        )
        if not low:
            return None
        return cls(float(np.median(probed)) / float(np.median(originals)), probed_low / high, probed_high / low)

    @property
    def spread(self) -> float:
        """The greater distance from the ratio to an end of its interval."""
        return max(self.ratio - self.low, self.high - self.ratio)

    @property
    def is_noise(self) -> bool:
        """Whether there may be no difference: the interval holds 1."""
        return self.low <= 1 <= self.high


@dataclass(frozen=True)
class BenchmarkGroup:
    """Launches of one kernel with one geometry on one device, or replays of one executable graph.

    kernel: its id, None for a graph. graph: its id, 0 for launches. originals, probed:
    nanoseconds on the GPU, int64 ``[launch]`` in the order of the file, without warm_up, the number of those left out.
    overlapped: how many of all ran beside a timed launch in another stream. floor_ns: median of what two events show
    with nothing between them, 0 if that is not known.
    """

    kernel: int | None
    graph: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    device: int
    originals: Array
    probed: Array
    warm_up: int
    overlapped: int
    floor_ns: float

    @property
    def launches(self) -> int:
        """How many launches of this group (a kernel with one geometry) were timed, with and without the probe, and to
        warm up."""
        return len(self.originals) + len(self.probed) + self.warm_up

    @cached_property
    def ratio(self) -> RatioOfMedians | None:
        """How many times as long launches take with the probe as without; None if the launches are too few."""
        return RatioOfMedians.of(self.originals, self.probed)

    @cached_property
    def medians_ns(self) -> tuple[float, float]:
        """The median time of the original launches and of the probed ones, in ns; NaN without any."""
        return _median(self.originals), _median(self.probed)

    @property
    def is_short(self) -> bool:
        """Whether the kernel is so short that the cost of the events that time it (the floor) makes the ratio too
        small.
        """
        return self.medians_ns[0] < SHORT_FLOORS * self.floor_ns

    @property
    def ratio_above_floor(self) -> float | None:
        """How many times as long probed launches take, with the floor (the time that two events show with nothing
        between them) taken off both medians: nearer to the truth for short kernels.

        None if there is no ratio, or the original launches take no longer than the floor.
        """
        original, probed = (median - self.floor_ns for median in self.medians_ns)
        return probed / original if self.ratio is not None and original > 0 else None

    @property
    def verdict(self) -> str:
        """The result for users, in words: how many times as long probed launches take, with the spread, or why that is
        not known."""
        if self.ratio is None:
            return "no time" if self.medians_ns[0] == 0 else "too few launches"
        text = "within noise" if self.ratio.is_noise else f"{self.ratio.ratio:.3f} ± {self.ratio.spread:.3f}"
        return f"{text}, short" if self.is_short else text


@dataclass(frozen=True)
class Benchmark:
    """What ``neutrino --benchmark`` has measured.

    samples: all of the file, 1-D, by ``SAMPLE`` of ``abi/benchmark_file.py``; those of kind FLOOR and UNTIMED are no
    launches. seed: of the draws. groups: those with most time first. untimed: launches that were drawn and could not be
    timed. not_probed: launches that were not drawn, by why their originals ran.
    """

    samples: Array
    seed: int
    groups: tuple[BenchmarkGroup, ...]
    floor_ns: float
    untimed: int
    not_probed: dict[Reason, int]

    @property
    def compared(self) -> tuple[BenchmarkGroup, ...]:
        """The groups of launches for which it is known how much the probe slows them down."""
        return tuple(group for group in self.groups if group.ratio is not None)

    @cached_property
    def slowdown(self) -> float | None:
        """How many times as long all compared groups together take: each launch as long as its group's median. None
        without any."""
        original, probed = (
            sum(group.launches * group.medians_ns[side] for group in self.compared) for side in (0, 1)
        )
        return probed / original if original else None


def read_samples(path: Path) -> tuple[Array, int]:
    """Map ``benchmark.bin``; return its samples, and the seed. Raises TraceError for a file of another format.

    A last sample that is cut off is left out.
    """
    data = map_file(path, inside=1)
    if data.size < BENCHMARK_HEADER.size:
        raise TraceError(f"{path}: has {data.size} bytes, expected at least {BENCHMARK_HEADER.size}: it is cut off")
    header = np.frombuffer(data, BENCHMARK_HEADER.dtype, 1)[0]
    magic = bytes(data[: len(BENCHMARK_MAGIC)])
    if magic != BENCHMARK_MAGIC:
        raise TraceError(f"{path}: at 0x0: magic is {magic!r}, expected {BENCHMARK_MAGIC!r}")
    if header["version"] != BENCHMARK_VERSION or header["record_size"] != SAMPLE.size:
        raise TraceError(
            f"{path}: version {header['version']} with samples of {header['record_size']} bytes, expected "
            f"{BENCHMARK_VERSION} with {SAMPLE.size}; read it with the Neutrino that wrote it"
        )
    count = data.size // SAMPLE.size - 1
    samples = np.frombuffer(data, SAMPLE.dtype, count, SAMPLE.size) if count else np.empty(0, SAMPLE.dtype)
    if count and samples["kind"].max() > max(SampleKind):
        number = int(np.flatnonzero(samples["kind"] > max(SampleKind))[0])
        raise TraceError(f"{path}: sample {number}: kind {samples['kind'][number]} is not known")
    return samples, int(header["seed"])


def read_benchmark(path: Path, not_probed: dict[Reason, int]) -> Benchmark | None:
    """Read ``benchmark.bin``; None if there is none, without ``--benchmark``. not_probed: as for ``Benchmark``.

    Raises TraceError.
    """
    # A link that leads nowhere is not "none".
    return summarized(*read_samples(path), not_probed) if os.path.lexists(path) else None


def summarized(samples: Array, seed: int, not_probed: dict[Reason, int]) -> Benchmark:
    """Summarize samples of launches by group (kernel and geometry). The arguments are as for ``Benchmark``."""
    floors = samples["elapsed_ns"][samples["kind"] == SampleKind.FLOOR]
    floor = float(np.median(floors)) if len(floors) else 0.0
    untimed = int(samples["number"][samples["kind"] == SampleKind.UNTIMED].sum())
    timed = samples[samples["kind"] <= SampleKind.PROBED]
    overlapped = _overlapped(timed)
    if not len(timed):
        return Benchmark(samples, seed, (), floor, untimed, not_probed)
    columns = [timed[name].reshape(len(timed), -1) for name in _GEOMETRY]
    keys, places = np.unique(np.concatenate(columns, axis=1), axis=0, return_inverse=True)
    order = np.argsort(places.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(places.reshape(-1), minlength=len(keys)))
    found = []
    for part in np.split(order, ends[:-1]) if len(keys) else ():
        first, rows = timed[part[0]], timed[part]
        counts = rows["flags"] & SampleFlag.WARM_UP == 0
        elapsed = rows["elapsed_ns"].astype(np.int64)
        found.append(
            BenchmarkGroup(
                None if first["kernel"] == NO_KERNEL else int(first["kernel"]),
                int(first["graph"]),
                tuple(map(int, first["grid"])),
                tuple(map(int, first["block"])),
                int(first["shared"]),
                int(first["device"]),
                elapsed[counts & (rows["kind"] == SampleKind.ORIGINAL)],
                elapsed[counts & (rows["kind"] == SampleKind.PROBED)],
                int(np.count_nonzero(~counts)),
                int(np.count_nonzero(overlapped[part])),
                floor,
            )
        )
    found.sort(key=lambda group: -float(group.originals.sum() + group.probed.sum()))
    return Benchmark(samples, seed, tuple(found), floor, untimed, not_probed)


def _median(times: Array) -> float:
    """The median of times, NaN without any."""
    return float(np.median(times)) if len(times) else math.nan


def _overlapped(timed: Array) -> Array:
    """Return for each launch whether it ran beside one in another stream of its device, bool ``[launch]``."""
    # Both ends moved towards each other: what follows at once does not overlap.
    begins = timed["begin_ns"].astype(np.int64) + _RESOLUTION_NS
    ends = np.maximum(begins + timed["elapsed_ns"].astype(np.int64) - 2 * _RESOLUTION_NS, begins)
    threads = np.where(timed["stream"] == _PER_THREAD, timed["thread"], 0)
    streams = np.stack([timed["device"], timed["context"], timed["stream"], threads], axis=1).astype(np.uint64)
    found = np.zeros(len(timed), bool)
    for device in np.unique(timed["device"]):
        of_device = np.flatnonzero(timed["device"] == device)
        _, numbers = np.unique(streams[of_device], axis=0, return_inverse=True)
        numbers = numbers.reshape(-1)
        if not numbers.any():
            continue
        every = _beside(begins[of_device], ends[of_device])
        for number in range(int(numbers.max()) + 1):
            own = of_device[numbers == number]
            found[own] = every[numbers == number] > _beside(begins[own], ends[own])
    return found


def _beside(begins: Array, ends: Array) -> Array:
    """Return for each time interval how many of them overlap it, itself included."""
    counted: Array = np.searchsorted(np.sort(begins), ends, "left") - np.searchsorted(np.sort(ends), begins, "right")
    return counted
