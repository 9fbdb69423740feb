"""Finding NVIDIA's tools on this machine."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from neutrino.errors import ToolMissingError

_TOOLKIT = Path("/usr/local/cuda")


def chosen_tool(name: str) -> Path | None:
    """Return the tool that its environment variable names (``NEUTRINO_PTXAS`` for ptxas), None if that is not set.

    Raises ToolMissingError when the variable does not name an executable file.
    """
    variable = "NEUTRINO_" + name.upper().replace("-", "_")
    value = os.environ.get(variable)
    if not value:
        return None
    path = Path(value)
    if not _is_program(path):
        raise ToolMissingError(name, f"{variable} names {value}, which is not an executable file")
    return path


def tool_candidates(name: str) -> Iterator[Path]:
    """Yield the paths of a CUDA tool in the order of the search: existing executables, each file once.

    Searched are PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda, NVIDIA's pip wheels, and Triton's wheel.
    """
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    toolkit_variables = ("CUDA_HOME", "CUDA_PATH")
    folders += [Path(os.environ[variable]) / "bin" for variable in toolkit_variables if os.environ.get(variable)]
    folders.append(_TOOLKIT / "bin")
    # Usually both are the same folder, site-packages.
    for scheme in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
        site = Path(scheme)
        # nvidia/cu13/bin before nvidia/cu12/bin.
        folders += sorted((site / "nvidia").glob("cu*/bin"), reverse=True)
        folders += [site / "nvidia" / "cuda_nvcc" / "bin", site / "triton" / "backends" / "nvidia" / "bin"]
    # Triton has a second, newer ptxas for Blackwell.
    file_names = [name, "ptxas-blackwell"] if name == "ptxas" else [name]
    # The same file may be reached through links, or be found in several of these folders.
    resolved_paths: set[Path] = set()
    for folder in folders:
        for file_name in file_names:
            path = folder / file_name
            if _is_program(path) and path.resolve() not in resolved_paths:
                resolved_paths.add(path.resolve())
                yield path


def find_tool(name: str, hint: str = "install the CUDA toolkit, or put it on PATH") -> Path:
    """Return the path of a tool: that in the variable NEUTRINO_<NAME>, else the first of tool_candidates.

    hint: how to get the tool, for the error. Raises ToolMissingError when it is not found, or when the variable does
    not name an executable file.
    """
    chosen = chosen_tool(name)
    if chosen is not None:
        return chosen
    first = next(tool_candidates(name), None)
    if first is None:
        raise ToolMissingError(name, hint)
    return first


def _is_program(path: Path) -> bool:
    """Whether there is a file that can be executed. What may not be looked at is passed over, as by a shell."""
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError:
        return False
