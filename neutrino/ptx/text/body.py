"""The body of one function as a stream of statements, decoded once: all that reads a body reads it here.

Statements tile the body: each goes from the end of the one before to its semicolon, so that the white space, labels
and braces before it are its own. What a statement starts with is found for all of them at once; the rest of one is
decoded when it is first asked for, and kept.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, KeysView, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import NamedTuple

from neutrino.lazy import lazy
from neutrino.ptx.isa.instruction import (
    KNOWN_MNEMONICS,
    Instruction,
    Mnemonic,
    guard_register,
    mnemonic,
    split_operands,
)
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.module import register_parameters

_LABEL = r"[A-Za-z_$%][\w$]*\s*:(?!:)"
# The braces and labels that a statement begins with; its predicate; its opcode, which operands or the end follow.
_HEAD = re.compile(
    rf"(?P<opening>(?:\s*(?:[{{}}]|{_LABEL}))*)\s*"
    r"(?:(?P<guard>@\s*!?\s*[A-Za-z_$%][\w$]*\s+)?"
    r"(?P<opcode>[a-z]\w*(?:\.[\w:]+)*)(?=\s*[;\[{(%]|\s+[^\s,}:]))?",
    re.ASCII,
)
# The same, of most statements that begin with something else than an opcode: braces, then one label at most, then an
# opcode or the dot of a directive.
_COMMON_HEAD = re.compile(
    r"\s*((?:[{}]\s*)*)(?:([A-Za-z_$%][\w$]*):(?!:)\s*)?"
    r"(?:(@!?[A-Za-z_$%][\w$]*[ \t]+)?([a-z][\w.]*(?:::[\w.]+)*)(?=[ \t;])|(\.))",
    re.ASCII,
)
# One brace, or one label (group 1: its name), of the "opening" of _HEAD.
_MARK = re.compile(r"[{}]|([A-Za-z_$%][\w$]*)\s*:", re.ASCII)
_WHITE_SPACE = " \t\n\r\v\f"
# The declarations of one name that are looked through one by one.
_FEW_DECLARATIONS = 8
# In place of the words of a piece that has none.
_NO_WORDS = ("",)
# What precedes the dot of a declaration's type.
_DECLARING = (".reg", " .param", "\t.param", "\n.param")
# The first words of the declarations that a body begins with.
_DECLARES = (".reg", ".shared", ".local", ".param", ".pragma")
# A declaration: its state space, and the rest up to an initial value or the semicolon.
_DECLARATION = re.compile(r"\.(?P<space>reg|shared|local|param|global|const)\b(?P<rest>[^;{}]*)(?=[;{=])", re.ASCII)
# One name of that rest, with the count of "%r<5>" and the extents of an array.
_DECLARED = re.compile(
    r"(?:^|,)\s*(?P<name>[A-Za-z_$%][\w$]*)\s*(?:<\s*(?P<count>\d{1,9})\s*>)?(?:\[[^\]]*\]\s*)*\s*(?=,|=|\Z)",
    re.ASCII,
)
# The words before the names of a declaration (".align 8 .v2 .b32"), and the last of these.
_TYPE_WORDS = re.compile(r"(?:\s*\.(?:align\s+\d+|[a-z]\w*))*\s*", re.ASCII)
_LAST_WORD = re.compile(r"\.([a-z]\w*)\s*\Z", re.ASCII)
# Names in operand position follow an opening bracket or a comma; the first operand of a call has neither. The braces
# of vectors are brackets, those around statements are not.
_NAMED = re.compile(r"[\[,(]\s*([A-Za-z_$][\w$]*)", re.ASCII)
_NAMED_AFTER_BRACE = re.compile(r"\{\s*([A-Za-z_$][\w$]*)", re.ASCII)
_OPENS_OPERAND = ("[", ",", "(", "{")
# A call up to the name of what it calls (group 1), which may follow results in parentheses.
_CALLEE = re.compile(r"call(?:\.\w+)*(?:\s+|\s*\([^()]*\)\s*,\s*)(?!\()([A-Za-z_$%][\w$]*)", re.ASCII)
# What statements that belong to a call begin with: before it, and all but the call itself in its block of braces.
_TO_CALL = (".param", "st.param")
_AROUND_CALL = (".param", ".reg", "st.param", "ld.param")
_DIGITS = "0123456789"
_MOST_DIGITS = 9
"""Of the number in a register's name."""


