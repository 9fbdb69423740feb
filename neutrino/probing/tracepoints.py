"""Parses ``position``, which says where a probe goes, into a ``model.Tracepoint``.

    position    = alternative { "|" alternative }
    alternative = "kernel" | "func:" NAME | "range:" NAME | lines | instructions { word } | flow { place }
    instructions = opcode | class | "*" | "call:" NAME
    flow        = "block" | "loop-head" | "back-edge"
    word        = "!" modifier | "@" | "call:" NAME | place
    place       = "func:" NAME | "range:" NAME | lines
    lines       = [ "file:" ] FILE ":" number [ "-" number ]

In an opcode ``*`` stands for any modifiers (``atom.*.add``) or letters (``ld*``). Words may also be joined by ``&`` and
``!`` with parentheses, as in ``load & k.py:5-8 & !(volatile | func:f)``: see ``conditions.py``.

The name of a function, after ``func:`` or ``call:``, may contain spaces: it ends before the next word that cannot be
part of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from neutrino.probing.conditions import MAX_ALTERNATIVES, ConditionError, Literal, alternatives, is_condition
from neutrino.probing.model import CLASSES, FLOW_SUBJECTS, Pattern, SourceLines, Subject, Tracepoint
from neutrino.probing.nearest import nearest
from neutrino.probing.syntax import Fault
from neutrino.probing.target import Words

MAX_WORDS = 64
"""Words in one pattern."""
MAX_LINE = (1 << 31) - 1
"""Greatest line number of a source file: line information has 32 bits."""

_OPCODE = re.compile(r"(?:[a-z*][a-z0-9_*]*(?:\.[A-Za-z0-9_:*]+)+|[a-z][a-z0-9_*]*|\*[a-z0-9_*]+)", re.ASCII)
_EXCLUSION = re.compile(r"!([A-Za-z0-9_:]+)", re.ASCII)
_FUNCTION = "func:"
_CALL = "call:"
_RANGE = "range:"
_RANGE_NAME = re.compile(r"[\w.*?\[\]-]+", re.ASCII)
_PREDICATED = "@"
_LINES = re.compile(r"(?:file:)?(?P<file>[^\s:|!]+):(?P<first>\d+)(?:-(?P<last>\d+))?", re.ASCII)
_WORD = re.compile(r"\S+")
_MODIFIER = re.compile(r"[A-Za-z0-9_:]+", re.ASCII)
_NOT_NARROWABLE = {
    Subject.KERNEL: ("kernel", "the option -k selects kernels"),
    Subject.FUNCTION: ("a function", 'instructions in a function are "* func:NAME"'),
    Subject.LINE: ("a source line", 'instructions of a source line are "* file.cu:42"'),
    Subject.RANGE: ("a range", 'instructions in a range are "* range:NAME"'),
}
_SEPARATORS = re.compile(r"[,;/+]|(?<!:):(?!:)|(?<=\s)(?:or|and)(?=\s)")
"""What other languages have between several patterns."""
_SOURCE_ENDINGS = frozenset({"c", "cc", "cpp", "cu", "cuh", "cxx", "h", "hpp", "inl", "py"})
"""How the names of source files end, which look like opcodes."""
_FLOW = {subject.value: subject for subject in FLOW_SUBJECTS}
OTHER_PLACES = {
    "loop": "loop-head", "loops": "loop-head", "loophead": "loop-head", "loop_head": "loop-head", "header": "loop-head",
    "entry": "kernel", "prologue": "kernel", "epilogue": "kernel",
    "backedge": "back-edge", "back_edge": "back-edge", "latch": "back-edge", "bb": "block", "basicblock": "block",
}  # fmt: skip
"""Names that places in the flow graph may go by, in lower case → what they are called here."""


_SIDES = frozenset({"before", "after", "start", "end", "begin", "entry", "exit", "enter", "return", "pre", "post"})
"""What others write after a pattern for the side of the instruction that a probe runs on."""
_SPACES = frozenset({"const", "global", "local", "shared"})
"""Words that are no instructions, but what some of them access."""
_STATEMENTS = frozenset({"def", "for", "if", "while", "with"})
"""Words with which a statement begins, and no position."""
_NO_FILES = frozenset({"line", "lines", "l", "loc", "ptx", "source", "src"})
"""What others write before a number of a line, and is the name of no file."""
_BPFTRACE = {
    "begin": 'there is no BEGIN: maps are empty at first; "kernel" is where each thread begins',
    "end": "there is no END: results are printed when COMMAND ends; a clause with elapsed runs where a thread ends",
    "interval": "write it with a time, as in interval:1s { print }",
}  # fmt: skip
"""Probes of bpftrace, in lower case → what is here in their place."""


class _Word(NamedTuple):
    """A word and the offset of its first character in the position."""

    start: int
    text: str


class _SyntaxError(Exception):
    """A fault at an offset of the position; ``parse_tracepoint`` catches it."""

    def __init__(self, start: int, message: str, hint: str = "") -> None:
        """Make the error of a faulty tracepoint. start: offset in its text. hint: what to write instead, "" without
        one."""
        super().__init__(message)
        self.fault = Fault(start, "position", message, hint)


def parse_tracepoint(text: str, words: Words) -> tuple[Tracepoint | None, list[Fault]]:
    """Parse a ``position``: return the tracepoint, or None and all faults, at offsets of the text.

    words: of the target that it is for.
    """
    faults: list[Fault] = []
    patterns: dict[Pattern, None] = {}  # as a set that keeps its order
    if is_condition(text):
        return _condition(text, words)
    pieces = text.split("|")
    if len(pieces) > MAX_ALTERNATIVES:
        message = f"position has {len(pieces)} alternatives, more than {MAX_ALTERNATIVES}"
        return None, [Fault(0, "position", message, 'a class such as "memory" stands for many instructions')]
    start = 0  # of the piece in the text
    for piece in pieces:
        try:
            pattern = _alternative(text, start, start + len(piece), words)
            if pattern in patterns:
                indent = len(piece) - len(piece.lstrip())
                raise _SyntaxError(start + indent, f"'{piece.strip()}' stands there twice", "once is enough")
            patterns[pattern] = None
        except _SyntaxError as error:
            joined = _joined(piece, words)
            faults.append(error.fault._replace(hint=joined) if joined else error.fault)
        start += len(piece) + 1  # and the "|"
    return (None, faults) if faults else (Tracepoint(text, tuple(patterns)), [])


def _condition(text: str, words: Words) -> tuple[Tracepoint | None, list[Fault]]:
    """Parse a position with ``&``, ``!`` and parentheses; return the tracepoint, or None and all faults."""
    faults: dict[int, Fault] = {}  # by offset: a word may be in several alternatives
    patterns: dict[Pattern, None] = {}
    try:
        for literals in alternatives(text):
            try:
                patterns[_conjunction(literals, words)] = None
            except _SyntaxError as error:
                faults.setdefault(error.fault.start, error.fault)
    except ConditionError as error:
        return None, [Fault(error.start, "position", error.message, error.hint)]
    ordered = [faults[start] for start in sorted(faults)]
    return (None, ordered) if ordered else (Tracepoint(text, tuple(patterns)), [])


def _conjunction(literals: Sequence[Literal], words: Words) -> Pattern:
    """Return the pattern for words that all have to hold: the first one that names instructions, narrowed by the
    others.

    literals: the words, some with a ``!`` before them. Raises _SyntaxError.
    """
    if len(literals) > MAX_WORDS:
        message = f"more than {MAX_WORDS} words in one pattern"
        raise _SyntaxError(literals[MAX_WORDS].start, message, 'join patterns by "|"')
    # What it matches, by its first word that names instructions: an opcode, a class or "*".
    subject = next((literal for literal in literals if not literal.is_negated and not _is_place(literal.text)), None)
    if subject is None:
        if len(literals) == 1 and not literals[0].is_negated and literals[0].text != _PREDICATED:
            return _subject(_Word(literals[0].start, literals[0].text), words)
        hint = 'name instructions, too, as in "* & !func:f"'
        raise _SyntaxError(literals[0].start, f"'{literals[0].text}' does not say which instructions", hint)
    pattern = _subject(_Word(subject.start, subject.text), words)
    if pattern.subject in _NOT_NARROWABLE and len(literals) > 1:
        other = next(literal for literal in literals if literal is not subject)
        what, hint = _NOT_NARROWABLE[pattern.subject]
        raise _SyntaxError(other.start, f"'{other.text}' with {what}, which cannot be narrowed", hint)
    for literal in literals:
        if literal is not subject:
            _check_may_narrow(pattern, _Word(literal.start, literal.text), words)
            pattern = _restricted(pattern, literal, words)
    return pattern


def _is_place(word: str) -> bool:
    """Return whether a word of a tracepoint restricts where instructions are, or their predicate, rather than name
    them."""
    return word == _PREDICATED or word.startswith((_FUNCTION, _RANGE)) or bool(_LINES.fullmatch(word))


def _check_may_narrow(pattern: Pattern, word: _Word, words: Words) -> None:
    """Raise _SyntaxError for a word after a place in the flow graph that does not say where it is."""
    if pattern.is_place and (word.text == _PREDICATED or not _is_place(word.text)):
        _lines(word, words)  # raises for what was meant as lines
        hint = 'a place is narrowed by "func:NAME", "file.cu:42" and "range:NAME"'
        message = f"'{word.text}' does not narrow '{pattern.subject.value}', which is no instruction"
        raise _SyntaxError(word.start, message, hint)


def _without_place(pattern: Pattern, word: _Word) -> Pattern:
    """Return a pattern with its restriction of a word's kind removed: that to a predicate, a function or lines."""
    if word.text == _PREDICATED:
        return replace(pattern, predicated=False)
    return replace(pattern, function="") if word.text.startswith(_FUNCTION) else replace(pattern, lines=None)


