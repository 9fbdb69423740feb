"""From a probe file to one validated ``ProbeSet``; which kernels to probe; the layouts that all share."""

from neutrino.probing.model import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.probing.toml import load_probe_file, load_probes

__all__ = ["ProbeSet", "Selection", "load_probe_file", "load_probes"]
