"""PTX text as a sequence of module-level statements, each with its exact place in the text."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from neutrino.abi.structures import align_up
from neutrino.errors import PtxError
from neutrino.lazy import lazy
from neutrino.ptx.isa.scalars import TYPE_BYTES

# Comments and strings.
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"\\\n]|\\.)*"', re.DOTALL)

# Line information ends without a semicolon, at the end of its operands (PTX ISA, "Debugging Directives:
# .loc").
LOCATION = re.compile(
    r"\.loc[ \t]+\d+[ \t]+\d+(?:[ \t]+\d+)?"
    r"(?P<inlined>\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?",
    re.ASCII,
)


def blank(text: str) -> str:
    """Replace comments, strings and ``.loc`` directives by spaces. The length stays."""
    text = _without_comments(text)
    if ".loc" in text:
        text = LOCATION.sub(_spaces, text)
    return text


def _without_comments(text: str) -> str:
    """Replace comments and strings by spaces, as many as they have characters, line breaks within them included.

    Gives the same as a substitution of ``NOT_CODE``, but goes from one opening mark (``//``, ``/*``, ``"``) to the next
    by ``str.find``, which is quicker by far.
    """
    size = len(text)

    def find(mark: str, start: int) -> int:
        """Return where a mark is next, from a position on; the text's size if nowhere."""
        at = text.find(mark, start)
        return at if at >= 0 else size

    # The next mark of each kind that is not within a comment or a string; size where none follows.
    line, block, string = find("//", 0), find("/*", 0), find('"', 0)
    pieces = []
    copied_to = 0
    while (start := min(line, block, string)) < size:
        if start == line:
            # All line comments before the next mark of another kind at once; the last of them may hold that mark.
            stop = min(block, string)
            if text.startswith("//*", stop - 1):
                stop += 1  # the "/*" of "//*" opens nothing
            code, *comments = text[copied_to:stop].split("//")
            pieces.append(code)
            end = stop
            for number, comment in enumerate(comments, 1):
                length = comment.find("\n")
                if length >= 0:
                    # 2: the "//" that the split took away.
                    pieces += [" " * (length + 2), comment[length:]]
                    continue
                # No line break: either another "//" of the same comment follows, or it goes on after the stop.
                if number == len(comments):
                    end = find("\n", stop)
                pieces.append(" " * (len(comment) + 2 + end - stop))
            copied_to = end
            line = find("//", end)
        else:
            # No match: a quote that nothing closes on its line, which is passed over.
            match = NOT_CODE.match(text, start)
            end = match.end() if match is not None else start + 1
            if end > start + 1:
                pieces += [text[copied_to:start], " " * (end - start)]
                copied_to = end
            if line < end:
                line = find("//", end)
        if block < end:
            block = find("/*", end)
        if string < end:
            string = find('"', end)
    return "".join([*pieces, text[copied_to:]]) if pieces else text


def _spaces(match: re.Match[str]) -> str:
    """Return as many spaces as the match has characters, so that positions stay."""
    return " " * len(match[0])


def without_locations(text: str, *, keep: bool) -> str:
    """Return PTX text without its ``.loc`` directives, which give the source line of the instructions after them.

    keep: leave them in, only without ``function_name …, inlined_at …`` at their end, which refers to labels of debug
    sections that the text does not have.
    """
    if ".loc" not in text:
        return text
    if not keep:
        return LOCATION.sub("", text)
    # What precedes the group "inlined" if there is one, else the whole directive.
    return LOCATION.sub(
        lambda match: match[0][: match.start("inlined") - match.start()] if match["inlined"] else match[0],
        text,
    )


_BLANK = re.compile(r"\s*")
# The directive that says what a statement is, after its linkage words.
_START = re.compile(r"(?:\.(?:visible|extern|weak|common)\b\s*)*(?:\.(?P<word>\w+))?", re.ASCII)
# Directives that end without a semicolon, after their operands.
_LINE_DIRECTIVE = {
    "version": re.compile(r"\s+(\d+)\.(\d+)", re.ASCII),
    "target": re.compile(r"\s+[\w.]+(?:\s*,\s*[\w.]+)*", re.ASCII),
    "address_size": re.compile(r"\s+(\d+)", re.ASCII),
}
_FILE = re.compile(r'\.file\s+(\d{1,9})\s+"((?:[^"\\\n]|\\.)*)"', re.ASCII)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)")
# A header up to the name and the parenthesis of the parameters. Attributes and, in parentheses, results precede it.
_FUNCTION = re.compile(
    r"\.(?P<kind>entry|func)\b\s*"
    r"(?:\.attribute\s*\((?:[^()]|\([^()]*\))*\)\s*)?"
    r"(?:\([^()]*\)\s*)?"
    r"(?P<name>[A-Za-z_$%][\w$]*)\s*(?P<open>\()?",
    re.ASCII,
)
_BEFORE_KIND = re.compile(r"(?:\.(?!entry|func)\w+\s*)*")
"""The directives before ``.entry`` or ``.func``."""
_BODY_OR_END = re.compile(r"[{;]")
_TOP_END = re.compile(r"[{};]")
_LINKAGE = frozenset({"visible", "extern", "weak", "common"})
# A declaration of variables up to its first name, and then one name with its extents, up to its initializer.
_VARIABLE_HEAD = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\b\s*)*"
    r"\.(?P<space>global|const|shared|local|param|tex|texref|samplerref|surfref|sreg|reg)\b\s*(?:\[\s*(?P<bank>\d+)\s*\])?"
    r"(?P<attributes>(?:\s*\.(?:attribute\s*\((?:[^()]|\([^()]*\))*\)|align\s+\d+|shared|v[248]\b|[a-z]\w*))*)\s*",
    re.ASCII,
)
_DECLARATOR = re.compile(r"\s*(?P<name>[A-Za-z_$%][\w$]*)\s*(?P<dims>(?:\[[^\[\]]*\]\s*)*)(?P<init>=)?", re.ASCII)
_VARIABLE_SPACES = frozenset(
    {"global", "const", "shared", "local", "param", "tex", "texref", "samplerref", "surfref", "sreg", "reg"}
)
_TYPE_WORDS = frozenset({"texref", "samplerref", "surfref", "pred", "bf16", "bf16x2"})
# One parameter of a kernel; its alignment may be written before the type or after it ("late").
_PARAMETER = re.compile(
    r"\s*\.param\b\s*(?:\.align\s+(?P<align>\d+)\s*)?\.(?P<type>\w+)"
    r"(?P<pointer>\s*\.ptr\b(?:\s*\.(?:global|shared|local|const|param)\b)?(?:\s*\.align\s+\d+)?)?"
    r"(?:\s*\.align\s+(?P<late>\d+))?"
    r"\s*(?P<name>[A-Za-z_$%][\w$]*)\s*(?P<dims>(?:\[[^\[\]]*\]\s*)*)\Z",
    re.ASCII,
)


