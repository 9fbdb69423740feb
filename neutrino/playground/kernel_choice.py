"""Finds the kernel that ``neutrino-probe try`` runs: in a PTX file, or in the PTX of a library or another file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from neutrino.backend.protocol import Target
from neutrino.backend.registry import EMBEDDED_DEVICE, target_of_device
from neutrino.demangle import demangle
from neutrino.device.kind import DeviceKind
from neutrino.errors import FormatError, NeutrinoError
from neutrino.fatbin.inputs import Input
from neutrino.probing.selection import Selection

_MAX_NAMED = 20
"""Kernels that an error lists."""


def find_kernel(path: Path, selection: Selection) -> tuple[str, str]:
    """Return the PTX module with the one selected kernel of a file, and the kernel's name.

    The module is text of latin-1 characters, which stand for any bytes. path: a PTX file, or one that contains PTX, of
    which the embedded device takes that of the highest architecture in each container. Raises NeutrinoError if there is
    no such kernel, or if there are several of which none has exactly the name that was asked for; OSError.
    """
    if path.is_dir():
        raise NeutrinoError(f"{path}: a folder, expected a file")
    found: dict[tuple[str, str], None] = {}  # as a set that keeps its order
    others: dict[str, None] = {}
    target = target_of_device(EMBEDDED_DEVICE)
    for text in _modules(path, target):
        kernels = target.kernel_text(text)
        if not kernels.names:
            # Raises with the reason why there is none.
            kernels.choose(None)
        for name in kernels.names:
            if selection.selects(name, demangle(name)):
                # Raises if the module has two of that name.
                found[text, kernels.choose(name)] = None
            else:
                others[name] = None
    if not found:
        raise NeutrinoError(f"no kernel matches; the file has {_listed(list(others))}")
    exact = [key for key in found if key[1] in selection.keep]
    if len(exact) == 1:
        return exact[0]
    if len(found) > 1:
        names = list(dict.fromkeys(name for _, name in found))
        raise NeutrinoError(f"{len(found)} kernels match; choose one with --kernel: {_listed(names)}")
    return next(iter(found))


def _modules(path: Path, target: Target) -> Iterator[str]:
    """Yield the PTX modules of a file, each once. Raises NeutrinoError for a file without PTX, and FormatError."""
    source = Input(path, is_named=True)
    data = source.data()
    texts: dict[bytes, None] = {}
    try:
        containers = source.read(data)
    except FormatError:
        # Of text that only begins like something else, the words are those for text.
        target.check_text(bytes(data).decode("latin-1"))
        raise
    for container in containers:
        image = target.picked(container, EMBEDDED_DEVICE, DeviceKind.EMBEDDED)
        if image is not None and target.holds_text(image):
            texts[bytes(image.data)] = None
    if not texts:
        text = bytes(data).decode("latin-1")
        target.check_text(text)
        texts[bytes(data)] = None
    for content in texts:
        # A text in a library ends in zero bytes.
        yield content.decode("latin-1").rstrip("\0")


def _listed(names: Sequence[str]) -> str:
    """The names of kernels for an error, the first _MAX_NAMED of them."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
