"""``neutrino-report --proof``: what a trace shows of the code that launches without probes ran."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from neutrino.abi.launches import LaunchState
from neutrino.abi.reasons import Reason
from neutrino.cli.kernel_names import shorten
from neutrino.cli.streams import escaped
from neutrino.errors import FormatError
from neutrino.tracing.loaded_images import BEGIN, LoadedImage, loaded_images
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
    images = loaded_images(trace)
    yield from _images(trace, images)
    yield from _twins(summary, images)
    yield ""
    yield "What that shows: these launches were given to the driver with the function that the program had from it."
    yield "A twin is an image of its own, loaded beside the program's, whose own images go to the driver as they are."
    if images:
        yield "The hook hashed each image as it was handed to the driver. Bytes that are said to be in a file now were"
        yield "hashed again, with the same result: they are those that were loaded."
    if any(not image.is_whole for image in images):
        yield f"What it does not show: of images that were not to be probed the size and {BEGIN:,} bytes were hashed."
    if unhashed := len(trace.images) - len(images):
        yield f"What it does not show: the trace has no hash of {counted(unhashed, 'image', 'images')} as loaded."
    yield "Hashes of files are of the files as they are now; one that has changed since the run is marked."


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


def _images(trace: Trace, images: list[LoadedImage]) -> Iterator[str]:
    """Yield a line for each file that images came from, with its hash now, and one for each image that was hashed."""
    files: dict[str, list[LoadedImage | None]] = {}
    by_id = {image.id: image for image in images}
    for event in trace.images:
        source = event.get("source")
        files.setdefault(source if isinstance(source, str) else "", []).append(by_id.get(event.get("id", -1)))
    # Those of no file come last.
    for source, members in sorted(files.items(), key=lambda item: not item[0]):
        count = counted(len(members), "image", "images")
        if source:
            yield f"  {count} of {escaped(source)}: {_file(Path(source), trace.started)}"
        else:
            yield f"  {count} that the program had in memory"
        for image in members:
            if image:
                yield f"    image {image.id} ({escaped(image.kind)}, {image.size:,} bytes): {_place(image)}"


def _place(image: LoadedImage) -> str:
    """Return where the bytes of an image are now, in words."""
    what = "its bytes" if image.is_whole or image.size <= BEGIN else f"its first {BEGIN:,} bytes"
    if image.file is None:
        elsewhere = "not in that file now, or the program had made them" if image.source else "in no file"
        return f"{what} are {elsewhere}; hash {escaped(image.digest)}"
    return f"{what} as loaded are there now, at byte {image.offset:,}"


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


def _twins(summary: TraceSummary, images: list[LoadedImage]) -> Iterator[str]:
    """Yield a line for each probed kernel, with the hash of the text that its twin (copy with probes) was made of, and
    whether that is what was loaded."""
    by_id = {image.id: image for image in images if image.is_whole and image.file}
    for kernel in summary.kernels:
        for file, text in kernel.kernel.originals():
            name = escaped(shorten(kernel.kernel.full_name, _NAME_WIDTH))
            image = by_id.get(kernel.kernel.image)
            loaded = f"; image {image.id} has that text" if image and any(text in one for one in _texts(image)) else ""
            digest = hashlib.sha256(text).hexdigest()
            yield f"  {name}: twin made of {escaped(file)}, sha256 {digest}{loaded}"


@lru_cache(maxsize=2)
def _texts(image: LoadedImage) -> tuple[bytes, ...]:
    """Return the PTX in an image that was found; nothing if there is none."""
    # Summaries need no fatbins.
    from neutrino.fatbin.container import read_container
    from neutrino.fatbin.image import ImageKind

    assert image.file
    try:
        with image.file.open("rb") as file:
            file.seek(image.offset)
            container = read_container(file.read(image.size), image.source)
        return tuple(one.data for one in container.images if one.kind is ImageKind.PTX)
    except (OSError, FormatError):
        return ()