def _restricted(pattern: Pattern, literal: Literal, words: Words) -> Pattern:
    """Return a pattern with the condition that a word of the same alternative adds. Raises _SyntaxError."""
    word = _Word(literal.start, literal.text)
    if word.text.startswith((_CALL, _RANGE)):
        return _named(pattern, word, is_negated=literal.is_negated)
    if _is_place(word.text):
        if not literal.is_negated:
            narrowed = _narrowed(_without_place(pattern, word), word, words)
            # Written twice it means the same, as in "(load & @) & @".
            if pattern in {narrowed, _without_place(pattern, word)}:
                return narrowed
            return _narrowed(pattern, word, words)
        if word.text == _PREDICATED:
            return replace(pattern, unpredicated=True)
        if word.text.startswith(_FUNCTION):
            return replace(pattern, not_functions=(*pattern.not_functions, _function(word)))
        lines = _lines(word, words)
        return replace(pattern, not_lines=(*pattern.not_lines, lines)) if lines else pattern
    # Raises for a word that is no opcode and no class. Modifiers are written like opcodes of one part; some with ::
    # or capitals.
    if word.text in _FLOW:
        message = f"'{word.text}' is a place between instructions, and matches none"
        raise _SyntaxError(word.start, message, 'join patterns by "|"')
    if not _MODIFIER.fullmatch(word.text):
        other = _subject(word, words)
        if not other.has_operands:
            what, hint = _NOT_NARROWABLE[other.subject]
            raise _SyntaxError(word.start, f"'{word.text}' is {what}, and matches no instructions", hint)
        if other.subject is Subject.ANY:
            if literal.is_negated:
                raise _SyntaxError(word.start, "'!*' excludes every instruction", "leave it out")
            return pattern
    elif word.text == "kernel":
        what, hint = _NOT_NARROWABLE[Subject.KERNEL]
        raise _SyntaxError(word.start, f"'kernel' is {what}, and matches no instructions", hint)
    parts = tuple(word.text.split("."))
    if not literal.is_negated:
        return replace(pattern, requires=(*pattern.requires, parts))
    if len(parts) == 1 and word.text not in words.meanings:
        return replace(pattern, without=(*pattern.without, word.text))
    return replace(pattern, excludes=(*pattern.excludes, parts))