@dataclass(frozen=True)
class Declaration:
    """``.reg .b32 %r<5>``: space ``reg``, type ``b32``, name ``%r``, count 5 (None without one).

    start: where it takes effect; end: where its scope ends, in the module's text. is_vector: as ``.reg .v4 .f32 %v``.
    """

    name: str
    space: str
    type: str
    count: int | None
    start: int
    end: int
    is_vector: bool = False


class Label(NamedTuple):
    """A label. start, colon: positions of its name and its colon in the module's text; before: the index of the
    statement that it stands before."""

    name: str
    start: int
    colon: int
    before: int


class Statement:
    """One statement: an instruction, a directive or an empty statement.

    index: of the statement among those of the body. start: after its labels and braces; position: of its opcode, after
    the predicate; end: after its semicolon. guard: the predicate as written, with the space after it, None without one.
    mnemonic: the decoded opcode, None of what is no instruction. Positions are in the module's text.
    """

    __slots__ = ("_code", "_instruction", "end", "guard", "index", "mnemonic", "position", "start")

    def __init__(
        self, code: str, index: int, start: int, end: int, guard: str | None, decoded: Mnemonic | None
    ) -> None:
        """Set up one statement of a body. guard: its predicate as written; decoded: its opcode. See the class."""
        self._code = code
        self.index = index
        self.start = start
        self.position = start if guard is None else start + len(guard)
        self.end = end
        self.guard = guard
        self.mnemonic = decoded
        self._instruction: Instruction | None = None

    @property
    def opcode(self) -> str:
        """The opcode as written, "" if the statement is no instruction."""
        return self.mnemonic.text if self.mnemonic is not None else ""

    @property
    def word(self) -> str:
        """The first part of the opcode, as ``ld`` of ``ld.global.u32``; "" if the statement is no instruction."""
        return self.mnemonic.word if self.mnemonic is not None else ""

    @property
    def text(self) -> str:
        """The statement as written, from its predicate on, without its semicolon."""
        return self._code[self.start : self.end - 1]

    @property
    def instruction(self) -> Instruction | None:
        """The instruction with its operands, None if the statement is none. Decoded when first asked for."""
        if self._instruction is None and self.mnemonic is not None:
            predicate, negated = None, False
            if self.guard is not None:
                predicate, negated = guard_register(self.guard), "!" in self.guard
            operands = split_operands(self.operand_text)
            self._instruction = Instruction(predicate, negated, self.mnemonic.text, tuple(operands))
        return self._instruction

    @property
    def operand_text(self) -> str:
        """The text of an instruction after its opcode."""
        return self._code[self.position + len(self.opcode) : self.end - 1]


