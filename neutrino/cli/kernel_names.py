"""Kernel names for people: demangled, and shortened for tables so that their distinguishing parts stay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from neutrino.demangle import demangle

if TYPE_CHECKING:
    from neutrino.tracing.trace import TraceKernel

_PARTS = re.compile(r"\(anonymous namespace\)|<unnamed>|->|.", re.DOTALL)
"""Single characters, but for words whose brackets are no parameters and no template arguments."""
_MOST_NAMED = 12
"""Kernels that are named in a sentence."""
_IN_SENTENCES = 60
"""Characters of a kernel's name in a sentence."""
_WITHOUT_BRACKETS = {"(anonymous namespace)": "{anonymous}", "<unnamed>": "{unnamed}"}


def shorten(name: str, width: int) -> str:
    """Return a demangled name in at most ``width`` characters (at least 8), for a table.

    Parts are removed until it fits, first those that distinguish kernels least: return type and parameters, inner
    template arguments, all template arguments, namespaces; a name that is still too long loses its middle.
    """
    if len(name) <= width:
        return name
    bare = _without_parameters(name)
    without_templates = _without_templates(bare, max_depth=0)
    _, _, unqualified = without_templates.rpartition("::")
    for candidate in (bare, _without_templates(bare, max_depth=1), without_templates, unqualified):
        if len(candidate) <= width:
            return candidate
    # The "…" in the middle takes one character.
    head = (width - 1) // 2
    tail = width - 1 - head
    return f"{unqualified[:head]}…{unqualified[-tail:]}"


def _without_parameters(name: str) -> str:
    """Return a demangled name without return type and parameters: the qualified name with its template arguments."""
    # These names have brackets that are no parameter list and no template arguments.
    text = name
    for bracketed, placeholder in _WITHOUT_BRACKETS.items():
        text = text.replace(bracketed, placeholder)

    # The name begins after the last blank outside of template arguments, and ends at the bracket of the parameters.
    depth = 0
    end = len(text)
    start = 0
    for position, character in enumerate(text):
        if character == "<":
            depth += 1
        elif character == ">" and text[position - 1 : position] != "-":
            # "->" ends no template arguments.
            depth -= 1
        # The name operator() has brackets, and operator new a blank.
        elif depth == 0 and character == "(" and not text[:position].endswith("operator"):
            end = position
            break
        elif depth == 0 and character == " " and not text[:position].endswith("operator"):
            start = position + 1
    # Empty only for what is no function's name, such as text in brackets.
    text = text[start:end] or text
    for bracketed, placeholder in _WITHOUT_BRACKETS.items():
        text = text.replace(placeholder, bracketed)
    return text


def _without_templates(name: str, max_depth: int) -> str:
    """Replace template arguments that are nested deeper than ``max_depth`` by ``<…>``; 0 replaces all."""
    parts = []
    depth = 0
    for match in _PARTS.finditer(name):
        part = match.group()
        if part == "<":
            depth += 1
            # Once for all that is nested in it.
            if depth == max_depth + 1:
                parts.append("<…>")
        if depth <= max_depth:
            parts.append(part)
        if part == ">":
            # Names such as operator> have a bracket that was never opened.
            depth = max(depth - 1, 0)
    return "".join(parts)


def demangled(kernel: TraceKernel) -> str:
    """Return a kernel's demangled name: from the trace, which has it for probed kernels only, else computed here."""
    return kernel.full_name


def some_of(names: Iterable[str]) -> str:
    """Return kernels in words, after "there are": some of them, demangled and shortened. names: mangled ones."""
    shown = sorted({shorten(demangle(name), _IN_SENTENCES) for name in names})
    more = f" and {len(shown) - _MOST_NAMED:,} more" if len(shown) > _MOST_NAMED else ""
    return ", ".join(shown[:_MOST_NAMED]) + more
