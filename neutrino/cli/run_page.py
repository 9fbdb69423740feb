"""``neutrino --open``: a page about the traces of a run, shown in a browser when COMMAND has ended."""

from __future__ import annotations

from neutrino.run.start import say
from neutrino.run.traces import RunTraces


def open_page(traces: RunTraces) -> None:
    """Write a page about all traces of a run into the last one, and show it in a browser. What goes wrong is said.
    """
    # Imported here, after COMMAND has ended: it needs NumPy.
    from neutrino.cli.report_page import PAGE, show, write_file
    from neutrino.errors import NeutrinoError
    from neutrino.tracing import Trace, summarize

    summaries = []
    for path in traces.find():
        try:
            summaries.append(summarize(Trace(path, is_tolerant=True)))
        except NeutrinoError as error:
            say(str(error))
    # That nothing was recorded has been said.
    if not summaries:
        return
    page = summaries[-1].trace.path / PAGE
    try:
        write_file(summaries, page)
    except OSError as error:
        say(f"{page}: {error.strerror or error}")
        return
    say(f"page in {page}")
    if said := show(page):
        say(said)
