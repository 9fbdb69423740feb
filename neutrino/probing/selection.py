"""Which kernels a run probes: ``-k`` includes kernels, ``--filter`` excludes them and takes precedence."""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import field

from neutrino.errors import NeutrinoError
from neutrino.late_dataclass import dataclass

_GLOB = frozenset("*?[")


@dataclass(frozen=True)
class Selection:
    """Selects kernels by name. keep, drop: the arguments of ``-k`` and ``--filter``; an empty keep includes all.

    _keeps, _drops: their patterns, compiled.

    A pattern is a substring of the mangled or the demangled name; with ``*``, ``?`` or ``[`` a glob for the whole
    name; between slashes a regular expression. An argument may list patterns, as ``a:b``; ``::`` belongs to a name.
    Raises NeutrinoError for a regular expression that Python cannot compile, and for an empty pattern.
    """

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    _keeps: tuple[_Pattern, ...] = field(init=False, repr=False, compare=False)
    _drops: tuple[_Pattern, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the patterns, so that a wrong one is reported at once."""
        # Compiled here, so that a wrong pattern is reported at once. Plain assignment fails, as the class is frozen.
        object.__setattr__(self, "_keeps", _compile("-k", self.keep))
        object.__setattr__(self, "_drops", _compile("--filter", self.drop))

    def selects(self, name: str, demangled: str) -> bool:
        """Return whether the user's options ``-k`` and ``--filter`` choose a kernel. name, demangled: both of its
        names."""
        names = (name, demangled)
        # --filter takes precedence over -k.
        if any(pattern.matches(names) for pattern in self._drops):
            return False
        return not self._keeps or any(pattern.matches(names) for pattern in self._keeps)

    @property
    def digest(self) -> str:
        """The SHA-256 of the patterns, in hex, as a part of cache keys."""
        # Imported here: who reads a trace needs no keys of caches.
        import hashlib

        return hashlib.sha256(json.dumps([self.keep, self.drop]).encode()).hexdigest()


@dataclass(frozen=True)
class _Pattern:
    """A pattern for names. regex: of a glob or a regular expression, None if ``literal`` is a substring to find."""

    literal: str
    regex: re.Pattern[str] | None

    def matches(self, names: tuple[str, str]) -> bool:
        """Return whether the pattern matches one of a kernel's names, mangled or demangled."""
        if self.regex:
            return any(self.regex.search(name) for name in names)
        return any(self.literal in name for name in names)


def _compile(option: str, arguments: tuple[str, ...]) -> tuple[_Pattern, ...]:
    """Return the patterns of all arguments of an option, ``-k`` or ``--filter``. Raises as ``Selection``."""
    patterns = []
    for argument in arguments:
        for word in _split(argument):
            # Both would match every name.
            if not word or word == "//":
                raise NeutrinoError(f"{option} {argument!r}: an empty pattern; write a part of a name")
            meant = _meant(word)
            if meant:
                raise NeutrinoError(f"{option} {argument!r}: {meant}")
            patterns.append(_Pattern(word, _regex(option, word)))
    return tuple(patterns)


def _meant(word: str) -> str:
    """Return what is meant by a pattern that is in no name; "" for any other."""
    if word.startswith("^") or (word.endswith("$") and _GLOB & set(word)):
        return f"a regular expression stands between slashes: '/{word}/'"
    # Names of C++ have commas between < and >, and spaces after them.
    if re.fullmatch(r"\w+(?:,\w+)+", word):
        return f"a list has colons between its patterns: {word.replace(',', ':')}"
    return ""


def _regex(option: str, word: str) -> re.Pattern[str] | None:
    """Return a pattern as a regular expression, if it is one or a glob; None for a plain part of a name.

    option: ``-k`` or ``--filter``, for the message of the NeutrinoError.
    """
    if len(word) > 1 and word.startswith("/") and word.endswith("/"):
        try:
            return re.compile(word[1:-1])
        except (re.error, OverflowError, RecursionError) as error:
            raise NeutrinoError(f"{option} {word!r}: not a regular expression: {error}") from error
    if _GLOB & set(word):
        # The pattern must match the whole name, but it is used with search(): translate() adds only the end, \Z.
        return re.compile(r"\A" + fnmatch.translate(word))
    return None


def _split(argument: str) -> list[str]:
    """Split an argument into patterns at single colons, except inside ``/…/``; ``::`` belongs to a name of C++."""
    words = [""]  # the last one is read at the moment
    position = 0
    while position < len(argument):
        # A slash opens a regular expression only where a pattern begins.
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
    """Return the offset after the slash that closes a regular expression, which a slash at ``start`` opens.

    It is the first slash without a backslash that is followed by a single colon or the end of the argument.
    """
    position = start + 1
    while position < len(argument):
        if argument[position] == "\\":
            position += 1  # skip the escaped character too
        elif argument[position] == "/" and (
            position + 1 == len(argument)
            or (argument[position + 1] == ":" and not argument.startswith("::", position + 1))
        ):
            return position + 1
        position += 1
    # No closing slash: a plain name that begins with one.
    return start + 1
