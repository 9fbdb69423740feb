"""Install the hook and its auditing module, bound to a driver, where COMMAND's dynamic loader finds them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from neutrino.errors import NeutrinoError
from neutrino.loader.build import DRIVER_PLACEHOLDER, HOOK_PLACEHOLDER
from neutrino.loader.driver import NAME, bypassing
from neutrino.private_files import private_folder, read_private, write_private

_BUILT = Path(__file__).resolve().parent / "lib"
MODULE = "libneutrino_audit.so"
LATE = "libneutrino_late.so"


def install_hook(driver: Path, cache: Path, shared: Path | None = None) -> Path:
    """Install the hook, bound to a driver, under the folder cache; return the path of its auditing module.

    driver: its absolute path. shared: the folder for the module, if it must be readable by other users than cache is;
    it exists, and only the user can write to it. Files that are there already are not written again. Raises
    NeutrinoError if the hook was not built, or if a path cannot be used; OSError if a folder is not writable.
    """
    own_driver = bypassing(driver)
    hook_path = place_hook(driver, cache)
    module = _read_built(MODULE)
    module = _set_path(module, MODULE, HOOK_PLACEHOLDER, str(hook_path), count=1)
    module = _set_path(module, MODULE, DRIVER_PLACEHOLDER, own_driver, count=1)
    if shared is None:
        return _place(cache, MODULE, module)
    return _place(shared, MODULE, module, folder_mode=0o755, file_mode=0o644)


def place_hook(driver: Path, cache: Path) -> Path:
    """Install the hook alone, as ``install_hook`` does; return its path."""
    hook = _set_path(_read_built(NAME), NAME, DRIVER_PLACEHOLDER, bypassing(driver), count=2)
    return _place(cache, NAME, hook)


def is_installed_here() -> bool:
    """Return whether this process was started by ``neutrino``, so that it has the hook once it asks for the driver."""
    return bool(os.environ.get("NEUTRINO_TRACEDIR")) and MODULE in os.environ.get("LD_AUDIT", "")


def variables(module: Path, before: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make the dynamic loader use the module.

    before: the environment so far. Other modules in it stay, but for those of other installed hooks: each would answer
    for the driver.
    """
    # After the user's own modules, each of which may change the name that the next one gets.
    modules = [path for path in before.get("LD_AUDIT", "").split(":") if path and Path(path).name != MODULE]
    return {"LD_AUDIT": ":".join([*modules, str(module)])}


def _place(parent: Path, name: str, data: bytes, folder_mode: int = 0o700, file_mode: int = 0o600) -> Path:
    """Write a library into a folder of its own under parent, unless it is there; return its path."""
    # Named by the contents, so that other versions, or other drivers, have folders of their own; 32 hexadecimal digits
    # are enough to tell them apart.
    folder = parent / "hook" / hashlib.sha256(data).hexdigest()[:32]
    path = folder / name
    # LD_AUDIT separates paths by colon, and the dynamic loader expands $ORIGIN.
    if any(character in str(path) for character in ":$"):
        raise NeutrinoError(
            f"{path}: the dynamic loader cannot load from a path with a colon or dollar sign; set XDG_CACHE_HOME"
        )
    for one in (parent, parent / "hook", folder):
        private_folder(one, folder_mode)
    # Compared byte for byte: code in a changed file would run in the user's programs. A file that cannot be read is
    # written anew.
    with contextlib.suppress(OSError):
        if read_private(path) == data:
            return path
    write_private(path, data, file_mode)
    return path


def built(name: str) -> Path:
    """Return the path of a library of the hook as it was built. Raises NeutrinoError if it was not."""
    path = _BUILT / name
    if not path.is_file():
        raise NeutrinoError(
            f"{path} is missing: the hook was not built; install Neutrino again with a C compiler present"
        )
    return path


def _read_built(name: str) -> bytes:
    """Return the bytes of a library that was built from the hook's sources."""
    return built(name).read_bytes()


def _set_path(library: bytes, name: str, placeholder: str, path: str, *, count: int) -> bytes:
    """Return a library with a path in place of a placeholder, which must be in it count times.

    name: of the library, for messages. Raises NeutrinoError if it is not, or the path cannot be set.
    """
    room = placeholder.encode() + b"\0"
    new = os.fsencode(path)
    if library.count(room) != count:
        raise NeutrinoError(f"{name} was modified after it was built; install Neutrino again")
    if len(new) >= len(room):
        raise NeutrinoError(f"{path}: the path is longer than {len(room) - 1} bytes")
    if "$" in path:
        raise NeutrinoError(f"{path}: the dynamic loader cannot load from a path with a dollar sign")
    return library.replace(room, new.ljust(len(room), b"\0"))
