"""Numbers as PTX writes them."""

from __future__ import annotations

import re

_OCTAL = re.compile(r"[+-]?0\d+\Z", re.ASCII)


def integer(literal: str) -> int:
    """The value of ``0x1F``, ``0b11``, ``017`` or ``23U``. Raises ValueError for what is no integer."""
    digits = literal.rstrip("uU")
    return int(digits, 8 if _OCTAL.match(digits) else 0)
