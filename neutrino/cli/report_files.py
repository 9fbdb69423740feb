"""``neutrino-report --perfetto``: a trace as a file for another program's viewer."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from neutrino.cli.kernel_names import demangled
from neutrino.cli.report_faults import report_faults
from neutrino.cli.report_messages import DONE, NOTHING, fail, say
from neutrino.cli.streams import escaped, print_anything
from neutrino.cli.trace_choice import newest_of_ranks, of_ranks, require_launches, why_no_kernel
from neutrino.errors import NeutrinoError
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace, find_traces
from neutrino.tracing.perfetto import write_perfetto

_DEFAULT_FOLDER = "trace"
"""Where ``neutrino`` writes traces without ``--tracedir``."""


def write_files(options: argparse.Namespace) -> int:
    """Write the files that the options ask for.

    Returns the exit status: 0 done, 2 bad input or a file that cannot be written, 3 no launch has data in the trace.
    """
    print_anything()
    try:
        selection = Selection(tuple(options.kernel), tuple(options.filter))
        trace = Trace(_one_trace(options), is_tolerant=True)
        require_launches([trace], options.launch)
        kernels = [kernel for kernel in trace.kernels if selection.selects(kernel.name, demangled(kernel))]
        if not any(len(kernel.written_numbers(options.launch)) for kernel in kernels):
            say(why_no_kernel([trace], options) if not kernels else "no launch has data in the trace")
            return report_faults([trace]) or NOTHING
        written = write_perfetto(trace, options.perfetto, kernels, options.launch)
    except NeutrinoError as error:
        return fail(error)
    except OSError as error:
        return fail(f"{options.perfetto}: {error.strerror or error}")
    launches, slices = _counted(written.launches, "launch", "launches"), _counted(written.slices, "slice", "slices")
    lines = [
        f"{options.perfetto}: {launches}, {slices}; https://ui.perfetto.dev opens it",
        *(f"note: {note}" for note in written.notes()),
    ]
    return _printed(lines) or report_faults([trace])


def _one_trace(options: argparse.Namespace) -> Path:
    """Return the trace that the options name. Raises NeutrinoError if that is not one."""
    found: list[Path] = []
    try:
        for path in options.trace or [_DEFAULT_FOLDER]:
            found += find_traces(path)
    except NeutrinoError as error:
        raise error if options.trace else NeutrinoError(f"{error}; give the path of a trace") from error
    found = of_ranks(found, options.rank) if options.trace else newest_of_ranks(found, options.rank)
    if len(found) != 1:
        raise NeutrinoError(f"a file is of one trace; there are {len(found)}: name one, or choose one by --rank")
    return found[0]


def _printed(lines: Sequence[str]) -> int:
    """Print lines on stdout. Returns the exit status."""
    try:
        for line in lines:
            print(escaped(line))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return fail(error.strerror or str(error))
    return DONE


def _counted(number: int, one: str, many: str) -> str:
    """Return a number with a noun. one: the singular, many: the plural."""
    return f"{number:,} {one if number == 1 else many}"
