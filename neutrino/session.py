"""Neutrino inside a Python process: have its kernels probed, and read what a block of code has recorded."""

from __future__ import annotations

import builtins
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.api import Function, Name, flattened, load_probes
from neutrino.calls import names_arguments, unknown_option
from neutrino.errors import NeutrinoError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection

if TYPE_CHECKING:
    from neutrino.loader.embedded_driver import EmbeddedDevice
    from neutrino.run.own_process import Hook
    from neutrino.run.start import Request
    from neutrino.tracing.coverage import Coverage
    from neutrino.tracing.named_kernels import NamedKernels
    from neutrino.tracing.trace import Trace, TraceKernel, TraceLaunch
    from neutrino.tracing.views import MapView

_FLUSH_MS = 60_000
_NOT_ENDED = "the block has not ended yet, and its launches may be running: read it after the with block"
_MOST_LISTENERS = 4
"""Sets of probes after the first whose listeners, two processes each, are kept for the next kernels."""


class _State:
    """What is in this process. request: of its first set of probes. sets: the number of each by ``_digest``. current:
    of the set in force; usual: of the one that ``install`` has asked for last, None if only blocks are recorded.
    """

    def __init__(self) -> None:
        """Nothing is in this process yet."""
        self.lock = threading.RLock()
        self.hook: Hook | None = None
        self.request: Request | None = None
        self.sets: dict[str, int] = {}
        # Of sets after the first, by digest, what their listeners live by; the one that was asked for last is last.
        self.lifelines: dict[str, int] = {}
        self.current = 1
        self.usual: int | None = None
        # How many blocks are open.
        self.blocks = 0


_state = _State()