class Kind(enum.Enum):
    """What a module-level statement is."""

    VERSION = "version"
    TARGET = "target"
    ADDRESS_SIZE = "address_size"
    FILE = "file"
    SECTION = "section"
    PRAGMA = "pragma"
    ALIAS = "alias"
    VARIABLE = "variable"
    FUNCTION = "function"
    ENTRY = "entry"
    BLANK = "blank"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ModuleStatement:
    """One module-level statement: ``text[start:end]`` of the module. White space before it is a BLANK statement of its
    own."""

    kind: Kind = field(hash=False)
    start: int
    end: int


@dataclass(frozen=True)
class Variable:
    """A module-scope variable.

    space: ``global``, ``const``, ``shared``, ``texref`` … without the dot. type: with the dot and vector, as
    written. size: bytes, None when the extent is open (``[]``) or the type has none. initializer: text after
    ``=``, or None. linkage: ``visible``, ``extern``, ``weak``, ``common``.
    """

    name: str
    space: str
    type: str
    size: int | None
    initializer: str | None
    linkage: frozenset[str]
    statement: ModuleStatement

    @property
    def initialised(self) -> bool:
        """Whether the PTX text gives the variable an initial value."""
        return self.initializer is not None


class Parameter(NamedTuple):
    """A kernel parameter. offset, size, align: bytes in the parameter space, laid out as ptxas and the driver
    do. type: of it or of its elements, without the dot; is_array: it has elements."""

    name: str
    offset: int
    size: int
    align: int
    type: str
    is_array: bool