def _named(pattern: Pattern, word: _Word, *, is_negated: bool = False) -> Pattern:
    """Return a pattern with the condition of a word ``call:NAME`` or ``range:NAME``, or its opposite."""
    # Written twice it means the same.
    if word.text.startswith(_CALL):
        callee = _function(word, _CALL)
        if is_negated:
            return replace(pattern, not_callees=tuple(dict.fromkeys((*pattern.not_callees, callee))))
        return replace(pattern, callees=tuple(dict.fromkeys((*pattern.callees, callee))))
    name = _range(word)
    if is_negated:
        return replace(pattern, not_ranges=tuple(dict.fromkeys((*pattern.not_ranges, name))))
    return replace(pattern, ranges=tuple(dict.fromkeys((*pattern.ranges, name))))


def _alternative(text: str, start: int, end: int, target: Words) -> Pattern:
    """Parse one alternative of a position, ``text[start:end]``. Raises _SyntaxError for its first fault."""
    words = list(_words(text, start, end))
    if not words:
        message = "position names nothing here" if text.strip() else "position is empty"
        raise _SyntaxError(start, message, 'one "|" joins patterns' if "||" in text else _examples(target))
    if len(words) > MAX_WORDS:
        message = f"more than {MAX_WORDS} words in one pattern"
        first_too_many = words[MAX_WORDS]
        raise _SyntaxError(first_too_many.start, message, 'join patterns by "|"')
    if words[0].text in _STATEMENTS:
        hint = f"a position comes first, and statements stand in the probe: {target.load}"
        raise _SyntaxError(words[0].start, f"'{words[0].text}' begins a statement", hint)
    pattern = _subject(words[0], target)
    for word in words[1:]:
        _check_may_narrow(pattern, word, target)
        if pattern.subject in _NOT_NARROWABLE:
            subject, hint = _NOT_NARROWABLE[pattern.subject]
            raise _SyntaxError(word.start, f"'{word.text}' after {subject}, which cannot be narrowed", hint)
        pattern = _narrowed(pattern, word, target)
    return pattern


