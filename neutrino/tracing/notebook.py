"""A trace in a notebook: the page of ``neutrino-report --html`` in a frame."""

from __future__ import annotations

import html
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_MOST_BYTES = 32 << 20
"""Of a page in a notebook, which is kept in its file."""
_SECONDS = 120
"""That a page may take."""
_HEIGHT = "42rem"


def framed_page(trace: Path, options: Sequence[str] = ()) -> str | None:
    """Return a page about a trace as HTML for a notebook: in a frame, where it runs its own script and sees nothing of
    the notebook. None where no page can be made.

    options: of ``neutrino-report``, which runs as a process of its own: what it takes is given back, and the program's
    threads go on.
    """
    with tempfile.TemporaryDirectory(prefix="neutrino-page-") as folder:
        page = Path(folder) / "page.html"
        command = [sys.executable, "-m", "neutrino.cli.report_start", str(trace), *options, "--html", str(page)]
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_SECONDS
            )  # fmt: skip
            if page.stat().st_size > _MOST_BYTES:
                return None
            text = page.read_text("utf-8")
        except (OSError, subprocess.TimeoutExpired):
            return None
    return (
        f'<iframe title="Neutrino" sandbox="allow-scripts" style="width: 100%; height: {_HEIGHT}; border: 0" '
        f'srcdoc="{html.escape(text)}"></iframe>'
    )
