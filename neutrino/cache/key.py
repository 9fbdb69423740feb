"""What an entry depends on, as 32 bytes: the run's settings, the patcher's sources, the device and the image."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from neutrino.device.kind import DeviceKind

_PACKAGE = Path(__file__).resolve().parents[1]
PATCHER = "neutrino.patch.image"
"""What processes import that make twins: all that decides what a twin is, is imported from there on."""

# Begun by letters, not by the line's start: three times as fast, and every start of a run waits for it.
_FROM = re.compile(r"from (neutrino[\w.]*) import (\([^)]*\)|[^\n#]*)")
_MODULE = re.compile(r"import (neutrino[^\n#]*)")
_NAME = re.compile(r"([\w.]+)(?: as \w+)?")
Import = tuple[bool, str, tuple[str, ...]]
"""Whether it stands at the module's top level, the module, and the names that are taken from it."""


def run_key(
    probes: str, selection: str, assembler: str, version: str, device: DeviceKind = DeviceKind.GPU
) -> bytes:
    """The 32 bytes that stand for a run's settings: two digests, the assembler's identity, Neutrino's version."""
    parts = ("neutrino", version, probes, selection, assembler, device.value)
    return hashlib.sha256(b"".join(len(part.encode()).to_bytes(8, "little") + part.encode() for part in parts)).digest()


def image_key(run: bytes, arch: str, image: bytes) -> bytes:
    """The 32-byte key of an image's entry: SHA-256 over the run's key, the device's ``sm_90``, the image."""
    digest = hashlib.sha256(run)
    digest.update(arch.encode())
    digest.update(image)
    return digest.digest()


def patcher_identity(package: Path = _PACKAGE) -> str:
    """SHA-256, in hex, over the sources that decide what a twin is. package: the folder of ``neutrino``.

    A checkout changes more often than its version: twins of the code of yesterday are not those of today. Nothing is
    imported for it. Raises OSError when a source cannot be read.
    """
    digest = hashlib.sha256()
    for name, source in sorted(patcher_sources(package).items()):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(source).digest())
    return digest.hexdigest()


def patcher_sources(package: Path = _PACKAGE) -> dict[str, bytes]:
    """The sources of all modules of Neutrino that the patcher imports at any time, by their paths in package.

    Imports within functions count. Those under TYPE_CHECKING count too, but for a package's own ``__init__``: there
    they name what is imported lazily, and only those of the names that somebody asks the package for count.
    """
    paths = _modules(package)
    found: dict[str, bytes] = {}
    imports: dict[str, list[Import]] = {}
    asked: dict[str, set[str]] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [(PATCHER, ())]
    while waiting:
        module, names = waiting.pop()
        is_new = module not in asked
        new_names = {*names} - asked.setdefault(module, set())
        if not is_new and not new_names:
            continue
        asked[module] |= new_names
        path = paths.get(module)
        if path is None:
            continue
        if is_new:
            found[path] = (package / path).read_bytes()
            imports[module] = list(imports_of(found[path].decode()))
            # The package that it is in is run before it.
            waiting.append((module.rpartition(".")[0], ()))
        is_package = path.endswith("__init__.py")
        if is_package:
            waiting += [(f"{module}.{name}", ()) for name in new_names]
        for top, home, taken in imports[module]:
            if (is_new and (top or not is_package)) or (is_package and not top and new_names & {*taken}):
                waiting.append((home, taken))
    return found


def _modules(package: Path) -> dict[str, str]:
    """The path in package of each module, by the module's name."""
    found = {}
    for folder, _, files in os.walk(package):
        prefix = folder[len(str(package)) + 1 :]
        home = ".".join(["neutrino", *Path(prefix).parts])
        for file in files:
            if file.endswith(".py"):
                name = home if file == "__init__.py" else f"{home}.{file[:-3]}"
                found[name] = f"{prefix}/{file}" if prefix else file
    return found


def imports_of(source: str) -> Iterator[Import]:
    """What a module imports of Neutrino."""
    for match in _FROM.finditer(source):
        indent = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not indent.strip():
            yield not indent, match[1], tuple(_NAME.findall(match[2]))
    for match in _MODULE.finditer(source):
        indent = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not indent.strip():
            for name in _NAME.findall(match[1]):
                yield not indent, name, ()