@dataclass(frozen=True)
class Function:
    """An ``.entry`` or a ``.func``. All positions are in the module's text.

    name_end: just after the name. parameters: inside the parentheses, None without parentheses.
    body: from the opening brace to the end of the closing one, None for a declaration. linkage: as for Variable.
    """

    name: str
    is_entry: bool
    name_end: int
    parameters: tuple[int, int] | None
    body: tuple[int, int] | None
    linkage: frozenset[str]
    statement: ModuleStatement


class _LineCounter:
    """Counts lines from the last position asked for: sites come in order, and texts have many lines."""

    def __init__(self, text: str) -> None:
        """Prepare to tell the line of positions in a text."""
        self._text = text
        self._position = 0
        self._line = 1

    def line(self, position: int) -> int:
        """The line, from 1, that a position in the text is in; counted on from the position asked for before."""
        if position >= self._position:
            self._line += self._text.count("\n", self._position, position)
        else:
            self._line -= self._text.count("\n", position, self._position)
        self._position = position
        return self._line


@dataclass(frozen=True)
class Module:
    """PTX text taken apart at module level. text: as read. code: the same with comments and strings blanked.

    version: of ``.version``, target: what ``.target`` lists, address_size: in bits. functions: those that are no
    kernels; entries: the kernels.
    """

    text: str
    code: str
    statements: tuple[ModuleStatement, ...]
    version: tuple[int, int] | None
    target: str
    address_size: int
    functions: tuple[Function, ...]
    entries: tuple[Function, ...]
    variables: tuple[Variable, ...]

    def print(self) -> str:
        """Return the text, put together from its statements; it equals what was parsed."""
        return "".join(self.text[statement.start : statement.end] for statement in self.statements)

    def source(self, statement: ModuleStatement) -> str:
        """The text of one statement of the module, exactly as it was read."""
        return self.text[statement.start : statement.end]

    @lazy
    def _lines(self) -> _LineCounter:
        """A counter that tells in which line of the text a position is."""
        return _LineCounter(self.text)

    def line(self, position: int) -> int:
        """The line, from 1, that a position in the module's text is in."""
        return self._lines.line(position)

    @lazy
    def symbols(self) -> dict[str, Variable | Function]:
        """Variables and functions of module scope by name; a function's definition wins over its declarations."""
        names: dict[str, Variable | Function] = {variable.name: variable for variable in self.variables}
        for function in (*self.functions, *self.entries):
            known = names.get(function.name)
            if function.body is not None or known is None:
                names[function.name] = function
        return names

    @lazy
    def source_files(self) -> Mapping[int, str]:
        """The paths that ``.file`` directives give, by their number."""
        files = {}
        for statement in self.statements:
            if statement.kind is Kind.FILE and (match := _FILE.match(self.text, statement.start)) is not None:
                files[int(match[1])] = _path(match[2])
        return files

    @property
    def architecture(self) -> int | None:
        """The number in the first ``sm_`` of the target: 90 for ``sm_90a``; None without one."""
        name = self.target.removeprefix("sm_")
        digits = name[: len(name) - len(name.lstrip("0123456789"))]
        return int(digits) if digits and name != self.target else None

    def parameter_layout(self, entry: Function) -> tuple[tuple[Parameter, ...], int]:
        """Parameters of a kernel in order, and the bytes of parameter space that they take, with padding between them.

        A twin has one more parameter, after these. entry: the kernel. Raises PtxError for a parameter of an unknown
        form, as with an unknown type or an open extent.
        """
        if entry.parameters is None:
            return (), 0
        start, end = entry.parameters
        # ptxas aligns the address of a parameter in the constant bank, which is base + offset, not the offset.
        base = _parameter_base(self.architecture or 0)
        offset = 0
        parameters = []
        piece_start = start
        for piece in self.code[start:end].split(","):
            # Empty parentheses: the only piece is white space. An empty piece among others is an error.
            if not piece.strip() and piece_start == start and end - start == len(piece):
                break
            match = _PARAMETER.match(piece.rstrip())
            element_size = TYPE_BYTES.get(match["type"]) if match else None
            extents = _extents(match["dims"]) if match else []
            if match is None or element_size is None or "" in extents:
                error_position = piece_start + len(piece) - len(piece.lstrip())
                raise PtxError(self.line(error_position), piece, "kernel parameter of an unknown form")
            # The alignment may be written before the type or, as "late", after it.
            align = max(element_size, int(match["align"] or match["late"] or 0))
            size = element_size
            for extent in extents:
                size *= int(extent)
            offset = align_up(base + offset, align) - base
            parameters.append(Parameter(match["name"], offset, size, align, match["type"], bool(extents)))
            offset += size
            piece_start += len(piece) + 1  # 1: the comma
        return tuple(parameters), offset


