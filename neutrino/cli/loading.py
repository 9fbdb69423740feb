"""Load the probes that a command line names, and print what is wrong with them; all commands use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from neutrino.cli.diagnostics import print_diagnostics
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.model import DEFAULT_PLATFORM
from neutrino.verification import check_probes, is_one_liner, require_constants


def load(
    names: Sequence[str], *, defines: Iterable[tuple[str, int | float]] = (), platform: str = DEFAULT_PLATFORM
) -> ProbeSet:
    """Load and verify probes, and print their warnings. As ``load_printing``, but a name may be the text of probes in
    one line, too, all of which are one file."""
    files = [name for name in names if not is_one_liner(name)]
    one_liners = [name for name in names if is_one_liner(name)]
    probes, _ = load_printing(files, one_liners, defines=defines, platform=platform)
    return probes


def load_printing(
    names: Sequence[str], one_liners: Sequence[str] = (), *, defines: Iterable[tuple[str, int | float]] = (),
    platform: str = DEFAULT_PLATFORM,
) -> tuple[ProbeSet, bool]:  # fmt: skip
    """Load and verify probes, and print their warnings. Return them, and whether there were any.

    names: paths, or names of shipped probes. one_liners: texts of ``-e``. platform: the one that probes in Python and
    in one line are for.

    defines: names and values of ``-D``, the last one of a name counting.
    Raises ProbeError with all faults, for ``print_diagnostics``; NeutrinoError for files that do not exist, and for a
    constant of ``defines`` that no file has.
    """
    values = dict(defines)
    checked = check_probes(names, one_liners, defines=values, platform=platform)
    # Raises if there are errors, so that what is printed below are warnings alone.
    probes = checked.probe_set()
    require_constants(values, checked.written)
    print_diagnostics(list(checked.diagnostics))
    return probes, bool(checked.diagnostics)


def load_for_file(
    file: str | Path, arch: str | None, names: Sequence[str], *, defines: Iterable[tuple[str, int | float]] = ()
) -> ProbeSet:
    """Load probes as ``load``, for the platform of the code in a file.

    file: the user's; a folder or wheel goes by its first file with device code. arch: the architecture that the user
    names, None without one.
    """
    from neutrino.backend.registry import platform_of_file

    return load(names, defines=defines, platform=platform_of_file(Path(file), arch))


def short_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of probes for files, where they stand between spaces: ``-e`` for all probes in one line."""
    return tuple(dict.fromkeys("-e" if is_one_liner(name) else name for name in names))
