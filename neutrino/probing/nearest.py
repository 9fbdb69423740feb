"""Finds the known word that a misspelt one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable

_SHORT_WORD = 3


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most similar to this one, for "did you mean"; None if none is similar enough.

    Case is ignored.
    """
    # Imported here because only an invalid probe file needs it.
    import difflib

    by_lower_case = {name.lower(): name for name in known}
    # The ten most similar words, at least 60 % of whose characters are equal; ``similarity`` chooses one of them.
    matches = difflib.get_close_matches(word.lower(), by_lower_case, n=10, cutoff=0.6)
    if len(word) <= _SHORT_WORD:
        # Short words are often similar by chance.
        matches = [match for match in matches if abs(len(match) - len(word)) <= 1]

    def similarity(match: str) -> tuple[float, int]:
        """Return the ratio of equal characters, then the length of the common prefix: "ad" is "add", not "sad"."""
        ratio = difflib.SequenceMatcher(None, match, word.lower()).ratio()
        # Not strict: the two may have different lengths.
        pairs = list(zip(match, word.lower(), strict=False))
        common_prefix = next((index for index, (left, right) in enumerate(pairs) if left != right), len(pairs))
        return ratio, common_prefix

    return by_lower_case[max(matches, key=similarity)] if matches else None