def _path(quoted: str) -> str:
    """Decode a path as it is written between the quotes of a ``.file`` directive.

    Escapes are octal, one byte each, or a backslash before the character meant. Texts are read as latin-1, whatever
    they hold; paths are UTF-8 as a rule, so that the characters are made bytes again and decoded as such.
    """

    def character(match: re.Match[str]) -> str:
        """Return the character that an escape stands for: octal digits are a byte."""
        return chr(int(match[1], 8) & 255) if match[1].isdigit() else match[1]

    return _ESCAPE.sub(character, quoted).encode("latin-1", "replace").decode("utf-8", "replace")


def _parameter_base(architecture: int) -> int:
    """The byte offset in constant bank 0 at which kernel parameters start, as cubins of the architecture state it in
    EIATTR_PARAM_CBANK. architecture: 90 for ``sm_90``.
    """
    if architecture < 70:
        return 0x140
    if architecture < 90:
        return 0x160
    return 0x210 if architecture < 100 else 0x380


class _Reader:
    """Reads a PTX text statement by statement at module level; ``read`` is called once."""

    def __init__(self, text: str) -> None:
        """Prepare to parse a PTX module."""
        self.text = text
        self.code = blank(text)
        self.statements: list[ModuleStatement] = []
        self.functions: list[Function] = []
        self.entries: list[Function] = []
        self.variables: list[Variable] = []
        self.version: tuple[int, int] | None = None
        self.target = ""
        self.address_size = 32  # PTX ISA, ".address_size": the default

    def read(self) -> Module:
        """Split the whole PTX text into module-level statements; return the module that they declare."""
        position, size = 0, len(self.code)
        while position < size:
            blank_end = _matched(_BLANK, self.code, position).end()
            if blank_end > position:
                self._add(Kind.BLANK, position, blank_end)
                position = blank_end
                continue
            position = self._statement(position)
        return Module(
            self.text,
            self.code,
            tuple(self.statements),
            self.version,
            self.target,
            self.address_size,
            tuple(self.functions),
            tuple(self.entries),
            tuple(self.variables),
        )

    def _add(self, kind: Kind, start: int, end: int) -> ModuleStatement:
        """Add a module-level statement of a kind to those found so far; return it."""
        statement = ModuleStatement(kind, start, end)
        self.statements.append(statement)
        return statement

    def _statement(self, start: int) -> int:
        """Read the module-level statement at start and note it; returns the position after it.

        A statement of a form that is not known is noted as UNKNOWN.
        """
        head = _matched(_START, self.code, start)
        directive = head["word"]
        if directive in _LINE_DIRECTIVE:
            operands = _LINE_DIRECTIVE[directive].match(self.code, head.end())
            if operands is not None:
                return self._line_directive(directive, start, operands)
        if directive == "file":
            # The file name is a string, which is blanked: the directive ends with its line.
            end = min(self._next("\n", head.end()), self._next(";", head.end()))
            return self._add(Kind.FILE, start, end).end
        if directive in {"entry", "func"}:
            function_end = self._function(start)
            if function_end is not None:
                return function_end
        end = self._end(head.end())
        if directive in {"section", "pragma", "alias"}:
            return self._add(Kind(directive), start, end).end
        if directive in _VARIABLE_SPACES and self._variables(start, end):
            return end
        return self._add(Kind.UNKNOWN, start, end).end

    def _line_directive(self, directive: str, start: int, operands: re.Match[str]) -> int:
        """Note a ``.version``, ``.target`` or ``.address_size``; returns the position after it.

        directive: without its dot. start: of the directive. operands: the match of its pattern in ``_LINE_DIRECTIVE``.
        """
        if directive == "version":
            self.version = (int(operands[1]), int(operands[2]))
        elif directive == "target":
            self.target = "".join(operands[0].split())
        else:
            self.address_size = int(operands[1])
        return self._add(Kind(directive), start, operands.end()).end

    def _end(self, at: int) -> int:
        """The position after the semicolon or block that ends a module-level statement. at: a position within the
        statement.

        A block after ``=`` is an initializer and does not end the statement.
        """
        while True:
            stop = _TOP_END.search(self.code, at)
            if stop is None:
                return len(self.code)
            if stop[0] != "{":
                return stop.end()
            is_initializer = self.code[at : stop.start()].rstrip().endswith("=")
            at = self._block_end(stop.start())
            if not is_initializer:
                return at

    def _block_end(self, opening: int) -> int:
        """The position after the brace that closes the one at ``opening``; the end of the text if nothing closes it."""
        code, at, depth = self.code, opening, 0
        while True:
            closing = code.find("}", at)
            if closing < 0:
                return len(code)
            depth += code.count("{", at, closing) - 1
            at = closing + 1
            if depth == 0:
                return at

    def _next(self, mark: str, at: int) -> int:
        """The position of the next occurrence of a character, from a position on; the text's end if there is none."""
        found = self.code.find(mark, at)
        return found if found >= 0 else len(self.code)

    def _function(self, start: int) -> int | None:
        """Note the kernel or function whose statement begins at start; returns the position after it.

        None, with nothing noted, when its form is unknown.
        """
        # Linkage words precede the ``.entry`` or ``.func``.
        head = _FUNCTION.match(self.code, _matched(_BEFORE_KIND, self.code, start).end())
        if head is None:
            return None
        parameters = None
        head_end = head.end("name")
        if head["open"]:
            closing = self.code.find(")", head.end())
            if closing < 0:
                return None
            parameters = (head.end(), closing)
            head_end = closing + 1
        # The brace of a body, or the semicolon of a declaration.
        stop = _BODY_OR_END.search(self.code, head_end)
        # A .pragma may stand between the header and the body, and ends with a semicolon of its own.
        while stop is not None and stop[0] == ";" and ".pragma" in self.code[head_end : stop.start()]:
            head_end = stop.end()
            stop = _BODY_OR_END.search(self.code, head_end)
        if stop is None:
            return None
        body = (stop.start(), self._block_end(stop.start())) if stop[0] == "{" else None
        end = body[1] if body else stop.end()
        is_entry = head["kind"] == "entry"
        statement = self._add(Kind.ENTRY if is_entry else Kind.FUNCTION, start, end)
        linkage = _linkage(self.code[start : head.start("name")])
        function = Function(head["name"], is_entry, head.end("name"), parameters, body, linkage, statement)
        (self.entries if is_entry else self.functions).append(function)
        return end

    def _variables(self, start: int, end: int) -> bool:
        """Note the variables of the statement ``.space .type a, b[4] = {…};`` from start to end.

        False, with nothing noted, when its form is unknown.
        """
        head = _VARIABLE_HEAD.match(self.code, start, end)
        if head is None:
            return False
        linkage = _linkage(head[0])
        words = [word.strip() for word in head["attributes"].split(".")]
        types = [word for word in words if _is_type(word)]
        elements = next((int(word[1]) for word in words if word in {"v2", "v4", "v8"}), 0)
        # ".global .texref t": such a variable is in a space of its own, as ".texref" is.
        space = types[0] if types and types[0].endswith("ref") else head["space"]
        type_text = (f".v{elements}" if elements else "") + ("." + types[0] if types else "")
        declared = []
        position = head.end()
        while True:
            declarator = _DECLARATOR.match(self.code, position, end)
            if declarator is None:
                return False
            size = TYPE_BYTES.get(types[0]) if types else None
            if size is not None and elements:
                size *= elements
            # An open extent, "[]", makes the size unknown.
            for extent in _extents(declarator["dims"]):
                size = size * int(extent) if size is not None and extent else None
            position = declarator.end()
            initializer = None
            if declarator["init"]:
                initializer_end = self._initializer_end(position, end)
                initializer = self.code[position:initializer_end].strip()
                position = initializer_end
            declared.append((declarator["name"], size, initializer))
            follow = _matched(_BLANK, self.code, position).end()
            if self.code[follow : follow + 1] != ",":
                break
            position = follow + 1
        if self.code[position:end].strip() != ";":
            return False
        statement = self._add(Kind.VARIABLE, start, end)
        self.variables += [
            Variable(name, space, type_text, size, initializer, linkage, statement)
            for name, size, initializer in declared
        ]
        return True

    def _initializer_end(self, at: int, end: int) -> int:
        """Where the initializer after a ``=`` ends: after its braces, else before the next comma or semicolon.

        at: after the ``=``; end: of the statement.
        """
        first = _matched(_BLANK, self.code, at).end()
        if self.code[first : first + 1] == "{":
            return min(self._block_end(first), end)
        stops = [stop for stop in (self.code.find(mark, at, end) for mark in ",;") if stop >= 0]
        return min(stops, default=end)


