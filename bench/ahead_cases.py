"""The closed list of libraries that are patched ahead of time, and of the ways in which they are used: the runner and
the verdicts both read it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Way(enum.Enum):
    """How a library is used.

    PLAIN: the original, without Neutrino. All others are of the patched one. BARE: nobody records. STUB: with
    NEUTRINO_TRACEDIR, without ``neutrino``. COMMAND: under ``neutrino`` without ``-p``. OTHER: under ``neutrino`` with
    another probe, which wins. HIDDEN: with NEUTRINO_TRACEDIR, but Neutrino and its cache are gone.
    """

    PLAIN = "plain"
    BARE = "bare"
    STUB = "stub"
    COMMAND = "command"
    OTHER = "other"
    HIDDEN = "hidden"


RECORDS = frozenset({Way.STUB, Way.COMMAND, Way.OTHER})
SILENT = frozenset({Way.PLAIN, Way.BARE, Way.HIDDEN})
"""Ways that leave no trace."""


@dataclass(frozen=True)
class Library:
    """A workload of ``bench/workloads`` built as a shared library.

    sources: file names. flags: of nvcc. ways: in which its program uses the patched one.
    """

    name: str
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()
    ways: tuple[Way, ...] = (Way.BARE, Way.STUB, Way.COMMAND, Way.HIDDEN)


LIBRARIES = (
    Library("vecadd", ("vecadd.cu",), ways=(Way.BARE, Way.STUB, Way.COMMAND, Way.OTHER, Way.HIDDEN)),
    Library("variables", ("variables.cu",)),
    Library("histogram", ("histogram.cu",)),
    Library("half", ("half.cu",)),
    Library("linked", ("linked.cu", "linked_part.cu"), ("-rdc=true",)),
)
ALL_PROBES = ("block_sched", "gmem_bytes")
EMITTED = ("ptx", "both")
"""Other forms of twins than machine code alone."""
SEEDS = 4
SUBMIT_PROCESSES = 9
"""Of each kind, by turns: from one process to the next the same program's medians differ by a tenth."""
LEAST_OF_CTRANSLATE2 = 540
"""Kernels that its library has, all of which are probed with block_sched."""
LEAST_FUNCTIONS = 14
"""Functions of ctranslate2 that are called, each of which launches a kernel of its own."""