class Body:
    """A function's body, as statements that are addressed by their index.

    code: the module's text with comments and strings blanked; start, end: positions of the body in it, from the opening
    brace to after the closing one. head: start and end of the header of a function that takes or returns registers,
    which are declared there; None for a kernel.

    ends: the position where each statement ends; mnemonics: the decoded opcode of each, None if it is no instruction.
    What is left after the last semicolon counts as a statement, too. opcodes: the different ones of the body.
    controls: indices of the instructions after which control may go elsewhere than to the next one; calls: indices of
    the calls; leaving: of ``ret`` and ``exit``.
    """

    def __init__(self, code: str, start: int, end: int, head: tuple[int, int] | None = None) -> None:
        """Split a function's text into statements. Parameters: see the class."""
        self.code = code
        self.start = start
        self.end = end
        self._head = head
        # By the statement's index: its start where only white space does not separate it from the end of the statement
        # before, and its predicate if it has one.
        self._starts: dict[int, int] = {}
        self._guards: dict[int, str] = {}
        # Indices of the statements that begin with a dot.
        self._directives: list[int] = []
        self._labels: list[Label] = []
        # Positions of the braces around statements.
        self._braces: list[int] = []
        # The statements that were asked for, by index.
        self._statements: dict[int, Statement] = {}
        # Declarations of names that have many, by the name, then by where their scope ends.
        self._declarations_by_scope: dict[str, dict[int, list[Declaration]]] = {}
        self.ends: list[int] = []
        self.mnemonics: list[Mnemonic | None] = []
        self._split()
        self.opcodes = frozenset(decoded for decoded in set(self.mnemonics) if decoded is not None)
        self.controls = self.where({decoded for decoded in self.opcodes if decoded.flow is not None})
        self.calls = self._controls_with(Flow.CALL)
        self.leaving = self._controls_with(Flow.LEAVE)

    def _controls_with(self, flow: Flow) -> list[int]:
        """Return the indices of the instructions with this control flow; ``controls`` must be set."""
        mnemonics = self.mnemonics
        return [index for index in self.controls if (decoded := mnemonics[index]) is not None and decoded.flow is flow]

    def _split(self) -> None:
        """Split the body at its semicolons, and find the labels, braces, predicate and opcode of each statement.

        Bodies are long, so each statement is read in the quickest of three ways that can read it: by its first word, if
        that is an opcode that some text had before; by ``_COMMON_HEAD``; and else by ``_decode``.
        """
        code, start = self.code, self.start
        pieces = code[start : self.end].split(";")
        # Each end is the number of characters before it, and a semicolon for each statement.
        lengths = accumulate(map(len, pieces), initial=start)
        self.ends = list(map(add, lengths, range(len(pieces) + 1)))[1:]
        # No semicolon follows the last piece.
        self.ends[-1] = self.end
        known = KNOWN_MNEMONICS.get
        has_spaced_label = self._has_spaced_label()
        if has_spaced_label:
            # What looks like an opcode may be a label.
            self.mnemonics = [None] * len(pieces)
        else:
            # Most statements begin with an opcode that is known by now.
            self.mnemonics = [known((piece.split(None, 1) or _NO_WORDS)[0]) for piece in pieces]
        # What no semicolon ends is no instruction, whatever it begins with.
        self.mnemonics[-1] = None
        ends, mnemonics = self.ends, self.mnemonics
        for index in [index for index, decoded in enumerate(mnemonics) if decoded is None]:
            begin, end = ends[index - 1] if index else start, ends[index]
            head = None if has_spaced_label or index == len(pieces) - 1 else _COMMON_HEAD.match(code, begin, end)
            if head is None:
                self._decode(index, begin, end)
                continue
            # The group numbers of _COMMON_HEAD: 1 braces, 2 label, 3 guard, 4 opcode, 5 the dot of a directive.
            braces, label, guard, opcode, _ = head.groups()
            if opcode is not None:
                decoded = known(opcode)
                if decoded is None:
                    self._decode(index, begin, end)
                    continue
                mnemonics[index] = decoded
            if braces:
                # The group begins with a brace, and is mostly that one alone.
                first_brace = head.start(1)
                self._braces.append(first_brace)
                if len(braces := braces.rstrip()) > 1:
                    self._braces += [first_brace + offset for offset in range(1, len(braces)) if braces[offset] in "{}"]
            if label is not None:
                self._labels.append(Label(label, head.start(2), head.end(2), index))
            if opcode is None:
                self._starts[index] = head.start(5)
                self._directives.append(index)
            elif guard is None:
                self._starts[index] = head.start(4)
            else:
                self._guards[index] = guard
                self._starts[index] = head.start(3)

    def _has_spaced_label(self) -> bool:
        """Whether some label has white space before its colon (``done :``), so that it looks like an opcode."""
        colon = self.code.find(":", self.start, self.end)
        while colon >= 0:
            if self.code[colon - 1] in _WHITE_SPACE:
                return True
            colon = self.code.find(":", colon + 1, self.end)
        return False

    def _decode(self, index: int, begin: int, end: int) -> None:
        """Note the labels, braces, predicate and opcode of a statement of any form: the slow way of ``_split``.

        index: of the statement; begin, end: its positions in the module's text, labels and braces included.
        """
        head = _HEAD.match(self.code, begin, end)
        if head is None:
            return
        opening, guard, opcode = head.groups()
        if opening:
            # Each mark is a brace, or a label with its colon. The group begins where the statement does.
            for mark in _MARK.finditer(opening):
                position, label = begin + mark.start(), mark[1]
                if label is None:
                    self._braces.append(position)
                else:
                    self._labels.append(Label(label, position, begin + mark.end() - 1, index))
        if opcode is not None:
            self.mnemonics[index] = mnemonic(opcode)
            self._starts[index] = head.start("opcode")
            if guard is not None:
                self._guards[index] = guard
                self._starts[index] = head.start("guard")
            return
        self._starts[index] = head.end()
        if self.code.startswith(".", head.end(), end):
            self._directives.append(index)

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[Statement]:
        """Return all statements, in text order."""
        return map(self.statement, range(len(self.ends)))

    def statement(self, index: int) -> Statement:
        """Return the statement with an index; the same object each time."""
        statement = self._statements.get(index)
        if statement is None:
            end = self.ends[index]
            start = self._starts.get(index)
            if start is None:
                # `_split` notes no start where only white space stands before the opcode.
                start = self.ends[index - 1] if index else self.start
                piece = self.code[start:end]
                start = end - len(piece.lstrip())
            statement = self._statements[index] = Statement(
                self.code, index, start, end, self._guards.get(index), self.mnemonics[index]
            )
        return statement

    def first_word(self, index: int) -> str:
        """Return the first operand of an instruction, mostly the register that it writes, if that is easily read; else
        "".
        """
        code, start = self.code, self.ends[index - 1] if index else self.start
        before, comma, _ = code[start : self.ends[index]].partition(",")
        if not comma or "{" in before or "[" in before or "(" in before:
            return ""
        word = before.rsplit(None, 1)[-1]
        name = word[1:] if word[0] == "%" else word
        return word if name.isascii() and name.isidentifier() else ""

    def index_at(self, position: int) -> int:
        """The index of the statement that a position of the module's text lies in."""
        return min(bisect_right(self.ends, position), len(self.ends) - 1)

    def is_guarded(self, index: int) -> bool:
        """Whether the statement with an index has a predicate."""
        return index in self._guards

    def where(self, chosen: Set[Mnemonic]) -> list[int]:
        """The indices of the body's instructions with one of these opcodes, in text order."""
        return [index for index, decoded in enumerate(self.mnemonics) if decoded in chosen] if chosen else []

    def multiline(self, indices: Iterable[int]) -> list[int]:
        """Return those of some statements, by index, that are written over more than one line."""
        code, start, ends = self.code, self.start, self.ends
        return [index for index in indices if "\n" in code[ends[index - 1] if index else start : ends[index]].strip()]

    @lazy
    def entry(self) -> int:
        """The position after the body's opening declarations and before all its instructions."""
        code, at = self.code, self.start + 1  # after the opening brace
        for number, index in enumerate(self._directives):
            start, end = self._starts[index], self.ends[index]
            # As long as the n-th directive is the n-th statement, no other one came before it.
            if number != index or code[at:start].strip() or not code.endswith(";", at, end):
                break
            if not _begins(code, start, _DECLARES) or _has_brace(code, start, end):
                break
            at = end
        return at

    @property
    def guarded(self) -> KeysView[int]:
        """The indices of the statements that have a predicate."""
        return self._guards.keys()

    @property
    def labels(self) -> list[Label]:
        """The labels in text order."""
        return self._labels

    @property
    def spaced_dots(self) -> Iterator[int]:
        """Positions of dots between white space and a letter, to find opcodes with white space in them (``ld .f32``).

        ptxas accepts these, but they are decoded wrongly here. Dots of most directives are left out, but not all:
        callers check what the statement is.
        """
        code = self.code
        # The directives at the body's beginning, which are most of them, are skipped: as long as the n-th directive is
        # the n-th statement, no other statement came before it.
        leading = next(
            (number for number, index in enumerate(self._directives) if number != index), len(self._directives)
        )
        start = self.ends[leading - 1] if leading else self.start
        for space in _WHITE_SPACE:
            if code.find(space, start, self.end) < 0:
                continue
            at = code.find(f"{space}.", start, self.end)
            while at >= 0:
                # In a declaration (".reg .b32", ".param .b32") the dot after a space is usual.
                if code[at + 2].isalpha() and not (code.endswith(_DECLARING, 0, at) or code.startswith(".reg", at + 1)):
                    yield at + 1
                at = code.find(f"{space}.", at + 1, self.end)

    @property
    def directives(self) -> Iterator[Statement]:
        """The body's statements that are directives: begin with a dot."""
        return map(self.statement, self._directives)

    @property
    def directive_spans(self) -> Iterator[tuple[int, int]]:
        """Start and end of each statement that begins with a dot, in the module's text."""
        starts, ends = self._starts, self.ends
        return ((starts[index], ends[index]) for index in self._directives)

    def directives_with(self, *words: str) -> Iterator[Statement]:
        """The statements that begin with one of these words, each with its dot."""
        starts, starts_with = self._starts, self.code.startswith
        return (self.statement(index) for index in self._directives if starts_with(words, starts[index]))

    @lazy
    def scopes(self) -> list[tuple[int, int]]:
        """Every pair of braces around statements as (opening, closing position), sorted; the body's own comes first."""
        closed = []
        open_braces: list[int] = []
        for position in self._braces:
            if self.code[position] == "{":
                open_braces.append(position)
            elif open_braces:
                closed.append((open_braces.pop(), position))
        # Braces that nothing closes hold the rest: such text is for ptxas to refuse.
        return sorted([*closed, *((opening, self.end) for opening in open_braces)])

    def enclosing(self, position: int) -> tuple[int, int]:
        """The innermost pair of braces around a position of the module's text, as (opening, closing position)."""
        return self.scopes[self._enclosing_index(position)]

    def _enclosing_index(self, position: int) -> int:
        """The index in ``scopes`` of the innermost pair of braces around a position of the module's text."""
        # The last scope that opens before the position; then outwards while the scope closes before it. (-1 is less
        # than any closing position: a scope that opens at the position itself does not count.)
        at = bisect_right(self.scopes, (position, -1)) - 1
        while at > 0 and self.scopes[at][1] < position:
            at = self._outer_scopes[at]
        return max(at, 0)

    @lazy
    def _outer_scopes(self) -> list[int]:
        """By the index of each scope, that of the one around it; 0 for the body's own, and for what nothing encloses.

        A body may have as many blocks as statements, one after the other: who goes outwards must not pass them all.
        """
        outer: list[int] = []
        around: list[int] = []
        for index, (opening, _) in enumerate(self.scopes):
            while around and self.scopes[around[-1]][1] < opening:
                around.pop()
            outer.append(around[-1] if around else 0)
            around.append(index)
        return outer

    def scopes_around(self, position: int) -> Iterator[tuple[int, int]]:
        """The pairs of braces around a position of the module's text, the innermost first, the body's own last."""
        at = self._enclosing_index(position)
        while at > 0:
            yield self.scopes[at]
            at = self._outer_scopes[at]
        yield self.scopes[0]

    @lazy
    def declarations(self) -> dict[str, list[Declaration]]:
        """What the body declares, by name, in text order; ``.reg .b32 %r<5>`` is one declaration of the name ``%r``."""
        by_name: dict[str, list[Declaration]] = {}
        # Registers that a function takes or returns are declared in its header, for the whole body.
        for name, register_type in register_parameters(self.code[slice(*self._head)]) if self._head else ():
            by_name[name] = [Declaration(name, "reg", register_type, None, self.start, self.end)]
        for statement in self.directives:
            match = _DECLARATION.match(self.code, statement.start, statement.end)
            if match is None:
                continue
            # After the space come alignment, vector and type; the last of these words is the type. Names follow it.
            words = _TYPE_WORDS.match(match["rest"])
            names_from = words.end() if words else 0
            type_word = _LAST_WORD.search(match["rest"][:names_from])
            _, scope_end = self.enclosing(match.start())
            for declared in _DECLARED.finditer(match["rest"][names_from:]):
                declaration = Declaration(
                    declared["name"],
                    match["space"],
                    type_word[1] if type_word else "",
                    int(declared["count"]) if declared["count"] else None,
                    match.start(),
                    scope_end,
                    ".v" in match["rest"][:names_from],
                )
                by_name.setdefault(declaration.name, []).append(declaration)
        return by_name

    @lazy
    def _declaring_text(self) -> str:
        """The text of the header and of all directives, in which everything that the body declares is named."""
        code = self.code
        directives = [code[start:end] for start, end in self.directive_spans]
        return "".join([code[slice(*self._head)] if self._head else "", *directives])

    def may_declare(self, name: str) -> bool:
        """False when the body declares no such name; quicker than to look it up, which reads all directives."""
        # Without its digits, since ``%r<5>`` declares ``%r0`` to ``%r4``.
        return name.rstrip("0123456789") in self._declaring_text

    def declaration(self, name: str, position: int) -> Declaration | None:
        """The declaration that a name refers to at a position of the module's text; None if the body declares none.

        Of several in scope, it is the innermost one.
        """
        single = self._in_reach(name, position)
        series: Sequence[Declaration] = ()
        number = 0
        # The name may also be one of a numbered series: ``%r3`` of ``%r<5>``.
        split = _number_from(name)
        if split < len(name):
            series, number = self._in_reach(name[:split], position), int(name[split:])
        candidates = [entry for entry in single if entry.count is None]
        candidates += [entry for entry in series if entry.count is not None and number < entry.count]
        visible = [entry for entry in candidates if entry.start <= position < entry.end]
        # Scopes nest: of those around the position the innermost begins last.
        return max(visible, key=lambda entry: entry.start, default=None)

    def _in_reach(self, name: str, position: int) -> Sequence[Declaration]:
        """All declarations of a name whose scope may hold a position, and maybe others."""
        declarations = self.declarations.get(name, ())
        if len(declarations) <= _FEW_DECLARATIONS:
            return declarations
        # Declared anew in block after block, as the predicates of waits for barriers are.
        by_scope = self._declarations_by_scope.get(name)
        if by_scope is None:
            by_scope = self._declarations_by_scope[name] = {}
            for entry in declarations:
                by_scope.setdefault(entry.end, []).append(entry)
        # The scope of what the header declares ends after the closing brace.
        ends = (*(closing for _, closing in self.scopes_around(position)), self.end)
        return [entry for end in dict.fromkeys(ends) for entry in by_scope.get(end, ())]

    @lazy
    def called(self) -> list[tuple[str, int, int]]:
        """What the body's calls name, a function or a register with its address, as (name, start, end of the name)."""
        callees = []
        for index in self.calls:
            call = self.statement(index)
            callee = _CALLEE.match(self.code, call.position, call.end)
            if callee is not None:
                callees.append((callee[1], *callee.span(1)))
        return callees

    @lazy
    def operand_names(self) -> Set[str]:
        """Names in operand position, which may be of variables and functions of the module.

        Without names that begin with ``%``, as compilers name registers.
        """
        in_braces = _NAMED_AFTER_BRACE.finditer(self.code, self.start, self.end)
        return self._listed.union(
            _NAMED.findall(self.code, self.start, self.end),
            (match[1] for match in in_braces if match.start() not in self._block_braces),
        )

    @lazy
    def _block_braces(self) -> frozenset[int]:
        """Positions of the braces around statements, as opposed to those of vectors."""
        return frozenset(self._braces)

    def occurrences(self, name: str) -> list[tuple[int, int]]:
        """Where the body has a name as a whole word, as (start, end) positions in the module's text.

        Left out: parts of longer names, names with a suffix as ``a.x``, which is an element of a vector or an opcode,
        and opcodes without one (``trap``).
        """
        code, spans = self.code, []
        at = code.find(name, self.start, self.end)
        while at >= 0:
            end = at + len(name)
            if not (_continues(code[at - 1]) or code[at - 1] in "%." or _continues(code[end])) and not (
                code[end] == "." and _continues(code[end + 1]) and code[end + 1] != "$"
            ):
                statement = self.statement(self.index_at(at))
                if statement.mnemonic is None or statement.position != at:
                    spans.append((at, end))
            at = code.find(name, at + 1, self.end)
        return spans

    def names_operand(self, name: str) -> bool:
        """Whether a name is among the ``operand_names``; quicker than these for one name of a long body."""
        code, at = self.code, self.code.find(name, self.start, self.end)
        while at >= 0:
            end = at + len(name)
            if not _continues(code[end]) and not _continues(code[at - 1]):
                # 64 characters nearly always hold more than white space; only else all text before is copied.
                start = max(at - 64, 0)
                opening = code[start:at].rstrip()
                if not opening:
                    start, opening = 0, code[:at].rstrip()
                opens = opening[-1:] in _OPENS_OPERAND and start + len(opening) - 1 not in self._block_braces
                if opens or name in self._listed:
                    return True
            at = code.find(name, end, self.end)
        return False

    @lazy
    def _listed(self) -> set[str]:
        """Operand names that no bracket or comma need precede: what calls name, and the lists of their targets."""
        names = {name for name, _, _ in self.called}
        for statement in self.directives_with(".calltargets", ".branchtargets"):
            _, _, listed = statement.text.partition("targets")
            names.update(name for piece in listed.split(",") if (name := piece.strip()))
        return names

    @lazy
    def call_sequences(self) -> list[tuple[int, int]]:
        """Each call with the stores of its arguments and the loads of its results, as (start, end), in text order.

        No code may be inserted within these, since PTX requires them to be adjacent. A call alone in braces takes the
        whole block; any other one the stores of parameters right before it and the loads right after it.
        """
        sequences = []
        for index in self.calls:
            call = self.statement(index)
            opening, closing = self.enclosing(call.position)
            # The braces of the body itself are no block of a call.
            if opening != self.start and self.is_plain_call((opening, closing + 1)):
                sequences.append((opening, closing + 1))
                continue
            start, first, last = call.start, index, index + 1
            while first > 0:
                first -= 1
                before = self.statement(first)
                if not _begins(before.text, 0, _TO_CALL) or _has_brace(self.code, before.start, before.end):
                    break
                start = before.start
            while last < len(self) and self._loads_result(last):
                last += 1
            sequences.append((start, self.ends[last - 1]))
        return sequences

    def _loads_result(self, index: int) -> bool:
        """Whether a statement does nothing but load a parameter, as the result of a call before it."""
        text = self.code[self.ends[index - 1] : self.ends[index]]
        return _begins(text.lstrip(), 0, ("ld.param",)) and text[-1] == ";" and not _has_brace(text, 0, len(text))

    def call_sequence(self, position: int) -> tuple[int, int] | None:
        """The call sequence that a position of the module's text lies in, as (start, end); None outside of all."""
        if not self.call_sequences:
            return None
        # The last one that begins at the position or before; no sequence ends after the body, so that the pair compares
        # greater than a sequence that begins at the position.
        at = bisect_right(self.call_sequences, (position, self.end)) - 1
        if at >= 0 and self.call_sequences[at][0] <= position < self.call_sequences[at][1]:
            return self.call_sequences[at]
        return None

    def is_plain_call(self, sequence: tuple[int, int]) -> bool:
        """Whether a text holds nothing but one call with its declarations, arguments and results.

        sequence: start and end in the module's text, which may be those of a block in braces.
        """
        statements = map(str.strip, self.code[slice(*sequence)].strip("{}").split(";"))
        instructions = [text for text in statements if text and not _is_around_call(text)]
        return len(instructions) == 1 and _is_call(instructions[0])


