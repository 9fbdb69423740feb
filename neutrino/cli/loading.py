"""The probes that a command line names, found sound: every command loads and refuses them in this way."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.cli.diagnostics import print_diagnostics
from neutrino.errors import Diagnostic, ProbeError
from neutrino.probing.faults import DECLARATION_FAULTS
from neutrino.probing.model import ProbeSet
from neutrino.probing.platforms import require_platform
from neutrino.probing.toml import load_probes
from neutrino.ptx.instrument.snippet import check_snippets

_ABOUT_REGISTERS = frozenset({"undeclared-register", "register-type", "not-a-predicate", "save-type"})
"""Codes of faults that a declaration which could not be read brings about."""


def load(names: Sequence[str]) -> ProbeSet:
    """The probes of these names, to go into CUDA kernels; their warnings are printed.

    Raises ProbeError with all faults, for ``print_diagnostics``; NeutrinoError for files that are not there.
    """
    probes, found = judge(names)
    if probes is None or any(item.severity == "error" for item in found):
        raise ProbeError(found)
    require_platform(probes, "cuda")
    print_diagnostics(found)
    return probes


def judge(names: Sequence[str]) -> tuple[ProbeSet | None, list[Diagnostic]]:
    """The probes of these names, None where a file cannot be read as such; and everything there is to say of them.

    Snippets are judged as well where other things are wrong, so that a second run finds nothing new. Raises
    NeutrinoError for files that are not there.
    """
    probes: ProbeSet | None = None
    try:
        probes = load_probes(names)
        found, parts = list(probes.warnings), probes.parts or (probes,)
    except ProbeError as error:
        found, parts = list(error.diagnostics), error.partial
    for part in parts:
        if part.platform == "cuda":
            try:
                found += check_snippets(part)
            except ProbeError as error:
                known = {(item.file, item.line, item.column) for item in found if item.severity == "error"}
                unsure = any(item.file == part.file and item.code in DECLARATION_FAULTS for item in found)
                found += [
                    item
                    for item in error.diagnostics
                    if (item.file, item.line, item.column) not in known
                    and not (unsure and item.code in _ABOUT_REGISTERS)
                ]
    # What could not be read may have been the SAVE.
    wrong = {item.file for item in found if item.severity == "error"}
    found = [item for item in found if item.code != "unused-map" or item.file not in wrong]
    files = list(dict.fromkeys(item.file for item in found))
    return probes, sorted(found, key=lambda item: (files.index(item.file), item.line, item.column))