def _words(text: str, start: int, end: int) -> Iterator[_Word]:
    """Yield the words of ``text[start:end]``, separated by spaces; the name of a function may have spaces, too."""
    tokens = [_Word(match.start(), match.group()) for match in _WORD.finditer(text, start, end)]
    index = 0
    while index < len(tokens):
        word = tokens[index]
        index += 1
        if word.text.startswith((_FUNCTION, _CALL)):
            # All tokens up to the next word belong to the name.
            while index < len(tokens) and not _ends_name(tokens[index].text):
                index += 1
            last = tokens[index - 1]
            word = _Word(word.start, text[word.start : last.start + len(last.text)])
        yield word


def _ends_name(token: str) -> bool:
    """Return whether a token begins the next word, and so is no part of a function's name before it."""
    begins = token.startswith(("!", _FUNCTION, _CALL, _RANGE))
    return begins or token == _PREDICATED or bool(_LINES.fullmatch(token))


def _subject(word: _Word, words: Words) -> Pattern:
    """Parse the first word of an alternative of a position, which says what the pattern matches. Raises _SyntaxError.
    """
    if word.text == "kernel":
        return Pattern(Subject.KERNEL)
    if word.text == "*":
        return Pattern(Subject.ANY)
    if word.text in CLASSES:
        return Pattern(Subject.CLASS, group=word.text)
    if word.text in _FLOW:
        return Pattern(_FLOW[word.text])
    if word.text.startswith(_FUNCTION):
        return Pattern(Subject.FUNCTION, function=_function(word))
    if word.text.startswith(_CALL) and not word.text.startswith(f"{_CALL}:"):
        return Pattern(Subject.OPCODE, opcode=(words.call,), callees=(_function(word, _CALL),))
    if word.text.startswith(_RANGE) and not word.text.startswith(f"{_RANGE}:"):
        return Pattern(Subject.RANGE, ranges=(_range(word),))
    lines = _lines(word, words)
    if lines:
        return Pattern(Subject.LINE, lines=lines)
    if word.text in _SPACES:
        raise _SyntaxError(word.start, f"'{word.text}' is no instruction", f'write "memory & {word.text}"')
    # _OPCODE allows any colons; those of an opcode are pairs.
    has_single_colon = re.search(r"(?<!:):(?!:)|:::", word.text)
    if _OPCODE.fullmatch(word.text) and not has_single_colon:
        return Pattern(Subject.OPCODE, opcode=tuple(word.text.split(".")))
    raise _SyntaxError(word.start, f"'{word.text}' is no pattern", _hint(word.text, words))


