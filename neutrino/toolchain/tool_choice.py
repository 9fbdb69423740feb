"""Which ``ptxas`` and ``nvlink`` to use.

A run whose twins are all cached only needs ``assembler_identity``. So importing this module is cheap, and that function
starts no process if the version of the ``ptxas`` is in a file from an earlier run.
"""

from __future__ import annotations

from pathlib import Path

from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import chosen_tool, tool_candidates
from neutrino.toolchain.nvlink import Linker
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.releases import FIRST_RELEASES
from neutrino.toolchain.tool_version import release_at

ASSEMBLER_HINT = 'pip install "neutrino-gpu[cuda]", or name one in NEUTRINO_PTXAS'
LINKER_HINT = 'pip install "neutrino-gpu[cuda]", put that of a CUDA toolkit on PATH, or name one in NEUTRINO_NVLINK'

COMPILES_ANEW = ("CUDA_FORCE_PTX_JIT", "CUDA_FORCE_JIT")
"""Variables by which the driver compiles PTX although there is machine code."""


def _chosen_assembler() -> Assembler | None:
    """Return the ``ptxas`` that NEUTRINO_PTXAS names, None if it is not set.

    Raises ToolMissingError when it names no executable or one that prints no version.
    """
    chosen = chosen_tool("ptxas")
    if chosen is None:
        return None
    assembler = _assembler_at(chosen)
    if assembler is None:
        raise ToolMissingError("ptxas", f"NEUTRINO_PTXAS names {chosen}, which does not say its version")
    return assembler


def _assemblers() -> list[Assembler]:
    """Return every ``ptxas`` on this machine, in the order of the search. Raises ToolMissingError if there is none."""
    assemblers = [assembler for path in tool_candidates("ptxas") if (assembler := _assembler_at(path)) is not None]
    if not assemblers:
        raise ToolMissingError("ptxas", ASSEMBLER_HINT)
    return assemblers


