"""A page: one HTML file with everything in it, which loads nothing and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from neutrino.errors import NeutrinoError
from neutrino.page.registry import DATA, VIEWS
from neutrino.page.scripts import WEB, one_script, script_name
from neutrino.page.source import Blocks, Source, shortened
from neutrino.version import __version__

Json = Any
_EXACT = (1 << 53) - 1
"""Up to where browsers have whole numbers exactly."""
SCHEMA = 1
"""Of the document in a page."""


def write_page(file: TextIO, sources: Sequence[Source], comparison: Json = None) -> int:
    """Write a page about some traces. Returns how many bytes of data it has. Raises OSError.

    comparison: of the first one with the second, as ``--diff --json`` has it; None if the page is of no comparison.
    What cannot be read of a trace is named in its place.
    """
    script, style = page_script(), (WEB / "page.css").read_text("utf-8")
    name = sources[0].summary.trace.path.name if sources else ""
    file.write(
        (WEB / "page.html")
        .read_text("utf-8")
        .replace("{style}", style)
        .replace("{policy}", _policy(script, style))
        # Last, since it may have such words itself.
        .replace("{title}", html.escape(f"Neutrino: {shortened(name)}".encode("utf-8", "replace").decode()))
    )
    blocks = Blocks(file)
    traces = [{"document": shortened(source.document), "data": _data(source, blocks)} for source in sources]
    document = {"schema": SCHEMA, "version": __version__, "traces": traces, "comparison": shortened(comparison)}
    last = blocks.add_json(_plain(document))
    file.write(f'<script type="text/plain" id="document">{last}</script>\n<script>{script}</script>\n')
    file.write("</body>\n</html>\n")
    return blocks.bytes


def page_script() -> str:
    """Return the page's script: all modules, and the table of views."""
    views = ", ".join(
        f"{{name: {json.dumps(view.name)}, title: {json.dumps(view.title)}, "
        f"draw: {script_name('views/' + view.file)}.draw}}"
        for view in VIEWS
    )
    script = one_script([f"views/{view.file}" for view in VIEWS], "main.js")
    return f"{script}{script_name('main.js')}.start([{views}]);\n"


def _data(source: Source, blocks: Blocks) -> Json:
    """Write what views draw of a trace; return what says where it is, by name."""
    data = {}
    for name, prepare in DATA.items():
        try:
            data[name] = shortened(prepare(source, blocks))
        except (NeutrinoError, ValueError) as error:
            data[name] = {"fault": shortened(str(error))}
    return data


def _policy(script: str, style: str) -> str:
    """Return what the page may do: nothing but run this script and use this style."""
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (script, style)
    ]
    return f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; base-uri 'none'; form-action 'none'"


def _plain(value: Json) -> Json:
    """Return a document as a browser reads it without a loss: whole numbers that are no floating-point number exactly,
    infinities and NaN as text.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not -_EXACT <= value <= _EXACT:
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def web_files() -> list[Path]:
    """Return the files that pages are made of."""
    return sorted(path for path in WEB.rglob("*") if path.is_file())
