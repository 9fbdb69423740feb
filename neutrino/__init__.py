"""Neutrino: small probes in GPU kernels, at the assembly level, without touching the program's source.

This is the API for Python programs; ``docs/architecture.md`` describes the packages that implement it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neutrino.version import __version__

if TYPE_CHECKING:
    from neutrino.api import extract, load_probes, open_trace, patch_file
    from neutrino.errors import (
        Diagnostic,
        FormatError,
        NeutrinoError,
        PatchError,
        ProbeError,
        ProbeWarning,
        PtxError,
        ToolError,
        ToolMissingError,
        TraceError,
    )
    from neutrino.language import Map, probe
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.session import Recording, install, range, trace, trace_dir
    from neutrino.tracing.trace import Trace


__all__ = [
    "Diagnostic",
    "FormatError",
    "Map",
    "NeutrinoError",
    "PatchError",
    "ProbeError",
    "ProbeSet",
    "ProbeWarning",
    "PtxError",
    "Recording",
    "ToolError",
    "ToolMissingError",
    "Trace",
    "TraceError",
    "__version__",
    "extract",
    "install",
    "load_probes",
    "open_trace",
    "patch_file",
    "probe",
    "range",
    "trace",
    "trace_dir",
]

_ERRORS = "neutrino.errors"
_MODULES = {
    "ProbeSet": "neutrino.probing.ir.probe_set",
    "Trace": "neutrino.tracing.trace",
    **dict.fromkeys(("Map", "probe"), "neutrino.language"),
    **dict.fromkeys(("Recording", "install", "range", "trace", "trace_dir"), "neutrino.session"),
    **dict.fromkeys(("extract", "load_probes", "open_trace", "patch_file"), "neutrino.api"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is used. Raises AttributeError for any other name."""
    # Not earlier, because each command imports this package, and most need few of the names.
    if name not in __all__:
        names = ", ".join(public for public in __all__ if public[0].islower())
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {names}")
    return getattr(import_module(_MODULES.get(name, _ERRORS)), name)


def __dir__() -> list[str]:
    """Return the package's public names, also of those not imported yet."""
    return sorted(__all__)