@names_arguments
def install(
    *probes: Name | Function | ProbeSet,
    kernels: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    tracedir: Name = "trace",
    device: str | int | None = None,
    defines: Mapping[str, int | float] | None = None,
    max_device_memory: int | None = None,
    max_trace_size: int | None = None,
    timeout: int | None = None,
    wait: bool = True,
    hot: int = 0,
    retarget: bool = False,
    max_registers: int | None = None,
    quiet: bool = False,
    only_blocks: bool = False,
    launches: tuple[int, int | None] = (0, None),
    every: int = 1,
    devices: Sequence[int] = (),
    duration: float | None = None,
    ranges: str | Sequence[str] = (),
    range_scope: str = "thread",
    memusage: bool = False,
) -> None:
    """Have the kernels that this process loads from now on probed, as the command ``neutrino`` does.

    Best called before the framework is imported: kernels that are loaded already run as they are. So do those that are
    launched by addresses of the driver's functions that are on the heap, as with ``ctypes``.

    probes: names of shipped probes, paths, functions with ``@nl.probe``, or what ``load_probes`` returns. kernels,
    exclude: patterns of kernel names, as of ``-k`` and ``--filter``. tracedir: the folder in which the trace is made.
    device: ``embedded`` for the embedded device, without a GPU, or the number of the only one to probe. defines: as for
    ``load_probes``. max_device_memory, max_trace_size: in bytes. timeout: seconds that the program waits for the twins
    of an image. wait: False is ``--no-wait``: launches run without probes until their twins are ready. hot: twins are
    made at that launch of a kernel, from 1 (``--when launch``), and not waited for. retarget, max_registers, quiet: as
    the options. only_blocks: whether only blocks of ``trace`` are recorded; other launches run their own machine code,
    as those do that launches (from a number to below another, of each kernel), every, devices, duration (in seconds)
    and ranges (as of ``--range``; range_scope: ``thread`` or ``process``) do not choose. memusage: ``--memusage``:
    nothing is probed, and ``neutrino-report`` says what memory it would take; not with wait=False or hot.

    Called again, it changes the probes, of all launches from then on; options of a process are chosen once. Processes
    that this one starts are not probed. Raises NeutrinoError if the process has other options, runs under ``neutrino``,
    or has a block of ``trace`` open with other probes; ProbeError, ToolError and OSError as the command would fail.
    """
    from neutrino.device.register_limits import LEAST_CAP, MOST_CAP
    from neutrino.run.launch_choice import MOST_DEVICES, Choice
    from neutrino.run.own_process import attach, find_hook
    from neutrino.run.probes import RunProbes
    from neutrino.run.start import Request, say

    _check("every", every, 1)
    _check("hot", hot, 0)
    if not isinstance(launches, (tuple, list)) or len(launches) != 2:
        raise NeutrinoError(f"launches={launches!r}: write two numbers, as (10, 20), or None as the second")
    _check("launches", launches[0], 0)
    _check("launches", launches[1], 1, is_optional=True)
    embedded, devices = _devices(device, devices)
    if not isinstance(tracedir, (str, os.PathLike)):
        raise NeutrinoError(f"tracedir={tracedir!r}: write the path of a folder")
    if isinstance(devices, (int, str)):
        raise NeutrinoError(f"devices={devices!r}: write a list of numbers, as [0, 1]")
    for number in devices:
        _check("devices", number, 0, MOST_DEVICES - 1)
    number_given = isinstance(duration, (int, float)) and not isinstance(duration, bool)
    if duration is not None and not (number_given and 0 < duration < _MOST_SECONDS):
        raise NeutrinoError(f"duration={duration!r}: write a number of seconds")
    if memusage and (hot or not wait):
        raise NeutrinoError("memusage=True measures what all launches take: leave out wait=False and hot")
    _check("max_registers", max_registers, LEAST_CAP, MOST_CAP, is_optional=True)
    _check("timeout", timeout, 1, _MOST_TIMEOUT, is_optional=True)
    for name, size in (("max_device_memory", max_device_memory), ("max_trace_size", max_trace_size)):
        _check(name, size, 4 << 20, 1 << 40, is_optional=True)
    chosen = _merged(probes, defines)
    selection = Selection(_patterns("kernels", kernels), _patterns("exclude", exclude))
    request = Request(
        [],
        RunProbes.of(chosen),
        tuple(map(_name, flattened(probes))),
        selection,
        tracedir=Path(tracedir),
        device=embedded,
        pool=max_device_memory,
        timeout=timeout,
        waits=wait,
        hot=hot,
        quiet=quiet,
        max_trace_size=max_trace_size,
        retarget=retarget,
        max_registers=max_registers,
        scripts=False,
        is_switched=only_blocks,
        measures_only=memusage,
        choice=Choice(
            first=launches[0],
            end=launches[1],
            every=every,
            devices=tuple(devices),
            duration_ms=None if duration is None else max(round(1000 * duration), 1),
            ranges=_patterns("ranges", ranges),
            range_scope=_scope(range_scope),
        ),
    )
    with _state.lock:
        if _state.request is None and (_state.hook or find_hook()) is not None:
            raise NeutrinoError(
                "this process runs under neutrino: its probes are those of -p; leave out install(), and probes of trace"
            )
        if _state.hook is None or _state.request is None:
            _state.hook = attach(request)
            _state.request, _state.sets[_digest(request)] = request, 1
            _state.usual = None if only_blocks else 1
            return
        changed = _changed(request, _state.request)
        if changed:
            raise NeutrinoError(
                f"this process is probed with other {changed} already; options are chosen once, by install()"
            )
        number = _number(_state.hook, _state.request, request)
        if not only_blocks and number != _state.current and not (quiet or _state.request.quiet):
            names = ", ".join(request.probe_names)
            say(f"install() puts {names} in place of the probes before; one call takes several")
        _put_in_force(_state.hook, number)
        if _state.usual is not None:
            _state.usual = number


def _devices(device: str | int | None, devices: Sequence[int]) -> tuple[EmbeddedDevice | None, Sequence[int]]:
    """Return the embedded device if ``device`` names it, and the numbers of the devices to probe. Raises NeutrinoError
    for another name."""
    from neutrino.loader.embedded_driver import EmbeddedDevice

    if device is None:
        return None, devices
    if isinstance(device, int) or (isinstance(device, str) and device.isdecimal()):
        if devices:
            raise NeutrinoError(f"device={device!r} and devices={devices!r}: give one of the two")
        return None, [int(device)]
    if not isinstance(device, str):
        raise NeutrinoError(f"device={device!r}: write 'embedded', or the number of a GPU")
    try:
        return EmbeddedDevice.parse(device), devices
    except NeutrinoError as error:
        said = str(error).replace(f"--device {device}", f"device={device!r}").replace("--device", "device")
        raise NeutrinoError(said) from None


def _digest(request: Request) -> str:
    """What tells sets of probes apart: the probes, and the kernels that they are put into."""
    return f"{request.probes.digest if request.probes else ''} {request.selection.digest}"


