"""Answers requests for twins, in workers of the maker: receives an image, makes its cache entry, and sends it back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from neutrino.abi.requests import OF_KEPT_KERNEL
from neutrino.device.kind import DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.errors import NeutrinoError
from neutrino.maker.history import History
from neutrino.maker.kept_images import Asked, KeptImages, asked_for
from neutrino.maker.keys import image_key
from neutrino.maker.last_used import LastUsed
from neutrino.maker.maker_process import Ahead, start_maker
from neutrino.maker.messages import (
    ENTRY_FOLLOWS,
    MAKE,
    MAKE_AHEAD,
    MAY_BE_CACHED,
    REPLY,
    REPLY_MAGIC,
    REQUEST,
    TEXT_FOLLOWS,
    receive,
)
from neutrino.maker.passed import keep_passed
from neutrino.maker.request_workers import Answer, nothing_left
from neutrino.maker.store import Cache
from neutrino.private_files import private_folder
from neutrino.probing.selection import Selection

if TYPE_CHECKING:
    from neutrino.backend.protocol import Shipped, Tools
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.twins.values import Twin

WORKER_LIMIT_S = 600
"""Seconds after which a worker is ended by SIGALRM."""
_MOST_SHIPPED = 256 << 20
"""Bytes of images, and of what was read of them, that a worker keeps for further kernels."""
_LONGEST_REASON = 4096
"""Bytes of the text that says why there is no entry, at most."""


class Probes(Protocol):
    """The probes of a run, which are verified when they are first asked for."""

    @property
    def probe_set(self) -> ProbeSet:
        """The probes of the run, read and verified when they are first asked for. Raises ProbeError."""


@dataclass(frozen=True)
class TwinSettings:
    """What a worker needs to make the twins (instrumented kernels) of a run.

    run_key: 32 bytes that identify the run's settings in keys of cache entries. save_temps: a folder for the output of
    each stage. device: whether the program runs on a GPU or on the emulator. assembled: False if the run's key was made
    without an assembler, so that no entry under it may be assembled. retarget: whether twins may be made from PTX of
    another architecture than the machine code's. max_registers: the user's register cap of twins, None without one.
    machine_code: of which machine code twins are made.
    compiled: the folder in which compilers of the program write, None to make nothing before it is asked for.
    driver_version: as ``cuDriverGetVersion`` gives it, None if it is not known. history: of runs with this key, None
    where nothing is imported before twins are asked for. waits: whether the program waits for its twins, so that none
    are made when it has ended. say: prints a line for the user, such as that an assembler takes long; None for
    silence.
    """

    probes: Probes
    selection: Selection
    run_key: bytes
    cache: Cache
    save_temps: Path | None
    device: DeviceKind = DeviceKind.GPU
    assembled: bool = True
    retarget: bool = False
    max_registers: int | None = None
    machine_code: MachineCode = MachineCode.OFF
    compiled: Path | None = None
    driver_version: int | None = None
    history: History | None = None
    waits: bool = False
    say: Callable[[str], None] | None = None


def start_run_maker(settings: TwinSettings, begin: Callable[[], None]) -> socket.socket | None:
    """Start the maker of a run; return the socket for ``hand_over``, None if no process can be started.

    begin: called first in each worker that serves a request; closes what the listener has open.
    """

    has_begun = False

    def answer(connection: socket.socket, header: bytes) -> Answer | None:
        """Answer one request for twins (copies of kernels with probes) in a worker process, which an alarm ends if it
        hangs. header: the head of the request, which was read already."""
        nonlocal has_begun
        if not has_begun:
            begin()
            has_begun = True
        signal.alarm(WORKER_LIMIT_S)
        return _answer(connection, header, settings)

    def prepare(header: bytes | None) -> None:
        """Prepare the maker for forking workers. header: of the first request, None before there is one."""
        _prepare(header, settings)

    def make_ahead(header: bytes, cubin: bytes) -> None:
        """Make the entry of a cubin before it is asked for. header: of the first request."""
        _make_ahead(header, cubin, settings)

    ahead = Ahead(settings.compiled, make_ahead) if settings.compiled else None
    if history := settings.history:
        # Another size: the file is damaged, or of another version.
        expected = history.request if len(history.request) == REQUEST.size else b""
        return start_maker(
            prepare, answer, ahead, at_once=history.asks, expected=expected, asked=history.asked,
            ends_with_clients=settings.waits,
        )  # fmt: skip
    return start_maker(prepare, answer, ahead, ends_with_clients=settings.waits)


def _prepare(header: bytes | None, settings: TwinSettings) -> None:
    """Import the patcher, find the assembler and make a twin, so that processes that are forked need not begin with
    that. header: of the first request, None if there was none yet.

    Raises NeutrinoError, OSError.
    """
    from neutrino.backend.registry import EMBEDDED_DEVICE, target_of_device
    from neutrino.fatbin.compression import prepare as prepare_decoding
    from neutrino.maker.patcher import patch_image

    driver_version = REQUEST.unpack(header)[5] or None if header else settings.driver_version
    patch_image(
        target_of_device(EMBEDDED_DEVICE).sample, settings.probes.probe_set, EMBEDDED_DEVICE,
        selection=settings.selection, assembler=None, key=bytes(32), device=DeviceKind.EMBEDDED,
    )  # fmt: skip
    tools = _tools(EMBEDDED_DEVICE, driver_version, settings)
    if settings.machine_code.is_on:
        prepare_decoding()
        # Before the first request the device is not known.
        arch = REQUEST.unpack(header)[4].rstrip(b"\0").decode("ascii", "replace") if header else EMBEDDED_DEVICE
        target_of_device(arch).prepare_code(settings.probes.probe_set, arch, tools)


def serve_twins(connection: socket.socket, header: bytes, settings: TwinSettings) -> None:
    """Answer a request for the twins of an image. header: what was read of the request; the image follows."""
    answer = _answer(connection, header, settings)
    if answer is not None:
        try:
            connection.sendall(answer.data)
        finally:
            answer.finish()


def _answer(connection: socket.socket, header: bytes, settings: TwinSettings) -> Answer | None:
    """Return the answer to a request, None to one that is incomplete. Parameters: of ``serve_twins``."""
    _, kind, _, key, arch, driver_version, _, size = REQUEST.unpack(header)
    image = receive(connection, size)
    if image is None:
        return None
    device = arch.rstrip(b"\0").decode("ascii", "replace")
    status, answer, finish = ENTRY_FOLLOWS, b"", nothing_left
    # An entry is stored under the key, where other processes find it, so the key is not taken on trust.
    try:
        if image_key(settings.run_key, device, image) != key:
            raise NeutrinoError("the key does not fit the image")
        # What is not stored is made when it is asked for.
        if kind == MAKE or settings.save_temps is None:
            folder = Path(os.fsdecode(connection.getsockname())).parent
            kept = KeptImages(folder, Path(tempfile.gettempdir()), device)
            answer, finish = begin_entry(image, device, driver_version or None, key, settings, kept)
    except Exception as error:  # noqa: BLE001 - else the kernel's reason would be that this worker has exited
        status, answer = TEXT_FOLLOWS, _reason(error)
    # Nobody may read the answer to a request that was made ahead, so that it must fit into the socket.
    if kind == MAKE_AHEAD and status == ENTRY_FOLLOWS:
        finish()
        status, answer, finish = MAY_BE_CACHED, b"", nothing_left
    reply = REPLY.pack(REPLY_MAGIC, status, 0, len(answer)) + answer
    return Answer(reply, image.startswith(OF_KEPT_KERNEL), finish)


def _reason(error: Exception) -> bytes:
    """Return the line about an error that the hook shows as the reason of kernels."""
    # MemoryError has no text.
    line, *_ = str(error).splitlines() or [type(error).__name__]
    if not isinstance(error, (NeutrinoError, OSError, MemoryError)):
        line = f"a fault of Neutrino: {type(error).__name__}: {line}"
    # A path may hold bytes that are no UTF-8.
    return line.encode(errors="backslashreplace")[:_LONGEST_REASON]


def _make_ahead(header: bytes, cubin: bytes, settings: TwinSettings) -> None:
    """Make the cache entry of a cubin that no process has asked for yet, if it holds its PTX. header: of a request."""
    from neutrino.backend.registry import target_of_device

    _, _, _, _, arch, driver_version, _, _ = REQUEST.unpack(header)
    device = arch.rstrip(b"\0").decode("ascii", "replace")
    # The hook asks for no twins of others.
    if not target_of_device(device).may_hold_text(cubin):
        return
    if settings.history:
        settings.history.compiled(header)
    key = image_key(settings.run_key, device, cubin)
    # Whoever asks for it makes it again, and gets the error.
    with contextlib.suppress(NeutrinoError, OSError, MemoryError):
        make_entry(cubin, device, driver_version or None, key, settings)


def make_entry(
    image: bytes, arch: str, driver_version: int | None, key: bytes, settings: TwinSettings,
    kept: KeptImages | None = None,
) -> bytes:  # fmt: skip
    """Return the cache entry of an image, which has its twins: from the cache, or made and stored.

    Raises NeutrinoError, OSError. image: or what a request has in its place (``asked_for``). arch: of the device.
    driver_version: as in ``cuDriverGetVersion``, None if it is not known. key: of the entry, 32 bytes. kept: images
    that are asked for by their digests. Requests for the same key, also of other runs, wait for each other, so that the
    entry is made once. A cache that cannot be written is not an error. With save_temps nothing is stored, because no
    later run has this key.
    """
    entry, finish = begin_entry(image, arch, driver_version, key, settings, kept)
    finish()
    return entry


def begin_entry(
    image: bytes, arch: str, driver_version: int | None, key: bytes, settings: TwinSettings, kept: KeptImages | None
) -> tuple[bytes, Callable[[], None]]:
    """Return what ``make_entry`` does, and what is left to be done: the entry is stored, for which others with its key
    wait. Parameters and errors: of ``make_entry``."""
    with contextlib.ExitStack() as held:
        held.enter_context(_key_lock(settings.cache.root, key))
        try:
            entry = settings.cache.read(key)
        except OSError:
            entry = None
        if entry is not None:
            # Made meanwhile by another worker: the caller has not found it in the cache.
            return entry, nothing_left
        # The maker has imported it; neither the listener nor a run whose twins are all cached needs the patcher.
        from neutrino.maker.patcher import patch_image

        asked = asked_for(image)
        shipped, keep_image = None, nothing_left
        if asked.digest and kept is not None:
            asked, shipped, keep_image = _found_in_kept(asked, kept, arch, settings)

        entry = patch_image(
            asked.image,
            settings.probes.probe_set,
            arch,
            selection=settings.selection,
            assembler=_tools(arch, driver_version, settings),
            key=key,
            device=settings.device,
            retarget=settings.retarget,
            max_registers=settings.max_registers,
            machine_code=settings.machine_code,
            kernel=asked.kernel,
            shipped=shipped,
            save_temps=settings.save_temps,
            notice=lambda twin: _say_long(twin, settings),
        )
        until_stored = held.pop_all()

        def finish() -> None:
            """Store what was made, and let others with the entry's key go on."""
            with until_stored:
                keep_image()
                if settings.save_temps is None:
                    with contextlib.suppress(OSError):
                        settings.cache.write(key, entry)
                        keep_passed(settings.cache.root, asked.image)

        return entry, finish


