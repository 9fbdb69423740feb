"""The probes that a command line names, found sound: every command loads and refuses them in this way."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.cli.diagnostics import print_diagnostics
from neutrino.errors import NeutrinoError
from neutrino.probing.model import ProbeSet
from neutrino.probing.toml import load_probes
from neutrino.ptx.snippet import check_snippets


def load(names: Sequence[str]) -> ProbeSet:
    """The probes of these names, to go into CUDA kernels; their warnings are printed.

    Raises ProbeError with all faults, for ``print_diagnostics``; NeutrinoError for files that are not there, and for
    probes in AMD's assembly.
    """
    probes = load_probes(names)
    if probes.platform != "cuda":
        raise NeutrinoError(
            f'{probes.file}: platform = "{probes.platform}": AMD\'s assembly is read and checked, but not put into '
            "kernels yet"
        )
    check_snippets(probes)
    print_diagnostics(probes.warnings)
    return probes
