"""Which kernels a run probes: ``-k`` keeps, ``--filter`` drops, and dropping wins."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from dataclasses import dataclass, field

from neutrino.errors import NeutrinoError

_GLOB = frozenset("*?[")


@dataclass(frozen=True)
class Selection:
    """Kernels by name. keep, drop: patterns as written after ``-k`` and ``--filter``; no keep keeps all.

    A pattern is a substring of the mangled or of the demangled name; with ``*``, ``?`` or ``[`` a glob over
    the whole name; between slashes a regular expression. ``a:b`` lists patterns; ``::`` belongs to a name.
    Raises NeutrinoError for a regular expression that Python cannot compile, and for an empty pattern.
    """

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    _keeps: tuple[_Pattern, ...] = field(init=False, repr=False, compare=False)
    _drops: tuple[_Pattern, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_keeps", _compile("-k", self.keep))
        object.__setattr__(self, "_drops", _compile("--filter", self.drop))

    def selects(self, name: str, demangled: str) -> bool:
        """Whether the kernel with this mangled and this demangled name is to be probed."""
        names = (name, demangled)
        if any(pattern.matches(names) for pattern in self._drops):
            return False
        return not self._keeps or any(pattern.matches(names) for pattern in self._keeps)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over the patterns."""
        return hashlib.sha256(json.dumps([self.keep, self.drop]).encode()).hexdigest()


@dataclass(frozen=True)
class _Pattern:
    literal: str
    regex: re.Pattern[str] | None

    def matches(self, names: tuple[str, str]) -> bool:
        if self.regex:
            return any(self.regex.search(name) for name in names)
        return any(self.literal in name for name in names)


def _compile(option: str, arguments: tuple[str, ...]) -> tuple[_Pattern, ...]:
    patterns = []
    for argument in arguments:
        for word in _split(argument):
            if not word or word == "//":
                raise NeutrinoError(f"{option} {argument!r}: an empty pattern; write a part of a name")
            patterns.append(_Pattern(word, _regex(option, word)))
    return tuple(patterns)


def _regex(option: str, word: str) -> re.Pattern[str] | None:
    if len(word) > 1 and word.startswith("/") and word.endswith("/"):
        try:
            return re.compile(word[1:-1])
        except (re.error, OverflowError, RecursionError) as error:
            raise NeutrinoError(f"{option} {word!r}: not a regular expression: {error}") from error
    if _GLOB & set(word):
        return re.compile(r"\A" + fnmatch.translate(word))
    return None


def _split(argument: str) -> list[str]:
    """The patterns of a list: single colons part them, except inside ``/…/``."""
    words = [""]
    position = 0
    while position < len(argument):
        if not words[-1] and argument[position] == "/":
            end = _regex_end(argument, position)
            words[-1] = argument[position:end]
            position = end
        elif argument.startswith("::", position):
            words[-1] += "::"
            position += 2
        elif argument[position] == ":":
            words.append("")
            position += 1
        else:
            words[-1] += argument[position]
            position += 1
    return words


def _regex_end(argument: str, start: int) -> int:
    """Past the slash that ends a regular expression: the first before a colon or the argument's end."""
    position = start + 1
    while position < len(argument):
        if argument[position] == "\\":
            position += 1
        elif argument[position] == "/" and (
            position + 1 == len(argument)
            or (argument[position + 1] == ":" and not argument.startswith("::", position + 1))
        ):
            return position + 1
        position += 1
    # No closing slash: an ordinary name that begins with one.
    return start + 1