def _number(hook: Hook, first: Request, request: Request) -> int:
    """The number of a set of probes, which the hook gets if it is new. first: the process's own request, whose options
    hold. Under the lock. Raises NeutrinoError where no set may follow the first, and as ``Hook.bring``.
    """
    from neutrino.run.start import may_ask_again

    digest = _digest(request)
    if digest in _state.lifelines:
        _state.lifelines[digest] = _state.lifelines.pop(digest)
    elif _state.sets.get(digest) != 1:
        if not may_ask_again(first):
            raise NeutrinoError(
                "this process has other probes already: with wait=False, hot or memusage they are chosen once"
            )
        _state.sets[digest], _state.lifelines[digest] = hook.bring(
            replace(first, probes=request.probes, probe_names=request.probe_names, selection=request.selection)
        )
        # The others are started again if they are asked for again.
        while len(_state.lifelines) > _MOST_LISTENERS:
            os.close(_state.lifelines.pop(next(iter(_state.lifelines))))
    return _state.sets[digest]


def _put_in_force(hook: Hook, number: int) -> None:
    """Have launches run with a set of probes from now on. Under the lock. Raises NeutrinoError while a block is open
    with others, and as ``Hook.use``.
    """
    if number == _state.current:
        return
    if _state.blocks:
        raise NeutrinoError("a block with other probes is open: one that asks for others begins after it has ended")
    # What was launched until now belongs to the set before.
    hook.flush(_FLUSH_MS)
    hook.use(number)
    _state.current = number


_OPTIONS = {
    "tracedir": "tracedir",
    "device": "device",
    "pool": "max_device_memory",
    "timeout": "timeout",
    "waits": "wait",
    "hot": "hot",
    "quiet": "quiet",
    "max_trace_size": "max_trace_size",
    "retarget": "retarget",
    "max_registers": "max_registers",
    "measures_only": "memusage",
    "choice": "launches, every, devices, duration or ranges",
}
"""Fields of a request, and the options of ``install`` they are of. Blocks record in either case of ``only_blocks``."""


def _changed(request: Request, before: Request | None) -> str:
    """The options that are given, and differ from those of the process; empty without any."""
    from neutrino.run.start import Request

    plain = Request([], None, (), Selection((), ()))
    names = [
        name
        for field, name in _OPTIONS.items()
        if getattr(request, field) not in (getattr(plain, field), getattr(before, field, None))
    ]
    return ", ".join(names)


_MOST_SECONDS = 1e6
_MOST_TIMEOUT = 86399


def _check(name: str, value: object, least: int, most: int = 10**18, *, is_optional: bool = False) -> None:
    """Raise NeutrinoError unless an option's value is an integer of that range, or None where that is allowed."""
    if value is None and is_optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        to = f" to {most}" if most < 10**18 else " on"
        raise NeutrinoError(f"{name}={value!r}: write an integer from {least}{to}")


def trace_dir() -> Path | None:
    """Return the folder of this process's trace: None while there is none, since no GPU code was loaded."""
    hook = _present()
    return hook.trace_dir if hook is not None else None


@names_arguments
def trace(*probes: Name | Function | ProbeSet, kernels: str | Sequence[str] = (), **options: Any) -> Block:
    """Record what is launched in a ``with`` block: ``with neutrino.trace("gmem_bytes") as t: …``, then ``t.maps``.

    probes: as for ``install``, which is called with them, ``only_blocks`` and the options if the process has no probes
    yet; later blocks may have others, whose twins are made then. None: those of the block before, of ``install``, or of
    the command ``neutrino``. kernels: patterns of kernel names, here of those to show; all are probed that ``install``
    chose.

    The block waits for the GPU where it begins and where it ends. Launches of all threads count, so blocks may be
    nested, and overlap in threads, if they have the same probes. Also above a function, each of whose calls is such a
    block. Raises NeutrinoError without probes, for an option that ``install`` does not have, and as ``install``.
    """
    known = install.__wrapped__.__kwdefaults__  # type: ignore[attr-defined]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise NeutrinoError(unknown_option("trace", unknown, list(known)))
    return Block(probes, Selection(_patterns("kernels", kernels), ()), options)


