"""Install the hook, linked to this machine's driver, where COMMAND's dynamic loader finds it."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path

from neutrino.errors import NeutrinoError
from neutrino.loader.build import PLACEHOLDER
from neutrino.private_files import private_folder, read_private, write_private

_BUILT = Path(__file__).resolve().parent / "lib"
LIBRARIES = ("libneutrino_driver.so", "libcuda.so.1", "libcuda.so")


def install_hook(driver: Path, cache: Path) -> Path:
    """Install the hook, which intercepts a program's calls of the CUDA driver; return its folder, which is under cache.

    driver: the library to which the hook passes calls on; its path is written into one of the hook's libraries. Files
    that are there already are not written again. Raises NeutrinoError if the hook was not built, or if LD_PRELOAD
    cannot name the folder; OSError if cache is not writable.
    """
    libraries = {name: _read_built(name) for name in LIBRARIES}
    libraries["libneutrino_driver.so"] = _set_driver(libraries["libneutrino_driver.so"], driver)
    # Named by the contents, so that other versions, or other drivers, have folders of their own; 32 hexadecimal digits
    # are enough to tell them apart.
    digest = hashlib.sha256(b"".join(libraries[name] for name in LIBRARIES)).hexdigest()
    folder = cache / "hook" / digest[:32]
    # LD_PRELOAD separates paths by space or colon, and expands $ORIGIN.
    if any(character in str(folder) for character in " :$"):
        raise NeutrinoError(
            f"{folder}: LD_PRELOAD cannot name a path with a space, colon or dollar sign; set XDG_CACHE_HOME"
        )
    for parent in (cache, cache / "hook", folder):
        private_folder(parent)
    for name, data in libraries.items():
        # Compared byte for byte: code in a changed file would run in the user's programs. A file that cannot be read is
        # written anew.
        with contextlib.suppress(OSError):
            if read_private(folder / name) == data:
                continue
        write_private(folder / name, data)
    return folder


def preload(folder: Path, before: str) -> str:
    """Return the value of LD_PRELOAD with the hook first.

    folder: where the hook is installed. before: the value so far, which stays, but for other installed hooks.
    """
    # The folder of all installed hooks. Only one may be loaded: each would wrap the other's functions.
    hooks = folder.parent
    others = [path for path in re.split("[ :]+", before) if path and hooks not in Path(path).parents]
    return ":".join([str(folder / "libcuda.so.1"), str(folder / "libcuda.so"), *others])


def _read_built(name: str) -> bytes:
    """Read a library of the hook as it was built. Raises NeutrinoError if it was not built."""
    try:
        return (_BUILT / name).read_bytes()
    except FileNotFoundError:
        raise NeutrinoError(
            f"{_BUILT / name} is missing: the hook was not built; install Neutrino again with a C compiler present"
        ) from None


def _set_driver(library: bytes, driver: Path) -> bytes:
    """Return ``libneutrino_driver.so`` with the driver's path in place of the placeholder in its DT_AUXILIARY.

    The dynamic loader then takes the functions of that library from the driver. library: the file's bytes.
    Raises NeutrinoError if there is no placeholder, or the path is too long.
    """
    placeholder = PLACEHOLDER.encode() + b"\0"
    path = str(driver).encode()
    if library.count(placeholder) != 1:
        raise NeutrinoError("libneutrino_driver.so was modified after it was built; install Neutrino again")
    if len(path) >= len(placeholder):
        raise NeutrinoError(f"{driver}: the path of the driver is longer than {len(placeholder) - 1} bytes")
    return library.replace(placeholder, path.ljust(len(placeholder), b"\0"))
