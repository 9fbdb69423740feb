"""Neutrino: small probes in GPU kernels, at the assembly level, without touching the program's source.

Begin with ``docs/architecture.md``; the packages follow the way data flows:
``fatbin`` → ``ptx`` (with ``probing``) → ``patch`` → ``loader`` → ``tracing``.
"""

__version__ = "0.1.0"