class Block(ContextDecorator):
    """What ``neutrino.trace`` returns, for ``with``."""

    def __init__(
        self, probes: Sequence[Name | Function | ProbeSet], selection: Selection, options: Mapping[str, Any]
    ) -> None:
        """Prepare to record. probes, options: of ``trace``. selection: of the kernels to show."""
        self._probes = probes
        self._selection = selection
        self._options = options
        # A function that calls itself has several open.
        self._open: list[AbstractContextManager[Recording]] = []

    def __enter__(self) -> Recording:
        """Begin to record; return what can be read after the block. Raises as ``trace``."""
        manager = _recorded(self._probes, self._selection, self._options)
        recording = manager.__enter__()
        self._open.append(manager)
        return recording

    def __exit__(self, *fault: Any) -> bool | None:
        """End the recording. fault: what the block raises, which goes on."""
        return self._open.pop().__exit__(*fault)

    def __getattr__(self, name: str) -> Any:
        """Raise NeutrinoError for what a recording has, AttributeError for other names: nothing is recorded yet."""
        if name in Recording.__dict__ and not name.startswith("_"):
            raise NeutrinoError(f"nothing is recorded yet: write with neutrino.trace(…) as t: and after it t.{name}")
        raise AttributeError(f"a block of trace has no attribute {name!r}")

    def __repr__(self) -> str:
        """Say what it is for."""
        return "<block of neutrino.trace, for with>"


@contextmanager
def _recorded(
    probes: Sequence[Name | Function | ProbeSet], selection: Selection, options: Mapping[str, Any]
) -> Iterator[Recording]:
    """Record while the context is open. Raises as ``trace``."""
    with _state.lock:
        hook = _begin_block(probes, options)
    try:
        hook.flush(_FLUSH_MS)
        recording = Recording(hook, selection, _counters(hook), hook.now)
        hook.record(True)
    except BaseException:
        _end_block(hook)
        raise
    try:
        yield recording
    finally:
        end = hook.now
        _end_block(hook)
        recording.is_written = hook.flush(_FLUSH_MS)
        recording.after, recording.end = _counters(hook), end


class range(ContextDecorator):  # noqa: N801
    """Mark what this thread launches in a ``with`` block, or in a function: ``with neutrino.range("step"): …``.

    ``neutrino --range neutrino@step`` then probes only these launches, as it does those in an NVTX range ``step`` of a
    domain ``neutrino``; so does ``install(ranges="neutrino@step")``. Ranges may be nested. Where nothing is chosen by
    ranges, or the process is not probed, nothing happens.
    """

    def __init__(self, name: str) -> None:
        """Name a range of launches, for ``with``. Raises NeutrinoError if name is no text."""
        if not isinstance(name, str):
            raise NeutrinoError(f"range({name!r}): write the range's name, a text")
        self.name = name

    def __enter__(self) -> range:
        """Begin the range."""
        hook = _present_for_ranges()
        if hook is not None:
            hook.push_range(self.name)
        return self

    def __exit__(self, *_: object) -> None:
        """End the range that ``__enter__`` began in this thread; nothing if the process is not probed."""
        hook = _present_for_ranges()
        if hook is not None:
            hook.pop_range()

    def __repr__(self) -> str:
        """Return the range as messages show it, ``<range NAME>``."""
        return f"<range {self.name}>"


@dataclass(frozen=True)
class RecordedKernel:
    """A kernel and its launches in a block. launches: those whose data are in the trace, in the order of submission."""

    kernel: TraceKernel
    launches: tuple[TraceLaunch, ...]

    @property
    def name(self) -> str:
        """The demangled name."""
        return self.kernel.demangled

    @property
    def mangled(self) -> str:
        """The name of the symbol."""
        return self.kernel.name

    @property
    def set(self) -> int:
        """The number of the probes that it ran with, of ``trace.sets``."""
        return self.kernel.set

    @property
    def maps(self) -> dict[str, MapView]:
        """By name, the view of a map whose first axis is the launch. Raises NeutrinoError if the launches have several
        shapes: then each of ``launches`` has its own."""
        return self.kernel.maps_of(_numbers(self.launches))

    def __repr__(self) -> str:
        """Return the kernel's name and number of launches as a notebook shows them."""
        return f"<{self.name}: {len(self.launches)} launches>"


