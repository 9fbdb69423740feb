"""The functions of the Python API, which ``import neutrino`` provides."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from neutrino.backend.registry import device_arch
from neutrino.calls import names_arguments
from neutrino.errors import Diagnostic, NeutrinoError, ProbeWarning, TraceError
from neutrino.fatbin import Container, read_file
from neutrino.fatbin.extraction import Namer, file_name, write_aside
from neutrino.patched_files.image_twins import Settings
from neutrino.patched_files.patch_report import Report
from neutrino.patched_files.patching import output_path
from neutrino.patched_files.patching import patch_file as patch_library
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.tracing.trace import Trace
from neutrino.tracing.trace_folders import find_traces
from neutrino.verification import is_one_liner, load_all

Name = str | os.PathLike[str]
"""A path; for a probe, also the name of one that ships with Neutrino."""
_INSIDE = frozenset({"neutrino", "contextlib"})
"""Packages whose calls are not the program's own."""
Function = Callable[[], None]
"""A probe of the running program, a function with ``@nl.probe``."""


@names_arguments
def load_probes(
    names: Name | Function | Sequence[Name | Function] = (),
    *,
    source: str | None = None,
    defines: Mapping[str, int | float] | None = None,
) -> ProbeSet:
    """Read probes, verify them, and merge them, as the option ``-p`` does: files first, in this order.

    names: one or several, also in lists. A ``str`` without a ``/`` that does not end in ``.toml`` or ``.py`` names a
    probe that ships with Neutrino; one with braces is a probe in one line, as of ``-e``; any other is a path. A
    function with ``@nl.probe`` is read from the file or the notebook's cell that it stands in, with the maps,
    registers, constants and functions there, and with maps and constants of other cells. source: the text of a probe
    file in Python.
    defines: other values of the constants of probes in Python, by name, as the option ``-D`` gives them.

    What may be wrong, as an opcode with an unknown modifier, is a ProbeWarning. Raises ProbeError with every error of
    every file, NeutrinoError for a file or shipped probe that does not exist, a
    function whose text is not known, and a constant that no file has.
    """
    given = list(flattened(names))
    for name in given:
        if not _is_probe(name):
            raise NeutrinoError(f"{name!r} is no probe: give names, paths, or functions with @nl.probe")
    functions = [name for name in given if callable(name)]
    one_liners = [name for name in given if _is_one_liner(name)]
    paths = [
        name if isinstance(name, str) else _path(name)
        for name in given if not callable(name) and not _is_one_liner(name)
    ]  # fmt: skip
    return load_all(paths, functions, source, one_liners, defines=defines, warn=_warn)


def _warn(diagnostic: Diagnostic) -> None:
    """Warn of something in probes, in the line of the program that has asked for them."""
    frame, number = sys._getframe(0), 0
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, number = frame.f_back, number + 1
    warnings.warn(str(diagnostic), ProbeWarning, stacklevel=number + 1)


def _is_one_liner(given: object) -> bool:
    """Return whether an argument is the text of probes in one line."""
    return isinstance(given, str) and is_one_liner(given)


def flattened(given: object) -> Iterator[Any]:
    """Yield what a list has, and the lists in it."""
    if isinstance(given, Iterable) and not _is_probe(given):
        for part in given:
            yield from flattened(part)
    else:
        yield given


def _is_probe(given: object) -> TypeGuard[Name | Function]:
    """Return whether an argument can name a probe: text, a path, or a function."""
    return isinstance(given, (str, os.PathLike)) or callable(given)


def _path(name: os.PathLike[str]) -> str:
    """Return a path as text that cannot be taken for the name of a shipped probe, because it contains ``/``."""
    path = os.fspath(name)
    return path if "/" in path else f"./{path}"


@names_arguments
def patch_file(
    file: Name,
    probes: ProbeSet,
    output: Name | None = None,
    *,
    archs: str | Sequence[str] = (),
    keep: Sequence[str] = (),
    drop: Sequence[str] = (),
    jobs: int | None = None,
) -> Report:
    """Write a copy of a library or program with twins (instrumented copies) of its kernels, as ``neutrino-patch`` does.

    output: path of the copy, or a folder for it; None for ``NAME.neutrino.EXT`` beside the file. archs: architectures
    of the devices, such as ``sm_90``; empty for this machine's GPUs or, if it has none, all architectures of the file's
    images. keep, drop: patterns of kernel names, as for ``-k`` and ``--filter``. jobs: number of processes, by default
    one per CPU.

    The report lists which kernels were probed and why others were not. Its ``output`` is None when no kernel could be
    probed and nothing was written. Raises PatchError for a file that cannot carry twins, FormatError for a damaged one,
    ToolError when a tool is missing or failed, OSError when a file cannot be read or written, NeutrinoError for other
    probes than a ProbeSet.
    """
    if not isinstance(probes, ProbeSet):
        given = type(probes).__name__
        raise NeutrinoError(f"probes are what load_probes returns, not {given}: write load_probes({probes!r})")
    source = Path(file)
    target = output_path(source, os.fspath(output) if output is not None else None)
    # Only a set that was merged from several files has parts.
    names = [part.file for part in probes.parts] or [probes.file]
    settings = Settings(probes, Selection(tuple(keep), tuple(drop)))
    wanted = [archs] if isinstance(archs, str) else archs
    return patch_library(
        source, target, settings, names=names, archs=[device_arch(arch) for arch in wanted], jobs=jobs,
    )  # fmt: skip


def extract(file: Name, output: Name | None = None) -> tuple[Container, ...]:
    """Read the GPU code in a file: a host library or program, an archive, a fatbin, cubin, code object or PTX text.

    output: a folder to which each image is written as ``<stem>.<container>.<image>.<arch>.<ext>``; it is created if it
    does not exist. None writes nothing. Returns the containers of the images, none for a file without GPU code.

    Raises FormatError for a damaged file, OSError when a file cannot be read or written.
    """
    source = Path(file)
    containers = tuple(read_file(source))
    if output is not None:
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        stem = Namer().stem(source.stem)
        for container in containers:
            for image in container.images:
                write_aside(folder / file_name(stem, container, image), image.data)
    return containers


def open_trace(path: Name = "trace") -> Trace:
    """Open a trace directory, or the newest one in a folder of trace directories, such as ``trace``.

    Raises TraceError when it cannot be read, or when there is none, and for what is no path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TraceError(f"{path!r} is no path of a trace, or of a folder of traces")
    *_, newest = find_traces(Path(path))
    return Trace(newest)