def register_parameters(header: str) -> list[tuple[str, str]]:
    """Name and type, without its dot, of the parameters and results of a function that are registers.

    header: the text before the function's body.
    """
    found = []
    for piece in header.split(".reg")[1:]:
        # The type and the name, up to the comma or the parenthesis that ends the parameter.
        words = piece.partition(",")[0].partition(")")[0].split()
        if piece[:1].isspace() and len(words) == 2 and words[0][0] == ".":
            found.append((words[1], words[0][1:]))
    return found


def _linkage(head: str) -> frozenset[str]:
    """The linkage words among the directives that a declaration begins with."""
    return _LINKAGE.intersection(map(str.strip, head.split(".")))


def _is_type(word: str) -> bool:
    """Whether a word of a declaration is a type of variables, of any number of bits."""
    bits, vector, elements = word[1:].partition("x")
    is_number = bits.isdecimal() and (not vector or (elements.isdecimal() and len(elements) == 1))
    return word in _TYPE_WORDS or (word[:1] in {"b", "u", "s", "f"} and is_number)


def _extents(dimensions: str) -> list[str]:
    """The extents of an array, as digits; "" for an open one. dimensions: in their brackets, ``[4][]``."""
    inner = (piece.strip("[ \t\r\n\v\f") for piece in dimensions.split("]")[:-1])
    return [extent for extent in inner if not extent or extent.isdecimal()]


def _matched(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    """Match a pattern that also matches the empty string: there always is a match, so that callers need no check."""
    match = pattern.match(text, at)
    if match is None:
        raise ValueError(f"{pattern.pattern!r} must match the empty string")
    return match


def parse(text: str) -> Module:
    """Take PTX text (decoded as latin-1) apart at module level. Never fails: what it does not know is kept as
    UNKNOWN."""
    return _Reader(text).read()