@dataclass
class Recording:
    """What a ``with neutrino.trace()`` block recorded; it can be read once the block has ended.

    is_written: whether all of it was in the trace by then; False after an error of the GPU, or a minute.
    """

    _hook: Hook
    _selection: Selection
    _before: Any
    _begin: int
    is_written: bool = False
    # Set when the block ends: the counters, and the time.
    after: Any = None
    end: int | None = None

    @cached_property
    def trace(self) -> Trace:
        """The trace of the whole process. Raises NeutrinoError before the block has ended, or if there is none."""
        from neutrino.tracing.trace import Trace

        if self.end is None:
            raise NeutrinoError(_NOT_ENDED)
        path = self._hook.trace_dir
        if path is None:
            raise NeutrinoError(
                "no trace: nothing was launched inside the block, or its GPU code was loaded before the probes were "
                "there: put the calls inside the block, and install() before the framework's import"
            )
        return Trace(path)

    @cached_property
    def kernels(self) -> NamedKernels[RecordedKernel]:
        """The probed kernels with launches in the block, in the order in which the process obtained them, and by name.
        """
        return self._kernels(self._selection)

    def _kernels(self, selection: Selection) -> NamedKernels[RecordedKernel]:
        """Return the probed kernels that are chosen and have launches in the block."""
        import numpy as np

        from neutrino.tracing.named_kernels import NamedKernels

        records, found = self.trace.launches, []
        times = records["submit_ns"]
        numbers = np.flatnonzero((times >= self._begin) & (times <= (self.end or 0)))
        if not numbers.size:
            return NamedKernels()
        # Only files of these are opened: a process that asks often has many kernels.
        chosen, launched = builtins.range(numbers[0], numbers[-1] + 1), np.unique(records["kernel"][numbers])
        for kernel in self.trace.kernels:
            if kernel.id not in launched or not selection.selects(kernel.name, kernel.demangled):
                continue
            launches = tuple(
                launch for launch in kernel.launches(chosen)
                if self.end is not None and self._begin <= launch.record["submit_ns"] <= self.end
            )  # fmt: skip
            if launches:
                found.append(RecordedKernel(kernel, launches))
        return NamedKernels(found)

    @property
    def launches(self) -> tuple[TraceLaunch, ...]:
        """All of them whose data are in the trace, in the order of submission."""
        every = [launch for kernel in self.kernels for launch in kernel.launches]
        return tuple(sorted(every, key=lambda launch: int(launch.record["submit_ns"])))

    def to_pandas(self) -> Any:
        """Return the launches as a pandas DataFrame, a row each, in the order of submission: number, kernel, grid,
        block, device, stream, time (nanoseconds since the block began) and graph. Raises NeutrinoError without pandas.
        """
        from neutrino.tracing.views import data_frame

        named = {launch.index: kernel.name for kernel in self.kernels for launch in kernel.launches}
        launches = self.launches
        columns: dict[str, Any] = {
            "launch": [launch.index for launch in launches],
            "kernel": [named[launch.index] for launch in launches],
        }
        for name in ("grid", "block"):
            for number, axis in enumerate("xyz"):
                columns[f"{name}_{axis}"] = [int(launch.record[name][number]) for launch in launches]
        for name in ("shared", "device", "stream", "graph"):
            columns[name] = [int(launch.record[name]) for launch in launches]
        columns["time_ns"] = [int(launch.record["submit_ns"]) - self._begin for launch in launches]
        return data_frame(columns)

    @property
    def maps(self) -> dict[str, MapView]:
        """By name, the view of a map whose first axis is the launch, where one kernel has launches in the block. Raises
        NeutrinoError for several kernels, for patterns of ``trace`` that leave none, and as ``RecordedKernel`` does."""
        from neutrino.tracing.named_kernels import listed
        from neutrino.tracing.views import MapViews

        if len(self.kernels) > 1:
            names = listed(self.kernels)
            raise NeutrinoError(f"several kernels: {names}; write t.kernels[NAME].maps, or give trace() a pattern")
        if self.kernels:
            return self.kernels[0].maps
        hidden = self._kernels(Selection((), ()))
        if hidden:
            raise NeutrinoError(f"kernels={self._selection.keep!r} leaves none of the kernels: {listed(hidden)}")
        return MapViews({})

    @property
    def coverage(self) -> Coverage:
        """What part of the launches in the block was probed, of all kernels."""
        import numpy as np

        from neutrino.abi.launches import REASON_SLOTS
        from neutrino.tracing.coverage import Coverage

        if self.end is None:
            raise NeutrinoError(_NOT_ENDED)
        counters = np.zeros((1, REASON_SLOTS), "<u8") if self.after is None else self.after.copy()
        if self._before is not None:
            counters[: len(self._before)] -= self._before
        return Coverage.of(counters)

    def __repr__(self) -> str:
        """Say whether it goes on, or what was recorded where."""
        if self.end is None:
            return "<recording>"
        return f"<{len(self.launches)} launches of {len(self.kernels)} kernels in {self.trace.path}>"

    def _repr_html_(self) -> str | None:
        """What was recorded as notebooks show it: the page of ``neutrino-report --html`` in a frame, of the block's
        launches; None while it goes on, without launches, and where no page can be made.
        """
        if self.end is None or not self.launches:
            return None
        from neutrino.tracing.notebook import framed_page

        numbers = [launch.index for launch in self.launches]
        chosen = [f"--launch={min(numbers)}:{max(numbers) + 1}"]
        chosen += [f"--kernel={pattern}" for pattern in self._selection.keep]
        chosen += [f"--filter={pattern}" for pattern in self._selection.drop]
        return framed_page(self.trace.path, chosen)


