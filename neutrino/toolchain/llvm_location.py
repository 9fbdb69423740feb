"""Finding AMD's LLVM on this machine: the shared library with the assembler and disassembler of AMD's GPUs."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from neutrino.errors import ToolMissingError

LLVM_HINT = 'pip install "neutrino-gpu[amd]", or name one in NEUTRINO_LLVM'
_LIBRARY = "libLLVM.so"
_ROCM = Path("/opt/rocm")
_SYSTEM_LIBRARIES = ("librocm_sysdeps_z.so.1", "librocm_sysdeps_zstd.so.1")
"""What newer builds of AMD's need of their own, beside the C++ library."""


def chosen_llvm() -> Path | None:
    """Return the library that NEUTRINO_LLVM names, None if it is not set.

    Raises ToolMissingError when it names no file.
    """
    value = os.environ.get("NEUTRINO_LLVM")
    if not value:
        return None
    path = Path(value)
    if not path.is_file():
        raise ToolMissingError("AMD's LLVM", f"NEUTRINO_LLVM names {value}, which is not a file")
    return path


def llvm_candidates() -> Iterator[Path]:
    """Yield the paths of AMD's ``libLLVM.so`` in the order of the search: existing files, each once.

    Searched are ROCM_PATH, HIP_PATH, /opt/rocm, and then AMD's wheels: ``rocm-sdk-core``, which is a ROCm, and
    ``rocm-bindings-compiler``.
    """
    roots = [Path(os.environ[variable]) for variable in ("ROCM_PATH", "HIP_PATH") if os.environ.get(variable)]
    roots.append(_ROCM)
    sites = [Path(path) for path in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))]
    roots += [site / "_rocm_sdk_core" for site in sites]
    folders = [root / inner for root in roots for inner in ("lib/llvm/lib", "llvm/lib")]
    folders += [site / "rocm" / "bindings" / "llvm" for site in sites]
    # The same file may be reached through links.
    resolved_paths: set[Path] = set()
    for folder in folders:
        path = folder / _LIBRARY
        try:
            is_new = path.is_file() and path.resolve() not in resolved_paths
        except OSError:
            # What may not be looked at is passed over.
            continue
        if is_new:
            resolved_paths.add(path.resolve())
            yield path


def system_libraries(library: Path) -> list[Path | None]:
    """Return the paths of the two libraries that a ``libLLVM.so`` of a ROCm comes with; None for each that is missing.

    library: the path of ``libLLVM.so``. The wheel ``rocm-bindings-compiler`` has neither.
    """
    folders = [library.parent, library.resolve().parent]
    # ROCM/lib/llvm/lib/libLLVM.so and ROCM/lib/rocm_sysdeps/lib.
    folders += [parent / "rocm_sysdeps" / "lib" for parent in library.resolve().parents[:4]]
    folders.append(_ROCM / "lib" / "rocm_sysdeps" / "lib")
    found: list[Path | None] = []
    for name in _SYSTEM_LIBRARIES:
        found.append(next((folder / name for folder in folders if (folder / name).is_file()), None))
    return found
