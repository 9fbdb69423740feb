"""The JSON document of ``neutrino-report`` as XML: members are attributes or elements, items of lists ``<item>``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape, quoteattr

_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot have, however they are written."""
_BLANKS = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}


def xml_text(document: dict[str, Any]) -> str:
    """Return a document as XML 1.0.

    Numbers, texts and truth values (true, false) of an object are attributes, other members elements of its name; a
    member whose name XML does not take is an element ``member`` with the attribute ``name``. What is null is left out.
    """
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', *_element("report", document, {}, 0), ""])


def _element(tag: str, value: Any, attributes: dict[str, str], depth: int) -> Iterator[str]:
    """Yield the lines of an element. attributes: besides those of the value. depth: of its indent."""
    indent = " " * depth
    own = dict(attributes)
    children: list[tuple[str, Any, dict[str, str]]] = []
    text = ""
    if isinstance(value, dict):
        for name, member in value.items():
            if member is None:
                continue
            is_name = _NAME.fullmatch(name) is not None
            if is_name and name not in own and not isinstance(member, (dict, list)):
                own[name] = _text(member)
            else:
                children.append((name, member, {}) if is_name else ("member", member, {"name": name}))
    elif isinstance(value, list):
        children = [("item", item, {}) for item in value if item is not None]
    else:
        text = escape(_text(value))
    head = tag + "".join(f" {name}={quoteattr(_clean(shown), _BLANKS)}" for name, shown in own.items())
    if not children:
        yield f"{indent}<{head}>{text}</{tag}>" if text else f"{indent}<{head}/>"
        return
    yield f"{indent}<{head}>"
    for name, member, more in children:
        yield from _element(name, member, more, depth + 1)
    yield f"{indent}</{tag}>"


def _text(value: Any) -> str:
    """Return a number, text or truth value as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _clean(str(value))


def _clean(text: str) -> str:
    """Return a text with characters that XML cannot have as escapes of Python, such as \\x1b."""
    return _NOT_XML.sub(lambda match: ascii(match.group())[1:-1], text)
