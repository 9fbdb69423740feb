"""Where the files that ship with Neutrino lie: in the package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped_probes() -> dict[str, Path]:
    """Name → path of every probe that ships with Neutrino, sorted by name."""
    folder = _folder("probes")
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def tool_path(name: str) -> Path:
    """Path of a shipped tool, such as ``read.py``. FileNotFoundError: the installation lacks it."""
    path = _folder("tools") / name
    if not path.is_file():
        raise FileNotFoundError(f"{path}: a file that ships with Neutrino is missing; install it again")
    return path


def _folder(name: str) -> Path:
    # A wheel carries the files inside the package; in a checkout they lie beside it, where people look.
    inside = _PACKAGE / name
    return inside if inside.is_dir() and any(inside.iterdir()) else _PACKAGE.parent / name
