"""Load the probes that a command line names, and print what is wrong with them; all commands use it."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.cli.diagnostics import print_diagnostics
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.verification import check_probes


def load(names: Sequence[str], one_liners: Sequence[str] = ()) -> ProbeSet:
    """Load and verify probes for CUDA kernels, and print their warnings.

    names: paths, or names of shipped probes. one_liners: texts of ``-e``.

    Raises ProbeError with all faults, for ``print_diagnostics``; NeutrinoError for files that do not exist.
    """
    checked = check_probes(names, one_liners)
    # Raises if there are errors, so that what is printed below are warnings alone.
    probes = checked.probe_set()
    print_diagnostics(list(checked.diagnostics))
    return probes
