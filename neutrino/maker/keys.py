"""Keys of cache entries: 32 bytes made from the run's settings, the patcher's sources, the device and the image."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from neutrino.device.kind import DeviceKind
from neutrino.device.machine_code import MachineCode
from neutrino.maker.source_stamp import package_stamp
from neutrino.private_files import read_private, write_private

_PACKAGE = Path(__file__).resolve().parents[1]
PATCHER = "neutrino.maker.patcher"
"""The module that makes twins: everything that decides what a twin is, is imported by it, directly or indirectly."""

# Without an anchor at the line's start, which would make the search three times as slow; every start of a run waits for
# it. imports_of checks what is before a match.
_FROM = re.compile(r"from (neutrino[\w.]*) import (\([^)]*\)|[^\n#]*)")
_MODULE = re.compile(r"import (neutrino[^\n#]*)")
_NAME = re.compile(r"([\w.]+)(?: as \w+)?")
_KEPT = re.compile(rb"([0-9a-f]{64}) ([0-9a-f]{64})\n")
Import = tuple[bool, str, tuple[str, ...]]
"""Whether an import is at the top level of its module, the imported module, and the names imported from that."""


def run_key(
    probes: str, selection: str, assembler: str, version: str, device: DeviceKind = DeviceKind.GPU,
    max_registers: int | None = None, machine_code: MachineCode = MachineCode.OFF,
) -> bytes:  # fmt: skip
    """Return the 32-byte key of a run's settings, on which all cache entries that the run makes or reads depend.

    probes, selection: digests of the probes and of the selection of kernels. assembler: its identity. version: of
    Neutrino, and of the patcher's sources. device: for which the twins (instrumented kernels) are. max_registers: the
    user's register cap of twins, None without one. machine_code: of which machine code twins are made.
    """
    # Each part with its length, so that no two lists of parts have the same bytes.
    parts = ["neutrino", version, probes, selection, assembler, device.value]
    if max_registers is not None:
        parts.append(f"max-registers {max_registers}")
    if machine_code.is_on:
        parts.append(f"machine-code {machine_code.value}")
    return hashlib.sha256(b"".join(len(part.encode()).to_bytes(8, "little") + part.encode() for part in parts)).digest()


def image_key(run: bytes, arch: str, image: bytes) -> bytes:
    """Return the 32-byte key of an image's entry.

    run: key of the run's settings. arch: the device's, such as ``sm_90``. image: its bytes, or their digest.
    """
    digest = hashlib.sha256(run)
    digest.update(arch.encode())
    digest.update(image)
    return digest.digest()


def patcher_identity(package: Path = _PACKAGE) -> str:
    """Return the SHA-256, in hex, of the Python sources that decide what a twin (instrumented kernel) is.

    It is part of the cache key because a checkout may change while its version stays the same. package: the folder of
    ``neutrino``. The sources are read, not imported. Raises OSError when one cannot be read.
    """
    digest = hashlib.sha256()
    for name, source in sorted(patcher_sources(package).items()):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(source).digest())
    return digest.hexdigest()


def kept_identity(cache: Path) -> str:
    """Return ``patcher_identity()``; from a file in the cache's folder if nothing has changed since that was written.

    Raises OSError when a source cannot be read.
    """
    file, stamp = cache / "patcher", package_stamp()
    with contextlib.suppress(OSError):
        if match := _KEPT.fullmatch(read_private(file) or b""):
            kept_stamp, kept = match.groups()
            if kept_stamp.decode() == stamp:
                return kept.decode()
    identity = patcher_identity()
    with contextlib.suppress(OSError):
        write_private(file, f"{stamp} {identity}\n".encode())
    return identity


def patcher_sources(package: Path = _PACKAGE) -> dict[str, bytes]:
    """Return the sources of the patcher and of all modules of Neutrino that it imports, directly or indirectly.

    These decide what a twin (instrumented kernel) is, so a change of one must invalidate the cache. The keys are paths
    in ``package``. Imports within functions count. Imports under TYPE_CHECKING count too, except in the ``__init__`` of
    a package: these are the names that it imports lazily, so they count only if a module imports that name from the
    package. Raises OSError when a source cannot be read.
    """
    paths = _modules(package)
    sources: dict[str, bytes] = {}
    imports: dict[str, list[Import]] = {}
    # For each visited module the names that other modules import from it.
    requested: dict[str, set[str]] = {}
    # Modules to visit, with names that are imported from them. A module is visited again for further names, because
    # these may make further lazy imports of a package count.
    pending: list[tuple[str, tuple[str, ...]]] = [(PATCHER, ())]
    while pending:
        module, names = pending.pop()
        is_new = module not in requested
        new_names = {*names} - requested.setdefault(module, set())
        if not is_new and not new_names:
            continue
        requested[module] |= new_names
        path = paths.get(module)
        if path is None:
            # An imported name that is not a module (see below), or a module of another package.
            continue
        if is_new:
            sources[path] = (package / path).read_bytes()
            imports[module] = list(imports_of(sources[path].decode()))
            # Importing a module first runs the package that contains it.
            pending.append((module.rpartition(".")[0], ()))
        is_package = path.endswith("__init__.py")
        if is_package:
            # A name imported from a package may be a module in it.
            pending += [(f"{module}.{name}", ()) for name in new_names]
        for is_top_level, imported_module, imported_names in imports[module]:
            is_lazy = is_package and not is_top_level
            # A lazy import counts when one of its names is first requested, any other at the first visit.
            counts = bool(new_names & {*imported_names}) if is_lazy else is_new
            if counts:
                pending.append((imported_module, imported_names))
    return sources


def _modules(package: Path) -> dict[str, str]:
    """Return the path in ``package`` of each module of Neutrino, by the module's dotted name."""
    paths = {}
    for folder, _, files in os.walk(package):
        # Without a slash at its beginning; empty for the package's own folder.
        relative = folder[len(str(package)) + 1 :]
        package_name = ".".join(["neutrino", *Path(relative).parts])
        for file in files:
            if file.endswith(".py"):
                module = package_name if file == "__init__.py" else f"{package_name}.{file.removesuffix('.py')}"
                paths[module] = f"{relative}/{file}" if relative else file
    return paths


def imports_of(source: str) -> Iterator[Import]:
    """Yield the imports of Neutrino's modules in a Python source, as ``Import`` describes them.

    They are found by regular expressions, since every start of a run waits for this, and parsing takes far longer.
    """
    for match in _FROM.finditer(source):
        indent = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
        # Only white space may be before a statement. Without any, it is at the module's top level.
        if not indent.strip():
            yield not indent, match[1], tuple(_NAME.findall(match[2]))
    for match in _MODULE.finditer(source):
        indent = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not indent.strip():
            for name in _NAME.findall(match[1]):
                yield not indent, name, ()