def _narrowed(pattern: Pattern, word: _Word, words: Words) -> Pattern:
    """Return a pattern with the condition that a further word adds, such as ``!tensor`` or ``func:NAME``."""
    exclusion = _EXCLUSION.fullmatch(word.text)
    if exclusion:
        if exclusion.group(1) in words.meanings:
            message = f"'!{exclusion.group(1)}' excludes nothing: it is no modifier"
            raise _SyntaxError(word.start, message, words.meanings[exclusion.group(1)])
        return replace(pattern, without=(*pattern.without, exclusion.group(1)))
    if word.text == _PREDICATED:
        if pattern.predicated:
            raise _SyntaxError(word.start, "a second '@'", "once is enough")
        return replace(pattern, predicated=True)
    if word.text.startswith(_FUNCTION):
        if pattern.function:
            raise _SyntaxError(word.start, "a second function", 'join patterns by "|"')
        return replace(pattern, function=_function(word))
    if word.text.startswith((_CALL, _RANGE)):
        return _named(pattern, word)
    lines = _lines(word, words)
    if lines:
        if pattern.lines:
            raise _SyntaxError(word.start, "a second source line", 'join patterns by "|"')
        return replace(pattern, lines=lines)
    if word.text.startswith("!"):
        raise _SyntaxError(word.start, f"'{word.text}' excludes no single modifier", f'write "{words.exclusions}"')
    # The operands of an instruction.
    if pattern.opcode and word.text[0] in "%[{":
        hint = f'a pattern is the opcode alone: "{".".join(pattern.opcode)}"'
        raise _SyntaxError(word.start, f"'{word.text}' does not narrow a pattern", hint)
    hint = 'join patterns by "|"; one may be followed by "!modifier", "@", "func:NAME", "range:NAME" or "file.cu:42"'
    raise _SyntaxError(word.start, f"'{word.text}' does not narrow a pattern", hint)


def _function(word: _Word, prefix: str = _FUNCTION) -> str:
    """Return the NAME in ``func:NAME``, or after another prefix. Raises _SyntaxError if there is none."""
    name = word.text[len(prefix) :].strip()
    if not name:
        raise _SyntaxError(word.start, f"{prefix} without a name", f'write "{prefix}NAME"')
    return name


def _range(word: _Word) -> str:
    """Return the NAME in ``range:NAME``. Raises _SyntaxError if there is none."""
    name = word.text[len(_RANGE) :]
    if not _RANGE_NAME.fullmatch(name):
        message = f"'{word.text}' names no range" if name else "range: without a name"
        raise _SyntaxError(word.start, message, 'write "range:NAME", with the NAME of NEUTRINO_BEGIN(NAME)')
    return name


def _lines(word: _Word, words: Words) -> SourceLines | None:
    """Parse ``file.cu:42`` or ``file.cu:42-50``; return None for a word that is no source line."""
    match = _LINES.fullmatch(word.text)
    if not match:
        stem, colon, suffix = word.text.partition(":")
        # A file name with an invalid line number, not an opcode with a pair of colons.
        if colon and "." in stem and not suffix.startswith(":"):
            if _joined(word.text, words):
                raise _SyntaxError(word.start, f"'{word.text}' is no pattern")
            hint = 'write "file.cu:42" or "file.cu:42-50"'
            raise _SyntaxError(word.start, f"'{word.text}' names no source line", hint)
        return None
    if match["file"].lower() in _NO_FILES:
        message = f"'{word.text}' does not say of which file"
        raise _SyntaxError(word.start, message, f'write "FILE:{match["first"]}", as in "saxpy.cu:{match["first"]}"')
    first_start = word.start + match.start("first")
    first = _line_number(first_start, match["first"])
    # A single line is a range of one.
    last = _line_number(word.start + match.start("last"), match["last"]) if match["last"] else first
    if first > last:
        raise _SyntaxError(first_start, f"lines {first} to {last} are none", f"write {last}-{first}")
    return SourceLines(match["file"], first, last)


