"""Where Neutrino keeps files: its cache, and what lasts as long as a run. No other user can change what is there."""

from __future__ import annotations

import functools
import os
import pwd
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neutrino.errors import NeutrinoError
from neutrino.trusted_paths import why_not_trusted

_SYSTEM = (Path("/var/cache"), Path("/run"))
"""Of root's cache where the user's own folder is not its own, as after ``sudo -E``; not emptied by age as /tmp is."""
_REMEDY = "set XDG_CACHE_HOME to a folder of your own that nobody else can write to, nor to any folder above it"


@dataclass(frozen=True)
class Place:
    """Of the cache. path: its folder, which need not exist. instead: why it is not the usual one, "" if it is."""

    path: Path
    instead: str = ""


def cache_root() -> Path:
    """Return the path of Neutrino's cache folder, which need not exist: in XDG_CACHE_HOME, else in ``~/.cache``, or
    where another user could change what is there, in another place of this user's.

    Raises NeutrinoError if there is none.
    """
    return cache_place().path


def cache_place() -> Place:
    """Return where the cache is, and why. Raises NeutrinoError if there is no place for it."""
    return _cache_place(os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME"), os.geteuid())


@functools.lru_cache(maxsize=16)
def _cache_place(base: str, home: str | None, user: int) -> Place:
    """Return the place of the cache. base, home: the variables, None if not set. user: the process's effective one."""
    usual, reason = _usual(base, home, user)
    if usual and not reason:
        return Place(usual)
    tried = [reason]
    for path in _others(user):
        fault = why_not_trusted(path) or _why_not_usable(path)
        if not fault:
            return Place(path, reason)
        tried.append(fault)
    raise NeutrinoError(f"there is no safe place for the cache ({'; '.join(tried)}); {_REMEDY}")


def _usual(base: str, home: str | None, user: int) -> tuple[Path | None, str]:
    """Return the folder that the user expects, None if there is none, and why the cache must not be there, "" if it
    may."""
    # The XDG specification says that relative paths are to be ignored.
    if base.startswith("/"):
        path = Path(base) / "neutrino"
        # What else is wrong with a folder that the user names is said when it is used.
        return path, why_not_trusted(path)
    folder = _home(home, user)
    if folder is None:
        return None, "this user has no home folder"
    path = folder / ".cache" / "neutrino"
    return path, why_not_trusted(path) or _why_not_usable(path)


def _home(home: str | None, user: int) -> Path | None:
    """Return the home folder, None if there is none. home: the variable."""
    if not home or not home.startswith("/"):
        try:
            home = pwd.getpwuid(user).pw_dir
        except KeyError:
            return None
    return Path(home) if home.startswith("/") and Path(home).is_dir() else None


def _others(user: int) -> Iterator[Path]:
    """Yield folders for the cache of a user who has none at the usual place, the best first."""
    if user == 0:
        # Beside what the children of root must be able to read (loader/shared_folder.py).
        yield from (folder / "neutrino" / "private" for folder in _SYSTEM)
        return
    yield Path(f"/run/user/{user}/neutrino")
    # Another user may have taken the name: then it is not trusted.
    yield Path(f"/var/tmp/neutrino-{user}")


def _why_not_usable(path: Path) -> str:
    """Return why this user cannot keep libraries in a folder, or make it, as a sentence; "" if that seems possible."""
    nearest = path
    while not nearest.is_dir():
        if nearest.exists() or nearest == nearest.parent:
            return f"{nearest} is not a folder"
        nearest = nearest.parent
    try:
        if os.statvfs(nearest).f_flag & os.ST_NOEXEC:
            return f"{nearest} is on a file system from which nothing can be run"
        # A cache that cannot be written can be read.
        if nearest == path:
            owner = path.stat().st_uid
            return "" if owner == os.geteuid() else f"{path} belongs to user {owner}"
        if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
            return f"{nearest} cannot be written"
    except OSError as error:
        return f"{nearest}: {error.strerror}"
    return ""


def run_parents() -> Iterator[Path]:
    """Yield folders for what lasts as long as a run, where no other user can change it, the best first.

    XDG_RUNTIME_DIR, if it is this user's: after ``sudo -E`` it is that of another. Not TMPDIR, which may be long: the
    path of a socket has at most 107 bytes.
    """
    user = os.geteuid()
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    for text in (named, f"/run/user/{user}", "/tmp", "/var/tmp"):
        path = Path(text)
        if not path.is_absolute() or not path.is_dir() or why_not_trusted(path):
            continue
        is_meant = text.endswith("/tmp") or path.stat().st_uid == user
        if is_meant and os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            yield path


def run_cache_parent() -> Path | None:
    """Return a folder for a cache that ends with the run; None if there is none from which libraries can be loaded."""
    return next((path for path in run_parents() if not _why_not_usable(path / "neutrino")), None)


def scratch_parent() -> Path:
    """Return the folder for temporary files: that of the module tempfile (TMPDIR), unless another user could replace
    what is made there. Raises NeutrinoError if there is none.
    """
    usual = Path(tempfile.gettempdir())
    if not (reason := why_not_trusted(usual)):
        return usual
    for path in run_parents():
        return path
    raise NeutrinoError(f"there is no safe place for temporary files ({reason}); set TMPDIR to a folder of your own")
