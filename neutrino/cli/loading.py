"""Load the probes that a command line names, and print what is wrong with them; all commands use it."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.cli.diagnostics import print_diagnostics
from neutrino.errors import ProbeError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.platforms import require_platform
from neutrino.verification import check_probes


def load(names: Sequence[str]) -> ProbeSet:
    """The probes of these names, for CUDA kernels; their warnings are printed.

    Raises ProbeError with all faults, for ``print_diagnostics``; NeutrinoError for files that are not there.
    """
    checked = check_probes(names)
    if not checked.is_valid:
        raise ProbeError(list(checked.diagnostics))
    require_platform(checked.written, "cuda")
    print_diagnostics(list(checked.diagnostics))
    if checked.probes is None:
        raise TypeError("valid probes of a known platform make a set")
    return checked.probes
