"""``neutrino-report --perfetto``: a trace as a file for another program's viewer."""

from __future__ import annotations

import argparse

from neutrino.cli.kernel_names import demangled
from neutrino.cli.report_faults import report_faults
from neutrino.cli.report_messages import NOTHING, fail, say
from neutrino.cli.streams import escaped, print_anything
from neutrino.cli.trace_choice import one_trace, print_lines, require_launches, why_no_kernel
from neutrino.errors import NeutrinoError
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace
from neutrino.tracing.perfetto import write_perfetto


def write_files(options: argparse.Namespace) -> int:
    """Write the files that the options ask for.

    Returns the exit status: 0 done, 2 bad input or a file that cannot be written, 3 no launch has data in the trace.
    """
    print_anything()
    try:
        selection = Selection(tuple(options.kernel), tuple(options.filter))
        trace = Trace(one_trace(options.trace, options.rank), is_tolerant=True)
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
    return print_lines(map(escaped, lines)) or report_faults([trace])


def _counted(number: int, one: str, many: str) -> str:
    """Return a number with a noun. one: the singular, many: the plural."""
    return f"{number:,} {one if number == 1 else many}"
