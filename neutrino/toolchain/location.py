"""Where NVIDIA's tools are."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from neutrino.errors import ToolMissingError

_TOOLKIT = Path("/usr/local/cuda")


def chosen_tool(name: str) -> Path | None:
    variable = "NEUTRINO_" + name.upper().replace("-", "_")
    value = os.environ.get(variable)
    if not value:
        return None
    path = Path(value)
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ToolMissingError(name, f"{variable} names {value}, which is not an executable file")
    return path


def tool_candidates(name: str) -> Iterator[Path]:
    """Places of a CUDA tool in the order in which they are asked; existing executables only, each once."""
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    folders += [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders.append(_TOOLKIT / "bin")
    for scheme in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
        site = Path(scheme)
        folders += sorted((site / "nvidia").glob("cu*/bin"), reverse=True)
        folders += [site / "nvidia" / "cuda_nvcc" / "bin", site / "triton" / "backends" / "nvidia" / "bin"]
    names = [name, "ptxas-blackwell"] if name == "ptxas" else [name]
    seen: set[Path] = set()
    for folder in folders:
        for file in names:
            path = folder / file
            if path.is_file() and os.access(path, os.X_OK) and path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def find_tool(name: str, hint: str = "install the CUDA toolkit, or put it on PATH") -> Path:
    """The path of a tool: NEUTRINO_<NAME>, PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda, pip wheels, Triton's.

    Raises ToolMissingError with hint when it is nowhere, or when the variable names no executable.
    """
    chosen = chosen_tool(name)
    if chosen is not None:
        return chosen
    for path in tool_candidates(name):
        return path
    raise ToolMissingError(name, hint)