def _begin_block(probes: Sequence[Name | Function | ProbeSet], options: Mapping[str, Any]) -> Hook:
    """Put the probes of a block in force, and count it as open; return the hook. Under the lock. Raises as ``trace``.
    """
    hook = _present()
    if probes or hook is None:
        if not probes:
            raise NeutrinoError("no probes: give trace() some, or call install() before")
        usual, is_first = _state.usual, hook is None
        install(*probes, **{"only_blocks": True, **options})
        if not is_first:
            _state.usual = usual
        hook = _present()
    elif options:
        raise NeutrinoError(f"{', '.join(options)}: only install() takes that, and the process has its probes already")
    if hook is None:
        raise NeutrinoError("the hook is not in this process")
    _state.blocks += 1
    return hook


def _end_block(hook: Hook) -> None:
    """Count a block as ended; after the last one nothing is recorded, or the probes of ``install`` are in force again.
    """
    with _state.lock:
        _state.blocks -= 1
        if _state.blocks:
            return
        hook.record(False)
        if _state.usual is not None and _state.usual != _state.current:
            _put_in_force(hook, _state.usual)


def _counters(hook: Hook) -> Any:
    """The counters of a process's launches that are in the trace; None without one."""
    from neutrino.tracing.trace import Trace

    path = hook.trace_dir
    return None if path is None else Trace(path).counters.copy()


def _present() -> Hook | None:
    """Return the hook that is in this process, None without one; it is searched for only until it is found."""
    from neutrino.run.own_process import find_hook

    with _state.lock:
        if _state.hook is None:
            _state.hook = find_hook()
        return _state.hook


def _present_for_ranges() -> Hook | None:
    """Return the hook that is in this process, None without one. Without one this imports little, and takes no lock."""
    from neutrino.loader.install import is_installed_here

    return _present() if _state.hook is not None or is_installed_here() else None


def _merged(probes: Sequence[Name | Function | ProbeSet], defines: Mapping[str, int | float] | None) -> ProbeSet:
    """The probes of ``install``'s arguments."""
    given = list(flattened(probes))
    sets = [probe for probe in given if isinstance(probe, ProbeSet)]
    others: list[Name | Callable[[], None]] = [probe for probe in given if not isinstance(probe, ProbeSet)]
    if not given:
        raise NeutrinoError("no probes: name some, as install('gmem_bytes')")
    if sets and (len(sets) > 1 or others or defines):
        raise NeutrinoError("one ProbeSet, or names and functions: load_probes() merges several")
    return sets[0] if sets else load_probes(others, defines=defines)


def _name(probe: object) -> str:
    """What a trace calls a probe that ``install`` got."""
    if isinstance(probe, ProbeSet):
        return probe.file or "probes"
    return str(probe) if isinstance(probe, (str, os.PathLike)) else str(getattr(probe, "__name__", "probe"))


def _patterns(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """An option's patterns. Raises NeutrinoError for what is neither text nor a list of texts."""
    patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (list, tuple)) else None
    if patterns is None or not all(isinstance(pattern, str) for pattern in patterns):
        raise NeutrinoError(f"{name}={given!r}: write a pattern, as 'attn*', or a list of them")
    return patterns


def _scope(given: str) -> Any:
    """Return the ``Scope`` that an option names. Raises NeutrinoError for another word."""
    from neutrino.run.range_choice import Scope

    if given not in {scope.value for scope in Scope}:
        raise NeutrinoError(f"range_scope={given!r}: it is 'thread' or 'process'")
    return Scope(given)


def _numbers(launches: Sequence[TraceLaunch]) -> Any:
    """Return the numbers of launches in their trace, as int64 of shape (n,)."""
    import numpy as np

    return np.array([launch.index for launch in launches], np.int64)