def find_assembler(driver_version: int | None = None) -> Assembler:
    """Return the ``ptxas`` to use: the one in NEUTRINO_PTXAS, else the highest release not newer than the driver.

    driver_version: as ``cuDriverGetVersion`` returns it (13000 for 13.0); None without a driver: the highest release.
    When all are newer, the lowest of the driver's major release is used: within a major release newer cubins load on
    older drivers ("CUDA Compatibility", minor version compatibility). Raises ToolMissingError when there is none,
    naming those that are too new.
    """
    chosen = _chosen_assembler()
    if chosen is not None:
        return chosen
    assemblers = _assemblers()
    if driver_version is None:
        return max(assemblers, key=lambda assembler: assembler.version)
    # 12040 is 12.4.
    release = (driver_version // 1000, driver_version % 1000 // 10)
    not_newer = [assembler for assembler in assemblers if assembler.version[:2] <= release]
    if not_newer:
        return max(not_newer, key=lambda assembler: assembler.version)
    same_major = [assembler for assembler in assemblers if assembler.version[0] == release[0]]
    if same_major:
        return min(same_major, key=lambda assembler: assembler.version)
    newer = ", ".join(sorted({assembler.name for assembler in assemblers}))
    raise ToolMissingError(
        "ptxas",
        f"the driver is CUDA {release[0]}.{release[1]} and only newer is here ({newer}); {ASSEMBLER_HINT}",
    )


def assembler_identity(driver_version: int | None = None) -> str:
    """Return the identity of the assembler that find_assembler returns, which differs between builds.

    It is part of cache keys, so that code by another assembler is not used. It starts no process if the assembler's
    version is known from an earlier run. Raises ToolMissingError as find_assembler.
    """
    return find_assembler(driver_version).identity


def find_assembler_for(release: tuple[int, int] | None, arch: str) -> Assembler:
    """Return the ``ptxas`` for code that may run on other machines: the one in NEUTRINO_PTXAS, else the newest that is
    not newer than the CUDA toolkit that the original code was compiled with.

    release: of that toolkit, such as (12, 4), or None if it is not known. arch: to assemble for, such as ``sm_90a``;
    assemblers that are too old for it are not used, unless all are. If there is no release, or all are newer, the
    oldest is used, because its code runs on the oldest drivers. Raises ToolMissingError if there is no assembler.
    """
    preferred, *_ = _assemblers_for(release, arch)
    return preferred


def find_linking_tools(release: tuple[int, int] | None, arch: str) -> tuple[Assembler, Linker]:
    """Return the ``ptxas`` for code that may run on other machines, and an ``nvlink`` for what it makes.

    Chosen as by find_assembler_for, but only from the assemblers for which there is a linker. Raises ToolMissingError
    if there is no such pair: the error for the preferred assembler.
    """
    first_error: ToolMissingError | None = None
    for assembler in _assemblers_for(release, arch):
        try:
            return assembler, find_linker(assembler)
        except ToolMissingError as error:
            first_error = first_error or error
    # There is always an assembler, and so an error: the other one is for the type checker.
    raise first_error or ToolMissingError("nvlink", LINKER_HINT)


def _assemblers_for(release: tuple[int, int] | None, arch: str) -> list[Assembler]:
    """Return the assemblers for code that may run on other machines, the preferred one first; never empty.

    Parameters, choice and errors are those of find_assembler_for.
    """
    chosen = _chosen_assembler()
    if chosen is not None:
        return [chosen]
    assemblers = sorted(_assemblers(), key=lambda assembler: assembler.version)
    # An architecture that is not in the table is not known to be too new for any assembler.
    arch_number = int("".join(character for character in arch if character.isdigit()) or 0)
    first_release = FIRST_RELEASES.get(arch_number, (0, 0))
    # If all are too old for the architecture, only the newest is left: assembling then fails with its message.
    supporting = [assembler for assembler in assemblers if assembler.version[:2] >= first_release] or assemblers[-1:]
    # First those that are not newer than the toolkit, the newest first; then the newer ones, the oldest first.
    not_newer = [assembler for assembler in supporting if release is not None and assembler.version[:2] <= release]
    return [*reversed(not_newer), *(assembler for assembler in supporting if assembler not in not_newer)]


def find_linker(assembler: Assembler) -> Linker:
    """Return the ``nvlink`` for what an assembler makes: the one in NEUTRINO_NVLINK, else the oldest that fits.

    In both cases it must not be older than the assembler, and must have the same major release, because the linked code
    needs a driver of the linker's major release. Raises ToolMissingError when there is none, naming those that do not
    fit.
    """
    chosen = chosen_tool("nvlink")
    candidates = [chosen] if chosen is not None else list(tool_candidates("nvlink"))
    linkers = [linker for path in candidates if (linker := _linker_at(path)) is not None]
    if chosen is not None and not linkers:
        raise ToolMissingError("nvlink", f"NEUTRINO_NVLINK names {chosen}, which does not say its version")
    major = assembler.version[0]
    fitting = [linker for linker in linkers if linker.version >= assembler.version and linker.version[0] == major]
    if fitting:
        return min(fitting, key=lambda linker: linker.version)
    unfit = ", ".join(sorted({linker.name for linker in linkers}))
    detail = f"{assembler.name} needs one of release {major}, not older than itself"
    raise ToolMissingError("nvlink", f"{detail}{f', and here is {unfit}' if unfit else ''}; {LINKER_HINT}")


def _assembler_at(path: Path) -> Assembler | None:
    """Return the assembler at a path, None if it does not print its version."""
    release = release_at(path)
    if release is None:
        return None
    version, version_and_build = release
    return Assembler(path, version, f"ptxas {version_and_build}")


def _linker_at(path: Path) -> Linker | None:
    """Return the linker at a path, None if it does not print its version."""
    release = release_at(path)
    if release is None:
        return None
    version, version_and_build = release
    return Linker(path, version, f"nvlink {version_and_build}")