def _begins(text: str, at: int, words: tuple[str, ...]) -> bool:
    """Whether one of these words stands at a position of a text as a whole word."""
    found = next((at + len(word) for word in words if text.startswith(word, at)), len(text) + 1)
    return found == len(text) or (found < len(text) and not _continues(text[found]))


def _has_brace(text: str, start: int, end: int) -> bool:
    """Whether there is a brace in a part of a text."""
    return text.find("{", start, end) >= 0 or text.find("}", start, end) >= 0


def _number_from(name: str) -> int:
    """Where the number of a register's name begins (``12`` of ``%r12``), as series of registers number them: without
    zeros before it; the name's length if it has none."""
    digits = len(name.rstrip(_DIGITS))
    last = len(name) - 1
    return next((at for at in range(max(digits, last + 1 - _MOST_DIGITS), last) if name[at] != "0"), max(digits, last))


def _is_around_call(text: str) -> bool:
    """Whether a statement belongs to a call without being it. text: without white space around it."""
    if _begins(text, 0, _AROUND_CALL):
        return True
    label, _, directive = text.partition(":")
    return label != "" and _begins(directive.lstrip(), 0, (".callprototype", ".calltargets"))


def _is_call(text: str) -> bool:
    """Whether a statement is a call, with a predicate or without. text: without white space around it."""
    if text.startswith("@"):
        _, _, text = " ".join(text[1:].lstrip("! \t\r\n\v\f").split(None, 1)).partition(" ")
    return _begins(text, 0, ("call",))


def _continues(character: str) -> bool:
    """Whether a character next to a name would make it a longer name (so may be part of one)."""
    return character.isalnum() or character in "_$"