def _line_number(start: int, digits: str) -> int:
    """Parse a line number at an offset of the position. Raises _SyntaxError unless it is from 1 to ``MAX_LINE``."""
    # Python refuses to convert thousands of digits.
    if len(digits) > len(str(MAX_LINE)) or not 0 < int(digits) <= MAX_LINE:
        raise _SyntaxError(start, f"line {digits[:20]} is in no file", f"lines count from 1 to {MAX_LINE}")
    return int(digits)


def _joined(piece: str, target: Words) -> str:
    """Say how several patterns are joined, for a text that has them with something else between them; else ""."""
    kind, _, named = piece.strip().partition(":")
    if kind == "kernel" and named.strip().lower() in _SIDES:
        return '"kernel" is where threads begin; with elapsed, or after=True, the probe runs where they end'
    if kind in ("kernel", "kprobe", "uprobe") and re.fullmatch(r"\w+", named) and named not in {*CLASSES, *_FLOW}:
        return f'"kernel" alone is where threads begin; the option -k {named} selects kernels, func:{named} functions'
    if named.strip().lower() in _SIDES and _begins_a_pattern(kind, target):
        return f'"{kind}" is the position; @probe(pos="{kind}", …) has the side, as after=True, and a TOML file a key'
    parts = [part.strip() for part in _SEPARATORS.split(piece) if part.strip()]
    if len(parts) == 1 and len(words := piece.split()) > 1:
        # With nothing but spaces: a modifier after an opcode is none.
        is_plain = all("." in word or word in CLASSES or word in _FLOW or word == "kernel" for word in words)
        parts = words if is_plain else []
    if len(parts) < 2 or not all(_begins_a_pattern(part, target) for part in parts):
        return ""
    return f'join patterns by "|": "{" | ".join(parts)}"'


def _begins_a_pattern(word: str, words: Words) -> bool:
    """Return whether a word is a class, a place, or looks like an opcode: a file and its line are none."""
    name, _, ending = word.partition(".")
    if word in CLASSES or word in _FLOW or word in {"kernel", "*"}:
        return True
    is_file = ending in _SOURCE_ENDINGS or ending == words.file_ending
    return _OPCODE.fullmatch(word) is not None and not name.isdigit() and not is_file


def _hint(word: str, words: Words) -> str:
    """Return what may be meant by a word that is no pattern, for a hint."""
    if "," in word:
        return 'join patterns by "|"'
    if word.endswith(";"):
        return "a pattern has no ';' at its end"
    name, _, _ = word.lower().partition(".")
    if name in words.other_names:
        return f'{words.language} has it as "{words.other_names[name]}"'
    if word.lower() in OTHER_PLACES:
        return f'did you mean "{OTHER_PLACES[word.lower()]}"?'
    if word.lower() in _BPFTRACE:
        return _BPFTRACE[word.lower()]
    if "/" in word and not word.startswith("/"):
        # Of one-liners: a position may have a slash, as a file's.
        return f"a filter has a space before it: {word.partition('/')[0]} /…/"
    opcode = word.rstrip(".*")
    if word.endswith("*") and _OPCODE.fullmatch(opcode):
        return f'"{opcode}" finds it with all further modifiers'
    if _OPCODE.fullmatch(word.lower()):
        return f'{words.language} writes opcodes in lower case: "{word.lower()}"'
    if word.startswith("!"):
        return f'write what to match first: "{words.narrowed}", or "* {words.exclusions.partition(" ")[0]}"'
    guess = nearest(word, (*CLASSES, *_FLOW, "kernel"))
    return f'did you mean "{guess}"?' if guess else _examples(words)


def _examples(words: Words) -> str:
    """Return examples of what a tracepoint's pattern may be, as a hint."""
    return (
        f'write "kernel", an opcode such as "{words.load}", a class such as "memory", "func:NAME", "file.cu:42" or '
        '"loop-head"'
    )