_shipped: LastUsed[tuple[bytes, str], Shipped] = LastUsed(_MOST_SHIPPED)
"""What was found in images whose kernels are asked for one by one, by digest and architecture."""


def _found_in_kept(
    asked: Asked, kept: KeptImages, arch: str, settings: TwinSettings
) -> tuple[Asked, Shipped, Callable[[], None]]:
    """Return what is asked for, with its image unless another kernel of that was asked for before; what a device runs
    of the image; and what is left to be done for other workers. kept: with the image. arch: of the device. Raises
    NeutrinoError."""
    from neutrino.maker.patcher import code_alone, find_shipped

    key = asked.digest, arch
    shipped = _shipped.get(key)
    if shipped is None or settings.save_temps is not None:
        asked = replace(asked, image=kept.read(asked.digest))
        shipped = find_shipped(
            asked.image, arch, device=settings.device, retarget=settings.retarget, kernel=asked.kernel
        )
        code = code_alone(shipped, arch)
        if code is not None:
            # Its tables take about as much again.
            _shipped.put(key, shipped, 2 * len(code))
            return asked, shipped, partial(kept.keep_alone, asked.digest, code)
    return asked, shipped, nothing_left


def _say_long(twin: Twin, settings: TwinSettings) -> None:
    """Say on the terminal that a twin (instrumented kernel) takes the assembler long; once in a run, by any worker."""
    if settings.say is None:
        return
    # In the run's own folder for temporary files.
    path = Path(tempfile.gettempdir()) / "told"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return
    settings.say(
        f"{twin.name}: {twin.length_warning}; -k and --filter choose kernels, and probes at fewer instructions make it "
        "shorter"
    )


_found: dict[tuple[str, int | None], Tools | None] = {}
"""Tools by the name of their target and the driver's version."""


def _tools(arch: str, driver_version: int | None, settings: TwinSettings) -> Tools | None:
    """Return the tools for devices of an architecture and a driver; None if nothing is to be assembled.

    Raises ToolMissingError.
    """
    if not settings.assembled:
        return None
    from neutrino.backend.registry import target_of_device

    target = target_of_device(arch)
    key = target.name, driver_version
    if key not in _found:
        _found[key] = target.run_tools(driver_version)
    return _found[key]


@contextlib.contextmanager
def _key_lock(root: Path, key: bytes) -> Iterator[None]:
    """Hold the lock file of a key during the block, so that only one process at a time makes that cache entry.

    root: the cache's folder; if it is not writable, nothing is locked.
    """
    try:
        private_folder(root)
        folder = private_folder(root / "locks")
        descriptor = os.open(folder / key.hex(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        # A process that has the removed file open and one that creates it anew then do not wait for each other. That is
        # right, since the entry is in the cache now.
        with contextlib.suppress(OSError):
            (folder / key.hex()).unlink()
    finally:
        os.close(descriptor)
