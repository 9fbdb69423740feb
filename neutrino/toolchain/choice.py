"""Which ``ptxas`` and ``nvlink`` to use.

Importing this imports nothing heavy and starts nothing: a run whose twins are all cached asks for
``assembler_identity`` only, which answers from a file once a ``ptxas`` has been seen.
"""

from __future__ import annotations

from pathlib import Path

from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import chosen_tool, tool_candidates
from neutrino.toolchain.nvlink import Linker
from neutrino.toolchain.ptxas import Assembler
from neutrino.toolchain.releases import FIRST_RELEASES
from neutrino.toolchain.versions import release_at

ASSEMBLER_HINT = 'pip install "neutrino-gpu[cuda]", or name one in NEUTRINO_PTXAS'
LINKER_HINT = 'pip install "neutrino-gpu[cuda]", put that of a CUDA toolkit on PATH, or name one in NEUTRINO_NVLINK'


def _chosen_assembler() -> Assembler | None:
    """The one that NEUTRINO_PTXAS names."""
    chosen = chosen_tool("ptxas")
    if chosen is None:
        return None
    assembler = _assembler_at(chosen)
    if assembler is None:
        raise ToolMissingError("ptxas", f"NEUTRINO_PTXAS names {chosen}, which does not say its version")
    return assembler


def _assemblers() -> list[Assembler]:
    """Every one there is, at least one. Raises ToolMissingError."""
    found = [entry for path in tool_candidates("ptxas") if (entry := _assembler_at(path)) is not None]
    if not found:
        raise ToolMissingError("ptxas", ASSEMBLER_HINT)
    return found


def find_assembler(driver_version: int | None = None) -> Assembler:
    """The ``ptxas`` to use: NEUTRINO_PTXAS, else the highest release not newer than the driver's.

    driver_version: as ``cuDriverGetVersion`` gives it (13000); None: no driver, the highest release.
    When all are newer, the lowest of the driver's major release: within one, newer cubins load on older
    drivers ("CUDA Compatibility", minor version compatibility). Raises ToolMissingError, with what was found.
    """
    chosen = _chosen_assembler()
    if chosen is not None:
        return chosen
    found = _assemblers()
    if driver_version is None:
        return max(found, key=lambda entry: entry.version)
    release = (driver_version // 1000, driver_version % 1000 // 10)
    fitting = [entry for entry in found if entry.version[:2] <= release]
    if fitting:
        return max(fitting, key=lambda entry: entry.version)
    compatible = [entry for entry in found if entry.version[0] == release[0]]
    if compatible:
        return min(compatible, key=lambda entry: entry.version)
    newer = ", ".join(sorted({entry.name for entry in found}))
    raise ToolMissingError(
        "ptxas",
        f"the driver is CUDA {release[0]}.{release[1]} and only newer is here ({newer}); {ASSEMBLER_HINT}",
    )


def assembler_identity(driver_version: int | None = None) -> str:
    """The identity of the assembler that find_assembler would return; starts no process once it is known.

    Raises ToolMissingError as find_assembler does.
    """
    return find_assembler(driver_version).identity


def find_assembler_for(release: tuple[int, int] | None, arch: str) -> Assembler:
    """The ``ptxas`` for code that is used later, elsewhere: NEUTRINO_PTXAS, else the newest not newer than the
    original's toolkit.

    release: of that toolkit, as (12, 4); None when it is not known: then the oldest. arch: to assemble for, as
    ``sm_90a``; what does not know it is passed over. When all that know it are newer than the toolkit, the oldest of
    them: its code asks the least of the driver. Raises ToolMissingError when there is none at all.
    """
    return _assemblers_for(release, arch)[0]


def find_linking_tools(release: tuple[int, int] | None, arch: str) -> tuple[Assembler, Linker]:
    """As find_assembler_for, of the assemblers that have their linker here; and that linker.

    Raises ToolMissingError when none has.
    """
    lacking: ToolMissingError | None = None
    for assembler in _assemblers_for(release, arch):
        try:
            return assembler, find_linker(assembler)
        except ToolMissingError as error:
            lacking = lacking or error
    raise lacking or ToolMissingError("nvlink", LINKER_HINT)


def _assemblers_for(release: tuple[int, int] | None, arch: str) -> list[Assembler]:
    """What find_assembler_for returns, then what comes next; never empty."""
    chosen = _chosen_assembler()
    if chosen is not None:
        return [chosen]
    found = sorted(_assemblers(), key=lambda entry: entry.version)
    number = int("".join(character for character in arch if character.isdigit()) or 0)
    first = FIRST_RELEASES.get(number, (0, 0))
    knowing = [entry for entry in found if entry.version[:2] >= first] or found[-1:]
    fitting = [entry for entry in knowing if release is not None and entry.version[:2] <= release]
    return [*reversed(fitting), *(entry for entry in knowing if entry not in fitting)]


def find_linker(assembler: Assembler) -> Linker:
    """The ``nvlink`` for what an assembler makes: NEUTRINO_NVLINK, else the oldest that is not older than it.

    It must be of the assembler's major release, since what it writes needs a driver of its own. Raises
    ToolMissingError, with what was found.
    """
    chosen = chosen_tool("nvlink")
    candidates = [chosen] if chosen is not None else list(tool_candidates("nvlink"))
    found = [entry for path in candidates if (entry := _linker_at(path)) is not None]
    if chosen is not None and not found:
        raise ToolMissingError("nvlink", f"NEUTRINO_NVLINK names {chosen}, which does not say its version")
    major = assembler.version[0]
    fitting = [entry for entry in found if entry.version >= assembler.version and entry.version[0] == major]
    if fitting:
        return min(fitting, key=lambda entry: entry.version)
    others = ", ".join(sorted({entry.name for entry in found}))
    detail = f"{assembler.name} needs one of release {major}, not older than itself"
    raise ToolMissingError("nvlink", f"{detail}{f', and here is {others}' if others else ''}; {LINKER_HINT}")


def _assembler_at(path: Path) -> Assembler | None:
    """The assembler at path, None when it cannot say its version."""
    found = release_at(path)
    return Assembler(path, found[0], f"ptxas {found[1]}") if found else None


def _linker_at(path: Path) -> Linker | None:
    found = release_at(path)
    return Linker(path, found[0], f"nvlink {found[1]}") if found else None
