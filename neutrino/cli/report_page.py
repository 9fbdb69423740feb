"""``neutrino-report --html``: the report as a page."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neutrino.cli.overwriting import is_page, is_picture, refuse_foreign
from neutrino.cli.report_messages import DONE, NOTHING, fail, say
from neutrino.errors import NeutrinoError
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace, TraceKernel, TraceSummary, summarize
from neutrino.tracing.memory_usage import MemoryUsage

PAGE = "page.html"
"""In a trace, if no other file is named."""
_MOST_LEFT_OUT = 8
"""Lines about what pictures leave out."""


def write_report(summaries: Sequence[TraceSummary], usages: Sequence[MemoryUsage], options: argparse.Namespace) -> int:
    """Write the page of ``--html`` and show it if ``--open`` asks for that. Returns the exit status.

    usages: of traces of runs with --memusage, which have nothing to be drawn.
    """
    for usage in usages:
        say(f"{usage.trace.path}: --memusage recorded nothing that could be drawn; it is not in the page")
    if not summaries:
        return NOTHING
    status = _written(summaries, options) if options.html or options.open else DONE
    return _drawn(summaries, options) or status


def _drawn(summaries: Sequence[TraceSummary], options: argparse.Namespace) -> int:
    """Draw pictures as files, as ``--png`` and ``--svg`` ask; of several traces each in a folder of its own. Returns
    the exit status."""
    from neutrino.page.source import Source

    for summary in summaries:
        name = summary.trace.path.name if len(summaries) > 1 else ""
        source = Source(summary, {}, options.launch, [Path(folder) for folder in options.source])
        if status := _draw(source, name, options):
            return status
    return DONE


def _draw(source: Any, name: str, options: argparse.Namespace, comparison: Any = None) -> int:
    """Draw a trace's pictures, or those of a comparison, as ``--png`` and ``--svg`` ask. name: of a folder in the one
    asked for, or "". Returns the exit status."""
    for form in ("png", "svg"):
        if folder := getattr(options, form):
            from neutrino.page.figures import write_figures

            path = Path(folder) / name
            try:
                files, without, left_out = write_figures(
                    source, path, form, comparison,
                    may_write=lambda file: refuse_foreign(file, is_picture, "a picture of neutrino-report"),
                )  # fmt: skip
            except NeutrinoError as error:
                return fail(error)
            except OSError as error:
                return fail(f"{path}: {error.strerror or error}")
            nothing = f"; nothing to draw for {', '.join(without)}" if without else ""
            say(f"{len(files)} {'picture' if len(files) == 1 else 'pictures'} in {path}{nothing}")
            for line in left_out[:_MOST_LEFT_OUT]:
                say(f"not all is drawn: {line}")
            if len(left_out) > _MOST_LEFT_OUT:
                say(f"not all is drawn: {len(left_out) - _MOST_LEFT_OUT} more such limits")
    return DONE


def write_comparison(traces: Sequence[Trace], comparison: Any, options: argparse.Namespace) -> int:
    """Write the page of ``--diff --html``, with both traces, and the pictures of ``--png`` and ``--svg``. Returns the
    exit status.

    comparison: as ``--diff --json`` has it.
    """
    selection = Selection(tuple(options.kernel), tuple(options.filter))

    def keep(kernel: TraceKernel) -> bool:
        """Whether ``-k`` and ``--filter`` choose a kernel."""
        return selection.selects(kernel.name, kernel.full_name)

    summaries = [summarize(trace, keep, options.launch) for trace in traces]
    status = _written(summaries, options, comparison) if options.html or options.open else DONE
    return status or _draw(None, "", options, comparison)


def _written(summaries: Sequence[TraceSummary], options: argparse.Namespace, comparison: Any = None) -> int:
    """Write a page as the options ask, and show it. Returns the exit status."""
    folders = [Path(folder) for folder in options.source]
    target = Path(options.html) if options.html else summaries[-1].trace.path / PAGE
    try:
        refuse_foreign(target, is_page, "a page of neutrino-report")
        write_file(summaries, target, options.launch, folders, comparison, is_assembled=options.sass)
    except NeutrinoError as error:
        return fail(error)
    except OSError as error:
        return fail(f"{target}: {error.strerror or error}")
    say(f"page in {target}")
    if options.open and (said := show(target)):
        say(said)
    return DONE


def write_file(
    summaries: Sequence[TraceSummary],
    target: Path,
    launches: range | None = None,
    folders: Sequence[Path] = (),
    comparison: Any = None,
    *,
    is_assembled: bool = False,
) -> None:
    """Write a page about some traces into a file, which is replaced once the page is whole.

    launches: the numbers of those whose records are read. folders: in which sources are looked for. comparison: of the
    first two. is_assembled: whether it has machine code. Raises OSError.
    """
    # Imported here: most reports are no page.
    from neutrino.cli.report_json import trace_document
    from neutrino.page.document import write_page
    from neutrino.page.source import Source
    from neutrino.tracing.analyses.run import findings_of

    sources = [
        Source(
            summary,
            trace_document(summary, findings_of(summary, launches=launches), launches),
            launches,
            folders,
            is_assembled,
        )
        for summary in summaries
    ]
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            write_page(file, sources, comparison)
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def show(page: Path) -> str:
    """Show a page in the user's browser; return what is to be said of it, "" if nothing."""
    import webbrowser

    address = page.resolve().as_uri()
    return "" if webbrowser.open(address) else f"no browser was found; open {address}"
