"""Reads PTX text with its exact source and writes the twins' text."""

from neutrino.ptx.module import Module, Parameter, parse
from neutrino.ptx.twin import Site, SkippedKernel, TwinKernel, TwinModule, probe_module

__all__ = [
    "Module",
    "Parameter",
    "Site",
    "SkippedKernel",
    "TwinKernel",
    "TwinModule",
    "parse",
    "probe_module",
]
