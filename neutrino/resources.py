"""Paths of the files that ship with Neutrino: in the package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped_probes(platform: str = "cuda") -> dict[str, Path]:
    """Return the path of every probe that ships with Neutrino, by its name, sorted.

    platform: for AMD's GPUs (``hip``) some have files of their own.
    """
    folders = [_folder("probes"), *([_folder("probes_amd")] if platform == "hip" else [])]
    paths = (path for folder in folders for path in sorted(folder.iterdir()) if path.suffix in {".py", ".toml"})
    return dict(sorted({path.stem: path for path in paths}.items()))


def probe_path(name: str, platform: str = "cuda") -> Path | None:
    """Return the path of a probe file as ``-p`` names it; None for a name that no shipped probe has.

    name: a path, which need not exist, if it contains ``/`` or ends in ``.toml`` or ``.py``; else a shipped probe's.
    platform: as for ``shipped_probes``.
    """
    if "/" in name or name.endswith((".toml", ".py")):
        return Path(name)
    return shipped_probes(platform).get(name)


def tool_path(name: str) -> Path:
    """Return the path of a shipped tool, such as ``read.py``. Raises FileNotFoundError if the installation lacks it."""
    path = _folder("tools") / name
    if not path.is_file():
        raise FileNotFoundError(f"{path}: a file that ships with Neutrino is missing; install it again")
    return path


def shipped_script(name: str) -> Path | None:
    """Return the path of a shipped script that takes a trace, by its file's name; None if there is none of that name.
    """
    path = _folder("tools") / name
    is_script = "/" not in name and name.endswith(".py") and name != "read.py"
    return path if is_script and path.is_file() else None


def include_folder() -> Path:
    """Return the folder of the header ``neutrino_mark.h``, for ``nvcc -I``."""
    return _PACKAGE / "include"


def _folder(name: str) -> Path:
    """Return the path of a folder of shipped files, such as ``probes``."""
    # An installed wheel has it inside the package; in a checkout it is beside the package, where people look.
    inside = _PACKAGE / name
    return inside if inside.is_dir() and any(inside.iterdir()) else _PACKAGE.parent / name
