"""``neutrino-report --html``: the report as a page."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from neutrino.cli.report_messages import DONE, NOTHING, fail, say
from neutrino.tracing import TraceSummary
from neutrino.tracing.memory_usage import MemoryUsage


def write_report(summaries: Sequence[TraceSummary], usages: Sequence[MemoryUsage], options: argparse.Namespace) -> int:
    """Write the page of ``--html`` and show it if ``--open`` asks for that. Returns the exit status.

    usages: of traces of runs with --memusage, which have nothing to be drawn.
    """
    for usage in usages:
        say(f"{usage.trace.path}: --memusage recorded nothing that could be drawn; it is not in the page")
    if not summaries:
        return NOTHING
    status = write_file(summaries, options.html, options.launch, [Path(folder) for folder in options.source])
    if status == DONE:
        say(f"page in {options.html}")
        if options.open:
            show(Path(options.html))
    return status


def write_file(
    summaries: Sequence[TraceSummary], path: str, launches: range | None = None, folders: Sequence[Path] = ()
) -> int:
    """Write a page about some traces into a file, which is replaced once the page is whole. Returns the exit status.

    launches: the numbers of those whose records are read. folders: in which sources are looked for.
    """
    # Imported here: most reports are no page.
    from neutrino.cli.report_json import trace_document
    from neutrino.page.document import write_page
    from neutrino.page.source import Source
    from neutrino.tracing.analyses.run import findings_of

    target = Path(path)
    sources = [
        Source(summary, trace_document(summary, findings_of(summary, launches=launches)), launches, folders)
        for summary in summaries
    ]
    part = None
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        part = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            write_page(file, sources)
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(target)
        part = None
    except OSError as error:
        return fail(f"{path}: {error.strerror or error}")
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return DONE


def show(page: Path) -> None:
    """Show a page in the user's browser, or say where it is."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        say(f"no browser was found; open {page.resolve().as_uri()}")
