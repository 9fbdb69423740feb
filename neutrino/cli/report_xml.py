"""The JSON document of ``neutrino-report`` as XML: members are attributes or elements, items of lists ``<item>``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)
_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}


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
                own[name] = _written(member)
            else:
                children.append((name, member, {}) if is_name else ("member", member, {"name": _written(name)}))
    elif isinstance(value, list):
        children = [("item", item, {}) for item in value if item is not None]
    else:
        text = _written(value)
    head = tag + "".join(f' {name}="{shown}"' for name, shown in own.items())
    if not children:
        yield f"{indent}<{head}>{text}</{tag}>" if text else f"{indent}<{head}/>"
        return
    yield f"{indent}<{head}>"
    for name, member, more in children:
        yield from _element(name, member, more, depth + 1)
    yield f"{indent}</{tag}>"


def _written(value: Any) -> str:
    """Return a number, text or truth value as XML has it, in an attribute or between elements."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if text.isprintable() and not _MARKUP.keys() & set(text):
        return text
    return "".join(map(_character, text))


def _character(character: str) -> str:
    """Return a character as XML has it: a reference where a terminal would obey it, and an escape of Python, such as
    \\x1b, where XML cannot have it at all.
    """
    if character in _MARKUP or character.isprintable():
        return _MARKUP.get(character, character)
    number = ord(character)
    is_xml = number in (9, 10, 13) or 0x20 <= number < 0xD800 or 0xE000 <= number < 0xFFFE or number > 0xFFFF
    return f"&#{number};" if is_xml else ascii(character)[1:-1]
