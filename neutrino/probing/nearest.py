"""The word that a misspelt one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable

_SHORT = 3


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like this one; None when none is close. Case does not count."""
    # Here, because only a faulty probe file needs it.
    import difflib

    folded = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), folded, n=10, cutoff=0.6)
    if len(word) <= _SHORT:
        # Of short words half are alike by chance.
        matches = [match for match in matches if abs(len(match) - len(word)) <= 1]

    def likeness(match: str) -> tuple[float, int]:
        # Of two as close, people mean the one that begins alike: "ad" is "add" rather than "sad".
        ratio = difflib.SequenceMatcher(None, match, word.lower()).ratio()
        pairs = zip(match, word.lower(), strict=False)
        return ratio, next((index for index, (one, other) in enumerate(pairs) if one != other), len(word))

    return folded[max(matches, key=likeness)] if matches else None
