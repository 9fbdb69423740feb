"""PTX text with everything that is not code blanked out, so that plain searches cannot be fooled.

The blanked text has the length of the original: a position in one is a position in the other.
"""

from __future__ import annotations

import re

NOT_CODE = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"\\\n]|\\.)*"', re.DOTALL)

# Line information ends without a semicolon, at the end of its operands (PTX ISA, "Debugging Directives:
# .loc").
LOCATION = re.compile(
    r"\.loc[ \t]+\d+[ \t]+\d+(?:[ \t]+\d+)?"
    r"(?P<inlined>\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?",
    re.ASCII,
)


def blank(text: str) -> str:
    """Replace comments, strings and ``.loc`` directives by spaces. The length stays."""
    text = _without_comments(text)
    if ".loc" in text:
        text = LOCATION.sub(_spaces, text)
    return text


def _without_comments(text: str) -> str:
    """As ``NOT_CODE.sub`` with spaces, from one mark to the next: searching for those is quicker by far."""
    marks = ("//", "/*", '"')
    found = {mark: at for mark in marks if (at := text.find(mark)) >= 0}
    pieces = []
    done = 0
    while found:
        mark = min(found, key=found.__getitem__)
        start = found[mark]
        match = NOT_CODE.match(text, start)
        end = match.end() if match is not None else start + 1
        if match is not None:
            pieces += [text[done:start], " " * (end - start)]
            done = end
        for other in [other for other, at in found.items() if at < end]:
            found[other] = text.find(other, end)
            if found[other] < 0:
                del found[other]
    return "".join([*pieces, text[done:]]) if pieces else text


def _spaces(match: re.Match[str]) -> str:
    return " " * len(match[0])


def without_locations(text: str, *, keep: bool) -> str:
    """Take ``.loc`` out, or with keep only what refers to labels of debug sections."""
    if ".loc" not in text:
        return text
    if not keep:
        return LOCATION.sub("", text)
    return LOCATION.sub(
        lambda match: match[0][: match.start("inlined") - match.start()] if match["inlined"] else match[0],
        text,
    )
