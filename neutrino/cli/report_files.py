"""``neutrino-report --perfetto`` and ``--iket``: a trace as a file for other programs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from neutrino.cli.kernel_names import demangled, shorten
from neutrino.cli.overwriting import is_events, is_timeline, refuse_foreign
from neutrino.cli.report_faults import report_faults
from neutrino.cli.report_messages import NOTHING, fail, say
from neutrino.cli.streams import escaped, print_anything
from neutrino.cli.trace_choice import one_trace, print_lines, require_launches, why_no_kernel
from neutrino.errors import NeutrinoError
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace, TraceKernel
from neutrino.tracing.iket import Exported, write_iket
from neutrino.tracing.perfetto import write_perfetto
from neutrino.tracing.roles import WarpRoles, roles_of

_NAME_WIDTH = 100
"""Characters of a kernel's name."""


def write_files(options: argparse.Namespace) -> int:
    """Write the files that the options ask for.

    Returns the exit status: 0 done, 2 bad input or a file that cannot be written, 3 no launch has data in the trace.
    """
    print_anything()
    try:
        if options.iket is not None:
            refuse_foreign(options.iket, is_events, "a file of --iket")
        else:
            refuse_foreign(options.perfetto, is_timeline, "a file of --perfetto")
        selection = Selection(tuple(options.kernel), tuple(options.filter))
        trace = Trace(one_trace(options.trace, options.rank), is_tolerant=True)
        require_launches([trace], options.launch)
        kernels = [kernel for kernel in trace.kernels if selection.selects(kernel.name, demangled(kernel))]
        if not any(len(kernel.written_numbers(options.launch)) for kernel in kernels):
            say(why_no_kernel([trace], options) if not kernels else "no launch has data in the trace")
            return report_faults([trace]) or NOTHING
        if options.iket is not None:
            exported = write_iket(trace, options.iket, kernels, options.launch)
            return print_lines(map(escaped, _exported_lines(options.iket, exported))) or report_faults([trace])
        roles: dict[int, WarpRoles] = {}

        def names_of(kernel: TraceKernel) -> dict[int, str]:
            """Return the roles of a kernel's warps, in a word each, and remember what else is known of them."""
            return roles.setdefault(kernel.id, roles_of(kernel, options.launch)).names

        written = write_perfetto(trace, options.perfetto, kernels, options.launch, names_of)
    except NeutrinoError as error:
        return fail(error)
    except OSError as error:
        return fail(f"{options.perfetto or options.iket}: {error.strerror or error}")
    launches, slices = _counted(written.launches, "launch", "launches"), _counted(written.slices, "slice", "slices")
    lines = [
        f"{options.perfetto}: {launches}, {slices}; https://ui.perfetto.dev opens it",
        *(f"note: {note}" for note in written.notes()),
    ]
    for kernel in kernels:
        found = roles.get(kernel.id)
        # Of other kernels there is nothing to say: most have no roles, or no records that tell them.
        if found is not None and found.roles:
            lines.append(f"roles in {shorten(demangled(kernel), _NAME_WIDTH)}:")
            lines += [f"  {sentence}" for sentence in found.sentences()]
    return print_lines(map(escaped, lines)) or report_faults([trace])


def _exported_lines(path: str, exported: Exported) -> Iterator[str]:
    """Yield what a file of events has."""
    parts = (
        _counted(exported.launches, "launch", "launches"), _counted(exported.lifetimes, "warp", "warps"),
        _counted(exported.ranges, "range", "ranges"), _counted(exported.markers, "mark", "marks"),
    )  # fmt: skip
    yield f"{path}: {', '.join(parts)}"
    if others := exported.timebases - {"ns"}:
        units = " and ".join(sorted(others))
        yield f"note: times are {units}, as timebase of each launch says: scripts take them for ns"
    if exported.missing:
        yield f"note: {_counted(exported.missing, 'warp has', 'warps have')} no times in the trace"
    if exported.left_out:
        names = ", ".join(sorted(exported.left_out))
        yield f"note: {names}: left out, since no map tells the warps' times by its clock"
    if not exported.launches:
        yield (
            "note: no record tells when warps ran (begin and end, or start and elapsed, of each warp, or marks of its "
            "entry)"
        )


def _counted(number: int, one: str, many: str) -> str:
    """Return a number with a noun. one: the singular, many: the plural."""
    return f"{number:,} {one if number == 1 else many}"
