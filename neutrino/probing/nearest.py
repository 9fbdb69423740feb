"""The word that a misspelt one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one; None when none is close. Case does not count."""
    # Here, because only a faulty probe file needs it.
    import difflib

    folded = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None
