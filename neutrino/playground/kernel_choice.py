"""Finds the kernel that ``neutrino-probe try`` runs: in a PTX file, in the PTX of a library or another file, or in
machine code that is interpreted here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from neutrino.backend.protocol import Target
from neutrino.backend.registry import EMBEDDED_DEVICE, device_arch, target_of_device
from neutrino.demangle import demangle
from neutrino.device.kind import DeviceKind
from neutrino.errors import FormatError, NeutrinoError
from neutrino.fatbin import kernel_names
from neutrino.fatbin.inputs import Input
from neutrino.patched_files.preview import default_architecture
from neutrino.playground.code_attempt import FoundCode
from neutrino.probing.selection import Selection

_Found = TypeVar("_Found")
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
    return _only([(key[1], key) for key in found], selection, list(others))


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


def find_code(path: Path, selection: Selection, arch: str | None) -> FoundCode:
    """Return the one selected kernel of a file with machine code that is interpreted here.

    arch: the architecture that the user names; None: the highest for which kernels can be probed. Raises NeutrinoError
    if there is no such kernel, or if there are several of which none has exactly the name that was asked for;
    FormatError for a damaged file, OSError.
    """
    if path.is_dir():
        raise NeutrinoError(f"{path}: a folder, expected a file")
    source = Input(path, is_named=True)
    containers = source.read(source.data())
    device = device_arch(arch) if arch is not None else default_architecture(containers)
    target = target_of_device(device)
    found: dict[tuple[str, bytes], FoundCode] = {}
    others: dict[str, None] = {}
    for container in containers:
        image = target.picked(container, device)
        if image is None or not target.interpreter:
            continue
        for name in kernel_names(image):
            if selection.selects(name, demangle(name)):
                data = bytes(image.data)
                shipped = target.find(container, (), device, DeviceKind.GPU)
                found.setdefault((name, data), FoundCode(container, shipped, data, name))
            else:
                others[name] = None
    if not found and not others:
        archs = dict.fromkeys(image.arch for container in containers for image in container.images if image.arch)
        what = f"no code for {device}" if target.interpreter else "no code that can be tried"
        raise NeutrinoError(f"{path}: {what}; the file has {', '.join(archs) or 'no device code'}")
    return _only([(code.kernel, code) for code in found.values()], selection, list(others))


def _only(found: Sequence[tuple[str, _Found]], selection: Selection, others: Sequence[str]) -> _Found:
    """Return the only one of the kernels that were found, or the one whose whole name was asked for.

    found: with their names. others: names of those that were not selected. Raises NeutrinoError for none or several.
    """
    if not found:
        raise NeutrinoError(f"no kernel matches; the file has {_listed(list(others))}")
    exact = [one for name, one in found if name in selection.keep]
    if len(exact) == 1:
        return exact[0]
    if len(found) > 1:
        names = list(dict.fromkeys(name for name, _ in found))
        raise NeutrinoError(f"{len(found)} kernels match; choose one with --kernel: {_listed(names)}")
    (_, one), *_ = found
    return one


def _listed(names: Sequence[str]) -> str:
    """The names of kernels for an error, the first _MAX_NAMED of them."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
