"""``neutrino-report --proof``: what a trace shows of the code that launches without probes ran."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from neutrino.abi.launches import LaunchState
from neutrino.abi.reasons import Reason
from neutrino.cli.kernel_names import shorten
from neutrino.cli.streams import escaped
from neutrino.tracing.shown.model import counted
from neutrino.tracing.summary import TraceSummary
from neutrino.tracing.trace import Trace, TraceKernel

_NAME_WIDTH = 80
_PIECE = 1 << 20


def short_proof(summary: TraceSummary) -> Iterator[str]:
    """Yield the line of a summary on launches that were not probed."""
    plain = sum(_plain_launches(kernel) for kernel in summary.trace.kernels)
    yield f"without probes: {counted(plain, 'launch', 'launches')} (--proof says what shows which code they ran)"


def proof_lines(summary: TraceSummary) -> Iterator[str]:
    """Yield what a trace shows of the launches that ran without probes: how many, of which images, and their hashes as
    far as there is something to hash; and what it does not show.
    """
    trace = summary.trace
    kernels = [kernel for kernel in trace.kernels if _plain_launches(kernel)]
    plain = sum(map(_plain_launches, kernels))
    of_kernels = counted(len(kernels), "kernel", "kernels")
    yield f"{plain:,} of {counted(_launches(trace), 'launch', 'launches')} ran without probes, of {of_kernels}"
    for kernel in kernels:
        yield f"  {escaped(shorten(kernel.full_name, _NAME_WIDTH))}: {_plain_launches(kernel):,}: {_reasons(kernel)}"
    yield from _images(trace)
    yield from _twins(summary)
    yield ""
    yield "What that shows: these launches were given to the driver with the function that the program had from it."
    yield "A twin is an image of its own, loaded beside the program's, whose own images go to the driver as they are."
    yield "What it does not show: the trace has no hash of an image as it was loaded, so it is not proof of its bytes."
    yield "Hashes above are of files as they are now; one that has changed since the run is marked."


def _plain_launches(kernel: TraceKernel) -> int:
    """Return how many launches of a kernel ran without probes."""
    return sum(count for reason, count in kernel.counters.items() if reason is not Reason.PROBED)


def _launches(trace: Trace) -> int:
    """Return how many launches of all kernels there were, chosen or not."""
    return sum(sum(kernel.counters.values()) for kernel in trace.kernels)


def _reasons(kernel: TraceKernel) -> str:
    """Return why launches of a kernel were not probed, in words, and how many have a record that says so."""
    words = ", ".join(
        f"{reason.word} {count:,}" for reason, count in kernel.counters.items() if reason is not Reason.PROBED
    )
    states = kernel.records["state"]
    recorded = int((states == LaunchState.FALLBACK).sum())
    return f"{words} ({recorded:,} with a launch record)" if recorded else words


def _images(trace: Trace) -> Iterator[str]:
    """Yield a line for each file that images came from, with its hash now."""
    files: dict[str, int] = {}
    others = 0
    for image in trace.images:
        source = image.get("source")
        if isinstance(source, str) and source:
            files[source] = files.get(source, 0) + 1
        else:
            others += 1
    for source, count in files.items():
        yield f"  {counted(count, 'image', 'images')} of {escaped(source)}: {_file(Path(source), trace.started)}"
    if others:
        yield f"  {counted(others, 'image', 'images')} that the program had in memory: no file to hash"


def _file(path: Path, started: float) -> str:
    """Return the SHA-256 of a file, and whether it has changed since a time, in seconds since the epoch."""
    try:
        changed = path.stat().st_mtime > started
    except OSError:
        return "not there now"
    return f"{_digest(path)}{', changed since the run' if changed else ', older than the run'}"


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file in words, or why there is none."""
    if not path.is_file():
        return "no file now"
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return f"sha256 {found.hexdigest()}"


def _twins(summary: TraceSummary) -> Iterator[str]:
    """Yield a line for each probed kernel, with the hash of the text that its twin (copy with probes) was made of."""
    for kernel in summary.kernels:
        folder = kernel.kernel.trace_path / "kernel" / str(kernel.kernel.id)
        # PTX or AMD's assembly.
        for path in sorted(folder.glob("original.*")):
            name = escaped(shorten(kernel.kernel.full_name, _NAME_WIDTH))
            yield f"  {name}: twin made of {path.name}, {_digest(path)}"
